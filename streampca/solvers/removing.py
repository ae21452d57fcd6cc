"""Fits with the parameter `remove`: the same solvers on residuals, which are computed during reading."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.centring import product_dtype
from streampca.accumulators.residuals import (
    FeatureResiduals,
    Residuals,
    residual_factor_bytes,
    residual_panel_bytes,
    residual_panel_rows,
)
from streampca.accumulators.rows import RowsState
from streampca.accumulators.wrappers import Joint
from streampca.execution.readings import Answer, AnyReading, Reading
from streampca.models import certificate_sentences as sentences
from streampca.models.rounding import with_decoding
from streampca.parameters import Parameters
from streampca.planning.memory import MemoryNeed
from streampca.planning.plan import Plan, Rates, folded_flops
from streampca.planning.shape import WorkShape
from streampca.planning.work import Companion, Work
from streampca.regressors import Basis, FittedRegression, Regressors
from streampca.sources.base import Source
from streampca.sources.steps import SLAB_BYTES, RowResiduals, SteppedSource, subtract_fitted
from streampca.typing import Array, DType, FloatArray, IntArray

if TYPE_CHECKING:
    from streampca.solvers.result import Fit

_TRAVERSALS = 8  # of float64 rows in memory: shift, largest values before and after, subtraction, conversion
_BYTES_PER_SECOND = 3e9  # of these, on one thread


def regressors_of(source: Source, parameters: Parameters) -> Regressors | None:
    """Return the regressors that `parameters` name for the rows of `source`, None where nothing is removed.

    Raises
    ------
    ParameterError
        If the labels of the table lack what is named, an array has another number of rows, or nothing would be left.
    """
    if parameters.remove is None:
        return None
    n, weights = source.shape[0], parameters.sample_weight
    rows = parameters.remove.rows_of(source.labels, n, source.description, source.sample_columns)
    basis = Basis.of(parameters.remove, rows, source.labels, weights)
    return Regressors.of(basis, basis.regressors(rows), weights)


class Removing(Companion):
    """Has the readings of a fit made of residuals: the first accumulates residuals and coefficients, later ones read residuals.

    A relay, see `execution.readings`. `dtype` is that of residuals, which a plan does not need, and `weights` those of rows, for who
    asks how many degrees of freedom some rows lost.
    """

    def __init__(
        self,
        regressors: Regressors,
        source: Source,
        dtype: DType | None = None,
        weights: FloatArray | None = None,
    ):
        self.regressors, self.source, self.weights = regressors, source, weights
        self.dtype = np.dtype(np.float64) if dtype is None else dtype
        self.n_regressors = regressors.orthogonal.size
        self.fitted: FittedRegression | None = None
        self._first: Residuals | FeatureResiduals | None = None
        self._inner: tuple[AnyAccumulator, ...] = ()
        self._bytes = 2 * regressors.rows.columns.nbytes + regressors.rows.codes.nbytes + 16 * source.shape[0]

    @override
    def needs(self, work: Work, shape: WorkShape) -> Iterable[MemoryNeed]:
        """Return what `remove` takes beside a fit that removes nothing.

        For q regressors and L leaves that read rows: the regressors of all rows, (2 L + 4) · 8 (q + 1) (d + q) for triangular factors
        and coefficients, in each leaf p d (16 + w) + 24 p q + 32 q d for a panel of p ≤ b rows, at least 2 q where b allows, and
        24 q d + 16 d; that read whole features: the regressors, L · (32 n q + 4 MiB), and 40 q d + 16 d.
        """
        (n, d), q, leaves = work.source.shape, self.n_regressors, shape.leaves_in_flight
        if (
            shape.axis == "features"
        ):  # coefficients of the leaves, in their order, turned, and those that they are fitted with
            taken = leaves * (32 * n * q + 2 * SLAB_BYTES) + (40 * q + 16) * d
        else:
            panel = min(shape.rows_per_block, residual_panel_rows(q, d, approximate=work.approximate))
            in_leaf = residual_panel_bytes(q, d, panel, product_dtype(work.source.dtype, d).itemsize)
            taken = (2 * leaves + 4) * residual_factor_bytes(q, d) + leaves * in_leaf + (24 * q + 16) * d
        return (MemoryNeed("removal", self._bytes + taken),)

    @override
    def flops(self, plan: Plan) -> float:
        return plan.flops * (1.0 + self._share_added(plan)) + self._flops(plan)

    @override
    def seconds(self, plan: Plan, rates: Rates) -> float:
        """Return the seconds that removing adds to a fit by `plan`, every leaf on one thread."""
        busy = max(1, min(plan.threads, plan.leaves_in_flight))
        products = self._flops(plan) / (rates.multiply / plan.threads)
        traversals = _TRAVERSALS * 8.0 * plan.n_samples * plan.n_features * plan.passes / _BYTES_PER_SECOND
        return (products + traversals) / busy + self._share_added(plan) * folded_flops(plan) / rates.fold

    def _flops(self, plan: Plan) -> float:
        """Return the floating point operations, in float64, of removing the regressors in the first reading.

        4 q n d for the products; for panels of rows, 2 n q² for their factorisations, and for each merging of two
        factors 8 q² d + 32 q³ (`docs/reference/configuration.md`). Indicators of groups alone are sparse: 8 n d, and 8 q d for each panel.
        """
        n, d, q, panels = float(plan.n_samples), plan.n_features, float(self.n_regressors), self._n_panels(plan)
        if plan.axis == "features":
            return 4.0 * q * n * d
        if self.regressors.only_groups:
            return 8.0 * n * d + 8.0 * q * d * panels
        return 4.0 * q * n * d + 2.0 * n * q**2 + panels * (8.0 * q**2 * d + 32.0 * q**3)

    def _n_panels(self, plan: Plan) -> int:
        rows = residual_panel_rows(self.n_regressors, plan.n_features, approximate=plan.approximate)
        size = min(rows, max(1, plan.rows_per_block))
        return plan.n_leaves + -(-plan.n_samples // size)

    def _share_added(self, plan: Plan) -> float:
        """Return how many rows the differences between regressions of panels add to those accumulated, as a share of these."""
        rows = 0 if plan.axis == "features" else 2 * self.n_regressors * self._n_panels(plan)
        return rows / max(1, plan.n_samples)

    def asked(self, reading: AnyReading) -> AnyReading:
        """Return the reading of the residuals of the rows that `reading` asks for."""
        self._first, by_features = None, reading.plan.axis == "features" if isinstance(reading, Reading) else False
        if not isinstance(reading, Reading):
            return reading
        if self.fitted is not None:
            residuals = self.residuals()
            return replace(reading, source=residuals.by_features() if by_features else residuals)
        self._inner = reading.accumulators
        inner: Any = self._inner[0] if len(self._inner) == 1 else Joint(self._inner)
        if by_features:
            self._first = FeatureResiduals(inner, self.regressors, str(self.dtype))
        else:
            self._first = Residuals(inner, self.regressors, str(self.dtype), reading.plan.approximate)
        return replace(reading, accumulators=(self._first,))

    def answered(self, answer: Answer) -> Answer:
        """Return the states of the residuals."""
        if self._first is None:
            return answer
        (state,) = answer.take()
        self.fitted = self._first.regression(state)
        inner: Any = self._first.inner_state(state)
        return Answer((inner,) if len(self._inner) == 1 else inner, answer.count)

    def residuals(self) -> SteppedSource:
        """Return the source of the residuals; after the first reading."""
        return SteppedSource(self.source, [RowResiduals(self.regressors.rows, self._regression(), self.dtype)])

    def of_pilot(self, rows: Array, chosen: IntArray) -> Array:
        """Return rows of a pilot without what regression on them alone explains; only about their mean where they are few."""
        design = self.regressors.orthogonal.take(chosen).dense(0, len(chosen))
        if len(rows) <= 2 * design.shape[1]:
            design = np.ones((len(rows), 1))
        axes, lengths, _ = np.linalg.svd(design, full_matrices=False)
        axes = axes[:, lengths > 1e-9 * lengths.max(initial=0.0)]
        wide = rows.astype(np.float64)
        wide -= wide.mean(axis=0)
        wide -= axes @ (axes.T @ wide)
        return wide.astype(rows.dtype)

    def finished(self, fit: Fit, *, copied_residuals: bool) -> Fit:
        """Return the fit of the residuals as one of the rows: with their mean, and with the part that was removed."""
        samples = None if fit.samples is None else self._shown(fit.samples, residuals=copied_residuals)
        fitted = replace(self._regression(), mean_remainder=None)
        certificate = fit.model.certificate.saying(sentences.of_residuals(self.n_regressors))
        model = replace(fit.model, mean=fitted.mean, removal=fitted, certificate=certificate)
        mean, removed = self.removed()
        model = with_decoding(model, mean, removed=removed)
        return replace(fit, model=model, samples=samples)

    def removed(self) -> tuple[FloatArray, FloatArray]:
        """Return the means of the rows, and the mean squares of what is removed of them, ``(n_features,)`` each; after the first reading."""
        fitted = self._regression()
        return fitted.mean, self.regressors.mean_squares(fitted.coefficients)

    def _shown(self, rows: RowsState, *, residuals: bool) -> RowsState:
        """Return rows of the source, or `residuals` of them, without what is removed, about their mean."""
        fitted, values = self._regression(), rows.values
        if not residuals:
            values = np.empty(rows.values.shape, dtype=self.dtype)
            subtract_fitted(rows.values, self.regressors.rows.take(rows.index), fitted, values)
        return RowsState(rows.index, np.add(values, fitted.mean, dtype=np.float64).astype(values.dtype))

    def _regression(self) -> FittedRegression:
        if self.fitted is None:
            raise RuntimeError("residuals are asked for before the first reading")
        return self.fitted
