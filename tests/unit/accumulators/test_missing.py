"""Rows with missing values at the edges: what is refused, what is reported, and what a run does with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from facade import fold
from numpy.typing import NDArray

import streampca as sp
from streampca import PCA
from streampca.accumulators import Covariance, PairwiseCovariance
from streampca.block import Block
from streampca.errors import DataError, NotAvailableError, NotFiniteError

pytestmark = pytest.mark.numerical

RNG = np.random.default_rng(1)
NAN = np.nan


def holed(n: int = 400, d: int = 6, share: float = 0.1) -> NDArray[np.float64]:
    rows = RNG.standard_normal((n, d)) @ RNG.standard_normal((d, d)) + 2
    rows[RNG.random(rows.shape) < share] = NAN
    return rows


def test_nan_is_an_error_unless_it_has_a_meaning() -> None:
    with pytest.raises(NotFiniteError, match="contains NaN"):
        PCA().fit(holed())
    pca = PCA().fit(np.nan_to_num(holed()))
    with pytest.raises(ValueError, match="NaN"):
        pca.transform(holed())


@pytest.mark.parametrize("missing", ["drop_rows", "mean", "pairwise"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_infinity_is_always_an_error(tmp_path: Path, missing: str, dtype: str) -> None:
    rows = holed().astype(dtype)
    rows[17, 2], rows[3, 1] = -np.inf, NAN
    with pytest.raises(NotFiniteError, match="contains infinity: first at row 17, column 2 "):
        PCA(missing=missing).fit(rows)
    with pytest.raises(NotFiniteError, match="contains infinity: first at row 17, column 2 "):
        PCA(missing=missing).fit(da.from_array(rows, chunks=(10, 6)))
    rows[17, 2] = 0
    pca = PCA(1, missing=missing).fit(rows)
    rows[17, 2] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        pca.transform(rows)
    with pytest.raises(NotFiniteError, match="infinity"):
        pca.transform_to(da.from_array(rows), tmp_path / "scores")


@pytest.mark.parametrize(
    ("rows", "missing", "message"),
    [
        ([[1.0, NAN], [2.0, NAN], [4.0, NAN]], "mean", "no values observed for 1 feature, first: feature 1"),
        ([[1.0, NAN], [2.0, NAN], [4.0, NAN]], "pairwise", "no values observed for 1 feature, first: feature 1"),
        (
            [[1.0, NAN], [2.0, 1.0], [NAN, 5.0], [NAN, 6.0]],
            "pairwise",
            "features 0 and 1 were observed together in rows of weight 1",
        ),
        (
            [[1.0, NAN], [2.0, NAN], [NAN, 5.0], [NAN, 6.0]],
            "pairwise",
            "features 0 and 1 were observed together in rows of weight 0",
        ),
        ([[1.0, NAN], [2.0, NAN]], "drop_rows", "no row is left: all 2"),
        ([[1.0, NAN], [2.0, 3.0]], "drop_rows", "found 1 sample"),
    ],
)
def test_too_little_was_observed(rows: Any, missing: str, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        PCA(missing=missing).fit(np.array(rows))


def test_rows_of_nothing_but_nan_count_when_means_are_filled_in() -> None:
    rows = holed()
    rows[[5, 9]] = NAN
    pca = PCA(missing="mean").fit(rows)
    assert pca.n_samples_seen_ == 400
    np.testing.assert_allclose(pca.transform(rows)[[5, 9]], 0, atol=1e-12)
    by_pairs = PCA(missing="pairwise").fit(rows)
    np.testing.assert_allclose(
        by_pairs.explained_variance_, PCA(missing="pairwise").fit(np.delete(rows, [5, 9], 0)).explained_variance_
    )


def test_complete_rows_take_the_cheap_way() -> None:
    rows = np.nan_to_num(holed())
    state = fold(PairwiseCovariance(), rows)
    assert state.complete == 400
    assert not state.counts.any()
    assert not state.sums.any()
    np.testing.assert_allclose(
        PairwiseCovariance().finalize(state).dense(), Covariance().finalize(fold(Covariance(), rows)).dense()
    )


def test_clipped_mass_and_negative_eigenvalues_are_reported(tmp_path: Path) -> None:
    """Of three features, each pair observed in other rows, with correlations 1, 1 and −1: eigenvalues 2, 2 and −1."""
    t = np.linspace(-1, 1, 30)
    pairs = [(0, 1, 1), (1, 2, 1), (0, 2, -1)]
    rows = np.full((90, 3), NAN)
    for block, (i, j, sign) in enumerate(pairs):
        rows[30 * block : 30 * (block + 1), [i, j]] = np.stack([t, sign * t], axis=1)
    pca = PCA(missing="pairwise", scale=True).fit(rows)
    # Variances are of 60 observed values, covariances of 30 common ones: 59/60 · 30/29 of each other.
    factor = (t @ t / 29) / (2 * (t @ t) / 59)
    np.testing.assert_allclose(pca.explained_variance_, [1 + factor, 1 + factor, 0], atol=1e-12)
    assert pca.error_["clipped_mass"] == pytest.approx(2 * factor - 1)
    assert pca.total_variance_ == pytest.approx(3 + 2 * factor - 1)
    pca.save(tmp_path / "model")
    loaded = sp.load(tmp_path / "model")
    assert loaded.error_["clipped_mass"] == pca.error_["clipped_mass"]
    np.testing.assert_array_equal(loaded.transform(rows), pca.transform(rows))


def test_a_float32_mean_far_away_is_filled_in_exactly() -> None:
    rows = (holed() + 1e5).astype(np.float32)
    pca = PCA(6, missing="mean").fit(rows)
    nothing = np.full((1, 6), NAN, dtype=np.float32)
    np.testing.assert_allclose(pca.transform(nothing), 0, atol=1e-6)


def test_without_centring_nan_is_the_mean_and_not_zero() -> None:
    rows = holed() + 10
    pca = PCA(2, missing="mean", center=False, missing_scores="mean").fit(rows)
    filled = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
    np.testing.assert_allclose(pca.explained_variance_, np.linalg.eigvalsh(filled.T @ filled / 399)[::-1][:2])
    np.testing.assert_allclose(pca.transform(rows), filled @ pca.components_.T)


def test_integers_have_no_missing_values() -> None:
    rows = RNG.integers(0, 9, size=(50, 4), dtype=np.uint8)
    for missing in ("drop_rows", "mean", "pairwise"):
        np.testing.assert_allclose(
            PCA(missing=missing).fit(rows).explained_variance_, PCA().fit(rows).explained_variance_
        )


def test_forgetting_is_not_for_filled_means() -> None:
    with pytest.raises(NotAvailableError, match=r"forgetting=0\.9 and missing='mean' cannot be combined"):
        PCA(missing="mean", forgetting=0.9).fit(holed())


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("missing", ["drop_rows", "mean", "pairwise"])
def test_a_run_reports_missing_values(tmp_path: Path, missing: str) -> None:
    rows = holed(3000).astype(np.float32)
    zarr.create_array(str(tmp_path / "s.zarr"), data=rows, chunks=(500, 6))
    (tmp_path / "c.yaml").write_text(
        f"source: {{path: '{tmp_path}/s.zarr'}}\npreprocess: {{missing: {missing}}}\nmodel: {{n_components: 2}}\n"
        f"output: {{directory: '{tmp_path}/run', report: true}}\n"
    )
    run = sp.run(tmp_path / "c.yaml")
    scores = np.asarray(zarr.open_array(tmp_path / "run" / "scores.zarr" / "scores")[...])
    some = np.isnan(rows).any(axis=1)
    np.testing.assert_array_equal(np.isnan(scores).any(axis=1), some if missing == "drop_rows" else False)
    expected = {
        "drop_rows": f"{some.sum():,} rows were left out for missing values (NaN); their scores are NaN",
        "mean": f"{np.isnan(rows).sum():,} values are missing (NaN); scores of such rows are conditional means given what was observed",
    }
    assert expected.get(missing, expected["mean"]) in run.manifest["notes"]
    assert np.isfinite(np.asarray(zarr.open_array(tmp_path / "run" / "samples.zarr" / "rows")[...])).all()
    assert run.manifest["memory"]["peak_bytes"] <= run.manifest["memory"]["allowed_bytes"]


def test_more_rows_go_on_after_missing_ones() -> None:
    rows = holed(500)
    for missing in ("drop_rows", "mean", "pairwise"):
        grown, whole = PCA(missing=missing), PCA(missing=missing).fit(rows)
        for start in range(0, 500, 125):
            grown.partial_fit(rows[start : start + 125])
        np.testing.assert_allclose(grown.explained_variance_, whole.explained_variance_, rtol=1e-11)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_far_mean_that_is_filled_in_costs_the_gram_solver_no_digits(weighted: bool) -> None:
    """Where a mean of 1e8 deviations was rounded to float64, it stood for missing values in the second reading."""
    draw = np.random.default_rng(0)
    rows = 1e8 + draw.standard_normal((60, 8)) * np.arange(1, 9)
    rows[draw.random(rows.shape) < 0.4] = np.nan
    weights = np.random.default_rng(1).uniform(0, 2, 60) if weighted else None
    one, other = (PCA(3, solver=s, missing="mean").fit(rows, sample_weight=weights) for s in ("gram", "covariance"))
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-12)


@pytest.mark.parametrize("small", [2.5e-4, 8.7e-4])
@pytest.mark.parametrize("tile_size", [2, 1024])
def test_one_large_value_among_many_small_ones_costs_no_digits_beside_missing_values(
    small: float, tile_size: int
) -> None:
    """The small squares are rounded alike when they are added to the large one in float32: by 1e-5 of it in all."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1000, 20)).astype(np.float32)
    rows[:, 1] = np.where(np.arange(1000) % 2, small, -small)
    rows[np.arange(1000), rng.integers(0, 20, 1000)] = NAN
    rows[5, 1] = 1.0
    covariance = PairwiseCovariance(tile_size=tile_size, impute=True)
    result = covariance.finalize(covariance.update(covariance.init(20), rows))
    wide = rows.astype(np.float64)
    deviations = np.nan_to_num(wide - np.nanmean(wide, axis=0))
    np.testing.assert_allclose(result.variance, (deviations**2).sum(axis=0) / 999, rtol=4e-6)


