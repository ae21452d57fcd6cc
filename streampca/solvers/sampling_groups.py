"""Sampling errors from the covariance of each group of rows, which the reading of the fit keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh

from streampca.linalg.cross_validation import jackknife_variance
from streampca.linalg.scaling import Scaling
from streampca.linalg.tiles import TileGrid
from streampca.models.pca import PCAModel
from streampca.models.sampling_errors import GroupMoments, Population, SamplingErrors, scale_changes
from streampca.models.score_groups import score_unit
from streampca.solvers.sampling_figures import errors_of, unweighted
from streampca.typing import FloatArray


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


def errors_of_groups(model: PCAModel, grid: TileGrid, states: Sequence[Any], scaling: Scaling) -> SamplingErrors:
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
        features=products.squares if scaling is not False else np.zeros((len(states), 0)),
    )
    population = model.population(score_unit(model) ** 2, scaling)
    few = len(states) < 2 or moments.weights[:, 0].max() >= moments.weights[:, 0].sum() - model.ddof  # refused below
    outside = None if few else _outside(products, unweighted(model, moments, scaling), population, axes)
    return errors_of(model, moments, "groups", scaling, outside)


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
    if population.scaling is not False:
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
