"""Sparse rows: scipy's matrices and arrays in memory, and rows with their zeros, for steps that leave none."""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from scipy.sparse import csr_array, hstack, issparse, vstack

from streampca.sources.base import ReadCount, RowsOfSource, Source, as_rows, require_table
from streampca.sources.grid import Grid
from streampca.typing import Array

_BLOCK_BYTES = 32 * 2**20
_DENSE_BYTES = 4 * 2**20  # of a block of sparse rows with their zeros


def joined(blocks: list[list[Any]]) -> csr_array:
    """Return a grid of sparse blocks as one matrix in compressed row form."""
    bands = [as_rows(band[0] if len(band) == 1 else hstack(band, format="csr")) for band in blocks]
    return as_rows(bands[0] if len(bands) == 1 else vstack(bands, format="csr"))


class SparseSource(Source):
    """A scipy sparse matrix or array; blocks are slices of it in compressed row form."""

    buffered = False
    sparse = True
    in_memory = True

    def __init__(self, matrix: Any, description: str = "sparse matrix"):
        require_table(matrix.shape, np.dtype(matrix.dtype), description)
        self.rows, self.description = as_rows(matrix), description
        self.shape, self.dtype = (int(matrix.shape[0]), int(matrix.shape[1])), np.dtype(matrix.dtype)
        # A block is given by what is stored, since that is what it takes.
        self.grid = Grid(int(max(1, min(self.shape[0], _BLOCK_BYTES // self.row_bytes))))

    @property
    def row_bytes(self) -> int:
        """Return the mean size of a row as it is stored, in bytes."""
        stored = self.rows.data.nbytes + self.rows.indices.nbytes + self.rows.indptr.nbytes
        return max(1, stored // max(1, self.shape[0]))

    @property
    def fingerprint(self) -> str:
        """Return a hash of shape, dtype and a sample of the stored values, which differs between the matrices of one session."""
        digest = xxhash.xxh3_128(f"{self.shape}{self.dtype}{self.rows.nnz}".encode())
        for stored in (self.rows.data, self.rows.indices, self.rows.indptr):
            digest.update(np.ascontiguousarray(stored[:: max(1, len(stored) // 4096)]).data)
        return digest.hexdigest()

    def reads_of(self, start: int, stop: int) -> int:
        """Return the size in bytes of rows `start` to `stop` as they are stored, in blocks of `chunk_rows`."""
        n_edges = stop - start + -(-(stop - start) // self.chunk_rows)
        n_stored = int(self.rows.indptr[stop]) - int(self.rows.indptr[start])
        each = self.rows.data.itemsize + self.rows.indices.itemsize
        return n_stored * each + n_edges * self.rows.indptr.itemsize

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of a slice, its float64 copy by columns with mostly stored columns filled, and squares."""
        return 8 * n_rows * self.row_bytes

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows, still sparse."""
        values = self.rows[start:stop]
        n_bytes = values.data.nbytes + values.indices.nbytes + values.indptr.nbytes
        return values, ReadCount(0, n_bytes, n_bytes)


class DenseRows(RowsOfSource):
    """The rows of a sparse source as dense ones, a block at a time.

    Parameters
    ----------
    source : Source
        The sparse rows.
    """

    def __init__(self, source: Source):
        super().__init__(source)
        self.sparse, self.buffered, self.in_memory = False, True, False
        # Any rows can be read alone, so a block has as many as dense ones should have.
        self.grid = Grid(max(1, min(source.chunk_rows, _DENSE_BYTES // self.row_bytes)))

    def __reduce__(self) -> tuple[object, ...]:
        return DenseRows, (self.source,)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the sparse rows, whose values these are."""
        return f"{self.source.fingerprint}-dense"

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of the arrays that the rows are stored in."""
        return self.source.stored_arrays

    def describe(self) -> dict[str, object]:
        """Return the description of the sparse rows."""
        return self.source.describe()

    def slice(self, start: int, stop: int) -> DenseRows:
        """Return a source for a worker that can read rows `start` to `stop`."""
        return DenseRows(self.source.slice(start, stop))

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that reading the sparse rows takes."""
        return self.source.overhead_bytes(n_rows)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows with their zeros."""
        rows: Any
        rows, count = self.source.read(start, stop)
        if out is not None and out.dtype == rows.dtype and (out.flags.c_contiguous or out.flags.f_contiguous):
            return rows.toarray(out=out), count
        dense = rows.toarray()
        if out is None:
            return dense, count
        out[...] = dense
        return out, count


def is_sparse(values: object) -> bool:
    """Return whether `values` are a sparse matrix or array of scipy."""
    return bool(issparse(values))
