"""Clusters of which workers are killed, frozen and replaced, and jobs that have to end with the bits of an undisturbed run."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from clusters import cluster, restored, running
from facade import all_checkpoints, checkpoints_in, sent_apart
from jobs import JOBS, Disturbed, Inputs, Job, Killing, Rows, digest, fitted, within
from score import Score, again

from streampca.errors import StreamPCAError

_JOB_SECONDS = 150.0  # no sound run takes that long, whatever befalls it
_BETWEEN_KILLS = 0.5  # seconds on average
_TTL_SECONDS = 10


def _exit(dask_worker: Any) -> None:
    dask_worker.loop.asyncio_loop.call_later(0.01, sys.exit, 0)


def _segfault(dask_worker: Any) -> None:
    dask_worker.loop.asyncio_loop.call_later(0.01, ctypes.string_at, 0)


class Killer:
    """Ends workers of a local cluster at random times, every `mean` seconds on average; all of them at first."""

    def __init__(self, local: Any, client: Any, seed: int, mode: str, most: int, mean: float = _BETWEEN_KILLS):
        self._local, self._client, self._rng, self._mode, self._most = local, client, random.Random(seed), mode, most
        self._mean, self.kills = mean, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        restored(self._local)

    def _work(self) -> None:
        while self.kills < self._most and not self._stop.wait(self._rng.expovariate(1 / self._mean)):
            nannies = running(self._local)
            chosen = nannies if self.kills == 0 else self._rng.sample(nannies, min(1, len(nannies)))
            for nanny in chosen[: self._most - self.kills]:
                self.kills += self._end(nanny)

    def _end(self, nanny: Any) -> bool:
        """End a worker; return whether it still was there."""
        if self._mode == "SIGKILL":
            process = nanny.process.pid if nanny.process is not None else None
            if process is None:
                return False
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            return True
        act = {"exit": _exit, "segfault": _segfault}[self._mode]
        try:
            self._client.run(act, workers=[nanny.worker_address], wait=False, on_error="ignore")
        except (OSError, KeyError, ValueError):
            return False
        return True


def run(count: int, seed: int, mode: str = "SIGKILL", found: tuple[Any, Any] | None = None) -> Score:
    """End `count` workers, by a signal (``"SIGKILL"``), ``"exit"`` or ``"segfault"``, during the jobs, one after the other.

    `found` is a cluster that runs and a client of it; by default, one is started.
    """
    loop = {"SIGKILL": "workers", "exit": "workers-exit", "segfault": "workers-segfault"}[mode]
    score, began = Score(f"workers ended: {mode}"), time.monotonic()
    with tempfile.TemporaryDirectory() as place, nullcontext(found) if found else cluster() as (local, client):
        inputs = Inputs(Path(place))
        for own in itertools.count(seed):
            if score.injected >= count:
                break
            killer = Killer(local, client, own, mode, count - score.injected)
            # In every other round what leaves have in common is sent apart, as if it were large.
            name, apart = list(JOBS)[own % len(JOBS)], own // len(JOBS) % 2 == 1
            with sent_apart() if apart else nullcontext():
                _one(inputs, name, killer, client, score, again(loop, own))
    score.seconds = time.monotonic() - began
    return score


def _one(inputs: Inputs, name: str, killer: Killer, client: Any, score: Score, repeat: str) -> None:
    job, rows, began = JOBS[name], Rows(), time.monotonic()
    expected, source = inputs.expected(name), Disturbed(inputs.source(job), job.delay)
    told = ""
    with killer:
        try:
            found = within(_JOB_SECONDS, lambda: digest(fitted(source, job, client, rows)))
        except TimeoutError as error:
            score.hangs, told = score.hangs + 1, str(error)
        except StreamPCAError as error:
            score.detected, told = score.detected + killer.kills, f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 whatever it is, it is not one of ours
            score.tracebacks, told = score.tracebacks + 1, f"{type(error).__name__}: {error}"
        else:
            if found != expected or rows.complaints():
                score.wrong, told = (
                    score.wrong + 1,
                    "; ".join(["other numbers" * (found != expected), *rows.complaints()]),
                )
            else:
                score.survived += killer.kills
    score.injected += killer.kills
    if told:
        score.notes.append(f"{name}, {time.monotonic() - began:.0f} s, {killer.kills} workers ended: {told}: {repeat}")


def run_cluster(count: int, seed: int, befalls: str) -> Score:
    """Carry out `count` jobs, each on a cluster of its own, to which something happens at random times.

    Every job ends with the right bits, or with one error of ours after which it goes on from its checkpoint, on a cluster to
    which nothing happens, and has the right bits. `befalls` is ``"kills"`` (a worker every 5 s on average),
    ``"faster kills"`` (every 1.5 s), ``"frozen"``, ``"late"`` (workers join) or ``"gone"`` (none is left).
    """
    score, began, n_kills = Score(f"runs on a cluster: {befalls}"), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as place:
        inputs = Inputs(Path(place))
        for own in range(seed, seed + count):
            names = [name for name in JOBS if name != "gram"]  # of which a run is too short
            n_kills += _one_run(inputs, names[own % len(names)], befalls, own, score)
    score.seconds = time.monotonic() - began
    score.notes.append(f"{n_kills} workers were killed or frozen in {count} runs")
    return score


def _one_run(inputs: Inputs, name: str, befalls: str, seed: int, score: Score) -> int:
    job, rng, rows = JOBS[name], random.Random(seed), Rows()
    expected, source = inputs.expected(name), Disturbed(inputs.source(job), 3 * job.delay)
    checkpoint = inputs.place / f"{befalls}-{seed}"
    n_workers = rng.choice([0, 1]) if befalls == "late" else rng.choice([2, 3])
    no_workers = _TTL_SECONDS if befalls == "gone" else 6 * _TTL_SECONDS
    direct = seed // len(JOBS) % 2 == 1  # as with cluster: {kind: local}
    told, resumed, began = "", "", time.monotonic()
    score.injected += 1
    with (
        cluster(n_workers, 1, f"{_TTL_SECONDS}s", f"{no_workers}s", direct) as (local, client),
        _befalling(befalls, local, client, rng, rows) as happened,
    ):
        try:
            found = within(_JOB_SECONDS, lambda: digest(_kept(source, job, client, rows, checkpoint)), rows)
        except TimeoutError as error:
            score.hangs, told = score.hangs + 1, str(error)
        except StreamPCAError as error:
            resumed = f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 whatever it is, it is not one of ours
            score.tracebacks, told = score.tracebacks + 1, f"{type(error).__name__}: {error}"
    if resumed:
        again = Rows()
        with cluster() as (_, client):
            found = within(
                _JOB_SECONDS, lambda: digest(_kept(inputs.source(job), job, client, again, checkpoint)), again
            )
        score.detected += found == expected
    elif not told:
        score.survived += found == expected and not rows.complaints()
    if not told and (found != expected or (not resumed and rows.complaints())):
        score.wrong, told = score.wrong + 1, "; ".join(["other numbers", *rows.complaints()])
    if told or resumed:
        repeat = f"scripts/faults --only cluster-{befalls.replace(' ', '-')} --count 1 --seed {seed}"
        score.notes.append(
            f"{name}, {time.monotonic() - began:.0f} s, {len(happened)} killed or frozen: {told or resumed}: {repeat}"
        )
    return len(happened)


def _kept(source: Any, job: Job, client: Any, rows: Rows, checkpoint: Path) -> Any:
    """Fit with checkpoints, from the newest on."""
    with checkpoints_in(checkpoint), all_checkpoints():
        return fitted(source, job, client, rows)


@contextmanager
def _befalling(befalls: str, local: Any, client: Any, rng: random.Random, rows: Rows) -> Iterator[list[str]]:
    """Have something happen to a cluster while the block lasts; yield what did."""
    happened: list[str] = []
    if "kills" in befalls:
        mean = 5.0 if befalls == "kills" else 1.5
        killer = Killer(local, client, rng.randrange(2**32), "SIGKILL", 1_000, mean)
        try:
            with killer:
                yield happened
        finally:
            happened += ["kill"] * killer.kills
        return
    ended = threading.Event()

    def act() -> None:
        if befalls != "late":
            rows.begun.wait(_JOB_SECONDS)
        if ended.wait(rng.uniform(0.2, 3.0)):
            return
        if befalls == "late":
            local.scale(rng.choice([2, 3]))
        for nanny in running(local) if befalls in ("frozen", "gone") else []:
            process = nanny.process.pid
            if befalls == "gone":
                nanny.close_gracefully()  # so that it does not start the process again
                os.kill(process, signal.SIGKILL)
            elif not happened or rng.random() < 0.3:
                os.kill(process, signal.SIGSTOP)
            else:
                continue
            happened.append(befalls)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    try:
        yield happened
    finally:
        ended.set()
        rows.begun.set()
        thread.join()
        for nanny in running(local):  # so that they can be closed
            with suppress(ProcessLookupError):
                os.kill(nanny.process.pid, signal.SIGCONT)


def run_poison(count: int, seed: int) -> Score:
    """Let a block at `count` random positions kill every worker that reads it: an error that names it, after Dask's four attempts and four alone."""
    score, began, rng = Score("a block that kills its worker"), time.monotonic(), random.Random(seed)
    with tempfile.TemporaryDirectory() as place, cluster() as (_, client):
        inputs, job = Inputs(Path(place)), JOBS["covariance"]
        for _ in range(count):
            block = rng.randrange(job.n_blocks)
            complaint = poisoned(inputs, client, block, Path(place) / f"{block}-{rng.random()}.log")
            score.injected += 1
            score.detected += not complaint
            score.tracebacks += bool(complaint)
            score.notes += [f"{complaint}: {again('poison', seed)}"] if complaint else []
    score.seconds = time.monotonic() - began
    return score


