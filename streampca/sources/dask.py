"""Rows of a user's Dask array: Dask computes bands of rows inside the leaf that needs them, or all rows at once if bands repeat reads."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import DataError, NotAvailableError, RepeatedReadsError
from streampca.sources.arrays import is_sparse, joined
from streampca.sources.base import ReadCount, Source, SourceArray, require_declared, require_table
from streampca.sources.grid import Grid
from streampca.system.optional import package_of
from streampca.typing import Array, DType, IntArray

if TYPE_CHECKING:
    import dask.array as da
    from dask.typing import Key

MOST_READS = 4.0
"""Default limit of the mean number of executions of a source task in one pass."""
_SHARE_KEPT = 1 / 4
"""Share of the memory ceiling that computing all rows at once may take."""
_MOST_VISITED = 500_000
"""Largest number of tasks that are looked at to count how often they are carried out, about a second."""
_ALLOCATOR = 1.5
"""Bytes that the C library holds in the arenas of threads per byte in use, when arrays of the size of chunks are allocated and freed (measured)."""

_last = threading.local()  # a block of which a reading needed only the first rows: the next reading goes on with it


def require_graph(array: da.Array) -> None:
    """Raise `NotAvailableError` for an array expression, which Dask makes where its setting ``array.query-planning`` is on."""
    if not hasattr(array.dask, "layers"):
        raise NotAvailableError(
            f"dask array {array.name} is an array expression (Dask's setting array.query-planning is on): expected an array with a graph, "
            "from which memory is planned; set dask.config.set({'array.query-planning': False}) before dask.array is imported"
        )


@dataclass(frozen=True)
class _Cost:
    """What computing the bands of rows of an array one after the other takes."""

    reads: IntArray
    """Source tasks of each band, ``(n_bands,)``: tasks for a block that need no other block."""
    n_sources: int
    """Source tasks in all, each counted once."""
    peak_bytes: int
    """Bound of the memory of a band while it is computed."""
    whole_bytes: int
    """Bound of the memory of all rows while they are computed at once."""
    estimated: bool
    """Whether the tasks of some bands only were counted."""

    @property
    def repeats(self) -> float:
        """Return how many times a source task is carried out in one pass, on average."""
        return float(self.reads.sum()) / self.n_sources if self.n_sources else 1.0


class _Graph:
    """Tasks of a Dask array after optimisation, and the keys that each of them needs.

    Parameters
    ----------
    tasks, needs : dict
        Tasks, and the keys of those that each needs, by key.
    sizes : dict
        Bytes of the largest block of the arrays that are known, by their names.
    """

    def __init__(self, tasks: Mapping[Key, Any], needs: Mapping[Key, Sequence[Key]], sizes: Mapping[str, int]):
        self.tasks, self._needs, self._sizes = tasks, needs, sizes
        self._largest = max(sizes.values(), default=0)

    @classmethod
    def of(cls, array: da.Array) -> _Graph | None:
        """Return the graph; None if parts of it are held by a cluster (`persist`)."""
        import dask
        from dask.core import flatten
        from dask.optimization import cull

        layers = array.dask.layers
        if any(
            layer.is_materialized() and package_of(next(iter(layer.values()), None)) == "distributed"
            for layer in layers.values()
        ):
            return None
        (optimized,) = dask.optimize(array)  # type: ignore[attr-defined,no-untyped-call]
        keys = list(flatten(array.__dask_keys__()))  # type: ignore[no-untyped-call]
        tasks, needs = cull(dict(optimized.__dask_graph__()), keys)  # type: ignore[no-untyped-call]
        sizes = {}
        for name, layer in layers.items():
            known = layer.collection_annotations or {}
            chunk = known.get("chunksize")
            if chunk is not None and not any(math.isnan(n) for n in chunk):
                sizes[name] = math.prod(map(int, chunk)) * np.dtype(known["dtype"]).itemsize
        return cls(tasks, needs, sizes)

    def needed(self, keys: Iterable[Key]) -> dict[Key, Sequence[Key]]:
        """Return the keys of the tasks that `keys` need, themselves included, and what each of them needs."""
        found: dict[Key, Sequence[Key]] = {}
        waiting = list(keys)
        while waiting:
            key = waiting.pop()
            if key not in found:
                found[key] = self._needs[key]
                waiting.extend(found[key])
        return found

    def part(self, keys: Iterable[Key]) -> _Graph:
        """Return the graph of only the tasks that `keys` need."""
        needs = self.needed(keys)
        return _Graph({key: self.tasks[key] for key in needs}, needs, self._sizes)

    def compute(self, keys: list[Key]) -> list[Any]:
        """Return the values of `keys`, which Dask computes in this thread."""
        from dask.local import get_sync

        return list(get_sync({key: self.tasks[key] for key in self.needed(keys)}, keys))

    def cost(self, bands: Sequence[list[Key]]) -> _Cost:
        """Return the cost of bands of rows; of many tasks only those of some bands are counted, and others taken to need as many."""
        reads, counted, peak, visited = np.zeros(len(bands), dtype=np.int64), [], 0, 0
        for index in np.random.default_rng(0).permutation(len(bands)):
            needs = self.needed(bands[index])
            reads[index], peak = _n_sources(needs), max(peak, self._bound(needs, bands[index]))
            counted.append(index)
            visited += len(needs)
            if visited > _MOST_VISITED:
                break
        reads[np.setdiff1d(np.arange(len(bands)), counted)] = round(reads[counted].mean())
        every = [key for keys in bands for key in keys]
        return _Cost(reads, _n_sources(self._needs), peak, self._bound(self._needs, every), visited > _MOST_VISITED)

    def _bound(self, needs: Mapping[Key, Sequence[Key]], keys: Sequence[Key]) -> int:
        """Return a bound in bytes of what is held while `keys` are computed, depth first.

        A block that one task needs is held until that one is computed, so there are at most as many blocks of an array as one task
        takes of it. Blocks that several tasks need may be held to the end, as those of the result are. A task makes as much again as its result.
        """
        users: dict[Key, int] = {}
        at_once: dict[str, int] = {}
        for each in needs.values():
            of_one: dict[str, int] = {}
            for key in each:
                users[key] = users.get(key, 0) + 1
                of_one[_name(key)] = of_one.get(_name(key), 0) + 1
            for name, count in of_one.items():
                at_once[name] = max(count, at_once.get(name, 0))
        result = set(keys)
        several = sum(self._size(key) for key, count in users.items() if count > 1 and key not in result)
        single = sum(self._sizes.get(name, self._largest) * count for name, count in at_once.items())
        work = 2 * max((self._size(key) for key in needs), default=0)
        return round(_ALLOCATOR * (several + single + work + sum(self._size(key) for key in keys)))

    def _size(self, key: Key) -> int:
        return self._sizes.get(_name(key), self._largest) if _is_of_block(key) else 0


def _n_sources(needs: Mapping[Key, Sequence[Key]]) -> int:
    """Return the number of tasks for a block that need no other block: they read or make it."""
    return sum(_is_of_block(key) and not any(map(_is_of_block, each)) for key, each in needs.items())


def _name(key: Key) -> str:
    return str(key[0] if isinstance(key, tuple) else key)


def _is_of_block(key: Key) -> bool:
    """Return whether a key is that of a block of an array: its name, and a number along each dimension."""
    return isinstance(key, tuple)


class _Kept:
    """The values of an array that is computed once, by the first reader in each process."""

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


@dataclass(frozen=True)
class _AsDeclared:
    """Blocks of a Dask array as it declares them, see `require_declared`."""

    name: str
    """Name of the array."""
    chunks: tuple[tuple[float, ...], ...]
    """Sizes of its chunks; NaN where they are not known."""
    dtype: DType
    """Its type."""

    def __call__(self, block: Any, block_id: tuple[int, ...]) -> Any:
        shape = tuple(sizes[index] for sizes, index in zip(self.chunks, block_id, strict=True))
        require_declared(block, shape, self.dtype, f"dask array {self.name}: block {block_id}")
        return block.astype(self.dtype, copy=False)


def as_declared(lazy: Any) -> Any:
    """Return a Dask array whose blocks are checked before Dask joins or casts them: it would cast them to the type of the first."""
    return lazy.map_blocks(_AsDeclared(lazy.name, lazy.chunks, lazy.dtype), dtype=lazy.dtype, meta=lazy._meta)


class DaskSource(Source):
    """A two-dimensional Dask array of numpy blocks, or of sparse ones.

    Parameters
    ----------
    array : dask.array.Array
        The rows.
    max_reads : float, optional
        How many times a source task of its graph may be carried out in one pass, on average; 4 by default. Where tasks are repeated and
        nothing is said, an array that takes up to a quarter of the memory ceiling is computed at once, at the first reading, and kept.
    """

    sources: tuple[Source, ...] = ()
    """Our own sources that its tasks read."""

    def __init__(self, array: da.Array, max_reads: float | None = None):
        self.name, self.max_reads = str(array.name), max_reads
        require_graph(array)
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
        sizes, self._widths = array.chunks
        n_bytes = int(max(sizes) * max(self._widths) * self.dtype.itemsize)
        self.grid = Grid.of_edges(self.edges.tolist(), n_bytes)
        self._keys: dict[int, list[Key]] = {
            i: [(array.name, i, j) for j in range(len(self._widths))] for i in range(len(sizes))
        }
        values = (
            value
            for name, layer in array.dask.layers.items()
            if name.startswith("original-")
            for value in layer.values()
        )
        self.sources = tuple({id(v.source): v.source for v in values if isinstance(v, SourceArray)}.values())
        self._graph = _Graph.of(array)
        self.portable = self._graph is not None and all(source.portable for source in self.sources)
        self._cost = None if self._graph is None else self._graph.cost(list(self._keys.values()))
        self._kept: _Kept | None = None
        self._turned: DaskSource | None = None
        self.repeats = 1.0 if self._cost is None else max(1.0, self._cost.repeats)

    def settle(self, allowed_bytes: int) -> None:
        """Compute all rows at once where bands would repeat reads, and this takes little of the memory that is allowed."""
        if self._turned is not None:
            self._turned.settle(allowed_bytes)
        cost = self._cost
        if self.sparse or self.max_reads is not None or cost is None or cost.repeats <= 1:
            return
        fits = cost.whole_bytes + self.shape[0] * self.row_bytes <= _SHARE_KEPT * allowed_bytes
        if fits != (self._kept is not None):
            self._keep(fits)

    def _keep(self, kept: bool) -> None:
        self._kept, self.buffered = _Kept() if kept else None, not kept
        self.repeats = 1.0 if kept or self._cost is None else max(1.0, self._cost.repeats)

    def computed(self) -> Array:
        """Return the values of all rows, computed at once in this thread."""
        values = np.empty(self.shape, dtype=self.dtype)
        for index, blocks in enumerate(self._blocks(range(len(self._keys)))):
            column = 0
            for block in blocks:
                values[self.edges[index] : self.edges[index + 1], column : column + block.shape[1]] = block
                column += block.shape[1]
        return values

    @property
    def fingerprint(self) -> str:
        """Return Dask's name of the array, which is a hash of how it is made."""
        return self.name

    def plan_notes(self) -> tuple[str, ...]:
        """Return advice about source tasks that are carried out several times in one pass.

        Raises
        ------
        RepeatedReadsError
            If that is more often than allowed.
        """
        cost = self._cost
        cure = (
            "compute what all blocks share beforehand (x - x.mean(0).compute() instead of x - x.mean(0)), rechunk so that a "
            "block needs no chunk of another, or write the array with .to_zarr() and read that"
        )
        if cost is None or self._kept is not None or int(cost.reads.sum()) <= cost.n_sources:
            return ()
        message = (
            f"the graph of {self.description} reads or makes {cost.n_sources:,} chunks, and computing its {len(cost.reads):,} blocks "
            f"one by one does so {'about ' * cost.estimated}{int(cost.reads.sum()):,} times in each pass ({cost.repeats:.3g} times each)"
        )
        allowed = MOST_READS if self.max_reads is None else self.max_reads
        if cost.repeats > allowed:
            raise RepeatedReadsError(
                f"{message}, more than {allowed:g}: {cure}, or allow more memory, of which computing all at once takes a quarter at most; "
                f"open_source(x, max_reads={math.ceil(cost.repeats)}) allows it"
            )
        return (f"{message}: {cure}",)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return a bound of the memory of a band while it is computed, by the sizes of blocks, and of one kept for the next reading.

        What functions of `map_blocks` and the like allocate inside is not known.
        """
        if self._kept is not None and self._cost is not None:
            return self._cost.whole_bytes + self.shape[0] * self.row_bytes
        band = int(np.diff(self.edges).max()) * self.row_bytes
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
        if self._turned is None:
            self._turned = DaskSource(self.array.T, self.max_reads)
            if self._kept is not None:
                self._turned._keep(True)
        return self._turned

    def slice(self, start: int, stop: int) -> DaskSource:
        """Return a source for a worker with only the tasks of rows `start` to `stop`."""
        if self._graph is None:
            return self
        first, last = self._span(start, stop) if self._kept is None else (0, len(self._keys))
        subset = copy.copy(self)
        subset.sources = ()  # which are checked where the pass is driven
        subset.array, subset._turned, subset._keys = (
            None,
            None,
            {index: self._keys[index] for index in range(first, last)},
        )
        subset._graph = self._graph.part(key for band in subset._keys.values() for key in band)
        return subset

    def _span(self, start: int, stop: int) -> tuple[int, int]:
        return int(np.searchsorted(self.edges, start, "right")) - 1, int(np.searchsorted(self.edges, stop, "left"))

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Compute the blocks that hold the rows, in this thread, and return the rows."""
        first, last = self._span(start, stop)
        if self._kept is not None:
            rows = self._kept.values_of(self)[start:stop]
            return rows, ReadCount(last - first, rows.nbytes, rows.nbytes)
        if self.sparse:
            stored = joined(self._blocks(range(first, last))).astype(self.dtype, copy=False)
            n_bytes = round((stored.data.nbytes + stored.indices.nbytes + stored.indptr.nbytes) * self.repeats)
            n_blocks = sum(len(self._keys[band]) for band in range(first, last))
            base = int(self.edges[first])
            return stored[start - base : stop - base], ReadCount(round(n_blocks * self.repeats), n_bytes, n_bytes)
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
        values = np.asarray(blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1))
        n_reads, n_bytes = len(self._keys[index]), values.nbytes
        if self._cost is not None and self.repeats != 1.0:  # its share of all reads, as chunks are read repeatedly
            n_reads = int(self._cost.reads[index])
            n_bytes = round(n_reads / self._cost.n_sources * self.shape[0] * self.row_bytes)
        return values, ReadCount(n_reads, n_bytes, n_bytes)

    def _blocks(self, bands: range) -> list[list[Any]]:
        """Return the blocks of some bands of rows, computed at once; `DataError` for one that is not of the declared type and shape."""
        keys = [key for band in bands for key in self._keys[band]]
        if self._graph is None:  # parts are held by a cluster, which computes the rest
            from dask.base import compute

            grid = self.array.blocks[bands.start : bands.stop].to_delayed().ravel().tolist()  # type: ignore[union-attr]
            computed = list(compute(*grid))  # type: ignore[no-untyped-call]
        else:
            computed = self._graph.compute(keys)
        for position, block in enumerate(computed):
            band, column = divmod(position, len(self._widths))
            band += bands.start
            shape = (int(self.edges[band + 1] - self.edges[band]), self._widths[column])
            require_declared(block, shape, self.dtype, f"{self.description}: block ({band}, {column})")
        blocks = iter(computed)
        return [[next(blocks) for _ in self._widths] for _ in bands]
