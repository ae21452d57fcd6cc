"""What the benchmarks share: contenders in processes of their own, medians in turns, tables and JSON.

A contender is a function of a module in this directory. It runs in a fresh process, imports and opens what it needs, and
calls ``timed(work)``: imports are not in the time. The process prints seconds, processor seconds and peak memory as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

DIRECTORY = Path(__file__).resolve().parent
ROOT = DIRECTORY.parents[1]
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
_LEAST_AVAILABLE = 2**30  # bytes of memory that contenders leave to the machine

Row = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """A function to run in a process of its own."""

    name: str
    """Its name in the table."""
    module: str
    """Module of this directory."""
    function: str
    """Function of it; returns what `timed` returns."""
    arguments: tuple[str, ...] = ()
    """What it is called with."""
    peer: bool = False
    """Whether it needs the extra environment of the peers."""
    once: bool = False
    """Whether it is so slow that one run is enough."""
    always_fresh: bool = False
    """Whether it limits its own process, so that it must never run in this one."""


def timed(work: Callable[[], Any]) -> Row:
    """Run `work` once and return what it took; what it returns is merged in if it is a dict."""
    cpu, wall = _processor_seconds(), time.perf_counter()
    result = work()
    seconds, used = time.perf_counter() - wall, _processor_seconds() - cpu
    measured = {"seconds": seconds, "cpu_seconds": used, "peak_mib": peak_mib()}
    return measured | (result if isinstance(result, dict) else {})


def _processor_seconds() -> float:
    """Return the processor time of this process and of its children that ended (`os.times` counts in hundredths)."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def peak_mib() -> float:
    """Return the largest resident memory of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def contend(contender: Contender, *, fresh: bool = True, timeout: float = 1800) -> Row:
    """Run a contender and return what it measured, or ``{"failed": why}``."""
    if not fresh and not contender.peer and not contender.always_fresh:
        return _round_trip(getattr(importlib.import_module(contender.module), contender.function)(*contender.arguments))
    python = str(PEERS_PYTHON) if contender.peer else sys.executable
    if contender.peer and not PEERS_PYTHON.exists():
        return {"failed": "not installed: scripts/bench/all --peers"}
    command = [python, str(DIRECTORY / "_bench.py"), contender.module, contender.function, *contender.arguments]
    beside = os.environ.get("PYTHONPATH")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(DIRECTORY), *([beside] if beside else [])]))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=out, stderr=errors, env=environment) as process:
            if stopped := _stopped(psutil.Process(process.pid), process, timeout):
                return {"failed": stopped}
        lines, said = ((file.seek(0), file.read().strip().splitlines())[1] for file in (out, errors))
    if process.returncode or not lines:
        return {"failed": (said or [f"exit status {process.returncode}"])[-1][:200]}
    return json.loads(lines[-1])


def _stopped(tree: psutil.Process, process: subprocess.Popen[bytes], timeout: float) -> str:
    """Wait for a process; say why it was stopped: it took too long, or the machine has no memory left. Empty if it ended by itself."""
    begun, peak = time.perf_counter(), 0.0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
            return ""
        with contextlib.suppress(psutil.NoSuchProcess):
            peak = max(peak, tree.memory_info().rss / 2**20)
        seconds, left = time.perf_counter() - begun, psutil.virtual_memory().available
        if seconds < timeout and left > _LEAST_AVAILABLE:
            continue
        why = "" if left > _LEAST_AVAILABLE else ", because the machine had no more memory"
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in (*tree.children(recursive=True), tree):
                each.kill()
        return f"stopped after {seconds:.0f} s at {peak:,.0f} MiB{why}"


def _round_trip(row: Row) -> Row:
    return json.loads(json.dumps(row))


def medians(
    contenders: list[Contender], *, repeats: int = 3, fresh: bool = True, timeout: float = 1800
) -> dict[str, Row]:
    """Run every contender `repeats` times, in turns so that a slow minute hits all, and return medians by name."""
    runs: dict[str, list[Row]] = {contender.name: [] for contender in contenders}
    for turn in range(repeats):
        for contender in contenders:
            done = runs[contender.name]
            if (turn and contender.once) or any("failed" in run for run in done):
                continue
            done.append(contend(contender, fresh=fresh, timeout=timeout))
            print(f"  {contender.name}: {summary(done[-1])}", file=sys.stderr, flush=True)
    return {name: median(results) for name, results in runs.items()}


def median(results: list[Row]) -> Row:
    """Return the medians of what several runs measured; of a run that failed, why."""
    failed = [run for run in results if "failed" in run]
    if failed:
        return failed[0]
    row = dict(results[0])
    for key, value in results[0].items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            row[key] = statistics.median(run[key] for run in results)
    return row | {"all_seconds": [round(run["seconds"], 3) for run in results]}


def summary(run: Row) -> str:
    """Return one measurement in words."""
    return (
        run.get("failed") or f"{run['seconds']:.2f} s, cpu {run['cpu_seconds']:.1f} s, peak {run['peak_mib']:.0f} MiB"
    )


def busy_cores(products: Row) -> float:
    """Return how many cores the bare products kept busy: a quiet machine reaches 95 % of them."""
    return float("nan") if "failed" in products else products["cpu_seconds"] / products["seconds"]


def floor_seconds(products: Row, read: Row, reads: int = 1) -> float | None:
    """Return the products plus the processor time of `reads` bare readings divided by the cores; None if one failed."""
    if "failed" in products or "failed" in read:
        return None
    return products["seconds"] + reads * read["cpu_seconds"] / cores()


def cores() -> int:
    """Return the number of cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@dataclass(frozen=True)
