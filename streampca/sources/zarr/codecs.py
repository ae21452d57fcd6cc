"""Decoding of one chunk: in C order with none or one of the usual compressors without zarr, and by zarr with any other codecs.

It takes no more memory than an array declares: the size in the header of compressed bytes is checked first (Blosc 1; Zstandard,
RFC 8878).
"""

from __future__ import annotations

import asyncio
import bz2
import lzma
import math
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numcodecs import zstd
from numcodecs.abc import Codec as NumcodecsCodec
from numcodecs.blosc import Blosc
from numcodecs.gzip import GZip
from numcodecs.registry import get_codec
from numcodecs.zstd import Zstd
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.abc.store import ByteRequest
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.storage import MemoryStore

from streampca.errors import MissingInnerChunkError, NotAvailableError
from streampca.sources.zarr.layout import Layout
from streampca.storage.zarr_interface import (
    ArraySpec,
    BatchedCodecPipeline,
    Buffer,
    NDBuffer,
    ZarrArray,
    array_of,
    configuration_of,
    default_buffer_prototype,
)
from streampca.typing import Array, DType

if TYPE_CHECKING:
    from zarr.abc.codec import Codec

    from streampca.storage.zarr_interface import (
        JSON,
        ArrayMetadata,
        BufferPrototype,
        ByteGetter,
        CodecPipeline,
        SelectorTuple,
    )
_NOT_INSTALLED = re.compile(r"(?:codec not available: |Unknown codec: |An implementation for codec )['\"]*([\w.-]+)")
_MAX_MEMBERS = 1024
"""Largest number of concatenated streams in one chunk."""
_PIECE_BYTES = (2**16, 2**18)
"""Input that is decoded at a time, and its largest piece after decoding, of streams that do not say their size."""
_TELLING = frozenset({"zstd", "blosc", "lz4"})
"""Codecs whose bytes begin with the decoded size, or with a header that bounds it."""
_ENGINES: dict[str, Callable[[Any], Callable[[], _Decompressor]]] = {
    "gzip": lambda codec: partial(zlib.decompressobj, 31),
    "zlib": lambda codec: partial(zlib.decompressobj, 15),
    "bz2": lambda codec: bz2.BZ2Decompressor,
    "lzma": lambda codec: partial(
        lzma.LZMADecompressor,
        format=codec.format,
        filters=codec.filters,
        **({} if codec.format == lzma.FORMAT_RAW else {"memlimit": 2**28}),
    ),
}
_ZSTD_MAGIC, _ZSTD_SKIPPED, _ZSTD_BLOCK = 0xFD2FB528, 0x184D2A50, 2**17
_BLOSC_MEMCPY, _BLOSC_RESERVED, _BLOSC_COMPRESSORS = 0x2, 0x8, 5

_MOST_GROWTH = 16
"""Largest number of bytes that a filter makes of one byte of a value: the widest number for the narrowest."""
_KEEPING = frozenset({"bytes", "transpose", "zstd", "blosc", "gzip", "crc32c", "sharding_indexed"})
"""Codecs that make no value wider."""


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
        if metadata.zarr_format == 2:
            names = _names_of([*(metadata.filters or ()), *([metadata.compressor] if metadata.compressor else [])])
        else:
            names = _names_of(metadata.codecs)
        return cls(bounded(array_of(metadata, MemoryStore(), ""), fill), names)

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


class Decoder(Protocol):
    """A codec of numcodecs, which has no types."""

    codec_id: str

    def decode(self, buf: Array, out: Array | None = None) -> bytes:
        """Return `buf` decoded, in `out` if given."""
        ...


