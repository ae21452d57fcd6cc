"""Mean and scatter of 8-bit integers and booleans without any rounding: the same bits for any chunks and any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampca.accumulators.centring import FloatArray, centre
from streampca.accumulators.covariance import Covariance, CovarianceState, panel_rows
from streampca.block import Block, as_block
from streampca.errors import MergeError, ParameterError
from streampca.linalg.eigen import SymmetricOperator
from streampca.linalg.tiles import TileGrid, spread
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow

_EXACT = 2.0**24  # sums of whole numbers are exact in float32 as long as no partial sum can pass this
_SURE_ROWS = 256  # of at most 255² each


@storable
@dataclass(frozen=True)
class IntegerState:
    """What has been seen of the rows so far: whole numbers in float64, exact up to 2**53 and so for 5e11 rows."""

    n_samples: int
    """Number of rows."""
    total: FloatArray
    """Σ (x − shift), shape ``(n_features,)``."""
    products: FloatArray
    """Σ (x − shift)(x − shift)ᵀ, as the flat tiles of a `TileGrid`."""


@dataclass(frozen=True)
class ExactIntegerCovariance:
    """Covariance of rows of bool, int8 or uint8, without weights.

    A panel is centred by a whole number near its mean, so float32 products of it are whole numbers. No partial sum of
    one can pass the largest sum of squares of a column (Cauchy & Schwarz), so they are exact while that is below 2**24:
    the panel is cut where it is not, at the latest into 256 rows of at most 255². Moving the products to the common
    `shift` and adding them up takes place in float64 and is exact as well. Only `finalize` rounds, once.
    """

    shift: int = 0
    """What is subtracted from every value; keeps the sums small, and must be the same in states that are merged."""
    covariance: Covariance = field(default_factory=Covariance)
    """Centring, scaling, ddof and tiles."""
    n_threads: int = field(default=1, compare=False)
    """Threads that share the tiles of one update; changes the time, never the bits."""

    @classmethod
    def of(cls, dtype: DTypeLike, covariance: Covariance) -> ExactIntegerCovariance:
        """Return the accumulator for rows of `dtype`."""
        return cls(128 if np.dtype(dtype).kind == "u" else 0, covariance)

    @staticmethod
    def takes(dtype: DTypeLike) -> bool:
        """Tell whether rows of `dtype` can be accumulated: bool, int8 or uint8."""
        return np.dtype(dtype).kind in "biu" and np.dtype(dtype).itemsize == 1

    def grid(self, n_features: int) -> TileGrid:
        """Return how the products are stored."""
        return self.covariance.grid(n_features)

    def init(self, n_features: int) -> IntegerState:
        """Return the state of no rows, the identity of `merge`."""
        return IntegerState(0, np.zeros(n_features), np.zeros(self.grid(n_features).size))

    def update(self, state: IntegerState, block: Block | NDArray[Any]) -> IntegerState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)``, added to it in place.

        Raises
        ------
        ParameterError
            If the rows are of another type, or have weights.
        """
        block = as_block(block)
        if not self.takes(block.values.dtype) or block.weights is not None:
            raise ParameterError(
                f"rows of {block.values.dtype}: expected bool, int8 or uint8 without weights; use Covariance"
            )
        n_panels = -(-len(block) // panel_rows(block.values.shape[1], np.dtype(np.float32)))
        for i in range(n_panels):
            panel = block.values[len(block) * i // n_panels : len(block) * (i + 1) // n_panels]
            state = self._add_panel(state, panel)
        return state

    def _add_panel(self, state: IntegerState, panel: NDArray[Any]) -> IntegerState:
        n_rows = len(panel)
        rows = borrow("panel", panel.shape, np.float32)
        seen = centre(panel, rows)
        total, step = np.rint(seen.rest * n_rows), seen.origin - self.shift
        left = np.stack([step, total + n_rows * step], axis=1)
        right = np.stack([total, step])
        cuts = [0, *_exact_cuts(rows, seen.squares)]
        grid = self.grid(panel.shape[1])

        def add(pair: tuple[int, int]) -> None:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            product = borrow("product", (i.stop - i.start, j.stop - j.start), np.float32)
            tile = grid.tile(state.products, *pair)
            for first, last in pairwise(cuts):
                np.matmul(rows[first:last, i].T, rows[first:last, j], out=product)
                for start in range(0, len(tile), 128):  # strips that stay in the cache
                    part = slice(start, start + 128)
                    tile[part] += product[part]
                    if first == 0:
                        tile[part] += left[i][part] @ right[:, j]

        spread(add, grid.pairs, self.n_threads)
        return IntegerState(state.n_samples + n_rows, state.total + total + n_rows * step, state.products)

    def merge(self, states: Sequence[IntegerState]) -> IntegerState:
        """Return the state of all rows behind `states`; none of them is changed."""
        total = self.init(len(states[0].total))
        for state in states:
            total = self.absorb(total, state)
        return total

    def absorb(self, state: IntegerState, other: IntegerState) -> IntegerState:
        """Return the state of the rows behind both, in the memory of `state`."""
        if state.products.shape != other.products.shape or state.total.shape != other.total.shape:
            raise MergeError(
                f"states of {len(state.total)} and {len(other.total)} features cannot be merged: expected the same features and tile_size"
            )
        np.add(state.products, other.products, out=state.products)
        return IntegerState(state.n_samples + other.n_samples, state.total + other.total, state.products)

    def to_covariance(self, state: IntegerState, out: FloatArray | None = None) -> CovarianceState:
        """Return the state of `Covariance` for the same rows, its scatter in `out` if given, which may be that of `state`."""
        scatter = state.products.copy() if out is None else out
        if out is not None and out is not state.products:
            np.copyto(out, state.products)
        n = state.n_samples
        if n == 0:
            return replace(self.covariance.init(len(state.total)), scatter=scatter)
        grid = self.grid(len(state.total))
        # To whole numbers near the means first, which is exact: what is left to round is the square of less than a half.
        middle = np.rint(state.total / n)
        left = np.stack([-middle, n * middle - state.total], axis=1)
        grid.add_outer(scatter, left, np.stack([state.total, middle]), self.n_threads)
        rest = state.total - n * middle
        grid.add_outer(scatter, -rest[:, None], (rest / n)[None], self.n_threads)
        return CovarianceState(n, float(n), float(n), self.shift + middle, rest / n, scatter)

    def divisor(self, state: IntegerState) -> float:
        """Return what the scatter is divided by."""
        return float(state.n_samples - self.covariance.ddof)

    def finalize(self, state: IntegerState) -> SymmetricOperator:
        """Return the symmetric matrix whose eigenpairs are the principal components; `state` is not changed."""
        return replace(self.covariance, n_threads=self.n_threads).finalize(self.to_covariance(state))

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        return 8 * (self.grid(n_features).size + n_features)

    def finalize_bytes(self, n_features: int) -> int:
        """Return the memory in bytes that `finalize` takes beside the state, if that is converted in place first."""
        return 0

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes, which is that of `Covariance`."""
        return replace(self.covariance, n_threads=self.n_threads).scratch_bytes(n_features, n_rows, 4)


def _exact_cuts(rows: NDArray[np.float32], squares: FloatArray) -> list[int]:
    """Return where to cut centred `rows` so that float32 products of each part are exact; the last is their number."""
    if squares.max(initial=0.0) <= _EXACT:
        return [len(rows)]
    cuts, total = [], np.zeros(rows.shape[1])
    for start in range(0, len(rows), _SURE_ROWS):
        part = rows[start : start + _SURE_ROWS]
        own = np.einsum("ij,ij->j", part, part)
        total += own
        if start and total.max() > _EXACT:
            cuts.append(start)
            total = own.astype(np.float64)
    return [*cuts, len(rows)]
