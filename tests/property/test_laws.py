"""The laws that every accumulator keeps; a new accumulator adds a row to LAWS and inherits them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import tolerances
from draws import draws
from facade import folded, on_device
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_sums import kernel_sums
from kinds import kinds_of_rows
from numpy.typing import NDArray
from strategies import Chunked, chunked, examples

from streampca.accumulators import (
    Accumulator,
    ByGroup,
    Covariance,
    DeviceCovariance,
    IncrementalSVD,
    Joint,
    Moments,
    QRFactor,
    RowSample,
    RowTotals,
    Sketch,
)
from streampca.accumulators.wrappers import InPieces

pytestmark = pytest.mark.numerical

AnyAccumulator = Accumulator[Any, Any]
EXAMPLES = examples(30)
DEVICE = "array_api_strict:device1"
"""A device whose arrays do not mix with those of numpy."""


@dataclass(frozen=True)
class Law:
    """A row of the table."""

    name: str
    make: Callable[[NDArray[Any]], AnyAccumulator]
    """The accumulator for these rows."""
    require_same: Callable[[AnyAccumulator, Any, Any, NDArray[Any]], None]
    """Asserts that two states of the same rows agree up to rounding."""
    require_right: Callable[[AnyAccumulator, Any, NDArray[Any]], None]
    """Asserts that a state is what numpy makes of the rows."""


def centred(rows: NDArray[Any]) -> NDArray[np.float64]:
    values = rows.astype(np.float64)
    values = values - values[0]
    return np.asarray(values - values.mean(axis=0))


def assert_within(found: Any, expected: Any, tolerance: Any) -> None:
    error = np.abs(np.asarray(found) - np.asarray(expected))
    assert (error <= tolerance).all(), f"worst {(error - tolerance).max():.3e} above {np.max(tolerance):.3e}"


def same_covariance(accumulator: Any, left: Any, right: Any, rows: NDArray[Any]) -> None:
    assert left.n_samples == right.n_samples
    assert_within(left.mean, right.mean, tolerances.mean(rows))
    grid = accumulator.grid(rows.shape[1])
    one, other = (grid.dense(np.asarray(state.scatter)) for state in (left, right))  # from a device
    assert_within(one, other, tolerances.scatter(rows))


def right_covariance(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
    rest, n = centred(rows), len(rows)
    assert state.n_samples == n
    assert_within(state.mean, rows[0].astype(np.float64) + centred_mean(rows), tolerances.mean(rows))
    if n <= accumulator.ddof:
        return
    taken, error = rest, tolerances.scatter(rows)
    if not accumulator.center:
        taken, error = rows.astype(np.float64), tolerances.second_moment(rows)
    matrix, error = taken.T @ taken / (n - accumulator.ddof), error / (n - accumulator.ddof)
    found = accumulator.finalize(state).dense()
    if accumulator.scale:
        deviation = np.sqrt((rest**2).sum(axis=0) / (n - accumulator.ddof))
        weights = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
        matrix, error = matrix * np.outer(weights, weights), error * np.outer(weights, weights)
        error += tolerances.correlation(rows) * (np.abs(matrix) + 1)  # of the weights
    assert_within(found, matrix, error)


def centred_mean(rows: NDArray[Any]) -> NDArray[np.float64]:
    values = rows.astype(np.float64)
    return np.asarray((values - values[0]).mean(axis=0))


def same_triangle(_: Any, left: Any, right: Any, rows: NDArray[Any]) -> None:
    assert left.n_samples == right.n_samples
    assert_within(left.mean, right.mean, tolerances.mean(rows.astype(np.float64)))
    assert_within(
        left.factor.T @ left.factor, right.factor.T @ right.factor, tolerances.scatter(rows.astype(np.float64))
    )


def right_triangle(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
    values = rows.astype(np.float64)
    rest, n, error = centred(values), len(values), tolerances.scatter(values)
    assert state.n_samples == n
    assert not np.tril(state.factor, -1).any()
    assert_within(state.mean, values[0] + centred_mean(values), tolerances.mean(values))
    assert_within(state.factor.T @ state.factor, rest.T @ rest, error)
    if n <= accumulator.ddof:
        return
    found = accumulator.finalize(state)
    assert_within(
        found.variance, (rest**2).sum(axis=0) / (n - accumulator.ddof), error.diagonal() / (n - accumulator.ddof)
    )
    if not accumulator.scale:
        taken = found.rows()
        wanted, error = (rest, error) if accumulator.center else (values, tolerances.second_moment(values))
        assert_within(taken.T @ taken, wanted.T @ wanted, error)


def sketch(rows: NDArray[Any], **parameters: Any) -> Sketch:
    """Return a sketch with as many columns as features, so that nothing of the matrix escapes it."""
    test = np.eye(
        rows.shape[1],
        dtype=np.float32 if rows.dtype.name in ("bool", "int8", "uint8", "float16", "float32") else np.float64,
    )[::-1]
    return Sketch(np.ascontiguousarray(test), ddof=0, **parameters)


def same_sketch(accumulator: Any, left: Any, right: Any, rows: NDArray[Any]) -> None:
    assert (left.n_samples, left.weight) == (right.n_samples, right.weight)
    if not left.n_samples:
        return
    assert_within(left.mean, right.mean, tolerances.mean(rows))
    one, other = accumulator.finalize(left), accumulator.finalize(right)
    error = tolerances.scatter(rows) if accumulator.center else tolerances.second_moment(rows)
    if not accumulator.scale:
        assert_within(one.products, other.products, error[:, ::-1] / left.n_samples)
    assert_within(one.variance, other.variance, tolerances.scatter(rows).diagonal() / left.n_samples)


def right_sketch(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
    rest, n = centred(rows), len(rows)
    assert state.n_samples == n
    assert_within(state.mean, rows[0].astype(np.float64) + centred_mean(rows), tolerances.mean(rows))
    found, error = accumulator.finalize(state), tolerances.scatter(rows) / n
    assert_within(found.variance, (rest**2).sum(axis=0) / n, error.diagonal())
    taken = rest if accumulator.center else rows.astype(np.float64)
    error = error if accumulator.center else tolerances.second_moment(rows) / n
    matrix = taken.T @ taken / n * np.outer(found.weights, found.weights)
    error = error * np.outer(found.weights, found.weights)
    if accumulator.scale:
        error = error + tolerances.correlation(rows) * (np.abs(matrix) + 1)
    # F C Ω = F C F · F⁻¹Ω, whatever F is
    size = np.abs(found.test).max(initial=0.0, axis=0)
    assert_within(found.products, matrix @ found.test, (error[:, ::-1] + error.max()) * size)
    assert_within(found.diagonal, matrix.diagonal(), error.diagonal())


def adaptive(rows: NDArray[Any], **parameters: Any) -> IncrementalSVD:
    """Return an accumulator that keeps as many directions as there are features, so that it loses none."""
    return IncrementalSVD(rows.shape[1], max(5, len(rows) // 8), **parameters)


def same_adaptive(accumulator: Any, left: Any, right: Any, rows: NDArray[Any]) -> None:
    one, other = accumulator.finalize(left), accumulator.finalize(right)
    assert (one.n_samples, one.weight) == (other.n_samples, other.weight)
    assert_within(one.mean, other.mean, tolerances.mean(rows))
    gap = (one.vectors * one.values) @ one.vectors.T - (other.vectors * other.values) @ other.vectors.T
    assert_within(np.abs(gap).max(), 0.0, error_of_adaptive(accumulator, rows))


def right_adaptive(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
    found = accumulator.finalize(state)
    assert (found.n_samples, found.weight) == (len(rows), len(rows))
    assert_within(found.mean, rows[0].astype(np.float64) + centred_mean(rows), tolerances.mean(rows))
    taken = centred(rows) if accumulator.center else rows.astype(np.float64)
    taken = taken if accumulator.metric is None else taken * accumulator.metric
    error = error_of_adaptive(accumulator, rows)
    assert_within((found.vectors * found.values) @ found.vectors.T, taken.T @ taken, error)
    assert found.discarded <= error


def error_of_adaptive(accumulator: Any, rows: NDArray[Any]) -> float:
    """Return the error of all entries: orthogonal transformations mix features, so the largest counts for every one."""
    error = tolerances.scatter(rows) if accumulator.center else tolerances.second_moment(rows)
    factor = 1.0 if accumulator.metric is None else float(accumulator.metric.max())
    return float(np.trace(error)) * factor**2


def same_moments(_: Any, left: Any, right: Any, rows: NDArray[Any]) -> None:
    assert left.n_samples == right.n_samples
    assert_within(left.mean, right.mean, tolerances.mean(rows))
    assert_within(left.scatter, right.scatter, tolerances.scatter(rows).diagonal())


def right_moments(_: Any, state: Any, rows: NDArray[Any]) -> None:
    assert_within(state.mean, rows[0].astype(np.float64) + centred_mean(rows), tolerances.mean(rows))
    assert_within(state.scatter, (centred(rows) ** 2).sum(axis=0), tolerances.scatter(rows).diagonal())


def same_rows(_: Any, left: Any, right: Any, rows: NDArray[Any]) -> None:
    np.testing.assert_array_equal(left.index, right.index)
    np.testing.assert_array_equal(left.values, right.values)


def right_rows(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
    assert len(state.index) == min(accumulator.n_sampled, len(rows))
    assert (np.diff(state.index) > 0).all()
    assert state.values.dtype.newbyteorder("=") == rows.dtype.newbyteorder(
        "="
    )  # numpy joins arrays in native byte order
    np.testing.assert_array_equal(state.values, rows[state.index])


def same_totals(_: Any, left: Any, right: Any, rows: NDArray[Any]) -> None:
    np.testing.assert_array_equal(left.index, right.index)
    assert_within(left.values, right.values, 1e-15 * np.abs(rows.astype(np.float64)).sum(axis=1).max(initial=0.0))


def right_totals(accumulator: Any, state: Any, rows: NDArray[Any]) -> None:
    assert len(state.index) in (0, accumulator.n_samples)
    expected = rows[state.index].astype(np.float64).sum(axis=1, keepdims=True)
    same_totals(accumulator, state, replace(state, values=expected), rows)


def each_part(check: str) -> Callable[..., None]:
    def checked(accumulator: Any, *arguments: Any) -> None:
        *states, rows = arguments
        for i, (part, law) in enumerate(zip(accumulator.parts, (COVARIANCE, MOMENTS, ROWS), strict=True)):
            getattr(law, check)(part, *(state[i] for state in states), rows)

    return checked


def in_pieces(check: str) -> Callable[..., None]:
    return lambda accumulator, *arguments: getattr(COVARIANCE, check)(accumulator.accumulator, *arguments)


def by_group(check: str) -> Callable[..., None]:
    def checked(accumulator: Any, *arguments: Any) -> None:
        *states, rows = arguments
        for group in range(min(2, len(rows))):
            getattr(COVARIANCE, check)(accumulator.inner, *(state.groups[group] for state in states), rows[group::2])

    return checked


def covariance(name: str, **parameters: Any) -> Law:
    return Law(f"covariance {name}".strip(), lambda _: Covariance(**parameters), same_covariance, right_covariance)


def keep(rows: NDArray[Any]) -> RowSample:
    return RowSample(len(rows), 5, str(rows.dtype))


COVARIANCE = covariance("")
MOMENTS = Law("moments", lambda _: Moments(), same_moments, right_moments)
ROWS = Law("rows", keep, same_rows, right_rows)
KINDS = kinds_of_rows(Law, same_covariance, right_covariance, assert_within)
LAWS = [
    *KINDS,
    COVARIANCE,
    covariance("about zero", center=False, ddof=0),
    covariance("scaled", scale=True),
    covariance("scaled about zero", scale=True, center=False),
    covariance("in tiles", tile_size=2),
    covariance("in tiles on two threads", tile_size=3, n_threads=2, ddof=0),
    covariance("entry by entry", tile_size=1, scale=True),
    Law("covariance on a device", lambda _: DeviceCovariance(device=DEVICE), same_covariance, right_covariance),
    Law(
        "covariance on a device in tiles",
        lambda _: DeviceCovariance(device=DEVICE, tile_size=2, scale=True),
        same_covariance,
        right_covariance,
    ),
    Law("sketch on a device", lambda rows: on_device(sketch(rows), DEVICE), same_sketch, right_sketch),
    Law(
        "sketch on a device about zero",
        lambda rows: on_device(sketch(rows, center=False), DEVICE),
        same_sketch,
        right_sketch,
    ),
    Law("triangle", lambda _: QRFactor(), same_triangle, right_triangle),
    Law("triangle about zero", lambda _: QRFactor(center=False, ddof=0), same_triangle, right_triangle),
    Law("triangle scaled", lambda _: QRFactor(scale=True), same_triangle, right_triangle),
    Law("sketch", sketch, same_sketch, right_sketch),
    Law("sketch about zero", lambda rows: sketch(rows, center=False), same_sketch, right_sketch),
    Law("sketch scaled", lambda rows: sketch(rows, scale=True), same_sketch, right_sketch),
    Law(
        "sketch from one origin",
        lambda rows: sketch(rows, origin=rows[0].astype(np.float64)),
        same_sketch,
        right_sketch,
    ),
    Law("adaptive", adaptive, same_adaptive, right_adaptive),
    Law("adaptive about zero", lambda rows: adaptive(rows, center=False), same_adaptive, right_adaptive),
    Law("adaptive and shrinking", lambda rows: adaptive(rows, shrink=True), same_adaptive, right_adaptive),
    Law(
        "adaptive in a metric",
        lambda rows: adaptive(rows, metric=np.linspace(0.5, 2.0, rows.shape[1])),
        same_adaptive,
        right_adaptive,
    ),
    *draws(Law),
    *kernel_sums(Law),
    MOMENTS,
    ROWS,
    Law("row totals", lambda rows: RowTotals(len(rows)), same_totals, right_totals),
    Law(
        "by group",
        lambda rows: ByGroup(Covariance(ddof=0), np.arange(len(rows)) % 2, 2),
        by_group("require_same"),
        by_group("require_right"),
    ),
    Law("in pieces", lambda _: InPieces(Covariance(), 3), in_pieces("require_same"), in_pieces("require_right")),
    Law(
        "joint",
        lambda rows: Joint((Covariance(), Moments(), keep(rows))),
        each_part("require_same"),
        each_part("require_right"),
    ),
]
every_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)


def arrays_of(state: Any) -> list[NDArray[Any]]:
    """Return all arrays of a state."""
    if isinstance(state, np.ndarray):
        return [state]
    parts = state if isinstance(state, tuple) else ()
    parts = [getattr(state, f.name) for f in fields(state)] if is_dataclass(state) else parts
    return [array for part in parts for array in arrays_of(part)]


def freeze(state: Any) -> Any:
    """Return the state, whose arrays raise when they are written to from now on."""
    for array in arrays_of(state):
        array.flags.writeable = False
    return state


def of_blocks(accumulator: AnyAccumulator, data: Chunked) -> list[Any]:
    return [folded(accumulator, [block], data.rows.shape[1]) for block in data.blocks]


@pytest.mark.deep(keep=14)
@every_law
@settings(max_examples=EXAMPLES)
@given(data=chunked())
def test_any_chunking_gives_one_state(law: Law, data: Chunked) -> None:
    accumulator, d = law.make(data.rows), data.rows.shape[1]
    whole = folded(accumulator, [data.rows], d)
    law.require_same(accumulator, folded(accumulator, data.blocks, d), whole, data.rows)
    law.require_right(accumulator, whole, data.rows)


@pytest.mark.deep(keep=12)
@every_law
@settings(max_examples=EXAMPLES)
@given(data=chunked(), order=st.randoms(use_true_random=False), cut=st.integers(0, 7))
def test_any_order_and_grouping_of_merges_gives_one_state(law: Law, data: Chunked, order: Any, cut: int) -> None:
    accumulator, d = law.make(data.rows), data.rows.shape[1]
    whole = folded(accumulator, data.blocks, d)
    parts = of_blocks(accumulator, data)
    order.shuffle(parts)
    law.require_same(accumulator, accumulator.merge(parts), whole, data.rows)
    groups = [group for group in (parts[:cut], parts[cut:]) if group]
    law.require_same(accumulator, accumulator.merge([accumulator.merge(group) for group in groups]), whole, data.rows)
    one_by_one = accumulator.init(d)
    for part in parts:
        one_by_one = accumulator.absorb(one_by_one, part)
    law.require_same(accumulator, one_by_one, whole, data.rows)
    law.require_right(accumulator, accumulator.merge(parts), data.rows)


@pytest.mark.deep(keep=12)
@every_law
@settings(max_examples=EXAMPLES)
@given(data=chunked())
def test_init_is_the_identity(law: Law, data: Chunked) -> None:
    accumulator, d = law.make(data.rows), data.rows.shape[1]
    whole, empty = folded(accumulator, data.blocks, d), accumulator.init(d)
    for states in ([empty, whole], [whole, empty], [empty, whole, empty], [whole]):
        law.require_same(accumulator, accumulator.merge(states), whole, data.rows)
    nothing = accumulator.update(accumulator.init(d), data.rows[:0])
    law.require_same(accumulator, nothing, empty, data.rows)
    law.require_same(accumulator, accumulator.merge([empty, empty]), empty, data.rows)


@pytest.mark.deep(keep=13)
@every_law
@settings(max_examples=EXAMPLES)
@given(data=chunked())
def test_merge_and_absorb_leave_their_inputs_alone(law: Law, data: Chunked) -> None:
    accumulator, d = law.make(data.rows), data.rows.shape[1]
    parts = [freeze(state) for state in of_blocks(accumulator, data)]
    before = [[array.tobytes() for array in arrays_of(state)] for state in parts]
    merged = accumulator.merge(parts)
    accumulator.update(merged, data.rows)  # may reuse the memory of `merged`, which must be none of the inputs'
    total = accumulator.init(d)
    for part in parts:
        total = accumulator.absorb(total, part)
    if len(data.blocks[0]) > 1:
        accumulator.finalize(parts[0])
    assert [[array.tobytes() for array in arrays_of(state)] for state in parts] == before


@pytest.mark.deep(keep=12)
@every_law
@settings(max_examples=20)
@given(data=chunked())
def test_update_neither_writes_nor_keeps_its_block(law: Law, data: Chunked) -> None:
    """The rows of every test are read only; here the block's memory is reused for other rows, as a reader does."""
    accumulator, d = law.make(data.rows), data.rows.shape[1]
    whole, state = folded(accumulator, data.blocks, d), accumulator.init(d)
    for block in data.blocks:
        buffer = block.values.copy()
        state = accumulator.update(state, type(block)(buffer, block.start))
        buffer[...] = 0
    law.require_same(accumulator, state, whole, data.rows)


@every_law
def test_a_state_is_as_large_as_the_plan_is_told(law: Law) -> None:
    rows = np.random.default_rng(0).standard_normal((40, 7)).astype(np.float32)
    accumulator = law.make(rows)
    held = sum(array.nbytes for array in arrays_of(folded(accumulator, [rows], 7)))
    assert held <= accumulator.state_bytes(7)
    assert accumulator.scratch_bytes(7, 40, 4) > 0


@pytest.mark.deep(keep=38)
@every_law
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_more_rows_than_a_panel(law: Law, dtype: str) -> None:
    rows = (np.random.default_rng(1).standard_normal((20_011, 3)) * 20 + 100).astype(dtype)
    accumulator = law.make(rows)
    law.require_right(accumulator, folded(accumulator, [rows], 3), rows)
