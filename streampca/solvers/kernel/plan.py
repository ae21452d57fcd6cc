"""The plan of a fit of kernel PCA: what each method reads and holds, refused before reading where it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from streampca.accumulators.centring import work_dtype
from streampca.accumulators.covariance import Covariance
from streampca.accumulators.kernel_features import feature_rows
from streampca.errors import PlanError
from streampca.formatting import as_text
from streampca.linalg.eigen import uses_krylov
from streampca.linalg.lanczos import basis_size
from streampca.models.kernel import panel_rows as value_rows
from streampca.planning.leaves import count_leaves, leaves_per_branch, states_at_once
from streampca.planning.memory import ALLOWANCE_BYTES, REPORT_BYTES
from streampca.planning.plan import BLOCK_BYTES, Plan, Resources, block_rows_to_try, bytes_to_read, choose
from streampca.sources.base import Source

if TYPE_CHECKING:
    from streampca.solvers.kernel.parameters import KernelParameters

HELD_OUT = 300
"""Rows on which the kernel matrix and its approximation are compared, for the certificate."""
_SMALL_STATE_BYTES = 4 * 2**20
_BLOCK_ROWS = 2**12, 2**16  # rows cost m kernel values each, so that few of them are enough work for a leaf


@dataclass(frozen=True)
class KernelPlan(Plan):
    """The shape of the work of kernel PCA."""

    n_landmarks: int = 0
    """Rows that every row is compared with."""
    sampling: str = ""
    """How they are chosen."""
    columns: int = 0
    """Columns of the transform of the empirical kernel map."""

    def __str__(self) -> str:
        head, _, tail = super().__str__().partition("\n")
        said = f"landmarks    {self.n_landmarks:,}, {self.sampling}"
        if self.columns:
            said = f"transform    {self.columns:,} columns"
        return f"{head}\n{said}\n{tail}"


def feature_plan(
    source: Source,
    parameters: KernelParameters,
    resources: Resources,
    *,
    solver: str,
    sampling: str,
    landmark_passes: int,
    landmark_bytes: Callable[[int], tuple[int, int]],
) -> KernelPlan:
    """Return the plan of a method that compares all rows with landmarks: ``"nystrom"`` or ``"nystrom_extension"``.

    `landmark_passes` readings choose the landmarks, in states and scratch of `landmark_bytes` (of rows in a block).

    Raises
    ------
    PlanError
        If it does not fit.
    """
    n, d = source.shape
    parameters.require_at_most(parameters.n_wanted(n), "landmarks")
    m, k = parameters.n_wanted(n), parameters.count(parameters.n_wanted(n)) or parameters.n_wanted(n)
    dtype, features = work_dtype(source.dtype), solver == "nystrom"
    grid = Covariance().grid(m)
    passes = landmark_passes + features

    def build(rows: int, leaves: int, threads_per_leaf: int) -> Plan:
        n_blocks = -(-n // rows)
        state = Covariance().state_bytes(m)
        n_leaves = count_leaves(n * max(1, m // 128), n_blocks, source.row_bytes + m * dtype.itemsize, state)
        window = leaves * (2 if leaves > 1 and state <= _SMALL_STATE_BYTES else 1)
        per_branch = leaves_per_branch(n_leaves, state)
        n_states = states_at_once(window, n_leaves, per_branch)
        memory = _feature_memory(
            source, parameters, (rows, leaves, n_states, threads_per_leaf), resources, landmark_bytes(rows)
        )
        if not features:
            memory |= {"states": 0, "scratch": 0}
        return KernelPlan(
            solver=solver,
            reason=_reason(solver, m),
            n_samples=n,
            n_features=d,
            dtype=str(source.dtype),
            work_dtype=str(dtype),
            n_components=parameters.count(m),
            passes=passes,
            rows_per_block=rows,
            n_blocks=n_blocks,
            n_leaves=n_leaves,
            leaves_in_flight=leaves,
            window=window,
            threads=resources.threads,
            threads_per_leaf=threads_per_leaf,
            leaves_per_branch=per_branch,
            tile=grid.longest_side,
            bytes_to_read=passes * bytes_to_read(source, rows),
            flops=features * (float(n) * m * (parameters.kernel.needs(d).flops + m)) + 10.0 * float(m) ** 3,
            projected_bytes=peak_of(memory),
            allowed_bytes=resources.allowed_bytes,
            memory=memory,
            n_landmarks=m,
            sampling=sampling,
        )

    most_rows = min(max(n // 16, _BLOCK_ROWS[0]), _BLOCK_ROWS[1])
    most = most_rows * source.shape[1] * max(source.dtype.itemsize, dtype.itemsize)
    sizes = block_rows_to_try(source, dtype, min(BLOCK_BYTES, most))
    chosen, fits = choose(sizes, build, max(m, 1), resources.threads, grid.n_tiles)
    plan = cast(KernelPlan, chosen)
    if not fits:
        raise PlanError(_refusal(plan, k))
    return plan


def _reason(solver: str, m: int) -> str:
    if solver == "nystrom":
        return f"all rows by {m:,} landmarks; the {m:,} x {m:,} covariance of their kernel values is accumulated"
    return f"the kernel matrix of {m:,} landmarks alone, extended to all rows"


def _feature_memory(
    source: Source,
    parameters: KernelParameters,
    work: tuple[int, int, int, int],
    resources: Resources,
    landmark_bytes: tuple[int, int],
) -> dict[str, int]:
    (n, d), (rows, leaves, n_states, threads_per_leaf) = source.shape, work
    m, dtype = parameters.n_wanted(n), work_dtype(source.dtype)
    k = parameters.count(m) or m
    covariance = Covariance(n_threads=threads_per_leaf)
    kernel = parameters.kernel.bound(d)
    scratch = (min(rows, feature_rows(m, dtype)) * m + 1024 * (m + d)) * dtype.itemsize
    scratch += threads_per_leaf * 8 * covariance.grid(m).longest_side ** 2 + kernel.scratch_bytes(m, d)
    scratch += HELD_OUT * (2 * d * 8 + 160) + 80 * min(rows, 2**15)
    buffers = (2 * rows * source.row_bytes if source.buffered else 0) + source.overhead_bytes(rows)
    held = 2 * min(n, HELD_OUT) * (8 * d + 24)
    state, chosen = landmark_bytes
    return {
        "process": resources.process_bytes + ALLOWANCE_BYTES,
        "landmarks": m * d * (8 + dtype.itemsize) + kernel.prepared_bytes(m, d) + m * m * (16 + dtype.itemsize) + held,
        "choosing": n_states * state + leaves * chosen,
        "states": (covariance.state_bytes(m) + held) * n_states,
        "blocks": leaves * buffers,
        "scratch": leaves * scratch,
        "rows kept": 3 * resources.kept_rows * source.row_bytes,
        "solve": 8 * m * (6 * m + 4 * k) + (8 * m * (2 * m + d) if parameters.inverse else 0),
        "model": 8 * m * (2 * k + d),
        "scores": leaves * (buffers + scores_bytes(parameters, m, k, rows, source)) if resources.scores else 0,
        "report": REPORT_BYTES if resources.report else 0,
    }


def scores_bytes(parameters: KernelParameters, m: int, k: int, rows: int, source: Source) -> int:
    """Return what writing the scores of blocks of `rows` rows takes beside the blocks, in one leaf."""
    d, dtype = source.shape[1], work_dtype(source.dtype)
    values = min(rows, value_rows(m, dtype)) * (m + 2 * k) * dtype.itemsize
    kernel = parameters.kernel.bound(d)
    return values + kernel.scratch_bytes(m, d) + kernel.prepared_bytes(m, d) + 8 * m * (d + k + 2) + 6 * 8 * rows * k


def peak_of(memory: dict[str, int]) -> int:
    """Return the largest sum of what stands at the same time: choosing, streaming, solving, writing scores, drawing."""
    always = memory["process"] + memory["rows kept"] + memory["landmarks"]
    return always + max(
        memory["choosing"] + memory["blocks"],
        memory["states"] + memory["blocks"] + memory["scratch"],
        memory["states"] + memory["solve"] + memory["model"],
        memory["model"] + max(memory["scores"], memory["report"]),
    )


def _refusal(plan: KernelPlan, k: int) -> str:
    largest = max(("choosing", "states", "blocks", "scratch", "solve", "landmarks"), key=lambda name: plan.memory[name])
    advice = {
        "choosing": "fewer landmarks (n_landmarks), sampling='uniform', or",
        "blocks": "chunks of fewer rows, or",
        "landmarks": "fewer landmarks (n_landmarks), or",
    }.get(largest, "fewer landmarks (n_landmarks), or")
    return (
        f"{plan.n_landmarks:,} landmarks and {k:,} components: projected {as_text(plan.projected_bytes)} exceeds the allowed "
        f"{as_text(plan.allowed_bytes)}, of which the process itself takes {as_text(plan.memory['process'])}: {advice} "
        f"memory of at least {as_text(1.01 * plan.projected_bytes)}"
    )


def pairs_plan(
    source: Source,
    parameters: KernelParameters,
    resources: Resources,
    *,
    solver: str,
    columns: int = 0,
) -> KernelPlan:
    """Return the plan of a method that compares every row with every other: ``"exact"`` or ``"empirical_map"``.

    Both hold all rows, which are part of the model. "exact" holds the n × n kernel matrix as well; "empirical_map" makes
    its values block by block and holds n × `columns` sums.

    Raises
    ------
    PlanError
        If it does not fit: with what is projected, what is allowed, and what would do.
    """
    n, d = source.shape
    exact, dtype = solver == "exact", work_dtype(source.dtype)
    parameters.require_at_most(n if exact else columns, "rows" if exact else "columns of the transform")
    k = parameters.count(n) or min(n, 64)
    rows = block_rows_to_try(source, dtype)[0]
    memory = _pairs_memory(source, parameters, resources, k, rows)
    memory |= (
        _exact_memory(source, parameters, resources, k)
        if exact
        else _map_memory(source, parameters, resources, columns)
    )
    plan = KernelPlan(
        solver=solver,
        reason=_pairs_reason(exact, n, columns, memory),
        n_samples=n,
        n_features=d,
        dtype=str(source.dtype),
        work_dtype=str(dtype),
        n_components=parameters.count(n if exact else columns),
        passes=1,
        rows_per_block=rows,
        n_blocks=-(-n // rows),
        n_leaves=1,
        leaves_in_flight=1,
        window=1,
        threads=resources.threads,
        threads_per_leaf=resources.threads,
        tile=PAIR_SIDE,
        bytes_to_read=bytes_to_read(source, rows),
        flops=_pairs_flops(n, parameters.kernel.needs(d).flops, k, exact, columns),
        projected_bytes=_pairs_peak(memory),
        allowed_bytes=resources.allowed_bytes,
        memory=memory,
        merge="pairs of blocks of rows are added in a fixed order",
        n_landmarks=n,
        sampling="all rows",
        columns=columns,
    )
    if plan.projected_bytes > plan.allowed_bytes:
        raise PlanError(_pairs_refusal(plan, exact))
    return plan


def _pairs_reason(exact: bool, n: int, columns: int, memory: dict[str, int]) -> str:
    if exact:
        return f"exact; the {n:,} x {n:,} kernel matrix takes {as_text(memory['kernel matrix'])}"
    return f"the empirical kernel map of {n:,} rows through a transform to {columns:,} columns, n² kernel values twice"


def _pairs_flops(n: int, per_value: float, k: int, exact: bool, columns: int) -> float:
    once = 0.5 * float(n) * n * per_value
    if not exact:
        return 2 * (once + 2.0 * float(n) * n * columns) + 40.0 * n * float(columns) ** 2
    if uses_krylov(n, k):
        return once + 2.0 * float(n) * n * max(200, 6 * k)
    return once + 9.0 * float(n) ** 3


def _exact_memory(source: Source, parameters: KernelParameters, resources: Resources, k: int) -> dict[str, int]:
    n, d = source.shape
    dtype = work_dtype(source.dtype)
    kernel = parameters.kernel.bound(d)
    iterated = parameters.count(n) is not None and uses_krylov(n, k)
    itemsize = dtype.itemsize if iterated else 8
    basis = 2 * basis_size(n, k) + 8 * 64 + 2 * k
    solve = 8 * n * basis if iterated else 8 * n * (3 * n + 3 * k)
    return {
        "kernel matrix": itemsize * n * n,
        "scratch": resources.threads
        * (16 * PAIR_SIDE**2 + kernel.scratch_bytes(PAIR_SIDE, d) + kernel.prepared_bytes(PAIR_SIDE, d)),
        "solve": solve + (16 * n * n if parameters.inverse else 0),
    }


def _map_memory(source: Source, parameters: KernelParameters, resources: Resources, columns: int) -> dict[str, int]:
    n, d = source.shape
    kernel = parameters.kernel.bound(d)
    block = 8 * PAIR_SIDE * PAIR_SIDE + kernel.scratch_bytes(PAIR_SIDE, d) + 8 * PAIR_SIDE * columns
    return {
        "kernel matrix": 8 * n * d + kernel.prepared_bytes(n, d),
        "scratch": resources.threads * block,
        "solve": 8 * n * columns * 7 + 64 * columns * columns + (16 * n * n if parameters.inverse else 0),
    }


PAIR_SIDE = 1024
"""Rows on each side of a block of the kernel matrix that one thread makes at once."""


def _pairs_memory(
    source: Source, parameters: KernelParameters, resources: Resources, k: int, rows: int
) -> dict[str, int]:
    n, d = source.shape
    dtype = work_dtype(source.dtype)
    return {
        "process": resources.process_bytes + ALLOWANCE_BYTES,
        "landmarks": n * d * dtype.itemsize + (8 * n * d if source.dtype != dtype else 0),
        "kernel matrix": 0,
        "blocks": rows * source.row_bytes * 2 + source.overhead_bytes(rows),
        "scratch": 0,
        "rows kept": 3 * resources.kept_rows * source.row_bytes,
        "solve": 0,
        "model": 8 * n * (3 * k + 2),
        "scores": scores_bytes(parameters, n, k, min(n, 8192), source) if resources.scores else 0,
        "report": REPORT_BYTES if resources.report else 0,
    }


def _pairs_peak(memory: dict[str, int]) -> int:
    always = memory["process"] + memory["rows kept"] + memory["landmarks"]
    return always + max(
        memory["blocks"],
        memory["kernel matrix"] + memory["scratch"] + memory["solve"] + memory["model"],
        memory["model"] + max(memory["scores"], memory["report"]),
    )


def _pairs_refusal(plan: KernelPlan, exact: bool) -> str:
    what = (
        f"the {plan.n_samples:,} x {plan.n_samples:,} kernel matrix takes {as_text(plan.memory['kernel matrix'])}"
        if exact
        else f"{plan.n_samples:,} rows and {plan.columns:,} columns take {as_text(plan.memory['landmarks'] + plan.memory['solve'])}"
    )
    return (
        f"{what}: projected {as_text(plan.projected_bytes)} exceeds the allowed {as_text(plan.allowed_bytes)}, of which the process "
        f"itself takes {as_text(plan.memory['process'])}: memory of at least {as_text(1.01 * plan.projected_bytes)}"
    )


def with_seconds(plan: KernelPlan) -> KernelPlan:
    """Return `plan` with the seconds it is expected to take at the rates of a middling processor and disk."""
    rate = (60e9 if plan.work_dtype == "float32" else 30e9) * plan.threads
    seconds = 0.05 + plan.flops / rate + plan.bytes_to_read / 1e9
    return replace(plan, expected_seconds=seconds, expected_by="nominal rates")


def figures_of(plan: KernelPlan) -> dict[str, Any]:
    """Return the figures of a method that was not chosen."""
    timed = with_seconds(plan)
    names = (
        "solver",
        "passes",
        "projected_bytes",
        "bytes_to_read",
        "flops",
        "work_dtype",
        "expected_seconds",
        "expected_by",
    )
    return {"fits": True, "why": plan.reason, "sketch": {}, **{name: getattr(timed, name) for name in names}}


def columns_of(parameters: KernelParameters, n: int) -> int:
    """Return the columns of the transform of the empirical kernel map: four for each component, and 64 more at least."""
    if parameters.sketch_size != "auto":
        return min(n, int(parameters.sketch_size))
    k = parameters.count(n)
    return min(n, 256 if k is None or k == n else max(4 * k, k + 64))
