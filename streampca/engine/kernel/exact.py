"""Exact kernel PCA: the n × n kernel matrix in memory, centred implicitly, and its leading eigenpairs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from streampca.accumulators.centring import work_dtype
from streampca.accumulators.rows import Rows, RowsState
from streampca.blas_threads import one_blas_thread
from streampca.engine.execute import Meter, ProgressCallback
from streampca.engine.kernel.matrix import KernelMatrix, kernel_matrix, read_all
from streampca.engine.kernel.parameters import KernelFit, KernelParameters
from streampca.engine.kernel.plan import KernelPlan, pairs_plan
from streampca.engine.kernel.solving import ROUNDING, intervals, inverse_roots, shares, signs_of
from streampca.engine.plan import Resources
from streampca.models.kernel import KernelModel, way_back_of
from streampca.solve import Spectrum, solve, uses_krylov
from streampca.sources.base import Source

_TOLERANCE = {"float32": 2e-7, "float64": 1e-12}
_SETTLE = {"float32": 1e-5, "float64": 1e-9}
_PRECISION = {"float32": 1e-7, "float64": 1e-14}


def plan(source: Source, parameters: KernelParameters, resources: Resources) -> KernelPlan:
    """Return the plan of a fit; raise `PlanError` if the kernel matrix does not fit."""
    return pairs_plan(source, parameters, resources, solver="exact")


def run(
    source: Source,
    parameters: KernelParameters,
    plan: KernelPlan,
    *,
    client: Any = None,
    keep_rows: int = 0,
    progress: ProgressCallback | None = None,
) -> KernelFit:
    """Read `source` once and return its kernel principal components (Schölkopf, Smola & Müller 1998)."""
    n = source.shape[0]
    kernel = parameters.kernel.bound(source.shape[1])
    selection = parameters.selection(n)
    began = time.perf_counter()
    with one_blas_thread():
        rows, count = read_all(source, plan.rows_per_block)
        Meter("fit", n, progress).add(n, count.bytes)
        k = parameters.count(n)
        iterated = k is not None and uses_krylov(n, k)
        dtype = work_dtype(source.dtype) if iterated else np.dtype(np.float64)
        matrix = kernel_matrix(kernel, rows, dtype, center=parameters.center, n_threads=plan.threads)
        streamed = time.perf_counter()
        total = float(matrix.diagonal.sum())
        spectrum = solve(
            matrix,
            selection,
            precision=_PRECISION[dtype.name],
            seed=parameters.seed,
            total=total,
            tolerance=_TOLERANCE[dtype.name],
            settle=_SETTLE[dtype.name],
        )
        spectrum = _without_rounding(spectrum, dtype.name, keep=parameters.n_components is not None)
        model, eigenvectors = _model(source, parameters, spectrum, matrix, rows)
        del matrix
        if parameters.inverse:
            scores = eigenvectors * np.sqrt(spectrum.values)
            model = replace(model, way_back=way_back_of(kernel, rows, scores, parameters.alpha))
    solved = time.perf_counter()
    chosen = Rows(n, keep_rows, str(source.dtype)).chosen
    samples = RowsState(chosen, rows[chosen]) if len(chosen) else None
    return KernelFit(model, plan, samples, count, streamed - began, solved - streamed, eigenvectors)


def _without_rounding(spectrum: Spectrum, dtype: str, *, keep: bool) -> Spectrum:
    """Return the spectrum with zeros for eigenvalues that are rounding, or, unless `keep` is set, without them but for the first."""
    n_positive = int(np.count_nonzero(spectrum.values > ROUNDING[dtype] * spectrum.values[0]))
    if keep:
        return replace(spectrum, values=np.where(np.arange(len(spectrum.values)) < n_positive, spectrum.values, 0.0))
    kept = max(1, n_positive)
    return replace(spectrum, values=spectrum.values[:kept], vectors=spectrum.vectors[:kept])


def _model(
    source: Source, parameters: KernelParameters, spectrum: Spectrum, matrix: KernelMatrix, rows: Any
) -> tuple[KernelModel, Any]:
    vectors = spectrum.vectors.T * signs_of(spectrum.vectors.T)
    roots = inverse_roots(spectrum.values, ROUNDING[matrix.values.dtype.name])
    coefficients = vectors * roots
    if parameters.center:
        # Then 1ᵀB = 0 beyond rounding, and the mean kernel value of a new row drops out of its scores.
        coefficients -= coefficients.mean(axis=0)
    total = spectrum.total
    precision = _PRECISION[matrix.values.dtype.name]
    model = KernelModel(
        kernel=parameters.kernel.bound(source.shape[1]),
        landmarks=rows,
        coefficients=coefficients,
        centre=matrix.means if parameters.center else np.zeros(len(rows)),
        eigenvalues=spectrum.values,
        total=total,
        n_samples=len(rows),
        method="exact",
        center=parameters.center,
        landmark_indices=np.arange(len(rows), dtype=np.int64),
        sampling="all rows",
        certificate={
            "kind": "exact",
            "statement": (
                "exact: every pair of rows was compared; eigenvalues carry the rounding of the kernel values and of the products "
                f"(relative to the first: {precision:.0e}), nothing else"
            ),
            "trace": "exact",
            "residual_trace": 0.0,
            "sigma": 0.0,
            "eigenvalue_intervals": intervals(spectrum.values, 0.0, precision * float(spectrum.values[0])),
            "eigen_residual": spectrum.residual,
            "numerical_rank": spectrum.numerical_rank,
            "eigen_solver": spectrum.method,
            "definite": parameters.kernel.definite,
            **parameters.missing(int(np.count_nonzero(roots))),
            **shares(spectrum.values, total, precision * total),
        },
        source=source.describe(),
    )
    return model, vectors
