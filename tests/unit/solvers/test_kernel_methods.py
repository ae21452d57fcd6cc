"""The other methods of kernel PCA: the empirical kernel map, and the classical extension."""

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
from streampca.errors import ParameterError
from streampca.kernels import RBF, Polynomial, Sigmoid

pytestmark = pytest.mark.numerical

RADIAL: dict[str, Any] = {"kernel": "rbf", "gamma": 1 / 64}


@pytest.fixture(scope="module")
def digits() -> NDArray[np.float64]:
    return np.asarray(StandardScaler().fit_transform(load_digits().data))


def similarity(found: Any, truth: Any) -> float:
    pairs = range(len(found.eigenvalues_))
    return float(np.mean([abs(np.corrcoef(found.eigenvectors_[:, i], truth.eigenvectors_[:, i])[0, 1]) for i in pairs]))


@pytest.mark.deep(keep=3)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(
    ("kernel", "least", "most"),
    [
        (RADIAL, 0.999, 1e-2),
        ({"kernel": "poly", "degree": 5}, 0.9999, 1e-5),
        ({"kernel": "tanh", "gamma": 1 / 64}, 0.999, 1e-2),
    ],
)
def test_the_empirical_map_recovers_by_nystrom(
    digits: NDArray[np.float64], kernel: dict[str, Any], least: float, most: float, dtype: Any
) -> None:
    truth = sp.KernelPCA(10, method="exact", **kernel).fit(digits)
    found = sp.KernelPCA(10, method="empirical_map", sketch_size=100, **kernel).fit(digits.astype(dtype))
    assert similarity(found, truth) >= least
    gaps = np.abs(found.eigenvalues_ - truth.eigenvalues_) / truth.eigenvalues_
    assert gaps.mean() <= most
    for (low, high), value in zip(found.error_["eigenvalue_intervals"], truth.eigenvalues_, strict=True):
        assert low <= value <= high
    np.testing.assert_allclose(found.explained_variance_ratio_, truth.explained_variance_ratio_, rtol=1e-2)
    assert found.n_passes_ == 1


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("sketch", ["gaussian", "count_sketch", "sparse_sign", "grouping"])
def test_the_conversion_of_the_literature_is_weaker(digits: NDArray[np.float64], sketch: str) -> None:
    truth = sp.KernelPCA(10, method="exact", **RADIAL).fit(digits)
    common: dict[str, Any] = {"method": "empirical_map", "sketch": sketch, "sketch_size": 100, **RADIAL}
    converted = sp.KernelPCA(10, recovery="conversion", **common).fit(digits)
    better = sp.KernelPCA(10, **common).fit(digits)
    assert similarity(converted, truth) < similarity(better, truth)
    assert converted.error_["kind"] == "none"
    # With 1/√l for l hash functions, and not 1/l, eigenvalues are of the right size.
    if sketch == "count_sketch":
        assert np.abs(converted.eigenvalues_ / truth.eigenvalues_ - 1).mean() < 0.2


def test_the_extension_is_kernel_pca_of_the_landmarks(digits: NDArray[np.float64]) -> None:
    chosen = np.arange(0, 1797, 20)
    found = sp.KernelPCA(6, method="nystrom_extension", sampling=chosen, **RADIAL).fit(digits)
    alone = sp.KernelPCA(6, method="exact", **RADIAL).fit(digits[chosen])
    np.testing.assert_allclose(found.eigenvalues_, alone.eigenvalues_ * 1797 / len(chosen), rtol=1e-10)
    # √λ̂ u(x) with u(x) = √(m/n) λ_m⁻¹ k(x)·v are the projections on the landmarks' axes.
    np.testing.assert_allclose(found.transform(digits[:30]), alone.transform(digits[:30]), atol=1e-9)
    assert found.error_["kind"] == "none"


