"""Every tolerance of the tests, as a formula: constant x n x eps x norm."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

EPS = float(np.finfo(np.float64).eps)

EIGENVALUES_FLOAT64 = 1e-10
"""Promised error of an eigenvalue relative to the first, products in float64."""
EIGENVALUES_FLOAT32 = 1e-6
"""The same with products in float32."""
ANGLE = 1e-6
"""Promised angle in radians between leading subspaces where the gap allows it."""


def work_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the type of products of values of `dtype`: float32 for bool, 8-bit integers, float16 and float32, else float64."""
    dtype = np.dtype(dtype)
    narrow = dtype.kind == "b" or dtype.itemsize == 1 or (dtype.kind == "f" and dtype.itemsize <= 4)
    return np.dtype(np.float32 if narrow else np.float64)


def work_eps(dtype: DTypeLike) -> float:
    """Return the rounding unit of products of `dtype`."""
    return float(np.finfo(work_dtype(dtype)).eps)


def eigenvalues(dtype: DTypeLike) -> float:
    """Return the promised error of eigenvalues relative to the first."""
    return EIGENVALUES_FLOAT64 if work_dtype(dtype) == np.float64 else EIGENVALUES_FLOAT32


def mean(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the error of a mean of each column: 4 n eps_work x spread + 4 eps x size, ``(n_features,)``."""
    values = rows.astype(np.float64)
    spread = np.ptp(values, axis=0) if len(values) else np.zeros(values.shape[1])
    size = np.abs(values).max(axis=0, initial=0.0)
    return 4 * len(values) * work_eps(rows.dtype) * spread + 4 * EPS * size


def scatter(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the error of each entry (i, j) of a scatter: 8 n eps_work x spread_i x spread_j x n."""
    values = rows.astype(np.float64)
    spread = np.ptp(values, axis=0) if len(values) else np.zeros(values.shape[1])
    return 8 * len(values) ** 2 * work_eps(rows.dtype) * np.outer(spread, spread)


def second_moment(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return the error of each entry of a sum of outer products about zero: as `scatter`, with size for spread."""
    size = np.abs(rows.astype(np.float64)).max(axis=0, initial=0.0)
    return 8 * len(rows) ** 2 * work_eps(rows.dtype) * np.outer(size, size) + scatter(rows)


def correlation(rows: NDArray[Any]) -> float:
    """Return the error of an entry of a correlation matrix: 16 n² eps_work (spread² ≤ 2 n variances)."""
    return 16 * len(rows) ** 2 * work_eps(rows.dtype)


def largest_gap_count(values: NDArray[np.float64], precision: float, most: int = 10) -> int:
    """Return the largest k ≤ `most` whose subspace is determined to `ANGLE`: gap > 10 precision λ₁ / angle; 0 if none."""
    following = np.append(values[1:], 0.0) if len(values) else values
    gaps = values - following
    good = np.flatnonzero(gaps[:most] > 10 * precision * values[0] / ANGLE)
    return int(good[-1]) + 1 if len(good) and values[0] > 0 else 0


def orthonormality(n_features: int) -> float:
    """Return how far V Vᵀ may be from the identity."""
    return 100 * n_features * EPS


def residual(n_features: int) -> float:
    """Return how large ‖Cv − λv‖ / λ₁ may be: the iteration's stopping rule, or the rounding of LAPACK."""
    return max(2e-11, 100 * n_features * EPS)


def product(rows: NDArray[Any], matrix: NDArray[np.float64], dtype: DTypeLike) -> NDArray[np.float64]:
    """Return the error of each entry of rows @ matrix in `dtype`, matrix rounded to it: 2 (d + 2) eps |rows| @ |matrix|."""
    size = np.abs(rows.astype(np.float64)) @ np.abs(matrix)
    return 2 * (rows.shape[1] + 2) * float(np.finfo(dtype).eps) * size


def kernel(kernel: Any, X: NDArray[Any], Y: NDArray[Any], dtype: DTypeLike) -> float:
    """Return the error of a kernel value: 2 (d + 20) eps x what it changes by with its argument, times its argument.

    The argument is γ x·y + c, of size s ≤ γ ‖x‖ ‖y‖ + |c|, or a distance, s ≤ γ (‖x‖ + ‖y‖)² or γ (‖x‖₁ + ‖y‖₁); it is
    rounded by about d eps s. Its power p changes by at most p max(s, 1)^(p - 1), the other functions by 1 times that.
    """
    d, total = X.shape[1], 0.0
    wide = [rows.astype(np.float64) for rows in (X, Y)]
    for part in getattr(kernel, "terms", (kernel,)):
        factor, own = getattr(part, "factor", 1.0), getattr(part, "kernel", part)
        order = 1 if own.name == "laplacian" else 2
        one, other = (np.linalg.norm(rows, ord=order, axis=1).max() for rows in wide)
        gamma = getattr(own, "gamma", 1.0)
        gamma = 1.0 / d if gamma is None else gamma
        sizes = {"rbf": gamma * (one + other) ** 2, "laplacian": gamma * (one + other), "cosine": 1.0}
        size = max(1.0, sizes.get(own.name, gamma * one * other + abs(getattr(own, "coef0", 0.0))))
        power = float(getattr(own, "degree", 1.0))
        total += factor * max(1.0, power) * size ** max(1.0, power)
    return 2 * (d + 20) * float(np.finfo(dtype).eps) * total
