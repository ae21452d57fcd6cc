"""Cells as rows: rows of any source, normalised and with the features of a mask."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import xxhash
from scipy.sparse import csr_array

from streampca.sources.base import ReadCount, RowwiseSource, Source, TransposedRows
from streampca.sources.cells.normalization import Normalization
from streampca.sources.sparse import SparseFeatures, as_rows
from streampca.typing import Array, BoolArray

_DENSE_COPIES = 3  # stored rows, in float64, and normalised


class CellSource(RowwiseSource):
    """Rows of another source with values normalised row by row, and then only the features of a mask.

    Parameters
    ----------
    rows : Source
        The rows, dense or sparse.
    normalization : Normalization, optional
        None = values as they are stored.
    mask : array, optional
        Which features are used, ``(rows.shape[1],)``; None = all.
    layer, mask_var : str, optional
        What messages and manifests call the matrix and the mask.
    """

    def __init__(
        self,
        rows: Source,
        normalization: Normalization | None = None,
        mask: BoolArray | None = None,
        layer: str | None = None,
        mask_var: str | None = None,
    ):
        self.source, self.normalization, self.mask = rows, normalization, mask
        self.layer, self.mask_var, self.description = layer, mask_var, rows.description
        self.shape = (rows.shape[0], rows.shape[1] if mask is None else int(mask.sum()))
        self.dtype = rows.dtype if normalization is None else normalization.dtype(rows.dtype)
        self.chunk_rows, self.chunk_bytes, self.portable = rows.chunk_rows, rows.chunk_bytes, rows.portable
        self.sparse, self.repeats = rows.sparse, rows.repeats
        self.buffered, self.in_memory = not rows.sparse, rows.in_memory
        self._places = None if mask is None else np.cumsum(mask) - 1

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of the arrays of the matrix."""
        return self.source.stored_arrays

    @property
    def changes(self) -> bool:
        """Return whether any value differs from that of the source, or any is left out."""
        return self.normalization is not None or self.mask is not None

    @property
    def row_bytes(self) -> int:
        """Return the size of one row in bytes; of sparse rows the mean size as they are stored."""
        return self.source.row_bytes if self.sparse else self.shape[1] * self.dtype.itemsize

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprint of the rows, the normalisation and the mask."""
        digest = xxhash.xxh3_128(f"{self.source.fingerprint}|{self.normalization}|".encode())
        digest.update(b"" if self.mask is None else np.packbits(self.mask).tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the source for a manifest."""
        described = self.source.describe() | super().describe()
        return described | {
            "array": f"layers/{self.layer}" if self.layer else "X",
            "layer": self.layer,
            "mask_var": self.mask_var,
            "normalize": None if self.normalization is None else self.normalization.to_dict(),
            "n_masked": self.source.shape[1] - self.shape[1],
        }

    def equal_rows(self, start: int, stop: int) -> tuple[tuple[int, int], ...]:
        """Return the runs of dense rows that equal one row, which are changed in the same way."""
        return self.source.equal_rows(start, stop)

    def slice(self, start: int, stop: int) -> CellSource:
        """Return a source for a worker with no more of lazy rows than `start` to `stop` need."""
        subset = copy.copy(self)
        subset.source = self.source.slice(start, stop)
        return subset

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of reading `n_rows` rows, and of changing them where they are dense."""
        reading = self.source.overhead_bytes(n_rows)
        if self.sparse or not self.changes:
            return reading
        return reading + _DENSE_COPIES * n_rows * self.source.shape[1] * max(8, self.source.dtype.itemsize)

    def by_features(self) -> Source:
        """Return a source whose rows are the features of this one."""
        if self.sparse:
            return SparseFeatures(self)
        return TransposedRows(self) if self.changes else self.source.by_features()

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows, normalised, with the features that are used."""
        if self.sparse:
            rows, count = self.source.read(start, stop)
            return self._of_sparse(as_rows(rows), start), count
        if not self.changes:
            return self.source.read(start, stop, out)
        values, count = self.source.read(start, stop)
        if self.normalization is not None:
            values = self.normalization.dense(values, start)
        values = values if self.mask is None else values[:, self.mask]
        if out is None:
            return values, count
        out[...] = values
        return out, count

    def _of_sparse(self, rows: csr_array, start: int) -> csr_array:
        data, indices, indptr = rows.data, rows.indices, rows.indptr
        if self.normalization is not None:
            data = self.normalization.stored(data, indices, indptr, start)
        if self.mask is not None and self._places is not None:
            used = self.mask[indices]
            edges = np.concatenate([[0], np.cumsum(used)])[indptr].astype(indptr.dtype)
            data, indices, indptr = data[used], self._places[indices[used]].astype(indices.dtype), edges
        return csr_array((data, indices, indptr), shape=(rows.shape[0], self.shape[1]))
