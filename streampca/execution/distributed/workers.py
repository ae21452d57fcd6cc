"""The workers of a cluster as the driver knows them: who is there, who is silent, and what each has in hand."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

_MOST_STATES = 2  # that wait on a worker before it is given more to read

_Offer = tuple[tuple[float, int], int, str]


@dataclass(eq=False)
class Worker:
    """One worker process."""

    address: str
    """Where the scheduler finds it."""
    threads: int
    """Tasks that it runs at once."""
    at_once: int
    """Leaves that it is to run at once: what fits in its memory."""
    last_seen: float = float("-inf")
    """When the scheduler last heard of it, by the scheduler's clock, which need not be ours."""
    quiet: float = 0.0
    """Seconds since that changed, or something came from it."""
    running: bool = True
    """Whether it takes new tasks."""
    nanny: bool = False
    """Whether somebody restarts its process."""
    silent: bool = False
    """Whether it was given up because nothing was heard of it."""
    sealed: bool = False
    """Whether a leaf is on it that is to be alone."""
    holds: bool = False
    """Whether it has what all leaves of the reading have in common."""
    hands: dict[str, None] = field(default_factory=dict)
    """Keys of the tasks it was given, in that order."""
    states: int = 0
    """States that stay on it until they are merged or fetched."""
    serial: int = 0
    """Number of its last entry among those on offer."""

    @property
    def usable(self) -> bool:
        """Tell whether it may be given a task."""
        return self.running and not self.silent

    @property
    def load(self) -> tuple[float, int]:
        """Return how many tasks it has for each that it runs at once, and how many states."""
        return len(self.hands) / self.at_once, self.states


class WorkerPool:
    """Places tasks on workers, so that the driver knows which of them were lost with one.

    A task goes to the worker with the least to do. Where workers are busy, as many again may wait on them, so that they
    need not wait for the driver. A task that is to be alone gets a worker that has nothing else, and nothing else comes
    to it; if all are busy, one is kept free for it.
    """

    def __init__(self, ttl: float, leaves_per_worker: int = 0):
        self.workers: dict[str, Worker] = {}
        self.usable = 0
        """Workers that may be given tasks."""
        self.threads = 0
        """Leaves that they run at once."""
        self.unheard = 0.0
        """Seconds since anything was heard of any worker."""
        self._ttl, self._leaves_per_worker = ttl, leaves_per_worker
        self._offers: list[_Offer] = []
        self._serial = itertools.count(1)
        self._kept: str | None = None

    def count(self, told: dict[str, dict[str, Any]], seconds: float) -> list[str]:
        """Take in what the scheduler tells of its workers, `seconds` after it last did; return the addresses of those that are gone."""
        self.unheard += seconds
        for address, info in told.items():
            worker = self.workers.get(address)
            if worker is None:
                threads = max(1, int(info["nthreads"]))
                worker = Worker(address, threads, min(threads, self._leaves_per_worker or threads))
                self.workers[address] = worker
            before = worker.usable
            worker.nanny, worker.running = bool(info.get("nanny")), info.get("status", "running") == "running"
            worker.quiet += seconds
            if float(info["last_seen"]) > worker.last_seen:
                worker.last_seen, worker.quiet, worker.silent = float(info["last_seen"]), 0.0, False
                self.unheard = 0.0
            if worker.usable and (not before or not worker.serial):
                self._offer(worker)
        self._tally()
        return [address for address in self.workers if address not in told]

    def newly_silent(self) -> list[Worker]:
        """Return the workers of which nothing was heard for too long, the first time that this is so."""
        # Workers of large clusters are asked to say less often that they are alive.
        limit = max(self._ttl, 5.0 + len(self.workers) / 10)
        found = [worker for worker in self.workers.values() if not worker.silent and worker.quiet > limit]
        for worker in found:
            worker.silent = True
        self._tally()
        return found

    def remove(self, address: str) -> list[str]:
        """Forget a worker; return the keys of the tasks that it had."""
        worker = self.workers.pop(address, None)
        if address == self._kept:
            self._kept = None
        self._tally()
        return [] if worker is None else list(worker.hands)

    def place(
        self, key: str, *, alone: bool = False, avoid: Container[str] = (), ahead: bool = False, stays: bool = False
    ) -> Worker | None:
        """Give a task to a worker and return it, None if it has to wait.

        `avoid` are workers that are only taken if there are no others; with `ahead`, it may wait on a busy worker. A task whose
        state `stays` on the worker does not go where several wait already.
        """
        worker = self._for_one_alone(avoid) if alone else self._least_busy(avoid, stays=stays)
        if worker is None:
            return None
        # Where memory is for fewer leaves than there are threads, one that waits would be begun at once.
        room = 2 * worker.at_once if ahead and worker.at_once == worker.threads else worker.at_once
        if len(worker.hands) >= room:
            return None
        worker.hands[key] = None
        worker.sealed = alone
        self._offer(worker)
        return worker

    def take(self, address: str, key: str, *, alive: bool = False) -> None:
        """Note that a worker need not do a task any more; if it is done with it, the worker is `alive`."""
        worker = self.workers.get(address)
        if worker is None or key not in worker.hands:
            return
        del worker.hands[key]
        if alive:
            worker.quiet = self.unheard = 0.0
        worker.sealed = worker.sealed and bool(worker.hands)
        self._offer(worker)

    def keep(self, address: str, n_states: int) -> None:
        """Note that so many states more, or fewer, stay on a worker."""
        worker = self.workers.get(address)
        if worker is not None:
            worker.states += n_states
            self._offer(worker)

    def keep_none(self) -> None:
        """Keep no worker free: no task waits that is to be alone."""
        self._kept = None

    def _tally(self) -> None:
        usable = [worker.at_once for worker in self.workers.values() if worker.usable]
        self.usable, self.threads = len(usable), sum(usable)

    def _offer(self, worker: Worker) -> None:
        worker.serial = next(self._serial)
        heapq.heappush(self._offers, (worker.load, worker.serial, worker.address))
        if len(self._offers) > 4 * len(self.workers) + 16:  # most of them are of the past
            self._offers = [(one.load, one.serial, one.address) for one in self.workers.values() if one.serial]
            heapq.heapify(self._offers)

    def _least_busy(self, avoid: Container[str], *, stays: bool = False) -> Worker | None:
        """Return the open worker with the least to do, one of `avoid` only if there are no others."""
        aside: list[_Offer] = []
        found, second = None, None
        while self._offers and found is None:
            _, serial, address = self._offers[0]
            worker = self.workers.get(address)
            if worker is None or worker.serial != serial or not worker.usable or worker.sealed:
                heapq.heappop(self._offers)
            elif address == self._kept or (stays and worker.states >= _MOST_STATES):
                aside.append(heapq.heappop(self._offers))
            elif address in avoid:
                aside.append(heapq.heappop(self._offers))
                second = second or worker
            else:
                found = worker
        for entry in aside:
            heapq.heappush(self._offers, entry)
        return found or second

    def _for_one_alone(self, avoid: Container[str]) -> Worker | None:
        """Return a worker that has nothing to do; if there is none, keep one from being given more."""
        kept = None if self._kept is None else self.workers.get(self._kept)
        if kept is not None and not kept.usable:
            kept = None
        if kept is not None and not kept.hands:
            self._kept = None
            return kept
        worker = self._least_busy(avoid)
        if worker is not None and not worker.hands:
            return worker
        if kept is None:
            self._kept = None if worker is None else worker.address
        return None
