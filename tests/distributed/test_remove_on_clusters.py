"""Fits with `remove`, and their scores, on a cluster: explicit residuals, and the bits of a fit on threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca as sp

pytestmark = [pytest.mark.distributed, pytest.mark.numerical]


@pytest.mark.parametrize("solver", ["covariance", "gram", "sketch"])
def test_a_cluster_gives_the_bits_of_threads_and_the_components_of_explicit_residuals(
    solver: str, client: Any, tmp_path: Path
) -> None:
    n, d = (200, 900) if solver == "gram" else (20_000, 24)
    rng = np.random.default_rng(0)
    groups, covariates = np.arange(n) % 12, rng.standard_normal((n, 2))
    rows = (
        rng.standard_normal((n, d))
        + 100 * rng.standard_normal((12, d))[groups]
        + covariates @ rng.standard_normal((2, d))
    )
    path = tmp_path / "x.zarr"
    zarr.create_array(path, shape=rows.shape, chunks=(n, 100) if solver == "gram" else (500, d), dtype="f8")[:] = rows
    remove = {"groups": groups, "trend": 1, "covariates": covariates}
    made: dict[str, Any] = {"n_components": 3, "solver": solver, "remove": remove}
    expected = sp.PCA(**made).fit(str(path))
    with client.as_current():
        pca = sp.PCA(**made).fit(str(path))
        pca.transform_to(str(path), tmp_path / "scores")
    assert np.array_equal(pca.components_, expected.components_)
    assert np.array_equal(pca.explained_variance_, expected.explained_variance_)
    design = np.c_[np.eye(12)[groups], np.arange(n) / n, covariates]
    residuals = rows - design @ np.linalg.lstsq(design, rows, rcond=None)[0]
    scores = zarr.open_group(tmp_path / "scores", mode="r")["scores"][:]
    assert np.abs(scores - residuals @ pca.components_.T).max() <= 1e-10
    assert np.array_equal(scores, np.asarray(expected.transform(str(path))))
