"""The leading singular triplets of a basis with new rows below it: exactly, or by a few steps of an iteration."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.stacked import Stack, combine, of_images
from streampca.errors import StreamPCAError
from streampca.linalg.eigen import eigh_driver
from streampca.system.workspace import borrow

FloatArray = NDArray[np.float64]

_SMALL = 512  # up to here LAPACK's divide and conquer for all eigenpairs takes no longer than for some
_EIGEN_FLOPS = 4.0  # time of an eigenproblem of side s, in units of s**3 flops of a float64 product
_WORTH = 0.67  # share of the time of the exact solution below which the iteration is taken
_MENDED = 1e-3  # of a column may change when it is made orthogonal for the second time
_NOISE = 1e-14  # of the first row of a basis: shorter rows have no direction
# What the iteration drops is 1.01 (eigenvalues i^-1) to 1.25 times (white noise, i^-0.5) the first Ritz value that it drops.
_RITZ_MARGIN = 1.5


def truncate(stack: Stack, *, exact: bool, shrink: bool, random: np.random.Generator) -> float:
    """Replace the basis of `stack`, l rows, by the leading l rows of ΣVᵀ of the stack M = UΣVᵀ.

    Exact: from the eigenproblem of M Mᵀ or of Mᵀ M, whichever takes less time. Where the iteration takes less than two
    thirds of that, it is used: a block Krylov method in the space of the rows (Musco & Musco 2015, algorithm 2), started
    by the old basis and random sums of the new rows; two products with M Mᵀ, and one more where the basis is not full.

    Parameters
    ----------
    stack : Stack
        Its basis is written to.
    exact : bool
        Never iterate.
    shrink : bool
        Take the first squared singular value that is dropped from all that are kept (Frequent Directions: Ghashami,
        Liberty, Phillips & Woodruff 2016); implies `exact`.
    random : numpy.random.Generator
        Draws the signs of the sums.

    Returns
    -------
    float
        How far MᵀM minus the product of the new basis with itself is from 0 in the spectral norm: the first squared
        singular value that is dropped; for the iteration 1.5 times its Ritz value, an estimate that was never too small.
    """
    n_basis, d = stack.basis.shape
    n_rows, itemsize = len(stack.rows), stack.rows.dtype.itemsize
    way = fastest(n_basis, n_rows, d, itemsize, exact=exact or shrink)
    if way == "iteration":
        return _iterate(stack, random)
    if way == "features":
        values, vectors = _leading(stack.of_features(), n_basis + 1)
        dropped = float(values[n_basis]) if d > n_basis else 0.0
        kept = values[:n_basis] - dropped if shrink else values[:n_basis]
        np.multiply(np.sqrt(kept)[:, None], vectors[:, :n_basis].T, out=stack.basis)
        return dropped
    values, left = _leading(stack.of_rows(), n_basis + 1)
    dropped = float(values[n_basis])
    if shrink:
        kept = np.divide(dropped, values, out=np.ones_like(values), where=values > 0)
        left *= np.sqrt(1 - kept)
    stack.project(left[:, :n_basis], stack.basis)
    return dropped


def fastest(n_basis: int, n_rows: int, n_features: int, itemsize: int, *, exact: bool) -> str:
    """Return ``"rows"``, ``"features"`` or ``"iteration"``, by the number of flops; float32 ones count half."""
    short, d, k, n = itemsize / 8, float(n_features), float(n_basis), float(n_rows)
    p, q = k + 1 + n, float(n_images(n_basis))
    rows = d * (short * n * (n + 512 + 4 * k) + (2 + 2 * short) * k**2) + _EIGEN_FLOPS * p**3
    features = d**2 * (short * (n + 512) + 2 * k) + _EIGEN_FLOPS * d**3
    iteration = short * d * (8 * q * p + 4 * q**2 + 2 * q * k) + (16 * p + 4 * _EIGEN_FLOPS * q) * q**2
    best = min(rows, features)
    if not exact and 4 * q < p and iteration < _WORTH * best:
        return "iteration"
    return "rows" if rows <= features else "features"


def n_images(n_basis: int) -> int:
    """Return how many vectors one product of the iteration takes."""
    return n_basis + max(10, n_basis // 8)


def truncation_bytes(n_basis: int, n_rows: int, n_features: int, itemsize: int, *, exact: bool) -> tuple[int, int, int]:
    """Return the scratch memory in bytes that `truncate` takes: for images, for a square matrix, and for all else.

    That of a thread for its tiles comes on top (`tile_bytes`).
    """
    p, d, q = n_basis + 1 + n_rows, n_features, n_images(n_basis)
    way = fastest(n_basis, n_rows, n_features, itemsize, exact=exact)
    if way == "features":
        return 0, 8 * d * d, 8 * d * (d if d <= _SMALL else n_basis + 1)
    if way == "rows":
        return (n_basis + 2) * d * itemsize, 8 * p * p, 8 * p * (p if p <= _SMALL else 3 * n_basis + 3)
    return 2 * q * d * itemsize, 0, 8 * q * (9 * p + 16 * q)


def _iterate(stack: Stack, random: np.random.Generator) -> float:
    n_basis, d = stack.basis.shape
    q = n_images(n_basis)
    images = borrow("adaptive images", (2 * q, d), stack.rows.dtype)
    first, second = images[:q], images[q:]
    norms = np.sqrt(np.einsum("ij,ij->i", stack.basis, stack.basis))
    kept = int(np.logical_and.accumulate(norms > _NOISE * norms[0]).sum())
    np.divide(stack.basis[:kept], norms[:kept, None], out=second[:kept], casting="same_kind")
    stack.signed_sums(random.choice([-1.0, 1.0], len(stack.rows)), second[kept:])
    left = _orthonormal(stack.times(second))
    if kept < n_basis:
        stack.project(left, second)
        left = _orthonormal(stack.times(second))
    stack.project(left, first)
    stack.project(_orthonormal(stack.times(first), left), second)
    values, turn = _leading(of_images(images, stack.n_threads), n_basis + 1)
    combine(turn[:, :n_basis], images, stack.basis, stack.n_threads)
    return _RITZ_MARGIN * float(values[n_basis])


def _orthonormal(columns: FloatArray, against: FloatArray | None = None) -> FloatArray:
    """Return orthonormal columns that span `columns`, ``(p, q)``, and are orthogonal to those of `against`.

    Cholesky QR, twice (Yamamoto, Nakatsukasa, Yanagisawa & Fukaya 2015), at the speed of products; by reflections
    where columns are too dependent for it, which then are completed by others.
    """
    found = columns
    for _ in range(2):
        if against is not None:
            found = found - against @ (against.T @ found)
        norms = np.sqrt(np.einsum("ij,ij->j", found, found))
        found = found / np.where(norms > 0, norms, 1.0)
        square = found.T @ found
        try:
            factor = np.linalg.cholesky(square)
        except np.linalg.LinAlgError:
            break
        found = found @ np.linalg.inv(factor).T
    else:
        # What had to be mended the second time was little, so nothing is left to mend.
        if np.abs(square - np.eye(len(square))).max() < _MENDED and (norms > 1 - _MENDED).all():
            return found
    if against is None:
        return np.asarray(np.linalg.qr(columns)[0])
    # Reflections keep columns that are orthonormal already, but for their signs.
    return np.asarray(np.linalg.qr(np.hstack([against, columns]))[0][:, against.shape[1] :])


def _leading(matrix: FloatArray, n_wanted: int) -> tuple[FloatArray, FloatArray]:
    """Return the largest eigenvalues, none negative, and their eigenvectors in columns, of a lower triangle; overwrites it."""
    from scipy.linalg import LinAlgError, eigh

    side = len(matrix)
    n_wanted = min(n_wanted, side)
    some = side > _SMALL and 2 * n_wanted < side
    try:
        values, vectors = eigh(
            matrix.T,
            lower=False,
            overwrite_a=True,
            check_finite=False,
            subset_by_index=(side - n_wanted, side - 1) if some else None,
            driver=eigh_driver(side, some),
        )
    except LinAlgError as error:
        raise StreamPCAError(f"LAPACK could not solve the eigenproblem of side {side}: {error}") from error
    return np.maximum(values[::-1][:n_wanted], 0.0), vectors[:, ::-1][:, :n_wanted]
