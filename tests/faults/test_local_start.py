"""Workers of this machine that end, or stand still, while they start; and a start in a notebook."""

import asyncio

import distributed
import numpy as np
import pytest
import zarr
from dask import config as dask_config
from facade import cluster_of, impatient_clusters, parse_config
from stores import config_text

import streampca as sp
from streampca.errors import ClusterError

pytestmark = pytest.mark.distributed

PRELOAD = """
import os, signal
for turn in range({times}):
    try:
        os.close(os.open({marker!r} + str(turn), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        continue
    os.kill(os.getpid(), signal.{signal})
    break
"""


@pytest.fixture
def harmed(tmp_path):
    """Return what makes the first so many workers send themselves a signal while they start."""

    def harm(signal, times):
        script = tmp_path / "harm.py"
        script.write_text(PRELOAD.format(times=times, marker=str(tmp_path / "harmed-"), signal=signal))
        return dask_config.set({"distributed.worker.preload": [str(script)]})

    with impatient_clusters():
        yield harm


def of(cluster):
    return parse_config(f"source: {{path: x.zarr}}\ncluster: {cluster}", name="c.yaml")


@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_a_worker_that_is_lost_while_it_starts_is_started_again(signal, harmed):
    with harmed(signal, 1), cluster_of(of("{kind: local, n_workers: 1, threads_per_worker: 1, wait: 2min}")):
        client = distributed.get_client()
        assert client.submit(sum, (1, 2)).result(60) == 3


def test_workers_that_never_start_are_a_named_error_within_wait(harmed):
    cluster = of("{kind: local, n_workers: 1, threads_per_worker: 1, wait: 6s}")
    with (
        harmed("SIGSTOP", 9),
        pytest.raises(ClusterError, match="0 of 1 workers started within 6s: they exited") as found,
        impatient_clusters(attempts=2),
        cluster_of(cluster),
    ):
        pytest.fail("it went on")
    assert found.value.exit_status == 3


@pytest.mark.slow
def test_a_run_on_a_local_cluster_works_in_a_running_loop(tmp_path):
    rows = np.random.default_rng(0).standard_normal((900, 6))
    zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(300, 6), dtype="f8")[...] = rows
    cluster = "cluster: {kind: local, n_workers: 1, threads_per_worker: 1}"
    (tmp_path / "c.yaml").write_text(config_text(tmp_path / "x.zarr", tmp_path / "out", cluster))

    async def cell():
        return sp.run(tmp_path / "c.yaml").model

    assert np.array_equal(asyncio.run(cell()).components_, sp.PCA().fit(tmp_path / "x.zarr").components_)
