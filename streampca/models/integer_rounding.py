"""Integers that float64 does not hold: what their rounding may change of a result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streampca.errors import DataError
from streampca.models.pca import PCAModel
from streampca.typing import FloatArray

_WHOLE = 2.0**53
"""Largest number up to which float64 holds every integer."""


def with_integer_rounding(model: PCAModel) -> PCAModel:
    """Return `model` with the rounding of integers beyond 2**53 in its certificate, where its rows are such.

    A feature with a mean m beyond that is rounded by up to δ = ulp(m), so that rows move by up to ‖δ‖, in the units of the
    matrix, and a singular value by ε = ‖δ‖ √(W / (W − ddof)) / √λ₁ of the first (Weyl), an eigenvalue by 2 ε + ε². Integers beyond it
    about a smaller mean vary by so much that their rounding is that of any float64 number. Where a part of the rows is removed, m is
    the largest number that is fitted to a row; the mean of groups far from zero may be zero.

    Raises
    ------
    DataError
        If that is as much as the first eigenvalue.
    """
    dtype = np.dtype(model.source.get("dtype", "float64"))
    if dtype.kind not in "iu" or dtype.itemsize < 8:
        return model
    level = _level(model)
    far = np.flatnonzero(level > _WHOLE)
    if not len(far):
        return model
    step = np.spacing(level)
    factors = np.ones(len(step)) if model.weights is None else model.weights.copy()
    if model.scale is not None:  # what is constant after rounding may have varied by as much
        constant = np.intersect1d(model.constant_features, far)
        factors[constant] = 1 / step[constant]
    length = float(np.linalg.norm((step * factors)[far])) * np.sqrt(model.weight / (model.weight - model.ddof))
    first = float(model.explained_variance[0])
    share = length / np.sqrt(first) if first > 0 else np.inf
    change = float(2 * share + share**2)
    if change >= 1:
        raise DataError(
            f"{len(far)} feature(s), first: {far[0]}, hold integers near {float(level[far[0]]):.3g}, which float64 rounds by up to "
            f"{step[far[0]]:g}: as much as they vary. Subtract a whole number near its mean from each feature first, as in X - X[0]"
        )
    given = model.certificate
    squared = given["eigen_solver"] != "lapack svd"
    trusted = given["trusted_above"] + change if squared else max(given["trusted_above"], share**2)
    more: dict[str, Any] = {
        "integer_rounding": change,
        "trusted_above": trusted,
        "statement": f"{given['statement']}; integers beyond 2**53 were rounded, which changes eigenvalues by up to {change:.0e} of the first",
    }
    if given.get("eigenvalue_intervals") is not None:
        room = change * first
        more["eigenvalue_intervals"] = [
            [max(0.0, low - room), high + room] for low, high in given["eigenvalue_intervals"]
        ]
        more["proven_upper_bounds"] = [upper + room for upper in given["proven_upper_bounds"]]
    rank = int(np.count_nonzero(model.explained_variance > trusted * first))
    return replace(model, certificate=given | more, numerical_rank=min(rank, model.numerical_rank))


def _level(model: PCAModel) -> FloatArray:
    """Return the largest modulus that the mean, and what is removed with it, have in a row of each feature, ``(n_features,)``."""
    removal = model.removal
    if removal is None:
        return np.abs(model.mean)
    columns = 0.0
    n_groups = len(removal.coefficients) if removal.rows is None else removal.rows.n_groups
    if removal.rows is not None and removal.rows.columns.shape[1]:
        largest = np.abs(removal.rows.columns).max(axis=0)
        columns = largest @ np.abs(removal.coefficients[n_groups:])
    groups = np.abs(removal.mean + removal.coefficients[:n_groups]).max(axis=0, initial=0.0)
    return np.maximum(np.abs(removal.mean), groups) + columns
