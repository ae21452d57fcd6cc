"""Random and fixed linear maps to fewer features that preserve dot products."""

from streampca.transforms.base import SparseTransform, Transform
from streampca.transforms.count_sketch import CountSketch
from streampca.transforms.gaussian import GaussianProjection
from streampca.transforms.grouping import Grouping
from streampca.transforms.sparse_sign import SparseSign

__all__ = ["CountSketch", "GaussianProjection", "Grouping", "SparseSign", "SparseTransform", "Transform"]
