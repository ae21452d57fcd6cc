"""Objects with names of their own, of xarray and pandas, and the coordinates in them; neither package is imported."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from streampca.labels import Dimension
from streampca.sources.conventions import plain_attributes
from streampca.system.optional import package_of
from streampca.typing import Array, JsonValue

if TYPE_CHECKING:
    import xarray as xr


def is_xarray(data: object) -> TypeGuard[xr.DataArray | xr.Dataset]:
    """Return whether `data` is a DataArray or a Dataset."""
    return package_of(data) == "xarray" and hasattr(data, "dims") and hasattr(data, "coords")


def is_indexed(values: object) -> bool:
    """Return whether `values` are a Series or DataFrame of pandas."""
    return package_of(values) == "pandas" and hasattr(values, "iloc")


def dimension_of(array: xr.DataArray, dim: Hashable, size: int) -> Dimension:
    """Return a dimension of a DataArray with its coordinate: numbers, times, or text for all else."""
    if dim not in array.coords or array.coords[dim].dims != (dim,):
        return Dimension(str(dim), size)
    coordinate = array.coords[dim]
    values, attributes = np.asarray(coordinate.values), plain_attributes(coordinate.attrs)
    if values.dtype.kind == "O" and getattr(index := coordinate.to_index(), "tz", None) is not None:
        return dimension_of_index(index, str(dim))
    if values.dtype.kind == "O" and values.size and isinstance(calendar := getattr(values[0], "calendar", None), str):
        attributes["calendar"] = calendar
    return Dimension(str(dim), size, _numbers_times_or_text(values), attributes)


def is_default(index: Any) -> bool:
    """Return whether an index of pandas is that of rows without names: 0, 1, 2 and so on."""
    return type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1


def dimension_of_index(index: Any, name: str | None = None) -> Dimension:
    """Return an index of pandas as a dimension, with its values also where it `is_default`.

    Times with a time zone are those of UTC, with the attribute ``time_zone``; periods are the times of their starts.
    """
    index, attributes = without_zone(index)
    index = index.to_timestamp() if hasattr(index, "to_timestamp") else index
    values = _numbers_times_or_text(np.asarray(index))
    default = "time" if values.dtype.kind == "M" else "row"
    return Dimension(name or str(index.name or default), len(index), values, attributes)


def without_zone(index: Any) -> tuple[Any, dict[str, JsonValue]]:
    """Return an index of pandas with times of UTC in place of those of a time zone, and the attribute that names it."""
    zone = getattr(index, "tz", None)
    return (index, {}) if zone is None else (index.tz_convert(None), {"time_zone": str(zone)})


def _numbers_times_or_text(values: Array) -> Array:
    """Return the values of a coordinate; as text places of a MultiIndex, dates of other calendars, and all else."""
    if values.dtype.kind in "biufmM":
        return values
    return np.array(
        [", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values.tolist()], dtype=str
    )
