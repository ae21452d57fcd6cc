"""Datasets in HDF5 files: of two dimensions and more, contiguous and in chunks, with names, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fragments import write_hdf5
from stores import make_values

import streampca as sp
from streampca.errors import (
    ChangedInputError,
    DataError,
    MergeError,
    MissingChunkError,
    NotAvailableError,
    OutsideStoreError,
    ParameterError,
)


@pytest.fixture
def cube() -> np.ndarray:
    return make_values(60, 20).reshape(60, 4, 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.h5"


@pytest.mark.parametrize("options", [{}, {"chunks": (7, 20)}, {"chunks": (7, 6), "compression": "gzip"}])
def test_two_dimensions_are_rows_and_columns(options, path, cube):
    values = cube.reshape(60, 20)
    table = sp.open(write_hdf5(path, values, **options))
    np.testing.assert_array_equal(table.to_dask(13).compute(), values)
    np.testing.assert_array_equal(table.by_features().to_dask(3).compute(), values.T)
    pca = sp.PCA(2).fit(table)
    assert pca.bytes_read_ == values.nbytes
    np.testing.assert_allclose(pca.explained_variance_, sp.PCA(2).fit(values).explained_variance_, rtol=1e-12)
    turned = sp.open(path, orientation="features_first")
    np.testing.assert_array_equal(turned.to_dask(6).compute(), values.T)


@pytest.mark.deep(keep=5)
@pytest.mark.parametrize("chunks", [None, (7, 3, 2)])
@pytest.mark.parametrize("rows", [(0,), (1,), (0, 1), (1, 0), (2, 0)])
def test_any_dimensions_are_samples(rows, chunks, path, cube):
    write_hdf5(path, cube, chunks=chunks)
    names = [f"dim_{axis}" for axis in rows]
    columns = [axis for axis in range(3) if axis not in rows]
    table = sp.open(path, samples=names)
    expected = cube.transpose(*rows, *columns).reshape(table.shape)
    for n_rows in (1, 3, 11):
        np.testing.assert_array_equal(table.to_dask(n_rows).compute(), expected)
    np.testing.assert_array_equal(table.by_features().to_dask(2).compute(), expected.T)


def test_dimension_scales_are_names_and_coordinates(path, cube):
    import h5py

    with h5py.File(write_hdf5(path, cube, "g/sst"), "a") as file:
        for axis, (name, values) in enumerate({"time": np.arange(60), "lat": np.arange(4) * 10.5}.items()):
            file[name] = values
            file[name].make_scale(name)
            file["g/sst"].dims[axis].attach_scale(file[name])
        file["time"].attrs["units"] = "days since 2000-01-01"
        file["g/sst"].dims[2].label = "lon"
        file["lat_bnds"] = np.zeros((4, 2))
    table = sp.open(path, samples="time")
    assert table.labels.sample_name(31) == "time=2000-02-01"
    assert table.labels.feature_name(6) == "g/sst(lat=10.5, lon=1)"
    scores = sp.PCA(2).fit(table).transform(path)
    assert scores.shape == (60, 2)


@pytest.mark.parametrize(("scale", "offset", "dtype"), [("f4", "f4", "f4"), ("f8", "f8", "f8"), ("f4", "f8", "f8")])
def test_packed_values_are_decoded_to_the_type_of_scale_and_offset(path, scale, offset, dtype):
    import h5py

    stored = np.random.default_rng(0).integers(-1000, 1000, (50, 6)).astype("i2")
    stored[4, 2] = -32768
    with h5py.File(write_hdf5(path, stored, chunks=(8, 6)), "a") as file:
        file["x"].attrs["scale_factor"] = np.array(0.01, scale)
        file["x"].attrs["add_offset"] = np.array([290.1], offset)
        file["x"].attrs["_FillValue"] = np.int16(-32768)
    factor, shift = np.array(0.01, scale).astype(dtype), np.array(290.1, offset).astype(dtype)
    expected = np.where(stored == -32768, np.nan, stored.astype(dtype) * factor + shift)
    assert sp.open(path).dtype == dtype
    np.testing.assert_array_equal(sp.open(path).to_dask().compute(), expected)
    np.testing.assert_array_equal(sp.open(path, decode="raw").to_dask().compute(), stored)


def test_packed_scales_are_decoded(path):
    import h5py

    with h5py.File(path, "w") as file:
        file["x"] = np.arange(30.0).reshape(10, 3)
        file["lat"] = np.array([-20, 0, 20], dtype="i2")
        file["lat"].attrs.update({"scale_factor": 0.25, "add_offset": 1.0, "_FillValue": np.int16(-9)})
        file["lat"].make_scale("lat")
        file["x"].dims[1].attach_scale(file["lat"])
    np.testing.assert_array_equal(sp.open(path, array="x").labels.along("lat"), [-4.0, 1.0, 6.0])


def test_several_files_follow_each_other_along_their_samples(tmp_path, cube):
    for index, (start, stop) in enumerate(itertools.pairwise((0, 7, 33, 60))):
        write_hdf5(tmp_path / f"part-{index}.h5", cube[start:stop])
    table = sp.open(tmp_path / "part-*.h5", samples="dim_0")
    np.testing.assert_array_equal(table.to_dask(10).compute(), cube.reshape(60, 20))
    assert [fragment.n_rows for fragment in table.fragments] == [7, 26, 27]
    write_hdf5(tmp_path / "part-9.h5", cube[:, :3])
    with pytest.raises(DataError, match=r"part-9\.h5: x has features of shape 3 × 5"):
        sp.open(tmp_path / "part-*.h5", samples="dim_0")


def test_chunks_that_were_never_written_are_an_error_unless_filled(path):
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("x", (100, 4), "f4", chunks=(10, 4), fillvalue=2)[:30] = 1
    with pytest.raises(MissingChunkError, match="7 of 10 chunks"):
        sp.PCA(1).fit(path)
    table = sp.open(path, missing_chunks="fill")
    assert sp.PCA(1).fit(table).mean_ == pytest.approx([1.7] * 4)
    assert table.missing_chunks_filled == 7


def test_a_changed_file_is_named(path, cube):
    table = sp.open(write_hdf5(path, cube.reshape(60, 20)))
    write_hdf5(path, cube[:30].reshape(30, 20))
    with pytest.raises(ChangedInputError, match=r"x\.h5 was changed"):
        sp.PCA(1).fit(table)


def _broken(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["x"], file["y"], file["line"] = np.ones((5, 3)), np.ones((5, 3)), np.ones(5)
        file["text"], file["pairs"] = np.array([[b"a", b"b"]]), np.zeros((3, 2), [("a", "f4")])
        file["cube"], file["nothing"] = np.ones((2, 3, 4)), h5py.Empty("f4")
        file["group/inner"] = np.ones((5, 3))
        file["outside"] = h5py.ExternalLink("other.h5", "/x")
        file["through"], file["loop"] = h5py.SoftLink("/outside"), h5py.SoftLink("/loop")
        file["dangling"] = h5py.SoftLink("/none")
        layout = h5py.VirtualLayout((5, 3), "f8")
        layout[:] = h5py.VirtualSource("other.h5", "x", (5, 3))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("raw", (5, 3), "f8", external=[("other.raw", 0, 120)])


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (None, DataError, r"name the dataset.*cube \(2, 3, 4\)"),
        ("none", DataError, "no dataset 'none': expected one of"),
        ("group", DataError, "no dataset 'group'"),
        ("dangling", DataError, "no dataset 'dangling'"),
        ("nothing", DataError, "no dataset 'nothing'"),
        ("line", DataError, "Expected 2D array"),
        ("cube", DataError, "3 dimensions.*say which of them are samples"),
        ("text", DataError, r"dtype \|S1"),
        ("pairs", DataError, "dtype"),
        ("outside", OutsideStoreError, "link to other.h5/x, another file"),
        ("through", OutsideStoreError, "link to other.h5/x, another file"),
        ("loop", DataError, "more than 16 links"),
        ("virtual", OutsideStoreError, "in other files"),
        ("raw", OutsideStoreError, "in other files"),
    ],
)
def test_what_is_no_dataset_of_the_file_is_refused(name, error, message, path):
    _broken(path)
    with pytest.raises(error, match=message) as caught:
        sp.open(path, array=name)
    assert "\n" not in str(caught.value)


def test_soft_links_within_the_file_are_followed(path, cube):
    import h5py

    with h5py.File(write_hdf5(path, cube.reshape(60, 20)), "a") as file:
        file["g/a"], file["link"] = h5py.SoftLink("/x"), h5py.SoftLink("g/a")
    np.testing.assert_array_equal(sp.open(path, array="link").to_dask().compute(), cube.reshape(60, 20))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "it is empty"), (b"hello", "cannot be opened as HDF5"), (None, "No such file"), (-400, "truncated|damaged")],
)
def test_broken_files_are_refused(content, message, path, cube):
    if isinstance(content, int):
        path.write_bytes(write_hdf5(path, cube.reshape(60, 20)).read_bytes()[:content])
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        sp.PCA(1).fit(path)


def test_damaged_chunks_are_named(path, cube):
    write_hdf5(path, cube.reshape(60, 20), chunks=(60, 20), fletcher32=True)
    stored = bytearray(path.read_bytes())
    stored[-3000] ^= 1
    path.write_bytes(stored)
    with pytest.raises(DataError, match=r"x\.h5: x \(rows 0 to 59\) is damaged"):
        sp.PCA(1).fit(path)


def test_options_of_other_files_are_refused(path, cube):
    write_hdf5(path, cube)
    with pytest.raises(NotAvailableError, match="columns does not apply to HDF5"):
        sp.open(path, columns="x")


def _two_variables(path: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Write two variables of NetCDF 4 on the same times; the second is packed."""
    random = np.random.default_rng(seed)
    field, index = random.normal(size=(20, 3, 4)), random.integers(-99, 99, (20, 3)).astype("i2")
    scales = {"time": np.arange(20.0), "lat": np.array([-60.0, 0, 60]), "lon": np.arange(4) * 90.0}
    with h5py.File(path, "w") as file:
        for name, values in scales.items():
            file[name] = values
            file[name].make_scale(name)
        file["u"], file["v"] = field, index
        file["v"].attrs["scale_factor"] = 0.5
        for axis, name in enumerate(scales):
            file["u"].dims[axis].attach_scale(file[name])
            if axis < 2:
                file["v"].dims[axis].attach_scale(file[name])
    return field.reshape(20, 12), index * 0.5


