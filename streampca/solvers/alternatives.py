"""Plans of the solvers that were not chosen, beside the one that was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from streampca.errors import StreamPCAError
from streampca.parameters import Parameters
from streampca.planning.cost import expected_seconds
from streampca.planning.plan import Plan, with_repeated_reads
from streampca.planning.work import Resources
from streampca.solvers.registry import SOLVERS
from streampca.sources.base import Source
from streampca.typing import Json

_FIGURES = (
    *("passes", "sketch", "projected_bytes", "bytes_to_read", "flops", "work_dtype"),
    *("expected_seconds", "expected_by"),
)


def with_time(plan: Plan, resources: Resources) -> Plan:
    """Return `plan` with the seconds that a fit is expected to take."""
    solver = SOLVERS[plan.solver]
    rates = solver.nominal_rates(plan)
    seconds = expected_seconds(plan, rates, solver.solve_seconds(plan, rates))
    seconds += sum(each.seconds(plan, rates) for each in resources.companions)
    return replace(plan, expected_seconds=seconds, expected_by="nominal rates")


def plan_by(solver: str, source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of a fit by the solver of that name.

    Raises
    ------
    NotAvailableError, ParameterError
        If it does not take such rows or parameters.
    PlanError
        If the work does not fit in memory.
    """
    SOLVERS[solver].require(source, parameters)
    return with_repeated_reads(SOLVERS[solver](source, parameters).plan(resources), source)


def with_alternatives(plan: Plan, source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return `plan` with its expected time, and with the figures of every other solver, or why it does not do."""

    def planned(solver: str) -> Plan:
        return with_time(plan_by(solver, source, parameters, resources), resources)

    others = tuple(figures_of(name, partial(planned, name)) for name in SOLVERS if name != plan.solver)
    plan = with_time(plan, resources)
    refusals = {f"solver {other['solver']}: {other['why']}" for other in others}  # notes of `auto`
    notes = tuple(note for note in plan.notes if note not in refusals)
    by_name = parameters.solver != "auto"
    why = "asked for by name" if by_name else SOLVERS[plan.solver](source, parameters).reason_chosen(plan)
    return replace(plan, alternatives=others, notes=notes, reason=f"{plan.reason}; {why}")


def figures_of(solver: str, planned: Callable[[], Plan]) -> Json:
    """Return the figures of a solver that was not chosen, or why it does not do: what `planned` returns or raises."""
    try:
        plan = planned()
    except StreamPCAError as error:
        return {"solver": solver, "fits": False, "why": str(error)}
    figures = {name: getattr(plan, name) for name in _FIGURES}
    return {"solver": solver, "fits": True, "why": plan.reason, **figures}
