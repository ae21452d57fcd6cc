"""Every act of the driver on the disk fails, one after the other, once or from then on, or the driver dies of it."""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import facade
import numpy as np
import zarr
from forks import server
from score import Score, again
from slow_run import digest_of_run
from stores import config_text, make_values, picture, write_store

MODES = ("EIO once", "ENOSPC once", "EIO from then on", "ENOSPC from then on", "killed")
"""What becomes of the k-th act."""
_SECONDS = 60.0
_STATUS = {"EIO": 6, "ENOSPC": 4}
_TEMPORARY = re.compile(r"\.streampca-[0-9a-f]{12}\.tmp")


class Faults:
    """Fails the k-th opening for writing, write, rename, link, new directory or fsync below a directory.

    An audit hook, so that whoever does it is met; writes and fsync, of which there is no event, are replaced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fsync, self._open = os.fsync, io.open
        self.armed, self._events = False, {"open", "os.rename", "os.mkdir"}
        self.flushes = True
        sys.addaudithook(self._hear)
        os.fsync = self._failing_fsync

    def arm(self, below: Path, number: int, code: int, *, persistent: bool = False, kill: bool = False) -> None:
        """Begin to count."""
        self.below, self.number, self.code, self.persistent, self.kill = str(below), number, code, persistent, kill
        self.count, self.failed = 0, ""
        self.armed = True

    def disarm(self) -> None:
        """Let everything pass."""
        self.armed = False

    def remove(self) -> None:
        """Let everything pass, for good."""
        self.disarm()
        os.fsync, io.open, builtins.open = self._fsync, self._open, self._open

    def fail_writes(self) -> None:
        """Count what is written to files, too, and links, for which there is another way."""
        self._events.add("os.link")
        io.open = builtins.open = self._counting_open  # type: ignore[assignment]

    def passes(self, what: str) -> None:
        """Count one act; raise, or end the process, if it is its turn."""
        with self._lock:
            self.count += 1
            fails = self.count == self.number or (self.persistent and self.count > self.number)
        if fails:
            self.failed = self.failed or what
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(self.code, os.strerror(self.code))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed or event not in self._events:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if event == "os.mkdir" and os.path.isdir(arguments[0]):
            return  # nothing would be made: not to be told apart from "it exists already"
        if self._is_below(arguments[0]):
            self.passes(f"{event} {arguments[0]}")

    def _is_below(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(self.below)

    def _failing_fsync(self, handle: int) -> None:
        if self.armed:
            self.passes("fsync")
        if self.flushes:
            self._fsync(handle)

    def _counting_open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        **more: Any,
    ) -> Any:
        if not self.armed or more or set(mode) & set("r+") or not self._is_below(file):
            return self._open(file, mode, buffering, encoding, errors, newline, **more)
        raw = _CountedFile(file, mode.replace("b", "").replace("t", ""))
        raw.faults = self
        if buffering == 0:
            return raw
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)


class _CountedFile(io.FileIO):
    """A file each write to which is counted."""

    faults: Faults

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        self.faults.passes(f"write to {self.name!r}")
        return super().write(data)


def attempt(arguments: list[str], number: int, code: int, persistent: bool, kill: bool) -> None:
    """Call ``streampca`` in this process with one fault in what it does in the working directory; print how many acts there were."""
    from facade import main

    faults = Faults()
    faults.fail_writes()
    faults.flushes = False  # which takes most of the time, and only a loss of power would tell
    faults.arm(Path.cwd(), number, code, persistent=persistent, kill=kill)
    try:
        with facade.blocks_of(100), facade.all_checkpoints():
            main(arguments)
    finally:
        faults.disarm()
        print(f"{faults.count} acts, failed: {faults.failed}")


@dataclass(frozen=True)
class _Job:
    """A finished run that another is to replace."""

    directory: Path
    """Holds the finished run, and the configuration of the other."""
    old: dict[str, bytes | str]
    """The finished run."""
    old_digest: str
    """SHA-256 of its arrays."""
    digest: str
    """SHA-256 of those of the other."""
    names: frozenset[str]
    """Everything in the directory of the other."""
    acts: int
    """What the other does on the disk."""
    arguments: tuple[str, ...] = ("run", "c.yaml", "--quiet")
    """The command."""

    @classmethod
    def made(cls, place: Path) -> _Job:
        """Make it in `place`."""
        source, directory, other = place / "x.zarr", place / "job", place / "other"
        write_store(source, make_values(400, 8), chunks=(100, 8), chain="zstd+crc32c")
        for where, k in ((directory, 2), (other, 3)):
            where.mkdir()
            model = f"model: {{n_components: {k}, solver: covariance}}"
            text = config_text(source, "out", model, "resources: {threads: 1}", output="overwrite: true, report: false")
            (where / "c.yaml").write_text(text)
            assert _call(where, "none", 0)[0] == 0
        shutil.copy(other / "c.yaml", directory / "c.yaml")
        counting = place / "counting"
        shutil.copytree(directory, counting)
        status, said, printed = _call(counting, "none", 0)
        assert status == 0, said
        names = frozenset(path.relative_to(other / "out").as_posix() for path in (other / "out").rglob("*"))
        old, digest = directory / "out", digest_of_run(other / "out")
        return cls(
            directory, picture(old), digest_of_run(old), digest, names, int(printed.rpartition(" acts")[0].split()[-1])
        )

    @classmethod
    def updating(cls, place: Path, *, stored: bool = False) -> _Job:
        """Make a run of files of rows in `place`, to which one was added, or of a store that grew: the other is the update."""
        directory, other, arguments = place / "job", place / "other", ("update", "out", "--quiet")
        directory.mkdir()
        values, rows = make_values(400, 8), directory / "rows"
        if stored:
            write_store(rows, values[:250], chunks=(100, 8), chain="zstd")
        else:
            rows.mkdir()
            np.save(rows / "0.npy", values[:150])
            np.save(rows / "2.npy", values[150:250])
        lines = ("model: {n_components: 2}", "resources: {threads: 1}")
        text = config_text("rows", "out", *lines, output="state: true, report: false")
        (directory / "c.yaml").write_text(text)
        assert _call(directory, "none", 0)[0] == 0
        if stored:
            zarr.open_array(rows).append(values[250:])
        else:
            np.save(rows / "1.npy", values[250:])
        shutil.copytree(directory, other)
        status, said, printed = _call(other, "none", 0, arguments)
        assert status == 0, said
        names = frozenset(path.relative_to(other / "out").as_posix() for path in (other / "out").rglob("*"))
        old, acts = directory / "out", int(printed.rpartition(" acts")[0].split()[-1])
        return cls(directory, picture(old), digest_of_run(old), digest_of_run(other / "out"), names, acts, arguments)


def _call(
    directory: Path, mode: str, number: int, arguments: Sequence[str] = _Job.arguments
) -> tuple[int | None, str, str]:
    """Carry out the command with a fault at act `number`; return its status, None for a hang, and what it said and printed."""
    code = errno.ENOSPC if "ENOSPC" in mode else errno.EIO
    process = server().start(
        "writes:attempt",
        directory,
        arguments=list(arguments),
        number=number,
        code=code,
        persistent="from" in mode,
        kill=mode == "killed",
    )
    status = process.wait(_SECONDS)
    if status is None:
        process.end()
    return status, process.said, process.printed


def run(count: int, seed: int, made: Callable[[Path], _Job] = _Job.made) -> Score:
    """Try `count` faults; with five times as many as there are acts, each act in each way."""
    score, began = Score("each write, rename and fsync of the driver: EIO, ENOSPC, SIGKILL"), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        job = made(place)
        for item in range(seed, seed + count):
            position = (
                item * 7919 % (len(MODES) * job.acts)
            )  # a prime, so that each is met once before any is met again
            mode, number = MODES[position % len(MODES)], 1 + position // len(MODES)
            directory = place / str(item)
            shutil.copytree(job.directory, directory)
            score.injected += 1
            fault = _one(job, directory, mode, number, score)
            if fault:
                score.wrong += 1
                score.notes.append(f"{mode} at act {number} of {job.acts}: {fault}: {again('writes', item)}")
            shutil.rmtree(directory)
    score.seconds = time.monotonic() - began
    return score


def run_updates(count: int, seed: int) -> Score:
    """Try `count` faults in updates of a run by new files."""
    return run(count, seed, _Job.updating)


def run_store_updates(count: int, seed: int) -> Score:
    """Try `count` faults in updates of a run by rows that were appended to its store."""
    return run(count, seed, partial(_Job.updating, stored=True))


def _one(job: _Job, directory: Path, mode: str, number: int, score: Score) -> str:
    """Return what is wrong with one fault, nothing if all is well."""
    status, said, printed = _call(directory, mode, number, job.arguments)
    if status is None:
        score.hangs += 1
        return "it did not end"
    if "Traceback" in said or "internal error" in said:
        score.tracebacks += 1
        return said
    met = printed.rpartition("failed: ")[2].strip()
    wrong = _after_the_fault(job, directory, mode, status, said)
    if wrong:
        return f"{wrong} ({met}): {said}"
    survived = status == 0 or mode == "killed"
    status, said, _ = _call(directory, "none", 0, job.arguments)
    if status is None:
        score.hangs += 1
        return "the next run did not end"
    if status:
        return f"the next run ended with status {status} ({met}): {said}"
    if digest_of_run(directory / "out") != job.digest:
        return f"the next run has other bits ({met})"
    out = directory / "out"
    if frozenset(path.relative_to(out).as_posix() for path in out.rglob("*")) != job.names:
        return f"the next run holds other files ({met})"
    left = _left(directory, mode)
    if left:
        return f"left behind ({met}): {left}"
    score.survived += survived
    score.detected += not survived
    return ""


def _after_the_fault(job: _Job, directory: Path, mode: str, status: int, said: str) -> str:
    out = directory / "out"
    earlier = [out, *directory.glob("out.old-*")]
    if status == 0 or (mode == "killed" and out.exists() and digest_of_run(out) == job.digest):
        return "" if digest_of_run(out) == job.digest else "it succeeded with other bits"
    wanted = -signal.SIGKILL if mode == "killed" else _STATUS[mode.split()[0]]
    if status != wanted:
        return f"status {status}, expected {wanted}"
    if mode != "killed" and "streampca: error: " not in said.splitlines()[-1]:
        return "no line that says what happened"
    kept = [place for place in earlier if place.exists() and picture(place) == job.old]
    if not kept:
        return "the earlier result is not what it was"
    # Where even the way back fails, the earlier result has another name, and the message says which; a kill says nothing.
    if kept[0] != out and mode != "killed" and str(kept[0].name) not in said:
        return "the earlier result has another name, and nothing says so"
    return ""


def _left(directory: Path, mode: str) -> list[str]:
    """Return what a run that went on left behind and should not have."""
    found = []
    for path in directory.iterdir():
        empty = mode == "killed" and _TEMPORARY.fullmatch(path.name) and not path.stat().st_size
        moved = "from then on" in mode and path.name.startswith("out.old-")
        if path.name not in ("c.yaml", "out", "rows") and not empty and not moved:
            found.append(path.name)
    return found