def test_variables_are_side_by_side(tmp_path):
    rows = [np.hstack(_two_variables(tmp_path / f"{name}.nc", seed)) for seed, name in enumerate("abc")]
    table = sp.open(tmp_path / "a.nc", variables=["u", "v"], samples="time")
    np.testing.assert_array_equal(np.asarray(table.to_dask()), rows[0])
    pca = sp.PCA(3, feature_weight="cos(lat)").fit(table)
    weight = np.append(np.repeat([0.5, 1, 0.5], 4), [0.5, 1, 0.5])
    want = sp.PCA(3, feature_weight=weight).fit(np.asarray(rows[0]))
    np.testing.assert_allclose(pca.explained_variance_, want.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(pca.transform(tmp_path / "b.nc"), want.transform(rows[1]), atol=1e-9)
    every = sp.open(tmp_path / "*.nc", variables=["u", "v"], samples="time", mask=np.arange(15) % 4 > 0)
    np.testing.assert_array_equal(np.asarray(every.to_dask()), np.vstack(rows)[:, np.arange(15) % 4 > 0])
    batch = sp.PCA(2).partial_fit(table)
    with pytest.raises(MergeError, match=r"a\.nc"):
        batch.partial_fit(table)
    with pytest.raises(DataError, match="has no dataset 'w'"):
        sp.open(tmp_path / "a.nc", variables=["u", "w"], samples="time")


@pytest.mark.parametrize("locking", [None, True, False, "best-effort"])
def test_a_file_that_the_process_has_open_is_read(locking, path, cube):
    write_hdf5(path, cube.reshape(60, 20))
    with h5py.File(path, "r", locking=locking):
        np.testing.assert_array_equal(sp.open(path).to_dask().compute(), cube.reshape(60, 20))
        assert sp.PCA(2).fit(path).n_samples_seen_ == 60
    assert sp.PCA(2).fit(path).n_samples_seen_ == 60


def test_datasets_of_types_that_numpy_has_not_are_no_damage(path, cube):
    write_hdf5(path, cube.reshape(60, 20))
    quadruple = h5py.h5t.IEEE_F64LE.copy()
    quadruple.set_size(16)
    quadruple.set_precision(128)
    quadruple.set_fields(127, 112, 15, 0, 112)
    with h5py.File(path, "r+") as file:
        for name, kind in (("times", h5py.h5t.UNIX_D32LE), ("quadruple", quadruple)):
            h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple((60,)))
        file["long"] = np.zeros(60, dtype=np.longdouble)
    np.testing.assert_array_equal(sp.open(path).to_dask().compute(), cube.reshape(60, 20))
    for name in ("times", "quadruple", "long"):
        with pytest.raises(DataError, match=r"dtype .*: expected bool, integers|2D array"):
            sp.open(path, array=name)


