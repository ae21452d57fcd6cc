"""Residuals of rows after regression on a few regressors, in one pass, for any accumulator of the scatter matrix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.sparse import coo_array, csr_array

from streampca.accumulators.base import Accumulator, AnyAccumulator
from streampca.accumulators.centring import (
    refuse_not_finite,
    require_finite,
    sampled_origin,
    sketch_panel_rows,
    step_between,
    work_dtype,
)
from streampca.accumulators.covariance import panel_rows
from streampca.accumulators.gram import Gram, GramState, require_range
from streampca.block import Block, as_block
from streampca.errors import MergeError
from streampca.linalg.scaling import reciprocals
from streampca.regressors import FittedRegression, Regressors, RowRegressors
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, FloatArray, IntArray, override

_ROUNDING = 32 * float(np.finfo(np.float64).eps)
"""Largest share of a feature's magnitude at which its residuals count as rounding."""
_SLAB_FEATURES = 2048


@storable
@dataclass(frozen=True)
class ResidualState:
    """Triangular factor of regressors and rows side by side, with the state of the residuals."""

    n_samples: int
    """Number of rows of positive weight."""
    weight: float
    """Sum of their weights; the number of rows if no weights are given."""
    weight_squares: float
    """Sum of the squares of their weights."""
    origin: FloatArray
    """A number near the mean of each feature, ``(n_features,)``."""
    factor: FloatArray
    """T with TᵀT = Σ w z zᵀ for the regressors z, ``(n_regressors, n_regressors)``."""
    coefficients: FloatArray
    """C with TᵀC = Σ w z (x − origin)ᵀ, ``(n_regressors, n_features)``."""
    inner: Any
    """State of the inner accumulator with the scatter matrix of the residuals; its row count differs."""

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return len(self.origin)


