"""The result of a fit of kernel PCA."""

from __future__ import annotations

from dataclasses import dataclass

from streampca.models.kernel import KernelModel
from streampca.solvers.kernel.plan import KernelPlan
from streampca.solvers.result import FitResult
from streampca.typing import FloatArray


@dataclass(frozen=True, kw_only=True)
class KernelFit(FitResult):
    """A finished fit of kernel PCA."""

    model: KernelModel
    """The model."""
    plan: KernelPlan
    """The plan that was carried out."""
    eigenvectors: FloatArray | None = None
    """Eigenvectors of the kernel matrix of all rows where the method has them in memory, ``(n_samples, k)``."""

    def warnings(self) -> list[str]:
        """Return sentences about what limits the use of the result, or makes it other than was asked for."""
        model, warnings = self.model, []
        if model.certificate.get("definite") is False:
            warnings.append(
                "the kernel is not positive semi-definite: negative eigenvalues are left out, shares of the trace may exceed 1, and "
                + (
                    "eigenvalues come without a certificate"
                    if model.method == "nystrom"
                    else "distances in its space are not proper ones"
                )
            )
        return warnings + model.concerns
