"""The plan of one fit for each group of rows, from one reading: a state and a model for each."""

from __future__ import annotations

from dataclasses import replace

from streampca.accumulators.by_group import ByGroup
from streampca.errors import PlanError
from streampca.formatting import as_text
from streampca.planning.budget import Resources
from streampca.planning.covariance import plan_covariance
from streampca.planning.plan import Plan
from streampca.sources.base import Source

_OBJECT_BYTES = 8192
"""Memory of the objects of an estimator, its model and its state beside their numbers: 7 kB were measured for 16,000 groups."""


def plan_groups(source: Source, accumulator: ByGroup, n_components: int | None, resources: Resources) -> Plan:
    """Return how the covariances of all groups, and that within groups, are accumulated within the memory that is allowed.

    Raises
    ------
    PlanError
        If they do not fit: with what is projected, and how many groups would.
    """
    try:
        plan = _plan(source, accumulator, n_components, resources)
    except PlanError as error:
        low, high = 0, accumulator.n_groups
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _fits(source, accumulator, middle, n_components, resources) else (low, middle)
        most = f"at most {low} groups would fit" if low else "not even one group would fit"
        raise PlanError(f"{accumulator.n_groups} groups, with a covariance matrix each: {error}; {most}") from error
    d = source.shape[1]
    states = as_text(accumulator.state_bytes(d))
    reason = f"exact; {accumulator.n_groups} matrices of {d:,} x {d:,}, one for each group, take {states}"
    return replace(plan, reason=reason)


def _plan(source: Source, accumulator: ByGroup, n_components: int | None, resources: Resources) -> Plan:
    """Return the plan; the codes of the groups, the models and the pooled matrix count as memory of the process."""
    d = source.shape[1]
    k = min(source.shape) if n_components is None else n_components
    models = (accumulator.n_groups + 1) * (8 * (k * d + 8 * d) + _OBJECT_BYTES)
    pooled = 2 * accumulator.accumulator.state_bytes(d)
    beside = 2 * accumulator.codes.nbytes + models + pooled
    return plan_covariance(
        source, accumulator, n_components, replace(resources, process_bytes=resources.process_bytes + beside)
    )


def _fits(source: Source, accumulator: ByGroup, n_groups: int, n_components: int | None, resources: Resources) -> bool:
    try:
        _plan(source, replace(accumulator, n_groups=n_groups), n_components, resources)
    except PlanError:
        return False
    return True
