"""The rows of Parquet and Arrow files behind URLs: the bytes of row groups are requested ahead, and decoded as those of local files are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

import numpy as np

from streampca.errors import ChangedInputError
from streampca.sources.base import ReadCount, Source, TransposedRows
from streampca.sources.fetching import division
from streampca.sources.fetching.indexes import KnownParts
from streampca.sources.fetching.object_version import ObjectVersion
from streampca.sources.fetching.read_ahead import ReadAhead
from streampca.sources.fetching.requests import Bytes, Piece, StoredChunk, ranges
from streampca.sources.files.fragments import FragmentedRows, FragmentReader
from streampca.sources.files.remote_file import CACHE_BYTES, RemoteFile, received_by
from streampca.sources.schedule import Schedule
from streampca.typing import Array

if TYPE_CHECKING:
    from streampca.sources.files.arrow import ArrowReader


class FetchedRows(FragmentedRows):
    """The rows of files of one server or bucket, of which row groups and record batches are parts of objects, as chunks in shards are."""

    reads_ahead = True

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
            store, parts = (
                self._file(self._reader_of_index(min(self._readers))).store,
                KnownParts(self, self._version_of),
            )
            self._requests[process] = ReadAhead(store, self._keys, None, division.RANGE_BYTES, parts)
        return self._requests[process]

    # --- which parts of objects hold rows: an `ObjectFormat`

    @property
    def most_object(self) -> int:
        """Return the size of the largest file."""
        return max(reader.record.n_bytes for reader in self._readers.values())

    def is_whole(self, start: int, stop: int, key: str, most: int) -> bool:
        """Return False: files are read by ranges."""
        return False

    def pieces(self, start: int, stop: int, key: str, index: object) -> list[Piece]:
        """Return the parts of a file for rows `start` to `stop`, none larger than a request.

        Of row groups that begin before `start` there are none: the thread that reads these rows has decoded them for the block before,
        or else requests them when it does.
        """
        found = []
        for position, low, high in self._spans(start, stop):
            reader = self._reader_of_index(position)
            if self._file(reader).key == key:
                for chunk in (chunk for chunk in reader.chunks_of(low, high) if reader.edges[chunk] >= low):
                    parts = (part for span in reader.parts[chunk] for part in ranges(*span, division.RANGE_BYTES))
                    found += [Piece((position, chunk), first, last - first) for first, last in parts]
        return found

    def _keys(self, start: int, stop: int) -> list[str]:
        return [self._file(self._reader_of_index(position)).key for position, _, _ in self._spans(start, stop)]

    def _version_of(self, key: str) -> ObjectVersion:
        files = map(self._file, map(self._reader_of_index, self._readers))
        return next(file.known() for file in files if file.key == key)

    def _reader_of_index(self, position: int) -> ArrowReader:
        return cast("ArrowReader", self._readers[position])

    @staticmethod
    def _file(reader: ArrowReader) -> RemoteFile:
        return cast(RemoteFile, reader.place)

    # --- reading

    def ahead(self, schedule: Schedule) -> AbstractContextManager[None]:
        """Request the blocks of `schedule` ahead while the context lasts."""
        return self.requests.ahead(schedule)

    def cancel(self) -> None:
        """End readings with a `StoreError`."""
        self.requests.cancel()
        self.requests.store.cancel()

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory that the largest file needs beside the block, with the stored bytes of a chunk, and those in flight."""
        requests = self.requests.division
        stored = max(reader.most_stored for reader in map(self._reader_of_index, self._readers))
        in_flight = requests.least_bytes + requests.request_bytes
        return super().overhead_bytes(n_rows) + stored + 2 * division.RANGE_BYTES + in_flight + CACHE_BYTES

    def slice(self, start: int, stop: int) -> FetchedRows:
        """Return a source for a worker with only the files of rows `start` to `stop`."""
        subset = cast(FetchedRows, super().slice(start, stop))
        subset._requests = {}
        return subset

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows, read file by file."""
        with self.requests.reading(start, stop) as chunks, received_by(_Received(self, chunks)):
            return super().read(start, stop, out)

    def by_features(self) -> Source:
        """Return a source whose rows are the features of this one: every block of them reads all rows."""
        return TransposedRows(self)


class _Received:
    """The bytes of one block, requested part by part and kept until a later row group is read."""

    def __init__(self, rows: FetchedRows, chunks: Sequence[StoredChunk]):
        self._rows, self._left, self._held = rows, list(chunks), list[tuple[StoredChunk, bytes]]()

    def __call__(self, key: str, start: int, stop: int) -> bytes | None:
        """Return a range of a file, None if a part of it was not requested ahead."""
        found, at = [], start
        while at < stop:
            chunk, data = self._part(key, at)
            if chunk is None:
                return None
            first = cast("tuple[int, int]", chunk.span)[0]
            piece = memoryview(data)[at - first : stop - first]
            found.append(piece)
            at += len(piece)
        return b"".join(found)

    def _part(self, key: str, at: int) -> tuple[StoredChunk | None, bytes]:
        """Return what holds the byte at a place of a file, and its bytes; waits for them."""
        for chunk, data in self._held:
            if _holds(chunk, key, at):
                return chunk, data
        for chunk in self._left:
            if _holds(chunk, key, at):
                self._left.remove(chunk)
                self._held = [each for each in self._held if each[0].pieces[-1].place >= chunk.pieces[0].place]
                self._held.append((chunk, self._bytes(chunk)))
                return self._held[-1]
        return None, b""

    def _bytes(self, chunk: StoredChunk) -> bytes:
        with self._rows.requests.stored(chunk, _no_memory) as stored:
            if stored is None or len(stored) != chunk.n_bytes:
                raise ChangedInputError(
                    f"{self._rows.requests.store.shown_url}/{chunk.key}: {0 if stored is None else len(stored):,} of {chunk.n_bytes:,} bytes were received: it is gone, "
                    "or was changed after it was opened; run again when nothing writes to it"
                )
            return stored.tobytes()


def _holds(chunk: StoredChunk, key: str, at: int) -> bool:
    return chunk.key == key and chunk.span is not None and chunk.span[0] <= at < chunk.span[1]


def _no_memory() -> Bytes:
    """Return no memory: parts are no larger than a request, so that none are joined."""
    return np.empty(0, dtype=np.uint8)
