"""The interface of scikit-learn, without importing it: parameters by name, cloning, checks of rows, data frames of scores.

Estimators are estimators of scikit-learn by what they can do, not by inheritance: importing it takes longer than all else together. It is imported
where it is asked for something: by its own tools (tags, pipelines, HTML), and for rows that are not an array of numbers.
"""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from streampca.errors import DataError, NotFittedError, ParameterError
from streampca.suggestions import SuggestsKeywords, did_you_mean, suggests_in_methods
from streampca.system.optional import is_installed, optional_module
from streampca.typing import Array

if TYPE_CHECKING:
    from sklearn.utils import Tags

_CONTAINERS = ("default", "pandas", "polars")
_Value = TypeVar("_Value")


class Fitted(Generic[_Value]):
    """A fitted attribute: a value of the model, or what the fit kept under its own name; it cannot be set."""

    def __init__(self, of_model: Callable[[Any], _Value] | None = None):
        self._of_model = of_model

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, estimator: None, owner: type) -> Self: ...

    @overload
    def __get__(self, estimator: object, owner: type) -> _Value: ...

    def __get__(self, estimator: Any, owner: type) -> Any:
        if estimator is None:
            return self
        if self._of_model is not None:
            return self._of_model(estimator._model)
        if self._name not in vars(estimator):
            raise AttributeError  # so that `__getattr__` is asked, which names the reason
        return vars(estimator)[self._name]

    def __set__(self, estimator: object, value: Never) -> None:
        raise AttributeError(f"{self._name} is read-only: fit sets it")


