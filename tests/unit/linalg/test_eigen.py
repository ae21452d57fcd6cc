"""Eigenpairs of fits against LAPACK, for spectra that are kind and spectra that are not, and how many of them are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spectra
import tolerances
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import ParameterError
from streampca.metrics import principal_angles

pytestmark = pytest.mark.numerical

Rows = NDArray[np.float64]


def orthonormal_columns(n: int, d: int) -> Rows:
    """Return orthonormal columns with mean 0, ``(n, d)``."""
    left = np.random.default_rng(1).standard_normal((n, d))
    return np.asarray(np.linalg.qr(left - left.mean(axis=0))[0])


def rows_of(values: Any, n: int = 300, *, turned: bool = True) -> Rows:
    """Return rows whose sample covariance has these eigenvalues up to rounding, in a random basis or in that of the features."""
    rows = orthonormal_columns(n, len(values)) * np.sqrt((n - 1.0) * np.asarray(values))
    return rows @ spectra.rotation(len(values)).T if turned else rows


def assert_eigenpairs(pca: sp.PCA, rows: Rows) -> None:
    """Check the pairs against those of LAPACK and against the matrix."""
    centred = rows - rows.mean(axis=0)
    matrix = centred.T @ centred / (len(rows) - 1)
    values, vectors = np.linalg.eigh(matrix)
    values, vectors, k, d = np.maximum(values[::-1], 0), vectors[:, ::-1].T, pca.n_components_, len(matrix)
    first = max(values[0], float(np.finfo(float).tiny))
    assert pca.components_.shape == (k, d)
    assert np.abs(pca.explained_variance_ - values[:k]).max() <= 100 * d * tolerances.EPS * first
    assert np.abs(pca.components_ @ pca.components_.T - np.eye(k)).max() <= tolerances.orthonormality(d)
    gaps = (matrix @ pca.components_.T - pca.components_.T * pca.explained_variance_) / first
    assert np.linalg.norm(gaps, axis=0).max() <= tolerances.residual(d)
    assert pca.error_["eigen_residual"] <= tolerances.residual(d)
    assert (np.diff(pca.explained_variance_) <= 0).all()
    assert pca.total_variance_ == pytest.approx(np.trace(matrix), rel=1e-12, abs=0)
    largest = np.abs(pca.components_).argmax(axis=1)
    assert (pca.components_[np.arange(k), largest] > 0).all()
    leading = tolerances.largest_gap_count(values, 1e-13, most=min(k, 10))
    if leading:
        assert principal_angles(pca.components_[:leading], vectors[:leading]).max() < tolerances.ANGLE


@pytest.mark.parametrize("name", [*spectra.SPECTRA, "tiny", "huge"])
@pytest.mark.parametrize("k", [1, 5, None])
def test_lapack(name: str, k: int | None) -> None:
    rows = rows_of(spectra.eigenvalues(name, 60))
    pca = sp.PCA(k, solver="covariance").fit(rows)
    assert pca.error_["eigen_solver"] == "lapack"
    assert pca.n_components_ == (k or 60)
    assert_eigenpairs(pca, rows)


@pytest.mark.deep(keep=4)
@pytest.mark.parametrize("name", [*spectra.SPECTRA, "tiny", "huge"])
@pytest.mark.parametrize("k", [1, 40])
def test_all_values_beside_some_vectors(name: str, k: int) -> None:
    """Large enough that only `k` vectors are computed, by the one reduction that gives all eigenvalues."""
    rows = rows_of(spectra.eigenvalues(name, 520), 600)
    pca = sp.PCA(k, solver="covariance").fit(rows)
    assert_eigenpairs(pca, rows)
    if name == "slow":  # the rule needs all eigenvalues, and its figures those that are not among the components
        rule, expected = (each.component_rules_["gavish_donoho"] for each in (pca, sp.PCA(solver="gram").fit(rows)))
        assert rule.applies
        assert rule.figures == pytest.approx(expected.figures, rel=2e-5)


@pytest.fixture(scope="module")
def wide() -> Rows:
    """Return 1,700 orthonormal columns of 1,600 features: a matrix so wide that its eigenpairs are iterated."""
    return orthonormal_columns(1700, 1600)


@pytest.mark.deep(keep=3)
@pytest.mark.parametrize("name", ["fast", "slow", "rank_deficient", "clusters", "zero", "identity"])
def test_iterated_eigenpairs(name: str, wide: Rows) -> None:
    values = np.sort(np.concatenate([spectra.eigenvalues(name, 100) * (1 + 0.01 * i) for i in range(16)]))[::-1]
    found = sp.PCA(8, solver="covariance").fit(wide * np.sqrt(1699 * values))
    assert found.error_["eigen_solver"] == "block krylov"
    assert np.abs(found.explained_variance_ - values[:8]).max() <= tolerances.residual(1600) * max(values[0], 1e-300)
    assert found.error_["eigen_residual"] <= tolerances.residual(1600)
    assert np.abs(found.components_ @ found.components_.T - np.eye(8)).max() <= tolerances.orthonormality(1600)


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize(
    ("asked", "expected", "method"),
    [
        (200, 200, "lapack"),
        (sp.Threshold(1e-1), 99, "block krylov"),  # 64 are not enough, 128 are
        (0.05, None, "block krylov"),
        (0.999, None, "lapack"),
    ],
)
def test_how_many_are_taken_in_a_wide_matrix(asked: Any, expected: int | None, method: str, wide: Rows) -> None:
    values = np.where(np.arange(1600) < 100, 1.0 - np.arange(1600) * 0.0091, 1e-3)
    found = sp.PCA(asked, solver="covariance").fit(wide * np.sqrt(1699 * values))
    if isinstance(asked, float):
        expected = int(np.flatnonzero(np.cumsum(values) >= asked * values.sum())[0]) + 1
    assert found.n_components_ == expected
    assert found.error_["eigen_solver"] == method
    np.testing.assert_allclose(found.explained_variance_, values[:expected], atol=1e-11)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, 6),
        (2, 2),
        (np.int64(6), 6),
        (0.5, 1),
        (np.float32(0.51), 2),
        (0.999999, 4),
        (sp.Threshold(1.0), 1),
        (sp.Threshold(0.5), 2),
        (sp.Threshold(0.3), 2),
        (sp.Threshold(0.01), 4),
    ],
)
def test_how_many_are_taken(asked: Any, expected: int) -> None:
    rows = rows_of([4.0, 2.0, 1.0, 1.0, 0.0, 0.0], 40)
    assert sp.PCA(asked, solver="covariance").fit(rows).n_components_ == expected


def test_no_more_than_the_rows_allow() -> None:
    rows = np.random.default_rng(0).standard_normal((7, 30))  # about their mean of rank 6
    assert sp.PCA(solver="covariance").fit(rows).n_components_ == 6


def test_numerical_rank_and_zero() -> None:
    rows = rows_of([1.0, 1e-3, 1e-6, 1e-9, 0.0])
    for dtype in ("f8", "f4"):  # 1e-9 is above the rounding of float32 values, and products of few features are float64
        assert sp.PCA(solver="covariance").fit(rows.astype(dtype)).numerical_rank_ == 4
        assert sp.PCA(2, solver="covariance").fit(rows.astype(dtype)).numerical_rank_ == 2
    nothing = sp.PCA(0.9, solver="covariance").fit(np.ones((10, 4)))
    assert (nothing.numerical_rank_, nothing.total_variance_) == (0, 0.0)
    assert (nothing.explained_variance_ == 0).all()
    assert np.abs(nothing.components_ @ nothing.components_.T - np.eye(nothing.n_components_)).max() == 0


@pytest.mark.parametrize("value", [0, -1, 11, 0.0, 1.0, 1.5, -0.1, True, "two", np.nan, float("inf")])
def test_numbers_of_components_that_make_no_sense(value: Any) -> None:
    with pytest.raises(ParameterError, match="n_components"):
        sp.PCA(value).fit(np.eye(12)[:, :10])


@pytest.mark.parametrize("eps", [0, -1e-3, 1.5, True, "small", np.nan])
def test_thresholds_that_make_no_sense(eps: Any) -> None:
    with pytest.raises(ParameterError, match="Threshold"):
        sp.Threshold(eps)


def test_the_negative_mass_of_a_definite_matrix_is_plain_zero() -> None:
    rows = np.random.default_rng(0).standard_normal((60, 5))
    rows[3, 2] = np.nan
    assert f"{sp.PCA(2, missing='pairwise').fit(rows).error_['clipped_mass']:.3g}" == "0"


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
def test_matrix_of_side_one_gives_its_entry(solver: Any) -> None:
    """Some versions of scipy refuse such a matrix for LAPACK's divide and conquer."""
    found = sp.PCA(1, solver=solver).fit(np.array([[1.0], [3.0]]))
    assert found.explained_variance_ == pytest.approx([2.0], rel=1e-15)
    assert found.components_.tolist() == [[1.0]]
