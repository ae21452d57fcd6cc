"""Covariance with products on a device: the host centres rows in the same panels, and states return to the host.

A panel is centred while it is written to the memory that the device copies from, which the copy would pass through anyway.
So the same code checks rows, weights and missing values. Products on the device are float64 if it has them, and sums
always are. Rows that are already on the device are centred there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from streampca.accumulators.base import settled
from streampca.accumulators.centring import (
    MOST_BANDS,
    SAFE_SQUARES,
    Panel,
    lossy_features,
    refuse_not_finite,
    require_finite,
)
from streampca.accumulators.covariance import Covariance, CovarianceState, panel_rows
from streampca.block import Block, is_tensor, rows_of_tensor
from streampca.linalg.tiles import TileGrid
from streampca.storage.state_file import Elsewhere
from streampca.system.device import Device, device_of
from streampca.typing import Array, FloatArray, override

_SAMPLE_ROWS = 128


class DeviceSums(Elsewhere):
    """Sums of products on a device, allocated with the first product; ``np.asarray`` gives them in the form of the host.

    Parameters
    ----------
    device : str
        Name of the device.
    layout : TileGrid or tuple of int
        Tiles of the lower triangle of a symmetric matrix, or the shape of a matrix.
    stored : array, optional
        Sums so far, in the form of the host.
    """

    def __init__(self, device: str, layout: TileGrid | tuple[int, int], stored: FloatArray | None = None):
        self.name, self.layout, self._slabs = device, layout, list[Any]()
        if stored is not None and stored.any():
            self._slabs = [self.device.send(slab) for slab in self._cut(stored)]

    @property
    def device(self) -> Device:
        """Return the device."""
        return device_of(self.name)

    @property
    def size(self) -> int:
        """Return the number of stored entries."""
        return self.layout.size if isinstance(self.layout, TileGrid) else self.layout[0] * self.layout[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape on the host."""
        return (self.size,) if isinstance(self.layout, TileGrid) else self.layout

    @override
    @property
    def nbytes(self) -> int:
        return 8 * self.size

    def _edges(self) -> list[tuple[slice, slice]]:
        """Return the rows and columns of each slab; for a triangle, one row of tiles up to the diagonal."""
        if not isinstance(self.layout, TileGrid):
            return [(slice(0, self.layout[0]), slice(0, self.layout[1]))]
        edges = self.layout.edges
        return [(self.layout.features(i), slice(0, edges[i + 1])) for i in range(len(edges) - 1)]

    def _cut(self, stored: FloatArray) -> list[FloatArray]:
        if not isinstance(self.layout, TileGrid):
            return [stored]
        rows = range(len(self.layout.edges) - 1)
        return [np.hstack([self.layout.tile(stored, i, j) for j in range(i + 1)]) for i in rows]

    def add(self, left: Any, right: Any) -> None:
        """Add leftᵀ right for arrays on the device, ``(n_rows, n_some)``; for a triangle both have all features."""
        places = self._edges()
        if not self._slabs:
            self._slabs = [self.device.zeros((r.stop - r.start, c.stop - c.start)) for r, c in places]
        for slab, (rows, columns) in zip(self._slabs, places, strict=True):
            self.device.add_product(slab, left[:, rows], right[:, columns])

    def add_scatter(self, rows: Array, squares: Callable[[], FloatArray], about_mean: FloatArray | None = None) -> None:
        """Add rowsᵀ rows for a panel of the host, ``(n_rows, n_features)``, in the precision that the rows need and the device has.

        `squares` returns the sums of squares of the columns of float32 rows (see `lossy_features`).
        """
        device = self.device
        with device.exact_products():
            there: Any = rows
            if isinstance(rows, np.ndarray):
                there = device.send(rows, np.dtype(np.float64) if device.wide else rows.dtype)
            if there.dtype == device.xp.float32 and isinstance(self.layout, TileGrid):
                parts = [there[:, self.layout.features(i)] for i in range(len(self.layout.edges) - 1)]
                diagonal = np.concatenate([device.fetch(part.T @ part).diagonal() for part in parts])
                if lossy_features(diagonal, squares(), about_mean).any():
                    there = device.xp.astype(there, device.xp.float64)
            self.add(there, there)

    def scale(self, factor: float) -> None:
        """Multiply the sums by `factor`."""
        for slab in self._slabs:
            slab *= factor

    def __reduce__(self) -> tuple[Any, ...]:
        return np.asarray, (np.asarray(self),)

    @override
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        if not self._slabs:
            return np.zeros(self.shape)
        slabs = [self.device.fetch(slab) for slab in self._slabs]
        if not isinstance(self.layout, TileGrid):
            return slabs[0]
        flat = np.empty(self.size)
        for i, slab in enumerate(slabs):
            for j in range(i + 1):
                self.layout.tile(flat, i, j)[...] = slab[:, self.layout.features(j)]
        return flat


class SettledStates:
    """Mixin for accumulators on a device: states are merged and solved in the memory of this process."""

    def absorb(self, state: Any, other: Any) -> Any:
        """Return the merged state, in the memory of this process."""
        own: Any = super()
        return own.absorb(settled(state), settled(other))

    def finalize(self, state: Any) -> Any:
        """Return the result of the host accumulator."""
        own: Any = super()
        return own.finalize(settled(state))