@dataclass(frozen=True)
class Residuals(Accumulator[ResidualState, object]):
    """Give the residuals of rows after regression on known regressors to an `inner` accumulator.

    A panel of rows X with regressors Z is replaced by its residuals about its own regression, from a QR factorisation
    Z = Q T, with C = QᵀX. The factors of two panels are merged by a QR factorisation of T₁ over T₂, which leaves rows L:
    ``[C₁; C₂] → [C; L]`` with ``S = S₁ + S₂ + LᵀL``. This is the update of Chan, Golub & LeVeque for means, with
    regressors in place of the constant, so a removed part many times larger than the residuals costs no digits. The rows
    of L are added to the inner accumulator in pairs ±L/√2, with scatter LᵀL and mean 0. Cost: 4 q n d flops for q
    regressors, in float64, and 8 n d if they are only indicators of 32 or more groups.
    """

    inner: AnyAccumulator
    """Accumulator of the residuals."""
    regressors: Regressors = field(repr=False, compare=False)
    """Regressors of all rows of the source."""
    dtype: str = "float64"
    """Data type of the residuals."""
    approximate: bool = False
    """Whether the inner accumulator multiplies rows by few columns, so that short panels cost no extra time."""

    @property
    def size(self) -> int:
        """Return the number of regressors."""
        return self.regressors.orthogonal.size

    @override
    def init(self, n_features: int) -> ResidualState:
        q = self.size
        empty = np.zeros((q, q)), np.zeros((q, n_features))
        return ResidualState(0, 0.0, 0.0, np.zeros(n_features), *empty, self.inner.init(n_features))

    def update(self, state: ResidualState, block: Block | Array) -> ResidualState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)``, added to it in place.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN or infinity.
        """
        block = as_block(block)
        for panel in block.panels(residual_panel_rows(self.size, block.values.shape[1], approximate=self.approximate)):
            state = self._add_panel(state, panel)
        return state

    def _add_panel(self, state: ResidualState, panel: Block) -> ResidualState:
        rows_of_panel = panel.start + np.arange(len(panel))
        if panel.weights is not None:
            rows_of_panel = rows_of_panel[panel.weights > 0]
        regressors = self.regressors.orthogonal.take(rows_of_panel)
        panel = panel.counted()
        n_rows, d = panel.values.shape
        if n_rows == 0:
            return state
        if state.n_samples == 0:
            state = replace(state, origin=sampled_origin(panel.values, work_dtype(panel.values.dtype)))
        rows = borrow("rows with regressors", (n_rows, d), np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(panel.values, state.origin, out=rows)
        root = None if panel.weights is None else np.sqrt(panel.weights)
        if root is not None:
            rows *= root[:, None]
        if n_rows <= self.size and not self.regressors.only_groups:
            factor, coefficients = regressors.dense(0, n_rows), rows
            if root is not None:
                factor *= root[:, None]
            require_finite(np.asarray(np.isfinite(rows).all(axis=0)), panel)
        else:
            axes, factor = self._factor(regressors, root)
            with np.errstate(over="ignore", invalid="ignore"):
                coefficients = axes.T @ rows
            require_finite(np.asarray(np.isfinite(coefficients).all(axis=0)), panel)
            largest = np.maximum(rows.max(axis=0), -rows.min(axis=0))
            residuals = self._residuals(rows, axes, coefficients, largest)
            if root is not None:
                residuals /= root[:, None]
            block = Block(residuals.astype(self.dtype, copy=False), panel.start, panel.weights)
            state = replace(state, inner=self.inner.update(state.inner, block))
        total, squares = panel.weight_sums()
        state = self._merge_factors(state, factor, coefficients)
        return replace(
            state,
            n_samples=state.n_samples + n_rows,
            weight=state.weight + total,
            weight_squares=state.weight_squares + squares,
        )

    def _factor(self, regressors: RowRegressors, roots: FloatArray | None) -> tuple[FloatArray | csr_array, FloatArray]:
        """Return the QR factors of the regressors of a panel, times the square `roots` of the weights."""
        if self.regressors.only_groups:
            return factor_of_indicators(regressors.codes, roots, self.size)
        design = regressors.dense(0, len(regressors.codes))
        if roots is not None:
            design *= roots[:, None]
        return np.linalg.qr(design)

    def _residuals(
        self, rows: FloatArray, axes: FloatArray | csr_array, coefficients: FloatArray, largest: FloatArray
    ) -> FloatArray:
        """Return ``rows - axes coefficients`` in the memory of `rows`; exact zeros for features that leave only rounding.

        `coefficients` may be corrected in place.
        """
        for start in range(0, rows.shape[1], _SLAB_FEATURES):
            slab = slice(start, start + _SLAB_FEATURES)
            part = rows[:, slab]
            part -= axes @ coefficients[:, slab]
            if (
                self.regressors.only_groups
            ):  # sparse products add one row after another: a second step takes their rounding out
                remainder = axes.T @ part
                part -= axes @ remainder
                coefficients[:, slab] += remainder
            left = np.maximum(part.max(axis=0), -part.min(axis=0))
            part[:, left <= _ROUNDING * largest[slab]] = 0.0
        return rows

    def _merge_factors(self, state: ResidualState, factor: FloatArray, coefficients: FloatArray) -> ResidualState:
        """Add the factors of other rows, ``(n, n_regressors)`` and ``(n, n_features)`` about the same origin, in place."""
        q, d, n = self.size, state.n_features, len(factor)
        rotation: FloatArray | csr_array
        if self.regressors.only_groups:
            rotation, merged = merge_of_indicators(state.factor, factor)
        else:
            axes, merged = np.linalg.qr(np.concatenate([state.factor, factor]), mode="complete")
            rotation = axes.T
        left = borrow("rows between regressions", (2 * n, d), self.dtype)
        for start in range(0, d, _SLAB_FEATURES):
            slab = slice(start, start + _SLAB_FEATURES)
            both = np.concatenate([state.coefficients[:, slab], coefficients[:, slab]])
            largest = np.abs(both).max(axis=0)
            turned = rotation @ both
            state.coefficients[:, slab] = turned[:q]
            turned[q:, np.abs(turned[q:]).max(axis=0) <= _ROUNDING * largest] = 0.0
            left[:n, slab] = turned[q:] * np.sqrt(0.5)
        np.negative(left[:n], out=left[n:])
        state.factor[...] = merged[:q]
        if not left.any():
            return state
        weights = np.ones(2 * n) if self.regressors.weighted else None
        return replace(state, inner=self.inner.update(state.inner, Block(left, 0, weights)))

    def absorb(self, state: ResidualState, other: ResidualState) -> ResidualState:
        """Return the merged state, in the memory of `state`; `MergeError` if features or regressors differ."""
        if state.coefficients.shape != other.coefficients.shape:
            raise MergeError(
                f"states of {state.coefficients.shape} and {other.coefficients.shape} coefficients cannot be merged: expected the same "
                "features and regressors"
            )
        if other.n_samples == 0:
            return state
        if state.n_samples == 0:
            state = replace(state, origin=other.origin)
        step = step_between(state.origin, np.zeros(state.n_features), other.origin, np.zeros(state.n_features))
        constant = other.factor[:, : self.regressors.basis.n_groups].sum(axis=1)
        coefficients = other.coefficients + np.outer(constant, step) if step.any() else other.coefficients
        state = replace(state, inner=self.inner.absorb(state.inner, other.inner))
        state = self._merge_factors(state, other.factor, coefficients)
        return replace(
            state,
            n_samples=state.n_samples + other.n_samples,
            weight=state.weight + other.weight,
            weight_squares=state.weight_squares + other.weight_squares,
        )

    def finalize(self, state: ResidualState) -> object:
        """Return the result of the inner accumulator for the residuals."""
        return self.inner.finalize(self.inner_state(state))

    def inner_state(self, state: ResidualState) -> Any:
        """Return the state of the inner accumulator with the number and the weights of the rows behind `state`."""
        return self.inner.with_counts(state.inner, state)

    def regression(self, state: ResidualState) -> FittedRegression:
        """Return the regression fitted to the rows."""
        coefficients = solve_triangular(state.factor, state.coefficients, check_finite=False)
        return self.regressors.fitted_regression(state.origin, coefficients)

    @override
    def state_bytes(self, n_features: int) -> int:
        return self.inner.state_bytes(n_features) + residual_factor_bytes(self.size, n_features)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update with blocks of `n_rows` rows."""
        panel = min(n_rows, residual_panel_rows(self.size, n_features, approximate=self.approximate))
        return self.inner.scratch_bytes(n_features, n_rows, itemsize) + residual_panel_bytes(
            self.size, n_features, panel, itemsize
        )


