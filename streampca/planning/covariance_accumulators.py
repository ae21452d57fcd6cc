"""The accumulator of a covariance for each kind of rows: weighted, with missing values, sparse, of small integers."""

from __future__ import annotations

from typing import Any

from streampca.accumulators import (
    CompleteRows,
    CompleteRowsState,
    Covariance,
    CovarianceState,
    ExactIntegerCovariance,
    IntegerState,
    PairwiseCovariance,
    PairwiseState,
    SparseCovariance,
)
from streampca.parameters import Parameters
from streampca.sources.base import Source

CovarianceAccumulator = Covariance | SparseCovariance | CompleteRows | PairwiseCovariance | ExactIntegerCovariance
CovarianceStates = CovarianceState | CompleteRowsState | PairwiseState | IntegerState


def accumulator_of(parameters: Parameters, source: Source | None = None) -> CovarianceAccumulator:
    """Return the accumulator of the rows of `source`; without a source, that of the states that models store."""
    plain = parameters.center, parameters.scaling, parameters.ddof
    covariance = Covariance(*plain, parameters.forgetting)
    if parameters.missing in ("mean", "pairwise"):
        return PairwiseCovariance(*plain, impute=parameters.missing == "mean")
    if source is None or parameters.remove is not None:  # residuals are neither sparse nor integers
        return covariance
    if source.sparse:
        return SparseCovariance(*plain)
    if parameters.missing == "drop_rows" and source.dtype.kind == "f":
        return CompleteRows(covariance)
    if ExactIntegerCovariance.takes(source.dtype) and parameters.sample_weight is None and parameters.forgetting == 1:
        return ExactIntegerCovariance.of(source.dtype, covariance)
    return covariance


def general_form(
    accumulator: CovarianceAccumulator, state: CovarianceStates
) -> tuple[Covariance | PairwiseCovariance, CovarianceState | PairwiseState, int]:
    """Return the accumulator and state that models store, in the memory of `state`, and the number of rows left out."""
    if isinstance(accumulator, ExactIntegerCovariance) and isinstance(state, IntegerState):
        return accumulator.covariance, accumulator.to_covariance(state, out=state.products), 0
    if isinstance(accumulator, CompleteRows) and isinstance(state, CompleteRowsState):
        inner: Any = accumulator.accumulator
        return (*general_form(inner, state.rows)[:2], state.n_left_out)
    if isinstance(accumulator, SparseCovariance) and isinstance(state, CovarianceState):
        return Covariance(accumulator.center, accumulator.scale, accumulator.ddof), state, 0
    if isinstance(accumulator, Covariance) and isinstance(state, CovarianceState):
        return accumulator, state, 0
    if isinstance(accumulator, PairwiseCovariance) and isinstance(state, PairwiseState):
        return accumulator, state, 0
    raise TypeError(f"{type(accumulator).__name__} does not make states of the type {type(state).__name__}")
