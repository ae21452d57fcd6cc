"""What the approximate solvers will do: how many columns, which pilot, how many readings, in how much memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.adaptive import IncrementalSVD
from streampca.accumulators.centring import product_dtype
from streampca.accumulators.shifting import sketch_panel_rows
from streampca.accumulators.sketch import Sketch
from streampca.errors import NotAvailableError, ParameterError
from streampca.formatting import as_text
from streampca.linalg.selection import Count, Rule
from streampca.parameters import Parameters
from streampca.planning.blocks import BLOCK_BYTES, block_rows_to_try, repeated_reads_note
from streampca.planning.budget import MemoryNeed
from streampca.planning.detail import SketchDetail
from streampca.planning.memory import (
    buffer_bytes,
    model_need,
    report_need,
    sampled_rows_need,
    scores_bytes,
)
from streampca.planning.plan import Plan
from streampca.planning.shape import WorkShape, count_leaves, divide, most_leaves
from streampca.planning.work import Figures, Resources, Work
from streampca.solvers.capabilities import needs_moments
from streampca.solvers.filling import complete, unread, with_means_first
from streampca.solvers.pilot import Pilot, plan_pilot
from streampca.sources.base import Source
from streampca.typing import DType

HELD_OUT_COLUMNS = 20  # Gaussian columns that only the certificate uses
_SPARE_COLUMNS = 10  # beyond the components, below which an answer is not worth having
_COMPONENTS_UNKNOWN = 32  # taken for the size of the sketch where the data decides their number
_MOST_PASSES, _PASSES_FOR_ALL = 8, 2  # by default: until the tolerance is met, and where it is 0
_GOOD = 0.01  # relative width of intervals that solver="auto" is content with
_ROWS_PER_BLOCK, _MOST_BLOCK_BYTES = 1024, 128 * 2**20
_LEAF_BYTES = 256 * 2**20
_BLOCKS_TO_SHUFFLE = 64
_RETAINED_BYTES = 64 * 2**20
"""What glibc retains of the memory that a thread has freed: twice its largest mmap threshold."""
_SOLVE_COPIES = 4
"""Arrays of features x columns that solving takes beside the test matrix and the products."""
_BLOCKS_PER_UPDATE, _UPDATES_PER_LEAF, _MOST_LEAVES, _UPDATE_BYTES = 8, 4, 8, 32 * 2**20


def sizes_of(plan: Plan) -> SketchDetail:
    """Return the settings of the approximate solver of `plan`."""
    if not isinstance(plan.detail, SketchDetail):
        raise TypeError(f"the solver {plan.solver} is not an approximate one")
    return plan.detail


def pilot_of(detail: SketchDetail) -> Pilot:
    """Return which rows are read before the first pass."""
    return Pilot(detail.pilot_rows, detail.pilot_bands, detail.pilot_bytes)


def plan_sketch(source: Source, parameters: Parameters, resources: Resources, solver: str) -> Plan:
    """Return the plan of an approximate fit.

    Raises
    ------
    PlanError
        If not even a sketch of ten columns more than components fits.
    """
    n, d = source.shape
    k = parameters.count(source)
    if parameters.missing == "mean":
        plan = plan_sketch(unread(source), complete(parameters), resources, solver)
        return with_means_first(plan, source)
    tried, work = [], AdaptiveWork if solver == "adaptive" else SketchWork
    for columns in _columns_to_try(parameters, n, d, k, solver):
        for keep_all in (True, False):
            plan = work(source, k, resources, parameters, columns, keep_all).best_plan()
            if plan.budget.fits:
                return plan
            tried.append(plan)
            if plan.passes == 1:
                break
    least = min(tried, key=lambda plan: plan.projected_bytes)
    raise least.budget.refusal(
        "fewer components, or ", beside=f", with a sketch of {sizes_of(least).columns} columns of {d:,} features"
    )


def require_sketch(source: Source | None, parameters: Parameters) -> None:
    """Raise for what the approximate solvers do not take; without a `source`, whatever the rows."""
    selection = parameters.selection(source)
    k = selection.n_components if isinstance(selection, Count) else None
    if isinstance(selection, Rule) and parameters.missing == "pairwise":
        raise NotAvailableError(
            f"n_components={selection.name!r} does not go together with missing='pairwise', where noise has no known law"
        )
    _require_recovery(parameters)
    if not isinstance(parameters.sketch_size, str) and k is not None and parameters.sketch_size < k:
        raise ParameterError(
            f"sketch_size={parameters.sketch_size} is less than n_components={k}: expected at least {k + _SPARE_COLUMNS} "
            'columns, or "auto"'
        )


def reading_limits(parameters: Parameters) -> tuple[int, float | None]:
    """Return how often an approximate solver may multiply the rows, and the width of intervals at which it stops.

    A solver that is named reads once without a tolerance. ``"auto"`` answers for its choice: it reads on until eigenvalues
    are certified to `_GOOD`, unless one reading is all that is allowed. The conversion has no use for further readings.
    """
    most, tolerance = parameters.max_passes, parameters.tolerance
    if tolerance is None and parameters.solver == "auto":
        tolerance = _GOOD
    if isinstance(most, str):
        most = _PASSES_FOR_ALL if tolerance == 0 else _MOST_PASSES
    if tolerance is None or most == 1 or parameters.recovery == "conversion":
        return 1, parameters.tolerance
    return most, tolerance


def _require_recovery(parameters: Parameters) -> None:
    """Raise where the published conversion does not go together with what is asked for."""
    if parameters.recovery != "conversion":
        return
    readings = 2 if needs_moments(parameters) else 1
    if isinstance(parameters.max_passes, str):
        if parameters.tolerance is None or readings == 2:
            return
        most = _PASSES_FOR_ALL
    else:
        most = parameters.max_passes
    if most < readings:
        raise ParameterError(
            f"max_passes={parameters.max_passes} with recovery='conversion': expected at least 2, because z-scores and shares of "
            "observed values have to be known before rows are multiplied; use max_passes=2 or recovery='nystrom'"
        )
    if most > 2 or (parameters.tolerance is not None and most > readings):
        raise ParameterError(
            f"max_passes={parameters.max_passes} and tolerance={parameters.tolerance} with recovery='conversion': expected {readings} "
            "passes at most, because the published "
            "conversion multiplies every row once and further passes would not improve it; use recovery='nystrom', or "
            f"{'tolerance=None' if most == 2 else f'max_passes={readings}'}"
        )


def _columns_to_try(parameters: Parameters, n: int, d: int, k: int | None, solver: str) -> list[int]:
    """Return numbers of columns, best first."""
    limit = max(1, min(n, d))
    if not isinstance(parameters.sketch_size, str):
        return [min(int(parameters.sketch_size), d)]
    wanted = _COMPONENTS_UNKNOWN if k is None else k
    informed = parameters.recovery == "nystrom" and (
        solver == "adaptive" or (parameters.pilot != 0 and parameters.sketch in ("auto", "gaussian"))
    )
    size = max(2 * wanted, wanted + 32) if informed else max(4 * wanted, wanted + 64)
    sizes = [min(size, limit)]
    least = min(wanted + _SPARE_COLUMNS, limit)
    while sizes[-1] > least:
        sizes.append(max(least, sizes[-1] * 3 // 4))
    return sizes


@dataclass(frozen=True)
class SketchWork(Work):
    """An approximate fit with so many columns."""

    parameters: Parameters
    """Parameters of the fit."""
    columns: int
    """Columns of the test matrix, or the rank."""
    keep_all: bool
    """Whether the products of all passes stay in memory."""

    solver: ClassVar[str] = "sketch"

    @override
    @property
    def work_dtype(self) -> str:
        return str(product_dtype(self.source.dtype, self.source.shape[1]))

    def best_plan(self) -> Plan:
        """Return the best plan that fits, or the one that takes least memory if none does."""
        d, dtype = self.source.shape[1], product_dtype(self.source.dtype, self.source.shape[1])
        shares = self.resources.threads if self.solver == "adaptive" else max(1, d // 4096)
        return self.best(_block_rows(self.source, dtype, self.solver), 0, shares)

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, d = self.source.shape
        state = 8 * d * (self.columns + HELD_OUT_COLUMNS)
        n_leaves = _count_leaves(self.source, self.solver, rows, state)
        return divide(
            n,
            rows,
            n_leaves,
            (min(leaves, n_leaves), threads_per_leaf, self.resources.threads),
            state_bytes=state,
            shuffle_seed=self.parameters.seed if self.solver == "adaptive" else None,
        )

    def detail(self, shape: WorkShape) -> SketchDetail:
        """Return the settings for rows that are divided as `shape`."""
        detail = self._settings
        if self.solver != "adaptive":
            return detail
        row_bytes = self.source.shape[1] * product_dtype(self.source.dtype, self.source.shape[1]).itemsize
        return replace(detail, rows_per_update=_rows_per_update(shape, self.columns, row_bytes))

    @cached_property
    def _settings(self) -> SketchDetail:
        """Return the settings, but for the rows of an update."""
        parameters, resources, source = self.parameters, self.resources, self.source
        passes, tolerance = reading_limits(parameters)
        informed = parameters.recovery == "nystrom" and (
            parameters.sketch in ("auto", "gaussian") or parameters.scale or self.solver == "adaptive"
        )
        wanted = parameters.pilot if informed and (self.solver == "sketch" or parameters.scale) else 0
        if parameters.pilot not in ("auto", 0):
            wanted = parameters.pilot
        shape = self.shape(1, 1, 1)
        beside = sum(need.n_bytes for each in resources.companions for need in each.needs(self, shape))
        free = resources.allowed_bytes - resources.process_bytes - beside
        pilot = plan_pilot(source, wanted, self.columns, max(0, free) // 2)
        return SketchDetail(
            columns=self.columns,
            held_out=min(HELD_OUT_COLUMNS, source.shape[1]),
            passes=passes,
            keep_all=self.keep_all,
            pilot_rows=pilot.n_rows,
            pilot_bands=pilot.n_bands,
            pilot_bytes=pilot.bytes,
            moments_first=needs_moments(parameters),
            tolerance=tolerance,
        )

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what an approximate fit takes, with q columns and g held out.

        Test matrix: d (q + g) w, twice with several passes; kept products: 16 d (K q + g) for K kept passes; solve: 8 d (4 K q + 4 (q + g)).
        """
        source, detail, resources = self.source, self.detail(shape), self.resources
        d, rows, leaves = source.shape[1], shape.rows_per_block, shape.leaves_in_flight
        dtype = product_dtype(source.dtype, d)
        k = detail.columns if self.n_components is None else min(self.n_components, detail.columns)
        several = detail.passes > 1 or detail.moments_first
        columns = detail.columns + detail.held_out
        retained_columns = (detail.passes if detail.keep_all else 1) * detail.columns
        blocks, scratch = leaves * buffer_bytes(source, rows), leaves * _scratch_bytes(source, detail, shape)
        scores = scores_bytes(source, rows, leaves, k, sketch_panel_rows(d, dtype)) if resources.scores else 0
        return [
            MemoryNeed("states", states_bytes(source, detail, shape.n_states), ("reading",)),
            MemoryNeed("test matrix", d * columns * dtype.itemsize * (2 if several else 1), ("reading",)),
            MemoryNeed("kept products", 16 * d * (retained_columns + detail.held_out), ("reading", "solving")),
            MemoryNeed("blocks", blocks, ("reading",)),
            MemoryNeed("scratch", scratch, ("reading",)),
            MemoryNeed("pilot", pilot_bytes(source, detail), ("pilot",)),
            MemoryNeed("solve", 8 * d * (retained_columns * _SOLVE_COPIES + 4 * columns), ("solving",)),
            model_need(d, k, "solving", "scores", "report"),
            MemoryNeed("scores", scores, ("scores",)),
            sampled_rows_need(source, resources.report_rows),
            report_need(report=resources.report),
            MemoryNeed("scratch", min(blocks + scratch, leaves * _RETAINED_BYTES), ("solving", "report"), listed=False),
        ]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        (n, d), detail = self.source.shape, self.detail(shape)
        flops = 4.0 * n * d * (detail.passes * self.columns + detail.held_out)
        flops *= 3.5 if self.solver == "adaptive" and detail.passes == 1 else 1.0
        return Figures(
            reason=_reason(self.solver, detail, d) + _stopping(detail),
            flops=flops + 6.0 * d * (detail.passes * self.columns) ** 2,
            passes=detail.passes + int(detail.moments_first),
            bytes_beside=detail.pilot_bytes,
            detail=detail,
            notes=_notes(self.source, detail, reading),
        )


