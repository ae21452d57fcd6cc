"""Values whose squares come near the largest float64: right numbers or an error that names them, never a feature without variance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streampca import PCA
from streampca.errors import DataError

pytestmark = pytest.mark.numerical
SCALE = 2.0**498
RNG = np.random.default_rng(0)
ROWS = 3 + RNG.standard_normal((120, 4))
WEIGHTS = np.concatenate([np.full(119, 1e-3), [7e5]])


@pytest.mark.parametrize("solver", ["covariance", "qr", "gram", "sketch", "adaptive"])
@pytest.mark.parametrize("pilot", [0, 1, "auto"])
def test_weighted_moments_near_the_largest_number_are_those_of_scaled_rows(solver: str, pilot: Any) -> None:
    """Σ w x is squared nowhere before it is divided by Σ w; powers of two scale without rounding."""
    parameters: dict[str, Any] = {"solver": solver, "sketch_size": 4, "pilot": pilot, "ddof": 0}
    large = PCA(2, **parameters).fit(ROWS * SCALE, sample_weight=WEIGHTS)
    plain = PCA(2, **parameters).fit(ROWS, sample_weight=WEIGHTS)
    assert large.total_variance_ / SCALE / SCALE == pytest.approx(plain.total_variance_, rel=1e-12)
    np.testing.assert_allclose(large.explained_variance_ / SCALE / SCALE, plain.explained_variance_, rtol=1e-9)


@pytest.mark.parametrize("solver", ["covariance", "sketch"])
def test_pairs_near_the_largest_number_are_those_of_scaled_rows(solver: str) -> None:
    rows = ROWS.copy()
    rows[RNG.random(rows.shape) < 0.1] = np.nan
    rows[-1] = ROWS[-1]
    parameters: dict[str, Any] = {"solver": solver, "missing": "pairwise", "ddof": 0, "sketch_size": 4}
    large = PCA(2, **parameters).fit(rows * SCALE, sample_weight=WEIGHTS)
    plain = PCA(2, **parameters).fit(rows, sample_weight=WEIGHTS)
    assert large.total_variance_ / SCALE / SCALE == pytest.approx(plain.total_variance_, rel=1e-12)


def test_products_of_samples_that_overflow_are_named() -> None:
    with pytest.raises(DataError, match="products of samples overflow float64"):
        PCA(2, solver="gram", center=False).fit(1e158 + (ROWS - 3) * 1e149)  # the variances do not overflow


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
def test_constant_feature_whose_square_overflows_has_z_scores_of_zero(solver: str) -> None:
    """About zero, infinity times its factor of 0 was NaN."""
    rows, plain = ROWS * SCALE, ROWS.copy()
    rows[:, 1], plain[:, 1] = 2.0**525, 2.0**27
    pca = PCA(2, solver=solver, scale=True, center=False)
    expected = PCA(2, solver=solver, scale=True, center=False).fit(plain, sample_weight=WEIGHTS).explained_variance_
    np.testing.assert_allclose(pca.fit(rows, sample_weight=WEIGHTS).explained_variance_, expected, rtol=1e-12)
    with pytest.raises(DataError, match="overflow float64"):
        PCA(2, solver="sketch", sketch_size=4, scale=True, center=False).fit(rows, sample_weight=WEIGHTS)
