"""AnnData objects, in memory or backed by a file; anndata itself is never imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.errors import DataError
from streampca.sources.base import Source
from streampca.sources.cells.description import MOST_NAMES, mask_of, require_layer, require_options, table_of
from streampca.sources.columns_in_memory import FrameColumns
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
    normalization = require_options(options, label)
    layers = [name for name in data.layers if name is not None]  # which is X in anndata 0.13
    require_layer(options.layer, layers, label)
    most = None
    if getattr(data, "isbacked", False) and not data.is_view and options.layer is None:
        from streampca.sources.cells.hdf5_store import open_x_of_h5ad

        rows, most = open_x_of_h5ad(str(data.filename)), MOST_NAMES
    else:
        matrix = data.X if options.layer is None else data.layers[options.layer]
        if matrix is None:
            raise DataError(f"{label} has no X: name a layer to read that")
        rows = opened(matrix)
        rows.description = label
    mask = None
    if options.mask_var is not None:
        if options.mask_var not in data.var:
            known = ", ".join(map(str, list(data.var.columns)[:12]))
            raise DataError(
                f"{label}: mask_var {options.mask_var[:60]}: var has no such column: expected one of {known or 'none'}"
            )
        values = np.asarray(data.var[options.mask_var])
        if values.dtype.kind == "O" and {type(each) for each in values.tolist()} == {bool}:
            values = values.astype(bool)  # of a nullable column without missing values
        mask = mask_of(values, rows.shape[1], f"{label}: mask_var {options.mask_var[:60]}")
    names = (_names(data.obs_names, most), _names(data.var_names, most))
    return table_of(rows, options, normalization, mask, names, FrameColumns(data.obs, list(data.obs.columns)))


def _names(axis: Any, most: int | None) -> Array | None:
    """Return names of cells or features as text, None if there are more than `most`."""
    return None if most is not None and len(axis) > most else np.array(list(map(str, axis)), dtype=str)
