"""State and result of a sketch: products of the centred and scaled covariance matrix with a few vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streampca.linalg.scaling import reciprocals
from streampca.storage.state_file import storable
from streampca.typing import Array, FloatArray

_SLAB_FEATURES = 4096


@storable
@dataclass(frozen=True)
class SketchState:
    """Sums over the accumulated rows x of weight w."""

    key: str
    """Identity of the test matrix of the products."""
    n_samples: int
    """Number of rows of positive weight."""
    n_left_out: int
    """Number of rows of positive weight that were excluded because they hold NaN."""
    weight: float
    """Sum of the weights."""
    weight_squares: float
    """Sum of the squares of the weights."""
    origin: FloatArray
    """A number c near the mean of each feature, shape ``(n_features,)``."""
    sums: FloatArray
    """Σ w (x − c), shape ``(n_features,)``."""
    squares: FloatArray
    """Σ w (x − c)², shape ``(n_features,)``."""
    observed: FloatArray
    """Σ w over the rows in which a feature was observed, ``(n_features,)``; empty unless values may be missing."""
    n_missing: int
    """Number of missing values."""
    products: FloatArray
    """Σ w (x − c)(x − c)ᵀ Ω, shape ``(n_features, n_columns)``; missing values count as c."""

    def joined(
        self,
        counts: tuple[int, float, float],
        sums: FloatArray,
        squares: FloatArray,
        observed: FloatArray | float = 0.0,
        n_missing: int = 0,
        n_left_out: int = 0,
    ) -> SketchState:
        """Return the state with more rows but for their products, which are added in place.

        `counts` are their number, the sum of their weights and that of the squares of these; all else as the fields.
        """
        return replace(
            self,
            n_samples=self.n_samples + counts[0],
            weight=self.weight + counts[1],
            weight_squares=self.weight_squares + counts[2],
            sums=self.sums + sums,
            squares=self.squares + squares,
            observed=self.observed + observed,
            n_missing=self.n_missing + n_missing,
            n_left_out=self.n_left_out + n_left_out,
        )

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return len(self.origin)

    @property
    def mean(self) -> FloatArray:
        """Return the mean of the observed values of each feature, shape ``(n_features,)``."""
        weight = self.observed if len(self.observed) else np.asarray(self.weight)
        offset = np.divide(self.sums, weight, out=np.zeros_like(self.sums), where=weight > 0)
        mean: FloatArray = self.origin + offset
        return mean


@dataclass(frozen=True)
class Sketched:
    """Products of a symmetric matrix C whose features are multiplied by factors F: F C F · F⁻¹Ω = F · CΩ."""

    n_samples: int
    """Number of rows."""
    weight: float
    """Sum of their weights."""
    divisor: float
    """Divisor of sums of squares."""
    mean: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variance: FloatArray
    """Variance of each feature about its mean, ``(n_features,)``."""
    diagonal: FloatArray
    """Diagonal of F C F, ``(n_features,)``."""
    weights: FloatArray
    """The factors F: 1, or 1 / divisor and 0 for features that never vary; ``(n_features,)``."""
    test: FloatArray
    """F⁻¹Ω, ``(n_features, n_columns)``; 0 in features whose factor is 0."""
    products: FloatArray
    """F C Ω, ``(n_features, n_columns)``."""
    weight_squares: float
    """Sum of the squares of the weights."""
    excess: FloatArray | None = None
    """Second moments about the origin of the sums minus `diagonal`, without the factors, at least 0, ``(n_features,)``."""

    @property
    def cancellation(self) -> float:
        """Return a bound of the rounding of sums about an origin far from the mean, in the units of eigenvalues."""
        if self.excess is None:
            return 0.0
        return float(32 * np.finfo(np.float64).eps * np.sum((np.sqrt(self.excess) * self.weights) ** 2))

    @property
    def total(self) -> float:
        """Return the trace of F C F."""
        return float(self.diagonal.sum())


def project(vectors: FloatArray, test: Array) -> FloatArray:
    """Return ``vectors @ test`` in float64, ``(n_vectors, n_columns)``, without a float64 copy of `test`."""
    total = np.zeros((len(vectors), test.shape[1]))
    for start in range(0, len(test), _SLAB_FEATURES):
        slab = slice(start, start + _SLAB_FEATURES)
        total += vectors[:, slab] @ test[slab].astype(np.float64, copy=False)
    return total


def weighted(sketched: Sketched, factors: FloatArray) -> Sketched:
    """Return the sketch of F C F for more `factors` of the features, in the memory of `sketched`.

    F C Ω is the product of F C F with F⁻¹Ω for any F, so factors that are known only at the end, such as standard
    deviations, need no second pass.
    """
    if (factors == 1).all():
        return sketched
    sketched.products[...] *= factors[:, None]
    sketched.test[...] *= reciprocals(factors)[:, None]
    # Square root first, because the square of a factor may overflow where the product does not.
    diagonal = (np.sqrt(sketched.diagonal) * factors) ** 2
    return replace(sketched, diagonal=diagonal, weights=sketched.weights * factors)
