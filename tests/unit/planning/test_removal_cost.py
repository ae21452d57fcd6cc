"""The arithmetic of `remove` in plans."""

from __future__ import annotations

import numpy as np
import pytest

import streampca as sp

ROWS = np.random.default_rng(0).standard_normal((1200, 300))


@pytest.mark.parametrize("solver", ["covariance", "qr", "sketch", "adaptive", "gram"])
def test_flops_and_time_of_a_plan_rise_with_the_number_of_regressors(solver: str) -> None:
    plans = [
        sp.PCA(4, solver=solver, remove=remove).plan(ROWS)  # type: ignore[arg-type]
        for remove in (None, {"trend": 1}, {"groups": np.arange(1200) % 12}, {"groups": np.arange(1200) % 300})
    ]
    n, d = ROWS.shape
    for plan, n_regressors in zip(plans[1:], (2, 12, 300), strict=True):
        assert plan.flops >= plans[0].flops + 4.0 * n_regressors * n * d
    seconds = [plan.expected_seconds or 0.0 for plan in plans]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[1] < seconds[3]


def test_wide_data_take_one_product_for_each_regressor_in_each_direction() -> None:
    plain, removed = (
        sp.PCA(4, solver="gram", remove=remove).plan(ROWS.T[:100]) for remove in (None, {"groups": np.arange(100) % 5})
    )
    assert removed.flops - plain.flops == pytest.approx(4.0 * 5 * 100 * 1200)
    assert removed.passes == plain.passes


def test_plans_of_alternatives_count_what_is_removed() -> None:
    remove = {"groups": np.arange(1200) % 40}
    plain, removed = sp.PCA(4).plan(ROWS), sp.PCA(4, remove=remove).plan(ROWS)
    for one, other in zip(plain.alternatives, removed.alternatives, strict=True):
        assert one["solver"] == other["solver"]
        assert other["flops"] >= one["flops"] + 4.0 * 40 * ROWS.size
        assert other["expected_seconds"] > one["expected_seconds"]