class Outcome:
    """What a case of a benchmark gave."""

    title: str
    """What was measured."""
    rows: dict[str, Row]
    """Measurements by contender."""
    floor: float | None
    """Seconds that nothing can beat; None where that is not known."""
    ratios: dict[str, float]
    """Figures of merit."""
    wanted: dict[str, tuple[float, float]]
    """Smallest and largest value that is wanted, of some of the ratios."""

    def lines(self) -> Iterator[str]:
        """Yield the case as Markdown."""
        yield from (f"### {self.title}", "", *self.table(), "")
        for name, value in self.ratios.items():
            yield f"- {name}: {figure(value)}{self._verdict(name, value)}"

    def table(self) -> list[str]:
        """Return the rows of the table."""
        lines = [
            "| contender | wall s | cpu s | peak MiB | worst eigenvalue | x floor |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for name, row in self.rows.items():
            if "failed" in row:
                lines.append(f"| {name} | {row['failed'].replace('|', '/')} | | | | |")
                continue
            error = f"{row['error']:.1e}" if "error" in row else ""
            times = f"{row['seconds'] / self.floor:.2f}" if self.floor else ""
            figures = f"{row['seconds']:.2f} | {row['cpu_seconds']:.1f} | {row['peak_mib']:.0f} | {error} | {times}"
            lines.append(f"| {name} | {figures} |")
        return lines

    def _verdict(self, name: str, value: float) -> str:
        if name not in self.wanted:
            return ""
        low, high = self.wanted[name]
        goal = " and ".join(
            ([f"at least {figure(low)}"] if low > -float("inf") else [])
            + ([f"at most {figure(high)}"] if high < float("inf") else [])
        )
        return f" ({goal}: {'yes' if low <= value <= high else '**no**'})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {"title": self.title, "rows": self.rows, "floor_seconds": self.floor, "ratios": self.ratios}


def figure(value: float) -> str:
    """Return a number with three digits or so."""
    return f"{value:.1e}" if value and (abs(value) < 1e-2 or abs(value) >= 1e4) else f"{value:.3g}"


def at_most(limit: float) -> tuple[float, float]:
    """Return the range of what is wanted below `limit`."""
    return (-float("inf"), limit)


def at_least(limit: float) -> tuple[float, float]:
    """Return the range of what is wanted above `limit`."""
    return (limit, float("inf"))


def add_errors(rows: dict[str, Row], reference: Contender | None, *, fresh: bool = True) -> None:
    """Replace eigenvalues in `rows` by their largest error relative to those of the float64 `reference`, which runs once."""
    exact = None
    if reference is not None:
        rows |= medians([reference], repeats=1, fresh=fresh)
        exact = rows[reference.name].get("eigenvalues")
    for name, row in rows.items():
        values = row.pop("eigenvalues", None)
        if exact and values and (reference is None or name != reference.name):
            some = min(len(exact), len(values))
            row["error"] = max(abs(a / b - 1) for a, b in zip(values[:some], exact[:some], strict=True))


def times_of_fit(rows: dict[str, Row], peers: tuple[str, ...]) -> dict[str, float]:
    """Return how many times as long as the fit each of the `peers` took that did not fail."""
    ours = rows["fit"]["seconds"]
    return {f"{name} over fit": rows[name]["seconds"] / ours for name in peers if "seconds" in rows[name]}


def report(outcome: Outcome, out: Path | None) -> None:
    """Print a case as Markdown and, as the last line, JSON; write the JSON to `out` too."""
    print("\n".join(outcome.lines()))
    data = outcome.to_dict() | {"machine": machine()}
    if out is not None:
        out.write_text(json.dumps(data, indent=2) + "\n")
    print(json.dumps(data))


def machine() -> dict[str, Any]:
    """Return versions and kind of machine."""
    from importlib.metadata import PackageNotFoundError, version

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    versions = {}
    for package in ("streampca", "numpy", "scipy", "scikit-learn", "dask", "zarr", "xarray", "eofs", "xeofs"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": cores(),
        "memory_gib": round(memory),
        "python": platform.python_version(),
        "versions": versions | peer_versions(),
    }


def machine_line(about: Row) -> str:
    """Return what the tables were measured on."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return (
        f"{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}; {versions}"
    )


def peer_versions() -> dict[str, str]:
    """Return the versions of the peers in their own environment; none where that does not exist."""
    if not PEERS_PYTHON.exists():
        return {}
    script = (
        "import json; from importlib.metadata import distributions; "
        "print(json.dumps({d.metadata['Name']: d.version for d in distributions()}))"
    )
    done = subprocess.run([str(PEERS_PYTHON), "-c", script], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout) if done.returncode == 0 else {}
    return {name: found[name] for name in ("scikit-learn-intelex", "dask-ml", "eofs", "xeofs") if name in found}


if __name__ == "__main__":
    module, name, *arguments = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))
