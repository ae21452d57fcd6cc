"""What will be done, as one pure function of shape, chunks, parameters and memory: printed, checked, then obeyed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import work_dtype
from streampca.accumulators.covariance import Covariance, panel_rows
from streampca.accumulators.pairwise import PairwiseCovariance
from streampca.errors import PlanError
from streampca.formatting import as_seconds, as_text
from streampca.linalg.eigen import uses_krylov
from streampca.linalg.lanczos import basis_size
from streampca.models.conditional import scratch_bytes
from streampca.planning.leaves import Leaf, count_leaves, leaves_per_branch, states_at_once
from streampca.planning.memory import ALLOWANCE_BYTES, REPORT_BYTES, WORKER_PROCESS_BYTES
from streampca.random import generator
from streampca.sources.base import Source

AnyPlan = TypeVar("AnyPlan", bound="Plan")

BLOCK_BYTES = 32 * 2**20 - 2**16  # the C library hands blocks from 32 MiB on back to the system each time
_BLOCK_ROWS = 2**18
_TILE_THREADS_FROM = 4096  # features from which threads share one state instead of having one each
_SMALL_STATE_BYTES = 16 * 2**20  # states up to here may wait for their turn to be merged


@dataclass(frozen=True)
class Plan:
    """The shape of the work. Blocks, leaves and their order of merging do not depend on threads or workers."""

    solver: str
    """Which solver runs."""
    reason: str
    """Why."""
    n_samples: int
    """Rows of the source."""
    n_features: int
    """Columns of the source."""
    dtype: str
    """Data type of the source."""
    work_dtype: str
    """Data type of the products."""
    n_components: int | None
    """Components wanted; None where the data decides."""
    passes: int
    """How often the source is read by a fit."""
    rows_per_block: int
    """Rows of one block."""
    n_blocks: int
    """Number of blocks."""
    n_leaves: int
    """Number of leaves; each is a run of blocks."""
    leaves_in_flight: int
    """Leaves that run at once."""
    window: int
    """Leaves that run or wait to be merged, at most."""
    threads: int
    """Threads in all."""
    threads_per_leaf: int
    """Threads that share the tiles of one leaf."""
    tile: int
    """Largest side of a tile of the accumulated matrix."""
    bytes_to_read: int
    """Decoded bytes that a fit reads."""
    flops: float
    """Floating point operations of a fit."""
    projected_bytes: int
    """Largest resident memory of the process that is expected."""
    allowed_bytes: int
    """Ceiling of it."""
    memory: dict[str, int] = field(default_factory=dict)
    """Projected bytes by purpose; blocks, scratch, solve, scores and report do not all stand at the same time."""
    notes: tuple[str, ...] = ()
    """What a user should know."""
    alternatives: tuple[dict[str, Any], ...] = ()
    """Figures of the solvers that were not chosen."""

    edges: tuple[int, ...] | None = None
    """First row of every block and the row behind the last, where blocks are not of equal size."""
    axis: str = "samples"
    """What blocks are runs of: ``"samples"``, or ``"features"`` where whole columns are read."""
    merge: str = "leaves are folded from left to right in the order of their rows"
    """The order of merging."""
    leaves_per_branch: int = 1
    """Neighbouring leaves that are merged before the rest, on a cluster by its workers; 1 = none."""
    expected_seconds: float | None = None
    """How long a fit is expected to take; None where nobody asked."""
    expected_by: str = ""
    """Where that comes from: ``"probe"`` for rates that were measured, or ``"nominal rates"``."""
    tile_groups: int = 0
    """Groups of tiles of the covariance that are made one after the other, each in a reading, and kept on disk; 0 = in memory."""
    components_on_disk: bool = False
    """Whether the components of wide data are kept on disk, because they do not fit in memory."""
    disk_bytes: int = 0
    """Size of the temporary files of a fit."""
    shuffle_seed: int | None = None
    """Seed of the order in which blocks are read; None = as they lie."""
    sketch: dict[str, Any] = field(default_factory=dict)
    """What the approximate solvers do beside: columns, pilot, passes at most, tolerance; empty for the exact ones."""
    leaves_per_worker: int = 0
    """Leaves that a worker of a cluster runs at once at most; 0 = as many as it has threads."""

    def leaves(self) -> list[Leaf]:
        """Return all leaves in the order of merging."""
        return [self.leaf(i) for i in range(self.n_leaves)]

    @property
    def n_branches(self) -> int:
        """Return how many states are merged at last: those of branches, or of leaves where there are none."""
        return -(-self.n_leaves // self.leaves_per_branch)

    @property
    def n_states(self) -> int:
        """Return how many states stand at once in a process at most."""
        return states_at_once(self.window, self.n_leaves, self.leaves_per_branch)

    @property
    def extent(self) -> int:
        """Return how many samples, or features, the blocks are runs of."""
        return self.n_samples if self.axis == "samples" else self.n_features

    def leaf(self, index: int) -> Leaf:
        """Return one leaf."""
        first, last = (self.n_blocks * i // self.n_leaves for i in (index, index + 1))
        if self.shuffle_seed is not None:
            spans = tuple(self._span(int(block)) for block in _order(self.shuffle_seed, self.n_blocks)[first:last])
            return Leaf(index, (min(span[0] for span in spans), max(span[1] for span in spans)), spans)
        if self.edges is not None:
            return Leaf(index, self.edges[first : last + 1])
        edges = [min(block * self.rows_per_block, self.extent) for block in range(first, last + 1)]
        return Leaf(index, tuple(edges))

    def _merging(self) -> str:
        if self.leaves_per_branch == 1:
            return self.merge
        return f"{self.merge}, {self.leaves_per_branch} at a time into {self.n_branches} branches, and these likewise"

    def _span(self, block: int) -> tuple[int, int]:
        """Return first row and row behind the last of a block."""
        if self.edges is not None:
            return self.edges[block], self.edges[block + 1]
        return block * self.rows_per_block, min((block + 1) * self.rows_per_block, self.extent)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        data = asdict(self)
        data["notes"], data["alternatives"] = list(self.notes), list(self.alternatives)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the plan that `to_dict` has made `data` of, also by way of JSON."""
        tuples = {name: tuple(data[name]) for name in ("notes", "alternatives", "edges") if data[name] is not None}
        return cls(**data | tuples)

    def __str__(self) -> str:
        components = "as many as the data asks for" if self.n_components is None else str(self.n_components)
        lines = [
            f"solver       {self.solver}: {self.reason}",
            f"data         {self.n_samples:,} samples x {self.n_features:,} features, {self.dtype}; components: {components}",
            f"reading      {_passes(self.passes, self.sketch)}, {as_text(self.bytes_to_read)} decoded, in {self.n_blocks:,} blocks of {self.rows_per_block:,} {self.axis}",
            f"work         {self.flops:.2e} flops in {self.work_dtype}, {self.n_leaves:,} leaves, {self.leaves_in_flight} at once "
            f"x {self.threads_per_leaf} thread{'s' if self.threads_per_leaf > 1 else ''}",
            f"memory       {as_text(self.projected_bytes)} projected of {as_text(self.allowed_bytes)} allowed ("
            + ", ".join(f"{name} {as_text(size)}" for name, size in self.memory.items() if size)
            + ")",
            f"merging      {self._merging()}",
        ]
        if self.expected_seconds is not None:
            lines.append(f"time         about {as_seconds(self.expected_seconds)} by {self.expected_by}")
        lines += [f"note         {note}" for note in self.notes]
        return "\n".join(lines + [f"or           {_in_words(other)}" for other in self.alternatives])


