"""Maximum-likelihood factor analysis of a covariance matrix, and rotations of loadings towards simple structure: varimax and promax.

Loadings of components are the columns √λⱼ vⱼ of L, (n_features, k). A rotated pattern is A = L M. With standardised scores F₀ of the
components, the scores F = F₀ M⁻ᵀ have the same product F Aᵀ = F₀ Lᵀ and the correlations Φ = (Mᵀ M)⁻¹.

References
----------
Kaiser (1958), The varimax criterion for analytic rotation in factor analysis, Psychometrika 23:187–200: the criterion, the
angle of a plane and the normalisation of rows. Hendrickson & White (1964), Promax: a quick method for rotation to oblique simple
structure, British Journal of Statistical Psychology 17:65–70.
Jöreskog (1967), Some contributions to maximum likelihood factor analysis, Psychometrika 32:443–482: the likelihood as a function
of the uniquenesses alone. Lawley & Maxwell (1971), Factor analysis as a statistical method, chapter 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import svd

from streampca.errors import DataError, ParameterError
from streampca.formatting import plural
from streampca.linalg.eigen import DENSE_LIMIT, SymmetricOperator, eigh, signed, solve
from streampca.linalg.selection import Count
from streampca.random import generator
from streampca.typing import FloatArray

LEAST_UNIQUENESS = 1e-6
"""Smallest share of its variance that a feature has for itself: below, the likelihood grows without bound (a Heywood case)."""
_GRADIENT = 1e-9
_MOST_STEPS = 5000
_ALLOWED_GRADIENT = 1e-4
_ROUGH: Mapping[str, float] = {"ftol": 1e-10, "gtol": 1e-5}
"""Where the iteration from a start ends that is compared with those from other starts."""
_N_STARTS, _MANY_FEATURES = 8, 128
"""Starts; two of more features, where a step takes long."""
_NEAR_BOUND = np.log(1e-3)
_SAME = 1e-4
"""Difference of 2 log-likelihood below which two starts count as leading to the same maximum."""
_LARGEST_ANGLE = 1e-10
"""Radians; a sweep of smaller rotations is the last one."""
_MOST_SWEEPS = 500
_ALLOWED_ANGLE = 1e-6
"""Radians; largest rotation of the last sweep that is a result."""
_MOST_CONDITION = 1e8
"""Of the matrix of promax, whose rounding errors grow with it; correlations of scores are 1 up to rounding beyond."""


@dataclass(frozen=True)
class Factors:
    """Loadings W and uniquenesses ψ of the model C = W Wᵀ + diag(ψ)."""

    loadings: FloatArray
    """Wᵀ, a row for each factor, ``(k, n_features)``; the entry of largest modulus positive."""
    uniquenesses: FloatArray
    """ψ, ``(n_features,)``."""
    log_likelihood: float
    """−(d log 2π + log |Σ| + tr(Σ⁻¹ C)) / 2 for Σ = W Wᵀ + diag(ψ): the mean log-likelihood of a row."""
    gradient: float
    """Largest derivative of 2 log-likelihood by log ψ at the result, of uniquenesses that are not at their bound."""
    n_steps: int
    """Evaluations of the likelihood, from all starts."""
    n_starts: int
    """From how many uniquenesses it was maximised."""
    n_agreeing: int
    """How many of these led to this maximum, which is the highest of them."""


def maximum_likelihood(covariance: FloatArray, k: int, *, seed: int = 0, start: FloatArray | None = None) -> Factors:
    """Return the maximum-likelihood factors of a covariance of features that all vary; `covariance` is overwritten.

    For given ψ, with the eigenpairs (θ, q) of Ψ^−½ C Ψ^−½, W is Ψ^½ q (θ − 1)^½ of the k leading ones with θ > 1, and twice the
    negative log-likelihood is Σ log ψ + tr(Ψ⁻¹ C) + Σ (log θ − θ + 1) + const over these, with the derivative
    ((W Wᵀ)ⱼⱼ + ψⱼ − Cⱼⱼ) / ψⱼ by log ψⱼ (Jöreskog 1967). It is minimised by L-BFGS-B over log ψ, for features of variance 1; each step
    takes the k leading eigenpairs of a d × d matrix.

    The likelihood has several maxima, most often where a uniqueness is at its bound. The highest is returned of those that are reached
    from equal uniquenesses, from 1 − R² of each feature given the others times 1 − k / 2d (Jöreskog 1967), from small ones, and from five
    random ones, which follow from `seed`; above 128 features from the first two. With `start`, the uniquenesses of a similar
    covariance, that maximum is followed alone.

    Raises
    ------
    DataError
        If no maximum is reached in 5,000 steps.
    """
    from scipy.linalg import eigh
    from scipy.optimize import minimize

    d = len(covariance)
    deviations = np.sqrt(np.diag(covariance))
    correlation = covariance
    correlation /= deviations
    correlation /= deviations[:, None]

    def leading(logs: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        root = np.exp(-logs / 2)
        scaled = correlation * root
        scaled *= root[:, None]
        values, vectors = eigh(scaled, overwrite_a=True, check_finite=False, subset_by_index=(d - k, d - 1))
        values, vectors = np.maximum(values[::-1], 1.0), vectors[:, ::-1]
        return values, vectors * np.sqrt(values - 1.0) / root[:, None], root

    def objective(logs: FloatArray) -> tuple[float, FloatArray]:
        values, loadings, root = leading(logs)
        unique = np.exp(logs)
        communal = np.einsum("ij,ij->i", loadings, loadings)
        value = float(logs.sum() + np.square(root).sum() + (np.log(values) - values + 1).sum())
        return value, (communal + unique - 1.0) / unique

    bounds = [(np.log(LEAST_UNIQUENESS), 0.0)] * d
    options: Any = {"maxiter": _MOST_STEPS, "maxfun": 2 * _MOST_STEPS, "maxcor": 30}

    def climbed(logs: FloatArray, ends: Mapping[str, float]) -> Any:
        return minimize(objective, logs, jac=True, method="L-BFGS-B", bounds=bounds, options=options | dict(ends))

    given = _starts(correlation, k, seed) if start is None else [start / np.square(deviations)]
    rough = [climbed(np.log(np.clip(each, LEAST_UNIQUENESS, 1.0)), _ROUGH) for each in given]
    best = min(rough, key=lambda found: found.fun if np.isfinite(found.fun) else np.inf)
    # The likelihood is flat towards the bound, where iterations end before it: small uniquenesses are tried there, too.
    ends = [best.x] + ([np.where(best.x < _NEAR_BOUND, bounds[0][0], best.x)] if best.x.min() < _NEAR_BOUND else [])
    fine = [climbed(each, {"ftol": 0.0, "gtol": _GRADIENT}) for each in ends]
    logs = min(fine, key=lambda found: found.fun).x
    n_steps = sum(each.nfev for each in (*rough, *fine))
    value, slopes = objective(logs)
    at_bound = (logs <= bounds[0][0]) & (slopes > 0) | (logs >= 0.0) & (slopes < 0)
    gradient = float(np.abs(np.where(at_bound, 0.0, slopes)).max())
    if not np.isfinite(value) or gradient > _ALLOWED_GRADIENT:
        raise DataError(
            f"the likelihood of {k} factors reaches no maximum (derivative {gradient:.1e} after {n_steps} steps): expected fewer factors, or "
            "features that are not linear functions of one another"
        )
    _, loadings, _ = leading(logs)
    unique = np.exp(logs)
    likelihood = -(d * np.log(2 * np.pi) + value + 2 * float(np.log(deviations).sum())) / 2
    agreeing = sum(bool(each.fun <= value + _SAME) for each in rough)
    uniquenesses = unique * np.square(deviations)
    rows = signed(loadings * deviations[:, None])
    return Factors(rows, uniquenesses, likelihood, gradient, n_steps, len(rough), agreeing)


def _starts(correlation: FloatArray, k: int, seed: int) -> Iterator[FloatArray]:
    """Return uniquenesses from which the likelihood is maximised."""
    from scipy.linalg import eigh

    d = len(correlation)
    yield np.full(d, max(0.1, 1 - 0.5 * k / d))
    values, vectors = eigh(correlation, check_finite=False)
    yield (1 - 0.5 * k / d) / (np.square(vectors, out=vectors) @ (1 / np.maximum(values, 1e-10)))
    if d <= _MANY_FEATURES:
        yield np.full(d, 0.05)
        random = generator(seed, "factors")
        for _ in range(_N_STARTS - 3):
            yield random.uniform(0.05, 1.0, d)


def varimax(loadings: FloatArray, *, normalize: bool = True) -> FloatArray:
    """Return the orthogonal M, ``(k, k)``, for which the squares of ``M.T @ loadings`` have the largest variance in each row.

    The criterion is Σⱼ [Σᵢ aᵢⱼ⁴ / d − (Σᵢ aᵢⱼ² / d)²]. Planes are rotated one after another by the angle that maximises it
    (Kaiser 1958), tan 4φ = (2 Σuv − 2 Σu Σv / d) / (Σ(u² − v²) − ((Σu)² − (Σv)²) / d) for u = x² − y², v = 2 x y,
    until no angle exceeds 1e-10. Cost about 10 d k² flops a sweep, ten sweeps or so.

    Parameters
    ----------
    loadings : array, shape (k, d)
        A row for each component.
    normalize : bool
        Divide the loadings of each feature by the root of their sum of squares, its communality, for the criterion. Features whose loadings
        are rounding, below d ε of the largest communality, do not count.

    Raises
    ------
    DataError
        If angles above 1e-6 are left after 500 sweeps.
    """
    k, d = loadings.shape
    rotated: FloatArray = loadings / (np.abs(loadings).max(initial=0.0) or 1.0)  # fourth powers are taken
    if normalize:
        lengths = np.sqrt(np.einsum("ij,ij->j", rotated, rotated))
        known = lengths > d * np.finfo(np.float64).eps * lengths.max(initial=0.0)
        rotated = np.divide(rotated, lengths, out=np.zeros_like(rotated), where=known)
    matrix, largest = np.eye(k), 0.0
    for _ in range(_MOST_SWEEPS):
        largest = 0.0
        for i in range(k - 1):
            for j in range(i + 1, k):
                angle = _angle(rotated[i], rotated[j], d)
                if abs(angle) > _LARGEST_ANGLE:
                    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
                    rotated[[i, j]] = turn @ rotated[[i, j]]
                    matrix[:, [i, j]] = matrix[:, [i, j]] @ turn.T
                largest = max(largest, abs(angle))
        if largest <= _LARGEST_ANGLE:
            return matrix
    if largest > _ALLOWED_ANGLE:
        raise DataError(
            f"varimax does not converge: {_MOST_SWEEPS} sweeps over all pairs of {k} components still rotate by {largest:.1g}; rotate fewer "
            "components"
        )
    return matrix


def _angle(x: FloatArray, y: FloatArray, d: int) -> float:
    """Return the angle in radians, of modulus at most π/4, by which x and y are rotated in their plane."""
    u, v = x * x - y * y, 2 * x * y
    numerator = 2 * (u @ v) - 2 * u.sum() * v.sum() / d
    denominator = u @ u - v @ v - (u.sum() ** 2 - v.sum() ** 2) / d
    scale = u @ u + v @ v
    if np.hypot(numerator, denominator) <= 1e-14 * scale:  # the criterion does not depend on the angle
        return 0.0
    return float(np.arctan2(numerator, denominator) / 4)


def promax(loadings: FloatArray, rotation: FloatArray, *, power: float = 4) -> FloatArray:
    """Return the oblique M, ``(k, k)``, whose pattern comes nearest to that of `rotation` with contrasts raised to `power`.

    With the pattern B of `rotation`, that of varimax, the target is |B|^power with the signs of B, and M the regression of the target
    on the loadings, scaled so that the scores have unit variance (Hendrickson & White 1964).

    Parameters
    ----------
    loadings : array, shape (k, d)
        A row for each component; linearly independent.
    rotation : array, shape (k, k)
        What `varimax` returns.
    power : float
        Exponent, above 1; 4 is customary.

    Raises
    ------
    ParameterError
        If the targets of the components are linearly dependent up to rounding, as for a large `power`, which leaves one loading of
        each, and for many components of features in mixed units.
    """
    # Unit vectors, because variances of components may differ by more than float64 has digits: squares of them have none left.
    lengths, pattern = np.linalg.norm(loadings, axis=1), rotation.T @ loadings
    if not lengths.all() or not pattern.any(axis=1).all():
        none = max((lengths == 0).sum(), (~pattern.any(axis=1)).sum())
        raise ParameterError(f"{none} of {len(lengths)} components have no loadings: rotate fewer")
    # Each component is divided by its largest loading, which changes no column of M but its length: powers of small ones underflow.
    target = np.sign(pattern) * np.abs(pattern / np.abs(pattern).max(axis=1, keepdims=True)) ** power
    oblique: FloatArray = np.linalg.lstsq((loadings / lengths[:, None]).T, target.T)[0] / lengths[:, None]
    oblique /= np.linalg.norm(oblique, axis=0)
    if not np.linalg.cond(oblique) < _MOST_CONDITION:
        raise ParameterError(
            f"power={power:g}: the contrasts of the {len(pattern)} components are linearly dependent: expected a smaller power, fewer components, "
            "or features of similar variances (scale=True)"
        )
    oblique *= np.linalg.norm(np.linalg.inv(oblique), axis=1)
    return oblique


def ordered(matrix: FloatArray, loadings: FloatArray) -> FloatArray:
    """Return `matrix` with its columns ordered by the sum of squares of the pattern, and the largest entry of each positive."""
    pattern = matrix.T @ loadings
    order = np.argsort(-np.einsum("ij,ij->i", pattern, pattern), kind="stable")
    largest = np.take_along_axis(pattern, np.abs(pattern).argmax(axis=1)[:, None], axis=1)[:, 0]
    result: FloatArray = (matrix * np.where(largest < 0, -1.0, 1.0))[:, order]
    return result


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
        raise DataError("one of the tables has no feature that varies: expected variance in both")
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
            f"at least {plural(rank + other_rank - int(n_free), 'canonical correlation')} would be 1 for any data; expected more rows than "
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
