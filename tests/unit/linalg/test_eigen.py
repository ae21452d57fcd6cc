"""Eigenpairs against LAPACK, for spectra that are kind and spectra that are not, and how many of them are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spectra
import tolerances

from streampca.errors import ParameterError
from streampca.linalg.eigen import Spectrum, negative_mass, solve, uses_krylov
from streampca.linalg.selection import Count, Share, Threshold, as_selection
from streampca.metrics import principal_angles
from streampca.solvers.kernel.solving import DenseMatrix

pytestmark = pytest.mark.numerical

PRECISION = 1e-13


def assert_eigenpairs(found: Spectrum, matrix: Any) -> None:
    values, vectors = np.linalg.eigh(matrix)
    values, vectors, k = np.maximum(values[::-1], 0), vectors[:, ::-1].T, len(found.values)
    d, first = len(matrix), max(values[0], float(np.finfo(float).tiny))
    assert found.vectors.shape == (k, d)
    assert np.abs(found.values - values[:k]).max() <= 100 * d * tolerances.EPS * first
    assert np.abs(found.vectors @ found.vectors.T - np.eye(k)).max() <= tolerances.orthonormality(d)
    gaps = (matrix @ found.vectors.T - found.vectors.T * found.values) / first
    assert np.linalg.norm(gaps, axis=0).max() <= tolerances.residual(d)
    assert found.residual <= tolerances.residual(d)
    assert (np.diff(found.values) <= 0).all()
    largest = np.abs(found.vectors).argmax(axis=1)
    assert (found.vectors[np.arange(k), largest] > 0).all()
    leading = tolerances.largest_gap_count(values, PRECISION, most=min(k, 10))
    if leading:
        assert principal_angles(found.vectors[:leading], vectors[:leading]).max() < tolerances.ANGLE


@pytest.mark.parametrize("name", [*spectra.SPECTRA, "tiny", "huge"])
@pytest.mark.parametrize("k", [1, 5, None])
@pytest.mark.parametrize("tile_size", [1024, 17])
def test_lapack(name: str, k: int | None, tile_size: int) -> None:
    matrix = spectra.symmetric(spectra.eigenvalues(name, 60))
    found = solve(spectra.reduced(matrix, tile_size=tile_size), Count(k), precision=PRECISION)
    assert found.method == "lapack"
    assert len(found.values) == (k or 60)
    assert found.total == pytest.approx(np.trace(matrix), rel=1e-13, abs=0)
    assert_eigenpairs(found, matrix)


@pytest.mark.parametrize("name", ["fast", "slow", "rank_deficient", "clusters", "zero", "identity"])
def test_the_iteration_behind_solve(name: str) -> None:
    """Wide enough that `solve` iterates; the matrix is block diagonal, so that its eigenpairs are cheap to know."""
    part = spectra.symmetric(spectra.eigenvalues(name, 100))
    matrix = np.zeros((1600, 1600))
    for i in range(16):
        matrix[100 * i : 100 * (i + 1), 100 * i : 100 * (i + 1)] = part * (1 + 0.01 * i)
    found = solve(spectra.reduced(matrix, tile_size=512, n_threads=2), Count(8), precision=PRECISION)
    assert found.method == "block krylov"
    values = np.sort(np.concatenate([spectra.eigenvalues(name, 100) * (1 + 0.01 * i) for i in range(16)]))[::-1]
    assert np.abs(found.values - values[:8]).max() <= tolerances.residual(1600) * max(values[0], 1e-300)
    assert found.residual <= tolerances.residual(1600)
    assert np.abs(found.vectors @ found.vectors.T - np.eye(8)).max() <= tolerances.orthonormality(1600)


@pytest.mark.parametrize("name", [*spectra.SPECTRA, "tiny", "huge"])
@pytest.mark.parametrize("k", [1, 40])
def test_all_values_beside_some_vectors(name: str, k: int) -> None:
    """Large enough that only `k` vectors are computed, by the one reduction that gives all eigenvalues."""
    matrix = spectra.symmetric(spectra.eigenvalues(name, 520))
    found = solve(spectra.reduced(matrix, tile_size=300), Count(k), precision=PRECISION, all_values=True)
    assert_eigenpairs(found, matrix)
    expected = np.maximum(np.linalg.eigvalsh(matrix)[::-1], 0)
    assert found.every is not None
    assert np.abs(found.every - expected).max() <= 100 * 520 * tolerances.EPS * max(expected[0], 1e-300)
    assert found.every[:k].tobytes() == found.values.tobytes()
    assert solve(spectra.reduced(matrix, tile_size=300), Count(k), precision=PRECISION).every is None


def test_all_values_where_inverse_iteration_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> tuple[None, int]:
        return None, 1

    monkeypatch.setattr("scipy.linalg.lapack.dstein", fails)
    matrix = spectra.symmetric(spectra.eigenvalues("slow", 520))
    found = solve(spectra.reduced(matrix), Count(3), precision=PRECISION, all_values=True)
    assert_eigenpairs(found, matrix)
    assert found.every is not None
    assert len(found.every) == 520


def diagonal(values: Any) -> Any:
    return spectra.reduced(np.diag(values), tile_size=800)


@pytest.mark.parametrize(
    ("selection", "expected", "method"),
    [
        (Count(3), 3, "block krylov"),
        (Count(200), 200, "lapack"),
        (Threshold(0.9), 11, "block krylov"),
        (Threshold(1e-1), 100, "block krylov"),  # 64 are not enough, 128 are
        (Share(0.05), None, "block krylov"),
        (Share(0.999), None, "lapack"),
        (Threshold(1e-9), 1600, "lapack"),
    ],
)
def test_how_many_are_taken_in_a_wide_matrix(selection: Any, expected: int | None, method: str) -> None:
    values = np.where(np.arange(1600) < 100, 1.0 - np.arange(1600) * 0.0091, 1e-3)
    assert uses_krylov(1600, 64)
    found = solve(diagonal(values), selection, precision=PRECISION)
    if isinstance(selection, Share):
        expected = int(np.flatnonzero(np.cumsum(values) >= selection.share * values.sum())[0]) + 1
    elif isinstance(selection, Threshold):
        expected = int((values >= selection.eps * values[0]).sum())
    assert len(found.values) == expected
    assert found.method == method
    np.testing.assert_allclose(found.values, values[:expected], atol=1e-11)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Count(None), 6),
        (Count(2), 2),
        (Count(6), 6),
        (Share(0.5), 1),
        (Share(0.51), 2),
        (Share(0.999999), 4),
        (Threshold(1.0), 1),
        (Threshold(0.5), 2),
        (Threshold(0.3), 2),
        (Threshold(0.01), 4),
    ],
)
def test_how_many_are_taken(selection: Any, expected: int) -> None:
    found = solve(spectra.reduced(np.diag([4.0, 2.0, 1.0, 1.0, 0.0, 0.0])), selection, precision=PRECISION)
    assert len(found.values) == expected


def test_no_more_than_the_rows_allow() -> None:
    matrix = spectra.symmetric(spectra.eigenvalues("rank_deficient", 30))
    assert len(solve(spectra.reduced(matrix, n_samples=7), Count(None), precision=PRECISION).values) == 7


def test_numerical_rank_and_zero() -> None:
    values = np.array([1.0, 1e-3, 1e-6, 1e-9, 0.0])
    assert solve(spectra.reduced(np.diag(values)), Count(None), precision=1e-7).numerical_rank == 3
    assert solve(spectra.reduced(np.diag(values)), Count(2), precision=1e-7).numerical_rank == 2
    nothing = solve(spectra.reduced(np.zeros((4, 4))), Share(0.9), precision=1e-7)
    assert (nothing.numerical_rank, nothing.total) == (0, 0.0)
    assert (nothing.values == 0).all()
    assert np.abs(nothing.vectors @ nothing.vectors.T - np.eye(len(nothing.values))).max() == 0


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("tile_size", [5, 100])
def test_products_with_a_matrix_that_is_not_formed(center: bool, scale: bool, tile_size: int) -> None:
    rng = np.random.default_rng(6)
    matrix = spectra.symmetric(spectra.eigenvalues("slow", 23))
    matrix[3] = matrix[:, 3] = 0.0  # a feature that never varies
    mean = rng.standard_normal(23) * 10
    reduced = spectra.reduced(matrix, tile_size=tile_size, mean=mean, center=center, scale=scale, n_threads=2)
    dense, vectors = reduced.dense(), rng.standard_normal((23, 4))
    expected = matrix + (0 if center else np.outer(mean, mean) * reduced.n_samples / (reduced.n_samples - 1))
    if scale:
        weights = np.divide(1.0, np.sqrt(np.diag(matrix)), out=np.zeros(23), where=np.diag(matrix) > 0)
        expected = expected * np.outer(weights, weights)
    np.testing.assert_allclose(dense, expected, atol=1e-12 * np.abs(expected).max())
    np.testing.assert_allclose(reduced.multiply(vectors), expected @ vectors, atol=1e-12 * np.abs(expected).max())
    np.testing.assert_allclose(reduced.diagonal, np.diag(expected), atol=1e-12 * np.abs(expected).max())
    before = reduced.scatter.copy()
    assert_eigenpairs(solve(reduced, Count(None), precision=PRECISION), dense)
    np.testing.assert_array_equal(reduced.scatter, before)


@pytest.mark.parametrize("value", [0, -1, 11, 0.0, 1.0, 1.5, -0.1, True, "two", np.nan, float("inf")])
def test_numbers_of_components_that_make_no_sense(value: Any) -> None:
    with pytest.raises(ParameterError, match="n_components"):
        as_selection(value, limit=10)


@pytest.mark.parametrize("eps", [0, -1e-3, 1.5, True, "small", np.nan])
def test_thresholds_that_make_no_sense(eps: Any) -> None:
    with pytest.raises(ParameterError, match="Threshold"):
        Threshold(eps)


def test_rules() -> None:
    assert as_selection(None, 10) == Count(None)
    assert as_selection(np.int64(3), 10) == Count(3)
    assert as_selection(np.float32(0.5), 10) == Share(0.5)
    assert as_selection(Threshold(1e-3), 10) == Threshold(1e-3)


def test_the_negative_mass_of_a_definite_matrix_is_plain_zero() -> None:
    assert f"{negative_mass(DenseMatrix(np.eye(3))):.3g}" == "0"
    assert negative_mass(DenseMatrix(np.diag([2.0, -0.5, -1.0]))) == 1.5


def test_matrix_of_side_one_gives_its_entry() -> None:
    """Some versions of scipy refuse such a matrix for LAPACK's divide and conquer."""
    found = solve(spectra.reduced(np.array([[4.0]])), Count(1), precision=PRECISION)
    assert (found.values.tolist(), found.vectors.tolist()) == ([4.0], [[1.0]])
