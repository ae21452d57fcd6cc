"""Covariance of rows with missing values (NaN) in one pass: from observed pairs, or with imputed means."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from streampca.accumulators.base import Accumulator, require_same_layout
from streampca.accumulators.centring import (
    Panel,
    add_product_in_float64,
    centre_observed,
    centred_panel,
    incomplete,
    keeps_digits,
    lossy_features,
    product_dtype,
    refuse_not_finite,
    require_finite,
    require_observed,
    safe_panels,
    step_between,
)
from streampca.accumulators.covariance import (
    Covariance,
    panel_rows,
)
from streampca.block import Block, as_block
from streampca.errors import DataError
from streampca.linalg.eigen import Scatter, SymmetricOperator
from streampca.linalg.scaling import Scale, refuse_underflow, scaling_of, sums_about_zero
from streampca.linalg.tiles import TileGrid, spread
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow
from streampca.typing import Array, DType, FloatArray, override

TileSums = tuple[Array, Array, Array, Array]

_SUMS = ("product", "left", "right", "count")
_FAR = 16.0  # weighted variances that the origin may be away from the mean, squared


@storable
@dataclass(frozen=True)
class PairwiseState:
    """Sums over the accumulated rows, with z = x − origin and m = 1 where x was observed, and z = 0 and m = 0 elsewhere."""

    n_samples: int
    """Number of rows of positive weight."""
    weight: float
    """Sum of their weights."""
    n_missing: int
    """Number of missing values in these rows."""
    complete: float
    """Sum of the weights of complete rows."""
    origin: FloatArray
    """A number near the mean of each feature, shape ``(n_features,)``; arbitrary while the feature has no observed values."""
    observed: FloatArray
    """Σ w m over all rows, shape ``(n_features,)``."""
    complete_sum: FloatArray
    """Σ w z over the complete rows, shape ``(n_features,)``."""
    scatter: FloatArray
    """Σ w z zᵀ over all rows, as the flat tiles of a `TileGrid`."""
    counts: FloatArray
    """Σ w m mᵀ over incomplete rows, as flat tiles."""
    sums: FloatArray
    """Σ w z mᵀ over incomplete rows, shape ``(n_features, n_features)``; not symmetric."""

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return len(self.origin)

    @property
    def offset(self) -> FloatArray:
        """Return the mean of the observed values of each feature minus `origin`; 0 for features without any."""
        total = self.sums.diagonal() + self.complete_sum
        return np.divide(total, self.observed, out=np.zeros_like(total), where=self.observed > 0)

    @property
    def mean(self) -> FloatArray:
        """Return the mean of the observed values of each feature, shape ``(n_features,)``."""
        return self.origin + self.offset


@dataclass(frozen=True)
class PairwiseCovariance(Accumulator[PairwiseState, SymmetricOperator]):
    """Covariance (or correlation, or second-moment) matrix of features with missing values.

    For each pair of features, the state holds the weight N, the sums s and the products S about an origin near the mean,
    over the rows in which both features were observed. A shift of the origin by δ is exact algebra,
    ``S'ᵢⱼ = Sᵢⱼ + δⱼ sᵢⱼ + δᵢ sⱼᵢ + δᵢ δⱼ Nᵢⱼ`` and ``s'ᵢⱼ = sᵢⱼ + δᵢ Nᵢⱼ``, so every panel is centred about its own means,
    and states with any origins merge. Rows without NaN cost the same as in `Covariance`; other rows cost four such
    products. Cost: n d² to 4 n d² flops, one pass, 16 d² bytes (two triangles and a square).

    Examples
    --------
    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.array([[0.0, 1.0], [2.0, np.nan], [4.0, 3.0]])
    >>> pairwise = sp.accumulators.PairwiseCovariance()
    >>> pairwise.finalize(pairwise.update(pairwise.init(2), rows)).dense()
    array([[4., 4.],
           [4., 2.]])
    """

    center: bool = True
    """Subtract the mean; otherwise use second moments about zero."""
    scale: Scale = False
    """Divide features by the standard deviations of their observed values, or variables by the roots of their variances."""
    ddof: int = 1
    """Divisors are n − ddof."""
    impute: bool = False
    """Replace every missing value by the mean of the observed values of its feature. Otherwise each covariance is over the
    rows in which both features were observed, Cᵢⱼ = (Sᵢⱼ − sᵢⱼ sⱼᵢ / Nᵢⱼ) / (Nᵢⱼ − ddof), and eigenvalues may be negative."""
    tile_size: int = 1024
    """Largest side of a tile; it affects the bits of the result."""
    n_threads: int = field(default=1, compare=False)
    """Number of threads that share the tiles of one update; it does not affect the bits."""

    def grid(self, n_features: int) -> TileGrid:
        """Return the tile layout of the symmetric matrices."""
        return TileGrid(n_features, self.tile_size)

    @override
    def shares(self, n_features: int) -> int:
        return self.grid(n_features).n_tiles

    @override
    def init(self, n_features: int) -> PairwiseState:
        size = self.grid(n_features).size
        origin, observed, total = (np.zeros(n_features) for _ in range(3))
        return PairwiseState(
            0, 0.0, 0, 0.0, origin, observed, total, np.zeros(size), np.zeros(size), np.zeros((n_features, n_features))
        )

    def update(self, state: PairwiseState, block: Block | Array) -> PairwiseState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)``, added to it in place.

        Raises
        ------
        NotFiniteError
            If the rows hold infinity, or overflow when squared.
        """
        block = as_block(block)
        dtype = product_dtype(block.values.dtype, block.values.shape[1])
        for part in map(Block.counted, block.panels(panel_rows(block.values.shape[1], dtype))):
            holes = incomplete(part.values)
            some = holes.any()
            if some:
                refuse_not_finite(part.values, part.start, missing=True)
            for panel in safe_panels(part.where(~holes) if some else part, dtype, centred_panel):
                state = self._add_complete(state, panel)
            # float64 with weights, because counts contain rounded square roots of weights.
            wide = dtype if part.weights is None else np.dtype(np.float64)
            for observed in safe_panels(part.where(holes), wide, _observed_panel) if some else ():
                state = self._add_incomplete(state, observed)
        return state

    def _add_complete(self, state: PairwiseState, panel: Panel) -> PairwiseState:
        """Add a panel without missing values."""
        (n_rows, total, _), mean = panel.counts, panel.mean
        state = self._near_mean(state, (panel.origin - state.origin) + mean, np.full(len(mean), total))
        origin = np.where(state.observed > 0, state.origin, panel.origin + (mean - panel.remainder))
        step = (panel.origin - origin) + mean
        inner = Covariance(tile_size=self.tile_size, n_threads=self.n_threads)
        inner.add_scatter(state.scatter, panel, step, total)
        return replace(
            state,
            n_samples=state.n_samples + n_rows,
            weight=state.weight + total,
            complete=state.complete + total,
            origin=origin,
            observed=state.observed + total,
            complete_sum=state.complete_sum + total * step,
        )

    def _add_incomplete(self, state: PairwiseState, observed: _Observed) -> PairwiseState:
        """Add a panel of rows that all have missing values."""
        panel, mask, weights, n_missing = observed
        state = self._near_mean(state, (panel.origin - state.origin) + panel.mean, weights)
        origin = np.where((state.observed > 0) | (weights == 0), state.origin, panel.origin + panel.mean)
        shift = np.where(weights > 0, (panel.origin - origin) + panel.mean, 0.0)
        self._add_products(state, panel.rows, mask, shift, panel.squares)
        return replace(
            state,
            n_samples=state.n_samples + panel.counts[0],
            weight=state.weight + panel.counts[1],
            n_missing=state.n_missing + n_missing,
            origin=origin,
            observed=state.observed + weights,
        )

    def _near_mean(self, state: PairwiseState, step: FloatArray, observed: FloatArray) -> PairwiseState:
        """Move the origin of `state`, in its memory, to the mean with more rows, if sums about the old origin would lose digits.

        The rows are observed with the weights `observed`, and their means differ by `step` from the origin. A row of large
        weight moves the mean by any number of weighted standard deviations, and sums about an origin so far away grow by the
        square of this number.
        """
        known, offset, total = state.observed, state.offset, state.observed + observed
        both = (known > 0) & (observed > 0)
        share = np.divide(observed, total, out=np.zeros_like(total), where=both)
        shift = np.where(both, offset + share * (step - offset), 0.0)
        squares = np.maximum(self.grid(len(shift)).diagonal(state.scatter) - known * offset**2, 0.0)
        squares += known * share * np.where(both, step - offset, 0.0) ** 2
        far = both & (total * shift**2 > _FAR * squares)
        return self._moved(state, np.where(far, state.origin + shift, state.origin)) if far.any() else state

    def _moved(self, state: PairwiseState, origin: FloatArray) -> PairwiseState:
        """Return `state` about another origin, in its memory."""
        grid, shift = self.grid(len(origin)), state.origin - origin

        def move(pair: tuple[int, int]) -> None:
            tiles = _tiles(grid, state, pair)
            product, left, right, count = (
                borrow(name, tile.shape, np.float64) for name, tile in zip(_SUMS, tiles, strict=True)
            )
            for copy, tile in zip((product, left, right, count), tiles, strict=True):
                np.copyto(copy, tile)
            for tile in tiles:  # of which two share their memory on the diagonal
                tile[...] = 0.0
            self._add_shifted(state, pair, (product, left, right, count), shift, (state.complete, state.complete_sum))

        spread(move, grid.pairs, self.n_threads)
        return replace(state, origin=origin, complete_sum=state.complete_sum + state.complete * shift)

    def _add_products(
        self,
        state: PairwiseState,
        rows: Array,
        mask: Array,
        shift: FloatArray,
        squares: FloatArray | None,
    ) -> None:
        """Add the products of `rows`, whose origin differs by `shift` from the origin of `state`, tile by tile.

        `squares` are the sums of squares of float32 columns, which check the products as in `Covariance`.
        """
        grid = self.grid(rows.shape[1])
        lossy = np.zeros(rows.shape[1], dtype=bool)

        def add(pair: tuple[int, int]) -> None:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            sides = (i.stop - i.start, j.stop - j.start)
            product = np.matmul(rows[:, i].T, rows[:, j], out=borrow("product", sides, rows.dtype))
            if squares is not None and pair[0] == pair[1]:
                lossy[i] = lossy_features(product.diagonal(), squares[i])
            again = lossy[i], lossy[j]
            if again[0].any() or again[1].any():
                product = product.astype(np.float64)
                product[again[0]], product[:, again[1]] = 0, 0
                add_product_in_float64(product, rows[:, i], rows[:, j], again)
            left = np.matmul(rows[:, i].T, mask[:, j], out=borrow("left", sides, rows.dtype))
            right = left.T
            if pair[0] != pair[1]:
                right = np.matmul(mask[:, i].T, rows[:, j], out=borrow("right", sides, rows.dtype))
            count = np.matmul(mask[:, i].T, mask[:, j], out=borrow("count", sides, rows.dtype))
            self._add_shifted(state, pair, (product, left, right, count), shift)

        spread(add, [pair for pair in grid.pairs if pair[0] == pair[1]], self.n_threads)
        spread(add, [pair for pair in grid.pairs if pair[0] != pair[1]], self.n_threads)

    def _add_shifted(
        self,
        state: PairwiseState,
        pair: tuple[int, int],
        sums: TileSums,
        shift: FloatArray,
        complete: tuple[float, FloatArray] | None = None,
    ) -> None:
        """Add one tile of products, sums (zᵢ mⱼ and mᵢ zⱼ) and counts, whose origin differs by `shift` from the origin of `state`.

        `complete` holds the weight and the sum of rows that are included in the products, but not in the sums and counts.
        """
        grid = self.grid(len(shift))
        i, j = grid.features(pair[0]), grid.features(pair[1])
        scatter, counts = grid.tile(state.scatter, *pair), grid.tile(state.counts, *pair)
        for start in range(0, len(scatter), 128):  # strips that fit in the cache
            strip = slice(start, start + 128)
            product, left, right, count = (np.asarray(array[strip], dtype=np.float64) for array in sums)
            down = slice(i.start + start, min(i.start + start + 128, i.stop))
            state.sums[down, j] += left + count * shift[down, None]
            if pair[0] != pair[1]:
                state.sums[j, down] += (right + count * shift[j]).T
            counts[strip] += count
            if complete is not None:
                weight, total = complete
                left, right, count = left + total[down, None], right + total[j], count + weight
            scatter[strip] += (
                product + left * shift[j] + right * shift[down, None] + count * np.outer(shift[down], shift[j])
            )

    @override
    def absorb(self, state: PairwiseState, other: PairwiseState) -> PairwiseState:
        require_same_layout(state, other, (state.scatter.size, other.scatter.size))
        if other.n_samples == 0:
            return state
        step = step_between(state.origin, np.zeros(len(state.origin)), other.origin, other.offset)
        state = self._near_mean(state, step, other.observed)
        origin = np.where(state.observed > 0, state.origin, other.origin)
        shift = np.where(other.observed > 0, other.origin - origin, 0.0)
        grid = self.grid(len(origin))

        def add(pair: tuple[int, int]) -> None:
            self._add_shifted(state, pair, _tiles(grid, other, pair), shift, (other.complete, other.complete_sum))

        spread(add, grid.pairs, self.n_threads)
        return replace(
            state,
            n_samples=state.n_samples + other.n_samples,
            weight=state.weight + other.weight,
            n_missing=state.n_missing + other.n_missing,
            complete=state.complete + other.complete,
            origin=origin,
            observed=state.observed + other.observed,
            complete_sum=state.complete_sum + other.complete_sum + other.complete * shift,
        )

    def finalize(self, state: PairwiseState) -> SymmetricOperator:
        """Return the symmetric matrix whose eigenpairs are the principal components, without changing `state`.

        Raises
        ------
        DataError
            If a feature has no observed value, or if (without `impute`) a pair of features has at most `ddof` common rows.
        """
        require_observed(state.observed > 0)
        grid, d = self.grid(len(state.origin)), len(state.origin)
        about_mean = replace(self.init(d), observed=state.observed)
        shift = -state.offset

        def move(pair: tuple[int, int]) -> None:
            self._add_shifted(about_mean, pair, _tiles(grid, state, pair), shift, (state.complete, state.complete_sum))

        spread(move, grid.pairs, self.n_threads)
        if self.impute:
            return SymmetricOperator.of_scatter(
                Scatter(grid, about_mean.scatter, state.mean, state.n_samples, state.weight),
                center=self.center,
                scale=scaling_of(self.scale),
                ddof=self.ddof,
                n_threads=self.n_threads,
            )
        return self._by_pairs(state, about_mean, state.complete_sum + state.complete * shift)

    def _by_pairs(self, state: PairwiseState, about_mean: PairwiseState, complete_sum: FloatArray) -> SymmetricOperator:
        """Return the matrix of pairwise covariances, in the memory of `about_mean`."""
        grid, ddof = self.grid(len(state.origin)), self.ddof
        # For second moments about zero, the covariance is stored about `offset`, see `SymmetricOperator`.
        offset = None
        if not self.center:
            divisor = np.maximum(state.observed - ddof, np.finfo(np.float64).tiny)
            offset = state.mean * np.sqrt(state.observed / divisor)
        variance = np.empty(grid.n_features)

        def divide(pair: tuple[int, int]) -> None:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            scatter, count = grid.tile(about_mean.scatter, *pair), grid.tile(about_mean.counts, *pair) + state.complete
            _require_pairs(count, i.start, j.start, ddof)
            left = about_mean.sums[i, j] + complete_sum[i, None]
            right = about_mean.sums[j, i].T + complete_sum[j]
            if pair[0] == pair[1]:
                squares = scatter.diagonal() - left.diagonal() * (left.diagonal() / count.diagonal())
                variance[i] = np.maximum(squares, 0.0) / (count.diagonal() - ddof)
            if offset is None:
                scatter -= left * right / count
            else:
                mean = state.mean
                scatter += left * mean[j] + right * mean[i, None] + count * np.outer(mean[i], mean[j])
            scatter /= count - ddof
            if offset is not None:
                scatter -= np.outer(offset[i], offset[j])

        spread(divide, grid.pairs, self.n_threads)
        squares = variance * np.maximum(state.observed - ddof, 1.0)
        if offset is not None and not self.scale:
            squares = sums_about_zero(squares, state.mean, state.observed)
        refuse_underflow(squares, state.observed, scale=scaling_of(self.scale))
        weights = scaling_of(self.scale).weights(variance, state.mean)
        return SymmetricOperator(
            grid, about_mean.scatter, weights, offset, 1.0, state.mean, variance, state.n_samples, self.n_threads
        )

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes: two triangles and a square."""
        return 8 * (2 * self.grid(n_features).size + n_features**2 + 3 * n_features)

    @override
    def finalize_bytes(self, n_features: int) -> int:
        return self.state_bytes(n_features) + 8 * self.grid(n_features).size

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: a panel, its copy, its mask, and four products of a tile for each thread."""
        dtype = product_dtype(np.float32 if itemsize <= 4 else np.float64, n_features)
        panel = min(n_rows, panel_rows(n_features, dtype)) * n_features * (3 * dtype.itemsize + 1)
        side = self.grid(n_features).longest_side
        return panel + self.n_threads * 8 * side * (4 * side + 8 * 128)


