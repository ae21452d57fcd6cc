"""Rows with missing values (NaN): detection, centring of observed values, and covariance without incomplete rows."""

from __future__ import annotations

import numpy as np

from streampca.accumulators.centring import Centred, squares_of_columns
from streampca.errors import DataError, NotFiniteError
from streampca.linalg.underflow import mark_underflow
from streampca.typing import Array, BoolArray, IntArray

_SLAB_ROWS = 256
_COPIED_ROWS = 8192


def incomplete(rows: Array) -> BoolArray:
    """Return for each row whether it holds NaN, ``(n_rows,)``."""
    result = np.zeros(len(rows), dtype=bool)
    if rows.dtype.kind == "f":
        for start in range(0, len(rows), _SLAB_ROWS):
            slab = slice(start, start + _SLAB_ROWS)
            np.isnan(rows[slab]).any(axis=1, out=result[slab])
    return result


def refuse_infinite(rows: Array, start: int, first_column: int = 0) -> None:
    """Raise `NotFiniteError` if `rows`, with first entry (`start`, `first_column`) of the source, hold infinity; NaN is allowed."""
    bad = np.isinf(rows)
    if bad.any():
        row, column = (int(index) for index in np.argwhere(bad)[0])
        raise NotFiniteError(
            f"Input contains infinity: first at row {start + row}, column {first_column + column} ({int(bad.sum())} such value(s) in rows "
            f"{start} to {start + len(rows) - 1}; reading stopped there): only NaN counts as missing; clean these values first"
        )


def centre_observed(values: Array, missing: BoolArray, n_observed: IntArray, out: Array) -> Centred:
    """Write the observed values minus their means (rounded to the type of `out`) to `out`, and 0 for missing values."""
    observed = n_observed > 0
    with np.errstate(over="ignore", invalid="ignore"):
        low = np.where(observed, np.fmin.reduce(values, axis=0), 0).astype(np.float64)
        np.subtract(values, low, out=out, dtype=out.dtype, casting="same_kind")
        out[missing] = 0
        # A constant column is centred to exact zeros, because its smallest value is its mean.
        above = out.sum(axis=0, dtype=np.float64)
        middle = (low + np.divide(above, n_observed, out=np.zeros_like(low), where=observed)).astype(out.dtype)
        np.subtract(values, middle, out=out, dtype=out.dtype, casting="same_kind")
        out[missing] = 0
        squares = squares_of_columns(out)
        mark_underflow(out, squares)
    return Centred(middle.astype(np.float64), np.where(np.isfinite(squares), 0.0, np.inf), squares)


def require_observed(observed: BoolArray) -> None:
    """Raise `DataError` unless every feature is `observed` in some row."""
    never = np.flatnonzero(~observed)
    if len(never):
        first = ", ".join(map(str, never[:5]))
        raise DataError(
            f"{len(never)} feature(s) were observed in no row, first: {first}: leave them out (sp.open(…, mask='survey') does)"
        )


def left_out(missing: str, rows: Array, start: int, scores: Array) -> bool:
    """Return whether all `scores` that are not finite belong to rows with NaN that `missing` excludes.

    Raises `NotFiniteError` if NaN is allowed and `rows`, with first row `start` of the source, hold infinity.
    """
    if missing == "error" or rows.dtype.kind != "f" or not isinstance(rows, np.ndarray):
        return False
    refuse_infinite(rows, start)
    return missing == "drop_rows" and bool(np.isfinite(scores[~incomplete(rows)]).all())
