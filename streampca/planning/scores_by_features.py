"""The plan of scores computed by features: blocks of columns, of which each is read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streampca.accumulators.centring import work_dtype
from streampca.errors import NotAvailableError
from streampca.models.conditional import n_packed, scratch_bytes
from streampca.models.stored_components import SLAB_BYTES, StoredComponents, slab_features
from streampca.planning.leaves import count_leaves
from streampca.planning.memory import ALLOWANCE_BYTES
from streampca.planning.plan import Plan, block_rows_to_try, bytes_to_read
from streampca.sources.base import Source

if TYPE_CHECKING:
    from streampca.models.pca import PCAModel


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
    score, width, per_sample = (
        model.score_dtype(source.dtype).itemsize,
        slab_width(model, columns),
        values_per_sample(model),
    )
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


def values_per_sample(model: PCAModel) -> int:
    """Return how many numbers of each sample are summed over features: scores, and the products that holes take away."""
    return model.n_components + (n_packed(model.n_components) if model.conditional else 0)


def _solve_bytes(model: PCAModel) -> int:
    return scratch_bytes(model.n_components) if model.conditional else 0


def slab_width(model: PCAModel, columns: int) -> int:
    """Return how many features of the components are in memory at once, for blocks of `columns` features."""
    stored = model.components
    return stored.width if isinstance(stored, StoredComponents) else min(columns, slab_features(len(stored)))
