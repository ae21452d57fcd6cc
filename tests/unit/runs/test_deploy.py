"""What starts clusters is given the right things, and what it says comes back in one line; SLURM and pods are played by threads."""

from __future__ import annotations

import os
import signal
import types
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import dask
import distributed
import numpy as np
import pytest
from installed import modules

import streampca as sp
from streampca.errors import ClusterError, ConfigError, NotAvailableError

SECRET = "canary-5f3a"
TTL = "distributed.scheduler.worker-ttl"


class Played(distributed.LocalCluster):
    """A cluster of threads in this process that keeps what it was started with."""

    come: ClassVar[int | None] = None
    """How many workers come; None for all that were asked for."""
    error: ClassVar[Exception | None] = None
    """What its start raises."""
    calls: ClassVar[list[dict[str, Any]]] = []
    closed = 0

    def __init__(self, **options):
        type(self).calls.append(options)
        if self.error is not None:
            raise self.error
        come = options["n_workers"] if self.come is None else self.come
        fixed = {"protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
        super().__init__(n_workers=come, threads_per_worker=1, processes=False, **fixed)

    def close(self, *arguments, **options):
        type(self).closed += 1
        return super().close(*arguments, **options)


def program(place: Path, *lines: str) -> None:
    """Write a program ``sbatch`` of shell into the directory `place`, and one that cancels jobs."""
    place.mkdir()
    for name, text in (("sbatch", lines), ("scancel", ())):
        (place / name).write_text("\n".join(["#!/bin/sh", *text, ""]))
        (place / name).chmod(0o755)


@pytest.fixture
def played(monkeypatch, tmp_path):
    """Put a module in place of dask_jobqueue, and an sbatch on the path; return their cluster's class."""

    class Cluster(Played):
        calls: ClassVar[list[dict[str, Any]]] = []

    program(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with modules(dask_jobqueue=types.SimpleNamespace(SLURMCluster=Cluster)):
        yield Cluster


@pytest.fixture
def run(tmp_path):
    """Return a function that carries out a run of a small table on a cluster."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((400, 5)))

    def carried_out(cluster, *, directory="out", notice=None, progress=None, **sections):
        config = {
            "source": {"path": str(tmp_path / "x.npy")},
            "cluster": cluster,
            "model": {"n_components": 2},
            "output": {"directory": str(tmp_path / directory), "report": False},
            **sections,
        }
        return sp.run(config, notice=notice, progress=progress)

    return carried_out


SLURM = {
    "kind": "slurm",
    "n_workers": 2,
    "threads_per_worker": 3,
    "options": {"queue": "short", "worker_extra_args": ["--lifetime", "1h"]},
}


def test_a_run_on_workers_of_another_system(run, played):
    there, here = run(SLURM).model, run({"kind": "threads"}, directory="here").model
    assert there.components_.tobytes() == here.components_.tobytes()
    (given,) = played.calls
    assert given["n_workers"] == 2
    assert played.closed >= 1
    with pytest.raises(ValueError, match="No global client"):
        distributed.get_client()


@pytest.mark.slow
def test_what_slurm_is_given(run, played):
    run(SLURM, resources={"memory": "2GiB"})
    (given,) = played.calls
    assert (given["cores"], given["processes"], given["memory"]) == (3, 1, f"{2**31}B")
    assert given["queue"] == "short"
    assert given["security"] is not None
    assert given["scheduler_options"] == {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    assert given["worker_extra_args"] == ["--lifetime", "1h", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    assert "export DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE=False" in given["job_script_prologue"]
    assert "export DASK_LOGGING__DISTRIBUTED=${DASK_LOGGING__DISTRIBUTED:-warning}" in given["job_script_prologue"]
    scheduler = {"dashboard_address": ":1", "port": 7}
    own = {"processes": 2, "cores": 5, "memory": "9GB", "scheduler_options": scheduler}
    cluster = {"kind": "slurm", "n_workers": 2, "threads_per_worker": 3, "dashboard": True, "options": own}
    told: list[str] = []
    run(cluster, directory="own", notice=told.append)
    given = played.calls[1]
    assert (given["cores"], given["processes"], given["memory"]) == (5, 2, "9GB")
    assert given["scheduler_options"] == {"dashboard": True, "dashboard_address": "127.0.0.1:0", "port": 7}
    assert told[0].startswith("dashboard: http://127.0.0.1:")


def test_the_job_that_slurm_gets_and_its_cancelled_jobs_are_closed(run, tmp_path, monkeypatch):
    """An sbatch keeps the script; dask_jobqueue leaves cancelled jobs running, of which Dask asserts that they are closed."""
    if not find_spec("dask_jobqueue"):
        pytest.skip("dask-jobqueue is not installed")
    pytest.importorskip("cryptography")
    keep = [f'cp "$1" {tmp_path}/job', f"stat -c %a {tmp_path}/.streampca-tls-* > {tmp_path}/mode"]
    program(tmp_path / "bin", *keep, "echo Submitted batch job 17")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    options = {"account": "me", "walltime": "1:00:00", "scheduler_options": {"host": "127.0.0.1"}}
    cluster = {"kind": "slurm", "n_workers": 1, "threads_per_worker": 3, "wait": "3s", "options": options}
    told: list[str] = []
    with pytest.raises(ClusterError, match="0 of 1 workers started within 3s: squeue"):
        run(cluster, resources={"memory": "2GiB"}, notice=told.append)
    script = (tmp_path / "job").read_text()
    for part in (
        "#SBATCH -A me",
        "#SBATCH -t 1:00:00",
        "#SBATCH --cpus-per-task=3",
        "#SBATCH --mem=2G",
        "export DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE=False",
        "tls://127.0.0.1:",
        "--nthreads 3",
        "--memory-limit 2.00GiB",
        "--protocol tls://",
        f"--tls-key {tmp_path}/.streampca-tls-",
        "--dashboard-address 127.0.0.1:0",
    ):
        assert part in script, script
    assert (tmp_path / "mode").read_text() == "700\n"
    assert not list(tmp_path.glob(".streampca-tls-*"))
    assert not [words for words in told if "not shut down" in words]


def test_settings_of_dask_hold_for_the_cluster_and_where_the_user_has_none(run, played):
    seen = []

    def look(_):
        names = (TTL, "distributed.worker.memory.terminate")
        seen.append([dask.config.get(name) for name in names])

    before = dask.config.get(TTL, config=dask.config.merge(*dask.config.defaults))
    assert before != "60s"
    with dask.config.set({TTL: before}):  # the cluster that the tests share may have set it
        run(SLURM, progress=look)
        assert dask.config.get(TTL) == before
    assert seen[0] == ["60s", False]
    seen.clear()
    with dask.config.set({TTL: "7s"}):
        run(SLURM, progress=look, directory="own")
    assert seen[0][0] == "7s"


def test_fewer_workers_than_asked_for_and_none(run, played, monkeypatch):
    monkeypatch.setattr("streampca.runs.deploy._NEXT_SECONDS", 0.3)
    told: list[str] = []
    played.come = 1
    run({"kind": "slurm", "n_workers": 3}, notice=told.append)
    assert "1 of 3 workers have started: continuing with them; others may join" in told
    played.come = 0
    closed = played.closed
    with pytest.raises(ClusterError, match="0 of 3 workers started within 300ms: squeue"):
        run({"kind": "slurm", "n_workers": 3, "wait": "300ms"}, directory="none")
    assert played.closed > closed


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (
            ValueError(f"no cores given\njob_kwargs={{'x': '{SECRET}'}}"),
            ConfigError,
            r"cluster.options: kind slurm refuses them: no c",
        ),
        (TypeError(f"unexpected argument {SECRET}"), ConfigError, r"unexpected argument \*\*\*$"),
        (RuntimeError(f"it said {SECRET}"), ClusterError, r"kind slurm starts no workers: it said \*\*\*$"),
        (OSError("no room"), ClusterError, "kind slurm starts no workers: no room"),
    ],
)
def test_what_a_system_refuses_comes_back_in_one_line_without_secrets(run, played, monkeypatch, error, expected, says):
    monkeypatch.setenv("STREAMPCA_CANARY", SECRET)
    played.error = error
    with pytest.raises(expected, match=says) as caught:
        run({"kind": "slurm", "options": {"x": "${STREAMPCA_CANARY}"}})
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_package_that_is_not_installed(run):
    expected = pytest.raises(NotAvailableError, match=r'pip install "streampca\[slurm\]"')
    with modules(dask_jobqueue=None), expected as caught:
        run({"kind": "slurm"})
    assert caught.value.exit_status == 2


def test_slurm_where_no_jobs_can_be_submitted(run, played, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ClusterError, match="there is no sbatch on this machine"):
        run({"kind": "slurm"})


def test_an_import_does_not_take_over_signals(run, played, tmp_path, monkeypatch):
    (tmp_path / "dask_jobqueue.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "def SLURMCluster(**_):\n    raise OSError('imported')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    with modules(dask_jobqueue="as on the path"), pytest.raises(ClusterError, match="imported"):
        run({"kind": "slurm"})
    assert signal.getsignal(signal.SIGINT) is before
