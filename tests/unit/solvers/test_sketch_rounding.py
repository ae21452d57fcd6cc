"""Sketches of rows that rounding or dependent columns could spoil: every bound that is proven holds, against LAPACK in float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array

from streampca import PCA
from streampca.errors import NotAvailableError, ParameterError

pytestmark = pytest.mark.numerical

FloatArray = NDArray[np.float64]
TRANSFORMS = ("gaussian", "count_sketch", "sparse_sign", "grouping")
EPS = float(np.finfo(np.float64).eps)


def covariance(rows: Any, *, center: bool = True, scale: bool = False, weights: FloatArray | None = None) -> FloatArray:
    """Return the matrix that is decomposed, in float64: shifted by the first row before anything is squared."""
    x = np.asarray(rows, dtype=np.float64)
    w = np.ones(len(x)) if weights is None else weights
    about = x - x[0]
    about -= w @ about / w.sum()
    deviation = np.sqrt(w @ about**2 / (w.sum() - 1))
    values = about if center else x
    if scale:
        values = values * np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return np.asarray((values * w[:, None]).T @ values / (w.sum() - 1))


def assert_proven(pca: PCA, matrix: FloatArray) -> None:
    """Check lower ends, proven upper bounds, the total and the share that components carry, to the rounding of LAPACK."""
    values = np.linalg.eigvalsh(matrix)[::-1]
    said, room, total = pca.error_, len(matrix) * EPS * values[0], values.sum()
    lower = np.array(said["eigenvalue_intervals"])[:, 0]
    exact = values[: len(lower)]
    assert (lower <= exact + room).all(), (lower - exact).max() / values[0]
    assert (exact <= np.array(said["proven_upper_bounds"]) + room).all()
    carried = float(np.einsum("ij,jk,ik->", pca.components_, matrix, pca.components_))
    assert said["captured_variance"] <= carried / total + len(matrix) * EPS


def decaying(seed: int, n: int = 155, d: int = 40, mean: float = 1e3) -> NDArray[np.float32]:
    draw = np.random.default_rng(seed)
    variances = (np.arange(1, d + 1.0) ** -0.5, 1 / np.arange(1, d + 1.0), 0.8 ** np.arange(d))[seed % 3]
    axes = np.linalg.qr(draw.standard_normal((d, d)))[0] if seed % 2 else np.eye(d)
    return np.asarray(mean + (draw.standard_normal((n, d)) * np.sqrt(variances)) @ axes, dtype=np.float32)


@pytest.mark.parametrize("sketch", TRANSFORMS)
@pytest.mark.parametrize("seed", range(6))
def test_later_passes_of_any_transform_with_a_pilot_stay_below_the_exact_eigenvalues(sketch: str, seed: int) -> None:
    """Columns that are not orthonormal were taken for such once a pilot was read: eigenvalues came out up to 10 times too large."""
    rows = decaying(seed)
    how: dict[str, Any] = {"sketch_size": 8, "n_hashes": 3, "max_passes": 4, "tolerance": 0, "random_state": 28}
    pca = PCA(5, solver="sketch", sketch=sketch, pilot=16, **how).fit(rows)
    exact = np.linalg.eigvalsh(covariance(rows))[::-1]
    assert (pca.explained_variance_ <= exact[:5] + 1e-5 * exact[0]).all()
    assert pca.error_["largest_relative_width"] < 1
    assert_proven(pca, covariance(rows))


KINDS = ("few values", "near", "far", "repeated", "one column", "scales")


def nasty(kind: str, n: int, d: int, draw: np.random.Generator) -> NDArray[np.float32]:
    rows = (draw.standard_normal((n, d)) * np.arange(1, d + 1.0) ** -0.5) @ np.linalg.qr(draw.standard_normal((d, d)))[
        0
    ]
    if kind == "few values":
        rows = np.where(rows > 0.1 * rows.std(), 0.7, 0.1)
    elif kind == "near":
        rows += 3.5 * rows.std(axis=0)
    elif kind == "far":
        rows += 1e5
    elif kind == "repeated":
        rows = rows[draw.integers(0, 5, n)]
    elif kind == "one column":
        rows = np.repeat(rows[:, :1], d, axis=1)
    else:
        rows *= 10 ** draw.uniform(-3, 3, d)
    return np.asarray(rows, dtype=np.float32)


@pytest.mark.deep(keep=6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3000, 5), (2000, 90)], ids=str)
def test_float32_rows_that_round_alike_stay_within_the_proven_bounds(kind: str, shape: tuple[int, int]) -> None:
    """Lower ends were up to 4e-5 of the first eigenvalue too high, and shares 1.5e-5."""
    draw = np.random.default_rng(KINDS.index(kind))
    rows = nasty(kind, *shape, draw)
    for number, (sketch, pilot, passes) in enumerate(product(TRANSFORMS, (0, 100), (1, 2))):
        scale, center = bool(number % 3 == 1), number % 5 != 4
        weights = draw.uniform(0.1, 3, len(rows)) if number % 4 == 3 else None
        how: dict[str, Any] = {
            "sketch": sketch,
            "pilot": pilot,
            "max_passes": passes,
            "tolerance": 0,
            "sketch_size": 12,
        }
        pca = PCA(
            4,
            solver="sketch",
            scale=scale,
            center=center,
            random_state=number,
            **how | {"sketch_size": min(12, shape[1])},
        )
        pca.fit(rows, sample_weight=weights)
        assert_proven(pca, covariance(rows, center=center, scale=scale, weights=weights))


@pytest.mark.parametrize("kind", KINDS)
def test_incremental_updates_of_float32_rows_stay_within_the_proven_bounds(kind: str) -> None:
    rows = nasty(kind, 2000, 90, np.random.default_rng(7))
    for passes in (1, 2):
        assert_proven(PCA(4, solver="adaptive", max_passes=passes, tolerance=0).fit(rows), covariance(rows))


# z-scores without a pilot: the test matrix is Gaussian for the rows as they are, and ill-conditioned for z-scores
@pytest.mark.parametrize("seed", range(4))
def test_later_passes_multiply_what_an_ill_conditioned_test_matrix_left_out(seed: int) -> None:
    """Intervals were 1e-5 wide beside eigenvalues that were wrong by up to 0.1: what Ĉ left out was taken for known."""
    draw = np.random.default_rng(seed)
    dtype, spread, d = (np.float64, 5.0, 60) if seed % 2 else (np.float32, 2.5, 80)
    rows = (draw.standard_normal((300, d)) * 10 ** np.linspace(-spread, spread, d)).astype(dtype)
    how: dict[str, Any] = {"sketch_size": d, "pilot": 0, "max_passes": 2, "tolerance": 0}
    pca = PCA(5, solver="sketch", scale=True, random_state=seed, **how).fit(rows)
    matrix = covariance(rows, scale=True)
    exact = np.linalg.eigvalsh(matrix)[::-1][:5]
    upper = np.array(pca.error_["eigenvalue_intervals"])[:, 1]
    assert (exact <= upper + 1e-12 * exact[0]).all(), (exact - upper) / exact[0]
    assert_proven(pca, matrix)


def test_what_float32_updates_discard_below_their_rounding_is_not_left_out_of_the_bound() -> None:
    """The bound of what was discarded was below half of it, because it came from float32 products of rows that were not scaled."""
    deviations = np.where(np.arange(117) < 5, 1.0, 10.0**-3.5)
    rows = (np.random.default_rng(0).standard_normal((50, 117)) * deviations).astype(np.float32)
    pca = PCA(1, solver="adaptive", scale=True, pilot=0, sketch_size=33, max_passes=2, tolerance=0).fit(rows)
    matrix = covariance(rows, scale=True)
    values = np.linalg.eigvalsh(matrix)[::-1]
    assert values[0] <= pca.error_["eigenvalue_intervals"][0][1]
    assert pca.error_["sigma"] >= values[33]
    assert_proven(pca, matrix)


def test_no_share_is_captured_where_rounding_exceeds_the_first_eigenvalue() -> None:
    """The share was 1 as a proven bound: a negative difference, times 1 less a rounding above 1."""
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((80, 30)) * 10 ** np.linspace(4, -4.3, 30)
    pca = PCA(5, solver="adaptive", scale=True, pilot=0, sketch_size=25).fit(rows)
    assert pca.error_["trusted_above"] > 1
    assert_proven(pca, covariance(rows, scale=True))


# z-scores about zero: what a constant feature adds to the products of others is no part of the matrix
@pytest.mark.parametrize("missing", ["error", "pairwise"])
def test_a_constant_feature_has_no_part_in_z_scores_that_are_not_centred(missing: str) -> None:
    rows = 2 + decaying(1, 200, 20, 0.0).astype(np.float64)
    rows[:, 4] = 50.0
    pca = PCA(3, solver="sketch", scale=True, center=False, sketch_size=20, pilot=0, missing=missing).fit(rows)
    exact = np.linalg.eigvalsh(covariance(rows, center=False, scale=True))[::-1]
    np.testing.assert_allclose(pca.explained_variance_, exact[:3], rtol=1e-9)


# sparse rows
@pytest.mark.parametrize("form", ["csr", "blocks of csr"])
@pytest.mark.parametrize("how", [{"pilot": 0}, {"pilot": 60}, {"max_passes": 3, "tolerance": 0}], ids=str)
@pytest.mark.parametrize("kind", ["stored in every row", "but for one row", "in some of the blocks"])
def test_sparse_rows_with_a_far_mean_are_shifted(form: str, how: dict[str, Any], kind: str) -> None:
    """They were summed about zero: eigenvalues of (3153, 0, 0) and a total variance of 1 for one of 102, certified to 1e-13."""
    draw = np.random.default_rng(5)
    rows = random_array((600, 30), density=0.1, random_state=draw).toarray()
    rows[:, 3], rows[:, 7] = 1.7e9 + 10 * draw.standard_normal(600), 1e8
    if kind == "but for one row":
        rows[100, 5], rows[:, 5] = 0, -4e7 + draw.standard_normal(600)
    if kind == "in some of the blocks":
        rows[250:, 8] = 1e6 + draw.standard_normal(350)
    given = csr_array(rows) if form == "csr" else da.from_array(rows, chunks=(100, 30)).map_blocks(csr_array)
    for scale in (False, True):
        pca = PCA(3, solver="sketch", sketch_size=13, scale=scale, **how).fit(given)
        matrix = covariance(rows, scale=scale)
        assert_proven(pca, matrix)
        assert pca.total_variance_ == pytest.approx(np.trace(matrix), rel=1e-13)
        np.testing.assert_array_equal(pca.constant_features_, np.flatnonzero((rows == rows[0]).all(axis=0)))


def test_the_covariance_of_sparse_rows_that_are_zero_in_one_row_keeps_its_digits() -> None:
    """A mean of √n standard deviations cost a factor n of float64's digits."""
    rows = np.zeros((20_000, 30))
    rows[:, 0] = 1e9
    rows[123, 0] = 0
    exact = 1e18 / 20_000
    for solver in ("covariance", "sketch"):
        pca = (
            PCA(1, solver=solver, sketch_size=11).fit(csr_array(rows))
            if solver == "sketch"
            else PCA(1, solver=solver).fit(csr_array(rows))
        )
        assert pca.explained_variance_[0] == pytest.approx(exact, rel=1e-14 * len(rows) ** 0.5)
        assert pca.total_variance_ == pytest.approx(exact, rel=1e-14)


