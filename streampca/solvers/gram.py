"""Exact PCA of wide data by the n × n Gram matrix: one reading by features, then a second one for the components."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import FloatArray, work_dtype
from streampca.accumulators.gram import Gram, GramOperator, panel_features
from streampca.accumulators.rows import RowSample, RowsState
from streampca.errors import PlanError
from streampca.execution.components import ComponentsTask, WideComponents, find_components
from streampca.execution.drive import accumulate
from streampca.execution.progress import ProgressCallback
from streampca.formatting import as_text
from streampca.linalg.eigen import Spectrum, relative_precision, solve, uses_krylov
from streampca.linalg.lanczos import basis_size
from streampca.linalg.selection import Count, as_selection
from streampca.models.missing import with_missing
from streampca.models.pca import PCAModel
from streampca.models.stored_components import slab_features
from streampca.parameters import Parameters
from streampca.planning.leaves import count_leaves, leaves_per_branch, states_at_once
from streampca.planning.memory import ALLOWANCE_BYTES, REPORT_BYTES
from streampca.planning.plan import Plan, Resources, block_rows_to_try, bytes_to_read, choose
from streampca.solvers.base import PCASolver
from streampca.solvers.result import Fit
from streampca.sources.base import Source
from streampca.storage.scratch import Scratch
from streampca.system.blas_threads import one_blas_thread
from streampca.system.process import release_freed_memory

_SMALL_STATE_BYTES = 32 * 2**20


def accumulator_of(parameters: Parameters) -> Gram:
    """Return the accumulator of these parameters."""
    return Gram(
        center=parameters.center,
        scale=parameters.scale,
        ddof=parameters.ddof,
        factors=None if parameters.feature_weight is None else np.sqrt(parameters.feature_weight),
        weights=parameters.sample_weight,
        impute=parameters.missing == "mean",
    )


def plan(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of a fit, with components on disk if they do not fit in memory; raise `PlanError` if that does not fit either.

    Raises
    ------
    DataError
        If the weights of the samples are not more than `ddof`.
    """
    features, accumulator = source.by_features(), accumulator_of(parameters)
    accumulator.divisor(source.shape[0])
    selection = as_selection(parameters.n_components, min(accumulator.side(source.shape[0]), source.shape[1]))
    k = selection.n_components if isinstance(selection, Count) else None
    sizes = block_rows_to_try(features, work_dtype(source.dtype))
    side = accumulator.side(source.shape[0])
    for on_disk in (False, True):

        def build(columns: int, leaves: int, threads_per_leaf: int, on_disk: bool = on_disk) -> Plan:
            return _planned(source, accumulator, k, (columns, leaves, threads_per_leaf), resources, on_disk=on_disk)

        found, fits = choose(sizes, build, side, resources.threads, accumulator.grid(source.shape[0]).n_tiles)
        if fits:
            return found
    raise PlanError(_refusal(found))


