"""Cells of AnnData as rows: of objects in memory or backed by a file, and of several stores or files as one table; of one in `stored`.

anndata itself is imported for stored AnnData only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.block import take_columns
from streampca.errors import DataError
from streampca.labels import SampleColumns
from streampca.sources.base import Source, Stacked
from streampca.sources.cells.description import (
    MOST_NAMES,
    OBSM,
    RAW,
    Cells,
    checked,
    mask_of,
    require_layer,
    table_of,
)
from streampca.sources.formats import ReadOptions
from streampca.sources.frames import FrameColumns
from streampca.sources.steps import Step, SteppedSource
from streampca.system.optional import package_of
from streampca.typing import Array, DType, IntArray


def is_anndata(data: object) -> bool:
    """Return whether `data` is an AnnData object."""
    return package_of(data) == "anndata" and all(
        hasattr(data, name) for name in ("X", "layers", "obs_names", "var", "var_names")
    )


def open_anndata(data: Any, options: ReadOptions, opened: Callable[[object], Source]) -> Source:
    """Return X or a layer of an AnnData object as a table of cells.

    Of a backed object X is read from its file, and all else is what the object holds, which may have been changed since.

    Parameters
    ----------
    opened : callable
        Opens the matrix: a numpy array, scipy sparse matrix or Dask array.
    """
    label = "AnnData object"
    options = checked(options, "an AnnData object", label)
    layers = {name: data.layers[name] for name in data.layers if name is not None}  # which is X in anndata 0.13
    layers |= {f"{OBSM}/{name}": data.obsm[name] for name in data.obsm}
    require_layer(options.layer, layers if data.raw is None else [*layers, RAW], label)
    part = data.raw if options.layer == RAW else data
    most = None
    if getattr(data, "isbacked", False) and not data.is_view and options.layer in (None, RAW):
        from streampca.sources.cells.stored import HDF5Cells

        stored, most = HDF5Cells(str(data.filename)), MOST_NAMES
        with stored.opened() as root:
            rows = stored.rows(root, "X" if options.layer is None else stored.place_of(root, options.layer))
    else:
        matrix = part.X if options.layer in (None, RAW) else layers[options.layer]
        if matrix is None:
            raise DataError(f"{label} has no X: name a layer to read instead")
        rows = opened(matrix)
        rows.description = label
    mask = None
    if options.mask_var is not None:
        column = part.var[options.mask_var].array if options.mask_var in part.var else None
        what = f"{label}: mask_var {options.mask_var[:60]}"
        mask = mask_of(column, rows.shape[1], what, list(map(str, part.var.columns)))
    has_genes = not (options.layer or "").startswith(f"{OBSM}/")
    names = (_names(data.obs_names, most), _names(part.var_names, most) if has_genes else None)
    columns = FrameColumns(data.obs)
    return table_of(Cells(rows, mask, *names, columns), options)


def _names(axis: Any, most: int | None) -> Array | None:
    """Return names of cells or features as text, None if there are more than `most`."""
    return None if most is not None and len(axis) > most else np.array(list(map(str, axis)), dtype=str)


def open_several_cells(paths: Sequence[str], options: ReadOptions) -> Source:
    """Return the cells of the AnnData at several paths, one after another, as one table.

    Raises
    ------
    DataError
        If their features, data types or masks differ, or some are sparse and others are not.
    """
    import zarr

    from streampca.sources.cells.stored import HDF5Cells, StoredCells, ZarrCells, cells_of, is_anndata_group
    from streampca.sources.zarr.group import node_at
    from streampca.sources.zarr.strictness import strict_group

    label = f"{paths[0]} and {len(paths) - 1} more"
    options = checked(options, "several AnnData", label)
    stored: list[StoredCells] = []
    for path in paths:
        if path.endswith(".h5ad"):
            stored.append(HDF5Cells(path))
            continue
        node, name = node_at(path, options)
        if not isinstance(node, zarr.Group) or not is_anndata_group(node):
            raise DataError(
                f"{name} is not an AnnData store: expected AnnData, the only zarr stores that can form one table"
            )
        stored.append(ZarrCells(strict_group(node), options, name))
    of_each = replace(options, genes="same")
    for each in stored:
        of_each.require_only(each.kind, each.label)
    parts = [cells_of(each, of_each) for each in stored]
    if options.genes == "intersection":
        parts = _of_shared_genes(parts, paths)
    for path, part in zip(paths[1:], parts[1:], strict=True):
        _require_alike(part, parts[0], path, paths[0])
    names = [part.cells for part in parts if part.cells is not None]
    rows = StackedCells([part.rows for part in parts], label)
    known = len(names) == len(parts) and rows.shape[0] <= MOST_NAMES
    cells = np.concatenate(names) if known else None
    columns = _StackedColumns([part.columns for part in parts], paths)
    return table_of(Cells(rows, parts[0].mask, cells, parts[0].features, columns), options)


class _SharedGenes(Step):
    """Some of the features in another order.

    Parameters
    ----------
    places : array of int, shape (n_features,)
        Which feature each one was.
    n_features : int
        Number of features before.
    """

    def __init__(self, places: IntArray, n_features: int):
        self.columns, self._n_features = places, n_features
        self._placed = np.full(n_features, -1, dtype=np.int64)
        self._placed[places] = np.arange(len(places))

    def __reduce__(self) -> tuple[object, ...]:
        return _SharedGenes, (self.columns, self._n_features)

    @property
    def digest(self) -> bytes:
        """Return which feature each one was."""
        return np.asarray(self.columns, dtype="<i8").tobytes()

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory that numpy takes for the result where `out` is not contiguous, at most that of all features."""
        return n_rows * n_features * dtype.itemsize

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the features in their order to `out`."""
        take_columns(values, np.asarray(self.columns), out)

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return sparse rows with the stored values of the features, sorted in each row."""
        placed = self._placed[indices]
        kept = np.flatnonzero(placed >= 0)
        edges = np.searchsorted(kept, indptr).astype(indptr.dtype)
        rows = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        order = np.lexsort((placed[kept], rows))
        return data[kept[order]], placed[kept[order]].astype(indices.dtype), edges


