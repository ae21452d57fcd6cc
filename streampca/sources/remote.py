"""Stores behind a URL: requests have time limits, transient failures are retried, and permanent ones are named errors."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.storage import FsspecStore, LocalStore, ObjectStore

from streampca.errors import DamagedChunkError, DataError, NotAvailableError, StoreError, StreamPCAError
from streampca.formatting import one_line
from streampca.logs import logger
from streampca.redaction import redacted, shown
from streampca.sources.client_options import (
    BY_OBSTORE,
    StoreArguments,
    opened,
    protocol_of,
    register,
    registered,
    resolve,
    texts_in,
    translated,
)
from streampca.sources.fetching.client import (
    MAX_STORED_BYTES,
    OF_ANOTHER_REGION,
    READ_SECONDS,
    Fetched,
    ObjectClient,
    RequestError,
    code_of,
    hint_of,
    is_transient,
    of_obstore,
    retry_after,
    status_of,
)
from streampca.sources.formats import ICECHUNK, StorageOptions
from streampca.sources.grid import requests_since
from streampca.sources.versions import ObjectListing, listed
from streampca.storage.zarr_interface import (
    Buffer,
    BufferPrototype,
    GetOnlyStore,
    ZarrArray,
    default_buffer_prototype,
    sync,
)
from streampca.system.optional import is_installed

Result = TypeVar("Result")

_log = logger(__name__)
_IN_A_PATH = "/~!$&'()*+,;=:@"
"""Characters that stand for themselves in the path of a URL."""
_LIMITS = {"connect_timeout": "10s", "read_timeout": f"{READ_SECONDS:g}s", "timeout": "1day"}
"""Options of a client: the last is for a whole body, whose time depends on its size (`ObjectClient`)."""
_ASK_TO_WAIT = frozenset({429, 503})
"""Statuses that come with ``Retry-After``."""


@dataclass(frozen=True)
class RetryPolicy:
    """Number of requests for a key, and the waits between them."""

    requests: int = 12
    """Requests for one key, the first included."""
    first_seconds: float = 0.2
    """Longest wait before the second request; it doubles with every further one."""
    longest_seconds: float = 8.0
    """Upper limit of every wait."""
    asked_seconds: float = 60.0
    """Upper limit of every wait that the store asks for, and half of that of their sum."""
    key_seconds: float = 120.0
    """No request is repeated later than this, and the longest time without a byte, after the first one for its key."""

    def wait_for(self, n_failed: int, asked: float, waited: float) -> float | None:
        """Return the wait in seconds after so many failures, where the store `asked` for one; None if there is none within the limits.

        `waited` are the seconds of all waits so far. The wait is random so that readers who failed together do not return
        together; no number depends on it.
        """
        if n_failed == self.requests or (asked > 0 and waited + asked > 2 * self.asked_seconds):
            return None
        longest = min(self.longest_seconds, self.first_seconds * 2.0 ** (n_failed - 1))
        own = longest * random.uniform(0.5, 1.0)  # noqa: S311
        return max(own, min(asked * random.uniform(1.0, 1.1), self.asked_seconds))  # noqa: S311


PATIENCE = RetryPolicy()


async def fetched_by_zarr(store: Store, key: str, span: tuple[int, int] | None) -> Fetched | None:
    """Return the bytes of `key` in a store of zarr, or those in `span`, None if it does not exist; the size of the object is then not known."""
    byte_range: ByteRequest | None = None
    if span is not None:
        byte_range = SuffixByteRequest(-span[0]) if span[0] < 0 else RangeByteRequest(*span)
    value = await store.get(key, default_buffer_prototype(), byte_range)
    if value is None:
        return None
    data = memoryview(value.as_numpy_array().view("u1").data)
    return Fetched(data, MAX_STORED_BYTES if span else len(data), is_range=span is not None)


@dataclass
class StoreOfZarr:
    """A store of zarr that is none behind a URL, such as one in memory, an archive, or one of another library."""

    store: Store
    """The store."""
    label: str
    """How messages call it."""
    serves_ranges = True

    @property
    def shown_url(self) -> str:
        """Return how messages call it."""
        return self.label

    async def fetch(self, key: str, span: tuple[int, int] | None, most: int | None = None) -> Fetched | None:
        """Return what `fetched_by_zarr` does; `DamagedChunkError` where the store cannot give it."""
        try:
            return await fetched_by_zarr(self.store, key, span)
        except StreamPCAError:
            raise
        except Exception as error:  # stores have no class of errors in common
            raise DamagedChunkError(f"{self.label}: chunk {key} cannot be read: {one_line(error)}") from error


class RemoteStore(GetOnlyStore):
    """A store behind a URL that retries requests for each key independently, so that a slow key delays no other."""

    def __init__(self, store: Store, url: str, options: StorageOptions | None = None, reopens: bool = False):
        super().__init__(store)
        self.url, self.options, self.reopens = url, options, reopens
        self._running: set[asyncio.Task[object]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_answered = False
        self._client: ObjectClient | None = None
        self._asks: dict[int, bool] = {}
        self._process = os.getpid()
        self._opened_by: StoreArguments = (url, options if reopens else store)
        self._token = register(self._opened_by) if _holds_secrets(*self._opened_by) else None

    def __reduce__(self) -> tuple[object, ...]:
        return _open_again, (self._token or self._opened_by,)  # what is sent to workers is not private

    def _with_store(self, store: Store) -> RemoteStore:
        return RemoteStore(store, self.url, self.options, self.reopens)

    @property
    def portable(self) -> bool:
        """Return whether another process sees the same store."""
        return protocol_of(self.url) != "memory"

    @property
    def supports_listing(self) -> bool:
        """Return whether the store can list its keys; a plain web server cannot."""
        return self._store.supports_listing and protocol_of(self.url) not in ("http", "https")

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
        most: int | None = None,
    ) -> Buffer | None:
        """Return the bytes of `key`, None if it does not exist.

        None of the bytes if the object ends before `byte_range`, as zarr returns them for S3.
        Raises `StoreError` if the store does not answer, or an object has more than `most` bytes.
        """
        span = None
        if isinstance(byte_range, RangeByteRequest):
            span = byte_range.start, byte_range.end
        elif byte_range is not None and not isinstance(byte_range, OffsetByteRequest):
            span = -byte_range.suffix, 0
        answer = await self.fetch(key, span, most)
        if answer is not None and span is not None and not answer.is_range:
            answer = await self.fetch(key, None, most)
            answer = None if answer is None else replace(answer, data=answer.data[span[0] : span[1] or None])
        if answer is None:
            return None
        if most is not None and not span and answer.total > most:
            error = RequestError(f"{answer.total:,} bytes are stored, expected at most {most:,}")
            raise StoreError(self._refused(key, error))
        first = byte_range.offset if isinstance(byte_range, OffsetByteRequest) else 0
        return prototype.buffer.from_bytes(answer.data[first:])

    @property
    def shown_url(self) -> str:
        """Return the URL without what may be secret."""
        return shown(self.url)

    @property
    def reads_ahead(self) -> bool:
        """Return whether chunks are requested ahead, by obstore; those of clients of fsspec are read through zarr."""
        return isinstance(vars(self).get("_store"), ObjectStore)  # which is opened when it is asked for in a `_Sealed`

    @property
    def client(self) -> ObjectClient:
        """Return what sends requests by obstore for objects, without retries."""
        store = cast("ObjectStore[Any]", self._store).store
        if self._client is None or self._client.store is not store:
            self._client = ObjectClient(store)
        return self._client

    @property
    def serves_ranges(self) -> bool:
        """Return whether ranges of objects can be requested; some web servers send the whole object."""
        return not self.reads_ahead or self.client.serves_ranges

    async def fetch(self, key: str, span: tuple[int, int] | None, most: int | None = None) -> Fetched | None:
        """Return what `ObjectClient.fetch` does, with retries; by the store of zarr where obstore does not know the protocol."""
        if self.reads_ahead:
            return await self.with_retries(key, lambda: self.client.fetch(key, span, most))
        return await self.with_retries(key, lambda: fetched_by_zarr(self._store, self._named(key), span))

    async def exists(self, key: str) -> bool:
        """Return whether `key` exists."""
        return await self.with_retries(key, lambda: self._store.exists(self._named(key)))

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with `prefix`."""
        for key in await self.with_retries(prefix, lambda: _collect(self._store.list_prefix(prefix))):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below `prefix`."""
        for key in await self.with_retries(prefix, lambda: _collect(self._store.list_dir(prefix))):
            yield key

    def listing(self, prefix: str) -> ObjectListing | None:
        """Return what `details` does, by one request for all questions in a `one_listing`."""
        return listed((id(self), prefix), lambda: sync(self.details(prefix)))

    async def details(self, prefix: str) -> ObjectListing | None:
        """Return names, sizes and tags of the objects below `prefix`, as its client lists them; None where they cannot be listed."""
        store = self._store
        if not self.supports_listing or not isinstance(store, FsspecStore | ObjectStore):
            return None

        async def find() -> ObjectListing:
            if isinstance(store, FsspecStore):
                store.fs.invalidate_cache()
                place = "/".join(filter(None, (store.path.rstrip("/"), prefix.rstrip("/"))))
                found: ObjectListing = await store.fs._find(place, detail=True)
                root = f"{store.path.strip('/')}/"
                return {name.strip("/").removeprefix(root): about for name, about in found.items()}
            import obstore

            return {
                about["path"]: dict(about)
                async for batch in obstore.list(store.store, prefix=prefix or None)
                for about in batch
            }

        return await self.with_retries(prefix, find)

    def _named(self, key: str) -> str:
        """Return how the client takes `key`: that of fsspec for web servers takes parts of addresses, in which ``%``, ``#`` and ``?`` have a meaning."""
        of_web = isinstance(self._store, FsspecStore) and protocol_of(self.url) in ("http", "https")
        return quote(key, safe=_IN_A_PATH) if of_web else key

    def cancel(self) -> None:
        """Cancel all pending requests, which raise `StoreError`; may be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: [work.cancel() for work in list(self._running)])

    async def with_retries(self, key: str, request: Callable[[], Awaitable[Result]]) -> Result:
        """Await `request` for `key`, and retry after transient failures until the store is cancelled."""
        self._reopen_in_a_fork()
        _have_requested.add(os.getpid())
        self._loop, work = asyncio.get_running_loop(), asyncio.ensure_future(self._repeatedly(key, request))
        self._running.add(work)
        requests_since[work] = time.monotonic()
        try:
            return await work
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise StoreError(f"{shown(self.url)}: {key or 'the listing'}: the reading was stopped") from None
        finally:
            self._running.discard(work)
            requests_since.pop(work, None)

    def _reopen_in_a_fork(self) -> None:
        """Open the store again in a forked process, which cannot use the connections of its parent."""
        if self._process == os.getpid():
            return
        if not self.reopens:
            raise StoreError(
                f"{shown(self.url)} was opened before this process was forked: open it again in this process"
            )
        self._store, self._process, self._running = open_store(self.url, self.options)._store, os.getpid(), set()

    async def _repeatedly(self, key: str, request: Callable[[], Awaitable[Result]]) -> Result:
        waited, n_requests, began = 0.0, 0, time.monotonic()
        patience = PATIENCE.key_seconds + ((self.client.seconds if self.reads_ahead else None) or READ_SECONDS)
        while True:
            n_requests += 1
            asked_of = self._store
            try:
                result = await request()
                self._has_answered = True
                _log.debug("%s: answered request %d", key, n_requests)
                return result
            except StreamPCAError:
                raise
            except Exception as raised:  # noqa: BLE001 clients of stores have no class of errors in common
                error = of_obstore(raised) if type(raised).__module__.startswith("obstore") else raised
            if code_of(error) in OF_ANOTHER_REGION and await self._moved(key, asked_of):
                continue
            is_refused = isinstance(error, RequestError) and error.kind == "refused"  # no connection was established
            if not (is_transient(error) or (self._has_answered and is_refused)):
                raise StoreError(self._refused(key, error)) from None
            asked = 0.0
            if n_requests < PATIENCE.requests and self._asks.get(
                status_of(error) or 0, status_of(error) in _ASK_TO_WAIT
            ):
                n_requests += 1
                asked = await self._wait_asked(key, status_of(error) or 0)
            wait = PATIENCE.wait_for(n_requests, asked, waited)
            if wait is None or time.monotonic() - began + wait > patience:
                raise StoreError(self._given_up(key, error, n_requests, asked)) from None
            reason = type(error).__name__
            _log.info("%s: request %d of %d failed (%s): repeated", key, n_requests, PATIENCE.requests, reason)
            await asyncio.sleep(wait)
            waited += wait

    async def _wait_asked(self, key: str, status: int) -> float:
        """Return the seconds to wait that a store which refuses requests asks for; it is asked again only if it asks for some."""
        headers = await self.client.refusal(key) if self.reads_ahead else {}
        if headers is None:
            return 0.0
        asked = retry_after(headers)
        self._asks[status] = asked is not None
        return asked or 0.0

    async def _moved(self, key: str, asked_of: Store) -> bool:
        """Open a bucket of S3 again in the region that it is in, once; return whether it was opened since the request was sent."""
        if self._store is not asked_of:  # by another request that was sent at the same time
            return True
        if not self.reopens or "region" in (self.options or {}):
            return False
        region = (await self.client.refusal(key) or {}).get("x-amz-bucket-region")
        if region is None:
            return False
        if self._store is asked_of:
            self.options = {**(self.options or {}), "region": region}
            self._store = open_store(self.url, self.options)._store
        return True

    def _refused(self, key: str, error: Exception) -> str:
        hint = hint_of(error, "source.storage_options", is_s3=protocol_of(self.url) in ("s3", "s3a"))
        return f"{shown(self.url)}: {key or 'the listing'} cannot be read: {answer_text(error, self.url, self.options)}: {hint}"

    def _given_up(self, key: str, error: Exception, n_requests: int, asked: float) -> str:
        hint = (
            f"the store asks to wait {asked:.0f} s; start again after that"
            if asked
            else "the store does not answer; start again when it does"
        )
        return (
            f"{shown(self.url)}: {key or 'the listing'} cannot be read: {answer_text(error, self.url, self.options)}, after {n_requests} "
            f"request{'s' * (n_requests > 1)}: {hint}"
        )


def open_store(url: str, options: StorageOptions | None = None) -> RemoteStore:
    """Open the store at `url` for reading, by obstore, or by fsspec where only that knows the protocol; sends no request, but some clients connect.

    Raises
    ------
    NotAvailableError
        If the client package for such stores is not installed.
    DataError
        If there is no such protocol, its client does not take the options, or the URL is signed for one object.
    StoreError
        If the client connects, and cannot; or if this process is a fork of one that has used obstore.
    """
    protocol = protocol_of(url)
    try:
        if protocol in BY_OBSTORE:
            options = translated(url, options)
            store: Store = ObjectStore(opened(url, options, _LIMITS, retry_config={"max_retries": 0}), read_only=True)
        elif url.startswith(ICECHUNK):
            from streampca.sources.zarr.snapshots import store_at

            store = store_at(url, options)
        else:
            store = FsspecStore.from_url(url, storage_options=dict(options or {}), read_only=True)
    except (StreamPCAError, MemoryError, Warning):
        raise
    except ImportError as error:
        raise NotAvailableError(
            f"{shown(url)}: the package that reads {protocol}:// is not installed: install the fsspec client of {protocol}://"
        ) from error
    except Exception as error:  # noqa: BLE001 of a client that connects when it is made, such as that of ftp://, or its own
        if protocol in BY_OBSTORE or isinstance(error, TypeError | ValueError):
            said = f"{answer_text(of_obstore(error), url, options)} of obstore" if protocol in BY_OBSTORE else ""
            raise DataError(
                f"{shown(url)} cannot be opened: {said or type(error).__name__ + ' of the client of ' + protocol + '://'}: expected a URL "
                "such as s3://, gs://, az://, https:// or memory://, and in source.storage_options what its client takes"
            ) from None
        hint = hint_of(error, "source.storage_options", is_s3=False)
        raise StoreError(f"{shown(url)} cannot be opened: {answer_text(error, url, options)}: {hint}") from None
    return RemoteStore(store, url, options, reopens=True)


def answer_text(error: Exception, url: str, options: StorageOptions | None) -> str:
    """Return the answer of the store at `url` on one line, without strings of the `options` that may be secrets."""
    status = status_of(error)
    text = " ".join(str(getattr(error, "message", "") or getattr(error, "strerror", "") or error).split())
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    of_url = [parts.query, *dict(parse_qsl(parts.query)).values(), user, *user.split(":")]
    secrets = texts_in([options or {}, *of_url, *map(unquote, of_url)])
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = redacted(text if len(text) <= 160 else text[:160] + "…")
    named = "" if type(error).__name__ == "RequestError" else type(error).__name__
    pieces = [f"status {status}" if status else named, code_of(error) or "", text]
    return ", ".join(word for word in pieces if word)


class _Sealed(RemoteStore):
    """A store in a process that has a token but not the options behind it, such as a scheduler, which only forwards it."""

    def __init__(self, token: str):
        super().__init__(cast(Store, None), "", reopens=True)
        del self._store  # so that it is opened when it is first asked for
        self._token = token

    def __str__(self) -> str:
        return (
            f"sealed-{self._token}"  # zarr 3.4 asks for it when an array is made, and that of a wrapper opens the store
        )

    def __getattr__(self, name: str) -> Store:
        if name != "_store":
            raise AttributeError(name)
        again = _reopened(*resolve(str(self._token)))
        self.url, self.options, self._store = again.url, again.options, again._store
        return self._store


def _open_again(opened_by: str | StoreArguments) -> RemoteStore:
    """Open a store again, in this process or another, from its options or from the token of its options."""
    if not isinstance(opened_by, str):
        return _reopened(*opened_by)
    return _reopened(*resolve(opened_by)) if opened_by in registered() else _Sealed(opened_by)


def _reopened(url: str, how: Store | StorageOptions | None) -> RemoteStore:
    return RemoteStore(how, url) if isinstance(how, Store) else open_store(url, how)


def _holds_secrets(url: str, how: Store | StorageOptions | None) -> bool:
    """Return whether URL or options of a store may hold a secret: strings in the options, or a user or a query in the URL."""
    if isinstance(how, ObjectStore):
        how = {**dict(getattr(how.store, "config", {})), **dict(getattr(how.store, "client_options", None) or {})}
    file_system = getattr(how, "fs", None)
    options = how if file_system is None else file_system.storage_options
    return shown(url) != url or bool(texts_in(options or {})) or bool(getattr(file_system, "storage_args", ()))


def retrying(store: Store) -> Store:
    """Return `store`, wrapped in a `RemoteStore` if it is a store of obstore or fsspec that the user has opened; of files a store of files.

    What fsspec has opened and obstore can open with the same options is read by obstore.
    """
    if isinstance(store, ObjectStore):
        root = getattr(store.store, "prefix", None)
        if type(store.store).__name__ == "LocalStore" and root is not None:
            return LocalStore(root, read_only=True)
        return RemoteStore(store, _url_of_objects(store.store))
    if not isinstance(store, FsspecStore):
        return store
    url = _url_of(store)
    if type(getattr(store.fs, "sync_fs", store.fs)).__name__ == "LocalFileSystem":
        return LocalStore(store.path, read_only=True)
    if protocol_of(url) in BY_OBSTORE and type(store.fs).__module__ in _TRANSLATED and is_installed("obstore"):
        with contextlib.suppress(DataError):
            return open_store(url, translated(url, store.fs.storage_options, warns=False))
    return RemoteStore(store, url)


_TRANSLATED = frozenset({"fsspec.implementations.http", "s3fs.core", "gcsfs.core"})
"""Modules of clients of fsspec whose options are translated to those of obstore."""


def place_of(node: ZarrArray | zarr.Group) -> str:
    """Return the location of an array or group that the user has opened, for messages."""
    store = getattr(node.store, "_store", node.store)
    if isinstance(store, RemoteStore):
        return "/".join(filter(None, (store.shown_url, node.path)))
    if isinstance(store, FsspecStore):
        return shown("/".join(filter(None, (_url_of(store), node.path))))
    if snapshot_of(store) is not None:
        return "/".join(filter(None, (name_of(store), node.path)))
    return redacted(str(node.store_path))


def name_of(store: Store) -> str:
    """Return how messages call a store that the user has opened."""
    snapshot = snapshot_of(store)
    return redacted(str(store)) if snapshot is None else f"icechunk snapshot {snapshot}"


def snapshot_of(store: Store) -> str | None:
    """Return the snapshot of icechunk that a store shows, None where it shows none, or changes that were not committed."""
    if isinstance(store, RemoteStore):
        return store.url.rpartition("@")[2] if store.url.startswith(ICECHUNK) else None
    session = getattr(store, "session", None)
    snapshot = getattr(session, "snapshot_id", None)
    return None if snapshot is None or getattr(session, "has_uncommitted_changes", False) else str(snapshot)


def _url_of(store: FsspecStore) -> str:
    protocol = store.fs.protocol
    scheme = protocol if isinstance(protocol, str) else protocol[0]
    path = store.path.lstrip("/") if scheme == "memory" else store.path
    return path if "://" in path else f"{scheme}://{path}"


def _url_of_objects(store: Any) -> str:
    """Return the URL of a store of obstore."""
    if (url := getattr(store, "url", None)) is not None:
        return str(url)
    protocol = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az", "LocalStore": "file"}.get(type(store).__name__)
    if protocol is None:
        return f"memory://{id(store)}"
    config = dict(getattr(store, "config", {}))
    bucket = config.get("bucket") or config.get("container_name") or ""
    return f"{protocol}://" + "/".join(filter(None, (str(bucket), str(store.prefix or ""))))


async def _collect(keys: AsyncIterator[str]) -> list[str]:
    try:
        return [key async for key in keys]
    except FileNotFoundError:
        return []


_POLL_SECONDS, _MOST_POLLS = 0.02, 50
_have_requested: set[int] = set()
"""Processes that have sent requests: a fork has no part in those of its parent."""


@atexit.register
def _cancel_requests() -> None:
    """Cancel requests at exit, before their event loop is stopped and warns about them, and wait for the threads of obstore.

    A thread of obstore that is about to hand over an answer while Python ends aborts the process (8 of 20 processes that ended
    within a millisecond after 32 requests, with obstore 0.12 and Python 3.11).
    """
    if os.getpid() not in _have_requested:
        return
    with contextlib.suppress(Exception):
        sync(_cancel_all(), timeout=2)
    for _ in range(_MOST_POLLS):
        time.sleep(_POLL_SECONDS)  # during which the threads may use Python
        if not _are_threads_busy():
            break


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:  # of a reading that ended with an error: zarr leaves its other requests alone
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _are_threads_busy() -> bool:
    """Return whether a thread of obstore waits for a processor, as far as the system tells."""
    for task in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # a thread that has ended
            name, _, state = task.read_text().partition(" (")[2].rpartition(") ")
            if name.startswith("tokio") and state[:1] in "RD":
                return True
    return False
