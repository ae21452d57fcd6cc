"""Relative paths, on workers with another working directory; an output that workers cannot write to."""

import errno
import os
import tempfile
from pathlib import Path

import distributed
import numpy as np
import pytest
import zarr
from facade import write_fingerprint
from stores import config_text

import streampca as sp
from streampca.errors import OutputError
from streampca.sources import open_source

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def client():
    """A worker process whose working directory is not ours."""
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(os.chdir, "/")
        yield client


@pytest.fixture
def here(tmp_path, monkeypatch, client):
    """A directory with data, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).standard_normal((1200, 6))
    zarr.create_array("x.zarr", shape=rows.shape, chunks=(300, 6), dtype="f8")[...] = rows
    np.save("x.npy", rows)
    return tmp_path


@pytest.mark.slow
def test_relative_places_of_a_run_mean_the_same_on_workers(here, client):
    write_fingerprint(open_source("x.zarr"), None)
    address = f"cluster: {{kind: address, address: '{client.scheduler.address}'}}"
    Path("c.yaml").write_text(
        config_text("x.zarr", "runs/out", address).replace("'x.zarr'", "'x.zarr', verify: manifest")
    )
    there = sp.run("c.yaml")
    assert there.directory == Path("runs/out")
    threads = sp.run("c.yaml", overrides=["cluster={kind: threads}", "output.directory=runs/threads"])
    assert there.model.components_.tobytes() == threads.model.components_.tobytes()
    scores = [zarr.open_group(f"runs/{name}/scores.zarr", mode="r")["scores"][:] for name in ("out", "threads")]
    assert np.array_equal(*scores)


@pytest.mark.deep(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.zarr", "x.npy"])
def test_relative_places_of_estimators_mean_the_same_on_workers(name, here):
    pca = sp.PCA(3, checkpoint="checkpoint").fit(name)
    assert np.array_equal(pca.components_, sp.PCA(3).fit(np.load("x.npy")).components_)
    pca.transform_to(name, "scores.zarr")
    assert np.asarray(pca.transform(name)).shape == (1200, 3)
    sp.KernelPCA(2, method="nystrom", n_landmarks=20).fit(name).transform_to(name, "kernel.zarr")
    assert zarr.open_group("kernel.zarr", mode="r")["scores"].shape == (1200, 2)


def test_a_change_of_the_working_directory_during_a_fit_changes_nothing(here, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    rows = np.load("x.npy")
    pca = sp.PCA(3).fit(rows)
    pca.set_params(progress=lambda _: os.chdir(elsewhere))
    pca.transform_to(rows, "scores.zarr")
    assert (here / "scores.zarr").exists()
    assert list(elsewhere.iterdir()) == []


def _let_no_file_be_made():
    def refuse(*arguments, **options):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    tempfile.before, tempfile.TemporaryFile = tempfile.TemporaryFile, refuse


def _let_files_be_made():
    tempfile.TemporaryFile = tempfile.before


@pytest.mark.slow
def test_an_output_that_workers_cannot_write_to_is_refused_before_reading(here, client):
    address = f"cluster: {{kind: address, address: '{client.scheduler.address}'}}"
    Path("c.yaml").write_text(config_text("x.zarr", "out", address))
    client.run(_let_no_file_be_made)
    read = []
    try:
        with pytest.raises(OutputError, match=r"cannot write there: No such file.*scores: false"):
            sp.run("c.yaml", progress=read.append)
    finally:
        client.run(_let_files_be_made)
    assert read == []
    assert not Path("out").exists()
    assert sp.run("c.yaml").directory == Path("out")
