"""Packed arrays and groups whose table is not evident are refused; what is meant as stored is read."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from stores import Command, config_text, make_values, write_store

import streampca as sp
from streampca.errors import DataError, PackedDataError
from streampca.sources import open_source

PACKED = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32767}
NAN_AS_XARRAY_WRITES_IT = base64.b64encode(struct.pack("<d", np.nan)).decode()


def packed_values() -> Any:
    return np.round(make_values(60, 8) * 100).astype(np.int16)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", [*PACKED, "missing_value"])
def test_packed_array_raises_named_error_with_its_attributes(tmp_path: Path, version: int, name: str) -> None:
    value = (PACKED | {"missing_value": [-1]})[name]
    store = write_store(tmp_path / "x.zarr", packed_values(), version=version, chunks=(20, 8), attributes={name: value})
    with pytest.raises(PackedDataError, match=rf"{name}=.*decode") as raised:
        sp.PCA(2).fit(store)
    assert raised.value.exit_status == 5
    assert str(value) in str(raised.value)
    with pytest.raises(PackedDataError):
        sp.PCA(2).fit(zarr.open_array(store, mode="r"))
    raw = sp.PCA(2).fit(open_source(store, decode="raw"))
    expected = np.linalg.eigvalsh(np.cov(packed_values().T.astype(float)))[::-1][:2]
    np.testing.assert_allclose(raw.explained_variance_, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scale_factor": 1.0, "add_offset": 0},
        {"scale_factor": [1]},
        {"_FillValue": "NaN", "missing_value": float("nan")},
        {"_FillValue": NAN_AS_XARRAY_WRITES_IT},
        {"units": "K", "_Unsigned": "false", "valid_min": 0},
    ],
)
def test_attributes_that_change_no_value_are_accepted(tmp_path: Path, attributes: dict[str, Any]) -> None:
    store = write_store(tmp_path / "x.zarr", make_values(60, 8), chunks=(20, 8), attributes=attributes)
    assert open_source(store).shape == (60, 8)


@pytest.mark.parametrize("attributes", [{"scale_factor": "0.1"}, {"add_offset": [1, 2]}, {"_Unsigned": "true"}])
def test_attributes_that_cannot_be_understood_raise_named_error(tmp_path: Path, attributes: dict[str, Any]) -> None:
    store = write_store(tmp_path / "x.zarr", packed_values(), chunks=(20, 8), attributes=attributes)
    with pytest.raises(PackedDataError, match=next(iter(attributes))):
        open_source(store)


@pytest.mark.parametrize(("fill", "packed"), [(-32767, True), (0, False), (None, False)])
def test_fill_value_of_format_2_counts_where_xarray_wrote_the_array(tmp_path: Path, fill: Any, packed: bool) -> None:
    store = tmp_path / "x.zarr"
    for name, attributes in {"by_xarray": {"_ARRAY_DIMENSIONS": ["time", "station"]}, "plain": {}}.items():
        options = {"version": 2, "chunks": (20, 8), "fill_value": fill, "attributes": attributes}
        write_store(store / name, packed_values(), **options)
    assert open_source(store / "plain").shape == (60, 8)
    if packed:
        with pytest.raises(PackedDataError, match="fill_value=-32767"):
            open_source(store / "by_xarray")
    else:
        assert open_source(store / "by_xarray").shape == (60, 8)


def test_commands_refuse_packed_stores_unless_raw(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "x.zarr", packed_values(), chunks=(20, 8), attributes=PACKED)
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out"))
    command = Command(capsys)
    command.quietly("run", "c.yaml").refused(5, "scale_factor=0.01", "add_offset=273.15", "_FillValue=-32767", "raw")
    command("plan", "c.yaml").refused(5, "scale_factor=0.01")
    assert command.quietly("run", "c.yaml", "--set", "source.decode=raw").status == 0
    command.quietly("transform", "out", "x.zarr", "scores.zarr").refused(5, "scale_factor=0.01")
    assert command.quietly("transform", "out", "x.zarr", "scores.zarr", "--decode", "raw").status == 0
    assert command.quietly("verify", "out").status == 0
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
def test_group_with_a_cube_lists_candidates_with_shapes_and_dimensions(
    tmp_path: Path, version: int, beside: str
) -> None:
    write_climate(tmp_path / "g.zarr", version, beside=beside)
    for data in (str(tmp_path / "g.zarr"), zarr.open_group(tmp_path / "g.zarr", mode="r")):
        with pytest.raises(DataError, match=r"is a group: name the array to read") as raised:
            sp.PCA(2).fit(data)
        assert "sst (30, 4, 5) [time, lat, lon]" in str(raised.value)
        assert f"{beside} " in str(raised.value)
    with pytest.raises(DataError, match=r"\(30, 4, 5\)"):
        open_source(tmp_path / "g.zarr", array="sst")
    assert open_source(tmp_path / "g.zarr", array=beside).shape[0] in (4, 30)


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
    with pytest.raises(DataError, match="name the array to read"):
        open_source(tmp_path / "adata.zarr")


def test_only_table_beside_vectors_is_taken(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("time", data=np.arange(30.0))
    group.create_array("deep/x", data=make_values(30, 4))
    assert open_source(tmp_path / "g.zarr").describe()["array"] == "deep/x"
