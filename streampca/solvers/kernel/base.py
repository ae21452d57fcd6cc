"""The interface of methods of kernel PCA, and the result of a fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from typing_extensions import override

from streampca.errors import NotFiniteError
from streampca.models import certificate_sentences as sentences
from streampca.models.kernel import KernelModel
from streampca.models.rounding import with_rounded_integers
from streampca.planning.detail import KernelDetail
from streampca.planning.plan import Plan
from streampca.planning.work import Companion
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
    """A fit of kernel PCA by one method."""

    settings = KernelDetail

    @override
    @classmethod
    def model_bytes(cls, plan: Plan, n_components: int) -> int:
        """Return the size of a saved model: landmarks, their coefficients, and two vectors."""
        return 8 * settings_of(plan).n_landmarks * (plan.n_features + n_components + 2)

    @override
    @classmethod
    def seconds(cls, plan: Plan, companions: Iterable[Companion] = ()) -> float:
        rate = (60e9 if plan.work_dtype == "float32" else 30e9) * plan.threads
        return 0.05 + plan.flops / rate + (plan.bytes_to_read + settings_of(plan).disk_readings * plan.disk_bytes) / 1e9

    @override
    def finished(self, fit: KernelFit) -> KernelFit:
        """Return the fit with what rounding of integers may change; raise `NotFiniteError` where numbers leave their range."""
        model, source = fit.model, self.source
        numbers = (model.eigenvalues, model.coefficients, model.centre, np.array(model.total))
        if not all(np.isfinite(each).all() for each in numbers):
            raise NotFiniteError("kernel values or their products overflow float64: rescale the data first")
        limits, longest = np.finfo(model.score_dtype(source.dtype)), float(np.sqrt(model.eigenvalues[0]))
        smallest = float(limits.tiny) * model.n_samples**0.5 / float(limits.eps)
        if longest and not smallest <= longest <= float(limits.max):
            raise NotFiniteError(
                f"scores of length {longest:.3g} leave the range of {limits.dtype}, in which scores of {source.dtype} rows are "
                "returned: rescale the data first, or convert it to float64"
            )
        return replace(fit, model=with_rounded_integers(model, source.dtype))