def _planned(
    source: Source,
    accumulator: Gram,
    k: int | None,
    work: tuple[int, int, int],
    resources: Resources,
    *,
    on_disk: bool,
) -> Plan:
    """Return the plan with so many features in a block, leaves at once, and threads in each."""
    (n, d), features, (columns, leaves, threads_per_leaf) = source.shape, source.by_features(), work
    n_blocks = -(-d // columns)
    state, side = accumulator.state_bytes(n), accumulator.side(n)
    n_leaves = count_leaves(d, n_blocks, features.row_bytes, state)
    window = leaves * (2 if leaves > 1 and state <= _SMALL_STATE_BYTES else 1)
    shared = replace(accumulator, n_threads=threads_per_leaf)
    most = min(side, d) if k is None else k
    per_branch = leaves_per_branch(n_leaves, state)
    n_states = states_at_once(window, n_leaves, per_branch)
    memory = _memory(features, shared, most, columns, (leaves, window, n_leaves, n_states), resources, on_disk)
    reading = 2 * bytes_to_read(features, columns)
    disk_bytes = 8 * most * d if on_disk else 0
    return Plan(
        solver="gram",
        reason=f"exact; the {side:,} x {side:,} matrix of samples takes {as_text(state)} as tiles of its lower triangle",
        n_samples=n,
        n_features=d,
        dtype=str(source.dtype),
        work_dtype=str(work_dtype(source.dtype)),
        n_components=k,
        passes=2,
        rows_per_block=columns,
        n_blocks=n_blocks,
        n_leaves=n_leaves,
        leaves_in_flight=leaves,
        window=window,
        threads=resources.threads,
        threads_per_leaf=threads_per_leaf,
        leaves_per_branch=per_branch,
        tile=accumulator.grid(n).longest_side,
        bytes_to_read=reading,
        flops=float(d) * side * side + 4 / 3 * float(side) ** 3 + 2.0 * side * d * most,
        projected_bytes=_peak(memory),
        allowed_bytes=resources.allowed_bytes,
        memory=memory,
        axis="features",
        notes=_notes(features, columns, reading, disk_bytes),
        components_on_disk=on_disk,
        disk_bytes=disk_bytes,
    )


def _notes(features: Source, columns: int, reading: int, disk_bytes: int) -> tuple[str, ...]:
    notes = ["the first reading gives eigenvalues and scores, the second the components"]
    if disk_bytes:
        notes.append(
            f"components: on disk, up to {as_text(disk_bytes)} in a temporary directory, because they do not fit in memory; "
            "components_ is a zarr array, and a report leaves out what is drawn from rows"
        )
    times = reading / (2 * features.shape[0] * features.row_bytes)
    if times > 1.01:
        notes.append(
            f"a band of whole chunks ({features.chunk_rows:,} features) does not fit: every chunk is decoded {times:.1f} times "
            "in each reading; chunks of fewer features, or more memory, would avoid it"
        )
    return tuple(notes)


def _memory(
    features: Source,
    accumulator: Gram,
    k: int,
    columns: int,
    shape: tuple[int, int, int, int],
    resources: Resources,
    on_disk: bool,
) -> dict[str, int]:
    leaves, window, n_leaves, n_states = shape
    d, n = features.shape
    side, itemsize = accumulator.side(n), work_dtype(features.dtype).itemsize
    block = columns * features.row_bytes
    buffers = (2 * block if features.buffered else 0) + features.overhead_bytes(columns)
    kept = 0 if on_disk else resources.kept_rows * d * features.dtype.itemsize
    basis = 2 * basis_size(side, k) + 8 * 64 + k
    return {
        "process": resources.process_bytes + ALLOWANCE_BYTES,
        "states": accumulator.state_bytes(n) * n_states,
        "feature means": 8 * d * 6,
        "blocks": leaves * buffers,
        "scratch": leaves * accumulator.scratch_bytes(n, columns, itemsize),
        "solve": 8 * side * (basis if uses_krylov(side, k) else 2 * side + 3 * k),
        "components": _components_bytes(
            accumulator, k, columns, (min(window + leaves, n_leaves), leaves, n_leaves), features, on_disk
        ),
        "rows kept": 2 * kept if resources.report else 0,
        "report": (REPORT_BYTES + 3 * kept) if resources.report else 0,
    }


def _components_bytes(
    accumulator: Gram, k: int, columns: int, leaves: tuple[int, int, int], features: Source, on_disk: bool
) -> int:
    """Return what components take: a slab in each leaf and its products, and, in memory, all of them and those of leaves."""
    (waiting, running, n_leaves), (d, n) = leaves, features.shape
    itemsize, width = work_dtype(features.dtype).itemsize, min(d, slab_features(k, columns))
    panel = min(width, panel_features(n, work_dtype(features.dtype)))
    n_left = n - accumulator.side(n)
    copies = 4 if on_disk else 1  # of a slab, on its way to the disk and back
    working = running * (copies * 8 * k * width + k * panel * itemsize + 8 * n_left * 2 * panel)
    sums = (waiting + running + 8) * 8 * k * (k + n_left)
    if on_disk:
        return working + sums
    return 8 * k * d + waiting * k * (-(-d // n_leaves) + columns) * itemsize + working + sums


def _peak(memory: dict[str, int]) -> int:
    always = memory["process"] + memory["feature means"] + memory["rows kept"]
    reading = memory["blocks"] + memory["scratch"]
    return always + max(
        memory["states"] + reading,
        memory["states"] + memory["solve"],
        memory["components"] + reading,
        memory["components"] + memory["report"],
    )


def _refusal(plan: Plan) -> str:
    advice = {
        "states": f"the {plan.n_samples:,} x {plan.n_samples:,} matrix is what takes the room; fewer samples, or",
        "components": f"the components take 8 x {plan.n_features:,} bytes each; fewer of them (n_components), or",
        "blocks": "chunks of fewer features, or",
        "feature means": f"means and variances of {plan.n_features:,} features take 48 bytes each;",
        "report": "report: false, or",
    }
    largest = max(advice, key=lambda name: plan.memory[name])
    return (
        f"projected {as_text(plan.projected_bytes)} exceeds the allowed {as_text(plan.allowed_bytes)}, of which the process itself takes "
        f"{as_text(plan.memory['process'])}: {advice[largest]} memory of at least {as_text(1.01 * plan.projected_bytes)}"
    )


def _scratch_for(plan: Plan, k: int) -> Scratch:
    """Return a directory with room for `k` components; raise `NoSpaceError` if there is none."""
    scratch = Scratch()
    scratch.require(8 * k * plan.n_features)
    return scratch


def _axes(spectrum: Spectrum, reduced: GramOperator, gram: Gram) -> FloatArray:
    """Return what centred columns are multiplied by to give components, ``(n_counted, rank)``: √w u / σ, with σ² = λ (W − ddof)."""
    rank = spectrum.numerical_rank
    axes = spectrum.vectors[:rank].T / np.sqrt(spectrum.values[:rank] * reduced.divisor)
    return np.ascontiguousarray(axes if gram.roots is None else axes * gram.roots[:, None])


def _model(
    source: Source,
    parameters: Parameters,
    plan: Plan,
    spectrum: Spectrum,
    reduced: GramOperator,
    wide: WideComponents,
) -> PCAModel:
    weight = reduced.divisor + parameters.ddof
    model = PCAModel.of_spectrum(
        spectrum,
        reduced,
        parameters,
        precision=relative_precision(plan.work_dtype, reduced.side),
        source=source.describe(),
        sample_weight=None if weight == reduced.n_samples else float(weight),
    )
    certificate = model.certificate | {"orthonormality": wide.orthonormality}
    model = replace(model, components=wide.components, certificate=certificate)
    return with_missing(model, parameters.missing, reduced, 0, None, parameters.missing_scores)


def _scores(spectrum: Spectrum, reduced: GramOperator, gram: Gram, wide: WideComponents) -> FloatArray:
    """Return the scores of all samples, ``(n_samples, k)``: √λ (W − ddof) u / √w, and of those of weight 0 their projections."""
    scores: FloatArray = spectrum.vectors.T * (np.sqrt(spectrum.values * reduced.divisor) * wide.signs)
    if gram.roots is not None:
        scores /= gram.roots[:, None]
    if gram.counted is None:
        return scores
    every = np.empty((len(gram.counted), scores.shape[1]))
    every[gram.counted], every[~gram.counted] = scores, wide.left
    return every


class GramSolver(PCASolver):
    """Exact, by the n × n Gram matrix of wide data."""

    name = "gram"
    missing = ("error", "mean")
    forgetting = False

    def plan(self, source: Source, parameters: Parameters, resources: Resources) -> Plan:
        """Return the plan of a fit; raise `PlanError` if it does not fit in memory."""
        return plan(source, parameters, resources)

    def accumulator_of(self, source: Source, parameters: Parameters, plan: Plan) -> Gram:
        """Return the accumulator of the Gram matrix."""
        return accumulator_of(parameters)

    def reason_chosen(self, plan: Plan, parameters: Parameters) -> str:
        """Return why ``solver="auto"`` chose `plan`."""
        n, d = plan.n_samples, plan.n_features
        if 2 * n > d:
            return "chosen because the covariance matrix does not fit"
        return f"chosen because there are at most half as many samples as features: n² d flops, {d / n:,.0f} times fewer than n d²"

    def run(
        self,
        source: Source,
        parameters: Parameters,
        plan: Plan,
        *,
        client: Any = None,
        keep_rows: int = 0,
        progress: ProgressCallback | None = None,
    ) -> Fit:
        """Read `source` twice by features and return its principal components."""
        features = source.by_features()
        gram = replace(accumulator_of(parameters), n_threads=plan.threads_per_leaf)
        began = time.perf_counter()
        scratch = _scratch_for(plan, plan.n_components or 1) if plan.components_on_disk else None
        with one_blas_thread():
            state, count = accumulate(features, gram, plan, client=client, progress=progress)
            streamed = time.perf_counter()
            reduced = replace(gram, n_threads=plan.threads).finalize(state)
            spectrum = _solved(reduced, parameters, plan)
            del state
            reduced = replace(reduced, products=np.empty(0))
            release_freed_memory()
            solved = time.perf_counter()
            chosen = RowSample(source.shape[0], 0 if scratch else keep_rows, str(source.dtype)).chosen
            task = _components_task(features, gram, reduced, spectrum, chosen, parameters, plan)
            with task.source.reading():
                wide = find_components(task, plan, client, progress, scratch)
        model = _model(source, parameters, plan, spectrum, reduced, wide)
        # With holes these are the scores of rows filled with means.
        scores = None
        if not model.conditional or (not reduced.n_missing and gram.counted is None):
            scores = _scores(spectrum, reduced, gram, wide)
        samples = RowsState(chosen, wide.samples) if len(chosen) else None
        if samples is not None and parameters.missing != "error":
            samples = samples.complete()
        return Fit(
            model=model,
            plan=plan,
            samples=samples,
            count=count + wide.count,
            stream_seconds=streamed - began + time.perf_counter() - solved,
            solve_seconds=solved - streamed,
            scores=scores,
        )


def _solved(reduced: GramOperator, parameters: Parameters, plan: Plan) -> Spectrum:
    """Return the leading eigenpairs of the Gram matrix."""
    selection = as_selection(parameters.n_components, reduced.rank_limit)
    precision = relative_precision(plan.work_dtype, reduced.side)
    return solve(reduced, selection, precision=precision, seed=parameters.seed)


def _components_task(
    features: Source,
    gram: Gram,
    reduced: GramOperator,
    spectrum: Spectrum,
    chosen: NDArray[np.int64],
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
