"""Mean and scatter matrix of all features, in one pass: the state of exact principal component analysis."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import ClassVar, Self

import numpy as np

from streampca.accumulators.base import Accumulator, StateAboutOrigin, require_same_layout
from streampca.accumulators.centring import (
    WIDE_ROWS,
    Panel,
    add_product_in_float64,
    centre_columns,
    centred_panel,
    lossy_features,
    may_be_overwritten,
    product_dtype,
    safe_panels,
    step_between,
    weighed_panel,
    within_float32,
)
from streampca.block import Block, EqualRows, as_block
from streampca.errors import MergeError
from streampca.formatting import plural
from streampca.linalg.eigen import Scatter, SymmetricOperator
from streampca.linalg.scaling import Scale, scaling_of
from streampca.linalg.tiles import TileGrid, spread, tile_grid
from streampca.storage.state_file import storable
from streampca.system.phases import Phase
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray, override

_PANEL_BYTES = 32 * 2**20
_PANEL_ROWS = (1024, 8192)
_WIDE_PANEL = (1.5, 3072)  # bytes for each entry of the matrix, and rows, of panels of many features
_STRIP_ROWS = 32  # rows of a tile that fit in the cache with what is added to them
_SHARED_FROM = 768  # features of one tile from which making it in parts costs less than two hundredths


@storable
@dataclass(frozen=True)
class CovarianceState(StateAboutOrigin):
    """Mean and scatter matrix of the accumulated rows."""

    n_samples: int
    """Number of rows of positive weight."""
    weight: float
    """Sum of their weights; the number of rows if no weights are given."""
    weight_squares: float
    """Sum of the squares of their weights."""
    origin: FloatArray
    """A number near the mean of each feature, shape ``(n_features,)``."""
    offset: FloatArray
    """Mean of each feature minus `origin`, shape ``(n_features,)``."""
    scatter: FloatArray
    """Sum of (x − mean)(x − mean)ᵀ over the rows, as the flat tiles of a `TileGrid`."""

    def joined(
        self, counts: tuple[int, float, float], origin: FloatArray, offset: FloatArray
    ) -> tuple[CovarianceState, FloatArray, float]:
        """Return the state with more rows except their scatter, the difference of the means, and the factor of its outer product.

        `counts` are the number of rows, the sum of their weights and the sum of the squared weights; ``origin + offset``
        is their mean. The caller adds their scatter and the outer product to the memory of `scatter`, which is kept.
        """
        n_rows, added, squares = counts
        first, before = (origin, offset) if self.weight == 0 else (self.origin, self.offset)
        step, weight = step_between(first, before, origin, offset), self.weight + added
        moved = before + step * (added / weight)
        n_samples, squares = self.n_samples + n_rows, self.weight_squares + squares
        state = CovarianceState(n_samples, weight, squares, first, moved, self.scatter)
        return state, step, self.weight * added / weight


@dataclass(frozen=True)
class Covariance(Accumulator[CovarianceState, SymmetricOperator]):
    """Covariance (or correlation, or second-moment) matrix of the features.

    A block is split into panels of a few thousand rows. Each panel is centred by its mean (see `centring`), multiplied by
    its transpose (in float32 for float32, float16, bool and 8-bit integers with more than 64 features, otherwise in
    float64), and added in float64 to the scatter with the rank-one term of Chan, Golub & LeVeque (1983), eq. 2.1:
    ``M = M1 + M2 + (n1 n2 / n) (m2 − m1)(m2 − m1)ᵀ``. Cost: n d² flops, one pass, 4 d² to 8 d² bytes.

    References
    ----------
    Chan, Golub & LeVeque (1983), Algorithms for computing the sample variance: analysis and recommendations.

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(100, 3))
    >>> covariance = sp.accumulators.Covariance()
    >>> state = covariance.update(covariance.init(3), rows)
    >>> state.n_samples
    100
    """

    center: bool = True
    """Subtract the mean; otherwise use second moments about zero."""
    scale: Scale = False
    """Divide features by their standard deviations, or variables by the roots of their variances (of the same `ddof`)."""
    ddof: int = 1
    """The scatter is divided by n − ddof."""
    forgetting: float = 1.0
    """Factor in (0, 1] by which each later row multiplies the weight of a row; below 1, states must merge in row order."""
    tile_size: int = 1024
    """Largest side of a tile of the scatter; it affects the bits of the result."""
    n_threads: int = field(default=1, compare=False)
    """Number of threads that share the tiles of one update; it does not affect the bits."""
    reuses_states: ClassVar[bool] = True

    @override
    def for_reading(self) -> Self:
        return replace(self, center=True, scale=False, ddof=1)

    def grid(self, n_features: int) -> TileGrid:
        """Return the tile layout of the scatter."""
        return tile_grid(n_features, self.tile_size)

    @override
    def shares(self, n_features: int) -> int:
        n_tiles = self.grid(n_features).n_tiles
        return n_tiles if n_tiles > 1 else shares_of_one_tile(n_features)

    @override
    def init(self, n_features: int) -> CovarianceState:
        scatter = np.zeros(self.grid(n_features).size)
        return CovarianceState(0, 0.0, 0.0, np.zeros(n_features), np.zeros(n_features), scatter)

    @override
    def init_within(self, n_features: int, state: CovarianceState) -> CovarianceState:
        self.grid(n_features).clear(state.scatter, self.n_threads)
        return CovarianceState(0, 0.0, 0.0, np.zeros(n_features), np.zeros(n_features), state.scatter)

    def update(self, state: CovarianceState, block: Block | Array) -> CovarianceState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)``, added to it in place.

        A row of weight w counts as w rows (frequency weights): weights need not be integers.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN or infinity, or overflow when squared.
        """
        block = as_block(block)
        dtype = product_dtype(block.values.dtype, block.values.shape[1])
        panel_of = partial(centred_panel, grid=self.grid(block.values.shape[1]), n_threads=self.n_threads)
        others, equal = block.apart() if self.forgetting == 1 else ([block], None)
        in_place = self.forgetting == 1 and dtype == np.float32 and may_be_overwritten(block)
        for part in chain.from_iterable(other.panels(panel_rows(block.values.shape[1], dtype)) for other in others):
            if self.forgetting != 1:
                state = self._faded(state, len(part))
                rows = replace(part, weights=self._fading(len(part)))
            elif in_place and (panel := self._in_place(part)) is not None:
                state = self.add_panel(state, panel)
                continue
            else:
                in_place, rows = False, part.counted()  # a block is read again once at most
            for panel in safe_panels(rows, dtype, panel_of):
                state = self.add_panel(state, panel)
        return state if equal is None else self.add_equal(state, equal)

    def add_equal(self, state: CovarianceState, rows: EqualRows, offset: FloatArray | None = None) -> CovarianceState:
        """Return `state` with rows added that all equal ``rows.row + offset``, in closed form: one outer product."""
        if not rows.weight:
            return state
        origin, zeros = rows.row.astype(np.float64), np.zeros(len(rows.row))
        offset = zeros if offset is None else offset
        state, step, factor = state.joined((rows.n_rows, rows.weight, rows.weight_squares), origin, offset)
        self.grid(len(step)).add_outer(state.scatter, (step * factor)[:, None], step[None], self.n_threads)
        return state

    def _in_place(self, block: Block) -> Panel | None:
        """Overwrite float32 rows with the centred rows; None, with the rows unchanged, if their products lose digits in float32."""
        rows = block.values
        with Phase("centring"):
            centred = centre_columns(rows, rows, self.grid(rows.shape[1]), self.n_threads)
            if centred.finite.all() and within_float32(centred.squares, rows):
                return weighed_panel(block, rows, centred)
        if block.read_again is not None:
            block.read_again()
        return None

    def add_panel(self, state: CovarianceState, panel: Panel) -> CovarianceState:
        """Return `state` with the rows of `panel` added to it in place."""
        if not panel.counts[1]:  # forgotten rows, whose weights underflow, count as rows all the same
            return replace(state, n_samples=state.n_samples + panel.counts[0])
        state, step, factor = state.joined(panel.counts, panel.origin, panel.mean)
        self.add_scatter(state.scatter, panel, step, factor)
        return state

    def add_scatter(self, scatter: FloatArray, panel: Panel, step: FloatArray, weight: float) -> None:
        """Add the scatter of the rows of `panel` about their mean, and weight · step stepᵀ, to `scatter`, tile by tile.

        If the diagonal of a float32 product differs from the squares of the columns by more than 7e-7 of the squares about
        the mean, or its sum by more than 1e-7, the products with these features are computed in float64. In a column with
        one large value and many small ones, all small squares are rounded in the same direction, or lost, when they are
        added to the large one. Squares of a few distinct values are also rounded in one direction.
        """
        rows, remainder, squares, (_, total, _) = panel.rows, panel.remainder, panel.squares, panel.counts
        grid = self.grid(rows.shape[1])
        left = np.array([step * weight, remainder * -total]).T.copy()
        right = np.array([step, remainder])
        if len(grid.edges) == 2:
            self._add_to_one_tile(grid.tile(scatter, 0, 0), panel, left, right)
            return
        lossy = np.zeros(rows.shape[1], dtype=bool)

        def multiply(pair: tuple[int, int]) -> Array:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            product = borrow("product", (i.stop - i.start, j.stop - j.start), rows.dtype)
            return np.matmul(rows[:, i].T, rows[:, j], out=product)

        @np.errstate(over="ignore", invalid="ignore")  # the caller checks that the scatter is finite
        def add(pair: tuple[int, int], product: Array | None = None) -> None:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            tile = grid.tile(scatter, *pair)
            again = lossy[i], lossy[j]
            if again[0].all() or again[1].all():
                tile += np.matmul(left[i], right[:, j], out=borrow("product", tile.shape, np.dtype(np.float64)))
                add_product_in_float64(tile, rows[:, i], rows[:, j], again)
                return
            product = multiply(pair) if product is None else product
            product[again[0]], product[:, again[1]] = 0, 0
            outer = borrow("outer", (_STRIP_ROWS, tile.shape[1]), np.float64)
            for start in range(0, len(tile), _STRIP_ROWS):
                strip = slice(start, start + _STRIP_ROWS)
                term = np.matmul(left[i][strip], right[:, j], out=outer[: len(tile[strip])])
                term += product[strip]
                tile[strip] += term
            if again[0].any() or again[1].any():
                add_product_in_float64(tile, rows[:, i], rows[:, j], again)

        @np.errstate(over="ignore", invalid="ignore")
        def add_checked(i: int) -> None:
            columns = grid.features(i)
            product, exact = multiply((i, i)), squares[columns]  # type: ignore[index]
            # At most half of the squares are those of a mean (dense_panel).
            about_mean = np.maximum(exact - total * np.square(remainder[columns]), exact / 4)
            lossy[columns] = lossy_features(product.diagonal(), exact, about_mean)
            if (i, i) in grid.pairs:
                add((i, i), product)

        if squares is None:
            spread(add, grid.pairs, self.n_threads)
        else:
            # A group of tiles may not include the diagonal tiles, from which the lossy features are determined.
            spread(add_checked, sorted({i for pair in grid.pairs for i in pair}), self.n_threads)
            spread(add, [pair for pair in grid.pairs if pair[0] != pair[1]], self.n_threads)

    def _add_to_one_tile(self, tile: FloatArray, panel: Panel, left: FloatArray, right: FloatArray) -> None:
        """Add the products of the rows of `panel`, and ``left @ right``, to the only tile, like `add_scatter`.

        With many features, two threads share the products: one multiplies the two halves with each other, the other each half with itself.
        """
        rows, squares, (_, total, _) = panel.rows, panel.squares, panel.counts
        middle = len(tile) // 2 if shares_of_one_tile(len(tile)) > 1 else len(tile)
        halves = [half for half in (slice(0, middle), slice(middle, len(tile))) if half.start < half.stop]
        pairs = [(1, 0), (0, 0), (1, 1)] if len(halves) == 2 else [(0, 0)]
        products: dict[tuple[int, int], Array] = {}
        flat, used = borrow("product", (tile.size,), rows.dtype), 0
        for i, j in pairs:
            shape = halves[i].stop - halves[i].start, halves[j].stop - halves[j].start
            products[i, j] = flat[used : used + shape[0] * shape[1]].reshape(shape)
            used += shape[0] * shape[1]

        def multiply(pair: tuple[int, int]) -> None:
            np.matmul(rows[:, halves[pair[0]]].T, rows[:, halves[pair[1]]], out=products[pair])

        def add(i: int) -> None:
            outer = borrow("outer", (_STRIP_ROWS, tile.shape[1]), np.float64)
            for start in range(halves[i].start, halves[i].stop, _STRIP_ROWS):
                strip = slice(start, min(start + _STRIP_ROWS, halves[i].stop))
                own = slice(strip.start - halves[i].start, strip.stop - halves[i].start)
                term = np.matmul(left[strip], right, out=outer[: strip.stop - strip.start])
                for j, half in enumerate(halves):
                    term[:, half] += products[i, j][own] if j <= i else products[j, i][:, own].T
                tile[strip] += term

        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks that the scatter is finite
            ignoring = np.errstate(over="ignore", invalid="ignore")  # of the threads that help
            spread(multiply if len(halves) == 1 else ignoring(multiply), pairs, self.n_threads)
            lossy = np.zeros(len(tile), dtype=bool)
            if squares is not None:
                about_mean = np.maximum(squares - total * np.square(panel.remainder), squares / 4)
                diagonal = np.concatenate([products[i, i].diagonal() for i in range(len(halves))])
                lossy = lossy_features(diagonal, squares, about_mean)
                for (i, j), product in products.items():
                    product[lossy[halves[i]]], product[:, lossy[halves[j]]] = 0, 0
            spread(add if len(halves) == 1 else ignoring(add), range(len(halves)), self.n_threads)
        if lossy.any():
            add_product_in_float64(tile, rows, rows, (lossy, lossy))

    def absorb(self, state: CovarianceState, other: CovarianceState) -> CovarianceState:
        """Return the merged state, in the memory of `state`; `MergeError` if the layouts differ."""
        require_same_layout(state, other, (state.scatter.size, other.scatter.size))
        if other.n_samples == 0:
            return state
        if self.forgetting != 1:
            state = self._faded(state, other.n_samples)
        grid = self.grid(len(state.origin))
        if state.weight == 0:
            grid.copy(other.scatter, state.scatter, self.n_threads)
            return replace(other, scatter=state.scatter, n_samples=state.n_samples + other.n_samples)
        counts = other.n_samples, other.weight, other.weight_squares
        state, step, factor = state.joined(counts, other.origin, other.offset)
        grid.add_outer(state.scatter, (step * factor)[:, None], step[None], self.n_threads, other.scatter)
        return state

    def subtract(
        self, state: CovarianceState, other: CovarianceState, precision: float = 1e-14
    ) -> tuple[CovarianceState, float]:
        """Remove the rows of `other` from `state`, in its memory: the inverse of `absorb`.

        The difference has the absolute rounding errors of `state`; `precision` is their size relative to the variances of
        `state`. The second returned value is the factor by which the relative error grows.

        Raises
        ------
        MergeError
            If `other` has more rows than `state`, or if the remaining variance of a feature is below the rounding of the
            removed one; `state` is then unchanged.
        """
        weight = state.weight - other.weight
        n_samples = state.n_samples - other.n_samples
        if self.forgetting != 1 or state.scatter.shape != other.scatter.shape:
            raise MergeError("states with a forgetting factor, or of other features or tile_size, cannot be subtracted")
        if n_samples < 0 or weight < 0 or (n_samples > 0 and weight <= precision * state.weight):
            raise MergeError(
                f"{other.n_samples} rows of weight {other.weight:g} cannot be subtracted from {state.n_samples} rows of weight "
                f"{state.weight:g}: expected a subset of them"
            )
        if n_samples == 0 or other.n_samples == 0:
            return (self.init(len(state.origin)) if n_samples == 0 else state), 1.0
        grid = self.grid(len(state.origin))
        step = step_between(state.origin, state.offset, other.origin, other.offset)
        between = step * (state.weight * other.weight / weight)
        before = grid.diagonal(state.scatter)
        removed = grid.diagonal(other.scatter) + between * step
        remaining = before - removed
        lost = (removed > 0) & (remaining <= precision * np.maximum(before, removed))
        if lost.any():
            j = int(np.flatnonzero(lost)[0])
            raise MergeError(
                f"nothing reliable remains of {plural(int(lost.sum()), 'feature')}: subtracting {removed[j]:.3g} from the scatter {before[j]:.3g} "
                f"of feature {j} leaves a value below its rounding: fit the remaining rows instead"
            )
        np.subtract(state.scatter, other.scatter, out=state.scatter)
        grid.add_outer(state.scatter, -between[:, None], step[None], self.n_threads)
        error_growth = float(
            np.divide(before, remaining, out=np.ones_like(before), where=remaining > 0).max(initial=1.0)
        )
        squares = max(0.0, state.weight_squares - other.weight_squares)
        offset = state.offset - step * (other.weight / weight)
        return CovarianceState(n_samples, weight, squares, state.origin, offset, state.scatter), error_growth

    def divisor(self, state: CovarianceState) -> float:
        """Return the divisor of the scatter: W − ddof, or W − ddof W₂ / W for reliability weights (with forgetting)."""
        return state.weight - self._ddof(state)

    def _ddof(self, state: CovarianceState) -> float:
        return (
            self.ddof if self.forgetting == 1 or not state.weight else self.ddof * state.weight_squares / state.weight
        )

    def _fading(self, n_rows: int) -> FloatArray:
        """Return the weights of consecutive rows, the last of weight 1; weights of old rows may underflow to 0."""
        with np.errstate(under="ignore"):
            return np.asarray(self.forgetting ** np.arange(n_rows - 1, -1, -1, dtype=np.float64))

    def _faded(self, state: CovarianceState, n_rows: int) -> CovarianceState:
        """Return `state` with its weights reduced for `n_rows` later rows, in its memory."""
        factor = float(self.forgetting) ** n_rows
        with np.errstate(under="ignore"):
            np.multiply(state.scatter, factor, out=state.scatter)
        return replace(state, weight=state.weight * factor, weight_squares=state.weight_squares * factor**2)

    def finalize(self, state: CovarianceState) -> SymmetricOperator:
        """Return the symmetric matrix whose eigenpairs are the principal components; shares memory with `state`."""
        return SymmetricOperator.of_scatter(
            Scatter(self.grid(state.n_features), state.scatter, state.mean, state.n_samples, state.weight),
            center=self.center,
            scale=scaling_of(self.scale),
            ddof=self._ddof(state),
            n_threads=self.n_threads,
        )

    @override
    def state_bytes(self, n_features: int) -> int:
        return 8 * (self.grid(n_features).size + 2 * n_features)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of updates with blocks of `n_rows` rows: a panel and a product per thread.

        `itemsize` is the size of the floating type of the rows.
        """
        dtype = product_dtype(np.float32 if itemsize <= 4 else np.float64, n_features)
        panel = min(n_rows, panel_rows(n_features, dtype)) * n_features * dtype.itemsize
        return panel + self.product_scratch_bytes(n_features)

    def product_scratch_bytes(self, n_features: int) -> int:
        """Return the scratch memory in bytes of `add_scatter`: a product per thread, in float64 if float32 would lose too many digits."""
        grid = self.grid(n_features)
        side = grid.longest_side
        if grid.n_tiles == 1:
            return 8 * side * (side + 2 * WIDE_ROWS + self.n_threads * _STRIP_ROWS)
        return self.n_threads * 8 * side * (side + 2 * WIDE_ROWS + _STRIP_ROWS)


def shares_of_one_tile(side: int) -> int:
    """Return how many threads share the products of one tile."""
    return 2 if side >= _SHARED_FROM else 1


def panel_rows(n_features: int, dtype: DType) -> int:
    """Return the number of rows of a panel.

    It is small enough for float32 sums (1e-8 relative at 8,192), and large enough that the product takes much longer than
    its addition to the scatter. With many features, tiles of the scatter do not fit in the cache; panels then take up to
    a third of the memory of the scatter.
    """
    (low, high), (share, most) = _PANEL_ROWS, _WIDE_PANEL
    row_bytes = max(1, n_features * dtype.itemsize)
    wide = min(most, int(share * n_features**2 / row_bytes))
    return max(low, min(high, _PANEL_BYTES // row_bytes), wide)
