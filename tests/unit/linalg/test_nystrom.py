"""Orthonormal bases and the Nyström approximation against dense oracles."""

from __future__ import annotations

import numpy as np
import pytest
import spectra
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streampca.errors import NotFiniteError, ParameterError
from streampca.linalg.nystrom import converted, nystrom
from streampca.linalg.tall_skinny import orthonormal
from streampca.metrics import relative_difference, similarity

pytestmark = pytest.mark.numerical

D = 200
INDEX = np.arange(1, D + 1.0)
SPECTRA = {
    "slowest": INDEX**-0.5,
    "slow": 1 / INDEX,
    "fast": 10 ** (-0.1 * (INDEX - 1)),
    "rank 5": np.where(INDEX <= 5, 1.0, 0.0),
    "clusters": np.where(INDEX <= 5, 4.0, np.where(INDEX <= 20, 1.0, 0.05)),
    "one dominant": np.where(INDEX == 1, 1e8, 1 / INDEX),
}


def gaussian(q: int, seed: int = 1, d: int = D):
    return np.random.default_rng(seed).standard_normal((d, q))


def dense(low_rank):
    return (low_rank.vectors * low_rank.values) @ low_rank.vectors.T


def departure(vectors) -> float:
    return float(np.abs(vectors.T @ vectors - np.eye(vectors.shape[1])).max(initial=0.0))


# orthonormal


def test_threads_do_not_change_the_bits():
    a = gaussian(9, 1, 20_000)
    for n_threads in (2, 3):
        assert np.array_equal(orthonormal(a, n_threads=n_threads), orthonormal(a))
        one, many = (nystrom(a * 2, a, precision="float32", n_threads=n) for n in (1, n_threads))
        assert np.array_equal(one.vectors, many.vectors)


def test_orthonormal_is_gram_schmidt_where_it_can_be():
    vectors = gaussian(20)
    q, r = np.linalg.qr(vectors)
    assert np.abs(orthonormal(vectors) - q * np.sign(np.diagonal(r))).max() < 1e-13


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1.0, 1e150, 1e300])
def test_orthonormal_of_any_scale(scale):
    vectors = gaussian(12)
    basis, expected = orthonormal(vectors * scale), orthonormal(vectors)
    assert np.abs(basis - expected).max() < 1e-13


@pytest.mark.parametrize("rank", [1, 7, 30])
def test_orthonormal_drops_what_depends_on_others(rank):
    vectors = gaussian(rank) @ gaussian(40, 2, rank)
    basis = orthonormal(vectors)
    assert basis.shape == (D, rank)
    assert departure(basis) < 1e-14
    assert np.abs(vectors - basis @ (basis.T @ vectors)).max() < 1e-12


def test_orthonormal_keeps_directions_far_below_the_others():
    turned = gaussian(10) * 10.0 ** -np.arange(10) @ spectra.rotation(10, 3)
    basis = orthonormal(turned)
    assert basis.shape == (D, 10)
    assert departure(basis) < 1e-14
    smallest = gaussian(10)[:, 9] - (q := np.linalg.qr(gaussian(10)[:, :9])[0]) @ (q.T @ gaussian(10)[:, 9])
    # 1e-9 below the others, known to eps / 1e-9 of its length.
    assert np.linalg.norm(basis.T @ smallest) / np.linalg.norm(smallest) > 1 - 1e-5


def test_orthonormal_against_a_basis():
    basis = orthonormal(gaussian(15))
    nearly = basis @ gaussian(6, 2, 15) + 1e-9 * gaussian(6, 3)
    added = orthonormal(np.hstack([nearly, gaussian(4, 4), basis[:, :3]]), basis)
    assert added.shape == (D, 10)
    assert departure(np.hstack([basis, added])) < 1e-14


def test_orthonormal_of_nothing():
    assert orthonormal(np.zeros((50, 4))).shape == (50, 0)
    assert orthonormal(gaussian(40, 1, 10)).shape == (10, 10)
    basis = orthonormal(gaussian(8, 1, 8))
    assert orthonormal(gaussian(3, 2, 8), basis).shape == (8, 0)


