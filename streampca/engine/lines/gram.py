"""Exact PCA of wide data by the n × n Gram matrix: one reading by features, then a second one for the components."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import FloatArray, work_dtype
from streampca.accumulators.gram import Gram, GramReduced, panel_features
from streampca.accumulators.rows import Rows, RowsState
from streampca.engine.execute import (
    Meter,
    OnBlock,
    ProgressCallback,
    accumulate,
    execute,
    one_blas_thread,
)
from streampca.engine.fold import LeafResult, StoppedError, read_ahead
from streampca.engine.memory import ALLOWANCE_BYTES, REPORT_BYTES, as_text, give_back_freed_memory
from streampca.engine.parameters import Fit, Parameters
from streampca.engine.plan import (
    Leaf,
    Plan,
    Resources,
    block_rows_to_try,
    bytes_to_read,
    choose,
    count_leaves,
)
from streampca.errors import NotAvailableError, PlanError
from streampca.krylov import basis_size
from streampca.models.pca import PCAModel, relative_precision
from streampca.seeding import generator
from streampca.selection import Count, as_selection
from streampca.solve import solve, uses_krylov
from streampca.sources.base import ReadCount, Source
from streampca.workspace import borrow

_SMALL_STATE_BYTES = 32 * 2**20


def accumulator_of(parameters: Parameters) -> Gram:
    """Return the accumulator of these parameters."""
    if parameters.missing != "error" or parameters.sample_weight is not None or parameters.forgetting != 1:
        raise NotAvailableError(
            "solver='gram' takes neither missing values nor sample weights nor a forgetting factor: use solver='covariance'"
        )
    factors = None if parameters.feature_weight is None else np.sqrt(parameters.feature_weight)
    return Gram(center=parameters.center, scale=parameters.scale, ddof=parameters.ddof, factors=factors)


def plan(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of a fit; raise `PlanError` if it does not fit."""
    n, d = source.shape
    features, accumulator = source.by_features(), accumulator_of(parameters)
    selection = parameters.selection(source)
    k = selection.n_components if isinstance(selection, Count) else None
    dtype, grid = work_dtype(source.dtype), accumulator.grid(n)

    def build(columns: int, leaves: int, threads_per_leaf: int) -> Plan:
        n_blocks = -(-d // columns)
        n_leaves = count_leaves(d, n_blocks, features.row_bytes)
        window = leaves * (2 if leaves > 1 and accumulator.state_bytes(n) <= _SMALL_STATE_BYTES else 1)
        shared = replace(accumulator, n_threads=threads_per_leaf)
        memory = _memory(features, shared, k, columns, (leaves, window, n_leaves), resources)
        reading = 2 * bytes_to_read(features, columns)
        return Plan(
            solver="gram",
            reason=f"exact; the {n:,} x {n:,} matrix of samples takes {as_text(accumulator.state_bytes(n))} as tiles of its lower triangle",
            n_samples=n,
            n_features=d,
            dtype=str(source.dtype),
            work_dtype=str(dtype),
            n_components=k,
            passes=2,
            rows_per_block=columns,
            n_blocks=n_blocks,
            n_leaves=n_leaves,
            leaves_in_flight=leaves,
            window=window,
            threads=resources.threads,
            threads_per_leaf=threads_per_leaf,
            tile=grid.longest_side,
            bytes_to_read=reading,
            flops=float(d) * n * n + 4 / 3 * float(n) ** 3 + 2.0 * n * d * (k or n),
            projected_bytes=_peak(memory),
            allowed_bytes=resources.allowed_bytes,
            memory=memory,
            axis="features",
            notes=_notes(features, columns, reading),
        )

    found, fits = choose(block_rows_to_try(features, dtype), build, n, resources.threads, grid.n_tiles)
    if not fits:
        raise PlanError(_refusal(found))
    return found


def _notes(features: Source, columns: int, reading: int) -> tuple[str, ...]:
    notes = ["the first reading gives eigenvalues and scores, the second the components"]
    times = reading / (2 * features.shape[0] * features.row_bytes)
    if times > 1.01:
        notes.append(
            f"a band of whole chunks ({features.chunk_rows:,} features) does not fit: every chunk is decoded {times:.1f} times "
            "in each reading; chunks of fewer features, or more memory, would avoid it"
        )
    return tuple(notes)


def _memory(
    features: Source, accumulator: Gram, k: int | None, columns: int, shape: tuple[int, int, int], resources: Resources
) -> dict[str, int]:
    leaves, window, n_leaves = shape
    d, n = features.shape
    k = min(n, d) if k is None else k
    itemsize = work_dtype(features.dtype).itemsize
    block = columns * features.row_bytes
    buffers = (2 * block if features.buffered else 0) + features.overhead_bytes(columns)
    leaf_features = -(-d // n_leaves) + columns
    kept = resources.kept_rows * d * features.dtype.itemsize
    basis = 2 * basis_size(n, k) + 8 * 64 + k
    return {
        "process": resources.process_bytes + ALLOWANCE_BYTES,
        "states": accumulator.state_bytes(n) * (1 + min(window, n_leaves)),
        "feature means": 8 * d * 6,
        "blocks": leaves * buffers,
        "scratch": leaves * accumulator.scratch_bytes(n, columns, itemsize),
        "solve": 8 * n * (basis if uses_krylov(n, k) else 2 * n + 3 * k),
        "components": 8 * k * d + min(window + leaves, n_leaves) * k * leaf_features * itemsize + 8 * k * min(d, 65536),
        "rows kept": 2 * kept if resources.report else 0,
        "report": (REPORT_BYTES + 3 * kept) if resources.report else 0,
    }


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
    }
    largest = max(advice, key=lambda name: plan.memory[name])
    return (
        f"projected {as_text(plan.projected_bytes)} exceeds the allowed {as_text(plan.allowed_bytes)}, of which the process itself takes "
        f"{as_text(plan.memory['process'])}: {advice[largest]} memory of at least {as_text(1.01 * plan.projected_bytes)}"
    )


def run(
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
    with one_blas_thread():
        state, count = accumulate(features, gram, plan, client=client, progress=progress)
        streamed = time.perf_counter()
        reduced = replace(gram, n_threads=plan.threads).finalize(state)
        selection = as_selection(parameters.n_components, reduced.rank_limit)
        precision = relative_precision(plan.work_dtype, reduced.side)
        spectrum = solve(reduced, selection, precision=precision, seed=parameters.seed)
        del state
        reduced = replace(reduced, products=np.empty(0))
        give_back_freed_memory()
        solved = time.perf_counter()
        rank, left = spectrum.numerical_rank, spectrum.vectors
        chosen = Rows(source.shape[0], keep_rows, str(source.dtype)).chosen
        task = ComponentsTask(
            features, gram, reduced.mean, reduced.variance, _axes(left, spectrum.values, reduced, rank), chosen
        )
        components, samples, second = _components(task, plan, len(left), client, progress)
        signs = _finish(components, rank, parameters.seed)
    model = PCAModel.of_spectrum(
        replace(spectrum, vectors=components),
        reduced,
        center=parameters.center,
        scale=parameters.scale,
        whiten=parameters.whiten,
        ddof=parameters.ddof,
        work=plan.work_dtype,
        source=source.describe(),
        feature_weight=parameters.feature_weight,
    )
    scores = left.T * (np.sqrt(spectrum.values * reduced.divisor) * signs)
    kept = RowsState(chosen, samples) if keep_rows else None
    ended = time.perf_counter()
    seconds = streamed - began + ended - solved
    return Fit(model, plan, None, kept, count + second, seconds, solved - streamed, scores=scores)


def _axes(left: FloatArray, values: FloatArray, reduced: GramReduced, rank: int) -> FloatArray:
    """Return what centred columns are multiplied by to give components, ``(n, rank)``: u / σ, with σ² = λ (n − ddof)."""
    return np.ascontiguousarray(left[:rank].T / np.sqrt(values[:rank] * reduced.divisor))


@dataclass(frozen=True)
class ComponentsTask:
    """Entries of the components for the features of a leaf: V = Xᵀ U S⁻¹ (seed of the field: Turk & Pentland 1991)."""

    source: Source
    """The data by features."""
    gram: Gram
    """How features are weighted."""
    means: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variances: FloatArray
    """Variance of each feature, ``(n_features,)``."""
    axes: FloatArray
    """Left singular vectors over singular values, ``(n_samples, k)``."""
    chosen: NDArray[np.int64]
    """Samples that are copied out for a report."""
    first: int = 0
    """First feature that `means` and `variances` hold."""

    def for_leaf(self, leaf: Leaf) -> ComponentsTask:
        """Return the task with no more than the features of `leaf` need."""
        start, stop = leaf.edges[0], leaf.edges[-1]
        part = slice(start - self.first, stop - self.first)
        source = self.source.part(start, stop)
        return replace(self, source=source, means=self.means[part], variances=self.variances[part], first=start)

    def __call__(self, leaf: Leaf, stop: threading.Event | None = None, on_block: OnBlock | None = None) -> LeafResult:
        """Multiply."""
        dtype = work_dtype(self.source.dtype)
        axes = self.axes.astype(dtype)
        start, n_features = leaf.edges[0], leaf.edges[-1] - leaf.edges[0]
        components = np.empty((axes.shape[1], n_features), dtype=dtype)
        samples = np.empty((len(self.chosen), n_features), dtype=self.source.dtype)
        total = ReadCount()
        for block, count in read_ahead(self.source, leaf):
            part = slice(block.start - start, block.start - start + len(block))
            values = block.values.T
            samples[:, part] = values[self.chosen]
            self._add(values, block.start, axes, components[:, part])
            total += count
            if on_block is not None:
                on_block(block, count)
            if stop is not None and stop.is_set():
                raise StoppedError
        return LeafResult((components, samples), total)

    def _add(self, values: NDArray[Any], start: int, axes: NDArray[Any], out: NDArray[Any]) -> None:
        width = panel_features(len(values), axes.dtype)
        for first in range(0, values.shape[1], width):
            panel = values[:, first : first + width]
            own = slice(start + first - self.first, start + first - self.first + panel.shape[1])
            columns = borrow("panel", panel.shape, axes.dtype)
            if self.gram.center:
                np.subtract(panel, self.means[own].astype(axes.dtype), out=columns)
            else:
                np.copyto(columns, panel)
            product = axes.T @ columns
            factors = self.gram.factors_of(start + first, self.variances[own])
            if factors is not None:
                product *= factors.astype(axes.dtype)
            out[:, first : first + width] = product


def _components(
    task: ComponentsTask, plan: Plan, k: int, client: Any, progress: ProgressCallback | None
) -> tuple[FloatArray, NDArray[Any], ReadCount]:
    """Run the second reading; return the components ``(k, n_features)``, the chosen samples, and what it cost."""
    components = np.zeros((k, plan.n_features))
    samples = np.empty((len(task.chosen), plan.n_features), dtype=task.source.dtype)
    count = ReadCount()
    results = execute(task, plan, Meter("components", plan.n_features, progress), client)
    try:
        for index, result in enumerate(results):
            edges = plan.leaf(index).edges
            part, (some, rows) = slice(edges[0], edges[-1]), result.state
            components[: len(some), part], samples[:, part] = some, rows
            count += result.count
            del result, some, rows
    finally:
        results.close()
    give_back_freed_memory()
    return components, samples, count


def _finish(components: FloatArray, rank: int, seed: int) -> FloatArray:
    """Make the rows orthonormal to rounding, complete them beyond `rank`, and fix their signs, all in place; return the signs.

    Symmetric orthonormalisation, V ← (V Vᵀ)^(−1/2) V, changes them the least; after float32 products it moves them by
    about 1e-7. A few columns at a time, so no second copy is made.
    """
    k, d = components.shape
    for row in range(rank, k):
        vector = np.asarray(generator(seed, "completion", row).standard_normal(d), dtype=np.float64)
        for _ in range(2):
            vector = vector - (components[:row] @ vector) @ components[:row]
            vector /= np.linalg.norm(vector)
        components[row] = vector
    squares, vectors = np.linalg.eigh(components @ components.T)
    root = (vectors / np.sqrt(squares)) @ vectors.T
    for start in range(0, d, 65536):
        part = slice(start, start + 65536)
        components[:, part] = root @ components[:, part]
    largest = np.array([np.abs(row).argmax() for row in components])
    signs = np.where(components[np.arange(k), largest] < 0, -1.0, 1.0)
    components *= signs[:, None]
    return signs
