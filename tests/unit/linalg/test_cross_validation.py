"""Prediction errors of left-out values against regressions of every feature on the others, one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streampca as sp
from streampca.errors import DataError

pytestmark = pytest.mark.numerical

N_GROUPS = 7


def divided(n: int) -> list[np.ndarray]:
    return [np.arange(g * n // N_GROUPS, (g + 1) * n // N_GROUPS) for g in range(N_GROUPS)]


def cross_validated(rows: np.ndarray, weights: np.ndarray | None = None, **parameters: Any) -> tuple[int, float]:
    """Return the number of components that a fit takes, and its error relative to that of none."""
    made = {"solver": "covariance", **parameters}
    pca = sp.PCA("cross_validation", **made).fit(rows, sample_weight=weights)
    rule = pca.component_rules_["cross_validation"]
    assert pca.n_components_ == max(1, rule.n_components)
    return rule.n_components, rule.figures["error"]


def by_regression(rows: np.ndarray, k: int, factors: np.ndarray, *, center: bool) -> float:
    """Return the mean squared error of the conditional means under probabilistic PCA with `k` components."""
    (n, d), total = rows.shape, 0.0
    for left_out in divided(n):
        others = np.setdiff1d(np.arange(n), left_out)
        mean = rows[others].mean(axis=0) if center else 0.0
        values, vectors = np.linalg.eigh((z := (rows[others] - mean) * factors).T @ z / len(others))
        noise, signal = values[: d - k].mean(), slice(d - k, d)
        model = (vectors[:, signal] * (values[signal] - noise)) @ vectors[:, signal].T + noise * np.eye(d)
        tested = (rows[left_out] - mean) * factors
        for j in range(d):
            rest = np.arange(d) != j
            slopes = np.linalg.solve(model[np.ix_(rest, rest)], model[rest, j])
            total += float(np.square(tested[:, j] - tested[:, rest] @ slopes).sum())
    return total / n


def factor_model(n: int, d: int, k: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 2 * rng.standard_normal((n, k)) @ rng.standard_normal((k, d)) + rng.standard_normal((n, d)) + 3.0


@pytest.mark.parametrize(("shape", "most"), [((60, 9), 9), ((18, 30), 14)])
@pytest.mark.parametrize("center", [True, False])
def test_errors_equal_those_of_regressions_of_every_feature_on_the_others(shape, most, center):
    rows, factors = factor_model(*shape, 3), np.linspace(0.5, 2.0, shape[1])
    expected = np.array([by_regression(rows, k, factors, center=center) for k in range(most)])
    found, error = cross_validated(rows, feature_weight=factors**2, center=center)
    assert found == np.argmin(expected)
    assert error == pytest.approx(expected.min() / expected[0], rel=1e-5)  # six digits


def test_rows_of_exact_low_rank_are_predicted_by_as_many_components():
    rng = np.random.default_rng(1)
    found, error = cross_validated(rng.standard_normal((80, 3)) @ rng.standard_normal((3, 12)))
    assert found == 3
    assert error < 1e-13


def test_noise_is_predicted_best_by_no_component():
    assert cross_validated(factor_model(500, 12, 0)) == (0, 1.0)


def test_constant_feature_and_feature_of_its_own_change_nothing():
    rows = factor_model(200, 10, 2)
    rng = np.random.default_rng(2)
    more = np.hstack([rows, np.full((200, 1), 7.0), 1e8 * rng.standard_normal((200, 1))])
    found, error = cross_validated(more, feature_weight=np.append(np.ones(11), 1e-24))
    assert found == cross_validated(rows)[0] == 2
    assert np.isfinite(error)


def test_groups_without_weight_do_not_count():
    rows = factor_model(70, 6, 2)
    with pytest.raises(DataError, match="at least two groups of consecutive rows: found 1"):
        cross_validated(rows, np.arange(70) < 10)
    changed = rows.copy()
    changed[40:] = 99.0
    some = np.arange(70) < 40
    assert cross_validated(rows, some) == cross_validated(changed, some)


@pytest.mark.parametrize("exponent", [-480, 480])
def test_numbers_and_errors_do_not_depend_on_units(exponent):
    rows = factor_model(70, 8, 2)
    found, expected = cross_validated(rows * 2.0**exponent), cross_validated(rows)
    assert found[0] == expected[0]
    assert found[1] == pytest.approx(expected[1], rel=2e-5)
