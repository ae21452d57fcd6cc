"""`scale="poisson"` and `scale="patterson"` against numpy: features divided by the standard deviations that their means tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import DataError, MergeError, NotAvailableError, ParameterError

EXPECTED = {"poisson": lambda mean: mean, "patterson": lambda mean: mean * (1 - mean / 2)}
SOLVERS = ("covariance", "gram", "qr", "sketch", "adaptive")


def rows_of(scale: str, n: int = 300, d: int = 40, dtype: Any = "f8") -> NDArray[Any]:
    """Return counts, or genotypes of two populations; the last feature is constant."""
    rng = np.random.default_rng(3)
    first, second = rng.uniform(0.05, 0.6, (2, d))
    share = np.where(np.arange(n)[:, None] < n // 3, first, second)
    rows = rng.poisson(40 * share) if scale == "poisson" else rng.binomial(2, share)
    rows[:, -1] = 1
    return rows.astype(dtype)


def truth(rows: NDArray[Any], scale: str, weight: Any = None, center: bool = True) -> tuple[Any, Any]:
    """Return the eigenvalues of the scaled covariance matrix, largest first, and the divisors."""
    weight = np.ones(len(rows)) if weight is None else weight
    mean = weight @ rows / weight.sum()
    about = rows - mean
    divided = np.where(about.any(axis=0), np.sqrt(EXPECTED[scale](mean)), 1.0)
    scaled = (about if center else np.where(about.any(axis=0), rows, 0.0)) / divided
    matrix = (scaled * weight[:, None]).T @ scaled / (weight.sum() - 1)
    return np.linalg.eigvalsh(matrix)[::-1], divided


@pytest.mark.parametrize("scale", EXPECTED)
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("solver", SOLVERS)
def test_eigenvalues_are_those_of_numpy(scale: str, center: bool, solver: str) -> None:
    rows = rows_of(scale)
    values, divided = truth(rows, scale, center=center)
    exact = solver in ("covariance", "gram", "qr")
    k, more = (3, {}) if exact else (3, {"sketch_size": 39})
    pca = sp.PCA(k, solver=solver, scale=scale, center=center, **more).fit(rows)
    np.testing.assert_allclose(pca.scale_, divided, rtol=1e-12)
    if exact or solver == "sketch":
        np.testing.assert_allclose(pca.explained_variance_, values[:k], rtol=1e-9)
    low = pca.explained_variance_ * (1 - 1e-9)
    assert (low <= values[:k]).all()
    centred = (rows - (pca.mean_ if center else 0)) / divided
    np.testing.assert_allclose(pca.transform(rows), centred @ pca.components_.T, atol=1e-8)
    np.testing.assert_allclose(pca.total_variance_, values.sum(), rtol=1e-9)


@pytest.mark.parametrize("scale", EXPECTED)
@pytest.mark.parametrize("dtype", ["u1", "f4", "i4"])
@pytest.mark.parametrize("solver", ["covariance", "gram", "sketch"])
def test_rows_of_any_type_weights_and_blocks(scale: str, dtype: str, solver: str) -> None:
    rows = rows_of(scale, dtype=dtype)
    weight = np.random.default_rng(1).integers(0, 4, len(rows)).astype("f8")
    values, _ = truth(rows.astype("f8"), scale, weight)
    more = {"sketch_size": 39} if solver == "sketch" else {}
    lazy = da.from_array(rows, chunks=(37, 40))
    pca = sp.PCA(3, solver=solver, scale=scale, **more).fit(lazy, sample_weight=weight)
    np.testing.assert_allclose(pca.explained_variance_, values[:3], rtol=2e-6 if dtype == "f4" else 1e-9)


@pytest.mark.parametrize("solver", ["covariance", "gram", "sketch"])
def test_sparse_rows(solver: str) -> None:
    rows = rows_of("poisson") * (np.random.default_rng(5).random((300, 40)) < 0.2)
    values, _ = truth(rows, "poisson")
    more = {"sketch_size": 40} if solver == "sketch" else {}
    pca = sp.PCA(3, solver=solver, scale="poisson", **more).fit(scipy.sparse.csr_array(rows))
    np.testing.assert_allclose(pca.explained_variance_, values[:3], rtol=1e-9)


@pytest.mark.parametrize("missing", ["mean", "pairwise", "drop_rows"])
def test_missing_values_have_no_part_in_the_means(missing: Any) -> None:
    rows = rows_of("patterson").astype("f4")
    rows[np.random.default_rng(2).random(rows.shape) < 0.002] = np.nan
    pca = sp.PCA(3, scale="patterson", missing=missing).fit(rows)
    whole = rows[np.isfinite(rows).all(axis=1)] if missing == "drop_rows" else rows
    mean = np.nanmean(whole.astype("f8"), axis=0)
    np.testing.assert_allclose(pca.scale_[:-1], np.sqrt(EXPECTED["patterson"](mean))[:-1], rtol=1e-6)
    if missing == "mean":
        values, _ = truth(np.where(np.isnan(rows), mean, rows).astype("f8"), "patterson")
        np.testing.assert_allclose(pca.explained_variance_, values[:3], rtol=1e-5)


@pytest.mark.parametrize("solver", ["sketch", "adaptive", "gram"])
@pytest.mark.parametrize("weighted", [False, True])
def test_missing_values_are_means_with_every_solver(solver: Any, weighted: bool) -> None:
    rows = rows_of("patterson", d=30).astype("f8")
    rows[np.random.default_rng(2).random(rows.shape) < 0.03] = np.nan
    rows[:, -1] = 1
    mean = np.nanmean(rows, axis=0)
    weight = np.random.default_rng(4).uniform(0.5, 2, 30) if weighted else None
    filled = np.where(np.isnan(rows), mean, rows) - mean
    divided = np.where(filled.any(axis=0), np.sqrt(EXPECTED["patterson"](mean)), 1.0)
    scaled = filled / divided * (1.0 if weight is None else np.sqrt(weight))
    values = np.linalg.svd(scaled, compute_uv=False) ** 2 / 299
    more = {} if solver == "gram" else {"sketch_size": 30}
    pca = sp.PCA(3, solver=solver, scale="patterson", missing="mean", feature_weight=weight, **more).fit(rows)
    np.testing.assert_allclose(pca.scale_, divided, rtol=1e-9)
    np.testing.assert_allclose(pca.explained_variance_, values[:3], rtol=1e-8)
    np.testing.assert_allclose(pca.total_variance_, (values).sum(), rtol=1e-8)
    found = pca.transform(np.where(np.isnan(rows), mean, rows))
    np.testing.assert_allclose(np.abs(found), np.abs(scaled @ pca.components_.T), atol=1e-7)


@pytest.mark.parametrize("scale", EXPECTED)
def test_batches_states_and_merges_have_the_scales_of_all_rows(scale: str, tmp_path: Path) -> None:
    rows = rows_of(scale)
    values, divided = truth(rows, scale)
    batches = sp.PCA(3, scale=scale).partial_fit(rows[:100]).partial_fit(rows[100:])
    parts = [sp.PCA(3, scale=scale, solver="covariance").fit(part) for part in (rows[:170], rows[170:])]
    for index, part in enumerate(parts):
        part.save(tmp_path / str(index), state=True)
    merged = sp.merge([sp.load(tmp_path / "0"), sp.load(tmp_path / "1")])
    for pca in (batches, merged):
        np.testing.assert_allclose(pca.explained_variance_, values[:3], rtol=1e-9)
        np.testing.assert_allclose(pca.scale_, divided, rtol=1e-12)
    assert sp.load(tmp_path / "0").scale == scale
    other = sp.PCA(3, scale=True, solver="covariance").fit(rows)
    with pytest.raises(MergeError, match="scale"):
        sp.merge([parts[0], other])


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr", "sketch"])
@pytest.mark.parametrize(
    ("scale", "rows", "message"),
    [
        ("poisson", -rows_of("poisson"), r"for counts: expected means above 0; feature 0 has the mean -"),
        ("patterson", rows_of("poisson"), r"for genotypes of diploids .* between 0 and 2; feature 0 has the mean"),
    ],
)
def test_data_of_another_kind_are_refused(solver: str, scale: str, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        sp.PCA(2, solver=solver, scale=scale).fit(rows)


@pytest.mark.parametrize("scale", EXPECTED)
def test_residuals_have_no_means(scale: str) -> None:
    with pytest.raises(NotAvailableError, match=f"remove and scale='{scale}' cannot be combined"):
        sp.PCA(2, scale=scale, remove={"groups": np.arange(300) % 3}).fit(rows_of(scale))


def test_unknown_names_are_listed() -> None:
    with pytest.raises(ParameterError, match=r"poisson.*patterson"):
        sp.PCA(2, scale="pareto").fit(rows_of("poisson"))  # type: ignore[arg-type]


def test_sampling_errors_cover_what_new_rows_give() -> None:
    rng = np.random.default_rng(0)
    axes = rng.normal(size=(2, 30)) * 0.3
    level = rng.uniform(5, 50, 30)

    def draw(n: int) -> Any:
        return rng.poisson(level * np.exp(rng.normal(size=(n, 2)) @ axes))

    large = sp.PCA(2, scale="poisson").fit(draw(200_000)).explained_variance_
    inside = 0
    for _ in range(40):
        pca = sp.PCA(2, scale="poisson", sampling_errors=20).fit(draw(400))
        inside += int((np.abs(pca.explained_variance_ - large) <= 2.1 * pca.sampling_error_.eigenvalues).sum())
    assert inside >= 0.8 * 80
