"""Panels of rows: centring without cancellation, detection of float32 products with too few digits, and missing values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike
from scipy.sparse import csr_array, issparse

from streampca.block import Block
from streampca.errors import DataError, NotFiniteError
from streampca.formatting import plural
from streampca.linalg.scaling import mark_underflow
from streampca.linalg.tiles import TileGrid, spread
from streampca.system.phases import Phase
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, FloatArray, IntArray, SparseRows

_SLAB_BYTES = 1 << 19  # size of rows that fit in the cache between subtraction and sum
_SLAB_ROWS = 256  # also bounds the rounding of float32 column sums
_TRANSPOSED_COLUMNS = 512
_SAMPLE_ROWS = 128
_PANEL_BYTES = 64 * 2**20
_PANEL_ROWS = (256, 8192)
SHIFTED_SLAB_BYTES = 2**20
"""Size of a slab of rows that fits in the cache."""
_MOMENT_SHAPE = (32, 4096)  # rows and columns that are shifted at a time: half a cache, in long runs of memory
_BAND_ROWS, _SHIFTED_ROWS = 2048, 128
MOST_BANDS = 4
"""Maximum number of bands of rows in a panel; each has its own sums, which are added at the end."""
DIRECT_ROWS = 8192
"""Largest number of rows whose products are summed in float32."""
SAFE_SQUARES = (1e-28, 1e37)
"""Sums of squares of float32 columns outside this range have lost digits to underflow, or may overflow."""
_FAR_FACTOR = 1e30
_FEW_FEATURES = 64  # largest number of features for which products are in float64


@dataclass(frozen=True)
class Panel:
    """Centred rows of a block times the square roots of their weights, in a type that keeps the digits of their products.

    Arrays with one number per feature have shape ``(n_features,)``.
    """

    rows: Array
    """The rows, ``(n_rows, n_features)``, usually in scratch memory of this thread, which the next panel overwrites."""
    origin: FloatArray
    """A number near the mean of each feature."""
    mean: FloatArray
    """Weighted mean of each feature minus `origin`."""
    remainder: FloatArray
    """Mean that remains in the rows before multiplication by the square roots of their weights."""
    squares: FloatArray | None
    """Sums of squares of float32 columns, in float64; None if rows are float64."""
    counts: tuple[int, float, float]
    """Number of rows, sum of their weights, and sum of the squared weights."""


Made = TypeVar("Made")


def safe_panels(block: Block, dtype: DType, panel_of: Callable[[Block, DType], Made | None]) -> Iterator[Made]:
    """Yield the panels of `panel_of` for `block` in `dtype`, or in float64 if it returns None because products would lose digits.

    In float64 each half of the rows is a panel, which limits the scratch memory. Without rows, nothing is yielded.
    """
    if not len(block):
        return
    made = panel_of(block, dtype)
    if made is not None:
        yield made
        return
    for half in block.halves():
        if (made := panel_of(half, np.dtype(np.float64))) is not None:
            yield made


def centred_panel(block: Block, dtype: DType, grid: TileGrid | None = None, n_threads: int = 1) -> Panel | None:
    """Return the rows of `block` about their own means (`centre`); None if `dtype` is float32 and their products would lose digits.

    The features of each row of tiles of a `grid` are centred separately, in `n_threads` threads.

    Raises
    ------
    NotFiniteError
        If the rows hold NaN or infinity, or overflow float64 when squared.
    """
    with Phase("centring"):
        rows = borrow("panel", block.values.shape, dtype)
        centred = centre_columns(block.values, rows, grid, n_threads)
        require_finite(centred.finite, block, dtype)
        return weighed_panel(block, rows, centred) if keeps_digits(rows, centred.squares, block.weights) else None


def weighed_panel(block: Block, rows: Array, centred: Centred) -> Panel:
    """Return `rows`, the `centred` rows of `block`, about their weighted mean, times the square roots of their weights."""
    counts, mean, remainder, squares = (
        (len(block), *block.weight_sums()),
        centred.offset,
        centred.offset,
        centred.squares,
    )
    if block.weights is not None and counts[1]:
        mean, remainder = weigh(block.values, rows, block.weights, centred.origin)
        squares = squares_of_columns(rows) if rows.dtype == np.float32 else squares
    return Panel(rows, centred.origin, mean, remainder, squares if rows.dtype == np.float32 else None, counts)


@dataclass(frozen=True)
class Centred:
    """Origin, mean and sums of squares of a panel of centred rows; arrays of shape ``(n_features,)``."""

    origin: FloatArray
    """Number that was subtracted from each feature."""
    offset: FloatArray
    """Mean of the panel minus `origin`."""
    squares: FloatArray
    """Sum of the squares of each centred column."""

    @property
    def finite(self) -> BoolArray:
        """Return whether each column is free of NaN, infinity and overflow, ``(n_features,)``."""
        return np.isfinite(self.offset) & np.isfinite(self.squares)


def step_between(
    origin: FloatArray, offset: FloatArray, other_origin: FloatArray, other_offset: FloatArray
) -> FloatArray:
    """Return the second mean minus the first.

    A mean is stored as a number near it (`origin`) plus a small `offset`. If two means of 1e8 standard deviations are
    rounded to float64, their difference has only half the digits, while the difference of two origins is exact.
    """
    return (other_origin - origin) + (other_offset - offset)


def work_dtype(dtype: DTypeLike) -> DType:
    """Return the floating type for products of values of `dtype`; it represents values of up to 16 bits exactly.

    float32 for bool, 8-bit integers, float16 and float32; float64 for all others. Integers beyond 2**53 are rounded.
    """
    dtype = np.dtype(dtype)
    narrow = (
        dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize == 1) or (dtype.kind == "f" and dtype.itemsize <= 4)
    )
    return np.dtype(np.float32 if narrow else np.float64)


def product_dtype(dtype: DTypeLike, n_features: int, factors: FloatArray | None = None) -> DType:
    """Return the floating type for products of rows of `dtype` with each other, or with a test matrix.

    Like `work_dtype`, but float64 for up to 64 features, and if `factors` of the test matrix leave the range of float32.
    Float32 products of rows with only a few distinct values are rounded in the same direction in every sum, which does
    not average out (up to 4e-5 of the first eigenvalue of a sketch, 2.4e-6 of a covariance). Such rows usually have few
    features, and then products in float64 cost little compared with reading the rows.
    """
    if factors is not None and (factors.max(initial=0.0) > _FAR_FACTOR or 0 < factors.max() < 1 / _FAR_FACTOR):
        return np.dtype(np.float64)
    return np.dtype(np.float64) if n_features <= _FEW_FEATURES else work_dtype(dtype)


def bands_of(n_rows: int, least_rows: int = _BAND_ROWS) -> list[slice]:
    """Return at most four bands of a panel of `n_rows` rows, each with at least `least_rows`; they do not depend on the number of threads."""
    n_bands = max(1, min(MOST_BANDS, n_rows // least_rows))
    return [slice(n_rows * i // n_bands, n_rows * (i + 1) // n_bands) for i in range(n_bands)]


def centre(rows: Array, out: Array, n_threads: int = 1) -> Centred:
    """Write ``rows - c`` to `out` and return c, the mean that remains, and the sums of squares.

    The centre c is the mean of 128 rows sampled evenly from `rows`, so one sweep suffices. The remaining mean is about a
    tenth of a standard deviation. It can be subtracted from sums of squares without cancellation for any mean of the
    data (Chan, Golub & LeVeque 1983, section 3: shift before summing). A constant column becomes exact zeros.

    Parameters
    ----------
    rows : array, shape (n_rows, n_features)
        At least one row; any real type.
    out : float32 or float64 array of the same shape
    n_threads : int
        Number of threads that share the bands of rows; it does not affect the bits.

    Returns
    -------
    Centred
    """
    n_rows, n_features = rows.shape
    sample = rows[:: -(-n_rows // _SAMPLE_ROWS)]
    with np.errstate(over="ignore", invalid="ignore"):
        middle = sample.mean(axis=0, dtype=np.float64)
        middle = np.where((sample == sample[0]).all(axis=0), sample[0], middle)
        # Whole numbers minus a whole number have exact products. Otherwise the few distinct products of a short type are
        # rounded the same way in every sum, which does not average out (uint8: 2e-6 of the matrix instead of 1e-8).
        whole = rows.dtype.kind != "f" or (sample == np.rint(sample)).all(axis=0)
        middle = np.where(whole, np.rint(middle), middle).astype(out.dtype)
        step = max(16, min(_SLAB_ROWS, _SLAB_BYTES // max(1, n_features * out.itemsize)))
        ones, bands = np.ones(min(step, n_rows), dtype=out.dtype), bands_of(n_rows)
        sums, of_squares = np.zeros((len(bands), n_features)), np.zeros((len(bands), n_features))

        def shift(index: int) -> None:
            for start in range(bands[index].start, bands[index].stop, step):
                slab = out[start : min(start + step, bands[index].stop)]
                subtract(rows[start : start + len(slab)], middle, slab)
                sums[index] += ones[: len(slab)] @ slab
                of_squares[index] += squares_of_columns(slab)

        if len(bands) == 1:  # nothing to share, and small blocks may be many
            shift(0)
        else:
            spread(np.errstate(over="ignore", invalid="ignore")(shift), range(len(bands)), n_threads)
        offset, squares = sums[0], of_squares[0]
        for more, more_squares in zip(sums[1:], of_squares[1:], strict=True):
            offset, squares = offset + more, squares + more_squares
    offset /= n_rows
    mark_underflow(out, squares)
    return Centred(middle.astype(np.float64), offset, squares)


def subtract(rows: Array, origin: Array, out: Array) -> None:
    """Write ``rows - origin`` to `out`, in pieces that stay in the cache if the columns of `rows` are contiguous."""
    if rows.strides[0] >= rows.strides[1]:
        np.subtract(rows, origin, out=out)
        return
    for first in range(0, rows.shape[1], _TRANSPOSED_COLUMNS):
        columns = slice(first, first + _TRANSPOSED_COLUMNS)
        np.subtract(rows[:, columns], origin[columns], out=out[:, columns])


def centre_columns(rows: Array, out: Array, grid: TileGrid | None, n_threads: int) -> Centred:
    """Centre like `centre`, in `n_threads` threads and one row of tiles of `grid` at a time if there are several."""
    if grid is None or len(grid.edges) == 2:
        return centre(rows, out, n_threads)
    origin, offset, squares = (np.empty(rows.shape[1]) for _ in range(3))

    def work(i: int) -> None:
        some = grid.features(i)
        part = centre(rows[:, some], out[:, some])
        origin[some], offset[some], squares[some] = part.origin, part.offset, part.squares

    spread(work, range(len(grid.edges) - 1), n_threads)
    return Centred(origin, offset, squares)


def squares_of_columns(rows: Array) -> FloatArray:
    """Return the sum of squares of each column, in float64.

    Float32 sums of even a few equal squares are all rounded in one direction (16 of them: 9e-7). So are float32 products
    of a few rows, and a comparison of the two would find no difference.
    """
    if rows.dtype == np.float64:
        return np.asarray(np.einsum("ij,ij->j", rows, rows))
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _SLAB_ROWS):
        slab = rows[start : start + _SLAB_ROWS]
        step = max(1, 2 * _SLAB_BYTES // (8 * len(slab)))
        for first in range(0, rows.shape[1], step):
            # Converted once, whereas einsum would convert each of the two factors.
            some = slab[:, first : first + step]
            wide = borrow("squares", some.shape, np.float64)
            np.copyto(wide, some)
            total[first : first + step] += np.einsum("ij,ij->j", wide, wide)
    return total


def weigh(
    values: Array | None, rows: Array, weights: FloatArray, origin: FloatArray, *, move: bool = True
) -> tuple[FloatArray, FloatArray]:
    """Centre rows about their weighted mean and multiply them by the square roots of their weights, in place.

    An outlier of small weight moves the plain mean, but not the weighted mean, by any number of weighted standard
    deviations. Correcting the products for that would lose digits, and so would a second rounding of float32 rows, which
    are therefore computed again from `values`. If the origin is a whole number, the rows are shifted by a whole number,
    so products of whole numbers remain exact. With ``move=False`` the rows are only multiplied.

    Parameters
    ----------
    values : array, shape (n_rows, n_features), or None
        Rows of the source; None if `rows` has overwritten them, and float32 rows are then rounded twice.
    rows : float32 or float64 array of the same shape
        ``values - origin``; changed.
    weights : array, shape (n_rows,)
    origin : array, shape (n_features,)
        Numbers that the type of `rows` represents exactly.

    Returns
    -------
    mean, remainder : float64 arrays, shape (n_features,)
        The weighted mean minus `origin`, and the weighted mean that remains in the rows.
    """
    slabs = [slice(start, start + _SLAB_ROWS) for start in range(0, len(rows), _SLAB_ROWS)]
    total = weights.sum()
    mean: FloatArray = sum((weights[slab] @ rows[slab] for slab in slabs), np.zeros(rows.shape[1])) / total
    near = np.where(origin == np.rint(origin), np.rint(mean), mean) if move else np.zeros_like(mean)
    roots = np.sqrt(weights).astype(rows.dtype)[:, None]
    if not move:
        for slab in slabs:
            rows[slab] *= roots[slab]
        return mean, mean
    if values is None or rows.dtype == np.float64:
        # The plain mean may be so far away that its rounding is that of many digits of the weighted mean: what remains is summed again.
        shift, remainder = near.astype(rows.dtype), np.zeros_like(mean)
        for slab in slabs:
            rows[slab] -= shift
            remainder += weights[slab] @ rows[slab] / total
            rows[slab] *= roots[slab]
        return shift + remainder, remainder
    moved, remainder = (origin + near).astype(rows.dtype), np.zeros_like(mean)
    for slab in slabs:
        np.subtract(values[slab], moved, out=rows[slab])
        remainder += weights[slab] @ rows[slab] / total
        rows[slab] *= roots[slab]
    return moved - origin + remainder, remainder


def require_finite(finite: BoolArray, block: Block, dtype: DTypeLike = np.float64, *, missing: bool = False) -> None:
    """Raise `NotFiniteError` for infinity, for NaN that is not `missing`, and for overflow in float64, unless all columns are `finite`."""
    if finite.all():
        return
    refuse_not_finite(block.values, block.start, missing=missing)
    if dtype == np.float64:
        raise NotFiniteError(
            f"column {int(np.flatnonzero(~finite)[0])} overflows float64 when squared (rows {block.start} to "
            f"{block.start + len(block) - 1}): expected magnitudes below 1e150; rescale this feature first"
        )


def refuse_not_finite(rows: Array | SparseRows, start: int, first_column: int = 0, *, missing: bool = False) -> None:
    """Raise `NotFiniteError` if `rows`, with first entry (`start`, `first_column`) of the source, hold infinity, or NaN unless it is `missing`.

    Only stored values of sparse rows are examined.
    """
    sparse = issparse(rows)
    stored: Any = csr_array(rows) if sparse else rows
    values: Array = stored.data if sparse else stored
    if values.dtype.kind != "f":
        return
    bad = np.isinf(values) if missing else ~np.isfinite(values)
    count = int(bad.sum())
    if not count:
        return
    place = tuple(int(index) for index in np.argwhere(bad)[0])
    value = "NaN" if np.isnan(values[place]) else "infinity"
    if sparse:
        row, column = int(np.searchsorted(stored.indptr, place[0], "right")) - 1, int(stored.indices[place])
    else:
        row, column = place
    advice = "expected finite numbers; clean these values first"
    if missing:
        advice = "only NaN counts as missing; clean these values first"
    elif not sparse:
        advice = "expected finite numbers; clean or impute these values first"
        if value == "NaN":
            advice += (
                "; missing='mean' or 'drop_rows' (preprocess.missing) takes them in PCA without remove; sp.open(…, mask='observed') (source.mask) leaves out "
                "features that are never observed, such as land"
            )
    raise NotFiniteError(
        f"Input contains {value}: first at row {start + row}, column {first_column + column} ({plural(int(count), 'such value')} in rows {start} to "
        f"{start + stored.shape[0] - 1}; reading stopped there): {advice}"
    )


WIDE_ROWS = 128
"""Number of rows converted to float64 at a time."""
# Sums of squares of float32 columns outside this range have lost digits to underflow, or may overflow.
_SAFE_SQUARES = (1e-28, 1e37)
_SAFE_WEIGHTS = (1e-6, 1e6)
# Largest difference between an entry of a diagonal and a sum of squares, relative to the squares about the mean: standard
# deviations have an error of 4e-7 then.
_MOST_ROUNDING = 7e-7
_MOST_TOGETHER = (
    1e-7  # of their sums: rounding of continuous values averages out over features, that of few values does not
)
_MOST_LOSSY = 8  # where more than one feature in so many is lossy, the product is repeated as a whole
_NARROW_ROWS = 16  # rows of a panel of features that fit in the cache


def may_be_overwritten(block: Block) -> bool:
    """Return whether rows are float32 in restorable memory and, by a sample, have float32 products."""
    values = block.values
    if block.read_again is None or block.weights is not None or values.dtype != np.float32 or not len(block):
        return False
    sample = values[:: -(-len(values) // _SAMPLE_ROWS)].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = len(values) * sample.var(axis=0)
    low, high = _SAFE_SQUARES
    return values.flags.c_contiguous and bool(((squares == 0) | ((squares > low) & (squares < high))).all())


def within_float32(squares: FloatArray, rows: Array) -> bool:
    """Return whether products of the centred `rows` lose no digits in float32."""
    low, high = _SAFE_SQUARES
    if not (squares < high).all() or ((squares > 0) & (squares < low)).any():
        return False
    zero = squares == 0
    return not (zero.any() and any(rows[i : i + 256, zero].any() for i in range(0, len(rows), 256)))


def keeps_digits(rows: Array, squares: FloatArray | None, weights: FloatArray | None) -> bool:
    """Return whether products of the centred `rows`, times the `weights`, lose no digits in their type.

    `squares` are the sums of squares of their columns, or None if unknown.
    """
    if rows.dtype == np.float64:
        return True
    return (squares is None or within_float32(squares, rows)) and (weights is None or weights_within_float32(weights))


def weights_within_float32(weights: FloatArray) -> bool:
    """Return whether rows times √`weights` lose no digits in float32; small weights may underflow."""
    low, high = _SAFE_WEIGHTS
    return bool(low <= weights.max() <= high)


def lossy_features(diagonal: Array, squares: FloatArray, about_mean: FloatArray | None = None) -> BoolArray:
    """Return which features lost digits in a float32 product, by its diagonal and the more accurate `squares`, ``(n_features,)``.

    These are all features if the sum of the others is also rounded in one direction, or if they are more than an eighth:
    their rows and columns of the product would exceed the scratch memory of a tile. If rows are not centred, `about_mean` are the sums of squares about the mean: later subtraction
    leaves the rounding.
    """
    difference, of = diagonal - squares, squares if about_mean is None else about_mean
    lossy: BoolArray = np.abs(difference) > _MOST_ROUNDING * of
    together = abs(float(difference[~lossy].sum())) > _MOST_TOGETHER * float(of[~lossy].sum())
    if together or _MOST_LOSSY * np.count_nonzero(lossy) > len(lossy):
        lossy[:] = True
    return lossy


def squares_of_rows(rows: Array) -> FloatArray:
    """Return the sum of squares of each row, in float64."""
    total = np.empty(len(rows))
    for start in range(0, len(rows), _NARROW_ROWS):
        some = rows[start : start + _NARROW_ROWS]
        wide = borrow("squares", some.shape, np.float64)
        np.copyto(wide, some)
        np.vecdot(wide, wide, out=total[start : start + _NARROW_ROWS])
    return total


def add_product_in_float64(tile: FloatArray, one: Array, other: Array, lossy: tuple[BoolArray, BoolArray]) -> None:
    """Add those entries of oneᵀ other to `tile` whose row or column is `lossy`, with float64 products of 128 rows at a time."""
    rows, columns = (np.flatnonzero(mask) for mask in lossy)
    whole = len(rows) == len(tile) or len(columns) == tile.shape[1]
    if whole:
        product = borrow("product", tile.shape, np.dtype(np.float64))
    else:
        of_rows, of_columns = np.zeros((len(rows), tile.shape[1])), np.zeros((len(tile), len(columns)))
    for start in range(0, len(one), WIDE_ROWS):
        left = one[start : start + WIDE_ROWS].astype(np.float64)
        right = other[start : start + WIDE_ROWS].astype(np.float64)
        if whole:
            tile += np.matmul(left.T, right, out=product)
        else:
            of_rows += left[:, rows].T @ right
            of_columns += left.T @ right[:, columns]
    if not whole:
        of_columns[rows] = 0
        tile[rows] += of_rows
        tile[:, columns] += of_columns


def incomplete(rows: Array) -> BoolArray:
    """Return whether each row holds NaN, ``(n_rows,)``."""
    result = np.zeros(len(rows), dtype=bool)
    if rows.dtype.kind == "f":
        for start in range(0, len(rows), _SLAB_ROWS):
            slab = slice(start, start + _SLAB_ROWS)
            np.isnan(rows[slab]).any(axis=1, out=result[slab])
    return result


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
    """Raise `DataError` unless every feature is `observed` in at least one row."""
    never = np.flatnonzero(~observed)
    if len(never):
        first = ", ".join(f"feature {column}" for column in never[:5])
        raise DataError(
            f"no values observed for {plural(len(never), 'feature')}, first: {first}: leave them out, as sp.open(…, mask='survey') does"
        )


def left_out(missing: str, rows: Array, start: int, scores: Array) -> bool:
    """Return whether all `scores` that are not finite belong to rows with NaN that `missing` excludes.

    Raises `NotFiniteError` if NaN is allowed and `rows`, with first row `start` of the source, hold infinity.
    """
    if missing == "error" or rows.dtype.kind != "f" or not isinstance(rows, np.ndarray):
        return False
    refuse_not_finite(rows, start, missing=True)
    return missing == "drop_rows" and bool(np.isfinite(scores[~incomplete(rows)]).all())


def sketch_panel_rows(n_features: int, dtype: DType) -> int:
    """Return the number of rows of a panel."""
    low, high = _PANEL_ROWS
    return max(low, min(high, _PANEL_BYTES // max(1, n_features * dtype.itemsize)))


def sampled_origin(rows: Array, dtype: DType) -> FloatArray:
    """Return a number near the mean of each feature, exact in `dtype`, from a sample of `rows`; NaN is ignored.

    If the sample is constant, it is that value, so a constant feature is shifted to exact zeros. If the sample has only
    whole numbers, it is a whole number.
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
    values: Array, origin: Array, out: Array, missing: BoolArray | None, moments: bool, n_threads: int
) -> tuple[FloatArray, FloatArray]:
    """Write ``values - origin`` to `out`, 0 where `missing`; return the sums of columns and of their squares, or zeros.

    Threads share bands of rows; their number does not affect the bits.
    """
    n_features, bands = values.shape[1], bands_of(len(values), _SHIFTED_ROWS)
    sums, squares = np.zeros((len(bands), n_features)), np.zeros((len(bands), n_features))
    step = max(16, min(_SLAB_ROWS, SHIFTED_SLAB_BYTES // max(1, n_features * out.itemsize)))
    ones = np.ones(step, dtype=out.dtype)

    @np.errstate(over="ignore", invalid="ignore")
    def shift(index: int) -> None:
        for start in range(bands[index].start, bands[index].stop, step):
            rows = slice(start, min(start + step, bands[index].stop))
            slab = out[rows]
            np.subtract(values[rows], origin, out=slab, casting="same_kind")
            if missing is not None:
                slab[missing[rows]] = 0
            if moments:
                sums[index] += ones[: len(slab)] @ slab
                squares[index] += np.einsum("ij,ij->j", slab, slab)

    spread(shift, range(len(bands)), n_threads)
    with np.errstate(over="ignore", invalid="ignore"):
        return sums.sum(axis=0), squares.sum(axis=0)


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
    """Return the total weight of the rows in which each column is observed."""
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
