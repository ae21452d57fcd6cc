"""The time that a plan expects: by nominal rates, and that of other solvers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr
from facade import Source, Unread
from stores import Command

import streampca as sp


@pytest.fixture
def store(tmp_path):
    """Return the path of a store, made from (n_samples, n_features, chunks, dtype)."""

    def make(n, d, chunks, dtype="float32"):
        path = str(tmp_path / f"{n}x{d}.zarr")
        rows = np.random.default_rng(0).standard_normal((n, d), dtype=np.float32)
        rows *= (np.arange(1, d + 1) ** -0.5).astype(np.float32)
        zarr.create_array(path, shape=(n, d), chunks=chunks, dtype=dtype)[:] = (
            rows if np.dtype(dtype).kind == "f" else np.clip(rows * 30 + 100, 0, 255)
        )
        return path

    return make


def seconds_of(source: Source, k: int = 5, **parameters: Any) -> float:
    """Return the seconds that the plan of a fit on two threads expects by nominal rates."""
    planned = sp.PCA(k, memory="64GiB", **parameters).plan(source)
    assert planned.expected_by == "nominal rates"
    return float(planned.expected_seconds)


@pytest.mark.parametrize("solver", ["covariance", "qr", "sketch", "adaptive"])
def test_time_grows_with_rows_features_and_components(solver: str) -> None:
    n, d = 2_000_000, 300
    base, tall = (seconds_of(Unread((rows, d)), solver=solver) for rows in (n, 4 * n))
    assert tall == pytest.approx(4 * base, rel=0.1)
    assert seconds_of(Unread((n, 2 * d)), solver=solver) > 1.9 * base
    assert seconds_of(Unread((n, d)), k=100, solver=solver) >= base


def test_gram_counts_the_side_of_the_samples_and_the_second_reading() -> None:
    plans = [sp.PCA(5, solver="gram").plan(np.broadcast_to(np.float32(1), (n, 30_000))) for n in (40, 80)]
    assert [plan.passes for plan in plans] == [2, 2]
    assert plans[1].bytes_to_read == 2 * plans[0].bytes_to_read == 4 * 40 * 30_000 * 4
    assert plans[1].flops > 2.5 * plans[0].flops
    assert plans[1].expected_seconds > plans[0].expected_seconds


def test_plan_tells_time_and_alternatives(store):
    plan = sp.PCA(5).plan(store(300, 1000, (300, 200)))
    assert plan.solver == "gram"
    assert plan.expected_seconds > 0
    assert plan.expected_by == "nominal rates"
    assert "chosen because there are at most half as many samples as features" in str(plan)
    others = {other["solver"]: other for other in plan.to_dict()["alternatives"]}
    assert others["covariance"]["fits"]
    assert set(others) == {"covariance", "qr", "adaptive", "sketch"}
    assert [name for name, other in others.items() if other["sketch"]] == ["adaptive", "sketch"]
    assert "sketch (approximate): at most 8 passes, " in str(plan)
    assert others["covariance"]["passes"] == 1
    assert others["covariance"]["flops"] > plan.flops
    assert {"projected_bytes", "bytes_to_read", "expected_seconds", "expected_by"} <= set(others["covariance"])
    json.dumps(plan.to_dict())


def test_an_alternative_that_does_not_fit_says_why(store):
    path = store(20_000, 30, (2000, 30), "uint8")
    plan = sp.PCA(5, memory=sp.PCA(5).plan(path).memory["process"] + 276 * 2**20).plan(path)
    gram = next(other for other in plan.alternatives if other["solver"] == "gram")
    assert not gram["fits"]
    assert "20,000 x 20,000" in gram["why"]
    assert "or           gram: no: projected" in str(plan)


@pytest.mark.parametrize(("n_rows", "unit"), [(10**5, "s"), (10**8, "min"), (10**10, "h")])
def test_times_are_told_in_units_for_people(n_rows: int, unit: str) -> None:
    plan = sp.PCA(5, solver="covariance").plan(Unread((n_rows, 300)))
    divisor, digits = {"s": (1, 1), "min": (60, 0), "h": (3600, 1)}[unit]
    assert f"about {plan.expected_seconds / divisor:.{digits}f} {unit} by nominal rates" in str(plan)


def test_a_probe_is_ignored_with_a_warning(store, tmp_path, capsys):
    path = store(200, 30, (50, 30))
    config, command = tmp_path / "c.yaml", Command(capsys)
    config.write_text(f"source: {{path: {path}}}\nmodel: {{n_components: 5}}\n")
    for estimator in (sp.PCA(5), sp.RotatedPCA(sp.PCA(5)), sp.FactorAnalysis(2)):
        with pytest.warns(FutureWarning, match="probe is ignored: .* leave it out") as caught:
            plan = estimator.plan(path, probe=True)
        assert plan.expected_seconds == estimator.plan(path).expected_seconds
        assert caught[0].filename == __file__
    assert "probe is ignored" in command("plan", config, "--probe").err
