"""What the certificates of exact solvers say of rounding, against numpy in float64 and in long double."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streampca as sp

pytestmark = pytest.mark.numerical


def true_residual(pca: sp.PCA, rows: NDArray[Any]) -> float:
    """Return the largest ‖Cv − λv‖ of the components, relative to the first eigenvalue."""
    centred = rows.astype(np.float64)
    centred -= centred.mean(axis=0)
    values, axes = pca.explained_variance_, pca.components_
    images = (centred @ axes.T).T @ centred / (len(rows) - 1)
    return float(np.linalg.norm(images - values[:, None] * axes, axis=1).max() / values[0])


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("decay", "k"), [(0.0, 20), (1.0, None), (3.0, 20), (3.0, None)])
def test_residual_of_gram_is_that_of_its_components(dtype: str, decay: float, k: int | None) -> None:
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((2000, 60)))[0].T
    rows = (rng.standard_normal((60, 60)) * np.arange(1, 61) ** -decay @ axes + 5).astype(dtype)
    pca = sp.PCA(k, solver="gram").fit(rows)
    said, found = pca.error_["eigen_residual"], true_residual(pca, rows)
    rounding = pca.error_["trusted_above"]
    assert found <= said + rounding
    assert said <= 2 * found + rounding


@pytest.mark.parametrize("weighted", [False, True])
def test_gram_of_values_whose_squares_overflow_warns_of_nothing(weighted: bool) -> None:
    """Warnings of numpy are errors in tests."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((30, 40)) + 1e6) * 1e149
    weight = 10.0 ** rng.uniform(0, 6, 30) if weighted else None
    pca = sp.PCA(3, solver="gram").fit(rows, sample_weight=weight)
    expected = sp.PCA(3, solver="gram").fit(rows * 1e-149, sample_weight=weight)
    np.testing.assert_allclose(pca.explained_variance_ * 1e-298, expected.explained_variance_, rtol=1e-9)
