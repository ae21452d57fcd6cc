"""Integers that float64 does not hold: what their rounding may change of a result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streampca.errors import DataError
from streampca.kernels.standardised import Standardised
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import ApproximateCertificate
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.stored_rows import StoredRows
from streampca.typing import DType, FloatArray, IntArray

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
        raise _as_much_as_varies(far, level, step)
    given = model.certificate
    squared = given.eigen_solver != "lapack svd"
    trusted = given.trusted_above + change if squared else max(given.trusted_above, share**2)
    certificate = given.saying(sentences.integers_rounded(change), integer_rounding=change, trusted_above=trusted)
    if isinstance(certificate, ApproximateCertificate):
        certificate = certificate.widened(change * first)
    rank = int(np.count_nonzero(model.explained_variance > trusted * first))
    return replace(model, certificate=certificate, numerical_rank=min(rank, model.numerical_rank))


def with_rounded_integers(model: KernelModel, dtype: DType) -> KernelModel:
    """Return the kernel `model` of rows of `dtype` with the rounding of integers beyond 2**53 in its certificate.

    Kernel values depend on rows in as many ways as there are kernels, so the figure is of rows: by what part of the root mean square
    distance of the landmarks from their mean, in the units of the kernel, rounding may move one.

    Raises
    ------
    DataError
        If that is so much that a variance along a direction may double, and the kernel matrix is centred.
    """
    if dtype.kind not in "iu" or dtype.itemsize < 8 or len(model.landmarks) < 2:
        return model
    rows = model.landmarks
    bands = [band for _, band in rows.bands()] if isinstance(rows, StoredRows) else [rows]
    origin = np.asarray(bands[0][0], dtype=np.float64)
    sums = sum((band.astype(np.float64) - origin).sum(axis=0) for band in bands)
    offset = sums / len(rows)
    level = np.abs(origin + offset)
    far = np.flatnonzero(level > _WHOLE)
    if not len(far):
        return model
    variance = sum(np.square(band.astype(np.float64) - origin - offset).sum(axis=0) for band in bands) / len(rows)
    step, factors = np.spacing(level), np.ones(len(level))
    if isinstance(model.kernel, Standardised):
        factors = np.divide(1.0, np.sqrt(variance), out=np.zeros(len(level)), where=variance > 0)
    spread = float(np.sqrt(np.square(factors) @ variance))
    share = float(np.linalg.norm((step * factors)[far])) / spread if spread > 0 else np.inf
    if 2 * share + share**2 >= 1 and model.center:
        raise _as_much_as_varies(far, level, step)
    certificate = model.certificate.saying(sentences.integers_rounded_of_rows(share), integer_rounding=share)
    return replace(model, certificate=certificate)


def _as_much_as_varies(far: IntArray, level: FloatArray, step: FloatArray) -> DataError:
    return DataError(
        f"{len(far)} feature(s), first: {far[0]}, hold integers near {float(level[far[0]]):.3g}, which float64 rounds by up to "
        f"{step[far[0]]:g}: as much as they vary. Subtract a whole number near its mean from each feature first, as in X - X[0]"
    )


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
    level: FloatArray = np.maximum(np.abs(removal.mean), groups) + columns
    return level
