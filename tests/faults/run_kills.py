"""Kills of every kind of run at random moments: the same command again gives the bits of an undisturbed one, and nothing else."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from score import Score, again
from slow_run import digest_of_run

_ONE = "model: {n_components: 3, solver: covariance}\n"
_ERRORS = "statistics: {sampling_errors: 8}\n"
_SEVERAL = "models:\n  raw: {n_components: 3, solver: covariance}\n  z: {n_components: 2, solver: covariance, preprocess: {scale: true}}\n"
_GROUPS = "model: {n_components: 2, solver: covariance, group_by: g.npy}\n"
_HEAD = "source: {path: %s}\ncheckpoint: {every: 0.1s}\n%soutput: {directory: out, %s}\n"
_ALL = "diagnostics: true, state: true, report: false"


@dataclass(frozen=True)
class Kind:
    """A kind of run."""

    config: str
    """Its configuration."""
    updates: bool = False
    """Whether what is killed is an update of the run, by rows of one more file."""

    @property
    def command(self) -> list[str]:
        """Return the arguments of the command that is killed."""
        return ["update", "out"] if self.updates else ["run", "c.yaml"]


KINDS = {
    "one model": Kind(_HEAD % ("rows", _ONE + _ERRORS, "report: true")),
    "several models": Kind(_HEAD % ("rows", _SEVERAL, _ALL)),
    "groups": Kind(_HEAD % ("rows", _GROUPS, "scores: false, report: false")),
    "kernel": Kind(
        _HEAD
        % ("rows", "model: {kind: kernel_pca, n_components: 3, method: nystrom, n_landmarks: 40}\n", "report: false")
    ),
    "update": Kind(_HEAD % ("rows", _ONE, _ALL), updates=True),
    "update of several": Kind(_HEAD % ("rows", _SEVERAL, _ALL), updates=True),
}
N_ROWS, N_FEATURES = 3_000, 12
_FINISH_SECONDS = 120.0


def _streampca(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "streampca", *arguments, "--quiet"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=directory, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload, no-any-return]


def _finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=_FINISH_SECONDS)
    return process.returncode, said


def _prepared(place: Path, kind: Kind) -> Path:
    """Return a new directory in which the command of `kind` can start."""
    directory = Path(tempfile.mkdtemp(dir=place))
    rows = np.random.default_rng(0).normal(size=(N_ROWS, N_FEATURES)) * np.arange(1, N_FEATURES + 1)
    (directory / "rows").mkdir()
    for i in range(3):
        np.save(directory / "rows" / f"{i}.npy", rows[i * 1000 : (i + 1) * 1000])
    np.save(directory / "g.npy", np.arange(N_ROWS) % 5)
    (directory / "c.yaml").write_text(kind.config)
    if kind.updates:
        last = directory / "rows" / "2.npy"
        last.rename(directory / "last.npy")
        status, said = _finish(_streampca(directory, "run", "c.yaml"))
        assert status == 0, said
        (directory / "last.npy").rename(last)
    return directory


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def run(count: int, seed: int) -> Score:
    """Kill `count` runs at a random moment each, kind by kind, and repeat them."""
    score, began = Score("SIGKILL of runs of every kind"), time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        place, known = Path(root), dict[str, tuple[Path, str, set[str], float]]()
        for number in range(seed, seed + count):
            name = list(KINDS)[number % len(KINDS)]
            kind, draw = KINDS[name], random.Random(number)
            if name not in known:
                template, whole = _prepared(place, kind), Path(tempfile.mkdtemp(dir=place))
                shutil.copytree(template, whole, dirs_exist_ok=True)
                started = time.monotonic()
                status, said = _finish(_streampca(whole, *kind.command))
                assert status == 0, said
                known[name] = template, digest_of_run(whole / "out"), _names(whole), time.monotonic() - started
            template, digest, names, seconds = known[name]
            directory = Path(tempfile.mkdtemp(dir=place))
            shutil.copytree(template, directory, dirs_exist_ok=True)
            faults = _killed(directory, kind, draw.uniform(0.2, 1.0) * seconds, score)
            if not faults and digest_of_run(directory / "out") != digest:
                faults = ["other bits"]
            if not faults and _names(directory) != names:
                faults = [f"left over: {sorted(_names(directory) ^ names)}"]
            score.wrong += bool(faults)
            score.survived += not faults
            score.notes += [f"{name}: {fault}: {again('runs', number)}" for fault in faults]
            shutil.rmtree(directory)
    score.seconds = time.monotonic() - began
    return score


def _killed(directory: Path, kind: Kind, after: float, score: Score) -> list[str]:
    """Start, kill and repeat the command of `kind`; return what went wrong."""
    process = _streampca(directory, *kind.command)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        return [f"status {process.returncode} before it was killed"]
    score.injected += 1
    complete = not kind.updates and (directory / "out" / "streampca.json").exists()
    try:
        status, said = _finish(_streampca(directory, *kind.command, *(["--resume"] if complete else [])))
    except subprocess.TimeoutExpired:
        score.hangs += 1
        return [f"the repeat did not end within {_FINISH_SECONDS:.0f} s"]
    score.tracebacks += "Traceback" in said
    return [f"status {status} of the repeat: {said}"] if status else []
