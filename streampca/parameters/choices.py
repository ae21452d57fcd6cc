"""Names that parameters may have, as types for signatures; `typing.get_args` lists them."""

from __future__ import annotations

from typing import Literal, TypeAlias

Solver: TypeAlias = Literal["auto", "covariance", "gram", "qr", "sketch", "adaptive"]
EXACT_SOLVERS = {
    "covariance": "the d × d matrix",
    "gram": "the n × n matrix of samples, for wide data, which auto takes where there are at most half as many samples as features",
    "qr": "a d × d triangular factor, two to four times slower, for singular values below 1e-7 of the first",
}
"""What exact solvers work with, by name."""
APPROXIMATE_SOLVERS = {
    "sketch": "products of the covariance with `sketch_size` vectors",
    "adaptive": "a basis of that rank which follows the rows in shuffled order, the better answer of one pass",
}
"""What solvers with errors, and a certificate of them, work with, by name."""
Sketch: TypeAlias = Literal["auto", "gaussian", "count_sketch", "sparse_sign", "grouping"]
Recovery: TypeAlias = Literal["nystrom", "conversion"]
Missing: TypeAlias = Literal["error", "drop_rows", "mean", "pairwise"]
MissingScores: TypeAlias = Literal["conditional", "mean"]
KernelName: TypeAlias = Literal["linear", "rbf", "poly", "sigmoid", "tanh", "laplacian", "cosine"]
Method: TypeAlias = Literal["auto", "exact", "nystrom", "nystrom_extension", "empirical_map"]
Sampling: TypeAlias = Literal["auto", "uniform", "diagonal", "column_norm", "rpcholesky"]
Auto: TypeAlias = Literal["auto"]
ScaleName: TypeAlias = Literal["block", "poisson", "patterson"]
Rotation: TypeAlias = Literal["varimax", "promax"]
