"""Checks of the eigenvalues of a run, of the covariances of its scores, of its components and missing values."""

from __future__ import annotations

import numpy as np

from streampca.linalg.random_matrix import edge_of_variances
from streampca.models.pca import PCAModel
from streampca.runs.checks import Check, close
from streampca.typing import FloatArray


def all_eigenvalues(model: PCAModel, matrix: FloatArray, total: float, allowed: float) -> list[Check]:
    """Compare all eigenvalues, from which `component_rules` follow, where the model has them.

    Parameters
    ----------
    model : PCAModel
        The model.
    matrix : array, shape (n_features, n_features)
        The covariance matrix as measured, or empty where it is large: then the leading eigenvalues are compared with the variances of
        the components, and the sum with the total variance.
    total : float
        The total variance as measured.
    allowed : float
        Difference that rounding may make, relative to the first eigenvalue.
    """
    recorded, name = model.eigenvalues, "all eigenvalues"
    if recorded is None:
        return []
    first = float(model.explained_variance[0])
    if not len(matrix):
        whole = float(recorded.sum())
        apart = max(float(np.abs(recorded[: model.n_components] - model.explained_variance).max()), abs(whole - total))
        note = "their sum, and that the leading ones are the variances of the components"
        return [close(name, whole, total, max(first, total), allowed, note, difference=apart)]
    measured = np.maximum(np.linalg.eigvalsh(matrix)[::-1][: len(recorded)], 0.0)
    worst = int(np.abs(measured - recorded).argmax())
    note = f"number {worst + 1}, the worst, relative to the first eigenvalue"
    return [close(name, recorded[worst], measured[worst], first, allowed, note)]


def edge_of_noise(model: PCAModel, variances: FloatArray, allowed: float) -> list[Check]:
    """Compare the edge of noise with that of the measured `variances` after scaling, ``(n_features,)``, where the model has it."""
    if model.noise_edge is None:
        return []
    measured = edge_of_variances(variances, model.n_samples - model.n_means)
    note = "largest eigenvalue of independent features with the same variances, relative to itself"
    return [close("edge of noise", model.noise_edge, measured, model.noise_edge, 4 * allowed, note)]


def covariances(model: PCAModel, products: FloatArray, allowed: float) -> Check:
    """Compare the covariances of scores, ``(k, k)``, with 0.

    Components of ``solver="gram"`` are Xᵀu / σ: an error E of X Xᵀ is divided by the singular values of both, so that
    between components i and j up to ‖E‖ σᵢ / σⱼ remains, which is the larger the smaller σⱼ.
    """
    values = np.maximum(model.explained_variance, allowed * model.explained_variance[0])
    roots = np.sqrt(values)
    of_gram = model.source.get("solver") == "gram"
    between = np.maximum(roots[:, None], roots) / np.minimum(roots[:, None], roots) if of_gram else 1.0
    off = np.abs(products - np.diag(np.diag(products))) / between
    note = "largest, relative to the first eigenvalue"
    return close("covariances of scores", 0.0, float(off.max(initial=0.0)), float(values[0]), allowed, note)


def orthonormality(model: PCAModel) -> Check:
    """Compare the products of components with 0 and 1."""
    vectors, recorded = np.asarray(model.components), model.certificate["orthonormality"]
    turned = float(np.abs(vectors @ vectors.T - np.eye(len(vectors))).max())
    return close("orthonormality", recorded, turned, 1.0, 1e-8, "largest deviation", difference=turned)


def missing_values(model: PCAModel, measured: int) -> list[Check]:
    """Compare the number of values that were filled in."""
    if model.fill is None:
        return []
    recorded = int(model.certificate.get("missing_values") or 0)
    return [close("missing values", recorded, measured, 1.0, 0.0, "values that were filled in")]