def test_the_extension_weighs_landmarks_by_their_chance(digits: NDArray[np.float64]) -> None:
    """With one eigenvalue far above all others, factors n/m overstate it many times where heavy rows are drawn more often."""
    kernel: dict[str, Any] = {"kernel": "poly", "degree": 5}
    truth = sp.KernelPCA(1, method="exact", **kernel).fit(digits)
    found = sp.KernelPCA(1, method="nystrom_extension", sampling="diagonal", n_landmarks=100, **kernel).fit(digits)
    np.testing.assert_allclose(found.eigenvalues_, truth.eigenvalues_, rtol=0.01)
    alike = sp.KernelPCA(1, method="nystrom_extension", sampling=found.landmark_indices_, **kernel).fit(digits)
    assert alike.eigenvalues_[0] > 10 * truth.eigenvalues_[0]
    plain = RBF(gamma=1.0)  # any kernel object is accepted
    assert sp.KernelPCA(2, method="nystrom_extension", kernel=plain, n_landmarks=20).fit(digits).kernel_ == plain


def test_the_extension_draws_uniform_landmarks_by_default(digits: NDArray[np.float64]) -> None:
    """Weights n/m hold for uniform landmarks; for those of rpcholesky, which have no chances, they gave 2.6 times the eigenvalues."""
    common: dict[str, Any] = {"method": "nystrom_extension", "n_landmarks": 100, "kernel": "poly", "center": False}
    draws = [sp.KernelPCA(**common, random_state=seed).fit(digits) for seed in range(12)]
    assert {found.sampling_ for found in draws} == {"uniform"}
    traces = np.array([found.eigenvalues_.sum() for found in draws])
    truth = sp.kernels.Polynomial(degree=3).bound(64).diagonal(digits).sum()
    assert abs(traces.mean() - truth) < 4 * traces.std(ddof=1) / np.sqrt(len(traces))
    with pytest.raises(ParameterError, match="sampling='rpcholesky' does not have"):
        sp.KernelPCA(2, sampling="rpcholesky", **common).fit(digits)
    # The plan of another method names the refusal beside it.
    others = sp.KernelPCA(2, sampling="rpcholesky", **common | {"method": "nystrom"}).plan(digits).alternatives
    assert "rpcholesky" in next(other["why"] for other in others if other["solver"] == "nystrom_extension")


@pytest.mark.parametrize("sampling", ["diagonal", "column_norm"])
def test_weights_of_the_extension_sum_to_the_number_of_rows(digits: NDArray[np.float64], sampling: str) -> None:
    """Σ Wᵢ κ(zᵢ, zᵢ) is the trace that is reported without centring: n for κ(x, x) = 1, whatever was drawn."""
    rows = digits[:300]
    common: dict[str, Any] = {"method": "nystrom_extension", "n_landmarks": 40, "center": False, **RADIAL}
    found = sp.KernelPCA(5, sampling=sampling, **common).fit(rows)
    np.testing.assert_allclose(found.eigenvalues_ / found.explained_variance_ratio_, 300, rtol=1e-12)
    if sampling == "diagonal":  # κ(x, x) is constant: every row was as likely as any other
        uniform = sp.KernelPCA(5, sampling=found.landmark_indices_, **common).fit(rows)
        np.testing.assert_allclose(found.eigenvalues_, uniform.eigenvalues_, rtol=1e-12)


def test_the_extension_is_exact_where_every_row_is_drawn(digits: NDArray[np.float64]) -> None:
    kernel: dict[str, Any] = {"kernel": "poly", "degree": 2, "coef0": 0.0}
    rows = np.vstack([digits[:50], np.zeros((5, 64))])  # κ(0, 0) = 0: those are never drawn
    for n_landmarks, given in ((60, digits[:50]), (50, digits[:50]), (55, rows)):
        common: dict[str, Any] = {"method": "nystrom_extension", "n_landmarks": n_landmarks, "center": False, **kernel}
        found = sp.KernelPCA(5, sampling="diagonal", **common).fit(given)
        truth = sp.KernelPCA(5, method="exact", center=False, **kernel).fit(given)
        np.testing.assert_allclose(found.eigenvalues_, truth.eigenvalues_, rtol=1e-10)