def test_not_finite_is_named():
    vectors = gaussian(4)
    vectors[7, 2] = np.nan
    with pytest.raises(NotFiniteError, match="column 2"):
        orthonormal(vectors)


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 30), st.integers(1, 12)), elements=st.floats(-1e100, 1e100, width=64)
    ),
    st.integers(0, 4),
)
def test_orthonormal_of_anything(vectors, n_against):
    against = orthonormal(gaussian(n_against, 5, len(vectors))) if n_against else None
    basis = orthonormal(vectors, against)
    assert basis.shape[1] <= min(vectors.shape)
    assert departure(basis) < 1e-13
    if against is not None:
        assert np.abs(against.T @ basis).max(initial=0.0) < 1e-13


# nystrom


@pytest.mark.parametrize("q", [1, 20, 60])
@pytest.mark.parametrize("name", SPECTRA)
def test_nystrom_is_what_it_says(name, q):
    matrix = spectra.symmetric(SPECTRA[name])
    norm, test = np.linalg.norm(matrix, 2), gaussian(q)
    found = nystrom(matrix @ test, test, precision="float64")
    error = matrix - dense(found)
    values = np.linalg.eigvalsh(error)
    assert departure(found.vectors) < 1e-12
    assert (np.diff(found.values) <= 0).all()
    assert (found.values > 0).all()
    assert values[0] >= -1e-12 * norm
    assert np.abs(error @ test).max() <= 1e-12 * norm * np.abs(test).max()
    assert values.sum() == pytest.approx(np.trace(matrix) - found.trace, abs=1e-12 * norm)
    exact = np.sort(SPECTRA[name])[::-1][: len(found.values)]
    assert (found.values <= exact * (1 + 1e-12) + 1e-13 * norm).all()


def test_nystrom_of_a_covariance_is_the_randomized_svd_of_the_rows():
    rows = spectra.rows_with_spectrum(500, SPECTRA["slow"])
    test = gaussian(30)
    found = nystrom(rows.T @ (rows @ test) / 500, test, precision="float64")
    range_, _ = np.linalg.qr(rows @ test)
    _, singular, right = np.linalg.svd(range_.T @ rows, full_matrices=False)
    assert np.abs(found.values / (singular**2 / 500) - 1).max() < 1e-11
    assert similarity(found.vectors.T, right) > 1 - 1e-12


def test_whole_rank_gives_the_matrix():
    matrix = spectra.symmetric(SPECTRA["rank 5"])
    found = nystrom(matrix @ gaussian(20), gaussian(20), precision="float64")
    assert found.values.shape == (5,)
    assert np.abs(dense(found) - matrix).max() < 1e-13


def test_products_in_float32_lose_what_float32_loses():
    rows = spectra.rows_with_spectrum(2000, SPECTRA["rank 5"]).astype(np.float32)
    for test in (gaussian(20), np.linalg.qr(rows[:30].T.astype(np.float64))[0]):
        products = (rows.T @ (rows @ test.astype(np.float32))).astype(np.float64) / 2000
        found = nystrom(products, test.astype(np.float32).astype(np.float64), precision="float32")
        exact = np.linalg.eigvalsh(rows.T.astype(np.float64) @ rows / 2000)[::-1]
        assert np.abs(found.values[:5] / exact[:5] - 1).max() < 2e-6
        assert (found.values[5:] < 4e-7).all()  # noise squared over the shift, which is no smaller than the noise


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_nystrom_of_any_scale(scale):
    matrix, test = spectra.symmetric(SPECTRA["slow"]), gaussian(20)
    expected = nystrom(matrix @ test, test, precision="float64")
    found = nystrom(matrix @ test * scale, test, precision="float64")
    assert np.abs(found.values / scale / expected.values - 1).max() < 1e-12
    long = nystrom(matrix @ test * scale, test * scale, precision="float64")
    assert np.abs(long.values / expected.values - 1).max() < 1e-12


