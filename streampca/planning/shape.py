"""How a reading is divided: rows of a block, blocks of a leaf, leaves and threads that run at once, order of merging."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np

from streampca.planning.leaves import Leaf, leaves_per_branch, states_at_once
from streampca.random import generator
from streampca.typing import IntArray


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

    @classmethod
    def divide(
        cls,
        extent: int,
        rows: int,
        n_leaves: int,
        at_once: tuple[int, int, int],
        *,
        state_bytes: int = 0,
        small_state_bytes: int = -1,
        **more: Any,
    ) -> Self:
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
        **more : Any
            Further fields.
        """
        leaves, threads_per_leaf, threads = at_once
        return cls(
            extent=extent,
            rows_per_block=rows,
            n_blocks=-(-extent // rows),
            n_leaves=n_leaves,
            leaves_in_flight=leaves,
            window=leaves * (2 if leaves > 1 and state_bytes <= small_state_bytes else 1),
            threads=threads,
            threads_per_leaf=threads_per_leaf,
            leaves_per_branch=leaves_per_branch(n_leaves, state_bytes),
            **more,
        )

    @property
    def n_branches(self) -> int:
        """Return the number of states in the last merge: branches, or leaves where there are no branches."""
        return -(-self.n_leaves // self.leaves_per_branch)

    @property
    def n_states(self) -> int:
        """Return how many states are in the memory of one process at the same time, at most."""
        return states_at_once(self.window, self.n_leaves, self.leaves_per_branch)

    @property
    def merging(self) -> str:
        """Return the order of merging in words, with branches."""
        if self.leaves_per_branch == 1:
            return self.merge
        return f"{self.merge}, {self.leaves_per_branch} at a time into {self.n_branches} branches, and these likewise"

    def with_edges(self, edges: tuple[int, ...] | None) -> WorkShape:
        """Return the shape with blocks between `edges`; the same shape if `edges` is None."""
        if edges is None:
            return self
        n_blocks = len(edges) - 1
        return replace(self, edges=edges, n_blocks=n_blocks, n_leaves=min(self.n_leaves, n_blocks))

    def leaf(self, index: int) -> Leaf:
        """Return the leaf at position `index` in the order of merging."""
        first, last = (self.n_blocks * i // self.n_leaves for i in (index, index + 1))
        if self.shuffle_seed is not None:
            spans = tuple(
                self._span(int(block)) for block in _block_order(self.shuffle_seed, self.n_blocks)[first:last]
            )
            return Leaf(index, (min(span[0] for span in spans), max(span[1] for span in spans)), spans)
        if self.edges is not None:
            return Leaf(index, self.edges[first : last + 1])
        edges = [min(block * self.rows_per_block, self.extent) for block in range(first, last + 1)]
        return Leaf(index, tuple(edges))

    def _span(self, block: int) -> tuple[int, int]:
        """Return the first row of a block and the end of it."""
        if self.edges is not None:
            return self.edges[block], self.edges[block + 1]
        return block * self.rows_per_block, min((block + 1) * self.rows_per_block, self.extent)


@lru_cache(maxsize=4)
def _block_order(seed: int, n_blocks: int) -> IntArray:
    """Return the shuffled order in which blocks are read."""
    return np.asarray(generator(seed, "order of blocks").permutation(n_blocks))
