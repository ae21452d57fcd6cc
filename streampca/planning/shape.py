"""Division of a pass: rows per block, blocks per leaf, concurrent leaves and threads, order of merging."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Self

import numpy as np

from streampca.errors import ParameterError
from streampca.random import generator
from streampca.sources.base import Source
from streampca.typing import DType, IntArray

_FIRST_LEAVES, _FIRST_LEAF_ROWS = 16, 8192
_LEAF_ROWS, _LEAF_BYTES = 32768, 64 * 2**20
_MOST_LEAVES, _LEAST_MOST = 65536, 64
_MOST_STATES = 2**38  # bytes of states that one reading brings to the driver: minutes of its network
_MOST_MERGED = 2**42  # bytes of states that workers merge among each other: minutes of the networks of a hundred
_LARGE_STATE_BYTES = 64 * 2**20
_BRANCHES, _BRANCHED_FROM = 64, 256
BLOCK_BYTES = 32 * 2**20 - 2**16
"""Preferred size of a block: the C library returns memory of 32 MiB and more to the system after every use."""
_BLOCK_ROWS = 2**18
_PANEL_ROWS, _EVEN_ROWS = 1024, 8192


@dataclass(frozen=True)
class Leaf:
    """A run of consecutive blocks that one task reads and folds."""

    index: int
    """Position in the order of merging."""
    edges: tuple[int, ...]
    """First row of each block, and the row behind the last; only the outermost two where blocks are not neighbours."""
    shuffled: tuple[tuple[int, int], ...] | None = None
    """First row and row behind the last of each block in the order of reading, where they are not neighbours."""
    read_ahead_bytes: int = 0
    """Memory for stored bytes that a worker of a cluster requests ahead of their use."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return first row and row behind the last of each block, in the order of reading."""
        return tuple(zip(self.edges[:-1], self.edges[1:], strict=True)) if self.shuffled is None else self.shuffled

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return sum(stop - start for start, stop in self.spans)


