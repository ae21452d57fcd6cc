"""Inject faults in every loop of tests/faults, each stretch of a loop in a process of its own, and print what became of them.

Called by ``scripts/faults``. A process that does not end in time counts as a hang, one that ends otherwise than it should
as a traceback. Ends with the table of docs/reference/archive/faults.md and, as the last line, JSON; exit status 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "faults"
sys.path[:0] = [str(FAULTS), str(FAULTS.parent)]

from score import Score  # noqa: E402

BEGIN, END = "<!-- begin: scripts/faults -->", "<!-- end: scripts/faults -->"
PAGE = ROOT / "docs" / "reference" / "archive" / "faults.md"
_HEAD = (
    "| fault | injected | survived, same bits | named error | wrong | hangs | tracebacks | seconds |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


@dataclass(frozen=True)
class Loop:
    """A function ``run(count, seed) -> Score`` of a module of tests/faults."""

    key: str
    """Its name on the command line."""
    module: str
    """The module."""
    deep: int
    """How many faults are injected by default."""
    step: int
    """How many by one process."""
    each: float
    """About how many seconds one takes."""
    function: str = "run"
    """The function."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further arguments of it."""
    first: bool = False
    """Whether it comes to its count before the others share what is left of the time."""


LOOPS = (
    Loop("workers", "workers", 700, 20, 1.1, more={"mode": "SIGKILL"}, first=True),
    Loop("workers-exit", "workers", 150, 20, 1.1, more={"mode": "exit"}, first=True),
    Loop("workers-segfault", "workers", 150, 20, 1.1, more={"mode": "segfault"}, first=True),
    Loop("poison", "workers", 3, 1, 12.0, function="run_poison"),
    Loop("cluster-kills", "workers", 40, 2, 20.0, function="run_cluster", more={"befalls": "kills"}),
    Loop("cluster-faster-kills", "workers", 40, 2, 30.0, function="run_cluster", more={"befalls": "faster kills"}),
    Loop("cluster-frozen", "workers", 40, 2, 30.0, function="run_cluster", more={"befalls": "frozen"}),
    Loop("cluster-late", "workers", 40, 2, 15.0, function="run_cluster", more={"befalls": "late"}),
    Loop("cluster-gone", "workers", 40, 2, 25.0, function="run_cluster", more={"befalls": "gone"}),
    Loop("driver", "driver", 200, 20, 1.5, first=True),
    Loop("runs", "run_kills", 300, 20, 4.0),
    Loop("signals", "driver", 40, 10, 3.0, function="run_signals"),
    Loop("writes", "writes", 2_000, 100, 0.6),
    Loop("updates", "writes", 1_000, 100, 0.6, function="run_updates"),
    Loop("store-updates", "writes", 1_000, 100, 0.6, function="run_store_updates"),
    Loop("disk_full", "disk_full", 100, 10, 2.0),
    Loop("races", "races", 500, 25, 0.7),
    Loop("slots", "slot_kills", 300, 50, 0.7),
    Loop("slots-h5ad", "slot_kills", 300, 50, 0.7, more={"kind": "h5ad"}),
    Loop("trees", "trees", 10_000, 1_000, 0.03),
    Loop("determinism", "determinism", 200, 60, 0.5),
    Loop("corruption", "corruption", 50_000, 2_500, 0.015, first=True),
    Loop("missing", "missing", 1_000, 100, 0.03),
    Loop("hostile", "hostile", 20_000, 1_000, 0.02),
    Loop("s3", "s3", 40, 4, 10.0),
    Loop("network", "network", 20, 5, 5.0),
    Loop("fuzz", "fuzz", 200_000, 10_000, 0.006),
    Loop("soak", "soak", 200, 200, 0.2),
)


def stretch(loop: Loop, count: int, seed: int, timeout: float) -> Score:
    """Inject `count` faults in a process of its own."""
    command = [sys.executable, __file__, "--stretch", loop.key, "--count", str(count), "--seed", str(seed)]
    again = f"scripts/faults --only {loop.key} --count {count} --seed {seed}"
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        note = f"more than {timeout:.0f} s: {again}"
        return Score(loop.key, injected=count, hangs=1, seconds=time.monotonic() - began, notes=[note])
    lines = out.splitlines()
    if process.returncode or not lines:
        note = f"status {process.returncode}: {(err.strip().splitlines() or [''])[-1][:300]}: {again}"
        return Score(loop.key, injected=count, tracebacks=1, seconds=time.monotonic() - began, notes=[note])
    return Score(**json.loads(lines[-1]))


def carry_out(loop: Loop, count: int, seed: int, limit: float, say: Any) -> Score:
    """Inject up to `count` faults within `limit` seconds, stretch by stretch, and return the sum."""
    began, total, done = time.monotonic(), Score(loop.key), 0
    while done < count:
        left, size = limit - (time.monotonic() - began), min(loop.step, count - done)
        if left < float("inf"):
            each = (time.monotonic() - began) / done if done else loop.each
            size = min(size, max(int(left / each), 0 if done else 1))
        if size < 1:
            break
        found = stretch(loop, size, seed + done, 120 + 20 * loop.each * size)
        add(total, found)
        done += size
        say(f"{loop.key}: {done:,} of {count:,}, {time.monotonic() - began:.0f} s")
        if not found.injected:
            break  # nothing can be injected here, which its notes say
    total.seconds = time.monotonic() - began
    return total


