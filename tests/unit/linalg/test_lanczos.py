"""The block Krylov iteration on its own, on matrices that are hard for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import spectra
import tolerances

from streampca.errors import StreamPCAError
from streampca.linalg.eigen import leading_eigenpairs
from streampca.metrics import principal_angles

pytestmark = pytest.mark.numerical


def assert_leading(matrix: Any, k: int, seed: int = 0) -> None:
    d = len(matrix)
    values, vectors = leading_eigenpairs(lambda block: matrix @ block, d, k, seed=seed)
    expected, axes = np.linalg.eigh(matrix)
    expected, axes = expected[::-1], axes[:, ::-1]
    first = max(expected[0], 1e-300)
    assert vectors.shape == (d, k)
    assert np.abs(values - expected[:k]).max() <= tolerances.residual(d) * first
    assert np.abs(vectors.T @ vectors - np.eye(k)).max() <= tolerances.orthonormality(d)
    assert np.linalg.norm((matrix @ vectors - vectors * values) / first, axis=0).max() <= tolerances.residual(d)
    leading = tolerances.largest_gap_count(expected, 2e-11, most=min(k, 10))
    if leading:
        assert principal_angles(vectors.T[:leading], axes.T[:leading]).max() < tolerances.ANGLE


@pytest.mark.deep(keep=16)
@pytest.mark.parametrize("name", [*spectra.SPECTRA, "tiny", "huge"])
@pytest.mark.parametrize("k", [1, 10, 70])
def test_spectra(name: str, k: int) -> None:
    assert_leading(spectra.symmetric(spectra.eigenvalues(name, 400), seed=1), k)


@pytest.mark.parametrize("d", [1, 2, 5, 17, 40])
def test_matrices_smaller_than_a_block(d: int) -> None:
    for k in {1, max(1, d // 2), d}:
        assert_leading(spectra.symmetric(spectra.eigenvalues("slow", d), seed=2), k)


@pytest.mark.parametrize("seed", range(4))
def test_many_equal_values_cost_none_of_them(seed: int) -> None:
    """More equal eigenvalues than a block has vectors: an iteration without blocks would miss copies."""
    values = np.repeat([3.0, 2.0, 1.0, 0.1], [30, 30, 40, 200])
    assert_leading(spectra.symmetric(values, seed=seed), 50, seed=seed)


def test_a_basis_that_starts_again() -> None:
    """A flat spectrum needs more vectors than are kept."""
    values = np.concatenate([np.linspace(2, 1.5, 12), np.linspace(1.4, 0.0, 988)])
    products: list[int] = []
    matrix = spectra.symmetric(values, seed=3)

    def multiply(block: Any) -> Any:
        products.append(block.shape[1])
        return matrix @ block

    found, _ = leading_eigenpairs(multiply, 1000, 12)
    assert sum(products) > 300  # vectors, more than are kept at once
    np.testing.assert_allclose(found, values[:12], atol=1e-10)


def test_what_is_not_reached_is_said() -> None:
    """Products that have nothing to do with each other are those of no matrix."""
    draw = np.random.default_rng(4)
    with pytest.raises(StreamPCAError, match="ask for fewer components"):
        leading_eigenpairs(lambda block: draw.standard_normal(block.shape), 200, 2)


def test_the_same_seed_gives_the_same_bits() -> None:
    matrix = spectra.symmetric(spectra.eigenvalues("slow", 300), seed=5)
    one, other, another = (leading_eigenpairs(lambda block: matrix @ block, 300, 5, seed=seed)[1] for seed in (1, 1, 2))
    assert one.tobytes() == other.tobytes()
    assert one.tobytes() != another.tobytes()


@pytest.mark.parametrize("spectrum", ["slow", "rank_deficient"])
def test_any_number_of_threads_gives_the_same_bits(spectrum: str) -> None:
    """Of a basis that starts again, with bands of rows whose length is no divisor of the side."""
    values = spectra.eigenvalues(spectrum, 1700)[:, None]
    one, several = (leading_eigenpairs(lambda block: values * block, 1700, 4, n_threads=n) for n in (1, 3))
    assert [found.tobytes() for found in one] == [found.tobytes() for found in several]


@pytest.mark.parametrize("name", ["steep", "diagonal", "copies"])
def test_columns_that_are_nearly_dependent(name: str) -> None:
    """Blocks whose products have no Cholesky factor, or one of noise: columns of lengths from 1 to 1e-300, zeros, and copies."""
    d = 600
    matrix = {
        "steep": spectra.symmetric(10.0 ** -np.linspace(0, 300, d), seed=7),
        "diagonal": np.diag(10.0 ** -np.linspace(0, 300, d)),
        "copies": np.kron(np.ones((100, 100)), np.diag([3.0, 2.0, 1.0, 1.0, 1e-9, 0.0])),
    }[name]
    for k in (1, 20, 70):
        assert_leading(matrix, k)
