"""Bounds of approximate answers against the exact ones, and the certificate that says them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import spectra

import streampca as sp
from streampca.errors import ParameterError
from streampca.linalg.certificate import (
    Evidence,
    alignment,
    angles,
    intervals,
    residual_limits,
    schatten4,
    uppers_by_residuals,
)
from streampca.linalg.nystrom import LowRank, nystrom

pytestmark = pytest.mark.numerical

D = 120
INDEX = np.arange(1, D + 1.0)
SPECTRA = {
    "slowest": INDEX**-0.5,
    "slow": 1 / INDEX,
    "fast": INDEX**-2.0,
    "exponential": 10 ** (-0.1 * (INDEX - 1)),
    "rank 10 + noise": np.where(INDEX <= 10, 1.0, 0.01),
    "clusters": np.where(INDEX <= 5, 4.0, np.where(INDEX <= 20, 1.0, 0.05)),
}


def gaussian(q: int, seed: int = 1, d: int = D):
    return np.random.default_rng(seed).standard_normal((d, q))


def dense(low_rank):
    return (low_rank.vectors * low_rank.values) @ low_rank.vectors.T


def largest_first(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1], vectors[:, ::-1]


def noisy_basis(matrix, q=24, seed=1):
    """Return a Nyström approximation from a basis near that of the leading eigenvectors, and the basis."""
    start = largest_first(matrix)[1][:, :q] + 0.05 * gaussian(q, seed, len(matrix))
    test = np.linalg.qr(start)[0]
    return nystrom(matrix @ test, test, precision="float64"), test


def orthonormal(vectors):
    return np.linalg.qr(vectors)[0]


def sine(exact, found) -> float:
    """Return the sine of the largest angle between the spans of two sets of orthonormal columns."""
    return float(np.linalg.norm(found - exact @ (exact.T @ found), 2))


# the estimate of the spectral error


def test_fourth_power_is_unbiased():
    error = spectra.symmetric(SPECTRA["slow"])
    nothing = LowRank(np.zeros(0), np.zeros((D, 0)), 0.0)
    fourth = [schatten4(g, error @ g, nothing) ** 4 for g in (gaussian(10, seed) for seed in range(400))]
    exact = (SPECTRA["slow"] ** 4).sum()
    # The mean of 400 lies within 4.5 of its own standard deviations of the truth but for 1 seed in 100,000.
    assert abs(np.mean(fourth) - exact) < 4.5 * np.std(fourth) / 20
    assert np.std(fourth) / 20 < 0.1 * exact


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e290])
def test_estimate_of_any_scale(scale):
    matrix = spectra.symmetric(SPECTRA["fast"])
    test, held_out = gaussian(20), gaussian(10, 2)
    approx = nystrom(matrix @ test, test, precision="float64")
    expected = schatten4(held_out, matrix @ held_out, approx)
    scaled = LowRank(approx.values * scale, approx.vectors, 0.0)
    assert schatten4(held_out, matrix @ held_out * scale, scaled) / scale == pytest.approx(expected, rel=1e-6)
    assert expected >= 0.8 * np.linalg.norm(matrix - dense(approx), 2)


def test_estimate_needs_two_columns():
    approx = nystrom(gaussian(3), gaussian(3), precision="float64")
    with pytest.raises(ParameterError, match="at least 2"):
        schatten4(gaussian(1), gaussian(1), approx)
    with pytest.raises(ParameterError, match="one shape"):
        schatten4(gaussian(3), gaussian(2), approx)
    assert schatten4(gaussian(3), np.zeros((D, 3)), LowRank(np.zeros(0), np.zeros((D, 0)), 0.0)) == 0


# intervals


@pytest.mark.parametrize(("d", "q"), [(120, 20), (30, 20), (20, 20), (20, 35), (120, 1)])
@pytest.mark.parametrize("sigma", [1e-3, 0.3, 5.0])
def test_upper_bounds_are_those_of_the_whole_matrix(d, q, sigma):
    matrix = spectra.symmetric(1 / np.arange(1, d + 1.0))
    test = gaussian(q, d=d)
    approx = nystrom(matrix @ test, test, precision="float64")
    basis = orthonormal(test)
    outside = np.eye(d) - basis @ basis.T
    exact = np.linalg.eigvalsh(dense(approx) + sigma * outside)[::-1]
    n = min(d, q + 5)
    found = intervals(approx, alignment(approx.vectors, test)[0], sigma=None, tau=sigma, n_components=n)
    gap = np.abs(approx.values - sigma).min()  # rounding of cosines, 64 eps, is allowed for
    room = 64 * np.finfo(float).eps * sigma * approx.values[0] / gap
    assert np.abs(found.upper - exact[:n]).max() < 1e-12 + room
    assert np.array_equal(found.upper, found.proven_upper)
    assert np.array_equal(found.lower[: len(approx.values)], approx.values[:n])


def test_alignment_does_not_depend_on_the_basis():
    test = gaussian(12)
    approx = nystrom(spectra.symmetric(SPECTRA["slow"]) @ test, test, precision="float64")
    basis = orthonormal(test)
    expected = (basis.T @ approx.vectors).T @ (basis.T @ approx.vectors)
    graded = test * 10.0 ** -np.arange(12)
    for other in (test, graded, np.hstack([test, test[:, :2], np.zeros((D, 1))]), test @ spectra.rotation(12)):
        found = alignment(approx.vectors, other)[0]
        assert np.abs(found.T @ found - expected).max() < 1e-11
    assert 1 < alignment(approx.vectors, test)[1] < alignment(approx.vectors, graded)[1] * (1 + 1e-9)


@pytest.mark.parametrize("name", SPECTRA)
def test_trace_and_true_norm_are_bounds(name):
    matrix = spectra.symmetric(SPECTRA[name])
    test = gaussian(20)
    approx = nystrom(matrix @ test, test, precision="float64")
    error = matrix - dense(approx)
    norm, tau = np.linalg.norm(error, 2), np.trace(matrix) - approx.trace
    exact = np.sort(SPECTRA[name])[::-1][:20]
    found = intervals(approx, alignment(approx.vectors, test)[0], sigma=norm, tau=tau, n_components=20, floor=1e-14)
    plain = intervals(approx, None, sigma=norm, tau=tau, n_components=20, floor=1e-14)
    for bounds in (found, plain):
        assert (bounds.lower <= exact).all()
        assert (exact <= bounds.upper).all()
        assert (bounds.upper <= bounds.proven_upper).all()
    assert (found.upper <= plain.upper + 1e-14).all()


def test_intervals_narrow_with_the_square_of_the_angle():
    matrix = np.diag(SPECTRA["fast"])
    widths = []
    for angle in (1e-2, 1e-3):
        test = orthonormal(np.eye(D)[:, :20] + angle * gaussian(20) / np.sqrt(D))
        approx = nystrom(matrix @ test, test, precision="float64")
        found = intervals(
            approx, alignment(approx.vectors, test)[0], sigma=SPECTRA["fast"][20], tau=1.0, n_components=5
        )
        widths.append(((found.upper - found.lower) / found.upper).max())
    assert 50 < widths[0] / widths[1] < 200


def test_intervals_without_a_test_matrix_take_the_least_bound():
    found = intervals(
        LowRank(np.array([3.0, 1.0]), np.eye(3)[:, :2], 0.0), None, sigma=0.5, tau=1.0, n_components=3, floor=0.25
    )
    assert found.lower.tolist() == [2.75, 0.75, 0.0]
    assert found.upper.tolist() == [3.75, 1.75, 0.75]
    assert found.proven_upper.tolist() == [4.25, 2.25, 1.25]
    only = intervals(LowRank(np.array([3.0]), np.eye(3)[:, :1], 0.0), None, sigma=None, tau=2.0, n_components=1)
    assert only.upper.tolist() == [5.0]


# angles


@pytest.mark.parametrize("name", SPECTRA)
def test_axes_are_within_their_angles(name):
    values = SPECTRA[name]
    matrix = spectra.symmetric(values)
    approx, test = noisy_basis(matrix)
    sigma = np.linalg.norm(matrix - dense(approx), 2)
    aligned = alignment(approx.vectors, test)[0]
    bounds = intervals(approx, aligned, sigma=sigma, tau=1e9, n_components=11, floor=1e-14)
    found = angles(bounds, aligned, sigma=sigma, n_components=10, floor=1e-14)
    exact, axes = largest_first(matrix)[1], approx.vectors
    for i, bound in enumerate(found.sine):
        assert bound is None or sine(exact[:, [i]], axes[:, [i]]) <= bound
    covered = [i for i, bound in enumerate(found.sine) if bound is not None]
    for first, last, bound in found.clusters:
        covered += range(first, last + 1)
        assert bound is None or sine(exact[:, first : last + 1], axes[:, first : last + 1]) <= bound
    assert sorted(covered) == list(range(10))
    assert found.subspace is None or sine(exact[:, :10], axes[:, :10]) <= found.subspace
    if name in ("fast", "exponential"):
        assert found.clusters == ()
        assert found.subspace is not None
    if name == "clusters":
        assert found.clusters[0][:2] == (0, 4)
        assert found.clusters[0][2] is not None
        assert found.clusters[1] == (5, 9, None)  # goes on beyond the last component


def test_angles_of_a_first_order_approximation():
    matrix = np.diag(SPECTRA["exponential"])
    perturbed = matrix - 1e-4 * np.eye(D)
    approx = LowRank(*_leading(perturbed, 8), 0.0)
    bounds = intervals(approx, None, sigma=None, tau=0.2, n_components=9)
    found = angles(bounds, None, sigma=0.2, n_components=8)
    assert found.sine[0] is not None or found.clusters[0][0] == 0
    assert angles(bounds, None, sigma=0.2, n_components=0).subspace is None


def _leading(matrix, r):
    values, vectors = largest_first(matrix)
    return values[:r], vectors[:, :r]


def test_columns_that_depend_on_others_say_nothing_of_the_directions_they_would_add():
    """What the approximation left out of Ω is not claimed to be orthogonal to the error."""
    draw = np.random.default_rng(3)
    matrix = np.diag([3.0, 2.0, 1.0, 1.0])
    test = draw.standard_normal((4, 2))
    test = np.hstack([test, test[:, :1] + 1e-9 * draw.standard_normal((4, 1))])
    approx = nystrom(matrix @ test, test, precision="float64")
    assert len(alignment(approx.vectors, test)[0]) == 2
    assert len(alignment(approx.vectors, test, 1, "float32")[0]) == 2


# the certificates of fits; coverage is shown in tests/property/test_certificates.py


def fitted(values, k=6, n=400, **parameters):
    """Return a fit by a sketch of 24 columns of rows whose sample covariance has these eigenvalues, and its error by name."""
    left = np.random.default_rng(5).standard_normal((n, len(values)))
    left = orthonormal(left - left.mean(axis=0))
    rows = left * np.sqrt((n - 1.0) * values) @ spectra.rotation(len(values)).T
    made = {"solver": "sketch", "sketch_size": min(24, len(values)), **parameters}
    pca = sp.PCA(k, **made).fit(rows)
    return pca, dict(pca.error_)


def assert_held(pca, said, values):
    """Check intervals and proven bounds of eigenvalues."""
    pairs, k = np.array(said["eigenvalue_intervals"]), pca.n_components_
    room = 1e-13 * values[0]  # of the rows, whose eigenvalues are these up to rounding
    assert (pairs[:, 0] <= values[:k] + room).all()
    assert (values[:k] <= pairs[:, 1] + room).all()
    assert (values[:k] <= np.array(said["proven_upper_bounds"]) + room).all()
    json.dumps(said, allow_nan=False)


@pytest.mark.parametrize(
    ("values", "parameters", "given"),
    [
        (1 / np.arange(1, 61.0) ** 0.5, {}, {"sigma", "residual", "trace"}),
        (1 / np.arange(1, 201.0) ** 0.5, {"solver": "adaptive"}, {"residual", "sigma"}),
        (10.0 ** -np.arange(60), {"max_passes": 3, "tolerance": 0}, {"rounding"}),
    ],
)
def test_upper_ends_say_what_gave_them(values, parameters, given):
    pca, said = fitted(np.maximum(values, 1e-300), **parameters)
    upper = np.array(said["eigenvalue_intervals"])[:, 1]
    assert set(said["bounded_by"]) <= given
    ends = zip(upper, said["proven_upper_bounds"], pca.explained_variance_, said["bounded_by"], strict=True)
    for end, proven, value, by in ends:
        assert (end == proven) == (by == "trace") or by == "rounding"
        assert by != "sigma" or end <= value + pca.error_["sigma"] * (1 + 1e-9)


@pytest.mark.parametrize("tolerance", [None, 0.05])
def test_auto_takes_incremental_updates_for_one_pass_and_tells_why(tolerance):
    shape = (40_000, 20_000)
    rows = np.broadcast_to(np.float32(1), shape)
    process = sp.PCA(1).plan(np.eye(2)).memory["process"]
    options = {"memory": process + 800 * 2**20, "tolerance": tolerance}
    plan = sp.PCA(5, max_passes=1, **options).plan(rows)
    assert (plan.solver, plan.passes) == ("adaptive", 1)
    assert "with one pass it is more accurate than a sketch" in plan.reason
    assert sp.PCA(5, **options).plan(rows).solver == "sketch"


def test_numbers_of_components_of_the_breast_cancer_data():
    from sklearn.datasets import load_breast_cancer

    pca = sp.PCA(18, solver="sketch", scale=True, sketch_size=28).fit(load_breast_cancer().data)
    found = pca.error_["components_for"]
    for share, exact in (("0.9", 7), ("0.95", 10), ("0.99", 17)):  # Marukatat 2023, table of retained variance
        low, high = found[share]
        assert high is not None
        assert low <= exact <= high
    assert list(found["0.9"]) == [7, 7]


def test_same_names_as_the_exact_certificate():
    pca, said = fitted(SPECTRA["slow"], tolerance=0, max_passes=2)
    exact = sp.PCA(2, solver="covariance").fit(gaussian(5, d=50)).error_
    assert set(exact) <= set(said)
    assert json.loads(json.dumps(said, allow_nan=False)).keys() == said.keys()
    assert (said["kind"], said["n_passes"], said["numerical_rank"]) == ("approximate", 2, 6)
    assert said["orthonormality"] < 1e-13
    assert said["captured_variance"] == pytest.approx(pca.explained_variance_ratio_.sum())
    assert all(
        low <= value <= high
        for (low, high), value in zip(said["eigenvalue_intervals"], pca.explained_variance_, strict=True)
    )
    assert said["largest_relative_width"] == max(said["component_errors"])
    for word in ("proven", "statistical", "2 passes", "exact trace"):
        assert word in said["statement"]
    matrix = spectra.symmetric(SPECTRA["slow"])
    gaps = np.linalg.norm(matrix @ pca.components_.T - pca.components_.T * pca.explained_variance_, axis=0)
    assert gaps.max() <= said["eigen_residual"] * pca.explained_variance_[0] * (1 + 1e-9)


def test_incremental_answers_have_bounds_of_first_order():
    pca, said = fitted(SPECTRA["exponential"], solver="adaptive", max_passes=1)
    assert_held(pca, said, SPECTRA["exponential"])
    assert said["eigen_solver"] == "incremental"
    assert "first order" in said["statement"]


def test_conversion_is_held_against_the_intervals():
    pca, said = fitted(SPECTRA["slow"], recovery="conversion", pilot=0)
    exact = SPECTRA["slow"][:6]
    assert (np.abs(pca.explained_variance_ / exact - 1) <= np.array(said["component_errors"]) + 1e-12).all()
    axes, matrix = pca.components_.T, spectra.symmetric(SPECTRA["slow"])
    low, high = said["relative_residual_interval"]
    assert low <= 1 - np.trace(axes.T @ matrix @ axes) / np.trace(matrix) <= high
    assert said["angle_bounds"] == [None] * 6 or said["angle_bounds"] == (None,) * 6
    assert said["eigen_solver"] == "conversion"
    assert "conversion" in said["statement"]


def test_indefinite_matrices_have_no_certificate():
    """Three features, each pair observed in other rows, with correlations 1, 1 and −1: eigenvalues 2, 2 and −1."""
    t = np.linspace(-1, 1, 30)
    rows = np.full((90, 3), np.nan)
    for block, (i, j, sign) in enumerate([(0, 1, 1), (1, 2, 1), (0, 2, -1)]):
        rows[30 * block : 30 * (block + 1), [i, j]] = np.stack([t, sign * t], axis=1)
    said = sp.PCA(2, solver="sketch", sketch_size=3, missing="pairwise", pilot=0).fit(rows).error_
    assert "without a certificate" in said["statement"]
    assert said["eigenvalue_intervals"] is None
    assert list(said["relative_residual_interval"]) == [0.0, 1.0]
    assert list(said["component_errors"]) == [None] * 2
    assert said["largest_relative_width"] is None
    json.dumps(dict(said), allow_nan=False)


@pytest.mark.parametrize(
    "values",
    [
        np.where(INDEX <= 5, 1.0, 0.0),
        np.where(INDEX == 1, 1e8, 1 / INDEX),
        np.ones(D),
        np.where(INDEX <= 3, 1.0, 0.0) * 1e-150,
        1e150 / INDEX,
    ],
    ids=["rank below q", "one dominant", "identity", "tiny", "huge"],
)
@pytest.mark.parametrize("passes", [1, 2])
def test_hard_matrices(values, passes):
    pca, said = fitted(values, pilot=0, max_passes=passes, tolerance=0)
    assert pca.n_components_ == 6
    assert_held(pca, said, values)
    if (values == 0).any():  # the whole matrix is in the approximation
        assert said["relative_residual_interval"][1] < 1e-9


def test_matrix_of_zeros():
    said = dict(sp.PCA(3, solver="sketch", sketch_size=5, pilot=0).fit(np.ones((30, D), dtype=np.float32)).error_)
    assert list(said["component_errors"]) == [0.0, 0.0, 0.0]
    json.dumps(said, allow_nan=False)


def test_upper_end_holds_where_an_eigenvalue_is_as_large_as_what_is_left_out() -> None:
    """A vector of a sine of 1e-8 has a cosine of 1 in float64, and the eigenvalue that it splits from σ = λ̂ is 1 + 1e-8."""
    sine = 1e-8
    approx = LowRank(np.ones(1), np.array([[1.0], [sine]]), 0.0)
    exact = np.linalg.eigvalsh(approx.vectors @ approx.vectors.T + np.diag([0.0, 1.0]))[-1]
    found = intervals(approx, np.ones((1, 1)), sigma=None, tau=1.0, n_components=1)
    assert exact > 1 + sine / 2
    assert exact <= found.proven_upper[0] <= 1 + 2e-7


def test_residual_limits_hold_and_follow_the_residuals():
    """20 probes of 300 draws: no limit is below the residual, and their median is what the quantile of chi-square says."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    matrix = (axes * np.arange(1, 61.0) ** -1) @ axes.T
    approx = nystrom(matrix @ axes[:, :12], axes[:, :12] + 0.1 * rng.standard_normal((60, 12)), precision="float64")
    approx = LowRank(approx.values[:8], approx.vectors[:, :8], 0.0)
    true = np.linalg.norm(matrix @ approx.vectors - approx.vectors * approx.values, axis=0)
    ratios = []
    for _ in range(300):
        probes = rng.standard_normal((60, 20))
        limits = residual_limits(approx, Evidence(probes, matrix @ probes), 8)
        ratios.append(limits / true)
    assert np.min(ratios) >= 1
    assert 2 < np.median(ratios) < 5


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_uppers_by_residuals_hold_for_any_matrix_with_these_residuals(share):
    """E is drawn, or aligned with a vector and its neighbours, which is the worst; bounds are attained to a few parts in ten."""
    rng, d, r = np.random.default_rng(1), 30, 6
    values = np.array([1.0, 0.8, 0.79, 0.5, 0.3, 0.1])
    for _ in range(200):
        factor = rng.standard_normal((d, 3)) * 10.0 ** rng.uniform(-3, -0.5)
        factor[:r] *= share
        error = factor @ factor.T
        matrix = np.diag(np.append(values, np.zeros(d - r))) + error
        beyond = np.linalg.eigvalsh(error[r:, r:])[-1]
        upper = uppers_by_residuals(values, np.linalg.norm(error[:, :r], axis=0), np.diagonal(error)[:r], beyond)
        linear = uppers_by_residuals(values, *[np.linalg.norm(error[:, :r], axis=0)] * 2, beyond)
        exact = np.linalg.eigvalsh(matrix)[::-1][:r]
        assert (exact <= upper + 1e-14).all()
        assert (exact <= linear + 1e-14).all()
    assert uppers_by_residuals(np.ones(1), np.full(1, 0.1), np.full(1, 0.1), 0.5) == pytest.approx(1.1)
