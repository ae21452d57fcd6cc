"""Maximum-likelihood factor analysis from a covariance against scikit-learn, which iterates over the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import minimize
from sklearn.datasets import load_iris
from sklearn.decomposition import FactorAnalysis
from sklearn.decomposition._factor_analysis import _ortho_rotation
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import streampca as sp
from streampca.errors import NotComputedError, ParameterError

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module")
def rows() -> NDArray[Any]:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(1500, 10)) * rng.uniform(0.5, 2, 10)
    made: NDArray[Any] = rng.normal(size=(1500, 3)) @ rng.normal(size=(3, 10)) + noise + 3
    return made


def test_the_maximum_is_that_of_scikit_learn(rows: NDArray[Any]) -> None:
    fitted = sp.FactorAnalysis(3).fit(rows)
    # Started there, its iterations stay: the same maximum, which they reach slowly from elsewhere.
    known = FactorAnalysis(3, tol=1e-13, max_iter=5, svd_method="lapack", noise_variance_init=fitted.noise_variance_)
    known.fit(rows)
    assert np.abs(fitted.noise_variance_ / known.noise_variance_ - 1).max() <= 1e-6
    assert np.abs(np.abs(fitted.components_) - np.abs(known.components_)).max() <= 1e-6
    assert abs(fitted.log_likelihood_ - known.score(rows)) <= 1e-9
    assert np.abs(np.abs(fitted.transform(rows)) - np.abs(known.transform(rows))).max() <= 1e-6
    assert np.abs(fitted.get_covariance() - known.get_covariance()).max() <= 1e-6
    assert (fitted.n_passes_, fitted.heywood_features_) == (1, [])
    scores = fitted.transform(rows)
    assert np.abs(fitted.inverse_transform(scores) - (scores @ fitted.components_ + fitted.mean_)).max() <= 1e-10


def test_a_state_of_pca_gives_the_factors_without_the_rows(rows: NDArray[Any], tmp_path: Path) -> None:
    sp.PCA(2, solver="covariance", ddof=0).fit(rows).save(tmp_path / "p.zarr", state=True)
    direct, solved = sp.FactorAnalysis(2).fit(rows), sp.FactorAnalysis(2).from_state(tmp_path / "p.zarr")
    assert np.abs(direct.components_ - solved.components_).max() <= 1e-8
    direct.save(tmp_path / "f.zarr", state=True)
    loaded: Any = sp.load(tmp_path / "f.zarr")
    assert np.array_equal(loaded.components_, direct.components_)
    assert np.array_equal(loaded.noise_variance_, direct.noise_variance_)
    assert loaded.log_likelihood_ == direct.log_likelihood_


def test_features_of_any_units_and_features_that_never_vary(rows: NDArray[Any]) -> None:
    units = np.logspace(-6, 6, 10)
    plain, scaled = sp.FactorAnalysis(2).fit(rows), sp.FactorAnalysis(2).fit(rows * units)
    assert np.abs(scaled.components_ / units - plain.components_).max() <= 1e-5
    assert np.abs(scaled.noise_variance_ / units**2 / plain.noise_variance_ - 1).max() <= 1e-5
    constant = sp.FactorAnalysis(2).fit(np.c_[rows, np.full(len(rows), 7.0)])
    assert np.abs(constant.noise_variance_[:10] - plain.noise_variance_).max() <= 1e-6
    assert constant.noise_variance_[10] == 0
    assert constant.constant_features_.tolist() == [10]


def test_a_feature_that_the_factors_explain_wholly_is_named() -> None:
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(500, 6))
    basis = np.linalg.qr(basis - basis.mean(axis=0))[0] * np.sqrt(500)  # of covariances that are those of the model
    rows = np.c_[basis[:, :1], basis[:, :1] + basis[:, 1:]]
    fitted = sp.FactorAnalysis(1).fit(rows)
    assert fitted.heywood_features_ == [0]


def test_as_many_factors_as_features_are_refused(rows: NDArray[Any]) -> None:
    with pytest.raises(ParameterError, match="fewer factors than the"):
        sp.FactorAnalysis(10).fit(rows)
    with pytest.raises(ParameterError, match="rotation='oblimin': expected one of varimax, promax, or None"):
        sp.FactorAnalysis(2, rotation="oblimin").fit(rows)  # type: ignore[arg-type]


def test_what_the_model_says_of_rows_is_what_scikit_learn_says(rows: NDArray[Any]) -> None:
    fitted = sp.FactorAnalysis(3).fit(rows)
    known = FactorAnalysis(3)  # with our result, so that only formulas are compared
    known.components_, known.noise_variance_, known.mean_ = fitted.components_, fitted.noise_variance_, fitted.mean_
    other = rows[:50] + np.random.default_rng(5).normal(size=(50, 10))
    np.testing.assert_allclose(fitted.get_covariance(), known.get_covariance(), rtol=1e-10)
    np.testing.assert_allclose(fitted.get_precision(), known.get_precision(), atol=1e-12)
    np.testing.assert_allclose(fitted.score_samples(other), known.score_samples(other), rtol=1e-10)
    assert abs(fitted.score(other, y="ignored") - known.score(other)) <= 1e-9
    assert abs(fitted.score(rows) - fitted.log_likelihood_) <= 1e-10
    scaled = sp.FactorAnalysis(3, scale=True).fit(np.c_[rows, np.full(len(rows), 7.0)])
    assert abs(scaled.score(np.c_[rows, np.full(len(rows), 7.0)]) - scaled.log_likelihood_) <= 1e-10
    precision = scaled.get_precision()
    assert not precision[10].any()
    np.testing.assert_allclose(precision[:10, :10] @ scaled.get_covariance()[:10, :10], np.eye(10), atol=1e-12)


def test_targets_are_ignored_in_pipelines_and_cross_validation() -> None:
    rows, labels = load_iris(return_X_y=True)
    pipeline = make_pipeline(sp.FactorAnalysis(1), LogisticRegression()).fit(rows, labels)
    assert pipeline.score(rows, labels) > 0.9
    with_targets = sp.FactorAnalysis(1).fit_transform(rows, labels)
    np.testing.assert_array_equal(with_targets, sp.FactorAnalysis(1).fit_transform(rows))
    assert cross_val_score(sp.FactorAnalysis(1), rows).shape == (5,)


@pytest.mark.parametrize("rotation", ["varimax", "promax"])
def test_rotated_factors_are_the_same_model_in_other_axes(rows: NDArray[Any], rotation: Any, tmp_path: Path) -> None:
    plain, rotated = sp.FactorAnalysis(3).fit(rows), sp.FactorAnalysis(3, rotation=rotation).fit(rows)
    assert abs(plain.log_likelihood_ - rotated.log_likelihood_) <= 1e-12
    np.testing.assert_allclose(rotated.get_covariance(), plain.get_covariance(), rtol=1e-10)
    np.testing.assert_allclose(rotated.score_samples(rows), plain.score_samples(rows), rtol=1e-10)
    np.testing.assert_allclose(np.diag(rotated.correlation_), 1, rtol=1e-12)
    # Conditional means of the factors given the rows, whatever their correlations.
    expected = (rows - rows.mean(axis=0)) @ np.linalg.inv(rotated.get_covariance())
    expected = expected @ rotated.components_.T @ rotated.correlation_
    scores = rotated.transform(rows)
    np.testing.assert_allclose(scores, expected, atol=1e-10)
    np.testing.assert_allclose(
        rotated.inverse_transform(scores), plain.inverse_transform(plain.transform(rows)), atol=1e-9
    )
    units = np.logspace(-6, 6, 10)
    other = sp.FactorAnalysis(3, rotation=rotation).fit(rows * units)
    correlations = [
        np.sort(np.abs(each.correlation_).ravel()) for each in (other, rotated)
    ]  # their order is that of variances
    np.testing.assert_allclose(*correlations, atol=1e-4)
    loaded: Any = sp.load(rotated.save(tmp_path / "f.zarr", state=True))
    assert loaded.rotation == rotation
    np.testing.assert_array_equal(loaded.correlation_, rotated.correlation_)
    np.testing.assert_array_equal(loaded.score_samples(rows), rotated.score_samples(rows))
    again = sp.FactorAnalysis(3, rotation=rotation).from_state(tmp_path / "f.zarr")
    np.testing.assert_allclose(again.components_, rotated.components_, atol=1e-8)


def test_varimax_of_factors_is_that_of_correlations_with_features_of_one_communality(rows: NDArray[Any]) -> None:
    plain, rotated = sp.FactorAnalysis(3).fit(rows), sp.FactorAnalysis(3, rotation="varimax").fit(rows)
    lengths = np.linalg.norm(plain.components_, axis=0)
    expected = _ortho_rotation((plain.components_ / lengths).T, method="varimax", tol=1e-12, max_iter=1000)
    expected = np.abs(expected * lengths)
    order = np.argsort(-np.square(expected).sum(axis=1))
    np.testing.assert_allclose(np.abs(rotated.components_), expected[order], atol=1e-5)
    loadings = rotated.loadings()
    assert loadings.columns.tolist() == ["factoranalysis0", "factoranalysis1", "factoranalysis2"]
    np.testing.assert_array_equal(loadings.to_numpy(), rotated.components_.T)
    assert not hasattr(plain, "rotate")
    with pytest.raises(NotComputedError, match="FactorAnalysis\\(k, rotation='varimax'\\), or its from_state"):
        getattr(plain, "rotate")  # noqa: B009


@pytest.mark.parametrize("seed", range(0, 60, 5))
@pytest.mark.parametrize("twice", [False, True])
def test_the_likelihood_is_the_highest_that_other_starts_reach(seed: int, twice: bool) -> None:
    rng = np.random.default_rng(seed)
    d, n, q = int(rng.integers(5, 11)), int(rng.integers(40, 300)), int(rng.integers(1, 4))
    k = int(rng.integers(1, d // 2 + 1))
    rows = rng.normal(size=(n, q)) @ rng.normal(size=(q, d)) + rng.normal(size=(n, d))
    if twice:
        rows[:, 0] = rows[:, -1]
    fitted = sp.FactorAnalysis(k).fit(rows)
    correlation = np.corrcoef(rows.T)

    def minus_likelihood(logs: NDArray[Any]) -> tuple[float, NDArray[Any]]:
        root = np.exp(-logs / 2)
        values, vectors = eigh(correlation * root * root[:, None], subset_by_index=(d - k, d - 1))
        values = np.maximum(values, 1.0)
        communal = np.square(vectors * np.sqrt(values - 1) / root[:, None]).sum(axis=1)
        value = logs.sum() + np.square(root).sum() + (np.log(values) - values + 1).sum()
        return value, (communal + np.exp(logs) - 1) / np.exp(logs)

    bounds = [(np.log(1e-6), 0.0)] * d
    starts = np.log(rng.uniform(0.05, 1, (4, d)))
    least = min(minimize(minus_likelihood, each, jac=True, method="L-BFGS-B", bounds=bounds).fun for each in starts)
    highest = -(d * np.log(2 * np.pi) + least + np.log(rows.var(axis=0)).sum()) / 2
    assert fitted.log_likelihood_ >= highest - 1e-3
    assert "the highest from 8 starts" in fitted.error_.statement
    assert "a higher one cannot be excluded" in fitted.error_.statement


def test_sampling_errors_are_those_of_fits_without_one_group_each(rows: NDArray[Any]) -> None:
    fitted = sp.FactorAnalysis(2, sampling_errors=5).fit(rows)
    groups = np.arange(len(rows)) * 5 // len(rows)
    without = [sp.FactorAnalysis(2).fit(rows[groups != group]).components_ for group in range(5)]
    strengths = np.array([np.square(each).sum(axis=1) for each in without])
    expected = np.sqrt(4 / 5 * np.square(strengths - strengths.mean(axis=0)).sum(axis=0))
    np.testing.assert_allclose(fitted.sampling_error_.errors, expected, rtol=1e-4)
    errors = sp.PCA(2, sampling_errors=5).fit(rows).sampling_error_  # under the same name for every estimator
    np.testing.assert_array_equal(errors.errors, errors.eigenvalues)
