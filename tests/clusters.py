"""A local cluster whose workers come back when they are killed; the tests share one (see ``two_workers`` in conftest.py)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask

_PRELOADED = [
    "distributed.nanny",
    "streampca.execution.distributed.cluster",
    "streampca.solvers.fit",
    "streampca.solvers.kernel.fit",
    "zarr",
]


@contextmanager
def cluster(
    n_workers: int = 2, threads: int = 1, ttl: str = "30s", no_workers: str = "1 minute", direct: bool = False
) -> Iterator[tuple[Any, Any]]:
    """Start workers that come back quickly when they are killed: forks of a process that has imported everything.

    `ttl` and `no_workers` are Dask's settings for frozen workers and for a cluster without any; with `direct`, results do not
    come through the scheduler.
    """
    from distributed import Client, LocalCluster

    context: Any = multiprocessing.get_context("forkserver")
    # A worker that is down for a moment, 15 s after an earlier one was lost, would not come back.
    settings = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.deploy.lost-worker-timeout": "1h",
        "distributed.scheduler.worker-ttl": ttl,
        "distributed.scheduler.no-workers-timeout": no_workers,
    }
    with dask.config.set(settings):
        from distributed.utils import get_mp_context

        get_mp_context()  # it sets what is preloaded, once
        context.set_forkserver_preload(_PRELOADED)
        options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "memory_limit": 0, "silence_logs": 50}
        with (
            LocalCluster(n_workers=n_workers, threads_per_worker=threads, **options) as local,
            Client(local, set_as_default=False, direct_to_workers=direct or None) as client,
        ):
            yield local, client


def running(local: Any) -> list[Any]:
    """Return the nannies of `local` whose workers are up."""
    from distributed.core import Status

    return [
        nanny
        for nanny in list(local.workers.values())
        if nanny.status == Status.running
        and nanny.process is not None
        and nanny.process.status == Status.running
        and nanny.worker_address in local.scheduler.workers
    ]


def restored(local: Any) -> None:
    """Wait until all workers of `local` are up."""
    deadline = time.monotonic() + 30
    while len(running(local)) < len(local.workers) and time.monotonic() < deadline:
        time.sleep(0.02)
