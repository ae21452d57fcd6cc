"""Laws of the eigenvalues of noise: Marchenko–Pastur, Tracy–Widom, the optimal threshold of singular values, and shrinkage of scores.

Shrinkage is how much scores of new rows are smaller than those of the rows of a fit, where features are many and rows are few.
A component is turned towards the noise of the rows that it was fitted to, so that their scores have the variance of that noise,
too, and those of other rows have not. For independent rows with few directions of large variance, the *spikes*, and any
covariance of the noise, the rms of new scores is ρ = −1 / (ℓ m(ℓ)) times that of the scores of the fit, for the eigenvalue ℓ
of the component and m(z) = (1/N) Σ 1 / (ℓᵢ − z) over the eigenvalues of the N × N Gram matrix that belong to no spike. This
follows from the variance 1 / (ℓ m(ℓ)²) of new rows along a component (Ledoit & Péché 2011); −1 / m(ℓ) is the
eigenvalue of the spike itself (Silverstein 1995). For noise of variance 1 in all of d features it is the (λ − 1) / (λ − 1 + d/N) of
Lee, Zou & Wright (2010); for other noise see Dey & Lee (2019).
"""

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
_NOTHING = 1e-13
"""Share of the variance up to which what is left of it is rounding."""


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


_NEXT, _ROUNDS = 5, 4
"""Eigenvalues to which their distances are fitted, and rounds of that."""
_TRIED, _LEAST_TRIED = 1.55, 8
"""Most components that may be separate: 1.55 n^0.4 of n eigenvalues (Onatski 2010), at least 8."""


def noise_like(total: float, squares: float, n_samples: int) -> tuple[float, float]:
    """Return number of features over samples and variance of white noise with these sums of eigenvalues and of their squares.

    The number of features is the effective number of markers of Patterson, Price & Reich (2006) but for terms of 1/N, for correlated ones.
    """
    mean, square = total / n_samples, squares / n_samples
    ratio = 1 / max(square / mean**2 - 1, 1e-12)
    return ratio, mean / ratio


def projection_shrinkage(
    values: FloatArray, left: float, moment: float, n_degrees: int, every: FloatArray | None = None
) -> FloatArray:
    """Return the factor ρ of each component; NaN from the first on that does not stand out of the noise.

    Where all eigenvalues are known, components stand out up to the last one whose distance from the next is large beside those of
    noise of any covariance (Onatski 2010). Else they do while white noise with the same sums of the other eigenvalues (`noise_like`)
    exceeds theirs with a probability below 0.01 by the Tracy–Widom law, as Patterson, Price & Reich (2006) test them, and m is that of this noise.

    Parameters
    ----------
    values : array, shape (k,)
        Leading eigenvalues, largest first.
    left : float
        Sum of the other eigenvalues.
    moment : float
        Sum of their squares over the square of their sum.
    n_degrees : int
        Rows less the means and slopes that were subtracted: N.
    every : array, optional
        All eigenvalues, of which `values` are the first; those that are 0 may be left out.
    """
    result = np.full(len(values), np.nan)
    if not len(values) or not values[0] > 0:
        return result
    unit = float(values[0])
    values, left = values / unit, left / unit
    if every is not None and len(every) > _NEXT + 1:
        n_spikes = min(n_separated(every / unit), len(values))
        # The mean is over the eigenvalues of the noise, so that few rows have the right number of them.
        others, n_noise, spikes = every[n_spikes:n_degrees] / unit, n_degrees - n_spikes, values[:n_spikes]
        sums = np.array([np.sum(1 / (value - others)) + (n_noise - len(others)) / value for value in spikes])
        result[:n_spikes] = n_noise / (spikes * sums)
        return result
    noise, n_spikes = (0.0, 0.0), 0
    for j, value in enumerate(values):
        later = values[j + 1 :]
        total, squares = left + float(later.sum()), moment * left**2 + float((later**2).sum())
        if total <= _NOTHING:
            result[: j + 1] = 1.0
            return result
        found = noise_like(total, squares, n_degrees)
        centre, scale = largest_noise(n_degrees, max(1.0, found[0] * n_degrees))
        if not value > found[1] * (centre + TRACY_WIDOM_99 * scale):
            break
        noise, n_spikes = found, j + 1
    # For white noise, ρ ℓ is the larger root of λ² − λ (ℓ + σ² − γ σ²) + ℓ σ² = 0.
    spikes, (ratio, variance) = values[:n_spikes], noise
    middle = spikes + variance - ratio * variance
    roots = np.sqrt(np.maximum(middle**2 - 4 * spikes * variance, 0.0))
    result[:n_spikes] = (middle + roots) / (2 * spikes)
    return result


def n_separated(every: FloatArray) -> int:
    """Return how many eigenvalues are separate from those of noise of any covariance: Onatski (2010).

    Distances of the largest eigenvalues of noise are those of λⱼ = a + b j^(2/3), which is fitted to five of them after the
    separate ones; twice the modulus of b is a large distance.
    """
    most = min(len(every) - _NEXT, max(_LEAST_TRIED, int(_TRIED * len(every) ** 0.4)))
    found = most
    for _ in range(_ROUNDS):
        after = every[found : found + _NEXT]
        slope = np.polyfit((found + np.arange(_NEXT)) ** (2 / 3), after, 1)[0]
        large = np.flatnonzero(
            every[:most] - every[1 : most + 1] >= max(2 * abs(float(slope)), _NOTHING * float(every[0]))
        )
        before, found = found, int(large[-1]) + 1 if len(large) else 0
        if found == before:
            break
    return found
