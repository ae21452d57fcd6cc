"""Leaves on the workers of a `distributed.Client`, which may die, freeze, leave and join at any time.

The driver assigns every leaf to a worker itself and fetches each result as soon as it is there, so it knows what was lost with
a worker, and Dask's rules for lost workers are never needed. None of this influences any number.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import time
from bisect import insort
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Generic, TypeVar

from streampca.execution.distributed.attempts import LeafAttempts, RunningTask, one_block
from streampca.execution.distributed.client import ClusterClient, ttl_seconds
from streampca.execution.distributed.failures import retries_exhausted, stalled, with_advice, worker_killed
from streampca.execution.distributed.liveness import LivenessMonitor
from streampca.execution.distributed.payload import LostPayloadError, TaskPayload
from streampca.execution.distributed.results import FetchedResults
from streampca.execution.distributed.retries import ATTEMPTS, may_pass, pause_after
from streampca.execution.distributed.tree_reduction import TreeReduction
from streampca.execution.distributed.workers import Worker, WorkerPool
from streampca.execution.leaf import LeafResult, Task
from streampca.execution.progress import Meter
from streampca.logs import logger
from streampca.planning.plan import Plan
from streampca.system.distributed_interface import DaskClient, WorkerInfo, killed_by

_State = TypeVar("_State")
_log = logger(__name__)


class LostResultError(Exception):
    """The result of a task was lost with its worker before it was fetched."""


def on_cluster(
    client: DaskClient, task: Task[_State], plan: Plan, meter: Meter, first: int = 0
) -> Generator[LeafResult[_State]]:
    """Yield the results of `task` for the leaves from `first` on in the plan's order, computed by the workers of `client`.

    A result holds ``task.leaves_per_result(plan)`` leaves, merged on the workers.

    Raises
    ------
    BlockFailedError
        If a leaf ended every worker that it was on.
    ClusterError
        If there are no workers any more, or scheduler and workers do not answer.
    """
    size = task.leaves_per_result(plan)
    cluster_pass = ClusterPass(client, task, plan, first)
    try:
        for start, result in zip(range(first, plan.n_leaves, size), cluster_pass.results(), strict=True):
            stop = min(start + size, plan.n_leaves)
            meter.add(sum(plan.leaf(index).n_rows for index in range(start, stop)), result.count.bytes)
            yield result
            del result
    finally:
        cluster_pass.close()


class ClusterPass(Generic[_State]):
    """One pass over the source by a cluster; its state is changed only in the thread that iterates `results`."""

    def __init__(self, client: DaskClient, task: Task[_State], plan: Plan, first: int):
        self._task, self._plan, self._first = task, plan, first
        self._name = f"streampca-{secrets.token_hex(6)}"
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._client = ClusterClient(client, self._events.put)
        self._payload = TaskPayload(client, task, self._name)
        ttl = ttl_seconds()
        self._workers = WorkerPool(ttl, plan.leaves_per_worker)
        self._liveness = LivenessMonitor(self._client, self._workers, ttl)
        self._next = first
        self._queued: list[int] = []
        self._attempts: dict[int, LeafAttempts] = {}
        self._running: dict[str, RunningTask] = {}
        self._outcomes: dict[int, LeafResult[_State] | BaseException] = {}
        self._losses = self._n_tasks = 0
        self._leaves_per_result = task.leaves_per_result(plan)
        self._policy = (
            FetchedResults(self._client, self)
            if self._leaves_per_result == 1
            else TreeReduction(plan, first, self._payload, self._client, self._workers, self)
        )

    def results(self) -> Generator[LeafResult[_State]]:
        """Yield results in order, each as soon as all before it are there; raise an error when its leaf is next in order."""
        self._client.open(self._worker_removed, self._worker_joined)
        size = self._leaves_per_result
        for index in range(-(-self._first // size), -(-self._plan.n_leaves // size)):
            self._policy.request(index)
            while index not in self._outcomes:
                self._queue_window(index)
                self._step()
            while not self._events.empty():  # so that workers are busy while the result is merged
                self._events.get()()
            self._queue_window(index)
            self._assign_queued()
            outcome = self._outcomes.pop(index)
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
            del outcome  # a state is large

    def close(self) -> None:
        """Release all tasks; does not block."""
        for task in self._running.values():
            task.release()
        self._running.clear()
        self._policy.close()
        self._payload.release()
        self._client.close()

    def read_again(self, leaf: int) -> None:
        """Queue a leaf whose state was lost on a worker."""
        if leaf not in self._attempts:
            self._attempts[leaf] = LeafAttempts(leaf)
            insort(self._queued, leaf)

    def progressed(self) -> None:
        """Note that something finished: the pass is not stalled."""
        self._liveness.progressed()

    def hand_over(self, task: RunningTask) -> None:
        """Leave the result of a finished task to the policy, and cancel other tasks for its leaf."""
        self._liveness.leaf_finished(task.began)
        del self._running[task.key]
        self._attempts[task.leaf].keys.discard(task.key)
        self._forget(task.leaf)

    def fetched(self, key: str, answer: Future[object]) -> None:
        """Store a fetched result, or schedule a retry if its worker died."""
        task = self._running.get(key)
        if task is None:
            return
        error = CancelledError() if answer.cancelled() else answer.exception()
        result = None if error is not None else answer.result()
        if not isinstance(result, LeafResult):
            self._task_failed(key, error or LostResultError("its result was lost with a worker"))
            return
        self._liveness.leaf_finished(task.began)
        self._forget(task.leaf)
        self.conclude(task.leaf, result)

    def conclude(self, index: int, outcome: LeafResult[Any] | BaseException) -> None:
        """Store the result or the error with number `index` in the order of results."""
        self._outcomes[index] = outcome

    def _step(self) -> None:
        """Assign queued leaves, handle one event, check liveness."""
        self._assign_queued()
        now = time.monotonic()
        pauses = [self._attempts[leaf].not_before - now for leaf in self._queued]
        timeout = min([self._liveness.next_check - now, *(pause for pause in pauses if pause > 0)])
        try:
            event = self._events.get(timeout=max(0.001, timeout))
        except queue.Empty:
            pass
        else:
            event()
        if time.monotonic() >= self._liveness.next_check:
            late = self._liveness.check(self._update_workers)
            if late is not None and not self._policy.cancel_late(late):
                self._move_oldest()

    def _queue_window(self, index: int) -> None:
        """Queue the next leaves, as many as fit into the window while result `index` is needed."""
        while self._next < min(self._plan.n_leaves, self._policy.window_start(index) + self._plan.window):
            self._attempts[self._next] = LeafAttempts(self._next)
            self._queued.append(self._next)
            self._next += 1

    def _assign_queued(self) -> None:
        """Assign queued leaves to workers that have capacity."""
        now, reserve = time.monotonic(), False
        unassigned = self._plan.n_leaves - self._next + len(self._queued)
        for leaf in tuple(self._queued):
            attempts = self._attempts[leaf]
            if attempts.not_before > now:
                continue
            key, alone = f"{self._name}-{leaf}-{self._n_tasks}", attempts.losses > 0
            # At the end, no leaf is to wait for another one while some worker has nothing to do.
            ahead = unassigned > self._workers.capacity and self._policy.queues_ahead
            keeps_state = not alone and self._policy.keeps_state(leaf)
            worker = self._workers.assign(key, alone=alone, avoid=attempts.avoid, ahead=ahead, keeps_state=keeps_state)
            if worker is not None:
                self._queued.remove(leaf)
                unassigned -= 1
                self._submit(attempts, key, worker, now)
            elif not alone and not attempts.avoid:
                break
            reserve = reserve or (alone and worker is None)
        if not reserve:
            self._workers.clear_reservation()

    def _submit(self, attempts: LeafAttempts, key: str, worker: Worker, now: float) -> None:
        self._client.require_connected()
        leaf = self._plan.leaf(attempts.leaf)
        part = leaf if attempts.block is None else one_block(leaf, attempts.block)
        wanted = self._policy.wanted if attempts.block is None else "nothing"
        future = self._payload.submit(part, key, worker.address, wanted=wanted, cached=worker.has_common)
        self._running[key] = RunningTask(key, attempts.leaf, attempts.block, worker.address, now, future)
        attempts.keys.add(key)
        attempts.n_tasks += 1
        self._n_tasks += 1
        self._client.watch(future, partial(self._task_done, key), partial(self._task_failed, key))

    def _task_done(self, key: str) -> None:
        """Give the result of a task to the policy, or go on with the next block if one was tried alone."""
        task = self._running.get(key)
        if task is None:
            return
        worker = self._workers.workers.get(task.worker)
        if worker is not None:
            worker.has_common = True
        self._workers.release(task.worker, key, alive=True)
        if task.block is None:
            self._policy.leaf_done(task)
            return
        attempts = self._attempts[task.leaf]
        attempts.block_succeeded(len(self._plan.leaf(task.leaf).spans))
        self._end(task)
        self._requeue(attempts)

    def _task_failed(self, key: str, error: BaseException) -> None:
        """Retry a task after a transient error; after any other error, or too many, give up its leaf."""
        task, killed = self._running.get(key), killed_by(error)
        if task is not None and killed in self._workers.workers:
            self._worker_removed(str(killed), False)
            task = self._running.get(key)
        if task is None:
            return
        attempts, worker = self._attempts[task.leaf], self._workers.workers.get(task.worker)
        self._workers.release(task.worker, key)
        if isinstance(error, LostPayloadError):
            if worker is not None:
                worker.has_common = False
            self._end(task)
            self._requeue(attempts)
            return
        transient = (CancelledError, asyncio.CancelledError, LostResultError, MemoryError)
        if killed is None and not isinstance(error, transient) and not may_pass(error):
            self._fail(task.leaf, with_advice(error))
            return
        self._payload.renew()
        attempts.failures += 1
        attempts.avoid.add(task.worker)
        if attempts.failures >= ATTEMPTS:
            self._fail(task.leaf, retries_exhausted(attempts, error, self._plan))
        else:
            _log.info(
                "leaf %d: attempt %d of %d failed on %s (%s): retried",
                task.leaf,
                attempts.failures,
                ATTEMPTS,
                task.worker,
                type(error).__name__,
            )
            self._end(task)
            self._requeue(attempts, pause_after(attempts.failures))

    def _worker_joined(self) -> None:
        """Request the state of workers: there is a new one."""
        self._liveness.check_now()

    def _worker_removed(self, address: str, expected: bool) -> None:
        """Retry the tasks of a worker that the scheduler has removed; `expected` if it left, else it was lost."""
        self._liveness.check_now()
        worker = self._workers.workers.get(address)
        if worker is not None:  # one that was given up before has no tasks, and does not count twice
            self._retry_tasks_of(address, self._workers.remove(address), expected=expected or worker.silent)

    def _retry_tasks_of(self, address: str, keys: list[str], *, expected: bool) -> None:
        """Retry the tasks of a worker; if it was lost, each of their leaves may be the cause."""
        self._losses += not expected
        if expected:
            _log.info("worker %s left: %d leaves are moved", address, len(keys))
        else:
            _log.warning("worker %s was lost: %d leaves are read again", address, len(keys))
        alone = len(keys) == 1 and not self._policy.merges_at(address)
        self._policy.worker_lost(address, expected=expected)
        for key in keys:
            task = self._running.get(key)
            if task is None:
                continue
            attempts = self._attempts[task.leaf]
            if expected:
                self._end(task)
                self._requeue(attempts)
            elif attempts.record_loss(alone=alone, all_losses=self._losses):
                self._fail(task.leaf, worker_killed(attempts, task.block, self._plan, self._task.source))
            else:
                self._end(task)
                self._requeue(attempts, pause_after(attempts.losses))

    def _end(self, task: RunningTask) -> None:
        task.release()
        self._running.pop(task.key, None)
        self._attempts[task.leaf].keys.discard(task.key)

    def _requeue(self, attempts: LeafAttempts, pause: float = 0.0) -> None:
        """Queue a leaf for its next attempt, after `pause` seconds, unless another task runs it."""
        if not attempts.keys and attempts.leaf not in self._queued:
            attempts.not_before = time.monotonic() + pause
            insort(self._queued, attempts.leaf)

    def _fail(self, leaf: int, error: BaseException) -> None:
        """Give up a leaf."""
        self._forget(leaf)
        self._policy.leaf_failed(leaf, error)

    def _forget(self, leaf: int) -> None:
        """Cancel all tasks for a leaf that is done or given up."""
        for key in tuple(self._attempts[leaf].keys):
            self._workers.release(self._running[key].worker, key)
            self._end(self._running[key])
        if leaf in self._queued:
            self._queued.remove(leaf)
        del self._attempts[leaf]

    def _update_workers(self, workers: dict[str, WorkerInfo]) -> None:
        """Compare the scheduler's workers with ours; give up those that are gone or silent."""
        for address in self._workers.update(workers, self._liveness.seconds_since_update()):
            self._worker_removed(address, False)
        for worker in self._workers.newly_silent():
            self._client.restart(worker)
            keys = list(worker.tasks)
            for key in keys:
                self._workers.release(worker.address, key)
            self._retry_tasks_of(worker.address, keys, expected=False)
            for task in [one for one in self._running.values() if one.worker == worker.address]:
                self._task_failed(task.key, LostResultError("its worker is silent"))

    def _move_oldest(self) -> None:
        """Submit the first running leaf, and all others on its worker, to another worker: it hangs."""
        oldest = min(self._running.values(), key=lambda task: task.leaf, default=None)
        if oldest is None:
            return
        attempts, worker = self._attempts[oldest.leaf], self._workers.workers.get(oldest.worker)
        attempts.moves += 1
        _log.info("leaf %d does not finish on %s: moved to another worker", oldest.leaf, oldest.worker)
        if attempts.moves > ATTEMPTS:
            raise stalled(attempts, self._plan, self._liveness.median_seconds)
        if worker is not None and worker.nanny and (attempts.moves > 1 or self._workers.usable == 1):
            self._client.restart(worker)
            return
        for task in [one for one in self._running.values() if one.worker == oldest.worker]:
            self._attempts[task.leaf].avoid.add(oldest.worker)
            if task.leaf not in self._queued:
                insort(self._queued, task.leaf)
