"""Packed arrays are decoded unless they are meant as stored; groups whose table is not evident are refused."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import yaml
import zarr
from stores import Command, config_text, make_values, write_store
from zarr.storage import MemoryStore

import streampca as sp
from streampca.errors import DataError, PackedDataError, PartlyMissingError
from streampca.sources import open_source

PACKED = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32767}
NAN_AS_XARRAY_WRITES_IT = base64.b64encode(struct.pack("<d", np.nan)).decode()


def packed_values() -> Any:
    return np.round(make_values(60, 8) * 100).astype(np.int16)


def decoded(stored: Any, attributes: dict[str, Any]) -> Any:
    values = stored.astype(np.float64) * attributes.get("scale_factor", 1.0) + attributes.get("add_offset", 0.0)
    for name in ("_FillValue", "missing_value"):
        values[np.isin(stored, attributes.get(name, []))] = np.nan
    return values


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", [*PACKED, "missing_value", "all"])
def test_packed_array_is_decoded(tmp_path: Path, version: int, name: str) -> None:
    attributes = PACKED if name == "all" else {name: (PACKED | {"missing_value": [-1, -2]})[name]}
    stored = packed_values()
    store = write_store(tmp_path / "x.zarr", stored, version=version, chunks=(20, 8), attributes=attributes)
    source = open_source(store)
    # float32 holds every integer of 16 bits, but not what a scale and an offset make of it
    assert source.dtype == (np.float64 if {"scale_factor", "add_offset"} & attributes.keys() else np.float32)
    np.testing.assert_array_equal(source.read(0, 60)[0], decoded(stored, attributes))
    raw = sp.PCA(2).fit(open_source(store, decode="raw"))
    expected = np.linalg.eigvalsh(np.cov(stored.T.astype(float)))[::-1][:2]
    np.testing.assert_allclose(raw.explained_variance_, expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["i1", "u2", "i4", "f4"])
@pytest.mark.parametrize("attributes", [{"scale_factor": 1e-3, "add_offset": 1e6}, {"scale_factor": 0.01}])
def test_large_offset_takes_no_digits_from_the_eigenvalues(
    tmp_path: Path, dtype: str, attributes: dict[str, float]
) -> None:
    stored = np.round(make_values(80, 6) * 20).clip(0 if dtype == "u2" else -128, 127).astype(dtype)
    store = write_store(tmp_path / "x.zarr", stored, chunks=(20, 6), attributes=attributes)
    pca = sp.PCA(6, solver="covariance").fit(store)
    exact = np.linalg.eigvalsh(np.cov(stored.T.astype(float)))[::-1] * attributes["scale_factor"] ** 2
    # A value v carries half a unit of its last digit for the product and for the sum; ‖E‖ over √n bounds the rest.
    values = decoded(stored, attributes)
    error = np.finfo(float).eps * np.sqrt((values**2).mean(axis=0).sum()) / np.sqrt(exact[0])
    np.testing.assert_allclose(pca.explained_variance_, exact, rtol=0, atol=exact[0] * max(1e-13, 3 * error))
    assert pca.transform(store).dtype == np.float64


SOLVERS = {
    "covariance": {},
    "gram": {},
    "qr": {},
    "sketch": {"sketch_size": 6},
    "covariance of z-scores": {"scale": True},
    "covariance about zero": {"center": False},
}


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_certificate_counts_the_rounding_of_decoded_values(tmp_path: Path, solver: str, dtype: str) -> None:
    h5py = pytest.importorskip("h5py")
    n = 8 if solver == "gram" else 80
    stored = np.random.default_rng(0).normal(size=(n, 6)) @ np.random.default_rng(1).normal(size=(6, 6))
    stored = np.round(100 * stored).astype(np.int16)
    scale, offset = np.array(0.01, dtype), np.array(3e5, dtype)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = stored
        file["x"].attrs["scale_factor"], file["x"].attrs["add_offset"] = scale, offset
    parameters = SOLVERS[solver]
    pca = sp.PCA(3, solver=solver.partition(" ")[0], **parameters).fit(tmp_path / "x.h5")  # type: ignore[arg-type]
    rows = stored * float(scale)
    matrix = np.corrcoef(rows.T) if "scale" in parameters else np.cov(rows.T)
    if "center" in parameters:
        rows = rows + float(offset)
        matrix = rows.T @ rows / (n - 1)
    exact = np.linalg.eigvalsh(matrix)[::-1][:3]
    error = np.abs(pca.explained_variance_ - exact).max() / exact[0]
    trusted = pca.error_["trusted_above"]
    assert error <= (2 * np.sqrt(trusted) if solver == "qr" else trusted)
    assert f"decoded in {np.dtype(dtype)}" in pca.error_["statement"]
    intervals = pca.error_.get("eigenvalue_intervals")
    assert intervals is None or all(low <= value <= high for (low, high), value in zip(intervals, exact, strict=True))


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch", "adaptive"])
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8])
@pytest.mark.parametrize("form", ["plain", "scaled", "uncentred", "uncentred scaled", "removed", "removed scaled"])
def test_certificates_of_decoded_values_hold(tmp_path: Path, solver: str, offset: float, form: str) -> None:
    rng, n, d = np.random.default_rng(len(form)), 60, 4
    groups, center = np.repeat(np.arange(4), n // 4), "uncentred" not in form
    effects = 3e5 * rng.normal(size=(4, d))[groups] if "removed" in form else 0.0
    stored = np.rint(rng.normal(size=(n, d)) * 1000 + effects + (0 if offset else 2**30)).astype("i4")
    attributes = {"scale_factor": 1e-3, **({"add_offset": offset} if offset else {})}
    store = write_store(tmp_path / "x.zarr", stored, attributes=attributes)
    parameters: dict[str, Any] = {"solver": solver, "center": center, "scale": "scaled" in form}
    if "removed" in form:
        parameters["remove"] = {"groups": groups}
    if solver in ("sketch", "adaptive"):
        parameters["sketch_size"] = d
    pca = sp.PCA(2, **parameters).fit(store)
    # The oracle: about the mean of integers, so that 64 bits of long doubles are enough.
    about = stored - stored[0].astype(np.longdouble)
    mean = about.mean(axis=0)
    centred = about - mean
    if "removed" in form:
        centred -= (centred.reshape(4, -1, d).mean(axis=1))[groups]
    squares = (centred**2).sum(axis=0)
    rows = centred if center else stored + np.longdouble(offset) / np.longdouble(1e-3)
    unit = np.longdouble(1e-3) if not parameters["scale"] else 1 / np.sqrt(squares / (n - 1))
    rows = rows * unit
    exact = np.linalg.eigvalsh(np.asarray(rows.T @ rows / (n - 1), float))[::-1][:2]
    error = np.abs(pca.explained_variance_ - exact).max() / exact[0]
    trusted = pca.error_.trusted_above
    assert error <= (2 * np.sqrt(trusted) if solver == "qr" else trusted)


def test_fill_value_is_compared_before_scaling_and_read_as_nan(tmp_path: Path) -> None:
    stored = packed_values()
    stored[3, 4] = PACKED["_FillValue"]
    store = write_store(tmp_path / "x.zarr", stored, chunks=(20, 8), attributes=PACKED)
    values, _ = open_source(store).read(0, 60)
    assert np.argwhere(np.isnan(values)).tolist() == [[3, 4]]
    with pytest.raises(DataError, match="NaN: first at row 3, column 4"):
        sp.PCA(2).fit(store)


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i2", ">i2", "u2", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("place", ["smallest", "in between", "largest"])
@pytest.mark.parametrize("n_missing", [0, 1, 40])
def test_fill_values_anywhere_in_the_range_of_integers_become_nan(dtype: str, place: str, n_missing: int) -> None:
    limits = np.iinfo(dtype)
    low, high = max(limits.min + 10, -100), min(limits.max - 10, 100)
    stored = np.arange(low, high, 2).astype(dtype)
    fills = {"smallest": int(limits.min), "in between": low + 1, "largest": int(limits.max)}
    stored[:n_missing] = fills[place]
    stored = stored[:, None]
    attributes = {"scale_factor": 0.5, "missing_value": sorted(set(fills.values()))}
    array = zarr.create_array(MemoryStore(), data=stored, attributes=attributes, chunks=stored.shape)
    out = open_source(array).read(0, len(stored))[0]
    expected = stored.astype("f8") * 0.5
    expected[:n_missing] = np.nan
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("n_features", [1, 700])
@pytest.mark.parametrize("dims", ["time x", "x time"])
def test_feature_observed_only_later_is_named_with_its_row_in_either_order(
    tmp_path: Path, dims: str, n_features: int
) -> None:
    stored = np.ones((900, n_features + 2), np.int16)
    stored[:, 1] = -9
    stored[753, 1] = 5
    group = zarr.create_group(tmp_path / "x.zarr")
    values = stored if dims == "time x" else stored.T
    array = group.create_array(
        "a",
        shape=values.shape,
        dtype="i2",
        chunks=tuple(100 if n == 900 else n for n in values.shape),
        dimension_names=dims.split(),
        attributes={"_FillValue": -9},
    )
    array[...] = values
    table = sp.open(tmp_path / "x.zarr", samples="time", mask="observed")
    with pytest.raises(PartlyMissingError, match=r"feature 1 .* in row 753"):
        table.read(0, 900)


def test_signed_bytes_declared_unsigned_are_decoded_as_xarray_does(tmp_path: Path) -> None:
    stored = np.arange(-60, 60, dtype=np.int8).reshape(30, 4)
    attributes = {"_Unsigned": "true", "scale_factor": 0.5, "_FillValue": -1}
    values, _ = open_source(write_store(tmp_path / "x.zarr", stored, chunks=(7, 3), attributes=attributes)).read(0, 30)
    unsigned = stored.view(np.uint8)
    np.testing.assert_array_equal(values, np.where(unsigned == 255, np.nan, unsigned * 0.5))


@pytest.mark.parametrize("fill", [-1e20, base64.b64encode(struct.pack("<d", -1e20)).decode()])
def test_fill_value_of_floating_type_is_read_as_nan(tmp_path: Path, fill: Any) -> None:
    stored = make_values(30, 4).astype(np.float32)
    stored[5, 1] = -1e20
    store = write_store(tmp_path / "x.zarr", stored, chunks=(7, 3), attributes={"_FillValue": fill})
    values, _ = open_source(store).read(0, 30)
    assert np.argwhere(np.isnan(values)).tolist() == [[5, 1]]


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scale_factor": 1.0, "add_offset": 0},
        {"scale_factor": [1]},
        {"_FillValue": "NaN", "missing_value": float("nan")},
        {"_FillValue": NAN_AS_XARRAY_WRITES_IT},
        {"units": "K", "_Unsigned": "false", "valid_min": "-Infinity", "valid_range": ["-Infinity", "Infinity"]},
    ],
)
def test_attributes_that_change_no_value_are_accepted(tmp_path: Path, attributes: dict[str, Any]) -> None:
    store = write_store(tmp_path / "x.zarr", make_values(60, 8), chunks=(20, 8), attributes=attributes)
    assert open_source(store).shape == (60, 8)


@pytest.mark.parametrize(
    "attributes",
    [{"scale_factor": "0.1"}, {"add_offset": [1, 2]}, {"scale_factor": 0}, {"_FillValue": "no number"}],
)
def test_attributes_that_cannot_be_understood_raise_named_error(tmp_path: Path, attributes: dict[str, Any]) -> None:
    store = write_store(tmp_path / "x.zarr", packed_values(), chunks=(20, 8), attributes=attributes)
    with pytest.raises(PackedDataError, match=next(iter(attributes))):
        open_source(store)


def write_nc(path: Path, kind: str, stored: Any, attributes: dict[str, Any]) -> str:
    """Write `stored` as the only variable `t` of a place of one of three kinds."""
    dims = ("time", "station")
    if kind == "zarr":
        return str(write_store(path / "x.zarr", stored, chunks=(7, 3), attributes=attributes))
    if kind == "hdf5":
        with pytest.importorskip("h5py").File(path / "x.nc", "w") as file:
            file.create_dataset("t", data=stored, chunks=(7, 3))
            file["t"].attrs.update(attributes)
        return str(path / "x.nc")
    with scipy.io.netcdf_file(path / "x.nc", "w") as file:
        for name, size in zip(dims, stored.shape, strict=True):
            file.createDimension(name, size)
        variable = file.createVariable("t", stored.dtype.newbyteorder("="), dims)
        variable[:] = stored
        for name, value in attributes.items():
            setattr(variable, name, value)
    return str(path / "x.nc")


RANGES: list[tuple[dict[str, Any], float, float]] = [
    ({"valid_range": [-40, 120]}, -40, 120),
    ({"valid_min": -40}, -40, np.inf),
    ({"valid_max": 120, "_FillValue": 7}, -np.inf, 120),
    ({"valid_min": -40, "valid_max": 120, "scale_factor": 0.5, "add_offset": 3.0}, -40, 120),
]


@pytest.mark.parametrize("dtype", ["i2", "i4", "f4"])
@pytest.mark.parametrize(("attributes", "low", "high"), RANGES)
@pytest.mark.parametrize("kind", ["zarr", "hdf5", "netcdf3"])
def test_stored_values_out_of_the_valid_range_are_missing(
    tmp_path: Path, dtype: str, attributes: dict[str, Any], low: float, high: float, kind: str
) -> None:
    rng = np.random.default_rng(0)
    stored = rng.integers(-60, 150, (30, 4)).astype(dtype)
    stored[3, 2] = 7
    if dtype == "f4":
        stored[5, 1] = 9.969209968386869e36
    if kind == "netcdf3":
        stored = stored.astype(stored.dtype.newbyteorder(">"))
    typed = {
        name: np.asarray(value, dtype=stored.dtype.newbyteorder("=")) if name.startswith(("valid", "_Fill")) else value
        for name, value in attributes.items()
    }
    place = write_nc(tmp_path, kind, stored, attributes if kind == "zarr" else typed)
    table = open_source(place)
    expected = decoded(stored, attributes)
    expected[(stored < low) | (stored > high)] = np.nan
    np.testing.assert_allclose(table.read(0, 30)[0], expected, rtol=1e-6)
    notes = " ".join(table.plan_notes())
    assert "missing values are marked by" in notes
    assert all(name in notes for name in attributes if name.startswith("valid"))
    raw = open_source(place, decode="raw")
    np.testing.assert_array_equal(raw.read(0, 30)[0], stored)


@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        ("i2", {"_FillValue": 1e20}),
        ("i2", {"missing_value": 0.5}),
        ("i2", {"valid_range": [0.5, 1e9]}),
        ("i1", {"_FillValue": "Infinity"}),
        ("u1", {"valid_min": -1}),
        ("f4", {"_FillValue": 1e300}),
        ("f8", {"valid_range": "0, 100"}),
    ],
)
def test_attributes_that_no_stored_value_can_have_mark_nothing(
    tmp_path: Path, dtype: str, attributes: dict[str, Any]
) -> None:
    stored = np.arange(120, dtype=dtype).reshape(30, 4)
    if dtype == "f4":
        stored[1, 1] = np.finfo("f4").max
    table = open_source(write_store(tmp_path / "x.zarr", stored, chunks=(7, 3), attributes=attributes))
    np.testing.assert_array_equal(table.read(0, 30)[0], stored)
    (name,) = attributes
    assert f"{name}=" in " ".join(table.plan_notes())
    assert "marks no value as missing" in " ".join(table.plan_notes())


def test_valid_range_of_bytes_declared_unsigned(tmp_path: Path) -> None:
    stored = np.arange(-60, 60, dtype=np.int8).reshape(30, 4)
    attributes = {"_Unsigned": "true", "valid_range": [10, -20]}
    values, _ = open_source(write_store(tmp_path / "x.zarr", stored, chunks=(7, 3), attributes=attributes)).read(0, 30)
    unsigned = stored.view(np.uint8)
    inside = (unsigned >= 10) & (unsigned <= 236)
    np.testing.assert_array_equal(values, np.where(inside, unsigned, np.nan))


def test_texts_of_infinities_in_zarr_attributes(tmp_path: Path) -> None:
    stored = make_values(30, 4)
    stored[3, 2], stored[4, 1] = np.inf, 1e30
    attributes = {"_FillValue": "Infinity", "valid_range": ["-Infinity", 1e20]}
    values, _ = open_source(write_store(tmp_path / "x.zarr", stored, chunks=(7, 3), attributes=attributes)).read(0, 30)
    np.testing.assert_array_equal(values, np.where(stored > 1e20, np.nan, stored))


def test_values_out_of_the_valid_range_change_no_eigenvalue_of_a_run(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    values = make_values(60, 8).astype(np.float32)
    stored = values.copy()
    stored[::7, 3] = 9.969209968386869e36
    write_store(tmp_path / "x.zarr", stored, chunks=(20, 8), attributes={"valid_max": 1e20})
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out"))
    assert Command(capsys).quietly("run", "c.yaml", "--set", "preprocess.missing=mean").status == 0
    rows = values.astype(np.float64)
    rows[::7, 3] = np.nan
    centred = np.nan_to_num(rows - np.nanmean(rows, axis=0))
    expected = np.linalg.eigvalsh(centred.T @ centred / 59)[::-1]
    found = sp.load(tmp_path / "out").explained_variance_
    np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-5)


@pytest.mark.parametrize(("fill", "packed"), [(-32767, True), (0, False), (None, False)])
def test_fill_value_of_format_2_counts_where_xarray_wrote_the_array(tmp_path: Path, fill: Any, packed: bool) -> None:
    store = tmp_path / "x.zarr"
    for name, attributes in {"by_xarray": {"_ARRAY_DIMENSIONS": ["time", "station"]}, "plain": {}}.items():
        options = {"version": 2, "chunks": (20, 8), "fill_value": fill, "attributes": attributes}
        write_store(store / name, packed_values(), **options)
    assert open_source(store / "plain").shape == (60, 8)
    assert open_source(store / "by_xarray").dtype == (np.float32 if packed else np.int16)


def test_commands_decode_packed_stores_unless_raw(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "x.zarr", packed_values(), chunks=(20, 8), attributes=PACKED)
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out"))
    command = Command(capsys)
    eigenvalues = {}
    for decode in ("raw", "auto"):
        assert (
            command.quietly(
                "run", "c.yaml", "--set", f"source.decode={decode}", "--set", f"output.directory={decode}"
            ).status
            == 0
        )
        eigenvalues[decode] = sp.load(tmp_path / decode).explained_variance_
    np.testing.assert_allclose(eigenvalues["auto"], eigenvalues["raw"] * PACKED["scale_factor"] ** 2, rtol=1e-5)
    assert command.quietly("transform", "auto", "x.zarr", "scores.zarr").status == 0
    assert command.quietly("verify", "auto").status == 0
    assert command.quietly("fingerprint", "x.zarr").status == 0
    found = command("inspect", "x.zarr", "--json")
    assert found.status == 0
    assert yaml.safe_load(found.out)["packing"] == PACKED


def test_packed_weights_raise_named_error(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("x", data=make_values(60, 8))
    group.create_array("area", data=np.arange(8, dtype=np.int16), attributes={"scale_factor": 0.1})
    config = "source: {path: g.zarr, array: x}\npreprocess: {feature_weight: area}\noutput: {directory: out}\n"
    (tmp_path / "c.yaml").write_text(config)
    Command(capsys).quietly("run", "c.yaml").refused(5, "preprocess.feature_weight", "scale_factor=0.1")


def write_climate(path: Path, version: int, *, beside: str) -> None:
    """Write ``sst(time, lat, lon)`` with one array of two axes beside it."""
    group = zarr.open_group(path, mode="w", zarr_format=version)

    def add(name: str, values: Any, *axes: str, **attributes: Any) -> None:
        named = {"dimension_names": axes} if version == 3 else {}
        attributes |= {"_ARRAY_DIMENSIONS": list(axes)} if version == 2 else {}
        group.create_array(name, data=values, attributes=attributes, **named)

    add("sst", np.ones((30, 4, 5)), "time", "lat", "lon")
    if beside == "mask":
        add("mask", np.ones((4, 5)), "lat", "lon")
    else:
        add("time", np.arange(30.0), "time", bounds="time_bnds")
        add("time_bnds", np.ones((30, 2)), "time", "nv")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("beside", ["mask", "time_bnds"])
def test_only_cube_of_a_group_is_the_table_once_its_samples_are_named(
    tmp_path: Path, version: int, beside: str
) -> None:
    write_climate(tmp_path / "g.zarr", version, beside=beside)
    for data in (str(tmp_path / "g.zarr"), zarr.open_group(tmp_path / "g.zarr", mode="r")):
        with pytest.raises(DataError, match=r"sst has 3 dimensions, time \(30\), lat \(4\), lon \(5\): say which"):
            sp.PCA(2).fit(data)
        assert open_source(data, samples="time").shape == (30, 20)
    assert open_source(tmp_path / "g.zarr", array="sst", features="lon").shape == (120, 5)
    assert open_source(tmp_path / "g.zarr", array=beside).shape[0] in (4, 30)


def test_group_of_two_cubes_lists_candidates_with_shapes_and_dimensions(tmp_path: Path) -> None:
    write_climate(tmp_path / "g.zarr", 3, beside="mask")
    zarr.open_group(tmp_path / "g.zarr").create_array("ice", data=np.ones((30, 4, 5)))
    with pytest.raises(
        DataError, match=r"is a group: name the array to read.*ice \(30, 4, 5\), sst \(30, 4, 5\) \[time, lat, lon\]"
    ):
        open_source(tmp_path / "g.zarr", samples="time")


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("time_bnds", {}),
        ("limits", {"bounds": "limits"}),
        ("mask", {}),
        ("nav_lat", {"coordinates": "nav_lon nav_lat"}),
    ],
)
def test_array_that_describes_another_is_not_taken_for_the_table(
    tmp_path: Path, name: str, attributes: dict[str, Any]
) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("series", data=np.ones(30), attributes=attributes)
    group.create_array(name, data=make_values(30, 4))
    with pytest.raises(DataError, match="name the array to read"):
        open_source(tmp_path / "g.zarr")


def test_embedding_beside_sparse_rows_is_not_taken_for_the_table(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "adata.zarr", mode="w", attributes={"encoding-type": "anndata"})
    rows = group.create_group("X", attributes={"encoding-type": "csr_matrix", "shape": [30, 100]})
    rows.create_array("data", data=np.ones(10))
    group.create_array("obsm/X_umap", data=make_values(30, 2))
    with pytest.raises(DataError, match="X: expected a vector indices, found none"):
        open_source(tmp_path / "adata.zarr")


def test_only_table_beside_vectors_is_taken(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("time", data=np.arange(30.0))
    group.create_array("deep/x", data=make_values(30, 4))
    assert open_source(tmp_path / "g.zarr").describe()["array"] == "deep/x"


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
@pytest.mark.parametrize("missing_value", [None, -1.0])
@pytest.mark.parametrize("form", ["zarr", "h5"])
def test_a_model_of_raw_values_reads_new_data_raw(
    tmp_path: Path, form: str, missing_value: float | None, names: list[str]
) -> None:
    values, path = np.random.default_rng(0).integers(0, 100, (40, 6)).astype("i2"), tmp_path / f"x.{form}"
    place = pytest.importorskip("h5py").File(path, "w") if form == "h5" else zarr.create_group(path)
    for name, power in zip(names, (1, 2), strict=False):
        stored = (
            place.create_dataset(name, data=values**power)
            if form == "h5"
            else place.create_array(name, data=values**power)
        )
        stored.attrs["scale_factor"] = 0.5
    if form == "h5":
        place.close()
    table = sp.open(path, variables=names, decode="raw", missing_value=missing_value)
    rows, model = np.array(table.read(0, 40)[0], dtype="f8"), sp.PCA(2).fit(table)
    np.testing.assert_allclose(model.transform(path), model.transform(rows), rtol=1e-4, atol=1e-2)
