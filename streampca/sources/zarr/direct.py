"""Chunks of a local zarr array, read from their files into a reused buffer.

zarr's own pipeline takes two to five times the processor time of this for the common case: unsharded chunks in files,
in C order, with none or one of the usual compressors.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from streampca.errors import AlteredChunkError, DamagedChunkError, MissingChunkError
from streampca.formatting import one_line
from streampca.sources.base import ReadCount
from streampca.sources.zarr.chains import Chain
from streampca.sources.zarr.digests import ChunkDigests, Digests, note
from streampca.sources.zarr.layout import Layout, copy_values
from streampca.sources.zarr.links import require_inside
from streampca.sources.zarr.metadata import most_stored
from streampca.storage.regular_files import open_regular
from streampca.storage.zarr_interface import ZarrArray
from streampca.system.workspace import borrow
from streampca.typing import Array

_MAX_BUFFERS = 1024  # of one system call
_SLAB_BYTES = 2**18  # of values that are not adjacent where they go to, while they are in the cache


@dataclass(frozen=True)
class DirectReader:
    """Reads bands of rows of one local array."""

    root: Path
    """Directory of the array."""
    array: ZarrArray
    """The array, for its metadata."""
    chain: Chain
    """Decoding of one chunk."""
    layout: Layout
    """Which axes are rows and columns."""
    digests: ChunkDigests | None = None
    """Expected digests of the chunks, or None."""
    fill: bool = False
    """Whether a chunk that does not exist is the fill value."""
    bounds: Path | None = None
    """Directory of the store, which no file may leave by a symbolic link; None where links are followed."""
    known: Digests | None = None
    """Where the digests of chunks that are read whole are noted, or None."""

    @property
    def scatters(self) -> bool:
        """Return whether only the needed part of a chunk is read: two axes, no compression, native bytes, no digests to compare."""
        is_native = self.chain.dtype == np.dtype(self.array.dtype)
        return self.chain.plain and is_native and self.digests is None and self.array.ndim == 2

    @property
    def chunk_bytes(self) -> int:
        """Return the size of a decoded chunk in bytes."""
        return math.prod(self.layout.grid) * self.chain.dtype.itemsize

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of the current stored and decoded chunk, if they are not the block of `n_rows` rows itself."""
        if self.scatters:
            return 0
        if self.chain.plain:
            return self.chunk_bytes
        return most_stored(self.chunk_bytes) + (
            0 if self.chain.fills_blocks(self.array, self.layout, n_rows) else self.chunk_bytes
        )

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_features)``, with rows `start` to `stop`; return its `ReadCount`.

        Raises
        ------
        MissingChunkError
            If a chunk's file does not exist.
        DamagedChunkError
            If it cannot be read or decoded, has the wrong size, or fails its checksum.
        """
        count = ReadCount()
        for place, pieces in self.layout.targets(start, stop, out).items():
            count += self._read_chunk(place, pieces)
        return count

    def _read_chunk(self, coordinates: tuple[int, ...], pieces: list[tuple[Array, tuple[slice, ...]]]) -> ReadCount:
        """Decode one chunk and copy slices of it to arrays, which `pieces` are pairs of."""
        target = pieces[0][0]
        key = self.array.metadata.encode_chunk_key(coordinates)
        same = target.dtype == self.chain.dtype
        # Values that are stored as they are go where they belong, row by row, whatever part of a chunk is wanted.
        scattered = self.scatters and same
        whole = len(pieces) == 1 and same and target.flags.c_contiguous and target.shape == self.layout.grid
        chunk = target if whole or scattered else borrow("chunk", self.layout.grid, self.chain.dtype)
        if self.bounds is not None:
            require_inside(self.bounds, f"{self.array.path}/{key}" if self.array.path else key)
        try:
            with open_regular(self.root / key, buffering=0) as file:
                stored_bytes = os.fstat(file.fileno()).st_size
                for piece, within in pieces if scattered else ():
                    self._scatter(file.fileno(), stored_bytes, piece, within, key)
                if not scattered:
                    self._decode(file.fileno(), stored_bytes, chunk, key)
        except FileNotFoundError as error:
            if self.fill:
                for piece, _ in pieces:
                    piece[...] = 0 if self.array.fill_value is None else self.array.fill_value
                return ReadCount()
            raise MissingChunkError(
                f"{self.root}: chunk {key} does not exist: it was there when the run began, or is to be written first"
            ) from error
        except OSError as error:
            raise DamagedChunkError(f"{self.root}: chunk {key} cannot be read: {error}") from error
        if scattered:
            if whole and self.known is not None:
                note(self.known, key, memoryview(chunk.data).cast("B"))
            n_bytes = sum(piece.nbytes for piece, _ in pieces)
            return ReadCount(1, n_bytes, n_bytes)
        for piece, within in () if whole else pieces:
            copy_values(chunk[within], piece)
        return ReadCount(1, self.layout.stored_values(coordinates) * self.chain.dtype.itemsize, stored_bytes)

    def _scatter(self, file: int, stored_bytes: int, target: Array, within: tuple[slice, ...], key: str) -> None:
        """Read the slice `within` of a chunk without compression into the rows of `target`."""
        if stored_bytes != self.chunk_bytes:
            raise self._damaged(key, f"{stored_bytes} bytes stored, expected {self.chunk_bytes}")
        if target.strides[1] != target.itemsize:
            self._scatter_slabs(file, stored_bytes, target, within, key)
            return
        row_bytes = self.array.chunks[1] * target.itemsize
        offset = within[0].start * row_bytes + within[1].start * target.itemsize
        rows = (
            target
            if target.shape[1] != self.array.chunks[1] or not target.flags.c_contiguous
            else target.reshape(1, -1)
        )
        step = _MAX_BUFFERS if rows.shape[1] == self.array.chunks[1] else 1
        for first in range(0, len(rows), step):
            some = rows[first : first + step]
            if _fill_buffers(file, [memoryview(row.data).cast("B") for row in some], offset) != some.nbytes:
                raise self._damaged(key, "the file was cut short while it was read")
            offset += row_bytes * len(some)

    def _scatter_slabs(self, file: int, stored_bytes: int, target: Array, within: tuple[slice, ...], key: str) -> None:
        """Read the slice `within` of a chunk into a `target` in which the values of a row are not adjacent."""
        (n_rows, n_columns), (row, column) = target.shape, (part.start for part in within)
        width = min(n_columns, _SLAB_BYTES // target.itemsize)
        step = max(1, _SLAB_BYTES // (width * target.itemsize))
        for i, j in product(range(0, n_rows, step), range(0, n_columns, width)):
            piece = target[i : i + step, j : j + width]
            slab = borrow("slab", piece.shape, piece.dtype)
            place = (slice(row + i, row + i + len(slab)), slice(column + j, column + j + slab.shape[1]))
            self._scatter(file, stored_bytes, slab, place, key)
            piece[...] = slab

    def _decode(self, file: int, stored_bytes: int, chunk: Array, key: str) -> None:
        limit = most_stored(chunk.nbytes)
        if self.chain.plain:
            if (
                stored_bytes != self.chunk_bytes
                or _fill_buffers(file, [memoryview(chunk.data).cast("B")]) != chunk.nbytes
            ):
                raise self._damaged(key, f"{stored_bytes} bytes stored, expected {self.chunk_bytes}")
            self._require(key, chunk.data)
            return
        if stored_bytes > limit or stored_bytes < 4:
            raise self._damaged(key, f"{stored_bytes} bytes stored for a chunk of {chunk.nbytes}")
        # Of one size for all chunks: growing with each by a little would leave holes in the heap.
        stored = borrow("stored", (limit,), np.uint8)[:stored_bytes]
        if _fill_buffers(file, [memoryview(stored.data)]) != stored_bytes:
            raise self._damaged(key, "the file was cut short while it was read")
        self._require(key, stored.data)
        try:
            self.chain.decode(stored, chunk)
        except Exception as error:  # every codec has its own
            raise self._damaged(key, one_line(error)) from error

    def _require(self, key: str, stored: memoryview) -> None:
        """Note the digest of a chunk where that is asked for; raise `AlteredChunkError` if it differs from its fingerprint."""
        if self.known is not None:
            note(self.known, key, stored)
        if self.digests is None:
            return
        try:
            self.digests.require(key, stored)
        except AlteredChunkError as error:
            raise AlteredChunkError(f"{self.root}: {error}") from None

    def _damaged(self, key: str, reason: str) -> DamagedChunkError:
        return DamagedChunkError(
            f"{self.root}: chunk {key} (codec {self.chain.name}) is damaged or cut short: {reason}; restore it or write the array again"
        )


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
