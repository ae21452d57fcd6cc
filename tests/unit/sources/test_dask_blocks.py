"""Blocks of a Dask array are computed once, whatever their sizes."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from facade import process_of

import streampca as sp
from streampca.errors import ChangedInputError, DataError, MissingChunkError, RepeatedReadsError
from streampca.sources import Source, open_source


def stored_field(path: Path, values: Any) -> Source:
    """Write a field (time, lat, lon) in chunks of 25 times and open it."""
    group = zarr.create_group(path)
    array = group.create_array(
        "sst",
        shape=values.shape,
        chunks=(25, *values.shape[1:]),
        dtype=values.dtype,
        dimension_names=("time", "lat", "lon"),
    )
    array[...] = values
    return open_source(path, samples="time")


@pytest.mark.parametrize("sizes", [(400, 100, 350, 7, 250, 401), (600, 600, 600), (1, 1, 1000, 3), (5, 0, 900)])
def test_every_block_is_computed_once(sizes: tuple[int, ...]) -> None:
    computed: Counter[int] = Counter()

    def block(block_info: Any = None) -> Any:
        (start, stop), _ = block_info[None]["array-location"]
        computed[block_info[None]["chunk-location"][0]] += 1
        return np.random.default_rng(start).standard_normal((stop - start, 4))

    rows = da.map_blocks(block, chunks=(sizes, (4,)), dtype="f8", meta=np.empty((0, 0)))
    pca = sp.PCA(2, solver="covariance").fit(rows)
    assert computed == dict.fromkeys(range(len(sizes)), 1)
    assert pca.bytes_read_ == rows.nbytes == pca.plan_.bytes_to_read
    np.testing.assert_allclose(
        pca.explained_variance_, np.linalg.eigvalsh(np.cov(rows.compute().T))[::-1][:2], rtol=1e-12
    )


class CountedArray:
    """An array that counts the slices that are read of it."""

    def __init__(self, values: Any):
        self.values, self.shape, self.dtype, self.ndim = values, values.shape, values.dtype, values.ndim
        self.n_reads = 0

    def __getitem__(self, key: Any) -> Any:
        found = self.values[key]
        self.n_reads += found.size > 0  # Dask looks at an empty slice to know the kind of array
        return found


def stored(n_chunks: int) -> tuple[CountedArray, da.Array]:
    array = CountedArray(np.random.default_rng(0).standard_normal((20 * n_chunks, 4)))
    return array, da.from_array(array, chunks=(20, 4), asarray=True, name=f"stored-{n_chunks}-{id(array)}")


def large(n_chunks: int) -> tuple[CountedArray, da.Array]:
    """Return an array of more bytes than are computed at once with a ceiling of 400 MiB."""
    array = CountedArray(np.broadcast_to(np.zeros(4), (60_000 * n_chunks, 4)))
    return array, da.from_array(array, chunks=(60_000, 4), asarray=True, name=f"large-{n_chunks}-{id(array)}")


def test_anomalies_by_their_own_graph_raise_named_error_with_the_cure() -> None:
    array, x = large(40)
    pca, kernel = sp.PCA(2, memory="400MiB"), sp.KernelPCA(2, gamma=0.1, n_landmarks=30, memory="400MiB")
    for call in (pca.fit, pca.plan, kernel.fit):
        with (
            process_of(2**27),
            pytest.raises(
                RepeatedReadsError, match=r"40 chunks.* 1,600 times.*x\.mean\(0\)\.compute\(\).*max_reads=40"
            ),
        ):
            call(x - x.mean(0))
    assert array.n_reads == 0
    assert RepeatedReadsError.exit_status == 2


@pytest.mark.parametrize("solver", ["covariance", "gram", "sketch"])
def test_small_anomalies_are_computed_once(solver: Any) -> None:
    array, x = stored(40)
    rows = x - x.mean(0)
    pca = sp.PCA(2, solver=solver, pilot=0, max_passes=1).fit(rows)
    assert array.n_reads == 40
    assert pca.bytes_read_ == pca.plan_.bytes_to_read
    assert not any("times" in note for note in pca.plan_.notes)
    want = sp.PCA(2, solver=solver, pilot=0, max_passes=1).fit(da.from_array(rows.compute(), chunks=(20, 4)))
    np.testing.assert_array_equal(pca.components_, want.components_)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(open_source(rows))).read(30, 50)[0], rows[30:50])


def test_allowed_repeated_reads_are_in_plan_bytes_and_notes() -> None:
    array, x = stored(40)
    rows = x - x.mean(0)
    pca = sp.PCA(2, solver="covariance").fit(open_source(rows, max_reads=40))
    assert array.n_reads == 1600
    assert pca.bytes_read_ == pca.plan_.bytes_to_read == 40 * rows.nbytes
    assert any("1,600 times" in note for note in pca.plan_.notes)
    expected = np.linalg.eigvalsh(np.cov(array.values.T))[::-1][:2]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-12)


@pytest.mark.parametrize("n_chunks", [2, 4])
def test_few_repeated_reads_are_noted(n_chunks: int) -> None:
    array, x = stored(n_chunks)
    rows = open_source(x - x.mean(0), max_reads=4)
    plan = sp.PCA(2).plan(rows)
    assert any(f"{n_chunks**2} times" in note for note in plan.notes)
    assert plan.bytes_to_read == n_chunks * array.values.nbytes
    pca = sp.PCA(2).fit(rows)
    assert (array.n_reads, pca.bytes_read_) == (n_chunks**2, plan.bytes_to_read)


def test_reshaped_cube_with_chunks_along_every_axis_counts_its_reads() -> None:
    array = CountedArray(np.random.default_rng(1).standard_normal((12, 10, 8)))
    cube = da.from_array(array, chunks=(4, 5, 4), asarray=True, name=f"cube-{id(array)}")
    rows = cube.reshape(120, 8)
    once = sp.PCA(2, solver="covariance").fit(rows)
    assert (array.n_reads, once.bytes_read_, once.plan_.notes) == (12, rows.nbytes, ())
    array.n_reads = 0
    pca = sp.PCA(2, solver="covariance").fit(open_source(rows, max_reads=4))
    assert array.n_reads == 24
    np.testing.assert_array_equal(pca.components_, once.components_)
    assert any("12 chunks" in note and "24 times" in note for note in pca.plan_.notes)
    assert pca.bytes_read_ == pca.plan_.bytes_to_read == 2 * rows.nbytes
    expected = np.linalg.eigvalsh(np.cov(array.values.reshape(120, 8).T))[::-1][:2]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-12)


@pytest.mark.parametrize("graph", ["as stored", "computed mean", "functions", "two columns of blocks", "joined blocks"])
def test_graphs_that_read_every_chunk_once_have_no_note(graph: str) -> None:
    array, x = stored(8)
    rows = {
        "as stored": lambda: x,
        "computed mean": lambda: x - array.values.mean(0),
        "functions": lambda: (x.astype("f4") * 2 + 1).map_blocks(np.tanh),
        "two columns of blocks": lambda: da.concatenate([x, x * 2], axis=1),
        "joined blocks": lambda: x.rechunk((40, 4)),
    }[graph]()
    pca = sp.PCA(2, solver="covariance").fit(rows)
    assert (array.n_reads, pca.plan_.notes) == (8, ())
    assert pca.bytes_read_ == rows.nbytes == pca.plan_.bytes_to_read
    expected = np.linalg.eigvalsh(np.cov(np.asarray(rows, dtype=float).T))[::-1][:2]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-5)


def test_blocks_of_a_part_are_those_of_the_whole() -> None:
    import pickle

    _, x = stored(6)
    source = open_source(x + 1)
    part = pickle.loads(pickle.dumps(source.slice(30, 70)))
    np.testing.assert_array_equal(part.read(30, 70)[0], source.read(30, 70)[0])
    assert len(part._graph.tasks) < len(source._graph.tasks)  # type: ignore[attr-defined]


def test_rows_of_a_table_as_dask_array_are_whole_chunks_read_once_and_need_no_argument(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((205, 4, 3)).astype("f4")
    table = stored_field(tmp_path / "x.zarr", values)
    rows = table.to_dask()
    assert rows.shape == (205, 12)
    assert table.to_dask(40).chunks == ((40, 40, 40, 40, 40, 5), (12,))
    pca = sp.PCA(3, solver="covariance").fit(np.log1p(rows))
    assert pca.bytes_read_ == values.nbytes
    expected = np.linalg.eigvalsh(np.cov(np.log1p(values.astype("f8")).reshape(205, 12).T))[::-1][:3]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-6)
    np.testing.assert_array_equal(rows.compute(), values.reshape(205, 12))


def test_block_that_is_read_whole_is_not_copied() -> None:
    x = da.from_array(np.arange(12.0).reshape(6, 2), chunks=(3, 2))
    out = np.empty((3, 2))
    assert open_source(x + 1).read(3, 6, out)[0] is not out
    assert open_source(x + 1).read(2, 5, out)[0] is out


def test_strict_reading_holds_behind_a_graph(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((200, 4, 3)).astype("f4")
    table = stored_field(tmp_path / "x.zarr", values)
    rows = open_source(np.log1p(table.to_dask(50)))
    sp.PCA(2, solver="covariance").fit(rows)
    chunk = next(path for path in (tmp_path / "x.zarr" / "sst" / "c").rglob("*") if path.is_file())
    content = chunk.read_bytes()
    chunk.write_bytes(content[::-1])
    with pytest.raises(ChangedInputError):
        sp.PCA(2, solver="covariance").fit(rows)
    chunk.unlink()
    with pytest.raises(MissingChunkError, match="1 of 8 chunks"):
        sp.PCA(2, solver="covariance").fit(np.log1p(table.to_dask(50)))
    filled = sp.open(tmp_path / "x.zarr", samples="time", missing_chunks="fill")
    pca = sp.PCA(2, solver="covariance").fit(np.log1p(filled.to_dask(50)))
    assert pca._model.source["missing_chunks_filled"] == 1


def test_means_and_reshapes_of_a_table_are_counted_or_refused(tmp_path: Path) -> None:
    table = stored_field(tmp_path / "x.zarr", np.random.default_rng(0).random((200, 4, 3)).astype("f4"))
    x = table.to_dask(10)
    with pytest.raises(RepeatedReadsError, match="400 times"):
        sp.PCA(2).plan(open_source(x - x.mean(0), max_reads=4))
    assert not sp.PCA(2, solver="covariance").plan(x.reshape(100, 2, 12).reshape(100, 24)).notes
    uneven = x.rechunk((15, 12))
    plan = sp.PCA(2, solver="covariance").plan(open_source(uneven, max_reads=4))
    assert any("times in each pass" in note for note in plan.notes)
    assert plan.bytes_to_read > 200 * 12 * 4


def test_dask_data_frames_are_refused_with_the_call_that_makes_an_array() -> None:
    dask_frames, pandas = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    rows = np.random.default_rng(0).standard_normal((50, 3))
    frame = dask_frames.from_pandas(pandas.DataFrame(rows, columns=list("abc")), npartitions=3)
    with pytest.raises(DataError, match=r"call \.to_dask_array\(lengths=True\)"):
        sp.PCA(1).fit(frame)
    found = sp.PCA(1).fit(frame.to_dask_array(lengths=True))
    np.testing.assert_allclose(found.explained_variance_, sp.PCA(1).fit(rows).explained_variance_, rtol=1e-12)


EXPRESSIONS = """
import dask.array as da, numpy as np, streampca as sp
from streampca.errors import NotAvailableError
rows = np.random.default_rng(0).standard_normal((60, 6))
if type(da.from_array(rows)).__module__ == "dask.array.core":
    raise SystemExit  # of a Dask without them
