"""Random fits of PCA and KernelPCA, stores and programs on AnnData, each judged against LAPACK, numpy or its own certificate.

Called by ``scripts/fuzz``. A fit that takes longer than the limit counts as a hang; a process that dies counts as a bare
exception of the fit it was at. Exit status 1 if anything was wrong; every failure prints a line that repeats it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "fuzzing"), str(ROOT / "tests")]

PAGE = ROOT / "docs" / "reference" / "archive" / "faults.md"
BEGIN, END = "<!-- begin: scripts/fuzz -->", "<!-- end: scripts/fuzz -->"
KINDS = {
    "pca": ("cases", "judging", 5000),
    "kernel": ("kernel_fits", "kernel_fits", 1000),
    "labelled": ("labelled_stores", "labelled_stores", 1000),
    "cells": ("cell_programs", "cell_programs", 300),
    "analyses": ("analyses", "analyses", 1000),
}
"""Modules that draw and judge, and how many fits are made by default."""
_NAMES = {
    "pca": "`PCA`",
    "kernel": "`KernelPCA`",
    "labelled": "labelled stores",
    "cells": "programs on AnnData",
    "analyses": "analyses of two tables, factors and rotations",
}
_HEAD = (
    "| fits | of them | right | expected error | wrong | hangs | bare exceptions | with statistical bounds | "
    "of these missed | seconds |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)
_STRETCH = 250
_STATISTICAL_SHARE = 1e-4  # of approximate answers whose statistical bounds may miss, as their statement says


@dataclass
class Tally:
    """Counts of one kind of fit."""

    fits: int = 0
    """Fits that were judged."""
    right: int = 0
    """Answers within their tolerance, or their certificate."""
    refused: int = 0
    """Named errors that are expected of the case."""
    wrong: int = 0
    """Numbers outside of tolerance or certificate, and named errors that are not expected."""
    hangs: int = 0
    """Fits that were given up."""
    bare: int = 0
    """Exceptions without a name of streampca, warnings of numpy, and processes that died."""
    statistical: int = 0
    """Right answers that have statistical bounds."""
    notes: int = 0
    """Fits of which a statistical bound missed."""
    seconds: float = 0.0
    """Processor time, roughly: wall-clock time of all processes."""
    refusals: dict[str, int] = field(default_factory=dict)
    """How often each expected error was raised, by its message without numbers."""
    lines: list[str] = field(default_factory=list)
    """A line for each failure."""

    @property
    def clean(self) -> bool:
        """Return whether nothing was wrong, and statistical bounds miss no more often than they say."""
        allowed = _STATISTICAL_SHARE * self.statistical
        return self.wrong == self.hangs == self.bare == 0 and self.notes <= allowed + 3 * math.sqrt(allowed)

    def count(self, kind: str, seed: int, found: dict[str, Any]) -> None:
        """Add one fit: its verdict as `in_this_process` prints it."""
        verdict, name = found["kind"], found["name"]
        self.fits += 1
        setattr(self, verdict, getattr(self, verdict) + 1)
        self.statistical += found["statistical"]
        self.notes += bool(found["notes"])
        if verdict == "refused":
            self.refusals[name] = self.refusals.get(name, 0) + 1
        elif verdict != "right":
            self.lines.append(f"{verdict}: {found['detail']}: scripts/fuzz --only {kind} --count 1 --seed {seed}")

    def add(self, other: Tally) -> None:
        """Add the counts of `other`."""
        for name in ("fits", "right", "refused", "wrong", "hangs", "bare", "statistical", "notes", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, count in other.refusals.items():
            self.refusals[name] = self.refusals.get(name, 0) + count
        self.lines += other.lines

    def row(self, name: str) -> str:
        """Return a row of the Markdown table."""
        figures = (self.fits, self.right, self.refused, self.wrong, self.hangs, self.bare, self.statistical, self.notes)
        return f"| {name} | {' | '.join(f'{n:,}' for n in figures)} | {self.seconds:,.0f} |"


def stretch(kind: str, count: int, seed: int, limit: float) -> Tally:
    """Judge `count` fits in processes of their own: a new one after each that hangs or dies."""
    tally, began, at = Tally(), time.monotonic(), seed
    while at < seed + count:
        command = [sys.executable, __file__, "--stretch", kind, "--count", str(seed + count - at)]
        command += ["--seed", str(at), "--limit", str(limit)]
        process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        for line in process.stdout.splitlines():
            tally.count(kind, at, json.loads(line))
            at += 1
        if process.returncode and at < seed + count:
            timed_out = "Timeout" in process.stderr
            last = (process.stderr.strip().splitlines() or [""])[-1]
            detail = f"more than {limit:.0f} s" if timed_out else f"died with status {process.returncode}: {last}"
            tally.count(kind, at, _verdict("hangs" if timed_out else "bare", detail))
            at += 1
    tally.seconds = time.monotonic() - began
    return tally


def in_this_process(kind: str, count: int, seed: int, limit: float) -> None:
    """Judge `count` fits here and print a line of JSON for each; a fit beyond `limit` seconds ends the process."""
    import faulthandler
    from importlib import import_module

    drawing, judging = (import_module(name) for name in KINDS[kind][:2])
    shortened = import_module("judging").shortened
    for at in range(seed, seed + count):
        faulthandler.dump_traceback_later(limit, exit=True)
        case = drawing.draw(at)
        verdict = judging.judge(case)
        failed = verdict.kind not in ("right", "refused")
        detail = f"{verdict.detail} | {case.line()}" if failed else ""
        line = _verdict(verdict.kind, detail, shortened(verdict.detail), list(verdict.notes), verdict.statistical)
        print(json.dumps(line), flush=True)
    faulthandler.cancel_dump_traceback_later()


def _verdict(
    kind: str, detail: str, name: str = "", notes: Sequence[str] = (), statistical: bool = False
) -> dict[str, Any]:
    """Return a verdict as it is printed by one process and read by another."""
    return {"kind": kind, "detail": detail, "name": name, "notes": notes, "statistical": statistical}


def run(kind: str, count: int, seed: int, limit: float, jobs: int) -> Tally:
    """Judge `count` fits, `jobs` processes at a time."""
    total, done = Tally(), 0
    starts = range(seed, seed + count, _STRETCH)

    def one(start: int) -> Tally:
        return stretch(kind, min(_STRETCH, seed + count - start), start, limit)

    with ThreadPoolExecutor(jobs) as pool:
        for tally in pool.map(one, starts):
            total.add(tally)
            done += tally.fits
            print(f"  {kind}: {done:,} of {count:,}, {len(total.lines)} failures", file=sys.stderr, flush=True)
    return total


def circumstances() -> str:
    """Return processor, versions and date in a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "dask", "zarr", "scikit-learn"))
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}; {date.today()}."


