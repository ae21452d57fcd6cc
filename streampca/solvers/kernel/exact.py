"""Exact kernel PCA: the n × n kernel matrix in memory, centred implicitly, and its leading eigenpairs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from streampca.accumulators.kernel_features import in_panel
from streampca.block import Block
from streampca.errors import NotFiniteError, PlanError
from streampca.execution.readings import Reading, Readings
from streampca.formatting import as_text
from streampca.kernels import Kernel
from streampca.linalg.eigen import Spectrum, basis_size, solve, uses_krylov
from streampca.linalg.tiles import spread
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import KernelCertificate
from streampca.models.kernel import KernelModel
from streampca.models.stored import BAND_ROWS, StoredRows
from streampca.planning.memory import MemoryNeed, report_need, sampled_rows_need
from streampca.planning.plan import ALL_ROWS, KernelDetail, Plan
from streampca.planning.shape import WorkShape, block_rows_to_try, divide
from streampca.planning.work import Figures, Resources
from streampca.solvers.kernel.base import (
    AFTER,
    ROUNDING,
    SAMPLE,
    DenseMatrix,
    KernelFit,
    KernelMethod,
    KernelParameters,
    inverse_roots,
    share_of,
    shares,
    signs_of,
    suitable_dtype,
    value_rounding,
    with_preimage,
)
from streampca.solvers.kernel.landmarks import FeatureMoments, needs_moments, with_moments
from streampca.sources.base import Source
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray

PAIR_SIDE = BAND_ROWS
"""Rows on each side of a block of the kernel matrix that one thread computes at once."""
SCORES_ROWS = 8192
_TOLERANCE = {"float32": 2e-7, "float64": 1e-12}
_STAGNATION = {"float32": 1e-5, "float64": 1e-9}
_PRECISION = {"float32": 1e-7, "float64": 1e-14}


@dataclass(frozen=True)
class PairsMethod(KernelMethod):
    """A fit that holds all rows and compares every one with every other."""

    @override
    @property
    def m(self) -> int:
        return self.source.shape[0]

    @override
    @property
    def k(self) -> int:
        return self.parameters.count(self.m) or min(self.m, 64)

    @override
    def shape(self, rows: int, leaves: int, threads_per_leaf: int) -> WorkShape:
        at_once = 1, self.resources.threads, self.resources.threads
        merge = "pairs of blocks of rows are added in a fixed order"
        return divide(self.m, rows, 1, at_once, tile=PAIR_SIDE, merge=merge)

    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """Return the bytes of the kernel matrix, of scratch and of solving."""

    @override
    def needs(self, shape: WorkShape) -> list[MemoryNeed]:
        """Return what a fit takes.

        Landmarks: n d w, and 8 n d more if the rows have another type; solve: 16 n² more for the inverse map.
        """
        source, (n, d), dtype = self.source, self.source.shape, self.dtype
        matrix, scratch, solve = self.sizes()
        rows, resources = shape.rows_per_block, self.resources
        scores = self.scores_bytes(min(n, SCORES_ROWS), n) if resources.scores else 0
        return [
            MemoryNeed("landmarks", n * d * dtype.itemsize + (8 * n * d if source.dtype != dtype else 0)),
            MemoryNeed("kernel matrix", matrix, ("solving",)),
            MemoryNeed("blocks", rows * source.row_bytes * 2 + source.overhead_bytes(rows), ("reading",)),
            MemoryNeed("scratch", scratch, ("solving",)),
            sampled_rows_need(source, resources.report_rows),
            MemoryNeed("solve", solve + (16 * n * n if self.parameters.inverse else 0), ("solving",)),
            MemoryNeed("model", 8 * n * (3 * self.k + 2), AFTER),
            MemoryNeed("scores", scores, ("scores",)),
            report_need(report=resources.report),
        ]

    def all_rows(self, plan: Plan) -> Readings[Array]:
        """Ask for all rows and return them in the type of products, ``(n_samples, n_features)``."""
        dtype = self.dtype
        rows = np.empty(self.source.shape, dtype)

        def take(block: Block) -> None:
            rows[block.start : block.start + len(block)] = in_panel(block, dtype)

        yield Reading(self.source, (), plan, on_block=take)
        return rows


def standardised_by(parameters: KernelParameters, rows: Array | StoredRows) -> KernelParameters:
    """Return `parameters` with the kernel that all `rows`, ``(n, d)``, in memory or on disk, standardise if it is one of z-scores."""
    if not needs_moments(parameters.kernel):
        return parameters
    moments = FeatureMoments()
    state = moments.init(rows.shape[1])
    for values in (band for _, band in rows.bands()) if isinstance(rows, StoredRows) else (rows,):
        state = moments.update(state, values)
    return replace(parameters, kernel=with_moments(parameters.kernel, state))


class ExactMethod(PairsMethod):
    """The eigenpairs of the kernel matrix of all rows."""

    name = "exact"

    @override
    def plan(self, resources: Resources) -> Plan:
        """Return the plan of the fit.

        Raises
        ------
        PlanError
            If it does not fit: with what is projected, what is allowed, and what to change.
        """
        n = self.m
        self.parameters.require_at_most(n, "rows")
        work = replace(self, n_components=self.parameters.count(n), resources=resources)
        plan = work.plan_for(work.shape(block_rows_to_try(self.source, self.dtype)[0], 1, 1))
        if not plan.budget.fits:
            size = as_text(plan.budget.bytes_for("kernel matrix"))
            raise plan.budget.refusal("", subject=f"the {n:,} x {n:,} kernel matrix takes {size}: ")
        return plan

    @override
    def sizes(self) -> tuple[int, int, int]:
        """Return w n² for the kernel matrix, scratch, and 8 n (2 m + 512 + 2 k) for a basis of m vectors.

        With LAPACK, where no fixed number of components is wanted or they are many, 8 n² and 8 n (3 n + 3 k).
        """
        (n, d), k, kernel = self.source.shape, self.k, self.kernel
        iterated = self.n_components is not None and uses_krylov(n, k)
        itemsize = self.dtype.itemsize if iterated else 8
        solve = 8 * n * (2 * basis_size(n, k) + 8 * 64 + 2 * k) if iterated else 8 * n * (3 * n + 3 * k)
        block = 16 * PAIR_SIDE**2 + kernel.scratch_bytes(PAIR_SIDE, d) + kernel.prepared_bytes(PAIR_SIDE, d)
        return itemsize * n * n, self.resources.threads * block, solve

    @override
    def figures(self, shape: WorkShape, reading: int) -> Figures:
        n, k = self.m, self.k
        once = 0.5 * float(n) * n * self.kernel.needs(self.source.shape[1]).flops  # a kernel matrix is symmetric
        solve = 2.0 * float(n) * n * max(200, 6 * k) if uses_krylov(n, k) else 9.0 * float(n) ** 3
        reason = f"exact; the {n:,} x {n:,} kernel matrix takes {as_text(self.sizes()[0])}"
        return Figures(reason, once + solve, detail=KernelDetail(n, ALL_ROWS))

    @override
    def readings(self, plan: Plan) -> Readings[KernelFit]:
        """Read `source` once and return its kernel principal components (Schölkopf, Smola & Müller 1998)."""
        source, parameters, n = self.source, self.parameters, self.source.shape[0]
        selection = parameters.selection(n)
        rows = yield from self.all_rows(plan)
        parameters = standardised_by(parameters, rows)
        kernel = parameters.kernel.bound(source.shape[1])
        k = parameters.count(n)
        iterated = k is not None and uses_krylov(n, k)
        rows = rows.astype(suitable_dtype(kernel, rows, rows.dtype, center=parameters.center), copy=False)
        dtype = rows.dtype if iterated else np.dtype(np.float64)
        more = dtype.itemsize * n**2 - plan.budget.bytes_for("kernel matrix")
        if plan.projected_bytes + more > plan.allowed_bytes:
            raise PlanError(
                f"kernel values vary by too little beside their size for float32, and the kernel matrix in float64 takes "
                f"{as_text(more)} more than was planned: subtract the mean of the rows, or allow memory of at least "
                f"{as_text(plan.projected_bytes + more)}"
            )
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


@dataclass(frozen=True)
class KernelMatrix(DenseMatrix):
    """A symmetric matrix K, or HKH with H = 1 − 11ᵀ/n where it is centred; `values` is K, ``(n, n)``, float32 or float64."""

    means: FloatArray
    """Mean of each row of K, ``(n,)``."""
    center: bool
    """Whether HKH is meant."""

    @property
    def diagonal(self) -> FloatArray:
        """Return the diagonal, ``(n,)``."""
        diagonal = self.values.diagonal().astype(np.float64)
        return diagonal - 2 * self.means + self.means.mean() if self.center else diagonal

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the matrix times `vectors`, ``(n, p)``: products of blocks in the type of K, their sums in float64."""
        n = len(self.values)
        if self.center:
            vectors = vectors - vectors.mean(axis=0)
        narrow = vectors.astype(self.values.dtype, copy=False)
        product = np.zeros_like(vectors)

        def band(first: int) -> None:
            rows = slice(first, first + PAIR_SIDE)
            for start in range(0, n, PAIR_SIDE):
                columns = slice(start, start + PAIR_SIDE)
                product[rows] += self.values[rows, columns] @ narrow[columns]

        spread(band, range(0, n, PAIR_SIDE), self.n_threads)
        if self.center:
            product -= product.mean(axis=0)
        return product

    def dense(self) -> FloatArray:
        """Return the matrix as a new array, ``(n, n)``."""
        matrix = self.values.astype(np.float64)
        if self.center:
            matrix -= self.means
            matrix -= (self.means - self.means.mean())[:, None]
        return matrix


