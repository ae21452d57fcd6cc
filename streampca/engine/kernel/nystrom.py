"""Nyström kernel PCA from the stream: landmarks in a first reading, the exact PCA of their features over all rows in a second."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky
from scipy.linalg.blas import dtrmm
from scipy.linalg.lapack import dtrtri

from streampca.accumulators.joint import Joint
from streampca.accumulators.kernel_features import KernelFeatures, KernelSums
from streampca.accumulators.landmarks import LandmarksState
from streampca.accumulators.rows import Rows
from streampca.blas_threads import one_blas_thread
from streampca.engine.execute import ProgressCallback, accumulate
from streampca.engine.kernel.certificate import certificate_of
from streampca.engine.kernel.landmarks import Landmarks, choose_landmarks, held_out_draws, landmark_cost
from streampca.engine.kernel.parameters import KernelFit, KernelParameters
from streampca.engine.kernel.plan import KernelPlan, feature_plan
from streampca.engine.kernel.rounding import Computed, suitable_dtype
from streampca.engine.kernel.solving import ROUNDING, DenseMatrix, inverse_roots, signs_of
from streampca.engine.memory import give_back_freed_memory
from streampca.engine.plan import Resources
from streampca.errors import DataError
from streampca.models.kernel import KernelModel, way_back_of
from streampca.selection import Count, Selection
from streampca.solve import solve
from streampca.sources.base import Source

if TYPE_CHECKING:
    from streampca.kernels import Kernel

FloatArray = NDArray[np.float64]

_POWER_STEPS = 20
CUTOFF = 1e-10
"""Share of the largest eigenvalue of the landmarks' kernel matrix below which its directions are left out."""
_WELL_CONDITIONED = 1e-5
"""Share above which all eigenvalues lie where triangular factors are as good as eigenvectors, at a third of the time."""
_LATE_FROM = {"float32": 1e-6, "float64": 0.0}
"""Share from which all kept eigenvalues are large enough for kernel values to be accumulated as they are: rounding that does not
average out, as of rows of few distinct values, then costs up to 4e-5 of the largest eigenvalue, else 1e-7 (measured); `rounding`
bounds it."""
_HARMLESS = 1e-2
"""Share of the error that landmarks leave anyway which the directions below that share may add to it."""
SIGNED_CUTOFF = 1e-2
"""The same for kernels that are not positive semi-definite."""
_PRECISION = {"float32": 2e-6, "float64": 1e-12}


