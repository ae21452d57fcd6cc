"""Exact covariance of 8-bit integers and booleans: the same bits for any chunks and any order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

import numpy as np
from numpy.typing import DTypeLike

from streampca.accumulators.base import Accumulator, AnyAccumulator, require_same_layout
from streampca.accumulators.covariance import Covariance, CovarianceState, panel_rows
from streampca.block import Block, as_block
from streampca.errors import ParameterError
from streampca.linalg.eigen import SymmetricOperator
from streampca.linalg.tiles import TileGrid, spread
from streampca.storage.state_file import storable
from streampca.system.workspace import borrow
from streampca.typing import Array, FloatArray, override

_EXACT = 2.0**24  # sums of whole numbers are exact in float32 while no partial sum exceeds this
_SAMPLE_ROWS = 128
_EXACT_ROWS = 256  # rows whose sums of squares, of at most 255² each, are always exact


@storable
@dataclass(frozen=True)
class IntegerState:
    """Sums over the accumulated rows: whole numbers in float64, exact up to 2**53, enough for 5e11 rows."""

    n_samples: int
    """Number of rows."""
    total: FloatArray
    """Σ (x − shift), shape ``(n_features,)``."""
    products: FloatArray
    """Σ (x − shift)(x − shift)ᵀ, as the flat tiles of a `TileGrid`."""

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return len(self.total)


@dataclass(frozen=True)
class ExactIntegerCovariance(Accumulator[IntegerState, SymmetricOperator]):
    """Covariance of rows of bool, int8 or uint8, without weights.

    A panel is centred by a whole number near its mean and divided by a common divisor of its differences (255 for masks
    of 0 and 255), so its float32 products are whole numbers. No partial sum of a product exceeds the largest sum of
    squares of a column (Cauchy–Schwarz), so products are exact while this sum is at most 2**24. A panel that exceeds it
    is split, down to 256 rows of squares up to 255². The products are moved to the common `shift` and added in float64,
    which is also exact. Only `finalize` rounds, once.

    Examples
    --------
    The sums have the same bits for any order of blocks:

    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).integers(0, 256, size=(100, 3), dtype=np.uint8)
    >>> integers = sp.accumulators.ExactIntegerCovariance.of(rows.dtype, sp.accumulators.Covariance())
    >>> whole = integers.update(integers.init(3), rows)
    >>> halves = integers.merge([integers.update(integers.init(3), half) for half in (rows[50:], rows[:50])])
    >>> bool((whole.products == halves.products).all())
    True
    """

    shift: int = 0
    """Number subtracted from every value to keep sums small; states can merge only if they share it."""
    covariance: Covariance = field(default_factory=Covariance)
    """Centring, scaling, ddof and tiles."""
    n_threads: int = field(default=1, compare=False)
    """Number of threads that share the tiles of one update; it does not affect the bits."""

    @classmethod
    def of(cls, dtype: DTypeLike, covariance: Covariance) -> ExactIntegerCovariance:
        """Return the accumulator for rows of `dtype`."""
        return cls(128 if np.dtype(dtype).kind == "u" else 0, covariance)

    @staticmethod
    def takes(dtype: DTypeLike) -> bool:
        """Return whether rows of `dtype` can be accumulated: bool, int8 or uint8."""
        return np.dtype(dtype).kind in "biu" and np.dtype(dtype).itemsize == 1

    def grid(self, n_features: int) -> TileGrid:
        """Return the tile layout of the products."""
        return self.covariance.grid(n_features)

    @override
    def for_reading(self) -> ExactIntegerCovariance:
        return replace(self, covariance=self.covariance.for_reading())

    @override
    def shares(self, n_features: int) -> int:
        return self.grid(n_features).n_tiles

    @override
    def init(self, n_features: int) -> IntegerState:
        return IntegerState(0, np.zeros(n_features), np.zeros(self.grid(n_features).size))

    def update(self, state: IntegerState, block: Block | Array) -> IntegerState:
        """Return `state` with the rows of `block`, shape ``(n_rows, n_features)``, added to it in place.

        Raises
        ------
        ParameterError
            If the rows have another type, or have weights.
        """
        block = as_block(block)
        if not self.takes(block.values.dtype) or block.weights is not None:
            raise ParameterError(
                f"rows of {block.values.dtype}: expected bool, int8 or uint8 without weights; use Covariance"
            )
        others, equal = block.apart()
        step = panel_rows(block.values.shape[1], np.dtype(np.float32))
        for panel in chain.from_iterable(other.panels(step) for other in others):
            state = self._add_panel(state, panel.values, len(panel))
        return state if equal is None else self._add_panel(state, equal.row[None], equal.n_rows)

    def _add_panel(self, state: IntegerState, panel: Array, n_rows: int) -> IntegerState:
        """Add the rows of `panel`, or one row that `n_rows` rows equal."""
        rows = borrow("panel", panel.shape, np.float32)
        origin, unit, sums, squares = _centred(panel.view(np.uint8) if panel.dtype == np.bool_ else panel, rows)
        scale, step = float(unit**2), origin - self.shift
        total = unit * sums * (n_rows / len(panel))
        left = np.stack([step, total + n_rows * step], axis=1)
        right = np.stack([total, step])
        cuts = list(pairwise([0, *_exact_cuts(squares, len(rows))]))
        grid = self.grid(panel.shape[1])

        def add(pair: tuple[int, int]) -> None:
            i, j = grid.features(pair[0]), grid.features(pair[1])
            tile, half = grid.tile(state.products, *pair), (i.stop - i.start) // 2
            # numpy copies a triangle after a symmetric product, which takes long beside one of few rows.
            halved = pair[0] == pair[1] and len(cuts) > 1 and half > 0
            near, far = slice(0, half if halved else None), slice(half, None)
            for a, b in ((near, near), (far, near), (far, far)) if halved else ((near, near),):
                part, columns, others = tile[a, b], rows[:, i][:, a], rows[:, j][:, b]
                product = borrow("product", part.shape, np.float32)
                for first, last in cuts:
                    np.matmul(columns[first:last].T, others[first:last], out=product)
                    for start in range(0, len(part), 128):  # strips that fit in the cache
                        strip = slice(start, start + 128)
                        part[strip] += product[strip] if scale == 1 else product[strip] * np.float64(scale)
                        if first == 0:
                            part[strip] += left[i][a][strip] @ right[:, j][:, b]
            if halved:
                tile[near, far] = tile[far, near].T

        spread(add, grid.pairs, self.n_threads)
        return IntegerState(state.n_samples + n_rows, state.total + total + n_rows * step, state.products)

    @override
    def absorb(self, state: IntegerState, other: IntegerState) -> IntegerState:
        require_same_layout(state, other, (state.products.size, other.products.size))
        if other.n_samples == 0:
            return state
        np.add(state.products, other.products, out=state.products)
        return IntegerState(state.n_samples + other.n_samples, state.total + other.total, state.products)

    @override
    def stored_form(self, state: IntegerState) -> tuple[AnyAccumulator, CovarianceState, int]:
        return self.covariance, self.to_covariance(state, out=state.products), 0

    def to_covariance(self, state: IntegerState, out: FloatArray | None = None) -> CovarianceState:
        """Return the state of `Covariance` for the same rows; the scatter is written to `out`, which may be the memory of `state`."""
        scatter = state.products.copy() if out is None else out
        if out is not None and out is not state.products:
            np.copyto(out, state.products)
        n = state.n_samples
        if n == 0:
            return replace(self.covariance.init(len(state.total)), scatter=scatter)
        grid = self.grid(len(state.total))
        # First move to whole numbers near the means, which is exact; only squares of remainders below 1/2 are rounded.
        middle = np.rint(state.total / n)
        left = np.stack([-middle, n * middle - state.total], axis=1)
        grid.add_outer(scatter, left, np.stack([state.total, middle]), self.n_threads)
        remainder = state.total - n * middle
        grid.add_outer(scatter, -remainder[:, None], (remainder / n)[None], self.n_threads)
        return CovarianceState(n, float(n), float(n), self.shift + middle, remainder / n, scatter)

    @override
    def divisor(self, state: IntegerState) -> float:
        return float(state.n_samples - self.covariance.ddof)

    def finalize(self, state: IntegerState) -> SymmetricOperator:
        """Return the symmetric matrix whose eigenpairs are the principal components, without changing `state`."""
        return replace(self.covariance, n_threads=self.n_threads).finalize(self.to_covariance(state))

    @override
    def state_bytes(self, n_features: int) -> int:
        return 8 * (self.grid(n_features).size + n_features)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes: as for `Covariance`, plus three slabs of 16-bit integers and squares of groups of rows."""
        rows = min(n_rows, panel_rows(n_features, np.dtype(np.float32)))
        small = 6 * _EXACT_ROWS * n_features + 8 * n_features * -(-rows // _EXACT_ROWS)
        return replace(self.covariance, n_threads=self.n_threads).scratch_bytes(n_features, n_rows, 4) + small


def _centred(values: Array, rows: Array, unit: int | None = None) -> tuple[FloatArray, int, FloatArray, FloatArray]:
    """Write ``(values - origin) / unit`` to `rows`, float32; `values` are int8 or uint8. The default unit comes from a sample.

    Returns
    -------
    origin : array, shape (n_features,)
        Whole number near the mean of each feature.
    unit : int
        Number that divides the difference of any two values.
    sums : array, shape (n_features,)
        Sums of the centred rows, exact.
    squares : array, shape (n_groups, n_features)
        Sums of their squares over groups of 256 rows, exact.
    """
    n_rows, n_features = values.shape
    sample = values[:: -(-n_rows // _SAMPLE_ROWS)]
    if (
        unit is None
    ):  # the largest number that divides all differences of values, 255 for masks of 0 and 255; 1 for equal values
        present = np.flatnonzero(np.bincount(sample.ravel().astype(np.int16) + 128))
        unit = max(1, int(np.gcd.reduce(np.diff(present), initial=0)))
    origin = float(values[0, 0]) + unit * np.rint((sample.mean(axis=0, dtype=np.float64) - float(values[0, 0])) / unit)
    sums, squares = np.zeros(n_features), np.zeros((-(-n_rows // _EXACT_ROWS), n_features))
    ones, whole = np.ones(_EXACT_ROWS, dtype=np.float32), origin.astype(np.int16)
    for i, start in enumerate(range(0, n_rows, _EXACT_ROWS)):
        slab = rows[start : start + _EXACT_ROWS]
        steps = np.subtract(
            values[start : start + _EXACT_ROWS], whole, out=borrow("steps", slab.shape, np.int16), dtype=np.int16
        )
        if unit > 1:
            units = np.floor_divide(steps, np.int16(unit), out=borrow("units", slab.shape, np.int16))
            if not np.array_equal(units * np.int16(unit), steps):
                return _centred(values, rows, 1)
            steps = units
        np.copyto(slab, steps)
        sums += ones[: len(slab)] @ slab
        squares[i] = np.einsum("ij,ij->j", slab, slab)
    return origin, unit, sums, squares


def _exact_cuts(squares: FloatArray, n_rows: int) -> list[int]:
    """Return the ends of runs of centred rows with exact float32 products, given the sums of squares of groups of 256 rows."""
    cuts, total = [], np.zeros(squares.shape[1])
    for i, of_group in enumerate(squares):
        total += of_group
        if i and total.max(initial=0.0) > _EXACT:
            cuts.append(i * _EXACT_ROWS)
            total = of_group.copy()
    return [*cuts, n_rows]
