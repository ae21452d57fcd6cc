"""The plan of a fit of kernel PCA: what each method reads and needs, refused before reading where it does not fit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from typing_extensions import override

from streampca.accumulators.centring import work_dtype
from streampca.accumulators.covariance import Covariance
from streampca.accumulators.kernel_features import feature_rows
from streampca.formatting import as_text
from streampca.kernels import Kernel
from streampca.linalg.eigen import uses_krylov
from streampca.linalg.lanczos import basis_size
from streampca.models.kernel import panel_rows
from streampca.models.stored import BAND_ROWS
from streampca.planning.blocks import BLOCK_BYTES, block_rows_to_try
from streampca.planning.budget import MemoryNeed, Phase
from streampca.planning.detail import ALL_ROWS, KernelDetail
from streampca.planning.memory import buffer_bytes, reading_needs, report_need, sampled_rows_need
from streampca.planning.plan import Plan
from streampca.planning.shape import WorkShape, count_leaves, divide
from streampca.planning.work import Figures, Resources, Work
from streampca.sources.base import Source

if TYPE_CHECKING:
    from streampca.solvers.kernel.parameters import KernelParameters

HELD_OUT_ROWS = 300
"""Rows on which the kernel matrix and its approximation are compared, for the certificate."""
PAIR_SIDE = BAND_ROWS
"""Rows on each side of a block of the kernel matrix that one thread computes at once."""
_AFTER: tuple[Phase, ...] = ("solving", "scores", "report")
_SCORES_ROWS = 8192
_SMALL_STATE_BYTES = 4 * 2**20
_BLOCK_ROWS = 2**12, 2**16  # rows cost m kernel values each, so that few of them are enough work for a leaf


def settings_of(plan: Plan) -> KernelDetail:
    """Return the settings of the method of kernel PCA that `plan` is of."""
    if not isinstance(plan.detail, KernelDetail):
        raise TypeError(f"the solver {plan.solver} is not a method of kernel PCA")
    return plan.detail


@dataclass(frozen=True)
class KernelWork(Work):
    """A fit of kernel PCA by one method."""

    parameters: KernelParameters
    """Parameters of the fit."""

    @override
    @property
    def work_dtype(self) -> str:
        return str(work_dtype(self.source.dtype))

    @cached_property
    def kernel(self) -> Kernel:
        """Return the kernel for so many features."""
        return self.parameters.kernel.bound(self.source.shape[1])

    @override
    def edges(self, shape: WorkShape) -> tuple[int, ...] | None:
        return super().edges(shape) if shape.n_leaves > 1 else None

    @property
    @abstractmethod
    def m(self) -> int:
        """Return the number of landmarks; all rows for the methods that compare all pairs."""

    @property
    @abstractmethod
    def k(self) -> int:
        """Return the number of components."""

    def scores_bytes(self, rows: int, m: int) -> int:
        """Return what the scores of a block take beside it, in one leaf, with `m` landmarks in memory.

        p (m + 2 k) w for a panel of p ≤ b rows, what the kernel takes, 8 m (d + k + 2) for the model, and 48 b k.
        """
        k, d, dtype = self.k, self.source.shape[1], work_dtype(self.source.dtype)
        values = min(rows, panel_rows(m, dtype)) * (m + 2 * k) * dtype.itemsize
        of_kernel = self.kernel.scratch_bytes(m, d) + self.kernel.prepared_bytes(m, d)
        return values + of_kernel + 8 * m * (d + k + 2) + 6 * 8 * rows * k


@dataclass(frozen=True)
class LandmarkCost:
    """What choosing landmarks takes."""

    sampling: str
    """How they are chosen."""
    passes: int
    """Passes over the whole source."""
    bytes: Callable[[int], tuple[int, int]]
    """From rows of a block to bytes of a state and of the scratch of a leaf."""


@dataclass(frozen=True)
class LandmarkWork(KernelWork):
    """A fit that compares all rows with landmarks, by `nystrom`."""

    choosing: LandmarkCost
    """What choosing landmarks takes."""

    name = "nystrom"
    accumulates = True
    """Whether the covariance of kernel values is accumulated."""

    @override
    @cached_property
    def m(self) -> int:
        return self.parameters.n_wanted(self.source.shape[0])

    @override
    @property
    def k(self) -> int:
        return self.n_components or self.m

    @property
    def reason(self) -> str:
        """Return what the method does."""
        return f"all rows by {self.m:,} landmarks; the {self.m:,} x {self.m:,} covariance of their kernel values is accumulated"

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, m, state = self.source.shape[0], self.m, Covariance().state_bytes(self.m)
        row_bytes = self.source.row_bytes + m * work_dtype(self.source.dtype).itemsize
        return divide(
            n,
            rows,
            count_leaves(n * max(1, m // 128), -(-n // rows), row_bytes, state),
            (leaves, threads_per_leaf, self.resources.threads),
            state_bytes=state,
            small_state_bytes=_SMALL_STATE_BYTES,
            tile=Covariance().grid(m).longest_side,
        )

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what a fit takes.

        Landmarks: m d (8 + w), what the kernel prepares, and m² (16 + w); states: (1 + W) S for the covariance of kernel values, if the
        method accumulates one; choosing: states and scratch of the landmarks that are being chosen; solve: 8 m (6 m + 4 k), and
        8 m (2 m + d) for the inverse map; model: 8 m (2 k + d).
        """
        source, m, k, (n, d) = self.source, self.m, self.k, self.source.shape
        leaves, rows, itemsize = shape.leaves_in_flight, shape.rows_per_block, work_dtype(source.dtype).itemsize
        held_out = 2 * min(n, HELD_OUT_ROWS) * (8 * d + 24)
        landmarks = m * d * (8 + itemsize) + self.kernel.prepared_bytes(m, d) + m * m * (16 + itemsize) + held_out
        sizes = (Covariance().state_bytes(m) + held_out, self.scratch_bytes(shape)) if self.accumulates else (0, 0)
        states, blocks, scratch = reading_needs(source, shape, sizes, kept=("reading", "solving"))
        state, chosen = self.choosing.bytes(rows)
        inverse = 8 * m * (2 * m + d) if self.parameters.inverse else 0
        scores = leaves * (buffer_bytes(source, rows) + self.scores_bytes(rows, m)) if self.resources.scores else 0
        return [
            MemoryNeed("landmarks", landmarks),
            MemoryNeed("choosing", shape.n_states * state + leaves * chosen, ("landmarks",)),
            states,
            replace(blocks, phases=("landmarks", "reading")),
            scratch,
            sampled_rows_need(source, self.resources.report_rows),
            MemoryNeed("solve", 8 * m * (6 * m + 4 * k) + inverse, ("solving",)),
            MemoryNeed("model", 8 * m * (2 * k + d), _AFTER),
            MemoryNeed("scores", scores, ("scores",)),
            report_need(report=self.resources.report),
        ]

    def scratch_bytes(self, shape: WorkShape) -> int:
        """Return the scratch of one leaf: p m + 1024 (m + d) values, 8 T t (t + 288), that of the kernel, and of rows held out."""
        d, m, rows, dtype = self.source.shape[1], self.m, shape.rows_per_block, work_dtype(self.source.dtype)
        scratch = (min(rows, feature_rows(m, dtype)) * m + 1024 * (m + d)) * dtype.itemsize
        scratch += Covariance(n_threads=shape.threads_per_leaf).product_scratch_bytes(m)
        scratch += self.kernel.scratch_bytes(m, d)
        return scratch + HELD_OUT_ROWS * (2 * d * 8 + 160) + 80 * min(rows, 2**15)

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        (n, d), m = self.source.shape, self.m
        values = float(n) * m * (self.kernel.needs(d).flops + m)
        return Figures(
            reason=self.reason,
            flops=self.accumulates * values + 10.0 * float(m) ** 3,
            passes=self.choosing.passes + self.accumulates,
            detail=KernelDetail(m, self.choosing.sampling),
        )


