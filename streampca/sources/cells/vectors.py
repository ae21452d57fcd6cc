"""Stored vectors that are read in ascending spans, of which no chunk is decoded twice."""

from __future__ import annotations

import secrets
import threading

import numpy as np

from streampca.sources.base import ReadCount, Source
from streampca.sources.versions import InputVersion
from streampca.typing import Array, DType

_decoded = (
    threading.local()
)  # by vector: the first entry after the last read, and the entries of its chunk from there on
_MOST_REMAINDERS = 2


class Nothing(Source):
    """A stored array without entries, of which nothing is ever read."""

    portable = True
    shape = (0, 1)

    def __init__(self, description: str, dtype: DType):
        self.description, self.dtype = description, dtype

    @property
    def fingerprint(self) -> str:
        """Return the data type."""
        return str(self.dtype)

    def version(self) -> InputVersion | None:
        """Return the version of no files."""
        return InputVersion.of([])

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return no rows."""
        return np.empty((0, 1), dtype=self.dtype), ReadCount()


class Vector:
    """A stored array of one axis.

    Parameters
    ----------
    source : Source
        Reader of it as a table of one column.
    """

    def __init__(self, source: Source):
        self.source, self._key = source, secrets.token_hex(8)
        self.size, self.chunk, self.dtype = source.shape[0], max(1, source.chunk_rows), source.dtype

    def __reduce__(self) -> tuple[object, ...]:
        return Vector, (self.source,)

    def aligned(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first and the last entry of the chunks that hold entries `start` to `stop`."""
        return start // self.chunk * self.chunk, min(-(-stop // self.chunk) * self.chunk, self.size)

    def overhead_bytes(self) -> int:
        """Return the memory in bytes of chunks of which not all is wanted yet, and of decoding one."""
        chunk = min(self.chunk, self.size) * self.dtype.itemsize
        return 3 * chunk + self.source.overhead_bytes(min(self.chunk, max(1, self.size)))

    def read(self, start: int, stop: int) -> tuple[Array, ReadCount]:
        """Return entries `start` to `stop`; this thread keeps the remainder of their last chunk for the next read."""
        if start >= stop:
            return np.empty(0, dtype=self.dtype), ReadCount()
        remainders: dict[str, tuple[int, Array]] = _decoded.__dict__.setdefault("remainders", {})
        first, values = remainders.pop(self._key, (0, np.empty(0, dtype=self.dtype)))
        known = values[start - first :] if first <= start < first + len(values) else values[:0]
        at, end, count = start + len(known), self.aligned(start, stop)[1], ReadCount()
        if at < stop:
            table, count = self.source.read(at, end, np.empty((end - at, 1), dtype=self.source.dtype))
            known = np.concatenate([known, table[:, 0]]) if len(known) else table[:, 0]
        if len(known) > stop - start:
            while len(remainders) >= _MOST_REMAINDERS:
                remainders.pop(next(iter(remainders)))
            remainders[self._key] = (stop, known[stop - start :].copy())  # a view would keep all of it
        return known[: stop - start], count
