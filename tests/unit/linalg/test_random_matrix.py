"""Laws of the eigenvalues of noise, against published values and simulated noise."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.linalg.random_matrix import edge_of_variances, largest_noise, optimal_threshold, tracy_widom

pytestmark = pytest.mark.numerical


@pytest.mark.parametrize(
    ("quantile", "probability"), [(-1.26857, 0.5), (0.45014, 0.9), (0.97931, 0.95), (2.02345, 0.99), (2.42232, 0.995)]
)
def test_tracy_widom_law_has_the_tabulated_quantiles(quantile, probability):
    # Bejan (2005), table 2, and Johnstone (2001), table 1.
    assert tracy_widom(quantile) == pytest.approx(probability, abs=4e-6)


@pytest.mark.parametrize(("ratio", "omega"), [(1.0, 2.8582), (0.5, 2.1711), (0.1, 1.6089), (0.05, 1.5194)])
def test_optimal_threshold_has_the_published_values(ratio, omega):
    # Gavish & Donoho (2014), table IV, of four decimals that a coarser quadrature gave.
    assert optimal_threshold(ratio) == pytest.approx(omega, abs=3e-4)


def test_optimal_threshold_is_near_the_published_polynomial():
    ratios = np.linspace(0.001, 1, 12)
    polynomial = 0.56 * ratios**3 - 0.95 * ratios**2 + 1.82 * ratios + 1.43
    assert np.abs(polynomial - [optimal_threshold(ratio) for ratio in ratios]).max() < 0.02


def test_largest_eigenvalue_of_noise_follows_the_law_of_its_centre_and_scale():
    n, p, rng = 100, 20, np.random.default_rng(1)
    centre, scale = largest_noise(n, p)
    largest = [np.linalg.norm(rng.standard_normal((n, p)), 2) ** 2 / n for _ in range(1000)]
    for quantile, probability in ((-1.26857, 0.5), (0.97931, 0.95)):
        below = np.mean((np.array(largest) - centre) / scale <= quantile)
        assert below == pytest.approx(probability, abs=3.5 * np.sqrt(probability * (1 - probability) / 1000) + 0.01)


def test_edge_of_equal_variances_is_that_of_marchenko_and_pastur():
    assert edge_of_variances(np.r_[np.full(30, 2.0), 0.0, 0.0], 100) == pytest.approx(
        2 * (1 + np.sqrt(0.3)) ** 2, rel=1e-12
    )
    assert edge_of_variances(np.full(300, 0.5), 100) == pytest.approx((1 + np.sqrt(3.0)) ** 2 / 2, rel=1e-12)
    assert edge_of_variances(np.zeros(3), 100) == 0


@pytest.mark.parametrize(("n", "d"), [(800, 160), (200, 600)])
def test_edge_of_variances_is_the_largest_eigenvalue_after_random_sign_flips(n, d):
    # Hong, Sheng & Dobriban (2020): the threshold of parallel analysis by sign flips.
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((n, d)) * np.sqrt(rng.uniform(0.2, 3.0, d))
    rows -= rows.mean(axis=0)
    flipped = [np.linalg.norm(rows * rng.choice([-1.0, 1.0], (n, d)), 2) ** 2 / n for _ in range(5)]
    edge = edge_of_variances(np.square(rows).mean(axis=0), n)
    assert np.mean(flipped) == pytest.approx(edge, rel=0.04)
