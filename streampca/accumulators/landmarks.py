"""Choice of landmarks in one pass: by hashes of the row indices, or by randomly pivoted Cholesky over groups of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.base import Accumulator
from streampca.accumulators.centring import refuse_not_finite
from streampca.block import Block, as_block
from streampca.errors import DataError, NotFiniteError, ParameterError
from streampca.kernels.base import Kernel, Prepared, dense, panels
from streampca.random import generator, hashes
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, FloatArray, IntArray, override

_PANEL_ROWS = 1 << 15
_LARGEST_BELOW_1 = 1 - 2.0**-53


@dataclass(frozen=True)
class Landmarks:
    """Rows that represent all rows of a source."""

    index: IntArray
    """Row indices within the source, ascending, shape ``(n_landmarks,)``."""
    rows: Array
    """The rows, ``(n_landmarks, n_features)``."""
    weights: FloatArray
    """Sampling weight of each row, or the number of rows that it represents; ``(n_landmarks,)``."""
    n_samples: int
    """Number of rows of positive weight in the source."""
    weight: float
    """Sum of the weights of these rows."""


@storable
@dataclass(frozen=True)
class LandmarksState:
    """The accumulated rows with the smallest keys, in no particular order."""

    n_samples: int
    """Number of rows of positive weight."""
    weight: float
    """Sum of their weights."""
    keys: FloatArray
    """Logarithm of the key of each row, shape ``(n_drawn,)``."""
    index: IntArray
    """Row indices within the source, ``(n_drawn,)``."""
    weights: FloatArray
    """Sampling weights of the rows, ``(n_drawn,)``."""
    rows: Array
    """The rows, ``(n_drawn, n_features)``."""

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return int(self.rows.shape[1])


class Draw(Accumulator[LandmarksState, Landmarks], ABC):
    """Draw rows without replacement in proportion to weights, in one pass.

    Row i of the source has the number u_i in (0, 1), a hash of (seed, purpose, i), and the key −log(1 − u_i) / w_i, which is
    exponentially distributed; the rows with the smallest keys are drawn. So the draw depends only on the seed and the
    rows, and not on the blocks, their order, or the order of merging. If all weights are 1, this is the bottom-k sample
    of the hashes; otherwise it is successive sampling (Efraimidis & Spirakis 2006, algorithm A, with keys u^(1/w), which
    reverse the order). Rows of weight 0 are never drawn. A repeated row index counts once.
    """

    n_landmarks: int
    seed: int
    dtype: str
    purpose: str

    def __post_init__(self) -> None:
        if self.n_landmarks < 1:
            raise ParameterError(f"n_landmarks={self.n_landmarks}: expected at least 1")

    @override
    def init(self, n_features: int) -> LandmarksState:
        nothing = np.empty(0)
        index = np.empty(0, dtype=np.int64)
        return LandmarksState(0, 0.0, nothing, index, nothing.copy(), np.empty((0, n_features), dtype=self.dtype))

    def update(self, state: LandmarksState, block: Block | Array) -> LandmarksState:
        """Return `state` with the rows of `block` added to the draw; the drawn rows are copied.

        Raises
        ------
        NotFiniteError
            If a drawn row holds NaN or infinity, or if a weight that depends on the rows is not finite.
        """
        block = as_block(block)
        for start in range(0, len(block), _PANEL_ROWS):
            state = self._draw(state, block.slice(start, min(start + _PANEL_ROWS, len(block))))
        return state

    def absorb(self, state: LandmarksState, other: LandmarksState) -> LandmarksState:
        """Return the draw from the rows of both states; may reuse the memory of `state`."""
        state = replace(state, n_samples=state.n_samples + other.n_samples, weight=state.weight + other.weight)
        return self._admit(state, other.keys, other.index, other.weights, lambda chosen: other.rows[chosen])

    def finalize(self, state: LandmarksState) -> Landmarks:
        """Return the drawn rows; `DataError` if all accumulated rows have weight 0."""
        if state.n_samples and not len(state.index):
            raise DataError(f"all {state.n_samples} rows have weight 0, so none can be drawn: choose uniform sampling")
        order = np.argsort(state.index)
        return Landmarks(
            state.index[order], state.rows[order], state.weights[order], state.n_samples, float(state.weight)
        )

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a full state in bytes."""
        return self.n_landmarks * (24 + n_features * np.dtype(self.dtype).itemsize)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: keys of a panel, and copies of its drawn rows."""
        panel = min(n_rows, _PANEL_ROWS)
        return 80 * (panel + self.n_landmarks) + 2 * min(panel, self.n_landmarks) * n_features * max(8, itemsize)

    @abstractmethod
    def _weights(self, block: Block) -> FloatArray | None:
        """Return the weight of each row of `block`, None if all are 1."""

    def _draw(self, state: LandmarksState, block: Block) -> LandmarksState:
        weights = self._weights(block)
        index = np.arange(block.start, block.start + len(block), dtype=np.int64)
        # Within (0, 1): the largest hashes are rounded up to 1.
        u = (hashes(index.astype(np.uint64), self.seed, self.purpose) + 0.5) * 2.0**-64
        np.minimum(u, _LARGEST_BELOW_1, out=u)
        if weights is None:
            state = replace(state, n_samples=state.n_samples + len(block), weight=state.weight + len(block))
            local = np.flatnonzero(u <= np.exp(self._bound(state)) * (1 + 1e-12))  # −log(1 − u) ≥ u
            weights, keys = np.ones(len(local)), np.log(-np.log1p(-u[local]))
        else:
            self._require_finite(weights, block)
            n_rows = len(block) if block.weights is None else int((block.weights > 0).sum())
            state = replace(state, n_samples=state.n_samples + n_rows, weight=state.weight + float(weights.sum()))
            keys = np.full(len(block), np.inf)
            np.log(-np.log1p(-u), out=keys, where=weights > 0)
            np.subtract(keys, np.log(weights, where=weights > 0, out=np.zeros_like(weights)), out=keys)
            local = np.flatnonzero((keys <= self._bound(state)) & (weights > 0))
            weights, keys = weights[local], keys[local]

        def rows(chosen: NDArray[np.intp]) -> Array:
            drawn = dense(block.values[local[chosen]])
            if drawn.dtype.kind == "f" and not np.isfinite(drawn).all():
                refuse_not_finite(block.values, block.start)
            return drawn

        return self._admit(state, keys, index[local], weights, rows)

    def _bound(self, state: LandmarksState) -> float:
        """Return the largest key in the sample, or infinity while the sample is not full."""
        return float(state.keys.max()) if len(state.keys) >= self.n_landmarks else np.inf

    def _admit(
        self,
        state: LandmarksState,
        keys: FloatArray,
        index: IntArray,
        weights: FloatArray,
        rows: Callable[[NDArray[np.intp]], Array],
    ) -> LandmarksState:
        """Return `state` with the smallest of its keys and the new `keys`; ``rows(chosen)`` returns the new rows to copy."""
        n_old = len(state.keys)
        all_keys, all_index = np.concatenate([state.keys, keys]), np.concatenate([state.index, index])
        order = np.lexsort((all_index, all_keys))
        repeated = np.zeros(len(order), dtype=bool)
        repeated[1:] = all_index[order[1:]] == all_index[order[:-1]]
        best = order[~repeated][: self.n_landmarks]
        chosen = np.sort(best[best >= n_old]) - n_old
        if not len(chosen):
            return state
        evicted = np.setdiff1d(np.arange(n_old), best[best < n_old])
        new, n_free = rows(chosen), len(evicted)

        def updated(old: Array, values: Array) -> Array:
            old[evicted] = values[:n_free]
            extra = values[n_free:]
            return np.concatenate([old, extra.astype(old.dtype, copy=False)]) if len(extra) else old

        return replace(
            state,
            keys=updated(state.keys, keys[chosen]),
            index=updated(state.index, index[chosen]),
            weights=updated(state.weights, weights[chosen]),
            rows=updated(state.rows, new),
        )

    def _require_finite(self, weights: FloatArray, block: Block) -> None:
        if np.isfinite(weights).all():
            return
        refuse_not_finite(block.values, block.start)
        row = block.start + int(np.flatnonzero(~np.isfinite(weights))[0])
        raise NotFiniteError(f"the weight of row {row} is not finite: rescale the features, or choose uniform sampling")


@dataclass(frozen=True)
class UniformLandmarks(Draw):
    """Draw rows uniformly, or in proportion to the weights of their block, in one pass.

    Row i of the source has the number u in (0, 1), a hash of (`seed`, `purpose`, i), and the key −log(1 − u) / w for its
    weight w. The rows with the smallest keys are drawn, without replacement (Efraimidis & Spirakis 2006, algorithm A).
    The draw depends only on the seed and the rows, not on the blocks or the order of merging. A repeated row index counts
    once, so blocks of a source must carry their positions (`streampca.block.Block`). Cost: one hash per row, and memory
    for the drawn rows.

    References
    ----------
    Efraimidis & Spirakis (2006), Weighted random sampling with a reservoir.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> from streampca.block import Block
    >>> rows = np.random.default_rng(0).normal(size=(1000, 4))
    >>> draw = sp.accumulators.UniformLandmarks(n_landmarks=3, seed=0)
    >>> draw.finalize(draw.update(draw.init(4), rows)).index.tolist()
    [401, 746, 922]
    >>> later, earlier = (draw.update(draw.init(4), Block(rows[start : start + 500], start)) for start in (500, 0))
    >>> draw.finalize(draw.merge([later, earlier])).index.tolist()
    [401, 746, 922]
    """

    n_landmarks: int
    """Number of rows to draw."""
    seed: int = 0
    """Seed of the draw."""
    dtype: str = "float64"
    """Data type of the drawn rows: that of the source."""
    purpose: str = "landmarks"
    """Draws for different purposes are independent of each other."""

    def _weights(self, block: Block) -> FloatArray | None:
        return block.weights


@dataclass(frozen=True)
class WeightedLandmarks(Draw):
    """Draw rows in proportion to κ(x, x)², times the weights of their block, in one pass.

    Rows are sampled by the diagonal of the kernel matrix (Drineas & Mahoney 2005), for kernels whose diagonal varies. The
    draw is the same as in `UniformLandmarks` with these weights; rows with κ(x, x) = 0 are never drawn.

    References
    ----------
    Drineas & Mahoney (2005), On the Nyström method for approximating a Gram matrix for improved kernel-based learning.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 4)) * np.linspace(0, 1, 1000)[:, None]
    >>> draw = sp.accumulators.WeightedLandmarks(5, sp.kernels.Polynomial(degree=3, coef0=0.0))
    >>> landmarks = draw.finalize(draw.update(draw.init(4), rows))
    >>> landmarks.rows.shape, bool(landmarks.index.min() > 500)
    ((5, 4), True)
    """

    n_landmarks: int
    """Number of rows to draw."""
    kernel: Kernel
    """The kernel κ."""
    seed: int = 0
    """Seed of the draw."""
    dtype: str = "float64"
    """Data type of the drawn rows: that of the source."""
    purpose: str = "landmarks"
    """Draws for different purposes are independent of each other."""

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of a uniform draw and of the kernel diagonal."""
        return super().scratch_bytes(n_features, n_rows, itemsize) + self.kernel.scratch_bytes(1024, n_features)

    def _weights(self, block: Block) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):
            return _times(np.square(self.kernel.diagonal(block.values)), block)


