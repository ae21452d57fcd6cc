"""Accumulators that wrap others: several together, by group of rows, for complete rows, for some features, in pieces."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse

from streampca.accumulators.base import Accumulator, AnyAccumulator, Forwarding
from streampca.accumulators.centring import incomplete, refuse_not_finite
from streampca.accumulators.covariance import Covariance
from streampca.block import Block, as_block, take_columns
from streampca.errors import NotFiniteError
from streampca.linalg.cross_validation import group_edges
from streampca.linalg.tiles import TileGrid
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow
from streampca.typing import Array, FloatArray, IntArray, override

_COPIED_ROWS = 8192


@dataclass(frozen=True)
class Joint(Accumulator[tuple[Any, ...], tuple[Any, ...]]):
    """Update each of several accumulators with every block; a state is the tuple of their states.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> joint = sp.accumulators.Joint((sp.accumulators.Moments(), sp.accumulators.RowSample(1000, 5, "float64")))
    >>> state = joint.update(joint.init(3), np.random.default_rng(0).normal(size=(1000, 3)))
    >>> moments, sample = joint.finalize(state)
    >>> moments.n_samples, sample.index.tolist()
    (1000, [100, 300, 500, 700, 900])
    """

    parts: tuple[AnyAccumulator, ...]
    """The accumulators."""
    reuses_states: ClassVar[bool] = True

    @override
    def init(self, n_features: int) -> tuple[Any, ...]:
        return tuple(accumulator.init(n_features) for accumulator in self.parts)

    @override
    def init_within(self, n_features: int, state: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            accumulator.init_within(n_features, inner) for accumulator, inner in zip(self.parts, state, strict=True)
        )

    def update(self, state: tuple[Any, ...], block: Block | Array) -> tuple[Any, ...]:
        """Return every state with the rows of `block` added."""
        block = as_block(block)
        # The first accumulator comes last, because it may overwrite the rows.
        others = [part.update(inner, block.read_only()) for part, inner in zip(self.parts[1:], state[1:], strict=True)]
        first = [part.update(inner, block) for part, inner in zip(self.parts[:1], state[:1], strict=True)]
        return (*first, *others)

    def merge(self, states: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Merge the states of each accumulator."""
        return tuple(
            accumulator.merge(inner) for accumulator, inner in zip(self.parts, zip(*states, strict=True), strict=True)
        )

    @override
    def absorb(self, state: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(accumulator.absorb(a, b) for accumulator, a, b in zip(self.parts, state, other, strict=True))

    def finalize(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the result of each accumulator."""
        return tuple(accumulator.finalize(inner) for accumulator, inner in zip(self.parts, state, strict=True))

    def state_bytes(self, n_features: int) -> int:
        """Return the size of all states in bytes."""
        return sum(accumulator.state_bytes(n_features) for accumulator in self.parts)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of all accumulators."""
        return sum(accumulator.scratch_bytes(n_features, n_rows, itemsize) for accumulator in self.parts)

    @override
    def with_counts(self, state: tuple[Any, ...], of: Any) -> tuple[Any, ...]:
        return tuple(accumulator.with_counts(inner, of) for accumulator, inner in zip(self.parts, state, strict=True))


@dataclass(frozen=True)
class InPieces(Forwarding):
    """An accumulator that receives the rows of a block in pieces, so it needs no more memory than for blocks of that size."""

    accumulator: AnyAccumulator
    """The accumulator; its states are used unchanged."""
    n_rows: int
    """Number of rows in a piece, counted from the first row of the source."""

    def update(self, state: Any, block: Block | Array) -> Any:
        """Return `state` with the rows of `block` added."""
        block = as_block(block)
        start = 0
        while start < len(block):
            stop = min(len(block), start + self.n_rows - (block.start + start) % self.n_rows)
            state = self.accumulator.update(state, block.slice(start, stop))
            start = stop
        return state

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update with a piece."""
        return self.accumulator.scratch_bytes(n_features, min(n_rows, self.n_rows), itemsize)


@dataclass(frozen=True, eq=False)
class OfFeatures(Forwarding):
    """An accumulator that receives some columns of every block, with the states of the inner accumulator."""

    accumulator: AnyAccumulator
    """The accumulator of these features."""
    columns: IntArray
    """Indices of the features, ascending."""
    column_major: bool = False
    """Whether a block of them is in Fortran order, as from a source of these features alone."""

    @override
    def init(self, n_features: int) -> Any:
        return self.accumulator.init(len(self.columns))

    def update(self, state: Any, block: Block | Array) -> Any:
        """Return `state` with the rows of `block` added."""
        rows = columns_of_block(as_block(block), self.columns, column_major=self.column_major)
        return self.accumulator.update(state, rows)

    @override
    def state_bytes(self, n_features: int) -> int:
        return self.accumulator.state_bytes(len(self.columns))

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update: the inner accumulator, and a block of the features."""
        own = len(self.columns)
        return self.accumulator.scratch_bytes(own, n_rows, itemsize) + n_rows * own * itemsize


def columns_of_block(block: Block, columns: IntArray, *, column_major: bool) -> Block:
    """Return a block with some columns of `block`, in scratch memory."""
    shape = (len(block), len(columns))
    out = borrow("some features", shape[::-1] if column_major else shape, block.values.dtype)
    out = out.T if column_major else out
    return Block(take_columns(block.values, columns, out), block.start, block.weights)


@storable
@dataclass(frozen=True)
class CompleteRowsState:
    """State of the complete rows, and the number of incomplete rows."""

    n_left_out: int
    """Number of rows of positive weight that were excluded because they hold NaN."""
    rows: Any
    """State of the complete rows."""

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return int(self.rows.n_features)

    @property
    def n_samples(self) -> int:
        """Return the number of complete rows."""
        return int(self.rows.n_samples)

    @property
    def weight(self) -> float:
        """Return the sum of their weights."""
        return float(self.rows.weight)

    @property
    def mean(self) -> FloatArray:
        """Return the mean of each feature, shape ``(n_features,)``."""
        mean: FloatArray = self.rows.mean
        return mean


@dataclass(frozen=True)
class CompleteRows(Accumulator[CompleteRowsState, Any]):
    """Update the state of an accumulator with the rows without NaN; the other rows are counted and ignored.

    Cost: the accumulator, and a copy of the complete rows in blocks that also have incomplete rows.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.array([[0.0, 1.0], [2.0, np.nan], [4.0, 3.0]])
    >>> complete = sp.accumulators.CompleteRows()
    >>> state = complete.update(complete.init(2), rows)
    >>> state.n_samples, state.n_left_out
    (2, 1)
    """

    accumulator: AnyAccumulator = field(default_factory=Covariance)
    """The accumulator of the complete rows."""
    n_threads: int = field(default=1, compare=False)
    """Number of threads that share the tiles of one update; it does not affect the bits."""

    @override
    def for_reading(self) -> Hashable | None:
        same: Any = self.accumulator.for_reading()
        return None if same is None else replace(self, accumulator=same)

    @override
    def stored_form(self, state: CompleteRowsState) -> tuple[AnyAccumulator, Any, int]:
        return (*self.accumulator.stored_form(state.rows)[:2], state.n_left_out)

    @property
    def _inner(self) -> Any:
        return self.accumulator.with_threads(self.n_threads)

    def grid(self, n_features: int) -> TileGrid:
        """Return the tile layout of the matrix of the complete rows."""
        grid: TileGrid = self._inner.grid(n_features)
        return grid

    @override
    def shares(self, n_features: int) -> int:
        return self.accumulator.shares(n_features)

    @override
    def init(self, n_features: int) -> CompleteRowsState:
        return CompleteRowsState(0, self.accumulator.init(n_features))

    def update(self, state: CompleteRowsState, block: Block | Array) -> CompleteRowsState:
        """Return `state` with the rows of `block` without NaN added to it in place.

        Raises
        ------
        NotFiniteError
            If the rows hold infinity, or overflow when squared.
        """
        block = as_block(block)
        inner, rows, n_left_out = self._inner, state.rows, state.n_left_out
        # A slab at a time, to limit the memory of the copies.
        for start in range(0, len(block), _COPIED_ROWS):
            slab = block.slice(start, start + _COPIED_ROWS).counted()
            holes = incomplete(slab.values)
            if holes.any():
                refuse_not_finite(slab.values, slab.start, missing=True)
                n_left_out += int(holes.sum())
                slab = slab.where(~holes)
            rows = inner.update(rows, slab)
        return CompleteRowsState(n_left_out, rows)

    @override
    def absorb(self, state: CompleteRowsState, other: CompleteRowsState) -> CompleteRowsState:
        return CompleteRowsState(state.n_left_out + other.n_left_out, self._inner.absorb(state.rows, other.rows))

    @override
    def divisor(self, state: CompleteRowsState) -> float:
        divisor: float = self._inner.divisor(state.rows)
        return divisor

    def finalize(self, state: CompleteRowsState) -> Any:
        """Return the result of the accumulator for the complete rows."""
        return self._inner.finalize(state.rows)

    @override
    def state_bytes(self, n_features: int) -> int:
        return self.accumulator.state_bytes(n_features)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: the accumulator, and copies of complete rows."""
        copied = min(n_rows, _COPIED_ROWS) * n_features * (itemsize + 1)
        return int(self._inner.scratch_bytes(n_features, n_rows, itemsize)) + copied


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
    """Memory in bytes."""

    def __getitem__(self, rows: slice) -> IntArray:
        """Return the numbers of the groups of consecutive rows, ``(stop - start,)``."""
        edges = group_edges(self.n_samples, self.n_groups)
        return np.searchsorted(edges, np.arange(rows.start, min(rows.stop, self.n_samples)), side="right") - 1


@dataclass(frozen=True)
class ByGroup(Accumulator[GroupStates, tuple[Any, ...]]):
    """Divide the rows of every block by their group and update the state of each group with its rows.

    Rows may be in any order: the rows of a group are copied, unless a block has only this group. Cost: the accumulator
    for all rows, a copy of them, and one state per group.

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
    """Number of threads that share an update; it does not affect the bits."""

    @property
    def inner(self) -> Any:
        """Return the accumulator of the rows of one group."""
        return self.accumulator.with_threads(self.n_threads)

    def grid(self, n_features: int) -> TileGrid:
        """Return the tile layout of the matrix of a group."""
        grid: TileGrid = self.inner.grid(n_features)
        return grid

    @override
    def shares(self, n_features: int) -> int:
        return self.accumulator.shares(n_features)

    @override
    def init(self, n_features: int) -> GroupStates:
        return GroupStates(tuple(self.accumulator.init(n_features) for _ in range(self.n_groups)))

    def update(self, state: GroupStates, block: Block | Array) -> GroupStates:
        """Return `state` with the rows of `block` added in place.

        Raises
        ------
        NotFiniteError
            If the rows hold infinity, or NaN if it is not allowed, or overflow when squared.
        """
        block, inner, groups = as_block(block), self.inner, list(state.groups)
        codes = self.codes[block.start : block.start + len(block)]
        try:
            for group, chosen in _rows_by_group(codes):
                rows = block if len(chosen) == len(block) else block.where(chosen)
                groups[group] = inner.update(groups[group], rows)
        except NotFiniteError:
            if not issparse(block.values):  # infinity first, with the number of the row in the source
                refuse_not_finite(block.values, block.start, missing=True)
            refuse_not_finite(block.values, block.start)
            raise
        return GroupStates(tuple(groups))

    @override
    def absorb(self, state: GroupStates, other: GroupStates) -> GroupStates:
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
        """Return the scratch memory in bytes: the update of one group, and a copy of its rows with a mask and weights."""
        copied = n_rows * (n_features * max(itemsize, 8) + 24)
        return int(self.inner.scratch_bytes(n_features, n_rows, itemsize)) + copied


def _rows_by_group(codes: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield each group of `codes` with its rows, both ascending, in n log n steps for any number of groups."""
    order = np.argsort(codes, kind="stable")
    ascending = codes[order]
    starts = np.flatnonzero(np.diff(ascending, prepend=ascending[:1] - 1))
    for start, stop in pairwise([*starts.tolist(), len(order)]):
        yield int(ascending[start]), order[start:stop]
