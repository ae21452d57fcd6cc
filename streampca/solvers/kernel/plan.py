"""The plan of a fit of kernel PCA: what each method reads and needs, refused before reading where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from streampca.accumulators.centring import work_dtype
from streampca.accumulators.covariance import Covariance
from streampca.formatting import as_text
from streampca.linalg.eigen import uses_krylov
from streampca.planning.blocks import BLOCK_BYTES, block_rows_to_try, bytes_to_read
from streampca.planning.budget import MemoryBudget
from streampca.planning.detail import KernelDetail
from streampca.planning.memory.kernel import (
    PAIR_SIDE,
    KernelWork,
    empirical_map_needs,
    exact_needs,
    landmark_needs,
    stored_map_needs,
)
from streampca.planning.plan import Cost, DataShape, Plan, Resources
from streampca.planning.search import choose
from streampca.planning.shape import WorkShape, count_leaves
from streampca.sources.base import Source

if TYPE_CHECKING:
    from streampca.solvers.kernel.parameters import KernelParameters

_SMALL_STATE_BYTES = 4 * 2**20
_BLOCK_ROWS = 2**12, 2**16  # rows cost m kernel values each, so that few of them are enough work for a leaf


@dataclass(frozen=True, repr=False)
class KernelPlan(Plan):
    """The plan of kernel PCA."""

    detail: KernelDetail = field(default_factory=KernelDetail)
    """Settings of the method."""

    @property
    def n_landmarks(self) -> int:
        """Return the number of landmarks that every row is compared with."""
        return self.detail.n_landmarks

    @property
    def sampling(self) -> str:
        """Return how landmarks are chosen."""
        return self.detail.sampling

    @property
    def columns(self) -> int:
        """Return the columns of the transform of the empirical kernel map."""
        return self.detail.columns

    @property
    def rows_on_disk(self) -> bool:
        """Tell whether the rows of the empirical kernel map are copied to disk because they do not fit in memory."""
        return self.detail.rows_on_disk

    @property
    def rows_in_memory(self) -> int:
        """Return how many rows on disk are in memory at a time."""
        return self.detail.rows_in_memory


@dataclass(frozen=True)
class LandmarkCost:
    """What choosing landmarks takes."""

    sampling: str
    """How they are chosen."""
    passes: int
    """Passes over the whole source."""
    bytes: Callable[[int], tuple[int, int]]
    """From rows of a block to bytes of a state and of the scratch of a leaf."""


def feature_plan(
    source: Source, parameters: KernelParameters, resources: Resources, solver: str, choosing: LandmarkCost
) -> KernelPlan:
    """Return the plan of a method that compares all rows with landmarks.

    Raises
    ------
    PlanError
        If it does not fit.
    """
    (n, d), m = source.shape, parameters.n_wanted(source.shape[0])
    parameters.require_at_most(m, "landmarks")
    dtype, grid, accumulates = work_dtype(source.dtype), Covariance().grid(m), solver == "nystrom"
    passes = choosing.passes + accumulates
    k = parameters.count(m)
    work = KernelWork(source, parameters.kernel.bound(d), m, k or m, parameters.inverse)
    values = float(n) * m * (parameters.kernel.needs(d).flops + m)

    def build(rows: int, leaves: int, threads_per_leaf: int) -> KernelPlan:
        shape = _landmark_shape(source, m, rows, (leaves, threads_per_leaf, resources.threads))
        needs = landmark_needs(work, shape, resources, choosing.bytes(rows), accumulates=accumulates)
        return KernelPlan(
            solver=solver,
            reason=_reason(solver, m),
            data=DataShape.of(source),
            work_dtype=str(dtype),
            n_components=k,
            shape=shape,
            budget=MemoryBudget.of(needs, resources.allowed_bytes),
            cost=Cost(passes, passes * bytes_to_read(source, rows), accumulates * values + 10.0 * float(m) ** 3),
            detail=KernelDetail(m, choosing.sampling),
        )

    most_rows = min(max(n // 16, _BLOCK_ROWS[0]), _BLOCK_ROWS[1])
    most = most_rows * d * max(source.dtype.itemsize, dtype.itemsize)
    sizes = block_rows_to_try(source, dtype, min(BLOCK_BYTES, most))
    plan = choose(sizes, build, max(m, 1), resources.threads, grid.n_tiles)
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


def _landmark_shape(source: Source, m: int, rows: int, at_once: tuple[int, int, int]) -> WorkShape:
    """Return the shape of a pass that compares all rows with m landmarks."""
    n, state = source.shape[0], Covariance().state_bytes(m)
    row_bytes = source.row_bytes + m * work_dtype(source.dtype).itemsize
    return WorkShape.divide(
        n,
        rows,
        count_leaves(n * max(1, m // 128), -(-n // rows), row_bytes, state),
        at_once,
        state_bytes=state,
        small_state_bytes=_SMALL_STATE_BYTES,
        tile=Covariance().grid(m).longest_side,
    )


def _reason(solver: str, m: int) -> str:
    if solver == "nystrom":
        return f"all rows by {m:,} landmarks; the {m:,} x {m:,} covariance of their kernel values is accumulated"
    return f"the kernel matrix of {m:,} landmarks alone, extended to all rows"


def pairs_plan(
    source: Source,
    parameters: KernelParameters,
    resources: Resources,
    *,
    solver: str,
    columns: int = 0,
) -> KernelPlan:
    """Return the plan of a method that compares every row with every other: ``"exact"`` or ``"empirical_map"``.

    Both hold all rows, which are part of the model. "exact" holds the n × n kernel matrix as well; "empirical_map" computes
    its values block by block and holds n × `columns` sums. Rows that do not fit in memory are copied to disk for "empirical_map"
    (`stored_map_plan`).

    Raises
    ------
    PlanError
        If it does not fit: with what is projected, what is allowed, and what to change.
    """
    n, d = source.shape
    exact, dtype = solver == "exact", work_dtype(source.dtype)
    parameters.require_at_most(n if exact else columns, "rows" if exact else "columns of the transform")
    k = parameters.count(n) or min(n, 64)
    rows, threads = block_rows_to_try(source, dtype)[0], resources.threads
    work = KernelWork(source, parameters.kernel.bound(d), n, k, parameters.inverse)
    if exact:
        needs = exact_needs(work, rows, resources, fixed_count=parameters.count(n) is not None)
    else:
        needs = empirical_map_needs(work, rows, resources, columns)
    budget = MemoryBudget.of(needs, resources.allowed_bytes)
    if not budget.fits and not exact and not parameters.inverse:
        stored = stored_map_plan(source, parameters, resources, solver=solver, columns=columns)
        if stored.budget.fits:
            return stored
        budget = min(budget, stored.budget, key=lambda budget: budget.projected_bytes)
    if not budget.fits:
        held = as_text(budget.bytes_for("landmarks", "solve"))
        matrix = f"the {n:,} x {n:,} kernel matrix takes {as_text(budget.bytes_for('kernel matrix'))}: "
        advice = (
            "fit_inverse_transform=False, so that rows can be on disk, or " if not exact and parameters.inverse else ""
        )
        raise budget.refusal(advice, subject=matrix if exact else f"{n:,} rows and {columns:,} columns take {held}: ")
    merge = "pairs of blocks of rows are added in a fixed order"
    flops = _pairs_flops(n, parameters.kernel.needs(d).flops, k, exact, columns)
    return KernelPlan(
        solver=solver,
        reason=f"exact; the {n:,} x {n:,} kernel matrix takes {as_text(budget.bytes_for('kernel matrix'))}"
        if exact
        else f"the empirical kernel map of {n:,} rows through a transform to {columns:,} columns, n² kernel values twice",
        data=DataShape.of(source),
        work_dtype=str(dtype),
        n_components=parameters.count(n if exact else columns),
        shape=WorkShape.divide(n, rows, 1, (1, threads, threads), tile=PAIR_SIDE, merge=merge),
        budget=budget,
        cost=Cost(1, bytes_to_read(source, rows), flops),
        detail=KernelDetail(n, "all rows", columns),
    )


def stored_map_plan(
    source: Source, parameters: KernelParameters, resources: Resources, *, solver: str, columns: int
) -> KernelPlan:
    """Return the plan of the empirical kernel map with its rows on disk, as many of them in memory at a time as fit.

    With the least memory, 1,024 rows at a time, if nothing fits. The map back to the rows, which takes n² numbers, is not
    available.
    """
    n, d = source.shape
    dtype, threads = work_dtype(source.dtype), resources.threads
    k = parameters.count(n) or min(n, 64)
    work = KernelWork(source, parameters.kernel.bound(d), n, k, parameters.inverse)
    n_bands = -(-n // PAIR_SIDE)

    def built(parts: int, rows: int) -> KernelPlan:
        held = -(-n_bands // parts) * PAIR_SIDE
        needs = stored_map_needs(work, rows, resources, columns, held)
        size, readings = n * d * dtype.itemsize, 2 * (parts + 1) + 1
        shape = WorkShape.divide(
            n,
            rows,
            1,
            (1, threads, threads),
            tile=PAIR_SIDE,
            merge="pairs of blocks of rows are added in a fixed order",
        )
        return KernelPlan(
            solver=solver,
            reason=f"the empirical kernel map of {n:,} rows on disk through a transform to {columns:,} columns, n² kernel values twice",
            data=DataShape.of(source),
            work_dtype=str(dtype),
            n_components=parameters.count(columns),
            shape=shape,
            budget=MemoryBudget.of(needs, resources.allowed_bytes),
            cost=Cost(
                1,
                bytes_to_read(source, rows),
                _pairs_flops(n, parameters.kernel.needs(d).flops, k, False, columns),
                disk_bytes=size,
            ),
            detail=KernelDetail(n, "all rows", columns, True, min(n, held), readings),
            notes=(
                f"rows: copied to a temporary directory, {as_text(size)}, because they do not fit in memory, and read {readings} times "
                f"there, {min(n, held):,} rows in memory at a time; more memory makes the readings fewer. The model refers to this "
                "copy, and a saved model has its own",
            ),
        )

    sizes = block_rows_to_try(source, dtype)
    smallest = built(n_bands, sizes[-1])
    rows = next((rows for rows in sizes if built(n_bands, rows).budget.fits), sizes[-1])
    plans = (built(parts, rows) for parts in range(1, n_bands + 1))
    return next((plan for plan in plans if plan.budget.fits), smallest)


def _pairs_flops(n: int, per_value: float, k: int, exact: bool, columns: int) -> float:
    once = 0.5 * float(n) * n * per_value  # a kernel matrix is symmetric
    if not exact:
        return 2 * (2 * once + 2.0 * float(n) * n * columns) + 40.0 * n * float(columns) ** 2
    if uses_krylov(n, k):
        return once + 2.0 * float(n) * n * max(200, 6 * k)
    return once + 9.0 * float(n) ** 3


def with_seconds(plan: KernelPlan) -> KernelPlan:
    """Return `plan` with the seconds it is expected to take at the rates of a middling processor and disk."""
    rate = (60e9 if plan.work_dtype == "float32" else 30e9) * plan.threads
    seconds = 0.05 + plan.flops / rate + (plan.bytes_to_read + plan.detail.disk_readings * plan.disk_bytes) / 1e9
    return replace(plan, cost=replace(plan.cost, expected_seconds=seconds, expected_by="nominal rates"))


def columns_of(parameters: KernelParameters, n: int) -> int:
    """Return the columns of the transform of the empirical kernel map: four for each component, and 64 more at least."""
    if parameters.sketch_size != "auto":
        return min(n, int(parameters.sketch_size))
    k = parameters.count(n)
    return min(n, 256 if k is None or k == n else max(4 * k, k + 64))
