"""Exact kernel PCA: the n × n kernel matrix in memory, centred implicitly, and its leading eigenpairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.errors import PlanError
from streampca.execution.readings import Readings
from streampca.formatting import as_text
from streampca.linalg.eigen import Spectrum, solve, uses_krylov
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import Interval, KernelCertificate
from streampca.models.kernel import KernelModel
from streampca.planning.plan import Plan
from streampca.planning.work import Resources
from streampca.solvers.kernel.base import KernelFit, KernelMethod
from streampca.solvers.kernel.matrix import KernelMatrix, all_rows, kernel_matrix
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import pairs_plan
from streampca.solvers.kernel.rounding import SAMPLE, suitable_dtype, value_rounding
from streampca.solvers.kernel.solving import ROUNDING, inverse_roots, share_of, shares, signs_of, with_preimage
from streampca.solvers.kernel.standardising import standardised_by
from streampca.sources.base import Source
from streampca.typing import Array, DType, FloatArray

_TOLERANCE = {"float32": 2e-7, "float64": 1e-12}
_STAGNATION = {"float32": 1e-5, "float64": 1e-9}
_PRECISION = {"float32": 1e-7, "float64": 1e-14}


def _intervals(values: FloatArray, allowed: float, share: float) -> tuple[Interval, ...]:
    """Return (lower, upper) for each eigenvalue; those set to 0 may be as large as `share` of the first, and `allowed`."""
    return tuple(
        (max(0.0, value - allowed), value + allowed) if value else (0.0, share * float(values[0]) + 2 * allowed)
        for value in values.tolist()
    )


def _require_memory(plan: Plan, dtype: DType) -> None:
    """Raise `PlanError` if the plan is for a kernel matrix in float32, float64 is needed and its size does not fit."""
    more = dtype.itemsize * plan.n_samples**2 - plan.budget.bytes_for("kernel matrix")
    if plan.projected_bytes + more > plan.allowed_bytes:
        raise PlanError(
            f"kernel values vary by too little beside their size for float32, and the kernel matrix in float64 takes "
            f"{as_text(more)} more than was planned: subtract the mean of the rows, or allow memory of at least "
            f"{as_text(plan.projected_bytes + more)}"
        )


def _without_rounding(spectrum: Spectrum, dtype: str, floor: float, *, keep: bool) -> Spectrum:
    """Return the spectrum with zeros for eigenvalues that are rounding, or, unless `keep` is set, without them but for the first.

    Rounding is a share of the first eigenvalue, and at least `floor`, one unit of rounding of the trace before centring.
    """
    n_positive = int(np.count_nonzero(spectrum.values > max(floor, ROUNDING[dtype] * spectrum.values[0])))
    if keep:
        return replace(spectrum, values=np.where(np.arange(len(spectrum.values)) < n_positive, spectrum.values, 0.0))
    rank = max(1, n_positive)
    values = spectrum.values[:rank] if n_positive else np.zeros(1)
    return replace(spectrum, values=values, vectors=spectrum.vectors[:rank])


def _model(
    source: Source, parameters: KernelParameters, spectrum: Spectrum, matrix: KernelMatrix, rows: Array, allowed: float
) -> tuple[KernelModel, FloatArray]:
    """Return the model and the eigenvectors; eigenvalues are known to within `allowed`."""
    vectors = spectrum.vectors.T * signs_of(spectrum.vectors.T)
    roots = inverse_roots(spectrum.values, ROUNDING[matrix.values.dtype.name])
    coefficients = vectors * roots
    if parameters.center:
        # Then 1ᵀB = 0 beyond rounding, and the mean kernel value of a new row drops out of its scores.
        coefficients -= coefficients.mean(axis=0)
    precision = share_of(allowed, float(spectrum.values[0]))
    model = KernelModel(
        kernel=parameters.kernel.bound(source.shape[1]),
        landmarks=rows,
        coefficients=coefficients,
        centre=matrix.means if parameters.center else np.zeros(len(rows)),
        eigenvalues=spectrum.values,
        total=spectrum.total,
        n_samples=len(rows),
        method="exact",
        center=parameters.center,
        landmark_indices=np.arange(len(rows), dtype=np.int64),
        sampling="all rows",
        certificate=KernelCertificate(
            kind="exact",
            statement=sentences.exact_kernel(precision),
            trace=sentences.EXACT_TRACE,
            residual_trace=0.0,
            sigma=0.0,
            eigenvalue_intervals=_intervals(spectrum.values, allowed, ROUNDING[matrix.values.dtype.name]),
            rounding=precision,
            eigen_residual=spectrum.residual,
            numerical_rank=spectrum.numerical_rank,
            eigen_solver=spectrum.method,
            definite=parameters.kernel.definite,
            **parameters.components_missing(int(np.count_nonzero(roots))),
            **shares(spectrum.values, spectrum.total, allowed * len(spectrum.values)),
        ),
        source=source.describe(),
    )
    return model, vectors


class ExactMethod(KernelMethod):
    """The eigenpairs of the kernel matrix of all rows."""

    name = "exact"

    def plan(self, resources: Resources) -> Plan:
        """Return the plan of a fit; raise `PlanError` if it does not fit in memory."""
        return pairs_plan(self.source, self.parameters, resources, solver=self.name)

    def readings(self, plan: Plan) -> Readings[KernelFit]:
        """Read `source` once and return its kernel principal components (Schölkopf, Smola & Müller 1998)."""
        source, parameters, n = self.source, self.parameters, self.source.shape[0]
        selection = parameters.selection(n)
        rows = yield from all_rows(source, plan)
        parameters = standardised_by(parameters, rows)
        kernel = parameters.kernel.bound(source.shape[1])
        k = parameters.count(n)
        iterated = k is not None and uses_krylov(n, k)
        rows = rows.astype(suitable_dtype(kernel, rows, rows.dtype, center=parameters.center), copy=False)
        dtype = rows.dtype if iterated else np.dtype(np.float64)
        _require_memory(plan, dtype)
        matrix = kernel_matrix(kernel, rows, dtype, center=parameters.center, n_threads=plan.threads)
        total = float(matrix.diagonal.sum())
        spectrum = solve(
            matrix,
            selection,
            precision=_PRECISION[dtype.name],
            seed=parameters.seed,
            total=total,
            tolerance=_TOLERANCE[dtype.name],
            stagnation_tolerance=_STAGNATION[dtype.name],
        )
        reach = float(np.abs(kernel.diagonal(rows)).sum())
        spectrum = _without_rounding(
            spectrum, dtype.name, float(np.finfo(dtype).eps) * reach, keep=parameters.n_components is not None
        )
        # Errors of ρ √(κ(x, x) κ(y, y)) in every kernel value change no eigenvalue by more than ρ Σ κ(x, x).
        rho = value_rounding(kernel, rows.astype(dtype, copy=False)[:: -(-n // SAMPLE)])
        allowed = max(rho * reach, _PRECISION[dtype.name] * float(spectrum.values[0]))
        model, eigenvectors = _model(source, parameters, spectrum, matrix, rows, allowed)
        del matrix
        model = with_preimage(model, parameters, eigenvectors)
        return KernelFit(model=model, plan=plan, eigenvectors=eigenvectors)
