"""Products of tall float64 matrices in fixed slabs of rows, with the same bits for any number of threads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from streampca.errors import NotFiniteError, StreamPCAError
from streampca.linalg.tiles import spread
from streampca.system.workspace import borrow
from streampca.typing import Array, FloatArray

_SLAB_ROWS = 2048
_SLABS_PER_THREAD = 4  # products in memory before they are added; does not affect the bits
_UNCERTAIN = 1e-12  # a column whose independent component is shorter than this fraction of its length is rounding
_WELL_CONDITIONED = 1e-5  # smallest diagonal entry of a Cholesky factor that is inverted
_MAX_ROUNDS = 10
_SAFE_EXPONENT = 200  # squares of numbers up to 2**200, summed, stay far inside float64


def slabs(n_rows: int, slab_rows: int = _SLAB_ROWS) -> list[slice]:
    """Return the slabs of rows of every product; sums over them have other bits for another `slab_rows`."""
    edges = [*range(0, n_rows, slab_rows), n_rows]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def gram(a: FloatArray, b: FloatArray, n_threads: int = 1, slab_rows: int = _SLAB_ROWS) -> FloatArray:
    """Return ``a.T @ b``, ``(p, q)``, of arrays ``(d, p)`` and ``(d, q)``: products of slabs, added in order.

    2 d p q flops, half of them where `a` is `b`. Memory: 4 (p, q) products a thread.
    """
    blocks = slabs(len(a), slab_rows)
    total = np.zeros((a.shape[1], b.shape[1]))
    width = _SLABS_PER_THREAD * max(1, n_threads)
    for first in range(0, len(blocks), width):
        window = blocks[first : first + width]
        products: list[FloatArray] = [total] * len(window)

        def multiply(i: int, window: list[slice] = window, products: list[FloatArray] = products) -> None:
            left = _float64(a[window[i]])
            products[i] = left.T @ (left if a is b else _float64(b[window[i]]))

        spread(multiply, range(len(window)), n_threads)
        for product in products:
            total += product
    return total


def times(
    a: FloatArray,
    small: FloatArray,
    n_threads: int = 1,
    out: FloatArray | None = None,
    slab_rows: int = _SLAB_ROWS,
) -> FloatArray:
    """Return ``a @ small``, ``(d, r)``, of arrays ``(d, q)`` and ``(q, r)`` in 2 d q r flops.

    `out` may be `a` itself or, where r < q, its first r columns: a slab is read completely before it is overwritten.
    """
    out = np.empty((len(a), small.shape[1])) if out is None else out
    small = np.ascontiguousarray(small)

    def multiply(slab: slice) -> None:
        product = borrow("tall product", (slab.stop - slab.start, small.shape[1]), np.float64)
        np.matmul(_float64(a[slab]), small, out=product)
        out[slab] = product

    spread(multiply, slabs(len(a), slab_rows), n_threads)
    return out


def subtract_product(
    out: FloatArray, a: FloatArray, small: FloatArray, n_threads: int = 1, slab_rows: int = _SLAB_ROWS
) -> None:
    """Subtract ``a @ small`` from `out`, ``(d, r)``, in place."""

    def subtract(slab: slice) -> None:
        product = borrow("tall product", (slab.stop - slab.start, small.shape[1]), np.float64)
        np.matmul(_float64(a[slab]), small, out=product)
        out[slab] -= product

    spread(subtract, slabs(len(out), slab_rows), n_threads)


def add_multiple(out: FloatArray, a: FloatArray, factor: float, n_threads: int = 1) -> None:
    """Add ``factor * a`` to `out`, both ``(d, q)``, in place."""

    def add(slab: slice) -> None:
        product = borrow("tall product", out[slab].shape, np.float64)
        np.multiply(a[slab], factor, out=product)
        out[slab] += product

    spread(add, slabs(len(out)), n_threads)


def scaled_copy(
    a: FloatArray, factors: FloatArray | float, n_threads: int = 1, out: FloatArray | None = None
) -> FloatArray:
    """Return ``a * factors`` as float64, ``(d, q)``, with rows contiguous; `out` may be `a`."""
    target = np.empty(a.shape) if out is None else out

    def scale(slab: slice) -> None:
        np.multiply(a[slab], factors, out=target[slab])

    spread(scale, slabs(len(a)), n_threads)
    return target


def peaks(a: FloatArray, n_threads: int = 1) -> FloatArray:
    """Return the largest modulus in each column, ``(q,)``; raise `NotFiniteError` for NaN or infinity."""
    blocks = slabs(len(a))
    peak_of_slab = np.zeros((len(blocks), a.shape[1]))

    def largest(i: int) -> None:
        block = a[blocks[i]]
        np.maximum(block.max(axis=0, initial=0.0), -block.min(axis=0, initial=0.0), out=peak_of_slab[i])

    spread(largest, range(len(blocks)), n_threads)
    peak: FloatArray = peak_of_slab.max(axis=0, initial=0.0)
    if not np.isfinite(peak).all():
        column = int(np.flatnonzero(~np.isfinite(peak))[0])
        raise NotFiniteError(
            f"column {column} of a matrix of {a.shape} holds NaN or infinity: expected finite products; "
            "rescale the features if their squares leave the range of float64"
        )
    return peak


def power_of_two(peak: FloatArray) -> FloatArray:
    """Return the powers of two that scale each `peak` to [1/2, 1), and 1 for 0; a multiplication by them is exact.

    Clipped to the range of float64, so a subnormal peak stays below 1/2.
    """
    exponent = np.frexp(peak)[1]
    factors: FloatArray = np.ldexp(1.0, np.clip(-exponent, -1022, 1023))
    return np.where(peak > 0, factors, 1.0)


def needs_scaling(peak: FloatArray) -> bool:
    """Return whether sums of squares of columns with these peaks could leave the range of float64."""
    exponent = np.frexp(peak)[1]
    return bool((np.abs(exponent[peak > 0]) > _SAFE_EXPONENT).any())


def orthonormal(
    vectors: FloatArray, against: FloatArray | None = None, *, n_threads: int = 1, overwrite: bool = False
) -> FloatArray:
    """Return an orthonormal basis, ``(d, r)``, of the span of `vectors`, orthogonal to `against`.

    Cholesky-QR twice (Yamamoto et al. 2015): two Gram matrices and two products, 6 d q² flops, all in products of
    matrices. Where the Cholesky factorisation of the Gram matrix of unit columns fails or is ill-conditioned, the
    columns are first rotated to the eigenvectors of that matrix and rescaled, repeatedly if necessary. Columns that
    differ from the span of the others, and of `against`, by less than about 1e-12 of their length are dropped, so r ≤ q.
    If none is dropped, column j of the result depends only on the columns up to j, as in Gram–Schmidt, unless the
    columns were rotated.

    Parameters
    ----------
    vectors : float64 array, shape (d, q)
        Rows contiguous for speed; any scale.
    against : float64 array, shape (d, p), optional
        Orthonormal columns; block Gram–Schmidt twice (Giraud et al. 2005), 8 d p q flops.
    n_threads : int
        Threads that share the slabs; the bits do not depend on it.
    overwrite : bool
        Work in `vectors`, so that the result is a view of it; otherwise in one copy.

    Raises
    ------
    NotFiniteError
        If `vectors` holds NaN or infinity.
    """
    peak = peaks(vectors, n_threads)
    target = vectors if overwrite else None
    if needs_scaling(peak) or not overwrite:
        factors: FloatArray | float = power_of_two(peak) if needs_scaling(peak) else 1.0
        vectors = scaled_copy(vectors, factors, n_threads, out=target)
    if against is None or against.shape[1] == 0:
        return _independent(vectors, None, n_threads)
    lengths = np.sqrt(np.diagonal(gram(vectors, vectors, n_threads)))
    subtract_product(vectors, against, gram(against, vectors, n_threads), n_threads)
    vectors = _independent(vectors, lengths, n_threads)
    subtract_product(vectors, against, gram(against, vectors, n_threads), n_threads)
    return _independent(vectors, None, n_threads)


def _independent(vectors: FloatArray, lengths: FloatArray | None, n_threads: int) -> FloatArray:
    """Make the columns orthonormal in place; `lengths` are their lengths before a projection that cancelled digits.

    `uncertainty` bounds the length of the rounding in each column; columns up to that length are dropped.
    """
    uncertainty: FloatArray | None = None if lengths is None else _UNCERTAIN * lengths
    for _ in range(_MAX_ROUNDS):
        matrix = gram(vectors, vectors, n_threads)
        norms = np.sqrt(np.diagonal(matrix))
        uncertainty = _UNCERTAIN * norms if uncertainty is None else uncertainty
        retained = np.flatnonzero(norms > uncertainty)
        if len(retained) == 0:
            return vectors[:, :0]
        scale = 1.0 / norms[retained]
        unit = matrix[np.ix_(retained, retained)] * scale[:, None] * scale
        rotation, close = _rotation(unit)
        small = np.zeros((vectors.shape[1], len(retained)))
        small[retained] = scale[:, None] * rotation
        # Dropped columns may precede retained ones, so a slab must be read as a whole.
        vectors = times(vectors, small, n_threads, out=vectors[:, : len(retained)])
        if close:
            return vectors
        uncertainty = np.sqrt((uncertainty**2) @ (small**2))
    raise StreamPCAError(
        f"{vectors.shape[1]} vectors of {len(vectors)} entries are not orthonormal after {_MAX_ROUNDS} rounds: "
        "expected at most 4; report the data that did this"
    )


def _rotation(unit: FloatArray) -> tuple[FloatArray, bool]:
    """Return the matrix that orthonormalises unit columns with this Gram matrix, and whether one application suffices."""
    close = bool(np.linalg.norm(unit - np.eye(len(unit))) < 0.1)
    try:
        factor = np.asarray(np.linalg.cholesky(unit), dtype=np.float64)
    except np.linalg.LinAlgError:
        factor = np.zeros_like(unit)
    if np.diagonal(factor).min() > _WELL_CONDITIONED:
        return lower_inverse(factor).T, close
    return np.linalg.eigh(unit)[1][:, ::-1], False


def lower_inverse(factor: FloatArray) -> FloatArray:
    """Return the inverse of a lower triangular matrix."""
    from scipy.linalg import solve_triangular

    inverse: FloatArray = solve_triangular(factor, np.eye(len(factor)), lower=True, check_finite=False)
    return inverse


def _float64(block: Array) -> FloatArray:
    return block.astype(np.float64, copy=False)
