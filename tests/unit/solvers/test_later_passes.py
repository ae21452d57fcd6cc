"""Later passes of an approximate answer, of data whose variances have squares outside of the range of their type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streampca import PCA

pytestmark = pytest.mark.numerical


@pytest.mark.parametrize("solver", ["adaptive", "sketch"])
@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [("float64", 272), ("float64", -272), ("float32", 60), ("float32", -60), ("float32", 100)],
    ids=str,
)
def test_a_later_pass_of_rows_of_any_size_gives_the_same_certificate(solver: str, dtype: str, exponent: int) -> None:
    """Products of held-out columns, of the size of variances, were multiplied with the matrix again: they overflowed."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((300, 70)) * np.arange(1, 71) ** -0.5).astype(dtype)
    how = {"solver": solver, "sketch_size": 8, "pilot": 0, "max_passes": 3, "tolerance": 0.0, "random_state": 0}
    pca, far = PCA(3, **how).fit(rows), PCA(3, **how).fit(np.ldexp(rows, exponent))
    assert pca.n_passes_ == far.n_passes_ == 3
    exact = np.linalg.svd(rows - rows.mean(axis=0, dtype=np.float64), compute_uv=False)[:3] ** 2 / 299
    lower, upper = np.ldexp(far.error_["eigenvalue_intervals"], -2 * exponent).T
    assert (lower <= exact).all()
    assert (exact <= upper).all()
    # Other batches are updates where float32 is too short for products of three rows, so the basis is another one.
    assert np.ldexp(far.error_["sigma"], -2 * exponent) == pytest.approx(pca.error_["sigma"], rel=0.2)


@pytest.fixture(scope="module")
def square() -> NDArray[np.int8]:
    """Rows that no exact solver takes in the memory below: eigenvalues are close to noise, so one pass is not enough."""
    rng = np.random.default_rng(0)
    signal = rng.standard_normal((4000, 3), dtype=np.float32) @ rng.standard_normal((3, 4000), dtype=np.float32)
    rows: NDArray[np.int8] = np.rint(8 * rng.standard_normal((4000, 4000), dtype=np.float32) + 2 * signal).astype(
        np.int8
    )
    return rows


def little(**how: Any) -> PCA:
    process = PCA(1).plan(np.eye(2)).memory["process"]
    return PCA(3, memory=process + 48 * 2**20, sketch_size=24, pilot=0, **how)


def test_auto_reads_until_eigenvalues_are_certified_to_a_hundredth(square: NDArray[np.int8]) -> None:
    plan = little().plan(square)
    assert (plan.solver, plan.passes) == ("sketch", 8)
    assert "at most 8 passes" in str(plan)
    assert "every eigenvalue is certified to 0.01" in str(plan)
    assert plan.to_dict()["sketch"]["tolerance"] == 0.01
    pca = little().fit(square)
    said, errors = pca.error_, np.array(pca.error_["component_errors"])
    centred = square - square.mean(axis=0, dtype=np.float64)
    exact = pca.explained_variance_
    for _ in range(3):  # power steps from vectors that are nearly right
        basis = np.linalg.qr(centred.T @ (centred @ pca.components_.T))[0]
        exact = np.linalg.eigvalsh((centred @ basis).T @ (centred @ basis))[::-1] / 3999
    assert said["largest_relative_width"] == errors.max() <= 0.01
    assert 1 < pca.n_passes_ < 8
    assert (np.abs(pca.explained_variance_ - exact) <= errors * exact).all()


@pytest.mark.parametrize(
    ("how", "passes", "tolerance"),
    [
        ({"max_passes": 1}, 1, None),
        ({"max_passes": 3}, 3, 0.01),
        ({"tolerance": 0.2}, 8, 0.2),
        ({"tolerance": 0}, 2, 0),
    ],
)
def test_limits_that_are_given_are_planned_as_given(
    square: NDArray[np.int8], how: dict[str, Any], passes: int, tolerance: float | None
) -> None:
    plan = little(**how).plan(square)
    assert (plan.passes, plan.to_dict()["sketch"]["tolerance"]) == (passes, tolerance)


def test_a_solver_that_is_named_reads_once_without_a_tolerance(square: NDArray[np.int8]) -> None:
    for solver in ("sketch", "adaptive"):
        assert PCA(3, solver=solver).plan(square).passes == 1
        assert PCA(3, solver=solver, tolerance=1e-3).plan(square).passes == 8


def test_a_tolerance_counts_as_met_exactly_where_the_certificate_says_so() -> None:
    rng = np.random.default_rng(1)
    for power in (0.1, 0.3, 1.0):
        rows = rng.standard_normal((600, 120)) * np.arange(1, 121) ** -power
        exact = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:5] ** 2 / 599
        pca = PCA(5, solver="sketch", sketch_size=20, tolerance=1e-3, max_passes=4).fit(rows)
        width = pca.error_["largest_relative_width"]
        assert width <= 1e-3 or pca.n_passes_ == 4
        assert np.abs(pca.explained_variance_ / exact - 1).max() <= width
