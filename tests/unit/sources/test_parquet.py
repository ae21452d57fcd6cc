"""Parquet files: columns, lists, nulls, names, row groups and memory, and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fragments import parquet_table, write_parquet
from stores import make_values

import streampca as sp
from streampca.errors import DamagedChunkError, DataError, NotFiniteError, ParameterError, PlanError


@pytest.fixture
def values() -> np.ndarray:
    return make_values(250, 6).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.parquet"


@pytest.mark.parametrize("form", ["columns", "fixed", "list"])
def test_row_groups_of_every_form_are_the_rows(form, path, values):
    table = sp.open(write_parquet(path, parquet_table(values, form), 70))
    assert (table.shape, table.dtype) == (values.shape, values.dtype)
    assert table.grid.edges == (0, 70, 140, 210, 250)
    for rows in (None, 70, 33, 200):
        np.testing.assert_array_equal(table.to_dask(rows).compute(), values)
    np.testing.assert_array_equal(table.by_features().to_dask(4).compute(), values.T)
    pca = sp.PCA(3).fit(table)
    np.testing.assert_allclose(pca.explained_variance_, sp.PCA(3).fit(values).explained_variance_, rtol=1e-5)
    assert pca.bytes_read_ == values.nbytes


def test_blocks_smaller_than_a_row_group_decode_it_once_in_a_thread(path, values):
    table = sp.open(write_parquet(path, parquet_table(values, "fixed"), 125))
    counts = [table.read(start, start + 25)[1] for start in range(0, 250, 25)]
    assert [count.chunks for count in counts] == [1, 0, 0, 0, 0] * 2
    assert sum(count.bytes for count in counts) == values.nbytes
    assert table.reads_of(3, 4) == 125 * table.row_bytes


def test_blocks_end_where_row_groups_end_whatever_their_sizes(tmp_path, values):
    for index, (start, stop, group) in enumerate([(0, 90, 40), (90, 200, 110), (200, 250, 50)]):
        write_parquet(tmp_path / f"s/{index}.parquet", parquet_table(values[start:stop], "fixed"), group)
    table = sp.open(tmp_path / "s")
    assert table.grid.block_edges(60, 250) == (0, 40, 90, 145, 200, 250)
    assert table.grid.block_edges(120, 250) == (0, 90, 200, 250)
    counts = [table.read(start, stop)[1] for start, stop in itertools.pairwise(table.grid.block_edges(60, 250))]
    assert sum(count.chunks for count in counts) == 5


def test_edges_of_more_blocks_than_memory_holds_are_not_kept(path, values):
    """A row group may declare 2³¹ rows; the edges of blocks of 256 rows of it took gigabytes before the plan refused it."""
    grid = replace(sp.open(write_parquet(path, parquet_table(values, "fixed"), 125)).grid, edges=(0, 2**31 - 1, 2**32))
    assert grid.block_edges(2**12, 2**32) is None
    edges = grid.block_edges(2**30, 2**32)
    assert {0, 2**31 - 1, 2**32} <= set(edges)
    assert all(stop - start <= 2**30 for start, stop in itertools.pairwise(edges))


def test_columns_are_features_with_names_in_the_order_that_is_asked_for(path, values):
    write_parquet(path, parquet_table(values, "columns", [f"r{i}" for i in range(250)]))
    table = sp.open(path, columns=["c4", "c0"], id_column="id")
    np.testing.assert_array_equal(table.to_dask().compute(), values[:, [4, 0]])
    assert table.feature_names == ("c4", "c0")
    assert table.labels.sample_name(17) == "id=r17"
    pca = sp.PCA(1).fit(table)
    assert list(pca.feature_names_in_) == ["c4", "c0"]
    expected = (values[:, [4, 0]] - pca.mean_) @ pca.components_.T
    np.testing.assert_allclose(pca.transform(path).compute(), expected, atol=1e-5)


def test_ids_stand_beside_the_scores(tmp_path, values):
    import pyarrow as pa

    for index, rows in enumerate((slice(0, 100), slice(100, 250))):
        ids = pa.array(range(rows.start, rows.stop), pa.int64())
        write_parquet(tmp_path / f"s/{index}.parquet", parquet_table(values[rows], "list").append_column("n", ids))
    table = sp.open(tmp_path / "s", columns="v", id_column="n")
    np.testing.assert_array_equal(table.labels.sample_values("n"), np.arange(250))
    scores = sp.PCA(2).fit(table).transform_to(table, tmp_path / "scores.zarr")
    import zarr

    np.testing.assert_array_equal(zarr.open_group(scores, mode="r")["n"][:], np.arange(250))


def test_numbers_and_lists_are_put_side_by_side(path, values):
    table = parquet_table(values[:, :4], "fixed").append_column("a", [values[:, 5].astype("f8")])
    opened = sp.open(write_parquet(path, table))
    assert opened.dtype == np.float64
    np.testing.assert_array_equal(opened.to_dask().compute(), values[:, [0, 1, 2, 3, 5]].astype("f8"))
    assert opened.feature_names == ("v[0]", "v[1]", "v[2]", "v[3]", "a")


def test_the_index_of_a_frame_of_pandas_is_no_feature(path):
    import pandas as pd

    pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [3.0, 4.0, 5.0]}, index=[10, 11, 13]).to_parquet(path)
    assert sp.open(path).feature_names == ("a", "b")
    assert sp.open(path, id_column="__index_level_0__").labels.sample_name(2) == "__index_level_0__=13"


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "float64"])
def test_every_type_of_numbers_is_read_and_nulls_are_nan(dtype, path, values):
    import pyarrow as pa

    numbers = (values * 3).astype(dtype)
    opened = sp.open(write_parquet(path, parquet_table(numbers, "fixed"), 64))
    assert opened.dtype == dtype
    np.testing.assert_array_equal(opened.to_dask().compute(), numbers)
    holes = pa.array(numbers[:, 0], mask=np.arange(250) % 3 == 0)
    opened = sp.open(write_parquet(path, {"a": holes, "b": numbers[:, 1]}, 64))
    expected = numbers[:, :2].astype("f8")
    expected[::3, 0] = np.nan
    assert opened.dtype == (dtype if dtype.startswith("f") else "f8" if dtype == "int64" else "f4")
    np.testing.assert_array_equal(opened.to_dask().compute(), expected)


@pytest.mark.parametrize("fixed", [True, False])
def test_null_lists_are_rows_of_nan_to_which_missing_applies(fixed, path):
    import pyarrow as pa
    from pyarrow import parquet

    kind = pa.list_(pa.float64(), 2) if fixed else pa.list_(pa.float64())
    lists = [[1.0, 2.0], None, [4.0, None], [5.0, 1.0], [2.0, 9.0]]
    try:
        parquet.read_table(write_parquet(path, {"v": pa.array(lists, kind)}, 2))
    except pa.ArrowException as error:
        pytest.skip(f"this version of pyarrow does not write and read null lists of a fixed length: {error}")
    table = sp.open(path)
    expected = np.array([[1, 2], [np.nan, np.nan], [4, np.nan], [5, 1], [2, 9]], dtype=float)
    np.testing.assert_array_equal(table.to_dask().compute(), expected)
    with pytest.raises(NotFiniteError, match="row 1, column 0"):
        sp.PCA(1).fit(table)
    whole = expected[[0, 3, 4]]
    fitted = sp.PCA(1, missing="drop_rows").fit(table)
    np.testing.assert_allclose(fitted.explained_variance_, np.linalg.eigvalsh(np.cov(whole.T))[-1:], rtol=1e-12)


def test_files_without_rows_and_columns_in_another_order_are_read_by_name(tmp_path, values):
    table = parquet_table(values[:, :2], "columns")
    write_parquet(tmp_path / "s/0.parquet", table.slice(0, 0))
    write_parquet(tmp_path / "s/1.parquet", table.slice(0, 100).select(["c1", "c0"]))
    write_parquet(tmp_path / "s/2.parquet", table.slice(100, 150))
    write_parquet(tmp_path / "s/3.parquet", table.slice(0, 0))
    opened = sp.open(tmp_path / "s")
    np.testing.assert_array_equal(opened.to_dask().compute(), values[:, :2])
    np.testing.assert_array_equal(opened.read(90, 110)[0], values[90:110, :2])
    assert [fragment.n_rows for fragment in opened.fragments] == [0, 100, 150, 0]


@pytest.mark.deep
def test_a_row_group_larger_than_memory_is_refused_by_the_plan(path):
    write_parquet(path, {f"c{i}": np.zeros(2_000_000, "f4") for i in range(60)}, 2_000_000)
    with pytest.raises(PlanError, match="chunks of fewer than 2,000,000 rows"):
        sp.PCA(2, memory="400MiB").plan(path)


def test_a_flipped_bit_is_found_by_the_checksum_of_its_page(path, values):
    write_parquet(path, parquet_table(values, "fixed"), 250, write_page_checksum=True, compression="none")
    stored = bytearray(path.read_bytes())
    stored[len(stored) // 3] ^= 4
    path.write_bytes(stored)
    with pytest.raises(DamagedChunkError, match=r"x\.parquet: row group 0 is damaged.*CRC"):
        sp.PCA(1).fit(path)


def _lists(*lists: list[float | None] | None) -> dict[str, object]:
    import pyarrow as pa

    return {"v": pa.array(lists, pa.list_(pa.float64()))}


BROKEN = {
    "ragged": (
        lambda p: write_parquet(p, _lists([1.0, 2.0], [3.0], [4.0, 5.0])),
        "lists of different lengths: 1 numbers",
    ),
    "empty list": (lambda p: write_parquet(p, _lists([], [3.0])), "begins with an empty list"),
    "only nulls": (lambda p: write_parquet(p, _lists(None, None)), "only null lists"),
    "text": (lambda p: write_parquet(p, {"a": [1.0], "s": ["x"]}), r"not numbers: s \(string\).*columns: \[a\]"),
    "no columns": (lambda p: write_parquet(p, {"s": ["x"]}), "not numbers"),
    "no rows": (lambda p: write_parquet(p, {"a": np.zeros(0)}), "0 sample"),
    "empty": (lambda p: p.write_bytes(b""), "it is empty"),
    "another format": (lambda p: p.write_bytes(b"hello world, hello"), "does not begin like one"),
    "cut short": (lambda p: p.write_bytes(write_parquet(p, {"a": [1.0]}).read_bytes()[:-9]), "cut short"),
    "missing": (lambda p: None, "No such file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line_with_its_name(name, path):
    make, message = BROKEN[name]
    make(path)
    with pytest.raises(DataError, match=message) as caught:
        sp.PCA(1).fit(path)
    assert "x.parquet" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_encrypted_footer_is_named(path):
    stored = write_parquet(path, {"a": [1.0]}).read_bytes()
    path.write_bytes(b"PARE" + stored[4:-4] + b"PARE")
    with pytest.raises(DataError, match="footer is encrypted"):
        sp.open(path)


def test_integers_that_may_have_nulls_are_floats_where_no_statistics_count_them(path):
    import pyarrow as pa

    write_parquet(path, {"a": pa.array([1, None, 3]), "b": [1, 2, 3]}, write_statistics=False)
    np.testing.assert_array_equal(sp.open(path).to_dask().compute(), [[1, 1], [np.nan, 2], [3, 3]])
    table = pa.table([pa.array([1, 2])], schema=pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    assert sp.open(write_parquet(path, table, write_statistics=False)).dtype == np.int64


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"a": np.ones(3, "f8"), "b": np.ones(3, "f4")}, "column a has the type double, and float in"),
        ({"a": np.ones(3, "f4"), "c": np.ones(3, "f4")}, "no column 'b'"),
        ({"a": np.ones(3, "f4"), "b": np.ones(3, "f4"), "c": np.ones(3, "f4")}, "a column 'c'"),
    ],
)
def test_files_of_different_schemas_are_refused(second, message, tmp_path):
    write_parquet(tmp_path / "s/0.parquet", {"a": np.ones(3, "f4"), "b": np.ones(3, "f4")})
    write_parquet(tmp_path / "s/1.parquet", second)
    with pytest.raises(DataError, match=message):
        sp.open(tmp_path / "s")


def test_names_that_are_no_columns_are_refused_with_the_nearest(path):
    write_parquet(path, {"alpha": [1.0, 2.0], "beta": ["x", None]})
    with pytest.raises(ParameterError, match=r"no column 'alpah'.*did you mean 'alpha'"):
        sp.open(path, columns="alpah")
    with pytest.raises(ParameterError, match="no column 'id'"):
        sp.open(path, columns="alpha", id_column="id")
    with pytest.raises(DataError, match="id column beta has 1 nulls"):
        sp.open(path, columns="alpha", id_column="beta")


@pytest.mark.parametrize("keys", [["year"], ["kind", "year"]])
def test_directories_of_partitions_are_one_table_with_labels(tmp_path, keys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = np.random.default_rng(5).normal(size=(60, 4)).astype(np.float32)
    years, kinds = np.repeat([2019, 2020, 2021], 20), np.tile(["a b", "c=d"], 30)
    emb = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 4)
    table = pa.table({"n": np.arange(60), "emb": emb, "year": years, "kind": kinds})
    pq.write_to_dataset(table, tmp_path / "data", partition_cols=keys)
    opened = sp.open(tmp_path / "data", columns="emb", id_column="n")
    order = np.array([int(opened.labels.sample_name(i).partition("=")[2]) for i in range(60)])
    assert sorted(order) == list(range(60))
    np.testing.assert_array_equal(opened.read(0, 60)[0], rows[order])
    for key, labels in {"year": years, "kind": kinds}.items():
        groups = sp.PCA(2).fit_groups(opened, key)
        for label in np.unique(labels):
            np.testing.assert_allclose(groups[label.item()].mean_, rows[labels == label].mean(axis=0), atol=1e-6)
    assert sp.PCA(2).fit(sp.open(tmp_path / "data/**/*.parquet", columns="emb")).n_samples_seen_ == 60


def test_partitions_without_a_value_are_no_labels(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a": np.arange(4.0), "b": np.arange(4.0) ** 2, "year": pa.array([2019, None, 2019, None])})
    pq.write_to_dataset(table, tmp_path / "data", partition_cols=["year"])
    opened = sp.open(tmp_path / "data")
    assert opened.feature_names == ("a", "b")
    with pytest.raises(DataError, match="the partition has no value of year"):
        sp.PCA(1).fit_groups(opened, "year")


def test_directories_that_are_no_partitions_are_not_searched(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1.0, 2.0]}), tmp_path / "a.parquet")
    for name in ("year=2019", "other"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"a": [3.0, 4.0]}), tmp_path / name / "b.parquet")
    assert sp.open(tmp_path).shape == (2, 1)


def test_wide_rows_are_copied_to_disk_where_every_block_of_features_would_decode_them(path, blocks_of):
    rows = np.random.default_rng(0).normal(size=(60, 700)).astype(np.float32)
    table = sp.open(write_parquet(path, parquet_table(rows, "fixed"), 25))
    features = table.by_features()
    for columns in (700, 350, 100):
        expected = sum(features.read(start, start + columns)[1].bytes for start in range(0, 700, columns))
        blocks_of(columns)
        pca = sp.PCA(2, solver="gram").fit(table)
        assert expected == 700 // columns * rows.nbytes
        copied = columns < 700
        assert pca.plan_.bytes_to_read == pca.bytes_read_ == (1 if copied else 2) * rows.nbytes


def test_directories_of_data_hubs_are_one_table_unless_there_are_several_splits(tmp_path, values):
    (tmp_path / "data").mkdir()
    (tmp_path / "README.md").write_text("a card")
    for place, part in enumerate((values[:100], values[100:])):
        write_parquet(tmp_path / f"data/train-{place:05}-of-00002.parquet", parquet_table(part, "columns"), 70)
    np.testing.assert_array_equal(sp.open(tmp_path).to_dask().compute(), values)
    write_parquet(tmp_path / "data/test-00000-of-00001.parquet", parquet_table(values[:9], "columns"), 70)
    with pytest.raises(
        DataError, match=r"the splits test, train: name the one to read, as in .*/data/train-\*\.parquet"
    ):
        sp.open(tmp_path)
    assert sp.open(tmp_path / "data/train-*.parquet").shape == values.shape


@pytest.mark.parametrize("form", ["stream", "file"])
def test_files_of_arrow_are_tables(form, tmp_path, values):
    pa = pytest.importorskip("pyarrow")
    table = parquet_table(values, "columns")
    opened = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, opened(sink, table.schema) as writer:
        writer.write_table(table)
    np.testing.assert_array_equal(sp.open(tmp_path / "x.arrow").to_dask().compute(), values)


def test_nulls_of_integers_are_counted_in_footers_of_every_form(tmp_path):
    import pyarrow as pa

    numbers = {f"n{i}": pa.array([None if row == 7 * i else row for row in range(100)], pa.int32()) for i in range(12)}
    lists = pa.array([[row, row + 1] for row in range(100)], pa.list_(pa.int16()))
    table = pa.table(
        {
            "text": ["x"] * 100,
            "map": pa.array([[("k", 1)]] * 100, pa.map_(pa.string(), pa.int32())),
            **numbers,
            "v": lists,
        }
    )
    forms = ({}, {"use_dictionary": False}, {"write_page_index": True}, {"data_page_version": "2.0", "version": "1.0"})
    for index, form in enumerate(forms):
        path = write_parquet(tmp_path / f"{index}.parquet", table, 30, **form)
        assert [sp.open(path, columns=name).dtype.kind for name in ("n0", "n11", "v")] == ["f", "f", "i"]
        assert sp.open(path, columns=["v"]).dtype == np.int16
    path = write_parquet(tmp_path / "x.parquet", table, 30, write_statistics=False)
    assert sp.open(path, columns="n1").dtype == np.float64


def test_damaged_footers_end_with_an_error_not_with_the_process(tmp_path):
    table = {"s": ["x"] * 40, "n": np.arange(40), "m": np.arange(40)}
    path = write_parquet(tmp_path / "x.parquet", table, 10)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    n_bytes, opened = int.from_bytes(whole[-8:-4], "little"), 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[len(whole) - 8 - rng.integers(1, n_bytes)] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            sp.open(path, columns=["n", "m"])
            opened += 1
        except (DataError, ParameterError):
            pass
    assert 0 < opened < 300
