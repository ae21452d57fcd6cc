"""Drivers that are killed or stopped at random instants, and go on: the bits, the reads, and what is left behind."""

from __future__ import annotations

import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from score import Score, again
from slow_run import SlowRun, digest_of_run
from stores import config_text, make_values, write_store

MODELS = {
    "covariance": "{n_components: 3, solver: covariance}",
    "qr": "{n_components: 3, solver: qr}",
    "sketch": "{n_components: 3, solver: sketch, max_passes: 2, tolerance: 0.0, sketch_size: 8, pilot: 30}",
    "adaptive": "{n_components: 3, solver: adaptive}",
    "means first": "{n_components: 3, solver: adaptive, max_passes: 2, tolerance: 0.0}\npreprocess: {missing: mean}",
    "nystrom": "{kind: kernel_pca, n_components: 3, method: nystrom, n_landmarks: 20, kernel: {name: rbf, gamma: 1.0e-2}}",
    "mca": "{kind: mca, n_components: 3, first: 6}",
}
"""What is fitted, by name: a solver that is to be tried joins by a line."""
N_ROWS, N_FEATURES, CHUNK = 12_000, 16, 100
_KILLS = 3  # of one run, at most
_MOST_READ_AGAIN = 0.1  # of all chunks, for each kill
_FINISH_SECONDS = 120.0


def write_input(path: Path) -> Path:
    """Write the rows."""
    values = make_values(N_ROWS, N_FEATURES) * np.linspace(1, 3, N_FEATURES) + 5
    return write_store(path, values, chunks=(CHUNK, N_FEATURES), chain="zstd+crc32c")


def write_config(
    directory: Path, solver: str = "covariance", source: str = "x.zarr", output: str = "report: false"
) -> None:
    """Write the configuration of a run."""
    lines = [f"model: {MODELS[solver]}", "resources: {threads: 2}"]
    (directory / "c.yaml").write_text(config_text(source, "out", *lines, output=output))


def beside(directory: Path) -> list[str]:
    """Return what stands in the directory of a job beside its configuration and its input."""
    return sorted(path.name for path in directory.iterdir() if path.name not in ("c.yaml", "x.zarr"))


def names_in(directory: Path) -> frozenset[str]:
    """Return everything below a directory."""
    return frozenset(path.relative_to(directory).as_posix() for path in directory.rglob("*"))


