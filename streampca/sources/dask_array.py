"""Rows of a Dask array that somebody else built, computed one block at a time inside the leaf that needs them."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError, NotAvailableError
from streampca.sources.base import ReadCount, Source, require_table
from streampca.sources.sparse import is_sparse, joined

if TYPE_CHECKING:
    import dask.array as da


_last = threading.local()  # a block of which a reading needed only the first rows: the next reading goes on with it


class DaskSource(Source):
    """A two-dimensional Dask array of numpy blocks."""

    portable = True
    first_index = 0
    """Position of the first block within the array this one is a part of."""

    def __init__(self, array: da.Array):
        self.description = f"dask array {array.name}"
        if any(math.isnan(n) for n in array.shape):
            raise DataError(
                f"{self.description} has unknown chunk sizes (shape {array.shape}): call .compute_chunk_sizes() first, which reads the data once"
            )
        require_table(array.shape, array.dtype, self.description)
        self.sparse = is_sparse(array._meta)
        self.buffered = not self.sparse
        if not isinstance(array._meta, np.ndarray) and not self.sparse:
            raise DataError(
                f"{self.description} holds blocks of {type(array._meta).__name__}: expected numpy arrays or scipy sparse ones; use .map_blocks to convert them"
            )
        self.array = array
        self.shape, self.dtype = (int(array.shape[0]), int(array.shape[1])), array.dtype
        self.edges = np.concatenate([[0], np.cumsum(array.chunks[0])]).astype(int)
        sizes = array.chunks[0]
        self.regular = all(n == sizes[0] for n in sizes[:-1]) and sizes[-1] <= sizes[0]
        self.chunk_rows = int(max(sizes))
        self.chunk_bytes = int(max(sizes) * max(array.chunks[1]) * self.dtype.itemsize)

    @property
    def fingerprint(self) -> str:
        """Return Dask's name of the array, which is a hash of how it is made."""
        return str(self.array.name)

    @property
    def boundaries(self) -> list[int]:
        """Return the first row of every block, and the number of rows behind them."""
        return [int(edge) for edge in self.edges]

    def block_edges(self, n_rows: int) -> tuple[int, ...] | None:
        """Return the edges of blocks of at most `n_rows` rows that are runs of whole Dask blocks; None if regular ones are."""
        if self.regular or n_rows < self.chunk_rows:
            return None
        edges = [0]
        for edge, following in zip(self.edges[1:], [*self.edges[2:], None], strict=True):
            if following is None or following - edges[-1] > n_rows:
                edges.append(int(edge))
        return tuple(edges)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of a block while it is computed; what its own tasks need beside is not known."""
        return 2 * max(n_rows, int(np.diff(self.edges).max())) * self.row_bytes

    def by_features(self) -> DaskSource:
        """Return a source whose rows are the features of this one."""
        if self.sparse:
            raise NotAvailableError(
                f"{self.description} has blocks of sparse rows, which cannot be read by features: compute it to a scipy sparse matrix, or "
                "use solver='covariance' or 'sketch'"
            )
        return DaskSource(self.array.T)

    def part(self, start: int, stop: int) -> DaskSource:
        """Return a source that carries only the tasks of rows `start` to `stop`, to be sent to a worker."""
        first, last = self._span(start, stop)
        return _DaskPart(self.array.blocks[first:last], first, int(self.edges[first]), self.shape)

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return int(np.searchsorted(self.edges, start, "right")) - 1, int(np.searchsorted(self.edges, stop, "left"))

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        """Compute the blocks that hold the rows, in this thread, and return the rows."""
        first, last = self._span(start, stop)
        if self.sparse:
            base = int(self.edges[first])
            return self._read_sparse(first, last, start - base, stop - base)
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        count = ReadCount()
        for index in range(first, last):
            low, high = int(self.edges[index]), int(self.edges[index + 1])
            values, cost = self._computed(index)
            count += cost
            within = slice(max(start, low), min(stop, high))
            out[within.start - start : within.stop - start] = values[within.start - low : within.stop - low]
            if high > stop:
                _last.block = (self.array.name, index + self.first_index, values)
        return out, count

    def _computed(self, index: int) -> tuple[NDArray[Any], ReadCount]:
        """Return one block of rows, which this thread may still have from the reading before."""
        kept: tuple[str, int, NDArray[Any]] | None = getattr(_last, "block", None)
        if kept is not None and kept[:2] == (self.array.name, index + self.first_index):
            del _last.block
            return kept[2], ReadCount()
        # compute() optimises and culls the graph to this block; the synchronous scheduler stays in this thread.
        values = np.asarray(self.array.blocks[index].compute(scheduler="synchronous"))
        return values, ReadCount(self.array.numblocks[1], values.nbytes, values.nbytes)

    def _read_sparse(self, first: int, last: int, start: int, stop: int) -> tuple[Any, ReadCount]:
        """Compute blocks `first` to `last` of rows; return rows `start` to `stop` of them, still sparse."""
        from dask.base import compute

        grid = self.array.blocks[first:last].to_delayed().tolist()
        blocks = compute(grid, scheduler="synchronous")[0]  # type: ignore[no-untyped-call]
        rows = joined(blocks)
        n_bytes = rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes
        return rows[start:stop], ReadCount((last - first) * self.array.numblocks[1], n_bytes, n_bytes)


class _DaskPart(DaskSource):
    """Some consecutive blocks of a larger Dask array, addressed by the rows of the whole."""

    def __init__(self, array: da.Array, first: int, offset: int, shape: tuple[int, int]):
        super().__init__(array)
        self.first_index = first
        self.edges = self.edges + offset
        self.shape = shape
