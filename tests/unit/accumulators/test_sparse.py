"""Sparse rows: never made dense as a whole, refused where they cannot be read, and exact where zeros are not stored."""

from __future__ import annotations

import tracemalloc
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from facade import Block, open_source

from streampca import PCA
from streampca.accumulators import Moments, SparseCovariance
from streampca.errors import NotAvailableError, NotFiniteError

pytestmark = pytest.mark.numerical

RNG = np.random.default_rng(2)


def random_rows(n: int = 500, d: int = 30, density: float = 0.02) -> scipy.sparse.csr_array:
    return scipy.sparse.random_array((n, d), density=density, format="csr", random_state=RNG)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_what_is_not_finite_is_named(value: float, form: str) -> None:
    rows = random_rows().tolil()
    rows[123, 7] = value
    message = f"contains {'NaN' if np.isnan(value) else 'infinity'}: first at row 123, column 7 "
    with pytest.raises(NotFiniteError, match=message):
        PCA().fit(rows.asformat(form))
    blocks = da.from_array(rows.toarray(), chunks=(50, 30)).map_blocks(scipy.sparse.csr_array)
    with pytest.raises(NotFiniteError, match=message):
        PCA().fit(blocks)
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        PCA(1).fit(random_rows()).transform(rows.tocsr())


def test_what_sparse_rows_do_not_go_with() -> None:
    with pytest.raises(NotAvailableError, match="what a sparse matrix does not store is zero, not missing"):
        PCA(missing="mean").fit(random_rows())
    with pytest.raises(NotAvailableError, match="does not take sparse rows"):
        PCA(solver="qr").fit(random_rows())
    blocks = da.from_array(random_rows().toarray(), chunks=(50, 30)).map_blocks(scipy.sparse.csr_array)
    with pytest.raises(NotAvailableError, match="blocks of sparse rows, which cannot be read by features"):
        PCA(solver="gram").fit(blocks)


