"""Approximate solvers and kinds of rows: weighted, with holes, sparse, of small types; and the estimator around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spectra
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from streampca import PCA, Threshold
from streampca.errors import DataError, NotAvailableError, NotFiniteError
from streampca.metrics import principal_angles, similarity

pytestmark = pytest.mark.numerical

D, K, Q = 50, 4, 30
WAYS: dict[str, dict[str, Any]] = {
    "sketch": {"solver": "sketch", "pilot": 0},
    "pilot": {"solver": "sketch", "pilot": 300},
    "adaptive": {"solver": "adaptive"},
    "sketch, two passes": {"solver": "sketch", "pilot": 0, "max_passes": 2, "tolerance": 0},
    "adaptive, two passes": {"solver": "adaptive", "max_passes": 2, "tolerance": 0},
}
SKETCHES = ("sketch", "pilot", "sketch, two passes")
every_way = pytest.mark.parametrize("way", WAYS)
by_sketch = pytest.mark.parametrize("way", SKETCHES)


def fitted(rows: Any, way: str, k: Any = K, weights: Any = None, **parameters: Any) -> PCA:
    return PCA(k, **{"sketch_size": Q} | WAYS[way] | parameters).fit(rows, sample_weight=weights)


def decaying(n: int = 2000, seed: int = 0) -> NDArray[np.float64]:
    return spectra.rows_with_spectrum(n, np.arange(1, D + 1.0) ** -1.5, seed) + np.linspace(0, 9, D)


def assert_same(one: PCA, other: PCA, digits: float = 1e-10) -> None:
    """Check that two models agree to `digits`, their certificates included."""
    first = one.explained_variance_[0]
    np.testing.assert_allclose(one.explained_variance_, other.explained_variance_, rtol=0, atol=digits * first)
    np.testing.assert_allclose(one.mean_, other.mean_, atol=digits * 10)
    assert np.sin(principal_angles(one.components_, other.components_)).max() < 1e3 * digits
    assert one.total_variance_ == pytest.approx(other.total_variance_, rel=digits)
    pair = (pca.error_["eigenvalue_intervals"] for pca in (one, other))
    np.testing.assert_allclose(*pair, rtol=0, atol=1e2 * digits * first)


def assert_certified(pca: PCA, exact: PCA) -> None:
    """Check that the intervals of `pca` hold the eigenvalues of `exact`."""
    lower, upper = np.array(pca.error_["eigenvalue_intervals"]).T
    room = (exact.error_["trusted_above"] + 1e-13) * exact.explained_variance_[0]
    assert (lower <= exact.explained_variance_ + room).all()
    assert (exact.explained_variance_ <= upper + room).all()


# weights


@pytest.mark.parametrize("way", ["sketch", "sketch, two passes"])
@pytest.mark.parametrize("kind", [{}, {"scale": True}, {"center": False}], ids=str)
def test_a_weight_is_a_repetition(way: str, kind: dict[str, Any]) -> None:
    rows, counts = decaying(), np.random.default_rng(0).integers(0, 4, 2000)
    one = fitted(rows, way, weights=counts.astype(float), **kind)
    other = fitted(rows.repeat(counts, axis=0), way, **kind)
    assert_same(one, other)
    assert one.n_samples_seen_ == np.count_nonzero(counts)


@pytest.mark.parametrize("way", ["pilot", "adaptive", "adaptive, two passes"])
def test_a_weight_is_a_repetition_up_to_the_certificate(way: str) -> None:
    """Which rows are in the pilot, or in one update, depends on their numbers."""
    rows, counts = decaying(), np.random.default_rng(0).integers(0, 4, 2000)
    exact = PCA(K, solver="covariance").fit(rows, sample_weight=counts.astype(float))
    for pca in (fitted(rows, way, weights=counts.astype(float)), fitted(rows.repeat(counts, axis=0), way)):
        assert_certified(pca, exact)
        assert similarity(exact.components_, pca.components_) > 0.999


@every_way
def test_fractional_weights(way: str) -> None:
    rows, weights = decaying(), np.random.default_rng(0).random(2000)
    exact = PCA(K, solver="covariance").fit(rows, sample_weight=weights)
    assert_certified(fitted(rows, way, weights=weights), exact)


# holes


def holed(rows: NDArray[np.float64], share: float, seed: int = 0) -> NDArray[np.float64]:
    out = rows.copy()
    out[np.random.default_rng(seed).random(rows.shape) < share] = np.nan
    return out


@pytest.mark.parametrize("way", ["sketch", "sketch, two passes"])
def test_dropping_rows_is_fitting_the_rest(way: str) -> None:
    rows = holed(decaying(), 0.01)
    whole = rows[~np.isnan(rows).any(axis=1)]
    found = fitted(rows, way, missing="drop_rows")
    assert_same(found, fitted(whole, way))
    assert found.error_["rows_left_out"] == 2000 - len(whole)
    with pytest.raises(NotFiniteError):
        fitted(rows, way)


@by_sketch
@pytest.mark.parametrize("scale", [False, True])
def test_values_missing_at_random(way: str, scale: bool) -> None:
    """A fifth of all values; without a certificate, because the corrected matrix need not be positive."""
    rows = decaying(6000)
    found = fitted(holed(rows, 0.2), way, missing="pairwise", scale=scale)
    exact = PCA(K, solver="covariance", scale=scale).fit(rows)
    paired = PCA(K, solver="covariance", scale=scale, missing="pairwise").fit(holed(rows, 0.2))
    # As near as the exact covariances of pairs of features, but for the tail that a sketch leaves out.
    models = found, fitted(rows, way, scale=scale), paired
    wrong, known, theirs = (np.abs(pca.explained_variance_ / exact.explained_variance_ - 1).max() for pca in models)
    assert wrong < 2 * known + 2 * theirs
    assert similarity(exact.components_, found.components_) > 0.97
    assert found.error_["eigenvalue_intervals"] is None
    assert "without a certificate" in found.error_["statement"]
    np.testing.assert_allclose(found.mean_, paired.mean_, rtol=1e-12)


@by_sketch
def test_no_value_missing_is_nothing_to_correct(way: str) -> None:
    rows = decaying()
    pair = fitted(rows, way, missing="pairwise"), fitted(rows, way)
    np.testing.assert_allclose(pair[0].explained_variance_, pair[1].explained_variance_, rtol=1e-10)
    assert principal_angles(pair[0].components_, pair[1].components_).max() < 1e-7


def test_what_updates_cannot_take() -> None:
    rows = decaying()
    for values, missing in (
        (holed(rows, 0.1), "pairwise"),
        (holed(rows, 0.1), "drop_rows"),
        (csr_array(rows), "error"),
    ):
        with pytest.raises(NotAvailableError, match=r"solver='adaptive' does not take .*use solver="):
            fitted(values, "adaptive", missing=missing)


# sparse rows and small types


@by_sketch
@pytest.mark.parametrize("kind", [{}, {"scale": True}, {"center": False}], ids=str)
def test_sparse_rows_are_dense_rows(way: str, kind: dict[str, Any]) -> None:
    rows = decaying() * (np.random.default_rng(1).random((2000, D)) < 0.1)
    weights = np.random.default_rng(2).integers(0, 3, 2000).astype(float)
    for own in (None, weights):
        pair = fitted(csr_array(rows), way, weights=own, **kind), fitted(rows, way, weights=own, **kind)
        assert_same(*pair, digits=1e-8 if way == "pilot" else 1e-10)


@every_way
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int16", ">f4"])
def test_types(way: str, dtype: str) -> None:
    rows = np.clip(np.rint(decaying() * 20 + 20), 0, 255).astype(dtype)
    exact = PCA(K, solver="covariance").fit(rows.astype(np.float64))
    found = fitted(rows, way)
    assert_certified(found, exact)
    assert similarity(exact.components_, found.components_) > 0.98
    np.testing.assert_allclose(found.mean_, exact.mean_, rtol=1e-6)


# features


@pytest.mark.parametrize("way", ["sketch", "sketch, two passes", "adaptive", "adaptive, two passes"])
def test_weights_of_features_are_factors_of_columns(way: str) -> None:
    """A factor of √w, here also 0; the directions are those of the matrix W^½ C W^½."""
    rows, weights = decaying(), np.random.default_rng(0).random(D) * 3
    weights[[0, 7]] = 0
    found = fitted(rows, way, feature_weight=weights)
    other = fitted(rows * np.sqrt(weights), way)
    np.testing.assert_allclose(found.explained_variance_, other.explained_variance_, rtol=1e-3)
    assert found.total_variance_ == pytest.approx(other.total_variance_, rel=1e-12)
    exact = PCA(K, solver="covariance", feature_weight=weights).fit(rows)
    assert_certified(found, exact)
    assert_certified(other, exact)
    assert np.abs(found.components_[:, [0, 7]]).max() < 1e-9
    if way.startswith("sketch"):
        assert_same_axes(found, other)
        np.testing.assert_allclose(found.explained_variance_, other.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(np.abs(found.transform(rows)), np.abs(exact.transform(rows)), atol=0.2)


def assert_same_axes(one: PCA, other: PCA) -> None:
    assert principal_angles(one.components_, other.components_).max() < 1e-7


@every_way
def test_moments_about_zero(way: str) -> None:
    rows = decaying()
    found, exact = (fitted(rows, way, center=False), PCA(K, solver="covariance", center=False).fit(rows))
    assert_certified(found, exact)
    assert (found.mean_ == 0).all()
    assert found.total_variance_ == pytest.approx((rows**2).sum() / 1999, rel=1e-12)


# the estimator


@every_way
def test_scores_can_be_whitened(way: str) -> None:
    rows = decaying()
    pca = fitted(rows, way, whiten=True)
    scores = pca.transform(rows)
    # The variances of scores are those of the exact matrix along these axes.
    error = pca.error_["largest_relative_width"]
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), 1, atol=min(2 * error + 1e-9, 0.5))
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(
        pca.inverse_transform(scores), fitted(rows, way).inverse_transform(fitted(rows, way).transform(rows)), atol=1e-8
    )


@every_way
def test_a_pipeline_and_a_clone(way: str) -> None:
    rows = decaying()
    pca = PCA(K, sketch_size=Q, **WAYS[way])
    pipeline = make_pipeline(StandardScaler(), pca)
    scores = pipeline.fit_transform(rows)
    again = clone(pipeline).fit(rows)
    np.testing.assert_array_equal(again.transform(rows), scores)
    assert clone(pca).get_params() == pca.get_params()
    assert pipeline[-1].get_feature_names_out().tolist() == [f"pca{i}" for i in range(K)]
    assert pipeline[-1].score(StandardScaler().fit_transform(rows)) < 0


@every_way
@pytest.mark.parametrize("wanted", [0.9, Threshold(0.01)], ids=str)
def test_how_many_components_the_data_decides(way: str, wanted: Any) -> None:
    rows = decaying()
    exact = PCA(wanted, solver="covariance").fit(rows)
    found = fitted(rows, way, wanted, sketch_size="auto")
    assert abs(found.n_components_ - exact.n_components_) <= 1
    if isinstance(wanted, float):
        low, high = found.error_["components_for"]["0.9"]
        assert low <= exact.n_components_ <= high
        assert found.explained_variance_ratio_.sum() >= 0.9


@every_way
def test_as_many_components_as_features(way: str) -> None:
    rows = decaying()
    found, exact = fitted(rows, way, D, sketch_size="auto"), PCA(D, solver="covariance").fit(rows)
    np.testing.assert_allclose(found.explained_variance_, exact.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(found.inverse_transform(found.transform(rows)), rows, atol=1e-9)
    assert found.error_["largest_relative_width"] < 1e-8


@every_way
def test_constant_rows(way: str) -> None:
    rows = np.tile(np.linspace(1, 2, D), (300, 1))
    for scale in (False, True):
        pca = fitted(rows, way, scale=scale)
        assert (pca.explained_variance_ == 0).all()
        assert pca.numerical_rank_ == 0
        assert pca.total_variance_ == 0
        np.testing.assert_allclose(pca.transform(rows), 0, atol=1e-12)
        np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(K), atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ddof", [0, 1])
def test_variances_of_what_was_observed_are_those_of_pairwise_covariances(weighted: bool, ddof: int) -> None:
    """The divisor of a sketch was (W − ddof) N / W for a feature that was observed with weight N of W; it is N − ddof."""
    draw = np.random.default_rng(0)
    rows = decaying(60)[:, :8] * np.geomspace(1, 1e3, 8)
    rows[draw.random(rows.shape) < np.linspace(0, 0.6, 8)] = np.nan
    how = {"missing": "pairwise", "scale": True, "ddof": ddof}
    weights = draw.integers(0, 4, 60).astype(np.float64) if weighted else None
    exact = PCA(4, solver="covariance", **how).fit(rows, sample_weight=weights)
    for sketch_pilot in (0, 20):
        pca = PCA(4, solver="sketch", sketch_size=8, pilot=sketch_pilot, **how).fit(rows, sample_weight=weights)
        np.testing.assert_allclose(pca.scale_, exact.scale_, rtol=1e-13)
        assert pca.total_variance_ == pytest.approx(8, rel=1e-13)


def test_a_feature_observed_too_seldom_for_a_variance_is_named_by_a_sketch() -> None:
    rows = decaying(60)[:, :8]
    rows[1:, 5] = np.nan
    with pytest.raises(
        DataError, match=r"^1 feature observed with too little weight .* ddof=1, first: feature 5, weight 1"
    ):
        PCA(4, solver="sketch", sketch_size=8, missing="pairwise").fit(rows)
    pca = PCA(4, solver="sketch", sketch_size=8, missing="pairwise", ddof=0).fit(rows)
    assert pca.constant_features_.tolist() == [5]


@pytest.mark.parametrize("pilot", [0, 1])
def test_a_feature_that_the_pilot_did_not_observe_has_an_origin_near_its_mean(pilot: int) -> None:
    """It was zero, and a mean of 1e6 deviations cost 12 digits of the variance."""
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((300, 6)) + 1e6
    rows[:, 2] = np.where(np.arange(300) < 290, np.nan, rows[:, 2])
    exact, pca = (PCA(3, solver=s, missing="pairwise", scale=True) for s in ("covariance", "sketch"))
    exact.fit(rows)
    pca.set_params(sketch_size=6, pilot=pilot).fit(rows)
    np.testing.assert_allclose(pca.scale_, exact.scale_, rtol=1e-12)


def test_rows_with_holes_are_added_to_a_sketch_without_a_pilot() -> None:
    """States had an origin each, which rows with holes cannot be moved from: `MergeError`, also of fits with two leaves."""
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((300, 6)) * np.arange(1, 7) + 3
    rows[draw.random(rows.shape) < 0.2] = np.nan
    grown = PCA(3, solver="sketch", sketch_size=6, pilot=0, missing="pairwise", random_state=0)
    grown.partial_fit(rows[:128]).partial_fit(rows[128:])
    whole = PCA(3, solver="sketch", sketch_size=6, pilot=0, missing="pairwise", random_state=0).fit(rows)
    np.testing.assert_allclose(grown.explained_variance_, whole.explained_variance_, rtol=1e-10)
