"""Input of the planner for a fit: the division of its rows, and its memory and time for blocks of a given size."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from streampca.errors import ClusterError
from streampca.planning.memory import (
    ALLOWANCE_BYTES,
    ALWAYS,
    KEPT,
    SAFE_SHARE,
    WORKER_PROCESS_BYTES,
    MemoryBudget,
    MemoryNeed,
    Purpose,
)
from streampca.planning.plan import Plan, Rates, SolverDetail
from streampca.planning.shape import WorkShape, bytes_to_read
from streampca.sources.base import Source
from streampca.system.process import available_bytes, versions
from streampca.typing import Json
from streampca.version import __version__

if TYPE_CHECKING:
    from streampca.typing import DaskClient


_TILE_THREADS_FROM = 4096  # features from which threads share one state instead of having one each
_ANSWER_SECONDS = 10
_addresses: weakref.WeakKeyDictionary[DaskClient, str] = weakref.WeakKeyDictionary()
"""Of the schedulers of clients, which a client that has given up does not know any more."""
_software: weakref.WeakKeyDictionary[DaskClient, dict[str, Json]] = weakref.WeakKeyDictionary()
"""Versions by address of the workers that were asked; none where there was no answer."""


class Companion:
    """What comes along with a fit beside its solver, said once for every plan; by default it takes nothing."""

    n_regressors: int = 0
    """Regressors that are removed from the rows."""

    def needs(self, work: Work, shape: WorkShape) -> Iterable[MemoryNeed]:
        """Return the memory that it takes beside `work`, whose rows are divided as `shape`."""
        return ()

    def flops(self, plan: Plan) -> float:
        """Return the floating point operations of `plan` with those of the companion."""
        return plan.flops

    def seconds(self, plan: Plan, rates: Rates) -> float:
        """Return the seconds that it adds to a fit by `plan`."""
        return 0.0

    def fits(self, work: Work, shape: WorkShape) -> bool:
        """Tell whether what it takes elsewhere than in the memory of this process fits there."""
        return True


@dataclass(frozen=True)
class Holding(Companion):
    """Memory of one purpose that every phase has, however the rows are divided."""

    purpose: Purpose
    """What it is for."""
    n_bytes: int
    """Its size."""

    @override
    def needs(self, work: Work, shape: WorkShape) -> Iterable[MemoryNeed]:
        return (MemoryNeed(self.purpose, self.n_bytes),)


@dataclass(frozen=True)
class Resources:
    """What a plan may use, and what comes along with the fit."""

    allowed_bytes: int
    """Ceiling of the resident memory of the process."""
    process_bytes: int
    """Resident memory of the process before the first block."""
    threads: int
    """Threads to share."""
    scores: bool = False
    """Whether scores are written in a second pass."""
    report: bool = False
    """Whether a report is drawn."""
    report_rows: int = 0
    """Rows that are sampled for the report."""
    on_workers: bool = False
    """Whether the workers of a cluster read the rows."""
    companions: tuple[Companion, ...] = ()
    """What comes along."""

    @property
    def n_regressors(self) -> int:
        """Return the number of regressors that are removed from the rows."""
        return sum(each.n_regressors for each in self.companions)

    def holding(self, purpose: Purpose, n_bytes: int) -> Resources:
        """Return the resources with memory for `purpose` in every phase."""
        return replace(self, companions=(*self.companions, Holding(purpose, n_bytes)))


@dataclass(frozen=True)
class Figures:
    """What a fit takes beside memory, and what is said of it."""

    reason: str
    """Why the solver runs, and what its answer is."""
    flops: float
    """Floating point operations."""
    passes: int = 1
    """Passes over the rows."""
    bytes_beside: int = 0
    """Decoded bytes that are read beside the passes."""
    disk_bytes: int = 0
    """Size of temporary files."""
    detail: SolverDetail = field(default_factory=SolverDetail)
    """Settings of the solver."""
    notes: Sequence[str] = ()
    """What a user should know."""


@dataclass(frozen=True)
class Work(ABC):
    """A fit by one solver, or a pass that writes scores, before its blocks are chosen."""

    source: Source
    """The rows."""
    n_components: int | None
    """Components wanted; None where the data decides."""
    resources: Resources
    """What may be used."""

    name: ClassVar[str]
    """Name of the solver."""
    approximate: ClassVar[bool] = False
    """Whether its answer carries an error, and a certificate of it."""

    @property
    def read(self) -> Source:
        """Return what the blocks divide: the rows, or the features as rows."""
        return self.source

    @property
    @abstractmethod
    def work_dtype(self) -> str:
        """Return the data type of the products."""

    @abstractmethod
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        """Return how the rows are divided into blocks of `rows` rows, with so many leaves at once and threads in each."""

    @abstractmethod
    def needs(self, shape: WorkShape) -> Iterable[MemoryNeed]:
        """Return the memory that is allocated, beside that of the process."""

    @abstractmethod
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        """Return what the work takes beside memory; one pass decodes `reading` bytes."""

    def edges(self, shape: WorkShape) -> tuple[int, ...] | None:
        """Return the first row of every block and the end of the last where the source has its own; None = blocks are equal."""
        return self.read.grid.block_edges(shape.rows_per_block, self.read.shape[0])

    def budget(self, shape: WorkShape) -> MemoryBudget:
        """Return the memory by purpose and by phase.

        Every phase has the process, its resident memory before the first block + `ALLOWANCE_BYTES`, and what comes along.
        """
        resources = self.resources
        process = MemoryNeed("process", resources.process_bytes + ALLOWANCE_BYTES)
        beside = [need for each in resources.companions for need in each.needs(self, shape) if need.n_bytes]
        return MemoryBudget.of([process, *beside, *self.needs(shape)], resources.allowed_bytes)

    def plan_for(self, shape: WorkShape) -> Plan:
        """Return the plan for rows that are divided as `shape`; it may not fit."""
        reading = bytes_to_read(self.read, shape.rows_per_block)
        said = self.figures(shape, reading)
        n, d = self.source.shape
        plan = Plan(
            **vars(shape),
            solver=self.name,
            reason=said.reason,
            n_samples=n,
            n_features=d,
            dtype=str(self.source.dtype),
            work_dtype=self.work_dtype,
            n_components=self.n_components,
            budget=self.budget(shape),
            passes=said.passes,
            bytes_to_read=said.passes * reading + said.bytes_beside,
            flops=said.flops,
            disk_bytes=said.disk_bytes,
            detail=said.detail,
            notes=tuple(said.notes),
        )
        for companion in self.resources.companions:
            plan = replace(plan, flops=companion.flops(plan))
        return plan.with_edges(self.edges(shape))

    def best(self, sizes: list[int], side: int, shares: int) -> Plan:
        """Return the best plan that fits, or the one that takes least memory if none does (see `MemoryBudget.fits`).

        The block size is the first of `sizes`, rows of a block, with which a single thread fits, so that it never depends on the
        threads; one that fits beside a process of nominal size is preferred if it reads no more, so that the size does not depend
        on what this process holds either. Then as many threads as fit are used (`loaded`).
        """
        tried: list[Plan] = []
        first: Plan | None = None
        for size in sizes:
            least = self.plan_for(self.shape(size, 1, 1))
            tried.append(least)
            if least.budget.fits:
                first = first or least
                if _fits_nominally(least) and least.bytes_to_read <= first.bytes_to_read:
                    first = least
                    break
        if first is None:
            return min(tried, key=lambda plan: plan.projected_bytes)
        rows = first.rows_per_block
        plan, wide = self.plan_for(self.loaded(rows, side, shares)), self.loaded(rows, side, shares, unlimited=True)
        waiting = wide.leaves_in_flight * wide.threads_per_leaf - plan.leaves_in_flight * plan.threads_per_leaf
        if waiting <= 0:
            return plan
        return replace(plan, waiting_threads=waiting, bytes_for_threads=self.budget(wide).projected_bytes)

    def loaded(self, rows: int, side: int = 0, shares: int = 1, *, unlimited: bool = False) -> WorkShape:
        """Return the shape with blocks of `rows` rows that fits and keeps most threads busy; one thread has to fit.

        Of shapes with as many busy threads, the one with most leaves at once reads fastest. The accumulated matrix has the
        given `side`, and so many threads share a leaf at most; a large matrix is not accumulated twice. `unlimited` asks for the
        shape that memory without limit would have, or of those with as many busy threads the one that takes least.
        """
        threads = self.resources.threads
        most = 1 if side >= _TILE_THREADS_FROM else min(threads, self.shape(rows, 1, 1).n_leaves)
        loads = [
            (leaves, shared)
            for leaves in range(1, most + 1)
            for shared in range(1, max(1, min(threads // leaves, shares)) + 1)
        ]
        if unlimited:
            busy = max(leaves * shared for leaves, shared in loads)
            shapes = [self.shape(rows, leaves, shared) for leaves, shared in loads if leaves * shared == busy]
            return min(shapes, key=lambda shape: self.budget(shape).projected_bytes)
        for leaves, shared in sorted(loads, key=lambda load: (load[0] * load[1], load[0]), reverse=True):
            shape = self.shape(rows, leaves, shared)
            if self.budget(shape).fits and all(each.fits(self, shape) for each in self.resources.companions):
                return shape
        return self.shape(rows, 1, 1)


def _fits_nominally(plan: Plan) -> bool:
    """Tell whether the plan also fits in a process that takes as much memory as a worker does by itself."""
    difference = max(0, WORKER_PROCESS_BYTES - plan.budget.bytes_for(*ALWAYS))
    return plan.projected_bytes + difference <= plan.allowed_bytes


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
        f"the connection to the scheduler at {address} was lost: check that it is running, restart it if not, and run again, from "
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
            f"{len(others)} of {len(limits)} workers, first {others[0]}, use other BLAS kernels than this process "
            f"({versions()['blas']}), so the last digits of results may depend on which worker reads what"
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
        waiting_threads=plan.waiting_threads * len(limits),
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
