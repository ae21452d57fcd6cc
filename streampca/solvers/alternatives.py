"""What the solvers that were not chosen would take, beside the one that was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.accumulators.sketch import Sketch
from streampca.errors import StreamPCAError
from streampca.parameters import Parameters
from streampca.planning.cost import PROBE_WIDTH, expected_seconds, nominal_rates, probe
from streampca.planning.kinds import accumulator_of
from streampca.planning.plan import Plan, Resources, with_repeated_reads
from streampca.solvers import SOLVERS, solver_of
from streampca.sources.base import Source
from streampca.system.process import give_back_freed_memory

_MOST_PROBED = 2**28  # decoded bytes of a block that a probe reads


def with_time(plan: Plan, source: Source, parameters: Parameters, *, probed: bool = False) -> Plan:
    """Return `plan` with the seconds that a fit is expected to take.

    From nominal rates, or with `probed` from rates that are measured by reading and folding a few blocks, unless a block takes
    so many bytes, as one of whole columns does, that this would take longer than to be told is worth.
    """
    rates = nominal_rates(plan)
    by_axis = source if plan.axis == "samples" or not probed else source.by_features()
    if probed and by_axis.reads_of(0, min(plan.rows_per_block, by_axis.shape[0])) <= _MOST_PROBED:
        accumulator = _accumulator(plan, parameters, source)
        rates = probe(by_axis, accumulator, plan)
        give_back_freed_memory()
    return replace(
        plan, expected_seconds=expected_seconds(plan, rates), expected_by="probe" if rates.probed else "nominal rates"
    )


def _accumulator(plan: Plan, parameters: Parameters, source: Source) -> Any:
    """Return what the first reading folds blocks of `source` into; for covariances that depends on the kind of rows."""
    if plan.sketch:
        columns = plan.sketch["columns"] + plan.sketch["held_out"]
        return Sketch(np.ones((min(plan.n_features, PROBE_WIDTH), columns), dtype=plan.work_dtype), key="probe")
    if plan.solver == "covariance":
        return accumulator_of(parameters, source)
    return solver_of(plan.solver).accumulator_of(parameters)


def with_alternatives(
    plan: Plan, source: Source, parameters: Parameters, resources: Resources, *, probed: bool = False
) -> Plan:
    """Return `plan` with its expected time, and with the figures of every other solver, or why it does not do."""
    others = tuple(_figures(name, source, parameters, resources, probed) for name in SOLVERS if name != plan.solver)
    plan = with_time(plan, source, parameters, probed=probed)
    told = {f"solver {other['solver']}: {other['why']}" for other in others}  # why `auto` passed it over
    notes = tuple(note for note in plan.notes if note not in told)
    return replace(plan, alternatives=others, notes=notes, reason=f"{plan.reason}; {_why(plan, parameters)}")


def _why(plan: Plan, parameters: Parameters) -> str:
    if parameters.solver != "auto":
        return "asked for by name"
    n, d = plan.n_samples, plan.n_features
    if plan.sketch and parameters.tolerance is not None:
        return f"chosen because errors up to {parameters.tolerance:g} are allowed, and it is expected to take less time or memory than exact solvers"
    if plan.sketch:
        return "chosen because no exact solver fits in the memory"
    if plan.solver == "gram":
        if 2 * n > d:
            return "chosen because the covariance matrix does not fit"
        return f"chosen because there are at most half as many samples as features: n² d flops, {d / n:,.0f} times fewer than n d²"
    if 2 * n > d:
        return "chosen because one reading is enough, and there are more samples than half the features"
    return "chosen because one reading is enough, and there are few features or gram does not do"


def _figures(solver: str, source: Source, parameters: Parameters, resources: Resources, probed: bool) -> dict[str, Any]:
    try:
        other = with_repeated_reads(solver_of(solver).plan(source, parameters, resources), source)
    except StreamPCAError as error:
        return {"solver": solver, "fits": False, "why": str(error)}
    other = with_time(other, source, parameters, probed=probed)
    return {
        "solver": solver,
        "fits": True,
        "why": other.reason,
        "passes": other.passes,
        "sketch": other.sketch,
        "projected_bytes": other.projected_bytes,
        "bytes_to_read": other.bytes_to_read,
        "flops": other.flops,
        "work_dtype": other.work_dtype,
        "expected_seconds": other.expected_seconds,
        "expected_by": other.expected_by,
    }
