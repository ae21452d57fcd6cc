"""Leading eigenpairs of a large symmetric matrix that is only known by its products with blocks of vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streampca.errors import StreamPCAError
from streampca.random import generator

FloatArray = NDArray[np.float64]

_TOLERANCE = 1e-11  # residual of every wanted pair, relative to the first eigenvalue
_MAX_PRODUCTS = 400
_PATIENCE = 8


def block_size(n_wanted: int) -> int:
    """Return how many vectors the matrix is multiplied with at once."""
    return max(16, min(64, n_wanted))


def basis_size(n_features: int, n_wanted: int) -> int:
    """Return the largest number of basis vectors that are kept; their products are kept as well."""
    block = block_size(n_wanted)
    return min(n_features, 2 * n_wanted + 8 * block)


def leading_eigenpairs(
    multiply: Callable[[FloatArray], FloatArray],
    n_features: int,
    n_wanted: int,
    *,
    seed: int = 0,
    tolerance: float = _TOLERANCE,
    settle: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Return the `n_wanted` largest eigenvalues and their eigenvectors, shapes ``(k,)`` and ``(n_features, k)``.

    Block Lanczos with full reorthogonalisation and thick restart (Wu & Simon 2000, with blocks): a basis grows by one
    block of matrix products at a time; when it is full, the best Ritz vectors and the last block start the next one.
    Every wanted pair ends with ‖Cv − θv‖ ≤ `tolerance` θ₁, or at the level of rounding; 1e-11 suits products in float64.
    Rougher products may not get there: where eight of them in a row do not halve the largest residual, one of `settle` θ₁
    will do.

    Raises
    ------
    StreamPCAError
        If that is not reached after 400 products.
    """
    block = block_size(n_wanted)
    limit = basis_size(n_features, n_wanted)
    basis = np.empty((n_features, limit), order="F")
    image = np.empty((n_features, limit), order="F")
    products = np.empty((limit, limit))  # basisᵀ image, of which every round adds the columns of one block
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
        gaps = np.linalg.norm((image[:, :size] @ top - ritz * values[:n_wanted]) / first, axis=0)
        largest = float(gaps.max())
        best, n_since = (largest, 0) if largest < best / 2 else (best, n_since + 1)
        if largest <= tolerance or size == n_features or (n_since >= _PATIENCE and largest <= settle):
            return values[:n_wanted].copy(), ritz
        if size + block > limit and limit < n_features:
            keep = min(n_wanted + block, size - block)
            fresh = _orthonormal(image[:, new], basis[:, :size])
            rotation = small[:, :keep]
            for array in (basis, image):  # row bands: the product needs no second copy of the basis
                for row in range(0, n_features, 4096):
                    array[row : row + 4096, :keep] = array[row : row + 4096, :size] @ rotation
            products[:keep, :keep] = np.diag(values[:keep])
            size = keep
        else:
            fresh = _orthonormal(image[:, new], basis[:, :size])
    raise StreamPCAError(
        f"the iteration for {n_wanted} eigenpairs of a matrix of side {n_features} did not reach a residual of {tolerance:g} "
        f"after {_MAX_PRODUCTS} products: expected a spectrum with fewer nearly equal values; ask for fewer components"
    )


def _orthonormal(vectors: FloatArray, basis: FloatArray) -> FloatArray:
    """Return an orthonormal basis of what `vectors` add to `basis`: twice is enough (Giraud et al. 2005)."""
    for _ in range(2):
        vectors = vectors - basis @ (basis.T @ vectors)
        vectors, _triangle = np.linalg.qr(vectors)
    return vectors
