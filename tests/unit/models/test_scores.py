"""Scores of dense rows keep their digits wherever the mean is; the oracle is the product of rows centred in float64."""

import numpy as np
import pytest
import tolerances
from numpy.typing import NDArray

import streampca as sp


def rows_about(far: float, dtype: str) -> NDArray[np.floating]:
    """Return rows with means of `far` standard deviations on either side of zero."""
    random = np.random.default_rng(5)
    rows = random.standard_normal((2000, 40)) + far * random.choice([-1.0, 1.0], 40)
    return (rows * np.linspace(3.0, 0.5, 40)).astype(dtype)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("far", [0.0, 1.0, 3.0, 10.0, 1e4])
def test_a_mean_near_or_far_costs_scores_no_digits(far: float, dtype: str, whiten: bool) -> None:
    rows = rows_about(far, dtype)
    pca = sp.PCA(8, whiten=whiten).fit(rows)
    expected = (rows.astype("f8") - pca.mean_) @ pca.components_.T
    if whiten:
        expected /= np.sqrt(pca.explained_variance_)
    scores = pca.transform(rows)
    assert scores.dtype == dtype
    # A row of four standard deviations has as many rounding units of its own.
    error = np.abs(scores - expected).max(axis=0) / expected.std(axis=0)
    assert error.max() <= 40 * np.finfo(tolerances.work_dtype(dtype)).eps * (1 if dtype == "float32" else max(1.0, far))


def test_a_mean_that_is_not_the_spread_of_its_component_is_far() -> None:
    """A feature of large mean and small spread beside one of large spread: its component keeps its own digits."""
    random = np.random.default_rng(6)
    rows = (random.standard_normal((3000, 70)) * np.r_[200.0, np.ones(69)] + np.r_[0.0, np.full(69, 150.0)]).astype(
        "f4"
    )
    pca = sp.PCA(5).fit(rows)
    expected = (rows.astype("f8") - pca.mean_) @ pca.components_.T
    error = np.abs(pca.transform(rows) - expected).max(axis=0) / expected.std(axis=0)
    assert error.max() <= 200 * np.finfo("f4").eps


def test_scores_need_no_copy_of_the_rows() -> None:
    import tracemalloc

    rows = rows_about(1.0, "float32")
    pca = sp.PCA(2).fit(rows)
    tracemalloc.start()
    pca.transform(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.nbytes / 2
