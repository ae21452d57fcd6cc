"""Samples whose times are those of other calendars than the one of `datetime64`: seasonal cycles, trends and labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import DataError, ParameterError

N = 96
MONTHS = np.arange(N) % 12 + 1
YEARS = 1990 + np.arange(N) // 12


def starts_of_months(calendar: str) -> NDArray[np.int64]:
    """Return the first days of months from 1990 on, as days since 1990-01-01."""
    if calendar == "360_day":
        return 30 * np.arange(N)
    lengths = np.tile([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], N // 12)
    leap = {"noleap": YEARS < 0, "all_leap": YEARS > 0}.get(calendar, YEARS % 4 == 0)
    lengths = lengths + ((MONTHS == 2) & leap)
    return np.concatenate([[0], np.cumsum(lengths)[:-1]])


def rows_of_months() -> NDArray[np.float64]:
    random = np.random.default_rng(0)
    cycle, trend = random.normal(size=(12, 6)), np.arange(N)[:, None] * random.normal(size=6)
    return random.normal(size=(N, 6)) + 5 * cycle[MONTHS - 1] + 0.1 * trend


def write(path: Path, values: Any, attributes: dict[str, Any], rows: Any = None, zarr_format: Any = 3) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for name, data, dims in (
        ("t2m", rows_of_months() if rows is None else rows, ("time", "place")),
        ("time", np.asarray(values), ("time",)),
    ):
        named = {"dimension_names": dims} if zarr_format == 3 else {}
        array = group.create_array(name, data=data, **named, config={"write_empty_chunks": True})
        array.attrs.update({"_ARRAY_DIMENSIONS": list(dims)} if zarr_format == 2 else {})
    group["time"].attrs.update(attributes)
    return path


def eigenvalues(rows: Any, columns: Any) -> Any:
    """Return the variances of the components of the residuals of rows after least squares on columns."""
    columns = columns / np.linalg.norm(columns, axis=0)
    residuals = rows - columns @ np.linalg.lstsq(columns, rows, rcond=None)[0]
    return np.linalg.svd(residuals, compute_uv=False) ** 2 / (len(rows) - 1)


def one_hot(labels: Any) -> Any:
    return (np.asarray(labels)[:, None] == np.unique(labels)).astype(float)


@pytest.mark.parametrize("units", ["days since 1990-01-01", "hours since 1850-01-01 12:00:00"])
@pytest.mark.parametrize("calendar", ["noleap", "365_day", "all_leap", "360_day", "julian"])
def test_seasonal_cycles_and_trends_of_other_calendars_are_removed(tmp_path: Path, calendar: str, units: str) -> None:
    days = starts_of_months({"365_day": "noleap"}.get(calendar, calendar))
    years = 140
    before = years * {"360_day": 360, "all_leap": 366}.get(calendar, 365) + (35 if calendar == "julian" else 0)
    values = days if units.startswith("days") else (days + before) * 24.0 - 12
    path = write(tmp_path / "x.zarr", values, {"units": units, "calendar": calendar})
    seasons = np.array(["DJF", "MAM", "JJA", "SON"])[MONTHS % 12 // 3]
    for part, labels in {"month": MONTHS, "season": seasons, "year": YEARS}.items():
        pca = sp.PCA(3, remove={"groups": f"time.{part}"}).fit(sp.open(path, samples="time", array="t2m"))
        np.testing.assert_allclose(
            pca.explained_variance_, eigenvalues(rows_of_months(), one_hot(labels))[:3], rtol=1e-10
        )
    pca = sp.PCA(3, remove={"groups": "time.month", "trend": 1}).fit(sp.open(path, samples="time", array="t2m"))
    columns = np.column_stack([one_hot(MONTHS), days])
    np.testing.assert_allclose(pca.explained_variance_, eigenvalues(rows_of_months(), columns)[:3], rtol=1e-10)


def test_trend_goes_on_in_a_store_with_times_since_another_date(tmp_path: Path) -> None:
    days = starts_of_months("noleap")
    first = write(tmp_path / "1.zarr", days, {"units": "days since 1990-01-01", "calendar": "noleap"})
    other = write(tmp_path / "2.zarr", 24 * (days + 365), {"units": "hours since 1989-01-01", "calendar": "noleap"})
    pca = sp.PCA(2, remove={"trend": 1}).fit(sp.open(first, samples="time", array="t2m"))
    scores = [np.asarray(pca.transform(sp.open(path, samples="time", array="t2m"))) for path in (first, other)]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-9)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("units", "calendar", "first"),
    [
        ("hours since 1-1-1 00:00:0.0", None, "1948-01-01"),
        ("hours since 0001-01-01", "gregorian", "1948-01-01"),
        ("hours since 0001-01-01", "proleptic_gregorian", "1948-01-03"),
    ],
)
def test_times_since_a_date_before_1582_are_of_the_mixed_calendar(
    tmp_path: Path, zarr_format: Any, units: str, calendar: str | None, first: str
) -> None:
    """17,067,072 is the first time of the reanalysis of NCEP and NCAR, 1 January 1948."""
    attributes = {"units": units} | ({} if calendar is None else {"calendar": calendar})
    path = write(tmp_path / "x.zarr", 17_067_072.0 + 24 * np.arange(N), attributes, zarr_format=zarr_format)
    times = sp.open(path, samples="time", array="t2m").labels.sample_values("time")
    np.testing.assert_array_equal(times, np.datetime64(first, "us") + np.arange(N) * np.timedelta64(1, "D"))


@pytest.mark.parametrize(
    ("units", "calendar", "kind"),
    [
        ("days since 1500-01-01", "standard", "i"), ("days since 1500-01-01", "proleptic_gregorian", "M"),
        ("days since 0000-01-01", "standard", "i"), ("months since 1960-01-01", None, "i"), ("years since 1960-01-01", "standard", "i"),
        ("nanoseconds since 1970-01-01", None, "M"), ("days since 1990-01-01 00:00:00 +0000", None, "M"),
    ],
)  # fmt: skip
def test_times_that_datetime64_does_not_have_stay_numbers(
    tmp_path: Path, units: str, calendar: str | None, kind: str
) -> None:
    attributes = {"units": units} | ({} if calendar is None else {"calendar": calendar})
    path = write(tmp_path / "x.zarr", np.arange(N), attributes)
    assert sp.open(path, samples="time", array="t2m").labels.sample_values("time").dtype.kind == kind


def test_nanoseconds_are_kept(tmp_path: Path) -> None:
    values = np.arange(N) * 1_000_000_007
    path = write(tmp_path / "x.zarr", values, {"units": "nanoseconds since 1970-01-02"})
    times = sp.open(path, samples="time", array="t2m").labels.sample_values("time")
    np.testing.assert_array_equal(times, np.datetime64("1970-01-02", "ns") + values.astype("m8[ns]"))


def test_numbers_that_are_no_times_have_no_months(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr", np.arange(N), {"units": "months since 1960-01-01"})
    with pytest.raises(ParameterError, match="days since 1990-01-01"):
        sp.PCA(2, remove={"groups": "time.month"}).fit(sp.open(path, samples="time", array="t2m"))


class Date:
    """A date as of cftime, which xarray has for other calendars."""

    calendar = "360_day"

    def __init__(self, number: int):
        self.number = number

    def __str__(self) -> str:
        return f"{1990 + self.number // 12:04d}-{self.number % 12 + 1:02d}-30 12:00:00"


def test_dates_of_other_calendars_in_xarray_have_months_and_places() -> None:
    xr = pytest.importorskip("xarray")
    dates = np.array([Date(i) for i in range(N)], dtype=object)
    array = xr.DataArray(rows_of_months(), dims=("time", "place"), coords={"time": dates})
    pca = sp.PCA(3, remove={"groups": "time.month", "trend": 1}).fit(sp.open(array, samples="time"))
    columns = np.column_stack([one_hot(MONTHS), np.arange(N)])
    np.testing.assert_allclose(pca.explained_variance_, eigenvalues(rows_of_months(), columns)[:3], rtol=1e-10)
    whole = sp.PCA(6, remove={"groups": "time.month", "trend": 1}).fit(sp.open(array, samples="time"))
    np.testing.assert_allclose(whole.inverse_transform(whole.transform(array)), array, atol=1e-9)


def test_rows_from_scores_of_a_store_have_their_months_and_trend(tmp_path: Path) -> None:
    pytest.importorskip("xarray")
    days = starts_of_months("360_day")
    path = write(tmp_path / "x.zarr", days, {"units": "days since 1990-01-01", "calendar": "360_day"})
    table = sp.open(path, samples="time", array="t2m")
    pca = sp.PCA(6, remove={"groups": "time.month", "trend": 1}).fit(table)
    scores = pca.transform(table)[24:36]
    np.testing.assert_allclose(pca.inverse_transform(scores), rows_of_months()[24:36], atol=1e-9)


@pytest.mark.parametrize("end", ["nc", "nc4"])
def test_files_of_netcdf_4_are_files_of_hdf5(tmp_path: Path, end: str) -> None:
    h5py = pytest.importorskip("h5py")
    days, rows = starts_of_months("360_day"), rows_of_months()
    for index, part in enumerate((slice(0, 40), slice(40, N))):
        with h5py.File(tmp_path / f"{index}.{end}", "w") as file:
            file["t2m"], file["time"] = rows[part], days[part] - days[part][0]
            file["time"].make_scale("time")
            file["t2m"].dims[0].attach_scale(file["time"])
            since = f"days since {1990 + days[part][0] // 360}-{days[part][0] // 30 % 12 + 1:02d}-01"
            file["time"].attrs.update({"units": since, "calendar": "360_day"})
    one = sp.open(tmp_path / f"0.{end}")
    assert one.shape == (40, 6)
    for paths in (tmp_path, str(tmp_path / f"*.{end}"), [tmp_path / f"0.{end}", tmp_path / f"1.{end}"]):
        pca = sp.PCA(3, remove={"groups": "time.month"}).fit(sp.open(paths, samples="time", array="t2m"))
        np.testing.assert_allclose(pca.explained_variance_, eigenvalues(rows, one_hot(MONTHS))[:3], rtol=1e-10)


def test_files_with_times_since_different_dates_have_one_coordinate(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    days, rows = starts_of_months("noleap"), rows_of_months()
    half = N // 2
    parts = [
        (slice(0, half), days, "days since 1990-01-01", "noleap"),
        (slice(half, N), 24 * (days + 365), "hours since 1989-01-01", "365_day"),
    ]
    for index, (part, values, units, calendar) in enumerate(parts):
        with h5py.File(tmp_path / f"{index}.h5", "w") as file:
            file["t2m"], file["time"] = rows[part], values[part]
            file["time"].make_scale("time")
            file["t2m"].dims[0].attach_scale(file["time"])
            file["time"].attrs.update({"units": units, "calendar": calendar})
    table = sp.open(tmp_path / "*.h5", array="t2m")
    np.testing.assert_array_equal(table.labels.sample_values("time"), days)
    pca = sp.PCA(3, remove={"groups": "time.month"}).fit(table)
    np.testing.assert_allclose(pca.explained_variance_, eigenvalues(rows, one_hot(MONTHS))[:3], rtol=1e-10)


def test_units_that_are_not_understood_are_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zarr", np.arange(N), {"units": "days since 1990-02-30"})
    with pytest.raises(DataError, match="no such date"):
        sp.open(path, samples="time", array="t2m")


@pytest.mark.parametrize(
    ("units", "calendar"),
    [
        *(("months since 1990-01-01", calendar) for calendar in (None, "standard", "noleap", "julian")),
        ("years since 1990-01-01", "360_day"),
        ("weeks since 1990-01-01", "standard"),
        ("days since 1990-01-01", "utc"),
    ],
)
def test_times_that_are_not_understood_stay_numbers_with_a_note(
    tmp_path: Path, units: str, calendar: str | None
) -> None:
    attributes = {"units": units} | ({} if calendar is None else {"calendar": calendar})
    path = write(tmp_path / "x.zarr", np.arange(N), attributes)
    table, rows = sp.open(path, samples="time", array="t2m"), rows_of_months()
    np.testing.assert_array_equal(table.labels.sample_values("time"), np.arange(N))
    (note,) = sp.PCA(2).plan(table).notes
    assert f"time has the units {units} and the calendar {calendar or 'standard'}: read as numbers" in note
    eigen = np.linalg.eigvalsh(np.cov(rows.reshape(N, -1).T))[::-1]
    np.testing.assert_allclose(sp.PCA(2).fit(table).explained_variance_, eigen[:2], rtol=1e-10)
    with pytest.raises(ParameterError, match="no times"):
        sp.PCA(2, remove={"groups": "time.month"}).fit(table)


@pytest.mark.parametrize("calendar", ["360", "360_day"])
@pytest.mark.parametrize("units", ["months since 1990-01-01", "days since 1990-01-01"])
def test_months_of_thirty_days_are_known(tmp_path: Path, units: str, calendar: str) -> None:
    step = 1 if units.startswith("months") else 30
    path = write(tmp_path / "x.zarr", step * np.arange(N), {"units": units, "calendar": calendar})
    pca = sp.PCA(2, remove={"groups": "time.month"}).fit(sp.open(path, samples="time", array="t2m"))
    np.testing.assert_allclose(
        pca.explained_variance_, eigenvalues(rows_of_months(), one_hot(np.arange(N) % 12))[:2], rtol=1e-10
    )


@pytest.mark.parametrize("calendar", ["noleap", "all_leap", "360_day", "julian"])
def test_times_of_other_calendars_are_shown_as_dates_and_come_back_as_those_of_xarray(
    tmp_path: Path, calendar: str
) -> None:
    xr, days = pytest.importorskip("xarray"), starts_of_months(calendar)
    path = write(tmp_path / "x.zarr", days + 0.25, {"units": "days since 1990-01-01", "calendar": calendar})
    table = sp.open(path, array="t2m", samples="time")
    assert "time (96) from 1990-01-01T06:00:00 to 1997-12-01T06:00:00" in str(table)
    decoded = xr.open_zarr(path, consolidated=False)["t2m"]
    pca = sp.PCA(2).fit(table)
    for scores in (pca.transform(table), pca.transform(sp.open(decoded, samples="time"))):
        assert list(scores["time"].values) == list(decoded["time"].values)
        assert set(scores["time"].attrs) == set()
    scores.to_dataset().to_zarr(tmp_path / "scores.zarr", consolidated=False)
    assert xr.open_zarr(tmp_path / "scores.zarr", consolidated=False)["time"].equals(decoded["time"])
