"""The only module that uses names of `distributed` outside of its documented interface.

A unit test calls `missing_names` and every function on a client, so that a version that lacks one of them is noticed.
"""
# ruff: noqa: D102  methods of the protocols are documented by distributed

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    import asyncio

    from distributed import Client, Nanny, Worker, WorkerPlugin
    from distributed.core import ConnectionPool, PooledRPCCall, Status
    from distributed.core import rpc as CoreRPC  # noqa: N812

_NAMES = {
    "distributed": ("Client._instances", "Worker._instances", "Client.subscribe_topic", "Client.restart_workers"),
    "distributed.scheduler": ("KilledWorker",),
    "distributed.utils_comm": ("gather_from_workers",),
    "distributed.protocol.pickle": ("dumps", "loads"),
    "distributed.threadpoolexecutor": ("thread_state",),
    "distributed.comm.addressing": ("get_address_host",),
    "distributed.core": ("Status.closed", "Status.failed"),
    "distributed.deploy.utils": ("nprocesses_nthreads",),
}
_CLIENT_ATTRIBUTES = (
    "_event_handlers",
    "direct_to_workers",
    "loop.asyncio_loop",
    "rpc",
    "scheduler.gather",
    "scheduler.identity",
)


EventHandler = Callable[[tuple[float, object]], Awaitable[None] | None]


class WithStatus(Protocol):
    """A worker, nanny, job or cluster of distributed."""

    status: Status


class WorkerInfo(TypedDict, total=False):
    """What the scheduler says of a worker, as far as it is used."""

    host: str
    nthreads: int
    memory_limit: int
    last_seen: float
    status: str
    nanny: str | None


class DaskFuture(Protocol):
    """What is used of a `distributed.Future`."""

    @property
    def status(self) -> str | None: ...
    def release(self) -> None: ...
    def add_done_callback(self, callback: Callable[[DaskFuture], None]) -> None: ...
    def result(self, timeout: float) -> object: ...
    def exception(self, timeout: float) -> BaseException | None: ...
    def traceback(self, timeout: float) -> TracebackType | None: ...


class DaskClient(Protocol):
    """What is used of a `distributed.Client`, whose methods have no types."""

    direct_to_workers: bool | None
    rpc: ConnectionPool
    scheduler: PooledRPCCall | CoreRPC | None
    status: str

    @property
    def asynchronous(self) -> bool: ...
    def submit(self, function: Callable[..., object], /, *arguments: Any, **options: Any) -> DaskFuture: ...
    def scheduler_info(self, n_workers: int) -> dict[str, dict[str, WorkerInfo]]: ...
    def subscribe_topic(self, topic: str, handler: EventHandler) -> None: ...
    def unsubscribe_topic(self, topic: str) -> None: ...
    async def restart_workers(self, workers: list[str], *, raise_for_error: bool) -> object: ...
    def register_plugin(self, plugin: WorkerPlugin) -> object: ...
    def forward_logging(self, logger_name: str, level: int) -> object: ...


def missing_names(client: object = None) -> list[str]:
    """Return the names used here that the installed version, or a connected `client`, lacks."""
    wanted: list[tuple[str, object, str]] = [
        (name, _module(name), path) for name, paths in _NAMES.items() for path in paths
    ]
    wanted += [("a connected Client", client, path) for path in _CLIENT_ATTRIBUTES if client is not None]
    return [f"{path} of {name}" for name, owner, path in wanted if not _has(owner, path)]


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


def _has(owner: object, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def holds_worker_thread() -> bool:
    """Tell whether this code runs in a task that holds a thread of its worker."""
    if "distributed" not in sys.modules:
        return False
    from distributed.threadpoolexecutor import thread_state

    return bool(getattr(thread_state, "proceed", False))


def clients_and_workers() -> list[Client | Worker]:
    """Return all `distributed.Client` and `distributed.Worker` of this process; imports nothing."""
    distributed = sys.modules.get("distributed")
    names = ("Client", "Worker")
    return [one for name in names for one in getattr(getattr(distributed, name, None), "_instances", ())]


def event_handler(client: DaskClient, topic: str) -> EventHandler | None:
    """Return the function that `client` calls for events of `topic`, None if there is none."""
    handlers: dict[str, EventHandler] = getattr(client, "_event_handlers", {})
    return handlers.get(topic)


def event_loop(client: DaskClient) -> asyncio.AbstractEventLoop:
    """Return the asyncio event loop of `client`."""
    loop: asyncio.AbstractEventLoop = getattr(client, "loop").asyncio_loop  # noqa: B009
    return loop


async def fetch_from_worker(client: DaskClient, key: str, address: str) -> list[object]:
    """Return the result of task `key` from the worker at `address` in a list, which is empty if the worker lacks it."""
    from distributed.utils_comm import gather_from_workers

    results = (await gather_from_workers({key: [address]}, rpc=client.rpc))[0]
    return [results[key]] if key in results else []


async def fetch_from_scheduler(client: DaskClient, key: str) -> object:
    """Return the result of task `key` by way of the scheduler, None if it is lost."""
    response = await _scheduler(client).gather(keys=[key])
    return response["data"][key] if response["status"] == "OK" else None


async def workers_of(client: DaskClient) -> dict[str, WorkerInfo]:
    """Return what the scheduler knows of each worker, by address."""
    workers: dict[str, WorkerInfo] = (await _scheduler(client).identity())["workers"]
    return workers


def fetches_directly(client: DaskClient) -> bool:
    """Tell whether `client` connects to workers itself."""
    return bool(client.direct_to_workers)


def _scheduler(client: DaskClient) -> PooledRPCCall | CoreRPC:
    if client.scheduler is None:
        raise OSError("there is no connection to the scheduler")
    return client.scheduler


def killed_by(error: BaseException) -> str | None:
    """Return the address of the worker that a task ended last if `error` is `KilledWorker`, else None."""
    from distributed.scheduler import KilledWorker

    return str(error.last_worker.address) if isinstance(error, KilledWorker) else None


def pickled(thing: object) -> bytes:
    """Return `thing` as bytes, by cloudpickle where pickle cannot."""
    from distributed.protocol.pickle import dumps

    return bytes(dumps(thing))  # type: ignore[no-untyped-call]


def unpickled(payload: bytes) -> Any:
    """Return what `pickled` made `payload` of."""
    from distributed.protocol.pickle import loads

    return loads(payload)  # type: ignore[no-untyped-call]


def host_of(address: str) -> str:
    """Return the host of the address of a worker."""
    from distributed.comm.addressing import get_address_host

    return str(get_address_host(address))


def default_processes_and_threads() -> tuple[int, int]:
    """Return the number of workers, and of threads of each, that Dask chooses for this machine."""
    from distributed.deploy.utils import nprocesses_nthreads

    n_workers, n_threads = nprocesses_nthreads()  # type: ignore[no-untyped-call]
    return int(n_workers), int(n_threads)


def has_ended(nanny: WithStatus | Worker) -> bool:
    """Tell whether a nanny, a worker, or a job, has ended or failed."""
    from distributed.core import Status

    return nanny.status in (Status.closed, Status.failed)


def mark_closed(resource: WithStatus) -> None:
    """Give a cluster or a job the status of one that was closed."""
    from distributed.core import Status

    resource.status = Status.closed


def starting_workers(cluster: object) -> tuple[Nanny, ...]:
    """Return the nannies or jobs that `cluster` has created, with those that have not connected yet.

    Raises
    ------
    RuntimeError
        If the event loop of the cluster adds one at the same time.
    """
    return tuple(getattr(cluster, "_created", ()))
