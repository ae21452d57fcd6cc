"""Landmarks drawn in one pass, by random numbers that are hashes of the row indices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from streampca.accumulators.base import Accumulator
from streampca.accumulators.centring import refuse_not_finite
from streampca.accumulators.sparse import refuse_stored
from streampca.block import Block, as_block
from streampca.errors import DataError, NotFiniteError, ParameterError
from streampca.kernels.base import Kernel, Prepared
from streampca.kernels.rows import dense, panels
from streampca.random import hashes
from streampca.storage.state_file import storable
from streampca.typing import Array, FloatArray, IntArray, override

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
    rows, and not on the blocks, their order, or the order of merging. Where all weights are 1 this is the bottom-k sample
    of the hashes; otherwise it is successive sampling (Efraimidis & Spirakis 2006, algorithm A, whose keys u^(1/w) have
    the opposite order of the same numbers). Rows of weight 0 are never drawn. A repeated row index counts once.
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
            If a row that is drawn holds NaN or infinity, or a weight that depends on the rows is not finite.
        """
        block = as_block(block)
        for start in range(0, len(block), _PANEL_ROWS):
            state = self._draw(state, block.slice(start, min(start + _PANEL_ROWS, len(block))))
        return state

    def absorb(self, state: LandmarksState, other: LandmarksState) -> LandmarksState:
        """Return the draw from the rows of both; may reuse the memory of `state`."""
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
                require_finite_rows(block)
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
        require_finite_rows(block)
        row = block.start + int(np.flatnonzero(~np.isfinite(weights))[0])
        raise NotFiniteError(f"the weight of row {row} is not finite: rescale the features, or choose uniform sampling")


@dataclass(frozen=True)
class UniformLandmarks(Draw):
    """Draw rows uniformly, or in proportion to the weights of their block, in one pass.

    Row i of the source has the number u in (0, 1), a hash of (`seed`, `purpose`, i), and the key −log(1 − u) / w for its weight w. The
    rows with the smallest keys are drawn, without replacement (Efraimidis & Spirakis 2006, algorithm A). The draw depends only
    on the seed and the rows, not on the blocks or the order of merging. A repeated row index counts once, so the blocks
    of a source must have their positions (`streampca.block.Block`).
    Cost: one hash for each row; the drawn rows in memory.

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

    Sampling by the diagonal of the kernel matrix (Drineas & Mahoney 2005), for kernels whose diagonal varies. The draw is that
    of `UniformLandmarks` with these weights; rows with κ(x, x) = 0 are never drawn.

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
        """Return the scratch memory in bytes: that of a uniform draw, and that of the kernel diagonal."""
        return super().scratch_bytes(n_features, n_rows, itemsize) + self.kernel.scratch_bytes(1024, n_features)

    def _weights(self, block: Block) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):
            return _times(np.square(self.kernel.diagonal(block.values)), block)


@dataclass(frozen=True, eq=False)
class ColumnNormLandmarks(Draw):
    """Draw rows in proportion to n / r · Σ_j κ(x, x_j)² over r given rows x_j, times the weights of their block.

    Sampling by estimates of the squared column norms of the kernel matrix (Drineas, Kannan & Mahoney 2006). With all n
    rows as x_j the norms are exact, for n² kernel values. This is a second pass, after the pass that draws the x_j.
    Kernel values are computed in float64, so that the draw does not depend on the division of the rows into blocks. The
    draw is that of `UniformLandmarks` with these weights. Cost: r kernel values for each row.

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
        """Return the scratch memory in bytes: that of a uniform draw, and a panel of kernel values."""
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
    """Return `weights` times those of the rows of `block`; 0 for rows of weight 0, even with NaN in them."""
    if block.weights is None:
        return weights
    weighted: FloatArray = np.where(block.weights > 0, weights * block.weights, 0.0)
    return weighted


def require_finite_rows(block: Block) -> None:
    """Raise `NotFiniteError` if rows of `block` hold NaN or infinity."""
    if issparse(block.values):
        refuse_stored(block.values, block.start)
    else:
        refuse_not_finite(block.values, block.start)
