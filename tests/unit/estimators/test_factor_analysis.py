"""Maximum-likelihood factor analysis from a covariance against scikit-learn, which iterates over the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import FactorAnalysis

import streampca as sp
from streampca.errors import ParameterError

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
    with pytest.raises(ParameterError, match="fewer factors than features"):
        sp.FactorAnalysis(10).fit(rows)
    with pytest.raises(ParameterError, match="takes one table"):
        sp.FactorAnalysis(2).fit(rows, rows)
