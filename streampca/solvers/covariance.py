"""Exact PCA by the d × d covariance matrix: one pass, then the eigenpairs of the accumulated matrix.

Where the matrix exceeds the memory and this solver was asked for by name, it is made in groups of tiles, one reading each, and kept on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from typing_extensions import override

from streampca.accumulators import (
    CompleteRows,
    Covariance,
    CovarianceState,
    ExactIntegerCovariance,
    PairwiseCovariance,
    SparseCovariance,
)
from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.covariance import panel_rows
from streampca.accumulators.wrappers import ByGroup, ConsecutiveGroups
from streampca.errors import DataError, PlanError
from streampca.execution.readings import Reading, Readings
from streampca.formatting import as_text
from streampca.linalg.cross_validation import MOST_COMPONENTS, N_GROUPS
from streampca.linalg.eigen import DENSE_LIMIT, basis_size, block_size, eigenvalues, uses_krylov
from streampca.linalg.tiles import TileFile, TileGrid, product_bytes
from streampca.models.conditional import scratch_bytes
from streampca.models.pca import PCAModel
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.memory import (
    ALWAYS,
    WORKER_PROCESS_BYTES,
    MemoryBudget,
    MemoryNeed,
    Phase,
    buffer_bytes,
    eigenproblem_bytes,
    model_need,
    reading_needs,
    report_need,
    sampled_rows_need,
    scores_bytes,
)
from streampca.planning.plan import CovarianceDetail, Plan
from streampca.planning.shape import (
    BLOCK_BYTES,
    WorkShape,
    block_rows_to_try,
    bytes_to_read,
    count_leaves,
    divide,
    repeated_reads_note,
)
from streampca.planning.work import Figures, Resources
from streampca.solvers.base import ContinuableSolver
from streampca.solvers.covariance_model import operator_of, solve_model
from streampca.solvers.result import Accumulated, Fit
from streampca.sources.base import Source
from streampca.storage.directories import require_space
from streampca.storage.scratch import Scratch
from streampca.system.device import HOST
from streampca.system.process import release_freed_memory
from streampca.typing import FloatArray

_SMALL_STATE_BYTES = 16 * 2**20
"""Size of a state up to which finished leaves may wait to be merged."""
_WIDE_FROM_BYTES = 32 * 2**20
"""Size of a panel beyond which a block is as large as one."""
_ROWS_OF_GROUP = 32
"""Rows of each group that a block has on average, at least: to add one to the state of a group takes as long as to add some hundreds."""
_ROWS_PER_FEATURE = 128
"""Rows for each feature from which all eigenvectors and the merging of the states take less time than one more reading."""
_VERIFYING_BYTES = 128 * 2**20
"""What `verify` takes beside the states of the groups: panels of rows in float64."""
_ON_DISK_FROM = 2048  # features; below, the matrix takes 32 MiB at most and is not what takes the room
_ROWS_OF_AN_ADDITION = 128  # adding a product to its tile takes as long as so many more rows in the product
_MOST_TIMES = 2  # readings for all threads, relative to those for one

Plain = Covariance | ExactIntegerCovariance
"""Accumulators of dense rows without missing values."""
CovarianceAccumulator = Plain | SparseCovariance | CompleteRows | PairwiseCovariance


def accumulator_of(parameters: Parameters, source: Source | None = None) -> CovarianceAccumulator:
    """Return the accumulator of the rows of `source`; without a source, that of the states that models store."""
    plain = parameters.center, parameters.scale, parameters.ddof
    covariance = Covariance(*plain, parameters.forgetting)
    if parameters.missing in ("mean", "pairwise"):
        return PairwiseCovariance(*plain, impute=parameters.missing == "mean")
    if source is None or parameters.remove is not None:  # residuals are neither sparse nor integers
        return covariance
    if source.sparse:
        return SparseCovariance(*plain)
    if parameters.missing == "drop_rows" and source.dtype.kind == "f":
        return CompleteRows(covariance)
    exact = parameters.device == HOST  # a device adds float64, which is exact for them, too
    if (
        exact
        and ExactIntegerCovariance.takes(source.dtype)
        and parameters.sample_weight is None
        and parameters.forgetting == 1
    ):
        return ExactIntegerCovariance.of(source.dtype, covariance)
    return covariance


def grouped_accumulator(parameters: Parameters, source: Source, n_groups: int) -> ByGroup:
    """Return the accumulator of the rows of each of `n_groups` groups of consecutive rows, at most as many as rows."""
    n, accumulator = source.shape[0], accumulator_of(parameters, source)
    n_groups = min(n_groups, n)
    return ByGroup(accumulator, ConsecutiveGroups(n, n_groups), n_groups)


@dataclass(frozen=True)
class CovarianceSolver(ContinuableSolver):
    """Exact, by the d × d covariance matrix."""

    by_group: ByGroup | None = None
    """What accumulates a matrix for each group of rows; None = one of all."""

    name = "covariance"
    settings = CovarianceDetail

    @cached_property
    def accumulator(self) -> Any:
        """Return what accumulates the rows."""
        return accumulator_of(self.parameters, self.source) if self.by_group is None else self.by_group

    @override
    def plan(self, resources: Resources) -> Plan:
        """Return the plan of the fit, with the matrix on disk if it does not fit in memory and this solver was named.

        Raises
        ------
        PlanError
            If that does not fit either, or else with what the matrix on disk would take.
        """
        parameters, d = self.parameters, self.source.shape[1]
        n_components = parameters.count(self.source)
        if parameters.n_components == "cross_validation":
            return self._plan_cross_validated(resources)
        try:
            return replace(self, n_components=n_components, resources=resources).plan_in_memory()
        except PlanError as error:
            if d < _ON_DISK_FROM or parameters.remove is not None:  # tiles on disk have no residuals
                raise
            refusal = str(error)
        by_name = parameters.solver == self.name
        try:
            plan = OnDisk(self.source, parameters, n_components=n_components, resources=resources).plan_on_disk()
        except PlanError as error:
            raise PlanError(f"{refusal}; {error}" if by_name else refusal) from error
        if by_name:
            return plan.with_notes([f"in memory: {refusal}"])
        raise PlanError(
            f"{refusal}; solver='covariance', asked for by name, would need {plan.passes} passes and {as_text(plan.disk_bytes)} of disk"
        )

    def plan_in_memory(self) -> Plan:
        """Return how the covariance is accumulated within the memory that is allowed.

        Raises
        ------
        PlanError
            If it does not fit: with what is projected, what is allowed, and what to change.
        """
        d = self.source.shape[1]
        shares = self.accumulator.shares(d)
        panel_bytes = panel_rows(d, self.dtype) * d * self.dtype.itemsize
        wide = panel_bytes > _WIDE_FROM_BYTES  # else the default size
        least = 1 if self.by_group is None else _ROWS_OF_GROUP * self.by_group.n_groups
        sizes = block_rows_to_try(self.source, self.dtype, panel_bytes if wide else BLOCK_BYTES, least)
        plan = self.best(sizes, d, shares)
        if plan.budget.fits:
            return plan
        sketch = "or "  # which auto tries for a number of components
        if self.n_components is None or self.parameters.solver == "covariance":
            sketch = 'use a number of components (n_components=50) with solver="sketch", or '
        raise plan.budget.refusal(
            {
                "states": f"the {d:,} x {d:,} matrix takes most of it; use fewer features, {sketch}",
                "blocks": f"use chunks of fewer than {self.source.chunk_rows:,} rows, or ",
                "solve": sketch if self.n_components is None else "ask for fewer components (n_components), or ",
                "scores": "set scores: false, or ",
                "report": "set report: false, or ",
            }
        )

    def plan_by_group(self, by_group: ByGroup, n_components: int | None, resources: Resources, beside: int) -> Plan:
        """Return how the covariances of groups are accumulated, with `beside` bytes beside their states; errors are those of `plan_in_memory`."""
        resources = resources.holding("groups", beside)
        return replace(self, n_components=n_components, resources=resources, by_group=by_group).plan_in_memory()

    def _plan_cross_validated(self, resources: Resources) -> Plan:
        """Return how the covariances of all groups are accumulated within the memory that is allowed.

        Beside the states of the groups there are that of all rows, four d × d matrices of the group that is left out, and six times as many
        vectors as components are tried.

        Raises
        ------
        PlanError
            If that does not fit.
        """
        d, grouped = self.source.shape[1], grouped_accumulator(self.parameters, self.source, N_GROUPS)
        own = grouped.accumulator.state_bytes(d) + 8 * d * (4 * d + 6 * min(d, MOST_COMPONENTS))
        try:
            plan = self.plan_by_group(grouped, None, resources, own)
        except PlanError as error:
            raise PlanError(
                f"n_components='cross_validation', with {grouped.n_groups} covariance matrices: {error}"
            ) from error
        states = as_text(grouped.state_bytes(d))
        flops = plan.flops + grouped.n_groups * 10.0 * d**3
        reason = f"exact; {grouped.n_groups} matrices of {d:,} x {d:,}, one for each group of rows, take {states}, for cross-validation"
        return replace(plan, reason=reason, flops=flops)

    @override
    def plan_with_groups(self, resources: Resources, plan: Plan, *, always: bool = False) -> Plan | None:
        """Return `plan` with a covariance of each group of rows that sampling errors leave out in turn; None where another way is better.

        That is where they do not fit, or read or compute more. With `always`, since there is no other way, whatever they read and
        compute: `PlanError` where they do not fit.

        Beside the states of the groups there are that of all rows, five d × d matrices for all eigenvectors and the group at hand, and
        the k products of each group with the components. `verify` has to fit, too.
        """
        parameters, (n, d), m = self.parameters, self.source.shape, self.parameters.sampling_errors
        if plan.tile_groups or parameters.n_components == "cross_validation" or parameters.remove is not None:
            return None
        if not always and (d > DENSE_LIMIT or n < _ROWS_PER_FEATURE * d):
            return None
        grouped, n_components = grouped_accumulator(parameters, self.source, m), parameters.count(self.source)
        k = min(n, d) if n_components is None else n_components
        own = grouped.accumulator.state_bytes(d) + 8 * d * (5 * d + m * (k + 6))
        try:
            self.plan_by_group(grouped, n_components, resources, own + 2 * grouped.state_bytes(d) + _VERIFYING_BYTES)
            planned = self.plan_by_group(grouped, n_components, resources, own)
        except PlanError as error:
            if always:
                raise PlanError(f"sampling errors, with {m} covariance matrices: {error}") from error
            return None
        if not always and planned.bytes_to_read > plan.bytes_to_read:
            return None
        states = as_text(grouped.state_bytes(d))
        note = f"sampling errors by {m} groups of rows: from a covariance of each, kept by the one reading of the fit; they take {states}"
        flops = planned.flops + 10.0 * d**3 + 2.0 * m * d * d * k
        return replace(planned, reason=plan.reason, notes=(*plan.notes, note), flops=flops, sampling_errors="groups")

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, d = self.source.shape
        state = self.accumulator.state_bytes(d)
        return divide(
            n,
            rows,
            count_leaves(n, -(-n // rows), self.source.row_bytes, state),
            (leaves, threads_per_leaf, self.resources.threads),
            state_bytes=state,
            small_state_bytes=_SMALL_STATE_BYTES,
            tile=self.accumulator.grid(d).longest_side,
        )

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what states, (1 + W) S, blocks, scratch, the eigenproblem of side d, the model and scores take."""
        d, accumulator = self.source.shape[1], replace(self.accumulator, n_threads=shape.threads_per_leaf)
        scratch = accumulator.scratch_bytes(d, shape.rows_per_block, self.dtype.itemsize)
        sizes = accumulator.state_bytes(d), scratch
        return [*reading_needs(self.source, shape, sizes), *self.solving_needs(accumulator, shape)]

    def solving_needs(self, accumulator: Any, shape: WorkShape) -> list[MemoryNeed]:
        """Return what a covariance takes beside its reading, wherever the matrix is."""
        (n, d), rows, leaves, resources = (
            self.source.shape,
            shape.rows_per_block,
            shape.leaves_in_flight,
            self.resources,
        )
        k = min(n, d) if self.n_components is None else self.n_components
        scores = scores_bytes(self.source, rows, leaves, k, panel_rows(d, self.dtype))
        if isinstance(accumulator, PairwiseCovariance):
            scores += leaves * scratch_bytes(k)
        after: tuple[Phase, ...] = ("solving", "scores", "report")
        weights = []
        if self.parameters.sample_weight is not None:  # of a panel, the rows whose weight is not zero are copied
            copied = resources.threads * 8 * d * min(n, panel_rows(d, self.dtype))
            weights.append(MemoryNeed("weights", copied))
        return [
            *weights,
            sampled_rows_need(self.source, resources.report_rows),
            MemoryNeed("solve", eigenproblem_bytes(d, k) + accumulator.finalize_bytes(d), ("solving",)),
            model_need(d, k, *after),
            MemoryNeed("scores", scores if resources.scores else 0, ("scores",)),
            report_need(report=resources.report),
        ]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        n, d = self.source.shape
        size = as_text(self.accumulator.state_bytes(d))
        return Figures(
            reason=f"exact; the {d:,} x {d:,} matrix takes {size} as tiles of its lower triangle",
            flops=float(n) * d * d + 4 / 3 * float(d) ** 3,
            detail=CovarianceDetail(),
            notes=repeated_reads_note(self.source, reading),
        )

    @override
    def reason_chosen(self, plan: Plan) -> str:
        """Return why ``solver="auto"`` chose `plan`."""
        if 2 * plan.n_samples > plan.n_features:
            return "chosen because one reading is enough, and there are more samples than half the features"
        return "chosen because one reading is enough, and there are few features or gram does not apply"

    @override
    def accumulated(self, plan: Plan, accumulator: AnyAccumulator | None = None) -> Readings[Accumulated]:
        """Read the rows once and return their state; raise `PlanError` if the matrix is to be on disk."""
        parameters = self.parameters
        if plan.tile_groups:
            raise PlanError(
                f"the {plan.n_features:,} x {plan.n_features:,} matrix would be on disk, where no rows can be added to it: "
                f"use fit, or allow more memory; {plan.notes[-1]}"
            )
        n_groups = parameters.sampling_errors if plan.sampling_errors == "groups" else 0
        if parameters.n_components == "cross_validation":
            n_groups = N_GROUPS
        reads: Any = grouped_accumulator(parameters, self.source, n_groups) if n_groups else self.accumulator
        reads = replace(reads, n_threads=plan.threads_per_leaf)
        (state,) = (yield Reading(self.source, (reads,), plan, parameters.sample_weight)).take()
        shared = replace(reads, n_threads=plan.threads)
        if not n_groups:
            general, state, n_left_out = shared.stored_form(state)
            return Accumulated(replace(general, n_threads=plan.threads), state, n_left_out)
        forms = [shared.inner.stored_form(group) for group in state.groups]
        whole: Any = replace(forms[0][0], n_threads=plan.threads)
        groups, left_out = tuple(form[1] for form in forms), sum(form[2] for form in forms)
        total = whole.init(self.source.shape[1])
        for group in groups:
            total = whole.absorb(total, group)
        return Accumulated(whole, total, left_out, groups)

    @override
    @classmethod
    def solve_model(cls, fitted: FittedState, work: str) -> PCAModel:
        """Return the model of a covariance matrix."""
        return solve_model(fitted, work)

    @override
    @classmethod
    def all_eigenvalues(cls, fitted: FittedState) -> FloatArray | None:
        return None if fitted.n_features > DENSE_LIMIT else eigenvalues(operator_of(fitted))

    @override
    def work_of(self, plan: Plan) -> str:
        """Return the data type whose rounding the products carry: of small integers nothing but the last step is rounded."""
        return "float64" if isinstance(self.accumulator, ExactIntegerCovariance) else plan.work_dtype

    @override
    def readings(self, plan: Plan) -> Readings[Fit]:
        """Read the rows, once or, with the matrix on disk, once for each group of tiles; return their principal components."""
        if plan.tile_groups:
            return (yield from OnDisk(self.source, self.parameters).readings(plan))
        return (yield from super().readings(plan))


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


