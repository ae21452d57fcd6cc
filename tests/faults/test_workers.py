"""Workers that die, freeze, leave and join: the same bits, or an error that says which rows or that no worker is left."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import jobs
import numpy as np
import pytest
import slow_worker
import workers
from clusters import cluster, restored, running
from distributed import Client
from slow_run import digest_of_run
from stores import REPOSITORY, config_text, make_values, write_store
from strategies import in_depth

import streampca as sp
from streampca.errors import ClusterError, NotFiniteError, StreamPCAError

pytestmark = pytest.mark.distributed

MODEL = "model: {n_components: 3, solver: covariance}"
SEED = int(os.environ.get("STREAMPCA_TEST_SEED", "20260719"))


@pytest.mark.slow
def test_killed_workers_change_no_bit(two_workers: tuple[Any, Any]) -> None:
    n = in_depth(3, 40)
    score = workers.run(n, SEED, found=two_workers)
    print(f"seed {SEED}")
    score.require_clean()
    assert score.injected == n
    assert score.survived + score.detected > 0, score.notes
    assert score.detected == 0 or n > 5, score.notes  # a piece needs eight lost workers to be taken for their reason


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> jobs.Inputs:
    return jobs.Inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.slow
def test_a_block_that_kills_is_named(
    two_workers: tuple[Any, Any], inputs: jobs.Inputs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local, client = two_workers
    with caplog.at_level(logging.WARNING, logger="streampca"):
        assert workers.poisoned(inputs, client, 17, tmp_path / "attempts.log") == ""
    warned = [record.getMessage() for record in caplog.records if record.name.startswith("streampca")]
    assert "leaves 4 to 4: 4 workers were lost with them; each is tried alone" in warned
    restored(local)
    job = jobs.JOBS["covariance"]
    after = jobs.within(60, lambda: jobs.digest(jobs.fitted(inputs.source(job), job, client)))
    assert after == inputs.expected("covariance")


@pytest.mark.deep
def test_a_frozen_worker_is_given_up_after_its_time_to_live(inputs: jobs.Inputs) -> None:
    ttl, job = 6.0, jobs.JOBS["covariance"]
    source, rows = jobs.Disturbed(inputs.source(job), job.delay), jobs.Rows()
    with cluster(ttl=f"{ttl}s") as (local, client), workers.frozen(running(local)[0], 0.1, rows.begun):
        found = jobs.within(120, lambda: jobs.digest(jobs.fitted(source, job, client, rows)))
    assert found == inputs.expected("covariance")
    assert rows.complaints() == []
    assert time.monotonic() - rows.began < 2 * ttl + 40  # Dask looks once in that time, and starts the process again


def test_a_cluster_without_workers_says_so_and_ends_the_run(inputs: jobs.Inputs) -> None:
    job, said = jobs.JOBS["covariance"], set[str]()

    def progress(state: Any) -> None:
        said.add(state.waiting_for)

    with cluster(0, no_workers="6s") as (_, client):
        began = time.monotonic()
        with pytest.raises(ClusterError, match=r"waiting without any running workers.*start workers and run again"):
            jobs.within(60, lambda: jobs.fitted(inputs.source(job), job, client, progress))
        assert 5 < time.monotonic() - began < 30
    assert said == {"the cluster has no workers"}


@pytest.mark.deep(keep=["late"])
@pytest.mark.parametrize("befalls", ["kills", "faster kills", "frozen", "late", "gone"])
def test_whatever_befalls_a_cluster_the_run_has_its_bits_or_can_be_resumed(befalls: str) -> None:
    score = workers.run_cluster(1, SEED, befalls)
    print(score.notes)
    score.require_clean()
    assert score.survived + score.detected == 1
    assert score.detected == (befalls == "gone") or "kills" in befalls


class ByHand:
    """A scheduler and workers in processes of their own, as somebody starts them in a shell."""

    def __init__(self, place: Path):
        self._place, self._file = place, place / "scheduler.json"
        self.log, self.hold = place / "reads.log", place / "hold"
        self.hold.touch()
        path = os.pathsep.join(map(str, [REPOSITORY / "tests" / "faults", REPOSITORY / "tests", REPOSITORY]))
        self._environment = {
            **os.environ,
            "PYTHONPATH": path,
            slow_worker.DELAY: "0.2",
            slow_worker.LOG: str(self.log),
            slow_worker.HOLD: str(self.hold),
            "DASK_LOGGING__DISTRIBUTED": "critical",
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "6s",
            "DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT": "4s",
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start("scheduler", "--no-dashboard")
        wait_for(self._file.exists)

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker of one thread that nobody restarts."""
        options = ("--no-nanny", "--nthreads", "1", "--no-dashboard", "--memory-limit", "0", "--preload", "slow_worker")
        return self._start("worker", *options, "--local-directory", str(self._place))

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--host", "127.0.0.1"]
        port = ("--port", "0") if kind == "scheduler" else ()
        with (self._place / f"{len(self._processes)}.log").open("wb") as said:
            process = subprocess.Popen(
                [*command, *port, "--scheduler-file", str(self._file), *options],
                env=self._environment,
                cwd=self._place,
                stdout=said,
                stderr=said,
            )
        self._processes.append(process)
        return process

    def end_scheduler(self) -> None:
        """Kill the scheduler."""
        self._processes[0].kill()

    @property
    def address(self) -> str:
        import json

        return str(json.loads(self._file.read_text())["address"])

    @property
    def readers(self) -> list[int]:
        """Return the process of each reading that was made."""
        return [int(line.split()[0]) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self._processes:
            process.wait(timeout=20)


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


@pytest.mark.deep
def test_a_scheduler_and_workers_started_by_hand(tmp_path: Path, blocks_of: Any) -> None:
    """One of two workers is killed midway and a third joins; then all are frozen, and the next run says so in time."""
    values = make_values(150_000, 8) * np.linspace(1, 3, 8) + 5
    store = write_store(tmp_path / "x.zarr", values, chunks=(1000, 8))
    blocks_of(1000)

    def run(name: str, *lines: str) -> Path:
        config = tmp_path / f"{name}.yaml"
        config.write_text(config_text(store, tmp_path / name, MODEL, *lines, output="report: false, scores: false"))
        return sp.run(config).directory

    undisturbed = digest_of_run(run("here"))
    by_hand = ByHand(tmp_path)
    try:
        first, second = by_hand.worker(), by_hand.worker()
        there = f"cluster: {{kind: address, address: '{by_hand.address}'}}"
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(run, "there", there)
            wait_for(lambda: job.done() or {first.pid, second.pid} <= set(by_hand.readers[:-4]))
            assert not job.done(), job.exception()
            first.kill()
            third = by_hand.worker()
            wait_for(lambda: job.done() or third.pid in by_hand.readers)
            assert not job.done(), job.exception()
            by_hand.hold.unlink()
            assert digest_of_run(job.result(timeout=120)) == undisturbed
        assert first.poll() == -signal.SIGKILL
        by_hand.hold.touch()
        with ThreadPoolExecutor(1) as pool:
            before = len(by_hand.readers)
            job = pool.submit(run, "frozen", there)
            wait_for(lambda: job.done() or len(by_hand.readers) > before + 4)
            assert not job.done(), job.exception()
            for worker in (second, third):
                worker.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(ClusterError, match="waiting without any running workers") as caught:
                job.result(timeout=60)
            assert time.monotonic() - began < 2 * 6 + 2 * 4 + 5  # Dask looks once in the time to live; and closing
            assert caught.value.exit_status == 3
    finally:
        by_hand.close()
    assert not (tmp_path / "frozen").exists()


@pytest.mark.deep
def test_a_scheduler_that_is_gone_ends_the_run(tmp_path: Path, blocks_of: Any) -> None:
    store = write_store(tmp_path / "x.zarr", make_values(150_000, 8), chunks=(1000, 8))
    blocks_of(1000)
    by_hand = ByHand(tmp_path)
    try:
        by_hand.worker()
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "5s"}),
            Client(by_hand.address, set_as_default=False) as client,
            client.as_current(),
            ThreadPoolExecutor(1) as pool,
        ):
            client.wait_for_workers(1, timeout=60)
            job = pool.submit(contextvars.copy_context().run, sp.PCA(3, solver="covariance").fit, store)
            wait_for(lambda: job.done() or len(by_hand.readers) > 4)
            by_hand.end_scheduler()
            with pytest.raises(ClusterError, match="the connection to the scheduler was lost"):
                job.result(timeout=100)
    finally:
        by_hand.close()


