"""Approximate PCA in one pass or a few: products of the covariance matrix with a few vectors, never the matrix itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.adaptive import AdaptiveState, IncrementalSVD, rescaled
from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.centring import product_dtype
from streampca.accumulators.shifting import SAFE_SQUARES
from streampca.accumulators.sketch import Sketch
from streampca.accumulators.sketched import Sketched, SketchState, weighted
from streampca.errors import DataError
from streampca.execution.readings import Reading, Readings
from streampca.linalg.certificate import ROUNDING_OF_REPEATED_ROWS, Evidence
from streampca.linalg.component_rules import DEFINITIONS
from streampca.linalg.nystrom import LowRank, Precision
from streampca.linalg.tall_skinny import gram, orthonormal, peaks, power_of_two, subtract_product, times
from streampca.models.approximate import Answer, Chain, answer_of
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.detail import SketchDetail
from streampca.planning.plan import Plan
from streampca.planning.work import Resources
from streampca.solvers.base import PCASolver
from streampca.solvers.capabilities import Table
from streampca.solvers.filling import Filling
from streampca.solvers.options import Asked
from streampca.solvers.plan_sketch import plan_sketch, require_sketch, sizes_of
from streampca.solvers.removing import Removing
from streampca.solvers.result import Accumulated, Fit
from streampca.solvers.test_matrix import Start, columns_of, held_out_columns, means_are_near, start
from streampca.sources.base import Source
from streampca.system.process import release_freed_memory
from streampca.system.workspace import keep_released
from streampca.typing import Array, FloatArray

_EXCESS = 1e-3  # of the variance of a feature, known exactly, above which the answer is not below the covariance
_UPDATE_ROUNDING = 16 * float(np.finfo(np.float64).eps)
_AGAIN = 10  # held-out columns whose products are multiplied once more by later passes
_ROOM_FOR_HELD = 8  # times as many columns let them take the place of some


def _most_columns(sizes: SketchDetail, *, adaptive: bool) -> int:
    """Return how many columns of test matrices are in memory at once; an incremental pass has none."""
    n_matrices = sizes.passes - int(adaptive)
    return sizes.columns * (n_matrices if sizes.keep_all else min(n_matrices, 1))


def split(known: Sketched, held_out: int) -> tuple[tuple[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
    """Return test matrix and products of the columns for the answer, and copies of those of the last, held-out ones."""
    first = known.test.shape[1] - held_out
    held = known.test[:, first:].copy(), known.products[:, first:].copy()
    return (known.test[:, :first], known.products[:, :first]), held


def _first_products(
    rows: Accumulated, expected: FloatArray, parameters: Parameters, plan: Plan
) -> tuple[Sketched, Evidence, LowRank | None]:
    """Return moments and products of the first pass, the evidence, and the answer where an incremental pass gave one.

    `expected` are the factors of the features that the held-out columns were drawn for.
    """
    sizes, state = sizes_of(plan), _sketch_state(rows.state)
    known = weighted(rows.accumulator.finalize(state), feature_factors(parameters, plan.n_features))
    varying = known.weights > 0
    ratio = np.divide(expected, known.weights, out=np.ones_like(expected), where=varying)
    stretch = float(1 / ratio[varying].min()) if varying.any() else 1.0
    held = split(known, sizes.held_out)[1]
    if plan.solver != "adaptive":
        return known, Evidence(*held, max(stretch, 1.0)), None
    adapted = _adaptive(parameters, plan, expected).finalize(rows.state[0])
    metric = _metric(expected)
    factors = known.weights if metric is None else known.weights / metric
    # Every update rounds relative to the largest feature in its metric, which the factors may magnify.
    largest = float(adapted.values.max(initial=0.0)) * float(factors.max(initial=0.0)) ** 2
    rounding = _UPDATE_ROUNDING * largest
    unit = ROUNDING_OF_REPEATED_ROWS if plan.work_dtype == "float32" else _UPDATE_ROUNDING
    if (factors != 1).any():
        adapted = rescaled(adapted, factors)
        diagonal = np.einsum("ij,j,ij->i", adapted.vectors, adapted.values, adapted.vectors)
        _require_below(diagonal, known, unit * float(adapted.values.max(initial=0.0)))
    low_rank = LowRank(adapted.values / known.divisor, adapted.vectors, 0.0)
    rounding /= max(float(adapted.values.max(initial=0.0)), float(np.finfo(np.float64).tiny))
    # What an update discards is measured in its products, so that what lies below their rounding may be missed.
    discarded = (adapted.discarded + unit * largest) / known.divisor
    return known, Evidence(*held, max(stretch, 1.0), discarded=discarded, rounding=rounding), low_rank


def _require_below(diagonal: FloatArray, known: Sketched, rounding: float) -> None:
    """Raise `DataError` if a rescaled basis gives a feature more variance than it has: rounding that a factor has magnified.

    `rounding`, of sums of squares, is that of the first eigenvalue, which certificates allow for.
    """
    excess = ((diagonal - rounding) / known.divisor - known.diagonal * (1 + _EXCESS)) * (known.diagonal > 0)
    if (excess > 0).any():
        raise DataError(
            f"feature {int(excess.argmax())} varies by so much less than others that solver='adaptive' cannot standardise it: the "
            "updates follow unscaled features here, and its variance is below their rounding: use solver='covariance' or 'sketch', or "
            "rescale the feature first"
        )


def _metric(factors: FloatArray) -> FloatArray | None:
    """Return the metric of an incremental pass: `factors`, kept above zero; None for 1."""
    if (factors == 1).all():
        return None
    metric: FloatArray = np.maximum(factors, 1e-12 * factors.max())
    return metric


def _adaptive(parameters: Parameters, plan: Plan, factors: FloatArray) -> IncrementalSVD:
    sizes = sizes_of(plan)
    rank = min(sizes.columns, plan.n_features)
    return IncrementalSVD(
        rank,
        sizes.rows_per_update,
        parameters.center,
        _metric(factors),
        n_threads=plan.threads_per_leaf,
        dtype=str(product_dtype(plan.work_dtype, plan.n_features, factors)),
        seed=parameters.seed,
    )


def _next_test(
    chain: Chain, answer: Answer, evidence: Evidence, plan: Plan, work: Precision
) -> tuple[FloatArray, int, float]:
    """Return the columns that the next pass multiplies with, how many of them are for the answer, and the factor of the others.

    Those are the leading directions of the last products, orthogonal to all test matrices that are kept: block Krylov
    (Tropp & Webber 2023); after an incremental pass, its basis. The others are what of the products of held-out columns
    is orthogonal to all of these, for the certificate, times a power of two that keeps their products in range.
    """
    sizes, threads = sizes_of(plan), plan.threads
    held = min(_AGAIN, evidence.products.shape[1])
    width = sizes.columns - held if sizes.columns >= _ROOM_FOR_HELD * held else sizes.columns
    spans = []
    if not chain.test.shape[1]:
        basis = answer.low_rank.vectors[:, : sizes.columns]
    elif not sizes.keep_all:
        basis = orthonormal(_leading(chain.newest, width, threads), n_threads=threads)
    else:
        spans.append(chain.span(work, threads))
        remainder = chain.newest.copy()
        subtract_product(remainder, spans[0], gram(spans[0], remainder, threads), threads)
        basis = orthonormal(_leading(remainder, width, threads), spans[0], n_threads=threads, overwrite=True)
    outside = evidence.products[:, :held].copy()
    factor = float(power_of_two(peaks(outside, threads).max(initial=0.0)))
    outside *= factor
    for span in [*spans, basis] * 2:
        subtract_product(outside, span, gram(span, outside, threads), threads)
    return np.hstack([basis, outside]), basis.shape[1], factor


def _leading(vectors: FloatArray, n_wanted: int, n_threads: int) -> FloatArray:
    """Return `n_wanted` combinations of the columns of `vectors` that hold most of them, ``(n_features, n_wanted)``."""
    if n_wanted >= vectors.shape[1]:
        return vectors.copy()
    rotation = np.linalg.eigh(gram(vectors, vectors, n_threads))[1][:, ::-1][:, :n_wanted]
    return times(vectors, rotation, n_threads)


@dataclass(frozen=True)
class Reader:
    """Reads the source, as often as it is asked to."""

    source: Source
    """Where the rows come from."""
    parameters: Parameters
    """What was asked for."""
    plan: Plan
    """What was planned."""
    removing: Removing | None = None
    """What is removed from the rows as they are read."""

    def opening(self) -> Readings[tuple[Accumulated, Sketched, Evidence, LowRank | None]]:
        """Read as often as it takes to have products: once, or after a reading for moments where those have to come first.

        Returns the accumulated rows, moments and products, the evidence, and the answer where an incremental pass gave one.
        """
        source, parameters, plan = self.source, self.parameters, self.plan
        begun = yield from start(source, parameters, plan, self.removing)
        if not sizes_of(plan).moments_first:
            rows = yield from self.first(begun)
            return rows, *_first_products(rows, begun.factors, parameters, plan)
        rows = yield from self.first(replace(begun, test=begun.test[:, :0]))
        state, sizes, d = _sketch_state(rows.state), sizes_of(plan), plan.n_features
        known = weighted(rows.accumulator.finalize(state), feature_factors(parameters, d))
        held = held_out_columns(parameters, d, sizes.held_out)
        drawn = np.hstack([columns_of(parameters, source, sizes.columns), held])
        if len(state.observed):  # products come out for these shares times the columns
            drawn *= np.divide(state.weight, state.observed, out=np.ones(d), where=state.observed > 0)[:, None]
        test, products = yield from self.again(drawn, known, state, 2)
        known = replace(known, test=test, products=products)
        return rows, known, Evidence(*split(known, sizes.held_out)[1], 1.0), None

    def first(self, begun: Start) -> Readings[Accumulated]:
        """Read once from `begun`; the accumulator is that of the sketch, the state a pair with a basis before it if adaptive."""
        plan = self.plan
        sketch = self._sketch(begun.test, begun.origin, moments=True, near=begun.near)
        accumulators: tuple[AnyAccumulator, ...] = (sketch,)
        if plan.solver == "adaptive":
            accumulators = (_adaptive(self.parameters, plan, begun.factors), sketch)
        states = yield from self._accumulated(accumulators, plan)
        return Accumulated(sketch, states if len(states) > 1 else states[0], states[-1].n_left_out)

    def again(
        self, basis: FloatArray, known: Sketched, first: SketchState, number: int
    ) -> Readings[tuple[FloatArray, FloatArray]]:
        """Read once more, in pass `number`; return the test matrix as it was used, and its products.

        `basis` is meant for features times ``known.weights``; the means and variances are those of the first pass.
        """
        wide = basis * known.weights[:, None]
        dtype = product_dtype(self.source.dtype, len(basis), np.abs(wide).max(axis=1))
        test = wide.astype(dtype if _within_float32(known) else np.float64)
        origin = None if self.source.sparse else known.mean
        near = means_are_near(known.mean, known.variance)
        sketch = self._sketch(test, origin, moments=False, near=near)
        (state,) = yield from self._accumulated((sketch,), self.plan.unshuffled(), f"pass {number}")
        if state.n_samples != first.n_samples or not np.array_equal(state.observed, first.observed):
            raise DataError(
                f"{self.source.description} changed between two passes: {first.n_samples} rows were counted in the first and "
                f"{state.n_samples} in a later one; run again on data that does not change"
            )
        factors = feature_factors(self.parameters, self.plan.n_features)
        scaled = weighted(sketch.finalize(_with_moments(state, first)), factors)
        return scaled.test, scaled.products

    def _sketch(self, test: Array, origin: FloatArray | None, *, moments: bool, near: bool) -> Sketch:
        wanted = self.parameters
        return Sketch(
            test,
            center=wanted.center,
            scale=wanted.scaling,
            ddof=wanted.ddof,
            missing=wanted.missing,
            origin=origin,
            moments=moments,
            copy_rows=not near,
            n_threads=self.plan.threads_per_leaf,
        )

    def _accumulated(
        self, accumulators: tuple[AnyAccumulator, ...], plan: Plan, phase: str = "fit"
    ) -> Readings[tuple[Any, ...]]:
        release_freed_memory()
        states = (yield Reading(self.source, accumulators, plan, self.parameters.sample_weight, phase)).take()
        release_freed_memory()
        return states


def _within_float32(known: Sketched) -> bool:
    """Tell whether float32 holds the sums of squares of all features about zero, as a pass with moments asks of every panel."""
    low, high = SAFE_SQUARES
    with np.errstate(over="ignore"):
        squares = known.variance * known.divisor + known.weight * known.mean**2
    return bool(((squares == 0) | ((low < squares) & (squares < high))).all())


def _sketch_state(state: SketchState | tuple[AdaptiveState, SketchState]) -> SketchState:
    return state[-1] if isinstance(state, tuple) else state


def _with_moments(state: SketchState, first: SketchState) -> SketchState:
    """Return `state` with the sums of an earlier pass over the same rows, moved to its own origin."""
    away = first.origin - state.origin
    weight = first.observed if len(first.observed) else first.weight
    sums = first.sums + weight * away
    squares = first.squares + away * (2 * first.sums + weight * away)
    return replace(state, sums=sums, squares=squares)


def feature_factors(parameters: Parameters, n_features: int) -> FloatArray:
    """Return what centred and scaled features are multiplied by for their weights, ``(n_features,)``."""
    weight = parameters.feature_weight
    return np.ones(n_features) if weight is None else np.sqrt(weight)


_SOME = [name for name, rule in DEFINITIONS.items() if not rule.all_eigenvalues and name != "cross_validation"]
_RULES_OF_SOME = ", ".join(map(repr, _SOME[:-1])) + f" or {_SOME[-1]!r}"


class ApproximateSolver(PCASolver):
    """One pass over the source, and further ones while the certificate asks for them and the plan allows."""

    approximate = True
    refuses: ClassVar[Table] = {
        "forgetting": "use solver='covariance'",
        "a share of the Frobenius norm": "the Frobenius norm is known of the whole covariance matrix alone: use solver='covariance', 'gram' or 'qr', a share of "
        "the variance, or a count",
        "a rule that needs all eigenvalues": f"it needs all eigenvalues; use {_RULES_OF_SOME}, which need the leading ones and the trace, or "
        "solver='covariance', 'gram' or 'qr'",
        "n_components='cross_validation'": "use solver='covariance'",
    }

    @override
    def require(self, source: Source | None, parameters: Parameters) -> None:
        super().require(source, parameters)
        require_sketch(source, parameters)

    def plan(self, source: Source, parameters: Parameters, resources: Resources) -> Plan:
        """Return the plan of a fit; raise `PlanError` if it does not fit in memory."""
        return plan_sketch(source, parameters, resources, self.name)

    def reason_chosen(self, plan: Plan, parameters: Parameters) -> str:
        """Return why ``solver="auto"`` chose `plan`."""
        if parameters.tolerance is None:
            return "chosen because no exact solver fits in the memory"
        return (
            f"chosen because errors up to {parameters.tolerance:g} are allowed, and it is expected to take less time or memory "
            "than exact solvers"
        )

    def readings(self, source: Source, parameters: Parameters, plan: Plan, asked: Asked) -> Readings[Fit]:
        """Read `source` once, and again while passes are left and the certificate asks for it; return the answer."""
        if parameters.missing == "mean":
            filling = yield from Filling.read(source, parameters, plan)
            inner = filling.parameters_of(parameters)
            filled = self._readings(filling.source, inner, plan, asked, filling.subtracted)
            return filling.finished((yield from filled), parameters)
        return (yield from self._readings(source, parameters, plan, asked))

    def _readings(
        self,
        source: Source,
        parameters: Parameters,
        plan: Plan,
        asked: Asked,
        subtracted: FloatArray | float = 0.0,
    ) -> Readings[Fit]:
        sizes, removing = sizes_of(plan), asked.removing
        reader = Reader(source, parameters, plan, removing)
        # Residuals may be float32 where products are float64.
        rounded = plan.work_dtype == "float32" or (removing is not None and removing.dtype == np.float32)
        work: Precision = "float32" if rounded else "float64"
        room = plan.projected_bytes - plan.budget.by_phase["solving"]
        with keep_released(room):
            rows, known, evidence, low_rank = yield from reader.opening()
            n_passes, state = plan.solver_passes - sizes.passes + 1, _sketch_state(rows.state)
            chain = Chain(plan.n_features, _most_columns(sizes, adaptive=low_rank is not None))
            if low_rank is None:
                chain.add(*split(known, sizes.held_out)[0])
            known = replace(known, test=np.empty((0, 0)), products=np.empty((0, 0)))
            answer = answer_of(known, chain, evidence, parameters, work, plan.threads, low_rank)
            while n_passes < plan.solver_passes and not answer.within(sizes.tolerance):
                basis, width, factor = _next_test(chain, answer, evidence, plan, work)
                del answer, low_rank
                test, products = yield from reader.again(basis, known, state, n_passes + 1)
                n_passes, low_rank = n_passes + 1, None
                chain.add(test[:, :width], products[:, :width])
                evidence = replace(evidence, again=(test[:, width:].copy(), products[:, width:].copy(), factor))
                del basis, test, products
                answer = answer_of(known, chain, evidence, parameters, work, plan.threads)
            known = replace(known, mean=known.mean + subtracted)
            model = answer.model(known, state, parameters, source.describe(), n_passes)
        return Fit(model=model, plan=plan, fitted_state=self.state_of(rows, source, parameters, plan))

    def state_of(self, rows: Accumulated, source: Source, parameters: Parameters, plan: Plan) -> FittedState | None:
        """Return the state to be continued; None where there is none."""
        return None


class AdaptiveSolver(ApproximateSolver):
    """Approximate, by an incremental low-rank basis that follows the rows in shuffled order; it keeps no state."""

    name = "adaptive"
    refuses: ClassVar[Table] = {
        **ApproximateSolver.refuses,
        "missing='drop_rows'": "use solver='covariance' or missing='mean'",
        "missing='pairwise'": "use solver='covariance' or missing='mean'",
        "sparse rows": "use solver='covariance' or solver='sketch'",
        "recovery='conversion'": "that converts products with a test matrix: use solver='sketch'",
    }
