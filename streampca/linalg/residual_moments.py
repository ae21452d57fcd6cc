"""Power sums of the eigenvalues that a model leaves out, from which limits of the squared prediction error follow.

With θ_i = Σ λ_j^i over the eigenvalues left out, the numbers here are θ₂/θ₁² and θ₃/θ₁³: they have no units, so that nothing
leaves the range of float64, and their inverses count how many equal eigenvalues would give the same sums.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.linalg.eigen import DENSE_LIMIT, Spectrum, Symmetric
from streampca.random import generator
from streampca.system.blas_threads import one_blas_thread
from streampca.typing import FloatArray

Moments = tuple[float, ...]
"""θ₂/θ₁², and θ₃/θ₁³ where it is known; empty where nothing is."""

_PROBES, _PROBES_AT_ONCE = 64, 64  # a product with 64 vectors takes little longer than one with 16
_BAND = 128


def moments_of_values(values: FloatArray) -> Moments:
    """Return the moments of eigenvalues that are left out, ``(n,)``; those below 0 count as 0."""
    values = np.maximum(values, 0.0)
    total = float(values.sum())
    if not total > 0:
        return ()
    shares = values / total
    return float((shares**2).sum()), float((shares**3).sum())


def with_moments(spectrum: Spectrum, matrix: Symmetric, seed: int) -> Spectrum:
    """Return `spectrum` with the moments of the eigenvalues of `matrix` that it does not have.

    Exact up to rounding for matrices of side 1,536 or less, 2 n³ flops. Else Hutchinson's (1990) estimates from 64 random vectors,
    z ↦ Rz: θ₂ and θ₃ are the means of ‖Rz‖² and (Rz)ᵀR(Rz), with a relative standard error of at most √(2/64) where one eigenvalue is all that is left, and √(2/(64 r)) for r equal ones.
    """
    left = spectrum.total - float(spectrum.values.sum())
    complete = len(spectrum.values) == matrix.rank_limit
    if complete or not left > 1e-14 * spectrum.total:
        return spectrum
    if spectrum.every is not None:
        return replace(spectrum, residual_moments=moments_of_values(spectrum.every[len(spectrum.values) :]))
    with one_blas_thread():
        if matrix.side <= DENSE_LIMIT:
            return replace(spectrum, residual_moments=_dense(matrix, spectrum, left))
        return replace(spectrum, residual_moments=_estimated(matrix, spectrum, left, seed))


def with_moments_of_pairs(spectrum: Spectrum, matrix: Symmetric, clipped: float, missing: float) -> Spectrum:
    """Return `spectrum` with θ₂/θ₁² of the eigenvalues that it lacks, for a matrix of pairwise covariances.

    Its eigenvalues beyond the leading ones are spread by the noise of the missing values, below 0 too, which leaves the sum θ₁ as it
    is and adds to θ₂. With a share m of missing values, h = m / (1 − m), the noise of the entry (i, j) beside the leading
    directions has the variance h² (Cᵢᵢ Cⱼⱼ + 2 Cᵢⱼ²) / n for normal rows, so that h² ((Σ qᵢ Cᵢᵢ)² + 2 q̄² ‖C‖²) / n is subtracted, with
    qᵢ = 1 − Σ vᵢ² and their mean q̄. θ₂ is at least that of equal eigenvalues.

    Parameters
    ----------
    spectrum : Spectrum
        Leading pairs; its total is the sum of the eigenvalues that are not negative.
    matrix : Symmetric
        The matrix.
    clipped : float
        Sum of the moduli of the negative eigenvalues.
    missing : float
        h / √n.
    """
    left = spectrum.total - clipped - float(spectrum.values.sum())
    n_left = matrix.side - len(spectrum.values)
    if n_left < 1 or not left > 1e-14 * spectrum.total:
        return spectrum
    with one_blas_thread():
        dense = _without_leading(matrix, spectrum, left)
    outside = 1 - np.einsum("ij,ij->j", spectrum.vectors, spectrum.vectors)
    squares = float(np.vdot(dense, dense))
    norm = squares + float(np.square(spectrum.values / left).sum())
    squares -= missing**2 * ((float(outside @ matrix.diagonal) / left) ** 2 + 2 * float(outside.mean()) ** 2 * norm)
    return replace(spectrum, residual_moments=(min(max(squares, 1 / n_left), 1.0),))


def _without_leading(matrix: Symmetric, spectrum: Spectrum, unit: float) -> FloatArray:
    """Return the matrix without its leading part as a new array, divided by `unit`."""
    dense = matrix.dense()
    for start in range(0, len(dense), _BAND):
        band = slice(start, start + _BAND)
        dense[band] -= (spectrum.vectors[:, band].T * spectrum.values) @ spectrum.vectors
    dense /= unit
    return dense


def _dense(matrix: Symmetric, spectrum: Spectrum, left: float) -> Moments:
    dense, cubes = _without_leading(matrix, spectrum, left), 0.0
    for start in range(0, len(dense), _BAND):
        band = dense[start : start + _BAND]
        cubes += float(np.vdot(band @ dense, band))
    return _valid(float(np.vdot(dense, dense)), cubes, matrix.rank_limit - len(spectrum.values))


def _estimated(matrix: Symmetric, spectrum: Spectrum, left: float, seed: int) -> Moments:
    def applied(vectors: FloatArray) -> FloatArray:
        projected = vectors - spectrum.vectors.T @ (spectrum.vectors @ vectors)
        product = matrix.multiply(projected) / left
        return np.asarray(product - spectrum.vectors.T @ (spectrum.vectors @ product))

    squares, cubes, random = 0.0, 0.0, generator(seed, "residual moments")
    for _ in range(_PROBES // _PROBES_AT_ONCE):
        once = applied(np.asarray(random.standard_normal((matrix.side, _PROBES_AT_ONCE))))
        squares += float(np.vdot(once, once))
        cubes += float(np.vdot(once, applied(once)))
    return _valid(squares / _PROBES, cubes / _PROBES, matrix.rank_limit - len(spectrum.values))


def _valid(squares: float, cubes: float, n_left: int) -> Moments:
    """Return the moments within what is possible for `n_left` eigenvalues that are not negative.

    That is θ₁²/n ≤ θ₂ ≤ θ₁² and θ₂² ≤ θ₁θ₃, θ₃ ≤ θ₂^(3/2).
    """
    if not squares > 0:
        return ()
    squares = min(max(squares, 1 / n_left), 1.0)
    return squares, min(max(cubes, squares**2), squares**1.5)
