"""The classical Nyström extension: eigenpairs of the landmarks' kernel matrix carried to all rows, for comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from typing_extensions import override

from streampca.errors import ParameterError
from streampca.execution.readings import Readings
from streampca.linalg.eigen import solve
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
    shares,
    signs_of,
    suitable_dtype,
    with_preimage,
)
from streampca.solvers.kernel.landmarks import LandmarkMethod
from streampca.sources.base import Source


class ExtensionMethod(LandmarkMethod):
    """The eigenpairs of the kernel matrix of the landmarks, extended to all rows."""

    name = "nystrom_extension"
    accumulates = False

    @override
    @property
    def reason(self) -> str:
        return f"the kernel matrix of {self.m:,} landmarks alone, extended to all rows"

    @override
    @property
    def sampling(self) -> str:
        """Return how landmarks are chosen: by known chances, from which their weights follow; "auto" is uniform."""
        return "uniform" if self.parameters.sampling == "auto" else super().sampling

    @override
    @classmethod
    def require(cls, source: Source | None, parameters: KernelParameters) -> None:
        if parameters.given is None and parameters.sampling == "rpcholesky":
            # No weight of a row follows from being chosen by what earlier rows left over.
            raise ParameterError(
                "method='nystrom_extension' weights landmarks by their chance of being drawn, which sampling='rpcholesky' does not have: "
                "expected 'uniform', 'diagonal', 'column_norm', or method='nystrom'"
            )

    @override
    def readings(self, plan: Plan) -> Readings[KernelFit]:
        """Read `source` for landmarks and extend the eigenpairs of W^½ K_c W^½, where landmark i stands for Wᵢ rows and K_c is centred with these weights.

        λ̂ = λ and u(x) = λ⁻¹ k_c(x)ᵀ W^½ v. With W = n/m for uniform landmarks these are λ̂ = (n/m) λ_m and
        u(x) = √(m/n) λ_m⁻¹ k_c(x)·v; the literature prints the factor of u the other way round, and uses n/m for draws whose
        chances differ, where it does not hold. Here W decreases with the chance and sums to n (`ChosenLandmarks.multiplicity`), so
        that a constant κ(x, x), for which all chances are the same, gives the uniform formula exactly.
        """
        source, parameters = self.source, self.parameters
        landmarks = yield from self.choose(plan)
        kernel, n = landmarks.kernel.bound(source.shape[1]), source.shape[0]
        work = suitable_dtype(kernel, landmarks.rows, np.dtype(plan.work_dtype), center=parameters.center)
        points = np.ascontiguousarray(landmarks.rows, dtype=work)
        k_mm = kernel(points.astype(np.float64), points.astype(np.float64))
        k_mm = (k_mm + k_mm.T) / 2
        chance = landmarks.multiplicity / landmarks.multiplicity.sum()
        centre = k_mm @ chance if parameters.center else np.zeros(len(k_mm))
        centred = k_mm - centre - centre[:, None] + float(chance @ centre)
        roots = np.sqrt(landmarks.multiplicity)
        matrix = DenseMatrix(roots[:, None] * centred * roots)
        selection = parameters.selection(len(points))
        spectrum = solve(matrix, selection, precision=ROUNDING["float64"], seed=parameters.seed)
        rank = max(1, int(np.count_nonzero(spectrum.values > ROUNDING["float64"] * spectrum.values[0])))
        values, vectors = spectrum.values[:rank], spectrum.vectors[:rank].T
        coefficients = roots[:, None] * vectors * inverse_roots(values, ROUNDING["float64"])
        coefficients *= signs_of((k_mm - centre) @ coefficients)
        model = KernelModel(
            kernel=kernel,
            landmarks=points,
            coefficients=coefficients,
            centre=centre,
            eigenvalues=values,
            total=spectrum.total,
            n_samples=n,
            method="nystrom_extension",
            center=parameters.center,
            landmark_indices=landmarks.index,
            sampling=landmarks.sampling,
            certificate=KernelCertificate(
                kind="none",
                statement=sentences.OF_LANDMARKS,
                definite=kernel.definite,
                trace=sentences.TRACE_OF_LANDMARKS,
                residual_trace=None,
                sigma=None,
                eigenvalue_intervals=None,
                **parameters.components_missing(int(np.count_nonzero(values > 0))),
                **shares(values, spectrum.total, 0.0),
            ),
            source=source.describe(),
        )
        return KernelFit(model=with_preimage(model, replace(parameters, kernel=landmarks.kernel)), plan=plan)
