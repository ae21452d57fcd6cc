"""Checks of weights, and of parameters that depend on the source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ParameterError
from streampca.linalg.component_rules import sample_of
from streampca.linalg.selection import Rule
from streampca.parameters import Parameters
from streampca.sources.base import Source
from streampca.typing import FloatArray

_LARGE = (2**40, 2**20)
"""Shape of a table that has rows and features enough for every rule."""


def require_rows(source: Source, parameters: Parameters) -> None:
    """Raise `ParameterError` if weights do not fit `source`."""
    n, d = source.shape
    for name, weights, expected in (
        ("sample_weight", parameters.sample_weight, n),
        ("feature_weight", parameters.feature_weight, d),
    ):
        if weights is not None and len(weights) != expected:
            of = "samples" if name == "sample_weight" else "features"
            raise ParameterError(f"{name} has {len(weights)} values: expected one for each of the {expected} {of}")


def require_rule(source: Source | None, parameters: Parameters, n_regressors: int | None = None) -> None:
    """Raise `NotAvailableError` if the number of components is to follow from a rule that does not apply to such rows.

    Without a `source`, that is what rows without weights would not change, however many.
    """
    selection, weights = parameters.selection(source), None if source is None else parameters.sample_weight
    if not isinstance(selection, Rule):
        return
    if selection.name == "cross_validation":
        return
    n, d = _LARGE if source is None else source.shape
    n = n if weights is None else int(np.count_nonzero(weights))
    weight = float(n if weights is None else weights.sum())
    if parameters.forgetting != 1:
        weight = 1 / (1 - parameters.forgetting)
    n_means = int(parameters.center) if n_regressors is None else n_regressors
    selection.require_applicable(
        sample_of(
            (n, d),
            weight,
            parameters.ddof,
            n_means=n_means,
            weighted=parameters.weighted,
            feature_weight=parameters.feature_weight,
            edge=1.0 if parameters.center else None,
        )
    )


def as_weights(name: str, values: ArrayLike | Sequence[float] | None) -> FloatArray | None:
    """Return the checked weights that the parameter `name` stands for, or None.

    Raises
    ------
    ParameterError
        If they are not one list of numbers that are finite and not negative, or if all of them are zero.
    """
    if values is None:
        return None
    if np.ma.is_masked(values):
        raise ParameterError(f"{name} has masked values: expected a number for each; 0 leaves it out")
    try:
        weights = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"{name} is not a list of numbers: {error}") from error
    if weights.ndim != 1:
        raise ParameterError(f"{name} has shape {weights.shape}: expected one dimension, a weight for each")
    bad = ~np.isfinite(weights) | (weights < 0)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ParameterError(
            f"{name} holds {weights[first]} at {first} ({int(bad.sum())} such value(s)): expected finite numbers of at least 0"
        )
    if not weights.any():
        raise ParameterError(f"{name} is zero everywhere: expected at least one weight above zero")
    return weights
