"""Some samples of a table: `where` by a condition or a mask, against xarray, pandas and the SVD of numpy; scores keep their places."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from scipy.sparse import csr_array

import streampca as sp
from streampca.errors import ChangedInputError, DataError, NotAvailableError, ParameterError
from tests.facade import blocks_of, verify_run

pytestmark = [pytest.mark.numerical, pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3")]
xr, pd = pytest.importorskip("xarray"), pytest.importorskip("pandas")
N, D = 210, 6
TIME = pd.date_range("1990-01-01", periods=N, freq="7D") + pd.Timedelta("6h")
ROWS = np.random.default_rng(0).normal(size=(N, D)) * np.arange(6, 0, -1) + 3
KIND = np.array(["land", "sea", "ice"])[np.arange(N) % 3]
LEVEL = np.where(np.arange(N) % 10 == 0, np.nan, np.arange(N) / 7)
FIELD = xr.DataArray(
    ROWS.reshape(N, 2, 3),
    dims=("time", "y", "x"),
    coords={
        "time": TIME,
        "kind": ("time", KIND),
        "level": ("time", LEVEL),
        "good": ("time", np.arange(N) % 4 > 0),
    },
    name="v",
)


def svd(rows: NDArray[Any], k: int = 3) -> NDArray[Any]:
    """Return the leading variances of rows."""
    values: NDArray[Any] = np.linalg.svd(rows - rows.mean(0), compute_uv=False)[:k] ** 2 / (len(rows) - 1)
    return values


def written(path: Path, name: str) -> NDArray[Any]:
    """Return an array of a zarr group."""
    values: NDArray[Any] = zarr.open_array(path / name, mode="r")[...]
    return values


def check(table: Any, keep: NDArray[Any], rows: NDArray[Any] = ROWS, tolerance: float = 1e-12) -> Any:
    """Assert that a fit is that of the rows `keep`, and that scores and rows have the places of all; return it."""
    pca, chosen = sp.PCA(3).fit(table), rows[keep]
    assert table.shape == chosen.shape
    assert pca.n_samples_seen_ == keep.sum()
    np.testing.assert_allclose(pca.mean_, chosen.mean(0), rtol=0, atol=tolerance * np.abs(chosen).max())
    np.testing.assert_allclose(pca.explained_variance_, svd(chosen), rtol=tolerance)
    scores = np.asarray(pca.transform(table)).reshape(len(keep), 3)
    assert np.array_equal(np.isnan(scores).all(axis=1), ~keep)
    expected = (chosen - chosen.mean(0)) @ pca.components_.T
    np.testing.assert_allclose(scores[keep], expected, rtol=0, atol=tolerance * np.abs(expected).max())
    back = np.asarray(pca.inverse_transform(scores))
    assert np.array_equal(np.isnan(back).all(axis=1), ~keep)
    np.testing.assert_allclose(back[keep], expected @ pca.components_ + chosen.mean(0), rtol=0, atol=1e-10)
    return pca


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a zarr group with the field and its coordinates along time."""
    path = tmp_path_factory.mktemp("where") / "field.zarr"
    FIELD.reset_coords().drop_encoding().chunk({"time": 20}).to_zarr(path, zarr_format=3, consolidated=False)
    return path


