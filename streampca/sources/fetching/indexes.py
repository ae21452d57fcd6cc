"""Where the parts of objects are: indexes of shards, each requested once, some at once, and kept within a number of bytes; or known before."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import numpy as np

from streampca.errors import StoreError
from streampca.sources.fetching.object_version import ObjectVersion
from streampca.sources.fetching.requests import Piece
from streampca.storage.zarr_interface import event_loop

if TYPE_CHECKING:
    from streampca.sources.fetching.client import Fetched
    from streampca.sources.remote import RemoteStore

_MOST_AT_ONCE = 8
_HELD_BYTES = 4 * 2**20
_READINGS = 3
"""Requests for an index that is damaged."""
_Received = tuple[object, ObjectVersion]
"""The index of a shard, None if it does not exist, and the version of the shard."""


class ObjectFormat(Protocol):
    """Which parts of objects hold some rows."""

    @property
    def most_object(self) -> int:
        """Return the largest size in bytes of an object."""
        ...

    def is_whole(self, start: int, stop: int, key: str, most: int) -> bool:
        """Return whether an object that cannot exceed `most` bytes is needed as a whole for rows `start` to `stop`."""
        ...

    def pieces(self, start: int, stop: int, key: str, index: object) -> list[Piece]:
        """Return the parts of an object for rows `start` to `stop`; `index` is None for a shard that does not exist."""
        ...


class IndexFormat(ObjectFormat, Protocol):
    """What is known of the indexes of an array, and what follows from one."""

    @property
    def index_bytes(self) -> int:
        """Return the size of a stored index in bytes."""
        ...

    @property
    def index_span(self) -> tuple[int, int]:
        """Return the range that holds the index; negative from the end of the object."""
        ...

    def decoded(self, key: str, stored: memoryview, total: int) -> object:
        """Return the index of an object of `total` bytes; raises an error that names its key if it is damaged."""
        ...


class KnownParts:
    """The parts of objects that were described when they were opened.

    Parameters
    ----------
    kind : ObjectFormat
        Where they are.
    version_of : callable
        Returns the version of the object of a key that was described.
    """

    change = "the file was changed after it was opened"
    """What has happened to an object of another version, for messages."""
    memory_bytes = 0
    is_busy = False

    def __init__(self, kind: ObjectFormat, version_of: Callable[[str], ObjectVersion]):
        self.kind, self._version_of, self.lock = kind, version_of, threading.RLock()

    def of(self, key: str, then: Callable[[object, ObjectVersion], None]) -> Future[object]:
        """Call `then` with the version of an object; what is returned has ended."""
        told: Future[object] = Future()
        then(None, self._version_of(key))
        told.set_result(None)
        return told

    def clear(self) -> None:
        """Do nothing: nothing was received."""

    def cancel(self) -> None:
        """Do nothing: nothing is requested."""


class Indexes:
    """Requests indexes, and tells those that wait for them.

    Parameters
    ----------
    store : RemoteStore
        Where shards are.
    kind : IndexFormat
        How indexes are stored.

    Attributes
    ----------
    lock : RLock
        Held while waiters are told.
    change : str
        What has happened to an object of another version, for messages.
    """

    change = "the shard was written again after its index was read"

    def __init__(self, store: RemoteStore, kind: IndexFormat):
        self.store, self.kind, self.lock = store, kind, threading.RLock()
        self._known: OrderedDict[str, Future[_Received]] = OrderedDict()
        self._tasks: set[asyncio.Task[_Received]] = (
            set()
        )  # one key may have two, of an earlier reading that ended and of this one
        self._n_pending = 0

    @property
    def n_held(self) -> int:
        """Return how many indexes are kept."""
        return max(2 * _MOST_AT_ONCE, _HELD_BYTES // self.kind.index_bytes)

    @property
    def memory_bytes(self) -> int:
        """Return the memory for indexes in bytes, with those that are being received."""
        return (self.n_held + 3 * _MOST_AT_ONCE) * self.kind.index_bytes

    @property
    def is_busy(self) -> bool:
        """Return whether as many are being received as may be."""
        return self._n_pending >= _MOST_AT_ONCE

    def of(self, key: str, then: Callable[[object, ObjectVersion], None]) -> Future[object]:
        """Call `then` with index and version of shard `key`, None if it does not exist; what is returned ends after that."""
        future = self._known.get(key)
        if future is None:
            future = self._known[key] = Future()
            self._n_pending += 1
            event_loop().call_soon_threadsafe(self._begin, key, future)
            while len(self._known) > self.n_held and next(iter(self._known.values())).done():
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        told: Future[object] = Future()
        future.add_done_callback(lambda done: self._tell(done, then, told))
        return told

    def _tell(
        self, done: Future[_Received], then: Callable[[object, ObjectVersion], None], told: Future[object]
    ) -> None:
        with self.lock:
            if (error := done.exception()) is not None:
                told.set_exception(error)
                return
            try:
                then(*done.result())
            except Exception as failed:  # noqa: BLE001 those that wait are told of any, or wait for ever
                told.set_exception(failed)
            else:
                told.set_result(None)

    def clear(self) -> None:
        """Forget what was received."""
        self._known.clear()

    def _stopped(self) -> StoreError:
        return StoreError(f"{self.store.shown_url}: the reading was stopped")

    def cancel(self) -> None:
        """Stop all requests, which end with a `StoreError`."""
        for task in list(self._tasks):
            with suppress(RuntimeError):  # its event loop was closed, at the end of the process
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _begin(self, key: str, future: Future[_Received]) -> None:
        """Send a request; called in the event loop."""
        task = asyncio.get_running_loop().create_task(self._read(key))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._received(key, future, task))

    def _received(self, key: str, future: Future[_Received], task: asyncio.Task[_Received]) -> None:
        with self.lock:
            self._n_pending -= 1
            self._tasks.discard(task)
            error = self._stopped() if task.cancelled() else task.exception()
            if error is None:
                future.set_result(task.result())
                return
            if self._known.get(key) is future:
                del self._known[key]
            future.set_exception(error)

    async def _whole(self, key: str) -> Fetched | None:
        return await self.store.fetch(key, None, None, self.kind.most_object)

    async def _read(self, key: str) -> _Received:
        for n_left in reversed(range(_READINGS)):
            buffer = np.empty(self.kind.index_bytes, dtype=np.uint8)
            answer = await self.store.fetch(key, self.kind.index_span, memoryview(buffer.data))
            if answer is None:
                return None, ObjectVersion()
            data, total = answer.data, answer.total
            if not answer.is_range and (whole := await self._whole(key)) is not None:
                first, last = self.kind.index_span  # of a server that ignores ranges
                data, total = whole.data[first : last or None], whole.total
            try:
                return self.kind.decoded(key, data, total), answer.version
            except Exception:
                if not n_left:
                    raise
        raise AssertionError("the last reading returns or raises")
