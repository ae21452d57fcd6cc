"""What the machine can do with a store: bare reading, bare products, both as floors for a fit.

.venv/bin/python scripts/bench/limits.py data/big.zarr
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _bench import Contender, Outcome, Row, at_least, busy_cores, cores, medians, report, timed
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

QUIET = "cores kept busy by the bare products"


def contenders(store: str, solver: str = "covariance") -> list[Contender]:
    """Return the two limits of `store`, read and multiplied as `solver` does."""
    return [Contender(name, "limits", name, (store, solver)) for name in ("bare_read", "bare_products")]


def quiet(rows: dict[str, Row]) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """Return how many cores the products kept busy, and how many they do on a quiet machine."""
    return {QUIET: busy_cores(rows["bare_products"])}, {QUIET: at_least(0.95 * cores())}


def _opened(path: str, solver: str) -> tuple[Any, list[tuple[int, int]]]:
    """Return the source that the leaves read and the blocks that they read of it."""
    from streampca.solvers.fit import Parameters, plan_fit
    from streampca.sources import open_source

    source = open_source(path)
    plan = plan_fit(source, Parameters(1, solver=solver))
    spans = [(a, b) for leaf in plan.leaves() for a, b in zip(leaf.edges[:-1], leaf.edges[1:], strict=True)]
    return source if plan.axis == "samples" else source.by_features(), spans


def _on_all_cores(work: Callable[[range], None], n_items: int) -> None:
    with threadpool_limits(1), ThreadPoolExecutor(cores()) as pool:
        for done in [pool.submit(work, range(core, n_items, cores())) for core in range(cores())]:
            done.result()


def bare_read(path: str, solver: str = "covariance") -> Row:
    """Read every block into a buffer that is used again, one thread a core."""
    source, spans = _opened(path, solver)

    def work(indices: range) -> None:
        out = np.empty((max(stop - start for start, stop in spans), source.shape[1]), dtype=source.dtype)
        for i in indices:
            start, stop = spans[i]
            source.read(start, stop, out[: stop - start])

    return timed(lambda: _on_all_cores(work, len(spans)))


def bare_products(path: str, solver: str = "covariance") -> Row:
    """Multiply a block by itself as often as the store has blocks, without any reading.

    As one BLAS thread a core with numpy, or all threads in one ``syrk`` at a time, which spares numpy's copy of the
    triangle: whichever is faster on the first blocks.
    """
    source, spans = _opened(path, solver)
    rows, side = max(stop - start for start, stop in spans), source.shape[1]
    dtype = np.dtype(np.float32 if source.dtype.itemsize <= 4 else np.float64)
    block = np.random.default_rng(0).standard_normal((rows, side), dtype=dtype)
    lengths = [stop - start for start, stop in spans]
    ways = (_matmul_a_core, _syrk_on_all_cores)
    few = lengths[: 2 * cores()]
    for way in ways:
        way(block, few[:1])
    seconds = []
    for way in ways:
        began = time.perf_counter()
        way(block, few)
        seconds.append(time.perf_counter() - began)
    best = ways[int(np.argmin(seconds))]
    return timed(lambda: best(block, lengths))


def _matmul_a_core(block: NDArray[Any], lengths: list[int]) -> None:
    def work(indices: range) -> None:
        # A transposed product reads the block as it lies in memory, and goes to ssyrk.
        x, out = block if indices.start == 0 else block.copy(), np.empty((block.shape[1],) * 2, dtype=block.dtype)
        for i in indices:
            part = x[: lengths[i]]
            np.matmul(part.T, part, out=out)

    _on_all_cores(work, len(lengths))


def _syrk_on_all_cores(block: NDArray[Any], lengths: list[int]) -> None:
    from scipy.linalg.blas import dsyrk, ssyrk

    syrk = ssyrk if block.dtype == np.float32 else dsyrk
    out = np.zeros((block.shape[1],) * 2, dtype=block.dtype, order="F")
    with threadpool_limits(cores()):
        for length in lengths:
            syrk(1.0, block[:length].T, beta=1.0, c=out, overwrite_c=1)


def main() -> None:
    """Print the limits for one store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--solver", default="covariance", choices=("covariance", "gram"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = medians(contenders(options.store, options.solver), repeats=options.repeats)
    report(Outcome(f"limits of {options.store}", rows, None, *quiet(rows)), options.out)


if __name__ == "__main__":
    main()