@dataclass(frozen=True)
class OnDisk(CovarianceSolver):
    """A fit by the covariance matrix on disk."""

    n_tiles: int = 1
    """Tiles of a group, at most."""

    def plan_on_disk(self) -> Plan:
        """Return the plan of the fit.

        Of the block sizes the one is taken with which least is read by one thread in all readings together, so that it, and
        with it the bits, does not depend on the threads. Then as many threads as fit share the tiles, as long as that does
        not double the number of readings: every thread has a product, so they leave less room for a group.

        Raises
        ------
        PlanError
            If that does not fit either, or if it is not for these rows or so many components.
        """
        accumulator, k, d = self.accumulator, self.n_components, self.source.shape[1]
        forgets = isinstance(accumulator, Covariance) and accumulator.forgetting != 1
        if not isinstance(accumulator, Plain) or forgets or self.source.sparse:
            raise PlanError("a matrix on disk is only for dense rows without missing values and without forgetting")
        if k is None or not uses_krylov(d, k):
            raise PlanError(
                f"a matrix on disk gives at most a tenth as many components as features: found n_components="
                f"{'a share, a threshold or None' if k is None else k}, expected a count of at most {d // 10:,}"
            )
        rows, least = self.rows_and_groups()
        threads = self.resources.threads
        while (
            groups := self.groups(rows, threads, self.resources.allowed_bytes)
        ) is None or groups > _MOST_TIMES * least:
            threads -= 1
        work = replace(self, n_tiles=-(-self.grid.n_tiles // groups))
        return work.plan_for(work.shape(rows, 1, threads))

    @property
    def grid(self) -> TileGrid:
        """Return how the whole matrix is stored."""
        grid: TileGrid = self.accumulator.grid(self.source.shape[1])
        return grid

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
        scratch = shared.scratch_bytes(d, rows, self.dtype.itemsize)
        return [
            MemoryNeed("states", 2 * group, ("reading",)),
            MemoryNeed("blocks", buffer_bytes(self.source, rows), ("reading",)),
            MemoryNeed("scratch", scratch, ("reading",)),
            *self.solving_needs(shared, shape),
            MemoryNeed("tiles", product_bytes(grid, block_size(self.n_components or 1), shape.threads), ("solving",)),
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
            flops=float(n) * d * d + 2.0 * d * d * basis_size(d, self.n_components or 1),
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
        sizes = block_rows_to_try(self.source, self.dtype)
        allowed = self.resources.allowed_bytes
        process = self.memory(sizes[0], 1, 0).bytes_for(*ALWAYS)

        def fitting(allowed: int) -> list[tuple[int, int]]:
            return [(rows, groups) for rows in sizes if (groups := self.groups(rows, 1, allowed))]

        fits, nominal = fitting(allowed), fitting(allowed - max(0, WORKER_PROCESS_BYTES - process))
        if not fits:
            least = min((self.memory(rows, 1, 1) for rows in sizes), key=lambda budget: budget.projected_bytes)
            raise least.refusal(
                "ask for fewer components (n_components), use chunks of fewer rows, or ",
                subject="with the matrix on disk, made tile by tile, ",
            )

        def in_all(candidate: tuple[int, int]) -> float:
            return candidate[1] * bytes_to_read(self.source, candidate[0]) * (1 + _ROWS_OF_AN_ADDITION / candidate[0])

        rows, groups = min(fits, key=in_all)
        preferred = min(nominal, key=in_all)[0] if nominal else rows
        if bytes_to_read(self.source, preferred) <= bytes_to_read(self.source, rows):
            return preferred, dict(fits)[preferred]
        return rows, groups

    @override
    def readings(self, plan: Plan) -> Readings[Fit]:
        """Read the rows once for each group of tiles and return their principal components.

        Raises
        ------
        NoSpaceError
            If the tiles do not fit on the disk; nothing is read then.
        DataError
            If the rows were not the same in all readings.
        """
        source, parameters = self.source, self.parameters
        kind: Any = replace(self.accumulator, n_threads=plan.threads_per_leaf)
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
            fitted = FittedState(self.name, covariance, first, parameters, plan.work_dtype, source.describe())
            model = solve_model(fitted, self.work_of(plan))
        return Fit(model=model, plan=plan)


def _require_same(first: CovarianceState, other: CovarianceState, reading: str) -> None:
    """Raise `DataError` unless two readings found the same rows: as many, of the same weight, with the same bits of the mean."""
    changed = np.flatnonzero((first.origin != other.origin) | (first.offset != other.offset))
    if other.n_samples == first.n_samples and other.weight == first.weight and not len(changed):
        return
    difference = (
        f"the mean of feature {changed[0]} is {other.mean[changed[0]]!r}, but was {first.mean[changed[0]]!r}"
        if len(changed)
        else f"{other.n_samples} rows of weight {other.weight:g}, but {first.n_samples} of weight {first.weight:g} before"
    )
    raise DataError(
        f"{reading}: {difference}: the data changed while it was read: expected the same rows each time; start again"
    )
