"""The same fit on one and on two workers of one thread each, on this machine, where arithmetic bounds it.

Workers are started, and have imported everything, before the clock starts. Each is kept to a core of its own, as where workers
are given one core each; a single one that is not reads its next block on the other core, so it is more than one core. That
one, and the same fit on the threads of one process, stand beside them.

    .venv/bin/python scripts/bench/workers.py
    .venv/bin/python scripts/bench/workers.py --rows 66000 --features 2048 --repeats 3 --out workers.json
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _bench import DIRECTORY, ROOT, Contender, Outcome, Row, at_least, medians, report, timed

sys.path.insert(0, str(DIRECTORY.parent))

RATIO = "one worker over two"
LEAF_ROWS = 32_768


def fit(path: str, n_workers: str, k: str) -> Row:
    """Run `streampca.PCA.fit` on so many workers, each on one core; 0 = on the threads of this process, free = one, on any core."""
    import dask

    import streampca as sp
    from streampca.runs.config.values import LocalCluster as LocalConfig
    from streampca.runs.deploy import settings_of

    if n_workers == "0":
        pca = sp.PCA(int(k), solver="covariance")
        pca.plan(path)
        return _measured(pca, path)
    from distributed import Client, LocalCluster

    options = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "memory_limit": 0, "threads_per_worker": 1}
    n = 1 if n_workers == "free" else int(n_workers)
    settings = settings_of(LocalConfig(kind="local"))
    with dask.config.set(settings), LocalCluster(n_workers=n, **options) as cluster, Client(cluster) as client:
        _warm(n)
        for core, address in enumerate(client.scheduler_info()["workers"]):
            if n_workers != "free":
                client.run(_keep_to, sorted(os.sched_getaffinity(0))[core], workers=[address])
        pca = sp.PCA(int(k), solver="covariance")
        pca.plan(path)
        return _measured(pca, path)


def _keep_to(core: int) -> None:
    """Let all threads of this process run on one core."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def _warm(n_workers: int) -> None:
    """Fit something small, of a leaf for each worker: each imports what a leaf imports, reads a chunk and multiplies once."""
    import zarr

    import streampca as sp

    with tempfile.TemporaryDirectory() as scratch:
        small = zarr.create_array(
            f"{scratch}/small.zarr", shape=(n_workers * LEAF_ROWS, 16), chunks=(4096, 16), dtype="f4"
        )
        small[:] = np.random.default_rng(0).standard_normal(small.shape, dtype=np.float32)
        sp.PCA(2, solver="covariance").fit(f"{scratch}/small.zarr")


def _measured(pca: Any, path: str) -> Row:
    measured = timed(lambda: pca.fit(path) and None)
    return measured | {"eigenvalues": pca.explained_variance_.tolist(), "leaves": pca.plan_.n_leaves}


def measure(title: str, store: str, k: int, *, repeats: int = 3, fresh: bool = True) -> Outcome:
    """Run one and two workers, and threads of one process, in turns."""
    names = {"one worker": "1", "two workers": "2", "one worker, any core": "free", "threads, no cluster": "0"}
    contenders = [Contender(name, "workers", "fit", (store, n, str(k))) for name, n in names.items()]
    rows = medians(contenders, repeats=repeats, fresh=fresh)
    failed = [name for name, row in rows.items() if "failed" in row]
    found = {name: row.pop("eigenvalues", None) for name, row in rows.items()}
    ratios = {}
    if not failed:
        ratios[RATIO] = rows["one worker"]["seconds"] / rows["two workers"]["seconds"]
        ratios["one worker on any core over two"] = (
            rows["one worker, any core"]["seconds"] / rows["two workers"]["seconds"]
        )
        ratios["two workers over threads"] = rows["two workers"]["seconds"] / rows["threads, no cluster"]["seconds"]
        ratios["runs with other eigenvalues"] = float(sum(one != found["one worker"] for one in found.values()))
    return Outcome(title, rows, None, ratios, {RATIO: at_least(1.8), "runs with other eigenvalues": (0.0, 0.0)})


def main() -> None:
    """Make the store if it is not there, run, print."""
    import make_data

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=132_000)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--same-process", action="store_true", help="no process for each contender")
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "bench", help="where the store is (%(default)s)")
    parser.add_argument("--out", type=Path, help="file that gets the JSON")
    options = parser.parse_args()
    path = options.data / f"workers-{options.rows}-{options.features}.zarr"
    if not path.exists():
        print(f"making {path} ...", file=sys.stderr, flush=True)
        make_data.write(
            make_data.Recipe(options.features, mean_to_sd=3.0), path, options.rows, (2048, options.features)
        )
    title = (
        f"{options.rows:,} x {options.features:,} float32, k = {options.components}, on workers of one thread and core"
    )
    fresh = not options.same_process
    report(measure(title, str(path), options.components, repeats=options.repeats, fresh=fresh), options.out)


if __name__ == "__main__":
    main()
