"""What the verification of a run accumulates beside its model: scores by groups of rows, and covariances by groups."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from streampca.accumulators.base import AnyAccumulator
from streampca.execution.score_groups import ScoreGroups
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.parameters import Parameters
from streampca.planning.covariance_accumulators import accumulator_of
from streampca.planning.cross_validation import grouped_accumulator
from streampca.runs.checks import Check
from streampca.runs.cross_validation_checks import cross_validation_checks, groups_measured
from streampca.runs.measuring import MOST_FEATURES
from streampca.runs.pairwise_checks import pairwise_checks
from streampca.runs.sampling_checks import sampling_checks, sampling_group_checks
from streampca.sources import Source

Further = list[tuple[AnyAccumulator, Callable[[Any], list[Check]]]]
"""Accumulators, each with what checks its state."""


def further_measurements(model: PCAModel | KernelModel, parameters: object, source: Source) -> Further:
    """Return what else is accumulated of a model with sampling errors or prediction errors, with the checks of its state."""
    further: Further = []
    if (errors := model.sampling_errors) is not None:
        scaling = getattr(parameters, "scaling", False)
        if errors.method == "groups" and isinstance(model, PCAModel) and isinstance(parameters, Parameters):
            by_group = grouped_accumulator(parameters, source, parameters.sampling_errors)
            further.append((by_group, partial(sampling_group_checks, model, by_group, scaling)))
        else:
            scores = ScoreGroups(model, source.shape[0], errors.n_blocks)
            further.append((scores, lambda state: sampling_checks(model, state, scaling)))
    pairwise = isinstance(model, PCAModel) and model.missing == "pairwise" and source.shape[1] <= MOST_FEATURES
    if isinstance(model, PCAModel) and isinstance(parameters, Parameters) and pairwise:
        pairs = accumulator_of(parameters, source)
        further.append((pairs, partial(pairwise_checks, model, pairs)))
    left_out = groups_measured(model, parameters, source)
    if left_out is not None and isinstance(model, PCAModel):
        further.append((left_out, partial(cross_validation_checks, model, left_out)))
    return further
