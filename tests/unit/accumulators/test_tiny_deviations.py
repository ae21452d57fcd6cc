"""Features that vary by next to nothing: scores and components are right, or the feature is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tolerances
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.base import clone

from streampca import PCA
from streampca.errors import DataError

pytestmark = pytest.mark.numerical

BASE = np.random.default_rng(0).standard_normal((60, 5)) * [3, 2, 1, 0.5, 0.2]
SOLVERS = ["covariance", "gram", "qr", "sketch", "adaptive"]
WIDE = np.random.default_rng(0).standard_normal((60, 4)) @ np.random.default_rng(1).standard_normal((4, 80))
OPTIONS: list[dict[str, Any]] = [{}, {"scale": True}, {"whiten": True}]


def fitted(rows: NDArray[Any], solver: str, **options: Any) -> PCA:
    return PCA(3, solver=solver, sketch_size=5, pilot=0, **options).fit(rows)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("dtype", "size"), [("f4", 1e-30), ("f4", 1e-38), ("f4", 3e-40), ("f8", 1e-140)])
def test_small_numbers_give_what_large_ones_give(solver: str, options: dict[str, Any], dtype: str, size: float) -> None:
    rows = (BASE * size).astype(dtype)
    power = 2.0 ** round(np.log2(size))  # exact, so that both are the same numbers
    large = rows.astype(np.float64) / power
    small, other = fitted(rows, solver, **options), fitted(large, solver, **options)
    factor = 1.0 if options.get("scale") else power
    eps = 100 * float(np.finfo(dtype).eps)
    if solver in ("sketch", "adaptive"):  # these divide by square roots of small eigenvalues
        eps = max(eps, tolerances.eigenvalues(dtype))
    np.testing.assert_allclose(small.components_, other.components_, atol=eps / 2 * 10)
    np.testing.assert_allclose(
        np.sqrt(small.explained_variance_), factor * np.sqrt(other.explained_variance_), rtol=eps
    )
    scores = small.transform(rows).astype(np.float64)
    expected = other.transform(large) * (1.0 if options else factor)
    # Below 1e-38 float32 itself is spaced by 1e-45.
    atol = 10 * eps * np.abs(expected).max() + (2e-45 if dtype == "f4" else 0.0)
    np.testing.assert_allclose(scores, expected, atol=atol)
    back = small.inverse_transform(small.transform(rows)).astype(np.float64)
    again = other.inverse_transform(other.transform(large)) * power
    np.testing.assert_allclose(back, again, atol=10 * eps * np.abs(again).max() + (2e-45 if dtype == "f4" else 0.0))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("size", [1e-165, 1e-200, 1e-300])
def test_squares_that_underflow_are_an_error_that_names_the_feature(
    solver: str, options: dict[str, Any], size: float
) -> None:
    with pytest.raises(DataError, match="feature 0 varies by so little that its squares underflow float64"):
        fitted(BASE * size, solver, **options)
    one = BASE.copy()
    one[:, 3] *= size
    if options.get("scale"):
        with pytest.raises(DataError, match=r"feature 3 varies .* \(1 such feature\)"):
            fitted(one, solver, **options)
    else:  # beside the others it is nothing
        assert np.isfinite(fitted(one, solver, **options).transform(one)).all()


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [1e-25, 1e-39])
def test_float32_squares_that_underflow_are_no_constant_features_of_a_sketch(
    solver: str, weighted: bool, size: float
) -> None:
    """Means near zero are multiplied without a copy, and features whose squares were 0 in float32 counted as constant."""
    rows, power = (WIDE * size).astype(np.float32), 2.0 ** round(np.log2(size))
    weights = np.random.default_rng(1).random(len(rows)) if weighted else None
    small, large = (
        PCA(2, solver=solver, sketch_size=4, pilot=60).fit(each, sample_weight=weights)
        for each in (rows, rows.astype(np.float64) / power)
    )
    assert small.constant_features_.size == 0
    np.testing.assert_allclose(small.total_variance_, large.total_variance_ * power**2, rtol=1e-5)
    assert small.error_["components_for"] == large.error_["components_for"]
    np.testing.assert_allclose(small.error_["captured_variance"], large.error_["captured_variance"], atol=1e-3)


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
@pytest.mark.parametrize("weight", [1e-42, 1e36])
def test_weights_that_float32_does_not_hold_cost_sketches_of_near_means_no_digits(solver: str, weight: float) -> None:
    size = 2.0 ** -round(np.log2(weight) / 2)
    rows = (WIDE * size).astype(np.float32)
    weights = np.random.default_rng(1).random(len(rows))
    pca, plain = (
        PCA(2, solver=solver, sketch_size=4, pilot=60, ddof=0).fit(rows, sample_weight=each)
        for each in (weights * weight, weights)
    )
    np.testing.assert_allclose(pca.explained_variance_, plain.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(pca.total_variance_, plain.total_variance_, rtol=1e-5)


@pytest.mark.parametrize("missing", ["mean", "pairwise"])
def test_squares_that_underflow_are_named_beside_missing_values(missing: str) -> None:
    rows = BASE * 1e-200
    rows[::7, 2] = np.nan
    with pytest.raises(DataError, match="underflow"):
        PCA(3, missing=missing).fit(rows)


@pytest.mark.parametrize("solver", SOLVERS)
def test_constant_features_are_no_underflow(solver: str) -> None:
    rows = BASE.copy()
    rows[:, 2] = 1e-200
    assert fitted(rows, solver, scale=True).constant_features_.tolist() == [2]
    with pytest.raises(DataError, match="underflow"):
        fitted(rows * 1e-200, solver, scale=True)


def test_a_feature_below_the_rounding_of_an_incremental_pass_is_refused() -> None:
    rows = BASE.copy()
    rows[:, 1] *= 1e-30
    with pytest.raises(DataError, match=r"feature 1 .*cannot standardise it"):
        fitted(rows, "adaptive", scale=True)


def test_a_feature_below_the_rounding_of_an_incremental_pass_is_none_of_a_fit_that_magnifies_nothing() -> None:
    """A `feature_weight` of 0 made the fit look at every feature as if it was standardised."""
    rows = np.random.default_rng(0).standard_normal((60, 20)) * np.append(np.ones(10), np.full(10, 1e-8))
    weight = np.append(0.0, np.full(19, 0.7))
    pca = PCA(3, solver="adaptive", feature_weight=weight).fit(rows)
    exact = np.linalg.svd((rows - rows.mean(axis=0)) * np.sqrt(weight), compute_uv=False)[:3] ** 2 / 59
    np.testing.assert_allclose(pca.explained_variance_, exact, rtol=0.3)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("size", [1e-160, 1e-170])
@pytest.mark.parametrize("constant", [False, True])
def test_squares_about_zero_that_underflow_are_named(solver: str, size: float, constant: bool) -> None:
    """Without centring they were eigenvalues of a few of the smallest numbers there are, or 0."""
    rows = np.full((60, 5), 3.0) if constant else BASE + 3
    with pytest.raises(DataError, match="underflow"):
        fitted(rows * size, solver, center=False)
    assert fitted(np.column_stack([rows, rows * size]), solver, center=False).explained_variance_[0] > 1


@pytest.mark.parametrize("solver", ["covariance", "sketch"])
@pytest.mark.parametrize("size", [1e-161, 1e-170])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_features_whose_squares_underflow_are_not_constant(solver: str, weighted: bool, size: float) -> None:
    """Sums of squares of stored values were 0, and the feature was taken for one that never varies."""
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((400, 40)) * (draw.random((400, 40)) < 0.03)
    rows[:, 3] *= size
    rows[:, 5] = np.where(draw.random(400) < 0.9, size, 0.0)  # stored in most rows
    rows[:, 7] = size
    rows[:, 8] = 0
    weights = draw.uniform(0.5, 2, 400) if weighted else None
    pca = PCA(3, solver=solver, **({"sketch_size": 13} if solver == "sketch" else {}))
    assert pca.fit(csr_array(rows), sample_weight=weights).constant_features_.tolist() == [7, 8]
    with pytest.raises(DataError, match=r"feature 3 varies .* \(2 such features\)"):
        clone(pca).set_params(scale=True).fit(csr_array(rows), sample_weight=weights)


@pytest.mark.parametrize("solver", SOLVERS)
def test_variances_that_underflow_where_squares_do_not_are_of_no_constant_feature(solver: str) -> None:
    rows = np.random.default_rng(0).standard_normal((3000, 5))
    rows[:, 3] *= 0
    rows[7, 3] = 3e-162
    assert fitted(rows, solver).constant_features_.tolist() == []


def test_deviations_that_underflow_in_blocks_of_one_row_are_named() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((9, 64)) * (rng.random((9, 64)) < 0.2) + 1000) * 1e-160
    pca, weight = PCA(2, solver="adaptive", sketch_size=11, pilot=100, random_state=0), 10 ** rng.uniform(-3, 3, 9)
    assert pca.plan(rows).rows_per_block == 1
    with pytest.raises(DataError, match="squares underflow float64"):
        pca.fit(rows, sample_weight=weight)


@pytest.mark.parametrize("solver", SOLVERS)
def test_small_means_beside_deviations_that_underflow_are_named(solver: str) -> None:
    """The trace of 1e-157 that a deviation leaves moved weighted means of 1e-152, and the eigenvalues about zero with them."""
    weights = np.where(np.arange(60) == 0, 1e6, 1.0)
    with pytest.raises(DataError, match="underflow"):
        PCA(3, solver=solver, sketch_size=5, pilot=0, center=False).fit(
            (BASE * 1e-8 + 3) * 1e-152, sample_weight=weights
        )


def test_components_below_float32_come_back_in_their_features() -> None:
    """A component has 1e-43 in the last feature, and its weight makes it 1e-14 again: 1 % were lost in float32."""
    rows = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    rows[:, 2] = 1e-14 * rows[:, 0]
    pca = PCA(2, feature_weight=[1, 1, 1e-58]).fit(rows)
    back = pca.inverse_transform(pca.transform(rows))
    np.testing.assert_allclose(back[:, 2], rows[:, 2], rtol=1e-4, atol=1e-19)
