"""Laws of the eigenvalues of noise, against published values and simulated noise."""

from __future__ import annotations

import numpy as np
import pytest

from streampca.linalg.random_matrix import (
    TRACY_WIDOM_99,
    edge_of_variances,
    largest_noise,
    median,
    noise_variance,
    optimal_threshold,
    tracy_widom,
    upper_edge,
)

pytestmark = pytest.mark.numerical


@pytest.mark.parametrize(
    ("quantile", "probability"), [(-1.26857, 0.5), (0.45014, 0.9), (0.97931, 0.95), (2.02345, 0.99), (2.42232, 0.995)]
)
def test_tracy_widom_law_has_the_tabulated_quantiles(quantile, probability):
    # Bejan (2005), table 2, and Johnstone (2001), table 1.
    assert tracy_widom(quantile) == pytest.approx(probability, abs=4e-6)
    assert tracy_widom(TRACY_WIDOM_99) == pytest.approx(0.99, abs=1e-12)


@pytest.mark.parametrize(("ratio", "omega"), [(1.0, 2.8582), (0.5, 2.1711), (0.1, 1.6089), (0.05, 1.5194)])
def test_optimal_threshold_has_the_published_values(ratio, omega):
    # Gavish & Donoho (2014), table IV, of four decimals that a coarser quadrature gave.
    assert optimal_threshold(ratio) == pytest.approx(omega, abs=3e-4)


def test_optimal_threshold_is_near_the_published_polynomial():
    ratios = np.linspace(0.001, 1, 12)
    polynomial = 0.56 * ratios**3 - 0.95 * ratios**2 + 1.82 * ratios + 1.43
    assert np.abs(polynomial - [optimal_threshold(ratio) for ratio in ratios]).max() < 0.02


@pytest.mark.parametrize("ratio", [0.2, 1.0])
def test_median_and_edge_are_those_of_simulated_noise(ratio):
    n = 800
    p = int(ratio * n)
    noise = np.random.default_rng(0).standard_normal((n, p))
    values = np.linalg.eigvalsh(noise.T @ noise / n)
    assert np.median(values) == pytest.approx(median(ratio), rel=0.01)
    assert values[-1] == pytest.approx(upper_edge(ratio), rel=0.05)


def test_largest_eigenvalue_of_noise_follows_the_law_of_its_centre_and_scale():
    n, p, rng = 100, 20, np.random.default_rng(1)
    centre, scale = largest_noise(n, p)
    largest = [np.linalg.norm(rng.standard_normal((n, p)), 2) ** 2 / n for _ in range(2000)]
    for quantile, probability in ((-1.26857, 0.5), (0.97931, 0.95)):
        below = np.mean((np.array(largest) - centre) / scale <= quantile)
        assert below == pytest.approx(probability, abs=3.5 * np.sqrt(probability * (1 - probability) / 2000) + 0.01)


def test_noise_variance_is_less_biased_than_the_residual_trace():
    n, p, k, rng = 200, 100, 5, np.random.default_rng(2)
    estimates, plain = [], []
    for _ in range(20):
        rows = rng.standard_normal((n, k)) * 4 @ np.linalg.qr(rng.standard_normal((p, k)))[0].T + rng.standard_normal(
            (n, p)
        )
        values = np.linalg.eigvalsh(rows.T @ rows / n)[::-1]
        estimates.append(noise_variance(values[:k], values.sum(), n, p))
        plain.append(values[k:].sum() / (p - k))
    assert np.mean(estimates) == pytest.approx(1.0, abs=0.005)
    assert np.mean(plain) < 0.98


def test_edge_of_equal_variances_is_that_of_marchenko_and_pastur():
    assert edge_of_variances(np.r_[np.full(30, 2.0), 0.0, 0.0], 100) == pytest.approx(2 * upper_edge(0.3), rel=1e-12)
    assert edge_of_variances(np.full(300, 0.5), 100) == pytest.approx(upper_edge(3.0) / 2, rel=1e-12)
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
