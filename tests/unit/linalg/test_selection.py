"""How many components: ties are decided by the data, not by rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streampca as sp
from streampca.errors import NotAvailableError, ParameterError

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
def test_ties_are_counted_whatever_the_rotation(asked: Any, expected: int, solver: str) -> None:
    found = {sp.PCA(asked, solver=solver).fit(rotated(TIED, seed)).n_components_ for seed in range(12)}
    assert found == {expected}


def test_a_threshold_is_right_in_all_of_60_rotations() -> None:
    found = [sp.PCA(sp.Threshold(0.25)).fit(rotated(TIED, seed)).n_components_ for seed in range(60)]
    assert set(found) == {4}


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_approximate_solvers_count_ties_as_equal(solver: str) -> None:
    asked = {"solver": solver, "sketch_size": 7, "pilot": 0}
    found = {sp.PCA(sp.Threshold(0.25), **asked).fit(rotated(TIED, seed)).n_components_ for seed in range(12)}
    assert found == {4}


@pytest.mark.parametrize(("dtype", "apart"), [("f8", 1e-10), ("f4", 2e-5)])
def test_what_differs_by_more_than_rounding_is_not_tied(dtype: str, apart: float) -> None:
    for seed in range(5):
        below = rotated(np.array([1.0, 0.25 - apart, 0.25 - 2 * apart]), seed, dtype)
        assert sp.PCA(sp.Threshold(0.25)).fit(below).n_components_ == 1
        above = rotated(np.array([0.5 - apart, 0.5 - 2 * apart, 3 * apart]), seed, dtype)
        assert sp.PCA(0.5).fit(above).n_components_ == 2


def test_a_threshold_below_rounding_still_selects() -> None:
    rows = rotated(np.array([1.0, 1e-9, 0.0]), 0)
    assert sp.PCA(sp.Threshold(1e-8)).fit(rows).n_components_ == 1
    assert sp.PCA(2).fit(rows).n_components_ == 2


@pytest.mark.parametrize("solver", ["covariance", "gram", "qr"])
def test_frobenius_takes_the_smallest_number_whose_squares_reach_the_share(solver):
    rows = np.random.default_rng(3).standard_normal((30, 24)) * 0.8 ** np.arange(24)
    squares = np.linalg.eigvalsh(np.cov(rows.T))[::-1] ** 2
    shares = np.cumsum(squares) / squares.sum()
    for share in (0.5, 0.9, 0.99, 0.9999):
        expected = int(np.flatnonzero(shares >= share)[0]) + 1
        for asked in (sp.Frobenius(share), {"frobenius": share}):
            assert sp.PCA(asked, solver=solver).fit(rows).n_components_ == expected


def test_frobenius_of_many_features_is_that_of_the_whole_matrix():
    values = np.r_[40.0, 20.0, 10.0, np.full(1597, 0.5)]
    rows = np.random.default_rng(0).standard_normal((200, 1600)) * np.sqrt(values)
    squares = np.linalg.eigvalsh(np.cov(rows.T))[::-1] ** 2
    expected = int(np.flatnonzero(np.cumsum(squares) >= 0.5 * squares.sum())[0]) + 1
    fitted = sp.PCA(sp.Frobenius(0.5), solver="covariance").fit(rows)
    assert fitted.n_components_ == expected < 64
    assert fitted.error_["eigen_solver"] == "block krylov"


def test_frobenius_counts_ties_as_reached():
    found = {
        sp.PCA(sp.Frobenius(4 / 6)).fit(rotated(np.array([2.0, 1.0, 1.0]), seed)).n_components_ for seed in range(12)
    }
    assert found == {1}


@pytest.mark.parametrize("share", [0, 1, 1.5, -0.1, True, "0.9", None])
def test_frobenius_of_another_share_is_refused(share):
    with pytest.raises(ParameterError, match=r"Frobenius\(share="):
        sp.Frobenius(share)


@pytest.mark.parametrize("asked", [{"frobenios": 0.9}, {}, {"frobenius": 0.9, "threshold": 0.1}])
def test_unknown_mapping_for_n_components_is_refused(asked):
    with pytest.raises(ParameterError, match=r'expected \{"threshold": eps\} or '):
        sp.PCA(asked).fit(np.eye(4))


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_frobenius_is_refused_by_solvers_without_the_matrix(solver):
    with pytest.raises(NotAvailableError, match="Frobenius norm is known of the whole covariance"):
        sp.PCA(sp.Frobenius(0.9), solver=solver).fit(np.random.default_rng(0).standard_normal((300, 80)))


def test_frobenius_is_refused_by_kernel_pca():
    with pytest.raises(ParameterError, match="is for PCA only"):
        sp.KernelPCA(sp.Frobenius(0.9)).fit(np.eye(4))


def test_frobenius_is_kept_by_saved_models_and_states(tmp_path):
    rows = np.random.default_rng(3).standard_normal((30, 6))
    pca = sp.PCA({"frobenius": 0.7}, solver="covariance").fit(rows[:20])
    pca.save(tmp_path / "model.zarr", state=True)
    loaded = sp.load(tmp_path / "model.zarr")
    assert loaded.n_components == {"frobenius": 0.7}
    loaded.partial_fit(rows[20:])
    assert loaded.n_components_ == sp.PCA(sp.Frobenius(0.7), solver="covariance").fit(rows).n_components_
