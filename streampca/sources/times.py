"""Times of the CF conventions as `datetime64`: numbers of days, hours or seconds since a date.

Source: CF conventions 1.11, section 4.4. Times of calendars that `datetime64` does not have stay numbers, of which
`streampca.calendars` finds the parts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from streampca.calendars import GREGORIAN_FROM, UNITS, calendar_named, time_units
from streampca.errors import DataError
from streampca.typing import Array

_DECODED = ("standard", "proleptic_gregorian")
_YEAR_0 = re.compile(r"\s*\w+\s+since\s+0{1,4}(-.*)?")


def is_time(units: str, calendar: object) -> bool:
    """Return whether numbers in these units are times, whatever their calendar; False where units or calendar are not understood."""
    try:
        return time_units(units, calendar) is not None
    except ValueError:  # a year 0
        return False


def decoded_times(values: Array, attributes: Mapping[str, object], label: str) -> Array:
    """Return `values` as ``datetime64`` if the attributes ``units`` and ``calendar`` say that they are times, else as they are.

    Times in nanoseconds have the unit of nanoseconds, all others that of microseconds. Numbers stay what they are for other
    calendars than the Gregorian one, for times of the standard calendar before 15 October 1582 or since a year 0, which it
    does not have, for months and years, which have no fixed length, and for units that are not understood, such as weeks.

    Raises
    ------
    DataError
        If the units say a date that does not exist or is not understood, or a time lies outside of what `datetime64` holds.
    """
    units = attributes.get("units")
    if values.dtype.kind not in "iuf" or not isinstance(units, str) or " since " not in units:
        return values
    calendar = calendar_named(attributes.get("calendar"))
    if calendar not in _DECODED:
        return values
    try:
        known = time_units(units, calendar)
    except ValueError as error:
        if calendar == "standard" and _YEAR_0.fullmatch(units[:200]):
            return values
        raise DataError(f"{label} has units={units[:60]!r}: there is no such date") from error
    if known is None and units.split()[0].lower() in UNITS:  # of a date that is not understood
        raise DataError(f"{label} has units={units[:60]!r}: expected, for example, 'days since 1990-01-01'")
    if known is None:
        return values
    try:
        microseconds = known.microseconds_of(values)
    except OverflowError as error:
        raise DataError(f"{label} holds a time that is not finite or out of range: expected {units[:60]}") from error
    if calendar == "standard" and microseconds.size and microseconds.min() < GREGORIAN_FROM * 86_400_000_000:
        return values
    times: Array = microseconds.astype("M8[us]")
    if known.microseconds or values.dtype.kind == "f":
        return times
    exact: Array = times.astype("M8[ns]") + (values.astype(np.int64) % 1000).astype("m8[ns]")
    return exact