def plan(source: Source, parameters: KernelParameters, resources: Resources) -> KernelPlan:
    """Return the plan of a fit; raise `PlanError` if it does not fit."""
    cost = landmark_cost(source, parameters)
    return feature_plan(
        source,
        parameters,
        resources,
        solver="nystrom",
        sampling=cost.sampling,
        landmark_passes=cost.passes,
        landmark_bytes=cost.bytes,
    )


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
    def of(
        cls, kernel: Kernel, landmarks: NDArray[Any], cutoff: float, *, center: bool, late_from: float = 0.0
    ) -> Whitening:
        """Return A = D^(−1/2) U w^(−1/2) for D^(−1/2) K_mm D^(−1/2) = U diag(w) Uᵀ, D the diagonal of K_mm, as far as w > `cutoff` · w₁.

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
        own = kernel(points, points)
        own = (own + own.T) / 2
        if kernel.definite is not False and own.diagonal().min() >= 0:
            lengths = np.sqrt(np.maximum(own.diagonal(), 0.0))
            units = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
            unit = own * units * units[:, None]
            triangular = cls._triangular(unit, units, lengths)
            if triangular is not None:
                return triangular
            values, vectors = np.linalg.eigh(unit)
            if kernel.definite or values[0] >= -1e-8 * abs(values[-1]):
                kept, late = values > cutoff * values[-1], values > late_from * values[-1]
                if _harmless(values, vectors, ~late):
                    kept = kept & late
                return cls._of(values[kept], vectors[:, kept], units, lengths, definite=True)
        if center:
            middle = own.mean(axis=0)
            own = own - middle - middle[:, None] + middle.mean()
        values, vectors = np.linalg.eigh(own)
        kept = np.abs(values) > SIGNED_CUTOFF * np.abs(values).max()
        ones = np.ones(len(own))
        return cls._of(values[kept], vectors[:, kept], ones, ones, definite=False)

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

    def centre(self, own: FloatArray, mean: FloatArray) -> FloatArray:
        """Return c with Aᵀc = `mean`, the mean of φ, ``(m,)``, for the kernel values `own` of the landmarks."""
        if self.sizes is None:
            return own @ (self.matrix @ mean)
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


def _condition(unit: FloatArray, inverse: FloatArray) -> float:
    """Return the smallest eigenvalue of L Lᵀ = `unit` over the largest to some percent, by power iterations with both and L⁻¹."""
    largest = smallest = 1.0 + 0.5 * np.cos(np.arange(len(unit)))
    top = bottom = 1.0
    for _ in range(_POWER_STEPS):
        largest = unit @ (largest / np.linalg.norm(largest))
        smallest = inverse.T @ (inverse @ (smallest / np.linalg.norm(smallest)))
        top, bottom = float(np.linalg.norm(largest)), 1.0 / float(np.linalg.norm(smallest))
    return bottom / top


def _harmless(values: FloatArray, vectors: FloatArray, dropped: NDArray[np.bool_]) -> bool:
    """Tell whether the error of the approximation stays as it is, within a hundredth, without the `dropped` directions.

    What they add to it is Σ wⱼ/m on the average of the landmarks. What there is anyway is told by the landmarks as well: the
    residual of each after all the others, 1/(K⁻¹)ᵢᵢ, of which the lower quartile counts.
    """
    if not dropped.any():
        return True
    sizes = np.maximum(values, np.finfo(np.float64).eps * values[-1])
    residuals = 1.0 / (vectors**2 @ (1.0 / sizes))
    return bool(sizes[dropped].sum() / len(values) <= _HARMLESS * np.quantile(residuals, 0.25))


def run(
    source: Source,
    parameters: KernelParameters,
    plan: KernelPlan,
    *,
    client: Any = None,
    keep_rows: int = 0,
    progress: ProgressCallback | None = None,
) -> KernelFit:
    """Read `source` for landmarks and once more for features, and return its kernel principal components."""
    kernel = parameters.kernel.bound(source.shape[1])
    began = time.perf_counter()
    with one_blas_thread():
        landmarks, count = choose_landmarks(source, parameters, plan, client, progress)
        work = suitable_dtype(kernel, landmarks.rows, np.dtype(plan.work_dtype), center=parameters.center)
        points = np.ascontiguousarray(landmarks.rows, dtype=work)
        late_from = _LATE_FROM[work.name]
        whitening = Whitening.of(kernel, points, CUTOFF, center=parameters.center, late_from=late_from)
        features = features_of(kernel, points, whitening, plan.threads_per_leaf)
        kept = Rows(source.shape[0], keep_rows, str(source.dtype))
        give_back_freed_memory()
        draws = held_out_draws(parameters, source)
        joint = Joint((features, kept, *draws))
        (state, samples, *held), read = accumulate(source, joint, plan, client=client, progress=progress)
        streamed = time.perf_counter()
        sums = projected(features, whitening, features.finalize(state))
        selection = parameters.selection(whitening.rank)
        model = solve_features(source, parameters, landmarks, points, whitening, sums, held, selection)
        if parameters.inverse:
            scores = model.transform(points.astype(np.float64))
            model = replace(model, way_back=way_back_of(kernel, points, scores, parameters.alpha))
    solved = time.perf_counter()
    return KernelFit(model, plan, samples if keep_rows else None, count + read, streamed - began, solved - streamed)


def features_of(kernel: Kernel, points: NDArray[Any], whitening: Whitening, n_threads: int) -> KernelFeatures:
    """Return what the rows are folded into: kernel values, or features where rounding would be magnified at the end."""
    work = points.dtype
    wide = points.astype(np.float64)
    origin = kernel(wide, wide).mean(axis=0).astype(work)
    matrix = None if features_late(whitening, work) else whitening.matrix.astype(work)
    return KernelFeatures(kernel.prepare(points, work), kernel, origin, matrix, n_threads)


def features_late(whitening: Whitening, work: np.dtype[Any]) -> bool:
    """Tell whether kernel values are accumulated as they are, and multiplied by A at the end."""
    return whitening.condition >= _LATE_FROM[work.name]


def projected(features: KernelFeatures, whitening: Whitening, sums: KernelSums) -> KernelSums:
    """Return the sums of φ(x) = Aᵀ k(x), whichever features were accumulated."""
    a = whitening.matrix
    if features.matrix is None:
        return replace(sums, mean=a.T @ sums.mean, scatter=whitening.whitened(sums.scatter))
    return replace(sums, mean=sums.mean + a.T @ features.origin.astype(np.float64))


def solve_features(
    source: Source,
    parameters: KernelParameters,
    landmarks: Landmarks,
    points: NDArray[Any],
    whitening: Whitening,
    sums: KernelSums,
    held: list[LandmarksState],
    selection: Selection,
) -> KernelModel:
    """Return the model of accumulated kernel values.

    With F the n × r matrix of the features φ(x) = Aᵀ k(x), centred, K̂ = F S Fᵀ for the signs S. For S = 1 the eigenpairs
    (λ, q) of G = FᵀF are those of K̂, and the scores are φ(x)·q. Else they come from M = G^½ S G^½ = QΛQᵀ, with scores
    φ(x)ᵀ S G^½ q / √λ.
    """
    kernel, n = parameters.kernel.bound(source.shape[1]), sums.n_samples
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
        kept = max(1, int(np.count_nonzero(values > least * values[0])))
        values, directions = values[:kept], directions[:, :kept]
    coefficients = whitening.matrix @ directions
    own = kernel(points.astype(np.float64), points.astype(np.float64))
    # Any centre c with Aᵀc = mean φ will do, because coefficients are combinations of the columns of A.
    centre = whitening.centre(own, mean) if parameters.center else np.zeros(len(points))
    coefficients *= signs_of((own - centre) @ coefficients)
    late = features_late(whitening, points.dtype)
    found = Computed(own, mean, centred, n, sums.trace, values, directions, late)
    residual = max(0.0, sums.trace - approximated)
    certificate = certificate_of(kernel, points, whitening, held, found, residual, total, precision)
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
        certificate=certificate
        | {"trace_of_kernel": sums.trace}
        | parameters.missing(int(np.count_nonzero(values > 0))),
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
