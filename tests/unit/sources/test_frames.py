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
    with pytest.raises(NotAvailableError, match="a data frame has columns"):
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
