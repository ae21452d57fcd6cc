"""Scores of rows with holes: the conditional mean given the observed features, by every way of making scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from stores import Command, config_text, make_values, write_store

import streampca as sp
from streampca import PCA
from streampca.errors import MergeError, ParameterError

pytestmark = pytest.mark.numerical

NAN = np.nan
EPS = float(np.finfo(np.float64).eps)


def factors(n: int, d: int, k: int, seed: int, noise: float = 0.3) -> NDArray[np.float64]:
    """Return rows of k factors with decaying strength, and noise."""
    rng = np.random.default_rng(seed)
    loadings = np.linalg.qr(rng.standard_normal((d, k)))[0] * (4.0 * 0.8 ** np.arange(k))
    return rng.standard_normal((n, k)) @ loadings.T + noise * rng.standard_normal((n, d)) + 10 * rng.standard_normal(d)


def holed(rows: NDArray[Any], share: float, seed: int = 1) -> NDArray[Any]:
    """Return `rows` with this share of values missing at random."""
    rows = rows.copy()
    rows[np.random.default_rng(seed).random(rows.shape) < share] = NAN
    return rows


def expected_scores(pca: PCA, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return Vᵀ E[z | z_o] by dense d x d algebra, by rows; without noise as the limit of little noise."""
    factor = np.ones(rows.shape[1]) if pca.feature_weight is None else np.sqrt(pca.feature_weight)
    z = (rows.astype(np.float64) - pca.mean_) * factor / (1.0 if pca.scale_ is None else pca.scale_)
    covariance = pca.get_covariance()
    scores = np.empty((len(rows), pca.n_components_))
    for i, row in enumerate(z):
        seen = ~np.isnan(row)
        inverse = np.linalg.pinv(covariance[np.ix_(seen, seen)], hermitian=True, rcond=1e-11)
        full = covariance[:, seen] @ inverse @ np.where(seen, row, 0.0)[seen]
        full[seen] = row[seen]
        scores[i] = pca.components_ @ full
    return scores / np.sqrt(pca.explained_variance_) if pca.whiten else scores


def close(found: NDArray[Any], expected: NDArray[Any], eps: float = EPS, growth: float = 1.0) -> None:
    """Compare relative to the largest score: 100 k eps times what the systems magnify."""
    bound = 100 * expected.shape[1] * eps * growth * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=max(bound, 1e-300), rtol=0)


@pytest.mark.parametrize("missing", ["mean", "pairwise"])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_conditional_means(missing: str, scale: bool, whiten: bool, weighted: bool) -> None:
    rows = holed(factors(300, 9, 3, 0), 0.2)
    rows[5], rows[6, 1:] = NAN, NAN
    weight = np.linspace(0.5, 2, 9) if weighted else None
    pca = PCA(3, missing=missing, scale=scale, whiten=whiten, feature_weight=weight).fit(rows)
    scores = pca.transform(rows)
    growth = pca.explained_variance_[0] / pca.noise_variance_
    close(scores, expected_scores(pca, rows), growth=growth)
    np.testing.assert_array_equal(scores[5], 0)
    whole = np.isfinite(rows).all(axis=1)
    plain = PCA(3, missing=missing, scale=scale, whiten=whiten, feature_weight=weight, missing_scores="mean").fit(rows)
    np.testing.assert_array_equal(scores[whole], plain.transform(rows)[whole])
    assert np.abs(scores - plain.transform(rows))[~whole].max() > 0.1


def test_without_noise_it_is_the_least_squares_fit() -> None:
    complete = factors(200, 8, 3, 3, noise=0.0)
    pca = PCA(3, missing="mean").fit(complete)
    rows = holed(complete, 0.3)
    enough = np.isfinite(rows).sum(axis=1) >= 5
    growth = 1 / min(np.linalg.svd(pca.components_[:, np.isfinite(row)])[1][-1] ** 2 for row in rows[enough])
    found = pca.transform(rows)[enough]
    close(found, pca.transform(complete)[enough], growth=10 * growth)