class BaseEstimator(SuggestsKeywords):
    """The interface of a scikit-learn transformer: parameters by name, tags, and data frames from `transform` and `fit_transform`."""

    _sklearn_output_config: Mapping[str, str] = {}  # under the name that `sklearn.base.clone` copies

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the names of the constructor's parameters, sorted."""
        return sorted(inspect.signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return parameters by name; with `deep`, also those of nested estimators as ``name__parameter``."""
        values: dict[str, Any] = {}
        for name in self._get_param_names():
            value = values[name] = getattr(self, name)
            if deep and _is_estimator(value):
                values.update((f"{name}__{inner}", given) for inner, given in value.get_params().items())
        return values

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; ``name__parameter`` sets one of the nested estimator `name`."""
        known = self._get_param_names()
        for key, value in params.items():
            name, _, inner = key.partition("__")
            if name not in known:
                raise ParameterError(
                    f"Invalid parameter {name!r} for estimator {self!r}: expected one of {known}{did_you_mean(name, known)}"
                )
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

    def _repr_html_(self) -> str | None:
        """Return the diagram that notebooks show, where scikit-learn is installed, which draws it."""
        if not is_installed("sklearn"):
            return None
        from sklearn.utils import estimator_html_repr

        diagram: str = estimator_html_repr(self)
        return diagram

    def set_fit_request(self, **requests: bool | str | None) -> Self:
        """Request arguments of `fit`, such as ``sample_weight=True``, from the metadata routing of scikit-learn, if it is enabled."""
        routing = self.get_metadata_routing()
        for name, alias in requests.items():
            routing.fit.add_request(param=name, alias=alias)
        self._metadata_request = routing  # under the name that `sklearn.base.clone` copies
        return self

    def get_metadata_routing(self) -> Any:
        """Return the ``MetadataRequest`` of scikit-learn with what `set_fit_request` asked for."""
        from sklearn.utils.metadata_routing import MetadataRequest

        if "_metadata_request" in vars(self):
            return copy.deepcopy(self._metadata_request)
        routing = MetadataRequest(owner=type(self).__name__)
        for name in inspect.signature(getattr(self, "fit")).parameters:  # noqa: B009  of subclasses
            if name not in ("X", "y"):
                routing.fit.add_request(param=name, alias=None)
        return routing

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there are fitted attributes."""
        return any(name.endswith("_") and not name.startswith("__") for name in vars(self))

    def __sklearn_tags__(self) -> Tags:
        """Return what scikit-learn asks estimators about themselves."""
        from sklearn.utils import Tags, TargetTags, TransformerTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=False), transformer_tags=TransformerTags())

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)

        def framed(method: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(method)
            def wrapped(self: Any, X: Any, *args: Any, **options: Any) -> Any:
                return in_container(self, X, method(self, X, *args, **options))

            return wrapped

        for name in ("transform", "fit_transform"):
            if name in vars(cls):
                setattr(cls, name, framed(vars(cls)[name]))
        suggests_in_methods(cls)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Set whether `transform` and `fit_transform` return data frames.

        Parameters
        ----------
        transform : {"default", "pandas", "polars"}, optional
            Library of the frames; ``"default"`` for arrays, None = no change. Without a setting,
            ``sklearn.set_config(transform_output=…)`` applies.

        Returns
        -------
        self
            The estimator.
        """
        if transform is not None:
            self._sklearn_output_config = {**self._sklearn_output_config, "transform": transform}
        return self

    @property
    def _n_features_out(self) -> int:
        """Return the number of scores of a row."""
        raise NotImplementedError

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return the names of the scores, shape (k,); `input_features` is ignored."""
        check_is_fitted(self)
        prefix = type(self).__name__.lower()
        return np.array([f"{prefix}{i}" for i in range(self._n_features_out)], dtype=object)


def transform_output(estimator: BaseEstimator) -> str:
    """Return what scores are made of: ``"default"``, or the name of a library of data frames.

    Raises
    ------
    ParameterError
        If it is neither, or unknown.
    """
    chosen = estimator._sklearn_output_config.get("transform")
    if chosen is None:
        loaded: Any = sys.modules.get("sklearn")
        chosen = "default" if loaded is None else str(loaded.get_config()["transform_output"])
    if chosen not in _CONTAINERS:
        raise ParameterError(f"output config must be in {list(_CONTAINERS)}, got {chosen!r}")
    return chosen


def in_container(estimator: Any, X: object, values: Any, names: list[str] | None = None) -> Any:
    """Return an array as the data frame that was asked for, with the index of `X` in pandas; other values as they are.

    Columns have the `names`, None = those of the scores.
    """
    library = transform_output(estimator)
    if library == "default" or not isinstance(values, np.ndarray):
        return values
    names = list(estimator.get_feature_names_out()) if names is None else names
    frames: Any = optional_module(library, f"set_output(transform={library!r})", "arrow")
    if library == "polars":
        return frames.DataFrame(values, schema=names, orient="row")
    index = X.index if isinstance(X, frames.DataFrame | frames.Series) else None
    return frames.DataFrame(values, index=index, columns=names)


def _is_estimator(value: object) -> bool:
    return hasattr(value, "get_params") and not isinstance(value, type)


def clone(estimator: Any) -> Any:
    """Return an estimator that is not fitted, with copies of the parameters of `estimator`."""
    values = estimator.get_params(deep=False)
    copied = {name: clone(value) if _is_estimator(value) else copy.deepcopy(value) for name, value in values.items()}
    cloned = type(estimator)(**copied)
    cloned._sklearn_output_config = estimator._sklearn_output_config
    return cloned


def check_is_fitted(estimator: Any) -> None:
    """Raise `NotFittedError` unless `estimator` is fitted: that of scikit-learn where it is installed."""
    if estimator.__sklearn_is_fitted__():
        return
    text = f"This {type(estimator).__name__} instance is not fitted yet: call fit first"
    if is_installed("sklearn"):
        from sklearn import exceptions

        raise exceptions.NotFittedError(text)
    raise NotFittedError(text)


def validate_data(
    estimator: Any,
    X: Any,
    *,
    reset: bool = True,
    accept_sparse: str = "csr",
    ensure_all_finite: bool | str = True,
) -> Any:
    """Return `X` as rows of numbers, and remember its features (`reset`) or compare them with those of the fit.

    Arrays of numbers are checked here, all else by scikit-learn where it is installed. `accept_sparse` is the format of sparse rows, always
    ``"csr"``; `ensure_all_finite` is True, False or ``"allow-nan"``.
    """
    if type(X) is np.ndarray and X.ndim == 2 and X.size > 0 and X.dtype.kind in "fiub":
        as_fitted = reset or (_known_names(estimator) is None and estimator.n_features_in_ == X.shape[1])
        if as_fitted and not _not_finite(X, ensure_all_finite):
            _remember(estimator, X.shape[1], None) if reset else None
            return X
    if is_installed("sklearn"):
        if getattr(getattr(X, "dtype", None), "kind", "") == "c":  # scikit-learn would print all values
            raise DataError(f"Complex data not supported: X has dtype {X.dtype}; expected real numbers")
        from sklearn.utils.validation import validate_data as validate_any

        options = {"reset": reset, "accept_sparse": accept_sparse, "ensure_all_finite": ensure_all_finite}
        return validate_any(estimator, X, **options)
    columns = list(X.columns) if hasattr(X, "columns") else []
    texts = bool(columns) and all(isinstance(name, str) for name in columns)
    names = np.array(columns, dtype=object) if texts else None
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
    if n_wrong := _not_finite(rows.data if sparse else rows, ensure_all_finite):
        raise ParameterError(f"Input X contains {n_wrong} values that are NaN or infinity")
    _remember(estimator, rows.shape[1], names) if reset else _compare(estimator, rows.shape[1], names)
    return rows


def _known_names(estimator: Any) -> Any:
    """Return the names of the features of the fit, None where the data had none."""
    return getattr(estimator, "feature_names_in_", None)


def _not_finite(values: Array, wanted: bool | str) -> int:
    """Return how many `values` are not finite although they are `wanted` to be, NaN excepted for ``"allow-nan"``."""
    if wanted is False or values.dtype.kind != "f":
        return 0
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # most often, and without an array of truth values
            return 0
    return int((np.isinf(values) if wanted == "allow-nan" else ~np.isfinite(values)).sum())


def _remember(estimator: Any, n_features: int, names: NDArray[np.object_] | None) -> None:
    estimator.n_features_in_ = n_features
    vars(estimator).pop("feature_names_in_", None)
    if names is not None:
        estimator.feature_names_in_ = names


def _compare(estimator: Any, n_features: int, names: NDArray[np.object_] | None) -> None:
    known, kind = _known_names(estimator), type(estimator).__name__
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
