"""Leading eigenpairs of an accumulated matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from streampca.errors import DataError, StreamPCAError
from streampca.linalg import tall_skinny as tall
from streampca.linalg.scaling import Scaling, refuse_underflow, sums_about_zero
from streampca.linalg.selection import Count, Frobenius, Rule, Selection
from streampca.linalg.tiles import spread
from streampca.random import generator
from streampca.system.device import HOST, SHARE, device_of
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from streampca.linalg.tiles import TileGrid


_TOLERANCE = 1e-11  # residual of every wanted pair, relative to the first eigenvalue
_MAX_PRODUCTS = 400
_MAX_STAGNANT = 8
_SLAB_ROWS = 512  # few enough that 16 threads share 8,192 rows
_INDEPENDENT = (1e-5, 0.5)
"""Least distance of a column from those before it, relative to its length, for Cholesky QR in the first and in the second turn.

The first one leaves products of up to 1e-16 / 1e-5² between unit columns, which the second removes."""
_SMALL = 512
DENSE_LIMIT = 1536
"""Largest side for which LAPACK takes less time than the pass over the data."""
_KRYLOV_SHARE = 10  # larger matrices are solved by iteration if at most one pair in ten is requested
_SAFE = (1e-140, 1e70)
"""Largest entries of matrices that LAPACK reduces without scaling, with a margin."""


def block_size(n_wanted: int) -> int:
    """Return the number of vectors of one matrix product."""
    return max(16, min(64, n_wanted))


def basis_size(n_features: int, n_wanted: int) -> int:
    """Return the largest number of basis vectors in memory; their products with the matrix take as much again."""
    block = block_size(n_wanted)
    return min(n_features, 2 * n_wanted + 8 * block)


def leading_eigenpairs(
    multiply: Callable[[FloatArray], FloatArray],
    n_features: int,
    n_wanted: int,
    *,
    seed: int = 0,
    tolerance: float = _TOLERANCE,
    stagnation_tolerance: float = 0.0,
    n_threads: int = 1,
) -> tuple[FloatArray, FloatArray]:
    """Return the `n_wanted` largest eigenvalues and their eigenvectors, shapes ``(k,)`` and ``(n_features, k)``.

    Block Lanczos with full reorthogonalisation and thick restart (Wu & Simon 2000, with blocks): a basis grows by one
    block of matrix products at a time; when it is full, the best Ritz vectors and the last block start the next one.
    The iteration stops when ‖Cv − θv‖ ≤ `tolerance` θ₁ for every wanted pair; 1e-11 suits products in float64. Products
    of lower accuracy may not reach it: after eight products that do not halve the largest residual, the iteration also
    stops at ‖Cv − θv‖ ≤ `stagnation_tolerance` θ₁. `StreamPCAError` if neither is reached after 400 products.

    The bits do not depend on `n_threads`, which share the work on the basis.
    """
    block, limit = block_size(n_wanted), basis_size(n_features, n_wanted)
    basis = np.empty((n_features, limit), order="F")
    image = np.empty((n_features, limit), order="F")
    products = np.empty((limit, limit))  # basisᵀ image; every iteration adds the columns of one block
    start = generator(seed, "krylov").standard_normal((n_features, block))
    fresh, _, _ = _orthonormal(start, basis[:, :0], n_threads)
    size, best, n_since = 0, np.inf, 0
    for _ in range(_MAX_PRODUCTS):
        width = min(fresh.shape[1], limit - size)
        new = slice(size, size + width)
        basis[:, new] = fresh[:, :width]
        image[:, new] = multiply(np.ascontiguousarray(fresh[:, :width]))
        size += width
        fresh, within, beyond = _orthonormal(image[:, new], basis[:, :size], n_threads)
        products[:size, new] = within
        products[new, : size - width] = within[: size - width].T
        if size < n_wanted:
            continue
        projected = products[:size, :size]
        values, small = np.linalg.eigh((projected + projected.T) / 2)
        values, small = values[::-1], small[:, ::-1]
        first = max(values[0], np.finfo(float).tiny)
        # All products but the last lie in the basis, so that the residuals are known before the Ritz vectors, up to rounding.
        largest = float(np.linalg.norm(beyond @ small[new, :n_wanted] / first, axis=0).max())
        if largest <= max(tolerance, stagnation_tolerance) or size == n_features:
            top = small[:, :n_wanted]
            ritz, largest = _ritz_vectors(basis[:, :size], image[:, :size], values[:n_wanted], top, first, n_threads)
        best, n_since = (largest, 0) if largest < best / 2 else (best, n_since + 1)
        if largest <= tolerance or size == n_features or (n_since >= _MAX_STAGNANT and largest <= stagnation_tolerance):
            return values[:n_wanted].copy(), ritz
        if size + block > limit and limit < n_features:
            n_kept = min(n_wanted + block, size - block)
            for columns in (basis, image):
                tall.times(columns[:, :size], small[:, :n_kept], n_threads, columns[:, :n_kept], _SLAB_ROWS)
            products[:n_kept, :n_kept] = np.diag(values[:n_kept])
            size = n_kept
    raise StreamPCAError(
        f"the iteration for {n_wanted} eigenpairs of a matrix of side {n_features} did not reach a residual of {tolerance:g} "
        f"after {_MAX_PRODUCTS} products: expected a spectrum with fewer nearly equal values; ask for fewer components"
    )


def _ritz_vectors(
    basis: FloatArray, image: FloatArray, values: FloatArray, top: FloatArray, first: float, n_threads: int
) -> tuple[FloatArray, float]:
    """Return the Ritz vectors ``basis @ top`` and the largest of their residuals, relative to `first`."""
    slabs = tall.slabs(len(basis), _SLAB_ROWS)
    ritz, squares = np.empty((len(basis), len(values)), order="F"), np.empty((len(slabs), len(values)))

    def work(i: int) -> None:
        rows = slabs[i]
        ritz[rows] = basis[rows] @ top
        squares[i] = np.square((image[rows] @ top - ritz[rows] * values) / first).sum(axis=0)

    spread(work, range(len(slabs)), n_threads)
    return ritz, float(np.sqrt(squares.sum(axis=0).max()))


def _orthonormal(vectors: FloatArray, basis: FloatArray, n_threads: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return Q, C and R with `vectors` = `basis` C + Q R, where the columns of Q are orthonormal and orthogonal to `basis`.

    Block Gram–Schmidt twice, which suffices (Giraud et al. 2005). A block is made orthonormal by the Cholesky factor of its products,
    twice (Yamamoto et al. 2015), because products are all that threads can share; and by Householder reflections where its columns
    are nearly dependent.
    """
    exponent = int(np.frexp(np.abs(vectors).max())[1])
    vectors = np.ldexp(vectors, -exponent)  # because squares leave the range of float64 long before the entries do
    within, beyond = np.zeros((basis.shape[1], vectors.shape[1])), np.eye(vectors.shape[1])
    for least in _INDEPENDENT:
        inside = tall.gram(basis, vectors, n_threads, _SLAB_ROWS)
        tall.subtract_product(vectors, basis, inside, n_threads, _SLAB_ROWS)
        triangle = _cholesky(tall.gram(vectors, vectors, n_threads, _SLAB_ROWS), least)
        if triangle is None:
            vectors, triangle = np.linalg.qr(vectors)
        else:
            inverse = np.asarray(np.linalg.inv(triangle), dtype=np.float64)
            tall.times(vectors, inverse, n_threads, vectors, _SLAB_ROWS)
        within += inside @ beyond
        beyond = triangle @ beyond
    return vectors, np.ldexp(within, exponent), np.ldexp(beyond, exponent)


