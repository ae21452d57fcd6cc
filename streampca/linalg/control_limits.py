"""Limits of Hotelling's T² and of the squared prediction error Q of normally distributed rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from streampca.linalg.eigen import DENSE_LIMIT, Spectrum, Symmetric
from streampca.random import generator
from streampca.system.process import one_blas_thread
from streampca.typing import FloatArray

Distribution = Literal["f", "beta", "chi2"]
"""``"f"``: of rows that were not in the fit; ``"beta"``: of rows that were; ``"chi2"``: of a known covariance."""
QMethod = Literal["jackson-mudholkar", "box"]


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(probability))


def t2_limit(
    n_components: int, weight: float, probability: float, *, distribution: Distribution, n_means: int, ddof: float
) -> float:
    """Return the value that T² exceeds with the probability 1 − `probability`.

    With c means and slopes that were fitted to each feature, ν = n − c degrees of freedom, and eigenvalues of divisor ν:

    - ``"f"``: (1 + c/n) k ν / (ν − k + 1) · F(k, ν − k + 1), which for c = 1 is k (n² − 1) / (n (n − k)) · F(k, n − k);
    - ``"beta"``: ν (1 − c/n) · Beta(k/2, (ν − k)/2), which for c = 1 is (n − 1)²/n · Beta(k/2, (n − k − 1)/2);
    - ``"chi2"``: χ²(k).

    Eigenvalues of another divisor scale the first two. c/n is the leverage of a row, that of all rows for c = 1 or groups of one size,
    and else its mean over the rows of the fit.

    Parameters
    ----------
    n_components : int
        k.
    weight : float
        n, the sum of the weights of the rows.
    probability : float
        Share of rows that are not above the limit.
    distribution : {"f", "beta", "chi2"}
        Of rows that were not in the fit, that were in it, or of a known covariance.
    n_means : int
        c: 1 where the mean was subtracted, 0 where nothing was.
    ddof : float
        The divisor of the eigenvalues is n − ddof.

    References
    ----------
    Tracy, Young & Mason (1992), Multivariate control charts for individual observations, Journal of Quality Technology 24:88–95.
    """
    from scipy.special import betaincinv, chdtri, fdtri

    k = n_components
    if distribution == "chi2":
        return float(chdtri(k, 1 - probability))
    freedom, leverage = weight - n_means, n_means / weight
    divisor = (weight - ddof) / freedom
    if distribution == "f":
        denominator = freedom - k + 1
        return float((1 + leverage) * k * freedom / denominator * fdtri(k, denominator, probability)) * divisor
    return float(freedom * (1 - leverage) * betaincinv(k / 2, (freedom - k) / 2, probability)) * divisor


def q_limit(variance_left: float, moments: tuple[float, ...], probability: float) -> tuple[float, QMethod]:
    """Return the value that Q exceeds with the probability 1 − `probability`, and by which approximation.

    With three power sums that of Jackson & Mudholkar (1979, eq. 3.4), with h₀ = 1 − 2θ₁θ₃/(3θ₂²) and the normal quantile z

        θ₁ [1 + z √(2θ₂h₀²)/θ₁ + θ₂h₀(h₀ − 1)/θ₁²]^(1/h₀);

    with two of them, or where h₀ is not positive, that of Box (1954): g χ²(h) of the same mean and variance, g = θ₂/θ₁, h = θ₁²/θ₂.

    Parameters
    ----------
    variance_left : float
        θ₁, the sum of the eigenvalues that the model leaves out.
    moments : tuple of float
        θ₂/θ₁², and θ₃/θ₁³ where it is known.
    probability : float
        Share of rows that are not above the limit.

    References
    ----------
    Jackson & Mudholkar (1979), Control procedures for residuals associated with principal component analysis, Technometrics
    21:341–349. Box (1954), Some theorems on quadratic forms applied in the study of analysis of variance problems, I, Annals of
    Mathematical Statistics 25:290–302, theorem 3.1.
    """
    squares = moments[0]
    if len(moments) > 1:
        power = 1 - 2 * moments[1] / (3 * squares**2)
        if power > 1e-3:
            z = normal_quantile(probability)
            inner = 1 + z * math.sqrt(2 * squares) * power + squares * power * (power - 1)
            if inner > 0:
                return variance_left * inner ** (1 / power), "jackson-mudholkar"
    from scipy.special import gammaincinv

    return variance_left * squares * 2 * float(gammaincinv(0.5 / squares, probability)), "box"


Moments = tuple[float, ...]
"""θ₂/θ₁², and θ₃/θ₁³ where it is known; empty where nothing is."""

_PROBES = 64  # a product with 64 vectors takes little longer than one with 16
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
        squares, cubes = (
            _dense(matrix, spectrum, left) if matrix.side <= DENSE_LIMIT else _estimated(matrix, spectrum, left, seed)
        )
    if not squares > 0:
        return replace(spectrum, residual_moments=())
    # Of n eigenvalues that are not negative, θ₁²/n ≤ θ₂ ≤ θ₁² and θ₂² ≤ θ₁θ₃, θ₃ ≤ θ₂^(3/2).
    squares = min(max(squares, 1 / (matrix.rank_limit - len(spectrum.values))), 1.0)
    return replace(spectrum, residual_moments=(squares, min(max(cubes, squares**2), squares**1.5)))


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


def _dense(matrix: Symmetric, spectrum: Spectrum, left: float) -> tuple[float, float]:
    dense, cubes = _without_leading(matrix, spectrum, left), 0.0
    for start in range(0, len(dense), _BAND):
        band = dense[start : start + _BAND]
        cubes += float(np.vdot(band @ dense, band))
    return float(np.vdot(dense, dense)), cubes


def _estimated(matrix: Symmetric, spectrum: Spectrum, left: float, seed: int) -> tuple[float, float]:
    def applied(vectors: FloatArray) -> FloatArray:
        projected = vectors - spectrum.vectors.T @ (spectrum.vectors @ vectors)
        product = matrix.multiply(projected) / left
        return np.asarray(product - spectrum.vectors.T @ (spectrum.vectors @ product))

    once = applied(np.asarray(generator(seed, "residual moments").standard_normal((matrix.side, _PROBES))))
    return float(np.vdot(once, once)) / _PROBES, float(np.vdot(once, applied(once))) / _PROBES
