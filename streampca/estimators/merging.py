"""Merging of fitted or saved models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from streampca.errors import MergeError, ParameterError
from streampca.estimators.continuing import _NO_STATE, Continuing, _some
from streampca.models.state import FittedState
from streampca.solvers.state import merged

if TYPE_CHECKING:
    from streampca.estimators.pca import PCA


def merge(models: Sequence[PCA]) -> PCA:
    """Return the model of all rows behind `models`, fitted on disjoint rows with the same parameters.

    Equal to one fit of all rows up to rounding. The order counts only with a forgetting factor, where it is that of
    time. Cost: one addition of d² numbers for each model; the eigenproblem waits for the first use of the result.

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
        If a parameter that enters the state or the model differs, with its name and both values; if a model has no
        state (save it with ``state=True``); or if the same model, or the rows of the same file, are given twice.

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


def merge_saved(paths: Sequence[Path]) -> PCA:
    """Return the merged model of the models or runs at `paths`; two of their states are in memory at a time."""
    from streampca.estimators.loading import load

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
