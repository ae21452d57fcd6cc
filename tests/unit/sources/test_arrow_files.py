"""Arrow files of both formats: batches, nulls and labels, tensors, and what damaged and hostile ones lead to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stores import make_values

import streampca as sp
from streampca.errors import DamagedChunkError, DataError, PlanError, StreamPCAError

pa = pytest.importorskip("pyarrow")


def write_arrow(path: Path, table: Any, form: str, rows: int = 60, compression: str | None = None) -> Path:
    """Write a table as the Arrow format `form`, ``file`` or ``stream``, in batches of some rows."""
    opened = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with opened(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


@pytest.fixture
def values() -> np.ndarray:
    return make_values(250, 4).astype(np.float32)


def table_of(values: np.ndarray) -> Any:
    lists = pa.array(values[:, 1:].tolist(), pa.list_(pa.float32()))
    text = pa.array([f"t{i % 3}" for i in range(len(values))]).dictionary_encode()
    return pa.table({"a": values[:, 0], "v": lists, "text": text})


@pytest.mark.parametrize("form", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_record_batches_are_chunks_that_are_read_once(form, compression, tmp_path, values):
    path = write_arrow(tmp_path / "x.arrow", table_of(values), form, compression=compression)
    table = sp.open(path, columns=["v", "a"], id_column="text")
    assert table.grid.edges == (0, 60, 120, 180, 240, 250)
    np.testing.assert_array_equal(table.read(0, 250)[0], values[:, [1, 2, 3, 0]])
    counts = [table.read(start, start + 30)[1] for start in range(0, 240, 30)]
    assert [count.chunks for count in counts] == [1, 0] * 4
    assert table.labels.sample_name(4) == "text=t1"
    assert set(sp.PCA(1).fit_groups(table, "text")) == {"t0", "t1", "t2", "pooled", "between"}
    pca = sp.PCA(2).fit(table)
    assert pca.bytes_read_ == values.nbytes
    np.testing.assert_array_equal(
        pca.transform(path), pca.transform(table)
    )  # a path is opened with the columns of the fit
    assert pca.transform(path).shape == (250, 2)


def test_nulls_are_known_without_reading(tmp_path, values):
    table = pa.table({"n": pa.array([None, *range(249)], pa.uint8()), "s": ["x"] * 250, "m": pa.array(np.arange(250))})
    path = write_arrow(tmp_path / "x.feather", table, "file")
    assert sp.open(path, columns="n").dtype == np.float32
    assert sp.open(path, columns="m").dtype == np.int64
    assert np.isnan(sp.open(path, columns=["n", "m"]).read(0, 1)[0][0, 0])


@pytest.mark.parametrize("kind", ["table", "file", "polars"])
def test_features_of_tensors_have_their_dimensions(kind, tmp_path):
    cube = np.arange(240.0).reshape(40, 2, 3)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(cube.ravel()), 6)
    table: Any = pa.table({"v": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float64(), (2, 3)), flat)})
    if kind == "file":
        table = write_arrow(tmp_path / "x.arrow", table, "file")
    elif kind == "polars":
        polars = pytest.importorskip("polars")
        table = polars.DataFrame({"v": polars.Series(cube.tolist(), dtype=polars.Array(polars.Float64, (2, 3)))})
    opened = sp.open(table)
    np.testing.assert_array_equal(opened.to_dask().compute(), cube.reshape(40, 6))
    assert opened.labels.variables[0].shape == (2, 3)
    assert opened.labels.feature_name(4) == "v(feature_0=1, feature_1=1)"


def test_buffers_that_declare_more_than_memory_are_refused_by_the_plan(tmp_path):
    path = write_arrow(tmp_path / "x.arrow", pa.table({"a": np.zeros(500)}), "file", 500, "zstd")
    stored = path.read_bytes()
    place = stored.index((4000).to_bytes(8, "little") + b"\x28\xb5\x2f\xfd")
    path.write_bytes(stored[:place] + (2**40).to_bytes(8, "little") + stored[place + 8 :])
    with pytest.raises(PlanError, match="the process itself takes"):
        sp.PCA(1, memory="1GiB").fit(path)


def test_offsets_of_lists_outside_of_their_numbers_are_found(tmp_path, values):
    path = write_arrow(tmp_path / "x.arrow", table_of(values).select(["v"]), "stream", 250)
    stored = path.read_bytes()
    place = stored.index(np.arange(0, 30, 3, dtype="i4").tobytes())
    path.write_bytes(stored[: place + 20] + b"\xff\xff\xff\x7f" + stored[place + 24 :])
    with pytest.raises((DamagedChunkError, DataError), match=r"x\.arrow"):
        sp.PCA(1).fit(path)


@pytest.mark.deep(keep=5)
@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("form", ["file", "stream"])
def test_damaged_files_are_read_or_refused_by_name(form, seed, tmp_path, values):
    rng = np.random.default_rng(seed)
    path = write_arrow(tmp_path / "x.arrow", table_of(values), form, compression=[None, "lz4", "zstd"][seed % 3])
    stored = bytearray(path.read_bytes())
    if seed % 5 == 0:
        stored = stored[: int(rng.integers(0, len(stored)))]
    for place in rng.integers(0, max(1, len(stored) - 8), 3).tolist():
        stored[place : place + 2] = rng.bytes(2)
    path.write_bytes(bytes(stored))
    refused = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sp.PCA(2, missing="drop_rows", memory="1GiB").fit(sp.open(path, columns=["a", "v"], id_column="text"))
        except StreamPCAError as error:
            refused = str(error)
    assert "\n" not in refused


@pytest.mark.parametrize("form", ["file", "stream"])
def test_files_of_arrow_before_0_15_are_read(form, tmp_path, values):
    """Of which messages begin with their length alone."""
    path, table = tmp_path / "x.arrow", table_of(values)
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, use_legacy_format=True)
    with (pa.ipc.new_file if form == "file" else pa.ipc.new_stream)(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=60)
    opened = sp.open(path, columns=["a", "v"])
    assert opened.grid.edges == (0, 60, 120, 180, 240, 250)
    np.testing.assert_array_equal(opened.read(0, 250)[0], values)
    stored = path.read_bytes()
    path.write_bytes(stored[: len(stored) // 2])
    with pytest.raises(StreamPCAError):
        sp.open(path, columns=["a", "v"])


@pytest.mark.parametrize("kind", ["int64", "float32", "uint8"])
def test_numbers_of_a_dictionary_are_numbers(kind, tmp_path):
    expected = np.array([1, 2, np.nan, 5, 1, 2, 5], dtype=float)
    indices = pa.array([0, 1, None, 2, 0, 1, 2], pa.int8())
    holes = pa.DictionaryArray.from_arrays(pa.array([0, 1, 3, 2, 0, 1, 2]), pa.array([1, 2, 5, None], kind))
    table = pa.table({"a": pa.DictionaryArray.from_arrays(indices, pa.array([1, 2, 5], kind)), "b": np.arange(7)})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "x.parquet")
    inside = table.set_column(0, "a", holes)
    for data in (
        table,
        tmp_path / "x.parquet",
        write_arrow(tmp_path / "x.arrow", table, "file"),
        inside,
        write_arrow(tmp_path / "y.arrow", inside, "stream"),
    ):
        np.testing.assert_array_equal(sp.open(data).to_dask().compute(), np.c_[expected, np.arange(7)])
