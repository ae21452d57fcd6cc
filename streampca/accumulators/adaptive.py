"""Leading axes in one pass and bounded memory: a basis of few rows that every batch of rows is folded into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import (
    Centred,
    FloatArray,
    centre,
    refuse_not_finite,
    step_between,
    weigh,
    work_dtype,
)
from streampca.accumulators.covariance import weights_within_float32
from streampca.accumulators.stacked import Stack, tile_bytes, tiles
from streampca.accumulators.truncation import n_images, truncate, truncation_bytes
from streampca.block import Block, as_block
from streampca.errors import MergeError, NotFiniteError, ParameterError
from streampca.linalg.tiles import spread
from streampca.random import generator
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow

_SLAB_ROWS = 256
_BAND = 2048  # features that are centred at once
# Largest magnitudes between which float32 holds the products of three rows.
_SAFE_SIZES = (1e-10, 1e10)


@storable
@dataclass(frozen=True)
class AdaptiveState:
    """What has been seen of the rows: those behind the basis, and those that wait for their batch to fill."""

    n_samples: int
    """Number of rows of positive weight behind `basis`; `n_pending` more wait."""
    weight: float
    """Sum of their weights; their number where none are given."""
    origin: FloatArray
    """A number near the mean of each feature, shape ``(n_features,)``."""
    offset: FloatArray
    """Mean of each feature of these rows minus `origin`, shape ``(n_features,)``."""
    basis: FloatArray
    """S = ΣVᵀ: orthogonal rows, longest first, with SᵀS ≈ Σ (x − mean)(x − mean)ᵀ; ``(min(rank, n_features), n_features)``."""
    discarded: float
    """Bound of ‖Σ (x − mean)(x − mean)ᵀ − SᵀS‖₂: the first squared singular value dropped, summed over the updates.

    An estimate, not proven, where updates were solved by iteration (see `truncation`).
    """
    pending: NDArray[Any]
    """Rows that wait, as they came, and room for more: ``(rows_per_update, n_features)``; no rows before the first."""
    pending_weights: FloatArray
    """Their weights, and room for more; empty where none are given."""
    n_pending: int
    """Number of rows that wait."""

    @property
    def mean(self) -> FloatArray:
        """Return the mean of each feature of the rows behind the basis, shape ``(n_features,)``."""
        return self.origin + self.offset


@dataclass(frozen=True)
class IncrementalBasis:
    """The best low-rank approximation that was kept of the scatter matrix; in the metric, where one was given."""

    n_samples: int
    """Number of rows of positive weight."""
    weight: float
    """Sum of their weights."""
    mean: FloatArray
    """Mean of each feature in its own units, ``(n_features,)``."""
    values: FloatArray
    """Eigenvalues of SᵀS, largest first, not divided by the weight; ``(r,)``."""
    vectors: FloatArray
    """Orthonormal eigenvectors in columns, ``(n_features, r)``."""
    discarded: float
    """Bound of the spectral norm of the scatter minus vectors · values · vectorsᵀ, as in `AdaptiveState`."""


@dataclass(frozen=True)
class IncrementalSVD:
    """Incremental singular value decomposition of the centred rows, truncated to `rank` after every batch.

    With a basis S of n₁ rows and a batch X of n₂ rows, centred by its own mean, whose mean is δ away,
    ``M = [S; X; √(n₁ n₂ / n) δᵀ]`` has MᵀM = SᵀS + XᵀX + (n₁ n₂ / n) δδᵀ, and the new S is the leading part ΣVᵀ of its
    singular value decomposition (Levy & Lindenbaum 2000; the row of the mean: Ross, Lim, Lin & Yang 2008, section 3.1).
    Two states merge by ``M = [S₁; S₂; √(n₁ n₂ / n) δᵀ]``. So SᵀS never exceeds the scatter matrix, and falls short of
    it by at most `discarded`. Where more than `rank` directions matter, the result depends on the order of the rows
    and of merging: batches of rows from all over the data lose least. Cost: about 9 n d rank flops (see `truncation`),
    8 d rank bytes and the batch.
    """

    rank: int
    """Rows of the basis."""
    rows_per_update: int
    """Rows that are folded in at once; several blocks fill them."""
    center: bool = True
    """Subtract the mean; if not, second moments about zero are taken."""
    metric: NDArray[np.float64] | None = field(default=None, compare=False)
    """Positive factors that the centred features are multiplied by, ``(n_features,)``; the same for states that merge."""
    shrink: bool = False
    """Frequent Directions: take what is dropped from every squared singular value that is kept."""
    seed: int = 0
    """Of the random signs that start an iteration."""
    dtype: str = "float32"
    """Shortest type in which products are taken; rows of a longer `work_dtype` keep theirs."""
    n_threads: int = field(default=1, compare=False)
    """Threads that share the products of one update; changes the time, never the bits."""

    def init(self, n_features: int) -> AdaptiveState:
        """Return the state of no rows, the identity of `merge`; `ParameterError` if `metric` is not for these features."""
        if self.metric is not None and not (self.metric.shape == (n_features,) and (self.metric > 0).all()):
            raise ParameterError(
                f"metric of shape {self.metric.shape}: expected {n_features} positive factors, one for each feature"
            )
        basis, pending = np.zeros((min(self.rank, n_features), n_features)), np.empty((0, n_features))
        return AdaptiveState(0, 0.0, np.zeros(n_features), np.zeros(n_features), basis, 0.0, pending, np.empty(0), 0)

    def update(self, state: AdaptiveState, block: Block | NDArray[Any]) -> AdaptiveState:
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
            state = self._with_room(state, dtype)
            first = state.n_pending
            part = block.part(start, start + len(state.pending) - first)
            rows = state.pending[first : first + len(part)]
            largest = _copied(part.values, rows, self.n_threads)
            if not np.isfinite(largest):
                refuse_not_finite(part.values, part.start)
            if rows.dtype == np.float32 and not self._within_float32(largest, part.weights):
                dtype = np.dtype(np.float64)
                continue
            weights = _joined_weights(state, part)
            state = replace(state, pending_weights=weights, n_pending=first + len(part))
            start += len(part)
            if state.n_pending == len(state.pending):
                state = self._fold(state, state.pending)
        return state

    def _with_room(self, state: AdaptiveState, dtype: np.dtype[Any]) -> AdaptiveState:
        """Return `state` with room for a row of `dtype`; fewer rows of float64 go where rows of float32 waited before."""
        held, d = state.pending, len(state.origin)
        if len(held) == 0:
            return replace(state, pending=np.empty((self.rows_per_update, d), dtype=dtype))
        if held.dtype.itemsize >= dtype.itemsize:
            return state
        state = self._fold(state, held)
        wide = held.reshape(-1)[: len(held) // 2 * 2 * d].view(dtype).reshape(-1, d)
        return replace(state, pending=wide if len(wide) else np.empty((1, d), dtype=dtype))

    def _within_float32(self, largest: float, weights: FloatArray | None) -> bool:
        """Tell whether products of three rows, whose entries reach `largest`, keep their digits in float32."""
        low, high = _SAFE_SIZES
        size = largest if self.metric is None else largest * max(1.0, float(self.metric.max()))
        return (size == 0 or low <= size <= high) and (weights is None or weights_within_float32(weights))

    def flush(self, state: AdaptiveState) -> AdaptiveState:
        """Return `state` in its memory with the rows that wait folded in, and no room for more: as small as it gets."""
        state = self._fold(state, state.pending)
        return replace(state, pending=np.empty((0, len(state.origin))))

    def _fold(self, state: AdaptiveState, out: NDArray[Any]) -> AdaptiveState:
        """Return `state`, in the memory of its basis, with the rows that wait folded in; they are centred into `out`."""
        n_rows = state.n_pending
        if n_rows == 0:
            return state
        weights = state.pending_weights[:n_rows] if len(state.pending_weights) else None
        total = float(n_rows) if weights is None else float(weights.sum())
        origin, mean, rest = self._centred(state.pending[:n_rows], out[:n_rows], weights)
        if state.weight == 0:
            state = replace(state, origin=origin, offset=mean)
        step, weight = step_between(state.origin, state.offset, origin, mean), state.weight + total
        stack = Stack(
            state.basis,
            self._row_of_step(step, state.weight, total),
            out[:n_rows],
            np.ones(n_rows) if weights is None else np.sqrt(weights),
            self._measured(rest) if self.center else None,
            self.n_threads,
        )
        random = generator(self.seed, "adaptive signs", state.n_samples)
        dropped = truncate(stack, exact=False, shrink=self.shrink, random=random)
        return AdaptiveState(
            state.n_samples + n_rows,
            weight,
            state.origin,
            state.offset + step * (total / weight),
            state.basis,
            state.discarded + dropped,
            state.pending,
            np.empty(0),
            0,
        )

    def _row_of_step(self, step: FloatArray, weight: float, other: float) -> FloatArray:
        """Return the row √(w₁ w₂ / w) δᵀ that two sets of rows need beside their own; 0 about zero."""
        factor = np.sqrt(weight * (other / (weight + other))) if self.center else 0.0
        return self._measured(step) * factor

    def _measured(self, row: FloatArray) -> FloatArray:
        return row if self.metric is None else row * self.metric

    def _centred(
        self, rows: NDArray[Any], out: NDArray[Any], weights: FloatArray | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Write the centred rows in the metric, times the roots of their weights, to `out`.

        Return a number near the mean, the mean about it, and the mean of what was written but for the metric.
        """
        d = rows.shape[1]
        origin, mean, rest, finite = np.empty(d), np.empty(d), np.empty(d), np.empty(d, dtype=bool)

        def band(part: slice) -> None:
            own = out[:, part]
            seen = centre(rows[:, part], own) if self.center else _about_zero(rows[:, part], own)
            origin[part], finite[part] = seen.origin, seen.finite
            mean[part] = rest[part] = seen.rest
            if weights is not None:
                mean[part], rest[part] = weigh(own, weights, seen.origin, move=self.center)
            if self.metric is not None:
                for start in range(0, len(own), _SLAB_ROWS):
                    own[start : start + _SLAB_ROWS] *= self.metric[part].astype(own.dtype)

        spread(band, tiles(d, _BAND, 1), self.n_threads)
        if not finite.all():
            raise NotFiniteError(
                f"column {int(np.flatnonzero(~finite)[0])} overflows {out.dtype} when squared, within the last {len(rows)} "
                "rows read: expected magnitudes below 1e150; rescale this feature first"
            )
        return origin, mean, rest

    def merge(self, states: Sequence[AdaptiveState]) -> AdaptiveState:
        """Return the state of all rows behind `states`, merged from left to right; none of them is changed."""
        total = self.init(len(states[0].origin))
        for state in states:
            total = self.absorb(total, state)
        return total

    def absorb(self, state: AdaptiveState, other: AdaptiveState) -> AdaptiveState:
        """Return the state of the rows behind both, in the memory of `state`; `MergeError` for another shape.

        The bases are merged; rows that wait in `other` are added to those that wait in `state`.
        """
        if state.basis.shape != other.basis.shape:
            raise MergeError(
                f"states of {len(state.origin)} and {len(other.origin)} features, with {len(state.basis)} and "
                f"{len(other.basis)} rows in the basis, cannot be merged: expected the same features and rank"
            )
        if other.weight > 0:
            state = self._absorb_basis(state, other)
        if other.n_pending:
            weights = other.pending_weights[: other.n_pending] if len(other.pending_weights) else None
            state = self.update(state, Block(other.pending[: other.n_pending], 0, weights))
        return state

    def _absorb_basis(self, state: AdaptiveState, other: AdaptiveState) -> AdaptiveState:
        if state.weight == 0:
            state.basis[...] = other.basis
            kept = (state.pending, state.pending_weights, state.n_pending)
            return AdaptiveState(
                other.n_samples, other.weight, other.origin, other.offset, state.basis, other.discarded, *kept
            )
        step, weight = step_between(state.origin, state.offset, other.origin, other.offset), state.weight + other.weight
        row = self._row_of_step(step, state.weight, other.weight)
        stack = Stack(state.basis, row, other.basis, np.zeros(len(other.basis)), None, self.n_threads)
        random = generator(self.seed, "adaptive signs", state.n_samples + other.n_samples)
        dropped = truncate(stack, exact=True, shrink=self.shrink, random=random)
        return replace(
            state,
            n_samples=state.n_samples + other.n_samples,
            weight=weight,
            offset=state.offset + step * (other.weight / weight),
            discarded=state.discarded + other.discarded + dropped,
        )

    def finalize(self, state: AdaptiveState) -> IncrementalBasis:
        """Return the eigenpairs that were kept, of the rows that wait as well; `state` is not changed."""
        out = borrow("adaptive batch", (state.n_pending, len(state.origin)), state.pending.dtype)
        total = self._fold(replace(state, basis=state.basis.copy()), out)
        values, vectors = _eigenpairs(total.basis.T)
        return IncrementalBasis(total.n_samples, total.weight, total.mean, values, vectors, total.discarded)

    def state_bytes(self, n_features: int, itemsize: int = 8) -> int:
        """Return the size of a state in bytes; `itemsize` is that of the type in which rows wait (see `work_dtype`)."""
        rank = min(self.rank, n_features)
        return 8 * ((rank + 2) * n_features + self.rows_per_update) + itemsize * self.rows_per_update * n_features

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of updates: of the truncation, whatever `n_rows`.

        `itemsize` is that of the floating type in which products are taken.
        """
        rank, batches = min(self.rank, n_features), [(self.rows_per_update, itemsize)]
        if itemsize == 4:
            batches.append((max(1, self.rows_per_update // 2), 8))
        sizes = [
            truncation_bytes(rank, rows >> i, n_features, size, exact=self.shrink)
            for rows, size in batches
            for i in range(rows.bit_length())
        ]
        kept: int = sum(max(part) for part in zip(*sizes, strict=True))
        return kept + 16 * 8 * n_features + self.n_threads * tile_bytes(n_images(rank), n_features, itemsize)

    def merge_bytes(self, n_features: int) -> int:
        """Return the scratch memory in bytes of merging two states in which no rows wait."""
        rank = min(self.rank, n_features)
        kept = sum(truncation_bytes(rank, rank, n_features, 8, exact=True))
        return kept + 16 * 8 * n_features + self.n_threads * tile_bytes(rank, n_features, 8)

    def finalize_bytes(self, n_features: int, itemsize: int = 8) -> int:
        """Return the memory in bytes that `finalize` takes beside the state, its result included."""
        rank = min(self.rank, n_features)
        batch = self.rows_per_update * n_features * itemsize
        own = 8 * rank * (2 * n_features + 6 * rank)
        return own + batch + self.scratch_bytes(n_features, self.rows_per_update, itemsize)


def rescaled(adapted: IncrementalBasis, factors: FloatArray) -> IncrementalBasis:
    """Return `adapted` as it is for features multiplied by `factors`, ``(n_features,)``, none negative; `mean` is kept.

    With factors 1 / (metric · standard deviation), the approximation made in the metric becomes one of the correlation
    matrix: S D, whose rows are made orthogonal again. The bound grows by the square of the largest factor.
    """
    tall = np.asfortranarray(adapted.vectors * np.sqrt(adapted.values))
    tall *= factors[:, None]
    values, vectors = _eigenpairs(tall)
    return replace(
        adapted, values=values, vectors=vectors, discarded=adapted.discarded * float(factors.max(initial=0.0)) ** 2
    )


def _eigenpairs(tall: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the eigenvalues that are not 0 and eigenvectors in columns of ``tall @ tall.T``; overwrites `tall`."""
    from scipy.linalg import qr

    length = max(tall.shape)
    orthonormal, triangle = qr(tall, overwrite_a=True, mode="economic", check_finite=False)
    left, sizes, _ = np.linalg.svd(triangle)
    found = int(np.count_nonzero(sizes > length * np.finfo(np.float64).eps * sizes.max(initial=0.0)))
    vectors: FloatArray = orthonormal @ left[:, :found]
    return sizes[:found] ** 2, vectors


