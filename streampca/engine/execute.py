"""Leaves on threads or on a Dask cluster, merged in the plan's order whatever the order in which they finish."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.base import Accumulator
from streampca.block import Block, RowWeights
from streampca.engine.fold import LeafResult, in_branches, run_leaf
from streampca.engine.interrupts import heed, uninterrupted
from streampca.engine.leaves import Leaf
from streampca.engine.ledger import Reading, next_reading, note_stop
from streampca.engine.memory import give_back_freed_memory
from streampca.engine.plan import Plan
from streampca.sources.base import ReadCount, Source
from streampca.workspace import release


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
    record: Reading | None = None
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

    def skip_begun(self, plan: Plan, record: Reading) -> None:
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


class _Future(Protocol):
    def add_done_callback(self, callback: Callable[[Any], Any]) -> Any: ...
    def result(self) -> LeafResult: ...


def accumulate(
    source: Source,
    accumulator: Accumulator[Any, Any],
    plan: Plan,
    *,
    client: Any = None,
    progress: ProgressCallback | None = None,
    weights: NDArray[np.float64] | None = None,
    phase: str = "fit",
) -> tuple[Any, ReadCount]:
    """Read `source` once and return the state of all rows, and what the reading cost.

    `weights` are those of the rows, ``(n_samples,)``; None = all 1. `phase` is what `progress` is told.

    Leaves run on a thread pool of this process, or on the workers of `client`, a `distributed.Client`. Where a ledger is
    in use, what it holds of this reading is not read again, and what is done is kept in it.

    Raises
    ------
    DataError
        If data is missing, damaged or not finite: of several faults, the one in the earliest leaf.
    ClusterError
        If the cluster lost a task for good.
    """
    with source.reading():
        return _accumulated(source, accumulator, plan, client, progress, weights, phase)


def _accumulated(
    source: Source,
    accumulator: Accumulator[Any, Any],
    plan: Plan,
    client: Any,
    progress: ProgressCallback | None,
    weights: NDArray[np.float64] | None,
    phase: str,
) -> tuple[Any, ReadCount]:
    """Carry out `accumulate` for data that have been checked."""
    record, meter = next_reading(phase, plan, type(accumulator).__name__), Meter(phase, plan.extent, progress)
    total, count, turn = record.begin(accumulator.init(source.shape[1]))
    meter.skip(plan, turn, count)
    if client is None:
        meter.skip_begun(plan, record)
    of_rows = None if weights is None else RowWeights(weights)
    results = _merged(FoldTask(source, accumulator, of_rows, record), plan, meter, client, turn)
    whole = True
    try:
        for result in results:
            heed()
            with uninterrupted():
                whole = False
                total = accumulator.absorb(total, result.state)
                count += result.count
                turn, whole = min(turn + plan.leaves_per_branch, plan.n_leaves), True
            del result
            record.absorbed(turn - 1, total, count)
    except BaseException as error:
        note_stop(error)
        results.close()
        if whole:
            record.stopped(turn, total, count)
        raise
    finally:
        results.close()
    give_back_freed_memory()
    return total, count


def execute(task: Task, plan: Plan, meter: Meter, client: Any = None, first: int = 0) -> Generator[LeafResult]:
    """Yield the results of `task` for all leaves from `first` on in the plan's order, from threads or from the workers of `client`."""
    if client is None:
        return _on_threads(task, plan, meter, first)
    from streampca.engine.cluster import on_cluster

    return on_cluster(client, task, plan, meter, first)


def _merged(task: FoldTask, plan: Plan, meter: Meter, client: Any, first: int) -> Generator[LeafResult]:
    """Yield the results of `task` for all branches, merged where they were read, or for all leaves where there are no branches."""
    if plan.leaves_per_branch == 1:
        return execute(task, plan, meter, client, first)
    if client is None:
        return in_branches(_on_threads(task, plan, meter, first), task.accumulator, plan.leaves_per_branch)
    from streampca.engine.cluster import branches_on_cluster

    return branches_on_cluster(client, task, plan, meter, first)


def _on_threads(task: Task, plan: Plan, meter: Meter, first: int = 0) -> Generator[LeafResult]:
    stop = threading.Event()
    pool = ThreadPoolExecutor(plan.leaves_in_flight, thread_name_prefix="streampca-leaf")
    try:
        yield from in_order(plan, lambda leaf: pool.submit(task, leaf, stop, meter.add_block), first)
        _release_all(pool, plan.leaves_in_flight)
    except BaseException as error:
        note_stop(error)  # before the leaves end, so that they leave what they have
        stop.set()
        task.source.hurry()
        raise
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _release_all(pool: ThreadPoolExecutor, n_threads: int) -> None:
    """Let every thread of `pool` give back its scratch memory; a barrier sees to it that each gets one call."""
    barrier = threading.Barrier(n_threads)

    def one() -> None:
        release()
        barrier.wait(timeout=60)

    for done in [pool.submit(one) for _ in range(n_threads)]:
        done.result()


def in_order(plan: Plan, submit: Callable[[Leaf], _Future], first: int = 0) -> Iterator[LeafResult]:
    """Keep a window of leaves in flight and yield their results in order from `first` on, each as soon as all before it are there.

    An error is raised when its leaf's turn comes, so that the error of a run does not depend on who was faster.
    """
    done: queue.SimpleQueue[int] = queue.SimpleQueue()
    futures: dict[int, _Future] = {}
    arrived: set[int] = set()
    submitted = first
    for turn in range(first, plan.n_leaves):
        while submitted < min(plan.n_leaves, turn + plan.window):
            index = submitted
            futures[index] = submit(plan.leaf(index))
            futures[index].add_done_callback(partial(_arrived, done, index))
            submitted += 1
        while turn not in arrived:
            arrived.add(done.get())
        yield futures.pop(turn).result()


def _arrived(done: queue.SimpleQueue[int], index: int, _: object) -> None:
    done.put(index)