@lru_cache(maxsize=4)
def _order(seed: int, n_blocks: int) -> NDArray[np.int64]:
    """Return the order in which blocks are read where it is shuffled."""
    return np.asarray(generator(seed, "order of blocks").permutation(n_blocks))


def _in_words(other: dict[str, Any]) -> str:
    """Return the figures of a solver that was not chosen on one line."""
    if not other["fits"]:
        return f"{other['solver']}: no: {other['why']}"
    approximate = " (approximate)" if other["sketch"] else ""
    return (
        f"{other['solver']}{approximate}: {_passes(other['passes'], other['sketch'])}, {as_text(other['bytes_to_read'])} decoded, "
        f"{as_text(other['projected_bytes'])} projected, {other['flops']:.2e} flops in {other['work_dtype']}, "
        f"about {as_seconds(other['expected_seconds'])} by {other['expected_by']}"
    )


def _passes(passes: int, sketch: dict[str, Any]) -> str:
    """Return how many readings there are; at most so many where an approximate solver may stop before."""
    most = "at most " if sketch.get("passes", passes) > 1 and sketch.get("tolerance") else ""
    return f"{most}{passes} pass{'es' if passes > 1 else ''}"


@dataclass(frozen=True)
class Resources:
    """What a plan may use."""

    allowed_bytes: int
    """Ceiling of the resident memory of the process."""
    process_bytes: int
    """What the process takes before the first block."""
    threads: int
    """Threads to share."""
    scores: bool = False
    """Whether scores are written in a second reading."""
    report: bool = False
    """Whether a report is drawn."""
    kept_rows: int = 0
    """Rows that are copied out of the stream for the report."""