def _cholesky(products: FloatArray, least: float) -> FloatArray | None:
    """Return the upper triangular R with RᵀR = `products`; None if a column is nearer than `least` of its length to those before."""
    try:
        triangle = np.asarray(np.linalg.cholesky(products).T, dtype=np.float64)
    except np.linalg.LinAlgError:
        return None
    independent = triangle.diagonal() > least * np.sqrt(products.diagonal())
    return triangle if independent.all() else None


def positive_divisor(n_samples: int, weight: float, ddof: float) -> float:
    """Return weight − ddof; raise `DataError` if it is not positive."""
    if weight <= ddof:
        found = f"n_samples={n_samples} of weight {weight:g} gives no variance with ddof={ddof}: "
        if n_samples > ddof:
            raise DataError(
                f"{found}a row of weight w counts as w rows, so weights have to sum to more than {ddof}; use ddof=0 if only their "
                "proportions matter"
            )
        raise DataError(
            f"{found}at least {ddof + 1} samples are needed" + ("; found 1 sample" if n_samples == 1 else "")
        )
    return weight - ddof


@dataclass(frozen=True)
class Scatter:
    """A scatter matrix M = Σ w (x − mean)(x − mean)ᵀ as tiles, with the mean and the counts of its rows."""

    grid: TileGrid
    """Layout of `tiles`, in memory or in a file."""
    tiles: FloatArray
    """M as flat tiles; empty if they are in a file."""
    mean: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    n_samples: int
    """Number of rows of positive weight."""
    weight: float
    """Sum of their weights W."""


