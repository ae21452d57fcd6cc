"""Products of the covariance matrix with a few vectors, in one pass and without the matrix: the state of a sketch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from scipy.sparse import csc_array, issparse

from streampca.accumulators.centring import (
    FloatArray,
    refuse_not_finite,
    refuse_overflow,
    work_dtype,
)
from streampca.accumulators.covariance import weights_within_float32, within_float32
from streampca.accumulators.missing import incomplete, refuse_infinite
from streampca.accumulators.shifting import (
    DIRECT_ROWS,
    SAFE_SQUARES,
    SLAB_BYTES,
    column_sums,
    observed_weights,
    panel_rows,
    sampled_origin,
    shifted,
    shifted_moments,
    weighted_moments,
)
from streampca.accumulators.sketched import Sketched, project, weighted
from streampca.accumulators.sparse import refuse_stored, shift_full_columns
from streampca.block import Block, as_block
from streampca.errors import DataError, MergeError
from streampca.linalg.tiles import spread
from streampca.linalg.underflow import (
    mark_underflow,
    mark_underflow_of_stored,
    refuse_underflow,
    sums_about_zero,
    underflows,
)
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow

_SLAB_FEATURES = 2048  # of the products that are added at a time, so that they stay in the cache
_PARTS, _PART_ROWS = 4, 256  # in which the rows of a panel are projected, whatever the number of threads


@storable
@dataclass(frozen=True)
class SketchState:
    """What has been seen of the rows so far; sums over rows x of weight w."""

    key: str
    """Which test matrix the products belong to."""
    n_samples: int
    """Number of rows of positive weight."""
    n_left_out: int
    """Rows of positive weight that were left out, because they hold NaN."""
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
    """Values that were missing."""
    products: FloatArray
    """Σ w (x − c)(x − c)ᵀ Ω, shape ``(n_features, n_columns)``; what is missing counts as c."""

    @property
    def mean(self) -> FloatArray:
        """Return the mean of each feature over what was observed, shape ``(n_features,)``."""
        weight: Any = self.observed if len(self.observed) else self.weight
        within = np.divide(self.sums, weight, out=np.zeros_like(self.sums), where=np.asarray(weight) > 0)
        mean: FloatArray = self.origin + within
        return mean


@dataclass(frozen=True, eq=False)
class Sketch:
    """Mean, variances, and the products CΩ of the covariance (or second-moment) matrix C with the columns of Ω.

    One pass, 4 n d q flops and 8 d q bytes for q columns; nothing of side d × d is formed. Everything is a sum over rows, so
    states merge exactly. Rows are shifted by a number near their mean before they are multiplied, and the rest of the mean
    is taken out at the end by a rank-one term, ``C Ω = (P − s (sᵀΩ) / W) / (W − ddof)``, so a far mean costs no digits.

    Since ΩᵀCΩ is a product of what is kept, the best matrix below C that can be had from it is the Nystrom approximation
    (Tropp, Yurtsever, Udell & Cevher 2017), which is the randomised SVD of the rows (Halko, Martinsson & Tropp 2011) in one pass.

    Values that are missing at random: with ``missing="pairwise"`` a missing value counts as `origin`, and products and
    diagonal are divided by the shares observed (Lounici 2014, eq. 1.4, applied to the sketch).
    """

    test: NDArray[Any] = field(repr=False)
    """Ω in the type of the products, float32 or float64; ``(n_features, n_columns)``."""
    center: bool = True
    """Subtract the mean; if not, second moments about zero are taken."""
    scale: bool = False
    """Divide every feature by its standard deviation (of the same `ddof`): the correlation matrix."""
    ddof: int = 1
    """The scatter is divided by n − ddof."""
    missing: str = "error"
    """What NaN means: ``"error"``, ``"drop_rows"`` or ``"pairwise"``."""
    origin: FloatArray | None = field(default=None, repr=False, compare=False)
    """What rows are shifted by, ``(n_features,)``; None = the mean of some of the first rows."""
    moments: bool = True
    """Whether means and variances are taken too; not needed once they are known from an earlier pass."""
    copy_rows: bool = True
    """Whether rows are shifted before they are multiplied; if not, only their products are: as exact where means are
    within a few standard deviations, and without a copy of the rows."""
    n_threads: int = field(default=1, compare=False)
    """Threads that share one update; changes the time, never the bits."""
    key: str = ""
    """Identity of Ω; computed unless given."""

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

    def init(self, n_features: int) -> SketchState:
        """Return the state of no rows, the identity of `merge`."""
        zeros = np.zeros(n_features)
        # Of the type of the rows, so that what is subtracted from them is exactly this.
        origin = zeros if self.origin is None else self.origin.astype(self.test.dtype).astype(np.float64)
        observed = np.zeros(n_features if self.missing == "pairwise" else 0)
        products = np.zeros((n_features, self.n_columns))
        return SketchState(self.key, 0, 0, 0.0, 0.0, origin, zeros, zeros.copy(), observed, 0, products)

    def update(self, state: SketchState, block: Block | NDArray[Any]) -> SketchState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)`` and dense or csr, added to it in place.

        Raises
        ------
        NotFiniteError
            If the rows hold infinity, NaN that has no meaning, or overflow when squared.
        """
        block = as_block(block)
        if issparse(block.values):
            return self._add_sparse(state, block)
        dtype = np.promote_types(self.test.dtype, work_dtype(block.values.dtype))
        whole = not self.copy_rows and self.missing == "error" and block.values.dtype == dtype
        step = DIRECT_ROWS if whole else panel_rows(block.values.shape[1], dtype)
        n_panels = -(-len(block) // step)
        for i in range(n_panels):
            panel = block.part(len(block) * i // n_panels, len(block) * (i + 1) // n_panels).counted()
            if self.missing == "drop_rows":
                holes = incomplete(panel.values)
                if holes.any():
                    refuse_infinite(panel.values, panel.start)
                    weights = None if panel.weights is None else panel.weights[~holes]
                    panel = Block(panel.values[~holes], panel.start, weights)
                    state = replace(state, n_left_out=state.n_left_out + int(holes.sum()))
            if len(panel):
                added = self._add_whole(state, panel) if whole else None
                state = self._add_panel(state, panel, dtype) if added is None else added
        return state

    def _add_whole(self, state: SketchState, panel: Block) -> SketchState | None:
        """Add rows as they lie in memory: Σ (x − c) zᵀ for z = (x − c)ᵀΩ is Σ x zᵀ − c Σ zᵀ; None if float32 is too short."""
        values, weights = panel.values, panel.weights
        if state.weight == 0 and self.origin is None:
            state = replace(state, origin=sampled_origin(values, values.dtype))
        sums = squares = np.zeros(values.shape[1])
        total = squared = float(len(panel))
        if weights is not None:
            total, squared = float(weights.sum()), float(weights @ weights)
        if self.moments:
            sums, squares = shifted_moments(values, state.origin.astype(values.dtype), weights, self.n_threads)
            self._require_finite(squares, panel, values.dtype)
            if underflows(values, state.origin, squares):
                return None
            low, high = SAFE_SQUARES
            if values.dtype == np.float32 and not ((squares == 0) | ((low < squares) & (squares < high))).all():
                return None
        self._add_products(state.products, values, weights, state.origin)
        return replace(
            state,
            n_samples=state.n_samples + len(panel),
            weight=state.weight + total,
            weight_squares=state.weight_squares + squared,
            sums=state.sums + sums,
            squares=state.squares + squares,
        )

    def _add_panel(self, state: SketchState, panel: Block, dtype: np.dtype[Any]) -> SketchState:
        values = panel.values
        if state.weight == 0 and self.origin is None:
            state = replace(state, origin=sampled_origin(values, dtype))
        rows = borrow("panel", values.shape, dtype)
        missing = np.isnan(values) if self.missing == "pairwise" and values.dtype.kind == "f" else None
        sums, squares = shifted(values, state.origin.astype(dtype), rows, missing, self.moments)
        self._require_finite(squares, panel, dtype)
        if self.moments:
            mark_underflow(rows, squares)
        total = squared = float(len(panel))
        weights = panel.weights
        in_range = dtype != np.float32 or (
            (not self.moments or within_float32(squares, rows)) and (weights is None or weights_within_float32(weights))
        )
        if not in_range:
            middle = max(1, (len(panel) + 1) // 2)  # in halves, so that the scratch does not grow
            for start in range(0, len(panel), middle):
                state = self._add_panel(state, panel.part(start, start + middle), np.dtype(np.float64))
            return state
        if weights is not None:
            total, squared = float(weights.sum()), float(weights @ weights)
            sums, squares = weighted_moments(rows, weights)
        self._add_products(state.products, rows, weights)
        observed = state.observed
        if len(observed):
            share = np.full(values.shape[1], total) if missing is None else observed_weights(missing, weights)
            observed = observed + share
        return replace(
            state,
            n_samples=state.n_samples + len(panel),
            weight=state.weight + total,
            weight_squares=state.weight_squares + squared,
            sums=state.sums + sums,
            squares=state.squares + squares,
            observed=observed,
            n_missing=state.n_missing + (0 if missing is None else int(missing.sum())),
        )

    def _require_finite(self, squares: FloatArray, panel: Block, dtype: np.dtype[Any]) -> None:
        finite = np.isfinite(squares)
        if finite.all():
            return
        if self.missing == "pairwise":
            refuse_infinite(panel.values, panel.start)
        else:
            refuse_not_finite(panel.values, panel.start)
        if dtype == np.float64:
            refuse_overflow(finite, panel.start, len(panel))

    def _add_products(
        self, products: FloatArray, rows: NDArray[Any], weights: FloatArray | None, origin: FloatArray | None = None
    ) -> None:
        """Add Σ w z (x − origin)ᵀ for z = (x − origin)ᵀΩ and the x of `rows`: rows by parts, then features by slabs."""
        n_rows, n_features = rows.shape
        test = self.test if self.test.dtype == rows.dtype else self.test.astype(rows.dtype)
        projected = borrow("projected", (n_rows, self.n_columns), rows.dtype)
        step = max(_PART_ROWS, -(-n_rows // _PARTS))
        shift = None if origin is None else project(origin[None], self.test)[0].astype(rows.dtype)

        def multiply(start: int) -> None:
            part = slice(start, start + step)
            np.matmul(rows[part], test, out=projected[part])
            if shift is not None:
                projected[part] -= shift
            if weights is not None:
                projected[part] *= weights[part].astype(rows.dtype)[:, None]

        def add(start: int) -> None:
            slab = slice(start, start + _SLAB_FEATURES)
            product = borrow("product", (len(products[slab]), self.n_columns), rows.dtype)
            with np.errstate(over="ignore", invalid="ignore"):  # refused by name at the end
                np.matmul(rows[:, slab].T, projected, out=product)
            if origin is not None:
                np.subtract(product, origin[slab].astype(rows.dtype)[:, None] * along, out=product)
            products[slab] += product

        spread(multiply, range(0, n_rows, step), self.n_threads)
        along = None if origin is None else column_sums(projected).astype(rows.dtype)
        spread(add, range(0, n_features, _SLAB_FEATURES), self.n_threads)

    def _add_sparse(self, state: SketchState, block: Block) -> SketchState:
        """Add csr rows in float64, about zero where they are sparse, and about a number near their mean where they are not."""
        refuse_stored(block.values, block.start)
        block = block.counted()
        n_rows, weights = len(block), block.weights
        if n_rows == 0:
            return state
        columns = csc_array(block.values, dtype=np.float64)
        columns, origin = shift_full_columns(columns, state.origin)
        mark_underflow_of_stored(columns)
        state = self._with_origin(state, np.where(state.origin != 0, state.origin, origin))
        ones = np.ones(n_rows) if weights is None else weights
        with np.errstate(over="ignore"):
            squares = np.asarray(columns.multiply(columns).T @ ones)
        if not np.isfinite(squares).all():
            refuse_overflow(np.isfinite(squares), block.start, n_rows)
        projected = columns @ self.test.astype(np.float64, copy=False)
        if weights is not None:
            projected *= weights[:, None]
        for start in range(0, columns.shape[1], _SLAB_FEATURES):
            slab = slice(start, start + _SLAB_FEATURES)
            state.products[slab] += np.asarray(columns[:, slab].T @ projected)
        total, squared = float(ones.sum()), float(ones @ ones)
        sums = np.asarray(columns.T @ ones)
        sums, squares = self._move(state.products, origin - state.origin, total, sums, squares)
        return replace(
            state,
            n_samples=state.n_samples + n_rows,
            weight=state.weight + total,
            weight_squares=state.weight_squares + squared,
            sums=state.sums + sums,
            squares=state.squares + squares,
        )

    def _with_origin(self, state: SketchState, origin: FloatArray) -> SketchState:
        """Return `state` with its sums about `origin`, in the same memory."""
        away = state.origin - origin
        sums, squares = self._move(state.products, away, state.weight, state.sums, state.squares)
        return replace(state, origin=origin, sums=sums, squares=squares)

    def _move(
        self, products: FloatArray, away: FloatArray, weight: float, sums: FloatArray, squares: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Move what was summed about an origin `away` from that of `products`, and added there, to that of `products`.

        Σ w (x + a)(x + a)ᵀ Ω = Σ w x xᵀ Ω + s (aᵀΩ) + a (sᵀΩ + W aᵀΩ) for the sum s of the x. Returns sums and squares.
        """
        if not away.any():
            return sums, squares
        along, summed = project(np.stack([away, sums]), self.test)
        products += np.outer(sums, along)
        products += np.outer(away, summed + weight * along)
        return sums + weight * away, squares + away * (2 * sums + weight * away)

    def merge(self, states: Sequence[SketchState]) -> SketchState:
        """Return the state of all rows behind `states`, merged from left to right; none of them is changed."""
        total = self.init(len(states[0].origin))
        for state in states:
            total = self.absorb(total, state)
        return total

    def absorb(self, state: SketchState, other: SketchState) -> SketchState:
        """Return the state of the rows behind both, in the memory of `state`; `MergeError` if their Ω differ."""
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
        away = other.origin - state.origin
        if away.any() and len(state.observed):
            raise MergeError("sketches of rows with missing values need one origin to be merged")
        np.add(state.products, other.products, out=state.products)
        sums, squares = self._move(state.products, away, other.weight, other.sums, other.squares)
        return replace(
            state,
            n_samples=state.n_samples + other.n_samples,
            n_left_out=state.n_left_out + other.n_left_out,
            weight=state.weight + other.weight,
            weight_squares=state.weight_squares + other.weight_squares,
            sums=state.sums + sums,
            squares=state.squares + squares,
            observed=state.observed + other.observed,
            n_missing=state.n_missing + other.n_missing,
        )

    def finalize(self, state: SketchState) -> Sketched:
        """Return the products of the covariance matrix; `DataError` if there are too few rows. `state` is not changed."""
        divisor = state.weight - self.ddof
        if divisor <= 0:
            raise DataError(
                f"n_samples={state.n_samples} of weight {state.weight:g} gives no variance with ddof={self.ddof}: at least "
                f"{self.ddof + 1} samples are needed" + ("; found 1 sample" if state.n_samples == 1 else "")
            )
        if not np.isfinite(state.products).all():
            raise DataError(
                "the products of the rows are not finite: their magnitudes leave the range of the type; rescale them"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by name
            products, variance, diagonal = self._of_observed(state) if len(state.observed) else self._of_all(state)
        finite = np.isfinite(variance) & np.isfinite(diagonal) & np.isfinite(products).all(axis=1)
        if not finite.all():
            raise DataError(
                f"the variance of feature {int(np.flatnonzero(~finite)[0])} overflows float64, or its products: rescale it first"
            )
        squares = variance * divisor
        if not (self.center or self.scale):
            squares = sums_about_zero(squares, state.mean, state.weight)
        refuse_underflow(squares, scale=self.scale)
        if self.scale:
            deviation = np.sqrt(variance)
            weights = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
        else:
            weights = np.ones_like(variance)
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
                self._test_of(state),
                products,
            ),
            weights,
        )

    def _of_all(self, state: SketchState) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return scatter times Ω, variances, and the diagonal of the scatter."""
        sums, origin, weight = state.sums, state.origin, state.weight
        scatter = np.maximum(state.squares - sums**2 / weight, 0.0)
        # What is left of a feature that never varies is rounding of the sums.
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
        """Return the same where values are missing at random: divided by the shares of rows that were observed."""
        weight, observed = state.weight, state.observed
        _require_observed(observed, self.ddof)
        share, mean = observed / weight, state.sums / observed  # about the origin
        variance = np.maximum(state.squares - observed * mean**2, 0.0) / (observed - self.ddof)
        scatter = variance * (weight - self.ddof)
        # P⁻¹ S P⁻¹ · PΩ, whose diagonal S / p² has to become that of `scatter` and the mean, which is then taken out as always.
        products = state.products / share[:, None]
        own = (state.squares * (1 / share - 1 / share**2) + variance * self.ddof * (1 / share - 1))[:, None]
        test = self.test * share[:, None]
        products += own * test
        products -= np.outer(weight * mean, project(mean[None], test)[0])
        if not self.center:
            self._add_means(products, weight, state.mean, variance, test)
            return products, variance, scatter + weight * state.mean**2
        return products, variance, scatter

    def _add_means(
        self, products: FloatArray, weight: float, mean: FloatArray, variance: FloatArray, test: NDArray[Any]
    ) -> None:
        """Add what makes centred products those about zero: W m (mᵀΩ).

        Features that never vary have z-scores of 0, so what they add to the products of others is left out.
        """
        counted = np.where(variance > 0, mean, 0.0) if self.scale else mean
        products += np.outer(weight * mean, project(counted[None], test)[0])

    def _test_of(self, state: SketchState) -> FloatArray:
        """Return the matrix that `finalize` gives products of, as a copy: Ω, or PΩ where values may be missing."""
        test = self.test.astype(np.float64)
        if len(state.observed):
            test *= (state.observed / state.weight)[:, None]
        return test

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        return 8 * n_features * (self.n_columns + 4)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: a panel, its projection, and a slab of products for each thread."""
        rows = min(n_rows, panel_rows(n_features, np.dtype(f"f{itemsize}")))
        slab = min(n_features, _SLAB_FEATURES) * self.n_columns * itemsize
        small = rows * self.n_columns * itemsize + 2 * SLAB_BYTES + 48 * n_features
        holes = rows * n_features if self.missing != "error" else 0
        return rows * n_features * itemsize + small + self.n_threads * slab + holes


def _require_observed(observed: FloatArray, ddof: int) -> None:
    """Raise `DataError` if the weight of the rows in which a feature was `observed` gives no variance."""
    few = np.flatnonzero(observed <= ddof)
    if len(few):
        raise DataError(
            f"{len(few)} feature(s) were observed in rows of a weight that gives no variance with ddof={ddof}, first: feature "
            f"{few[0]}, weight {observed[few[0]]:g}: leave them out"
        )
