"""Weights and classes that a configuration names: an ``.npy`` file, or an array beside the data in the same group or file."""

from __future__ import annotations

import math
from pathlib import PurePosixPath

from streampca.errors import DataError, NotAvailableError, StreamPCAError
from streampca.sources.arrays import read_array
from streampca.sources.conventions import VALID, require_unpacked
from streampca.sources.files.paths import files_of
from streampca.sources.named_arrays import NamedArray, NamedArrays
from streampca.sources.options import ReadOptions
from streampca.typing import Array, DType

_MAX_BYTES = 2**34


def read_vector(key: str, name: str, path: str, options: ReadOptions) -> Array:
    """Read the one-dimensional array at the path or of the array name `name`.

    Parameters
    ----------
    key : str
        Name of the parameter in messages.
    name : str
        Path of an ``.npy`` file, or the name of an array beside the data in a zarr group.
    path : str
        Path or URL of the data.
    options : ReadOptions
        How the data are opened: the array in the group, the options of the store, and whether links are followed.

    Raises
    ------
    DataError
        If there is no such array, or it is not one-dimensional and of real numbers.
    """
    values = read_array(key, name) if name.endswith(".npy") else _from_group(key, name, path, options)
    _require_vector(key, name, values.shape, values.dtype)
    return values


def read_beside(key: str, name: str, path: str, options: ReadOptions) -> Array:
    """Return the numbers or texts of the one-dimensional array `name` beside the data at `path`; `DataError` if there are none."""
    arrays, array = _beside(key, name, path, options)
    values = arrays.values(array, f"{key}: {path}/{name}") if len(array.shape) == 1 else None
    if values is None:
        raise DataError(
            f"{key}: {name} has shape {array.shape} and dtype {array.dtype}: expected one dimension of numbers or text"
        )
    return values


def _beside(key: str, name: str, path: str, options: ReadOptions) -> tuple[NamedArrays, NamedArray]:
    """Return the place at `path` and the array `name` beside the data in it, not yet read; `DataError` if there is none."""
    beside = str(PurePosixPath(next(iter(options.names), "")).parent / name)
    try:
        arrays = arrays_at(path, options)
        arrays.prepare(options)
        array = arrays.find(beside) or arrays.find(name)
    except NotAvailableError:
        raise
    except StreamPCAError as error:
        raise type(error)(f"{key}: {path}: {error}") from error
    if array is None:
        raise DataError(f"{key}: {name} is neither a path that ends in .npy nor an array beside the data at {path}")
    return arrays, array


def arrays_at(path: str, options: ReadOptions) -> NamedArrays:
    """Return the arrays of the files or the zarr group at a path or URL."""
    import zarr

    from streampca.sources.files.arrays import arrays_of
    from streampca.sources.zarr.group import ZarrArrays
    from streampca.sources.zarr.opening import node_at
    from streampca.sources.zarr.strictness import strict_group

    files = files_of(path)
    if files is not None and files.has_arrays:
        return arrays_of(files)
    node, label = node_at(path, options)
    return ZarrArrays(strict_group(node) if isinstance(node, zarr.Group) else node, options, label)


def _from_group(key: str, name: str, path: str, options: ReadOptions) -> Array:
    arrays, array = _beside(key, name, path, options)
    _require_vector(key, name, array.shape, array.dtype)
    packed = {name: value for name, value in array.packed.items() if name not in VALID}
    require_unpacked(packed, f"{key}: {path}/{name}", "write the decoded values to an array of their own")
    return arrays.read(array, f"{key}: array {name} of {path}")


def _require_vector(key: str, name: str, shape: tuple[int, ...], dtype: DType) -> None:
    if len(shape) != 1 or dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize > _MAX_BYTES:
        raise DataError(
            f"{key}: {name} has shape {shape} and dtype {dtype}: expected one dimension of real numbers, of at most "
            f"{_MAX_BYTES:,} bytes"
        )
