"""Low-rank approximation of a matrix from its products with a test matrix: Nyström, and the literature's conversion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from streampca.errors import ParameterError
from streampca.linalg import tall_skinny as tall
from streampca.typing import FloatArray, IntArray

Precision = Literal["float32", "float64"]

DEPENDENT: dict[Precision, float] = {"float32": 1e-6, "float64": 1e-13}
"""Columns of length 1 are dependent if their Gram matrix has an eigenvalue up to this threshold.

Rounding of Y is amplified by up to the inverse square root of the threshold: 1,000 times in float32.
"""

_EPS = float(np.finfo(np.float64).eps)
_SHIFT_FLOAT32 = 1.2e-9  # 0.01 of the unit roundoff, for products in float32 and sums in float64
_TRUNCATION = {"float32": 1e-8, "float64": 1e-13}
_MAX_SHIFTS = 8
_WELL_CONDITIONED = 1e-2  # smallest eigenvalue of the Gram matrix of unit columns that need no orthogonalisation
_ROUNDING = 64 * _EPS  # squares of singular values below this share of the first are rounding
_INDEPENDENT = 0.05  # smallest eigenvalue of the Gram matrix of unit columns that is factored


@dataclass(frozen=True)
class LowRank:
    """A positive semidefinite matrix Ĉ = V diag(λ) Vᵀ of rank r."""

    values: FloatArray
    """Eigenvalues λ, largest first, positive; ``(r,)``."""
    vectors: FloatArray
    """Orthonormal eigenvectors V in columns, ``(d, r)``."""
    shift: float
    """Number that was added to the diagonal for stability and subtracted from the eigenvalues."""
    asymmetry: float = 0.0
    """Measured rounding of the products in the units of the eigenvalues: the asymmetry of QᵀCQ for an orthonormal basis Q
    of the columns of Ω, times √(d/q) for the rounding outside of their span."""

    @property
    def trace(self) -> float:
        """Return the sum of the eigenvalues."""
        return float(self.values.sum())

    def multiply(self, columns: FloatArray, n_threads: int = 1) -> FloatArray:
        """Return Ĉ times `columns`, both ``(d, p)``, in 4 d r p flops."""
        coordinates = tall.gram(self.vectors, columns, n_threads)
        return tall.times(self.vectors, self.values[:, None] * coordinates, n_threads)


@dataclass(frozen=True)
class Converted:
    """Eigenpairs as the literature's approximate PCA defines them."""

    values: FloatArray
    """Eigenvalues of ΩᵀCΩ, largest first, positive; biased upwards by about the tail of the spectrum over q; ``(r,)``."""
    directions: FloatArray
    """Directions Yuⱼ/‖Yuⱼ‖ in columns, of length 1, not orthogonal to each other; ``(d, r)``."""
    model: LowRank
    """The same values with the directions made orthonormal by Gram–Schmidt in the order of the eigenvalues."""


