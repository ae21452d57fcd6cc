"""Shards of zarr: one stored object with an index and many inner chunks (zarr specification 3, codec ``sharding_indexed``)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streampca.sources.fetching.read_ahead import Part
from streampca.sources.zarr.chains import Chain, ChainOfZarr
from streampca.sources.zarr.layout import Layout, Spans
from streampca.sources.zarr.metadata import most_stored_object
from streampca.storage.zarr_interface import ZarrArray, configuration_of

if TYPE_CHECKING:
    from streampca.typing import IntArray

ShardIndex = NDArray[np.uint64]
_NONE = np.iinfo(np.uint64).max
_CHECKSUM_BYTES = 4
NOT_IN_SHARD = -2
"""Offset of an inner chunk that a shard does not hold; -1 where there is no shard."""


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
            raise ValueError("its index has a chunk outside of it, or of a size that none can have")
        return index

    def index_of(self, stored: memoryview) -> memoryview:
        """Return the index of a shard of which all bytes are `stored`."""
        return stored[: self.index_bytes] if self.at_start else stored[-self.index_bytes :]

    def shard_of(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the coordinates of the shard that holds the inner chunk at `place`."""
        return tuple(i // n for i, n in zip(place, self.counts, strict=True))

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
