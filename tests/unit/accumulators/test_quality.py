"""Sums of data quality against numpy, for every division into blocks, by rows and by features."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from facade import Block, examining, fold
from facade import folded as folded_blocks
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array

from streampca.accumulators.quality import Quality

N, D = 3000, 9
Rows = NDArray[Any]


def rows_of(dtype: str = "f8", *, holes: bool = False) -> Rows:
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((N, D)) * 20 + 60).clip(0, 200).astype(dtype)
    rows[2000:2100] = rows[500:600]
    if holes:
        rows[rng.random(rows.shape) < 0.02] = np.nan
        rows[1500:1800, 2] = np.nan
    return rows


def quality_of(rows: Rows, *, missing: bool = False) -> Quality:
    return Quality.of(rows.shape, str(rows.dtype), missing=missing)


def folded(quality: Quality, rows: Any, size: int) -> Any:
    return fold(quality, rows, size)


def assert_same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.parts, other.parts)
    np.testing.assert_array_equal(one.counts, other.counts)
    np.testing.assert_allclose(one.means, other.means, rtol=1e-12)
    np.testing.assert_allclose(one.scatter, other.scatter, rtol=1e-10, atol=1e-9)
    for name in ("missing", "missing_by_part", "unwritten", "n_compared"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_sums_of_float32_with_missing_values_are_in_float64(scale: float) -> None:
    rows = (rows_of("f4", holes=True) * np.float32(scale)).astype("f4")
    quality = quality_of(rows, missing=True)
    state = folded(quality, rows, 300)
    start, stop = quality.edges[:2]
    here = rows[start : stop : quality.every].astype(np.float64)
    n = state.counts[0]
    # Each of n additions rounds by one part in 2**53 of the sum of squares of the values.
    atol = float(np.nansum(here * here, axis=0).max() * n.max() * 2.0**-53)
    np.testing.assert_allclose(state.scatter[0], np.nanvar(here, axis=0) * n, rtol=0, atol=atol)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("size", [N, 300, 77])
def test_sums_by_part_are_those_of_the_evenly_spaced_rows(size: int, holes: bool) -> None:
    rows = rows_of(holes=holes)
    quality = quality_of(rows, missing=holes)
    state = folded(quality, rows, size)
    assert quality.n_parts > 8
    for part, (start, stop) in enumerate(zip(quality.edges[:-1], quality.edges[1:], strict=True)):
        here = rows[[row for row in range(start, stop) if row % quality.every == 0]]
        np.testing.assert_array_equal(state.counts[part], (~np.isnan(here)).sum(axis=0))
        means = np.nanmean(here, axis=0) if state.counts[part].all() else np.nan_to_num(here[0] * 0 + state.means[part])
        present = state.counts[part] > 0
        np.testing.assert_allclose(state.means[part][present], means[present], rtol=1e-12)
        if present.all():
            np.testing.assert_allclose(state.scatter[part], np.nansum((here - means) ** 2, axis=0), rtol=1e-10)
    if holes:
        np.testing.assert_array_equal(state.missing, np.isnan(rows).sum(axis=0))
        in_parts = np.add.reduceat(np.isnan(rows).sum(axis=1), quality.edges[:-1])
        np.testing.assert_array_equal(state.missing_by_part, in_parts)


@pytest.mark.parametrize("dtype", ["f4", "u1", "i8", "?"])
def test_every_type_of_numbers_and_sparse_rows_give_the_same_sums(dtype: str) -> None:
    rows = rows_of("u1") > 60 if dtype == "?" else rows_of(dtype)
    quality = quality_of(rows)
    expected = folded(quality_of(rows.astype("f8")), rows.astype("f8"), 300)
    assert_same(folded(quality, rows, 300), expected)
    if dtype != "?":
        assert_same(folded(quality, csr_array(rows), 300), expected)


def test_states_merged_in_any_order_have_the_sums_of_one_reading() -> None:
    rows = rows_of(holes=True)
    quality = quality_of(rows, missing=True)
    expected = folded(quality, rows, N)
    states = [
        folded_blocks(quality, [Block(rows[start : start + 500], start)], D)
        for start in (1000, 0, 2500, 500, 2000, 1500)
    ]
    merged = quality.merge(states)
    assert_same(merged, expected)


def test_blocks_of_features_give_the_sums_of_blocks_of_rows() -> None:
    rows = rows_of(holes=True)
    by_rows = quality_of(rows, missing=True)
    by_features = Quality(**{**vars(by_rows), "by_features": True})
    blocks = [Block(rows.T[start : start + 3], start) for start in range(0, D, 3)]
    state = by_features.merge([folded_blocks(by_features, [block], N) for block in blocks])
    expected = folded(by_rows, rows, N)
    assert_same(state, expected)


@pytest.mark.parametrize("name", [name for name in examining(np.ones((20, 2))) if name != "Quality"])
def test_statistics_follow_from_the_rows_whatever_the_blocks(name: str) -> None:
    rows = np.where(rows_of() > 70, rows_of(holes=True), 0.0)
    statistic = examining(rows)[name]
    expected = statistic.finalize(fold(statistic, rows, N))
    turned = replace(statistic, examined=replace(statistic.examined, by_features=True))
    bands = [turned.update(turned.init(N), Block(rows.T[start : start + 4], start)) for start in range(0, D, 4)]
    empty = statistic.init(D)
    for state in (
        fold(statistic, rows, 77),
        statistic.merge([empty, fold(statistic, rows, 400), empty]),
        turned.merge(bands),
    ):
        np.testing.assert_allclose(statistic.finalize(state), expected, rtol=1e-12)


def test_runs_of_equal_rows_are_counted_and_added_without_being_multiplied() -> None:
    rows = rows_of()
    rows[600:1200] = rows[600]
    quality = quality_of(rows)
    row = np.broadcast_to(rows[600], (600, D))
    blocks = [Block(rows[:600], 0), Block(row, 600, equal=((0, 600),)), Block(rows[1200:], 1200)]
    state = folded_blocks(quality, blocks, D)
    assert_same(Quality.absorb(quality, quality.init(D), state), state)
    expected = folded(quality, rows, 300)
    np.testing.assert_allclose(state.means, expected.means, rtol=1e-12)
    np.testing.assert_allclose(state.scatter, expected.scatter, rtol=1e-10, atol=1e-9)
    assert state.unwritten.sum() == 600


@pytest.mark.parametrize("shape", [(200, 500_000), (100_000_000, 20), (1, 1), (7, 3), (70_000, 784), (5_000, 40_000)])
def test_states_of_tables_of_any_shape_are_bounded(shape: tuple[int, int]) -> None:
    quality = Quality.of(shape, "float32", missing=True)
    assert quality.state_bytes(shape[1]) <= 24 * (2**16 + 2**16) + 8 * shape[1] + 16 * 64
    assert 1 <= quality.n_parts <= 64
    assert quality.edges[-1] == shape[0]


@pytest.mark.parametrize("size", [3000, 333, 7])
def test_rows_that_are_compared_with_the_most_common_value_do_not_depend_on_blocks(size: int) -> None:
    rows = rows_of()
    rows[:, 1] = np.arange(len(rows)) % 50 == 7
    quality = quality_of(rows)
    state, compared = folded(quality, rows, size), rows[:: quality.every * quality.every_compared]
    assert (state.n_compared == len(compared)).all()
    assert state.n_common[1] == np.count_nonzero(compared[:, 1] == 0)


def test_of_few_rows_all_are_compared_with_the_most_common_value() -> None:
    rows = rows_of()[:2]
    state = folded(quality_of(rows), rows, 2)
    assert (state.n_compared == 2).all()
    assert (state.n_common == 1).all()


def test_examining_wide_sparse_rows_takes_the_planned_memory_and_leaves_them_as_they_are() -> None:
    rows = random_array(
        (40, 200_000), density=1e-4, format="csr", dtype=np.float32, random_state=np.random.default_rng(0)
    )
    rows.indices[: rows.indptr[1]] = rows.indices[: rows.indptr[1]][::-1].copy()
    before = rows.indices.copy()
    quality = Quality.of(rows.shape, "float32", missing=False)
    state = quality.init(200_000)
    tracemalloc.start()
    quality.update(state, Block(rows, 0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < quality.scratch_bytes(200_000, 40, 4) + quality.state_bytes(200_000)
    np.testing.assert_array_equal(rows.indices, before)


@pytest.mark.parametrize(("shape", "dtype"), [((600, 60_000), "f4"), ((20_000, 50), "f8"), ((3000, 784), "u1")])
def test_examining_dense_rows_takes_the_planned_memory(shape: tuple[int, int], dtype: str) -> None:
    rows = (np.random.default_rng(0).random(shape, dtype=np.float32) * 200).astype(dtype)
    if missing := dtype[0] == "f":
        rows[::7, 1] = np.nan
    quality = Quality.of(shape, dtype, missing=missing)
    state = quality.init(shape[1])
    tracemalloc.start()
    quality.update(state, Block(rows, 0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < quality.scratch_bytes(shape[1], shape[0], rows.itemsize) + quality.state_bytes(shape[1])