def nystrom(
    products: FloatArray,
    test: FloatArray,
    *,
    precision: Precision,
    n_threads: int = 1,
    definite: bool = True,
    overwrite: bool = False,
) -> LowRank:
    """Return the Nyström approximation Ĉ = Y (ΩᵀY)⁺ Yᵀ of a matrix C that is known by Y = CΩ.

    With a shift ν: Y_ν = Y + νΩ, B = sym(ΩᵀY_ν), F = Y_ν B^(−1/2), F = UΣWᵀ, λ̂ = max(Σ² − ν, 0) (Tropp, Yurtsever,
    Udell & Cevher 2017, Algorithm 3). Where B is not positive definite the shift grows tenfold, up to eight times;
    then small eigenvalues of B are cut off. For a covariance C = XᵀX/n this is the randomized SVD of X with the range
    of XΩ (Halko, Martinsson & Tropp 2011) and the single-pass PCA of Yu et al. (2017), whose bounds hold: for a
    Gaussian Ω, E tr(C − Ĉ) ≤ (1 + r/(q − r − 1)) Σ_{j>r} λⱼ for every r < q − 1. With Ω = [Ω₁, …, Ω_p] and the products
    of all blocks it is the block Krylov form (Tropp & Webber 2023).

    The eigenvectors of B, scaled to a unit diagonal, replace a Cholesky factor, which gives the same F up to a rotation.
    The singular values come from the Gram matrix of F, and a second time after a rotation to nearly orthogonal columns,
    so that the vectors are orthonormal to 1e-14 down to the last eigenvalue. Eigenvalues below the shift, and below
    1e-14 of the first, are rounding and are dropped. About 10 d q² flops and one copy of `products`.

    Parameters
    ----------
    products, test : float64 arrays, shape (d, q)
        Y = CΩ and Ω, of any scale and condition; columns of Ω that are zero or depend on others add nothing.
    precision : "float32" or "float64"
        How Y was accumulated: products in float32 with sums in float64 (ν = 1.2e-9 ‖Y‖₂/‖Ω‖₂), or all in float64
        (ν = 2.2e-16 √d ‖Y‖₂/‖Ω‖₂). The shift is at least the rounding that the asymmetry of ΩᵀY measures, taken for a
        random share √(q/d) of that of Y: ‖ΩᵀY − YᵀΩ‖₂ √(d/q) / (2 ‖Ω‖₂²). The result has an eigenvalue of the square of
        that rounding over ν in directions without variance.
    n_threads : int
        Threads that share the slabs of rows; the bits do not depend on it.
    definite : bool
        Whether C is positive semidefinite; if not (a covariance corrected for missing values), eigenvalues of B up to
        twice the modulus of its most negative one are cut off at once.
    overwrite : bool
        Work in `products` instead of a copy; the vectors are then a view of it.

    Returns
    -------
    LowRank
        Of rank r ≤ q; r = 0 for Y = 0. `ParameterError` for arrays of different shapes, `NotFiniteError` for NaN or
        infinity.
    """
    _check(products, test)
    work, test, factor, test_factor = _scaled(products, test, n_threads, overwrite)
    unit = test_factor / factor
    work, test = _well_conditioned(work, test, precision, n_threads)
    shift, root, asymmetry = _root_of_inverse(work, test, precision, n_threads, definite)
    if root.shape[1] == 0:
        return LowRank(np.zeros(0), work[:, :0], 0.0)
    tall.add_multiple(work, test, shift, n_threads)
    work = tall.times(work, root, n_threads, out=work[:, : root.shape[1]])
    squares, vectors = _left_singular(work, shift, n_threads)
    return LowRank((squares - shift) * unit, vectors, shift * unit, asymmetry * unit)


def leave_one_out(products: FloatArray, test: FloatArray, *, precision: Precision, n_threads: int = 1) -> float:
    """Return a leave-one-out estimate of ‖C − Ĉ‖_F from the products that Ĉ was computed from.

    est² = (1/q) Σⱼ ‖Y_ν B⁻¹ eⱼ‖² / (B⁻¹)ⱼⱼ² (Epperly & Tropp 2024). Holds for independent columns of Ω with
    E ωωᵀ = I, not for a test matrix computed from the data. Zero where Ω has dependent columns.
    """
    _check(products, test)
    work, scaled, factor, _test_factor = _scaled(products, test, n_threads, overwrite=False)
    shift, root, _ = _root_of_inverse(work, scaled, precision, n_threads, definite=True)
    if root.shape[1] < test.shape[1]:
        return 0.0
    tall.add_multiple(work, scaled, shift, n_threads)
    inverse = root @ root.T
    residuals = tall.times(work, inverse / np.diagonal(inverse), n_threads, out=work)
    squares = np.diagonal(tall.gram(residuals, residuals, n_threads))
    return float(np.sqrt(squares.mean())) / factor  # the length of Ω cancels


