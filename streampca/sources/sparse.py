"""Sparse rows in memory: scipy's matrices and arrays, read as slices that stay sparse."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import xxhash
from scipy.sparse import csc_array, csr_array, hstack, issparse, vstack

from streampca.sources.base import ReadCount, Source, require_table
from streampca.typing import Array

_BLOCK_BYTES = 32 * 2**20


def as_rows(values: Any) -> csr_array:
    """Return sparse `values` in compressed row form without duplicates; shares their memory if they have that form."""
    rows = csr_array(values)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    return rows


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
        self.chunk_rows = int(max(1, min(self.shape[0], _BLOCK_BYTES // self.row_bytes)))

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

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of a slice, its float64 copy by columns with mostly stored columns filled, and squares."""
        return 8 * n_rows * self.row_bytes

    def by_features(self) -> SparseFeatures:
        """Return a source whose rows are the features of this one, made dense a block at a time."""
        return SparseFeatures(self)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows, still sparse."""
        values = self.rows[start:stop]
        n_bytes = values.data.nbytes + values.indices.nbytes + values.indptr.nbytes
        return values, ReadCount(0, n_bytes, n_bytes)


class SparseFeatures(Source):
    """The features of a sparse matrix, ``(n_features, n_samples)``; blocks of them are dense.

    Centring makes every value nonzero, so blocks of whole features are dense and centred exactly. The matrix is copied
    to compressed column form when it is first read.
    """

    def __init__(self, source: SparseSource):
        self.source, self.description = source, source.description
        self.shape, self.dtype = (source.shape[1], source.shape[0]), source.dtype
        self._columns: csc_array | None = None
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the rows."""
        return f"{self.source.fingerprint}-features"

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of the matrix by columns, and of a slice of it."""
        return 2 * self.source.row_bytes * self.source.shape[0]

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the features, dense, in `out` if given."""
        with self._lock:
            if self._columns is None:
                self._columns = csc_array(self.source.rows)
            columns = self._columns
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        columns[:, start:stop].T.toarray(out=out)
        return out, ReadCount(0, out.nbytes, out.nbytes)


def is_sparse(values: object) -> bool:
    """Return whether `values` are a sparse matrix or array of scipy."""
    return bool(issparse(values))
