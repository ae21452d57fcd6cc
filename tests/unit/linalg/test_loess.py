"""Local regression: against parabolas, numpy's weighted fits, and values of skmisc.loess."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.anndata.genes import fitted_by_loess
from streampca.errors import DataError


def test_a_parabola_is_fitted_exactly() -> None:
    x = np.random.default_rng(0).normal(size=200)
    np.testing.assert_allclose(fitted_by_loess(x, 1 - 2 * x + x**2), 1 - 2 * x + x**2, atol=1e-12)


def test_a_local_fit_is_a_weighted_parabola() -> None:
    rng = np.random.default_rng(1)
    x = np.sort(rng.random(60))
    y = rng.normal(size=60)
    fitted = fitted_by_loess(x, y, 0.5)
    # The cells are divided at their medians, where the fit is that of the nearest half of the points.
    place, distance = x[29], np.abs(x - x[29])
    weight = np.clip(1 - (distance / np.sort(distance)[29]) ** 3, 0, None) ** 1.5
    expected = np.polyfit(x - place, y, 2, w=weight)[-1]
    assert fitted[29] == pytest.approx(expected, abs=1e-12)


def test_ties_are_not_divided() -> None:
    rng = np.random.default_rng(2)
    x = np.repeat(np.arange(40.0), 5)
    y = x + rng.normal(size=200)
    fitted = fitted_by_loess(x, y)
    assert np.ptp(fitted.reshape(40, 5), axis=1).max() == 0
    order = rng.permutation(200)
    np.testing.assert_allclose(fitted_by_loess(x[order], y[order]), fitted[order], atol=1e-10)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(DataError, match="3 in a local fit: expected at least 4"):
        fitted_by_loess(np.arange(10.0), np.arange(10.0))
    with pytest.raises(DataError, match="are all at"):
        fitted_by_loess(np.repeat([0.0, 1.0], [60, 40]), np.zeros(100))
