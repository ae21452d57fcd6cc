"""The other methods of kernel PCA: the empirical kernel map, and the classical extension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

import streampca as sp
from streampca.errors import ParameterError
from streampca.kernels import RBF

RADIAL: dict[str, Any] = {"kernel": "rbf", "gamma": 1 / 64}


@pytest.fixture(scope="module")
def digits() -> NDArray[np.float64]:
    return np.asarray(StandardScaler().fit_transform(load_digits().data))


def similarity(found: Any, truth: Any) -> float:
    pairs = range(len(found.eigenvalues_))
    return float(np.mean([abs(np.corrcoef(found.eigenvectors_[:, i], truth.eigenvectors_[:, i])[0, 1]) for i in pairs]))


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


def test_parameters_are_checked(digits: NDArray[np.float64]) -> None:
    for parameters, message in (
        ({"method": "nistrom"}, "expected one of auto, exact"),
        ({"kernel": "rbff"}, "nearest"),
        ({"sketch": "hash"}, "expected one of auto, gaussian"),
        ({"recovery": "best"}, "expected one of nystrom"),
        ({"n_landmarks": 0}, "integer of at least 1"),
        ({"n_landmarks": 2.5}, "integer of at least 1"),
        ({"sketch_size": 0}, "integer of at least 1"),
        ({"center": 1}, "True or False"),
        ({"alpha": -1.0}, "at least 0"),
        ({"random_state": None}, "an integer"),
        ({"n_components": 0}, "expected at least 1"),
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