def test_columns_that_are_zero_or_twice_there():
    matrix, test = spectra.symmetric(SPECTRA["slow"]), gaussian(20)
    expected = nystrom(matrix @ test, test, precision="float64")
    more = np.hstack([test, np.zeros((D, 2)), test[:, :3]])
    found = nystrom(matrix @ more, more, precision="float64")
    assert found.vectors.shape == (D, 20)
    assert np.abs(found.values / expected.values - 1).max() < 1e-10


def test_degenerate_products():
    assert nystrom(np.zeros((9, 3)), gaussian(3, d=9), precision="float32").vectors.shape == (9, 0)
    assert nystrom(np.zeros((9, 3)), np.zeros((9, 3)), precision="float64").trace == 0
    matrix = spectra.symmetric(np.linspace(2, 1, 9))
    wide = gaussian(20, d=9)
    assert np.abs(dense(nystrom(matrix @ wide, wide, precision="float64")) - matrix).max() < 1e-12
    with pytest.raises(ParameterError, match="one shape"):
        nystrom(np.zeros((9, 3)), np.zeros((9, 2)), precision="float64")


def test_columns_of_the_test_matrix_may_have_any_length():
    matrix, test = spectra.symmetric(SPECTRA["slow"]), gaussian(20)
    lengths = 10.0 ** np.linspace(-3, 3, 20)
    expected = nystrom(matrix @ test, test, precision="float64")
    found = nystrom(matrix @ test * lengths, test * lengths, precision="float64")
    assert np.abs(found.values / expected.values - 1).max() < 1e-8  # the shift is relative to the longest column


def test_nystrom_is_covariant_under_scaling_of_features():
    matrix, test = spectra.symmetric(SPECTRA["slow"]), gaussian(20)
    factors = 10.0 ** np.random.default_rng(4).uniform(-1, 1, D)
    scaled = nystrom(factors[:, None] * (matrix @ test), test / factors[:, None], precision="float64")
    expected = factors[:, None] * dense(nystrom(matrix @ test, test, precision="float64")) * factors
    assert np.abs(dense(scaled) - expected).max() < 1e-9 * np.abs(expected).max()