def test_names_of_many_dimensions_are_found_without_a_search_for_each(path, cube, monkeypatch):
    with h5py.File(path, "w") as file:
        for name, n in (("time", 60), ("x", 20)):
            file[name] = np.arange(n)
            file[name].make_scale(name)
        file["data"] = cube.reshape(60, 20)
        for axis, name in enumerate(("time", "x")):
            file["data"].dims[axis].attach_scale(file[name])
    searched = []
    monkeypatch.setattr(
        h5py.Dataset,
        "name",
        property(lambda dataset: searched.append(dataset) or h5py.h5i.get_name(dataset.id).decode()),
    )
    with pytest.raises(DataError, match=r"data \(60, 20\) \[time, x\]"):
        sp.open(path, array="other")
    assert searched == []


def with_scale(path: Path, values: Any, **options: Any) -> Path:
    """Write ``x``, whose second dimension has the scale ``gene``."""
    with h5py.File(path, "w") as file:
        file["x"] = np.random.default_rng(0).standard_normal((9, 4))
        file.create_dataset("gene", data=values, **options).make_scale("gene")
        file["x"].dims[1].attach_scale(file["gene"])
    return path


@pytest.mark.parametrize("values", [np.zeros(4, [("a", "f4"), ("b", "S3")]), np.zeros(4, complex), np.zeros(4, "V5")])
def test_names_that_cannot_be_read_are_a_note_of_the_plan(tmp_path: Path, values: Any) -> None:
    table = sp.open(with_scale(tmp_path / "x.h5", values), array="x")
    (note,) = sp.PCA(2).plan(table).notes
    assert "names along gene are not read (gene has the type" in note
    assert "not compared" in note
    assert sp.PCA(2).fit(table).n_features_in_ == 4


