"""Rows of a user's Dask array, computed one block at a time inside the leaf that needs them."""

from __future__ import annotations

import copy
import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import DataError, NotAvailableError, RepeatedReadsError
from streampca.sources.base import ReadCount, Source, SourceArray, require_table, require_unmasked
from streampca.sources.dask_graph import BlockGraph, GraphCost
from streampca.sources.grid import Grid
from streampca.sources.sparse import is_sparse, joined
from streampca.typing import Array

if TYPE_CHECKING:
    import dask.array as da
    from dask.typing import Key

MOST_READS = 4.0
"""Default limit of the mean number of executions of a source task in one pass."""

_MOST_KEPT = 2**26
"""Largest array in bytes that is computed once and kept where its blocks, one by one, would repeat more reads than allowed."""

_last = threading.local()  # a block of which a reading needed only the first rows: the next reading goes on with it


class _Kept:
    """The values of a small array, which the first reader in each process computes."""

    def __init__(self) -> None:
        self._lock, self._values = threading.Lock(), np.empty((0, 0))

    def __reduce__(self) -> tuple[object, ...]:
        return _Kept, ()

    def values_of(self, source: DaskSource) -> Array:
        """Return the values of all rows of `source`."""
        with self._lock:
            if not len(self._values):
                self._values = source.computed()
        return self._values


