"""Threads and memory of the workers of a cluster, and plans for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from streampca.planning.memory import SAFE_SHARE, WORKER_PROCESS_BYTES
from streampca.planning.plan import Plan
from streampca.system.process import available_bytes
from streampca.typing import Json

if TYPE_CHECKING:
    from streampca.typing import DaskClient

_ANSWER_SECONDS = 10


@dataclass(frozen=True)
class WorkerLimits:
    """What one worker may use."""

    threads: int
    """Threads."""
    memory_bytes: int | None = None
    """Ceiling of the resident memory of its process; None where it is not known."""


def worker_limits(client: DaskClient | None) -> list[WorkerLimits]:
    """Return the limits of each worker of `client`, one without any if it has none yet; none without a cluster.

    A worker with a memory limit is paused by Dask before it reaches it, so that much is not used. Workers without one
    share what their machine has to spare.
    """
    if client is None:
        return []
    info = client.scheduler_info(n_workers=-1)["workers"]
    workers: list[Json] = [{**worker, "address": address} for address, worker in info.items()]
    unlimited = [worker for worker in workers if not worker.get("memory_limit")]
    shares = _shares(unlimited, lambda address: _available_at(client, address))
    return [
        WorkerLimits(
            max(1, int(worker["nthreads"])),
            int(_share_of_limit() * worker["memory_limit"])
            if worker.get("memory_limit")
            else shares[worker["address"]],
        )
        for worker in workers
    ] or [WorkerLimits(1)]


def least_memory(limits: Iterable[WorkerLimits]) -> int | None:
    """Return the least that a worker may use in bytes; None where nothing is known."""
    return min((each.memory_bytes for each in limits if each.memory_bytes is not None), default=None)


def for_workers(plan: Plan, limits: list[WorkerLimits], kept_bytes: int) -> Plan:
    """Return `plan`, made for one worker, for a cluster of them.

    This process holds no more states than its ceiling allows beside `kept_bytes`. A worker holds the states of as many leaves
    as are planned; of a branch it holds two, and that of a finished branch until this process has merged those before.
    """
    state = plan.budget.bytes_for("states") // plan.n_states
    branches = plan.leaves_per_branch > 1
    at_worker = (plan.n_states - 1) // 2 if branches else plan.leaves_in_flight
    at_once = sum(min(each.threads, at_worker) for each in limits)
    window = at_once + len(limits) if branches else 2 * at_once
    if not branches:
        window = max(1, min(window, (plan.allowed_bytes - kept_bytes) // max(1, state) - 1))
    return replace(
        plan,
        threads=sum(each.threads for each in limits),
        leaves_in_flight=min(window, at_once),
        window=window,
        leaves_per_worker=at_worker,
    )


def _share_of_limit() -> float:
    """Return the share of its limit at which a worker takes no more tasks."""
    import dask
    import distributed  # noqa: F401  brings its settings

    for action in ("pause", "terminate"):
        share = dask.config.get(f"distributed.worker.memory.{action}", None)
        if isinstance(share, int | float) and share:
            return float(share)
    return 1.0


def _shares(workers: list[Json], available_at: Callable[[str], int | None]) -> dict[str, int | None]:
    """Return for each address of workers without a limit what it may use."""
    on_host = Counter(worker["host"] for worker in workers)
    shares: dict[str, int | None] = {}
    by_host: dict[str, int | None] = {}
    for worker in workers:
        host, address = worker["host"], worker["address"]
        if host not in by_host:
            here = _is_here(address, host)
            spare = available_bytes() if here else available_at(address)
            sharers = on_host[host] + here  # the driver is one
            by_host[host] = None if spare is None else int(SAFE_SHARE * spare / sharers) + WORKER_PROCESS_BYTES
        shares[address] = by_host[host]
    return shares


def _is_here(address: str, host: str) -> bool:
    """Tell whether a worker is certainly on this machine."""
    return address.startswith("inproc://") or host in ("127.0.0.1", "::1", "localhost")


def _available_at(client: DaskClient, address: str) -> int | None:
    """Return what the machine of a worker has to spare, by the worker itself; None if it does not say."""
    future = client.submit(available_bytes, workers=[address], pure=False)
    try:
        available = future.result(timeout=_ANSWER_SECONDS)
    except (OSError, RuntimeError, CancelledError):  # a time limit is an OSError
        return None
    return int(available) if isinstance(available, int | float) else None
