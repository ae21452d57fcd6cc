"""The incremental low-rank accumulator: what it keeps, what it loses and says so, and the corners of its input."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tolerances
from facade import Block
from numpy.typing import NDArray

from streampca.accumulators import IncrementalBasis, IncrementalSVD, rescaled
from streampca.errors import MergeError, NotFiniteError, ParameterError
from streampca.metrics import principal_angles, relative_difference, similarity

pytestmark = pytest.mark.numerical

Rows = NDArray[Any]


def decaying(n: int, d: int, power: float, seed: int = 0, mean: float = 3.0) -> NDArray[np.float64]:
    """Return rows whose covariance has eigenvalues i^power in a random basis."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (rng.standard_normal((n, d)) * np.arange(1, d + 1) ** (power / 2)) @ basis + mean


def drifting(n: int, d: int, power: float, n_segments: int, seed: int = 0) -> NDArray[np.float64]:
    """Return rows whose variance along each axis changes from segment to segment by a log-normal factor."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    variances = np.exp(rng.standard_normal((n_segments, d))) * np.arange(1, d + 1) ** power
    return (rng.standard_normal((n, d)) * np.sqrt(variances)[np.arange(n) * n_segments // n]) @ basis.T


def folded(accumulator: IncrementalSVD, rows: Rows, *, block: int = 37, weights: Any = None, order: Any = None) -> Any:
    """Return the state of `rows`, handed over in blocks of `block` rows, in `order`."""
    state = accumulator.init(rows.shape[1])
    n_blocks = -(-len(rows) // block)
    for i in range(n_blocks) if order is None else order:
        part = slice(i * block, (i + 1) * block)
        own = rows[part].copy()
        own.flags.writeable = False
        state = accumulator.update(state, Block(own, i * block, None if weights is None else weights[part]))
    return state


def adapted(accumulator: IncrementalSVD, rows: Rows, **how: Any) -> IncrementalBasis:
    return accumulator.finalize(folded(accumulator, rows, **how))


def scatter(rows: Rows, *, weights: Any = None, center: bool = True, metric: Any = None) -> NDArray[np.float64]:
    values = rows.astype(np.float64)
    weights = np.ones(len(rows)) if weights is None else weights
    if center:
        values = values - values[0]  # differences first, for rows far from zero
        values = values - weights @ values / weights.sum()
    values = values if metric is None else values * metric
    return np.asarray(values.T @ (values * weights[:, None]))


def matrix(found: IncrementalBasis) -> NDArray[np.float64]:
    return np.asarray(found.vectors * found.values @ found.vectors.T)


def assert_certified(found: IncrementalBasis, exact: NDArray[np.float64], rounding: float) -> None:
    """Assert 0 ⪯ C − SᵀS ⪯ discarded, both up to `rounding` relative to the first eigenvalue."""
    gaps, slack = np.linalg.eigvalsh(exact - matrix(found)), rounding * np.linalg.norm(exact, 2)
    assert gaps[0] >= -slack
    assert gaps[-1] <= found.discarded + slack
    d = len(exact)
    assert np.abs(found.vectors.T @ found.vectors - np.eye(len(found.values))).max() <= tolerances.orthonormality(d)
    assert (np.diff(found.values) <= 0).all()


CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"center": False},
    {"shrink": True},
    {"metric": np.linspace(0.5, 2.0, 60)},
    {"n_threads": 2},
]


@pytest.mark.parametrize("keys", CONFIGURATIONS, ids=lambda keys: next(iter(keys), "plain"))
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8", "int16", ">f4"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("rank", [12, 60])
def test_what_is_kept_is_within_its_certificate(keys: dict[str, Any], dtype: str, weighted: bool, rank: int) -> None:
    rows = (decaying(300, 60, -1.0) * 20 + 60).astype(dtype)
    weights = np.random.default_rng(1).integers(0, 4, len(rows)).astype(float) if weighted else None
    found = adapted(IncrementalSVD(rank, 90, **keys), rows, weights=weights)
    exact = scatter(rows, weights=weights, center=keys.get("center", True), metric=keys.get("metric"))
    assert_certified(found, exact, tolerances.eigenvalues(dtype))
    counted = np.ones(len(rows)) if weights is None else weights
    assert (found.n_samples, found.weight) == (np.count_nonzero(counted), counted.sum())
    mean = counted @ rows.astype(np.float64) / counted.sum()
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6)
    if rank == 60:
        np.testing.assert_allclose(matrix(found), exact, atol=tolerances.eigenvalues(dtype) * np.linalg.norm(exact, 2))
        assert found.discarded <= tolerances.eigenvalues(dtype) * np.linalg.norm(exact, 2)


def test_weights_are_repetitions() -> None:
    rows = decaying(200, 30, -1.0)
    counts = np.random.default_rng(2).integers(0, 4, len(rows))
    one = adapted(IncrementalSVD(30, 50), rows, weights=counts.astype(float))
    other = adapted(IncrementalSVD(30, 50), rows.repeat(counts, axis=0))
    np.testing.assert_allclose(matrix(one), matrix(other), atol=1e-12 * one.values[0])
    scaled = adapted(IncrementalSVD(30, 50), rows.astype(np.float32), weights=counts * 1e9)
    np.testing.assert_allclose(scaled.values, one.values * 1e9, rtol=1e-6, atol=1e-6 * scaled.values[0])


def test_some_blocks_have_weights() -> None:
    rows, accumulator = decaying(60, 8, -1.0), IncrementalSVD(8, 25)
    state = accumulator.update(accumulator.init(8), rows[:10])
    state = accumulator.update(state, Block(rows[10:40], 10, np.full(30, 2.0)))
    state = accumulator.update(state, rows[40:])
    weights = np.r_[np.ones(10), np.full(30, 2.0), np.ones(20)]
    found = accumulator.finalize(state)
    assert found.weight == weights.sum()
    np.testing.assert_allclose(matrix(found), scatter(rows, weights=weights), atol=1e-12 * found.values[0])


# Measured on such data with the first ten axes: similarity .9997 and difference 2e-3 for i^-0.5, 1.0000 and 2e-4 for i^-1; of
# 600 features, in batches of rows that are truncated by an iteration, .9995 and 5e-3, and 1.0000 and 2e-4.
@pytest.mark.deep(keep=2)
@pytest.mark.parametrize(
    ("d", "power", "alike", "apart"),
    [(250, -0.5, 0.999, 5e-3), (250, -1.0, 0.9999, 5e-4), (600, -0.5, 0.999, 1e-2), (600, -1.0, 0.9999, 5e-4)],
)
def test_leading_axes_of_exchangeable_rows(d: int, power: float, alike: float, apart: float) -> None:
    rows = decaying(8000, d, power).astype(np.float32)
    found, expected = adapted(IncrementalSVD(40, 2000), rows, block=500), np.linalg.eigh(scatter(rows))
    values, vectors = expected[0][::-1], expected[1][:, ::-1]
    assert similarity(vectors[:, :10].T, found.vectors[:, :10].T) >= alike
    assert relative_difference(values[:10], found.values[:10]) <= apart
    assert_certified(found, scatter(rows), tolerances.EIGENVALUES_FLOAT32)


@pytest.mark.parametrize("power", [-0.5, -1.0])
def test_shuffled_blocks_of_a_drifting_file_lose_little(power: float) -> None:
    """In the order of the file early segments decide what is kept; batches from all over the file do not forget."""
    rows = drifting(20_000, 200, power, 10, seed=3).astype(np.float32)
    order = np.random.default_rng(4).permutation(40)
    accumulator = IncrementalSVD(40, 4000)
    shuffled = adapted(accumulator, rows, block=500, order=order)
    exact = scatter(rows)
    values, vectors = np.linalg.eigh(exact)
    reference = values[::-1][:10]
    assert similarity(vectors[:, ::-1][:, :10].T, shuffled.vectors[:, :10].T) >= 0.99
    assert relative_difference(reference, shuffled.values[:10]) <= 5e-3
    assert_certified(shuffled, exact, tolerances.EIGENVALUES_FLOAT32)
    one_by_one = adapted(IncrementalSVD(40, 500), rows, block=500)
    assert relative_difference(reference, shuffled.values[:10]) < relative_difference(reference, one_by_one.values[:10])


def test_a_tree_of_leaves_is_within_its_certificate() -> None:
    rows, accumulator = decaying(8000, 120, -0.5), IncrementalSVD(30, 1000)
    states = [accumulator.flush(folded(accumulator, part, block=250)) for part in np.split(rows, 8)]
    while len(states) > 1:
        states = [accumulator.merge(states[i : i + 2]) for i in range(0, len(states), 2)]
    found, exact = accumulator.finalize(states[0]), scatter(rows)
    assert_certified(found, exact, tolerances.EIGENVALUES_FLOAT64)
    values, vectors = np.linalg.eigh(exact)
    assert similarity(vectors[:, ::-1][:, :5].T, found.vectors[:, :5].T) >= 0.999
    assert relative_difference(values[::-1][:5], found.values[:5]) <= 3e-2


@pytest.mark.parametrize("shrink", [False, True])
def test_low_rank_rows_are_kept_exactly(shrink: bool) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((900, 9)) @ rng.standard_normal((9, 400)) + 7
    for accumulator in (IncrementalSVD(10, 100, shrink=shrink), IncrementalSVD(12, 450, shrink=shrink)):
        parts = [folded(accumulator, part) for part in np.array_split(rows, 5)]
        for found in (adapted(accumulator, rows), accumulator.finalize(accumulator.merge(parts))):
            assert len(found.values) >= 9
            gap = matrix(found) - scatter(rows)
            assert np.linalg.norm(gap, 2) <= tolerances.EIGENVALUES_FLOAT64 * found.values[0]
            assert found.discarded <= tolerances.EIGENVALUES_FLOAT64 * found.values[0]


def test_frequent_directions_keep_their_guarantee() -> None:
    """‖C − BᵀB‖₂ ≤ ‖A − A_k‖²_F / (l + 1 − k) for every k ≤ l, whatever the rows and their order."""
    rows = drifting(2000, 80, -0.5, 5)[np.argsort(drifting(2000, 80, -0.5, 5)[:, 0])]
    found, exact = adapted(IncrementalSVD(20, 100, shrink=True), rows), scatter(rows)
    values = np.linalg.eigvalsh(exact)[::-1]
    error = np.linalg.norm(exact - matrix(found), 2)
    assert error <= found.discarded * (1 + 1e-10)
    assert all(found.discarded <= values[k:].sum() / (21 - k) * (1 + 1e-10) for k in range(20))


def test_two_threads_give_the_same_bits() -> None:
    for n, d, rank, batch in ((700, 1300, 10, 300), (900, 200, 20, 450), (60, 900, 20, 30)):
        rows = decaying(n, d, -1.0).astype(np.float32)
        weights = np.random.default_rng(6).random(n)
        one, two = (adapted(IncrementalSVD(rank, batch, n_threads=t), rows, weights=weights) for t in (1, 2))
        assert one.values.tobytes() == two.values.tobytes()
        assert one.vectors.tobytes() == two.vectors.tobytes()
        assert one.discarded == two.discarded


def test_a_direction_that_few_rows_have_is_found() -> None:
    rows = decaying(3000, 900, -1.0).astype(np.float32)
    burst = np.random.default_rng(7).standard_normal(900)
    rows[2500:2530] += (40 * burst / np.linalg.norm(burst)).astype(np.float32)
    found = adapted(IncrementalSVD(20, 1000), rows, block=500)
    first = np.linalg.eigh(scatter(rows))[1][:, -1]
    assert principal_angles(first[None], found.vectors[:, :1].T)[0] <= 1e-3


@pytest.mark.parametrize("n", [1, 2, 5])
def test_fewer_rows_than_the_rank(n: int) -> None:
    rows = decaying(n, 40, -1.0)
    found = adapted(IncrementalSVD(8, 3), rows, block=1)
    assert found.n_samples == n
    assert len(found.values) == n - 1
    np.testing.assert_allclose(matrix(found), scatter(rows), atol=1e-12)
    assert len(adapted(IncrementalSVD(8, 3, center=False), rows).values) == n
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-12)


def test_no_rows_and_constant_rows() -> None:
    accumulator = IncrementalSVD(4, 10)
    empty = accumulator.finalize(accumulator.update(accumulator.init(3), np.empty((0, 3))))
    assert (empty.n_samples, len(empty.values), empty.vectors.shape) == (0, 0, (3, 0))
    constant = adapted(accumulator, np.full((35, 3), 0.1))
    assert (constant.n_samples, len(constant.values), constant.discarded) == (35, 0, 0.0)
    np.testing.assert_array_equal(constant.mean, 0.1)
    only_zero_weights = adapted(accumulator, np.ones((5, 3)), weights=np.zeros(5))
    assert only_zero_weights.n_samples == 0


def test_constant_rows_of_many_features() -> None:
    found = adapted(IncrementalSVD(4, 200), np.full((400, 520), 0.1, dtype=np.float32))
    assert (len(found.values), found.discarded) == (0, 0.0)
    rows = np.zeros((600, 520), dtype=np.float32)
    rows[:, 3] = np.tile([1.0, -1.0], 300)
    found = adapted(IncrementalSVD(4, 200), rows)
    np.testing.assert_allclose(found.values, [600.0], rtol=1e-6)


def test_a_mean_a_million_deviations_away() -> None:
    rows = decaying(500, 20, -1.0, mean=1e6)
    found, exact = adapted(IncrementalSVD(20, 100), rows), scatter(rows)
    np.testing.assert_allclose(matrix(found), exact, atol=1e-10 * np.linalg.norm(exact, 2))
    short = rows.astype(np.float32)
    found, exact = adapted(IncrementalSVD(20, 100), short), scatter(short)
    np.testing.assert_allclose(matrix(found), exact, atol=1e-6 * np.linalg.norm(exact, 2))


@pytest.mark.parametrize("size", [1e20, 3e37, 1e-25, 1e-38])
@pytest.mark.parametrize("batch", [1, 40])
def test_float32_whose_squares_are_no_float32(size: float, batch: int) -> None:
    rows = (decaying(90, 6, -1.0, mean=0.0) * size).astype(np.float32)
    found = adapted(IncrementalSVD(6, batch), rows, block=7)
    exact = scatter(rows.astype(np.float64) / size)
    atol = tolerances.EIGENVALUES_FLOAT32 * np.linalg.norm(exact, 2)
    np.testing.assert_allclose(matrix(found) / size**2, exact, atol=atol)
    mixed = np.concatenate([decaying(50, 6, -1.0, mean=0.0).astype(np.float32), rows])
    found, exact = adapted(IncrementalSVD(6, batch), mixed, block=7), scatter(mixed.astype(np.float64))
    assert np.linalg.norm(matrix(found) - exact, 2) <= 1e-6 * np.linalg.norm(exact, 2)


def test_states_of_several_types_merge() -> None:
    rows, accumulator = np.rint(decaying(120, 9, -1.0) * 30 + 100), IncrementalSVD(9, 25)
    parts = [
        folded(accumulator, rows[i : i + 30].astype(t))
        for i, t in zip((0, 30, 60, 90), ("u1", "f8", "f4", "i8"), strict=True)
    ]
    for states in (parts, parts[::-1]):
        found = accumulator.finalize(accumulator.merge(states))
        assert np.linalg.norm(matrix(found) - scatter(rows), 2) <= 1e-6 * found.values[0]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("row", [0, 399, 899])
def test_what_is_not_finite_is_named(dtype: str, value: float, name: str, row: int) -> None:
    rows = np.random.default_rng(8).standard_normal((900, 4)).astype(dtype)
    rows[row, 2] = value
    accumulator = IncrementalSVD(3, 300)
    with pytest.raises(NotFiniteError, match=rf"{name}: first at row {1000 + row}, column 2 \(1 such value"):
        accumulator.update(accumulator.init(4), Block(rows, 1000))


def test_float64_that_overflows_is_named() -> None:
    rows = np.ones((10, 3))
    rows[:, 1] = np.linspace(-1e200, 1e200, 10)
    for center in (True, False):
        accumulator = IncrementalSVD(3, 10, center=center)
        with pytest.raises(NotFiniteError, match="column 1 overflows float64 when squared"):
            accumulator.update(accumulator.init(3), rows)


def test_states_of_other_shapes_are_not_merged() -> None:
    with pytest.raises(MergeError, match="states of 3 and 4 features"):
        IncrementalSVD(5, 10).merge([IncrementalSVD(5, 10).init(3), IncrementalSVD(5, 10).init(4)])
    with pytest.raises(MergeError, match="2 and 3 rows in the basis"):
        IncrementalSVD(2, 10).absorb(IncrementalSVD(2, 10).init(8), IncrementalSVD(3, 10).init(8))


@pytest.mark.parametrize("metric", [np.ones(3), np.zeros(4), np.array([1.0, 1.0, np.nan, 1.0]), np.ones((4, 1))])
def test_a_metric_for_other_features_is_refused(metric: Any) -> None:
    with pytest.raises(ParameterError, match="expected 4 positive factors"):
        IncrementalSVD(2, 10, metric=metric).init(4)


def test_a_metric_undone_gives_the_scatter_and_z_scores() -> None:
    """With nothing discarded the metric is only a change of units; features of very different size keep their digits."""
    rows = decaying(400, 12, -1.0) * 10.0 ** np.linspace(-6, 6, 12)
    deviation, guess = rows.std(axis=0), rows[:20].std(axis=0)
    found = adapted(IncrementalSVD(12, 100, metric=1 / guess), rows.astype(np.float32))
    plain = rescaled(found, guess)
    exact = scatter(rows.astype(np.float32))
    assert np.linalg.norm(matrix(plain) - exact, 2) <= tolerances.EIGENVALUES_FLOAT32 * np.linalg.norm(exact, 2)
    np.testing.assert_allclose(matrix(rescaled(found, guess / deviation)) / 400, np.corrcoef(rows.T), atol=2e-6)


def test_rescaled_stays_within_its_certificate() -> None:
    rows, factors = decaying(600, 50, -1.0), np.linspace(0.0, 3.0, 50)
    found = rescaled(adapted(IncrementalSVD(8, 200), rows), factors)
    assert_certified(found, scatter(rows, metric=factors), tolerances.EIGENVALUES_FLOAT64)


def test_flush_makes_a_state_small_and_keeps_its_result() -> None:
    rows, accumulator = decaying(130, 40, -1.0), IncrementalSVD(6, 100)
    before = adapted(accumulator, rows)
    state = accumulator.flush(folded(accumulator, rows))
    assert (state.n_pending, state.pending.nbytes, state.n_in_basis) == (0, 0, 130)
    after = accumulator.finalize(state)
    assert after.values.tobytes() == before.values.tobytes()
    assert after.discarded == before.discarded
    again = accumulator.finalize(accumulator.update(state, rows))
    assert again.n_samples == 260


@pytest.mark.parametrize(
    ("rank", "batch", "d", "dtype"),
    [
        (20, 1000, 2000, "float32"),
        (20, 1000, 2000, "float64"),
        (40, 150, 4000, "float32"),
        (30, 1500, 300, "float64"),
        (100, 30, 500, "float32"),
    ],
)
@pytest.mark.parametrize("shrink", [False, True])
def test_memory_is_as_the_plan_is_told(rank: int, batch: int, d: int, dtype: str, shrink: bool) -> None:
    accumulator = IncrementalSVD(rank, batch, shrink=shrink)
    rows = np.random.default_rng(9).standard_normal((batch // 2, d)).astype(dtype)
    held, scratch = accumulator.state_bytes(d, rows.itemsize), accumulator.scratch_bytes(d, len(rows), rows.itemsize)
    accumulator.update(accumulator.init(d), rows[:2])  # what is imported on first use is no scratch memory

    def measured() -> tuple[int, int, int]:
        """Return the bytes that updates, a merge and the end take in all."""
        state = accumulator.init(d)
        for _ in range(5):
            state = accumulator.update(state, rows)
        updating = tracemalloc.get_traced_memory()[1]
        state = accumulator.flush(state)
        other = replace(state, basis=state.basis.copy())
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        accumulator.absorb(state, other)
        merging = tracemalloc.get_traced_memory()[1] - before
        accumulator.finalize(accumulator.update(state, rows))
        return updating, merging, tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        with ThreadPoolExecutor(1) as thread:  # scratch memory belongs to a thread, and this one has none yet
            updating, merging, ending = thread.submit(measured).result()
    finally:
        tracemalloc.stop()
    small = 2**18
    # The bound covers partial batches of every size, and float32 rows that must be taken in float64.
    assert held + scratch * 0.2 <= updating <= held + scratch + small
    assert merging <= accumulator.merge_bytes(d) + small
    assert ending <= held + scratch + accumulator.finalize_bytes(d, rows.itemsize) + small
