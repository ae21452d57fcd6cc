"""The parameters of the estimators, each stated once: name, default, domain, sentences; and those of a fit, checked.

The modules here import neither numpy nor any other heavy package, because the configuration of a run reads them.
"""

from streampca.parameters.analyses import COUPLED_PARAMETERS, FACTOR_PARAMETERS
from streampca.parameters.kernel_pca import KERNEL_PCA_PARAMETERS
from streampca.parameters.pca import PCA_PARAMETERS, Parameters
from streampca.parameters.statement import Parameter, checked, documented

PARAMETERS = {
    "pca": PCA_PARAMETERS,
    "kernel_pca": KERNEL_PCA_PARAMETERS,
    "mca": COUPLED_PARAMETERS,
    "cca": COUPLED_PARAMETERS,
    "factor_analysis": FACTOR_PARAMETERS,
}
"""Statements of the parameters of every estimator, by the value of ``model.kind``."""

__all__ = [
    "COUPLED_PARAMETERS",
    "FACTOR_PARAMETERS",
    "KERNEL_PCA_PARAMETERS",
    "PARAMETERS",
    "PCA_PARAMETERS",
    "Parameter",
    "Parameters",
    "checked",
    "documented",
]
