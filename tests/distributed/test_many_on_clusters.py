"""Several models, and fits of groups, on a cluster: the bits of threads, from one reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca as sp

pytestmark = [pytest.mark.distributed, pytest.mark.numerical]
N, D = 20_000, 12


@pytest.fixture
def store(tmp_path: Path, blocks_of: Any) -> Path:
    blocks_of(512)
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


@pytest.mark.slow
def test_several_models_have_the_bits_of_threads(client: Any, store: Path) -> None:
    expected = sp.fit_many(models(), store)
    with client.as_current():
        fitted = sp.fit_many(models(), store)
    assert fitted.n_passes_ == expected.n_passes_ == 2
    for name in ("raw", "z", "sketch"):
        np.testing.assert_array_equal(fitted[name].components_, expected[name].components_)
    np.testing.assert_array_equal(fitted["rbf"].eigenvalues_, expected["rbf"].eigenvalues_)


@pytest.mark.slow
def test_scores_of_several_models_have_the_bits_of_threads(client: Any, store: Path, tmp_path: Path) -> None:
    models = {
        "raw": {"n_components": 3},
        "trend": {"n_components": 2, "preprocess": {"remove": {"trend": 1}}},
        "rbf": {"kind": "kernel_pca", "n_components": 2, "method": "nystrom", "n_landmarks": 20},
    }

    def written(name: str) -> Any:
        output = {"directory": str(tmp_path / name), "report": False}
        document = {"source": {"path": str(store)}, "models": models, "output": output}
        (tmp_path / "c.yaml").write_text(json.dumps(document))
        return sp.run(tmp_path / "c.yaml")

    expected = written("threads")
    with client.as_current():
        found = written("cluster")
    assert found.manifest["reads"]["scores"] == expected.manifest["reads"]["scores"]
    assert found.manifest["reads"]["scores"]["readings"] == 1
    for name in models:
        each = (run.directory / "models" / name / "scores.zarr" / "scores" for run in (found, expected))
        np.testing.assert_array_equal(*(zarr.open_array(path, mode="r")[:] for path in each), err_msg=name)


@pytest.mark.slow
def test_a_run_of_groups_has_the_bits_of_threads(client: Any, store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.arange(N) % 3)
    model = {"n_components": 3, "group_by": str(tmp_path / "labels.npy")}
    output = {"directory": str(tmp_path / "run"), "report": False}
    (tmp_path / "c.yaml").write_text(json.dumps({"source": {"path": str(store)}, "model": model, "output": output}))
    expected = sp.PCA(3).fit_groups(store, np.arange(N) % 3)
    with client.as_current():
        found = sp.run(tmp_path / "c.yaml").model
    for name in expected:
        np.testing.assert_array_equal(found[name].components_, expected[name].components_)


def test_groups_have_the_bits_of_threads(client: Any, store: Path) -> None:
    labels = np.arange(N) % 3
    expected = sp.PCA(3).fit_groups(store, labels)
    with client.as_current():
        fitted = sp.PCA(3).fit_groups(store, labels)
    for name in expected:
        np.testing.assert_array_equal(fitted[name].components_, expected[name].components_)
        np.testing.assert_array_equal(fitted[name].explained_variance_, expected[name].explained_variance_)
