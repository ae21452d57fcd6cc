"""What a planner is told of a fit: how its rows are divided, and what memory and time it takes in blocks of one size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from streampca.planning.blocks import bytes_to_read
from streampca.planning.budget import MemoryBudget, MemoryNeed, Resources
from streampca.planning.detail import SolverDetail
from streampca.planning.memory import process_needs
from streampca.planning.plan import Plan
from streampca.planning.search import choose
from streampca.planning.shape import WorkShape
from streampca.sources.base import Source


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

    solver: ClassVar[str]
    """Name of the solver."""

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

    def budget(self, shape: WorkShape) -> MemoryBudget:
        """Return the memory by purpose and by phase."""
        needs = (*process_needs(self.resources, shape.axis), *self.needs(shape))
        return MemoryBudget.of(needs, self.resources.allowed_bytes)

    def plan(self, shape: WorkShape) -> Plan:
        """Return the plan for rows that are divided as `shape`; it may not fit."""
        reading = bytes_to_read(self.read, shape.rows_per_block)
        said = self.figures(shape, reading)
        n, d = self.source.shape
        return Plan(
            **vars(shape),
            solver=self.solver,
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

    def best(self, sizes: list[int], side: int, n_tiles: int) -> Plan:
        """Return the best plan that fits, or the one that takes least memory if none does (`streampca.planning.search.choose`).

        `sizes` are rows of a block, best first; `side` is that of the accumulated matrix, which has `n_tiles` tiles.
        """
        return choose(sizes, lambda *load: self.plan(self.shape(*load)), side, self.resources.threads, n_tiles)
