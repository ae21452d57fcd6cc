"""Dimensions of the data as axes of pictures: their names, which way they go, and their coordinates."""

from __future__ import annotations

import numpy as np

from streampca.formatting import clean
from streampca.labels import Dimension
from streampca.typing import Array, FloatArray, IntArray

_LATITUDE = frozenset(
    {"lat", "latitude", "degrees_north", "degree_north", "degrees_n", "degree_n", "degreesn", "degreen"}
)
_LONGITUDE = frozenset(
    {"lon", "long", "longitude", "degrees_east", "degree_east", "degrees_e", "degree_e", "degreese", "degreee"}
)


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
    told = {str(dimension.attributes.get(name, "")).lower() for name in ("units", "standard_name")} | {
        dimension.name.lower()
    }
    return "lat" if told & _LATITUDE else "lon" if told & _LONGITUDE else ""


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


def places(dimension: Dimension, step: int, *, vertical: bool = False) -> tuple[IntArray, FloatArray | None]:
    """Return every `step`-th place of a dimension, from left to right or from top to bottom, and their coordinates.

    Longitudes rise to the right; latitudes, and whatever the attributes call a y axis, rise to the top; everything else is
    in the order of storage. Coordinates are None where they are not numbers that rise or fall.
    """
    shown = np.arange(step // 2, dimension.size, step)
    values, kind = numbers(dimension), direction(dimension)
    if values is None or len(shown) < 2:
        return shown, None
    values = values[shown]
    if kind == "lon" and not _monotonic(values):
        values = np.unwrap(values, period=360.0)
    if not _monotonic(values):
        return shown, None
    y_axis = dimension.attributes.get("axis") == "Y" or "projection_y" in str(dimension.attributes.get("standard_name"))
    falls = bool(values[1] < values[0])
    turned = falls if kind == "lon" else vertical and not falls and (kind == "lat" or y_axis)
    return (shown[::-1], values[::-1]) if turned else (shown, values)


def _monotonic(values: FloatArray) -> bool:
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all())


def degrees(value: float, kind: str) -> str:
    """Return a latitude (`kind` is ``lat``) or longitude (``lon``) as ``30° N``, ``90° W``, ``180°``."""
    if kind == "lon":
        value = (value + 180.0) % 360.0 - 180.0
    shown = f"{abs(value):.4g}°"
    if value == 0 or (kind == "lon" and value == -180):
        return shown
    return f"{shown}\N{NO-BREAK SPACE}{('S', 'N')[int(value > 0)] if kind == 'lat' else ('W', 'E')[int(value > 0)]}"