SELECTED = FIELD.time.dt
CONDITIONS = {
    "time.season == 'DJF'": SELECTED.season == "DJF",
    "time.season in ['DJF', 'MAM'] and not time.month == 2": SELECTED.season.isin(["DJF", "MAM"])
    & (SELECTED.month != 2),
    "(time.year > 1990) & ~(time.month <= 6) | (time.hour != 6)": (SELECTED.year > 1990) & (SELECTED.month > 6),
    "1991 <= time.year < 1993": (SELECTED.year >= 1991) & (SELECTED.year < 1993),
    "time == '1991'": xr.zeros_like(FIELD.time, bool) | (SELECTED.year == 1991),
    "time >= '1991-03' and '1992-02' >= time": FIELD.time.isin(FIELD.time.sel(time=slice("1991-03", "1992-02"))),
    "time > '1991-03-06T05:59'": FIELD.time > np.datetime64("1991-03-06T05:59"),
    "kind == 'sea'": FIELD.kind == "sea",
    "kind not in ('sea', \"ice\")": FIELD.kind == "land",
    "level > 3.5": FIELD.level > 3.5,
    "level != 0 and level >= -1e3": FIELD.level.notnull() & (FIELD.level != 0),
    "good": FIELD.good,
    "not good or `kind` == 'ice'": ~FIELD.good | (FIELD.kind == "ice"),
    "good == True": FIELD.good,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_chooses_the_samples_that_xarray_selects(store: Path, condition: str) -> None:
    keep = np.asarray(CONDITIONS[condition])
    assert 3 < keep.sum() < N
    pca = check(sp.open(store, array="v", samples="time", where=condition), keep)
    whole = pca.transform(store)  # to which the condition of the fit applies, too
    assert np.array_equal(np.isnan(np.asarray(whole)).all(axis=1), ~keep)


def tables(path: Path, keep: NDArray[Any]) -> dict[str, Any]:
    """Return tables of all kinds that hold the rows, with what chooses those of `keep`."""
    import anndata

    np.save(path / "mask.npy", keep)
    np.save(path / "x.npy", ROWS)
    np.save(path / "a.npy", ROWS[:100])
    np.save(path / "b.npy", ROWS[100:])
    frame = pd.DataFrame(ROWS, columns=list("abcdef")).assign(kind=KIND, **{"a level": LEVEL})
    frame.to_parquet(path / "x.parquet", row_group_size=30)
    cells = anndata.AnnData(
        ROWS.astype("f8"), obs=pd.DataFrame({"kind": pd.Categorical(KIND)}, index=[f"c{i}" for i in range(N)])
    )
    cells.write_h5ad(path / "x.h5ad")
    FIELD.reset_coords().to_netcdf(path / "x.nc", engine="h5netcdf") if _has("h5netcdf") else None
    zarr.create_array(path / "x.zarr", shape=ROWS.shape, chunks=(20, 4), dtype="f8")[:] = ROWS
    zarr.create_array(path / "t.zarr", shape=ROWS.T.shape, chunks=(2, 50), dtype="f8")[:] = ROWS.T
    features, text = list("abcdef"), "kind == 'sea'"
    made = {
        "numpy": sp.open(ROWS, where=keep),
        "list": sp.open(ROWS, where=keep.tolist()),
        "sparse": sp.open(csr_array(ROWS), where=keep),
        "dask": sp.open(pytest.importorskip("dask.array").from_array(ROWS, chunks=(40, 6)), where=keep.astype("i8")),
        "npy": sp.open(path / "x.npy", where=path / "mask.npy"),
        "npy files": sp.open([path / "a.npy", path / "b.npy"], where=str(path / "mask.npy")),
        "frame": sp.open(frame, columns=features, where=text),
        "frame, two conditions": sp.open(
            frame, columns=features, where=text + " and (`a level` > 0 or not `a level` > 0)"
        ),
        "parquet": sp.open(path / "x.parquet", columns=features, where=text),
        "h5ad": sp.open(path / "x.h5ad", where=text),
        "anndata": sp.open(cells, where=text),
        "zarr": sp.open(path / "x.zarr", where=keep),
        "features first": sp.open(path / "t.zarr", orientation="features_first", where=keep),
        "DataArray": sp.open(FIELD, samples="time", where=text),
        "lazy DataArray": sp.open(FIELD.chunk({"time": 33}), samples="time", where=FIELD.kind == "sea"),
        "reversed mask": sp.open(FIELD, samples="time", where=(FIELD.kind == "sea")[::-1]),
        "twice": sp.open(sp.open(FIELD, samples="time", where="kind != 'ice'"), where="kind != 'land'"),
    }
    if _has("h5netcdf"):
        made["netcdf"] = sp.open(path / "x.nc", array="v", samples="time", where=text)
    return made


def _has(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def test_every_kind_of_data_takes_it(tmp_path: Path) -> None:
    keep = KIND == "sea"
    for name, table in tables(tmp_path, keep).items():
        try:
            check(table, keep, tolerance=1e-11)
        except Exception as error:
            raise AssertionError(name) from error


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch"])
def test_every_solver_takes_it_and_writes_scores_at_their_places(solver: Any, store: Path, tmp_path: Path) -> None:
    keep = np.asarray(SELECTED.season == "DJF")
    table = sp.open(store, array="v", samples="time", where="time.season == 'DJF'")
    pca = sp.PCA(3, solver=solver).fit(table)
    np.testing.assert_allclose(pca.explained_variance_, svd(ROWS[keep]), rtol=1e-9)
    scores = np.asarray(pca.transform(table))
    for rows in (1, 7, 40):
        with blocks_of(rows):
            pca.transform_to(table, tmp_path / "s.zarr", overwrite=True, diagnostics=True)
        np.testing.assert_allclose(written(tmp_path / "s.zarr", "scores"), scores, rtol=0, atol=1e-12)
        assert np.array_equal(np.isnan(written(tmp_path / "s.zarr", "t2")), ~keep)
        assert np.array_equal(written(tmp_path / "s.zarr", "time"), FIELD.time.values.astype("M8[us]").astype("i8"))
    pca.inverse_transform_to(tmp_path / "s.zarr", tmp_path / "r.zarr")
    back = written(tmp_path / "r.zarr", "v").reshape(N, D)
    np.testing.assert_allclose(back, np.asarray(pca.inverse_transform(scores)), rtol=0, atol=1e-10)


def test_the_bits_are_those_of_the_rows_by_themselves(tmp_path: Path) -> None:
    keep = np.random.default_rng(1).random(N) < 0.4
    zarr.create_array(tmp_path / "x.zarr", shape=ROWS.shape, chunks=(20, 6), dtype="f8")[:] = ROWS
    table = sp.open(tmp_path / "x.zarr", where=keep)
    assert np.array_equal(table.read(0, keep.sum())[0], ROWS[keep])
    assert np.array_equal(table.read(11, 50)[0], ROWS[keep][11:50])
    assert np.array_equal(table.to_dask(rows_per_block=9).compute(), ROWS[keep])
    alone, chosen = sp.PCA(3).fit(ROWS[keep]), sp.PCA(3).fit(table)
    assert np.array_equal(alone.components_, chosen.components_)
    assert np.array_equal(alone.explained_variance_, chosen.explained_variance_)


def test_only_chunks_with_chosen_samples_are_read(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(1000, 2000))
    for name, chunks in (("rows", (10, 2000)), ("columns", (10, 500))):
        array = zarr.create_array(tmp_path / name, shape=rows.shape, chunks=chunks, dtype="f8", filters=None)
        array[:] = rows
        keep = np.zeros(1000, dtype=bool)
        keep[[3, 5, 200, 201, 202, 999]] = True
        for gone in (1, 19, 21, 50, 98):
            shutil.rmtree(tmp_path / name / "c" / str(gone))  # of which no sample is used
        table = sp.open(tmp_path / name, where=keep, missing_chunks="fill")
        with pytest.raises(DataError, match="missing"):
            sp.PCA(2).fit(sp.open(tmp_path / name))
        read, count = table.read(0, 6)
        assert np.array_equal(read, rows[keep])
        assert count.bytes == 3 * 10 * 2000 * 8
        pca = sp.PCA(2).fit(table)
        assert pca.bytes_read_ == pca.n_passes_ * count.bytes
        assert table.reads_of(0, 6) == count.bytes


def test_two_sample_dimensions_are_chosen_by_either(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(30, 4, 5)) * np.arange(1, 6)
    ensemble = xr.DataArray(
        values, dims=("time", "member", "x"), coords={"time": TIME[:30], "member": list("abcd")}, name="v"
    )
    ensemble.to_zarr(tmp_path / "e.zarr", consolidated=False)
    table = sp.open(
        tmp_path / "e.zarr", array="v", samples=["time", "member"], where="member in ['a', 'd'] and time.month != 3"
    )
    keep = np.asarray(ensemble.member.isin(["a", "d"]) & (ensemble.time.dt.month != 3)).T
    assert keep.shape == (30, 4)
    pca = check(table, keep.ravel(), values.reshape(120, 5))
    assert pca.transform(table).dims == ("time", "member", "mode")
    again = np.asarray(pca.transform(tmp_path / "e.zarr"))
    assert np.array_equal(np.isnan(again).all(axis=1), ~keep.ravel())
    assert np.array_equal(sp.PCA(2).fit(sp.open(ensemble, samples=["time", "member"], where=keep)).mean_, pca.mean_)
    groups = sp.PCA(2).fit_groups(table, "member")
    np.testing.assert_allclose(groups["d"].mean_, values[:, 3][keep[:, 3]].mean(0), atol=1e-13)


def test_values_of_rows_may_be_those_of_all_samples(store: Path) -> None:
    keep = np.asarray(SELECTED.season == "DJF")
    table, rows = sp.open(store, array="v", samples="time", where="time.season == 'DJF'"), ROWS[keep]
    weight = np.random.default_rng(0).random(N) + 0.1
    expected = sp.PCA(2).fit(rows, sample_weight=weight[keep]).explained_variance_
    for given in (weight, weight[keep], xr.DataArray(weight, dims="time", coords={"time": TIME})[::-1]):
        assert np.array_equal(sp.PCA(2).fit(table, sample_weight=given).explained_variance_, expected)
    with pytest.raises(ParameterError, match="sample_weight"):
        sp.PCA(2).fit(table, sample_weight=weight[:-1])
    labels = np.arange(N) % 3
    models = sp.PCA(2).fit_groups(table, labels)
    np.testing.assert_allclose(models[1].explained_variance_, svd(ROWS[keep & (labels == 1)], 2), rtol=1e-12)
    months = sp.PCA(2).fit_groups(table, "time.month")
    np.testing.assert_allclose(months[12].mean_, ROWS[np.asarray(SELECTED.month == 12)].mean(0), atol=1e-12)


def test_what_is_removed_is_that_of_the_chosen_samples(store: Path, tmp_path: Path) -> None:
    keep = np.asarray(SELECTED.season == "DJF")
    table, months = sp.open(store, array="v", samples="time", where="time.season == 'DJF'"), SELECTED.month.values
    days = (TIME - TIME[0]).days.to_numpy()
    covariate = np.random.default_rng(3).normal(size=N)
    design = np.column_stack([*(months == m for m in (12, 1, 2)), days / 1000, covariate])[keep].astype(float)
    fitted = design @ np.linalg.lstsq(design, ROWS[keep])[0]
    remove = {"groups": "time.month", "trend": 1, "covariates": covariate}
    pca = sp.PCA(D, remove=remove).fit(table)
    spectrum = np.linalg.svd(ROWS[keep] - fitted, compute_uv=False) ** 2
    np.testing.assert_allclose(pca.explained_variance_ / pca.explained_variance_[0], spectrum / spectrum[0], rtol=1e-10)
    scores = pca.transform(table).compute()
    expected = (ROWS[keep] - fitted) @ pca.components_.T
    np.testing.assert_allclose(scores.values[keep], expected, rtol=0, atol=1e-10)
    back = pca.inverse_transform(scores)
    np.testing.assert_allclose(back.values.reshape(N, D)[keep], ROWS[keep], rtol=0, atol=1e-10)
    assert np.isnan(back.values[~keep]).all()
    pca.transform_to(store, tmp_path / "s.zarr", remove={"covariates": covariate})  # months of July were never fitted
    pca.inverse_transform_to(tmp_path / "s.zarr", tmp_path / "r.zarr", remove={"covariates": covariate})
    written_back = written(tmp_path / "r.zarr", "v").reshape(N, D)
    np.testing.assert_allclose(written_back, back.values.reshape(N, D), rtol=0, atol=1e-10)


def test_windows_hold_consecutive_samples_of_the_table(tmp_path: Path) -> None:
    keep = np.ones(N, dtype=bool)
    keep[[50, 51, 120]] = False
    starts = np.array([s for s in range(N - 3) if keep[s : s + 4].all()])
    for data in (ROWS, FIELD):
        named = {} if data is ROWS else {"samples": "time"}
        table = sp.open(data, where=keep, lags=4, **named)
        expected = np.hstack([ROWS[starts + lag] for lag in range(4)])
        assert np.array_equal(table.read(0, len(starts))[0], expected)
    with pytest.raises(ParameterError, match="no run of its"):
        sp.open(ROWS, where=np.arange(N) % 2 == 0, lags=2)


def test_other_data_get_the_condition_and_not_the_mask(store: Path, tmp_path: Path) -> None:
    later = FIELD.assign_coords(time=TIME + pd.Timedelta("180D"))
    by_condition = sp.PCA(2).fit(sp.open(store, array="v", samples="time", where="time.season == 'DJF'"))
    by_mask = sp.PCA(2).fit(sp.open(store, array="v", samples="time", where=np.asarray(SELECTED.season == "DJF")))
    by_condition.save(tmp_path / "m.zarr")
    for pca in (by_condition, sp.load(tmp_path / "m.zarr")):
        scores = pca.transform(later)
        assert np.array_equal(np.isnan(scores.values).all(axis=1), np.asarray(later.time.dt.season != "DJF"))
        assert not np.isnan(np.asarray(pca.transform(sp.open(later, samples="time")))).any()  # of every sample
    assert not np.isnan(by_mask.transform(later).values).any()
    np.testing.assert_allclose(by_mask.explained_variance_, by_condition.explained_variance_, rtol=1e-14)
    with pytest.raises(ParameterError, match=r"where=.*no sample coordinate or column 'time.season'"):
        by_condition.transform(FIELD.drop_vars("time"))


def test_kernel_pca_and_partial_fit_take_it(store: Path) -> None:
    keep = np.asarray(SELECTED.season == "DJF")
    table = sp.open(store, array="v", samples="time", where="time.season == 'DJF'")
    chosen, alone = (sp.KernelPCA(2, gamma=0.02, fit_inverse_transform=True).fit(each) for each in (table, ROWS[keep]))
    scores = np.asarray(chosen.transform(table))
    np.testing.assert_allclose(np.abs(scores[keep]), np.abs(alone.transform(ROWS[keep])), atol=1e-9)
    back = np.asarray(chosen.inverse_transform(scores))
    assert np.array_equal(np.isnan(back).all(axis=1), ~keep)
    grown = (
        sp.PCA(2)
        .partial_fit(table)
        .partial_fit(sp.open(store, array="v", samples="time", where="time.season == 'JJA'"))
    )
    both = np.concatenate([ROWS[keep], ROWS[np.asarray(SELECTED.season == "JJA")]])
    np.testing.assert_allclose(grown.explained_variance_, svd(both, 2), rtol=1e-12)


def test_another_mask_is_another_table(store: Path) -> None:
    opened = [
        sp.open(store, array="v", samples="time", where=where) for where in ("good", "not good", FIELD.good.values)
    ]
    assert opened[0].fingerprint == opened[2].fingerprint != opened[1].fingerprint
    text = str(opened[0])
    assert "where" in text
    assert f"good: {int(FIELD.good.sum())} of {N} samples" in text
    assert any("samples are used, where good" in note for note in sp.PCA(2).plan(opened[0]).notes)


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ("time.season = 'DJF'", ParameterError, "is not a condition, from character 13 on"),
        ("time.season == 'DJF", ParameterError, "is not a condition"),
        ("tme.season == 'DJF'", ParameterError, "no sample coordinate or column 'tme.season'.*did you mean 'time'"),
        ("time.week == 3", ParameterError, "time. followed by one of month, season, year, dayofyear, hour"),
        ("time.season == 3", ParameterError, "compares text with 3, where text in quotes is expected"),
        ("level == 'a'", ParameterError, "compares numbers .* with 'a', where a number is expected"),
        ("time > 3", ParameterError, "compares times with 3"),
        ("time > 'then'", ParameterError, r"'then'.* \(character 8\) is not a time"),
        ("kind in 'sea'", ParameterError, "is not a list"),
        ("kind", ParameterError, "expected truth values"),
        ("level == kind", ParameterError, "compares values of the types"),
        ("1 < 2", ParameterError, "compares nothing"),
        ("good and len(kind) > 2", ParameterError, r"'len\(kind\) > 2' \(character 10\) compares nothing"),
        ("good and level > len(kind)", ParameterError, r"'len\(kind\)' \(character 18\) is neither"),
        ("__import__('os').getcwd()", ParameterError, "is not known"),
        ("level > level + 1", ParameterError, "'level . 1'.* is neither"),
        ("(" * 400 + "good" + ")" * 400, ParameterError, "is not a condition"),
        ("level > 1e9", DataError, "leaves out all 210 samples"),
        (np.zeros(N, bool), DataError, "leaves out all 210 samples"),
        (np.ones(N - 1, bool), ParameterError, r"shape \(209,\): expected one truth value for each of the 210 samples"),
        (np.arange(N), ParameterError, "expected truth values.*for numbers of rows"),
        (np.full(N, "a"), ParameterError, "expected truth values"),
        ("nothere.npy", DataError, "nothere.npy"),
    ],
)
def test_errors_name_what_was_found(store: Path, where: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=f"(?s).*where.*{said}"):
        sp.open(store, array="v", samples="time", where=where)


