"""Tasks that read and fold leaves, and the progress they report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from streampca.accumulators.base import Accumulator
from streampca.block import Block, RowWeights
from streampca.execution.checkpoint.ledger import PassRecord
from streampca.execution.fold import LeafResult, run_leaf
from streampca.planning.leaves import Leaf
from streampca.planning.plan import Plan
from streampca.sources.base import ReadCount, Source


@dataclass(frozen=True)
class Progress:
    """How far a reading of the source has come."""

    phase: str
    """``"fit"`` or ``"scores"``; ``"pilot"``, ``"pass 2"`` and on, ``"components"``, ``"landmarks"`` where a solver has them."""
    rows: int
    """Rows done."""
    n_samples: int
    """Rows in all."""
    bytes: int
    """Decoded bytes read so far."""
    seconds: float
    """Seconds since the phase began."""


ProgressCallback = Callable[[Progress], None]


OnBlock = Callable[[Block, ReadCount], None]


class Task(Protocol):
    """What is done with a leaf; sent to the worker that does it."""

    common: ClassVar[str]
    """Name of the field that is the same for all leaves and may be large; a dataclass has it."""

    @property
    def source(self) -> Source:
        """Where the rows come from."""
        ...

    def for_leaf(self, leaf: Leaf) -> Task:
        """Return the task with no more of the source than `leaf` needs."""
        ...

    def __call__(self, leaf: Leaf, stop: threading.Event | None = None, on_block: OnBlock | None = None) -> LeafResult:
        """Do it."""
        ...


@dataclass(frozen=True)
class FoldTask:
    """Fold the blocks of a leaf into a state of its own."""

    common: ClassVar[str] = "accumulator"
    """What is the same for all leaves."""

    source: Source
    """Where the rows come from."""
    accumulator: Accumulator[Any, Any]
    """What they are folded into."""
    weights: RowWeights | None = None
    """Weights of the rows; None = all 1."""
    record: PassRecord | None = None
    """Where leaves that run in this process leave how far they have come."""

    def for_leaf(self, leaf: Leaf) -> FoldTask:
        """Return the task with no more of the source and of the weights than `leaf` needs."""
        start, stop = leaf.edges[0], leaf.edges[-1]
        weights = None if self.weights is None else self.weights.part(start, stop)
        return replace(self, source=self.source.part(start, stop), weights=weights, record=None)

    def __call__(self, leaf: Leaf, stop: threading.Event | None = None, on_block: OnBlock | None = None) -> LeafResult:
        """Fold."""
        return run_leaf(self.source, self.accumulator, leaf, stop, on_block, self.weights, self.record)


class Meter:
    """Counts rows and bytes as blocks finish, in any thread, and tells a callback."""

    def __init__(self, phase: str, n_samples: int, callback: ProgressCallback | None):
        self.phase, self.n_samples, self.callback = phase, n_samples, callback
        self._rows, self._bytes = 0, 0
        self._lock, self._began = threading.Lock(), time.perf_counter()

    def skip(self, plan: Plan, first: int, count: ReadCount) -> None:
        """Count the leaves before `first`, which were read, at the cost of `count`, before the run was stopped."""
        if first:
            self.add(sum(plan.leaf(index).n_rows for index in range(first)), count.bytes)

    def skip_begun(self, plan: Plan, record: PassRecord) -> None:
        """Count the blocks of leaves that were begun before the run was stopped."""
        for index, begun in record.begun_leaves().items():
            spans = plan.leaf(index).spans[: begun.blocks]
            self.add(sum(stop - start for start, stop in spans), begun.count.bytes)

    def add(self, n_rows: int, n_bytes: int) -> None:
        """Count `n_rows` rows and `n_bytes` bytes more."""
        with self._lock:
            self._rows += n_rows
            self._bytes += n_bytes
            if self.callback is not None:
                seconds = time.perf_counter() - self._began
                self.callback(Progress(self.phase, self._rows, self.n_samples, self._bytes, seconds))

    def add_block(self, block: Block, count: ReadCount) -> None:
        """Count one block."""
        self.add(len(block), count.bytes)