def test_the_error_falls_and_alarms_are_as_rare_as_they_should_be() -> None:
    """15 % missing: the rms error is that of the conditional law, and Q exceeds its 99 % limit in about 1 % of rows."""
    n, d, k = 4000, 30, 3
    complete = factors(n, d, k, 5)
    rows = holed(complete, 0.15)
    pca = PCA(k, missing="pairwise").fit(rows)
    plain = PCA(k, missing="pairwise", missing_scores="mean").fit(rows)
    spread = np.sqrt(pca.explained_variance_)
    right = pca.transform(complete)
    covariance, axes = pca.get_covariance(), pca.components_
    law = np.zeros(k)
    for row in rows:
        seen = np.isfinite(row)
        gone = covariance[np.ix_(~seen, ~seen)] - covariance[np.ix_(~seen, seen)] @ np.linalg.solve(
            covariance[np.ix_(seen, seen)], covariance[np.ix_(seen, ~seen)]
        )
        law += np.einsum("ij,jk,ik->i", axes[:, ~seen], gone, axes[:, ~seen]) / n
    errors, before = (np.sqrt(np.square(found.transform(rows) - right).mean(axis=0)) for found in (pca, plain))
    # The mean of n squares of normal numbers has a relative deviation of √(2 / n); the model is estimated, too.
    np.testing.assert_allclose(errors, np.sqrt(law), rtol=4 * np.sqrt(2 / n) + 2 * np.sqrt(d / n))
    assert (errors / spread < 0.1).all()
    assert (before > 3 * errors).all()

    def q(model: PCA, rows: NDArray[Any]) -> NDArray[np.float64]:
        left = np.nan_to_num(rows - model.inverse_transform(model.transform(rows)))
        squares: NDArray[np.float64] = np.square(left).sum(axis=1)
        return squares

    limit = np.quantile(q(pca, complete), 0.99)
    deviation = np.sqrt(0.01 * 0.99 / n)
    assert (q(pca, rows) > limit).mean() < 0.01 + 4 * deviation
    assert (q(plain, rows) > limit).mean() > 0.05


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("whiten", [False, True])
def test_every_way_gives_the_same_scores(tmp_path: Path, dtype: str, whiten: bool) -> None:
    rows = holed(factors(240, 12, 4, 7), 0.15).astype(dtype)
    store = zarr.create_array(str(tmp_path / "x.zarr"), data=rows, chunks=(50, 5))
    pca = PCA(4, missing="mean", whiten=whiten).fit(store)
    eps, growth = float(np.finfo(dtype).eps), 1 + pca.explained_variance_[0] / pca.noise_variance_
    expected = expected_scores(pca, rows)
    written = zarr.open_array(pca.transform_to(store, tmp_path / "s") / "scores", mode="r")[...]
    lazy = pca.transform(da.from_array(rows, chunks=(70, 12))).compute()
    loaded = sp.load(pca.save(tmp_path / "model"))
    assert loaded.missing_scores == "conditional"
    for found in (written, lazy, pca.transform(rows), loaded.transform(rows)):
        assert found.dtype == np.dtype(dtype)
        close(found, expected, eps, growth)
    one_by_one = np.vstack([pca.transform(rows[i : i + 1]) for i in range(len(rows))])
    close(one_by_one, expected, eps, growth)


@pytest.mark.parametrize("solver", ["covariance", "gram"])
@pytest.mark.parametrize("choice", ["conditional", "mean"])
def test_runs_and_the_transform_command_honour_the_choice(
    tmp_path: Path, solver: str, choice: str, capsys: Any
) -> None:
    rows = holed(factors(60, 40, 3, 2), 0.1)
    np.save(tmp_path / "x.npy", rows)
    config = tmp_path / "c.yaml"
    lines = (
        f"preprocess: {{missing: mean, missing_scores: {choice}}}",
        f"model: {{n_components: 3, solver: {solver}}}",
    )
    config.write_text(config_text(tmp_path / "x.npy", tmp_path / "run", *lines))
    run = sp.run(config)
    pca = PCA(3, solver=solver, missing="mean", missing_scores=choice).fit(rows)
    assert run.model.missing_scores == choice
    assert Command(capsys)("transform", tmp_path / "run", tmp_path / "x.npy", tmp_path / "s", "--quiet").status == 0
    for place in (tmp_path / "run/scores.zarr", tmp_path / "s"):
        close(zarr.open_array(place / "scores", mode="r")[...], pca.transform(rows), growth=1e4)
    says = any("conditional means" in warning for warning in run.manifest["notes"])
    assert says == (choice == "conditional")


