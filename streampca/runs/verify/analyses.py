"""Models of two tables and of factors against the moments of the rows: the equations that define them."""

from __future__ import annotations

import numpy as np

from streampca.linalg.scaling import Scaling
from streampca.models.analysis import AnalysisModel
from streampca.runs.verify.checks import Check, compared
from streampca.runs.verify.eigenpairs import Measured, allowed_rounding, checks_of_features

_ALLOWED_LIKELIHOOD = 1e-4
"""Derivative of the likelihood up to which a fit takes its maximum as reached."""


def checks_of_analysis(model: AnalysisModel, measured: Measured, scaling: Scaling) -> list[Check]:
    """Compare a model with the products C Wᵀ of the covariance of its rows and its weights W.

    Of two tables with weights U and V: the variances U C₁₁ Uᵀ and V C₂₂ Vᵀ of the scores, their covariances U C₁₂ Vᵀ, which are the singular values
    or correlations, and nothing between different pairs; of factors that Wᵀ Φ W + ψ has the diagonal of C.
    """
    allowed = allowed_rounding(model, measured.n_samples)
    checks = [
        compared("samples", model.n_samples, measured.n_samples, 0.0, "rows that count"),
        *checks_of_features(model, measured, scaling, model.rounding),
        compared(
            "total variance",
            model.total_variance,
            measured.total,
            allowed,
            "relative to itself",
            scale=model.total_variance,
        ),
    ]
    if measured.products is None or measured.products.shape[1] < model.n_components:
        return [*checks, Check("components", note="the memory does not take the products with all of them")]
    weights = np.asarray(model.components)
    covariance = weights @ measured.products
    variances = np.diag(covariance)
    note = "of component {}, the worst, relative to the total variance times the squares of its weights"
    scale = model.total_variance * np.square(weights).sum(axis=1)
    checks.append(compared("variances of scores", model.explained_variance, variances, allowed, note, scale=scale))
    if model.n_first is None:
        communal = model.communalities
        unique = 0.0 if model.uniquenesses is None else model.uniquenesses
        apart = np.where(measured.diagonal > 0, np.abs(communal + unique - measured.diagonal), 0.0)
        note = "Wᵀ Φ W + ψ against the variance of feature {}, the worst, relative to itself"
        scale = np.where(measured.diagonal > 0, measured.diagonal, 1.0)
        allowed_share = _ALLOWED_LIKELIHOOD + allowed * model.total_variance / float(scale.min())
        checks.append(
            compared(
                "diagonal", measured.diagonal, communal + unique, allowed_share, note, scale=scale, apart=apart, first=0
            )
        )
        return checks
    k = len(model.strengths)
    cross = covariance[:k, k:]
    error = 8 * (model.error or 0.0) + 4 * allowed * float(np.abs(model.strengths).max(initial=0.0))
    note = "of pair {}, the worst"
    checks.append(compared("covariances of scores", model.strengths, np.diag(cross), error, note))
    between = cross - np.diag(np.diag(cross))
    worst = np.abs(between).max(axis=1) if k > 1 else np.zeros(k)
    note = "between the scores of pair {}, the worst, and of others"
    checks.append(compared("pairs apart", np.zeros(k), worst, error, note))
    return checks
