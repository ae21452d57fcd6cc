"""Data quality beside a fit: planned with it, and accumulated in its first reading of all rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.joint import Joint
from streampca.accumulators.quality import Quality, QualityState
from streampca.block import Block
from streampca.planning.plan import Plan
from streampca.sources.base import ReadCount, Source

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class QualityFound:
    """What a reading says of the quality of the data."""

    accumulator: Quality
    """Which rows and features were examined."""
    state: QualityState
    """The sums over them."""


class QualityReading:
    """Adds the accumulator of data quality to the first reading of a fit that reads all rows, and keeps its state."""

    def __init__(self, accumulator: Quality):
        self.accumulator = accumulator
        self.found: QualityFound | None = None

    @classmethod
    def of(cls, source: Source, plan: Plan, missing: str) -> QualityReading:
        """Return the reading for a fit of `source` by `plan`, with the parameter `missing`."""
        rows = plan.n_samples if plan.axis == "features" else plan.rows_per_block
        return cls(replace(quality_of(source, rows, missing), by_features=plan.axis == "features"))

    def joined(
        self, accumulator: AnyAccumulator, read: Callable[[AnyAccumulator], tuple[Any, ReadCount]]
    ) -> tuple[Any, ReadCount]:
        """Return the state of `accumulator` by a reading of all rows that examines them, too, and what it cost."""
        parts = accumulator.parts if isinstance(accumulator, Joint) else (accumulator,)
        (*states, state), count = read(Joint((*parts, self.accumulator)))
        self.found = QualityFound(self.accumulator, state)
        return tuple(states) if isinstance(accumulator, Joint) else states[0], count

    def examine(self, block: Block) -> None:
        """Examine the next rows of a method that reads without an accumulator."""
        kept = self.found
        state = self.accumulator.init(block.values.shape[1]) if kept is None else kept.state
        self.found = QualityFound(self.accumulator, self.accumulator.update(state, block))


def quality_of(source: Source, rows_per_block: int, missing: str) -> Quality:
    """Return the accumulator of data quality for the rows of `source`."""
    may_miss = missing != "error" and source.dtype.kind == "f"
    chunk = (source.chunk_rows, source.chunk_columns or source.shape[1])
    return Quality.of(source.shape, str(source.dtype), chunk, rows_per_block, missing=may_miss)


def quality_bytes(source: Source, threads: int, missing: str) -> int:
    """Return what data quality takes beside a fit: 2 N + 2 states and N times the scratch of an update, N = `threads` (``docs/reference/memory-formulas.md``)."""
    quality, (n, d) = quality_of(source, source.shape[0], missing), source.shape
    scratch = quality.scratch_bytes(d, n, source.dtype.itemsize)
    return (2 * threads + 2) * quality.state_bytes(d) + threads * scratch
