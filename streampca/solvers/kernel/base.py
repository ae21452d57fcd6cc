"""The interface of methods of kernel PCA."""

from __future__ import annotations

from streampca.solvers.base import Solver
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import KernelPlan
from streampca.solvers.kernel.result import KernelFit


class KernelMethod(Solver[KernelParameters, KernelPlan, KernelFit]):
    """Plans and runs fits of kernel PCA by one method."""

    def model_bytes(self, plan: KernelPlan, n_components: int) -> int:
        """Return the size of a saved model: landmarks, their coefficients, and two vectors."""
        return 8 * plan.n_landmarks * (plan.n_features + n_components + 2)
