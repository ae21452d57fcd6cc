"""What opens a store and may be a secret stays in this process; what is sent in its place works where it was told."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import zarr
from stores import make_values, write_store

from streampca.errors import StoreError
from streampca.runs.config import parse_config
from streampca.runs.config.values import plain_options
from streampca.runs.from_config import source_of
from streampca.sources import credentials, open_source
from streampca.sources.remote import open_store

SECRET = "canary-77aa"


@pytest.fixture
def url(tmp_path):
    return f"file://{write_store(tmp_path / 'x.zarr', make_values(40, 3), chunks=(10, 3))}"


def secret_in(url):
    return open_source(url, storage_options={"auto_mkdir": False, "password": SECRET})


def test_a_source_is_pickled_without_its_options_and_reads_the_same(url):
    source = secret_in(url)
    data = pickle.dumps(source)
    assert SECRET.encode() not in data
    again = pickle.loads(data)
    np.testing.assert_array_equal(again.read(3, 17)[0], source.read(3, 17)[0])
    assert again.fingerprint == source.fingerprint
    assert pickle.dumps(pickle.loads(pickle.dumps(again))) == pickle.dumps(again)


def test_a_process_that_was_not_told_hands_it_on_and_reads_nothing(url, monkeypatch):
    data = pickle.dumps(secret_in(url))
    told = credentials.registered()
    monkeypatch.setattr(credentials, "_registered", {})
    sealed = pickle.loads(data)
    assert sealed.shape == (40, 3)
    onward = pickle.dumps(sealed)
    with pytest.raises(StoreError, match="was not told how to open the store"):
        sealed.read(0, 10)
    credentials.update(told)
    np.testing.assert_array_equal(pickle.loads(onward).read(0, 10)[0], sealed.read(0, 10)[0])


def test_a_store_that_somebody_else_opened_keeps_its_secrets_too(url):
    store = zarr.storage.FsspecStore.from_url(url, storage_options={"password": SECRET}, read_only=True)
    array = zarr.open_array(store, mode="r")
    assert SECRET.encode() in pickle.dumps(array)
    source = open_source(array)
    data = pickle.dumps(source)
    assert SECRET.encode() not in data
    np.testing.assert_array_equal(pickle.loads(data).read(0, 40)[0], source.read(0, 40)[0])


def test_a_store_without_secrets_is_opened_by_anybody(url):
    data = pickle.dumps(open_source(url))
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).read(0, 40)[0].sum())"
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, timeout=60, check=True)
    assert float(done.stdout) == pytest.approx(make_values(40, 3).sum())


@pytest.mark.parametrize("url", [f"https://me:{SECRET}@host/x.zarr", f"https://host/x.zarr?token={SECRET}"])
def test_urls_may_hold_secrets(url):
    pytest.importorskip("aiohttp")
    assert SECRET.encode() not in pickle.dumps(open_store(url))


def test_equal_arguments_have_one_token(url):
    before = len(credentials.registered())
    assert (
        credentials.register((url, {"a": "b"}))
        == credentials.register((url, {"a": "b"}))
        != credentials.register((url, {"a": "c"}))
    )
    assert len(credentials.registered()) == before + 2


def test_two_runs_in_one_process_use_each_their_own_secret(monkeypatch, tmp_path, url):
    """fsspec tells file systems apart by what their options print, and ours print nothing."""
    seen = []
    for secret in ("first-secret", "second-secret"):
        monkeypatch.setenv("STREAMPCA_CANARY", secret)
        options = "storage_options: {deep: {key: '${STREAMPCA_CANARY}'}}"
        source = source_of(parse_config(f"source: {{path: '{url}', {options}}}", name="c.yaml"))
        file_system = source.store._store._store.fs
        inner = getattr(file_system, "sync_fs", file_system)
        seen.append(inner.storage_options["deep"]["key"])
    assert seen == ["first-secret", "second-secret"]
    options = parse_config(
        "source: {path: x, storage_options: {a: {b: [{c: d}]}}}", name="c.yaml"
    ).source.storage_options
    assert "d" not in repr(options)
    assert repr(plain_options(options)) == "{'a': {'b': [{'c': 'd'}]}}"
