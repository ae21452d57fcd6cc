"""Data frames of pandas and polars, lazy ones too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stores import make_values

import streampca as sp
from streampca.errors import DataError, NotAvailableError, ParameterError


def _pandas(columns: dict[str, Any]) -> Any:
    import pandas as pd

    return pd.DataFrame(columns)


def _polars(columns: dict[str, Any]) -> Any:
    import polars as pl

    return pl.DataFrame(columns)


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": _pandas,
    "polars": _polars,
    "lazy": lambda columns: _polars(columns).lazy(),
}


@pytest.fixture
def values() -> np.ndarray:
    return make_values(60, 3)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], Any]:
    return KINDS[request.param]


def test_columns_of_a_frame_are_features_with_names(make, values):
    frame = make({name: values[:, index] for index, name in enumerate("abc")})
    pca = sp.PCA(2).fit(frame)
    np.testing.assert_allclose(pca.components_, sp.PCA(2).fit(values).components_, rtol=1e-10)
    assert list(pca.feature_names_in_) == ["a", "b", "c"]
    assert isinstance(pca.transform(frame), np.ndarray)
    table = sp.open(frame)
    assert table.feature_names == ("a", "b", "c")
    np.testing.assert_array_equal(table.array, values)
    np.testing.assert_allclose(sp.PCA(2).partial_fit(frame).partial_fit(frame).mean_, values.mean(0), rtol=1e-12)


def test_columns_and_names_of_rows_are_chosen_by_name(make, values):
    frame = make({"id": [f"r{i}" for i in range(60)], "a": values[:, 0], "b": values[:, 1], "t": ["x"] * 60})
    table = sp.open(frame, columns=["b", "a"], id_column="id")
    np.testing.assert_array_equal(table.array, values[:, [1, 0]])
    assert table.labels.sample_name(5) == "id=r5"
    with pytest.raises(ParameterError, match=r"no column 'bb'.*did you mean 'b'"):
        sp.open(frame, columns=["a", "bb"])
    with pytest.raises(NotAvailableError, match="samples does not apply to a data frame"):
        sp.open(frame, samples="x")


def test_columns_that_are_not_numbers_are_named(make, values):
    frame = make({"a": values[:, 0], "name": ["x"] * 60, "b": values[:, 1], "other": ["y"] * 60})
    for use in (sp.open, sp.PCA(1).fit, sp.PCA(1).partial_fit):
        with pytest.raises(DataError, match=r"not numbers: name \(.*\), other \("):
            use(frame)


def test_missing_values_are_nan(make):
    frame = make({"a": [1.0, None, 3.0], "b": [1, 2, 3]})
    np.testing.assert_array_equal(sp.open(frame).array, [[1, 1], [np.nan, 2], [3, 3]])


def test_nullable_integers_of_pandas_are_read_with_nan():
    import pandas as pd

    frame = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": pd.array([1.5, 2, 3], dtype="Float32")})
    table = sp.open(frame)
    assert table.dtype == np.float64
    np.testing.assert_array_equal(table.array, [[1, 1.5], [np.nan, 2], [3, 3]])


def test_the_index_of_pandas_names_the_rows(values):
    import pandas as pd

    days = pd.date_range("2020-01-01", periods=60, name="day")
    table = sp.open(pd.DataFrame(values, index=days, columns=["a", "b", "c"]))
    assert table.labels.sample_name(3) == "day=2020-01-04"


def test_names_of_columns_may_be_an_index_of_pandas_or_an_array(values):
    frame = _pandas({name: values[:, index] for index, name in enumerate("abc")})
    for names in (frame.columns[1:], np.array(["b", "c"]), np.array(["b", "c"], dtype=object)):
        np.testing.assert_array_equal(sp.open(frame, columns=names).array, values[:, 1:])


@pytest.fixture
def embeddings() -> np.ndarray:
    return make_values(60, 5).astype(np.float32)


def _frame_of(form: str, rows: np.ndarray) -> Any:
    import polars as pl

    ids = [f"d{i}" for i in range(len(rows))]
    if form.startswith("polars"):
        kind = pl.Array(pl.Float32, rows.shape[1]) if form == "polars array" else pl.List(pl.Float32)
        frame = pl.DataFrame({"id": ids, "e": pl.Series(rows.tolist(), dtype=kind), "t": rows[:, 0]})
        return frame.lazy() if form == "polars lazy" else frame
    return _pandas({"id": ids, "e": list(rows) if form == "pandas arrays" else rows.tolist(), "t": rows[:, 0]})


@pytest.mark.parametrize("form", ["polars array", "polars list", "polars lazy", "pandas arrays", "pandas lists"])
def test_columns_of_embeddings_are_read_as_those_of_parquet_are(form, embeddings):
    frame = _frame_of(form, embeddings)
    table = sp.open(frame, columns="e", id_column="id")
    np.testing.assert_array_equal(table.array, embeddings)
    assert (table.labels.sample_name(3), table.labels.feature_name(2)) == ("id=d3", "e(feature=2)")
    both = sp.open(frame, columns=["t", "e"])
    np.testing.assert_array_equal(both.array, np.hstack([embeddings[:, :1], embeddings]))
    assert both.feature_names == ("t", *(f"e[{i}]" for i in range(5)))
    alone = frame.select("e") if form.startswith("polars") else frame[["e"]]
    pca = sp.PCA(2).fit(alone)
    expected = np.linalg.svd(embeddings.astype(float) - embeddings.mean(0), compute_uv=False)[:2] ** 2 / 59
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-5)
    scores = pca.transform(alone)
    np.testing.assert_allclose(scores, (embeddings - pca.mean_) @ pca.components_.T, atol=1e-4)
    assert len(sp.PCA(1).fit_groups(table, np.arange(60) % 2)) == 4


@pytest.mark.parametrize("form", ["polars array", "polars list", "pandas lists"])
def test_embeddings_that_are_missing_are_rows_of_nan(form, embeddings):
    rows: Any = [None if i % 7 == 2 else row for i, row in enumerate(embeddings.tolist())]
    rows[0][1] = None
    frame = _pandas({"e": rows})
    if form.startswith("polars"):
        import polars as pl

        kind = pl.Array(pl.Float32, 5) if form == "polars array" else pl.List(pl.Float32)
        frame = pl.DataFrame({"e": pl.Series(rows, dtype=kind)})
    expected = embeddings.copy()
    expected[2::7] = np.nan
    expected[0, 1] = np.nan
    np.testing.assert_array_equal(sp.open(frame).array, expected)
    assert sp.PCA(2, missing="drop_rows").fit(frame).n_samples_seen_ == np.isfinite(expected).all(axis=1).sum()


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_embeddings_of_different_lengths_are_refused_by_the_name_of_their_column(kind):
    frame = KINDS[kind]({"e": [[1.0, 2.0], [3.0, 4.0], [5.0]]})
    with pytest.raises(DataError, match="column e has lists of 1 and 2 numbers: expected lists of one length"):
        sp.open(frame)
    with pytest.raises(DataError, match="column e"):
        sp.PCA(1).fit(frame)
    words = KINDS[kind]({"e": [["a", "b"], ["c", "d"]]})
    with pytest.raises(DataError, match=r"column.* e\b"):
        sp.open(words)


def test_decimals_are_numbers(tmp_path):
    import decimal

    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = ["1.25", "-3.5", "1000.75", "0.1"]
    column = pa.array([decimal.Decimal(text) for text in texts], type=pa.decimal128(12, 3))
    missing = pa.array([None, *(decimal.Decimal(text) for text in texts[1:])], type=pa.decimal128(20, 2))
    lists = pa.FixedSizeListArray.from_arrays(pa.concat_arrays([column, column]), 2)
    stored = pa.table({"a": column, "b": missing, "n": pa.array([1, 2, 3, 4], type=pa.int8()), "e": lists})
    expected = np.array([[float(text) for text in texts], [np.nan, -3.5, 1000.75, 0.1], [1, 2, 3, 4]]).T
    pq.write_table(stored, tmp_path / "a.parquet", row_group_size=3)
    pq.write_table(stored.select(["a", "b", "n"]), tmp_path / "b.parquet", store_decimal_as_integer=True)
    for name in ("a", "b"):
        table = sp.open(tmp_path / f"{name}.parquet", columns=["a", "b", "n"])
        np.testing.assert_array_equal(table.read(0, 4)[0], expected)
    pairs = [float(text) for text in texts + texts]
    np.testing.assert_array_equal(sp.open(tmp_path / "a.parquet", columns="e").read(0, 4)[0].ravel(), pairs)
    frame = pl.from_arrow(stored)
    np.testing.assert_array_equal(sp.open(frame, columns=["a", "b", "n"]).array, expected)
    np.testing.assert_array_equal(sp.open(frame, columns="e").array.ravel(), pairs)
    assert sp.PCA(1).fit(frame.select("a")).n_samples_seen_ == 4


def test_tables_of_pyarrow_are_read_as_data_frames():
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    rows = np.random.default_rng(0).normal(size=(40, 2))
    columns = {"a": rows[:, 0], "b": rows[:, 1], "name": [f"row {i}" for i in range(40)], "hole": [None, *range(39)]}
    table = pa.table(columns)
    opened = sp.open(table, columns=["a", "b"], id_column="name")
    assert opened.labels.sample_name(3) == "name=row 3"
    np.testing.assert_array_equal(opened.to_dask().compute(), rows)
    np.testing.assert_allclose(sp.PCA(1).fit(table.select(["a", "b"])).mean_, rows.mean(axis=0), atol=1e-15)
    assert np.isnan(sp.open(table, columns=["hole"]).to_dask().compute()[0, 0])
    with pytest.raises(DataError, match=r"not numbers: name \("):
        sp.open(table)


def test_tables_of_pyarrow_with_lists_and_labels_are_fitted_without_conversion(embeddings):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"e": embeddings.tolist(), "g": ["u", "v"] * 30, "t": embeddings[:, 0]})
    pca = sp.PCA(2).fit(table.drop(["g"]))
    expected = np.hstack([embeddings, embeddings[:, :1]])
    np.testing.assert_allclose(pca.mean_, expected.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(pca.transform(table.drop(["g"])), (expected - pca.mean_) @ pca.components_.T, atol=1e-4)
    groups = sp.PCA(1).fit_groups(table, "g")
    np.testing.assert_allclose(groups["v"].mean_, expected[1::2].mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("use", [sp.open, lambda frame: sp.PCA(1).fit(frame)])
def test_columns_of_one_name_are_refused(use, values):
    import pandas as pd

    with pytest.raises(DataError, match="several columns of the name a: expected every name once"):
        use(pd.DataFrame(values, columns=["a", "b", "a"]))


def test_truth_values_with_nulls_are_numbers():
    import polars as pl

    frame = pl.DataFrame({"a": [True, None, False]})
    np.testing.assert_array_equal(sp.open(frame).array, [[1], [np.nan], [0]])


def test_frames_of_other_packages_are_collected(values):
    nw = pytest.importorskip("narwhals")

    class Frame:
        """A frame of a package that nobody has heard of, which knows narwhals."""

        columns = ("a", "b", "c")

        def __narwhals_dataframe__(self) -> object:
            import polars as pl

            return nw.from_native(pl.DataFrame(values, schema=["a", "b", "c"]))._compliant_frame

    np.testing.assert_array_equal(sp.open(Frame()).array, values)


def test_sparse_columns_of_pandas_are_refused_for_what_they_are():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": pandas.arrays.SparseArray([0.0, 0, 1], fill_value=0.0), "b": [1.0, 2, 3]})
    for use in (sp.open, sp.PCA(1).fit):
        with pytest.raises(NotAvailableError, match=r"columns of pandas' type Sparse, .*: a; give .*to_coo"):
            use(frame)
    np.testing.assert_array_equal(sp.open(frame, columns=["b"]).array, [[1], [2], [3]])
    np.testing.assert_array_equal(sp.open(frame.astype("float64")).array, [[0, 1], [0, 2], [1, 3]])
    assert sp.open(frame[["a"]].sparse.to_coo()).sparse


def test_columns_of_one_name_are_named_whatever_holds_them() -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table([pa.array([1.0, 2.0])] * 3, names=["a", "b", "a"])
    for data in (table, table.to_pandas()):
        with pytest.raises(DataError, match="several columns of the name a: "):
            sp.open(data)
