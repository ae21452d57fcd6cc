"""Codes of embeddings: decoded as numpy decodes them, by every reader, and alike by everything that reads new rows after a fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import tolerances
import zarr
from facade import run_command
from kinds import imputed

import streampca as sp
from streampca.errors import ChangedInputError, DataError, NotAvailableError, PackedDataError, ParameterError

N, D = 230, 7
RANDOM = np.random.default_rng(3)
CODES = np.clip(np.rint(RANDOM.normal(5, 40, (N, D)) * np.linspace(0.5, 1.5, D)), -127, 127).astype(np.int8)
CODES[[4, 99]], CODES[30, 2] = -128, -128
RAW = np.arange(-128, 128)
TABLE = np.where(RAW == -128, np.nan, np.sign(RAW) * np.abs(RAW / 127.5) ** 2)
SCALE = RANDOM.uniform(0.01, 2, N).astype("f4")
POWER = {"power": 2, "divisor": 127.5, "nodata": -128}
TABLED = np.where(CODES == -128, np.nan, np.sign(CODES) * np.abs(CODES / 127.5) ** 2)
SCALED = np.where(CODES == -128, np.nan, CODES * SCALE[:, None].astype("f8"))
WAYS: dict[str, tuple[dict[str, Any], Any]] = {
    "table": ({"table": TABLE}, TABLED),
    "table and nodata": ({"table": np.nan_to_num(TABLE).tolist(), "nodata": [-128]}, TABLED),
    "power": (POWER, TABLED),
    "scale": ({"scale": SCALE, "nodata": -128}, SCALED),
    "table and scale": ({"table": TABLE.astype("f4"), "scale": SCALE}, TABLED * SCALE[:, None]),
}


def zarr_of(place: Path, **options: Any) -> Path:
    group = zarr.create_group(place)
    group.create_array("codes", data=CODES, chunks=(50, 3), dimension_names=("row", "band"), **options)
    group.create_array("lut", data=TABLE, dimension_names=("code",))
    group.create_array("scale", data=SCALE, dimension_names=("row",))
    return place


def files_of(place: Path) -> str:
    for index, part in enumerate(np.array_split(CODES, 3)):
        np.save(place.with_name(f"part-{index}.npy"), part)
    return str(place.with_name("part-*.npy"))


def npy_of(place: Path, values: Any = CODES) -> Path:
    np.save(place.with_suffix(".npy"), values)
    return place.with_suffix(".npy")


def hdf5_of(place: Path) -> Path:
    with pytest.importorskip("h5py").File(place.with_suffix(".h5"), "w") as file:
        file["codes"] = CODES
    return place.with_suffix(".h5")


def xarray_of(place: Path) -> Any:
    return pytest.importorskip("xarray").DataArray(CODES, dims=("row", "band"), name="codes")


def parquet_of(place: Path, rows: slice = slice(None)) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    codes = pa.FixedSizeListArray.from_arrays(pa.array(CODES[rows].ravel()), D)
    pq.write_table(pa.table({"v": codes, "scale": pa.array(SCALE[rows])}), place.with_suffix(".parquet"))
    return place.with_suffix(".parquet")


class Masked:
    """A variable of a library that masks codes where it is indexed, and says the type that is stored."""

    shape, dtype, ndim = CODES.shape, CODES.dtype, 2

    def __getitem__(self, at: Any) -> Any:
        return np.ma.masked_equal(CODES[at], -128)


KINDS: dict[str, Any] = {
    "numpy": lambda place: (CODES, {}),
    "in Fortran order": lambda place: (np.asfortranarray(CODES), {}),
    "memory map": lambda place: (np.load(npy_of(place), mmap_mode="r"), {}),
    "Dask": lambda place: (da.from_array(CODES, chunks=(60, 3)), {}),
    "DataArray": lambda place: (xarray_of(place), {}),
    "data frame": lambda place: (pytest.importorskip("pandas").DataFrame(CODES, columns=list("abcdefg")), {}),
    ".npy": lambda place: (npy_of(place), {}),
    "files of rows": lambda place: (files_of(place), {}),
    "zarr": lambda place: (zarr_of(place), {"array": "codes"}),
    "zarr array": lambda place: (zarr.open_group(zarr_of(place))["codes"], {}),
    "features first": lambda place: (npy_of(place, CODES.T), {"samples": "dim_1"}),
    "HDF5": lambda place: (hdf5_of(place), {}),
    "Parquet": lambda place: (parquet_of(place), {"columns": ["v"]}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_is_decoded_as_by_numpy(tmp_path: Path, kind: str, way: str) -> None:
    data, options = KINDS[kind](tmp_path / "x.zarr")
    given, expected = WAYS[way]
    table = sp.open(data, quantization=given, **options)
    eps = np.finfo(table.dtype).eps
    assert table.dtype == (np.float32 if way in ("scale", "table and scale") else np.float64)
    np.testing.assert_allclose(table.read(0, N)[0], expected, rtol=2 * eps)
    np.testing.assert_allclose(table.read(90, 133)[0], expected[90:133], rtol=2 * eps)
    np.testing.assert_allclose(table.by_features().read(1, 4)[0], expected.T[1:4], rtol=2 * eps)
    pca = sp.PCA(3, missing="mean").fit(table)
    values = np.linalg.eigvalsh(imputed(expected))[::-1][:3]
    atol = tolerances.eigenvalues(table.dtype) * values[0]
    np.testing.assert_allclose(pca.explained_variance_, values, rtol=0, atol=atol)
    assert table.describe()["quantization"]["nodata"] == ([-128] if "nodata" in given else [])


def test_unsigned_codes_have_values_from_zero_on() -> None:
    codes = (CODES.astype(int) + 128).astype(np.uint8)
    rows = sp.open(codes, quantization={"table": TABLE}).read(0, N)[0]
    np.testing.assert_array_equal(rows, TABLED)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_every_pair_of_neighbours_is_decoded(dtype: str) -> None:
    codes = np.arange(2**16, dtype=np.uint16).view(np.int8).reshape(-1, 8)
    values = np.random.default_rng(0).standard_normal(256).astype(dtype)
    values[7] = np.nan
    for rows in (codes, codes[:-1, :7], codes.view(np.uint8)):
        meant = values[rows.astype(int) - np.iinfo(rows.dtype).min]
        table = sp.open(rows, quantization={"table": values})
        np.testing.assert_array_equal(table.read(0, len(rows))[0], meant)
        np.testing.assert_array_equal(table.read(1, len(rows))[0], meant[1:])


def test_names_are_looked_up_beside_the_codes(tmp_path: Path) -> None:
    store = zarr_of(tmp_path / "x.zarr")
    table = sp.open(store, array="codes", quantization={"table": "lut"})
    np.testing.assert_allclose(table.read(0, N)[0], TABLED, rtol=1e-15)
    eps = np.finfo("f4").eps
    for data, options in ((store, {"array": "codes"}), (parquet_of(tmp_path / "p"), {"columns": "v"})):
        table = sp.open(data, quantization={"scale": "scale", "nodata": -128}, **options)
        np.testing.assert_allclose(table.read(0, N)[0], SCALED, rtol=eps)
    np.save(tmp_path / "t.npy", TABLE)
    table = sp.open(CODES, quantization={"table": str(tmp_path / "t.npy")})
    np.testing.assert_allclose(table.read(0, N)[0], TABLED, rtol=1e-15)
    frame = pytest.importorskip("pandas").DataFrame(CODES, columns=list("abcdefg")).assign(scale=SCALE)
    table = sp.open(frame, columns=list("abcdefg"), quantization={"scale": "scale", "nodata": -128})
    np.testing.assert_allclose(table.read(0, N)[0], SCALED, rtol=eps)


def test_sums_of_products_of_whole_numbers_are_exact() -> None:
    codes = np.random.default_rng(0).integers(-127, 128, (20_000, 12)).astype(np.int8)
    meant = [[int(code) * abs(int(code)) for code in row] for row in codes]
    rows = np.array(meant, dtype=object)
    n, sums = len(rows), rows.sum(axis=0)
    covariance = (n * (rows.T @ rows) - np.outer(sums, sums)) / (n * (n - 1))
    values = np.linalg.eigvalsh(covariance.astype(float))[::-1]
    for more in (1, 8):  # above 64 features float32 rows would have products in float32
        given = sp.open(np.tile(codes, (1, more)), quantization={"power": 2})
        pca = sp.PCA(12, solver="covariance").fit(given)
        np.testing.assert_allclose(pca.explained_variance_, more * values, rtol=1e-12)


def test_attributes_of_missing_values_count_and_a_scale_of_the_array_is_refused(tmp_path: Path) -> None:
    fills = zarr_of(tmp_path / "a.zarr", attributes={"_FillValue": -128, "valid_min": -100})
    rows = sp.open(fills, array="codes", quantization={"power": 2, "divisor": 127.5}).read(0, N)[0]
    np.testing.assert_allclose(rows, np.where(CODES < -100, np.nan, TABLED), rtol=1e-15)
    packed = zarr_of(tmp_path / "b.zarr", attributes={"scale_factor": 0.5, "_FillValue": -3})
    with pytest.raises(PackedDataError, match=r"scale_factor=0\.5.*decode"):
        sp.open(packed, array="codes", quantization=POWER)
    table = sp.open(packed, array="codes", quantization=POWER, decode="raw")
    np.testing.assert_allclose(table.read(0, N)[0], TABLED, rtol=1e-15)
    pca = sp.PCA(2, missing="mean").fit(table)
    np.testing.assert_array_equal(pca.transform(packed).compute(), pca.transform(table).compute())


def test_features_without_any_value_are_left_out(tmp_path: Path) -> None:
    codes = CODES.copy()
    codes[:, 3] = -128
    np.save(tmp_path / "x.npy", codes)
    for path in (tmp_path / "x.npy", str(tmp_path / "*.npy")):
        table = sp.open(path, mask="observed", quantization=POWER)
        np.testing.assert_allclose(table.read(0, N)[0], np.delete(TABLED, 3, 1), rtol=1e-15)


def test_a_missing_value_is_a_code_that_means_missing() -> None:
    table = sp.open(CODES, missing_value=-128, quantization={"power": 2, "divisor": 127.5})
    np.testing.assert_allclose(table.read(0, N)[0], TABLED, rtol=1e-15)


def test_nodata_is_an_error_unless_it_is_said_what_it_means() -> None:
    with pytest.raises(ValueError, match=r"NaN: first at row 4, column 0"):
        sp.PCA(2).fit(sp.open(CODES, quantization=POWER))
    pca = sp.PCA(2, missing="drop_rows").fit(sp.open(CODES, quantization=POWER))
    assert pca.n_samples_seen_ == N - 3


def test_rows_are_normalised_after_decoding(tmp_path: Path) -> None:
    path = npy_of(tmp_path / "x", CODES[100:])
    table = sp.open(path, quantization=POWER, normalize={"norm": "l2"})
    expected = TABLED[100:] / np.linalg.norm(TABLED[100:], axis=1, keepdims=True)
    np.testing.assert_allclose(table.read(0, N - 100)[0], expected, rtol=1e-14)
    pca = sp.PCA(2).fit(table)
    np.testing.assert_array_equal(pca.transform(path).compute(), pca.transform(table).compute())


def test_lags_follow_decoding() -> None:
    table = sp.open(CODES, quantization={"scale": SCALE, "nodata": -128}, lags=2)
    expected = np.hstack([SCALED[:-1], SCALED[1:]])
    np.testing.assert_allclose(table.read(0, N - 1)[0], expected, rtol=np.finfo("f4").eps)


BAD: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "no mapping": (CODES, {"quantization": 2.0}, ParameterError, "expected a mapping such as"),
    "unknown key": (CODES, {"quantization": {"tabel": TABLE}}, ParameterError, "key 'tabel'.*table, power"),
    "nothing said": (CODES, {"quantization": {"nodata": -128}}, ParameterError, "not say what codes mean"),
    "twice": (CODES, {"quantization": {"table": TABLE, "power": 2}}, ParameterError, "both table and power"),
    "divisor alone": (CODES, {"quantization": {"table": TABLE, "divisor": 2}}, ParameterError, "divisor without power"),
    "power": (CODES, {"quantization": {"power": 0}}, ParameterError, "power=0"),
    "text as a code": (CODES, {"quantization": POWER | {"nodata": "none"}}, ParameterError, "nodata='none'"),
    "half a code": (CODES, {"quantization": POWER | {"nodata": 0.5}}, ParameterError, "nodata=0.5"),
    "no such code": (CODES, {"quantization": POWER | {"nodata": 255}}, ParameterError, r"nodata=255.*-128 to 127"),
    "short table": (CODES, {"quantization": {"table": TABLE[:9]}}, DataError, r"shape \(9,\): expected \(256,\)"),
    "infinite": (CODES, {"quantization": {"table": np.full(256, np.inf)}}, DataError, "holds infinity"),
    "text": (CODES, {"quantization": {"table": ["a"] * 256}}, ParameterError, "table holds"),
    "no such table": (CODES, {"quantization": {"table": "lut"}}, ParameterError, "quantization.table='lut' is neither"),
    "no such file": (CODES, {"quantization": {"table": "no.npy"}}, DataError, "quantization.table: no.npy"),
    "16 bits": (CODES.astype("i2"), {"quantization": POWER}, DataError, "dtype int16.*int8 or uint8"),
    "floats": (TABLED, {"quantization": POWER}, DataError, "dtype float64"),
    "truth values": (CODES > 0, {"quantization": POWER}, DataError, "dtype bool"),
    "scales": (CODES, {"quantization": {"scale": SCALE[1:]}}, DataError, rf"shape \({N - 1},\): expected \({N},\)"),
    "no such scale": (CODES, {"quantization": {"scale": "s"}}, ParameterError, "quantization.scale='s' is neither"),
    **{
        f"scale {value}": (
            CODES,
            {"quantization": {"scale": np.where(np.arange(N) == 7, value, 1.0)}},
            DataError,
            f"is {value} in row 7",
        )
        for value in (0.0, -2.0, np.nan, np.inf)
    },
    "decoded already": (sp.open(CODES), {"quantization": POWER}, NotAvailableError, "does not apply to a table that"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_named(case: str) -> None:
    data, options, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        sp.open(data, **options)


def test_a_scale_that_is_a_feature_is_refused(tmp_path: Path) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"a": CODES[:, 0], "scale": np.ones(N, "i1")})
    with pytest.raises(ParameterError, match="would be a feature, too"):
        sp.open(frame, quantization={"scale": "scale"})


@pytest.mark.parametrize("given", [POWER, {"table": "lut"}, {"table": TABLE}, {"scale": "scale", "nodata": -128}])
def test_new_paths_are_decoded_as_the_fit_was(tmp_path: Path, given: Any) -> None:
    store, new = zarr_of(tmp_path / "x.zarr"), zarr_of(tmp_path / "new.zarr")
    zarr.open_group(new)["scale"][...] = SCALE[::-1]
    table = sp.open(store, array="codes", quantization=given)
    sp.PCA(2, missing="mean").fit(table).save(tmp_path / "m.zarr")
    model = sp.load(tmp_path / "m.zarr")
    expected = sp.open(new, array="codes", quantization=given)
    scores = model.transform(new).compute()
    np.testing.assert_array_equal(scores, model.transform(expected.read(0, N)[0]))
    model.transform_to(new, tmp_path / "s.zarr")
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "s.zarr")["scores"][...], scores)
    # In the units of decoded values.
    back = model.inverse_transform(scores)
    assert np.abs(back).max() < 2 * np.nanmax(np.abs(expected.read(0, N)[0]))


def test_a_scale_that_is_an_array_is_not_that_of_new_rows(tmp_path: Path) -> None:
    path = npy_of(tmp_path / "x")
    pca = sp.PCA(2, missing="mean").fit(sp.open(path, quantization={"scale": SCALE, "nodata": -128}))
    with pytest.raises(NotAvailableError, match="an array with a scale for each of its rows"):
        pca.transform(path)
    new = sp.open(path, quantization={"scale": SCALE[::-1].copy(), "nodata": -128})
    np.testing.assert_array_equal(pca.transform(new).compute(), pca.transform(new.read(0, N)[0]))


def test_codes_in_memory_are_not_taken_for_values(tmp_path: Path) -> None:
    pca = sp.PCA(2, missing="mean").fit(sp.open(CODES, quantization=POWER))
    xarray = pytest.importorskip("xarray")
    for codes in (CODES, da.from_array(CODES), zarr.open_group(zarr_of(tmp_path / "x.zarr"))["codes"]):
        with pytest.raises(DataError, match="values decoded from such codes"):
            pca.transform(codes)
    with pytest.raises(DataError, match="values decoded from such codes"):
        pca.transform(Masked())
    for codes in (CODES, da.from_array(CODES)):
        with pytest.raises(DataError, match="values decoded from such codes"):
            sp.PCA(2, missing="mean").partial_fit(sp.open(CODES, quantization=POWER)).partial_fit(codes)
    scores = pca.transform(np.where(np.isnan(TABLED), np.nan, TABLED))
    for values in (CODES, TABLED):  # codes as those of the fit, and values that are floats
        rows = xarray.DataArray(values, dims=("row", "band"))
        np.testing.assert_allclose(np.asarray(pca.transform(rows)), scores, rtol=0, atol=1e-13)


def test_codes_that_xarray_has_masked_are_not_taken_for_values(tmp_path: Path) -> None:
    xr = pytest.importorskip("xarray")
    store = zarr_of(tmp_path / "x.zarr", attributes={"_FillValue": -128})
    given = {"power": 2, "divisor": 127.5}
    pca = sp.PCA(2, missing="mean").fit(sp.open(store, array="codes", quantization=given))
    scores = pca.transform(store).compute()
    masked = xr.open_dataset(store, engine="zarr", consolidated=False, chunks={})["codes"]
    assert masked.dtype == np.float32
    assert masked.encoding["dtype"] == np.int8
    np.testing.assert_array_equal(np.asarray(pca.transform(masked)), scores)  # by the codes in the store
    with pytest.raises(DataError, match="mask_and_scale=False"):
        pca.transform(masked.compute())
    with pytest.raises(DataError, match="mask_and_scale=False"):
        sp.open(masked.compute(), quantization=given)
    rows = np.where(CODES == -128, np.nan, TABLED)
    np.testing.assert_array_equal(
        np.asarray(pca.transform(masked.drop_encoding().copy(data=rows))), pca.transform(rows)
    )
    plain = xr.open_dataset(store, engine="zarr", consolidated=False, mask_and_scale=False)["codes"]
    np.testing.assert_array_equal(np.asarray(pca.transform(plain)), scores)


def test_more_rows_and_workers_have_their_own_scales(client: Any) -> None:
    given = {"scale": SCALE, "nodata": -128}
    table = sp.open(da.from_array(CODES, chunks=(20, -1)), quantization=given)
    here = sp.PCA(3, missing="mean", solver="covariance").fit(sp.open(CODES, quantization=given))
    part = table.slice(60, 100)
    np.testing.assert_allclose(part.read(60, 100)[0], SCALED[60:100], rtol=np.finfo("f4").eps)
    with client.as_current():
        there = sp.PCA(3, missing="mean", solver="covariance").fit(table)
    np.testing.assert_allclose(there.explained_variance_, here.explained_variance_, rtol=1e-6)
    parts = sp.PCA(3, solver="covariance")
    for rows in (slice(100, 160), slice(160, N)):
        parts.partial_fit(sp.open(CODES[rows], quantization={"scale": SCALE[rows]}))
    expected = np.linalg.eigvalsh(np.cov(SCALED[100:].T))[::-1][:3]
    np.testing.assert_allclose(parts.explained_variance_, expected, rtol=0, atol=1e-6 * expected[0])


def test_fingerprints_tell_tables_and_scales(tmp_path: Path) -> None:
    other = SCALE.copy()
    other[3] *= 2
    given = [POWER, POWER | {"power": 3}, POWER | {"nodata": 0}, {"scale": SCALE}, {"scale": other}]
    assert len({sp.open(CODES, quantization=each).fingerprint for each in given}) == len(given)


def test_a_certificate_counts_the_rounding_of_scaled_codes() -> None:
    rows = CODES[100:]
    scaled = sp.PCA(2).fit(sp.open(rows, quantization={"scale": SCALE[100:]}))
    assert "decoded in float32" in str(scaled.certificate_)
    assert "decoded" not in str(sp.PCA(2).fit(sp.open(rows, quantization=POWER)).certificate_)


def test_a_table_and_a_plan_say_what_codes_mean() -> None:
    table = sp.open(CODES, quantization=POWER)
    assert "codes        power 2, divisor 127.5" in str(table).splitlines()
    assert "missing      NaN, -128 as stored" in str(table).splitlines()
    notes = " ".join(sp.PCA(2, missing="mean").plan(table).to_dict()["notes"])
    assert "codes of int8 are decoded to float64: -127 means -0.992172, 0 means 0, 127 means 0.992172" in notes
    assert "NaN and the stored numbers -128.0" in notes


def test_a_run_reads_codes_is_verified_and_takes_more_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = zarr.open_group(zarr_of(tmp_path / "x.zarr"))
    for name in ("codes", "scale"):
        store[name].resize((100, D)[: store[name].ndim])
    text = (
        "source: {path: x.zarr, array: codes, quantization: {scale: scale, nodata: -128}}\n"
        "preprocess: {missing: drop_rows}\nmodel: {n_components: 3, solver: covariance}\n"
        "output: {directory: run, report: true, state: true, scores: true}\n"
    )
    Path("c.yaml").write_text(text)
    run = sp.run("c.yaml")
    assert run.manifest["source"]["quantization"] == {"scale": "scale", "nodata": [-128]}
    scores = zarr.open_group("run/scores.zarr")["scores"][...]
    assert np.isnan(scores[[4, 30, 99]]).all()
    assert np.isfinite(np.delete(scores, [4, 30, 99], 0)).all()
    assert run_command("verify", "run") == 0
    assert run_command("transform", "run", "x.zarr", "again.zarr") == 0
    np.testing.assert_array_equal(zarr.open_group("again.zarr")["scores"][...], scores)
    for name, values in (("codes", CODES), ("scale", SCALE)):
        store[name].resize(values.shape)
        store[name][100:] = values[100:]
    sp.update("run")
    good = SCALED[~np.isnan(SCALED).any(axis=1)]
    expected = np.linalg.eigvalsh(np.cov(good.T))[::-1][:3]
    np.testing.assert_allclose(sp.load("run").explained_variance_, expected, rtol=0, atol=1e-6 * expected[0])
    store["codes"].resize((N + 10, D))
    store["codes"][N:] = CODES[100:110]
    store["scale"].resize((N + 10,))
    store["scale"][N:] = 1
    store["scale"][50] = 9
    with pytest.raises(ChangedInputError, match="the scale of its rows was changed"):
        sp.update("run")


def test_new_files_have_the_scales_of_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    parquet_of(Path("data/b"), slice(100, 170))
    source = {"path": "data", "columns": ["v"], "quantization": {"scale": "scale"}}
    text = f"source: {json.dumps(source)}\nmodel: {{n_components: 3, solver: covariance}}\n"
    Path("c.yaml").write_text(text + "output: {directory: run, report: false, state: true, scores: false}\n")
    sp.run("c.yaml")
    parquet_of(Path("data/a"), slice(170, N))  # before the other
    sp.update("run")
    expected = np.linalg.eigvalsh(np.cov(SCALED[100:].T))[::-1][:3]
    np.testing.assert_allclose(sp.load("run").explained_variance_, expected, rtol=0, atol=1e-6 * expected[0])


def test_a_configuration_that_says_nothing_is_refused(tmp_path: Path) -> None:
    Path(tmp_path / "c.yaml").write_text("source: {path: x.npy, quantization: {nodata: -128}}\n")
    with pytest.raises(sp.errors.ConfigError, match="quantization: does not say what codes mean"):
        sp.run(tmp_path / "c.yaml")


def test_every_solver_has_the_decoded_rows(tmp_path: Path) -> None:
    rows, codes = TABLED[100:], CODES[100:]
    table = sp.open(npy_of(tmp_path / "x", codes), quantization=POWER)
    expected = np.linalg.eigvalsh(np.cov(rows.T))[::-1][:2]
    for solver in ("covariance", "gram", "sketch", "adaptive", "qr"):
        pca = sp.PCA(2, solver=solver, random_state=0).fit(table)
        np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-2, err_msg=solver)
    scores = sp.KernelPCA(2, kernel="rbf", gamma=0.5).fit(table).transform(table)
    there = sp.KernelPCA(2, kernel="rbf", gamma=0.5).fit(rows).transform(rows)
    np.testing.assert_allclose(np.abs(np.asarray(scores)), np.abs(there), atol=1e-7)
