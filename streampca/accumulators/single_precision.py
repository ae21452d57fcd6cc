"""Where products of float32 rows have too few digits, and products in float64 in their place."""

from __future__ import annotations

import numpy as np

from streampca.block import Block
from streampca.system.workspace import borrow
from streampca.typing import Array, FloatArray

WIDE_ROWS = 128
"""Rows that are converted to float64 at a time."""
# Sums of squares of float32 columns outside this range have lost digits to underflow, or may overflow.
_SAFE_SQUARES = (1e-28, 1e37)
_SAFE_WEIGHTS = (1e-6, 1e6)
# Largest difference between an entry of a diagonal and a sum of squares, relative to the squares about the mean: standard
# deviations have an error of 4e-7 then.
_MOST_ROUNDING = 7e-7
_MOST_TOGETHER = (
    1e-7  # of their sums: rounding of continuous values averages out over features, that of few values does not
)
_SAMPLE_ROWS = 128
_NARROW_ROWS = 16  # rows of a panel of features that fit in the cache


def may_be_overwritten(block: Block) -> bool:
    """Return whether rows are float32 in memory that can be restored, and a sample of them says that their products are float32, too."""
    values = block.values
    if block.read_again is None or block.weights is not None or values.dtype != np.float32 or not len(block):
        return False
    sample = values[:: -(-len(values) // _SAMPLE_ROWS)].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = len(values) * sample.var(axis=0)
    low, high = _SAFE_SQUARES
    return values.flags.c_contiguous and bool(((squares == 0) | ((squares > low) & (squares < high))).all())


def within_float32(squares: FloatArray, rows: Array) -> bool:
    """Return whether float32 represents products of the centred `rows` without loss of digits."""
    low, high = _SAFE_SQUARES
    if not (squares < high).all() or ((squares > 0) & (squares < low)).any():
        return False
    zero = squares == 0
    return not (zero.any() and any(rows[i : i + 256, zero].any() for i in range(0, len(rows), 256)))


def weights_within_float32(weights: FloatArray) -> bool:
    """Return whether float32 represents rows times √`weights` without loss of digits; small weights may underflow."""
    low, high = _SAFE_WEIGHTS
    return bool(low <= weights.max() <= high)


def lost_digits(diagonal: Array, squares: FloatArray, about_mean: FloatArray | None = None) -> bool:
    """Return whether the diagonal of a float32 product lost digits: `squares` are more accurate.

    `about_mean` are the sums of squares about the mean, where rows are not centred: what is subtracted later leaves the rounding.
    """
    difference, of = diagonal - squares, squares if about_mean is None else about_mean
    together = abs(float(difference.sum())) > _MOST_TOGETHER * float(of.sum())
    return together or bool((np.abs(difference) > _MOST_ROUNDING * of).any())


def squares_of_rows(rows: Array) -> FloatArray:
    """Return the sum of squares of each row, in float64."""
    total = np.empty(len(rows))
    for start in range(0, len(rows), _NARROW_ROWS):
        some = rows[start : start + _NARROW_ROWS]
        wide = borrow("squares", some.shape, np.float64)
        np.copyto(wide, some)
        np.vecdot(wide, wide, out=total[start : start + _NARROW_ROWS])
    return total


def add_product_in_float64(tile: FloatArray, one: Array, other: Array) -> None:
    """Add oneᵀ other to `tile`, with float64 products of 128 rows at a time."""
    product = borrow("product", tile.shape, np.dtype(np.float64))
    for start in range(0, len(one), WIDE_ROWS):
        slab = slice(start, start + WIDE_ROWS)
        tile += np.matmul(one[slab].astype(np.float64).T, other[slab].astype(np.float64), out=product)
