"""Names that parameters may have, as types for signatures; `typing.get_args` lists them."""

from __future__ import annotations

from typing import Literal, TypeAlias

Solver: TypeAlias = Literal["auto", "covariance", "gram", "qr", "sketch", "adaptive"]
Sketch: TypeAlias = Literal["auto", "gaussian", "count_sketch", "sparse_sign", "grouping"]
Recovery: TypeAlias = Literal["nystrom", "conversion"]
Missing: TypeAlias = Literal["error", "drop_rows", "mean", "pairwise"]
MissingScores: TypeAlias = Literal["conditional", "mean"]
KernelName: TypeAlias = Literal["linear", "rbf", "poly", "sigmoid", "tanh", "laplacian", "cosine"]
Method: TypeAlias = Literal["auto", "exact", "nystrom", "nystrom_extension", "empirical_map"]
Sampling: TypeAlias = Literal["auto", "uniform", "diagonal", "column_norm", "rpcholesky"]
Auto: TypeAlias = Literal["auto"]
BlockScale: TypeAlias = Literal["block"]