_Observed = tuple[Panel, Array, FloatArray, int]
"""A panel with zeros for missing values, the mask of observed values, their weight by feature, and the number of missing values."""


def _observed_panel(block: Block, dtype: DType) -> _Observed | None:
    """Return a panel of rows that all have missing values; None if `dtype` is float32 and their products would lose digits."""
    shape, missing = block.values.shape, np.isnan(block.values)
    n_observed = len(block) - missing.sum(axis=0)
    rows, mask = borrow("panel", shape, dtype), borrow("mask", shape, dtype)
    centred = centre_observed(block.values, missing, n_observed, rows)
    require_finite(centred.finite, block, dtype, missing=True)
    if not keeps_digits(rows, centred.squares, block.weights):
        return None
    np.logical_not(missing, out=mask)
    observed, near = n_observed.astype(np.float64), np.zeros(shape[1])
    if block.weights is not None:
        observed = block.weights @ mask
        # The plain mean may be many weighted standard deviations from the weighted mean (see `weigh`).
        np.divide(block.weights @ rows, observed, out=near, where=observed > 0)
        np.subtract(rows, near, out=rows, where=~missing)
        roots = np.sqrt(block.weights)[:, None]
        rows *= roots
        mask *= roots
    squares = None if dtype == np.float64 else centred.squares
    panel = Panel(rows, centred.origin, near, np.zeros(shape[1]), squares, (len(block), *block.weight_sums()))
    return panel, mask, observed, int(missing.sum())


def _tiles(grid: TileGrid, state: PairwiseState, pair: tuple[int, int]) -> TileSums:
    """Return one tile of the products, of the sums zᵢ mⱼ and mᵢ zⱼ, and of the counts of `state`."""
    i, j = grid.features(pair[0]), grid.features(pair[1])
    return grid.tile(state.scatter, *pair), state.sums[i, j], state.sums[j, i].T, grid.tile(state.counts, *pair)


def _require_pairs(count: FloatArray, first_row: int, first_column: int, ddof: int) -> None:
    few = count <= ddof
    if few.any():
        i, j = (int(index) for index in np.argwhere(few)[0])
        first, second = sorted((first_row + i, first_column + j))
        raise DataError(
            f"features {first} and {second} were observed together in rows of weight {count[i, j]:g}: every pair needs more than ddof={ddof}; "
            "leave features out, or use missing='mean'"
        )