flat, deep = da.from_array(rows, chunks=(20, 3)), da.from_array(rows.reshape(60, 2, 3), chunks=(20, 2, 3))
pca, said = sp.PCA(2).fit(rows), []
for call in (
    lambda: sp.PCA(2).fit(flat + 1),
    lambda: sp.open(deep, samples="dim_0"),
    lambda: pca.transform(flat),
):
    try:
        call()
    except NotAvailableError as error:
        said.append(str(error))
assert len(said) == 3 and all("array.query-planning is on" in each for each in said), said
assert np.array_equal(sp.open(rows).to_dask().compute(), rows)
scores = pca.transform(rows)
lazy = pca.inverse_transform(da.from_array(scores, chunks=(20, 2)))
assert np.allclose(lazy.compute(), pca.inverse_transform(scores), rtol=1e-12, atol=1e-12)
"""


@pytest.mark.slow
def test_array_expressions_of_dask_are_refused_by_the_name_of_their_setting() -> None:
    environment = os.environ | {"DASK_ARRAY__QUERY_PLANNING": "True"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXPRESSIONS], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_arrays_whose_blocks_a_cluster_holds_are_computed_there() -> None:
    from distributed import Client

    values = np.random.default_rng(0).standard_normal((90, 4))
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None):
        held = da.from_array(values, chunks=(20, 4)).persist()
        found = sp.PCA(2, solver="covariance").fit(held + 1)
    np.testing.assert_allclose(found.mean_, values.mean(axis=0) + 1, rtol=1e-12)
    np.testing.assert_allclose(found.explained_variance_, np.linalg.eigvalsh(np.cov(values.T))[::-1][:2], rtol=1e-12)


def test_the_ceiling_of_a_plan_says_whether_all_rows_are_computed_at_once() -> None:
    array, x = large(30)
    rows = open_source(x - x.mean(0))
    with process_of(2**27), pytest.raises(RepeatedReadsError, match="30 times each"):
        sp.PCA(2, memory="400MiB").plan(rows)
    pca = sp.PCA(2, memory="2GiB").fit(rows)
    assert (array.n_reads, pca.plan_.notes) == (30, ())
    assert pca.plan_.projected_bytes > 2 * array.values.nbytes


def declared(block: Any, dtype: str, shape: tuple[int, int] = (30, 4)) -> da.Array:
    """Return an array of two blocks, the second of which is `block`, whatever it declares."""
    first = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    return da.concatenate(
        [
            da.map_blocks(lambda _, value=value: value, da.zeros(shape, chunks=shape), dtype=dtype, meta=first[:0])
            for value in (first, block)
        ]
    )


ROWS = np.random.default_rng(1).standard_normal((30, 4)) * 1e3


@pytest.mark.parametrize(
    ("block", "dtype"),
    [
        (ROWS, "i8"),
        (np.where(ROWS > 900, np.nan, 3.0), "i4"),
        (ROWS, "u1"),
        (ROWS, "?"),
        (ROWS + 1j, "f8"),
        (ROWS, "f4"),
        (ROWS.astype("i8"), "u8"),
        (ROWS.astype("i4"), "f4"),
        (ROWS.astype("M8[s]"), "f8"),
        (ROWS.astype(object), "f8"),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        sp.PCA(2).fit,
        lambda x: sp.PCA(2).fit(da.concatenate([x[:40], x[40:]])),  # tasks are repeated: all rows are computed at once
        lambda x: sp.PCA(2).fit(np.random.default_rng(2).standard_normal((9, 4))).transform(x).compute(),
    ],
    ids=["fit", "fit at once", "transform"],
)
def test_blocks_of_another_type_than_the_array_declares_are_refused(block: Any, dtype: str, use: Any) -> None:
    found, expected = re.escape(np.dtype(block.dtype).name), np.dtype(dtype).name
    with pytest.raises(DataError, match=f"dtype {found}, and the array declares {expected}"):
        use(declared(block, dtype))


@pytest.mark.parametrize(("stored", "dtype"), [("f4", "f8"), ("i4", "f8"), ("i2", "i8"), ("?", "u1"), ("f2", "f4")])
def test_blocks_of_a_type_that_the_declared_one_holds_are_taken(stored: str, dtype: str) -> None:
    block = (ROWS / 100).astype(stored)
    x = declared(block, dtype)
    rows = np.concatenate([x.blocks[0].compute(), block]).astype("f8")
    pca = sp.PCA(2, solver="covariance").fit(x)
    expected = np.linalg.eigvalsh(np.cov(rows.T))[::-1][:2]
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-6)
    scores = pca.transform(x)
    assert scores.dtype == scores.compute().dtype
    np.testing.assert_allclose(scores.compute(), (rows - rows.mean(0)) @ pca.components_.T, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 4), (29, 4), (30, 3), (30, 5), (30,)])
def test_blocks_of_another_shape_than_the_array_declares_are_refused(shape: tuple[int, ...]) -> None:
    x = declared(np.ones(shape), "f8")
    with pytest.raises(DataError, match=r"block \(1, 0\) has shape .* declares \(30, 4\)"):
        sp.PCA(2).fit(x)
    pca = sp.PCA(2).fit(np.random.default_rng(2).standard_normal((9, 4)))
    with pytest.raises(DataError, match=r"declares \(30, 4\)"):
        pca.transform(x).compute()


def test_objects_of_xarray_whose_blocks_have_another_type_are_refused() -> None:
    import xarray as xr

    data = xr.DataArray(declared(ROWS, "i2"), dims=("time", "x"))
    with pytest.raises(DataError, match="float64, and the array declares int16"):
        sp.PCA(2).fit(sp.open(data, samples="time"))


def test_blocks_that_rows_are_joined_of_are_refused_before_dask_casts_them() -> None:
    x = da.stack([declared(ROWS, "i8").rechunk((30, 4)), declared(ROWS, "i8")], axis=1)
    with pytest.raises(DataError, match="float64, and the array declares int64"):
        sp.PCA(2).fit(sp.open(x, samples="dim_0"))
    wide = da.concatenate([x[:, 0], x[:, 1]], axis=1)
    pca = sp.PCA(2).fit(np.random.default_rng(2).standard_normal((9, 8)))
    with pytest.raises(DataError, match="float64, and the array declares int64"):
        pca.transform(wide).compute()