def residual_panel_rows(n_regressors: int, n_features: int, *, approximate: bool) -> int:
    """Return the maximum number of rows in a panel with its own regression: at least two per regressor."""
    rows = (sketch_panel_rows if approximate else panel_rows)(n_features, np.dtype(np.float64))
    return max(2 * n_regressors, rows)


def residual_factor_bytes(n_regressors: int, n_features: int) -> int:
    """Return the size in bytes of a state of residuals without the state of the inner accumulator."""
    return 8 * (n_regressors + 1) * (n_features + n_regressors)


def residual_panel_bytes(n_regressors: int, n_features: int, n_rows: int, itemsize: int) -> int:
    """Return the scratch memory in bytes for residuals of a panel of `n_rows` rows, without the inner accumulator."""
    beside = 3 * 8 * n_rows * n_regressors + 4 * 8 * n_regressors * n_features
    return n_rows * n_features * (16 + itemsize) + beside


@storable
@dataclass(frozen=True)
class FeatureResidualState:
    """State of a Gram matrix of residuals, with the coefficients of each feature."""

    inner: GramState
    """State of the Gram matrix."""
    coefficients: FloatArray
    """For each feature, in the order of the runs of `inner`, an origin and the coefficients of the orthogonal regressors about
    it, ``(n_accumulated, 1 + n_regressors)``."""

    @property
    def n_features(self) -> int:
        """Return the length of a row: the number of samples."""
        return self.inner.n_features


