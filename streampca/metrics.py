"""Distances between two decompositions, and bounds of the change of eigenvalues when features change."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ParameterError
from streampca.typing import FloatArray, IntArray

__all__ = [
    "dot_product_error",
    "grouping_bound",
    "principal_angles",
    "relative_difference",
    "relative_differences",
    "replacement_bound",
    "similarities",
    "similarity",
]

Norm = Literal["frobenius", "spectral"]
"""Norms in which a change of the Gram matrix is bounded."""

_EPS = float(np.finfo(np.float64).eps)


def _pair(left: ArrayLike, right: ArrayLike) -> tuple[FloatArray, FloatArray]:
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if a.shape != b.shape:
        raise ParameterError(f"shapes {a.shape} and {b.shape} differ: expected two arrays of one shape")
    return a, b


def similarities(v: ArrayLike, w: ArrayLike) -> FloatArray:
    """Return the absolute cosine between matching eigenvectors, shape ``(k,)``: one value for each axis.

    Parameters
    ----------
    v, w : array, shape (k, n_features) or (n_features,)
        Eigenvectors in rows; signs and lengths do not matter.

    Returns
    -------
    array, shape (k,)
        The absolute cosine for each axis.

    Raises
    ------
    ParameterError
        If the shapes differ.

    References
    ----------
    Marukatat (2023), Tutorial on PCA and approximate PCA and approximate kernel PCA, eq. 66.

    Examples
    --------
    >>> import streampca as sp
    >>> sp.metrics.similarities([[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [3.0, 4.0]])
    array([1. , 0.8])
    """
    a, b = (np.atleast_2d(x) for x in _pair(v, w))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = np.abs(np.einsum("ij,ij->i", a, b))
    cosines: FloatArray = np.divide(cosine, lengths, out=np.zeros_like(cosine), where=lengths > 0)
    return cosines


def similarity(v: ArrayLike, w: ArrayLike) -> float:
    """Return the mean of `similarities`: the mean absolute cosine between matching eigenvectors.

    Parameters
    ----------
    v, w : array, shape (k, n)
        Matching eigenvectors, as `similarities` takes them.

    Returns
    -------
    float
        The mean absolute cosine.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> sp.metrics.similarity(np.eye(3), -np.eye(3))
    1.0
    """
    return float(similarities(v, w).mean())


def relative_differences(a: ArrayLike, b: ArrayLike) -> FloatArray:
    """Return ``|aᵢ − bᵢ| / aᵢ`` for every eigenvalue, shape ``(k,)``, where `a` is the reference (Marukatat 2023, eq. 67).

    Parameters
    ----------
    a, b : array, shape (k,)
        Reference eigenvalues, all positive, and others.

    Returns
    -------
    array, shape (k,)
        The relative difference of each eigenvalue.

    Raises
    ------
    ParameterError
        If the shapes differ, or if a reference eigenvalue is not positive.

    Examples
    --------
    >>> import streampca as sp
    >>> sp.metrics.relative_differences([4.0, 2.0], [3.0, 2.0])
    array([0.25, 0.  ])
    """
    reference, values = (np.atleast_1d(x) for x in _pair(a, b))
    if (reference <= 0).any():
        raise ParameterError("the reference eigenvalues must be positive")
    differences: FloatArray = np.abs(reference - values) / reference
    return differences


def relative_difference(a: ArrayLike, b: ArrayLike) -> float:
    """Return the mean of `relative_differences` over eigenvalues.

    Parameters
    ----------
    a, b : array, shape (k,)
        Reference eigenvalues, all positive, and others.

    Returns
    -------
    float
        The mean relative difference.

    Examples
    --------
    >>> import streampca as sp
    >>> sp.metrics.relative_difference([4.0, 2.0], [3.0, 2.0])
    0.125
    """
    return float(relative_differences(a, b).mean())


def dot_product_error(X: ArrayLike, Z: ArrayLike) -> float:
    """Return the mean of ``|⟨xᵢ, xⱼ⟩ − ⟨zᵢ, zⱼ⟩| / |⟨xᵢ, xⱼ⟩|`` over pairs i ≤ j with nonzero ⟨xᵢ, xⱼ⟩.

    Parameters
    ----------
    X : array, shape (n, d)
        Rows before a transform that should preserve dot products.
    Z : array, shape (n, q)
        The same rows after it.

    Returns
    -------
    float
        The mean absolute proportional error.

    Raises
    ------
    ParameterError
        If `X` and `Z` are not two tables with the same number of rows.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> sp.metrics.dot_product_error(np.eye(2), 2 * np.eye(2))
    3.0
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

    Small angles are computed from the sine, so they are exact to rounding (Björck & Golub 1973; Knyazev & Argentati 2002).

    Parameters
    ----------
    V, W : array, shape (k, n_features)
        Bases of two subspaces, in rows; they may differ in their number of rows.

    Returns
    -------
    array
        Angles in radians, smallest first; their number is the smaller number of rows.

    Raises
    ------
    ParameterError
        If the numbers of features differ.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> sp.metrics.principal_angles([[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]).round(4)
    array([1.5708])
    """
    from scipy.linalg import subspace_angles

    v, w = (np.atleast_2d(np.asarray(x, dtype=np.float64)) for x in (V, W))
    if v.shape[1] != w.shape[1]:
        raise ParameterError(f"vectors of {v.shape[1]} and {w.shape[1]} entries: expected the same number of features")
    angles: FloatArray = np.sort(subspace_angles(v.T, w.T))
    return angles


def replacement_bound(
    covariance: ArrayLike, features: ArrayLike, replacements: ArrayLike, norm: Norm = "frobenius"
) -> float:
    """Return a bound of the change of any eigenvalue if features are replaced by others.

    If feature a takes the values of feature b, the Gram matrix changes by D = x_a x_aᵀ − x_b x_bᵀ, and no eigenvalue
    changes by more than ‖D‖₂ ≤ ‖D‖_F = √(C_aa² + C_bb² − 2 C_ab²) (divided by the same number as the covariance C).
    For several replacements D is the sum of w_j x_j x_jᵀ, with w_j = 1 less the number of features that have the
    values of j afterwards.

    Parameters
    ----------
    covariance : array, shape (n_features, n_features)
        Covariance C of the features, as `PCA.get_covariance` returns it with all components, or accumulated by
        `streampca.accumulators.Covariance`.
    features : int or array of ints, shape (r,)
        Features that are replaced, each once.
    replacements : int or array of ints, shape (r,)
        Features whose original values replace them.
    norm : {"frobenius", "spectral"}
        ‖D‖_F, as published, in O(n_features²); or ‖D‖₂, which is smaller, in O(n_features³).

    Returns
    -------
    float
        The bound, in the unit of the eigenvalues of `covariance`.

    Raises
    ------
    ParameterError
        If the covariance is not a symmetric matrix, or a feature does not exist or is replaced twice.

    References
    ----------
    Marukatat (2023), Tutorial on PCA and approximate PCA and approximate kernel PCA, eqs. 26 to 35.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> round(sp.metrics.replacement_bound(np.diag([2.0, 1.0]), features=1, replacements=0), 3)
    2.236
    """
    matrix, unit = _symmetric(covariance)
    old, new = (np.atleast_1d(np.asarray(x)) for x in (features, replacements))
    d = len(matrix)
    if old.shape != new.shape or old.ndim != 1 or any(x.dtype.kind not in "iu" for x in (old, new)):
        raise ParameterError("features and replacements: expected one number of a feature, or as many of each")
    if len(np.unique(old)) < len(old) or any(((x < 0) | (x >= d)).any() for x in (old, new)):
        raise ParameterError(
            f"features and replacements: expected numbers from 0 to {d - 1}, each feature replaced once"
        )
    taken = np.arange(d)
    taken[old] = new
    weights = 1.0 - np.bincount(taken, minlength=d)
    used = np.flatnonzero(weights)
    weights, part = weights[used], matrix[np.ix_(used, used)]
    # Rounding of the squares and of their sum: it may not take away from a bound.
    rounding = 4 * _EPS * (len(used) + 1)
    if _norm(norm) == "frobenius":
        squares, signless = (w @ (part * part) @ w for w in (weights, np.abs(weights)))
        return unit * float(np.sqrt(max(squares, 0.0) + rounding * signless))
    squared, vectors = np.linalg.eigh(part)
    root = vectors * np.sqrt(np.maximum(squared, 0.0))
    values = np.linalg.eigvalsh(root.T @ (weights[:, None] * root))
    return unit * float(np.abs(values).max(initial=0.0) + rounding * (np.abs(weights) @ part.diagonal()))


def grouping_bound(covariance: ArrayLike, groups: ArrayLike, norm: Norm = "frobenius") -> float:
    """Return a bound of the change of any eigenvalue if features are replaced by the mean of their group.

    Let P be the projection onto vectors that are constant in every group (ΩΩᵀ of `streampca.transforms.Grouping`).
    The Gram matrix loses X (1 − P) Xᵀ, which is positive semi-definite. So eigenvalues decrease, and none by more
    than ‖(1 − P) C (1 − P)‖₂ ≤ ‖(1 − P) C (1 − P)‖_F. The bound is small if the features of a group are highly
    correlated and have similar variances.

    Parameters
    ----------
    covariance : array, shape (n_features, n_features)
        Covariance C of the features.
    groups : array of ints, shape (n_features,)
        The group of every feature, as `Grouping.groups` returns it.
    norm : {"frobenius", "spectral"}
        ‖·‖_F, in O(n_features²); or ‖·‖₂, in O(n_features³).

    Returns
    -------
    float
        The bound, in the unit of the eigenvalues of `covariance`.

    Raises
    ------
    ParameterError
        If the covariance is not a symmetric matrix, or if `groups` does not have one entry per feature.

    References
    ----------
    Marukatat (2023), Tutorial on PCA and approximate PCA and approximate kernel PCA, section 4.2: the bound of one
    replacement, here for groups.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> round(sp.metrics.grouping_bound(np.ones((4, 4)), [0, 0, 1, 1]), 9)  # equal features: their mean loses nothing
    0.0
    """
    (matrix, unit), labels = _symmetric(covariance), np.asarray(groups)
    if labels.shape != matrix.shape[:1]:
        raise ParameterError(f"groups of shape {labels.shape}: expected one group for each of {len(matrix)} features")
    _, members, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    left = matrix - _group_means(matrix, members, sizes)[members]
    left -= _group_means(left.T, members, sizes)[members].T
    rounding = 8 * _EPS * float(np.linalg.norm(matrix))
    if _norm(norm) == "frobenius":
        return unit * (float(np.linalg.norm(left)) + rounding)
    return unit * (float(np.abs(np.linalg.eigvalsh((left + left.T) / 2)).max(initial=0.0)) + rounding)


def _group_means(rows: FloatArray, members: IntArray, sizes: IntArray) -> FloatArray:
    """Return the mean of the rows of every group, ``(n_groups, n)``."""
    order = np.argsort(members, kind="stable")
    sums: FloatArray = np.add.reduceat(rows[order], np.cumsum(sizes) - sizes, axis=0)
    return sums / sizes[:, np.newaxis]


def _symmetric(covariance: ArrayLike) -> tuple[FloatArray, float]:
    """Return the matrix divided by a power of two near its largest entry, so that squares of entries are in range, and this power."""
    matrix = np.asarray(covariance, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size or not np.isfinite(matrix).all():
        raise ParameterError(f"a covariance of shape {matrix.shape}: expected a square matrix of finite numbers")
    if not np.allclose(matrix, matrix.T, rtol=1e-6, atol=1e-9 * float(np.abs(matrix).max())):
        raise ParameterError("a covariance that is not symmetric")
    exponent = int(np.frexp(np.abs(matrix).max())[1]) - 1
    return np.ldexp(matrix, -exponent), math.ldexp(1.0, exponent)


def _norm(name: str) -> str:
    if name not in get_args(Norm):
        raise ParameterError(f"norm={name!r}: expected one of {', '.join(get_args(Norm))}")
    return name
