"""Weights that a configuration names: an ``.npy`` file, or an array beside the data in the same zarr group."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError, StreamPCAError


def read_vector(
    key: str, name: str, *, path: str, array: str | None, storage_options: dict[str, Any] | None = None
) -> NDArray[Any]:
    """Return the one-dimensional array that `name` stands for, read whole.

    Parameters
    ----------
    key : str
        What messages call it.
    name : str
        Path of an ``.npy`` file, or the name of an array beside `array` in the zarr group at `path`.
    path, array : str
        Where the data are.
    storage_options : dict, optional
        For URLs, handed to fsspec.

    Raises
    ------
    DataError
        If there is no such array, or it is not one-dimensional and of real numbers.
    """
    values = _from_file(key, name) if name.endswith(".npy") else _from_group(key, name, path, array, storage_options)
    if values.ndim != 1 or values.dtype.kind not in "biuf":
        raise DataError(
            f"{key}: {name} has shape {values.shape} and dtype {values.dtype}: expected one dimension of real numbers"
        )
    return values


def _from_file(key: str, name: str) -> NDArray[Any]:
    file = Path(name).expanduser()
    try:
        return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else "it is not an .npy file of numbers"
        )
        raise DataError(f"{key}: {name} cannot be read: {reason}") from error


def _from_group(
    key: str, name: str, path: str, array: str | None, storage_options: dict[str, Any] | None
) -> NDArray[Any]:
    import zarr

    from streampca.sources.zarr_store import strict

    beside = str(PurePosixPath(array or "").parent / name)
    try:
        node: Any = zarr.open(path, mode="r", storage_options=storage_options if "://" in path else None)
        found = [node[place] for place in (beside, name) if isinstance(node, zarr.Group) and place in node]
    except Exception as error:
        raise DataError(f"{key}: {path} cannot be opened as a zarr group: {type(error).__name__}") from error
    if not found or not isinstance(found[0], zarr.Array):
        raise DataError(
            f"{key}: {name} is neither a path that ends in .npy nor an array beside the data in a zarr group at {path}"
        )
    try:
        return np.asarray(strict(found[0])[...])
    except StreamPCAError:
        raise
    except Exception as error:
        raise DataError(f"{key}: array {name} of {path} cannot be decoded: a chunk is damaged or cut short") from error
