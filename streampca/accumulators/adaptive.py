"""Incremental SVD: the leading axes in one pass and bounded memory, from a small basis updated by batches of rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from streampca.accumulators.base import Accumulator, StateAboutOrigin
from streampca.accumulators.centring import (
    Centred,
    centre,
    refuse_not_finite,
    step_between,
    weigh,
    weights_within_float32,
    work_dtype,
)
from streampca.block import Block, as_block
from streampca.errors import MergeError, NotFiniteError, ParameterError
from streampca.linalg.tiles import spread
from streampca.linalg.truncation import Stack, n_images, tile_bytes, tiles, truncate, truncation_bytes
from streampca.random import generator
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray

_SLAB_ROWS = 256
_BAND = 2048  # features of one centring task
# Largest magnitudes between which float32 holds the products of three rows.
_SAFE_SIZES = (1e-10, 1e10)


@storable
@dataclass(frozen=True)
class AdaptiveState(StateAboutOrigin):
    """State of an incremental SVD: the basis of all complete batches, and the rows of the batch that is being filled."""

    n_in_basis: int
    """Number of rows of positive weight behind `basis`, without the `n_pending` rows of the current batch."""
    basis_weight: float
    """Sum of their weights; their number if no weights are given."""
    origin: FloatArray
    """A number near the mean of each feature, shape ``(n_features,)``."""
    offset: FloatArray
    """Mean of each feature in these rows minus `origin`, shape ``(n_features,)``."""
    basis: FloatArray
    """S = ΣVᵀ: orthogonal rows, longest first, with SᵀS ≈ Σ (x − mean)(x − mean)ᵀ; ``(min(rank, n_features), n_features)``."""
    discarded: float
    """Bound of ‖Σ (x − mean)(x − mean)ᵀ − SᵀS‖₂: the first discarded squared singular value, summed over the updates.

    An estimate, not a proven bound, if updates were solved by iteration (see `truncation`).
    """
    pending: Array
    """Buffer for the rows of the current batch, ``(rows_per_update, n_features)``; empty before the first row."""
    pending_weights: FloatArray
    """Buffer for their weights, ``(rows_per_update,)``; empty if no weights are given."""
    n_pending: int
    """Number of rows in `pending`."""


@dataclass(frozen=True)
class IncrementalBasis:
    """Low-rank approximation of the scatter matrix; features are multiplied by the metric, if one was given."""

    n_samples: int
    """Number of rows of positive weight."""
    weight: float
    """Sum of their weights."""
    mean: FloatArray
    """Mean of each feature in its original units, ``(n_features,)``."""
    values: FloatArray
    """Eigenvalues of SᵀS, largest first, not divided by the weight; ``(r,)``."""
    vectors: FloatArray
    """Orthonormal eigenvectors in columns, ``(n_features, r)``."""
    discarded: float
    """Bound of the spectral norm of the scatter minus vectors · values · vectorsᵀ, as in `AdaptiveState`."""


@dataclass(frozen=True)
class IncrementalSVD(Accumulator[AdaptiveState, IncrementalBasis]):
    """Incremental singular value decomposition of the centred rows, truncated to `rank` after every batch.

    For a basis S of n₁ rows and a centred batch X of n₂ rows, whose means differ by δ,
    ``M = [S; X; √(n₁ n₂ / n) δᵀ]`` has MᵀM = SᵀS + XᵀX + (n₁ n₂ / n) δδᵀ, and the new S is the leading part ΣVᵀ of its
    singular value decomposition (Levy & Lindenbaum 2000; the row of the mean: Ross, Lim, Lin & Yang 2008, section 3.1).
    Two states merge by ``M = [S₁; S₂; √(n₁ n₂ / n) δᵀ]``. So SᵀS never exceeds the scatter matrix, and the difference is
    at most `discarded`. If more than `rank` directions matter, the result depends on the order of the rows and of
    merging; batches of rows sampled from the whole data set give the smallest error. Cost: about 9 n d rank flops (see
    `truncation`), 8 d rank bytes and the batch.

    References
    ----------
    Levy & Lindenbaum (2000), Sequential Karhunen-Loeve basis extraction and its application to images; Ross, Lim, Lin & Yang
    (2008), Incremental learning for robust visual tracking; Ghashami, Liberty, Phillips & Woodruff (2016), Frequent Directions:
    simple and deterministic matrix sketching, for `shrink`.

    Examples
    --------
    For rows of rank 2, a basis of two rows is exact up to rounding:

    >>> import numpy as np
    >>> import streampca as sp
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(1000, 2)) @ rng.normal(size=(2, 4))
    >>> svd = sp.accumulators.IncrementalSVD(rank=2, rows_per_update=100, dtype="float64")
    >>> basis = svd.finalize(svd.update(svd.init(4), rows))
    >>> singular = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    >>> bool(np.allclose(basis.values, singular[:2] ** 2))
    True
    """

    rank: int
    """Number of rows of the basis."""
    rows_per_update: int
    """Number of rows in a batch, which several blocks may fill."""
    center: bool = True
    """Subtract the mean; otherwise use second moments about zero."""
    metric: FloatArray | None = field(default=None, compare=False)
    """Positive factor of each centred feature, ``(n_features,)``; states can merge only if they share it."""
    shrink: bool = False
    """Whether to subtract the first discarded squared singular value from all others (Frequent Directions)."""
    seed: int = 0
    """Seed of the random signs in the starting vectors of an iteration."""
    dtype: str = "float32"
    """Lowest precision of products; rows with a longer `work_dtype` are multiplied in that type."""
    n_threads: int = field(default=1, compare=False)
    """Number of threads that share the products of one update; it does not affect the bits."""

    def init(self, n_features: int) -> AdaptiveState:
        """Return the empty state, the identity of `merge`; `ParameterError` if `metric` does not match the features."""
        if self.metric is not None and not (self.metric.shape == (n_features,) and (self.metric > 0).all()):
            raise ParameterError(
                f"metric of shape {self.metric.shape}: expected {n_features} positive factors, one for each feature"
            )
        basis, pending = np.zeros((min(self.rank, n_features), n_features)), np.empty((0, n_features))
        return AdaptiveState(0, 0.0, np.zeros(n_features), np.zeros(n_features), basis, 0.0, pending, np.empty(0), 0)

    def update(self, state: AdaptiveState, block: Block | Array) -> AdaptiveState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)``, added in its memory.

        A row of weight w counts as w rows (frequency weights): weights need not be integers.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN or infinity, or overflow when squared.
        """
        block = as_block(block).counted()
        dtype, start = np.promote_types(self.dtype, work_dtype(block.values.dtype)), 0
        while start < len(block):
            state = self._with_buffer(state, dtype)
            first = state.n_pending
            chunk = block.slice(start, start + len(state.pending) - first)
            rows = state.pending[first : first + len(chunk)]
            largest = _copy_rows(chunk.values, rows, self.n_threads)
            if not np.isfinite(largest):
                refuse_not_finite(chunk.values, chunk.start)
            if rows.dtype == np.float32 and not self._within_float32(largest, chunk.weights):
                dtype = np.dtype(np.float64)
                continue
            weights = _joined_weights(state, chunk)
            state = replace(state, pending_weights=weights, n_pending=first + len(chunk))
            start += len(chunk)
            if state.n_pending == len(state.pending):
                state = self._add_pending(state, state.pending)
        return state

    def _with_buffer(self, state: AdaptiveState, dtype: DType) -> AdaptiveState:
        """Return `state` with a buffer for rows of `dtype`; a float32 buffer is reused for half as many float64 rows."""
        pending, d = state.pending, len(state.origin)
        if len(pending) == 0:
            return replace(state, pending=np.empty((self.rows_per_update, d), dtype=dtype))
        if pending.dtype.itemsize >= dtype.itemsize:
            return state
        state = self._add_pending(state, pending)
        wide = pending.reshape(-1)[: len(pending) // 2 * 2 * d].view(dtype).reshape(-1, d)
        return replace(state, pending=wide if len(wide) else np.empty((1, d), dtype=dtype))

    def _within_float32(self, largest: float, weights: FloatArray | None) -> bool:
        """Return whether products of three rows with entries up to `largest` lose no digits in float32."""
        low, high = _SAFE_SIZES
        size = largest if self.metric is None else largest * max(1.0, float(self.metric.max()))
        return (size == 0 or low <= size <= high) and (weights is None or weights_within_float32(weights))

    def flush(self, state: AdaptiveState) -> AdaptiveState:
        """Return `state`, in its memory, with the pending rows added to the basis and the buffer released."""
        state = self._add_pending(state, state.pending)
        return replace(state, pending=np.empty((0, len(state.origin))))

    def _add_pending(self, state: AdaptiveState, out: Array) -> AdaptiveState:
        """Return `state`, in the memory of its basis, with the pending rows added to the basis; centred rows go to `out`."""
        n_rows = state.n_pending
        if n_rows == 0:
            return state
        weights = state.pending_weights[:n_rows] if len(state.pending_weights) else None
        total = float(n_rows) if weights is None else float(weights.sum())
        origin, mean, remainder = self._centred(state.pending[:n_rows], out[:n_rows], weights)
        if state.basis_weight == 0:
            state = replace(state, origin=origin, offset=mean)
        step, weight = step_between(state.origin, state.offset, origin, mean), state.basis_weight + total
        stack = Stack(
            state.basis,
            self._step_row(step, state.basis_weight, total),
            out[:n_rows],
            np.ones(n_rows) if weights is None else np.sqrt(weights),
            self._in_metric(remainder) if self.center else None,
            self.n_threads,
        )
        random = generator(self.seed, "adaptive signs", state.n_in_basis)
        dropped = truncate(stack, exact=False, shrink=self.shrink, random=random)
        return AdaptiveState(
            state.n_in_basis + n_rows,
            weight,
            state.origin,
            state.offset + step * (total / weight),
            state.basis,
            state.discarded + dropped,
            state.pending,
            np.empty(0),
            0,
        )

    def _step_row(self, step: FloatArray, weight: float, other: float) -> FloatArray:
        """Return the row √(w₁ w₂ / w) δᵀ that is added when two sets of rows merge; 0 for moments about zero."""
        factor = np.sqrt(weight * (other / (weight + other))) if self.center else 0.0
        return self._in_metric(step) * factor

    def _in_metric(self, row: FloatArray) -> FloatArray:
        return row if self.metric is None else row * self.metric

    def _centred(
        self, rows: Array, out: Array, weights: FloatArray | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Write the centred rows, times the metric and the square roots of their weights, to `out`.

        Return the origin (a number near the mean), the mean minus the origin, and the mean that remains in the written
        rows, without the metric.
        """
        d = rows.shape[1]
        origin, mean, remainder, finite = np.empty(d), np.empty(d), np.empty(d), np.empty(d, dtype=bool)

        def band(features: slice) -> None:
            columns = out[:, features]
            centred = centre(rows[:, features], columns) if self.center else _about_zero(rows[:, features], columns)
            origin[features], finite[features] = centred.origin, centred.finite
            mean[features] = remainder[features] = centred.offset
            if weights is not None:
                mean[features], remainder[features] = weigh(None, columns, weights, centred.origin, move=self.center)
            if self.metric is not None:
                for start in range(0, len(columns), _SLAB_ROWS):
                    columns[start : start + _SLAB_ROWS] *= self.metric[features].astype(columns.dtype)

        spread(band, tiles(d, _BAND, 1), self.n_threads)
        if not finite.all():
            raise NotFiniteError(
                f"column {int(np.flatnonzero(~finite)[0])} overflows {out.dtype} when squared, within the last {len(rows)} "
                "rows read: expected magnitudes below 1e150; rescale this feature first"
            )
        return origin, mean, remainder

    def absorb(self, state: AdaptiveState, other: AdaptiveState) -> AdaptiveState:
        """Return the merged state, in the memory of `state`; `MergeError` if the shapes differ.

        The bases are merged; the pending rows of `other` are added to those of `state`.
        """
        if state.basis.shape != other.basis.shape:
            raise MergeError(
                f"states of {len(state.origin)} and {len(other.origin)} features, with {len(state.basis)} and "
                f"{len(other.basis)} rows in the basis, cannot be merged: expected the same features and rank"
            )
        if other.basis_weight > 0:
            state = self._absorb_basis(state, other)
        if other.n_pending:
            weights = other.pending_weights[: other.n_pending] if len(other.pending_weights) else None
            state = self.update(state, Block(other.pending[: other.n_pending], 0, weights))
        return state

    def _absorb_basis(self, state: AdaptiveState, other: AdaptiveState) -> AdaptiveState:
        if state.basis_weight == 0:
            state.basis[...] = other.basis
            buffer = (state.pending, state.pending_weights, state.n_pending)
            return AdaptiveState(
                other.n_in_basis, other.basis_weight, other.origin, other.offset, state.basis, other.discarded, *buffer
            )
        step, weight = (
            step_between(state.origin, state.offset, other.origin, other.offset),
            state.basis_weight + other.basis_weight,
        )
        row = self._step_row(step, state.basis_weight, other.basis_weight)
        stack = Stack(state.basis, row, other.basis, np.zeros(len(other.basis)), None, self.n_threads)
        random = generator(self.seed, "adaptive signs", state.n_in_basis + other.n_in_basis)
        dropped = truncate(stack, exact=True, shrink=self.shrink, random=random)
        return replace(
            state,
            n_in_basis=state.n_in_basis + other.n_in_basis,
            basis_weight=weight,
            offset=state.offset + step * (other.basis_weight / weight),
            discarded=state.discarded + other.discarded + dropped,
        )

    def finalize(self, state: AdaptiveState) -> IncrementalBasis:
        """Return the eigenpairs of all rows, including pending ones, without changing `state`."""
        out = borrow("adaptive batch", (state.n_pending, len(state.origin)), state.pending.dtype)
        total = self._add_pending(replace(state, basis=state.basis.copy()), out)
        values, vectors = _eigenpairs(total.basis.T)
        return IncrementalBasis(total.n_in_basis, total.basis_weight, total.mean, values, vectors, total.discarded)

    def state_bytes(self, n_features: int, itemsize: int = 8) -> int:
        """Return the size of a state in bytes; `itemsize` applies to pending rows (see `work_dtype`)."""
        rank = min(self.rank, n_features)
        return 8 * ((rank + 2) * n_features + self.rows_per_update) + itemsize * self.rows_per_update * n_features

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of the truncation, which does not depend on `n_rows`.

        `itemsize` is the size of the floating type of the products.
        """
        rank, batches = min(self.rank, n_features), [(self.rows_per_update, itemsize)]
        if itemsize == 4:
            batches.append((max(1, self.rows_per_update // 2), 8))
        sizes = [
            truncation_bytes(rank, rows >> i, n_features, size, exact=self.shrink)
            for rows, size in batches
            for i in range(rows.bit_length())
        ]
        truncation: int = sum(max(purpose) for purpose in zip(*sizes, strict=True))
        return truncation + 16 * 8 * n_features + self.n_threads * tile_bytes(n_images(rank), n_features, itemsize)

    def merge_bytes(self, n_features: int) -> int:
        """Return the scratch memory in bytes of merging two states without pending rows."""
        rank = min(self.rank, n_features)
        truncation = sum(truncation_bytes(rank, rank, n_features, 8, exact=True))
        return truncation + 16 * 8 * n_features + self.n_threads * tile_bytes(rank, n_features, 8)

    def finalize_bytes(self, n_features: int, itemsize: int = 8) -> int:
        """Return the memory in bytes of `finalize`, including its result but not the state."""
        rank = min(self.rank, n_features)
        batch = self.rows_per_update * n_features * itemsize
        basis = 8 * rank * (2 * n_features + 6 * rank)
        return basis + batch + self.scratch_bytes(n_features, self.rows_per_update, itemsize)


def rescaled(adapted: IncrementalBasis, factors: FloatArray) -> IncrementalBasis:
    """Return the approximation for features multiplied by nonnegative `factors`, ``(n_features,)``; `mean` is unchanged.

    Factors 1 / (metric · standard deviation) turn an approximation in the metric into one of the correlation matrix:
    S D, with rows made orthogonal again. The bound grows by the square of the largest factor.

    Parameters
    ----------
    adapted : IncrementalBasis
        The approximation.
    factors : array, shape (n_features,)
        Factor of each feature, at least 0.

    Returns
    -------
    IncrementalBasis
    """
    tall = np.asfortranarray(adapted.vectors * np.sqrt(adapted.values))
    tall *= factors[:, None]
    values, vectors = _eigenpairs(tall)
    return replace(
        adapted, values=values, vectors=vectors, discarded=adapted.discarded * float(factors.max(initial=0.0)) ** 2
    )


def _eigenpairs(tall: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the nonzero eigenvalues of ``tall @ tall.T``, and its eigenvectors in columns; overwrites `tall`."""
    from scipy.linalg import qr

    length = max(tall.shape)
    orthonormal, triangle = qr(tall, overwrite_a=True, mode="economic", check_finite=False)
    left, sizes, _ = np.linalg.svd(triangle)
    rank = int(np.count_nonzero(sizes > length * np.finfo(np.float64).eps * sizes.max(initial=0.0)))
    vectors: FloatArray = orthonormal @ left[:, :rank]
    return sizes[:rank] ** 2, vectors


def _copy_rows(rows: Array, out: Array, n_threads: int) -> float:
    """Copy `rows` to `out` and return the largest magnitude, or NaN if `rows` holds NaN; return 0 for integers."""
    slabs = [slice(start, start + _SLAB_ROWS) for start in range(0, len(rows), _SLAB_ROWS)]
    largest = np.zeros(len(slabs))

    def slab(i: int) -> None:
        target = out[slabs[i]]
        target[...] = rows[slabs[i]]
        if rows.dtype.kind == "f" and target.size:
            largest[i] = np.maximum(target.max(), -target.min())

    spread(slab, range(len(slabs)), n_threads)
    return float(largest.max(initial=0.0))


def _joined_weights(state: AdaptiveState, block: Block) -> FloatArray:
    """Return the buffer of pending weights with the weights of `block` added; empty if all are 1."""
    weights, first = state.pending_weights, state.n_pending
    if block.weights is None and not len(weights):
        return weights
    if not len(weights):
        weights = np.ones(len(state.pending))
    weights[first : first + len(block)] = 1.0 if block.weights is None else block.weights
    return weights


def _about_zero(rows: Array, out: Array) -> Centred:
    """Write `rows` to `out` unchanged and return their mean about the origin 0."""
    total, squares = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(rows), _SLAB_ROWS):
            slab = out[start : start + _SLAB_ROWS]
            slab[...] = rows[start : start + _SLAB_ROWS]
            total += slab.sum(axis=0, dtype=np.float64)
            squares += np.einsum("ij,ij->j", slab, slab)
    return Centred(np.zeros(rows.shape[1]), total / len(rows), squares)