class DaskSource(Source):
    """A two-dimensional Dask array of numpy blocks.

    Parameters
    ----------
    array : dask.array.Array
        The rows.
    max_reads : float, optional
        How many times a source task of its graph may be carried out in one pass, on average; 4 by default. Where it would be more and
        nothing is said, an array of up to 64 MiB is computed once, at the first reading, and kept.
    """

    def __init__(self, array: da.Array, max_reads: float | None = None):
        self.name, self.max_reads = str(array.name), MOST_READS if max_reads is None else max_reads
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
        self.array: da.Array | None = array
        self.shape, self.dtype = (int(array.shape[0]), int(array.shape[1])), array.dtype
        self.edges = np.concatenate([[0], np.cumsum(array.chunks[0])]).astype(int)
        sizes = array.chunks[0]
        n_bytes = int(max(sizes) * max(array.chunks[1]) * self.dtype.itemsize)
        self.grid = Grid.of_edges(self.edges.tolist(), n_bytes)
        self._keys: dict[int, list[Key]] = {
            i: [(array.name, i, j) for j in range(len(array.chunks[1]))] for i in range(len(sizes))
        }
        self._graph = BlockGraph.of(array)
        data = () if self._graph is None else self._graph.data()
        self.sources = tuple({id(v.source): v.source for v in data if isinstance(v, SourceArray)}.values())
        self.portable = all(source.portable for source in self.sources)
        band_bytes = [int(n) * self.row_bytes for n in sizes]
        self._cost: GraphCost | None = (
            None if self._graph is None else self._graph.cost(list(self._keys.values()), band_bytes)
        )
        self._kept = _Kept() if max_reads is None and self._computes_once() else None
        self.repeats = 1.0 if self._cost is None else max(1.0, self._cost.repeats)

    def _computes_once(self) -> bool:
        """Return whether the array is to be computed as one block, whose cost is then that of the source."""
        n_bytes = self.shape[0] * self.row_bytes
        if self._graph is None or self._cost is None or self._cost.repeats <= MOST_READS or n_bytes > _MOST_KEPT:
            return False
        whole = self._graph.cost([[key for band in self._keys.values() for key in band]], [n_bytes])
        if self.sparse or whole.peak_bytes > 4 * _MOST_KEPT:
            return False
        self._cost, self.buffered = whole, False
        return True

    def computed(self) -> Array:
        """Return the values of all rows, computed at once in this thread."""
        assert self._graph is not None  # noqa: S101 for the type checker
        values = np.empty(self.shape, dtype=self.dtype)
        blocks = iter(self._graph.compute([key for band in self._keys.values() for key in band]))
        for index, keys in self._keys.items():
            column = 0
            for _ in keys:
                block = next(blocks)
                require_unmasked(block, f"{self.description}: block {index} of rows")
                values[self.edges[index] : self.edges[index + 1], column : column + block.shape[1]] = block
                column += block.shape[1]
        return values

    @property
    def fingerprint(self) -> str:
        """Return Dask's name of the array, which is a hash of how it is made."""
        return self.name

    def check(self) -> None:
        """Raise `DataError` if anything that will be read of our own sources is known to be missing."""
        for source in self.sources:
            source.check()
        self.missing_chunks_filled = sum(source.missing_chunks_filled for source in self.sources)

    def require_unchanged(self) -> None:
        """Raise `ChangedInputError` if one of our own sources was changed since it was first read."""
        for source in self.sources:
            source.require_unchanged()

    def cancel(self) -> None:
        """Cancel pending reads of our own sources with an error."""
        for source in self.sources:
            source.cancel()

    def plan_notes(self) -> tuple[str, ...]:
        """Return advice about source tasks that are executed several times in one pass.

        Raises
        ------
        RepeatedReadsError
            If that is more often than allowed.
        """
        cost = self._cost
        if cost is None or int(cost.reads.sum()) <= cost.n_sources:
            return ()
        message = (
            f"the graph of {self.description} reads or makes {cost.n_sources:,} chunks, and computing its {len(cost.reads):,} blocks "
            f"one by one does so {int(cost.reads.sum()):,} times in each pass ({cost.repeats:.3g} times each)"
        )
        cure = (
            "compute what all blocks share beforehand (x - x.mean(0).compute() instead of x - x.mean(0)), rechunk so that a "
            "block needs no chunk of another, or write the array with .to_zarr() and read that"
        )
        if cost.repeats > self.max_reads:
            raise RepeatedReadsError(
                f"{message}, more than {self.max_reads:g}: {cure}; open_source(x, max_reads={math.ceil(cost.repeats)}) allows it"
            )
        return (f"{message}: {cure}",)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of a block while it is computed, by its graph, and of a block kept for the next reading.

        What functions of `map_blocks` and the like allocate inside is not known.
        """
        band = (int(np.diff(self.edges).max()) if self._kept is None else self.shape[0]) * self.row_bytes
        peak = 0 if self._cost is None or self.sparse else self._cost.peak_bytes
        return max(2 * max(n_rows * self.row_bytes, band), peak + band)

    def by_features(self) -> DaskSource:
        """Return a source whose rows are the features of this one."""
        if self.sparse:
            raise NotAvailableError(
                f"{self.description} has blocks of sparse rows, which cannot be read by features: compute it to a scipy sparse matrix, or "
                "use solver='covariance' or 'sketch'"
            )
        if self.array is None:
            raise NotAvailableError(f"a part of {self.description} cannot be read by features")
        return DaskSource(self.array.T, self.max_reads)

    def slice(self, start: int, stop: int) -> DaskSource:
        """Return a source for a worker with only the tasks of rows `start` to `stop`."""
        if self._graph is None:
            return self
        first, last = self._span(start, stop) if self._kept is None else (0, len(self._keys))
        subset = copy.copy(self)
        subset.sources = ()  # which are checked where the pass is driven
        subset.array, subset._keys = None, {index: self._keys[index] for index in range(first, last)}
        subset._graph = BlockGraph(self._graph.needed(key for band in subset._keys.values() for key in band))
        return subset

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return int(np.searchsorted(self.edges, start, "right")) - 1, int(np.searchsorted(self.edges, stop, "left"))

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Compute the blocks that hold the rows, in this thread, and return the rows."""
        first, last = self._span(start, stop)
        if self._kept is not None:
            rows = self._kept.values_of(self)[start:stop]
            return rows, ReadCount(last - first, rows.nbytes, rows.nbytes)
        if self.sparse:
            base = int(self.edges[first])
            return self._read_sparse(first, last, start - base, stop - base)
        count = ReadCount()
        for index in range(first, last):
            low, high = int(self.edges[index]), int(self.edges[index + 1])
            values, cost = self._computed(index)
            count += cost
            if (low, high) == (start, stop) and values.dtype == self.dtype and values.flags.c_contiguous:
                return values, count
            if out is None:
                out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
            within = slice(max(start, low), min(stop, high))
            out[within.start - start : within.stop - start] = values[within.start - low : within.stop - low]
            if high > stop:
                _last.block = (self.name, index, values)
            del values
        return np.empty((0, self.shape[1]), dtype=self.dtype) if out is None else out, count

    def _computed(self, index: int) -> tuple[Array, ReadCount]:
        """Return one block of rows, which this thread may have cached from the previous read."""
        cached: tuple[str, int, Array] | None = getattr(_last, "block", None)
        if cached is not None and cached[:2] == (self.name, index):
            del _last.block
            return cached[2], ReadCount()
        blocks = self._blocks(range(index, index + 1))[0]
        for block in blocks:
            require_unmasked(block, f"{self.description}: block {index} of rows")
        values = np.asarray(blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1))
        return values, self._count(index, values.nbytes)

    def _count(self, index: int, n_bytes: int) -> ReadCount:
        """Return the `ReadCount` of a block of rows: its size, or its share of all reads if chunks are read repeatedly."""
        if self._cost is None or self.repeats == 1.0:
            return ReadCount(len(self._keys[index]), n_bytes, n_bytes)
        reads = int(self._cost.reads[index])
        n_bytes = round(reads / self._cost.n_sources * self.shape[0] * self.row_bytes)
        return ReadCount(reads, n_bytes, n_bytes)

    def _blocks(self, bands: range) -> list[list[Any]]:
        """Return the blocks of some bands of rows, computed in this thread."""
        if self._graph is not None:
            return [self._graph.compute(self._keys[band]) for band in bands]
        from dask.base import compute

        # Parts of the graph are held by a cluster, which the synchronous scheduler waits for.
        grid = self.array.blocks[bands.start : bands.stop].to_delayed().tolist()  # type: ignore[union-attr]
        return list(compute(grid, scheduler="synchronous")[0])  # type: ignore[no-untyped-call]

    def _read_sparse(self, first: int, last: int, start: int, stop: int) -> tuple[Any, ReadCount]:
        """Compute blocks `first` to `last` of rows; return rows `start` to `stop` of them, still sparse."""
        rows = joined(self._blocks(range(first, last)))
        n_bytes = rows.data.nbytes + rows.indices.nbytes + rows.indptr.nbytes
        n_blocks = sum(len(self._keys[band]) for band in range(first, last))
        factor = self.repeats
        return rows[start:stop], ReadCount(round(n_blocks * factor), round(n_bytes * factor), round(n_bytes * factor))