def test_a_feature_is_no_condition(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS, columns=list("abcdef"))
    frame.to_parquet(tmp_path / "x.parquet")
    for data in (frame, tmp_path / "x.parquet"):
        with pytest.raises(ParameterError, match="would be a feature, too"):
            sp.open(data, where="a > 0")


def test_nulls_of_a_column_hold_no_condition(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=list("abc"))
    frame["kind"] = pd.array(rng.choice(["x", "y", None], 60), dtype="string")
    frame["size"] = pd.array(rng.choice([1, 2, pd.NA], 60), dtype="Int64")
    frame["day"] = pd.to_datetime(rng.choice(["2001-01-01", "2002-01-01", None], 60))
    frame.iloc[:40].to_parquet(tmp_path / "x-1.parquet")
    frame.iloc[40:].assign(kind="x", size=2).to_parquet(tmp_path / "x-2.parquet")
    frame.iloc[40:, 3], frame.iloc[40:, 4] = "x", 2
    for where, wanted in (
        ("kind == 'x'", frame["kind"] == "x"),
        ("kind != 'x'", ~(frame["kind"] == "x").fillna(False)),
        ("size > 1", frame["size"] > 1),
        ("day >= '2001-06'", frame["day"] >= "2001-06-01"),
    ):
        table = sp.open(tmp_path, columns=list("abc"), where=where)
        assert table.shape[0] == int(wanted.fillna(False).sum())
        kept = frame.loc[wanted.fillna(False).to_numpy(dtype=bool), list("abc")]
        np.testing.assert_allclose(sp.PCA(1).fit(table).mean_, kept.mean(), rtol=1e-12)
    with pytest.raises(ParameterError, match="hold missing labels"):
        sp.PCA(1).fit_groups(sp.open(tmp_path, columns=list("abc")), "kind")


