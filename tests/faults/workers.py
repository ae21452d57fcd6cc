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

import dask
from clusters import cluster, restored, running
from facade import sent_apart
from jobs import JOBS, Disturbed, Inputs, Killing, Rows, digest, fitted, within
from score import Score, again

from streampca.errors import StreamPCAError

_JOB_SECONDS = 150.0  # no sound run takes that long, whatever befalls it
_BETWEEN_KILLS = 0.5  # seconds on average


def _exit(dask_worker: Any) -> None:
    dask_worker.loop.asyncio_loop.call_later(0.01, sys.exit, 0)


def _segfault(dask_worker: Any) -> None:
    dask_worker.loop.asyncio_loop.call_later(0.01, ctypes.string_at, 0)


class Killer:
    """Ends workers of a local cluster at random times; both at once at first, so that no leaf looks like the only reason."""

    def __init__(self, local: Any, client: Any, seed: int, mode: str, most: int):
        self._local, self._client, self._rng, self._mode, self._most = local, client, random.Random(seed), mode, most
        self.kills = 0
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
        while self.kills < self._most and not self._stop.wait(self._rng.expovariate(1 / _BETWEEN_KILLS)):
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
            score.detected, told = score.detected + 1, f"{type(error).__name__}: {error}"
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


def run_poison(count: int, seed: int) -> Score:
    """Let a block at `count` random positions kill every worker that reads it: a named error after four attempts."""
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

    job, began = JOBS["covariance"], time.monotonic()
    source = Disturbed(inputs.source(job), 0.01, Killing(str(log)), block * job.per_block)
    try:
        within(_JOB_SECONDS, lambda: fitted(source, job, client))
    except BlockFailedError as error:
        first, attempts = block * job.per_block, len(log.read_text().splitlines())
        wanted = (f"rows {first} to {first + job.per_block - 1}", f"chunk c/{block}/0:", "4 attempts")
        missing = [word for word in wanted if word not in str(error)]
        slow = time.monotonic() - began > 60
        return f"{attempts} attempts; {error} lacks {missing}" if attempts != 4 or missing or slow else ""
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


def run_freezes(count: int, seed: int, ttl: float = 8.0) -> Score:
    """Freeze a worker in the middle of a job, `count` times: the right numbers within `ttl` and 20 s."""
    score, began, rng = Score("a worker that freezes"), time.monotonic(), random.Random(seed)
    job = JOBS["covariance"]
    with tempfile.TemporaryDirectory() as place, cluster() as (local, client):
        inputs = Inputs(Path(place))
        source = Disturbed(inputs.source(job), job.delay)
        for _ in range(count):
            started, told = time.monotonic(), ""
            restored(local)
            chosen, after = rng.choice(running(local)), rng.uniform(0.2, 2.0)
            with dask.config.set({"distributed.scheduler.worker-ttl": ttl}), frozen(chosen, after):
                try:
                    found = within(_JOB_SECONDS, lambda: digest(fitted(source, job, client)))
                except TimeoutError as error:
                    score.hangs, told = score.hangs + 1, str(error)
                except Exception as error:  # noqa: BLE001 a named error is one too many here
                    score.tracebacks, told = score.tracebacks + 1, f"{type(error).__name__}: {error}"
                else:
                    score.survived += found == inputs.expected("covariance")
                    score.wrong += found != inputs.expected("covariance")
            score.injected += 1
            seconds = time.monotonic() - started
            if told or seconds > ttl + 20:
                score.hangs += not told
                score.notes.append(f"{seconds:.0f} s; {told}: {again('freeze', seed)}")
    score.seconds = time.monotonic() - began
    return score
