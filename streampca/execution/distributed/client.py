"""What is asked of Dask: everything waits in the thread of the client's loop and is answered by a call in the driver's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from streampca.errors import ClusterError
from streampca.execution.distributed.workers import Worker
from streampca.planning.resources import is_here

Put = Callable[[Callable[[], None]], None]
"""Hands a call to the driver's thread."""

_log = logging.getLogger("streampca")
_ERROR_SECONDS = 30  # to fetch an error that the client has already


def ttl_seconds() -> float:
    """Return how long a worker may be silent: Dask's own setting ``distributed.scheduler.worker-ttl``."""
    import dask
    import distributed  # noqa: F401  brings its settings
    from dask.utils import parse_timedelta

    return float(parse_timedelta(dask.config.get("distributed.scheduler.worker-ttl") or "5 minutes"))


class ClusterClient:
    """The connection of one reading to the scheduler; none of its methods waits."""

    def __init__(self, client: Any, put: Put):
        self._client, self._put = client, put
        self._listener: _Listener | None = None
        self._asking: Future[Any] | None = None
        self._outdated = False
        self._knocking: Any = None
        self._restarting: set[str] = set()
        self.unanswered = 0.0
        """Seconds for which the scheduler has not answered."""

    def open(self, removed: Callable[[str, bool], None], joined: Callable[[], None]) -> None:
        """From now on call `removed` with the address of a worker that is gone, and whether that was expected; `joined` for a new one."""
        self.require_connected()
        self._listener = _Listener(self._client, self._put, removed, joined)

    def close(self) -> None:
        """Hear of nothing any more."""
        if self._listener is not None:
            self._listener.close()
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        self.knock(False)

    def require_connected(self) -> None:
        """Raise `ClusterError` if the client has given up its scheduler."""
        if self._client.status in ("closing", "closed"):
            raise ClusterError(
                "the connection to the scheduler was lost: look whether it still runs, start it again if not, and run again"
            )

    def follow(self, future: Any, landed: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Call `landed` when the task of `future` is done, or `failed` with its error."""
        future.add_done_callback(partial(self._over, landed, failed))

    def _over(self, landed: Callable[[], None], failed: Callable[[BaseException], None], future: Any) -> None:
        """Pass on what a task came to; called by Dask in a thread of its own."""
        if future.status == "finished":
            self._put(landed)
            return
        error: BaseException = CancelledError(f"Dask calls it {future.status}")
        if future.status == "error":
            try:
                told = future.exception(timeout=_ERROR_SECONDS)
                error = told.with_traceback(future.traceback(timeout=_ERROR_SECONDS)) if told is not None else error
            except (RuntimeError, OSError, AttributeError, CancelledError, asyncio.CancelledError):
                _log.debug("the error of a task was lost with the connection")
        self._put(partial(failed, error))

    def fetch(self, key: str, address: str, arrived: Callable[[Future[Any]], None]) -> Future[Any]:
        """Bring the result of a task from its worker, and call `arrived` with the future of it: None if it was lost."""
        return self._run(self._fetch(key, address), arrived)

    async def _fetch(self, key: str, address: str) -> Any:
        from distributed.utils_comm import gather_from_workers

        # Client.gather would put several into one request, and one frozen worker would hold up all of them.
        if self._client.direct_to_workers or is_here(address):
            found = (await gather_from_workers({key: [address]}, rpc=self._client.rpc))[0]
            if key in found:
                return found[key]
        response = await self._scheduler().gather(keys=[key])
        return response["data"][key] if response["status"] == "OK" else None

    def ask(self, seconds: float, told: Callable[[dict[str, Any]], None]) -> None:
        """Call `told` with all workers, by address, unless that was asked for already, `seconds` ago when last looked."""
        if self._asking is not None:
            self.unanswered += seconds
            return
        self.unanswered, self._outdated = 0.0, False
        self._asking = self._run(self._workers(), partial(self._answered, told))

    def outdate(self) -> None:
        """Let the answer that is under way not count: it may not know of what has just happened."""
        self._outdated = True

    async def _workers(self) -> dict[str, Any]:
        workers: dict[str, Any] = (await self._scheduler().identity())["workers"]
        return workers

    def _answered(self, told: Callable[[dict[str, Any]], None], answer: Future[Any]) -> None:
        if answer is not self._asking:
            return
        self._asking = None
        if self._outdated:
            self.ask(0.0, told)
        elif not answer.cancelled() and answer.exception() is None:
            told(answer.result())

    def restart(self, worker: Worker) -> None:
        """Have the process of a worker ended and started again, if there is somebody to do it."""
        if worker.nanny and worker.address not in self._restarting:
            self._restarting.add(worker.address)
            self._run(self._restart(worker.address), lambda _: self._restarting.discard(worker.address))

    async def _restart(self, address: str) -> None:
        await self._client.restart_workers([address], raise_for_error=False)

    def knock(self, wanted: bool) -> None:
        """Leave a task that any worker may do, for as long as it is `wanted`, so that a cluster that adapts its size starts one."""
        if wanted and self._knocking is None:
            self._knocking = self._client.submit(bool, pure=False)
        elif not wanted and self._knocking is not None:
            self._knocking.release()
            self._knocking = None

    def _scheduler(self) -> Any:
        if self._client.scheduler is None:
            raise OSError("there is no connection to the scheduler")
        return self._client.scheduler

    def _run(self, work: Coroutine[Any, Any, Any], done: Callable[[Future[Any]], None]) -> Future[Any]:
        pending = asyncio.run_coroutine_threadsafe(work, self._client.loop.asyncio_loop)
        pending.add_done_callback(lambda answer: self._put(partial(done, answer)))
        return pending


class _Listener:
    """Hears of workers that join and go, in the thread of the client's loop, until it is closed."""

    def __init__(self, client: Any, put: Put, removed: Callable[[str, bool], None], joined: Callable[[], None]):
        self._client, self._put, self._removed, self._joined = client, put, removed, joined
        self.closed = False
        # A client has one handler for a topic: what somebody else has set goes on hearing.
        earlier = getattr(client, "_event_handlers", {}).get("all")
        self._earlier = None if isinstance(earlier, _Listener) and earlier.closed else earlier
        client.subscribe_topic("all", self)

    def __call__(self, event: tuple[float, Any]) -> Any:
        """Pass on an event; what an earlier handler returns may have to be awaited."""
        message = event[1] if isinstance(event[1], dict) else {}
        if not self.closed and message.get("action") == "remove-worker":
            self._put(partial(self._removed, message["worker"], bool(message.get("expected"))))
        elif not self.closed and message.get("action") == "add-worker":
            self._put(self._joined)
        return None if self._earlier is None else self._earlier(event)

    def close(self) -> None:
        """Hear nothing any more, and let an earlier handler take the place."""
        self.closed = True
        if self._client.status not in ("running", "connecting"):
            return
        if getattr(self._client, "_event_handlers", {}).get("all") is self:
            if self._earlier is None:
                self._client.unsubscribe_topic("all")
            else:
                self._client.subscribe_topic("all", self._earlier)
