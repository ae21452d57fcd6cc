"""Estimators with the interface of scikit-learn; `loading` and `merging` load and merge saved ones."""

from streampca.estimators.kernel_pca import KernelPCA
from streampca.estimators.pca import PCA
from streampca.estimators.rotated import RotatedPCA

__all__ = ["PCA", "KernelPCA", "RotatedPCA"]
