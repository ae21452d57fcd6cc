"""Models as estimators of scikit-learn."""

from __future__ import annotations

from functools import partial

import numpy as np
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from streampca.errors import NotAvailableError
from streampca.export.formats import inverse_factors, require_expressible, require_memory
from streampca.models.pca import Model, PCAModel
from streampca.models.stored import StoredComponents
from streampca.typing import FloatArray

_SMALLEST = float(np.finfo(np.float64).eps)
"""scikit-learn divides whitened scores by no less."""
_NEGLIGIBLE = 1e-13


def to_sklearn(
    model: Model, names: list[str] | None, memory: int | str | None = None
) -> PCA | FactorAnalysis | Pipeline:
    """Return `model` as a fitted estimator of scikit-learn; see `streampca.PCA.to_sklearn`.

    Parameters
    ----------
    model : PCAModel
        The model.
    names : list of str or None
        Names of the features.
    memory : int, str or None
        Ceiling of the process, for components that are on disk.
    """
    model = require_expressible(model, "scikit-learn")
    if isinstance(model.components, StoredComponents):
        require_memory(model, memory, 16)
    factors = model.weights
    mean = np.zeros_like(model.mean) if factors is not None else model.mean.copy()
    fitted: PCA | FactorAnalysis
    if model.uniquenesses is not None:
        name, fitted = "factor_analysis", _factors(model, mean)
    else:
        name, fitted = "pca", _pca(model, mean)
    steps: list[tuple[str, FunctionTransformer | StandardScaler | PCA | FactorAnalysis]] = [(name, fitted)]
    if factors is not None:
        steps.insert(0, ("scale", _scaler(model, factors)))
    if model.fill is not None:
        replace = partial(
            np.nan_to_num, nan=model.fill.copy(), posinf=np.inf, neginf=-np.inf
        )  # its inverse does nothing
        steps.insert(0, ("fill", FunctionTransformer(replace).fit(np.zeros((1, len(model.fill))))))
    if names is not None:
        steps[0][1].feature_names_in_ = np.array(names, dtype=object)
    return fitted if len(steps) == 1 else Pipeline(steps)


def _pca(model: PCAModel, mean: FloatArray) -> PCA:
    """Return the fitted `PCA` of features that are scaled already."""
    components = model.components
    vectors = components.in_memory() if isinstance(components, StoredComponents) else components.copy()
    if model.weights is not None:
        unused = model.weights == 0
        if (np.abs(vectors[:, model.constant_features]) > _NEGLIGIBLE).any():
            raise _beyond_rank(model, "lie along features that never vary")
        vectors[:, unused] = 0.0
    if model.whiten and model.numerical_rank < len(vectors):
        raise _beyond_rank(model, "have no variance above rounding, as their whitened scores would not be 0")
    if model.whiten and np.sqrt(model.explained_variance).min() < _SMALLEST:
        raise NotAvailableError(
            f"scikit-learn cannot express whitened components with standard deviations below {_SMALLEST:.1e}: fit data in other units"
        )
    pca = PCA(n_components=len(vectors), whiten=model.whiten)
    pca.components_ = vectors
    pca.explained_variance_ = model.explained_variance.copy()
    pca.explained_variance_ratio_ = model.explained_variance_ratio
    pca.singular_values_ = model.singular_values
    pca.mean_ = mean
    pca.n_components_ = len(vectors)
    pca.n_samples_ = model.n_samples
    pca.noise_variance_ = model.noise_variance
    pca.n_features_in_ = vectors.shape[1]
    return pca


def _factors(model: PCAModel, mean: FloatArray) -> FactorAnalysis:
    """Return the fitted `FactorAnalysis` of features that are scaled already; all of its attributes are set."""
    k, figures = model.n_components, model.summary()
    factors = FactorAnalysis(n_components=k, rotation=figures.get("rotation"))
    factors.components_ = model.loadings()
    factors.noise_variance_ = model.noise_of_features.copy()
    factors.mean_ = mean
    factors.n_features_in_ = len(mean)
    factors.n_iter_ = figures["n_iterations"]
    factors.loglike_ = [model.weight * figures["log_likelihood"]]
    return factors


def _beyond_rank(model: PCAModel, reason: str) -> NotAvailableError:
    return NotAvailableError(
        f"scikit-learn cannot express components that {reason}: fit with n_components={model.numerical_rank} or fewer"
    )


def _scaler(model: PCAModel, factors: FloatArray) -> StandardScaler:
    """Return the fitted scaler that centres and multiplies features by `factors`; features of factor 0 are left as they are."""
    scaler = StandardScaler(with_mean=model.center)
    scaler.mean_ = model.mean.copy()
    scaler.scale_ = np.where(factors > 0, inverse_factors(model), 1.0)
    scaler.var_ = scaler.scale_**2
    scaler.n_features_in_ = len(factors)
    scaler.n_samples_seen_ = model.n_samples
    return scaler
