"""Times in the calendars of the CF conventions: numbers of days, hours or seconds since a date.

The calendar `standard` is the Julian one before 15 October 1582 and the Gregorian one from then on, so that the numbers since a
date in year 1 differ by two days from those of `datetime64`, which is Gregorian for all years.

Days of other calendars than the Gregorian one are counted by cftime. References are read here, because cftime takes a part of
one that it does not understand (``12``, ``-6:00``, ``noon``) for midnight of UTC, without an error.

Source: CF conventions 1.11, sections 4.4 and 4.4.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from streampca.errors import NotAvailableError
from streampca.typing import Array, FloatArray, IntArray
from streampca.version import install_command

_NAMES = {
    "standard": "standard", "gregorian": "standard", "proleptic_gregorian": "proleptic_gregorian", "julian": "julian",
    "noleap": "noleap", "365_day": "noleap", "all_leap": "all_leap", "366_day": "all_leap", "360_day": "360_day",
    "360": "360_day",
}  # fmt: skip
"""Calendars by their names in attributes."""
_UNITS = {
    86_400_000_000: ("days", "day", "d"),
    3_600_000_000: ("hours", "hour", "hrs", "hr", "h"),
    60_000_000: ("minutes", "minute", "mins", "min"),
    1_000_000: ("seconds", "second", "secs", "sec", "s"),
    1000: ("milliseconds", "millisecond", "millisecs", "millisec", "msecs", "msec", "ms"),
    1: ("microseconds", "microsecond", "microsecs", "microsec", "us"),
}
"""Names of units by their microseconds."""
_MICROSECONDS = {name: n for n, names in _UNITS.items() for name in names}
_NANOSECONDS = ("nanoseconds", "nanosecond", "ns")
UNITS = frozenset((*_MICROSECONDS, *_NANOSECONDS))
"""Units of times of every calendar."""
_MONTHS = ("months", "month", "mon")
"""Units of 30 days in the calendar of 360 days; of another length in every month of others."""
_DAY = 86_400_000_000
GREGORIAN_FROM = int(np.datetime64("1582-10-15").astype(np.int64))
"""First day of the Gregorian calendar in the standard one."""
_FIRST_GREGORIAN = (1582, 10, 15)
_FIRST = dict.fromkeys(("noleap", "all_leap", "360_day"), "days since 0000-01-01") | {
    "standard": "days since 1970-01-01",
    "julian": "days since 1969-12-19",
}
"""Day 0 of each calendar: 1 January 1970 of the Gregorian one, which is 19 December of the Julian, or the first of the year 0."""
_SINCE = re.compile(r"\s*(\w+)\s+since\s+(.{1,80}?)\s*")
_REFERENCE = re.compile(
    r"(?:(?P<date>\d{8})|(?P<year>\d{1,4})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2}))?)?)"
    r"(?:[T ]\s*(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?)?"
    r"(?:\s*(?:Z|UTC|GMT)|(?:\s+|(?=[+-]))(?P<sign>[+-]?)(?P<ahead>\d{1,2})(?::?(?P<minutes>\d{2}))?)?"
)
_FIXED_ZONE = re.compile(r"UTC|(?:UTC)?([+-])(\d{2}):(\d{2})")
_QUARTER = 15 * 60_000_000
_TEXT = re.compile(r"(-?\d{1,6})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?)?")


@dataclass(frozen=True)
class TimeUnits:
    """Units such as ``days since 1990-01-01`` in a calendar."""

    calendar: str
    """Name of the calendar; `standard` of those with two names."""
    microseconds: int
    """Microseconds of a unit, 0 for nanoseconds."""
    day: int
    """Day of the reference, as `day_number` counts."""
    offset: int
    """Microseconds from the start of this day, in UTC, to the reference."""

    def microseconds_of(self, values: Array) -> IntArray:
        """Return microseconds since day 0 of the calendar; `OverflowError` for values that are not finite, or too large."""
        if not np.isfinite(values).all():
            raise OverflowError
        unit = self.microseconds or 1e-3
        largest = (2.0**62 - abs(self.day) * float(_DAY)) / unit
        if (np.abs(values.astype(np.float64)) > largest).any():
            raise OverflowError
        if not self.microseconds:
            steps = np.floor(values).astype(np.int64) // 1000
        elif values.dtype.kind == "f":
            whole = np.floor(values)
            rest = np.rint((values - whole).astype(np.float64) * self.microseconds).astype(np.int64)
            steps = _rounded(whole.astype(np.int64) * self.microseconds + rest, self._spacing(values))
        else:
            steps = values.astype(np.int64) * self.microseconds
        result: IntArray = steps + (self.day * _DAY + self.offset)
        return result

    def _spacing(self, values: Array) -> float:
        """Return the largest distance in microseconds from a floating value to the next one."""
        return float(np.spacing(np.abs(values).max())) * self.microseconds if values.size else 0.0

    def values_of(self, microseconds: IntArray) -> FloatArray:
        """Return numbers in these units from microseconds since day 0 of the calendar."""
        return (microseconds - (self.day * _DAY + self.offset)) / (self.microseconds or 1e-3)


def _rounded(microseconds: IntArray, spacing: float) -> IntArray:
    """Return times rounded to the digits that floating values with this distance have, at least to a second.

    Eight hours as a third of a day are a few microseconds before or after them, in another hour.
    """
    digits = min(6, max(0, math.ceil(math.log10(4 * spacing)))) if spacing else 0
    rounded: IntArray = (microseconds + 10**digits // 2) // 10**digits * 10**digits
    return rounded


def calendar_named(name: object) -> str | None:
    """Return the calendar that an attribute names, the standard one for None; None for one that is not known."""
    return _NAMES.get(str("standard" if name is None else name).lower())


def time_units(units: str, calendar: object = None) -> TimeUnits | None:
    """Return units such as ``days since 1990-01-01``, in the calendar that is named.

    None if they are not understood.

    Raises
    ------
    ValueError
        If there is no such date.
    """
    known, match = calendar_named(calendar), _SINCE.fullmatch(units[:200])
    if known is None or match is None:
        return None
    name, reference = match[1].lower(), _REFERENCE.fullmatch(match[2])
    months = known == "360_day" and name in _MONTHS
    if reference is None or not (months or name in _MICROSECONDS or name in _NANOSECONDS):
        return None
    if reference["date"]:
        date = tuple(map(int, (reference["date"][:4], reference["date"][4:6], reference["date"][6:])))
    else:
        date = tuple(int(reference[part] or 1) for part in ("year", "month", "day"))
    hour, minute, second = int(reference["hour"] or 0), int(reference["minute"] or 0), float(reference["second"] or 0)
    if hour > 24 or minute > 59 or second >= 61:
        raise ValueError(units)
    ahead = 60 * int(reference["ahead"] or 0) + int(reference["minutes"] or 0)
    minutes = 60 * hour + minute - (-ahead if reference["sign"] == "-" else ahead)
    year, month, day = date
    return TimeUnits(
        known,
        30 * _DAY if months else _MICROSECONDS.get(name, 0),
        day_number(known, year, month, day),
        minutes * 60_000_000 + round(second * 1e6),
    )


@lru_cache(maxsize=4096)
def day_number(calendar: str, year: int, month: int, day: int) -> int:
    """Return the number of a day since the first one of its calendar, see `_FIRST`.

    Raises
    ------
    ValueError
        If the calendar has no such day, such as 30 February or, in the standard calendar, the year 0.
    """
    text = f"{year:04d}-{month:02d}-{day:02d}"
    if calendar == "proleptic_gregorian" or (calendar == "standard" and (year, month, day) >= _FIRST_GREGORIAN):
        return int(np.datetime64(text, "D").astype(np.int64))
    cftime = _cftime(calendar)
    if calendar in ("standard", "julian") and year < 1:
        raise ValueError(f"{text}: the calendar has no year 0")
    try:
        date = cftime.datetime(year, month, day, calendar=calendar)
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from error
    return int(cftime.date2num(date, _FIRST[calendar]))


def dates_of(calendar: str, days: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return year, month and day of the year, from 1, of numbers of days, see `day_number`."""
    is_gregorian = calendar == "proleptic_gregorian" or (calendar == "standard" and not (days < GREGORIAN_FROM).any())
    if is_gregorian:
        dates = days.astype("M8[D]")
        firsts = dates.astype("M8[Y]")
        months = dates.astype("M8[M]").astype(np.int64) % 12 + 1
        return firsts.astype(np.int64) + 1970, months, (dates - firsts.astype("M8[D]")).astype(np.int64) + 1
    different, places = np.unique(days, return_inverse=True)
    found = _cftime(calendar).num2date(different, _FIRST[calendar], calendar=calendar)
    parts = np.array([(date.year, date.month, date.dayofyr) for date in found], dtype=np.int64).reshape(-1, 3)[places]
    return parts[..., 0], parts[..., 1], parts[..., 2]


