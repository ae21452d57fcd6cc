"""Rows of a stored matrix in compressed sparse row form, read in blocks on demand."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from scipy.sparse import csr_array

from streampca.errors import DamagedChunkError, DataError
from streampca.sources.base import ReadCount, Source, Transposed, require_table
from streampca.sources.grid import Grid
from streampca.sources.versions import InputVersion
from streampca.typing import Array, DType, IntArray

_BLOCK_BYTES = 4 * 2**20
_WORKING_COPIES = 8  # a slice, its float64 copy by columns with mostly stored columns filled, and squares


class CompressedRows(Source):
    """Blocks of rows in compressed row form; a block reads only the chunks of values and column numbers that hold it.

    Parameters
    ----------
    data, indices : Vector
        Stored values, and the number of the column of each.
    indptr : array
        Where each row begins, ``(n_rows + 1,)``.
    n_features : int
        Number of columns.
    place, label : str
        Path of the store, and what messages call the matrix.
    edges : Source, optional
        What `indptr` was read from.

    Raises
    ------
    DataError
        If `indptr` does not describe rows of `data`.
    """

    buffered = False
    sparse = True

    def __init__(
        self,
        data: Vector,
        indices: Vector,
        indptr: IntArray,
        n_features: int,
        place: str,
        label: str,
        edges: Source | None = None,
    ):
        require_table((len(indptr) - 1, n_features), data.dtype, label)
        if indices.dtype.kind not in "iu":
            raise DataError(f"{label}: indices have dtype {indices.dtype}: expected integers")
        if data.size != indices.size:
            raise DataError(f"{label}: data has {data.size:,} values and indices {indices.size:,}: expected as many")
        if int(indptr[0]) != 0:
            raise DataError(f"{label}: indptr begins with {int(indptr[0]):,}: expected 0")
        steps = np.diff(indptr)
        if (steps < 0).any():
            row = int(np.flatnonzero(steps < 0)[0])
            raise DataError(f"{label}: indptr decreases after row {row}: expected where each row begins, in order")
        if int(indptr[-1]) != data.size:
            raise DataError(
                f"{label}: indptr ends with {int(indptr[-1]):,}, and {data.size:,} values are stored: expected the same"
            )
        self.data, self.indices, self.indptr, self.description, self.label = data, indices, indptr, place, label
        self._edges = edges
        self.shape = (len(indptr) - 1, n_features)
        self.dtype = np.dtype(np.float32) if data.dtype == np.float16 else data.dtype.newbyteorder("=")
        self._index = np.dtype(np.int32 if max(self.shape[1], _BLOCK_BYTES) < 2**31 else np.int64)
        self.grid = Grid(int(max(1, min(self.shape[0], _BLOCK_BYTES // self.row_bytes))))
        self.portable = data.source.portable and indices.source.portable

    def __reduce__(self) -> tuple[object, ...]:
        return CompressedRows, (
            self.data,
            self.indices,
            self.indptr,
            self.shape[1],
            self.description,
            self.label,
        )

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of the vectors, and that of where rows begin."""
        return (*self.sources, *(() if self._edges is None else (self._edges,)))

    @property
    def sources(self) -> Sequence[Source]:
        """Return the sources of the vectors."""
        return self.data.source, self.indices.source

    @property
    def row_bytes(self) -> int:
        """Return the mean size of a row as it is stored, in bytes."""
        return max(1, self._bytes_of(int(self.indptr[-1])) // self.shape[0])

    def _bytes_of(self, n_stored: int) -> int:
        return n_stored * (self.dtype.itemsize + self._index.itemsize)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprints of the vectors and of where rows begin."""
        digest = xxhash.xxh3_128("|".join(source.fingerprint for source in self.sources).encode())
        digest.update(np.ascontiguousarray(self.indptr).view(np.uint8).data)
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the source for a manifest."""
        return super().describe() | {"stored_values": int(self.indptr[-1])}

    def spans(self, start: int, stop: int) -> Sequence[tuple[Source, int, int]]:
        """Return the vectors with the entries of rows `start` to `stop`; none where these are empty."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        return [(source, first, last) for source in self.sources] if first < last else []

    def reads_of(self, start: int, stop: int) -> int:
        """Return the number of decoded bytes of the whole chunks that hold rows `start` to `stop`."""
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        n_bytes = 0
        for vector in (self.data, self.indices):
            low, high = vector.aligned(first, last) if first < last else (0, 0)
            n_bytes += (high - low) * vector.dtype.itemsize
        return max(1, n_bytes)

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of the largest block of `n_rows` rows, of work on it, of chunks and of the edges of rows."""
        n_rows = min(n_rows, self.shape[0])
        most = int((self.indptr[n_rows:] - self.indptr[:-n_rows]).max())
        chunks = self.data.overhead_bytes() + self.indices.overhead_bytes()
        return _WORKING_COPIES * self._bytes_of(most) + chunks + self.indptr.nbytes

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows, still sparse, with sorted columns.

        Raises
        ------
        DataError
            If a row has a column twice, or a column that does not exist.
        """
        first, last = int(self.indptr[start]), int(self.indptr[stop])
        data, count = self.data.read(first, last)
        indices, cost = self.indices.read(first, last)
        edges = self.indptr[start : stop + 1] - first
        if last > first and (int(indices.min()) < 0 or int(indices.max()) >= self.shape[1]):
            at = int(np.flatnonzero((indices < 0) | (indices >= self.shape[1]))[0])
            raise DamagedChunkError(
                f"{self.label}: indices hold {int(indices[at])} in row {start + _row_of(at, edges)}: expected columns from 0 to "
                f"{self.shape[1] - 1}"
            )
        index = self._index if last - first < 2**31 else np.dtype(np.int64)
        parts = (data.astype(self.dtype, copy=False), indices.astype(index, copy=False), edges.astype(index))
        rows = csr_array(parts, shape=(stop - start, self.shape[1]))
        if not rows.has_canonical_format:
            rows = rows.sorted_indices()
            same = np.flatnonzero(rows.indices[1:] == rows.indices[:-1]) + 1
            same = same[~np.isin(same, edges)]
            if len(same):
                raise DamagedChunkError(
                    f"{self.label}: row {start + _row_of(int(same[0]), edges)} stores column {int(rows.indices[same[0]])} twice: expected "
                    "every column once; add them up with X.sum_duplicates() and write the matrix again"
                )
            rows.has_canonical_format = True
        return rows, count + cost


class CompressedColumns(Transposed):
    """The rows of a matrix in compressed sparse column form: each block of them is taken from all columns, which are read for it.

    So all rows are read as one block where they fit in memory; its features are the columns, which are read by blocks.
    """

    source: CompressedRows
    block_of = "rows"
    copies = _WORKING_COPIES + 1  # it is put together by columns first

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of the vectors, and that of where columns begin."""
        return self.source.stored_arrays


def _row_of(entry: int, edges: IntArray) -> int:
    """Return the row that holds an entry."""
    return int(np.searchsorted(edges, entry, "right")) - 1


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
        self.size, self.chunk, self.dtype = source.shape[0], max(1, source.grid.decoded_rows), source.dtype

    def __reduce__(self) -> tuple[object, ...]:
        return Vector, (self.source,)

    def aligned(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first and the last entry of the chunks, of shards those in them, that hold entries `start` to `stop`."""
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
