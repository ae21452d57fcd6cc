"""One PCA for each group of rows, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

import streampca.formatting as words
from streampca.errors import DataError, ParameterError
from streampca.estimators.continuing import Continuing
from streampca.estimators.interface import clone
from streampca.estimators.summary import Summary, summary_of_several
from streampca.execution.checkpoint.resume import array_digest, identity_of_fit, resumed
from streampca.formatting import lines_as_html
from streampca.labels import SampleColumns
from streampca.metrics import principal_angles
from streampca.planning.columns import with_columns, with_sample_weight
from streampca.planning.plan import Plan
from streampca.regressors.removal import as_groups, groups_from
from streampca.solvers.groups import Groups, fit_groups, plan_fits_of_groups
from streampca.sources import Source, open_source
from streampca.sources.alignment import of_chosen, of_rows
from streampca.sources.files.paths import files_of, is_paths
from streampca.sources.frames import (
    FrameColumns,
    collected,
    dimension_of_index,
    is_frame,
    is_indexed,
    is_xarray,
    wrapped,
)
from streampca.system.process import peak_bytes
from streampca.typing import Array, FloatArray

if TYPE_CHECKING:
    from streampca.estimators.inputs import Input

Estimator = TypeVar("Estimator", bound=Continuing)

_MOST_SHOWN = 30  # models that a notebook shows
POOLED, BETWEEN = "pooled", "between"
"""Names of the fits that belong to no group."""


class GroupModels(dict[Hashable, Estimator]):
    """Fitted estimators by the labels of groups, with ``"pooled"`` and, for several groups, ``"between"``.

    Attributes
    ----------
    groups_ : tuple
        Labels of the groups, in ascending order.
    plan_ : Plan
        The plan.
    n_passes_, bytes_read_ : int
        Passes over the data, 1 or with `remove` 2, and decoded bytes that they read.
    """

    groups_: tuple[Any, ...]
    plan_: Plan
    n_passes_: int
    bytes_read_: int
    _peak_bytes: int

    def angles(self) -> FloatArray:
        """Return the largest principal angle in radians between the components of each pair of groups, ``(n_groups, n_groups)``."""
        return self._table(lambda angles: float(angles[-1]), 0.0)

    def similarity(self) -> FloatArray:
        """Return the mean squared cosine of the principal angles between the components of each pair of groups, ``(n_groups, n_groups)``.

        It is 1 if two groups have the same subspace, 0 if their subspaces are orthogonal, and k/d on average for
        random subspaces of k dimensions (Krzanowski 1979, divided by k).
        """
        return self._table(lambda angles: float(np.mean(np.cos(angles) ** 2)), 1.0)

    def summary(self) -> Summary:
        """Return a one-page summary of the fits for ``print`` and notebooks, with one row for each of the first models.

        Returns
        -------
        Summary
            Rows, components and shares of the variance of each group, data read and memory. The summary of each
            single fit lists its components.
        """
        return summary_of_several(self, f"{words.plural(len(self.groups_), 'group')}, one PCA each", "group")

    def _repr_html_(self) -> str:
        shown = list(self)[:_MOST_SHOWN]
        more = [("…", f"{len(self) - len(shown):,} more")] if len(self) > len(shown) else []
        return lines_as_html([*((str(name), _in_words(self[name])) for name in shown), *more])

    def _table(self, of_angles: Callable[[FloatArray], float], same: float) -> FloatArray:
        models: list[Any] = [self[name] for name in self.groups_]
        table = np.full((len(models), len(models)), same)
        for i, j in combinations(range(len(models)), 2):
            table[i, j] = table[j, i] = of_angles(principal_angles(models[i].components_, models[j].components_))
        return table


def _in_words(model: Any) -> str:
    """Return rows, components and the share of the variance that they carry of one model as text."""
    n, k, share = _figures(model)
    return f"{n} samples, {k} component{'s' if k != '1' else ''}, {share} of the variance"


def _figures(model: Any) -> tuple[str, str, str]:
    """Return the same three figures as texts."""
    share = float(np.sum(model.explained_variance_ratio_))
    return f"{model.n_samples_seen_:,}", f"{model.n_components_}", f"{share:.1%}"


def fit_of_groups(
    pca: Estimator, X: Input, labels: ArrayLike | str, sample_weight: ArrayLike | None
) -> GroupModels[Estimator]:
    """Return what `PCA.fit_groups` returns."""
    X, columns = _without_column(X, labels) if isinstance(labels, str) else (X, None)
    source = pca._open(X)
    parameters = with_columns(with_sample_weight(pca._parameters(), sample_weight), source)
    if isinstance(labels, str):
        known = columns or source.sample_columns
        values = groups_from(source.labels, labels, source.description, "labels", columns=known)
    else:
        values = as_groups(of_rows("labels", of_chosen("labels", labels, source.chosen), source.labels), "labels")
    groups = groups_of(values, source)
    plan = plan_fits_of_groups(source, parameters, groups)
    of_groups = {"labels of groups": array_digest(groups.codes)}
    with resumed(plan, pca.checkpoint, lambda: identity_of_fit(source, parameters) | of_groups) as plan:
        done = fit_groups(source, parameters, groups, plan, pca.progress)
    models: GroupModels[Estimator] = GroupModels()
    template = clone(pca).set_params(checkpoint=None)  # once: it takes as long as the rows of a small group
    pooled = copy(template)
    pooled._take(done.pooled, source)
    unsolved = copy(pooled)
    for number, (name, state) in enumerate(zip(groups.names, done.found.groups, strict=True)):
        models[name] = model = copy(unsolved)
        if done.found.removing is not None:  # whose models are all there, and have no states
            model._take(done.found.fit(state, done.models[number]), source)
            continue
        model._hold(state)
        if number in done.models:
            model._model = done.models[number]
    models[POOLED] = pooled
    if done.between is not None:
        models[BETWEEN] = between = copy(unsolved)
        between._take(done.between, source)
    models.groups_, models.plan_ = groups.names, plan
    models.n_passes_, models.bytes_read_ = plan.passes, done.found.count.bytes
    models._peak_bytes = peak_bytes()
    return models


def _without_column(X: Any, name: str) -> tuple[Any, SampleColumns | None]:
    """Return a data frame, Dataset or Parquet files without the column that labels rows as a feature, and its columns.

    The column is `name`, or for a part of its times what stands before the dot. Other data are returned as they are, and frames
    of pandas whose index has the name.
    """
    if is_xarray(X) and hasattr(X, "data_vars"):
        chosen = next((each for each in (name, name.rpartition(".")[0]) if each in X.data_vars), None)
        return (X if chosen is None else X.set_coords(chosen)), None
    if is_frame(X):
        frame = collected(X)
        columns = FrameColumns(frame)
        index = FrameColumns(frame.index.to_frame(index=False)) if is_indexed(frame) else None
        if index is not None and not _known(name, columns):
            if dimension_of_index(frame.index).name in (name, name.rpartition(".")[0]):
                return frame, None  # whose labels have it
            if _known(name, index):
                return frame, index
        chosen = _column_of(name, columns)
        return wrapped(frame).drop(chosen).to_native(), columns
    files = files_of(X) if is_paths(X) and not str(X).startswith("builtin:") else None
    if files is None or files.format.holds != "columns":
        return X, None
    try:
        return open_source(X, id_column=name), None
    except ParameterError as error:  # there is no such column
        try:
            return open_source(X, id_column=name.rpartition(".")[0] or name), None
        except ParameterError:
            raise ParameterError(f"labels={name!r}: {error}") from error


def _column_of(name: str, columns: SampleColumns) -> str:
    """Return the column of a data frame that `name` is, or of whose times it is a part."""
    chosen = _known(name, columns)
    if chosen is not None:
        return chosen
    raise ParameterError(f"labels={name!r}: the data frame has no such column (columns: {', '.join(columns.names)})")


def _known(name: str, columns: SampleColumns) -> str | None:
    """Return the column that `name` is, or of whose times it is a part; None if there is none."""
    return next((each for each in (name, name.rpartition(".")[0]) if each and each in columns.names), None)


def groups_of(values: Array, source: Source, key: str = "labels") -> Groups:
    """Return the groups of rows with equal `values`, which messages call `key`; raises what `PCA.fit_groups` raises for them."""
    n = source.shape[0]
    if values.shape != (n,):
        raise ParameterError(f"{key} has shape {values.shape}: expected one label for each of the {n} rows")
    distinct, codes = np.unique(values, return_inverse=True)
    names = tuple(distinct if distinct.dtype.kind == "M" else distinct.tolist())
    for taken in (POOLED, BETWEEN):
        if taken in names:
            raise DataError(f"a group is called {taken!r}, which is the name of another part of the result: rename it")
    return Groups(names, codes.astype(np.int32))
