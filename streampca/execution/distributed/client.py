"""Requests to Dask that never block: they wait in the client's event loop, and answers are calls queued for the driver's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TypeVar

from streampca.errors import ClusterError
from streampca.execution.distributed.workers import Worker
from streampca.logs import logger
from streampca.planning.worker_limits import is_here
from streampca.system import distributed_interface as interface
from streampca.system.distributed_interface import DaskClient, DaskFuture, WorkerInfo

_T = TypeVar("_T")

Enqueue = Callable[[Callable[[], None]], None]
"""Queues a call for the driver's thread."""

_log = logger(__name__)
_ERROR_SECONDS = 30  # to fetch an error that the client has already


def ttl_seconds() -> float:
    """Return how long a worker may be silent: Dask's own setting ``distributed.scheduler.worker-ttl``."""
    import dask
    import distributed  # noqa: F401  brings its settings
    from dask.utils import parse_timedelta

    return float(parse_timedelta(dask.config.get("distributed.scheduler.worker-ttl") or "5 minutes"))


class ClusterClient:
    """The connection of one pass to the scheduler; no method blocks.

    Parameters
    ----------
    client : distributed.Client
    enqueue : callable
        Queues a call for the driver's thread.
    """

    def __init__(self, client: DaskClient, enqueue: Enqueue):
        self._client, self._enqueue = client, enqueue
        self._listener: _EventListener | None = None
        self._request: Future[dict[str, WorkerInfo]] | None = None
        self._request_outdated = False
        self._placeholder: DaskFuture | None = None
        self._restarting: set[str] = set()
        self.unanswered_seconds = 0.0
        """Seconds for which the scheduler has not answered."""

    def open(self, worker_removed: Callable[[str, bool], None], worker_joined: Callable[[], None]) -> None:
        """Begin to listen for events of workers.

        `worker_removed` is called with the address of a worker that is gone and whether that was expected.
        """
        self.require_connected()
        self._listener = _EventListener(self._client, self._enqueue, worker_removed, worker_joined)

    def close(self) -> None:
        """Stop listening and cancel requests."""
        if self._listener is not None:
            self._listener.close()
        if self._request is not None:
            self._request.cancel()
            self._request = None
        self.request_worker(False)

    def require_connected(self) -> None:
        """Raise `ClusterError` if the client has given up its scheduler."""
        if self._client.status in ("closing", "closed"):
            raise ClusterError(
                "the connection to the scheduler was lost: look whether it still runs, start it again if not, and run again"
            )

    def watch(self, future: DaskFuture, done: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Queue a call of `done` when the task of `future` is done, or of `failed` with its error."""
        future.add_done_callback(partial(self._finished, done, failed))

    def _finished(self, done: Callable[[], None], failed: Callable[[BaseException], None], future: DaskFuture) -> None:
        """Queue the outcome of a task; called by Dask in a thread of its own."""
        if future.status == "finished":
            self._enqueue(done)
            return
        error: BaseException = CancelledError(f"Dask calls it {future.status}")
        if future.status == "error":
            try:
                raised = future.exception(timeout=_ERROR_SECONDS)
                if raised is not None:
                    error = raised.with_traceback(future.traceback(timeout=_ERROR_SECONDS))
            except (RuntimeError, OSError, AttributeError, CancelledError, asyncio.CancelledError):
                _log.debug("the error of a task was lost with the connection")
        self._enqueue(partial(failed, error))

    def fetch(self, key: str, address: str, done: Callable[[Future[object]], None]) -> Future[object]:
        """Fetch the result of a task from its worker; queue a call of `done` with the future of it, None if it was lost."""
        return self._run(self._fetch(key, address), done)

    async def _fetch(self, key: str, address: str) -> object:
        # Client.gather would put several into one request, and one frozen worker would hold up all of them.
        if interface.fetches_directly(self._client) or is_here(address):
            for result in await interface.fetch_from_worker(self._client, key, address):
                return result
        return await interface.fetch_from_scheduler(self._client, key)

    def request_workers(self, seconds: float, done: Callable[[dict[str, WorkerInfo]], None]) -> None:
        """Queue a call of `done` with all workers, by address.

        If a request is pending, add `seconds`, the time since the last call, to `unanswered_seconds` instead.
        """
        if self._request is not None:
            self.unanswered_seconds += seconds
            return
        self.unanswered_seconds, self._request_outdated = 0.0, False
        self._request = self._run(interface.workers_of(self._client), partial(self._answered, done))

    def discard_pending_answer(self) -> None:
        """Repeat the pending request for workers: its answer may be older than an event."""
        self._request_outdated = True

    def _answered(self, done: Callable[[dict[str, WorkerInfo]], None], answer: Future[dict[str, WorkerInfo]]) -> None:
        if answer is not self._request:
            return
        self._request = None
        if self._request_outdated:
            self.request_workers(0.0, done)
        elif not answer.cancelled() and answer.exception() is None:
            done(answer.result())

    def restart(self, worker: Worker) -> None:
        """Restart the process of a worker if it has a nanny."""
        if worker.nanny and worker.address not in self._restarting:
            _log.info("worker %s is restarted", worker.address)
            self._restarting.add(worker.address)
            self._run(self._restart(worker.address), lambda _: self._restarting.discard(worker.address))

    async def _restart(self, address: str) -> None:
        await self._client.restart_workers([address], raise_for_error=False)

    def request_worker(self, wanted: bool) -> None:
        """Keep a task in the scheduler's queue while a worker is `wanted`, so that an adaptive cluster starts one."""
        if wanted and self._placeholder is None:
            self._placeholder = self._client.submit(bool, pure=False)
        elif not wanted and self._placeholder is not None:
            self._placeholder.release()
            self._placeholder = None

    def _run(self, work: Coroutine[object, None, _T], done: Callable[[Future[_T]], None]) -> Future[_T]:
        pending = asyncio.run_coroutine_threadsafe(work, interface.event_loop(self._client))
        pending.add_done_callback(lambda answer: self._enqueue(partial(done, answer)))
        return pending


class _EventListener:
    """Receives events of workers in the thread of the client's event loop, until it is closed."""

    def __init__(
        self,
        client: DaskClient,
        enqueue: Enqueue,
        worker_removed: Callable[[str, bool], None],
        worker_joined: Callable[[], None],
    ):
        self._client, self._enqueue = client, enqueue
        self._worker_removed, self._worker_joined = worker_removed, worker_joined
        self.closed = False
        # A client has one handler per topic: the user's own handler is called from here.
        previous = interface.event_handler(client, "all")
        self._previous = None if isinstance(previous, _EventListener) and previous.closed else previous
        client.subscribe_topic("all", self)

    def __call__(self, event: tuple[float, object]) -> Awaitable[None] | None:
        """Queue an event; return the result of the user's handler, which may be awaitable."""
        message = event[1] if isinstance(event[1], dict) else {}
        if not self.closed and message.get("action") == "remove-worker":
            self._enqueue(partial(self._worker_removed, message["worker"], bool(message.get("expected"))))
        elif not self.closed and message.get("action") == "add-worker":
            self._enqueue(self._worker_joined)
        return None if self._previous is None else self._previous(event)

    def close(self) -> None:
        """Stop receiving, and restore the user's handler."""
        self.closed = True
        if self._client.status not in ("running", "connecting"):
            return
        if interface.event_handler(self._client, "all") is self:
            if self._previous is None:
                self._client.unsubscribe_topic("all")
            else:
                self._client.subscribe_topic("all", self._previous)
