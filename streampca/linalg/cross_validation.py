"""Leaving out groups of rows in turn: cross-validation of the number of components, and the jackknife.

In cross-validation, values of rows that were left out are predicted from the others of their row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Final

import numpy as np

from streampca.errors import DataError
from streampca.linalg.tiles import TileGrid
from streampca.typing import FloatArray, IntArray

N_GROUPS: Final = 7
"""Groups of consecutive rows that are left out in turn, as in Wold's (1978) implementation."""
MOST_COMPONENTS: Final = 200
"""Largest number of components that is tried."""
NOT_ASKED: Final = (
    f"it needs the covariances of {N_GROUPS} groups of rows, which fits with n_components='cross_validation' compute"
)
"""Why it does not apply to other fits."""
_UNKNOWN = 1e-10
"""Smallest 1 − h with which a value is predicted: below, the components are that feature alone."""


def prediction_errors(
    grid: TileGrid, groups: Sequence[tuple[FloatArray, FloatArray, float]], factors: FloatArray, *, center: bool
) -> FloatArray:
    """Return the mean squared error of predicting rows that were left out, summed over features, for 0, 1, … components.

    Each group of rows is left out in turn. With the leading k eigenpairs (λ, v) of the covariance of the other rows, and the mean σ² of the
    other eigenvalues, each value of a row z that was left out is predicted by its conditional mean given the other values of
    the row under probabilistic PCA (Tipping & Bishop 1999). Its error is (C⁻¹ z)ⱼ / (C⁻¹)ⱼⱼ for the covariance C of that model, so that
    the sum of the squared errors over the rows follows from their scatter S alone: Σⱼ [A S Aᵀ]ⱼⱼ / (1 − hⱼ)² with A = 1 − Σ (1 − σ²/λ) v vᵀ
    and hⱼ = Σ (1 − σ²/λ) vⱼ². Cost for each group: the leading eigenpairs of a d × d matrix, 2 d² k + 3 d k² flops, four such matrices.

    Parameters
    ----------
    grid : TileGrid
        Layout of the scatter matrices.
    groups : sequence of tuple
        Of each group the scatter matrix of its rows about their mean, as flat tiles, the mean, ``(n_features,)``, and the sum of the
        weights; those of weight 0 do not count.
    factors : array, shape (n_features,)
        What centred features are multiplied by.
    center : bool
        Whether rows are centred by the mean of the other groups, or not at all.

    Returns
    -------
    array, shape (k + 1,)
        At most `MOST_COMPONENTS` + 1 errors, fewer if the rows have a lower rank.

    Raises
    ------
    DataError
        If fewer than two groups have a weight.
    """
    groups = [group for group in groups if group[2] > 0]
    if len(groups) < 2:
        raise DataError(
            f"n_components='cross_validation' needs rows in at least two groups of consecutive rows: found {len(groups)}"
        )
    total = reduce(np.add, [tiles for tiles, _, _ in groups])
    weight, middle = sum(own for _, _, own in groups), groups[0][1]
    mean = sum(own * (centre - middle) for _, centre, own in groups) / weight + middle
    between = sum(own * np.outer(centre - mean, centre - mean) for _, centre, own in groups)
    whole = grid.dense(total) + between, mean, weight
    curves = [
        _errors_of((grid.dense(tiles), centre, own), whole, factors, center=center) for tiles, centre, own in groups
    ]
    errors: FloatArray = np.sum([curve[: min(map(len, curves))] for curve in curves], axis=0) / weight
    return errors


def best_count(errors: FloatArray) -> int:
    """Return the smallest number of components whose prediction error is the least, up to rounding.

    The model has the same noise in all features. Where noise differs, components beyond the factors serve to tell it apart, and the
    error falls on up to regression on all other features, d − 1 components.
    """
    return int(np.argmax(errors <= errors.min() + 1e-12 * errors[0]))


def _errors_of(
    group: tuple[FloatArray, FloatArray, float],
    whole: tuple[FloatArray, FloatArray, float],
    factors: FloatArray,
    *,
    center: bool,
) -> FloatArray:
    """Return the sums of the squared prediction errors of the rows of a group for 0, 1, … components.

    `group` and `whole` hold the scatter of its rows, and of all, about their mean, the mean, and the sum of the weights.
    """
    (own, centre, own_weight), (scatter, mean, weight) = group, whole
    rest, shift = weight - own_weight, centre - mean
    others = scatter - own - np.outer(shift, shift) * (own_weight * weight / rest)
    others_mean = mean - shift * (own_weight / rest)
    apart = centre - others_mean if center else centre
    own = (own + own_weight * np.outer(apart, apart)) * np.outer(factors, factors)
    if not center:
        others += rest * np.outer(others_mean, others_mean)
    others *= np.outer(factors, factors)
    n_varying, trace = int(np.count_nonzero(np.diag(others) > 0)), float(np.trace(others))
    unit = trace if trace > 0 else 1.0  # squares of variances leave the range of float64 long before these do
    values, vectors = _leading(others / unit, n_varying)
    left = (trace / unit - np.concatenate([[0.0], np.cumsum(values)])).clip(0.0)
    return unit * _curve(own / unit, values, vectors, left, n_varying)


