"""Fits one after the other in one process leave nothing behind in it."""

from __future__ import annotations

import pytest
import soak
from strategies import in_depth


@pytest.mark.slow
def test_fits_one_after_the_other_leave_nothing_behind():
    # Pools and tables grow in steps of some MiB: spread over 4 fits, one step is taken for a leak, over 24 it is below the limit.
    n = in_depth(24, 100)
    score = soak.run(n, seed=0)
    score.require_clean()
    assert score.survived == n


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 1, 1, 1], 0),
        ([0, 1, 2, 3, 4], 1),
        ([5, 5, 5, 99, 5, 5, 5], 0),
        ([0, -1.6] * 6 + [4, 2.4] * 6, 0),
        ([0, -1.6, 0.5, -1.1] * 3 + [4, 2.9] * 6, 0),
        ([number + 4 * (number > 11) for number in range(24)], 1),
        ([4 * (number // 4) for number in range(24)], 1),
    ],
)
def test_the_slope_of_a_series_with_a_step(values, expected):
    assert soak.slope(values) == pytest.approx(expected, abs=0.2)
