"""Labels of rows are found by name wherever a table has them: columns beside the features, and coordinates of any name."""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import scipy.sparse
import xarray as xr
import zarr

import streampca as sp
from streampca.errors import DataError, NotAvailableError, OutputError, ParameterError

N, D = 300, 5
ROWS = np.random.default_rng(0).normal(size=(N, D)) @ np.diag([3.0, 2.0, 1.0, 0.5, 0.2])
KIND = np.array(["late", "early", "mid"])[np.arange(N) * 7 % 3]
FEATURES = [f"f{i}" for i in range(D)]
DATES = np.datetime64("2001-01-01", "ns") + np.arange(N).astype("timedelta64[D]")


def cells(sparse: bool = False) -> anndata.AnnData:
    obs = pd.DataFrame(
        {"kind": pd.Categorical(KIND), "batch": pd.array(np.arange(N) % 2, dtype="Int64")},
        index=[f"c{i}" for i in range(N)],
    )
    return anndata.AnnData(scipy.sparse.csr_matrix(ROWS) if sparse else ROWS.copy(), obs=obs)


def written(data: anndata.AnnData, path: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anndata tells of defaults that will change
        data.write_zarr(path) if path.suffix == ".zarr" else data.write_h5ad(path)
    return str(path)


def field() -> xr.Dataset:
    values = ROWS.reshape(N // 3, 3, D)
    coords = {
        "time": DATES[: N // 3],
        "kind": (("time", "place"), KIND.reshape(N // 3, 3)),
        "year": ("time", 2000 + np.arange(N // 3) % 4),
    }
    return xr.Dataset({"x": (("time", "place", "feature"), values)}, coords=coords)


def stored(path: Path, zarr_format: int) -> Path:
    """Write rows with a label and a date for each."""
    dataset = xr.Dataset(
        {"x": (("row", "feature"), ROWS)},
        coords={"kind": ("row", KIND.astype("U8")), "date": ("row", DATES), "width": ("feature", np.arange(D))},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types without a specification
        dataset.to_zarr(path, zarr_format=zarr_format, consolidated=False)
    return path


def frame() -> pd.DataFrame:
    return pd.DataFrame(ROWS, columns=FEATURES).assign(kind=KIND, date=DATES)


def parquet_file(path: Path) -> Path:
    parquet.write_table(pa.table({**dict(zip(FEATURES, ROWS.T, strict=True)), "kind": KIND, "date": DATES}), path)
    return path


TABLES: dict[str, Callable[[Path], Any]] = {
    "AnnData": lambda path: cells(),
    "sparse AnnData": lambda path: cells(sparse=True),
    "backed AnnData": lambda path: anndata.read_h5ad(written(cells(), path / "x.h5ad"), backed="r"),
    "AnnData store": lambda path: written(cells(), path / "x.zarr"),
    "sparse AnnData store": lambda path: written(cells(sparse=True), path / "x.zarr"),
    "table of an AnnData store": lambda path: sp.open(written(cells(), path / "x.zarr")),
    "h5ad": lambda path: written(cells(), path / "x.h5ad"),
    "table of a Dataset": lambda path: sp.open(field(), samples=["time", "place"]),
    "table of a DataArray": lambda path: sp.open(field().x, samples=["time", "place"]),
    "lazy DataArray": lambda path: sp.open(field().x.chunk({"time": 20}), samples=["time", "place"]),
    "stacked DataArray": lambda path: field().x.stack(row=("time", "place")).transpose("row", "feature"),
    "Dataset with labels as variable": lambda path: xr.Dataset(
        {"x": (("row", "feature"), ROWS), "kind": ("row", KIND)}
    ),
    "store of format 2": lambda path: stored(path / "x.zarr", 2),
    "store of format 3": lambda path: stored(path / "x.zarr", 3),
    "array named in a store": lambda path: sp.open(stored(path / "x.zarr", 3), array="x"),
    "opened Dataset": lambda path: xr.open_zarr(stored(path / "x.zarr", 3), consolidated=False),
    "pandas": lambda path: frame().drop(columns="date"),
    "polars": lambda path: pl.from_pandas(frame().drop(columns="date")),
    "lazy polars": lambda path: pl.from_pandas(frame().drop(columns="date")).lazy(),
    "table of a data frame": lambda path: sp.open(frame(), columns=FEATURES),
    "table of a lazy frame": lambda path: sp.open(pl.from_pandas(frame()).lazy(), columns=FEATURES),
    "Parquet": lambda path: parquet_without_dates(path / "x.parquet"),
    "table of Parquet": lambda path: sp.open(parquet_file(path / "x.parquet"), columns=FEATURES),
}


def parquet_without_dates(path: Path) -> Path:
    parquet.write_table(parquet.read_table(parquet_file(path)).drop(["date"]), path)
    return path


def assert_models_of(models: Any, labels: np.ndarray) -> None:
    assert models.groups_ == tuple(np.unique(labels).tolist())
    for name in models.groups_:
        values = np.linalg.eigvalsh(np.cov(ROWS[labels == name], rowvar=False))[::-1][:2]
        np.testing.assert_allclose(models[name].explained_variance_, values, rtol=1e-10)
        assert models[name].n_features_in_ == D


@pytest.mark.parametrize("kind", TABLES)
def test_rows_are_divided_by_a_name(kind: str, tmp_path: Path) -> None:
    assert_models_of(sp.PCA(2).fit_groups(TABLES[kind](tmp_path), "kind"), KIND)


@pytest.mark.parametrize("kind", ["AnnData", "AnnData store", "h5ad"])
def test_cells_are_divided_by_nullable_integers(kind: str, tmp_path: Path) -> None:
    assert_models_of(sp.PCA(2).fit_groups(TABLES[kind](tmp_path), "batch"), np.arange(N) % 2)


def test_coordinates_of_some_sample_dimensions_hold_for_all_places_of_the_others() -> None:
    years = np.repeat(2000 + np.arange(N // 3) % 4, 3)
    assert_models_of(sp.PCA(2).fit_groups(sp.open(field(), samples=["time", "place"]), "year"), years)


@pytest.mark.parametrize(
    "kind", ["store of format 3", "opened Dataset", "table of a data frame", "frame", "table of Parquet", "file"]
)
def test_parts_of_times_in_a_column_divide_rows(kind: str, tmp_path: Path) -> None:
    more: dict[str, Callable[[Path], Any]] = {
        "frame": lambda path: frame().drop(columns="kind"),
        "file": lambda path: parquet_of_dates(path / "x.parquet"),
    }
    models = sp.PCA(2).fit_groups((TABLES | more)[kind](tmp_path), "date.month")
    assert_models_of(models, pd.DatetimeIndex(DATES).month.to_numpy())


HOURS = pd.date_range("2001-03-10", periods=N, freq="3h", tz="UTC", name="date")
ZONED: dict[str, Callable[[pd.DatetimeIndex, Path], Any]] = {
    "index": lambda times, path: pd.DataFrame(ROWS, times, FEATURES),
    "table of an index": lambda times, path: sp.open(pd.DataFrame(ROWS, times, FEATURES)),
    "table of a column": lambda times, path: sp.open(frame().assign(date=times), columns=FEATURES),
    "table of ids": lambda times, path: sp.open(frame().assign(date=times), columns=FEATURES, id_column="date"),
    "frame": lambda times, path: frame().drop(columns="kind").assign(date=times),
    "polars": lambda times, path: sp.open(pl.from_pandas(frame().assign(date=times)), columns=FEATURES),
    "ids of polars": lambda times, path: sp.open(
        pl.from_pandas(frame().assign(date=times)), columns=FEATURES, id_column="date"
    ),
    "DataArray": lambda times, path: xr.DataArray(ROWS, dims=("date", "feature"), coords={"date": times}),
    "Parquet": lambda times, path: zoned_file(times, path / "x.parquet"),
    "table of Parquet": lambda times, path: sp.open(zoned_file(times, path / "x.parquet"), columns=FEATURES),
}


def zoned_file(times: pd.DatetimeIndex, path: Path) -> Path:
    frame().drop(columns="kind").assign(date=times).to_parquet(path)
    return path


@pytest.mark.parametrize(
    ("kind", "zone"),
    [
        (kind, zone)
        for kind in ZONED
        for zone in ("Europe/Berlin", "America/St_Johns", "UTC", "+05:30")
        if "polars" not in kind or not zone.startswith("+")  # polars has zones with names only
    ],
)
def test_parts_of_times_with_a_zone_are_those_of_its_clocks(kind: str, zone: str, tmp_path: Path) -> None:
    times = HOURS.tz_convert(zone)
    for part in ("hour", "month"):
        models = sp.PCA(2).fit_groups(ZONED[kind](times, tmp_path), f"date.{part}")
        assert_models_of(models, getattr(times, part).to_numpy())


def test_times_with_a_zone_are_moments_for_trends_and_for_values_by_labels() -> None:
    there, here = HOURS.tz_convert("Europe/Berlin"), HOURS.tz_convert(None)
    trend = sp.PCA(2, remove={"trend": 1})
    want = trend.fit(pd.DataFrame(ROWS, here, FEATURES)).explained_variance_
    np.testing.assert_array_equal(trend.fit(pd.DataFrame(ROWS, there, FEATURES)).explained_variance_, want)
    weight = np.arange(1.0, N + 1)
    want = sp.PCA(2).fit(pd.DataFrame(ROWS, there, FEATURES), sample_weight=weight).explained_variance_
    given = pd.Series(weight, HOURS.tz_convert("Asia/Tokyo"))[::-1]
    fitted = sp.PCA(2).fit(pd.DataFrame(ROWS, there, FEATURES), sample_weight=given)
    np.testing.assert_array_equal(fitted.explained_variance_, want)


def test_an_index_of_times_without_a_name_is_called_time() -> None:
    for index in (pd.DatetimeIndex(DATES), pd.period_range("2001-01", periods=N, freq="M")):
        models = sp.PCA(2).fit_groups(pd.DataFrame(ROWS, index, FEATURES), "time.month")
        assert_models_of(models, index.month.to_numpy())
        removed = sp.PCA(2, remove={"groups": "time.month"}).fit(pd.DataFrame(ROWS, index, FEATURES))
        want = sp.PCA(2, remove={"groups": index.month.to_numpy()}).fit(ROWS)
        np.testing.assert_allclose(removed.explained_variance_, want.explained_variance_, rtol=1e-12)


def parquet_of_dates(path: Path) -> Path:
    parquet.write_table(parquet.read_table(parquet_file(path)).drop(["kind"]), path)
    return path


@pytest.mark.parametrize(
    "kind",
    [
        "AnnData",
        "AnnData store",
        "h5ad",
        "table of a Dataset",
        "lazy DataArray",
        "store of format 3",
        "opened Dataset",
        "table of a data frame",
        "table of Parquet",
    ],
)
def test_means_of_groups_are_removed_by_a_name(kind: str, tmp_path: Path) -> None:
    table = TABLES[kind](tmp_path)
    named = sp.PCA(2, remove={"groups": "kind"}).fit(table)
    means = {name: ROWS[name == KIND].mean(axis=0) for name in np.unique(KIND)}
    residuals = ROWS - np.array([means[name] for name in KIND])
    values = np.linalg.eigvalsh(residuals.T @ residuals)[::-1][:2]
    np.testing.assert_allclose(named.explained_variance_ / named.explained_variance_[0], values / values[0], rtol=1e-10)
    scores = np.asarray(named.transform(table)).reshape(N, 2)
    np.testing.assert_allclose(np.abs(scores), np.abs(residuals @ named.components_.T), atol=1e-10)


def test_rows_of_labelled_scores_have_what_was_removed_by_a_name() -> None:
    table = sp.open(field(), samples=["time", "place"])
    fitted = sp.PCA(D, remove={"groups": "kind"}).fit(table)
    scores = fitted.transform(field().x.isel(time=slice(10, 30)))
    rows = fitted.inverse_transform(scores.transpose("place", "time", "mode"))
    np.testing.assert_allclose(rows.transpose("time", "place", "feature").values, field().x.values[10:30], atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("AnnData", "obs_names, kind, batch"),
        ("AnnData store", "obs_names, kind, batch"),
        ("h5ad", "obs_names, kind, batch"),
        ("table of a Dataset", "time, kind, year"),
        ("store of format 3", "date, kind|kind, date"),
        ("table of a data frame", "kind, date"),
        ("table of Parquet", "kind, date"),
    ],
)
def test_a_name_that_no_column_has_is_an_error_with_those_there_are(kind: str, known: str, tmp_path: Path) -> None:
    table = TABLES[kind](tmp_path)
    for refused in (
        lambda: sp.PCA(2).fit_groups(table, "kinds"),
        lambda: sp.PCA(2, remove={"groups": "kinds"}).fit(table),
    ):
        with pytest.raises(ParameterError, match=rf"no sample coordinate or column 'kinds'; .*: ({known})\."):
            refused()


def test_a_coordinate_of_features_is_no_label_of_rows(tmp_path: Path) -> None:
    square = xr.Dataset({"x": (("row", "feature"), ROWS[:D])}, coords={"width": ("feature", np.arange(D) % 2)})
    square.to_zarr(tmp_path / "x.zarr", zarr_format=3, consolidated=False)
    for table in (sp.open(square.x), tmp_path / "x.zarr"):
        with pytest.raises(ParameterError, match="no sample coordinate or column 'width'"):
            sp.PCA(1).fit_groups(table, "width")


@pytest.mark.parametrize("kind", ["frame", "Parquet"])
def test_a_feature_of_a_table_is_no_label_of_its_rows(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({**dict(zip(FEATURES, ROWS.T, strict=True)), "part": np.arange(N) % 2}), path)
    given = path if kind == "Parquet" else pd.read_parquet(path)
    assert_models_of(sp.PCA(2).fit_groups(given, "part"), np.arange(N) % 2)
    with pytest.raises(ParameterError, match="this column would be a feature, too"):
        sp.PCA(2).fit_groups(sp.open(given), "part")


@pytest.mark.parametrize("kind", ["AnnData", "zarr", "h5ad"])
def test_cells_without_a_label_are_refused(kind: str, tmp_path: Path) -> None:
    data = cells()
    data.obs["kind"] = data.obs["kind"].where(np.arange(N) != 7)
    table = data if kind == "AnnData" else written(data, tmp_path / f"x.{kind}")
    with pytest.raises((DataError, ParameterError), match="missing"):
        sp.PCA(2).fit_groups(table, "kind")


def test_columns_of_backed_cells_are_those_of_the_object_and_not_of_its_file(tmp_path: Path) -> None:
    backed = anndata.read_h5ad(written(cells(), tmp_path / "x.h5ad"), backed="r")
    backed.obs["kind"] = pd.Categorical(np.roll(KIND, 1))
    backed.obs["part"] = np.arange(N) % 4
    backed.var["used"] = pd.array(np.arange(D) != 1, dtype="boolean")
    backed.layers["half"] = ROWS / 2
    backed.obs_names = [f"cell {i}" for i in range(N)]
    assert_models_of(sp.PCA(2).fit_groups(backed, "kind"), np.roll(KIND, 1))
    assert_models_of(sp.PCA(2).fit_groups(backed, "part"), np.arange(N) % 4)
    assert sp.open(backed).labels.sample_name(7) == "obs_names=cell 7"
    for layer, factor in ((None, 1.0), ("half", 0.5)):
        table = sp.open(backed, mask_var="used", layer=layer)
        np.testing.assert_array_equal(table.read(0, N)[0], factor * ROWS[:, np.arange(D) != 1])


def test_labels_of_a_lazy_frame_belong_to_the_rows_that_were_collected() -> None:
    whole, calls = pl.from_pandas(frame()), iter(range(10))

    def shuffled(rows: pl.DataFrame) -> pl.DataFrame:  # as group_by and joins may return their rows
        return rows.sample(fraction=1.0, shuffle=True, seed=next(calls))

    table = sp.open(whole.lazy().map_batches(shuffled, projection_pushdown=False), columns=FEATURES)
    for refused in (
        lambda: sp.PCA(2).fit_groups(table, "kind"),
        lambda: sp.PCA(2, remove={"groups": "kind"}).fit(table),
    ):
        with pytest.raises(DataError, match="'kind': the LazyFrame gives its rows in another order"):
            refused()


def test_labels_belong_to_the_rows_although_the_frame_is_sorted_in_place_later() -> None:
    whole = frame()
    table = sp.open(whole, columns=FEATURES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas 3.1 tells that this will be removed
        whole.sort_values("f3", inplace=True)
    assert_models_of(sp.PCA(2).fit_groups(table, "kind"), KIND)


def test_labels_of_another_type_than_those_of_the_fit_are_refused() -> None:
    labels: dict[str, Any] = {"int64": np.arange(N) % 3, "datetime64": DATES[np.arange(N) % 3], "<U5": KIND}
    fitted = {name: sp.PCA(2, remove={"groups": values}).fit(ROWS) for name, values in labels.items()}
    for one, other in itertools.permutations(labels, 2):
        with pytest.raises(ParameterError, match=rf"groups have the type {other}.*had the type {one}"):
            fitted[one].transform(ROWS[:10], remove={"groups": labels[other][:10]})


def test_sparse_rows_from_which_something_would_be_removed_are_refused() -> None:
    fitted = sp.PCA(2, remove={"trend": 1}).fit(ROWS)
    for rows in (scipy.sparse.csr_array(ROWS), sp.open(cells(sparse=True))):
        with pytest.raises(NotAvailableError, match="residuals of sparse rows are dense"):
            fitted.transform(rows, remove={"trend": np.arange(N)})


def test_missing_times_are_named_as_such() -> None:
    rows = xr.DataArray(
        ROWS, dims=("time", "feature"), coords={"time": np.where(np.arange(N) == 3, np.datetime64("NaT", "ns"), DATES)}
    )
    with pytest.raises(ParameterError, match=r"'time' of .* has missing times"):
        sp.PCA(2, remove={"groups": "time.month"}).fit(sp.open(rows, samples="time"))
    fitted = sp.PCA(2).fit(rows)
    np.testing.assert_allclose(fitted.transform(rows), fitted.transform(ROWS))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_packed_labels_and_coordinates_are_decoded(zarr_format: int, tmp_path: Path) -> None:
    part, place = 1.0 + np.arange(N) % 3 / 2, np.linspace(-60, 60, D)
    coords: dict[str, Any] = {
        "part": ("row", part),
        "feature": place,
        "gap": ("row", np.where(part == 2, np.nan, part)),
    }
    packed = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1}
    dataset = xr.Dataset({"x": (("row", "feature"), ROWS)}, coords=coords)
    plain = {"dtype": "i2", "_FillValue": -1}
    dataset["gap"] = dataset["gap"] * 2
    dataset["text"] = ("row", KIND.astype(object))
    dataset = dataset.set_coords(["gap", "text"])
    encoding: Any = {"part": packed, "feature": packed, "gap": plain}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types without a specification
        dataset.to_zarr(tmp_path / "x.zarr", zarr_format=zarr_format, consolidated=False, encoding=encoding)
    for table in (tmp_path / "x.zarr", xr.open_zarr(tmp_path / "x.zarr", consolidated=False)):
        assert_models_of(sp.PCA(2).fit_groups(table, "part"), part)
        assert_models_of(sp.PCA(2).fit_groups(table, "text"), KIND)
        with pytest.raises(ParameterError, match="labels hold missing labels"):
            sp.PCA(2).fit_groups(table, "gap")
        np.testing.assert_array_equal(sp.open(table).labels.along("feature"), place)


def test_what_is_no_array_is_no_label() -> None:
    with pytest.raises(ParameterError, match="labels are no array"):
        sp.PCA(2).fit_groups(ROWS, field().groupby("time.month"))


def test_the_index_of_a_data_frame_labels_its_rows() -> None:
    assert_models_of(sp.PCA(2).fit_groups(pd.DataFrame(ROWS, index=pd.Index(KIND, name="kind")), "kind"), KIND)
    rows = pd.DataFrame(ROWS, index=pd.MultiIndex.from_arrays([np.arange(N), KIND], names=["row", "kind"]))
    assert_models_of(sp.PCA(2).fit_groups(rows, "kind"), KIND)
    for times in ("date.month", "date.year"):
        given = frame().drop(columns="kind").set_index("date")
        part = getattr(given.index, times.removeprefix("date."))
        assert_models_of(sp.PCA(2).fit_groups(given, times), part.to_numpy())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (None, "second.parquet has no .*column kind, which .*first.parquet has"),
        (np.arange(N), "second.parquet: the .*column kind holds numbers, and that of .*first.parquet text"),
        (DATES, "second.parquet: the .*column kind holds times, and that of .*first.parquet text"),
    ],
)
def test_labels_of_several_files_are_all_there_and_of_one_type(other: Any, message: str, tmp_path: Path) -> None:
    features = dict(zip(FEATURES, ROWS.T, strict=True))
    parquet.write_table(pa.table({**features, "kind": KIND}), tmp_path / "first.parquet")
    parquet.write_table(pa.table(features | ({} if other is None else {"kind": other})), tmp_path / "second.parquet")
    for table in (tmp_path, sp.open(tmp_path, columns=FEATURES)):
        with pytest.raises(DataError, match=message):
            sp.PCA(2).fit_groups(table, "kind")


def test_columns_are_not_sent_to_workers(tmp_path: Path) -> None:
    table = sp.open(stored(tmp_path / "x.zarr", 3))
    assert table.sample_columns is not None
    assert pickle.loads(pickle.dumps(table)).sample_columns is None
    lazy = sp.open(cells())
    assert lazy.sample_columns is not None
    assert pickle.loads(pickle.dumps(lazy)).sample_columns is None


def test_labels_beside_a_missing_chunk_are_an_error(tmp_path: Path) -> None:
    path = stored(tmp_path / "x.zarr", 3)
    array: Any = zarr.create_array(path / "part", data=np.arange(N) % 2 + 1, chunks=(100,), dimension_names=("row",))
    assert_models_of(sp.PCA(2).fit_groups(path, "part"), array[:])
    (path / "part" / "c" / "1").unlink()
    with pytest.raises(DataError, match=r"labels='part': .*part.*missing_chunks: fill"):
        sp.PCA(2).fit_groups(path, "part")


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
def test_categories_as_anndata_wrote_them_before_version_0_8(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    written(cells(), path)
    root: Any = h5py.File(path, "r+") if suffix == "h5ad" else zarr.open_group(path, mode="r+", use_consolidated=False)
    obs, names = root["obs"], np.unique(KIND)
    del obs["kind"]
    codes = np.searchsorted(names, KIND).astype("i1")
    create = obs.create_dataset if suffix == "h5ad" else obs.create_array
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node, categories = create("kind", data=codes), create("__categories/kind", data=names.astype("S"))
        node.attrs["categories"] = categories.ref if suffix == "h5ad" else categories.name
        # zarr tells of both: texts of one byte per character, and consolidated metadata, have no specification in format 3
        root.flush() if suffix == "h5ad" else zarr.consolidate_metadata(path)
    assert_models_of(sp.PCA(2).fit_groups(str(path), "kind"), KIND)
    node[7] = -1
    if suffix == "h5ad":
        root.close()
    with pytest.raises(DataError, match=r"obs/kind of .* has 1 missing values"):
        sp.PCA(2).fit_groups(str(path), "kind")


class _PowerCutError(BaseException):
    """Stops a fit as a signal would."""


@pytest.mark.parametrize("label", ["kind", "row"])
def test_a_stopped_fit_does_not_go_on_with_other_labels(
    label: str, tmp_path: Path, all_checkpoints: None, blocks_of: Any
) -> None:
    blocks_of(50)
    path = tmp_path / "x.zarr"
    group = zarr.create_group(path)
    group.create_array("x", shape=(N, D), chunks=(50, D), dtype="f8", dimension_names=("row", "feature"))[:] = ROWS
    labels: Any = group.create_array(label, shape=(N,), chunks=(N,), dtype="i8", dimension_names=("row",))
    labels[:] = 1 + np.arange(N) % 3

    def stop_late(step: Any) -> None:
        if step.rows > N // 2:
            raise _PowerCutError

    pca = sp.PCA(2, solver="covariance", remove={"groups": label}, checkpoint=tmp_path / "kept", progress=stop_late)
    with pytest.raises(_PowerCutError):
        pca.fit(path)
    labels[:] = 1 + np.arange(N) % 4
    with pytest.raises(OutputError, match="groups of remove was"):
        pca.set_params(progress=None).fit(path)
    labels[:] = 1 + np.arange(N) % 3
    whole = sp.PCA(2, solver="covariance", remove={"groups": label}).fit(path)
    np.testing.assert_array_equal(pca.fit(path).components_, whole.components_)
