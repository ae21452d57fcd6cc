"""Rows minus their own mean, without losing the digits that a far mean would cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampca.errors import NotFiniteError
from streampca.linalg.underflow import mark_underflow

FloatArray = NDArray[np.float64]

_SLAB_BYTES = 1 << 20  # rows that stay in the cache between subtraction and sum
_SLAB_ROWS = 256  # also bounds the rounding of float32 column sums
_SAMPLE_ROWS = 128
_SQUARED_ROWS = 16
_FAR_FACTOR = 1e30
_FEW_FEATURES = 64  # up to here sketches take products in float64


@dataclass(frozen=True)
class Centred:
    """Where the centre of a panel of rows lies, and what is left of the rows around it; arrays ``(n_features,)``."""

    origin: FloatArray
    """What was subtracted."""
    rest: FloatArray
    """The mean of the panel minus `origin`."""
    squares: FloatArray
    """Sum of the squares of each centred column."""

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Tell for each column whether it came through without overflow, ``(n_features,)``."""
        return np.isfinite(self.rest) & np.isfinite(self.squares)


def step_between(
    origin: FloatArray, offset: FloatArray, other_origin: FloatArray, other_offset: FloatArray
) -> FloatArray:
    """Return the second mean minus the first.

    A mean is kept as a number near it (`origin`) and a small `offset`, because the difference of two means of 1e8
    standard deviations that were rounded to float64 has only half its digits, while that of two origins is exact.
    """
    return (other_origin - origin) + (other_offset - offset)