class ExtensionWork(LandmarkWork):
    """A fit by the kernel matrix of the landmarks alone, extended to all rows."""

    name = "nystrom_extension"
    accumulates = False

    @override
    @property
    def reason(self) -> str:
        return f"the kernel matrix of {self.m:,} landmarks alone, extended to all rows"


def feature_plan(
    source: Source, parameters: KernelParameters, resources: Resources, solver: str, choosing: LandmarkCost
) -> Plan:
    """Return the plan of a method that compares all rows with landmarks.

    Raises
    ------
    PlanError
        If it does not fit.
    """
    (n, d), m, dtype = source.shape, parameters.n_wanted(source.shape[0]), work_dtype(source.dtype)
    parameters.require_at_most(m, "landmarks")
    kind = LandmarkWork if solver == "nystrom" else ExtensionWork
    work = kind(source, parameters.count(m), resources, parameters, choosing)
    most_rows = min(max(n // 16, _BLOCK_ROWS[0]), _BLOCK_ROWS[1])
    most = most_rows * d * max(source.dtype.itemsize, dtype.itemsize)
    plan = work.best(block_rows_to_try(source, dtype, min(BLOCK_BYTES, most)), max(m, 1), Covariance().grid(m).n_tiles)
    if plan.budget.fits:
        return plan
    fewer = "fewer landmarks (n_landmarks), or "
    raise plan.budget.refusal(
        {
            "choosing": "fewer landmarks (n_landmarks), sampling='uniform', or ",
            "states": fewer,
            "blocks": "chunks of fewer rows, or ",
            "scratch": fewer,
            "solve": fewer,
            "landmarks": fewer,
        },
        subject=f"{m:,} landmarks and {work.k:,} components: ",
    )


@dataclass(frozen=True)
class PairsWork(KernelWork):
    """A fit that holds all rows and compares every one with every other."""

    columns: int = 0
    """Columns of the transform of the empirical kernel map."""

    @override
    @property
    def m(self) -> int:
        return self.source.shape[0]

    @override
    @property
    def k(self) -> int:
        return self.parameters.count(self.m) or min(self.m, 64)

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        at_once = 1, self.resources.threads, self.resources.threads
        merge = "pairs of blocks of rows are added in a fixed order"
        return divide(self.m, rows, 1, at_once, tile=PAIR_SIDE, merge=merge)

    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Return the bytes of the kernel matrix, of scratch and of solving."""

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what a fit takes.

        Landmarks: n d w, and 8 n d more if the rows have another type; solve: 16 n² more for the inverse map.
        """
        source, (n, d), dtype = self.source, self.source.shape, work_dtype(self.source.dtype)
        matrix, scratch, solve = self.sizes()
        rows, resources = shape.rows_per_block, self.resources
        scores = self.scores_bytes(min(n, _SCORES_ROWS), n) if resources.scores else 0
        return [
            MemoryNeed("landmarks", n * d * dtype.itemsize + (8 * n * d if source.dtype != dtype else 0)),
            MemoryNeed("kernel matrix", matrix, ("solving",)),
            MemoryNeed("blocks", rows * source.row_bytes * 2 + source.overhead_bytes(rows), ("reading",)),
            MemoryNeed("scratch", scratch, ("solving",)),
            sampled_rows_need(source, resources.report_rows),
            MemoryNeed("solve", solve + (16 * n * n if self.parameters.inverse else 0), ("solving",)),
            MemoryNeed("model", 8 * n * (3 * self.k + 2), _AFTER),
            MemoryNeed("scores", scores, ("scores",)),
            report_need(report=resources.report),
        ]


class ExactWork(PairsWork):
    """A fit by the n × n kernel matrix."""

    name = "exact"

    @override
    def sizes(self) -> tuple[int, int, int]:
        """Return w n² for the kernel matrix, scratch, and 8 n (2 m + 512 + 2 k) for a basis of m vectors.

        With LAPACK, where no fixed number of components is wanted or they are many, 8 n² and 8 n (3 n + 3 k).
        """
        (n, d), k, kernel = self.source.shape, self.k, self.kernel
        iterated = self.n_components is not None and uses_krylov(n, k)
        itemsize = work_dtype(self.source.dtype).itemsize if iterated else 8
        solve = 8 * n * (2 * basis_size(n, k) + 8 * 64 + 2 * k) if iterated else 8 * n * (3 * n + 3 * k)
        block = 16 * PAIR_SIDE**2 + kernel.scratch_bytes(PAIR_SIDE, d) + kernel.prepared_bytes(PAIR_SIDE, d)
        return itemsize * n * n, self.resources.threads * block, solve

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        n, k = self.m, self.k
        once = 0.5 * float(n) * n * self.kernel.needs(self.source.shape[1]).flops  # a kernel matrix is symmetric
        solve = 2.0 * float(n) * n * max(200, 6 * k) if uses_krylov(n, k) else 9.0 * float(n) ** 3
        reason = f"exact; the {n:,} x {n:,} kernel matrix takes {as_text(self.sizes()[0])}"
        return Figures(reason, once + solve, detail=KernelDetail(n, ALL_ROWS))


class MapWork(PairsWork):
    """A fit by the empirical kernel map, whose kernel values are computed block by block."""

    name = "empirical_map"

    @override
    def sizes(self) -> tuple[int, int, int]:
        """Return 8 n d for all rows in float64 with what the kernel prepares, scratch, and 56 n q + 64 q² for sums with q columns."""
        (n, d), kernel, columns = self.source.shape, self.kernel, self.columns
        block = 8 * PAIR_SIDE * PAIR_SIDE + kernel.scratch_bytes(PAIR_SIDE, d) + 8 * PAIR_SIDE * columns
        sums = 8 * n * columns * 7 + 64 * columns * columns
        return 8 * n * d + kernel.prepared_bytes(n, d), self.resources.threads * block, sums

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        n, columns = self.m, self.columns
        values = float(n) * n * self.kernel.needs(self.source.shape[1]).flops
        return Figures(
            f"the empirical kernel map of {n:,} rows through a transform to {columns:,} columns, n² kernel values twice",
            2 * (values + 2.0 * float(n) * n * columns) + 40.0 * n * float(columns) ** 2,
            detail=KernelDetail(n, ALL_ROWS, columns),
        )


@dataclass(frozen=True)
class StoredMapWork(MapWork):
    """The empirical kernel map with its rows on disk, of which some are in memory, in float64, at a time."""

    parts: int = 1
    """Into how many parts the rows are divided, of which one is in memory."""

    @property
    def held(self) -> int:
        """Return the rows in memory at a time: whole bands of them."""
        n_bands = -(-self.m // PAIR_SIDE)
        return -(-n_bands // self.parts) * PAIR_SIDE

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what a fit takes.

        Rows: 8 p d of p rows in memory, and a band of 1,024 rows with what the kernel prepares and 24 bytes for each of its values; sums as in
        memory; scores: as of a model whose landmarks are on disk.
        """
        (n, d), rows = self.source.shape, shape.rows_per_block
        bands = 24 * BAND_ROWS * d + self.kernel.prepared_bytes(BAND_ROWS, d)
        scores = self.scores_bytes(min(n, _SCORES_ROWS), min(n, BAND_ROWS)) + 8 * n * (self.k + 2)
        of_all = {need.purpose: need for need in super().needs(shape)}
        sizes = {
            "landmarks": 0,
            "kernel matrix": 8 * min(n, self.held) * d + bands,
            "blocks": of_all["blocks"].n_bytes + 16 * rows * d,
            "scores": scores + 24 * BAND_ROWS * d if self.resources.scores else 0,
        }
        return [replace(need, n_bytes=sizes.get(purpose, need.n_bytes)) for purpose, need in of_all.items()]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        (n, d), held = self.source.shape, min(self.m, self.held)
        size, readings = n * d * work_dtype(self.source.dtype).itemsize, 2 * (self.parts + 1) + 1
        in_memory = super().figures(shape, reading)
        return replace(
            in_memory,
            reason=in_memory.reason.replace(f"{n:,} rows", f"{n:,} rows on disk"),
            disk_bytes=size,
            detail=KernelDetail(n, ALL_ROWS, self.columns, True, held, readings),
            notes=[
                f"rows: copied to a temporary directory, {as_text(size)}, because they do not fit in memory, and read {readings} times "
                f"there, {held:,} rows in memory at a time; more memory makes the readings fewer. The model refers to this "
                "copy, and a saved model has its own"
            ],
        )

    def best_plan(self) -> Plan:
        """Return the plan with as many rows in memory as fit; with the least memory, 1,024 rows at a time, if nothing fits."""
        sizes, n_bands = block_rows_to_try(self.source, work_dtype(self.source.dtype)), -(-self.m // PAIR_SIDE)

        def built(parts: int, rows: int) -> Plan:
            work = replace(self, parts=parts)
            return work.plan_for(work.shape(rows, 1, 1))

        rows = next((rows for rows in sizes if built(n_bands, rows).budget.fits), sizes[-1])
        plans = (built(parts, rows) for parts in range(1, n_bands + 1))
        return next((plan for plan in plans if plan.budget.fits), built(n_bands, sizes[-1]))


def pairs_plan(
    source: Source,
    parameters: KernelParameters,
    resources: Resources,
    *,
    solver: str,
    columns: int = 0,
) -> Plan:
    """Return the plan of a method that compares every row with every other: ``"exact"`` or ``"empirical_map"``.

    Both hold all rows, which are part of the model. "exact" holds the n × n kernel matrix as well; "empirical_map" computes
    its values block by block and holds n × `columns` sums. Rows that do not fit in memory are copied to disk for "empirical_map",
    unless the map back to the rows is wanted, which takes n² numbers.

    Raises
    ------
    PlanError
        If it does not fit: with what is projected, what is allowed, and what to change.
    """
    n, exact = source.shape[0], solver == "exact"
    parameters.require_at_most(n if exact else columns, "rows" if exact else "columns of the transform")
    rows = block_rows_to_try(source, work_dtype(source.dtype))[0]
    given = source, parameters.count(n if exact else columns), resources, parameters, columns
    work = (ExactWork if exact else MapWork)(*given)
    plan = work.plan_for(work.shape(rows, 1, 1))
    if not plan.budget.fits and not exact and not parameters.inverse:
        plan = min(plan, StoredMapWork(*given).best_plan(), key=lambda plan: plan.projected_bytes)
    if plan.budget.fits:
        return plan
    held = as_text(plan.budget.bytes_for("landmarks", "solve"))
    matrix = f"the {n:,} x {n:,} kernel matrix takes {as_text(plan.budget.bytes_for('kernel matrix'))}: "
    by_map = not exact and parameters.inverse
    advice = "fit_inverse_transform=False, so that rows can be on disk, or " if by_map else ""
    raise plan.budget.refusal(advice, subject=matrix if exact else f"{n:,} rows and {columns:,} columns take {held}: ")


def columns_of(parameters: KernelParameters, n: int) -> int:
    """Return the columns of the transform of the empirical kernel map: four for each component, and 64 more at least."""
    if parameters.sketch_size != "auto":
        return min(n, int(parameters.sketch_size))
    k = parameters.count(n)
    return min(n, 256 if k is None or k == n else max(4 * k, k + 64))
