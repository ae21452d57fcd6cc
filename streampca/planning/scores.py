"""The plan of a pass that only computes scores: no matrix is accumulated, so it needs far less than a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from streampca.accumulators.centring import work_dtype
from streampca.errors import NotAvailableError
from streampca.formatting import as_text
from streampca.models.diagnostics import scratch_bytes
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.rotated import RotatedModel
from streampca.models.stored_components import StoredComponents
from streampca.planning.blocks import block_rows_to_try, bytes_to_read
from streampca.planning.budget import MemoryBudget, MemoryNeed, Resources
from streampca.planning.memory import allowed_bytes
from streampca.planning.memory.scores import kernel_scores_needs, scores_by_features_needs, scores_needs
from streampca.planning.plan import Cost, DataShape, Plan, with_repeated_reads
from streampca.planning.read_ahead import with_read_ahead
from streampca.planning.shape import WorkShape, count_leaves
from streampca.sources.base import Source
from streampca.system.process import n_cores, process_bytes

ScoresNeeds = Callable[[int, int], list[MemoryNeed]]
"""From rows of a block and leaves at once to the memory that they need."""


def plan_scores(
    source: Source,
    model: PCAModel | KernelModel,
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
    plan = _plan_in_memory(source, model, resources, diagnostics=diagnostics)
    return with_read_ahead(plan, source, read_ahead)


def _plan_in_memory(source: Source, model: PCAModel | KernelModel, resources: Resources, *, diagnostics: bool) -> Plan:
    """Return the plan without memory for reading ahead."""
    if diagnostics:
        require_diagnosable(model)
    by_features = None
    if not isinstance(model, KernelModel | RotatedModel) and not diagnostics:
        by_features = plan_by_features(source, model, resources)
    if by_features is not None and not by_features.budget.fits:
        by_features = None
    on_disk = isinstance(model, PCAModel) and isinstance(model.components, StoredComponents)
    if by_features is not None and on_disk:
        return by_features
    plan = _plan_by_rows(source, model, resources, diagnostics=diagnostics)
    if plan.budget.fits:
        return _with_component_reads(with_repeated_reads(plan, source), model)
    if by_features is not None:
        return by_features
    raise plan.budget.refusal("", subject="writing scores: ")


def _with_component_reads(plan: Plan, model: PCAModel | KernelModel) -> Plan:
    """Return `plan` with a note on how often components on disk are read."""
    if isinstance(model, KernelModel) or not isinstance(model.components, StoredComponents):
        return plan
    size = as_text(model.components.nbytes)
    note = f"the components, {size} on disk, are read up to twice for each of {plan.n_blocks:,} blocks of rows: more memory makes these larger"
    return plan.with_notes([note])


def require_diagnosable(model: PCAModel | KernelModel) -> None:
    """Raise `NotAvailableError` if T² and Q of rows cannot be computed beside their scores."""
    if isinstance(model, KernelModel):
        raise NotAvailableError("diagnostics (T² and Q of rows) are those of PCA: kernel PCA has none")
    if isinstance(model, RotatedModel):
        raise NotAvailableError(
            "diagnostics (T² and Q of rows) are those of the fit before the rotation: take them from pca_"
        )


def _plan_by_rows(
    source: Source, model: PCAModel | KernelModel, resources: Resources, *, diagnostics: bool = False
) -> Plan:
    """Return how scores are computed by rows, with the least memory if nothing fits."""

    def needs(rows: int, leaves: int) -> list[MemoryNeed]:
        if isinstance(model, KernelModel):
            return kernel_scores_needs(source, model, rows, leaves, resources)
        own = scores_needs(source, model, rows, leaves, resources)
        return [*own, MemoryNeed("diagnostics", leaves * scratch_bytes(model, rows))] if diagnostics else own

    (n, d), k = source.shape, model.n_components
    flops = 2.0 * n * d * k
    if isinstance(model, KernelModel):
        flops = float(n) * len(model.landmarks) * (model.kernel.needs(d).flops + 2 * k)
    shape = WorkShape.divide(n, n, 1, (1, 1, 1), merge="every block is written as a chunk of its own")
    plan = _plan_without_blocks(source, k, shape, flops, resources)
    return _first_that_fits(plan, source, needs, resources.threads)


def plan_by_features(source: Source, model: PCAModel, resources: Resources) -> Plan | None:
    """Return how scores are computed by features, with the least memory if nothing fits; None if `source` has no such view."""
    try:
        features = source.by_features()
    except NotAvailableError:
        return None

    def needs(columns: int, leaves: int) -> list[MemoryNeed]:
        return scores_by_features_needs(features, model, columns, leaves, resources)

    (n, d), k = source.shape, len(model.components)
    merge = "what the features of a leaf give to the scores is added in the order of the features"
    shape = WorkShape.divide(d, d, 1, (1, 1, 1), axis="features", merge=merge)
    plan = _plan_without_blocks(source, k, shape, 2.0 * n * d * k, resources)
    plan = _first_that_fits(plan, features, needs, resources.threads)
    return plan.with_edges(features.block_edges(plan.rows_per_block))


def _plan_without_blocks(source: Source, k: int, shape: WorkShape, flops: float, resources: Resources) -> Plan:
    """Return the plan of scores of `k` components before its blocks and its memory are known."""
    by_rows = "rows are projected on components that are there already"
    by_features = "samples are projected on components that are there already, a band of features at a time"
    return Plan(
        solver="scores",
        reason=by_rows if shape.axis == "samples" else by_features,
        data=DataShape.of(source),
        work_dtype=str(work_dtype(source.dtype)),
        n_components=k,
        shape=shape,
        budget=MemoryBudget(resources.allowed_bytes),
        cost=Cost(1, 0, flops),
    )


def _first_that_fits(plan: Plan, source: Source, needs: ScoresNeeds, threads: int) -> Plan:
    """Return `plan` for the first block size, and number of leaves at once, that fits; for the smallest if none does.

    `source` is what the blocks divide: the source itself, or its view by features.
    """
    tried = []
    for rows in block_rows_to_try(source, work_dtype(source.dtype)):
        n_blocks = -(-plan.extent // rows)
        n_leaves = count_leaves(plan.extent, n_blocks, source.row_bytes)
        for leaves in sorted({min(threads, n_leaves), 1}, reverse=True):
            shape = replace(
                plan.shape,
                rows_per_block=rows,
                n_blocks=n_blocks,
                n_leaves=n_leaves,
                leaves_in_flight=leaves,
                window=2 * leaves,
                threads=leaves,
            )
            budget = MemoryBudget.of(needs(rows, leaves), plan.allowed_bytes)
            cost = replace(plan.cost, bytes_to_read=bytes_to_read(source, rows))
            tried.append(replace(plan, shape=shape, budget=budget, cost=cost))
            if budget.fits:
                return tried[-1]
    return min(tried, key=lambda plan: plan.projected_bytes)
