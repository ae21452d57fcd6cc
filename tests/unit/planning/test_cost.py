"""The expected time of a plan: a pure function of rates, rates that are measured, and the figures of other solvers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import streampca as sp
from streampca.cli import cli
from streampca.formatting import as_seconds
from streampca.planning.cost import Rates, expected_seconds, folded_flops, nominal_rates, probe
from streampca.planning.covariance_accumulators import accumulator_of
from streampca.solvers.fit import Parameters, plan_fit
from streampca.sources import open_source
from streampca.system.process import process_bytes


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


def plan_of(path, **parameters):
    return plan_fit(open_source(path), Parameters(5, memory="2GiB", threads=2, **parameters))


RATES = Rates(read=1e9, read_cpu=0.0, fold=1e11, multiply=5e10, lapack=5e9, merge=1e12, probed=True)


def test_the_slower_of_reading_and_folding_counts_and_the_other_once_for_each_leaf(store):
    plan = plan_of(store(100, 20, (10, 20))).replace(n_blocks=1000, n_leaves=10, leaves_in_flight=2)
    work = plan.replace(n_samples=10**6, n_features=1000, bytes_to_read=4 * 10**9)
    solve = expected_seconds(work.replace(n_samples=0, bytes_to_read=0), RATES)
    # 4 s of reading beside 10 s of products; a hundred blocks in a leaf, of which one is waited for.
    assert expected_seconds(work, RATES) == pytest.approx(solve + 10 + 0.04, rel=0.01)
    slow = replace(RATES, read=1e8)
    assert expected_seconds(work, slow) == pytest.approx(solve + 40 + 0.1, rel=0.01)
    busy = replace(RATES, read_cpu=1e-9)
    assert expected_seconds(work, busy) >= solve + 11.9


def test_one_leaf_more_than_there_are_threads_takes_a_round_more(store):
    plan = plan_of(store(100, 20, (10, 20))).replace(n_samples=10**6, n_features=1000, n_blocks=100, leaves_in_flight=2)
    even, odd = (expected_seconds(plan.replace(n_leaves=leaves), RATES) for leaves in (4, 3))
    assert odd > 1.25 * even


def test_doubling_any_rate_never_makes_it_slower(store):
    plan = plan_of(store(300, 40, (50, 40)))
    for name in ("read", "fold", "multiply", "lapack", "merge"):
        faster = replace(RATES, **{name: 2 * getattr(RATES, name)})
        assert expected_seconds(plan, faster) <= expected_seconds(plan, RATES)


def test_gram_counts_the_side_of_the_samples_and_the_second_reading(store):
    plan = plan_of(store(40, 3000, (40, 500)), solver="gram")
    assert plan.passes == 2
    assert folded_flops(plan) == 40 * 40 * 3000
    more = plan.replace(n_components=40)
    assert expected_seconds(more, RATES) > expected_seconds(plan, RATES)


def test_a_probe_gives_finite_positive_rates_for_one_row_one_block_and_arrays_in_memory():
    for rows in (np.ones((2, 3)), np.random.default_rng(0).standard_normal((5000, 7))):
        source, parameters = open_source(rows), Parameters(1)
        plan = plan_fit(source, parameters)
        rates = probe(source, accumulator_of(parameters, source), plan)
        assert rates.probed
        for name in ("read", "fold", "multiply", "lapack", "merge"):
            assert 0 < getattr(rates, name) < np.inf
        assert 0 < expected_seconds(plan, rates) < 60


def test_plan_tells_time_and_alternatives(store):
    plan = sp.PCA(5).plan(store(300, 1000, (300, 200)))
    assert plan.solver == "gram"
    assert plan.expected_seconds == expected_seconds(plan, nominal_rates(plan))
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
    plan = sp.PCA(5, memory=process_bytes() + 300 * 2**20).plan(path)
    gram = next(other for other in plan.alternatives if other["solver"] == "gram")
    assert not gram["fits"]
    assert "20,000 x 20,000" in gram["why"]
    assert "or           gram: no: projected" in str(plan)


def test_a_probe_from_python_and_from_the_command_line(store, tmp_path):
    path = store(2000, 30, (500, 30))
    assert sp.PCA(5).plan(path, probe=True).expected_by == "probe"
    config = tmp_path / "c.yaml"
    config.write_text(f"source: {{path: {path}}}\nmodel: {{n_components: 5}}\n")
    printed = CliRunner().invoke(cli, ["plan", str(config), "--probe", "--json"], catch_exceptions=False)
    assert json.loads(printed.output)["expected_by"] == "probe"
    assert "by nominal rates" in CliRunner().invoke(cli, ["plan", str(config)], catch_exceptions=False).output


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.94, "9.9 s"), (31, "31 s"), (600, "10 min"), (7200, "2.0 h")]
)
def test_times_for_people(seconds, text):
    assert as_seconds(seconds) == text


def test_a_probe_does_not_read_blocks_that_are_a_good_part_of_the_data(store, monkeypatch):
    monkeypatch.setattr("streampca.solvers.alternatives._MOST_PROBED", 1000)
    path = store(2000, 30, (500, 30))
    assert sp.PCA(5).plan(path, probe=True).expected_by == "nominal rates"
