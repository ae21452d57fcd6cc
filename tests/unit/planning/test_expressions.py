"""Weights of features by coordinates and their cosines: values, units of angles, refusals, and fits with them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from facade import Source
from sklearn.base import clone

import streampca as sp
from streampca.errors import MergeError, ParameterError

LAT = np.array([-90.0, -30.0, 0.0, 60.0, 90.00001], dtype=np.float32)
LON = np.array([0.0, 120.0])


def field_of(name: str = "lat", units: str | None = "degrees_north", mask: Any = None) -> Source:
    """Return a field of nine times on 5 x 2 places, and an index of two levels beside it, with a mask of features."""
    group = zarr.open_group(zarr.storage.MemoryStore(), mode="w")
    values = np.random.default_rng(0).standard_normal((9, 5, 2))
    group.create_array("sst", data=values, dimension_names=("time", name, "lon"))
    group.create_array("index", data=values[:, 0], dimension_names=("time", "level"))
    for dimension, coordinate in ((name, LAT), ("lon", LON), ("level", np.array([1.0, 2.0]))):
        group.create_array(dimension, data=coordinate, dimension_names=(dimension,))
    if units is not None:
        group[name].attrs["units"] = units
    return sp.open(group, variables=["sst", "index"], samples="time", mask=mask)


@pytest.fixture(scope="module")
def field() -> Source:
    return field_of()


@pytest.fixture
def weights_by(tmp_path: Path) -> Callable[[str, Source], np.ndarray]:
    """Return a function that gives the weights of features by a coordinate, as the saved model of a fit has them."""

    def found(text: str, table: Source) -> np.ndarray:
        model = sp.PCA(1, feature_weight=text).fit(table).save(tmp_path / "model.zarr", overwrite=True)
        return np.asarray(zarr.open_array(model / "feature_weight", mode="r")[:])

    return found


COSINES = np.where(np.abs(LAT) < 89, np.cos(np.radians(LAT.astype(float))), 0)
FIELD = np.repeat(COSINES, 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cos(lat)", FIELD),
        (" cos( lat ) ", FIELD),
        ("lon", np.tile(LON, 5)),
    ],
)
def test_coordinate_gives_the_weights_of_numpy_and_one_without_it(
    text: str, expected: np.ndarray, weights_by: Any, field: Source
) -> None:
    np.testing.assert_allclose(weights_by(text, field), [*expected, 1, 1], atol=1e-7)


def test_masked_features_have_no_weight(weights_by: Any) -> None:
    kept = np.array([True, False] * 6)
    np.testing.assert_allclose(weights_by("cos(lat)", field_of(mask=kept)), [*COSINES, 1], atol=1e-7)


@pytest.mark.parametrize(
    ("name", "units", "in_degrees"),
    [
        ("lat", "degrees_north", True),
        ("latitude", None, True),
        ("lat", "radians", False),
        ("phi", "degree", True),
        ("phi", None, False),
        ("phi", "rad", False),
    ],
)
def test_angles_are_degrees_where_units_or_names_say_so(
    name: str, units: str | None, in_degrees: bool, weights_by: Any
) -> None:
    table = field_of(name, units)
    if not in_degrees:  # the cosine of -90 rad is negative
        with pytest.raises(ParameterError, match=rf"is {np.cos(-90):.6g} at sst\({name}=-90, lon=0\)"):
            weights_by(f"cos({name})", table)
        return
    np.testing.assert_allclose(weights_by(f"cos({name})", table)[:10], FIELD, atol=1e-6)


OTHERS = [
    "cos(lat",
    "",
    "cos lat)",
    "sqrt(cos(lat))",
    "2 * cos(lat)",
    "lat.real",
    "lat[0]",
    "cos(lat, lon)",
    "cos(x=lat)",
    "1",
    "__import__('os')",
]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cos(lta)", "did you mean 'lat'"),
        ("cos(time)", "no coordinate of numbers 'time'"),
        ("lat", "-90 at sst(lat=-90, lon=0) (4 such values): expected finite numbers of at least 0"),
        *((text, "is not understood: expected the name of a coordinate, or its cosine") for text in OTHERS),
    ],
)
def test_texts_that_give_no_weights_are_refused(text: str, words: str, weights_by: Any, field: Source) -> None:
    with pytest.raises(ParameterError) as caught:
        weights_by(text, field)
    assert words in str(caught.value)


def test_other_expressions_are_refused_with_what_to_do(field: Source, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"give other weights as numbers, .* or as a DataArray"):
        sp.PCA(1, feature_weight="sqrt(cos(lat))").fit(field)
    config = "source: {path: x.zarr}\npreprocess: {feature_weight: 2 * cos(lat)}\n"
    (tmp_path / "c.yaml").write_text(config + f"output: {{directory: {tmp_path / 'out'}}}\n")
    with pytest.raises(ParameterError, match="is not understood"):
        sp.run(tmp_path / "c.yaml")


def test_models_of_expressions_of_earlier_versions_are_read(field: Source, tmp_path: Path) -> None:
    pca = sp.PCA(1, feature_weight="cos(lat)").fit(field)
    pca.set_params(feature_weight="1 * cos(lat)")
    saved = pca.save(tmp_path / "m.zarr")
    again = sp.load(saved)
    assert again.get_params()["feature_weight"] == "1 * cos(lat)"
    np.testing.assert_array_equal(again.transform(field), pca.transform(field))
    again.save(tmp_path / "n.zarr")


def test_data_without_labels_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"needs names of dimensions with coordinates.*sp\.open"):
        sp.PCA(2, feature_weight="cos(lat)").fit(np.eye(5))
    with pytest.raises(ParameterError, match="is not understood"):
        sp.PCA(2, feature_weight="cos(").fit(np.eye(5))


@pytest.fixture
def table(tmp_path: Path) -> Source:
    """Return a field of 40 times on 5 x 2 places, with a mask."""
    group = zarr.open_group(tmp_path / "field.zarr", mode="w")
    values = np.random.default_rng(0).standard_normal((40, 5, 2))
    values[:, 1, 1] = np.nan
    group.create_array("t", data=values, dimension_names=("time", "lat", "lon"), chunks=(10, 5, 2))
    group.create_array("lat", data=LAT, dimension_names=("lat",))
    return sp.open(tmp_path / "field.zarr", array="t", samples="time", mask="observed")


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch", "adaptive"])
def test_fit_with_an_expression_is_that_with_its_numbers(table: Source, solver: str) -> None:
    weights = np.delete(np.repeat(COSINES, 2), 3)
    by_text = sp.PCA(3, solver=solver, feature_weight="cos(lat)").fit(table)
    by_numbers = sp.PCA(3, solver=solver, feature_weight=weights).fit(table)
    np.testing.assert_allclose(by_text.explained_variance_, by_numbers.explained_variance_, rtol=1e-6)
    values = table.read(0, 40)[0] * np.sqrt(weights)
    expected = np.linalg.svd(values - values.mean(axis=0), compute_uv=False)[:3] ** 2 / 39
    if solver not in ("sketch", "adaptive"):
        np.testing.assert_allclose(by_text.explained_variance_, expected, rtol=1e-6)
    assert by_text.plan(table).n_features == 9


def test_expression_survives_clone_pickle_save_and_load(table: Source, tmp_path: Path) -> None:
    pca = sp.PCA(2, feature_weight="cos(lat)").fit(table)
    assert clone(pca).feature_weight == "cos(lat)" == pca.get_params()["feature_weight"]
    pca.save(tmp_path / "m.zarr", state=True)
    for again in (sp.load(tmp_path / "m.zarr"), pickle.loads(pickle.dumps(pca))):
        assert again.get_params()["feature_weight"] == "cos(lat)"
        np.testing.assert_array_equal(np.asarray(again.transform(table)), np.asarray(pca.transform(table)))
        again.partial_fit(table)
        assert again.n_samples_seen_ == 80
    pca.set_params(feature_weight=np.full(9, 2.0))
    with pytest.raises(sp.errors.ModelError, match="feature_weight was changed after the fit"):
        pca.save(tmp_path / "n.zarr")
    with pytest.raises(MergeError, match="feature_weight"):
        pca.partial_fit(table)


def test_numbers_and_an_expression_of_the_same_weights_merge(table: Source, weights_by: Any) -> None:
    one = sp.PCA(2, feature_weight="cos(lat)").partial_fit(table)
    two = sp.PCA(2, feature_weight=weights_by("cos(lat)", table)).partial_fit(table)
    assert sp.merge([one, two]).n_samples_seen_ == 80


@pytest.mark.slow
def test_checkpointed_fit_and_run_take_an_expression(
    table: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = sp.PCA(2, feature_weight="cos(lat)").fit(table)
    checkpointed = sp.PCA(2, feature_weight="cos(lat)", checkpoint=tmp_path / "c").fit(table)
    np.testing.assert_array_equal(checkpointed.components_, expected.components_)
    text = (
        "source: {path: field.zarr, array: t, samples: time, mask: observed}\n"
        "preprocess: {feature_weight: cos(lat)}\nmodel: {n_components: 2}\noutput: {directory: out, report: true}\n"
    )
    (tmp_path / "c.yaml").write_text(text)
    finished = sp.run("c.yaml")
    np.testing.assert_array_equal(finished.model.components_, expected.components_)
    assert finished.model.get_params()["feature_weight"] == "cos(lat)"
    weights = zarr.open_array("out/model.zarr/feature_weight", mode="r")[:]
    np.testing.assert_array_equal(weights, np.delete(np.repeat(COSINES, 2), 3))


def curvilinear(tmp_path: Path, kind: str) -> Any:
    """Return sst (time, y, x) with its latitude (y, x), which lacks where there is land, as xarray's object or as a store."""
    rng = np.random.default_rng(4)
    latitude, values = rng.uniform(-89, 89, (3, 4)), rng.standard_normal((11, 3, 4))
    latitude[1, 2] = values[:, 1, 2] = np.nan
    data = xr.Dataset(
        {"sst": (("time", "y", "x"), values), "area": (("y", "x"), np.abs(latitude))},
        coords={"nav_lat": (("y", "x"), latitude, {"units": "degrees_north"}), "along_y": ("y", [1.0, 2.0, 4.0])},
    )
    encoding = {"nav_lat": {"_FillValue": 1e20}, "sst": {"_FillValue": 1e20}}
    if kind == "DataArray":
        return data["sst"], latitude, values
    if kind == "Dataset":
        return data[["sst"]], latitude, values
    if kind == "zarr":
        data.to_zarr(tmp_path / "data.zarr", encoding=encoding, consolidated=False)
        return tmp_path / "data.zarr", latitude, values
    if kind == "NetCDF 3":
        data.to_netcdf(tmp_path / "data.nc", engine="scipy", encoding=encoding)
        return tmp_path / "data.nc", latitude, values
    with h5py.File(tmp_path / "data.nc", "w") as file:  # as netCDF4 writes it
        for name, size in (("time", 11), ("y", 3), ("x", 4)):
            file.create_dataset(name, data=np.zeros(size)).make_scale(
                "This is a netCDF dimension but not a netCDF variable"
            )
        for name, array in data.variables.items():
            dataset = file.create_dataset(str(name), data=np.where(np.isnan(array), 1e20, array))
            dataset.attrs["_FillValue"] = 1e20
            dataset.attrs.update(array.attrs)
            for dimension, scale in zip(dataset.dims, array.dims, strict=True):
                dimension.attach_scale(file[str(scale)])
    return tmp_path / "data.nc", latitude, values


