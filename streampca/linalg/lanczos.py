"""Leading eigenpairs of a large symmetric matrix that is given by its products with blocks of vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streampca.errors import StreamPCAError
from streampca.random import generator
from streampca.typing import FloatArray

_TOLERANCE = 1e-11  # residual of every wanted pair, relative to the first eigenvalue
_MAX_PRODUCTS = 400
_MAX_STAGNANT = 8


def block_size(n_wanted: int) -> int:
    """Return the number of vectors of one matrix product."""
    return max(16, min(64, n_wanted))


def basis_size(n_features: int, n_wanted: int) -> int:
    """Return the largest number of basis vectors in memory; their products with the matrix take as much again."""
    block = block_size(n_wanted)
    return min(n_features, 2 * n_wanted + 8 * block)


def leading_eigenpairs(
    multiply: Callable[[FloatArray], FloatArray],
    n_features: int,
    n_wanted: int,
    *,
    seed: int = 0,
    tolerance: float = _TOLERANCE,
    stagnation_tolerance: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Return the `n_wanted` largest eigenvalues and their eigenvectors, shapes ``(k,)`` and ``(n_features, k)``.

    Block Lanczos with full reorthogonalisation and thick restart (Wu & Simon 2000, with blocks): a basis grows by one
    block of matrix products at a time; when it is full, the best Ritz vectors and the last block start the next one.
    The iteration stops when ‖Cv − θv‖ ≤ `tolerance` θ₁ for every wanted pair; 1e-11 suits products in float64. Products
    of lower accuracy may not reach it: after eight products that do not halve the largest residual, the iteration also
    stops at ‖Cv − θv‖ ≤ `stagnation_tolerance` θ₁. `StreamPCAError` if neither is reached after 400 products.
    """
    block, limit = block_size(n_wanted), basis_size(n_features, n_wanted)
    basis = np.empty((n_features, limit), order="F")
    image = np.empty((n_features, limit), order="F")
    products = np.empty((limit, limit))  # basisᵀ image; every iteration adds the columns of one block
    start = generator(seed, "krylov").standard_normal((n_features, block))
    fresh = _orthonormal(start, basis[:, :0])
    size, best, n_since = 0, np.inf, 0
    for _ in range(_MAX_PRODUCTS):
        width = min(fresh.shape[1], limit - size)
        new = slice(size, size + width)
        basis[:, new] = fresh[:, :width]
        image[:, new] = multiply(np.ascontiguousarray(fresh[:, :width]))
        size += width
        products[:size, new] = basis[:, :size].T @ image[:, new]
        products[new, : size - width] = products[: size - width, new].T
        if size < n_wanted:
            fresh = _orthonormal(image[:, new], basis[:, :size])
            continue
        projected = products[:size, :size]
        values, small = np.linalg.eigh((projected + projected.T) / 2)
        values, small = values[::-1], small[:, ::-1]
        top = small[:, :n_wanted]
        ritz = basis[:, :size] @ top
        first = max(values[0], np.finfo(float).tiny)
        residuals = np.linalg.norm((image[:, :size] @ top - ritz * values[:n_wanted]) / first, axis=0)
        largest = float(residuals.max())
        best, n_since = (largest, 0) if largest < best / 2 else (best, n_since + 1)
        if largest <= tolerance or size == n_features or (n_since >= _MAX_STAGNANT and largest <= stagnation_tolerance):
            return values[:n_wanted].copy(), ritz
        if size + block > limit and limit < n_features:
            n_kept = min(n_wanted + block, size - block)
            fresh = _orthonormal(image[:, new], basis[:, :size])
            _rotate(basis, small[:, :n_kept])
            _rotate(image, small[:, :n_kept])
            products[:n_kept, :n_kept] = np.diag(values[:n_kept])
            size = n_kept
        else:
            fresh = _orthonormal(image[:, new], basis[:, :size])
    raise StreamPCAError(
        f"the iteration for {n_wanted} eigenpairs of a matrix of side {n_features} did not reach a residual of {tolerance:g} "
        f"after {_MAX_PRODUCTS} products: expected a spectrum with fewer nearly equal values; ask for fewer components"
    )


def _rotate(columns: FloatArray, rotation: FloatArray) -> None:
    """Replace the first columns by ``columns[:, :p] @ rotation``, (p, q), in bands of rows that need no second copy."""
    p, q = rotation.shape
    for row in range(0, len(columns), 4096):
        columns[row : row + 4096, :q] = columns[row : row + 4096, :p] @ rotation


def _orthonormal(vectors: FloatArray, basis: FloatArray) -> FloatArray:
    """Return an orthonormal basis of the components of `vectors` orthogonal to `basis`.

    Block Gram–Schmidt twice, which suffices (Giraud et al. 2005).
    """
    for _ in range(2):
        vectors = vectors - basis @ (basis.T @ vectors)
        vectors, _triangle = np.linalg.qr(vectors)
    return vectors
