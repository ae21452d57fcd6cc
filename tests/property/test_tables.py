"""Tables of arrays of any number of dimensions against numpy: transpose, reshape, take, concatenate."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import examples
from tables import Case, cases
from zarr.storage import MemoryStore

import streampca as sp
from streampca.errors import PartlyMissingError
from streampca.sources import Source


def assert_same(actual: NDArray[Any], expected: NDArray[Any], *, packed: bool) -> None:
    """Check values: every bit where they are stored as they are meant, rounding of float32 where they are decoded."""
    assert actual.shape == expected.shape
    if not packed:
        np.testing.assert_array_equal(actual, expected.astype(actual.dtype))
        return
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected.astype(actual.dtype)))
    eps = np.finfo(actual.dtype).eps
    scale = np.nanmax(np.abs(expected), initial=1.0) + 273.15
    np.testing.assert_allclose(actual, expected, rtol=2 * eps, atol=2 * eps * scale)


def opened(case: Case, group: zarr.Group, path: Path, way: str) -> Source:
    """Open the table by a path, by a group in memory (through zarr's own decoding), or with missing chunks filled (also)."""
    if way == "memory":
        store = MemoryStore()
        copy = zarr.create_group(store, zarr_format=case.arrays[0].version)
        for stored in [*case.arrays, *([] if case.mask_array is None else [case.mask_array])]:
            stored.write(copy)
        return sp.open(copy, **case.options())
    return sp.open(path, missing_chunks="fill" if way == "filled" else "error", **case.options())


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(case=cases(), way=st.sampled_from(["path", "path", "memory", "filled"]), data=st.data())
def test_any_table_is_what_numpy_makes_of_its_arrays(case: Case, way: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.zarr"
        group = case.write(path)
        expected = case.table()
        if not expected.shape[1]:
            return
        packed = case.decode == "auto" and any(stored.attributes for stored in case.arrays)
        source = opened(case, group, path, way)
        if isinstance(case.mask, str) and case.mask == "observed" and source.shape != expected.shape:
            # Features without a value in the first rows only.
            assert source.shape[1] < expected.shape[1]
            with np.testing.assert_raises(PartlyMissingError):
                source.read(0, source.shape[0])
            return
        assert source.shape == expected.shape
        assert source.labels is not None
        assert source.labels.n_features == expected.shape[1]
        assert source.labels.n_samples == expected.shape[0]
        if data.draw(st.booleans(), "pickled"):
            source = pickle.loads(pickle.dumps(source)) if way != "memory" else source
        for turned in (False, True):
            rows, table = (source.by_features(), expected.T) if turned else (source, expected)
            assert rows.shape == table.shape
            ends = [
                (0, len(table)),
                *(sorted(data.draw(st.lists(st.integers(0, len(table)), min_size=2, max_size=2))) for _ in range(3)),
            ]
            for start, stop in ends:
                if start == stop:
                    continue
                out = None
                if data.draw(st.booleans()):
                    out = np.empty((stop - start, rows.shape[1]), rows.dtype, order=data.draw(st.sampled_from("CF")))
                actual, count = rows.read(start, stop, out)
                assert actual.dtype == rows.dtype
                assert_same(actual, table[start:stop], packed=packed)
                assert count.chunks > 0
