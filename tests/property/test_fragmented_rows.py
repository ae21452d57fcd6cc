"""Any table, split in any way into files and row groups, is the table."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fragments import parquet_table, write_hdf5, write_npy, write_parquet
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples, tables

import streampca as sp


@pytest.mark.parametrize("form", ["npy", "columns", "fixed", "list", "hdf5"])
def test_rows_and_variances_do_not_depend_on_how_they_are_split(form: str) -> None:
    @settings(max_examples=examples(25), deadline=None)
    @given(data=st.data(), values=tables(min_rows=3))
    def check(data: st.DataObject, values: np.ndarray) -> None:
        inner = data.draw(st.lists(st.integers(1, len(values) - 1), max_size=4, unique=True), label="cuts")
        cuts = [0, *sorted(inner), len(values)]
        group = data.draw(st.integers(1, len(values)), label="rows of a group")
        if form != "npy":
            values = values.astype(values.dtype.newbyteorder("="))
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name) / "s"
            if form == "npy":
                write_npy(directory, values, cuts, fortran=data.draw(st.sets(st.integers(0, 4)), label="Fortran"))
            for index, (start, stop) in enumerate(pairwise(cuts)):
                rows, place = values[start:stop], directory / f"part-{index}"
                directory.mkdir(exist_ok=True)
                if form == "hdf5":
                    chunks = (min(group, len(rows)), 1) if index % 2 else None
                    write_hdf5(place.with_suffix(".h5"), rows, chunks=chunks)
                elif form != "npy":
                    write_parquet(place.with_suffix(".parquet"), parquet_table(rows, form), group)
            table = sp.open(directory)
            n_rows = data.draw(st.integers(1, len(values)), label="rows of a block")
            np.testing.assert_array_equal(table.to_dask(n_rows).compute(), values)
            np.testing.assert_array_equal(table.to_dask().compute(), values)
            np.testing.assert_array_equal(table.by_features().to_dask(2).compute(), values.T)
            assert sum(fragment.n_rows for fragment in table.fragments) == len(values)

    check()
