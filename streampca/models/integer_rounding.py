"""Integers that float64 does not hold: what their rounding may change of a result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.errors import DataError
from streampca.models.pca import PCAModel

_WHOLE = 2.0**53
"""Largest number up to which float64 holds every integer."""


def with_integer_rounding(model: PCAModel) -> PCAModel:
    """Return `model` with the rounding of integers beyond 2**53 in its certificate, where its rows are such.

    A feature with a mean m beyond that is rounded by up to δ = ulp(m), so that rows move by up to ‖δ‖, in the units of the
    matrix, and a singular value by ε = ‖δ‖ √(W / (W − ddof)) / √λ₁ of the first (Weyl), an eigenvalue by 2 ε + ε². Integers beyond it
    about a smaller mean vary by so much that their rounding is that of any float64 number.

    Raises
    ------
    DataError
        If that is as much as the first eigenvalue.
    """
    dtype = np.dtype(model.source.get("dtype", "float64"))
    if dtype.kind not in "iu" or dtype.itemsize < 8:
        return model
    far = np.flatnonzero(np.abs(model.mean) > _WHOLE)
    if not len(far):
        return model
    step = np.spacing(np.abs(model.mean))
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
            f"{len(far)} feature(s), first: {far[0]}, hold integers near {model.mean[far[0]]:.3g}, which float64 rounds by up to "
            f"{step[far[0]]:g}: as much as they vary. Subtract a whole number near its mean from each feature first, as in X - X[0]"
        )
    given = model.certificate
    squared = given["eigen_solver"] != "lapack svd"
    trusted = given["trusted_above"] + change if squared else max(given["trusted_above"], share**2)
    more = {
        "integer_rounding": change,
        "trusted_above": trusted,
        "statement": f"{given['statement']}; integers beyond 2**53 were rounded, which changes eigenvalues by up to {change:.0e} of the first",
    }
    rank = int(np.count_nonzero(model.explained_variance > trusted * first))
    return replace(model, certificate=given | more, numerical_rank=min(rank, model.numerical_rank))
