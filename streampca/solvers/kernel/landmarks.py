"""Which rows every other row is compared with: drawn in a reading of the source, read by their numbers, or given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.kernel_features import in_panel
from streampca.accumulators.landmarks import (
    ColumnNormLandmarks,
    LandmarksState,
    RPCholeskyLandmarks,
    UniformLandmarks,
    WeightedLandmarks,
)
from streampca.block import Block
from streampca.errors import DataError, ParameterError
from streampca.execution.distributed.retries import read_with_retries
from streampca.execution.readings import Reading, ReadingAlone, Readings
from streampca.planning.plan import Plan
from streampca.solvers.kernel.plan import HELD_OUT_ROWS, LandmarkCost, settings_of
from streampca.solvers.kernel.standardising import FeatureMoments, needs_moments, with_moments
from streampca.sources.base import ReadCount, Source
from streampca.sources.schedule import Schedule
from streampca.typing import Array, FloatArray, IntArray

if TYPE_CHECKING:
    from streampca.kernels import Kernel
    from streampca.solvers.kernel.parameters import KernelParameters

_RESERVOIR, _ALL_UP_TO = 200, 4096
"""Rows against which the norms of columns are estimated; up to so many rows all of them, which makes the norms exact."""


@dataclass(frozen=True)
class ChosenLandmarks:
    """The rows that stand for all rows."""

    rows: Array
    """The rows, ``(m, n_features)``."""
    index: IntArray | None
    """Their row numbers, ``(m,)``; None where they were given as rows."""
    multiplicity: FloatArray
    """How many rows each stands for, ``(m,)``: itself, and its share of the rows that were not drawn; they sum to n."""
    sampling: str
    """How they were chosen."""
    kernel: Kernel
    """The kernel, with the means and deviations of features if it is one of z-scores."""


def sampling_of(parameters: KernelParameters) -> str:
    """Return how landmarks are chosen.

    ``"auto"`` is uniform where κ(x, x) is constant, so that no row stands out by it, and for kernels that are known not
    to be positive semi-definite, for which there is no Cholesky factor; rpcholesky else.
    """
    if parameters.given is not None:
        return "given rows" if parameters.given.ndim == 1 else "given landmarks"
    if parameters.sampling != "auto":
        return parameters.sampling
    kernel = parameters.kernel
    return "uniform" if kernel.constant_diagonal or kernel.definite is False else "rpcholesky"


def landmark_cost(source: Source, parameters: KernelParameters) -> LandmarkCost:
    """Return what choosing the landmarks takes; raise `ParameterError` for given ones that do not fit the source."""
    sampling, d, itemsize = sampling_of(parameters), source.shape[1], max(4, source.dtype.itemsize)
    steps: list[AnyAccumulator] = [FeatureMoments()] if needs_moments(parameters.kernel) else []
    passes = len(steps)
    if parameters.given is not None:
        _require_given(source, parameters.given)
    else:
        steps.append(_drawing(sampling, source, parameters))
        # Moments are accumulated with landmarks that do not depend on the kernel, and before others.
        passes = 1 if sampling == "uniform" else passes + (2 if sampling == "column_norm" else 1)

    def taken(rows: int) -> tuple[int, int]:
        return sum(step.state_bytes(d) for step in steps), sum(step.scratch_bytes(d, rows, itemsize) for step in steps)

    return LandmarkCost(sampling, passes, taken)


def choose_landmarks(source: Source, parameters: KernelParameters, plan: Plan) -> Readings[ChosenLandmarks]:
    """Ask for what the landmarks are chosen from, and return them.

    Raises
    ------
    DataError
        If rows are missing, damaged or not finite.
    """
    sampling, reservoir = sampling_of(parameters), None
    standardise = needs_moments(parameters.kernel)
    together = standardise and sampling == "uniform"
    if standardise and not together:
        (moments,) = (yield Reading(source, (FeatureMoments(),), plan, phase="landmarks")).take()
        parameters = replace(parameters, kernel=with_moments(parameters.kernel, moments))
    if parameters.given is not None:
        given, ahead_bytes = parameters.given, plan.read_ahead_bytes
        kernel = parameters.kernel
        named = ReadingAlone(lambda client, progress: _given(source, given, kernel, sampling, ahead_bytes))
        chosen: ChosenLandmarks = (yield named).take()[0]
        return chosen
    if sampling == "column_norm":
        first = UniformLandmarks(_reservoir(source.shape[0]), parameters.seed, str(source.dtype), "reservoir")
        (state,) = (yield Reading(source, (first,), plan, phase="landmarks")).take()
        reservoir = first.finalize(state).rows
    draw = _drawing(sampling, source, parameters, reservoir)
    before = (FeatureMoments(),) if together else ()
    *moments_of, state = (yield Reading(source, (*before, draw), plan, phase="landmarks")).take()
    if moments_of:
        parameters = replace(parameters, kernel=with_moments(parameters.kernel, moments_of[0]))
    drawn = draw.finalize(state)
    if not len(drawn.rows):
        raise DataError(
            "no landmark could be drawn, because κ(x, x) is 0, or lost to underflow, for every row: rescale the features, or choose "
            "another kernel"
        )
    stands_for = _multiplicity(sampling, state, len(drawn.rows), settings_of(plan).n_landmarks, source.shape[0])
    return ChosenLandmarks(drawn.rows, drawn.index, stands_for, sampling, parameters.kernel)


def held_out_draws(parameters: KernelParameters, source: Source) -> tuple[UniformLandmarks | WeightedLandmarks, ...]:
    """Return the draws of the rows on which kernel matrix and approximation are compared; independent of the landmarks.

    Uniform, and where κ(x, x) varies by κ(x, x)² as well: a few rows that carry most of the kernel matrix are missed by
    the first, and many that carry little by the second.
    """
    n_rows, dtype = min(HELD_OUT_ROWS, source.shape[0]), str(source.dtype)
    uniform = UniformLandmarks(n_rows, parameters.seed, dtype, "held-out rows")
    if parameters.kernel.constant_diagonal:
        return (uniform,)
    kernel = parameters.kernel.bound(source.shape[1])
    return uniform, WeightedLandmarks(n_rows, kernel, parameters.seed, dtype, "held-out rows by weight")


def _drawing(
    sampling: str, source: Source, parameters: KernelParameters, reservoir: Array | None = None
) -> AnyAccumulator:
    """Return the accumulator that draws the landmarks; without a reservoir one that takes as much memory."""
    n, d = source.shape
    m, seed, dtype = min(parameters.n_landmarks, n), parameters.seed, str(source.dtype)
    kernel = parameters.kernel.bound(d)
    if sampling == "uniform":
        return UniformLandmarks(m, seed, dtype)
    if sampling == "diagonal":
        return WeightedLandmarks(m, kernel, seed, dtype)
    if sampling == "column_norm":
        rows = np.zeros((_reservoir(n), d)) if reservoir is None else reservoir
        return ColumnNormLandmarks(m, kernel, rows, n, seed, dtype)
    return RPCholeskyLandmarks(m, kernel, seed, dtype)


def _reservoir(n: int) -> int:
    return n if n <= _ALL_UP_TO else _RESERVOIR


def chances(state: LandmarksState) -> FloatArray:
    """Return the chance of each drawn row of being drawn, given the largest of the kept keys, ``(n_kept,)``.

    The draw keeps the smallest keys, which are exponential with the weight of the row for their rate; given the largest
    of them, t, the chance of another is 1 − exp(−w t) (Cohen & Kaplan 2007).
    """
    return np.asarray(-np.expm1(-np.exp(np.log(state.weights) + state.keys.max())))


def _multiplicity(sampling: str, state: LandmarksState, m: int, wanted: int, n: int) -> FloatArray:
    """Return how many rows each landmark stands for, ``(m,)``: itself, and its share of the n − m rows that were not drawn.

    The inverse chances 1/π (Horvitz & Thompson 1952) sum to n on average only. Normalised (Hájek 1971) they sum to n, and
    are n/m where all chances are equal. What is normalised is 1/π − 1, the part of rows that were not drawn, so that
    heavy rows, which are drawn for certain, keep the weight 1. Where fewer rows than asked for could be drawn, the others
    have κ(x, x) = 0 and do not count.
    """
    if sampling not in ("diagonal", "column_norm"):
        return np.full(m, n / m)
    others: FloatArray = 1.0 / chances(state)[np.argsort(state.index)] - 1.0
    if m < wanted or not others.any():
        return np.ones(m)
    stands: FloatArray = 1.0 + others * ((n - m) / others.sum())
    return stands


def _require_given(source: Source, given: Array) -> None:
    n, d = source.shape
    if given.ndim == 1 and int(given.max()) >= n:
        raise ParameterError(f"sampling names row {int(given.max())}: expected rows below {n}")
    if given.ndim == 2 and given.shape[1] != d:
        raise ParameterError(f"sampling holds landmarks of {given.shape[1]} features: expected {d}, as the rows have")


def _given(
    source: Source, given: Array, kernel: Kernel, sampling: str, ahead_bytes: int
) -> tuple[ChosenLandmarks, ReadCount]:
    """Return landmarks that were named; of the source, only the chunks that hold them are read."""
    m, n = len(given), source.shape[0]
    if given.ndim == 2:
        return ChosenLandmarks(given, None, np.full(m, n / m), sampling, kernel), ReadCount()
    index = np.sort(given.astype(np.int64))
    rows, count, step = np.empty((m, source.shape[1]), source.dtype), ReadCount(), max(1, source.chunk_rows)
    bands = [np.flatnonzero(index // step == band) for band in np.unique(index // step)]
    spans = [(int(index[here[0]]), int(index[here[-1]]) + 1) for here in bands]
    with source.reading(), source.ahead(Schedule.in_order(spans, ahead_bytes)):
        for here, (first, last) in zip(bands, spans, strict=True):
            values, cost = read_with_retries(source, first, last)
            rows[here] = in_panel(Block(values[index[here] - first], first), source.dtype)
            count += cost
    return ChosenLandmarks(rows, index, np.full(m, n / m), sampling, kernel), count
