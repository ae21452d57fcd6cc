"""Who can listen and look while a cluster of ours is at work, and that it can be closed in any state."""

from __future__ import annotations

import http.client
import os
import signal
import stat
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import network
import numpy as np
import psutil
import pytest
from facade import cluster_of, impatient_clusters, parse_config
from stores import REPOSITORY, Command, config_text, make_values, write_store

import streampca as sp

pytestmark = pytest.mark.distributed

ROWS, FEATURES = 3_000, 6


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path / "x.zarr", make_values(ROWS, FEATURES), chunks=(500, FEATURES))


def write(tmp_path, cluster, name="c.yaml", output="out"):
    """Write a configuration with a cluster."""
    (tmp_path / name).write_text(config_text(tmp_path / "x.zarr", tmp_path / output, f"cluster: {cluster}"))
    return tmp_path / name


def bits(run):
    return run.model.components_.tobytes() + run.model.explained_variance_.tobytes()


def children():
    return set(psutil.Process().children(recursive=True))


@pytest.mark.slow
def test_a_cluster_of_our_own_from_its_start_to_its_end(tmp_path):
    """It listens on the loopback and shows nothing, opens a guarded store, and closes although its workers are frozen."""
    pytest.importorskip("obstore")
    network.write_guarded(tmp_path)
    config = parse_config("source: {path: x}\ncluster: {kind: local, n_workers: 2, threads_per_worker: 1}", name="c")
    before, told = children(), []
    with network.Guarded(tmp_path / "web", "a-password") as server, network.Watch() as watch:
        with impatient_clusters(close=2.0), cluster_of(config, told.append):
            shows_nothing()
            computes_lazy_scores(tmp_path / "web/x.zarr", server)
            wait_until(lambda: len(watch.sockets) >= 8)
            workers = [each for each in children() - before if "resource_tracker" not in " ".join(each.cmdline())]
            assert len(workers) == 2
            for worker in workers:
                worker.suspend()
            left = time.monotonic()
        assert time.monotonic() - left < 10
    _, alive = psutil.wait_procs(workers, timeout=10)
    for worker in alive:
        worker.kill()
    assert not alive
    assert not told
    assert not watch.pages
    # The server of this test, a scheduler and its pages, and for each worker one for it, one for its pages, one for its nanny.
    assert len(watch.sockets) >= 8
    assert {address for address, _ in watch.sockets} <= set(network.LOOPBACK)


