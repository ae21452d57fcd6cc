"""What the certificates of exact solvers say of rounding, against numpy in float64 and in long double."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import DataError

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


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
@pytest.mark.parametrize("scale", [False, True])
def test_rounding_of_integers_beyond_float64_is_counted_and_said(solver: str, scale: bool) -> None:
    rng = np.random.default_rng(0)
    small = np.rint(rng.standard_normal((80, 6)) * 1e5 * np.arange(1, 7)).astype(np.int64)
    expected = sp.PCA(solver=solver, scale=scale).fit(small.astype(np.float64)).explained_variance_
    with pytest.warns(UserWarning, match="integers beyond 2"):
        pca = sp.PCA(solver=solver, scale=scale).fit(small + 2**60)
    said, error = pca.certificate_.integer_rounding, np.abs(pca.explained_variance_ - expected).max() / expected[0]
    assert said is not None
    assert 1e-10 < error <= said < 1e-2
    assert "integers beyond 2**53" in pca.certificate_.statement


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch"])
@pytest.mark.parametrize("removed", ["groups", "trend"])
def test_rounding_of_integers_whose_mean_is_near_zero_before_removal_is_counted(solver: str, removed: str) -> None:
    rng = np.random.default_rng(0)
    small = np.rint(rng.standard_normal((80, 6)) * 1e5 * np.arange(1, 7)).astype(np.int64)
    at = np.where(np.arange(80) % 2, -1, 1) if removed == "groups" else 2 * np.arange(80) - 79
    remove: Any = {"groups": at} if removed == "groups" else {"trend": 1}
    with pytest.warns(UserWarning, match="integers beyond 2"):
        pca = sp.PCA(3, solver=solver, remove=remove).fit(small + (at * (2**61 // 80))[:, None])
    design = np.stack([np.ones(80), at], axis=1)
    left = small - design @ np.linalg.lstsq(design, small.astype(np.float64))[0]
    exact = np.linalg.svd(left, compute_uv=False)[:3] ** 2 / 79
    said = pca.certificate_.integer_rounding
    assert said is not None
    assert np.abs(pca.explained_variance_ - exact).max() / exact[0] <= said < 1e-2
    if solver == "sketch":
        lower, upper = np.transpose(pca.error_["eigenvalue_intervals"])
        assert (lower <= exact).all()
        assert (exact <= upper).all()


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_intervals_hold_rounding_of_integers_beyond_float64(solver: str) -> None:
    rng = np.random.default_rng(0)
    small = np.rint(rng.standard_normal((80, 6)) * 1e5 * np.arange(1, 7)).astype(np.int64)
    exact = sp.PCA(6).fit(small.astype(np.float64)).explained_variance_
    with pytest.warns(UserWarning, match="integers beyond 2"):
        pca = sp.PCA(6, solver=solver).fit(small + 2**61)
    lower, upper = np.transpose(pca.error_["eigenvalue_intervals"])
    assert (lower <= exact).all()
    assert (exact <= upper).all()
    assert (exact <= pca.error_["proven_upper_bounds"]).all()


def test_integers_that_rounding_leaves_nothing_of_are_refused() -> None:
    rows = np.random.default_rng(0).integers(0, 5, (60, 4)) + 2**60
    with pytest.raises(DataError, match="Subtract a whole number near its mean"):
        sp.PCA().fit(rows)
    assert sp.PCA().fit(rows - rows[0]).certificate_.integer_rounding is None


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
def test_squares_that_underflow_are_noticed_under_large_weights(solver: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 4)) * 1e-160
    with pytest.raises(DataError, match="underflow"):
        sp.PCA(solver=solver).fit(rows, sample_weight=np.full(50, 1e12))


def test_conversion_whose_shares_exceed_one_warns() -> None:
    """A sketch of few columns of a table with one strong direction overestimates it."""
    rows = np.random.default_rng(0).standard_normal((200, 30)) * np.geomspace(30, 1, 30)
    sums = []
    for seed in range(6):
        pca = sp.PCA(4, solver="sketch", recovery="conversion", sketch_size=4, pilot=0, random_state=seed)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            sums.append(pca.fit(rows).explained_variance_ratio_.sum())
        warned = [str(each.message) for each in seen if "explained_variance_ratio_ sums to" in str(each.message)]
        assert len(warned) == (sums[-1] > 1 + 1e-9)
    assert max(sums) > 1


def test_rounding_of_float32_columns_of_two_values_is_stated() -> None:
    """Float32 products of equal values are rounded in the same direction, by up to 2.4e-6 of the first eigenvalue."""
    worst = 0.0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal(2).astype("f4")[(rng.random((8192, 2)) < 0.4).astype(int)]
        pca, exact = sp.PCA(solver="covariance").fit(rows), np.cov(rows.astype(np.float64).T)
        error = np.abs(pca.explained_variance_ - np.linalg.eigvalsh(exact)[::-1]).max() / pca.explained_variance_[0]
        worst = max(worst, error / pca.error_["trusted_above"])
    assert worst <= 1


@pytest.mark.parametrize("solver", ["covariance", "gram"])
@pytest.mark.parametrize("kind", ["equal", "two values"])
def test_rounding_of_repeated_float32_values_is_stated(solver: str, kind: str) -> None:
    """Many features, or samples, that are equal and hold few values; rounding of their products has one direction."""
    worst = 0.0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        shape = (4096, 80) if solver == "covariance" else (20, 4096)
        rows = (rng.integers(0, 3, shape) * 0.1).astype("f4")
        if kind == "equal" and solver == "covariance":
            rows[:, 1:] = rows[:, :1]
        elif kind == "equal":
            rows[1:], rows[::2] = rows[:1], -rows[:1]
        else:
            rows = rng.standard_normal(2).astype("f4")[(rng.random(shape) < 0.4).astype(int)]
        pca, wide = sp.PCA(3, solver=solver).fit(rows), rows.astype(np.float64)
        wide -= wide.mean(axis=0)
        exact = np.linalg.svd(wide, compute_uv=False)[:3] ** 2 / (len(rows) - 1)
        error = np.abs(pca.explained_variance_ - exact).max() / exact[0]
        worst = max(worst, error / pca.error_["trusted_above"])
    assert worst <= 1


@pytest.mark.parametrize("dtype", ["i1", "f4"])
def test_rounding_of_scaled_residuals_of_few_features_is_stated_for_gram(dtype: str) -> None:
    """Products of rows of twelve kinds are rounded in float32 in few ways, by up to 6e-7 of the first eigenvalue in sum."""
    rows = np.full((291, 11), 64, dtype=dtype)
    rows[np.arange(145), np.arange(145) % 11] = 62
    pca = sp.PCA(5, solver="gram", scale=True, remove={"groups": np.zeros(291, int)}).fit(rows)
    wide = rows.astype(np.float64)
    exact = np.linalg.svd((wide - wide.mean(axis=0)) / wide.std(axis=0, ddof=1), compute_uv=False)[:5] ** 2 / 290
    error = np.abs(pca.explained_variance_ - exact).max() / exact[0]
    assert error <= pca.error_["trusted_above"]


@pytest.mark.parametrize("solver", ["gram", "covariance"])
def test_means_of_1e8_cost_missing_values_no_digits(solver: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 7)) + 1e8
    rows[rng.random(rows.shape) < 0.1] = np.nan
    pca = sp.PCA(2, solver=solver, missing="mean").fit(rows)
    # About 1e8, which is exact: long doubles would lose the digits of a mean of whole values.
    about = (rows - 1e8).astype(np.longdouble)
    centred = np.nan_to_num(about - np.nanmean(about, axis=0))
    exact = np.linalg.eigvalsh(np.asarray(centred.T @ centred / 39, float))[::-1][:2]
    assert np.abs(pca.explained_variance_ - exact).max() <= pca.error_.trusted_above * exact[0]
