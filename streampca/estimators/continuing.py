"""Continuing after a fit: adding rows, removing rows and merging models; the eigenproblem is solved when a result is accessed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import MergeError, ModelError, NotComputedError, ParameterError
from streampca.estimators.base import StreamEstimator
from streampca.estimators.inputs import is_array_like
from streampca.estimators.interface import Fitted, check_is_fitted, validate_data
from streampca.estimators.persistence import record_of_fitted
from streampca.linalg.selection import NComponents, as_selection
from streampca.models.pca import PCAModel
from streampca.models.state import FitRecord, FittedState, with_writable_state
from streampca.parameters.statement import Solver
from streampca.planning.columns import placed_weights, with_sample_weight
from streampca.solvers.choosing import SOLVERS, obstacle_to_state
from streampca.solvers.result import Fit
from streampca.solvers.state import accumulate, continued, merged, require_new, solve, subtracted
from streampca.sources import Source, open_source
from streampca.sources.cells import is_anndata
from streampca.sources.files.paths import is_paths
from streampca.sources.frames import is_xarray, labelled_as, numeric_frame
from streampca.sources.like import counting_as, open_like, require_decoded, with_features_of
from streampca.sources.normalization import warn_of_norms
from streampca.suggestions import suggests_keywords
from streampca.typing import FloatArray, IntArray, Json

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from streampca.estimators.inputs import Input


_Method = TypeVar("_Method", bound=Callable[..., Any])
_Estimator = TypeVar("_Estimator", bound="Continuing")
_NO_STATE = (
    "the model holds no state to add rows to: fit it with solver 'covariance' (its matrix in memory, not on disk, and no "
    "n_components='cross_validation'), 'qr' or 'sketch' and, if it was loaded, save it with state=True (output.state: true in a run)"
)


class _KeptState:
    """A method that an estimator has where its parameters let a state be kept, as `available_if` of scikit-learn makes them."""

    def __init__(self, method: Callable[..., Any]):
        self._method = method
        update_wrapper(cast("Any", self), method)

    def __get__(self, estimator: Continuing | None, owner: type) -> Any:
        if estimator is not None and obstacle_to_state(estimator):
            raise AttributeError  # so that `__getattr__` is asked, which names the reason
        return self._method.__get__(estimator, owner)


def _needs_state(method: _Method) -> _Method:
    return cast("_Method", _KeptState(method))


class Continuing(StreamEstimator):
    """Methods of estimators that keep their state.

    The eigenproblem is solved when an attribute of the model is first accessed, so adding many small batches does not
    solve one for each. Errors of the eigenproblem are raised at that access.
    """

    _fitted_state: FittedState | None = None
    if TYPE_CHECKING:
        _model: PCAModel
        solver: Solver
        remove: Mapping[str, Any] | None
        missing: str
        forgetting: float
        n_components: NComponents

    solver_ = Fitted[str]()
    mean_ = Fitted[FloatArray](lambda model: model.mean)
    scale_ = Fitted[FloatArray | None](lambda model: model.scale)
    total_variance_ = Fitted[float](lambda model: model.total_variance)
    constant_features_ = Fitted[IntArray](lambda model: model.constant_features)

    @property
    def n_samples_seen_(self) -> int:  # type: ignore[override]
        """Number of rows; does not solve the eigenproblem."""
        state = self._unsolved
        return self._model.n_samples if state is None else state.state.n_samples

    @property
    def n_features_in_(self) -> int:  # type: ignore[override]
        """Number of features; does not solve the eigenproblem."""
        state = self._unsolved
        return self._model.n_features if state is None else state.n_features

    @property
    def _source_of_fit(self) -> Json:
        state = self._unsolved
        return self._model.source if state is None else state.source

    @property
    def _unsolved(self) -> FittedState | None:
        """Return a state whose model has not been solved yet."""
        return None if "_model" in vars(self) else self._fitted_state

    def _solved(self, fitted: FittedState) -> PCAModel:
        """Return the model of a state."""
        return solve(fitted)

    @_needs_state
    def partial_fit(self, X: Input, y: object = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Add the rows of `X` to the fit; the first call is a fit itself.

        Any division of the same rows into batches gives the same model up to rounding. A batch may be a single row.
        With `ddof` rows or fewer the estimator is not fitted yet, and with fewer rows than `n_components` it has as
        many components as rows. A call that fails changes nothing. Cost: one pass over `X` and one addition of two
        states (d² numbers); the eigenproblem is solved on first use of the model.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Anything that `fit` accepts. Paths and objects of xarray and AnnData are opened as the earlier rows were.
        y : ignored
        sample_weight : array-like, shape (n_samples,), optional
            Weights of these rows, as in `fit`.

        Returns
        -------
        self
            The estimator.

        Raises
        ------
        NotAvailableError
            If the parameters rule out a state: `solver` "gram" or "adaptive", "sketch" with ``missing="mean"``,
            `remove`, or a number of components from cross-validation. `hasattr` is then False for this method.
        MergeError
            If a parameter has changed since the first rows, if the rows have another precision, or if the model holds
            no state because it was loaded without one or its solver keeps none. Also if `X` includes a file whose
            rows are already in the model, even under another name.
        """
        parameters, fitted = with_sample_weight(self._parameters(), sample_weight), self._writable_state_or_none()
        source = self._open_batch(X, fitted)
        if fitted is None:
            as_selection(parameters.n_components, source.shape[1])
        else:
            require_new(source.fragments, fitted.fragments)
        batch = accumulate(source, parameters, fitted, progress=self.progress)
        self._hold(batch.state if fitted is None else continued(fitted, batch.state))
        before = 0 if fitted is None else vars(self).get("bytes_read_", 0)
        self._keep(plan_=batch.plan, n_passes_=batch.plan.passes, bytes_read_=batch.count.bytes + before)
        return self

    @_needs_state
    def partial_unfit(self, X: Input, *, sample_weight: ArrayLike | None = None) -> Self:
        """Remove the rows of `X`, which the model was fitted on: the inverse of `partial_fit`.

        The remaining state keeps its absolute rounding error, so the relative error grows with the share of rows
        removed; see ``error_["trusted_above"]``. The method cannot check that the rows were part of the fit. It only
        notices if more is removed than can have been there.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Anything that `fit` accepts.
        sample_weight : array-like, shape (n_samples,), optional
            Weights of these rows, as when they were added.

        Returns
        -------
        self
            The estimator.

        Raises
        ------
        MergeError
            If more rows are removed than the model has, or if the remaining variance of a feature is below the
            rounding of the variance removed. The model is then unchanged.
        """
        parameters, fitted = with_sample_weight(self._parameters(), sample_weight), self._writable_state_or_none()
        if fitted is None:
            raise MergeError(_NO_STATE)
        source = self._open_batch(X, fitted)
        less = accumulate(source, parameters, fitted, progress=self.progress)
        self._hold(subtracted(fitted, less.state))
        return self

    def save(self, path: str | Path, *, overwrite: bool = False, state: bool = False) -> Path:
        """Write the model to a zarr group at `path` as plain arrays and JSON, completely or not at all.

        Parameters
        ----------
        path : str or Path
            Directory of the group; `streampca.load` reads it.
        overwrite : bool
            Whether to replace a model of streampca at `path`.
        state : bool
            Whether to write the accumulated state as well (about 4 d² bytes), which `partial_fit` and `merge` of the
            loaded model need.

        Returns
        -------
        Path
            `path`.

        Raises
        ------
        MergeError
            With ``state=True``, if the model has no state.
        ModelError
            If `feature_weight` was changed after the fit.
        OutputError
            If `path` holds something other than a model of streampca, or a model and `overwrite` is not set.
        """
        from streampca.models.persistence.models import save_model  # here, because it imports zarr
        from streampca.models.persistence.state import write_state

        check_is_fitted(self)
        fitted = self._state_or_none() if state else None
        beside = None if fitted is None else partial(write_state, fitted)
        model, record = self._to_save()
        return save_model(model, path, overwrite=overwrite, beside=beside, fit=record)

    def _to_save(self) -> tuple[PCAModel, FitRecord]:
        model, parameters = self._model, self._parameters()
        weight = parameters.feature_weight
        if "feature_weight" in parameters.given:
            try:
                weight = placed_weights(parameters.given["feature_weight"], model.labels)
            except (
                ParameterError
            ):  # a loaded model has no further coordinates, and may be weighted by what earlier versions took
                if not isinstance(self.feature_weight, str):
                    raise
                weight = model.feature_weight
        if not np.array_equal([] if weight is None else weight, [] if (w := model.feature_weight) is None else w):
            raise ModelError(
                "feature_weight was changed after the fit: fit again, or set the weights of the fit to save it"
            )
        return model, record_of_fitted(self)

    def __getattr__(self, name: str) -> Any:
        if name == "_model" and self._fitted_state is not None and self._fitted_state.solvable:
            self._model = self._solved(self._fitted_state)
            return self._model
        if name in ("partial_fit", "partial_unfit"):
            raise NotComputedError(obstacle_to_state(self))
        raise self._absent(name)

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether there is a model, or there are enough rows for one."""
        return "_model" in vars(self) or (self._fitted_state is not None and self._fitted_state.solvable)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        solver = SOLVERS.get(self.solver)  # None for "auto", which takes one that can
        plain = self.missing == "error" and self.remove is None and self.forgetting == 1
        tags.input_tags.sparse = plain and (solver is None or "sparse rows" not in solver.refuses)
        tags.input_tags.allow_nan = self.missing != "error"
        return tags

    def __copy__(self) -> Self:
        """Return a copy with a state of its own, because adding rows writes to it."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        if self._fitted_state is not None:
            twin._fitted_state = copy.deepcopy(self._fitted_state)
        return twin

    def _take(self, result: Fit, source: Source) -> None:
        super()._take(result, source)
        self._fitted_state = result.fitted_state
        self._keep(solver_=result.plan.solver)

    def _hold(self, fitted: FittedState) -> None:
        """Keep a state whose model has not been solved yet."""
        vars(self).pop("_model", None)
        self._fitted_state = fitted
        self._keep(solver_=fitted.solver)

    def _state_or_none(self) -> FittedState | None:
        """Return the state, None before the first rows; raise `MergeError` if there is a model without a state."""
        if self._fitted_state is None and "_model" in vars(self):
            raise MergeError(_NO_STATE)
        return self._fitted_state

    def _writable_state_or_none(self) -> FittedState | None:
        """Return what `_state_or_none` does, before the plan, so that a copy of a read-only state counts as memory in use."""
        fitted = self._state_or_none()
        if fitted is not None:
            fitted = self._fitted_state = with_writable_state(fitted)
        return fitted

    def _open_batch(self, X: Input, fitted: FittedState | None) -> Source:
        """Open `X`, whose features are compared with those of the rows in the state."""
        if fitted is None:
            return self._open(X)
        missing = fitted.source.get("missing_value")
        if is_array_like(X):
            rows = validate_data(self, numeric_frame(X), reset=False, accept_sparse="csr", ensure_all_finite=False)
            require_decoded(rows, fitted.source)
            warn_of_norms(rows, fitted.source)
            return labelled_as(open_source(rows, missing_value=missing), X)
        stored = is_paths(X) or is_anndata(X) or is_xarray(X)
        if not stored:
            require_decoded(X, fitted.source)
        source = open_like(X, fitted.labels, fitted.source) if stored else open_source(X, missing_value=missing)
        require_decoded(source, fitted.source)
        source = with_features_of(counting_as(source, fitted.labels, fitted.source), fitted.labels)
        known, names = fitted.source.get("feature_names"), source.feature_names
        if source.shape[1] != fitted.n_features:
            raise ParameterError(
                f"X has {source.shape[1]} features, but {type(self).__name__} is expecting {fitted.n_features} features as input"
            )
        if known and names is not None and list(known) != list(names):
            raise MergeError(f"the feature names of {source.description} are not those of the rows seen before")
        if fitted.labels is not None and source.labels is not None:
            difference = fitted.labels.difference(source.labels)
            if difference is not None:
                raise MergeError(
                    f"{source.description} has {difference}: expected the features of the rows seen before"
                )
        return source


