"""The start of workers on this machine, which end or stand still at times before they have come."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil

from streampca.runs.config.clusters import LocalCluster

if TYPE_CHECKING:
    from distributed import Nanny

_ATTEMPTS = 3
_ONE_THREAD_EACH = 4  # processors up to which Dask starts a worker for each; of more, at least the square root
_SYNC_SECONDS = 10.0
StartedCluster: TypeAlias = Any
"""A cluster of Dask that started workers, such as a `distributed.LocalCluster`."""


def n_workers_and_threads(cluster: LocalCluster) -> tuple[int, int]:
    """Return the number of workers and of threads of each, where they are ``auto`` as Dask would choose them."""
    from dask.system import CPU_COUNT

    workers, threads = cluster.n_workers, cluster.threads_per_worker
    if workers == "auto" and threads == "auto":
        divisor = next(n for n in range(1, CPU_COUNT + 1) if CPU_COUNT % n == 0 and n * n >= CPU_COUNT)
        n_workers = CPU_COUNT if CPU_COUNT <= _ONE_THREAD_EACH else divisor
        return n_workers, CPU_COUNT // n_workers
    if workers == "auto":
        return max(1, CPU_COUNT // int(threads)), int(threads)
    return int(workers), math.ceil(CPU_COUNT / int(workers)) if threads == "auto" else int(threads)


class LocalStart:
    """Starts the workers of a `distributed.LocalCluster` that has none, and starts them again if they do not come.

    The constructor of `LocalCluster` waits for its workers without an end, and gives all of them up if one ends.
    """

    def __init__(self, cluster: StartedCluster, n_workers: int):
        self._cluster, self._n_workers = cluster, n_workers
        self._attempts_left = _ATTEMPTS - 1
        self._seconds_used: dict[int, float] = {}
        cluster.scale(n_workers)

    def replace_ended(self) -> bool:
        """Start others in place of workers that ended while they started; False if there are none, or it was tried often enough."""
        with suppress(TimeoutError):
            return bool(self._cluster.sync(self._replace_ended, callback_timeout=_SYNC_SECONDS))
        return False

    async def _replace_ended(self) -> bool:
        ended = [name for name, nanny in self._cluster.workers.items() if _has_ended(nanny)]
        if not ended or not self._attempts_left:
            return False
        self._attempts_left -= 1
        for name in ended:
            del self._cluster.workers[name]  # so that it is missed
        self._cluster.scale(self._n_workers)
        return True

    @property
    def is_over(self) -> bool:
        """Tell whether all workers have ended and none is started again."""
        nannies = list(self._cluster.workers.values())
        return not self._attempts_left and bool(nannies) and all(map(_has_ended, nannies))

    def end_frozen(self, there: set[object]) -> bool:
        """Kill processes that are to start a worker, but have used no processor since this was last called.

        `there` are the names of workers that have come. Others may be slow, because this machine has much to do. Returns
        whether one was killed that will be started again.
        """
        before, self._seconds_used, killed = self._seconds_used, {}, False
        for nanny in nannies_of(self._cluster):
            process = process_of(nanny)
            if process is None or nanny.name in there:
                continue
            with suppress(psutil.NoSuchProcess):
                self._seconds_used[process.pid] = sum(process.cpu_times()[:2])
                if self._seconds_used[process.pid] == before.get(process.pid):
                    process.kill()
                    killed = True
        return killed and self._attempts_left > 0


def nannies_of(cluster: StartedCluster) -> list[Nanny]:
    """Return what watches over the processes of the workers of a cluster, also of those that have not come yet."""
    made = set(getattr(cluster, "workers", {}).values())
    for _ in range(10):
        try:
            return list(made.union(getattr(cluster, "_created", ())))  # not documented, but nothing else has them
        except RuntimeError:  # the loop of the cluster has just added one
            continue
    return list(made)


def _has_ended(nanny: Nanny) -> bool:
    """Tell whether a nanny has ended or failed."""
    from distributed import Status

    return nanny.status in (Status.closed, Status.failed)


def process_of(nanny: object) -> psutil.Process | None:
    """Return the process of a worker, None if it has none on this machine."""
    pid = getattr(nanny, "pid", None)
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid) if isinstance(pid, int) else None
    return None
