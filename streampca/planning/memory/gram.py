"""Memory of the Gram solver, with components in memory or on disk (``docs/reference/memory-formulas.md``)."""

from __future__ import annotations

from dataclasses import replace

from streampca.accumulators.centring import product_dtype
from streampca.accumulators.gram import Gram, panel_features
from streampca.accumulators.residuals import feature_panel_bytes
from streampca.models.stored_components import slab_features
from streampca.planning.budget import MemoryNeed, Resources
from streampca.planning.memory import REPORT_BYTES, buffer_bytes, eigenproblem_bytes, process_needs
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source

_LARGEST_KEPT = 32 * 2**20
_COPIES_ON_DISK = 4  # of a slab, while it is written to the disk and read again


def gram_needs(
    features: Source,
    accumulator: Gram,
    k: int,
    shape: WorkShape,
    resources: Resources,
    *,
    on_disk: bool,
    kept_bytes: int = 0,
) -> list[MemoryNeed]:
    """Return the needs of a fit that reads `features`, the source transposed.

    States: (1 + W) S; feature means: 48 d; solve: the eigenproblem of side n, and a matrix if there is one for each variable; rows kept: 2 r d s, and 3 r d s more for the
    report, unless components are on disk.
    """
    d, n = features.shape
    columns, leaves = shape.rows_per_block, shape.leaves_in_flight
    sampled = 0 if on_disk else resources.report_rows * d * features.dtype.itemsize
    scratch = accumulator.scratch_bytes(n, columns, product_dtype(features.dtype, d).itemsize)
    if features.sparse:  # a panel is made dense, and a sparse product has numbers of columns
        panel = min(columns, panel_features(n, product_dtype(features.dtype, d))) * n * features.dtype.itemsize
        scratch += panel + accumulator.n_threads * 16 * accumulator.grid(n).longest_side ** 2
    if resources.n_regressors:
        weighted = accumulator.weights is not None
        scratch += feature_panel_bytes(n, columns, product_dtype(features.dtype, d).itemsize, weighted=weighted)
    return [
        *process_needs(replace(resources, removal_bytes=resources.removal_by_features_bytes)),
        MemoryNeed("states", accumulator.state_bytes(n) * shape.n_states, ("reading", "solving")),
        MemoryNeed("feature means", 8 * d * 6),
        MemoryNeed("blocks", leaves * buffer_bytes(features, columns), ("reading", "components")),
        MemoryNeed("blocks", kept_bytes, ("solving",), listed=False),
        MemoryNeed("scratch", leaves * scratch, ("reading", "components")),
        MemoryNeed("solve", eigenproblem_bytes(accumulator.side(n), k) + accumulator.finalize_bytes(n), ("solving",)),
        MemoryNeed(
            "components", components_bytes(features, accumulator, k, shape, on_disk=on_disk), ("components", "report")
        ),
        MemoryNeed("rows kept", 2 * sampled if resources.report else 0),
        MemoryNeed("report", (REPORT_BYTES + 3 * sampled) if resources.report else 0, ("report",)),
    ]


def components_bytes(features: Source, accumulator: Gram, k: int, shape: WorkShape, *, on_disk: bool) -> int:
    """Return what components and their computation take.

    8 k d + V k (d / leaves + c) w + L k (8 c' + p' w) + 8 k² (V + L + 8) + 2 min(S, 32 MiB) with V = min(W + L, leaves); on disk
    L k (32 c' + p' w) + 8 k² (V + L + 8). Samples of weight 0 add their products.
    """
    d, n = features.shape
    columns, running, n_leaves = shape.rows_per_block, shape.leaves_in_flight, shape.n_leaves
    waiting = min(shape.window + running, n_leaves)
    dtype, width = product_dtype(features.dtype, d), min(d, slab_features(k, columns))
    panel = min(width, panel_features(n, dtype))
    n_without_weight = n - accumulator.side(n)
    copies = _COPIES_ON_DISK if on_disk else 1
    slabs = running * (copies * 8 * k * width + k * panel * dtype.itemsize + 8 * n_without_weight * 2 * panel)
    sums = (waiting + running + 8) * 8 * k * (k + n_without_weight)
    if on_disk:
        return slabs + sums
    # The C library keeps freed memory up to twice the largest array below 32 MiB that was freed before: here a state.
    kept = 2 * min(accumulator.state_bytes(n), _LARGEST_KEPT)
    return 8 * k * d + waiting * k * (-(-d // n_leaves) + columns) * dtype.itemsize + slabs + sums + kept
