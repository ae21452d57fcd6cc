"""The search for the block size, and the leaves and threads at once, with which a plan fits in memory."""

from __future__ import annotations

from collections.abc import Callable

from streampca.planning.memory import WORKER_PROCESS_BYTES
from streampca.planning.plan import Plan

_TILE_THREADS_FROM = 4096  # features from which threads share one state instead of having one each


def choose(sizes: list[int], build: Callable[[int, int, int], Plan], side: int, threads: int, n_tiles: int) -> Plan:
    """Return the best plan that fits, or the one that takes least memory if none does (see `MemoryBudget.fits`).

    `build` makes the plan for a block size, a number of leaves at once and a number of threads for each. The block size
    is the first of `sizes` with which a single thread fits, so that it never depends on the threads; one that fits
    beside a process of nominal size is preferred if it reads no more, so that the size does not depend on what this
    process holds either. Then as many leaves run at once, and as many threads share one, as still fit.
    """
    tried: list[Plan] = []
    first: Plan | None = None
    for size in sizes:
        least = build(size, 1, 1)
        tried.append(least)
        if least.budget.fits:
            first = first or least
            if _fits_nominally(least) and least.bytes_to_read <= first.bytes_to_read:
                break
    else:  # none is preferred
        if first is None:
            return min(tried, key=lambda plan: plan.projected_bytes)
        least = first
    for leaves in _leaves_to_try(side, min(threads, least.n_leaves)):
        for threads_per_leaf in sorted({max(1, min(threads // leaves, n_tiles)), 1}, reverse=True):
            if leaves == threads_per_leaf == 1:
                return least
            plan = build(least.rows_per_block, leaves, threads_per_leaf)
            if plan.budget.fits:
                return plan
    return least


def _fits_nominally(plan: Plan) -> bool:
    """Tell whether the plan also fits in a process that takes as much memory as a worker does by itself."""
    difference = max(0, WORKER_PROCESS_BYTES - plan.budget.bytes_for("process", "quality"))
    return plan.projected_bytes + difference <= plan.allowed_bytes


def _leaves_to_try(side: int, most: int) -> list[int]:
    """Return how many leaves run at once, best first: one with all threads where a state is large."""
    if side >= _TILE_THREADS_FROM:
        return [1]
    return sorted({most, max(1, most // 2), 1}, reverse=True)
