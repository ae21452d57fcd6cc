"""Arrays of other libraries that read a slice when they are indexed are read by chunks; what is no table at all is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import streampca as sp
from streampca.errors import DataError, MissingChunkError

ROWS = np.random.default_rng(0).standard_normal((600, 8)) + 3


class Lazy:
    """An array that reads what it is asked for, and remembers how much that was."""

    def __init__(self, values: Any, chunks: Any = None):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype
        self.sizes: list[int] = []
        if chunks is not None:
            self.chunks = chunks

    def __getitem__(self, key: Any) -> Any:
        found = self.values[key]
        self.sizes.append(found.nbytes)
        return found

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("read whole")


@pytest.mark.parametrize("chunks", [None, (50_000, 8), (50_000, 3), (70_001, 8)])
def test_lazy_arrays_are_read_by_chunks(chunks: Any) -> None:
    rows = np.tile(ROWS, (500, 1))  # 18 MiB
    lazy = Lazy(rows, chunks)
    pca = sp.PCA(2, solver="covariance").fit(lazy)
    expected = np.linalg.eigvalsh(np.cov(rows.T))[::-1][:2]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-12)
    assert max(lazy.sizes) <= 2**23
    assert sum(lazy.sizes) <= rows.nbytes + 64
    scores = pca.transform(lazy)
    np.testing.assert_allclose(scores.compute(), (rows - rows.mean(0)) @ pca.components_.T, atol=1e-10)


def test_lazy_fields_have_samples_along_any_dimension() -> None:
    cube = ROWS.reshape(20, 30, 8)
    table = sp.open(Lazy(cube, (5, 10, 8)), samples="dim_1")
    np.testing.assert_array_equal(table.to_dask().compute(), cube.transpose(1, 0, 2).reshape(30, 160))


def test_values_that_a_library_masks_are_missing() -> None:
    masked = np.ma.masked_less(ROWS, 1.5)
    pca = sp.PCA(2, missing="mean").fit(Lazy(masked))
    expected = sp.PCA(2, missing="mean").fit(masked.filled(np.nan))
    np.testing.assert_allclose(pca.explained_variance_, expected.explained_variance_, rtol=1e-9)
    with pytest.raises(DataError, match="NaN"):
        sp.PCA(2).fit(Lazy(masked))
    counts = np.ma.masked_equal(np.arange(4000).reshape(500, 8) % 97, 5)
    found = sp.open(Lazy(counts.astype("i2"))).to_dask().compute()
    np.testing.assert_array_equal(found, counts.astype("f8").filled(np.nan))


@pytest.mark.parametrize("values", [ROWS + 1j, ROWS.astype(object), ROWS.astype("S9")])
def test_lazy_arrays_of_other_types_are_refused(values: Any) -> None:
    with pytest.raises(DataError, match="expected"):
        sp.PCA(2).fit(Lazy(values))


def test_lazy_arrays_that_do_not_give_numpy_arrays_are_refused() -> None:
    class Frames(Lazy):
        def __getitem__(self, key: Any) -> Any:
            return self.values[key].tolist()

    with pytest.raises(DataError, match="returns list when indexed"):
        sp.PCA(2).fit(Frames(ROWS))


def test_datasets_of_h5py_are_read_as_their_files_are(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a/rows", data=ROWS, chunks=(50, 8))
        file.create_dataset("some", shape=(60, 8), chunks=(10, 8), dtype="f4")[:10] = 1
        packed = file.create_dataset("packed", data=np.arange(480, dtype="i2").reshape(60, 8))
        packed.attrs["scale_factor"] = 0.5
        written = sp.PCA(2).fit(file["a/rows"])  # while the file is open for writing
    with h5py.File(tmp_path / "x.h5", "r") as file:
        pca = sp.PCA(2).fit(file["a/rows"])
        table = sp.open(file["a/rows"])
        assert table.portable
        assert table.describe()["array"] == "a/rows"
        np.testing.assert_array_equal(sp.open(file["packed"]).to_dask().compute(), file["packed"][...] * 0.5)
        with pytest.raises(MissingChunkError):
            sp.PCA(2).fit(file["some"])
        with pytest.raises(DataError, match=r"h5py.*data\['name'\]"):
            sp.PCA(2).fit(file)
    for each in (pca, written):
        np.testing.assert_allclose(each.explained_variance_, sp.PCA(2).fit(ROWS).explained_variance_, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: (row for row in np.eye(3)), "builtins.generator.*partial_fit"),
        (lambda: {"a": [1, 2]}, "builtins.dict.*data frame"),
        (lambda: {1, 2}, "builtins.set"),
        (lambda: 3.5, "builtins.float"),
        (lambda: None, "NoneType"),
        (object, "builtins.object"),
    ],
)
@pytest.mark.parametrize("door", [sp.open, sp.PCA(1).fit, sp.PCA(1).fit(np.eye(3)).transform, sp.KernelPCA(1).fit])
def test_types_that_are_no_table_are_named(make: Any, match: str, door: Any) -> None:
    with pytest.raises(DataError, match=f"cannot read data of type .*{match}"):
        door(make())


def test_batches_of_arrow_that_come_once_are_refused() -> None:
    pa = pytest.importorskip("pyarrow")
    for door in (sp.open, sp.PCA(1).fit):
        with pytest.raises(DataError, match=r"RecordBatchReader.*partial_fit"):
            door(pa.table({"a": [1.0, 2, 3], "b": [2.0, 3, 5]}).to_reader())
