"""Exact PCA by a triangular factor of the rows: one pass, for accurate singular values below 1e-7 of the first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.triangle import Factored, QRFactor
from streampca.errors import DataError, StreamPCAError
from streampca.execution.readings import Reading, Readings
from streampca.formatting import as_text
from streampca.linalg.control_limits import moments_of_values
from streampca.linalg.eigen import Spectrum, signed
from streampca.linalg.selection import Frobenius, Selection
from streampca.models import certificate_sentences as sentences
from streampca.models.noise import known_weight, selection_of_fit
from streampca.models.pca import PCAModel
from streampca.models.rounding import with_decoding
from streampca.models.state import FittedState
from streampca.planning.memory import (
    MemoryNeed,
    buffer_bytes,
    model_need,
    reading_needs,
    report_need,
    sampled_rows_need,
)
from streampca.planning.plan import Plan, Rates, busy_threads, nominal_rates
from streampca.planning.shape import WorkShape, block_rows_to_try, count_leaves, divide
from streampca.planning.work import Figures, Resources
from streampca.solvers.base import ContinuableSolver
from streampca.solvers.capabilities import Table
from streampca.solvers.result import Accumulated

_SCORES_PANEL_ROWS = 8192
_REFLECTING = 6e9  # floating point operations of reflections per second, on a thread


def _spectrum(factored: Factored, selection: Selection, precision: float) -> Spectrum:
    from scipy.linalg import LinAlgError, svd

    limit = min(factored.n_samples, len(factored.mean))
    try:
        singular, vectors = svd(factored.rows(), full_matrices=False, overwrite_a=True, check_finite=False)[1:]
    except LinAlgError as error:
        raise StreamPCAError(f"LAPACK could not decompose the triangular factor: {error}") from error
    with np.errstate(over="ignore"):
        values, total = singular**2 / factored.divisor, float((singular**2).sum() / factored.divisor)
    if not np.isfinite(total):
        raise DataError("the sum of the squares of all features overflows float64: rescale them first")
    measure = (
        values[0] * float(np.linalg.norm(values / (values[0] or 1.0))) if isinstance(selection, Frobenius) else total
    )
    chosen = selection.select(values[:limit], measure, 2 * np.sqrt(precision))
    k = limit if chosen is None else chosen
    moments = moments_of_values(values[k:limit])
    every, values, vectors = values[:limit], values[:k].copy(), vectors[:k]
    rank = int(np.count_nonzero(values > precision * values[0])) if values[0] > 0 else 0
    residual = 0.0
    if values[0] > 0:
        columns = np.ascontiguousarray(vectors.T)
        gap = (factored.multiply(columns) - columns * values) / values[0]
        residual = float(np.linalg.norm(gap, axis=0).max())
    return Spectrum(values, signed(vectors.T), total, residual, rank, "lapack svd", moments, every)


@dataclass(frozen=True)
class QRSolver(ContinuableSolver):
    """Exact, by a triangular factor of the rows."""

    name = "qr"
    refuses: ClassVar[Table] = {
        **dict.fromkeys(
            (
                *("missing='drop_rows'", "missing='mean'", "missing='pairwise'", "forgetting"),
                "n_components='cross_validation'",
            ),
            "use solver='covariance'",
        ),
        "sparse rows": "use solver='covariance' or solver='sketch'",
    }

    @override
    def plan(self, resources: Resources) -> Plan:
        """Return the plan of the fit; raise `PlanError` if it does not fit in memory."""
        work = replace(self, n_components=self.parameters.count(self.source), resources=resources)
        plan = work.best(block_rows_to_try(self.source, np.dtype(np.float64)), 0, 1)
        if plan.budget.fits:
            return plan
        raise plan.budget.refusal(
            "use solver='covariance', which takes a quarter of it, if singular values below 1e-7 of the first do not matter; else "
            "use fewer features, or "
        )

    @property
    def triangle(self) -> QRFactor:
        """Return the accumulator of the triangular factor."""
        return QRFactor(center=self.parameters.center, scale=self.parameters.scale, ddof=self.parameters.ddof)

    @override
    @property
    def work_dtype(self) -> str:
        return "float64"

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, d = self.source.shape
        n_leaves = count_leaves(n, -(-n // rows), self.source.row_bytes)
        return divide(n, rows, n_leaves, (leaves, 1, self.resources.threads), tile=d)

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what states, (1 + W) S, and blocks take, scratch of one leaf more for merging, and 8 d (8 d + 3 k) for the singular values.

        Scores: L (2 b d s + decoding + 16 p d + 48 b k) + 8 d k.
        """
        (n, d), rows, leaves = self.source.shape, shape.rows_per_block, shape.leaves_in_flight
        k = min(n, d) if self.n_components is None else self.n_components
        scratch = self.triangle.scratch_bytes(d, rows, 8)
        in_leaf = buffer_bytes(self.source, rows) + 16 * min(rows, _SCORES_PANEL_ROWS) * d + 48 * rows * k
        return [
            *reading_needs(self.source, shape, (self.triangle.state_bytes(d), scratch)),
            MemoryNeed("scratch", scratch, ("reading",)),
            sampled_rows_need(self.source, self.resources.report_rows),
            MemoryNeed("solve", 8 * d * (8 * d + 3 * k), ("solving",)),
            model_need(d, k, "solving", "scores", "report"),
            MemoryNeed("scores", leaves * in_leaf + 8 * d * k if self.resources.scores else 0, ("scores",)),
            report_need(report=self.resources.report),
        ]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        n, d = self.source.shape
        size = as_text(self.triangle.state_bytes(d))
        return Figures(
            reason=f"exact; the triangular factor of {d:,} x {d:,} takes {size}, and nothing is squared",
            flops=2.0 * n * d * d + (2 / 3 * shape.n_leaves + 12) * float(d) ** 3,
            notes=[
                "takes two to four times as long as float64 products; the decomposition at the end runs on one thread"
            ],
        )

    @override
    @classmethod
    def nominal_rates(cls, plan: Plan) -> Rates:
        """Return rates of reflections, a fifth of those of products; merging is one more of them."""
        merge = 8 * _REFLECTING / max(1, plan.n_features)
        return replace(nominal_rates(plan), fold=_REFLECTING * busy_threads(plan), merge=merge)

    @override
    @classmethod
    def solve_seconds(cls, plan: Plan, rates: Rates) -> float:
        """Return the time of the singular values of the factor, in products of blocks for the most part."""
        return 12.0 * plan.n_features**3 / (1.5 * rates.lapack)

    @override
    def accumulated(self, plan: Plan, accumulator: AnyAccumulator | None = None) -> Readings[Accumulated]:
        """Read the rows once and return their triangular factor."""
        (state,) = (yield Reading(self.source, (self.triangle,), plan, self.parameters.sample_weight)).take()
        return Accumulated(self.triangle, state)

    @override
    @classmethod
    def solve_model(cls, fitted: FittedState, work: str) -> PCAModel:
        """Return the model of a triangular factor."""
        state, parameters = fitted.state, fitted.parameters
        factored = fitted.accumulator.finalize(state)
        if parameters.feature_weight is not None:
            factored = replace(factored, weights=factored.weights * np.sqrt(parameters.feature_weight))
        finite = np.isfinite(factored.variance)
        if not finite.all():
            raise DataError(
                f"the variance of feature {int(np.flatnonzero(~finite)[0])} overflows float64: rescale it first"
            )
        d = len(factored.mean)
        limit = min(factored.n_samples, d)
        precision = 1e-30 * d  # (1e-15 √d)², that of singular values squared: eigenvalues below it are noise
        known = known_weight(factored, parameters, state.weight, weighted=fitted.weighted)
        selection = selection_of_fit(factored, parameters, known, limit, precision)
        spectrum = _spectrum(factored, selection, precision)
        model = PCAModel.of_spectrum(
            spectrum,
            factored,
            parameters,
            precision=precision,
            source=fitted.source,
            sample_weight=known,
        )
        left, rounding = model.certificate.relative_residual, 4 * d * float(np.finfo(np.float64).eps)
        certificate = replace(
            model.certificate,
            statement=sentences.triangular(precision),
            relative_residual_interval=(max(0.0, left - rounding), min(1.0, left + rounding)),
        )
        model = replace(model, certificate=certificate)
        if parameters.n_regressors is None:  # else the rows that were decoded are known when the fit is finished
            model = with_decoding(model, factored.mean, factored.variance, parameters.scaling)
        return model
