"""Plans of readings that only accumulate figures of the features or rows: no matrix, no components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.planning.blocks import block_rows_to_try
from streampca.planning.budget import MemoryNeed
from streampca.planning.memory import reading_needs
from streampca.planning.plan import Plan
from streampca.planning.shape import WorkShape, count_leaves, divide
from streampca.planning.work import Figures, Resources, Work
from streampca.sources.base import Source

_SMALL_STATE_BYTES = 16 * 2**20


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
