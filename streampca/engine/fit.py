"""From a source to a model by the solver that the plan chose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streampca.engine.execute import ProgressCallback, active_client
from streampca.engine.lines import line_of
from streampca.engine.memory import WORKER_PROCESS_BYTES, allowed_bytes, n_cores, process_bytes
from streampca.engine.parameters import Fit, Parameters
from streampca.engine.plan import Plan, Resources
from streampca.errors import DataError
from streampca.sources.base import Source

__all__ = ["Fit", "Parameters", "fit", "kept_rows", "plan_fit"]

_KEPT_ROWS, _KEPT_BYTES = 2000, 16 * 2**20


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
    n = source.shape[0]
    if n <= parameters.ddof:
        found = "1 sample" if n == 1 else f"{n} samples"
        raise DataError(
            f"n_samples={n}: found {found}, with ddof={parameters.ddof} at least {parameters.ddof + 1} are needed: {source.description}"
        )
    parameters.selection(source)
    resources = Resources(
        allowed_bytes=allowed_bytes(parameters.memory),
        process_bytes=process_bytes(),
        threads=parameters.threads or n_cores(),
        scores=scores,
        report=report,
        kept_rows=kept_rows(source) if report else 0,
    )
    workers = _worker_threads(client)
    if workers:
        # A worker process runs as many leaves as it has threads, so its ceiling is shared by as many.
        process = max(resources.process_bytes, WORKER_PROCESS_BYTES)
        resources = replace(resources, process_bytes=process, threads=max(workers))
    plan = _plan_with(_solver_of(source, parameters), source, parameters, resources)
    if workers:
        total = sum(workers)
        plan = replace(plan, threads=total, leaves_in_flight=total, window=2 * total, threads_per_leaf=1)
    return plan


def fit(
    source: Source,
    parameters: Parameters,
    plan: Plan | None = None,
    *,
    keep_rows: int = 0,
    progress: ProgressCallback | None = None,
) -> Fit:
    """Carry out `plan` and return the model."""
    client = active_client(source)
    plan = plan or plan_fit(source, parameters, client=client)
    line = line_of(plan.solver)
    return line.run(source, parameters, plan, client=client, keep_rows=keep_rows, progress=progress)


def kept_rows(source: Source) -> int:
    """Return how many rows a report is drawn from: 2,000, fewer where they are long."""
    return int(max(4, min(_KEPT_ROWS, source.shape[0], _KEPT_BYTES // source.row_bytes)))


def _solver_of(source: Source, parameters: Parameters) -> str:
    return "covariance" if parameters.solver == "auto" else parameters.solver


def _plan_with(solver: str, source: Source, parameters: Parameters, resources: Resources) -> Plan:
    return line_of(solver).plan(source, parameters, resources)


def _worker_threads(client: Any) -> list[int]:
    """Return the threads of each worker of `client`; none without a cluster."""
    if client is None:
        return []
    return [int(worker["nthreads"]) for worker in client.scheduler_info(n_workers=-1)["workers"].values()] or [1]
