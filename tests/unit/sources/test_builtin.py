"""The built-in data sets: what they hold, when they are written, and what they never touch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from PIL import Image

import streampca as sp
from streampca.errors import DataError, OutputError

SHAPES = {
    "photo-patches": (257_500, 768),
    "digits": (1797, 64),
    "iris": (150, 4),
    "breast-cancer": (569, 30),
    "wine": (178, 13),
    "diabetes": (442, 10),
}


BUILTIN_NAMES = tuple(SHAPES)
RECORD = "streampca_builtin"


def materialise(name: str, directory: Path) -> Path:
    """Open a built-in set where `directory` is its folder ``data``; return the store."""
    home = Path.cwd()
    os.chdir(directory.parent)
    try:
        sp.open(f"builtin:{name}")
    finally:
        os.chdir(home)
    return directory / f"{name}.zarr"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder ``data``."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("builtin") / "data"
    for name in BUILTIN_NAMES:
        materialise(name, directory)
    return directory


def open_store(directory: Path, name: str) -> Any:
    return zarr.open_array(str(directory / f"{name}.zarr"), mode="r")


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def break_record(store: Path) -> None:
    metadata = json.loads((store / "zarr.json").read_text())
    metadata["attributes"][RECORD]["versions"]["pillow"] = "0.0"
    (store / "zarr.json").write_text(json.dumps(metadata))


@pytest.mark.parametrize("name", BUILTIN_NAMES)
def test_every_set_has_its_shape_and_says_what_it_is(data: Path, name: str) -> None:
    array = open_store(data, name)
    assert array.shape == SHAPES[name]
    assert array.dtype == (np.uint8 if name == "photo-patches" else np.float64)
    assert array.chunks[1] == array.shape[1]
    assert array.metadata.zarr_format == 3
    assert array.metadata.dimension_names is not None
    assert "scikit-learn" in array.attrs["description"]
    names = array.attrs.get("feature_names")
    assert names is None or len(names) == array.shape[1]
    shape = array.attrs.get("feature_shape")
    assert shape == {"photo-patches": [16, 16, 3], "digits": [8, 8]}.get(name)
    n_chunks = -(-array.shape[0] // array.chunks[0])
    assert len([path for path in (data / f"{name}.zarr" / "c").rglob("*") if path.is_file()]) == n_chunks


def test_nothing_else_is_left_in_the_data_directory(data: Path) -> None:
    assert sorted(path.name for path in data.iterdir()) == sorted(f"{name}.zarr" for name in BUILTIN_NAMES)


def test_chunks_of_patches_are_of_a_good_size_and_end_in_a_checksum(data: Path) -> None:
    array = open_store(data, "photo-patches")
    assert 4 * 2**20 <= array.chunks[0] * array.chunks[1] <= 8 * 2**20
    codecs = json.loads((data / "photo-patches.zarr" / "zarr.json").read_text())["codecs"]
    assert [codec["name"] for codec in codecs] == ["bytes", "zstd", "crc32c"]


@pytest.mark.parametrize("row", [0, 1, 624, 625, 8191, 8192, 128_749, 128_750, 131_071, 257_499])
def test_a_row_is_the_patch_of_its_photograph_in_scan_order(data: Path, row: int) -> None:
    photo, within = divmod(row, 206 * 625)
    top, left = 2 * (within // 625), within % 625
    with Image.open(str(files("sklearn.datasets.images") / ("china.jpg", "flower.jpg")[photo])) as image:
        expected = np.asarray(image)[top : top + 16, left : left + 16]
    np.testing.assert_array_equal(open_store(data, "photo-patches")[row], expected.reshape(-1))


# The published counts of axes that carry 90, 95 and 99 % of the variance of z-scores.
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("breast-cancer", [7, 10, 17]),
        ("iris", [2, 2, 3]),
        ("diabetes", [7, 8, 8]),
        ("digits", [31, 40, 54]),
        ("wine", [8, 10, 12]),
    ],
)
def test_tables_hold_the_published_data(data: Path, name: str, axes: list[int]) -> None:
    values = np.asarray(open_store(data, name)[:])
    spread = values.std(axis=0)
    scores = (values - values.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    shares = np.cumsum(np.linalg.svd(scores, compute_uv=False) ** 2) / scores.size
    assert [int(np.searchsorted(shares, share)) + 1 for share in (0.90, 0.95, 0.99)] == axes


def test_the_second_call_writes_nothing(data: Path) -> None:
    store = data / "iris.zarr"
    before = {path: path.stat().st_mtime_ns for path in [store, *store.rglob("*")]}
    assert materialise("iris", data) == store
    assert {path: path.stat().st_mtime_ns for path in [store, *store.rglob("*")]} == before


def test_an_interrupted_part_is_ignored_and_kept(folder: Path) -> None:
    part = folder / "iris.part-1-00000000"
    part.mkdir()
    (part / "zarr.json").write_text("{}")
    store = materialise("iris", folder)
    assert open_store(folder, "iris").shape == (150, 4)
    assert sorted(folder.iterdir()) == sorted([part, store])
    assert snapshot(part) == {"zarr.json": b"{}"}


@pytest.mark.parametrize("damage", ["record", "deleted chunk", "emptied chunk"])
def test_an_outdated_or_damaged_store_of_ours_is_written_again(folder: Path, damage: str) -> None:
    store = materialise("wine", folder)
    fresh = snapshot(store)
    if damage == "record":
        break_record(store)
    elif damage == "deleted chunk":
        (store / "c" / "0" / "0").unlink()
    else:
        (store / "c" / "0" / "0").write_bytes(b"")
    assert materialise("wine", folder) == store
    assert snapshot(store) == fresh
    assert list(folder.iterdir()) == [store]


@pytest.mark.parametrize("foreign", ["file", "empty", "directory", "store", "guest", "link"])
def test_what_is_not_ours_is_refused_and_untouched(tmp_path: Path, foreign: str) -> None:
    data = tmp_path / "data"
    target = data / "iris.zarr"
    data.mkdir()
    if foreign == "file":
        target.write_text("my thesis")
    elif foreign == "empty":
        target.mkdir()
    elif foreign == "directory":
        target.mkdir()
        (target / "thesis.txt").write_text("my thesis")
    elif foreign == "store":
        zarr.create_array(str(target), shape=(3, 2), chunks=(3, 2), dtype="f8")[:] = 1.0
    elif foreign == "guest":
        break_record(materialise("iris", data))
        (target / "c" / "notes.txt").write_text("my notes")
    else:
        break_record(materialise("iris", data))
        target.rename(tmp_path / "iris.zarr")
        target.symlink_to(tmp_path / "iris.zarr")
    before = snapshot(tmp_path)
    with pytest.raises(OutputError, match=r"iris\.zarr is in the way"):
        materialise("iris", data)
    assert snapshot(tmp_path) == before
    assert list(data.iterdir()) == [target]


def test_two_processes_at_once_both_get_a_whole_store(folder: Path) -> None:
    code = "import os, sys, streampca; os.chdir(sys.argv[1]); print(streampca.open('builtin:photo-patches').shape)"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(folder.parent)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=120)[0].strip() for process in processes]
    store = folder / "photo-patches.zarr"
    assert [process.returncode for process in processes] == [0, 0]
    assert printed == ["(257500, 768)"] * 2
    assert list(folder.iterdir()) == [store]


def test_a_file_in_place_of_the_data_directory_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(OutputError, match="cannot write the built-in data set iris"):
        materialise("iris", tmp_path / "data")
    assert (tmp_path / "data").read_text() == "not a directory"


@pytest.mark.parametrize(
    ("name", "hint"), [("photopatches", "did you mean photo-patches"), ("mnist", "expected one of photo")]
)
def test_an_unknown_name_lists_the_names(folder: Path, name: str, hint: str) -> None:
    with pytest.raises(DataError, match=hint) as caught:
        materialise(name, folder)
    assert all(known in str(caught.value) for known in BUILTIN_NAMES)
    assert list(folder.iterdir()) == []
