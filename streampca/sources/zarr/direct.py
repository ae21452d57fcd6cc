"""Chunks of a local zarr array, read from their files into a reused buffer.

zarr's own pipeline takes two to five times the processor time of this for the common case: unsharded chunks in files,
in C order, with none or one of the usual compressors.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from zarr.storage import LocalStore

from streampca.errors import AlteredChunkError, DamagedChunkError, MissingChunkError
from streampca.formatting import one_line
from streampca.sources.base import ReadCount
from streampca.sources.zarr.codecs import Decoder, decode_into
from streampca.sources.zarr.digests import ChunkDigests, KnownDigests
from streampca.sources.zarr.layout import Layout
from streampca.sources.zarr.links import require_inside
from streampca.sources.zarr.metadata import most_stored
from streampca.storage.regular_files import open_regular
from streampca.storage.zarr_interface import ZarrArray, has_regular_chunks
from streampca.system.workspace import borrow
from streampca.typing import Array, DType

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ArrayV2Metadata, ArrayV3Metadata

_MAX_BUFFERS = 1024  # of one system call


@dataclass(frozen=True)
class _Chain:
    """Decoding of the bytes of one chunk."""

    compressor: Decoder | None
    """Decompressor of numcodecs, or None for stored values."""
    crc32c: bool
    """Whether four bytes of CRC-32C follow the compressed bytes."""
    dtype: DType
    """Data type of the stored values, with its byte order."""
    name: str
    """For messages."""

    @property
    def plain(self) -> bool:
        """Return whether the file holds the values without compression."""
        return self.compressor is None and not self.crc32c


@dataclass(frozen=True)
class DirectReader:
    """Reads bands of rows of one local array."""

    root: Path
    """Directory of the array."""
    array: ZarrArray
    """The array, for its metadata."""
    chain: _Chain
    """Decoding of one chunk."""
    layout: Layout
    """Which axes are rows and columns."""
    digests: ChunkDigests | None = None
    """Expected digests of the chunks, or None."""
    fill: bool = False
    """Whether a chunk that does not exist is the fill value."""
    bounds: Path | None = None
    """Directory of the store, which no file may leave by a symbolic link; None where links are followed."""
    known: KnownDigests | None = None
    """Where the digests of chunks that are read whole are noted, or None."""

    @classmethod
    def of(
        cls,
        array: ZarrArray,
        store: LocalStore,
        layout: Layout,
        digests: ChunkDigests | None = None,
        *,
        fill: bool = False,
        follow_symlinks: bool = False,
    ) -> DirectReader | None:
        """Return a reader, or None if the array is stored in a way that only zarr reads."""
        chain = _chain_v2(array.metadata) if array.metadata.zarr_format == 2 else _chain_v3(array.metadata)
        if chain is None:
            return None
        root = Path(store.root)
        return cls(root / array.path, array, chain, layout, digests, fill, None if follow_symlinks else root)

    @property
    def scatters(self) -> bool:
        """Return whether only the needed part of a chunk is read: two axes, no compression, and no digests of chunks to compare."""
        return self.chain.plain and self.digests is None and self.array.ndim == 2

    @property
    def chunk_bytes(self) -> int:
        """Return the size of a decoded chunk in bytes."""
        return math.prod(self.layout.grid) * self.chain.dtype.itemsize

    @property
    def overhead_bytes(self) -> int:
        """Return the memory in bytes of the current stored and decoded chunk, if they are not the block itself."""
        if self.scatters:
            return 0
        if self.chain.plain:
            return self.chunk_bytes
        stored = most_stored(self.chunk_bytes)
        layout = self.layout
        in_order = (*layout.rows, *layout.columns) == tuple(range(len(layout.shape)))
        whole_rows = in_order and layout.grid[1:] == layout.shape[1:]
        in_place = whole_rows and layout.shape[0] % layout.grid[0] == 0
        return stored + (0 if in_place else self.chunk_bytes)

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_features)``, with rows `start` to `stop`; return its `ReadCount`.

        Raises
        ------
        MissingChunkError
            If a chunk's file does not exist.
        DamagedChunkError
            If it cannot be read or decoded, has the wrong size, or fails its checksum.
        """
        targets: dict[tuple[int, ...], list[tuple[Array, tuple[slice, ...]]]] = {}
        for row, box in self.layout.boxes(start, stop):
            target = self.layout.view(out[row - start : row - start + self.layout.n_rows(box)], box)
            for place, inside, within in self.layout.chunks(box):
                targets.setdefault(place, []).append((target[inside], within))
        count = ReadCount()
        for place, pieces in targets.items():
            count += self._read_chunk(place, pieces)
        return count

    def _read_chunk(self, coordinates: tuple[int, ...], pieces: list[tuple[Array, tuple[slice, ...]]]) -> ReadCount:
        """Decode one chunk and copy slices of it to arrays, which `pieces` are pairs of."""
        target = pieces[0][0]
        key = self.array.metadata.encode_chunk_key(coordinates)
        same = target.dtype == self.chain.dtype
        # Values that are stored as they are go where they belong, row by row, whatever part of a chunk is wanted.
        scattered = self.scatters and same and all(piece.strides[-1] == piece.itemsize for piece, _ in pieces)
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
                self.known.note(key, memoryview(chunk.data).cast("B"))
            n_bytes = sum(piece.nbytes for piece, _ in pieces)
            return ReadCount(1, n_bytes, n_bytes)
        for piece, within in () if whole else pieces:
            piece[...] = chunk[within]
        return ReadCount(1, self.layout.stored_values(coordinates) * self.chain.dtype.itemsize, stored_bytes)

    def _scatter(self, file: int, stored_bytes: int, target: Array, within: tuple[slice, ...], key: str) -> None:
        """Read the slice `within` of a chunk without compression into the rows of `target`."""
        if stored_bytes != self.chunk_bytes:
            raise self._damaged(key, f"{stored_bytes} bytes stored, expected {self.chunk_bytes}")
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
        if self.chain.crc32c:
            import google_crc32c

            stored, checksum = stored[:-4], int.from_bytes(stored[-4:].tobytes(), "little")
            if google_crc32c.value(stored) != checksum:
                raise self._damaged(key, "its CRC-32C checksum does not match")
        if self.chain.compressor is None:
            if len(stored) != chunk.nbytes:
                raise self._damaged(key, f"{len(stored)} bytes stored, expected {chunk.nbytes}")
            chunk.reshape(-1).view(np.uint8)[:] = stored
            return
        try:
            decode_into(self.chain.compressor, stored, chunk)
        except Exception as error:  # every codec has its own
            raise self._damaged(key, one_line(error)) from error

    def _require(self, key: str, stored: memoryview) -> None:
        """Note the digest of a chunk where that is asked for; raise `AlteredChunkError` if it differs from its fingerprint."""
        if self.known is not None:
            self.known.note(key, stored)
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


