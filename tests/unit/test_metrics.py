"""Distances between decompositions by axis, and bounds of what a change of the features does to the eigenvalues."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from facade import fold
from numpy.typing import NDArray

import streampca as sp
from streampca.accumulators import Covariance
from streampca.errors import ParameterError
from streampca.metrics import Norm
from streampca.transforms import Grouping

FloatArray = NDArray[np.float64]


def rows_of(seed: int, n: int = 40, d: int = 7) -> FloatArray:
    """Return rows of features of different scales, of which some are nearly, and two exactly, the same."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) * 10.0 ** rng.uniform(-2, 2, d)
    rows[:, 1] = rows[:, 0] + 1e-3 * rows[:, 1]
    rows[:, 3] = rows[:, 2]
    return np.asarray(rows - rows.mean(axis=0))


def change(rows: FloatArray, changed: FloatArray) -> float:
    """Return the largest change of an eigenvalue of the covariance (divisor n)."""
    both = (np.linalg.eigvalsh(x @ x.T)[::-1] / len(rows) for x in (rows, changed))
    return float(np.abs(np.subtract(*both)).max())


def sizes(matrix: FloatArray) -> dict[Norm, float]:
    """Return the norms of `matrix` by the names that the bounds give them."""
    return {"frobenius": float(np.linalg.norm(matrix, "fro")), "spectral": float(np.linalg.norm(matrix, 2))}


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_of_replacements_holds_and_is_the_published_one(seed: int) -> None:
    rows = rows_of(seed)
    n, d = rows.shape
    rng = np.random.default_rng(seed)
    covariance = rows.T @ rows / n
    for n_replaced in (1, 1, 3):
        features = rng.permutation(d)[:n_replaced]
        others = rng.integers(0, d, n_replaced)
        changed = rows.copy()
        changed[:, features] = rows[:, others]
        gram = (rows @ rows.T - changed @ changed.T) / n
        rounding = 1e-13 * np.trace(covariance)
        for norm, size in sizes(gram).items():
            bound = sp.metrics.replacement_bound(covariance, features, others, norm)
            assert change(rows, changed) <= bound + rounding
            assert bound == pytest.approx(size, rel=1e-6, abs=1e-6 * np.trace(covariance))
        if n_replaced == 1:
            a, b = int(features[0]), int(others[0])
            squares = covariance[a, a] ** 2 + covariance[b, b] ** 2 - 2 * covariance[a, b] ** 2
            expected = np.sqrt(max(squares, 0.0))
            bound = sp.metrics.replacement_bound(covariance, a, b)
            assert bound == pytest.approx(expected, rel=1e-6, abs=1e-6 * np.trace(covariance))


def test_the_bounds_of_a_known_replacement() -> None:
    """C = [[1, r], [r, 1]]: ‖D‖_F = √(2 − 2r²), and the eigenvalues of D are ± √(1 − r²); the means of both lose (1 − r) / 2."""
    for r in (0.0, 0.5, 0.99):
        covariance = np.array([[1, r], [r, 1]])
        assert sp.metrics.replacement_bound(covariance, 0, 1) == pytest.approx(np.sqrt(2 - 2 * r * r), rel=1e-12)
        assert sp.metrics.replacement_bound(covariance, 0, 1, "spectral") == pytest.approx(np.sqrt(1 - r * r))
        for norm in sizes(covariance):
            assert sp.metrics.grouping_bound(covariance, [5, 5], norm) == pytest.approx(1 - r)


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_of_groups_holds_and_is_the_norm_of_the_change(seed: int) -> None:
    rows = rows_of(seed)
    n, d = rows.shape
    covariance = rows.T @ rows / n
    groups = np.random.default_rng(seed).integers(0, 4, d)
    projection = np.zeros((d, d))
    for group in np.unique(groups):
        here = groups == group
        projection += np.outer(here, here) / here.sum()
    gram = (rows @ rows.T - rows @ projection @ rows.T) / n
    for norm, size in sizes(gram).items():
        bound = sp.metrics.grouping_bound(covariance, groups, norm)
        assert change(rows, rows @ projection) <= bound
        assert bound == pytest.approx(size, rel=1e-9)