class AdaptiveWork(SketchWork):
    """A fit by incremental updates."""

    solver = "adaptive"


def pilot_bytes(source: Source, detail: SketchDetail) -> int:
    """Return what the m rows of the pilot take: 2 m d w + 32 d q + one band of chunks; the last two only where they exist."""
    (n, d), m = source.shape, detail.pilot_rows
    band = min(n, source.chunk_rows) * source.row_bytes if detail.pilot_bands else 0
    return m * d * product_dtype(source.dtype, d).itemsize * 2 + band + (32 * d * detail.columns if m else 0)


def states_bytes(source: Source, detail: SketchDetail, n_states: int) -> int:
    """Return what states take: (1 + L) S.

    With several passes, the state of the first pass and the next basis in float64, S + 8 d (q + g), are in memory, too.
    """
    d, columns = source.shape[1], detail.columns + detail.held_out
    several = detail.passes > 1 or detail.moments_first
    first = state = _sketch(source, columns, 1).state_bytes(d)
    if detail.rows_per_update:
        first = _sketch(source, detail.held_out, 1).state_bytes(d) + _update(detail, 1).state_bytes(d)
        state = max(first, state) if several else first
    return state * n_states + (first + 8 * d * columns if several else 0)


def _scratch_bytes(source: Source, detail: SketchDetail, shape: WorkShape) -> int:
    """Return the scratch of an update in one leaf; of `adaptive`, the larger of the first pass and later ones."""
    d, rows, threads = source.shape[1], shape.rows_per_block, shape.threads_per_leaf
    itemsize = product_dtype(source.dtype, d).itemsize
    scratch = _sketch(source, detail.columns + detail.held_out, threads).scratch_bytes(d, rows, itemsize)
    if not detail.rows_per_update:
        return scratch
    held_out = _sketch(source, detail.held_out, threads).scratch_bytes(d, rows, itemsize)
    return max(scratch, held_out + _update(detail, threads).scratch_bytes(d, rows, itemsize))


