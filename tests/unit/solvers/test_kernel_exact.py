"""Exact kernel PCA against scikit-learn and the textbooks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.decomposition import KernelPCA as PeerKernelPCA
from sklearn.metrics.pairwise import laplacian_kernel
from sklearn.preprocessing import StandardScaler

import streampca as sp
from streampca.errors import NotFiniteError, ParameterError, PlanError
from streampca.kernels import RBF, Polynomial

pytestmark = pytest.mark.numerical

KERNELS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("rbf", {"gamma": 1 / 64}),
    ("poly", {"degree": 5}),
    ("poly", {"degree": 3, "gamma": 0.01, "coef0": 2.0}),
    ("sigmoid", {"gamma": 1e-4}),
    ("cosine", {}),
    ("laplacian", {"gamma": 0.02}),
]


@pytest.fixture(scope="module")
def digits() -> NDArray[np.float64]:
    return np.asarray(StandardScaler().fit_transform(load_digits().data))


def peer(name: str, parameters: dict[str, Any], rows: NDArray[Any], new: NDArray[Any], k: int) -> tuple[Any, Any]:
    """Return scikit-learn's eigenvalues and projections of new rows."""
    if name == "laplacian":
        fitted = PeerKernelPCA(k, kernel="precomputed", eigen_solver="dense").fit(laplacian_kernel(rows, **parameters))
        return fitted.eigenvalues_, fitted.transform(laplacian_kernel(new, rows, **parameters))
    fitted = PeerKernelPCA(k, kernel=name, eigen_solver="dense", **parameters).fit(rows)
    return fitted.eigenvalues_, fitted.transform(new)


@pytest.mark.parametrize(("name", "parameters"), KERNELS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(KERNELS)])
def test_equals_scikit_learn_on_digits(digits: NDArray[np.float64], name: str, parameters: dict[str, Any]) -> None:
    rows, new = digits[:900], digits[900:1100]
    found = sp.KernelPCA(10, method="exact", kernel=name, **parameters).fit(rows)
    values, projections = peer(name, parameters, rows, new, 10)
    np.testing.assert_allclose(found.eigenvalues_, values, rtol=1e-10)
    scores = found.transform(new)
    signs = np.sign((scores * projections).sum(axis=0))
    np.testing.assert_allclose(scores * signs, projections, rtol=0, atol=1e-8 * np.abs(projections).max())


def test_iterated_eigenpairs_equal_those_of_lapack(digits: NDArray[np.float64]) -> None:
    # 1,797 rows and 20 components are solved by iteration, scikit-learn's by LAPACK.
    found = sp.KernelPCA(20, method="exact", gamma=1 / 64).fit(digits)
    assert found.error_["eigen_solver"] == "block krylov"
    values, _ = peer("rbf", {"gamma": 1 / 64}, digits, digits[:5], 20)
    np.testing.assert_allclose(found.eigenvalues_, values, rtol=1e-10)
    narrow = sp.KernelPCA(20, method="exact", gamma=1 / 64).fit(digits.astype(np.float32))
    np.testing.assert_allclose(narrow.eigenvalues_, values, rtol=1e-5)


def test_linear_kernel_equals_pca(digits: NDArray[np.float64]) -> None:
    kernel = sp.KernelPCA(8, method="exact", kernel="linear").fit(digits[:500])
    linear = sp.PCA(8).fit(digits[:500])
    np.testing.assert_allclose(kernel.eigenvalues_, linear.singular_values_**2, rtol=1e-10)
    np.testing.assert_allclose(kernel.explained_variance_ratio_, linear.explained_variance_ratio_, rtol=1e-10)
    mine, theirs = kernel.transform(digits[500:600]), linear.transform(digits[500:600])
    np.testing.assert_allclose(np.abs(mine), np.abs(theirs), atol=1e-8)


