"""Exact PCA of wide data by the n × n Gram matrix: one reading by features, then a second one for the components."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.centring import product_dtype
from streampca.accumulators.gram import Gram, panel_features
from streampca.accumulators.gram_by_variable import GramByVariable
from streampca.accumulators.gram_state import GramOperator
from streampca.accumulators.residuals import feature_panel_bytes
from streampca.accumulators.rows import RowSample, RowsState
from streampca.accumulators.sparse_gram import DENSE_FROM
from streampca.execution.components import ComponentsTask, WideComponents, find_components
from streampca.execution.copying import copy_rows
from streampca.execution.readings import Reading, ReadingAlone, Readings
from streampca.formatting import as_text
from streampca.linalg.eigen import Spectrum, relative_precision, solve
from streampca.linalg.residual_moments import with_moments
from streampca.linalg.selection import Count, as_selection
from streampca.models.decoding import with_decoding
from streampca.models.missing import with_missing
from streampca.models.noise import known_weight, selection_of_fit
from streampca.models.pca import PCAModel
from streampca.models.stored_components import slab_features
from streampca.parameters import Parameters
from streampca.planning.blocks import block_rows_to_try, bytes_to_read, times_decoded
from streampca.planning.budget import MemoryNeed
from streampca.planning.detail import GramDetail
from streampca.planning.memory import REPORT_BYTES, buffer_bytes, eigenproblem_bytes, reading_needs
from streampca.planning.plan import Plan, Resources
from streampca.planning.shape import WorkShape, count_leaves, divide
from streampca.planning.work import Figures, Work
from streampca.solvers.base import PCASolver
from streampca.solvers.capabilities import Table
from streampca.solvers.options import Asked
from streampca.solvers.result import Fit
from streampca.sources.arrays import MAPPED_BYTES
from streampca.sources.base import Source, TransposedRows, TransposedSource
from streampca.sources.sparse import SparseFeatures
from streampca.storage.directories import require_space
from streampca.storage.scratch import Scratch, has_room
from streampca.system.process import release_freed_memory
from streampca.system.workspace import keep_released
from streampca.typing import FloatArray, IntArray

_SMALL_STATE_BYTES = 32 * 2**20
_FEATURES_PER_ROW = 64
"""Features for each row from which all eigenvalues are computed beside the requested pairs: they take a small share of a pass."""


_LARGEST_KEPT = 32 * 2**20
_TIMES_WORTH_A_COPY = 2
_DECODED_ONCE = 1.01
_COPIED_BYTES = 2**24
_COPIES_ON_DISK = 4  # of a slab, while it is written to the disk and read again


@dataclass(frozen=True)
class GramWork(Work):
    """A fit by the Gram matrix, which reads features as rows."""

    accumulator: Gram
    """What accumulates the features."""
    on_disk: bool
    """Whether components are stored on disk."""
    keep: bool
    """Whether sparse features that are one block stay in memory from the first reading to the second."""
    copied_rows: int = 0
    """Rows of a block while rows are copied to disk, of which features are read then; 0 where they are not."""

    solver: ClassVar[str] = "gram"

    @override
    @property
    def read(self) -> Source:
        return self.source.by_features()

    @override
    @property
    def work_dtype(self) -> str:
        return str(product_dtype(self.source.dtype, self.source.shape[1]))

    @property
    def side(self) -> int:
        """Return the side of the matrix: samples, without those of weight 0."""
        return self.accumulator.side(self.source.shape[0])

    @property
    def k(self) -> int:
        """Return the most components."""
        return min(self.side, self.source.shape[1]) if self.n_components is None else self.n_components

    def kept_bytes(self, shape: WorkShape) -> int:
        """Return the size of the features that stay in memory between the readings, 0 if they do not."""
        features = self.read
        if self.keep and shape.n_blocks == 1 and isinstance(features, SparseFeatures):
            return features.stored_bytes
        return 0

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        n, d = self.source.shape
        state = self.accumulator.state_bytes(n)
        return divide(
            d,
            rows,
            count_leaves(d, -(-d // rows), self.read.row_bytes, state),
            (leaves, threads_per_leaf, self.resources.threads),
            state_bytes=state,
            small_state_bytes=_SMALL_STATE_BYTES,
            tile=self.accumulator.grid(n).longest_side,
            axis="features",
        )

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what states, (1 + W) S, blocks and scratch take, 48 d for means of features, the eigenproblem of side n, and components.

        Scratch has a dense panel of sparse features more, and one of regressors. Rows kept: 2 r d s, and 3 r d s more for the report, unless
        components are on disk. A copy of the rows on disk takes two blocks of whole chunks while it is written, and 4 MiB while it is read.
        """
        features, resources = self.read, self.resources
        d, n = features.shape
        columns, itemsize = shape.rows_per_block, product_dtype(features.dtype, d).itemsize
        if self.copied_rows:
            features = _CopiedFeatures(self.source)
        accumulator = replace(self.accumulator, n_threads=shape.threads_per_leaf)
        sampled = 0 if self.on_disk else resources.report_rows * d * features.dtype.itemsize
        scratch = accumulator.scratch_bytes(n, columns, itemsize)
        if features.sparse:  # a panel is made dense, and a sparse product has numbers of columns
            panel = min(columns, panel_features(n, product_dtype(features.dtype, d))) * n * features.dtype.itemsize
            scratch += panel + accumulator.n_threads * 16 * accumulator.grid(n).longest_side ** 2
        if resources.n_regressors:
            scratch += feature_panel_bytes(n, columns, itemsize, weighted=accumulator.weights is not None)
        sizes = accumulator.state_bytes(n), scratch
        solve = eigenproblem_bytes(self.side, self.k) + accumulator.finalize_bytes(n)
        components = components_bytes(features, accumulator, self.k, shape, on_disk=self.on_disk)
        return [
            *reading_needs(features, shape, sizes, ("reading", "components"), ("reading", "solving")),
            *self._copying(),
            MemoryNeed("feature means", 8 * d * 6),
            MemoryNeed("blocks", self.kept_bytes(shape), ("solving",), listed=False),
            MemoryNeed("solve", solve, ("solving",)),
            MemoryNeed("components", components, ("components", "report")),
            MemoryNeed("rows kept", 2 * sampled if resources.report else 0),
            MemoryNeed("report", (REPORT_BYTES + 3 * sampled) if resources.report else 0, ("report",)),
        ]

    def _copying(self) -> list[MemoryNeed]:
        """Return what copying the rows takes."""
        if not self.copied_rows:
            return []
        return [MemoryNeed("blocks", buffer_bytes(self.source, self.copied_rows), ("copying",), listed=False)]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        d, side, kept = self.source.shape[1], self.side, self.kept_bytes(shape)
        multiplied = float(d) * side * side * _share_multiplied(self.read)
        size = as_text(self.accumulator.state_bytes(self.source.shape[0]))
        disk_bytes = 8 * self.k * d if self.on_disk else 0
        copied = self.source.shape[0] * self.source.row_bytes if self.copied_rows else 0
        return Figures(
            reason=f"exact; the {side:,} x {side:,} matrix of samples takes {size} as tiles of its lower triangle",
            flops=multiplied + 4 / 3 * float(side) ** 3 + 2.0 * side * d * self.k,
            passes=1 if kept else 2,
            disk_bytes=disk_bytes + copied,
            detail=GramDetail(self.on_disk, self.copied_rows),
            notes=_notes(self.read, shape, reading, disk_bytes, kept, copied),
        )

    @override
    def plan(self, shape: WorkShape) -> Plan:
        """Return the plan for features that are divided as `shape`, read a second time if they do not fit in memory."""
        plan = super().plan(shape)
        if self.copied_rows:
            return replace(plan, bytes_to_read=bytes_to_read(self.source, self.copied_rows))
        return replace(self, keep=False).plan(shape) if plan.passes == 1 and not plan.budget.fits else plan

    def with_copy(self, plan: Plan) -> Plan:
        """Return `plan` with rows copied to disk first, where that saves decoding every chunk several times in both readings."""
        source, resources = self.source, self.resources
        many = times_decoded(self.read, bytes_to_read(self.read, plan.rows_per_block)) >= _TIMES_WORTH_A_COPY
        rows = max(1, _COPIED_BYTES // source.row_bytes // source.decoded_rows) * source.decoded_rows
        rows = min(rows, source.shape[0])
        once = times_decoded(source, bytes_to_read(source, rows)) < _DECODED_ONCE
        if not (many and once) or source.sparse or resources.on_workers or resources.n_regressors:
            return plan
        shape = WorkShape(**{each.name: getattr(plan, each.name) for each in fields(WorkShape)})
        copying = replace(self, copied_rows=rows).plan(shape)
        return copying if copying.budget.fits and has_room(copying.disk_bytes) else plan


class _CopiedFeatures(TransposedRows):
    """Features that are read from a copy on disk, as far as a plan needs to know."""

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory for mapped pages of the file."""
        return MAPPED_BYTES


def components_bytes(features: Source, accumulator: Gram, k: int, shape: WorkShape, *, on_disk: bool) -> int:
    """Return what components and their computation take.

    8 k d + V k (d / leaves + c) w + L k (8 c' + p' w) + 8 k² (V + L + 8) + 2 min(S, 32 MiB) with V = min(W + L, leaves); on disk
    L k (32 c' + p' w) + 8 k² (V + L + 8). Samples of weight 0 add their products.
    """
    d, n = features.shape
    columns, running, n_leaves = shape.rows_per_block, shape.leaves_in_flight, shape.n_leaves
    waiting = min(shape.window + running, n_leaves)
    dtype, width = product_dtype(features.dtype, d), min(d, slab_features(k, columns))
    panel = min(width, panel_features(n, dtype))
    n_without_weight = n - accumulator.side(n)
    copies = _COPIES_ON_DISK if on_disk else 1
    slabs = running * (copies * 8 * k * width + k * panel * dtype.itemsize + 8 * n_without_weight * 2 * panel)
    sums = (waiting + running + 8) * 8 * k * (k + n_without_weight)
    if on_disk:
        return slabs + sums
    # The C library keeps freed memory up to twice the largest array below 32 MiB that was freed before: here a state.
    kept = 2 * min(accumulator.state_bytes(n), _LARGEST_KEPT)
    return 8 * k * d + waiting * k * (-(-d // n_leaves) + columns) * dtype.itemsize + slabs + sums + kept


def _share_multiplied(features: Source) -> float:
    """Return the share of the products of dense features that are computed, if all features store equally much."""
    stored = features.row_bytes / (features.shape[1] * (features.dtype.itemsize + 4)) if features.sparse else 1.0
    return stored**2 if stored < DENSE_FROM else 1.0


def _notes(
    features: Source, shape: WorkShape, reading: int, disk_bytes: int, kept: int, copied: int
) -> tuple[str, ...]:
    notes = ["the first reading gives eigenvalues and scores, the second the components"]
    if kept:
        notes = [f"sparse rows stay in memory by features, {as_text(kept)}: the components take no second reading"]
    if disk_bytes:
        notes.append(
            f"components: on disk, up to {as_text(disk_bytes)} in a temporary directory, because they do not fit in memory; "
            "components_ is a zarr array, and a report leaves out what is drawn from rows"
        )
    times = times_decoded(features, reading)
    if copied:
        notes.append(
            f"rows are copied to a temporary directory, {as_text(copied)}, of which features are read: chunks would be decoded "
            f"{times:.0f} times in each reading, because a band of all samples and of whole chunks does not fit"
        )
    elif features.sparse or (isinstance(features, TransposedSource) and features.needs_all_rows):
        if shape.n_blocks > 1:
            notes.append(
                f"{shape.rows_per_block:,} features fit in memory at once, so that all rows are read {times:.0f} times in each "
                "reading; more memory would avoid it"
            )
    elif times > 1.01:
        notes.append(
            f"a band of whole chunks ({features.chunk_rows:,} features) does not fit: every chunk is decoded {times:.1f} times "
            "in each reading; chunks of fewer features, or more memory, would avoid it"
        )
    return tuple(notes)


def _spectrum(reduced: GramOperator, parameters: Parameters, plan: Plan) -> Spectrum:
    """Return the eigenpairs that are asked for, and all eigenvalues where they take little beside a pass."""
    n, d = reduced.n_samples, len(reduced.mean)
    weight = known_weight(reduced, parameters, _weight(reduced, parameters))
    precision = relative_precision(plan.work_dtype, reduced.side)
    selection = selection_of_fit(reduced, parameters, weight, reduced.rank_limit, precision, reduced.n_missing)
    every = d >= _FEATURES_PER_ROW * n
    return solve(reduced, selection, precision=precision, seed=parameters.seed, all_values=every)


def _weight(reduced: GramOperator, parameters: Parameters) -> float:
    """Return the sum of the weights of the rows."""
    return float(reduced.n_samples) if parameters.sample_weight is None else reduced.divisor + parameters.ddof


def _singular(spectrum: Spectrum, reduced: GramOperator) -> FloatArray:
    """Return the singular values √λ √(W − ddof), whose squares may overflow, ``(k,)``."""
    return np.asarray(np.sqrt(spectrum.values) * np.sqrt(reduced.divisor))


def _axes(spectrum: Spectrum, reduced: GramOperator, gram: Gram) -> FloatArray:
    """Return what centred columns are multiplied by to give components, ``(n_counted, rank)``: √w u / σ, with σ² = λ (W − ddof)."""
    rank = spectrum.numerical_rank
    axes = spectrum.vectors[:rank].T / _singular(spectrum, reduced)[:rank]
    return np.ascontiguousarray(axes if gram.roots is None else axes * gram.roots[:, None])


def _model(
    source: Source,
    parameters: Parameters,
    plan: Plan,
    spectrum: Spectrum,
    reduced: GramOperator,
    wide: WideComponents,
) -> PCAModel:
    model = PCAModel.of_spectrum(
        spectrum,
        reduced,
        parameters,
        precision=relative_precision(plan.work_dtype, reduced.side),
        source=source.describe(),
        sample_weight=known_weight(reduced, parameters, _weight(reduced, parameters)),
    )
    certificate = replace(
        model.certificate,
        orthonormality=wide.orthonormality,
        eigen_residual=spectrum.residual + _residual(spectrum, wide),
    )
    model = replace(model, components=wide.components, certificate=certificate)
    if parameters.n_regressors is None:  # else the rows that were decoded are known when the fit is finished
        model = with_decoding(model, reduced.mean, reduced.variance, parameters.scaling)
    return with_missing(model, parameters.missing, reduced, 0, None, parameters.missing_scores)


def _residual(spectrum: Spectrum, wide: WideComponents) -> float:
    """Return the largest residual of a component within the span of all, relative to the first eigenvalue; measured.

    Rounding of the n × n matrix, up to λ₁ p, turns a component V₀ᵢ = Xᵀuᵢ/σᵢ by up to p λ₁/(σᵢ σⱼ) towards another one: much for a
    small σᵢ. With δ = V₀V₀ᵀ − I the matrix is Λ + Λδ + δΛ in that basis, and what (I + δ)^(−½) makes of it has the entries
    (λᵢ + λⱼ) δᵢⱼ / 2 beside Λ. Outside of the span, where no eigenvalue exceeds λᵢ, no more than p is left.
    """
    values = spectrum.values[: spectrum.numerical_rank]
    if not len(values):
        return 0.0
    values = values / values[0]
    return float(np.linalg.norm((values[:, None] + values) * wide.overlaps / 2, axis=0).max())


def _scores(spectrum: Spectrum, reduced: GramOperator, gram: Gram, wide: WideComponents) -> FloatArray:
    """Return the scores of all samples, ``(n_samples, k)``: √λ (W − ddof) u / √w, and of those of weight 0 their projections."""
    scores: FloatArray = spectrum.vectors.T * (_singular(spectrum, reduced) * wide.signs)
    if gram.roots is not None:
        scores /= gram.roots[:, None]
    if gram.counted is None:
        return scores
    every = np.empty((len(gram.counted), scores.shape[1]))
    every[gram.counted], every[~gram.counted] = scores, wide.left
    return every


def _lengths(reduced: GramOperator, gram: Gram) -> FloatArray:
    """Return the squared lengths of all centred and scaled samples, ``(n_samples,)``; 0 for those of weight 0."""
    lengths: FloatArray = reduced.diagonal * reduced.divisor
    if gram.roots is not None:
        lengths /= np.square(gram.roots)
    if gram.counted is None:
        return lengths
    every = np.zeros(len(gram.counted))
    every[gram.counted] = lengths
    return every


class GramSolver(PCASolver):
    """Exact, by the n × n Gram matrix of wide data."""

    name = "gram"
    refuses: ClassVar[Table] = {
        "missing='drop_rows'": "use solver='covariance' or missing='mean'",
        "missing='pairwise'": "use solver='covariance' or missing='mean'",
        "forgetting": "use solver='covariance'",
        "n_components='cross_validation'": "use solver='covariance'",
    }
    has_scores = True

    def plan(self, source: Source, parameters: Parameters, resources: Resources) -> Plan:
        """Return the plan of a fit, with components on disk if they do not fit in memory.

        Raises
        ------
        PlanError
            If that does not fit either.
        DataError
            If the weights of the samples are not more than `ddof`.
        """
        features, accumulator = source.by_features(), self.accumulator_of(source, parameters)
        accumulator.divisor(source.shape[0])
        selection = as_selection(parameters.n_components, min(accumulator.side(source.shape[0]), source.shape[1]))
        k = selection.n_components if isinstance(selection, Count) else None
        sizes = block_rows_to_try(features, product_dtype(source.dtype, source.shape[1]))
        n_tiles = accumulator.grid(source.shape[0]).n_tiles
        for on_disk in (False, True):
            work = GramWork(source, k, resources, accumulator, on_disk, keep=not resources.on_workers)
            plan = work.best(sizes, work.side, n_tiles)
            if plan.budget.fits:
                return work.with_copy(plan)
        (n, d) = source.shape
        raise plan.budget.refusal(
            {
                "states": f"the {n:,} x {n:,} matrix is what takes the room; fewer samples, or ",
                "components": f"the components take 8 x {d:,} bytes each; fewer of them (n_components), or ",
                "blocks": "chunks of fewer features, or ",
                "feature means": f"means and variances of {d:,} features take 48 bytes each; ",
                "report": "report: false, or ",
            }
        )

    def accumulator_of(self, source: Source, parameters: Parameters, plan: Plan | None = None) -> Gram:
        """Return the accumulator of the Gram matrix."""
        kind = GramByVariable if isinstance(parameters.scaling, tuple) else Gram
        return kind(
            center=parameters.center,
            scale=parameters.scaling,
            ddof=parameters.ddof,
            factors=None if parameters.feature_weight is None else np.sqrt(parameters.feature_weight),
            weights=parameters.sample_weight,
            impute=parameters.missing == "mean",
            dtype=str(product_dtype(source.dtype, source.shape[1])),
        )

    def reason_chosen(self, plan: Plan, parameters: Parameters) -> str:
        """Return why ``solver="auto"`` chose `plan`."""
        n, d = plan.n_samples, plan.n_features
        if 2 * n > d:
            return "chosen because the covariance matrix does not fit"
        return f"chosen because there are at most half as many samples as features: n² d flops, {d / n:,.0f} times fewer than n d²"

    def readings(self, source: Source, parameters: Parameters, plan: Plan, asked: Asked) -> Readings[Fit]:
        """Read `source` twice by features and return its principal components."""
        copy, rows = Scratch() if plan.copied_rows else None, source
        if copy is not None:
            work = partial(copy_rows, source, copy.path / "rows.npy", plan.copied_rows, plan.read_ahead_bytes)
            (rows,) = (yield ReadingAlone(work)).take()
        features = rows.by_features()
        kept = isinstance(features, SparseFeatures) and plan.solver_passes == 1
        if isinstance(features, SparseFeatures):
            features.keep = kept
        gram = replace(self.accumulator_of(source, parameters), n_threads=plan.threads_per_leaf)
        scratch = Scratch() if plan.components_on_disk else None
        if scratch is not None:
            require_space(scratch.path, 8 * (plan.n_components or 1) * plan.n_features)
        room = min(plan.projected_bytes - plan.budget.by_phase["solving"], plan.budget.bytes_for("blocks"))
        with keep_released(room):
            (state,) = (yield Reading(features, (gram,), plan)).take()
            reduced = replace(gram, n_threads=plan.threads).finalize(state)
            spectrum = with_moments(_spectrum(reduced, parameters, plan), reduced, parameters.seed)
            lengths = _lengths(reduced, gram) if parameters.sampling_errors else None
            del state
            reduced, gram = replace(reduced, products=np.empty(0)), gram.for_components(reduced.mean, reduced.variance)
            release_freed_memory()
            chosen = RowSample(source.shape[0], 0 if scratch else asked.keep_rows, str(source.dtype)).chosen
            if asked.removing is not None:
                features = asked.removing.residuals().by_features()
            task = _components_task(features, gram, reduced, spectrum, chosen, parameters, plan)
            second = partial(find_components, task, plan, scratch=scratch)
            (wide,) = (yield ReadingAlone(second, n_readings=0 if kept else 1)).take()
        model = _model(source, parameters, plan, spectrum, reduced, wide)
        # With holes these are the scores of rows filled with means.
        scores = None
        if not model.conditional or (not reduced.n_missing and gram.counted is None):
            scores = _scores(spectrum, reduced, gram, wide)
        samples = RowsState(chosen, wide.samples) if len(chosen) else None
        return Fit(
            model=model, plan=plan, samples=samples, scores=scores, lengths=lengths if scores is not None else None
        )


def _components_task(
    features: Source,
    gram: Gram,
    reduced: GramOperator,
    spectrum: Spectrum,
    chosen: IntArray,
    parameters: Parameters,
    plan: Plan,
) -> ComponentsTask:
    """Return the task of the second reading, which also copies the rows `chosen`."""
    n_components = len(spectrum.vectors)
    return ComponentsTask(
        source=features,
        gram=gram,
        means=reduced.mean,
        variances=reduced.variance,
        axes=_axes(spectrum, reduced, gram),
        chosen=chosen,
        k=n_components,
        seed=parameters.seed,
        width=slab_features(n_components, plan.rows_per_block),
        stored=None,
    )
