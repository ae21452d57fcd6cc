"""Rules for the number of components, against scikit-learn and data of known rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import decomposition
from sklearn.decomposition._pca import _assess_dimension

import streampca as sp
from streampca.errors import NotAvailableError

pytestmark = pytest.mark.numerical

RULES = ["parallel", "marchenko_pastur", "tracy_widom", "gavish_donoho", "cross_validation", "mle"]


def factor_model(n: int, d: int, k: int, seed: int, strength: float = 3.0) -> np.ndarray:
    """Return rows of `k` factors in noise of variance 1."""
    rng = np.random.default_rng(seed)
    loadings = np.linalg.qr(rng.standard_normal((d, k)))[0] * strength * np.sqrt(1 + np.sqrt(d / n))
    return rng.standard_normal((n, k)) @ loadings.T + rng.standard_normal((n, d)) + 5.0


def rules_of(rows: np.ndarray, k: int | None = None, weights: Any = None, **parameters: Any) -> Any:
    """Return the rules of a fit."""
    return sp.PCA(k, **{"solver": "covariance", **parameters}).fit(rows, sample_weight=weights).component_rules_


def numbers(rules: Any) -> list[int | None]:
    """Return the numbers by all rules, in their order."""
    return [rules[name].n_components for name in RULES]


@pytest.mark.parametrize("shape", [(600, 40), (150, 100), (60, 400)])
def test_rules_find_the_rank_of_a_factor_model(shape):
    rules = rules_of(factor_model(*shape, 4, seed=0))
    for name in ("parallel", "tracy_widom", "gavish_donoho"):
        assert rules[name].n_components == 4
        assert rules[name].applies
    assert rules["marchenko_pastur"].n_components in (4, 5)
    assert rules["tracy_widom"].figures["noise_variance"] == pytest.approx(1.0, rel=0.06)
    assert rules["tracy_widom"].figures["p_value"] > 0.01
    assert rules["mle"].n_components == (4 if shape[0] >= shape[1] else None)


def test_rules_find_nothing_in_noise():
    rules = rules_of(np.random.default_rng(1).standard_normal((400, 60)))
    assert [rules[name].n_components for name in ("tracy_widom", "gavish_donoho")] == [0, 0]
    assert rules["parallel"].n_components in (0, 1)  # the edge has no margin


@pytest.mark.parametrize(("n", "d", "k"), [(500, 40, 5), (100, 80, 3), (1000, 10, 9), (50, 49, 2)])
def test_log_evidence_equals_that_of_scikit_learn(n, d, k):
    rows = factor_model(n, d, k, seed=2)
    values = decomposition.PCA().fit(rows).explained_variance_
    expected = np.array([_assess_dimension(values, rank, n) for rank in range(1, d)])
    found = rules_of(rows)["mle"]
    assert found.n_components == np.argmax(expected) + 1
    assert found.figures["log_evidence"] == pytest.approx(expected.max(), rel=1e-5)  # six digits


def test_noise_variance_is_less_biased_than_the_residual_trace():
    n, p, k, rng = 200, 100, 5, np.random.default_rng(2)
    estimates, plain = [], []
    for _ in range(20):
        axes = np.linalg.qr(rng.standard_normal((p, k)))[0]
        rows = rng.standard_normal((n, k)) * 4 @ axes.T + rng.standard_normal((n, p))
        pca = sp.PCA(solver="covariance").fit(rows)
        rule = pca.component_rules_["tracy_widom"]
        assert rule.n_components == k
        estimates.append(rule.figures["noise_variance"])
        plain.append(pca.explained_variance_[k:].sum() / (p - k))
    assert np.mean(estimates) == pytest.approx(1.0, abs=0.01)
    assert np.mean(plain) < 0.98


def test_leading_eigenvalues_and_the_trace_give_the_same_as_all():
    rows = factor_model(200, 1600, 4, seed=3)
    every, leading = rules_of(rows, solver="gram"), rules_of(rows, 8)
    for name in ("parallel", "marchenko_pastur", "tracy_widom"):
        assert leading[name].n_components == every[name].n_components
        assert leading[name].figures == pytest.approx(every[name].figures, rel=2e-5)
    assert not leading["gavish_donoho"].applies
    assert "needs all eigenvalues, but only 8 are known" in leading["gavish_donoho"].statement


def test_number_is_a_lower_bound_where_all_known_eigenvalues_pass():
    result = rules_of(factor_model(200, 1600, 6, seed=4), 3)["tracy_widom"]
    assert (result.n_components, result.at_least, result.count) == (3, True, "at least 3")


def test_rules_do_not_depend_on_ddof_and_scale():
    rows = factor_model(60, 20, 3, seed=5)
    one, other = rules_of(rows), rules_of(rows, ddof=0)
    assert numbers(one) == numbers(other) == numbers(rules_of(rows * 1e6))
    assert other["tracy_widom"].figures["threshold"] == pytest.approx(
        one["tracy_widom"].figures["threshold"] * 59 / 60, rel=1e-5
    )


@pytest.mark.parametrize("exponent", [-480, -30, 26, 480])
def test_rules_do_not_depend_on_the_units_of_the_rows(exponent):
    rows, unit = factor_model(120, 30, 3, seed=5), 2.0**exponent
    one, other = rules_of(rows), rules_of(rows * unit)
    assert numbers(other) == numbers(one)
    for name in RULES:
        assert other[name].figures.keys() == one[name].figures.keys()
    assert one["mle"].n_components == 3
    for figure in ("noise_variance", "threshold"):
        ratio = other["tracy_widom"].figures[figure] / unit / unit / one["tracy_widom"].figures[figure]
        assert ratio == pytest.approx(1, rel=2e-5)  # six digits each
    shift = one["mle"].figures["log_evidence"] - other["mle"].figures["log_evidence"]
    assert shift == pytest.approx(120 * 30 * np.log(unit), rel=1e-4)  # six digits each


def test_rows_of_exact_low_rank_have_that_rank():
    rng = np.random.default_rng(6)
    for unit in (1.0, 1e-8, 1e8):
        rules = rules_of(rng.standard_normal((80, 3)) @ rng.standard_normal((3, 20)) * unit)
        assert numbers(rules)[1:] == [3, 3, 3, None, 3]


def test_evidence_counts_the_degrees_of_freedom_that_removed_means_leave():
    rows, groups = factor_model(60, 20, 2, seed=11), np.arange(60) % 31
    left = rows - np.array([rows[groups == g].mean(axis=0) for g in groups])
    values = np.linalg.svd(left, compute_uv=False) ** 2 / 29
    expected = [_assess_dimension(values, rank, 30) for rank in range(1, 20)]  # as of 30 rows about their mean
    found = rules_of(rows, remove={"groups": groups})["mle"]
    assert found.n_components == np.argmax(expected) + 1
    assert found.figures["log_evidence"] == pytest.approx(max(expected), rel=1e-5)
    refused = rules_of(rows, remove={"groups": np.arange(60) % 42})["mle"]
    assert "found 60 and 20, and 42 means (and slopes) removed" in refused.statement


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"weights": np.linspace(0.5, 2.5, 100)}, "rows have weights"),
        ({"weights": np.linspace(0.5, 1.5, 100)}, "rows have weights"),
        ({"weights": np.linspace(0.5, 1.5, 100), "solver": "gram"}, "rows have weights"),
        ({"weights": np.linspace(0.5, 1.5, 100), "solver": "qr"}, "rows have weights"),
        ({"weights": np.linspace(0.5, 1.5, 100), "solver": "sketch"}, "rows have weights"),
        ({"missing": "mean"}, "3 values are missing"),
        ({"feature_weight": np.arange(20.0)}, "features have weights"),
        ({"n_constant": 18}, "100 rows of 2 features that vary are too few"),
    ],
)
def test_rule_that_does_not_apply_says_why(asked, reason):
    rows = np.random.default_rng(0).standard_normal((100, 20))
    rows[:, : asked.pop("n_constant", 0)] = 1.0
    if "missing" in asked:
        rows[[3, 5, 7], 2] = np.nan
    result = rules_of(rows, **asked)["tracy_widom"]
    assert result.n_components is None
    assert result.count == "–"
    assert f"does not apply: {reason}" in result.statement


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
def test_number_by_a_rule_is_refused_for_weights_whose_sum_is_the_number_of_rows(solver):
    rows = factor_model(100, 20, 2, seed=13)
    with pytest.raises(NotAvailableError, match="rows have weights"):
        sp.PCA("tracy_widom", solver=solver).fit(rows, sample_weight=np.linspace(0.5, 1.5, 100))
    plain = sp.PCA("tracy_widom", solver=solver).fit(rows)
    assert (
        sp.PCA("tracy_widom", solver=solver).fit(rows, sample_weight=np.ones(100)).n_components_ == plain.n_components_
    )


@pytest.mark.parametrize("solver", ["covariance", "qr"])
def test_weights_of_parts_whose_sum_is_the_number_of_rows_are_weights(solver, tmp_path):
    rows, pca = factor_model(100, 20, 2, seed=13), sp.PCA(solver=solver)
    for part in np.split(np.arange(100), 4):
        pca.partial_fit(rows[part], sample_weight=np.linspace(0.5, 1.5, 25))
    pca.save(tmp_path / "model", state=True)
    again = sp.load(tmp_path / "model").partial_fit(rows)
    assert "rows have weights" in pca.component_rules_["tracy_widom"].statement
    assert "rows have weights" in again.component_rules_["tracy_widom"].statement


def test_constant_features_carry_no_noise():
    rows = np.hstack([factor_model(200, 30, 3, seed=7), np.ones((200, 170))])
    assert numbers(rules_of(rows)) == numbers(rules_of(rows[:, :30]))


def test_table_prints_every_rule_and_converts_to_plain_data():
    rules = rules_of(factor_model(300, 30, 2, seed=8))
    lines = repr(rules).splitlines()
    assert [line.split()[0] for line in lines] == ["rule", *RULES]
    assert list(rules.to_dict()) == RULES
    with pytest.raises(KeyError, match="expected one of parallel"):
        rules["kaiser"]


def test_parallel_analysis_ignores_noise_whose_variance_differs_between_features():
    rng = np.random.default_rng(9)
    rows = factor_model(500, 60, 3, seed=10, strength=0.0) * rng.uniform(0.3, 3.0, 60)
    loadings = np.linalg.qr(rng.standard_normal((60, 3)))[0] * 8
    rows += rng.standard_normal((500, 3)) @ loadings.T
    rules = rules_of(rows)
    assert rules["parallel"].n_components == 3
    assert rules["tracy_widom"].n_components > 3


def test_parallel_analysis_applies_to_features_with_weights_and_not_to_rows_about_zero():
    rows = factor_model(300, 20, 1, seed=12)
    assert rules_of(rows, feature_weight=np.linspace(0.5, 2, 20))["parallel"].n_components == 1
    assert "rows were not centred" in rules_of(rows, center=False)["parallel"].statement