@dataclass(frozen=True)
class SymmetricOperator:
    """A symmetric matrix D (M + W m mᵀ) D / (W − ddof) in terms of scatter M, mean m, sum of weights W and factors D."""

    grid: TileGrid
    """Layout of `scatter`, in memory or in a file."""
    scatter: FloatArray
    """The scatter matrix M as flat tiles; shares memory with the state, so it must not be changed. Empty if they are in a file."""
    weights: FloatArray
    """Factor of each feature: 1, or 1 / divisor and 0 for constant features; ``(n_features,)``."""
    offset: FloatArray | None
    """√W times the mean for second moments about zero, else None; ``(n_features,)``."""
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
        cls, scatter: Scatter, *, center: bool, scale: Scaling, ddof: float, n_threads: int
    ) -> SymmetricOperator:
        """Return the covariance, correlation or second-moment matrix of `scatter`; `DataError` if there are too few rows."""
        weight, n_samples = scatter.weight, scatter.n_samples
        divisor = positive_divisor(n_samples, weight, ddof)
        squares, mean = np.maximum(scatter.grid.diagonal(scatter.tiles), 0), scatter.mean
        refuse_underflow(squares if center or scale else sums_about_zero(squares, mean, weight), weight, scale=scale)
        variance = squares / divisor
        weights = scale.weights(variance, mean)
        # The square of a mean may overflow: a feature that the factors leave out must not turn it into NaN.
        offset = None if center else np.where(weights == 0, 0.0, mean) * np.sqrt(weight)
        return cls(scatter.grid, scatter.tiles, weights, offset, divisor, mean, variance, n_samples, n_threads)

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
        with np.errstate(over="ignore"):  # the caller raises for infinite values
            about_zero = 0.0 if self.offset is None else self.offset**2 / self.divisor
            # Square root first, because the square of a weight may overflow where the product does not.
            diagonal: FloatArray = (np.sqrt(self.variance + about_zero) * self.weights) ** 2
        return diagonal

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the matrix times `vectors`, ``(n_features, n_vectors)``; the matrix is not formed."""
        weighted = vectors * self.weights[:, None]
        product = self.grid.multiply(self.scatter, weighted, self.n_threads)
        if self.offset is not None:
            product += self.offset[:, None] * (self.offset @ weighted)
        product *= (self.weights / self.divisor)[:, None]
        return product

    def rows(self, i: int) -> FloatArray:
        """Return the rows of the matrix in row `i` of tiles, as a new array."""
        sides, own = range(len(self.grid.edges) - 1), self.grid.features(i)
        tiles = [self.grid.tile(self.scatter, i, j) if j <= i else self.grid.tile(self.scatter, j, i).T for j in sides]
        rows = np.hstack(tiles)
        if self.offset is not None:
            rows += np.outer(self.offset[own], self.offset)
        rows *= self.weights[own, None]
        rows *= self.weights / self.divisor
        return rows

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
    """A symmetric matrix as `solve` requires it."""

    @property
    def n_threads(self) -> int:
        """Return the number of threads for products, and for what else is done with blocks of vectors."""
        ...

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
    """Number of `values` above the rounding of the accumulation."""
    method: str
    """``"lapack"`` or ``"block krylov"``."""
    residual_moments: tuple[float, ...] = ()
    """Power sums of the eigenvalues that `values` lacks, see `residual_moments`; empty where they are not known."""
    every: FloatArray | None = None
    """All eigenvalues, where they were computed, ``(rank_limit,)``."""


def solve(
    matrix: Symmetric,
    selection: Selection,
    *,
    precision: float,
    seed: int = 0,
    total: float | None = None,
    tolerance: float = 1e-11,
    stagnation_tolerance: float = 0.0,
    all_values: bool = False,
    device: str = HOST,
) -> Spectrum:
    """Return the leading eigenpairs of a symmetric matrix that `selection` requests.

    Uses LAPACK for small matrices or many pairs, otherwise block Lanczos with thick restart (`lanczos`).

    Parameters
    ----------
    matrix : Symmetric
    selection : Selection
        Rule for the number of pairs.
    precision : float
        Relative error of the matrix in the spectral norm, below which eigenvalues do not count towards `numerical_rank`.
    seed : int
        Seed of the starting vectors of the iteration.
    total : float, optional
        Total variance, where it is not the trace.
    tolerance : float
        Residual, relative to the first eigenvalue, at which the iteration stops.
    stagnation_tolerance : float
        The same where rounding of the products prevents `tolerance`.
    all_values : bool
        Return all eigenvalues as well, if LAPACK computes eigenpairs of a matrix of this side.
    device : str
        Where all eigenpairs of an accumulated matrix of more than 512 features are computed, if they fit there.
    """
    d, limit = matrix.side, matrix.rank_limit
    there = matrix if isinstance(matrix, SymmetricOperator) and len(matrix.scatter) and fits_on(device, d) else None
    total = float(matrix.diagonal.sum()) if total is None else total
    measure = frobenius_norm(matrix) if isinstance(selection, Frobenius) else total
    every = None
    if isinstance(selection, Rule) and selection.needs_all and d > _SMALL:
        every = eigenvalues(matrix) if there is None else np.maximum(pairs_on(device, there, 1)[0][:limit], 0)
        selection = Count(selection.select(every, total, precision))
    wanted = selection.n_components if isinstance(selection, Count) else min(limit, 64)
    while True:
        k = limit if wanted is None else min(wanted, limit)
        if there is not None:
            computed, vectors = pairs_on(device, there, k)
            values, method, every = computed[:k].copy(), f"eigh on {device}", np.maximum(computed[:limit], 0)
        elif uses_krylov(d, k):
            values, vectors = leading_eigenpairs(
                matrix.multiply,
                d,
                k,
                seed=seed,
                tolerance=tolerance,
                stagnation_tolerance=stagnation_tolerance,
                n_threads=matrix.n_threads,
            )
            method = "block krylov"
        else:
            k = k if isinstance(selection, Count) else limit
            computed, vectors = _lapack(matrix, k, all_values=all_values and every is None and d <= DENSE_LIMIT)
            values, method = computed[:k].copy(), "lapack"
            if len(computed) == d:
                every = np.maximum(computed[:limit], 0)
        values = np.maximum(values, 0)
        chosen = selection.select(values, measure, precision)
        if chosen is not None or k == limit:
            break
        wanted = 2 * k
    chosen = len(values) if chosen is None else chosen
    values, vectors = values[:chosen], vectors[:, :chosen]
    residual = _residual(matrix, values, vectors)
    rank = int(np.count_nonzero(values > precision * values[0])) if values[0] > 0 else 0
    return Spectrum(values, signed(vectors), total, residual, rank, method, every=every)


def fits_on(device: str, side: int) -> bool:
    """Return whether eigenpairs of a matrix of that side are computed on a device: the matrix, its eigenvectors and twice that for work."""
    if device == HOST or side <= _SMALL:
        return False
    free = device_of(device).free_bytes()
    return free is None or 4 * 8 * side**2 <= SHARE * free


def pairs_on(device: str, matrix: SymmetricOperator, k: int) -> tuple[FloatArray, FloatArray]:
    """Return all eigenvalues, largest first, and the first `k` eigenvectors of a matrix, by the library of a device."""
    there, grid = device_of(device), matrix.grid
    dense = there.zeros((matrix.side, matrix.side))
    for i in range(len(grid.edges) - 1):
        dense[grid.features(i), :] = there.send(matrix.rows(i))
    values, vectors = there.xp.linalg.eigh(dense)
    return there.fetch(values)[::-1], there.fetch(vectors[:, matrix.side - k :])[:, ::-1]


def uses_krylov(n_features: int, n_components: int) -> bool:
    """Return whether `n_components` pairs of a matrix of side `n_features` are computed by iteration."""
    return n_features > DENSE_LIMIT and n_components * _KRYLOV_SHARE <= n_features


def eigh(matrix: FloatArray, n_leading: int | None = None, *, lower: bool = True) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues, ascending, and eigenvectors in columns of a triangle of `matrix`, which is overwritten, by LAPACK.

    All of them by divide and conquer, which gives the most orthogonal vectors, or the `n_leading` largest, by syevr. `StreamPCAError` if
    LAPACK does not converge.
    """
    import scipy.linalg

    side = len(matrix)
    subset = None if n_leading is None else (side - n_leading, side - 1)
    driver = (
        "evr" if subset is not None or side == 1 else "evd"
    )  # scipy before 1.14 refuses matrices of side 1 with evd
    options: Any = {"overwrite_a": True, "check_finite": False, "lower": lower, "driver": driver}
    try:
        values, vectors = scipy.linalg.eigh(matrix, subset_by_index=subset, **options)
    except scipy.linalg.LinAlgError as error:
        raise StreamPCAError(f"LAPACK could not solve the eigenproblem of side {side}: {error}") from error
    return values, vectors


