"""Sampling errors of a fit: planned before it, and computed after it from groups of rows, whose covariances it kept or whose scores are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh

from streampca.errors import NotAvailableError, ParameterError
from streampca.execution.readings import Reading, Readings
from streampca.linalg.cross_validation import jackknife_variance
from streampca.linalg.scaling import UNSCALED, Scaling
from streampca.linalg.tiles import TileGrid
from streampca.models.pca import Model, PCAModel
from streampca.models.rows import residuals_of
from streampca.models.sampling_errors import (
    GroupMoments,
    Method,
    Population,
    SamplingErrors,
    sampling_errors,
    scale_changes,
)
from streampca.models.score_groups import ScoreGroups, moments_bytes, moments_scratch_bytes, score_unit
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_scores
from streampca.planning.work import Resources
from streampca.solvers.analyses import Analysis
from streampca.solvers.base import AnyFit
from streampca.solvers.choosing import solver_of
from streampca.sources.base import Source
from streampca.typing import FloatArray

_LEAST_ROWS = 2
"""Rows of a group at least."""


def require_sampling(n_groups: int, n_samples: int) -> None:
    """Raise `ParameterError` for a number of groups that the rows cannot be divided into."""
    if n_groups < 2 or n_groups * _LEAST_ROWS > n_samples:
        most = n_samples // _LEAST_ROWS
        raise ParameterError(
            f"sampling_errors={n_groups}: expected 0 for none, or from 2 to {most} groups of the {n_samples:,} rows, at least "
            f"{_LEAST_ROWS} in each; about 20 are usual"
        )


def plan_sampling(
    plan: Plan, source: Source, parameters: Any, resources: Resources, analysis: Analysis | None = None
) -> Plan:
    """Return `plan` with what sampling errors take: covariances of groups of rows, else one more reading.

    Those of an `analysis` follow from covariances alone.

    Raises
    ------
    PlanError, NotAvailableError
        If that does not fit, or the covariances of an analysis are not kept.
    """
    n_groups, (n, d), k = parameters.sampling_errors, source.shape, plan.n_components or min(source.shape)
    grouped = solver_of(plan)(source, parameters).plan_with_groups(resources, plan, always=analysis is not None)
    if grouped is not None:
        return grouped
    if analysis is not None:
        raise NotAvailableError(
            f"sampling_errors={n_groups} of {analysis.kind.name} follow from covariances of groups of rows, in memory and without `remove`: set "
            "sampling_errors=0, or remove that part of the rows before"
        )
    scaled = bool(parameters.scaling)
    extra = moments_bytes(k, d if scaled else 0, n_groups) * (2 + plan.leaves_in_flight)
    extra += plan.leaves_in_flight * moments_scratch_bytes(k, d, scaled=scaled)
    budget = plan.budget.plus(extra)
    if not budget.fits:
        raise budget.refusal(f"sampling errors take {extra:,} bytes; set sampling_errors=0, or ")
    return replace(
        plan,
        budget=budget,
        sampling_errors="reading",
        passes=plan.passes + 1,
        bytes_to_read=plan.bytes_to_read + plan.bytes_to_read // max(1, plan.passes),
        flops=plan.flops + 2.0 * n * d * k,
        notes=(*plan.notes, f"sampling errors by {n_groups} groups of rows: one more reading, for the scores"),
    )


def with_sampling_errors(fit: AnyFit, source: Source, parameters: Any) -> Readings[AnyFit]:
    """Return `fit` with its sampling errors, from the groups of rows that it kept or by another reading of `source`."""
    model, plan, scaling, state = fit.model, fit.plan, parameters.scaling, fit.fitted_state
    if plan.sampling_errors == "groups" and model.linear is not None and state is not None:
        errors = _errors_of_groups(model.linear, state.accumulator.grid(state.n_features), state.groups, scaling)
        return replace(fit, model=model.changed(sampling_errors=errors), fitted_state=replace(state, groups=()))
    rows, plan = residuals_of(source, model), plan.unshuffled()
    if plan.axis == "features":
        plan = plan_scores(rows, model, parameters.memory, parameters.threads)
    groups = ScoreGroups(model, rows.shape[0], parameters.sampling_errors)
    (moments,) = (yield Reading(rows, (groups,), plan, parameters.sample_weight, "sampling errors")).take()
    return replace(fit, model=model.changed(sampling_errors=_errors_of(model, moments, "reading", scaling)))


def _errors_of(
    model: Model,
    moments: GroupMoments,
    method: Method,
    scaling: Scaling = UNSCALED,
    outside: FloatArray | None = None,
) -> SamplingErrors:
    """Return the sampling errors of `model` from `moments` in units of `score_unit`.

    Parameters
    ----------
    model : PCAModel or KernelModel
        The model.
    moments : GroupMoments
        Sums over groups of rows.
    method : str
        Where they came from.
    scaling : Scaling
        How features were scaled.
    outside : array, shape (k,), or None
        Mean squared turns out of the space of the components, where they are known.
    """
    moments = _unweighted(model, moments, scaling)
    unit = score_unit(model) ** 2
    errors = sampling_errors(moments, replace(model.population(unit, scaling), outside=outside), method)
    return replace(
        errors,
        estimates=model.spectrum,
        eigenvalues=errors.eigenvalues * unit,
        north=errors.north * unit,
    )


def _unweighted(model: Model, moments: GroupMoments, scaling: Scaling) -> GroupMoments:
    """Return `moments` with the squares of features without their weights: those that scales follow from have none."""
    weight = None if model.linear is None or not scaling else model.linear.feature_weight
    if weight is None:
        return moments
    factor = np.divide(1.0, weight, out=np.zeros(len(weight)), where=weight > 0)
    return replace(moments, features=moments.features * factor)


@dataclass(frozen=True)
class _Products:
    """Sums over the rows z of each of m groups, centred by the mean of all, in units of `score_unit`; t are their k scores."""

    features: FloatArray
    """Σ w z, ``(m, n_features)``."""
    scores: FloatArray
    """Σ w z tᵀ, ``(m, n_features, k)``."""
    squares: FloatArray
    """Σ w z², ``(m, n_features)``."""
    whole: FloatArray
    """Σ w z zᵀ over all groups, ``(n_features, n_features)``."""


def _errors_of_groups(model: PCAModel, grid: TileGrid, states: Sequence[Any], scaling: Scaling) -> SamplingErrors:
    """Return the sampling errors of `model` from the covariances of the groups of its rows.

    All are first-order changes of the eigenpairs of the covariance of all rows when a group is left out, in the basis of all of its
    eigenvectors, so that turns out of the space of the components are known. Cost: 10 d³ + 2 m d² k flops for m groups.

    Parameters
    ----------
    model : PCAModel
        The model of all rows, with its components in memory.
    grid : TileGrid
        Layout of the tiles of a state.
    states : sequence of CovarianceState
        State of each group of consecutive rows; those of weight 0 do not count.
    scaling : Scaling
        How features were scaled.
    """
    states = [state for state in states if state.weight > 0]
    products, axes = _products(model, grid, states), np.asarray(model.components)
    k = len(axes)
    moments = GroupMoments(
        first=0,
        start=0,
        stop=model.n_samples,
        weights=np.array([(state.weight, state.weight_squares) for state in states]).reshape(-1, 2),
        sums=products.features @ axes.T,
        products=np.einsum("kd,gdj->gkj", axes, products.scores, optimize=True),
        lengths=products.squares.sum(axis=1),
        outside=np.full(k, np.nan),
        lagged=np.full(k, np.nan),
        ends=np.zeros((2, k)),
        features=products.squares if scaling else np.zeros((len(states), 0)),
    )
    population = model.population(score_unit(model) ** 2, scaling)
    few = len(states) < 2 or moments.weights[:, 0].max() >= moments.weights[:, 0].sum() - model.ddof  # refused below
    outside = None if few else _outside(products, _unweighted(model, moments, scaling), population, axes)
    return _errors_of(model, moments, "groups", scaling, outside)


def _products(model: PCAModel, grid: TileGrid, states: Sequence[Any]) -> _Products:
    """Return the products of the rows of the groups with their scores, and with one another."""
    axes, unit = np.asarray(model.components), score_unit(model)
    (k, d), m = axes.shape, len(states)
    factors = (np.ones(d) if model.weights is None else model.weights) / unit
    products = _Products(np.zeros((m, d)), np.zeros((m, d, k)), np.zeros((m, d)), np.zeros((d, d)))
    for g, state in enumerate(states):
        matrix = grid.dense(state.scatter)
        matrix *= factors
        matrix *= factors[:, None]
        mean = (state.mean - model.centre) * factors
        matrix += np.outer(state.weight * mean, mean)
        products.features[g] = state.weight * mean
        products.scores[g] = matrix @ axes.T
        products.squares[g] = np.diag(matrix)
        products.whole[:] += matrix
    return products


def _outside(products: _Products, moments: GroupMoments, population: Population, axes: FloatArray) -> FloatArray:
    """Return the mean squared turn of each component out of the space of the components, ``(k,)``.

    The turn of vᵢ towards an eigenvector uⱼ outside is vᵢᵀ C₍g₎ uⱼ / (λᵢ − λⱼ), where C₍g₎ is the covariance without group g.
    """
    k, weights = len(axes), moments.weights[:, 0]
    total = weights.sum()
    variances, vectors = eigh(products.whole / (total - population.ddof), overwrite_a=True, check_finite=False)
    others, basis = variances[::-1][k:], vectors[:, ::-1][:, k:]
    rest = total - weights
    sums, left = moments.sums, products.features @ basis
    sums_without, left_without = sums.sum(axis=0) - sums, left.sum(axis=0) - left
    changes = None
    if population.scaling:
        changes = np.stack([scale_changes(moments, population, g) for g in range(len(weights))])
    turns = np.zeros(k)
    for i, value in enumerate(population.eigenvalues):
        cross = products.scores[:, :, i] @ basis
        full, without = cross.sum(axis=0), cross.sum(axis=0) - cross
        if population.center:
            full = full - sums[:, i].sum() * left.sum(axis=0) / total
            without = without - (sums_without[:, i] / rest)[:, None] * left_without
        full, without = full / (total - population.ddof), without / (rest - population.ddof)[:, None]
        if changes is not None:
            without = without - (value + others) / 2 * ((changes * axes[i]) @ basis)
        spread = jackknife_variance(full, without, weights)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            turns[i] = np.where(spread > 0, spread / np.square(value - others), 0.0).sum()
    return turns
