"""A named pipe or a device in the place of a file is a named error, and nothing waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from stores import Command, chunk_files, config_text, make_values, write_store

import streampca as sp
from streampca.errors import DataError
from streampca.sources import open_source


@contextmanager
def pipe_at(path: Path) -> Iterator[None]:
    """Put a named pipe in the place of a file; whoever waits for it all the same gets an end of file after 20 seconds."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    timer = threading.Timer(20, lambda: os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK)))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        path.unlink()


@pytest.mark.parametrize(("version", "name"), [(3, "zarr.json"), (2, ".zarray"), (2, ".zattrs")])
def test_pipe_as_metadata_raises_named_error(tmp_path: Path, version: int, name: str) -> None:
    store = write_store(tmp_path / "x.zarr", version=version)
    array = zarr.open_array(store, mode="r")
    with pipe_at(store / name):
        for data in (str(store), array):
            with pytest.raises(DataError, match=rf"{name.replace('.', '[.]')}.*named pipe, expected a regular file"):
                open_source(data)


def test_pipe_as_metadata_of_a_group_member_raises_named_error(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("x", data=make_values(40, 4))
    with pipe_at(tmp_path / "g.zarr/x/zarr.json"):
        for data in (str(tmp_path / "g.zarr"), group):
            for name in (None, "x"):
                with pytest.raises(DataError, match="named pipe"):
                    open_source(data, array=name)


@pytest.mark.parametrize("chain", ["none", "zstd", "zstd-checksum"])
@pytest.mark.parametrize("shards", [None, (200, 8)])
def test_pipe_as_chunk_raises_named_error(tmp_path: Path, chain: str, shards: Any) -> None:
    store = write_store(tmp_path / "x.zarr", chain=chain, shards=shards)
    source = open_source(store)
    with pipe_at(chunk_files(store)[0]):
        with pytest.raises(DataError, match="c/0/0"):
            sp.PCA(2).fit(store)
        with pytest.raises(DataError, match="named pipe"):
            source.read(0, 100)
        with pytest.raises(DataError, match="named pipe"):
            open_source(store, missing_chunks="fill").read(0, 100)


def test_pipe_or_device_as_npy_file_raises_named_error(tmp_path: Path) -> None:
    with pipe_at(tmp_path / "x.npy"), pytest.raises(DataError, match="named pipe"):
        open_source(tmp_path / "x.npy")
    (tmp_path / "zeros.npy").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="character device"):
        open_source(tmp_path / "zeros.npy")
    with pytest.raises(DataError, match="no such file"):
        open_source(tmp_path / "nothing.npy")


def test_pipe_as_store_raises_named_error(tmp_path: Path) -> None:
    with pipe_at(tmp_path / "x.zarr"), pytest.raises(DataError, match=r"x\.zarr"):
        open_source(tmp_path / "x.zarr")


def test_commands_refuse_pipes_by_name(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    command = Command(capsys)
    write_store(tmp_path / "x.zarr")
    np.save(tmp_path / "w.npy", np.ones(8))
    lines = ["preprocess: {feature_weight: w.npy}"]
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out", *lines))
    assert command.quietly("run", "c.yaml").status == 0
    with pipe_at(tmp_path / "pipe.yaml"):
        for name in ("run", "check", "plan"):
            command(name, "pipe.yaml").refused(2, "pipe.yaml", "named pipe")
    with pipe_at(tmp_path / "w.npy"):
        command("plan", "c.yaml").refused(5, "feature_weight", "named pipe")
    np.save(tmp_path / "w.npy", np.ones(8))
    assert command.quietly("fingerprint", "x.zarr").status == 0
    with pipe_at(tmp_path / "x.zarr.fingerprint.npz"):
        command("plan", "c.yaml", "--set", "source.verify=manifest").refused(5, "fingerprint", "named pipe")
    with pipe_at(tmp_path / "out/manifest.json"):
        command("report", "out").refused(5, "manifest.json", "named pipe")
