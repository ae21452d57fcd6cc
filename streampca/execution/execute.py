"""Leaves on threads or on a Dask cluster, merged in the plan's order whatever the order in which they finish."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.base import Accumulator
from streampca.block import RowWeights
from streampca.execution.checkpoint.ledger import next_reading, note_stop
from streampca.execution.fold import LeafResult, in_branches
from streampca.execution.task import FoldTask, Meter, ProgressCallback, Task
from streampca.planning.leaves import Leaf
from streampca.planning.plan import Plan
from streampca.sources.base import ReadCount, Source
from streampca.storage.signals import raise_pending_signal, uninterrupted
from streampca.system.process import release_freed_memory
from streampca.system.workspace import release


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
            raise_pending_signal()
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
    release_freed_memory()
    return total, count


def execute(task: Task, plan: Plan, meter: Meter, client: Any = None, first: int = 0) -> Generator[LeafResult]:
    """Yield the results of `task` for all leaves from `first` on in the plan's order, from threads or from the workers of `client`."""
    if client is None:
        return _on_threads(task, plan, meter, first)
    from streampca.execution.distributed.cluster import on_cluster

    return on_cluster(client, task, plan, meter, first)


def _merged(task: FoldTask, plan: Plan, meter: Meter, client: Any, first: int) -> Generator[LeafResult]:
    """Yield the results of `task` for all branches, merged where they were read, or for all leaves where there are no branches."""
    if plan.leaves_per_branch == 1:
        return execute(task, plan, meter, client, first)
    if client is None:
        return in_branches(_on_threads(task, plan, meter, first), task.accumulator, plan.leaves_per_branch)
    from streampca.execution.distributed.cluster import branches_on_cluster

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
        task.source.cancel()
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
