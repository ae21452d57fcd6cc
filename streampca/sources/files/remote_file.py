"""A file behind a URL: ranges of its bytes, requested by the client of remote stores, as a file that pyarrow reads."""

from __future__ import annotations

import asyncio
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import unquote, urlunsplit

import xxhash

from streampca.errors import ChangedInputError, DataError, NotAvailableError
from streampca.redaction import shown
from streampca.sources.client_options import BY_OBSTORE, parts_of, protocol_of
from streampca.sources.fetching import read_ahead
from streampca.sources.fetching.client import MAX_STORED_BYTES, ObjectVersion
from streampca.sources.fetching.read_ahead import ranges
from streampca.sources.files.places import FileStatus
from streampca.sources.options import StorageOptions
from streampca.sources.remote import RemoteStore, open_store
from streampca.sources.schedule import Span
from streampca.storage.zarr_interface import sync
from streampca.system.optional import optional_module

_BLOCK_BYTES = 2**16
"""Bytes that are requested for fewer; as many at the end are requested first, where Parquet has its footer."""
_MOST_BLOCKS = 32
CACHE_BYTES = _MOST_BLOCKS * _BLOCK_BYTES
"""Memory of the blocks that were received last, of all files of this process."""
_MOST_AT_ONCE = 8
Received = Callable[[str, int, int], bytes | None]
"""Returns a range of a file that was requested ahead, by its key; None for one that was not."""

_reading = threading.local()
_blocks: OrderedDict[tuple[object, int], bytes] = OrderedDict()
_lock = threading.Lock()


def remote_file(url: str, options: StorageOptions | None, stores: dict[str, object]) -> RemoteFile:
    """Return the file at `url`; `stores` are those that were opened for other files, to which its own is added. Sends no request.

    Raises
    ------
    NotAvailableError
        If obstore does not know the protocol, or is not installed.
    DataError
        If `url` is none, or its store does not take the options.
    """
    if protocol_of(url) not in BY_OBSTORE:
        raise NotAvailableError(
            f"{shown(url)}: files of rows behind {protocol_of(url)}:// are not read: expected one of {', '.join(BY_OBSTORE)}, or a local path"
        )
    root, key = _split(url)
    store = stores.get(root) or stores.setdefault(root, open_store(root, options))
    return RemoteFile(cast(RemoteStore, store), key)


def keys_below(url: str, options: StorageOptions | None) -> list[str]:
    """Return the keys of all objects below `url`, relative to it; none where the store cannot be listed, as on a web server."""
    if protocol_of(url) not in BY_OBSTORE:
        return []
    root, prefix = _split(url.rstrip("/"))
    listing = open_store(root, options).listing(f"{prefix}/" if prefix else "")
    return [key.removeprefix(f"{prefix}/") for key in listing or {}]


def _split(url: str) -> tuple[str, str]:
    """Return the URL of a server or bucket, and the key of an object in it; a query belongs to the server."""
    if BY_OBSTORE[protocol_of(url)] == "http":
        parts = parts_of(url)
        return urlunsplit((parts.scheme, parts.netloc, "", parts.query, "")), unquote(parts.path).lstrip("/")
    place, _, key = url.partition("://")[2].partition("/")
    return f"{url.partition('://')[0]}://{place}", key


@contextmanager
def received_by(received: Received) -> Iterator[None]:
    """Let files that this thread reads within the context take what was `received` ahead."""
    _reading.received = received
    try:
        yield
    finally:
        _reading.received = None


