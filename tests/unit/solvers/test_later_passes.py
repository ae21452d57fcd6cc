"""Later passes of an approximate answer, of data whose variances have squares outside of the range of their type."""

from __future__ import annotations

import numpy as np
import pytest

from streampca import PCA

pytestmark = pytest.mark.numerical


@pytest.mark.parametrize("solver", ["adaptive", "sketch"])
@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [("float64", 272), ("float64", -272), ("float32", 60), ("float32", -60), ("float32", 100)],
    ids=str,
)
def test_a_later_pass_of_rows_of_any_size_gives_the_same_certificate(solver: str, dtype: str, exponent: int) -> None:
    """Products of held-out columns, of the size of variances, were multiplied with the matrix again: they overflowed."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((300, 70)) * np.arange(1, 71) ** -0.5).astype(dtype)
    how = {"solver": solver, "sketch_size": 8, "pilot": 0, "max_passes": 3, "tolerance": 0.0, "random_state": 0}
    pca, far = PCA(3, **how).fit(rows), PCA(3, **how).fit(np.ldexp(rows, exponent))
    assert pca.n_passes_ == far.n_passes_ == 3
    exact = np.linalg.svd(rows - rows.mean(axis=0, dtype=np.float64), compute_uv=False)[:3] ** 2 / 299
    lower, upper = np.ldexp(far.error_["eigenvalue_intervals"], -2 * exponent).T
    assert (lower <= exact).all()
    assert (exact <= upper).all()
    # Other batches are updates where float32 is too short for products of three rows, so the basis is another one.
    assert np.ldexp(far.error_["sigma"], -2 * exponent) == pytest.approx(pca.error_["sigma"], rel=0.2)
