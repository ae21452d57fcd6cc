"""Exact PCA by the d × d covariance matrix: one reading, then the eigenpairs of what was accumulated."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.accumulators import Covariance, CovarianceState, Joint, Rows
from streampca.engine.execute import ProgressCallback, accumulate, one_blas_thread
from streampca.engine.parameters import Fit, Parameters
from streampca.engine.plan import Plan, Resources, plan_covariance
from streampca.errors import DataError
from streampca.models.pca import PCAModel, relative_precision
from streampca.selection import Count, as_selection
from streampca.solve import solve
from streampca.sources.base import Source


def accumulator_of(parameters: Parameters) -> Covariance:
    """Return the accumulator of these parameters."""
    return Covariance(center=parameters.center, scale=parameters.scale, ddof=parameters.ddof)


def plan(source: Source, parameters: Parameters, resources: Resources) -> Plan:
    """Return the plan of a fit; raise `PlanError` if it does not fit."""
    selection = parameters.selection(source)
    n_components = selection.n_components if isinstance(selection, Count) else None
    return plan_covariance(source, accumulator_of(parameters), n_components, resources)


def run(
    source: Source,
    parameters: Parameters,
    plan: Plan,
    *,
    client: Any = None,
    keep_rows: int = 0,
    progress: ProgressCallback | None = None,
) -> Fit:
    """Read `source` once and return its principal components."""
    covariance = replace(accumulator_of(parameters), n_threads=plan.threads_per_leaf)
    rows = Rows(source.shape[0], keep_rows, str(source.dtype))
    accumulator: Any = Joint((covariance, rows)) if keep_rows else covariance
    began = time.perf_counter()
    with one_blas_thread():
        state, count = accumulate(source, accumulator, plan, client=client, progress=progress)
        streamed = time.perf_counter()
        state, samples = state if keep_rows else (state, None)
        model = solve_model(
            state, replace(covariance, n_threads=plan.threads), parameters, plan.work_dtype, source.describe()
        )
    solved = time.perf_counter()
    return Fit(model, plan, state, samples, count, streamed - began, solved - streamed)


def solve_model(
    state: CovarianceState, covariance: Covariance, parameters: Parameters, work: str, source: dict[str, Any]
) -> PCAModel:
    """Return the model of an accumulated state; `source` says where its rows came from."""
    reduced = covariance.finalize(state)
    finite = np.isfinite(reduced.diagonal)
    if not finite.all():
        raise DataError(f"the variance of feature {int(np.flatnonzero(~finite)[0])} overflows float64: rescale it first")
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
        work=work,
        source=source,
    )
