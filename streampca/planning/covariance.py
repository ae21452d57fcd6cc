"""The plan of the covariance solver with the matrix in memory."""

from __future__ import annotations

from dataclasses import replace

from streampca.accumulators.by_group import ByGroup
from streampca.accumulators.centring import product_dtype
from streampca.accumulators.covariance import panel_rows
from streampca.formatting import as_text
from streampca.planning.blocks import BLOCK_BYTES, block_rows_to_try, bytes_to_read, times_decoded
from streampca.planning.budget import MemoryBudget, Resources
from streampca.planning.covariance_accumulators import CovarianceAccumulator
from streampca.planning.detail import CovarianceDetail
from streampca.planning.memory.covariance import covariance_needs
from streampca.planning.plan import Cost, DataShape, Plan
from streampca.planning.search import choose
from streampca.planning.shape import WorkShape, count_leaves
from streampca.sources.base import Source

_SMALL_STATE_BYTES = 16 * 2**20
"""Size of a state up to which finished leaves may wait to be merged."""
_WIDE_FROM_BYTES = 32 * 2**20
"""Size of a panel beyond which a block is as large as one."""

_ROWS_OF_GROUP = 32
"""Rows of each group that a block has on average, at least: to add one to the state of a group takes as long as to add some hundreds."""


def plan_covariance(
    source: Source, accumulator: CovarianceAccumulator | ByGroup, n_components: int | None, resources: Resources
) -> Plan:
    """Return how the covariance of `source` is accumulated within the memory that is allowed.

    Raises
    ------
    PlanError
        If it does not fit: with what is projected, what is allowed, and what to change.
    """
    (n, d), grid, state = source.shape, accumulator.grid(source.shape[1]), accumulator.state_bytes(source.shape[1])

    def build(rows: int, leaves: int, threads_per_leaf: int) -> Plan:
        shape = WorkShape.divide(
            n,
            rows,
            count_leaves(n, -(-n // rows), source.row_bytes, state),
            (leaves, threads_per_leaf, resources.threads),
            state_bytes=state,
            small_state_bytes=_SMALL_STATE_BYTES,
            tile=grid.longest_side,
        )
        needs = covariance_needs(
            source, replace(accumulator, n_threads=threads_per_leaf), n_components, shape, resources
        )
        reading = bytes_to_read(source, rows)
        return Plan(
            solver="covariance",
            reason=f"exact; the {d:,} x {d:,} matrix takes {as_text(state)} as tiles of its lower triangle",
            data=DataShape.of(source),
            work_dtype=str(product_dtype(source.dtype, d)),
            n_components=n_components,
            shape=shape,
            budget=MemoryBudget.of(needs, resources.allowed_bytes),
            cost=Cost(1, reading, float(n) * d * d + 4 / 3 * float(d) ** 3),
            detail=CovarianceDetail(),
            notes=_notes(source, reading),
        )

    dtype = product_dtype(source.dtype, d)
    panel_bytes = panel_rows(d, dtype) * d * dtype.itemsize
    wide = panel_bytes > _WIDE_FROM_BYTES  # else the default size
    least = _ROWS_OF_GROUP * accumulator.n_groups if isinstance(accumulator, ByGroup) else 1
    sizes = block_rows_to_try(source, dtype, panel_bytes if wide else BLOCK_BYTES, least)
    plan = choose(sizes, build, d, resources.threads, grid.n_tiles)
    if plan.budget.fits:
        return plan
    raise plan.budget.refusal(
        {
            "states": f"the {d:,} x {d:,} matrix is what takes the room; fewer features, or ",
            "blocks": f"chunks of fewer than {source.chunk_rows:,} rows, or ",
            "solve": "fewer components (n_components), or ",
            "scores": "scores: false, or ",
            "report": "report: false, or ",
        }
    )


def _notes(source: Source, reading: int) -> tuple[str, ...]:
    """Return a note on chunks that are decoded several times, if they are."""
    times = times_decoded(source, reading)
    if times <= 1.0:
        return ()
    return (
        f"a band of whole chunks ({source.chunk_rows:,} rows) does not fit: chunks are decoded {times:.1f} times; "
        "fewer rows in a chunk or more memory would avoid it",
    )
