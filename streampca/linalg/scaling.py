"""Scaling of features: by their standard deviation, by one computed from their mean, or by the root of the variance of their variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
from scipy.sparse import csc_array

from streampca.errors import DataError
from streampca.formatting import plural
from streampca.typing import Array, FloatArray, IntArray

Scale: TypeAlias = bool | str | tuple[int, ...]
"""The parameter `scale`, or in place of ``"block"`` the numbers 0 = e₀ < e₁ < … = n_features of variables, which are the features from
eᵢ to eᵢ₊₁; `scaling_of` says what they mean."""
EXPECTED: Mapping[str, tuple[Callable[[FloatArray], FloatArray], str]] = {
    "poisson": (lambda mean: mean, "counts: expected means above 0"),
    "patterson": (
        lambda mean: mean * (1 - mean / 2),
        "genotypes of diploids (0, 1 or 2 copies): expected means between 0 and 2",
    ),
}
"""Variances that are expected of features with given means, and of what data: Poisson's law; 2 p (1 − p) with the frequency p of an
allele, half the mean (Patterson, Price and Reich 2006). A further law has an entry here."""
_FLOOR = 1e-3
LEAST_SQUARES = 1e-305
"""Sums of squares below this have lost digits to underflow."""
_TRACE = 1e-157
"""A marker whose square, 1e-314, is positive and smaller than any genuine sum of squares, with weights or many panels."""
_SLAB_ROWS = 256
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Scaling:
    """What features are divided by: their standard deviations. A scaling by something else is a subclass, with what differs.

    Truth says whether anything is divided. To add one: a subclass here, an instance of it in `SCALINGS`, and its
    name in `parameters.statement.ScaleName`. Sampling errors ask `change` and `fixes_total`.
    """

    given: Any = True
    """The value of the parameter `scale` that asks for it."""
    of_means: ClassVar[bool] = False
    """Whether divisors follow from the means."""
    fixes_total: ClassVar[bool] = True
    """Whether the variances of the divided features have the same sum whatever the rows."""

    def _deviations(self, variance: FloatArray, mean: FloatArray, first: int = 0) -> FloatArray:
        """Return the standard deviation of each feature, ``(n_features,)``; 0 for constant ones."""
        return np.sqrt(variance)

    def joined(self, deviation: FloatArray) -> FloatArray:
        """Return for each feature the root of the sum of squares over the features that have its divisor."""
        return deviation

    def summed(self, squares: FloatArray) -> FloatArray:
        """Return for each feature the sum over the features that have its divisor."""
        return squares

    def largest(self, squares: FloatArray) -> FloatArray:
        """Return for each feature the largest among the features that keep their sizes relative to it."""
        return squares

    def change(self, ratio: FloatArray) -> FloatArray:
        """Return by how much the square of a divisor changes, relative to it, where its variance (`summed`) becomes `ratio` times as large."""
        return ratio - 1

    def within(self, features: slice) -> Scaling:
        """Return the scaling of a range of the features by themselves."""
        return self

    def divisors(self, variance: FloatArray, mean: FloatArray) -> FloatArray | None:
        """Return what features with these variances and means are divided by, ``(n_features,)``, 1 where that would be 0; None for 1.

        `DataError` if a mean is not one of the data that the scaling is for.
        """
        deviation = self.joined(self._deviations(variance, mean))
        return np.where(deviation > 0, deviation, 1.0)

    def weights(self, variance: FloatArray, mean: FloatArray, first: int = 0) -> FloatArray:
        """Return the factors of the features, ``(n_features,)``: 1 / divisor, and 0 for constant ones.

        `first` is the number of the first feature in messages. `DataError` as `divisors`.
        """
        return np.where(variance > 0, reciprocals(self.joined(self._deviations(variance, mean, first))), 0.0)

    def expected(self, deviation: FloatArray, mean: FloatArray) -> FloatArray:
        """Return the divisors to expect from standard deviations and means of some of the rows: not 0, and finite."""
        floor = _floor(deviation)
        return np.maximum(np.nan_to_num(deviation, nan=floor, posinf=floor), floor)

    def moved(self, mean: FloatArray, variance: FloatArray | float, lost: FloatArray) -> FloatArray:
        """Return a bound of the relative errors of divisors of features that `lost` so much to rounding, root mean squares."""
        with np.errstate(divide="ignore", invalid="ignore"):
            deviation, lost = self.joined(np.sqrt(variance)), self.joined(lost)
            return np.where(lost < deviation, lost / (deviation - lost), np.inf)


@dataclass(frozen=True)
class Unscaled(Scaling):
    """No scaling."""

    given: Any = False
    fixes_total: ClassVar[bool] = False

    def __bool__(self) -> bool:
        """Return that nothing is divided."""
        return False

    def largest(self, squares: FloatArray) -> FloatArray:
        """Return the largest of all features."""
        return np.full_like(squares, np.fmax.reduce(squares)) if len(squares) else squares

    def divisors(self, variance: FloatArray, mean: FloatArray) -> None:
        """Return None."""

    def weights(self, variance: FloatArray, mean: FloatArray, first: int = 0) -> FloatArray:
        """Return 1 for every feature."""
        return np.ones_like(variance)


@dataclass(frozen=True)
class OfVariables(Scaling):
    """Features of a variable are divided by the square root of the sum of their variances."""

    given: Any = "block"
    edges: tuple[int, ...] = ()
    """Those of `Scale`; empty until the table is known."""

    def _over(self, ufunc: np.ufunc, values: FloatArray) -> FloatArray:
        if not self.edges:
            raise RuntimeError("the edges of the variables are asked for before the table is known")
        return np.repeat(ufunc.reduceat(values, self.edges[:-1]), np.diff(self.edges))

    def joined(self, deviation: FloatArray) -> FloatArray:
        """Return the root of the sum of squares of each variable, for each of its features; nothing overflows."""
        peaks = self._over(np.maximum, deviation)
        shares = self._over(np.add, (deviation / np.where(peaks > 0, peaks, 1.0)) ** 2)
        return np.asarray(peaks * np.sqrt(shares))

    def summed(self, squares: FloatArray) -> FloatArray:
        """Return the sum of each variable, for each of its features."""
        return self._over(np.add, squares)

    def largest(self, squares: FloatArray) -> FloatArray:
        """Return the largest of each variable, for each of its features."""
        return self._over(np.fmax, squares)

    def within(self, features: slice) -> OfVariables:
        """Return the scaling with the edges of the variables, and parts of variables, in the range."""
        inside = {features.start, features.stop, *(e for e in self.edges if features.start < e < features.stop)}
        return OfVariables(edges=tuple(edge - features.start for edge in sorted(inside)))

    def expected(self, deviation: FloatArray, mean: FloatArray) -> FloatArray:
        """Return those of variables, whose features count as 0 where they are not known."""
        roots = self.joined(np.nan_to_num(deviation, nan=0.0, posinf=0.0))
        return np.where(roots > 0, roots, _floor(deviation))


@dataclass(frozen=True)
class OfMeans(Scaling):
    """Features are divided by the standard deviation that a law of `EXPECTED` tells of their mean."""

    of_means: ClassVar[bool] = True
    fixes_total: ClassVar[bool] = False

    def change(self, ratio: FloatArray) -> FloatArray:
        """Return zeros: sampling errors take the means as known."""
        return np.zeros_like(ratio)

    def _deviations(self, variance: FloatArray, mean: FloatArray, first: int = 0) -> FloatArray:
        expected, data = EXPECTED[self.given]
        known = np.where(variance > 0, expected(mean), 0.0)
        bad = np.flatnonzero((variance > 0) & ~(known > 0))
        if len(bad):
            raise DataError(
                f"scale={self.given!r} is for {data}; feature {first + bad[0]} has the mean {mean[bad[0]]:.6g}"
            )
        return np.sqrt(known)

    def expected(self, deviation: FloatArray, mean: FloatArray) -> FloatArray:
        """Return those of means, which need not be such as all rows have."""
        known = np.sqrt(np.maximum(EXPECTED[self.given][0](mean), 0.0))
        return super().expected(np.where(deviation > 0, known, 0.0), mean)

    def moved(self, mean: FloatArray, variance: FloatArray | float, lost: FloatArray) -> FloatArray:
        """Return max |√(v(m) / v(m ± e)) − 1| for the law v."""
        law = EXPECTED[self.given][0]
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = [np.abs(np.sqrt(law(mean) / law(mean + sign * lost)) - 1) for sign in (-1, 1)]
            return np.asarray(np.nan_to_num(np.maximum(*ends), nan=np.inf))


UNSCALED = Unscaled()
SCALINGS = {each.given: each for each in (UNSCALED, Scaling(), OfVariables(), *map(OfMeans, EXPECTED))}
"""Every scaling by the value of the parameter `scale`."""


def scaling_of(scale: Scale) -> Scaling:
    """Return the scaling that a value of the parameter `scale` means, or the edges of variables."""
    return OfVariables(edges=scale) if isinstance(scale, tuple) else SCALINGS[scale]


def stored_scale(stored: object, n_features: int) -> Scale:
    """Return the parameter `scale`, or edges, from JSON data; `ValueError` if it is damaged."""
    if isinstance(stored, bool | str) and stored in SCALINGS and stored != "block":
        return stored
    edges = tuple(stored) if isinstance(stored, list) else ()
    whole = all(type(edge) is int for edge in edges) and len(edges) > 1 and edges[0] == 0 and edges[-1] == n_features
    if not whole or any(one >= other for one, other in pairwise(edges)):
        raise ValueError("its variables are damaged")
    return edges


def reciprocals(values: FloatArray) -> FloatArray:
    """Return 1 / x for each x of `values` above 0, and 0 for the others."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


def _floor(deviation: FloatArray) -> float:
    """Return a thousandth of the median deviation, in place of those of features that hardly vary in some of the rows."""
    varying = deviation[np.isfinite(deviation) & (deviation > 0)]
    return _FLOOR * float(np.median(varying)) if len(varying) else 1.0


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
            f"feature {lost[0]} varies by so little that its squares underflow float64 ({plural(len(lost), 'such feature')}): expected "
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
