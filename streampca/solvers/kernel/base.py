"""The interface of methods of kernel PCA, and the result of a fit."""

from __future__ import annotations

from dataclasses import dataclass

from streampca.models import certificate_sentences as sentences
from streampca.models.kernel import KernelModel
from streampca.planning.plan import Plan
from streampca.solvers.base import Solver
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import settings_of
from streampca.solvers.result import FitResult
from streampca.typing import FloatArray


@dataclass(frozen=True, kw_only=True)
class KernelFit(FitResult):
    """A finished fit of kernel PCA."""

    model: KernelModel
    """The model."""
    plan: Plan
    """The plan that was carried out."""
    eigenvectors: FloatArray | None = None
    """Eigenvectors of the kernel matrix of all rows where the method has them in memory, ``(n_samples, k)``."""

    def warnings(self) -> list[str]:
        """Return sentences about what limits the use of the result, or makes it other than was asked for."""
        warnings = [sentences.indefinite(self.model.method)] if self.model.certificate.definite is False else []
        return warnings + self.model.concerns


class KernelMethod(Solver[KernelParameters, KernelFit]):
    """Plans and runs fits of kernel PCA by one method."""

    def model_bytes(self, plan: Plan, n_components: int) -> int:
        """Return the size of a saved model: landmarks, their coefficients, and two vectors."""
        return 8 * settings_of(plan).n_landmarks * (plan.n_features + n_components + 2)
