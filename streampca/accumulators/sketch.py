"""Sketch of the covariance matrix: products with a few vectors in one pass, without forming the matrix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import numpy as np
import xxhash
from scipy.sparse import csc_array, issparse

from streampca.accumulators.base import Accumulator
from streampca.accumulators.centring import (
    DIRECT_ROWS,
    MOST_BANDS,
    SAFE_SQUARES,
    SHIFTED_SLAB_BYTES,
    column_sums,
    incomplete,
    keeps_digits,
    observed_weights,
    refuse_not_finite,
    require_finite,
    sampled_origin,
    shifted,
    shifted_moments,
    sketch_panel_rows,
    weighted_moments,
    weights_within_float32,
    work_dtype,
)
from streampca.accumulators.sparse import shift_full_columns
from streampca.block import Block, EqualRows, as_block
from streampca.errors import DataError, MergeError
from streampca.formatting import plural
from streampca.linalg.eigen import positive_divisor
from streampca.linalg.scaling import (
    LEAST_SQUARES,
    Scale,
    mark_underflow,
    mark_underflow_of_stored,
    reciprocals,
    refuse_underflow,
    scaling_of,
    sums_about_zero,
    underflows,
)
from streampca.linalg.tiles import spread
from streampca.storage.state_file import storable
from streampca.system.phases import Phase
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray, override

_TEST_FEATURES = 4096
_SLAB_FEATURES = 2048  # rows of the products that fit in the cache during an addition
_BANDS, _BAND_ROWS = 4, 256  # number and least size of the bands of rows of a panel, for any number of threads


@storable
@dataclass(frozen=True)
class SketchState:
    """Sums over the accumulated rows x of weight w."""

    key: str
    """Identity of the test matrix in the products."""
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
        """Return the state with more rows except their products, which are added in place.

        `counts` are their number, the sum of their weights and the sum of the squared weights; other arguments are as the fields.
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
    """Products of a symmetric matrix C with features multiplied by factors F: F C F · F⁻¹Ω = F · CΩ."""

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
    """F⁻¹Ω, ``(n_features, n_columns)``; 0 for features with factor 0."""
    products: FloatArray
    """F C Ω, ``(n_features, n_columns)``."""
    weight_squares: float
    """Sum of the squares of the weights."""
    excess: FloatArray | None = None
    """Second moments about the origin of the sums minus `diagonal`, without the factors; at least 0, ``(n_features,)``."""

    @property
    def cancellation(self) -> float:
        """Return a bound on the rounding of sums about an origin far from the mean, in units of eigenvalues."""
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
    for start in range(0, len(test), _TEST_FEATURES):
        slab = slice(start, start + _TEST_FEATURES)
        total += vectors[:, slab] @ test[slab].astype(np.float64, copy=False)
    return total


