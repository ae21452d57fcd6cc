"""What the system does not let through is an error, and never taken for chunks that were not written."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from stores import make_values, write_store

import streampca as sp
from streampca.errors import DataError, MissingChunkError, NotAvailableError


def refuse(monkeypatch: pytest.MonkeyPatch, below: Path, number: int) -> None:
    """Let the status of files below a directory be refused, as permissions do for users other than root, or a damaged disk."""
    original: Callable[..., os.stat_result] = os.stat

    def refused(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | os.PathLike) and str(path).startswith(str(below)):
            raise OSError(number, os.strerror(number), str(path))
        return original(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refused)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("missing_chunks", ["error", "fill"])
def test_chunks_that_cannot_be_looked_at_are_not_missing(
    missing_chunks: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_store(tmp_path / "x.zarr")
    source = sp.open(path, missing_chunks=missing_chunks)
    refuse(monkeypatch, path / "c", number)
    with pytest.raises(DataError, match=os.strerror(number)) as caught:
        sp.PCA(2).fit(source)
    assert not isinstance(caught.value, MissingChunkError)


def test_coordinates_that_cannot_be_looked_at_are_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = zarr.create_group(tmp_path / "x.zarr")
    for name, values, names in (("x", make_values(40, 3), ("row", "column")), ("row", np.arange(1.0, 41.0), ("row",))):
        group.create_array(name, data=values, dimension_names=names)
    refuse(monkeypatch, tmp_path / "x.zarr" / "row" / "c", errno.EACCES)
    with pytest.raises(DataError, match=r"coordinate row: .*Permission denied"):
        sp.open(tmp_path / "x.zarr", array="x")


@pytest.mark.parametrize("name", ["x.zarr", "x.npy", "x.parquet", "shards", "x.h5ad"])
def test_a_path_that_is_not_let_through_is_a_named_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, tmp_path, errno.EACCES)
    with pytest.raises(DataError, match=name):
        sp.open(tmp_path / name)


def test_chunks_without_a_fill_value_are_not_filled(tmp_path: Path) -> None:
    array: Any = zarr.create_array(tmp_path / "x.zarr", shape=(40, 3), chunks=(20, 3), dtype="f8", zarr_format=2)
    array[:20] = 1.0 + make_values(20, 3)
    document = json.loads((tmp_path / "x.zarr" / ".zarray").read_text())
    (tmp_path / "x.zarr" / ".zarray").write_text(json.dumps(document | {"fill_value": None}))
    with pytest.raises(DataError, match=r"1 chunks were never written and the array has no fill value .* first: 1\.0"):
        sp.PCA(2).fit(sp.open(tmp_path / "x.zarr", missing_chunks="fill"))
    (tmp_path / "x.zarr" / ".zarray").write_text(json.dumps(document | {"fill_value": 2.0}))
    rows = sp.open(tmp_path / "x.zarr", missing_chunks="fill").read(0, 40)[0]
    assert (rows[20:] == 2.0).all()


def test_a_path_that_is_no_utf_8_is_a_named_error(tmp_path: Path) -> None:
    path = str(tmp_path / os.fsdecode(b"caf\xe9.npy"))
    try:
        np.save(path, make_values())
    except OSError:
        pytest.skip("this file system has names in UTF-8 alone")
    with pytest.raises(DataError, match=r"caf\\udce9\.npy' is not encoded as UTF-8: give it another name"):
        sp.PCA(2).fit(path)
    (tmp_path / "link.npy").symlink_to(path)
    assert sp.PCA(2).fit(tmp_path / "link.npy").n_samples_seen_ == 400


def changed(path: Path, **entries: Any) -> Path:
    """Change entries of the metadata of the zarr array at `path`."""
    place = path / ("zarr.json" if (path / "zarr.json").exists() else ".zarray")
    place.write_text(json.dumps(json.loads(place.read_text()) | entries))
    return path


ROWS = np.random.default_rng(0).standard_normal((20, 3))


@pytest.mark.parametrize(
    ("version", "entries", "codec"),
    [
        (2, {"compressor": {"id": "jpegxl", "level": 1}}, "jpegxl"),
        (2, {"filters": [{"id": "zfpy", "mode": 4}]}, "zfpy"),
        (3, {"codecs": [{"name": "nobodys", "configuration": {}}]}, "nobodys"),
    ],
)
def test_codecs_that_are_not_installed_are_no_damage(version: Any, entries: Any, codec: str, tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", zarr_format=version)
    group.create_array("x", data=ROWS)
    changed(tmp_path / "g.zarr/x", **entries)
    for path, options in ((tmp_path / "g.zarr/x", {}), (tmp_path / "g.zarr", {"array": "x"})):
        with pytest.raises(NotAvailableError, match=f"the codec {codec} is not installed here"):
            sp.open(path, **options)


@pytest.mark.skipif(find_spec("pcodec") is not None, reason="the codec is installed")
def test_codecs_that_are_found_missing_when_a_chunk_is_decoded_are_no_damage(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=ROWS)
    changed(tmp_path / "x.zarr", codecs=[{"name": "numcodecs.pcodec", "configuration": {"level": 4}}])
    with pytest.raises(NotAvailableError, match="the codec pcodec is not installed here"):
        sp.PCA(2).fit(tmp_path / "x.zarr")


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_an_array_of_an_unknown_type_hides_no_other(version: Any, consolidated: bool, tmp_path: Path) -> None:
    path = tmp_path / "g.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=version)
    group.create_array("x", data=ROWS)
    group.create_array("inside/odd", data=np.zeros(3))
    if consolidated:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(path)
    kind = {"dtype": "|O", "filters": [{"id": "json2"}]} if version == 2 else {"data_type": "nobodys"}
    changed(path / "inside/odd", **kind)
    if consolidated and version == 2:
        document = json.loads((path / ".zmetadata").read_text())
        document["metadata"]["inside/odd/.zarray"] |= kind
        (path / ".zmetadata").write_text(json.dumps(document))
    elif consolidated:
        document = json.loads((path / "zarr.json").read_text())
        document["consolidated_metadata"]["metadata"]["inside/odd"] |= kind
        (path / "zarr.json").write_text(json.dumps(document))
    for options in ({}, {"array": "x"}):
        np.testing.assert_array_equal(sp.open(path, **options).to_dask().compute(), ROWS)
    with pytest.raises(DataError, match=r"inside/odd cannot be opened: No Zarr data type"):
        sp.open(path, array="inside/odd")


def test_chunks_of_several_shapes_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    zarr.create_array(path, data=ROWS, chunks=(5, 3))
    opened = zarr.open_array(path)
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[5, 15], 3]}}
    changed(path, chunk_grid=grid)
    with pytest.raises(NotAvailableError, match="has chunks of several shapes"):
        sp.open(path)
    # zarr 3.2 and later open such arrays: these are the metadata that they show.
    told = opened.metadata.to_dict() | {"chunk_grid": grid}
    object.__setattr__(opened.metadata, "to_dict", lambda: told)
    with pytest.raises(NotAvailableError, match="has chunks of several shapes"):
        sp.open(opened)


@pytest.mark.parametrize("ending", ["he5", "nwb", "loom", "hdf", "cdf", "mat"])
def test_hdf5_has_many_names(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{ending}"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["x"] = ROWS
    np.testing.assert_array_equal(sp.open(path).to_dask().compute(), ROWS)


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("x.hdf", b"\x0e\x03\x13\x01", "an HDF4 file"),
        ("x.cdf", b"\xcd\xf3\x00\x01", "a CDF file of NASA"),
        ("x.mat", b"MATLAB 5.0 MAT-file", r"a MAT file of a version before 7\.3"),
        ("x.archive", b"PK\x03\x04", "a zip archive"),
        ("x.h5", b"PK\x03\x04", "a zip archive"),
        ("x.grib", b"GRIB", "a GRIB file"),
        ("x.data", b"\x89HDF\r\n\x1a\n", r"an HDF5 file: give it a name that ends in \.h5"),
    ],
)
def test_what_is_not_read_is_refused_by_its_true_name(name: str, content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content + bytes(600))
    with pytest.raises(DataError, match=f"it is {what}"):
        sp.open(tmp_path / name)


def test_npy_files_of_any_dimensions_have_samples(tmp_path: Path) -> None:
    cube = np.random.default_rng(0).standard_normal((20, 3, 4))
    np.save(tmp_path / "x.npy", cube)
    table = sp.open(tmp_path / "x.npy", samples="dim_0")
    np.testing.assert_array_equal(table.to_dask().compute(), cube.reshape(20, 12))
    assert table.fingerprint == sp.open(tmp_path / "x.npy", samples="dim_0").fingerprint
    pca = sp.PCA(2).fit(table)
    expected = np.linalg.eigvalsh(np.cov(cube.reshape(20, 12).T))[::-1][:2]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-12)
    assert pca.transform(tmp_path / "x.npy").shape == (20, 2)
    with pytest.raises((DataError, ValueError), match="samples"):
        sp.open(tmp_path / "x.npy")
