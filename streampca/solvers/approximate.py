"""Approximate PCA in one pass or a few: products of the covariance matrix with a few vectors, never the matrix itself.

What approximate solvers have in common: the plan, the pilot, held-out columns for the certificate, later passes. One of them is a
subclass of `ApproximateSolver` with its first pass, in a module of its own.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.centring import SAFE_SQUARES, product_dtype, sampled_origin, sketch_panel_rows
from streampca.accumulators.sketch import Sketch, Sketched, SketchState, weighted
from streampca.errors import DataError, NotAvailableError, ParameterError
from streampca.execution.readings import Reading, ReadingAlone, Readings
from streampca.formatting import as_text
from streampca.linalg.certificate import Evidence
from streampca.linalg.component_rules import DEFINITIONS
from streampca.linalg.nystrom import LowRank, Precision
from streampca.linalg.selection import Count, Rule
from streampca.linalg.tall_skinny import gram, orthonormal, peaks, power_of_two, subtract_product, times
from streampca.parameters import Parameters
from streampca.planning.memory import MemoryNeed, buffer_bytes, model_need, report_need, sampled_rows_need, scores_bytes
from streampca.planning.plan import Plan, Rates, SketchDetail
from streampca.planning.shape import (
    BLOCK_BYTES,
    WorkShape,
    block_rows_to_try,
    count_leaves,
    divide,
    most_leaves,
    repeated_reads_note,
)
from streampca.planning.work import Figures, Resources
from streampca.random import generator
from streampca.solvers.approximate_model import Approximation, Chain, answer_of
from streampca.solvers.base import PCASolver
from streampca.solvers.capabilities import Table, needs_moments
from streampca.solvers.pilot import (
    Filling,
    complete,
    counted_rows,
    directions,
    means_are_near,
    observed_origin,
    plan_pilot,
    prepare,
    read_pilot,
    unread,
    with_means_first,
)
from streampca.solvers.result import Accumulated, Fit
from streampca.sources.base import Source
from streampca.system.process import release_freed_memory
from streampca.system.workspace import keep_released, release
from streampca.transforms import CountSketch, GaussianProjection, Grouping, SparseSign
from streampca.typing import Array, FloatArray

HELD_OUT_COLUMNS = 20  # Gaussian columns that only the certificate uses
_SPARE_COLUMNS = 10  # beyond the components, below which an answer is not worth having
_COMPONENTS_UNKNOWN = 32  # taken for the size of the sketch where the data decides their number
_MOST_PASSES, _PASSES_FOR_ALL = 8, 2  # by default: until the tolerance is met, and where it is 0
_GOOD = 0.01  # relative width of intervals that solver="auto" is content with
_ROWS_PER_BLOCK, _MOST_BLOCK_BYTES = 1024, 128 * 2**20
_LEAF_BYTES = 256 * 2**20
_RETAINED_BYTES = 64 * 2**20
"""What glibc retains of the memory that a thread has freed: twice its largest mmap threshold."""
KEPT_PASSES = (4, 3, 2, 1)  # tried where the products of all passes do not fit in memory together
SOLVE_COPIES = 4
"""Arrays of features x columns that solving takes beside the test matrix and the products."""
_ROOM_FOR_HELD = 8  # times as many columns let them take the place of some
_ALGEBRA = 30.0  # products of features x columns² that solving and certifying takes
_HEDGE_SHARE, _LEAST_HEDGE = 4, 10  # a quarter of the columns stays Gaussian, for what the pilot has not seen
_SOME = [name for name, rule in DEFINITIONS.items() if not rule.all_eigenvalues and name != "cross_validation"]
_RULES_OF_SOME = ", ".join(map(repr, _SOME[:-1])) + f" or {_SOME[-1]!r}"


def sizes_of(plan: Plan) -> SketchDetail:
    """Return the settings of the approximate solver of `plan`."""
    if not isinstance(plan.detail, SketchDetail):
        raise TypeError(f"the solver {plan.solver} is not an approximate one")
    return plan.detail


@dataclass(frozen=True)
class FirstPass:
    """What the first pass works with."""

    origin: FloatArray | None
    """What rows are shifted by, ``(n_features,)``; None = each leaf finds a number of its own."""
    factors: FloatArray
    """What the pilot expects features to be multiplied by, ``(n_features,)``."""
    test: Array
    """Test matrix for the rows as they are, in the type of products, ``(n_features, columns)``."""
    near: bool = False
    """Whether means are within a few standard deviations of zero, so that rows need not be shifted."""


@dataclass(frozen=True)
class ApproximateSolver(PCASolver):
    """One pass over the rows, and further ones while the certificate asks for them and the plan allows."""

    columns: int = 0
    """Columns of the test matrix, or the rank, that are planned for."""
    kept_passes: int = 1
    """Passes whose products are planned to stay in memory together."""

    approximate = True
    settings = SketchDetail
    multiplies_first: ClassVar[bool] = True
    """Whether the first pass multiplies rows with columns for the answer, and not only with those held out for the certificate."""
    one_pass_cost: ClassVar[float] = 1.0
    """Operations of a fit in one pass, relative to products with as many columns."""
    refuses: ClassVar[Table] = {
        "forgetting": "use solver='covariance'",
        "a share of the Frobenius norm": "the Frobenius norm is known of the whole covariance matrix alone: use solver='covariance', 'gram' or 'qr', a share of "
        "the variance, or a count",
        "a rule that needs all eigenvalues": f"it needs all eigenvalues; use {_RULES_OF_SOME}, which need the leading ones and the trace, or "
        "solver='covariance', 'gram' or 'qr'",
        "n_components='cross_validation'": "use solver='covariance'",
    }

    @property
    @abstractmethod
    def keeps(self) -> str:
        """Return what the method keeps of the rows, in words."""

    @property
    def directed(self) -> bool:
        """Tell whether leading directions of a pilot take the place of most random columns."""
        return self.parameters.recovery == "nystrom" and self.parameters.sketch in ("auto", "gaussian")

    @property
    def needs_few_columns(self) -> bool:
        """Tell whether twice as many columns as components are enough, where random ones are four times as many."""
        return self.directed and self.parameters.pilot != 0

    @property
    def shares(self) -> int:
        """Return how many threads can share a leaf."""
        return max(1, self.source.shape[1] // 4096)

    @property
    def block_bytes(self) -> int:
        """Return the preferred size of a block: of enough rows that adding products of features x columns costs little."""
        return min(
            _MOST_BLOCK_BYTES, max(BLOCK_BYTES, _ROWS_PER_BLOCK * self.source.n_features_read * self.dtype.itemsize)
        )

    def count_leaves(self, rows: int, state_bytes: int) -> int:
        """Return the number of leaves for blocks of `rows` rows: adding products to the total takes a few parts in a hundred of making them."""
        n, row_bytes = self.source.shape[0], self.source.row_bytes
        n_blocks = -(-n // rows)
        most = min(max(1, n * row_bytes // _LEAF_BYTES), most_leaves(state_bytes))
        return min(max(most, count_leaves(n, n_blocks, row_bytes)), n_blocks)

    def first_in_size(self, detail: SketchDetail, threads: int) -> Sequence[AnyAccumulator]:
        """Return accumulators of the sizes of those of the first pass, in a leaf of so many threads."""
        return (self.sketch_in_size(detail.columns + detail.held_out, threads),)

    def first_accumulators(self, plan: Plan, begun: FirstPass, sketch: Sketch) -> tuple[AnyAccumulator, ...]:
        """Return the accumulators of the first pass, the last of which is `sketch`."""
        return (sketch,)

    def answer_of_first(
        self, known: Sketched, evidence: Evidence, states: tuple[Any, ...], begun: FirstPass, plan: Plan
    ) -> tuple[Evidence, LowRank | None]:
        """Return the evidence, and the answer where the `states` of the first pass hold one beside products."""
        return evidence, None

    @override
    @classmethod
    def require(cls, source: Source | None, parameters: Parameters) -> None:
        super().require(source, parameters)
        selection = parameters.selection(source)
        k = selection.n_components if isinstance(selection, Count) else None
        if isinstance(selection, Rule) and parameters.missing == "pairwise":
            raise NotAvailableError(
                f"n_components={selection.name!r} cannot be combined with missing='pairwise', where no law of noise is known"
            )
        _require_recovery(parameters)
        if not isinstance(parameters.sketch_size, str) and k is not None and parameters.sketch_size < k:
            raise ParameterError(
                f"sketch_size={parameters.sketch_size} is less than n_components={k}: expected at least {k + _SPARE_COLUMNS} "
                'columns, or "auto"'
            )

    @override
    def plan(self, resources: Resources) -> Plan:
        """Return the plan of the fit.

        Raises
        ------
        PlanError
            If not even a sketch of ten columns more than components fits.
        """
        source, parameters = self.source, self.parameters
        if parameters.missing == "mean":
            filled = replace(self, source=unread(source), parameters=complete(parameters))
            return with_means_first(filled.plan(resources), source)
        tried, k, passes = [], parameters.count(source), reading_limits(parameters)[0]
        limit = max(1, min(self.source.shape))
        for columns in columns_to_try(parameters, k, limit, source.shape[1], few=self.needs_few_columns):
            for kept in (passes, *(number for number in KEPT_PASSES if number < passes)):
                work = replace(self, n_components=k, resources=resources, columns=columns, kept_passes=kept)
                plan = work.best(block_rows_to_try(source, self.dtype, self.block_bytes), 0, work.shares)
                if plan.budget.fits:
                    return plan
                tried.append(plan)
        least = min(tried, key=lambda plan: plan.projected_bytes)
        raise least.budget.refusal(
            "ask for fewer components, or ",
            beside=f", with a sketch of {sizes_of(least).columns} columns of {source.shape[1]:,} features",
        )

    @override
    def reason_chosen(self, plan: Plan) -> str:
        """Return why ``solver="auto"`` chose `plan`."""
        tolerance = self.parameters.tolerance
        why = "chosen because no exact solver fits in the memory"
        if tolerance is not None:
            why = (
                f"chosen because errors up to {tolerance:g} are allowed, and it is expected to take less time or memory "
                "than exact solvers"
            )
        if plan.solver == "adaptive" and plan.solver_passes == 1:
            why += "; with one pass it is more accurate than a sketch"
        return why

    @override
    @classmethod
    def solve_seconds(cls, plan: Plan, rates: Rates) -> float:
        """Return the time of the algebra, which is done after every pass with the products so far."""
        sizes, d = sizes_of(plan), plan.n_samples if plan.axis == "features" else plan.n_features
        columns = float(sizes.columns * sizes.kept_passes)
        algebra = _ALGEBRA * d * columns**2 + float(sizes.pilot_rows) ** 2 * d
        return algebra / rates.multiply + 20.0 * columns**3 / rates.lapack

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, d = self.source.shape
        state = 8 * d * (self.columns + HELD_OUT_COLUMNS)
        n_leaves = self.count_leaves(rows, state)
        at_once = (min(leaves, n_leaves), threads_per_leaf, self.resources.threads)
        return divide(n, rows, n_leaves, at_once, state_bytes=state)

    def detail(self, shape: WorkShape) -> SketchDetail:
        """Return the settings for rows that are divided as `shape`."""
        return self._settings

    @cached_property
    def _settings(self) -> SketchDetail:
        """Return what of the settings does not depend on the division of the rows."""
        parameters, resources, source = self.parameters, self.resources, self.source
        passes, tolerance = reading_limits(parameters)
        informed = self.directed or (parameters.recovery == "nystrom" and bool(parameters.scale))
        wanted = parameters.pilot if informed or parameters.pilot != "auto" else 0
        shape = self.shape(1, 1, 1)
        beside = sum(need.n_bytes for each in resources.companions for need in each.needs(self, shape))
        free = resources.allowed_bytes - resources.process_bytes - beside
        pilot_rows, pilot_bands, pilot_bytes = plan_pilot(source, wanted, self.columns, max(0, free) // 2)
        return SketchDetail(
            columns=self.columns,
            held_out=min(HELD_OUT_COLUMNS, source.shape[1]),
            passes=passes,
            kept_passes=self.kept_passes,
            pilot_rows=pilot_rows,
            pilot_bands=pilot_bands,
            pilot_bytes=pilot_bytes,
            moments_first=needs_moments(parameters),
            tolerance=tolerance,
        )

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what an approximate fit takes, with q columns and g held out.

        States: (1 + L) S, with several passes S + 8 d (q + g) more, the state of the first pass and the next basis in float64; test
        matrix: d (q + g) w, twice with several passes; kept products: 16 d (K q + g) for K kept passes, 2 g with several; pilot of m rows: 2 m d w + 32 d q
        and one band of chunks, the last two only where they exist; solve: 8 d (4 K q + 4 (q + g)).
        """
        source, detail, resources = self.source, self.detail(shape), self.resources
        (n, d), rows, leaves, threads = (
            source.shape,
            shape.rows_per_block,
            shape.leaves_in_flight,
            shape.threads_per_leaf,
        )
        k = detail.columns if self.n_components is None else min(self.n_components, detail.columns)
        several, columns = detail.passes > 1 or detail.moments_first, detail.columns + detail.held_out
        retained_columns = detail.kept_passes * detail.columns
        held = detail.held_out * (2 if detail.passes > 1 else 1)
        itemsize = self.dtype.itemsize
        first, later = self.first_in_size(detail, threads), self.sketch_in_size(columns, threads)
        of_first = sum(each.state_bytes(d) for each in first)
        states = shape.n_states * (max(of_first, later.state_bytes(d)) if several else of_first)
        in_leaf = max(
            sum(each.scratch_bytes(d, rows, itemsize) for each in first), later.scratch_bytes(d, rows, itemsize)
        )
        blocks, scratch = leaves * buffer_bytes(source, rows), leaves * in_leaf
        band = min(n, source.chunk_rows) * source.row_bytes if detail.pilot_bands else 0
        pilot = detail.pilot_rows * d * itemsize * 2 + band + (32 * d * detail.columns if detail.pilot_rows else 0)
        scores = scores_bytes(source, rows, leaves, k, sketch_panel_rows(d, self.dtype)) if resources.scores else 0
        return [
            MemoryNeed("states", states + (of_first + 8 * d * columns if several else 0), ("reading",)),
            MemoryNeed("test matrix", d * columns * itemsize * (2 if several else 1), ("reading",)),
            MemoryNeed("kept products", 16 * d * (retained_columns + held), ("reading", "solving")),
            MemoryNeed("blocks", blocks, ("reading",)),
            MemoryNeed("scratch", scratch, ("reading",)),
            MemoryNeed("pilot", pilot, ("pilot",)),
            MemoryNeed("solve", 8 * d * (retained_columns * SOLVE_COPIES + 4 * columns), ("solving",)),
            model_need(d, k, "solving", "scores", "report"),
            MemoryNeed("scores", scores, ("scores",)),
            sampled_rows_need(source, resources.report_rows),
            report_need(report=resources.report),
            MemoryNeed("scratch", min(blocks + scratch, leaves * _RETAINED_BYTES), ("solving", "report"), listed=False),
        ]

    def sketch_in_size(self, columns: int, threads: int) -> Sketch:
        """Return an accumulator of products with so many columns, to ask it for sizes."""
        return Sketch(np.empty((0, columns), dtype=self.dtype), n_threads=threads, key="plan")

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        source, (n, d), detail = self.source, self.source.shape, self.detail(shape)
        flops = 4.0 * n * d * (detail.passes * self.columns + detail.held_out)
        flops *= self.one_pass_cost if detail.passes == 1 else 1.0
        reason = f"approximate, with a certificate; {self.keeps}, whereas the {d:,} x {d:,} matrix would take {as_text(4 * d * d)}"
        notes = []
        if detail.passes > 1 and detail.tolerance == 0:
            reason += f"; reads {detail.passes} times"
        elif detail.passes > 1:
            reason += f"; reads at most {detail.passes} times, and stops once every eigenvalue is certified to {detail.tolerance:g}"
        if detail.pilot_rows:
            share = detail.pilot_bytes / (n * source.row_bytes)
            where = f"{detail.pilot_bands:,} bands of chunks" if detail.pilot_bands else "all over the source"
            notes.append(
                f"before the first pass {detail.pilot_rows:,} rows from {where} are read ({as_text(detail.pilot_bytes)}, {share:.2%} of the data)"
            )
        if detail.moments_first:
            notes.append(
                "the first reading takes means and variances, the second multiplies the rows in their final scales"
            )
        if detail.kept_passes < detail.passes:
            notes.append(
                f"the products of {detail.kept_passes} passes fit in memory together: with more memory, those of all passes would give smaller errors"
            )
        return Figures(
            reason=reason,
            flops=flops + 6.0 * d * (detail.passes * self.columns) ** 2,
            passes=detail.passes + int(detail.moments_first),
            bytes_beside=detail.pilot_bytes,
            detail=detail,
            notes=(*notes, *repeated_reads_note(source, reading, " in each pass")),
        )

    @override
    def readings(self, plan: Plan) -> Readings[Fit]:
        """Read the rows once, and again while passes are left and the certificate asks for it; return the answer."""
        if self.parameters.missing != "mean":
            return (yield from self._readings(plan))
        filling = yield from Filling.read(self.source, self.parameters, plan)
        filled = replace(self, source=filling.source, parameters=filling.parameters_of(self.parameters))
        return filling.finished((yield from filled._readings(plan, filling.subtracted)), self.parameters)

    def _readings(self, plan: Plan, subtracted: FloatArray | float = 0.0) -> Readings[Fit]:
        sizes, removing, parameters = sizes_of(plan), self.removing, self.parameters
        # Residuals may be float32 where products are float64.
        rounded = plan.work_dtype == "float32" or (removing is not None and removing.dtype == np.float32)
        work: Precision = "float32" if rounded else "float64"
        room = plan.projected_bytes - plan.budget.by_phase["solving"]
        with keep_released(room):
            rows, known, evidence, low_rank = yield from self._opening(plan)
            before, state = plan.solver_passes - sizes.passes, rows.state
            n_matrices = min(sizes.passes - (not self.multiplies_first), sizes.kept_passes)
            chain = Chain(plan.n_features, sizes.columns * n_matrices)
            if low_rank is None:
                chain.add(*split(known, sizes.held_out)[0])
            known = replace(known, test=np.empty((0, 0)), products=np.empty((0, 0)))

            def again(basis: FloatArray, number: int) -> Readings[tuple[FloatArray, FloatArray]]:
                return self._again(plan, basis, known, state, before + number)

            answer, n_passes = yield from refined(chain, known, evidence, parameters, plan, work, again, low_rank)
            known = replace(known, mean=known.mean + subtracted)
            model = answer.model(known, state, parameters, self.source.describe(), before + n_passes)
        return Fit(model=model, plan=plan, fitted_state=rows.fitted_state(self.source, parameters, plan))

    def start(self, plan: Plan) -> Readings[FirstPass]:
        """Read the pilot that `plan` announced, and return the start of the first pass.

        The columns of Ω are the leading directions of the pilot's rows and Gaussian columns made orthonormal; or those of a
        transform, where no pilot is read. They are meant for features times their `factors`, so the rows as they are meet
        factors · Ω (see `Sketched`). The last columns are held out for the certificate.
        """
        source, parameters, removing = self.source, self.parameters, self.removing
        sizes, d = sizes_of(plan), source.shape[1]
        weights, origin, basis, near = feature_factors(parameters, d), None, None, False
        seen = np.zeros(d, dtype=bool)
        if sizes.pilot_rows:
            pilot = partial(read_pilot, source, parameters, plan, sizes)
            ((chosen, rows),) = (yield ReadingAlone(pilot)).take()
            chosen, rows, counted = counted_rows(chosen, rows, parameters)
            if removing is not None:
                rows = removing.of_pilot(rows, chosen)
            middle = sampled_origin(rows, rows.dtype)
            seen = np.asarray(~np.isnan(rows).all(axis=0)) & counted
            # Sparse rows would be filled by it; and it would be off a feature that is constant in the rows that count.
            origin = None if source.sparse or not counted else middle
            weights, near = prepare(rows, middle, weights, parameters, plan.threads)
            near = near and counted
            if self.directed:
                hedge = min(sizes.columns, max(_LEAST_HEDGE, sizes.columns // _HEDGE_SHARE))
                basis = directions(rows, sizes.columns - hedge, plan.threads)
            del rows
            release()  # this thread decodes nothing more
        if parameters.missing == "pairwise":
            known = np.zeros(d) if origin is None else origin
            found = partial(observed_origin, source, known, seen, parameters.sample_weight)
            (origin,) = (yield ReadingAlone(lambda client, progress: found())).take()
        if removing is not None:  # residuals have the mean 0
            origin, near = np.zeros(d), True
        held = held_out_columns(parameters, d, sizes.held_out)
        if not self.multiplies_first:
            basis = np.empty((d, 0))
        elif basis is None:
            basis = columns_of(parameters, source, sizes.columns)
        else:
            drawn = generator(parameters.seed, "hedge").standard_normal((d, sizes.columns - basis.shape[1]))
            basis = orthonormal(np.hstack([basis, drawn]), n_threads=plan.threads, overwrite=True)
        test = np.empty((d, basis.shape[1] + sizes.held_out), dtype=product_dtype(source.dtype, d, weights))
        np.multiply(basis, weights[:, None], out=test[:, : basis.shape[1]], casting="same_kind")
        np.multiply(held, weights[:, None], out=test[:, basis.shape[1] :], casting="same_kind")
        return FirstPass(origin, weights, test, near)

    def _opening(self, plan: Plan) -> Readings[tuple[Accumulated, Sketched, Evidence, LowRank | None]]:
        """Read as often as it takes to have products: once, or after a reading for moments where those have to come first.

        Returns the accumulated rows, moments and products, the evidence, and the answer where the first pass gave one.
        """
        sizes, d, factors = sizes_of(plan), plan.n_features, feature_factors(self.parameters, plan.n_features)
        begun = yield from self.start(plan)
        if not sizes.moments_first:
            rows, states = yield from self.first(plan, begun)
            known = weighted(rows.accumulator.finalize(rows.state), factors)
            varying = known.weights > 0
            ratio = np.divide(begun.factors, known.weights, out=np.ones(d), where=varying)
            stretch = float(1 / ratio[varying].min()) if varying.any() else 1.0
            evidence = Evidence(*split(known, sizes.held_out)[1], max(stretch, 1.0))
            return rows, known, *self.answer_of_first(known, evidence, states, begun, plan)
        rows, _ = yield from self.first(plan, replace(begun, test=begun.test[:, :0]))
        state = rows.state
        known = weighted(rows.accumulator.finalize(state), factors)
        held = held_out_columns(self.parameters, d, sizes.held_out)
        drawn = np.hstack([columns_of(self.parameters, self.source, sizes.columns), held])
        if len(state.observed):  # products come out for these shares times the columns
            drawn *= np.divide(state.weight, state.observed, out=np.ones(d), where=state.observed > 0)[:, None]
        test, products = yield from self._again(plan, drawn, known, state, 2)
        known = replace(known, test=test, products=products)
        return rows, known, Evidence(*split(known, sizes.held_out)[1], 1.0), None

    def first(self, plan: Plan, begun: FirstPass) -> Readings[tuple[Accumulated, tuple[Any, ...]]]:
        """Read once from `begun`; return the rows as the sketch has them, and the states of all accumulators."""
        sketch = self._sketch(plan, begun.test, begun.origin, moments=True, near=begun.near)
        states = yield from self._accumulated(self.first_accumulators(plan, begun, sketch), plan)
        return Accumulated(sketch, states[-1], states[-1].n_left_out), states

    def _again(
        self, plan: Plan, basis: FloatArray, known: Sketched, first: SketchState, number: int
    ) -> Readings[tuple[FloatArray, FloatArray]]:
        """Read once more, in pass `number`; return the test matrix as it was used, and its products.

        `basis` is meant for features times ``known.weights``; the means and variances are those of the first pass.
        """
        wide = basis * known.weights[:, None]
        dtype = product_dtype(self.source.dtype, len(basis), np.abs(wide).max(axis=1))
        low, high = SAFE_SQUARES
        with np.errstate(over="ignore"):  # sums of squares about zero, as a pass with moments asks of every panel
            squares = known.variance * known.divisor + known.weight * known.mean**2
        within = ((squares == 0) | ((low < squares) & (squares < high))).all()
        test = wide.astype(dtype if within else np.float64)
        origin = None if self.source.sparse else known.mean
        near = means_are_near(known.mean, np.sqrt(known.variance))
        sketch = self._sketch(plan, test, origin, moments=False, near=near)
        (state,) = yield from self._accumulated((sketch,), plan.unshuffled(), f"pass {number}")
        if state.n_samples != first.n_samples or not np.array_equal(state.observed, first.observed):
            raise DataError(
                f"{self.source.description} changed between two passes: {first.n_samples} rows were counted in the first and "
                f"{state.n_samples} in a later one; run again on data that does not change"
            )
        # The sums of the first pass over the same rows, moved to the origin of this one.
        away = first.origin - state.origin
        weight = first.observed if len(first.observed) else first.weight
        sums, squares = first.sums + weight * away, first.squares + away * (2 * first.sums + weight * away)
        state = replace(state, sums=sums, squares=squares)
        scaled = weighted(sketch.finalize(state), feature_factors(self.parameters, plan.n_features))
        return scaled.test, scaled.products

    def _sketch(self, plan: Plan, test: Array, origin: FloatArray | None, *, moments: bool, near: bool) -> Sketch:
        wanted = self.parameters
        return Sketch(
            test,
            center=wanted.center,
            scale=wanted.scale,
            ddof=wanted.ddof,
            missing=wanted.missing,
            origin=origin,
            moments=moments,
            copy_rows=not near,
            n_threads=plan.threads_per_leaf,
        )

    def _accumulated(
        self, accumulators: tuple[AnyAccumulator, ...], plan: Plan, phase: str = "fit"
    ) -> Readings[tuple[Any, ...]]:
        release_freed_memory()
        states = (yield Reading(self.source, accumulators, plan, self.parameters.sample_weight, phase)).take()
        release_freed_memory()
        return states


def columns_to_try(parameters: Parameters, k: int | None, limit: int, side: int, *, few: bool) -> list[int]:
    """Return numbers of columns of the test matrix for `k` components and a matrix of that `side` and rank `limit`, best first."""
    if not isinstance(parameters.sketch_size, str):
        return [min(int(parameters.sketch_size), side)]
    wanted = _COMPONENTS_UNKNOWN if k is None else k
    size = max(2 * wanted, wanted + 32) if few else max(4 * wanted, wanted + 64)
    sizes = [min(size, limit)]
    least = min(wanted + _SPARE_COLUMNS, limit)
    while sizes[-1] > least:
        sizes.append(max(least, sizes[-1] * 3 // 4))
    return sizes


def refined(
    chain: Chain,
    known: Sketched,
    evidence: Evidence,
    parameters: Parameters,
    plan: Plan,
    work: Precision,
    again: Callable[[FloatArray, int], Readings[tuple[FloatArray, FloatArray]]],
    low_rank: LowRank | None = None,
) -> Readings[tuple[Approximation, int]]:
    """Multiply again while passes are left and the certificate asks for it; return the answer and how many passes multiplied.

    Parameters
    ----------
    chain : Chain
        Test matrix and products of the first pass, unless `low_rank` is what it gave.
    known : Sketched
        Moments of the rows.
    evidence : Evidence
        Columns held out, with their products.
    parameters : Parameters
        Parameters of the fit.
    plan : Plan
        The plan, with the settings of an approximate solver.
    work : str
        Data type whose rounding the products have.
    again : callable
        Reads once more in the pass of that number and returns the test matrix, as it was used, and its products.
    low_rank : LowRank, optional
        The answer of an incremental pass.
    """
    sizes, number = sizes_of(plan), 1
    evidence = replace(evidence, looks=sizes.passes)
    answer = answer_of(known, chain, evidence, parameters, work, plan.threads, low_rank)
    while number < sizes.passes and not answer.within(sizes.tolerance):
        basis, width, exponent, power = _next_test(chain, answer, evidence, plan, work)
        del answer, low_rank
        test, products = yield from again(basis, number + 1)
        number, low_rank = number + 1, None
        chain.add(test[:, :width], products[:, :width])
        held = test[:, width:].copy(), products[:, width:].copy(), exponent, power
        evidence = replace(evidence, again=held)
        del basis, test, products
        answer = answer_of(known, chain, evidence, parameters, work, plan.threads)
    return answer, number


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


def split(known: Sketched, held_out: int) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
    """Return test matrix and products of the columns for the answer, and copies of those of the last, held-out ones."""
    first = known.test.shape[1] - held_out
    held = known.test[:, first:].copy(), known.products[:, first:].copy()
    return (known.test[:, :first], known.products[:, :first]), held


def _next_test(
    chain: Chain, answer: Approximation, evidence: Evidence, plan: Plan, work: Precision
) -> tuple[FloatArray, int, float, int]:
    """Return the columns of the next pass, the number of those for the answer, and log₂ of the factor and the power of the others.

    Those for the answer are the leading directions of the last products, orthogonal to all test matrices that are kept: block Krylov
    (Tropp & Webber 2023). After an incremental pass, and where no further products have room, they are the leading eigenvectors so far.
    The others are what of the products of held-out columns is orthogonal to all of these, for the certificate, times a power of two that
    keeps their products in range: of their products in the last pass, so that each pass multiplies them by one more power, unless test
    matrices were given up that span more than the new one (see `Evidence.again`).
    """
    sizes, threads = sizes_of(plan), plan.threads
    held = evidence.products.shape[1]
    width = sizes.columns - held if sizes.columns >= _ROOM_FOR_HELD * held else sizes.columns
    used, spans = chain.test.shape[1], []
    if used and chain.has_room(width):
        spans.append(chain.span(work, threads))
        remainder = chain.newest.copy()
        subtract_product(remainder, spans[0], gram(spans[0], remainder, threads), threads)
        basis = orthonormal(_leading(remainder, width, threads), spans[0], n_threads=threads, overwrite=True)
    else:
        basis = answer.low_rank.vectors[:, : width if used else sizes.columns]
    multiplied, exponent, power = evidence.products, 0.0, 1
    if evidence.again is not None and (spans or basis.shape[1] == used):
        _, multiplied, exponent, power = evidence.again
        power += 1
    outside = multiplied.copy()
    factor = float(power_of_two(peaks(outside, threads).max(initial=0.0)))
    outside *= factor
    for span in [*spans, basis] * 2:
        subtract_product(outside, span, gram(span, outside, threads), threads)
    return np.hstack([basis, outside]), basis.shape[1], exponent + math.log2(factor), power


def _leading(vectors: FloatArray, n_wanted: int, n_threads: int) -> FloatArray:
    """Return `n_wanted` combinations of the columns of `vectors` that hold most of them, ``(n_features, n_wanted)``."""
    if n_wanted >= vectors.shape[1]:
        return vectors.copy()
    rotation = np.linalg.eigh(gram(vectors, vectors, n_threads))[1][:, ::-1][:, :n_wanted]
    return times(vectors, rotation, n_threads)


def feature_factors(parameters: Parameters, n_features: int) -> FloatArray:
    """Return what centred and scaled features are multiplied by for their weights, ``(n_features,)``."""
    weight = parameters.feature_weight
    return np.ones(n_features) if weight is None else np.sqrt(weight)


def held_out_columns(parameters: Parameters, n_features: int, n_columns: int) -> FloatArray:
    """Return the standard normal columns that only the certificate uses, ``(n_features, n_columns)``."""
    return np.asarray(generator(parameters.seed, "held-out columns").standard_normal((n_features, n_columns)))


def columns_of(parameters: Parameters, source: Source, size: int) -> FloatArray:
    """Return the test matrix of the transform that `parameters` name, ``(n_features, size or fewer)``, E Ω Ωᵀ = 1."""
    if parameters.sketch == "grouping":
        return _grouping(source, size).matrix()
    names, d = source.feature_names, source.shape[1]
    unique = names is not None and len(set(names)) == d
    return transform_matrix(
        parameters.sketch, (d, size), parameters.n_hashes, parameters.seed, names if unique else None
    )


def transform_matrix(
    sketch: str, shape: tuple[int, int], n_hashes: int, seed: int, names: tuple[str, ...] | None = None
) -> FloatArray:
    """Return the matrix of the transform `sketch`, of `shape` or with fewer columns, E Ω Ωᵀ = 1."""
    n_rows, size = shape
    if sketch == "count_sketch":
        return CountSketch(n_rows, size, min(n_hashes, size), seed, names).matrix()
    if sketch == "sparse_sign":
        return SparseSign(n_rows, size, min(8, size), seed).matrix()
    if sketch == "grouping":
        return Grouping(n_rows, size).matrix()
    return GaussianProjection(n_rows, size, seed).matrix()


def _grouping(source: Source, size: int) -> Grouping:
    """Return groups of neighbouring features: blocks of pixels where rows are pictures, of the finest size that fits."""
    shape = source.feature_shape
    if shape is not None and len(shape) in (2, 3):
        channels = shape[2] if len(shape) == 3 else 1
        for factor in range(1, max(shape[:2]) + 1):
            if -(-shape[0] // factor) * -(-shape[1] // factor) * channels <= size:
                return Grouping.of_pictures(shape, factor)
    return Grouping(source.shape[1], min(size, source.shape[1]))
