"""Exact PCA by the d × d covariance matrix where that exceeds the memory: made in groups of tiles, one reading each, kept on disk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators import Covariance, CovarianceState, ExactIntegerCovariance
from streampca.accumulators.centring import product_dtype
from streampca.errors import DataError, PlanError
from streampca.execution.readings import Reading, Readings
from streampca.formatting import as_text
from streampca.linalg.eigen import uses_krylov
from streampca.linalg.lanczos import basis_size, block_size
from streampca.linalg.tiles import TileFile, TileGrid, product_bytes
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.blocks import block_rows_to_try, bytes_to_read, repeated_reads_note
from streampca.planning.budget import ALWAYS, MemoryBudget, MemoryNeed
from streampca.planning.covariance import solving_needs
from streampca.planning.covariance_accumulators import CovarianceAccumulator, accumulator_of
from streampca.planning.detail import CovarianceDetail
from streampca.planning.memory import WORKER_PROCESS_BYTES, buffer_bytes
from streampca.planning.plan import Plan
from streampca.planning.shape import WorkShape, count_leaves, divide
from streampca.planning.work import Figures, Resources, Work
from streampca.solvers.covariance_model import solve_model
from streampca.solvers.result import Fit
from streampca.sources.base import Source
from streampca.storage.directories import require_space
from streampca.storage.scratch import Scratch
from streampca.system.process import release_freed_memory

_ROWS_OF_AN_ADDITION = 128  # adding a product to its tile takes as long as so many more rows in the product
_MOST_TIMES = 2  # readings for all threads, relative to those for one

Plain = Covariance | ExactIntegerCovariance
"""Accumulators of dense rows without missing values."""


@dataclass(frozen=True)
class TiledCovariance(Covariance):
    """A `Covariance` of some tiles of the scatter, or with all of them in a file.

    Panels, centring and the order of additions are those of `Covariance`. A tile does not depend on the others, so that
    ranges one after the other equal the scatter of `Covariance` bit by bit.
    """

    layout: TileGrid = field(kw_only=True)
    """The tiles."""

    def grid(self, n_features: int) -> TileGrid:
        """Return the layout of the tiles."""
        return self.layout


def plan(source: Source, accumulator: CovarianceAccumulator, n_components: int | None, resources: Resources) -> Plan:
    """Return the plan of a fit with the matrix on disk.

    Of the block sizes the one is taken with which least is read by one thread in all readings together, so that it, and
    with it the bits, does not depend on the threads. Then as many threads as fit share the tiles, as long as that does
    not double the number of readings: every thread has a product, so they leave less room for a group.

    Raises
    ------
    PlanError
        If that does not fit either, or if it is not for these rows or so many components.
    """
    forgets = isinstance(accumulator, Covariance) and accumulator.forgetting != 1
    if not isinstance(accumulator, Plain) or forgets or source.sparse:
        raise PlanError("a matrix on disk is only for dense rows without missing values and without forgetting")
    d = source.shape[1]
    if n_components is None or not uses_krylov(d, n_components):
        raise PlanError(
            f"a matrix on disk gives at most a tenth as many components as features: found n_components="
            f"{'a share, a threshold or None' if n_components is None else n_components}, expected a count of at most {d // 10:,}"
        )
    work = DiskWork(source, n_components, resources, accumulator)
    rows, least = work.rows_and_groups()
    threads = resources.threads
    while (groups := work.groups(rows, threads, resources.allowed_bytes)) is None or groups > _MOST_TIMES * least:
        threads -= 1
    work = replace(work, n_tiles=-(-work.grid.n_tiles // groups))
    return work.plan_for(work.shape(rows, 1, threads))


@dataclass(frozen=True)
class DiskWork(Work):
    """A fit by the covariance matrix on disk."""

    accumulator: Plain
    """What the whole matrix would be accumulated with in memory."""
    n_tiles: int = 1
    """Tiles of a group, at most."""

    name: ClassVar[str] = "covariance"

    @override
    @property
    def work_dtype(self) -> str:
        return str(product_dtype(self.source.dtype, self.source.shape[1]))

    @property
    def grid(self) -> TileGrid:
        """Return how the whole matrix is stored."""
        return self.accumulator.grid(self.source.shape[1])

    @property
    def k(self) -> int:
        """Return the number of components."""
        return self.n_components or 1

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, grid = self.source.shape[0], self.grid
        n_leaves = count_leaves(n, -(-n // rows), self.source.row_bytes, 8 * grid.size)
        shared = max(1, min(threads_per_leaf, self.n_tiles))
        return divide(n, rows, n_leaves, (1, shared, threads_per_leaf), tile=grid.longest_side)

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what a fit takes.

        States: 2 · 8 (tiles t² + 2 d), the total of a group and that of its leaf; tiles: those that are read from the disk, and
        their products (`product_bytes`).
        """
        d, grid, rows = self.source.shape[1], self.grid, shape.rows_per_block
        group = 8 * (min(self.n_tiles * grid.longest_side**2, grid.size) + 2 * d)
        shared = replace(self.accumulator, n_threads=shape.threads)
        scratch = shared.scratch_bytes(d, rows, product_dtype(self.source.dtype, d).itemsize)
        return [
            MemoryNeed("states", 2 * group, ("reading",)),
            MemoryNeed("blocks", buffer_bytes(self.source, rows), ("reading",)),
            MemoryNeed("scratch", scratch, ("reading",)),
            *solving_needs(self.source, shared, self.k, shape, self.resources),
            MemoryNeed("tiles", product_bytes(grid, block_size(self.k), shape.threads), ("solving",)),
        ]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        (n, d), disk = self.source.shape, 8 * self.grid.size
        groups = -(-self.grid.n_tiles // self.n_tiles)
        reads = (
            f"the rows are read {groups} time{'s' if groups > 1 else ''}, for {groups} group{'s' if groups > 1 else ''} of tiles; "
            f"{as_text(disk)} of temporary files hold them until the fit ends; no state is kept for partial_fit and merge"
        )
        return Figures(
            reason=f"exact; the {d:,} x {d:,} matrix takes {as_text(disk)} as tiles of its lower triangle, which are kept on disk",
            flops=float(n) * d * d + 2.0 * d * d * basis_size(d, self.k),
            passes=groups,
            disk_bytes=disk,
            detail=CovarianceDetail(groups),
            notes=[reads, *repeated_reads_note(self.source, reading, " in each pass")],
        )

    def memory(self, rows: int, threads: int, n_tiles: int) -> MemoryBudget:
        """Return the memory with blocks of `rows` rows, and groups of at most `n_tiles` tiles that `threads` threads share."""
        work = replace(self, n_tiles=n_tiles)
        return work.budget(work.shape(rows, 1, threads))

    def groups(self, rows: int, threads: int, allowed: int) -> int | None:
        """Return the smallest number of groups with which `allowed` bytes are enough; None if one tile is too much."""
        empty = self.memory(rows, threads, 0)
        n_tiles = (allowed - empty.by_phase["reading"]) // (16 * self.grid.longest_side**2)
        return None if n_tiles < 1 or empty.projected_bytes > allowed else -(-self.grid.n_tiles // n_tiles)

    def rows_and_groups(self) -> tuple[int, int]:
        """Return rows of a block and groups with which one thread reads least in all passes together.

        Few rows in a block would leave memory for larger groups, so their price counts. Rows that fit beside a process of
        nominal size are preferred if a pass takes no more, as in memory.
        """
        sizes = block_rows_to_try(self.source, product_dtype(self.source.dtype, self.source.shape[1]))
        allowed = self.resources.allowed_bytes
        process = self.memory(sizes[0], 1, 0).bytes_for(*ALWAYS)

        def fitting(allowed: int) -> list[tuple[int, int]]:
            return [(rows, groups) for rows in sizes if (groups := self.groups(rows, 1, allowed))]

        fits, nominal = fitting(allowed), fitting(allowed - max(0, WORKER_PROCESS_BYTES - process))
        if not fits:
            least = min((self.memory(rows, 1, 1) for rows in sizes), key=lambda budget: budget.projected_bytes)
            raise least.refusal(
                "fewer components (n_components), chunks of fewer rows, or ",
                subject="with the matrix on disk, made tile by tile, ",
            )

        def in_all(candidate: tuple[int, int]) -> float:
            return candidate[1] * bytes_to_read(self.source, candidate[0]) * (1 + _ROWS_OF_AN_ADDITION / candidate[0])

        rows, groups = min(fits, key=in_all)
        preferred = min(nominal, key=in_all)[0] if nominal else rows
        if bytes_to_read(self.source, preferred) <= bytes_to_read(self.source, rows):
            return preferred, dict(fits)[preferred]
        return rows, groups


def readings(source: Source, parameters: Parameters, plan: Plan) -> Readings[Fit]:
    """Read `source` once for each group of tiles and return its principal components.

    Raises
    ------
    NoSpaceError
        If the tiles do not fit on the disk; nothing is read then.
    DataError
        If the rows were not the same in all readings.
    """
    kind: Any = replace(accumulator_of(parameters, source), n_threads=plan.threads_per_leaf)
    exact = isinstance(kind, ExactIntegerCovariance)
    plain: Covariance = kind.covariance if exact else kind
    grid = plain.grid(source.shape[1])
    first: CovarianceState | None = None
    with Scratch() as scratch:
        require_space(scratch.path, plan.disk_bytes)
        tiles = TileFile(grid.n_features, grid.tile_size, path=scratch.path / "tiles")
        edges = [grid.n_tiles * i // plan.tile_groups for i in range(plan.tile_groups + 1)]
        for index, (start, stop) in enumerate(pairwise(edges)):
            covariance = TiledCovariance(**vars(plain), layout=replace(grid, first=start, last=stop))
            group: Any = replace(kind, covariance=covariance) if exact else covariance
            reading = Reading(source, (group,), plan, parameters.sample_weight, n_of_progress=plan.tile_groups)
            (state,) = (yield reading).take()
            state = group.to_covariance(state, out=state.products) if exact else state
            tiles.append(state.scatter)
            state = replace(state, scatter=np.empty(0))
            release_freed_memory()
            first = state if first is None else first
            _require_same(first, state, f"reading {index + 1} of {plan.tile_groups} of {source.description}")
        threads = plan.budget.bytes_for("tiles") // product_bytes(grid, block_size(plan.n_components or 1), 0) - 1
        covariance = TiledCovariance(**vars(replace(plain, n_threads=threads)), layout=tiles)
        fitted = FittedState("covariance", covariance, first, parameters, plan.work_dtype, source.describe())
        model = solve_model(fitted, "float64" if exact else plan.work_dtype)
    return Fit(model=model, plan=plan)


def _require_same(first: CovarianceState, other: CovarianceState, reading: str) -> None:
    """Raise `DataError` unless two readings found the same rows: as many, of the same weight, with the same bits of the mean."""
    changed = np.flatnonzero((first.origin != other.origin) | (first.offset != other.offset))
    if other.n_samples == first.n_samples and other.weight == first.weight and not len(changed):
        return
    difference = (
        f"the mean of feature {changed[0]} is {other.mean[changed[0]]!r}, and was {first.mean[changed[0]]!r}"
        if len(changed)
        else f"{other.n_samples} rows of weight {other.weight:g}, and {first.n_samples} of weight {first.weight:g} before"
    )
    raise DataError(
        f"{reading}: {difference}: the data changed while it was read: expected the same rows each time; start again"
    )
