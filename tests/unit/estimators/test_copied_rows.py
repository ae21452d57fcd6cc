"""Wide rows in chunks of whole rows, such as movies: copied to disk once, in place of decoding every chunk for every band of features."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from facade import blocks_of

import streampca as sp


@pytest.fixture(scope="module")
def movie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 frames of 200 x 160, 49 MiB, in chunks of 20 whole frames."""
    path = tmp_path_factory.mktemp("movie") / "movie.zarr"
    frames = np.random.default_rng(0).normal(size=(400, 200, 160)).astype("f4")
    zarr.create_array(path, data=frames, chunks=(20, 200, 160), dimension_names=("time", "y", "x"))
    return path


@pytest.fixture(autouse=True)
def bands() -> Iterator[None]:
    """Read features in bands of 9,000."""
    with blocks_of(9000):
        yield


def test_every_chunk_is_decoded_once_with_the_same_bits(movie: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = sp.open(movie, samples="time")
    n_bytes = 400 * 200 * 160 * 4
    pca = sp.PCA(3, solver="gram")
    plan = pca.plan(table)
    assert plan.copied_rows % 20 == 0
    assert plan.bytes_to_read == n_bytes
    assert plan.disk_bytes == n_bytes
    assert any("copied to a temporary directory" in note for note in plan.notes)
    pca.fit(table)
    assert (pca.bytes_read_, pca.n_passes_) == (n_bytes, 2)
    disk = shutil.disk_usage(movie)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: disk._replace(free=n_bytes))
    plain = sp.PCA(3, solver="gram").fit(table)
    assert plain.plan_.copied_rows == 0
    assert plain.bytes_read_ == 8 * n_bytes
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(pca, name))
    rows = zarr.open_array(movie)[...].reshape(400, -1).astype("f8")
    rows -= rows.mean(axis=0)
    values = np.linalg.eigvalsh(rows @ rows.T / 399)[::-1]
    np.testing.assert_allclose(pca.explained_variance_, values[:3], rtol=1e-5)


def test_nothing_is_left_on_disk(movie: Path, tmp_path: Path) -> None:
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        pca = sp.PCA(3, solver="gram").fit(sp.open(movie, samples="time"))
        assert pca.plan_.copied_rows
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"missing": "mean"}, {"scale": True}, {"center": False}])
def test_masks_holes_and_scales_go_with_a_copy(movie: Path, tmp_path: Path, options: Any) -> None:
    frames = zarr.open_array(movie)[...]
    if "missing" in options:
        frames[np.random.default_rng(1).random(frames.shape) < 0.01] = np.nan
    path = tmp_path / "x.zarr"
    zarr.create_array(path, data=frames, chunks=(20, 200, 160), dimension_names=("time", "y", "x"))
    mask = np.random.default_rng(2).random((200, 160)) < 0.8
    table = sp.open(path, samples="time", mask=mask)
    pca = sp.PCA(3, solver="gram", **options).fit(table)
    assert pca.plan_.copied_rows
    rows = frames.reshape(400, -1)[:, mask.ravel()]
    whole = sp.PCA(3, solver="gram", **options).fit(rows)
    np.testing.assert_allclose(pca.explained_variance_, whole.explained_variance_, rtol=1e-5)


def test_what_is_decoded_once_anyway_is_not_copied(movie: Path) -> None:
    table = sp.open(movie, samples="time")
    assert sp.PCA(3, solver="gram").plan(np.asarray(table.to_dask())).copied_rows == 0
    with blocks_of(32_000):
        assert sp.PCA(3, solver="gram").plan(table).copied_rows == 0
