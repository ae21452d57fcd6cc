"""The driver loop: results of leaves are merged in the plan's order, with checkpoints, progress, signals and errors handled here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import Context
from typing import TYPE_CHECKING, TypeVar

from streampca.execution.checkpoint.progress_log import note_stop
from streampca.execution.checkpoint.resume import PassRecord, PassState
from streampca.execution.leaf import LeafResult, Task, merge_neighbours, run_leaf
from streampca.execution.progress import THREADS, WORKERS, Meter, ProgressCallback
from streampca.formatting import as_text, plural
from streampca.logs import logger
from streampca.planning.plan import Plan, schedule_of
from streampca.sources.base import ReadCount
from streampca.sources.grid import requests_since
from streampca.storage.signals import raise_pending_signal, uninterrupted
from streampca.system.process import release_freed_memory
from streampca.system.workspace import release

if TYPE_CHECKING:
    from streampca.typing import DaskClient

_Total = TypeVar("_Total")
_State = TypeVar("_State")
_Read = TypeVar("_Read")
_log = logger(__name__)
_QUIET_SECONDS = 5.0  # without a block, after which a store that does not answer is told
_TRIMMED_FROM = 8 * 2**20  # bytes read, from which freed memory is worth more than the page faults of the next pass


def drive(
    task: Task[_State],
    plan: Plan,
    record: PassRecord,
    start: PassState[_Total],
    merge: Callable[[_Total, _State], _Total],
    *,
    client: DaskClient | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[_Total, ReadCount]:
    """Run `task` on all leaves from ``start.next_leaf`` on; return the total of their states and what reading cost.

    `merge` returns its first argument, the total so far, with the second, the state of the next leaves; it may reuse the
    memory of the first. States are merged in the plan's order, whatever the order in which leaves finish. Checkpoints go to `record`: when one is
    due, and when an error or a signal stops the pass between two merges.

    Raises
    ------
    DataError
        If data is missing, damaged or not finite: of several faults, the one in the earliest leaf.
    ClusterError
        If the cluster lost a task for good.
    """
    total, count, next_leaf = start
    unit = "features" if plan.axis == "features" else "rows"
    meter = Meter(record.phase, plan.extent, progress, unit, THREADS if client is None else WORKERS)
    meter.skip(plan, next_leaf, count, record.begun_leaves() if client is None else {})
    results, merging = execute(task, plan, meter, client, next_leaf), False
    leaves_per_result = task.leaves_per_result(plan)
    where = "the workers of a cluster" if client is not None else plural(plan.leaves_in_flight, "thread")
    onward = f", from leaf {next_leaf} on" if next_leaf else ""
    shape = plan.extent, plan.axis, plan.n_leaves
    _log.info("%s: pass over %d %s in %d leaves on %s%s", record.phase, *shape, where, onward)
    began = time.perf_counter()
    try:
        for result in results:
            raise_pending_signal()
            with uninterrupted():
                merging, since = True, time.perf_counter()
                total = merge(total, result.state)
                count += result.count + ReadCount(phases={"merging": time.perf_counter() - since})
                next_leaf, merging = min(next_leaf + leaves_per_result, plan.n_leaves), False
            if client is None:
                task.retire(result.state)
            del result
            record.leaf_merged(next_leaf - 1, total, count)
    except BaseException as error:
        note_stop(error)  # before threads end, so that leaves record their progress
        results.close()
        if not merging:
            record.stopped(next_leaf, total, count)
        _log.info("%s: stopped at leaf %d of %d by %s", record.phase, next_leaf, plan.n_leaves, type(error).__name__)
        raise
    finally:
        results.close()  # no thread writes when the caller cleans up
        task.release()
    if count.bytes > _TRIMMED_FROM:
        release_freed_memory()
    _log.info("%s: done, %s read in %.1f s", record.phase, as_text(count.bytes), time.perf_counter() - began)
    return total, count


def execute(
    task: Task[_State], plan: Plan, meter: Meter, client: DaskClient | None = None, first: int = 0
) -> Generator[LeafResult[_State]]:
    """Yield the results of `task` for the leaves from `first` on in the plan's order, from threads or from the workers of `client`.

    A result holds ``task.leaves_per_result(plan)`` leaves, merged where they were read.
    """
    if client is not None:
        from streampca.execution.distributed.cluster import on_cluster

        return on_cluster(client, task, plan, meter, first)
    here = plan.n_blocks == 1 and not (task.source.buffered or task.source.portable)
    results, size = (_here if here else _on_threads)(task, plan, meter, first), task.leaves_per_result(plan)
    return results if size == 1 else merge_neighbours(results, task, size)


def _here(task: Task[_State], plan: Plan, meter: Meter, first: int) -> Generator[LeafResult[_State]]:
    """Run the only block, which is in memory, in this thread: to start one takes as long as a few thousand rows.

    It has an empty context, as a thread has: `numpy.errstate` of the caller does not count.
    """
    try:
        for index in range(first, plan.n_leaves):
            yield Context().run(run_leaf, task, plan.leaf(index), None, meter.add_block)
    finally:
        release()


def _on_threads(task: Task[_State], plan: Plan, meter: Meter, first: int) -> Generator[LeafResult[_State]]:
    stop = threading.Event()
    pool = ThreadPoolExecutor(plan.leaves_in_flight, thread_name_prefix="streampca-leaf")
    try:
        with task.source.ahead(schedule_of(plan, task.source, first)):
            waiting: deque[Future[LeafResult[_State]]] = deque()
            for index in range(first, plan.n_leaves):
                for following in range(index + len(waiting), min(plan.n_leaves, index + plan.window)):
                    waiting.append(pool.submit(run_leaf, task, plan.leaf(following), stop, meter.add_block))
                while not wait((waiting[0],), timeout=_QUIET_SECONDS).done:
                    now = time.monotonic()
                    waited = now - min(list(requests_since.values()), default=now)
                    if min(waited, meter.quiet_seconds) >= _QUIET_SECONDS:
                        meter.wait("waiting for the store")
                yield waiting.popleft().result()  # in order, so that which error ends a run does not depend on timing
        barrier = threading.Barrier(plan.leaves_in_flight)  # so that each thread runs one call

        def release_here() -> None:
            release()
            barrier.wait(timeout=60)

        for done in [pool.submit(release_here) for _ in range(plan.leaves_in_flight)]:
            done.result()
    except BaseException as error:
        note_stop(error)  # before the leaves end, so that they record their progress
        stop.set()
        task.source.cancel()
        raise
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
