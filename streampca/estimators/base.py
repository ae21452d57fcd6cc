"""What PCA and kernel PCA share: input of any kind, scores, rows from scores, and the certificate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampca.accumulators.centring import refuse_not_finite
from streampca.errors import NotComputedError, ParameterError
from streampca.estimators.exporting import Exporting
from streampca.estimators.inputs import (
    is_array_like,
    is_dask,
    lazy_rows,
    map_fitted,
    map_residuals,
    map_rows,
    require_lazy_output,
    wants_frame,
)
from streampca.estimators.interface import (
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    check_is_fitted,
    validate_data,
)
from streampca.estimators.labelled import (
    dataset_of,
    is_data_array,
    is_labelled,
    rows_of_scores,
    scores_array,
)
from streampca.execution.checkpoint.progress_log import ProgressLog
from streampca.execution.checkpoint.resume import fit_with_checkpoint, identity_of_fit, recorded_plan
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.labels import Labels
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.removal import Given, removed_by, residuals_of, with_fitted
from streampca.models.sampling_errors import SamplingErrors
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_scores
from streampca.solvers.base import AnyFit, AnyParameters, Solver
from streampca.sources import Source, open_source
from streampca.sources.cells.objects import is_anndata
from streampca.sources.files.paths import is_paths
from streampca.sources.frames import numeric_frame
from streampca.sources.like import open_like, open_xarray_like
from streampca.sources.residuals import ResidualSource
from streampca.sources.xarray_data import is_in_memory, is_xarray
from streampca.storage.directories import AtomicDirectory, require_apart
from streampca.typing import Array

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr

    from streampca.estimators.inputs import Input, Lazy, Table
    from streampca.system.distributed_interface import DaskClient

Floats: TypeAlias = NDArray[np.floating[Any]]
"""Scores or rows, float32 or float64."""


class PlanOptions(TypedDict, total=False):
    """Options of a plan."""

    scores: bool
    """Whether scores are written after the fit."""
    diagnostics: bool
    """Whether T² and Q are written with them, for PCA."""
    quality: bool
    """Whether the quality of the data is examined."""
    report: bool
    """Whether a report is drawn."""
    client: DaskClient | None
    """Dask client whose workers read."""
    alternatives: bool
    """Whether the figures of other solvers are added."""


class FitOptions(TypedDict, total=False):
    """Options of a fit that do not change its result."""

    keep_rows: int
    """Rows to copy out of the stream."""
    quality: bool
    """Whether the quality of the data is examined."""
    progress: ProgressCallback | None
    """Called as blocks finish."""


class StreamEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Exporting, Generic[AnyParameters, AnyFit]):  # type: ignore[misc]
    """An estimator of scikit-learn whose input may also be a store, a lazy array or a sparse matrix."""

    _solvers: ClassVar[Mapping[str, Solver[Any, Any, Any]]]
    """Its solvers by name."""

    if TYPE_CHECKING:
        _model: PCAModel | KernelModel
        memory: int | str | None
        checkpoint: str | Path | None
        progress: ProgressCallback | None
        n_components_: int
        n_features_in_: int
        n_samples_seen_: int
        feature_names_in_: Array

    def _parameters(self, threads: int | None = None) -> AnyParameters:
        """Return the checked parameters of a fit."""
        raise NotImplementedError

    def _plan_source(
        self, source: Source, parameters: AnyParameters, *, probe: bool = False, **options: Unpack[PlanOptions]
    ) -> Plan:
        """Return the plan of a fit of `source`; `probe` reads a few blocks to measure how long it takes."""
        raise NotImplementedError

    def _fit_source(
        self, source: Source, parameters: AnyParameters, plan: Plan | None = None, **options: Unpack[FitOptions]
    ) -> AnyFit:
        """Return the fit of `source` by `plan`; None plans it first."""
        raise NotImplementedError

    def _fit_or_resume(self, source: Source, parameters: AnyParameters) -> AnyFit:
        """Return the fit of `source`, resumed from `checkpoint` if that is a directory with the checkpoint of this fit."""
        if self.checkpoint is None:
            return self._fit_source(source, parameters, progress=self.progress)

        def fit(log: ProgressLog) -> AnyFit:
            plan = recorded_plan(log, self._plan_source(source, parameters, client=active_client(source)))
            log.plan = plan.to_dict()
            return self._fit_source(source, parameters, plan, progress=self.progress)

        return fit_with_checkpoint(Path(self.checkpoint), identity_of_fit(source, parameters), fit)

    @property
    def error_(self) -> Mapping[str, Any]:
        """The values of `certificate_` by name, as they are stored; read-only."""
        return MappingProxyType(self._model.certificate)

    @property
    def sampling_error_(self) -> SamplingErrors:
        """The sampling errors of eigenvalues, shares and components: how far those of the population may be.

        They are statistical, and apart from `error_`, which is about the numbers. `NotComputedError` if the fit computed none.
        """
        errors = self._model.sampling_errors
        if errors is None:
            raise self._absent("sampling_error_")
        return errors

    def _absent(self, name: str) -> AttributeError:
        """Return the error for an attribute that there is not; `__getattr__` is asked for properties that raise one, too."""
        if name == "sampling_error_" and "_model" in self.__dict__:
            return NotComputedError(
                "there are no sampling errors: they are computed by a fit of all rows with sampling_errors=20, not by partial_fit, "
                "partial_unfit or merge, nor are they in models of earlier versions"
            )
        return AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def labels_(self) -> Labels | None:
        """Dimensions, coordinates and variables of the features; None where the data of the fit had none."""
        return self._model.labels

    def to_xarray(self) -> xr.Dataset:
        """Return the model as a Dataset: values of components along ``mode``, from 1 on, and those of features by their dimensions.

        ``components(mode, …)``, ``mean``, ``scale`` and ``feature_weight`` have the dimensions, coordinates and attributes of
        the features of the fit, NaN where they are masked, and ``feature`` where the data had no names; with several
        variables each has its own, ``components_u`` and so on. ``explained_variance``, ``explained_variance_ratio``,
        ``singular_values`` and ``component_errors`` of the certificate are ``(mode,)``. The eigenvalues of kernel PCA
        have no components in the space of the features. Needs xarray: ``pip install "streampca[xarray]"``.
        """
        check_is_fitted(self)
        return dataset_of(self._model)

    @overload
    def fit_transform(self, X: xr.DataArray | xr.Dataset, y: object = None, **params: object) -> xr.DataArray: ...  # type: ignore[overload-overlap]

    @overload
    def fit_transform(self, X: Source, y: object = None, **params: object) -> da.Array | xr.DataArray: ...  # type: ignore[overload-overlap]

    @overload
    def fit_transform(self, X: Lazy, y: object = None, **params: object) -> da.Array: ...  # type: ignore[overload-overlap]

    @overload
    def fit_transform(self, X: ArrayLike, y: object = None, **params: object) -> Floats: ...

    @overload
    def fit_transform(self, X: Table, y: object = None, **params: object) -> Floats | da.Array: ...

    def fit_transform(self, X: Input, y: object = None, **params: object) -> Floats | da.Array | xr.DataArray:
        """Fit `X` and return its scores: what `fit` and `transform` do."""
        require_lazy_output(self, X)  # before the fit, not after it
        self.fit(X, y, **params)
        return self._scores_of_fit(X)

    @overload
    def transform(self, X: xr.DataArray | xr.Dataset, *, remove: Given | None = None) -> xr.DataArray: ...  # type: ignore[overload-overlap]

    @overload
    def transform(self, X: Source, *, remove: Given | None = None) -> da.Array | xr.DataArray: ...  # type: ignore[overload-overlap]

    @overload
    def transform(self, X: Lazy, *, remove: Given | None = None) -> da.Array: ...  # type: ignore[overload-overlap]

    @overload
    def transform(self, X: ArrayLike, *, remove: Given | None = None) -> Floats: ...

    @overload
    def transform(self, X: Table, *, remove: Given | None = None) -> Floats | da.Array: ...

    def transform(self, X: Input, *, remove: Given | None = None) -> Floats | da.Array | xr.DataArray:
        """Return the scores of `X`, shape (n_samples, k): numpy for arrays, a lazy Dask array for Dask arrays and stores.

        A DataArray with the dimensions and coordinates of the samples, and ``mode``, for objects of xarray and for tables with
        names (`streampca.open`) where xarray is installed; lazy where these are.

        `remove` is for models that were fitted with it, and for rows that are neither those of the fit nor labelled:
        ``{"groups": labels, "trend": positions, "covariates": values}`` of these rows, the keys that the fit had.
        """
        check_is_fitted(self)
        if is_array_like(X):
            return self._model.transform(self._without_removed(self._validated(X), remove))
        require_lazy_output(self, X)
        source = residuals_of(self._open_fitted(X), self._model, remove)
        if isinstance(X, np.ndarray) or is_in_memory(X) or (source.sparse and source.in_memory):
            rows = source.read(0, source.shape[0])[0]
            values = self._model.transform(rows)
            if self._model.missing == "error" and is_xarray(X) and not np.isfinite(values).all():
                refuse_not_finite(rows, 0)
            plain = not is_xarray(X) or source.labels is None or wants_frame(self)
            return values if plain or source.labels is None else scores_array(X, source.labels, values)
        if is_dask(X):
            lazy = map_residuals(X, source) if isinstance(source, ResidualSource) else X
        else:
            lazy = lazy_rows(source)
        scores = map_rows(self._model.transform, lazy, self.n_components_, self._model.score_dtype(source.dtype))
        return scores_array(X, source.labels, scores) if source.labels is not None and is_labelled(X) else scores

    def transform_to(
        self,
        X: Input,
        path: str | Path,
        *,
        overwrite: bool = False,
        remove: Given | None = None,
        diagnostics: bool = False,
    ) -> Path:
        """Stream the scores of `X` to the array ``scores`` of a zarr group at `path`: whole or not at all.

        Reads `X` once, within `memory`. The array has shape (n_samples, k), float32 for float16 and float32 input and
        float64 else. `remove` is that of `transform`.

        With `diagnostics`, for `PCA`, two arrays of shape (n_samples,) beside it, float64, from the same reading: ``t2``, Hotelling's
        T², the squared scores over the eigenvalues, and ``q``, the squared distance of the centred, scaled and weighted row from
        the space of the components; see `t2_limit`, `q_limit` and `contributions`. `NotAvailableError` for kernel PCA, and where
        the components are on disk or blocks of rows do not fit in `memory`.

        `OutputError` if something is there that is not scores of ours, or is and `overwrite` is not set; `NoSpaceError`,
        before anything is read, if there is less room than the scores take.
        """
        from streampca.execution.write import write_scores  # here, because it imports zarr

        check_is_fitted(self)
        source = residuals_of(self._open_fitted(X), self._model, remove)
        require_apart(Path(path), source.description)
        plan = plan_scores(source, self._model, self.memory, diagnostics=diagnostics)
        with AtomicDirectory(Path(path), "scores", overwrite=overwrite) as aside:
            write_scores(source, self._model, plan, aside, progress=self.progress, diagnostics=diagnostics)
        return Path(path)

    @overload
    def inverse_transform(self, X: xr.DataArray, *, remove: Given | None = None) -> xr.DataArray | xr.Dataset: ...

    @overload
    def inverse_transform(self, X: da.Array, *, remove: Given | None = None) -> da.Array: ...

    @overload
    def inverse_transform(self, X: ArrayLike, *, remove: Given | None = None) -> Floats: ...

    def inverse_transform(
        self, X: da.Array | xr.DataArray | ArrayLike, *, remove: Given | None = None
    ) -> Floats | da.Array | xr.DataArray | xr.Dataset:
        """Return rows, shape (n_samples, n_features), for scores `X`, shape (n_samples, k).

        numpy for numpy, a lazy Dask array for Dask, and for a DataArray one with the dimensions of the features (a Dataset of
        several variables); float32 for float32 scores, else float64. `PCA` returns the rows of the
        space of the components, in the units of the data; `KernelPCA` pre-images by kernel ridge regression, and raises
        `ParameterError` unless it was fitted with ``fit_inverse_transform=True``.

        What a model removes is added again: for the rows that `remove` tells of, as in `transform`, or, where it is not given
        and there are as many rows as in the fit, for the rows of the fit in their order.
        """
        check_is_fitted(self)
        if is_data_array(X):
            return rows_of_scores(self._model, X, remove)
        if is_dask(X):
            lazy = map_rows(self._model.inverse_transform, X, self.n_features_in_, X.dtype)
            return map_fitted(lazy, self._model, remove)
        scores = np.asarray(X)
        if scores.ndim != 2 or scores.shape[1] != self.n_components_:
            raise ParameterError(f"scores of shape {scores.shape}: expected (n_samples, {self.n_components_})")
        return with_fitted(self._model.inverse_transform(scores), self._model, remove)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def _scores_of_fit(self, X: Input) -> Floats | da.Array | xr.DataArray:
        """Return the scores of the rows of the fit."""
        return self.transform(X)

    def _open(self, X: Input) -> Source:
        """Return a reader of `X`; finiteness is checked while the rows are read, so the data is not scanned twice."""
        if is_array_like(X):
            return open_source(validate_data(self, numeric_frame(X), accept_sparse="csr", ensure_all_finite=False))
        return open_source(X)

    def _validated(self, X: ArrayLike) -> Array:
        """Return rows to be transformed, checked by scikit-learn; NaN is let through where it has a meaning."""
        finite = "allow-nan" if self._model.missing != "error" else True
        rows: Array = validate_data(self, numeric_frame(X), reset=False, accept_sparse="csr", ensure_all_finite=finite)
        return rows

    def _open_fitted(self, X: Input) -> Source:
        """Return a reader of `X`, which has as many features as the rows of the fit."""
        if is_paths(X) or is_anndata(X):
            source = open_like(X, self.labels_, self._model.source)
        elif is_xarray(X):
            source = open_xarray_like(X, self.labels_)
        else:
            source = open_source(self._validated(X)) if is_array_like(X) else self._open(X)
        if source.shape[1] != self.n_features_in_:
            raise ParameterError(
                f"X has {source.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            )
        known = self.labels_
        if known is not None and source.labels is not None and (difference := known.difference(source.labels)):
            raise ParameterError(f"{source.description} has {difference}: expected the features of the fit")
        return source

    def _without_removed(self, rows: Array, remove: Given | None) -> Array:
        """Return `rows` without what the model removes."""
        if removed_by(self._model, remove) is None:
            return rows
        return residuals_of(open_source(rows), self._model, remove).read(0, len(rows))[0]

    def _adopt(self, X: Input, source: Source, result: AnyFit) -> None:
        """Become the estimator that was fitted to `source`, the reader of `X`, with this result."""
        self._take(result, source)
        if not is_array_like(X):
            self._remember_features(source)

    def _take(self, result: AnyFit, source: Source) -> None:
        """Set the attributes of a fit of `source`."""
        raise NotImplementedError

    def _remember_features(self, source: Source) -> None:
        self.n_features_in_ = source.shape[1]
        self.__dict__.pop("feature_names_in_", None)
        if source.feature_names is not None:
            self.feature_names_in_ = np.array(source.feature_names, dtype=object)
