"""The parameters of the estimators, each stated once: name, default, domain, sentences; and those of a fit, checked.

The modules here import neither numpy nor any other heavy package, because the configuration of a run reads them.
"""

from streampca.parameters.analyses import COUPLED_PARAMETERS, FACTOR_PARAMETERS
from streampca.parameters.kernel_pca import KERNEL_PCA_PARAMETERS
from streampca.parameters.kinds import KINDS, ModelKind
from streampca.parameters.pca import PCA_PARAMETERS, Parameters
from streampca.parameters.statement import Parameter, checked, documented

__all__ = [
    "COUPLED_PARAMETERS",
    "FACTOR_PARAMETERS",
    "KERNEL_PCA_PARAMETERS",
    "KINDS",
    "PCA_PARAMETERS",
    "ModelKind",
    "Parameter",
    "Parameters",
    "checked",
    "documented",
]
