"""The evidence of probabilistic PCA for every number of components."""

from __future__ import annotations

import numpy as np

from streampca.typing import FloatArray

_EPS = 1e-15
"""Share of the first eigenvalue below which eigenvalues are 0."""


def log_evidence(values: FloatArray, n_samples: int, rounding: float = 0.0) -> FloatArray:
    """Return the logarithm of the evidence of 1 to d − 1 components, ``(d - 1,)`` (Minka 2000, eq. 30, with |A_z| of eq. 26).

    Equals the function that scikit-learn maximises for ``n_components="mle"``. Cost: d² logarithms.

    Parameters
    ----------
    values : array, shape (d,)
        All eigenvalues of the covariance matrix with divisor n − 1, largest first.
    n_samples : int
        Number of rows n.
    rounding : float
        Relative size up to which eigenvalues are rounding: there is no evidence of more components than there are above it.
    """
    from scipy.special import gammaln

    d, tiny, unit = len(values), float(np.finfo(np.float64).tiny), float(values[0])
    least = max(_EPS, rounding)
    values = np.maximum(values / unit, least)
    rank = np.arange(1, d)
    noise = np.maximum(np.cumsum(values[::-1])[::-1][1:] / (d - rank), least)
    inverse = 1 / values
    # Sums of log(λᵢ − λⱼ) over all j > i for every i, and of log(1/λⱼ − 1/λᵢ) over all i < j for every j.
    apart, inside = np.zeros(d), np.zeros(d)
    tail = np.empty(d - 1)
    for i in range(d - 1):
        apart[i] = np.log(np.maximum(values[i] - values[i + 1 :], tiny)).sum()
        inside[i + 1] = np.log(np.maximum(inverse[i + 1] - inverse[: i + 1], tiny)).sum()
        tail[i] = (d - 1 - i) * np.log(np.maximum(1 / noise[i] - inverse[: i + 1], tiny)).sum()
    n_pairs = d * rank - rank * (rank + 1) / 2
    hessian = np.cumsum(apart)[:-1] + np.cumsum(inside)[:-1] + tail + n_pairs * np.log(n_samples)
    spheres = gammaln((d - rank + 1) / 2) - np.log(np.pi) * (d - rank + 1) / 2
    prior = np.cumsum(spheres) - rank * np.log(2.0)
    likelihood = -n_samples / 2 * (np.cumsum(np.log(values))[:-1] + (d - rank) * np.log(noise))
    evidence: FloatArray = (
        prior + likelihood + np.log(2 * np.pi) * (n_pairs + rank) / 2 - hessian / 2 - rank * np.log(n_samples) / 2
    )
    evidence -= n_samples * d / 2 * np.log(unit)
    evidence[values[:-1] <= least] = -np.inf
    return evidence
