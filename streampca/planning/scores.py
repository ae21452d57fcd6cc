"""The plan of a pass that only computes scores: no matrix is accumulated, so it needs far less than a fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from streampca.accumulators.centring import work_dtype
from streampca.errors import NotAvailableError, PlanError
from streampca.formatting import as_text
from streampca.models.conditional import n_packed
from streampca.models.conditional import scratch_bytes as conditional_bytes
from streampca.models.diagnostics import scratch_bytes
from streampca.models.pca import Model, PCAModel
from streampca.models.stored import SLAB_BYTES, StoredComponents, slab_features
from streampca.planning.memory import MemoryNeed, Purpose, allowed_bytes, buffer_bytes
from streampca.planning.plan import Plan, with_read_ahead, with_repeated_reads
from streampca.planning.shape import WorkShape, block_rows_to_try, count_leaves, divide
from streampca.planning.work import Figures, Resources, Work
from streampca.sources.base import Source
from streampca.system.process import n_cores, process_bytes

_MOST_COMPONENTS = 256
"""Number of components that is assumed where a share of the variance decides it."""


def plan_scores(
    source: Source,
    model: Model,
    memory: int | str | None,
    threads: int | None = None,
    *,
    diagnostics: bool = False,
    read_ahead: int | None = None,
) -> Plan:
    """Return how the scores of `source` are written within the memory that is allowed.

    By rows; by features where the components are on disk, which are then read once and not for every block of rows,
    or where blocks of rows do not fit. With `diagnostics`, T² and Q of rows, by rows alone: components on disk
    are read up to twice for every block of rows then.

    Raises
    ------
    PlanError
        If it does not fit.
    NotAvailableError
        If `diagnostics` are asked for of kernel PCA, or of rotated components.
    """
    resources = Resources(allowed_bytes(memory), process_bytes(), threads or n_cores())
    source.settle(resources.allowed_bytes)
    plan = _plan_in_memory(source, model, resources, diagnostics=diagnostics)
    return with_read_ahead(plan, source, read_ahead)


def _plan_in_memory(source: Source, model: Model, resources: Resources, *, diagnostics: bool) -> Plan:
    """Return the plan without memory for reading ahead."""
    if diagnostics and model.not_diagnosed:
        raise NotAvailableError(model.not_diagnosed)
    by_features = None
    if model.linear is not None and model.by_features and not diagnostics:
        by_features = plan_by_features(source, model.linear, resources)
    if by_features is not None and not by_features.budget.fits:
        by_features = None
    if by_features is not None and model.on_disk:
        return by_features
    plan = ByRows(source, model.n_components, resources, model, diagnostics).first_that_fits()
    if plan.budget.fits:
        plan = with_repeated_reads(plan, source)
        if model.linear is None or not model.on_disk:
            return plan
        size = as_text(model.linear.components.nbytes)
        note = f"the components, {size} on disk, are read up to twice for each of {plan.n_blocks:,} blocks of rows: more memory makes these larger"
        return plan.with_notes([note])
    if by_features is not None:
        return by_features
    raise plan.budget.refusal("", subject="writing scores: ")


@dataclass(frozen=True)
class ScoresWork(Work):
    """Writing scores of a model that is there."""

    model: Model
    """The model."""

    name: ClassVar[str] = "scores"
    merge: ClassVar[str]
    """What becomes of the results of leaves."""

    @override
    @property
    def work_dtype(self) -> str:
        return str(work_dtype(self.source.dtype))

    def first_that_fits(self) -> Plan:
        """Return the plan for the first block size, and number of leaves at once, that fits; for the smallest if none does."""
        sizes = block_rows_to_try(self.read, work_dtype(self.source.dtype))
        for rows in sizes:
            if self.budget(self.shape(rows, 1, 1)).fits:
                return self.plan_for(self.loaded(rows))
        return min((self.plan_for(self.shape(rows, 1, 1)) for rows in sizes), key=lambda plan: plan.projected_bytes)

    def _n_leaves(self, rows: int) -> int:
        n = self.read.shape[0]
        return count_leaves(n, -(-n // rows), self.read.row_bytes)

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        shape = divide(
            self.read.shape[0],
            rows,
            self._n_leaves(rows),
            (leaves, threads_per_leaf, leaves),
            axis="samples" if self.read is self.source else "features",
            merge=self.merge,
        )
        return replace(shape, window=2 * leaves)

    @override
    def edges(self, shape: WorkShape) -> tuple[int, ...] | None:
        return None if self.read is self.source else super().edges(shape)


@dataclass(frozen=True)
class ByRows(ScoresWork):
    """Scores of a block of rows after the other."""

    diagnostics: bool
    """Whether T² and Q of rows are written, too."""

    merge: ClassVar[str] = "every block is written as one chunk"

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what blocks, axes and scores take."""
        rows, leaves, pca = shape.rows_per_block, shape.leaves_in_flight, self.model.linear
        needs: list[tuple[Purpose, int]] = [("blocks", buffer_bytes(self.source, rows))]
        needs += self.model.encoding_bytes(rows, self.source.dtype).items()
        if self.diagnostics and pca is not None:
            needs.append(("diagnostics", scratch_bytes(pca, rows)))
        return [MemoryNeed(purpose, leaves * size) for purpose, size in needs]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        flops = self.source.shape[0] * self.model.encoding_flops()
        return Figures("rows are projected on existing components", flops)


