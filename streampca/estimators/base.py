"""What PCA and kernel PCA share: fits that are resumed, the certificate, and the attributes of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import numpy as np

from streampca.errors import NotComputedError
from streampca.estimators.interface import Fitted, check_is_fitted
from streampca.estimators.labelled import dataset_of
from streampca.estimators.plots import Plots
from streampca.estimators.transforming import Transforming
from streampca.execution.checkpoint.progress_log import ProgressLog
from streampca.execution.checkpoint.resume import fit_with_checkpoint, identity_of_fit, recorded_plan
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.models.fit_record import FitRecord
from streampca.models.pca import Model
from streampca.models.sampling_errors import SamplingErrors
from streampca.models.stored_array import StoredArray
from streampca.planning.plan import Plan
from streampca.solvers.base import AnyFit, AnyParameters, Solver
from streampca.sources import Source
from streampca.typing import Array, Json

if TYPE_CHECKING:
    import xarray as xr


def held(values: Any) -> Any:
    """Return an array in memory as it is, or the zarr array that holds one that does not fit."""
    return values.array if isinstance(values, StoredArray) else values


class StreamEstimator(Transforming, Generic[AnyParameters, AnyFit]):
    """An estimator of scikit-learn whose input may also be a store, a lazy array or a sparse matrix."""

    _solvers: ClassVar[Mapping[str, Solver[Any, Any]]]
    """Its solvers by name."""
    _plan_source: ClassVar[Callable[..., Any]]
    """Plans a fit of a source with checked parameters: `plan_fit` or `plan_kernel`."""
    _fit_source: ClassVar[Callable[..., Any]]
    """Fits a source by a plan: `fit` or `fit_kernel`."""
    _readings_of_fit: ClassVar[Callable[..., Any]]
    """Asks for the readings of such a fit, to share them: `readings_of_fit` or `readings_of_kernel`."""

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
        """Names of the features, ``(n_features,)``; none where the data of the fit had none."""
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

    def _parameters(self, threads: int | None = None) -> AnyParameters:
        """Return the checked parameters of a fit."""
        raise NotImplementedError

    def _fit_or_resume(self, source: Source, parameters: AnyParameters) -> AnyFit:
        """Return the fit of `source`, resumed from `checkpoint` if that is a directory with the checkpoint of this fit."""
        if self.checkpoint is None:
            fitted: AnyFit = self._fit_source(source, parameters, progress=self.progress)
            return fitted

        def fit(log: ProgressLog) -> AnyFit:
            plan = recorded_plan(log, self._plan_source(source, parameters, client=active_client(source)))
            log.plan = plan.to_dict()
            fitted: AnyFit = self._fit_source(source, parameters, plan, progress=self.progress)
            return fitted

        return fit_with_checkpoint(Path(self.checkpoint), identity_of_fit(source, parameters), fit)

    @property
    def sampling_error_(self) -> SamplingErrors:
        """The sampling errors of eigenvalues, shares and components: how far those of the population may be.

        They are statistical, and apart from `error_`, which is about the numbers. `NotComputedError` if the fit computed none.
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
                "there are no sampling errors: they are computed by a fit of all rows with sampling_errors=20, not by partial_fit, "
                "partial_unfit or merge, nor are they in models of earlier versions"
            )
        return AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def plot(self) -> Plots:
        """Charts of this fit: ``plot.scree()`` and ``plot.scores(X)`` return axes of matplotlib."""
        return Plots(self)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model to a zarr group at `path`: plain arrays and JSON, whole or not at all.

        Parameters
        ----------
        path : str or Path
            Directory of the group; `streampca.load` reads it.
        overwrite : bool
            Whether a model of streampca at `path` is replaced.

        Returns
        -------
        Path
            `path`.

        Raises
        ------
        ModelError
            If the kernel is a callable, which cannot be stored, or `feature_weight` was changed after the fit.
        OutputError
            If there is something at `path` other than a model of streampca, or a model and `overwrite` is not set.
        """
        from streampca.models.persistence.models import save_model  # here, because it imports zarr

        check_is_fitted(self)
        model, record = self._to_save()
        return save_model(model, path, overwrite=overwrite, fit=record)

    def _to_save(self) -> tuple[Model, FitRecord]:
        """Return the model with the names of its features, and the record of its fit; `ModelError` if parameters were changed since."""
        raise NotImplementedError

    def to_xarray(self) -> xr.Dataset:
        """Return the model as a Dataset: values of components along ``mode``, from 1 on, and those of features by their dimensions.

        Needs xarray: ``pip install "streampca[xarray]"``.

        Returns
        -------
        xarray.Dataset
            ``components(mode, …)``, ``mean``, ``scale`` and ``feature_weight`` have the dimensions, coordinates and attributes of
            the features of the fit, NaN where they are masked, and ``feature`` where the data had no names; with several
            variables each has its own, ``components_u`` and so on. ``explained_variance``, ``explained_variance_ratio``,
            ``singular_values`` and ``component_errors`` of the certificate are ``(mode,)``. The eigenvalues of kernel PCA
            have no components in the space of the features.

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

    def _take(self, result: AnyFit, source: Source) -> None:
        """Become the estimator that was fitted to `source` with this result."""
        self._model = result.model
        self._keep(plan_=result.plan, n_passes_=result.passes, bytes_read_=result.count.bytes)
