"""The built-in data sets, written once as zarr stores below a data directory and then read like any other store."""

from __future__ import annotations

import difflib
import errno
import importlib.metadata
import importlib.util
import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError, NoSpaceError, OutputError
from streampca.storage.files import is_disk_full
from streampca.storage.regular_files import read_regular
from streampca.system.optional import is_installed, not_installed, optional_module
from streampca.typing import Array, DType

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import JSON

BUILTIN_NAMES: tuple[str, ...] = ("photo-patches", "digits", "iris", "breast-cancer", "wine", "diabetes")
"""Every name that `materialise` knows."""

RECORD = "streampca_builtin"
"""Attribute of a store's array that is written last and marks a complete store of streampca."""

_FORMAT_VERSION = 1
_PHOTOS = ("china.jpg", "flower.jpg")
_EXTRA = "examples"
_SIDE = 16
_CHANNELS = 3
# Steps (down, right) between neighbouring patches of a photograph of 427 x 640: 206 x 625 patches in each, 257,500 in
# both, 198 MB. A step of (2, 2) would give 128,956, and (1, 1) would give 515,000, which makes a first run slow.
_STEP = (2, 1)
_PATCH_CHUNK_ROWS = 8192
_TABLE_CHUNK_ROWS = 256


@dataclass(frozen=True)
class _Content:
    """Shape, metadata and rows of a built-in data set before it is written."""

    shape: tuple[int, int]
    """Number of samples and of features."""
    dtype: DType
    """Data type of the store."""
    chunk_rows: int
    """Rows of one chunk; a chunk holds whole rows."""
    attributes: dict[str, JSON]
    """Attributes of the array, without the record."""
    dimension_names: tuple[str, str]
    """Names of the two axes."""
    rows: Callable[[int, int], Array]
    """From (start, stop) to these rows, shape ``(stop - start, n_features)``."""