def _copied(rows: NDArray[Any], out: NDArray[Any], n_threads: int) -> float:
    """Copy `rows` to `out` and return the largest magnitude, NaN if there is one; 0 for integers, which are never too large."""
    slabs = [slice(start, start + _SLAB_ROWS) for start in range(0, len(rows), _SLAB_ROWS)]
    largest = np.zeros(len(slabs))

    def slab(i: int) -> None:
        own = out[slabs[i]]
        own[...] = rows[slabs[i]]
        if rows.dtype.kind == "f" and own.size:
            largest[i] = np.maximum(own.max(), -own.min())

    spread(slab, range(len(slabs)), n_threads)
    return float(largest.max(initial=0.0))


def _joined_weights(state: AdaptiveState, part: Block) -> FloatArray:
    """Return the weights of the rows that wait and of `part`, with room for more; empty where all are 1."""
    weights, first = state.pending_weights, state.n_pending
    if part.weights is None and not len(weights):
        return weights
    if not len(weights):
        weights = np.ones(len(state.pending))
    weights[first : first + len(part)] = 1.0 if part.weights is None else part.weights
    return weights


def _about_zero(rows: NDArray[Any], out: NDArray[Any]) -> Centred:
    """Write `rows` to `out` as they are and return their mean as what is left around an origin of 0."""
    total, squares = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(rows), _SLAB_ROWS):
            part = out[start : start + _SLAB_ROWS]
            part[...] = rows[start : start + _SLAB_ROWS]
            total += part.sum(axis=0, dtype=np.float64)
            squares += np.einsum("ij,ij->j", part, part)
    return Centred(np.zeros(rows.shape[1]), total / len(rows), squares)
