"""A fit with products on a device: its requirements, and passes with accumulators of the device in place of the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.centring import sketch_panel_rows
from streampca.accumulators.covariance import panel_rows
from streampca.accumulators.on_device import on_device
from streampca.errors import PlanError
from streampca.execution.readings import Answer, AnyReading, Reading, Readings, relayed
from streampca.formatting import as_text
from streampca.planning.memory import MemoryNeed
from streampca.planning.plan import Plan
from streampca.planning.shape import WorkShape
from streampca.planning.work import Companion, Resources, Work
from streampca.sources.base import Source
from streampca.system.device import HOST, SHARE, STAGED, device_of

Result = TypeVar("Result")


_THERE = {
    "covariance": "sums of products of rows, and the eigenproblem from 512 features on",
    "gram": "sums of products of samples",
    "sketch": "products of rows with the columns of the sketch",
    "nystrom": "sums of products of kernel values; the kernel itself is evaluated here",
}
"""What solvers compute on a device."""


def device_note(plan: Plan, source: Source, parameters: Any) -> str:
    """Return what a plan says of the device that `parameters` name."""
    device, name = device_of(parameters.device), parameters.device
    why = ""
    if source.sparse:
        why = "rows are sparse"
    elif plan.solver not in _THERE:
        why = f"solver {plan.solver} computes here"
    elif plan.solver == "covariance" and parameters.missing in ("mean", "pairwise"):
        why = f"sums for missing={parameters.missing!r} are made here"
    elif plan.tile_groups:
        why = "the matrix is on disk"
    if why:
        return f"device={name!r} is not used: {why}"
    products = "in float64" if device.wide else "in float32 where it keeps their digits, with sums in float64"
    return f"device={name!r} ({device.description}), products {products}: {_THERE[plan.solver]}"


class OnDevice(Companion):
    """Products on a device: a companion of the plan and a relay to the readings (`execution.readings`).

    Parameters
    ----------
    name : str
        Name of the device, not ``"cpu"``.
    """

    def __init__(self, name: str):
        self.name = name

    @override
    def needs(self, work: Work, shape: WorkShape) -> Iterable[MemoryNeed]:
        """Return the page-locked memory: for each of L leaves two panels."""
        staged = STAGED * shape.leaves_in_flight * self._panel_bytes(work, shape)
        return (MemoryNeed("page-locked", staged if device_of(self.name).on_card else 0, ("reading",)),)

    @staticmethod
    def _panel_bytes(work: Work, shape: WorkShape) -> int:
        d, dtype = work.read.shape[1], np.dtype(work.work_dtype)
        return min(shape.rows_per_block, max(panel_rows(d, dtype), sketch_panel_rows(d, dtype))) * d * dtype.itemsize

    def device_bytes(self, work: Work, shape: WorkShape) -> int:
        """Return what a reading takes on the device at most: for each leaf its sums and two products, the panel as it came and in float64; and Ω."""
        needs = tuple(work.needs(shape))
        states = sum(need.n_bytes for need in needs if need.purpose == "states") // max(1, shape.n_states)
        test = sum(need.n_bytes for need in needs if need.purpose == "test matrix")
        return shape.leaves_in_flight * (3 * states + 4 * self._panel_bytes(work, shape)) + 2 * test

    @override
    def fits(self, work: Work, shape: WorkShape) -> bool:
        """Return whether the leaves fit on the device; `PlanError` if not even one does."""
        device = device_of(self.name)
        free, taken = device.free_bytes(), self.device_bytes(work, shape)
        if free is None or taken <= SHARE * free:
            return True
        if shape.leaves_in_flight == 1:
            raise PlanError(
                f"device={self.name!r}: {device.description} has {as_text(free)} free, and sums and panels of one leaf take {as_text(taken)}: "
                "take fewer features, or device='cpu'"
            )
        return False

    def asked(self, reading: AnyReading) -> AnyReading:
        """Return the reading with accumulators of the device, where there are such."""
        if not isinstance(reading, Reading) or reading.source.sparse:
            return reading
        there = tuple(on_device(each, self.name) or each for each in reading.accumulators)
        return replace(reading, accumulators=there)

    def answered(self, answer: Answer) -> Answer:
        """Return the answer as it is: its states are those of the host."""
        return answer


def with_device(resources: Resources, parameters: Any, source: Source) -> Resources:
    """Return `resources` with what products on the device that `parameters` name take; sparse rows are multiplied here."""
    if parameters.device == HOST or source.sparse:
        return resources
    return replace(resources, companions=(*resources.companions, OnDevice(parameters.device)))


def on_device_of(parameters: Any, readings: Readings[Result]) -> Readings[Result]:
    """Return `readings` with products on the device that `parameters` name."""
    return readings if parameters.device == HOST else relayed(readings, OnDevice(parameters.device))
