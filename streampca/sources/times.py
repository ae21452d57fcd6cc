"""Times of the CF conventions: numbers of days, hours or seconds since a date, as `datetime64`.

Source: CF conventions 1.11, section 4.4. Only the calendars that agree with `datetime64` after 1582 are decoded here;
others need `cftime` and stay numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from streampca.errors import DataError
from streampca.typing import Array

_UNITS = {
    "days": 86_400_000_000, "day": 86_400_000_000, "d": 86_400_000_000,
    "hours": 3_600_000_000, "hour": 3_600_000_000, "hr": 3_600_000_000, "h": 3_600_000_000,
    "minutes": 60_000_000, "minute": 60_000_000, "min": 60_000_000,
    "seconds": 1_000_000, "second": 1_000_000, "sec": 1_000_000, "s": 1_000_000,
    "milliseconds": 1000, "millisecond": 1000, "ms": 1000,
    "microseconds": 1, "microsecond": 1, "us": 1,
}  # fmt: skip
"""Microseconds of a unit."""
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
_SINCE = re.compile(
    r"\s*(\w+)\s+since\s+(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[T ]\s*(\d{1,2}):(\d{1,2})(?::(\d{1,2}(?:\.\d+)?))?)?\s*(.*)"
)


def decoded_times(values: Array, attributes: Mapping[str, object], label: str) -> Array:
    """Return `values` as ``datetime64[us]`` if the attributes ``units`` and ``calendar`` say that they are times, else as they are.

    Raises
    ------
    DataError
        If the units are those of a time that cannot be understood, or a time lies outside of what `datetime64` holds.
    """
    units = attributes.get("units")
    if values.dtype.kind not in "iuf" or not isinstance(units, str) or " since " not in units:
        return values
    if str(attributes.get("calendar", "standard")).lower() not in _CALENDARS:
        return values
    match = _SINCE.fullmatch(units)
    unit = None if match is None else _UNITS.get(match.group(1).lower())
    if match is None or unit is None:
        raise DataError(f"{label} has units={units[:60]!r}: expected, for example, 'days since 1990-01-01'")
    zone = match.group(8).strip()
    if zone not in ("", "Z", "UTC", "+00:00", "+0:00", "00:00", "0:00", "GMT"):
        raise DataError(f"{label} has units={units[:60]!r}: expected a time in UTC; convert the coordinate first")
    year, month, day, hour, minute = (int(text or 0) for text in match.group(2, 3, 4, 5, 6))
    try:
        start = np.datetime64(f"{year:04d}-{month:02d}-{day:02d}", "us")
    except ValueError as error:
        raise DataError(f"{label} has units={units[:60]!r}: there is no such date") from error
    seconds = float(match.group(7) or 0)
    micro = (hour * 3600 + minute * 60) * 1_000_000 + round(seconds * 1e6)
    if not np.isfinite(values).all() or (np.abs(values.astype(np.float64)) > 2.0**62 / unit).any():
        raise DataError(f"{label} holds a time that is not finite or out of range: expected {units[:60]}")
    if values.dtype.kind == "f":
        whole = np.floor(values)
        steps = whole.astype(np.int64) * unit + np.rint((values - whole) * unit).astype(np.int64)
    else:
        steps = values.astype(np.int64) * unit
    times: Array = start + (steps + micro).astype("timedelta64[us]")
    return times
