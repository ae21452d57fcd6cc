"""Check of the eigenvalues of pairwise covariances, which are not sums over rows that were filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.linalg.eigen import negative_mass
from streampca.models.pca import PCAModel
from streampca.runs.checks import Check, close

_SLACK = 4.0
"""Factor between the rounding in a certificate and the allowed difference: both sides are rounded."""


def pairwise_checks(model: PCAModel, accumulator: Any, state: Any) -> list[Check]:
    """Compare variances of components, and the total, with those of the measured pairwise covariances."""
    matrix = accumulator.finalize(state)
    if model.feature_weight is not None:
        matrix = replace(matrix, weights=matrix.weights * np.sqrt(model.feature_weight))
    vectors, first = np.asarray(model.components), float(model.explained_variance[0])
    values = np.maximum(np.einsum("ij,ji->i", vectors, matrix.multiply(np.ascontiguousarray(vectors.T))), 0.0)
    total = float(matrix.diagonal.sum()) + negative_mass(matrix)
    allowed = _SLACK * max(model.rounding, 1e-14) + float(model.certificate.get("eigen_residual") or 0.0)
    worst = int(np.abs(values - model.explained_variance).argmax())
    note = f"of component {worst + 1}, the worst, relative to the first eigenvalue"
    recorded = model.explained_variance[worst]
    return [
        close(
            "total variance",
            model.total_variance,
            total,
            model.total_variance,
            allowed,
            "with the moduli of negative eigenvalues",
        ),
        close("variances of components", recorded, values[worst], first, allowed, note),
    ]