def _leading(matrix: FloatArray, n_varying: int) -> tuple[FloatArray, FloatArray]:
    """Return the leading eigenpairs that are more than rounding, largest first: fewer than features that vary."""
    from scipy.linalg import eigh

    d = len(matrix)
    k = min(n_varying - 1, MOST_COMPONENTS)
    if k < 1:
        return np.zeros(0), np.zeros((d, 0))
    values, vectors = eigh(matrix, subset_by_index=(d - k, d - 1), check_finite=False)
    known = values > d * np.finfo(np.float64).eps * values[-1]
    return values[known][::-1], vectors[:, known][:, ::-1]


def _curve(own: FloatArray, values: FloatArray, vectors: FloatArray, left: FloatArray, n_varying: int) -> FloatArray:
    """Return Σⱼ [A S Aᵀ]ⱼⱼ / (1 − hⱼ)² for 0, 1, … of the eigenpairs, S = `own`; `left` are the sums of the other eigenvalues.

    With u = v/λ, A = 1 − Σ v vᵀ + σ² Σ u vᵀ, whose terms are sums over the components, so that each takes d k flops more.
    """
    spread = np.diag(own)
    scaled, products = vectors / values, own @ vectors
    within = vectors.T @ products
    linear, quadratic, leverage = np.zeros((2, len(own))), np.zeros((3, len(own))), np.zeros((2, len(own)))
    errors = [float(spread.sum())]
    for k in range(len(values)):
        v, u, row = vectors[:, k], scaled[:, k], within[k, :k]
        before_v, before_u = vectors[:, :k] @ row, scaled[:, :k] @ row
        linear += np.stack([v, u]) * products[:, k]
        quadratic[0] += v * (2 * before_v + v * within[k, k])
        quadratic[1] += v * before_u + u * before_v + u * v * within[k, k]
        quadratic[2] += u * (2 * before_u + u * within[k, k])
        leverage += np.stack([v, u]) * v
        noise = left[k + 1] / (n_varying - k - 1)
        squares = spread - 2 * (linear[0] - noise * linear[1])
        squares += quadratic[0] - 2 * noise * quadratic[1] + noise**2 * quadratic[2]
        known = 1 - leverage[0] + noise * leverage[1]
        predicted = np.divide(squares, known**2, out=spread.copy(), where=known > _UNKNOWN)
        errors.append(float(np.maximum(predicted, 0.0).sum()))
    return np.array(errors)


def jackknife_variance(full: FloatArray, without: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the jackknife estimate of the variance of each of several statistics.

    With h_g = W / W_g, the pseudo-values are h_g θ − (h_g − 1) θ₍g₎, and the variance is the mean over the groups of
    their squared distances from the jackknife estimate, each divided by h_g − 1 (Busing, Meijer &
    van der Leeden 1999; of equal groups Efron & Tibshirani 1993, eq. 11.5).

    Parameters
    ----------
    full : array, shape (...)
        The statistics θ of all rows.
    without : array, shape (n_groups, ...)
        The statistics θ₍g₎ of all rows but those of a group.
    weights : array, shape (n_groups,)
        Sums W_g of the weights of the rows of the groups.
    """
    # A difference of sums would lose what is small.
    others = np.array([np.delete(weights, g).sum() for g in range(len(weights))])
    shape = (-1,) + (1,) * full.ndim
    gaps, roots = full - without, np.sqrt(others / weights).reshape(shape)  # √(h − 1)
    # Pseudo-values are θ + (h − 1) gap, and their mean of weights 1 / h is θ + Σ (1 − 1 / h) gap.
    shift = ((others / weights.sum()).reshape(shape) * gaps).sum(axis=0)
    with np.errstate(over="ignore"):  # a group without which nearly no weight is left says nothing: infinity
        variance: FloatArray = np.square(roots * gaps - shift / roots).mean(axis=0)
    return variance


def group_edges(n_samples: int, n_groups: int) -> IntArray:
    """Return the edges of groups of consecutive rows whose sizes differ by one at most, ``(n_groups + 1,)``."""
    return np.arange(n_groups + 1, dtype=np.int64) * n_samples // n_groups


def pieces(edges: IntArray, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each group that has some of the rows from `start` to `stop`, and the first and the end of them."""
    group = int(np.searchsorted(edges, start, side="right")) - 1
    while start < stop:
        end = min(stop, int(edges[group + 1]))
        yield group, start, end
        start, group = end, group + 1
