"""Inner products between all samples, in one pass over features: the state of exact PCA of wide data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.accumulators.centring import FloatArray, centre, refuse_not_finite, work_dtype
from streampca.accumulators.covariance import within_float32
from streampca.accumulators.tiles import TileGrid, spread
from streampca.block import Block, as_block
from streampca.errors import MergeError, NotFiniteError
from streampca.workspace import borrow

_PANEL_BYTES = 32 * 2**20 - 2**16
_PANEL_FEATURES = (256, 8192)


@dataclass(frozen=True)
class GramState:
    """What has been seen of the features so far."""

    n_samples: int
    """Number of samples: the side of the matrix."""
    products: FloatArray
    """Sum over features of the outer products of their (shifted, weighted) values, flat tiles of ``(n, n)``."""
    starts: NDArray[np.int64]
    """First feature of each run that was seen."""
    lengths: NDArray[np.int64]
    """Number of features of each run."""
    means: FloatArray
    """Mean of each feature, run behind run, ``(n_seen,)``."""
    variances: FloatArray
    """Variance of each feature (divisor n − ddof), run behind run, ``(n_seen,)``."""


@dataclass(frozen=True)
class GramReduced:
    """The matrix H G H / (n − ddof) of inner products between centred samples; G as tiles, H = 1 − 11ᵀ/n."""

    grid: TileGrid
    """How `products` is stored."""
    products: FloatArray
    """G as flat tiles; shared with the state it came from, so read only."""
    center: bool
    """Whether H is applied."""
    divisor: float
    """n − ddof."""
    mean: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    variance: FloatArray
    """Variance of each feature about its mean, ``(n_features,)``."""
    n_threads: int
    """Threads for products with the matrix."""

    @property
    def n_samples(self) -> int:
        """Return the number of samples."""
        return self.grid.n_features

    @property
    def side(self) -> int:
        """Return the side of the matrix: the number of samples."""
        return self.grid.n_features

    @property
    def rank_limit(self) -> int:
        """Return the largest possible number of components."""
        return min(self.side, len(self.mean))

    def _row_means(self) -> FloatArray:
        ones = np.ones((self.side, 1))
        return self.grid.multiply(self.products, ones, self.n_threads)[:, 0] / self.side

    @property
    def diagonal(self) -> FloatArray:
        """Return the diagonal of the matrix, ``(n_samples,)``."""
        diagonal = self.grid.diagonal(self.products)
        if self.center:
            rows = self._row_means()
            diagonal = diagonal - 2 * rows + rows.mean()
        return diagonal / self.divisor

    def multiply(self, vectors: FloatArray) -> FloatArray:
        """Return the matrix times `vectors`, ``(n_samples, n_vectors)``."""
        if self.center:
            vectors = vectors - vectors.mean(axis=0)
        product = self.grid.multiply(self.products, vectors, self.n_threads)
        if self.center:
            product -= product.mean(axis=0)
        product /= self.divisor
        return product

    def dense(self) -> FloatArray:
        """Return the matrix as a new array, ``(n_samples, n_samples)``."""
        matrix = self.grid.dense(self.products)
        if np.shares_memory(matrix, self.products):
            matrix = matrix.copy()
        if self.center:
            rows = self._row_means()
            matrix -= rows[:, None]
            matrix -= rows
            matrix += rows.mean()
        matrix /= self.divisor
        return matrix


@dataclass(frozen=True)
class Gram:
    """Gram matrix of the samples from blocks of whole features.

    A block holds features in rows, ``(n_block_features, n_samples)``. Each feature is there with all its samples, so
    centring and z-scores are exact within the block and one pass suffices. What the shift by a sampled mean leaves is
    taken out at the end by H G H, which is exact for any shift. Cost: n² d flops, 4 n² to 8 n² bytes.
    """

    center: bool = True
    """Subtract the mean of every feature."""
    scale: bool = False
    """Divide every feature by its standard deviation."""
    ddof: int = 1
    """Variances are divided by n − ddof."""
    factors: FloatArray | None = None
    """Factor of each feature, ``(n_features,)``, or None."""
    tile_size: int = 1024
    """Largest side of a tile; enters the bits of the result."""
    n_threads: int = field(default=1, compare=False)
    """Threads that share the tiles of one update; changes the time, never the bits."""

    def grid(self, n_samples: int) -> TileGrid:
        """Return how the matrix is stored."""
        return TileGrid(n_samples, self.tile_size)

    def init(self, n_features: int) -> GramState:
        """Return the state of no features; `n_features` is the length of a row of a block: the number of samples."""
        none, empty = np.empty(0, dtype=np.int64), np.empty(0)
        return GramState(n_features, np.zeros(self.grid(n_features).size), none, none, empty, empty)

    def update(self, state: GramState, block: Block | NDArray[Any]) -> GramState:
        """Return `state` with the features in the rows of `block`, ``(n_block_features, n_samples)``, added in place."""
        block = as_block(block)
        if len(block) == 0:
            return state
        dtype = work_dtype(block.values.dtype)
        means, variances = np.empty(len(block)), np.empty(len(block))
        n_panels = -(-len(block) // panel_features(block.values.shape[1], dtype))
        for i in range(n_panels):
            start, stop = len(block) * i // n_panels, len(block) * (i + 1) // n_panels
            self._add_panel(state, block.part(start, stop), dtype, means[start:stop], variances[start:stop])
        return replace(
            state,
            starts=np.append(state.starts, block.start),
            lengths=np.append(state.lengths, len(block)),
            means=np.concatenate([state.means, means]),
            variances=np.concatenate([state.variances, variances]),
        )

    def _add_panel(
        self, state: GramState, panel: Block, dtype: np.dtype[Any], means: FloatArray, variances: FloatArray
    ) -> None:
        values = panel.values.T
        n = len(values)
        columns = borrow("panel", values.shape, dtype)
        seen = centre(values, columns)
        if not seen.finite.all():
            self._refuse(panel, seen.finite, dtype)
        if dtype == np.float32 and not within_float32(seen.squares, columns):
            middle = (len(panel) + 1) // 2
            for start in range(0, len(panel), middle):
                part = slice(start, start + middle)
                half = panel.part(start, start + middle)
                self._add_panel(state, half, np.dtype(np.float64), means[part], variances[part])
            return
        means[:] = seen.origin + seen.rest
        variances[:] = np.maximum(seen.squares - n * seen.rest**2, 0) / max(n - self.ddof, 1)
        if not self.center:
            np.copyto(columns, values)
        factors = self.factors_of(panel.start, variances)
        if factors is not None:
            columns *= factors.astype(dtype)
        self._add_products(state.products, columns)

    def factors_of(self, start: int, variances: FloatArray) -> FloatArray | None:
        """Return what the features from `start` on, of these `variances`, are multiplied by; None for nothing."""
        factors = None
        if self.scale:
            deviations = np.sqrt(variances)
            factors = np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)
        if self.factors is not None:
            own = self.factors[start : start + len(variances)]
            factors = own if factors is None else factors * own
        return factors

    def _refuse(self, panel: Block, finite: NDArray[np.bool_], dtype: np.dtype[Any]) -> None:
        bad = int(np.flatnonzero(~finite)[0])
        refuse_not_finite(panel.values[bad][:, None], 0, panel.start + bad)
        if dtype == np.float64:
            raise NotFiniteError(
                f"column {panel.start + bad} overflows float64 when squared: expected magnitudes below 1e150; "
                "rescale this feature first"
            )

    def _add_products(self, products: FloatArray, columns: NDArray[Any]) -> None:
        grid = self.grid(len(columns))

        def add(pair: tuple[int, int]) -> None:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            product = borrow("product", (i.stop - i.start, j.stop - j.start), columns.dtype)
            np.matmul(columns[i], columns[j].T, out=product)
            tile = grid.tile(products, *pair)
            for start in range(0, len(tile), 128):
                tile[start : start + 128] += product[start : start + 128]

        spread(add, grid.pairs, self.n_threads)

    def merge(self, states: Sequence[GramState]) -> GramState:
        """Return the state of all features behind `states`; none of them is changed."""
        total = self.init(states[0].n_samples)
        for state in states:
            total = self.absorb(total, state)
        return total

    def absorb(self, state: GramState, other: GramState) -> GramState:
        """Return the state of the features behind both, in the memory of `state`."""
        if state.n_samples != other.n_samples or state.products.shape != other.products.shape:
            raise MergeError(
                f"Gram matrices of {state.n_samples} and {other.n_samples} samples cannot be added: expected the same "
                "samples and tile_size"
            )
        np.add(state.products, other.products, out=state.products)
        return GramState(
            state.n_samples,
            state.products,
            np.concatenate([state.starts, other.starts]),
            np.concatenate([state.lengths, other.lengths]),
            np.concatenate([state.means, other.means]),
            np.concatenate([state.variances, other.variances]),
        )

    def finalize(self, state: GramState) -> GramReduced:
        """Return the matrix whose eigenvectors are the scores; shares memory with `state`."""
        order = np.argsort(state.starts, kind="stable")
        if (np.diff(order) == 1).all():
            means, variances = state.means, state.variances
        else:
            ends = np.cumsum(state.lengths)
            runs = [slice(ends[i] - state.lengths[i], ends[i]) for i in order]
            means = np.concatenate([state.means[run] for run in runs])
            variances = np.concatenate([state.variances[run] for run in runs])
        grid, divisor = self.grid(state.n_samples), float(state.n_samples - self.ddof)
        return GramReduced(grid, state.products, self.center, divisor, means, variances, self.n_threads)

    def state_bytes(self, n_features: int) -> int:
        """Return the size of the matrix of `n_features` samples in bytes; 16 bytes for each feature come on top."""
        return 8 * self.grid(n_features).size

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of updates with blocks of `n_rows` features of `n_features` samples."""
        dtype = np.dtype(np.float32 if itemsize <= 4 else np.float64)
        panel = min(n_rows, panel_features(n_features, dtype)) * n_features * dtype.itemsize
        return panel + self.n_threads * 8 * self.grid(n_features).longest_side ** 2


def panel_features(n_samples: int, dtype: np.dtype[Any]) -> int:
    """Return how many features are multiplied at once."""
    low, high = _PANEL_FEATURES
    return max(low, min(high, _PANEL_BYTES // max(1, n_samples * dtype.itemsize)))
