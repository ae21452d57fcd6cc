"""Randomly pivoted Cholesky of a kernel matrix, in blocks."""

from __future__ import annotations

import numpy as np

from streampca.errors import NotFiniteError
from streampca.kernels.base import Kernel
from streampca.system.workspace import borrow
from streampca.typing import FloatArray, IntArray

_FLOOR = 1e-12
"""Fraction of κ(x, x) below which a residual is rounding, so that x lies in the span of the pivots."""
_BLOCKS = 8, 128


def random_pivots(
    kernel: Kernel, rows: FloatArray, weights: FloatArray, n_pivots: int, random: np.random.Generator
) -> IntArray:
    """Return the indices of at most `n_pivots` rows drawn by randomly pivoted Cholesky, ascending.

    Rows are drawn one by one in proportion to weight times residual, where the residual of a row is its κ(x, x) after
    projection onto the rows drawn before (Chen, Epperly, Tropp & Webber 2023, algorithm 2.1). The rows are proposed in
    blocks, in proportion to the residuals at the start of the block, and each is accepted with probability residual at
    its turn / residual at the start, which gives exactly the same distribution with all large products in BLAS (Epperly,
    Tropp & Webber 2024, "Embrace rejection"). N m² + N m c flops for N rows and m pivots, c the cost of a kernel value;
    8 N m bytes of scratch. Fewer pivots are returned where the kernel matrix has a smaller rank, to 1e-12 of its diagonal.

    Parameters
    ----------
    kernel : Kernel
        Positive semi-definite, or nearly.
    rows, weights : arrays, shapes (n_rows, n_features) and (n_rows,)
        Rows, and their positive weights.
        `NotFiniteError` if κ(x, x) of a row is not finite.
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
    count, size = 0, max(_BLOCKS[0], min(_BLOCKS[1], n_pivots // 4))
    while count < n_pivots:
        cumulative = np.cumsum(residual * weights)
        if not cumulative[-1] > 0:
            break
        proposed = np.searchsorted(cumulative, random.random(size) * cumulative[-1], side="right")
        proposed = np.minimum(proposed, np.flatnonzero(residual)[-1])
        columns = factor[:count, proposed]
        within = prepared(rows[proposed], borrow("cholesky values", (size, n_rows), np.float64))
        small = within[:, proposed] - columns.T @ columns
        accepted = _accepted(small, residual[proposed], floor[proposed], random.random(size))[: n_pivots - count]
        chosen = proposed[accepted]
        if not len(chosen):
            # Rounding, or an indefinite kernel: the rows of the block have no residual.
            residual[proposed] = 0
            continue
        new = factor[count : count + len(chosen)]
        np.subtract(within[accepted], columns[:, accepted].T @ factor[:count], out=new)
        new[...] = _inverse_root(small[np.ix_(accepted, accepted)]) @ new
        residual -= np.einsum("ij,ij->j", new, new)
        residual[residual <= floor] = 0
        residual[chosen] = 0
        pivots[count : count + len(chosen)] = chosen
        count += len(chosen)
    return np.sort(pivots[:count])


def _accepted(small: FloatArray, before: FloatArray, floor: FloatArray, uniform: FloatArray) -> list[int]:
    """Return the positions of the rows of a block that are accepted in turn; `small` is the residual matrix of the block."""
    schur, accepted = small.copy(), []
    for i in range(len(schur)):
        residual = schur[i, i]
        if residual > floor[i] and uniform[i] * before[i] < residual:
            accepted.append(i)
            column = schur[i + 1 :, i] / np.sqrt(residual)
            schur[i + 1 :, i + 1 :] -= column[:, None] * column
    return accepted


def _inverse_root(matrix: FloatArray) -> FloatArray:
    """Return L⁻¹ for ``matrix`` = L Lᵀ, scaled to a unit diagonal first, because kernel values may differ by powers of 10."""
    scale = 1 / np.sqrt(matrix.diagonal())
    inverse: FloatArray = np.linalg.inv(np.linalg.cholesky(matrix * scale[:, None] * scale))
    inverse *= scale
    return inverse
