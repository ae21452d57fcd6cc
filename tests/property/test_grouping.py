"""Any grouping of the same rows, added, merged, saved between or taken out again, gives the model of one fit to 1e-12."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tolerances
from facade import Block, folded
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import examples, make_rows

import streampca as sp
from streampca.accumulators import Covariance

SAME = 1e-12
EXAMPLES = examples(40)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": True},
    "about zero": {"center": False, "ddof": 0},
    "qr": {"solver": "qr"},
    "qr scaled": {"solver": "qr", "scale": True},
    "forgetting": {"forgetting": 0.9},
    "filled": {"missing": "mean"},
}
every_option = pytest.mark.parametrize("name", OPTIONS)


@st.composite
def grouped(draw: st.DrawFn, dtypes: tuple[str, ...] = ("float64", "int16", "uint8")) -> tuple[NDArray[Any], list[int]]:
    """Draw rows and the edges of batches of at least one row."""
    n, d = draw(st.integers(3, 60)), draw(st.integers(1, 6))
    kind = draw(st.sampled_from(("normal", "far", "rank_deficient", "wild_first_row", "sparse")))
    rows = make_rows(n, d, draw(st.sampled_from(dtypes)), kind, draw(st.integers(0, 2**32 - 1)))
    inner = draw(st.sets(st.integers(1, n - 1), max_size=8))
    rows.flags.writeable = False
    return rows, [0, *sorted(inner), n]


def batches(rows: NDArray[Any], edges: list[int]) -> list[NDArray[Any]]:
    return [rows[start:stop] for start, stop in pairwise(edges)]


def assert_same_model(found: sp.PCA, expected: sp.PCA, rows: NDArray[Any]) -> None:
    """Compare everything that does not depend on gaps between eigenvalues.

    Small integers are exact in any grouping, but not once they are multiplied by weights in float32.
    """
    rounded = rows.dtype == np.uint8 and (expected.forgetting != 1 or expected.missing != "error")
    same = tolerances.EIGENVALUES_FLOAT32 if rounded and expected.solver != "qr" else SAME
    top = expected.explained_variance_[0]
    assert found.n_samples_seen_ == expected.n_samples_seen_
    assert len(found.explained_variance_) == len(expected.explained_variance_)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=0, atol=same * top)
    np.testing.assert_allclose(found.total_variance_, expected.total_variance_, rtol=same, atol=same * top)
    size = np.abs(expected.mean_).max() + np.sqrt(top)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=0, atol=same * size)
    covariance = [(p.components_.T * p.explained_variance_) @ p.components_ for p in (found, expected)]
    np.testing.assert_allclose(*covariance, rtol=0, atol=10 * same * top)


@pytest.mark.slow
@pytest.mark.deep(keep=["qr scaled"])
@every_option
@settings(max_examples=EXAMPLES)
@given(data=grouped())
def test_partial_fit_in_any_grouping_is_one_fit(name: str, data: tuple[NDArray[Any], list[int]]) -> None:
    rows, edges = data
    found, expected = sp.PCA(**OPTIONS[name]), sp.PCA(**{"solver": "covariance", **OPTIONS[name]}).fit(rows)
    for batch in batches(rows, edges):
        found.partial_fit(batch)
    assert_same_model(found, expected, rows)


@pytest.mark.slow
@pytest.mark.deep(keep=["scaled"])
@every_option
@settings(max_examples=EXAMPLES)
@given(data=grouped(), cut=st.integers(1, 5))
def test_merging_in_any_grouping_is_one_fit(name: str, data: tuple[NDArray[Any], list[int]], cut: int) -> None:
    rows, edges = data
    options = {"solver": "covariance", **OPTIONS[name]}
    parts = [sp.PCA(**options).partial_fit(batch) for batch in batches(rows, edges)]
    expected = sp.PCA(**options).fit(rows)
    assert_same_model(sp.merge(parts), expected, rows)
    groups = [group for group in (parts[:cut], parts[cut:]) if group]
    assert_same_model(sp.merge([sp.merge(group) for group in groups]), expected, rows)


@settings(max_examples=EXAMPLES)
@given(data=grouped(), scale=st.booleans())
def test_taking_rows_out_undoes_adding_them(data: tuple[NDArray[Any], list[int]], scale: bool) -> None:
    """To 1e-12 of the larger scatter; where nothing reliable would remain of a feature it is refused, and nothing changes."""
    rows, edges = data
    cut = edges[1]
    accumulator, d = Covariance(scale=scale), rows.shape[1]
    left, right = (folded(accumulator, [part], d) for part in (rows[:cut], rows[cut:]))
    both = accumulator.merge([left, right])
    before = [both.origin.copy(), both.offset.copy(), both.scatter.copy()]
    try:
        found, error_growth = accumulator.subtract(both, right)
    except sp.errors.MergeError:
        for now, then in zip((both.origin, both.offset, both.scatter), before, strict=True):
            np.testing.assert_array_equal(now, then)
        return
    assert error_growth >= 1
    assert (found.n_samples, found.weight) == (left.n_samples, left.weight)
    larger = np.abs(before[2]).max()
    np.testing.assert_allclose(found.scatter, left.scatter, rtol=0, atol=SAME * larger)
    # A mean is moved by the rounding of the mean of all rows, times their number over that of those that remain.
    size = np.abs(left.mean).max() + np.sqrt(larger)
    np.testing.assert_allclose(found.mean, left.mean, rtol=0, atol=SAME * len(rows) / cut * size)


@settings(max_examples=EXAMPLES)
@given(data=grouped(("float64",)), factor=st.sampled_from((0.999, 0.9, 0.5, 1e-3)), size=st.sampled_from((1, 2, 1024)))
def test_forgetting_is_what_its_weights_say(data: tuple[NDArray[Any], list[int]], factor: float, size: int) -> None:
    rows, edges = data
    weights = factor ** np.arange(len(rows) - 1, -1, -1.0)
    total = weights.sum()
    mean = weights @ (rows - rows[-1]) / total
    rest = rows - rows[-1] - mean
    accumulator = Covariance(forgetting=factor, tile_size=size)
    states = [folded(accumulator, [Block(batch)], rows.shape[1]) for batch in batches(rows, edges)]
    state = accumulator.merge(states)
    assert state.n_samples == len(rows)
    assert state.weight == pytest.approx(total, rel=SAME)
    scatter = (rest.T * weights) @ rest
    error = SAME * (np.abs(scatter).max() + tolerances.EPS * np.abs(rows).max() ** 2)
    found = accumulator.grid(rows.shape[1]).dense(state.scatter)
    np.testing.assert_allclose(found, scatter, rtol=0, atol=error)
    divisor = total - (weights @ weights) / total
    assert accumulator.divisor(state) == pytest.approx(divisor, rel=1e-9, abs=SAME)
