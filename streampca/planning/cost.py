"""How long a plan will take: rates of this machine for this source, measured in a second, and a pure function of them."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators.base import Accumulator, State
from streampca.block import Block
from streampca.linalg.eigen import uses_krylov
from streampca.linalg.lanczos import basis_size, block_size
from streampca.planning.detail import SketchDetail
from streampca.planning.plan import Plan
from streampca.random import generator
from streampca.sources.base import Source
from streampca.system.blas_threads import one_blas_thread
from streampca.system.process import n_cores
from streampca.typing import Array

_READ_SECONDS, _FOLD_SECONDS = 0.2, 0.25  # what the probe spends on each, unless one block takes longer
_MOST_BLOCKS = 4  # blocks that one thread of the probe reads
PROBE_WIDTH = 4096  # side of the matrix from which products are as fast as they get
_LAPACK_SIDE = 640  # of the largest matrix that LAPACK is timed with
_FIXED_SECONDS = 0.03  # threads, first calls
_ADAPTIVE_COST = 2.5  # of an incremental update, in passes of a sketch of as many columns
_SKETCH_ALGEBRA = 30.0  # products of features x columns² that solving and certifying a sketch takes
_DISK_BYTES_PER_SECOND = 1e9  # of temporary files; those that the page cache holds come several times as fast


@dataclass(frozen=True)
class Rates:
    """How fast a machine reads a source and computes, with the leaves and threads of a plan."""

    read: float
    """Decoded bytes per second of all leaves that read at once."""
    read_cpu: float
    """Processor seconds for each decoded byte."""
    fold: float
    """Products per second that all leaves fold at once, centring and adding up included: floating point operations of
    a symmetric product, counted as rows x side², in the data type of the work."""
    multiply: float
    """Floating point operations per second of float64 products on all threads."""
    lapack: float
    """Floating point operations per second of LAPACK's symmetric eigensolver on one thread."""
    merge: float
    """Bytes of states per second that are merged."""
    probed: bool
    """Whether they were measured; if not they are those of a middling machine, and may be wrong by a factor of three."""


def nominal_rates(plan: Plan) -> Rates:
    """Return the rates of a middling processor core of 2020 and a local disk, times the threads of `plan`."""
    per_thread = 60e9 if plan.work_dtype == "float32" else 30e9
    return Rates(
        read=1e9 * min(2, plan.leaves_in_flight),
        read_cpu=0.5e-9,
        fold=per_thread * busy_threads(plan),
        multiply=25e9 * plan.threads,
        lapack=8e9,
        merge=3e9,
        probed=False,
    )


def busy_threads(plan: Plan) -> int:
    """Return how many threads compute at once while the rows are read."""
    return min(plan.threads, plan.leaves_in_flight * plan.threads_per_leaf)


