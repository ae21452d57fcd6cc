"""Columns of ``obs`` in AnnData: a label for each cell, also where it is stored as codes of categories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from streampca.errors import DataError, ParameterError
from streampca.sources.cells.hdf5_store import h5py_module, opening_error
from streampca.sources.cells.zarr_store import is_anndata_group
from streampca.sources.options import ReadOptions
from streampca.sources.zarr.dimensions import values_of_vector
from streampca.sources.zarr.opening import node_at
from streampca.sources.zarr.strictness import as_stored
from streampca.storage.regular_files import require_regular
from streampca.typing import Array

_Read = Callable[[Any], Array]


def obs_column(key: str, name: str, path: str, options: ReadOptions) -> Array | None:
    """Return the column `name` of ``obs`` of the AnnData at `path`, a value for each cell; None where it is no AnnData.

    Parameters
    ----------
    key : str
        Name of the parameter in messages.
    name : str
        Name of the column.
    path : str
        Path or URL of a store of zarr, or of an ``.h5ad`` file.
    options : ReadOptions
        How the data are opened.

    Raises
    ------
    ParameterError
        If there is no such column.
    DataError
        If it is damaged, has missing values, or holds neither numbers nor text.
    """
    if path.endswith(".h5ad"):
        return _of_file(key, name, path)
    try:
        group, label = node_at(path, options.storage_options)
    except DataError:
        return None
    if not isinstance(group, zarr.Group) or not is_anndata_group(group):
        return None

    def read(node: Any) -> Array:
        array = as_stored(node, f"{label}/{node.path}", options.follow_symlinks)
        values = values_of_vector(array, f"{key}: {label}/{node.path}", fill=options.missing_chunks == "fill")
        if values is None:
            raise DataError(f"{key}: {label}/{node.path} has the type {array.dtype}: expected numbers or text")
        return values

    return _column(group.get("obs"), key, name, label, read)


def _of_file(key: str, name: str, path: str) -> Array:
    place = Path(path).absolute()
    try:
        require_regular(place)
        file = h5py_module().File(place, "r")
    except OSError as error:
        raise opening_error(path, error) from error

    def read(node: Any) -> Array:
        try:
            values = np.asarray(node[()])
        except Exception as error:
            raise DataError(f"{key}: {path}{node.name} cannot be decoded: it is damaged or cut short") from error
        if values.dtype.kind in "OS":
            return np.array([v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values.tolist()])
        return values

    with file:
        return _column(file.get("obs"), key, name, path, read)


def _column(frame: Any, key: str, name: str, label: str, read: _Read) -> Array:
    """Return the column `name` of a stored data frame; `read` returns the values of an array of one axis."""
    known = [] if frame is None else [str(each) for each in frame.attrs.get("column-order", [])]
    if frame is None or name not in known or name not in frame:
        names = ", ".join(known[:12]) or "none"
        raise ParameterError(f"{key}={name[:60]!r}: obs of {label} has no such column: expected one of {names}")
    node = frame[name]
    encoding = str(node.attrs.get("encoding-type", ""))
    if encoding == "categorical":
        codes, categories = read(node["codes"]), read(node["categories"])
        missing, values = codes < 0, categories[np.where(codes < 0, 0, codes)] if len(categories) else codes
    elif encoding.startswith("nullable-"):
        missing, values = read(node["mask"]).astype(bool), read(node["values"])
    elif hasattr(node, "shape") and len(node.shape) == 1:
        values = read(node)
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    else:
        raise DataError(
            f"{key}: obs/{name} of {label} is {encoding or 'a group'}: expected numbers, text or categories"
        )
    if missing.any():
        raise DataError(
            f"{key}: obs/{name} of {label} has {int(missing.sum()):,} missing values: expected a label for every cell"
        )
    return values