class _Decompressor(Protocol):
    """A decompressor of one stream of the standard library."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


# gzip, bzip2 and xz do not say their size in front, or may be several streams in a row: these decoders stop at a limit.


def require_codecs(error: Exception, label: str) -> None:
    """Raise `NotAvailableError` if an error of zarr or numcodecs, of what messages call `label`, says that a codec is not installed."""
    missing = _NOT_INSTALLED.search(str(error))
    if missing is not None:
        raise NotAvailableError(
            f"{label}: the codec {missing[1]} is not installed here: install the package that registers it (of numcodecs, the extra of its name), "
            "or write the array with another codec"
        ) from error


def decode_into(codec: Decoder, stored: NDArray[np.uint8], chunk: Array) -> None:
    """Decode `stored` with `codec` of numcodecs into `chunk`; `ValueError` if the result has another size."""
    if codec.codec_id == "zstd" and frame_size(stored) == chunk.nbytes:  # which the decoder compares with what it finds
        zstd.decompress(stored, chunk)
        return
    declared, is_exact = _declared_size(codec.codec_id, stored)
    if declared is not None and is_exact and declared != chunk.nbytes:
        raise ValueError(f"{declared} bytes after decoding, expected {chunk.nbytes}")
    if declared is not None and is_exact:
        size = memoryview(codec.decode(stored, out=chunk)).nbytes
    elif codec.codec_id in _ENGINES:
        values, size = chunk.reshape(-1).view(np.uint8), 0
        for piece in _decoded_pieces(codec, stored, len(values), _PIECE_BYTES):
            values[size : size + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            size += len(piece)
    else:
        decoded = decode_within(codec, stored, chunk.nbytes)
        size = memoryview(decoded).nbytes
        if size == chunk.nbytes:
            chunk.reshape(-1).view(np.uint8)[:] = np.frombuffer(decoded, dtype=np.uint8)
    if size != chunk.nbytes:
        raise ValueError(f"{size} bytes after decoding, expected {chunk.nbytes}")


def decode_within(codec: Decoder, stored: Array, most: int) -> bytes:
    """Decode `stored` with `codec` of numcodecs; `ValueError`, before decoding, if the result exceeds `most` bytes.

    Zstandard frames without a declared size may decode to the upper bound from their blocks before they are refused.
    """
    if codec.codec_id not in _TELLING | _ENGINES.keys():
        return codec.decode(stored)
    if codec.codec_id in _ENGINES:
        pieces = list(_decoded_pieces(codec, stored, most, (max(1, len(stored)), most)))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    view = np.frombuffer(stored, dtype=np.uint8)
    declared, is_exact = _declared_size(codec.codec_id, view)
    limit = most if is_exact else 4 * most + 2**24  # blocks need not be full
    if declared is not None and declared > limit:
        raise ValueError(f"{declared} bytes after decoding, expected at most {most}")
    decoded = codec.decode(view)
    if not is_exact and memoryview(decoded).nbytes > most:
        raise ValueError(f"{memoryview(decoded).nbytes} bytes after decoding, expected at most {most}")
    return decoded


def _declared_size(name: str, stored: NDArray[np.uint8]) -> tuple[int | None, bool]:
    """Return the decoded size in bytes from the header of `stored`, None if it has none, and whether the size is exact."""
    if name == "zstd":
        return zstd_size(stored)
    if name == "blosc":
        return blosc_size(stored), True
    if name == "lz4":
        if len(stored) < 4:
            raise ValueError(f"{len(stored)} bytes stored, expected a size of 4 bytes in front")
        return number_at(stored, 0, 4), True
    return None, True


def _decoded_pieces(codec: Decoder, stored: Array, most: int, sizes: tuple[int, int]) -> Iterator[bytes]:
    """Yield concatenated streams decoded, in pieces; `ValueError` beyond `most` bytes.

    `sizes` are those in bytes of the input that is decoded at a time, and of the largest piece.
    """
    make, again = _ENGINES[codec.codec_id](codec), codec.codec_id != "zlib"  # of which no stream follows another
    remaining, size, data = memoryview(np.frombuffer(stored, dtype=np.uint8).data), 0, b""
    step, largest = sizes
    for _ in range(_MAX_MEMBERS):
        engine = make()
        while not engine.eof:
            if not data and getattr(engine, "needs_input", True):
                data, remaining = bytes(remaining[:step]), remaining[step:]
            piece = engine.decompress(data, min(most - size + 1, largest + 1))
            data = getattr(engine, "unconsumed_tail", b"")  # of zlib; the others store what they have not decoded
            if not (piece or data or remaining or engine.eof):
                raise ValueError("the compressed stream is cut short")
            size += len(piece)
            if size > most:
                raise ValueError(f"more than {most} bytes after decoding")
            if piece:
                yield piece
        data = engine.unused_data
        if not again and (data or remaining):
            raise ValueError(f"{len(data) + len(remaining)} bytes follow behind the end of the compressed stream")
        data = data.lstrip(b"\0")
        while remaining and not data:
            data, remaining = bytes(remaining[:step]).lstrip(b"\0"), remaining[step:]
        if not data:
            return
    raise ValueError(f"more than {_MAX_MEMBERS} compressed streams in a row")


@dataclass(frozen=True)
class _Bounded(BytesBytesCodec):
    """A compressor of zarr whose chunks decode to no more than their array declares."""

    inner: BytesBytesCodec
    """The codec of the metadata."""
    codec: Decoder = field(compare=False)
    """The codec of numcodecs that decodes."""
    is_fixed_size = False

    def to_dict(self) -> dict[str, JSON]:
        return self.inner.to_dict()

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        return replace(self, inner=self.inner.evolve_from_array_spec(array_spec))

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        return self.inner.compute_encoded_size(input_byte_length, chunk_spec)

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        size = math.prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize
        decoded = await asyncio.to_thread(decode_within, self.codec, chunk_data.as_numpy_array(), most_stored(size))
        return chunk_spec.prototype.buffer.from_bytes(decoded)


class _BoundedV2(NumcodecsCodec):  # type: ignore[misc]
    """The same for a compressor or a filter of version 2, which are codecs of numcodecs."""

    codec_id = "bounded"

    def __init__(self, inner: NumcodecsCodec, most: int):
        self.inner, self.most, self.codec_id = inner, most, inner.codec_id

    def encode(self, buf: object) -> object:
        return self.inner.encode(buf)

    def decode(self, buf: Array, out: object = None) -> object:
        return decode_within(self.inner, buf, self.most)

    def get_config(self) -> object:
        return self.inner.get_config()

    @classmethod
    def from_config(cls, config: object) -> object:
        return get_codec(config)


class _WholeShards(BatchedCodecPipeline):
    """Reads the chunks of a shard; one that the shard does not hold is an error, not the fill value."""

    async def read_batch(
        self,
        batch_info: Iterable[tuple[ByteGetter, ArraySpec, SelectorTuple, SelectorTuple, bool]],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> Any:  # None in zarr 3.1, results of the chunks later
        batch = list(batch_info)
        for getter, spec, *_ in batch:
            if await getter.get(spec.prototype) is None:
                place = ", ".join(str(n) for n in getattr(getter, "chunk_coords", ()))
                raise MissingInnerChunkError(f"the shard does not hold its inner chunk ({place})")
        return await super().read_batch(batch, out, drop_axes)


@dataclass(frozen=True)
class _StoredBytes:
    """A shard in memory, where zarr expects one in a store."""

    stored: Buffer

    async def get(self, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer:
        if byte_range is not None:
            raise NotImplementedError("expected to be asked for a whole shard")
        return self.stored


class _StrictSharding(ShardingCodec):
    """A sharding codec for which a missing inner chunk is an error."""

    _sync_capable = False  # zarr >= 3.3 may decode in the calling thread, past `codec_pipeline`

    async def _decode_single(self, shard_bytes: Buffer, shard_spec: ArraySpec) -> Any:
        """Decode a shard within another one. By itself, zarr takes an index without any chunk for fill values."""
        everything = tuple(slice(0, size) for size in shard_spec.shape)
        return await self._decode_partial_single(_StoredBytes(shard_bytes), everything, shard_spec)

    @property
    def codec_pipeline(self) -> CodecPipeline:
        return _WholeShards.from_codecs(self.codecs)


def most_stored(n_bytes: int) -> int:
    """Return the largest stored size in bytes of a chunk of `n_bytes`: incompressible data grow slightly."""
    return n_bytes + n_bytes // 10 + 2**16


def most_stored_object(metadata: ArrayMetadata, item_bytes: int) -> int:
    """Return how many bytes one stored object of an array may have, a chunk or a shard of them."""
    if metadata.zarr_format == 2:
        grows = bool(metadata.filters)
    else:
        codecs = getattr(metadata, "inner_codecs", metadata.codecs)
        grows = any(str(codec.to_dict()["name"]) not in _KEEPING for codec in codecs)
    chunk = math.prod(int(n) for n in metadata.chunks) * item_bytes * (_MOST_GROWTH if grows else 1)
    if metadata.shards is None:
        return most_stored(chunk)
    n_inner = math.prod(int(n) // int(size) for n, size in zip(metadata.shards, metadata.chunks, strict=True))
    return most_stored(n_inner * (chunk + 128))  # a place in the index, and headers of codecs


def bounded(array: ZarrArray, fill: bool = False) -> ZarrArray:
    """Return `array` so that chunks decode to no more than it declares, and, but for `fill`, shards are whole."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        size = math.prod(metadata.chunks) * np.dtype(array.dtype).itemsize
        most = most_stored(size if not metadata.filters else _MOST_GROWTH * size)
        compressor = metadata.compressor and _BoundedV2(metadata.compressor, most)
        filters = metadata.filters and tuple(_BoundedV2(codec, most) for codec in metadata.filters)
        return array_of(replace(metadata, compressor=compressor, filters=filters), array.store, array.path)
    codecs = tuple(_bounded(codec, fill) for codec in metadata.codecs)
    return array_of(replace(metadata, codecs=codecs), array.store, array.path)


