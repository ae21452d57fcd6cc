"""Rows shifted by one number per feature, and the sums that remove the remaining mean at the end."""

from __future__ import annotations

import numpy as np

from streampca.linalg.tiles import spread
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, FloatArray

_PANEL_BYTES = 64 * 2**20
_PANEL_ROWS = (256, 8192)
SHIFTED_SLAB_BYTES = 2**20
"""Size of a slab of rows that fits in the cache."""
_SLAB_ROWS = 256
_MOMENT_SHAPE = (32, 4096)  # rows and columns that are shifted at a time: half a cache, in long runs of memory
_SAMPLE_ROWS = 128
DIRECT_ROWS = 8192
"""Largest number of rows whose products are summed in float32."""
SAFE_SQUARES = (1e-28, 1e37)
"""Sums of squares of float32 columns outside this range have lost digits to underflow, or may overflow."""


def sketch_panel_rows(n_features: int, dtype: DType) -> int:
    """Return the number of rows of a panel."""
    low, high = _PANEL_ROWS
    return max(low, min(high, _PANEL_BYTES // max(1, n_features * dtype.itemsize)))


def sampled_origin(rows: Array, dtype: DType) -> FloatArray:
    """Return a number near the mean of each feature, exact in `dtype`, from a sample of `rows`; NaN is ignored.

    The value itself where the sample is constant, so that a constant feature is shifted to exact zeros, and a whole
    number where the sample has only whole numbers.
    """
    sample = rows[:: -(-len(rows) // _SAMPLE_ROWS)]
    observed = ~np.isnan(sample) if sample.dtype.kind == "f" else np.ones(sample.shape, dtype=bool)
    n_seen = observed.sum(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.where(observed, sample, 0).sum(axis=0, dtype=np.float64)
        middle = np.divide(total, n_seen, out=np.zeros_like(total), where=n_seen > 0)
        low = np.where(observed, sample, np.inf).min(axis=0)
        high = np.where(observed, sample, -np.inf).max(axis=0)
        whole = (~observed | (sample == np.rint(sample))).all(axis=0)
        middle = np.where(whole, np.rint(middle), middle)
        middle = np.where((low == high) & (n_seen > 0), low, middle)
        origin: FloatArray = middle.astype(dtype).astype(np.float64)
    origin[~np.isfinite(origin)] = 0.0
    return origin


def shifted(
    values: Array, origin: Array, out: Array, missing: BoolArray | None, moments: bool
) -> tuple[FloatArray, FloatArray]:
    """Write ``values - origin`` to `out`, 0 where `missing`; return the sums of columns and of their squares, or zeros."""
    n_rows, n_features = values.shape
    sums, squares = np.zeros(n_features), np.zeros(n_features)
    step = max(16, min(_SLAB_ROWS, SHIFTED_SLAB_BYTES // max(1, n_features * out.itemsize)))
    ones = np.ones(step, dtype=out.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, n_rows, step):
            slab = out[start : start + step]
            np.subtract(values[start : start + step], origin, out=slab, casting="same_kind")
            if missing is not None:
                slab[missing[start : start + step]] = 0
            if moments:
                sums += ones[: len(slab)] @ slab
                squares += np.einsum("ij,ij->j", slab, slab)
    return sums, squares


def weighted_moments(rows: Array, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return Σ w x and Σ w x² of each column of shifted `rows`."""
    sums, squares = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for start in range(0, len(rows), _SLAB_ROWS):
        slab, slab_weights = rows[start : start + _SLAB_ROWS], weights[start : start + _SLAB_ROWS]
        with np.errstate(over="ignore", invalid="ignore"):  # callers check that the sums are finite
            sums += slab_weights @ slab
            squares += slab_weights @ slab.astype(np.float64) ** 2
    return sums, squares


def observed_weights(missing: BoolArray, weights: FloatArray | None) -> FloatArray:
    """Return for each column the total weight of the rows in which it is observed."""
    if weights is None:
        return np.asarray(len(missing) - missing.sum(axis=0), dtype=np.float64)
    total = np.zeros(missing.shape[1])
    for start in range(0, len(missing), _SLAB_ROWS):
        total += weights[start : start + _SLAB_ROWS] @ ~missing[start : start + _SLAB_ROWS]
    return total


def shifted_moments(
    values: Array, origin: Array, weights: FloatArray | None, n_threads: int
) -> tuple[FloatArray, FloatArray]:
    """Return Σ w (x − origin) and Σ w (x − origin)² of each column, without a copy of all rows."""
    (n_rows, n_features), (step, width) = values.shape, _MOMENT_SHAPE
    sums, squares = np.zeros(n_features), np.zeros(n_features)

    def add(start: int) -> None:
        features = slice(start, start + width)
        middle = origin[features]
        out = borrow("shifted", (step, len(middle)), values.dtype)
        ones = np.ones(step, dtype=values.dtype)
        for row in range(0, n_rows, step):
            rows = values[row : row + step, features]
            slab = np.subtract(rows, middle, out=out[: len(rows)])
            slab_weights = ones[: len(rows)] if weights is None else weights[row : row + step]
            sums[features] += slab_weights @ slab
            if weights is not None:
                slab *= np.sqrt(slab_weights).astype(values.dtype)[:, None]
            squares[features] += np.einsum("ij,ij->j", slab, slab)

    with np.errstate(over="ignore", invalid="ignore"):
        spread(add, range(0, n_features, width), n_threads)
    return sums, squares


def column_sums(rows: Array) -> FloatArray:
    """Return the sums of columns, added in float64 over slabs of rows."""
    total = np.zeros(rows.shape[1])
    ones = np.ones(_SLAB_ROWS, dtype=rows.dtype)
    for start in range(0, len(rows), _SLAB_ROWS):
        slab = rows[start : start + _SLAB_ROWS]
        total += ones[: len(slab)] @ slab
    return total


def observed_moments(
    columns: Array, weights: FloatArray | None, missing: BoolArray | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return total weight, mean and weighted sum of squares of the observed values of each column; missing ones must be 0."""
    width = columns.shape[1]
    total, sums, squares = np.zeros(width), np.zeros(width), np.zeros(width)
    step = max(16, 2**20 // (8 * width))
    for start in range(0, len(columns), step):
        slab = columns[start : start + step].astype(np.float64)
        slab_weights = np.ones(len(slab)) if weights is None else weights[start : start + step]
        total += slab_weights.sum() if missing is None else slab_weights @ ~missing[start : start + step]
        sums += slab_weights @ slab
        with np.errstate(over="ignore"):  # the caller raises for infinite squares
            squares += slab_weights @ np.square(slab, out=slab)
    with np.errstate(invalid="ignore"):
        return total, sums / total, squares
