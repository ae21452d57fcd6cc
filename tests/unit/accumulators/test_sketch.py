"""Sketches as sums: shards in any order, models that are merged and go on, and scales that are only known at the end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import spectra
from facade import Block, fit, plan
from numpy.typing import NDArray

import streampca as sp
from streampca import PCA
from streampca.accumulators import Sketch
from streampca.errors import MergeError, ParameterError, StreamPCAError
from streampca.metrics import principal_angles, relative_difference, similarity

pytestmark = pytest.mark.numerical

D, K = 60, 5
EDGES = (0, 1, 300, 301, 900, 1400, 1777, 2500, 3000)  # of eight shards


def rows_of(n: int = 3000, d: int = D, power: float = -1.0, seed: int = 0) -> NDArray[np.float64]:
    return spectra.rows_with_spectrum(n, np.arange(1, d + 1.0) ** power, seed) + np.linspace(-5, 50, d)


def gaussian(d: int, q: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((d, q))


def sketched(sketch: Sketch, rows: NDArray[Any], start: int = 0) -> Any:
    return sketch.update(sketch.init(rows.shape[1]), Block(rows, start))


ORDERS = [np.random.default_rng(seed).permutation(8).tolist() for seed in range(3)] + [list(range(8))[::-1]]


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("origin", [None, "given"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_eight_shards_in_any_order_are_one_stream(order: list[int], origin: str | None, center: bool) -> None:
    """Also where every shard found an origin of its own; beside rounding of the products with the mean."""
    rows = rows_of()
    given = None if origin is None else rows[:100].mean(axis=0)
    sketch = Sketch(gaussian(D, 20), center=center, origin=given)
    parts = [sketched(sketch, rows[start:stop], start) for start, stop in pairwise(EDGES)]
    whole, joined = sketched(sketch, rows), sketch.merge([parts[i] for i in order])
    assert (joined.n_samples, joined.weight) == (3000, 3000)
    one, other = sketch.finalize(whole), sketch.finalize(joined)
    size = np.abs(one.products).max()
    assert np.abs(one.products - other.products).max() <= 1e-12 * size
    np.testing.assert_allclose(one.mean, other.mean, rtol=0, atol=1e-12 * np.abs(rows).max())
    np.testing.assert_allclose(one.diagonal, other.diagonal, rtol=1e-12)
    nested = sketch.merge([sketch.merge(parts[:3]), sketch.merge(parts[3:7]), parts[7], sketch.init(D)])
    assert np.abs(one.products - sketch.finalize(nested).products).max() <= 1e-12 * size


@pytest.mark.parametrize("order", ORDERS[:2], ids=str)
def test_models_of_eight_shards_merge_to_the_model_of_all_rows(order: list[int], tmp_path: Any) -> None:
    rows = rows_of()
    how: dict[str, Any] = {"solver": "sketch", "pilot": 0, "sketch_size": 20}
    edges = (0, 400, 500, 900, 1400, 1777, 2500, 2600, 3000)
    models = [PCA(K, **how).fit(rows[start:stop]) for start, stop in pairwise(edges)]
    whole = PCA(K, **how).fit(rows)
    models[2].save(tmp_path / "m.zarr", state=True)
    models[2] = sp.load(tmp_path / "m.zarr")
    total = sp.merge([models[i] for i in order])
    for other in (total, PCA(K, **how).partial_fit(rows[:1]).partial_fit(rows[1:1000]).partial_fit(rows[1000:])):
        np.testing.assert_allclose(other.explained_variance_, whole.explained_variance_, rtol=1e-11)
        assert principal_angles(other.components_, whole.components_).max() < 1e-9
        assert other.n_samples_seen_ == 3000
        np.testing.assert_allclose(
            other.error_["eigenvalue_intervals"], whole.error_["eigenvalue_intervals"], rtol=1e-9
        )


DIFFERENT: dict[str, dict[str, Any]] = {
    "seed": {"random_state": 1},
    "size": {"sketch_size": 21},
    "transform": {"sketch": "sparse_sign"},
    "pilot": {"pilot": 200},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_models_with_different_test_matrices_are_refused(name: str) -> None:
    rows = rows_of(2000)
    how: dict[str, Any] = {"solver": "sketch", "pilot": 0, "sketch_size": 20, "sketch": "gaussian"}
    models = [PCA(K, **how).fit(rows[:1000]), PCA(K, **how | DIFFERENT[name]).fit(rows[1000:])]
    with pytest.raises(MergeError, match=r"test matri|sketch_size|sketch"):
        sp.merge(models)


def test_states_with_different_test_matrices_are_refused() -> None:
    rows = rows_of(50)
    one, other, wider = (Sketch(gaussian(D, q, seed)) for q, seed in ((10, 0), (10, 1), (11, 0)))
    for foreign in (other, wider):
        with pytest.raises(MergeError, match=r"different test matrices.*random_state"):
            one.merge([sketched(one, rows), sketched(foreign, rows)])


def test_a_merged_tree_of_incremental_updates_is_within_its_certificate() -> None:
    """Eight leaves of eight updates each: another answer than that of one leaf, and both are as near as they say."""
    rows = spectra.rows_with_spectrum(6400, np.arange(1, 81.0) ** -2.0, 3)
    exact = PCA(4, solver="covariance").fit(rows)
    parameters: dict[str, Any] = {"k": 4, "solver": "adaptive", "sketch_size": 24}
    planned = plan(rows, **parameters)
    found = []
    for n_leaves in (1, 8):
        own = planned.replace(n_leaves=n_leaves, sketch=planned.sketch | {"rows_per_update": 100})
        model = fit(rows, own, **parameters).model
        lower, upper = np.array(model.certificate["eigenvalue_intervals"]).T
        assert (lower <= exact.explained_variance_ * (1 + 1e-12)).all()
        assert (exact.explained_variance_ <= upper).all()
        sine = np.sin(principal_angles(exact.components_, model.components)).max()
        assert 0 < sine <= model.certificate["subspace_angle_bound"] < 1
        found.append(model.explained_variance)
    assert 0 < np.abs(found[0] / found[1] - 1).max() < 1e-2


# z-scores


def spread(rows: NDArray[np.float64], decades: float, seed: int = 0) -> NDArray[np.float64]:
    """Return rows whose features have scales from 10^-decades to 10^decades."""
    scales = np.random.default_rng(seed).permutation(np.logspace(-decades, decades, rows.shape[1]))
    return rows * scales


@pytest.mark.parametrize("decades", [0, 1, 3])
def test_z_scores_after_the_fact_are_those_of_rows_that_were_scaled_before(decades: int) -> None:
    """D⁻¹CD⁻¹ · DΩ' = D⁻¹ · CΩ': exact for the Ω' that knew D."""
    rows = spread(rows_of(), decades)
    deviation, test = rows.std(axis=0, ddof=1), gaussian(D, 20)
    after = Sketch(test / deviation[:, None], scale=True)
    before = Sketch(test)
    one = after.finalize(sketched(after, rows))
    other = before.finalize(sketched(before, (rows - rows.mean(axis=0)) / deviation))
    np.testing.assert_allclose(one.test, other.test, atol=1e-11)
    np.testing.assert_allclose(one.products, other.products, atol=1e-11 * np.abs(other.products).max())
    assert one.total == pytest.approx(D, rel=1e-12)


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("decades", [0, 3])
@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_z_scores_are_found_as_well_as_if_the_scales_were_known(solver: str, decades: int) -> None:
    alike, apart = [], []
    for seed in range(5):
        rows = spread(rows_of(4000, 200, -1.0, seed), decades, seed)
        ready = (rows - rows.mean(axis=0)) / rows.std(axis=0, ddof=1)
        exact = PCA(10, solver="covariance", scale=True).fit(rows)
        how: dict[str, Any] = {"solver": solver, "sketch_size": 40, "random_state": seed, "pilot": 400}
        pair = PCA(10, scale=True, **how).fit(rows), PCA(10, **how).fit(ready)
        alike.append([similarity(exact.components_, pca.components_) for pca in pair])
        apart.append([relative_difference(exact.explained_variance_, pca.explained_variance_) for pca in pair])
    (after, before), (away, known) = np.median(alike, axis=0), np.median(apart, axis=0)
    assert after > 0.99
    assert abs(after - before) < 2e-3
    # Updates in the metric of the pilot lose what updates of the z-scores, here one of all rows, do not.
    assert away < 2 * known + (1e-3 if solver == "adaptive" else 0)