@pytest.mark.parametrize("kind", ["DataArray", "Dataset", "zarr", "NetCDF 3", "NetCDF 4"])
def test_a_latitude_of_two_dimensions_gives_the_weights_of_numpy(kind: str, tmp_path: Path) -> None:
    data, latitude, values = curvilinear(tmp_path, kind)
    options: Any = {} if kind == "DataArray" else {"variables": ["sst"]}
    table = sp.open(data, samples="time", mask="observed", **options)
    sea = np.isfinite(latitude)
    rows, weights = values[:, sea] - values[:, sea].mean(axis=0), np.cos(np.radians(latitude[sea]))
    expected = np.linalg.svd(rows * np.sqrt(weights), compute_uv=False)[:3] ** 2 / (len(rows) - 1)
    model = sp.PCA(3, feature_weight="cos(nav_lat)").fit(table)
    np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-12)
    model = sp.PCA(3, feature_weight="along_y").fit(table)
    weights = np.broadcast_to(np.array([[1.0], [2.0], [4.0]]), sea.shape)[sea]
    expected = np.linalg.svd(rows * np.sqrt(weights), compute_uv=False)[:3] ** 2 / (len(rows) - 1)
    np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-12)
    pickle.loads(pickle.dumps(model))
    with pytest.raises(ParameterError, match="did you mean 'nav_lat'"):
        sp.PCA(1, feature_weight="cos(nav_lot)").fit(table)


