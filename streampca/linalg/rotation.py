"""Rotations of loadings towards simple structure: varimax and promax.

Loadings are the columns √λⱼ vⱼ of L, (n_features, k). A rotated pattern is A = L M. With standardised scores F₀ of the
components, the scores F = F₀ M⁻ᵀ have the same product F Aᵀ = F₀ Lᵀ and the correlations Φ = (Mᵀ M)⁻¹.

References
----------
Kaiser (1958), The varimax criterion for analytic rotation in factor analysis, Psychometrika 23:187–200: the criterion, the
angle of a plane and the normalisation of rows. Hendrickson & White (1964), Promax: a quick method for rotation to oblique simple
structure, British Journal of Statistical Psychology 17:65–70.
"""

from __future__ import annotations

import numpy as np

from streampca.errors import DataError, ParameterError
from streampca.typing import FloatArray

_LARGEST_ANGLE = 1e-10
"""Radians; a sweep of smaller rotations is the last one."""
_MOST_SWEEPS = 500
_ALLOWED_ANGLE = 1e-6
"""Radians; largest rotation of the last sweep that is a result."""
_MOST_CONDITION = 1e8
"""Of the matrix of promax, whose rounding errors grow with it; correlations of scores are 1 up to rounding beyond."""


def varimax(loadings: FloatArray, *, normalize: bool = True) -> FloatArray:
    """Return the orthogonal M, ``(k, k)``, for which the squares of ``M.T @ loadings`` have the largest variance in each row.

    The criterion is Σⱼ [Σᵢ aᵢⱼ⁴ / d − (Σᵢ aᵢⱼ² / d)²]. Planes are rotated one after another by the angle that maximises it
    (Kaiser 1958), tan 4φ = (2 Σuv − 2 Σu Σv / d) / (Σ(u² − v²) − ((Σu)² − (Σv)²) / d) for u = x² − y², v = 2 x y,
    until no angle exceeds 1e-10. Cost about 10 d k² flops a sweep, ten sweeps or so.

    Parameters
    ----------
    loadings : array, shape (k, d)
        A row for each component.
    normalize : bool
        Divide the loadings of each feature by the root of their sum of squares, its communality, for the criterion. Features whose loadings
        are rounding, below d ε of the largest communality, do not count.

    Raises
    ------
    DataError
        If angles above 1e-6 are left after 500 sweeps.
    """
    k, d = loadings.shape
    rotated: FloatArray = loadings / (np.abs(loadings).max(initial=0.0) or 1.0)  # fourth powers are taken
    if normalize:
        lengths = np.sqrt(np.einsum("ij,ij->j", rotated, rotated))
        known = lengths > d * np.finfo(np.float64).eps * lengths.max(initial=0.0)
        rotated = np.divide(rotated, lengths, out=np.zeros_like(rotated), where=known)
    matrix, largest = np.eye(k), 0.0
    for _ in range(_MOST_SWEEPS):
        largest = 0.0
        for i in range(k - 1):
            for j in range(i + 1, k):
                angle = _angle(rotated[i], rotated[j], d)
                if abs(angle) > _LARGEST_ANGLE:
                    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
                    rotated[[i, j]] = turn @ rotated[[i, j]]
                    matrix[:, [i, j]] = matrix[:, [i, j]] @ turn.T
                largest = max(largest, abs(angle))
        if largest <= _LARGEST_ANGLE:
            return matrix
    if largest > _ALLOWED_ANGLE:
        raise DataError(
            f"varimax does not converge: {_MOST_SWEEPS} sweeps over all pairs of {k} components still rotate by {largest:.1g}; rotate fewer "
            "components"
        )
    return matrix


def _angle(x: FloatArray, y: FloatArray, d: int) -> float:
    """Return the angle in radians, of modulus at most π/4, by which x and y are rotated in their plane."""
    u, v = x * x - y * y, 2 * x * y
    numerator = 2 * (u @ v) - 2 * u.sum() * v.sum() / d
    denominator = u @ u - v @ v - (u.sum() ** 2 - v.sum() ** 2) / d
    scale = u @ u + v @ v
    if np.hypot(numerator, denominator) <= 1e-14 * scale:  # the criterion does not depend on the angle
        return 0.0
    return float(np.arctan2(numerator, denominator) / 4)


def promax(loadings: FloatArray, rotation: FloatArray, *, power: float = 4) -> FloatArray:
    """Return the oblique M, ``(k, k)``, whose pattern comes nearest to that of `rotation` with contrasts raised to `power`.

    With the pattern B of `rotation`, that of varimax, the target is |B|^power with the signs of B, and M the regression of the target
    on the loadings, scaled so that the scores have unit variance (Hendrickson & White 1964).

    Parameters
    ----------
    loadings : array, shape (k, d)
        A row for each component; linearly independent.
    rotation : array, shape (k, k)
        What `varimax` returns.
    power : float
        Exponent, above 1; 4 is customary.

    Raises
    ------
    ParameterError
        If the targets of the components are linearly dependent up to rounding, as for a large `power`, which leaves one loading of
        each, and for many components of features in mixed units.
    """
    # Unit vectors, because variances of components may differ by more than float64 has digits: squares of them have none left.
    lengths, pattern = np.linalg.norm(loadings, axis=1), rotation.T @ loadings
    if not lengths.all() or not pattern.any(axis=1).all():
        none = max((lengths == 0).sum(), (~pattern.any(axis=1)).sum())
        raise ParameterError(f"{none} of {len(lengths)} components have no loadings: rotate fewer")
    # Each component is divided by its largest loading, which changes no column of M but its length: powers of small ones underflow.
    target = np.sign(pattern) * np.abs(pattern / np.abs(pattern).max(axis=1, keepdims=True)) ** power
    oblique: FloatArray = np.linalg.lstsq((loadings / lengths[:, None]).T, target.T)[0] / lengths[:, None]
    oblique /= np.linalg.norm(oblique, axis=0)
    if not np.linalg.cond(oblique) < _MOST_CONDITION:
        raise ParameterError(
            f"power={power:g}: the contrasts of the {len(pattern)} components are linearly dependent: expected a smaller power, fewer components, "
            "or features of like variances (scale=True)"
        )
    oblique *= np.linalg.norm(np.linalg.inv(oblique), axis=1)
    return oblique


def ordered(matrix: FloatArray, loadings: FloatArray) -> FloatArray:
    """Return `matrix` with its columns ordered by the sum of squares of the pattern, and the largest entry of each positive."""
    pattern = matrix.T @ loadings
    order = np.argsort(-np.einsum("ij,ij->i", pattern, pattern), kind="stable")
    largest = np.take_along_axis(pattern, np.abs(pattern).argmax(axis=1)[:, None], axis=1)[:, 0]
    result: FloatArray = (matrix * np.where(largest < 0, -1.0, 1.0))[:, order]
    return result
