"""Base class of estimators: resumable fits, scores and reconstruction for any kind of input, saving and export."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from streampca.block import is_tensor, rows_of_tensor
from streampca.errors import NotComputedError, ParameterError
from streampca.estimators.inputs import (
    is_array_like,
    is_dask,
    map_chosen,
    map_fitted,
    map_missing,
    map_rows,
    map_sum,
    require_lazy_output,
    wants_frame,
)
from streampca.estimators.interface import BaseEstimator, Fitted, check_is_fitted, validate_data
from streampca.estimators.labelled import (
    dataset_of,
    is_data_array,
    is_labelled,
    of_all_modes,
    rows_of_scores,
    scores_array,
)
from streampca.estimators.plots import Plots
from streampca.estimators.summary import Summary, summary_of
from streampca.execution.checkpoint.resume import identity_of_fit, resumed
from streampca.execution.distributed.active_client import active_client, share_credentials
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Readings, run_fit
from streampca.export.formats import Exported
from streampca.labels import Labels
from streampca.models.pca import Model
from streampca.models.rows import (
    Given,
    removed_by,
    residuals_of,
    residuals_step,
    rows_from_scores,
    scores_of,
    scores_of_tensor,
    with_fitted,
)
from streampca.models.sampling_errors import SamplingErrors
from streampca.models.state import FitRecord, FittedState
from streampca.models.stored import StoredArray
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_rows, plan_scores
from streampca.solvers.analyses import Analysis
from streampca.solvers.base import Solver
from streampca.solvers.fit import plan_fit, readings_of_fit
from streampca.sources import Source, open_source
from streampca.sources.alignment import places_named
from streampca.sources.base import require_unmasked
from streampca.sources.cells import is_anndata
from streampca.sources.conventions import with_nan
from streampca.sources.files.paths import is_paths
from streampca.sources.frames import is_xarray, labelled_as, numeric_frame
from streampca.sources.like import counting_as, open_like, require_decoded, with_features_of
from streampca.sources.normalization import warn_of_norms
from streampca.sources.objects import is_in_memory
from streampca.sources.steps import SteppedSource
from streampca.storage.directories import AtomicDirectory, read_record, require_apart
from streampca.system.optional import optional_module
from streampca.system.process import peak_bytes
from streampca.typing import Array, DType, Json

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr
    from sklearn.decomposition import PCA, FactorAnalysis
    from sklearn.pipeline import Pipeline

    from streampca.estimators.inputs import InMemory, Input, Lazy, Table


_EXAMINED = 64
"""Rows of a tensor that are looked at before it is multiplied."""
Floats: TypeAlias = NDArray[np.floating[Any]]
"""Scores or rows, float32 or float64."""


def held(values: Any) -> Any:
    """Return an array in memory as it is, or the zarr array that holds one that does not fit."""
    return values.array if isinstance(values, StoredArray) else values


class StreamEstimator(BaseEstimator):
    """Base class of estimators: those of scikit-learn that also accept stores, lazy arrays and sparse matrices."""

    _solvers: ClassVar[Mapping[str, type[Solver[Any, Any]]]]
    """Its solvers by name."""

    if TYPE_CHECKING:
        _model: Model
        memory: int | str | None
        checkpoint: str | Path | None
        progress: ProgressCallback | None

    n_components_ = Fitted[int](lambda model: model.n_components)
    n_samples_seen_ = Fitted[int](lambda model: model.n_samples)
    n_features_in_ = Fitted[int](lambda model: model.n_features)
    plan_ = Fitted[Plan]()
    n_passes_ = Fitted[int]()
    bytes_read_ = Fitted[int]()

    @property
    def feature_names_in_(self) -> Array:
        """Names of the features, ``(n_features,)``; absent if the data of the fit had no names."""
        names = self._source_of_fit.get("feature_names")
        if not names:
            raise AttributeError
        return np.array(names, dtype=object)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    @property
    def _source_of_fit(self) -> Json:
        """Return the description of the source of the fit."""
        return self._model.source

    @property
    def _encoder(self) -> Model:
        """Return the model that makes scores where `device` says, of rotated components that of `pca`."""
        own: Any = self
        return self._model.on_device(getattr(own, "device", None) or own.pca.device)

    def _parameters(self, threads: int | None = None) -> Any:
        """Return the checked parameters of a fit."""
        raise NotImplementedError

    def _analysis(self, source: Source | FittedState) -> Analysis | None:
        """Return what is solved from the state of these rows in place of PCA; None for PCA and kernel PCA."""
        return None

    def _plan_source(self, source: Source, parameters: Any, **options: Any) -> Plan:
        """Plan a fit of a source with checked parameters."""
        return plan_fit(source, parameters, analysis=self._analysis(source), **options)

    def _readings_of_fit(self, source: Source, parameters: Any, plan: Plan, **options: Any) -> Readings[Any]:
        """Ask for the readings of such a fit."""
        return readings_of_fit(source, parameters, plan, analysis=self._analysis(source), **options)

    def _fit(self, source: Source, parameters: Any) -> Self:
        """Become the fit of `source`, resumed from `checkpoint` if that is a directory with the checkpoint of this fit."""
        client = active_client(source)
        with places_named(source):
            plan = self._plan_source(source, parameters, client=client)
        with resumed(plan, self.checkpoint, lambda: identity_of_fit(source, parameters)) as plan:
            result = run_fit(self._readings_of_fit(source, parameters, plan), client, self.progress)
        self._take(result, source)
        self._keep(_peak_bytes=peak_bytes())
        for concern in result.model.concerns:
            warnings.warn(concern, UserWarning, stacklevel=4)  # this method, `fit` and its decorator
        return self

    @property
    def sampling_error_(self) -> SamplingErrors:
        """Sampling errors of eigenvalues, shares and components: how far they may be from the population.

        They are statistical errors, separate from the numerical errors in `error_`. Raises `NotComputedError` if the
        fit computed none.
        """
        errors = self._model.sampling_errors
        if errors is None:
            raise self._absent("sampling_error_")
        return errors

    def __getattr__(self, name: str) -> Any:
        raise self._absent(name)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there is a model."""
        return "_model" in vars(self)

    def _absent(self, name: str) -> AttributeError:
        """Return the error for an attribute that there is not; `__getattr__` is asked for properties that raise one, too."""
        if name == "sampling_error_" and "_model" in vars(self):
            return NotComputedError(
                "there are no sampling errors: they need a fit of all rows with sampling_errors=20, not partial_fit, "
                "partial_unfit or merge, nor are they in models of earlier versions"
            )
        return AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def plot(self) -> Plots:
        """Charts of this fit: ``plot.scree()`` and ``plot.scores(X)`` return axes of matplotlib."""
        return Plots(self)

    def summary(self) -> Summary:
        """Return a one-page summary of this fit for ``print`` and notebooks.

        Returns
        -------
        Summary
            Components with eigenvalue, share and interval, and with bounds of angles and sampling errors if
            available; data read, passes and time; memory; the certificate; warnings. Time and measured memory are
            those of this process, so a loaded model has neither.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.

        Examples
        --------
        >>> import numpy as np
        >>> import streampca as sp
        >>> rows = np.random.default_rng(0).normal(size=(1000, 20))
        >>> str(sp.PCA(2).fit(rows).summary()).splitlines()[0]
        'PCA, solver covariance: 2 components of 1,000 x 20'
        """
        check_is_fitted(self)
        return summary_of(self)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model to a zarr group at `path` as plain arrays and JSON, completely or not at all.

        Parameters
        ----------
        path : str or Path
            Directory of the group; `streampca.load` reads it.
        overwrite : bool
            Whether to replace a model of streampca at `path`.

        Returns
        -------
        Path
            `path`.

        Raises
        ------
        ModelError
            If the kernel is a callable, which cannot be stored, or `feature_weight` was changed after the fit.
        OutputError
            If `path` holds something other than a model of streampca, or a model and `overwrite` is not set.
        """
        from streampca.models.persistence.models import save_model  # here, because it imports zarr

        check_is_fitted(self)
        model, record = self._to_save()
        return save_model(model, path, overwrite=overwrite, fit=record)

    def _to_save(self) -> tuple[Model, FitRecord]:
        """Return the model with the names of its features, and the record of its fit; `ModelError` if parameters were changed since."""
        raise NotImplementedError

    def to_xarray(self) -> xr.Dataset:
        """Return the model as a Dataset with a dimension ``mode`` for components, from 1 on, and the dimensions of the features.

        Needs xarray: ``pip install "streampca[xarray]"``.

        Returns
        -------
        xarray.Dataset
            ``components(mode, …)``, ``mean``, ``scale`` and ``feature_weight`` have the dimensions, coordinates and
            attributes of the features of the fit, with NaN at masked features; the dimension is ``feature`` if the
            data had no names. Each of several variables has its own arrays, ``components_u`` and so on.
            ``explained_variance``, ``explained_variance_ratio``, ``singular_values`` and ``component_errors`` of the
            certificate are ``(mode,)``. For kernel PCA, which has no components in feature space, the Dataset has the
            eigenvalues.

        Raises
        ------
        NotAvailableError
            If xarray is not installed.
        """
        check_is_fitted(self)
        return dataset_of(self._model)

    def _keep(self, **fitted: Any) -> None:
        """Keep what is no part of the model under the names of the fitted attributes."""
        vars(self).update(fitted)

    def _take(self, result: Any, source: Source) -> None:
        """Become the estimator that was fitted to `source` with this result."""
        self._model = result.model
        self._keep(plan_=result.plan, n_passes_=result.passes, bytes_read_=result.count.bytes)

    labels_ = Fitted[Labels | None](lambda model: model.labels)

    # Where xarray is not installed its types are Any, which every argument matches: what is certain comes before them.

    @overload
    def fit_transform(self, X: InMemory, y: object = None, **params: object) -> Floats: ...

    @overload
    def fit_transform(self, X: Lazy, y: object = None, **params: object) -> da.Array: ...  # type: ignore[overload-overlap]

    @overload
    def fit_transform(self, X: Source, y: object = None, **params: object) -> da.Array | xr.DataArray: ...  # type: ignore[overload-overlap]

    @overload
    def fit_transform(self, X: xr.DataArray | xr.Dataset, y: object = None, **params: object) -> xr.DataArray: ...  # type: ignore[overload-overlap]

    @overload
    def fit_transform(self, X: ArrayLike, y: object = None, **params: object) -> Floats: ...

    @overload
    def fit_transform(self, X: Table, y: object = None, **params: object) -> Floats | da.Array: ...

    def fit_transform(self, X: Input, y: object = None, **params: object) -> Floats | da.Array | xr.DataArray:
        """Fit to `X` and return its scores, as `fit` followed by `transform` does.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Anything that `fit` accepts.
        y : ignored
        **params
            Further arguments of `fit`, such as `sample_weight`.

        Returns
        -------
        ndarray, dask.array.Array or xarray.DataArray, shape (n_samples, k)
            Scores, as `transform` returns them.

        Raises
        ------
        ParameterError, PlanError, DataError
            As `fit`.
        """
        require_lazy_output(self, X)  # before the fit, not after it
        self.fit(X, y, **params)  # with the arguments of each estimator
        return self._scores_of_fit(X)

    @overload
    def transform(self, X: InMemory, *, remove: Given | None = None) -> Floats: ...

    @overload
    def transform(self, X: Lazy, *, remove: Given | None = None) -> da.Array: ...  # type: ignore[overload-overlap]

    @overload
    def transform(self, X: Source, *, remove: Given | None = None) -> da.Array | xr.DataArray: ...  # type: ignore[overload-overlap]

    @overload
    def transform(self, X: xr.DataArray | xr.Dataset, *, remove: Given | None = None) -> xr.DataArray: ...  # type: ignore[overload-overlap]

    @overload
    def transform(self, X: ArrayLike, *, remove: Given | None = None) -> Floats: ...

    @overload
    def transform(self, X: Table, *, remove: Given | None = None) -> Floats | da.Array: ...

    def transform(self, X: Input, *, remove: Given | None = None) -> Floats | da.Array | xr.DataArray:
        """Return the scores of `X`: coordinates of its rows along the components.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Anything that `fit` accepts, with the features of the fit. Paths and objects of xarray and AnnData are
            opened and normalised (``normalize``) like the rows of the fit. Arrays and opened tables count as rows
            that are already normalised.
        remove : mapping, optional
            Needed for models fitted with `remove`, if the rows are neither those of the fit nor labelled:
            ``{"groups": labels, "trend": positions, "covariates": values}`` of these rows, with the keys of the fit.

        Returns
        -------
        ndarray, dask.array.Array or xarray.DataArray, shape (n_samples, k)
            float32 for float16 and float32 input, otherwise float64. A numpy array for arrays, and a lazy Dask array
            for Dask arrays and stores. For objects of xarray, and for labelled tables (`streampca.open`) if xarray is
            installed, a DataArray with the dimensions and coordinates of the samples and a dimension ``mode``, lazy
            if the input is.

        Raises
        ------
        ParameterError
            If `X` does not have the features of the fit, or `remove` is missing or does not match.
        ValueError
            `NotFiniteError`, if rows contain infinity, or contain NaN and the model was fitted with
            ``missing="error"``; names the first row and column. For lazy rows it is raised when their scores are
            computed.
        """
        check_is_fitted(self)
        if is_tensor(X):
            of_tensor: Floats = self._scores_of_tensor(X, remove)
            return of_tensor
        if is_array_like(X):
            return scores_of(self._encoder, self._without_removed(self._validated(X), X, remove))
        require_lazy_output(self, X)
        stored = self._open_fitted(X)
        step = residuals_step(stored, self._model, remove)
        source = stored if step is None else SteppedSource(stored, [step])
        labels = source.labels if source.chosen is None else source.chosen.labels
        if isinstance(X, np.ndarray) or is_in_memory(X) or (source.sparse and source.in_memory):
            values = scores_of(self._encoder, source.read(0, source.shape[0])[0])
            values = values if source.chosen is None else source.chosen.spread(values)
            plain = not is_xarray(X) or source.labels is None or wants_frame(self)
            return values if plain or labels is None else scores_array(X, labels, values)
        if is_dask(X):
            lazy = map_missing(X, self._missing_value)
            lazy = lazy if step is None else map_sum(lazy, step.rows, step.fitted, step.dtype(lazy.dtype), -1)
        else:
            share_credentials(source)
            lazy = source.to_dask()
        dtype = self._model.score_dtype(source.dtype)
        scores = map_rows(partial(scores_of, self._encoder), lazy, self._model.n_components, dtype)
        scores = scores if source.chosen is None else map_chosen(scores, source.chosen)
        return scores_array(X, labels, scores) if labels is not None and is_labelled(X) else scores

    def _scores_of_tensor(self, X: Any, remove: Given | None) -> Any:
        """Return the scores of a tensor of torch as a tensor where it is: multiplied there where the model is a plain product."""
        if X.ndim != 2 or X.shape[1] != self._model.n_features:
            raise ParameterError(
                f"X is a tensor of shape {tuple(X.shape)}, but {type(self).__name__} is expecting (n_samples, {self._model.n_features})"
            )
        first = rows_of_tensor(X[:_EXAMINED])  # declarations of the fit count for tensors, too
        require_decoded(first, self._model.source)
        warn_of_norms(first, self._model.source)
        model = self._model.linear
        if model is self._model and removed_by(model, remove) is None and self._missing_value is None:
            scores = scores_of_tensor(model, X)
            if scores is not None:
                return scores
        scores = np.asarray(self.transform(rows_of_tensor(X), remove=remove))
        return optional_module("torch", "scores of a tensor", "torch").from_numpy(scores).to(X.device)

    def transform_to(
        self,
        X: Input,
        path: str | Path,
        *,
        overwrite: bool = False,
        remove: Given | None = None,
        diagnostics: bool = False,
    ) -> Path:
        """Stream the scores of `X` to the array ``scores`` of a zarr group at `path`, completely or not at all.

        Reads `X` once, within `memory`.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features)
            Anything that `fit` accepts, with the features of the fit.
        path : str or Path
            Directory of the group. Its array ``scores`` has shape (n_samples, k) and is float32 for float16 and
            float32 input, otherwise float64.
        overwrite : bool
            Whether to replace scores that streampca wrote at `path`.
        remove : mapping, optional
            As in `transform`.
        diagnostics : bool
            Whether to write two more float64 arrays of shape (n_samples,) in the same pass: ``t2``, Hotelling's T²
            (squared scores over the eigenvalues), and ``q``, the squared distance of the centred, scaled and weighted
            row from the space of the components. See `t2_limit`, `q_limit` and `contributions`.

        Returns
        -------
        Path
            `path`.

        Raises
        ------
        NotAvailableError
            With `diagnostics`, for kernel PCA and for rotated components.
        OutputError
            If `path` holds something other than scores of streampca, or scores and `overwrite` is not set.
        NoSpaceError
            If the disk has no space for the scores; raised before rows are read.
        PlanError
            If the work does not fit in `memory`.
        """
        from streampca.execution.write import write_scores  # here, because it imports zarr

        check_is_fitted(self)
        source = residuals_of(self._open_fitted(X), self._model, remove)
        require_apart(Path(path), source.description)
        plan = plan_scores(source, self._model, self.memory, diagnostics=diagnostics)
        with AtomicDirectory(Path(path), "scores", overwrite=overwrite) as aside:
            write_scores(source, self._encoder, plan, aside, progress=self.progress, diagnostics=diagnostics)
        return Path(path)

    @overload
    def inverse_transform(self, X: InMemory, *, remove: Given | None = None) -> Floats: ...

    @overload
    def inverse_transform(self, X: da.Array, *, remove: Given | None = None) -> da.Array: ...

    @overload
    def inverse_transform(self, X: xr.DataArray, *, remove: Given | None = None) -> xr.DataArray | xr.Dataset: ...

    @overload
    def inverse_transform(self, X: ArrayLike, *, remove: Given | None = None) -> Floats: ...

    def inverse_transform(
        self, X: da.Array | xr.DataArray | ArrayLike, *, remove: Given | None = None
    ) -> Floats | da.Array | xr.DataArray | xr.Dataset:
        """Return the rows for given scores, in the units of the data.

        `PCA` returns rows in the space of the components, and `KernelPCA` returns pre-images by kernel ridge
        regression. Effects that the model removed are added back. Lazy rows have the blocks of their scores, whatever
        `memory` allows; use `inverse_transform_to` to write rows within the ceiling.

        Parameters
        ----------
        X : array-like, Dask array or DataArray, shape (n_samples, k)
            Scores. A DataArray may have only some components, ``scores.sel(mode=[1, 2])``; rows are then made from
            these alone.
        remove : mapping, optional
            Groups, trend and covariates of these rows, as in `transform`. None = those of the rows of the fit in
            their order, if the number of scores is the same.

        Returns
        -------
        ndarray, dask.array.Array, xarray.DataArray or xarray.Dataset, shape (n_samples, n_features)
            float32 for float32 scores, otherwise float64. A lazy array for Dask arrays. For a DataArray, a DataArray
            with the dimensions of the features, or a Dataset for several variables.

        Raises
        ------
        ParameterError
            If scores have the wrong shape or type, or if a `KernelPCA` was not fitted with
            ``fit_inverse_transform=True``.
        NotFiniteError
            If scores contain infinity or NaN; names the first row. For lazy scores it is raised when rows are
            computed. With ``missing="drop_rows"`` scores of NaN give rows of NaN instead.
        """
        check_is_fitted(self)
        if is_data_array(X):
            return rows_of_scores(self._model, X, remove)
        require_unmasked(X, "the array of scores")
        if is_dask(X):
            self._require_scores(X.shape, X.dtype)
            lazy = map_rows(partial(rows_from_scores, self._model), X, self._model.n_features, X.dtype)
            return map_fitted(lazy, self._model, remove)
        scores = rows_of_tensor(X) if is_tensor(X) else np.asarray(X)
        self._require_scores(scores.shape, scores.dtype)
        return with_fitted(rows_from_scores(self._model, scores), self._model, remove)

    def inverse_transform_to(
        self,
        X: ArrayLike | Lazy | Source | xr.DataArray,
        path: str | Path,
        *,
        dtype: DTypeLike | None = None,
        clip: bool = False,
        overwrite: bool = False,
        remove: Given | None = None,
    ) -> Path:
        """Stream the rows for given scores to a zarr group at `path`, completely or not at all.

        Reads the scores once, block by block within `memory`, and writes the rows that `inverse_transform` returns.

        Parameters
        ----------
        X : array-like, path, zarr array, Dask array or DataArray, shape (n_samples, k)
            Scores, such as the store that `transform_to` wrote.
        path : str or Path
            Directory of the group. It has one array per variable of the fit, ``(n_samples, *feature dimensions)``, or
            one array ``rows`` if variables have no names, and the coordinates of samples and features as arrays.
        dtype : dtype, optional
            Type of the arrays. None = float32 for float32 scores, otherwise float64. For integer types, such as
            ``"uint16"``, values are rounded to the nearest integer, halves to even.
        clip : bool
            Whether to clip values to the range of an integer type; otherwise values outside it raise an error.
        overwrite : bool
            Whether to replace rows that streampca wrote at `path`.
        remove : mapping, optional
            As in `inverse_transform`.

        Returns
        -------
        Path
            `path`.

        Raises
        ------
        ParameterError
            If scores have the wrong shape or type, if values are outside the range of an integer type (names the
            first), or if a `KernelPCA` was not fitted with ``fit_inverse_transform=True``.
        NotFiniteError
            If scores contain infinity or NaN, as in `inverse_transform`, or if rows overflow.
        NotAvailableError
            If `dtype` is an integer type and a mask left out features, which are NaN.
        OutputError
            If `path` holds something other than rows of streampca, or rows and `overwrite` is not set.
        NoSpaceError
            If the disk has no space for the uncompressed rows; raised before scores are read.
        PlanError
            If the work does not fit in `memory`.
        """
        from streampca.execution.write import reconstruction, write_rows  # here, because it imports zarr

        check_is_fitted(self)
        scores = self._open_scores(X)
        require_apart(Path(path), scores.description)
        rows = reconstruction(scores, self._model, remove, dtype, clip=clip)
        plan = plan_rows(rows, self._model, self.memory)
        with AtomicDirectory(Path(path), "reconstruction", overwrite=overwrite) as aside:
            write_rows(rows, self._model, plan, aside, samples=scores.labels, progress=self.progress)
        return Path(path)

    def _open_scores(self, X: Any) -> Source:
        """Return a reader of scores: those of `transform_to` at a path, all modes of a DataArray, or what `open_source` opens."""
        if is_data_array(X):
            X = of_all_modes(X, self._model.n_components)
            source = open_source(X, samples=[str(dim) for dim in X.dims[:-1]])
        elif is_paths(X):
            record = read_record(Path(str(X))) or {}
            source = open_source(X, array="scores" if record.get("format") == "streampca-scores" else None)
        else:
            source = open_source(np.asarray(X) if isinstance(X, list | tuple) else X)
        self._require_scores(source.shape, source.dtype)
        return source

    def _require_scores(self, shape: tuple[int, ...], dtype: DType) -> None:
        """Raise `ParameterError` unless an array of this shape and type can be scores."""
        k = self._model.n_components
        if len(shape) != 2 or shape[1] != k or dtype.kind == "c":
            raise ParameterError(
                f"scores of shape {shape} and type {dtype}: expected real numbers of shape (n_samples, {k})"
            )

    def _scores_of_fit(self, X: Input) -> Floats | da.Array | xr.DataArray:
        """Return the scores of the rows of the fit."""
        return self.transform(X)

    def _open(self, X: Input) -> Source:
        """Return a reader of `X`; finiteness is checked while the rows are read, so the data is not scanned twice."""
        if not is_array_like(X):
            return open_source(X, missing_value=self.missing_value)
        seen: Any = type(
            type(self).__name__, (BaseEstimator,), {}
        )()  # which is given the names, and is named in errors
        rows = validate_data(seen, numeric_frame(X), accept_sparse="csr", ensure_all_finite=False)
        source = labelled_as(open_source(rows, missing_value=self.missing_value), X)
        names = vars(seen).get("feature_names_in_")
        source.feature_names = None if names is None else tuple(names)
        return source

    @property
    def _missing_value(self) -> float | None:
        """Return the number that counted as missing in the rows of the fit, beside NaN."""
        declared: float | None = self._model.source.get("missing_value")
        return declared

    def _validated(self, X: ArrayLike) -> Array:
        """Return rows to be transformed, with NaN for the missing value; whether they are finite is checked with their scores."""
        rows: Array = validate_data(self, numeric_frame(X), reset=False, accept_sparse="csr", ensure_all_finite=False)
        require_decoded(rows, self._model.source)
        warn_of_norms(rows, self._model.source)
        return with_nan(rows, self._missing_value)

    def _open_fitted(self, X: Input) -> Source:
        """Return a reader of `X`, which has as many features as the rows of the fit."""
        if is_paths(X) or is_anndata(X) or is_xarray(X):
            source = open_like(X, self.labels_, self._model.source)
        elif is_array_like(X):
            source = labelled_as(open_source(self._validated(X)), X)
        else:
            require_decoded(X, self._model.source)
            source = open_source(X, missing_value=self._missing_value)
        require_decoded(source, self._model.source)
        source = with_features_of(counting_as(source, self.labels_, self._model.source), self.labels_)
        if source.shape[1] != self._model.n_features:
            raise ParameterError(
                f"X has {source.shape[1]} features, but {type(self).__name__} is expecting {self._model.n_features} features as input"
            )
        known = self.labels_
        if known is not None and source.labels is not None and (difference := known.difference(source.labels)):
            raise ParameterError(f"{source.description} has {difference}: expected the features of the fit")
        return source

    def _without_removed(self, rows: Array, X: object, remove: Given | None) -> Array:
        """Return `rows`, those of `X`, without what the model removes."""
        if removed_by(self._model, remove) is None:
            return rows
        return residuals_of(labelled_as(open_source(rows), X), self._model, remove).read(0, len(rows))[0]

    def to_sklearn(self) -> PCA | FactorAnalysis | Pipeline:
        """Return a fitted estimator of scikit-learn with the same `transform` and `inverse_transform`.

        The result is a ``sklearn.decomposition.PCA`` with all fitted attributes. For `FactorAnalysis` it is
        ``sklearn.decomposition.FactorAnalysis``, which has no `inverse_transform`. If features are scaled or
        weighted, it is a ``Pipeline`` of a ``StandardScaler`` (step ``scale``) and this estimator (step ``pca`` or
        ``factor_analysis``). If NaN counts as the mean of its feature, the ``Pipeline`` begins with a
        ``FunctionTransformer`` (step ``fill``). It also begins with one (step ``normalize``) if rows were divided by
        their norm; this step takes rows as stored, and its inverse leaves them normalised. Scores agree to 1e-12 of
        the largest for float64 rows. A ``PCA`` without a pipeline subtracts the mean after the product, which loses
        digits if the mean is far from 0.

        Returns
        -------
        sklearn.decomposition.PCA, sklearn.decomposition.FactorAnalysis or sklearn.pipeline.Pipeline
            A fitted estimator that does not need streampca.

        Raises
        ------
        NotAvailableError
            If scikit-learn cannot express a setting: `remove`, conditional scores of rows with NaN, other
            normalisation of rows, whitened components without variance, two tables (`MCA`, `CCA`), or correlated
            factors.
        """
        check_is_fitted(self)
        optional_module("sklearn", "to_sklearn", "export")
        from streampca.export.transforms import to_sklearn

        return to_sklearn(self._model, self._model.source.get("feature_names"), self.memory)

    def to_onnx(
        self, path: str | Path, *, dtype: Literal["float32", "float64"] = "float32", overwrite: bool = False
    ) -> Exported:
        """Write an ONNX model that maps rows to scores, completely or not at all; ``onnx.checker`` checks it first.

        Its input ``X`` has shape (n, n_features) and its output ``scores`` (n, k), for any n, both of type `dtype`;
        the opset is 17. Two tables (`MCA`, `CCA`) lie side by side in the input, and so do their scores in the
        output. Input rows are what `transform` accepts as an array; with ``normalize``, they are the rows before
        normalisation. Needs onnx: ``pip install "streampca[export]"``.

        Parameters
        ----------
        path : str or Path
            The file.
        dtype : {"float32", "float64"}
            Type of rows and scores.
        overwrite : bool
            Whether to replace an ONNX model at `path`.

        Returns
        -------
        Exported
            What was written, with the measured ``error`` of the scores relative to those in float64.

        Raises
        ------
        NotAvailableError
            If ONNX cannot express a setting: `remove`, conditional scores of rows with NaN, normalised counts with a
            mask of features; if float32 cannot hold the model; or if onnx is not installed.
        OutputError
            If a file exists at `path` and `overwrite` is not set, or the file is not an ONNX model.
        """
        from streampca.export.transforms import write_onnx

        check_is_fitted(self)
        return write_onnx(
            self._model,
            Path(path),
            dtype=dtype,
            names=self._known_names(),
            memory=self.memory,
            overwrite=overwrite,
        )

    def to_faiss(self, path: str | Path, *, overwrite: bool = False) -> Exported:
        """Write a faiss ``LinearTransform`` for ``faiss.read_VectorTransform`` and ``IndexPreTransform``, completely or not at all.

        The transform y = A x + b is in float32, so subtract a mean far from 0 from the rows before the fit. The
        ``reverse_transform`` of faiss for orthonormal A, Aᵀ(y − b), equals `inverse_transform` only with all
        components or without centring; otherwise it lacks the part of the mean that is orthogonal to the components.
        Needs faiss: ``pip install "streampca[export]"``.

        Parameters
        ----------
        path : str or Path
            The file.
        overwrite : bool
            Whether to replace a faiss transform at `path`.

        Returns
        -------
        Exported
            What was written, with the measured ``error`` of the scores relative to those in float64.

        Raises
        ------
        NotAvailableError
            If faiss cannot express a setting: `remove`, scores of rows with NaN, normalised rows; if float32 cannot hold
            the model; or if faiss is not installed.
        OutputError
            If a file exists at `path` and `overwrite` is not set, or the file is not a faiss transform.
        """
        from streampca.export.transforms import write_faiss

        check_is_fitted(self)
        return write_faiss(self._model, Path(path), memory=self.memory, overwrite=overwrite)

    def _known_names(self) -> list[str] | None:
        """Return the names of the features, else those that their coordinates make, or None."""
        names, labels = self._model.source.get("feature_names"), self._model.labels
        return labels.known_names() if names is None and labels is not None else names
