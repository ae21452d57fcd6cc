"""Times of the calendars of the CF conventions, against calendars that are written day by day."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from streampca.calendars import parts_of, time_units

LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(calendar: str, year: int) -> bool:
    if calendar in ("noleap", "365_day", "all_leap", "366_day"):
        return calendar in ("all_leap", "366_day")
    julian = calendar == "julian" or (calendar in ("standard", "gregorian") and year <= 1582)
    return year % 4 == 0 and (julian or year % 100 != 0 or year % 400 == 0)


def days_of(calendar: str, first: int, n_years: int) -> Iterator[tuple[int, int, int]]:
    """Yield year, month and day of all days from 1 January of a year on."""
    for year in range(first, first + n_years):
        for month in range(1, 13):
            length = 30 if calendar == "360_day" else LENGTHS[month - 1] + (month == 2 and is_leap(calendar, year))
            for day in range(1, length + 1):
                removed = calendar in ("standard", "gregorian") and (year, month) == (1582, 10) and 4 < day < 15
                if not removed:
                    yield year, month, day


CALENDARS = ("standard", "proleptic_gregorian", "julian", "noleap", "all_leap", "360_day")


@pytest.mark.deep(keep=9)
@pytest.mark.parametrize("calendar", [*CALENDARS, "gregorian", "365_day", "366_day"])
@pytest.mark.parametrize(("first", "n_years"), [(1, 5), (1560, 50), (1890, 20)])
def test_years_months_and_days_are_those_of_a_calendar_written_day_by_day(
    calendar: str, first: int, n_years: int
) -> None:
    dates = list(days_of(calendar, first, n_years))
    hours = np.arange(len(dates)) * 24 + 7
    parts = parts_of(hours, {"units": f"hours since {first:04d}-01-01 00:00:00", "calendar": calendar})
    assert parts is not None
    np.testing.assert_array_equal(parts["year"], [date[0] for date in dates])
    np.testing.assert_array_equal(parts["month"], [date[1] for date in dates])
    of_year = {date: i for i, date in enumerate(dates) if date[1:] == (1, 1)}
    counted = np.array([i - of_year[date[0], 1, 1] + 1 for i, date in enumerate(dates)])
    skipped = np.array([calendar in ("standard", "gregorian") and (1582, 10, 4) < date < (1583,) for date in dates])
    np.testing.assert_array_equal(parts["dayofyear"], counted + 10 * skipped)  # days of 1582 as in cftime
    assert set(parts["hour"].tolist()) == {7}
    texts = np.array([f"{y:04d}-{m:02d}-{d:02d} 07:30:00" for y, m, d in dates])
    of_text = parts_of(texts, {"calendar": calendar})
    assert of_text is not None
    for name, values in parts.items():
        np.testing.assert_array_equal(of_text[name], values)


@pytest.mark.parametrize(
    ("units", "calendar", "expected"),
    [
        ("days since 1970-01-01", None, "1970-01-02"),
        ("hours since 1970-1-1 12:30", None, "1970-01-01T13:30"),
        ("hours since 1970-01-01 12", None, "1970-01-01T13:00"),
        ("hours since 1970-01-01T00:00:00Z", None, "1970-01-01T01:00"),
        ("hours since 1970-01-01 00:00:00 +0530", None, "1969-12-31T19:30"),
        ("hours since 1970-01-01 00:00:00 -6:00", None, "1970-01-01T07:00"),
        ("hours since 1970-01-01 -06", None, "1970-01-01T07:00"),
        ("hours since 1970-01-01 00:00:0.0 0:00", None, "1970-01-01T01:00"),
        ("days since 19700101", None, "1970-01-02"),
        ("days since 1970-01", None, "1970-01-02"),
        ("days since 1970", None, "1970-01-02"),
        ("months since 0000-01-01", "360", "1970-01-31"),
        ("msec since 1970-01-01", None, "1970-01-01T00:00:00.001"),
        ("days since 1582-10-04", "standard", "1582-10-15"),
        ("days since 0001-01-01", "standard", "0000-12-31"),
        ("days since 0001-01-01", "proleptic_gregorian", "0001-01-02"),
    ],
)
def test_units_name_a_date_in_many_ways(units: str, calendar: str | None, expected: str) -> None:
    known = time_units(units, calendar)
    assert known is not None
    assert known.microseconds_of(np.array([1]))[0] == np.datetime64(expected, "us").astype(np.int64)


@pytest.mark.parametrize(
    "units", ["days since", "days since the flood", "weeks since 1970-01-01", "m", "days since 1970-01-01 noon"]
)
def test_other_units_are_not_understood(units: str) -> None:
    assert time_units(units) is None


@pytest.mark.parametrize(
    ("calendar", "date"),
    [
        ("360_day", "1990-01-31"), ("noleap", "2000-02-29"), ("proleptic_gregorian", "1900-02-29"),
        ("standard", "1582-10-10"), ("standard", "0000-01-01"), ("julian", "1900-02-30"), ("standard", "1990-13-01"),
    ],
)  # fmt: skip
def test_dates_that_a_calendar_does_not_have_are_errors(calendar: str, date: str) -> None:
    with pytest.raises(ValueError, match=date):
        time_units(f"days since {date}", calendar)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_parts_of_days_as_fractions_are_in_their_own_hour(dtype: Any) -> None:
    days = 60_000 if dtype is np.float64 else 600
    values = (days + np.arange(48) / 24).astype(dtype)
    for calendar in CALENDARS:
        parts = parts_of(values, {"units": "days since 1850-01-01", "calendar": calendar})
        assert parts is not None
        if dtype is np.float64:
            np.testing.assert_array_equal(parts["hour"], np.arange(48) % 24)
        np.testing.assert_array_equal(parts["hour"][::6], np.arange(0, 48, 6) % 24)


def test_the_last_nanosecond_of_a_month_is_in_the_month() -> None:
    ends = np.array(["1990-01-31T23:59:59.999999999", "1990-12-31T23:59:59.999999"], dtype="M8[ns]")
    parts = parts_of(ends, {})
    assert parts is not None
    assert (parts["month"].tolist(), parts["dayofyear"].tolist()) == ([1, 12], [31, 365])
