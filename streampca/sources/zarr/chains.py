"""Decoding of one chunk: in C order with none or one of the usual compressors without zarr, and by zarr with any other codecs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numcodecs.blosc import Blosc
from numcodecs.gzip import GZip
from numcodecs.zstd import Zstd
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

from streampca.sources.zarr.codecs import Decoder, bounded, chain_of, decode_into
from streampca.sources.zarr.layout import Layout
from streampca.sources.zarr.metadata import most_stored, most_stored_object
from streampca.storage.zarr_interface import ZarrArray, array_of, configuration_of, default_buffer_prototype
from streampca.typing import Array, DType

if TYPE_CHECKING:
    from zarr.abc.codec import Codec

    from streampca.storage.zarr_interface import ArrayMetadata


@dataclass(frozen=True)
class Chain:
    """Decoding of the bytes of one chunk."""

    compressor: Decoder | None
    """Decompressor of numcodecs, or None for stored values."""
    crc32c: bool
    """Whether four bytes of CRC-32C follow the compressed bytes."""
    dtype: DType
    """Data type of the stored values, with its byte order."""
    name: str
    """For messages."""

    decoding = 0
    """Decoded chunks that decoding takes the memory of, beside the chunk itself."""

    @classmethod
    def of(cls, metadata: ArrayMetadata, codecs: Iterable[Codec] | None = None) -> Chain | None:
        """Return how chunks are decoded, with `codecs` instead of those of the array if given; None if only zarr decodes them."""
        if metadata.zarr_format == 2:
            compressor = metadata.compressor
            name = "none" if compressor is None else str(getattr(compressor, "codec_id", "?"))
            known = name in ("none", "zstd", "blosc", "gzip", "zlib", "lz4")
            if metadata.order != "C" or metadata.filters or not known:
                return None
            return cls(compressor, False, np.dtype(metadata.dtype.to_native_dtype()), name)
        remaining = list(metadata.codecs if codecs is None else codecs)
        if not remaining or not isinstance(first := remaining.pop(0), BytesCodec):
            return None
        is_little = configuration_of(first).get("endian", "little") == "little"
        dtype = np.dtype(metadata.data_type.to_native_dtype()).newbyteorder("<" if is_little else ">")
        compressors: dict[type, Decoder] = {ZstdCodec: Zstd(), BloscCodec: Blosc(), GzipCodec: GZip()}
        decoder: Decoder | None = None
        name = "none"
        if remaining and type(remaining[0]) in compressors:
            kind = type(remaining.pop(0))
            decoder, name = compressors[kind], kind.__name__.removesuffix("Codec").lower()
        crc32c = bool(remaining) and isinstance(remaining[0], Crc32cCodec)
        if remaining[1 if crc32c else 0 :]:
            return None
        return cls(decoder, crc32c, dtype, name + ("+crc32c" if crc32c else ""))

    @property
    def plain(self) -> bool:
        """Return whether the file holds the values without compression."""
        return self.compressor is None and not self.crc32c

    def most(self, n_bytes: int) -> int:
        """Return the largest stored size in bytes of a chunk of `n_bytes`."""
        return n_bytes if self.plain else most_stored(n_bytes)

    def fills_blocks(self, array: ZarrArray, layout: Layout, n_rows: int) -> bool:
        """Return whether chunks are decoded in blocks of `n_rows` rows, which then are whole chunks of the same data type."""
        return layout.holds_whole_chunks(n_rows) and self.dtype == np.dtype(array.dtype)

    def decode(self, stored: NDArray[np.uint8], chunk: Array) -> None:
        """Decode `stored` into `chunk`, a contiguous array of `dtype`; `ValueError` if it is damaged or has another size."""
        if self.crc32c:
            import google_crc32c

            stored, checksum = stored[:-4], int.from_bytes(stored[-4:].tobytes(), "little")
            if google_crc32c.value(stored) != checksum:
                raise ValueError("its CRC-32C checksum does not match")
        if self.compressor is not None:
            decode_into(self.compressor, stored, chunk)
            return
        if len(stored) != chunk.nbytes:
            raise ValueError(f"{len(stored)} bytes stored, expected {chunk.nbytes}")
        chunk.reshape(-1).view(np.uint8)[:] = stored


@dataclass(frozen=True)
class ChainOfZarr:
    """Decoding of the bytes of one chunk by zarr, as those of an array that has no other."""

    array: ZarrArray
    """The array of one chunk; its store is not used."""
    name: str
    """Names of the codecs, for messages."""
    plain = False
    decoding = 4
    """What the compressor returns, an intermediate array of a filter, the result of zarr, and one that its threads hold on to."""

    @classmethod
    def of(cls, array: ZarrArray, codecs: Iterable[Codec] | None, grid: tuple[int, ...], fill: bool) -> ChainOfZarr:
        """Return the decoding of chunks of shape `grid`, with these codecs instead of those of the array."""
        document: dict[str, Any] = {**array.metadata.to_dict(), "shape": grid, "attributes": {}}
        if array.metadata.zarr_format == 2:
            document |= {"chunks": grid}
        else:
            regular = {"name": "regular", "configuration": {"chunk_shape": grid}}
            document |= {"chunk_grid": regular, "dimension_names": None}
            document |= {} if codecs is None else {"codecs": [codec.to_dict() for codec in codecs]}
        with warnings.catch_warnings(action="ignore"):
            metadata = type(array.metadata).from_dict(document)
        one = array_of(metadata, MemoryStore(), "")
        return cls(bounded(one, fill), chain_of(metadata))

    @property
    def dtype(self) -> DType:
        """Return the data type of decoded values."""
        return np.dtype(self.array.dtype)

    def most(self, n_bytes: int) -> int:
        """Return the largest stored size in bytes of a chunk."""
        return most_stored_object(self.array.metadata, self.dtype.itemsize)

    def fills_blocks(self, array: ZarrArray, layout: Layout, n_rows: int) -> bool:
        """Return whether chunks are decoded in blocks of `n_rows` rows."""
        return layout.holds_whole_chunks(n_rows)

    def decode(self, stored: NDArray[np.uint8], chunk: Array) -> None:
        """Decode `stored` into `chunk`; raises the errors of zarr and its codecs if it is damaged."""
        key = self.array.metadata.encode_chunk_key((0,) * self.array.ndim)
        store = MemoryStore({key: default_buffer_prototype().buffer.from_array_like(stored)}, read_only=True)
        chunk[...] = array_of(self.array.metadata, store, "")[...]
