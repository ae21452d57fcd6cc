"""Sampling errors of a fit: planned before it, and computed after it from covariances or scores of groups of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from scipy.linalg import eigh
from typing_extensions import override

from streampca.accumulators.base import Accumulator
from streampca.accumulators.centring import refuse_not_finite
from streampca.block import Block, as_block
from streampca.errors import NotAvailableError, ParameterError
from streampca.execution.readings import Reading, Readings
from streampca.formatting import as_text
from streampca.linalg.cross_validation import group_edges, jackknife_variance, pieces
from streampca.linalg.scaling import UNSCALED, Scaling
from streampca.linalg.tiles import TileGrid
from streampca.models.diagnostics import centred_rows
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
from streampca.planning.plan import Plan
from streampca.planning.scores import plan_scores
from streampca.planning.work import Resources
from streampca.solvers.analyses import Analysis
from streampca.solvers.base import AnyFit
from streampca.solvers.choosing import solver_of
from streampca.sources.base import Source
from streampca.typing import Array, FloatArray

_LEAST_ROWS = 2
"""Rows of a group at least."""
_PANEL_BYTES = 2**20


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
        raise budget.refusal(f"sampling errors take {as_text(extra)}; set sampling_errors=0, or ")
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


def score_unit(model: Model) -> float:
    """Return a power of two near the standard deviation of the first scores, in whose units fourth powers of scores are near 1."""
    variance = float(model.score_variances[0])
    return 2.0 ** (math.frexp(variance)[1] // 2) if variance > 0 else 1.0


@dataclass(frozen=True)
class ScoreGroups(Accumulator[GroupMoments, GroupMoments]):
    """Accumulates `GroupMoments` of the rows that a model was fitted on, with scores and rows in units of `score_unit`."""

    model: Model
    """The model; its components are in memory."""
    n_samples: int
    """Rows of the source."""
    n_groups: int
    """Groups of consecutive rows."""

    @property
    def scaled(self) -> bool:
        """Tell whether the squares of every feature are summed, because features were scaled."""
        return self.model.linear is not None and self.model.linear.scale is not None

    @override
    def init(self, n_features: int) -> GroupMoments:
        return GroupMoments.empty(self.model.n_components, n_features if self.scaled else 0)

    def update(self, state: GroupMoments, block: Block | Array) -> GroupMoments:
        """Return `state` with the rows of `block` added, after it; `NotFiniteError` if rows that count are not finite."""
        block = as_block(block)
        model = self.model if self.model.linear is None else replace(self.model.linear, whiten=False)
        with np.errstate(over="ignore", invalid="ignore"):
            scores = model.encode(block.values)
        counts = np.ones(len(block), dtype=bool) if block.weights is None else block.weights > 0
        if not counts.all():
            scores = np.where(counts[:, None], scores, 0)
        if not np.isfinite(scores).all():
            refuse_not_finite(block.values, block.start)
        total = self.init(block.values.shape[1])
        unit = score_unit(self.model)
        edges, step = group_edges(self.n_samples, self.n_groups), max(1, _PANEL_BYTES // (8 * scores.shape[1]))
        for group, first, end in pieces(edges, block.start, block.start + len(block)):
            for start in range(first, end, step):
                rows = slice(start - block.start, min(end, start + step) - block.start)
                part, t = block.slice(rows.start, rows.stop), scores[rows].astype(np.float64) / unit
                lengths, features = self._lengths(part)
                total = total.absorb(GroupMoments.of(group, start, t, lengths, part.weights, features))
        return state.absorb(total)

    def _lengths(self, block: Block) -> tuple[FloatArray | None, FloatArray]:
        """Return ‖z‖² of the rows, None for kernel PCA, and Σ w z² of each feature if features were scaled."""
        d, model = block.values.shape[1], self.model.linear
        features = np.zeros(d if self.scaled else 0)
        if model is None:
            return None, features
        lengths = np.empty(len(block))
        step = max(1, min(len(block), _PANEL_BYTES // (8 * d)))
        space = np.empty((step, d))
        for start in range(0, len(block), step):
            panel = block.slice(start, start + step).dense()
            with np.errstate(invalid="ignore", over="ignore"):  # rows of weight 0 may hold anything
                z = centred_rows(model, panel.values, slice(0, d), space[: len(panel)])[0]
                z /= score_unit(model)
            if panel.weights is not None:
                z[panel.weights == 0] = 0.0
            lengths[start : start + len(z)] = np.einsum("ij,ij->i", z, z)
            if self.scaled:
                weighted = z if panel.weights is None else z * panel.weights[:, None]
                features += np.einsum("ij,ij->j", z, weighted)
        return lengths, features

    @override
    def absorb(self, state: GroupMoments, other: GroupMoments) -> GroupMoments:
        return state.absorb(other)

    @override
    def merge(self, states: Sequence[GroupMoments]) -> GroupMoments:
        return reduce(self.absorb, states)

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state with all groups in bytes."""
        return moments_bytes(self.model.n_components, n_features if self.scaled else 0, self.n_groups)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update: the scores of the block, and that of `moments_scratch_bytes`."""
        k = self.model.n_components
        return 16 * n_rows * k + moments_scratch_bytes(k, n_features, scaled=self.scaled)


def moments_bytes(k: int, n_features: int, n_groups: int) -> int:
    """Return the size in bytes of the sums of `n_groups` groups with `k` scores and the squares of `n_features` features."""
    return 8 * (n_groups * (k * k + k + n_features + 3) + 4 * k)


def moments_scratch_bytes(k: int, n_features: int, *, scaled: bool) -> int:
    """Return the scratch memory in bytes of `ScoreGroups.update`: panels of rows and of scores, and states of two groups."""
    return (
        3 * max(_PANEL_BYTES, 8 * n_features)
        + 6 * max(_PANEL_BYTES, 8 * k)
        + 4 * moments_bytes(k, n_features * scaled, 2)
    )
