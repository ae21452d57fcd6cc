"""Fits without what the parameter `remove` names: the same solvers, on residuals that are formed while rows are read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.joint import Joint
from streampca.accumulators.residuals import FeatureResiduals, Residuals
from streampca.accumulators.rows import RowsState
from streampca.execution.readings import Answer, AnyReading, Reading
from streampca.models import certificate_sentences as sentences
from streampca.models.decoding import with_decoding
from streampca.parameters import Parameters
from streampca.planning.plan import Resources
from streampca.regressors import Basis, FittedRegression, Regressors
from streampca.sources.base import Source
from streampca.sources.residuals import RowResiduals, subtract_fitted
from streampca.sources.steps import SteppedSource
from streampca.typing import Array, DType, FloatArray, IntArray

if TYPE_CHECKING:
    from streampca.solvers.result import Fit


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


def with_regressors(resources: Resources, source: Source, regressors: Regressors) -> Resources:
    """Return `resources` with the regressors, from which `planning.memory.removal_bytes` follows."""
    n_bytes = 2 * regressors.rows.columns.nbytes + regressors.rows.codes.nbytes + 16 * source.shape[0]
    return replace(
        resources,
        n_regressors=regressors.orthogonal.size,
        only_groups=regressors.only_groups,
        regressors_bytes=n_bytes,
    )


class Removing:
    """Has the readings of a fit made of residuals: the first accumulates residuals and coefficients, later ones read residuals.

    A relay, see `execution.readings`.
    """

    def __init__(self, regressors: Regressors, source: Source, dtype: DType):
        self.regressors, self.source = regressors, source
        self.dtype = dtype
        self.fitted: FittedRegression | None = None
        self._first: Residuals | FeatureResiduals | None = None
        self._inner: tuple[AnyAccumulator, ...] = ()

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
            approximate = reading.plan.solver in ("sketch", "adaptive")
            self._first = Residuals(inner, self.regressors, str(self.dtype), approximate)
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
        certificate = fit.model.certificate.saying(sentences.of_residuals(self.regressors.orthogonal.size))
        model = replace(fit.model, mean=fitted.mean, removal=fitted, certificate=certificate)
        mean, removed = self.removed()
        model = with_decoding(model, mean, removed=removed)
        return replace(fit, model=model, samples=samples, fitted_state=None)

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
