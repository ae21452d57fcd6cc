"""Files behind URLs: ranges of their bytes as a file that pyarrow reads, and the rows of Parquet and Arrow files, requested ahead."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast
from urllib.parse import unquote, urlunsplit

import xxhash

from streampca.errors import ChangedInputError, DataError, NotAvailableError
from streampca.redaction import shown
from streampca.sources.base import ReadCount, Source, Transposed
from streampca.sources.client_options import BY_OBSTORE, parts_of, protocol_of
from streampca.sources.fetching import read_ahead
from streampca.sources.fetching.client import MAX_STORED_BYTES, ObjectVersion
from streampca.sources.fetching.read_ahead import Part, ReadAhead, Run, ranges, runs_of
from streampca.sources.files.fragments import FragmentedRows, FragmentReader
from streampca.sources.files.records import FileStatus
from streampca.sources.formats import StorageOptions
from streampca.sources.grid import Schedule, Span, parts_between
from streampca.sources.remote import RemoteStore, open_store
from streampca.storage.zarr_interface import sync
from streampca.system.optional import optional_module
from streampca.typing import Array

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
            f"{self} was changed while it was read: its entity tag or size differs; a result would belong to neither version: run again when "
            "nothing writes to it; if several servers answer at this address, name one of them, or give their copies the same modification times"
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
                f"{self}: the server does not send the byte ranges that are requested, which Parquet and Arrow need: copy the file "
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


class FetchedRows(FragmentedRows):
    """The rows of files of one server or bucket, of which row groups and record batches are parts of objects, as chunks in shards are."""

    reads_ahead = True
    _readers: dict[int, Any]

    def __init__(
        self, readers: Sequence[FragmentReader], description: str, details: Mapping[str, object] | None = None
    ):
        super().__init__(readers, description, details)
        self._requests: dict[int, ReadAhead] = {}  # by process: a fork has no part in those of its parent

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_requests": {}}

    @property
    def requests(self) -> ReadAhead:
        """Return what requests parts of files in this process."""
        process = os.getpid()
        if process not in self._requests:
            store = self._file(self._readers[min(self._readers)]).store
            change = "the file was changed after it was opened"
            self._requests[process] = ReadAhead(store, self._look_up, lambda: read_ahead.RANGE_BYTES, change)
        return self._requests[process]

    async def _look_up(self, start: int, stop: int) -> list[Run]:
        """Return what is requested for rows `start` to `stop`, file by file, none of it larger than a request.

        Of row groups that begin before `start` it is nothing: the thread that reads these rows has decoded them for the block before,
        or else requests them when it does.
        """
        found = []
        for position, low, high in parts_between(self.first_rows, start, stop):
            reader, parts = self._readers[position], list[Part]()
            for chunk in (chunk for chunk in reader.chunks_of(low, high) if reader.edges[chunk] >= low):
                for first, last in reader.parts[chunk]:
                    spans = ranges(first, last, read_ahead.RANGE_BYTES)
                    parts += [((position, chunk), begin, end - begin) for begin, end in spans]
            file = self._file(reader)
            found += runs_of(file.key, parts, read_ahead.RANGE_BYTES, 0, file.known())
        return found

    @staticmethod
    def _file(reader: FragmentReader) -> RemoteFile:
        return cast(RemoteFile, reader.place)

    # --- reading

    def ahead(self, schedule: Schedule) -> AbstractContextManager[None]:
        """Request the blocks of `schedule` ahead while the context lasts."""
        return self.requests.ahead(schedule)

    def cancel(self) -> None:
        """End readings with a `StoreError`."""
        self.requests.cancel()
        self._file(self._readers[min(self._readers)]).store.cancel()

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory that the largest file needs beside the block, with the stored bytes of a chunk, and those in flight."""
        requests = self.requests
        stored: int = max(reader.most_stored for reader in self._readers.values())
        in_flight = requests.least_bytes + requests.request_bytes
        return super().overhead_bytes(n_rows) + stored + 2 * read_ahead.RANGE_BYTES + in_flight + CACHE_BYTES

    def slice(self, start: int, stop: int) -> FetchedRows:
        """Return a source for a worker with only the files of rows `start` to `stop`."""
        subset = cast(FetchedRows, super().slice(start, stop))
        subset._requests = {}
        return subset

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, read file by file."""
        with self.requests.reading(start, stop) as runs, received_by(_Received(self, runs)):
            return super().read(start, stop, out)

    def by_features(self) -> Source:
        """Return a source whose rows are the features of this one: every block of them reads all rows."""
        return Transposed(self)


class _Received:
    """The bytes of one block, requested part by part and kept until a later row group is read."""

    def __init__(self, rows: FetchedRows, runs: Sequence[Run]):
        self._rows, self._left, self._held = rows, list(runs), list[tuple[Run, bytes]]()

    def __call__(self, key: str, start: int, stop: int) -> bytes | None:
        """Return a range of a file, None if a part of it was not requested ahead."""
        found, at = [], start
        while at < stop:
            run, data = self._part(key, at)
            if run is None:
                return None
            first = cast("tuple[int, int]", run.span)[0]
            piece = memoryview(data)[at - first : stop - first]
            found.append(piece)
            at += len(piece)
        return b"".join(found)

    def _part(self, key: str, at: int) -> tuple[Run | None, bytes]:
        """Return what holds the byte at a place of a file, and its bytes; waits for them."""
        for run, data in self._held:
            if _holds(run, key, at):
                return run, data
        for run in self._left:
            if _holds(run, key, at):
                self._left.remove(run)
                self._held = [each for each in self._held if each[0].parts[-1][0] >= run.parts[0][0]]
                self._held.append((run, self._bytes(run)))
                return self._held[-1]
        return None, b""

    def _bytes(self, run: Run) -> bytes:
        with self._rows.requests.received(run) as answer:
            if answer is None or len(answer.data) != run.most:
                raise ChangedInputError(
                    f"{self._rows.requests.store.shown_url}/{run.key}: {0 if answer is None else len(answer.data):,} of {run.most:,} bytes were received: it is gone, "
                    "or was changed after it was opened; run again when nothing writes to it"
                )
            return bytes(answer.data)


def _holds(run: Run, key: str, at: int) -> bool:
    return run.key == key and run.span is not None and run.span[0] <= at < run.span[1]
