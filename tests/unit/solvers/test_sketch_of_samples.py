"""Sketches of the matrix of samples, which are read by features where a sketch of the features does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import plan, process_of, sketches_of_samples
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import MergeError, NotFiniteError, PlanError

pytestmark = pytest.mark.numerical
MIB = 2**20
N, D = 150, 700


def rows_of(kind: str, dtype: str) -> NDArray[Any]:
    rng = np.random.default_rng(2)
    if kind == "decaying":
        rows = rng.standard_normal((N, D)) * np.geomspace(10, 0.01, D) + 5
    elif kind == "noise":
        rows = rng.standard_normal((N, D))
    elif kind == "far":
        rows = rng.standard_normal((N, 4)) @ rng.standard_normal((4, D)) + 0.01 * rng.standard_normal((N, D)) + 1e4
    else:
        rows = rng.binomial(2, rng.uniform(0.05, 0.5, (3, D))[rng.integers(0, 3, N)])
    return rows.astype(dtype)


OPTIONS: dict[str, dict[str, Any]] = {
    "one pass": {},
    "tolerance": {"tolerance": 1e-3},
    "scale": {"scale": True, "tolerance": 0.01},
    "about zero": {"center": False},
    "weights": {"sample_weight": True, "tolerance": 0.1},
    "weights of features": {"feature_weight": np.linspace(0.5, 2, D)},
    "missing": {"missing": "mean", "missing_scores": "mean", "tolerance": 0.01},
    "remove": {"remove": True, "max_passes": 3, "tolerance": 0},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("decaying", "f8"), ("decaying", "f4"), ("noise", "f4"), ("far", "f4"), ("counts", "i1"), ("counts", "f8")],
)
def test_eigenpairs_and_bounds_are_those_of_lapack(kind: str, dtype: str, options: str) -> None:
    rows, rng, k, how = rows_of(kind, dtype), np.random.default_rng(4), 4, dict(OPTIONS[options])
    weights = rng.uniform(0.2, 3, N) * (rng.random(N) > 0.1) if how.pop("sample_weight", False) else np.ones(N)
    covariates = rng.standard_normal((N, 2))
    if how.pop("remove", False):
        how["remove"] = {"covariates": covariates}
    if options == "missing" and dtype != "i1":
        rows[3:][rng.random((N - 3, D)) < 0.1] = np.nan
    with sketches_of_samples():
        pca = sp.PCA(k, solver="sketch", **how).fit(rows, sample_weight=None if (weights == 1).all() else weights)
    assert pca.plan_.axis == "features"
    centred = _centred(rows.astype(np.float64), weights, covariates if "remove" in how else None, how)
    scaled = np.sqrt(weights)[:, None] * centred / np.sqrt(weights.sum() - 1)
    _, singular, right = np.linalg.svd(scaled, full_matrices=False)
    values, rounding = singular[:k] ** 2, 1e-12 * singular[0] ** 2
    certificate, axes = pca.error_, pca.components_
    low, high = np.array(certificate.eigenvalue_intervals).T
    assert (low <= values + rounding).all()
    assert (values <= high + rounding).all()
    residuals = np.linalg.norm((scaled @ axes.T).T @ scaled - pca.explained_variance_[:, None] * axes, axis=1)
    assert (residuals <= np.array(certificate.residual_bounds) + rounding).all()
    for axis, exact, bound in zip(axes, right, certificate.angle_bounds, strict=False):
        assert bound is None or np.linalg.norm(axis - exact * (exact @ axis)) <= bound + 1e-7
    np.testing.assert_allclose(axes @ axes.T, np.eye(k), atol=1e-13)
    # The variances of the scores are what is reported, and no variance is above that of the best axes.
    scores = centred @ axes.T
    found = (weights[:, None] * scores).T @ scores / (weights.sum() - 1)
    np.testing.assert_allclose(found, np.diag(pca.explained_variance_), atol=3e-6 * values[0])
    assert (pca.explained_variance_ <= values + 2e-6 * values[0]).all()
    if how.get("tolerance") and "remove" not in how and kind in ("decaying", "far"):
        assert certificate.largest_relative_width <= max(how["tolerance"], 1e-3)


def _centred(
    rows: NDArray[np.float64], weights: NDArray[np.float64], covariates: Any, how: dict[str, Any]
) -> NDArray[np.float64]:
    """Return the rows with means in place of missing values, without what is removed, and with factors of the features."""
    seen = np.where(np.isnan(rows), 0, weights[:, None])
    mean = (seen * np.nan_to_num(rows)).sum(axis=0) / seen.sum(axis=0)
    centred = np.where(np.isnan(rows), 0, rows - mean)
    if covariates is not None:
        design = np.column_stack([np.ones(N), covariates])
        centred -= design @ np.linalg.lstsq(design, centred)[0]
    if how.get("scale"):
        centred /= np.sqrt(weights @ centred**2 / (weights.sum() - 1))
    if how.get("center") is False:
        centred += mean
    return centred * np.sqrt(how.get("feature_weight", 1.0))


def test_wide_data_fits_where_neither_matrix_nor_a_sketch_of_features_does(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=(20_000, 400_000), chunks=(1000, 500), dtype="f4")
    people = sp.open(tmp_path / "x.zarr", missing_chunks="fill")
    with process_of(150 * MIB):
        chosen = sp.PCA(5, memory=900 * MIB).plan(people)
    assert (chosen.solver, chosen.axis) == ("sketch", "features")
    given = {"k": 5, "beside": 150 * MIB}
    assert chosen.projected_bytes <= 900 * MIB
    assert "matrix of samples" in chosen.reason
    assert chosen.memory["kept products"] < 200 * MIB
    rows = plan(people, allowed=16 * 2**30, **given | {"solver": "sketch"})
    assert (rows.solver, rows.axis) == ("sketch", "samples")
    for refused in ({"missing": "pairwise"}, {"sketch": "count_sketch"}, {"max_passes": 1}, {"missing": "drop_rows"}):
        with pytest.raises(PlanError, match=r"with a sketch of .* columns of 400,000 features"):
            plan(people, allowed=900 * MIB, **given | {"solver": "sketch"} | refused)
    with pytest.raises(PlanError, match=r"400,000 features.*; by features, .* columns of 20,000 samples"):
        plan(people, allowed=250 * MIB, **given | {"solver": "sketch"})
    zarr.create_array(tmp_path / "y.zarr", shape=(20_000, 400_000), chunks=(1000, 20_000), dtype="f4")
    with pytest.raises(PlanError, match=r"by features, every chunk would be decoded [0-9]+ times in each pass"):
        plan(sp.open(tmp_path / "y.zarr", missing_chunks="fill"), allowed=900 * MIB, **given | {"solver": "sketch"})


def test_scores_of_the_fit_are_those_of_transform_and_no_rows_can_be_added() -> None:
    rows = rows_of("decaying", "f4")
    with sketches_of_samples():
        pca = sp.PCA(3, solver="sketch", tolerance=0.01)
        scores = pca.fit_transform(rows)
    assert pca.n_passes_ <= pca.plan_.passes
    np.testing.assert_allclose(scores, pca.transform(rows), atol=2e-5 * np.abs(scores).max())
    with pytest.raises(MergeError):
        pca.partial_fit(rows)


def test_bad_values_are_named_by_their_place() -> None:
    rows = rows_of("decaying", "f8")
    rows[41, 123] = np.inf
    with sketches_of_samples(), pytest.raises(NotFiniteError, match="row 41, column 123"):
        sp.PCA(3, solver="sketch").fit(rows)


@pytest.mark.parametrize("n_components", [5, 8])
def test_components_beyond_the_rank_carry_no_variance(n_components: int) -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 200))
    with sketches_of_samples():
        pca = sp.PCA(n_components, solver="sketch", tolerance=0.01).fit(rows)
    assert pca.numerical_rank_ == 3
    assert (pca.explained_variance_[3:] == 0).all()
    np.testing.assert_allclose(pca.components_ @ pca.components_.T, np.eye(n_components), atol=1e-12)
