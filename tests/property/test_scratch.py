"""What accumulators allocate while they take a block is at most what they tell the planner."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest
from facade import Gram, examining

from streampca.accumulators import (
    CompleteRows,
    Covariance,
    ExactIntegerCovariance,
    PairwiseCovariance,
    QRFactor,
    Sketch,
)
from streampca.accumulators.rows import Moments
from streampca.block import Block

N, D = 4000, 200
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((N, D)).astype(np.float32)
COUNTS = RNG.integers(0, 255, (N, D)).astype(np.uint8)
HOLES = np.where(RNG.random(ROWS.shape) < 0.01, np.float32(np.nan), ROWS)
TEST = RNG.standard_normal((D, 40)).astype(np.float32)
SLACK = 2**20  # objects, and slabs of fixed size; the allowance of a process is 24 MiB

CASES: dict[str, tuple[Any, Any, int]] = {
    "covariance": (Covariance(), ROWS, 4),
    "covariance in float64": (Covariance(), ROWS.astype(np.float64), 8),
    "covariance of forgotten rows": (Covariance(forgetting=0.999), ROWS, 4),
    "complete rows": (CompleteRows(Covariance()), HOLES, 4),
    "pairwise": (PairwiseCovariance(), HOLES, 4),
    "integers": (ExactIntegerCovariance.of(COUNTS.dtype, Covariance()), COUNTS, 4),
    "triangular factor": (QRFactor(), ROWS, 8),
    "sketch": (Sketch(TEST), ROWS, 4),
    "moments": (Moments(), ROWS, 4),
    "Gram matrix": (Gram(), np.ascontiguousarray(ROWS.T), 4),
    **{name: (each, HOLES, 4) for name, each in examining(HOLES).items()},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_an_update_allocates_what_the_planner_is_told(name: str, weighted: bool) -> None:
    accumulator, rows, itemsize = CASES[name]
    if weighted and name in ("integers", "Gram matrix", "covariance of forgotten rows"):
        pytest.skip("takes no weights of rows in a block")
    block = Block(rows, 0, np.ones(len(rows)) if weighted else None)
    accumulator.update(accumulator.init(rows.shape[1]), Block(rows[:300], 0))  # imports what it uses
    peak: list[int] = []

    def update() -> None:  # in a thread of its own, which has borrowed nothing yet
        state = accumulator.init(rows.shape[1])
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        state = accumulator.update(state, block)
        tracemalloc.reset_peak()  # what the first update has borrowed is held while the second allocates
        accumulator.update(state, block)
        peak.append(tracemalloc.get_traced_memory()[1] - before)
        tracemalloc.stop()

    thread = threading.Thread(target=update)
    thread.start()
    thread.join()
    assert peak, "the update failed"
    weighted_rows = 8 * rows.size if weighted else 0  # which solvers that take weights count beside it
    assert peak[0] <= accumulator.scratch_bytes(rows.shape[1], len(rows), itemsize) + weighted_rows + SLACK
