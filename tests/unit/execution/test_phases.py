"""Seconds by phase: what a fit took, and that phases within one another are not counted twice."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from dask.distributed import Client, LocalCluster
from facade import Phase, phases_of_thread

import streampca as sp


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phases") / "x.zarr"
    rows = np.random.default_rng(0).standard_normal((8000, 300), dtype="f4")
    zarr.create_array(path, data=rows, chunks=(500, 300))
    return path


def test_time_of_a_phase_is_not_that_of_those_within() -> None:
    with phases_of_thread() as seconds, Phase("products"):
        with Phase("centring"):
            time.sleep(0.05)
        time.sleep(0.02)
    assert seconds["centring"] >= 0.05
    assert 0.02 <= seconds["products"] < seconds["centring"]


@pytest.mark.parametrize("solver", ["covariance", "sketch", "adaptive", "qr"])
def test_phases_of_a_fit_are_within_its_time(store: Path, solver: str) -> None:
    began = time.perf_counter()
    pca = sp.PCA(3, solver=solver).fit(store)
    wall = time.perf_counter() - began
    took = pca.plan_.seconds
    assert set(took) >= {"waiting", "products", "merging", "eigenproblem", "total", "busy"}
    assert all(value >= 0 for value in took.values())
    assert took["total"] <= wall
    assert sum(took[name] for name in ("waiting", "centring", "products") if name in took) <= wall * pca.plan_.threads
    assert took["merging"] + took["eigenproblem"] <= wall
    assert 0 < took["busy"] <= 1
    assert "waiting for rows" in str(pca.plan_)
    assert "took" not in str(pca.plan(store))
    assert pca.plan_.to_dict().keys() == pca.plan(store).to_dict().keys()


def test_phases_of_workers_and_of_runs_are_recorded(store: Path, tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        took = sp.PCA(3).fit(store).plan_.seconds
    assert took["products"] > 0
    assert "busy" not in took
    run = sp.run(
        {"source": {"path": str(store)}, "model": {"n_components": 3}, "output": {"directory": str(tmp_path / "run")}}
    )
    assert set(run.manifest["seconds"]["phases"]) == {"waiting", "centring", "products", "merging", "writing"}
    assert "waiting for rows, threads together" in (tmp_path / "run" / "report.html").read_text()
