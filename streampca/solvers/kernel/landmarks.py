"""Base class of the methods that compare all rows with landmarks: choice of the landmarks, and cost of the comparison."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.covariance import Covariance
from streampca.accumulators.kernel_features import feature_rows, in_panel
from streampca.accumulators.landmarks import (
    ColumnNormLandmarks,
    LandmarksState,
    RPCholeskyLandmarks,
    UniformLandmarks,
    WeightedLandmarks,
)
from streampca.accumulators.rows import Moments, MomentsState
from streampca.block import Block, as_block
from streampca.errors import DataError, ParameterError
from streampca.execution.leaf import read_with_retries
from streampca.execution.readings import Reading, ReadingAlone, Readings
from streampca.kernels import Kernel, Standardised
from streampca.linalg.scaling import reciprocals
from streampca.planning.memory import MemoryNeed, buffer_bytes, reading_needs, report_need, sampled_rows_need
from streampca.planning.plan import KernelDetail, Plan
from streampca.planning.shape import BLOCK_BYTES, WorkShape, block_rows_to_try, count_leaves, divide
from streampca.planning.work import Figures, Resources
from streampca.solvers.kernel.base import AFTER, KernelMethod, settings_of
from streampca.sources.base import ReadCount, Source
from streampca.sources.grid import Schedule
from streampca.typing import Array, FloatArray, IntArray

_RESERVOIR, _ALL_UP_TO = 200, 4096
"""Rows against which the norms of columns are estimated; up to so many rows all of them, which makes the norms exact."""
_SMALL_STATE_BYTES = 4 * 2**20
_BLOCK_ROWS = 2**12, 2**16  # rows cost m kernel values each, so that few of them are enough work for a leaf
_PANEL_BYTES = 4 * 2**20
HELD_OUT_ROWS = 300
"""Rows on which the kernel matrix and its approximation are compared, for the certificate."""


@dataclass(frozen=True)
class FeatureMoments(Moments):
    """Moments of dense or sparse rows, which are taken a few at a time as dense ones."""

    def update(self, state: MomentsState, block: Block | Array) -> MomentsState:
        """Return `state` with the rows of `block` added; `NotFiniteError` if they hold NaN or infinity."""
        for panel in as_block(block).panels(_panel_rows(state.n_features)):
            state = super().update(state, panel.dense())
        return state

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes for blocks of `n_rows` rows: two copies of a panel."""
        return 16 * n_features * min(n_rows, _panel_rows(n_features))