def work_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the floating type in which products of `dtype` are taken: it holds every value of up to 16 bits exactly.

    float32 for bool, 8-bit integers, float16 and float32; float64 for all else. Integers beyond 2**53 are rounded.
    """
    dtype = np.dtype(dtype)
    narrow = (
        dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize == 1) or (dtype.kind == "f" and dtype.itemsize <= 4)
    )
    return np.dtype(np.float32 if narrow else np.float64)


def sketch_dtype(dtype: DTypeLike, n_features: int, factors: FloatArray | None = None) -> np.dtype[Any]:
    """Return the floating type in which rows of `dtype` are multiplied with a test matrix.

    As `work_dtype`, but float64 up to 64 features. The float32 products of rows that take only a few values are rounded
    alike every time they are summed, which does not average out (up to 4e-5 of the first eigenvalue); rows of few features
    are such rows most easily, and their products in float64 cost little beside reading them. Also float64 where `factors`
    that the test matrix is multiplied by leave the range in which float32 keeps its digits.
    """
    if factors is not None and (factors.max(initial=0.0) > _FAR_FACTOR or 0 < factors.max() < 1 / _FAR_FACTOR):
        return np.dtype(np.float64)
    return np.dtype(np.float64) if n_features <= _FEW_FEATURES else work_dtype(dtype)


def centre(rows: NDArray[Any], out: NDArray[Any]) -> Centred:
    """Write ``rows - c`` to `out` and return where c lies and what is left.

    The centre c is the mean of 128 rows spread over `rows`, so that one sweep does it all: what is left of the mean is
    a tenth of a standard deviation, and `rest` takes it out of sums of squares without losing digits, however far the
    mean (Chan, Golub & LeVeque 1983, section 3: shift before you sum). A column that never varies comes out as exact
    zeros.

    Parameters
    ----------
    rows : array, shape (n_rows, n_features)
        At least one row; any real type.
    out : float32 or float64 array of the same shape

    Returns
    -------
    Centred
    """
    n_rows, n_features = rows.shape
    sample = rows[:: -(-n_rows // _SAMPLE_ROWS)]
    with np.errstate(over="ignore", invalid="ignore"):
        middle = sample.mean(axis=0, dtype=np.float64)
        middle = np.where((sample == sample[0]).all(axis=0), sample[0], middle)
        # Whole numbers minus a whole number have exact products. Else each of the few products of a short type is rounded
        # the same way every time it is summed, which does not average out (uint8: 2e-6 of the matrix, against 1e-8).
        whole = rows.dtype.kind != "f" or (sample == np.rint(sample)).all(axis=0)
        middle = np.where(whole, np.rint(middle), middle).astype(out.dtype)
        step = max(16, min(_SLAB_ROWS, _SLAB_BYTES // max(1, n_features * out.itemsize)))
        ones = np.ones(min(step, n_rows), dtype=out.dtype)
        rest, squares = np.zeros(n_features), np.zeros(n_features)
        for start in range(0, n_rows, step):
            part = out[start : start + step]
            np.subtract(rows[start : start + step], middle, out=part)
            rest += ones[: len(part)] @ part
            squares += squares_of_columns(part)
    rest /= n_rows
    mark_underflow(out, squares)
    return Centred(middle.astype(np.float64), rest, squares)


def squares_of_columns(rows: NDArray[Any]) -> FloatArray:
    """Return the sum of the squares of each column of a slab of rows: in its type over 16 rows at a time, in float64 over these."""
    whole = len(rows) // _SQUARED_ROWS * _SQUARED_ROWS
    groups, last = rows[:whole].reshape(-1, _SQUARED_ROWS, rows.shape[1]), rows[whole:]
    squares: FloatArray = np.einsum("kij,kij->kj", groups, groups).sum(axis=0, dtype=np.float64)
    squares += np.einsum("ij,ij->j", last, last)
    return squares


def weigh(
    rows: NDArray[Any], weights: FloatArray, origin: FloatArray, *, move: bool = True
) -> tuple[FloatArray, FloatArray]:
    """Move rows that were centred about `origin` to their weighted mean and multiply them by the roots of their weights, in place.

    A row of small weight that lies far out moves the mean of all rows, but not the weighted one, by any number of weighted
    standard deviations, and taking that out of the products would cost digits. Where the origin is a whole number the
    rows are moved by a whole number, so that products of whole numbers remain exact. Rows that are to stay about zero are
    not moved.

    Returns
    -------
    mean, rest : float64 arrays, shape (n_features,)
        The weighted mean about `origin`, and what is left of it in the rows.
    """
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _SLAB_ROWS):
        part = slice(start, start + _SLAB_ROWS)
        total += weights[part] @ rows[part]
    mean: FloatArray = total / weights.sum()
    near = np.where(origin == np.rint(origin), np.rint(mean), mean)
    shift = near.astype(rows.dtype) if move else np.zeros(len(mean), dtype=rows.dtype)
    for start in range(0, len(rows), _SLAB_ROWS):
        part = slice(start, start + _SLAB_ROWS)
        rows[part] -= shift
        rows[part] *= np.sqrt(weights[part]).astype(rows.dtype)[:, None]
    return mean, mean - shift


def refuse_overflow(finite: NDArray[np.bool_], start: int, n_rows: int) -> NoReturn:
    """Raise `NotFiniteError` for the first column that is not `finite` when squared in float64."""
    raise NotFiniteError(
        f"column {int(np.flatnonzero(~finite)[0])} overflows float64 when squared (rows {start} to {start + n_rows - 1}): "
        "expected magnitudes below 1e150; rescale this feature first"
    )


def refuse_not_finite(rows: NDArray[Any], start: int, first_column: int = 0) -> None:
    """Raise `NotFiniteError` if `rows`, which begin at (`start`, `first_column`) of the source, hold NaN or infinity."""
    if rows.dtype.kind != "f":
        return
    bad = ~np.isfinite(rows)
    count = int(bad.sum())
    if count:
        row, column = (int(index) for index in np.argwhere(bad)[0])
        found = "NaN" if np.isnan(rows[row, column]) else "infinity"
        raise NotFiniteError(
            f"Input contains {found}: first at row {start + row}, column {first_column + column} ({count} such value(s) in rows {start} to "
            f"{start + len(rows) - 1}; reading stopped there): expected finite numbers; clean or impute these values first"
        )
