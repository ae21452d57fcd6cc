"""Landmarks: what is drawn with which probability, and that nothing but the rows decides it.

Seeds are fixed, so that no test fails by chance; each threshold is one that 1e-6 of all sets of seeds would pass.
"""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from facade import Block, folded
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import chi2
from sklearn.datasets import load_digits

from streampca.accumulators import ColumnNormLandmarks, RPCholeskyLandmarks, UniformLandmarks, WeightedLandmarks
from streampca.accumulators.landmarks import random_pivots
from streampca.errors import DataError, NotFiniteError, ParameterError
from streampca.kernels import RBF, Custom, Linear, Polynomial, Sigmoid
from streampca.system.workspace import release

pytestmark = pytest.mark.numerical

FAILURE = 1e-6
KERNEL = Polynomial(degree=3, gamma=0.1)


def drawn(accumulator: Any, *blocks: Block) -> Any:
    return accumulator.finalize(folded(accumulator, blocks, blocks[0].values.shape[1]))


def normal(n: int, d: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((n, d))


def every_accumulator(n: int, rows: NDArray[Any], **parameters: Any) -> list[Any]:
    dtype = str(rows.dtype)
    return [
        UniformLandmarks(n, 3, dtype),
        WeightedLandmarks(n, KERNEL, 3, dtype),
        ColumnNormLandmarks(n, KERNEL, np.asarray(rows[:50]), len(rows), 3, dtype),
        RPCholeskyLandmarks(n, KERNEL, 3, dtype),
    ]


def test_every_row_is_equally_likely() -> None:
    """Counts c of S draws of m from n rows: Σ (c − S m/n)² (n − 1) / (S m (1 − m/n)) is χ² of n − 1 degrees."""
    n, m, n_draws = 40, 8, 4000
    block, counts = Block(np.zeros((n, 1)), 1000), np.zeros(n)
    for seed in range(n_draws):
        counts[drawn(UniformLandmarks(m, seed), block).index - 1000] += 1
    share = m / n
    found = ((counts - n_draws * share) ** 2).sum() * (n - 1) / (n_draws * m * (1 - share))
    assert chi2.ppf(FAILURE, n - 1) < found < chi2.isf(FAILURE, n - 1)


def test_one_draw_spreads_evenly_over_a_long_source() -> None:
    """Counts of m rows in b equal stretches of n: Σ (c − m/b)² (n − 1) / (m/b (n − m)) is χ² of b − 1 degrees."""
    n, m, n_parts = 1_000_000, 5_000, 100
    for seed in range(3):
        index = drawn(UniformLandmarks(m, seed, "uint8"), Block(np.zeros((n, 1), np.uint8))).index
        counts = np.bincount(index * n_parts // n, minlength=n_parts)
        found = ((counts - m / n_parts) ** 2).sum() * (n - 1) / (m / n_parts * (n - m))
        assert chi2.ppf(FAILURE, n_parts - 1) < found < chi2.isf(FAILURE, n_parts - 1)


@pytest.mark.deep(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["weights of samples", "diagonal", "column norm"])
def test_first_row_in_proportion_to_its_weight(kind: str) -> None:
    """The row with the smallest key is drawn in proportion to the weights: χ² of n − 1 degrees."""
    n, n_draws = 12, 4000
    rows, weights = np.sqrt(np.arange(n))[:, None], np.arange(n) ** 2.0
    counts = np.zeros(n)
    for seed in range(n_draws):
        accumulator: Any
        if kind == "weights of samples":
            accumulator, block = UniformLandmarks(1, seed), Block(rows, 0, weights)
        elif kind == "diagonal":  # κ(x, x)² = x⁴
            accumulator, block = WeightedLandmarks(1, Linear(), seed), Block(rows)
        else:  # x² Σ x_j² and a weight x²
            accumulator = ColumnNormLandmarks(1, Linear(), rows, n, seed)
            block = Block(rows, 0, np.arange(n, dtype=np.float64))
        counts[drawn(accumulator, block).index] += 1
    expected = n_draws * weights / weights.sum()
    assert counts[0] == 0
    found = ((counts - expected)[1:] ** 2 / expected[1:]).sum()
    assert chi2.ppf(FAILURE, n - 2) < found < chi2.isf(FAILURE, n - 2)


def test_draws_for_different_purposes_share_as_many_rows_as_chance_gives() -> None:
    """The rows that two draws of m from n share are hypergeometric: mean m²/n = 40, deviation 6."""
    block, m = Block(np.zeros((4000, 1))), 400
    landmarks = drawn(UniformLandmarks(m, 0), block).index
    for other in (UniformLandmarks(m, 0, purpose="reservoir"), UniformLandmarks(m, 1)):
        shared = len(np.intersect1d(landmarks, drawn(other, block).index))
        assert abs(shared - 40) < 4.9 * 6


@pytest.mark.slow
def test_pivots_follow_the_law_of_randomly_pivoted_cholesky() -> None:
    """Proposing and rejecting gives pairs with the probabilities of drawing one by one: χ² of 9 degrees."""
    rows = normal(5, 3, seed=4) * np.arange(1, 6)[:, None]
    weights = np.array([1.0, 5.0, 1.0, 2.0, 0.5])
    matrix = rows @ rows.T
    chance = np.zeros((5, 5))
    first = weights * matrix.diagonal() / (weights * matrix.diagonal()).sum()
    for i in range(5):
        residual = weights * np.maximum(matrix.diagonal() - matrix[i] ** 2 / matrix[i, i], 0)
        chance[i] = first[i] * residual / residual.sum()
    chance = np.triu(chance + chance.T, 1)
    n_draws, counts = 4000, np.zeros((5, 5))
    random = np.random.default_rng(0)
    for _ in range(n_draws):
        i, j = random_pivots(Linear(), rows, weights, 2, random)
        counts[i, j] += 1
    pairs = np.triu_indices(5, 1)
    expected = n_draws * chance[pairs]
    found = ((counts[pairs] - expected) ** 2 / expected).sum()
    assert chi2.ppf(FAILURE, 9) < found < chi2.isf(FAILURE, 9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_landmarks_do_not_depend_on_blocks_order_or_threads(dtype: str) -> None:
    rows = normal(3001, 5).astype(dtype)
    random = np.random.default_rng(7)
    weights = random.integers(0, 3, len(rows)).astype(np.float64)
    for accumulator in every_accumulator(40, rows):
        for given in (None, weights):
            whole = Block(rows, 0, given)
            expected = drawn(accumulator, whole)
            for n_cuts in (3, 60):
                cuts = [0, *np.sort(random.integers(0, len(rows), n_cuts)), len(rows)]
                blocks = [whole.slice(*pair) for pair in pairwise(cuts)]
                random.shuffle(blocks)  # type: ignore[arg-type]
                leaves = [blocks[i::4] for i in range(4)]
                with ThreadPoolExecutor(4) as pool:
                    states = list(pool.map(lambda leaf, own=accumulator: folded(own, leaf, 5), leaves))
                found = accumulator.finalize(accumulator.merge([accumulator.merge(states[:2]), *states[2:]]))
                np.testing.assert_array_equal(found.index, expected.index)
                assert found.rows.tobytes() == expected.rows.tobytes() == rows[expected.index].tobytes()
                assert found.n_samples == expected.n_samples == (3001 if given is None else (weights > 0).sum())
            if given is not None:
                assert (weights[expected.index] > 0).all()


def test_sparse_rows_draw_what_dense_ones_do() -> None:
    rows = np.where(normal(900, 6) > 0.5, normal(900, 6), 0.0)
    for accumulator in every_accumulator(20, rows):
        dense, sparse = drawn(accumulator, Block(rows)), drawn(accumulator, Block(csr_array(rows)))
        np.testing.assert_array_equal(dense.index, sparse.index)
        np.testing.assert_array_equal(dense.rows, sparse.rows)


def test_column_norms_are_exact_where_all_rows_are_the_reservoir() -> None:
    rows = normal(150, 4)
    found = drawn(ColumnNormLandmarks(30, KERNEL, rows, 150), Block(rows))
    np.testing.assert_allclose(found.weights, (KERNEL(rows, rows) ** 2).sum(axis=1)[found.index], rtol=1e-12)


def test_pivots_of_a_kernel_of_small_rank_span_it() -> None:
    rows = normal(500, 3) @ normal(3, 8, seed=1)
    assert len(random_pivots(Linear(), rows, np.ones(500), 20, np.random.default_rng(0))) == 3
    found = drawn(RPCholeskyLandmarks(20, Linear()), Block(rows))
    assert 3 <= len(found.index) < 20
    assert np.linalg.matrix_rank(found.rows) == 3
    assert found.weight == pytest.approx(500)
    nothing = drawn(RPCholeskyLandmarks(20, Linear()), Block(np.zeros((500, 3))))
    assert 1 <= len(nothing.index) < 20


@pytest.mark.parametrize("kernel", [Polynomial(5, 1 / 64, 0.0), Polynomial(5), Polynomial(5) + RBF(1e-4)])
def test_one_pass_finds_what_spans_a_heavy_tailed_kernel(kernel: Any) -> None:
    """Digits: the residual trace is at most twice that of the algorithm in m passes, uniform draws leave 10 times more."""
    rows = load_digits().data
    rows = (rows - rows.mean(axis=0)) / np.where(rows.std(axis=0) > 0, rows.std(axis=0), 1)
    kernel = kernel.bound(64)
    total = kernel.diagonal(rows).sum()

    def residual(landmarks: NDArray[Any]) -> float:
        values, vectors = np.linalg.eigh(kernel(landmarks, landmarks))
        kept = values > 1e-12 * values[-1]
        features = kernel(rows, landmarks) @ (vectors[:, kept] / np.sqrt(values[kept]))
        return float(total - (features**2).sum()) / total

    blocks = [Block(rows[i : i + 300], i) for i in range(0, len(rows), 300)]
    for seed in range(3):
        found = residual(drawn(RPCholeskyLandmarks(100, kernel, seed), *blocks).rows)
        pivots = random_pivots(kernel, rows, np.ones(len(rows)), 100, np.random.default_rng(seed))
        assert found <= 2 * residual(rows[pivots])
        assert residual(drawn(UniformLandmarks(100, seed), *blocks).rows) > 10 * found


def test_weights_count_as_repeated_rows_to_pivots() -> None:
    rows, weights = normal(300, 4), np.random.default_rng(0).integers(0, 4, 300).astype(np.float64)
    found = drawn(RPCholeskyLandmarks(10, KERNEL), Block(rows, 0, weights))
    assert (weights[found.index] > 0).all()
    assert found.n_samples == (weights > 0).sum()
    assert found.weight == pytest.approx(weights.sum())


def test_a_long_run_of_rows_holds_as_much_as_the_plan_is_told() -> None:
    rows = normal(20_500, 6).astype(np.float32)
    accumulator = RPCholeskyLandmarks(16, KERNEL, 0, "float32", n_samples=30_000)
    state = accumulator.init(6)
    for start in range(70, len(rows), 1000):
        state = accumulator.update(state, Block(rows[start : start + 1000], start))
        held = [
            array.nbytes
            for part in (*state.groups, *state.points)
            for array in vars(part).values()
            if isinstance(array, np.ndarray)
        ]
        assert sum(held) <= accumulator.state_bytes(6)


def test_rows_that_come_twice_count_once() -> None:
    rows = normal(700, 3)
    for accumulator in every_accumulator(20, rows):
        once, twice = drawn(accumulator, Block(rows)), drawn(accumulator, Block(rows), Block(rows[100:], 100))
        np.testing.assert_array_equal(once.index, twice.index)


def test_rows_that_are_not_finite() -> None:
    rows = normal(100, 3)
    rows[41, 1] = np.nan
    weights = np.ones(100)
    for accumulator in every_accumulator(100, np.delete(rows, 41, axis=0)):
        with pytest.raises(NotFiniteError, match="NaN: first at row 541, column 1"):
            drawn(accumulator, Block(rows, 500))
        with pytest.raises(NotFiniteError, match="NaN: first at row 41, column 1"):
            drawn(accumulator, Block(csr_array(rows)))
        weights[41] = 0
        found = drawn(accumulator, Block(rows, 0, weights))
        assert 41 not in found.index
        weights[41] = 1
    for wild in (WeightedLandmarks(5, Polynomial(90)), RPCholeskyLandmarks(5, Polynomial(300))):
        with pytest.raises(NotFiniteError, match="rescale the features"):
            drawn(wild, Block(normal(100, 3) * 1e3))


def test_refusals() -> None:
    for make in (lambda: UniformLandmarks(0), lambda: RPCholeskyLandmarks(0, KERNEL)):
        with pytest.raises(ParameterError, match="n_landmarks=0: expected at least 1"):
            make()
    with pytest.raises(ParameterError, match="positive semi-definite"):
        RPCholeskyLandmarks(5, Sigmoid())
    with pytest.raises(DataError, match="all 10 rows have weight 0"):
        drawn(WeightedLandmarks(5, Linear()), Block(np.zeros((10, 2))))
    assert len(drawn(UniformLandmarks(5), Block(np.zeros((0, 2)))).index) == 0
    assert len(drawn(RPCholeskyLandmarks(5, KERNEL), Block(np.zeros((0, 2)))).index) == 0


def indefinite(X: Any, Y: Any) -> NDArray[Any]:
    return np.asarray(np.tanh(0.3 * X @ Y.T - 0.5))


def test_pivots_of_an_indefinite_function_end() -> None:
    rows = normal(400, 3)
    found = drawn(RPCholeskyLandmarks(30, Custom(indefinite)), Block(rows))
    assert 1 <= len(found.index) <= 30
    accumulator = replace(RPCholeskyLandmarks(30, Custom(indefinite)), seed=9)
    assert len(drawn(accumulator, Block(rows)).index) >= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_updates_take_the_memory_that_the_plan_is_told(dtype: str) -> None:
    rows = normal(9_600, 16).astype(dtype)
    for accumulator in every_accumulator(150, rows):
        drawn(accumulator, Block(rows[:1200]))  # what is imported on the first call is not memory of the call
        release()
        tracemalloc.start()
        state = accumulator.init(16)
        for start in range(0, len(rows), 2400):
            state = accumulator.update(state, Block(rows[start : start + 2400], start))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        itemsize = rows.dtype.itemsize
        slack = 1 << 17  # objects of Python
        assert peak <= accumulator.state_bytes(16) + accumulator.scratch_bytes(16, 2400, itemsize) + slack, accumulator
