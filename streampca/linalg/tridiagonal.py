"""All eigenvalues and some eigenvectors of a symmetric matrix by one reduction to tridiagonal form."""

from __future__ import annotations

import numpy as np

from streampca.typing import FloatArray

_SAFE = (1e-140, 1e70)
"""Largest entries of matrices that LAPACK reduces without scaling, with a margin."""


def all_values_and_leading_vectors(matrix: FloatArray, k: int) -> tuple[FloatArray, FloatArray] | None:
    """Return all eigenvalues of a symmetric matrix, largest first, and the eigenvectors of the first `k`, ``(side, k)``.

    The steps of LAPACK's ``syevr`` (reduction, bisection, inverse iteration) with all eigenvalues of the tridiagonal matrix
    beside: ``syevr`` would reduce the matrix a second time for them, which is most of its work. `matrix`, at least 2 x 2 and in
    C order, is overwritten. None where bisection or inverse iteration did not converge.
    """
    from scipy.linalg.lapack import dstebz, dstein, dsterf, dsytrd, dsytrd_lwork

    d = len(matrix)
    largest = max(float(matrix.max()), -float(matrix.min()))
    exponent = int(np.frexp(largest)[1]) if largest and not _SAFE[0] <= largest <= _SAFE[1] else 0
    if exponent:
        np.ldexp(matrix, -exponent, out=matrix)
    reflectors, diagonal, beside, factors, _ = dsytrd(
        matrix.T, lower=1, lwork=int(dsytrd_lwork(d, lower=1)[0]), overwrite_a=1
    )
    values, failed = dsterf(diagonal, beside)
    by_index = 2
    found, leading, block, splits, failed_leading = dstebz(diagonal, beside, by_index, 0, 0, d - k + 1, d, 0, "B")
    if failed or failed_leading or found != k:
        return None
    vectors, failed = dstein(diagonal, beside, leading[:k], block, splits)
    if failed:
        return None
    order = np.argsort(leading[:k], kind="stable")[::-1]
    return np.ldexp(values[::-1], exponent), _rotated(reflectors, factors, vectors[:, order])


def _rotated(reflectors: FloatArray, factors: FloatArray, vectors: FloatArray) -> FloatArray:
    """Return Q `vectors` for the Householder reflectors of Q that ``dsytrd`` leaves below the first subdiagonal."""
    from scipy.linalg.lapack import dormqr

    d = len(reflectors)
    # Reflector i is column i from row i + 1 on. To pass them without a copy, the columns begin one entry later in memory, so
    # that the last entry of each is the first one of the next column, which is set to 0; and the first row goes last.
    reflectors[0, 1:] = 0.0
    shifted = reflectors.ravel(order="K")[1 : 1 + d * (d - 1)].reshape((d, d - 1), order="F")
    rolled = np.asfortranarray(np.roll(vectors, -1, axis=0))
    _, work, _ = dormqr("L", "N", shifted, factors, rolled, -1)
    rotated, _, _ = dormqr("L", "N", shifted, factors, rolled, int(work[0]), overwrite_c=1)
    return np.roll(rotated, 1, axis=0)
