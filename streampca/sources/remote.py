"""Stores behind a URL: requests have time limits, transient failures are retried, and permanent ones are named errors."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import TypeVar, cast
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.storage import FsspecStore, WrapperStore

from streampca.errors import DataError, NotAvailableError, StoreError, StreamPCAError
from streampca.logs import logger
from streampca.redaction import redacted, shown
from streampca.sources.credentials import StoreArguments, register, registered, resolve
from streampca.sources.fetching.transfer import Fetched, Transfer, close_all
from streampca.sources.options import StorageOptions
from streampca.sources.request_errors import is_transient, is_unreachable, status_of
from streampca.sources.versions import ObjectListing
from streampca.storage.zarr_interface import Buffer, BufferPrototype, ZarrArray, sync
from streampca.system.optional import not_installed

Result = TypeVar("Result")

_log = logger(__name__)
_CONNECT_SECONDS, _READ_SECONDS = 10, 60
_CONNECTIONS = 32
_IN_EXTRA = {"s3": "s3fs", "s3a": "s3fs", "http": "aiohttp", "https": "aiohttp"}
"""Clients of protocols that the extra ``s3`` installs."""
_ADDRESS = re.compile(r"(?<=[/@])\[([0-9A-Fa-f:.]+)\]")
_OF_ONE_OBJECT = frozenset({"x-amz-signature", "x-goog-signature", "signature"})
"""Names in the query of a URL that S3 or Google Cloud Storage have signed."""
_SHOWN_OPTIONS = ("endpoint_url", "region_name")


@dataclass(frozen=True)
class RetryPolicy:
    """Number of requests for a key, and the waits between them."""

    requests: int = 12
    """Requests for one key, the first included."""
    first_seconds: float = 0.2
    """Longest wait before the second request; it doubles with every further one."""
    longest_seconds: float = 8.0
    """Upper limit of every wait."""

    def wait(self, n_failed: int) -> float:
        """Return the longest wait in seconds after so many failures."""
        return float(min(self.longest_seconds, self.first_seconds * 2.0 ** (n_failed - 1)))

    @property
    def total_seconds(self) -> float:
        """Return the sum of the longest waits: the upper limit in seconds for a key that is refused at once each time."""
        return sum(self.wait(n_failed) for n_failed in range(1, self.requests))


PATIENCE = RetryPolicy()


class RemoteStore(WrapperStore[Store]):
    """A store behind a URL that retries requests for each key independently, so that a slow key delays no other."""

    purpose = "read"
    """Participle of the operation on the keys, for error messages."""
    options_key = "source.storage_options"
    """Configuration key of the options, for error messages."""

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

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the bytes of `key`, None if it does not exist; raise `StoreError` if the store does not answer."""
        return await self.with_retries(key, lambda: self._store.get(key, prototype, byte_range))

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

    async def fetch(self, key: str, span: tuple[int, int] | None, buffer: memoryview | None) -> Fetched | None:
        """Return the bytes of `key`, or those in `span`, None if it does not exist; in `buffer` if the client uses one."""
        return await self.with_retries(key, lambda: self.transfer.fetch(key, span, buffer))

    def try_out(self, key: str) -> None:
        """Learn how the store answers to a request for a part of `key`, an object that exists, before memory is planned."""
        sync(self.with_retries(key, lambda: self.transfer.try_out(key)))

    async def exists(self, key: str) -> bool:
        """Return whether `key` exists."""
        return await self.with_retries(key, lambda: self._store.exists(key))

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with `prefix`."""
        for key in await self.with_retries(prefix, lambda: _collect(self._store.list_prefix(prefix))):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names directly below `prefix`."""
        for key in await self.with_retries(prefix, lambda: _collect(self._store.list_dir(prefix))):
            yield key

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
        for n_requests in range(1, PATIENCE.requests + 1):
            try:
                result = await request()
                self._has_answered = True
                _log.debug("%s: answered request %d", key, n_requests)
                return result
            except StreamPCAError:
                raise
            except Exception as error:  # noqa: BLE001 clients of stores have no class of errors in common
                if not (is_transient(error) or (self._has_answered and is_unreachable(error))):
                    raise StoreError(self._refused(key, error)) from None
                if n_requests == PATIENCE.requests:
                    raise StoreError(self._given_up(key, error)) from None
                reason = type(error).__name__
            _log.info("%s: request %d of %d failed (%s): repeated", key, n_requests, PATIENCE.requests, reason)
            # The wait is random so that readers who failed together do not return together; no number depends on it.
            await asyncio.sleep(PATIENCE.wait(n_requests) * random.uniform(0.5, 1.0))  # noqa: S311
        raise AssertionError("the last request returns or raises")

    def _refused(self, key: str, error: Exception) -> str:
        hint = f"look at the address and at {self.options_key}"
        if status_of(error) == 403 or isinstance(error, PermissionError):
            hint = f"look at the credentials in {self.options_key}; some stores also refuse keys that do not exist"
        return f"{shown(self.url)}: {key or 'the listing'} cannot be {self.purpose}: {self._answer_text(error)}: {hint}"

    def _given_up(self, key: str, error: Exception) -> str:
        return (
            f"{shown(self.url)}: {key or 'the listing'} cannot be {self.purpose}: {self._answer_text(error)}, after {PATIENCE.requests} "
            "requests: the store does not answer; start again when it does"
        )

    def _answer_text(self, error: Exception) -> str:
        """Return the answer of the store on one line, without strings of the options that may be secrets."""
        status = status_of(error)
        text = " ".join(str(getattr(error, "message", "") or getattr(error, "strerror", "") or error).split())
        query = urlsplit(self.url).query
        for secret in sorted(
            _texts([self.options or {}, query, *dict(parse_qsl(query)).values()]), key=len, reverse=True
        ):
            text = text.replace(secret, "***")
        text = text if len(text) <= 160 else text[:160] + "…"
        pieces = [f"status {status}" if status else type(error).__name__, text]
        return ", ".join(word for word in pieces if word)


