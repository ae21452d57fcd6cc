"""Nyström kernel PCA from the stream: landmarks in a first reading, the exact PCA of their features over all rows in a second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.accumulators.kernel_features import KernelFeatures, KernelSums
from streampca.accumulators.landmarks import LandmarksState
from streampca.execution.readings import Reading, Readings
from streampca.linalg.eigen import solve
from streampca.linalg.selection import Count, Selection
from streampca.models.kernel import KernelModel
from streampca.planning.plan import Plan
from streampca.planning.work import Resources
from streampca.solvers.kernel.base import KernelFit, KernelMethod
from streampca.solvers.kernel.certificate import certificate_of
from streampca.solvers.kernel.landmarks import ChosenLandmarks, choose_landmarks, held_out_draws, landmark_cost
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import feature_plan
from streampca.solvers.kernel.rounding import Computed, suitable_dtype
from streampca.solvers.kernel.solving import ROUNDING, DenseMatrix, inverse_roots, signs_of, with_preimage
from streampca.solvers.kernel.whitening import LandmarkBasis, Whitening
from streampca.sources.base import Source
from streampca.system.process import release_freed_memory
from streampca.typing import FloatArray

_LATE_FROM = {"float32": 1e-6, "float64": 0.0}
"""Share from which all kept eigenvalues are large enough for kernel values to be accumulated as they are: rounding that does not
average out, as of few rows or of rows of few distinct values, then costs up to 4e-5 of the largest eigenvalue, else 1e-7 (measured);
`rounding` bounds it."""
_SMALL = 2e9
"""n m² up to which every panel is multiplied by A in any case: that takes a tenth of a second, and with few rows rounding hardly averages out."""
_PRECISION = {"float32": 2e-6, "float64": 1e-12}


def features_of(basis: LandmarkBasis, n_threads: int) -> KernelFeatures:
    """Return what the rows are accumulated with: kernel values, or features where rounding would be magnified at the end."""
    kernel, points = basis.kernel, basis.points
    wide = points.astype(np.float64)
    origin = kernel(wide, wide).mean(axis=0).astype(points.dtype)
    matrix = None if basis.late else basis.whitening.matrix.astype(points.dtype)
    return KernelFeatures(kernel.prepare(points, points.dtype), kernel, origin, matrix, n_threads)


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


class NystromMethod(KernelMethod):
    """The exact PCA of the features that landmarks give all rows."""

    name = "nystrom"

    def plan(self, resources: Resources) -> Plan:
        """Return the plan of a fit; raise `PlanError` if it does not fit in memory."""
        source, parameters = self.source, self.parameters
        return feature_plan(source, parameters, resources, self.name, landmark_cost(source, parameters))

    def readings(self, plan: Plan) -> Readings[KernelFit]:
        """Read `source` for landmarks and once more for features, and return its kernel principal components."""
        source = self.source
        landmarks = yield from choose_landmarks(source, self.parameters, plan)
        parameters = replace(self.parameters, kernel=landmarks.kernel)
        kernel = parameters.kernel.bound(source.shape[1])
        work = suitable_dtype(kernel, landmarks.rows, np.dtype(plan.work_dtype), center=parameters.center)
        points = np.ascontiguousarray(landmarks.rows, dtype=work)
        small = source.shape[0] * float(len(points)) ** 2 <= _SMALL
        late_from = 0.0 if small else _LATE_FROM[work.name]
        whitening = Whitening.of(kernel, points, center=parameters.center, late_from=late_from)
        basis = LandmarkBasis(kernel, points, whitening, late=not small and whitening.condition >= late_from)
        features = features_of(basis, plan.threads_per_leaf)
        release_freed_memory()
        draws = held_out_draws(parameters, source)
        state, *held = (yield Reading(source, (features, *draws), plan)).take()
        sums = projected(features, whitening, features.finalize(state))
        del state
        model = solve_features(source, parameters, landmarks, basis, sums, held)
        return KernelFit(model=with_preimage(model, parameters), plan=plan)