def _sketch(source: Source, columns: int, threads: int) -> Sketch:
    """Return an accumulator of products with so many columns, to ask it for sizes."""
    return Sketch(
        np.empty((0, columns), dtype=product_dtype(source.dtype, source.shape[1])), n_threads=threads, key="plan"
    )


def _update(detail: SketchDetail, threads: int) -> IncrementalSVD:
    return IncrementalSVD(detail.columns, detail.rows_per_update, n_threads=threads)


def _block_rows(source: Source, dtype: DType, solver: str) -> list[int]:
    """Return rows per block, best first; enough rows that adding products of features x columns costs little."""
    n, d = source.shape[0], source.n_features_read
    size = min(_MOST_BLOCK_BYTES, max(BLOCK_BYTES, _ROWS_PER_BLOCK * d * dtype.itemsize))
    if solver == "adaptive":  # many blocks, so that a shuffled order mixes what lies far apart
        band = min(source.chunk_rows, n)
        rows = max(1, n // _BLOCKS_TO_SHUFFLE, min(band, n))
        size = min(size, max(rows // band * band, 1) * d * max(source.dtype.itemsize, dtype.itemsize))
    return block_rows_to_try(source, dtype, size)


def _count_leaves(source: Source, solver: str, rows: int, state_bytes: int) -> int:
    """Return the number of leaves for blocks of `rows` rows."""
    n, d = source.shape
    n_blocks = -(-n // rows)
    if solver == "sketch":
        # Adding a leaf's products to the total takes a few parts in a hundred of computing them.
        most = min(max(1, n * source.row_bytes // _LEAF_BYTES), most_leaves(state_bytes))
        return min(max(most, count_leaves(n, n_blocks, source.row_bytes)), n_blocks)
    blocks = _blocks_per_update(rows, d * product_dtype(source.dtype, d).itemsize)
    return max(1, min(_MOST_LEAVES, n_blocks // (blocks * _UPDATES_PER_LEAF)))


def _blocks_per_update(rows: int, row_bytes: int) -> int:
    """Return the blocks of one incremental update: eight, or as many as have 32 MiB."""
    return max(_BLOCKS_PER_UPDATE, _UPDATE_BYTES // (rows * row_bytes))


def _rows_per_update(shape: WorkShape, rank: int, row_bytes: int) -> int:
    """Return rows of one incremental update: those of eight blocks or 32 MiB, unless these are many more than the rank.

    The more rows from different places meet in one update, the less is lost.
    """
    rows = shape.rows_per_block
    blocks = min(_blocks_per_update(rows, row_bytes), -(-shape.n_blocks // shape.n_leaves))
    most = max(rows, 16 * rank, _UPDATE_BYTES // row_bytes)
    return max(1, min(blocks * rows, most))


def _reason(solver: str, detail: SketchDetail, d: int) -> str:
    exact = as_text(4 * d * d)
    if solver == "adaptive":
        return (
            f"approximate, with a certificate; a basis of rank {detail.columns} follows the rows in shuffled order, where the "
            f"{d:,} x {d:,} matrix would take {exact}"
        )
    return (
        f"approximate, with a certificate; the products with {detail.columns} vectors are kept, where the {d:,} x {d:,} matrix "
        f"would take {exact}"
    )


def _stopping(detail: SketchDetail) -> str:
    """Return when reading ends, in words; nothing where it ends after one pass."""
    if detail.passes == 1:
        return ""
    if detail.tolerance == 0:
        return f"; reads {detail.passes} times"
    return (
        f"; reads at most {detail.passes} times, and stops once every eigenvalue is certified to {detail.tolerance:g}"
    )


def _notes(source: Source, detail: SketchDetail, reading: int) -> tuple[str, ...]:
    notes = []
    if detail.pilot_rows:
        share = detail.pilot_bytes / (source.shape[0] * source.row_bytes)
        where = f"{detail.pilot_bands:,} bands of chunks" if detail.pilot_bands else "all over the source"
        notes.append(
            f"before the first pass {detail.pilot_rows:,} rows from {where} are read ({as_text(detail.pilot_bytes)}, {share:.2%} of the data)"
        )
    if detail.moments_first:
        notes.append(
            "the first reading takes means and variances, the second multiplies the rows in their final scales"
        )
    if not detail.keep_all and detail.passes > 1:
        notes.append("only the last block of products is kept: with more memory all of them would give smaller errors")
    return (*notes, *repeated_reads_note(source, reading, " in each pass"))
