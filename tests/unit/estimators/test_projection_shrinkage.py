"""Scores of new rows are smaller than those of the rows of a fit by the factors that `projection_shrinkage` gives: simulations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

import streampca as sp
from streampca.errors import NotComputedError

N, NEW = 300, 1000


def draw(spikes: Any, d: int, correlation: float, seed: int) -> tuple[Any, Any]:
    """Return rows of a fit and new ones: a few directions of large variance, and noise of features that follow an autoregression."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(N + NEW, d)).astype("f4")
    if correlation:
        noise = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], noise, axis=1)
    axes = np.linalg.qr(rng.normal(size=(d, len(spikes))))[0]
    rows = noise + (rng.normal(size=(N + NEW, len(spikes))) * np.sqrt(spikes)) @ axes.T
    return rows[:N], rows[N:]


def found(rows: Any, new: Any, k: int) -> tuple[Any, Any, Any, Any]:
    """Return the mean squares of new scores, the variances of the fit, and the factors without and with all eigenvalues."""
    pca = sp.PCA(k + 1).fit(rows)
    squares = np.mean(np.asarray(pca.transform(new), dtype="f8") ** 2, axis=0)
    every = sp.PCA(n_components=None).fit(rows).projection_shrinkage()
    return squares[:k], pca.explained_variance_[:k], pca.projection_shrinkage()[:k], every[:k]


@pytest.mark.deep(keep=["spikes1-100-0.0", "spikes3-150-0.5"])
@pytest.mark.parametrize(
    ("spikes", "d", "correlation"),
    [([40, 15], 600, 0.0), ([8, 3], 100, 0.0), ([60, 25], 600, 0.7), ([12, 5], 150, 0.5)],
)
def test_new_scores_are_smaller_by_the_factors(spikes: Any, d: int, correlation: float) -> None:
    """With all eigenvalues, and with the sums of their powers; means over many fits, whose eigenvalues differ by 8 %."""
    each = [found(*draw(spikes, d, correlation, seed), len(spikes)) for seed in range(24)]
    squares, variances, few, every = (np.mean(values, axis=0) for values in zip(*each, strict=True))
    assert np.isfinite(every).all()
    for factors in (few, every):
        np.testing.assert_allclose(factors, np.sqrt(squares / variances), rtol=0.03)
        assert (factors < 0.98).all()


def test_white_noise_gives_the_factors_of_lee_zou_and_wright() -> None:
    spikes, d = np.array([40.0, 15.0]), 1200
    factors = np.mean(
        [sp.PCA(3).fit(draw(spikes, d, 0, seed)[0]).projection_shrinkage()[:2] for seed in range(12)], axis=0
    )
    np.testing.assert_allclose(factors, spikes / (spikes + d / N), rtol=0.03)  # of population eigenvalues 1 + spikes


def test_components_of_noise_have_none() -> None:
    rows, _ = draw([40], 600, 0, 1)
    factors = sp.PCA(4).fit(rows).projection_shrinkage()
    assert np.isfinite(factors).tolist() == [True, False, False, False]
    np.testing.assert_array_equal(sp.PCA(4).fit(rows * 1e150).projection_shrinkage(), factors)
    line = np.outer(np.arange(20.0), np.ones(30))
    np.testing.assert_allclose(sp.PCA(1).fit(line).projection_shrinkage(), [1])


def test_saved_models_sketches_and_scaled_genotypes_have_them(tmp_path: Any) -> None:
    rng = np.random.default_rng(2)
    share = np.clip(rng.uniform(0.1, 0.5, 2000) + rng.normal(scale=0.07, size=(3, 2000)), 0.02, 0.98)
    rows = rng.binomial(2, share[np.arange(600) % 3]).astype("f4")
    rows[rng.random(rows.shape) < 0.03] = np.nan
    pca = sp.PCA(2, scale="patterson", missing="mean", missing_scores="mean").fit(rows[:300])
    squares = np.mean(np.asarray(pca.transform(rows[300:]), dtype="f8") ** 2, axis=0)
    expected = pca.projection_shrinkage() ** 2 @ pca.explained_variance_
    np.testing.assert_allclose(np.sqrt(expected), np.sqrt(squares.sum()), rtol=0.03)
    pca.save(tmp_path / "model")
    np.testing.assert_array_equal(sp.load(tmp_path / "model").projection_shrinkage(), pca.projection_shrinkage())
    sketch = sp.PCA(2, solver="sketch", sketch_size=100, scale="patterson", missing="mean").fit(rows[:300])
    np.testing.assert_allclose(sketch.projection_shrinkage(), pca.projection_shrinkage(), rtol=0.02)


def test_rows_with_weights_and_pairwise_covariances_have_none() -> None:
    rows, _ = draw([40], 200, 0, 1)
    with pytest.raises(NotComputedError, match="rows have weights"):
        sp.PCA(2).fit(rows, sample_weight=np.arange(1, N + 1)).projection_shrinkage()
    rows[3, 4] = np.nan
    with pytest.raises(NotComputedError, match="pairwise"):
        sp.PCA(2, missing="pairwise").fit(rows).projection_shrinkage()