def test_an_indefinite_kernel_of_wide_rows_is_exact_by_default() -> None:
    """100 landmarks of tanh(1e-4 x·y) give five directions; asked for ten components, the fit failed after reading."""
    rows = np.random.default_rng(0).random((300, 3072))
    kernel = Sigmoid(1e-4, 0.0)
    found = sp.KernelPCA(10, kernel=kernel, n_landmarks=100).fit(rows)
    assert found.method_ == "exact"
    matrix, middle = kernel(rows, rows), np.eye(300) - 1 / 300
    np.testing.assert_allclose(found.eigenvalues_, np.linalg.eigvalsh(middle @ matrix @ middle)[::-1][:10], rtol=1e-10)


@pytest.mark.parametrize("method", ["exact", "nystrom", "nystrom_extension", "empirical_map"])
def test_fewer_positive_eigenvalues_than_asked_for_are_a_warning(method: str) -> None:
    rows = np.random.default_rng(0).standard_normal((40, 3))
    made: dict[str, Any] = {"kernel": Polynomial(2, 1.0, -5.0), "method": method, "sampling": np.arange(38)}
    with pytest.warns(UserWarning, match=r"n_components=20: only 6 eigenvalues"):
        found = sp.KernelPCA(20, sketch_size=38, **made).fit(rows)
    assert (found.eigenvalues_[:6] > 0).all()
    assert found.n_components_ == (20 if method == "exact" else 6)
    assert found.transform(rows).shape == (40, found.n_components_)
    if method == "exact":  # as scikit-learn does
        assert not found.eigenvalues_[6:].any()
        assert not found.transform(rows)[:, 6:].any()


def test_more_components_than_there_can_be_are_refused_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), shape=(500, 4), chunks=(100, 4), dtype="f8")  # no chunk is there to be read
    for method, limit in (
        ("exact", "500, the number of rows"),
        ("nystrom", "50, the number of landmarks"),
        ("nystrom_extension", "50, the number of landmarks"),
        ("empirical_map", "60, the number of columns of the transform"),
    ):
        with pytest.raises(ParameterError, match=f"n_components=501: expected between 1 and {limit}"):
            sp.KernelPCA(501, method=method, n_landmarks=50, sketch_size=60).fit(path)


def test_parameters_are_checked(digits: NDArray[np.float64]) -> None:
    for parameters, message in (
        ({"method": "nistrom"}, "expected one of auto, exact"),
        ({"kernel": "rbff"}, "did you mean 'rbf'"),
        ({"sketch": "hash"}, "expected one of auto, gaussian"),
        ({"recovery": "best"}, "expected one of nystrom"),
        ({"n_landmarks": 0}, "integer of at least 1"),
        ({"n_landmarks": 2.5}, "integer of at least 1"),
        ({"sketch_size": 0}, "integer of at least 1"),
        ({"center": 1}, "True or False"),
        ({"alpha": -1.0}, "at least 0"),
        ({"random_state": None}, "an integer"),
        ({"n_components": 0}, "expected between 1 and 60, the number of rows"),
        ({"n_components": 1.5}, "a share of the variance"),
    ):
        with pytest.raises(ParameterError, match=message):
            sp.KernelPCA(**parameters).fit(digits[:60])


@pytest.mark.parametrize("method", ["exact", "nystrom", "empirical_map", "nystrom_extension"])
def test_a_share_or_a_threshold_decides_how_many(digits: NDArray[np.float64], method: str) -> None:
    rows = digits[:400]
    common: dict[str, Any] = {"method": method, "n_landmarks": 120, "sketch_size": 120, "sampling": "uniform", **RADIAL}
    share = sp.KernelPCA(0.2, **common).fit(rows)
    ratios = share.explained_variance_ratio_
    assert ratios.sum() >= 0.2 > ratios[:-1].sum()
    threshold = sp.KernelPCA(sp.Threshold(0.2), **common).fit(rows)
    assert (threshold.eigenvalues_ >= 0.2 * threshold.eigenvalues_[0]).all()
    assert threshold.n_components_ > 1
