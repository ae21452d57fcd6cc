"""The rows of Parquet and Arrow files behind URLs: the bytes of row groups are requested ahead, and decoded as those of local files are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, cast

from streampca.errors import ChangedInputError
from streampca.sources.base import ReadCount, Source, TransposedRows
from streampca.sources.fetching import read_ahead
from streampca.sources.fetching.client import ObjectVersion
from streampca.sources.fetching.read_ahead import Part, ReadAhead, Run, ranges, runs_of
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
            store = self._file(self._reader_of_index(min(self._readers))).store
            change = "the file was changed after it was opened"
            self._requests[process] = ReadAhead(store, self._look_up, lambda: read_ahead.RANGE_BYTES, change)
        return self._requests[process]

    async def _look_up(self, start: int, stop: int) -> list[Run]:
        """Return what is requested for rows `start` to `stop`, file by file, none of it larger than a request.

        Of row groups that begin before `start` it is nothing: the thread that reads these rows has decoded them for the block before,
        or else requests them when it does.
        """
        found = []
        for position, low, high in self._spans(start, stop):
            reader, parts = self._reader_of_index(position), list[Part]()
            for chunk in (chunk for chunk in reader.chunks_of(low, high) if reader.edges[chunk] >= low):
                spans = (part for span in reader.parts[chunk] for part in ranges(*span, read_ahead.RANGE_BYTES))
                parts += [((position, chunk), first, last - first) for first, last in spans]
            key = self._file(reader).key
            found += runs_of(key, parts, read_ahead.RANGE_BYTES, 0, self._version_of(key))
        return found

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
        self._file(self._reader_of_index(min(self._readers))).store.cancel()

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory that the largest file needs beside the block, with the stored bytes of a chunk, and those in flight."""
        requests = self.requests
        stored = max(reader.most_stored for reader in map(self._reader_of_index, self._readers))
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
        return TransposedRows(self)


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
