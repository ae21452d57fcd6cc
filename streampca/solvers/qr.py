"""Exact PCA by a triangular factor of the rows: one reading, for those who ask for singular values below 1e-8 of the first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.accumulators.joint import Joint
from streampca.accumulators.rows import RowSample
from streampca.accumulators.triangle import Factored, QRFactor, TriangleState
from streampca.errors import DataError, PlanError, StreamPCAError
from streampca.execution.drive import accumulate
from streampca.execution.progress import ProgressCallback
from streampca.formatting import as_text
from streampca.linalg.eigen import Spectrum, signed
from streampca.linalg.selection import Count, Selection, as_selection
from streampca.models.pca import PCAModel
from streampca.parameters import Parameters
from streampca.planning.leaves import count_leaves
from streampca.planning.memory import ALLOWANCE_BYTES, REPORT_BYTES
from streampca.planning.plan import Plan, Resources, block_rows_to_try, bytes_to_read, choose
from streampca.solvers.base import ContinuableSolver
from streampca.solvers.result import Accumulated
from streampca.sources.base import Source


def accumulator_of(parameters: Parameters) -> QRFactor:
    """Return the accumulator of these parameters."""
    return QRFactor(center=parameters.center, scale=parameters.scale, ddof=parameters.ddof)


def plan(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of a fit; raise `PlanError` if it does not fit."""
    n, d = source.shape
    triangle = accumulator_of(parameters)
    selection = parameters.selection(source)
    k = selection.n_components if isinstance(selection, Count) else None

    def build(rows: int, leaves: int, threads_per_leaf: int) -> Plan:
        n_blocks = -(-n // rows)
        n_leaves = count_leaves(n, n_blocks, source.row_bytes)
        memory = _memory(source, triangle, k, rows, (leaves, min(leaves, n_leaves)), resources)
        return Plan(
            solver="qr",
            reason=f"exact; the triangular factor of {d:,} x {d:,} takes {as_text(triangle.state_bytes(d))}, and nothing is squared",
            n_samples=n,
            n_features=d,
            dtype=str(source.dtype),
            work_dtype="float64",
            n_components=k,
            passes=1,
            rows_per_block=rows,
            n_blocks=n_blocks,
            n_leaves=n_leaves,
            leaves_in_flight=leaves,
            window=leaves,
            threads=resources.threads,
            threads_per_leaf=1,
            tile=d,
            bytes_to_read=bytes_to_read(source, rows) if rows % source.chunk_rows else n * source.row_bytes,
            flops=2.0 * n * d * d + (2 / 3 * n_leaves + 12) * float(d) ** 3,
            projected_bytes=_peak(memory),
            allowed_bytes=resources.allowed_bytes,
            memory=memory,
            notes=(
                "takes two to four times as long as float64 products; the decomposition at the end runs on one thread",
            ),
        )

    found, fits = choose(block_rows_to_try(source, np.dtype(np.float64)), build, 0, resources.threads, 1)
    if not fits:
        raise PlanError(
            f"projected {as_text(found.projected_bytes)} exceeds the allowed {as_text(found.allowed_bytes)}, of which the process "
            f"itself takes {as_text(found.memory['process'])}: solver='covariance' takes a quarter of it where singular values "
            f"below 1e-8 of the first do not matter; else fewer features, or memory of at least {as_text(1.01 * found.projected_bytes)}"
        )
    return found


def _memory(
    source: Source, triangle: QRFactor, k: int | None, rows: int, leaves_window: tuple[int, int], resources: Resources
) -> dict[str, int]:
    (leaves, window), (n, d) = leaves_window, source.shape
    k = min(n, d) if k is None else k
    block = rows * source.row_bytes
    buffers = (2 * block if source.buffered else 0) + source.overhead_bytes(rows)
    scores = leaves * (buffers + 16 * min(rows, 8192) * d + 48 * rows * k) + 8 * d * k
    return {
        "process": resources.process_bytes + ALLOWANCE_BYTES,
        "states": triangle.state_bytes(d) * (1 + window),
        "blocks": leaves * buffers,
        "scratch": (leaves + 1) * triangle.scratch_bytes(d, rows, 8),
        "rows kept": 3 * resources.kept_rows * source.row_bytes,
        "solve": 8 * d * (8 * d + 3 * k),
        "model": 8 * (3 * k * d + 4 * d),
        "scores": scores if resources.scores else 0,
        "report": REPORT_BYTES if resources.report else 0,
    }


def _peak(memory: dict[str, int]) -> int:
    always = memory["process"] + memory["rows kept"]
    after = memory["model"] + max(memory["solve"], memory["scores"], memory["report"])
    return always + memory["states"] + max(memory["blocks"] + memory["scratch"], after)


def solve_model(
    state: TriangleState,
    triangle: QRFactor,
    parameters: Parameters,
    work: str,
    source: dict[str, Any],
) -> PCAModel:
    """Return the model of an accumulated state; `source` says where its rows came from."""
    factored = triangle.finalize(state)
    if parameters.feature_weight is not None:
        factored = replace(factored, weights=factored.weights * np.sqrt(parameters.feature_weight))
    finite = np.isfinite(factored.variance)
    if not finite.all():
        raise DataError(
            f"the variance of feature {int(np.flatnonzero(~finite)[0])} overflows float64: rescale it first"
        )
    d = len(factored.mean)
    selection = as_selection(parameters.n_components, min(factored.n_samples, d))
    precision = relative_precision(d)
    spectrum = _spectrum(factored, selection, precision)
    model = PCAModel.of_spectrum(
        spectrum,
        factored,
        parameters,
        precision=precision,
        source=source,
        sample_weight=None if state.weight == state.n_samples else state.weight,
    )
    left = model.certificate["relative_residual"]
    rounding = 4 * d * float(np.finfo(np.float64).eps)
    more = {
        "statement": (
            "exact: the triangular factor holds every row, and nothing was squared; singular values carry an error of "
            f"{np.sqrt(precision):.0e} of the first, above which each of them is trusted"
        ),
        "relative_residual_interval": [max(0.0, left - rounding), min(1.0, left + rounding)],
    }
    return replace(model, certificate=model.certificate | more)


def relative_precision(n_features: int) -> float:
    """Return the relative size below which eigenvalues are noise: (1e-15 √d)², that of singular values squared."""
    return 1e-30 * n_features


def _spectrum(factored: Factored, selection: Selection, precision: float) -> Spectrum:
    from scipy.linalg import LinAlgError, svd

    limit = min(factored.n_samples, len(factored.mean))
    try:
        singular, vectors = svd(factored.rows(), full_matrices=False, overwrite_a=True, check_finite=False)[1:]
    except LinAlgError as error:
        raise StreamPCAError(f"LAPACK could not decompose the triangular factor: {error}") from error
    with np.errstate(over="ignore"):
        values, total = singular**2 / factored.divisor, float((singular**2).sum() / factored.divisor)
    if not np.isfinite(total):
        raise DataError("the sum of the squares of all features overflows float64: rescale them first")
    chosen = selection.select(values[:limit], total, 2 * np.sqrt(precision))
    k = limit if chosen is None else chosen
    values, vectors = values[:k].copy(), vectors[:k]
    rank = int(np.count_nonzero(values > precision * values[0])) if values[0] > 0 else 0
    return Spectrum(values, signed(vectors.T), total, _residual(factored, values, vectors), rank, "lapack svd")


def _residual(factored: Factored, values: np.ndarray[Any, Any], vectors: np.ndarray[Any, Any]) -> float:
    if values[0] <= 0:
        return 0.0
    columns = np.ascontiguousarray(vectors.T)
    gap = (factored.multiply(columns) - columns * values) / values[0]
    return float(np.linalg.norm(gap, axis=0).max())


class QRSolver(ContinuableSolver):
    """Exact, by a triangular factor of the rows."""

    name = "qr"
    missing = ("error",)
    sparse = False
    forgetting = False

    def plan(self, source: Source, parameters: Parameters, resources: Resources) -> Plan:
        """Return the plan of a fit; raise `PlanError` if it does not fit in memory."""
        return plan(source, parameters, resources)

    def accumulator_of(self, source: Source, parameters: Parameters, plan: Plan) -> QRFactor:
        """Return the accumulator of the triangular factor."""
        return accumulator_of(parameters)

    def accumulate(
        self,
        source: Source,
        parameters: Parameters,
        plan: Plan,
        *,
        client: Any = None,
        keep_rows: int = 0,
        progress: ProgressCallback | None = None,
        accumulator: Any = None,
    ) -> Accumulated:
        """Read `source` once and return its triangular factor."""
        triangle = accumulator_of(parameters)
        rows = RowSample(source.shape[0], keep_rows, str(source.dtype))
        both: Any = Joint((triangle, rows)) if keep_rows else triangle
        weights = parameters.sample_weight
        state, count = accumulate(source, both, plan, client=client, progress=progress, weights=weights)
        state, samples = state if keep_rows else (state, None)
        return Accumulated(triangle, state, samples, count)

    def solve_model(
        self,
        state: TriangleState,
        accumulator: QRFactor,
        parameters: Parameters,
        work: str,
        source: dict[str, Any],
        n_left_out: int = 0,
    ) -> PCAModel:
        """Return the model of a triangular factor."""
        return solve_model(state, accumulator, parameters, work, source)