def shows_nothing():
    from distributed import get_client

    port = get_client().scheduler_info()["services"]["dashboard"]
    for page in ("info/main/workers.html", "status", "json/identity.json"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", f"/{page}")
        assert connection.getresponse().status == 404
        connection.close()


def computes_lazy_scores(store, server):
    """Let workers compute scores of a store that asks for a password, by a graph that the scheduler has to unpack."""
    model = sp.PCA(2, solver="covariance").fit(store)
    headers = {"client_options": {"default_headers": {"Authorization": server.password}}}
    source = sp.sources.open_source(f"{server.url}/x.zarr", storage_options=headers)
    scores = model.transform(source).compute()
    assert not server.refused
    np.testing.assert_allclose(scores, model.transform(store).compute(scheduler="synchronous"))


def wait_until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("damaged", [False, True], ids=["a run that succeeds", "a run that fails"])
def test_a_secret_is_nowhere_but_with_those_who_need_it(tmp_path, damaged):
    pytest.importorskip("obstore")
    secret = "canary-9c41e7d2"
    network.write_guarded(tmp_path)
    found = network.hunt(tmp_path, secret, damaged=damaged)
    assert found.status == (5 if damaged else 0), found.said
    assert not found.places, (found.places, secret)
    assert found.served >= 20
    assert "dashboard: http://127.0.0.1:" in found.said
    assert "Traceback" not in found.said, found.said
    # The watch was awake: it saw tasks, what the scheduler shows of them, and the error.
    assert any(key.startswith("streampca-") for key in found.watch.tasks)
    assert any(path.startswith("info/task/streampca-") for path in found.watch.pages)
    assert any(path.startswith("info/logs/") for path in found.watch.pages)
    assert found.watch.an_error_was_shown.is_set() == damaged
    assert {address for address, _ in found.watch.sockets} <= set(network.LOOPBACK)
    if not damaged:
        expected = sp.PCA(2, solver="covariance").fit(tmp_path / "web/x.zarr")
        np.testing.assert_allclose(
            sp.load(tmp_path / "out").explained_variance_, expected.explained_variance_, rtol=1e-5
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Return a directory with the certificate and key of a cluster, and those of somebody else."""
    pytest.importorskip("cryptography")
    from distributed.security import Security

    directory = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "theirs"):
        made = Security.temporary()
        (directory / f"{name}.crt").write_text(made.tls_ca_file)
        (directory / f"{name}.key").write_text(made.tls_client_key)
    return directory


@pytest.fixture(scope="module")
def encrypted(certificates):
    """Return the address of a scheduler with one worker that speaks to those who have its certificate."""
    from distributed import LocalCluster
    from distributed.security import Security

    crt, key = str(certificates / "ours.crt"), str(certificates / "ours.key")
    roles = {
        f"tls_{role}_{what}": path
        for role in ("client", "scheduler", "worker")
        for what, path in (("cert", crt), ("key", key))
    }
    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        security=Security(require_encryption=True, tls_ca_file=crt, **roles),
        protocol="tls://",
        **options,
    ) as cluster:
        yield cluster.scheduler_address


def tls(certificates, name, key=None):
    ca = certificates / f"{name}.crt"
    return f"tls: {{ca_file: '{ca}', cert: '{ca}', key: '{certificates / f'{key or name}.key'}'}}"


def test_a_scheduler_with_certificates(tmp_path, store, certificates, encrypted):
    assert encrypted.startswith("tls://127.0.0.1:")
    path = write(tmp_path, f"{{kind: address, address: '{encrypted}', {tls(certificates, 'ours')}}}")
    there = sp.run(path)
    here = sp.run(path, overrides=["cluster={kind: threads}", f"output.directory={tmp_path / 'here'}"])
    assert bits(there) == bits(here)
    assert there.manifest["reads"]["fit"] | {"seconds": None} == here.manifest["reads"]["fit"] | {"seconds": None}


@pytest.mark.parametrize("how", ["not encrypted", "with another certificate"])
def test_a_scheduler_with_certificates_speaks_to_nobody_else(tmp_path, store, certificates, encrypted, how, capsys):
    address = encrypted.replace("tls://", "tcp://") if how == "not encrypted" else encrypted
    given = "" if how == "not encrypted" else tls(certificates, "theirs")
    path = write(tmp_path, f"{{kind: address, address: '{address}', wait: 2s, {given}}}")
    Command(capsys)("run", "--quiet", path).refused(3, f"no scheduler answers at {address} within 2s")
    assert not (tmp_path / "out").exists()


def test_files_that_are_no_certificates(tmp_path, store, certificates, capsys):
    command = Command(capsys)
    write_config = lambda given: write(tmp_path, f"{{kind: address, address: 'tls://127.0.0.1:1', {given}}}")  # noqa: E731
    path = write_config(tls(certificates, "nowhere"))
    command("run", "--quiet", path).refused(2, "cluster.tls.ca_file", "nowhere.crt cannot be read: No such file")
    path = write_config(tls(certificates, "ours", key="theirs"))
    command("run", "--quiet", path).refused(2, "cluster.tls: the files cannot be used")
    (certificates / "empty.crt").write_text("")
    (certificates / "empty.key").write_text("")
    path = write_config(tls(certificates, "empty"))
    command("run", "--quiet", path).refused(2, "cluster.tls: the files cannot be used")
    path = write(tmp_path, "{kind: address, address: 'tls://127.0.0.1:1'}")
    command("run", "--quiet", path).refused(2, "there are no certificates: add tls")
    assert not (tmp_path / "out").exists()


SBATCH = """#!/bin/sh
{first}
kept='{log}'.$$
cp "$1" "$kept"
setsid bash "$kept" </dev/null >>'{log}' 2>&1 &
echo "Submitted batch job $!"
"""
SRUN = """#!/bin/sh
shift
"$@" & first=$!
"$@" & second=$!
trap "kill $first $second" TERM
wait
wait
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put commands on the path that do what those of SLURM do, at once and on this machine."""
    log, commands = tmp_path / "jobs.log", tmp_path / "commands"
    executable(commands / "sbatch", SBATCH.format(first="", log=log))
    executable(commands / "scancel", '#!/bin/sh\nkill -TERM -- "-$1"\n')
    executable(commands / "srun", SRUN)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield commands
    deadline = time.monotonic() + 10
    while left := [
        p.info for p in psutil.process_iter(["pid", "cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


NEEDS_SLURM = pytest.mark.skipif(
    not (find_spec("dask_jobqueue") and find_spec("cryptography")), reason="streampca[slurm] is not installed"
)  # importing it would take SIGINT


@pytest.mark.deep
@NEEDS_SLURM
def test_workers_of_slurm(tmp_path, store, slurm):
    before = signal.getsignal(signal.SIGINT)
    options = f"cores: 1, memory: 1GiB, log_directory: '{tmp_path / 'logs'}', interface: lo"
    path = write(tmp_path, f"{{kind: slurm, n_workers: 2, wait: 40s, options: {{{options}}}}}")
    with network.Watch() as watch:
        there = sp.run(path)
    here = sp.run(path, overrides=["cluster={kind: threads}", f"output.directory={tmp_path / 'here'}"])
    assert bits(there) == bits(here)
    assert watch.workers
    assert all(address.startswith("tls://127.0.0.1:") for address in watch.workers), watch.workers
    assert {address for address, _ in watch.sockets} <= set(network.LOOPBACK)
    assert not list(tmp_path.glob(".streampca-tls*"))
    assert signal.getsignal(signal.SIGINT) is before


@NEEDS_SLURM
def test_slurm_that_refuses_a_job(tmp_path, store, slurm, capsys):
    executable(slurm / "sbatch", SBATCH.format(first='echo "invalid partition specified" >&2; exit 1', log="x"))
    path = write(
        tmp_path, "{kind: slurm, wait: 40s, options: {cores: 1, memory: 1GiB, scheduler_options: {host: 127.0.0.1}}}"
    )
    began = time.monotonic()
    Command(capsys)("run", "--quiet", path).refused(3, "a worker could not be started", "invalid partition specified")
    assert time.monotonic() - began < 20
    assert not (tmp_path / "out").exists()


@pytest.mark.deep
def test_the_job_script_runs_scheduler_workers_and_the_run(tmp_path, store, slurm):
    path = write(tmp_path, "{kind: threads}")
    done = subprocess.run(
        [REPOSITORY / "scripts/slurm_job.sh", path, "--json"],
        cwd=tmp_path,
        env=os.environ | {"STREAMPCA_PYTHON": sys.executable, "STREAMPCA_INTERFACE": "lo", "SLURM_NTASKS": "2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "INFO" not in done.stderr  # pages of what Dask does, and addresses of pages that nobody serves
    there = sp.load(tmp_path / "out")
    here = sp.run(path, overrides=[f"output.directory={tmp_path / 'here'}"]).model
    assert there.components_.tobytes() == here.components_.tobytes()
    assert "kind: address" in (tmp_path / "out/config.yaml").read_text()
    assert not list(tmp_path.glob(".streampca-job*"))


def test_nobody_answers_and_nobody_comes(tmp_path, store, capsys):
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50) as cluster:
        path = write(tmp_path, f"{{kind: address, address: '{cluster.scheduler_address}', wait: 3s}}")
        Command(capsys)("run", "--quiet", path).refused(
            3, "0 of 1 workers started within 3s: the scheduler has no workers"
        )
    Command(capsys)("run", "--quiet", path).refused(3, "no scheduler answers at tcp://127.0.0.1:", "within 3s")
    assert not (tmp_path / "out").exists()
