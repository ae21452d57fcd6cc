"""State and result of a sketch: products of the centred and scaled covariance matrix with a few vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streampca.errors import DataError
from streampca.linalg.eigen import positive_divisor
from streampca.linalg.scaling import Scaling, feature_weights, reciprocals
from streampca.linalg.underflow import LEAST_SQUARES, refuse_underflow, sums_about_zero
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


@dataclass(frozen=True, eq=False)
class SketchResult:
    """Computation of `Sketched` from the state of a `Sketch` and its configuration."""

    state: SketchState
    """Sums over all rows; not changed."""
    test: Array
    """Ω, ``(n_features, n_columns)``."""
    center: bool
    """Subtract the mean."""
    scale: Scaling
    """Divide features by their standard deviations, or variables by the roots of their variances."""
    ddof: int
    """The scatter is divided by W − ddof."""

    def sketched(self) -> Sketched:
        """Return the products of the covariance matrix; `DataError` if there are too few rows."""
        state, divisor = self.state, positive_divisor(self.state.n_samples, self.state.weight, self.ddof)
        if not np.isfinite(state.products).all():
            raise DataError(
                "the products of the rows are not finite: their magnitudes leave the range of the type; rescale them"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite raise below
            products, variance, diagonal = self._of_observed() if len(state.observed) else self._of_all()
        finite = np.isfinite(variance) & np.isfinite(diagonal) & np.isfinite(products).all(axis=1)
        if not finite.all():
            raise DataError(
                f"the variance of feature {int(np.flatnonzero(~finite)[0])} overflows float64, or its products: rescale it first"
            )
        squares = variance * divisor
        # Panels of one row each, in which all values of a feature are marked, leave marks that are equal: no variance.
        marked = (variance == 0) & (state.squares < LEAST_SQUARES * max(state.weight, 1.0))
        squares[marked] = state.squares[marked]
        if not (self.center or self.scale):
            squares = sums_about_zero(squares, state.mean, state.weight)
        refuse_underflow(squares, state.weight, scale=self.scale)
        weights = feature_weights(variance, state.mean, scale=self.scale)
        products /= divisor
        return weighted(
            Sketched(
                state.n_samples,
                state.weight,
                divisor,
                state.mean,
                variance,
                diagonal / divisor,
                np.ones_like(weights),
                self._scaled_test(),
                products,
                state.weight_squares,
                np.maximum(state.squares - diagonal, 0.0) / divisor,
            ),
            weights,
        )

    def _of_all(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return scatter times Ω, variances, and the diagonal of the scatter."""
        state = self.state
        sums, origin, weight = state.sums, state.origin, state.weight
        scatter = _centred(state.squares, sums, weight)
        # The remainder of a constant feature is rounding of the sums.
        scatter[scatter <= np.finfo(float).eps * max(4.0, state.n_samples**0.5) * state.squares] = 0.0
        variance = scatter / (weight - self.ddof)
        products = state.products.copy()
        if self.center or self.scale:
            products -= np.outer(sums / weight, project(sums[None], self.test)[0])
            if not self.center:
                self._add_means(products, weight, state.mean, variance, self.test)
            return products, variance, scatter + (0.0 if self.center else weight * state.mean**2)
        shifted_sums, shift = project(np.stack([sums, origin]), self.test)
        products += np.outer(sums, shift)
        products += np.outer(origin, shifted_sums + weight * shift)
        return products, variance, scatter + weight * state.mean**2

    def _of_observed(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the same for values missing at random: divided by the fractions of rows in which features were observed."""
        state, weight, observed = self.state, self.state.weight, self.state.observed
        _require_observed(observed, self.ddof)
        fraction, mean = observed / weight, state.sums / observed  # about the origin
        variance = np.maximum(state.squares - observed * mean**2, 0.0) / (observed - self.ddof)
        scatter = variance * (weight - self.ddof)
        # P⁻¹ S P⁻¹ · PΩ. Its diagonal S / p² is replaced by that of `scatter` and the mean, and then the mean is removed.
        products = state.products / fraction[:, None]
        correction = (state.squares * (1 / fraction - 1 / fraction**2) + variance * self.ddof * (1 / fraction - 1))[
            :, None
        ]
        test = self.test * fraction[:, None]
        products += correction * test
        products -= np.outer(weight * mean, project(mean[None], test)[0])
        if not self.center:
            self._add_means(products, weight, state.mean, variance, test)
            return products, variance, scatter + weight * state.mean**2
        return products, variance, scatter

    def _add_means(
        self, products: FloatArray, weight: float, mean: FloatArray, variance: FloatArray, test: Array
    ) -> None:
        """Add W m (mᵀΩ), the difference between products about zero and centred products.

        Constant features have z-scores of 0, so they do not contribute to the products of other features.
        """
        varying = np.where(variance > 0, mean, 0.0) if self.scale else mean
        products += np.outer(weight * mean, project(varying[None], test)[0])

    def _scaled_test(self) -> FloatArray:
        """Return a copy of the test matrix of the result: Ω, or PΩ where values may be missing."""
        test, state = self.test.astype(np.float64), self.state
        if len(state.observed):
            test *= (state.observed / state.weight)[:, None]
        return test


def _centred(squares: FloatArray, sums: FloatArray, weight: float) -> FloatArray:
    """Return Σ w (x − m)² of each feature from Σ w x² and Σ w x about an origin; infinite where the mean's part overflows.

    An overflow of the part that is subtracted would otherwise leave −∞, and after the limit of 0 a feature without variance.
    """
    of_mean = sums**2 / weight
    of_mean = np.where(np.isfinite(of_mean), of_mean, sums * (sums / weight))
    return np.where(np.isfinite(of_mean), np.maximum(squares - of_mean, 0.0), np.inf)


def _require_observed(observed: FloatArray, ddof: int) -> None:
    """Raise `DataError` if a feature was `observed` in too little weight for a variance."""
    few = np.flatnonzero(observed <= ddof)
    if len(few):
        raise DataError(
            f"{len(few)} feature(s) were observed in rows of a weight that gives no variance with ddof={ddof}, first: feature "
            f"{few[0]}, weight {observed[few[0]]:g}: leave them out"
        )
