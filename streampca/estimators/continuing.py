"""Going on after a fit: rows added, rows taken out again, models merged; solved when the result is asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import MergeError, ModelError, NotComputedError, ParameterError
from streampca.estimators.base import StreamEstimator
from streampca.estimators.inputs import is_array_like, names_of
from streampca.estimators.interface import check_is_fitted, validate_data
from streampca.estimators.persistence import record_of_fitted
from streampca.linalg.selection import NComponents, as_selection
from streampca.models.fit_record import FitRecord
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.state import FittedState, with_writable_state
from streampca.parameters import Parameters
from streampca.parameters.choices import Solver
from streampca.planning.columns import placed_weights, with_sample_weight
from streampca.solvers.registry import SOLVERS
from streampca.solvers.result import Fit
from streampca.solvers.state import accumulate, continued, obstacle_to_state, require_new, solve, subtracted
from streampca.sources import Source, open_source
from streampca.sources.coordinates import is_xarray
from streampca.sources.frames import labelled_as, numeric_frame
from streampca.sources.like import counting_as, open_xarray_like, with_features_of

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from streampca.estimators.inputs import Input

_Model = TypeVar("_Model", PCAModel, KernelModel)
_Method = TypeVar("_Method", bound=Callable[..., Any])
SOLVED = frozenset(
    (
        *("_model", "components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"),
        *("scale_", "noise_variance_", "total_variance_", "n_components_", "numerical_rank_", "constant_features_"),
    )
)
_NO_STATE = (
    "the model holds no state that rows could be added to: fit it with solver 'covariance' (its matrix in memory, not on disk, and no "
    "n_components='cross_validation') or 'qr' and, if it was loaded, save it with state=True (output.state: true in a run)"
)


class _KeptState:
    """A method that an estimator has where its parameters let a state be kept, as `available_if` of scikit-learn makes them."""

    def __init__(self, method: Callable[..., Any]):
        self._method = method
        update_wrapper(cast("Any", self), method)

    def __get__(self, estimator: Continuing | None, owner: type) -> Any:
        if estimator is not None and _obstacle(estimator):
            raise AttributeError  # so that `__getattr__` is asked, which names the reason
        return self._method.__get__(estimator, owner)


def _needs_state(method: _Method) -> _Method:
    return cast("_Method", _KeptState(method))


def _obstacle(estimator: Continuing) -> str | None:
    return obstacle_to_state(estimator)


class Continuing(StreamEstimator[Parameters, Fit]):
    """What an estimator that keeps its state can do with it.

    Attributes that come from the model are solved when one of them is first asked for, so adding many small batches
    costs no eigenproblem each; an error of the eigenproblem is raised there.
    """

    _solved_names: ClassVar[frozenset[str]] = SOLVED
    """Attributes that are there once the state is solved."""
    _fitted_state: FittedState | None
    if TYPE_CHECKING:
        _model: PCAModel
        solver: Solver
        remove: Mapping[str, Any] | None
        missing: str
        forgetting: float
        n_components: NComponents

    def _set_model(self, model: PCAModel) -> None:
        """Set the attributes that come from `model`."""
        raise NotImplementedError

    def _solved(self, fitted: FittedState) -> PCAModel:
        """Return the model of a state."""
        return solve(fitted)

    @_needs_state
    def partial_fit(self, X: Input, y: object = None, *, sample_weight: ArrayLike | None = None) -> Self:
        """Add the rows of `X` to those the model was fitted on; the first call is a fit.

        Any grouping of the same rows gives the same model up to rounding. A batch may have any number of rows from one
        on: while there are no more than `ddof` rows the estimator is not fitted yet, and until there are `n_components`
        rows there are as many components as rows. A call that fails changes nothing. Cost: a reading of `X` and one
        addition of two states (d² numbers); the eigenproblem waits for the first use of the model.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Everything that `fit` takes.
        y : ignored
        sample_weight : array-like, shape (n_samples,), optional
            Weights of these rows, as those of `fit`.

        Returns
        -------
        self
            The estimator.

        Raises
        ------
        NotAvailableError
            If the parameters let no state be kept: `solver` "gram" or "adaptive", "sketch" with ``missing="mean"``,
            `remove`, or components counted by cross-validation.
            `hasattr` takes the method for absent then.
        MergeError
            If a parameter is not what it was when the first rows came, the rows are of another precision, or the model
            holds no state: it was loaded without one, or fitted by a solver that has none. Also if `X` has a file whose
            rows are already in the model, also under another name.
        """
        parameters, fitted = self._weighted(sample_weight), self._writable_state_or_none()
        source = self._open_batch(X, first=fitted is None)
        if fitted is None:
            as_selection(parameters.n_components, source.shape[1])
        else:
            require_new(source.fragments, fitted.fragments)
        batch = accumulate(source, parameters, fitted, progress=self.progress)
        self._hold(batch.state if fitted is None else continued(fitted, batch.state))
        self.plan_, self.n_passes_ = batch.plan, batch.plan.passes
        self.bytes_read_ = batch.count.bytes + (0 if fitted is None else self.__dict__.get("bytes_read_", 0))
        return self

    @_needs_state
    def partial_unfit(self, X: Input, *, sample_weight: ArrayLike | None = None) -> Self:
        """Take the rows of `X`, which are among those the model was fitted on, out again: the inverse of `partial_fit`.

        What remains has the absolute rounding of what there was, so the relative one grows with the share that is taken
        out: ``error_["trusted_above"]`` says by how much. Whether the rows were really among those of the model cannot
        be told, only that more of them were taken out than there can have been.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Everything that `fit` takes.
        sample_weight : array-like, shape (n_samples,), optional
            Weights of these rows, as when they were added.

        Returns
        -------
        self
            The estimator.

        Raises
        ------
        MergeError
            If there are fewer rows than are taken out, or if what remains of a feature's variance is below the rounding
            of what was taken away; nothing is changed then.
        """
        parameters, fitted = self._weighted(sample_weight), self._writable_state_or_none()
        if fitted is None:
            raise MergeError(_NO_STATE)
        source = self._open_batch(X, first=False)
        less = accumulate(source, parameters, fitted, progress=self.progress)
        self._hold(subtracted(fitted, less.state))
        return self

    def save(self, path: str | Path, *, overwrite: bool = False, state: bool = False) -> Path:
        """Write the model to a zarr group at `path`: plain arrays and JSON, whole or not at all.

        Parameters
        ----------
        path : str or Path
            Directory of the group; `streampca.load` reads it.
        overwrite : bool
            Whether a model of streampca at `path` is replaced.
        state : bool
            Whether to write the accumulated state, too (about 4 d² bytes), with which `partial_fit` and `merge` go on from the
            loaded model.

        Returns
        -------
        Path
            `path`.

        Raises
        ------
        MergeError
            With `state`, if the model has none.
        ModelError
            If `feature_weight` was changed after the fit.
        OutputError
            If there is something at `path` other than a model of streampca, or a model and `overwrite` is not set.
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
        return with_names(model, self), record_of_fitted(self)

    def __getattr__(self, name: str) -> Any:
        fitted = self.__dict__.get("_fitted_state")
        if name in self._solved_names and fitted is not None and "_model" not in self.__dict__ and fitted.solvable:
            self._set_model(self._solved(fitted))
            return self.__dict__[name]
        if name in ("partial_fit", "partial_unfit"):
            raise NotComputedError(_obstacle(self))
        raise self._absent(name)

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether there is a model, or there are enough rows for one."""
        fitted = self.__dict__.get("_fitted_state")
        return "_model" in self.__dict__ or (fitted is not None and fitted.solvable)

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
        if self.__dict__.get("_fitted_state") is not None:
            twin._fitted_state = copy.deepcopy(self._fitted_state)
        return twin

    def _weighted(self, sample_weight: ArrayLike | None) -> Parameters:
        return with_sample_weight(self._parameters(), sample_weight)

    def _hold(self, fitted: FittedState) -> None:
        """Keep a state whose model has not been solved yet."""
        for name in self._solved_names:
            self.__dict__.pop(name, None)
        self._fitted_state, self.solver_ = fitted, fitted.solver
        self.n_features_in_, self.n_samples_seen_ = fitted.n_features, fitted.state.n_samples

    def _state_or_none(self) -> FittedState | None:
        """Return the state, None before the first rows; raise `MergeError` if there is a model without a state."""
        fitted: FittedState | None = self.__dict__.get("_fitted_state")
        if fitted is None and "_model" in self.__dict__:
            raise MergeError(_NO_STATE)
        return fitted

    def _writable_state_or_none(self) -> FittedState | None:
        """Return what `_state_or_none` does, before the plan, so that a copy of a read-only state counts as memory in use."""
        fitted = self._state_or_none()
        if fitted is not None:
            fitted = self._fitted_state = with_writable_state(fitted)
        return fitted

    def _open_batch(self, X: Input, *, first: bool) -> Source:
        """Open `X`, whose features are remembered if it is the first batch and compared with those else."""
        fitted: FittedState | None = self.__dict__.get("_fitted_state")
        missing = self.missing_value if fitted is None else fitted.source.get("missing_value")
        if is_array_like(X):
            rows = validate_data(self, numeric_frame(X), reset=first, accept_sparse="csr", ensure_all_finite=False)
            return labelled_as(open_source(rows, missing_value=missing), X)
        if fitted is not None and is_xarray(X):
            source = open_xarray_like(X, fitted.labels, fitted.source, missing)
        else:
            source = open_source(X, missing_value=missing)
        if fitted is not None:
            source = with_features_of(counting_as(source, fitted.labels, fitted.source), fitted.labels)
        names = None if source.feature_names is None else list(source.feature_names)
        if first:
            self._remember_features(source)
        elif source.shape[1] != self.n_features_in_:
            raise ParameterError(
                f"X has {source.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            )
        elif names is not None and names_of(self) not in (None, names):
            raise MergeError(f"the feature names of {source.description} are not those of the rows seen before")
        if fitted is not None and fitted.labels is not None and source.labels is not None:
            difference = fitted.labels.difference(source.labels)
            if difference is not None:
                raise MergeError(
                    f"{source.description} has {difference}: expected the features of the rows seen before"
                )
        return source


def _some(names: list[str] | None) -> str:
    if names is None:
        return "unknown"
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def with_names(model: _Model, estimator: object) -> _Model:
    """Return `model` with the feature names that `estimator` knows and the source did not."""
    names = names_of(estimator)
    if names is None or model.source.get("feature_names"):
        return model
    return replace(model, source=model.source | {"feature_names": names})
