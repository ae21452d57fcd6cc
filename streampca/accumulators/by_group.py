"""One state for each group of rows, all from the same reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import issparse

from streampca.accumulators.base import AnyAccumulator, SequentialMerge
from streampca.accumulators.centring import refuse_not_finite
from streampca.accumulators.missing import refuse_infinite
from streampca.accumulators.score_groups import group_edges
from streampca.accumulators.sparse import refuse_stored
from streampca.block import Block, as_block
from streampca.errors import NotFiniteError
from streampca.linalg.tiles import TileGrid
from streampca.storage.state_file import storable
from streampca.typing import Array, IntArray


@storable
@dataclass(frozen=True)
class GroupStates:
    """The state of each group."""

    groups: tuple[Any, ...]
    """States of an accumulator, one for each group."""

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return int(self.groups[0].n_features)

    @property
    def n_samples(self) -> int:
        """Return the number of rows of all groups."""
        return sum(state.n_samples for state in self.groups)


@dataclass(frozen=True)
class ConsecutiveGroups:
    """Numbers of groups of consecutive rows whose sizes differ by one at most, without an array of them.

    Examples
    --------
    >>> import streampca as sp
    >>> sp.accumulators.ConsecutiveGroups(n_samples=7, n_groups=3)[0:7].tolist()
    [0, 0, 1, 1, 2, 2, 2]
    """

    n_samples: int
    """Rows of the source."""
    n_groups: int
    """Number of groups."""
    nbytes: int = 0
    """Memory that they take."""

    def __getitem__(self, rows: slice) -> IntArray:
        """Return the numbers of the groups of consecutive rows, ``(stop - start,)``."""
        edges = group_edges(self.n_samples, self.n_groups)
        return np.searchsorted(edges, np.arange(rows.start, min(rows.stop, self.n_samples)), side="right") - 1


@dataclass(frozen=True)
class ByGroup(SequentialMerge[GroupStates]):
    """Divide the rows of every block by their group and update the state of each group with its rows.

    Rows of one group are copied, unless a block has no others, so they may be in any order. Cost: that of the accumulator for all rows,
    and a copy of them; as many states as groups.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> groups = sp.accumulators.ByGroup(sp.accumulators.Moments(), np.array([0, 1, 0, 1]), n_groups=2)
    >>> state = groups.update(groups.init(1), np.array([[0.0], [10.0], [2.0], [20.0]]))
    >>> [moments.mean.tolist() for moments in groups.finalize(state)]
    [[1.0], [15.0]]
    """

    accumulator: AnyAccumulator
    """The accumulator of the rows of one group."""
    codes: IntArray | ConsecutiveGroups
    """Number of the group of each row of the source, ``(n_samples,)``."""
    n_groups: int
    """Number of groups."""
    n_threads: int = field(default=1, compare=False)
    """Threads that share an update; the bits do not depend on it."""

    @property
    def inner(self) -> Any:
        """Return the accumulator of the rows of one group."""
        of_group: Any = self.accumulator
        return replace(of_group, n_threads=self.n_threads) if hasattr(of_group, "n_threads") else of_group

    def grid(self, n_features: int) -> TileGrid:
        """Return the tile layout of the matrix of a group."""
        grid: TileGrid = self.inner.grid(n_features)
        return grid

    def init(self, n_features: int) -> GroupStates:
        """Return the state of no rows, the identity of `merge`."""
        return GroupStates(tuple(self.accumulator.init(n_features) for _ in range(self.n_groups)))

    def update(self, state: GroupStates, block: Block | Array) -> GroupStates:
        """Return `state` with the rows of `block` added in place.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN where it is not allowed, or infinity, or overflow when squared.
        """
        block, inner, groups = as_block(block), self.inner, list(state.groups)
        codes = self.codes[block.start : block.start + len(block)]
        try:
            for group, chosen in _rows_by_group(codes):
                rows = block if len(chosen) == len(block) else block.where(chosen)
                groups[group] = inner.update(groups[group], rows)
        except NotFiniteError:
            _refuse(block)  # with the number of the row in the source
            raise
        return GroupStates(tuple(groups))

    def absorb(self, state: GroupStates, other: GroupStates) -> GroupStates:
        """Return the state of the rows behind both, in the memory of `state`."""
        inner = self.inner
        return GroupStates(tuple(inner.absorb(a, b) for a, b in zip(state.groups, other.groups, strict=True)))

    def finalize(self, state: GroupStates) -> tuple[Any, ...]:
        """Return the result of each group."""
        return tuple(self.inner.finalize(group) for group in state.groups)

    def finalize_bytes(self, n_features: int) -> int:
        """Return the memory in bytes of `finalize` of one group, without the state."""
        return int(self.inner.finalize_bytes(n_features))

    def state_bytes(self, n_features: int) -> int:
        """Return the size of the states of all groups in bytes."""
        return self.n_groups * self.accumulator.state_bytes(n_features)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: that of one group, and a copy of its rows with a mask and weights."""
        copied = n_rows * (n_features * max(itemsize, 8) + 24)
        return int(self.inner.scratch_bytes(n_features, n_rows, itemsize)) + copied


def _rows_by_group(codes: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each group of `codes` with its rows, both ascending; takes n log n steps for any number of groups."""
    order = np.argsort(codes, kind="stable")
    ascending = codes[order]
    starts = np.flatnonzero(np.diff(ascending, prepend=ascending[:1] - 1))
    for start, stop in pairwise([*starts.tolist(), len(order)]):
        yield int(ascending[start]), order[start:stop]


def _refuse(block: Block) -> None:
    """Raise `NotFiniteError` that names the first value of `block` that is not finite: infinity, else NaN."""
    if issparse(block.values):
        refuse_stored(block.values, block.start)
        return
    if block.values.dtype.kind == "f":
        refuse_infinite(block.values, block.start)
        if np.isnan(block.values).any():
            refuse_not_finite(block.values, block.start)