@dataclass(frozen=True, eq=False)
class ColumnNormLandmarks(Draw):
    """Draw rows in proportion to n / r · Σ_j κ(x, x_j)² over r given rows x_j, times the weights of their block.

    Rows are sampled by estimates of the squared column norms of the kernel matrix (Drineas, Kannan & Mahoney 2006). With
    all n rows as x_j the norms are exact, for n² kernel values. This is a second pass, after the pass that draws the x_j.
    Kernel values are computed in float64, so the draw does not depend on the division of the rows into blocks. The draw is
    the same as in `UniformLandmarks` with these weights. Cost: r kernel values per row.

    References
    ----------
    Drineas, Kannan & Mahoney (2006), Fast Monte Carlo algorithms for matrices II: computing a low-rank approximation to a matrix.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 4))
    >>> draw = sp.accumulators.ColumnNormLandmarks(3, sp.kernels.Linear(), reservoir=rows[:200], n_samples=1000)
    >>> draw.finalize(draw.update(draw.init(4), rows)).rows.shape
    (3, 4)
    """

    n_landmarks: int
    """Number of rows to draw."""
    kernel: Kernel
    """The kernel κ."""
    reservoir: Array
    """The rows x_j, drawn uniformly, ``(n_reservoir, n_features)``."""
    n_samples: int
    """Number n of rows of the source."""
    seed: int = 0
    """Seed of the draw."""
    dtype: str = "float64"
    """Data type of the drawn rows: that of the source."""
    purpose: str = "landmarks"
    """Draws for different purposes are independent of each other."""

    @cached_property
    def prepared(self) -> Prepared:
        """Return the kernel prepared for the reservoir."""
        return self.kernel.prepare(self.reservoir, np.float64)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of a uniform draw and a panel of kernel values."""
        n = len(self.reservoir)
        kernel_bytes = (
            8 * 1024 * n + self.kernel.prepared_bytes(n, n_features) + self.kernel.scratch_bytes(n, n_features)
        )
        return super().scratch_bytes(n_features, n_rows, itemsize) + kernel_bytes

    def _weights(self, block: Block) -> FloatArray:
        weights = np.empty(len(block))
        with np.errstate(over="ignore", invalid="ignore"):
            for panel in panels(len(block), len(self.reservoir)):
                values = self.prepared(block.values[panel])
                np.einsum("ij,ij->i", values, values, out=weights[panel])
            weights *= self.n_samples / max(1, len(self.reservoir))
            return _times(weights, block)


def _times(weights: FloatArray, block: Block) -> FloatArray:
    """Return `weights` times the weights of the rows of `block`; 0 for rows of weight 0, even if they contain NaN."""
    if block.weights is None:
        return weights
    weighted: FloatArray = np.where(block.weights > 0, weights * block.weights, 0.0)
    return weighted


_GROUP = 4  # rows of a group per landmark; larger groups cost less time per row and more memory
_MOST_LEVELS = 32


@storable
@dataclass(frozen=True)
class RowGroup:
    """The accumulated rows of one group, by position."""

    number: int
    """Number of the group; its first row is ``number * group_size``."""
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
    """Position of the node in its level; its first group is ``position * 2**level``."""
    index: IntArray
    """Row indices of the points, ascending, ``(n_points,)``."""
    weights: FloatArray
    """Weight that each point represents, ``(n_points,)``."""
    rows: Array
    """The points, ``(n_points, n_features)``."""


@storable
@dataclass(frozen=True)
class RPCholeskyState:
    """Incomplete groups, and the points of complete groups."""

    n_samples: int
    """Number of rows of positive weight."""
    groups: tuple[RowGroup, ...]
    """Incomplete groups, ordered by number."""
    points: tuple[Reduced, ...]
    """Points of the complete groups, without sibling nodes, ordered by first group."""
    n_features: int
    """Length of a row."""


@dataclass(frozen=True)
class RPCholeskyLandmarks(Accumulator[RPCholeskyState, Landmarks]):
    """Choose rows that span the leading eigenspace of a kernel matrix, for kernels whose diagonal varies.

    Rows are collected in groups of 4 m by their index within the source. A complete group is reduced to m points by
    randomly pivoted Cholesky (`random_pivots`), each with the weight N / m for the N rows of the group. The points of two
    sibling groups are pooled and reduced again, and so on along the binary tree over the groups; the plain algorithm
    takes m passes. Only the indices of the rows decide which rows are reduced together, and the random numbers belong to
    the node of the tree, so blocks in any order give the same points, bit for bit.

    Cost: about 1.5 m² flops and m kernel values per row. A repeated row index counts once.

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
    """Number m of points; the result has fewer if the kernel matrix has a smaller rank."""
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
        """Write the rows of `block` to `group` from position `first`; return the number of new rows of positive weight."""
        positions = np.arange(first, first + len(block))
        weights = np.ones(len(block)) if block.weights is None else block.weights
        counted = weights > 0
        rows = dense(block.values[counted]) if not counted.all() else dense(block.values)
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            refuse_not_finite(block.counted().values, block.start)
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


