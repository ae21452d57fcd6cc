"""Which accumulator takes which kind of rows: weighted, with missing values, sparse, of small integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from streampca.accumulators import (
    CompleteRows,
    Covariance,
    ExactIntegerCovariance,
    PairwiseCovariance,
    SparseCovariance,
)
from streampca.errors import ParameterError
from streampca.parameters import Parameters
from streampca.sources.base import Source
from streampca.typing import FloatArray

Kind = Covariance | SparseCovariance | CompleteRows | PairwiseCovariance | ExactIntegerCovariance


def accumulator_of(parameters: Parameters, source: Source | None = None) -> Kind:
    """Return what the rows of `source` are accumulated with; without a source, what states are kept and merged with."""
    plain: dict[str, Any] = {"center": parameters.center, "scale": parameters.scale, "ddof": parameters.ddof}
    covariance = Covariance(**plain, forgetting=parameters.forgetting)
    if parameters.missing in ("mean", "pairwise"):
        return PairwiseCovariance(**plain, impute=parameters.missing == "mean")
    if source is None:
        return covariance
    if source.sparse:
        return SparseCovariance(**plain)
    if parameters.missing == "drop_rows" and source.dtype.kind == "f":
        return CompleteRows(covariance)
    if ExactIntegerCovariance.takes(source.dtype) and parameters.sample_weight is None and parameters.forgetting == 1:
        return ExactIntegerCovariance.of(source.dtype, covariance)
    return covariance


def as_kept(accumulator: Kind, state: Any) -> tuple[Covariance | PairwiseCovariance, Any, int]:
    """Return accumulator and state as they are kept, in the memory of `state`, and how many rows were left out."""
    if isinstance(accumulator, ExactIntegerCovariance):
        return accumulator.covariance, accumulator.to_covariance(state, out=state.products), 0
    if isinstance(accumulator, CompleteRows):
        return accumulator.covariance, state.rows, state.n_left_out
    if isinstance(accumulator, SparseCovariance):
        return Covariance(accumulator.center, accumulator.scale, accumulator.ddof), state, 0
    return accumulator, state, 0


def require_rows(source: Source, parameters: Parameters) -> None:
    """Raise `ParameterError` if weights do not fit `source`, or what is asked for does not go together."""
    n, d = source.shape
    for name, weights, expected in (
        ("sample_weight", parameters.sample_weight, n),
        ("feature_weight", parameters.feature_weight, d),
    ):
        if weights is not None and len(weights) != expected:
            of = "samples" if name == "sample_weight" else "features"
            raise ParameterError(f"{name} has {len(weights)} values: expected one for each of the {expected} {of}")
    if source.sparse and parameters.missing != "error":
        raise ParameterError(
            f"missing={parameters.missing!r} is for dense rows: what a sparse matrix does not store is zero, not missing"
        )
    if parameters.forgetting != 1:
        for found, what in (
            (parameters.sample_weight is not None, "sample_weight"),
            (parameters.missing in ("mean", "pairwise"), f"missing={parameters.missing!r}"),
            (source.sparse, "sparse rows"),
        ):
            if found:
                raise ParameterError(f"forgetting={parameters.forgetting!r} does not go together with {what}")


def as_weights(name: str, values: ArrayLike | Sequence[float] | None) -> FloatArray | None:
    """Return the checked weights that the parameter `name` stands for, or None.

    Raises
    ------
    ParameterError
        If they are not one list of numbers that are finite and not negative, or if all of them are zero.
    """
    if values is None:
        return None
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
