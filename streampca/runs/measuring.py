"""Accumulators that compare rows with a model, and scores with stored ones, for the verification of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Generic, TypeVar

import numpy as np
from scipy.sparse import issparse

from streampca.accumulators.centring import refuse_not_finite
from streampca.accumulators.sparse import refuse_stored
from streampca.block import Block, as_block
from streampca.models.diagnostics import centred_rows, row_diagnostics, scratch_bytes
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Array, BoolArray, FloatArray

_PANEL_BYTES = 8 * 2**20
MOST_FEATURES = 512
"""Features up to which all eigenvalues are measured."""


@dataclass(frozen=True)
class MeasuredState:
    """Sums over the rows seen so far; w is a row's weight, z the row centred, scaled and weighted, s = V z its scores."""

    n_samples: int
    """Rows of positive weight that were not left out."""
    n_missing: int
    """Values that are missing in them and were filled in."""
    weight: float
    """Sum of w."""
    offset: FloatArray
    """Sum of w (x − mean), ``(n_features,)``."""
    squares: FloatArray
    """Sum of w (x − mean)², ``(n_features,)``."""
    products: FloatArray
    """Sum of w s sᵀ, ``(k, k)``."""
    residual: float
    """Sum of w ‖z − Vᵀ s‖²."""
    longest: float
    """Largest ‖z‖."""
    score_errors: FloatArray
    """Largest difference of a stored score from the measured one, per component, ``(k,)``."""
    diagnostic_errors: FloatArray
    """Largest differences of stored T, relative to 1 + T, and of stored √Q, relative to ‖z‖, given the stored scores; ``(2,)``."""
    scatter: FloatArray
    """Sum of w z zᵀ, ``(n_features, n_features)``, where all eigenvalues of a small matrix are to be measured, else empty."""


@dataclass(frozen=True)
class KernelMeasuredState:
    """Sums over the rows seen so far; s are the scores of a row."""

    n_samples: int
    """Rows."""
    squares: FloatArray
    """Sum of s², ``(k,)``."""
    longest: float
    """Largest modulus of a score."""
    score_errors: FloatArray
    """Largest difference of a stored score from the measured one, per component, ``(k,)``."""
    n_landmarks: int
    """Number of landmarks that equal the rows they were taken from."""


_State = TypeVar("_State", MeasuredState, KernelMeasuredState)
_LARGEST = ("longest", "score_errors", "diagnostic_errors")
"""Fields that are maxima, not sums."""


class _Summed(Generic[_State]):
    """Accumulator whose states are sums and maxima."""

    def absorb(self, state: _State, other: _State) -> _State:
        """Return the state of the rows behind both."""
        together = {}
        for field in fields(state):
            a, b = getattr(state, field.name), getattr(other, field.name)
            together[field.name] = np.maximum(a, b) if field.name in _LARGEST else a + b
        return replace(state, **together)

    def merge(self, states: Sequence[_State]) -> _State:
        """Return the state of all rows behind `states`."""
        return reduce(self.absorb, states)

    def finalize(self, state: _State) -> _State:
        """Return the state itself."""
        return state


