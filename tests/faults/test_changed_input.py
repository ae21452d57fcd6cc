"""Input that is replaced or changed between the passes of a fit, or between fit and scores, is a named error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from stores import chunk_files, config_text, make_values, write_store

import streampca as sp
from streampca.errors import ChangedInputError
from streampca.sources import open_source

N, D = 400, 8


def set_later(path: Path) -> None:
    """Give a file a modification time that differs, however coarse the clock of the file system is."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))


def once_in(phase: str, change: Callable[[], None]) -> Callable[[Any], None]:
    """Return a progress callback that calls `change` at the first block of `phase`."""
    done: list[str] = []

    def callback(progress: Any) -> None:
        if progress.phase == phase and not done:
            done.append(phase)
            change()

    return callback


def replace_chunk(store: Path) -> Callable[[], None]:
    def change() -> None:
        chunk = chunk_files(store)[0]
        chunk.write_bytes(bytes(chunk.stat().st_size))
        set_later(chunk)

    return change


SEVERAL_PASSES: dict[str, Callable[[Any], Any]] = {
    "sketch": lambda progress: sp.PCA(2, solver="sketch", pilot=0, tolerance=0, max_passes=3, progress=progress),
    "gram": lambda progress: sp.PCA(2, solver="gram", progress=progress),
    "covariance": lambda progress: sp.PCA(2, solver="covariance", progress=progress),
    "adaptive": lambda progress: sp.PCA(2, solver="adaptive", tolerance=0, max_passes=2, progress=progress),
    "kernel": lambda progress: sp.KernelPCA(2, gamma=0.1, n_landmarks=20, method="nystrom", progress=progress),
}


@pytest.mark.parametrize("name", SEVERAL_PASSES)
def test_chunk_changed_during_a_fit_raises_named_error(tmp_path: Path, name: str) -> None:
    store = write_store(tmp_path / "x.zarr", make_values(N, D), chunks=(100, D))
    change, changed = replace_chunk(store), []

    def callback(progress: Any) -> None:
        if not changed:
            changed.append(progress.phase)
            change()

    with pytest.raises(ChangedInputError, match=r"x\.zarr was changed while it was read.*c/0/0") as raised:
        SEVERAL_PASSES[name](callback).fit(str(store))
    assert raised.value.exit_status == 5


def test_chunk_changed_while_an_exact_kernel_matrix_is_read_raises_named_error(tmp_path: Path) -> None:
    store = write_store(tmp_path / "x.zarr", make_values(N, D), chunks=(100, D))
    source: Any = open_source(store)
    read, change = source.read, replace_chunk(store)

    def read_and_change(start: int, stop: int, out: Any = None) -> Any:
        found = read(start, stop, out)
        change()
        return found

    source.read = read_and_change
    with pytest.raises(ChangedInputError):
        sp.KernelPCA(2, gamma=0.1, method="exact").fit(source)


@pytest.mark.parametrize("orientation", ["samples_first", "features_first"])
def test_store_replaced_between_fit_and_scores_ends_the_run_with_status_5(tmp_path: Path, orientation: str) -> None:
    store = write_store(tmp_path / "x.zarr", make_values(N, D), chunks=(100, D))
    (tmp_path / "c.yaml").write_text(config_text(store, tmp_path / "out"))

    def replace() -> None:
        store.rename(tmp_path / "old.zarr")
        write_store(store, make_values(N, D, seed=1), chunks=(100, D))
        for path in store.rglob("*"):
            set_later(path)

    changes = [f"source.orientation={orientation}"]
    with pytest.raises(ChangedInputError) as raised:
        sp.run(tmp_path / "c.yaml", overrides=changes, progress=once_in("scores", replace))
    assert raised.value.exit_status == 5
    assert not (tmp_path / "out").exists()


def test_store_replaced_while_scores_are_written_leaves_no_scores(tmp_path: Path) -> None:
    store = write_store(tmp_path / "x.zarr", make_values(N, D), chunks=(100, D))
    pca = sp.PCA(2).fit(store)
    pca.set_params(progress=once_in("scores", replace_chunk(store)))
    with pytest.raises(ChangedInputError):
        pca.transform_to(store, tmp_path / "scores.zarr")
    assert not (tmp_path / "scores.zarr").exists()


def test_npy_file_changed_during_a_fit_raises_named_error(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, make_values(N, D))

    def change() -> None:
        np.save(path, make_values(N, D, seed=1))
        set_later(path)

    for data in (str(path), np.load(path, mmap_mode="r")):
        pca = sp.PCA(2, solver="sketch", pilot=0, tolerance=0, max_passes=2, progress=once_in("fit", change))
        with pytest.raises(ChangedInputError, match=r"changed while it was read"):
            pca.fit(data)


def test_metadata_changed_after_opening_raises_named_error(tmp_path: Path) -> None:
    store = write_store(tmp_path / "x.zarr", make_values(N, D).astype(np.float16), chunks=(100, D))
    source = open_source(store)
    document = store / "zarr.json"
    document.write_text(
        document.read_text().replace("float16", "int16").replace('"fill_value": 0.0', '"fill_value": 0')
    )
    set_later(document)
    with pytest.raises(ChangedInputError, match="metadata was changed after it was opened"):
        sp.PCA(2).fit(source)


def test_object_replaced_during_a_fit_raises_named_error() -> None:
    url = "memory://changed-input/x.zarr"
    array = zarr.create_array(url, shape=(N, D), chunks=(100, D), dtype="f8")
    array[...] = make_values(N, D)

    def change() -> None:
        array[:100] = 7.0

    pca = sp.PCA(2, solver="sketch", pilot=0, tolerance=0, max_passes=2, progress=once_in("fit", change))
    with pytest.raises(ChangedInputError, match=r"changed while it was read"):
        pca.fit(url)
    fsspec.filesystem("memory").rm("/changed-input", recursive=True)


def test_store_that_stays_the_same_is_read_as_often_as_wanted(tmp_path: Path) -> None:
    store = write_store(tmp_path / "x.zarr", make_values(N, D), chunks=(100, D))
    source = open_source(store)
    for _ in range(2):
        assert sp.PCA(2, solver="sketch", pilot=20, tolerance=0, max_passes=3).fit(source).n_passes_ == 3
    (store / "notes.txt").write_text("not part of the array")
    sp.PCA(2).fit(source)