def _lapack(matrix: Symmetric, k: int, *, all_values: bool = False) -> tuple[FloatArray, FloatArray]:
    """Return at least `k` eigenvalues, or all, and the eigenvectors of the first `k`."""
    n_leading = None if k == matrix.side or matrix.side <= _SMALL else k
    if all_values and n_leading is not None:
        pairs = all_values_and_leading_vectors(matrix.dense(), k)
        if pairs is not None:
            return pairs
        n_leading = None
    values, vectors = eigh(matrix.dense().T, n_leading)
    return values[::-1], vectors[:, ::-1][:, :k]


def eigenvalues(matrix: Symmetric) -> FloatArray:
    """Return all eigenvalues that can differ from 0, largest first and not negative, ``(rank_limit,)``; 4/3 d³ flops."""
    from scipy.linalg import eigvalsh

    values = eigvalsh(matrix.dense().T, overwrite_a=True, check_finite=False)[::-1][: matrix.rank_limit]
    return np.maximum(values, 0.0, dtype=np.float64)


def frobenius_norm(matrix: Symmetric) -> float:
    """Return the Frobenius norm of the matrix, which is formed."""
    dense = matrix.dense()
    largest = float(np.abs(dense.diagonal()).max(initial=0.0))  # of a semi-definite matrix the largest entry
    if largest == 0:
        return 0.0
    dense /= largest  # because squares leave the range of float64 long before the entries do
    return largest * float(np.linalg.norm(dense))


