"""Rows of a Dask array that somebody else built, computed one block at a time inside the leaf that needs them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError
from streampca.sources.base import ReadCount, Source, require_table

if TYPE_CHECKING:
    import dask.array as da


class DaskSource(Source):
    """A two-dimensional Dask array of numpy blocks."""

    portable = True

    def __init__(self, array: da.Array):
        self.description = f"dask array {array.name}"
        if any(math.isnan(n) for n in array.shape):
            raise DataError(
                f"{self.description} has unknown chunk sizes (shape {array.shape}): call .compute_chunk_sizes() first, which reads the data once"
            )
        require_table(array.shape, array.dtype, self.description)
        if not isinstance(array._meta, np.ndarray):
            raise DataError(
                f"{self.description} holds blocks of {type(array._meta).__name__}: expected numpy arrays; use .map_blocks to convert them"
            )
        self.array = array
        self.shape, self.dtype = (int(array.shape[0]), int(array.shape[1])), array.dtype
        self.edges = np.concatenate([[0], np.cumsum(array.chunks[0])]).astype(int)
        sizes = array.chunks[0]
        self.chunk_rows = int(sizes[0]) if all(n == sizes[0] for n in sizes[:-1]) and sizes[-1] <= sizes[0] else 1
        self.chunk_bytes = int(max(sizes) * max(array.chunks[1]) * self.dtype.itemsize)

    @property
    def fingerprint(self) -> str:
        """Return Dask's name of the array, which is a hash of how it is made."""
        return str(self.array.name)

    @property
    def boundaries(self) -> list[int]:
        """Return the first row of every block, and the number of rows behind them."""
        return [int(edge) for edge in self.edges]

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of a block while it is computed; what its own tasks need beside is not known."""
        return 2 * max(n_rows, int(np.diff(self.edges).max())) * self.row_bytes

    def part(self, start: int, stop: int) -> DaskSource:
        """Return a source that carries only the tasks of rows `start` to `stop`, to be sent to a worker."""
        first, last = self._span(start, stop)
        return _DaskPart(self.array.blocks[first:last], int(self.edges[first]), self.shape)

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return int(np.searchsorted(self.edges, start, "right")) - 1, int(np.searchsorted(self.edges, stop, "left"))

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        """Compute the blocks that hold the rows, in this thread, and return the rows."""
        first, last = self._span(start, stop)
        base = int(self.edges[first])
        # compute() optimises and culls the graph to these blocks; the synchronous scheduler stays in this thread.
        values = np.asarray(self.array.blocks[first:last].compute(scheduler="synchronous"))
        n_chunks = (last - first) * self.array.numblocks[1]
        return values[start - base : stop - base], ReadCount(n_chunks, values.nbytes, values.nbytes)


class _DaskPart(DaskSource):
    """Some consecutive blocks of a larger Dask array, addressed by the rows of the whole."""

    def __init__(self, array: da.Array, offset: int, shape: tuple[int, int]):
        super().__init__(array)
        self.edges = self.edges + offset
        self.shape = shape