# the published conversion
@pytest.mark.parametrize("sketch", TRANSFORMS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_conversion_of_z_scores_is_that_of_rows_standardised_beforehand(sketch: str, weighted: bool) -> None:
    """Raw features were multiplied: eigenvalues of 540,176 for 13, "carries 1832170 % of the variance"."""
    draw = np.random.default_rng(4)
    rows = decaying(1, 300, 30, 5.0).astype(np.float64) * 10 ** draw.uniform(-3, 3, 30)
    weights = draw.uniform(0, 2, 300) if weighted else None
    of_features = np.where(np.arange(30) == 3, 0.0, draw.uniform(0.1, 3, 30)) if weighted else None
    w = np.ones(300) if weights is None else weights
    mean = w @ rows / w.sum()
    standardised = (rows - mean) / np.sqrt(w @ (rows - mean) ** 2 / (w.sum() - 1))
    how: dict[str, Any] = {"solver": "sketch", "sketch": sketch, "recovery": "conversion", "sketch_size": 20}
    how["feature_weight"] = of_features
    pca = PCA(5, scale=True, **how).fit(rows, sample_weight=weights)
    beforehand = PCA(5, **how).fit(standardised, sample_weight=weights)
    np.testing.assert_allclose(pca.explained_variance_, beforehand.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(pca.components_, beforehand.components_, atol=1e-11)
    assert (pca.n_passes_, beforehand.n_passes_) == (2, 1)


def test_the_reading_for_moments_is_announced() -> None:
    rows = decaying(1, 300, 30, 5.0)
    pca = PCA(5, solver="sketch", recovery="conversion", scale=True)
    plan = pca.plan(rows)
    assert plan.passes == 2
    assert plan.bytes_to_read == 2 * rows.nbytes
    assert any("the first reading takes means and variances" in note for note in plan.notes)
    assert pca.fit(rows).bytes_read_ == plan.bytes_to_read
    with pytest.raises(NotAvailableError, match="taken in a reading of all rows"):
        PCA(5, solver="sketch", recovery="conversion", scale=True).partial_fit(rows)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"max_passes": 3}, "expected 1 passes at most"),
        ({"max_passes": 2, "tolerance": 0.01}, "use recovery='nystrom', or tolerance=None"),
        ({"max_passes": 3, "scale": True}, "expected 2 passes at most"),
        ({"max_passes": 1, "scale": True}, "expected at least 2"),
    ],
    ids=str,
)
def test_the_conversion_says_that_it_takes_no_further_passes(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        PCA(3, solver="sketch", recovery="conversion", **asked).fit(decaying(0))
    with pytest.raises(NotAvailableError, match="does not take recovery='conversion'"):
        PCA(3, solver="adaptive", recovery="conversion").fit(decaying(0))


def test_no_angle_is_bounded_for_directions_without_variance() -> None:
    """The bound of the whole span was 1e-13 although some of its directions were drawn at random."""
    rows = np.zeros((50, 10))
    rows[:, :2] = np.random.default_rng(0).standard_normal((50, 2))
    said = PCA(4, solver="sketch", sketch_size=10).fit(rows).error_
    assert said["subspace_angle_bound"] is None
    assert said["angle_bounds"][2:] == [None, None]
    assert said["unresolved_clusters"][-1] == [2, 3, None]
    assert "the last 2 of 4 components carry no variance above rounding" in said["statement"]


@pytest.mark.parametrize("kwargs", [{"sketch": "count_sketch", "n_hashes": 1}, {"sketch": "sparse_sign"}])
def test_components_that_a_sketch_missed_are_not_certified(kwargs: dict[str, Any]) -> None:
    """Two features of the same bucket: half of the variance was missing, and the tolerance counted as met."""
    rows, missed = np.random.default_rng(1).standard_normal((200, 2)), 0
    exact = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
    for seed in range(12):
        pca = PCA(2, solver="sketch", sketch_size=2, pilot=0, max_passes=1, tolerance=1e-2, random_state=seed, **kwargs)
        said, found = pca.fit(rows).error_, pca.explained_variance_
        errors = np.array(said["component_errors"])
        assert (np.abs(found - exact) <= (errors + 1e-12) * exact).all()
        assert said["largest_relative_width"] == errors.max()
        assert (found > 0).all() or "not found" in said["statement"]
        missed += int((found == 0).any())
    assert missed


@pytest.mark.parametrize("pilot", [100, 2])
@pytest.mark.parametrize("how", ["holes", "weights"])
def test_a_feature_that_is_constant_in_the_rows_that_count_is_constant(how: str, pilot: int) -> None:
    """A pilot of other rows gave it a standard deviation of rounding, and divided by that."""
    rng = np.random.default_rng(0)
    rows, counts = rng.standard_normal((40, 80)).astype(np.float32), np.arange(40) % 6 == 3
    rows[counts, 60:] = rng.standard_normal(20)
    made: dict[str, Any] = {"solver": "sketch", "sketch_size": 6, "scale": True, "random_state": 0}
    if how == "holes":
        given, weight = np.where(counts[:, None] | (np.arange(80) > 0), rows, np.nan).astype(np.float32), None
        made["missing"] = "drop_rows"
    else:
        given, weight = rows, counts.astype(float)
    found = PCA(3, pilot=pilot, **made).fit(given, sample_weight=weight)
    assert found.constant_features_.tolist() == [*range(60, 80)]
    assert found.total_variance_ == pytest.approx(60, rel=1e-6)