def _of_shared_genes(parts: Sequence[Cells], paths: Sequence[str]) -> list[Cells]:
    """Return the parts with the features that all of them have, in the order of the first.

    Raises
    ------
    DataError
        If features of a part have no names or a name twice, or no feature is in all of them.
    """
    named = list[Array]()
    for path, part in zip(paths, parts, strict=True):
        if part.features is None:
            raise DataError(
                f"{path}: var has no names of features, or more than {MOST_NAMES:,}: genes='intersection' needs them"
            )
        names, counts = np.unique(part.features, return_counts=True)
        if (counts > 1).any():
            raise DataError(
                f"{path}: var_names has {names[counts > 1][0]!s:.60} {counts.max()} times: genes='intersection' needs different names; "
                "make them different with adata.var_names_make_unique()"
            )
        named.append(part.features)
    shared = named[0][np.all([np.isin(named[0], each) for each in named], axis=0)]
    if not len(shared):
        raise DataError(f"{paths[0]} and {len(paths) - 1} more: no feature is in all of them")
    found = []
    for part, names in zip(parts, named, strict=True):
        order = np.argsort(names)
        places = order[np.searchsorted(names, shared, sorter=order)]
        rows = SteppedSource(part.rows, [_SharedGenes(places, len(names))])
        found.append(part._replace(rows=rows, mask=None if part.mask is None else part.mask[places], features=shared))
    return found


def _require_alike(part: Cells, first: Cells, path: str, other: str) -> None:
    """Raise `DataError` unless two parts have the same features, data type and mask, and are both sparse or both dense."""
    for what, found, expected in (
        ("features", part.rows.shape[1], first.rows.shape[1]),
        ("dtype", part.rows.dtype, first.rows.dtype),
        ("sparse rows", part.rows.sparse, first.rows.sparse),
    ):
        if found != expected:
            raise DataError(f"{path}: {what} {found}, {other}: {expected}: expected the same in all AnnData of a table")
    if (part.features is None) != (first.features is None):
        without, named = (path, other) if part.features is None else (other, path)
        raise DataError(
            f"{without} has no names of features in var, and {named} has: expected them in all AnnData of a table, so that their order "
            "can be compared"
        )
    if part.features is not None and first.features is not None and (part.features != first.features).any():
        at = int(np.flatnonzero(part.features != first.features)[0])
        raise DataError(
            f"{path}: var_names at place {at} is {part.features[at]!s:.60}, {other}: {first.features[at]!s:.60}: expected the same features in "
            "the same order; genes='intersection' takes those that all have"
        )
    if part.mask is not None and first.mask is not None and (part.mask != first.mask).any():
        at = int(np.flatnonzero(part.mask != first.mask)[0])
        raise DataError(
            f"{path}: mask_var differs from that of {other} at feature {at}: expected the same; give truth values as mask"
        )


class StackedCells(Stacked):
    """The rows of several AnnData."""

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of reading the files that a block may span, which it divides at two of them, and of all edges and chunks."""
        sizes = np.diff(self.first_rows)
        costs = [source.overhead_bytes(min(n_rows, source.shape[0])) for source in self.sources]
        before = np.cumsum([0, *costs])
        last = np.searchsorted(self.first_rows, np.add(self.first_rows[1:], n_rows - 1), "left") - 1
        most = max(costs)
        for first, end in enumerate(np.minimum(last, len(sizes) - 1).tolist()):
            divided = end == first + 1 and n_rows <= min(sizes[first], sizes[end])
            most = most if divided else max(most, int(before[end + 1] - before[first]))
        return most + sum(source.overhead_bytes(1) for source in self.sources)


class _StackedColumns(SampleColumns):
    """Columns of ``obs`` that all of several AnnData have."""

    def __init__(self, parts: Sequence[SampleColumns], paths: Sequence[str]):
        self._parts, self._paths = parts, paths

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that all have."""
        others = [set(part.names) for part in self._parts[1:]]
        return tuple(name for name in self._parts[0].names if all(name in names for names in others))

    def values(self, name: str) -> Array | None:
        """Return a column, None if none has it; `DataError` if some have none."""
        values = [part.values(name) for part in self._parts]
        found = [each for each in values if each is not None]
        if found and len(found) < len(values):
            without = next(path for path, each in zip(self._paths, values, strict=True) if each is None)
            raise DataError(f"{without}: obs has no column {name[:60]}, which others have: expected it in all")
        return np.concatenate(found) if found else None
