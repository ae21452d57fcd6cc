"""Measured peak memory against projected, refusals, fits with the least memory that a plan accepts, and one under a hard limit.

.venv/bin/python scripts/bench/memory.py                       # 20 random configurations, local and from a web server
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import limits
import numpy as np
import remote
from _bench import DIRECTORY, Contender, Outcome, Row, at_most, contend, medians, peak_mib, report, summary, timed
from numpy.typing import NDArray

sys.path.insert(0, str(DIRECTORY.parent))

LOW, HIGH = 0.4, 1.0
MIB = 2**20


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
    shards: tuple[int, int] | None = None
    """Rows and features of a shard; None without shards."""
    remote: bool = False
    """Whether the store is read from a web server."""
    underflow: bool = False
    """Whether a feature is so small in some rows that float32 blocks cannot be centred in place and are read again."""

    def __str__(self) -> str:
        chunks = " x ".join(f"{side:,}" for side in self.chunks)
        named = {"z-scores": self.scale, "from a web server": self.remote, "with underflow": self.underflow}
        shards = f", shards {self.shards[0]:,} x {self.shards[1]:,}" if self.shards else ""
        return (
            f"{self.rows:,} x {self.features:,} {self.dtype}, chunks {chunks}{shards}, {self.codec}, {self.solver}, k = {self.components}"
            + "".join(f", {name}" for name, applies in named.items() if applies)
        )


def configurations(count: int, seed: int, scale: float) -> list[Configuration]:
    """Draw `count` configurations of up to about 200 MB each, times `scale`; every third has shards, every second is remote."""
    random = np.random.default_rng(seed)
    found = []
    for i in range(count):
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
        scaled, underflow = bool(random.random() < 0.3), dtype == "float32" and solver == "covariance"
        shards = None
        if i % 3 == 2:
            n_inner = int(random.integers(2, 9))
            chunks = (max(1, chunks[0] // n_inner), chunks[1])
            shards = (n_inner * chunks[0], chunks[1])
        found.append(
            Configuration(
                *shape, chunks, dtype, codec, solver, components, scaled, shards, remote=i % 2 == 1, underflow=underflow
            )
        )
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
    return measured | _figures(pca.plan_) | {"refusal_seconds": refusal, "refused": refused}


def fit_with_least_memory(path: str, solver: str, k: str, scaled: str, leaves: str) -> Row:
    """Fit a store with the least memory with which a plan runs so many leaves at once, and return projected and measured memory."""
    import streampca as sp

    def plan(memory: int) -> Any:
        return sp.PCA(int(k), solver=solver, scale=scaled == "True", memory=memory).plan(path)

    memory = least_memory(plan, int(leaves)) + MIB  # this process has grown a little since the first plan
    pca = sp.PCA(int(k), solver=solver, scale=scaled == "True", memory=memory)
    measured = timed(lambda: pca.fit(path) and None)
    return measured | _figures(pca.plan_)


def least_memory(plan: Callable[[int], Any], leaves: int) -> int:
    """Return the least memory in bytes, to 1 MiB, for which `plan` returns a plan with so many leaves at once, by bisection."""
    from streampca.errors import PlanError

    def accepts(memory: int) -> bool:
        try:
            return bool(plan(memory).leaves_in_flight >= leaves)
        except PlanError:
            return False

    low, high = 0, 2**36
    while high - low > MIB:
        middle = (low + high) // 2
        low, high = (low, middle) if accepts(middle) else (middle, high)
    return high


def _figures(plan: Any) -> Row:
    return {"projected_mib": plan.projected_bytes / MIB, "allowed_mib": plan.allowed_bytes / MIB}


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
    """Make, fit and remove `count` random stores; each is fitted as it is and with the least memory, in fresh processes."""
    rows: dict[str, Row] = {}
    work = Path(tempfile.mkdtemp(prefix="streampca-memory-", dir=folder))
    work.chmod(0o755)  # for a web server that runs as another user
    try:
        with remote.server(work, 0.0) as serving:
            for i, drawn in enumerate(configurations(count, seed, scale)):
                store = _written(drawn, work / f"{i}.zarr", seed=i)
                path = f"http://127.0.0.1:{serving.port}/{store.name}" if drawn.remote else str(store)
                for contender in _contenders(drawn, path):
                    rows[contender.name] = contend(contender)
                    print(f"  {contender.name}: {summary(rows[contender.name])}", file=sys.stderr, flush=True)
                shutil.rmtree(store)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return _outcome(f"memory: {count} random configurations, seed {seed}", rows)


def _written(drawn: Configuration, store: Path, seed: int) -> Path:
    import make_data

    class Underflow(make_data.Recipe):
        """Rows whose first feature is 0 but in one row of 1,021, where its square is not a float32 number."""

        def block(self, index: int) -> NDArray[Any]:
            rows = super().block(index)
            places = index * self.block_rows + np.arange(len(rows))
            rows[:, 0] = np.where(places % 1021 == 1, 1e-20, 0)
            return rows

    recipe = (Underflow if drawn.underflow else make_data.Recipe)(
        features=drawn.features, dtype=drawn.dtype, rank=min(16, min(drawn.chunks)), seed=seed
    )
    make_data.write(recipe, store, drawn.rows, drawn.chunks, drawn.codec, shards=drawn.shards)
    return store


def _contenders(drawn: Configuration, path: str) -> list[Contender]:
    arguments = (path, drawn.solver, str(drawn.components), str(drawn.scale))
    fits = [Contender(str(drawn), "memory", "fit_one", arguments)]
    for leaves, named in ((1, "least memory"), (2, "least memory for two leaves at once")):
        fits.append(Contender(f"{drawn}, {named}", "memory", "fit_with_least_memory", (*arguments, str(leaves))))
    return fits


def _outcome(title: str, rows: dict[str, Row]) -> Outcome:
    done = [row for row in rows.values() if "failed" not in row]
    shares = [row["peak_mib"] / row["projected_mib"] for row in done] or [float("nan")]
    for row in done:
        row["peak_over_projected"] = row["peak_mib"] / row["projected_mib"]
    refusals = [row for row in done if "refused" in row]
    ratios = {
        "configurations that failed": float(len(rows) - len(done)),
        "least peak over projected": min(shares),
        "largest peak over projected": max(shares),
        "largest projected over allowed": max(
            (row["projected_mib"] / row["allowed_mib"] for row in done), default=float("nan")
        ),
        "plans over the limit that were not refused": float(sum(not row["refused"] for row in refusals)),
        "slowest refusal in seconds": max((row["refusal_seconds"] for row in refusals), default=float("nan")),
    }
    wanted = {
        "configurations that failed": at_most(0),
        "least peak over projected": (LOW, HIGH),
        "largest peak over projected": (LOW, HIGH),
        "largest projected over allowed": at_most(1.0),
        "plans over the limit that were not refused": at_most(0),
        "slowest refusal in seconds": at_most(1.0),
    }
    return MemoryOutcome(title, rows, None, ratios, wanted)


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
            refusal = f"{row['refusal_seconds']:.2f}" if "refusal_seconds" in row else ""
            lines.append(f"| {name} | {row['peak_mib']:.0f} | {row['projected_mib']:.0f} | {share:.2f} | {refusal} |")
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