def shares(loops: list[Loop], counts: dict[str, int], seconds: float | None) -> dict[str, float]:
    """Return how long each loop may take if all may take `seconds`: those that come first what they need, up to most of it."""
    if seconds is None:
        return {loop.key: float("inf") for loop in loops}
    needed = {loop.key: counts[loop.key] * loop.each for loop in loops}
    first = sum(needed[loop.key] for loop in loops if loop.first)
    others = sum(needed.values()) - first
    for_first = min(1.5 * first, 0.75 * seconds if others else seconds)
    return {
        loop.key: needed[loop.key] * (for_first / first if loop.first else (seconds - for_first) / others)
        for loop in loops
    }


def add(total: Score, found: Score) -> None:
    """Add the figures of `found` to `total`."""
    total.name = found.name
    for name in ("injected", "detected", "survived", "wrong", "hangs", "tracebacks", "seconds"):
        setattr(total, name, getattr(total, name) + getattr(found, name))
    total.notes += [note for note in found.notes if note not in total.notes]


def table(scores: list[Score]) -> list[str]:
    """Return the scores as Markdown, with a line for all of them."""
    whole = Score("**all**")
    for score in scores:
        add(whole, score)
    whole.name = "**all**"
    return [*_HEAD, *(score.line() for score in scores), whole.line()]


def merged(files: list[Path]) -> dict[str, Score]:
    """Return the scores that earlier calls have written to `files`, those of the same loop added up."""
    total: dict[str, Score] = {}
    for file in files:
        for key, score in json.loads(file.read_text())["scores"].items():
            add(total.setdefault(key, Score(key)), Score(**score))
    return total


def circumstances() -> str:
    """Return machine, versions and date in a line."""
    processor = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "dask", "zarr"))
    return f"{processor}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}; {date.today()}."


def update(lines: list[str]) -> None:
    """Replace what stands between the marks of the page."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text("\n".join([f"{head}{BEGIN}", "", *lines, "", circumstances(), "", f"{END}{tail}"]))


def one_stretch(key: str, count: int, seed: int) -> None:
    """Carry out a stretch in this process and print its score."""
    loop = next(loop for loop in LOOPS if loop.key == key)
    score: Score = getattr(importlib.import_module(loop.module), loop.function)(count, seed, **loop.more)
    print(json.dumps(asdict(score)))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help=f"loops, separated by commas: {', '.join(one.key for one in LOOPS)}")
    parser.add_argument("--minutes", type=float, default=None, help="stop after about so long, all loops sharing it")
    parser.add_argument("--count", type=int, default=None, help="faults of each loop")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the faults of each loop that is injected")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first fault; the others count on from it")
    parser.add_argument("--jobs", type=int, default=2, help="loops at a time")
    parser.add_argument("--update", action="store_true", help="write the table into docs/reference/archive/faults.md")
    parser.add_argument("--out", type=Path, default=None, help="write the scores as JSON to this file too")
    parser.add_argument(
        "--merge", type=Path, nargs="+", default=None, metavar="JSON", help="inject nothing; take these scores"
    )
    parser.add_argument("--stretch", default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    if arguments.stretch:
        one_stretch(arguments.stretch, arguments.count, arguments.seed)
        return 0
    wanted = list(filter(None, arguments.only.split(",")))
    unknown = set(wanted) - {loop.key for loop in LOOPS}
    if unknown:
        sys.exit(
            f"error: no loop is called {', '.join(sorted(unknown))}; there are {', '.join(one.key for one in LOOPS)}"
        )
    loops = [loop for loop in LOOPS if not wanted or loop.key in wanted]
    missing = [loop.key for loop in loops if not (FAULTS / f"{loop.module}.py").exists()]
    loops = [loop for loop in loops if loop.key not in missing]
    counts = {loop.key: arguments.count or max(1, round(loop.deep * arguments.scale)) for loop in loops}
    limits = shares(loops, counts, None if arguments.minutes is None else 60 * arguments.minutes * arguments.jobs)
    if arguments.merge:
        scores = merged(arguments.merge)
        return told([scores[loop.key] for loop in LOOPS if loop.key in scores], arguments.update)
    lock, began = threading.Lock(), time.monotonic()

    def say(words: str) -> None:
        with lock:
            print(f"  {time.monotonic() - began:6.0f} s  {words}", file=sys.stderr, flush=True)

    def one(loop: Loop) -> Score:
        left = float("inf") if arguments.minutes is None else 60 * arguments.minutes - (time.monotonic() - began)
        return carry_out(loop, counts[loop.key], arguments.seed, min(limits[loop.key], left), say)

    turns = sorted(loops, key=lambda loop: (not loop.first, -limits[loop.key]))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = dict(zip((loop.key for loop in turns), pool.map(one, turns), strict=True))
    by_key = {loop.key: found[loop.key] for loop in loops}
    ordered = list(by_key.values())
    status = told(ordered, arguments.update)
    for key in missing:
        print(f"{key}: there is no tests/faults/{key}.py")
    for key, score in by_key.items():
        for note in score.notes[:20]:
            print(f"{key}: {note}")
    data = {
        "seconds": time.monotonic() - began,
        "seed": arguments.seed,
        "scores": {k: asdict(s) for k, s in by_key.items()},
    }
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(data, indent=2) + "\n")
    print(json.dumps(data))
    return status


def told(scores: list[Score], to_page: bool) -> int:
    """Print the table, write it into the page if it is to go there, and return the exit status."""
    lines = table(scores)
    print("\n".join(lines))
    if to_page:
        update(lines)
    return int(any(score.wrong or score.hangs or score.tracebacks for score in scores))


if __name__ == "__main__":
    sys.exit(main())
