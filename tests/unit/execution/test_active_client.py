"""Which cluster a fit uses: none that it would wait for in vain."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster, worker_client
from numpy.typing import NDArray

from streampca import MCA, PCA, KernelPCA
from streampca.errors import ClusterError
from streampca.sources import client_options

SECONDS = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One worker of one thread in this process, so that whoever holds the thread waits for ever for another task."""
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", memory_limit="3GiB"
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("clients") / "rows.zarr"
    store = zarr.create_array(place, shape=(2000, 10), chunks=(250, 10), dtype="f8")
    store[...] = np.random.default_rng(0).standard_normal((2000, 10)) * np.linspace(3, 1, 10)
    return str(place)


@pytest.fixture(scope="module")
def expected(path: str) -> NDArray[np.float64]:
    return _fit(path)


def _fit(path: str) -> NDArray[np.float64]:
    return PCA(3).fit(path).components_


def _fit_and_more(path: str, place: Path) -> tuple[NDArray[np.float64], bool, int]:
    """Fit, write scores and fit a kernel; return components, whether a cluster is used, and the threads of a plan."""
    pca = PCA(3).fit(path)
    pca.transform_to(path, place / "scores.zarr")
    KernelPCA(2, method="nystrom", n_landmarks=20).fit(path)
    return pca.components_, pca.plan_.leaves_per_worker > 0, pca.plan_.threads


def test_a_fit_in_a_task_runs_on_threads_of_its_worker(
    cluster: LocalCluster, path: str, expected: Any, tmp_path: Path
) -> None:
    with Client(cluster) as client:
        components, on_cluster, n_cores = client.submit(_fit_and_more, path, tmp_path).result(SECONDS)
    assert np.array_equal(components, expected)
    assert (on_cluster, n_cores) == (False, 1)


def test_a_fit_in_a_task_that_gave_its_thread_up_runs_on_the_cluster(
    cluster: LocalCluster, path: str, expected: Any, tmp_path: Path
) -> None:
    def task() -> Any:
        with worker_client() as client:
            _, on_cluster, _ = _fit_and_more(path, tmp_path)
            with client.as_current():
                return on_cluster, _fit_and_more(path, tmp_path / "again")

    (tmp_path / "again").mkdir()
    with Client(cluster) as client:
        before, (components, on_cluster, _) = client.submit(task).result(SECONDS)
    assert np.array_equal(components, expected)
    assert (before, on_cluster) == (False, True)  # the client is used as soon as it is the current one


def test_memory_in_a_task_is_that_of_its_worker(cluster: LocalCluster, path: str) -> None:
    def allowed() -> int:
        return PCA(3).plan(path).allowed_bytes

    with Client(cluster) as client:
        assert client.submit(allowed).result(SECONDS) < 3 * 2**30


def test_a_fit_in_a_running_loop_uses_a_synchronous_client(
    cluster: LocalCluster, path: str, expected: Any, tmp_path: Path
) -> None:
    async def cell() -> Any:  # of a notebook
        return _fit_and_more(path, tmp_path)

    with Client(cluster):
        components, on_cluster, _ = asyncio.run(asyncio.wait_for(cell(), SECONDS))
    assert np.array_equal(components, expected)
    assert on_cluster


def test_a_fit_in_the_loop_of_an_asynchronous_client_is_refused_and_runs_in_another_thread(
    path: str, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_options, "_registered", {})  # stores with secrets that other tests have opened

    async def program() -> Any:
        cluster = LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", asynchronous=True
        )
        async with cluster, Client(cluster, asynchronous=True):
            with pytest.raises(ClusterError, match=r"await asyncio.to_thread\(pca.fit, X\)"):
                PCA(3).fit(path)
            with pytest.raises(ClusterError, match="asynchronous"):
                KernelPCA(3).fit(path)
            assert PCA(3).fit(path_in_memory).n_components_ == 3  # stays in this process anyway
            assert PCA(3).fit(path_in_memory).transform(path).shape == (2000, 3)  # lazy
            return await asyncio.wait_for(asyncio.to_thread(_fit_and_more, path, tmp_path), SECONDS)

    path_in_memory = zarr.open_array(path, mode="r")[...]
    components, on_cluster, _ = asyncio.run(program())
    assert np.array_equal(components, expected)
    assert on_cluster


def test_a_fit_in_a_coroutine_on_a_worker_is_refused(cluster: LocalCluster, path: str) -> None:
    async def task() -> Any:
        return _fit(path)

    with Client(cluster) as client, pytest.raises(ClusterError, match="asynchronous"):
        client.submit(task).result(SECONDS)


@pytest.mark.slow
def test_a_scheduler_that_is_gone_is_named_until_threads_are_asked_for(
    path: str, expected: Any, tmp_path: Path
) -> None:
    model, file = PCA(3).fit(path), tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    options = ["--no-dashboard", "--scheduler-file", str(file)]
    with subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as scheduler:
        while not file.exists():
            time.sleep(0.02)
        with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
            client = Client(scheduler_file=str(file), timeout=1)
            address = client.scheduler.address
            assert PCA(3).plan(path).n_workers == 1  # one is planned for before any comes
            scheduler.kill()
            for use in (
                lambda: PCA(3).fit(path),
                lambda: PCA(3).plan(path),
                lambda: KernelPCA(2, method="nystrom", n_landmarks=20).fit(path),
                lambda: model.transform_to(path, tmp_path / "scores.zarr"),
                lambda: MCA(2, first=4).fit(path),
            ):
                with pytest.raises(ClusterError, match=f"connection to the scheduler at {address} was lost") as caught:
                    use()
                assert caught.value.exit_status == 3
                del caught
    assert client.status in ("closing", "closed")
    with dask.config.set(scheduler="threads"):
        assert np.array_equal(_fit(path), expected)
    del client, use
    gc.collect()
    assert np.array_equal(_fit(path), expected)


def test_dask_s_own_setting_for_threads_goes_before_an_active_client(cluster: LocalCluster, path: str) -> None:
    with Client(cluster):
        assert PCA(3).fit(path).plan_.n_workers == 1
        with dask.config.set(scheduler="threads"):
            assert PCA(3).fit(path).plan_.n_workers == 0
    assert PCA(3).fit(path).plan_.n_workers == 0  # after a client that was closed
