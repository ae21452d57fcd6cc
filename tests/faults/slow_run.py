"""A run in a process of its own, slow and in small blocks, which says what it reads: for tests that stop it midway."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

_DRIVER = """
import os, sys, time
import streampca.engine.plan as plan
import streampca.engine.plan_sketch as plan_sketch
from streampca.sources.zarr_store import ZarrSource
import streampca.engine.ledger as ledger
plan.block_rows_to_try.__defaults__ = ({block_bytes},)
plan_sketch._MOST_BLOCK_BYTES = {block_bytes}
ledger._FIRST_COST = 0.002
learn = ledger.Ledger._learn
def cheap(self, n_bytes, seconds):
    learn(self, n_bytes, min(seconds, 0.002))
ledger.Ledger._learn = cheap
read = ZarrSource.read
def slow(self, start, stop, out=None):
    time.sleep({delay})
    with open({log!r}, "a") as log:
        log.write(f"{{os.getpid()}} {{self.transposed}} {{start}} {{stop}}\\n")
    return read(self, start, stop, out)
ZarrSource.read = slow
from streampca.cli import main
main(["run", "c.yaml", "--quiet", *sys.argv[1:]])
"""


class SlowRun:
    """Runs ``c.yaml`` of a directory in processes that read slowly; `reads` lists what they all have read."""

    def __init__(self, directory: Path, *, delay: float = 0.02, block_bytes: int = 8 * 100 * 16):
        self.directory, self.log = directory, directory.parent / f"{directory.name}.log"
        self.code = _DRIVER.format(delay=delay, block_bytes=block_bytes, log=str(self.log))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it."""
        return subprocess.Popen(
            [sys.executable, "-c", self.code, *arguments],
            cwd=self.directory,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, *arguments: str) -> tuple[int, str]:
        """Let it run to its end; return its status and what it said on stderr."""
        process = self.start(*arguments)
        _, said = process.communicate(timeout=120)
        return process.returncode, said

    def until(self, n_reads: int, *arguments: str) -> subprocess.Popen[str]:
        """Start it and wait until `n_reads` reads are made, in all processes."""
        process = self.start(*arguments)
        deadline = time.monotonic() + 60
        while len(self.reads) < n_reads and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return process

    def kill_after(self, n_reads: int, *arguments: str) -> bool:
        """Kill it as soon as `n_reads` reads are made; return whether it was still at work."""
        process = self.until(n_reads, *arguments)
        process.kill()
        process.communicate(timeout=20)
        return process.returncode == -9

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
