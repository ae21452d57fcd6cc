"""Shrinkage of the scores of new rows, for a fitted model."""

from __future__ import annotations

from streampca.errors import NotComputedError
from streampca.linalg.random_matrix import projection_shrinkage
from streampca.models.limits import variance_left
from streampca.models.pca import PCAModel
from streampca.typing import FloatArray


def projection_shrinkage_of(model: PCAModel) -> FloatArray:
    """Return the factors of a model, ``(k,)``; see `PCA.projection_shrinkage`.

    Raises
    ------
    NotComputedError
        If no factors are known for such rows.
    """
    if obstacle := _obstacle(model):
        raise NotComputedError(f"there is no projection shrinkage: {obstacle}")
    left = max(0.0, variance_left(model))
    moment = model.residual_moments[0] if model.residual_moments else 0.0
    n_degrees = model.n_samples - model.n_means
    return projection_shrinkage(model.explained_variance, left, moment, n_degrees, model.eigenvalues)


def _obstacle(model: PCAModel) -> str:
    """Return why there are no factors, empty where there are."""
    if model.sample_weight is not None:
        return "rows have weights, for which no law of the eigenvalues of noise is known; fit without sample_weight"
    if model.missing == "pairwise":
        return "a matrix of pairwise covariances has other eigenvalues than its rows; fit with missing='mean'"
    if model.n_samples - model.n_means < 2:
        return f"there are {model.n_samples:,} rows: expected two more than means and slopes that were subtracted"
    if not model.residual_moments and variance_left(model) > max(model.rounding, 1e-13) * model.total_variance:
        return (
            "the sums of powers of the eigenvalues left out are not known, because the model was saved by an earlier version, or its "
            "sketch has no held-out columns; fit again, with an exact solver"
        )
    return ""
