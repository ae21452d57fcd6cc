"""Known values of the covariance, and the corners where weak numerics lose digits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tolerances
from facade import Block, Gram, fold
from numpy.typing import NDArray

from streampca import PCA
from streampca.accumulators import Covariance, Joint, Moments, PairwiseCovariance, RowSample, TileGrid
from streampca.errors import DataError, MergeError, NotFiniteError

pytestmark = pytest.mark.numerical


def matrix(rows: NDArray[Any], *, block: int | None = None, **parameters: Any) -> NDArray[np.float64]:
    """Return the matrix of `rows`, folded in blocks of `block` rows."""
    accumulator = Covariance(**parameters)
    return np.asarray(accumulator.finalize(fold(accumulator, rows, block or 0)).dense())


def test_known_values() -> None:
    rows = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 8.0]])
    np.testing.assert_allclose(matrix(rows), [[4.0, 6.0], [6.0, 12.0]], rtol=1e-15)
    np.testing.assert_allclose(matrix(rows, ddof=0), np.array([[8.0, 12.0], [12.0, 24.0]]) / 3, rtol=1e-15)
    np.testing.assert_allclose(matrix(rows, center=False), rows.T @ rows / 2, rtol=1e-15)
    np.testing.assert_allclose(matrix(rows, scale=True), [[1.0, np.sqrt(0.75)], [np.sqrt(0.75), 1.0]], rtol=1e-15)


@pytest.mark.parametrize("block", [1, 2])
def test_float32_far_from_zero(block: int) -> None:
    rows = np.array([[1e5 + 1, 1e5], [1e5, 1e5 + 1]], dtype=np.float32)
    np.testing.assert_array_equal(matrix(rows, block=block), [[0.5, -0.5], [-0.5, 0.5]])


@pytest.mark.parametrize("size", [1e20, 3e37, 1e-25, 1e-38])
@pytest.mark.parametrize("block", [7, 100])
def test_float32_whose_squares_are_no_float32(size: float, block: int) -> None:
    near = np.random.default_rng(0).standard_normal((100, 3)) * [1.0, 2.0, 3.0]
    rows = (near * size).astype(np.float32)
    exact = rows.astype(np.float64) / size
    expected = np.cov(exact.T)
    np.testing.assert_allclose(
        matrix(rows, block=block) / size**2, expected, atol=tolerances.EIGENVALUES_FLOAT32 * expected.max()
    )


def test_float32_columns_of_very_different_size() -> None:
    rows = np.random.default_rng(1).standard_normal((500, 3)).astype(np.float32) * np.array(
        [1e-25, 1.0, 1e25], np.float32
    )
    scaled = matrix(rows, scale=True)
    np.testing.assert_allclose(scaled, np.corrcoef(rows.astype(np.float64).T), atol=tolerances.EIGENVALUES_FLOAT32)


def test_float32_range_of_the_whole_type() -> None:
    rows = np.array([[3e38], [-3e38], [3e38], [-3e38]], dtype=np.float32)
    np.testing.assert_allclose(matrix(rows), np.cov(rows.astype(np.float64).T), rtol=1e-12)


@pytest.mark.parametrize("accumulator", [Covariance(), Moments()], ids=["covariance", "moments"])
def test_float64_that_overflows_is_named(accumulator: Any) -> None:
    rows = np.ones((10, 3))
    rows[:, 1] = np.linspace(-1e200, 1e200, 10)
    with pytest.raises(NotFiniteError, match=r"column 1 overflows float64 when squared \(rows 40 to 49"):
        accumulator.update(accumulator.init(3), Block(rows, 40))


@pytest.mark.parametrize(
    "accumulator", [Covariance(), Moments(), Covariance(tile_size=2)], ids=["covariance", "moments", "tiles"]
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("row", [0, 3, 8999])
def test_what_is_not_finite_is_named(accumulator: Any, dtype: str, value: float, name: str, row: int) -> None:
    rows = np.random.default_rng(2).standard_normal((9000, 4)).astype(dtype)
    rows[row, 2] = value
    with pytest.raises(NotFiniteError, match=rf"{name}: first at row {1000 + row}, column 2 \(1 such value") as caught:
        accumulator.update(accumulator.init(4), Block(rows, 1000))
    assert "\n" not in str(caught.value)


@pytest.mark.deep(keep=12)
@pytest.mark.parametrize("value", [0.1, 1e8 + 0.1, 1 / 3, -7e-5, 65000.0])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("block", [1, 13, 5000])
def test_a_constant_column_has_exactly_no_variance(value: float, dtype: str, block: int) -> None:
    if dtype == "float16" and value > 65504:
        pytest.skip("not a float16")
    n = 5000 if block > 1 else 50
    rows = np.random.default_rng(3).standard_normal((n, 3)).astype(dtype)
    rows[:, 1] = value
    found = matrix(rows, block=block)
    np.testing.assert_array_equal(found[1], 0.0)
    np.testing.assert_array_equal(found[:, 1], 0.0)
    np.testing.assert_array_equal(matrix(rows, block=block, scale=True)[1], 0.0)
    state = fold(Covariance(), rows)
    assert state.mean[1] == rows[0, 1]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"])
def test_integers_never_wrap(dtype: str) -> None:
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    rows = np.array([[low, high], [high, low], [high, high], [low, low], [high, high]], dtype=dtype)
    values = rows.astype(np.float64)
    np.testing.assert_allclose(matrix(rows), np.cov(values.T), rtol=1e-12)
    np.testing.assert_allclose(matrix(rows, center=False, ddof=0), values.T @ values / 5, rtol=1e-12)


@pytest.mark.parametrize("spread", [0.7, 3.0, 20.0, 60.0])
@pytest.mark.parametrize("n", [4000, 20_000])
def test_eight_bit_integers_keep_seven_digits(spread: float, n: int) -> None:
    """Values that are few must not carry one rounding error each: such errors do not average out."""
    rows = (np.random.default_rng(4).standard_normal((n, 12)) * spread + 120).clip(0, 255).astype(np.uint8)
    expected = np.cov(rows.astype(np.float64).T)
    assert np.linalg.norm(matrix(rows) - expected, 2) <= 5e-7 * np.linalg.norm(expected, 2)


def test_states_of_other_shapes_are_not_merged() -> None:
    with pytest.raises(MergeError, match="states of 3 and 4 features"):
        Covariance().merge([Covariance().init(3), Covariance().init(4)])
    with pytest.raises(MergeError, match="same features and tile_size"):
        Covariance().merge([Covariance().init(8), Covariance(tile_size=3).init(8)])


@pytest.mark.parametrize(("n", "ddof"), [(1, 1), (0, 0), (2, 2)])
def test_too_few_rows_for_a_variance(n: int, ddof: int) -> None:
    accumulator = Covariance(ddof=ddof)
    with pytest.raises(DataError, match=f"n_samples={n}"):
        accumulator.finalize(fold(accumulator, np.ones((n, 2))))


@pytest.mark.parametrize(("d", "tile_size"), [(1, 1), (7, 3), (8, 4), (10, 100), (9, 1)])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_tiles_hold_a_symmetric_matrix(d: int, tile_size: int, n_threads: int) -> None:
    rng, grid = np.random.default_rng(5), TileGrid(d, tile_size)
    flat, u, v = np.zeros(grid.size), rng.standard_normal((d, 2)), rng.standard_normal((d, 3))
    grid.add_outer(flat, u, u.T, n_threads)
    np.testing.assert_allclose(grid.dense(flat), u @ u.T, atol=1e-14)
    np.testing.assert_allclose(grid.diagonal(flat), (u * u).sum(axis=1), atol=1e-14)
    np.testing.assert_allclose(grid.multiply(flat, v, n_threads), u @ (u.T @ v), atol=1e-13)
    grid.scale(flat, v[:, 0])
    np.testing.assert_allclose(grid.dense(flat), (u @ u.T) * np.outer(v[:, 0], v[:, 0]), atol=1e-13)
    assert grid.size <= d * (d + grid.longest_side) / 2 + d
    assert max(grid.side(i) for i in range(len(grid.edges) - 1)) <= max(tile_size, 1)


@pytest.mark.parametrize(("d", "tile_size"), [(7, 3), (9, 1)])
def test_ranges_of_tiles_are_the_parts_of_all_tiles(d: int, tile_size: int) -> None:
    whole, u = TileGrid(d, tile_size), np.random.default_rng(6).standard_normal((d, 2))
    flat = np.zeros(whole.size)
    whole.add_outer(flat, u, u.T)
    edges = [0, 1, whole.n_tiles // 2, whole.n_tiles]
    parts = []
    for first, last in itertools.pairwise(edges):
        grid = TileGrid(d, tile_size, first, last)
        part = np.zeros(grid.size)
        grid.add_outer(part, u, u.T)
        assert (grid.n_tiles, grid.pairs) == (last - first, whole.pairs[first:last])
        parts.append(part)
    assert np.concatenate(parts).tobytes() == flat.tobytes()


@pytest.mark.parametrize("rest", [2.3e-4, 1e-3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("tile_size", [2, 1024])
def test_one_large_value_among_many_small_ones_costs_no_digits_in_float32(
    rest: float, weighted: bool, tile_size: int
) -> None:
    """The small squares are rounded alike when they are added to the large one in float32: by 2e-5 of it in all."""
    rows = np.random.default_rng(0).standard_normal((3000, 3)).astype(np.float32)
    rows[:, 1] = np.where(np.arange(3000) % 2, rest, -rest)
    rows[5, 1] = 1.0
    weights = np.ones(3000) if weighted else None
    covariance = Covariance(tile_size=tile_size)
    state = covariance.update(covariance.init(3), Block(rows, 0, weights))
    wide = rows.astype(np.float64)
    expected = ((wide - wide.mean(axis=0)) ** 2).sum(axis=0) / 2999
    np.testing.assert_allclose(covariance.finalize(state).variance, expected, rtol=4e-6)


@pytest.mark.parametrize("share", [0.03, 0.5])
@pytest.mark.parametrize("side", ["features", "pairwise", "samples"])
@pytest.mark.parametrize(("d", "tile_size"), [(70, 32), (70, 1024), (800, 1024)])
def test_few_columns_that_float32_rounds_have_all_their_products_in_float64(
    d: int, tile_size: int, side: str, share: float
) -> None:
    """Their squares are rounded alike, by 2e-5; so are the products of two of them that are equal but for the sign."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((3000, d)).astype(np.float32)
    rounded = rng.choice(d, int(share * d), replace=False)
    rows[:, rounded] = np.where(np.arange(3000) % 2, 2.3e-4, -2.3e-4)[:, None] * rng.choice([-1, 1], len(rounded))
    rows[5, rounded] = 1.0
    rows -= rows.mean(axis=0)
    tables = {"features": Covariance, "pairwise": PairwiseCovariance, "samples": partial(Gram, center=False)}
    accumulator = tables[side](tile_size=tile_size)
    found = accumulator.finalize(accumulator.update(accumulator.init(d), rows)).dense()
    wide = rows.astype(np.float64)
    expected = wide.T @ wide / (d - 1 if side == "samples" else 2999)
    deviation = np.sqrt(np.diag(expected))
    errors = np.abs(found - expected) / np.outer(deviation, deviation)
    assert errors[rounded].max() <= 1e-6
    assert errors.max() <= 2e-6
    if share < 0.1:  # products of the others stay in float32: they are those beside columns of zeros
        others = np.setdiff1d(np.arange(d), rounded)
        rows[:, rounded] = 0
        alone = accumulator.finalize(accumulator.update(accumulator.init(d), rows)).dense()
        np.testing.assert_array_equal(found[np.ix_(others, others)], alone[np.ix_(others, others)])


