"""The workers of a cluster: their software, threads and memory, and plans for them."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from streampca.errors import ClusterError
from streampca.planning.budget import KEPT, MemoryBudget
from streampca.planning.memory import SAFE_SHARE, WORKER_PROCESS_BYTES
from streampca.planning.plan import Plan
from streampca.system.process import available_bytes, versions
from streampca.typing import Json
from streampca.version import __version__

if TYPE_CHECKING:
    from streampca.typing import DaskClient

_ANSWER_SECONDS = 10
_addresses: weakref.WeakKeyDictionary[DaskClient, str] = weakref.WeakKeyDictionary()
"""Of the schedulers of clients, which a client that has given up does not know any more."""
_software: weakref.WeakKeyDictionary[DaskClient, dict[str, Json]] = weakref.WeakKeyDictionary()
"""Versions by address of the workers that were asked; none where there was no answer."""


def workers_of(client: DaskClient) -> dict[str, Json]:
    """Return what the scheduler of `client` knows of each worker, by address.

    Raises
    ------
    ClusterError
        If the scheduler is gone.
    """
    if client.scheduler is not None:
        _addresses[client] = str(client.scheduler.address)
    if client.status not in ("closing", "closed"):
        info = client.scheduler_info(n_workers=-1)
        if "workers" in info:
            workers: dict[str, Json] = info["workers"]
            return workers
    raise scheduler_gone(client)


def scheduler_gone(client: DaskClient) -> ClusterError:
    """Return the error for a client that has given up its scheduler."""
    address = _addresses.get(client, "the address of the active client")
    return ClusterError(
        f"the connection to the scheduler at {address} was lost: look whether it still runs, start it again if not, and run again, from "
        'Python with a new Client; dask.config.set(scheduler="threads") computes in this process instead'
    )


def require_same_software(client: DaskClient) -> None:
    """Raise `ClusterError` if a worker of `client` runs another version of streampca than this process.

    Each worker is asked once. Those that are too busy to answer within seconds are compared when they read their first leaf.
    """
    known, workers = _software.setdefault(client, {}), workers_of(client)
    new = [address for address in workers if address not in known and not address.startswith("inproc://")]
    asked = {address: client.submit(versions, workers=[address], pure=False) for address in new}
    end = time.monotonic() + _ANSWER_SECONDS
    for address, future in asked.items():
        try:
            known[address] = future.result(timeout=max(0.1, end - time.monotonic()))
        except Exception:  # noqa: BLE001 it has other work, was lost, or lacks streampca, which its first leaf says
            known[address] = {}
    for address in workers:
        if (theirs := known.get(address, {}).get("streampca", __version__)) != __version__:
            raise other_version(address, theirs, __version__)


def other_version(address: str, theirs: str, ours: str) -> ClusterError:
    """Return the error for a worker with another version of streampca than the process that plans, whose numbers may be others."""
    return ClusterError(
        f"the worker at {address} runs streampca {theirs}, the process that plans {ours}: expected the same version; install it where the "
        "workers are, start them again, and run again"
    )


@dataclass(frozen=True)
class WorkerLimits:
    """What one worker may use."""

    threads: int
    """Threads."""
    memory_bytes: int | None = None
    """Ceiling of the resident memory of its process; None where it is not known."""
    other_kernels: str = ""
    """Its address and its BLAS, where that is known to differ from the BLAS of this process."""


def worker_limits(client: DaskClient | None) -> list[WorkerLimits]:
    """Return the limits of each worker of `client`, one without any if it has none yet; none without a cluster.

    A worker with a memory limit is paused by Dask before it reaches it, so that much is not used. Workers without one
    share what their machine has to spare.
    """
    if client is None:
        return []
    workers: list[Json] = [{**worker, "address": address} for address, worker in workers_of(client).items()]
    unlimited = [worker for worker in workers if not worker.get("memory_limit")]
    shares = _shares(unlimited, lambda address: _available_at(client, address))
    here, software = versions()["blas"], _software.get(client, {})

    def limits_of(worker: Json) -> WorkerLimits:
        address, limit = worker["address"], worker.get("memory_limit")
        there = software.get(address, {}).get("blas", here)
        return WorkerLimits(
            max(1, int(worker["nthreads"])),
            int(_share_of_limit() * limit) if limit else shares[address],
            "" if there == here else f"{address} with {there}",
        )

    return list(map(limits_of, workers)) or [WorkerLimits(1)]


def least_memory(limits: Iterable[WorkerLimits]) -> int | None:
    """Return the least that a worker may use in bytes; None where nothing is known."""
    return min((each.memory_bytes for each in limits if each.memory_bytes is not None), default=None)


def for_workers(plan: Plan, limits: list[WorkerLimits], budget: MemoryBudget | None = None) -> Plan:
    """Return `plan`, made for one worker, for a cluster of them, with a note on those that multiply by other BLAS kernels.

    This process holds no more states than its ceiling allows beside what it keeps (`KEPT`) by `budget`, that of `plan` if None. A worker
    holds the states of as many leaves as are planned; of a branch it holds two, and that of a finished branch until this process has
    merged those before. A fit without states reads all rows into this process. Without `limits`, that is without a cluster, the plan is as it was.
    """
    if not limits:
        return plan
    others = [each.other_kernels for each in limits if each.other_kernels]
    if others:
        note = (
            f"{len(others)} of {len(limits)} workers, first {others[0]}, multiply by other BLAS kernels than this process "
            f"({versions()['blas']}): equal bits rest on equal kernels, so the last digits may be others where other workers read"
        )
        plan = plan.with_notes([note])
    plan = replace(plan, n_workers=len(limits))
    if "states" not in plan.memory:
        return plan
    state = plan.budget.bytes_for("states") // plan.n_states
    kept_bytes = (budget or plan.budget).bytes_for(*KEPT)
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
            here = address.startswith("inproc://") or host in (
                "127.0.0.1",
                "::1",
                "localhost",
            )  # certainly on this machine
            spare = available_bytes() if here else available_at(address)
            sharers = on_host[host] + here  # the driver is one
            by_host[host] = None if spare is None else int(SAFE_SHARE * spare / sharers) + WORKER_PROCESS_BYTES
        shares[address] = by_host[host]
    return shares


def _available_at(client: DaskClient, address: str) -> int | None:
    """Return what the machine of a worker has to spare, by the worker itself; None if it does not say."""
    future = client.submit(available_bytes, workers=[address], pure=False)
    try:
        available = future.result(timeout=_ANSWER_SECONDS)
    except (OSError, RuntimeError, CancelledError):  # a time limit is an OSError
        return None
    return int(available) if isinstance(available, int | float) else None