def weighted(sketched: Sketched, factors: FloatArray) -> Sketched:
    """Return the sketch of F C F for more `factors` of the features, in the memory of `sketched`.

    For any F, F C Ω is the product of F C F with F⁻¹Ω, so factors that are known only at the end, such as standard
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
class Sketch(Accumulator[SketchState, Sketched]):
    """Mean, variances, and the products CΩ of the covariance (or second-moment) matrix C with the columns of Ω.

    One pass, 4 n d q flops and 8 d q bytes for q columns; no d × d matrix is formed. All fields are sums over rows, so
    states merge exactly. Rows are shifted by a number near their mean before the products, and a rank-one term removes
    the remaining mean at the end, ``C Ω = (P − s (sᵀΩ) / W) / (W − ddof)``, so a mean far from zero costs no digits.

    ΩᵀCΩ follows from the products, and so does the Nyström approximation of C (Tropp, Yurtsever, Udell & Cevher 2017),
    which is the randomised SVD of the rows (Halko, Martinsson & Tropp 2011) in one pass.

    Values missing at random: with ``missing="pairwise"`` a missing value counts as `origin`, and products and diagonal
    are divided by the observed fractions (Lounici 2014, eq. 1.4, applied to the sketch).

    References
    ----------
    Halko, Martinsson & Tropp (2011), Finding structure with randomness: probabilistic algorithms for constructing approximate
    matrix decompositions; Tropp, Yurtsever, Udell & Cevher (2017), Fixed-rank approximation of a positive-semidefinite matrix
    from streaming data; Lounici (2014), High-dimensional covariance matrix estimation with missing observations.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 4))
    >>> test = sp.transforms.GaussianProjection(n_features=4, size=2).matrix()
    >>> sketch = sp.accumulators.Sketch(test)
    >>> products = sketch.finalize(sketch.update(sketch.init(4), rows)).products
    >>> bool(np.allclose(products, np.cov(rows, rowvar=False) @ test))
    True
    """

    test: Array = field(repr=False)
    """Ω in the type of the products, float32 or float64; ``(n_features, n_columns)``."""
    center: bool = True
    """Subtract the mean; otherwise use second moments about zero."""
    scale: Scale = False
    """Divide features by their standard deviations, or variables by the roots of their variances (of the same `ddof`)."""
    ddof: int = 1
    """The scatter is divided by n − ddof."""
    missing: str = "error"
    """Treatment of NaN: ``"error"``, ``"drop_rows"`` or ``"pairwise"``."""
    origin: FloatArray | None = field(default=None, repr=False, compare=False)
    """Number to subtract from each feature, ``(n_features,)``; None = the mean of a sample of the first rows."""
    moments: bool = True
    """Whether to accumulate means and variances; not needed if an earlier pass has computed them."""
    copy_rows: bool = True
    """Whether to shift the rows before the products. Otherwise the products are shifted, which needs no copy of the rows
    and is as accurate for means within a few standard deviations of `origin`."""
    n_threads: int = field(default=1, compare=False)
    """Number of threads that share one update; it does not affect the bits."""
    key: str = ""
    """Identity of Ω; a hash of `test` by default."""

    def __post_init__(self) -> None:
        if not self.key:
            test = np.ascontiguousarray(self.test)
            shape = f"{test.dtype.str}{test.shape}"
            object.__setattr__(
                self,
                "key",
                f"{shape}/{xxhash.xxh3_128_hexdigest(test.tobytes() if test.size == 0 else test.data.cast('B'))}",
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sketch):
            return NotImplemented
        names = ("key", "center", "scale", "ddof", "missing", "moments", "copy_rows")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        return hash((self.key, self.center, self.scale, self.ddof, self.missing))

    @property
    def n_columns(self) -> int:
        """Return the number of columns of Ω."""
        return int(self.test.shape[1])

    @cached_property
    def _rounded_origin(self) -> FloatArray | None:
        """Return `origin` rounded to the type of the rows, which is exactly the number subtracted from them."""
        return None if self.origin is None else self.origin.astype(self.test.dtype).astype(np.float64)

    @cached_property
    def _projected_origin(self) -> FloatArray | None:
        """Return the rounded origin times Ω, ``(n_columns,)``."""
        return None if self._rounded_origin is None else project(self._rounded_origin[None], self.test)[0]

    def _projected(self, origin: FloatArray) -> FloatArray:
        """Return the `origin` of a state times Ω, ``(n_columns,)``."""
        known = self._projected_origin if origin is self._rounded_origin else None
        return project(origin[None], self.test)[0] if known is None else known

    @override
    def init(self, n_features: int) -> SketchState:
        zeros = np.zeros(n_features)
        origin = zeros if self._rounded_origin is None else self._rounded_origin
        observed = np.zeros(n_features if self.missing == "pairwise" else 0)
        products = np.zeros((n_features, self.n_columns))
        return SketchState(self.key, 0, 0, 0.0, 0.0, origin, zeros, zeros.copy(), observed, 0, products)

    def update(self, state: SketchState, block: Block | Array) -> SketchState:
        """Return `state` with the dense or csr rows of `block`, shape ``(n_rows, n_features)``, added to it in place.

        Raises
        ------
        NotFiniteError
            If the rows hold infinity, NaN with ``missing="error"``, or overflow when squared.
        """
        block = as_block(block)
        if issparse(block.values):
            return self._add_sparse(state, block)
        dtype = np.promote_types(self.test.dtype, work_dtype(block.values.dtype))
        direct = not self.copy_rows and self.missing == "error" and block.values.dtype == dtype
        step = DIRECT_ROWS if direct else sketch_panel_rows(block.values.shape[1], dtype)
        others, equal = block.apart()
        for panel in map(Block.counted, chain.from_iterable(other.panels(step) for other in others)):
            if self.missing == "drop_rows":
                holes = incomplete(panel.values)
                if holes.any():
                    refuse_not_finite(panel.values, panel.start, missing=True)
                    panel = panel.where(~holes)
                    state = replace(state, n_left_out=state.n_left_out + int(holes.sum()))
            if len(panel):
                added = self._add_direct(state, panel) if direct else None
                state = self._add_panel(state, panel, dtype) if added is None else added
        return state if equal is None else self._add_equal(state, equal)

    def _add_equal(self, state: SketchState, rows: EqualRows) -> SketchState:
        """Add rows that are all equal, in closed form: one outer product."""
        row, weight = rows.row.astype(np.float64), rows.weight
        if state.weight == 0 and self.origin is None:
            state = replace(state, origin=row.astype(self.test.dtype).astype(np.float64))
        shifted_row = row - state.origin
        weighted = weight * project(shifted_row[None], self.test)[0]
        for start in range(0, len(row), _SLAB_FEATURES):
            slab = slice(start, start + _SLAB_FEATURES)
            state.products[slab] += np.outer(shifted_row[slab], weighted)
        moments = float(self.moments) * weight
        counts = rows.n_rows, weight, rows.weight_squares
        return state.joined(counts, moments * shifted_row, moments * shifted_row**2, observed=weight)

    def _add_direct(self, state: SketchState, panel: Block) -> SketchState | None:
        """Add rows without a shifted copy: Σ (x − c) zᵀ for z = (x − c)ᵀΩ is Σ x zᵀ − c Σ zᵀ; None if their type is too inaccurate."""
        values, weights = panel.values, panel.weights
        if values.dtype == np.float32 and weights is not None and not weights_within_float32(weights):
            return None
        if state.weight == 0 and self.origin is None:
            state = replace(state, origin=sampled_origin(values, values.dtype))
        sums = squares = np.zeros(values.shape[1])
        total, squared = panel.weight_sums()
        if self.moments:
            with Phase("centring"):
                sums, squares = shifted_moments(values, state.origin.astype(values.dtype), weights, self.n_threads)
            require_finite(np.isfinite(squares), panel, values.dtype)
            if underflows(values, state.origin, squares):
                return None
            low, high = SAFE_SQUARES
            if values.dtype == np.float32 and not ((squares == 0) | ((low < squares) & (squares < high))).all():
                return None
        self._add_products(state.products, values, weights, state.origin)
        return state.joined((len(panel), total, squared), sums, squares)

    def _add_panel(self, state: SketchState, panel: Block, dtype: DType) -> SketchState:
        values = panel.values
        if state.weight == 0 and self.origin is None:
            state = replace(state, origin=sampled_origin(values, dtype))
        rows = borrow("panel", values.shape, dtype)
        missing = np.isnan(values) if self.missing == "pairwise" and values.dtype.kind == "f" else None
        with Phase("centring"):
            sums, squares = shifted(values, state.origin.astype(dtype), rows, missing, self.moments, self.n_threads)
        require_finite(np.isfinite(squares), panel, dtype, missing=self.missing == "pairwise")
        if self.moments:
            mark_underflow(rows, squares)
        weights = panel.weights
        if not keeps_digits(rows, squares if self.moments else None, weights):
            for half in panel.halves():  # to limit the scratch memory
                state = self._add_panel(state, half, np.dtype(np.float64))
            return state
        total, squared = panel.weight_sums()
        if weights is not None:
            sums, squares = weighted_moments(rows, weights)
        self._add_products(state.products, rows, weights)
        counts = len(panel), total, squared
        if missing is None:
            return state.joined(counts, sums, squares, observed=total)
        return state.joined(counts, sums, squares, observed_weights(missing, weights), int(missing.sum()))

    def _add_products(
        self, products: FloatArray, rows: Array, weights: FloatArray | None, origin: FloatArray | None = None
    ) -> None:
        """Add Σ w z (x − origin)ᵀ for z = (x − origin)ᵀΩ and the x of `rows`: bands of rows, then slabs of features."""
        n_rows, n_features = rows.shape
        test = self.test if self.test.dtype == rows.dtype else self.test.astype(rows.dtype)
        projected = borrow("projected", (n_rows, self.n_columns), rows.dtype)
        step = max(_BAND_ROWS, -(-n_rows // _BANDS))
        shift = None if origin is None else self._projected(origin).astype(rows.dtype)

        def multiply(start: int) -> None:
            band = slice(start, start + step)
            np.matmul(rows[band], test, out=projected[band])
            if shift is not None:
                projected[band] -= shift
            if weights is not None:
                projected[band] *= weights[band].astype(rows.dtype)[:, None]

        def add(start: int) -> None:
            slab = slice(start, start + _SLAB_FEATURES)
            product = borrow("product", (len(products[slab]), self.n_columns), rows.dtype)
            with np.errstate(over="ignore", invalid="ignore"):  # `finalize` raises an error
                np.matmul(rows[:, slab].T, projected, out=product)
            if origin is not None and along is not None:
                of_origin = borrow("product of origin", product.shape, rows.dtype)
                np.multiply(origin[slab].astype(rows.dtype)[:, None], along, out=of_origin)
                np.subtract(product, of_origin, out=product)
            products[slab] += product

        spread(multiply, range(0, n_rows, step), self.n_threads)
        along = None if origin is None else column_sums(projected).astype(rows.dtype)
        spread(add, range(0, n_features, _SLAB_FEATURES), self.n_threads)

    def _add_sparse(self, state: SketchState, block: Block) -> SketchState:
        """Add csr rows in float64: sparse columns about zero, mostly full columns about a number near their mean."""
        refuse_not_finite(block.values, block.start)
        block = block.counted()
        n_rows, weights = len(block), block.weights
        if n_rows == 0:
            return state
        columns = csc_array(block.values, dtype=np.float64)
        columns, origin = shift_full_columns(columns, weights, state.origin)
        mark_underflow_of_stored(columns)
        state = self._with_origin(state, np.where(state.origin != 0, state.origin, origin))
        ones = np.ones(n_rows) if weights is None else weights
        with np.errstate(over="ignore"):
            squares = np.asarray(columns.multiply(columns).T @ ones)
        require_finite(np.isfinite(squares), block)
        projected = columns @ self.test.astype(np.float64, copy=False)
        if weights is not None:
            projected *= weights[:, None]
        for start in range(0, columns.shape[1], _SLAB_FEATURES):
            slab = slice(start, start + _SLAB_FEATURES)
            state.products[slab] += np.asarray(columns[:, slab].T @ projected)
        total = float(ones.sum())
        sums = np.asarray(columns.T @ ones)
        sums, squares = self._moved_moments(state.products, origin - state.origin, total, sums, squares)
        return state.joined((n_rows, total, float(ones @ ones)), sums, squares)

    def _with_origin(self, state: SketchState, origin: FloatArray) -> SketchState:
        """Return `state` with its sums about `origin`, in the same memory."""
        shift = state.origin - origin
        sums, squares = self._moved_moments(state.products, shift, state.weight, state.sums, state.squares)
        return replace(state, origin=origin, sums=sums, squares=squares)

    def _moved_moments(
        self, products: FloatArray, shift: FloatArray, weight: float, sums: FloatArray, squares: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Correct `products` for terms summed about an origin that lies `away` from theirs; return their sums and squares.

        Σ w (x + a)(x + a)ᵀ Ω = Σ w x xᵀ Ω + s (aᵀΩ) + a (sᵀΩ + W aᵀΩ) for the sum s of the x.
        """
        if not shift.any():
            return sums, squares
        along, summed = project(np.stack([shift, sums]), self.test)
        products += np.outer(sums, along)
        products += np.outer(shift, summed + weight * along)
        return sums + weight * shift, squares + shift * (2 * sums + weight * shift)

    def absorb(self, state: SketchState, other: SketchState) -> SketchState:
        """Return the merged state, in the memory of `state`; `MergeError` if their Ω differ."""
        if state.key != other.key or state.products.shape != other.products.shape:
            raise MergeError(
                f"sketches of {state.products.shape[0]} x {state.products.shape[1]} and {other.products.shape[0]} x "
                f"{other.products.shape[1]} were made with different test matrices and cannot be merged: expected the same "
                "features, sketch, sketch_size and random_state, and pilot=0"
            )
        if other.weight == 0:
            return replace(state, n_left_out=state.n_left_out + other.n_left_out)
        if state.weight == 0:
            state = replace(state, origin=other.origin)
        shift = other.origin - state.origin
        if shift.any() and len(state.observed):
            raise MergeError("sketches of rows with missing values need one origin to be merged")
        np.add(state.products, other.products, out=state.products)
        sums, squares = self._moved_moments(state.products, shift, other.weight, other.sums, other.squares)
        counts = other.n_samples, other.weight, other.weight_squares
        return state.joined(counts, sums, squares, other.observed, other.n_missing, other.n_left_out)

    def finalize(self, state: SketchState) -> Sketched:
        """Return the products of the covariance matrix, without changing `state`; `DataError` for too few rows."""
        divisor = positive_divisor(state.n_samples, state.weight, self.ddof)
        if not np.isfinite(state.products).all():
            raise DataError(
                "the products of the rows are not finite, because they exceed the range of the type: rescale the features"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite raise below
            products, variance, diagonal = self._of_observed(state) if len(state.observed) else self._of_all(state)
        finite = np.isfinite(variance) & np.isfinite(diagonal) & np.isfinite(products).all(axis=1)
        if not finite.all():
            raise DataError(
                f"the variance or the products of feature {int(np.flatnonzero(~finite)[0])} overflow float64: rescale it first"
            )
        squares = variance * divisor
        # Panels of one row each, in which all values of a feature are marked, leave marks that are equal: no variance.
        marked = (variance == 0) & (state.squares < LEAST_SQUARES * max(state.weight, 1.0))
        squares[marked] = state.squares[marked]
        if not (self.center or self.scale):
            squares = sums_about_zero(squares, state.mean, state.weight)
        refuse_underflow(squares, state.weight, scale=scaling_of(self.scale))
        weights = scaling_of(self.scale).weights(variance, state.mean)
        products /= divisor
        test = self.test.astype(np.float64)
        if len(state.observed):  # PΩ, where values may be missing
            test *= (state.observed / state.weight)[:, None]
        return weighted(
            Sketched(
                state.n_samples,
                state.weight,
                divisor,
                state.mean,
                variance,
                diagonal / divisor,
                np.ones_like(weights),
                test,
                products,
                state.weight_squares,
                np.maximum(state.squares - diagonal, 0.0) / divisor,
            ),
            weights,
        )

    def _of_all(self, state: SketchState) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return scatter times Ω, variances, and the diagonal of the scatter."""
        sums, origin, weight = state.sums, state.origin, state.weight
        scatter = _centred_squares(state.squares, sums, weight)
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

    def _of_observed(self, state: SketchState) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the same for values missing at random, divided by the fractions of rows in which features were observed."""
        weight, observed = state.weight, state.observed
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

    @override
    def state_bytes(self, n_features: int) -> int:
        return 8 * n_features * (self.n_columns + 4)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: a panel, its projection, and two slabs of products for each thread."""
        rows = min(n_rows, sketch_panel_rows(n_features, np.dtype(f"f{itemsize}")))
        slab = min(n_features, _SLAB_FEATURES) * self.n_columns * itemsize
        small = rows * self.n_columns * itemsize + 2 * SHIFTED_SLAB_BYTES + (48 + 16 * MOST_BANDS) * n_features
        holes = rows * n_features if self.missing != "error" else 0
        return rows * n_features * itemsize + small + 2 * self.n_threads * slab + holes


def _centred_squares(squares: FloatArray, sums: FloatArray, weight: float) -> FloatArray:
    """Return Σ w (x − m)² of each feature from Σ w x² and Σ w x about an origin; infinite if the mean's part overflows.

    An overflow of the subtracted part would otherwise leave −∞, which clipping at 0 turns into a feature without variance.
    """
    of_mean = sums**2 / weight
    of_mean = np.where(np.isfinite(of_mean), of_mean, sums * (sums / weight))
    return np.where(np.isfinite(of_mean), np.maximum(squares - of_mean, 0.0), np.inf)


def _require_observed(observed: FloatArray, ddof: int) -> None:
    """Raise `DataError` if a feature was `observed` with too little weight for a variance."""
    few = np.flatnonzero(observed <= ddof)
    if len(few):
        raise DataError(
            f"{plural(len(few), 'feature')} observed with too little weight for a variance with ddof={ddof}, first: feature "
            f"{few[0]}, weight {observed[few[0]]:g}: leave them out"
        )