@pytest.mark.parametrize("scale", [0, -1, "no"])
def test_sketch_size_is_a_positive_number(scale: Any) -> None:
    with pytest.raises(ParameterError, match="sketch_size"):
        PCA(3, solver="sketch", sketch_size=scale).fit(rows_of(50))


@pytest.mark.parametrize(("scale", "dtype"), [(1e35, "float32"), (1e158, "float64")])
def test_large_features_sketch_without_a_warning_of_numpy(scale: float, dtype: str) -> None:
    """Products of the pilot's rows, and of test matrices of z-scores, leave the range of the type."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((60, 8)) * scale * 1e-10 + scale).astype(dtype) if dtype == "float64" else None
    rows = (rng.standard_normal((60, 8)) * scale).astype(dtype) if rows is None else rows
    scaled = dtype == "float64"
    pca = PCA(3, solver="sketch", sketch_size=6, pilot=16, scale=scaled, tolerance=0, max_passes=2).fit(rows)
    wide = rows / scale - rows.mean(axis=0, dtype=np.longdouble).astype(float) / scale
    wide = wide / wide.std(axis=0, ddof=1) if scaled else wide
    truth = np.linalg.svd(wide, compute_uv=False)[:3] ** 2 / 59
    found = pca.explained_variance_ if scaled else pca.explained_variance_ / scale / scale
    assert (found <= truth * (1 + 1e-5)).all()


@pytest.mark.parametrize("solver", ["sketch", "qr", "covariance"])
@pytest.mark.parametrize("center", [False, True])
def test_squares_that_overflow_are_a_named_error(solver: str, center: bool) -> None:
    rows = np.random.default_rng(0).standard_normal((60, 8)) * 1e153 + 1e154 * (not center)
    parameters = {} if solver != "sketch" else {"sketch_size": 6, "pilot": 0, "sketch": "grouping"}
    rows *= 1.0 if center is False else 50.0
    with pytest.raises(StreamPCAError, match=r"overflow|not finite"):
        PCA(3, solver=solver, center=center, **parameters).fit(rows)


def test_factors_beyond_float32_take_products_in_float64() -> None:
    """Wide float32 rows of standard deviation 1e-38 have z-scores whose test matrix no float32 holds."""
    rows = (np.random.default_rng(0).standard_normal((40, 80)) * 1e-39).astype(np.float32)
    pca = PCA(5, solver="sketch", sketch="grouping", pilot=1, scale=True, tolerance=0, max_passes=3).fit(rows)
    wide = rows.astype(np.float64) * 1e39
    wide = (wide - wide.mean(axis=0)) / wide.std(axis=0, ddof=1)
    truth = np.linalg.svd(wide, compute_uv=False)[:5] ** 2 / 39
    assert (pca.explained_variance_ <= truth * (1 + 1e-5)).all()
    assert (np.array(pca.error_["proven_upper_bounds"]) >= truth * (1 - 1e-5)).all()
