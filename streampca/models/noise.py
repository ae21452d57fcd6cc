"""Quantities that determine the eigenvalues of noise, for an accumulated matrix of a fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from streampca.linalg.component_rules import Sample, sample_of
from streampca.linalg.random_matrix import edge_of_variances
from streampca.linalg.selection import Rule, Selection, Threshold, as_selection
from streampca.parameters import Parameters

if TYPE_CHECKING:
    from streampca.accumulators.gram import GramOperator
    from streampca.accumulators.sketch import Sketched
    from streampca.accumulators.triangle import Factored
    from streampca.linalg.eigen import SymmetricOperator

    Moments: TypeAlias = SymmetricOperator | GramOperator | Factored | Sketched
    """An accumulated matrix with the moments of its features."""


def noise_edge(matrix: Moments, parameters: Parameters) -> float | None:
    """Return the largest eigenvalue of rows of independent features with the same variances; None if there are no such rows.

    Variances are those after scaling, with weights, and divisor n − ddof.
    """
    n_degrees = matrix.n_samples - parameters.n_means
    if not parameters.center or n_degrees < 1:
        return None
    # Root first: the square of a factor may overflow where the product does not.
    factors = parameters.scaling.weights(matrix.variance, matrix.mean)
    variance = np.square(np.sqrt(matrix.variance) * factors)
    weighted = variance if parameters.feature_weight is None else variance * parameters.feature_weight
    return edge_of_variances(weighted, n_degrees)


def known_weight(matrix: Moments, parameters: Parameters, weight: float, *, weighted: bool = False) -> float | None:
    """Return the sum of the weights of the rows, which is `weight`; None where all are 1.

    Weights that are not all 1 may sum to the number of rows. `weighted` says that there are some that `parameters` do not hold.
    """
    weighted = weighted or parameters.weighted or weight != matrix.n_samples
    return float(weight) if weighted else None


def selection_of_fit(
    matrix: Moments, parameters: Parameters, weight: float | None, limit: int, rounding: float = 0.0, n_missing: int = 0
) -> Selection:
    """Return which eigenpairs of an accumulated matrix are taken.

    `weight` is that of `known_weight`, `limit` the largest number of components, `rounding` that of
    eigenvalues relative to the first. What noise depends on takes many passes over the variances, and is computed for rules only.

    Fewer rows than features vary along fewer directions than there are rows. None takes those, so that a row of weight 2 counts
    as the row given twice, and its copy adds no component; approximate eigenpairs, with `rounding` 0, have no others.
    """
    if parameters.n_components is None and rounding and limit < len(matrix.variance):
        return Threshold(2 * rounding)  # less the rounding, which `select` allows for: the numerical rank
    selection = as_selection(parameters.n_components, limit)
    if not isinstance(selection, Rule):
        return selection
    return replace(selection, sample=_sample_of_fit(matrix, parameters, weight, n_missing), n_all=limit)


def _sample_of_fit(matrix: Moments, parameters: Parameters, weight: float | None, n_missing: int) -> Sample:
    """Return what noise depends on in the rows of a fit."""
    return sample_of(
        (matrix.n_samples, len(matrix.variance)),
        float(matrix.n_samples) if weight is None else weight,
        parameters.ddof,
        weighted=weight is not None,
        n_means=parameters.n_means,
        n_constant=int(np.count_nonzero(matrix.variance == 0)),
        n_missing=n_missing,
        feature_weight=parameters.feature_weight,
        edge=noise_edge(matrix, parameters),
    )