def poisoned(inputs: Inputs, client: Any, block: int, log: Path) -> str:
    """Run a job of which one block kills; return what was not as promised, nothing if all was."""
    from streampca.errors import BlockFailedError

    job = JOBS["covariance"]
    source = Disturbed(inputs.source(job), 0.01, Killing(str(log)), block * job.per_block)
    try:
        within(_JOB_SECONDS, lambda: fitted(source, job, client))
    except BlockFailedError as error:
        first, attempts = block * job.per_block, len(log.read_text().splitlines())
        wanted = (f"rows {first} to {first + job.per_block - 1}", f"chunk c/{block}/0:", "8 workers died", "the last 4")
        missing = [word for word in wanted if word not in str(error)]
        return f"{attempts} attempts; {error} lacks {missing}" if attempts != 8 or missing else ""
    except Exception as error:  # noqa: BLE001 whatever it is, it is not the one that was promised
        return f"{type(error).__name__}: {error}"
    return "it ended well"


@contextmanager
def frozen(nanny: Any, after: float, begun: threading.Event | None = None) -> Iterator[None]:
    """Stop the process of a worker some seconds after `begun` is set; it goes on at the end of the block, if it still is there.

    A worker that stands still before the job has begun is another case: Dask waits for it to take a plugin.
    """
    process, ended = nanny.process.pid, threading.Event()

    def stop() -> None:
        if begun is not None:
            begun.wait()
        if not ended.wait(after):
            os.kill(process, signal.SIGSTOP)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        if begun is not None:
            begun.set()
        thread.join()
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