def _chain_v2(metadata: ArrayV2Metadata) -> _Chain | None:
    compressor = metadata.compressor
    name = "none" if compressor is None else str(getattr(compressor, "codec_id", "?"))
    if metadata.order != "C" or metadata.filters or name not in ("none", "zstd", "blosc", "gzip", "zlib", "lz4"):
        return None
    return _Chain(compressor, False, np.dtype(metadata.dtype.to_native_dtype()), name)


def _chain_v3(metadata: ArrayV3Metadata) -> _Chain | None:
    from numcodecs.blosc import Blosc
    from numcodecs.gzip import GZip
    from numcodecs.zstd import Zstd
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec

    codecs = list(metadata.codecs)
    if not has_regular_chunks(metadata) or not codecs or not isinstance(codecs[0], BytesCodec):
        return None
    endian = getattr(codecs[0].endian, "value", "little")
    dtype = np.dtype(metadata.data_type.to_native_dtype()).newbyteorder("<" if endian == "little" else ">")
    compressors: dict[type, Decoder] = {ZstdCodec: Zstd(), BloscCodec: Blosc(), GzipCodec: GZip()}
    compressor: Decoder | None = None
    name, remaining = "none", codecs[1:]
    if remaining and type(remaining[0]) in compressors:
        compressor, name = compressors[type(remaining[0])], type(remaining[0]).__name__.removesuffix("Codec").lower()
        remaining = remaining[1:]
    crc32c = bool(remaining) and isinstance(remaining[0], Crc32cCodec)
    if remaining[1 if crc32c else 0 :]:
        return None
    return _Chain(compressor, crc32c, dtype, name + ("+crc32c" if crc32c else ""))
