"""Limits of Hotelling's T² and of the squared prediction error Q of normally distributed rows."""

from __future__ import annotations

import math
from typing import Literal

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
