"""Loading saved models and finished runs as fitted estimators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from streampca.errors import MergeError, ModelError, ParameterError
from streampca.estimators.analyses import FactorAnalysis, StateEstimator
from streampca.estimators.continuing import merge
from streampca.estimators.coupled import CCA, MCA
from streampca.estimators.kernel_pca import KernelPCA
from streampca.estimators.pca import PCA, RotatedPCA
from streampca.estimators.persistence import parameters_from, plan_from
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.persistence.models import load_saved, model_place
from streampca.models.persistence.state import load_state
from streampca.models.rotated import RotatedModel
from streampca.models.state import AGREE, FitRecord, FittedState
from streampca.parameters import KINDS
from streampca.planning.plan import Plan
from streampca.solvers.choosing import CONTINUABLE
from streampca.solvers.kernel.base import SAMPLINGS
from streampca.storage.directories import read_unreplaced
from streampca.suggestions import suggests_keywords
from streampca.typing import Array, Json

if TYPE_CHECKING:
    from streampca.estimators.pca import PCA


AnyFitted: TypeAlias = PCA | KernelPCA | RotatedPCA | MCA | CCA | FactorAnalysis
"""Every estimator that can be saved."""
AnyEstimator = TypeVar("AnyEstimator", PCA, StateEstimator)

ESTIMATORS: dict[str, type[PCA] | type[KernelPCA] | type[StateEstimator]] = {
    kind.name: getattr(import_module("streampca"), kind.estimator) for kind in KINDS.values()
}
"""Estimators by the names of the kinds of models."""


@suggests_keywords
def load(path: str | Path) -> AnyFitted:
    """Load the fitted estimator from a saved model or the directory of a run.

    The estimator has the parameters, plan and fitted attributes that can be stored as plain data. `progress` and
    callables in `kernel_params` are not stored. `save` stores `eigenvectors_` of kernel PCA; a run does not, since
    its scores contain them. If a state was saved, `partial_fit` and `merge` can continue from it. Models of streampca
    0.1 have no plan, and only the parameters that `transform` needs. If the model is replaced during loading, as
    `update` does, the result is the old or the new one, never a mixture.

    Parameters
    ----------
    path : str or Path
        A saved model, or the directory of a run.

    Returns
    -------
    PCA, KernelPCA, RotatedPCA, MCA, CCA or FactorAnalysis
        The fitted estimator.

    Raises
    ------
    ModelError
        If there is no model, or it has no commit record, was written by a later version, or is damaged.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> pca = sp.PCA(2).fit(np.random.default_rng(0).normal(size=(100, 5)))
    >>> _ = pca.save("model.zarr")
    >>> bool((sp.load("model.zarr").components_ == pca.components_).all())
    True
    """
    loaded: AnyFitted = read_unreplaced(Path(path), lambda: _loaded(model_place(path)))
    return loaded


def merge_saved(paths: Sequence[Path]) -> PCA:
    """Return the merged model of the models or runs at `paths`; two of their states are in memory at a time."""
    places = [path.resolve() for path in paths]
    twice = [str(path) for path, place in zip(paths, places, strict=True) if places.count(place) > 1]
    if twice:
        raise MergeError(f"{twice[0]} is given twice: expected models of disjoint rows")
    total = _merged_from(paths[0], [cast("PCA", load(paths[0]))])
    for path in paths[1:]:
        total = _merged_from(path, [total, cast("PCA", load(path))])
    return total


def _merged_from(path: Path, models: Sequence[PCA]) -> PCA:
    try:
        return merge(models)
    except MergeError as error:
        raise MergeError(f"{path}: {error}") from error


def _loaded(path: Path) -> Any:
    """Return the fitted estimator of the model at `path`."""
    saved, record = load_saved(path)
    model = saved.linear
    if model is None:
        return _kernel_estimator(cast(KernelModel, saved), record, path)
    fitted = load_state(path, model)
    if fitted is not None and fitted.solver not in CONTINUABLE:
        raise ModelError(f"{path} is not a usable state: solver {fitted.solver!r} is not known")
    if fitted is not None and fitted.state.n_samples != model.n_samples:
        raise ModelError(f"{path} holds a model of {model.n_samples} rows and a state of {fitted.state.n_samples}")
    before: Any = model.before_rotation
    empty: Any = ESTIMATORS[model.kind.name]()
    estimator = _fitted(empty, before, record, fitted, path)
    if isinstance(estimator, StateEstimator):
        estimator._n_first = before.n_first
    if before is model:
        return estimator
    turned = cast(RotatedModel, model)
    how = turned.rotation
    rotated = RotatedPCA(estimator, turned.n_components, method=how.method, normalize=how.normalize, power=how.power)
    return rotated._become(estimator, turned)


def _fitted(
    estimator: AnyEstimator, model: PCAModel, record: FitRecord | None, fitted: FittedState | None, path: Path
) -> AnyEstimator:
    """Return `estimator` as that of a model; without `record`, of what the model and its state know."""
    known: Json = {
        "n_components": model.n_requested,
        "center": model.center,
        "scale": model.scale is not None,
        "whiten": model.whiten,
        "missing": model.missing,
        "missing_scores": model.missing_scores if model.fill is not None else "conditional",
        "feature_weight": model.feature_weight,
        "ddof": model.ddof,
    }
    taken = set(estimator._get_param_names())
    estimator.set_params(**{name: value for name, value in known.items() if name in taken})
    if record is not None:
        _set_parameters(estimator, record, {"feature_weight": model.feature_weight}, path)
        if model.removal is not None and estimator.remove is None:
            estimator.remove = model.removal.parameter()  # with arrays, which the record does not hold
    elif fitted is not None:
        made_with = {name: getattr(fitted.parameters, name) for name in (*AGREE, "solver") if name in taken}
        made_with["scale"] = fitted.parameters.scaling.given
        estimator.set_params(**made_with, random_state=fitted.parameters.seed)
    estimator._fitted_state = fitted
    estimator._model = model  # type: ignore[assignment]  # of analyses an AnalysisModel
    estimator._keep(solver_=model.source.get("solver", "covariance") if fitted is None else fitted.solver)
    if record is not None:
        _set_figures(estimator, record, Plan, path)
    return estimator


def _kernel_estimator(model: KernelModel, record: FitRecord | None, path: Path) -> KernelPCA:
    """Return the estimator of a kernel model; without `record`, of what the model knows."""
    known: Json = {
        "n_components": model.n_components,
        "kernel": model.kernel,
        "method": model.method,
        "n_landmarks": len(model.landmarks),
        "sampling": model.sampling if model.sampling in SAMPLINGS else "auto",
        "center": model.center,
        "fit_inverse_transform": model.preimage is not None,
    }
    estimator = KernelPCA(**known)
    if record is not None:
        _set_parameters(estimator, record, {}, path)
        vectors = record.arrays.get("eigenvectors")
        if vectors is not None:
            estimator._keep(eigenvectors_=vectors)
    estimator._model = model
    if record is not None:
        _set_figures(estimator, record, Plan, path)
    return estimator


def _set_parameters(
    estimator: PCA | KernelPCA | StateEstimator, record: FitRecord, arrays: Mapping[str, Array | None], path: Path
) -> None:
    """Give `estimator` the parameters of `record`, checked as those of a fit are."""
    known = set(estimator.get_params(deep=False))
    with _naming(path):
        estimator.set_params(**parameters_from(record, arrays, known))
        estimator._parameters()


def _set_figures(estimator: PCA | KernelPCA | StateEstimator, record: FitRecord, kind: type[Plan], path: Path) -> None:
    """Give `estimator` the plan and the reads of its fit."""
    with _naming(path):
        plan = plan_from(record, kind)
        if plan is not None and plan.n_features != estimator.n_features_in_:
            raise ModelError(f"its plan is that of {plan.n_features} features, not of {estimator.n_features_in_}")
    for name, value in (("plan_", plan), ("n_passes_", record.n_passes), ("bytes_read_", record.bytes_read)):
        if value is not None:
            estimator._keep(**{name: value})


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let errors say which model they are about."""
    try:
        yield
    except (ModelError, ParameterError) as error:
        raise ModelError(f"{path} is not a usable model: {error}") from error
