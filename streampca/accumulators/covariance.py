"""Mean and scatter matrix of all features, in one pass: the state of exact principal component analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import FloatArray, centre, refuse_not_finite, step_between, weigh, work_dtype
from streampca.accumulators.tiles import TileGrid, spread
from streampca.block import Block, as_block
from streampca.errors import MergeError, NotFiniteError
from streampca.solve import Reduced
from streampca.workspace import borrow

_PANEL_BYTES = 16 * 2**20
_PANEL_ROWS = (1024, 8192)
# Squares of float32 columns outside this range have lost digits to underflow, or are about to overflow.
_SAFE_SQUARES = (1e-28, 1e37)


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
            state = self._add_panel(state, panel, work_dtype(block.values.dtype))
        return state

    def _add_panel(self, state: CovarianceState, panel: Block, dtype: np.dtype[Any]) -> CovarianceState:
        n_rows = len(panel)
        rows = borrow("panel", panel.values.shape, dtype)
        seen = centre(panel.values, rows)
        if not seen.finite.all():
            refuse_not_finite(panel.values, panel.start)
            if dtype == np.float64:
                raise NotFiniteError(
                    f"column {int(np.flatnonzero(~seen.finite)[0])} overflows float64 when squared (rows {panel.start} to "
                    f"{panel.start + n_rows - 1}): expected magnitudes below 1e150; rescale this feature first"
                )
        total = squares = float(n_rows)
        rest, n_counted = seen.rest, n_rows
        if panel.weights is not None:
            weights = panel.weights
            total, squares = float(weights.sum()), float(weights @ weights)
            n_counted = int(np.count_nonzero(weights))
            if not n_counted:
                return state
            rest = weigh(rows, weights)
        if dtype == np.float32 and not _within_float32(seen.squares, rows):
            return self._add_in_float64(state, panel)
        if state.n_samples == 0:
            state = replace(state, origin=seen.origin, offset=rest)
        step = step_between(state.origin, state.offset, seen.origin, rest)
        n = state.weight + total
        self._add_scatter(state.scatter, rows, step, state.weight * total / n, rest, total)
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

    def _add_scatter(
        self, scatter: FloatArray, rows: NDArray[Any], step: FloatArray, weight: float, rest: FloatArray, total: float
    ) -> None:
        """Add rowsᵀ rows + weight · step stepᵀ − total · rest restᵀ to `scatter`, tile by tile."""
        grid = self.grid(rows.shape[1])
        left = np.stack([step * weight, rest * -total], axis=1)
        right = np.stack([step, rest])

        def add(pair: tuple[int, int]) -> None:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            product = borrow("product", (i.stop - i.start, j.stop - j.start), rows.dtype)
            np.matmul(rows[:, i].T, rows[:, j], out=product)
            tile = grid.tile(scatter, *pair)
            # A hundred rows at a time stay in the cache for the three additions.
            for start in range(0, len(tile), 128):
                part = slice(start, start + 128)
                tile[part] += product[part]
                tile[part] += left[i][part] @ right[:, j]

        spread(add, grid.pairs, self.n_threads)

    def merge(self, states: Sequence[CovarianceState]) -> CovarianceState:
        """Return the state of all rows behind `states`, merged from left to right; none of them is changed."""
        total = self.init(len(states[0].origin))
        for state in states:
            total = self.absorb(total, state)
        return total

    def absorb(self, state: CovarianceState, other: CovarianceState) -> CovarianceState:
        """Return the state of the rows behind both, in the memory of `state`."""
        if state.origin.shape != other.origin.shape or state.scatter.shape != other.scatter.shape:
            raise MergeError(
                f"states of {len(state.origin)} and {len(other.origin)} features, stored in {state.scatter.size} and "
                f"{other.scatter.size} entries, cannot be merged: expected the same features and tile_size"
            )
        if other.n_samples == 0:
            return state
        np.add(state.scatter, other.scatter, out=state.scatter)
        if state.n_samples == 0:
            return replace(other, scatter=state.scatter)
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

    def finalize(self, state: CovarianceState) -> Reduced:
        """Return the symmetric matrix whose eigenpairs are the principal components; shares memory with `state`."""
        return Reduced.of_scatter(
            grid=self.grid(len(state.origin)),
            scatter=state.scatter,
            mean=state.mean,
            n_samples=state.n_samples,
            weight=state.weight,
            center=self.center,
            scale=self.scale,
            ddof=self.ddof,
            n_threads=self.n_threads,
        )

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        return 8 * (self.grid(n_features).size + 2 * n_features)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of updates with blocks of `n_rows` rows: a panel and a product per thread.

        `itemsize` is that of the floating type in which products are taken.
        """
        dtype = np.dtype(np.float32 if itemsize <= 4 else np.float64)
        panel = min(n_rows, panel_rows(n_features, dtype)) * n_features * dtype.itemsize
        # A product grows to float64 where float32 would overflow.
        return panel + self.n_threads * 8 * self.grid(n_features).longest_side ** 2


def panel_rows(n_features: int, dtype: np.dtype[Any]) -> int:
    """Return how many rows are multiplied at once.

    Few enough for float32 sums (1e-8 relative at 8,192), many enough that adding the product to the scatter costs
    little beside making it.
    """
    low, high = _PANEL_ROWS
    return max(low, min(high, _PANEL_BYTES // max(1, n_features * dtype.itemsize)))


def _within_float32(squares: FloatArray, rows: NDArray[Any]) -> bool:
    """Tell whether products of the centred `rows` keep their digits in float32."""
    low, high = _SAFE_SQUARES
    if not (squares < high).all() or ((squares > 0) & (squares < low)).any():
        return False
    vanished = squares == 0
    return not (vanished.any() and any(rows[i : i + 256, vanished].any() for i in range(0, len(rows), 256)))