@pytest.mark.slow
def test_readings_by_features_give_the_same(tmp_path: Path) -> None:
    """Scores are computed by features where components are on disk, as under a ceiling that does not hold them."""
    n, d, k = 50, 60_000, 40
    rows = holed(np.random.default_rng(9).standard_normal((n, 45)) @ make_values(45, d) + make_values(n, d, 1), 0.05)
    rows[3] = NAN
    store = zarr.open_array(write_store(tmp_path / "x.zarr", rows, chunks=(n, 1000)), mode="r")
    made: dict[str, Any] = {"n_components": k, "solver": "gram", "missing": "mean"}
    roomy = PCA(**made).fit(store)
    ceilings = range(PCA(**made).plan(store).projected_bytes, 0, -4 * 2**20)
    memory = next(size for size in ceilings if PCA(memory=size, **made).plan(store).components_on_disk)
    pca = PCA(memory=memory, **made).fit(store)
    assert pca.plan_.components_on_disk
    assert not roomy.plan_.components_on_disk
    pca.set_params(memory=None).transform_to(store, tmp_path / "scores")
    found = zarr.open_array(tmp_path / "scores" / "scores", mode="r")[...]
    growth = pca.explained_variance_[0] / pca.noise_variance_
    close(found, roomy.transform(rows), growth=growth)
    np.testing.assert_allclose(found[3], 0, atol=1e-9 * np.nanmax(np.abs(found)))


def test_bits_do_not_depend_on_the_rows_with_other_holes() -> None:
    complete = factors(200, 16, 5, 4)
    one, other = holed(complete, 0.2), holed(complete, 0.2, seed=2)
    other[::3] = one[::3]
    pca = PCA(5, missing="mean").fit(one)
    np.testing.assert_array_equal(pca.transform(one)[::3], pca.transform(other)[::3])


@pytest.mark.parametrize("scale", [False, True])
def test_the_likelihood_is_that_of_the_observed_values(scale: bool) -> None:
    rows = holed(factors(120, 7, 2, 6), 0.2)
    rows[4] = NAN
    pca = PCA(2, missing="mean", scale=scale).fit(rows)
    covariance = pca.get_covariance()
    z = (rows - pca.mean_) * (1.0 if pca.scale_ is None else 1 / pca.scale_)
    expected = np.zeros(len(rows))
    for i, row in enumerate(z):
        seen = np.isfinite(row)
        own = covariance[np.ix_(seen, seen)]
        quadratic = row[seen] @ np.linalg.solve(own, row[seen]) if seen.any() else 0.0
        expected[i] = -0.5 * (quadratic + np.linalg.slogdet(own)[1] + seen.sum() * np.log(2 * np.pi))
    growth = pca.explained_variance_[0] / pca.noise_variance_
    np.testing.assert_allclose(pca.score_samples(rows), expected, rtol=100 * 7 * EPS * growth, atol=1e-12)


@pytest.mark.parametrize("choice", ["zero", None, True])
def test_other_choices_are_refused(choice: Any) -> None:
    with pytest.raises(ParameterError, match=r"missing_scores=.*expected one of conditional, mean"):
        PCA(missing_scores=choice).fit(np.eye(3))


def test_models_of_both_kinds_are_not_merged() -> None:
    rows = holed(factors(80, 5, 2, 8), 0.1)
    one, other = (PCA(2, missing="mean", missing_scores=choice).fit(rows) for choice in ("conditional", "mean"))
    with pytest.raises(MergeError, match="missing_scores"):
        sp.merge([one, other])
