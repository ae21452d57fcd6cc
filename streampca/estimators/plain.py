"""What estimators need of scikit-learn's interface, for installations without it."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from streampca.errors import NotFittedError, ParameterError
from streampca.typing import Array


class BaseEstimator:
    """Parameters by name, as those of ``sklearn.base.BaseEstimator``."""

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the constructor's parameters, sorted."""
        return sorted(name for name in inspect.signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return parameters by name; with `deep`, those of estimators among them as ``name__parameter``, too."""
        values: dict[str, Any] = {}
        for name in self._get_param_names():
            value = values[name] = getattr(self, name)
            if deep and isinstance(value, BaseEstimator):
                values.update((f"{name}__{inner}", given) for inner, given in value.get_params().items())
        return values

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; ``name__parameter`` sets one of the estimator `name`."""
        known = self._get_param_names()
        for key, value in params.items():
            name, _, inner = key.partition("__")
            if name not in known:
                raise ParameterError(f"Invalid parameter {name!r} for estimator {self!r}: expected one of {known}")
            if inner:
                getattr(self, name).set_params(**{inner: value})
            else:
                setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """Return the call that makes such an estimator, without the parameters that have their defaults."""
        changed = [
            f"{name}={getattr(self, name)!r}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if repr(getattr(self, name)) != repr(parameter.default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"


class TransformerMixin:
    """Base of estimators with scores; without scikit-learn there are no data frames to make of them."""


class ClassNamePrefixFeaturesOutMixin:
    """Names of scores: the name of the class in lower case, and a number."""

    _n_features_out: int

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the scores, shape (k,); `input_features` is ignored."""
        check_is_fitted(self)
        prefix = type(self).__name__.lower()
        return np.array([f"{prefix}{i}" for i in range(self._n_features_out)], dtype=object)


def get_config() -> dict[str, object]:
    """Return the settings of scikit-learn that estimators read."""
    return {"transform_output": "default"}


def clone(estimator: Any) -> Any:
    """Return an estimator that is not fitted, with copies of the parameters of `estimator`."""
    values = estimator.get_params(deep=False)
    copied = {
        name: clone(value) if isinstance(value, BaseEstimator) else copy.deepcopy(value)
        for name, value in values.items()
    }
    return type(estimator)(**copied)


def check_is_fitted(estimator: Any) -> None:
    """Raise `NotFittedError` unless `estimator` is fitted."""
    says = getattr(estimator, "__sklearn_is_fitted__", None)
    fitted = (
        any(name.endswith("_") and not name.startswith("__") for name in vars(estimator)) if says is None else says()
    )
    if not fitted:
        raise NotFittedError(f"This {type(estimator).__name__} instance is not fitted yet: call fit first")


def validate_data(
    estimator: Any,
    X: Any,
    *,
    reset: bool = True,
    accept_sparse: str = "csr",
    ensure_all_finite: bool | str = True,
) -> Any:
    """Return `X` as rows of numbers, and remember its features (`reset`) or compare them with those of the fit.

    `accept_sparse` is the format of sparse rows, always ``"csr"``; `ensure_all_finite` is True, False or ``"allow-nan"``.
    """
    names = _names_of_columns(X)
    sparse: bool = issparse(X)
    rows: Any = X.tocsr() if sparse else np.asarray(X)
    if rows.dtype == object:
        rows = rows.astype(np.float64)
    if rows.dtype.kind not in "fiub":
        raise ParameterError(f"rows of type {rows.dtype}: expected real numbers")
    if rows.ndim != 2:
        raise ParameterError(
            f"Expected 2D array, got an array of shape {rows.shape}: use X.reshape(-1, 1) or X.reshape(1, -1)"
        )
    if 0 in rows.shape:
        raise ParameterError(f"an array of shape {rows.shape}: expected at least one row and one feature")
    _require_finite(rows.data if sparse else rows, ensure_all_finite)
    _remember(estimator, rows.shape[1], names) if reset else _compare(estimator, rows.shape[1], names)
    return rows


def _names_of_columns(X: Any) -> NDArray[np.object_] | None:
    columns = getattr(X, "columns", None)
    names = [] if columns is None else list(columns)
    return np.array(names, dtype=object) if names and all(isinstance(name, str) for name in names) else None


def _require_finite(values: Array, wanted: bool | str) -> None:
    if wanted is False or values.dtype.kind != "f":
        return
    wrong = np.isinf(values) if wanted == "allow-nan" else ~np.isfinite(values)
    if wrong.any():
        raise ParameterError(f"Input X contains {int(wrong.sum())} values that are NaN or infinity")


def _remember(estimator: Any, n_features: int, names: NDArray[np.object_] | None) -> None:
    estimator.n_features_in_ = n_features
    vars(estimator).pop("feature_names_in_", None)
    if names is not None:
        estimator.feature_names_in_ = names


def _compare(estimator: Any, n_features: int, names: NDArray[np.object_] | None) -> None:
    known, kind = vars(estimator).get("feature_names_in_"), type(estimator).__name__
    if known is None and names is not None:
        warnings.warn(f"X has feature names, but {kind} was fitted without feature names", UserWarning, stacklevel=4)
    if known is not None and names is None:
        text = f"X does not have valid feature names, but {kind} was fitted with feature names"
        warnings.warn(text, UserWarning, stacklevel=4)
    if known is not None and names is not None and list(known) != list(names):
        raise ParameterError("The feature names should match those that were passed during fit, in the same order")
    if n_features != estimator.n_features_in_:
        raise ParameterError(
            f"X has {n_features} features, but {kind} is expecting {estimator.n_features_in_} features as input"
        )
