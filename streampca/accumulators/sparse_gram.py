"""Features of sparse rows in a Gram matrix of samples: those with few stored values, apart from those that are made dense."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array, csr_array

from streampca.accumulators.centring import refuse_not_finite
from streampca.errors import NotFiniteError
from streampca.linalg.underflow import mark_underflow_of_stored
from streampca.typing import BoolArray, FloatArray

DENSE_FROM = 0.03
"""Fraction of stored values from which the products of a feature are faster if it is made dense."""
_LARGE = 1e140  # values below it do not overflow float64 when squared and added up


def refuse_values(features: csr_array, start: int) -> None:
    """Raise `NotFiniteError` if `features`, the first of which is column `start` of the source, store NaN or infinity, or overflow."""
    if features.dtype.kind != "f" or features.nnz == 0:
        return
    bad = ~np.isfinite(features.data)
    if bad.any():
        entry = int(np.flatnonzero(bad)[0])
        feature = int(np.searchsorted(features.indptr, entry, "right")) - 1
        refuse_not_finite(features[[feature]].toarray().T, 0, start + feature)
    if float(np.abs(features.data).max()) > _LARGE:
        with np.errstate(over="ignore"):
            squares = np.asarray(features.multiply(features).sum(axis=1))
        if not np.isfinite(squares).all():
            raise overflow_of(start + int(np.flatnonzero(~np.isfinite(squares))[0]))


def overflow_of(column: int) -> NotFiniteError:
    """Return the error for a `column` of the source whose squares overflow."""
    return NotFiniteError(
        f"column {column} overflows float64 when squared: expected magnitudes below 1e150; rescale this feature first"
    )


def few_stored(features: csr_array, weights: FloatArray | None, most: float = DENSE_FROM) -> BoolArray:
    """Return which of the `features`, ``(n_features, n_samples)``, are multiplied as sparse ones.

    They store less than a fraction `most` of their values, in samples of at most half the weight, so that sums of squares about zero are at most twice
    those about the mean and the mean can be subtracted afterwards without a loss of digits.
    """
    few: BoolArray = np.diff(features.indptr) < most * features.shape[1]
    if weights is not None:
        stored = csr_array((weights[features.indices], features.indices, features.indptr), shape=features.shape)
        few &= np.asarray(stored.sum(axis=1)) <= weights.sum() / 2
    return few


@dataclass(frozen=True)
class FewStored:
    """Features with few stored values, in float64, and their moments."""

    columns: csc_array
    """The features, ``(n_samples, n_features)``."""
    means: FloatArray
    """Mean of each, ``(n_features,)``."""
    squares: FloatArray
    """Sum of weighted squares of each about its mean, ``(n_features,)``."""

    @classmethod
    def of(cls, features: csr_array, weights: FloatArray | None) -> FewStored:
        """Return the `features`, ``(n_features, n_samples)``, with moments under the `weights` of the samples; may share memory."""
        columns = csc_array(features.astype(np.float64, copy=False).T)
        mark_underflow_of_stored(columns)
        n = columns.shape[0]
        total, each = (float(n), np.ones(n)) if weights is None else (float(weights.sum()), weights)
        means = np.asarray(columns.T @ each) / total
        squares = np.asarray(columns.multiply(columns).T @ each)
        return cls(columns, means, np.maximum(squares - total * means**2, 0.0))

    def scaled(self, roots: FloatArray | None, factors: FloatArray | None) -> csc_array:
        """Return the features times the `roots` of the weights and their `factors`, by samples: ``(n_features, n_samples)``."""
        samples = csc_array(self.columns.T)
        if roots is not None:
            samples.data *= np.repeat(roots, np.diff(samples.indptr))
        if factors is not None:
            samples.data *= factors[samples.indices]
        return samples
