"""Plans of fits of linear PCA, and fits of any kind by the solver that a plan names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import DataError, NotAvailableError, PlanError
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Readings, relayed, run_fit
from streampca.linalg.selection import Count
from streampca.logs import logger
from streampca.parameters import Parameters
from streampca.planning.checks import require_rows, require_rule
from streampca.planning.columns import with_columns
from streampca.planning.memory import ALLOWANCE_BYTES, WORKER_PROCESS_BYTES, allowed_bytes
from streampca.planning.plan import Plan
from streampca.planning.read_ahead import with_read_ahead
from streampca.planning.scores import diagnostics_bytes
from streampca.planning.work import Resources
from streampca.planning.worker_limits import WorkerLimits, for_workers, least_memory, worker_limits
from streampca.solvers.alternatives import plan_by, with_alternatives, with_time
from streampca.solvers.analyses import Analysis, plan_of_analysis
from streampca.solvers.approximate import reading_limits
from streampca.solvers.base import AnyParameters
from streampca.solvers.capabilities import require_together
from streampca.solvers.fitted_steps import with_steps
from streampca.solvers.kernel import METHODS
from streampca.solvers.measuring import measured
from streampca.solvers.quality import quality_beside, quality_bytes
from streampca.solvers.registry import SOLVERS, obstacle_to_state
from streampca.solvers.removing import Removing, regressors_of
from streampca.solvers.result import Fit
from streampca.solvers.sampling import Sampling, require_sampling, with_sampling
from streampca.sources.base import Source
from streampca.sources.files.records import require_distinct
from streampca.sources.naming import places_named
from streampca.system.process import n_cores, process_bytes

if TYPE_CHECKING:
    from streampca.typing import DaskClient

__all__ = ["Fit", "Parameters", "fit", "plan_fit", "report_rows"]

_log = logger(__name__)
_WIDE_FROM = 512  # features from which the second reading of the Gram matrix pays
_REPORT_ROWS, _REPORT_BYTES = 2000, 16 * 2**20


def plan_fit(
    source: Source,
    parameters: Parameters,
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
    """
    n = source.shape[0]
    require_distinct(source.fragments)
    if n <= parameters.ddof:
        samples = "1 sample" if n == 1 else f"{n} samples"
        raise DataError(
            f"n_samples={n}: found {samples}, with ddof={parameters.ddof} at least {parameters.ddof + 1} are needed: {source.description}"
        )
    parameters = with_columns(parameters, source)
    parameters.selection(source)
    require_rows(source, parameters)
    require_fit(source, parameters, analysis=analysis is not None)
    n_groups = parameters.sampling_errors
    require_sampling(n_groups, n)
    limits = worker_limits(client)
    resources = resources_of(source, parameters.memory, parameters.threads, limits, scores=scores, report=report)
    if quality:
        resources = resources.holding("quality", quality_bytes(source, resources.threads, parameters.missing))
    if diagnostics:
        in_leaf = diagnostics_bytes(source.shape[1], parameters.n_components, parameters.missing)
        resources = resources.holding("diagnostics", resources.threads * in_leaf)
    regressors = regressors_of(source, parameters)
    require_rule(source, parameters, None if regressors is None else regressors.orthogonal.size)
    if regressors is not None:
        resources = replace(resources, companions=(*resources.companions, Removing(regressors, source)))
    with naming_the_limit(resources, limits):
        # The scores that sampling errors are computed from take the memory of those that are written.
        plan = _choose(source, parameters, replace(resources, scores=scores or n_groups > 0))
        plan = _with_sampling(plan, source, parameters, resources, analysis)
        plan = plan if analysis is None else plan_of_analysis(plan, analysis, source)
    if plan.axis == "samples":
        plan = plan.with_edges(source.block_edges(plan.rows_per_block))
    elif not plan.components_on_disk:  # whose slabs are regular
        plan = plan.with_edges(source.by_features().block_edges(plan.rows_per_block))
    plan = with_read_ahead(plan, source, parameters.read_ahead)
    if parameters.missing != "error" and source.dtype.kind in "iu" and not source.sparse:
        none = f"missing={parameters.missing!r}: no value is missing, because {source.dtype} has no NaN; name the number that means missing with missing_value"
        plan = replace(plan, notes=(*plan.notes, none))
    if limits:
        plan = for_workers(plan, limits)
    if alternatives and analysis is None:
        plan = with_alternatives(plan, source, parameters, resources)
    else:
        plan = with_time(plan, resources)
    return with_steps(plan, source)


