"""Linear maps from many features to few that keep dot products: as a matrix, by slices of it, or applied to rows."""

from streampca.transforms.base import SparseTransform, Transform
from streampca.transforms.count_sketch import CountSketch
from streampca.transforms.gaussian import GaussianProjection
from streampca.transforms.grouping import Grouping
from streampca.transforms.sparse_sign import SparseSign

__all__ = ["CountSketch", "GaussianProjection", "Grouping", "SparseSign", "SparseTransform", "Transform"]