def plan_covariance(source: Source, accumulator: Covariance, n_components: int | None, resources: Resources) -> Plan:
    """Return how the covariance of `source` is accumulated within the memory that is allowed.

    Raises
    ------
    PlanError
        If it does not fit: with what is projected, what is allowed, and what would do.
    """
    n, d = source.shape
    dtype, grid = work_dtype(source.dtype), accumulator.grid(d)

    def build(rows: int, leaves: int, threads_per_leaf: int) -> Plan:
        n_blocks = -(-n // rows)
        n_leaves = count_leaves(n, n_blocks, source.row_bytes, accumulator.state_bytes(d))
        small = leaves > 1 and accumulator.state_bytes(d) <= _SMALL_STATE_BYTES
        window = leaves * (2 if small else 1)
        shared = replace(accumulator, n_threads=threads_per_leaf)
        per_branch = leaves_per_branch(n_leaves, accumulator.state_bytes(d))
        n_states = states_at_once(window, n_leaves, per_branch)
        memory = covariance_memory(source, shared, n_components, rows, leaves, n_states, resources)
        reading = bytes_to_read(source, rows) if rows % source.chunk_rows else n * source.row_bytes
        return Plan(
            solver="covariance",
            reason=f"exact; the {d:,} x {d:,} matrix takes {as_text(accumulator.state_bytes(d))} as tiles of its lower triangle",
            n_samples=n,
            n_features=d,
            dtype=str(source.dtype),
            work_dtype=str(dtype),
            n_components=n_components,
            passes=1,
            rows_per_block=rows,
            n_blocks=n_blocks,
            n_leaves=n_leaves,
            leaves_in_flight=leaves,
            window=window,
            threads=resources.threads,
            threads_per_leaf=threads_per_leaf,
            leaves_per_branch=per_branch,
            tile=grid.longest_side,
            bytes_to_read=reading,
            flops=float(n) * d * d + 4 / 3 * float(d) ** 3,
            projected_bytes=_peak(memory),
            allowed_bytes=resources.allowed_bytes,
            memory=memory,
            notes=_notes(source, reading),
        )

    plan, fits = choose(block_rows_to_try(source, dtype), build, d, resources.threads, grid.n_tiles)
    if not fits:
        raise PlanError(_refusal(plan, source))
    return plan


def choose(
    sizes: list[int], build: Callable[[int, int, int], Plan], side: int, threads: int, n_tiles: int
) -> tuple[Plan, bool]:
    """Return the best plan that fits and True, or the smallest there is and False.

    `build` makes the plan for a block size, a number of leaves at once and a number of threads for each. The block size
    is the first of `sizes` with which a single thread fits, so that it never depends on the threads; one that fits
    beside a process of nominal size is preferred if it reads no more, so that the size does not depend on what this
    process holds either. Then as many leaves run at once, and as many threads share one, as still fit.
    """
    tried = [build(size, 1, 1) for size in sizes]
    fitting = [plan for plan in tried if plan.projected_bytes <= plan.allowed_bytes]
    roomy = [
        plan
        for plan in fitting
        if plan.projected_bytes + _missing_to_nominal(plan) <= plan.allowed_bytes
        and plan.bytes_to_read <= fitting[0].bytes_to_read
    ]
    for least in (roomy or fitting)[:1]:
        size = least.rows_per_block
        for leaves in leaves_to_try(side, min(threads, least.n_leaves)):
            for threads_per_leaf in sorted({max(1, min(threads // leaves, n_tiles)), 1}, reverse=True):
                plan = build(size, leaves, threads_per_leaf)
                if plan.projected_bytes <= plan.allowed_bytes:
                    return plan, True
        return least, True
    return min(tried, key=lambda plan: plan.projected_bytes), False


def _missing_to_nominal(plan: Plan) -> int:
    return max(0, WORKER_PROCESS_BYTES - plan.memory["process"])


def _notes(source: Source, reading: int) -> tuple[str, ...]:
    times = reading / (source.shape[0] * source.row_bytes)
    if times <= 1.0:
        return ()
    return (
        f"a band of whole chunks ({source.chunk_rows:,} rows) does not fit: chunks are decoded {times:.1f} times; "
        "fewer rows in a chunk or more memory would avoid it",
    )


def block_rows_to_try(source: Source, dtype: np.dtype[Any], block_bytes: int = BLOCK_BYTES) -> list[int]:
    """Return rows per block, best first: whole chunks about `block_bytes`, fewer chunks, at last parts of a chunk."""
    n, d = source.shape
    band = min(source.chunk_rows, n)
    best = max(1, min(block_bytes // (d * max(source.dtype.itemsize, dtype.itemsize)), _BLOCK_ROWS))
    if source.chunk_bytes == 0:  # no chunks to respect, but whole panels
        best = max(1, best // 1024) * 1024 if best > 1024 else best
    rows = [min(n, max(1, best // band) * band)]
    while rows[-1] > band:
        rows.append(max(band, rows[-1] // 2 // band * band))
    while rows[-1] > 256:
        rows.append(-(-rows[-1] // 2))
    return rows


def with_repeated_reads(plan: AnyPlan, source: Source) -> AnyPlan:
    """Return `plan` with the notes of `source`, and with reads that its own graph repeats in the bytes to read.

    Raises
    ------
    RepeatedReadsError
        If they are repeated more often than is allowed.
    """
    notes = source.plan_notes()
    if not notes:
        return plan
    return replace(plan, bytes_to_read=round(plan.bytes_to_read * source.repeats), notes=(*plan.notes, *notes))


def leaves_to_try(d: int, most: int) -> list[int]:
    """Return how many leaves run at once, best first: one with all threads where a state is large."""
    if d >= _TILE_THREADS_FROM:
        return [1]
    return sorted({most, max(1, most // 2), 1}, reverse=True)


def bytes_to_read(source: Source, rows: int) -> int:
    """Return the decoded bytes of one reading in blocks of `rows` rows."""
    n, band = source.shape[0], source.chunk_rows
    once = n * source.row_bytes
    if rows % band == 0 or source.reads_of(0, 1) == source.row_bytes:
        return once
    # A chunk is decoded once more for every edge between blocks that falls inside it; the last band may be shorter.
    last = (n - 1) // band * band
    edges, edges_in_last = (n - 1) // rows, (n - 1) // rows - last // rows
    between = (n - 1) // math.lcm(rows, band)
    return once + ((edges - edges_in_last - between) * band + edges_in_last * (n - last)) * source.row_bytes


def covariance_memory(
    source: Source,
    accumulator: Covariance | PairwiseCovariance,
    n_components: int | None,
    rows: int,
    leaves: int,
    n_states: int,
    resources: Resources,
) -> dict[str, int]:
    """Return the bytes by purpose of accumulating the covariance of `source` and solving it in memory."""
    n, d = source.shape
    k = min(n, d) if n_components is None else n_components
    itemsize = work_dtype(source.dtype).itemsize
    block = rows * source.row_bytes
    buffers = (2 * block if source.buffered else 0) + source.overhead_bytes(rows)
    scores_rows = min(rows, panel_rows(d, work_dtype(source.dtype)))
    model = 8 * (3 * k * d + 4 * d)
    score = 4 if source.dtype.kind == "f" and source.dtype.itemsize <= 4 else 8  # bytes, as `PCAModel.score_dtype`
    scores = leaves * (buffers + 2 * scores_rows * d * score + 6 * rows * k * score) + d * k * score
    if isinstance(accumulator, PairwiseCovariance):
        scores += leaves * scratch_bytes(k)
    basis = 2 * basis_size(d, k) + 8 * 64 + k  # vectors of the iteration, and of the products in hand
    solve = 8 * d * (basis if uses_krylov(d, k) else 2 * d + 3 * k)
    return {
        "process": resources.process_bytes + ALLOWANCE_BYTES,
        "states": accumulator.state_bytes(d) * n_states,
        "blocks": leaves * buffers,
        "scratch": leaves * accumulator.scratch_bytes(d, rows, itemsize),
        "rows kept": 3 * resources.kept_rows * source.row_bytes,
        "solve": solve + accumulator.finalize_bytes(d),
        "model": model,
        "scores": scores if resources.scores else 0,
        "report": REPORT_BYTES if resources.report else 0,
    }


def _peak(memory: dict[str, int]) -> int:
    """Return the largest sum of what stands at the same time: streaming, solving, writing scores, drawing."""
    always = memory["process"] + memory["rows kept"]
    streaming = memory["states"] + memory["blocks"] + memory["scratch"]
    solving = memory["states"] + memory["solve"] + memory["model"]
    after = memory["states"] + memory["model"] + max(memory["scores"], memory["report"])
    return always + max(streaming, solving, after)


def _refusal(plan: Plan, source: Source) -> str:
    """Return what is said when nothing fits."""
    d = plan.n_features
    largest = max(("states", "blocks", "solve", "scores", "report"), key=lambda name: plan.memory[name])
    advice = {
        "states": f"the {d:,} x {d:,} matrix is what takes the room; fewer features, or",
        "solve": "fewer components (n_components), or",
        "blocks": f"chunks of fewer than {source.chunk_rows:,} rows, or",
        "scores": "scores: false, or",
        "report": "report: false, or",
    }[largest]
    return (
        f"projected {as_text(plan.projected_bytes)} exceeds the allowed {as_text(plan.allowed_bytes)}, of which the process itself takes "
        f"{as_text(plan.memory['process'])}: {advice} memory of at least {as_text(1.01 * plan.projected_bytes)}"
    )
