"""Pairs of directions of two tables with the same samples, from their joint covariance: maximum covariance, canonical correlations.

The joint covariance is C = [[C₁₁, C₁₂], [C₂₁, C₂₂]] of the features of the first table and of the second, side by side.

References
----------
Bretherton, Smith & Wallace (1992), An intercomparison of methods for finding coupled patterns in climate data, J. Climate
5:541–560. Hotelling (1936), Relations between two sets of variates, Biometrika 28:321–377. Björck & Golub (1973), Numerical
methods for computing angles between linear subspaces, Math. Comp. 27:579–594.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import svd

from streampca.errors import DataError
from streampca.linalg.eigen import DENSE_LIMIT, SymmetricOperator, eigh, solve
from streampca.linalg.selection import Count
from streampca.typing import FloatArray


@dataclass(frozen=True)
class Pairs:
    """Pairs of directions, those of the largest value first."""

    values: FloatArray
    """Singular values of the cross-covariance, or canonical correlations; ``(k,)``."""
    first: FloatArray
    """Weights of the features of the first table, a row for each pair, ``(k, d1)``; the entry of largest modulus of both rows positive."""
    second: FloatArray
    """Weights of the features of the second table, ``(k, d2)``."""
    total: float
    """Sum of the squares of all values."""
    residual: float
    """Largest ‖C₁₂ v − σ u‖ of the pairs, relative to the first value."""
    method: str
    """How they were computed."""


def squared_norm(matrix: SymmetricOperator, n_first: int) -> float:
    """Return ‖C₁₂‖²_F from the tiles of the matrix, one at a time."""
    grid, total = matrix.grid, 0.0
    root = 1.0 / np.sqrt(matrix.divisor)
    for i, j in grid.pairs:
        down, across = grid.features(i), grid.features(j)
        rows, columns = np.arange(down.start, down.stop), np.arange(across.start, across.stop)
        crossing = (rows[:, None] < n_first) != (columns < n_first)
        if not crossing.any():
            continue
        tile = np.array(grid.tile(matrix.scatter, i, j), dtype=np.float64)
        if matrix.offset is not None:
            tile += np.outer(matrix.offset[down], matrix.offset[across])
        tile *= (matrix.weights[down] * root)[:, None]
        tile *= matrix.weights[across] * root
        if i == j:  # both halves of a tile of the diagonal are there, or one that is zero above it
            low = np.tril(tile, -1)
            total += float(np.square(low[np.tril(crossing, -1)]).sum())
        else:
            total += float(np.square(tile[crossing]).sum())
    return total


@dataclass(frozen=True)
class _OffDiagonal:
    """The symmetric matrix [[0, C₁₂], [C₂₁, 0]], whose eigenvalues are the singular values of C₁₂ with both signs."""

    matrix: SymmetricOperator
    n_first: int

    @property
    def n_threads(self) -> int:
        return self.matrix.n_threads

    @property
    def side(self) -> int:
        return self.matrix.side

    @property
    def rank_limit(self) -> int:
        return min(self.n_first, self.side - self.n_first, self.matrix.n_samples)

    @property
    def diagonal(self) -> FloatArray:
        return np.zeros(self.side)

    def multiply(self, vectors: FloatArray) -> FloatArray:
        m = vectors.shape[1]
        apart = np.zeros((self.side, 2 * m))
        apart[: self.n_first, :m] = vectors[: self.n_first]
        apart[self.n_first :, m:] = vectors[self.n_first :]
        product = self.matrix.multiply(apart)
        return np.concatenate([product[: self.n_first, m:], product[self.n_first :, :m]])

    def dense(self) -> FloatArray:
        matrix = self.matrix.dense()
        matrix[: self.n_first, : self.n_first] = 0.0
        matrix[self.n_first :, self.n_first :] = 0.0
        return matrix


def maximum_covariance(matrix: SymmetricOperator, n_first: int, k: int, *, precision: float, seed: int = 0) -> Pairs:
    """Return the `k` leading singular triplets of C₁₂: orthonormal directions whose scores have the largest covariances.

    Up to 1,536 features by LAPACK (4 d₁ d₂ min(d₁, d₂) flops or so), beyond that by block Lanczos, without a copy of the matrix.
    Pairs beyond the rank of C₁₂ have a value of 0, up to rounding, and arbitrary directions, as those of a singular value decomposition.
    """
    total = squared_norm(matrix, n_first)
    if matrix.side <= DENSE_LIMIT:
        cross = np.ascontiguousarray(matrix.dense()[:n_first, n_first:])
        left, values, right = svd(cross, full_matrices=False, check_finite=False)
        first, second = _signed(left.T[:k], right[:k])
        residual = _residual(cross @ second.T - first.T * values[:k], values)
        return Pairs(values[:k], first, second, total, residual, "lapack")
    spectrum = solve(_OffDiagonal(matrix, n_first), Count(k), precision=precision, seed=seed, total=1.0)
    values = spectrum.values
    scale = float(np.sqrt(np.maximum(matrix.diagonal[:n_first].sum() * matrix.diagonal[n_first:].sum(), 0.0)))
    known = values > precision * scale
    halves = spectrum.vectors[known, :n_first], spectrum.vectors[known, n_first:]
    first, second = (_completed(half / np.linalg.norm(half, axis=1)[:, None], k, seed) for half in halves)
    values = np.concatenate([values[known], np.zeros(k - int(known.sum()))])
    return Pairs(values, *_signed(first, second), total, spectrum.residual, spectrum.method)


def _completed(rows: FloatArray, k: int, seed: int) -> FloatArray:
    """Return orthonormal `rows` and further ones, `k` in all."""
    if len(rows) == k:
        return rows
    more = np.random.default_rng(seed).normal(size=(k - len(rows), rows.shape[1]))
    for _ in range(2):  # once leaves the rounding of what is subtracted
        more -= (more @ rows.T) @ rows
        more = np.linalg.qr(more.T)[0].T
    return np.concatenate([rows, more])


def whitening(covariance: FloatArray, precision: float) -> tuple[FloatArray, float, int]:
    """Return the whitening of a covariance, which is overwritten, its condition, and the number of directions below rounding.

    The matrix, ``(n_features, rank)``, has the eigenvectors of the correlation matrix that are used, divided by the roots of their
    eigenvalues, for features in their units. The condition is the largest eigenvalue over the smallest that is used.
    """
    deviations = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    n_varying = int(np.count_nonzero(deviations))
    deviations[deviations == 0] = 1.0
    covariance /= deviations
    covariance /= deviations[:, None]
    values, vectors = eigh(covariance)
    known = values > precision * len(values) * max(values[-1], 0.0)
    if not known.any():
        raise DataError("no feature of one of the tables varies: expected tables with variance")
    matrix = vectors[:, known] / np.sqrt(values[known]) / deviations[:, None]
    return matrix, float(values[-1] / values[known][0]), n_varying - int(known.sum())


def canonical_correlations(
    matrix: SymmetricOperator, n_first: int, k: int, *, precision: float, n_free: float
) -> tuple[Pairs, float, int]:
    """Return the `k` pairs of weights whose scores, of variance 1, have the largest correlations, their error, and the directions left out.

    The singular triplets of W₁ᵀ C₁₂ W₂ for the whitenings of both tables. A relative error ε of the matrix changes a correlation by
    at most ε (κ₁ + κ₂) to first order, for the ratios κ of the largest to the smallest eigenvalue of the correlation
    matrices of both tables; twice that is returned. Directions below rounding are left out, and counted. Cost: 9 (d₁³ + d₂³) flops or so.

    Parameters
    ----------
    matrix : SymmetricOperator
        The joint covariance.
    n_first : int
        Features of the first table.
    k : int
        Number of pairs.
    precision : float
        Relative error of the matrix in the spectral norm.
    n_free : float
        Degrees of freedom of the rows, n − 1 for centred ones: what the ranks of both tables have to stay below.

    Raises
    ------
    DataError
        If the tables have together as many directions as the rows have degrees of freedom, so that some correlations are 1
        whatever the data.
    """
    dense = matrix.dense()
    cross = dense[:n_first, n_first:].copy()
    one, condition, n_left_out = whitening(dense[:n_first, :n_first].copy(), precision)
    two, other_condition, n_others = whitening(dense[n_first:, n_first:].copy(), precision)
    del dense
    rank, other_rank = one.shape[1], two.shape[1]
    if rank + other_rank > n_free:
        raise DataError(
            f"the tables have {rank:,} and {other_rank:,} directions of variance, and the rows {n_free:g} degrees of freedom: "
            f"at least {rank + other_rank - int(n_free):,} canonical correlation(s) would be 1 whatever the data; expected more rows than "
            "directions: reduce both tables to their principal components first (n_pca)"
        )
    k = min(k, rank, other_rank)
    left, values, right = svd(one.T @ cross @ two, full_matrices=False, check_finite=False)
    first, second = _signed((one @ left[:, :k]).T, (two @ right[:k].T).T)
    error = min(1.0, 2 * precision * (condition + other_condition))
    values = np.clip(values, 0.0, 1.0)
    residual = _residual(one.T @ (cross @ second.T) - left[:, :k] * values[:k], values)
    pairs = Pairs(values[:k], first, second, float(np.square(values).sum()), residual, "lapack")
    return pairs, error, n_left_out + n_others


def _signed(first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return pairs of rows with the entry of largest modulus of the first positive."""
    rows = np.arange(len(first))
    signs = np.where(first[rows, np.abs(first).argmax(axis=1)] < 0, -1.0, 1.0)[:, None]
    return np.ascontiguousarray(first * signs), np.ascontiguousarray(second * signs)


def _residual(difference: FloatArray, values: FloatArray) -> float:
    return float(np.linalg.norm(difference, axis=0).max() / values[0]) if values[0] > 0 else 0.0
