"""Landmarks by randomly pivoted Cholesky in one pass: groups of rows are reduced, and what is left of them is merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.landmarks import Landmarks, refuse
from streampca.accumulators.pivots import random_pivots
from streampca.block import Block, as_block
from streampca.errors import ParameterError
from streampca.kernels.base import Kernel
from streampca.kernels.rows import FloatArray, dense
from streampca.random import generator
from streampca.storage.state_file import storable

_GROUP = 4  # rows of a group for each landmark: larger groups cost less per row, and more memory
_MOST_LEVELS = 32


@storable
@dataclass(frozen=True)
class RowGroup:
    """Rows of one group that have been seen, each at its place."""

    number: int
    """Rows ``number * group_size`` on belong to it."""
    seen: NDArray[np.bool_]
    """Which rows have been seen, shape ``(group_size,)``."""
    weights: FloatArray
    """Their weights, 0 where not seen; ``(group_size,)``."""
    rows: NDArray[Any]
    """The rows of positive weight, ``(group_size, n_features)``; undefined elsewhere."""


@storable
@dataclass(frozen=True)
class Reduced:
    """Points that stand for all rows of 2^level consecutive groups."""

    level: int
    """How often points were merged."""
    position: int
    """The first group is ``position * 2**level``."""
    index: NDArray[np.int64]
    """Row numbers of the points, ascending, ``(n_points,)``."""
    weights: FloatArray
    """What each counts for, ``(n_points,)``."""
    rows: NDArray[Any]
    """The points, ``(n_points, n_features)``."""


@storable
@dataclass(frozen=True)
class RPCholeskyState:
    """What has been seen of the rows so far."""

    n_samples: int
    """Number of rows of positive weight."""
    groups: tuple[RowGroup, ...]
    """Groups that are not complete, by number."""
    points: tuple[Reduced, ...]
    """What complete groups were reduced to, no two of them siblings; by first group."""
    n_features: int
    """Length of a row."""


@dataclass(frozen=True)
class RPCholeskyLandmarks:
    """Choose rows that span the leading part of a kernel matrix, for kernels whose diagonal varies.

    Rows are gathered in groups of 4 m by their number within the source. A complete group is reduced to m points by
    randomly pivoted Cholesky (`random_pivots`), each of which counts for N / m of its N rows from then on; the points of
    two sibling groups are pooled and reduced again, and so on along the binary tree over the groups. A plain run of the
    algorithm takes m passes. Which rows are reduced together depends on their numbers alone, and the random numbers belong
    to the node of the tree, so any blocks in any order give the same points, bit by bit.

    About 1.5 m² flops and m kernel values for each row. A row that comes twice counts once.

    Raises
    ------
    ParameterError
        If the kernel is known not to be positive semi-definite.
    """

    n_landmarks: int
    """Number m of points; fewer may be found where the kernel matrix has a smaller rank."""
    kernel: Kernel
    """The kernel."""
    seed: int = 0
    """Seed of the draws."""
    dtype: str = "float64"
    """Data type in which rows are kept: that of the source."""
    n_samples: int | None = None
    """Number of rows of the source, for the size of a state; None = any."""

    def __post_init__(self) -> None:
        if self.n_landmarks < 1:
            raise ParameterError(f"n_landmarks={self.n_landmarks}: expected at least 1")
        if self.kernel.definite is False:
            raise ParameterError(
                f"rpcholesky sampling with the kernel {self.kernel}: expected a positive semi-definite kernel; choose "
                "sampling 'uniform' or 'diagonal'"
            )

    @property
    def group_size(self) -> int:
        """Return the number of rows of a group."""
        return _GROUP * self.n_landmarks

    def init(self, n_features: int) -> RPCholeskyState:
        """Return the state of no rows."""
        return RPCholeskyState(0, (), (), n_features)

    def update(self, state: RPCholeskyState, block: Block | NDArray[Any]) -> RPCholeskyState:
        """Return `state` with the rows of `block` added, which are copied.

        Raises
        ------
        NotFiniteError
            If rows of positive weight hold NaN or infinity, or κ(x, x) is not finite.
        """
        block = as_block(block)
        start, size = 0, self.group_size
        groups = {group.number: group for group in state.groups}
        points = _by_place(state.points)
        n_samples = state.n_samples
        while start < len(block):
            number, first = divmod(block.start + start, size)
            stop = min(len(block), start + size - first)
            if not _covered(points, number):
                group = groups.pop(number, None) or self._empty(number, state.n_features)
                n_samples += self._fill(group, first, block.part(start, stop))
                self._place(groups, points, group)
            start = stop
        return replace(state, n_samples=n_samples, **_in_order(groups, points))

    def merge(self, states: Sequence[RPCholeskyState]) -> RPCholeskyState:
        """Return the state of all rows behind `states`; none of them is changed."""
        total = self.init(states[0].n_features)
        for state in states:
            total = self.absorb(total, state)
        return total

    def absorb(self, state: RPCholeskyState, other: RPCholeskyState) -> RPCholeskyState:
        """Return the state of the rows behind both; may reuse the memory of `state`."""
        groups = {group.number: group for group in state.groups}
        points = _by_place(state.points)
        n_samples = state.n_samples + other.n_samples
        for point in other.points:
            self._grow(points, point)
        for taken in other.groups:
            group = groups.pop(taken.number, None) or self._empty(taken.number, state.n_features)
            fresh = taken.seen & ~group.seen
            n_samples -= int((taken.seen & group.seen & (taken.weights > 0)).sum())
            for own, theirs in ((group.rows, taken.rows), (group.weights, taken.weights), (group.seen, taken.seen)):
                own[fresh] = theirs[fresh]
            self._place(groups, points, group)
        return replace(state, n_samples=n_samples, **_in_order(groups, points))

    def finalize(self, state: RPCholeskyState) -> Landmarks:
        """Return the points that are left when all that was seen is merged, from the last groups to the first."""
        parts = list(state.points) + [self._reduce_group(group) for group in state.groups]
        parts.sort(key=lambda part: part.position << part.level, reverse=True)
        empty = self._empty(0, state.n_features)
        left = Reduced(0, 0, np.empty(0, np.int64), np.empty(0), empty.rows[:0])
        for step, part in enumerate(parts):
            left = self._reduce([part, left], 0, 0, "rest", step)
        return Landmarks(left.index, left.rows, left.weights, state.n_samples, float(left.weights.sum()))

    def state_bytes(self, n_features: int) -> int:
        """Return the size in bytes of a state of consecutive rows: two incomplete groups, two sets of points a level."""
        itemsize = np.dtype(self.dtype).itemsize
        levels = _MOST_LEVELS
        if self.n_samples is not None:
            levels = max(1, -(-self.n_samples // self.group_size)).bit_length()
        groups = 2 * self.group_size * (9 + n_features * itemsize)
        return groups + 2 * levels * self.n_landmarks * (16 + n_features * itemsize)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: the rows of a group in float64, their kernel values, and their factor."""
        size, own = self.group_size, self.kernel.prepared_bytes(self.group_size, n_features)
        factor = 8 * size * self.n_landmarks
        return 16 * size * n_features + own + factor + self.kernel.scratch_bytes(size, n_features) + 8 * 5 * 128 * size

    def _empty(self, number: int, n_features: int) -> RowGroup:
        size = self.group_size
        return RowGroup(number, np.zeros(size, bool), np.zeros(size), np.empty((size, n_features), dtype=self.dtype))

    def _fill(self, group: RowGroup, first: int, block: Block) -> int:
        """Write the rows of `block` to `group` from place `first` on; return how many of positive weight are new."""
        places = np.arange(first, first + len(block))
        weights = np.ones(len(block)) if block.weights is None else block.weights
        counted = weights > 0
        rows = dense(block.values[counted]) if not counted.all() else dense(block.values)
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            refuse(block.counted())
        fresh = int((counted & ~group.seen[places]).sum())
        group.rows[places[counted]] = rows
        group.weights[places] = weights
        group.seen[places] = True
        return fresh

    def _place(self, groups: dict[int, RowGroup], points: dict[tuple[int, int], Reduced], group: RowGroup) -> None:
        """Put `group` among the incomplete ones, or what it is reduced to into the tree."""
        if group.seen.all():
            self._grow(points, self._reduce_group(group))
        elif not _covered(points, group.number):
            groups[group.number] = group

    def _grow(self, points: dict[tuple[int, int], Reduced], point: Reduced) -> None:
        """Put `point` into the tree, and reduce siblings to their parent as long as there are any."""
        if _covered(points, point.position << point.level):
            return
        level, position = point.level, point.position
        while (level, position ^ 1) in points:
            sibling = points.pop((level, position ^ 1))
            pair = sorted([point, sibling], key=lambda part: part.position)
            level, position = level + 1, position >> 1
            point = self._reduce(pair, level, position, f"level {level}", position)
        points[level, position] = point

    def _reduce_group(self, group: RowGroup) -> Reduced:
        counted = np.flatnonzero(group.weights > 0)
        index = counted + group.number * self.group_size
        point = Reduced(0, group.number, index, group.weights[counted], group.rows[counted])
        return self._reduce([point], 0, group.number, "group", group.number)

    def _reduce(self, parts: list[Reduced], level: int, position: int, purpose: str, number: int) -> Reduced:
        """Return at most `n_landmarks` points that stand for all points of `parts`."""
        index = np.concatenate([part.index for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        rows = np.concatenate([part.rows for part in parts])
        if len(index) > self.n_landmarks:
            random = generator(self.seed, f"rpcholesky {purpose}", number)
            pivots = random_pivots(self.kernel, rows.astype(np.float64), weights, self.n_landmarks, random)
            pivots = pivots if len(pivots) else np.zeros(1, dtype=np.int64)  # all rows are 0 to the kernel
            index, rows = index[pivots], rows[pivots]
            weights = np.full(len(pivots), weights.sum() / len(pivots))
        return Reduced(level, position, index, weights, rows)


def _by_place(points: Sequence[Reduced]) -> dict[tuple[int, int], Reduced]:
    return {(point.level, point.position): point for point in points}


def _covered(points: dict[tuple[int, int], Reduced], number: int) -> bool:
    """Return whether the rows of group `number` have been reduced already."""
    return any(number >> level == position for level, position in points)


def _in_order(groups: dict[int, RowGroup], points: dict[tuple[int, int], Reduced]) -> dict[str, Any]:
    """Return incomplete groups and points by number of their first group."""
    return {
        "groups": tuple(groups[number] for number in sorted(groups)),
        "points": tuple(sorted(points.values(), key=lambda part: part.position << part.level)),
    }