def open_store(url: str, options: StorageOptions | None = None) -> RemoteStore:
    """Open the store at `url` for reading, with the `options` of fsspec; sends no request.

    Raises
    ------
    NotAvailableError
        If the client package for such stores is not installed.
    DataError
        If there is no such protocol, its client does not take the options, or the URL is signed for one object.
    """
    protocol = protocol_of(url)
    place, query = _without_query(url) if protocol in ("http", "https") else (url, [])
    own = {**(options or {}), "params": query} if query else options or {}
    try:
        store = FsspecStore.from_url(
            _without_double_colons(place), storage_options=_with_limits(protocol, own), read_only=True
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
    # Repeating requests is done here: a client that repeats each of them by itself multiplies their number.
    if protocol in ("s3", "s3a", "gs", "gcs") and hasattr(store.fs, "retries"):
        store.fs.retries = 1
    _opened[id(store.fs)] = store.fs
    return RemoteStore(store, url, options, reopens=True)


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
    return shown(url) != url or bool(_texts(options or {})) or bool(getattr(file_system, "storage_args", ()))


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


def _without_query(url: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the URL of a store on a web server without its query, and the query, which every request has."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    if _OF_ONE_OBJECT & {name.lower() for name, _ in query}:
        raise DataError(
            f"{shown(url)}: its query is a signature, which is for one object, and a store has many: expected a token for all of them, "
            "or a URL such as s3:// or gs:// with credentials in source.storage_options"
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")), query


def _without_double_colons(url: str) -> str:
    """Return a URL with an IPv6 address in full: fsspec takes two colons for a chain of file systems."""
    return _ADDRESS.sub(lambda match: f"[{IPv6Address(match[1]).exploded}]", url, count=1)


def protocol_of(url: str) -> str:
    """Return the protocol of a URL; the first one of a chain of file systems."""
    return url.partition("://")[0].partition("::")[0].lower()


def _with_limits(protocol: str, options: StorageOptions) -> dict[str, object]:
    """Return `options` with time limits and without retries by the client, unless they set these themselves."""
    if protocol in ("s3", "s3a"):
        config = {
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": _READ_SECONDS,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        }
        # One request for a chunk: no question for its size before, and no parts, which come without a checksum.
        defaults = {"use_listings_cache": False, "max_concurrency": 1, **options}
        return defaults | {"config_kwargs": config | dict(options.get("config_kwargs") or {})}
    if protocol in ("http", "https"):
        from aiohttp import ClientTimeout

        client = dict(options.get("client_kwargs") or {})
        given = client.get("timeout", _READ_SECONDS)
        if isinstance(given, int | float):
            client["timeout"] = ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=given)
        return {**options, "client_kwargs": client}
    return dict(options)


def _texts(options: object) -> set[str]:
    """Return all strings of at least 4 characters in `options` except addresses."""
    if isinstance(options, dict):
        return set().union(*(_texts(value) for key, value in options.items() if key not in _SHOWN_OPTIONS))
    if isinstance(options, list | tuple):
        return set().union(*map(_texts, options))
    return {options} if isinstance(options, str) and len(options) >= 4 else set()


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
