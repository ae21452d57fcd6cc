"""Kernel functions as frozen objects, evaluated on two blocks of rows at the speed of a matrix product."""

from streampca.kernels.base import Kernel, Needs, Prepared, Scaled, Sum
from streampca.kernels.checks import check_kernel
from streampca.kernels.choosing import kernel_from_dict, kernel_of
from streampca.kernels.custom import Custom
from streampca.kernels.laplacian import Laplacian
from streampca.kernels.products import Cosine, Linear, Polynomial, Sigmoid
from streampca.kernels.rbf import RBF
from streampca.kernels.standardised import Standardised

__all__ = [
    "RBF",
    "Cosine",
    "Custom",
    "Kernel",
    "Laplacian",
    "Linear",
    "Needs",
    "Polynomial",
    "Prepared",
    "Scaled",
    "Sigmoid",
    "Standardised",
    "Sum",
    "check_kernel",
    "kernel_from_dict",
    "kernel_of",
]
