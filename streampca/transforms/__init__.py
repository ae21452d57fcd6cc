"""Random and fixed linear maps to fewer features that preserve dot products.

For n rows of d features and q columns, a product with `GaussianProjection` takes 2 n d q flops and draws d q numbers.
`SparseSign` and `CountSketch` take 2 n d s flops for s entries in each row of the matrix. `Grouping` takes n d
additions; it is for smooth data and not random. The page "Transforms that preserve dot products" of the documentation
compares their errors.
"""

from streampca.transforms.base import SparseTransform, Transform
from streampca.transforms.grouping import Grouping
from streampca.transforms.random_maps import CountSketch, GaussianProjection, SparseSign

__all__ = ["CountSketch", "GaussianProjection", "Grouping", "SparseSign", "SparseTransform", "Transform"]