def test_two_tables_have_the_same_samples(store: Path) -> None:
    first = sp.open(store, array="v", samples="time", where="good")
    keep = np.zeros(N, dtype=bool)
    keep[: first.shape[0]] = True
    with pytest.raises(DataError, match="different samples by where"):
        sp.MCA(2).fit(first, sp.open(ROWS, where=keep))
    good = FIELD.good.values
    fit = sp.MCA(2).fit(first, sp.open(ROWS[:, :4], where=good))
    cross = (ROWS[good] - ROWS[good].mean(0)).T @ (ROWS[good, :4] - ROWS[good, :4].mean(0)) / (good.sum() - 1)
    np.testing.assert_allclose(fit.singular_values_, np.linalg.svd(cross, compute_uv=False)[:2], rtol=1e-12)


def test_a_run_is_updated_with_the_new_samples_that_fulfil_the_condition(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    FIELD[:140].to_dataset().drop_encoding().chunk({"time": 20}).to_zarr(path, consolidated=False)
    config = tmp_path / "c.yaml"
    text = (
        f"name: c\nsource: {{path: {path}, array: v, samples: time, where: CONDITION, labels: time.month}}\n"
        "model: {n_components: 3}\n"
        f"output: {{directory: {tmp_path}/run, state: true, diagnostics: true, reconstruction: true}}\n"
    )
    config.write_text(text.replace("CONDITION", "\"time.season in ['DJF', 'JJA']\""))
    keep = np.asarray(SELECTED.season.isin(["DJF", "JJA"]))
    directory = sp.run(config).directory
    for n in (140, N):
        if n > 140:
            FIELD[140:].to_dataset().drop_encoding().to_zarr(path, append_dim="time", consolidated=False)
            assert sp.update(directory).n_rows == keep[140:].sum()
        pca, chosen = sp.load(directory), ROWS[:n][keep[:n]]
        np.testing.assert_allclose(pca.explained_variance_, svd(chosen), rtol=1e-12)
        scores = written(directory / "scores.zarr", "scores")
        assert np.array_equal(np.isnan(scores).all(axis=1), ~keep[:n])
        np.testing.assert_allclose(scores[keep[:n]], (chosen - chosen.mean(0)) @ pca.components_.T, atol=1e-12)
        assert np.array_equal(np.isnan(written(directory / "scores.zarr", "q")), ~keep[:n])
        index = written(directory / "samples.zarr", "index")
        assert keep[index].all()
        assert np.array_equal(written(directory / "samples.zarr", "rows"), ROWS[index])
        verify_run(directory).require()
    FIELD.assign_coords(time=TIME + pd.Timedelta("90D")).to_dataset().drop_encoding().chunk({"time": 20}).to_zarr(
        path, mode="w", consolidated=False
    )
    with pytest.raises(ChangedInputError):
        sp.update(directory)
    np.save(tmp_path / "mask.npy", keep)
    config.write_text(text.replace("CONDITION", str(tmp_path / "mask.npy")))
    by_mask = sp.run(config, overrides=["output.overwrite=true", "output.reconstruction=false"])
    np.testing.assert_allclose(by_mask.model.explained_variance_, svd(ROWS[keep]), rtol=1e-12)
    FIELD[:10].assign_coords(time=TIME[:10] + pd.Timedelta("9999D")).to_dataset().drop_encoding().to_zarr(
        path, append_dim="time", consolidated=False
    )
    np.save(tmp_path / "mask.npy", np.append(keep, np.ones(10, dtype=bool)))
    with pytest.raises(NotAvailableError, match="give a condition"):
        sp.update(by_mask.directory)


@pytest.mark.usefixtures("all_checkpoints")
def test_scores_of_a_stopped_run_are_gone_on_with(tmp_path: Path) -> None:
    keep = np.random.default_rng(1).random(N) < 0.4
    keep[60:150] = False  # chunks of scores without a sample
    zarr.create_array(tmp_path / "x.zarr", shape=ROWS.shape, chunks=(10, 6), dtype="f8")[:] = ROWS
    np.save(tmp_path / "mask.npy", keep)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"{{name: c, source: {{path: {tmp_path}/x.zarr, where: {tmp_path}/mask.npy}}, model: {{n_components: 2}}, "
        f"output: {{directory: {tmp_path}/run, report: false}}}}"
    )

    class _PowerCutError(Exception):
        pass

    def stop_late(step: Any) -> None:
        if step.phase == "scores" and step.rows > 20:
            raise _PowerCutError

    with blocks_of(5):
        with pytest.raises(_PowerCutError):
            sp.run(config, progress=stop_late)
        steps: list[Any] = []
        run = sp.run(config, resume=True, progress=steps.append)
    assert next(step for step in steps if step.phase == "scores").rows_before > 0
    scores, chosen = written(run.directory / "scores.zarr", "scores"), ROWS[keep]
    assert np.array_equal(np.isnan(scores).all(axis=1), ~keep)
    expected = (chosen - chosen.mean(0)) @ run.model.components_.T
    np.testing.assert_allclose(scores[keep], expected, rtol=0, atol=1e-12)