@pytest.mark.slow
@pytest.mark.deep(keep=2)
@pytest.mark.parametrize(
    ("error", "times", "attempts", "ends_with"),
    [
        (MemoryError, 2, 3, None),
        (MemoryError, 99, 4, r"leaf 4 of 32 \(rows 8000 to 9999\) failed 4 times, last with MemoryError: injected"),
        (OSError, 2, 3, None),
        (OSError, 99, 4, r"rows 8500 to 8999 could not be read in 4 attempts: injected"),
        (NotFiniteError, 99, 1, "injected"),
    ],
)
def test_an_error_in_a_leaf_is_tried_again_if_it_may_pass(
    two_workers: tuple[Any, Any],
    inputs: jobs.Inputs,
    tmp_path: Path,
    error: type[Exception],
    times: int,
    attempts: int,
    ends_with: str | None,
) -> None:
    client, job, log = two_workers[1], jobs.JOBS["covariance"], tmp_path / "attempts.log"
    restored(two_workers[0])
    source = jobs.Disturbed(inputs.source(job), 0.0, jobs.Failing(str(log), error, times), 17 * job.per_block)
    if ends_with is None:
        found = jobs.within(60, lambda: jobs.digest(jobs.fitted(source, job, client)))
        assert found == inputs.expected("covariance")
    else:
        with pytest.raises(StreamPCAError, match=ends_with) as caught:
            jobs.within(60, lambda: jobs.fitted(source, job, client))
        assert caught.value.exit_status == (3 if error is MemoryError else 5)
    assert len(log.read_text().splitlines()) == attempts
