"""Source, estimator, parameters, plan and values of rows from a configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from inspect import signature
from operator import add
from typing import Any, Generic, TypeAlias, cast

import numpy as np

from streampca.errors import ConfigError, DataError, NotAvailableError, StreamPCAError
from streampca.estimators.base import StreamEstimator
from streampca.estimators.groups import groups_of
from streampca.estimators.kernel_pca import KernelPCA
from streampca.estimators.loading import ESTIMATORS
from streampca.execution.distributed.active_client import active_client
from streampca.execution.readings import Readings
from streampca.kernels import RBF, Kernel, kernel_of
from streampca.linalg.selection import from_plain
from streampca.parameters import KINDS, Parameters
from streampca.parameters.statement import Rotation
from streampca.planning.columns import as_weights, coordinate_of, with_columns
from streampca.planning.plan import Plan
from streampca.regressors import as_groups, groups_from, known_names, values_from
from streampca.runs.config import KernelConfig, KernelPCAConfig, PCAConfig, PreprocessConfig, RunConfig, SourceConfig
from streampca.runs.config.models import ModelsConfig
from streampca.runs.config.values import plain_options
from streampca.solvers.base import AnyFit, AnyParameters
from streampca.solvers.choosing import obstacle_to_state
from streampca.solvers.fit import require_fit
from streampca.solvers.groups import Groups, require_groups
from streampca.solvers.kernel.base import KernelFit, KernelParameters
from streampca.solvers.result import Fit
from streampca.sources import Source, open_source
from streampca.sources.arrays import read_array
from streampca.sources.files.paths import files_of
from streampca.sources.formats import ReadOptions
from streampca.sources.listing import read_beside, read_vector
from streampca.typing import Array


@dataclass(frozen=True)
class ConfiguredFit(Generic[AnyParameters, AnyFit]):
    """An unfitted estimator, and the parameters of its fit."""

    estimator: StreamEstimator
    """The estimator."""
    parameters: AnyParameters
    """Its checked parameters, with weights and threads."""
    rotation: Rotation | None = field(default=None, kw_only=True)
    """Rotation of the components after the fit; None for no rotation."""

    def of(self, source: Source) -> ConfiguredFit[AnyParameters, AnyFit]:
        """Return the fit with weights of the features of `source` from a coordinate."""
        return replace(self, parameters=with_columns(self.parameters, source))

    def within(self, memory: int, threads: int) -> ConfiguredFit[AnyParameters, AnyFit]:
        """Return the fit with other limits, for one of several fits in shared passes."""
        limits: dict[str, Any] = {"memory": memory, "threads": threads, "read_ahead": 0}  # all read ahead once
        return replace(self, parameters=replace(self.parameters, **limits))

    def plan(self, config: RunConfig, source: Source, *, shared: bool = False) -> Plan:
        """Return the plan of `config`.

        The plan of a single fit has alternatives and counts the workers of a cluster; a `shared` plan is for one of several fits.
        """
        planned: Plan = self.estimator._plan_source(
            source,
            self.parameters,
            scores=config.output.scores,
            quality=config.quality,
            report=config.output.report,
            client=None if shared else active_client(source),
            alternatives=not shared,
            **({"diagnostics": True} if config.output.diagnostics else {}),
        )
        return planned

    def readings(self, source: Source, plan: Plan, *, keep_rows: int, quality: bool) -> Readings[AnyFit]:
        """Request the passes of the fit of `source` by `plan`, which copy `keep_rows` rows and check the `quality` of the data."""
        beside: dict[str, Any] = {"keep_rows": keep_rows, "quality": quality}
        fitted: Any = yield from self.estimator._readings_of_fit(source, self.parameters, plan, **beside)
        if self.rotation is not None:
            fitted = fitted.rotated(self.rotation)
        return cast(AnyFit, fitted)


_UNREAD: Array = np.ones(1)
"""Placeholder for an array that is not read."""

AnyConfiguredFit: TypeAlias = ConfiguredFit[Parameters, Fit] | ConfiguredFit[KernelParameters, KernelFit]


def fit_of(config: RunConfig, *, unread: bool = False) -> AnyConfiguredFit:
    """Return the estimator that `config` describes, and the parameters of its fit.

    It reads weights, groups and covariates; with `unread`, one number replaces each of them, for checks without data.

    Raises
    ------
    NotAvailableError
        For preprocessing that the estimator does not support.
    """
    kind, preprocess = ESTIMATORS[config.model.kind], config.preprocess
    names = kind._get_param_names()
    weighted = "sample_weight" in signature(kind.fit).parameters
    for name, stated in PreprocessConfig.model_fields.items():
        value, taken = getattr(preprocess, name), name in names or (name == "sample_weight" and weighted)
        if not taken and value != stated.default:
            raise NotAvailableError(
                f"preprocess.{name}: {preprocess.as_written(name)} is not available for kind: {config.model.kind}: prepare the "
                "rows before"
            )

    def weights_of(key: str) -> Array | None:
        written = getattr(config.preprocess, key)
        if written is None or unread:
            return None if written is None else _UNREAD
        return read_vector(
            f"preprocess.{key}", written, str(config.source.path), ReadOptions(**keywords_of(config.source))
        )

    sample_weight = as_weights("preprocess.sample_weight", weights_of("sample_weight"))
    values = config.estimator_parameters() | {"n_components": from_plain(config.model.n_components)}
    if "feature_weight" in names:
        written = config.preprocess.feature_weight
        if written is not None and "(" in written and not written.endswith(".npy"):
            coordinate_of(written)
            values["feature_weight"] = written
        else:
            values["feature_weight"] = weights_of("feature_weight")
    if "remove" in names:
        values["remove"] = _removal_of(config, (lambda key, name: _UNREAD) if unread else read_array)
    threads, read_ahead = config.resources.n_threads, config.resources.read_ahead_bytes
    if isinstance(config.model, KernelPCAConfig):
        kernel_pca = KernelPCA()
        kernel_pca.set_params(**_with_kernel(values, config.model))
        return ConfiguredFit(kernel_pca, replace(kernel_pca._parameters(threads), read_ahead=read_ahead))
    estimator: Any = kind()
    estimator.set_params(**values)
    parameters = replace(estimator._parameters(threads), sample_weight=sample_weight, read_ahead=read_ahead)
    rotation = (
        config.model.rotation if isinstance(config.model, PCAConfig) else None
    )  # factors are rotated by their fit
    return ConfiguredFit(estimator, parameters, rotation=rotation)


def _require_rotatable(config: RunConfig) -> None:
    """Raise `ConfigError` if a rotation is combined with an output that rotated components do not have."""
    if not isinstance(config.model, PCAConfig) or config.model.rotation is None:
        return
    for key, asked, why in (
        ("model.group_by", config.model.group_by is not None, "fits of groups are not rotated"),
        ("output.diagnostics", config.output.diagnostics, "T² and Q are those of components that are not rotated"),
        ("output.anndata", bool(config.output.anndata), "AnnData has slots for components that are not rotated"),
        ("statistics.sampling_errors", bool(config.statistics.sampling_errors), "rotated components have none"),
    ):
        if asked:
            raise ConfigError(f"{key} cannot be combined with model.rotation: {why}; leave one of them out")


@contextmanager
def of_model(name: str) -> Iterator[None]:
    """Add the name of the model `name` to the message of an error."""
    try:
        yield
    except StreamPCAError as error:
        error.args = (f"models.{name}: {error.args[0]}",)
        raise


def require_possible(config: RunConfig | ModelsConfig) -> None:
    """Raise the error of a run of `config` for incompatible parameters and outputs, whatever the data; reads nothing.

    Raises
    ------
    ConfigError
        For an output that such a fit does not have.
    NotAvailableError, ParameterError
        For parameters that the fit refuses.
    """
    if isinstance(config, ModelsConfig):
        for name, one in config.models.items():
            with of_model(name):
                require_possible(one)
        return
    parameters, output, kind = fit_of(config, unread=True).parameters, config.output, KINDS[config.model.kind]
    for key, given, what in (
        ("diagnostics", output.diagnostics, "has no T² and Q"),
        ("anndata", output.anndata, "is not written there"),
    ):
        if given and not kind.row_distances:
            raise ConfigError(f"output.{key}: {json.dumps(given)}, but kind: {kind.name} {what}: expected kind: pca")
    if output.reconstruction and isinstance(config.model, KernelPCAConfig) and not config.model.fit_inverse_transform:
        raise ConfigError(
            f"output.reconstruction: {json.dumps(output.reconstruction)}, but the map from scores back to features is not learned: set "
            "model.fit_inverse_transform: true, or output.reconstruction: false"
        )
    require_state(config, parameters)
    _require_rotatable(config)
    if isinstance(parameters, Parameters) and getattr(config.model, "group_by", None) is not None:
        require_groups(None, parameters)
    else:
        require_fit(None, parameters, analysis=kind.is_analysis)


def require_state(config: RunConfig, parameters: Parameters | KernelParameters, plan: Plan | None = None) -> None:
    """Raise `ConfigError` if the state is to be saved but such a fit keeps none, according to `plan` if given."""
    obstacle = obstacle_to_update(config, parameters, plan) if config.output.state else None
    if obstacle is not None:
        raise ConfigError(f"output.state: true, but {obstacle}; else set output.state: false")


def obstacle_to_update(
    config: RunConfig, parameters: Parameters | KernelParameters, plan: Plan | None = None
) -> str | None:
    """Return why rows cannot be added to the state of a run of `config`; None if they can (see `obstacle_to_state`)."""
    if isinstance(config.model, PCAConfig) and config.model.rotation is not None:
        return "model.rotation keeps no state to add rows to: a state has the components before the rotation"
    return obstacle_to_state(parameters, plan)


def _with_kernel(values: dict[str, object], model: KernelPCAConfig) -> dict[str, object]:
    """Return parameters with the weighted sum of kernels in place of the names and the parameters of its terms."""
    in_kernel = ("gamma", "degree", "coef0", "kernel_params")
    sampling = model.sampling if isinstance(model.sampling, str) else np.array(model.sampling, dtype=np.int64)
    kernel = reduce(add, (_term_of(term, model) for term in model.kernel))
    named = {name: value for name, value in values.items() if name not in in_kernel}
    return named | {"kernel": kernel, "sampling": sampling}


def _term_of(term: KernelConfig, model: KernelPCAConfig) -> Kernel:
    """Return a kernel of the sum; null keys take the values of `model`."""
    gamma = model.gamma if term.gamma is None else term.gamma
    degree = model.degree if term.degree is None else term.degree
    coef0 = model.coef0 if term.coef0 is None else term.coef0
    kernel = RBF(sigma=term.sigma) if term.sigma is not None else kernel_of(term.name, gamma, degree, coef0)
    return kernel if term.weight == 1.0 else kernel * term.weight


def source_of(config: RunConfig, **others: Any) -> Source:
    """Open the source of `config`, with `others` in place of its keys.

    It reads only metadata and coordinates, unless `source.mask` needs rows.
    """
    keywords = keywords_of(config.source) | {"follow_symlinks": config.source.follow_symlinks, **others}
    if others.get("mask") is not None:
        keywords["mask_var"] = None
    return open_source(config.source.path, **keywords)


def _removal_of(config: RunConfig, read: Callable[[str, str], Array]) -> dict[str, object] | None:
    """Return the removal in `config`, with the arrays that it names, as returned by `read`."""
    written = config.preprocess.remove
    if written is None:
        return None
    groups: object = written.groups
    if written.groups is not None and written.groups.endswith(".npy"):
        groups = read("preprocess.remove.groups", written.groups)
    covariates = written.covariates
    values = None if covariates is None else read("preprocess.remove.covariates", covariates)
    return {"groups": groups, "trend": written.trend, "covariates": values}


def keywords_of(source: SourceConfig) -> dict[str, Any]:
    """Return the keywords of `open_source` for `source`."""
    keywords = source.model_dump(exclude={"path", "labels", "storage_options", "follow_symlinks"})
    return keywords | {"storage_options": plain_options(source.storage_options) or None}


_GROUPS, _CLASSES = "model.group_by", "source.labels"


def values_named(key: str, name: str, config: RunConfig, source: Source) -> Array:
    """Return the values that `name`, from the key `key` of `config`, refers to; their number is not checked.

    They come from a file, a coordinate or column of the table, or an array beside it.

    Raises
    ------
    DataError
        If the file, column or array does not exist or cannot be read.
    ParameterError
        If the name is an unknown part of times, or not a column of the files or AnnData.
    """
    chosen = source.chosen
    if name.endswith(".npy"):
        return read_array(key, name) if chosen is None else chosen.of(read_array(key, name))
    labels, columns = source.labels, source.sample_columns
    values = values_from(labels, name, source.description, key, columns=columns)
    if values is not None:
        return values
    if columns is not None and not columns.of_group:
        return groups_from(labels, name, source.description, key, columns=columns)  # raises what names there are
    try:
        beside = read_beside(key, name, str(config.source.path), ReadOptions(**keywords_of(config.source)))
        return beside if chosen is None else chosen.of(beside)
    except DataError as error:
        raise type(error)(f"{error}; {known_names(labels, columns)}") from error


def classes_of_samples(config: RunConfig, source: Source) -> Array | None:
    """Return the class of each sample of `source` as text, ``(n_samples,)``; None if `config` names none.

    Raises
    ------
    DataError
        If the file, coordinate or array does not exist, or does not hold text or a whole number for each sample.
    ParameterError
        If the name is a sample coordinate with an unknown part of its times.
    """
    name = config.source.labels
    if name is None:
        return None
    values = values_named(_CLASSES, name, config, source)
    if values.shape != source.shape[:1]:
        raise DataError(
            f"{_CLASSES}: {name} has shape {values.shape}: expected one class for each of the {source.shape[0]} samples of "
            f"{source.description}"
        )
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "f":
        whole = np.isfinite(values) & (np.abs(values) < 2**53)
        values = values.astype(np.int64) if bool(whole.all()) and bool((values == np.rint(values)).all()) else values
    if values.dtype.kind not in "biuUTO":
        times = f", or a part of its times such as {name}.month" if values.dtype.kind == "M" else ""
        raise DataError(
            f"{_CLASSES}: {name} holds values of the type {values.dtype}: expected text or whole numbers{times}"
        )
    return values.astype(str)


def group_by_of(config: RunConfig) -> str | None:
    """Return the label that divides rows into groups; None if one model is fitted to all rows."""
    name: str | None = getattr(config.model, "group_by", None)
    return name


def source_by_groups(config: RunConfig) -> Source:
    """Open the source of `config`; a column of Parquet or Arrow files that divides the rows is not a feature."""
    name, path = str(group_by_of(config)), config.source.path
    files = files_of(path if isinstance(path, str) else list(path))
    if files is None or files.format.holds != "columns" or config.source.id_column is not None or name.endswith(".npy"):
        return source_of(config)
    try:
        return source_of(config, id_column=name)
    except StreamPCAError as error:
        column = name.rpartition(".")[0]
        if not column:
            raise
        raise type(error)(
            f"{error}; where {name} is a part of the times in the column {column}, set source.id_column: {column}"
        ) from error


def groups_of_rows(config: RunConfig, source: Source) -> Groups:
    """Return the groups of the rows of `source` that `config` names; reads the labels, but no rows.

    Raises
    ------
    ParameterError
        If the coordinate does not exist or would also be a feature, or if labels are missing or not one per row.
    DataError
        If the file, column or array does not exist, or if a group has the name of another part of the result.
    """
    labels = values_named(_GROUPS, str(group_by_of(config)), config, source)
    return groups_of(as_groups(labels, _GROUPS), source, _GROUPS)
