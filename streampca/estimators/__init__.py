"""The scikit-learn face of the line."""

from streampca.estimators.continuing import merge
from streampca.estimators.kernel_pca import KernelPCA
from streampca.estimators.loading import load
from streampca.estimators.pca import PCA

__all__ = ["PCA", "KernelPCA", "load", "merge"]
