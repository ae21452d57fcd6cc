"""Every kind of row: weights are repetition, missing values are what numpy makes of the mask, sparse is dense, types are float64."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import spectra
import tolerances
import zarr
from facade import folded
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kinds import by_pairs, imputed
from numpy.typing import NDArray
from strategies import examples, make_rows

from streampca import PCA
from streampca.accumulators import Covariance, ExactIntegerCovariance

pytestmark = pytest.mark.numerical

EXAMPLES = examples(40)
seeds = st.integers(0, 2**32 - 1)
floats = st.sampled_from(["float64", "float32", "float16", ">f8", ">f4"])
sizes = st.tuples(st.integers(6, 60), st.integers(1, 6))
DTYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")


def spectrum_of(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(np.linalg.eigvalsh(matrix)[::-1], 0.0)


def assert_eigenvalues(pca: PCA, expected: NDArray[np.float64], tolerance: float) -> None:
    k = len(pca.explained_variance_)
    assert np.abs(pca.explained_variance_ - expected[:k]).max() <= tolerance * max(expected[0], 1e-300)


def with_holes(rows: NDArray[Any], share: float, seed: int) -> NDArray[Any]:
    """Return a copy with NaN; the first two rows stay complete, so that every pair is observed twice."""
    rows = rows.copy()
    rows[2:][np.random.default_rng(seed).random(rows[2:].shape) < share] = np.nan
    return rows


@st.composite
def storages(draw: st.DrawFn) -> Any:
    """Draw how rows are handed over: in memory, as a file, a store or Dask blocks."""
    kind, step = draw(st.sampled_from(["numpy", "npy", "zarr", "dask"])), draw(st.integers(1, 30))

    def store(rows: NDArray[Any], directory: Path) -> Any:
        if kind == "numpy":
            return rows
        if kind == "dask":
            return da.from_array(rows, chunks=(min(step, len(rows)), -1))
        path = directory / f"rows.{kind}"
        if kind == "npy":
            np.save(path, rows)
        else:
            array = zarr.create_array(
                str(path), shape=rows.shape, dtype=rows.dtype, chunks=(min(step, len(rows)), rows.shape[1])
            )
            array[...] = rows
        return path

    return store


@settings(max_examples=EXAMPLES)
@given(size=sizes, dtype=floats, seed=seeds, storage=storages(), scale=st.booleans(), center=st.booleans())
def test_weights_are_repetition(size: Any, dtype: str, seed: int, storage: Any, scale: bool, center: bool) -> None:
    rows = make_rows(*size, dtype, "normal", seed)
    weights = np.random.default_rng(seed).integers(0, 4, len(rows))
    repeated = rows.repeat(weights, axis=0)
    assume((weights > 0).sum() > 2)
    with tempfile.TemporaryDirectory() as directory:
        pca = PCA(1, scale=scale, center=center).fit(storage(rows, Path(directory)), sample_weight=weights)
    values, _ = spectra.lapack(repeated, scale=scale, center=center)
    assert_eigenvalues(pca, values, 10 * tolerances.eigenvalues(dtype))
    assert pca.n_samples_seen_ == (weights > 0).sum()
    np.testing.assert_allclose(pca.singular_values_**2, pca.explained_variance_ * (weights.sum() - 1), rtol=1e-12)
    if center:
        expected = repeated.astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(
            pca.mean_,
            expected,
            atol=1e-6 if np.dtype(dtype).name in ("bool", "int8", "uint8", "float16", "float32") else 1e-13,
        )


@settings(max_examples=EXAMPLES)
@given(
    size=sizes,
    seed=seeds,
    factor=st.sampled_from([1e-30, 1e-3, 7.5, 1e30]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_with_ddof_0_only_the_proportions_of_weights_count(size: Any, seed: int, factor: float, dtype: str) -> None:
    rows, weights = make_rows(*size, dtype, "normal", seed), np.random.default_rng(seed).random(size[0]) + 0.01
    one = PCA(1, ddof=0).fit(rows, sample_weight=weights)
    other = PCA(1, ddof=0).fit(rows, sample_weight=weights * factor)
    np.testing.assert_allclose(one.explained_variance_, other.explained_variance_, rtol=tolerances.eigenvalues(dtype))
    np.testing.assert_allclose(
        one.explained_variance_[0],
        spectrum_of(np.atleast_2d(np.cov(rows.T.astype(np.float64), aweights=weights, ddof=0)))[0],
        rtol=1e-6,
    )


@settings(max_examples=EXAMPLES)
@given(size=sizes, dtype=floats, seed=seeds, storage=storages(), scale=st.booleans(), center=st.booleans())
def test_rows_with_nan_are_left_out(size: Any, dtype: str, seed: int, storage: Any, scale: bool, center: bool) -> None:
    rows = with_holes(make_rows(*size, dtype, "normal", seed), 0.1, seed)
    whole = rows[~np.isnan(rows).any(axis=1)]
    with tempfile.TemporaryDirectory() as directory:
        pca = PCA(1, missing="drop_rows", scale=scale, center=center).fit(storage(rows, Path(directory)))
    assert_eigenvalues(pca, spectra.lapack(whole, scale=scale, center=center)[0], 10 * tolerances.eigenvalues(dtype))
    assert pca.error_["rows_left_out"] == len(rows) - len(whole) == len(rows) - pca.n_samples_seen_
    scores = pca.transform(rows)
    np.testing.assert_array_equal(np.isnan(scores).any(axis=1), np.isnan(rows).any(axis=1))
    # To rounding only: the kernel that BLAS takes for a product depends on its number of rows.
    expected, eps = pca.transform(whole), np.finfo(scores.dtype).eps
    np.testing.assert_allclose(
        scores[~np.isnan(rows).any(axis=1)], expected, rtol=0, atol=8 * size[1] * eps * (1 + np.abs(expected).max())
    )


@settings(max_examples=EXAMPLES)
@given(
    size=sizes,
    dtype=floats,
    seed=seeds,
    storage=storages(),
    far=st.sampled_from(["normal", "far"]),
    weigh=st.booleans(),
)
def test_means_are_filled_in(size: Any, dtype: str, seed: int, storage: Any, far: str, weigh: bool) -> None:
    rows = with_holes(make_rows(*size, dtype, far, seed), 0.2, seed)
    weights = np.random.default_rng(seed).integers(1, 4, len(rows)) if weigh else None
    with tempfile.TemporaryDirectory() as directory:
        pca = PCA(1, missing="mean", missing_scores="mean").fit(storage(rows, Path(directory)), sample_weight=weights)
    values = rows.astype(np.float64)
    if weights is not None:
        values = values.repeat(weights, axis=0)
    assert_eigenvalues(pca, spectrum_of(imputed(values)), 20 * tolerances.eigenvalues(dtype))
    assert pca.error_["missing_values"] == np.isnan(rows).sum()
    filled = np.where(np.isnan(rows), pca.mean_, rows.astype(np.float64))
    expected = (filled - pca.mean_) @ pca.components_.T
    np.testing.assert_allclose(
        pca.transform(rows),
        expected,
        atol=1e-5 if np.dtype(dtype).name in ("bool", "int8", "uint8", "float16", "float32") else 1e-9,
    )


@settings(max_examples=EXAMPLES)
@given(
    size=sizes,
    dtype=floats,
    seed=seeds,
    storage=storages(),
    far=st.sampled_from(["normal", "far"]),
    scale=st.booleans(),
)
def test_covariances_of_pairs(size: Any, dtype: str, seed: int, storage: Any, far: str, scale: bool) -> None:
    rows = with_holes(make_rows(*size, dtype, far, seed), 0.2, seed)
    with tempfile.TemporaryDirectory() as directory:
        pca = PCA(missing="pairwise", scale=scale).fit(storage(rows, Path(directory)))
    matrix = by_pairs(rows.astype(np.float64))
    if scale:
        weights = np.divide(1, np.sqrt(matrix.diagonal()), out=np.zeros(len(matrix)), where=matrix.diagonal() > 0)
        matrix = matrix * np.outer(weights, weights)
    values = np.linalg.eigvalsh(matrix)[::-1]
    tolerance = (1e3 if scale else 20) * tolerances.eigenvalues(dtype)
    assert_eigenvalues(pca, np.maximum(values, 0), tolerance)
    clipped = -values[values < 0].sum()
    assert pca.error_["clipped_mass"] == pytest.approx(clipped, abs=tolerance * len(values) * values[0])
    assert pca.total_variance_ == pytest.approx(matrix.trace() + clipped, rel=tolerance * len(values))
    assert pca.explained_variance_ratio_.sum() <= 1 + 1e-9


@settings(max_examples=EXAMPLES)
@given(
    size=st.tuples(st.integers(3, 60), st.integers(2, 9)),
    seed=seeds,
    density=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    form=st.sampled_from(["csr", "csc", "coo", "dask"]),
    array=st.booleans(),
    dtype=st.sampled_from(["f8", "f4", "i4", "u1", "bool", "i8"]),
    weigh=st.booleans(),
    scale=st.booleans(),
)
def test_sparse_is_dense(
    size: Any, seed: int, density: float, form: str, array: bool, dtype: str, weigh: bool, scale: bool
) -> None:
    rng = np.random.default_rng(seed)
    dense = (rng.standard_normal(size) * 20 * (rng.random(size) < density)).astype(dtype)
    dense[:, 0] = 1  # stored in every row, and constant
    made = scipy.sparse.coo_array(dense) if array else scipy.sparse.coo_matrix(dense)
    twice = (
        type(made)((np.tile(made.data // 2, 2), np.tile(np.stack(made.coords), 2)), shape=size)
        if dtype != "bool"
        else made
    )
    if dtype in ("i4", "i8") and form == "coo":  # entries given twice are summed; some of them are explicit zeros
        made, dense = twice, twice.toarray()
    given_rows: Any = made.asformat("csr" if form == "dask" else form)
    if form == "dask":
        given_rows = da.from_array(dense, chunks=(max(1, len(dense) // 3), -1)).map_blocks(type(given_rows))
    weights = rng.integers(0, 3, len(dense)) if weigh else None
    assume(weights is None or (weights > 0).sum() > 2)
    sparse = PCA(1, scale=scale).fit(given_rows, sample_weight=weights)
    plain = PCA(1, scale=scale).fit(dense.astype(np.float64), sample_weight=weights)
    precision = tolerances.EIGENVALUES_FLOAT32 * (100 if scale else 1)
    np.testing.assert_allclose(sparse.explained_variance_, plain.explained_variance_, rtol=precision, atol=1e-13)
    np.testing.assert_array_equal(sparse.constant_features_, plain.constant_features_)
    np.testing.assert_allclose(sparse.mean_, plain.mean_, atol=1e-5)
    scores = np.asarray(sparse.transform(given_rows))
    np.testing.assert_allclose(scores, sparse.transform(dense.astype(np.float64)), atol=1e-4, rtol=1e-4)


@settings(max_examples=EXAMPLES)
@given(
    seed=seeds,
    dtype=st.sampled_from(["uint8", "int8", "bool"]),
    kind=st.sampled_from(["even", "ends", "constant"]),
    data=st.data(),
)
def test_8_bit_rows_have_the_same_bits_in_any_chunks_and_order(
    seed: int, dtype: str, kind: str, data: st.DataObject
) -> None:
    """4,000 rows of the extreme values: their float32 products would round if panels were not cut."""
    rng = np.random.default_rng(seed)
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    rows = {
        "even": lambda: rng.integers(low, high, size=(4000, 5), endpoint=True),
        "ends": lambda: np.where(rng.random((4000, 5)) < 0.5, low, high),
        "constant": lambda: np.full((4000, 5), high),
    }[kind]().astype(dtype)
    integers = ExactIntegerCovariance.of(dtype, Covariance(tile_size=data.draw(st.sampled_from([2, 1024]))))
    whole = integers.to_covariance(folded(integers, [rows], 5))
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, 4000), max_size=5))), 4000]
    parts = [folded(integers, [rows[a:b]], 5) for a, b in pairwise(cuts)]
    order = data.draw(st.permutations(parts))
    merged = integers.to_covariance(integers.merge(order))
    assert whole.scatter.tobytes() == merged.scatter.tobytes()
    assert whole.mean.tobytes() == merged.mean.tobytes()
    exact = rows.astype(np.int64)
    sums, products = exact.sum(axis=0), exact.T @ exact
    scatter = (4000 * products - np.outer(sums, sums)) / 4000
    if integers.grid(5).tile_size == 1024:
        np.testing.assert_allclose(whole.scatter.reshape(5, 5), scatter, rtol=1e-15, atol=1e-9)


def test_8_bit_models_do_not_depend_on_chunks() -> None:
    rows = np.random.default_rng(0).integers(0, 256, size=(9000, 12), dtype=np.uint8)
    models = [PCA(4).fit(da.from_array(rows, chunks=(step, 12))) for step in (9000, 1000, 137)]
    assert len({model.components_.tobytes() + model.explained_variance_.tobytes() for model in models}) == 1


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, "bool"])
def test_every_type_is_what_it_is_in_float64(dtype: str, scale: bool, order: str) -> None:
    rng = np.random.default_rng(3)
    normal = rng.standard_normal((500, 6)) @ rng.standard_normal((6, 6))
    if dtype == "bool":
        rows: NDArray[Any] = normal > 0
    else:
        rows = np.clip(normal * 15 + (60 if dtype[0] == "u" else 0), 0 if dtype[0] == "u" else -100, 120).astype(
            order + dtype
        )
    pca = PCA(scale=scale).fit(da.from_array(rows, chunks=(130, 4)))
    assert_eigenvalues(pca, spectra.lapack(rows, scale=scale)[0], tolerances.eigenvalues(rows.dtype))
    expected = PCA(scale=scale).fit(rows.astype(np.float64)).transform(rows.astype(np.float64))
    scores = pca.transform(rows)
    scores = scores * np.sign((scores * expected).sum(axis=0))
    np.testing.assert_allclose(scores, expected, atol=2e-2 if dtype == "f2" else 1e-3)
