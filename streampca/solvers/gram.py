"""Exact PCA of wide data by the n × n Gram matrix: one pass by features, then a second pass for the components."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from scipy.sparse import csr_array, issparse
from typing_extensions import override

from streampca.accumulators.centring import product_dtype, work_dtype
from streampca.accumulators.gram import DENSE_FROM, Gram, GramOperator, few_stored
from streampca.accumulators.residuals import feature_panel_bytes
from streampca.accumulators.rows import RowSample, RowsState
from streampca.block import Block, dense
from streampca.execution.checkpoint.resume import PassRecord, next_pass
from streampca.execution.drive import drive
from streampca.execution.leaf import Task, read_ahead
from streampca.execution.progress import Meter, ProgressCallback
from streampca.execution.readings import Reading, ReadingAlone, Readings
from streampca.formatting import as_text
from streampca.linalg.control_limits import with_moments
from streampca.linalg.eigen import Spectrum, relative_precision, solve
from streampca.linalg.selection import Count, as_selection
from streampca.models.certificates import ExactCertificate
from streampca.models.noise import known_weight, selection_of_fit
from streampca.models.pca import PCAModel
from streampca.models.rounding import with_decoding, with_missing
from streampca.models.stored import Components, StoredComponents, slab_features
from streampca.parameters import Parameters
from streampca.planning.memory import REPORT_BYTES, MemoryNeed, buffer_bytes, eigenproblem_bytes, reading_needs
from streampca.planning.plan import GramDetail, Plan, SolverDetail
from streampca.planning.shape import (
    Leaf,
    WorkShape,
    block_rows_to_try,
    bytes_to_read,
    count_leaves,
    divide,
    times_decoded,
)
from streampca.planning.work import Figures, Resources
from streampca.random import generator
from streampca.solvers.base import PCASolver
from streampca.solvers.capabilities import Table
from streampca.solvers.result import Fit
from streampca.sources.arrays import MAPPED_BYTES, MappedSource
from streampca.sources.base import ReadCount, Source, Transposed
from streampca.sources.grid import Schedule
from streampca.storage.directories import require_space
from streampca.storage.scratch import Scratch, has_room
from streampca.storage.state_file import storable
from streampca.system.process import release_freed_memory
from streampca.system.workspace import borrow, keep_released, release
from streampca.typing import Array, BoolArray, DaskClient, DType, FloatArray, IntArray

_SMALL_STATE_BYTES = 32 * 2**20
_FEATURES_PER_ROW = 64
"""Features for each row from which all eigenvalues are computed beside the requested pairs: they take a small share of a pass."""
_LARGEST_KEPT = 32 * 2**20
_TIMES_WORTH_A_COPY = 2
_DECODED_ONCE = 1.01
_COPIED_BYTES = 2**24
_COPIES_ON_DISK = 4  # of a slab, while it is written to the disk and read again


class _CopiedFeatures(Transposed):
    """Features that are read from a copy on disk, as far as a plan needs to know."""

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory for mapped pages of the file."""
        return MAPPED_BYTES