def converted(
    products: FloatArray, test: FloatArray, *, n_components: int | None = None, n_threads: int = 1
) -> Converted:
    """Return the approximate PCA of the literature: directions w = Yu for the eigenvectors u of H = sym(ΩᵀCΩ).

    Marukatat 2023, Algorithm 4, from accumulated products: for Z = XΩ, H = ZᵀZ/n and Xᵀ(Zu)/n = Yu. The eigenvalues of
    H approximate those of C only if Ω preserves dot products, so Ω must be scaled to E ΩΩᵀ = I, that is entries of
    variance 1/q for a Gaussian Ω. The directions w have length 1 and are not orthogonal. A model needs orthonormal axes,
    which are the Gram–Schmidt vectors of w in the order of the eigenvalues; the first axis is the published one.

    Parameters
    ----------
    products, test : float64 arrays, shape (d, q)
        Y = CΩ and Ω.
    n_components : int, optional
        Number of pairs; all with positive eigenvalue by default.
    n_threads : int
        Threads that share the slabs of rows.
    """
    _check(products, test)
    work, test, factor, test_factor = _scaled(products, test, n_threads, overwrite=False)
    matrix = tall.gram(test, work, n_threads)
    values, small = np.linalg.eigh((matrix + matrix.T) / 2)
    values, small = values[::-1], small[:, ::-1]
    retained = np.flatnonzero(values > _ROUNDING * max(values[0], 0.0))[:n_components]
    directions = tall.times(work, small[:, retained], n_threads, out=work[:, : len(retained)])
    lengths = np.sqrt(np.diagonal(tall.gram(directions, directions, n_threads)))
    retained = retained[lengths > 0]
    directions = tall.scaled_copy(directions[:, lengths > 0], 1.0 / lengths[lengths > 0], n_threads)
    values = values[retained] / factor / test_factor
    basis = tall.orthonormal(directions, n_threads=n_threads)
    # The basis may be rotated; the QR decomposition of its coordinates restores the Gram–Schmidt order.
    rotation, triangle = np.linalg.qr(tall.gram(basis, directions, n_threads))
    rotation *= np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
    axes = tall.times(basis, rotation, n_threads)
    return Converted(values, directions, LowRank(values[: axes.shape[1]], axes, 0.0))


def _check(products: FloatArray, test: FloatArray) -> None:
    if products.ndim != 2 or products.shape != test.shape:
        raise ParameterError(
            f"products of shape {products.shape} and a test matrix of shape {test.shape}: expected two arrays of one shape, "
            "(n_features, sketch_size)"
        )


def _scaled(
    products: FloatArray, test: FloatArray, n_threads: int, overwrite: bool
) -> tuple[FloatArray, FloatArray, float, float]:
    """Return Y, and Ω if its squares would overflow, scaled by powers of two to magnitudes near 1, and both factors."""
    factor = float(tall.power_of_two(tall.peaks(products, n_threads).max(initial=0.0)))
    work = tall.scaled_copy(products, factor, n_threads, out=products if overwrite else None)
    peak = tall.peaks(test, n_threads).max(initial=0.0)
    if not tall.needs_scaling(np.asarray([peak])):
        return work, test, factor, 1.0
    test_factor = float(tall.power_of_two(peak))
    return work, tall.scaled_copy(test, test_factor, n_threads), factor, test_factor


def _well_conditioned(
    products: FloatArray, test: FloatArray, precision: Precision, n_threads: int
) -> tuple[FloatArray, FloatArray]:
    """Return YR and ΩR with nearly orthonormal ΩR where columns of Ω are nearly dependent, otherwise Y and Ω.

    Ĉ does not change, but the condition of Ω amplifies the rounding of ΩᵀY once instead of twice.
    """
    metric = tall.gram(test, test, n_threads)
    values = np.linalg.eigvalsh(of_unit_columns(metric)[0])
    if values.min(initial=1.0) > _WELL_CONDITIONED:
        return products, test
    rotation = independent_columns(metric, DEPENDENT[precision])
    return tall.times(products, rotation, n_threads), tall.times(test, rotation, n_threads)


def _root_of_inverse(
    products: FloatArray, test: FloatArray, precision: Precision, n_threads: int, definite: bool
) -> tuple[float, FloatArray, float]:
    """Return the shift ν, a matrix R, ``(q, r)``, with R Rᵀ = B⁻¹ for B = sym(ΩᵀY) + νΩᵀΩ, and the asymmetry (`LowRank`)."""
    inner = tall.gram(test, products, n_threads)
    skew = (inner - inner.T) / 2  # ΩᵀCΩ is symmetric, so the skew part is rounding of the products
    rounding = float(np.linalg.norm(skew, 2))
    inner = (inner + inner.T) / 2
    metric = tall.gram(test, test, n_threads)
    q = len(inner)
    norm = _norm(products, inner, n_threads)
    basis = independent_columns(metric, DEPENDENT[precision])
    if basis.shape[1] == 0 or norm == 0:
        return 0.0, np.zeros((q, 0)), 0.0
    outside = np.sqrt(max(1.0, len(test) / q))
    asymmetry = float(np.linalg.norm(basis.T @ skew @ basis, 2)) * outside
    square = float(np.linalg.eigvalsh(metric)[-1])
    first = norm / np.sqrt(square) * (_SHIFT_FLOAT32 if precision == "float32" else _EPS * np.sqrt(len(test)))
    first = max(first, rounding / square * outside)
    if basis.shape[1] < q:
        inner, metric = basis.T @ inner @ basis, np.eye(basis.shape[1])
    for power in range(_MAX_SHIFTS + 1 if definite else 0):
        shift = first * 10.0**power
        root = _whole_root(inner + shift * metric)
        if root is not None:
            return shift, root if len(root) == q else basis @ root, asymmetry
    values, vectors = np.linalg.eigh(inner + first * metric)
    retained = values > max(_TRUNCATION[precision] * values[-1], -2 * values[0], 0.0)
    root = vectors[:, retained] / np.sqrt(values[retained])
    return first, root if len(root) == q else basis @ root, asymmetry


