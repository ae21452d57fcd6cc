"""The plain form of the cluster layer: futures of `distributed`, a window, `as_completed` and ``retries=``; nothing of its own.

It shows which promises Dask keeps by itself; what came of it is in docs/decisions.md, "Execution and clusters". The tests run with
it by ``PYTHONPATH=scripts pytest -p plain_form tests/faults/test_workers.py``.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, cast

from distributed import Client, Future, as_completed
from distributed.scheduler import KilledWorker

from streampca.errors import BlockFailedError
from streampca.execution.distributed import cluster, payload
from streampca.execution.fold import merge_neighbours
from streampca.execution.leaf import LeafResult, Task, run_leaf
from streampca.execution.progress import Meter
from streampca.planning.shape import Leaf
from streampca.system.blas_threads import one_blas_thread
from streampca.system.distributed_interface import pickled, unpickled

RETRIES = 3
"""Attempts after the first."""


def on_cluster(client: Client, task: Task, plan: Any, meter: Meter, first: int = 0) -> Generator[LeafResult]:
    """Yield the results of `task` from leaf `first` on in the plan's order; stands for `cluster.on_cluster`."""
    size, results = task.leaves_per_result(plan), in_order(client, task, plan, first)
    merged = results if size == 1 else merge_neighbours(results, task, size)
    try:
        for start, result in zip(range(first, plan.n_leaves, size), merged, strict=True):
            stop = min(start + size, plan.n_leaves)
            meter.add(sum(plan.leaf(index).n_rows for index in range(start, stop)), result.count.bytes)
            yield result
    finally:
        merged.close()


def in_order(client: Client, task: Task, plan: Any, first: int) -> Generator[LeafResult]:
    """Yield the results of leaves in order, with at most ``plan.window`` leaves submitted and not yielded."""
    common = pickled(getattr(task, task.common))
    carrier: Future | None = None
    small: Any = task
    if len(common) > payload._SMALL_BYTES:
        carrier, small = client.submit(unpickled, common, pure=False), replace(cast("Any", task), **{task.common: None})
    running: dict[Future, int] = {}
    results: dict[int, Any] = {}
    done, submitted = as_completed(with_results=True, raise_errors=False, loop=client.loop), first
    try:
        for index in range(first, plan.n_leaves):
            while submitted < min(plan.n_leaves, index + plan.window):
                leaf = plan.leaf(submitted)
                body = pickled(small.for_leaf(leaf))
                future = client.submit(run_on_worker, body, leaf, task.common, carrier, pure=False, retries=RETRIES)
                running[future] = submitted
                done.add(future)
                submitted += 1
            while index not in results:
                future, result = next(done)
                results[running.pop(future)] = (
                    result[1] if isinstance(result, tuple) else result
                )  # type, error, traceback
            result = results.pop(index)
            if isinstance(result, KilledWorker):
                start, stop = plan.leaf(index).edges[0], plan.leaf(index).edges[-1]
                raise BlockFailedError(f"{task.source.description}: rows {start} to {stop - 1}: {result}") from result
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        done.clear()
        client.cancel([*running, *([] if carrier is None else [carrier])])


def run_on_worker(body: bytes, leaf: Leaf, name: str, common: Any) -> LeafResult:
    """Run a leaf; called by Dask on a worker."""
    task = unpickled(body)
    with one_blas_thread():
        return run_leaf(task if common is None else replace(task, **{name: common}), leaf)


cluster.on_cluster = on_cluster