class RemoteFile:
    """An object behind a URL, whose version is that of the first answer: later ones of another version are an error.

    Parameters
    ----------
    store : RemoteStore
        The server or bucket.
    key : str
        The name of the object in it.
    """

    def __init__(self, store: RemoteStore, key: str):
        self.store, self.key = store, key
        self.version: ObjectVersion | None = None

    def __str__(self) -> str:
        return f"{self.store.shown_url.rstrip('/')}/{self.key}"

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of its directories, and its own."""
        return tuple(self.key.split("/"))

    @property
    def identity(self) -> object:
        """Return store and key."""
        return id(self.store), self.key

    def absolute(self) -> RemoteFile:
        """Return the file itself."""
        return self

    def known(self) -> ObjectVersion:
        """Return the version of the first answer; requests the end of the file if there is none yet."""
        if self.version is None:
            self._take(sync(self._requested([(-_BLOCK_BYTES, 0)]))[0])
        return cast(ObjectVersion, self.version)

    def status(self) -> FileStatus:
        """Return size and entity tag of the first answer."""
        version = self.known()
        number = 0 if version.tag is None else -(xxhash.xxh3_64_intdigest(version.tag.encode()) >> 1)
        return FileStatus(version.n_bytes or 0, number)

    def for_arrow(self) -> Any:
        """Open it as a file of pyarrow."""
        return optional_module("pyarrow", "Parquet", "arrow").PythonFile(_Opened(self), mode="r")

    def pieces(self, spans: Sequence[Span]) -> list[bytes]:
        """Return the bytes in each of `spans`, some of which are requested at once."""
        held = [self._held(*span) for span in spans]
        missing = [span for span, data in zip(spans, held, strict=True) if data is None]
        sent = iter(sync(self._requested(missing)) if missing else [])
        return [next(sent) if data is None else data for data in held]

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`, of which nothing is behind the end of the file."""
        received: Received | None = getattr(_reading, "received", None)
        data = self._held(start, stop) if received is None else received(self.key, start, stop)
        if data is not None or (data := self._held(start, stop)) is not None:
            return data
        if stop - start < _BLOCK_BYTES:
            block = min(start + _BLOCK_BYTES, self.status().n_bytes)
            self._hold(start, sync(self._requested([(start, block)]))[0])
            return cast(bytes, self._held(start, stop))
        return b"".join(sync(self._requested(ranges(start, stop, read_ahead.RANGE_BYTES))))

    def changed(self) -> ChangedInputError:
        """Return the error for an answer of another version."""
        return ChangedInputError(
            f"{self} was changed while it was read: its entity tag or size is another; a result would belong to neither version: run again when "
            "nothing writes to it; if several servers answer at this address, name one of them, or give their copies the same times of modification"
        )

    async def _requested(self, spans: Sequence[Span]) -> list[bytes]:
        limit = asyncio.Semaphore(_MOST_AT_ONCE)

        async def answer(span: Span) -> bytes:
            async with limit:
                return await self._answer(span)

        return await asyncio.gather(*map(answer, spans))

    async def _answer(self, span: Span) -> bytes:
        """Request a range, a negative one from the end, and return its bytes, all of them."""
        n_bytes = span[1] - span[0]
        answer = await self.store.fetch(self.key, span)
        if answer is None:
            raise DataError(f"{self}: no such file")
        if not answer.is_range:
            raise NotAvailableError(
                f"{self}: the server sends no ranges of files, or others than are requested, and Parquet and Arrow are read by these: copy the file "
                "to a local path"
            )
        if self.version is None:
            self.version = answer.version if answer.total else ObjectVersion(n_bytes=0)
        if answer.version.differs(self.version) or answer.total not in (self.version.n_bytes, MAX_STORED_BYTES):
            raise self.changed()
        if len(answer.data) != min(n_bytes, answer.total):
            raise self.changed()
        return bytes(answer.data)

    def _take(self, end: bytes) -> None:
        self._hold((cast(ObjectVersion, self.version).n_bytes or 0) - len(end), end)

    def _hold(self, start: int, data: bytes) -> None:
        with _lock:
            _blocks[(self._place, start)] = data
            while len(_blocks) > _MOST_BLOCKS:
                _blocks.popitem(last=False)

    def _held(self, start: int, stop: int) -> bytes | None:
        """Return bytes that are in a block, None if they are not."""
        with _lock:
            for (place, first), data in _blocks.items():
                if place == self._place and first <= start and stop <= first + len(data):
                    _blocks.move_to_end((place, first))
                    return data[start - first : stop - first]
        return None

    @property
    def _place(self) -> object:
        return self.store.url, self.key, self.version


class _Opened(io.RawIOBase):
    """The file at a place of reading."""

    def __init__(self, file: RemoteFile):
        self._file, self._at, self._n_bytes = file, 0, file.status().n_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._n_bytes)[whence])
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._n_bytes if size is None or size < 0 else min(self._n_bytes, self._at + size)
        data = self._file.read(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
