"""Arrays of numpy and Dask of any number of dimensions, which are called dim_0, dim_1 and so on, and tables with a mask."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from streampca.errors import NotAvailableError
from streampca.sources.arrays import ArraySource, MappedSource
from streampca.sources.base import Source
from streampca.sources.dimensions import Axes
from streampca.sources.named_arrays import NamedArray, NamedArrays
from streampca.sources.options import ReadOptions
from streampca.sources.stored_variable import StoredVariable
from streampca.typing import Array


class NumberedArray(NamedArrays):
    """An array of numpy or Dask, by the numbers of its dimensions; rows of a memory map are not copied, or `NotAvailableError` is raised."""

    kind = place = "array"

    def __init__(self, data: Any, label: str | None = None):
        in_memory = isinstance(data, np.ndarray)
        self.label = label or (
            "memory map" if isinstance(data, np.memmap) else "array" if in_memory else f"dask array {data.name}"
        )
        self.array = NamedArray(
            None, tuple(f"dim_{axis}" for axis in range(data.ndim)), data.shape, data.dtype, {}, data
        )

    def find(self, name: str) -> NamedArray | None:
        """Return None: there is no other array."""
        return None

    def listed(self) -> Mapping[str, NamedArray]:
        """Return no names."""
        return {}

    def default(self, options: ReadOptions) -> list[NamedArray]:
        """Return the array."""
        return [self.array]

    def opened(self, array: NamedArray, axes: Axes, options: ReadOptions) -> StoredVariable:
        """Return the array as a table."""
        return StoredVariable(rows_of(array.stored, axes, self.label, options.max_reads))

    def read(self, array: NamedArray, label: str) -> Array:
        """Return the values of the array."""
        return np.asarray(array.stored)


def rows_of(data: Any, axes: Axes, label: str, max_reads: float | None) -> Source:
    """Return an array of numpy or Dask, which messages call `label`, as a table of rows and columns."""
    if not isinstance(data, np.ndarray):
        from streampca.sources.dask import DaskSource

        lazy = DaskSource(as_table(data, axes), max_reads)
        lazy.description = label
        return lazy
    n_rows, n_columns = (math.prod(data.shape[axis] for axis in side) for side in axes)
    values: Any = data.transpose((*axes[0], *axes[1])).reshape(n_rows, n_columns)
    if not isinstance(data, np.memmap):
        return ArraySource(values, label)
    if not np.may_share_memory(values, data):
        raise NotAvailableError(
            f"{label} of shape {data.shape}: rows along these dimensions are not in one piece in the file: write it to zarr, of which "
            "any dimensions are rows"
        )
    return MappedSource(values, label)


def as_table(lazy: Any, axes: Axes) -> Any:
    """Return an N-dimensional Dask array as one of rows and columns, each chunk of which is made of whole chunks.

    Chunks are joined along all axes but the slowest of samples and that of features, so a pass reads each of them once.
    """
    import dask

    from streampca.sources.dask import as_declared, require_graph

    require_graph(lazy)
    rows, columns = axes
    moved = lazy.transpose((*rows, *columns))
    shape = tuple(math.prod(lazy.shape[axis] for axis in side) for side in axes)
    inner = [axis for axis in range(moved.ndim) if axis not in (0, len(rows))]
    settings = {"array.rechunk.method": "tasks", "array.slicing.split-large-chunks": False}
    with dask.config.set(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return as_declared(moved).rechunk(dict.fromkeys(inner, -1)).reshape(shape) if inner else moved
