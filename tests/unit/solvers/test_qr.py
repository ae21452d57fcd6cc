"""The triangular factor: singular values down to 1e-14 of the first, plans, certificates, the same bits for any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from facade import fit, fold, plan
from numpy.typing import NDArray

import streampca as sp
from streampca.accumulators import QRFactor
from streampca.errors import MergeError, NotAvailableError, NotFiniteError, PlanError

pytestmark = pytest.mark.numerical

GRADED = 10.0 ** -np.arange(15)


def graded_rows(n: int = 5000, seed: int = 0) -> NDArray[np.float64]:
    """Return rows with mean 0 whose singular values are 1, 0.1, … 1e-14, in a random basis."""
    rng = np.random.default_rng(seed)
    d = len(GRADED)
    left = np.linalg.qr(np.column_stack([np.ones(n), rng.standard_normal((n, d))]))[0][:, 1:]
    right = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return np.asarray((left * GRADED) @ right.T)


def relative_errors(pca: sp.PCA) -> NDArray[np.float64]:
    return np.asarray(np.abs(pca.singular_values_ / GRADED - 1))


@pytest.mark.parametrize("seed", range(5))
def test_singular_values_over_fourteen_decades(seed: int) -> None:
    rows = graded_rows(seed=seed)
    error = relative_errors(sp.PCA(solver="qr").fit(rows))
    assert error[:9].max() < 3e-10
    assert error.max() < 1e-3
    merged = sp.merge([sp.PCA(solver="qr").fit(part) for part in np.array_split(rows, 3)])
    assert relative_errors(merged)[:9].max() < 3e-10
    assert relative_errors(merged).max() < 1e-3
    lost = relative_errors(sp.PCA(solver="covariance").fit(rows))[9:]
    assert lost.min() > 0.1  # which is why there is a second way


def test_each_certificate_says_what_can_be_trusted() -> None:
    rows = graded_rows()
    trusted = {
        name: pca.error_
        for name, pca in {
            "qr": sp.PCA(solver="qr").fit(rows),
            "float64": sp.PCA(solver="covariance").fit(rows),
            "float32": sp.PCA(solver="covariance").fit(rows.astype(np.float32)),
            "float32, many features": sp.PCA(15, solver="covariance").fit(np.tile(rows, 5).astype(np.float32)),
        }.items()
    }
    assert trusted["qr"]["trusted_above"] == pytest.approx(1e-30 * 15)
    assert trusted["qr"]["numerical_rank"] == 15
    assert "nothing was squared" in trusted["qr"]["statement"]
    assert "4e-15 of the first" in trusted["qr"]["statement"]
    for name, about in (("float64", 1e-7), ("float32", 1e-7), ("float32, many features", 5e-4)):
        singular = np.sqrt(trusted[name]["trusted_above"])
        assert about / 3 < singular < 3 * about
        assert f"reliable above {singular:.0e} of the first" in trusted[name]["statement"]
    assert trusted["float64"]["numerical_rank"] in (7, 8)
    for certificate in trusted.values():
        low, high = certificate["relative_residual_interval"]
        assert low <= certificate["relative_residual"] <= high
    assert trusted["qr"]["eigen_residual"] < 1e-13
    assert trusted["qr"]["orthonormality"] < 1e-13


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8", "int16", ">f8", "bool"])
@pytest.mark.parametrize(
    "options",
    [{}, {"scale": True}, {"center": False}, {"scale": True, "center": False, "ddof": 0}, {"whiten": True}],
    ids=str,
)
def test_it_agrees_with_the_covariance(dtype: str, options: dict[str, Any]) -> None:
    rows = np.random.default_rng(4).standard_normal((700, 7)) * np.arange(7) + 3
    rows = (np.abs(rows) if dtype == "uint8" else rows > 3 if dtype == "bool" else rows).astype(dtype)
    found = sp.PCA(solver="qr", **options).fit(rows)
    expected = sp.PCA(solver="covariance", **options).fit(rows.astype(np.float64))
    assert found.plan_.work_dtype == "float64"
    top = expected.explained_variance_[0]
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, atol=1e-13 * top, rtol=0)
    for name in ("total_variance_", "mean_", "noise_variance_"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12, atol=1e-13 * top)
    np.testing.assert_array_equal(found.constant_features_, expected.constant_features_)
    if found.scale_ is not None:
        np.testing.assert_allclose(found.scale_, expected.scale_, rtol=1e-12)
    rank = expected.numerical_rank_
    covariance = [(p.components_.T * p.explained_variance_) @ p.components_ for p in (found, expected)]
    np.testing.assert_allclose(*covariance, atol=1e-12 * top, rtol=0)
    assert found.numerical_rank_ >= rank
    largest = np.abs(found.components_).argmax(axis=1)
    assert (found.components_[np.arange(len(largest)), largest] > 0).all()


def test_weights_of_rows_and_features() -> None:
    rng = np.random.default_rng(5)
    rows, counts, features = rng.standard_normal((200, 5)) + 9, rng.integers(0, 4, 200), np.array([1.0, 0, 2, 3, 0.5])
    expected = sp.PCA(4, solver="covariance", feature_weight=features).fit(np.repeat(rows, counts, axis=0))
    found = sp.PCA(4, solver="qr", feature_weight=features).fit(rows, sample_weight=counts)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(found.singular_values_, expected.singular_values_, rtol=1e-12)
    np.testing.assert_allclose(found.transform(rows), expected.transform(rows), atol=1e-11)


def test_a_far_mean_costs_no_digits() -> None:
    rows = np.random.default_rng(6).integers(-50, 50, (3000, 4)).astype(np.float64)
    near, far = (sp.PCA(solver="qr").fit(rows + mean) for mean in (0, 2.0**40))
    np.testing.assert_allclose(far.explained_variance_, near.explained_variance_, rtol=1e-14)


def test_the_same_bits_for_any_number_of_threads() -> None:
    rows = np.random.default_rng(7).standard_normal((20_000, 9))
    bits = set()
    for threads in (1, 2, 5):
        planned = plan(rows, solver="qr", threads=threads)
        assert planned.threads_per_leaf == 1
        planned = planned.replace(rows_per_block=900, n_blocks=23, n_leaves=7, leaves_in_flight=threads, window=threads)
        found = fit(rows, planned, solver="qr", threads=threads)
        bits.add(
            (found.fitted_state.state.factor.tobytes(), found.model.components.tobytes(), found.model.mean.tobytes())
        )
    assert len(bits) == 1


def test_shares_thresholds_and_counts() -> None:
    rows = graded_rows()
    assert sp.PCA(0.9, solver="qr").fit(rows).n_components_ == 1
    assert sp.PCA(sp.Threshold(1e-21), solver="qr").fit(rows).n_components_ == 11
    assert sp.PCA(3, solver="qr").fit(rows).n_components_ == 3
    assert sp.PCA(solver="qr").fit(rows[:4]).n_components_ == 3


def test_what_it_does_not_take() -> None:
    rows = graded_rows(100)
    for options in ({"missing": "mean"}, {"forgetting": 0.5}):
        with pytest.raises(NotAvailableError, match="covariance"):
            sp.PCA(solver="qr", **options).fit(rows)
    rows[7, 2] = np.inf
    with pytest.raises(NotFiniteError, match="infinity: first at row 7, column 2"):
        sp.PCA(solver="qr").fit(rows)
    with pytest.raises(NotFiniteError, match="overflows"):
        sp.PCA(solver="qr").fit(graded_rows(100) * 1e200)
    states = [fold(QRFactor(), np.eye(d)) for d in (2, 3)]
    with pytest.raises(MergeError, match="2 and 3 features"):
        QRFactor().merge(states)


def test_the_plan_says_what_it_takes(tmp_path: Any) -> None:
    source = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(20_000, 600))
    planned = sp.PCA(5, solver="qr").plan(tmp_path / "x.npy")
    assert (planned.solver, planned.passes, planned.work_dtype) == ("qr", 1, "float64")
    assert planned.memory["states"] >= 2 * 8 * 600**2
    assert planned.flops > 2 * 20_000 * 600**2
    assert "nothing is squared" in str(planned)
    assert sp.PCA(5).plan(tmp_path / "x.npy").solver == "covariance"
    with pytest.raises(PlanError, match=r"exceeds the allowed .*memory of at least"):
        sp.PCA(5, solver="qr", memory="80MiB").plan(tmp_path / "x.npy")
    del source
