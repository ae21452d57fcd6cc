"""Sides of a picture: a dimension of the data from left to right or from top to bottom, with its ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streampca.labels import Dimension
from streampca.runs.report.parts import Tick
from streampca.runs.report.words import clean
from streampca.typing import Array, FloatArray, IntArray

_LATITUDE = frozenset({"lat", "latitude"})
_LONGITUDE = frozenset({"lon", "long", "longitude"})
_NORTH = frozenset({"degrees_north", "degree_north", "degrees_n", "degree_n", "degreesn", "degreen"})
_EAST = frozenset({"degrees_east", "degree_east", "degrees_e", "degree_e", "degreese", "degreee"})
_DEGREES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0)
_MOST_TICKS = 5


@dataclass(frozen=True)
class Side:
    """A dimension as it is drawn."""

    dimension: Dimension
    """The dimension."""
    places: IntArray
    """Its place at each pixel, from left to right or from top to bottom."""
    span: float | None
    """Distance between the ends in units of the coordinate; None without one."""
    middle: float
    """Coordinate in the middle, 0 without one."""
    ticks: tuple[Tick, ...]
    """Coordinates with their places."""

    @property
    def thinned(self) -> bool:
        """Return whether some places are not drawn."""
        return len(np.unique(self.places)) < self.dimension.size

    @property
    def title(self) -> str:
        """Return the name of the dimension with its units."""
        return title_of(self.dimension)


def title_of(dimension: Dimension) -> str:
    """Return the name of a dimension with its units: ``wavelength (nm)``."""
    name = clean(dimension.attributes.get("long_name") or dimension.name, 60)
    units = units_of(dimension)
    return f"{name} ({units})" if units and " since " not in units else name


def units_of(labelled: object) -> str:
    """Return the attribute ``units`` of a dimension or variable; nothing where there is none or it is 1."""
    units = getattr(labelled, "attributes", {}).get("units")
    return "" if not isinstance(units, str) or units in ("", "1") else clean(units, 40)


def direction(dimension: Dimension) -> str:
    """Return ``lat`` or ``lon`` for a dimension of latitudes or longitudes, by its units or names; else nothing."""
    if numbers(dimension) is None:
        return ""
    units = str(dimension.attributes.get("units", "")).lower()
    names = {dimension.name.lower(), str(dimension.attributes.get("standard_name", "")).lower()}
    if units in _NORTH or names & _LATITUDE:
        return "lat"
    return "lon" if units in _EAST or names & _LONGITUDE else ""


def numbers(dimension: Dimension) -> FloatArray | None:
    """Return the coordinate of a dimension as numbers; None if it is not of numbers, or one is not finite or above 1e300."""
    values = dimension.coordinate
    if values is None or values.dtype.kind not in "iuf":
        return None
    numbers = values.astype(np.float64)
    return numbers if bool((np.abs(numbers) < 1e300).all()) else None


def times(dimension: Dimension) -> Array | None:
    """Return the coordinate of a dimension as ``datetime64``; None if it is not of times."""
    values = dimension.coordinate
    return None if values is None or values.dtype.kind != "M" or bool(np.isnat(values).any()) else values


def side(dimension: Dimension, step: int, most: int, *, vertical: bool = False) -> Side:
    """Return how a dimension is drawn with every `step`-th of its places, or at most `most` pixels.

    Pixels are equally far apart in the units of the coordinate. Longitudes rise to the right; latitudes, and whatever the
    attributes call a y axis, rise to the top; everything else is drawn in the order of storage.
    """
    size, kind = dimension.size, direction(dimension)
    values = numbers(dimension)
    if values is not None and kind == "lon" and not _monotonic(values):
        values = np.unwrap(values, period=360.0)
    if values is None or size < 2 or not _monotonic(values) or abs(values[-1] - values[0]) < 1e-300:
        return Side(dimension, np.arange(step // 2, size, step), None, 0.0, ())
    falls = bool(values[1] < values[0])
    rising = -values if falls else values
    gaps = np.diff(rising)
    edges = np.concatenate([[rising[0] - gaps[0] / 2], rising[:-1] + gaps / 2, [rising[-1] + gaps[-1] / 2]])
    low, high = float(edges[0]), float(edges[-1])
    n = math.ceil(size / step)
    if gaps.max() > 1.01 * gaps.min():
        n = max(n, min(most, math.ceil((high - low) / float(gaps.min()))))
    centres = low + (np.arange(n) + 0.5) * ((high - low) / n)
    places = np.clip(np.searchsorted(edges, centres, side="right") - 1, 0, size - 1)
    y_axis = dimension.attributes.get("axis") == "Y" or "projection_y" in str(dimension.attributes.get("standard_name"))
    turned = falls if kind == "lon" else vertical and not falls and (kind == "lat" or y_axis)
    ends = (-low, -high) if falls else (low, high)
    ends = ends[::-1] if turned else ends
    return Side(dimension, places[::-1] if turned else places, high - low, (ends[0] + ends[1]) / 2, _ticks(*ends, kind))


def _monotonic(values: FloatArray) -> bool:
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all())


def _ticks(first: float, last: float, kind: str) -> tuple[Tick, ...]:
    """Return round numbers between the coordinates of the two ends of a side."""
    low, high = min(first, last), max(first, last)
    power = 10.0 ** math.floor(math.log10((high - low) / _MOST_TICKS))
    steps = _DEGREES if kind and high - low >= 0.2 else tuple(power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0))
    step = next((step for step in steps if (high - low) / step <= _MOST_TICKS), steps[-1])
    values = np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step
    return tuple(
        Tick(_degrees(value, kind) if kind else _written(value), round(100 * (value - first) / (last - first), 2))
        for value in map(float, values)
    )


def _written(value: float) -> str:
    return f"{value + 0.0:.6g}".replace("-", "−")


def _degrees(value: float, kind: str) -> str:
    """Return a latitude or longitude as ``30° N``, ``90° W``, ``180°``."""
    if kind == "lon":
        value = (value + 180.0) % 360.0 - 180.0
    shown = f"{abs(value):.4g}°"
    if value == 0 or (kind == "lon" and value == -180):
        return shown
    return f"{shown}\N{NO-BREAK SPACE}{('S', 'N')[value > 0] if kind == 'lat' else ('W', 'E')[value > 0]}"
