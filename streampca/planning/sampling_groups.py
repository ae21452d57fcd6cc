"""The plan of a fit whose sampling errors follow from a covariance for each group of rows."""

from __future__ import annotations

from dataclasses import replace

from streampca.errors import PlanError
from streampca.formatting import as_text
from streampca.linalg.eigen import DENSE_LIMIT
from streampca.parameters import Parameters
from streampca.planning.covariance import plan_covariance
from streampca.planning.cross_validation import grouped_accumulator
from streampca.planning.plan import Plan, Resources
from streampca.sources.base import Source

_ROWS_PER_FEATURE = 128
"""Rows for each feature from which all eigenvectors and the merging of the states take less time than one more reading."""
_VERIFYING_BYTES = 128 * 2**20
"""What `verify` takes beside the states of the groups: panels of rows in float64."""


def plan_sampling_groups(source: Source, parameters: Parameters, resources: Resources, plan: Plan) -> Plan | None:
    """Return `plan` with a covariance of each group of rows; None where that does not fit, or would read or compute more.

    Beside the states of the groups there are that of all rows, five d × d matrices for all eigenvectors and the group at hand, and
    the k products of each group with the components. `verify` has to fit, too.
    """
    (n, d), m = source.shape, parameters.sampling_errors
    if d > DENSE_LIMIT or n < _ROWS_PER_FEATURE * d:
        return None
    accumulator, n_components = grouped_accumulator(parameters, source, m), parameters.count(source)
    k = min(n, d) if n_components is None else n_components
    own = resources.process_bytes + accumulator.accumulator.state_bytes(d) + 8 * d * (5 * d + m * (k + 6))
    verified = replace(resources, process_bytes=own + 2 * accumulator.state_bytes(d) + _VERIFYING_BYTES)
    try:
        plan_covariance(source, accumulator, n_components, verified)
        grouped = plan_covariance(source, accumulator, n_components, replace(resources, process_bytes=own))
    except PlanError:
        return None
    if grouped.bytes_to_read > plan.bytes_to_read:
        return None
    states = as_text(accumulator.state_bytes(d))
    note = f"sampling errors by {m} groups of rows: from a covariance of each, kept by the one reading of the fit; they take {states}"
    flops = grouped.cost.flops + 10.0 * d**3 + 2.0 * m * d * d * k
    cost = replace(grouped.cost, flops=flops, sampling_errors="groups")
    return replace(grouped, reason=plan.reason, notes=(*plan.notes, note), cost=cost)
