"""Numbers of components that R packages print for well-known tables by parallel analysis, and its definition on the same tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_iris

import streampca as sp

pytestmark = pytest.mark.numerical

DATA = Path(__file__).parents[2] / "data"
# Correlations below the diagonal of eight physical measurements of 305 girls (Harman 1976, p. 22; Harman23.cor of R): height, arm span,
# forearm, lower leg, weight, bitrochanteric diameter, chest girth, chest width.
HARMAN = """
.846
.805 .881
.859 .826 .801
.473 .376 .380 .436
.398 .326 .319 .329 .762
.301 .277 .237 .327 .730 .583
.382 .415 .345 .365 .629 .577 .539
"""


def rows_with(correlations: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return `n` rows that have exactly these correlations."""
    noise = np.random.default_rng(0).standard_normal((n, len(correlations)))
    white = np.linalg.qr(noise - noise.mean(axis=0))[0]
    return white @ np.linalg.cholesky(correlations).T


def harman() -> NDArray[np.float64]:
    matrix = np.eye(8)
    matrix[np.tril_indices(8, -1)] = np.array(HARMAN.split(), dtype=float)
    return rows_with(np.tril(matrix, -1).T + matrix, 302)


def table(name: str) -> NDArray[np.float64]:
    if name == "iris":
        return np.asarray(load_iris().data)
    if name == "usarrests":
        return np.loadtxt(DATA / "usarrests.csv", delimiter=",", skiprows=4, usecols=(1, 2, 3, 4))
    return np.loadtxt(DATA / "mtcars.csv", delimiter=",", skiprows=3) if name == "mtcars" else harman()


def horn(rows: NDArray[np.float64], n_tables: int = 100) -> int:
    """Return how many eigenvalues are above the mean of those of normal tables of the same shape, one after the other."""
    rng = np.random.default_rng(1)
    random = [np.linalg.eigvalsh(np.corrcoef(rng.standard_normal(rows.shape).T))[::-1] for _ in range(n_tables)]
    above = np.linalg.eigvalsh(np.corrcoef(rows.T))[::-1] > np.mean(random, axis=0)
    return int(np.argmin(above))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("usarrests", 1),  # paran(USArrests, iterations=5000), the example of paran (Dinno)
        ("iris", 1),  # psych: fa.parallel(iris[1:4]), number of components = 1
        (
            "mtcars",
            2,
        ),  # psych: fa.parallel(mtcars), number of components = 2 (Daróczi 2015, Mastering Data Analysis with R, ch. 9)
        (
            "harman",
            2,
        ),  # psych: fa.parallel(Harman23.cor$cov, n.obs=302, fa="pc") (Kabacoff 2015, R in Action, ch. 14)
    ],
)
def test_parallel_analysis_gives_the_number_that_r_packages_print(name, number):
    rows = table(name)
    rules = sp.PCA(scale=True).fit(rows).component_rules_
    assert rules["parallel"].n_components == number == horn(rows)
    assert sp.PCA("parallel", scale=True).fit(rows).n_components_ == number


def test_eigenvalues_of_the_measurements_of_girls_are_the_printed_ones():
    # SS loadings of principal(Harman23.cor$cov, nfactors=2, rotate="none"): 4.67 and 1.77 (Kabacoff 2015, listing 14.2).
    values = sp.PCA(2, scale=True).fit(harman()).explained_variance_
    assert [f"{value:.2f}" for value in values] == ["4.67", "1.77"]
