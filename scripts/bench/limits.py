"""What the machine can do with a store: bare reading, bare products, both as floors for a fit.

    .venv/bin/python scripts/bench/limits.py data/big.zarr
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _bench import medians, report, timed
from threadpoolctl import threadpool_limits

from streampca.engine.fit import Parameters, plan_fit
from streampca.engine.memory import n_cores
from streampca.sources import Source, open_source


def _spans(source: Source) -> list[tuple[int, int]]:
    plan = plan_fit(source, Parameters(50))
    return [(edges[i], edges[i + 1]) for edges in (leaf.edges for leaf in plan.leaves()) for i in range(len(edges) - 1)]


def _on_all_cores(work: Any, n_items: int) -> None:
    cores = n_cores()
    with threadpool_limits(1), ThreadPoolExecutor(cores) as pool:
        for done in [pool.submit(work, range(core, n_items, cores)) for core in range(cores)]:
            done.result()


def bare_read(path: str) -> dict[str, Any]:
    """Read every block into a buffer that is used again, one thread a core."""
    source = open_source(path)
    spans = _spans(source)

    def work(indices: range) -> None:
        out = np.empty((spans[0][1] - spans[0][0], source.shape[1]), dtype=source.dtype)
        for i in indices:
            start, stop = spans[i]
            source.read(start, stop, out[: stop - start])

    return timed(lambda: _on_all_cores(work, len(spans)))


def bare_products(path: str) -> dict[str, Any]:
    """Multiply a block by itself as often as the store has blocks, one BLAS thread a core: ``ssyrk`` without any reading."""
    source = open_source(path)
    spans = _spans(source)
    rows, d = spans[0][1] - spans[0][0], source.shape[1]
    dtype = np.float32 if source.dtype.itemsize <= 4 else np.float64
    blocks = [np.random.default_rng(0).standard_normal((rows, d), dtype=dtype) for _ in range(n_cores())]

    def work(indices: range) -> None:
        x, out = blocks[indices.start], np.empty((d, d), dtype=dtype)
        for i in indices:
            part = x[: spans[i][1] - spans[i][0]]
            np.matmul(part.T, part, out=out)

    return timed(lambda: _on_all_cores(work, len(spans)))


def main() -> None:
    """Print the limits for one store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = medians("limits", ["bare_read", "bare_products"], options.store, repeats=options.repeats)
    busy = rows["bare_products"]["cpu_seconds"] / rows["bare_products"]["seconds"]
    report(f"limits of {options.store}", rows, {"cores kept busy by the products (1.9 of 2 = a quiet machine)": busy}, options.out)


if __name__ == "__main__":
    main()
