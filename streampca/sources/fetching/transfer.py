"""One request for a stored object: by a client that receives in place where it can, else by that of fsspec."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.storage import FsspecStore

from streampca.sources.fetching import bounded
from streampca.sources.fetching.checksums import require_checksum
from streampca.sources.fetching.object_version import ObjectVersion
from streampca.storage.zarr_interface import default_buffer_prototype

if TYPE_CHECKING:
    from yarl import URL

    from streampca.sources.fetching.plain_http import PlainHTTP

MAX_STORED_BYTES = 2**62
"""Size of an object that is not known."""


@dataclass(frozen=True)
class Fetched:
    """Stored bytes."""

    data: memoryview
    """The bytes; none if they did not fit where they were to be received."""
    total: int
    """Size in bytes of the whole object; `MAX_STORED_BYTES` where a client does not tell it and the range is not the object's last."""
    is_range: bool
    """Whether `data` are the range that was requested, not the whole object."""
    version: ObjectVersion = field(default_factory=ObjectVersion)
    """What is known of the content of the object."""


class Requests(Protocol):
    """What a client that receives in place sends for the keys of a store."""

    client: PlainHTTP
    """The client."""
    unusual: ClassVar[frozenset[int]]
    """Statuses of answers that fsspec deals with."""

    async def request(self, key: str, span: tuple[int, int] | None) -> tuple[URL, dict[str, str]]:
        """Return address and further headers of a request; `UnusualAnswerError` for one that is left to fsspec."""
        ...


class Transfer:
    """Requests to a store, each sent once."""

    serves_ranges = True
    """Whether ranges of objects can be requested; some web servers send the whole object."""

    def __init__(self, store: Store):
        self.store = store
        self._requests = _requests_of(store)

    @property
    def receives_in_place(self) -> bool:
        """Return whether bytes are received where they are needed, and a range comes with the size of the object."""
        return self._requests is not None

    async def try_out(self, key: str) -> None:
        """Learn from a request for the first byte of `key`, an object that exists, how the store answers."""
        answer = await self.fetch(key, (0, 1), memoryview(bytearray(1)))
        self.serves_ranges = self.serves_ranges and (answer is None or answer.is_range)

    async def fetch(
        self, key: str, span: tuple[int, int] | None, buffer: memoryview | None, most: int | None = None
    ) -> Fetched | None:
        """Return the bytes of `key`, or those in `span`, None if it does not exist; in `buffer` if this client uses one.

        An object has at most `most` bytes; `TooManyBytesError` for one that has more.
        """
        if self._requests is not None and buffer is not None:
            from streampca.sources.fetching.plain_http import UnusualAnswerError

            try:
                return await self._fetch_in_place(self._requests, key, span, buffer)
            except FileNotFoundError:
                return None
            except UnusualAnswerError:
                self._requests = None
        request, most = _request_of(span), most if span is None else span[1] - span[0] + 1
        try:
            stored = await bounded.get(self.store, key, default_buffer_prototype(), request, most)
        except bounded.TooManyBytesError:
            if span is None:
                raise
            return Fetched(memoryview(b""), MAX_STORED_BYTES, is_range=False)
        if stored is None:
            return None
        data = stored.as_numpy_array().view(np.uint8).data
        if span is None:
            return Fetched(data, len(data), is_range=False)
        n_bytes = span[1] - span[0]
        if len(data) > n_bytes + (span[0] >= 0):
            return Fetched(data, len(data), is_range=False)
        is_last = span[0] >= 0 and len(data) <= n_bytes
        return Fetched(data[:n_bytes], span[0] + len(data) if is_last else MAX_STORED_BYTES, is_range=True)

    async def _fetch_in_place(
        self, requests: Requests, key: str, span: tuple[int, int] | None, buffer: memoryview
    ) -> Fetched:
        from streampca.sources.fetching.plain_http import HTTPStatusError, UnusualAnswerError

        url, headers = await requests.request(key, span)
        try:
            answer = await requests.client.get(url, span, buffer, headers)
        except HTTPStatusError as error:
            if error.status in requests.unusual:
                raise UnusualAnswerError(f"status {error.status}") from None
            if error.status != 416:
                raise
            return Fetched(buffer[:0], 0, is_range=True)  # the object ends before the range
        if not answer.is_range and answer.n_bytes:
            require_checksum(buffer[: answer.n_bytes], answer.headers)
        version = ObjectVersion.of(answer.headers, answer.total)
        return Fetched(buffer[: answer.n_bytes], answer.total, answer.is_range, version)


def _request_of(span: tuple[int, int] | None) -> ByteRequest | None:
    if span is None:
        return None
    if span[0] < 0:
        return SuffixByteRequest(-span[0])
    return RangeByteRequest(span[0], span[1] + 1)  # one byte more, which tells whether the object ends with the range


_opened: weakref.WeakSet[PlainHTTP] = weakref.WeakSet()
"""Clients, which outlive their stores as long as they have connections."""


def close_all() -> None:
    """Close all connections that are not in use; called in the event loop."""
    for client in list(_opened):
        client.close()


def _leave_to_the_parent() -> None:
    """Neither use nor close connections in a forked process: its event loop shares what it waits for with that of its parent."""
    _of_the_parent.extend(_opened)  # closed, too, where they were collected
    _opened.clear()


_of_the_parent: list[PlainHTTP] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _requests_of(store: Store) -> Requests | None:
    """Return what sends requests for `store` to a client that receives in place, None if there is none."""
    if not isinstance(store, FsspecStore):
        return None
    protocols = {store.fs.protocol} if isinstance(store.fs.protocol, str) else set(store.fs.protocol)
    requests: Requests | None = None
    if protocols & {"http", "https"}:
        from streampca.sources.fetching.web import WebRequests

        requests = WebRequests.of(store.fs, store.path)
    elif "s3" in protocols:
        from streampca.sources.fetching.signed import SignedRequests

        requests = SignedRequests.of(store.fs, store.path)
    if requests is not None:
        _opened.add(requests.client)
    return requests
