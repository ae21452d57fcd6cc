"""Chunks of a zarr array, in files or behind a URL, alone or in shards: read and decoded into blocks without the pipeline of zarr.

A shard is one stored object with an index and many inner chunks (zarr specification 3, codec ``sharding_indexed``). zarr's own pipeline takes two to five times the processor time of this for the common case: chunks in C order with none or one of
the usual compressors.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from streampca.errors import AlteredChunkError, DamagedChunkError, MissingChunkError, MissingInnerChunkError
from streampca.formatting import one_line
from streampca.sources.base import ReadCount
from streampca.sources.fetching import read_ahead
from streampca.sources.fetching.client import ObjectVersion
from streampca.sources.fetching.read_ahead import Part, ReadAhead, Run, Store, runs_of
from streampca.sources.zarr.codecs import Chain, ChainOfZarr, most_stored_object, require_codecs
from streampca.sources.zarr.digests import ChunkDigests, Digests, note, place_of_key
from streampca.sources.zarr.layout import Layout, Spans, Target, copy_values
from streampca.storage.files import open_regular
from streampca.storage.zarr_interface import ZarrArray, configuration_of, sync
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, IntArray

_READINGS = 3
"""Requests for a chunk whose bytes are damaged."""
_GAP_BYTES = 2**14
"""Bytes between inner chunks that are read with them rather than apart."""
_RUN_BYTES = 2**20
"""Inner chunks of a file that are read at once."""
_INDEX_BYTES, _MOST_INDEXES = 4 * 2**20, 16
"""Memory of the indexes of shards that are kept, and how many are kept at least."""
_INDEXES_AT_ONCE, _MOST_HELD = 8, 10
_MAX_BUFFERS = 1024  # of one system call
_SLAB_BYTES = 2**18  # of values that are not adjacent where they go to, while they are in the cache

Place = tuple[int, ...]
ShardIndex = NDArray[np.uint64]
_NONE = np.iinfo(np.uint64).max
_CHECKSUM_BYTES = 4
NOT_IN_SHARD = -2
"""Offset of an inner chunk that a shard does not hold; -1 where there is no shard."""


class ChunkReader:
    """Reads bands of rows of one array.

    Parameters
    ----------
    array : zarr.Array
        The array, for its metadata.
    layout : Layout
        Which axes are rows and columns, and the grid of stored objects.
    place : Path or Store
        Directory of the array, or the store that its chunks are requested from.
    label : str
        Path and name of the array, for messages.
    digests : ChunkDigests, optional
        Expected digests of the chunks.
    fill : bool
        Whether a chunk that does not exist is the fill value.
    stored : callable
        Returns which objects are stored, None where it is not known.
    chain : Chain or ChainOfZarr, optional
        Decoding of one chunk, of an inner one where there are shards; by default what is fastest for the codecs of the array.

    Attributes
    ----------
    shards : Shards or None
        Where inner chunks are.
    inner : Layout
        The layout whose grid is that of the chunks that are decoded.
    chunk_bytes, most : int
        Size in bytes of a decoded chunk, and the largest size of a stored one.
    scatters : bool
        Whether only the needed part of a chunk is read: files of two axes, no compression, native bytes, no digests to compare.
    known : array or None
        Where the digests of objects that are read whole are noted.
    """

    def __init__(
        self,
        array: ZarrArray,
        layout: Layout,
        place: Path | Store,
        label: str,
        digests: ChunkDigests | None = None,
        fill: bool = False,
        stored: Callable[[], BoolArray | None] = lambda: None,
        chain: Chain | ChainOfZarr | None = None,
    ):
        self.array, self.layout, self.place, self.label = array, layout, place, label
        self.digests, self.fill, self.stored = digests, fill, stored
        self.known: Digests | None = None
        self.shards: Shards | None = None
        found: Chain | ChainOfZarr | None = Chain.of(array.metadata)
        if found is None and (sharded := Shards.of(array, layout, fill)) is not None:
            self.shards, found = sharded
        self.chain = chain or found or ChainOfZarr.of(array, None, layout.grid, fill)
        self._prefix = f"{array.path}/" if array.path and not isinstance(place, Path) else ""  # of the keys of objects
        self.inner = layout if self.shards is None else self.shards.layout
        self.chunk_bytes = math.prod(self.inner.grid) * self.chain.dtype.itemsize
        self.most = self.chain.most(self.chunk_bytes)
        alone = isinstance(place, Path) and self.shards is None and digests is None and array.ndim == 2
        self.scatters = alone and self.chain.plain and self.chain.dtype == np.dtype(array.dtype)
        self._n_indexes = self._n_held = 0
        if self.shards is not None:
            self._n_indexes = max(_MOST_INDEXES, _INDEX_BYTES // self.shards.index_bytes)
            self._n_held = 0 if digests is None else min(_MOST_HELD, layout.most_chunks_read(1))
        self._requests: dict[int, ReadAhead] = {}  # by process: a fork has no part in those of its parent
        self._indexes: dict[str, asyncio.Task[tuple[ShardIndex | None, ObjectVersion]]] = {}
        self._file_indexes: dict[tuple[str, int, int], ShardIndex] = {}
        self._held: dict[str, Array] = {}

    @property
    def requests(self) -> ReadAhead:
        """Return what requests chunks in this process, of an array that is not in files."""
        process = os.getpid()
        if process not in self._requests:
            assert not isinstance(self.place, Path)  # noqa: S101
            self._indexes.clear()
            change = "the shard was written again after its index was read"
            most = 0 if self.shards is None else self.shards.most_object
            self._requests[process] = ReadAhead(self.place, self._look_up, self._request_bytes, change, most)
            if self.shards is not None or self.most > read_ahead.WHOLE_BYTES:
                # Memory depends on how the store answers: a byte of the metadata is requested.
                name = "zarr.json" if self.array.metadata.zarr_format == 3 else ".zarray"
                sync(self.place.fetch(f"{self.array.path}/{name}".lstrip("/"), (0, 1)))
        return self._requests[process]

    def _request_bytes(self) -> int:
        if self.shards is None:
            return self.most
        at_once = max(read_ahead.RANGE_BYTES, self.most)
        in_ranges = self.requests.store.serves_ranges and self.digests is None
        return at_once if in_ranges else max(at_once, self.shards.most_object)

    @property
    def _run_bytes(self) -> int:
        """Return how many bytes of inner chunks of a shard are read at once."""
        if self.shards is not None and self.digests is not None:
            return self.shards.most_object
        return max(self.most, _RUN_BYTES if isinstance(self.place, Path) else read_ahead.RANGE_BYTES)

    def forget(self) -> None:
        """Read shards again that were kept."""
        self._held.clear()

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that reading a block of `n_rows` rows takes beside it: what was received, a decoded chunk, and indexes."""
        if self.scatters:
            return 0
        indexes = 0 if self.shards is None else (self._n_indexes + _INDEXES_AT_ONCE) * self.shards.index_bytes
        decoded = 0 if self.chain.fills_blocks(self.array, self.inner, n_rows) else self.chunk_bytes
        decoded += self.chain.decoding * self.chunk_bytes + self._n_held * self._run_bytes
        if not isinstance(self.place, Path):
            return decoded + indexes + self.requests.least_bytes + self.requests.request_bytes
        if self.shards is not None:
            return self._run_bytes + decoded + indexes
        return self.chunk_bytes if self.chain.plain else self.most + decoded

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_features)``, with rows `start` to `stop`; return its `ReadCount`, whose chunks are stored objects.

        Raises
        ------
        MissingChunkError
            If an object does not exist, or a shard does not hold an inner chunk.
        DamagedChunkError
            If a chunk cannot be read or decoded, has the wrong size, or fails its checksum, each time it is requested.
        AlteredChunkError
            If it is not what was fingerprinted.
        StoreError
            If the store does not answer.
        """
        boxes, targets = list[Spans](), list[Target]()
        for row, box in self.layout.boxes(start, stop):
            boxes.append(box)
            targets.append(Target.of(self.inner, self.inner.view(out[row - start :], box), box))
        reading: AbstractContextManager[Iterable[Run]]
        reading = closing(self._files(boxes)) if isinstance(self.place, Path) else self.requests.reading(start, stop)
        return self._read(boxes, targets, reading)

    def read_box(self, box: Spans, out: Array) -> ReadCount:
        """Fill `out` with the values in a box of the array, as `read` does with rows."""
        reading = self._files([box]) if isinstance(self.place, Path) else self._requested([box])
        return self._read([box], [Target.of(self.inner, out, box)], closing(reading))

    def _read(
        self, boxes: list[Spans], targets: list[Target], reading: AbstractContextManager[Iterable[Run]]
    ) -> ReadCount:
        keys, n_bytes, n_stored = set[str](), 0, 0
        if (stored := self.stored()) is not None:
            for place in self.inner.places(boxes):
                counts = (1,) * len(place) if self.shards is None else self.shards.counts
                if not stored[tuple(i // n for i, n in zip(place, counts, strict=True))]:
                    self._fill(place, targets)
        with reading as runs:
            for run in runs:
                if not run.most:
                    is_there, n_decoded, n_received = self._decode(run, None, 0, boxes, targets)
                elif isinstance(self.place, Path):
                    is_there, n_decoded, n_received = self._read_file(run, boxes, targets)
                else:
                    is_there, n_decoded, n_received = self._receive(run, boxes, targets)
                keys.update([run.key] if is_there else ())
                n_bytes, n_stored = n_bytes + n_decoded, n_stored + n_received
        if not isinstance(self.place, Path) and self.requests.is_idle:
            self._indexes.clear()  # later readings request them again, as shards may have been written again
        return ReadCount(len(keys), n_bytes, n_stored)

    def _requested(self, boxes: list[Spans]) -> Generator[Run, None, None]:
        """Request what holds values of `boxes`, one run after another."""
        for run in sync(self._runs(boxes)):
            if run.most:
                self.requests.again(run)
            yield run

    # --- what is read

    async def _look_up(self, start: int, stop: int) -> list[Run]:
        """Return what is requested for rows `start` to `stop`."""
        return await self._runs([box for _, box in self.layout.boxes(start, stop)])

    async def _runs(self, boxes: list[Spans]) -> list[Run]:
        """Return what is requested for the values in `boxes`."""
        limit = asyncio.Semaphore(_INDEXES_AT_ONCE)

        async def of_shard(shards: Shards, place: Place, key: str) -> list[Run]:
            places = shards.places(place, boxes)
            is_small = shards.most_object <= read_ahead.RANGE_BYTES and len(places) == shards.n_inner(place)
            if is_small or not self.requests.store.serves_ranges or self.digests is not None:
                return [self._whole(shards, key)]
            async with limit:
                if key not in self._indexes:
                    self._indexes[key] = index_task = asyncio.get_running_loop().create_task(self._requested_index(key))
                    # Where a reading was stopped nobody asks for its error, which asyncio would print.
                    index_task.add_done_callback(lambda done: done.cancelled() or done.exception())
                    while len(self._indexes) > self._n_indexes + _INDEXES_AT_ONCE:
                        self._indexes.pop(next(iter(self._indexes)))
                index, version = await asyncio.shield(self._indexes[key])
            return runs_of(key, shards.parts(places, index), self._run_bytes, _GAP_BYTES, version)

        stored = self.stored()
        places = [place for place in self.layout.places(boxes) if stored is None or stored[place]]
        objects = [(place, self._prefix + self.array.metadata.encode_chunk_key(place)) for place in places]
        if self.shards is None:
            return [Run(key, None, self.most, [(place, 0, -1)]) for place, key in objects]
        found = await asyncio.gather(*(of_shard(self.shards, *each) for each in objects))
        return [run for runs in found for run in runs]

    def _whole(self, shards: Shards, key: str) -> Run:
        """Return the run of a whole shard; the last ones that were compared with digests are kept, because more of their rows follow."""
        held = self._held.get(key)
        return Run(key, None, shards.most_object if held is None else 0, held=held)

    async def _requested_index(self, key: str) -> tuple[ShardIndex | None, ObjectVersion]:
        """Request the index of a shard, None if it does not exist; one that is damaged is requested again."""
        assert self.shards is not None  # noqa: S101
        assert not isinstance(self.place, Path)  # noqa: S101
        try:
            for n_left in reversed(range(_READINGS)):
                answer = await self.place.fetch(key, self.shards.index_span)
                if answer is not None and not answer.is_range:
                    answer = await self.place.fetch(key, None, self.shards.most_object)
                if answer is None:
                    return None, ObjectVersion()
                data = answer.data if answer.is_range else self.shards.index_of(answer.data)
                try:
                    return self.shards.decoded(data, answer.total), answer.version
                except ValueError as error:
                    if not n_left:
                        raise self._damaged(key, str(error) if answer.total else "the file is empty") from error
        except BaseException:
            self._indexes.pop(key, None)
            raise
        raise AssertionError("the last reading returns or raises")

    def _files(self, boxes: list[Spans]) -> Generator[Run, None, None]:
        """Yield what is read from files for the values in `boxes`, each of which is open until the next one is asked for."""
        assert isinstance(self.place, Path)  # noqa: S101
        stored, shards = self.stored(), self.shards
        for place in self.layout.places(boxes):
            if stored is not None and not stored[place]:
                continue
            key = self.array.metadata.encode_chunk_key(place)
            try:
                file = open_regular(self.place / key, buffering=0)
            except FileNotFoundError:
                inner = [place] if shards is None else map(tuple, shards.places(place, boxes).tolist())
                yield Run(key, None, 0, [(each, -1, 0) for each in inner])
                continue
            except OSError as error:
                raise self._damaged(key, f"it cannot be read: {error}") from error
            with file:
                if shards is None:
                    yield Run(key, None, self.most, [(place, 0, -1)], file=file.fileno())
                    continue
                if self.digests is not None:
                    run = self._whole(shards, key)
                    run.file = file.fileno()
                    yield run
                    continue
                places = shards.places(place, boxes)
                parts = shards.parts(places, self._file_index(file.fileno(), key))
                for run in runs_of(key, parts, self._run_bytes, _GAP_BYTES):
                    run.file = file.fileno()
                    yield run
                if self.known is not None and len(places) == shards.n_inner(place):
                    digest = xxhash.xxh3_128()
                    while piece := os.read(file.fileno(), _RUN_BYTES):
                        digest.update(piece)
                    self.known[place] = np.frombuffer(digest.digest(), dtype=np.uint8)

    def _file_index(self, file: int, key: str) -> ShardIndex:
        """Return the index of a shard in a file, the last of which are kept."""
        assert self.shards is not None  # noqa: S101
        status = os.fstat(file)
        version = key, status.st_size, status.st_mtime_ns
        if (found := self._file_indexes.get(version)) is None:
            low, _ = self.shards.index_span
            stored = os.pread(file, self.shards.index_bytes, low if low >= 0 else max(0, status.st_size + low))
            try:
                found = self.shards.decoded(memoryview(stored), status.st_size)
            except ValueError as error:
                raise self._damaged(key, str(error) if status.st_size else "the file is empty") from error
            while len(self._file_indexes) >= self._n_indexes:
                self._file_indexes.pop(next(iter(self._file_indexes)), None)
            self._file_indexes[version] = found
        return found

    # --- how it is decoded

    def _receive(self, run: Run, boxes: list[Spans], targets: list[Target]) -> tuple[bool, int, int]:
        """Decode a run that was requested, as `_decode` does; damaged data are requested again."""
        for n_left in reversed(range(_READINGS)):
            try:
                with self.requests.received(run) as answer:
                    stored = None if answer is None else np.frombuffer(answer.data, dtype=np.uint8)
                    return self._decode(run, stored, 0 if answer is None else answer.total, boxes, targets)
            except (DamagedChunkError, AlteredChunkError):
                if not n_left:
                    raise
                self.requests.again(run)
        raise AssertionError("the last reading returns or raises")

    def _read_file(self, run: Run, boxes: list[Spans], targets: list[Target]) -> tuple[bool, int, int]:
        """Decode a run in a file, as `_decode` does; values that are stored as they are go where they belong, row by row."""
        total = os.fstat(run.file).st_size
        n_bytes = min(total, run.most) if run.span is None else run.most
        pieces = [] if self.shards is not None else self._pieces(run.parts[0][0], targets)
        if self.scatters and pieces[0][0].dtype == self.chain.dtype:
            if total != self.chunk_bytes:
                raise self._damaged(run.key, _sizes(total, self.chunk_bytes))
            for values, within in pieces:
                if not _scattered(run.file, values, within or (slice(0, None), slice(0, None)), self.layout.grid[1]):
                    raise self._damaged(run.key, "the file was cut short while it was read")
            if self.known is not None and pieces[0][1] is None:
                note(self.known, run.key, np.ascontiguousarray(pieces[0][0]).reshape(-1).view(np.uint8).data)
            n_bytes = sum(values.nbytes for values, _ in pieces)
            return True, n_bytes, n_bytes
        if self.chain.plain and pieces and self._holds_chunk(*pieces[0]) and n_bytes == self.chunk_bytes:
            stored = pieces[0][0].reshape(-1).view(np.uint8)
        else:  # of one size for all chunks: growing with each by a little would leave holes in the heap
            stored = borrow("stored", (self.most if self.shards is None else self._run_bytes,), np.uint8)[:n_bytes]
        try:
            n_bytes = _fill_buffers(run.file, [memoryview(stored.data)], 0 if run.span is None else run.span[0])
        except OSError as error:
            raise self._damaged(run.key, f"it cannot be read: {error}") from error
        return self._decode(run, stored[:n_bytes], total, boxes, targets)

    def _decode(
        self, run: Run, stored: Array | None, total: int, boxes: list[Spans], targets: list[Target]
    ) -> tuple[bool, int, int]:
        """Decode the chunks of a run into `targets`; `stored` is what was received of an object of `total` bytes, None without one.

        Returns whether the object exists, and the sizes in bytes of what was decoded and stored.
        """
        origin, parts = 0 if run.span is None else run.span[0], run.parts
        if run.held is not None:
            stored, total = run.held, len(run.held)
        elif self.shards is None or run.span is None:
            self._require(run.key, stored, total)
            if self.shards is not None and self.digests is not None and stored is not None:
                while len(self._held) >= self._n_held:
                    self._held.pop(next(iter(self._held)), None)
                self._held[run.key] = stored.copy()
        elif stored is None or len(stored) != run.most:
            n = 0 if stored is None else len(stored)
            raise self._damaged(run.key, f"{n:,} of {run.most:,} bytes from byte {origin:,} on were received")
        if self.shards is not None and not parts:
            try:
                index = None if stored is None else self.shards.decoded(self.shards.index_of(stored.data), total)
            except ValueError as error:
                raise self._damaged(run.key, str(error)) from error
            place = place_of_key(run.key, self.array.ndim)
            parts = self.shards.parts(self.shards.places(place, boxes), index)
        scratch, dtype, grid, is_there = None, self.chain.dtype, self.inner.grid, stored is not None
        for place, offset, n_bytes in parts:
            if offset < 0 or stored is None:
                is_there = offset == NOT_IN_SHARD
                self._require_filled(run.key, place, is_there)
                self._fill(place, targets)
                continue
            piece = stored[offset - origin : offset - origin + n_bytes] if self.shards is not None else stored
            pieces = self._pieces(place, targets)
            if in_place := self._holds_chunk(*pieces[0]):
                chunk = pieces[0][0]
            elif self.chain.plain and len(piece) == self.chunk_bytes:
                chunk = piece.view(dtype).reshape(grid)
            else:
                chunk = scratch = borrow("chunk", grid, dtype) if scratch is None else scratch
            if (in_place or chunk is scratch) and not (self.chain.plain and np.may_share_memory(piece, chunk)):
                try:
                    self.chain.decode(piece, chunk)
                except MissingInnerChunkError as error:  # of a shard in a shard
                    raise self._missing(run.key, str(error)) from error
                except Exception as error:  # every codec has its own
                    require_codecs(error, self.label)
                    raise self._damaged(run.key, one_line(error)) from error
            for values, within in () if in_place else pieces:
                copy_values(chunk if within is None else chunk[within], values)
        places = [place for place, offset, _ in parts if offset >= 0] if stored is not None else []
        return (
            is_there,
            self.inner.n_values(places) * dtype.itemsize,
            0 if stored is None or run.held is not None else len(stored),
        )

    def _pieces(self, place: Place, targets: list[Target]) -> list[tuple[Array, tuple[slice, ...] | None]]:
        """Return where the values of a chunk go, and which of its values these are, None for all of them."""
        return [found for target in targets if (found := target.of_chunk(place)) is not None]

    def _holds_chunk(self, values: Array, within: tuple[slice, ...] | None) -> bool:
        """Return whether a chunk can be decoded where its values go."""
        return within is None and values.dtype == self.chain.dtype and values.flags.c_contiguous

    def _fill(self, place: Place, targets: list[Target]) -> None:
        for values, _ in self._pieces(place, targets):
            values[...] = 0 if self.array.fill_value is None else self.array.fill_value

    def _require(self, key: str, stored: Array | None, total: int) -> None:
        """Raise an error if an object has a size that it cannot have, or is not what was fingerprinted; note its digest."""
        name = key.removeprefix(self._prefix)
        if self.digests is not None and (stored is not None or self.fill):
            try:
                self.digests.require(name, None if stored is None else stored.data)
            except AlteredChunkError as error:
                raise AlteredChunkError(f"{self.label}: {error}") from None
        if stored is None:
            return
        most = self.most if self.shards is None else self.shards.most_object
        if total == 0:
            raise self._damaged(key, "the file is empty")
        if self.chain.plain and self.shards is None and total != most:
            raise self._damaged(key, _sizes(total, most))
        if total > most:
            raise self._damaged(key, f"{total:,} bytes stored, expected at most {most:,}")
        if len(stored) != total:
            raise self._damaged(key, f"{len(stored):,} of {total:,} bytes were received")
        if self.known is not None:
            note(self.known, name, stored.data)

    def _require_filled(self, key: str, place: Place, is_inner: bool) -> None:
        """Raise an error for an object that does not exist, or its inner chunk at `place`, unless it is to be filled."""
        if self.fill:
            return
        chunk = key.removeprefix(self._prefix)
        if not is_inner or self.shards is None:
            raise MissingChunkError(
                f"{self.label}: chunk {chunk} does not exist: expected every chunk to be stored; missing_chunks: fill reads it as the "
                "fill value"
            )
        within = ", ".join(str(i % n) for i, n in zip(place, self.shards.counts, strict=True))
        raise self._missing(key, f"the shard does not hold its inner chunk ({within})")

    def _missing(self, key: str, reason: str) -> MissingInnerChunkError:
        chunk = key.removeprefix(self._prefix)
        return MissingInnerChunkError(
            f"{self.label}: chunk {chunk}: {reason}; write it, or set missing_chunks: fill to read it as the fill value"
        )

    def _damaged(self, key: str, reason: str) -> DamagedChunkError:
        chunk = key.removeprefix(self._prefix)
        return DamagedChunkError(
            f"{self.label}: chunk {chunk} (codec {self.chain.name}) is damaged or cut short: {reason}; restore it or write the array again"
        )


def _sizes(found: int, expected: int) -> str:
    return f"{found:,} bytes stored, expected {expected:,}"


def _scattered(file: int, target: Array, within: tuple[slice, ...], n_columns: int) -> bool:
    """Read the slice `within` of a chunk without compression, of `n_columns` columns, into the rows of `target`; return whether all of it was there."""
    row, column = (part.start for part in within)
    if target.strides[1] != target.itemsize:  # the values of a row are not adjacent
        width = min(target.shape[1], _SLAB_BYTES // target.itemsize)
        step = max(1, _SLAB_BYTES // (width * target.itemsize))
        for i, j in product(range(0, target.shape[0], step), range(0, target.shape[1], width)):
            piece = target[i : i + step, j : j + width]
            slab = borrow("slab", piece.shape, piece.dtype)
            place = (slice(row + i, None), slice(column + j, None))
            if not _scattered(file, slab, place, n_columns):
                return False
            piece[...] = slab
        return True
    row_bytes = n_columns * target.itemsize
    offset = row * row_bytes + column * target.itemsize
    is_whole = target.shape[1] == n_columns
    rows = target.reshape(1, -1) if is_whole and target.flags.c_contiguous else target
    step = _MAX_BUFFERS if is_whole else 1
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        if _fill_buffers(file, [memoryview(each.data).cast("B") for each in some], offset) != some.nbytes:
            return False
        offset += row_bytes * len(some)
    return True


def _fill_buffers(file: int, buffers: list[memoryview], offset: int = 0) -> int:
    """Read from `offset` on until all `buffers` are full or the file ends; return the number of bytes read."""
    total = 0
    while buffers:
        n = os.preadv(file, buffers, offset + total)
        total += n
        if not n:
            break
        while buffers and n >= len(buffers[0]):
            n -= len(buffers.pop(0))
        if buffers:
            buffers[0] = buffers[0][n:]
    return total


@dataclass(frozen=True)
class Shards:
    """Where the inner chunks of an array are, and how its indexes are stored."""

    layout: Layout
    """The array with inner chunks as its grid."""
    counts: tuple[int, ...]
    """Number of inner chunks of a shard along each axis."""
    at_start: bool
    """Whether the index is in front of the inner chunks, not behind them."""
    most: int
    """Largest size in bytes of a stored inner chunk."""
    most_object: int
    """Largest size in bytes of a shard."""

    @classmethod
    def of(cls, array: ZarrArray, layout: Layout, fill: bool) -> tuple[Shards, Chain | ChainOfZarr] | None:
        """Return the shards of an array and the decoding of an inner chunk, None if there are none, or only zarr reads their indexes."""
        from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

        metadata = array.metadata
        if metadata.zarr_format == 2 or len(metadata.codecs) != 1:
            return None
        if not isinstance(sharding := metadata.codecs[0], ShardingCodec):
            return None
        index = list(sharding.index_codecs)
        is_usual = len(index) == 2 and isinstance(index[0], BytesCodec) and isinstance(index[1], Crc32cCodec)
        if not is_usual or configuration_of(index[0]).get("endian", "little") != "little":
            return None
        inner = tuple(int(n) for n in sharding.chunk_shape)
        chain = Chain.of(metadata, sharding.codecs) or ChainOfZarr.of(array, sharding.codecs, inner, fill)
        counts = tuple(outer // n for outer, n in zip(layout.grid, inner, strict=True))
        n_bytes = math.prod(inner) * chain.dtype.itemsize
        at_start = configuration_of(sharding).get("index_location") == "start"
        most = chain.most(n_bytes)
        most_object = most_stored_object(metadata, chain.dtype.itemsize)
        grid = Layout(layout.shape, inner, layout.rows, layout.columns)
        return cls(grid, counts, at_start, most, most_object), chain

    @property
    def index_bytes(self) -> int:
        """Return the size of a stored index in bytes."""
        return 16 * math.prod(self.counts) + _CHECKSUM_BYTES

    @property
    def index_span(self) -> tuple[int, int]:
        """Return the range of a shard that holds its index: from its beginning, or negative, from its end."""
        return (0, self.index_bytes) if self.at_start else (-self.index_bytes, 0)

    def decoded(self, stored: memoryview, total: int) -> ShardIndex:
        """Return offsets and lengths of the inner chunks, ``(*counts, 2)``, of a shard of `total` bytes.

        Raises
        ------
        ValueError
            If the index is cut short or damaged, or a chunk is where none can be.
        """
        import google_crc32c

        if len(stored) != self.index_bytes:
            raise ValueError(f"{len(stored):,} bytes of its index are stored, expected {self.index_bytes:,}")
        body, checksum = stored[:-_CHECKSUM_BYTES], int.from_bytes(stored[-_CHECKSUM_BYTES:], "little")
        if google_crc32c.value(bytes(body)) != checksum:
            raise ValueError("the CRC-32C checksum of its index does not match")
        index = np.frombuffer(bytes(body), dtype="<u8").astype(np.uint64).reshape(*self.counts, 2)
        offsets, lengths = index[..., 0], index[..., 1]
        stored_ = offsets != _NONE
        beyond = (lengths > self.most) | (lengths < 1) | (offsets > total) | (offsets + lengths > total)
        if bool((stored_ & beyond).any()):
            raise ValueError("its index places a chunk outside the shard, or gives it an impossible size")
        return index

    def index_of(self, stored: memoryview) -> memoryview:
        """Return the index of a shard of which all bytes are `stored`."""
        return stored[: self.index_bytes] if self.at_start else stored[-self.index_bytes :]

    def n_inner(self, shard: tuple[int, ...]) -> int:
        """Return how many inner chunks of the shard at these coordinates are in the array."""
        ends = zip(shard, self.counts, self.layout.chunk_counts, strict=True)
        return math.prod(min(n, all_ - i * n) for i, n, all_ in ends)

    def places(self, shard: tuple[int, ...], boxes: Iterable[Spans]) -> IntArray:
        """Return the coordinates of the inner chunks of a shard that hold values of `boxes`, ``(n, n_axes)``."""
        found = []
        for box in boxes:
            spans = zip(self.layout.spanned(box), shard, self.counts, strict=True)
            ranges = [range(max(span.start, i * n), min(span.stop, (i + 1) * n)) for span, i, n in spans]
            if all(ranges):
                found.append(np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(ranges)))
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found), axis=0)

    def parts(self, places: IntArray, index: ShardIndex | None) -> list[Part]:
        """Return where the inner chunks at `places` of one shard are, by their offsets; those that are not stored first."""
        if index is None:
            return [(tuple(place), -1, 0) for place in places.tolist()]
        entries = index[tuple((places % self.counts).T)]
        stored = entries[:, 0] != _NONE
        offsets = np.where(stored, entries[:, 0], 0).astype(np.int64)
        offsets[~stored] = NOT_IN_SHARD
        order = np.argsort(offsets, kind="stable")
        lengths = np.where(stored, entries[:, 1], 0)[order].tolist()
        return list(zip(map(tuple, places[order].tolist()), offsets[order].tolist(), lengths, strict=True))
