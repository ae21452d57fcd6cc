"""Products of a symmetric matrix with a few vectors, centred and scaled: what a sketch amounts to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import FloatArray

_SLAB_FEATURES = 4096


@dataclass(frozen=True)
class Sketched:
    """Products of a symmetric matrix C, taken between the factors F of the features: F C F · F⁻¹Ω = F · CΩ."""

    n_samples: int
    """Number of rows."""
    weight: float
    """Sum of their weights."""
    divisor: float
    """What sums of squares were divided by."""
    mean: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variance: FloatArray
    """Variance of each feature about its mean, ``(n_features,)``."""
    diagonal: FloatArray
    """Diagonal of F C F, ``(n_features,)``."""
    weights: FloatArray
    """The factors F: 1, or 1 / standard deviation and 0 for features that never vary; ``(n_features,)``."""
    test: FloatArray
    """F⁻¹Ω, ``(n_features, n_columns)``; 0 in features whose factor is 0."""
    products: FloatArray
    """F C Ω, ``(n_features, n_columns)``."""

    @property
    def total(self) -> float:
        """Return the trace of F C F."""
        return float(self.diagonal.sum())


def project(vectors: FloatArray, test: NDArray[Any]) -> FloatArray:
    """Return ``vectors @ test`` in float64, ``(n_vectors, n_columns)``, without a float64 copy of `test`."""
    total = np.zeros((len(vectors), test.shape[1]))
    for start in range(0, len(test), _SLAB_FEATURES):
        slab = slice(start, start + _SLAB_FEATURES)
        total += vectors[:, slab] @ test[slab].astype(np.float64, copy=False)
    return total


def weighted(sketched: Sketched, factors: FloatArray) -> Sketched:
    """Return the sketch of F C F for more `factors` of the features, in the memory of `sketched`.

    F C Ω is the product of F C F with F⁻¹Ω, whatever F is, so factors that are only known at the end, such as standard
    deviations, need no second pass.
    """
    if (factors == 1).all():
        return sketched
    sketched.products[...] *= factors[:, None]
    sketched.test[...] *= np.divide(1.0, factors, out=np.zeros_like(factors), where=factors > 0)[:, None]
    # The root first: the square of a factor may overflow where the product does not.
    diagonal = (np.sqrt(sketched.diagonal) * factors) ** 2
    return replace(sketched, diagonal=diagonal, weights=sketched.weights * factors)
