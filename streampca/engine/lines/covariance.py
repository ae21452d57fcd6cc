"""Exact PCA by the d × d covariance matrix: one reading, then the eigenpairs of what was accumulated.

Where the matrix exceeds the memory and this solver was asked for by name, `disk_covariance` takes over.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.accumulators import Covariance, CovarianceState, Integers, Joint, Pairwise, PairwiseState, Rows
from streampca.accumulators.centring import work_dtype
from streampca.accumulators.covariance import panel_rows
from streampca.blas_threads import one_blas_thread
from streampca.engine.execute import ProgressCallback, accumulate
from streampca.engine.kinds import accumulator_of, as_kept
from streampca.engine.memory import as_text
from streampca.engine.parameters import Fit, Gathered, Parameters
from streampca.engine.plan import Plan, Resources, plan_covariance
from streampca.errors import DataError, PlanError
from streampca.models.missing import with_missing
from streampca.models.pca import PCAModel, relative_precision
from streampca.selection import Count, as_selection
from streampca.solve import negative_mass, solve
from streampca.sources.base import Source

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
    from streampca.engine.lines import disk_covariance

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
) -> Gathered:
    """Read `source` once and return what was accumulated; raise `PlanError` if that is to be kept on disk."""
    if plan.tile_groups:
        raise PlanError(
            f"the {plan.n_features:,} x {plan.n_features:,} matrix would be on disk, where it is not a state that rows could be added "
            f"to: use fit, or give it more memory; {plan.notes[-1]}"
        )
    kind: Any = replace(accumulator_of(parameters, source), n_threads=plan.threads_per_leaf)
    rows = Rows(source.shape[0], keep_rows, str(source.dtype))
    accumulator: Any = Joint((kind, rows)) if keep_rows else kind
    weights = parameters.sample_weight
    state, count = accumulate(source, accumulator, plan, client=client, progress=progress, weights=weights)
    state, samples = state if keep_rows else (state, None)
    kept, state, n_left_out = as_kept(replace(kind, n_threads=plan.threads), state)
    if samples is not None and parameters.missing != "error":
        samples = samples.complete()
    return Gathered(replace(kept, n_threads=plan.threads), state, samples, count, n_left_out)


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
        from streampca.engine.lines import disk_covariance

        return disk_covariance.run(source, parameters, plan, client=client, keep_rows=keep_rows, progress=progress)
    began = time.perf_counter()
    with one_blas_thread():
        found = gather(source, parameters, plan, client=client, keep_rows=keep_rows, progress=progress)
        streamed = time.perf_counter()
        # Of small integers without weights nothing but the last step is rounded, whatever the products were taken in.
        exact = isinstance(accumulator_of(parameters, source), Integers)
        work = "float64" if exact else plan.work_dtype
        model = solve_model(found.state, found.accumulator, parameters, work, source.describe(), found.n_left_out)
    solved = time.perf_counter()
    return Fit(
        model, plan, found.state, found.samples, found.count, streamed - began, solved - streamed, found.accumulator
    )


def solve_model(
    state: CovarianceState | PairwiseState,
    accumulator: Covariance | Pairwise,
    parameters: Parameters,
    work: str,
    source: dict[str, Any],
    n_left_out: int = 0,
) -> PCAModel:
    """Return the model of an accumulated state; `source` says where its rows came from, which left `n_left_out` of them out."""
    if not state.weight:
        raise DataError(f"no row is left: all {n_left_out} of positive weight hold missing values (NaN)")
    reduced = accumulator.finalize(state)  # type: ignore[arg-type]
    if parameters.feature_weight is not None:
        reduced = replace(reduced, weights=reduced.weights * np.sqrt(parameters.feature_weight))
    finite = np.isfinite(reduced.diagonal)
    if not finite.all():
        raise DataError(
            f"the variance of feature {int(np.flatnonzero(~finite)[0])} overflows float64: rescale it first"
        )
    selection = as_selection(parameters.n_components, min(reduced.n_samples, reduced.n_features))
    precision = relative_precision(work, reduced.n_features)
    clipped = None if parameters.missing != "pairwise" else negative_mass(reduced)
    total = float(reduced.diagonal.sum()) + (clipped or 0.0)
    spectrum = solve(reduced, selection, precision=precision, seed=parameters.seed, total=total)
    model = PCAModel.of_spectrum(
        spectrum,
        reduced,
        center=parameters.center,
        scale=parameters.scale,
        whiten=parameters.whiten,
        ddof=parameters.ddof,
        work=work,
        source=source,
        feature_weight=parameters.feature_weight,
        # Of weights that fade, the sum from which `ddof` is to be taken for the divisor. That of the matrix of pairwise
        # covariances is 1: each of them has a divisor of its own.
        sample_weight=None
        if state.weight == reduced.n_samples
        else float(accumulator.divisor(state) + parameters.ddof),  # type: ignore[arg-type]
    )
    return with_missing(model, parameters.missing, state, n_left_out, clipped, parameters.missing_scores)
