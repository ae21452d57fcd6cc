"""Mean and scatter matrix of all features, in one pass: the state of exact principal component analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import (
    FloatArray,
    centre,
    refuse_not_finite,
    refuse_overflow,
    squares_of_columns,
    step_between,
    weigh,
    work_dtype,
)
from streampca.block import Block, as_block
from streampca.errors import MergeError
from streampca.linalg.eigen import SymmetricOperator
from streampca.linalg.tiles import TileGrid, spread
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow

_PANEL_BYTES = 16 * 2**20
_PANEL_ROWS = (1024, 8192)
# Squares of float32 columns outside this range have lost digits to underflow, or are about to overflow.
_SAFE_SQUARES = (1e-28, 1e37)
_SAFE_WEIGHTS = (1e-6, 1e6)
_MOST_ROUNDING = 4e-6  # of the sum of squares of a column, above which products of float32 are taken again in float64
_SLAB_ROWS = 256  # that stay in the cache
_WIDE_ROWS = 128  # rows that are widened at a time for that


@storable
@dataclass(frozen=True)
class CovarianceState:
    """What has been seen of the rows so far."""

    n_samples: int
    """Number of rows of positive weight."""
    weight: float
    """Sum of their weights; the number of rows where none are given."""
    weight_squares: float
    """Sum of the squares of their weights."""
    origin: FloatArray
    """A number near the mean of each feature, shape ``(n_features,)``."""
    offset: FloatArray
    """Mean of each feature minus `origin`, shape ``(n_features,)``."""
    scatter: FloatArray
    """Sum of (x − mean)(x − mean)ᵀ over the rows, as the flat tiles of a `TileGrid`."""

    @property
    def mean(self) -> FloatArray:
        """Return the mean of each feature, shape ``(n_features,)``."""
        return self.origin + self.offset


@dataclass(frozen=True)
class Covariance:
    """Covariance (or correlation, or second-moment) matrix of the features.

    A block is taken in panels of a few thousand rows. Each is centred by its own mean (see `centring`), multiplied by
    itself in the precision of the data (float32 for float32, float16, bool and 8-bit integers, else float64), and added
    in float64 to the scatter with the rank-one term of Chan, Golub & LeVeque (1983), eq. 2.1:
    ``M = M1 + M2 + (n1 n2 / n) (m2 − m1)(m2 − m1)ᵀ``. Cost: n d² flops, one pass, 4 d² to 8 d² bytes.
    """

    center: bool = True
    """Subtract the mean; if not, second moments about zero are taken."""
    scale: bool = False
    """Divide every feature by its standard deviation (of the same `ddof`): the correlation matrix."""
    ddof: int = 1
    """The scatter is divided by n − ddof."""
    forgetting: float = 1.0
    """What the weight of a row is multiplied by with every row after it, in (0, 1]; below 1 rows are merged in order."""
    tile_size: int = 1024
    """Largest side of a tile of the scatter; enters the bits of the result."""
    n_threads: int = field(default=1, compare=False)
    """Threads that share the tiles of one update; changes the time, never the bits."""

    def grid(self, n_features: int) -> TileGrid:
        """Return how the scatter is stored."""
        return TileGrid(n_features, self.tile_size)

    def init(self, n_features: int) -> CovarianceState:
        """Return the state of no rows, the identity of `merge`."""
        scatter = np.zeros(self.grid(n_features).size)
        return CovarianceState(0, 0.0, 0.0, np.zeros(n_features), np.zeros(n_features), scatter)

    def update(self, state: CovarianceState, block: Block | NDArray[Any]) -> CovarianceState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)``, added to it in place.

        A row of weight w counts as w rows (frequency weights): weights need not be integers.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN or infinity, or overflow when squared.
        """
        block = as_block(block)
        n_panels = -(-len(block) // panel_rows(block.values.shape[1], work_dtype(block.values.dtype)))
        for i in range(n_panels):
            start, stop = len(block) * i // n_panels, len(block) * (i + 1) // n_panels
            panel = block.part(start, stop)
            if self.forgetting != 1:
                state, panel = self._faded(state, len(panel)), replace(panel, weights=self._fading(len(panel)))
            else:
                panel = panel.counted()
            state = self._add_panel(state, panel, work_dtype(block.values.dtype))
        return state

    def _add_panel(self, state: CovarianceState, panel: Block, dtype: np.dtype[Any]) -> CovarianceState:
        n_rows = len(panel)
        if n_rows == 0:
            return state
        rows = borrow("panel", panel.values.shape, dtype)
        seen = centre(panel.values, rows)
        if not seen.finite.all():
            refuse_not_finite(panel.values, panel.start)
            if dtype == np.float64:
                refuse_overflow(seen.finite, panel.start, n_rows)
        total = squares = float(n_rows)
        mean = rest = seen.rest
        n_counted = n_rows
        if panel.weights is not None:
            weights = panel.weights
            total, squares = float(weights.sum()), float(weights @ weights)
            # Weights that are powers of the forgetting factor vanish in the end; their rows have still been seen.
            n_counted = int(np.count_nonzero(weights)) if self.forgetting == 1 else n_rows
            if not total:
                return replace(state, n_samples=state.n_samples + n_counted)
            if dtype == np.float32 and not weights_within_float32(weights):
                return self._add_in_float64(state, panel)
            mean, rest = weigh(rows, weights, seen.origin)
        if dtype == np.float32 and not within_float32(seen.squares, rows):
            return self._add_in_float64(state, panel)
        if state.weight == 0:
            state = replace(state, origin=seen.origin, offset=mean)
        step = step_between(state.origin, state.offset, seen.origin, mean)
        n = state.weight + total
        exact = None if dtype == np.float64 else seen.squares if panel.weights is None else sums_of_squares(rows)
        self.add_scatter(state.scatter, rows, step, state.weight * total / n, rest, total, exact)
        return CovarianceState(
            state.n_samples + n_counted,
            n,
            state.weight_squares + squares,
            state.origin,
            state.offset + step * (total / n),
            state.scatter,
        )

    def _add_in_float64(self, state: CovarianceState, panel: Block) -> CovarianceState:
        """Add a panel whose squares leave the range of float32, in halves so that the scratch does not grow."""
        middle = (len(panel) + 1) // 2
        for start in range(0, len(panel), middle):
            state = self._add_panel(state, panel.part(start, start + middle), np.dtype(np.float64))
        return state

    def add_scatter(
        self,
        scatter: FloatArray,
        rows: NDArray[Any],
        step: FloatArray,
        weight: float,
        rest: FloatArray,
        total: float,
        squares: FloatArray | None = None,
    ) -> None:
        """Add rowsᵀ rows + weight · step stepᵀ − total · rest restᵀ to `scatter`, tile by tile.

        `squares` are the sums of squares of float32 columns. Where the diagonal of a product differs from them by more
        than 4e-6, the products with these features are taken again in float64: in a column of one value far from many
        small ones, each of the small squares is rounded alike, or lost, when it is added to the large one.
        """
        grid = self.grid(rows.shape[1])
        left = np.stack([step * weight, rest * -total], axis=1)
        right = np.stack([step, rest])
        lossy = np.zeros(len(grid.edges) - 1, dtype=bool)

        @np.errstate(over="ignore", invalid="ignore")  # the caller checks that the scatter is finite
        def multiply(pair: tuple[int, int]) -> NDArray[Any]:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            product = borrow("product", (i.stop - i.start, j.stop - j.start), rows.dtype)
            return np.matmul(rows[:, i].T, rows[:, j], out=product)

        @np.errstate(over="ignore", invalid="ignore")
        def add(pair: tuple[int, int], product: NDArray[Any] | None = None) -> None:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            tile = grid.tile(scatter, *pair)
            if lossy[pair[0]] or lossy[pair[1]]:
                _add_widened(tile, rows[:, i], rows[:, j], left[i], right[:, j])
                return
            product = multiply(pair) if product is None else product
            # A hundred rows at a time stay in the cache for the three additions.
            for start in range(0, len(tile), 128):
                part = slice(start, start + 128)
                tile[part] += product[part]
                tile[part] += left[i][part] @ right[:, j]

        def add_checked(i: int) -> None:
            product, exact = multiply((i, i)), squares[grid.features(i)]  # type: ignore[index]
            lossy[i] = bool((np.abs(product.diagonal() - exact) > _MOST_ROUNDING * exact).any())
            if (i, i) in grid.pairs:
                add((i, i), product)

        if squares is None:
            spread(add, grid.pairs, self.n_threads)
        else:
            # A part of the tiles may lack those on the diagonal, which tell what is lossy.
            spread(add_checked, sorted({i for pair in grid.pairs for i in pair}), self.n_threads)
            spread(add, [pair for pair in grid.pairs if pair[0] != pair[1]], self.n_threads)

    def merge(self, states: Sequence[CovarianceState]) -> CovarianceState:
        """Return the state of all rows behind `states`, merged from left to right; none of them is changed."""
        total = self.init(len(states[0].origin))
        for state in states:
            total = self.absorb(total, state)
        return total

    def absorb(self, state: CovarianceState, other: CovarianceState) -> CovarianceState:
        """Return the state of the rows behind both, in the memory of `state`; `MergeError` if they are stored differently."""
        if state.origin.shape != other.origin.shape or state.scatter.shape != other.scatter.shape:
            raise MergeError(
                f"states of {len(state.origin)} and {len(other.origin)} features, stored in {state.scatter.size} and "
                f"{other.scatter.size} entries, cannot be merged: expected the same features and tile_size"
            )
        if other.n_samples == 0:
            return state
        if self.forgetting != 1:
            state = self._faded(state, other.n_samples)
        np.add(state.scatter, other.scatter, out=state.scatter)
        if state.weight == 0:
            return replace(other, scatter=state.scatter, n_samples=state.n_samples + other.n_samples)
        n = state.weight + other.weight
        step = step_between(state.origin, state.offset, other.origin, other.offset)
        weighted = step * (state.weight * other.weight / n)
        self.grid(len(step)).add_outer(state.scatter, weighted[:, None], step[None], self.n_threads)
        return CovarianceState(
            state.n_samples + other.n_samples,
            n,
            state.weight_squares + other.weight_squares,
            state.origin,
            state.offset + step * (other.weight / n),
            state.scatter,
        )

    def subtract(
        self, state: CovarianceState, other: CovarianceState, precision: float = 1e-14
    ) -> tuple[CovarianceState, float]:
        """Return the state of the rows of `state` without those of `other`, in the memory of `state`: undo `absorb`.

        What remains keeps the absolute rounding of what there was, relative to which `precision` is the error of a
        variance. The second value is how many times larger that error is relative to what remains.

        Raises
        ------
        MergeError
            If rows would become negative, or what remains of a variance is below the rounding of what was taken away;
            `state` is not changed then.
        """
        weight = state.weight - other.weight
        n_samples = state.n_samples - other.n_samples
        if self.forgetting != 1 or state.scatter.shape != other.scatter.shape:
            raise MergeError("states with a forgetting factor, or of other features or tile_size, cannot be subtracted")
        if n_samples < 0 or weight < 0 or (n_samples > 0 and weight <= precision * state.weight):
            raise MergeError(
                f"{other.n_samples} rows of weight {other.weight:g} cannot be taken out of {state.n_samples} rows of weight "
                f"{state.weight:g}: expected rows that are among them"
            )
        if n_samples == 0 or other.n_samples == 0:
            return (self.init(len(state.origin)) if n_samples == 0 else state), 1.0
        grid = self.grid(len(state.origin))
        step = step_between(state.origin, state.offset, other.origin, other.offset)
        between = step * (state.weight * other.weight / weight)
        before = grid.diagonal(state.scatter)
        away = grid.diagonal(other.scatter) + between * step
        remains = before - away
        lost = (away > 0) & (remains <= precision * np.maximum(before, away))
        if lost.any():
            j = int(np.flatnonzero(lost)[0])
            raise MergeError(
                f"nothing reliable remains of {int(lost.sum())} feature(s): of the scatter {before[j]:.3g} of feature {j}, "
                f"{away[j]:.3g} would be taken away, and what remains is below its rounding: fit the rows that remain"
            )
        np.subtract(state.scatter, other.scatter, out=state.scatter)
        grid.add_outer(state.scatter, -between[:, None], step[None], self.n_threads)
        error_growth = float(np.divide(before, remains, out=np.ones_like(before), where=remains > 0).max(initial=1.0))
        squares = max(0.0, state.weight_squares - other.weight_squares)
        offset = state.offset - step * (other.weight / weight)
        return CovarianceState(n_samples, weight, squares, state.origin, offset, state.scatter), error_growth

    def divisor(self, state: CovarianceState) -> float:
        """Return what the scatter is divided by: W − ddof, or W − ddof W₂ / W for weights that say how reliable rows are."""
        return state.weight - self._ddof(state)

    def _ddof(self, state: CovarianceState) -> float:
        return (
            self.ddof if self.forgetting == 1 or not state.weight else self.ddof * state.weight_squares / state.weight
        )

    def _fading(self, n_rows: int) -> FloatArray:
        """Return the weights of rows of which the last has weight 1; old ones underflow to 0, as they should."""
        with np.errstate(under="ignore"):
            return np.asarray(self.forgetting ** np.arange(n_rows - 1, -1, -1, dtype=np.float64))

    def _faded(self, state: CovarianceState, n_rows: int) -> CovarianceState:
        """Return `state` as it weighs once `n_rows` more rows have come, in its memory."""
        factor = float(self.forgetting) ** n_rows
        with np.errstate(under="ignore"):
            np.multiply(state.scatter, factor, out=state.scatter)
        return replace(state, weight=state.weight * factor, weight_squares=state.weight_squares * factor**2)

    def finalize(self, state: CovarianceState) -> SymmetricOperator:
        """Return the symmetric matrix whose eigenpairs are the principal components; shares memory with `state`."""
        return SymmetricOperator.of_scatter(
            grid=self.grid(len(state.origin)),
            scatter=state.scatter,
            mean=state.mean,
            n_samples=state.n_samples,
            weight=state.weight,
            center=self.center,
            scale=self.scale,
            ddof=self._ddof(state),
            n_threads=self.n_threads,
        )

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        return 8 * (self.grid(n_features).size + 2 * n_features)

    def finalize_bytes(self, n_features: int) -> int:
        """Return the memory in bytes that `finalize` takes beside the state."""
        return 0

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of updates with blocks of `n_rows` rows: a panel and a product per thread.

        `itemsize` is that of the floating type in which products are taken.
        """
        dtype = np.dtype(np.float32 if itemsize <= 4 else np.float64)
        panel = min(n_rows, panel_rows(n_features, dtype)) * n_features * dtype.itemsize
        # A product grows to float64 where float32 would overflow, or round too much.
        side = self.grid(n_features).longest_side
        return panel + self.n_threads * 8 * side * (side + 2 * _WIDE_ROWS)


def _add_widened(tile: FloatArray, one: NDArray[Any], other: NDArray[Any], left: FloatArray, right: FloatArray) -> None:
    """Add oneᵀ other + left right to `tile` with products in float64, some rows at a time."""
    product = borrow("product", tile.shape, np.dtype(np.float64))
    tile += np.matmul(left, right, out=product)
    for start in range(0, len(one), _WIDE_ROWS):
        part = slice(start, start + _WIDE_ROWS)
        tile += np.matmul(one[part].astype(np.float64).T, other[part].astype(np.float64), out=product)


def sums_of_squares(rows: NDArray[Any]) -> FloatArray:
    """Return the sum of squares of each column."""
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _SLAB_ROWS):
        total += squares_of_columns(rows[start : start + _SLAB_ROWS])
    return total


def panel_rows(n_features: int, dtype: np.dtype[Any]) -> int:
    """Return how many rows are multiplied at once.

    Few enough for float32 sums (1e-8 relative at 8,192), many enough that adding the product to the scatter costs
    little beside making it.
    """
    low, high = _PANEL_ROWS
    return max(low, min(high, _PANEL_BYTES // max(1, n_features * dtype.itemsize)))


def within_float32(squares: FloatArray, rows: NDArray[Any]) -> bool:
    """Tell whether products of the centred `rows` keep their digits in float32."""
    low, high = _SAFE_SQUARES
    if not (squares < high).all() or ((squares > 0) & (squares < low)).any():
        return False
    vanished = squares == 0
    return not (vanished.any() and any(rows[i : i + 256, vanished].any() for i in range(0, len(rows), 256)))


def weights_within_float32(weights: FloatArray) -> bool:
    """Tell whether rows times the square roots of `weights` keep their digits in float32; small beside the largest may vanish."""
    low, high = _SAFE_WEIGHTS
    return bool(low <= weights.max() <= high)
