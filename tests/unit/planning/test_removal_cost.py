"""The arithmetic of `remove` in plans."""

from __future__ import annotations

import facade
import numpy as np
import pytest

import streampca as sp
from streampca.errors import PlanError

ROWS = np.random.default_rng(0).standard_normal((1200, 300))


@pytest.mark.parametrize("solver", ["covariance", "qr", "sketch", "adaptive", "gram"])
def test_flops_and_time_of_a_plan_rise_with_the_number_of_regressors(solver: str) -> None:
    plans = [
        sp.PCA(4, solver=solver, remove=remove).plan(ROWS)  # type: ignore[arg-type]
        for remove in (None, {"trend": 1}, {"covariates": ROWS[:, :12]}, {"covariates": ROWS[:, :200]})
    ]
    n, d = ROWS.shape
    for plan, n_regressors in zip(plans[1:], (2, 13, 201), strict=True):
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
    remove = {"covariates": ROWS[:, :39]}
    plain, removed = sp.PCA(4).plan(ROWS), sp.PCA(4, remove=remove).plan(ROWS)
    for one, other in zip(plain.alternatives, removed.alternatives, strict=True):
        assert one["solver"] == other["solver"]
        assert other["flops"] >= one["flops"] + 4.0 * 40 * ROWS.size
        assert other["expected_seconds"] > one["expected_seconds"]


def test_groups_alone_take_flops_that_hardly_depend_on_their_number() -> None:
    few, many = (sp.PCA(4, solver="covariance", remove={"groups": np.arange(1200) % q}).plan(ROWS) for q in (40, 100))
    trend = sp.PCA(4, solver="covariance", remove={"covariates": ROWS[:, :99]}).plan(ROWS)
    assert few.flops < many.flops < trend.flops - 2.0 * 100 * ROWS.size


def test_wide_data_take_the_memory_of_whole_features_and_their_coefficients() -> None:
    rows = np.broadcast_to(np.float32(1), (60, 400_000))  # 92 MiB
    remove = {"groups": np.arange(60) % 6, "trend": 1}
    process = sp.PCA(4, solver="gram").plan(rows).memory["process"]
    memory = process + 280 * 2**20
    plan = sp.PCA(4, remove=remove, memory=memory).plan(rows)
    assert plan.solver == "gram"
    assert plan.memory["removal"] < 2 * 8 * 20 * rows.shape[1]
    with pytest.raises(PlanError, match=r"process itself takes [\d.]+ [MG]iB, the regressions of remove \d+ MiB"):
        sp.PCA(4, remove=remove, memory=process + 80 * 2**20, solver="gram").plan(rows)


def test_more_groups_than_memory_allows_are_named_before_anything_is_read() -> None:
    groups = np.arange(200_000) % 100_000
    with facade.process_of(200 * 2**20), pytest.raises(PlanError, match="fewer groups or covariates in remove"):
        sp.PCA(3, remove={"groups": groups}, memory="1 GiB").plan(np.zeros((200_000, 4), np.float32))


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_panels_of_wide_residuals_are_no_longer_than_blocks(solver: str) -> None:
    rows = facade.Unread((14_600, 64_800), "float32", 100)
    with facade.process_of(200 * 2**20):
        plan = sp.PCA(10, solver=solver, remove={"trend": 1}, memory=2**30).plan(rows)
    panel = plan.rows_per_block * rows.shape[1] * 20
    assert plan.projected_bytes <= 2**30
    assert plan.memory["removal"] < plan.leaves_in_flight * panel + 150 * 2**20


def test_a_process_above_the_ceiling_is_named_once_and_no_advice_is_given() -> None:
    with facade.process_of(600 * 2**20), pytest.raises(PlanError) as refused:
        sp.PCA(3, memory="200MiB").plan(ROWS)
    message = str(refused.value)
    assert "exceeds the allowed 200 MiB; the process itself takes 624 MiB before anything is read" in message
    assert "fewer" not in message
    assert message.count("process itself") == 1
