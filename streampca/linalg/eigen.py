"""The small eigenproblem on the driver: from an accumulated matrix to its leading eigenpairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError, StreamPCAError
from streampca.linalg.lanczos import leading_eigenpairs
from streampca.linalg.selection import Count, Selection
from streampca.linalg.underflow import refuse_underflow, sums_about_zero

if TYPE_CHECKING:
    from streampca.linalg.tiles import TileGrid

FloatArray = NDArray[np.float64]

_SMALL = 512
_DENSE_LIMIT = 1536  # up to here LAPACK takes less time than the stream behind it
_KRYLOV_SHARE = 10  # beyond, the iterative solver pays while at most one pair in ten is wanted


@dataclass(frozen=True)
class SymmetricOperator:
    """A symmetric matrix D (M + W m mᵀ) D / (W − ddof), kept as its factors: scatter M, mean m, sum of weights W, factors D."""

    grid: TileGrid
    """How `scatter` is stored."""
    scatter: FloatArray
    """The scatter matrix M as flat tiles; shared with the state it came from, so read only."""
    weights: FloatArray
    """Weight of each feature: 1, or 1 / standard deviation and 0 for features that never vary; ``(n_features,)``."""
    offset: FloatArray | None
    """√W times the mean where second moments about zero are wanted, else None; ``(n_features,)``."""
    divisor: float
    """W − ddof, where W is the sum of the weights: the number of rows where none are given."""
    mean: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variance: FloatArray
    """Variance of each feature about its mean, ``(n_features,)``."""
    n_samples: int
    """Number of rows."""
    n_threads: int
    """Threads for products with the matrix."""

    @classmethod
    def of_scatter(
        cls,
        *,
        grid: TileGrid,
        scatter: FloatArray,
        mean: FloatArray,
        n_samples: int,
        weight: float,
        center: bool,
        scale: bool,
        ddof: float,
        n_threads: int,
        diagonal: FloatArray | None = None,
    ) -> SymmetricOperator:
        """Return the matrix for a scatter about `mean`; raise `DataError` if there are too few rows.

        `diagonal` is that of a scatter that is kept elsewhere; None = it is taken from `scatter`.
        """
        if weight <= ddof:
            raise DataError(
                f"n_samples={n_samples} of weight {weight:g} gives no variance with ddof={ddof}: at least {ddof + 1} samples are needed"
                + ("; found 1 sample" if n_samples == 1 else "")
            )
        divisor = weight - ddof
        squares = np.maximum(grid.diagonal(scatter) if diagonal is None else diagonal, 0)
        refuse_underflow(squares if center or scale else sums_about_zero(squares, mean, weight), scale=scale)
        variance = squares / divisor
        deviation = np.sqrt(variance)
        weights = (
            np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
            if scale
            else np.ones_like(deviation)
        )
        offset = None if center else mean * np.sqrt(weight)
        return cls(grid, scatter, weights, offset, divisor, mean, variance, n_samples, n_threads)

    @property
    def n_features(self) -> int:
        """Return the number of features."""
        return len(self.mean)

    @property
    def side(self) -> int:
        """Return the side of the matrix."""
        return len(self.mean)

    @property
    def rank_limit(self) -> int:
        """Return the largest possible number of components."""
        return min(self.n_samples, len(self.mean))

    @property
    def diagonal(self) -> FloatArray:
        """Return the diagonal of the matrix, ``(n_features,)``."""
        with np.errstate(over="ignore"):  # what is infinite is refused by name
            about_zero = 0.0 if self.offset is None else self.offset**2 / self.divisor
            # The root first: the square of a weight may overflow where the product does not.
            diagonal: FloatArray = (np.sqrt(self.variance + about_zero) * self.weights) ** 2
        return diagonal

    def times_scatter(self, vectors: FloatArray) -> FloatArray:
        """Return the scatter matrix M times `vectors`, ``(n_features, n_vectors)``."""
        return self.grid.multiply(self.scatter, vectors, self.n_threads)

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the matrix times `vectors`, ``(n_features, n_vectors)``; the matrix is not formed."""
        weighted = vectors * self.weights[:, None]
        product = self.times_scatter(weighted)
        if self.offset is not None:
            product += self.offset[:, None] * (self.offset @ weighted)
        product *= (self.weights / self.divisor)[:, None]
        return product

    def dense(self) -> FloatArray:
        """Return the matrix as a new array, ``(n_features, n_features)``."""
        matrix = self.grid.dense(self.scatter)
        if np.shares_memory(matrix, self.scatter):
            matrix = matrix.copy()
        if self.offset is not None:
            matrix += np.outer(self.offset, self.offset)
        matrix *= self.weights[:, None]
        matrix *= self.weights / self.divisor
        return matrix


