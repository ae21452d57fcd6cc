"""The scikit-learn face of the line."""

from streampca.estimators.pca import PCA, load, merge
from streampca.estimators.kernel_pca import KernelPCA

__all__ = ["PCA", "KernelPCA", "load", "merge"]