@dataclass(frozen=True)
class ByFeatures(ScoresWork):
    """Scores of all rows, to which a band of features after the other is added."""

    model: PCAModel

    merge: ClassVar[str] = "the parts of the scores from each leaf are added in the order of the features"

    @override
    @property
    def read(self) -> Source:
        return self.source.by_features()

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what blocks, axes and scores take.

        Axes: L k c' (24 + e); scores: 8 n v (5 L + 2) + 2 L · max(8 MiB, c' e) for v numbers of each sample (`values_per_sample`), and
        the k × k matrices of conditional means.
        """
        model, leaves, features = self.model, shape.leaves_in_flight, self.read
        n, k, width = features.shape[1], len(model.components), slab_width(model, shape.rows_per_block)
        itemsize = model.score_dtype(features.dtype).itemsize
        sums = (5 * leaves + 2) * 8 * n * values_per_sample(model)
        solve = conditional_bytes(model.n_components) if model.conditional else 0
        return [
            MemoryNeed("blocks", leaves * buffer_bytes(features, shape.rows_per_block)),
            MemoryNeed("axes", leaves * k * width * (24 + itemsize)),
            MemoryNeed("scores", sums + leaves * 2 * max(SLAB_BYTES, width * itemsize) + solve),
        ]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        (n, d), k = self.source.shape, len(self.model.components)
        reason = "samples are projected on existing components, a band of features at a time"
        return Figures(reason, 2.0 * n * d * k)


@dataclass(frozen=True)
class RowsOfScores(ScoresWork):
    """Rows that are made of scores, a block of rows after the other."""

    merge: ClassVar[str] = "every block is written as one chunk"

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what blocks, axes and chunks that are being written take.

        Axes: 24 L k d for components in memory, of those on disk a slab of c' features; of kernel PCA the kernel matrix of a panel, and
        what the kernel prepares. Scratch: 2 L b d e for a chunk and its compressed form.
        """
        rows, leaves = shape.rows_per_block, shape.leaves_in_flight
        return [
            MemoryNeed("blocks", leaves * buffer_bytes(self.source, rows)),
            MemoryNeed("scratch", leaves * 2 * rows * self.source.row_bytes),
            MemoryNeed("axes", leaves * self.model.decoding_bytes(rows, self.source.dtype)),
        ]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        (n, d), k = self.source.shape, self.model.n_components
        return Figures("rows are rebuilt from existing scores", 2.0 * n * d * k)


def plan_rows(rows: Source, model: Model, memory: int | str | None, threads: int | None = None) -> Plan:
    """Return how `rows`, which are made of scores, are written within the memory that is allowed; `PlanError` if it does not fit."""
    resources = Resources(allowed_bytes(memory), process_bytes(), threads or n_cores())
    rows.settle(resources.allowed_bytes)
    plan = RowsOfScores(rows, model.n_components, resources, model).first_that_fits()
    if not plan.budget.fits:
        raise plan.budget.refusal("", subject="writing rows: ")
    return plan


def require_room_for_rows(n_features: int, n_components: int, memory: int | str | None) -> None:
    """Raise `PlanError` if components in memory of a fit that is to come leave no room for making rows of its scores.

    A lower bound, so that such a run ends before it reads: the components, 8 k d, and what `RowsOfScores` counts for them, 24 k d.
    """
    allowed, process, least = allowed_bytes(memory), process_bytes(), 32 * n_components * n_features
    if process + least > allowed:
        raise PlanError(
            f"writing rows: {n_components} components of {n_features:,} features take {as_text(least)}, but only "
            f"{as_text(allowed)} are allowed and the process itself takes {as_text(process)}: allow more memory, or leave the rows out"
        )


def plan_by_features(source: Source, model: PCAModel, resources: Resources) -> Plan | None:
    """Return how scores are computed by features, with the least memory if nothing fits; None if `source` has no such view."""
    try:
        source.by_features()
    except NotAvailableError:
        return None
    return ByFeatures(source, len(model.components), resources, model).first_that_fits()


def values_per_sample(model: PCAModel) -> int:
    """Return how many numbers of each sample are summed over features: k scores, and k (k + 1) / 2 products for missing values."""
    return model.n_components + (n_packed(model.n_components) if model.conditional else 0)


def slab_width(model: PCAModel, columns: int) -> int:
    """Return how many features of the components are in memory at once, for blocks of `columns` features."""
    stored = model.components
    return stored.width if isinstance(stored, StoredComponents) else min(columns, slab_features(len(stored)))


def diagnostics_bytes(n_features: int, n_components: object, missing: str) -> int:
    """Return what T² and Q take beside the scores in one leaf: 8 max(1 MiB, 8 d), and for rows with holes 80 max(2¹⁶, k²)."""
    holes = missing in ("mean", "pairwise")
    k = n_components if isinstance(n_components, int) else min(n_features, _MOST_COMPONENTS)
    return 8 * max(2**20, 8 * n_features) + (80 * max(2**16, k**2) if holes else 0)
