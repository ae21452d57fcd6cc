"""Transforms: one matrix however it is cut, products with it, and dot products that are kept in expectation."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tolerances
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_digits

import streampca as sp
from streampca.errors import ParameterError
from streampca.random import hashes
from streampca.transforms import CountSketch, GaussianProjection, Grouping, SparseSign, Transform

pytestmark = pytest.mark.numerical

Make = Callable[[int, int, int], Transform]

RANDOM: dict[str, Make] = {
    "gaussian": GaussianProjection,
    "one hash": lambda d, q, seed: CountSketch(d, q, 1, seed),
    "four hashes": lambda d, q, seed: CountSketch(d, q, 4, seed),
    "named": lambda d, q, seed: CountSketch(d, q, 3, seed, names=[f"gene {j}" for j in range(d)]),
    "sign": lambda d, q, seed: SparseSign(d, q, 8, seed),
    "sign of two": lambda d, q, seed: SparseSign(d, q, 2, seed),
}
EVERY: dict[str, Make] = RANDOM | {"runs": lambda d, q, _: Grouping(d, min(d, q))}
every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
every_random = pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
sizes = {"d": st.integers(1, 300), "q": st.integers(8, 40), "seed": st.integers(-5, 2**40)}


@every
@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 300), max_size=5), **sizes)
def test_any_slicing_gives_the_same_bits(make: Make, d: int, q: int, seed: int, cuts: list[int]) -> None:
    transform = make(d, q, seed)
    edges = [0, *sorted(min(cut, d) for cut in cuts), d]
    whole = transform.matrix()
    assert whole.shape == (d, transform.size)
    assert whole.dtype == np.float64
    for start, stop in pairwise(edges):
        np.testing.assert_array_equal(transform.matrix(start, stop), whole[start:stop])
        if not isinstance(transform, GaussianProjection):
            part = transform.sparse(start, stop)
            np.testing.assert_array_equal(part.toarray(), whole[start:stop])
            assert part.has_canonical_format


@every_random
def test_a_feature_keeps_its_row_when_others_come_after_it(make: Make) -> None:
    np.testing.assert_array_equal(make(100, 16, 3).matrix(), make(1000, 16, 3).matrix(0, 100))


@every
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f8", "uint8", "int64", "bool"])
def test_transform_is_the_product_with_the_matrix(make: Make, dtype: str) -> None:
    draws = np.random.default_rng(1)
    rows = (draws.standard_normal((33, 210)) * 5 * (draws.random((33, 210)) < 0.2)).astype(dtype)[::2, ::3]
    rows.flags.writeable = False
    transform = make(70, 21, 5)
    omega = transform.matrix()
    expected = rows.astype(np.float64) @ omega
    work = np.float32 if dtype in ("float16", "float32") else np.float64
    error = tolerances.product(rows, omega, work)
    kept = rows.astype(np.float32) if dtype == "float16" else rows.astype(np.dtype(dtype).newbyteorder("="))
    blocks: list[Any] = [rows, sparse.csr_array(kept), sparse.csc_matrix(kept), sparse.coo_array(kept)]
    for block in blocks:
        found = transform.transform(block)
        assert isinstance(found, np.ndarray)
        assert found.dtype == work
        assert (np.abs(found - expected) <= error).all()
    assert transform.transform(rows[:0]).shape == (0, transform.size)


@pytest.mark.deep(keep=3)
@every
def test_products_over_several_slabs_and_panels(make: Make) -> None:
    """There are at least two slabs of 2,048 and of 8,192 features, and two panels of 256 and of 1,024 rows."""
    rows = np.random.default_rng(2).standard_normal((1030, 8300), dtype=np.float32)
    transform = make(8300, 9, 0)
    omega = transform.matrix()
    few = sparse.csr_array(rows * (np.arange(8300) % 5000 == 17))
    assert (np.abs(transform.transform(rows) - rows @ omega) <= tolerances.product(rows, omega, np.float32)).all()
    assert (
        np.abs(transform.transform(few) - few @ omega) <= tolerances.product(few.toarray(), omega, np.float32)
    ).all()


def variance(make: Make, x: NDArray[np.float64], y: NDArray[np.float64], q: int) -> float:
    """Return the variance of ⟨xΩ, yΩ⟩ over Ω: the fourth powers count where a row of Ω has a fixed length."""
    spread = (x @ x) * (y @ y) + (x @ y) ** 2
    transform = make(len(x), q, 0)
    if not isinstance(transform, GaussianProjection):
        spread -= 2 * (x**2 @ y**2)
    if not isinstance(transform, CountSketch):
        return float(spread / q)
    widths = np.diff(q * np.arange(transform.n_hashes + 1) // transform.n_hashes)
    return float(spread * (1 / widths).sum() / transform.n_hashes**2)


@pytest.mark.deep(keep=2)
@every_random
@pytest.mark.parametrize("same", [False, True], ids=["two rows", "one row"])
def test_dot_products_are_kept_in_expectation(make: Make, same: bool) -> None:
    """The mean of 3,000 draws misses by 5, their variance by 6, standard errors with probability below 1e-6 each.

    The standard error of the mean is the exact one, that of the variance follows from the fourth moment of the draws.
    """
    q, n_draws = 26, 3000
    x, y = np.random.default_rng(4).standard_normal((2, 100))
    y = x if same else y + 0.5 * x
    rows = np.stack([x, y])
    products = np.array([np.prod(rows @ make(100, q, seed).matrix(), axis=0).sum() for seed in range(n_draws)])
    expected = variance(make, x, y, q)
    assert abs(products.mean() - x @ y) <= 5 * np.sqrt(expected / n_draws)
    squares = (products - x @ y) ** 2
    assert abs(squares.mean() - expected) <= 6 * squares.std() / np.sqrt(n_draws)
    if same:
        # 2 / q for a unit vector whose fourth powers are small.
        assert expected / (x @ x) ** 2 == pytest.approx(2 / q, rel=0.12)


@pytest.mark.parametrize(
    "make", [RANDOM["gaussian"], RANDOM["four hashes"], RANDOM["sign"]], ids=["gaussian", "hash", "sign"]
)
def test_the_dot_product_error_falls_with_the_root_of_the_size(make: Make) -> None:
    """It is √(2/π) times the deviation over the dot product, in the mean over pairs: estimates are nearly normal.

    The tolerance is 5 standard errors, measured over the draws, and 2 % for what is not normal.
    """
    rows = load_digits().data[:80]
    errors = {
        q: np.array([sp.metrics.dot_product_error(rows, make(64, q, seed).transform(rows)) for seed in range(20)])
        for q in (150, 600, 2400)
    }
    squares = (rows**2).sum(axis=1)
    spread = np.outer(squares, squares) + (rows @ rows.T) ** 2
    if make is not GaussianProjection:
        spread -= 2 * (rows**2 @ (rows**2).T)
    relative_spread = (np.sqrt(spread) / (rows @ rows.T))[np.triu_indices(len(rows))].mean()
    for q, found in errors.items():
        slack = 5 * found.std(ddof=1) / np.sqrt(len(found)) / found.mean()
        assert found.mean() == pytest.approx(np.sqrt(2 / np.pi / q) * relative_spread, rel=slack + 0.02)
    for q in (150, 600):
        few, many = errors[q], errors[4 * q]
        relative = np.sqrt(few.var(ddof=1) / few.mean() ** 2 + many.var(ddof=1) / many.mean() ** 2) / np.sqrt(len(few))
        assert few.mean() / many.mean() == pytest.approx(2, rel=5 * relative + 0.02)


def test_columns_and_signs_are_drawn_evenly() -> None:
    """Every count is within 6 standard deviations: probability of a miss below 1e-6 over all 200 columns."""
    d, q = 40_000, 50
    for transform, entries in ((CountSketch(d, q, 1), 1), (CountSketch(d, q, 4), 4), (SparseSign(d, q), 8)):
        omega = transform.sparse()
        assert (np.diff(omega.indptr) == entries).all()
        np.testing.assert_allclose(np.abs(omega.data), 1 / np.sqrt(entries), rtol=1e-15)
        share = np.full(q, entries / q)
        if entries == 4:
            widths = np.diff(q * np.arange(5) // 4)
            share = np.repeat(1 / widths, widths)
        assert (
            np.abs(np.bincount(omega.indices, minlength=q) - d * share) <= 6 * np.sqrt(d * share * (1 - share))
        ).all()
        assert abs(np.sign(omega.data).sum()) <= 6 * np.sqrt(d * entries)


def test_sparse_signs_are_in_uniform_subsets() -> None:
    """Each of the 10 pairs of 5 columns is as frequent as the others, to 6 standard deviations."""
    omega = SparseSign(20_000, 5, 2, seed=1).sparse()
    pairs = omega.indices.reshape(-1, 2)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    counts = np.bincount(pairs[:, 0] * 5 + pairs[:, 1])
    assert np.count_nonzero(counts) == 10
    assert (np.abs(counts[counts > 0] - 2000) <= 6 * np.sqrt(2000 * 0.9)).all()


def test_named_features_may_be_permuted() -> None:
    names = [f"sensor {j}" for j in range(200)]
    rows = np.random.default_rng(0).integers(-9, 9, (7, 200))
    order = np.random.default_rng(1).permutation(200)
    # Four hashes have entries of 1/2, so sums of integers are exact in any order.
    straight = CountSketch(200, 24, 4, names=names)
    permuted = CountSketch(200, 24, 4, names=[names[j] for j in order])
    np.testing.assert_array_equal(straight.transform(rows), permuted.transform(rows[:, order]))
    assert straight.key != permuted.key


def test_keys_tell_matrices_apart() -> None:
    different: list[Transform] = [make(60, 16, 0) for make in EVERY.values()]
    different += [
        make(d, q, seed) for make in RANDOM.values() for d, q, seed in ((61, 16, 0), (60, 17, 0), (60, 16, 1))
    ]
    different += [
        Grouping(60, 15),
        Grouping(61, 16),
        Grouping.of_pictures((4, 15), 2),
        Grouping.of_pictures((2, 30), 2),
        Grouping(60, 16, membership=tuple(np.arange(60) % 16)),
        Grouping(60, 16, membership=tuple(np.arange(60) * 7 % 16)),
    ]
    keys = [transform.key for transform in different]
    assert len(set(keys)) == len(keys)
    again = [make(60, 16, 0).key for make in EVERY.values()]
    assert again == keys[: len(again)]
    assert GaussianProjection(np.int64(60), np.int32(16), np.uint8(0)).key == GaussianProjection(60, 16, 0).key
    assert Grouping.of_pictures(np.array([4, 15]), np.int64(2)).key == Grouping.of_pictures((4, 15), 2).key


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(
    "transform",
    [
        GaussianProjection(1_000_000, 64),
        SparseSign(5_000_000, 64),
        CountSketch(5_000_000, 64),
        Grouping(5_000_000, 64),
        Grouping.of_pictures((2000, 2500), 250),
    ],
    ids=["gaussian", "sign", "count", "runs", "pictures"],
)
def test_a_matrix_that_is_large_is_never_formed(transform: Transform) -> None:
    """Formed, the Gaussian would take 512 MB and the others 2.6 GB."""
    rows = np.ones((3, transform.n_features), dtype=np.float32)
    tracemalloc.start()
    try:
        found = transform.transform(rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.isfinite(found).all()
    assert peak < 64 * 2**20


@pytest.mark.parametrize(("d", "q"), [(1, 1), (10, 10), (10, 3), (64, 7), (65, 64)])
def test_runs_are_adjacent_and_orthonormal(d: int, q: int) -> None:
    grouping = Grouping(d, q)
    parts = np.array_split(np.arange(d), q)
    np.testing.assert_array_equal(grouping.group_sizes(), [len(part) for part in parts])
    np.testing.assert_array_equal(grouping.groups(), np.repeat(np.arange(q), [len(part) for part in parts]))
    omega = grouping.matrix()
    np.testing.assert_allclose(omega.T @ omega, np.eye(q), atol=tolerances.orthonormality(d))


@pytest.mark.parametrize(
    ("shape", "factor"), [((6, 8), 2), ((7, 5), 2), ((6, 9, 3), 3), ((5, 7, 3), 4), ((3, 3), 1), ((2, 3), 9)]
)
def test_pictures_are_grouped_by_blocks_of_each_channel(shape: tuple[int, ...], factor: int) -> None:
    grouping = Grouping.of_pictures(shape, factor)
    rows = np.random.default_rng(0).standard_normal((4, grouping.n_features))
    pictures = rows.reshape(4, *shape[:2], -1)
    expected = [
        pictures[:, i : i + factor, j : j + factor, channel].reshape(4, -1)
        for i in range(0, shape[0], factor)
        for j in range(0, shape[1], factor)
        for channel in range(pictures.shape[3])
    ]
    np.testing.assert_array_equal(grouping.group_sizes(), [block.shape[1] for block in expected])
    means = np.stack([block.mean(axis=1) * np.sqrt(block.shape[1]) for block in expected], axis=1)
    np.testing.assert_allclose(grouping.transform(rows), means, atol=1e-13)
    np.testing.assert_allclose(rows @ grouping.matrix(), means, atol=1e-13)


@pytest.mark.parametrize(
    "grouping",
    [
        Grouping(10, 3),
        Grouping.of_pictures((5, 7, 3), 4),
        Grouping(6, 3, membership=(2, 0, 1, 0, 2, 2)),
        Grouping.by_correlation(np.diag([1.0, 2, 3]) + 5, 2),
    ],
    ids=["runs", "pictures", "sets", "correlation"],
)
def test_groups_come_back_as_the_means_of_their_features(grouping: Grouping) -> None:
    rows = np.random.default_rng(0).standard_normal((4, grouping.n_features))
    omega, groups = grouping.matrix(), grouping.groups()
    np.testing.assert_allclose(omega.T @ omega, np.eye(grouping.size), atol=tolerances.orthonormality(len(omega)))
    np.testing.assert_array_equal(np.bincount(groups), grouping.group_sizes())
    small = grouping.transform(rows)
    np.testing.assert_allclose(small, rows @ omega, atol=1e-13)
    means = np.stack([rows[:, groups == group].mean(axis=1) for group in groups], axis=1)
    np.testing.assert_allclose(grouping.inverse_transform(small), means, atol=1e-13)
    assert grouping.inverse_transform(small.astype(np.float32)).dtype == np.float32


def test_hashes_are_those_of_xxhash() -> None:
    values = np.concatenate([np.arange(500), np.random.default_rng(0).integers(0, 2**64, 500, dtype=np.uint64)]).astype(
        np.uint64
    )
    before = values.copy()
    function = xxhash.xxh64_intdigest(b"-3/purpose/2")
    expected = [xxhash.xxh64_intdigest(int(value).to_bytes(8, "little"), seed=function) for value in values]
    assert hashes(values, -3, "purpose", 2).tolist() == expected
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianProjection(0, 3), "n_features=0"),
        (lambda: GaussianProjection(3, 0), "size=0"),
        (lambda: GaussianProjection(3, 2.5), "whole number"),
        (lambda: GaussianProjection(3, 2, seed="x"), "seed='x'"),
        (lambda: CountSketch(9, 3), "n_hashes=4"),
        (lambda: CountSketch(9, 4, 0), "n_hashes=0"),
        (lambda: CountSketch(3, 4, names=["a", "b"]), "2 names for 3 features"),
        (lambda: CountSketch(3, 4, names=["a", "b", "a"]), "'a' stands for two"),
        (lambda: CountSketch(3, 4, names=["a", "b", 1]), "not a string"),
        (lambda: CountSketch(3, 4, names="abc"), "not one string"),
        (lambda: SparseSign(9, 7), "n_nonzeros=8"),
        (lambda: Grouping(3, 4), "at most as many groups"),
        (lambda: Grouping(16, 4, picture=(4, 4)), "belong together"),
        (lambda: Grouping(16, 5, picture=(4, 4), factor=2), "expected 16 and 4"),
        (lambda: Grouping(3, 2, membership=(0, 1)), "for each of 3"),
        (lambda: Grouping(3, 2, membership=(0, 2, 0)), "from 0 to 1"),
        (lambda: Grouping.by_correlation(np.ones((2, 3)), 2), "square"),
        (lambda: Grouping.by_correlation(np.eye(2), 0), "size=0"),
        (lambda: Grouping(9, 3).inverse_transform(np.ones((2, 9))), "expected \\(n_rows, 3\\)"),
        (lambda: Grouping.of_pictures((4,), 2), "expected \\(h, w\\)"),
        (lambda: Grouping.of_pictures((4, 4), 0), "factor=0"),
        (lambda: GaussianProjection(9, 3).matrix(2, 10), "stop <= 9"),
        (lambda: SparseSign(9, 9).sparse(3, 2), "start <= stop"),
        (lambda: Grouping(9, 9).groups(-1, 2), "0 <= start"),
        (lambda: GaussianProjection(9, 3).transform(np.ones((2, 8))), "expected \\(n_rows, 9\\)"),
        (lambda: CountSketch(9, 4).transform(sparse.csr_array((2, 8))), "expected \\(n_rows, 9\\)"),
        (lambda: Grouping(9, 3).transform(np.ones(9)), "expected \\(n_rows, 9\\)"),
        (lambda: SparseSign(9, 9).transform(np.ones((2, 9)) * 1j), "real numbers"),
    ],
)
def test_what_cannot_be_done_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make()
