"""Scores of wide data in one reading by features: every leaf adds what its features give to the scores of all samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import iadd
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streampca.accumulators.centring import refuse_not_finite
from streampca.accumulators.missing import refuse_infinite
from streampca.block import Block, dense
from streampca.execution.checkpoint.pass_record import next_pass
from streampca.execution.checkpoint.progress_log import model_digest
from streampca.execution.distributed.active_client import active_client
from streampca.execution.drive import drive
from streampca.execution.leaf import Task
from streampca.execution.progress import ProgressCallback
from streampca.models.conditional import add_lost, fill_in_from
from streampca.models.stored_components import StoredComponents
from streampca.planning.plan import Plan
from streampca.planning.scores import slab_width, values_per_sample
from streampca.planning.shape import Leaf
from streampca.sources.base import ReadCount, Source
from streampca.system.blas_threads import one_blas_thread
from streampca.typing import Array, DType, FloatArray

if TYPE_CHECKING:
    from streampca.models.pca import PCAModel


@dataclass(frozen=True)
class FeatureBandTask(Task[FloatArray]):
    """Compute the contributions of the features of a leaf to the scores of all samples."""

    common: ClassVar[str] = "model"
    """What is the same for all leaves."""
    source: Source
    """The data by features."""
    model: PCAModel
    """What samples are projected with."""
    columns: int
    """Features of a block."""
    dtype: DType
    """Data type of products and scores."""

    def for_leaf(self, leaf: Leaf) -> FeatureBandTask:
        """Return the task with no more of the source than `leaf` needs."""
        return replace(self, source=self.source.slice(leaf.edges[0], leaf.edges[-1]))

    def init(self, leaf: Leaf) -> FloatArray:
        """Return zeros: scores of all samples, and what missing values take from them."""
        return np.zeros((self.source.shape[1], values_per_sample(self.model)))

    def update(self, state: FloatArray, block: Block) -> FloatArray:
        """Return `state` with the contributions of the features of `block` added."""
        k, width = self.model.n_components, slab_width(self.model, self.columns)
        scores = state[:, :k]
        start, end = block.start, block.start + len(block)
        for first in range(start // width * width, end, width):  # at the edges of stored slabs
            part = slice(max(start, first), min(end, first + width))
            rows, slab = block.values[part.start - start : part.stop - start].T, self._components(part)
            with np.errstate(over="ignore", invalid="ignore"):
                self.model.add_scores(part, slab, rows, self.dtype, scores)
            if self.model.conditional and rows.dtype.kind == "f":
                add_lost(np.isnan(rows), slab, state[:, k:])
            if not np.isfinite(scores).all():
                self._refuse(rows, part.start)
        return state

    def _components(self, part: slice) -> FloatArray:
        stored = self.model.components
        return stored.slab(part.start, part.stop) if isinstance(stored, StoredComponents) else stored[:, part]

    def _refuse(self, rows: Array, first_column: int) -> None:
        """Raise `NotFiniteError` for what has no meaning: infinity, and NaN unless the model says what it means."""
        refuse = refuse_not_finite if self.model.missing == "error" else refuse_infinite
        refuse(dense(rows), 0, first_column)


def scores_by_features(
    source: Source, model: PCAModel, plan: Plan, progress: ProgressCallback | None = None
) -> tuple[FloatArray, ReadCount]:
    """Return the scores of all samples without whitening, ``(n_samples, k)``, and what reading by features cost.

    Samples with missing values have conditional means where the model says so.
    """
    features = source.by_features()
    record = next_pass("scores", plan, model_digest(model))
    start = record.begin(np.zeros((source.shape[0], values_per_sample(model))))
    task = FeatureBandTask(features, model, plan.rows_per_block, model.score_dtype(source.dtype))
    with one_blas_thread():
        scores, count = drive(task, plan, record, start, iadd, client=active_client(source), progress=progress)
    if model.conditional:
        scores, lost = np.ascontiguousarray(scores[:, : model.n_components]), scores[:, model.n_components :]
        fill_in_from(model, lost, scores)
    return scores, count
