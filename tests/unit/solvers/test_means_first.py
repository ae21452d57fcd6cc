"""``missing="mean"`` of the approximate solvers: a reading for the means, and then the rows that they fill."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import zarr
from facade import blocks_of, process_bytes
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import DataError, NotFiniteError

pytestmark = pytest.mark.numerical

SOLVERS = pytest.mark.parametrize("solver", ["sketch", "adaptive"])
N, D = 400, 30


def holed(far: float = 5.0, dtype: str = "float64") -> NDArray[Any]:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((N, 6)) @ rng.standard_normal((6, D)) + 0.1 * rng.standard_normal((N, D))
    rows = (rows + far * rng.standard_normal(D)).astype(dtype)
    rows[:, 4] = 0.1  # constant where it is observed
    rows[rng.random(rows.shape) < 0.2] = np.nan
    rows[: N // 2, 7] = np.nan
    return rows


def filled(rows: NDArray[Any], weights: NDArray[np.float64]) -> tuple[NDArray[np.longdouble], NDArray[np.longdouble]]:
    """Return the means of what is observed, and the rows minus them, 0 where they are missing."""
    wide, seen = rows.astype(np.longdouble), ~np.isnan(rows)
    middle = np.nanmin(wide, axis=0)
    away = np.where(seen, wide - middle, 0)
    offset = weights @ away / (weights @ seen)
    return middle + offset, np.where(seen, away - offset, 0)


@SOLVERS
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("far", [0.0, 1e6])
@pytest.mark.parametrize("options", [{}, {"scale": True}, {"center": False}, {"weights": True}], ids=str)
def test_answers_are_those_of_rows_filled_by_their_means(
    solver: str, dtype: str, far: float, options: dict[str, Any]
) -> None:
    rows, how = holed(far, dtype), dict(options)
    weights = np.random.default_rng(1).integers(0, 3, N) * 1.5 if how.pop("weights", False) else np.ones(N)
    how |= {"missing": "mean", "missing_scores": "mean", "solver": solver, "sketch_size": D}
    pca = sp.PCA(5, **how).fit(rows, sample_weight=weights)
    mean, centred = filled(rows, weights)
    deviation = np.sqrt(weights @ centred**2 / (weights.sum() - 1))
    about = centred if pca.center else centred + mean
    if pca.scale:
        about = np.where(deviation > 0, about / np.where(deviation > 0, deviation, 1), 0)
    matrix = (np.sqrt(weights / (weights.sum() - 1))[:, None] * about).astype(np.float64)
    exact = np.linalg.svd(matrix, compute_uv=False)[:5] ** 2
    trusted = (pca.error_["trusted_above"] + 16 * D * np.finfo(np.float64).eps) * exact[0]
    lower, upper = np.array(pca.error_["eigenvalue_intervals"]).T
    assert (lower - trusted <= exact).all()
    assert (exact <= upper + trusted).all()
    assert pca.total_variance_ == pytest.approx((matrix**2).sum(), rel=1e-10)
    assert pca.error_["missing_values"] == np.isnan(rows[weights > 0]).sum()
    if pca.center:
        assert np.abs(pca.mean_ - mean).max() <= 1e-7 * max(1.0, far)
        rounding = 1e-12 if dtype == "float64" else 1e-6
        away = (about.astype(np.float64) @ pca.components_.T) - pca.transform(rows)
        assert np.abs(away).max() <= (rounding + 1e-15 * far) * np.abs(about).max() * D


@SOLVERS
def test_readings_and_bytes_are_those_of_the_plan(solver: str, tmp_path: Any) -> None:
    rows = holed()
    rows[:100, 7] = 1
    zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(50, D), dtype="f8")[:] = rows
    store = str(tmp_path / "x.zarr")
    with blocks_of(50):
        pca = sp.PCA(3, missing="mean", solver=solver, pilot=0)
        plan = pca.plan(store)
        pca.fit(store)
        twice = sp.PCA(3, missing="mean", solver=solver, pilot=0, max_passes=2, tolerance=0.0).fit(store)
        pca.save(tmp_path / "model.zarr")
    assert plan.passes == pca.n_passes_ == 2
    assert twice.n_passes_ == 3
    assert "means of features" in str(plan)
    # Each reading, and the chunks with the first 128 rows, which say what numbers are near the means.
    assert plan.bytes_to_read == pca.bytes_read_ == (2 * N + 150) * D * 8
    loaded = sp.load(tmp_path / "model.zarr")
    assert np.array_equal(loaded.transform(rows), pca.transform(rows))
    assert loaded.error_["statement"].endswith("missing values replaced by the mean of their feature")


@SOLVERS
def test_integers_that_mean_missing(solver: str) -> None:
    rng = np.random.default_rng(0)
    counts = rng.binomial(2, 0.3, size=(300, 90)).astype(np.int8)
    away = rng.random(counts.shape) < 0.1
    pca = sp.PCA(3, missing="mean", missing_value=-1, solver=solver, tolerance=0.0, max_passes=6)
    pca.fit(np.where(away, np.int8(-1), counts))
    _, centred = filled(np.where(away, np.nan, counts), np.ones(300))
    exact = np.linalg.eigvalsh(np.cov(centred.astype(np.float64).T))[::-1][:3]
    np.testing.assert_allclose(pca.explained_variance_, exact, rtol=1e-4)
    assert pca.error_["missing_values"] == away.sum()


@SOLVERS
def test_what_does_not_go_together_is_refused(solver: str) -> None:
    rows = holed()
    pca = sp.PCA(3, missing="mean", solver=solver)
    assert not hasattr(pca, "partial_fit")
    with pytest.raises(AttributeError, match=f"solver='{solver}'.* keeps no state to add rows to"):
        pca.partial_fit(rows)
    with pytest.raises(sp.errors.MergeError, match="holds no state"):
        sp.merge([pca.fit(rows), pca.fit(rows)])
    rows[:, 2] = np.nan
    with pytest.raises(DataError, match=r"no values observed for 1 feature, first: feature 2"):
        pca.fit(rows)
    rows[9, 2] = np.inf
    with pytest.raises(NotFiniteError, match="infinity: first at row 9, column 2"):
        pca.fit(rows)


def test_models_from_common_readings_are_those_of_fits_alone() -> None:
    rows = holed()
    made = {name: sp.PCA(3, missing="mean", solver=name) for name in ("sketch", "adaptive", "covariance")}
    together = sp.fit_many(made, rows)
    for name, pca in made.items():
        np.testing.assert_allclose(together[name].explained_variance_, pca.fit(rows).explained_variance_, rtol=1e-12)


def test_auto_takes_an_approximate_solver_where_nothing_exact_fits() -> None:
    little = process_bytes() + 100 * 2**20
    plan = sp.PCA(3, missing="mean", sketch_size=24, pilot=0, memory=little).plan(np.zeros((4000, 4000), np.float32))
    assert (plan.solver, plan.passes) == ("sketch", 9)


class _ReadError(Exception):
    """Ends a fit at its first reading."""


def test_numbers_near_the_means_are_read_from_a_few_rows_of_large_chunks(tmp_path: Path) -> None:
    """Chunks of all rows and few features would be read as a whole table of them."""
    path = tmp_path / "x.zarr"
    array = zarr.create_array(
        path, shape=(3000, 6000), chunks=(3000, 600), dtype="f4", config={"write_empty_chunks": True}
    )
    array[...] = 0.0
    table = sp.open(path)

    def read(self: Any, start: int, stop: int, out: Any = None) -> Any:
        raise _ReadError(stop - start)

    with patch.object(type(table), "read", read), pytest.raises(_ReadError, match=r"^128$"):
        sp.PCA(2, solver="sketch", sketch_size=20, pilot=0, missing="mean").fit(table)
