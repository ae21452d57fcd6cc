"""Kernel PCA of z-scores: what it gives for standardised rows, in how many readings, and after loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import ParameterError
from streampca.kernels import RBF, Standardised

pytestmark = pytest.mark.numerical
METHODS: dict[str, dict[str, Any]] = {
    "exact": {"method": "exact"},
    "map": {"method": "empirical_map", "sketch_size": 40},
    "uniform": {"method": "nystrom", "n_landmarks": 40, "sampling": "uniform"},
    "extension": {"method": "nystrom_extension", "n_landmarks": 40, "sampling": "uniform"},
    "diagonal": {"method": "nystrom", "n_landmarks": 40, "sampling": "diagonal", "kernel": "poly", "degree": 2},
    "column norm": {"method": "nystrom", "n_landmarks": 40, "sampling": "column_norm", "kernel": "poly", "degree": 2},
    "rpcholesky": {"method": "nystrom", "n_landmarks": 40, "sampling": "rpcholesky", "kernel": "poly", "degree": 2},
    "given": {"method": "nystrom", "sampling": np.arange(0, 300, 7)},
}
PASSES = {
    "exact": 1,
    "map": 1,
    "uniform": 2,
    "extension": 1,
    "diagonal": 3,
    "column norm": 4,
    "rpcholesky": 3,
    "given": 2,
}


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float64]:
    """Return rows of features with different scales and means, of which one never varies."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 6)) @ rng.standard_normal((6, 6)) * 10.0 ** np.arange(-3, 3) + 7.0
    rows[:, 2] = 5.0
    return np.asarray(rows)


def z_scores(rows: NDArray[np.float64], of: NDArray[np.float64]) -> NDArray[np.float64]:
    deviation = of.std(axis=0, ddof=1)
    deviation[deviation == 0] = np.inf
    return np.asarray((rows - of.mean(axis=0)) / deviation)


@pytest.mark.parametrize("name", METHODS)
def test_scale_gives_what_standardised_rows_give(name: str, rows: NDArray[np.float64]) -> None:
    options = {"gamma": 0.1} | METHODS[name]
    found = sp.KernelPCA(3, scale=True, **options).fit(rows)
    expected = sp.KernelPCA(3, **options).fit(z_scores(rows, rows))
    np.testing.assert_allclose(found.eigenvalues_, expected.eigenvalues_, rtol=1e-9)
    new = rows[:20] * 1.1
    new[:, 2] = 1e6  # a feature that never varied does not count
    np.testing.assert_allclose(found.transform(new), expected.transform(z_scores(new, rows)), atol=1e-8)
    assert found.n_passes_ == found.plan_.passes == PASSES[name]
    if name not in ("exact", "map", "given"):
        np.testing.assert_array_equal(found.landmark_indices_, expected.landmark_indices_)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_scale_of_narrow_and_sparse_rows(dtype: str) -> None:
    rng = np.random.default_rng(1)
    rows = (rng.poisson(2.0, (400, 8)) * (1 + np.arange(8))).astype(dtype)
    options: dict[str, Any] = {"gamma": 0.05, "method": "nystrom", "n_landmarks": 60, "scale": True}
    found = sp.KernelPCA(3, **options).fit(rows)
    expected = sp.KernelPCA(3, **options).fit(rows.astype(np.float64))
    np.testing.assert_allclose(found.eigenvalues_, expected.eigenvalues_, rtol=1e-5)
    sparse = sp.KernelPCA(3, **options).fit(scipy.sparse.csr_array(rows.astype(np.float64)))
    np.testing.assert_allclose(sparse.eigenvalues_, expected.eigenvalues_, rtol=1e-10)


def test_means_and_deviations_are_saved(rows: NDArray[np.float64], tmp_path: Path) -> None:
    fitted = sp.KernelPCA(3, method="nystrom", n_landmarks=40, scale=True, fit_inverse_transform=True).fit(rows)
    fitted.save(tmp_path / "model.zarr")
    loaded = sp.load(tmp_path / "model.zarr")
    assert isinstance(loaded, sp.KernelPCA)
    assert loaded.scale is True
    assert loaded.kernel_ == fitted.kernel_
    np.testing.assert_array_equal(loaded.transform(rows), fitted.transform(rows))
    scores = fitted.transform(rows)
    back = fitted.inverse_transform(scores)
    np.testing.assert_array_equal(loaded.inverse_transform(scores), back)
    np.testing.assert_array_equal(back[:, 2], 5.0)
    varying = [0, 1, 3, 4, 5]
    errors = ((back - rows) ** 2).mean(axis=0)[varying] / rows.var(axis=0)[varying]
    assert errors.max() < 1  # closer than the mean, in every unit
    np.testing.assert_allclose(fitted.kernel_distance(rows[:3], rows[:3]).diagonal(), 0, atol=1e-6)


def test_a_run_standardises(rows: NDArray[np.float64], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows)
    (tmp_path / "run.yaml").write_text(
        f"source: {{path: {tmp_path / 'x.npy'}}}\npreprocess: {{scale: true}}\n"
        f"output: {{directory: {tmp_path / 'out'}, report: false, overwrite: true}}\n"
        "model: {kind: kernel_pca, n_components: 3, method: exact, kernel: {name: rbf, gamma: 0.1}}\n"
    )
    run = sp.run(tmp_path / "run.yaml")
    expected = sp.KernelPCA(3, method="exact", gamma=0.1).fit(z_scores(rows, rows))
    np.testing.assert_allclose(run.model.eigenvalues_, expected.eigenvalues_, rtol=1e-9)
    again = sp.run(tmp_path / "run.yaml", fresh=True)  # every file of the first run is known to be one
    np.testing.assert_array_equal(again.model.eigenvalues_, run.model.eigenvalues_)


def test_a_kernel_without_moments_is_refused(rows: NDArray[np.float64]) -> None:
    with pytest.raises(ParameterError, match="without means"):
        Standardised(RBF(0.1))(rows, rows)
    for scale in ("yes", "block"):
        with pytest.raises(ParameterError, match=f"scale='{scale}'"):
            sp.KernelPCA(2, scale=scale).fit(rows)  # type: ignore[arg-type]