@dataclass(frozen=True)
class DeviceCovariance(SettledStates, Covariance):
    """`Covariance` with products on a device: the same states, usually with more digits, because products are float64 if the device has them.

    Examples
    --------
    >>> import streampca as sp
    >>> sp.accumulators.DeviceCovariance(device="cuda").device
    'cuda'
    """

    device: str = "cuda"
    """Name of the device, such as ``"cuda"`` or ``"cuda:1"``."""
    reuses_states: ClassVar[bool] = False

    @override
    def init(self, n_features: int) -> CovarianceState:
        sums: Any = DeviceSums(self.device, self.grid(n_features))
        return CovarianceState(0, 0.0, 0.0, np.zeros(n_features), np.zeros(n_features), sums)

    @override
    def shares(self, n_features: int) -> int:
        return max(MOST_BANDS, len(self.grid(n_features).edges) - 1)  # threads that centre a panel

    @override
    @property
    def rows_device(self) -> str:
        return self.device

    @override
    def update(self, state: CovarianceState, block: Block | Array) -> CovarianceState:
        """Return `state` with the rows of `block`, ``(n_rows, n_features)``, added to it.

        Rows may be a torch tensor of any type; a tensor on the device is centred and multiplied there.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN or infinity, or overflow when squared.
        """
        rows = block if isinstance(block, Block) else Block(block)
        values: Any = rows.values
        if not device_of(self.device).has(values):
            values = rows_of_tensor(values) if is_tensor(values) else values
            return super().update(self._there(state), replace(rows, values=values))
        values = values.detach() if is_tensor(values) else values  # of no graph, which would grow with every block
        n_rows, step = len(rows), panel_rows(values.shape[1], np.dtype(np.float32))
        for start in range(0, n_rows, step):
            stop = min(n_rows, start + step)
            weights = None if rows.weights is None else rows.weights[start:stop]
            part = Block(values[start:stop, :], rows.start + start, weights)
            if self.forgetting != 1:
                state = self._faded(self._there(state), len(part))
                part = replace(part, weights=self._fading(len(part)))
            elif part.weights is not None and not part.weights.all():
                counted = device_of(self.device).xp.asarray(np.flatnonzero(part.weights), device=values.device)
                there = device_of(self.device).xp.take(part.values, counted, axis=0)
                part = Block(there, part.start, part.weights[part.weights > 0])
            if len(part):
                state = self.add_panel(state, self._panel_there(part))
        return state

    def _panel_there(self, block: Block) -> Panel:
        """Return rows on the device as a panel there, centred like `centre`, in float64, or in float32 if that keeps their digits."""
        device = device_of(self.device)
        xp, there, weights = device.xp, block.values, block.weights
        wide = xp.astype(there, xp.float64)
        sample = wide[:: -(-len(block) // _SAMPLE_ROWS), :]
        middle = xp.where(xp.all(sample == sample[0, :], axis=0), sample[0, :], xp.mean(sample, axis=0))
        middle = xp.where(xp.all(sample == xp.round(sample), axis=0), xp.round(middle), middle)
        wide = wide - middle
        if weights is None:
            mean = remainder = device.fetch(xp.mean(wide, axis=0))
        else:  # about the weighted mean, see `weigh`
            scaled = device.send(weights / weights.sum())
            moved = scaled @ wide
            middle, wide = middle + moved, wide - moved
            remainder = device.fetch(scaled @ wide)
            wide, mean = wide * device.send(np.sqrt(weights))[:, None], remainder
        squares = device.fetch(xp.sum(wide * wide, axis=0))
        if not (np.isfinite(squares).all() and np.isfinite(mean).all()):
            refuse_not_finite(device.fetch(there), block.start)
            require_finite(np.isfinite(squares), block)
        low, high = SAFE_SQUARES
        narrow = not device.wide and bool(((squares == 0) | ((low < squares) & (squares < high))).all())
        rows: Any = xp.astype(wide, xp.float32) if narrow else wide
        counts = len(block), *block.weight_sums()
        return Panel(rows, device.fetch(middle), mean, remainder, squares if narrow else None, counts)

    def _there(self, state: CovarianceState) -> CovarianceState:
        """Return `state`, possibly from the host, with its sums on the device."""
        sums: Any = state.scatter
        if isinstance(sums, np.ndarray):
            sums = DeviceSums(self.device, self.grid(state.n_features), sums)
        return replace(state, scatter=sums)

    @override
    def add_panel(self, state: CovarianceState, panel: Panel) -> CovarianceState:
        return super().add_panel(self._there(state), panel)

    @override
    def add_scatter(self, scatter: Any, panel: Panel, step: FloatArray, weight: float) -> None:
        total, remainder = panel.counts[1], panel.remainder
        about_mean = None
        if panel.squares is not None:
            about_mean = np.maximum(panel.squares - total * np.square(remainder), panel.squares / 4)
        scatter.add_scatter(panel.rows, lambda: panel.squares, about_mean)
        device, left, right = scatter.device, [step * weight, remainder * -total], [step, remainder]
        scatter.add(device.send(np.array(left)), device.send(np.array(right)))

    @override
    def add_equal(self, state: CovarianceState, rows: Any, offset: FloatArray | None = None) -> CovarianceState:
        return super().add_equal(settled(state), rows, offset)

    @override
    def _faded(self, state: CovarianceState, n_rows: int) -> CovarianceState:
        sums: Any = state.scatter
        if isinstance(sums, np.ndarray):
            return super()._faded(state, n_rows)
        factor = float(self.forgetting) ** n_rows
        sums.scale(factor)
        return replace(state, weight=state.weight * factor, weight_squares=state.weight_squares * factor**2)