def negative_mass(matrix: Symmetric) -> float:
    """Return the sum of the moduli of the negative eigenvalues, for matrices of pairwise covariances."""
    from scipy.linalg import eigvalsh

    values = eigvalsh(matrix.dense().T, overwrite_a=True, check_finite=False)
    return float(np.abs(values[values < 0]).sum())


def _residual(matrix: Symmetric, values: FloatArray, vectors: FloatArray) -> float:
    if values[0] <= 0:
        return 0.0
    largest = 0.0
    for start in range(0, len(values), 64):  # 64 vectors at a time, to limit the memory of the products
        columns = slice(start, start + 64)
        difference = matrix.multiply(np.ascontiguousarray(vectors[:, columns])) - vectors[:, columns] * values[columns]
        difference /= values[0]  # before the norm, because squares leave the range of float64 long before the values do
        largest = max(largest, float(np.linalg.norm(difference, axis=0).max()))
    return largest


def signed(vectors: FloatArray) -> FloatArray:
    """Return the eigenvectors as rows, each with its (first) entry of largest modulus positive."""
    rows = np.ascontiguousarray(vectors.T)
    largest = np.abs(rows).argmax(axis=1)
    rows *= np.where(rows[np.arange(len(rows)), largest] < 0, -1.0, 1.0)[:, None]
    return rows


