"""Memory for stored bytes that are read ahead of their use from a remote store."""

from __future__ import annotations

from dataclasses import replace

from streampca.planning.budget import Phase
from streampca.planning.plan import Plan
from streampca.sources.base import Source
from streampca.sources.schedule import Schedule

READ_AHEAD_BYTES = 128 * 2**20
"""Memory for reading ahead where nothing else is said: 32 requests of 4 MiB."""
_PHASES: tuple[Phase, ...] = ("pilot", "landmarks", "reading", "components", "scores")


def with_read_ahead(plan: Plan, source: Source, most: int | None) -> Plan:
    """Return `plan` with memory for reading ahead: at most `most` bytes, None = 128 MiB, of what the ceiling leaves.

    Blocks and leaves stay as they are, so that no bit of a result depends on it.
    """
    phases = [phase for phase in _PHASES if phase in plan.budget.by_phase]
    if not source.reads_ahead or not phases:
        return plan
    left = plan.allowed_bytes - max(plan.budget.by_phase[phase] for phase in phases)
    n_bytes = max(0, min(READ_AHEAD_BYTES if most is None else most, left))
    budget = plan.budget.with_purpose("read ahead", n_bytes, phases)
    return replace(plan, budget=budget, read_ahead_bytes=n_bytes)


def schedule_of(plan: Plan, source: Source, first: int = 0) -> Schedule:
    """Return what threads of this process read by `plan`, from leaf `first` on: blocks of equal rows are not read."""

    def spans_of(index: int) -> list[tuple[int, int]]:
        spans = plan.leaf(first + index).spans
        return [(start, stop) for start, stop in spans if source.equal_rows(start, stop) != ((start, stop),)]

    return Schedule(plan.n_leaves - first, spans_of, plan.leaves_in_flight, plan.read_ahead_bytes)
