"""The parameters of the estimators, each stated once: name, default, domain, sentences; and those of a fit, checked.

The modules here import neither numpy nor any other heavy package, because the configuration of a run reads them.
"""

from streampca.parameters.kernel_pca import KERNEL_PCA_PARAMETERS
from streampca.parameters.pca import PCA_PARAMETERS, Parameters
from streampca.parameters.statement import Parameter, checked, documented

__all__ = ["KERNEL_PCA_PARAMETERS", "PCA_PARAMETERS", "Parameter", "Parameters", "checked", "documented"]
