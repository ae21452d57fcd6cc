"""Prediction errors of left-out values against regressions of every feature on the others, one at a time."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.accumulators import Covariance
from streampca.errors import DataError
from streampca.linalg.cross_validation import N_GROUPS, GroupScatter, best_count, prediction_errors

pytestmark = pytest.mark.numerical


def divided(n: int) -> list[np.ndarray]:
    return [np.arange(g * n // N_GROUPS, (g + 1) * n // N_GROUPS) for g in range(N_GROUPS)]


def groups_of(rows: np.ndarray) -> list[GroupScatter]:
    covariance, d = Covariance(tile_size=5), rows.shape[1]
    states = [covariance.update(covariance.init(d), rows[group]) for group in divided(len(rows))]
    return [GroupScatter(covariance.grid(d), state.scatter, state.mean, state.weight) for state in states]


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


@pytest.mark.parametrize(("shape", "most"), [((60, 9), 8), ((18, 30), 14)])
@pytest.mark.parametrize("center", [True, False])
def test_errors_equal_those_of_regressions_of_every_feature_on_the_others(shape, most, center):
    rows, factors = factor_model(*shape, 3), np.linspace(0.5, 2.0, shape[1])
    errors = prediction_errors(groups_of(rows), factors, center=center)
    assert len(errors) >= most
    expected = [by_regression(rows, k, factors, center=center) for k in range(most)]
    assert errors[:most] == pytest.approx(expected, rel=1e-9)


def test_rows_of_exact_low_rank_are_predicted_by_as_many_components():
    rng = np.random.default_rng(1)
    errors = prediction_errors(
        groups_of(rng.standard_normal((80, 3)) @ rng.standard_normal((3, 12))), np.ones(12), center=True
    )
    assert (len(errors), best_count(errors)) == (4, 3)
    assert errors[3] < 1e-13 * errors[0]


def test_noise_is_predicted_best_by_no_component():
    errors = prediction_errors(groups_of(factor_model(500, 12, 0)), np.ones(12), center=True)
    assert best_count(errors) == 0
    assert errors[0] == pytest.approx(12.0, rel=0.06)


def test_constant_feature_and_feature_of_its_own_change_nothing():
    rows = factor_model(200, 10, 2)
    plain = prediction_errors(groups_of(rows), np.ones(10), center=True)
    rng = np.random.default_rng(2)
    more = np.hstack([rows, np.full((200, 1), 7.0), 1e8 * rng.standard_normal((200, 1))])
    errors = prediction_errors(groups_of(more), np.append(np.ones(11), 1e-12), center=True)
    assert best_count(errors) == best_count(plain) == 2
    assert np.isfinite(errors).all()


def test_groups_without_weight_do_not_count():
    groups = groups_of(factor_model(70, 6, 2))
    assert len(prediction_errors(groups, np.ones(6), center=True)) == 6
    empty = [GroupScatter(group.grid, 0 * group.tiles, group.mean, 0.0) for group in groups]
    with pytest.raises(DataError, match="at least two groups of consecutive rows: found 1"):
        prediction_errors([groups[0], *empty[1:]], np.ones(6), center=True)
    some = prediction_errors([*groups[:3], *empty[3:]], np.ones(6), center=True)
    assert some == pytest.approx(prediction_errors(groups[:3], np.ones(6), center=True), rel=1e-12)


@pytest.mark.parametrize("exponent", [-480, 480])
def test_errors_have_the_units_of_variances(exponent):
    rows, unit = factor_model(70, 8, 2), 2.0**exponent
    expected = prediction_errors(groups_of(rows), np.ones(8), center=True)
    found = prediction_errors(groups_of(rows * unit), np.ones(8), center=True)
    np.testing.assert_allclose(found / unit / unit, expected, rtol=1e-10)
    assert best_count(found) == best_count(expected)
