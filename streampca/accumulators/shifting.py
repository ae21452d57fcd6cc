"""Rows minus one number for each feature, the same for all rows, with the sums that take the rest of the mean out later."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import FloatArray
from streampca.linalg.tiles import spread
from streampca.system.workspace import borrow

_PANEL_BYTES = 64 * 2**20
_PANEL_ROWS = (256, 8192)
SLAB_BYTES = 2**20
"""Size of the rows that are summed at a time, so that they stay in the cache."""
_SLAB_ROWS = 256
_MOMENT_FEATURES = 1024  # columns that are shifted at a time, so that they stay in the cache
_SAMPLE_ROWS = 128
DIRECT_ROWS = 8192
"""Most rows whose products are summed in float32."""
SAFE_SQUARES = (1e-28, 1e37)
"""Sums of squares of float32 columns outside this range have lost digits to underflow, or are about to overflow."""


def panel_rows(n_features: int, dtype: np.dtype[Any]) -> int:
    """Return how many rows are multiplied at once."""
    low, high = _PANEL_ROWS
    return max(low, min(high, _PANEL_BYTES // max(1, n_features * dtype.itemsize)))


def sampled_origin(rows: NDArray[Any], dtype: np.dtype[Any]) -> FloatArray:
    """Return a number near the mean of each feature, exact in `dtype`, from a sample of `rows`; NaN is left out.

    The value itself where the sample does not vary, so that a constant feature is shifted to exact zeros, and a whole
    number where the sample has only those.
    """
    sample = rows[:: -(-len(rows) // _SAMPLE_ROWS)]
    seen = ~np.isnan(sample) if sample.dtype.kind == "f" else np.ones(sample.shape, dtype=bool)
    n_seen = seen.sum(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.where(seen, sample, 0).sum(axis=0, dtype=np.float64)
        middle = np.divide(total, n_seen, out=np.zeros_like(total), where=n_seen > 0)
        low = np.where(seen, sample, np.inf).min(axis=0)
        high = np.where(seen, sample, -np.inf).max(axis=0)
        whole = (~seen | (sample == np.rint(sample))).all(axis=0)
        middle = np.where(whole, np.rint(middle), middle)
        middle = np.where((low == high) & (n_seen > 0), low, middle)
        origin: FloatArray = middle.astype(dtype).astype(np.float64)
    origin[~np.isfinite(origin)] = 0.0
    return origin


def shifted(
    values: NDArray[Any], origin: NDArray[Any], out: NDArray[Any], missing: NDArray[np.bool_] | None, moments: bool
) -> tuple[FloatArray, FloatArray]:
    """Write ``values - origin`` to `out`, 0 where `missing`; return the sums of columns and of their squares, or zeros."""
    n_rows, n_features = values.shape
    sums, squares = np.zeros(n_features), np.zeros(n_features)
    step = max(16, min(_SLAB_ROWS, SLAB_BYTES // max(1, n_features * out.itemsize)))
    ones = np.ones(step, dtype=out.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, n_rows, step):
            part = out[start : start + step]
            np.subtract(values[start : start + step], origin, out=part, casting="same_kind")
            if missing is not None:
                part[missing[start : start + step]] = 0
            if moments:
                sums += ones[: len(part)] @ part
                squares += np.einsum("ij,ij->j", part, part)
    return sums, squares


def weighted_moments(rows: NDArray[Any], weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return Σ w x and Σ w x² of each column of shifted `rows`."""
    sums, squares = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    for start in range(0, len(rows), _SLAB_ROWS):
        part, own = rows[start : start + _SLAB_ROWS], weights[start : start + _SLAB_ROWS]
        sums += own @ part
        squares += own @ part.astype(np.float64) ** 2
    return sums, squares


def observed_weights(missing: NDArray[np.bool_], weights: FloatArray | None) -> FloatArray:
    """Return for each column the weight of the rows in which it is not `missing`."""
    if weights is None:
        return np.asarray(len(missing) - missing.sum(axis=0), dtype=np.float64)
    total = np.zeros(missing.shape[1])
    for start in range(0, len(missing), _SLAB_ROWS):
        total += weights[start : start + _SLAB_ROWS] @ ~missing[start : start + _SLAB_ROWS]
    return total


def shifted_moments(
    values: NDArray[Any], origin: NDArray[Any], weights: FloatArray | None, n_threads: int
) -> tuple[FloatArray, FloatArray]:
    """Return Σ w (x − origin) and Σ w (x − origin)² of each column, without a copy of all rows."""
    n_rows, n_features = values.shape
    sums, squares = np.zeros(n_features), np.zeros(n_features)

    def add(start: int) -> None:
        part = slice(start, start + _MOMENT_FEATURES)
        middle, width = origin[part], len(origin[part])
        out = borrow("shifted", (_SLAB_ROWS, width), values.dtype)
        ones = np.ones(_SLAB_ROWS, dtype=values.dtype)
        for row in range(0, n_rows, _SLAB_ROWS):
            rows = values[row : row + _SLAB_ROWS, part]
            slab = np.subtract(rows, middle, out=out[: len(rows)])
            own = ones[: len(rows)] if weights is None else weights[row : row + _SLAB_ROWS]
            sums[part] += own @ slab
            if weights is not None:
                slab *= np.sqrt(own).astype(values.dtype)[:, None]
            squares[part] += np.einsum("ij,ij->j", slab, slab)

    with np.errstate(over="ignore", invalid="ignore"):
        spread(add, range(0, n_features, _MOMENT_FEATURES), n_threads)
    return sums, squares


def column_sums(rows: NDArray[Any]) -> FloatArray:
    """Return the sums of columns, in float64 over slabs of rows."""
    total = np.zeros(rows.shape[1])
    ones = np.ones(_SLAB_ROWS, dtype=rows.dtype)
    for start in range(0, len(rows), _SLAB_ROWS):
        part = rows[start : start + _SLAB_ROWS]
        total += ones[: len(part)] @ part
    return total
