"""The plan of a fit, and the fit by the solver in the plan, for principal components, kernel principal components, or an analysis."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.accumulators.rows import RowSample
from streampca.errors import DataError, NotAvailableError, PlanError
from streampca.execution.readings import Meters, Reading, Readings, relayed, with_beside
from streampca.logs import logger
from streampca.parameters import Parameters
from streampca.planning.columns import require_rows, require_rule, with_columns
from streampca.planning.memory import WORKER_PROCESS_BYTES, allowed_bytes
from streampca.planning.plan import Plan, with_read_ahead
from streampca.planning.scores import diagnostics_bytes
from streampca.planning.work import Resources, WorkerLimits, for_workers, least_memory, worker_limits
from streampca.solvers.analyses import Analysis, plan_of_analysis
from streampca.solvers.capabilities import require_together
from streampca.solvers.choosing import choose, obstacle_to_state, solver_of, solvers_for, with_alternatives, with_time
from streampca.solvers.fitted_steps import fit_steps, with_steps
from streampca.solvers.kernel.base import KernelParameters
from streampca.solvers.on_device import device_note, on_device_of, with_device
from streampca.solvers.removing import Removing, regressors_of
from streampca.solvers.result import Fit, QualityFound, examining, quality_bytes
from streampca.solvers.sampling import plan_sampling, require_sampling, with_sampling_errors
from streampca.sources.alignment import places_named
from streampca.sources.base import Source
from streampca.sources.files.records import require_distinct
from streampca.system.device import HOST, device_of
from streampca.system.process import n_cores, process_bytes

if TYPE_CHECKING:
    from streampca.typing import DaskClient

__all__ = ["Fit", "Parameters", "plan_fit", "report_rows"]

_log = logger(__name__)
_REPORT_ROWS, _REPORT_BYTES = 2000, 16 * 2**20


def plan_fit(
    source: Source,
    parameters: Parameters | KernelParameters,
    *,
    scores: bool = False,
    report: bool = False,
    client: DaskClient | None = None,
    alternatives: bool = False,
    analysis: Analysis | None = None,
    quality: bool = False,
    diagnostics: bool = False,
) -> Plan:
    """Return the plan of a fit of `source`, with the figures of the other solvers if `alternatives` is set.

    Reads metadata only. `analysis` is what is solved from the state in place of principal components.

    Raises
    ------
    PlanError
        If it does not fit in the memory that is allowed.
    DataError
        If there are not more rows than `ddof`, or two files of rows have the same content.
    NotAvailableError
        For what does not go together.
    """
    n, linear = source.shape[0], isinstance(parameters, Parameters)
    require_distinct(source.fragments)
    if parameters.device != HOST:
        device_of(parameters.device)  # which is named if it is not there, and is part of the process from here on
    if n <= parameters.ddof:
        samples = "1 sample" if n == 1 else f"{n} samples"
        by_ddof = f"with ddof={parameters.ddof} " if linear else ""
        raise DataError(
            f"n_samples={n}: found {samples}, {by_ddof}at least {parameters.ddof + 1} are needed: {source.description}"
        )
    if diagnostics and not linear:
        raise NotAvailableError("diagnostics (T² and Q of rows) are for PCA: kernel PCA has none")
    parameters = with_columns(parameters, source)
    require_fit(source, parameters, analysis=analysis is not None)
    if parameters.sampling_errors:
        require_sampling(parameters.sampling_errors, n)
    limits = worker_limits(client)
    memory, threads = parameters.memory, parameters.threads
    with resources_of(source, memory, threads, limits, scores=scores, report=report) as resources:
        if quality:
            resources = resources.holding("quality", quality_bytes(source, resources.threads, parameters.missing))
        if diagnostics:
            in_leaf = diagnostics_bytes(source.shape[1], parameters.n_components, parameters.missing)
            resources = resources.holding("diagnostics", resources.threads * in_leaf)
        if isinstance(parameters, Parameters):
            regressors = regressors_of(source, parameters)
            require_rule(source, parameters, None if regressors is None else regressors.orthogonal.size)
            if regressors is not None:
                resources = replace(resources, companions=(*resources.companions, Removing(regressors, source)))
        resources = with_device(resources, parameters, source)
        plan = choose(source, parameters, replace(resources, scores=scores or parameters.sampling_errors > 0))
        if parameters.sampling_errors:
            plan = plan_sampling(plan, source, parameters, resources, analysis)
        plan = plan if analysis is None else plan_of_analysis(plan, analysis, source)
    plan = with_read_ahead(plan, source, parameters.read_ahead)
    if parameters.missing != "error" and source.dtype.kind in "iu" and not source.sparse:
        none = f"missing={parameters.missing!r}: no value is missing, because {source.dtype} has no NaN; name the number that means missing with missing_value"
        plan = plan.with_notes([none])
    if parameters.device != HOST:
        plan = plan.with_notes([device_note(plan, source, parameters)])
    plan = for_workers(plan, limits)
    if alternatives and analysis is None:
        plan = with_alternatives(plan, source, parameters, resources)
    return with_steps(with_time(plan, resources), source)


def require_fit(source: Source | None, parameters: Parameters | KernelParameters, *, analysis: bool = False) -> None:
    """Raise `NotAvailableError` or `ParameterError` for parameters that do not go together; without a `source`, whatever the rows.

    With `analysis`, something else than principal components is solved.
    """
    if isinstance(parameters, Parameters):
        parameters.selection(source)
        if source is not None:
            require_rows(source, parameters)
        together = "sampling errors of analyses" if analysis and parameters.sampling_errors else ""
        require_together(source, parameters, together)
        if source is None:  # else when its regressors are known
            require_rule(None, parameters)
    if parameters.solver != "auto":
        solvers_for(parameters)[parameters.solver].require(source, parameters)


@contextmanager
def resources_of(
    source: Source,
    memory: int | str | None,
    threads: int | None,
    limits: list[WorkerLimits],
    *,
    scores: bool = False,
    report: bool = False,
) -> Iterator[Resources]:
    """Give what a plan may use here, or in each of the workers with such `limits`; a `PlanError` then names the memory of a worker."""
    resources = Resources(
        allowed_bytes=allowed_bytes(memory),
        process_bytes=process_bytes(),
        threads=threads or n_cores(),
        scores=scores,
        report=report,
        report_rows=report_rows(source) if report else 0,
    )
    source.settle(resources.allowed_bytes)
    least = least_memory(limits)
    if limits:
        # A worker process runs as many leaves as it has threads, so its ceiling is shared by as many.
        process, most = max(resources.process_bytes, WORKER_PROCESS_BYTES), max(each.threads for each in limits)
        resources = replace(resources, process_bytes=process, threads=most, on_workers=True)
        if least is not None and least - WORKER_PROCESS_BYTES < resources.allowed_bytes - process:
            resources = replace(resources, allowed_bytes=least, process_bytes=WORKER_PROCESS_BYTES)
    try:
        yield resources
    except PlanError as error:
        if resources.allowed_bytes != least:
            raise
        raise PlanError(
            f"{error}; the ceiling is that of the worker with the least memory: give workers more, or run fewer on a machine"
        ) from error


def readings_of_fit(
    source: Source,
    parameters: Parameters | KernelParameters,
    plan: Plan,
    *,
    keep_rows: int = 0,
    quality: bool = False,
    analysis: Analysis | None = None,
) -> Readings[Any]:
    """Ask for the readings of a fit by `plan`, of PCA, an `analysis` or kernel PCA; return the fit with its model and what reading took.

    `keep_rows` rows are copied out of the stream, and the `quality` of the data is examined, if asked for.
    """
    _log.info("plan: %r", plan)
    began, used, meters, kind = time.perf_counter(), time.process_time(), Meters(), solver_of(plan)
    with places_named(source):
        given: Any = with_columns(parameters, source)
        regressors, removing = regressors_of(source, given), None
        if regressors is not None:
            removing = Removing(regressors, source, np.dtype(plan.work_dtype))
            given = replace(given, n_regressors=regressors.orthogonal.size)
        by_features = plan.axis == "features"
        copies = keep_rows if kind.copies_rows and by_features else 0  # rows do not pass by then
        solver = kind(source, given, copies, removing, analysis)
        solving = on_device_of(given, solver.readings(plan))
        solving = solving if removing is None else relayed(solving, removing)
        sample = (RowSample(source.shape[0], keep_rows, str(source.dtype)),) if keep_rows and not copies else ()
        examined = examining(source, given.missing, by_features=by_features) if quality else ()
        yield from relayed(fit_steps(source, plan), meters)
        beside = with_beside(solving, Reading(source, (*sample, *examined), plan))
        fitted, states = yield from relayed(beside, meters)
        fitted = replace(fitted, samples=states[0]) if sample else fitted
        if examined:
            fitted = replace(fitted, quality=QualityFound(examined, states[len(sample) :]))
        if obstacle_to_state(given, plan):
            fitted = replace(fitted, fitted_state=None)
        if removing is not None:
            fitted = removing.finished(fitted, copied_residuals=copies > 0)
        fitted = solver.finished(fitted)
        if given.device != HOST:
            certificate = fitted.model.certificate.saying(device_note(plan, source, given))
            model = replace(fitted.model, certificate=certificate)
            fitted = replace(fitted, model=model.on_device(given.device))
        if given.sampling_errors and analysis is None:
            fitted = yield from relayed(with_sampling_errors(fitted, source, given), meters)
        labels = None if source.labels is None else source.labels.without_sample_coordinates()
        total = time.perf_counter() - began
        seconds = {**meters.count.phases, "eigenproblem": total - meters.seconds, "total": total}
        if not plan.n_workers:
            seconds["busy"] = min(1.0, (time.process_time() - used) / (total * plan.threads))
        return replace(
            fitted,
            plan=replace(fitted.plan, seconds=seconds),
            model=replace(fitted.model, labels=labels),
            count=meters.count,
            n_passes=meters.n_readings,
            stream_seconds=meters.seconds,
            solve_seconds=total - meters.seconds,
        )


def report_rows(source: Source) -> int:
    """Return how many rows a report is drawn from: 2,000, fewer where they are long."""
    return int(max(4, min(_REPORT_ROWS, source.shape[0], _REPORT_BYTES // (source.shape[1] * source.dtype.itemsize))))
