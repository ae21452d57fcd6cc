"""Streaming Nyström kernel PCA: a first pass for the landmarks, a second pass for the exact PCA of their features over all rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cholesky
from scipy.linalg.blas import dtrmm
from scipy.linalg.lapack import dtrtri
from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.kernel_features import KernelFeatures, KernelSums, feature_rows
from streampca.accumulators.landmarks import LandmarksState, UniformLandmarks, WeightedLandmarks
from streampca.errors import DataError
from streampca.execution.readings import Reading, Readings
from streampca.kernels import Kernel
from streampca.linalg.eigen import solve
from streampca.linalg.selection import Count, Selection
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import KernelCertificate
from streampca.models.kernel import KernelModel
from streampca.planning.plan import Plan
from streampca.solvers.kernel.base import (
    ROUNDING,
    DenseMatrix,
    KernelFit,
    KernelParameters,
    inverse_roots,
    share_of,
    shares,
    signs_of,
    suitable_dtype,
    value_rounding,
    with_preimage,
)
from streampca.solvers.kernel.landmarks import HELD_OUT_ROWS, ChosenLandmarks, LandmarkMethod, chances
from streampca.sources.base import Source
from streampca.system.process import release_freed_memory
from streampca.typing import Array, BoolArray, FloatArray

_LATE_FROM = {"float32": 1e-6, "float64": 0.0}
"""Share from which all kept eigenvalues are large enough for kernel values to be accumulated as they are: rounding that does not
average out, as of few rows or of rows of few distinct values, then costs up to 4e-5 of the largest eigenvalue, else 1e-7 (measured);
`rounding` bounds it."""
_SMALL = 2e9
"""n m² up to which every panel is multiplied by A in any case: that takes a tenth of a second, and with few rows rounding hardly averages out."""
_PRECISION = {"float32": 2e-6, "float64": 1e-12}
_SAFETY = 3  # roundings are taken for independent, and their sums for at most three standard deviations
_EPS64 = float(np.finfo(np.float64).eps)
_POWER_STEPS = 20
_WELL_CONDITIONED = 1e-5
"""Share above which all eigenvalues lie where triangular factors are as good as eigenvectors, at a third of the time."""
_HARMLESS = 1e-2
"""Share of the error that landmarks leave anyway which the directions below that share may add to it."""
_CUTOFF = 1e-10
"""Share of the largest eigenvalue of the landmarks' kernel matrix below which its directions are left out."""
_SIGNED_CUTOFF = 1e-2
"""The same for kernels that are not positive semi-definite."""


class NystromMethod(LandmarkMethod):
    """The exact PCA of the features that landmarks give all rows."""

    name = "nystrom"

    @override
    @property
    def reason(self) -> str:
        return f"all rows by {self.m:,} landmarks; the {self.m:,} x {self.m:,} covariance of their kernel values is accumulated"

    @override
    def readings(self, plan: Plan) -> Readings[KernelFit]:
        """Read `source` for landmarks and once more for features, and return its kernel principal components."""
        source = self.source
        landmarks = yield from self.choose(plan)
        parameters = replace(self.parameters, kernel=landmarks.kernel)
        kernel = parameters.kernel.bound(source.shape[1])
        work = suitable_dtype(kernel, landmarks.rows, np.dtype(plan.work_dtype), center=parameters.center)
        points = np.ascontiguousarray(landmarks.rows, dtype=work)
        small = source.shape[0] * float(len(points)) ** 2 <= _SMALL
        late_from = 0.0 if small else _LATE_FROM[work.name]
        whitening = Whitening.of(kernel, points, center=parameters.center, late_from=late_from)
        basis = LandmarkBasis(kernel, points, whitening, late=not small and whitening.condition >= late_from)
        wide, a = points.astype(np.float64), whitening.matrix
        origin = kernel(wide, wide).mean(axis=0).astype(work)
        # Features in place of kernel values where rounding would be magnified at the end.
        matrix = None if basis.late else a.astype(work)
        features = KernelFeatures(kernel.prepare(points, work), kernel, origin, matrix, plan.threads_per_leaf)
        del wide
        release_freed_memory()
        # Rows on which kernel matrix and approximation are compared, independent of the landmarks: uniform, and where κ(x, x) varies by
        # κ(x, x)² as well. A few rows that carry most of the kernel matrix are missed by the first, and many that carry little by the second.
        n_rows, seed, dtype = min(HELD_OUT_ROWS, source.shape[0]), parameters.seed, str(source.dtype)
        draws: list[AnyAccumulator] = [UniformLandmarks(n_rows, seed, dtype, "held-out rows")]
        if not parameters.kernel.constant_diagonal:
            draws.append(WeightedLandmarks(n_rows, kernel, seed, dtype, "held-out rows by weight"))
        state, *held = (yield Reading(source, (features, *draws), plan)).take()
        sums = features.finalize(state)
        if basis.late:
            sums = replace(sums, mean=a.T @ sums.mean, scatter=whitening.whitened(sums.scatter))
        else:
            sums = replace(sums, mean=sums.mean + a.T @ origin.astype(np.float64))
        del state
        model = solve_features(source, parameters, landmarks, basis, sums, held)
        return KernelFit(model=with_preimage(model, parameters), plan=plan)


