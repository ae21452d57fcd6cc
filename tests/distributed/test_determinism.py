"""The bits of a fit are those of one leaf after the other, whatever the threads, the source and the cluster (see also test_bits)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import facade
import numpy as np
import pytest
import spectra
import zarr
from facade import Parameters, decode_by_zarr, fold, plan_fit
from facade import fit_source as fit

from streampca import PCA
from streampca.accumulators import Covariance
from streampca.sources import Source, open_source

pytestmark = pytest.mark.distributed


def digest(model: Any | PCA) -> str:
    """Return the SHA-256 of components, eigenvalues, mean and certificate."""
    model = model._model if isinstance(model, PCA) else model
    arrays = (model.components, model.explained_variance, model.mean)
    found = hashlib.sha256(json.dumps(model.certificate.to_dict(), sort_keys=True).encode())
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def in_leaves(source: Source, parameters: Parameters, threads: int = 2) -> Any:
    """Return a plan of nine leaves of uneven blocks, as data too large for a test would have."""
    plan, n = plan_fit(source, parameters), source.shape[0]
    if plan.n_leaves > 1:
        return plan
    return plan.replace(
        rows_per_block=1000, n_blocks=-(-n // 1000), n_leaves=9, leaves_in_flight=threads, window=2 * threads
    )


def alone(source: Source, parameters: Parameters, plan: Any | None = None) -> Any:
    """Return the model of one leaf after the other."""
    plan = plan or in_leaves(source, parameters)
    return fit(source, parameters, plan.replace(leaves_in_flight=1, window=1, threads_per_leaf=1)).model


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine leaves, uneven last chunks along both axes."""
    path = tmp_path_factory.mktemp("determinism") / "rows.zarr"
    rows = spectra.rows_with_spectrum(25_500, spectra.eigenvalues("slow", 24), seed=1).astype(np.float32) + 5
    array = zarr.create_array(str(path), shape=rows.shape, chunks=(500, 17), dtype=rows.dtype)
    array[...] = rows
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several tiles."""
    path = tmp_path_factory.mktemp("determinism") / "wide.npy"
    np.save(path, np.random.default_rng(2).standard_normal((2500, 1100), dtype=np.float32))
    return path


def covariance(n_components: Any, **parameters: Any) -> Parameters:
    return Parameters(n_components, solver="covariance", **parameters)


PARAMETERS = [covariance(5), covariance(0.9, scale=True, ddof=0), covariance(3, center=False, whiten=True)]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=["plain", "scaled", "about zero"])
def test_threads_and_sources(store: Path, parameters: Parameters) -> None:
    source = open_source(store)
    expected = digest(alone(source, parameters))
    for threads in (1, 3):
        assert digest(fit(source, parameters, in_leaves(source, parameters, threads)).model) == expected
    rows = open_source(np.asarray(zarr.open_array(store)[...]))
    assert digest(fit(rows, parameters, in_leaves(source, parameters)).model) == expected
    decode_by_zarr(source)
    assert digest(fit(source, parameters, in_leaves(source, parameters)).model) == expected


@pytest.mark.parametrize("solver", ["covariance", "sketch", "adaptive"])
def test_the_number_of_threads_that_a_user_asks_for(store: Path, solver: str) -> None:
    source, parameters = open_source(store), Parameters(5, solver=solver)
    each = [replace(parameters, threads=threads) for threads in (1, 2, 5)]
    plans = [plan_fit(source, one) for one in each]
    assert len({(plan.rows_per_block, plan.n_leaves, plan.tile) for plan in plans}) == 1
    digests = {digest(fit(source, one, plan_fit(source, one)).model) for one in each}
    if solver == "covariance":
        digests.add(digest(alone(source, parameters, plans[0])))
    assert len(digests) == 1


@pytest.mark.slow
def test_several_tiles_by_threads_and_worker_processes(wide: Path, client: Any) -> None:
    source, parameters = open_source(wide), covariance(4)
    plan = in_leaves(source, parameters)
    assert plan.n_leaves > 1
    assert plan.tile < plan.n_features
    expected = digest(alone(source, parameters))
    one, shared = (plan.replace(leaves_in_flight=1, window=1, threads_per_leaf=threads) for threads in (1, 2))
    for choice in (plan, one, shared):
        assert digest(fit(source, parameters, choice).model) == expected
    with client.as_current():
        assert digest(fit(open_source(wide), parameters, plan).model) == expected


@pytest.mark.parametrize("n_threads", [2, 3])
def test_threads_that_share_small_tiles(n_threads: int) -> None:
    rows = np.random.default_rng(4).standard_normal((3000, 24), dtype=np.float32) + 5
    one = fold(Covariance(tile_size=5), rows, 700)
    other = fold(Covariance(tile_size=5, n_threads=n_threads), rows, 700)
    assert one.scatter.tobytes() == other.scatter.tobytes()
    assert one.mean.tobytes() == other.mean.tobytes()


@pytest.mark.slow
def test_an_iterative_solution(tmp_path: Path) -> None:
    """Wide enough for the iteration: its products are shared by threads too."""
    rows = np.random.default_rng(3).standard_normal((600, 1700), dtype=np.float32) * np.linspace(
        3, 0.1, 1700, dtype=np.float32
    )
    source, models = open_source(rows), []
    for threads in (1, 2):
        parameters = covariance(3, threads=threads)
        models.append(fit(source, parameters, plan_fit(source, parameters)).model)
    assert models[0].certificate["eigen_solver"] == "block krylov"
    assert digest(models[0]) == digest(models[1])


@pytest.mark.slow
def test_a_dask_array_here_and_on_the_cluster(store: Path, client: Any) -> None:
    rows = zarr.open_array(store)[...]
    array = da.from_array(rows, chunks=(3000, 10))
    source, parameters = open_source(array), covariance(5)
    plan = in_leaves(source, parameters)
    expected = digest(alone(source, parameters, plan))
    assert digest(fit(source, parameters, plan).model) == expected
    pca = PCA(5, solver="covariance")
    here = digest(pca.fit(array))
    with client.as_current():
        assert digest(fit(source, parameters, plan).model) == expected
        assert digest(pca.fit(array)) == here
        lazy = pca.transform(array)
        there = np.asarray(client.compute(lazy).result())
    assert there.tobytes() == lazy.compute(scheduler="synchronous").tobytes()


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_an_approximate_estimator_on_a_cluster(store: Path, solver: str, client: Any) -> None:
    pca = PCA(5, solver=solver, max_passes=2, tolerance=1e-6)
    here = digest(pca.fit(store))
    with client.as_current():
        assert digest(pca.fit(store)) == here


def test_scores_written_by_the_cluster(store: Path, client: Any, tmp_path: Path) -> None:
    pca = PCA(5, solver="covariance").fit(store)
    pca.transform_to(store, tmp_path / "here.zarr")
    with client.as_current():
        pca.transform_to(store, tmp_path / "there.zarr")
    here, there = (zarr.open_array(tmp_path / name / "scores", mode="r")[...] for name in ("here.zarr", "there.zarr"))
    assert np.asarray(here).tobytes() == np.asarray(there).tobytes()


@pytest.mark.slow
def test_a_matrix_on_disk(client: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(3).standard_normal((900, 2100), dtype=np.float32) + 7)
    source, parameters = open_source(tmp_path / "x.npy"), covariance(5)
    plan = facade.plan(source, allowed=230 * 2**20, k=5, solver="covariance")
    plan = plan.replace(rows_per_block=200, n_blocks=5, n_leaves=3)
    assert plan.tile_groups > 1
    here = fit(source, parameters, plan)
    with client.as_current():
        there = fit(open_source(tmp_path / "x.npy"), parameters, plan.replace(window=3, leaves_in_flight=2))
    assert digest(here.model) == digest(there.model)
    exact = np.linalg.eigvalsh(np.cov(np.load(tmp_path / "x.npy").astype(float), rowvar=False))[::-1][:5]
    np.testing.assert_allclose(here.model.explained_variance, exact, rtol=1e-6)
