"""Check of the prediction errors of a run, from which cross-validation takes its number of components."""

from __future__ import annotations

import numpy as np

from streampca.accumulators import ByGroup, GroupStates
from streampca.linalg.cross_validation import GroupScatter, best_count, prediction_errors
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.parameters import Parameters
from streampca.planning.covariance_accumulators import general_form
from streampca.planning.cross_validation import grouped_accumulator
from streampca.runs.checks import Check, close
from streampca.sources import Source

_ALLOWED = 1e-3
"""Errors are compared to three digits: where eigenvalues nearly coincide, rounding turns the components that predict."""


def groups_measured(model: PCAModel | KernelModel, parameters: object, source: Source) -> ByGroup | None:
    """Return what accumulates the covariances of the groups that were left out in turn; None where none were."""
    known = isinstance(model, PCAModel) and model.prediction_errors is not None
    return grouped_accumulator(parameters, source) if known and isinstance(parameters, Parameters) else None


def cross_validation_checks(model: PCAModel, accumulator: ByGroup, state: GroupStates) -> list[Check]:
    """Compare the recorded prediction errors with those of the measured groups."""
    recorded = model.prediction_errors
    if recorded is None:
        return []
    grid, factors = (
        accumulator.grid(len(model.mean)),
        np.ones(len(model.mean)) if model.weights is None else model.weights,
    )
    forms = [general_form(accumulator.inner, group)[1] for group in state.groups]
    groups = [GroupScatter(grid, each.scatter, each.mean, each.weight) for each in forms]
    measured = prediction_errors(groups, factors, center=model.center)
    if len(measured) != len(recorded):
        return [Check("prediction errors", len(recorded), len(measured), holds=False, note="how many there are")]
    worst = int(np.abs(measured - recorded).argmax())
    best = best_count(recorded)
    note = f"of {worst} component(s), the worst, relative to that of none; the least is that of {best}"
    return [close("prediction errors", recorded[worst], measured[worst], float(recorded[0]), _ALLOWED, note)]
