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

from streampca.errors import DataError, OutputError
from streampca.sources import builtin
from streampca.sources.builtin import BUILTIN_NAMES, RECORD, materialise

SHAPES = {
    "photo-patches": (257_500, 768),
    "digits": (1797, 64),
    "iris": (150, 4),
    "breast-cancer": (569, 30),
    "wine": (178, 13),
    "diabetes": (442, 10),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
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


def test_an_interrupted_part_is_ignored_and_kept(tmp_path: Path) -> None:
    part = tmp_path / "iris.part-1-00000000"
    part.mkdir()
    (part / "zarr.json").write_text("{}")
    store = materialise("iris", tmp_path)
    assert open_store(tmp_path, "iris").shape == (150, 4)
    assert sorted(tmp_path.iterdir()) == sorted([part, store])
    assert snapshot(part) == {"zarr.json": b"{}"}


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError("device is gone")])
def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> None:
    content = builtin._CONTENTS["digits"]()

    def rows(start: int, stop: int) -> np.ndarray[Any, Any]:
        if start > 0:
            raise fault
        return content.rows(start, stop)

    broken = builtin._Content(**{**content.__dict__, "rows": rows})
    monkeypatch.setitem(builtin._CONTENTS, "digits", lambda: broken)
    with pytest.raises(OutputError if isinstance(fault, OSError) else type(fault)):
        materialise("digits", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["record", "deleted chunk", "emptied chunk"])
def test_an_outdated_or_damaged_store_of_ours_is_written_again(tmp_path: Path, damage: str) -> None:
    store = materialise("wine", tmp_path)
    fresh = snapshot(store)
    if damage == "record":
        break_record(store)
    elif damage == "deleted chunk":
        (store / "c" / "0" / "0").unlink()
    else:
        (store / "c" / "0" / "0").write_bytes(b"")
    assert materialise("wine", tmp_path) == store
    assert snapshot(store) == fresh
    assert list(tmp_path.iterdir()) == [store]


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
        break_record(materialise("iris", tmp_path))
        target.symlink_to(tmp_path / "iris.zarr")
    before = snapshot(tmp_path)
    with pytest.raises(OutputError, match=r"iris\.zarr is in the way"):
        materialise("iris", data)
    assert snapshot(tmp_path) == before
    assert list(data.iterdir()) == [target]


def test_two_processes_at_once_both_get_a_whole_store(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from streampca.sources.builtin import materialise; "
        "print(materialise('photo-patches', Path(sys.argv[1])))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    printed = [process.communicate(timeout=120)[0].strip() for process in processes]
    store = tmp_path / "photo-patches.zarr"
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert printed == [str(store)] * 3
    assert list(tmp_path.iterdir()) == [store]


def test_a_store_that_another_process_finished_first_is_taken(tmp_path: Path) -> None:
    store = materialise("iris", tmp_path)
    inode = os.stat(store).st_ino
    part = tmp_path / "iris.part-2-00000000"
    part.mkdir()
    (part / "zarr.json").write_text("{}")
    builtin._install(part, store, "iris")
    assert os.stat(store).st_ino == inode


def test_a_file_in_place_of_the_data_directory_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(OutputError, match="cannot write the built-in data set iris"):
        materialise("iris", tmp_path / "data")
    assert (tmp_path / "data").read_text() == "not a directory"


@pytest.mark.parametrize(
    ("name", "hint"), [("photopatches", "did you mean photo-patches"), ("mnist", "expected one of photo")]
)
def test_an_unknown_name_lists_the_names(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(DataError, match=hint) as caught:
        materialise(name, tmp_path)
    assert all(known in str(caught.value) for known in BUILTIN_NAMES)
    assert list(tmp_path.iterdir()) == []
