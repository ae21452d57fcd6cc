"""The kernel PCA estimator as scikit-learn knows it, its model on disk, and its scores in stores."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import streampca as sp
from streampca.errors import ModelError, OutputError, ParameterError, PlanError
from streampca.kernels import RBF, Laplacian, Polynomial

pytestmark = pytest.mark.numerical


@pytest.fixture(scope="module")
def digits() -> NDArray[np.float64]:
    return np.asarray(StandardScaler().fit_transform(load_digits().data))


@pytest.fixture
def fitted(digits: NDArray[np.float64]) -> Any:
    kernel = RBF(gamma=1 / 64) + 0.5 * Polynomial(degree=2) + Laplacian()
    return sp.KernelPCA(4, kernel=kernel, method="nystrom", n_landmarks=60, fit_inverse_transform=True).fit(
        digits[:400]
    )


def test_a_loaded_model_gives_the_same_bits(fitted: Any, digits: NDArray[np.float64], tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.zarr")
    loaded: Any = sp.load(tmp_path / "model.zarr")
    assert isinstance(loaded, sp.KernelPCA)
    new = digits[400:420]
    np.testing.assert_array_equal(loaded.transform(new), fitted.transform(new))
    scores = fitted.transform(new)
    np.testing.assert_array_equal(loaded.inverse_transform(scores), fitted.inverse_transform(scores))
    for name in ("eigenvalues_", "explained_variance_ratio_", "landmarks_", "landmark_indices_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(fitted, name))
    assert loaded.kernel_ == fitted.kernel_
    assert (loaded.method_, loaded.sampling_, loaded.error_) == (fitted.method_, fitted.sampling_, fitted.error_)
    with pytest.raises(OutputError, match="holds a finished model"):
        fitted.save(tmp_path / "model.zarr")
    fitted.save(tmp_path / "model.zarr", overwrite=True)
    attributes = zarr.open_group(tmp_path / "model.zarr", mode="r").attrs
    assert attributes["kind"] == "kernel_pca"
    assert attributes["kernel"]["name"] == "sum"


@pytest.mark.parametrize(
    "name", ["landmarks", "coefficients", "centre", "eigenvalues", "landmark_indices", "way_back_dual"]
)
def test_a_damaged_model_is_refused(fitted: Any, tmp_path: Path, name: str) -> None:
    path = fitted.save(tmp_path / "model.zarr")
    array: Any = zarr.open_group(path, mode="r+")[name]
    array[0] = array[0] * 2 + 1
    with pytest.raises(ModelError, match=f"{name} does not have the SHA-256"):
        sp.load(path)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("kernel", {"name": "magic"}),
        ("method", "guess"),
        ("n_samples", -1),
        ("total", "much"),
        ("version", 99),
        ("center", 1),
    ],
)
def test_attributes_are_checked(fitted: Any, tmp_path: Path, attribute: str, value: Any) -> None:
    path = fitted.save(tmp_path / "model.zarr")
    zarr.open_group(path, mode="r+").attrs[attribute] = value
    with pytest.raises(ModelError, match=str(path)):
        sp.load(path)


def test_rows_come_in_every_form(digits: NDArray[np.float64], tmp_path: Path) -> None:
    rows = digits[:600].astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    zarr.create_array(str(tmp_path / "x.zarr"), data=rows, chunks=(128, 64))
    lazy = da.from_array(rows, chunks=(100, 32))
    first = sp.KernelPCA(3, method="nystrom", n_landmarks=50).fit(rows)
    expected = first.transform(rows)
    assert expected.dtype == np.float32
    for data in (
        tmp_path / "x.npy",
        tmp_path / "x.zarr",
        str(tmp_path / "x.zarr"),
        lazy,
        np.load(tmp_path / "x.npy", mmap_mode="r"),
    ):
        found = sp.KernelPCA(3, method="nystrom", n_landmarks=50).fit(data)
        np.testing.assert_array_equal(found.landmark_indices_, first.landmark_indices_)
        scores = found.transform(data)
        assert isinstance(scores, np.ndarray if isinstance(data, np.memmap) else da.Array)
        np.testing.assert_allclose(np.asarray(scores), expected, atol=1e-4)
    assert first.fit_transform(rows).shape == (600, 3)
    assert sp.KernelPCA(3, method="nystrom", n_landmarks=50).fit_transform(lazy).shape == (600, 3)


@pytest.mark.parametrize("method", ["exact", "nystrom", "nystrom_extension", "empirical_map"])
def test_scores_are_streamed_to_a_store(digits: NDArray[np.float64], tmp_path: Path, method: str) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=digits[:500], chunks=(100, 64))
    fitted = sp.KernelPCA(3, method=method, n_landmarks=40, sketch_size=40).fit(tmp_path / "x.zarr")
    fitted.transform_to(tmp_path / "x.zarr", tmp_path / "scores.zarr")
    group: Any = zarr.open_group(tmp_path / "scores.zarr", mode="r")
    np.testing.assert_allclose(group["scores"][:], fitted.transform(digits[:500]), atol=1e-10)
    np.testing.assert_allclose(group["scores"].attrs["eigenvalues"], fitted.eigenvalues_)
    with pytest.raises(PlanError, match="writing scores"):
        fitted.set_params(memory="10MiB").transform_to(tmp_path / "x.zarr", tmp_path / "more.zarr")


def test_it_works_where_estimators_work(digits: NDArray[np.float64]) -> None:
    rows = digits[:200, :5]
    pipeline = make_pipeline(StandardScaler(), sp.KernelPCA(2, method="nystrom", n_landmarks=30))
    assert pipeline.fit_transform(rows).shape == (200, 2)
    assert list(pipeline.get_feature_names_out()) == ["kernelpca0", "kernelpca1"]
    fitted = sp.KernelPCA(2, method="nystrom", n_landmarks=30).fit(rows)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(rows), fitted.transform(rows))
    with pytest.raises(AttributeError):
        _ = again.eigenvectors_  # the training rows did not go along
    np.testing.assert_allclose(fitted.eigenvectors_ * np.sqrt(fitted.eigenvalues_), fitted.transform(rows), atol=1e-12)
    assert clone(fitted).get_params() == fitted.get_params()
    with pytest.raises(ParameterError, match="4 features"):
        fitted.transform(da.zeros((2, 4)))


def test_the_way_back_returns_to_the_rows(digits: NDArray[np.float64]) -> None:
    """Rows of the training set come back better than their mean is near them."""
    fitted = sp.KernelPCA(
        30, method="nystrom", n_landmarks=200, gamma=1 / 200, fit_inverse_transform=True, alpha=0.01
    ).fit(digits)
    back = fitted.inverse_transform(fitted.transform(digits[:100]))
    assert np.linalg.norm(back - digits[:100]) < 0.7 * np.linalg.norm(digits[:100] - digits.mean(axis=0))
    lazy = fitted.inverse_transform(da.from_array(fitted.transform(digits[:10]), chunks=(5, -1)))
    np.testing.assert_allclose(np.asarray(lazy), back[:10], atol=1e-10)


def test_preimages_by_a_definite_kernel_that_alpha_does_not_lift_above_rounding() -> None:
    """LAPACK calls the matrix of a polynomial of large scores singular; small directions are left out."""
    rows = np.random.default_rng(973).integers(0, 256, (122, 7)).astype(np.uint8)
    pca = sp.KernelPCA(2, kernel="poly", method="exact", gamma=0.043, degree=4, coef0=1.0, fit_inverse_transform=True)
    assert np.isfinite(pca.fit(rows).inverse_transform(pca.transform(rows))).all()


@pytest.mark.deep(keep=7)
@pytest.mark.parametrize("method", ["exact", "nystrom", "nystrom_extension", "empirical_map"])
@pytest.mark.parametrize("kernel", ["poly", "rbf", "sigmoid"])
@pytest.mark.parametrize("scale", [False, True])
def test_float32_rows_have_the_scores_of_the_model_before_and_after_loading(
    tmp_path: Path, method: str, kernel: str, scale: bool
) -> None:
    """With all components, the smallest amplified the rounding of float32 to 1e-2 of the largest scores, otherwise once loaded."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((60, 5)) * np.logspace(0, 1, 5) + np.linspace(0, 20, 5)).astype(np.float32)
    options: dict[str, Any] = {"method": method, "scale": scale, "fit_inverse_transform": True}
    if kernel == "sigmoid":
        options["gamma"] = 1e-4
    if method.startswith("nystrom"):
        options |= {"n_landmarks": 40, "sampling": "uniform"}
    fitted = sp.KernelPCA(kernel=kernel, sketch_size=30, **options).fit(rows)
    scores = fitted.transform(rows)
    assert scores.dtype == np.float32
    wide = fitted.transform(rows.astype(np.float64))  # the same kernel values without the rounding of float32
    assert np.abs(scores - wide).max() < 1e-5 * np.abs(wide).max()
    loaded: Any = sp.load(fitted.save(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(loaded.transform(rows), scores)
    np.testing.assert_array_equal(loaded.inverse_transform(scores), fitted.inverse_transform(scores))
