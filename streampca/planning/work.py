"""What a planner is told of a fit: how its rows are divided, and what memory and time it takes in blocks of one size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from typing_extensions import override

from streampca.planning.blocks import bytes_to_read
from streampca.planning.budget import ALWAYS, MemoryBudget, MemoryNeed, Purpose
from streampca.planning.cost import Rates
from streampca.planning.detail import SolverDetail
from streampca.planning.memory import ALLOWANCE_BYTES, WORKER_PROCESS_BYTES
from streampca.planning.plan import Plan
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source

_TILE_THREADS_FROM = 4096  # features from which threads share one state instead of having one each


class Companion:
    """What comes along with a fit beside its solver, said once for every plan; by default it takes nothing."""

    n_regressors: int = 0
    """Regressors that are removed from the rows."""

    def needs(self, work: Work, shape: WorkShape) -> Iterable[MemoryNeed]:
        """Return the memory that it takes beside `work`, whose rows are divided as `shape`."""
        return ()

    def flops(self, plan: Plan) -> float:
        """Return the floating point operations of `plan` with those of the companion."""
        return plan.flops

    def seconds(self, plan: Plan, rates: Rates) -> float:
        """Return the seconds that it adds to a fit by `plan`."""
        return 0.0


@dataclass(frozen=True)
class Holding(Companion):
    """Memory of one purpose that every phase has, however the rows are divided."""

    purpose: Purpose
    """What it is for."""
    n_bytes: int
    """Its size."""

    @override
    def needs(self, work: Work, shape: WorkShape) -> Iterable[MemoryNeed]:
        return (MemoryNeed(self.purpose, self.n_bytes),)


@dataclass(frozen=True)
class Resources:
    """What a plan may use, and what comes along with the fit."""

    allowed_bytes: int
    """Ceiling of the resident memory of the process."""
    process_bytes: int
    """Resident memory of the process before the first block."""
    threads: int
    """Threads to share."""
    scores: bool = False
    """Whether scores are written in a second pass."""
    report: bool = False
    """Whether a report is drawn."""
    report_rows: int = 0
    """Rows that are sampled for the report."""
    on_workers: bool = False
    """Whether the workers of a cluster read the rows."""
    companions: tuple[Companion, ...] = ()
    """What comes along."""

    @property
    def n_regressors(self) -> int:
        """Return the number of regressors that are removed from the rows."""
        return sum(each.n_regressors for each in self.companions)

    def holding(self, purpose: Purpose, n_bytes: int) -> Resources:
        """Return the resources with memory for `purpose` in every phase."""
        return replace(self, companions=(*self.companions, Holding(purpose, n_bytes)))


@dataclass(frozen=True)
class Figures:
    """What a fit takes beside memory, and what is said of it."""

    reason: str
    """Why the solver runs, and what its answer is."""
    flops: float
    """Floating point operations."""
    passes: int = 1
    """Passes over the rows."""
    bytes_beside: int = 0
    """Decoded bytes that are read beside the passes."""
    disk_bytes: int = 0
    """Size of temporary files."""
    detail: SolverDetail = field(default_factory=SolverDetail)
    """Settings of the solver."""
    notes: Sequence[str] = ()
    """What a user should know."""


@dataclass(frozen=True)
class Work(ABC):
    """A fit by one solver, or a pass that writes scores, before its blocks are chosen."""

    source: Source
    """The rows."""
    n_components: int | None
    """Components wanted; None where the data decides."""
    resources: Resources
    """What may be used."""

    name: ClassVar[str]
    """Name of the solver."""
    approximate: ClassVar[bool] = False
    """Whether its answer carries an error, and a certificate of it."""

    @property
    def read(self) -> Source:
        """Return what the blocks divide: the rows, or the features as rows."""
        return self.source

    @property
    @abstractmethod
    def work_dtype(self) -> str:
        """Return the data type of the products."""

    @abstractmethod
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        """Return how the rows are divided into blocks of `rows` rows, with so many leaves at once and threads in each."""

    @abstractmethod
    def needs(self, shape: WorkShape) -> Iterable[MemoryNeed]:
        """Return the memory that is allocated, beside that of the process."""

    @abstractmethod
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        """Return what the work takes beside memory; one pass decodes `reading` bytes."""

    def edges(self, shape: WorkShape) -> tuple[int, ...] | None:
        """Return the first row of every block and the end of the last where the source has its own; None = blocks are equal."""
        return self.read.block_edges(shape.rows_per_block)

    def budget(self, shape: WorkShape) -> MemoryBudget:
        """Return the memory by purpose and by phase.

        Every phase has the process, its resident memory before the first block + `ALLOWANCE_BYTES`, and what comes along.
        """
        resources = self.resources
        process = MemoryNeed("process", resources.process_bytes + ALLOWANCE_BYTES)
        beside = [need for each in resources.companions for need in each.needs(self, shape) if need.n_bytes]
        return MemoryBudget.of([process, *beside, *self.needs(shape)], resources.allowed_bytes)

    def plan_for(self, shape: WorkShape) -> Plan:
        """Return the plan for rows that are divided as `shape`; it may not fit."""
        reading = bytes_to_read(self.read, shape.rows_per_block)
        said = self.figures(shape, reading)
        n, d = self.source.shape
        plan = Plan(
            **vars(shape),
            solver=self.name,
            reason=said.reason,
            n_samples=n,
            n_features=d,
            dtype=str(self.source.dtype),
            work_dtype=self.work_dtype,
            n_components=self.n_components,
            budget=self.budget(shape),
            passes=said.passes,
            bytes_to_read=said.passes * reading + said.bytes_beside,
            flops=said.flops,
            disk_bytes=said.disk_bytes,
            detail=said.detail,
            notes=tuple(said.notes),
        )
        for companion in self.resources.companions:
            plan = replace(plan, flops=companion.flops(plan))
        return plan.with_edges(self.edges(shape))

    def best(self, sizes: list[int], side: int, n_tiles: int) -> Plan:
        """Return the best plan that fits, or the one that takes least memory if none does (see `MemoryBudget.fits`).

        The block size is the first of `sizes`, rows of a block, with which a single thread fits, so that it never depends on the
        threads; one that fits beside a process of nominal size is preferred if it reads no more, so that the size does not depend
        on what this process holds either. Then as many threads as fit are used (`loaded`).
        """
        tried: list[Plan] = []
        first: Plan | None = None
        for size in sizes:
            least = self.plan_for(self.shape(size, 1, 1))
            tried.append(least)
            if least.budget.fits:
                first = first or least
                if _fits_nominally(least) and least.bytes_to_read <= first.bytes_to_read:
                    first = least
                    break
        if first is None:
            return min(tried, key=lambda plan: plan.projected_bytes)
        return self.plan_for(self.loaded(first.rows_per_block, side, n_tiles))

    def loaded(self, rows: int, side: int = 0, n_tiles: int = 1) -> WorkShape:
        """Return the shape with blocks of `rows` rows that fits and keeps most threads busy; one thread has to fit.

        Of shapes with as many busy threads, the one with most leaves at once reads fastest. The accumulated matrix has the
        given `side`, and `n_tiles` tiles, which threads of a leaf can share; a large one is not accumulated twice.
        """
        threads = self.resources.threads
        most = 1 if side >= _TILE_THREADS_FROM else min(threads, self.shape(rows, 1, 1).n_leaves)
        loads = [
            (leaves, shared)
            for leaves in range(1, most + 1)
            for shared in range(1, max(1, min(threads // leaves, n_tiles)) + 1)
        ]
        for leaves, shared in sorted(loads, key=lambda load: (load[0] * load[1], load[0]), reverse=True):
            shape = self.shape(rows, leaves, shared)
            if self.budget(shape).fits:
                return shape
        return self.shape(rows, 1, 1)


def _fits_nominally(plan: Plan) -> bool:
    """Tell whether the plan also fits in a process that takes as much memory as a worker does by itself."""
    difference = max(0, WORKER_PROCESS_BYTES - plan.budget.bytes_for(*ALWAYS))
    return plan.projected_bytes + difference <= plan.allowed_bytes
