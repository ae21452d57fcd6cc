"""Memory of the QR solver (``docs/reference/memory-formulas.md``)."""

from __future__ import annotations

from streampca.accumulators.triangle import QRFactor
from streampca.planning.budget import MemoryNeed, Resources
from streampca.planning.memory import buffer_bytes, model_need, process_needs, report_need, sampled_rows_need
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source

_SCORES_PANEL_ROWS = 8192


def qr_needs(
    source: Source, accumulator: QRFactor, n_components: int | None, shape: WorkShape, resources: Resources
) -> list[MemoryNeed]:
    """Return the needs of a fit.

    States: (1 + W) S; scratch: (L + 1) times that of an update; solve: 8 d (8 d + 3 k) for the decomposition of the factor;
    scores: L (2 b d s + decoding + 16 p d + 48 b k) + 8 d k.
    """
    (n, d), rows, leaves = source.shape, shape.rows_per_block, shape.leaves_in_flight
    k = min(n, d) if n_components is None else n_components
    buffers = buffer_bytes(source, rows)
    scores = leaves * (buffers + 16 * min(rows, _SCORES_PANEL_ROWS) * d + 48 * rows * k) + 8 * d * k
    return [
        *process_needs(resources),
        MemoryNeed("states", accumulator.state_bytes(d) * shape.n_states),
        MemoryNeed("blocks", leaves * buffers, ("reading",)),
        MemoryNeed("scratch", (leaves + 1) * accumulator.scratch_bytes(d, rows, 8), ("reading",)),
        sampled_rows_need(source, resources),
        MemoryNeed("solve", 8 * d * (8 * d + 3 * k), ("solving",)),
        model_need(d, k, "solving", "scores", "report"),
        MemoryNeed("scores", scores if resources.scores else 0, ("scores",)),
        report_need(resources),
    ]
