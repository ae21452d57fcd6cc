"""Workers that die, freeze, leave and join: the same bits, or an error that says which rows or that no worker is left."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import jobs
import numpy as np
import pytest
import slow_worker
import workers
from clusters import restored, running
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
    assert (score.injected, score.survived, score.detected) == (n, n, 0), score.notes


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> jobs.Inputs:
    return jobs.Inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.slow
def test_a_block_that_kills_is_named_after_four_attempts(
    two_workers: tuple[Any, Any], inputs: jobs.Inputs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local, client = two_workers
    with caplog.at_level(logging.WARNING, logger="streampca"):
        assert workers.poisoned(inputs, client, 17, tmp_path / "attempts.log") == ""
    lost = re.compile(r"worker \w+://\S+ was lost: \d+ leaves are read again")
    warned = [record for record in caplog.records if lost.fullmatch(record.getMessage())]
    assert len(warned) >= 3  # the loss after the last attempt ends the fit
    assert {record.levelno for record in warned} == {logging.WARNING}
    restored(local)
    job = jobs.JOBS["covariance"]
    after = jobs.within(60, lambda: jobs.digest(jobs.fitted(inputs.source(job), job, client)))
    assert after == inputs.expected("covariance")


@pytest.mark.deep
def test_a_frozen_worker_is_given_up(two_workers: tuple[Any, Any], inputs: jobs.Inputs) -> None:
    local, client = two_workers
    ttl, job = 6.0, jobs.JOBS["covariance"]
    restored(local)
    source, rows = jobs.Disturbed(inputs.source(job), job.delay), jobs.Rows()
    with dask.config.set({"distributed.scheduler.worker-ttl": ttl}), workers.frozen(running(local)[0], 0.1, rows.begun):
        found = jobs.within(60, lambda: jobs.digest(jobs.fitted(source, job, client, rows)))
    assert found == inputs.expected("covariance")
    assert rows.complaints() == []
    assert time.monotonic() - rows.began < ttl + 20
    restored(local)


class ByHand:
    """A scheduler and workers in processes of their own, as somebody starts them in a shell."""

    def __init__(self, place: Path):
        self._place, self._file = place, place / "scheduler.json"
        self.log, self.hold = place / "reads.log", place / "hold"
        self.hold.touch()
        path = os.pathsep.join([str(REPOSITORY / "tests" / "faults"), str(REPOSITORY / "tests")])
        self._environment = {
            **os.environ,
            "PYTHONPATH": path,
            slow_worker.DELAY: "0.2",
            slow_worker.LOG: str(self.log),
            slow_worker.HOLD: str(self.hold),
            "DASK_LOGGING__DISTRIBUTED": "critical",
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
    from concurrent.futures import ThreadPoolExecutor

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
        ttl = 4.0
        with ThreadPoolExecutor(1) as pool, dask.config.set({"distributed.scheduler.worker-ttl": ttl}):
            before = len(by_hand.readers)
            job = pool.submit(run, "frozen", there)
            wait_for(lambda: job.done() or len(by_hand.readers) > before + 4)
            assert not job.done(), job.exception()
            for worker in (second, third):
                worker.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            with pytest.raises(
                ClusterError, match=r"2 worker\(s\) were not heard of for .* s, expected one within 4 s"
            ) as caught:
                job.result(timeout=60)
            assert time.monotonic() - began < 2 * ttl + 2  # and closing
            assert caught.value.exit_status == 3
    finally:
        by_hand.close()
    assert not (tmp_path / "frozen").exists()


@pytest.mark.slow
@pytest.mark.deep(keep=2)
@pytest.mark.parametrize(
    ("error", "times", "attempts", "ends_with"),
    [
        (MemoryError, 2, 3, None),
        (MemoryError, 99, 4, r"leaf 4 of 32 \(rows 8000 to 9999\) failed 4 times, at last with MemoryError: injected"),
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
