"""Several models, and fits of groups, on a cluster: the bits of threads, from one reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca as sp
from streampca.planning import blocks

pytestmark = [pytest.mark.distributed, pytest.mark.numerical]
N, D = 20_000, 12


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(blocks.block_rows_to_try, "__defaults__", (512 * 8 * D,))
    rows = np.random.default_rng(0).standard_normal((N, D)) * np.arange(1, D + 1)
    path = tmp_path / "x.zarr"
    zarr.create_array(path, shape=rows.shape, chunks=(512, D), dtype="f8")[:] = rows
    return path


def models() -> dict[str, Any]:
    return {
        "raw": sp.PCA(3),
        "z": sp.PCA(3, scale=True),
        "sketch": sp.PCA(3, solver="sketch", tolerance=0, max_passes=2),
        "rbf": sp.KernelPCA(3, method="nystrom", n_landmarks=20),
    }


def test_several_models_have_the_bits_of_threads(client: Any, store: Path) -> None:
    expected = sp.fit_many(models(), store)
    with client.as_current():
        fitted = sp.fit_many(models(), store)
    assert fitted.n_passes_ == expected.n_passes_ == 2
    for name in ("raw", "z", "sketch"):
        np.testing.assert_array_equal(fitted[name].components_, expected[name].components_)
    np.testing.assert_array_equal(fitted["rbf"].eigenvalues_, expected["rbf"].eigenvalues_)


def test_groups_have_the_bits_of_threads(client: Any, store: Path) -> None:
    labels = np.arange(N) % 3
    expected = sp.PCA(3).fit_groups(store, labels)
    with client.as_current():
        fitted = sp.PCA(3).fit_groups(store, labels)
    for name in expected:
        np.testing.assert_array_equal(fitted[name].components_, expected[name].components_)
        np.testing.assert_array_equal(fitted[name].explained_variance_, expected[name].explained_variance_)