def table(tallies: dict[str, Tally]) -> list[str]:
    """Return the counts as Markdown."""
    return [*_HEAD, *(tally.row(_NAMES.get(kind, kind)) for kind, tally in tallies.items())]


def update(lines: list[str]) -> None:
    """Replace what stands between the marks of the page."""
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text("\n".join([f"{head}{BEGIN}", "", *lines, "", circumstances(), "", f"{END}{rest.split(END)[1]}"]))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(KINDS), help=f"kinds of fits: {', '.join(KINDS)}")
    parser.add_argument("--count", type=int, default=None, help="fits of each kind")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first fit; the others count on from it")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds after which a fit counts as a hang")
    parser.add_argument(
        "--device", default="", help="fits of PCA multiply on this device, such as array_api_strict:device1"
    )
    parser.add_argument("--update", action="store_true", help="write the table into docs/reference/archive/faults.md")
    parser.add_argument("--out", type=Path, default=None, help="write the counts as JSON to this file too")
    parser.add_argument(
        "--merge", type=Path, nargs="+", default=None, metavar="JSON", help="fit nothing; add up these counts"
    )
    parser.add_argument("--stretch", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def merged(files: list[Path]) -> dict[str, Tally]:
    """Return the counts that earlier calls have written to `files`, added up."""
    total: dict[str, Tally] = {}
    for file in files:
        for kind, counts in json.loads(file.read_text()).items():
            total.setdefault(kind, Tally()).add(Tally(**counts))
    return total


def main() -> int:
    arguments = parsed()
    if arguments.stretch:
        in_this_process(arguments.stretch, arguments.count, arguments.seed, arguments.limit)
        return 0
    if arguments.device:
        os.environ["STREAMPCA_FUZZ_DEVICE"] = arguments.device
    wanted = arguments.only.split(",")
    unknown = sorted(set(wanted) - set(KINDS))
    if unknown:
        sys.exit(f"error: no fits are called {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if arguments.merge:
        tallies = merged(arguments.merge)
    else:
        tallies = {
            kind: run(kind, arguments.count or KINDS[kind][2], arguments.seed, arguments.limit, arguments.jobs)
            for kind in wanted
        }
    print("\n".join(table(tallies)))
    for kind, tally in tallies.items():
        for name, count in sorted(tally.refusals.items(), key=lambda pair: -pair[1]):
            print(f"{kind}: {count} x {name}")
        for line in tally.lines:
            print(f"{kind}: {line}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({kind: asdict(tally) for kind, tally in tallies.items()}, indent=2) + "\n")
    if arguments.update:
        update(table(tallies))
    return 0 if all(tally.clean for tally in tallies.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
