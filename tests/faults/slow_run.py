"""A run in a process of its own, slow and in small blocks, which says what it reads: for tests that stop it midway."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import zarr
from forks import Forked, server

_HERE = Path(__file__).parent
sys.path.insert(1, str(_HERE.parent))

import facade  # noqa: E402 from the directory of tests


def reader_of_stores() -> type:
    """Return the class of what reads a zarr store."""
    return type(facade.open_source(zarr.create_array({}, shape=(1, 1), dtype="f8")))


def go_slowly(arguments: list[str], *, delay: float, block_rows: int, log: str, flushes: bool = False) -> None:
    """Call ``streampca run c.yaml`` in this process, which then reads small blocks slowly, says so, and has cheap checkpoints."""
    reader: Any = reader_of_stores()
    read = reader.read

    def slow(self: Any, start: int, stop: int, out: Any = None) -> Any:
        time.sleep(delay)
        with open(log, "a") as lines:
            lines.write(f"{os.getpid()} {self.column_major} {start} {stop}\n")
        return read(self, start, stop, out)

    reader.read = slow
    if not flushes:  # which takes long, and only a loss of power would tell
        os.fsync = lambda _: None
    with facade.blocks_of(block_rows), facade.all_checkpoints():
        facade.main(["run", "c.yaml", "--quiet", *arguments])


class SlowRun:
    """Runs ``c.yaml`` of a directory in processes that read slowly; `reads` lists what they all have read."""

    def __init__(self, directory: Path, *, delay: float = 0.02, block_rows: int = 100):
        self.directory, self.log = directory, directory.parent / f"{directory.name}.log"
        self.terms = {"delay": delay, "block_rows": block_rows, "log": str(self.log)}

    def fork(self, *arguments: str) -> Forked:
        """Start it in a process of the server of `forks`, which takes a tenth of the time."""
        return server().start("slow_run:go_slowly", self.directory, arguments=list(arguments), **self.terms)

    def finish(self, *arguments: str) -> tuple[int, str]:
        """Let it run to its end; return its status and what it said on stderr."""
        process = self.fork(*arguments)
        status = process.wait(120)
        assert status is not None, f"process {process.end()} has not ended after 120 s: {process.said}"
        return status, process.said

    def until(self, n_reads: int, *arguments: str) -> Forked:
        """Start it and wait until `n_reads` reads are made, in all processes, or it has ended."""
        process, deadline = self.fork(*arguments), time.monotonic() + 60
        while len(self.reads) < n_reads and process.wait(0.005) is None:
            assert time.monotonic() < deadline
        return process

    def kill_after(self, n_reads: int, *arguments: str) -> bool:
        """Kill it as soon as `n_reads` reads are made; return whether it was still at work."""
        return self.until(n_reads, *arguments).end() == -signal.SIGKILL

    @property
    def reads(self) -> list[str]:
        """Return what was read, in order."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def forget_reads(self) -> None:
        """Begin to count again."""
        self.log.unlink(missing_ok=True)


def digest_of_run(directory: Path) -> str:
    """Return the SHA-256 of all stored arrays of a run: model, samples and scores."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and "/c/" in name:
            digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()