def kernel_matrix(kernel: Kernel, rows: Array, dtype: DType, *, center: bool, n_threads: int) -> KernelMatrix:
    """Return the kernel matrix of `rows`, ``(n, n_features)``, in `dtype`: half of n² kernel values, on all threads.

    Raises
    ------
    NotFiniteError
        If a kernel value overflows.
    """
    n = len(rows)
    rows = rows.astype(dtype, copy=False)
    values = np.empty((n, n), dtype)
    bands = [slice(start, min(n, start + PAIR_SIDE)) for start in range(0, n, PAIR_SIDE)]

    @np.errstate(over="ignore", invalid="ignore")
    def column(j: int) -> None:
        prepared = kernel.prepare(rows[bands[j]])
        for i in range(j, len(bands)):
            shape = (bands[i].stop - bands[i].start, bands[j].stop - bands[j].start)
            block = prepared(rows[bands[i]], out=borrow("kernel values", shape, dtype))
            if not np.isfinite(block.sum(dtype=np.float64)):
                raise NotFiniteError(
                    f"kernel values of rows {bands[i].start} to {bands[i].stop - 1} overflow {dtype}: rescale the data first"
                )
            if i == j:
                block = (block + block.T) / 2
            values[bands[i], bands[j]] = block
            values[bands[j], bands[i]] = block.T

    spread(column, range(len(bands)), n_threads)
    means = np.empty(n)
    for band in bands:
        means[band] = values[band].mean(axis=1, dtype=np.float64)
    return KernelMatrix(values, means, center, n_threads=n_threads)


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
    first = float(spectrum.values[0])
    precision, zero = share_of(allowed, first), ROUNDING[matrix.values.dtype.name] * first + 2 * allowed
    intervals = tuple(
        (max(0.0, value - allowed), value + allowed) if value else (0.0, zero) for value in spectrum.values.tolist()
    )
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
        sampling=ALL_ROWS,
        certificate=KernelCertificate(
            kind="exact",
            statement=sentences.exact_kernel(precision),
            trace=sentences.EXACT_TRACE,
            residual_trace=0.0,
            sigma=0.0,
            eigenvalue_intervals=intervals,
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
