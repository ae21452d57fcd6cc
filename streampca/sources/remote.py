"""Stores behind a URL: requests have time limits, transient failures are retried, and permanent ones are named errors."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, cast
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.storage import FsspecStore

from streampca.errors import DataError, NotAvailableError, StoreError, StreamPCAError
from streampca.logs import logger
from streampca.redaction import redacted, shown
from streampca.sources.client_options import protocol_of, texts_in, with_limits, without_double_colons, without_query
from streampca.sources.credentials import StoreArguments, register, registered, resolve
from streampca.sources.fetching import bounded
from streampca.sources.fetching.transfer import Fetched, Transfer, close_all
from streampca.sources.options import StorageOptions
from streampca.sources.request_errors import (
    code_of,
    hint_of,
    is_transient,
    is_unknown_host,
    is_unreachable,
    retry_after,
    status_of,
)
from streampca.sources.versions import ObjectListing, listed
from streampca.storage.zarr_interface import Buffer, BufferPrototype, GetOnlyStore, ZarrArray, sync
from streampca.system.optional import not_installed

Result = TypeVar("Result")

_log = logger(__name__)
_IN_EXTRA = {"s3": "s3fs", "s3a": "s3fs", "http": "aiohttp", "https": "aiohttp"}
"""Clients of protocols that the extra ``s3`` installs."""
_IN_A_PATH = "/~!$&'()*+,;=:@"
"""Characters that stand for themselves in the path of a URL."""


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

    def wait(self, n_failed: int) -> float:
        """Return the longest wait in seconds after so many failures."""
        return float(min(self.longest_seconds, self.first_seconds * 2.0 ** (n_failed - 1)))

    def wait_for(self, n_failed: int, asked: float, waited: float) -> float | None:
        """Return the wait in seconds after so many failures, where the store `asked` for one; None if there is none within the limits.

        `waited` are the seconds of all waits so far. The wait is random so that readers who failed together do not return
        together; no number depends on it.
        """
        if n_failed == self.requests or (asked > 0 and waited + asked > 2 * self.asked_seconds):
            return None
        own = self.wait(n_failed) * random.uniform(0.5, 1.0)  # noqa: S311
        return max(own, min(asked * random.uniform(1.0, 1.1), self.asked_seconds))  # noqa: S311

    @property
    def total_seconds(self) -> float:
        """Return the sum of the longest waits: the upper limit in seconds for a key that is refused at once each time."""
        return sum(self.wait(n_failed) for n_failed in range(1, self.requests))


PATIENCE = RetryPolicy()


class RemoteStore(GetOnlyStore):
    """A store behind a URL that retries requests for each key independently, so that a slow key delays no other."""

    def __init__(self, store: Store, url: str, options: StorageOptions | None = None, reopens: bool = False):
        super().__init__(store)
        self.url, self.options, self.reopens = url, options, reopens
        self._running: set[asyncio.Task[object]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_answered = False
        self._transfer: Transfer | None = None
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

        None of the bytes if the object ends before `byte_range`, as zarr returns them for S3. A server that ignores ranges sends more.
        Raises `StoreError` if the store does not answer, or sends more than `most` bytes.
        """
        return await self.with_retries(
            key, lambda: bounded.get(self._store, self._named(key), prototype, byte_range, most)
        )

    @property
    def shown_url(self) -> str:
        """Return the URL without what may be secret."""
        return shown(self.url)

    @property
    def transfer(self) -> Transfer:
        """Return what sends requests for chunks, without retries."""
        if self._transfer is None or self._transfer.store is not self._store:
            self._transfer = Transfer(self._store)
        return self._transfer

    async def fetch(
        self, key: str, span: tuple[int, int] | None, buffer: memoryview | None, most: int | None = None
    ) -> Fetched | None:
        """Return what `Transfer.fetch` does, with retries."""
        return await self.with_retries(key, lambda: self.transfer.fetch(self._named(key), span, buffer, most))

    def try_out(self, key: str) -> None:
        """Learn how the store answers to a request for a part of `key`, an object that exists, before memory is planned."""
        sync(self.with_retries(key, lambda: self.transfer.try_out(self._named(key))))

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
        """Return names, sizes and tags of the objects below `prefix`, as fsspec lists them; None where they cannot be listed."""
        store = self._store
        if not self.supports_listing or not isinstance(store, FsspecStore):
            return None

        async def find() -> ObjectListing:
            store.fs.invalidate_cache()
            listing: ObjectListing = await store.fs._find(f"{store.path}/{prefix}".rstrip("/"), detail=True)
            return listing

        return await self.with_retries(prefix, find)

    def _named(self, key: str) -> str:
        """Return how the client takes `key`: that of web servers takes parts of addresses, in which ``%``, ``#`` and ``?`` have a meaning."""
        return quote(key, safe=_IN_A_PATH) if protocol_of(self.url) in ("http", "https") else key

    def cancel(self) -> None:
        """Cancel all pending requests, which raise `StoreError`; may be called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: [work.cancel() for work in list(self._running)])

    async def with_retries(self, key: str, request: Callable[[], Awaitable[Result]]) -> Result:
        """Await `request` for `key`, and retry after transient failures until the store is cancelled."""
        self._reopen_in_a_fork()
        self._loop, work = asyncio.get_running_loop(), asyncio.ensure_future(self._repeatedly(key, request))
        self._running.add(work)
        try:
            return await work
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise StoreError(f"{shown(self.url)}: {key or 'the listing'}: the reading was stopped") from None
        finally:
            self._running.discard(work)

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
        waited = 0.0
        for n_requests in range(1, PATIENCE.requests + 1):
            try:
                result = await request()
                self._has_answered = True
                _log.debug("%s: answered request %d", key, n_requests)
                return result
            except StreamPCAError:
                raise
            except Exception as error:  # noqa: BLE001 clients of stores have no class of errors in common
                unreachable = is_unreachable(error) or is_unknown_host(error)
                if not (is_transient(error) or (self._has_answered and unreachable)):
                    raise StoreError(self._refused(key, error)) from None
                wait = PATIENCE.wait_for(n_requests, retry_after(error), waited)
                if wait is None:
                    raise StoreError(self._given_up(key, error, n_requests)) from None
                reason = type(error).__name__
            _log.info("%s: request %d of %d failed (%s): repeated", key, n_requests, PATIENCE.requests, reason)
            await asyncio.sleep(wait)
            waited += wait
        raise AssertionError("the last request returns or raises")

    def _refused(self, key: str, error: Exception) -> str:
        hint = hint_of(error, "source.storage_options", is_s3=protocol_of(self.url) in ("s3", "s3a"))
        return f"{shown(self.url)}: {key or 'the listing'} cannot be read: {_answer_text(error, self.url, self.options)}: {hint}"

    def _given_up(self, key: str, error: Exception, n_requests: int) -> str:
        asked = retry_after(error)
        hint = (
            f"the store asks for a wait of {asked:.0f} s; start again after it"
            if asked
            else "the store does not answer; start again when it does"
        )
        return (
            f"{shown(self.url)}: {key or 'the listing'} cannot be read: {_answer_text(error, self.url, self.options)}, after {n_requests} "
            f"request{'s' * (n_requests > 1)}: {hint}"
        )


def open_store(url: str, options: StorageOptions | None = None) -> RemoteStore:
    """Open the store at `url` for reading, with the `options` of fsspec; sends no request, but some clients connect.

    Raises
    ------
    NotAvailableError
        If the client package for such stores is not installed.
    DataError
        If there is no such protocol, its client does not take the options, or the URL is signed for one object.
    StoreError
        If the client connects, and cannot.
    """
    protocol = protocol_of(url)
    place, query = without_query(url) if protocol in ("http", "https") else (url, [])
    own = {**(options or {}), "params": query} if query else options or {}
    try:
        store = FsspecStore.from_url(
            without_double_colons(place), storage_options=with_limits(place, own), read_only=True
        )
    except ImportError as error:
        if protocol in _IN_EXTRA:
            raise not_installed(_IN_EXTRA[protocol], f"{shown(url)}: {protocol}://", "s3") from error
        how = "pip install gcsfs" if protocol in ("gs", "gcs") else f"install the fsspec client of {protocol}://"
        raise NotAvailableError(
            f"{shown(url)}: the package that reads {protocol}:// is not installed: {how}"
        ) from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{shown(url)} cannot be opened: {type(error).__name__} of the client of {protocol}://: expected a URL such as s3://, "
            "gs://, https:// or memory://, and in source.storage_options what fsspec takes for it"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 of a client that connects when it is made, such as that of ftp://
        hint = hint_of(error, "source.storage_options", is_s3=False)
        raise StoreError(f"{shown(url)} cannot be opened: {_answer_text(error, url, options)}: {hint}") from None
    # Repeating requests is done here: a client that repeats each of them by itself multiplies their number.
    if protocol in ("s3", "s3a", "gs", "gcs") and hasattr(store.fs, "retries"):
        store.fs.retries = 1
    _opened[id(store.fs)] = store.fs
    return RemoteStore(store, url, options, reopens=True)


def _answer_text(error: Exception, url: str, options: StorageOptions | None) -> str:
    """Return the answer of the store at `url` on one line, without strings of the `options` that may be secrets."""
    status = status_of(error)
    text = " ".join(str(getattr(error, "message", "") or getattr(error, "strerror", "") or error).split())
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]  # fsspec takes that of s3:// for a part of the bucket
    of_url = [parts.query, *dict(parse_qsl(parts.query)).values(), user, *user.split(":")]
    secrets = texts_in([options or {}, *of_url, *map(unquote, of_url)])
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = text if len(text) <= 160 else text[:160] + "…"
    code = code_of(error) or ""
    pieces = [f"status {status}" if status else type(error).__name__, "" if code.isdecimal() else code, text]
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
        opened = _reopened(*resolve(str(self._token)))
        self.url, self._store = opened.url, opened._store
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
    file_system = getattr(how, "fs", None)
    options = how if file_system is None else file_system.storage_options
    return shown(url) != url or bool(texts_in(options or {})) or bool(getattr(file_system, "storage_args", ()))


def retrying(store: Store) -> Store:
    """Return `store`, wrapped in a `RemoteStore` if it is a store of fsspec that the user has opened."""
    return RemoteStore(store, _url_of(store)) if isinstance(store, FsspecStore) else store


def place_of(node: ZarrArray | zarr.Group) -> str:
    """Return the location of an array or group that the user has opened, for messages."""
    store = getattr(node.store, "_store", node.store)
    if isinstance(store, FsspecStore):
        return shown("/".join(filter(None, (_url_of(store), node.path))))
    return redacted(str(node.store_path))


def _url_of(store: FsspecStore) -> str:
    protocol = store.fs.protocol
    scheme = protocol if isinstance(protocol, str) else protocol[0]
    path = store.path.lstrip("/") if scheme == "memory" else store.path
    return path if "://" in path else f"{scheme}://{path}"


async def _collect(keys: AsyncIterator[str]) -> list[str]:
    try:
        return [key async for key in keys]
    except FileNotFoundError:
        return []


_opened: dict[int, object] = {}
_of_the_parent: list[object] = []


def _leave_to_the_parent() -> None:
    """Neither use nor close connections in a forked process, because its parent still uses them."""
    _of_the_parent.extend(_opened.values())  # closed, too, where they were collected
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


@atexit.register
def _close_connections() -> None:
    """Cancel requests and close connections at exit, before their event loop is stopped and warns about them."""
    if _opened:
        with contextlib.suppress(Exception):
            sync(_close_all(), timeout=2)
        _opened.clear()


async def _close_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:  # of a reading that ended with an error: zarr leaves its other requests alone
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    close_all()
    for file_system in _opened.values():
        session, client = getattr(file_system, "_session", None), getattr(file_system, "_s3", None)
        for name in {"_session", "_s3"} & vars(file_system).keys():
            setattr(file_system, name, None)  # fsspec gives the same object for the same options: it connects again
        with contextlib.suppress(Exception):
            if session is not None and hasattr(session, "close"):
                await session.close()
            if client is not None:
                await client.__aexit__(None, None, None)
