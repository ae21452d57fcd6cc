"""What opens a store and may be a secret stays in this process; what is sent in its place works where it was told."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import zarr
from facade import open_source
from fsspec.implementations.local import LocalFileSystem
from stores import make_values, write_store

import streampca as sp

SECRET = "canary-77aa"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{write_store(tmp_path / 'x.zarr', make_values(40, 3), chunks=(10, 3))}"


def secret_in(url: str) -> Any:
    return open_source(url, storage_options={"auto_mkdir": False, "password": SECRET})


def test_a_source_is_pickled_without_its_options_and_reads_the_same(url: str) -> None:
    source = secret_in(url)
    data = pickle.dumps(source)
    assert SECRET.encode() not in data
    again = pickle.loads(data)
    np.testing.assert_array_equal(again.read(3, 17)[0], source.read(3, 17)[0])
    assert again.fingerprint == source.fingerprint
    assert pickle.dumps(pickle.loads(pickle.dumps(again))) == pickle.dumps(again)


def test_another_process_opens_stores_without_secrets_and_hands_on_those_that_it_was_not_told_of(url: str) -> None:
    code = """
import pickle, sys
plain, sealed = pickle.load(sys.stdin.buffer)
print(plain.read(0, 40)[0].sum(), sealed.shape, flush=True)
try:
    sealed.read(0, 10)
except Exception as error:
    print(type(error).__name__, error, flush=True)
sys.stdout.buffer.write(pickle.dumps(sealed))
"""
    source = secret_in(url)
    given = pickle.dumps((open_source(url), source))
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, timeout=60, check=True)
    said, refused, onward = done.stdout.split(b"\n", 2)
    total, _, shape = said.decode().partition(" ")
    assert float(total) == pytest.approx(make_values(40, 3).sum())
    assert shape == "(40, 3)"
    assert refused.startswith(b"StoreError")
    assert b"was not told how to open the store" in refused
    np.testing.assert_array_equal(pickle.loads(onward).read(0, 10)[0], source.read(0, 10)[0])


def test_a_store_that_somebody_else_opened_keeps_its_secrets_too(url: str) -> None:
    store = zarr.storage.FsspecStore.from_url(url, storage_options={"password": SECRET}, read_only=True)
    array = zarr.open_array(store, mode="r")
    assert SECRET.encode() in pickle.dumps(array)
    source = open_source(array)
    data = pickle.dumps(source)
    assert SECRET.encode() not in data
    np.testing.assert_array_equal(pickle.loads(data).read(0, 40)[0], source.read(0, 40)[0])


class Watched(LocalFileSystem):  # type: ignore[misc]
    """A file system that is told a secret, and knows which."""

    protocol = "watched"
    told: ClassVar[list[str]] = []

    def __init__(self, deep: Any = None, **options: Any):
        super().__init__(**options)
        self.deep = str(deep["key"])

    def _cat_file(self, *arguments: Any, **options: Any) -> Any:
        self.told.append(self.deep)
        return super()._cat_file(*arguments, **options)

    def cat_file(self, *arguments: Any, **options: Any) -> Any:
        self.told.append(self.deep)
        return super().cat_file(*arguments, **options)


def test_two_runs_in_one_process_use_each_their_own_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    """fsspec tells file systems apart by what their options print, and ours print nothing."""
    fsspec.register_implementation("watched", Watched, clobber=True)
    for place, secret in (("one", "first-secret"), ("two", "second-secret")):
        monkeypatch.setenv("STREAMPCA_CANARY", secret)
        Watched.told.clear()
        config = tmp_path / "c.yaml"
        config.write_text(
            f"source:\n  path: '{url.replace('file:', 'watched:')}'\n"
            "  storage_options: {deep: {key: '${STREAMPCA_CANARY}'}}\n"
            f"output: {{directory: '{tmp_path / place}', report: false}}\nmodel: {{n_components: 2}}\n"
        )
        sp.run(config)
        assert set(Watched.told) == {secret}
        for path in (tmp_path / place).rglob("*"):
            assert path.is_dir() or secret.encode() not in path.read_bytes(), path