def test_the_bounds_take_the_accumulated_covariance() -> None:
    rows = rows_of(0)
    accumulator = Covariance()
    state = fold(accumulator, rows, [17, len(rows) - 17])
    accumulated = accumulator.finalize(state).dense()
    covariance = rows.T @ rows / (len(rows) - 1)
    groups = [0, 0, 1, 1, 2, 3, 2]
    for found in (accumulated, sp.PCA().fit(rows).get_covariance()):
        bounds = sp.metrics.replacement_bound(found, 4, 5), sp.metrics.grouping_bound(found, groups)
        assert bounds[0] == pytest.approx(sp.metrics.replacement_bound(covariance, 4, 5), rel=1e-10)
        assert bounds[1] == pytest.approx(sp.metrics.grouping_bound(covariance, groups), rel=1e-10)


def test_groups_by_correlation_lose_less_than_runs_of_shuffled_features() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((500, 5))
    order = rng.permutation(60)
    rows = (np.repeat(hidden, 12, axis=1) + 0.1 * rng.standard_normal((500, 60)))[:, order]
    covariance = np.cov(rows, rowvar=False)
    grouping = Grouping.by_correlation(covariance, 5)
    for group in range(5):
        assert len(np.unique(order[grouping.groups() == group] // 12)) == 1
    own, runs = (sp.metrics.grouping_bound(covariance, g.groups()) for g in (grouping, Grouping(60, 5)))
    assert own < 0.1 < 10 < runs
    exact = np.linalg.eigvalsh(covariance)[::-1][:5]
    grouped = np.linalg.eigvalsh(np.cov(grouping.transform(rows), rowvar=False))[::-1][:5]
    assert np.abs(exact - grouped).max() <= own


def test_similarities_and_differences_are_given_by_axis() -> None:
    v = np.eye(3)
    w = np.array([[-2.0, 0, 0], [0, 1, 1], [0, 0, 0]])
    np.testing.assert_allclose(sp.metrics.similarities(v, w), [1, np.sqrt(0.5), 0])
    assert sp.metrics.similarity(v, w) == pytest.approx((1 + np.sqrt(0.5)) / 3)
    np.testing.assert_allclose(sp.metrics.relative_differences([4, 2, 1], [5, 1, 1]), [0.25, 0.5, 0])
    assert sp.metrics.relative_difference([4, 2, 1], [5, 1, 1]) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 3)), 0, 1), "square"),
        ((np.array([[1.0, 2], [0, 1]]), 0, 1), "symmetric"),
        ((np.eye(2), 0, 2), "from 0 to 1"),
        ((np.eye(2), [0, 0], [1, 1]), "replaced once"),
        ((np.eye(2), [0, 1], [1]), "as many of each"),
        ((np.eye(2), 0, 1, "nuclear"), "frobenius, spectral"),
    ],
)
def test_replacements_that_cannot_be_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        sp.metrics.replacement_bound(*arguments)
    with pytest.raises(ParameterError, match="one group for each"):
        sp.metrics.grouping_bound(np.eye(3), [0, 1])


@pytest.mark.parametrize("exponent", [-600, 0, 600])
def test_the_bounds_scale_with_the_covariance(exponent: int) -> None:
    factor = 2.0**exponent
    covariance = np.cov(np.random.default_rng(0).normal(size=(6, 30)))
    for norm in ("frobenius", "spectral"):
        replaced = sp.metrics.replacement_bound(covariance, 4, 5, norm)
        grouped = sp.metrics.grouping_bound(covariance, [0, 0, 1, 1, 1, 2], norm)
        assert sp.metrics.replacement_bound(covariance * factor, 4, 5, norm) == replaced * factor
        assert sp.metrics.grouping_bound(covariance * factor, [0, 0, 1, 1, 1, 2], norm) == grouped * factor