def of_unit_columns(metric: FloatArray) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return a Gram matrix with its columns scaled to length 1 where they are not 0, all lengths, and which columns these are."""
    lengths = np.sqrt(np.diagonal(metric))
    used = np.flatnonzero(lengths > 0)
    return metric[np.ix_(used, used)] / lengths[used, None] / lengths[used], lengths, used


def independent_columns(metric: FloatArray, dependent: float) -> FloatArray:
    """Return R, ``(q, r)``, with ΩR orthonormal for an Ω with the Gram matrix `metric`: r < q if columns depend on others.

    Uses the eigenvectors, for columns scaled to length 1, of the eigenvalues of the Gram matrix above `dependent`.
    """
    unit, lengths, used = of_unit_columns(metric)
    values, rotation = np.linalg.eigh(unit)
    retained = values > dependent
    basis = np.zeros((len(metric), int(retained.sum())))
    basis[used] = rotation[:, retained] / np.sqrt(values[retained]) / lengths[used, None]
    return basis


def _whole_root(matrix: FloatArray) -> FloatArray | None:
    """Return R with R Rᵀ the inverse of a positive definite matrix, None if the matrix is not definite to rounding."""
    diagonal = np.diagonal(matrix)
    if diagonal.min() <= 0:
        return None
    scale = 1.0 / np.sqrt(diagonal)
    values, vectors = np.linalg.eigh(matrix * scale[:, None] * scale)
    if values[0] <= 4 * _EPS * values[-1]:
        return None
    whole: FloatArray = scale[:, None] * vectors / np.sqrt(values)
    return whole


def _norm(products: FloatArray, inner: FloatArray, n_threads: int) -> float:
    """Return ‖Y‖₂ to a few per cent: by one power step from the first eigenvector of sym(ΩᵀY)."""
    start = np.ascontiguousarray(np.linalg.eigh(inner)[1][:, -1:])
    image = tall.times(products, start, n_threads)
    length = float(np.linalg.norm(image))
    if length == 0:
        return float(np.linalg.norm(products))
    return float(np.linalg.norm(tall.gram(products, image / length, n_threads)))


def _left_singular(work: FloatArray, shift: float, n_threads: int) -> tuple[FloatArray, FloatArray]:
    """Return squared singular values above rounding and left singular vectors of `work`, which is overwritten.

    Columns are rotated until they are well-conditioned enough for a Cholesky factor. Every round after the second drops
    squares up to a ten times larger threshold, because the small ones cause the bad condition.
    """
    values, rotation = np.linalg.eigh(tall.gram(work, work, n_threads))
    cut, rounds = _ROUNDING, 0
    while True:
        values, rotation = values[::-1], rotation[:, ::-1]
        retained = values > max(2 * shift, cut * values[0])
        if not retained.any():
            return values[:0], work[:, :0]
        work = tall.times(work, rotation[:, retained], n_threads, out=work[:, : int(retained.sum())])
        matrix = tall.gram(work, work, n_threads)
        lengths = np.sqrt(np.diagonal(matrix))
        unit = matrix / lengths[:, None] / lengths
        if np.linalg.eigvalsh(unit)[0] > _INDEPENDENT:
            break
        values, rotation = np.linalg.eigh(matrix)
        rounds += 1
        cut *= 10.0 if rounds > 1 else 1.0
    factor = np.asarray(np.linalg.cholesky(unit), dtype=np.float64)
    # work = Q (factorᵀ diag(lengths)) with Q orthonormal: the small matrix has the singular values of the tall one.
    left, singular, _right = np.linalg.svd(factor.T * lengths)
    small = tall.lower_inverse(factor).T @ left / lengths[:, None]
    return singular**2, tall.times(work, small, n_threads, out=work)