@dataclass(frozen=True)
class WorkShape:
    """Blocks and leaves of a reading, and how many of them are processed at once.

    Blocks, leaves and their order of merging do not depend on threads or workers.
    """

    extent: int
    """Samples, or features where whole columns are read, that the blocks divide."""
    rows_per_block: int
    """Rows of one block; columns where `axis` is ``"features"``."""
    n_blocks: int
    """Number of blocks."""
    n_leaves: int
    """Number of leaves; each is a run of blocks."""
    leaves_in_flight: int
    """Leaves that run at once."""
    window: int
    """Leaves that run or wait to be merged, at most."""
    threads: int
    """Threads in all."""
    threads_per_leaf: int
    """Threads that share the tiles of one leaf."""
    tile: int = 0
    """Largest side of a tile of the accumulated matrix; 0 where no matrix is accumulated."""
    edges: tuple[int, ...] | None = None
    """First row of every block and the end of the last, where blocks differ in size."""
    axis: str = "samples"
    """What the blocks divide: ``"samples"`` or ``"features"``."""
    merge: str = "leaves are folded from left to right in the order of their rows"
    """The order of merging, in words."""
    leaves_per_branch: int = 1
    """Neighbouring leaves that are merged first, on a cluster by its workers; 1 = none."""
    shuffle_seed: int | None = None
    """Seed of the order in which blocks are read; None = in the order of the rows."""
    leaves_per_worker: int = 0
    """Most leaves that one worker of a cluster runs at once; 0 = as many as it has threads."""
    n_workers: int = 0
    """Workers of the cluster that read the blocks; 0 = threads of this process read them."""
    read_ahead_bytes: int = 0
    """Memory of a process for stored bytes that are requested ahead of their use; 0 = none."""

    @property
    def runs_on(self) -> str:
        """Return what reads the blocks, in words."""
        if not self.n_workers:
            return "threads of this process"
        return f"{self.n_workers} worker{'s' * (self.n_workers > 1)} of a cluster"

    @property
    def n_branches(self) -> int:
        """Return the number of states in the last merge: branches, or leaves where there are no branches."""
        return -(-self.n_leaves // self.leaves_per_branch)

    @property
    def n_states(self) -> int:
        """Return how many states are in the memory of one process at the same time, at most."""
        return states_at_once(self.window, self.n_leaves, self.leaves_per_branch)

    @property
    def blocks(self) -> tuple[object, ...]:
        """Return what determines blocks, leaves and the order of merging, and with them the bits of a state."""
        blocks = (self.axis, self.extent, self.rows_per_block, self.n_blocks, self.edges, self.shuffle_seed)
        return (*blocks, self.n_leaves, self.leaves_per_branch)

    @property
    def in_row_order(self) -> bool:
        """Tell whether the blocks are rows, read in their order."""
        return self.axis == "samples" and self.shuffle_seed is None

    @property
    def merging(self) -> str:
        """Return the order of merging in words, with branches."""
        if self.leaves_per_branch == 1:
            return self.merge
        return f"{self.merge}, {self.leaves_per_branch} at a time into {self.n_branches} branches, and these likewise"

    def with_edges(self, edges: tuple[int, ...] | None) -> Self:
        """Return the shape with blocks between `edges`; the same shape if `edges` is None."""
        if edges is None:
            return self
        n_blocks = len(edges) - 1
        return replace(self, edges=edges, n_blocks=n_blocks, n_leaves=min(self.n_leaves, n_blocks))

    def unshuffled(self) -> Self:
        """Return the shape with blocks that are read in the order of the rows."""
        return replace(self, shuffle_seed=None)

    def leaves(self) -> list[Leaf]:
        """Return all leaves in the order of merging."""
        return [self.leaf(i) for i in range(self.n_leaves)]

    def leaf(self, index: int) -> Leaf:
        """Return the leaf at position `index` in the order of merging."""
        first, last = (self.n_blocks * i // self.n_leaves for i in (index, index + 1))
        if self.shuffle_seed is not None:
            spans = tuple(
                self._span(int(block)) for block in _block_order(self.shuffle_seed, self.n_blocks)[first:last]
            )
            outermost = (min(span[0] for span in spans), max(span[1] for span in spans))
            return Leaf(index, outermost, spans, self._bytes_ahead)
        if self.edges is not None:
            return Leaf(index, self.edges[first : last + 1], None, self._bytes_ahead)
        edges = [min(block * self.rows_per_block, self.extent) for block in range(first, last + 1)]
        return Leaf(index, tuple(edges), None, self._bytes_ahead)

    @property
    def _bytes_ahead(self) -> int:
        """Return the memory of each leaf of a worker for stored bytes that are requested ahead."""
        return self.read_ahead_bytes // max(1, self.leaves_per_worker or self.leaves_in_flight)

    def _span(self, block: int) -> tuple[int, int]:
        """Return the first row of a block and the end of it."""
        if self.edges is not None:
            return self.edges[block], self.edges[block + 1]
        return block * self.rows_per_block, min((block + 1) * self.rows_per_block, self.extent)


def divide(
    extent: int,
    rows: int,
    n_leaves: int,
    at_once: tuple[int, int, int],
    *,
    state_bytes: int = 0,
    small_state_bytes: int = -1,
    tile: int = 0,
    axis: str = "samples",
    merge: str = WorkShape.merge,
) -> WorkShape:
    """Return the shape with blocks of `rows` of `extent` rows.

    Parameters
    ----------
    extent, rows, n_leaves : int
        Rows (or columns), rows of a block, and leaves.
    at_once : tuple of int
        Leaves that run at once, threads that share one of them, and threads in all.
    state_bytes : int
        Size of a state, which decides about branches; 0 for none.
    small_state_bytes : int
        Size of a state up to which as many finished leaves wait to be merged as run at once.
    tile, axis, merge
        As in `WorkShape`.
    """
    leaves, threads_per_leaf, threads = at_once
    return WorkShape(
        extent=extent,
        rows_per_block=rows,
        n_blocks=-(-extent // rows),
        n_leaves=n_leaves,
        leaves_in_flight=leaves,
        window=leaves * (2 if leaves > 1 and state_bytes <= small_state_bytes else 1),
        threads=threads,
        threads_per_leaf=threads_per_leaf,
        leaves_per_branch=leaves_per_branch(n_leaves, state_bytes),
        tile=tile,
        axis=axis,
        merge=merge,
    )


def count_leaves(n: int, n_blocks: int, row_bytes: int, state_bytes: int = 0) -> int:
    """Return a number of leaves that depends on the data alone.

    About sixteen as soon as each has 8,192 rows, and more, in sixteens, once each has 32,768 rows and 64 MiB: adding a
    leaf's matrix to the total then takes less than one part in a hundred of making it. Never more than `most_leaves`.
    """
    many = min(n // _LEAF_ROWS, n * row_bytes // _LEAF_BYTES)
    if many >= 2 * _FIRST_LEAVES:
        return int(min(many // _FIRST_LEAVES * _FIRST_LEAVES, n_blocks, most_leaves(state_bytes)))
    most = max(1, min(n // _FIRST_LEAF_ROWS, n_blocks))
    if most < _FIRST_LEAVES:
        return most
    return min(
        range(_FIRST_LEAVES // 2, min(most, _FIRST_LEAVES * 3 // 2) + 1),
        key=lambda n_leaves: (_unevenness(n_blocks, n_leaves), abs(n_leaves - _FIRST_LEAVES)),
    )


def _unevenness(n_blocks: int, n_leaves: int) -> float:
    """Return how much longer 2, 4, 8 and 16 threads take with that many leaves than if they shared the blocks evenly."""
    total = 0.0
    for threads in (2, 4, 8, 16):
        busy = [0] * threads
        for i in range(n_leaves):
            busy[busy.index(min(busy))] += n_blocks * (i + 1) // n_leaves - n_blocks * i // n_leaves
        total += max(busy) * threads / n_blocks
    return round(total, 6)


def most_leaves(state_bytes: int) -> int:
    """Return how many leaves there are at most: 65,536, and no more, above 64, than have 256 GiB of states, of branches 4 TiB.

    Driver, scheduler and network get through that in minutes; what would be more is folded into one state where it is read.
    """
    merged = _MOST_MERGED // max(1, state_bytes)
    if state_bytes >= _LARGE_STATE_BYTES and merged >= _BRANCHED_FROM:
        return min(_MOST_LEAVES, merged)
    return min(_MOST_LEAVES, max(_LEAST_MOST, _MOST_STATES // max(1, state_bytes)))


def leaves_per_branch(n_leaves: int, state_bytes: int) -> int:
    """Return how many neighbouring leaves are merged into a branch, and branches into the whole; 1 where leaves are so themselves.

    Branches are merged where the leaves are, on the workers of a cluster, so that large states come to the driver 64 times and
    not ten thousand times.
    """
    if state_bytes < _LARGE_STATE_BYTES or n_leaves < _BRANCHED_FROM:
        return 1
    return -(-n_leaves // _BRANCHES)


def states_at_once(window: int, n_leaves: int, per_branch: int) -> int:
    """Return how many states a process holds: the whole, those of leaves under way or waiting, a branch, and one that comes to it."""
    return 1 + min(window, n_leaves) + (2 if per_branch > 1 else 0)


@lru_cache(maxsize=4)
def _block_order(seed: int, n_blocks: int) -> IntArray:
    """Return the shuffled order in which blocks are read."""
    return np.asarray(generator(seed, "order of blocks").permutation(n_blocks))


def block_rows_to_try(source: Source, dtype: DType, block_bytes: int = BLOCK_BYTES, least_rows: int = 1) -> list[int]:
    """Return rows per block, best first: whole chunks of about `block_bytes`, fewer chunks, then fractions of a chunk.

    The best is of at least `least_rows` rows, where there are as many. ``STREAMPCA_BLOCK_ROWS`` sets the rows of every block.
    """
    n, d = source.shape[0], source.n_features_read
    chosen = os.environ.get("STREAMPCA_BLOCK_ROWS")
    if chosen is not None:
        if not chosen.isdecimal() or int(chosen) == 0:
            raise ParameterError(
                f"STREAMPCA_BLOCK_ROWS={chosen!r}: expected the number of rows of a block, at least 1; unset it for the default"
            )
        return [min(n, int(chosen))]
    band = min(source.chunk_rows, n)
    best = max(1, min(block_bytes // (d * max(source.dtype.itemsize, dtype.itemsize)), _BLOCK_ROWS))
    if source.grid.chunk_bytes == 0 and best > _PANEL_ROWS:  # without chunks, whole panels
        best = _even_rows(n, best // _PANEL_ROWS * _PANEL_ROWS)
    best = max(best, least_rows)
    rows = [min(n, max(1, best // band) * band)]
    while rows[-1] > band:
        rows.append(max(band, rows[-1] // 2 // band * band))
    while rows[-1] > 256:
        rows.append(-(-rows[-1] // 2))
    return rows


def _even_rows(n: int, most: int) -> int:
    """Return the rows of blocks of at most `most` rows, as even as whole panels allow, and a multiple of four or two where they are long.

    Otherwise the last block may be a small rest, and one thread reads nearly all of a table that is a little longer than a block.
    """
    for multiple in (4, 2):
        n_blocks = -(-n // (most * multiple)) * multiple
        rows = -(-n // (n_blocks * _PANEL_ROWS)) * _PANEL_ROWS
        if n > most and rows >= _EVEN_ROWS:
            return rows
    return most


def bytes_to_read(source: Source, rows: int) -> int:
    """Return the decoded bytes of one pass in blocks of `rows` rows.

    All that is stored once, and each chunk, or inner chunk of a shard, once more for every edge between two blocks that lies
    inside it. Blocks are equal unless the source has edges for them.
    """
    n = source.shape[0]
    band, unequal = min(source.grid.decoded_rows, n), source.grid.block_edges(rows, n)
    if unequal is not None:
        return sum(source.reads_of(start, stop) for start, stop in pairwise(unequal))
    once = source.reads_of(0, n)
    if rows % band == 0 or source.reads_of(0, 1) * n == once:
        return once
    # The last band of chunks may be shorter.
    last = (n - 1) // band * band
    edges, edges_in_last = (n - 1) // rows, (n - 1) // rows - last // rows
    between = (n - 1) // math.lcm(rows, band)
    return once + ((edges - edges_in_last - between) * band + edges_in_last * (n - last)) * once // n


def times_decoded(source: Source, n_bytes: int) -> float:
    """Return how many times a pass that reads `n_bytes` decodes what is stored, on average."""
    return n_bytes / source.reads_of(0, source.shape[0])


def repeated_reads_note(source: Source, reading: int, each: str = "") -> tuple[str, ...]:
    """Return a note on chunks that are decoded several times in a pass of `reading` bytes, if they are; `each` ends the first clause."""
    times = times_decoded(source, reading)
    if times <= 1.01:
        return ()
    return (
        f"a band of whole chunks ({source.chunk_rows:,} rows) does not fit: chunks are decoded {times:.1f} times{each}; "
        "chunks of fewer rows or more memory would avoid this",
    )
