"""What LAPACK says of the same rows: means and deviations in long double, a decomposition in float64, nothing of streampca.

All variances are in units of `Truth.unit`, a power of two near the largest one, so that no square leaves the range of float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Long = NDArray[np.longdouble]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """The principal components of some rows."""

    mean: Long
    """Mean of the observed values of each feature, weighted; ``(d,)``."""
    variance: Long
    """Variance of each feature about its mean, with the divisor of the fit; ``(d,)``."""
    exponent: int
    """Variances are in units of 4 ** exponent."""
    values: FloatArray
    """All d eigenvalues in that unit, largest first, zeros where there are fewer rows; ``(d,)``."""
    matrix: FloatArray
    """The matrix that is decomposed, in that unit; ``(d, d)``."""
    vectors: FloatArray
    """Its eigenvectors in rows; ``(d, d)``."""
    n_rows: int
    """Rows of positive weight that count."""
    weight: float
    """Sum of their weights."""
    clipped: float
    """Sum of the moduli of negative eigenvalues, which a matrix of pairs can have, in that unit."""
    residuals: Long | None = None
    """Rows without what regression explains, of all rows, where something is removed; ``(n, d)``."""
    lost: float = 0.0
    """Rounding of eigenvalues relative to the first that subtracting of what is removed costs."""

    @property
    def total(self) -> float:
        """Return the sum of all eigenvalues that are not clipped, in the unit."""
        return float(self.values.sum())

    def in_unit(self, variances: Any) -> FloatArray:
        """Return variances of a fit in the unit."""
        return np.asarray(np.ldexp(np.asarray(variances, dtype=np.longdouble), -2 * self.exponent), dtype=np.float64)

    def resolution(self) -> float:
        """Return the smallest step between float64 numbers in the unit."""
        return float(np.ldexp(np.longdouble(np.finfo(np.float64).smallest_subnormal), -2 * self.exponent))


def truth_of(
    rows: NDArray[Any],
    *,
    center: bool = True,
    scale: bool = False,
    ddof: int = 1,
    missing: str = "error",
    sample_weight: FloatArray | None = None,
    feature_weight: FloatArray | None = None,
    remove: dict[str, Any] | None = None,
) -> Truth | None:
    """Return the components of `rows`, ``(n, d)``, or None where no variance is defined."""
    if remove is not None:
        return _of_residuals(rows, remove, scale, ddof, sample_weight, feature_weight)
    weight = np.ones(len(rows)) if sample_weight is None else sample_weight
    taken = weight > 0
    values, weight = rows[taken].astype(np.longdouble), weight[taken].astype(np.longdouble)
    if missing == "drop_rows":
        whole = ~np.isnan(values).any(axis=1)
        values, weight = values[whole], weight[whole]
    observed = ~np.isnan(values)
    if len(values) == 0 or not observed.any(axis=0).all() or not weight.sum() - ddof > 0:
        return None
    mean, centred = _centred(values, weight, observed)
    if missing == "pairwise":
        return _of_pairs(centred, weight, observed, mean, center, scale, ddof, feature_weight)
    divisor = weight.sum() - ddof
    variance = (weight[:, None] * centred**2).sum(axis=0) / divisor
    if not center:
        # A mean that is imputed about zero is the mean, not zero.
        centred = centred + mean
    deviation = np.sqrt(variance)
    factor = _factor(deviation, scale, feature_weight)
    shaped = np.sqrt(weight / divisor)[:, None] * centred * factor
    exponent = _exponent(np.abs(shaped).max(initial=0.0))
    small = np.ldexp(shaped, -exponent).astype(np.float64)
    singular, vectors = _svd(small)
    return Truth(mean, variance, exponent, singular**2, small.T @ small, vectors, len(values), float(weight.sum()), 0.0)


def _of_residuals(
    rows: NDArray[Any],
    remove: dict[str, Any],
    scale: bool,
    ddof: int,
    sample_weight: FloatArray | None,
    feature_weight: FloatArray | None,
) -> Truth | None:
    """Return the components of the residuals of `rows` about their regression on the columns of `remove`."""
    weight = np.ones(len(rows)) if sample_weight is None else sample_weight
    if not weight.sum() - ddof > 0 or not np.isfinite(rows[weight > 0].astype(np.longdouble)).all():
        return None
    mean = (weight[:, None] * rows.astype(np.longdouble)).sum(axis=0, where=weight[:, None] > 0) / weight.sum()
    left = residuals_of(rows, remove, weight)
    centred = truth_of(left, scale=scale, ddof=ddof, sample_weight=weight, feature_weight=feature_weight)
    if centred is None:
        return None
    # What is left of a feature that the columns explain is rounding, which counts as constant.
    eps = float(np.finfo(np.float64).eps)
    size = np.abs(rows - mean)[weight > 0].max(axis=0)
    constant = np.sqrt(centred.variance) <= 32 * eps * size
    if (constant & (centred.variance > 0)).any():
        left[:, constant] = 0
        centred = truth_of(left, scale=scale, ddof=ddof, sample_weight=weight, feature_weight=feature_weight)
        assert centred is not None
    factor = _factor(np.sqrt(centred.variance), scale, feature_weight)
    first = np.ldexp(np.sqrt(np.longdouble(centred.values[0])), centred.exponent)
    lost = float(np.sqrt(((size * factor / first) ** 2).sum())) if first > 0 else 0.0
    return replace(centred, mean=mean, residuals=left, lost=16 * eps * lost)


def residuals_of(rows: NDArray[Any], remove: dict[str, Any], weight: FloatArray) -> Long:
    """Return `rows` minus their weighted least-squares fit on an intercept and the columns of `remove`; ``(n, d)``."""
    basis, counted = _basis_of(len(rows), remove, weight), weight > 0
    left = rows.astype(np.longdouble)
    left = left - left[counted][0]  # which the intercept explains, and whose digits the residuals need
    for _ in range(4):  # each pass leaves the rounding of the basis times the one before
        left = left - basis @ ((weight[:, None] * basis)[counted].T @ left[counted])
    return left


def reach_of(remove: dict[str, Any], weight: FloatArray) -> FloatArray:
    """Return by how much the rounding of a regression is magnified in each row, at least the number of regressors; ``(n,)``.

    The fit of row i is Σⱼ wⱼ (bᵢ · bⱼ) xⱼ with the orthonormal regressors b, so that errors ε max |x| of the rows make one of
    Σⱼ wⱼ |bᵢ · bⱼ| times that: the condition of the problem. It is a sum of as many products as there are regressors.
    """
    basis = _basis_of(len(weight), remove, weight).astype(np.float64)
    reach = np.array([weight @ np.abs(basis @ row) for row in basis])
    return np.asarray(basis.shape[1] * np.maximum(reach, 1.0))


def _basis_of(n: int, remove: dict[str, Any], weight: FloatArray) -> Long:
    """Return an intercept and the columns of `remove`, orthonormal with these weights; ``(n, q)``."""
    columns = [np.ones(n)]
    if "groups" in remove:
        columns += list((remove["groups"][:, None] == np.unique(remove["groups"])).T.astype(np.float64))
    if "trend" in remove:
        at = np.linspace(-1, 1, n) if n > 1 else np.zeros(n)
        columns += list(np.polynomial.legendre.legvander(at, remove["trend"]).T)
    if "covariates" in remove:
        sizes = np.abs(remove["covariates"]).max(axis=0)
        columns += list((remove["covariates"] / np.where(sizes > 0, sizes, 1)).T)
    design, root = np.stack(columns, axis=1), np.sqrt(weight)
    design = design - np.where(np.arange(design.shape[1]) > 0, weight @ design / weight.sum(), 0)
    _, singular, vectors = np.linalg.svd(root[:, None] * design, full_matrices=False)
    kept = singular > 1e-10 * singular[0]
    return np.asarray(design.astype(np.longdouble) @ (vectors[kept].T / singular[kept]))


def _centred(values: Long, weight: Long, observed: NDArray[np.bool_]) -> tuple[Long, Long]:
    """Return means of the observed values, and values minus them, zero where nothing was observed."""
    first = np.array([column[seen][0] for column, seen in zip(values.T, observed.T, strict=True)])
    rest = np.where(observed, values - first, 0)
    known = (weight[:, None] * observed).sum(axis=0)
    for _ in range(2):
        step = (weight[:, None] * rest).sum(axis=0) / known
        first, rest = first + step, np.where(observed, rest - step, 0)
    return first, rest


def _factor(deviation: Long, scale: bool, feature_weight: FloatArray | None) -> Long:
    factor = np.ones(len(deviation), dtype=np.longdouble)
    if scale:
        factor = np.divide(factor, deviation, out=np.zeros_like(factor), where=deviation > 0)
    return factor if feature_weight is None else factor * np.sqrt(feature_weight.astype(np.longdouble))


def _exponent(size: Any) -> int:
    return int(np.frexp(size)[1]) if size > 0 else 0


def _svd(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    d = rows.shape[1]
    singular, vectors = np.linalg.svd(rows, full_matrices=True)[1:]
    return np.concatenate([singular, np.zeros(d - len(singular))]), vectors


def _of_pairs(
    centred: Long,
    weight: Long,
    observed: NDArray[np.bool_],
    mean: Long,
    center: bool,
    scale: bool,
    ddof: int,
    feature_weight: FloatArray | None,
) -> Truth | None:
    """Return the components of the matrix of covariances over the rows in which both features were observed."""
    seen = observed.astype(np.longdouble) * np.sqrt(weight)[:, None]
    both = seen.T @ seen
    if ((both - ddof) <= 0).any():
        return None
    own = np.diagonal(both)
    variance = (weight[:, None] * centred**2).sum(axis=0) / (own - ddof)
    factor = _factor(np.sqrt(variance), scale, feature_weight)
    values = np.where(observed, centred + (0 if center else mean), 0) * np.sqrt(weight)[:, None]
    exponent = _exponent(np.abs(values * factor).max(initial=0.0))
    values = np.ldexp(values * factor, -exponent)
    products = values.T @ values
    if center:
        sums = (values * np.sqrt(weight)[:, None]).T @ observed.astype(np.longdouble)  # of i where j was observed
        products = products - sums * sums.T / both
    matrix = (products / (both - ddof)).astype(np.float64)
    found, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    clipped = float(-found[found < 0].sum())
    found = np.maximum(found[::-1], 0.0)
    return Truth(mean, variance, exponent, found, matrix, vectors.T[::-1], len(values), float(weight.sum()), clipped)
