"""Rows from scores, streamed to a store: the values, names and types of `inverse_transform`, within the ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from facade import blocks_of, process_bytes

import streampca as sp
from streampca.errors import NotAvailableError, NotFiniteError, OutputError, ParameterError, PlanError

pytestmark = pytest.mark.numerical

X = np.random.default_rng(0).standard_normal((60, 7)) @ np.diag([5, 4, 3, 2, 1, 1, 1]) + 20
Y = X[:, :4] @ np.random.default_rng(1).standard_normal((4, 5)) + np.random.default_rng(2).standard_normal((60, 5))


def stored(path: Path, name: str = "rows") -> Any:
    return zarr.open_array(path / name, mode="r")[...]


@pytest.mark.parametrize(
    "estimator",
    [
        sp.PCA(3),
        sp.PCA(3, whiten=True, scale=True, feature_weight=np.arange(1.0, 8.0)),
        sp.PCA(3, solver="sketch"),
        sp.FactorAnalysis(2),
        sp.KernelPCA(3, kernel="rbf", method="nystrom", n_landmarks=20, fit_inverse_transform=True),
    ],
    ids=["pca", "whitened", "sketch", "factors", "kernel"],
)
@pytest.mark.parametrize("dtype", [None, "float32", "int16"])
def test_stored_rows_are_those_of_inverse_transform(estimator: Any, dtype: str | None, tmp_path: Path) -> None:
    scores = np.asarray(estimator.fit(X).transform(X))
    with blocks_of(25):
        assert estimator.inverse_transform_to(scores, tmp_path / "out", dtype=dtype) == tmp_path / "out"
    found, expected = stored(tmp_path / "out"), estimator.inverse_transform(scores)
    assert found.dtype == np.dtype(dtype or "f8")
    if dtype == "int16":
        expected = np.rint(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12 if dtype is None else 1e-6)


def test_rows_of_rotated_components_and_of_each_of_two_tables(tmp_path: Path) -> None:
    pca = sp.PCA(4).fit(X)
    rotated = pca.rotate(2)
    rotated.inverse_transform_to(rotated.transform(X), tmp_path / "rotated")
    mean, axes = X.mean(0), pca.components_[:2]
    np.testing.assert_allclose(stored(tmp_path / "rotated"), mean + (X - mean) @ axes.T @ axes, rtol=1e-9)
    for kind in (sp.MCA, sp.CCA):
        model = kind(2).fit(X, Y)
        for side, scores, table in zip("xy", model.transform(X, Y), (X, Y), strict=True):
            model.inverse_transform_to(scores, tmp_path / "side", side=side, overwrite=True)
            patterns = getattr(model, f"{side}_patterns_")
            (name,) = [each.name for each in model.labels_.variables][side == "y" :][:1]
            np.testing.assert_allclose(stored(tmp_path / "side", name), table.mean(0) + scores @ patterns, rtol=1e-9)
    with pytest.raises(ParameterError, match="side='z'"):
        model.inverse_transform_to(scores, tmp_path / "no", side="z")


def test_scores_of_any_kind_give_the_same_rows(tmp_path: Path) -> None:
    pca = sp.PCA(3).fit(X)
    scores = pca.transform(X)
    pca.transform_to(X, tmp_path / "scores")
    of_xarray = xr.DataArray(scores, dims=("time", "mode"), coords={"mode": [1, 2, 3]})
    given = {
        "list": scores.tolist(),
        "dask": da.from_array(scores, chunks=(13, 3)),
        "path": tmp_path / "scores",
        "zarr": zarr.open_array(tmp_path / "scores/scores"),
        "source": sp.open(tmp_path / "scores", array="scores"),
        "xarray": of_xarray,
    }
    for name, each in given.items():
        pca.inverse_transform_to(each, tmp_path / name)
        np.testing.assert_allclose(stored(tmp_path / name), pca.inverse_transform(scores), rtol=1e-12)
    pca.inverse_transform_to(of_xarray.sel(mode=[2]), tmp_path / "second")
    expected = X.mean(0) + np.outer(scores[:, 1], pca.components_[1])
    np.testing.assert_allclose(stored(tmp_path / "second"), expected, rtol=1e-12)
    for bad in (scores[:, :2], scores + 1j, scores[0]):
        with pytest.raises((ParameterError, ValueError), match=r"shape|omplex"):
            pca.inverse_transform_to(bad, tmp_path / "bad")


def test_a_field_keeps_its_variables_dimensions_and_coordinates(tmp_path: Path) -> None:
    rng, times = np.random.default_rng(3), np.datetime64("2020-01-01") + np.arange(30)
    sst = xr.DataArray(rng.standard_normal((30, 3, 4)), dims=("time", "lat", "lon"), attrs={"units": "K"})
    wind = xr.DataArray(rng.standard_normal((30, 4)), dims=("time", "lon"))
    data = xr.Dataset({"sst": sst, "wind": wind}, coords={"time": times, "lat": [10.0, 20, 30], "lon": np.arange(4.0)})
    data.to_zarr(tmp_path / "field.zarr", consolidated=False)
    table = sp.open(tmp_path / "field.zarr", variables=["sst", "wind"], samples="time")
    pca = sp.PCA(5).fit(table)
    pca.transform_to(table, tmp_path / "scores")
    for name, scores in (("stored", tmp_path / "scores"), ("lazy", pca.transform(table))):
        pca.inverse_transform_to(scores, tmp_path / name)
        with xr.open_zarr(tmp_path / name) as found:
            xr.testing.assert_allclose(
                found[["sst", "wind"]].load(), pca.inverse_transform(pca.transform(table)).load()
            )
            assert found["sst"].attrs["units"] == "K"
            np.testing.assert_array_equal(found["time"].values.astype("M8[D]"), times)


def test_features_that_a_mask_left_out_are_nan_and_no_integers(tmp_path: Path) -> None:
    used = np.array([True, False, True, True, True, False, True])
    table = sp.open(X, mask=used)
    pca = sp.PCA(2).fit(table)
    scores = np.asarray(pca.transform(table))
    pca.inverse_transform_to(scores, tmp_path / "out")
    found = stored(tmp_path / "out")
    assert np.isnan(found[:, ~used]).all()
    np.testing.assert_allclose(found[:, used], pca.inverse_transform(scores), rtol=1e-12)
    with pytest.raises(NotAvailableError, match="mask"):
        pca.inverse_transform_to(scores, tmp_path / "integers", dtype="int16")


@pytest.mark.parametrize("removed", [{"trend": 1}, {"groups": np.arange(60) % 3}])
def test_what_the_model_removes_is_added_again(removed: Any, tmp_path: Path) -> None:
    pca = sp.PCA(2, remove=removed).fit(X)
    scores = pca.transform(X)
    with blocks_of(17):
        pca.inverse_transform_to(scores, tmp_path / "out")
    np.testing.assert_allclose(stored(tmp_path / "out"), pca.inverse_transform(scores), rtol=1e-12)
    with pytest.raises(ParameterError, match="remove"):
        pca.inverse_transform_to(scores[:9], tmp_path / "some")


@pytest.mark.parametrize(
    ("dtype", "value", "nearest"),
    [
        ("uint8", 255.5, 255),
        ("uint8", -0.51, 0),
        ("int32", 2.0**31, 2**31 - 1),
        ("uint64", 2.0**64, 2**64 - 1),
        ("int64", -1e30, -(2**63)),
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_values_outside_of_an_integer_type_are_refused_or_clipped(
    dtype: str, value: float, nearest: int, single: bool, tmp_path: Path
) -> None:
    pca = sp.PCA(1).fit(np.array([[-1.0, 3], [1, 3], [0, 3]]))
    scores = np.array([[1.0], [1.0], [value]]) * pca.components_[0, 0]
    scores = scores.astype("f4") if single else scores
    with pytest.raises(ParameterError, match=rf"dtype='{dtype}': row 2, feature 0 is .* expected .* clip=True"):
        pca.inverse_transform_to(scores, tmp_path / "out", dtype=dtype)
    assert not (tmp_path / "out").exists()
    pca.inverse_transform_to(scores, tmp_path / "out", dtype=dtype, clip=True)
    assert stored(tmp_path / "out").tolist() == [[1, 3], [1, 3], [nearest, 3]]


def test_integers_just_within_the_range_are_taken(tmp_path: Path) -> None:
    pca = sp.PCA(1).fit(np.array([[-1.0, 3], [1, 3], [0, 3]]))
    scores = np.array([[255.49], [-0.5], [2.5]]) * pca.components_[0, 0]
    pca.inverse_transform_to(scores, tmp_path / "out", dtype=np.uint8)
    assert stored(tmp_path / "out")[:, 0].tolist() == [255, 0, 2]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"dtype": "U3"}, ParameterError, "dtype='U3'"),
        ({"dtype": "complex64"}, ParameterError, "real|floating"),
        ({"dtype": "nonsense"}, ParameterError, "dtype='nonsense'"),
        ({"clip": True}, ParameterError, "clip=True is for integers"),
        ({"dtype": "float16"}, NotFiniteError, "row 0 overflows float16"),
    ],
)
def test_types_that_rows_cannot_have_are_refused(options: Any, error: Any, match: str, tmp_path: Path) -> None:
    pca = sp.PCA(1).fit(X * 1e6)
    with pytest.raises(error, match=match):
        pca.inverse_transform_to(pca.transform(X * 1e6), tmp_path / "out", **options)


def test_kernel_pca_without_a_way_back_is_refused_and_other_places_are_left_alone(tmp_path: Path) -> None:
    kernel = sp.KernelPCA(2, method="nystrom", n_landmarks=20).fit(X)
    with pytest.raises(ParameterError, match="fit_inverse_transform=True"):
        kernel.inverse_transform_to(kernel.transform(X), tmp_path / "out")
    pca = sp.PCA(2).fit(X)
    scores = pca.transform(X)
    pca.transform_to(X, tmp_path / "scores")
    with pytest.raises(OutputError, match="not a store of reconstructed rows"):
        pca.inverse_transform_to(scores, tmp_path / "scores", overwrite=True)
    pca.inverse_transform_to(scores, tmp_path / "rows")
    with pytest.raises(OutputError, match="overwrite"):
        pca.inverse_transform_to(scores, tmp_path / "rows")
    pca.inverse_transform_to(scores[:9], tmp_path / "rows", overwrite=True)
    assert stored(tmp_path / "rows").shape == (9, 7)
    (tmp_path / "rows/notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt"):
        pca.inverse_transform_to(scores, tmp_path / "rows", overwrite=True)


def test_rows_with_missing_scores_are_nan_and_no_integers(tmp_path: Path) -> None:
    holes = X.copy()
    holes[5, 2] = np.nan
    pca = sp.PCA(2, missing="drop_rows").fit(holes)
    scores = pca.transform(holes)
    pca.inverse_transform_to(scores, tmp_path / "out")
    np.testing.assert_array_equal(np.isnan(stored(tmp_path / "out")).any(1), np.arange(60) == 5)
    for clip in (False, True):
        with pytest.raises(ParameterError, match="row 5, feature 0 is nan"):
            pca.inverse_transform_to(scores, tmp_path / "integers", dtype="int16", clip=clip)


def test_the_plan_of_wide_rows_holds_the_ceiling(tmp_path: Path) -> None:
    wide = np.random.default_rng(0).standard_normal((40, 20_000)).astype("f4")
    pca = sp.PCA(2, solver="gram").fit(wide)
    scores = np.tile(pca.transform(wide), (200, 1))  # 640 MB of rows
    pca.set_params(memory=process_bytes() + 80 * 2**20)
    pca.inverse_transform_to(scores[:400], tmp_path / "out", dtype="int8")
    assert zarr.open_array(tmp_path / "out/rows").chunks[0] < 400
    pca.set_params(memory=process_bytes() + 2**20)
    with pytest.raises(PlanError, match="writing rows"):
        pca.inverse_transform_to(scores, tmp_path / "more")
