"""Several models of the same data, fitted in the same passes, each to all or some features."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

import streampca.formatting as words
from streampca.errors import NotAvailableError, ParameterError, value_in_words
from streampca.estimators.kernel_pca import KernelPCA
from streampca.estimators.pca import PCA
from streampca.estimators.summary import Summary, summary_of_several
from streampca.execution.checkpoint.progress_log import ProgressLog
from streampca.execution.checkpoint.resume import (
    array_digest,
    identity_of_labels,
    identity_of_parameters,
    logged,
    versions_and_input,
)
from streampca.execution.distributed.active_client import active_client
from streampca.planning.columns import with_columns, with_sample_weight
from streampca.planning.many import ManyPlan
from streampca.planning.plan import Plan
from streampca.solvers.many import PlannedFit, plan_many, recorded_plans, run_many
from streampca.sources import Source
from streampca.sources.alignment import is_placed, of_features
from streampca.sources.table import part_of, with_features
from streampca.suggestions import did_you_mean, suggests_keywords
from streampca.system.process import peak_bytes
from streampca.typing import Array, BoolArray

if TYPE_CHECKING:
    from streampca.estimators.inputs import Input
    from streampca.execution.progress import ProgressCallback


Model: TypeAlias = PCA | KernelPCA


class FittedModels(dict[str, Model]):
    """Fitted estimators by name, as `fit_many` returns them.

    Attributes
    ----------
    plan_ : ManyPlan
        The plan: ``plan_.plans[name]`` for each model, ``plan_.together`` for all.
    n_passes_, bytes_read_ : int
        Passes over the source, with shared ones counted once, and decoded bytes that they read.
    """

    plan_: ManyPlan
    n_passes_: int
    bytes_read_: int
    _peak_bytes: int

    def summary(self) -> Summary:
        """Return a one-page summary of the fits for ``print`` and notebooks, with one row for each of the first models.

        Returns
        -------
        Summary
            Estimator, rows, components and shares of the variance of each model, data read and memory. The summary of
            each single fit lists its components.
        """
        return summary_of_several(self, f"{words.plural(len(self), 'model')} of the same data", "model")


@suggests_keywords
def fit_many(
    models: Mapping[str, Model],
    X: Input,
    *,
    features: Mapping[str, Any] | None = None,
    sample_weight: ArrayLike | None = None,
    memory: int | str | None = None,
    checkpoint: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> FittedModels:
    """Fit several estimators to `X` in shared passes: as many as the estimator with the most passes needs.

    All models share the first pass, those that need a second pass share it, and so on: each pass reads and decodes
    each block once. Exact linear PCAs that differ only in `center`, `scale`, `ddof`, `whiten`, `n_components` or
    feature weights also share the products. Blocks, leaves and results equal those of single fits, bit for bit. If
    models would use different blocks (kernel PCA beside PCA of many rows), the minority uses the blocks of the
    majority, and its results agree up to rounding. The plan names these models, and the solvers that share no pass:
    ``gram``, the first pass of ``adaptive``, and kernel PCA that keeps all rows.

    Parameters
    ----------
    models : mapping of str to PCA or KernelPCA
        Estimators by name; they are fitted in place. Their `memory`, `checkpoint` and `progress` must be None.
    X : array-like, shape (n_samples, n_features), path, lazy array or table
        Anything that `PCA.fit` accepts.
    features : mapping of str to names, places or truth values, optional
        By name of a model, the features that it uses; other models use all. Give the name of a variable or feature, a
        list of names, a slice, positions, or a boolean for each feature. Features keep the order of `X`.
    sample_weight : array-like, shape (n_samples,), optional
        Weights of the rows for all models, as in `PCA.fit`.
    memory : int, str or None
        Ceiling for the resident memory of the process, including the states of all models.
    checkpoint : path, optional
        A directory for progress, as for `PCA`.
    progress : callable, optional
        Called with a `Progress` as blocks finish.

    Returns
    -------
    FittedModels
        The same estimators by the same names.

    Raises
    ------
    ParameterError
        If `models` is empty, or contains the same estimator twice or something else.
    PlanError
        If the models together do not fit in `memory`; states the projected memory.
    DataError
        If the data is missing, damaged, or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 8))
    >>> fitted = sp.fit_many({"raw": sp.PCA(2), "z": sp.PCA(2, scale=True)}, rows)
    >>> fitted.n_passes_, round(float(fitted["z"].total_variance_))
    (1, 8)
    """
    _require_models(models)
    source, sources, fits, parameters = _prepared(models, X, features or {}, sample_weight)
    client = active_client(source)
    log: ProgressLog | None = None
    with ExitStack() as fitting:
        if checkpoint is not None:
            identity: dict[str, str] = {}
            for name, each in parameters.items():
                own = {**identity_of_parameters(each), **identity_of_labels(sources[name], each)}
                _, chosen = part_of(sources[name])
                own |= {} if chosen is None else {"features": array_digest(chosen.used)}
                identity |= {f"{name}.{key}": value for key, value in own.items()}
            log = fitting.enter_context(logged(Path(checkpoint), identity | versions_and_input(source)))
        plan = plan_many(source, fits, memory, client=client)
        plan = plan if log is None else recorded_plans(log, plan)
        done = run_many(source, fits, plan, progress)
    fitted = FittedModels(models)
    for name, result in done.results.items():
        models[name]._take(result, sources[name])
        for concern in result.model.concerns:
            warnings.warn(f"{name}: {concern}", UserWarning, stacklevel=3)  # this function, its decorator
    fitted.plan_, fitted.n_passes_, fitted.bytes_read_ = plan, done.n_readings, done.count.bytes
    fitted._peak_bytes = peak_bytes()
    return fitted


def _require_models(models: Mapping[str, Model]) -> None:
    """Raise `ParameterError` unless `models` are different estimators by name that leave common matters to `fit_many`."""
    if not isinstance(models, Mapping) or not models:
        raise ParameterError(
            f"models: found {value_in_words(models)}, expected a mapping of names to PCA or KernelPCA estimators"
        )
    for name, model in models.items():
        if not isinstance(name, str) or not isinstance(model, PCA | KernelPCA):
            raise ParameterError(
                f"models: found {name!r}: {type(model).__name__}, expected names and PCA or KernelPCA estimators"
            )
        for parameter in ("memory", "checkpoint", "progress"):
            if getattr(model, parameter) is not None:
                raise ParameterError(
                    f"models: {name} has {parameter}={getattr(model, parameter)!r}: give it to fit_many, for all models"
                )
    if len({model.missing_value for model in models.values()}) > 1:
        raise ParameterError(
            "models: they have different missing_value, but read the same rows: give all of them the same"
        )
    if len({id(model) for model in models.values()}) < len(models):
        raise ParameterError("models: the same estimator has two names: use sklearn.base.clone")


def _prepared(
    models: Mapping[str, Model],
    X: Input,
    features: Mapping[str, Any],
    sample_weight: ArrayLike | None,
) -> tuple[Source, dict[str, Source], dict[str, PlannedFit], dict[str, Any]]:
    """Return the source that all models read, that of each model, their fits, and the parameters of these."""
    for name in features:
        if name not in models:
            raise ParameterError(
                f"features: there is no model {name!r}: expected some of {', '.join(models)}{did_you_mean(name, models)}"
            )
    source = next(iter(models.values()))._open(X)
    sources = {
        name: subset_of(source, features[name], name) if features.get(name) is not None else source for name in models
    }
    fits: dict[str, PlannedFit] = {}
    parameters: dict[str, Any] = {}
    for name, model in models.items():
        wanted: Any = model._parameters()
        if isinstance(model, PCA):
            wanted = with_sample_weight(wanted, sample_weight)
        elif sample_weight is not None:
            raise ParameterError(f"sample_weight: {name} is a KernelPCA, which takes no weights")
        own = sources[name]
        parameters[name] = wanted = with_columns(wanted, own)
        fits[name] = fit_of_model(model, own, wanted)
    return source, sources, fits, parameters


def fit_of_model(model: Any, source: Source, parameters: Any, planning: dict[str, Any] | None = None) -> PlannedFit:
    """Return the fit of `model` to `source` with checked `parameters`, and options for `planning`."""

    def plan(allowed: int, threads: int) -> Plan:
        limited = replace(parameters, memory=allowed, threads=threads, read_ahead=0)  # all models read ahead once
        planned: Plan = model._plan_source(source, limited, **(planning or {}))
        return planned

    return PlannedFit(plan, lambda plan: model._readings_of_fit(source, parameters, plan))


def subset_of(source: Source, chosen: object, name: str) -> Source:
    """Return `source` with the features that `chosen` names for the model `name`; `source` itself where that is all of them.

    Parameters
    ----------
    source : Source
        The table.
    chosen : str, sequence of str, slice, array of bool or of int
        Names of variables or of features, or their places. The order is that of the table.
    name : str
        Name of the model in messages.

    Raises
    ------
    ParameterError
        If there is no such feature, or none is chosen.
    NotAvailableError
        For sparse rows, and rows that are normalised by all features.
    """
    used = _used(source, chosen, f"features: {name}")
    if not used.any():
        raise ParameterError(f"features: {name} has none of the {source.shape[1]} features: expected some")
    if used.all():
        return source
    if source.sparse:
        raise NotAvailableError(
            f"features: {name}: {source.description} has sparse rows, whose features cannot be selected here: open them with a mask"
        )
    if source.normalized:
        raise NotAvailableError(
            f"features: {name}: {source.description} has rows normalised over all features: open those of the model, with a mask or "
            "columns beside normalize, and fit it by itself"
        )
    return with_features(source, used)


def _used(source: Source, chosen: object, what: str) -> BoolArray:
    """Return which features are chosen, ``(n_features,)``."""
    d = source.shape[1]
    used = np.zeros(d, dtype=bool)
    if isinstance(chosen, slice):
        try:
            chosen = range(d)[chosen]
        except (TypeError, ValueError) as error:
            raise ParameterError(f"{what} are {chosen}: expected a slice of places: {error}") from error
    if isinstance(chosen, str):
        return _named(source, chosen, what)
    if is_placed(chosen) and str(getattr(chosen, "dtype", "")) == "bool":
        chosen = of_features(what, chosen, source.labels, others=False)
    places = _as_array(chosen, what)
    if places.ndim == 1 and all(isinstance(each, str) for each in places):
        for each in places:
            used |= _named(source, str(each), what)
        return used
    if places.dtype.kind == "b" and places.shape == (d,):
        return places.astype(bool)
    if places.dtype.kind not in "iu" or places.ndim != 1 or len(np.unique(places % d)) < len(places):
        raise ParameterError(
            f"{what} are of shape {places.shape} and type {places.dtype}: expected names, {d} truth values or different places"
        )
    if len(places) and not -d <= int(places.min()) <= int(places.max()) < d:
        raise ParameterError(f"{what} name a place outside the {d} features")
    used[places] = True
    return used


def _as_array(chosen: object, what: str) -> Array:
    """Return chosen features as an array; `ParameterError` for lists of different lengths."""
    if isinstance(chosen, list | tuple) and any(isinstance(each, str) for each in chosen):
        return np.array([*chosen], dtype=object)
    try:
        return np.asarray(chosen)
    except ValueError as error:
        raise ParameterError(f"{what} are no array: {error}") from error


def _named(source: Source, name: str, what: str) -> BoolArray:
    """Return which features the name of a variable, or of a feature, means."""
    labels = source.labels
    variables = [] if labels is None else [variable.name or "" for variable in labels.variables]
    if labels is not None and name in variables:
        of_variable = np.repeat(np.arange(len(variables)), [variable.size for variable in labels.variables])
        named: BoolArray = of_variable[labels.indices()] == variables.index(name)
        return named
    names = source.feature_names or ()
    if name in names:
        return np.array([each == name for each in names])
    known = [*filter(None, variables), *names]
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "") if known else "no names"
    raise ParameterError(
        f"{what}: there is no variable or feature {name[:60]!r} (names: {shown}){did_you_mean(name, known)}"
    )
