"""AnnData stores of zarr, of format 2 or 3, read by their documented encoding; anndata itself is not needed.

Source: the on-disk format of anndata, https://anndata.readthedocs.io/en/stable/fileformat-prose.html.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import zarr

from streampca.errors import DataError, ParameterError, StreamPCAError
from streampca.formatting import one_line
from streampca.sources.base import Source
from streampca.sources.cells.compressed import CompressedRows
from streampca.sources.cells.description import (
    MOST_NAMES,
    mask_of,
    require_by_rows,
    require_edges,
    require_layer,
    require_length,
    require_options,
    table_of,
)
from streampca.sources.cells.vectors import Nothing, Vector
from streampca.sources.cells.zarr_columns import StoredObs
from streampca.sources.named_arrays import open_named
from streampca.sources.options import ReadOptions
from streampca.sources.zarr.digests import verified_by
from streampca.sources.zarr.group import ZarrArrays, values_of
from streampca.sources.zarr.metadata import require_readable
from streampca.sources.zarr.reader import ZarrSource
from streampca.sources.zarr.strictness import as_stored, quietly, read_labels
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Array, BoolArray, IntArray


def encoding_of(node: zarr.Group | ZarrArray) -> str:
    """Return the attribute ``encoding-type`` of a group or an array, an empty text if it has none."""
    return str(node.attrs.get("encoding-type", ""))


def is_anndata_group(group: zarr.Group) -> bool:
    """Return whether a group is the root of an AnnData store."""
    return encoding_of(group) == "anndata"


def open_cells(group: zarr.Group, options: ReadOptions, label: str) -> Source:
    """Return X or a layer of the AnnData store in `group` as a table of cells; reads names, the mask and where rows begin.

    Raises
    ------
    DataError
        If it is no AnnData, has no such layer or mask, or its matrix contradicts itself.
    NotAvailableError
        If the matrix is stored by columns.
    """
    if not is_anndata_group(group):
        raise ParameterError(
            f"{label}: {', '.join(options.of_cells)} is for AnnData stores, and the group has no encoding-type: anndata: leave it out"
        )
    normalization = require_options(options, label, verifies=True)
    layers = _child(group, "layers", label)
    names = layers.keys() if isinstance(layers, zarr.Group) and options.layer is not None else ()
    require_layer(options.layer, names, label)
    name = "X" if options.layer is None else f"layers/{options.layer}"
    node = _child(group, name, label)
    if node is None or encoding_of(node) == "null":
        raise DataError(f"{label} has no {name}: expected a matrix; name a layer to read that")
    rows = _rows(group, node, name, options, label)
    mask = None if options.mask_var is None else _mask(group, options, rows.shape[1], label)
    coordinates = (
        _names(group, "obs", rows.shape[0], label, options),
        _names(group, "var", rows.shape[1], label, options),
    )
    return table_of(rows, options, normalization, mask, coordinates, StoredObs(group, options, label))


def _child(group: zarr.Group, name: str, label: str) -> zarr.Group | ZarrArray | None:
    try:
        with quietly():
            return group.get(name)
    except StreamPCAError:
        raise
    except Exception as error:
        raise DataError(f"{label}/{name} cannot be opened: {one_line(error)}") from error


def _rows(group: zarr.Group, node: zarr.Group | ZarrArray, name: str, options: ReadOptions, label: str) -> Source:
    """Return the rows of a stored matrix."""
    if isinstance(node, zarr.Array):
        plain = replace(options, array=name, mask=None, mask_var=None, layer=None, normalize=None)
        rows = open_named(ZarrArrays(group, plain, label), plain)
        rows.labels = rows.feature_names = None
        rows.description = label
        return rows
    kind = encoding_of(node)
    require_by_rows(kind, f"{label}/{name}")
    shape = node.attrs.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int and n >= 0 for n in shape):
        raise DataError(f"{label}/{name} has shape {str(shape)[:60]}: expected two whole numbers")
    vectors = {key: _child(node, key, f"{label}/{name}") for key in ("data", "indices", "indptr")}
    arrays: dict[str, ZarrArray] = {}
    for key, vector in vectors.items():
        if not isinstance(vector, zarr.Array) or vector.ndim != 1:
            raise DataError(
                f"{label}/{name}: expected a vector {key}, found {'none' if vector is None else 'another node'}"
            )
        arrays[key] = vector
    require_edges(np.dtype(arrays["indptr"].dtype), arrays["indptr"].shape, int(shape[0]), f"{label}/{name}")
    data, indices, edges = (_vector(arrays[key], f"{name}/{key}", options, label) for key in arrays)
    indptr: IntArray = edges.read(0, edges.size)[0].astype(np.int64)
    return CompressedRows(data, indices, indptr, int(shape[1]), label, f"{label}/{name}", edges.source)


def _vector(array: ZarrArray, name: str, options: ReadOptions, label: str) -> Vector:
    """Return a reader of the array called `name`."""
    links, fill = options.follow_symlinks, options.fills_data
    array = as_stored(array, label, links)
    if array.shape[0] == 0:
        return Vector(Nothing(label, np.dtype(array.dtype)))
    digests = verified_by(options.verify, label, name)
    source = ZarrSource(array, label, name, ((0,), ()), fill, digests, links)
    source.require_fingerprinted()
    return Vector(source)


def _whole(array: ZarrArray, label: str, options: ReadOptions) -> Array:
    """Read a vector beside the matrix strictly."""
    require_readable(array.metadata, np.dtype(array.dtype).itemsize, label)
    return read_labels(as_stored(array, label, options.follow_symlinks), label, fill=options.fills_labels)


def _mask(group: zarr.Group, options: ReadOptions, n_features: int, label: str) -> BoolArray:
    """Return the column of ``var`` that `mask_var` names."""
    name = str(options.mask_var)
    what = f"{label}: mask_var {name[:60]}"
    plain = all(part.strip(".") for part in name.split("/"))
    node = _child(group, f"var/{name}", label) if plain else None
    if isinstance(node, zarr.Group) and encoding_of(node) == "nullable-boolean":
        missing = _child(node, "mask", what)
        node = _child(node, "values", what)
        # anndata leaves out the chunks of masks that are all false.
        filled = replace(options, missing_chunks="fill_labels")
        if isinstance(missing, zarr.Array) and bool(_whole(missing, what, filled).any()):
            raise DataError(f"{what} has missing values: expected true or false for every feature")
    if node is None:
        var = _child(group, "var", label)
        columns = var.attrs.get("column-order", []) if isinstance(var, zarr.Group) else []
        known = ", ".join(str(column)[:40] for column in columns[:12]) if isinstance(columns, list) else ""
        raise DataError(f"{what}: var has no such column: expected one of {known or 'none'}")
    if not isinstance(node, zarr.Array) or np.dtype(node.dtype).kind != "b" or node.ndim != 1:
        found = encoding_of(node) if isinstance(node, zarr.Group) else node.dtype
        raise DataError(f"{what} holds {found}: expected truth values (bool)")
    require_length(node.shape[0], n_features, what, label)
    return mask_of(_whole(node, what, options), n_features, what)


def _names(group: zarr.Group, axis: str, size: int, label: str, options: ReadOptions) -> Array | None:
    """Return the names of cells (``obs``) or features (``var``), None where there are none, or too many."""
    frame = _child(group, axis, label)
    if not isinstance(frame, zarr.Group):
        return None
    node = _child(frame, str(frame.attrs.get("_index", "_index")), f"{label}/{axis}")
    if isinstance(node, zarr.Group):
        node = _child(node, "values", f"{label}/{axis}")
    if not isinstance(node, zarr.Array) or node.ndim != 1:
        return None
    require_length(node.shape[0], size, axis, label)
    return values_of(node, f"{label}: names of {axis}", options) if size <= MOST_NAMES else None
