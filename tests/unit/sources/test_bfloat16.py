"""Arrays of bfloat16 are the float32 numbers that they are; where a format cannot say that it holds them, an error says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import streampca as sp
from streampca.errors import DataError

ml_dtypes = pytest.importorskip("ml_dtypes")
ROWS = np.random.default_rng(0).normal(size=(60, 5)).astype(ml_dtypes.bfloat16)
ROWS[3, 2] = np.nan
EXACT = ROWS.astype("f4")


class Sliced:
    """An array of another library, which reads a slice when it is indexed."""

    shape, dtype, ndim = ROWS.shape, ROWS.dtype, 2

    def __getitem__(self, at: Any) -> Any:
        return ROWS[at]


def mapped(place: Path) -> Any:
    np.save(place, ROWS)
    return np.load(place, mmap_mode="r").view(ml_dtypes.bfloat16)


def labelled(place: Path, *, dataset: bool) -> Any:
    made = pytest.importorskip("xarray").DataArray(ROWS, dims=("t", "y"), name="x", coords={"y": np.arange(5)})
    return made.to_dataset() if dataset else made


KINDS: dict[str, Any] = {
    "numpy": lambda place: ROWS,
    "memory map": mapped,
    "Dask": lambda place: da.from_array(ROWS, chunks=(25, 3)),
    "lazy": lambda place: Sliced(),
    "DataArray": lambda place: labelled(place, dataset=False),
    "Dataset": lambda place: labelled(place, dataset=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_exact(kind: str, tmp_path: Path) -> None:
    data = KINDS[kind](tmp_path / "x.npy")
    table = sp.open(data, mask=np.arange(5) != 1)
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table.read(0, 60)[0], np.delete(EXACT, 1, 1))
    pca = sp.PCA(2, missing="drop_rows").fit(data)
    expected = np.linalg.eigvalsh(np.cov(np.delete(EXACT, 3, 0).astype("f8").T))[::-1][:2]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-12)
    scores = np.asarray(pca.transform(data))
    np.testing.assert_allclose(scores, pca.transform(EXACT), rtol=0, atol=1e-6)
    assert np.isnan(scores).any(axis=1).nonzero()[0].tolist() == [3]


def test_a_file_that_does_not_name_the_type_is_refused_with_what_to_do(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    with pytest.raises(DataError, match=r"as numpy stores bfloat16.*mmap_mode='r'\)\.view\(ml_dtypes\.bfloat16\)"):
        sp.open(tmp_path / "x.npy")


def test_zarr_names_the_type(tmp_path: Path) -> None:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [60, 5],
        "data_type": "bfloat16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [60, 5]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr" / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="write bfloat16 as float32"):
        sp.open(tmp_path / "x.zarr")