@pytest.mark.parametrize("how", [{}, {"scale": True}, {"center": False}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_wide_sparse_rows_have_an_exact_answer_by_the_matrix_of_samples(how: dict[str, Any], weighted: bool) -> None:
    """They had an approximate one by a sketch where the d x d matrix did not fit, although the n x n matrix did."""
    rows = random_rows(60, 900, 0.05).toarray()
    rows[:, 5], rows[:, 7], rows[3, 8:] = 1e9 + RNG.standard_normal(60), 3.0, 0.0
    weights = np.where(np.arange(60) > 3, RNG.uniform(0.1, 2, 60), 0) if weighted else None
    pca = PCA(4, **how).fit(scipy.sparse.csr_array(rows), sample_weight=weights)
    assert pca.solver_ == "gram"
    assert pca.error_["kind"] == "exact"
    dense = PCA(4, solver="gram", **how).fit(rows, sample_weight=weights)
    np.testing.assert_allclose(pca.explained_variance_, dense.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(pca.components_, dense.components_, atol=1e-12)
    assert pca.bytes_read_ == pca.plan_.bytes_to_read


def test_the_plan_of_wide_sparse_rows_prefers_an_exact_answer_to_a_sketch() -> None:
    """3,000 x 40,000: 46 MiB of products of samples, where the covariance would take 6 GiB; nothing is read.

    The ceiling holds the process of the tests, too.
    """
    rows = scipy.sparse.csr_array(([1.0], ([5], [6])), shape=(3000, 40_000))
    assert PCA(5, memory="4GiB").plan(rows).solver == "gram"


def test_a_constant_feature_is_constant() -> None:
    rows = random_rows().toarray()
    rows[:, 3], rows[:, 4] = 0.1, 1e8 + RNG.standard_normal(500)
    pca = PCA(scale=True).fit(scipy.sparse.csr_array(rows))
    dense = PCA(scale=True).fit(rows)
    np.testing.assert_array_equal(pca.constant_features_, dense.constant_features_)
    assert 3 in pca.constant_features_
    np.testing.assert_allclose(pca.explained_variance_, dense.explained_variance_, atol=1e-12)
    np.testing.assert_allclose(pca.mean_, dense.mean_, rtol=1e-14)


def test_empty_rows_and_a_matrix_without_entries() -> None:
    rows = random_rows(40, 6, 0.05)
    expected = PCA().fit(rows.toarray()).explained_variance_
    np.testing.assert_allclose(PCA().fit(rows).explained_variance_, expected, atol=1e-15)
    nothing = PCA(2).fit(scipy.sparse.csr_array((40, 6)))
    np.testing.assert_array_equal(nothing.explained_variance_, 0)


def test_the_rows_given_are_not_changed() -> None:
    rows = random_rows()
    before = rows.copy()
    PCA(2).fit(rows, sample_weight=RNG.random(500) + 0.5)
    assert rows.data.tobytes() == before.data.tobytes()


def test_a_store_of_zeros_is_never_made_dense(tmp_path) -> None:
    """40,000 x 1,000 would take 305 MiB as float64."""
    rows = random_rows(40_000, 1000, 0.002)
    tracemalloc.start()
    pca = PCA(3, memory="2GiB").fit(rows)
    scores = pca.transform(rows)
    pca.transform_to(rows, tmp_path / "scores")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores.shape == (40_000, 3)
    assert peak < 150 * 2**20
    expected = (rows @ pca.components_.T) - pca.mean_ @ pca.components_.T
    np.testing.assert_allclose(scores, expected, atol=1e-12)


def test_orientation_and_dask_blocks_cut_both_ways() -> None:
    rows = random_rows(100, 8, 0.3)
    expected = PCA(2).fit(rows)
    source = open_source(scipy.sparse.csr_array(rows.T), orientation="features_first")
    np.testing.assert_allclose(PCA(2).fit(source).explained_variance_, expected.explained_variance_)
    blocks = da.from_array(rows.toarray(), chunks=(30, 3)).map_blocks(scipy.sparse.csc_array)
    np.testing.assert_allclose(PCA(2).fit(blocks).explained_variance_, expected.explained_variance_)
    whole = da.from_array(rows.toarray(), chunks=(30, 8)).map_blocks(scipy.sparse.csr_matrix)
    np.testing.assert_allclose(expected.transform(whole).compute(), expected.transform(rows), atol=1e-12)


@pytest.mark.parametrize("stored", [0.02, 1.0])
def test_one_sample_of_nearly_all_weight_costs_no_digits(stored: float) -> None:
    """Sums about zero, or about the value of a light sample, would lose the ratio of the weights, six digits here."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((400, 40)) + 2
    rows[rng.random(rows.shape) >= stored] = 0
    rows[7, :20] = rng.standard_normal(20) + 2
    weight = rng.random(400) + 0.5
    weight[7] = 1e8
    centred = rows - np.average(rows, axis=0, weights=weight)
    expected = np.linalg.eigvalsh((centred * weight[:, None]).T @ centred / (weight.sum() - 1))[:-4:-1]
    exact = PCA(3, solver="covariance").fit(scipy.sparse.csr_array(rows), sample_weight=weight)
    np.testing.assert_allclose(exact.explained_variance_, expected, rtol=0, atol=1e-12 * expected[0])
    sketch = PCA(3, solver="sketch", pilot=0).fit(scipy.sparse.csr_array(rows), sample_weight=weight)
    lower = np.array(sketch.error_["eigenvalue_intervals"])[:, 0]
    assert (lower <= expected).all()
    assert (expected <= sketch.error_["proven_upper_bounds"]).all()


@pytest.mark.parametrize("mean", [0.0, 50.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_dense_panels_of_sparse_float32_rows_keep_their_digits(mean: float, weighted: bool) -> None:
    """Centred zeros are one number many times over, whose products float32 rounds the same way in every sum."""
    rows = np.log1p(RNG.poisson(0.3, (3000, 60)) * RNG.uniform(0.5, 2, (3000, 1))).astype(np.float32)
    rows[:, 4] = 0
    rows[:, 5] = mean + RNG.standard_normal(3000)
    weights = RNG.uniform(0.5, 2, 3000) if weighted else None
    centred = (rows - np.average(rows.astype(np.float64), axis=0, weights=weights)) * np.sqrt(
        np.ones(3000) if weights is None else weights
    )[:, None]
    expected = centred.T @ centred
    accumulator = SparseCovariance()
    state = accumulator.update(accumulator.init(60), Block(scipy.sparse.csr_array(rows), 0, weights))
    found = accumulator.grid(60).tile(state.scatter, 0, 0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("share", [0.06, 0.1, 0.2, 0.3])
def test_scales_of_two_values_have_the_digits_of_float32(share: float) -> None:
    """Squares about zero are up to 8 times those about the mean here, and their rounding was of one direction: 6e-7."""
    rng = np.random.default_rng(0)
    low, high = rng.standard_normal((2, 100)).astype(np.float32)
    rows = np.where(rng.random((50, 100)) < share, low + high, low)
    rows[7] = low + high
    expected = rows.std(axis=0, ddof=1, dtype=np.float64)
    pca = PCA(2, scale=True, solver="covariance").fit(scipy.sparse.csr_array(rows))
    np.testing.assert_allclose(pca.scale_, expected, rtol=4e-7)


def test_moments_of_sparse_rows_are_those_of_dense_ones_however_far_their_means() -> None:
    rows = random_rows(400, 12, 0.1).toarray()
    rows[:, 3] = 1e8 + RNG.standard_normal(400)
    rows[:, 4] = np.where(RNG.random(400) < 0.7, 5e4 + RNG.standard_normal(400), 0)
    rows[:, 5] = 0
    moments, state = Moments(), Moments().init(12)
    for start in range(0, 400, 90):
        state = moments.update(state, Block(scipy.sparse.csr_array(rows[start : start + 90]), start))
    np.testing.assert_allclose(state.mean, rows.mean(axis=0), rtol=1e-14)
    centred = rows - rows[0]
    np.testing.assert_allclose(state.scatter, ((centred - centred.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-12)
    rows[210, 2] = np.nan
    with pytest.raises(NotFiniteError, match="first at row 210, column 2"):
        moments.update(state, Block(scipy.sparse.csr_array(rows[200:]), 200))
