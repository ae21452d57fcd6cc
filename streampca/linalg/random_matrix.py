"""Laws of the eigenvalues of pure noise: Marchenko–Pastur, Tracy–Widom, and the optimal threshold of singular values."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from streampca.typing import FloatArray

TRACY_WIDOM_99: Final = 2.023449281380259
"""The value that the Tracy–Widom law of real matrices exceeds with probability 0.01."""
_MOST_STEPS = 60
_ROUNDING = 1e-14
_NODES = 60
_LENGTH = 16.0
"""Nodes of the quadrature, and the length of the interval beyond which the Airy function is below 1e-17 of its maximum."""


def upper_edge(ratio: float) -> float:
    """Return the upper end (1 + √γ)² of the Marchenko–Pastur law of noise of variance 1, for γ = features / samples."""
    return float((1 + np.sqrt(ratio)) ** 2)


def edge_of_variances(variances: FloatArray, n_samples: int) -> float:
    """Return the upper end of the law of the eigenvalues of independent features with these variances, ``(n_features,)``.

    With rⱼ the variances that are not 0 divided by t, the largest, it is the minimum of t v (1 + (1/n) Σ rⱼ / (v − rⱼ)) over v > 1
    (Silverstein & Choi 1995, for v = 1/u); its derivative is 0 where F(v) = Σ (rⱼ / (v − rⱼ))² is n. F^(−1/2) rises and is concave, so
    that Newton steps from 1 + 1/√n, where F ≥ n, never go beyond that v, and are few: it is linear for equal variances, which give the
    Marchenko–Pastur edge.
    """
    positive = variances[variances > 0]
    if not len(positive):
        return 0.0
    largest = float(positive.max())
    shares = positive / largest
    v = 1 + 1 / np.sqrt(n_samples)
    for _ in range(_MOST_STEPS):
        distances = v - shares
        squares = np.square(shares / distances)
        total = float(squares.sum())
        step = total * (np.sqrt(total / n_samples) - 1) / float((squares / distances).sum())
        if step <= _ROUNDING * v:
            break
        v += step
    return largest * float(v * (1 + np.sum(shares / (v - shares)) / n_samples))


@lru_cache(maxsize=64)
def median(ratio: float) -> float:
    """Return the median of the Marchenko–Pastur law of noise of variance 1, for γ = `ratio` in (0, 1].

    With x = a + (b − a) sin²(t) for the ends a and b of the law its density √((b − x)(x − a)) / (2 π γ x) has no singular
    derivative, so that Gauss–Legendre quadrature converges to rounding; bisection finds the median.
    """
    low, high = (1 - np.sqrt(ratio)) ** 2, upper_edge(ratio)
    nodes, weights = np.polynomial.legendre.leggauss(200)

    def mass(t: float) -> float:
        angles = t * (nodes + 1) / 2
        x = low + (high - low) * np.sin(angles) ** 2
        density = (high - low) ** 2 * np.sin(2 * angles) ** 2 / 2
        return float(t / 2 * (weights @ np.divide(density, x, out=np.zeros_like(x), where=x > 0)) / (2 * np.pi * ratio))

    ends = [0.0, np.pi / 2]
    for _ in range(60):
        middle = sum(ends) / 2
        ends[mass(middle) > 0.5] = middle
    return float(low + (high - low) * np.sin(sum(ends) / 2) ** 2)


def optimal_threshold(ratio: float) -> float:
    """Return ω(β): the best hard threshold of singular values in units of their median, where the noise is not known.

    ω(β) = λ*(β) / √μ(β) with the median μ of the Marchenko–Pastur law and λ*(β) = √(2 (β + 1) + 8 β / ((β + 1) + √(β² + 14 β + 1)))
    (Gavish & Donoho 2014, eqs. 11 and 5), for β = shorter side / longer side; 4/√3 is λ*(1), 2.858 is ω(1).
    """
    root = np.sqrt(ratio**2 + 14 * ratio + 1)
    known = np.sqrt(2 * (ratio + 1) + 8 * ratio / (ratio + 1 + root))
    return float(known / np.sqrt(median(ratio)))


@lru_cache(maxsize=1)
def _nodes() -> tuple[FloatArray, FloatArray]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1) / 2 * _LENGTH, weights / 2 * _LENGTH


def tracy_widom(s: float) -> float:
    """Return the distribution function F₁ of the Tracy–Widom law of real matrices at `s`.

    F₁(s) = det(1 − B) with the kernel B(x, y) = Ai(x + y + s) on (0, ∞) (Ferrari & Spohn 2005), by Gauss–Legendre
    quadrature (Bornemann 2010).
    """
    from scipy.special import airy

    x, weights = _nodes()
    root = np.sqrt(weights)
    kernel = root[:, None] * airy(x[:, None] + x[None, :] + s)[0] * root
    return float(np.clip(np.linalg.det(np.eye(len(x)) - kernel), 0.0, 1.0))


def largest_noise(n_samples: float, n_features: float) -> tuple[float, float]:
    """Return centre and scale of the largest eigenvalue of a sample covariance of noise of variance 1.

    (ℓ₁ − centre) / scale follows the Tracy–Widom law (Johnstone 2001), here with the constants of Ma (2012), which differ from
    Johnstone's by the halves and leave an error of order n^(−2/3) instead of n^(−1/3).
    """
    n, p = np.sqrt(n_samples - 0.5), np.sqrt(n_features - 0.5)
    centre, scale = (n + p) ** 2, (n + p) * (1 / n + 1 / p) ** (1 / 3)
    return float(centre / n_samples), float(scale / n_samples)


def noise_variance(values: FloatArray, total: float, n_samples: int, n_features: int) -> float:
    """Return the noise variance of data with as many components as `values`, the leading eigenvalues.

    Solves the equations of Kritchman & Nadler (2009, section III.E): with the eigenvalues ρⱼ of the population that belong to
    the biased ℓⱼ, ρ² − ρ (ℓ + σ² − σ² (p − k) / n) + ℓ σ² = 0, and σ² = (Σ_{j>k} ℓⱼ + Σ_{j≤k} (ℓⱼ − ρⱼ)) / (p − k). Only the trace
    is needed of the other eigenvalues.
    """
    k = len(values)
    left = max(0.0, total - float(values.sum())) / (n_features - k)
    sigma = left / max(1 - k / n_samples, 1.0 / n_samples)
    for _ in range(30):
        middle = values + sigma - (n_features - k) / n_samples * sigma
        inside = middle**2 - 4 * values * sigma
        if (inside < 0).any():
            break
        excess = np.maximum(values - (middle + np.sqrt(inside)) / 2, 0)
        previous, sigma = sigma, left + float(excess.sum()) / (n_features - k)
        if abs(sigma - previous) <= 1e-5 * previous:
            break
    return sigma