def times_in_calendar(coordinate: Array, attributes: Mapping[str, object]) -> Array | None:
    """Return the times of a coordinate of numbers or text as objects of cftime, as xarray has them.

    None if they are no times, or of the Gregorian calendar, or cftime is not installed.
    """
    found = None if coordinate.dtype.kind == "M" else microseconds_of(coordinate, attributes)
    if found is None or found[0] not in _FIRST:
        return None
    calendar, (days, rest) = found[0], np.divmod(found[1], _DAY)
    try:
        dates = _cftime(calendar).num2date(days, _FIRST[calendar], calendar=calendar)
    except NotAvailableError:
        return None
    times: Array = np.asarray(dates, dtype=object) + rest.astype("m8[us]").astype(object)
    return times


def _cftime(calendar: str) -> Any:
    """Return the library of other calendars than the Gregorian one; `NotAvailableError` if it is not installed."""
    try:
        import cftime
    except ImportError as error:
        raise NotAvailableError(
            f"times of the calendar {calendar} need cftime, which is not installed: {install_command('xarray')}"
        ) from error
    return cftime


def microseconds_of(coordinate: Array, attributes: Mapping[str, object]) -> tuple[str, IntArray] | None:
    """Return the calendar of the times of a coordinate, and their microseconds since its day 0; None if they are no times.

    Times are ``datetime64``, numbers with the attribute ``units``, or dates as text with the attribute ``calendar``.
    """
    if coordinate.dtype.kind == "M":
        return "proleptic_gregorian", coordinate.astype("M8[us]").astype(np.int64)
    units, calendar = attributes.get("units"), attributes.get("calendar")
    try:
        if coordinate.dtype.kind in "iuf" and isinstance(units, str):
            known = time_units(units, calendar)
            return None if known is None else (known.calendar, known.microseconds_of(coordinate))
        name = calendar_named(calendar)
        if coordinate.dtype.kind == "U" and calendar is not None and name is not None:
            texts, places = np.unique(coordinate, return_inverse=True)  # of several sample dimensions, each time often
            return name, np.array([_of_text(name, str(text)) for text in texts.tolist()], dtype=np.int64)[places]
    except (ValueError, OverflowError):
        return None
    return None


