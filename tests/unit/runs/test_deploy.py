"""What starts clusters is given the right things, and what it says comes back in one line; SLURM and pods are played by threads."""

from __future__ import annotations

import asyncio
import signal
import sys
import types
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any, ClassVar

import dask
import distributed
import pytest
from dask.utils import parse_timedelta
from stores import config_text, make_values, write_store

import streampca as sp
from streampca.errors import ClusterError, ConfigError, NotAvailableError
from streampca.runs.config import parse_config
from streampca.runs.deploy import cluster_of
from streampca.runs.deploy.options import (
    as_environment,
    certificates_of,
    class_of,
    closing_jobs,
    kubernetes_options,
    settings_of,
    slurm_options,
)

SECRET = "canary-5f3a"
TTL = "distributed.scheduler.worker-ttl"


def config_of(cluster, *lines):
    return parse_config("\n".join(["source: {path: x.zarr}", f"cluster: {cluster}", *lines]), name="c.yaml")


class Played(distributed.LocalCluster):
    """A cluster of threads in this process that keeps what it was started with."""

    come = None
    """How many workers come; None for all that were asked for."""
    calls: ClassVar[list[dict[str, Any]]] = []
    closed = 0

    def __init__(self, **options):
        type(self).calls.append(options)
        come = options["n_workers"] if self.come is None else self.come
        fixed = {"protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
        super().__init__(n_workers=come, threads_per_worker=1, processes=False, **fixed)

    def close(self, *arguments, **options):
        type(self).closed += 1
        return super().close(*arguments, **options)


@pytest.fixture
def played(monkeypatch, tmp_path):
    """Put modules in place of dask_jobqueue and dask_kubernetes, and an sbatch on the path; return their cluster's class."""

    class Cluster(Played):
        calls: ClassVar[list[dict[str, Any]]] = []

    monkeypatch.setitem(sys.modules, "dask_jobqueue", types.SimpleNamespace(SLURMCluster=Cluster))
    monkeypatch.setitem(sys.modules, "dask_kubernetes", types.ModuleType("dask_kubernetes"))
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", types.SimpleNamespace(KubeCluster=Cluster))
    monkeypatch.setattr("streampca.runs.deploy.shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("streampca.runs.deploy.certificates_of", lambda *_: nullcontext("security"))
    return Cluster


SLURM = (
    "{kind: slurm, n_workers: 2, threads_per_worker: 3, options: {queue: short, worker_extra_args: [--lifetime, 1h]}}"
)
PODS = (
    "{kind: kubernetes, n_workers: 2, threads_per_worker: 3, allow_remote: true, options: {env: {A: b}, image: here}}"
)


@pytest.mark.parametrize("cluster", [SLURM, PODS], ids=["slurm", "kubernetes"])
def test_a_run_on_workers_of_another_system(tmp_path, played, cluster):
    rows = write_store(tmp_path / "x.zarr", make_values(2_000, 5), chunks=(500, 5))
    (tmp_path / "c.yaml").write_text(config_text(rows, tmp_path / "out", f"cluster: {cluster}"))
    there = sp.run(tmp_path / "c.yaml").model
    here = sp.run(
        tmp_path / "c.yaml", overrides=["cluster={kind: threads}", f"output.directory={tmp_path / 'here'}"]
    ).model
    assert there.components_.tobytes() == here.components_.tobytes()
    (given,) = played.calls
    assert given["n_workers"] == 2
    assert played.closed >= 1
    with pytest.raises(ValueError, match="No global client"):
        distributed.get_client()


def test_what_slurm_is_given(tmp_path):
    config = config_of(SLURM, "resources: {memory: 2GiB}", f"output: {{directory: '{tmp_path / 'runs/a'}'}}")
    given = slurm_options(config, config.cluster, {"distributed.worker.memory.terminate": False}, "security")
    assert (given["cores"], given["processes"], given["memory"]) == (3, 1, f"{2**31}B")
    assert given["queue"] == "short"
    assert given["security"] == "security"
    assert given["scheduler_options"] == {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    assert given["worker_extra_args"] == ["--lifetime", "1h", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    assert given["job_script_prologue"] == [
        "export DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE=False",
        "export DASK_LOGGING__DISTRIBUTED=${DASK_LOGGING__DISTRIBUTED:-warning}",
    ]
    own = "{processes: 2, cores: 5, memory: 9GB, scheduler_options: {dashboard_address: ':1', port: 7}}"
    config = config_of(f"{{kind: slurm, threads_per_worker: 3, dashboard: true, options: {own}}}")
    given = slurm_options(config, config.cluster, {}, "security")
    assert (given["cores"], given["processes"], given["memory"]) == (5, 2, "9GB")
    assert given["scheduler_options"] == {"dashboard": True, "dashboard_address": "127.0.0.1:0", "port": 7}


def test_a_job_of_slurm_that_was_cancelled_is_closed():
    """Dask asserts that every job is, and dask_jobqueue leaves it running; the run said that its cluster was not closed in order."""

    class Job(distributed.deploy.spec.ProcessInterface):
        cancelled = 0

        async def close(self):
            self.cancelled += 1

    async def closed():
        job = await closing_jobs(Job)("scheduler")
        await job.close()
        return job

    job = asyncio.run(closed())
    assert (job.cancelled, job.status) == (1, distributed.Status.closed)


def test_the_job_that_slurm_gets(tmp_path):
    if not find_spec("dask_jobqueue"):
        pytest.skip("dask-jobqueue is not installed")
    pytest.importorskip("cryptography")
    cluster_class = class_of("dask_jobqueue", "SLURMCluster", "slurm")
    text = "{kind: slurm, threads_per_worker: 3, options: {account: me, walltime: '1:00:00', scheduler_options: {host: 127.0.0.1}}}"
    config = config_of(text, "resources: {memory: 2GiB}", f"output: {{directory: '{tmp_path / 'a'}'}}")
    with certificates_of(config, config.cluster) as security:
        options = slurm_options(config, config.cluster, settings_of(config.cluster), security) | {"n_workers": 0}
        with cluster_class(**options) as cluster:
            script = cluster.job_script()
            assert cluster.scheduler_address.startswith("tls://127.0.0.1:")
        (directory,) = tmp_path.glob(".streampca-tls-*")
        assert directory.stat().st_mode & 0o077 == 0
    for part in (
        "#SBATCH -A me",
        "#SBATCH -t 1:00:00",
        "#SBATCH --cpus-per-task=3",
        "#SBATCH --mem=2G",
        "export DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE=False",
        "--nthreads 3",
        "--memory-limit 2.00GiB",
        "--protocol tls://",
        f"--tls-key {tmp_path}/.streampca-tls-",
        "--dashboard-address 127.0.0.1:0",
    ):
        assert part in script, script
    assert not list(tmp_path.iterdir())


def test_what_kubernetes_is_given():
    config = config_of(PODS)
    given = kubernetes_options(config.cluster, {TTL: "60s", "distributed.worker.memory.spill": False})
    variables = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "60s", "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "False"}
    assert given == {
        "n_workers": 2,
        "quiet": True,
        "image": "here",
        "env": variables | {"A": "b"},
        "worker_command": ["dask", "worker", "--nthreads", "3"],
    }
    config = config_of(
        "{kind: kubernetes, allow_remote: true, options: {env: [{name: A, value: b}], worker_command: x}}"
    )
    given = kubernetes_options(config.cluster, {TTL: "60s"})
    assert given["env"] == [
        {"name": "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "value": "60s"},
        {"name": "A", "value": "b"},
    ]
    assert given["worker_command"] == "x"
    assert "distributed.worker.http.routes" not in settings_of(config.cluster)  # pods are asked there whether they live


def test_settings_of_dask_hold_for_the_cluster_and_where_the_user_has_none(played):
    config = config_of("{kind: slurm}")
    before = dask.config.get(TTL, config=dask.config.merge(*dask.config.defaults))
    assert before != "60s"
    as_by_default = dask.config.set({TTL: before})  # the cluster that the tests share may have set it
    with as_by_default:
        with cluster_of(config):
            assert dask.config.get(TTL) == "60s"
            assert dask.config.get("distributed.worker.memory.terminate") is False
            assert settings_of(config.cluster)["distributed.scheduler.http.routes"] == []
        assert dask.config.get(TTL) == before
    with dask.config.set({TTL: "7s"}), cluster_of(config):
        assert dask.config.get(TTL) == "7s"
    for value in settings_of(config.cluster).values():
        assert not isinstance(value, str) or parse_timedelta(value) > 0  # Dask knows no "min"
    assert as_environment({"a.b-c": [1]}) == {"DASK_A__B_C": "[1]"}
    assert TTL not in settings_of(config_of("{kind: address, address: '127.0.0.1:1'}").cluster)


def test_fewer_workers_than_asked_for_and_none(played, monkeypatch):
    monkeypatch.setattr("streampca.runs.deploy._NEXT_SECONDS", 0.3)
    told = []
    monkeypatch.setattr(played, "come", 1)
    with cluster_of(config_of("{kind: slurm, n_workers: 3, dashboard: true}"), told.append):
        pass
    assert told[0].startswith("dashboard: http://127.0.0.1:")
    assert told[1:] == ["1 of 3 workers have come: going on with them, others may join"]
    monkeypatch.setattr(played, "come", 0)
    for kind, advice in (("slurm", "squeue"), ("kubernetes, allow_remote: true", "kubectl")):
        closed = played.closed
        config = config_of(f"{{kind: {kind}, n_workers: 3, wait: 300ms}}")
        with pytest.raises(ClusterError, match=f"0 of 3 workers came within 300ms: {advice}"), cluster_of(config):
            pytest.fail("it went on")
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
def test_what_a_system_refuses_comes_back_in_one_line_without_secrets(played, monkeypatch, error, expected, says):
    monkeypatch.setenv("STREAMPCA_CANARY", SECRET)

    def refuse(**_):
        raise error

    monkeypatch.setattr(sys.modules["dask_jobqueue"], "SLURMCluster", refuse)
    with (
        pytest.raises(expected, match=says) as caught,
        cluster_of(config_of("{kind: slurm, options: {x: '${STREAMPCA_CANARY}'}}")),
    ):
        pytest.fail("it started")
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "module"), [("slurm", "dask_jobqueue"), ("kubernetes, allow_remote: true", "dask_kubernetes.operator")]
)
def test_a_package_that_is_not_installed(monkeypatch, kind, module):
    monkeypatch.setitem(sys.modules, module, None)
    expected = pytest.raises(NotAvailableError, match=r'pip install "streampca\[(slurm|kubernetes)\]"')
    with expected as caught, cluster_of(config_of(f"{{kind: {kind}}}")):
        pytest.fail("it started")
    assert caught.value.exit_status == 2


def test_slurm_where_no_jobs_can_be_submitted(played, monkeypatch):
    monkeypatch.setattr("streampca.runs.deploy.shutil.which", lambda name: None)
    with (
        pytest.raises(ClusterError, match="there is no sbatch on this machine"),
        cluster_of(config_of("{kind: slurm}")),
    ):
        pytest.fail("it started")


def test_an_import_does_not_take_over_signals(tmp_path, monkeypatch):
    (tmp_path / "takes_signals.py").write_text(
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nclass Thing: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    assert class_of("takes_signals", "Thing", "slurm").__name__ == "Thing"
    assert signal.getsignal(signal.SIGINT) is before
