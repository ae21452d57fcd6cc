"""Labelled stores and choices that make no table: a named error of one line with exit status 2 or 5, and nothing is written."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from stores import Command, config_text, picture

import streampca as sp
from streampca.errors import StreamPCAError

CUBE = np.arange(6 * 3 * 4, dtype="f4").reshape(6, 3, 4) % 7
DIMS = ("time", "lat", "lon")
Build = Callable[[zarr.Group], None]


def add(
    group: zarr.Group, name: str, values: Any, dims: tuple[str, ...] | None = None, **attributes: Any
) -> zarr.Array[Any]:
    """Add an array to a group, every chunk of it."""
    values = np.asarray(values)
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=tuple(max(1, n // 2) for n in values.shape),
        dimension_names=dims,
        attributes=attributes,
        config={"write_empty_chunks": True},
    )
    if values.size:
        array[...] = values
    return array


def field(**attributes: Any) -> Build:
    """Return what writes one field (time, lat, lon) with attributes."""
    return lambda group: add(group, "sst", CUBE.astype("i2"), DIMS, **attributes) and None


def arrays(**each: tuple[Any, ...]) -> Build:
    """Return what writes arrays, each given as values, dimensions and attributes."""

    def build(group: zarr.Group) -> None:
        for name, (values, dims, *attributes) in each.items():
            add(group, name, values, dims, **(attributes[0] if attributes else {}))

    return build


def damaged_coordinate(group: zarr.Group) -> None:
    add(group, "sst", CUBE, DIMS)
    add(group, "lat", [10.0, 20.0, 30.0], ("lat",))
    root = Path(str(group.store_path).removeprefix("file://"))
    next(path for path in (root / "lat" / "c").rglob("*") if path.is_file()).write_bytes(b"\x28\xb5\x2f\xfdno")


def missing_chunk_of_mask(group: zarr.Group) -> None:
    arrays(sst=(CUBE, DIMS), land=(np.ones((3, 4), bool), DIMS[1:]))(group)
    root = Path(str(group.store_path).removeprefix("file://"))
    next(path for path in (root / "land" / "c").rglob("*") if path.is_file()).unlink()


def ome(axes: Any) -> Build:
    """Return what writes an OME-Zarr image with these axes."""

    def build(group: zarr.Group) -> None:
        add(group, "0", CUBE)
        group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": [{"path": "0"}]}]}

    return build


SST = arrays(sst=(CUBE, DIMS))
LAND = (np.ones((3, 4), bool), DIMS[1:])
BROKEN: dict[str, tuple[Build, dict[str, Any], str]] = {
    "unknown sample dimension": (SST, {"samples": "tme"}, "did you mean 'time'"),
    "unknown feature dimension": (SST, {"samples": "time", "features": ["lat", "long"]}, "did you mean 'lon'"),
    "dimension twice among samples": (SST, {"samples": ["time", "time"]}, "different names"),
    "dimension among samples and features": (
        SST,
        {"samples": "time", "features": ["time", "lat", "lon"]},
        "occurs twice",
    ),
    "dimension in neither": (SST, {"samples": "time", "features": "lat"}, "lon is neither"),
    "all dimensions are features": (SST, {"features": list(DIMS)}, "no dimension is left for samples"),
    "three dimensions without samples": (SST, {}, "say which of them are samples"),
    "no name at all": (SST, {"samples": []}, "expected a name"),
    "number for a name": (SST, {"samples": 0}, "expected a name"),
    "names that occur twice": (arrays(sst=(CUBE, ("time", "x", "x"))), {"samples": "time"}, "every name once"),
    "orientation and samples": (SST, {"samples": "time", "orientation": "features_first"}, "leave one out"),
    "array and variables": (SST, {"samples": "time", "array": "sst", "variables": ["sst"]}, "leave one out"),
    "variable that is not there": (SST, {"samples": "time", "variables": ["sst", "ice"]}, "no array 'ice'"),
    "variable named twice": (SST, {"samples": "time", "variables": ["sst", "sst"]}, "different names"),
    "other size": (
        arrays(u=(CUBE, DIMS), v=(CUBE[:, :2], DIMS)),
        {"samples": "time", "variables": ["u", "v"]},
        "different grids",
    ),
    "other coordinate": (
        lambda group: arrays(
            **{
                "a/u": (CUBE, DIMS),
                "a/lat": ([1.0, 2, 3], ("lat",)),
                "b/v": (CUBE, DIMS),
                "b/lat": ([1.0, 2, 4], ("lat",)),
            }
        )(group),
        {"samples": "time", "variables": ["a/u", "b/v"]},
        "coordinate lat",
    ),
    "samples of other length": (
        arrays(u=(CUBE, DIMS), v=(CUBE[:5], DIMS)),
        {"samples": "time", "variables": ["u", "v"]},
        "different grids",
    ),
    "variable without the samples": (
        arrays(u=(CUBE, DIMS), v=(CUBE[0], DIMS[1:])),
        {"samples": "time", "variables": ["u", "v"]},
        "no dimension 'time'",
    ),
    "scale of zero": (field(scale_factor=0.0), {"samples": "time"}, "scale_factor=0"),
    "scale that is text": (field(scale_factor="much"), {"samples": "time"}, "scale_factor='much'"),
    "infinite offset": (field(add_offset=float("inf")), {"samples": "time"}, "add_offset"),
    "fill value that is text": (field(_FillValue="none"), {"samples": "time"}, "_FillValue"),
    "text": (arrays(sst=(CUBE.astype("U3"), DIMS)), {"samples": "time"}, "dtype"),
    "times": (arrays(sst=(CUBE.astype("M8[s]"), DIMS)), {"samples": "time"}, "dtype"),
    "complex numbers": (arrays(sst=(CUBE.astype("c8"), DIMS)), {"samples": "time"}, "Complex"),
    "no samples": (arrays(sst=(CUBE[:0], DIMS)), {"samples": "time"}, "0 sample"),
    "no features": (arrays(sst=(CUBE[:, :0], DIMS)), {"samples": "time"}, "0 feature"),
    "units of a time that is none": (
        arrays(sst=(CUBE, DIMS), time=(np.arange(6), DIMS[:1], {"units": "days since the flood"})),
        {"samples": "time"},
        "days since 1990",
    ),
    "units with a date that is none": (
        arrays(sst=(CUBE, DIMS), time=(np.arange(6), DIMS[:1], {"units": "hours since 2001-02-30"})),
        {"samples": "time"},
        "no such date",
    ),
    "time out of range": (
        arrays(sst=(CUBE, DIMS), time=(np.arange(6) * 1e300, DIMS[:1], {"units": "days since 2001-01-01"})),
        {"samples": "time"},
        "out of range",
    ),
    "year of four thousand digits": (
        arrays(sst=(CUBE, DIMS), time=(np.arange(6), DIMS[:1], {"units": "days since " + "9" * 4000})),
        {"samples": "time"},
        "days since 1990",
    ),
    "damaged coordinate": (damaged_coordinate, {"samples": "time"}, "coordinate lat"),
    "image with axes of another number": (ome([{"name": "t"}, {"name": "y"}]), {"samples": "t"}, "no dimension 't'"),
    "image with the same axis twice": (
        ome([{"name": "t"}, {"name": "y"}, {"name": "y"}]),
        {"samples": "t"},
        "every name once",
    ),
    "image with axes that are no list": (ome({"t": 0}), {"samples": "t"}, "no dimension 't'"),
    "mask of another shape": (SST, {"samples": "time", "mask": np.ones((4, 3), bool)}, "mask has shape (4, 3)"),
    "mask of text": (SST, {"samples": "time", "mask": np.full((3, 4), "yes")}, "truth values"),
    "mask without any feature": (SST, {"samples": "time", "mask": np.zeros((3, 4))}, "leaves out all"),
    "mask that is not there": (SST, {"samples": "time", "mask": "ocean"}, "neither an .npy file nor an array"),
    "mask outside of the store": (SST, {"samples": "time", "mask": "../ocean"}, "neither an .npy file nor an array"),
    "mask file that is not there": (SST, {"samples": "time", "mask": "nowhere.npy"}, "cannot be read"),
    "mask with other dimensions of the same shape": (
        arrays(sst=(np.ones((6, 3, 3), "f4"), DIMS), land=(np.ones((3, 3), bool), ("y", "x"))),
        {"samples": "time", "mask": "land"},
        "mask land has the dimensions y, x",
    ),
    "mask over samples": (
        arrays(sst=(CUBE, DIMS), land=(np.ones(6, bool), DIMS[:1])),
        {"samples": "time", "mask": "land"},
        "mask",
    ),
    "mask of times": (
        arrays(sst=(CUBE, DIMS), land=(np.ones((3, 4), "M8[s]"), DIMS[1:])),
        {"samples": "time", "mask": "land"},
        "truth values",
    ),
    "mask with a missing chunk": (missing_chunk_of_mask, {"samples": "time", "mask": "land"}, "mask land: chunk"),
    "mask that is a group": (
        lambda group: (SST(group), group.create_group("land"))[0],
        {"samples": "time", "mask": "land"},
        "neither an .npy file nor an array",
    ),
    "decoding of another name": (SST, {"samples": "time", "decode": "cf"}, 'expected "auto" or "raw"'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_table_raises_one_line_with_a_status_and_nothing_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, options, words = BROKEN[name]
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(action="ignore"):  # of zarr, about types that its format 3 does not specify
        build(zarr.create_group("x.zarr"))
    before = picture(tmp_path)
    with pytest.raises(StreamPCAError) as raised:
        sp.PCA(2).fit(sp.open("x.zarr", **options))
    message = str(raised.value)
    assert raised.value.exit_status in (2, 5), type(raised.value)
    assert words in message, message
    assert len(message.splitlines()) == 1
    assert len(message) < 700
    assert picture(tmp_path) == before


@pytest.mark.parametrize("key", ["samples", "features", "variables", "mask"])
def test_names_for_a_file_without_names_raise_named_error(key: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", CUBE[0])
    mask, numbered = (
        "mask: 'time' is neither an .npy file nor an array beside the data",
        r"no dimension 'time': expected one of dim_0 \(3\), dim_1 \(4\)",
    )
    of_file = {"mask": "mask: time cannot be read", "variables": "variables does not apply to an .npy file"}.get(
        key, numbered
    )
    of_array = {"mask": mask, "variables": "variables does not apply to an array"}.get(key, numbered)
    for data, words in ((tmp_path / "x.npy", of_file), (CUBE[0], of_array)):
        with pytest.raises(StreamPCAError, match=words) as raised:
            sp.open(data, **{key: "time"})
        assert raised.value.exit_status in (2, 5)


def test_mask_by_name_in_another_order_of_dimensions_is_matched_by_name(tmp_path: Path) -> None:
    """Which hyperspy takes for a mask of the flattened places in its own order, silently."""
    land = np.arange(12).reshape(3, 4) % 3 > 0
    group = zarr.create_group(tmp_path / "x.zarr")
    arrays(sst=(CUBE, DIMS), land=(land.T, ("lon", "lat")))(group)
    source = sp.open(tmp_path / "x.zarr", samples="time", mask="land", variables="sst")
    np.testing.assert_array_equal(source.read(0, 6)[0], CUBE[:, land])
    with pytest.raises(StreamPCAError, match=r"mask has shape \(4, 3\)"):
        sp.open(tmp_path / "x.zarr", samples="time", mask=land.T, variables="sst")


def test_signal_axis_of_several_chunks_is_used_whole(tmp_path: Path) -> None:
    """Of which hyperspy uses the first chunk only, silently."""
    cube = np.random.default_rng(0).standard_normal((8, 9, 24))
    add(zarr.create_group(tmp_path / "x.zarr"), "eels", cube, ("y", "x", "energy"))  # two chunks along energy
    pca = sp.PCA(5).fit(sp.open(tmp_path / "x.zarr", samples=["y", "x"]))
    expected = np.linalg.eigvalsh(np.cov(cube.reshape(72, 24).T))[::-1][:5]
    assert pca.components_.shape == (5, 24)
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "name",
    ["unknown sample dimension", "other size", "scale of zero", "mask of times", "damaged coordinate", "no samples"],
)
def test_broken_table_in_a_configuration_ends_with_one_line_and_its_status(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build, options, words = BROKEN[name]
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(action="ignore"):
        build(zarr.create_group("x.zarr"))
    source = yaml.safe_dump({"path": "x.zarr", **options}, default_flow_style=True).strip()
    text = config_text("x", "out", "model: {n_components: 2, solver: covariance}")
    (tmp_path / "c.yaml").write_text(text.replace("{path: 'x'}", source))
    before, command = picture(tmp_path), Command(capsys)
    called = command.quietly("run", "c.yaml")
    assert called.status in (2, 5)
    called.refused(called.status, words)
    assert picture(tmp_path) == before
