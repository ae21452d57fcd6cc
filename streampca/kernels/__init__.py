"""Kernel functions as frozen objects, evaluated on two blocks of rows at the speed of a matrix product."""

from streampca.kernels.base import Kernel, Needs, Prepared, Scaled, Standardised, Sum
from streampca.kernels.choosing import check_kernel, kernel_from_dict, kernel_of
from streampca.kernels.functions import RBF, Cosine, Custom, Laplacian, Linear, Polynomial, Sigmoid

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
