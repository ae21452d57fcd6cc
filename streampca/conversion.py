"""Conversion between eigenvectors of the Gram matrix and of the covariance matrix.

With X = U S Vᵀ (rows are samples, centred): X Xᵀ U = U S² and Xᵀ X V = V S². One product with the data, divided by
the singular values, turns either set of eigenvectors into the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import ParameterError
from streampca.typing import Array, FloatArray

__all__ = ["components_from_gram", "gram_vectors_from_components"]


def components_from_gram(X: ArrayLike, gram_vectors: ArrayLike, gram_values: ArrayLike) -> FloatArray:
    """Return the components V = Xᵀ U S⁻¹ in rows, shape ``(k, n_features)``.

    Parameters
    ----------
    X : array, shape (n_samples, n_features)
        Centred rows, or some of their columns; the components then have these columns only.
    gram_vectors : array, shape (n_samples, k)
        Orthonormal eigenvectors U of X Xᵀ, in columns.
    gram_values : array, shape (k,)
        Eigenvalues S² of these eigenvectors, all positive.

    Raises
    ------
    ParameterError
        If shapes do not match, or if an eigenvalue is not positive, since X then does not determine its component.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> X = np.random.default_rng(0).normal(size=(4, 10))
    >>> values, vectors = np.linalg.eigh(X @ X.T)
    >>> V = sp.conversion.components_from_gram(X, vectors, values)
    >>> np.allclose(V @ V.T, np.eye(4))
    True
    """
    x, u, roots = _checked(X, gram_vectors, gram_values, 0)
    return (x.T @ u / roots).T


def gram_vectors_from_components(X: ArrayLike, components: ArrayLike, gram_values: ArrayLike) -> FloatArray:
    """Return the eigenvectors U = X V S⁻¹ of X Xᵀ in columns, shape ``(n_samples, k)``.

    Parameters
    ----------
    X : array, shape (n_samples, n_features)
        Centred rows, or some of them; U then has these rows only.
    components : array, shape (k, n_features)
        Orthonormal eigenvectors V of Xᵀ X, in rows.
    gram_values : array, shape (k,)
        The eigenvalues S² that both matrices share: n − ddof times the explained variances.

    Raises
    ------
    ParameterError
        If shapes do not match, or if an eigenvalue is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> X = np.random.default_rng(0).normal(size=(10, 4))
    >>> values, vectors = np.linalg.eigh(X.T @ X)
    >>> U = sp.conversion.gram_vectors_from_components(X, vectors.T, values)
    >>> np.allclose(U.T @ U, np.eye(4))
    True
    """
    x, v, roots = _checked(X, np.asarray(components).T, gram_values, 1)
    return x @ v / roots


def _checked(X: ArrayLike, vectors: ArrayLike, values: ArrayLike, axis: int) -> tuple[Array, FloatArray, FloatArray]:
    x, v, s = (
        np.asarray(X, dtype=np.float64),
        np.asarray(vectors, dtype=np.float64),
        np.asarray(values, dtype=np.float64),
    )
    if x.ndim != 2 or v.ndim != 2 or s.ndim != 1 or v.shape != (x.shape[axis], len(s)):
        raise ParameterError(
            f"shapes {x.shape}, {v.shape} and {s.shape} of data, eigenvectors and eigenvalues do not agree"
        )
    if not (s > 0).all():
        raise ParameterError(
            f"eigenvalue {int(np.flatnonzero(~(s > 0))[0])} is not positive: its vector cannot be converted"
        )
    return x, v, np.sqrt(s)