def test_names_in_other_files_or_of_two_dimensions_are_a_note_of_the_plan(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["gene"] = np.arange(4.0)
    layout = h5py.VirtualLayout((4,), float)
    layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "gene", (4,))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["c"] = np.random.default_rng(0).standard_normal((9, 4)), np.eye(4)
        file.create_virtual_dataset("gene", layout).make_scale("gene")
        for dimension in (file["x"].dims[1], *file["c"].dims):
            dimension.attach_scale(file["gene"])
    assert "its values lie in other files" in sp.PCA(2).plan(sp.open(tmp_path / "x.h5", array="x")).notes[0]
    assert (
        "the scale gene is that of several dimensions" in sp.PCA(2).plan(sp.open(tmp_path / "x.h5", array="c")).notes[0]
    )


def test_names_of_single_characters_are_text_and_compared(tmp_path: Path) -> None:
    names = np.array([list("ab"), list("c "), list("de"), ["f", ""]], "S1")
    table = sp.open(with_scale(tmp_path / "x.h5", names), array="x")
    assert table.labels.features[0].coordinate.tolist() == ["ab", "c", "de", "f"]
    other = sp.open(with_scale(tmp_path / "y.h5", names[::-1]), array="x")
    with pytest.raises(ParameterError, match="another order"):
        sp.PCA(2).fit(table).transform(other)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_files_of_which_one_has_no_names_are_a_note_of_the_plan(tmp_path: Path, order: tuple[int, int]) -> None:
    paths = [with_scale(tmp_path / "0.h5", np.arange(4.0)), tmp_path / "1.h5"]
    with h5py.File(paths[1], "w") as file:
        file["x"] = np.random.default_rng(1).standard_normal((9, 4))
        file["x"].dims[1].label = "gene"
    table = sp.open([paths[place] for place in order], array="x")
    (note,) = sp.PCA(2).plan(table).notes
    assert f"names along gene are not in {paths[1]} (1 of 2 files)" in note