def materialise(name: str, data_directory: Path = Path("data")) -> Path:
    """Return the path of the zarr v3 array ``data_directory/NAME.zarr``, writing it first where that is needed.

    The store is written chunk by chunk beside its place, under a name of this process alone, and renamed when it is
    complete. One that an earlier call left is reused when its record names this format and the installed versions of
    Pillow and scikit-learn, and is replaced otherwise.

    Raises
    ------
    DataError
        For an unknown name, or when scikit-learn does not hold the data.
    OutputError
        When something that is not such a store stands in its place, or the directory cannot be written to.
    NoSpaceError
        When the file system is full.
    """
    if name not in BUILTIN_NAMES:
        nearest = difflib.get_close_matches(name, BUILTIN_NAMES, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise DataError(f"builtin:{name} is not a built-in data set: expected one of {', '.join(BUILTIN_NAMES)}{hint}")
    target = data_directory / f"{name}.zarr"
    if _is_current(target, name):
        return target
    _require_replaceable(target, name)
    temporary = _unique_path(target)
    try:
        data_directory.mkdir(parents=True, exist_ok=True)
        _write(_CONTENTS[name](), temporary, name)
        _install(temporary, target, name)
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        if is_disk_full(error):
            raise NoSpaceError(f"{data_directory}: no room for the built-in data set {name}: {error}") from error
        raise OutputError(f"{data_directory}: cannot write the built-in data set {name}: {error}") from error
    finally:
        # Only this process knows this name, so whatever still stands there is what it wrote itself.
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _unique_path(target: Path) -> Path:
    """Return a unique path beside `target`."""
    return target.with_name(f"{target.stem}.part-{os.getpid()}-{secrets.token_hex(4)}")


def _expected_record(name: str, n_chunks: int) -> dict[str, JSON]:
    """Return the record that a complete store of this installation carries."""
    return {
        "name": name,
        "format_version": _FORMAT_VERSION,
        "n_chunks": n_chunks,
        "versions": {
            package: importlib.metadata.version(package)
            for package, module in (("pillow", "PIL"), ("scikit-learn", "sklearn"))
            if is_installed(module)
        },
    }


def _read_record(target: Path, name: str) -> dict[str, JSON] | None:
    """Return the record of the built-in store called `name`, or None if there is no such store."""
    try:
        record = json.loads(read_regular(target / "zarr.json"))["attributes"][RECORD]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return record if isinstance(record, dict) and record.get("name") == name else None


def _is_current(target: Path, name: str) -> bool:
    """Return whether the store is complete and made by this format and these versions; opens one small file."""
    record = _read_record(target, name) or {}
    n_chunks = record.get("n_chunks")
    if not isinstance(n_chunks, int) or record != _expected_record(name, n_chunks):
        return False
    # A chunk that was deleted, or emptied by a power failure, is not a complete store: the data can be made again.
    chunks = (target / "c" / str(index) / "0" for index in range(n_chunks))
    return all(chunk.is_file() and chunk.stat().st_size > 0 for chunk in chunks)


def _require_replaceable(target: Path, name: str) -> None:
    """Raise OutputError unless `target` is absent, or a built-in store that holds no other files."""
    if not os.path.lexists(target):
        return
    ours = not target.is_symlink() and _read_record(target, name) is not None
    if not ours or not all(_is_output_file(path.relative_to(target), path) for path in target.rglob("*")):
        raise OutputError(
            f"{target} is in the way of the built-in data set {name} and is not, or not only, a store that streampca "
            "wrote: move it away, or start in another directory"
        )


def _is_output_file(relative: Path, path: Path) -> bool:
    """Return whether a path inside a store is its metadata or one of its chunks."""
    if path.is_symlink():
        return False
    return relative.parts == ("zarr.json",) or (
        relative.parts[0] == "c"
        and len(relative.parts) <= 3
        and all(temporary.isdecimal() for temporary in relative.parts[1:])
    )


def _write(content: _Content, temporary: Path, name: str) -> None:
    """Write the store at `temporary` chunk by chunk, and its record after the last chunk."""
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    array = zarr.create_array(
        str(temporary),
        shape=content.shape,
        chunks=(content.chunk_rows, content.shape[1]),
        dtype=content.dtype,
        compressors=[ZstdCodec(level=3), Crc32cCodec()],
        fill_value=0,
        attributes=content.attributes,
        dimension_names=content.dimension_names,
        # A chunk that happens to be all zero must still exist: a chunk that is missing is an error to our readers.
        config={"write_empty_chunks": True},
    )
    starts = range(0, content.shape[0], content.chunk_rows)
    for start in starts:
        stop = min(start + content.chunk_rows, content.shape[0])
        array[start:stop] = content.rows(start, stop)
    array.attrs[RECORD] = _expected_record(name, len(starts))


def _install(temporary: Path, target: Path, name: str) -> None:
    """Rename the complete store to `target`, unless another process has written the same store meanwhile."""
    for _ in range(10):
        try:
            temporary.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        if _is_current(target, name):
            return
        _remove_stale(target, name)
    raise OutputError(f"{target}: other processes keep replacing it")


def _remove_stale(target: Path, name: str) -> None:
    """Remove an outdated or damaged built-in store, if it still exists."""
    _require_replaceable(target, name)
    stale = _unique_path(target)
    try:
        target.rename(stale)
    except FileNotFoundError:
        return
    shutil.rmtree(stale, ignore_errors=True)


def _photo_patches() -> _Content:
    """Every patch of both photographs, in scan order, the first photograph first."""
    windows = [_windows(_photo(file_name)) for file_name in _PHOTOS]
    counts = [view.shape[0] * view.shape[1] for view in windows]
    first = np.concatenate([[0], np.cumsum(counts)]).tolist()

    def rows(start: int, stop: int) -> Array:
        block = np.empty((stop - start, _SIDE * _SIDE * _CHANNELS), dtype=np.uint8)
        for view, offset, count in zip(windows, first, counts, strict=False):
            low, high = max(start, offset), min(stop, offset + count)
            if low < high:
                down, right = np.divmod(np.arange(low - offset, high - offset), view.shape[1])
                block[low - start : high - start] = view[down, right].reshape(high - low, -1)
        return block

    return _Content(
        shape=(first[-1], _SIDE * _SIDE * _CHANNELS),
        dtype=np.dtype(np.uint8),
        chunk_rows=_PATCH_CHUNK_ROWS,
        attributes={
            "description": f"Patches of {_SIDE} x {_SIDE} pixels (red, green, blue) of the photographs china.jpg and "
            "flower.jpg that scikit-learn ships (Creative Commons Attribution 2.0).",
            "feature_shape": [_SIDE, _SIDE, _CHANNELS],
        },
        dimension_names=("patch", "pixel"),
        rows=rows,
    )


def _photo(file_name: str) -> NDArray[np.uint8]:
    """Return a photograph of scikit-learn, shape ``(height, width, 3)``."""
    open_image = optional_module("PIL.Image", "builtin:photo-patches", _EXTRA).open
    # scikit-learn's own loader would import its data sets, which costs a second and 75 MiB for two small files.
    specification = importlib.util.find_spec("sklearn")
    if specification is None or not specification.submodule_search_locations:
        raise not_installed("sklearn", "builtin:photo-patches", _EXTRA)
    path = Path(specification.submodule_search_locations[0]) / "datasets" / "images" / file_name
    if not path.is_file():
        raise DataError(f"builtin:photo-patches needs {path}, which this scikit-learn does not hold")
    with open_image(path) as image:
        return np.asarray(image.convert("RGB"), dtype=np.uint8)


def _windows(photo: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a view of all patches of a photograph, shape ``(down, right, 16, 48)``, each patch in C order."""
    height, width, channels = photo.shape
    # With a pixel's channels laid out side by side, a patch is a plain rectangle, and its copy runs along memory.
    flat = photo.reshape(height, width * channels)
    every: NDArray[np.uint8] = np.lib.stride_tricks.sliding_window_view(flat, (_SIDE, _SIDE * channels))
    return every[:: _STEP[0], :: _STEP[1] * channels]


def _table(loader: str, description: str, feature_shape: list[int] | None = None, **options: bool) -> _Content:
    """One of scikit-learn's small tables, float64."""
    datasets = optional_module("sklearn.datasets", f"builtin:{loader.removeprefix('load_')}", _EXTRA)
    bunch = getattr(datasets, loader)(**options)
    values = np.ascontiguousarray(bunch.data, dtype=np.float64)
    attributes: dict[str, JSON] = {"description": description, "feature_names": [str(x) for x in bunch.feature_names]}
    if feature_shape is not None:
        attributes["feature_shape"] = feature_shape
    return _Content(
        shape=(values.shape[0], values.shape[1]),
        dtype=values.dtype,
        chunk_rows=min(_TABLE_CHUNK_ROWS, len(values)),
        attributes=attributes,
        dimension_names=("sample", "feature"),
        rows=lambda start, stop: values[start:stop],
    )


_CONTENTS: dict[str, Callable[[], _Content]] = {
    "photo-patches": _photo_patches,
    "digits": lambda: _table(
        "load_digits", "Handwritten digits of 8 x 8 pixels with 17 grey levels (UCI, from scikit-learn).", [8, 8]
    ),
    "iris": lambda: _table("load_iris", "Sepals and petals of 150 irises, in cm (Fisher 1936, from scikit-learn)."),
    "breast-cancer": lambda: _table(
        "load_breast_cancer", "Cell nuclei of 569 breast tumours, 30 measures each (UCI Wisconsin, from scikit-learn)."
    ),
    "wine": lambda: _table("load_wine", "Chemical analysis of 178 Italian wines (UCI, from scikit-learn)."),
    "diabetes": lambda: _table(
        "load_diabetes",
        "Ten baseline measures of 442 diabetes patients, unscaled (Efron et al. 2004, from scikit-learn).",
        scaled=False,
    ),
}