def require_fit(source: Source | None, parameters: Parameters, *, analysis: bool = False) -> None:
    """Raise `NotAvailableError` or `ParameterError` for parameters that do not go together; without a `source`, whatever the rows.

    With `analysis`, something else than principal components is solved.
    """
    require_together(
        source, parameters, "sampling errors of analyses" if analysis and parameters.sampling_errors else ""
    )
    if source is None:  # else when its regressors are known
        require_rule(None, parameters)
    if parameters.solver != "auto":
        SOLVERS[parameters.solver].require(source, parameters)


def resources_of(
    source: Source,
    memory: int | str | None,
    threads: int | None,
    limits: list[WorkerLimits],
    *,
    scores: bool,
    report: bool,
) -> Resources:
    """Return what a plan may use here, or in each of the workers with such `limits`."""
    resources = Resources(
        allowed_bytes=allowed_bytes(memory),
        process_bytes=process_bytes(),
        threads=threads or n_cores(),
        scores=scores,
        report=report,
        report_rows=report_rows(source) if report else 0,
    )
    source.settle(resources.allowed_bytes)
    if not limits:
        return resources
    # A worker process runs as many leaves as it has threads, so its ceiling is shared by as many.
    process = max(resources.process_bytes, WORKER_PROCESS_BYTES)
    resources = replace(resources, process_bytes=process, threads=max(each.threads for each in limits), on_workers=True)
    least = least_memory(limits)
    if least is not None and least - WORKER_PROCESS_BYTES < resources.allowed_bytes - process:
        return replace(resources, allowed_bytes=least, process_bytes=WORKER_PROCESS_BYTES)
    return resources


@contextmanager
def naming_the_limit(resources: Resources, limits: list[WorkerLimits]) -> Iterator[None]:
    """Add to a `PlanError` that the limit is the memory of a worker, where it is."""
    try:
        yield
    except PlanError as error:
        if resources.allowed_bytes != least_memory(limits):
            raise
        raise PlanError(
            f"{error}; the ceiling is that of the worker with the least memory: give workers more, or have fewer on a machine"
        ) from error


def fit(
    source: Source,
    parameters: AnyParameters,
    plan: Plan,
    *,
    keep_rows: int = 0,
    quality: bool = False,
    progress: ProgressCallback | None = None,
    analysis: Analysis | None = None,
) -> Any:
    """Carry out `plan` and return what `readings_of_fit` returns."""
    readings = readings_of_fit(source, parameters, plan, keep_rows=keep_rows, quality=quality, analysis=analysis)
    return run_fit(readings, active_client(source), progress)


