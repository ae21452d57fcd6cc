"""Approximate kernel PCA by the empirical kernel map through a transform: the kernel matrix is made block by block, never kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import NotFiniteError
from streampca.execution.readings import Readings
from streampca.linalg.nystrom import converted, leave_one_out, nystrom
from streampca.linalg.tiles import spread
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import KernelCertificate
from streampca.models.kernel import KernelModel
from streampca.models.stored import StoredRows
from streampca.planning.plan import Plan
from streampca.planning.work import Resources
from streampca.solvers.approximate import transform_matrix
from streampca.solvers.kernel.base import KernelFit, KernelMethod
from streampca.solvers.kernel.matrix import all_rows, rows_on_disk
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import PAIR_SIDE, columns_of, pairs_plan, settings_of
from streampca.solvers.kernel.rounding import suitable_dtype
from streampca.solvers.kernel.solving import inverse_roots, shares, signs_of, with_preimage
from streampca.solvers.kernel.standardising import standardised_by
from streampca.sources.base import Source
from streampca.system.process import release_freed_memory
from streampca.system.workspace import borrow
from streampca.typing import Array, FloatArray

if TYPE_CHECKING:
    from streampca.kernels import Kernel


_ROUNDING = 1e-6
"""Share of the first eigenvalue of K below which the root of one of K² is rounding."""


def times_kernel(
    kernel: Kernel, rows: Array | StoredRows, vectors: FloatArray, n_threads: int, rows_in_memory: int = 0
) -> FloatArray:
    """Return the kernel matrix of `rows` times `vectors`, ``(n, q)``: n² kernel values, a block of them at a time.

    Of rows on disk, `rows_in_memory` at a time, a multiple of 1,024, are compared with all others, which are read in bands:
    the sums are made in the same order, so that the bits are those of rows in memory.

    Raises
    ------
    NotFiniteError
        If a kernel value overflows.
    """
    n, on_disk = len(rows), isinstance(rows, StoredRows)
    narrow = vectors.astype(rows.dtype, copy=False)
    product = np.zeros_like(vectors)

    def compare(held: Array, first: int, group: slice) -> None:
        """Add to the sums of the rows `held`, of which the first is row `first`, their kernel values with those of `group`."""
        prepared = [(band, kernel.prepare(rows[band], rows.dtype)) for band in _parts(group, PAIR_SIDE)]

        def add(own: slice) -> None:
            mine = held[own.start - first : own.stop - first]
            for band, others in prepared:
                shape = (len(mine), band.stop - band.start)
                with np.errstate(over="ignore", invalid="ignore"):
                    values = others(mine, out=borrow("kernel values", shape, rows.dtype))
                    product[own] += values @ narrow[band]

        spread(add, _parts(slice(first, first + len(held)), PAIR_SIDE), n_threads)

    def sum_up(part: slice) -> None:
        held = rows[part]
        for group in _parts(slice(0, n), PAIR_SIDE if on_disk else n):
            compare(held, part.start, group)

    for part in _parts(slice(0, n), rows_in_memory if on_disk else n):
        sum_up(part)
    if not np.isfinite(product).all():
        raise NotFiniteError(f"kernel values overflow {rows.dtype}: rescale the data first")
    return product


def _parts(whole: slice, most: int) -> list[slice]:
    """Return consecutive parts of `whole`, of at most `most` entries each."""
    return [slice(start, min(start + most, whole.stop)) for start in range(whole.start, whole.stop, most)]


def _diagonal(kernel: Kernel, rows: Array | StoredRows) -> FloatArray:
    """Return the kernel value of every row with itself, ``(n,)``."""
    if isinstance(rows, StoredRows):
        return np.concatenate([kernel.diagonal(values) for _, values in rows.bands()])
    return kernel.diagonal(rows)


def _eigenpairs(
    parameters: KernelParameters, test: FloatArray, products: FloatArray, images: FloatArray, n_threads: int
) -> tuple[FloatArray, FloatArray, float | None]:
    """Return eigenvalues of A, largest first and positive, their vectors ``(n, r)``, and an estimate of ‖A² − Ĉ‖_F."""
    error = None
    if parameters.recovery == "conversion":
        conversion = converted(images, test, n_threads=n_threads)
        values, vectors = np.sqrt(np.maximum(conversion.values, 0.0)), conversion.directions
    else:
        if parameters.sketch in ("auto", "gaussian"):
            # The estimate asks for columns of variance 1, the transform has entries of variance 1 / q.
            error = leave_one_out(images, test, precision="float64", n_threads=n_threads) * test.shape[1] ** 0.5
        low_rank = nystrom(images, test, precision="float64", n_threads=n_threads)
        values, vectors = np.sqrt(np.maximum(low_rank.values, 0.0)), low_rank.vectors
    if parameters.kernel.definite:
        return values, vectors, error
    # A² does not tell the sign of an eigenvalue of A; A Z = Y does, on the range of Z.
    coordinates = np.linalg.lstsq(products, vectors, rcond=1e-10)[0]
    positive = np.einsum("ij,ij->j", vectors, images @ coordinates) > 0
    return values[positive], vectors[:, positive], error


def _model(
    source: Source,
    parameters: KernelParameters,
    rows: Array | StoredRows,
    means: FloatArray,
    eigenpairs: tuple[FloatArray, FloatArray, float | None],
    total: float,
) -> KernelModel:
    values, vectors, error = eigenpairs
    if not len(values):  # no positive eigenvalue: one component without variance, as the other methods give
        values, vectors = np.zeros(1), np.eye(len(rows), 1)
    limit = max(1, int(np.count_nonzero(values > _ROUNDING * values[0])))
    selection = parameters.selection(limit)
    k = selection.select(values, total)
    k = limit if k is None else min(k, limit)
    values, vectors = values[:k], vectors[:, :k]
    coefficients = vectors * signs_of(vectors) * inverse_roots(values, _ROUNDING)
    if parameters.center:
        coefficients -= coefficients.mean(axis=0)
    return KernelModel(
        kernel=parameters.kernel.bound(source.shape[1]),
        landmarks=rows,
        coefficients=coefficients,
        centre=means if parameters.center else np.zeros(len(rows)),
        eigenvalues=values,
        total=total,
        n_samples=len(rows),
        method="empirical_map",
        center=parameters.center,
        landmark_indices=np.arange(len(rows), dtype=np.int64),
        sampling="all rows",
        certificate=_certificate(parameters, values, total, error),
        source=source.describe(),
    )


def _certificate(
    parameters: KernelParameters, values: FloatArray, total: float, error: float | None
) -> KernelCertificate:
    """Return the certificate of eigenvalues, whose squares are known to within `error`; None: to no bound."""
    intervals = None
    if error is not None:
        rounding, upper = _ROUNDING * float(values[0]), np.sqrt(values**2 + error)
        intervals = tuple(
            (max(0.0, value - rounding), above + rounding)
            for value, above in zip(values.tolist(), upper.tolist(), strict=True)
        )
    return KernelCertificate(
        kind="none" if error is None else "statistical",
        statement=sentences.UNBOUNDED if error is None else sentences.empirical_map(error),
        eigenvalue_intervals=intervals,
        definite=parameters.kernel.definite,
        trace=sentences.EXACT_TRACE,
        residual_trace=None,
        sigma=None if error is None else error**0.5,
        **parameters.components_missing(int(np.count_nonzero(values > 0))),
        **shares(values, total, 0.0),
    )


class EmpiricalMapMethod(KernelMethod):
    """The empirical kernel map through a transform."""

    name = "empirical_map"

    def plan(self, resources: Resources) -> Plan:
        """Return the plan of a fit; raise `PlanError` if it does not fit in memory."""
        columns = columns_of(self.parameters, self.source.shape[0])
        return pairs_plan(self.source, self.parameters, resources, solver=self.name, columns=columns)

    def readings(self, plan: Plan) -> Readings[KernelFit]:
        """Read `source` once, into memory or to disk, and return its approximate kernel principal components (Marukatat 2023, Algorithm 6).

        With A = HKH and a test matrix Ω, both forms use Z = AΩ and Y = AZ: the literature's takes eigenpairs (μ, u) of ZᵀZ,
        λ = √μ and the vectors Yu; Nyström's approximation of A² = (AΩ ↦ A²Ω) uses the same products better: on 1,797 digits
        with an RBF kernel and 100 columns its first ten vectors agree to 0.9999 with the exact ones, against 0.73.
        """
        source, parameters, n = self.source, self.parameters, self.source.shape[0]
        rows = yield from (rows_on_disk(source, plan) if plan.rows_on_disk else all_rows(source, plan))
        parameters = standardised_by(parameters, rows)
        kernel = parameters.kernel.bound(source.shape[1])
        rows = rows.astype(suitable_dtype(kernel, rows, rows.dtype, center=parameters.center), copy=False)
        wide = rows.astype(np.float64, copy=False)  # K² squares the rounding of K
        # Of a transform for which rows are features.
        test = transform_matrix(parameters.sketch, (n, settings_of(plan).columns), parameters.n_hashes, parameters.seed)
        if parameters.center:
            test -= test.mean(axis=0)
        first = times_kernel(
            kernel, wide, np.hstack([test, np.full((n, 1), 1 / n)]), plan.threads, settings_of(plan).rows_in_memory
        )
        means = first[:, -1].copy()
        products = first[:, :-1]
        if parameters.center:
            products -= products.mean(axis=0)
        images = times_kernel(kernel, wide, products, plan.threads, settings_of(plan).rows_in_memory)
        if parameters.center:
            images -= images.mean(axis=0)
        del wide
        release_freed_memory()
        total = float(_diagonal(kernel, rows).sum()) - (n * float(means.mean()) if parameters.center else 0.0)
        eigenpairs = _eigenpairs(parameters, test, products, images, plan.threads)
        model, vectors = _model(source, parameters, rows, means, eigenpairs, total), eigenpairs[1]
        vectors = vectors[:, : model.n_components] * signs_of(vectors[:, : model.n_components])
        model = with_preimage(model, parameters, vectors)
        del test, first, products, images, eigenpairs
        release_freed_memory()
        return KernelFit(model=model, plan=plan, eigenvectors=vectors)
