"""The straight line of an exact fit: source, plan, blocks, covariance, eigenpairs, model."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators import Covariance, CovarianceState, Joint, Rows, RowsState
from streampca.accumulators.centring import work_dtype
from streampca.engine.execute import ProgressCallback, accumulate, active_client, one_blas_thread
from streampca.engine.memory import WORKER_PROCESS_BYTES, allowed_bytes, n_cores, process_bytes
from streampca.engine.plan import Plan, Resources, plan_covariance
from streampca.errors import DataError
from streampca.models.pca import PCAModel, relative_precision
from streampca.selection import Count, Selection, as_selection
from streampca.solve import solve
from streampca.sources.base import ReadCount, Source

_KEPT_ROWS, _KEPT_BYTES = 2000, 16 * 2**20


@dataclass(frozen=True)
class Parameters:
    """What of a fit is decided by the user, beside the data."""

    n_components: Any = None
    """Count, share, `Threshold` or None."""
    center: bool = True
    """Subtract the mean."""
    scale: bool = False
    """Divide by the standard deviation."""
    whiten: bool = False
    """Divide scores by their standard deviation."""
    ddof: int = 1
    """Divisor of variances is n − ddof."""
    seed: int = 0
    """Seed of everything that is drawn."""
    memory: int | str | None = None
    """Ceiling for the process."""
    threads: int | None = None
    """Threads to share; None = all cores this process may use."""

    @property
    def accumulator(self) -> Covariance:
        """Return the accumulator of these parameters."""
        return Covariance(center=self.center, scale=self.scale, ddof=self.ddof)


@dataclass(frozen=True)
class Fit:
    """What a fit leaves behind."""

    model: PCAModel
    """The model."""
    plan: Plan
    """What was planned."""
    state: CovarianceState
    """The accumulated state, for merging and going on."""
    samples: RowsState | None
    """Rows copied out of the stream, where asked for."""
    count: ReadCount
    """What reading cost."""
    stream_seconds: float
    """Time of the reading."""
    solve_seconds: float
    """Time of the eigenproblem."""


def plan_fit(
    source: Source, parameters: Parameters, *, scores: bool = False, report: bool = False, client: Any = None
) -> Plan:
    """Return the plan of a fit of `source`; reads metadata only.

    Raises
    ------
    PlanError
        If it does not fit in the memory that is allowed.
    DataError
        If there are not more rows than `ddof`.
    """
    n, d = source.shape
    if n <= parameters.ddof:
        found = "1 sample" if n == 1 else f"{n} samples"
        raise DataError(
            f"n_samples={n}: found {found}, with ddof={parameters.ddof} at least {parameters.ddof + 1} are needed: {source.description}"
        )
    selection = as_selection(parameters.n_components, min(n, d))
    resources = Resources(
        allowed_bytes=allowed_bytes(parameters.memory),
        process_bytes=process_bytes(),
        threads=parameters.threads or n_cores(),
        scores=scores,
        report=report,
        kept_rows=kept_rows(source) if report else 0,
    )
    if client is not None:
        # A worker process runs as many leaves as it has threads, so its ceiling is shared by as many.
        slots = max(
            (int(worker["nthreads"]) for worker in client.scheduler_info(n_workers=-1)["workers"].values()), default=1
        )
        resources = replace(resources, process_bytes=max(resources.process_bytes, WORKER_PROCESS_BYTES), threads=slots)
    n_components = _largest_count(selection, source)
    plan = plan_covariance(source, parameters.accumulator, n_components, resources)
    if client is not None:
        total = sum(int(worker["nthreads"]) for worker in client.scheduler_info(n_workers=-1)["workers"].values())
        plan = replace(
            plan, threads=max(1, total), leaves_in_flight=max(1, total), window=2 * max(1, total), threads_per_leaf=1
        )
    return plan


def fit(
    source: Source,
    parameters: Parameters,
    plan: Plan | None = None,
    *,
    keep_rows: int = 0,
    progress: ProgressCallback | None = None,
) -> Fit:
    """Read `source` once and return its principal components."""
    client = active_client(source)
    plan = plan or plan_fit(source, parameters, client=client)
    covariance = replace(parameters.accumulator, n_threads=plan.threads_per_leaf)
    rows = Rows(source.shape[0], keep_rows, str(source.dtype))
    accumulator: Any = Joint((covariance, rows)) if keep_rows else covariance
    began = time.perf_counter()
    with one_blas_thread():
        state, count = accumulate(source, accumulator, plan, client=client, progress=progress)
        streamed = time.perf_counter()
        state, samples = state if keep_rows else (state, None)
        model = solve_model(state, replace(covariance, n_threads=plan.threads), parameters, source, plan.work_dtype)
    solved = time.perf_counter()
    return Fit(model, plan, state, samples, count, streamed - began, solved - streamed)


def solve_model(
    state: CovarianceState, covariance: Covariance, parameters: Parameters, source: Source, work: str
) -> PCAModel:
    """Return the model of an accumulated state."""
    reduced = covariance.finalize(state)
    if not np.isfinite(reduced.diagonal).all():
        raise DataError(
            f"the variance of feature {int(np.flatnonzero(~np.isfinite(reduced.diagonal))[0])} overflows float64: rescale it first"
        )
    selection = as_selection(parameters.n_components, min(reduced.n_samples, reduced.n_features))
    precision = relative_precision(work, reduced.n_features)
    spectrum = solve(reduced, selection, precision=precision, seed=parameters.seed)
    return PCAModel.of_spectrum(
        spectrum,
        reduced,
        center=parameters.center,
        scale=parameters.scale,
        whiten=parameters.whiten,
        ddof=parameters.ddof,
        work=str(work_dtype(source.dtype)),
        source=source.describe(),
    )


def kept_rows(source: Source) -> int:
    """Return how many rows a report is drawn from: 2,000, fewer where they are long."""
    return int(max(4, min(_KEPT_ROWS, source.shape[0], _KEPT_BYTES // source.row_bytes)))


def _largest_count(selection: Selection, source: Source) -> int | None:
    return selection.n_components if isinstance(selection, Count) else None