@dataclass(frozen=True)
class Whitening:
    """The directions that the landmarks span: φ(x) = Aᵀ k(x) with κ̂(x, y) = φ(x)·S φ(y)."""

    matrix: FloatArray
    """A, ``(m, r)``."""
    signs: FloatArray | None
    """Signs on the diagonal of S, ``(r,)``; None where all are positive."""
    sizes: FloatArray | None
    """|w|, ``(r,)``; None where A = D^(−½) L^(−T) is triangular, of a Cholesky factor L."""
    lengths: FloatArray
    """Lengths that landmarks were divided by, the root of D, ``(m,)``; ones where they were not."""
    condition: float
    """Smallest of the kept eigenvalues over the largest."""
    definite: bool
    """Whether κ̂ stays below κ, because K_mm has no negative eigenvalues."""

    @classmethod
    def of(cls, kernel: Kernel, landmarks: Array, *, center: bool, late_from: float = 0.0) -> Whitening:
        """Return A = D^(−1/2) U w^(−1/2) for D^(−1/2) K_mm D^(−1/2) = U diag(w) Uᵀ, D the diagonal of K_mm, as far as w > 1e-10 · w₁.

        Landmarks brought to the same length span the same space, and rounding that is relative to the length of each is
        then not taken for a direction: with float32 rows and a polynomial kernel of degree 5, whose lengths differ by
        1e4, all directions stand above 1e-5, against a third without.

        Directions of w ≤ `late_from` · w₁, which would make every panel be whitened by itself, at three times the flops,
        are left out where they are worth less than a hundredth of the error that the landmarks leave: see `_harmless`.

        Where all w are well above that, A = D^(−½) L^(−T) does as well as any other root, for D^(−½) K_mm D^(−½) = L Lᵀ.

        For kernels that are not positive semi-definite K_mm = U diag(w) Uᵀ is taken as it is, A = U |w|^(−1/2), and
        directions of |w| > 1e-2 · |w|₁ are kept; those of H K_mm H with H = 1 − 11ᵀ/m where the result is centred, which
        it is then about the landmarks' mean as well: a constant, such as that of tanh, would be all that is kept.
        """
        points = landmarks.astype(np.float64)
        k_mm = kernel(points, points)
        k_mm = (k_mm + k_mm.T) / 2
        if kernel.definite is not False and k_mm.diagonal().min() >= 0:
            lengths = np.sqrt(np.maximum(k_mm.diagonal(), 0.0))
            units = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
            unit = k_mm * units * units[:, None]
            triangular = cls._triangular(unit, units, lengths)
            if triangular is not None:
                return triangular
            values, vectors = np.linalg.eigh(unit)
            if kernel.definite or values[0] >= -1e-8 * abs(values[-1]):
                large, late = values > _CUTOFF * values[-1], values > late_from * values[-1]
                if _harmless(values, vectors, ~late):
                    large = large & late
                return cls._of(values[large], vectors[:, large], units, lengths, definite=True)
        if center:
            middle = k_mm.mean(axis=0)
            k_mm = k_mm - middle - middle[:, None] + middle.mean()
        values, vectors = np.linalg.eigh(k_mm)
        large = np.abs(values) > _SIGNED_CUTOFF * np.abs(values).max()
        ones = np.ones(len(k_mm))
        return cls._of(values[large], vectors[:, large], ones, ones, definite=False)

    @classmethod
    def _of(
        cls, values: FloatArray, vectors: FloatArray, units: FloatArray, lengths: FloatArray, *, definite: bool
    ) -> Whitening:
        sizes = np.abs(values)
        if not len(values):
            raise DataError(
                "the kernel is zero between all landmarks: expected rows that differ from 0, or another kernel"
            )
        signs = None if (values > 0).all() else np.sign(values)
        roots = np.sqrt(sizes)
        condition = float(sizes.min() / sizes.max())
        return cls(units[:, None] * vectors / roots, signs, sizes, lengths, condition, definite)

    @classmethod
    def _triangular(cls, unit: FloatArray, units: FloatArray, lengths: FloatArray) -> Whitening | None:
        """Return the triangular root of K_mm, of which `unit` has ones on its diagonal; None if it is not well conditioned."""
        largest = float(np.abs(unit).sum(axis=0).max())
        shifted = unit - _WELL_CONDITIONED * largest * np.eye(len(unit))
        try:
            cholesky(shifted, lower=True, overwrite_a=True, check_finite=False)
            factor = cholesky(unit, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return None
        inverse, _ = dtrtri(factor, lower=1)
        root = np.asfortranarray(units[:, None] * inverse.T)
        return cls(root, None, None, lengths, _condition(unit, inverse), definite=True)

    def centre(self, k_mm: FloatArray, mean: FloatArray) -> FloatArray:
        """Return c with Aᵀc = `mean`, the mean of φ, ``(m,)``, for the kernel values `k_mm` of the landmarks."""
        if self.sizes is None:
            return k_mm @ (self.matrix @ mean)
        return (self.lengths**2) * (self.matrix @ (self.sizes * mean))

    def whitened(self, scatter: FloatArray) -> FloatArray:
        """Return Aᵀ `scatter` A for the scatter of kernel values, ``(r, r)``."""
        a = self.matrix
        if self.sizes is not None:
            return a.T @ scatter @ a
        half = dtrmm(1.0, a, scatter, trans_a=1)
        whole: FloatArray = dtrmm(1.0, a, half, side=1)
        return whole

    @property
    def rank(self) -> int:
        """Return r."""
        return int(self.matrix.shape[1])


@dataclass(frozen=True)
class LandmarkBasis:
    """The landmarks with the directions that they span."""

    kernel: Kernel
    """The kernel."""
    points: Array
    """The landmarks, ``(m, n_features)``, in the type of the products."""
    whitening: Whitening
    """The directions."""
    late: bool
    """Whether kernel values are accumulated as they are and multiplied by A at the end; if not, every panel of rows is."""


def _condition(unit: FloatArray, inverse: FloatArray) -> float:
    """Return the smallest eigenvalue of L Lᵀ = `unit` over the largest to some percent, by power iterations with both and L⁻¹."""
    largest = smallest = 1.0 + 0.5 * np.cos(np.arange(len(unit)))
    top = bottom = 1.0
    for _ in range(_POWER_STEPS):
        largest = unit @ (largest / np.linalg.norm(largest))
        smallest = inverse.T @ (inverse @ (smallest / np.linalg.norm(smallest)))
        top, bottom = float(np.linalg.norm(largest)), 1.0 / float(np.linalg.norm(smallest))
    return bottom / top


def _harmless(values: FloatArray, vectors: FloatArray, dropped: BoolArray) -> bool:
    """Tell whether the error of the approximation stays as it is, within a hundredth, without the `dropped` directions.

    What they add to it is Σ wⱼ/m on the average of the landmarks. What there is anyway is told by the landmarks as well: the
    residual of each after all the others, 1/(K⁻¹)ᵢᵢ, of which the lower quartile counts.
    """
    if not dropped.any():
        return True
    sizes = np.maximum(values, np.finfo(np.float64).eps * values[-1])
    residuals = 1.0 / (vectors**2 @ (1.0 / sizes))
    return bool(sizes[dropped].sum() / len(values) <= _HARMLESS * np.quantile(residuals, 0.25))


def solve_features(
    source: Source,
    parameters: KernelParameters,
    landmarks: ChosenLandmarks,
    basis: LandmarkBasis,
    sums: KernelSums,
    held: list[LandmarksState],
) -> KernelModel:
    """Return the model of accumulated kernel values.

    With F the n × r matrix of the features φ(x) = Aᵀ k(x), centred, K̂ = F S Fᵀ for the signs S. For S = 1 the eigenpairs
    (λ, q) of G = FᵀF are those of K̂, and the scores are φ(x)·q. Else they come from M = G^½ S G^½ = QΛQᵀ, with scores
    φ(x)ᵀ S G^½ q / √λ.
    """
    kernel, points, whitening, n = basis.kernel, basis.points, basis.whitening, sums.n_samples
    selection = parameters.selection(whitening.rank)
    mean, gram = sums.mean, (sums.scatter + sums.scatter.T) / 2
    centred = gram
    signs = np.ones(whitening.rank) if whitening.signs is None else whitening.signs
    middle = n * float(mean @ (signs * mean))
    approximated = float(signs @ gram.diagonal()) + middle
    if not parameters.center:
        gram = gram + n * np.outer(mean, mean)
    total = max(0.0, sums.trace - middle) if parameters.center else sums.trace
    precision = _PRECISION[points.dtype.name]
    values, directions = _eigenpairs(gram, whitening.signs, selection, precision, total, parameters.seed)
    if isinstance(selection, Count):
        least = precision if selection.n_components is None else ROUNDING["float64"]
        rank = max(1, int(np.count_nonzero(values > least * values[0])))
        values, directions = values[:rank], directions[:, :rank]
    coefficients = whitening.matrix @ directions
    k_mm = kernel(points.astype(np.float64), points.astype(np.float64))
    # Any centre c with Aᵀc = mean φ will do, because coefficients are combinations of the columns of A.
    centre = whitening.centre(k_mm, mean) if parameters.center else np.zeros(len(points))
    coefficients *= signs_of((k_mm - centre) @ coefficients)
    computed = Computed(k_mm, mean, centred, n, sums.trace, values, directions, basis.late)
    residual = max(0.0, sums.trace - approximated)
    certificate = certificate_of(basis, held, computed, residual, total, precision)
    return KernelModel(
        kernel=kernel,
        landmarks=points,
        coefficients=coefficients,
        centre=centre,
        eigenvalues=values,
        total=total,
        n_samples=n,
        method="nystrom",
        center=parameters.center,
        landmark_indices=landmarks.index,
        sampling=landmarks.sampling,
        certificate=replace(
            certificate, trace_of_kernel=sums.trace, **parameters.components_missing(int(np.count_nonzero(values > 0)))
        ),
        source=source.describe(),
    )


def _eigenpairs(
    gram: FloatArray, signs: FloatArray | None, selection: Selection, precision: float, total: float, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues of K̂ and the directions d, ``(r, k)``, with scores f(x)·d."""
    if signs is None:
        spectrum = solve(DenseMatrix(gram), selection, precision=precision, total=total, seed=seed)
        return spectrum.values, spectrum.vectors.T.copy()
    values, vectors = np.linalg.eigh(gram)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    spectrum = solve(DenseMatrix((root * signs) @ root), selection, precision=precision, total=total, seed=seed)
    scaled = signs[:, None] * (root @ spectrum.vectors.T) * inverse_roots(spectrum.values, precision)
    return spectrum.values, scaled


@dataclass(frozen=True)
class Computed:
    """Results of a fit from landmarks whose rounding is in question."""

    k_mm: FloatArray
    """K_mm in float64, ``(m, m)``."""
    mean: FloatArray
    """φ̄, the mean of the features, ``(r,)``."""
    scatter: FloatArray
    """G = Σ (φ − φ̄)(φ − φ̄)ᵀ, ``(r, r)``."""
    n_samples: int
    """Number of rows."""
    trace: float
    """T = Σ κ(x, x)."""
    values: FloatArray
    """Eigenvalues λ̂, largest first, ``(k,)``."""
    directions: FloatArray
    """Their eigenvectors Q, ``(r, k)``."""
    late: bool
    """Whether kernel values were accumulated and multiplied by A at the end; if not, every panel of rows was."""


def certificate_of(
    basis: LandmarkBasis,
    held: list[LandmarksState],
    computed: Computed,
    residual: float,
    total: float,
    precision: float,
) -> KernelCertificate:
    """Return what the passes tell of the error.

    Where K is positive semi-definite, E = K − K̂ is, too, and λ̂ᵢ ≤ λᵢ ≤ λ̂ᵢ + ‖E‖₂ for the centred matrices. tr E = Σ κ(x, x)
    − Σ ‖φ(x)‖² bounds ‖E‖₂ for certain; on some hundred rows that were drawn beside the landmarks it is estimated. Both
    ends allow for rounding.
    """
    whitening, definite = basis.whitening, basis.kernel.definite
    known = KernelCertificate(
        kind="none",
        statement=sentences.INDEFINITE,
        definite=definite,
        trace=sentences.TRACE_OF_FEATURES,
        residual_trace=None,
        sigma=None,
        eigenvalue_intervals=None,
        landmark_rank=whitening.rank,
        landmark_condition=whitening.condition,
        **shares(computed.values, total, 0.0),
    )
    if not whitening.definite:
        return known
    lower, upper, rounding = rounding_of(basis, computed, precision)
    most = residual + rounding
    sigma = min(_estimate(basis, state, computed.n_samples, most) for state in held)
    bound, rows = min(most, sigma), sum(len(state.index) for state in held)
    ends = tuple(zip(lower.tolist(), upper.tolist(), strict=True))
    return replace(
        known,
        kind="statistical",
        statement=sentences.nystrom(bound, rows, most, known_definite=definite is not None),
        residual_trace=residual,
        residual_trace_rounding=rounding,
        rounding=share_of(float(computed.values[0] - lower[0]), float(computed.values[0])),
        sigma=sigma,
        held_out_rows=rows,
        eigenvalue_intervals=tuple((low, high + bound) for low, high in ends),
        proven_intervals=tuple((low, high + most) for low, high in ends),
        **shares(lower, total, most + float((upper - lower).sum())),
    )


def _estimate(basis: LandmarkBasis, held: LandmarksState, n: int, residual: float) -> float:
    """Return an estimate of ‖E‖₂ from above by the residual kernel matrix E_hh of h drawn rows.

    λ₁(D E_hh D), with D = π^(−1/2) for the chances π of being drawn, exceeds ‖E‖₂ on average where the rows see all of E.
    Whether they do is told by Σ Eᵢᵢ/πᵢ, whose mean is tr E: what of the known `residual` trace lies more than two
    standard errors above it is added, as if it were one eigenvalue of rows that were not seen.
    The row with the largest key is left out, which makes the `chances` of the others exact.
    """
    if not len(held.keys):
        return np.inf
    if len(held.keys) < n:
        chosen = np.arange(len(held.keys)) != int(np.argmax(held.keys))
        drawn = chances(held)[chosen]
    else:
        chosen, drawn = np.ones(n, bool), np.ones(n)
    if len(drawn) < 2:
        return np.inf
    rows = held.rows[chosen].astype(np.float64)
    features = basis.kernel(rows, basis.points.astype(np.float64)) @ basis.whitening.matrix
    gap = basis.kernel(rows, rows) - features @ features.T
    scales = 1.0 / np.sqrt(drawn)
    gap = (gap + gap.T) / 2 * scales * scales[:, None]
    seen = gap.diagonal()
    error = float(seen.std(ddof=1)) * np.sqrt(len(seen)) * float(np.sqrt(1.0 - drawn.min()))
    unseen = max(0.0, residual - float(seen.sum()) - 2 * error)
    return float(max(0.0, float(np.linalg.eigvalsh(gap)[-1])) + unseen)


def rounding_of(basis: LandmarkBasis, computed: Computed, precision: float) -> tuple[FloatArray, FloatArray, float]:
    """Return lower and upper ends for the eigenvalues of K̂, ``(k,)``, and the largest error of its trace.

    They follow from the coefficients b = A q of each component.

    With u the unit of rounding of the type of the landmarks, s(z) = √κ(z, z), σ(z)² = Σ (κ(x, z) − c(z))² for the origin c, and norms over
    components 1 to i:

    - Kernel values with errors ρ s(x) s(z), independent for landmarks z that differ, change √λᵢ by at most 3 ρ √T ‖s b‖
      (equal landmarks share their errors: each counts as often as it comes).
    - A product of a panel of P rows has errors 3 √P u σ(y) σ(z) in its entries (Higham & Mary 2019): λᵢ changes by 3 √P u ‖σ b‖².
      Where panels are multiplied by A, rounding of that product changes √λᵢ by 2u ‖a q‖, a(j)² = Σ σ(z)² A(z, j)²,
      and the products have errors 3 √P u γ(i) γ(j) with γ(j)² = Σ φⱼ².
    - A is the root of a matrix with errors of 4 m eps in norm: λᵢ changes by that times λ̂ᵢ ‖s b‖².

    λᵢ(K̂) is at least the smallest ‖F q‖² on the span of the first i computed vectors, so only their own coefficients
    count, which are small for large eigenvalues; the trace takes all directions, magnified by the condition of K_mm.
    """
    a, points, n = basis.whitening.matrix, basis.points, computed.n_samples
    work = points.dtype
    eps, rho, m = float(np.finfo(work).eps), value_rounding(basis.kernel, points), len(a)
    _, group, counts = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    alike = counts[group.reshape(-1)].astype(np.float64)
    squares = np.maximum(computed.k_mm.diagonal(), 0.0) * alike
    reach = computed.k_mm @ a
    origin = computed.k_mm.mean(axis=0)
    apart = reach @ computed.mean - origin
    spread = np.maximum(np.einsum("ij,ij->i", reach @ computed.scatter, reach), 0.0) + n * apart**2
    spread = spread * alike
    product = _SAFETY * math.sqrt(min(n, feature_rows(m if computed.late else a.shape[1], work))) * eps / 2
    coefficients = np.square(a @ computed.directions)
    root = _SAFETY * rho * np.sqrt(computed.trace * np.cumsum(squares @ coefficients))
    matrix = 4 * m * _EPS64
    shift = np.cumsum(computed.values * matrix * (squares @ coefficients))
    if computed.late:
        shift = shift + product * np.cumsum(spread @ coefficients)
        trace = product * float((spread @ np.square(a)).sum())
    else:
        columns = spread @ np.square(a)
        features = np.maximum(computed.scatter.diagonal(), 0.0) + n * (computed.mean - origin @ a) ** 2
        weights = np.square(computed.directions)
        root = root + eps * np.sqrt(np.cumsum(columns @ weights))
        shift = shift + product * np.cumsum(features @ weights)
        trace = float((2 * eps * np.sqrt(features * columns) + eps**2 * columns + product * features).sum())
    scaled = np.sqrt(squares)[:, None] * a
    whole = float(np.einsum("ij,ij->", scaled @ computed.scatter, scaled) + n * np.sum((scaled @ computed.mean) ** 2))
    whole = max(0.0, whole)
    trace += (
        2 * _SAFETY * rho * math.sqrt(computed.trace * whole)
        + rho**2 * computed.trace * float(np.sum(scaled**2))
        + matrix * whole
    )
    base = precision * float(computed.values[0])
    low = np.maximum(np.sqrt(np.maximum(computed.values - shift, 0.0)) - root, 0.0) ** 2 - base
    high = (np.sqrt(computed.values + shift) + root) ** 2 + base
    return np.maximum(low, 0.0), high, trace
