"""Memory of a pass that only computes scores, by rows or by features (``docs/reference/memory-formulas.md``)."""

from __future__ import annotations

from streampca.accumulators.centring import work_dtype
from streampca.models.conditional import n_packed, scratch_bytes
from streampca.models.kernel import KernelModel, panel_rows
from streampca.models.pca import PCAModel
from streampca.models.stored_components import SLAB_BYTES, StoredComponents, slab_features
from streampca.models.stored_rows import BAND_ROWS, StoredRows
from streampca.planning.budget import MemoryNeed, Resources
from streampca.planning.memory import buffer_bytes, process_needs
from streampca.sources.base import Source

_MOST_COMPONENTS = 256
"""Number of components that is assumed where a share of the variance decides it."""


def scores_needs(source: Source, model: PCAModel, rows: int, leaves: int, resources: Resources) -> list[MemoryNeed]:
    """Return the needs of scores by rows.

    Axes: L k d (8 + e); scores: L (2 · max(8 MiB, d e) + 6 b k e). Of components on disk, a slab of c' features: L k c' (24 + e)
    and L (2 · max(8 MiB, c' e) + b k (6 e + 16)). Conditional means: L times the k × k matrices of `fill_in` and two masks.
    """
    k, d, itemsize = model.n_components, source.shape[1], model.score_dtype(source.dtype).itemsize
    stored = isinstance(model.components, StoredComponents)
    width = model.components.width if isinstance(model.components, StoredComponents) else d
    axes = k * width * ((24 if stored else 8) + itemsize)
    scores = 2 * max(SLAB_BYTES, width * itemsize) + rows * k * (6 * itemsize + (16 if stored else 0))
    needs = [
        *process_needs(resources),
        MemoryNeed("blocks", leaves * buffer_bytes(source, rows)),
        MemoryNeed("axes", leaves * axes),
        MemoryNeed("scores", leaves * scores),
    ]
    if model.conditional:
        means = scratch_bytes(k) + 2 * max(SLAB_BYTES, d) + (8 * rows * n_packed(k) if stored else 0)
        needs.append(MemoryNeed("conditional means", leaves * means))
    return needs


def diagnostics_bytes(n_features: int, n_components: object, missing: str) -> int:
    """Return what T² and Q take beside the scores in one leaf: 8 max(1 MiB, 8 d), and for rows with holes 80 max(2¹⁶, k²)."""
    holes = missing in ("mean", "pairwise")
    k = n_components if isinstance(n_components, int) else min(n_features, _MOST_COMPONENTS)
    return 8 * max(2**20, 8 * n_features) + (80 * max(2**16, k**2) if holes else 0)


def kernel_scores_needs(
    source: Source, model: KernelModel, rows: int, leaves: int, resources: Resources
) -> list[MemoryNeed]:
    """Return the needs of scores of kernel PCA.

    Axes: L (8 m d + 8 m (k + 2)) and what the kernel prepares; scores: L (8 p (m + 2 k) + 6 b k e) for a panel of p ≤ b rows, and
    the scratch of the kernel. Of landmarks on disk, a band of them instead of m d, with panels for its rows, and 16 bytes of
    each of its values while it is read.
    """
    k, d, m = model.n_components, source.shape[1], len(model.landmarks)
    stored = isinstance(model.landmarks, StoredRows)
    at_once = min(m, BAND_ROWS) if stored else m
    axes = model.kernel.prepared_bytes(at_once, d) + (24 if stored else 8) * at_once * d + 8 * m * (k + 2)
    values = min(rows, panel_rows(at_once, work_dtype(source.dtype))) * (at_once + 2 * k) * 8
    written = 6 * rows * k * model.score_dtype(source.dtype).itemsize
    return [
        *process_needs(resources),
        MemoryNeed("blocks", leaves * buffer_bytes(source, rows)),
        MemoryNeed("axes", leaves * axes),
        MemoryNeed("scores", leaves * (values + model.kernel.scratch_bytes(at_once, d) + written)),
    ]


def scores_by_features_needs(
    features: Source, model: PCAModel, columns: int, leaves: int, resources: Resources
) -> list[MemoryNeed]:
    """Return the needs of scores by features: of `features`, the source transposed.

    Axes: L k c' (24 + e); scores: 8 n v (5 L + 2) + 2 L · max(8 MiB, c' e) for v numbers of each sample (`values_per_sample`), and
    the k × k matrices of conditional means.
    """
    n, k, width = features.shape[1], len(model.components), slab_width(model, columns)
    itemsize = model.score_dtype(features.dtype).itemsize
    sums = (5 * leaves + 2) * 8 * n * values_per_sample(model)
    solve = scratch_bytes(model.n_components) if model.conditional else 0
    return [
        *process_needs(resources),
        MemoryNeed("blocks", leaves * buffer_bytes(features, columns)),
        MemoryNeed("axes", leaves * k * width * (24 + itemsize)),
        MemoryNeed("scores", sums + leaves * 2 * max(SLAB_BYTES, width * itemsize) + solve),
    ]


def values_per_sample(model: PCAModel) -> int:
    """Return how many numbers of each sample are summed over features: k scores, and k (k + 1) / 2 products for missing values."""
    return model.n_components + (n_packed(model.n_components) if model.conditional else 0)


def slab_width(model: PCAModel, columns: int) -> int:
    """Return how many features of the components are in memory at once, for blocks of `columns` features."""
    stored = model.components
    return stored.width if isinstance(stored, StoredComponents) else min(columns, slab_features(len(stored)))
