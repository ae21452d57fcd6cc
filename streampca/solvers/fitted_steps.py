"""Steps that must be fitted to all rows before anything else is read, by one mechanism (`sources.steps.FittedStep`).

Who reads a table after its steps asks `fit_steps` first; then they are figures that the steps have, wherever these are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.rows import Moments, RowTotals
from streampca.execution.distributed.active_client import active_client
from streampca.execution.readings import Reading, Readings, run_fit
from streampca.formatting import plural
from streampca.planning.memory import ALLOWANCE_BYTES, MemoryNeed, allowed_bytes, reading_needs
from streampca.planning.plan import Plan, with_read_ahead
from streampca.planning.shape import WorkShape, block_rows_to_try, bytes_to_read, count_leaves, divide
from streampca.planning.work import Figures, Resources, Work, for_workers, worker_limits
from streampca.sources.base import Source
from streampca.system.process import n_cores, process_bytes

FIGURES_OF_ROWS: Mapping[str, Callable[[Source], AnyAccumulator]] = {
    "moments": lambda rows: Moments(),
    "row totals": lambda rows: RowTotals(rows.shape[0]),
}
"""What is accumulated for a step, by the name that it gives."""
_SMALL_STATE_BYTES = 16 * 2**20


def plan_reading(source: Source, accumulators: tuple[AnyAccumulator, ...], like: Plan) -> Plan:
    """Return how `source` is read into `accumulators` with the memory and threads of the plan `like`."""
    limits = worker_limits(active_client(source))
    process = max(0, like.budget.bytes_for("process", "weights", "groups", "diagnostics") - ALLOWANCE_BYTES)
    resources = Resources(like.allowed_bytes, process, like.threads, on_workers=bool(limits))
    plan = with_read_ahead(plan_statistics(source, accumulators, resources), source, None)
    return for_workers(plan, limits)


def fit_steps(source: Source, like: Plan) -> Readings[None]:
    """Read what the steps of `source` have to know, one after another, in the memory of the plan `like`; nothing if all is known."""
    for rows, step in source.unfitted:
        accumulator = FIGURES_OF_ROWS[step.statistic](rows)
        phase = f"figures of {type(step).__name__}"
        reading = Reading(rows, (accumulator,), plan_reading(rows, (accumulator,), like), phase=phase)
        (state,) = (yield reading).take()
        step.fit(accumulator.finalize(state))


def with_figures(source: Source, memory: int | str | None = None, threads: int | None = None) -> Source:
    """Return `source` after what its steps have to know was read, where it is not known."""
    if source.unfitted:
        resources = Resources(allowed_bytes(memory), process_bytes(), threads or n_cores())
        run_fit(fit_steps(source, plan_statistics(source, (Moments(),), resources)), active_client(source))
    return source


def with_steps(plan: Plan, source: Source) -> Plan:
    """Return `plan`, of a fit of `source`, with the readings that its steps ask for before it."""
    rows = [rows for rows, _ in source.unfitted]
    if not rows:
        return plan
    note = (
        f"{plural(len(rows), 'earlier reading takes', 'earlier readings take')} the figures of all rows that steps need"
    )
    more = sum(bytes_to_read(each, min(each.shape[0], plan.rows_per_block)) for each in rows)
    return replace(
        plan, passes=plan.passes + len(rows), bytes_to_read=plan.bytes_to_read + more, notes=(*plan.notes, note)
    )


@dataclass(frozen=True)
class StatisticsWork(Work):
    """One reading of the rows into the states of some accumulators."""

    accumulators: tuple[AnyAccumulator, ...]
    """The accumulators."""

    name: ClassVar[str] = "statistics"

    @override
    @property
    def work_dtype(self) -> str:
        return "float64"

    @property
    def _state_bytes(self) -> int:
        return sum(each.state_bytes(self.source.shape[1]) for each in self.accumulators)

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, state = self.source.shape[0], self._state_bytes
        n_leaves = count_leaves(n, -(-n // rows), self.source.row_bytes, state)
        at_once = (leaves, threads_per_leaf, self.resources.threads)
        return divide(n, rows, n_leaves, at_once, state_bytes=state, small_state_bytes=_SMALL_STATE_BYTES)

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what states, (1 + W) S, blocks and scratch take."""
        d = self.source.shape[1]
        scratch = sum(each.scratch_bytes(d, shape.rows_per_block, 8) for each in self.accumulators)
        return [*reading_needs(self.source, shape, (self._state_bytes, scratch))]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        n, d = self.source.shape
        return Figures("figures of all rows, in one reading", float(n) * d)


def plan_statistics(source: Source, accumulators: tuple[AnyAccumulator, ...], resources: Resources) -> Plan:
    """Return how `source` is read once into the states of `accumulators`; `PlanError` if that does not fit."""
    work = StatisticsWork(source, None, resources, accumulators)
    plan = work.best(block_rows_to_try(source, np.dtype(np.float64)), 0, 1)
    if not plan.budget.fits:
        raise plan.budget.refusal("", subject="figures of all rows: ")
    return plan
