"""Objects of xarray as input, scores and models: compared with numpy on the same numbers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import streampca as sp
from streampca.errors import DataError, ParameterError, RepeatedReadsError

TIME = np.arange("2001-01-01", "2001-02-10", dtype="datetime64[D]").astype("datetime64[ns]")
LAT, LON = np.array([-30.0, 0.0, 45.0, 60.0]), np.arange(0.0, 360.0, 60.0)
N, LAND = len(TIME), np.zeros((4, 6), dtype=bool)
LAND[2, 1:3] = True


def make_field(name: str = "sst", *, land: bool = False, seed: int = 0) -> xr.DataArray:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((N, 3)) @ rng.standard_normal((3, 24)) + 0.1 * rng.standard_normal((N, 24)) + 280
    values = values.reshape(N, 4, 6)
    if land:
        values[:, LAND] = np.nan
    coords = {
        "time": TIME,
        "lat": ("lat", LAT, {"units": "degrees_north"}),
        "lon": LON,
        "season": ("time", np.arange(N) % 4),
    }
    return xr.DataArray(values, dims=("time", "lat", "lon"), coords=coords, name=name, attrs={"units": "K"})


FIELD = make_field()


def values_of(source: sp.sources.Source) -> Any:
    out = np.empty(source.shape, dtype=source.dtype)
    values, _ = source.read(0, source.shape[0], out)
    return values


def flat(array: xr.DataArray, *dims: str) -> Any:
    order = [*dims, *(dim for dim in array.dims if dim not in dims)]
    moved = array.transpose(*order)
    rows = int(np.prod(moved.shape[: len(dims)]))
    return moved.values.reshape(rows, -1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("xarray") / "field.zarr"
    dataset = xr.Dataset({"sst": make_field(land=True), "level": make_field("level", seed=1)})
    dataset["sst"].encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -999}
    for array in dataset.data_vars.values():
        array.encoding["chunks"] = (7, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of consolidated metadata
        dataset.to_zarr(path, zarr_format=3, consolidated=False)
    return path


def opened(store: Path, chunks: Any) -> xr.Dataset:
    return xr.open_zarr(store, chunks=chunks, consolidated=False)


# -- input --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [["time"], ["lat", "time"], ["lon"], ["time", "lon"]])
@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_arrays_of_any_order_of_dims_have_the_rows_of_numpy(samples: list[str], kind: str) -> None:
    array = FIELD if kind == "numpy" else FIELD.chunk({"time": 7, "lat": 3, "lon": 4})
    source = sp.open(array, samples=samples)
    np.testing.assert_array_equal(values_of(source), flat(FIELD, *samples))
    assert source.labels is not None
    assert [d.name for d in source.labels.samples] == samples
    for dim in ("lat", "lon", "time"):
        np.testing.assert_array_equal(source.labels.dimension(dim).coordinate, FIELD[dim].values)


@pytest.mark.parametrize("chunks", [{"time": 7, "lat": 3, "lon": 4}, {"time": 40, "lat": 1, "lon": 5}, {"time": 1}])
def test_each_chunk_of_a_lazy_array_is_computed_once_in_a_pass(chunks: dict[str, int]) -> None:
    counted: list[int] = []

    def count(block: Any) -> Any:
        counted.append(1)
        return block

    lazy = FIELD.chunk(chunks)
    lazy = lazy.copy(data=lazy.data.map_blocks(count, dtype=lazy.dtype, meta=np.empty((0, 0, 0))))
    n_chunks = int(np.prod(lazy.data.numblocks))
    pca = sp.PCA(2, solver="covariance").fit(sp.open(lazy, samples="time"))
    assert len(counted) == n_chunks
    assert pca.n_passes_ == 1


def unused(*_: Any, **__: Any) -> Any:
    """Be a scheduler of dask that is not to be asked."""
    raise AssertionError("dask computes")


@pytest.mark.parametrize("chunks", [None, {}])
def test_untouched_variables_of_a_store_are_read_by_our_reader(store: Path, chunks: Any) -> None:
    for name, packed in (("sst", True), ("level", False)):
        source = sp.open(opened(store, chunks)[name].rename(lat="y"), samples="time")
        assert packed or str(store) in source.description
        want = flat(opened(store, chunks)[name].load(), "time")
        with dask.config.set(scheduler=unused):
            np.testing.assert_allclose(values_of(source), want, rtol=1e-6 if packed else 0)
        assert source.labels is not None
        assert [d.name for d in source.labels.features] == ["y", "lon"]


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.isel(time=slice(3, 20)),
        lambda a: a.isel(lat=[0, 2]),
        lambda a: a.transpose("lon", "time", "lat"),
        lambda a: a + 1,
        lambda a: a.sel(lat=slice(None, None, -1)),
    ],
)
@pytest.mark.parametrize("chunks", [None, {}])
def test_changed_variables_of_a_store_have_their_own_values(store: Path, change: Any, chunks: Any) -> None:
    source = sp.open(change(opened(store, chunks).level), samples="time")
    assert str(store) not in source.description
    np.testing.assert_array_equal(values_of(source), flat(change(opened(store, None).level.load()), "time"))


def test_values_assigned_to_an_opened_variable_are_read(store: Path) -> None:
    array = opened(store, None).level
    array[0, 0, 0] = 7.0
    assert values_of(sp.open(array, samples="time"))[0, 0] == 7.0


def test_variable_opened_without_decoding_is_read_as_it_is_stored(store: Path) -> None:
    raw = xr.open_zarr(store, chunks=None, consolidated=False, mask_and_scale=False).sst
    source = sp.open(raw, samples="time")
    assert source.dtype == np.int16
    np.testing.assert_array_equal(values_of(source), flat(raw.load(), "time"))


@pytest.mark.parametrize("chunks", [None, {}])
def test_zeros_that_xarray_takes_for_missing_are_missing(tmp_path: Path, chunks: Any) -> None:
    values = np.random.default_rng(0).integers(0, 4, (12, 3, 4))
    attributes = {"_ARRAY_DIMENSIONS": ["time", "lat", "lon"]}
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    group.create_array("rain", data=values.astype("f4"), chunks=(5, 3, 4), fill_value=0, attributes=attributes)
    array = opened(tmp_path / "x.zarr", chunks).rain
    want = flat(array, "time")
    assert np.isnan(want).any()
    np.testing.assert_array_equal(values_of(sp.open(array, samples="time")), want)


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("change", [{"scale_factor": 0.02}, {"add_offset": 0.0}, {"_FillValue": np.int16(5)}])
def test_values_are_decoded_by_the_attributes_with_which_xarray_decodes_them(
    store: Path, change: dict[str, Any], chunks: Any
) -> None:
    raw = xr.open_zarr(store, chunks=chunks, consolidated=False, mask_and_scale=False)
    raw.sst.attrs.update(change)
    array = xr.decode_cf(raw).sst
    source = sp.open(array, samples="time")
    assert source.dtype == array.dtype == array.load().dtype
    np.testing.assert_array_equal(values_of(source), flat(array, "time"))


@pytest.mark.parametrize("attributes", [{"scale_factor": 1e-3, "add_offset": 1e6}, {"scale_factor": 1.0}, {}])
@pytest.mark.parametrize("dtype", ["i2", "f4"])
@pytest.mark.parametrize("chunks", [None, {}])
def test_dtype_that_xarray_shows_is_that_of_the_rows(
    tmp_path: Path, attributes: dict[str, float], dtype: str, chunks: Any
) -> None:
    stored = np.random.default_rng(0).integers(-99, 99, (30, 4)).astype(dtype)
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("x", data=stored, chunks=(8, 4), dimension_names=("time", "x"), attributes=attributes)
    array = opened(tmp_path / "x.zarr", chunks).x
    source = sp.open(array, samples="time")
    assert source.dtype == array.dtype
    np.testing.assert_array_equal(values_of(source), array.values)
    lazy, loaded = sp.PCA(2).fit(array), sp.PCA(2).fit(array.load())
    np.testing.assert_allclose(lazy.explained_variance_, loaded.explained_variance_, rtol=1e-12)


def test_variables_of_a_dataset_stand_side_by_side() -> None:
    dataset = xr.Dataset(
        {"u": FIELD, "v": make_field("v", seed=1).transpose("lon", "time", "lat"), "w": FIELD.mean("lon")}
    )
    source = sp.open(dataset, samples="time")
    want = [flat(dataset[name], "time") for name in ("u", "v", "w")]
    np.testing.assert_array_equal(values_of(source), np.hstack(want))
    assert sp.open(dataset, variables=["w", "u"], samples="time").shape == (N, 28)
    with pytest.raises(DataError, match=r"no variable 'z'.*u \(time"):
        sp.open(dataset, variables="z", samples="time")


def test_two_dimensional_arrays_are_samples_and_features_by_order() -> None:
    table = FIELD.isel(lon=0, drop=True)
    pca, plain = sp.PCA(2).fit(table), sp.PCA(2).fit(table.values)
    np.testing.assert_array_equal(pca.components_, plain.components_)
    assert sp.PCA(2).plan(table).n_features == 4
    assert sp.PCA(2).partial_fit(table).n_samples_seen_ == N


def test_arrays_of_more_dims_are_not_guessed() -> None:
    with pytest.raises(DataError, match=r"time \(40\), lat \(4\), lon \(6\).*sp.open\(…, samples="):
        sp.PCA(2).fit(FIELD)
    with pytest.raises(ParameterError, match="did you mean 'time'"):
        sp.open(FIELD, samples="tme")


@pytest.mark.parametrize("values", [np.array([["a"] * 4] * 3), TIME[:12].reshape(3, 4), np.full((3, 4), None)])
def test_arrays_that_are_no_numbers_are_named(values: Any) -> None:
    with pytest.raises(DataError, match=r"DataArray kind has dtype .* and dims \(a: 3, b: 4\)"):
        sp.open(xr.DataArray(values, dims=("a", "b"), name="kind"))
    dataset = xr.Dataset({"kind": (("a", "b"), values), "x": (("a", "b"), np.ones((3, 4)))})
    with pytest.raises(DataError, match="kind cannot be read"):
        sp.open(dataset, samples="a")


def test_masks_are_matched_by_the_names_of_their_dims() -> None:
    mask = xr.DataArray(~LAND, dims=("lat", "lon"), coords={"lat": LAT, "lon": LON})
    for given in (mask, mask.T, ~LAND, "observed"):
        source = sp.open(make_field(land=True), samples="time", mask=given)
        np.testing.assert_array_equal(values_of(source), make_field().values[:, ~LAND])
    with pytest.raises(DataError, match="coordinate lat"):
        sp.open(FIELD, samples="time", mask=mask.assign_coords(lat=LAT + 1))
    with pytest.raises(DataError, match=r"mask has the dims \(lat, x\)"):
        sp.open(FIELD, samples="time", mask=mask.rename(lon="x"))


def test_masks_are_repeated_along_dims_that_they_lack() -> None:
    levels = (
        xr.concat([FIELD, 2 * FIELD], "level").assign_coords(level=[850, 500]).transpose("time", "level", "lat", "lon")
    )
    other = xr.DataArray(np.random.default_rng(0).normal(size=(len(FIELD), 5, 6)), dims=("time", "y", "x"))
    data = xr.Dataset(
        {"u": levels, "sst": FIELD, "other": other, "sea": (("lat", "lon"), ~LAND), "row": ("lat", LAT > 0)}
    )
    sea, north = (~LAND).ravel(), np.repeat(LAT > 0, len(data.lon))
    u, sst = flat(levels, "time"), flat(FIELD, "time")
    for mask, used in ((data.sea, sea), ("sea", sea), (data.row, north), ("row", north), (data.sea.T, sea)):
        source = sp.open(data, samples="time", variables=["u", "sst", "other"], mask=mask)
        want = np.hstack([u[:, np.tile(used, 2)], sst[:, used], flat(other, "time")])
        np.testing.assert_array_equal(values_of(source), want)
        assert source.labels is not None
        assert source.labels.n_features == want.shape[1]
    with pytest.raises(DataError, match="3 places along lat"):
        sp.open(FIELD, samples="time", mask=data.row.drop_vars("lat")[:3])


@pytest.mark.parametrize("how", ["covariates", "groups", "weights", "labels", "many", "transform", "batch"])
def test_values_of_rows_are_found_by_their_coordinates_or_refused(how: str) -> None:
    table = sp.open(FIELD, samples="time")
    values = xr.DataArray(np.arange(float(N)) % 5 + 1, dims="time", coords={"time": TIME}, name="index")
    pca = sp.PCA(2, remove={"covariates": values}).fit(table)

    def use(values: Any) -> Any:
        if how == "covariates":
            return sp.PCA(2, remove={"covariates": values}).fit(table).explained_variance_
        if how == "groups":
            return sp.PCA(2, remove={"groups": values}).fit(table).explained_variance_
        if how == "weights":
            return sp.PCA(2).fit(table, sample_weight=values).explained_variance_
        if how == "labels":
            return sp.PCA(2).fit_groups(table, values)["pooled"].explained_variance_
        if how == "batch":
            return sp.PCA(2).partial_fit(table, sample_weight=values).explained_variance_
        if how == "many":
            return sp.fit_many({"a": sp.PCA(2)}, table, sample_weight=values)["a"].explained_variance_
        return np.asarray(pca.transform(table, remove={"covariates": values}))

    want = use(values.values)
    noisy = values.assign_coords(time=TIME.astype("M8[ns]") + np.timedelta64(300, "ns"))
    for given in (
        values,
        noisy,
        values.drop_vars("time"),
        values.rename(time="month"),
        values.to_series(),
        values[::-1],
    ):
        np.testing.assert_array_equal(use(given), want)
    with pytest.raises(ParameterError, match="which are not the coordinate time of the rows"):
        use(values.assign_coords(time=values.time + np.timedelta64(1, "D")))


def test_weights_by_a_coordinate_take_all_coordinates_along_the_features(tmp_path: Path) -> None:
    want = sp.PCA(3, feature_weight="cos(lat)").fit(sp.open(FIELD, samples="time"))
    stacked = FIELD.stack(cell=("lat", "lon"))
    listed = stacked.drop_vars(["cell", "lat", "lon"]).assign_coords(lat=("cell", stacked.lat.values))
    for data in (stacked, listed, listed.chunk({"time": 7})):
        pca = sp.PCA(3, feature_weight="cos(lat)").fit(data)
        np.testing.assert_allclose(pca.explained_variance_, want.explained_variance_, rtol=1e-12)
        pca.save(tmp_path / "model.zarr", overwrite=True)
        loaded = sp.load(tmp_path / "model.zarr")
        loaded.save(tmp_path / "again.zarr", overwrite=True)
        np.testing.assert_array_equal(sp.load(tmp_path / "again.zarr").transform(data), pca.transform(data))
    with pytest.raises(ParameterError, match="expected one of lat, lon"):
        sp.PCA(3, feature_weight="cos(phi)").fit(stacked)


def test_rows_are_made_of_the_components_that_scores_have() -> None:
    pca = sp.PCA(3).fit(sp.open(FIELD, samples="time"))
    for data in (FIELD, FIELD.chunk({"time": 7})):
        scores = pca.transform(sp.open(data, samples="time"))
        for modes in ([1, 2], [3], [3, 1, 2]):
            chosen = np.isin([1, 2, 3], modes)
            want = pca.mean_ + (np.asarray(scores) * chosen) @ pca.components_
            rows = pca.inverse_transform(scores.sel(mode=modes))
            assert rows.dims == ("time", "lat", "lon")
            np.testing.assert_allclose(flat(rows, "time"), want, atol=1e-12)
        np.testing.assert_array_equal(pca.inverse_transform(scores.sel(mode=3)), pca.inverse_transform(scores[:, [2]]))
    with pytest.raises(ParameterError, match=r"scores of the modes \[1, 4\]: expected different modes from 1 to 3"):
        pca.inverse_transform(scores[:, :2].assign_coords(mode=[1, 4]))
    with pytest.raises(ParameterError, match=r"expected the dimension 'mode' of size 3"):
        pca.inverse_transform(scores.drop_vars("mode")[:, :2])


def test_a_table_that_was_opened_without_the_mask_of_the_fit_has_its_features(tmp_path: Path) -> None:
    field = make_field(land=True)
    field.to_zarr(tmp_path / "field.zarr", consolidated=False)
    for data in (field, tmp_path / "field.zarr"):
        masked, whole = (sp.open(data, samples="time", mask=mask) for mask in ("observed", None))
        pca = sp.PCA(3).fit(masked)
        np.testing.assert_array_equal(pca.transform(whole), pca.transform(masked))
        pca.partial_fit(whole)
        assert pca.n_samples_seen_ == 2 * N
        with pytest.raises(ParameterError, match="expecting"):
            pca.transform(sp.open(data, samples="time", mask=np.arange(24) < 12))


def test_features_along_mode_have_no_dataset() -> None:
    pca = sp.PCA(2).fit(sp.open(FIELD.rename(lat="mode"), samples="time"))
    with pytest.raises(ParameterError, match="rename theirs"):
        pca.to_xarray()


# -- scores -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_scores_of_a_data_array_have_its_samples(kind: str) -> None:
    array = FIELD if kind == "numpy" else FIELD.chunk({"time": 7, "lat": 3})
    table = sp.open(array, samples="time")
    pca, plain = sp.PCA(3).fit(table), sp.PCA(3).fit(flat(FIELD, "time"))
    scores = pca.transform(table)
    assert isinstance(scores, xr.DataArray)
    assert scores.dims == ("time", "mode")
    assert isinstance(scores.data, da.Array)
    np.testing.assert_allclose(scores.values, plain.transform(flat(FIELD, "time")), atol=1e-10)
    np.testing.assert_array_equal(scores["time"].values, TIME)
    np.testing.assert_array_equal(scores["mode"].values, [1, 2, 3])
    back = pca.inverse_transform(scores)
    assert isinstance(back, xr.DataArray)
    assert back.dims == ("time", "lat", "lon")
    assert back.attrs["units"] == "K"
    np.testing.assert_allclose(
        back.values.reshape(N, -1), plain.inverse_transform(plain.transform(flat(FIELD, "time")))
    )


def test_new_data_are_read_with_the_dims_variables_and_mask_of_the_fit() -> None:
    pca = sp.PCA(2).fit(sp.open(make_field(land=True), samples="time", mask="observed"))
    want = pca.transform(FIELD.values[:, ~LAND])
    for array in (FIELD, FIELD.transpose("lon", "time", "lat"), FIELD.isel(time=slice(0, 9)).chunk({"lat": 1})):
        scores = pca.transform(array)
        assert scores.dims == ("time", "mode")
        np.testing.assert_allclose(scores.values, want[: scores.sizes["time"]], atol=1e-10)
    with pytest.raises(ParameterError, match="another coordinate lat"):
        pca.transform(FIELD.assign_coords(lat=LAT + 1))
    assert pca.partial_fit(FIELD.T).n_samples_seen_ == 2 * N
    data = xr.Dataset({"u": FIELD, "w": FIELD.mean("lon"), "z": FIELD + 1})
    table = sp.open(data, variables=["w", "u"], samples="time")
    two = sp.PCA(2).fit(table)
    np.testing.assert_allclose(two.transform(data).values, np.asarray(two.transform(table)), atol=1e-10)


def test_scores_of_two_dimensions_of_samples_are_a_map() -> None:
    table = sp.open(FIELD, samples=["lat", "lon"])
    pca = sp.PCA(2).fit(table)
    scores = pca.transform(table)
    assert isinstance(scores, xr.DataArray)
    assert scores.dims == ("lat", "lon", "mode")
    np.testing.assert_allclose(scores.values.reshape(24, 2), pca.transform(flat(FIELD, "lat", "lon")))
    back = pca.inverse_transform(scores)
    assert back.dims == ("lat", "lon", "time")


def test_scores_of_a_table_in_memory_have_all_coordinates_of_its_samples() -> None:
    table = FIELD.isel(lon=0, drop=True)
    scores = sp.PCA(2).fit(table).transform(table)
    assert isinstance(scores, xr.DataArray)
    assert isinstance(scores.data, np.ndarray)
    np.testing.assert_array_equal(scores["season"].values, FIELD["season"].values)
    stacked = FIELD.stack(place=("lat", "lon")).transpose("place", "time")
    scores = sp.PCA(2).fit_transform(stacked)
    assert isinstance(scores, xr.DataArray)
    assert scores.indexes["place"].names == ["lat", "lon"]
    assert scores.unstack("place").shape == (2, 4, 6)


@pytest.mark.parametrize("kind", ["DataArray", "Dataset"])
def test_scores_have_no_coordinates_along_features(kind: str) -> None:
    lead = np.arange(4) * np.timedelta64(30, "D")
    start = np.datetime64("2000-01-01", "ns") + np.arange(20) * np.timedelta64(1, "D")
    values = np.random.default_rng(0).normal(size=(20, 4, 3))
    coordinates = {"start": start, "valid": (("start", "lead"), start[:, None] + lead), "height": 2.0}
    forecast = xr.DataArray(values, coordinates, ("start", "lead", "place"), name="t2m")
    forecast = forecast.assign_coords(elevation=("place", [1.0, 2.0, 3.0]), run=("start", np.arange(20)))
    data = forecast if kind == "DataArray" else forecast.to_dataset()
    pca = sp.PCA(2).fit(sp.open(data, samples="start"))
    scores = pca.transform(data)
    assert set(scores.coords) == {"start", "run", "height", "mode"}
    assert set(pca.inverse_transform(scores).coords) == {"start", "run", "height"}
    both = sp.PCA(2).fit(sp.open(data, samples=["start", "lead"])).transform(data)
    assert both.valid.identical(forecast.valid)


def test_set_output_makes_a_frame_of_a_table_in_memory() -> None:
    pandas = pytest.importorskip("pandas")
    table = FIELD.isel(lon=0, drop=True)
    pca = sp.PCA(2).set_output(transform="pandas").fit(table)
    assert isinstance(pca.transform(table), pandas.DataFrame)
    with pytest.raises(ParameterError, match="set_output"):
        pca.transform(table.chunk({"time": 5}))


def test_values_that_are_not_finite_have_no_scores() -> None:
    table = FIELD.isel(lon=0, drop=True)
    with pytest.raises(DataError, match="row 3"):
        sp.PCA(2).fit(table).transform(table.where(table.time != TIME[3]))


# -- models -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["zarr", "netcdf"])
def test_model_as_a_dataset_has_the_dims_of_the_features_and_can_be_written(tmp_path: Path, fmt: str) -> None:
    table = sp.open(make_field(land=True), samples="time", mask="observed")
    pca = sp.PCA(2, scale=True, feature_weight=np.linspace(1, 2, 22)).fit(table)
    dataset = pca.to_xarray()
    assert dataset["components"].dims == ("mode", "lat", "lon")
    assert dataset["mean"].attrs["units"] == "K"
    assert dataset["lat"].attrs["units"] == "degrees_north"
    np.testing.assert_array_equal(dataset["components"].values[:, ~LAND], pca.components_)
    assert np.isnan(dataset["components"].values[:, LAND]).all()
    for name in ("mean", "scale"):
        np.testing.assert_array_equal(dataset[name].values[~LAND], getattr(pca, f"{name}_"))
    np.testing.assert_array_equal(dataset["feature_weight"].values[~LAND], np.linspace(1, 2, 22))
    for name in ("explained_variance", "explained_variance_ratio", "singular_values"):
        np.testing.assert_array_equal(dataset[name].values, getattr(pca, f"{name}_"))
        assert dataset[name].dims == ("mode",)
    assert dataset["component_errors"].values.tolist() == [0.0, 0.0]
    assert dataset.attrs["solver"] == "covariance"
    assert float(dataset["explained_variance"].sel(mode=1)) == pca.explained_variance_[0]
    if fmt == "zarr":
        dataset.to_zarr(tmp_path / "m.zarr", zarr_format=3, consolidated=False)
        again = xr.open_zarr(tmp_path / "m.zarr", consolidated=False).load()
    else:
        dataset.to_netcdf(tmp_path / "m.nc", engine="scipy")
        again = xr.load_dataset(tmp_path / "m.nc", engine="scipy")
    xr.testing.assert_equal(again, dataset)


def test_model_of_several_variables_and_of_no_names_as_a_dataset() -> None:
    data = xr.Dataset({"u": FIELD, "w": FIELD.mean("lon")})
    dataset = sp.PCA(2).fit(sp.open(data, samples="time")).to_xarray()
    assert dataset["components_u"].dims == ("mode", "lat", "lon")
    assert dataset["mean_w"].dims == ("lat",)
    back = sp.PCA(2).fit(sp.open(data, samples="time"))
    rows = back.inverse_transform(back.transform(sp.open(data, samples="time")))
    assert isinstance(rows, xr.Dataset)
    assert rows["w"].dims == ("time", "lat")
    plain = sp.PCA(2).fit(flat(FIELD, "time")).to_xarray()
    assert plain["components"].dims == ("mode", "feature")
    kernel = sp.KernelPCA(2).fit(flat(FIELD, "time")).to_xarray()
    assert kernel["eigenvalues"].dims == ("mode",)


@pytest.mark.filterwarnings("ignore:Object at streampca.json is not recognized")  # the commit record
@pytest.mark.parametrize("kind", ["pca", "named", "kernel_pca"])
def test_saved_models_and_scores_are_opened_by_xarray(tmp_path: Path, kind: str) -> None:
    table = sp.open(make_field(land=True), samples="time", mask="observed")
    model: Any = sp.PCA(2, scale=True) if kind != "kernel_pca" else sp.KernelPCA(2, fit_inverse_transform=True)
    if kind == "named":
        table = sp.open(xr.DataArray(FIELD.values[:, :, 0], dims=("t", "f"), coords={"f": list("abcd")}))
    model.fit(table)
    options = {"state": True} if kind == "pca" else {}
    path = model.save(tmp_path / "model.zarr", **options)
    dataset = xr.open_zarr(path, consolidated=False).load()
    assert dataset.sizes["mode"] == 2
    assert dataset.sizes["feature"] == table.shape[1]
    if kind == "pca":
        np.testing.assert_array_equal(dataset["components"].values, model.components_)
        assert dataset["components"].dims == ("mode", "feature")
        assert dataset["label_lat"].dims == ("lat",)
        xr.open_zarr(path, group="state", consolidated=False).load()
    if kind == "named":
        assert model.feature_names_in_.tolist() == list("abcd")
    scores = xr.open_zarr(model.transform_to(table, tmp_path / "s.zarr"), consolidated=False).load()
    assert scores["scores"].dims == (table.labels.samples[0].name, "mode")
    np.testing.assert_array_equal(scores["mode"].values, [1, 2])
    if kind != "named":
        np.testing.assert_array_equal(scores["time"].values, TIME)


@pytest.mark.numerical
def test_model_and_scores_are_those_of_eofs_with_the_same_weights() -> None:
    eofs = pytest.importorskip("eofs.xarray")
    weights = np.cos(np.radians(FIELD["lat"])) + 0 * FIELD["lon"]
    solver = eofs.Eof(FIELD, weights=np.sqrt(weights), ddof=1)
    table = sp.open(FIELD, samples="time")
    pca = sp.PCA(3, feature_weight=weights.values.ravel()).fit(table)
    dataset, scores = pca.to_xarray(), pca.transform(table)
    np.testing.assert_allclose(dataset["explained_variance"], solver.eigenvalues(neigs=3), rtol=1e-10)
    np.testing.assert_allclose(dataset["explained_variance_ratio"], solver.varianceFraction(neigs=3), rtol=1e-10)
    theirs, components = solver.pcs(npcs=3).values, solver.eofs(neofs=3).values
    signs = np.sign((theirs * scores.values).sum(axis=0))
    np.testing.assert_allclose(scores.values * signs, theirs, atol=1e-9)
    np.testing.assert_allclose(dataset["components"].values * signs[:, None, None], components, atol=1e-9)


def test_lazy_tables_in_a_dataset_are_read_with_a_plan_of_their_chunks() -> None:
    chunks = {"time": 7, "lat": 3}
    data = xr.Dataset({"u": FIELD.chunk(chunks), "w": FIELD.mean("lon").chunk({"time": 7})})
    table = sp.open(data, samples="time")
    want = sp.PCA(2).fit(np.hstack([flat(FIELD, "time"), flat(FIELD.mean("lon"), "time")]))
    for solver in ("covariance", "gram", "qr"):
        pca = sp.PCA(2, solver=solver).fit(table)
        np.testing.assert_allclose(pca.explained_variance_, want.explained_variance_, rtol=1e-9)
    centred = FIELD.chunk({"time": 2}) - FIELD.chunk({"time": 2}).mean("time")
    with pytest.raises(RepeatedReadsError):
        sp.PCA(2).fit(sp.open(xr.Dataset({"u": centred, "w": FIELD}), samples="time", max_reads=4))


@pytest.mark.parametrize("n", [1, 5, 40])
def test_anomalies_of_groups_as_xarray_writes_them(n: int) -> None:
    lazy = FIELD.assign_coords(time=pd.date_range("2001-01-01", periods=N, freq="MS")).chunk({"time": n})
    anomalies = lazy.groupby("time.month") - lazy.groupby("time.month").mean()
    pca = sp.PCA(2).fit(sp.open(anomalies, samples="time"))
    want = np.linalg.svd(flat(anomalies.compute(), "time") - anomalies.mean("time").values.ravel(), compute_uv=False)
    np.testing.assert_allclose(pca.singular_values_, want[:2], rtol=1e-10)


@pytest.mark.parametrize("form", ["memory", "store"])
def test_a_group_of_a_datatree_is_a_table(tmp_path: Path, form: str) -> None:
    era = xr.Dataset({"sst": FIELD, "level": make_field("level", seed=1)})
    below = xr.Dataset({"flux": FIELD.isel(lat=0, drop=True).drop_vars(["time", "season"])})
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "x"}), "/era": era, "/era/below": below})
    if form == "store":
        tree.to_zarr(tmp_path / "x.zarr", zarr_format=3, consolidated=False)
        tree = xr.open_datatree(tmp_path / "x.zarr", engine="zarr", chunks={}, consolidated=False)
    np.testing.assert_array_equal(values_of(sp.open(tree, array="era/sst", samples="time")), flat(FIELD, "time"))
    both = sp.open(tree, variables=["era/sst", "era/level"], samples="time")
    assert both.shape == (N, 48)
    assert [variable.name for variable in both.labels.variables] == ["sst", "level"]
    # A coordinate that the group inherits is that of the samples.
    inherited = sp.open(tree, array="/era/below/flux", samples="time")
    np.testing.assert_array_equal(inherited.labels.samples[0].coordinate, TIME)
    np.testing.assert_array_equal(values_of(sp.open(tree["era/below"], samples="time")), values_of(inherited))
    for options in ({}, {"variables": ["era/sst", "era/below/flux"]}):
        with pytest.raises(DataError, match=r"found 2 groups with variables: .* era/below/flux, era/level, era/sst"):
            sp.open(tree, samples="time", **options)
    with pytest.raises(DataError, match="found no group nothere"):
        sp.open(tree, array="nothere/sst", samples="time")
    with pytest.raises(DataError, match="nothere"):
        sp.open(tree, array="era/nothere", samples="time")
