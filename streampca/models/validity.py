"""Conditions on the numbers of a model, checked when it is saved and when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from streampca.errors import ModelError
from streampca.formatting import shortened
from streampca.models.stored_components import Survey
from streampca.models.stored_rows import StoredRows
from streampca.parameters.choices import Method, Missing

if TYPE_CHECKING:
    from streampca.models.kernel import KernelModel
    from streampca.models.pca import PCAModel

_MISSING = get_args(Missing)
_METHODS = set(get_args(Method)) - {"auto"}


def require(condition: bool, path: Path, reason: str) -> None:
    """Raise `ModelError` with `reason` about the model at `path` unless `condition` is true."""
    if not condition:
        raise ModelError(f"{path} is not a usable model: {shortened(reason)}")


def require_valid(model: PCAModel, components: Survey, path: Path) -> None:
    """Raise `ModelError` unless the arrays and numbers of `model` agree with each other; `components` is their survey.

    Saving and loading call this one function, so that a model that was saved can be loaded.
    """
    d, values = model.components.shape[1], model.explained_variance
    require(values.shape == (len(model.components),), path, "its shapes do not agree")
    vectors = {name: getattr(model, name) for name in ("mean", "scale", "feature_weight", "fill")}
    for name, vector in vectors.items():
        require(vector is None or vector.shape == (d,), path, f"the shape of {name} does not agree")
    others = [vector for vector in (values, *vectors.values()) if vector is not None]
    finite = components.finite and all(np.isfinite(vector).all() for vector in others)
    require(finite, path, "it holds numbers that are not finite")
    ordered = bool((values >= 0).all()) and (not model.has_spectrum or bool((np.diff(values) <= 0).all()))
    require(ordered, path, "its variances are not in descending order")
    every = model.eigenvalues
    if every is not None:
        ordered = every.ndim == 1 and len(values) <= len(every) <= d and bool(np.isfinite(every).all())
        ordered = ordered and bool((every >= 0).all() and (np.diff(every) <= 0).all())
        require(ordered, path, "its eigenvalues are not all in descending order")
    errors = model.prediction_errors
    if errors is not None:
        good = errors.ndim == 1 and 0 < len(errors) <= d and bool(np.isfinite(errors).all() and (errors >= 0).all())
        require(good, path, "its prediction_errors are damaged")
    error = components.orthonormality
    tolerance = 1e-8 if model.components.dtype == np.float64 else 1e-5
    require(error <= tolerance or not model.has_spectrum, path, f"its components are not orthonormal (by {error:.1e})")
    constant, weight, share = model.constant_features, model.sample_weight, model.feature_weight
    ranges = {
        "total_variance": _is_total(model),
        "n_samples": model.n_samples > 0,
        "sample_weight": weight is None or (bool(np.isfinite(weight)) and weight > 0),
        "missing": model.missing in _MISSING,
        "missing_scores": model.missing_scores in ("conditional", "mean"),
        "fill": (model.fill is not None) == (model.missing in ("mean", "pairwise")),
        "feature_weight": share is None or bool((share >= 0).all()),
        # Weights may add up to more than ddof in a single row, so that only unweighted rows are counted.
        "ddof": model.ddof >= 0 and (weight is not None or model.ddof < model.n_samples),
        "numerical_rank": 0 <= model.numerical_rank <= len(values),
        "residual_moments": len(model.residual_moments) <= 2 and all(0 < each <= 1 for each in model.residual_moments),
        "constant_features": bool(((constant >= 0) & (constant < d)).all()),
    }
    for name, valid in ranges.items():
        value = getattr(model, name)
        shown = value if not isinstance(value, np.ndarray) else f"{len(value)} values"
        require(valid, path, f"{name} is out of range: {shown}")


def _is_total(model: PCAModel) -> bool:
    """Return whether the total variance is valid; eigenvalues of approximate solvers may exceed it in sum.

    Those of the conversion of Marukatat (2023) are not below those of the covariance.
    """
    total = model.total_variance
    exact = model.certificate.kind == "exact" and model.has_spectrum
    return bool(np.isfinite(total)) and (not exact or total * (1 + 1e-6) >= float(model.explained_variance.sum()))


def require_valid_kernel(model: KernelModel, path: Path) -> None:
    """Raise `ModelError` unless the arrays and numbers of `model` agree with each other, as `require_valid` does."""
    arrays = {name: getattr(model, name) for name in ("landmarks", "coefficients", "centre", "eigenvalues")}
    if isinstance(model.landmarks, StoredRows):
        del arrays["landmarks"]  # examined while they are read for their digest
    if model.preimage is not None:
        arrays |= {"way_back_scores": model.preimage.scores, "way_back_dual": model.preimage.dual}
    unusable = [name for name, values in arrays.items() if not np.isfinite(values).all()]
    require(not unusable, path, f"it holds numbers that are not finite ({', '.join(unusable)})")
    landmarks, values, indices = model.landmarks, model.eigenvalues, model.landmark_indices
    usable = landmarks.ndim == 2 and landmarks.size > 0 and values.ndim == 1 and len(values) > 0
    require(usable, path, "its shapes do not agree")
    (m, d), k = landmarks.shape, len(values)
    shapes = {"coefficients": (m, k), "centre": (m,), "way_back_scores": (m, k), "way_back_dual": (m, d)}
    agree = all(arrays[name].shape == shape for name, shape in shapes.items() if name in arrays)
    require(agree and (indices is None or indices.shape == (m,)), path, "its shapes do not agree")
    ordered = bool((values >= 0).all() and (np.diff(values) <= 0).all())
    require(ordered, path, "its eigenvalues are not in descending order")
    rows_exist = indices is None or bool(((indices >= 0) & (indices < model.n_samples)).all())
    ranges: dict[str, tuple[bool, object]] = {
        "landmark_indices": (rows_exist, "rows that do not exist"),
        "n_samples": (model.n_samples > 0, model.n_samples),
        "method": (model.method in _METHODS, model.method),
        "total": (bool(np.isfinite(model.total)), model.total),
    }
    for name, (valid, shown) in ranges.items():
        require(valid, path, f"{name} is out of range: {shown!r}")