@dataclass(frozen=True)
class Measured(_Summed[MeasuredState]):
    """Compares rows with a model of linear PCA, in float64 for every data type."""

    model: PCAModel
    """The model; its components are in memory."""
    scores: ZarrArray | None = None
    """The stored scores, a zarr array ``(n_samples, k)``, or None."""
    diagnostics: tuple[ZarrArray, ...] = ()
    """The stored T² and Q, zarr arrays ``(n_samples,)``; empty where there are none."""

    def init(self, n_features: int) -> MeasuredState:
        """Return the state of no rows."""
        (k, d), side = (self.model.n_components, n_features), n_features if self.of_all else 0
        return MeasuredState(
            n_samples=0,
            n_missing=0,
            weight=0.0,
            offset=np.zeros(d),
            squares=np.zeros(d),
            products=np.zeros((k, k)),
            residual=0.0,
            longest=0.0,
            score_errors=np.zeros(k),
            diagnostic_errors=np.zeros(2),
            scatter=np.zeros((side, side)),
        )

    @property
    def of_all(self) -> bool:
        """Return whether the model has all eigenvalues of a matrix that is small enough to be accumulated here."""
        return self.model.eigenvalues is not None and len(self.model.mean) <= MOST_FEATURES

    def update(self, state: MeasuredState, block: Block | Array) -> MeasuredState:
        """Return `state` with the rows of `block` added.

        Raises
        ------
        NotFiniteError
            If a row that counts holds NaN or infinity, and the model does not leave such rows out.
        """
        block = as_block(block)
        here = slice(block.start, block.start + len(block))
        stored = None if self.scores is None else np.asarray(self.scores[here])
        diagnostics = [np.asarray(array[here]) for array in self.diagnostics]
        step = panel_rows(block.values.shape[1])
        for start in range(0, len(block), step):
            panel = block.slice(start, start + step).dense()
            stored_panel = None if stored is None else stored[start : start + step]
            seen = self._measured(panel, stored_panel)
            if stored_panel is not None and diagnostics:
                t2, q = (values[start : start + step] for values in diagnostics)
                seen = replace(seen, diagnostic_errors=self._diagnostic_errors(panel, stored_panel, t2, q))
            state = self.absorb(state, seen)
        return state

    def _diagnostic_errors(self, block: Block, scores: Array, t2: FloatArray, q: FloatArray) -> FloatArray:
        """Return the largest differences of T and √Q of a panel of rows from those that follow from the stored scores."""
        expected_t2, expected_q = row_diagnostics(self.model, block.values, scores)
        z = centred_rows(self.model, block.values, slice(0, block.values.shape[1]))[0]
        lengths = np.sqrt(np.einsum("ij,ij->i", z, z))
        with np.errstate(invalid="ignore"):
            t, roots = np.sqrt(expected_t2), np.sqrt(expected_q)
            apart = np.stack([np.abs(np.sqrt(t2) - t) / (1 + t), np.abs(np.sqrt(q) - roots)])
        apart[1] = np.divide(apart[1], lengths, out=np.where(apart[1] > 0, np.inf, 0.0), where=lengths > 0)
        left_out = np.stack([np.isnan(t2) & np.isnan(expected_t2), np.isnan(q) & np.isnan(expected_q)])
        largest: FloatArray = np.nan_to_num(np.where(left_out, 0.0, apart), nan=np.inf, posinf=np.inf).max(axis=1)
        return largest

    def _measured(self, block: Block, stored: Array | None) -> MeasuredState:
        """Return the state of a panel of rows."""
        weights = np.ones(len(block)) if block.weights is None else block.weights
        centred = np.subtract(block.values, self.model.centre, dtype=np.float64)
        missing = np.zeros(len(block), dtype=np.int64)
        if self.model.fill is not None:
            absent = np.isnan(centred)
            missing = absent.sum(axis=1)
            np.copyto(centred, self.model.fill - self.model.mean, where=absent)
        finite = np.asarray(np.isfinite(centred).all(axis=1))
        bad = np.flatnonzero(~finite & (weights > 0))
        if self.model.missing != "drop_rows" and len(bad):
            refuse_not_finite(block.values[bad[0] : bad[0] + 1], block.start + int(bad[0]))
        centred[~finite], weights = 0.0, np.where(finite, weights, 0.0)
        factor = self.model.weights
        scaled = centred if factor is None else centred * factor
        axes = np.asarray(self.model.components)
        scores = scaled @ axes.T
        remainder = np.einsum("ij,ij->i", *[scaled - scores @ axes] * 2)
        lengths = np.einsum("ij,ij->i", scaled, scaled)
        return MeasuredState(
            n_samples=int((weights > 0).sum()),
            n_missing=int(missing[weights > 0].sum()),
            weight=float(weights.sum()),
            offset=weights @ centred,
            squares=weights @ np.square(centred),
            products=(scores * weights[:, None]).T @ scores,
            residual=float(weights @ remainder),
            longest=float(np.sqrt(lengths.max(initial=0.0))),
            score_errors=self._errors(self._expected(block, scores, missing > 0), stored, finite),
            diagnostic_errors=np.zeros(2),
            scatter=(scaled * weights[:, None]).T @ scaled if self.of_all else np.zeros((0, 0)),
        )

    def _expected(self, block: Block, scores: FloatArray, holes: BoolArray) -> FloatArray:
        """Return the scores that are to be stored, given those without whitening of rows that are filled in."""
        expected = scores / self.model.deviations if self.model.whiten else scores
        if self.model.conditional and holes.any():
            expected = expected.copy()
            expected[holes] = self.model.transform(block.values[holes].astype(np.float64))
        return expected

    def _errors(self, expected: FloatArray, stored: Array | None, finite: BoolArray) -> FloatArray:
        """Return the largest differences per component; rows that were left out must be stored as NaN."""
        if stored is None:
            return np.zeros(expected.shape[1])
        errors = np.abs(stored.astype(np.float64) - expected)
        errors[~finite] = np.where(np.isnan(stored[~finite]), 0.0, np.inf)
        largest: FloatArray = np.nan_to_num(errors, nan=np.inf, posinf=np.inf).max(axis=0, initial=0.0)
        return largest

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        scatter = n_features**2 if self.of_all else 0
        return 8 * (2 * n_features + self.model.n_components * (self.model.n_components + 1) + 7 + scatter)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of a panel of rows, and of the state that it adds."""
        rows, k = min(n_rows, panel_rows(n_features)), self.model.n_components
        own = scratch_bytes(self.model, rows) + 8 * rows * n_features  # of T² and Q
        return 8 * rows * (5 * n_features + 5 * k) + 3 * self.state_bytes(n_features) + own


@dataclass(frozen=True)
class KernelMeasured(_Summed[KernelMeasuredState]):
    """Compares rows with a model of kernel PCA."""

    model: KernelModel
    """The model."""
    scores: ZarrArray | None = None
    """The stored scores, a zarr array ``(n_samples, k)``, or None."""

    def init(self, n_features: int) -> KernelMeasuredState:
        """Return the state of no rows."""
        k = self.model.n_components
        return KernelMeasuredState(0, np.zeros(k), 0.0, np.zeros(k), 0)

    def update(self, state: KernelMeasuredState, block: Block | Array) -> KernelMeasuredState:
        """Return `state` with the rows of `block` added; raise `NotFiniteError` if they hold NaN or infinity."""
        block = as_block(block)
        (refuse_stored if issparse(block.values) else refuse_not_finite)(block.values, block.start)
        scores = self.model.transform(block.values).astype(np.float64)
        errors = np.zeros(scores.shape[1])
        if self.scores is not None:
            stored = np.asarray(self.scores[block.start : block.start + len(block)], dtype=np.float64)
            errors = np.nan_to_num(np.abs(stored - scores), nan=np.inf, posinf=np.inf).max(axis=0, initial=0.0)
        seen = KernelMeasuredState(
            len(block), np.square(scores).sum(axis=0), float(np.abs(scores).max(initial=0.0)), errors, self._same(block)
        )
        return self.absorb(state, seen)

    def _same(self, block: Block) -> int:
        """Return how many landmarks are rows of `block`, as the model has them."""
        index = self.model.landmark_indices
        if index is None:
            return 0
        here = np.flatnonzero((index >= block.start) & (index < block.start + len(block)))
        rows = Block(block.values[index[here] - block.start]).dense().values.astype(self.model.landmarks.dtype)
        return int((rows == self.model.landmarks[here]).all(axis=1).sum())

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        return 8 * (2 * self.model.n_components + 3)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes beside what a transform takes."""
        return 8 * n_rows * 4 * self.model.n_components


def panel_rows(n_features: int) -> int:
    """Return how many rows are measured at once: about 8 MiB of them."""
    return max(1, _PANEL_BYTES // (8 * n_features))
