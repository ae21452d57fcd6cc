"""Sketch and Gram matrix with products on a device, and the device accumulator for each host accumulator."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.centring import squares_of_rows
from streampca.accumulators.covariance import Covariance
from streampca.accumulators.device_covariance import DeviceCovariance, DeviceSums, SettledStates
from streampca.accumulators.gram import Gram, GramState
from streampca.accumulators.kernel_features import KernelFeatures
from streampca.accumulators.sketch import Sketch, SketchState
from streampca.accumulators.wrappers import ByGroup, CompleteRows
from streampca.block import Block, as_block
from streampca.system.device import device_of
from streampca.typing import Array, FloatArray, override


def on_device(accumulator: Any, device: str) -> AnyAccumulator | None:
    """Return the accumulator that gives the same states with products on `device`; None if its products stay on the host."""
    kind, part = _KINDS.get(type(accumulator)), _PARTS.get(type(accumulator))
    if kind is not None:
        own = {each.name: getattr(accumulator, each.name) for each in fields(accumulator) if each.init}
        there: AnyAccumulator = kind(**own, device=device)
        return there
    inner = None if part is None else on_device(getattr(accumulator, part), device)
    return None if part is None or inner is None else replace(accumulator, **{part: inner})


@dataclass(frozen=True, eq=False)
class DeviceSketch(SettledStates, Sketch):
    """`Sketch` with both products of a panel on a device."""

    device: str = "cuda"
    """Name of the device."""

    @override
    def init(self, n_features: int) -> SketchState:
        empty = super().init(0)
        origin = np.zeros(n_features) if self._rounded_origin is None else self._rounded_origin
        sums: Any = DeviceSums(self.device, (n_features, self.n_columns))
        observed = np.zeros(n_features if self.missing == "pairwise" else 0)
        return replace(
            empty,
            origin=origin,
            sums=np.zeros(n_features),
            squares=np.zeros(n_features),
            observed=observed,
            products=sums,
        )

    @override
    def update(self, state: SketchState, block: Block | Array) -> SketchState:
        block = replace(as_block(block), equal=())  # their closed form is of products on the host
        if isinstance(state.products, np.ndarray):
            sums: Any = DeviceSums(self.device, (state.n_features, self.n_columns), state.products)
            state = replace(state, products=sums)
        return super().update(state, block)

    @override
    def _add_products(
        self, products: Any, rows: Array, weights: FloatArray | None, origin: FloatArray | None = None
    ) -> None:
        device = device_of(self.device)
        dtype = np.dtype(np.float64) if device.wide else rows.dtype
        with device.exact_products():
            there = device.send(rows, dtype)
            if origin is not None:
                there = there - device.send(origin.astype(rows.dtype), dtype)
            projected = there @ device.keep(self.test, dtype)
            if weights is not None:
                projected = projected * device.send(weights.astype(rows.dtype), dtype)[:, None]
            products.add(there, projected)


@dataclass(frozen=True)
class DeviceGram(SettledStates, Gram):
    """`Gram` with its products on a device."""

    device: str = "cuda"
    """Name of the device."""

    @override
    def init(self, n_features: int) -> GramState:
        sums: Any = DeviceSums(self.device, self.grid(n_features))
        none, empty = np.empty(0, dtype=np.int64), np.empty(0)
        return GramState(n_features, sums, none, none, empty, empty)

    @override
    def update(self, state: GramState, block: Block | Array) -> GramState:
        if isinstance(state.products, np.ndarray):
            sums: Any = DeviceSums(self.device, self.grid(state.n_features), state.products)
            state = replace(state, products=sums)
        return super().update(state, block)

    @override
    def _add_products(self, products: Any, columns: Array) -> None:
        products.add_scatter(columns.T, lambda: squares_of_rows(columns))


_KINDS: dict[type, Any] = {Covariance: DeviceCovariance, Sketch: DeviceSketch, Gram: DeviceGram}
"""Accumulators of the host, and their counterparts on a device."""
_PARTS: dict[type, str] = {CompleteRows: "accumulator", ByGroup: "accumulator", KernelFeatures: "products"}
"""Accumulators that contain one of them, and the name of the field."""
