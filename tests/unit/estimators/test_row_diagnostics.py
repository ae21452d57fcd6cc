"""T² and Q of rows, their limits, and what features contribute to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import beta, chi2, f, norm

import streampca as sp
from streampca.errors import NotAvailableError, ParameterError

pytestmark = pytest.mark.numerical

N, D, K = 1500, 20, 3
AGREEMENT = 1e-10


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float64]:
    """Return normal rows far from zero, of rotated variances."""
    random = np.random.default_rng(1)
    axes = np.linalg.qr(random.standard_normal((D, D)))[0]
    return random.standard_normal((N, D)) * np.linspace(4, 0.5, D) @ axes + 50


def written(pca: sp.PCA, data: Any, path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return T² and Q as `transform_to` writes them."""
    group = zarr.open_group(pca.transform_to(data, path / "scores.zarr", diagnostics=True), mode="r")
    values = [np.asarray(group[name][:]) for name in ("t2", "q")]  # type: ignore[index]
    return values[0], values[1]


def plain(pca: sp.PCA, data: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return T² and Q of complete rows by their definition."""
    z = data.astype(np.float64) - pca.mean_
    z = z if pca.scale_ is None else z / pca.scale_
    z = z if pca.feature_weight is None else z * np.sqrt(pca.feature_weight)
    scores = z @ pca.components_.T
    return (scores**2 / pca.explained_variance_).sum(axis=1), ((z - scores @ pca.components_) ** 2).sum(axis=1)


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"scale": True},
        {"whiten": True},
        {"center": False},
        {"feature_weight": np.linspace(0, 2, D)},
        {"solver": "qr"},
        {"solver": "sketch"},
    ],
    ids=["plain", "scaled", "whitened", "about zero", "weighted", "qr", "sketch"],
)
def test_t2_and_q_equal_their_definition(keywords: dict[str, Any], rows: NDArray[np.float64], tmp_path: Path) -> None:
    pca = sp.PCA(K, **keywords).fit(rows)
    expected = plain(pca, rows)
    for value, wanted in zip(written(pca, rows, tmp_path), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=AGREEMENT)


def test_q_far_below_the_length_of_a_row_keeps_its_digits(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    rows = random.standard_normal((400, 2)) @ random.standard_normal((2, 12)) * 1e6 + random.standard_normal((400, 12))
    pca = sp.PCA(2, solver="qr").fit(rows)
    q, expected = written(pca, rows, tmp_path)[1], plain(pca, rows)[1]
    lengths = np.square(rows - rows.mean(axis=0)).sum(axis=1)
    assert q.max() < 1e-8 * lengths.max()
    # The residual carries the rounding of the row: 1e-15 ‖z‖ relative to its own length, in both.
    assert (np.abs(q - expected) <= 2e-15 * np.sqrt(lengths * expected)).all()


def test_sparse_rows_have_the_t2_and_q_of_dense_ones(rows: NDArray[np.float64], tmp_path: Path) -> None:
    table = np.where(rows > 52, rows - 50, 0.0)
    pca = sp.PCA(K).fit(table)
    for value, expected in zip(written(pca, csr_array(table), tmp_path), plain(pca, table), strict=True):
        np.testing.assert_allclose(value, expected, rtol=AGREEMENT)


def test_float32_rows_have_t2_and_q_with_the_rounding_of_their_scores(
    rows: NDArray[np.float64], tmp_path: Path
) -> None:
    table = rows.astype(np.float32)
    pca = sp.PCA(K).fit(table)
    for value, expected in zip(written(pca, table, tmp_path), plain(pca, table), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4)


def with_holes(rows: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Return `rows` without a share of their values at random."""
    return np.where(np.random.default_rng(3).random(rows.shape) < share, np.nan, rows)


def test_rows_with_holes_have_t2_and_q_of_conditional_scores(rows: NDArray[np.float64], tmp_path: Path) -> None:
    table = with_holes(rows, 0.2)
    table[7] = np.nan
    pca = sp.PCA(K, missing="pairwise").fit(table)
    t2, q = written(pca, table, tmp_path)
    scores, v, noise = pca.transform(table), pca.components_, pca.noise_variance_
    np.testing.assert_allclose(t2, (scores**2 / pca.explained_variance_).sum(axis=1), rtol=AGREEMENT)
    spread = np.diag(pca.explained_variance_ - noise)
    for row in (0, 1, 2, 3):
        seen = ~np.isnan(table[row])
        z, w = (table[row] - pca.mean_)[seen], v[:, seen]
        covariance = w.T @ spread @ w + noise * np.eye(len(z))  # of the probabilistic model
        # The conditional mean of all features given those that are seen, and from it scores, and the residual as a map of z.
        whole = v.T @ spread @ v + noise * np.eye(D)
        to_scores = v @ whole[:, seen] @ np.linalg.inv(covariance)
        np.testing.assert_allclose(to_scores @ z, scores[row], rtol=1e-8)
        left = np.eye(len(z)) - w.T @ to_scores
        of_residual = left @ covariance @ left.T
        mean, squares = np.trace(of_residual), np.trace(of_residual @ of_residual)

        def quantile(freedom: float) -> float:
            return float((1 - 2 / (9 * freedom) + norm.ppf(0.99) * np.sqrt(2 / (9 * freedom))) ** 3)

        factor = noise * (D - K) * quantile(D - K) / (mean * quantile(mean**2 / squares))
        np.testing.assert_allclose(q[row], factor * np.sum((left @ z) ** 2), rtol=1e-8)
    assert t2[7] == q[7] == 0


def test_rows_that_are_left_out_have_neither(rows: NDArray[np.float64], tmp_path: Path) -> None:
    table = rows.copy()
    table[3, 2] = np.nan
    t2, q = written(sp.PCA(K, missing="drop_rows").fit(table), table, tmp_path)
    assert np.flatnonzero(np.isnan(t2)).tolist() == np.flatnonzero(np.isnan(q)).tolist() == [3]


def test_missing_values_that_count_as_means_give_the_distances_of_the_filled_row(
    rows: NDArray[np.float64], tmp_path: Path
) -> None:
    table = with_holes(rows, 0.1)
    pca = sp.PCA(K, missing="mean", missing_scores="mean").fit(table)
    filled = np.where(np.isnan(table), np.nanmean(table, axis=0), table)
    for value, expected in zip(written(pca, table, tmp_path), plain(pca, filled), strict=True):
        np.testing.assert_allclose(value, expected, rtol=AGREEMENT)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_false_alarms_at_99_percent_are_between_half_a_percent_and_two(share: float, tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    factors = random.standard_normal((K, D)) * 2
    make = lambda n: random.standard_normal((n, K)) @ factors + random.standard_normal((n, D))  # noqa: E731
    pca = sp.PCA(K, missing="pairwise").fit(with_holes(make(20_000), share))
    new = with_holes(make(20_000), share)
    t2, q = written(pca, new, tmp_path)
    for alarms in ((t2 > pca.t2_limit(0.99)).mean(), (q > pca.q_limit(0.99)).mean()):
        assert 0.005 <= alarms <= 0.02


def test_limits_of_t2_are_those_of_tracy_young_and_mason(rows: NDArray[np.float64]) -> None:
    pca = sp.PCA(K).fit(rows)
    expected = {
        "f": K * (N**2 - 1) / (N * (N - K)) * f.ppf(0.95, K, N - K),
        "beta": (N - 1) ** 2 / N * beta.ppf(0.95, K / 2, (N - K - 1) / 2),
        "chi2": chi2.ppf(0.95, K),
    }
    for distribution, limit in expected.items():
        np.testing.assert_allclose(pca.t2_limit(0.95, distribution=distribution), limit, rtol=1e-9)  # type: ignore[arg-type]
    assert pca.t2_limit(np.float32(0.5)) == pca.t2_limit(0.5)  # type: ignore[arg-type]
    biased = sp.PCA(K, ddof=0).fit(rows)  # eigenvalues are smaller by (n − 1) / n, so T² and its limit are larger
    np.testing.assert_allclose(biased.t2_limit(0.95), expected["f"] * N / (N - 1), rtol=1e-9)


def test_weights_of_rows_count_as_repetitions_in_the_limits(rows: NDArray[np.float64]) -> None:
    weights = np.where(np.arange(N) % 3 == 0, 2.0, 1.0)
    weighted = sp.PCA(K).fit(rows, sample_weight=weights)
    repeated = sp.PCA(K).fit(np.repeat(rows, weights.astype(int), axis=0))
    np.testing.assert_allclose(weighted.t2_limit(), repeated.t2_limit(), rtol=1e-12)
    np.testing.assert_allclose(weighted.q_limit(), repeated.q_limit(), rtol=1e-9)


def test_limit_of_q_is_that_of_jackson_and_mudholkar(rows: NDArray[np.float64], tmp_path: Path) -> None:
    left = np.linalg.eigvalsh(np.cov(rows.T))[: D - K]
    one, two, three = (float((left**power).sum()) for power in (1, 2, 3))
    h = 1 - 2 * one * three / (3 * two**2)
    z = norm.ppf(0.99)
    expected = one * (z * np.sqrt(2 * two * h**2) / one + 1 + two * h * (h - 1) / one**2) ** (1 / h)
    pca = sp.PCA(K).fit(rows)
    np.testing.assert_allclose(pca.q_limit(0.99), expected, rtol=1e-9)
    assert sp.load(pca.save(tmp_path / "model.zarr")).q_limit() == pca.q_limit()  # type: ignore[union-attr]


def test_limit_of_q_of_a_sketch_is_that_of_box(rows: NDArray[np.float64]) -> None:
    pca = sp.PCA(K, solver="sketch").fit(rows)
    left = np.linalg.eigvalsh(np.cov(rows.T))[: D - K]
    g, h = (left**2).sum() / left.sum(), left.sum() ** 2 / (left**2).sum()
    assert len(pca._model.residual_moments) == 1
    np.testing.assert_allclose(pca.q_limit(0.99), g * chi2.ppf(0.99, h), rtol=1e-8)  # the sketch is wider than the rows


@pytest.mark.parametrize("scale", [False, True])
def test_second_moment_of_a_narrow_sketch_is_estimated_from_what_it_lacks(scale: bool) -> None:
    random, d, k = np.random.default_rng(5), 150, 2
    rows = random.standard_normal((1000, d)) * np.linspace(4, 0.5, d) @ np.linalg.qr(random.standard_normal((d, d)))[0]
    left = np.linalg.eigvalsh(np.corrcoef(rows.T) if scale else np.cov(rows.T))[: d - k]
    moments = sp.PCA(k, solver="sketch", scale=scale).fit(rows)._model.residual_moments
    np.testing.assert_allclose(moments, [(left**2).sum() / left.sum() ** 2], rtol=0.1)


def test_limits_that_are_not_known_are_refused(rows: NDArray[np.float64]) -> None:
    with pytest.raises(NotAvailableError, match="carry all variance"):
        sp.PCA().fit(rows).q_limit()
    with pytest.raises(NotAvailableError, match="more rows than components"):
        sp.PCA(10).fit(rows[:11]).t2_limit(distribution="beta")
    old = sp.PCA(K).fit(rows)
    old._model = replace(old._model, residual_moments=())  # as models of 0.1 are loaded
    with pytest.raises(NotAvailableError, match="earlier version"):
        old.q_limit()
    with pytest.raises(ParameterError, match=r"expected a number in \(0, 1\)"):
        sp.PCA(K).fit(rows).t2_limit(99)
    with pytest.raises(ParameterError, match="distribution='normal'"):
        sp.PCA(K).fit(rows).t2_limit(distribution="normal")  # type: ignore[arg-type]


def test_kernel_pca_has_no_diagnostics(rows: NDArray[np.float64], tmp_path: Path) -> None:
    with pytest.raises(NotAvailableError, match="kernel PCA has none"):
        sp.KernelPCA(2, n_landmarks=20).fit(rows[:100]).transform_to(rows, tmp_path / "s.zarr", diagnostics=True)


@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.parametrize("whiten", [False, True])
def test_contributions_sum_to_t2_and_q(share: float, whiten: bool, rows: NDArray[np.float64], tmp_path: Path) -> None:
    table = with_holes(rows, share)
    pca = sp.PCA(K, missing="pairwise", scale=True, whiten=whiten).fit(table)
    t2, q = written(pca, table, tmp_path)
    shares = pca.contributions(table)
    np.testing.assert_allclose(shares.t2.sum(axis=1), t2, rtol=1e-8)
    np.testing.assert_allclose(shares.q.sum(axis=1), q, rtol=1e-8)
    assert not shares.q[np.isnan(table)].any()
    assert not shares.t2[np.isnan(table)].any()


def test_the_feature_that_was_changed_contributes_most_and_is_named(rows: NDArray[np.float64]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows, columns=[f"gauge {j}" for j in range(D)])
    pca = sp.PCA(K).fit(frame)
    frame.iloc[5, 11] += 40
    largest = pca.contributions(frame.iloc[5:6]).largest(2)
    assert largest[0][0][0] == "gauge 11"
    assert largest[0][0][1] > 10 * largest[0][1][1]


def test_t2_of_float32_rows_does_not_divide_rounding_by_small_eigenvalues(tmp_path):
    """`qr` tells components of 1e-12 of the first variance from rounding, which float32 products of rows do not."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    rows = (rng.standard_normal((200, 12)) * 10.0 ** -np.linspace(0, 6, 12) @ turn).astype("f4")
    pca = sp.PCA(8, solver="qr").fit(rows)
    scores = (rows - pca.mean_) @ pca.components_.T
    expected = (scores**2 / pca.explained_variance_).sum(axis=1)
    found = zarr.open_group(pca.transform_to(rows, tmp_path / "out", diagnostics=True))["t2"][:]
    assert np.abs(found - expected).max() <= 1e-5 * expected.max()
    assert pca.transform(rows).dtype == np.float32
