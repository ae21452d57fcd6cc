"""Detection of columns that vary so little that their squares underflow float64."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csc_array

from streampca.errors import DataError
from streampca.linalg.scaling import Scaling
from streampca.typing import Array, FloatArray, IntArray

LEAST_SQUARES = 1e-305
"""Sums of squares below this have lost digits to underflow."""
_TRACE = 1e-157
"""A marker whose square, 1e-314, is positive and smaller than any genuine sum of squares, with weights or many panels."""
_SLAB_ROWS = 256
_EPS = float(np.finfo(np.float64).eps)


def mark_underflow(rows: Array, squares: FloatArray) -> None:
    """Mark the columns that vary although their squares underflow float64, in place.

    Otherwise they would count as constant. The first value becomes 1e-157, which is negligible compared with any value
    that float64 can square; `refuse_underflow` detects its square at the end.

    Parameters
    ----------
    rows : float array, shape (n_rows, n_features)
        Centred rows; float32 rows are not changed, because rows whose squares underflow are converted to float64.
    squares : array, shape (n_features,)
        Sums of the squares of the columns.
    """
    if rows.dtype != np.float64 or not len(rows) or squares.min(initial=np.inf) >= _TRACE**2:
        return
    columns = np.concatenate([_vanished(rows, 0.0, squares), _tiny(squares)])
    rows[0, columns], squares[columns] = _TRACE, _TRACE**2


def mark_underflow_of_stored(columns: csc_array) -> None:
    """Mark such columns among shifted sparse `columns`, whose other entries are zero, in place."""
    if not columns.nnz or np.abs(columns.data).max() == 0:
        return
    peaks = np.asarray(abs(columns).max(axis=0).toarray()).ravel()
    for column in np.flatnonzero((peaks > 0) & (peaks < _TRACE)):
        stored = columns.data[columns.indptr[column] : columns.indptr[column + 1]]
        if stored @ stored < _TRACE**2:
            stored[int(np.abs(stored).argmax())] = _TRACE


def underflows(rows: Array, origin: FloatArray, squares: FloatArray) -> bool:
    """Return whether `squares` of a varying column of ``rows - origin`` are 0, or underflow when divided by a number of rows."""
    return len(_tiny(squares)) + len(_vanished(rows, origin, squares)) > 0


def _tiny(squares: FloatArray) -> IntArray:
    """Return the columns with positive sums of squares that may underflow when divided by a number of rows."""
    return np.flatnonzero((squares > 0) & (squares < _TRACE**2))


def _vanished(rows: Array, origin: FloatArray | float, squares: FloatArray) -> IntArray:
    """Return the columns whose squares are 0 although not all of their values are `origin`."""
    columns = np.flatnonzero(squares == 0)
    varies, centre = np.zeros(len(columns), dtype=bool), np.broadcast_to(origin, squares.shape)[columns]
    for start in range(0, len(rows) if len(columns) else 0, _SLAB_ROWS):
        varies |= (rows[start : start + _SLAB_ROWS, columns] != centre).any(axis=0)
    return columns[varies]


def refuse_underflow(squares: FloatArray, weight: FloatArray | float, *, scale: Scaling) -> None:
    """Raise `DataError` if sums of squares about the mean, ``(n_features,)``, have lost digits to underflow and matter.

    `weight` is the sum of the weights of the rows: sums of small squares that large weights multiply have lost the same digits.
    They matter where features are divided by their standard deviations, and where no feature, of the variable if variables are
    scaled, varies by more. For rows that are not centred, `squares` are sums about zero (see `sums_about_zero`).
    """
    largest = scale.largest(squares)
    least = LEAST_SQUARES * np.maximum(weight, 1.0)
    lost = np.flatnonzero((squares > 0) & (squares < least) & (largest < least))
    if len(lost):
        raise DataError(
            f"feature {lost[0]} varies by so little that its squares underflow float64 ({len(lost)} such feature(s)): expected "
            "standard deviations above 1e-150, or 0; rescale these features first"
        )


def sums_about_zero(squares: FloatArray, mean: FloatArray, weight: FloatArray | float) -> FloatArray:
    """Return sums of squares about zero from those about the `mean` of rows of total `weight`, for `refuse_underflow`.

    Where the square of a nonzero mean underflows to 0, the result is the smallest positive number.
    """
    with np.errstate(over="ignore"):  # other checks raise for infinite values
        sums = squares + weight * mean**2
    sums = np.where((sums == 0) & (mean != 0), np.finfo(np.float64).smallest_subnormal, sums)
    # A marker in place of a value may have changed a weighted mean.
    marked = (squares > 0) & (squares < LEAST_SQUARES) & (np.abs(mean) * _EPS < _TRACE)
    return np.where(marked, squares, sums)
