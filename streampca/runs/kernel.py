"""What a configured run of kernel PCA does in its own way: its parameters, its model, and what its manifest says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import ConfigError, NotAvailableError
from streampca.estimators import KernelPCA
from streampca.linalg.selection import Threshold
from streampca.runs.config import KernelConfig, KernelPCAConfig, RunConfig
from streampca.runs.config.values import ThresholdValue as ConfigThreshold
from streampca.solvers.kernel.fit import fit_kernel, plan_kernel
from streampca.solvers.kernel.parameters import KernelParameters
from streampca.solvers.kernel.plan import KernelPlan
from streampca.solvers.kernel.result import KernelFit
from streampca.sources import Source

if TYPE_CHECKING:
    from streampca.execution.task import ProgressCallback
    from streampca.kernels import Kernel
    from streampca.models.kernel import KernelModel

__all__ = [
    "KernelFit",
    "KernelParameters",
    "bytes_to_write",
    "fit_kernel_run",
    "kernel_estimator_of",
    "kernel_parameters_of",
    "kernel_result",
    "kernel_warnings",
    "plan_kernel_run",
]


def kernel_parameters_of(config: RunConfig) -> KernelParameters:
    """Return the parameters of the fit that `config` asks for.

    Raises
    ------
    NotAvailableError
        For what is not carried out for kernel PCA: scaling, missing values, weights.
    ConfigError
        For a state, which kernel PCA does not keep.
    """
    preprocess = config.preprocess
    for key, default in (
        ("scale", False),
        ("missing", "error"),
        ("missing_scores", "conditional"),
        ("sample_weight", None),
        ("feature_weight", None),
    ):
        if getattr(preprocess, key) != default:
            raise NotAvailableError(
                f"preprocess.{key}: {getattr(preprocess, key)} is not available for kind: kernel_pca: prepare the rows before"
            )
    if config.output.state:
        raise ConfigError("output.state: true, but kernel PCA keeps no state: set output.state: false")
    threads = config.resources.threads
    return kernel_estimator_of(config)._parameters(None if threads == "auto" else int(threads))


def kernel_estimator_of(config: RunConfig) -> KernelPCA:
    """Return the estimator that `config` describes, not fitted."""
    model = config.model
    if not isinstance(model, KernelPCAConfig):
        raise ConfigError(f"model.kind: {model.kind}: expected kernel_pca")
    k, sampling = model.n_components, model.sampling
    given = {
        "n_components": Threshold(k.threshold) if isinstance(k, ConfigThreshold) else k,
        "kernel": _kernel_of(model),
        "sampling": sampling if isinstance(sampling, str) else np.array(sampling, dtype=np.int64),
    }
    in_kernel = ("gamma", "degree", "coef0", "kernel_params")
    named = {name: value for name, value in config.estimator_parameters().items() if name not in in_kernel}
    return KernelPCA(**(named | given))


def _kernel_of(model: KernelPCAConfig) -> Kernel:
    """Return the weighted sum of the kernels of the file."""
    terms = [_term_of(kernel, model) for kernel in model.kernel]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _term_of(kernel: KernelConfig, model: KernelPCAConfig) -> Kernel:
    from streampca.kernels import RBF, kernel_of

    gamma = model.gamma if kernel.gamma is None else kernel.gamma
    degree = model.degree if kernel.degree is None else kernel.degree
    coef0 = model.coef0 if kernel.coef0 is None else kernel.coef0
    term = RBF(sigma=kernel.sigma) if kernel.sigma is not None else kernel_of(kernel.name, gamma, degree, coef0)
    return term if kernel.weight == 1.0 else term * kernel.weight


def plan_kernel_run(config: RunConfig, source: Source, parameters: KernelParameters, client: Any) -> KernelPlan:
    """Return the plan of `config` with its alternatives."""
    output = config.output
    return plan_kernel(source, parameters, scores=output.scores, report=output.report, client=client, alternatives=True)


def fit_kernel_run(
    source: Source,
    parameters: KernelParameters,
    plan: Any,
    *,
    keep_rows: int = 0,
    progress: ProgressCallback | None = None,
) -> KernelFit:
    """Carry out `plan`."""
    return fit_kernel(source, parameters, plan, keep_rows=keep_rows, progress=progress)


def bytes_to_write(config: RunConfig, plan: KernelPlan) -> int:
    """Return the size of model and scores; where the data decides how many components, that of one."""
    k = plan.n_components or 1
    m, d, n, dtype = plan.n_landmarks, plan.n_features, plan.n_samples, np.dtype(plan.dtype)
    itemsize = 4 if dtype.kind == "f" and dtype.itemsize <= 4 else 8
    return 8 * m * (d + k + 2) + (itemsize * k * n if config.output.scores else 0)


def kernel_result(model: KernelModel) -> dict[str, Any]:
    """Return what the manifest says of the result."""
    return {
        "n_components": model.n_components,
        "method": model.method,
        "kernel": model.kernel.to_dict(),
        "sampling": model.sampling,
        "n_landmarks": len(model.landmarks),
        "landmark_indices": None if model.landmark_indices is None else model.landmark_indices[:1000].tolist(),
        "trace": model.total,
        "eigenvalues": model.eigenvalues.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "components_for": {str(share): model.components_for(share) for share in (0.9, 0.95, 0.99)},
    }


def kernel_warnings(model: KernelModel) -> list[str]:
    """Return what limits the use of a result, or makes it other than was asked for."""
    found = []
    if model.certificate.get("definite") is False:
        found.append(
            "the kernel is not positive semi-definite: negative eigenvalues are left out, shares of the trace may exceed 1, and "
            + (
                "eigenvalues come without a certificate"
                if model.method == "nystrom"
                else "distances in its space are not proper ones"
            )
        )
    found += model.concerns
    return found
