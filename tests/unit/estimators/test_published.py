"""Figures that others have published, to every printed digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tolerances
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine, make_low_rank_matrix

from streampca import PCA, KernelPCA

DATA = Path(__file__).parents[2] / "data"


def us_arrests() -> NDArray[np.float64]:
    return np.loadtxt(DATA / "usarrests.csv", delimiter=",", skiprows=4, usecols=(1, 2, 3, 4))


def iris_of_r() -> NDArray[np.float64]:
    """Return Fisher's iris as R prints it.

    scikit-learn ships the file of the UCI repository, in which two rows differ from Fisher's paper (its own notes say
    so: the 35th and the 38th sample); R has the values of the paper.
    """
    rows = load_iris().data.copy()
    rows[34], rows[37] = (4.9, 3.1, 1.5, 0.2), (4.9, 3.6, 1.4, 0.1)
    return np.asarray(rows)


def printed(values: NDArray[np.float64]) -> list[str]:
    """Return numbers as R prints them, with seven decimals."""
    return [f"{value:.7f}" for value in values]


def test_the_table_is_the_published_one() -> None:
    rows = us_arrests()
    assert rows.shape == (50, 4)
    np.testing.assert_allclose(rows.mean(axis=0), [7.788, 170.76, 65.54, 21.232], rtol=1e-12)


def test_prcomp_of_iris() -> None:
    pca = PCA().fit(iris_of_r())
    assert printed(np.sqrt(pca.explained_variance_)) == ["2.0562689", "0.4926162", "0.2796596", "0.1543862"]


def test_prcomp_of_scaled_us_arrests() -> None:
    pca = PCA(scale=True).fit(us_arrests())
    assert printed(np.sqrt(pca.explained_variance_)) == ["1.5748783", "0.9948694", "0.5971291", "0.4164494"]
    assert printed(np.abs(pca.components_[0])) == ["0.5358995", "0.5831836", "0.2781909", "0.5434321"]
    assert len(set(np.sign(pca.components_[0]))) == 1
    assert pca.explained_variance_.sum() == pytest.approx(4.0, rel=1e-14)


TEN_ROWS = np.array(
    [
        [2.5, 2.4],
        [0.5, 0.7],
        [2.2, 2.9],
        [1.9, 2.2],
        [3.1, 3.0],
        [2.3, 2.7],
        [2.0, 1.6],
        [1.0, 1.1],
        [1.5, 1.6],
        [1.1, 0.9],
    ]
)
"""Table of the tutorial by L. I. Smith (2002), whose kernel PCA by kernlab is printed in lecture notes."""

PCV = np.array(
    [
        [0.22656759, 1.2535653],
        [-0.48642101, -1.0226454],
        [0.27150712, -2.7515536],
        [0.07503555, -0.9335934],
        [0.45857001, 1.4996976],
        [0.24982141, -1.2547618],
        [-0.02712053, 2.5042249],
        [-0.31320326, -0.3322786],
        [-0.11986791, -0.1271683],
        [-0.33488896, 1.1645133],
    ]
)
"""`pcv` of kernlab: unit eigenvectors of the centred kernel matrix over the roots of its eigenvalues divided by n."""

ROTATED = np.array(
    [
        [2.6182716, 0.55376322],
        [-5.6212026, -0.45175422],
        [3.1376040, -1.21550044],
        [0.8671295, -0.41241542],
        [5.2993494, 0.66249230],
        [2.8869986, -0.55429176],
        [-0.3134116, 1.10624283],
        [-3.6194550, -0.14678426],
        [-1.3852235, -0.05617669],
        [-3.8700604, 0.51442443],
    ]
)
"""`rotated` of kernlab: the product of the centred kernel matrix and `pcv`."""


def test_prcomp_and_the_covariance_over_n_of_ten_rows() -> None:
    over_n, sample = PCA(ddof=0).fit(TEN_ROWS), PCA().fit(TEN_ROWS)
    assert [f"{value:.8f}" for value in over_n.explained_variance_] == ["1.15562494", "0.04417506"]
    assert printed(np.sqrt(sample.explained_variance_)) == ["1.1331495", "0.2215477"]
    assert printed(sample.explained_variance_ratio_) == ["0.9631813", "0.0368187"]
    assert printed(np.abs(sample.components_[0])) == ["0.6778734", "0.7351787"]
    assert printed(np.abs(sample.components_[1])) == ["0.7351787", "0.6778734"]


def test_kernlab_with_a_linear_kernel_on_ten_rows() -> None:
    n = len(TEN_ROWS)
    kpca = KernelPCA(2, kernel="linear", method="exact").fit(TEN_ROWS)
    values = kpca.eigenvalues_ / n
    assert [f"{value:.8f}" for value in values] == ["1.15562494", "0.04417506"]
    signs = np.sign(np.sum(kpca.eigenvectors_ * PCV, axis=0))
    ours = signs * kpca.eigenvectors_ / np.sqrt(values)
    np.testing.assert_allclose(ours[:, 0], PCV[:, 0], atol=0.5e-8)  # half of the last printed digit
    np.testing.assert_allclose(ours[:, 1], PCV[:, 1], atol=0.5e-7)
    projections = signs * kpca.transform(TEN_ROWS) * np.sqrt(n)
    np.testing.assert_allclose(projections[:, 0], ROTATED[:, 0], atol=0.5e-7)
    np.testing.assert_allclose(projections[:, 1], ROTATED[:, 1], atol=0.5e-8)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (load_breast_cancer, (7, 10, 17)),
        (load_iris, (2, 2, 3)),
        (load_diabetes, (7, 8, 8)),
        (load_digits, (31, 40, 54)),
        (load_wine, (8, 10, 12)),
    ],
)
def test_axes_for_shares_of_the_variance_of_z_scores(load: Any, expected: tuple[int, int, int]) -> None:
    rows = load().data
    assert tuple(PCA(share, scale=True).fit(rows).n_components_ for share in (0.90, 0.95, 0.99)) == expected
    full = PCA(scale=True).fit(rows)
    assert tuple(full._model.components_for(share) for share in (0.90, 0.95, 0.99)) == expected


@pytest.mark.parametrize(("mean", "digits"), [(1_000_000.2, 9), (10_000_000.2, 8)], ids=["NumAcc3", "NumAcc4"])
@pytest.mark.parametrize("chunk", [1001, 64, 1])
def test_nist_numerical_accuracy(mean: float, digits: int, chunk: int) -> None:
    """NIST StRD univariate summary statistics: certified mean as given, standard deviation 0.1 exactly."""
    import dask.array as da

    column = np.concatenate([[mean], np.tile([mean - 0.1, mean + 0.1], 500)])
    column = np.round(column, 1)
    pca = PCA().fit(da.from_array(column[:, None], chunks=(chunk, 1)))
    error = abs(np.sqrt(pca.explained_variance_[0]) - 0.1) / 0.1
    assert -np.log10(max(error, 1e-16)) >= digits
    assert pca.mean_[0] == pytest.approx(mean, rel=1e-15)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_whitening_a_matrix_of_low_effective_rank_stays_finite(dtype: str) -> None:
    """scikit-learn issue 29534: eigenvalues at the level of rounding made whitened scores explode."""
    rows = make_low_rank_matrix(1000, 10, effective_rank=2, tail_strength=0, random_state=0).astype(dtype)
    pca = PCA(whiten=True).fit(rows)
    scores = pca.transform(rows)
    assert np.isfinite(scores).all()
    assert np.abs(scores).max() < 10
    rank = pca.numerical_rank_
    assert 2 < rank < 10
    values = pca.explained_variance_
    error = np.abs(scores[:, :rank].var(axis=0, ddof=1) - 1.0)
    assert (error <= tolerances.eigenvalues(dtype) * values[0] / values[:rank]).all()
    np.testing.assert_array_equal(scores[:, rank:], 0.0)
    assert np.isfinite(pca.get_precision()).all()
    assert np.isfinite(pca.score(rows))
