"""Pivots of a kernel matrix by randomly pivoted Cholesky, in blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampca.errors import NotFiniteError
from streampca.kernels.base import Kernel
from streampca.kernels.rows import FloatArray
from streampca.system.workspace import borrow

_FLOOR = 1e-12
"""Share of κ(x, x) below which what is left of it is rounding: x lies in the span of the pivots."""
_BLOCKS = 8, 128


def random_pivots(
    kernel: Kernel, rows: FloatArray, weights: FloatArray, n_pivots: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return the numbers of rows that are drawn one by one in proportion to weight times residual, ascending.

    The residual of a row is what its κ(x, x) has left after projection onto the rows drawn before: randomly pivoted
    Cholesky (Chen, Epperly, Tropp & Webber 2023, algorithm 2.1). Rows are proposed a block at a time, in proportion to the
    residuals at its start, and each is accepted with the share of its residual that is left at its turn, which gives
    exactly the same distribution and leaves all large products to BLAS (Epperly, Tropp & Webber 2024, "Embrace
    rejection"). N m² + N m c flops for N rows and m pivots, c the cost of a kernel value; 8 N m bytes of scratch.

    Parameters
    ----------
    kernel : Kernel
        Positive semi-definite, or nearly.
    rows : array, shape (n_rows, n_features)
    weights : array, shape (n_rows,)
        Above 0.
    n_pivots : int
        Fewer are returned where the kernel matrix has a smaller rank, to 1e-12 of its diagonal.
    random : numpy.random.Generator

    Raises
    ------
    NotFiniteError
        If κ(x, x) is not finite.
    """
    n_rows, n_pivots = len(rows), min(n_pivots, len(rows))
    diagonal = kernel.diagonal(rows)
    if not np.isfinite(diagonal).all():
        raise NotFiniteError(
            "κ(x, x) is not finite for some rows: rescale the features, or take a smaller gamma or degree"
        )
    residual = np.maximum(diagonal, 0.0)
    floor = _FLOOR * residual
    prepared = kernel.prepare(rows, np.float64)
    factor = borrow("cholesky factor", (n_pivots, n_rows), np.float64)
    pivots = np.empty(n_pivots, dtype=np.int64)
    count, low, high = 0, *_BLOCKS
    size = max(low, min(high, n_pivots // 4))
    while count < n_pivots:
        chances = np.cumsum(residual * weights)
        if not chances[-1] > 0:
            break
        proposed = np.searchsorted(chances, random.random(size) * chances[-1], side="right")
        proposed = np.minimum(proposed, np.flatnonzero(residual)[-1])
        own = factor[:count, proposed]
        within = prepared(rows[proposed], borrow("cholesky values", (size, n_rows), np.float64))
        small = within[:, proposed] - own.T @ own
        accepted = _accepted(small, residual[proposed], floor[proposed], random.random(size))[: n_pivots - count]
        chosen = proposed[accepted]
        if not len(chosen):
            # Rounding, or a kernel that is not definite: what the block holds has no residual left.
            residual[proposed] = 0
            continue
        new = factor[count : count + len(chosen)]
        np.subtract(within[accepted], own[:, accepted].T @ factor[:count], out=new)
        new[...] = _inverse_root(small[np.ix_(accepted, accepted)]) @ new
        residual -= np.einsum("ij,ij->j", new, new)
        residual[residual <= floor] = 0
        residual[chosen] = 0
        pivots[count : count + len(chosen)] = chosen
        count += len(chosen)
    return np.sort(pivots[:count])


def _accepted(small: FloatArray, before: FloatArray, floor: FloatArray, uniform: FloatArray) -> list[int]:
    """Return which rows of a block are accepted one after the other; `small` is the residual matrix of the block."""
    rest, accepted = small.copy(), []
    for i in range(len(rest)):
        left = rest[i, i]
        if left > floor[i] and uniform[i] * before[i] < left:
            accepted.append(i)
            column = rest[i + 1 :, i] / np.sqrt(left)
            rest[i + 1 :, i + 1 :] -= column[:, None] * column
    return accepted


def _inverse_root(matrix: FloatArray) -> FloatArray:
    """Return L⁻¹ of ``matrix`` = L Lᵀ, by way of the matrix with unit diagonal: rows of kernels may differ by powers of 10."""
    scale = 1 / np.sqrt(matrix.diagonal())
    inverse: FloatArray = np.linalg.inv(np.linalg.cholesky(matrix * scale[:, None] * scale))
    inverse *= scale
    return inverse
