"""What the data quality of a panel of rows is computed from: moments, common values, missing values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.typing import Array, FloatArray, IntArray

PANEL_VALUES = 2**17
"""Values that are examined at once, at most; a row at least."""
_SOME_ROWS = 33
"""Rows whose median is taken for the most common value."""
_ROUNDING = 1e-13
"""Rounding of a sum of squares relative to it."""
COUNTED_VALUES, _COUNTED_ROWS = 2**18, 255
"""Values among which missing ones are counted at once, at most, a row at least; rows whose missing values are counted in 8 bits."""


@dataclass(frozen=True)
class Sums:
    """Count, mean and sum of squared deviations of each feature, of any shape."""

    counts: IntArray
    """Values that are not missing."""
    means: FloatArray
    """Their mean; 0 where there are none."""
    scatter: FloatArray
    """Sum of their squared deviations from it."""

    def plus(self, other: Sums) -> Sums:
        """Return the sums of the values behind both (Chan, Golub & LeVeque 1983, eq. 2.1)."""
        counts = self.counts + other.counts
        divisor = np.maximum(counts, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.means - self.means
            means = self.means + step * (other.counts / divisor)
            between = step * step * (self.counts * (other.counts / divisor))
            return Sums(counts, means, self.scatter + other.scatter + between)


def sums_of(rows: Array, starts: IntArray) -> Sums:
    """Return the sums of runs of dense `rows`, ``(n_rows, n_features)``, in float64, ``(n_runs, n_features)``; NaN counts as missing.

    `starts` are the first rows of the runs, of which none is empty.
    """
    origin = rows[0].astype(np.float64)
    lengths = np.diff(starts, append=len(rows))[:, None]
    if not rows.strides[0]:
        return _sums_of_equal(origin, lengths)
    with np.errstate(over="ignore", invalid="ignore"):
        centred = rows.astype(np.float64)
        centred -= origin
        means = _run_sums(centred, starts)
        if np.isfinite(means).all():
            means /= lengths
            np.square(centred, out=centred)
            squares = _run_sums(centred, starts)
            scatter = squares - lengths * means * means
            scatter[scatter < _ROUNDING * squares] = 0.0
            return Sums(np.broadcast_to(lengths, means.shape), means + origin, scatter)
        return _sums_with_holes(rows, starts, lengths)


def _run_sums(rows: Array, starts: IntArray) -> FloatArray:
    """Return the sums of runs of rows, ``(n_runs, n_features)``; faster than `numpy.add.reduceat` where runs are long."""
    sums = np.empty((len(starts), rows.shape[1]))
    for start, stop, out in zip(starts, (*starts[1:], len(rows)), sums, strict=True):
        np.add.reduce(rows[start:stop], axis=0, out=out)
    return sums


def _sums_with_holes(rows: Array, starts: IntArray, lengths: IntArray) -> Sums:
    """Return the sums of runs of rows some of which have NaN, by run."""
    holes = np.isnan(rows)
    counts = lengths - _run_sums(holes, starts).astype(np.int64)
    filled = np.where(holes, 0.0, rows)
    means = _run_sums(filled, starts) / np.maximum(counts, 1)
    filled -= np.repeat(means, lengths[:, 0], axis=0)
    filled[holes] = 0.0
    return Sums(counts, means, _run_sums(np.square(filled), starts))


def _sums_of_equal(row: FloatArray, lengths: IntArray) -> Sums:
    """Return the sums of runs of rows that all equal `row`."""
    holes = np.isnan(row)
    means = np.broadcast_to(np.where(holes, 0.0, row), (len(lengths), len(row)))
    return Sums(np.where(holes, 0, lengths), means, np.zeros(means.shape))


def common_values(rows: Array) -> Array:
    """Return the medians of some evenly spaced `rows`: the most common value of each feature that more than half of these have."""
    few = rows[:: max(1, len(rows) // _SOME_ROWS)][:_SOME_ROWS]
    middle: Array = np.partition(few, len(few) // 2, axis=0)[len(few) // 2]
    return middle


def count_common(rows: Array, common: Array) -> IntArray:
    """Return how many of `rows` have the value `common`, ``(n_features,)``."""
    counts: IntArray = np.count_nonzero(rows == common, axis=0).astype(np.int64)
    return counts


def panel_rows(n_features: int) -> int:
    """Return how many rows are examined at once."""
    return max(1, PANEL_VALUES // max(1, n_features))


def count_missing(values: Array) -> IntArray:
    """Return the number of NaN of each feature of dense `values`, ``(n_rows, n_features)``."""
    if not values.strides[0]:
        return np.where(np.isnan(values[0]), len(values), 0)
    total = np.zeros(values.shape[1], dtype=np.int64)
    rows = max(1, min(_COUNTED_ROWS, COUNTED_VALUES // max(1, values.shape[1])))
    for start in range(0, len(values), rows):
        holes = np.isnan(values[start : start + rows])
        total += np.add.reduce(holes.view(np.uint8), axis=0, dtype=np.uint8)
    return total
