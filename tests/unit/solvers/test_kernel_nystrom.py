"""Kernel PCA from landmarks: what it finds, how sure it is, and that nothing but the rows and the seed decides it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

import streampca as sp
from streampca.errors import ParameterError, PlanError
from streampca.kernels import RBF, Sigmoid

pytestmark = pytest.mark.numerical

RADIAL: dict[str, Any] = {"kernel": "rbf", "gamma": 1 / 64}
QUINTIC: dict[str, Any] = {"kernel": "poly", "degree": 5}


@pytest.fixture(scope="module")
def digits() -> NDArray[np.float64]:
    return np.asarray(StandardScaler().fit_transform(load_digits().data))


@pytest.fixture(scope="module")
def exact(digits: NDArray[np.float64]) -> dict[str, Any]:
    return {
        name: sp.KernelPCA(10, method="exact", **kernel).fit(digits)
        for name, kernel in (("rbf", RADIAL), ("poly", QUINTIC), ("cosine", {"kernel": "cosine"}))
    }


def taken() -> int:
    """Return the bytes that plans count for this process."""
    return int(sp.PCA(1).plan(np.eye(2)).memory["process"])


def compare(found: Any, truth: Any, rows: NDArray[Any]) -> tuple[float, float]:
    """Return mean similarity of eigenvectors and mean relative difference of eigenvalues, of the first ten."""
    k = len(found.eigenvalues_)
    similar = [abs(np.corrcoef(found.eigenvectors_[:, i], truth.eigenvectors_[:, i])[0, 1]) for i in range(k)]
    gaps = np.abs(found.eigenvalues_ - truth.eigenvalues_[:k]) / truth.eigenvalues_[:k]
    return float(np.mean(similar)), float(np.mean(gaps))


def test_uniform_landmarks_find_a_radial_kernel(digits: NDArray[np.float64], exact: dict[str, Any]) -> None:
    found = [
        compare(
            sp.KernelPCA(10, method="nystrom", n_landmarks=100, random_state=seed, **RADIAL).fit(digits),
            exact["rbf"],
            digits,
        )
        for seed in range(5)
    ]
    assert np.mean([similarity for similarity, _ in found]) >= 0.95


@pytest.mark.parametrize("sampling", ["auto", "rpcholesky", "diagonal"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_landmarks_by_weight_find_a_polynomial_kernel(
    digits: NDArray[np.float64], exact: dict[str, Any], sampling: str, dtype: Any
) -> None:
    found = sp.KernelPCA(10, method="nystrom", n_landmarks=100, sampling=sampling, **QUINTIC).fit(digits.astype(dtype))
    similarity, difference = compare(found, exact["poly"], digits)
    assert similarity >= 0.9999
    assert difference <= 1e-5
    assert found.sampling_ != "uniform"


def test_uniform_landmarks_miss_a_polynomial_kernel(digits: NDArray[np.float64], exact: dict[str, Any]) -> None:
    found = sp.KernelPCA(10, n_landmarks=100, sampling="uniform", **QUINTIC).fit(digits)
    similarity, _ = compare(found, exact["poly"], digits)
    assert similarity < 0.5
    assert found.error_["sigma"] > 0.1 * exact["poly"].eigenvalues_[0]  # and it says so


def test_features_equal_those_of_scikit_learn(digits: NDArray[np.float64]) -> None:
    from sklearn.decomposition import PCA
    from sklearn.kernel_approximation import Nystroem

    found = sp.KernelPCA(6, n_landmarks=80, sampling="uniform", **RADIAL).fit(digits)
    peer = Nystroem(kernel="rbf", gamma=1 / 64, n_components=80)
    peer.fit(digits[found.landmark_indices_])
    features = peer.transform(digits)
    np.testing.assert_allclose(found.eigenvalues_, PCA(6).fit(features).singular_values_ ** 2, rtol=1e-9)
    np.testing.assert_array_equal(found.landmarks_, digits[found.landmark_indices_])


def test_all_rows_as_landmarks_are_exact(digits: NDArray[np.float64]) -> None:
    rows = digits[:150]
    truth = sp.KernelPCA(6, method="exact", **RADIAL).fit(rows)
    found = sp.KernelPCA(6, method="nystrom", n_landmarks=150, **RADIAL).fit(rows)
    np.testing.assert_allclose(found.eigenvalues_, truth.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(found.transform(digits[150:160]), truth.transform(digits[150:160]), atol=1e-7)
    np.testing.assert_allclose(found.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=1e-9)
    assert found.error_["residual_trace"] <= 1e-9 * found.error_["trace_of_kernel"]


@pytest.mark.parametrize("center", [True, False])
def test_the_residual_trace_is_exact(digits: NDArray[np.float64], center: bool) -> None:
    rows = digits[:400]
    found = sp.KernelPCA(5, method="nystrom", n_landmarks=40, center=center, **RADIAL).fit(rows)
    kernel, points = RBF(gamma=1 / 64), found.landmarks_
    approximated = kernel(rows, points) @ np.linalg.solve(kernel(points, points), kernel(points, rows))
    np.testing.assert_allclose(found.error_["residual_trace"], 400 - np.trace(approximated), rtol=1e-8)
    middle = np.eye(400) - (1 / 400 if center else 0)
    values = np.linalg.eigvalsh(middle @ approximated @ middle)[::-1]
    np.testing.assert_allclose(found.eigenvalues_, values[:5], rtol=1e-9)


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize(
    ("name", "kernel", "sampling"),
    [
        ("rbf", RADIAL, "uniform"),
        ("poly", QUINTIC, "rpcholesky"),
        ("poly", QUINTIC, "uniform"),
        ("cosine", {"kernel": "cosine"}, "uniform"),
    ],
)
def test_certificates_cover_the_truth(
    digits: NDArray[np.float64], exact: dict[str, Any], name: str, kernel: dict[str, Any], sampling: str
) -> None:
    """At most one of 80 trials may miss; 20 of them for each of four kernels and draws, of which none does."""
    truth = exact[name].eigenvalues_
    for seed in range(20):
        found = sp.KernelPCA(10, method="nystrom", n_landmarks=60, sampling=sampling, random_state=seed, **kernel).fit(
            digits
        )
        for ends in (found.error_["eigenvalue_intervals"], found.error_["proven_intervals"]):
            low, high = np.array(ends).T
            assert (low <= truth[: len(low)]).all()
            assert (truth[: len(low)] <= high).all()
        assert found.explained_variance_ratio_.sum() <= exact[name].explained_variance_ratio_.sum() * (1 + 1e-9)


def test_an_indefinite_kernel_has_no_certificate(digits: NDArray[np.float64]) -> None:
    kernel: dict[str, Any] = {"kernel": "tanh", "gamma": 1 / 64}
    found = sp.KernelPCA(5, method="nystrom", n_landmarks=300, **kernel).fit(digits)
    assert found.error_["kind"] == "none"
    assert "no certificate" in found.error_["statement"]
    assert found.sampling_ == "uniform"
    similarity, difference = compare(found, sp.KernelPCA(5, method="exact", **kernel).fit(digits), digits)
    assert similarity > 0.95
    assert difference < 0.05
    # Signed eigenvalues: scores of the training rows carry √λ.
    lengths = np.linalg.norm(found.transform(digits), axis=0) ** 2
    np.testing.assert_allclose(lengths, found.eigenvalues_, rtol=0.3)


def test_the_signed_form_is_that_of_its_definition(digits: NDArray[np.float64]) -> None:
    rows, kernel = digits[:300], Sigmoid(gamma=0.5, coef0=-1.0)
    found = sp.KernelPCA(5, kernel=kernel, method="nystrom", n_landmarks=60).fit(rows)
    points = found.landmarks_
    center = np.eye(60) - 1 / 60
    values, vectors = np.linalg.eigh(center @ kernel(points, points) @ center)
    kept = np.abs(values) > 1e-2 * np.abs(values).max()
    assert (values[kept] < 0).any()
    between = kernel(rows, points) @ vectors[:, kept]
    middle = np.eye(300) - 1 / 300
    truth, axes = np.linalg.eigh(middle @ (between / values[kept]) @ between.T @ middle)
    np.testing.assert_allclose(found.eigenvalues_, truth[::-1][:5], rtol=1e-9)
    scores = found.transform(rows)
    expected = axes[:, ::-1][:, :5] * np.sqrt(truth[::-1][:5])
    np.testing.assert_allclose(np.abs(scores), np.abs(expected), atol=1e-8 * np.abs(expected).max())


@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("sampling", ["uniform", "diagonal", "rpcholesky"])
def test_neither_chunks_nor_threads_decide_the_landmarks(
    digits: NDArray[np.float64], tmp_path: Path, sampling: str
) -> None:
    rows = np.tile(digits, (12, 1)) + np.random.default_rng(0).standard_normal((12 * len(digits), 64)) * 0.1
    found = []
    for chunk in (700, 5000):
        store = zarr.create_array(str(tmp_path / f"{chunk}.zarr"), shape=rows.shape, chunks=(chunk, 64), dtype="f8")
        store[:] = rows
        fitted = sp.KernelPCA(4, kernel="poly", degree=2, method="nystrom", n_landmarks=50, sampling=sampling)
        found.append(fitted.fit(tmp_path / f"{chunk}.zarr"))
    found.append(
        sp.KernelPCA(4, kernel="poly", degree=2, method="nystrom", n_landmarks=50, sampling=sampling).fit(rows)
    )
    assert found[0].plan_.n_leaves > 1
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].landmark_indices_, other.landmark_indices_)
        np.testing.assert_allclose(found[0].eigenvalues_, other.eigenvalues_, rtol=1e-10)
        np.testing.assert_allclose(found[0].transform(digits[:5]), other.transform(digits[:5]), rtol=1e-6, atol=1e-8)


def test_landmarks_that_are_given(digits: NDArray[np.float64], tmp_path: Path) -> None:
    chosen = np.array([900, 3, 77, 1500, 1204])
    zarr.create_array(str(tmp_path / "x.zarr"), data=digits, chunks=(400, 64))
    by_index = sp.KernelPCA(3, method="nystrom", sampling=chosen, **RADIAL).fit(tmp_path / "x.zarr")
    np.testing.assert_array_equal(by_index.landmark_indices_, np.sort(chosen))
    np.testing.assert_array_equal(by_index.landmarks_, digits[np.sort(chosen)])
    by_rows = sp.KernelPCA(3, method="nystrom", sampling=digits[np.sort(chosen)], **RADIAL).fit(digits)
    assert by_rows.landmark_indices_ is None
    np.testing.assert_allclose(by_index.eigenvalues_, by_rows.eigenvalues_, rtol=1e-10)
    assert by_rows.n_passes_ == 1
    for sampling, message in (
        ([1800], "names row 1800"),
        ([1, 1], "names a row twice"),
        (digits[:4, :5], "landmarks of 5 features"),
        ("unifrom", "expected one of auto, uniform"),
        ([0.5, 1.0], "expected one of auto"),
    ):
        with pytest.raises(ParameterError, match=message):
            sp.KernelPCA(2, method="nystrom", sampling=sampling).fit(digits)


def test_auto_is_exact_where_the_kernel_matrix_fits(digits: NDArray[np.float64], tmp_path: Path) -> None:
    for parameters, method in (
        ({}, "exact"),
        ({"n_landmarks": 100}, "exact"),
        ({"n_landmarks": 100, "sampling": "uniform"}, "nystrom"),
        ({"sampling": np.arange(100)}, "nystrom"),
        ({"n_landmarks": 100, "kernel": "tanh", "sampling": "uniform"}, "exact"),
    ):
        assert sp.KernelPCA(2, **parameters).plan(digits[:200]).solver == method
    zarr.create_array(str(tmp_path / "x.zarr"), shape=(40_000, 16), chunks=(10_000, 16), dtype="f4")
    little: dict[str, Any] = {"memory": taken() + 1000 * 2**20}
    plan = sp.KernelPCA(2, n_landmarks=100, **little).plan(tmp_path / "x.zarr")
    assert plan.solver == "nystrom"
    assert "does not fit in memory" in plan.reason
    with pytest.raises(PlanError, match=r"40,000 x 40,000 kernel matrix .*nystrom' with n_landmarks=100 would fit"):
        sp.KernelPCA(2, kernel="tanh", n_landmarks=100, **little).plan(tmp_path / "x.zarr")
    found = sp.KernelPCA(2, method="nystrom", n_landmarks=100).fit(digits[:200])
    assert (found.method_, found.sampling_, found.n_passes_) == ("nystrom", "uniform", 2)
    plan = found.plan(digits)
    assert {other["solver"] for other in plan.alternatives} == {"exact", "nystrom_extension", "empirical_map"}
    assert "100, uniform" in str(plan)


def test_too_little_memory_is_refused_with_what_would_do(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), shape=(200_000, 16), chunks=(50_000, 16), dtype="f4")
    with pytest.raises(PlanError, match=r"20,000 landmarks .* fewer landmarks .*n_landmarks=2000 would fit"):
        sp.KernelPCA(5, n_landmarks=20_000, memory=taken() + 800 * 2**20).fit(tmp_path / "x.zarr")


def test_nearly_dependent_landmarks_keep_their_digits_in_float32() -> None:
    """A wide kernel in three dimensions: the eigenvalues of K_mm span ten decades, and float32 products alone would lose them."""
    rng = np.random.default_rng(1)
    rows = (rng.standard_normal((6000, 3)) + rng.standard_normal((6000, 1))).astype(np.float32)
    wide = sp.KernelPCA(20, method="nystrom", n_landmarks=200, gamma=0.1).fit(rows.astype(np.float64))
    narrow = sp.KernelPCA(20, method="nystrom", n_landmarks=200, gamma=0.1).fit(rows)
    assert narrow.error_["landmark_condition"] < 1e-6
    error = np.abs(narrow.eigenvalues_ - wide.eigenvalues_)
    assert error.max() <= 2e-6 * wide.eigenvalues_[0]


def test_directions_that_add_nothing_are_left_out_instead_of_whitening_every_panel() -> None:
    rows = np.random.default_rng(3).standard_normal((20_000, 16)) * np.geomspace(1, 0.2, 16)
    given = rows[:400].astype(np.float32)
    found = sp.KernelPCA(20, gamma=0.04, method="nystrom", sampling=given).fit(rows.astype(np.float32))
    truth = sp.KernelPCA(20, gamma=0.04, method="nystrom", sampling=given.astype(np.float64)).fit(rows)
    assert found.error_["landmark_condition"] >= 1e-6 > truth.error_["landmark_condition"]
    assert 390 < found.error_["landmark_rank"] < truth.error_["landmark_rank"] == 400
    assert found.error_["residual_trace"] <= 1.02 * truth.error_["residual_trace"]
    np.testing.assert_allclose(found.eigenvalues_, truth.eigenvalues_, rtol=1e-4)


@pytest.mark.parametrize("gamma", [0.05, 0.035])
def test_rounding_that_does_not_average_out_is_in_the_intervals(gamma: float) -> None:
    """Few distinct rows are rounded the same way every time; kernel values whitened late magnify that most.

    Errors of 1e-6 to 4e-5 λ₁ were measured with kernels of OpenBLAS for AVX2 and AVX-512.
    """
    rows = np.round(np.random.default_rng(0).standard_normal((20_000, 4)) * 2)
    found = sp.KernelPCA(20, gamma=gamma, method="nystrom", sampling="uniform", n_landmarks=60).fit(
        rows.astype(np.float32)
    )
    truth = sp.KernelPCA(20, gamma=gamma, method="nystrom", sampling=found.landmarks_.astype(np.float64)).fit(rows)
    lower = np.array(found.error_["eigenvalue_intervals"])[:, 0]
    assert np.all(lower <= truth.eigenvalues_)
    allowed = found.eigenvalues_ - np.array(found.error_["proven_intervals"])[:, 0]
    assert allowed[0] <= 1e-4 * truth.eigenvalues_[0]  # an allowance that says something
    assert np.all(np.abs(found.eigenvalues_ - truth.eigenvalues_) <= allowed)


def test_sparse_rows(digits: NDArray[np.float64]) -> None:
    from scipy.sparse import csr_array

    rows = np.where(np.abs(digits[:300]) > 1.0, digits[:300], 0.0)
    dense = sp.KernelPCA(4, n_landmarks=50, method="nystrom", **RADIAL).fit(rows)
    sparse = sp.KernelPCA(4, n_landmarks=50, method="nystrom", **RADIAL).fit(csr_array(rows))
    np.testing.assert_allclose(sparse.eigenvalues_, dense.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(sparse.transform(csr_array(rows[:9])), dense.transform(rows[:9]), atol=1e-10)