def _of_text(calendar: str, text: str) -> int:
    """Return the microseconds of a date in ISO 8601."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    seconds = day_number(calendar, year, month, day) * 86_400 + hour * 3600 + minute * 60 + second
    return seconds * 1_000_000 + int((match[7] or "").ljust(6, "0"))


def seconds_of(coordinate: Array, attributes: Mapping[str, object]) -> FloatArray | None:
    """Return the times of a coordinate as seconds since day 0 of their calendar; None if they are no times."""
    times = microseconds_of(coordinate, attributes)
    return None if times is None else times[1] / 1e6


def parts_of(coordinate: Array, attributes: Mapping[str, object]) -> dict[str, IntArray] | None:
    """Return ``month``, ``year``, ``dayofyear`` and ``hour`` of the times of a coordinate; None if they are no times.

    Those of times with the attribute ``time_zone`` are of its clocks.
    """
    times = microseconds_of(coordinate, attributes)
    if times is None:
        return None
    calendar, microseconds = times
    if "time_zone" in attributes:
        offsets = _offsets(microseconds, str(attributes["time_zone"]))
        if offsets is None:
            return None
        microseconds = microseconds + offsets
    days, rest = np.divmod(microseconds, _DAY)
    years, months, of_year = dates_of(calendar, days)
    return {"month": months, "year": years, "dayofyear": of_year, "hour": rest // 3_600_000_000}


def _offsets(microseconds: IntArray, name: str) -> IntArray | None:
    """Return how many microseconds clocks of a time zone are ahead of UTC at times in it; None if the zone is not known."""
    fixed = _FIXED_ZONE.fullmatch(name)
    if fixed is not None:
        minutes = (int(fixed[2] or 0) * 60 + int(fixed[3] or 0)) * 60_000_000
        return np.full(microseconds.shape, -minutes if fixed[1] == "-" else minutes)
    try:
        zone = ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return None
    quarters, places = np.unique(
        microseconds // _QUARTER, return_inverse=True
    )  # clocks are changed at quarters of hours
    starts = (datetime.fromtimestamp(0, UTC) + timedelta(minutes=15 * int(each)) for each in quarters)
    ahead = [each.astimezone(zone).utcoffset() or timedelta() for each in starts]
    offsets: IntArray = np.array([each // timedelta(microseconds=1) for each in ahead], dtype=np.int64)[places]
    return offsets


def in_units_of(coordinate: Array, attributes: Mapping[str, object], target: Mapping[str, object]) -> Array | None:
    """Return a coordinate as numbers in the units of `target`, as it is where these are the same; None if neither can be.

    Only times of one calendar can be given other units.
    """
    if attributes.get("units") == target.get("units") and attributes.get("calendar") == target.get("calendar"):
        return coordinate
    if coordinate.dtype.kind not in "iuf":
        return coordinate if coordinate.dtype.kind == "M" else None
    times, units = microseconds_of(coordinate, attributes), target.get("units")
    known = time_units(units, target.get("calendar")) if isinstance(units, str) else None
    return None if times is None or known is None or known.calendar != times[0] else known.values_of(times[1])