def test_eigenvectors_are_orthonormal_and_scores_of_the_training_rows(digits: NDArray[np.float64]) -> None:
    rows = digits[:300]
    found = sp.KernelPCA(6, method="exact", gamma=1 / 64)
    scores = found.fit_transform(rows)
    np.testing.assert_allclose(found.eigenvectors_.T @ found.eigenvectors_, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(scores, found.eigenvectors_ * np.sqrt(found.eigenvalues_), atol=1e-12)
    np.testing.assert_allclose(found.transform(rows), scores, atol=1e-10)
    largest = np.abs(found.eigenvectors_).argmax(axis=0)
    assert (found.eigenvectors_[largest, np.arange(6)] > 0).all()


def test_the_trace_is_that_of_the_centred_matrix(digits: NDArray[np.float64]) -> None:
    rows, kernel = digits[:200], RBF(gamma=1 / 64) + 0.5 * Polynomial(degree=2)
    matrix = kernel(rows, rows)
    middle = np.eye(200) - 1 / 200
    found = sp.KernelPCA(method="exact", kernel=kernel).fit(rows)
    everything = np.linalg.eigvalsh(middle @ matrix @ middle)[::-1]
    np.testing.assert_allclose(found.eigenvalues_, everything[: found.n_components_], rtol=1e-9, atol=1e-10)
    assert found.n_components_ == 199
    np.testing.assert_allclose(found.explained_variance_ratio_.sum(), 1.0, rtol=1e-10)
    plain = sp.KernelPCA(5, method="exact", kernel=kernel, center=False).fit(rows)
    np.testing.assert_allclose(plain.eigenvalues_, np.linalg.eigvalsh(matrix)[::-1][:5], rtol=1e-10)


def test_two_variables_by_hand() -> None:
    """Kernel PCA with a linear kernel has n λ as eigenvalues of the centred K for the eigenvalues λ of the covariance over n."""
    rows = np.array([[2.0, 1.0], [0.0, 0.0], [-1.0, 3.0], [4.0, 2.0]])
    found = sp.KernelPCA(2, kernel="linear", method="exact").fit(rows)
    over_n = np.linalg.eigvalsh(np.cov(rows.T, ddof=0))[::-1]
    over_less = np.linalg.eigvalsh(np.cov(rows.T, ddof=1))[::-1]
    np.testing.assert_allclose(found.eigenvalues_, 4 * over_n, rtol=1e-12)
    np.testing.assert_allclose(found.eigenvalues_, 3 * over_less, rtol=1e-12)


def test_inverse_transform_is_that_of_scikit_learn(digits: NDArray[np.float64]) -> None:
    rows, new = digits[:300], digits[300:340]
    mine = sp.KernelPCA(8, method="exact", gamma=1 / 64, fit_inverse_transform=True, alpha=0.5).fit(rows)
    theirs = PeerKernelPCA(
        8, kernel="rbf", gamma=1 / 64, fit_inverse_transform=True, alpha=0.5, eigen_solver="dense"
    ).fit(rows)
    expected = theirs.inverse_transform(theirs.transform(new))
    np.testing.assert_allclose(mine.inverse_transform(mine.transform(new)), expected, atol=1e-9)
    with pytest.raises(ParameterError, match="fit_inverse_transform=True"):
        sp.KernelPCA(2, method="exact").fit(rows).inverse_transform(np.zeros((1, 2)))


def test_distances_in_kernel_space(digits: NDArray[np.float64]) -> None:
    found = sp.KernelPCA(3, method="exact", kernel="linear").fit(digits[:60])
    expected = np.linalg.norm(digits[60:64, None] - digits[None, :60], axis=2)
    np.testing.assert_allclose(found.kernel_distance(digits[60:64]), expected, rtol=1e-10)
    np.testing.assert_allclose(found.kernel_distance(digits[:2], digits[:2]).diagonal(), 0, atol=1e-6)


def test_a_matrix_that_does_not_fit_is_refused_before_reading(digits: NDArray[np.float64], tmp_path: Any) -> None:
    import zarr

    store = zarr.create_array(str(tmp_path / "x.zarr"), shape=(60_000, 8), chunks=(20_000, 8), dtype="f4")
    del store  # no chunk was written: reading would fail
    with pytest.raises(PlanError) as refused:
        sp.KernelPCA(5, method="exact", memory="4GiB").fit(tmp_path / "x.zarr")
    said = str(refused.value)
    assert "60,000 x 60,000 kernel matrix takes 13.4 GiB" in said
    assert "allowed 4.0 GiB" in said
    assert "memory of at least" in said
    assert "method='nystrom' with n_landmarks=1000 would fit" in said


def test_rows_that_cannot_be_used_are_named(digits: NDArray[np.float64]) -> None:
    broken = digits[:50].copy()
    broken[7, 3] = np.nan
    with pytest.raises(NotFiniteError, match="row 7, column 3"):
        sp.KernelPCA(2, method="exact").fit(broken)
    with pytest.raises(NotFiniteError, match="overflow"):
        sp.KernelPCA(2, method="exact", kernel="poly", degree=300).fit(digits[:50] * 1e3)
    with pytest.raises(ParameterError, match=r"between 1 and 50, the number of rows"):
        sp.KernelPCA(51, method="exact").fit(digits[:50])


def test_a_callable_takes_two_blocks_and_is_not_saved(digits: NDArray[np.float64], tmp_path: Any) -> None:
    def product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
        return left @ right.T

    mine = sp.KernelPCA(3, method="exact", kernel=product).fit(digits[:80])
    expected = sp.KernelPCA(3, method="exact", kernel="linear").fit(digits[:80])
    np.testing.assert_allclose(mine.eigenvalues_, expected.eigenvalues_, rtol=1e-12)
    with pytest.raises(sp.errors.ModelError, match="cannot be saved"):
        mine.save(tmp_path / "model.zarr")
    assert not (tmp_path / "model.zarr").exists()