@dataclass(frozen=True)
class FeatureResiduals(Accumulator[FeatureResidualState, object]):
    """Give the residuals of whole features after regression on known regressors to a Gram matrix.

    A block holds features in rows, each with all samples, so the regression is exact within the block: a product with the
    projection 1 − Z Zᵀ for orthonormalised regressors. Cost: 4 q n d flops for q regressors, in float64.
    """

    inner: Gram
    """Accumulator of the residuals."""
    regressors: Regressors = field(repr=False, compare=False)
    """Regressors of all samples."""
    dtype: str = "float64"
    """Data type of the residuals."""

    def init(self, n_features: int) -> FeatureResidualState:
        """Return the empty state; `n_features` is the number of samples."""
        return FeatureResidualState(self.inner.init(n_features), np.empty((0, 1 + self.regressors.orthogonal.size)))

    def update(self, state: FeatureResidualState, block: Block | Array) -> FeatureResidualState:
        """Return `state` with the features in the rows of `block`, ``(n_block_features, n_samples)``, added in place."""
        block = as_block(block)
        if len(block) == 0:
            return state
        residuals, coefficients = self.project(block)
        inner = self.inner.update(state.inner, Block(residuals, block.start))
        return FeatureResidualState(inner, np.concatenate([state.coefficients, coefficients]))

    def project(self, block: Block) -> tuple[Array, FloatArray]:
        """Return the residuals of features, and an origin with coefficients about it, ``(n_block_features, 1 + n_regressors)``."""
        design = self.regressors.orthogonal.dense(0, block.values.shape[1])
        weights = self.inner.weights
        axes = design / self.regressors.norms
        left = axes if weights is None else axes * weights[:, None]
        rows = borrow("features with regressors", block.values.shape, np.float64)
        counted: slice | BoolArray = slice(None) if weights is None else weights > 0
        with np.errstate(over="ignore", invalid="ignore"):
            origin = np.asarray(block.values[:, counted].mean(axis=1, dtype=np.float64))
            np.subtract(block.values, origin[:, None], out=rows)
            if weights is not None:
                left, taken = left[weights > 0], rows[:, weights > 0]
            else:
                taken = rows
            largest = np.maximum(taken.max(axis=1), -taken.min(axis=1))
            inner_products = taken @ left
        if not np.isfinite(inner_products).all():
            finite = np.asarray(np.isfinite(inner_products).all(axis=1))
            feature = int(np.flatnonzero(~finite)[0])
            values = block.values[feature] if weights is None else np.where(weights > 0, block.values[feature], 0)
            refuse_not_finite(values[:, None], 0, block.start + feature)
            require_range(finite, block.start)
        for start in range(0, len(rows), 64):
            part = slice(start, start + 64)
            rows[part] -= inner_products[part] @ axes.T
        counted_rows = rows[:, counted]
        small = np.maximum(counted_rows.max(axis=1), -counted_rows.min(axis=1)) <= _ROUNDING * largest
        rows[np.ix_(small, np.arange(rows.shape[1]) if weights is None else np.flatnonzero(weights > 0))] = 0.0
        coefficients = np.column_stack([origin, inner_products / self.regressors.norms])
        return rows.astype(self.dtype, copy=False), coefficients

    def absorb(self, state: FeatureResidualState, other: FeatureResidualState) -> FeatureResidualState:
        """Return the merged state, in the memory of `state`."""
        inner = self.inner.absorb(state.inner, other.inner)
        return FeatureResidualState(inner, np.concatenate([state.coefficients, other.coefficients]))

    def finalize(self, state: FeatureResidualState) -> object:
        """Return the matrix of the residuals."""
        return self.inner.finalize(state.inner)

    def inner_state(self, state: FeatureResidualState) -> GramState:
        """Return the state of the Gram matrix."""
        return state.inner

    def regression(self, state: FeatureResidualState) -> FittedRegression:
        """Return the regression fitted to the features."""
        starts, lengths = state.inner.starts, state.inner.lengths
        ends: IntArray = np.cumsum(lengths)
        order = np.argsort(starts, kind="stable")
        runs = [state.coefficients[ends[i] - lengths[i] : ends[i]] for i in order]
        joined = np.concatenate(runs)
        origin, coefficients = joined[:, 0].copy(), np.ascontiguousarray(joined[:, 1:].T)
        del joined  # before as much is allocated again
        return self.regressors.fitted_regression(origin, coefficients)

    def state_bytes(self, n_features: int) -> int:
        """Return the size in bytes of the matrix of `n_features` samples, without the memory for each feature."""
        return self.inner.state_bytes(n_features)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of updates with blocks of `n_rows` features of `n_features` samples."""
        own = feature_panel_bytes(n_features, n_rows, itemsize, weighted=self.inner.weights is not None)
        axes = 4 * 8 * n_features * self.regressors.orthogonal.size
        return self.inner.scratch_bytes(n_features, n_rows, itemsize) + own + axes


def feature_panel_bytes(n_samples: int, n_rows: int, itemsize: int, *, weighted: bool) -> int:
    """Return the memory in bytes of the residuals of `n_rows` features; with weights, two more copies for samples of positive weight."""
    return n_rows * n_samples * (16 + (8 if weighted else 0) + itemsize)


def factor_of_indicators(codes: IntArray, roots: FloatArray | None, n_groups: int) -> tuple[csr_array, FloatArray]:
    """Return Q, sparse ``(n_rows, n_groups)``, and R, ``(n_groups, n_groups)``, for the indicators of the groups `codes`.

    Rows are multiplied by `roots`, the square roots of their weights; None means 1. Groups without rows have columns of zeros.
    """
    roots = np.ones(len(codes)) if roots is None else roots
    lengths = np.sqrt(np.bincount(codes, roots**2, n_groups))
    entries = roots * reciprocals(lengths)[codes]
    return csr_array((entries, codes, np.arange(len(codes) + 1)), shape=(len(codes), n_groups)), np.diag(lengths)


def merge_of_indicators(first: FloatArray, second: FloatArray) -> tuple[csr_array, FloatArray]:
    """Return Qᵀ, sparse ``(2 q, 2 q)``, and R, ``(q, q)``, for the diagonal factors `first` over `second`, each ``(q, q)``.

    Each group takes a Givens rotation; groups without rows on one side leave rows of zeros.
    """
    a, b = first.diagonal(), second.diagonal()
    lengths, q = np.hypot(a, b), len(a)
    cosine, sine = a * reciprocals(lengths), b * reciprocals(lengths)
    upper, lower = np.arange(q), np.arange(q, 2 * q)
    rows, columns = np.concatenate([upper, upper, lower, lower]), np.concatenate([upper, lower, upper, lower])
    entries = np.concatenate([cosine, sine, -sine, cosine])
    return coo_array((entries, (rows, columns)), shape=(2 * q, 2 * q)).tocsr(), np.diag(lengths)
