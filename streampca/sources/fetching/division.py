"""How stored chunks are divided into requests, and the memory that these take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streampca.sources.fetching.requests import Part, ranges

if TYPE_CHECKING:
    from streampca.sources.fetching.client import ObjectClient
    from streampca.sources.remote import RemoteStore

MOST_REQUESTS = 32
"""Requests of one array at once, at most."""
RANGE_BYTES = 4 * 2**20
"""Size of a range of a chunk that is requested in several ranges."""
WHOLE_BYTES = 6 * 2**20
"""Largest chunk that is requested as a whole."""
_LEAST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Division:
    """How the stored chunks of one array are divided into requests."""

    store: RemoteStore
    """Where the chunks are."""
    size: int | None
    """Size in bytes of every stored chunk, where it is known."""
    most: int
    """Largest size in bytes of a stored chunk, or of an inner chunk of a shard."""
    most_object: int | None
    """Largest size in bytes of a shard; None where every chunk is an object of its own."""

    @property
    def client(self) -> ObjectClient:
        """Return what sends the requests."""
        return self.store.client

    @property
    def buffer_bytes(self) -> int:
        """Return the size of the memory that one answer is received in, which is used again for others of that size."""
        if self.most_object is not None:
            return RANGE_BYTES
        return self.most if self.most <= WHOLE_BYTES else min(self.most, RANGE_BYTES)

    @property
    def divides(self) -> bool:
        """Return whether chunks are requested in ranges where the store serves them."""
        return self.most_object is not None or self.buffer_bytes < self.most

    @property
    def request_bytes(self) -> int:
        """Return the memory of one request for a chunk."""
        if self.client.serves_ranges:
            return self.buffer_bytes
        return self.most if self.most_object is None else max(RANGE_BYTES, self.most_object)

    @property
    def least_bytes(self) -> int:
        """Return the memory for a block that is being read, whatever else is in memory."""
        return max(2 * self.request_bytes, min(MOST_REQUESTS * self.request_bytes, _LEAST_BYTES))

    def of_chunk(self) -> list[Part]:
        """Return the requests for a chunk; only the first if its size is not known."""
        if self.most_object is not None:  # a shard that is requested as a whole
            return [Part(None, self.request_bytes)]
        if self.most <= WHOLE_BYTES or not self.client.serves_ranges:
            return [self.of_whole()]
        if self.size is None:
            return [Part((0, RANGE_BYTES), RANGE_BYTES)]
        return self.of_range(0, self.size)

    def of_whole(self) -> Part:
        """Return the request for all bytes of a chunk or shard."""
        return Part(None, self.most if self.most_object is None else self.most_object)

    def of_range(self, start: int, stop: int) -> list[Part]:
        """Return the requests for a range of the bytes of a chunk or shard."""
        return [Part(span, RANGE_BYTES) for span in ranges(start, stop, RANGE_BYTES)]
