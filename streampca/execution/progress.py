"""Progress of a pass over the source, as reported to a callback."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from streampca.block import Block
from streampca.execution.checkpoint.progress_log import BegunLeaf
from streampca.planning.plan import Plan
from streampca.sources.base import ReadCount

THREADS, WORKERS = "threads of this process", "workers of a cluster"


@dataclass(frozen=True)
class Progress:
    """State of a pass over the source."""

    phase: str
    """``"fit"`` or ``"scores"``; ``"pilot"``, ``"pass 2"`` and on, ``"components"``, ``"landmarks"``, ``"sampling errors"`` where a fit has them."""
    rows: int
    """Rows done, or what `unit` names."""
    n_samples: int
    """Rows in all."""
    bytes: int
    """Decoded bytes read so far."""
    seconds: float
    """Seconds since the phase began."""
    unit: str = "rows"
    """What is counted: ``"rows"``; ``"features"`` where wide data are read by features; ``"chunks"`` of a store."""
    rows_before: int = 0
    """Rows, or what `unit` names, among those done that an earlier process did, before it was stopped."""
    bytes_before: int = 0
    """Bytes among those read that it read."""
    runs_on: str = THREADS
    """What reads: ``"threads of this process"`` or ``"workers of a cluster"``."""
    waiting_for: str = ""
    """Why nothing is read at the moment; empty where something is."""

    @property
    def bytes_per_second(self) -> float:
        """Return the rate at which this process reads."""
        return (self.bytes - self.bytes_before) / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float:
        """Return how long the rest takes at the rate of this process; 0 where it has done nothing yet."""
        done = self.rows - self.rows_before
        return self.seconds * (self.n_samples - self.rows) / done if done > 0 else 0.0


ProgressCallback = Callable[[Progress], None]


class Meter:
    """Counts rows and bytes of finished blocks, from any thread, and reports them to a callback."""

    def __init__(
        self, phase: str, n_samples: int, callback: ProgressCallback | None, unit: str = "rows", runs_on: str = THREADS
    ):
        self.phase, self.n_samples, self.callback, self.unit, self.runs_on = phase, n_samples, callback, unit, runs_on
        self._rows, self._bytes = 0, 0
        self._rows_before, self._bytes_before = 0, 0
        self._lock, self._began = threading.Lock(), time.perf_counter()
        self._last = self._began

    def skip(self, plan: Plan, first: int, count: ReadCount, unfinished: Mapping[int, BegunLeaf]) -> None:
        """Count the leaves before `first`, which an earlier process read at the cost of `count`, and the blocks of `unfinished` ones."""
        before = [(sum(plan.leaf(index).n_rows for index in range(first)), count.bytes)] if first else []
        for index, begun in unfinished.items():
            spans = plan.leaf(index).spans[: begun.blocks]
            before.append((sum(stop - start for start, stop in spans), begun.count.bytes))
        for n_rows, n_bytes in before:
            with self._lock:
                self._rows_before += n_rows
                self._bytes_before += n_bytes
            self.add(n_rows, n_bytes)

    def add(self, n_rows: int, n_bytes: int) -> None:
        """Count `n_rows` rows, or other units, and `n_bytes` bytes more."""
        with self._lock:
            self._last = time.perf_counter()
            self._rows += n_rows
            self._bytes += n_bytes
            self._report()

    def _report(self, waiting_for: str = "") -> None:
        if self.callback is not None:
            seconds = time.perf_counter() - self._began
            done = self._rows, self.n_samples, self._bytes, seconds
            before = self._rows_before, self._bytes_before
            self.callback(Progress(self.phase, *done, self.unit, *before, self.runs_on, waiting_for))

    @property
    def quiet_seconds(self) -> float:
        """Return how long nothing was counted."""
        return time.perf_counter() - self._last

    def wait(self, reason: str) -> None:
        """Report that nothing is read, and why."""
        with self._lock:
            self._report(reason)

    def add_block(self, block: Block, count: ReadCount) -> None:
        """Count one block."""
        self.add(len(block), count.bytes)


class Onward:
    """Tells a callback of several readings as if they were one."""

    def __init__(self, callback: ProgressCallback, n_readings: int):
        self.callback, self.n_readings = callback, n_readings
        self._before = self._last = Progress("fit", 0, 0, 0, 0.0)

    def __call__(self, step: Progress) -> None:
        """Tell how far all readings have come."""
        done = self._before
        self._last = replace(
            step,
            rows=done.rows + step.rows,
            n_samples=self.n_readings * step.n_samples,
            bytes=done.bytes + step.bytes,
            seconds=done.seconds + step.seconds,
            rows_before=done.rows_before + step.rows_before,
            bytes_before=done.bytes_before + step.bytes_before,
        )
        self.callback(self._last)

    def next_reading(self) -> None:
        """Count on from here."""
        self._before = self._last
