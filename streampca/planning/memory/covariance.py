"""Memory of the covariance solver, with the matrix in memory or on disk (``docs/reference/memory-formulas.md``)."""

from __future__ import annotations

from dataclasses import replace

from streampca.accumulators.by_group import ByGroup
from streampca.accumulators.centring import product_dtype
from streampca.accumulators.covariance import panel_rows
from streampca.accumulators.disk_tiles import product_bytes
from streampca.accumulators.pairwise import PairwiseCovariance
from streampca.linalg.lanczos import block_size
from streampca.models.conditional import scratch_bytes
from streampca.planning.budget import MemoryNeed, Phase, Resources
from streampca.planning.covariance_accumulators import CovarianceAccumulator
from streampca.planning.memory import (
    buffer_bytes,
    eigenproblem_bytes,
    model_need,
    process_needs,
    report_need,
    sampled_rows_need,
    scores_bytes,
)
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source


def covariance_needs(
    source: Source,
    accumulator: CovarianceAccumulator | ByGroup,
    n_components: int | None,
    shape: WorkShape,
    resources: Resources,
) -> list[MemoryNeed]:
    """Return the needs of a fit with the matrix in memory.

    States: (1 + W) S, where S is a state; scratch: L times that of an update; solve: the eigenproblem of side d.
    """
    d, rows, leaves = source.shape[1], shape.rows_per_block, shape.leaves_in_flight
    states = MemoryNeed("states", accumulator.state_bytes(d) * shape.n_states)
    return [
        *process_needs(resources),
        states,
        *_shared_needs(source, accumulator, n_components, (rows, leaves), resources),
    ]


def disk_needs(
    source: Source, accumulator: CovarianceAccumulator, k: int, load: tuple[int, int, int], resources: Resources
) -> list[MemoryNeed]:
    """Return the needs of a fit with the matrix on disk, for a `load` of (rows of a block, threads, tiles of a group).

    States: 2 · 8 (tiles t² + 2 d), the total of a group and that of its leaf; tiles: those that are read from the disk, and
    their products (`product_bytes`).
    """
    d, (rows, threads, n_tiles) = source.shape[1], load
    grid = accumulator.grid(d)
    group = 8 * (min(n_tiles * grid.longest_side**2, grid.size) + 2 * d)
    shared = replace(accumulator, n_threads=threads)
    return [
        *process_needs(resources),
        MemoryNeed("states", 2 * group, ("reading",)),
        *_shared_needs(source, shared, k, (rows, 1), resources),
        MemoryNeed("tiles", product_bytes(grid, block_size(k), threads), ("solving",)),
    ]


def _shared_needs(
    source: Source,
    accumulator: CovarianceAccumulator | ByGroup,
    n_components: int | None,
    load: tuple[int, int],
    resources: Resources,
) -> list[MemoryNeed]:
    """Return the needs that do not depend on where the matrix is, for a `load` of (rows of a block, leaves at once)."""
    (n, d), (rows, leaves) = source.shape, load
    k = min(n, d) if n_components is None else n_components
    dtype = product_dtype(source.dtype, d)
    scores = scores_bytes(source, rows, leaves, k, panel_rows(d, dtype))
    if isinstance(accumulator, PairwiseCovariance):
        scores += leaves * scratch_bytes(k)
    after: tuple[Phase, ...] = ("solving", "scores", "report")
    return [
        MemoryNeed("blocks", leaves * buffer_bytes(source, rows), ("reading",)),
        MemoryNeed("scratch", leaves * accumulator.scratch_bytes(d, rows, dtype.itemsize), ("reading",)),
        sampled_rows_need(source, resources),
        MemoryNeed("solve", eigenproblem_bytes(d, k) + accumulator.finalize_bytes(d), ("solving",)),
        model_need(d, k, *after),
        MemoryNeed("scores", scores if resources.scores else 0, ("scores",)),
        report_need(resources),
    ]
