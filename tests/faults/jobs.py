"""Jobs of several solvers that are slow enough to be disturbed, what an undisturbed run finds, and blocks with faults."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import facade
import numpy as np
from facade import ReadCount
from numpy.typing import NDArray
from stores import write_store

from streampca.kernels import RBF
from streampca.sources import Source, open_source


@dataclass(frozen=True)
class Job:
    """What is fitted."""

    parameters: dict[str, Any]
    """Those of `facade.fit`."""
    shape: tuple[int, int]
    """Rows and features; blocks are runs of the longer axis."""
    per_block: int
    """Rows, or features, of a block."""
    n_leaves: int
    """Leaves."""
    delay: float
    """Seconds that a block takes longer."""
    per_branch: int = 1
    """Leaves of a branch, which are merged on the workers."""

    @property
    def n_blocks(self) -> int:
        """Return the number of blocks."""
        return max(self.shape) // self.per_block


TALL, WIDE = (64_000, 128), (48, 16_000)
JOBS = {
    "covariance": Job({"k": 5, "solver": "covariance"}, TALL, 500, 32, 0.05),
    "sketch": Job(
        {"k": 5, "solver": "sketch", "sketch_size": 16, "max_passes": 2, "tolerance": 0.0, "pilot": 10},
        TALL,
        1000,
        32,
        0.05,
    ),
    "gram": Job({"k": 5, "solver": "gram"}, WIDE, 250, 16, 0.05),
    "nystrom": Job({"k": 5, "kernel": RBF(gamma=0.01), "method": "nystrom", "n_landmarks": 40}, TALL, 1000, 32, 0.05),
    "branches": Job({"k": 5, "solver": "covariance"}, TALL, 500, 32, 0.05, 5),
    "sketch-branches": Job(
        {"k": 5, "solver": "sketch", "sketch_size": 16, "max_passes": 2, "tolerance": 0.0, "pilot": 10},
        TALL,
        1000,
        32,
        0.05,
        4,
    ),
}
"""What is fitted, by name: a solver that is to be tried joins by a line."""


class Disturbed(Source):
    """A source that takes longer, and of which one block does something to the process that reads it."""

    portable = True

    def __init__(self, source: Source, delay: float, fault: Callable[[], None] | None = None, at: int = -1):
        self.source, self.delay, self.fault, self.at = source, delay, fault, at
        for name in ("shape", "dtype", "description", "grid", "buffered", "column_major"):
            setattr(self, name, getattr(source, name))

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    def by_features(self) -> Disturbed:
        return Disturbed(self.source.by_features(), self.delay, self.fault, self.at)

    def keys(self, start: int, stop: int) -> list[str]:
        return self.source.keys(start, stop)

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        time.sleep(self.delay)
        if self.fault is not None and start <= self.at < stop:
            self.fault()
        return self.source.read(start, stop, out)


@dataclass(frozen=True)
class Killing:
    """Kills the process that reads the block, after writing that down."""

    log: str
    """File that gets a line for each attempt."""

    def __call__(self) -> None:
        with open(self.log, "a") as file:
            file.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Failing:
    """Raises an error in the first attempts, after writing that down."""

    log: str
    """File that gets a line for each attempt."""
    error: type[Exception]
    """Which."""
    times: int
    """How often."""

    def __call__(self) -> None:
        with open(self.log, "a+") as file:
            file.write(f"{os.getpid()}\n")
            file.seek(0)
            attempts = len(file.readlines())
        if attempts <= self.times:
            raise self.error("injected")


def digest(model: Any) -> str:
    """Return the SHA-256 of all arrays of a model."""
    found = hashlib.sha256()
    for name, value in sorted(vars(model).items()):
        if isinstance(value, np.ndarray):
            found.update(f"{name} {value.dtype} {value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


class Rows:
    """Hears of progress, and knows whether every row was counted once in each reading."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        self.wrong: list[str] = []
        self.begun = threading.Event()
        """Set as soon as rows were counted."""
        self.began = 0.0
        """When that was, by `time.monotonic`."""
        self.heard = 0.0
        """When rows were counted last."""

    def __call__(self, progress: Any) -> None:
        if not self.begun.is_set():
            self.began = time.monotonic()
            self.begun.set()
        before = self.last.get(progress.phase)
        if before is None or progress.rows > before.rows:
            self.heard = time.monotonic()
        if before is not None and before.rows == before.n_samples and progress.rows > before.rows:
            self.wrong.append(f"{progress.phase}: {progress.rows} rows of {progress.n_samples}")
        self.last[progress.phase] = progress

    def complaints(self) -> list[str]:
        """Return what was counted wrong."""
        ended = [p for p in self.last.values() if p.phase != "pilot"]  # which reads a few rows only
        short = [f"{p.phase}: {p.rows} rows of {p.n_samples}" for p in ended if p.rows != p.n_samples]
        return self.wrong + short


def planned(source: Source, job: Job, at_once: int = 2) -> Any:
    """Return the plan that data too large for a test would have."""
    plan = facade.plan(source, **job.parameters)
    shape: dict[str, Any] = {"rows_per_block": job.per_block, "n_blocks": job.n_blocks, "n_leaves": job.n_leaves}
    shape["leaves_per_branch"] = job.per_branch
    return plan.replace(
        **shape, edges=None, leaves_in_flight=at_once, window=2 * at_once, threads=at_once, threads_per_leaf=1
    )


def fitted(source: Source, job: Job, client: Any = None, progress: Rows | None = None) -> Any:
    """Return the model, fitted by the workers of `client` if there is one."""
    plan = planned(source, job)
    if client is None:
        return facade.fit(source, plan, options={"progress": progress}, **job.parameters).model
    with client.as_current():
        return facade.fit(source, plan, options={"progress": progress}, **job.parameters).model


class Inputs:
    """The stores of all jobs, and what an undisturbed run finds in them."""

    def __init__(self, place: Path):
        self.place, self._expected = place, dict[str, str]()

    def source(self, job: Job) -> Source:
        """Return the rows of a job."""
        path = self.place / f"{job.shape[0]}-{job.shape[1]}.zarr"
        if not path.exists():
            rng, (n, d) = np.random.default_rng(7), job.shape
            rows = rng.standard_normal((n, 6)) @ rng.standard_normal((6, d)) + 0.1 * rng.standard_normal((n, d)) + 3
            write_store(path, rows, chunks=(500, d) if n > d else (n, 250))
        return open_source(path)

    def expected(self, name: str) -> str:
        """Return the digest of a run without a cluster and without disturbance."""
        if name not in self._expected:
            self._expected[name] = digest(fitted(self.source(JOBS[name]), JOBS[name]))
        return self._expected[name]


def within(seconds: float, work: Callable[[], Any], rows: Rows | None = None) -> Any:
    """Return what `work` returns, or raises; raise `TimeoutError` if it is still at it after so many seconds.

    With `rows`, the seconds count from when rows were counted last: the machine may have much else to do.
    """
    found: list[Any] = []

    def carry_out() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:  # noqa: BLE001 it is raised again in the thread that asked
            found.append((None, error))

    thread = threading.Thread(target=carry_out, daemon=True)
    thread.start()
    began = time.monotonic()
    while thread.is_alive() and time.monotonic() - max(began, rows.heard if rows else began) < seconds:
        thread.join(0.1)
    if not found:
        raise TimeoutError(f"nothing after {seconds:.0f} s")
    value, error = found[0]
    if error is not None:
        raise error
    return value
