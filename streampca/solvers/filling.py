"""Missing values replaced by means, for solvers that have to know the means before they multiply rows: one more reading."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from streampca.accumulators.centring import product_dtype, require_observed
from streampca.accumulators.sketch import Sketch
from streampca.accumulators.sketched import SketchState
from streampca.execution.readings import Reading, ReadingAlone, Readings
from streampca.models.rounding import with_missing
from streampca.parameters import Parameters
from streampca.planning.blocks import bytes_to_read
from streampca.planning.plan import Plan
from streampca.solvers.pilot import observed_origin, origin_bytes
from streampca.sources.base import Source
from streampca.sources.filled import Filled
from streampca.sources.steps import SteppedSource
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from streampca.solvers.result import Fit


def complete(parameters: Parameters) -> Parameters:
    """Return the parameters of a fit of rows whose missing values have been replaced."""
    return replace(parameters, missing="error")


def unread(source: Source) -> SteppedSource:
    """Return the source that will be fitted, to plan for; its means are not known yet."""
    zeros = np.zeros(source.shape[1])
    return SteppedSource(source, [Filled(zeros, zeros, product_dtype(source.dtype, source.shape[1]))])


def with_means_first(plan: Plan, source: Source) -> Plan:
    """Return `plan`, of a fit of the filled rows, with the reading for means of `source` before it."""
    reading = bytes_to_read(source, plan.rows_per_block) + origin_bytes(source)
    note = "the first reading takes the means of features, which later ones put in place of missing values"
    return replace(
        plan,
        dtype=str(source.dtype),
        passes=plan.passes + 1,
        bytes_to_read=plan.bytes_to_read + reading,
        notes=(*plan.notes, note),
    )


@dataclass(frozen=True)
class Filling:
    """What the reading for means found."""

    source: SteppedSource
    """The rows without missing values."""
    subtracted: FloatArray
    """What they are less than the stored rows, ``(n_features,)``."""
    means: SketchState
    """Means and numbers of observed values."""

    @classmethod
    def read(cls, source: Source, parameters: Parameters, plan: Plan) -> Readings[Filling]:
        """Read `source` once for the means of what was observed.

        Raises
        ------
        DataError
            If a feature was observed in no row.
        """
        d = source.shape[1]
        unseen = partial(observed_origin, source, np.zeros(d), np.zeros(d, dtype=bool), parameters.sample_weight)
        (origin,) = (yield ReadingAlone(lambda client, progress: unseen())).take()
        moments = Sketch(np.empty((d, 0), dtype=plan.work_dtype), missing="pairwise", origin=origin, key="means")
        (state,) = (
            yield Reading(source, (moments,), plan.unshuffled(), parameters.sample_weight, phase="means")
        ).take()
        require_observed(state.observed > 0)
        # Not the mean itself: beside the rows less `origin`, its rounding would be a part of far means, not of the differences.
        subtracted, offset = (
            (state.origin, state.sums / state.observed) if parameters.center else (np.zeros(d), state.mean)
        )
        filled = SteppedSource(source, [Filled(subtracted, offset, product_dtype(source.dtype, d))])
        return cls(filled, subtracted, state)

    def parameters_of(self, parameters: Parameters) -> Parameters:
        """Return the parameters of the fit of the filled rows, whose means do not tell scales: those are weights of features."""
        parameters = complete(parameters)
        if not parameters.scaling.of_means:
            return parameters
        factors = parameters.scaling.weights(*self._moments()) ** 2
        given = parameters.feature_weight
        return replace(parameters, scale=False, feature_weight=factors if given is None else factors * given)

    def _moments(self) -> tuple[FloatArray, FloatArray]:
        """Return the variances, of which only the sign counts, and the means of what was observed."""
        mean = self.means.sums / self.means.observed  # about the origin
        variance = np.maximum(self.means.squares / self.means.observed - mean**2, 0.0)
        return variance, self.means.mean

    def finished(self, fit: Fit, parameters: Parameters) -> Fit:
        """Return the fit of the filled rows as that of the rows with missing values."""
        model = with_missing(fit.model, "mean", self.means, 0, None, parameters.missing_scores)
        if parameters.scaling.of_means:
            divisors = parameters.scaling.divisors(*self._moments())
            model = replace(model, scale=divisors, feature_weight=parameters.feature_weight)
        return replace(fit, model=model)
