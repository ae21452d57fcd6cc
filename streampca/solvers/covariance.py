"""Exact PCA by the d × d covariance matrix: one reading, then the eigenpairs of what was accumulated.

Where the matrix exceeds the memory and this solver was asked for by name, `disk_covariance` takes over.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from streampca.accumulators import ExactIntegerCovariance, Joint, RowSample
from streampca.accumulators.centring import work_dtype
from streampca.accumulators.covariance import panel_rows
from streampca.errors import PlanError
from streampca.execution.execute import accumulate
from streampca.execution.task import ProgressCallback
from streampca.formatting import as_text
from streampca.linalg.selection import Count
from streampca.parameters import Parameters
from streampca.planning.kinds import accumulator_of, as_kept
from streampca.planning.plan import Plan, Resources, plan_covariance
from streampca.solvers import disk_covariance
from streampca.solvers.covariance_model import solve_model
from streampca.solvers.result import Accumulated, Fit
from streampca.sources.base import Source
from streampca.system.blas_threads import one_blas_thread

__all__ = ["gather", "plan", "run", "solve_model"]

_ON_DISK_FROM = 2048  # features; below, the matrix takes 32 MiB at most and is not what takes the room


def plan(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of a fit; raise `PlanError` if it does not fit."""
    selection = parameters.selection(source)
    n_components = selection.n_components if isinstance(selection, Count) else None
    if parameters.sample_weight is not None:
        # Of a panel, the rows whose weight is not zero are copied.
        panel = 8 * source.shape[1] * panel_rows(source.shape[1], work_dtype(source.dtype))
        resources = replace(resources, process_bytes=resources.process_bytes + resources.threads * panel)
    accumulator: Any = accumulator_of(parameters, source)
    try:
        return plan_covariance(source, accumulator, n_components, resources)
    except PlanError as error:
        if source.shape[1] < _ON_DISK_FROM:
            raise
        return _plan_on_disk(source, parameters, accumulator, n_components, resources, str(error))


def _plan_on_disk(
    source: Source,
    parameters: Parameters,
    accumulator: Any,
    n_components: int | None,
    resources: Resources,
    refusal: str,
) -> Plan:
    """Return the plan with the matrix on disk if this solver was named; else say in the `PlanError` what it would take."""
    by_name = parameters.solver == "covariance"
    try:
        plan = disk_covariance.plan(source, accumulator, n_components, resources)
    except PlanError as error:
        raise PlanError(f"{refusal}; {error}" if by_name else refusal) from error
    if by_name:
        return replace(plan, notes=(*plan.notes, f"in memory: {refusal}"))
    raise PlanError(
        f"{refusal}; solver='covariance', asked for by name, would take {plan.passes} passes and {as_text(plan.disk_bytes)} of disk"
    )


def gather(
    source: Source,
    parameters: Parameters,
    plan: Plan,
    *,
    client: Any = None,
    keep_rows: int = 0,
    progress: ProgressCallback | None = None,
) -> Accumulated:
    """Read `source` once and return what was accumulated; raise `PlanError` if that is to be kept on disk."""
    if plan.tile_groups:
        raise PlanError(
            f"the {plan.n_features:,} x {plan.n_features:,} matrix would be on disk, where it is not a state that rows could be added "
            f"to: use fit, or give it more memory; {plan.notes[-1]}"
        )
    kind: Any = replace(accumulator_of(parameters, source), n_threads=plan.threads_per_leaf)
    rows = RowSample(source.shape[0], keep_rows, str(source.dtype))
    accumulator: Any = Joint((kind, rows)) if keep_rows else kind
    weights = parameters.sample_weight
    state, count = accumulate(source, accumulator, plan, client=client, progress=progress, weights=weights)
    state, samples = state if keep_rows else (state, None)
    kept, state, n_left_out = as_kept(replace(kind, n_threads=plan.threads), state)
    if samples is not None and parameters.missing != "error":
        samples = samples.complete()
    return Accumulated(replace(kept, n_threads=plan.threads), state, samples, count, n_left_out)


def run(
    source: Source,
    parameters: Parameters,
    plan: Plan,
    *,
    client: Any = None,
    keep_rows: int = 0,
    progress: ProgressCallback | None = None,
) -> Fit:
    """Read `source` and return its principal components."""
    if plan.tile_groups:
        return disk_covariance.run(source, parameters, plan, client=client, keep_rows=keep_rows, progress=progress)
    began = time.perf_counter()
    with one_blas_thread():
        found = gather(source, parameters, plan, client=client, keep_rows=keep_rows, progress=progress)
        streamed = time.perf_counter()
        # Of small integers without weights nothing but the last step is rounded, whatever the products were taken in.
        exact = isinstance(accumulator_of(parameters, source), ExactIntegerCovariance)
        work = "float64" if exact else plan.work_dtype
        model = solve_model(found.state, found.accumulator, parameters, work, source.describe(), found.n_left_out)
    solved = time.perf_counter()
    return Fit(
        model, plan, found.state, found.samples, found.count, streamed - began, solved - streamed, found.accumulator
    )
