"""The Gram solver against numpy's SVD, in every layout, and the conversions of eigenvectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import fit
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import NotFiniteError, ParameterError
from streampca.metrics import principal_angles

pytestmark = pytest.mark.numerical


def wide(n: int = 60, d: int = 1501, seed: int = 0, far: float = 5.0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return (
        (rng.standard_normal((n, 20)) * np.arange(1, 21) ** -0.7) @ rng.standard_normal((20, d))
        + 0.05 * rng.standard_normal((n, d))
        + far
    )


def oracle(rows: NDArray[Any], *, center: bool, scale: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = rows.astype(np.float64)
    x = (x - x.mean(axis=0) * center) / (x.std(axis=0, ddof=1) if scale else 1.0)
    _, s, v = np.linalg.svd(x, full_matrices=False)
    return s**2 / (len(x) - 1), v


def stored(path: Path, rows: NDArray[Any], chunks: tuple[int, int], **options: Any) -> str:
    array = zarr.create_array(path / "wide.zarr", shape=rows.shape, chunks=chunks, dtype=rows.dtype, **options)
    array[...] = rows
    return str(path / "wide.zarr")


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("chunks", [(60, 200), (17, 300), (7, 1501), None])
def test_equals_the_svd(tmp_path: Path, dtype: str, center: bool, scale: bool, chunks: tuple[int, int] | None) -> None:
    rows = wide().astype(dtype)
    data = rows if chunks is None else stored(tmp_path, rows, chunks)
    pca = sp.PCA(8, solver="gram", center=center, scale=scale).fit(data)
    values, vectors = oracle(rows, center=center, scale=scale)
    # float32 products: 1e-7 of the largest eigenvalue, hence more of the eighth where the far mean is kept.
    error = (1e-11 if dtype == "f8" else 2e-7) * values[0]
    assert np.abs(pca.explained_variance_ - values[:8]).max() <= error
    gap = (values[:8] - values[1:9]).min()
    assert np.sin(principal_angles(pca.components_, vectors[:8])).max() <= 4 * error / gap
    assert np.abs(pca.components_ @ pca.components_.T - np.eye(8)).max() <= 1e-12
    assert pca.total_variance_ == pytest.approx(values.sum(), rel=1e-6)
    largest = np.abs(pca.components_).argmax(axis=1)
    assert (pca.components_[np.arange(8), largest] > 0).all()
    assert pca.n_passes_ == 2
    assert pca.bytes_read_ == 2 * rows.nbytes


@pytest.mark.slow
def test_compressed_row_chunks_that_do_not_fit_are_copied_to_disk(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((400, 60_000)).astype("f4")
    path = stored(tmp_path, rows, (50, 60_000))
    process = sp.PCA(5, solver="gram").plan(path).memory["process"]
    pca = sp.PCA(5, solver="gram", memory=process + 200 * 2**20)
    plan = pca.plan(path)
    pca.fit(path)
    assert pca.bytes_read_ == plan.bytes_to_read
    copied = plan.n_blocks > 1
    assert plan.bytes_to_read == (1 if copied else 2) * rows.nbytes
    assert copied == any("copied to a temporary directory" in note for note in plan.notes)


def test_auto_takes_gram_for_wide_data_only() -> None:
    rows = wide()
    assert sp.PCA(3).fit(rows).solver_ == "gram"
    assert sp.PCA(3).fit(rows[:, :300]).solver_ == "covariance"
    assert sp.PCA(3).fit(np.vstack([rows] * 20)).solver_ == "covariance"


def test_wide_and_tall_solvers_agree_and_transform_alike() -> None:
    rows = wide(far=1e6)
    wide_, tall = (sp.PCA(6, solver=solver).fit(rows) for solver in ("gram", "covariance"))
    np.testing.assert_allclose(wide_.explained_variance_, tall.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(wide_.components_, tall.components_, atol=1e-8)
    np.testing.assert_allclose(wide_.transform(rows), tall.transform(rows), atol=1e-6)


def test_components_beyond_the_rank_are_orthonormal_and_repeatable() -> None:
    rows = wide(n=12, d=700)
    first, second = (sp.PCA(12, solver="gram").fit(rows) for _ in range(2))
    assert first.components_.shape == (12, 700)
    assert first.numerical_rank_ == 11
    assert np.abs(first.components_ @ first.components_.T - np.eye(12)).max() <= 1e-12
    np.testing.assert_array_equal(first.components_, second.components_)


def test_a_constant_feature_gets_no_weight_and_values_that_leave_float32_survive() -> None:
    rows = wide(d=900).astype("f4")
    rows[:, 3] = 0.1
    pca = sp.PCA(4, solver="gram", scale=True).fit(rows)
    assert pca.constant_features_.tolist() == [3]
    assert np.abs(pca.components_[:, 3]).max() == 0
    tiny = (wide(d=900, far=0) * 1e-25).astype("f4")
    values, _ = oracle(tiny, center=True, scale=False)
    np.testing.assert_allclose(sp.PCA(4, solver="gram").fit(tiny).explained_variance_, values[:4], rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(bad: float) -> None:
    rows = wide()
    rows[41, 1234] = bad
    with pytest.raises(NotFiniteError, match="row 41, column 1234"):
        sp.PCA(3, solver="gram").fit(rows)


def test_bits_do_not_depend_on_threads_or_merge_order() -> None:
    rows = np.random.default_rng(1).standard_normal((300, 60_000)).astype("f4")
    fits = [fit(rows, k=5, solver="gram", threads=threads) for threads in (1, 2, 3)]
    assert fits[0].plan.n_leaves > 1
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].model.components, other.model.components)
        np.testing.assert_array_equal(fits[0].model.explained_variance, other.model.explained_variance)


def test_eigenvectors_convert_both_ways() -> None:
    rows = wide(n=20, d=50)
    x = rows - rows.mean(axis=0)
    u, s, v = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(sp.conversion.components_from_gram(x, u[:, :5], s[:5] ** 2), v[:5], atol=1e-12)
    np.testing.assert_allclose(sp.conversion.gram_vectors_from_components(x, v[:5], s[:5] ** 2), u[:, :5], atol=1e-12)
    with pytest.raises(ParameterError, match="not positive"):
        sp.conversion.components_from_gram(x, u[:, :2], [1.0, 0.0])
    with pytest.raises(ParameterError, match="do not agree"):
        sp.conversion.components_from_gram(x[:5], u[:, :2], s[:2])


def test_scores_of_a_run_need_no_reading(tmp_path: Path) -> None:
    rows = wide(n=50, d=2000)
    path = stored(tmp_path, rows, (50, 500))
    (tmp_path / "run.yaml").write_text(
        f"source: {{path: {path}}}\nmodel: {{n_components: 5, whiten: true}}\noutput: {{directory: {tmp_path / 'out'}, report: false}}\n"
    )
    run = sp.run(tmp_path / "run.yaml")
    scores = zarr.open_array(tmp_path / "out" / "scores.zarr" / "scores", mode="r")[...]
    np.testing.assert_allclose(scores, run.model.transform(rows), atol=1e-8)
    assert run.manifest["passes"] == 2
    assert run.manifest["reads"]["scores"] is None
