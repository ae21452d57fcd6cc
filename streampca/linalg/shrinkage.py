"""How much scores of new rows are smaller than those of the rows of a fit, where features are many and rows are few.

A component is turned towards the noise of the rows that it was fitted to, so that their scores have the variance of that noise,
too, and those of other rows have not. For independent rows with few directions of large variance, the *spikes*, and any
covariance of the noise, the rms of new scores is ρ = −1 / (ℓ m(ℓ)) times that of the scores of the fit, for the eigenvalue ℓ
of the component and m(z) = (1/N) Σ 1 / (ℓᵢ − z) over the eigenvalues of the N × N Gram matrix that belong to no spike. This
follows from the variance 1 / (ℓ m(ℓ)²) of new rows along a component (Ledoit & Péché 2011); −1 / m(ℓ) is the
eigenvalue of the spike itself (Silverstein 1995). For noise of variance 1 in all of d features it is the (λ − 1) / (λ − 1 + d/N) of
Lee, Zou & Wright (2010); for other noise see Dey & Lee (2019).
"""

from __future__ import annotations

import numpy as np

from streampca.linalg.random_matrix import TRACY_WIDOM_99, largest_noise
from streampca.typing import FloatArray

_NEXT, _ROUNDS = 5, 4
"""Eigenvalues to which their distances are fitted, and rounds of that."""
_TRIED, _LEAST_TRIED = 1.55, 8
"""Most components that may be separate: 1.55 n^0.4 of n eigenvalues (Onatski 2010), at least 8."""
_NOTHING = 1e-13
"""Share of the variance up to which what is left of it is rounding."""


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
        result[:n_spikes] = _of_all(values[:n_spikes], every / unit, n_degrees)
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
    result[:n_spikes] = _of_noise(values[:n_spikes], *noise)
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


def _of_noise(spikes: FloatArray, ratio: float, variance: float) -> FloatArray:
    """Return the factors for white noise: ρ ℓ is the larger root of λ² − λ (ℓ + σ² − γ σ²) + ℓ σ² = 0."""
    middle = spikes + variance - ratio * variance
    roots = np.sqrt(np.maximum(middle**2 - 4 * spikes * variance, 0.0))
    return np.asarray((middle + roots) / (2 * spikes))


def _of_all(spikes: FloatArray, every: FloatArray, n_degrees: int) -> FloatArray:
    """Return the factors from all eigenvalues; the mean is over those of the noise, so that few rows have the right number of them."""
    noise = every[len(spikes) : n_degrees]
    n_noise = n_degrees - len(spikes)
    sums = np.array([np.sum(1 / (value - noise)) + (n_noise - len(noise)) / value for value in spikes])
    return np.asarray(n_noise / (spikes * sums))
