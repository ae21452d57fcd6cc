"""Labels of a table in the model, on disk and beside the scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from stores import resealed

import streampca as sp
from streampca.errors import MergeError, ModelError, OutputError, ParameterError

TIMES = np.arange("2001-01", "2004-01", dtype="datetime64[M]").astype("datetime64[us]")
LAT, LON = np.linspace(-60, 60, 5), np.arange(0.0, 360.0, 60.0).astype(np.float32)
LAND = np.zeros((5, 6), dtype=bool)
LAND[1, 2:4] = True


def write_field(path: Path, *, times: Any = TIMES, lat: Any = LAT, seed: int = 0) -> Path:
    """Write ``sst(time, lat, lon)`` with land as NaN, and ``level(time, depth)`` with names of depths."""
    group = zarr.open_group(str(path), mode="w", zarr_format=3)
    n, rng = len(times), np.random.default_rng(seed)
    field = rng.standard_normal((n, 5, 6))
    field[:, LAND] = np.nan
    group.create_array("sst", data=field, chunks=(7, 3, 4), dimension_names=("time", "lat", "lon"))
    group["sst"].attrs["units"] = "K"
    group.create_array("level", data=rng.standard_normal((n, 3)), dimension_names=("time", "depth"))
    steps = (np.asarray(times) - np.datetime64("2000-01-01", "us")) // np.timedelta64(1, "D")
    time = group.create_array("time", data=steps.astype(np.int64), dimension_names=("time",))
    time.attrs.update({"units": "days since 2000-01-01", "calendar": "standard"})
    group.create_array("lat", data=np.asarray(lat), dimension_names=("lat",))
    group.create_array("lon", data=LON, dimension_names=("lon",))
    depth = group.create_array("depth", shape=(3,), dtype=str, dimension_names=("depth",))
    depth[:] = np.array(["top", "mid", "Grund ä"], dtype=object)
    return path


def open_field(path: Path) -> sp.sources.Source:
    return sp.open(path, variables=["sst", "level"], samples="time", mask="observed")


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_field(tmp_path_factory.mktemp("labels") / "field.zarr")


def assert_labels_of_the_field(labels: Any, n_samples: int = 36) -> None:
    assert [(d.name, d.size, d.coordinate) for d in labels.samples] == [("time", n_samples, None)]
    assert [d.name for d in labels.features] == ["lat", "lon", "depth"]
    for name, values in {"lat": LAT, "lon": LON}.items():
        np.testing.assert_array_equal(labels.dimension(name).coordinate, values)
        assert labels.dimension(name).coordinate.dtype == values.dtype
    assert labels.dimension("depth").coordinate.tolist() == ["top", "mid", "Grund ä"]
    assert [(v.name, v.dims, v.shape) for v in labels.variables] == [
        ("sst", ("lat", "lon"), (5, 6)),
        ("level", ("depth",), (3,)),
    ]
    assert labels.variables[0].attributes["units"] == "K"
    np.testing.assert_array_equal(labels.mask, np.concatenate([~LAND.ravel(), np.ones(3, dtype=bool)]))


@pytest.mark.parametrize("kind", ["pca", "kernel_pca", "state"])
def test_labels_of_a_fit_are_those_of_the_table_and_are_loaded(field: Path, tmp_path: Path, kind: str) -> None:
    model: Any = sp.KernelPCA(2) if kind == "kernel_pca" else sp.PCA(2)
    model.fit(open_field(field))
    assert_labels_of_the_field(model.labels_)
    loaded = sp.load(model.save(tmp_path / "model.zarr", **({"state": True} if kind == "state" else {})))
    assert_labels_of_the_field(loaded.labels_)
    if kind == "state":
        assert isinstance(loaded, sp.PCA)
        loaded.partial_fit(open_field(field))
        assert_labels_of_the_field(loaded.labels_, 72)
        assert_labels_of_the_field(sp.merge([loaded, model]).labels_, 108)


def test_times_along_features_are_loaded(tmp_path: Path, field: Path) -> None:
    table = sp.open(field, variables="sst", features=["time"])
    model = sp.PCA(2).fit(sp.open(field, array="level", features="time"))
    assert table.labels is not None
    loaded = sp.load(model.save(tmp_path / "model.zarr")).labels_
    assert loaded is not None
    np.testing.assert_array_equal(loaded.dimension("time").coordinate, TIMES)
    assert loaded.dimension("time").coordinate.dtype == TIMES.dtype


def test_arrays_in_memory_have_no_labels(tmp_path: Path) -> None:
    pca = sp.PCA(2).fit(np.random.default_rng(0).standard_normal((20, 4)))
    assert pca.labels_ is None
    assert sp.load(pca.save(tmp_path / "model.zarr")).labels_ is None


def test_batches_and_rows_of_another_grid_are_refused(field: Path, tmp_path: Path) -> None:
    other = open_field(write_field(tmp_path / "other.zarr", lat=LAT + 1))
    pca = sp.PCA(2).fit(open_field(field))
    for call in (pca.transform, pca.partial_fit):
        with pytest.raises((MergeError, ParameterError), match="another coordinate lat"):
            call(other)
    with pytest.raises(MergeError, match="another coordinate lat"):
        sp.merge([pca, sp.PCA(2).fit(other)])


@pytest.mark.deep(keep=7)
@pytest.mark.parametrize(
    "change",
    [
        lambda labels: labels.pop("variables"),
        lambda labels: labels["features"][0].update(size=6),
        lambda labels: labels["features"][0].update(name=3),
        lambda labels: labels["features"][0].update(coordinate="mean"),
        lambda labels: labels["features"][0].update(coordinate="label_none"),
        lambda labels: labels["features"][1].update(type="datetime64[D]"),
        lambda labels: labels["features"][1].update(type="no type"),
        lambda labels: labels["features"][2].update(type=None),
        lambda labels: labels["features"].append(labels["features"][0]),
        lambda labels: labels["variables"][0].update(shape=[6, 5]),
        lambda labels: labels["variables"][0].update(dims=["lat"]),
        lambda labels: labels["variables"].pop(),
        lambda labels: labels.update(samples=[]),
        lambda labels: labels.update(features=7),
    ],
)
def test_damaged_labels_are_a_model_error(field: Path, tmp_path: Path, change: Callable[[Any], object]) -> None:
    path = sp.PCA(2).fit(open_field(field)).save(tmp_path / "model.zarr")
    resealed(path, lambda stored: change(stored["labels"]))
    with pytest.raises(ModelError, match="labels"):
        sp.load(path)


@pytest.mark.parametrize("name", ["label_lat", "label_0_mask", "label_depth", "label_depth_ends"])
def test_changed_or_missing_arrays_of_labels_are_a_model_error(field: Path, tmp_path: Path, name: str) -> None:
    path = sp.PCA(2).fit(open_field(field)).save(tmp_path / "model.zarr")
    array = zarr.open_array(str(path / name), mode="r+")
    array[0] = not array[0] if name.endswith("mask") else array[0] + 1
    with pytest.raises(ModelError, match="SHA-256"):
        sp.load(path)
    (path / name / "zarr.json").unlink()
    with pytest.raises(ModelError, match="not those that were saved"):
        sp.load(path)


# -- beside scores ------------------------------------------------------------------------------------------------------------------


def test_scores_stand_beside_the_coordinates_of_their_samples(field: Path, tmp_path: Path) -> None:
    table = open_field(field)
    pca = sp.PCA(2).fit(table)
    path = pca.transform_to(table, tmp_path / "scores.zarr")
    group = zarr.open_group(str(path), mode="r")
    assert group["scores"].metadata.dimension_names == ("time", "mode")
    assert group.attrs["samples"][0]["name"] == "time"
    labels = sp.open(path).labels
    assert labels is not None
    np.testing.assert_array_equal(labels.dimension("time").coordinate, TIMES)
    np.testing.assert_array_equal(labels.dimension("mode").coordinate, [1, 2])
    pca.transform_to(table, path, overwrite=True)


def test_several_dimensions_of_samples_have_their_coordinates_beside_the_scores(field: Path, tmp_path: Path) -> None:
    table = sp.open(field, variables="sst", samples=["lat", "time"], mask=~LAND.any(axis=0))
    path = sp.PCA(2, missing="mean").fit(table).transform_to(table, tmp_path / "scores.zarr")
    group = zarr.open_group(str(path), mode="r")
    assert group["scores"].metadata.dimension_names == ("sample", "mode")
    assert [(entry["name"], entry["size"]) for entry in group.attrs["samples"]] == [("lat", 5), ("time", 36)]
    np.testing.assert_array_equal(group["lat"][:], LAT)


def test_arrays_of_others_beside_scores_are_not_replaced(field: Path, tmp_path: Path) -> None:
    pca = sp.PCA(2).fit(open_field(field))
    path = pca.transform_to(open_field(field), tmp_path / "scores.zarr")
    zarr.create_array(str(path / "classes"), data=np.arange(36))
    with pytest.raises(OutputError, match="classes, which streampca did not write"):
        pca.transform_to(open_field(field), path, overwrite=True)