def components_bytes(
    features: Source, accumulator: Gram, k: int, shape: WorkShape, *, on_disk: bool, scores: bool = False
) -> int:
    """Return what components and their computation take.

    8 k d + V k (d / leaves + c) w + L k (8 c' + p' w) + 8 k² (V + L + 8) + 2 min(S, 32 MiB) with V = min(W + L, leaves); on disk
    L k (32 c' + p' w) + 8 k² (V + L + 8). Samples of weight 0, or with `scores` all, add their products.
    """
    d, n = features.shape
    columns, running, n_leaves = shape.rows_per_block, shape.leaves_in_flight, shape.n_leaves
    waiting = min(shape.window + running, n_leaves)
    dtype, width = product_dtype(features.dtype, d), min(d, slab_features(k, columns))
    panel = min(width, accumulator.panel_features(n, dtype))
    n_projected = n if scores else n - accumulator.side(n)
    copies = _COPIES_ON_DISK if on_disk else 1
    slabs = running * (copies * 8 * k * width + k * panel * dtype.itemsize + 8 * n_projected * 2 * panel)
    sums = (waiting + running + 8) * 8 * k * (k + n_projected)
    if on_disk:
        return slabs + sums
    # The C library keeps freed memory up to twice the largest array below 32 MiB that was freed before: here a state.
    kept = 2 * min(accumulator.state_bytes(n), _LARGEST_KEPT)
    return 8 * k * d + waiting * k * (-(-d // n_leaves) + columns) * dtype.itemsize + slabs + sums + kept


def _notes(
    features: Source, shape: WorkShape, reading: int, disk_bytes: int, kept: int, copied: int
) -> tuple[str, ...]:
    notes = ["the first reading gives eigenvalues and scores, the second the components"]
    if kept:
        notes = [f"sparse rows stay in memory by features, {as_text(kept)}: the components need no second reading"]
    if disk_bytes:
        notes.append(
            f"components: on disk, up to {as_text(disk_bytes)} in a temporary directory, because they do not fit in memory; "
            "components_ is a zarr array, and a report leaves out what is drawn from rows"
        )
    times = times_decoded(features, reading)
    if copied:
        notes.append(
            f"rows are copied to a temporary directory ({as_text(copied)}) and read there by features: chunks would be decoded "
            f"{times:.0f} times in each reading, because a band of all samples and of whole chunks does not fit"
        )
    elif features.sparse or (isinstance(features, Transposed) and features.needs_all_rows):
        if shape.n_blocks > 1:
            notes.append(
                f"{shape.rows_per_block:,} features fit in memory at once, so that all rows are read {times:.0f} times in each "
                "reading; more memory would avoid it"
            )
    else:
        notes += repeated_chunks_note(features, times)
    return tuple(notes)


def repeated_chunks_note(features: Source, times: float) -> tuple[str, ...]:
    """Return a note on chunks that each reading decodes so many `times`, if that is more than once."""
    if times <= _DECODED_ONCE:
        return ()
    return (
        f"a band of whole chunks ({features.chunk_rows:,} features) does not fit: every chunk is decoded {times:.1f} times "
        "in each reading; chunks of fewer features, or more memory, would avoid it",
    )


def _spectrum(reduced: GramOperator, parameters: Parameters, plan: Plan) -> Spectrum:
    """Return the eigenpairs that are asked for, and all eigenvalues where they take little beside a pass."""
    n, d = reduced.n_samples, len(reduced.mean)
    precision = relative_precision(plan.work_dtype, reduced.side)
    selection = selection_of_fit(
        reduced, parameters, _weight(reduced, parameters), reduced.rank_limit, precision, reduced.n_missing
    )
    every = d >= _FEATURES_PER_ROW * n
    return solve(reduced, selection, precision=precision, seed=parameters.seed, all_values=every)


def _weight(reduced: GramOperator, parameters: Parameters) -> float | None:
    """Return the sum of the weights of the rows; None where all are 1."""
    weighted = parameters.sample_weight is not None
    return known_weight(
        reduced, parameters, reduced.divisor + parameters.ddof if weighted else float(reduced.n_samples)
    )


def _singular(spectrum: Spectrum, reduced: GramOperator) -> FloatArray:
    """Return the singular values √λ √(W − ddof), whose squares may overflow, ``(k,)``."""
    return np.asarray(np.sqrt(spectrum.values) * np.sqrt(reduced.divisor))


def _axes(spectrum: Spectrum, reduced: GramOperator, gram: Gram) -> FloatArray:
    """Return what centred columns are multiplied by to give components, ``(n_counted, rank)``: √w u / σ, with σ² = λ (W − ddof)."""
    rank = spectrum.numerical_rank
    axes = spectrum.vectors[:rank].T / _singular(spectrum, reduced)[:rank]
    return np.ascontiguousarray(axes if gram.roots is None else axes * gram.roots[:, None])


def model_of_samples(
    source: Source,
    parameters: Parameters,
    plan: Plan,
    spectrum: Spectrum,
    reduced: GramOperator,
    wide: WideComponents,
    certificate: ExactCertificate | None = None,
) -> PCAModel:
    """Return the model of the eigenpairs and components, exact ones unless there is a `certificate`."""
    model = PCAModel.of_spectrum(
        spectrum,
        reduced,
        parameters,
        precision=relative_precision(plan.work_dtype, reduced.side),
        source=source.describe(),
        sample_weight=_weight(reduced, parameters),
    )
    if certificate is None:
        residual = spectrum.residual + _residual(spectrum, wide)
        certificate = replace(model.certificate, orthonormality=wide.orthonormality, eigen_residual=residual)
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


@dataclass(frozen=True)
class GramSolver(PCASolver):
    """Exact, by the n × n Gram matrix of wide data, which reads features as rows."""

    on_disk: bool = False
    """Whether components are planned to be stored on disk."""
    keep: bool = False
    """Whether sparse features that are one block stay in memory from the first reading to the second."""
    copied_rows: int = 0
    """Rows of a block while rows are copied to disk, of which features are read then; 0 where they are not."""

    name = "gram"
    settings: ClassVar[type[SolverDetail]] = GramDetail
    multiplies_back = True
    refuses: ClassVar[Table] = {
        "missing='drop_rows'": "use solver='covariance' or missing='mean'",
        "missing='pairwise'": "use solver='covariance' or missing='mean'",
        "forgetting": "use solver='covariance'",
        "scale='block'": "use solver='covariance', or 'sketch' where its matrix does not fit",
        "n_components='cross_validation'": "use solver='covariance'",
    }

    @override
    def plan(self, resources: Resources) -> Plan:
        """Return the plan of the fit, with components on disk if they do not fit in memory.

        Raises
        ------
        PlanError
            If that does not fit either.
        DataError
            If the weights of the samples are not more than `ddof`.
        """
        (n, d), keep = self.source.shape, not resources.on_workers
        self.accumulator.divisor_for(n)
        selection = as_selection(self.parameters.n_components, min(self.side, d))
        k = selection.n_components if isinstance(selection, Count) else None
        sizes, n_tiles = block_rows_to_try(self.read, self.dtype), self.accumulator.grid(n).n_tiles
        for on_disk in (False, True):
            work = replace(self, n_components=k, resources=resources, on_disk=on_disk, keep=keep)
            plan = work.best(sizes, work.side, n_tiles)
            if plan.budget.fits:
                return work.with_copy(plan)
        raise plan.budget.refusal(
            {
                "states": f"the {n:,} x {n:,} matrix takes most of it; use fewer samples, or ",
                "components": f"the components take 8 x {d:,} bytes each; ask for fewer (n_components), or ",
                "blocks": "use chunks of fewer features, or ",
                "feature means": f"means and variances of {d:,} features take 48 bytes each; ",
                "report": "set report: false, or ",
            }
        )

    @cached_property
    def accumulator(self) -> Gram:
        """Return the accumulator of the Gram matrix."""
        parameters = self.parameters
        return Gram(
            center=parameters.center,
            scale=parameters.scale,
            ddof=parameters.ddof,
            factors=None if parameters.feature_weight is None else np.sqrt(parameters.feature_weight),
            weights=parameters.sample_weight,
            impute=parameters.missing == "mean",
            dtype=self.work_dtype,
        )

    @override
    @property
    def read(self) -> Source:
        return self.source.by_features()

    @override
    def edges(self, shape: WorkShape) -> tuple[int, ...] | None:
        return None if self.on_disk else super().edges(shape)  # slabs of components are regular

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
        if self.keep and shape.n_blocks == 1 and isinstance(features, Transposed) and features.sparse:
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
        copying = []
        if self.copied_rows:
            features, blocks = _CopiedFeatures(self.source), buffer_bytes(self.source, self.copied_rows)
            copying = [MemoryNeed("blocks", blocks, ("copying",), listed=False)]
        accumulator = replace(self.accumulator, n_threads=shape.threads_per_leaf)
        sampled = 0 if self.on_disk else resources.report_rows * d * features.dtype.itemsize
        scratch = accumulator.scratch_bytes(n, columns, itemsize)
        if features.sparse:  # a panel is made dense, and a sparse product has numbers of columns
            panel = (
                min(columns, accumulator.panel_features(n, product_dtype(features.dtype, d)))
                * n
                * features.dtype.itemsize
            )
            scratch += panel + accumulator.n_threads * 16 * accumulator.grid(n).longest_side ** 2
        if resources.n_regressors:
            scratch += feature_panel_bytes(n, columns, itemsize, weighted=accumulator.weights is not None)
        sizes = accumulator.state_bytes(n), scratch
        solve = eigenproblem_bytes(self.side, self.k) + accumulator.finalize_bytes(n)
        components = components_bytes(features, accumulator, self.k, shape, on_disk=self.on_disk)
        return [
            *reading_needs(features, shape, sizes, ("reading", "components"), ("reading", "solving")),
            *copying,
            MemoryNeed("feature means", 8 * d * 6),
            MemoryNeed("blocks", self.kept_bytes(shape), ("solving",), listed=False),
            MemoryNeed("solve", solve, ("solving",)),
            MemoryNeed("components", components, ("components", "report")),
            MemoryNeed("rows kept", 2 * sampled if resources.report else 0),
            MemoryNeed("report", (REPORT_BYTES + 3 * sampled) if resources.report else 0, ("report",)),
        ]

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        d, side, kept = self.source.shape[1], self.side, self.kept_bytes(shape)
        features = self.read
        # Of dense features all products are computed; of sparse ones those of what is stored, if all store equally much.
        stored = features.row_bytes / (features.shape[1] * (features.dtype.itemsize + 4)) if features.sparse else 1.0
        multiplied = float(d) * side * side * (stored**2 if stored < DENSE_FROM else 1.0)
        size = as_text(self.accumulator.state_bytes(self.source.shape[0]))
        disk_bytes = 8 * self.k * d if self.on_disk else 0
        copied = self.source.shape[0] * self.source.row_bytes if self.copied_rows else 0
        return Figures(
            reason=f"exact; the {side:,} x {side:,} matrix of samples takes {size} as tiles of its lower triangle",
            flops=multiplied + 4 / 3 * float(side) ** 3 + 2.0 * side * d * self.k,
            passes=1 if kept else 2,
            disk_bytes=disk_bytes + copied,
            detail=GramDetail(self.on_disk, self.copied_rows),
            notes=_notes(features, shape, reading, disk_bytes, kept, copied),
        )

    @override
    def plan_for(self, shape: WorkShape) -> Plan:
        """Return the plan for features that are divided as `shape`, read a second time if they do not fit in memory."""
        plan = super().plan_for(shape)
        if self.copied_rows:
            return replace(plan, bytes_to_read=bytes_to_read(self.source, self.copied_rows))
        return replace(self, keep=False).plan_for(shape) if plan.passes == 1 and not plan.budget.fits else plan

    def with_copy(self, plan: Plan) -> Plan:
        """Return `plan` with rows copied to disk first, where that saves decoding every chunk several times in both readings."""
        source, resources = self.source, self.resources
        many = times_decoded(self.read, bytes_to_read(self.read, plan.rows_per_block)) >= _TIMES_WORTH_A_COPY
        rows = max(1, _COPIED_BYTES // source.row_bytes // source.grid.decoded_rows) * source.grid.decoded_rows
        rows = min(rows, source.shape[0])
        once = times_decoded(source, bytes_to_read(source, rows)) < _DECODED_ONCE
        if not (many and once) or source.sparse or resources.on_workers or resources.n_regressors:
            return plan
        shape = WorkShape(**{each.name: getattr(plan, each.name) for each in fields(WorkShape)})
        copying = replace(self, copied_rows=rows).plan_for(shape)
        return copying if copying.budget.fits and has_room(copying.disk_bytes) else plan

    @override
    def reason_chosen(self, plan: Plan) -> str:
        """Return why ``solver="auto"`` chose `plan`."""
        n, d = plan.n_samples, plan.n_features
        if 2 * n > d:
            return "chosen because the covariance matrix does not fit"
        return f"chosen because there are at most half as many samples as features: n² d flops, {d / n:,.0f} times fewer than n d²"

    @override
    def readings(self, plan: Plan) -> Readings[Fit]:
        """Read the rows twice by features and return their principal components."""
        source, parameters = self.source, self.parameters
        copy, rows = Scratch() if plan.copied_rows else None, source
        if copy is not None:
            work = partial(copy_rows, source, copy.path / "rows.npy", plan.copied_rows, plan.read_ahead_bytes)
            (rows,) = (yield ReadingAlone(work)).take()
        features = rows.by_features()
        kept = False
        if isinstance(features, Transposed) and features.sparse:
            features.keep = kept = plan.solver_passes == 1
        gram = replace(self.accumulator, n_threads=plan.threads_per_leaf)
        scratch = Scratch() if plan.components_on_disk else None
        if scratch is not None:
            require_space(scratch.path, 8 * (plan.n_components or 1) * plan.n_features)
        room = min(plan.projected_bytes - plan.budget.by_phase["solving"], plan.budget.bytes_for("blocks"))
        with keep_released(room):
            (state,) = (yield Reading(features, (gram,), plan)).take()
            reduced = replace(gram, n_threads=plan.threads).finalize(state)
            spectrum = with_moments(_spectrum(reduced, parameters, plan), reduced, parameters.seed)
            del state
            reduced = replace(reduced, products=np.empty(0))
            release_freed_memory()
            task = self.components_task(plan, features, gram, spectrum, reduced)
            second = partial(find_components, task, plan, scratch=scratch)
            (wide,) = (yield ReadingAlone(second, n_readings=0 if kept else 1)).take()
        model = model_of_samples(source, parameters, plan, spectrum, reduced, wide)
        # With holes these are the scores of rows filled with means.
        scores = None
        if not model.conditional or (not reduced.n_missing and gram.counted is None):
            scores = _scores(spectrum, reduced, gram, wide)
        samples = RowsState(task.chosen, wide.samples) if len(task.chosen) else None
        return Fit(model=model, plan=plan, samples=samples, scores=scores)

    def components_task(
        self, plan: Plan, features: Source, gram: Gram, spectrum: Spectrum, moments: GramOperator
    ) -> ComponentsTask:
        """Return the work of the reading of `features` for components and copied samples, from eigenvectors of the Gram matrix."""
        k = len(spectrum.vectors)
        kept = 0 if plan.components_on_disk else self.keep_rows
        return ComponentsTask(
            source=features if self.removing is None else self.removing.residuals().by_features(),
            gram=gram,
            means=moments.mean,
            variances=moments.variance,
            axes=_axes(spectrum, moments, gram),
            chosen=RowSample(self.source.shape[0], kept, str(self.source.dtype)).chosen,
            k=k,
            seed=self.parameters.seed,
            width=slab_features(k, plan.rows_per_block),
            stored=None,
        )


class RowsOnDisk(MappedSource):
    """Rows that were copied from another source, to an ``.npy`` file; reading them again counts as reading nothing."""

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return a copy of the rows, in `out` if given."""
        return super().read(start, stop, out)[0], ReadCount()

    def by_features(self) -> RowsOnDisk:
        """Return a source whose rows are the features of this one."""
        return RowsOnDisk(self.array.T, self.description)


def copy_rows(
    source: Source,
    path: Path,
    rows_per_block: int,
    read_ahead_bytes: int,
    client: DaskClient | None,
    progress: ProgressCallback | None,
) -> tuple[RowsOnDisk, ReadCount]:
    """Read all rows of a source once, in blocks of `rows_per_block` rows, and write them to the file `path`.

    Raises
    ------
    NoSpaceError
        If there is not enough room for n_samples · n_features values.
    """
    (n, d), count = source.shape, ReadCount()
    require_space(path, n * d * source.dtype.itemsize)
    meter, leaf = Meter("copy", n, progress), Leaf(0, (*range(0, n, rows_per_block), n))
    header = {"descr": np.lib.format.dtype_to_descr(source.dtype), "fortran_order": False, "shape": (n, d)}
    with source.reading(), source.ahead(Schedule.in_order(leaf.spans, read_ahead_bytes)), path.open("xb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for read in read_ahead(source, leaf):
            file.write(np.ascontiguousarray(read.block.values).data)
            count += read.count
            meter.add_block(read.block, read.count)
    release()
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return RowsOnDisk(array, source.description), count


_TILE = 4096
"""Features of a tile of random numbers."""
_SAFE_FACTORS = (1e-30, 1e30)  # between these, products of float32 keep their digits
_ORTHONORMAL = 1e-13
"""Difference of inner products from the identity at which components count as orthonormal to rounding."""


@dataclass(frozen=True)
class ComponentsPart:
    """Components for the features of a leaf, with their summary."""

    start: int
    """Index of the first feature."""
    values: Array | None
    """Components, ``(k, n_features)``; None where they were written to the disk."""
    samples: Array
    """Chosen samples, ``(n_chosen, n_features)``."""
    summary: Summary
    """Sums over the features."""


@storable
@dataclass(frozen=True)
class Summary:
    """Sums over the features of components; updated in place."""

    products: FloatArray
    """Inner products of all pairs of components, ``(k, k)``."""
    largest: FloatArray
    """Largest modulus in each component, ``(k,)``; negative before the first feature."""
    signs: FloatArray
    """Sign of the first entry of that modulus, ``(k,)``."""
    left: FloatArray
    """Inner products of components and centred samples of weight 0, ``(n_left, k)``."""

    @classmethod
    def empty(cls, k: int, n_left: int = 0) -> Summary:
        """Return the summary of no features."""
        return cls(np.zeros((k, k)), np.full(k, -1.0), np.ones(k), np.zeros((n_left, k)))

    def add(self, slab: FloatArray) -> None:
        """Add the features of `slab`, ``(k, n_some)``, which follow those before."""
        np.add(self.products, slab @ slab.T, out=self.products)
        rows, high, low = np.arange(len(slab)), slab.argmax(axis=1), slab.argmin(axis=1)
        top, bottom = slab[rows, high], -slab[rows, low]
        negative = (bottom > top) | ((bottom == top) & (low < high))
        self._update_signs(np.maximum(top, bottom), np.where(negative, -1.0, 1.0))

    def absorb(self, other: Summary) -> None:
        """Add the features of `other`, which follow those before."""
        np.add(self.products, other.products, out=self.products)
        np.add(self.left, other.left, out=self.left)
        self._update_signs(other.largest, other.signs)

    def _update_signs(self, largest: FloatArray, signs: FloatArray) -> None:
        larger = largest > self.largest
        np.copyto(self.signs, signs, where=larger)
        np.copyto(self.largest, largest, where=larger)


@dataclass(frozen=True)
class ComponentsTask(Task[ComponentsPart]):
    """Entries of the components for the features of a leaf: V = Xᵀ U S⁻¹ (Turk & Pentland 1991, eq. 6).

    Components beyond the rank are drawn, addressed by component and feature, and are made orthogonal in the end.
    """

    common: ClassVar[str] = "axes"
    """What is the same for all leaves."""
    source: Source
    """The data by features."""
    gram: Gram
    """How samples and features are weighted, and what missing values are."""
    means: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variances: FloatArray
    """Variance of each feature, ``(n_features,)``."""
    axes: FloatArray
    """Left singular vectors times roots of weights over singular values, for samples that count, ``(n_counted, rank)``."""
    chosen: IntArray
    """Samples that are copied out for a report."""
    k: int
    """Components."""
    seed: int
    """Seed of those beyond the rank."""
    width: int
    """Features of a slab; no slab lies in two blocks."""
    stored: StoredComponents | None
    """Where components go; None = they are given back."""
    first: int = 0
    """First feature that `means` and `variances` hold."""
    scores: bool = False
    """Whether all samples are multiplied by the components, and not only those of weight 0."""

    @property
    def projected(self) -> BoolArray | None:
        """Return which samples are multiplied by the components, ``(n_samples,)``; None for none."""
        counted = self.gram.counted
        return np.ones(self.source.shape[1], dtype=bool) if self.scores else None if counted is None else ~counted

    @property
    def n_projected(self) -> int:
        """Return how many these are."""
        return 0 if self.projected is None else int(np.count_nonzero(self.projected))

    def for_leaf(self, leaf: Leaf) -> ComponentsTask:
        """Return the task with no more than the features of `leaf` need."""
        start, stop = leaf.edges[0], leaf.edges[-1]
        part = slice(start - self.first, stop - self.first)
        source = self.source.slice(start, stop)
        return replace(self, source=source, means=self.means[part], variances=self.variances[part], first=start)

    def init(self, leaf: Leaf) -> ComponentsPart:
        """Return the components of no feature, with memory for those of `leaf`."""
        start, n_features = leaf.edges[0], leaf.edges[-1] - leaf.edges[0]
        components = None if self.stored is not None else np.empty((self.k, n_features), dtype=self.axes.dtype)
        samples = np.empty((len(self.chosen), n_features), dtype=self.source.dtype)
        return ComponentsPart(start, components, samples, Summary.empty(self.k, self.n_projected))

    def update(self, state: ComponentsPart, block: Block) -> ComponentsPart:
        """Compute the components for the features of `block`."""
        values = block.values.T
        state.samples[:, block.start - state.start : block.start - state.start + len(block)] = dense(
            values[self.chosen]
        )
        for offset in range(0, len(block), self.width):
            first = block.start + offset
            slab = self._slab(values[:, offset : offset + self.width], first, self.axes, state.summary)
            state.summary.add(slab)
            if self.stored is not None:
                self.stored.write(first, slab)
            elif state.values is not None:
                state.values[:, first - state.start : first - state.start + slab.shape[1]] = slab
        return state

    def work_dtype(self) -> DType:
        """Return the type of products: float64 where factors leave the range of float32."""
        dtype = np.promote_types(self.gram.dtype, work_dtype(self.source.dtype))
        factors = self.gram.factors_of(self.first, self.means, self.variances)
        largest = np.abs(self.axes).max(axis=0, initial=0.0)
        sizes = largest if factors is None else np.concatenate([largest, factors])
        low, high = _SAFE_FACTORS
        return dtype if ((sizes == 0) | ((sizes > low) & (sizes < high))).all() else np.dtype(np.float64)

    def _slab(self, values: Array, start: int, axes: Array, summary: Summary) -> FloatArray:
        """Return the components for the features from `start` on, scratch memory; adds to ``summary.left``."""
        rank, projected = axes.shape[1], self.projected
        slab = borrow("slab", (self.k, values.shape[1]), np.float64)
        width = self.gram.panel_features(values.shape[0], axes.dtype)
        for first in range(0, values.shape[1], width):
            panel, out = values[:, first : first + width], slab[:, first : first + width]
            columns = slice(start + first - self.first, start + first - self.first + panel.shape[1])
            means = self.means[columns]
            centred = None
            if self.scores and self.gram.counted is None and not issparse(panel):
                centred = self.gram.centred(panel, means, axes.dtype)
                product = axes.T @ centred
            else:
                product = self._products(panel, columns, axes)
            factors = self.gram.factors_of(start + first, means, self.variances[columns])
            if factors is not None:
                product *= factors.astype(product.dtype)
            out[:rank] = product
            out[rank:] = drawn(self.seed, range(rank, self.k), start + first, panel.shape[1]).astype(axes.dtype)
            if centred is not None:
                multiplied = out if factors is None else out * factors
                np.add(summary.left, centred @ multiplied.T.astype(axes.dtype), out=summary.left)
            elif projected is not None:
                others = dense(panel[projected]).astype(np.float64)
                if self.gram.impute:
                    np.copyto(others, means, where=np.isnan(others))
                if self.gram.center:
                    others -= means
                if factors is not None:
                    others *= factors
                np.add(summary.left, others @ out.T, out=summary.left)
        return slab

    def _products(self, panel: Array, columns: slice, axes: Array) -> Array:
        """Return the products of `axes` and the centred features of `panel`, ``(rank, n_some)``, maybe scratch memory.

        Features with means within a standard deviation of zero, all of whose samples count, are multiplied as they are, and
        their means subtracted afterwards. So are sparse features, in float64, unless they store more than half of their values.
        """
        gram, means = self.gram, self.means[columns]
        if not issparse(panel):
            plain = gram.center and not gram.impute and gram.counted is None and panel.dtype == axes.dtype
            if not plain or not (np.abs(means) <= np.sqrt(self.variances[columns])).all():
                return axes.T @ gram.centred(panel, means, axes.dtype)
            product = axes.T @ panel
            product -= np.outer(axes.sum(axis=0, dtype=np.float64), means).astype(axes.dtype)
            return product
        features = csr_array(panel.T)
        few = few_stored(features, gram.weights, 0.5)
        product = np.empty((axes.shape[1], len(means)))
        sparse = features[few] if gram.counted is None else features[few][:, gram.counted]
        product[:, few] = (sparse.astype(np.float64) @ axes.astype(np.float64)).T
        if gram.center:
            product[:, few] -= np.outer(axes.sum(axis=0, dtype=np.float64), means[few])
        if not few.all():
            centred = gram.centred(features[~few].toarray().T, means[~few], axes.dtype)
            product[:, ~few] = axes.T @ centred
        return product


def drawn(seed: int, rows: range, start: int, n_features: int) -> FloatArray:
    """Return the standard normal numbers that belong to (seed, component, feature), ``(len(rows), n_features)``."""
    numbers = np.empty((len(rows), n_features))
    for i, row in enumerate(rows):
        for tile in range(start // _TILE, -(-(start + n_features) // _TILE)):
            low, high = max(start, tile * _TILE), min(start + n_features, (tile + 1) * _TILE)
            values = generator(seed, f"completion {row}", tile).standard_normal(_TILE)
            numbers[i, low - start : high - start] = values[low - tile * _TILE : high - tile * _TILE]
    return numbers


@dataclass(frozen=True)
class WideComponents:
    """Components as they go into a model."""

    components: Components
    """Orthonormal rows with fixed signs."""
    samples: Array
    """Chosen samples, ``(n_chosen, n_features)``."""
    signs: FloatArray
    """By what components were multiplied for their sign, ``(k,)``."""
    left: FloatArray
    """Scores of the samples of weight 0, ``(n_left, k)``."""
    orthonormality: float
    """By how much inner products of components differ from the identity at most."""
    overlaps: FloatArray
    """By how much inner products of the components up to the rank differed from it before that, ``(rank, rank)``."""


def find_components(
    task: ComponentsTask,
    plan: Plan,
    client: DaskClient | None,
    progress: ProgressCallback | None,
    *,
    scratch: Scratch | None,
    rotation: Callable[[Summary], tuple[FloatArray, int]] | None = None,
) -> tuple[WideComponents, ReadCount]:
    """Run the second pass and return what it cost; with `scratch`, components are written there and stay there.

    `rotation` returns what they are multiplied by before they are made orthonormal, ``(k, k)``, and their rank, from sums over the features.
    """
    k, d = task.k, plan.n_features
    stored = None
    if scratch is not None:
        require_space(scratch.path, 8 * k * d)
        stored = StoredComponents.create(scratch.path / "components", (k, d), task.width, scratch)
    table: InMemory | StoredComponents = InMemory(np.zeros((k, d)), task.width) if stored is None else stored
    task = replace(task, stored=stored, axes=task.axes.astype(task.work_dtype()))
    samples = np.empty((len(task.chosen), d), dtype=task.source.dtype)

    def piece(first: int, last: int) -> tuple[int, Array, FloatArray | None]:
        start, stop = plan.leaf(first).edges[0], plan.leaf(last - 1).edges[-1]
        return start, samples[:, start:stop], table.components[:, start:stop] if isinstance(table, InMemory) else None

    def merge(total: Summary, part: ComponentsPart) -> Summary:
        samples[:, part.start : part.start + part.samples.shape[1]] = part.samples
        if part.values is not None:
            table.write(part.start, part.values)
        total.absorb(part.summary)
        return total

    # Components on disk are multiplied in place afterwards: checkpoints are written only of components in memory.
    record = (
        next_pass("components", plan, f"{k}", piece=piece) if scratch is None else PassRecord(None, "components", plan)
    )
    start = record.begin(Summary.empty(k, task.n_projected))
    for first, stored_samples, values in record.pieces():
        samples[:, first : first + stored_samples.shape[1]] = stored_samples
        table.write(first, values)
    with task.source.reading():
        summary, count = drive(task, plan, record, start, merge, client=client, progress=progress)
    rank = task.axes.shape[1]
    overlaps = summary.products[:rank, :rank] - np.eye(rank)
    first, rank = (np.eye(k), rank) if rotation is None else rotation(summary)
    mapping, orthonormality = make_orthonormal(table, summary, rank, first)
    release_freed_memory()
    components = table.components if isinstance(table, InMemory) else table
    signs = np.where(mapping.diagonal() < 0, -1.0, 1.0)
    left = summary.left @ mapping.T
    return WideComponents(components, samples, signs, left, orthonormality, overlaps), count


@dataclass(frozen=True)
class InMemory:
    """Components in memory, cut into slabs as those on disk are, so that both have the same bits."""

    components: FloatArray
    """All of them, ``(k, n_features)``."""
    width: int
    """Features of a slab."""

    def slabs(self) -> Iterator[tuple[slice, FloatArray]]:
        """Yield runs of features and all components for them."""
        for start in range(0, self.components.shape[1], self.width):
            part = slice(start, min(start + self.width, self.components.shape[1]))
            yield part, self.components[:, part]

    def write(self, start: int, values: FloatArray) -> None:
        """Write all components for the features from `start` on."""
        self.components[:, start : start + values.shape[1]] = values


def make_orthonormal(
    table: InMemory | StoredComponents, summary: Summary, rank: int, first: FloatArray
) -> tuple[FloatArray, float]:
    """Make components orthonormal to rounding and fix their signs, in place, in as few sweeps as it takes: mostly one.

    They are multiplied by `first`, ``(k, k)``, and by what follows from their inner products alone, see `orthonormalising`. Signs are those of the
    entries that were largest before; a further sweep turns components of which another entry became the largest.

    Returns
    -------
    mapping : array, shape (k, k)
        What components were multiplied by.
    orthonormality : float
        By how much their inner products differ from the identity at most.
    """
    step = summary.signs[:, None] * (orthonormalising(first @ summary.products @ first.T, rank) @ first)
    mapping = step
    for left in (3, 2, 1, 0):
        summary = _multiply(table, step)
        k = len(step)
        error = float(np.abs(summary.products - np.eye(k)).max())
        good = error <= _ORTHONORMAL or left < 2
        if left == 0 or (good and (summary.signs > 0).all()):
            break
        step = summary.signs[:, None] * (np.eye(k) if good else orthonormalising(summary.products, k))
        mapping = step @ mapping
    return mapping, error


def orthonormalising(products: FloatArray, rank: int) -> FloatArray:
    """Return M, ``(k, k)``, so that M V has orthonormal rows, from ``products`` = V Vᵀ.

    Rows from `rank` on are made orthogonal to those before by Gram and Schmidt, twice; then all symmetrically, by
    (V Vᵀ)^(−½), which changes them the least (Löwdin 1950): after float32 products by about 1e-7.
    """
    k = len(products)
    lower = np.eye(k)
    for row in range(rank, k):
        vector = lower[row] / np.sqrt(products[row, row])
        for _ in range(2):
            vector = vector - (lower[:row] @ (products @ vector)) @ lower[:row]
            vector /= np.sqrt(vector @ products @ vector)
        lower[row] = vector
    squares, vectors = np.linalg.eigh(lower @ products @ lower.T)
    root: FloatArray = (vectors / np.sqrt(squares)) @ vectors.T @ lower
    return root


def _multiply(table: InMemory | StoredComponents, step: FloatArray) -> Summary:
    """Multiply all components by `step`, ``(k, k)``, and return their new summary."""
    summary = Summary.empty(len(step))
    for part, slab in table.slabs():
        product = np.matmul(step, slab, out=borrow("slab", slab.shape, np.float64))
        table.write(part.start, product)
        summary.add(product)
    release()
    return summary
