"""The rounding of incremental answers is in their certificate, and their random signs follow the seed."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from streampca import PCA

pytestmark = pytest.mark.numerical

EPS = float(np.finfo(np.float64).eps)


def unequal(n: int, d: int, least: float = 5e-6) -> NDArray[np.float64]:
    """Return rows whose odd features have deviations of one size, and whose even ones `least` to 1 times that."""
    rng = np.random.default_rng(3)
    return rng.integers(-4000, 4000, (n, d)) * np.where(np.arange(d) % 2, 1.0, np.geomspace(least, 1, d))


def z_score_eigenvalues(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = rows - rows.mean(axis=0)
    scaled = centred / centred.std(axis=0, ddof=1)
    values: NDArray[np.float64] = np.linalg.svd(scaled, compute_uv=False) ** 2 / (len(rows) - 1)
    return values


def test_rounding_that_scales_magnify_is_in_the_certificate() -> None:
    """Without a pilot the updates see features of unequal size, and round relative to the largest."""
    rows = unequal(30, 40)
    pca = PCA(5, solver="adaptive", sketch_size=40, pilot=0, scale=True).fit(rows)
    ratio = rows.var(axis=0).max() / rows.var(axis=0).min() / 40
    assert pca.error_["trusted_above"] >= 16 * EPS * ratio
    lower = np.array(pca.error_["eigenvalue_intervals"])[:, 0]
    assert (lower <= z_score_eigenvalues(rows)[:5] * (1 + 1e-12)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_of_products_is_in_the_certificate_beside_that_of_updates(dtype: str) -> None:
    """The room for float32 products, 64 · 2⁻²⁴ of the first eigenvalue, is never smaller than without unequal features."""
    rows = unequal(200, 70, 6e-5).astype(dtype)
    pca = PCA(5, solver="adaptive", sketch_size=70, pilot=0, scale=True).fit(rows)
    lower = np.array(pca.error_["eigenvalue_intervals"])[:, 0]
    room = (pca.explained_variance_ - lower).min() / pca.explained_variance_[0]
    updates = 16 * EPS * rows.var(axis=0, dtype=np.float64).max() / rows.var(axis=0, dtype=np.float64).min() / 70
    assert room >= max(updates, 64 * 2.0**-24 if dtype == "float32" else 1e-13) * (1 - 1e-9)


def test_signs_of_updates_follow_random_state() -> None:
    """The sums that start an iteration have random signs: they decide the bits where an update truncates."""
    rows = np.random.default_rng(0).standard_normal((3000, 400)).astype(np.float32)

    def bits(seed: int) -> bytes:
        pca = PCA(3, solver="adaptive", sketch_size=10, pilot=0, random_state=seed).fit(rows)
        return bytes(pca.components_.tobytes())

    assert bits(1) == bits(1)
    assert bits(1) != bits(2)
