"""Limits of T² of fits that removed means and slopes: false alarms of simulated rows, and the law with fewer degrees of freedom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import beta, f

import streampca as sp

pytestmark = pytest.mark.numerical

N, D, GROUPS, FITS = 60, 3, 20, 200


def t2_of(residuals: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return T² of `others` by all components of `residuals`, with eigenvalues of divisor n − 1."""
    inverse = np.linalg.inv(residuals.T @ residuals / (len(residuals) - 1))
    return np.asarray(np.einsum("ij,jk,ik->i", others, inverse, others))


def test_false_alarms_of_rows_whose_group_means_were_removed_are_as_many_as_asked_for() -> None:
    random, groups = np.random.default_rng(0), np.arange(N) % GROUPS
    limits, beyond = {}, {"f": 0.0, "beta": 0.0}
    for i in range(FITS):
        rows, new = random.standard_normal((2, N, D))
        if not i:
            pca = sp.PCA(D, remove={"groups": groups}).fit(rows)
            limits = {name: pca.t2_limit(0.95, distribution=name) for name in beyond}  # type: ignore[arg-type]
        means = np.array([rows[groups == g].mean(axis=0) for g in range(GROUPS)])[groups]
        for name, some in (("beta", rows), ("f", new)):
            beyond[name] += float((t2_of(rows - means, some - means) > limits[name]).mean()) / FITS
    # Five standard errors; rows of a fit share its eigenvalues, so that the number of fits counts, not that of rows.
    allowed = 5 * np.sqrt(0.05 * 0.95 / (FITS * N / D))
    assert max(abs(beyond["f"] - 0.05), abs(beyond["beta"] - 0.05)) <= allowed


@pytest.mark.parametrize("redundant", [False, True])
def test_degrees_of_freedom_of_the_limits_are_those_that_independent_regressors_leave(
    redundant: bool, tmp_path: Path
) -> None:
    random, n, k = np.random.default_rng(1), 40, 2
    covariates = random.standard_normal((n, 3))
    if redundant:
        covariates[:, 2] = covariates[:, 0] - 2 * covariates[:, 1]
    c = 3 if redundant else 4
    fitted: Any = sp.PCA(k, remove={"covariates": covariates}).fit(random.standard_normal((n, 6)))
    divisor = (n - 1) / (n - c)
    expected = {
        "f": divisor * (1 + c / n) * k * (n - c) / (n - c - k + 1) * f.ppf(0.99, k, n - c - k + 1),
        "beta": divisor * (n - c) * (1 - c / n) * beta.ppf(0.99, k / 2, (n - c - k) / 2),
    }
    for pca in (fitted, sp.load(fitted.save(tmp_path / "model.zarr"))):
        for name, limit in expected.items():
            np.testing.assert_allclose(pca.t2_limit(0.99, distribution=name), limit, rtol=1e-9)


def test_sampling_errors_of_rows_without_their_group_means_are_those_of_the_degrees_of_freedom_that_are_left() -> None:
    random, n, n_groups, fits = np.random.default_rng(2), 120, 40, 30
    settings: dict[str, Any] = {"remove": {"groups": np.arange(n) % n_groups}, "sampling_errors": 20}
    squares = []
    for _ in range(fits):
        pca = sp.PCA(2, **settings).fit(random.standard_normal((n, 4)) * [9, 3, 1, 1])
        errors = pca.sampling_error_
        squares.append(np.square([errors.eigenvalues, errors.north]) / np.square(errors.estimates))
    jackknife, north = np.mean(squares, axis=0)
    expected = 2 / (n - n_groups)  # relative variance of the variance of normal values
    # A jackknife variance of 20 groups has the relative standard error √(2/19).
    np.testing.assert_allclose(jackknife, expected, rtol=5 * np.sqrt(2 / 19 / fits))
    np.testing.assert_allclose(north, expected, rtol=0.1)