@suggests_keywords
def merge(models: Sequence[_Estimator]) -> _Estimator:
    """Merge models of disjoint rows, fitted with the same parameters, into the model of all their rows.

    The result equals one fit of all rows up to rounding. The order of models matters only with a forgetting factor:
    give the oldest first. Cost: one addition of d² numbers per model; the eigenproblem is solved on first use of the
    result.

    Parameters
    ----------
    models : sequence of PCA
        Estimators that were fitted on disjoint rows, or loaded with their states.

    Returns
    -------
    PCA
        The model of all rows, with its state.

    Raises
    ------
    MergeError
        If a parameter that enters the state or the model differs (names it with both values), if a model has no state
        (save it with ``state=True``), or if the same model or the rows of the same file are given twice.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 8))
    >>> total = sp.merge([sp.PCA(2).fit(rows[:300]), sp.PCA(2).fit(rows[300:])])
    >>> total.n_samples_seen_, np.allclose(total.explained_variance_, sp.PCA(2).fit(rows).explained_variance_)
    (1000, True)
    """
    models = list(models)
    if not models or not all(isinstance(model, Continuing) for model in models):
        found = ", ".join(type(model).__name__ for model in models) or "nothing"
        raise ParameterError(f"merge takes a sequence of fitted PCA estimators: found {found}")
    parts: list[FittedState] = []
    for i, model in enumerate(models):
        if any(model is other for other in models[:i]):
            raise MergeError(f"model {i} is given twice: merge takes models of disjoint rows")
        fitted = model._fitted_state
        if fitted is None:
            raise MergeError(f"model {i}: " + (_NO_STATE if "_model" in vars(model) else "it has not been fitted"))
        parts.append(fitted)
        first, names = (each.source.get("feature_names") for each in (parts[0], fitted))
        if names != first:
            raise MergeError(
                f"feature names are {_some(first)} in the first and {_some(names)} in model {i}: "
                "expected the same features in the same order"
            )
    total = type(models[0])(**models[0].get_params(deep=False))
    total._hold(merged(parts))
    total._keep(bytes_read_=sum(vars(model).get("bytes_read_", 0) for model in models))
    return total


def _some(names: list[str] | None) -> str:
    if names is None:
        return "unknown"
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