def test_singular_values_of_pairwise_covariances_count_the_weights_of_all_rows() -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.normal(size=(200, 5)), rng.integers(1, 4, 200).astype(float)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    pca = sp.PCA(3, missing="pairwise").fit(rows, sample_weight=weights)
    expected = np.sqrt(pca.explained_variance_ * (weights.sum() - 1))
    np.testing.assert_allclose(pca.singular_values_, expected, rtol=1e-12)


def exact_of_weighted(rows: NDArray[np.float64], weights: NDArray[np.float64], *, scale: bool) -> NDArray[np.float64]:
    """Return the eigenvalues of rows with filled means, their moments in long double."""
    seen, values, weight = ~np.isnan(rows), rows.astype(np.longdouble), weights.astype(np.longdouble)[:, None]
    mean = np.nanmax(values, axis=0)
    for _ in range(4):
        mean = mean + (weight * (values - mean)).sum(axis=0, where=seen) / (weight * seen).sum(axis=0)
    left = np.where(seen, values - mean, 0) * np.sqrt(weight / (weight.sum() - 1))
    if scale:
        left = left / np.sqrt(np.square(left).sum(axis=0))
    return np.linalg.svd(left.astype(np.float64), compute_uv=False) ** 2


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("chunk", [7, 60])
@pytest.mark.parametrize("seed", range(6))
def test_weights_of_18_decades_beside_filled_means_cost_no_digits(seed: int, chunk: int, scale: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((60, 6)) * 10.0 ** rng.uniform(-2, 2, 6)
    rows[rng.random(rows.shape) < 0.15] = NAN
    rows[5] = 1.0
    weights = 10.0 ** rng.uniform(-9, 9, 60)
    if seed % 2:  # a heavy row with a hole
        weights, at = rng.uniform(1, 10, 60), [0, 30, 59][seed // 2]
        weights[at], rows[at], rows[at, 3] = 1e9, 5.0, NAN
    pca = PCA(solver="covariance", missing="mean", scale=scale)
    pca.fit(da.from_array(rows, chunks=(chunk, 6)), sample_weight=weights)
    exact = exact_of_weighted(rows, weights, scale=scale)
    assert np.abs(pca.explained_variance_ - exact).max() / exact[0] <= pca.error_["trusted_above"]
    accumulator = PairwiseCovariance(scale=scale, impute=True)
    states = [
        accumulator.update(accumulator.init(6), Block(rows[part], part.start, weights[part]))
        for part in (slice(0, 20), slice(20, 60))
    ]
    for order in (states, states[::-1]):
        found = np.linalg.eigvalsh(accumulator.finalize(accumulator.merge(order)).dense())[::-1]
        assert np.abs(found - exact).max() / exact[0] <= 1e-14
