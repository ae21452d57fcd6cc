"""Values of rows and features that have labels are found by them, whatever their order, or refused: never taken by position."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr

import streampca as sp
from streampca.errors import DataError, ParameterError

N, D = 40, 5
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(N, D)) * np.arange(1, D + 1)
NAMES = [f"r{i}" for i in range(N)]
COLUMNS = list("abcde")
WEIGHT, AREA = RNG.uniform(0.5, 2, N), RNG.uniform(0.5, 2, D)
KIND, SLOPE = RNG.integers(0, 3, N), RNG.normal(size=(N, 2))
FRAME = pd.DataFrame(ROWS, NAMES, COLUMNS)
ARRAY = xr.DataArray(ROWS, dims=("row", "column"), coords={"row": NAMES, "column": COLUMNS})
CELLS = anndata.AnnData(ROWS.copy(), obs=pd.DataFrame(index=NAMES), var=pd.DataFrame(index=COLUMNS))

LABELLED: dict[str, Any] = {
    "frame": FRAME,
    "shuffled frame": FRAME.iloc[RNG.permutation(N)],
    "table of a frame": sp.open(FRAME),
    "DataArray": ARRAY,
    "lazy DataArray": ARRAY.chunk({"row": 7}),
    "AnnData": CELLS,
    "times": FRAME.set_axis(pd.date_range("2001-01-01", periods=N, freq="D")),
    "part of a frame": FRAME.set_axis(pd.RangeIndex(100, 100 + N)),
}


def rows_of(data: Any) -> np.ndarray:
    return data.read(0, N)[0] if isinstance(data, sp.sources.Source) else np.asarray(getattr(data, "X", data))


def index_of(data: Any) -> Any:
    return data.index if isinstance(data, pd.DataFrame) else pd.Index(NAMES)


def series(values: np.ndarray, index: Any) -> Any:
    make = pd.Series if values.ndim == 1 else pd.DataFrame
    return make(values, index=index)


def data_array(values: np.ndarray, index: Any) -> xr.DataArray:
    dims = ("row" if len(values) == N else "column", "k")[: values.ndim]
    return xr.DataArray(values, dims=dims, coords={dims[0]: np.asarray(index)})


USES: dict[str, tuple[np.ndarray, Callable[[Any, Any], Any]]] = {
    "sample_weight": (WEIGHT, lambda X, v: sp.PCA(3).fit(X, sample_weight=v).components_),
    "sample_weight of batches": (WEIGHT, lambda X, v: sp.PCA(3).partial_fit(X, sample_weight=v).components_),
    "sample_weight of many": (WEIGHT, lambda X, v: sp.fit_many({"a": sp.PCA(3)}, X, sample_weight=v)["a"].components_),
    "feature_weight": (AREA, lambda X, v: sp.PCA(3, feature_weight=v).fit(X).components_),
    "groups": (KIND, lambda X, v: sp.PCA(3, remove={"groups": v}).fit(X).components_),
    "covariates": (SLOPE, lambda X, v: sp.PCA(3, remove={"covariates": v}).fit(X).components_),
    "labels of groups": (KIND, lambda X, v: sp.PCA(3).fit_groups(X, v)["pooled"].components_),
    "groups of new rows": (
        KIND,
        lambda X, v: np.asarray(sp.PCA(3, remove={"groups": KIND}).fit(X).transform(X, remove={"groups": v})),
    ),
}


@pytest.mark.deep(keep=32)
@pytest.mark.parametrize("kind", LABELLED)
@pytest.mark.parametrize("use", USES)
def test_values_are_found_by_their_labels(use: str, kind: str) -> None:
    data, (values, fit) = LABELLED[kind], USES[use]
    index = index_of(data) if len(values) == N else pd.Index(COLUMNS)
    want = fit(data, values)
    assert len(want)
    for form in (series, data_array):
        labelled = form(values, index)
        np.testing.assert_array_equal(fit(data, labelled), want)
        np.testing.assert_array_equal(fit(data, labelled[::-1]), want)
        with pytest.raises(ParameterError, match="has the labels"):
            fit(data, form(values, [f"other{i}" for i in range(len(values))]))


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("data", [ROWS, da.from_array(ROWS, chunks=(10, -1))], ids=["numpy", "dask"])
def test_where_data_have_no_labels_values_with_some_are_refused(data: Any, use: str) -> None:
    values, fit = USES[use]
    index = pd.Index(NAMES if len(values) == N else COLUMNS)
    plain = series(values, pd.RangeIndex(len(values)))
    unnamed = xr.DataArray(values)
    np.testing.assert_array_equal(fit(data, plain), fit(data, values))
    np.testing.assert_array_equal(fit(data, unnamed), fit(data, values))
    for labelled in (series(values, index), plain[::-1], data_array(values, index)):
        with pytest.raises(ParameterError, match=r"have none to match them: give \.(to_numpy\(\)|values)"):
            fit(data, labelled)


def test_default_labels_are_no_names() -> None:
    with pytest.raises(
        ParameterError, match=r"has the labels 0, 1, 2, …, which are not those of the rows, r0, r1, r2, …"
    ):
        sp.PCA(2).fit(FRAME, sample_weight=pd.Series(WEIGHT))
    shuffled = FRAME.reset_index(drop=True).sample(frac=1, random_state=1)
    want = sp.PCA(2).fit(shuffled, sample_weight=WEIGHT[shuffled.index]).components_
    np.testing.assert_array_equal(sp.PCA(2).fit(shuffled, sample_weight=pd.Series(WEIGHT)).components_, want)
    np.testing.assert_array_equal(sp.PCA(2).fit(pl.DataFrame(ROWS), sample_weight=pl.Series(WEIGHT)).n_samples_seen_, N)


def test_labels_that_occur_twice_are_taken_in_the_same_order_only() -> None:
    twice = FRAME.set_axis(["a", "a", *NAMES[2:]])
    weight = pd.Series(WEIGHT, twice.index)
    want = sp.PCA(2).fit(twice, sample_weight=WEIGHT).explained_variance_
    np.testing.assert_array_equal(sp.PCA(2).fit(twice, sample_weight=weight).explained_variance_, want)
    with pytest.raises(ParameterError, match="occur twice"):
        sp.PCA(2).fit(twice, sample_weight=weight[::-1])


def test_batches_and_saved_models_have_the_weights_of_their_features(tmp_path: Path) -> None:
    weight = pd.Series(AREA, COLUMNS)[::-1]
    pca = sp.PCA(3, feature_weight=weight).partial_fit(FRAME[:25]).partial_fit(FRAME[25:])
    want = sp.PCA(3, feature_weight=AREA).fit(ROWS)
    np.testing.assert_allclose(pca.explained_variance_, want.explained_variance_, rtol=1e-12)
    pca.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(sp.load(tmp_path / "model.zarr").feature_weight, AREA)
    with pytest.raises(ParameterError, match="have none to match them"):
        pca.partial_fit(sp.open(ROWS))


# -- features of several dimensions -------------------------------------------------------------------------------------------------

LAT, LON = np.array([-60.0, 0, 60]), np.array([0.0, 90, 180, 270])
FIELD = xr.Dataset(
    {"u": (("time", "lat", "lon"), RNG.normal(size=(N, 3, 4))), "v": (("time", "lat"), RNG.normal(size=(N, 3)))},
    coords={"time": np.arange(N), "lat": LAT, "lon": LON},
)
CELL = xr.DataArray(RNG.uniform(0.5, 2, (3, 4)), dims=("lat", "lon"), coords={"lat": LAT, "lon": LON})
OCEAN = CELL > 0.8


def test_weights_of_features_have_their_dimensions() -> None:
    want = sp.PCA(3, feature_weight=np.append(CELL, np.ones(3))).fit(sp.open(FIELD, samples="time"))
    for weight in (CELL, CELL.T, CELL[::-1, ::-1], CELL.values):
        fitted = sp.PCA(3, feature_weight=weight).fit(sp.open(FIELD, samples="time"))
        np.testing.assert_array_equal(fitted.components_, want.components_)
    of_lat = xr.DataArray(np.cos(np.deg2rad(LAT)), dims="lat", coords={"lat": LAT})[::-1]
    one = sp.PCA(3, feature_weight=of_lat).fit(sp.open(FIELD, samples="time"))
    np.testing.assert_allclose(
        one.explained_variance_,
        sp.PCA(3, feature_weight="cos(lat)").fit(sp.open(FIELD, samples="time")).explained_variance_,
    )
    with pytest.raises(
        ParameterError, match=r"feature_weight has shape \(4, 3\): expected \(3, 4\) \[lat, lon\] for u"
    ):
        sp.PCA(3, feature_weight=CELL.values.T).fit(sp.open(FIELD, samples="time"))


def test_weights_and_masks_of_fields_go_together(tmp_path: Path) -> None:
    FIELD.to_zarr(tmp_path / "field.zarr", consolidated=False)
    want = sp.PCA(3, feature_weight=CELL.values[OCEAN.values]).fit(FIELD.u.values[:, OCEAN.values])
    for data in (FIELD.u, tmp_path / "field.zarr"):
        array = "u" if isinstance(data, Path) else None
        for mask in (OCEAN, OCEAN[::-1].T, OCEAN.values, OCEAN.values.ravel()):
            table = sp.open(data, array=array, samples="time", mask=mask)
            for weight in (CELL, CELL[::-1], CELL.values):
                fitted = sp.PCA(3, feature_weight=weight).fit(table)
                np.testing.assert_allclose(fitted.explained_variance_, want.explained_variance_, rtol=1e-12)
    with pytest.raises(DataError, match="the coordinate lat of the features"):
        sp.open(FIELD.u, samples="time", mask=OCEAN.assign_coords(lat=LAT + 1))


def test_masks_of_named_features_are_found_by_their_names() -> None:
    used = pd.Series([True, False, True, True, False], COLUMNS)
    want = sp.PCA(2).fit(ROWS[:, used]).explained_variance_
    for mask in (used, used[::-1]):
        for table in (sp.open(CELLS, mask=mask), sp.open(ARRAY, mask=mask)):
            np.testing.assert_allclose(sp.PCA(2).fit(table).explained_variance_, want, rtol=1e-12)
        chosen = sp.fit_many({"a": sp.PCA(2)}, sp.open(FRAME), features={"a": mask})
        np.testing.assert_allclose(chosen["a"].explained_variance_, want, rtol=1e-12)


def test_landmarks_with_labels_are_refused() -> None:
    with pytest.raises(ParameterError, match="labelled landmarks"):
        sp.KernelPCA(2, sampling=FRAME[:10]).fit(FRAME)


# -- columns of covariates -----------------------------------------------------------------------------------------------------------

PAIR = ["nino", "soi"]
COVARIATES: dict[str, Callable[[np.ndarray, list[str]], Any]] = {
    "pandas": lambda values, names: pd.DataFrame(values, columns=names),
    "polars": lambda values, names: pl.DataFrame(values, schema=names),
    "pyarrow": lambda values, names: pa.table(dict(zip(names, values.T, strict=True))),
    "DataArray": lambda values, names: xr.DataArray(values, dims=("row", "index"), coords={"index": names}),
}


@pytest.mark.parametrize("kind", COVARIATES)
def test_covariates_of_new_rows_are_found_by_their_names(kind: str, tmp_path: Path) -> None:
    make, swapped = COVARIATES[kind], PAIR[::-1]
    pca = sp.PCA(3, remove={"covariates": make(SLOPE, PAIR)}).fit(ROWS)
    pca.save(tmp_path / "model.zarr")
    new, slope = ROWS[:7] + 1, SLOPE[:7] * 2
    design = np.c_[np.ones(N), SLOPE]
    left = new - np.c_[np.ones(7), slope] @ np.linalg.lstsq(design, ROWS, rcond=None)[0]
    want = left @ pca.components_.T
    for model in (pca, sp.load(tmp_path / "model.zarr"), copy.deepcopy(pca)):
        for given in (make(slope, PAIR), make(slope[:, ::-1], swapped), slope):
            np.testing.assert_allclose(model.transform(new, remove={"covariates": given}), want, atol=1e-12)
            back = model.inverse_transform(want, remove={"covariates": given})
            np.testing.assert_allclose(back, new - left + want @ pca.components_, atol=1e-12)
            errors = model.score_samples(new, remove={"covariates": given})
            np.testing.assert_allclose(errors, model.score_samples(new, remove={"covariates": slope}), rtol=1e-12)
        with pytest.raises(ParameterError, match="covariates has the labels nino, other, which are not those of the"):
            model.transform(new, remove={"covariates": make(slope, ["nino", "other"])})
        with pytest.raises(ParameterError, match="1 covariates for each row: the fit had 2"):
            model.transform(new, remove={"covariates": make(slope[:, :1], ["nino"])})


def test_covariates_with_names_of_rows_and_columns() -> None:
    labelled = {form: xr.DataArray(SLOPE, {"row": NAMES, "index": PAIR}) for form in ("plain", "transposed")}
    labelled["transposed"] = labelled["transposed"][::-1, ::-1].T
    frame = pd.DataFrame(SLOPE, NAMES, PAIR)
    pca = sp.PCA(3, remove={"covariates": frame}).fit(ARRAY)
    want = np.asarray(pca.transform(ARRAY))
    for given in (*labelled.values(), frame.iloc[::-1, ::-1]):
        scores = pca.transform(ARRAY + 0.0, remove={"covariates": given})
        np.testing.assert_array_equal(scores, want)
        models = sp.fit_many({"a": sp.PCA(3, remove={"covariates": given})}, ARRAY)
        for other in (frame, labelled["transposed"]):
            scores = models["a"].transform(ARRAY, remove={"covariates": other})
            np.testing.assert_allclose(scores, want, atol=1e-12)


def test_names_of_covariates_that_the_fit_did_not_have_are_refused() -> None:
    pca = sp.PCA(3, remove={"covariates": SLOPE}).fit(ROWS)
    want = pca.transform(ROWS)
    for given in (pd.DataFrame(SLOPE), xr.DataArray(SLOPE)):
        np.testing.assert_array_equal(pca.transform(ROWS, remove={"covariates": given}), want)
    for make in COVARIATES.values():
        with pytest.raises(
            ParameterError, match=r"nino, soi, but the columns of the fit have none .* give \.to_numpy\(\)"
        ):
            pca.transform(ROWS, remove={"covariates": make(SLOPE, PAIR)})
    one = sp.PCA(3, remove={"covariates": pd.Series(SLOPE[:, 0], name="nino")}).fit(ROWS)
    want = one.transform(ROWS)
    np.testing.assert_array_equal(one.transform(ROWS, remove={"covariates": pd.Series(SLOPE[:, 0])}), want)


def test_models_saved_without_names_of_covariates_load(tmp_path: Path) -> None:
    pca = sp.PCA(3, remove={"covariates": pd.DataFrame(SLOPE, columns=PAIR)}).fit(ROWS)
    pca.save(tmp_path / "model.zarr")
    path = tmp_path / "model.zarr" / "zarr.json"
    written = json.loads(path.read_text())
    del written["attributes"]["removal"]["covariate_names"], written["attributes"]["seal"]
    path.write_text(json.dumps(written))
    older = sp.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(older.transform(ROWS + 1, remove={"covariates": SLOPE}).shape, (N, 3))
    with pytest.raises(ParameterError, match="the columns of the fit have none"):
        older.transform(ROWS + 1, remove={"covariates": pd.DataFrame(SLOPE, columns=PAIR)})
