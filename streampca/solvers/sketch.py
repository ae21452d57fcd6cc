"""One-pass sketch: products of the covariance matrix with vectors from a pilot or at random, and more passes on request."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.gram import GramOperator, GramProducts
from streampca.accumulators.residuals import feature_panel_bytes
from streampca.accumulators.rows import RowsState
from streampca.accumulators.sketch import Sketch, Sketched, weighted
from streampca.errors import NotAvailableError, PlanError
from streampca.execution.readings import Reading, ReadingAlone, Readings
from streampca.formatting import as_text
from streampca.linalg.certificate import Evidence, of_ritz_pairs, padded
from streampca.linalg.eigen import Spectrum
from streampca.linalg.nystrom import Precision
from streampca.linalg.selection import Count
from streampca.models.pca import PCAModel
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.memory import REPORT_BYTES, MemoryNeed, reading_needs
from streampca.planning.plan import Plan, SketchDetail
from streampca.planning.shape import (
    WorkShape,
    block_rows_to_try,
    bytes_to_read,
    count_leaves,
    divide,
    times_decoded,
)
from streampca.planning.work import Figures, Resources
from streampca.solvers.approximate import (
    HELD_OUT_COLUMNS,
    KEPT_PASSES,
    SOLVE_COPIES,
    ApproximateSolver,
    FirstPass,
    columns_to_try,
    feature_factors,
    held_out_columns,
    reading_limits,
    refined,
    sizes_of,
    split,
)
from streampca.solvers.approximate_model import Approximation, Chain, answer_of, certificate_of
from streampca.solvers.base import ContinuableSolver
from streampca.solvers.capabilities import Table
from streampca.solvers.gram import (
    GramSolver,
    Summary,
    components_bytes,
    find_components,
    model_of_samples,
    repeated_chunks_note,
)
from streampca.solvers.result import Accumulated, Fit
from streampca.sources.base import Source
from streampca.system.device import HOST
from streampca.system.process import release_freed_memory
from streampca.system.workspace import keep_released
from streampca.transforms import GaussianProjection
from streampca.typing import FloatArray

_MOST_DECODED = 2  # times that a pass may decode every chunk
_BY_SAMPLES = "the products of samples are for dense rows, of which each feature is complete or filled with its mean"


class SketchSolver(ApproximateSolver, ContinuableSolver):
    """Approximate, by a sketch of the covariance matrix."""

    name = "sketch"
    refuses_state: ClassVar[Table] = {
        "missing='mean'": "the means of all rows have to be known before the first is multiplied; use fit, missing='pairwise', or "
        "solver='covariance'",
        "recovery='conversion' with scale or missing='pairwise'": "z-scores and shares of observed values are taken in a reading of all "
        "rows; use fit, or recovery='nystrom'",
    }

    @override
    def plan(self, resources: Resources) -> Plan:
        """Return the plan of the fit: by rows, or by features where rows do not fit.

        Raises
        ------
        PlanError
            If neither fits.
        """
        try:
            return super().plan(resources)
        except PlanError as error:
            if not SketchOfSamples.takes(self.source, self.parameters):
                raise
            try:
                return SketchOfSamples(self.source, self.parameters, self.keep_rows, self.removing).plan(resources)
            except PlanError as other:
                raise PlanError(f"{error}; by features, {other}") from error

    @override
    def readings(self, plan: Plan) -> Readings[Fit]:
        """Read the rows, or their features, as often as the certificate asks for and the plan allows."""
        if plan.axis == "features":
            samples = SketchOfSamples(self.source, self.parameters, self.keep_rows, self.removing)
            return (yield from samples.readings(plan))
        return (yield from super().readings(plan))

    @override
    @property
    def keeps(self) -> str:
        return f"the products with {self.columns} vectors are kept"

    @override
    @classmethod
    def state_bytes(cls, plan: Plan) -> int:
        """Return the size of a saved state: test matrix and products."""
        sizes = sizes_of(plan)
        return 16 * plan.n_features * (sizes.columns + sizes.held_out)

    @override
    @classmethod
    def mergeable(cls, parameters: Parameters) -> Parameters:
        """Return `parameters` for one pass without a pilot, so that all sources are met with the same test matrix."""
        return replace(parameters, solver=cls.name, pilot=0, tolerance=None)

    @override
    def accumulated(self, plan: Plan, accumulator: AnyAccumulator | None = None) -> Readings[Accumulated]:
        """Read the rows once and return their state, with the test matrix of `accumulator` if one is given."""
        if isinstance(accumulator, Sketch):
            begun = FirstPass(accumulator.origin, np.ones(plan.n_features), accumulator.test)
        else:
            begun = yield from self.start(plan)
        rows, _ = yield from self.first(plan, begun)
        return rows if accumulator is None else replace(rows, accumulator=accumulator)

    @override
    @classmethod
    def solve_model(cls, fitted: FittedState, work: str) -> PCAModel:
        """Return the model of a sketch."""
        state, accumulator, parameters = fitted.state, fitted.accumulator, fitted.parameters
        n_features, threads = len(accumulator.test), accumulator.n_threads
        known = weighted(accumulator.finalize(state), feature_factors(parameters, n_features))
        products, held = split(known, min(HELD_OUT_COLUMNS, n_features))
        chain = Chain(n_features, products[0].shape[1])
        chain.add(*products)
        varying = known.weights > 0
        stretch = float(known.weights[varying].max()) if varying.any() else 1.0
        evidence = Evidence(*held, max(stretch, 1.0))
        known = replace(known, test=np.empty((0, 0)), products=np.empty((0, 0)))
        answer = answer_of(known, chain, evidence, parameters, work, threads)
        return answer.model(known, state, parameters, fitted.source, 1)


@dataclass(frozen=True)
class SketchOfSamples(GramSolver):
    """The sketch of the n × n matrix of inner products between samples, by features, where one of d × d does not fit.

    Every pass multiplies the matrix G, which is never formed, with a few columns, as `ApproximateSolver` multiplies the covariance
    matrix C. Of the eigenvectors Û that were found, a last pass gives V = ÛᵀX and XVᵀ, which is a product with G once more: with it
    residuals are known, and the eigenpairs of C within the span of V are reported (Rayleigh and Ritz).
    """

    columns: int = 0
    """Columns of the test matrix."""
    kept_passes: int = 1
    """Passes whose products are planned to stay in memory together."""

    name = SketchSolver.name
    settings = SketchDetail
    approximate = True
    refuses: ClassVar[Table] = {
        **ApproximateSolver.refuses,
        **dict.fromkeys(("missing='drop_rows'", "missing='pairwise'", "sparse rows", "scale='block'"), _BY_SAMPLES),
        "recovery='conversion'": _BY_SAMPLES,
    }

    @classmethod
    def takes(cls, source: Source, parameters: Parameters) -> bool:
        """Tell whether it takes such rows and parameters: a number of components, and more than one reading."""
        try:
            cls.require(source, parameters)
        except NotAvailableError:
            return False
        counted = isinstance(parameters.selection(source), Count) and parameters.n_components is not None
        drawn = parameters.sketch in ("auto", "gaussian") and parameters.pilot in ("auto", 0)
        return counted and drawn and parameters.max_passes != 1 and parameters.device == HOST

    @override
    def plan(self, resources: Resources) -> Plan:
        (n, d), parameters, tried = self.source.shape, self.parameters, list[Plan]()
        self.accumulator.divisor_for(n)
        k, passes, sizes = parameters.count(self.source), self._passes, block_rows_to_try(self.read, self.dtype)
        for columns in columns_to_try(parameters, k, min(self.side, d), self.side, few=passes > 1):
            for kept in (passes, *(number for number in KEPT_PASSES if number < passes)):
                work = replace(self, n_components=k, resources=resources, columns=columns, kept_passes=kept)
                plan = work.best(sizes, 0, max(1, n // 4096))
                if plan.budget.fits:
                    return self._require_few_readings(plan)
                tried.append(plan)
        least = min(tried, key=lambda plan: plan.projected_bytes)
        beside = f", with a sketch of {sizes_of(least).columns} columns of {n:,} samples"
        raise least.budget.refusal("ask for fewer components, or ", beside=beside)

    @property
    def _passes(self) -> int:
        """Return how often the matrix may be multiplied; the pass for components counts as one of a number that was asked for."""
        passes, most = reading_limits(self.parameters)[0], self.parameters.max_passes
        return passes if isinstance(most, str) else max(1, min(passes, most - 1))

    def _require_few_readings(self, plan: Plan) -> Plan:
        """Return `plan`; raise `PlanError` if every chunk would be decoded several times in each pass."""
        times = times_decoded(self.read, bytes_to_read(self.read, plan.rows_per_block))
        if times < _MOST_DECODED:
            return plan
        raise PlanError(
            f"every chunk would be decoded {times:,.0f} times in each pass, because {plan.rows_per_block:,} features of all samples are read "
            "at a time: store chunks of fewer features and more samples, or allow more memory"
        )

    def _accumulator(self, test: FloatArray, threads: int = 1) -> GramProducts:
        """Return the accumulator of products with `test`, ``(n_counted, q)``."""
        given = {each.name: getattr(self.accumulator, each.name) for each in fields(self.accumulator)}
        return GramProducts(**given | {"n_threads": threads, "test": test})

    def _in_size(self, threads: int) -> GramProducts:
        """Return an accumulator for as many columns as are planned, to ask it for sizes."""
        shape = self.side, self.columns + min(HELD_OUT_COLUMNS, self.side)
        return self._accumulator(np.broadcast_to(np.zeros((), dtype=self.dtype), shape), threads)

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        d, state = self.source.shape[1], self._in_size(1).state_bytes(self.source.shape[0])
        n_leaves = count_leaves(d, -(-d // rows), self.read.row_bytes, state)
        at_once = (min(leaves, n_leaves), threads_per_leaf, self.resources.threads)
        return divide(d, rows, n_leaves, at_once, state_bytes=state, axis="features")

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what a sketch of n samples takes, with q columns and g held out, and the components of d features.

        States: (1 + W) S with S = 8 n (q + g); test matrix: n (q + g) (8 + w); kept products: 16 n (K q + 2 g) for K kept passes; solve:
        8 n (4 K q + 4 (q + g)); feature means: 48 d.
        """
        (n, d), resources, accumulator = self.source.shape, self.resources, self._in_size(shape.threads_per_leaf)
        itemsize, columns = self.dtype.itemsize, self.columns + min(HELD_OUT_COLUMNS, self.side)
        sizes = accumulator.state_bytes(n), accumulator.scratch_bytes(n, shape.rows_per_block, itemsize)
        if resources.n_regressors:
            weighted = accumulator.weights is not None
            sizes = sizes[0], sizes[1] + feature_panel_bytes(n, shape.rows_per_block, itemsize, weighted=weighted)
        kept = self.kept_passes * self.columns
        sampled = resources.report_rows * d * self.read.dtype.itemsize
        components = components_bytes(self.read, accumulator, self.k, shape, on_disk=False, scores=True)
        return [
            *reading_needs(self.read, shape, sizes, ("reading", "components"), ("reading", "solving")),
            MemoryNeed("feature means", 8 * d * 6),
            MemoryNeed("test matrix", n * columns * (8 + itemsize), ("reading",)),
            MemoryNeed("kept products", 16 * n * (kept + 2 * HELD_OUT_COLUMNS), ("reading", "solving")),
            MemoryNeed("solve", 8 * n * (kept * SOLVE_COPIES + 4 * columns), ("solving",)),
            MemoryNeed("components", components + 6 * 8 * n * self.k, ("components", "report")),
            MemoryNeed("rows kept", 2 * sampled if resources.report else 0),
            MemoryNeed("report", (REPORT_BYTES + 3 * sampled) if resources.report else 0, ("report",)),
        ]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        (n, d), passes, held_out = self.source.shape, self._passes, min(HELD_OUT_COLUMNS, self.side)
        tolerance = reading_limits(self.parameters)[1]
        detail = SketchDetail(self.columns, held_out, passes, self.kept_passes, 0, 0, 0, tolerance=tolerance)
        reason = (
            f"approximate, with a certificate; the products with {self.columns} vectors of the {n:,} x {n:,} matrix of samples are kept, "
            f"which would take {as_text(4 * n * n)}; whole features are read, because products with {d:,} of them take more memory"
        )
        if passes > 1:
            reason += f"; reads at most {passes + 1} times"
        if tolerance:
            reason += f", and stops once every eigenvalue is certified to {tolerance:g}"
        notes = ["the last reading gives the components and the scores"]
        return Figures(
            reason=reason,
            flops=4.0 * n * d * (passes * (self.columns + held_out) + self.k) + 6.0 * n * (passes * self.columns) ** 2,
            passes=passes + 1,
            detail=detail,
            notes=(*notes, *repeated_chunks_note(self.read, times_decoded(self.read, reading))),
        )

    @override
    def plan_for(self, shape: WorkShape) -> Plan:
        return super(GramSolver, self).plan_for(shape)

    @override
    def readings(self, plan: Plan) -> Readings[Fit]:
        """Read the features for products, again while the certificate asks for it, and once more for the components."""
        sizes, parameters, side = sizes_of(plan), self.parameters, self.side
        rounded = plan.work_dtype == "float32" or (self.removing is not None and self.removing.dtype == np.float32)
        work: Precision = "float32" if rounded else "float64"
        with keep_released(plan.projected_bytes - plan.budget.by_phase["solving"]):
            drawn = GaussianProjection(side, sizes.columns, parameters.seed).matrix()
            drawn = np.hstack([drawn, held_out_columns(parameters, side, sizes.held_out)])
            moments, test, products = yield from self._multiplied(plan, drawn, 1)
            known = self._known(moments)
            evidence = Evidence(test[:, sizes.columns :].copy(), products[:, sizes.columns :].copy())
            chain = Chain(side, sizes.columns * min(sizes.passes, sizes.kept_passes))
            chain.add(test[:, : sizes.columns], products[:, : sizes.columns])
            del drawn, test, products

            def again(basis: FloatArray, number: int) -> Readings[tuple[FloatArray, FloatArray]]:
                _, test, products = yield from self._multiplied(plan, basis, number, moments)
                return test, products

            answer, n_passes = yield from refined(chain, known, evidence, parameters, plan, work, again)
            del chain, evidence
            return (yield from self._with_components(plan, answer, moments, n_passes + 1))

    def _multiplied(
        self, plan: Plan, basis: FloatArray, number: int, known: GramOperator | None = None
    ) -> Readings[tuple[GramOperator, FloatArray, FloatArray]]:
        """Read in pass `number`; return moments of the features, the columns of `basis` as they were used, and G times these.

        The first pass finds the moments, and later ones are given them as `known`.
        """
        if self.accumulator.center:
            roots = self._roots
            basis = basis - np.outer(roots, roots @ basis) / (roots @ roots)
        test, phase = basis.astype(self.dtype), "fit" if number == 1 else f"pass {number}"
        accumulator = replace(self._accumulator(test, plan.threads_per_leaf), known=known)
        release_freed_memory()
        (state,) = (yield Reading(self.source.by_features(), (accumulator,), plan, phase=phase)).take()
        moments, products = accumulator.products_of(state)
        release_freed_memory()
        return moments, test.astype(np.float64), products

    @property
    def _roots(self) -> FloatArray:
        """Return the square roots of the weights of the samples that count, ``(n_counted,)``."""
        return np.ones(self.side) if self.accumulator.roots is None else self.accumulator.roots

    def _known(self, moments: GramOperator) -> Sketched:
        """Return what is known of G: its trace, and that samples have no means."""
        side, d = self.side, len(moments.mean)
        total, ones, none = self._accumulator(np.empty((side, 0))).total_of(moments), np.ones(side), np.empty((0, 0))
        return Sketched(
            d, float(d), moments.divisor, 0 * ones, ones, total / side * ones, ones, none, none, weight_squares=float(d)
        )

    def _with_components(
        self, plan: Plan, answer: Approximation, moments: GramOperator, n_passes: int
    ) -> Readings[Fit]:
        """Read the features for components and scores, and return the fit with the eigenpairs that follow from them."""
        found, parameters, low_rank = answer.certified, self.parameters, answer.low_rank
        k, rank = len(found.values), min(found.n_found, found.numerical_rank)
        vectors = np.zeros((k, self.side))
        vectors[:rank] = low_rank.vectors[:, :rank].T
        beyond = float(low_rank.values[k : k + 1].sum()) + min(found.proven, found.sigma or found.proven)
        spectrum = Spectrum(
            padded(low_rank.values[:rank], k), vectors, found.total, 0.0, rank, "nystrom", answer.residual_moments
        )
        pairs: list[tuple[FloatArray, FloatArray]] = []

        def rotation(summary: Summary) -> tuple[FloatArray, int]:
            bounds = beyond, found.rounding
            mapping, values, residuals = ritz_pairs(spectrum, summary, self._every_root, moments.divisor, bounds)
            pairs.append((values, residuals))
            return mapping, len(values)

        gram = self._accumulator(np.empty((self.side, 0)), plan.threads_per_leaf)
        task = self.components_task(plan, self.source.by_features(), gram, spectrum, moments)
        last = partial(find_components, replace(task, scores=True), plan, scratch=None, rotation=rotation)
        (wide,) = (yield ReadingAlone(last, n_readings=1)).take()
        values, residuals = pairs[0]
        residuals += found.floor * np.sqrt(values[:1] / values)  # that of a component is divided by its singular value
        ritz = of_ritz_pairs(found, values, residuals, beyond, wide.orthonormality)
        spectrum = replace(
            spectrum, values=padded(values, k), numerical_rank=len(values), residual=ritz.residual or 0.0
        )
        certificate = certificate_of(ritz, n_passes)
        model = model_of_samples(self.source, parameters, plan, spectrum, moments, wide, certificate)
        complete = not moments.n_missing and self.accumulator.counted is None
        return Fit(
            model=model,
            plan=plan,
            samples=RowsState(task.chosen, wide.samples) if len(task.chosen) else None,
            scores=wide.left if complete or not model.conditional else None,
        )

    @property
    def _every_root(self) -> FloatArray:
        """Return the square roots of the weights of all samples, ``(n_samples,)``."""
        weights = self.accumulator.weights
        return np.ones(self.source.shape[0]) if weights is None else np.sqrt(weights)


