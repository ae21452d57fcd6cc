"""Weights and classes that a configuration names: an ``.npy`` file, or an array beside the data in the same zarr group."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import DataError, NotAvailableError
from streampca.sources.options import ReadOptions
from streampca.storage.regular_files import require_regular
from streampca.typing import Array, DType

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ZarrArray

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


def read_array(key: str, name: str) -> Array:
    """Return the array in the ``.npy`` file `name`; `DataError`, which begins with `key`, if it cannot be read."""
    file = Path(name).expanduser()
    try:
        require_regular(file)
        return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else "it is not an .npy file of numbers"
        )
        raise DataError(f"{key}: {name} cannot be read: {reason}") from error


def read_beside(key: str, name: str, path: str, options: ReadOptions) -> Array:
    """Return the numbers or texts of the one-dimensional array `name` beside the data at `path`; `DataError` if there are none."""
    from streampca.sources.zarr.dimensions import values_of_vector

    array = _array_beside(key, name, path, options)
    values = (
        values_of_vector(array, f"{key}: {path}/{name}", fill=options.fills_labels) if len(array.shape) == 1 else None
    )
    if values is None:
        raise DataError(
            f"{key}: {name} has shape {array.shape} and dtype {array.dtype}: expected one dimension of numbers or text"
        )
    return values


def _array_beside(key: str, name: str, path: str, options: ReadOptions) -> ZarrArray:
    """Return the array `name` beside the data at `path`, not yet read; `DataError` if there is none."""
    import zarr
    from zarr.storage import LocalStore

    from streampca.sources.remote import open_store
    from streampca.sources.zarr.strictness import StrictStore, as_stored

    beside = str(PurePosixPath(next(iter(options.names), "")).parent / name)
    try:
        store = open_store(path, options.storage_options) if "://" in path else LocalStore(path, read_only=True)
        node = zarr.open(StrictStore(store, follow_symlinks=options.follow_symlinks), mode="r")
        nodes = [node[place] for place in (beside, name) if isinstance(node, zarr.Group) and place in node]
    except NotAvailableError:
        raise
    except DataError as error:
        raise type(error)(f"{key}: {path}: {error}") from error
    except Exception as error:
        raise DataError(f"{key}: {path} cannot be opened as a zarr group: {type(error).__name__}") from error
    if not nodes or not isinstance(nodes[0], zarr.Array):
        raise DataError(
            f"{key}: {name} is neither a path that ends in .npy nor an array beside the data in a zarr group at {path}"
        )
    return as_stored(nodes[0], f"{path}/{name}", options.follow_symlinks)


def _from_group(key: str, name: str, path: str, options: ReadOptions) -> Array:
    from streampca.sources.conventions import require_unpacked
    from streampca.sources.zarr.metadata import require_readable
    from streampca.sources.zarr.strictness import read_labels

    values = _array_beside(key, name, path, options)
    _require_vector(key, name, values.shape, np.dtype(values.dtype))
    require_unpacked(values.metadata, f"{key}: {path}/{name}", "write the decoded values to an array of their own")
    require_readable(values.metadata, np.dtype(values.dtype).itemsize, f"{path}/{name}", most_chunks=2**20)
    return read_labels(values, f"{key}: array {name} of {path}", fill=options.fills_labels)


def _require_vector(key: str, name: str, shape: tuple[int, ...], dtype: DType) -> None:
    if len(shape) != 1 or dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize > _MAX_BYTES:
        raise DataError(
            f"{key}: {name} has shape {shape} and dtype {dtype}: expected one dimension of real numbers, of at most "
            f"{_MAX_BYTES:,} bytes"
        )
