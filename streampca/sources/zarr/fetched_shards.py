"""Shards of a zarr array behind a URL: indexes are requested first, then the needed inner chunks, adjacent ones at once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from streampca.errors import DamagedChunkError, MissingChunkError, MissingInnerChunkError
from streampca.formatting import one_line
from streampca.sources.base import ReadCount
from streampca.sources.fetching.indexes import Indexes
from streampca.sources.fetching.read_ahead import ReadAhead
from streampca.sources.fetching.requests import Bytes, Piece, StoredChunk
from streampca.sources.remote import RemoteStore
from streampca.sources.zarr.digests import place_of_key
from streampca.sources.zarr.fetched import READINGS, FetchedReader, Place
from streampca.sources.zarr.layout import Layout, copy_values
from streampca.sources.zarr.shards import NOT_IN_SHARD, ShardIndex, Shards
from streampca.storage.zarr_interface import ZarrArray
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray

Target = list[tuple[Array, tuple[slice, ...]]]


@dataclass(frozen=True)
class _Format:
    """What `ReadAhead` needs to know of shards."""

    reader: FetchedShards
    index_bytes: int
    index_span: tuple[int, int]
    most_object: int

    def decoded(self, key: str, stored: memoryview, total: int) -> ShardIndex:
        """Return the index of shard `key`; `DamagedChunkError` if it is none."""
        try:
            return self.reader.shards.decoded(stored, total)
        except ValueError as error:
            raise self.reader.damaged_shard(key, "the file is empty" if total == 0 else str(error)) from error

    def is_whole(self, start: int, stop: int, key: str, most: int) -> bool:
        """Return whether a shard that cannot exceed `most` bytes is needed as a whole for rows `start` to `stop`."""
        shards = self.reader.shards
        if shards.most_object > most:
            return False
        first = [i * n for i, n in zip(place_of_key(key, len(shards.counts)), shards.counts, strict=True)]
        ends = zip(first, shards.counts, shards.layout.chunk_counts, strict=True)
        n_inner = math.prod(min(n, all_ - i) for i, n, all_ in ends)
        return len(self.reader.places_in(key, start, stop)) == n_inner

    def pieces(self, start: int, stop: int, key: str, index: object) -> list[Piece]:
        """Return the inner chunks of rows `start` to `stop` in a shard."""
        return self.reader.shards.pieces(self.reader.places_in(key, start, stop), cast("ShardIndex | None", index))


@dataclass(frozen=True)
class FetchedShards(FetchedReader):
    """Reads bands of rows of one array of shards in a remote store; `chain` and `chunk_bytes` are those of inner chunks."""

    shards: Shards = field(kw_only=True)
    """Where inner chunks are."""

    @classmethod
    def of(
        cls,
        array: ZarrArray,
        store: RemoteStore,
        layout: Layout,
        fill: bool,
        label: str,
        stored: Callable[[], BoolArray | None],
    ) -> FetchedShards | None:
        """Return what reads an array, None if it has no shards or only zarr reads them; parameters are the fields."""
        sharded = Shards.of(array.metadata, layout)
        if sharded is None:
            return None
        return cls(array, store, sharded[1], layout, None, fill, label, stored, shards=sharded[0])

    @property
    def chunk_bytes(self) -> int:
        """Return the size of a decoded inner chunk in bytes."""
        return math.prod(self.shards.layout.grid) * self.chain.dtype.itemsize

    @property
    def requests(self) -> ReadAhead:
        """Return what requests shards in this process."""
        process = os.getpid()
        if process not in self._requests:
            kind = _Format(self, self.shards.index_bytes, self.shards.index_span, self.shards.most_object)
            self._requests[process] = ReadAhead(
                self.store, self._keys, None, self.shards.most, Indexes(self.store, kind)
            )
            self._try_out(self._requests[process])
        return self._requests[process]

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of a joined and a decoded inner chunk, of what was received of it, and of indexes."""
        requests = self.requests
        indexes = 0 if requests.indexes is None else requests.indexes.memory_bytes
        return (
            self._joined_bytes
            + self.chunk_bytes
            + requests.division.least_bytes
            + requests.division.request_bytes
            + indexes
        )

    @property
    def _joined_bytes(self) -> int:
        return self.shards.most if self.shards.most > self.requests.division.buffer_bytes else 0

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_features)``, with rows `start` to `stop`; return its `ReadCount`, whose chunks are shards.

        Raises
        ------
        MissingChunkError
            If a shard does not exist, or does not hold an inner chunk.
        DamagedChunkError
            If it cannot be decoded, has the wrong size, or fails its checksum, each time it is requested.
        StoreError
            If the store does not answer.
        """
        targets = self.shards.layout.targets(start, stop, out)
        for place in targets:
            if self._is_missing(self.shards.shard_of(place)):
                self._fill(targets[place])
        keys, n_decoded, n_stored = set[str](), 0, 0
        with self.requests.reading(start, stop) as chunks:
            for chunk in tuple(chunks):
                keys.add(chunk.key)
                chunk_places = [] if chunk.pieces else self.places_in(chunk.key, start, stop)
                pieces, n_bytes = self._read_run(chunk, chunk_places, targets)
                n_stored += n_bytes
                n_decoded += sum(self.shards.layout.stored_values(piece.place) for piece in pieces if piece.n_bytes)
        return ReadCount(len(keys), n_decoded * self.chain.dtype.itemsize, n_stored)

    def places_in(self, key: str, start: int, stop: int) -> list[Place]:
        """Return the inner chunks of rows `start` to `stop` in the shard `key`."""
        shard = place_of_key(key, len(self.shards.counts))
        return [place for place in self.shards.layout.places(start, stop) if self.shards.shard_of(place) == shard]

    def _require_filled(self, key: str, place: Place | None) -> None:
        """Raise an error for a shard that does not exist, or its inner chunk at `place`, unless it is to be filled."""
        if self.fill:
            return
        chunk = self.array.metadata.encode_chunk_key(place_of_key(key, len(self.shards.counts)))
        if place is None:
            raise MissingChunkError(
                f"{self.label}: chunk {chunk} does not exist: expected every chunk to be stored; missing_chunks: fill reads it as the "
                "fill value"
            )
        within = ", ".join(str(i % n) for i, n in zip(place, self.shards.counts, strict=True))
        raise MissingInnerChunkError(
            f"{self.label}: chunk {chunk}: the shard does not hold its inner chunk ({within}); write it, or set missing_chunks: fill to "
            "read it as the fill value"
        )

    def _read_run(
        self, chunk: StoredChunk, places: list[Place], targets: dict[Place, Target]
    ) -> tuple[list[Piece], int]:
        """Decode adjacent inner chunks, or those at `places` of a whole shard; return them, and the number of stored bytes."""
        if chunk.pieces and not chunk.parts:
            for piece in chunk.pieces:
                self._require_filled(chunk.key, piece.place if piece.offset == NOT_IN_SHARD else None)
                self._fill(targets[piece.place])
            return [], 0
        for n_left in reversed(range(READINGS)):
            try:
                with self.requests.stored(chunk, self._joined) as stored:
                    pieces = chunk.pieces or self._pieces_of(chunk.key, stored, places)
                    self._decode_run(chunk, stored, pieces, targets)
                    return pieces, 0 if stored is None else len(stored)
            except DamagedChunkError:
                if not n_left:
                    raise
                self.requests.again(chunk)
        raise AssertionError("the last reading returns or raises")

    def _joined(self) -> Bytes:
        return borrow("stored", (self.shards.most,), np.uint8)

    def _pieces_of(self, key: str, stored: Bytes | None, places: list[Place]) -> list[Piece]:
        """Return the inner chunks at `places` of a shard that was received as a whole."""
        try:
            return self.shards.pieces(places, None if stored is None else self.shards.decoded_whole(stored.data))
        except ValueError as error:
            is_empty = stored is not None and not len(stored)
            raise self.damaged_shard(key, "the file is empty" if is_empty else str(error)) from error

    def _decode_run(
        self, chunk: StoredChunk, stored: Bytes | None, pieces: list[Piece], targets: dict[Place, Target]
    ) -> None:
        origin, stop = chunk.span if chunk.span is not None and chunk.parts[0].span is not None else (0, chunk.total)
        if chunk.pieces and (stored is None or len(stored) != stop - origin):
            n = 0 if stored is None else len(stored)
            raise self.damaged_shard(
                chunk.key, f"{n:,} of {stop - origin:,} bytes from byte {origin:,} on were received"
            )
        for piece in pieces:
            if stored is None or piece.offset < 0:
                self._require_filled(chunk.key, None if stored is None else piece.place)
                self._fill(targets[piece.place])
            else:
                first = piece.offset - origin
                self._decode_piece(chunk.key, stored[first : first + piece.n_bytes], targets[piece.place])

    def _decode_piece(self, key: str, stored: Bytes, pieces: Target) -> None:
        """Decode one inner chunk into `pieces`."""
        grid, dtype, target = self.shards.layout.grid, self.chain.dtype, pieces[0][0]
        fits = target.dtype == dtype and target.flags.c_contiguous and target.shape == grid
        whole = len(pieces) == 1 and fits
        values = target if whole else borrow("chunk", grid, dtype)
        try:
            self.chain.decode(stored, values)
        except Exception as error:  # every codec has its own
            raise self.damaged_shard(key, one_line(error)) from error
        for piece, within in () if whole else pieces:
            copy_values(values[within], piece)

    def damaged_shard(self, key: str, reason: str) -> DamagedChunkError:
        """Return the error that names a shard."""
        return self._damaged(place_of_key(key, len(self.shards.counts)), reason)