def _bounded(codec: Codec, fill: bool) -> Codec:
    if isinstance(codec, ShardingCodec):
        kind = ShardingCodec if fill else _StrictSharding
        return kind(
            chunk_shape=codec.chunk_shape,
            codecs=[_bounded(inner, fill) for inner in codec.codecs],
            index_codecs=codec.index_codecs,
            index_location=codec.index_location,
        )
    if not isinstance(codec, BytesBytesCodec):
        return codec
    declared = codec.to_dict()
    name = str(declared["name"]).removeprefix("numcodecs.")
    if name in ("zstd", "blosc", "gzip"):
        return _Bounded(codec, get_codec({"id": name}))  # to decode, they need no parameters
    if name in ("lz4", *_ENGINES):
        configuration = declared.get("configuration")
        return _Bounded(codec, get_codec({"id": name, **(configuration if isinstance(configuration, Mapping) else {})}))
    return codec


def _names_of(codecs: Iterable[Any]) -> str:
    """Return the names of codecs of zarr or numcodecs, for messages."""
    names = []
    for codec in codecs:
        if isinstance(codec, ShardingCodec):
            names.append(f"sharding of {_names_of(codec.codecs)}")
            continue
        name = str(codec.to_dict()["name"] if isinstance(codec, Codec) else codec.codec_id)
        names += [] if name == "bytes" else [name]
    return "+".join(names) or "none"