@pytest.mark.parametrize("missing", ["error", "pairwise", "drop_rows"])
@pytest.mark.parametrize("n", [29, 48, 64])
def test_scales_of_two_values_in_few_rows_have_the_digits_of_float32(n: int, missing: str) -> None:
    """Sums of squares over 16 rows in float32 had the rounding of the products, up to 1e-6, so that the two agreed."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(8):
        rows = rng.standard_normal((n, 130)).astype(np.float32)  # the rounding of which averages out
        for j in range(12):
            rows[:, j] = rng.standard_normal()
            rows[rng.choice(n, int(rng.integers(1, 4)), replace=False), j] += rng.standard_normal() * 10
        pca = PCA(2, scale=True, solver="covariance", missing=missing).fit(rows)
        worst = max(worst, float(np.abs(pca.scale_ / rows.std(axis=0, ddof=1, dtype=np.float64) - 1).max()))
    assert worst <= 4e-7


def test_second_moments_that_overflow_are_a_named_error() -> None:
    rows = 1e154 * (1 + 1e-3 * np.random.default_rng(0).standard_normal((20, 3)))
    with pytest.raises(DataError, match="overflow"):
        PCA(center=False).fit(rows)


@pytest.mark.parametrize("bad", ["large", "nan", "none"])
def test_blocks_that_may_be_overwritten(bad: str) -> None:
    original = np.random.default_rng(0).standard_normal((300, 70), dtype=np.float32)
    if bad != "none":
        original[250, 3] = 1e25 if bad == "large" else np.nan
    values, again = original.copy(), []

    def read_again() -> None:
        again.append(True)
        values[...] = original

    accumulator = Covariance()
    block = Block(values, 10, read_again=read_again)
    if bad == "nan":
        with pytest.raises(NotFiniteError, match="row 260, column 3"):
            accumulator.update(accumulator.init(70), block)
        return
    found = accumulator.update(accumulator.init(70), block)
    expected = accumulator.update(accumulator.init(70), original)
    np.testing.assert_array_equal(found.scatter, expected.scatter)
    np.testing.assert_array_equal(found.offset, expected.offset)
    assert len(again) == (bad == "large")
    assert np.array_equal(values, original) == (bad == "large")


@pytest.mark.parametrize(("small", "n_readings"), [("all", 0), ("few", 1)])
def test_blocks_of_values_beyond_float32_are_read_again_once_at_most(small: str, n_readings: int) -> None:
    original = np.random.default_rng(0).standard_normal((40_000, 70), dtype=np.float32)
    original[:, 1] *= np.float32(1e-20)
    if small == "few":  # rows that a sample of 128 misses, in every panel
        original[np.arange(len(original)) % -(-len(original) // 128) != 1, 1] = 0
    values, again = original.copy(), []

    def read_again() -> None:
        again.append(True)
        values[...] = original

    accumulator = Covariance()
    found = accumulator.update(accumulator.init(70), Block(values, read_again=read_again))
    assert len(again) == n_readings
    np.testing.assert_array_equal(found.scatter, accumulator.update(accumulator.init(70), original).scatter)
    np.testing.assert_allclose(accumulator.finalize(found).dense(), np.cov(original.astype(float).T), rtol=1e-6, atol=0)


def test_rows_are_overwritten_after_all_accumulators_used_them() -> None:
    rows = np.random.default_rng(0).standard_normal((40, 3), dtype=np.float32) + 5
    joint = Joint((Covariance(), RowSample(40, 8, "float32")))
    sample: Any = joint.update(joint.init(3), Block(rows.copy(), read_again=lambda: None))[1]
    np.testing.assert_array_equal(sample.values, rows[sample.index])


def test_memory_of_another_state() -> None:
    rows = np.random.default_rng(0).standard_normal((60, 7))
    accumulator = Covariance(tile_size=3)
    expected = accumulator.update(accumulator.init(7), rows)
    used = accumulator.update(accumulator.init(7), rows[::-1] * 3)
    found = accumulator.update(accumulator.init_within(7, used), rows)
    np.testing.assert_array_equal(found.scatter, expected.scatter)
    assert found.n_samples == 60
    assert np.shares_memory(found.scatter, used.scatter)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_columns_are_centred_by_tiles(n_threads: int) -> None:
    rows = (np.random.default_rng(0).standard_normal((500, 25)) + 7).astype(np.float32)
    found = Covariance(tile_size=10, n_threads=n_threads)
    state = found.update(found.init(25), rows)
    expected = np.cov(rows.astype(np.float64), rowvar=False)
    np.testing.assert_allclose(found.finalize(state).dense(), expected, atol=1e-6)
    one = replace(found, n_threads=1)
    np.testing.assert_array_equal(state.scatter, one.update(one.init(25), rows).scatter)
