"""Arrays of numpy and Dask of several dimensions, by the numbers of these, and their masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

import streampca as sp
from streampca.errors import DataError, NotAvailableError, ParameterError

CUBE = np.random.default_rng(0).normal(size=(30, 3, 4))
USED = np.arange(12).reshape(3, 4) % 3 > 0
KINDS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda array: array,
    "dask": lambda array: da.from_array(array, chunks=(7, 2, 3)[: array.ndim]),
}


def values(table: Any) -> Any:
    return np.asarray(table.to_dask())


@pytest.mark.parametrize("kind", KINDS)
def test_dimensions_have_numbers_for_names(kind: str) -> None:
    cube = KINDS[kind](CUBE)
    np.testing.assert_array_equal(values(sp.open(cube, samples="dim_0")), CUBE.reshape(30, 12))
    np.testing.assert_array_equal(
        values(sp.open(cube, features=["dim_2", "dim_1"])), CUBE.transpose(0, 2, 1).reshape(30, 12)
    )
    np.testing.assert_array_equal(values(sp.open(cube, samples=["dim_1", "dim_2"])), CUBE.reshape(30, 12).T)
    scores = sp.PCA(2).fit(sp.open(cube, samples="dim_0")).transform(sp.open(cube, samples="dim_0"))
    np.testing.assert_allclose(np.abs(scores), np.abs(sp.PCA(2).fit_transform(CUBE.reshape(30, 12))), atol=1e-10)
    with pytest.raises(DataError, match=r"dim_0 \(30\), dim_1 \(3\), dim_2 \(4\): say which of them are samples"):
        sp.open(cube)
    with pytest.raises(ParameterError, match="did you mean 'dim_0'"):
        sp.open(cube, samples="dim0")
    with pytest.raises(NotAvailableError, match="variables"):
        sp.open(cube, samples="dim_0", variables=["a"])


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_left_out(kind: str, tmp_path: Path) -> None:
    np.save(tmp_path / "used.npy", USED)
    want = CUBE.reshape(30, 12)[:, USED.ravel()]
    for mask in (USED, USED.ravel(), str(tmp_path / "used.npy"), tmp_path / "used.npy"):
        np.testing.assert_array_equal(values(sp.open(KINDS[kind](CUBE), samples="dim_0", mask=mask)), want)
    rows = CUBE.reshape(30, 12).copy()
    np.testing.assert_array_equal(values(sp.open(KINDS[kind](rows), mask=USED.ravel())), want)
    rows[:, ~USED.ravel()] = np.nan
    for found in ("observed", "survey"):
        table = sp.open(KINDS[kind](rows), mask=found)
        np.testing.assert_array_equal(values(table), want)
    fitted = sp.PCA(3, feature_weight=np.arange(12.0)).fit(sp.open(KINDS[kind](CUBE.reshape(30, 12))))
    masked = sp.PCA(3, feature_weight=np.arange(12.0)[USED.ravel()]).fit(table)
    assert (fitted.n_features_in_, masked.n_features_in_) == (12, 8)
    np.testing.assert_allclose(masked.transform(sp.open(KINDS[kind](rows))), masked.transform(table))
    with pytest.raises(DataError, match=r"mask has shape \(3,\)"):
        sp.open(KINDS[kind](rows), mask=[True, False, True])


def test_memory_maps_are_not_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "cube.npy", CUBE)
    cube = np.load(tmp_path / "cube.npy", mmap_mode="r")
    np.testing.assert_array_equal(values(sp.open(cube, samples="dim_0")), CUBE.reshape(30, 12))
    with pytest.raises(NotAvailableError, match="not contiguous"):
        sp.open(cube, samples="dim_1")
    np.save(tmp_path / "rows.npy", CUBE.reshape(30, 12))
    np.testing.assert_array_equal(
        values(sp.open(tmp_path / "rows.npy", mask=USED.ravel())), CUBE.reshape(30, 12)[:, USED.ravel()]
    )
