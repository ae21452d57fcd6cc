"""Whether scheduler and workers still answer, and whether leaves still finish."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

from streampca.errors import ClusterError
from streampca.execution.distributed.client import ClusterClient
from streampca.execution.distributed.workers import WorkerPool
from streampca.system.distributed_interface import WorkerInfo

_CHECK_SECONDS = 1.0  # between two checks
_UNHEARD = 1.6  # times the time that a worker may be silent, after which all are lost
_SLOW = 10  # times the median time of a leaf, after which something is wrong if none was finished
_DURATIONS = 101  # leaves that the median is taken of


class LivenessMonitor:
    """Timers of one pass; time for which the driver itself stood still is not counted.

    Parameters
    ----------
    client : ClusterClient
    workers : WorkerPool
    ttl : float
        Seconds for which a worker may be silent.
    """

    def __init__(self, client: ClusterClient, workers: WorkerPool, ttl: float):
        self._client, self._workers, self._ttl = client, workers, ttl
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self._without_result = self._without_workers = 0.0
        self._checked = self._updated = time.monotonic()
        self.next_check = 0.0
        """When the next check is due, by `time.monotonic`."""

    @property
    def median_seconds(self) -> float:
        """Return the median duration of the last leaves; there must be one."""
        return statistics.median(self._durations)

    def leaf_finished(self, began: float) -> None:
        """Record the duration of a leaf."""
        self._durations.append(time.monotonic() - began)
        self.progressed()

    def progressed(self) -> None:
        """Note that a leaf or a merge finished."""
        self._without_result = 0.0

    def check_now(self) -> None:
        """Make the next check due, after an event of a worker."""
        self._client.discard_pending_answer()
        self.next_check = 0.0

    def check(self, update: Callable[[dict[str, WorkerInfo]], None]) -> float | None:
        """Request the state of workers, for `update`; return the seconds without a result if they are too many, else None.

        Raises
        ------
        ClusterError
            If the scheduler does not answer, or there was no worker for too long.
        """
        now, interval = time.monotonic(), self._interval()
        seconds, self._checked = min(now - self._checked, 2 * interval), now
        self.next_check = now + interval
        self._client.require_connected()
        self._client.request_workers(seconds, update)
        if self._client.unanswered_seconds > _UNHEARD * self._ttl:
            raise ClusterError(
                f"the scheduler has not answered for {self._client.unanswered_seconds:.0f} s: look whether it still runs"
            )
        self._without_workers = 0.0 if self._workers.usable else self._without_workers + seconds
        self._client.request_worker(self._without_workers > 2 * interval)
        if not self._workers.usable:
            self._require_workers()
        self._without_result += seconds
        limit = max(self._ttl, _SLOW * self.median_seconds) if self._durations else float("inf")
        if self._without_result <= limit:
            return None
        self._without_result = 0.0
        return limit

    def seconds_since_update(self) -> float:
        """Return the seconds since the last call, at most two intervals."""
        now = time.monotonic()
        seconds, self._updated = min(now - self._updated, 2 * self._interval()), now
        return seconds

    def _interval(self) -> float:
        """Return the seconds between two checks; asking after a thousand workers is work for the scheduler."""
        least = min(_CHECK_SECONDS, self._ttl / 10)
        return min(max(least, len(self._workers.workers) / 100), self._ttl / 5)

    def _require_workers(self) -> None:
        unheard, n_workers = self._workers.unheard, len(self._workers.workers)
        if self._without_workers < self._ttl and unheard < _UNHEARD * self._ttl:
            return
        state = f"its {n_workers} worker(s) were not heard of" if n_workers else "the cluster has had no workers"
        raise ClusterError(
            f"{state} for {max(unheard, self._without_workers):.0f} s, expected one within {self._ttl:.0f} s "
            "(distributed.scheduler.worker-ttl): look at their logs and their memory, start workers and run again"
        )
