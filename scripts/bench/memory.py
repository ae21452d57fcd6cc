"""Measured peak memory against projected, refusals, and a fit under a hard limit with a cold page cache.

.venv/bin/python scripts/bench/memory.py                       # 20 random configurations
.venv/bin/python scripts/bench/memory.py data/big.zarr         # and this store under a hard limit
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import limits
import numpy as np
from _bench import DIRECTORY, Contender, Outcome, Row, at_most, contend, medians, peak_mib, report, summary, timed

sys.path.insert(0, str(DIRECTORY.parent))

LOW, HIGH = 0.4, 1.0


@dataclass(frozen=True)
class Configuration:
    """A store to be made and a fit of it."""

    rows: int
    """Number of samples."""
    features: int
    """Number of features."""
    chunks: tuple[int, int]
    """Rows and features of a chunk."""
    dtype: str
    """Data type."""
    codec: str
    """Compression, a name of `make_data.CODECS`."""
    solver: str
    """``"covariance"`` or ``"gram"``."""
    components: int
    """Number of components."""
    scale: bool
    """Whether z-scores are taken."""

    def __str__(self) -> str:
        chunks = " x ".join(f"{side:,}" for side in self.chunks)
        scaled = ", z-scores" if self.scale else ""
        return f"{self.rows:,} x {self.features:,} {self.dtype}, chunks {chunks}, {self.codec}, {self.solver}, k = {self.components}{scaled}"


def configurations(count: int, seed: int, scale: float) -> list[Configuration]:
    """Draw `count` configurations of up to about 200 MB each, times `scale`."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        dtype = str(random.choice(["float32", "float32", "float64", "uint8", "int16", "float16"]))
        values = int(2e8 * scale / np.dtype(dtype).itemsize * random.uniform(0.3, 1.0))
        side = int(2 ** random.uniform(5, 11.3) * min(1.0, scale**0.25))
        solver = str(random.choice(["covariance", "covariance", "gram"]))
        side = max(side, 16)
        length = max(values // side, 2 * side)
        chunk = max(1, int(2 ** random.uniform(20, 24.9) * min(1.0, scale**0.5)) // (side * np.dtype(dtype).itemsize))
        columns = side if random.random() < 0.7 else max(1, side // 3)
        shape, chunks = ((length, side), (min(chunk, length), columns))
        if solver == "gram":
            shape, chunks = shape[::-1], chunks[::-1]
        components = int(random.integers(1, max(2, min(50, side // 2))))
        codec = str(random.choice(["none", "zstd", "blosc", "gzip"]))
        found.append(Configuration(*shape, chunks, dtype, codec, solver, components, bool(random.random() < 0.3)))
    return found


def fit_one(path: str, solver: str, k: str, scaled: str) -> Row:
    """Fit a store and return projected and measured memory, and how long it takes to refuse too low a ceiling."""
    import streampca as sp
    from streampca.errors import PlanError

    pca = sp.PCA(int(k), solver=solver, scale=scaled == "True")
    plan = pca.plan(path)
    began = time.perf_counter()
    try:
        sp.PCA(int(k), solver=solver, memory=plan.memory["process"] // 2).fit(path)
        refused = False
    except PlanError:
        refused = True
    refusal = time.perf_counter() - began
    measured = timed(lambda: pca.fit(path) and None)
    projected = pca.plan_.projected_bytes / 2**20
    return measured | {"projected_mib": projected, "refusal_seconds": refusal, "refused": refused}


def limited_fit(path: str, k: str, limit_mib: str) -> Row:
    """Fit under a hard limit of this process' data (RLIMIT_DATA), after the store's files were dropped from the cache."""
    limit = int(limit_mib) * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    import streampca as sp

    pca = sp.PCA(int(k), solver="covariance", memory=limit)
    pca.plan(path)
    drop_from_cache(path)
    measured = timed(lambda: pca.fit(path) and None)
    return measured | {"projected_mib": pca.plan_.projected_bytes / 2**20, "peak_mib": peak_mib()}


def drop_from_cache(path: str) -> None:
    """Ask the system to forget the files below `path`, which needs no privileges; dirty pages are written first."""
    os.sync()
    for folder, _, names in os.walk(path):
        for name in names:
            handle = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def measure_random(count: int, *, seed: int = 0, scale: float = 1.0, folder: Path | None = None) -> Outcome:
    """Make, fit and remove `count` random stores, each fit in a fresh process."""
    import make_data

    rows: dict[str, Row] = {}
    work = Path(tempfile.mkdtemp(prefix="streampca-memory-", dir=folder))
    try:
        for i, drawn in enumerate(configurations(count, seed, scale)):
            store = work / f"{i}.zarr"
            recipe = make_data.Recipe(
                features=drawn.features, dtype=drawn.dtype, rank=min(16, min(drawn.chunks)), seed=i
            )
            make_data.write(recipe, store, drawn.rows, drawn.chunks, drawn.codec)
            arguments = (str(store), drawn.solver, str(drawn.components), str(drawn.scale))
            rows[str(drawn)] = contend(Contender(str(drawn), "memory", "fit_one", arguments))
            print(f"  {drawn}: {summary(rows[str(drawn)])}", file=sys.stderr, flush=True)
            shutil.rmtree(store)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    done = [row for row in rows.values() if "failed" not in row]
    shares = [row["peak_mib"] / row["projected_mib"] for row in done] or [float("nan")]
    for row in done:
        row["peak_over_projected"] = row["peak_mib"] / row["projected_mib"]
    ratios = {
        "configurations that failed": float(len(rows) - len(done)),
        "least peak over projected": min(shares),
        "largest peak over projected": max(shares),
        "plans over the limit that were not refused": float(sum(not row["refused"] for row in done)),
        "slowest refusal in seconds": max((row["refusal_seconds"] for row in done), default=float("nan")),
    }
    wanted = {
        "configurations that failed": at_most(0),
        "least peak over projected": (LOW, HIGH),
        "largest peak over projected": (LOW, HIGH),
        "plans over the limit that were not refused": at_most(0),
        "slowest refusal in seconds": at_most(1.0),
    }
    return MemoryOutcome(f"memory: {count} random configurations, seed {seed}", rows, None, ratios, wanted)


class MemoryOutcome(Outcome):
    """The table of memory: measured and projected instead of times."""

    def table(self) -> list[str]:
        """Return the rows of the table."""
        lines = [
            "| configuration | peak MiB | projected MiB | peak / projected | refused in s |",
            "|---|---:|---:|---:|---:|",
        ]
        for name, row in self.rows.items():
            if "failed" in row:
                lines.append(f"| {name} | {row['failed'].replace('|', '/')} | | | |")
                continue
            share = row["peak_mib"] / row["projected_mib"]
            lines.append(
                f"| {name} | {row['peak_mib']:.0f} | {row['projected_mib']:.0f} | {share:.2f} | {row['refusal_seconds']:.2f} |"
            )
        return lines


def measure_limited(
    title: str,
    store: str,
    k: int,
    limit_mib: int,
    *,
    repeats: int = 1,
    fresh: bool = True,
    wanted: dict[str, tuple[float, float]] | None = None,
) -> Outcome:
    """Fit a store under a hard limit with a cold cache, beside the bare products."""
    arguments = (store, str(k), str(limit_mib))
    rows = medians(
        [limits.contenders(store)[1], Contender("fit", "memory", "limited_fit", arguments, always_fresh=True)],
        repeats=repeats,
        fresh=fresh,
    )
    ratios, goals = limits.quiet(rows)
    ours, products = rows["fit"], rows["bare_products"]
    if "failed" not in ours and "failed" not in products:
        ratios |= {
            "fit over bare products": ours["seconds"] / products["seconds"],
            "peak MiB of fit": ours["peak_mib"],
            "peak over projected": ours["peak_mib"] / ours["projected_mib"],
        }
    return Outcome(title, rows, None, ratios, goals | (wanted or {}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", help="a store to fit under the hard limit, with a cold page cache")
    parser.add_argument("--count", type=int, default=20, help="random configurations (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the configurations (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the stores (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=1024, help="hard limit in MiB (default: %(default)s)")
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--out", type=Path, help="write JSON here")
    options = parser.parse_args()
    outcome = measure_random(options.count, seed=options.seed, scale=options.scale)
    report(outcome, options.out)
    if options.store:
        title = f"{options.store} under a hard limit of {options.limit} MiB, page cache dropped"
        report(measure_limited(title, options.store, options.components, options.limit), None)


if __name__ == "__main__":
    main()
