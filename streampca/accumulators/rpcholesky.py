"""Landmarks by randomly pivoted Cholesky in one pass: groups of rows are reduced to points, and points are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streampca.accumulators.base import Accumulator
from streampca.accumulators.landmarks import Landmarks, require_finite_rows
from streampca.accumulators.pivots import random_pivots
from streampca.block import Block, as_block
from streampca.errors import ParameterError
from streampca.kernels.base import Kernel
from streampca.kernels.rows import dense
from streampca.random import generator
from streampca.storage.state_file import storable
from streampca.typing import Array, BoolArray, FloatArray, IntArray, override

_GROUP = 4  # rows of a group per landmark; larger groups cost less time per row and more memory
_MOST_LEVELS = 32


@storable
@dataclass(frozen=True)
class RowGroup:
    """The accumulated rows of one group, each at its position."""

    number: int
    """Number of the group, whose first row is ``number * group_size``."""
    seen: BoolArray
    """Mask of the accumulated rows, shape ``(group_size,)``."""
    weights: FloatArray
    """Their weights, 0 for missing rows; ``(group_size,)``."""
    rows: Array
    """The rows of positive weight, ``(group_size, n_features)``; undefined elsewhere."""


@storable
@dataclass(frozen=True)
class Reduced:
    """Points that represent all rows of 2^level consecutive groups."""

    level: int
    """Height of the node in the tree over the groups."""
    position: int
    """Position of the node in its level: its first group is ``position * 2**level``."""
    index: IntArray
    """Row indices of the points, ascending, ``(n_points,)``."""
    weights: FloatArray
    """Weight that each point represents, ``(n_points,)``."""
    rows: Array
    """The points, ``(n_points, n_features)``."""


@storable
@dataclass(frozen=True)
class RPCholeskyState:
    """Incomplete groups, and the points of the complete ones."""

    n_samples: int
    """Number of rows of positive weight."""
    groups: tuple[RowGroup, ...]
    """Incomplete groups, ordered by number."""
    points: tuple[Reduced, ...]
    """Points of the complete groups, no two nodes siblings, ordered by first group."""
    n_features: int
    """Length of a row."""


@dataclass(frozen=True)
class RPCholeskyLandmarks(Accumulator[RPCholeskyState, Landmarks]):
    """Choose rows that span the leading eigenspace of a kernel matrix, for kernels whose diagonal varies.

    Rows are collected in groups of 4 m by their index within the source. A complete group is reduced to m points by
    randomly pivoted Cholesky (`random_pivots`), each with the weight N / m for the N rows of the group. The points of two
    sibling groups are pooled and reduced again, and so on along the binary tree over the groups; the plain algorithm
    takes m passes. The indices of the rows alone decide which rows are reduced together, and the random numbers belong
    to the node of the tree, so blocks in any order give the same points, bit by bit.

    About 1.5 m² flops and m kernel values for each row. A repeated row index counts once.

    Raises
    ------
    ParameterError
        If the kernel is known not to be positive semi-definite.

    References
    ----------
    Chen, Epperly, Tropp & Webber (2023), Randomly pivoted Cholesky: practical approximation of a kernel matrix with few entry
    evaluations, for the algorithm that reduces a group.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 4))
    >>> choice = sp.accumulators.RPCholeskyLandmarks(3, sp.kernels.Polynomial(degree=3))
    >>> landmarks = choice.finalize(choice.update(choice.init(4), rows))
    >>> landmarks.rows.shape, round(float(landmarks.weights.sum()))
    ((3, 4), 1000)
    """

    n_landmarks: int
    """Number m of points; the result has fewer where the kernel matrix has a smaller rank."""
    kernel: Kernel
    """The kernel."""
    seed: int = 0
    """Seed of the draws."""
    dtype: str = "float64"
    """Data type of the stored rows: that of the source."""
    n_samples: int | None = None
    """Number of rows of the source, for the size of a state; None = unknown."""

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

    @override
    def init(self, n_features: int) -> RPCholeskyState:
        return RPCholeskyState(0, (), (), n_features)

    def update(self, state: RPCholeskyState, block: Block | Array) -> RPCholeskyState:
        """Return `state` with copies of the rows of `block` added.

        Raises
        ------
        NotFiniteError
            If rows of positive weight hold NaN or infinity, or κ(x, x) is not finite.
        """
        block = as_block(block)
        start, size = 0, self.group_size
        groups = {group.number: group for group in state.groups}
        points = _by_position(state.points)
        n_samples = state.n_samples
        while start < len(block):
            number, first = divmod(block.start + start, size)
            stop = min(len(block), start + size - first)
            if not _contains(points, number):
                group = groups.pop(number, None) or self._empty(number, state.n_features)
                n_samples += self._fill(group, first, block.slice(start, stop))
                self._add_group(groups, points, group)
            start = stop
        return _ordered_state(n_samples, groups, points, state.n_features)

    @override
    def absorb(self, state: RPCholeskyState, other: RPCholeskyState) -> RPCholeskyState:
        groups = {group.number: group for group in state.groups}
        points = _by_position(state.points)
        n_samples = state.n_samples + other.n_samples
        for point in other.points:
            self._add_node(points, point)
        for incoming in other.groups:
            group = groups.pop(incoming.number, None) or self._empty(incoming.number, state.n_features)
            new = incoming.seen & ~group.seen
            n_samples -= int((incoming.seen & group.seen & (incoming.weights > 0)).sum())
            for target, source in (
                (group.rows, incoming.rows),
                (group.weights, incoming.weights),
                (group.seen, incoming.seen),
            ):
                target[new] = source[new]
            self._add_group(groups, points, group)
        return _ordered_state(n_samples, groups, points, state.n_features)

    def finalize(self, state: RPCholeskyState) -> Landmarks:
        """Return the points of all accumulated rows, merged from the last groups to the first."""
        nodes = list(state.points) + [self._reduce_group(group) for group in state.groups]
        nodes.sort(key=lambda node: node.position << node.level, reverse=True)
        empty = self._empty(0, state.n_features)
        merged = Reduced(0, 0, np.empty(0, np.int64), np.empty(0), empty.rows[:0])
        for step, node in enumerate(nodes):
            merged = self._reduce([node, merged], 0, 0, "rest", step)
        return Landmarks(merged.index, merged.rows, merged.weights, state.n_samples, float(merged.weights.sum()))

    def state_bytes(self, n_features: int) -> int:
        """Return the size in bytes of a state of consecutive rows: two incomplete groups, and two sets of points per level."""
        itemsize = np.dtype(self.dtype).itemsize
        levels = _MOST_LEVELS
        if self.n_samples is not None:
            levels = max(1, -(-self.n_samples // self.group_size)).bit_length()
        groups = 2 * self.group_size * (9 + n_features * itemsize)
        return groups + 2 * levels * self.n_landmarks * (16 + n_features * itemsize)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: the rows of a group in float64, their kernel values, and their factor."""
        size, prepared = self.group_size, self.kernel.prepared_bytes(self.group_size, n_features)
        factor = 8 * size * self.n_landmarks
        return (
            16 * size * n_features
            + prepared
            + factor
            + self.kernel.scratch_bytes(size, n_features)
            + 8 * 5 * 128 * size
        )

    def _empty(self, number: int, n_features: int) -> RowGroup:
        size = self.group_size
        return RowGroup(number, np.zeros(size, bool), np.zeros(size), np.empty((size, n_features), dtype=self.dtype))

    def _fill(self, group: RowGroup, first: int, block: Block) -> int:
        """Write the rows of `block` to `group` from position `first` on; return the number of new rows of positive weight."""
        positions = np.arange(first, first + len(block))
        weights = np.ones(len(block)) if block.weights is None else block.weights
        counted = weights > 0
        rows = dense(block.values[counted]) if not counted.all() else dense(block.values)
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            require_finite_rows(block.counted())
        n_new = int((counted & ~group.seen[positions]).sum())
        group.rows[positions[counted]] = rows
        group.weights[positions] = weights
        group.seen[positions] = True
        return n_new

    def _add_group(self, groups: dict[int, RowGroup], points: dict[tuple[int, int], Reduced], group: RowGroup) -> None:
        """Add `group` to the incomplete groups, or its points to the tree if it is complete."""
        if group.seen.all():
            self._add_node(points, self._reduce_group(group))
        elif not _contains(points, group.number):
            groups[group.number] = group

    def _add_node(self, points: dict[tuple[int, int], Reduced], point: Reduced) -> None:
        """Add a node to the tree, and reduce pairs of siblings to their parent until no pair is left."""
        if _contains(points, point.position << point.level):
            return
        level, position = point.level, point.position
        while (level, position ^ 1) in points:
            sibling = points.pop((level, position ^ 1))
            pair = sorted([point, sibling], key=lambda node: node.position)
            level, position = level + 1, position >> 1
            point = self._reduce(pair, level, position, f"level {level}", position)
        points[level, position] = point

    def _reduce_group(self, group: RowGroup) -> Reduced:
        counted = np.flatnonzero(group.weights > 0)
        index = counted + group.number * self.group_size
        point = Reduced(0, group.number, index, group.weights[counted], group.rows[counted])
        return self._reduce([point], 0, group.number, "group", group.number)

    def _reduce(self, nodes: list[Reduced], level: int, position: int, purpose: str, number: int) -> Reduced:
        """Return a node of at most `n_landmarks` points that represent all points of `nodes`."""
        index = np.concatenate([node.index for node in nodes])
        weights = np.concatenate([node.weights for node in nodes])
        rows = np.concatenate([node.rows for node in nodes])
        if len(index) > self.n_landmarks:
            random = generator(self.seed, f"rpcholesky {purpose}", number)
            pivots = random_pivots(self.kernel, rows.astype(np.float64), weights, self.n_landmarks, random)
            pivots = pivots if len(pivots) else np.zeros(1, dtype=np.int64)  # κ(x, x) = 0 for all rows
            index, rows = index[pivots], rows[pivots]
            weights = np.full(len(pivots), weights.sum() / len(pivots))
        return Reduced(level, position, index, weights, rows)


def _by_position(points: Sequence[Reduced]) -> dict[tuple[int, int], Reduced]:
    return {(point.level, point.position): point for point in points}


def _contains(points: dict[tuple[int, int], Reduced], number: int) -> bool:
    """Return whether the tree contains the rows of group `number`."""
    return any(number >> level == position for level, position in points)


def _ordered_state(
    n_samples: int, groups: dict[int, RowGroup], points: dict[tuple[int, int], Reduced], n_features: int
) -> RPCholeskyState:
    """Return the state of incomplete `groups` and `points`, ordered by their first group."""
    nodes = sorted(points.values(), key=lambda node: node.position << node.level)
    return RPCholeskyState(n_samples, tuple(groups[number] for number in sorted(groups)), tuple(nodes), n_features)