def told_reads(out: Path) -> dict[str, tuple[int, int]]:
    """Return what the manifest of a run says was read, chunks and bytes by phase."""
    told = json.loads((out / "manifest.json").read_text())["reads"]
    return {phase: (read["chunks"], read["bytes"]) for phase, read in told.items() if read}


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing happened to."""

    digest: str
    """SHA-256 of its arrays."""
    names: frozenset[str]
    """Everything in its directory."""
    reads: Counter[str]
    """How often each block, which is a chunk, was read."""
    told: dict[str, tuple[int, int]]
    """What its manifest says was read, chunks and bytes by phase."""
    passes: int
    """Readings that its manifest tells, and one for the scores."""
    seconds: float
    """How long it takes with slow reads."""

    @classmethod
    def of(cls, run: SlowRun) -> Undisturbed:
        """Carry out `run` without delay."""
        began = time.monotonic()
        quick = SlowRun(run.directory, delay=0.0)
        status, said = quick.finish()
        assert (status, said) == (0, ""), (status, said)
        assert beside(run.directory) == ["out"]
        out, reads = run.directory / "out", Counter(line.partition(" ")[2] for line in quick.reads)
        passes = 1 + json.loads((out / "manifest.json").read_text())["passes"]
        seconds = time.monotonic() - began + run.terms["delay"] * reads.total() / 2
        return cls(digest_of_run(out), names_in(out), reads, told_reads(out), passes, seconds)


@dataclass
class Jobs:
    """A directory of jobs that share an input, and what is known of the undisturbed run of each solver."""

    place: Path
    """The directory."""
    known: dict[str, Undisturbed]
    """By solver."""

    def undisturbed(self, solver: str) -> Undisturbed:
        """Return the undisturbed run of a solver, carried out once."""
        if solver not in self.known:
            self.known[solver] = Undisturbed.of(self.new(f"undisturbed-{solver}", solver))
        return self.known[solver]

    def new(self, name: str, solver: str) -> SlowRun:
        """Return a run of that solver in a new directory."""
        source, directory = self.place / "x.zarr", self.place / name
        if not source.exists():
            write_input(source)
        directory.mkdir()
        write_config(directory, solver, str(source))
        return SlowRun(directory)


def run(count: int, seed: int, solvers: tuple[str, ...] = tuple(MODELS)) -> Score:
    """Kill drivers `count` times, a run up to three times, and see to it that each goes on to the bits of an undisturbed run."""
    return _loop("driver", "SIGKILL of the driver, also soon after it went on", _killed, count, seed, solvers)


def run_signals(count: int, seed: int, solvers: tuple[str, ...] = tuple(MODELS)) -> Score:
    """Stop drivers `count` times by SIGINT or SIGTERM: each must end with its status within ten seconds, and go on."""
    return _loop("signals", "SIGINT or SIGTERM to the driver", _stopped, count, seed, solvers)


Item = Callable[[Jobs, SlowRun, str, random.Random, Score], list[str]]


def _loop(key: str, name: str, item: Item, count: int, seed: int, solvers: tuple[str, ...]) -> Score:
    score, began = Score(name), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        jobs = Jobs(Path(place), {})
        for number in range(seed, seed + count):  # each has one fault at least, unless the run was faster
            if score.injected >= count:
                break
            solver, before = solvers[number % len(solvers)], score.injected
            faults = item(jobs, jobs.new(str(number), solver), solver, random.Random(number), score)
            if faults:
                score.wrong += 1
                score.notes += [f"{solver}: {fault}: {again(key, number)}" for fault in faults]
            else:
                score.survived += score.injected - before
    score.seconds = time.monotonic() - began
    return score


def _killed(jobs: Jobs, run: SlowRun, solver: str, draw: random.Random, score: Score) -> list[str]:
    expected, kills = jobs.undisturbed(solver), 0
    for _ in range(_KILLS):
        left = expected.seconds * max(0.0, 1 - len(run.reads) / expected.reads.total())
        process = run.fork()
        status = process.wait(draw.uniform(0.0, 0.3 if draw.random() < 0.3 else max(0.3, left)))
        status = process.end() if status is None else status
        if status == 0:
            break  # it was faster
        if status != -signal.SIGKILL:
            return [f"status {status} before it was killed: {process.said}"]
        kills += 1
    score.injected += kills
    return _goes_on(run, expected, kills, score)


def _stopped(jobs: Jobs, run: SlowRun, solver: str, draw: random.Random, score: Score) -> list[str]:
    expected, number = jobs.undisturbed(solver), draw.choice([signal.SIGINT, signal.SIGTERM])
    process = run.fork()
    status = process.wait(draw.uniform(0.1, 0.9 * expected.seconds))
    if status is None:
        score.injected += 1
        process.signal(number)
        status = process.wait(10)
        if status is None:
            score.hangs += 1
            return [f"{number.name} was not obeyed within 10 s (killed, status {process.end()})"]
        early = status == -number and not run.reads  # before there was anything to keep, or anyone to hear it
        told = status == 128 + number and f"streampca: error: stopped by {number.name}: " in process.said
        if status and not early and not told:
            return [f"status {status} after {number.name}: {process.said}"]
    elif status:
        return [f"status {status} before the signal: {process.said}"]
    return _goes_on(run, expected, 1, score)


def _goes_on(run: SlowRun, expected: Undisturbed, stops: int, score: Score) -> list[str]:
    """Give the same command again and return what is wrong with what it came to."""
    out = run.directory / "out"
    process = run.fork(*(["--resume"] if (out / "streampca.json").exists() else []))
    status = process.wait(_FINISH_SECONDS)
    if status is None:
        score.hangs += 1
        return [f"it did not end within {_FINISH_SECONDS:.0f} s (killed, status {process.end()})"]
    if status or "Traceback" in process.said:
        score.tracebacks += "Traceback" in process.said or "internal error" in process.said
        return [f"status {status}: {process.said}"]
    faults = []
    if "passed over" in process.said:
        faults.append(f"a kill left something damaged: {process.said}")
    if digest_of_run(out) != expected.digest:
        faults.append("other bits than those of the undisturbed run")
    if names_in(out) != expected.names:
        faults.append(f"other files: {sorted(names_in(out) ^ expected.names)}")
    if told_reads(out) != expected.told:
        faults.append(f"its manifest tells other reads: {told_reads(out)}, expected {expected.told}")
    if beside(run.directory) != ["out"]:
        faults.append(f"left behind: {beside(run.directory)}")
    read_again = len(run.reads) - expected.reads.total()
    if not 0 <= read_again <= _MOST_READ_AGAIN * expected.reads.total() * stops:
        faults.append(f"{read_again} of {expected.reads.total()} chunks were read again after {stops} stops")
    return faults
