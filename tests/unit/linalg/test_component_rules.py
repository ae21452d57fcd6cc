"""Rules for the number of components, against scikit-learn and data of known rank."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import decomposition
from sklearn.decomposition._pca import _assess_dimension

from streampca.linalg.component_rules import Eigenvalues, apply_rule, component_rules, sample_of
from streampca.linalg.evidence import log_evidence
from streampca.linalg.random_matrix import edge_of_variances
from streampca.linalg.rule_names import RULES

pytestmark = pytest.mark.numerical


def factor_model(n: int, d: int, k: int, seed: int, strength: float = 3.0) -> np.ndarray:
    """Return rows of `k` factors in noise of variance 1."""
    rng = np.random.default_rng(seed)
    loadings = np.linalg.qr(rng.standard_normal((d, k)))[0] * strength * np.sqrt(1 + np.sqrt(d / n))
    return rng.standard_normal((n, k)) @ loadings.T + rng.standard_normal((n, d)) + 5.0


def rules_of(rows: np.ndarray, n_known: int | None = None, ddof: int = 1):
    n, d = rows.shape
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2 / (n - ddof)
    known = Eigenvalues(values[:n_known], float(values.sum()), n_known is None, 1e-14)
    edge = edge_of_variances(rows.var(axis=0, ddof=ddof), n - 1)
    return component_rules(known, sample_of((n, d), n, ddof, n_means=1, edge=edge))


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


@pytest.mark.parametrize(("n", "d", "k"), [(500, 40, 5), (100, 80, 3), (1000, 10, 9), (50, 50, 2)])
def test_log_evidence_equals_that_of_scikit_learn(n, d, k):
    rows = factor_model(n, d, k, seed=2)
    values = decomposition.PCA().fit(rows).explained_variance_
    values[-1] = max(values[-1], 1e-9)  # of as many rows as features the last is rounding
    expected = np.array([_assess_dimension(values, rank, n) for rank in range(1, d)])
    assert log_evidence(values, n) == pytest.approx(expected, rel=1e-12)


def test_leading_eigenvalues_and_the_trace_give_the_same_as_all():
    rows = factor_model(300, 50, 4, seed=3)
    every, leading = rules_of(rows), rules_of(rows, n_known=8)
    for name in ("parallel", "marchenko_pastur", "tracy_widom"):
        assert leading[name] == every[name]
    for name in ("gavish_donoho", "mle"):
        assert not leading[name].applies
        assert "needs all eigenvalues, of which 8 are known" in leading[name].statement


def test_number_is_a_lower_bound_where_all_known_eigenvalues_pass():
    result = rules_of(factor_model(300, 50, 6, seed=4), n_known=3)["tracy_widom"]
    assert (result.n_components, result.at_least, result.count) == (3, True, "at least 3")


def test_rules_do_not_depend_on_ddof_and_scale():
    rows = factor_model(60, 20, 3, seed=5)
    one, other = rules_of(rows), rules_of(rows, ddof=0)
    assert [rule.n_components for rule in one.values()] == [rule.n_components for rule in other.values()]
    assert other["tracy_widom"].figures["threshold"] == pytest.approx(
        one["tracy_widom"].figures["threshold"] * 59 / 60, rel=1e-5
    )
    large = rules_of(rows * 1e6)
    assert [rule.n_components for rule in one.values()] == [rule.n_components for rule in large.values()]


@pytest.mark.parametrize("exponent", [-480, -30, -26, 26, 480])
def test_rules_do_not_depend_on_the_units_of_the_rows(exponent):
    # Powers of 2, so that all figures differ by powers of 2 and no rounding.
    rows, unit = factor_model(120, 30, 3, seed=5), 2.0**exponent
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2 / 119
    edge = edge_of_variances(rows.var(axis=0, ddof=1), 119)
    one, other = (
        component_rules(
            Eigenvalues(values * factor, float(values.sum()) * factor, True, 1e-14),
            sample_of((120, 30), 120, 1, n_means=1, edge=edge * factor),
        )
        for factor in (1.0, unit**2)
    )
    for name in RULES:
        assert other[name].n_components == one[name].n_components
        assert other[name].figures.keys() == one[name].figures.keys()
    assert one["mle"].n_components == 3
    for figure in ("noise_variance", "threshold"):
        ratio = other["tracy_widom"].figures[figure] / one["tracy_widom"].figures[figure]
        assert ratio / unit**2 == pytest.approx(1, rel=2e-5)  # six digits each
    shift = one["mle"].figures["log_evidence"] - other["mle"].figures["log_evidence"]
    assert shift == pytest.approx(120 * 30 * np.log(unit), rel=1e-4)  # six digits each


def test_rows_of_exact_low_rank_have_that_rank():
    rng = np.random.default_rng(6)
    for unit in (1.0, 1e-8, 1e8):
        rules = rules_of(rng.standard_normal((80, 3)) @ rng.standard_normal((3, 20)) * unit)
        assert [rules[name].n_components for name in RULES[1:]] == [3, 3, 3, None, 3]


def test_evidence_counts_the_degrees_of_freedom_that_removed_means_leave():
    values = np.linalg.eigvalsh(np.cov(factor_model(60, 20, 2, seed=11).T))[::-1]
    known = Eigenvalues(values, float(values.sum()), True, 1e-14)
    fewer = apply_rule("mle", known, sample_of((60, 20), 60, 1, n_means=31))
    evidence = log_evidence(values * 59 / 29, 30)  # as of 30 rows about their mean
    assert fewer.n_components == int(np.argmax(evidence)) + 1
    assert fewer.figures["log_evidence"] == pytest.approx(evidence.max(), rel=1e-5)
    refused = apply_rule("mle", known, sample_of((60, 20), 60, 1, n_means=42))
    assert "found 60 and 20, and 42 means and slopes removed" in refused.statement


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"weight": 99.0}, "rows have weights"),
        ({"n_missing": 3}, "3 values are missing"),
        ({"feature_weight": np.arange(20.0)}, "features have weights"),
        ({"n_constant": 18}, "100 rows of 2 features that vary are too few"),
    ],
)
def test_rule_that_does_not_apply_says_why(asked, reason):
    given = {"weight": 100.0, "ddof": 1, "n_means": 1} | asked
    sample = sample_of((100, 20), **given)
    result = apply_rule("tracy_widom", Eigenvalues(np.ones(20), 20.0, True), sample)
    assert result.n_components is None
    assert result.count == "–"
    assert f"does not apply: {reason}" in result.statement


def test_constant_features_carry_no_noise():
    rows = np.hstack([factor_model(200, 30, 3, seed=7), np.ones((200, 170))])
    values = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
    with_constant = component_rules(
        Eigenvalues(values, values.sum(), True, 1e-14),
        sample_of((200, 200), 200, 1, n_means=1, n_constant=170, edge=edge_of_variances(rows.var(axis=0, ddof=1), 199)),
    )
    plain = rules_of(rows[:, :30])
    assert [rule.n_components for rule in with_constant.values()] == [rule.n_components for rule in plain.values()]


def test_table_prints_every_rule_and_converts_to_plain_data():
    rules = rules_of(factor_model(300, 30, 2, seed=8))
    lines = repr(rules).splitlines()
    assert [line.split()[0] for line in lines] == ["rule", *RULES]
    assert list(rules.to_dict()) == list(RULES)
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
    known = Eigenvalues(np.array([5.0, 1.0, 1.0, 1.0]), 8.0, True)
    weighted = sample_of((100, 4), 100, 1, n_means=1, feature_weight=np.arange(4.0), edge=2.0)
    assert apply_rule("parallel", known, weighted).n_components == 1
    result = apply_rule("parallel", known, sample_of((100, 4), 100, 1, n_means=0))
    assert "rows were not centred" in result.statement
