"""NaN and infinity in rows that are transformed are errors that name the first row, in memory, lazy and on disk alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import xarray as xr
import zarr

import streampca as sp
from streampca.errors import NotFiniteError

ROWS = np.random.default_rng(0).normal(size=(90, 6)) @ np.diag([5.0, 4.0, 3.0, 1.0, 0.5, 0.2])
BAD_ROW, BAD_COLUMN = 47, 2


def spoiled(value: float) -> np.ndarray:
    rows = ROWS.copy()
    rows[BAD_ROW, BAD_COLUMN] = value
    return rows


def labelled(rows: np.ndarray) -> xr.DataArray:
    return xr.DataArray(rows, dims=("time", "feature"), coords={"time": np.arange(len(rows))})


def stored(rows: np.ndarray, path: Path) -> str:
    zarr.create_array(str(path / "rows.zarr"), data=rows, chunks=(20, 3))
    return str(path / "rows.zarr")


def mapped(rows: np.ndarray, path: Path) -> np.ndarray:
    np.save(path / "rows.npy", rows)
    return np.load(path / "rows.npy", mmap_mode="r")


LAZY: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "dask": lambda rows, path: da.from_array(rows, chunks=(20, 6)),
    "dask in blocks of columns": lambda rows, path: da.from_array(rows, chunks=(20, 2)),
    "sparse dask": lambda rows, path: da.from_array(rows, chunks=(20, 6)).map_blocks(scipy.sparse.csr_array),
    "lazy DataArray": lambda rows, path: labelled(rows).chunk({"time": 20}),
    "path": stored,
    "zarr array": lambda rows, path: zarr.open_array(stored(rows, path), mode="r"),
    "table": lambda rows, path: sp.open(stored(rows, path)),
}
IN_MEMORY: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "DataArray": lambda rows, path: labelled(rows),
    "memory map": mapped,
}
MODELS: dict[str, Callable[[], Any]] = {
    "PCA": lambda: sp.PCA(3),
    "whitened": lambda: sp.PCA(3, whiten=True),
    "rbf": lambda: sp.KernelPCA(3, kernel="rbf", gamma=0.05, method="nystrom", n_landmarks=30),
    "laplacian": lambda: sp.KernelPCA(3, kernel="laplacian", gamma=0.05, method="nystrom", n_landmarks=30),
}


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", LAZY)
def test_scores_of_lazy_rows_that_are_not_finite_raise_and_name_the_row(
    kind: str, model: str, value: float, tmp_path: Path
) -> None:
    fitted = MODELS[model]().fit(ROWS)
    lazy = fitted.transform(LAZY[kind](spoiled(value), tmp_path))
    with pytest.raises(NotFiniteError, match=f"row {BAD_ROW}, column {BAD_COLUMN}"):
        lazy.compute()


def test_tasks_of_lazy_scores_have_the_same_plain_names_each_time() -> None:
    fitted, lazy = sp.PCA(3).fit(ROWS), da.from_array(ROWS, chunks=(20, 6), name="rows")
    names = [fitted.transform(lazy).name for _ in range(2)]
    assert names[0] == names[1]
    assert names[0].startswith("scores_of-")


def test_other_blocks_of_lazy_rows_have_scores() -> None:
    fitted = sp.PCA(3).fit(ROWS)
    lazy = fitted.transform(da.from_array(spoiled(np.nan), chunks=(20, 6)))
    np.testing.assert_allclose(lazy[:40].compute(), fitted.transform(ROWS[:40]), atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", IN_MEMORY)
def test_scores_of_rows_in_memory_that_are_not_finite_raise(
    kind: str, model: str, value: float, tmp_path: Path
) -> None:
    fitted = MODELS[model]().fit(ROWS)
    with pytest.raises(NotFiniteError, match=f"row {BAD_ROW}, column {BAD_COLUMN}"):
        fitted.transform(IN_MEMORY[kind](spoiled(value), tmp_path))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("model", MODELS)
def test_written_scores_of_rows_that_are_not_finite_raise(model: str, value: float, tmp_path: Path) -> None:
    fitted = MODELS[model]().fit(ROWS)
    with pytest.raises(NotFiniteError, match=f"row {BAD_ROW}, column {BAD_COLUMN}"):
        fitted.transform_to(stored(spoiled(value), tmp_path), tmp_path / "scores.zarr")
    assert not (tmp_path / "scores.zarr").exists()


@pytest.mark.parametrize("missing", ["mean", "pairwise", "drop_rows"])
def test_missing_values_that_the_model_allows_have_lazy_scores_as_in_memory(missing: str) -> None:
    fitted = sp.PCA(3, missing=missing).fit(spoiled(np.nan))
    want = fitted.transform(spoiled(np.nan))
    lazy = fitted.transform(da.from_array(spoiled(np.nan), chunks=(20, 6)))
    np.testing.assert_array_equal(np.isnan(want[:, 0]), (missing == "drop_rows") & (np.arange(90) == BAD_ROW))
    np.testing.assert_allclose(lazy.compute(), want, atol=1e-12)


@pytest.mark.parametrize("missing", ["mean", "pairwise", "drop_rows"])
@pytest.mark.parametrize("kind", ["dask", "lazy DataArray", "path"])
def test_infinity_is_an_error_where_missing_values_are_allowed(kind: str, missing: str, tmp_path: Path) -> None:
    fitted = sp.PCA(3, missing=missing).fit(spoiled(np.nan))
    with pytest.raises(NotFiniteError, match=f"infinity: first at row {BAD_ROW}, column {BAD_COLUMN}"):
        fitted.transform(LAZY[kind](spoiled(np.inf), tmp_path)).compute()


@pytest.mark.parametrize("lazy", [False, True])
def test_scores_that_overflow_raise(lazy: bool) -> None:
    rows = np.tile([1.0, -1.0], 45)[:, None] * np.ones(6) + 0.1 * ROWS
    fitted = sp.PCA(2).fit(rows.astype(np.float32))
    large = np.full((40, 6), 3e38, dtype=np.float32)
    with pytest.raises(NotFiniteError, match="overflow float32"):
        np.asarray(fitted.transform(da.from_array(large, chunks=(20, 6)) if lazy else large))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["numpy", "dask", "DataArray", "lazy DataArray"])
def test_rows_of_scores_that_are_not_finite_raise_and_name_the_row(kind: str, model: str, value: float) -> None:
    estimator = MODELS[model]()
    if isinstance(estimator, sp.KernelPCA):
        estimator.set_params(fit_inverse_transform=True)
    fitted = estimator.fit(ROWS)
    scores = fitted.transform(ROWS)
    scores[BAD_ROW, 1] = value
    array = xr.DataArray(scores, dims=("time", "mode"))
    given = {
        "numpy": scores,
        "dask": da.from_array(scores, chunks=(20, 3)),
        "DataArray": array,
        "lazy DataArray": array.chunk({"time": 20}),
    }
    with pytest.raises(NotFiniteError, match=f"row {BAD_ROW}, column 1"):
        np.asarray(fitted.inverse_transform(given[kind]))


@pytest.mark.parametrize("lazy", [False, True])
def test_scores_of_excluded_rows_have_rows_of_nan(lazy: bool) -> None:
    fitted = sp.PCA(3, missing="drop_rows").fit(spoiled(np.nan))
    scores = fitted.transform(spoiled(np.nan))
    rows = fitted.inverse_transform(da.from_array(scores, chunks=(20, 3)) if lazy else scores)
    np.testing.assert_array_equal(np.isnan(np.asarray(rows)).all(axis=1), np.arange(90) == BAD_ROW)
    assert np.isnan(np.asarray(rows)).sum() == 6


def test_scores_in_blocks_of_unknown_size_have_rows_back() -> None:
    fitted = sp.PCA(3).fit(ROWS)
    scores = da.from_array(fitted.transform(ROWS), chunks=(20, 3))
    chosen = scores[da.from_array(ROWS[:, 0], chunks=20) > 0]
    rows = fitted.inverse_transform(chosen).compute()
    np.testing.assert_allclose(rows, fitted.inverse_transform(fitted.transform(ROWS))[ROWS[:, 0] > 0])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_distances_of_rows_that_are_not_finite_raise(value: float) -> None:
    fitted = MODELS["laplacian"]().fit(ROWS)
    with pytest.raises(NotFiniteError, match=f"row {BAD_ROW}"):
        fitted.kernel_distance(spoiled(value))
    with pytest.raises(NotFiniteError, match=f"row {BAD_ROW}"):
        fitted.kernel_distance(ROWS, spoiled(value))


def test_complex_rows_are_an_error_that_prints_no_values() -> None:
    for call in (sp.PCA(2).fit, sp.PCA(2).fit(ROWS).transform, sp.PCA(2).partial_fit):
        with pytest.raises(ValueError, match="Complex data not supported") as raised:
            call(ROWS + 1j)
        assert len(str(raised.value)) < 200


def test_a_feature_without_values_is_named() -> None:
    rows = labelled(ROWS).assign_coords(feature=list("abcdef"))
    with pytest.raises(ValueError, match=r"no values observed for 1 feature, first: feature 2 \[c\]"):
        sp.PCA(1, missing="mean").fit(sp.open(rows.where(rows["feature"] != "c"), samples="time"))
