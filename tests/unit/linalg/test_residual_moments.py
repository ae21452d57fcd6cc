"""Power sums of the eigenvalues that a model leaves out, in the limit of Q that follows from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import streampca as sp
from streampca.errors import NotAvailableError

pytestmark = pytest.mark.numerical


def limit(left: Any, level: float = 0.99) -> float:
    """Return the limit of Jackson and Mudholkar (1979) from all eigenvalues that are left out."""
    one, two, three = (float((left**power).sum()) for power in (1, 2, 3))
    h = 1 - 2 * one * three / (3 * two**2)
    quantile = norm.ppf(level)
    return one * (quantile * np.sqrt(2 * two * h**2) / one + 1 + two * h * (h - 1) / one**2) ** (1 / h)


def rows_of(values: np.ndarray, n: int, seed: int = 0) -> np.ndarray:
    """Return rows whose sample covariance has these eigenvalues."""
    rng = np.random.default_rng(seed)
    left = rng.standard_normal((n, len(values)))
    left = np.linalg.qr(left - left.mean(axis=0))[0]
    return left * np.sqrt((n - 1) * values) @ np.linalg.qr(rng.standard_normal((len(values),) * 2))[0]


def test_moments_of_a_small_matrix_are_exact() -> None:
    values = np.concatenate([[1e4, 1e3, 100, 50], np.linspace(3, 0.1, 56)])
    pca = sp.PCA(4, solver="covariance").fit(rows_of(values, 200))
    assert pca.q_limit(0.99) == pytest.approx(limit(values[4:]), rel=1e-9)


def test_moments_of_a_large_matrix_are_estimated_within_their_error() -> None:
    """Of 1,600 features four eigenpairs are iterated, and traces of powers of the rest are estimated from products with probes."""
    rows = np.random.default_rng(0).standard_normal((150, 1600)) * np.r_[100, 30, 10, 8, np.linspace(2, 0.1, 1596)]
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:-1] ** 2 / 149
    pca = sp.PCA(4, solver="covariance").fit(rows)
    assert pca.error_["eigen_solver"] == "block krylov"
    assert pca.q_limit(0.99) == pytest.approx(limit(values[4:]), rel=0.02)


def test_nothing_left_has_no_limit() -> None:
    pca = sp.PCA(4, solver="covariance").fit(rows_of(np.r_[[4.0, 3, 2, 1], np.zeros(8)], 60))
    with pytest.raises(NotAvailableError, match="carry all variance up to rounding"):
        pca.q_limit(0.99)
