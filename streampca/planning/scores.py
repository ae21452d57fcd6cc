"""The plan of a reading that only transforms: no matrix is accumulated, so it needs far less than a fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streampca.accumulators.centring import work_dtype
from streampca.errors import PlanError
from streampca.formatting import as_text
from streampca.models.conditional import n_packed, scratch_bytes
from streampca.models.kernel import KernelModel, panel_rows
from streampca.models.stored_components import StoredComponents
from streampca.planning.leaves import count_leaves
from streampca.planning.memory import ALLOWANCE_BYTES, allowed_bytes
from streampca.planning.plan import Plan, block_rows_to_try, bytes_to_read, with_repeated_reads
from streampca.planning.scores_by_features import plan_by_features
from streampca.system.process import n_cores, process_bytes

if TYPE_CHECKING:
    from streampca.models.pca import PCAModel
    from streampca.sources.base import Source

_SLAB_BYTES = 8 * 2**20


def plan_scores(
    source: Source, model: PCAModel | KernelModel, memory: int | str | None, threads: int | None = None
) -> Plan:
    """Return how the scores of `source` are written within the memory that is allowed.

    By rows; by features where the components are on disk, which are then read once and not for every block of rows,
    or where blocks of rows do not fit.

    Raises
    ------
    PlanError
        If it does not fit.
    """
    n, d = source.shape
    k, dtype = model.n_components, work_dtype(source.dtype)
    allowed, process = allowed_bytes(memory), process_bytes()
    score = model.score_dtype(source.dtype).itemsize
    by_features = None
    if not isinstance(model, KernelModel):
        by_features = plan_by_features(source, model, allowed, process, threads or n_cores())
    if by_features is not None and by_features.projected_bytes > allowed:
        by_features = None
    if (
        by_features is not None
        and not isinstance(model, KernelModel)
        and isinstance(model.components, StoredComponents)
    ):
        return by_features
    least: Plan | None = None
    for rows in block_rows_to_try(source, dtype):
        n_blocks = -(-n // rows)
        n_leaves = count_leaves(n, n_blocks, source.row_bytes)
        for leaves in sorted({min(threads or n_cores(), n_leaves), 1}, reverse=True):
            buffers = (2 * rows * source.row_bytes if source.buffered else 0) + source.overhead_bytes(rows)
            flops = 2.0 * n * d * k
            needs = {
                "process": process + ALLOWANCE_BYTES,
                "blocks": leaves * buffers,
                "axes": leaves * k * d * (8 + score),
                "scores": leaves * (2 * max(_SLAB_BYTES, d * score) + 6 * rows * k * score),
            }
            if isinstance(model, KernelModel):
                m = len(model.landmarks)
                per_row = model.kernel.needs(d)
                needs["axes"] = leaves * (model.kernel.prepared_bytes(m, d) + 8 * m * d + 8 * m * (k + 2))
                values = min(rows, panel_rows(m, dtype)) * (m + 2 * k) * 8
                needs["scores"] = leaves * (values + model.kernel.scratch_bytes(m, d) + 6 * rows * k * score)
                flops = float(n) * m * (per_row.flops + 2 * k)
            elif isinstance(model.components, StoredComponents):  # a slab as stored, read, weighted, and cast
                width = model.components.width
                needs["axes"] = leaves * k * width * (24 + score)
                needs["scores"] = leaves * (2 * max(_SLAB_BYTES, width * score) + rows * k * (6 * score + 16))
            if not isinstance(model, KernelModel) and model.conditional:
                needs["conditional means"] = leaves * (scratch_bytes(k) + 2 * max(_SLAB_BYTES, d))
                if isinstance(model.components, StoredComponents):
                    needs["conditional means"] += leaves * 8 * rows * n_packed(k)
            found = Plan(
                solver="scores",
                reason="rows are projected on components that are there already",
                n_samples=n,
                n_features=d,
                dtype=str(source.dtype),
                work_dtype=str(dtype),
                n_components=k,
                passes=1,
                rows_per_block=rows,
                n_blocks=n_blocks,
                n_leaves=n_leaves,
                leaves_in_flight=leaves,
                window=2 * leaves,
                threads=leaves,
                threads_per_leaf=1,
                tile=0,
                bytes_to_read=bytes_to_read(source, rows),
                flops=flops,
                projected_bytes=sum(needs.values()),
                allowed_bytes=allowed,
                memory=needs,
                merge="every block is written as a chunk of its own",
            )
            if found.projected_bytes <= allowed:
                return with_repeated_reads(found, source)
            least = found if least is None or found.projected_bytes < least.projected_bytes else least
    if by_features is not None:
        return by_features
    needed = 0 if least is None else least.projected_bytes
    raise PlanError(
        f"writing scores: projected {as_text(needed)} exceeds the allowed {as_text(allowed)}, of which the process itself takes "
        f"{as_text(process + ALLOWANCE_BYTES)}: memory of at least {as_text(1.01 * needed)}"
    )
