"""Small file systems that fill up: under the output, its checkpoint, the temporary directory, and what workers keep on disk."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import facade
import numpy as np
import psutil
from forks import Forked, server
from score import Score, again
from stores import config_text, make_values, picture, write_store

import streampca as sp

SIZES = (3, 8, 20)
"""Sizes of file systems in MiB."""
PLACES = ("output", "scratch", "workers")
"""What lies on the small file system; the checkpoint lies with the output."""
_FIRST = (*itertools.product(PLACES, SIZES), ("checkpoint", 3))
CASES = tuple(dict.fromkeys((*_FIRST, *itertools.product(PLACES, range(1, 33)))))
"""What is tried, the most telling first."""
_MIB = 2**20
_SECONDS = 120.0
_FEATURES_ON_DISK = 2100


def can_mount() -> bool:
    """Tell whether file systems can be mounted here."""
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", name], capture_output=True, check=False, timeout=20
        )
        if done.returncode == 0:
            subprocess.run(["umount", name], check=True, timeout=20)
        return done.returncode == 0


@contextmanager
def small_disk(place: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a file system of that size at `place` for as long as the block lasts."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", place], check=True, timeout=20)
    try:
        yield place
    finally:
        if subprocess.run(["umount", place], check=False, timeout=20).returncode:
            subprocess.run(["umount", "--lazy", place], check=True, timeout=20)  # somebody is still at work there


def fill(place: Path, usage: Callable[[Path], Any] = shutil.disk_usage, leave: int = 0) -> None:
    """Take all the room of a file system but for `leave` bytes."""
    free = usage(place).free
    block = os.urandom(4096)
    with open(place / "ballast", "wb", buffering=0) as file:
        for _ in range(max(0, free - leave) // len(block)):
            file.write(block)


def crowded(arguments: list[str], place: str) -> None:
    """Call ``streampca`` with little memory and temporary files at `place`, which others fill as soon as room was found."""
    import dask

    usage = shutil.disk_usage

    def told_and_lost(path: Any) -> Any:
        found = usage(path)
        if Path(path).resolve().is_relative_to(Path(place).resolve()):
            fill(Path(place), usage, leave=min(found.free // 3, _MIB))
        return found

    shutil.disk_usage = told_and_lost
    allowed = psutil.Process().memory_info().rss + 70 * _MIB
    with dask.config.set({"temporary-directory": place}):
        facade.main([*arguments, "--set", f"resources.memory={allowed}"])


def beside(arguments: list[str], place: str) -> None:
    """Call ``streampca`` with temporary files at `place`."""
    import dask

    with dask.config.set({"temporary-directory": place}):
        facade.main(arguments)


def checkpointed(arguments: list[str], place: str) -> None:
    """Call ``streampca`` so that it writes checkpoints however short the run."""
    with facade.blocks_of(100), facade.all_checkpoints():
        facade.main(arguments)


class _Case:
    """One file system that fills up; every method returns what is wrong, nothing if all is well."""

    def __init__(self, place: Path, name: str, mebibytes: int, score: Score):
        self.place, self.name, self.mebibytes, self.score = place, name, mebibytes, score
        self.disk = place / "small"
        self.out = (self.disk if name in ("output", "checkpoint") else place / "large") / "out"
        self.progress_kept = False

    def output(self) -> str:
        """Model and scores do not fit: known beforehand, and found out on the way."""
        n = int(1.6 * self.mebibytes * _MIB / 64)
        write_store(self.place / "x.zarr", make_values(n, 8), chunks=(50_000, 8))
        before = self._finished("model: {n_components: 1}", scores=False)
        for n_components, words in (("8", (" are free", "will be written")), ("0.999", ("small/out", "make room"))):
            wrong = self._refused("forks:command", [f"model.n_components={n_components}", "output.scores=true"], words)
            if wrong:
                return f"n_components {n_components}: {wrong}"
        return self._intact(before)

    def checkpoint(self) -> str:
        """There is room for the results, but not for a checkpoint."""
        write_store(self.place / "x.zarr", make_values(900, 700), chunks=(100, 700))
        before = self._finished("model: {n_components: 1, solver: covariance}", scores=False)
        fill(self.disk, leave=_MIB)
        wrong = self._refused("disk_full:checkpointed", ["model.n_components=2"], ("small/out.checkpoint", "no room"))
        return wrong or self._intact(before)

    def scratch(self) -> str:
        """The matrix goes to a temporary directory, which is too small, or becomes so."""
        values = make_values(600, _FEATURES_ON_DISK)
        write_store(self.place / "x.zarr", values, chunks=(100, _FEATURES_ON_DISK))
        before = self._finished("model: {n_components: 1, solver: adaptive}", scores=False)
        little = ["model.solver=covariance"]
        return self._refused("disk_full:crowded", little, ("small/streampca-", "room")) or self._intact(before)

    def workers(self) -> str:
        """Worker processes keep their own files on a file system that is full: right numbers, or no space."""
        write_store(self.place / "x.zarr", make_values(2_000, 8), chunks=(100, 8))
        before = self._finished("model: {n_components: 1}", scores=False)
        fill(self.disk)
        local = ["cluster.kind=local", "cluster.n_workers=1", "cluster.threads_per_worker=1"]
        process = self._start("disk_full:beside", local)
        status = self._end(process)
        if status == 4 and "small" in process.said:
            self.score.detected += 1
            return self._intact(before)
        if status:
            return f"status {status}: {process.said}"
        same = np.array_equal(sp.load(self.place / "first").components_, sp.load(self.out).components_)
        self.score.survived += same
        return "" if same else "other numbers"

    def _finished(self, model: str, *, scores: bool) -> dict[str, bytes | str]:
        """Carry out a first run that fits; return its picture."""
        self.out.parent.mkdir(exist_ok=True)
        output = f"report: false, overwrite: true, scores: {str(scores).lower()}"
        text = config_text(self.place / "x.zarr", self.out, model, "resources: {threads: 2}", output=output)
        (self.place / "c.yaml").write_text(text)
        # However slow the machine, there is no checkpoint: this run has to fit.
        arguments = ["run", "c.yaml", "--quiet", "--set", "checkpoint.every=null"]
        process = server().start("forks:command", self.place, arguments=arguments)
        assert self._end(process) == 0, process.said
        shutil.copytree(self.out, self.place / "first")
        return picture(self.out)

    def _start(self, target: str, changes: list[str]) -> Forked:
        arguments = ["run", "c.yaml", "--quiet", *itertools.chain(*(("--set", change) for change in changes))]
        more = {} if target == "forks:command" else {"place": str(self.disk)}
        return server().start(target, self.place, arguments=arguments, **more)

    def _end(self, process: Forked) -> int | None:
        status = process.wait(_SECONDS)
        if status is None:
            self.score.hangs += 1
            process.end()
        self.score.tracebacks += "Traceback" in process.said or "internal error" in process.said
        return status

    def _refused(self, target: str, changes: list[str], words: tuple[str, ...]) -> str:
        process = self._start(target, changes)
        status = self._end(process)
        missing = [word for word in words if word not in process.said]
        if status != 4 or missing or len(process.said.splitlines()) != 1:
            return f"status {status}, expected 4 and one line with {words}: {process.said}"
        self.progress_kept |= "progress is kept" in process.said
        self.score.detected += 1
        return ""

    def _intact(self, before: dict[str, bytes | str]) -> str:
        if picture(self.out) != before:
            return "the earlier result is not what it was"
        sp.load(self.out)
        parts = () if self.progress_kept else (".part-",)
        marks = (".lock", ".old-", *parts)
        strangers = [path.name for path in self.out.parent.iterdir() if any(mark in path.name for mark in marks)]
        return f"left behind: {strangers}" if strangers else ""


def run(count: int, seed: int, cases: tuple[tuple[str, int], ...] = CASES) -> Score:
    """Fill `count` file systems; where none can be mounted, none, which the notes say."""
    score, began = (
        Score("file systems that fill up under output, checkpoint, temporary files, workers"),
        time.monotonic(),
    )
    if not can_mount():
        score.notes.append("file systems cannot be mounted here")
        return score
    for item in range(seed, seed + count):
        name, mebibytes = cases[item % len(cases)]
        with tempfile.TemporaryDirectory() as place:
            case = _Case(Path(place), name, mebibytes, score)
            before = score.detected + score.survived
            with small_disk(case.disk, mebibytes):
                wrong = getattr(case, name)()
        score.injected += max(1, score.detected + score.survived - before)
        if wrong:
            score.wrong += 1
            score.notes.append(f"{name}, {mebibytes} MiB: {wrong}: {again('disk_full', item)}")
    score.seconds = time.monotonic() - began
    return score
