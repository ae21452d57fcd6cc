"""Memory of the approximate solvers (``docs/reference/memory-formulas.md``)."""

from __future__ import annotations

import numpy as np

from streampca.accumulators.adaptive import IncrementalSVD
from streampca.accumulators.centring import product_dtype
from streampca.accumulators.shifting import sketch_panel_rows
from streampca.accumulators.sketch import Sketch
from streampca.planning.budget import MemoryNeed, Resources
from streampca.planning.detail import SketchDetail
from streampca.planning.memory import (
    buffer_bytes,
    model_need,
    process_needs,
    report_need,
    sampled_rows_need,
    scores_bytes,
)
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source

_RETAINED_BYTES = 64 * 2**20
"""What glibc retains of the memory that a thread has freed: twice its largest mmap threshold."""
_SOLVE_COPIES = 4
"""Arrays of features x columns that solving takes beside the test matrix and the products."""


def sketch_needs(
    source: Source, detail: SketchDetail, n_components: int | None, shape: WorkShape, resources: Resources
) -> list[MemoryNeed]:
    """Return the needs of an approximate fit.

    Test matrix: d (q + g) w, twice with several passes; kept products: 16 d (K q + g); solve: 8 d (4 K q + 4 (q + g)).
    """
    d, rows, leaves = source.shape[1], shape.rows_per_block, shape.leaves_in_flight
    dtype = product_dtype(source.dtype, d)
    k = detail.columns if n_components is None else min(n_components, detail.columns)
    several = detail.passes > 1 or detail.moments_first
    columns = detail.columns + detail.held_out
    retained_columns = (detail.passes if detail.keep_all else 1) * detail.columns
    blocks, scratch = leaves * buffer_bytes(source, rows), leaves * _scratch_bytes(source, detail, shape)
    scores = scores_bytes(source, rows, leaves, k, sketch_panel_rows(d, dtype)) if resources.scores else 0
    return [
        *process_needs(resources),
        MemoryNeed("states", _states_bytes(source, detail, shape.n_states), ("reading",)),
        MemoryNeed("test matrix", d * columns * dtype.itemsize * (2 if several else 1), ("reading",)),
        MemoryNeed("kept products", 16 * d * (retained_columns + detail.held_out), ("reading", "solving")),
        MemoryNeed("blocks", blocks, ("reading",)),
        MemoryNeed("scratch", scratch, ("reading",)),
        MemoryNeed("pilot", pilot_bytes(source, detail), ("pilot",)),
        MemoryNeed("solve", 8 * d * (retained_columns * _SOLVE_COPIES + 4 * columns), ("solving",)),
        model_need(d, k, "solving", "scores", "report"),
        MemoryNeed("scores", scores, ("scores",)),
        sampled_rows_need(source, resources),
        report_need(resources),
        MemoryNeed("scratch", min(blocks + scratch, leaves * _RETAINED_BYTES), ("solving", "report"), listed=False),
    ]


def pilot_bytes(source: Source, detail: SketchDetail) -> int:
    """Return what the m rows of the pilot take: 2 m d w + 32 d q + one band of chunks; the last two only where they exist."""
    (n, d), m = source.shape, detail.pilot_rows
    band = min(n, source.chunk_rows) * source.row_bytes if detail.pilot_bands else 0
    return m * d * product_dtype(source.dtype, d).itemsize * 2 + band + (32 * d * detail.columns if m else 0)


def _states_bytes(source: Source, detail: SketchDetail, n_states: int) -> int:
    """Return what states take: (1 + L) S.

    With several passes, the state of the first pass and the next basis in float64, S + 8 d (q + g), are in memory, too.
    """
    d, columns = source.shape[1], detail.columns + detail.held_out
    several = detail.passes > 1 or detail.moments_first
    first = state = _sketch(source, columns, 1).state_bytes(d)
    if detail.rows_per_update:
        first = _sketch(source, detail.held_out, 1).state_bytes(d) + _update(detail, 1).state_bytes(d)
        state = max(first, state) if several else first
    return state * n_states + (first + 8 * d * columns if several else 0)


def _scratch_bytes(source: Source, detail: SketchDetail, shape: WorkShape) -> int:
    """Return the scratch of an update in one leaf; of `adaptive`, the larger of the first pass and later ones."""
    d, rows, threads = source.shape[1], shape.rows_per_block, shape.threads_per_leaf
    itemsize = product_dtype(source.dtype, d).itemsize
    scratch = _sketch(source, detail.columns + detail.held_out, threads).scratch_bytes(d, rows, itemsize)
    if not detail.rows_per_update:
        return scratch
    held_out = _sketch(source, detail.held_out, threads).scratch_bytes(d, rows, itemsize)
    return max(scratch, held_out + _update(detail, threads).scratch_bytes(d, rows, itemsize))


def _sketch(source: Source, columns: int, threads: int) -> Sketch:
    """Return an accumulator of products with so many columns, to ask it for sizes."""
    return Sketch(
        np.empty((0, columns), dtype=product_dtype(source.dtype, source.shape[1])), n_threads=threads, key="plan"
    )


def _update(detail: SketchDetail, threads: int) -> IncrementalSVD:
    return IncrementalSVD(detail.columns, detail.rows_per_update, n_threads=threads)