_FLOOR = 1e-12
"""Fraction of κ(x, x) below which a residual counts as rounding: x lies in the span of the pivots."""
_BLOCKS = 8, 128


def random_pivots(
    kernel: Kernel, rows: FloatArray, weights: FloatArray, n_pivots: int, random: np.random.Generator
) -> IntArray:
    """Return the indices of at most `n_pivots` rows drawn by randomly pivoted Cholesky, ascending.

    Rows are drawn one by one in proportion to weight times residual, where the residual of a row is its κ(x, x) after
    projection onto the rows drawn before (Chen, Epperly, Tropp & Webber 2023, algorithm 2.1). The rows are proposed in
    blocks, in proportion to the residuals at the start of the block, and each is accepted with probability residual at
    its turn / residual at the start, which gives exactly the same distribution with all large products in BLAS (Epperly,
    Tropp & Webber 2024, "Embrace rejection"). Cost: N m² + N m c flops for N rows, m pivots and a cost c per kernel value,
    and 8 N m bytes of scratch. Fewer pivots are returned if the kernel matrix has a smaller rank, to 1e-12 of its diagonal.

    Parameters
    ----------
    kernel : Kernel
        Positive semi-definite, or nearly.
    rows, weights : arrays, shapes (n_rows, n_features) and (n_rows,)
        Rows, and their positive weights.
        `NotFiniteError` if κ(x, x) of a row is not finite.
    """
    n_rows, n_pivots = len(rows), min(n_pivots, len(rows))
    diagonal = kernel.diagonal(rows)
    if not np.isfinite(diagonal).all():
        raise NotFiniteError(
            "κ(x, x) is not finite for some rows: rescale the features, or take a smaller gamma or degree"
        )
    residual = np.maximum(diagonal, 0.0)
    floor = _FLOOR * residual
    prepared = kernel.prepare(rows, np.float64)
    factor = borrow("cholesky factor", (n_pivots, n_rows), np.float64)
    pivots = np.empty(n_pivots, dtype=np.int64)
    count, size = 0, max(_BLOCKS[0], min(_BLOCKS[1], n_pivots // 4))
    while count < n_pivots:
        cumulative = np.cumsum(residual * weights)
        if not cumulative[-1] > 0:
            break
        proposed = np.searchsorted(cumulative, random.random(size) * cumulative[-1], side="right")
        proposed = np.minimum(proposed, np.flatnonzero(residual)[-1])
        columns = factor[:count, proposed]
        within = prepared(rows[proposed], borrow("cholesky values", (size, n_rows), np.float64))
        small = within[:, proposed] - columns.T @ columns
        accepted = _accepted(small, residual[proposed], floor[proposed], random.random(size))[: n_pivots - count]
        chosen = proposed[accepted]
        if not len(chosen):
            # Rounding, or an indefinite kernel: the rows of the block have no residual.
            residual[proposed] = 0
            continue
        new = factor[count : count + len(chosen)]
        np.subtract(within[accepted], columns[:, accepted].T @ factor[:count], out=new)
        new[...] = _inverse_root(small[np.ix_(accepted, accepted)]) @ new
        residual -= np.einsum("ij,ij->j", new, new)
        residual[residual <= floor] = 0
        residual[chosen] = 0
        pivots[count : count + len(chosen)] = chosen
        count += len(chosen)
    return np.sort(pivots[:count])


def _accepted(small: FloatArray, before: FloatArray, floor: FloatArray, uniform: FloatArray) -> list[int]:
    """Return the positions of the accepted rows of a block; `small` is the residual matrix of the block."""
    schur, accepted = small.copy(), []
    for i in range(len(schur)):
        residual = schur[i, i]
        if residual > floor[i] and uniform[i] * before[i] < residual:
            accepted.append(i)
            column = schur[i + 1 :, i] / np.sqrt(residual)
            schur[i + 1 :, i + 1 :] -= column[:, None] * column
    return accepted


def _inverse_root(matrix: FloatArray) -> FloatArray:
    """Return L⁻¹ for ``matrix`` = L Lᵀ, first scaled to a unit diagonal, because kernel values may differ by powers of 10."""
    scale = 1 / np.sqrt(matrix.diagonal())
    inverse: FloatArray = np.linalg.inv(np.linalg.cholesky(matrix * scale[:, None] * scale))
    inverse *= scale
    return inverse
