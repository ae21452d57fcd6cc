"""Leaves on the workers of a `distributed.Client`, which may die, freeze, leave and join at any time.

The driver places every leaf on a worker itself and fetches each result as soon as it is there, so that it knows what was
lost with a worker, and Dask's rules for lost workers decide nothing. None of this has a say in any number.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import statistics
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from streampca.errors import ClusterError
from streampca.execution.distributed.client import ClusterClient, ttl_seconds
from streampca.execution.distributed.failures import blamed, given_up, hanging, named
from streampca.execution.distributed.payload import LostPayloadError, TaskPayload, Wanted
from streampca.execution.distributed.retries import ATTEMPTS, may_pass, pause_after
from streampca.execution.distributed.tree_reduction import TreeReduction
from streampca.execution.distributed.trials import LeafAttempts, one_block
from streampca.execution.distributed.workers import Worker, WorkerPool
from streampca.execution.fold import LeafResult
from streampca.execution.task import FoldTask, Meter, Task
from streampca.planning.plan import Plan

_LOOK_SECONDS = 1.0  # between two looks at the workers
_UNHEARD = 1.6  # times the time that a worker may be silent, after which all are lost
_SLOW = 10  # times the median time of a leaf, after which something is wrong if none was finished
_TIMES = 101  # leaves that the median is taken of


def branches_on_cluster(client: Any, task: FoldTask, plan: Plan, meter: Meter, first: int = 0) -> Generator[LeafResult]:
    """Yield the results of `task` for all branches from the one of leaf `first` on; states of leaves stay on the workers.

    Raises
    ------
    BlockFailedError, ClusterError
        As `on_cluster`.
    """
    reading, size = ClusterReading(client, task, plan, first, in_branches=True), plan.leaves_per_branch
    try:
        for start, result in zip(range(first, plan.n_leaves, size), reading.results(), strict=True):
            stop = min(start + size, plan.n_leaves)
            meter.add(sum(plan.leaf(index).n_rows for index in range(start, stop)), result.count.bytes)
            yield result
            del result
    finally:
        reading.close()


class LostResultError(Exception):
    """The result of a task went with its worker before it was fetched."""


@dataclass(eq=False)
class _Flight:
    """One task under way."""

    key: str
    """Its name."""
    leaf: int
    """Position of its leaf."""
    block: int | None
    """Which block alone it is to read, None for all."""
    worker: str
    """Address of the worker it was given to."""
    began: float
    """When."""
    future: Any
    """Of its result, on the worker."""
    fetching: Future[Any] | None = None
    """Brings the result here; None before the task is done."""

    def let_go(self) -> None:
        """Let the worker forget it."""
        self.future.release()
        if self.fetching is not None:
            self.fetching.cancel()


def on_cluster(client: Any, task: Task, plan: Plan, meter: Meter, first: int = 0) -> Generator[LeafResult]:
    """Yield the results of `task` for all leaves from `first` on in the plan's order, made by the workers of `client`.

    Raises
    ------
    BlockFailedError
        If a leaf ended every worker that it was on.
    ClusterError
        If there are no workers any more, or scheduler and workers do not answer.
    """
    reading = ClusterReading(client, task, plan, first)
    try:
        for index, result in enumerate(reading.results(), first):
            meter.add(plan.leaf(index).n_rows, result.count.bytes)
            yield result
            del result
    finally:
        reading.close()


class ClusterReading:
    """One reading of the source by a cluster; its state is changed in the thread that asks for results only."""

    def __init__(self, client: Any, task: Task, plan: Plan, first: int, *, in_branches: bool = False):
        self._task, self._plan, self._first = task, plan, first
        self._name = f"streampca-{secrets.token_hex(6)}"
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._calls = ClusterClient(client, self._events.put)
        self._parcel = TaskPayload(client, task, self._name)
        self._ttl = ttl_seconds()
        self._fleet = WorkerPool(self._ttl, plan.leaves_per_worker)
        self._next = first
        self._waiting: list[int] = []
        self._trials: dict[int, LeafAttempts] = {}
        self._flights: dict[str, _Flight] = {}
        self._outcomes: dict[int, LeafResult | BaseException] = {}
        self._losses = self._n_tasks = 0
        self._times: deque[float] = deque(maxlen=_TIMES)
        self._without_result = self._without_company = 0.0
        self._looked = self._counted = time.monotonic()
        self._next_look = 0.0
        self._branches: TreeReduction | None = None
        if in_branches:
            self._branches = TreeReduction(
                plan,
                self._name,
                self._parcel,
                self._calls,
                self._fleet,
                self._read_again,
                self._progressed,
                self._outcomes.__setitem__,
            )

    def results(self) -> Generator[LeafResult]:
        """Yield results in order, each as soon as all before it are there; an error when its turn comes.

        They are those of leaves, or of branches if leaves are merged on the workers.
        """
        self._calls.open(self._removed, self._joined)
        per_turn = self._plan.leaves_per_branch if self._branches else 1
        for turn in range(-(-self._first // per_turn), -(-self._plan.n_leaves // per_turn)):
            if self._branches:
                self._branches.turn(turn)
            while turn not in self._outcomes:
                self._begin(turn)
                self._step()
            while not self._events.empty():  # so that workers are busy while the result is merged
                self._events.get()()
            self._begin(turn)
            self._place()
            outcome = self._outcomes.pop(turn)
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
            del outcome  # a state is large

    def _begin(self, turn: int) -> None:
        """Let the next leaves wait for workers: as many as the window has room for."""
        behind = self._first + self._branches.n_merged if self._branches else turn
        while self._next < min(self._plan.n_leaves, behind + self._plan.window):
            self._trials[self._next] = LeafAttempts(self._next)
            self._waiting.append(self._next)
            self._next += 1

    def close(self) -> None:
        """Let go of everything that is under way; waits for nothing."""
        for flight in self._flights.values():
            flight.let_go()
        self._flights.clear()
        if self._branches:
            self._branches.close()
        self._parcel.release()
        self._calls.close()

    def _step(self) -> None:
        """Place what waits, take in what happens next, look whether all is well."""
        self._place()
        now = time.monotonic()
        pauses = [self._trials[index].not_before - now for index in self._waiting]
        patience = min([self._next_look - now, *(pause for pause in pauses if pause > 0)])
        try:
            event = self._events.get(timeout=max(0.001, patience))
        except queue.Empty:
            pass
        else:
            event()
        if time.monotonic() >= self._next_look:
            self._look()

    def _place(self) -> None:
        """Give leaves that wait to workers that are free."""
        now, one_is_to_be_alone = time.monotonic(), False
        unplaced = self._plan.n_leaves - self._next + len(self._waiting)
        for index in tuple(self._waiting):
            trial = self._trials[index]
            if trial.not_before > now:
                continue
            key, alone = f"{self._name}-{index}-{self._n_tasks}", trial.losses > 0
            # At the end, no leaf is to wait for another one while some worker has nothing to do.
            ahead = unplaced > self._fleet.threads and not self._branches
            stays = self._branches is not None and not (alone or self._branches.waits_for(index))
            worker = self._fleet.place(key, alone=alone, avoid=trial.avoid, ahead=ahead, stays=stays)
            if worker is not None:
                self._waiting.remove(index)
                unplaced -= 1
                self._launch(trial, key, worker, now)
            elif not alone and not trial.avoid:
                break
            one_is_to_be_alone = one_is_to_be_alone or (alone and worker is None)
        if not one_is_to_be_alone:
            self._fleet.keep_none()

    def _launch(self, trial: LeafAttempts, key: str, worker: Worker, now: float) -> None:
        self._calls.require_connected()
        leaf = self._plan.leaf(trial.leaf)
        part = leaf if trial.block is None else one_block(leaf, trial.block)
        wanted: Wanted = "nothing" if trial.block is not None else "state" if self._branches else "result"
        future = self._parcel.submit(part, key, worker.address, wanted=wanted, known=worker.holds)
        self._flights[key] = _Flight(key, trial.leaf, trial.block, worker.address, now, future)
        trial.keys.add(key)
        trial.n_tasks += 1
        self._n_tasks += 1
        self._calls.follow(future, partial(self._landed, key), partial(self._failed, key))

    def _landed(self, key: str) -> None:
        """Take in that a task is done: its result leaves the worker at once."""
        flight = self._flights.get(key)
        if flight is None:
            return
        worker = self._fleet.workers.get(flight.worker)
        if worker is not None:
            worker.holds = True
        self._fleet.take(flight.worker, key, alive=True)
        if flight.block is None and self._branches:
            self._times.append(time.monotonic() - flight.began)
            self._progressed()
            del self._flights[key]
            self._trials[flight.leaf].keys.discard(key)
            self._give_up(flight.leaf)
            self._branches.keep(flight.leaf, key, flight.worker, flight.future)
            return
        if flight.block is None:
            flight.fetching = self._calls.fetch(key, flight.worker, partial(self._fetched, key))
            return
        trial = self._trials[flight.leaf]
        trial.survived(len(self._plan.leaf(flight.leaf).spans))
        self._end(flight)
        self._again(trial)

    def _fetched(self, key: str, arrived: Future[Any]) -> None:
        """Take in a result that is here, or is not to be had."""
        flight = self._flights.get(key)
        if flight is None:
            return
        error = CancelledError() if arrived.cancelled() else arrived.exception()
        result = None if error is not None else arrived.result()
        if result is None:
            self._failed(key, error or LostResultError("its result was lost with a worker"))
            return
        self._times.append(time.monotonic() - flight.began)
        self._progressed()
        self._conclude(flight.leaf, result)

    def _failed(self, key: str, error: BaseException) -> None:
        """Take in the error of a task."""
        from distributed.scheduler import KilledWorker

        flight = self._flights.get(key)
        if flight is not None and isinstance(error, KilledWorker) and error.last_worker.address in self._fleet.workers:
            self._removed(error.last_worker.address, False)
            flight = self._flights.get(key)
        if flight is None:
            return
        trial, worker = self._trials[flight.leaf], self._fleet.workers.get(flight.worker)
        self._fleet.take(flight.worker, key)
        if isinstance(error, LostPayloadError):
            if worker is not None:
                worker.holds = False
            self._end(flight)
            self._again(trial)
            return
        passing = (KilledWorker, CancelledError, asyncio.CancelledError, LostResultError, MemoryError)
        if not isinstance(error, passing) and not may_pass(error):
            self._conclude(flight.leaf, named(error))
            return
        self._parcel.renew()
        trial.failures += 1
        trial.avoid.add(flight.worker)
        if trial.failures >= ATTEMPTS:
            self._conclude(flight.leaf, given_up(trial, error, self._plan))
        else:
            self._end(flight)
            self._again(trial, pause_after(trial.failures))

    def _joined(self) -> None:
        """Take in that there is a new worker."""
        self._calls.outdate()
        self._next_look = 0.0

    def _removed(self, address: str, expected: bool) -> None:
        """Take in that the scheduler has no such worker any more: it left if that was `expected`, and is lost if not."""
        self._calls.outdate()
        self._next_look = 0.0
        worker = self._fleet.workers.get(address)
        if worker is not None:  # one that was given up before has nothing in hand, and does not count twice
            self._lost(address, self._fleet.remove(address), expected=expected or worker.silent)

    def _lost(self, address: str, keys: list[str], *, expected: bool) -> None:
        """Begin again what a worker had in hand; if it was lost, each of its leaves may be the reason."""
        self._losses += not expected
        merging = self._branches is not None and self._branches.merges_at(address)
        if self._branches:
            self._branches.lost(address, expected=expected)
        for key in keys:
            flight = self._flights.get(key)
            if flight is None:
                continue
            trial = self._trials[flight.leaf]
            if expected:
                self._end(flight)
                self._again(trial)
            elif trial.lost(alone=len(keys) == 1 and not merging, all_losses=self._losses):
                self._conclude(flight.leaf, blamed(trial, flight.block, self._plan, self._task.source))
            else:
                self._end(flight)
                self._again(trial, pause_after(trial.losses))

    def _end(self, flight: _Flight) -> None:
        flight.let_go()
        self._flights.pop(flight.key, None)
        self._trials[flight.leaf].keys.discard(flight.key)

    def _again(self, trial: LeafAttempts, pause: float = 0.0) -> None:
        """Let a leaf wait for its next attempt, unless another one is under way."""
        if not trial.keys and trial.leaf not in self._waiting:
            trial.not_before = time.monotonic() + pause
            insort(self._waiting, trial.leaf)

    def _conclude(self, leaf: int, outcome: LeafResult | BaseException) -> None:
        """Note what a leaf came to."""
        self._give_up(leaf)
        if self._branches and isinstance(outcome, BaseException):
            self._branches.fail(leaf, outcome)
        else:
            self._outcomes[leaf] = outcome

    def _give_up(self, leaf: int) -> None:
        """End all tasks for a leaf."""
        for key in tuple(self._trials[leaf].keys):
            self._fleet.take(self._flights[key].worker, key)
            self._end(self._flights[key])
        if leaf in self._waiting:
            self._waiting.remove(leaf)
        del self._trials[leaf]

    def _read_again(self, leaf: int) -> None:
        """Let a leaf wait again whose state was lost on a worker."""
        if leaf not in self._trials:
            self._trials[leaf] = LeafAttempts(leaf)
            insort(self._waiting, leaf)

    def _progressed(self) -> None:
        self._without_result = 0.0

    def _look(self) -> None:
        """Ask after the workers, and see whether there are any and whether anything is finished."""
        now, each = time.monotonic(), self._between_looks()
        seconds, self._looked = min(now - self._looked, 2 * each), now  # a driver that stood still has nobody to blame
        self._next_look = now + each
        self._calls.require_connected()
        self._calls.ask(seconds, self._told)
        if self._calls.unanswered > _UNHEARD * self._ttl:
            raise ClusterError(
                f"the scheduler has not answered for {self._calls.unanswered:.0f} s: look whether it still runs"
            )
        self._without_company = 0.0 if self._fleet.usable else self._without_company + seconds
        self._calls.knock(self._without_company > 2 * each)
        if not self._fleet.usable:
            self._require_company()
        self._without_result += seconds
        patience = max(self._ttl, _SLOW * statistics.median(self._times)) if self._times else float("inf")
        if self._without_result > patience:
            self._without_result = 0.0
            if not (self._branches and self._branches.cancel(patience)):
                self._move_the_oldest()

    def _between_looks(self) -> float:
        """Return the seconds between two looks; asking after a thousand workers is work for the scheduler."""
        least = min(_LOOK_SECONDS, self._ttl / 10)
        return min(max(least, len(self._fleet.workers) / 100), self._ttl / 5)

    def _told(self, workers: dict[str, Any]) -> None:
        """Take in what the scheduler tells of its workers, and give up those that are silent."""
        now = time.monotonic()
        seconds, self._counted = min(now - self._counted, 2 * self._between_looks()), now
        for address in self._fleet.count(workers, seconds):
            self._removed(address, False)
        for worker in self._fleet.newly_silent():
            self._calls.restart(worker)
            keys = list(worker.hands)
            for key in keys:
                self._fleet.take(worker.address, key)
            self._lost(worker.address, keys, expected=False)
            for flight in [one for one in self._flights.values() if one.worker == worker.address]:
                self._failed(flight.key, LostResultError("its worker is silent"))

    def _require_company(self) -> None:
        """Raise `ClusterError` if there was no worker for too long."""
        unheard, n_workers = self._fleet.unheard, len(self._fleet.workers)
        if self._without_company < self._ttl and unheard < _UNHEARD * self._ttl:
            return
        found = f"its {n_workers} worker(s) were not heard of" if n_workers else "the cluster has had no workers"
        raise ClusterError(
            f"{found} for {max(unheard, self._without_company):.0f} s, expected one within {self._ttl:.0f} s "
            "(distributed.scheduler.worker-ttl): look at their logs and their memory, start workers and run again"
        )

    def _move_the_oldest(self) -> None:
        """Begin the oldest leaf under way elsewhere, with all that its worker has in hand: it hangs."""
        oldest = min(self._flights.values(), key=lambda flight: flight.leaf, default=None)
        if oldest is None:
            return
        trial, worker = self._trials[oldest.leaf], self._fleet.workers.get(oldest.worker)
        trial.moved += 1
        if trial.moved > ATTEMPTS:
            raise hanging(trial, self._plan, statistics.median(self._times))
        if worker is not None and worker.nanny and (trial.moved > 1 or self._fleet.usable == 1):
            self._calls.restart(worker)
            return
        for flight in [one for one in self._flights.values() if one.worker == oldest.worker]:
            self._trials[flight.leaf].avoid.add(oldest.worker)
            if flight.leaf not in self._waiting:
                insort(self._waiting, flight.leaf)
