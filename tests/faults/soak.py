"""Many fits in one process: memory, open files and threads stay where they are, and so do the bits."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from forks import server
from score import Score, again
from stores import make_values, write_store

MOST_MIB = 0.2
"""Growth for each fit from which it is a leak."""
_WARM = 12  # fits before anything is measured: code, pools and caches come with the first
_SECONDS_FOR_EACH = 20.0
_SOLVERS: tuple[dict[str, Any], ...] = ({"solver": "covariance"}, {"solver": "sketch", "pilot": 0, "sketch_size": 12})


async def _all_threads_of_asyncio() -> None:
    """Start all threads of the pool that zarr reads metadata with; one that starts later takes memory of its own."""
    await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.02) for _ in range(64)))


def fit_again_and_again(path: str, count: int) -> None:
    """Fit and transform `count` times and print, for each, resident bytes, open files, threads, and a digest."""
    import ctypes

    import psutil
    from zarr.core.sync import sync

    import streampca as sp

    rows, process = [], psutil.Process()
    sync(_all_threads_of_asyncio())
    for number in range(_WARM + count):
        pca = sp.PCA(3, **_SOLVERS[number % len(_SOLVERS)]).fit(path)
        pca.transform_to(path, f"scores{number}.zarr")
        digest = hashlib.sha256(pca.components_.tobytes() + pca.explained_variance_.tobytes()).hexdigest()
        del pca
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # memory that is free is no leak
        n_files, n_threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        rows.append((process.memory_info().rss, n_files, n_threads, digest))
    print(json.dumps(rows[_WARM:]))


def slope(values: list[float]) -> float:
    """Return the growth for each fit but for one step: a leak grows before and after it, wherever it is.

    On each side of a step it is the median of the slopes between all pairs of values (Theil 1950), which single outliers do not move, and
    the step is where this is least. Pools and arenas of memory grow by some MiB at once; half-way, such a step is a slope of its own.
    """
    numbers, (first, second) = np.asarray(values, dtype=np.float64), np.triu_indices(len(values), 1)
    slopes = (numbers[second] - numbers[first]) / (second - first)
    together = [(second < step) | (first >= step) for step in range(1, len(values))]
    return min((float(np.median(slopes[beside])) for beside in together), key=abs)


def run(count: int, seed: int) -> Score:
    """Fit `count` times in one process."""
    score, began = Score("fits one after the other in one process"), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_store(place / "x.zarr", make_values(20_000, 16, seed), chunks=(1_000, 16), chain="zstd+crc32c")
        process = server().start("soak:fit_again_and_again", place, path=str(place / "x.zarr"), count=count)
        status = process.wait(_SECONDS_FOR_EACH * (count + _WARM))
        score.injected = count
        if status is None:
            score.hangs, _ = 1, process.end()
        elif status:
            score.tracebacks += 1
            score.notes.append(process.said)
        else:
            score.survived, score.wrong = count, 0
            _judge(json.loads(process.printed), score, seed)
    score.seconds = time.monotonic() - began
    return score


def _judge(rows: list[tuple[int, int, int, str]], score: Score, seed: int) -> None:
    memory = slope([row[0] / 2**20 for row in rows])
    score.notes.append(f"{memory:+.3f} MiB for each fit, {rows[-1][1]} open files, {rows[-1][2]} threads")
    wrong = []
    if memory >= MOST_MIB:
        wrong.append(f"memory grows by {memory:.3f} MiB with each fit")
    for column, what in ((1, "open files"), (2, "threads")):
        if rows[-1][column] > rows[0][column]:
            wrong.append(f"{what} grow from {rows[0][column]} to {rows[-1][column]}")
    if len({row[3] for row in rows}) != len(_SOLVERS):
        wrong.append("not every fit has the same bits")
    score.wrong, score.survived = len(wrong), len(rows) if not wrong else 0
    score.notes += [f"{words}: {again('soak', seed)}" for words in wrong]
