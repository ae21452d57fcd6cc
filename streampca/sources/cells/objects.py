"""AnnData objects, in memory or backed by a file; anndata itself is never imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.errors import DataError
from streampca.sources.base import Source
from streampca.sources.cells.description import mask_of, require_layer, require_options, table_of
from streampca.sources.columns_in_memory import FrameColumns
from streampca.sources.options import ReadOptions


def is_anndata(data: object) -> bool:
    """Return whether `data` is an AnnData object."""
    return type(data).__module__.startswith("anndata.") and all(
        hasattr(data, name) for name in ("X", "layers", "obs_names", "var", "var_names")
    )


def open_anndata(data: Any, options: ReadOptions, opened: Callable[[object], Source]) -> Source:
    """Return X or a layer of an AnnData object as a table of cells.

    Parameters
    ----------
    opened : callable
        Opens the matrix: a numpy array, scipy sparse matrix or Dask array.
    """
    label = "AnnData object"
    normalization = require_options(options, label)
    require_layer(options.layer, data.layers.keys(), label)
    if getattr(data, "isbacked", False) and not data.is_view:
        from streampca.sources.cells.hdf5_store import open_h5ad

        return open_h5ad(str(data.filename), options)
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
        mask = mask_of(
            np.asarray(data.var[options.mask_var]), rows.shape[1], f"{label}: mask_var {options.mask_var[:60]}"
        )
    names = tuple(np.array(list(map(str, axis)), dtype=str) for axis in (data.obs_names, data.var_names))
    columns = FrameColumns(data.obs, list(data.obs.columns))
    return table_of(rows, options, normalization, mask, (names[0], names[1]), columns)
