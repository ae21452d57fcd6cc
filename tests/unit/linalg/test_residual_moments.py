"""Power sums of the eigenvalues that a model leaves out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from streampca.linalg import residual_moments
from streampca.linalg.eigen import Spectrum, SymmetricOperator
from streampca.linalg.residual_moments import moments_of_values, with_moments, with_moments_of_pairs
from streampca.linalg.tiles import TileGrid

pytestmark = pytest.mark.numerical

D, K = 60, 4


def operator(values: np.ndarray) -> tuple[SymmetricOperator, Spectrum]:
    """Return a matrix with these eigenvalues, largest first, and its first pairs."""
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((len(values), len(values))))[0]
    matrix = (vectors * values) @ vectors.T
    ones, zeros = np.ones(len(values)), np.zeros(len(values))
    grid = TileGrid(len(values), len(values))
    made = SymmetricOperator(
        grid, matrix.ravel(), ones, None, 1.0, zeros, matrix.diagonal().copy(), 10 * len(values), 1
    )
    return made, Spectrum(values[:K], vectors[:, :K].T.copy(), float(values.sum()), 0.0, K, "lapack")


def test_moments_of_a_small_matrix_are_exact() -> None:
    values = np.concatenate([[1e4, 1e3, 100, 50], np.linspace(3, 0.1, D - K)])
    matrix, spectrum = operator(values)
    expected = moments_of_values(values[K:])
    np.testing.assert_allclose(with_moments(spectrum, matrix, 0).residual_moments, expected, rtol=1e-9)


def test_moments_of_a_large_matrix_are_estimated_within_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_moments, "DENSE_LIMIT", 10)
    values = np.concatenate([[1e4, 1e3, 100, 50], np.linspace(3, 0.1, D - K)])
    matrix, spectrum = operator(values)
    two, three = with_moments(spectrum, matrix, 0).residual_moments
    left, n_probes = values[K:], 64
    exact = moments_of_values(left)
    for estimate, wanted, power in ((two, exact[0], 2), (three, exact[1], 3)):
        deviation = np.sqrt(2 * (left ** (2 * power)).sum() / n_probes) / (left**power).sum()
        assert abs(estimate / wanted - 1) < 4 * deviation


def test_estimates_are_not_below_those_of_equal_eigenvalues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_moments, "DENSE_LIMIT", 10)
    matrix, spectrum = operator(np.concatenate([[1e4, 1e3, 100, 50], np.ones(D - K)]))
    estimates = np.array([with_moments(spectrum, matrix, seed).residual_moments for seed in range(8)])
    assert (estimates >= np.array([1, 1 - 1e-12]) / (D - K) ** np.array([1, 2])).all()


def test_eigenvalues_below_zero_count_in_the_moments_of_pairwise_covariances() -> None:
    values = np.concatenate([[9.0, 8, 7, 6], np.linspace(1, -0.1, D - K)])
    matrix, spectrum = operator(values)
    left, clipped = values[K:], -values[values < 0].sum()
    positive = replace(spectrum, total=float(values[values > 0].sum()))
    found = with_moments_of_pairs(positive, matrix, clipped, 0.0).residual_moments
    np.testing.assert_allclose(found, [(left**2).sum() / left.sum() ** 2], rtol=1e-9)
    least = with_moments_of_pairs(positive, matrix, clipped, 10.0).residual_moments  # with all of it taken for noise
    np.testing.assert_allclose(least, [1 / len(left)], rtol=1e-9)


def test_nothing_left_has_no_moments() -> None:
    matrix, spectrum = operator(np.concatenate([[4.0, 3, 2, 1], np.zeros(D - K)]))
    assert with_moments(spectrum, matrix, 0).residual_moments == ()
