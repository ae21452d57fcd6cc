"""Chunks of a zarr array behind a URL, requested ahead and decoded as those in files are, without the pipeline of zarr."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from streampca.errors import AlteredChunkError, DamagedChunkError, MissingChunkError
from streampca.formatting import one_line
from streampca.sources.base import ReadCount
from streampca.sources.fetching.read_ahead import ReadAhead
from streampca.sources.fetching.requests import Bytes, StoredChunk
from streampca.sources.remote import RemoteStore
from streampca.sources.schedule import Schedule
from streampca.sources.zarr.chains import Chain
from streampca.sources.zarr.digests import ChunkDigests, Digests, note
from streampca.sources.zarr.layout import Layout, copy_values
from streampca.sources.zarr.metadata import most_stored
from streampca.storage.zarr_interface import ZarrArray
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray

READINGS = 3
"""Requests for a chunk whose bytes are damaged."""
Place = tuple[int, ...]


@dataclass(frozen=True)
class FetchedReader:
    """Reads bands of rows of one array in a remote store."""

    array: ZarrArray
    """The array, for its metadata."""
    store: RemoteStore
    """Where its chunks are."""
    chain: Chain
    """Decoding of one chunk."""
    layout: Layout
    """Which axes are rows and columns."""
    digests: ChunkDigests | None
    """Expected digests of the chunks, or None."""
    fill: bool
    """Whether a chunk that does not exist is the fill value."""
    label: str
    """Path and name of the array, for messages."""
    stored: Callable[[], BoolArray | None]
    """Returns which chunks are stored, None where it is not known."""
    known: Digests | None = None
    """Where the digests of chunks are noted, or None."""
    _requests: dict[int, ReadAhead] = field(
        default_factory=dict
    )  # by process: a fork has no part in those of its parent

    scatters: ClassVar[bool] = False
    """Whether only the needed part of a chunk is read."""

    @property
    def chunk_bytes(self) -> int:
        """Return the size of a decoded chunk in bytes."""
        return math.prod(self.layout.grid) * self.chain.dtype.itemsize

    @property
    def requests(self) -> ReadAhead:
        """Return what requests chunks in this process."""
        process = os.getpid()
        if process not in self._requests:
            size = self.chunk_bytes if self.chain.plain else None
            most = self.chunk_bytes if self.chain.plain else most_stored(self.chunk_bytes)
            self._requests[process] = ReadAhead(self.store, self._keys, size, most)
            self._try_out(self._requests[process])
        return self._requests[process]

    def _try_out(self, requests: ReadAhead) -> None:
        """Request a byte of the metadata if memory depends on how the store answers."""
        if requests.division.divides:
            name = "zarr.json" if self.array.metadata.zarr_format == 3 else ".zarray"
            self.store.try_out(f"{self.array.path}/{name}" if self.array.path else name)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of a chunk whose parts are joined, of a decoded one, and of what was received of it."""
        requests = self.requests
        joined = requests.division.most if requests.division.divides and not self.chain.plain else 0
        decoded = 0 if self.chain.fills_blocks(self.array, self.layout, n_rows) else self.chunk_bytes
        return joined + decoded + requests.division.least_bytes + requests.division.request_bytes

    def ahead(self, schedule: Schedule) -> AbstractContextManager[None]:
        """Request the blocks of `schedule` ahead while the context lasts."""
        return self.requests.ahead(schedule)

    def cancel(self) -> None:
        """End readings with a `StoreError`."""
        self.requests.cancel()

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_features)``, with rows `start` to `stop`; return its `ReadCount`.

        Raises
        ------
        MissingChunkError
            If a chunk does not exist.
        DamagedChunkError
            If it cannot be decoded, has the wrong size, or fails its checksum, each time it is requested.
        StoreError
            If the store does not answer.
        """
        count, targets = ReadCount(), self.layout.targets(start, stop, out)
        keys = {self._key(place): place for place in targets}
        for place in [place for place in targets if self._is_missing(place)]:
            self._fill(targets.pop(place))
        with self.requests.reading(start, stop) as chunks:
            for chunk in tuple(chunks):
                place = keys[chunk.key]
                count += self._read_chunk(place, targets[place], chunk)
        return count

    def _keys(self, start: int, stop: int) -> list[str]:
        """Return the keys of the chunks of rows `start` to `stop`, without those that are known to be missing."""
        return [self._key(place) for place in self.layout.places(start, stop) if not self._is_missing(place)]

    def _key(self, place: Place) -> str:
        key = self.array.metadata.encode_chunk_key(place)
        return f"{self.array.path}/{key}" if self.array.path else key

    def _is_missing(self, place: Place) -> bool:
        stored = self.stored()
        return stored is not None and not stored[place]

    def _fill(self, pieces: list[tuple[Array, tuple[slice, ...]]]) -> None:
        for piece, _ in pieces:
            piece[...] = 0 if self.array.fill_value is None else self.array.fill_value

    def _read_chunk(self, place: Place, pieces: list[tuple[Array, tuple[slice, ...]]], chunk: StoredChunk) -> ReadCount:
        """Decode one chunk into `pieces`; damaged data from a network are requested again."""
        for n_left in reversed(range(READINGS)):
            try:
                n_bytes = self._decode(place, pieces, chunk)
            except (DamagedChunkError, AlteredChunkError):
                if not n_left:
                    raise
                self.requests.again(chunk)
            else:
                break
        if n_bytes is None:
            return ReadCount()
        return ReadCount(1, self.layout.stored_values(place) * self.chain.dtype.itemsize, n_bytes)

    def _decode(self, place: Place, pieces: list[tuple[Array, tuple[slice, ...]]], chunk: StoredChunk) -> int | None:
        """Wait for a chunk and decode it into `pieces`; return the number of stored bytes, None for a chunk that is filled."""
        target, dtype, grid = pieces[0][0], self.chain.dtype, self.layout.grid
        fits = target.dtype == dtype and target.flags.c_contiguous and target.shape == grid
        whole = target if len(pieces) == 1 and fits else None

        def decoded() -> Array:
            return borrow("chunk", grid, dtype) if whole is None else whole

        def joined() -> Bytes:
            if self.chain.plain:
                return decoded().reshape(-1).view(np.uint8)
            return borrow("stored", (self.requests.division.most,), np.uint8)

        with self.requests.stored(chunk, joined) as stored:
            self._require(place, stored, chunk.total)
            if stored is None:
                self._fill(pieces)
                return None
            if self.chain.plain and whole is None:
                values = stored.view(dtype).reshape(grid)
            else:
                values = decoded()
                if not np.shares_memory(stored, values):
                    self._decode_into(place, stored, values)
            for piece, within in pieces if whole is None else ():
                copy_values(values[within], piece)
            return len(stored)

    def _decode_into(self, place: Place, stored: Bytes, values: Array) -> None:
        try:
            self.chain.decode(stored, values)
        except Exception as error:  # every codec has its own
            raise self._damaged(place, one_line(error)) from error

    def _require(self, place: Place, stored: Bytes | None, total: int) -> None:
        """Raise an error if a chunk is missing, has a size that it cannot have, or is not what was fingerprinted; note its digest."""
        key = self.array.metadata.encode_chunk_key(place)
        if self.digests is not None and (stored is not None or self.fill):
            try:
                self.digests.require(key, None if stored is None else stored.data)
            except AlteredChunkError as error:
                raise AlteredChunkError(f"{self.label}: {error}") from None
        if stored is None:
            if self.fill:
                return
            raise MissingChunkError(
                f"{self.label}: chunk {key} does not exist: expected every chunk to be stored; missing_chunks: fill reads it as the "
                "fill value"
            )
        if total == 0:
            raise self._damaged(place, "the file is empty")
        if self.chain.plain and (total != self.chunk_bytes or len(stored) != total):
            raise self._damaged(place, f"{len(stored) or total:,} bytes stored, expected {self.chunk_bytes:,}")
        if total > self.requests.division.most:
            raise self._damaged(place, f"{total:,} bytes stored, expected at most {self.requests.division.most:,}")
        if len(stored) != total:
            raise self._damaged(place, f"{len(stored):,} of {total:,} bytes were received")
        if self.known is not None:
            note(self.known, key, stored.data)

    def _damaged(self, place: Place, reason: str) -> DamagedChunkError:
        key = self.array.metadata.encode_chunk_key(place)
        return DamagedChunkError(
            f"{self.label}: chunk {key} (codec {self.chain.name}) is damaged or cut short: {reason}; restore it or write the array again"
        )
