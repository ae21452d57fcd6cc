"""The workers of a cluster as the driver knows them: their tasks, their capacity, and whether they are silent."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container
from dataclasses import dataclass, field

from streampca.system.distributed_interface import WorkerInfo

_MOST_STATES = 2  # that wait on a worker before it is given more to read

_Entry = tuple[tuple[float, int], int, str]


@dataclass(eq=False)
class Worker:
    """One worker process."""

    address: str
    """Address that the scheduler uses."""
    threads: int
    """Number of its threads."""
    capacity: int
    """Number of leaves that it runs at once: as many as fit in its memory."""
    last_seen: float = float("-inf")
    """When the scheduler last heard of it, by the scheduler's clock, which need not be ours."""
    silent_seconds: float = 0.0
    """Seconds since that changed, or a result came from it."""
    running: bool = True
    """Whether it takes new tasks."""
    nanny: bool = False
    """Whether a nanny restarts its process."""
    silent: bool = False
    """Whether it was given up because the scheduler did not hear of it."""
    exclusive: bool = False
    """Whether its task must be its only one."""
    has_common: bool = False
    """Whether it caches the common data of the pass."""
    tasks: dict[str, None] = field(default_factory=dict)
    """Keys of its tasks, in the order of assignment."""
    states: int = 0
    """Number of states on it that wait to be merged or fetched."""
    serial: int = 0
    """Number of its current entry in the heap of workers; 0 before the first."""

    @property
    def usable(self) -> bool:
        """Tell whether it may be given a task."""
        return self.running and not self.silent

    @property
    def load(self) -> tuple[float, int]:
        """Return its tasks relative to its capacity, and its states."""
        return len(self.tasks) / self.capacity, self.states


