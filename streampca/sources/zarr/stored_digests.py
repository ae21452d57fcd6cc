"""Digests of stored chunks, computed by reading them without decoding."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from streampca.errors import DamagedChunkError
from streampca.sources.zarr.digests import DIGEST_BYTES
from streampca.sources.zarr.reader import ZarrSource
from streampca.storage.zarr_interface import default_buffer_prototype, sync
from streampca.typing import IntArray

_AT_ONCE, _BATCH = 16, 256


def stored_digests(
    source: ZarrSource, chunks: Sequence[int] | IntArray, most_bytes: int = 2**25
) -> Iterator[tuple[slice, NDArray[np.uint8], int]]:
    """Read chunks, given by their numbers in the C order of the grid, as they are stored, and yield their digests by batches.

    A batch is a slice of `chunks`, the xxh3-128 of each, ``(n, 16)``, zeros for a chunk that does not exist and may be missing, and
    the size of all in bytes. At most one chunk, or `most_bytes` of them as decoded, are in memory at once.
    """
    at_once = max(1, min(_AT_ONCE, most_bytes // max(1, source.chunk_bytes)))
    for first in range(0, len(chunks), _BATCH):
        batch = slice(first, min(first + _BATCH, len(chunks)))
        places = np.stack(np.unravel_index(chunks[batch], source.layout.chunk_counts), axis=1)
        keys = [source.array.metadata.encode_chunk_key(tuple(place)) for place in places.tolist()]
        digests = sync(_read(source, keys, at_once))
        table = np.frombuffer(b"".join(digest for digest, _ in digests), dtype=np.uint8)
        yield batch, table.reshape(-1, DIGEST_BYTES), sum(size for _, size in digests)


async def _read(source: ZarrSource, keys: list[str], at_once: int) -> list[tuple[bytes, int]]:
    """Return digest and size of each chunk, zeros where there is none, reading a few at a time."""
    turn, prototype = asyncio.Semaphore(at_once), default_buffer_prototype()

    async def one(key: str) -> tuple[bytes, int]:
        async with turn:
            try:
                value = await source.store.get(f"{source.key_prefix}{key}", prototype)
            except DamagedChunkError as error:
                raise DamagedChunkError(f"{source.label}: chunk {key}: {error}") from error
            if value is None:
                return bytes(DIGEST_BYTES), 0
            stored = value.as_numpy_array()
            return await asyncio.to_thread(lambda: xxhash.xxh3_128(stored.data).digest()), len(value)

    return await asyncio.gather(*(one(key) for key in keys))
