"""What the benchmarks share: contenders in processes of their own, medians, a table and JSON.

A contender is a function of a module in this directory. It runs in a fresh process, prepares itself, and calls
``timed(work)``; the process prints seconds, processor seconds and peak memory as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def timed(work: Callable[[], Any]) -> dict[str, Any]:
    """Run `work` once and return what it took; what it returns is merged in if it is a dict."""
    cpu, wall = os.times(), time.perf_counter()
    result = work()
    seconds, after = time.perf_counter() - wall, os.times()
    used = sum(after[:4]) - sum(cpu[:4])
    measured = {"seconds": seconds, "cpu_seconds": used, "peak_mib": peak_mib()}
    return measured | (result if isinstance(result, dict) else {})


def peak_mib() -> float:
    """Return the largest resident memory of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def contend(module: str, name: str, *arguments: str, timeout: float = 1800) -> dict[str, Any]:
    """Run one contender in a fresh process and return what it measured, or why there is nothing."""
    command = [sys.executable, str(HERE / "_bench.py"), module, name, *arguments]
    environment = dict(os.environ, PYTHONPATH=str(HERE))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {timeout:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:200]}
    return json.loads(lines[-1])


def medians(module: str, names: list[str], *arguments: str, repeats: int = 3, timeout: float = 1800) -> dict[str, dict[str, Any]]:
    """Run every contender `repeats` times, in turns so that a slow minute hits all, and return medians by name."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            if any("failed" in run for run in runs[name]):
                continue
            runs[name].append(contend(module, name, *arguments, timeout=timeout))
            print(f"  {name}: {summary(runs[name][-1])}", file=sys.stderr, flush=True)
    return {name: _median(results) for name, results in runs.items()}


def _median(results: list[dict[str, Any]]) -> dict[str, Any]:
    failed = [run for run in results if "failed" in run]
    if failed:
        return failed[0]
    median = dict(results[0])
    for key, value in results[0].items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            median[key] = statistics.median(run[key] for run in results)
    return median | {"all_seconds": [round(run["seconds"], 3) for run in results]}


def summary(run: dict[str, Any]) -> str:
    """Return one measurement in words."""
    return run.get("failed") or f"{run['seconds']:.2f} s, cpu {run['cpu_seconds']:.1f} s, peak {run['peak_mib']:.0f} MiB"


def report(title: str, rows: dict[str, dict[str, Any]], ratios: dict[str, float], out: Path | None) -> None:
    """Print a table and, as the last line, JSON; write the JSON to `out` too."""
    print(f"\n{title}")
    print(f"{'':38}{'wall s':>9}{'cpu s':>9}{'peak MiB':>10}  error")
    for name, run in rows.items():
        if "failed" in run:
            print(f"{name:38}  {run['failed']}")
            continue
        error = f"{run['error']:.1e}" if "error" in run else ""
        print(f"{name:38}{run['seconds']:9.2f}{run['cpu_seconds']:9.1f}{run['peak_mib']:10.0f}  {error}")
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    data = {"title": title, "machine": machine(), "rows": rows, "ratios": ratios}
    if out is not None:
        out.write_text(json.dumps(data, indent=2) + "\n")
    print(json.dumps(data))


def machine() -> dict[str, Any]:
    """Return versions and kind of machine."""
    from importlib.metadata import PackageNotFoundError, version

    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "?")
    versions = {}
    for package in ("streampca", "numpy", "scipy", "scikit-learn", "scikit-learn-intelex", "dask", "dask-ml", "zarr", "xeofs"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(), "versions": versions}


if __name__ == "__main__":
    module, name, *arguments = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))