class WorkerPool:
    """Assigns tasks to workers, so that the driver knows which tasks were lost with one.

    A task goes to the worker with the smallest load. As many tasks as a worker runs may be queued on it, so that it need not
    wait for the driver. A task that must run alone gets a worker without tasks, and no other comes to it; if all are busy,
    one is reserved for it.
    """

    def __init__(self, ttl: float, leaves_per_worker: int = 0):
        self.workers: dict[str, Worker] = {}
        self.usable = 0
        """Number of workers that may be given tasks."""
        self.capacity = 0
        """Number of leaves that they run at once."""
        self.unheard = 0.0
        """Seconds since the scheduler heard of any worker."""
        self._ttl, self._leaves_per_worker = ttl, leaves_per_worker
        self._heap: list[_Entry] = []
        self._serial = itertools.count(1)
        self._reserved: str | None = None

    def update(self, reported: dict[str, WorkerInfo], seconds: float) -> list[str]:
        """Update the workers from the scheduler's, `seconds` after the last update; return the addresses of those that are gone."""
        self.unheard += seconds
        for address, info in reported.items():
            worker = self.workers.get(address)
            if worker is None:
                threads = max(1, int(info["nthreads"]))
                worker = Worker(address, threads, min(threads, self._leaves_per_worker or threads))
                self.workers[address] = worker
            before = worker.usable
            worker.nanny, worker.running = bool(info.get("nanny")), info.get("status", "running") == "running"
            worker.silent_seconds += seconds
            if float(info["last_seen"]) > worker.last_seen:
                worker.last_seen, worker.silent_seconds, worker.silent = float(info["last_seen"]), 0.0, False
                self.unheard = 0.0
            if worker.usable and (not before or not worker.serial):
                self._push(worker)
        self._count_usable()
        return [address for address in self.workers if address not in reported]

    def newly_silent(self) -> list[Worker]:
        """Return the workers that have become silent since the last call, and mark them."""
        # In large clusters, workers send heartbeats less often.
        limit = max(self._ttl, 5.0 + len(self.workers) / 10)
        silent = [worker for worker in self.workers.values() if not worker.silent and worker.silent_seconds > limit]
        for worker in silent:
            worker.silent = True
        self._count_usable()
        return silent

    def remove(self, address: str) -> list[str]:
        """Remove a worker; return the keys of its tasks."""
        worker = self.workers.pop(address, None)
        if address == self._reserved:
            self._reserved = None
        self._count_usable()
        return [] if worker is None else list(worker.tasks)

    def assign(
        self,
        key: str,
        *,
        alone: bool = False,
        avoid: Container[str] = (),
        ahead: bool = False,
        keeps_state: bool = False,
    ) -> Worker | None:
        """Assign a task to a worker and return the worker, None if none has capacity.

        `avoid` are addresses of workers that are used only if there are no others. With `ahead`, the task may be queued on a
        busy worker. A task of which the worker `keeps_state` is not assigned where several states wait already.
        """
        worker = self._empty_worker(avoid) if alone else self._least_busy(avoid, keeps_state=keeps_state)
        if worker is None:
            return None
        # Where memory is for fewer leaves than there are threads, one that waits would be begun at once.
        limit = 2 * worker.capacity if ahead and worker.capacity == worker.threads else worker.capacity
        if len(worker.tasks) >= limit:
            return None
        worker.tasks[key] = None
        worker.exclusive = alone
        self._push(worker)
        return worker

    def release(self, address: str, key: str, *, alive: bool = False) -> None:
        """Remove a task from a worker; `alive` if the worker has just completed it."""
        worker = self.workers.get(address)
        if worker is None or key not in worker.tasks:
            return
        del worker.tasks[key]
        if alive:
            worker.silent_seconds = self.unheard = 0.0
        worker.exclusive = worker.exclusive and bool(worker.tasks)
        self._push(worker)

    def add_states(self, address: str, n_states: int) -> None:
        """Add `n_states`, which may be negative, to the states on a worker."""
        worker = self.workers.get(address)
        if worker is not None:
            worker.states += n_states
            self._push(worker)

    def clear_reservation(self) -> None:
        """Drop the reservation: no task waits that must run alone."""
        self._reserved = None

    def _count_usable(self) -> None:
        usable = [worker.capacity for worker in self.workers.values() if worker.usable]
        self.usable, self.capacity = len(usable), sum(usable)

    def _push(self, worker: Worker) -> None:
        worker.serial = next(self._serial)
        heapq.heappush(self._heap, (worker.load, worker.serial, worker.address))
        if len(self._heap) > 4 * len(self.workers) + 16:  # most entries are outdated
            self._heap = [(one.load, one.serial, one.address) for one in self.workers.values() if one.serial]
            heapq.heapify(self._heap)

    def _least_busy(self, avoid: Container[str], *, keeps_state: bool = False) -> Worker | None:
        """Return the usable worker with the smallest load, one of `avoid` only if there are no others."""
        skipped: list[_Entry] = []
        best, second = None, None
        while self._heap and best is None:
            _, serial, address = self._heap[0]
            worker = self.workers.get(address)
            if worker is None or worker.serial != serial or not worker.usable or worker.exclusive:
                heapq.heappop(self._heap)
            elif address == self._reserved or (keeps_state and worker.states >= _MOST_STATES):
                skipped.append(heapq.heappop(self._heap))
            elif address in avoid:
                skipped.append(heapq.heappop(self._heap))
                second = second or worker
            else:
                best = worker
        for entry in skipped:
            heapq.heappush(self._heap, entry)
        return best or second

    def _empty_worker(self, avoid: Container[str]) -> Worker | None:
        """Return a worker without tasks; if there is none, reserve one."""
        reserved = None if self._reserved is None else self.workers.get(self._reserved)
        if reserved is not None and not reserved.usable:
            reserved = None
        if reserved is not None and not reserved.tasks:
            self._reserved = None
            return reserved
        worker = self._least_busy(avoid)
        if worker is not None and not worker.tasks:
            return worker
        if reserved is None:
            self._reserved = None if worker is None else worker.address
        return None
