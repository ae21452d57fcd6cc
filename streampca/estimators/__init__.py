"""Estimators with the interface of scikit-learn, and loading and merging of saved ones."""

from streampca.estimators.kernel_pca import KernelPCA
from streampca.estimators.loading import load
from streampca.estimators.merging import merge
from streampca.estimators.pca import PCA

__all__ = ["PCA", "KernelPCA", "load", "merge"]
