"""Arrays of numpy and Dask of any number of dimensions, which are called dim_0, dim_1 and so on, and tables with a mask."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import NotAvailableError
from streampca.labels import Dimension, Labels, Variable
from streampca.sources.arrays import ArraySource, MappedSource
from streampca.sources.base import Source
from streampca.sources.masks import FROM_DATA, read_mask_file
from streampca.sources.options import ReadOptions
from streampca.sources.stored_variable import StoredVariable
from streampca.sources.table import table_of

if TYPE_CHECKING:
    from streampca.sources.zarr.reader import Axes


def open_numbered(data: Any, options: ReadOptions) -> Source:
    """Return an array of numpy or Dask as a table, by the numbers of its dimensions and with a mask.

    Raises
    ------
    DataError
        If it has more than two dimensions and none is named as that of the samples, or the mask does not fit.
    NotAvailableError
        If rows of a memory map would be copied.
    """
    from streampca.sources.zarr.dimensions import axes_of

    in_memory = isinstance(data, np.ndarray)
    label = "memory map" if isinstance(data, np.memmap) else "array" if in_memory else f"dask array {data.name}"
    dims = [Dimension(f"dim_{axis}", int(size)) for axis, size in enumerate(data.shape)]
    rows, columns = axes = axes_of([dim.name for dim in dims], data.shape, options, label)
    features = tuple(dims[axis] for axis in columns)
    shape = tuple(dim.size for dim in features)
    variable = Variable(None, tuple(dim.name for dim in features), shape)
    labels = Labels(tuple(dims[axis] for axis in rows), features, (variable,))
    source = _in_memory(data, axes, label) if in_memory else _lazy(data, axes, options)
    mask = options.mask
    if hasattr(mask, "__fspath__") or (isinstance(mask, str) and mask not in FROM_DATA):
        mask = read_mask_file(str(Path(str(mask)).expanduser()))
    return table_of([StoredVariable(source)], labels, label, mask)


def _in_memory(data: Any, axes: Axes, label: str) -> Source:
    n_rows, n_columns = (math.prod(data.shape[axis] for axis in side) for side in axes)
    values = data.transpose((*axes[0], *axes[1])).reshape(n_rows, n_columns)
    if not isinstance(data, np.memmap):
        return ArraySource(values, label)
    if not np.may_share_memory(values, data):
        raise NotAvailableError(
            f"{label} of shape {data.shape}: rows along these dimensions are not in one piece in the file: write it to zarr, of which "
            "any dimensions are rows"
        )
    return MappedSource(values, label)


def _lazy(data: Any, axes: Axes, options: ReadOptions) -> Source:
    from streampca.sources.dask import DaskSource

    return DaskSource(as_table(data, axes), options.max_reads)


def as_table(lazy: Any, axes: Axes) -> Any:
    """Return an N-dimensional Dask array as one of rows and columns, each chunk of which is made of whole chunks.

    Chunks are joined along all axes but the slowest of samples and that of features, so a pass reads each of them once.
    """
    import dask

    rows, columns = axes
    moved = lazy.transpose((*rows, *columns))
    shape = tuple(math.prod(lazy.shape[axis] for axis in side) for side in axes)
    inner = [axis for axis in range(moved.ndim) if axis not in (0, len(rows))]
    settings = {"array.rechunk.method": "tasks", "array.slicing.split-large-chunks": False}
    with dask.config.set(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return moved.rechunk(dict.fromkeys(inner, -1)).reshape(shape) if inner else moved
