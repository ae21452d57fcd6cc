"""Small arrays against scikit-learn, and the time of imports: paired medians of wall and processor time.

Both fit and transform the same float32 array in one process, in turns, so that a slow moment hits both; the ratio is the median of
pairs. An import runs in a fresh process after numpy and scipy. On a shared machine wall time counts the neighbours, too; processor
time counts BLAS threads that wait by spinning.

    .venv/bin/python scripts/bench/small.py
    .venv/bin/python scripts/bench/small.py --scale 0.01 --seconds 0.2
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from _bench import Row

K = 10
SHAPES = {(200, 20): None, (5_000, 100): 1.5, (50_000, 200): 1.2, (200_000, 256): 1.2}
"""Rows and features, and how many times as long as scikit-learn a fit may take; None: 5 ms."""
TRANSFORM = 1.3
IMPORTS = {
    "import streampca": ("import streampca", None),
    "sp.PCA": ("import streampca as sp; sp.PCA", 0.6),
    "streampca.states": ("from streampca.states import Covariance", 0.3),
    "a small fit": ("import streampca as sp; sp.PCA(2).fit(numpy.eye(20))", None),
}
"""Code in a fresh process, and the processor seconds it may take beyond numpy and scipy."""


class Taken(NamedTuple):
    """What one call took."""

    wall: float
    """Seconds."""
    cpu: float
    """Processor seconds of this process."""


def take(work: Callable[[], Any]) -> Taken:
    """Run `work` and return what it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


def pairs(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> dict[str, Row]:
    """Run both in turns for `seconds`, at least five times, and return medians; the ratio is that of pairs."""
    take(ours), take(theirs)
    began, done = time.perf_counter(), []
    while len(done) < 5 or time.perf_counter() - began < seconds:
        one, other = take(ours), take(theirs)
        done.append((one, other))
    rows = {}
    for name, taken in zip(("streampca", "scikit-learn"), zip(*done, strict=True), strict=True):
        rows[name] = {
            "seconds": statistics.median(each.wall for each in taken),
            "cpu_seconds": statistics.median(each.cpu for each in taken),
            "least_seconds": min(each.wall for each in taken),
        }
    rows["streampca"]["ratio"] = statistics.median(one.wall / other.wall for one, other in done)
    return rows


def rows_of(n: int, d: int) -> np.ndarray[Any, Any]:
    """Return float32 rows with standard deviations from 3 to 1/2 and a mean of 1."""
    random = np.random.default_rng(0)
    return (random.standard_normal((n, d)) * np.linspace(3, 0.5, d) + 1).astype("f4")


def measure(n: int, d: int, most: float | None, seconds: float) -> list[str]:
    """Return the lines of a case: milliseconds of fit and transform of an array, and what is wanted of them."""
    from sklearn.decomposition import PCA

    import streampca as sp

    rows, ours, theirs = rows_of(n, d), sp.PCA(K), PCA(K, svd_solver="covariance_eigh")
    works = {
        "fit": (lambda: ours.fit(rows), lambda: theirs.fit(rows), most),
        "transform": (lambda: ours.transform(rows), lambda: theirs.transform(rows), TRANSFORM if most else None),
    }
    lines = [
        f"### {n:,} x {d} float32, k = {K}",
        "",
        "| | wall ms | least wall ms | processor ms | x scikit-learn | wanted |",
    ]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for what, (one, other, limit) in works.items():
        for name, row in pairs(one, other, seconds).items():
            figures = " | ".join(f"{1e3 * row[key]:.2f}" for key in ("seconds", "least_seconds", "cpu_seconds"))
            ratio, wanted = f"{row['ratio']:.2f}" if "ratio" in row else "", "" if limit is None else f"at most {limit}"
            lines.append(f"| {name}, {what} | {figures} | {ratio} | {wanted if ratio else ''} |")
    return [*lines, ""]


def imports(repeats: int) -> dict[str, float]:
    """Return the processor seconds of each of `IMPORTS` beyond numpy and scipy, medians of `repeats` fresh processes, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(repeats):
        for name, (code, _) in IMPORTS.items():
            script = f"import time, numpy, scipy.linalg, scipy.sparse; t = time.process_time(); {code}; print(time.process_time() - t)"
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            done = subprocess.run(
                [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
            )
            taken[name].append(float(done.stdout))
    return {name: statistics.median(each) for name, each in taken.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each pair of contenders (4)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, for a test")
    parser.add_argument("--repeats", type=int, default=7, help="fresh processes of each import (7)")
    options = parser.parse_args()
    for (n, d), most in SHAPES.items():
        print("\n".join(measure(max(4 * K, int(n * options.scale)), d, most, options.seconds)), flush=True)
    print("### Imports, processor seconds beyond numpy and scipy\n\n| | seconds | wanted |\n|---|---:|---:|")
    for name, seconds in imports(options.repeats).items():
        most = IMPORTS[name][1]
        print(f"| `{IMPORTS[name][0]}` | {seconds:.2f} | {'' if most is None else f'at most {most}'} |")


if __name__ == "__main__":
    main()