def number_at(stored: NDArray[np.uint8], start: int, n_bytes: int) -> int:
    """Return the little-endian number at `start`; `ValueError` if the bytes end before."""
    digits = stored[start : start + n_bytes].tobytes()
    if len(digits) < n_bytes:
        raise ValueError("the header is cut short")
    return int.from_bytes(digits, "little")


def blosc_size(stored: NDArray[np.uint8]) -> int:
    """Return how many bytes a Blosc frame decodes to; `ValueError` if its header contradicts itself or the stored bytes.

    (Blosc 1 format: version, compressor's version, flags, size of a value, and the sizes of the content, of its blocks and
    of the frame, followed by the places of the blocks.) Blosc itself believes the last and reads on behind what there is.
    """
    if len(stored) < 16:
        raise ValueError(f"{len(stored)} bytes stored, expected a header of 16")
    version, _, flags, value_size = (int(n) for n in stored[:4])
    n_bytes, block, n_stored = (number_at(stored, start, 4) for start in (4, 8, 12))
    if n_stored != len(stored):
        raise ValueError(f"{len(stored)} bytes stored, {n_stored} expected by its header")
    known = 1 <= version <= 2 and not flags & _BLOSC_RESERVED and flags >> 5 < _BLOSC_COMPRESSORS
    if not known or value_size == 0:
        raise ValueError("its Blosc header is invalid")
    if n_bytes == 0:
        return 0
    if flags & _BLOSC_MEMCPY:
        if n_stored != n_bytes + 16:
            raise ValueError(f"{n_stored} bytes stored as they are, {n_bytes + 16} expected by its header")
        return n_bytes
    first = 16 + 4 * -(-n_bytes // max(1, block))
    if not 0 < block <= n_bytes or first > n_stored:
        raise ValueError(f"blocks of {block} bytes do not fit in its header")
    places = np.frombuffer(stored[16:first].tobytes(), dtype="<u4")
    if bool(((places < first) | (places >= n_stored)).any()):
        raise ValueError("a block lies outside of the frame")
    return n_bytes


def frame_size(stored: NDArray[np.uint8]) -> int | None:
    """Return the decoded size in bytes that the first Zstandard frame declares, None if it declares none, or is no frame."""
    header = stored[:18].tobytes()
    if len(header) < 18 or int.from_bytes(header[:4], "little") != _ZSTD_MAGIC:
        return None
    descriptor = header[4]
    single, width = descriptor >> 5 & 1, (descriptor >> 5 & 1, 2, 4, 8)[descriptor >> 6]
    start = 6 - single + (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(header[start : start + width], "little") + (256 if width == 2 else 0) if width else None


def zstd_size(stored: NDArray[np.uint8]) -> tuple[int, bool]:
    """Return the decoded size in bytes of Zstandard frames (RFC 8878), and whether it is exact or an upper bound."""
    at, total, is_exact = 0, 0, True
    while at < len(stored):
        magic = number_at(stored, at, 4)
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPED:
            at += 8 + number_at(stored, at + 4, 4)
            continue
        if magic != _ZSTD_MAGIC:
            raise ValueError("no Zstandard frame begins where one should")
        size, bound, at = _zstd_frame(stored, at + 4)
        total += bound if size is None else size
        is_exact = is_exact and size is not None
    if at != len(stored) or at == 0:
        raise ValueError("the Zstandard frame is cut short")
    return total, is_exact


def _zstd_frame(stored: NDArray[np.uint8], at: int) -> tuple[int | None, int, int]:
    """Return the declared size of the frame whose header is at `at`, the upper bound from its blocks, and its end."""
    descriptor = number_at(stored, at, 1)
    single, has_checksum = bool(descriptor & 0x20), bool(descriptor & 0x4)
    at += 1
    largest = _ZSTD_BLOCK
    if not single:
        window = number_at(stored, at, 1)
        base = 2 ** (10 + (window >> 3))
        largest = min(largest, base + (base >> 3) * (window & 7))
        at += 1
    at += (0, 1, 2, 4)[descriptor & 3]
    width = (int(single), 2, 4, 8)[descriptor >> 6]
    size = number_at(stored, at, width) + (256 if width == 2 else 0) if width else None
    at += width
    bound, is_last = 0, False
    while not is_last:
        header = number_at(stored, at, 3)
        is_last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == 3:
            raise ValueError("a Zstandard block is of an unknown kind")
        bound += largest if kind == 2 else length
        at += 3 + (1 if kind == 1 else length)
    return size, bound, at + 4 * has_checksum