def test_indefinite_matrix_is_truncated():
    values = np.where(INDEX <= 5, 6.0 - INDEX, -0.01)
    matrix, test = spectra.symmetric(values), np.linalg.qr(spectra.symmetric(values) @ gaussian(20))[0]
    found = nystrom(matrix @ test, test, precision="float64", definite=False)
    assert found.values.shape == (5,)
    assert np.abs(found.values - values[:5]).max() < 1e-3


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
def test_lower_bounds_whatever_the_shapes(d, q, rank, seed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((rank, d)) * 10.0 ** rng.integers(-8, 8, d)
    matrix, test = rows.T @ rows, rng.standard_normal((d, q))
    found = nystrom(matrix @ test, test, precision="float64")
    exact = np.linalg.eigvalsh(matrix)[::-1]
    assert departure(found.vectors) < 1e-12
    assert (
        found.values <= exact[: len(found.values)] + 1e-13 * exact[0] + found.shift
    ).all()  # a shift far above: cond(Ω)
    assert found.trace <= np.trace(matrix) * (1 + 1e-12) + len(found.values) * found.shift


# against the tables of the literature's form and of further passes, d = 400, ten axes, median of 5


def _medians(spectrum, q, n_trials=5):
    d = len(spectrum)
    matrix = np.diag(spectrum)  # Gaussian test matrices do not know the axes
    cells = {"conversion": [], "one": [], "two": [], "krylov": []}
    for trial in range(n_trials):
        test = gaussian(q, trial, d)
        products = matrix @ test
        second = orthonormal(products)
        chain = orthonormal(products, orthonormal(test))
        both = np.hstack([orthonormal(test), chain])
        found = {
            "conversion": converted(products / np.sqrt(q), test / np.sqrt(q)).model,
            "one": nystrom(products, test, precision="float64"),
            "two": nystrom(matrix @ second, second, precision="float64"),
            "krylov": nystrom(matrix @ both, both, precision="float64"),
        }
        for name, low_rank in found.items():
            same = similarity(np.eye(d)[:10], low_rank.vectors[:, :10].T)
            cells[name].append((same, relative_difference(spectrum[:10], low_rank.values[:10])))
    return {name: np.median(cell, axis=0) for name, cell in cells.items()}


@pytest.mark.parametrize(
    ("power", "expected"),
    # (similarity from, to, relative difference from, to), about the values measured for 1,000 features; the tail of
    # i^-0.5 is shorter here, so its bands are wide.
    [
        (0.5, {"conversion": (0.1, 0.5, 1, 6), "one": (0.4, 0.75, 0.3, 0.65), "two": (0.85, 0.99, 0.02, 0.12)}),
        (1.0, {"conversion": (0.3, 0.65, 0.3, 1), "one": (0.7, 0.92, 0.15, 0.35), "two": (0.99, 1, 2e-3, 1.2e-2)}),
        (2.0, {"conversion": (0.45, 0.85, 0.03, 0.3), "one": (0.97, 1, 0.02, 0.1), "two": (0.9999, 1, 1e-5, 2e-4)}),
    ],
)
def test_recoveries_are_as_far_off_as_measured(power, expected):
    found = _medians(np.arange(1, 401.0) ** -power, 40)
    for name, (low, high, least, most) in expected.items():
        assert low <= found[name][0] <= high, name
        assert least <= found[name][1] <= most, name
    assert found["one"][1] < found["conversion"][1]
    assert found["krylov"][1] < 0.7 * found["two"][1]
    assert found["krylov"][0] >= found["two"][0] - 1e-6


def test_all_blocks_kept_are_better_than_the_last_alone():
    matrix = np.diag(np.arange(1, 401.0) ** -0.5)
    tests = [orthonormal(gaussian(30, d=400))]
    products = [matrix @ tests[0]]
    for _ in range(3):
        tests.append(orthonormal(products[-1], np.hstack(tests)))
        products.append(matrix @ tests[-1])
    assert departure(np.hstack(tests)) < 1e-13
    last = tests[0]
    for _ in range(3):
        last = orthonormal(matrix @ last)
    whole = nystrom(np.hstack(products), np.hstack(tests), precision="float64")
    alone = nystrom(matrix @ last, last, precision="float64")
    exact = np.diagonal(matrix)[:10]
    errors = [relative_difference(exact, found.values[:10]) for found in (whole, alone)]
    assert errors[0] < errors[1] / 10


def test_conversion_is_the_published_form():
    rows = spectra.rows_with_spectrum(300, SPECTRA["slow"])
    test = gaussian(25) / 5
    found = converted(rows.T @ (rows @ test) / 300, test, n_components=8)
    reduced = rows @ test
    values, vectors = np.linalg.eigh(reduced.T @ reduced / 300)
    back = rows.T @ (reduced @ vectors[:, ::-1][:, :8])
    back /= np.linalg.norm(back, axis=0)
    assert np.abs(found.values / values[::-1][:8] - 1).max() < 1e-12
    assert similarity(found.directions.T, back.T) > 1 - 1e-12
    assert departure(found.model.vectors) < 1e-13
    triangle = found.model.vectors.T @ found.directions
    assert np.abs(np.tril(triangle, -1)).max() < 1e-13
    assert (np.diagonal(triangle) > 0).all()


def test_conversion_of_any_scale_and_rank():
    matrix, test = spectra.symmetric(SPECTRA["rank 5"]), gaussian(20)
    found = converted(matrix @ test, test)
    assert found.model.vectors.shape == (D, 5)
    huge = converted(matrix @ test * 1e160, test)
    assert np.abs(huge.values / 1e160 / found.values - 1).max() < 1e-12
    long = converted(matrix @ test * 1e100, test * 1e100)
    assert np.abs(long.values / 1e200 / found.values - 1).max() < 1e-12
