"""Stores with chunks that were never written: counted, neither read nor multiplied, with the numbers of the filled store."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tolerances
import zarr
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import MissingChunkError, NotFiniteError

pytestmark = [
    pytest.mark.numerical,
    pytest.mark.filterwarnings("ignore:.*:zarr.errors.UnstableSpecificationWarning"),
]
N, D = 6000, 24
KEPT = (0, 3, 4, 11, 18)
"""Bands of 300 rows that are written."""


def values(dtype: str = "f8", n: int = N, d: int = D) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, d)) * np.geomspace(20, 1, d) + 3
    return rows.astype(dtype) if dtype[0] == "f" else np.clip(rows, -100, 100).astype(dtype)


def with_holes(
    folder: Path, fill: float = 0.0, dtype: str = "f8", *, columns: int = D, **options: Any
) -> tuple[str, NDArray[Any]]:
    """Write a store with the bands `KEPT`, of which the last misses its first columns; return it and its rows when filled."""
    rows, filled = values(dtype), np.full((N, D), fill, dtype=dtype)
    array = zarr.create_array(
        folder / f"{fill}.zarr", shape=(N, D), chunks=(300, columns), dtype=dtype, fill_value=fill, **options
    )
    for band in KEPT:
        first = columns if band == KEPT[-1] and columns < D else 0
        part = (slice(band * 300, band * 300 + 300), slice(first, D))
        array[part] = filled[part] = rows[part]
    return str(folder / f"{fill}.zarr"), filled


def opened(path: str) -> Any:
    return sp.open(path, missing_chunks="fill")


def test_runs_of_rows_without_a_chunk_are_known_after_looking_and_sent_to_workers(tmp_path: Path) -> None:
    path, filled = with_holes(tmp_path, 2.5, columns=10)
    source = opened(path)
    assert source.equal_rows(0, N) == ()
    source.check()
    expected = ((300, 900), (1500, 3300), (3600, 5400), (5700, 6000))
    assert source.equal_rows(0, N) == expected
    assert pickle.loads(pickle.dumps(source)).equal_rows(0, N) == expected
    assert source.equal_rows(700, 1600) == ((700, 900), (1500, 1600))
    assert source.missing_chunks_filled == 3 * 15 + 1
    np.testing.assert_array_equal(source.read(0, N)[0], filled)


def test_first_axis_of_a_cube_decides_and_columns_of_chunks_are_features(tmp_path: Path) -> None:
    shape, chunks, names = (40, 6, 5), (10, 3, 5), ("t", "y", "x")
    cube = zarr.create_array(tmp_path / "cube.zarr", shape=shape, chunks=chunks, dtype="f4", dimension_names=names)
    cube[:10, :3] = 1.0
    cube[20:30] = 2.0
    source = sp.open(tmp_path / "cube.zarr", samples="t", missing_chunks="fill")
    source.check()
    assert source.equal_rows(0, 40) == ((10, 20), (30, 40))
    wide = zarr.create_array(tmp_path / "wide.zarr", shape=(20, 90), chunks=(20, 30), dtype="f4")
    wide[:, 30:60] = 1.0
    turned = sp.open(tmp_path / "wide.zarr", missing_chunks="fill").by_features()
    turned.check()
    assert turned.equal_rows(0, 90) == ((0, 30), (60, 90))


@pytest.mark.parametrize(
    ("how", "store"),
    [
        ({}, {}),
        ({}, {"dtype": "f4"}),
        ({}, {"dtype": "i1", "fill": 3}),
        ({}, {"columns": 10}),
        ({}, {"shards": (600, D)}),
        ({"scale": True}, {"fill": 2.5}),
        ({"center": False}, {"fill": 2.5}),
        ({"solver": "sketch", "tolerance": 0, "max_passes": 2}, {"fill": 2.5}),
        ({"solver": "sketch", "pilot": 0, "scale": True}, {}),
        ({"solver": "adaptive"}, {"fill": 2.5}),
        ({"missing": "mean"}, {"fill": 2.5}),
        ({"missing": "drop_rows"}, {"fill": np.nan}),
        ({"remove": {"trend": 1}}, {"fill": 2.5}),
    ],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_numbers_are_those_of_the_filled_rows(
    tmp_path: Path, how: dict[str, Any], store: dict[str, Any], *, weighted: bool
) -> None:
    path, filled = with_holes(tmp_path, **store)
    weights = np.random.default_rng(1).integers(0, 3, N) * 0.7 if weighted and "remove" not in how else None
    pca, dense = (sp.PCA(4, **how).fit(X, sample_weight=weights) for X in (opened(path), filled))
    error = tolerances.eigenvalues(filled.dtype) * dense.explained_variance_[0]
    assert np.abs(pca.explained_variance_ - dense.explained_variance_).max() <= error
    np.testing.assert_allclose(pca.total_variance_, dense.total_variance_, rtol=tolerances.eigenvalues(filled.dtype))
    np.testing.assert_allclose(pca.mean_, dense.mean_, atol=tolerances.mean(np.nan_to_num(filled)).max())
    assert pca.n_samples_seen_ == dense.n_samples_seen_


def test_wide_stores_and_kernels_have_the_numbers_of_the_filled_rows(tmp_path: Path) -> None:
    wide = zarr.create_array(tmp_path / "wide.zarr", shape=(30, 3000), chunks=(30, 300), dtype="f8", fill_value=1.5)
    wide[:, 600:900] = values(n=30, d=300)
    for how in ({}, {"center": False}, {"scale": True}):
        pca, dense = (sp.PCA(3, solver="gram", **how).fit(X) for X in (opened(str(tmp_path / "wide.zarr")), wide[...]))
        np.testing.assert_allclose(pca.explained_variance_, dense.explained_variance_, rtol=1e-10)
        np.testing.assert_allclose(pca.components_, dense.components_, atol=1e-9)
    path, filled = with_holes(tmp_path, 2.5)
    kernel, same = (
        sp.KernelPCA(4, gamma=1e-3, method="nystrom", n_landmarks=60, sampling="uniform").fit(X)
        for X in (opened(path), filled)
    )
    np.testing.assert_allclose(kernel.eigenvalues_, same.eigenvalues_, rtol=1e-9)


def test_only_what_is_stored_is_read_and_multiplied_and_the_plan_says_so(tmp_path: Path) -> None:
    path, filled = with_holes(tmp_path, dtype="f8")
    pca = sp.PCA(3).fit(opened(path))
    assert pca.bytes_read_ == pca.plan_.bytes_to_read == 5 * 300 * D * 8
    note = "15 of 20 chunks were never written: they hold the fill value, 0.0, and are not read"
    assert note in pca.plan_.notes
    pca.transform_to(opened(path), tmp_path / "scores.zarr", diagnostics=True)
    stored = zarr.open_group(tmp_path / "scores.zarr")
    expected = (filled - filled.mean(axis=0)) @ pca.components_.T
    np.testing.assert_allclose(stored["scores"][...], expected, atol=1e-10)  # type: ignore[index]
    residual = np.square(filled - filled.mean(axis=0)).sum(axis=1) - np.square(expected).sum(axis=1)
    np.testing.assert_allclose(stored["q"][...], residual, rtol=1e-9)  # type: ignore[index]


def test_a_store_without_any_chunk_is_a_table_of_fill_values(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "empty.zarr", shape=(500, 5), chunks=(50, 5), dtype="f4", fill_value=7)
    pca = sp.PCA(2).fit(opened(str(tmp_path / "empty.zarr")))
    assert (pca.total_variance_, pca.bytes_read_, pca.n_samples_seen_) == (0, 0, 500)
    np.testing.assert_array_equal(pca.mean_, np.full(5, 7.0))


def test_missing_chunks_are_an_error_by_default_and_where_they_would_be_nan(tmp_path: Path) -> None:
    path, _ = with_holes(tmp_path, np.nan)
    with pytest.raises(MissingChunkError, match="15 of 20 chunks do not exist"):
        sp.PCA(2).fit(path)
    with pytest.raises(NotFiniteError, match="NaN: first at row 300, column 0"):
        sp.PCA(2).fit(opened(path))
