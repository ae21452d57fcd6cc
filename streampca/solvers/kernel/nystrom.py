"""Nyström kernel PCA from the stream: landmarks in a first reading, the exact PCA of their features over all rows in a second."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.joint import Joint
from streampca.accumulators.kernel_features import KernelFeatures, KernelSums
from streampca.accumulators.landmarks import LandmarksState
from streampca.accumulators.rows import RowSample
from streampca.execution.drive import accumulate
from streampca.execution.progress import ProgressCallback
from streampca.linalg.eigen import solve
from streampca.linalg.selection import Count, Selection
from streampca.models.kernel import KernelModel, preimage_of
from streampca.planning.plan import Resources
from streampca.solvers.kernel.base import KernelMethod
from streampca.solvers.kernel.certificate import certificate_of
from streampca.solvers.kernel.landmarks import ChosenLandmarks, choose_landmarks, held_out_draws, landmark_cost
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import KernelPlan, LandmarkMethod, feature_plan
from streampca.solvers.kernel.result import KernelFit
from streampca.solvers.kernel.rounding import Computed, suitable_dtype
from streampca.solvers.kernel.solving import ROUNDING, DenseMatrix, inverse_roots, signs_of
from streampca.solvers.kernel.whitening import CUTOFF, Whitening
from streampca.sources.base import Source
from streampca.system.blas_threads import one_blas_thread
from streampca.system.process import release_freed_memory
from streampca.typing import Array, DType, FloatArray

if TYPE_CHECKING:
    from streampca.kernels import Kernel


_LATE_FROM = {"float32": 1e-6, "float64": 0.0}
"""Share from which all kept eigenvalues are large enough for kernel values to be accumulated as they are: rounding that does not
average out, as of rows of few distinct values, then costs up to 4e-5 of the largest eigenvalue, else 1e-7 (measured); `rounding`
bounds it."""
_PRECISION = {"float32": 2e-6, "float64": 1e-12}


def plan(source: Source, parameters: KernelParameters, resources: Resources) -> KernelPlan:
    """Return the plan of a fit; raise `PlanError` if it does not fit."""
    cost = landmark_cost(source, parameters)
    return feature_plan(
        source, parameters, resources, LandmarkMethod("nystrom", cost.sampling, cost.passes, cost.bytes)
    )


def features_of(kernel: Kernel, points: Array, whitening: Whitening, n_threads: int) -> KernelFeatures:
    """Return what the rows are folded into: kernel values, or features where rounding would be magnified at the end."""
    work = points.dtype
    wide = points.astype(np.float64)
    origin = kernel(wide, wide).mean(axis=0).astype(work)
    matrix = None if features_late(whitening, work) else whitening.matrix.astype(work)
    return KernelFeatures(kernel.prepare(points, work), kernel, origin, matrix, n_threads)


def features_late(whitening: Whitening, work: DType) -> bool:
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
    landmarks: ChosenLandmarks,
    points: Array,
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


class NystromMethod(KernelMethod):
    """The exact PCA of the features that landmarks give all rows."""

    name = "nystrom"

    def plan(self, source: Source, parameters: KernelParameters, resources: Resources) -> KernelPlan:
        """Return the plan of a fit; raise `PlanError` if it does not fit in memory."""
        return plan(source, parameters, resources)

    def run(
        self,
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
            kept = RowSample(source.shape[0], keep_rows, str(source.dtype))
            release_freed_memory()
            draws = held_out_draws(parameters, source)
            joint: AnyAccumulator = Joint((features, kept, *draws))
            (state, samples, *held), read = accumulate(source, joint, plan, client=client, progress=progress)
            streamed = time.perf_counter()
            sums = projected(features, whitening, features.finalize(state))
            selection = parameters.selection(whitening.rank)
            model = solve_features(source, parameters, landmarks, points, whitening, sums, held, selection)
            if parameters.inverse:
                scores = model.transform(points.astype(np.float64))
                model = replace(model, preimage=preimage_of(kernel, points, scores, parameters.alpha))
        solved = time.perf_counter()
        return KernelFit(
            model=model,
            plan=plan,
            samples=samples if keep_rows else None,
            count=count + read,
            stream_seconds=streamed - began,
            solve_seconds=solved - streamed,
        )