def readings_of_fit(
    source: Source,
    parameters: AnyParameters,
    plan: Plan,
    *,
    keep_rows: int = 0,
    quality: bool = False,
    analysis: Analysis | None = None,
) -> Readings[Any]:
    """Ask for the readings of a fit by `plan`, of PCA, an `analysis` or kernel PCA; return the fit with its model.

    `keep_rows` rows are copied out of the stream, and the `quality` of the data is examined, if asked for.
    """
    _log.info("plan: %r", plan)
    kind: Any = SOLVERS[plan.solver] if plan.solver in SOLVERS else METHODS[plan.solver]
    with places_named(source):
        given: Any = with_columns(parameters, source)
        regressors, removing = regressors_of(source, given), None
        if regressors is not None:
            removing = Removing(regressors, source, np.dtype(plan.work_dtype))
            given = replace(given, n_regressors=regressors.orthogonal.size)
        by_features = kind.copies_rows and plan.axis == "features"
        solver = kind(source, given, keep_rows if by_features else 0, removing, analysis)
        solving = solver.readings(plan)
        if removing is not None:
            solving = relayed(solving, removing)
        examining = quality_beside(source, plan, given.missing) if quality else ()
        fitted = yield from measured(solving, source, plan, 0 if by_features else keep_rows, examining)
        if obstacle_to_state(given, plan):
            fitted = replace(fitted, fitted_state=None)
        if removing is not None:
            fitted = removing.finished(fitted, copied_residuals=by_features)
        fitted = solver.finished(fitted)
        if given.sampling_errors and analysis is None:
            limits = given.memory, given.threads
            sampling = Sampling(source, plan, given.sampling_errors, given.sample_weight, given.scaling, *limits)
            fitted = yield from sampling.added_to(fitted)
        labels = None if source.labels is None else source.labels.without_sample_coordinates()
        return replace(fitted, model=replace(fitted.model, labels=labels))


def report_rows(source: Source) -> int:
    """Return how many rows a report is drawn from: 2,000, fewer where they are long."""
    return int(max(4, min(_REPORT_ROWS, source.shape[0], _REPORT_BYTES // source.dense_row_bytes)))


def _with_sampling(
    plan: Plan, source: Source, parameters: Parameters, resources: Resources, analysis: Analysis | None
) -> Plan:
    """Return `plan` with what sampling errors take: covariances of groups of rows, else one more reading.

    Those of an analysis follow from covariances alone.
    """
    n_groups, solver = parameters.sampling_errors, SOLVERS[plan.solver](source, parameters)
    if n_groups:
        always = analysis is not None
        grouped = solver.plan_with_groups(resources, plan, always=always)
        if grouped is not None:
            return grouped
    if n_groups and analysis is not None:
        raise NotAvailableError(
            f"sampling_errors={n_groups} of {analysis.kind.name} follow from covariances of groups of rows, in memory and without `remove`: set "
            "sampling_errors=0, or remove that part of the rows before"
        )
    return with_sampling(plan, source, n_groups, scaled=parameters.scaling is not False)


def _choose(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of the solver that was named; else the better exact one that fits; else the better approximate one.

    With a tolerance, approximate answers are allowed, and the first of the plans that fit is the fastest.
    """
    if parameters.solver != "auto":
        return plan_by(parameters.solver, source, parameters, resources)
    n, d = source.shape
    order = ["gram", "covariance"] if 2 * n <= d and d >= _WIDE_FROM else ["covariance", "gram"]
    if isinstance(parameters.selection(source), Count) and parameters.n_components is not None:
        # More passes are faster from a sketch; the best answer of one pass is that of incremental updates.
        several = reading_limits(parameters)[0] > 1
        either = ["sketch", "adaptive"] if several else ["adaptive", "sketch"]
        order += ["sketch"] if parameters.tolerance is not None else either
    refusals = []
    plans = []
    for solver in order:
        try:
            plan = plan_by(solver, source, parameters, resources)
        except NotAvailableError:
            continue  # not for rows of this kind
        except PlanError as error:
            if resources.process_bytes + ALLOWANCE_BYTES > resources.allowed_bytes:
                raise  # whatever the solver
            refusals.append(f"solver {solver}: {error}")
            continue
        if parameters.tolerance is None:
            return replace(plan, notes=(*plan.notes, *refusals))
        plans.append(with_time(plan, resources))
    if not plans:
        raise PlanError("; ".join(refusals))
    plan = min(plans, key=lambda plan: plan.expected_seconds or 0.0)
    return replace(plan, notes=(*plan.notes, *refusals))