def ritz_pairs(
    spectrum: Spectrum, summary: Summary, roots: FloatArray, divisor: float, bounds: tuple[float, float]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the eigenpairs of C = BᵀB within the span of V₀ = S⁻¹ÛᵀB, for centred rows B = diag(√w) X / √divisor.

    Û is turned so that ÛᵀGÛ = Θ for G = BBᵀ; then V = Θ^(−½)ÛᵀB has orthonormal rows, and BVᵀ = GÛΘ^(−½), so that R = GÛ − ÛΘ is
    known. With CVᵀ = VᵀΘ + BᵀRΘ^(−½) and R orthogonal to Û, ‖Cv − θv‖² is at most ‖r‖² β / θ for a bound β of what G is outside of Û.
    Last, VCVᵀ is turned to be diagonal.

    Parameters
    ----------
    spectrum : Spectrum
        The eigenvectors Û of G in rows, ``(k, n_counted)``, and eigenvalues, of which S are the square roots.
    summary : Summary
        V₀V₀ᵀ, and XV₀ᵀ for all samples in ``left``, ``(n_samples, k)``.
    roots : float64 array, shape (n_samples,)
        √w.
    divisor : float
        What sums of squares are divided by.
    bounds : tuple of float
        β, and the share of the first eigenvalue below which eigenvalues are rounding.

    Returns
    -------
    mapping : float64 array, shape (k, k)
        What V₀ is multiplied by; components beyond the rank stay as they are, up to their lengths.
    values : float64 array, shape (rank,)
        Eigenvalues of VCVᵀ above rounding, largest first.
    residuals : float64 array, shape (rank,)
        Bounds of ‖Cv − λv‖₂.
    """
    rank, k, (beyond, rounding) = spectrum.numerical_rank, len(spectrum.vectors), bounds
    singular, vectors = np.sqrt(spectrum.values[:rank]), spectrum.vectors[:rank]
    theta, turn = _eigh(singular[:, None] * summary.products[:rank, :rank] * singular)
    left = theta > rounding * theta[:1]
    rest, theta, turn = turn[:, ~left].T, theta[left], turn[:, left]
    first = turn.T * singular / np.sqrt(theta)[:, None]
    along = roots[:, None] * (summary.left[:, :rank] @ first.T) / np.sqrt(divisor)
    remainder = along[roots > 0] * np.sqrt(theta) - vectors.T @ (turn * theta)
    lengths = np.linalg.norm(remainder, axis=0) * np.sqrt(np.minimum(1.0, beyond / theta))
    values, second = _eigh(along.T @ along)
    mapping = np.eye(k)
    mapping[: len(theta), :rank] = second.T @ first
    mapping[len(theta) : rank, :rank] = rest
    return mapping, values, lengths @ np.abs(second)


def _eigh(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the eigenpairs of a symmetric matrix, largest first."""
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1].copy(), vectors[:, ::-1].copy()
