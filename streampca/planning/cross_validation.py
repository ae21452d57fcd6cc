"""The plan of a fit whose number of components follows from cross-validation: a covariance for each group of rows."""

from __future__ import annotations

from dataclasses import replace

from streampca.accumulators.by_group import ByGroup, ConsecutiveGroups
from streampca.errors import PlanError
from streampca.formatting import as_text
from streampca.linalg.cross_validation import MOST_COMPONENTS, N_GROUPS
from streampca.parameters import Parameters
from streampca.planning.covariance import plan_covariance
from streampca.planning.covariance_accumulators import accumulator_of
from streampca.planning.plan import Plan, Resources
from streampca.sources.base import Source


def grouped_accumulator(parameters: Parameters, source: Source, n_groups: int = N_GROUPS) -> ByGroup:
    """Return the accumulator of the rows of each of `n_groups` groups of consecutive rows, at most as many as rows."""
    n, accumulator = source.shape[0], accumulator_of(parameters, source)
    n_groups = min(n_groups, n)
    return ByGroup(accumulator, ConsecutiveGroups(n, n_groups), n_groups)


def plan_cross_validated(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return how the covariances of all groups are accumulated within the memory that is allowed.

    Beside the states of the groups there are that of all rows, four d × d matrices of the group that is left out, and six times as many
    vectors as components are tried.

    Raises
    ------
    PlanError
        If that does not fit.
    """
    d, accumulator = source.shape[1], grouped_accumulator(parameters, source)
    own = accumulator.accumulator.state_bytes(d) + 8 * d * (4 * d + 6 * min(d, MOST_COMPONENTS))
    try:
        plan = plan_covariance(
            source, accumulator, None, replace(resources, process_bytes=resources.process_bytes + own)
        )
    except PlanError as error:
        raise PlanError(
            f"n_components='cross_validation', with {accumulator.n_groups} covariance matrices: {error}"
        ) from error
    states = as_text(accumulator.state_bytes(d))
    flops = plan.cost.flops + accumulator.n_groups * 10.0 * d**3
    reason = f"exact; {accumulator.n_groups} matrices of {d:,} x {d:,}, one for each group of rows, take {states}, for cross-validation"
    return replace(plan, reason=reason, cost=replace(plan.cost, flops=flops))
