"""Scores of wide data in one reading by features: every leaf adds what its features give to the scores of all samples."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import refuse_not_finite, work_dtype
from streampca.accumulators.missing import refuse_infinite
from streampca.blas_threads import one_blas_thread
from streampca.engine.clients import active_client
from streampca.engine.execute import Meter, OnBlock, ProgressCallback, execute
from streampca.engine.fold import LeafResult, StoppedError, read_ahead
from streampca.engine.interrupts import heed, uninterrupted
from streampca.engine.leaves import Leaf, count_leaves
from streampca.engine.ledger import model_digest, next_reading, note_stop
from streampca.engine.memory import ALLOWANCE_BYTES
from streampca.engine.plan import Plan, block_rows_to_try, bytes_to_read
from streampca.errors import NotAvailableError
from streampca.models.by_slabs import add_scores
from streampca.models.conditional import add_lost, fill_in_from, n_packed, scratch_bytes
from streampca.models.stored_components import SLAB_BYTES, StoredComponents, slab_features
from streampca.sources.base import ReadCount, Source

if TYPE_CHECKING:
    from streampca.models.pca import PCAModel

FloatArray = NDArray[np.float64]


def plan_by_features(source: Source, model: PCAModel, allowed: int, process: int, threads: int) -> Plan | None:
    """Return how scores are made by features, the least there is if nothing fits; None if `source` cannot be read so."""
    try:
        features = source.by_features()
    except NotAvailableError:
        return None
    dtype, plans = work_dtype(source.dtype), []
    for columns in block_rows_to_try(features, dtype):
        n_leaves = count_leaves(source.shape[1], -(-source.shape[1] // columns), features.row_bytes)
        for leaves in sorted({min(threads, n_leaves), 1}, reverse=True):
            plan = _planned(source, features, model, (columns, n_leaves, leaves), allowed, process)
            if plan.projected_bytes <= allowed:
                return plan
            plans.append(plan)
    return min(plans, key=lambda plan: plan.projected_bytes)


def _planned(
    source: Source, features: Source, model: PCAModel, work: tuple[int, int, int], allowed: int, process: int
) -> Plan:
    (n, d), k, (columns, n_leaves, leaves) = source.shape, len(model.components), work
    score, width, per_sample = model.score_dtype(source.dtype).itemsize, _width(model, columns), _per_sample(model)
    buffers = (2 * columns * features.row_bytes if features.buffered else 0) + features.overhead_bytes(columns)
    memory = {
        "process": process + ALLOWANCE_BYTES,
        "blocks": leaves * buffers,
        "axes": leaves * k * width * (24 + score),
        "scores": (5 * leaves + 2) * 8 * n * per_sample
        + leaves * 2 * max(SLAB_BYTES, width * score)
        + _solve_bytes(model),
    }
    return Plan(
        solver="scores",
        reason="samples are projected on components that are there already, a band of features at a time",
        n_samples=n,
        n_features=d,
        dtype=str(source.dtype),
        work_dtype=str(work_dtype(source.dtype)),
        n_components=k,
        passes=1,
        rows_per_block=columns,
        n_blocks=-(-d // columns),
        n_leaves=n_leaves,
        leaves_in_flight=leaves,
        window=2 * leaves,
        threads=leaves,
        threads_per_leaf=1,
        tile=0,
        bytes_to_read=bytes_to_read(features, columns),
        flops=2.0 * n * d * k,
        projected_bytes=sum(memory.values()),
        allowed_bytes=allowed,
        memory=memory,
        axis="features",
        merge="what the features of a leaf give to the scores is added in the order of the features",
    )


def _per_sample(model: PCAModel) -> int:
    """Return how many numbers of each sample are summed over features: scores, and the products that holes take away."""
    return model.n_components + (n_packed(model.n_components) if model.conditional else 0)


def _solve_bytes(model: PCAModel) -> int:
    return scratch_bytes(model.n_components) if model.conditional else 0


def _width(model: PCAModel, columns: int) -> int:
    stored = model.components
    return stored.width if isinstance(stored, StoredComponents) else min(columns, slab_features(len(stored)))


@dataclass(frozen=True)
class PartTask:
    """What the features of a leaf give to the scores."""

    common: ClassVar[str] = "model"
    """What is the same for all leaves."""
    source: Source
    """The data by features."""
    model: PCAModel
    """What samples are projected with."""
    columns: int
    """Features of a block."""
    dtype: np.dtype[Any]
    """Data type of products and scores."""

    def for_leaf(self, leaf: Leaf) -> PartTask:
        """Return the task with no more of the source than `leaf` needs."""
        return replace(self, source=self.source.part(leaf.edges[0], leaf.edges[-1]))

    def __call__(self, leaf: Leaf, stop: threading.Event | None = None, on_block: OnBlock | None = None) -> LeafResult:
        """Project."""
        k = self.model.n_components
        sums = np.zeros((self.source.shape[1], _per_sample(self.model)))
        scores = sums[:, :k]
        total, width = ReadCount(), _width(self.model, self.columns)
        for block, count in read_ahead(self.source, leaf):
            start, end = block.start, block.start + len(block)
            for first in range(start // width * width, end, width):  # at the edges of stored slabs
                part = slice(max(start, first), min(end, first + width))
                rows, slab = block.values[part.start - start : part.stop - start].T, self._components(part)
                with np.errstate(over="ignore", invalid="ignore"):
                    add_scores(self.model, part, slab, rows, self.dtype, scores)
                if self.model.conditional and rows.dtype.kind == "f":
                    add_lost(np.isnan(rows), slab, sums[:, k:])
                if not np.isfinite(scores).all():
                    self._refuse(rows, part.start)
            total += count
            if on_block is not None:
                on_block(block, count)
            if stop is not None and stop.is_set():
                raise StoppedError
        return LeafResult(sums, total)

    def _components(self, part: slice) -> FloatArray:
        stored = self.model.components
        return stored.slab(part.start, part.stop) if isinstance(stored, StoredComponents) else stored[:, part]

    def _refuse(self, rows: NDArray[Any], first_column: int) -> None:
        """Raise `NotFiniteError` for what has no meaning: infinity, and NaN unless the model says what it means."""
        refuse = refuse_not_finite if self.model.missing == "error" else refuse_infinite
        refuse(rows, 0, first_column)


def scores_by_features(
    source: Source, model: PCAModel, plan: Plan, progress: ProgressCallback | None = None
) -> tuple[FloatArray, ReadCount]:
    """Return the scores of all samples without whitening, ``(n_samples, k)``, and what reading by features cost.

    Samples with missing values have conditional means where the model says so.
    """
    features = source.by_features()
    record, meter = next_reading("scores", plan, model_digest(model)), Meter("scores", plan.extent, progress)
    scores, count, turn = record.begin(np.zeros((source.shape[0], _per_sample(model))))
    meter.skip(plan, turn, count)
    task = PartTask(features, model, plan.rows_per_block, model.score_dtype(source.dtype))
    results, whole = execute(task, plan, meter, active_client(source), turn), True
    try:
        with one_blas_thread(), closing(results):
            for result in results:
                heed()
                with uninterrupted():
                    whole = False
                    scores += result.state
                    count, turn, whole = count + result.count, turn + 1, True
                record.absorbed(turn - 1, scores, count)
    except BaseException as error:
        note_stop(error)
        if whole:
            record.stopped(turn, scores, count)
        raise
    if model.conditional:
        scores, lost = np.ascontiguousarray(scores[:, : model.n_components]), scores[:, model.n_components :]
        fill_in_from(model, lost, scores)
    return scores, count