def _panel_rows(n_features: int) -> int:
    return max(1, _PANEL_BYTES // (8 * max(1, n_features)))


def needs_moments(kernel: Kernel) -> bool:
    """Return whether `kernel` is one of z-scores whose means and deviations are not known yet."""
    return isinstance(kernel, Standardised) and kernel.mean is None


def with_moments(kernel: Kernel, moments: MomentsState) -> Kernel:
    """Return `kernel`, which is one of z-scores, with means and deviations (divisor n − 1); constant features have factor 0."""
    if not isinstance(kernel, Standardised):
        return kernel
    deviation = np.sqrt(np.maximum(moments.scatter, 0.0) / max(1, moments.n_samples - 1))
    return kernel.with_moments(moments.mean, reciprocals(deviation))


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


@dataclass(frozen=True)
class LandmarkMethod(KernelMethod):
    """A fit that compares all rows with landmarks."""

    accumulates: ClassVar[bool] = True
    """Whether the covariance of kernel values is accumulated."""

    @override
    @cached_property
    def m(self) -> int:
        return self.parameters.n_wanted(self.source.shape[0])

    @override
    @property
    def k(self) -> int:
        return self.n_components or self.m

    @property
    @abstractmethod
    def reason(self) -> str:
        """Return what the method does."""

    @property
    def sampling(self) -> str:
        """Return how landmarks are chosen.

        ``"auto"`` is uniform where κ(x, x) is constant, so that no row stands out by it, and for kernels that are known not
        to be positive semi-definite, for which there is no Cholesky factor; rpcholesky else.
        """
        given, sampling, kernel = self.parameters.given, self.parameters.sampling, self.parameters.kernel
        if given is not None:
            return "given rows" if given.ndim == 1 else "given landmarks"
        if sampling != "auto":
            return sampling
        return "uniform" if kernel.constant_diagonal or kernel.definite is False else "rpcholesky"

    @cached_property
    def choosing(self) -> list[AnyAccumulator]:
        """Return accumulators of the sizes of those that the landmarks are chosen with."""
        moments: list[AnyAccumulator] = [FeatureMoments()] if needs_moments(self.parameters.kernel) else []
        return moments if self.parameters.given is not None else [*moments, self._drawing(self.parameters.kernel)]

    @override
    def plan(self, resources: Resources) -> Plan:
        """Return the plan of the fit; raise `PlanError` if it does not fit, `ParameterError` for given landmarks of other rows."""
        (n, d), m, given = self.source.shape, self.m, self.parameters.given
        if given is not None and given.ndim == 1 and int(given.max()) >= n:
            raise ParameterError(f"sampling names row {int(given.max())}: expected rows below {n}")
        if given is not None and given.ndim == 2 and given.shape[1] != d:
            raise ParameterError(
                f"sampling holds landmarks of {given.shape[1]} features: expected {d}, as the rows have"
            )
        self.parameters.require_at_most(m, "landmarks")
        work = replace(self, n_components=self.parameters.count(m), resources=resources)
        most_rows = min(max(n // 16, _BLOCK_ROWS[0]), _BLOCK_ROWS[1])
        most = most_rows * d * max(self.source.dtype.itemsize, self.dtype.itemsize)
        sizes = block_rows_to_try(self.source, self.dtype, min(BLOCK_BYTES, most))
        plan = work.best(sizes, max(m, 1), Covariance().shares(m))
        if plan.budget.fits:
            return plan
        fewer = "use fewer landmarks (n_landmarks), or "
        raise plan.budget.refusal(
            {
                "choosing": "use fewer landmarks (n_landmarks), sampling='uniform', or ",
                "states": fewer,
                "blocks": "use chunks of fewer rows, or ",
                "scratch": fewer,
                "solve": fewer,
                "landmarks": fewer,
            },
            subject=f"{m:,} landmarks and {work.k:,} components: ",
        )

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, m, state = self.source.shape[0], self.m, Covariance().state_bytes(self.m)
        row_bytes = self.source.row_bytes + m * self.dtype.itemsize
        return divide(
            n,
            rows,
            count_leaves(n * max(1, m // 128), -(-n // rows), row_bytes, state),
            (leaves, threads_per_leaf, self.resources.threads),
            state_bytes=state,
            small_state_bytes=_SMALL_STATE_BYTES,
            tile=Covariance().grid(m).longest_side,
        )

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what a fit takes.

        Landmarks: m d (8 + w), what the kernel prepares, and m² (16 + w); states: (1 + W) S for the covariance of kernel values, if the
        method accumulates one; choosing: states and scratch of the landmarks that are being chosen; solve: 8 m (6 m + 4 k), and
        8 m (2 m + d) for the inverse map; model: 8 m (2 k + d).
        """
        source, m, k, (n, d) = self.source, self.m, self.k, self.source.shape
        leaves, rows, itemsize = shape.leaves_in_flight, shape.rows_per_block, self.dtype.itemsize
        held_out = 2 * min(n, HELD_OUT_ROWS) * (8 * d + 24)
        landmarks = m * d * (8 + itemsize) + self.kernel.prepared_bytes(m, d) + m * m * (16 + itemsize) + held_out
        sizes = (Covariance().state_bytes(m) + held_out, self.scratch_bytes(shape)) if self.accumulates else (0, 0)
        states, blocks, scratch = reading_needs(source, shape, sizes, kept=("reading", "solving"))
        state = sum(each.state_bytes(d) for each in self.choosing)
        chosen = sum(each.scratch_bytes(d, rows, max(4, source.dtype.itemsize)) for each in self.choosing)
        inverse = 8 * m * (2 * m + d) if self.parameters.inverse else 0
        scores = leaves * (buffer_bytes(source, rows) + self.scores_bytes(rows, m)) if self.resources.scores else 0
        return [
            MemoryNeed("landmarks", landmarks),
            MemoryNeed("choosing", shape.n_states * state + leaves * chosen, ("landmarks",)),
            states,
            replace(blocks, phases=("landmarks", "reading")),
            scratch,
            sampled_rows_need(source, self.resources.report_rows),
            MemoryNeed("solve", 8 * m * (6 * m + 4 * k) + inverse, ("solving",)),
            MemoryNeed("model", 8 * m * (2 * k + d), AFTER),
            MemoryNeed("scores", scores, ("scores",)),
            report_need(report=self.resources.report),
        ]

    def scratch_bytes(self, shape: WorkShape) -> int:
        """Return the scratch of one leaf: p m + 1024 (m + d) values, 8 T t (t + 288), that of the kernel, and of rows held out."""
        d, m, rows, dtype = self.source.shape[1], self.m, shape.rows_per_block, self.dtype
        scratch = (min(rows, feature_rows(m, dtype)) * m + 1024 * (m + d)) * dtype.itemsize
        scratch += Covariance(n_threads=shape.threads_per_leaf).product_scratch_bytes(m)
        scratch += self.kernel.scratch_bytes(m, d)
        return scratch + HELD_OUT_ROWS * (2 * d * 8 + 160) + 80 * min(rows, 2**15)

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        (n, d), m, sampling = self.source.shape, self.m, self.sampling
        values = float(n) * m * (self.kernel.needs(d).flops + m)
        # Moments are accumulated with landmarks that do not depend on the kernel, and before others.
        passes = 1 if sampling == "uniform" else len(self.choosing) + (sampling == "column_norm")
        return Figures(
            reason=self.reason,
            flops=self.accumulates * values + 10.0 * float(m) ** 3,
            passes=passes + self.accumulates,
            detail=KernelDetail(m, sampling),
        )

    def choose(self, plan: Plan) -> Readings[ChosenLandmarks]:
        """Ask for what the landmarks are chosen from, and return them.

        Raises
        ------
        DataError
            If rows are missing, damaged or not finite.
        """
        source, given, sampling, reservoir = self.source, self.parameters.given, self.sampling, None
        kernel = self.parameters.kernel
        standardise = needs_moments(kernel)
        together = standardise and sampling == "uniform"
        if standardise and not together:
            (moments,) = (yield Reading(source, (FeatureMoments(),), plan, phase="landmarks")).take()
            kernel = with_moments(kernel, moments)
        if given is not None:
            read = partial(_given, source, given, kernel, sampling, plan.read_ahead_bytes)
            chosen: ChosenLandmarks = (yield ReadingAlone(lambda client, progress: read())).take()[0]
            return chosen
        if sampling == "column_norm":
            first = UniformLandmarks(_reservoir(source.shape[0]), self.parameters.seed, str(source.dtype), "reservoir")
            (state,) = (yield Reading(source, (first,), plan, phase="landmarks")).take()
            reservoir = first.finalize(state).rows
        draw = self._drawing(kernel, reservoir)
        before = (FeatureMoments(),) if together else ()
        *moments_of, state = (yield Reading(source, (*before, draw), plan, phase="landmarks")).take()
        if moments_of:
            kernel = with_moments(kernel, moments_of[0])
        drawn = draw.finalize(state)
        if not len(drawn.rows):
            raise DataError(
                "no landmark could be drawn, because κ(x, x) is 0 or underflows for every row: rescale the features, or choose "
                "another kernel"
            )
        stands_for = _multiplicity(sampling, state, len(drawn.rows), settings_of(plan).n_landmarks, source.shape[0])
        return ChosenLandmarks(drawn.rows, drawn.index, stands_for, sampling, kernel)

    def _drawing(self, unbound: Kernel, reservoir: Array | None = None) -> AnyAccumulator:
        """Return the accumulator that draws the landmarks; without a reservoir one that takes as much memory."""
        (n, d), sampling, seed, dtype = self.source.shape, self.sampling, self.parameters.seed, str(self.source.dtype)
        m, kernel = min(self.parameters.n_landmarks, n), unbound.bound(d)
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
