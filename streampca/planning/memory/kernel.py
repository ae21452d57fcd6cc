"""Memory of the methods of kernel PCA (``docs/reference/memory-formulas.md``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streampca.accumulators.centring import work_dtype
from streampca.accumulators.covariance import Covariance
from streampca.accumulators.kernel_features import feature_rows
from streampca.kernels import Kernel
from streampca.linalg.eigen import uses_krylov
from streampca.linalg.lanczos import basis_size
from streampca.models.kernel import panel_rows
from streampca.models.stored_rows import BAND_ROWS
from streampca.planning.budget import MemoryNeed, Phase, Resources
from streampca.planning.memory import buffer_bytes, process_needs, report_need, sampled_rows_need
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source

HELD_OUT_ROWS = 300
"""Rows on which the kernel matrix and its approximation are compared, for the certificate."""
PAIR_SIDE = BAND_ROWS
"""Rows on each side of a block of the kernel matrix that one thread computes at once."""
_AFTER: tuple[Phase, ...] = ("solving", "scores", "report")
_SCORES_ROWS = 8192


@dataclass(frozen=True)
class KernelWork:
    """A fit of kernel PCA, as its memory depends on it."""

    source: Source
    """The rows."""
    kernel: Kernel
    """The kernel, bound to the number of features."""
    m: int
    """Landmarks; all rows for the methods that compare all pairs."""
    k: int
    """Components."""
    inverse: bool
    """Whether the map from scores back to features is fitted."""


def landmark_needs(
    work: KernelWork, shape: WorkShape, resources: Resources, choosing: tuple[int, int], *, accumulates: bool
) -> list[MemoryNeed]:
    """Return the needs of a method that compares all rows with m landmarks.

    Landmarks: m d (8 + w), what the kernel prepares, and m² (16 + w); states: (1 + W) S for the covariance of kernel values,
    if the method `accumulates` one; choosing: states and scratch of `choosing` landmarks; solve: 8 m (6 m + 4 k), and
    8 m (2 m + d) for the inverse map; model: 8 m (2 k + d).
    """
    source, m, k, (n, d) = work.source, work.m, work.k, work.source.shape
    leaves, rows, itemsize = shape.leaves_in_flight, shape.rows_per_block, work_dtype(source.dtype).itemsize
    held_out = 2 * min(n, HELD_OUT_ROWS) * (8 * d + 24)
    landmarks = m * d * (8 + itemsize) + work.kernel.prepared_bytes(m, d) + m * m * (16 + itemsize) + held_out
    states = (Covariance().state_bytes(m) + held_out) * shape.n_states if accumulates else 0
    scratch = leaves * _features_scratch_bytes(work, shape) if accumulates else 0
    state, chosen = choosing
    buffers = buffer_bytes(source, rows)
    return [
        *process_needs(resources),
        MemoryNeed("landmarks", landmarks),
        MemoryNeed("choosing", shape.n_states * state + leaves * chosen, ("landmarks",)),
        MemoryNeed("states", states, ("reading", "solving")),
        MemoryNeed("blocks", leaves * buffers, ("landmarks", "reading")),
        MemoryNeed("scratch", scratch, ("reading",)),
        sampled_rows_need(source, resources),
        MemoryNeed("solve", 8 * m * (6 * m + 4 * k) + (8 * m * (2 * m + d) if work.inverse else 0), ("solving",)),
        MemoryNeed("model", 8 * m * (2 * k + d), _AFTER),
        MemoryNeed(
            "scores", leaves * (buffers + kernel_scores_bytes(work, rows)) if resources.scores else 0, ("scores",)
        ),
        report_need(resources),
    ]


def _features_scratch_bytes(work: KernelWork, shape: WorkShape) -> int:
    """Return the scratch of one leaf: p m + 1024 (m + d) values, 8 T t (t + 288), that of the kernel, and of rows held out."""
    (_, d), m, rows, dtype = work.source.shape, work.m, shape.rows_per_block, work_dtype(work.source.dtype)
    scratch = (min(rows, feature_rows(m, dtype)) * m + 1024 * (m + d)) * dtype.itemsize
    scratch += Covariance(n_threads=shape.threads_per_leaf).product_scratch_bytes(m) + work.kernel.scratch_bytes(m, d)
    return scratch + HELD_OUT_ROWS * (2 * d * 8 + 160) + 80 * min(rows, 2**15)


def kernel_scores_bytes(work: KernelWork, rows: int) -> int:
    """Return what the scores of a block take beside it, in one leaf.

    p (m + 2 k) w for a panel of p ≤ b rows, what the kernel takes, 8 m (d + k + 2) for the model, and 48 b k.
    """
    source, m, k, d = work.source, work.m, work.k, work.source.shape[1]
    dtype = work_dtype(source.dtype)
    values = min(rows, panel_rows(m, dtype)) * (m + 2 * k) * dtype.itemsize
    of_kernel = work.kernel.scratch_bytes(m, d) + work.kernel.prepared_bytes(m, d)
    return values + of_kernel + 8 * m * (d + k + 2) + 6 * 8 * rows * k


def exact_needs(work: KernelWork, rows: int, resources: Resources, *, fixed_count: bool) -> list[MemoryNeed]:
    """Return the needs of the exact method: w n² for the kernel matrix, 8 n (2 m + 512 + 2 k) for a basis of m vectors.

    With LAPACK, where no `fixed_count` of components is wanted or they are many, 8 n² and 8 n (3 n + 3 k).
    """
    (n, d), k, kernel = work.source.shape, work.k, work.kernel
    iterated = fixed_count and uses_krylov(n, k)
    itemsize = work_dtype(work.source.dtype).itemsize if iterated else 8
    solve = 8 * n * (2 * basis_size(n, k) + 8 * 64 + 2 * k) if iterated else 8 * n * (3 * n + 3 * k)
    block = 16 * PAIR_SIDE**2 + kernel.scratch_bytes(PAIR_SIDE, d) + kernel.prepared_bytes(PAIR_SIDE, d)
    return _pair_needs(work, rows, resources, (itemsize * n * n, resources.threads * block, solve))


def empirical_map_needs(work: KernelWork, rows: int, resources: Resources, columns: int) -> list[MemoryNeed]:
    """Return the needs of the empirical kernel map: all rows in float64, and 56 n q + 64 q² for sums with q columns."""
    (n, d), kernel = work.source.shape, work.kernel
    block = 8 * PAIR_SIDE * PAIR_SIDE + kernel.scratch_bytes(PAIR_SIDE, d) + 8 * PAIR_SIDE * columns
    matrix = 8 * n * d + kernel.prepared_bytes(n, d)
    return _pair_needs(
        work, rows, resources, (matrix, resources.threads * block, 8 * n * columns * 7 + 64 * columns * columns)
    )


def stored_map_needs(
    work: KernelWork, rows: int, resources: Resources, columns: int, rows_in_memory: int
) -> list[MemoryNeed]:
    """Return the needs of the empirical kernel map of rows on disk, of which p are in memory, in float64, at a time.

    Rows: 8 p d, and a band of 1,024 rows with what the kernel prepares and 24 bytes for each of its values; sums as
    `empirical_map_needs`; scores: as of a model whose landmarks are on disk.
    """
    (n, d), kernel = work.source.shape, work.kernel
    of_all = {need.purpose: need for need in empirical_map_needs(work, rows, resources, columns)}
    bands = 24 * BAND_ROWS * d + kernel.prepared_bytes(BAND_ROWS, d)
    held = {
        "landmarks": MemoryNeed("landmarks", 0),
        "kernel matrix": MemoryNeed("kernel matrix", 8 * min(n, rows_in_memory) * d + bands, ("solving",)),
        "blocks": replace(of_all["blocks"], n_bytes=of_all["blocks"].n_bytes + 16 * rows * d),
    }
    scores = kernel_scores_bytes(replace(work, m=min(n, BAND_ROWS)), min(n, _SCORES_ROWS)) + 8 * n * (work.k + 2)
    if resources.scores:
        held["scores"] = replace(of_all["scores"], n_bytes=scores + 24 * BAND_ROWS * d)
    return [held.get(purpose, need) for purpose, need in of_all.items()]


def _pair_needs(work: KernelWork, rows: int, resources: Resources, sizes: tuple[int, int, int]) -> list[MemoryNeed]:
    """Return the needs of a method that compares all pairs of rows, with `sizes` of kernel matrix, scratch and solving.

    Landmarks: n d w, and 8 n d more if the rows have another type; solve: 16 n² more for the inverse map.
    """
    source, (n, d), dtype = work.source, work.source.shape, work_dtype(work.source.dtype)
    matrix, scratch, solve = sizes
    scores = kernel_scores_bytes(work, min(n, _SCORES_ROWS)) if resources.scores else 0
    return [
        *process_needs(resources),
        MemoryNeed("landmarks", n * d * dtype.itemsize + (8 * n * d if source.dtype != dtype else 0)),
        MemoryNeed("kernel matrix", matrix, ("solving",)),
        MemoryNeed("blocks", rows * source.row_bytes * 2 + source.overhead_bytes(rows), ("reading",)),
        MemoryNeed("scratch", scratch, ("solving",)),
        sampled_rows_need(source, resources),
        MemoryNeed("solve", solve + (16 * n * n if work.inverse else 0), ("solving",)),
        MemoryNeed("model", 8 * n * (3 * work.k + 2), _AFTER),
        MemoryNeed("scores", scores, ("scores",)),
        report_need(resources),
    ]
