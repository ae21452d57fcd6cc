"""Maximum-likelihood factor analysis of a covariance matrix.

References
----------
Jöreskog (1967), Some contributions to maximum likelihood factor analysis, Psychometrika 32:443–482: the likelihood as a function
of the uniquenesses alone. Lawley & Maxwell (1971), Factor analysis as a statistical method, chapter 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import minimize

from streampca.errors import DataError
from streampca.typing import FloatArray

LEAST_UNIQUENESS = 1e-6
"""Smallest share of its variance that a feature has for itself: below, the likelihood grows without bound (a Heywood case)."""
_GRADIENT = 1e-9
_MOST_STEPS = 5000
_ALLOWED_GRADIENT = 1e-4


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
    """Evaluations of the likelihood."""


def maximum_likelihood(covariance: FloatArray, k: int) -> Factors:
    """Return the maximum-likelihood factors of a covariance of features that all vary; `covariance` is overwritten.

    For given ψ, with the eigenpairs (θ, q) of Ψ^−½ C Ψ^−½, W is Ψ^½ q (θ − 1)^½ of the k leading ones with θ > 1, and twice the
    negative log-likelihood is Σ log ψ + tr(Ψ⁻¹ C) + Σ (log θ − θ + 1) + const over these, with the derivative
    ((W Wᵀ)ⱼⱼ + ψⱼ − Cⱼⱼ) / ψⱼ by log ψⱼ (Jöreskog 1967). It is minimised by L-BFGS-B over log ψ, for features of variance 1; each step
    takes the k leading eigenpairs of a d × d matrix.

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

    start = np.log(np.full(d, max(0.1, 1 - 0.5 * k / d)))
    bounds = [(np.log(LEAST_UNIQUENESS), 0.0)] * d
    options: Any = {"maxiter": _MOST_STEPS, "maxfun": 2 * _MOST_STEPS, "maxcor": 30, "ftol": 0.0, "gtol": _GRADIENT}
    found: Any = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    logs = found.x
    value, slopes = objective(logs)
    at_bound = (logs <= bounds[0][0]) & (slopes > 0) | (logs >= 0.0) & (slopes < 0)
    gradient = float(np.abs(np.where(at_bound, 0.0, slopes)).max())
    if not np.isfinite(value) or gradient > _ALLOWED_GRADIENT:
        raise DataError(
            f"the likelihood of {k} factors reaches no maximum (derivative {gradient:.1e} after {found.nfev} steps): expected fewer factors, or "
            "features that are not linear functions of one another"
        )
    _, loadings, _ = leading(logs)
    unique = np.exp(logs)
    rows = (loadings * deviations[:, None]).T
    signs = np.where(rows[np.arange(k), np.abs(rows).argmax(axis=1)] < 0, -1.0, 1.0)[:, None]
    likelihood = -(d * np.log(2 * np.pi) + value + 2 * float(np.log(deviations).sum())) / 2
    return Factors(np.ascontiguousarray(rows * signs), unique * np.square(deviations), likelihood, gradient, found.nfev)
