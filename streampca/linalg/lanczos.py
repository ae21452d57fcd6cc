"""Leading eigenpairs of a large symmetric matrix that is given by its products with blocks of vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from streampca.errors import StreamPCAError
from streampca.linalg import tall_skinny as tall
from streampca.linalg.tiles import spread
from streampca.random import generator
from streampca.typing import FloatArray

_TOLERANCE = 1e-11  # residual of every wanted pair, relative to the first eigenvalue
_MAX_PRODUCTS = 400
_MAX_STAGNANT = 8
_SLAB_ROWS = 512  # few enough that 16 threads share 8,192 rows
_INDEPENDENT = (1e-5, 0.5)
"""Least distance of a column from those before it, relative to its length, for Cholesky QR in the first and in the second turn.

The first one leaves products of up to 1e-16 / 1e-5² between unit columns, which the second removes."""


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
    n_threads: int = 1,
) -> tuple[FloatArray, FloatArray]:
    """Return the `n_wanted` largest eigenvalues and their eigenvectors, shapes ``(k,)`` and ``(n_features, k)``.

    Block Lanczos with full reorthogonalisation and thick restart (Wu & Simon 2000, with blocks): a basis grows by one
    block of matrix products at a time; when it is full, the best Ritz vectors and the last block start the next one.
    The iteration stops when ‖Cv − θv‖ ≤ `tolerance` θ₁ for every wanted pair; 1e-11 suits products in float64. Products
    of lower accuracy may not reach it: after eight products that do not halve the largest residual, the iteration also
    stops at ‖Cv − θv‖ ≤ `stagnation_tolerance` θ₁. `StreamPCAError` if neither is reached after 400 products.

    The bits do not depend on `n_threads`, which share the work on the basis.
    """
    block, limit = block_size(n_wanted), basis_size(n_features, n_wanted)
    basis = np.empty((n_features, limit), order="F")
    image = np.empty((n_features, limit), order="F")
    products = np.empty((limit, limit))  # basisᵀ image; every iteration adds the columns of one block
    start = generator(seed, "krylov").standard_normal((n_features, block))
    fresh, _, _ = _orthonormal(start, basis[:, :0], n_threads)
    size, best, n_since = 0, np.inf, 0
    for _ in range(_MAX_PRODUCTS):
        width = min(fresh.shape[1], limit - size)
        new = slice(size, size + width)
        basis[:, new] = fresh[:, :width]
        image[:, new] = multiply(np.ascontiguousarray(fresh[:, :width]))
        size += width
        fresh, within, beyond = _orthonormal(image[:, new], basis[:, :size], n_threads)
        products[:size, new] = within
        products[new, : size - width] = within[: size - width].T
        if size < n_wanted:
            continue
        projected = products[:size, :size]
        values, small = np.linalg.eigh((projected + projected.T) / 2)
        values, small = values[::-1], small[:, ::-1]
        first = max(values[0], np.finfo(float).tiny)
        # All products but the last lie in the basis, so that the residuals are known before the Ritz vectors, up to rounding.
        largest = float(np.linalg.norm(beyond @ small[new, :n_wanted] / first, axis=0).max())
        if largest <= max(tolerance, stagnation_tolerance) or size == n_features:
            top = small[:, :n_wanted]
            ritz, largest = _ritz_vectors(basis[:, :size], image[:, :size], values[:n_wanted], top, first, n_threads)
        best, n_since = (largest, 0) if largest < best / 2 else (best, n_since + 1)
        if largest <= tolerance or size == n_features or (n_since >= _MAX_STAGNANT and largest <= stagnation_tolerance):
            return values[:n_wanted].copy(), ritz
        if size + block > limit and limit < n_features:
            n_kept = min(n_wanted + block, size - block)
            for columns in (basis, image):
                tall.times(columns[:, :size], small[:, :n_kept], n_threads, columns[:, :n_kept], _SLAB_ROWS)
            products[:n_kept, :n_kept] = np.diag(values[:n_kept])
            size = n_kept
    raise StreamPCAError(
        f"the iteration for {n_wanted} eigenpairs of a matrix of side {n_features} did not reach a residual of {tolerance:g} "
        f"after {_MAX_PRODUCTS} products: expected a spectrum with fewer nearly equal values; ask for fewer components"
    )


def _ritz_vectors(
    basis: FloatArray, image: FloatArray, values: FloatArray, top: FloatArray, first: float, n_threads: int
) -> tuple[FloatArray, float]:
    """Return the Ritz vectors ``basis @ top`` and the largest of their residuals, relative to `first`."""
    slabs = tall.slabs(len(basis), _SLAB_ROWS)
    ritz, squares = np.empty((len(basis), len(values)), order="F"), np.empty((len(slabs), len(values)))

    def work(i: int) -> None:
        rows = slabs[i]
        ritz[rows] = basis[rows] @ top
        squares[i] = np.square((image[rows] @ top - ritz[rows] * values) / first).sum(axis=0)

    spread(work, range(len(slabs)), n_threads)
    return ritz, float(np.sqrt(squares.sum(axis=0).max()))


def _orthonormal(vectors: FloatArray, basis: FloatArray, n_threads: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return Q, C and R with `vectors` = `basis` C + Q R, where the columns of Q are orthonormal and orthogonal to `basis`.

    Block Gram–Schmidt twice, which suffices (Giraud et al. 2005). A block is made orthonormal by the Cholesky factor of its products,
    twice (Yamamoto et al. 2015), because products are all that threads can share; and by Householder reflections where its columns
    are nearly dependent.
    """
    exponent = int(np.frexp(np.abs(vectors).max())[1])
    vectors = np.ldexp(vectors, -exponent)  # because squares leave the range of float64 long before the entries do
    within, beyond = np.zeros((basis.shape[1], vectors.shape[1])), np.eye(vectors.shape[1])
    for least in _INDEPENDENT:
        inside = tall.gram(basis, vectors, n_threads, _SLAB_ROWS)
        tall.subtract_product(vectors, basis, inside, n_threads, _SLAB_ROWS)
        triangle = _cholesky(tall.gram(vectors, vectors, n_threads, _SLAB_ROWS), least)
        if triangle is None:
            vectors, triangle = np.linalg.qr(vectors)
        else:
            inverse = np.asarray(np.linalg.inv(triangle), dtype=np.float64)
            tall.times(vectors, inverse, n_threads, vectors, _SLAB_ROWS)
        within += inside @ beyond
        beyond = triangle @ beyond
    return vectors, np.ldexp(within, exponent), np.ldexp(beyond, exponent)


def _cholesky(products: FloatArray, least: float) -> FloatArray | None:
    """Return the upper triangular R with RᵀR = `products`; None if a column is nearer than `least` of its length to those before."""
    try:
        triangle = np.asarray(np.linalg.cholesky(products).T, dtype=np.float64)
    except np.linalg.LinAlgError:
        return None
    independent = triangle.diagonal() > least * np.sqrt(products.diagonal())
    return triangle if independent.all() else None
