"""Maximum-likelihood factor analysis of a covariance matrix.

References
----------
Jöreskog (1967), Some contributions to maximum likelihood factor analysis, Psychometrika 32:443–482: the likelihood as a function
of the uniquenesses alone. Lawley & Maxwell (1971), Factor analysis as a statistical method, chapter 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize

from streampca.errors import DataError
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
    rows = (loadings * deviations[:, None]).T
    signs = np.where(rows[np.arange(k), np.abs(rows).argmax(axis=1)] < 0, -1.0, 1.0)[:, None]
    likelihood = -(d * np.log(2 * np.pi) + value + 2 * float(np.log(deviations).sum())) / 2
    agreeing = sum(bool(each.fun <= value + _SAME) for each in rough)
    uniquenesses = unique * np.square(deviations)
    return Factors(
        np.ascontiguousarray(rows * signs), uniquenesses, likelihood, gradient, n_steps, len(rough), agreeing
    )


def _starts(correlation: FloatArray, k: int, seed: int) -> Iterator[FloatArray]:
    """Return uniquenesses from which the likelihood is maximised."""
    d = len(correlation)
    yield np.full(d, max(0.1, 1 - 0.5 * k / d))
    values, vectors = eigh(correlation, check_finite=False)
    yield (1 - 0.5 * k / d) / (np.square(vectors, out=vectors) @ (1 / np.maximum(values, 1e-10)))
    if d <= _MANY_FEATURES:
        yield np.full(d, 0.05)
        random = generator(seed, "factors")
        for _ in range(_N_STARTS - 3):
            yield random.uniform(0.05, 1.0, d)
