"""AnnData objects, in memory or backed by a file; anndata itself is never imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.errors import DataError
from streampca.sources.base import Source
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
from streampca.sources.frames import FrameColumns
from streampca.sources.options import ReadOptions
from streampca.system.optional import package_of
from streampca.typing import Array


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
        from streampca.sources.cells.hdf5 import HDF5Cells

        stored, most = HDF5Cells(str(data.filename)), MOST_NAMES
        with stored.opened() as root:
            rows = stored.rows(root, stored.place_of(root, options.layer))
    else:
        matrix = part.X if options.layer in (None, RAW) else layers[options.layer]
        if matrix is None:
            raise DataError(f"{label} has no X: name a layer to read that")
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