def relative_precision(work: str, n_features: int) -> float:
    """Return the relative error in the spectral norm of a matrix accumulated with products in `work`.

    Measured for float32 products of blocks of up to 8,192 rows: 1e-8 for many features, up to 2.3e-7 for a few, and up
    to 4e-6 where a feature has only a few distinct values that are not whole numbers, because these are rounded in the
    same direction; below 1e-15 for float64. The returned bounds include the error of the eigenvalue solver.
    """
    return 4e-7 if work == "float32" else max(1e-14, 4 * n_features * float(np.finfo(np.float64).eps))


def all_values_and_leading_vectors(matrix: FloatArray, k: int) -> tuple[FloatArray, FloatArray] | None:
    """Return all eigenvalues of a symmetric matrix, largest first, and the eigenvectors of the first `k`, ``(side, k)``.

    The steps of LAPACK's ``syevr`` (reduction, bisection, inverse iteration) with all eigenvalues of the tridiagonal matrix
    beside: ``syevr`` would reduce the matrix a second time for them, which is most of its work. `matrix`, at least 2 x 2 and in
    C order, is overwritten. None where bisection or inverse iteration did not converge.
    """
    from scipy.linalg.lapack import dstebz, dstein, dsterf, dsytrd, dsytrd_lwork

    d = len(matrix)
    largest = max(float(matrix.max()), -float(matrix.min()))
    exponent = int(np.frexp(largest)[1]) if largest and not _SAFE[0] <= largest <= _SAFE[1] else 0
    if exponent:
        np.ldexp(matrix, -exponent, out=matrix)
    reflectors, diagonal, beside, factors, _ = dsytrd(
        matrix.T, lower=1, lwork=int(dsytrd_lwork(d, lower=1)[0]), overwrite_a=1
    )
    values, failed = dsterf(diagonal, beside)
    by_index = 2
    found, leading, block, splits, failed_leading = dstebz(diagonal, beside, by_index, 0, 0, d - k + 1, d, 0, "B")
    if failed or failed_leading or found != k:
        return None
    vectors, failed = dstein(diagonal, beside, leading[:k], block, splits)
    if failed:
        return None
    order = np.argsort(leading[:k], kind="stable")[::-1]
    return np.ldexp(values[::-1], exponent), _rotated(reflectors, factors, vectors[:, order])


def _rotated(reflectors: FloatArray, factors: FloatArray, vectors: FloatArray) -> FloatArray:
    """Return Q `vectors` for the Householder reflectors of Q that ``dsytrd`` leaves below the first subdiagonal."""
    from scipy.linalg.lapack import dormqr

    d = len(reflectors)
    # Reflector i is column i from row i + 1 on. To pass them without a copy, the columns begin one entry later in memory, so
    # that the last entry of each is the first one of the next column, which is set to 0; and the first row goes last.
    reflectors[0, 1:] = 0.0
    shifted = reflectors.ravel(order="K")[1 : 1 + d * (d - 1)].reshape((d, d - 1), order="F")
    rolled = np.asfortranarray(np.roll(vectors, -1, axis=0))
    _, work, _ = dormqr("L", "N", shifted, factors, rolled, -1)
    rotated, _, _ = dormqr("L", "N", shifted, factors, rolled, int(work[0]), overwrite_c=1)
    return np.roll(rotated, 1, axis=0)
