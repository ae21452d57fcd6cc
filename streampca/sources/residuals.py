"""A source without the part of its rows that regression on known regressors explains."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import xxhash

from streampca.block import Block
from streampca.labels import Labels
from streampca.regressors import FittedRegression, RowRegressors
from streampca.sources.base import ReadCount, RowwiseSource, Source
from streampca.sources.schedule import Schedule
from streampca.system.workspace import borrow
from streampca.typing import Array, DType

SLAB_BYTES = 2**21


def residual_dtype(dtype: DType) -> DType:
    """Return the data type of residuals: float32 for float16 and float32, else float64."""
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64)


def subtract_fitted(
    values: Array, rows: RowRegressors, regression: FittedRegression, out: Array, sign: int = -1
) -> Array:
    """Write `values` minus what is fitted to them, the mean included, to `out`, or plus them with `sign` 1; computed in float64.

    The mean is subtracted before, and added after, the part that differs between rows: their sum would be rounded to the
    digits of a mean that may be 1e8 standard deviations.
    """
    step = max(1, SLAB_BYTES // (8 * max(1, values.shape[1])))
    with np.errstate(over="ignore", invalid="ignore"):  # callers check that results are finite
        for start in range(0, len(values), step):
            part = slice(start, min(start + step, len(values)))
            effects = rows.fitted(regression.coefficients, rows.start + part.start, rows.start + part.stop)
            if sign > 0:
                effects += values[part]
                np.add(effects, regression.mean, out=out[part], casting="same_kind")
            else:
                if regression.mean_remainder is not None:
                    effects += regression.mean_remainder
                centred = np.subtract(values[part], regression.mean, dtype=np.float64)
                np.subtract(centred, effects, out=out[part], casting="same_kind")
    return out


class ResidualSource(RowwiseSource):
    """Rows of a source minus what regression fits to them, so that they have no mean; the stored rows are read as they are."""

    def __init__(self, source: Source, rows: RowRegressors, fitted: FittedRegression, dtype: DType | None = None):
        self.source, self.rows, self.fitted = source, rows, replace(fitted, rows=None)
        self.shape, self.dtype = source.shape, residual_dtype(source.dtype) if dtype is None else dtype
        self.description, self.chunk_rows, self.chunk_bytes = source.description, source.chunk_rows, source.chunk_bytes
        self.portable, self.column_major, self.repeats = source.portable, source.column_major, source.repeats
        self.reads_ahead = source.reads_ahead
        self.feature_shape, self.feature_names = source.feature_shape, source.feature_names
        self.labels: Labels | None = source.labels
        self.fragments = source.fragments

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.source, self.rows, self.fitted, self.dtype)

    @property
    def fingerprint(self) -> str:
        """Return a hash of the fingerprint of the rows and of what is subtracted."""
        digest = xxhash.xxh3_128(self.source.fingerprint.encode())
        for array in (self.rows.codes, self.rows.columns, self.fitted.coefficients, self.fitted.mean):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
        return digest.hexdigest()

    def describe(self) -> dict[str, object]:
        """Return the description of the rows as they are stored."""
        return self.source.describe()

    @property
    def n_features_read(self) -> int:
        """Return the length of the rows of the other source."""
        return self.source.n_features_read

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of the stored rows, and of what is subtracted from some of them."""
        return self.source.overhead_bytes(n_rows) + n_rows * self.source.row_bytes + 2 * SLAB_BYTES

    def ahead(self, schedule: Schedule) -> AbstractContextManager[None]:
        """Enclose the reading of the blocks of `schedule`, whose stored rows may be requested ahead."""
        return self.source.ahead(schedule)

    def slice(self, start: int, stop: int) -> ResidualSource:
        """Return a source for a worker that can read rows `start` to `stop`."""
        rows = self.rows.slice(start, stop)
        return type(self)(self.source.slice(start, stop), rows, self.fitted, self.dtype)

    def by_features(self) -> Source:
        """Return a source whose rows are the features of this one."""
        return _ResidualFeatures(self)

    def residuals(self, block: Block) -> Block:
        """Return the residuals of stored rows that have been read, in scratch memory."""
        shape, columns = block.values.shape, self.column_major
        out = borrow("residuals", shape[::-1] if columns else shape, self.dtype)
        rows = self.rows.slice(block.start, block.start + len(block))
        return Block(
            subtract_fitted(block.values, rows, self.fitted, out.T if columns else out),
            block.start,
            block.weights,
        )

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the residuals of the rows."""
        out = np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out
        values, count = self.source.read(start, stop, _stored(self.source, start, stop))
        return subtract_fitted(values, self.rows.slice(start, stop), self.fitted, out), count


class _ResidualFeatures(ResidualSource):
    """The transpose of a table of residuals: its rows are features."""

    def __init__(self, table: ResidualSource):
        super().__init__(table.source.by_features(), table.rows, table.fitted, table.dtype)
        self.table = table

    def __reduce__(self) -> tuple[object, ...]:
        return _ResidualFeatures, (self.table,)

    def slice(self, start: int, stop: int) -> ResidualSource:
        """Return the source itself, with no more of the stored features than a worker needs."""
        part = _ResidualFeatures(self.table)
        part.source = self.source.slice(start, stop)
        return part

    def by_features(self) -> Source:
        """Return the table."""
        return self.table

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the residuals of features `start` to `stop`."""
        out = np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out
        values, count = self.source.read(start, stop, _stored(self.source, start, stop))
        subtract_fitted(values.T, self.rows, self.fitted.of_features(start, stop), out.T)
        return out, count


def _stored(source: Source, start: int, stop: int) -> Array | None:
    """Return scratch memory for stored rows, None where reading needs none."""
    if not source.buffered:
        return None
    shape = (stop - start, source.shape[1])
    if source.column_major:
        return borrow("rows before subtraction", shape[::-1], source.dtype).T
    return borrow("rows before subtraction", shape, source.dtype)
