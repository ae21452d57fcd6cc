"""Exact covariance of 8-bit integers: scatter and sums are those of Python's integers, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from facade import Block

from streampca.accumulators import Covariance, ExactIntegerCovariance

N_ROWS, N_FEATURES = 3000, 70


def _rows(kind: str) -> np.ndarray:
    draw = np.random.default_rng(1)
    shape = (N_ROWS, N_FEATURES)
    if kind == "late":  # the sample has masks of 0 and 255 alone, one row between its rows something else
        rows = draw.choice(np.array([0, 255], np.uint8), shape)
        rows[1, 3] = 7
        return rows
    if kind == "signed masks":
        return draw.choice(np.array([-128, 127], np.int8), shape)
    if kind == "steps":
        return (draw.integers(0, 15, shape) * 17 + 3).astype(np.uint8)
    if kind == "boolean":
        return draw.random(shape) < 0.3
    values = {"masks": [0, 255], "extremes": [0, 1, 254, 255], "constant": [255], "all": range(256)}[kind]
    return draw.choice(np.array(list(values), np.uint8), shape)


@pytest.mark.parametrize("kind", ["late", "masks", "signed masks", "extremes", "constant", "steps", "all", "boolean"])
@pytest.mark.parametrize("tile_size", [1024, 32])
def test_products_are_those_of_integers(kind: str, tile_size: int) -> None:
    rows = _rows(kind)
    accumulator = ExactIntegerCovariance.of(rows.dtype, Covariance(tile_size=tile_size))
    state = accumulator.init(N_FEATURES)
    for start in range(0, N_ROWS, 1700):
        state = accumulator.update(state, Block(rows[start : start + 1700], start))
    shifted = rows.astype(np.int64) - accumulator.shift
    exact = shifted.T @ shifted
    assert np.array_equal(state.total, shifted.sum(axis=0))
    assert np.array_equal(accumulator.grid(N_FEATURES).dense(state.products), exact)
