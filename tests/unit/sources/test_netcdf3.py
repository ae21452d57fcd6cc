"""Variables in the classic formats of NetCDF: rows along any dimension, packed values, labels, several files, and damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import parser_failing_once
from scipy.io import netcdf_file

import streampca as sp
from streampca.errors import ChangedInputError, DataError, ParameterError

LATITUDES = np.array([-60.0, 0.0, 60.0])


def write(path: Path, values: Any, version: int = 2, first: int = 0, **attributes: Any) -> Path:
    """Write ``t2m(time, lat, lon)`` with time without a limit, and coordinates of time and latitude."""
    with netcdf_file(path, "w", version=version) as file:
        for name, size in (("time", None), ("lat", 3), ("lon", 4)):
            file.createDimension(name, size)
        times = file.createVariable("time", "f8", ("time",))
        times[:] = np.arange(first, first + len(values))
        times.units = "days since 2000-01-01"
        file.createVariable("lat", "f4", ("lat",))[:] = LATITUDES
        weight = file.createVariable("weight", "f8", ("time",))
        weight[:] = 1.0 + np.arange(len(values)) % 3
        variable = file.createVariable("t2m", values.dtype, ("time", "lat", "lon"))
        variable[:] = values
        for name, value in attributes.items():
            setattr(variable, name, value)
    return path


@pytest.fixture
def cube() -> Any:
    return np.random.default_rng(0).normal(size=(50, 3, 4)).astype("f4")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("samples", [("time",), ("lat", "lon"), ("lon", "time")])
def test_rows_are_along_any_dimensions(tmp_path: Path, cube: Any, version: int, samples: tuple[str, ...]) -> None:
    path = write(tmp_path / "x.nc", cube, version)
    axes = [("time", "lat", "lon").index(name) for name in samples]
    rest = [axis for axis in range(3) if axis not in axes]
    table = sp.open(path, samples=samples)
    expected = cube.transpose(*axes, *rest).reshape(table.shape)
    assert table.dtype == np.float32
    for n_rows in (1, 3, 11):
        np.testing.assert_array_equal(table.to_dask(n_rows).compute(), expected)
    np.testing.assert_array_equal(table.by_features().to_dask(2).compute(), expected.T)
    np.testing.assert_allclose(
        sp.PCA(3).fit(table).explained_variance_, sp.PCA(3).fit(expected.astype("f8")).explained_variance_, rtol=1e-5
    )


def test_labels_weights_and_masks_are_those_of_the_file(tmp_path: Path, cube: Any) -> None:
    path = write(tmp_path / "x.nc", cube)
    table = sp.open(path, samples="time", mask=np.arange(12).reshape(3, 4) % 5 > 0)
    assert table.labels.sample_name(31) == "time=2000-02-01"
    assert table.labels.feature_name(0) == "t2m(lat=-60, lon=1)"
    np.testing.assert_array_equal(table.sample_columns.values("weight"), 1.0 + np.arange(50) % 3)
    weighted = sp.PCA(2, feature_weight="cos(lat)").fit(sp.open(path, samples="time"))
    plain = sp.PCA(2, feature_weight=np.repeat([0.5, 1, 0.5], 4)).fit(cube.reshape(50, 12))
    np.testing.assert_allclose(weighted.explained_variance_, plain.explained_variance_, rtol=1e-6)


@pytest.mark.parametrize(("scale", "dtype"), [("f4", "f4"), ("f8", "f8")])
def test_packed_values_are_decoded(tmp_path: Path, scale: str, dtype: str) -> None:
    stored = np.random.default_rng(1).integers(-999, 999, (50, 3, 4)).astype("i2")
    stored[3, 1, 2] = -32768
    factor = np.array(0.01, scale)
    path = write(tmp_path / "x.nc", stored, scale_factor=factor, missing_value=np.int16(-32768))
    table = sp.open(path, samples="time")
    expected = np.where(stored == -32768, np.nan, stored.astype(dtype) * factor.astype(dtype)).reshape(50, 12)
    assert table.dtype == dtype
    np.testing.assert_array_equal(table.to_dask().compute(), expected)
    np.testing.assert_array_equal(
        sp.open(path, samples="time", decode="raw").to_dask().compute(), stored.reshape(50, 12)
    )


def test_several_files_follow_each_other(tmp_path: Path, cube: Any) -> None:
    for index, (first, stop) in enumerate(((0, 20), (20, 50))):
        write(tmp_path / f"{index}.nc", cube[first:stop], first=first)
    table = sp.open(tmp_path / "*.nc", samples="time")
    np.testing.assert_array_equal(table.to_dask(7).compute(), cube.reshape(50, 12))
    days = np.datetime64("2000-01-01", "us") + np.arange(50) * np.timedelta64(1, "D")
    np.testing.assert_array_equal(table.labels.sample_values("time"), days)
    assert table.sample_columns.values("weight").tolist() == [1.0 + i % 3 for i in (*range(20), *range(30))]
    assert [fragment.n_rows for fragment in table.fragments] == [20, 30]


def test_files_as_xarray_writes_them(tmp_path: Path, cube: Any) -> None:
    xr = pytest.importorskip("xarray")
    field = xr.DataArray(cube, dims=("time", "y", "x"), coords={"y": [1.0, 2.0, 4.0]}, name="field")
    field.to_netcdf(tmp_path / "x.nc", engine="scipy", format="NETCDF3_64BIT")
    table = sp.open(tmp_path / "x.nc", samples="time")
    np.testing.assert_array_equal(table.to_dask().compute(), cube.reshape(50, 12))
    np.testing.assert_array_equal(table.labels.along("y"), np.repeat([1.0, 2.0, 4.0], 4))


@pytest.mark.parametrize("name", [None, "t2m"])
@pytest.mark.parametrize("keep", [3, 8, 40, 150, 400, 1500])
def test_files_that_are_cut_short_are_refused(tmp_path: Path, cube: Any, keep: int, name: str | None) -> None:
    path = write(tmp_path / "x.nc", cube)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"x\.nc") as caught:
        sp.PCA(1).fit(sp.open(path, samples="time", array=name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(40))
def test_headers_of_nonsense_are_errors_of_the_file(tmp_path: Path, cube: Any, seed: int) -> None:
    path = write(tmp_path / "x.nc", cube)
    random, content = np.random.default_rng(seed), bytearray(path.read_bytes())
    for place in random.integers(4, 420, 3):
        content[place] = int(random.integers(256))
    path.write_bytes(content)
    try:
        fitted = sp.PCA(1).fit(sp.open(path, samples="time", array="t2m"))
    except (DataError, ParameterError) as error:
        message = str(error)
    else:
        message = str(fitted.explained_variance_.shape)
    assert "\n" not in message


def test_changed_files_and_other_formats_are_named(tmp_path: Path, cube: Any) -> None:
    table = sp.open(write(tmp_path / "x.nc", cube), samples="time")
    write(tmp_path / "x.nc", cube[:30])
    with pytest.raises(ChangedInputError, match=r"x\.nc was changed"):
        sp.PCA(1).fit(table)
    (tmp_path / "x.nc").write_bytes(b"CDF\x05" + bytes(60))
    with pytest.raises(DataError, match=r"CDF-5.*nccopy"):
        sp.open(tmp_path / "x.nc", array="t2m")


def test_files_whose_dimensions_are_in_another_order_are_read_by_name(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(20, 3, 3))
    for name, dims in (("1", ("time", "lat", "lon")), ("2", ("lon", "time", "lat"))):
        with netcdf_file(tmp_path / f"{name}.nc", "w") as file:
            for dim, size in (("time", 20), ("lat", 3), ("lon", 3)):
                file.createDimension(dim, size)
            part = values.transpose([("time", "lat", "lon").index(dim) for dim in dims])
            file.createVariable("t2m", "f8", dims)[:] = part + (name == "2")
    table = sp.open(tmp_path / "*.nc", samples="time")
    rows = values.reshape(20, 9)
    np.testing.assert_array_equal(table.to_dask(7).compute(), np.vstack([rows, rows + 1]))
    np.testing.assert_array_equal(table.by_features().to_dask(2).compute(), np.vstack([rows, rows + 1]).T)
    with netcdf_file(tmp_path / "3.nc", "w") as file:
        for dim in ("time", "y", "lon"):
            file.createDimension(dim, 3)
        file.createVariable("t2m", "f8", ("time", "y", "lon"))[:] = np.zeros((3, 3, 3))
    with pytest.raises(DataError, match=r"3\.nc: t2m has other dimensions \(time, y, lon\)"):
        sp.open(tmp_path / "*.nc", samples="time")


def test_values_beside_the_data_are_packed_alike_in_all_files(tmp_path: Path, cube: Any) -> None:
    for index, scale in ((1, None), (2, 0.5)):
        write(tmp_path / f"{index}.nc", cube)
        with netcdf_file(tmp_path / f"{index}.nc", "a") as file:
            weight = file.createVariable("importance", "i2", ("time",))
            weight[:] = np.ones(50, dtype="i2")
            if scale is not None:
                weight.scale_factor = scale
    config = {
        "source": {"path": str(tmp_path / "*.nc"), "samples": ["time"], "array": "t2m"},
        "model": {"n_components": 2},
        "preprocess": {"sample_weight": "importance"},
        "output": {"directory": str(tmp_path / "out")},
    }
    with pytest.raises(DataError, match=r"importance.*packed with other attributes in .*2\.nc"):
        sp.run(config)


def test_an_error_of_the_interpreter_is_no_damage(tmp_path: Path, cube: Any) -> None:
    path = write(tmp_path / "x.nc", cube)
    with parser_failing_once():
        assert sp.open(path, samples="time").shape == (50, 12)