def expected_seconds(plan: Plan, rates: Rates, solving: float) -> float:
    """Return the seconds that a fit by `plan` takes at `rates`, `solving` of them when all rows are read.

    Within a leaf the next block is read while one is folded, so the slower of the two counts, and of the faster one
    only the first block of each leaf. Reading takes processor time, too: on a machine with all cores busy both add up.
    """
    if plan.n_leaves == 0:
        return _FIXED_SECONDS
    rounds = -(-plan.n_leaves // plan.leaves_in_flight) * plan.leaves_in_flight / plan.n_leaves
    faster = 2 if plan.work_dtype == "float32" else 1
    fold = rounds * folded_flops(plan) / rates.fold + projected_flops(plan) / (faster * rates.multiply)
    read = plan.bytes_to_read / rates.read
    cores = max(1, min(plan.threads, n_cores()))
    first_blocks = min(read, fold) * plan.n_leaves / max(1, plan.n_blocks)
    stream = max(max(read, fold) + first_blocks, fold + plan.bytes_to_read * rates.read_cpu / cores)
    detail = plan.detail
    entries = plan.n_features * _columns(detail) if isinstance(detail, SketchDetail) else _side(plan) ** 2
    # Threads that share a leaf share merging, too, and so they do in the probe.
    merge = plan.n_leaves * 8 * entries / rates.merge / (cores if plan.threads_per_leaf == 1 else 1)
    written = plan.disk_bytes / _DISK_BYTES_PER_SECOND
    return _FIXED_SECONDS + stream + merge + written + solving + _finish_seconds(plan, rates)


def folded_flops(plan: Plan) -> float:
    """Return the floating point operations of the products of a fit: rows x side², or those with the columns of a sketch."""
    detail = plan.detail
    if isinstance(detail, SketchDetail):
        rows_features = float(plan.n_samples) * plan.n_features
        first = _ADAPTIVE_COST if detail.rows_per_update else 1.0
        columns = float(detail.columns * (detail.passes - 1 + first) + detail.held_out)
        return 4.0 * rows_features * columns
    return float(plan.n_samples) * plan.n_features * _side(plan)


def _columns(detail: SketchDetail) -> int:
    """Return the columns that the first pass of a sketch multiplies with."""
    return detail.columns + detail.held_out


def projected_flops(plan: Plan) -> float:
    """Return the floating point operations of the second reading, which the Gram solver takes for the components."""
    if plan.axis == "samples":
        return 0.0
    return 2.0 * plan.n_samples * plan.n_features * _most_components(plan)


def _finish_seconds(plan: Plan, rates: Rates) -> float:
    """Return the time of making components that were multiplied out orthonormal, on one thread."""
    if not projected_flops(plan):
        return 0.0
    k, d = _most_components(plan), plan.n_features
    on_disk = 2 * plan.disk_bytes / _DISK_BYTES_PER_SECOND if plan.components_on_disk else 0.0  # read and written again
    return on_disk + 4.0 * k**2 * d / (rates.multiply / plan.threads) + 4 * 8.0 * k * d / rates.merge


def _most_components(plan: Plan) -> int:
    return min(plan.n_samples, plan.n_features) if plan.n_components is None else plan.n_components


def _side(plan: Plan) -> int:
    """Return the side of the matrix that is accumulated."""
    return plan.n_features if plan.axis == "samples" else plan.n_samples


def solve_seconds(plan: Plan, rates: Rates) -> float:
    """Return the time of the eigenproblem; of the iteration that of one filled basis, as spectra that decay need."""
    detail = plan.detail
    if isinstance(detail, SketchDetail):
        columns = float(detail.columns * (plan.passes if detail.keep_all else 1))
        pilot = float(detail.pilot_rows) ** 2 * plan.n_features
        # The algebra is done after every pass, with the products so far.
        algebra = _SKETCH_ALGEBRA * plan.n_features * columns**2 + pilot
        return algebra / rates.multiply + 20.0 * columns**3 / rates.lapack
    side = _side(plan)
    limit = min(plan.n_samples, plan.n_features)
    k = min(limit, 64) if plan.n_components is None else plan.n_components
    if not uses_krylov(side, k):
        k = limit if plan.n_components is None else k
        return (4 / 3 * side**3 + 2.0 * side**2 * k) / rates.lapack
    block, basis = block_size(k), basis_size(side, k)
    steps = -(-basis // block)
    products = 2.0 * side**2 * block * steps
    # Orthogonalisation twice, the projected matrix and the Ritz vectors, for a basis that grows to its full size.
    algebra = side * steps * basis * (4.0 * block + basis * 2 / 3 + 2.0 * k)
    small = steps * (4 / 3 + 2) * float(basis) ** 3 / 4
    multiply = products / rates.multiply
    if plan.tile_groups:  # every product reads the matrix from the disk, and so does the one that gives the residual
        multiply = max(multiply, (steps + 1) * plan.disk_bytes / _DISK_BYTES_PER_SECOND)
    return multiply + 2 * algebra / rates.multiply + small / rates.lapack


def probe(source: Source, accumulator: Accumulator[State, object], plan: Plan, nominal: Rates) -> Rates:
    """Measure the rates for `plan` in about a second: reads a few blocks from all over the source and folds them.

    Takes no more memory than the plan allows for: a block, a state and the scratch of an update in each leaf.

    Parameters
    ----------
    source : Source
        What the leaves read; for a plan over features, the source whose rows are the features.
    accumulator : Accumulator
        What the blocks are folded into.
    plan : Plan
        Which says how many leaves with how many threads work at once.
    nominal : Rates
        Those of the solver, in place of what is not measured.
    """
    source.check()
    spans = _spread_spans(plan)
    with one_blas_thread(), ThreadPoolExecutor(plan.leaves_in_flight, thread_name_prefix="streampca-probe") as pool:
        blocks, together, cpu = _probe_reading(source, plan, spans, pool)
        width = min(_side(plan), PROBE_WIDTH)
        if plan.tile_groups:  # the plan has room for the states of two groups, not of two matrices
            width = min(width, math.isqrt(plan.budget.bytes_for("states") // 16))
        if hasattr(accumulator, "n_threads"):
            shared: Any = accumulator
            accumulator = replace(shared, n_threads=plan.threads_per_leaf)
        blocks = [Block(block.values[:, :width], block.start) for block in blocks]
        fold, merge = _probe_folding(accumulator, blocks, width, pool)
        if isinstance(plan.detail, SketchDetail):  # rows x width² as operations of products with the columns
            fold, merge = fold * 4 * _columns(plan.detail) / width, nominal.merge
        multiply = _probe_multiplying(plan.threads)
        lapack = _probe_lapack(_side(plan))
    return replace(
        nominal,
        read=together,
        read_cpu=cpu,
        fold=fold,
        multiply=multiply,
        lapack=lapack,
        merge=merge,
        probed=True,
    )


def _spread_spans(plan: Plan) -> list[tuple[int, int]]:
    """Return blocks spread over the source, each once, as many as the probe may read."""
    wanted = min(plan.n_blocks, plan.leaves_in_flight * _MOST_BLOCKS + 1)
    edges = [(plan.n_blocks * i // wanted) * plan.rows_per_block for i in range(wanted)]
    return [(start, min(start + plan.rows_per_block, plan.extent)) for start in edges]


def _probe_reading(
    source: Source, plan: Plan, spans: list[tuple[int, int]], pool: ThreadPoolExecutor
) -> tuple[list[Block], float, float]:
    """Return one block for each leaf in flight, the rate of reading in all leaves, and the processor seconds per byte."""
    width, leaves = source.shape[1], plan.leaves_in_flight
    buffers: list[Array | None] = [None] * leaves
    if source.buffered:
        # Filled beforehand, because a leaf reads into memory that is in use already.
        buffers = [np.zeros((plan.rows_per_block, width), dtype=source.dtype) for _ in range(leaves)]

    def read(span: tuple[int, int], buffer: Array | None) -> tuple[Block, int]:
        start, stop = span
        values, count = source.read(start, stop, None if buffer is None else buffer[: stop - start])
        return Block(values, start), count.bytes

    began = time.perf_counter()
    first, n_bytes = read(spans[0], buffers[0])
    alone = n_bytes / max(time.perf_counter() - began, 1e-7)
    until = time.perf_counter() + _READ_SECONDS

    def read_some(leaf: int) -> tuple[Block | None, int]:
        block, total = None, 0
        for span in spans[1 + leaf :: leaves]:
            block, n_bytes = read(span, buffers[leaf])
            total += n_bytes
            if time.perf_counter() > until:
                break
        return block, total

    began, cpu = time.perf_counter(), time.process_time()
    done = list(pool.map(read_some, range(leaves)))
    seconds, cpu_seconds = max(time.perf_counter() - began, 1e-7), time.process_time() - cpu
    total = sum(n_bytes for _, n_bytes in done)
    if total == 0:
        return [first] * leaves, alone, 1 / alone
    blocks = [block or done[0][0] or first for block, _ in done]
    return blocks, total / seconds, min(cpu_seconds, seconds * leaves) / total


def _probe_folding(
    accumulator: Accumulator[State, object], blocks: list[Block], width: int, pool: ThreadPoolExecutor
) -> tuple[float, float]:
    """Return how fast blocks are folded in all leaves at once, and how fast states are merged."""
    states = list(pool.map(lambda block: accumulator.update(accumulator.init(width), block), blocks))
    until = time.perf_counter() + _FOLD_SECONDS

    def fold(item: tuple[State, Block]) -> tuple[int, float]:
        state, block = item
        rows, began = 0, time.perf_counter()
        while True:
            state = accumulator.update(state, block)
            rows += block.values.shape[0]
            if (now := time.perf_counter()) > until:
                return rows, now - began

    done = list(pool.map(fold, zip(states, blocks, strict=True)))
    rate = sum(rows / seconds for rows, seconds in done) * float(width) ** 2
    if len(states) == 1:
        states += pool.map(lambda block: accumulator.update(accumulator.init(width), block), blocks)
    began = time.perf_counter()
    # On the pool, because a thread keeps its scratch memory for as long as it lives.
    pool.submit(accumulator.absorb, states[0], states[1]).result()
    return rate, 8 * width**2 / max(time.perf_counter() - began, 1e-6)


def _probe_multiplying(threads: int) -> float:
    """Return the rate of float64 products of a square matrix with a few vectors, on `threads` threads at once."""
    side, vectors, times = 1024, 50, 8
    matrix = np.ones((side, side))

    def work(_: int) -> None:
        right = np.ones((side, vectors))
        out = np.empty((side, vectors))
        for _ in range(times):
            np.matmul(matrix, right, out=out)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
        began = time.perf_counter()
        list(pool.map(work, range(threads)))
    return threads * times * 2.0 * side**2 * vectors / (time.perf_counter() - began)


def _probe_lapack(side: int) -> float:
    """Return the rate of the eigensolver at `side`, or where it has got as fast as it gets."""
    from scipy.linalg import eigh

    side = max(2, min(side, _LAPACK_SIDE))
    vectors = -(-side // 16)
    matrix = generator(0, "probe").standard_normal((side, side))
    matrix += matrix.T
    eigh(matrix[:2, :2])
    began = time.perf_counter()
    eigh(matrix, driver="evr", subset_by_index=(side - vectors, side - 1))
    return (4 / 3 * side**3 + 2.0 * side**2 * vectors) / (time.perf_counter() - began)