def test_a_missing_latitude_of_a_used_feature_is_an_error(tmp_path: Path) -> None:
    data, _, _ = curvilinear(tmp_path, "DataArray")
    table = sp.open(data.fillna(0.0), samples="time")
    with pytest.raises(ParameterError, match=r"is nan at sst\(y=1, x=2\) \(1 such value.*by a mask"):
        sp.PCA(1, feature_weight="cos(nav_lat)").fit(table)


def test_a_latitude_of_two_dimensions_is_repeated_for_lags_and_in_a_configuration(tmp_path: Path) -> None:
    data, latitude, _ = curvilinear(tmp_path, "zarr")
    weights = np.cos(np.radians(latitude[np.isfinite(latitude)]))
    (tmp_path / "c.yaml").write_text(
        f"source: {{path: {data}, array: sst, samples: time, mask: observed, lags: 2}}\n"
        "preprocess: {feature_weight: cos(nav_lat)}\nmodel: {n_components: 2}\n"
        f"output: {{directory: {tmp_path / 'out'}}}\n"
    )
    sp.run(tmp_path / "c.yaml")
    found = np.asarray(zarr.open_array(tmp_path / "out" / "model.zarr" / "feature_weight", mode="r")[:])
    np.testing.assert_allclose(found, np.tile(weights, 2), rtol=1e-14)
