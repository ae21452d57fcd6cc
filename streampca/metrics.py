"""Distances between two decompositions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ParameterError
from streampca.typing import FloatArray


def _pair(left: ArrayLike, right: ArrayLike) -> tuple[FloatArray, FloatArray]:
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if a.shape != b.shape:
        raise ParameterError(f"shapes {a.shape} and {b.shape} differ: expected two arrays of one shape")
    return a, b


def similarity(v: ArrayLike, w: ArrayLike) -> float:
    """Return the mean absolute cosine between matching eigenvectors.

    Parameters
    ----------
    v, w : array, shape (k, n_features) or (n_features,)
        Eigenvectors in rows; signs and lengths do not matter.

    Raises
    ------
    ParameterError
        If the shapes differ.

    References
    ----------
    Marukatat (2023), Tutorial on PCA and approximate PCA and approximate kernel PCA, eq. 66.
    """
    a, b = (np.atleast_2d(x) for x in _pair(v, w))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = np.abs(np.einsum("ij,ij->i", a, b))
    return float(np.divide(cosine, lengths, out=np.zeros_like(cosine), where=lengths > 0).mean())


def relative_difference(a: ArrayLike, b: ArrayLike) -> float:
    """Return the mean of |aᵢ − bᵢ| / aᵢ over eigenvalues, where `a` is the reference (Marukatat 2023, eq. 67).

    Both have shape ``(k,)``; `ParameterError` if their shapes differ or a reference is not positive.
    """
    reference, values = (np.atleast_1d(x) for x in _pair(a, b))
    if (reference <= 0).any():
        raise ParameterError("the reference eigenvalues must be positive")
    return float((np.abs(reference - values) / reference).mean())


def dot_product_error(X: ArrayLike, Z: ArrayLike) -> float:
    """Return the mean of |⟨xᵢ, xⱼ⟩ − ⟨zᵢ, zⱼ⟩| / |⟨xᵢ, xⱼ⟩| over pairs i ≤ j with a product that is not zero.

    Parameters
    ----------
    X : array, shape (n, d)
        Rows before a transform that should preserve dot products.
    Z : array, shape (n, q)
        The same rows after it.

    Raises
    ------
    ParameterError
        If `X` and `Z` are not two tables with the same number of rows.
    """
    x, z = np.asarray(X, dtype=np.float64), np.asarray(Z, dtype=np.float64)
    if x.ndim != 2 or z.ndim != 2 or len(x) != len(z):
        raise ParameterError(f"shapes {x.shape} and {z.shape}: expected two tables with the same number of rows")
    upper = np.triu_indices(len(x))
    before, after = (x @ x.T)[upper], (z @ z.T)[upper]
    nonzero = before != 0
    return float((np.abs(before - after)[nonzero] / np.abs(before[nonzero])).mean()) if nonzero.any() else 0.0


def principal_angles(V: ArrayLike, W: ArrayLike) -> FloatArray:
    """Return the principal angles in radians between the spans of the rows of `V` and `W`, ascending.

    Both may have any number of rows, with the same number of features (`ParameterError` otherwise); the number of angles
    is the smaller number of rows. Small angles are computed from the sine, so they are exact to rounding (Björck & Golub 1973; Knyazev &
    Argentati 2002).
    """
    from scipy.linalg import subspace_angles

    v, w = (np.atleast_2d(np.asarray(x, dtype=np.float64)) for x in (V, W))
    if v.shape[1] != w.shape[1]:
        raise ParameterError(f"vectors of {v.shape[1]} and {w.shape[1]} entries: expected the same number of features")
    angles: FloatArray = np.sort(subspace_angles(v.T, w.T))
    return angles