class Symmetric(Protocol):
    """A symmetric matrix as `solve` knows it."""

    @property
    def side(self) -> int:
        """Return the side of the matrix."""
        ...

    @property
    def rank_limit(self) -> int:
        """Return the largest possible number of components."""
        ...

    @property
    def diagonal(self) -> FloatArray:
        """Return the diagonal, ``(side,)``."""
        ...

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the matrix times `vectors`, ``(side, n_vectors)``."""
        ...

    def dense(self) -> FloatArray:
        """Return the matrix as a new array, ``(side, side)``."""
        ...


@dataclass(frozen=True)
class Spectrum:
    """Leading eigenpairs, largest first."""

    values: FloatArray
    """Eigenvalues, not negative, shape ``(k,)``."""
    vectors: FloatArray
    """Orthonormal eigenvectors in rows, the entry of largest modulus positive, shape ``(k, n_features)``."""
    total: float
    """Trace of the matrix: the total variance."""
    residual: float
    """Largest ‖Cv − λv‖₂ over the pairs, relative to the first eigenvalue."""
    numerical_rank: int
    """How many of `values` stand above the rounding of the accumulation."""
    method: str
    """``"lapack"`` or ``"block krylov"``."""


def solve(
    reduced: Symmetric,
    selection: Selection,
    *,
    precision: float,
    seed: int = 0,
    total: float | None = None,
    tolerance: float = 1e-11,
    settle: float = 0.0,
) -> Spectrum:
    """Return the leading eigenpairs that `selection` asks for.

    LAPACK's ``syevr`` for small matrices or many pairs, a restarted block Krylov iteration with full
    reorthogonalisation else (`krylov`): at 8,192 features and 50 pairs an eighth of the time.

    Parameters
    ----------
    reduced : Symmetric
        The matrix; is not changed.
    selection : Count, Share or Threshold
        How many pairs are taken.
    precision : float
        Relative error of the matrix in the spectral norm: eigenvalues below ``precision * values[0]`` are noise, and
        are reported as such by `numerical_rank`.
    seed : int
        Of the starting vectors of the iteration.
    total : float, optional
        Total variance, where it is not the trace.
    tolerance : float
        Residual, relative to the first eigenvalue, at which the iteration stops; products in float32 need more than 1e-11.
    settle : float
        Residual that will do where rounding of the products keeps the iteration from getting there.

    Raises
    ------
    DataError
        If the matrix is zero: no feature varies.
    """
    d, limit = reduced.side, reduced.rank_limit
    total = float(reduced.diagonal.sum()) if total is None else total
    wanted = selection.n_components if isinstance(selection, Count) else min(limit, 64)
    while True:
        k = limit if wanted is None else min(wanted, limit)
        if uses_krylov(d, k):
            values, vectors = leading_eigenpairs(reduced.multiply, d, k, seed=seed, tolerance=tolerance, settle=settle)
            method = "block krylov"
        else:
            k = k if isinstance(selection, Count) else limit
            values, vectors = _lapack(reduced, k)
            method = "lapack"
        values = np.maximum(values, 0)
        chosen = selection.select(values, total, precision)
        if chosen is not None or k == limit:
            break
        wanted = 2 * k
    chosen = len(values) if chosen is None else chosen
    values, vectors = values[:chosen], vectors[:, :chosen]
    residual = _residual(reduced, values, vectors)
    rank = int(np.count_nonzero(values > precision * values[0])) if values[0] > 0 else 0
    return Spectrum(values, signed(vectors), total, residual, rank, method)


def uses_krylov(n_features: int, n_components: int) -> bool:
    """Tell whether so many pairs of a matrix of that side are found by iteration."""
    return n_features > _DENSE_LIMIT and n_components * _KRYLOV_SHARE <= n_features


def eigh_driver(side: int, has_subset: bool) -> Literal["evr", "evd"]:
    """Return the LAPACK driver for `scipy.linalg.eigh`; scipy before 1.14 refuses matrices of side 1 with ``evd``."""
    return "evr" if has_subset or side == 1 else "evd"


def _lapack(reduced: Symmetric, k: int) -> tuple[FloatArray, FloatArray]:
    from scipy.linalg import LinAlgError, eigh

    d = reduced.side
    # Divide and conquer keeps small problems orthogonal to rounding; for some pairs of a large one syevr is faster.
    subset = None if k == d or d <= _SMALL else (d - k, d - 1)
    try:
        values, vectors = eigh(
            reduced.dense().T,
            overwrite_a=True,
            check_finite=False,
            subset_by_index=subset,
            driver=eigh_driver(d, subset is not None),
        )
    except LinAlgError as error:
        raise StreamPCAError(f"LAPACK could not solve the eigenproblem of side {d}: {error}") from error
    return values[::-1][:k].copy(), vectors[:, ::-1][:, :k]


def negative_mass(reduced: Symmetric) -> float:
    """Return the sum of the moduli of negative eigenvalues, which a matrix of pairwise covariances may have."""
    from scipy.linalg import eigvalsh

    values = eigvalsh(reduced.dense().T, overwrite_a=True, check_finite=False)
    return float(np.abs(values[values < 0]).sum())


def _residual(reduced: Symmetric, values: FloatArray, vectors: FloatArray) -> float:
    if values[0] <= 0:
        return 0.0
    worst = 0.0
    for start in range(0, len(values), 64):  # a few vectors at a time: the products need no more memory than that
        part = slice(start, start + 64)
        gap = reduced.multiply(np.ascontiguousarray(vectors[:, part])) - vectors[:, part] * values[part]
        gap /= values[0]  # before the norm: its squares would leave the range of float64 long before the values do
        worst = max(worst, float(np.linalg.norm(gap, axis=0).max()))
    return worst


def signed(vectors: FloatArray) -> FloatArray:
    """Return the eigenvectors as rows, with the entry of largest modulus positive (the first one of several)."""
    rows = np.ascontiguousarray(vectors.T)
    largest = np.abs(rows).argmax(axis=1)
    rows *= np.where(rows[np.arange(len(rows)), largest] < 0, -1.0, 1.0)[:, None]
    return rows


def relative_precision(work: str, n_features: int) -> float:
    """Return the relative error in the spectral norm of a matrix accumulated with products in `work`.

    Measured for float32 products of blocks of up to 8,192 rows: 1e-8 for many features, up to 2.3e-7 for a few, and up
    to 4e-6 where a feature has only a few values that are not whole numbers, because these are rounded alike; below
    1e-15 for float64. The bounds leave room for the eigenvalue solver.
    """
    return 4e-7 if work == "float32" else max(1e-14, 4 * n_features * float(np.finfo(np.float64).eps))
