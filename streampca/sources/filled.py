"""A source whose missing values are replaced by the means of their features."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import xxhash

from streampca.sources.base import ReadCount, RowwiseSource, Source
from streampca.sources.schedule import Schedule
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray

_SLAB_BYTES = 2**21


class FilledSource(RowwiseSource):
    """Rows of a source minus a number near the mean of each feature, with a number in place of NaN.

    What is subtracted is exact in the type of the rows, so that means far from zero cost no digits of the rows, nor of the difference
    between them and the means that stand for missing values.

    Parameters
    ----------
    source : Source
        The rows; dense.
    subtracted : array, shape (n_features,)
        What is subtracted from each feature.
    fill : array, shape (n_features,)
        What stands for missing values afterwards.
    dtype : dtype
        The type of the rows then: that of products.
    """

    def __init__(self, source: Source, subtracted: FloatArray, fill: FloatArray, dtype: DType):
        self.source, self.subtracted, self.fill = source, subtracted, fill
        self.shape, self.dtype = source.shape, dtype
        self.description, self.chunk_rows, self.chunk_bytes = source.description, source.chunk_rows, source.chunk_bytes
        self.portable, self.column_major, self.repeats = source.portable, source.column_major, source.repeats
        self.reads_ahead = source.reads_ahead
        self.feature_shape, self.feature_names = source.feature_shape, source.feature_names
        self.labels, self.fragments = source.labels, source.fragments

    def __reduce__(self) -> tuple[object, ...]:
        return FilledSource, (self.source, self.subtracted, self.fill, self.dtype)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprint of the rows and of what is subtracted and filled in."""
        digest = xxhash.xxh3_128(self.source.fingerprint.encode())
        for array in (self.subtracted, self.fill):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the rows as they are stored."""
        return self.source.describe()

    @property
    def n_features_read(self) -> int:
        """Return the length of the rows of the other source."""
        return self.source.n_features_read

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of the stored rows, of the mask of missing values, and of differences in float64."""
        stored = n_rows * (self.source.row_bytes + self.shape[1])
        return self.source.overhead_bytes(n_rows) + stored + 2 * _SLAB_BYTES

    def ahead(self, schedule: Schedule) -> AbstractContextManager[None]:
        """Enclose the reading of the blocks of `schedule`, whose stored rows may be requested ahead."""
        return self.source.ahead(schedule)

    def slice(self, start: int, stop: int) -> FilledSource:
        """Return a source for a worker that can read rows `start` to `stop`."""
        return FilledSource(self.source.slice(start, stop), self.subtracted, self.fill, self.dtype)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows without missing values."""
        shape, stored = (stop - start, self.shape[1]), None
        if self.source.buffered:
            rows = borrow("rows with holes", shape[::-1] if self.column_major else shape, self.source.dtype)
            stored = rows.T if self.column_major else rows
        values, count = self.source.read(start, stop, stored)
        out = np.empty(shape, dtype=self.dtype) if out is None else out
        fill, step = self.fill.astype(self.dtype), max(1, _SLAB_BYTES // (8 * shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is refused by what reads the rows
            for first in range(0, len(values), step):
                slab = values[first : first + step]
                np.subtract(slab, self.subtracted, out=out[first : first + step], casting="same_kind")
                if values.dtype.kind == "f":
                    np.copyto(out[first : first + step], fill, where=np.isnan(slab))
        return out, count
