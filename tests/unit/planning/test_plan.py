"""The plan: pure arithmetic that is printed, checked, and obeyed before anything is read."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streampca import PCA
from streampca.accumulators import Covariance
from streampca.errors import DataError, ParameterError, PlanError
from streampca.formatting import as_text
from streampca.planning.budget import MemoryBudget, MemoryNeed
from streampca.planning.covariance import plan_covariance
from streampca.planning.memory import allowed_bytes
from streampca.planning.plan import Plan, Resources
from streampca.planning.shape import count_leaves
from streampca.solvers.fit import Parameters, plan_fit
from streampca.sources.base import ReadCount, Source

MIB = 2**20


class Unread(Source):
    """A source of any shape that must not be read."""

    description = "unread"

    def __init__(self, shape: tuple[int, int], dtype: str = "float32", chunk_rows: int = 1000):
        self.shape, self.dtype, self.chunk_rows = shape, np.dtype(dtype), chunk_rows
        self.chunk_bytes = chunk_rows * shape[1] * self.dtype.itemsize

    @property
    def fingerprint(self) -> str:
        return "unread"

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        raise AssertionError("read before the plan was accepted")


def plan_of(
    source: Source, *, allowed: int = 8192 * MIB, threads: int = 2, k: int | None = 10, **resources: Any
) -> Plan:
    return plan_covariance(source, Covariance(), k, Resources(allowed, 150 * MIB, threads, **resources))


sources = st.builds(
    Unread,
    st.tuples(st.integers(1, 3_000_000), st.integers(1, 3000)),
    st.sampled_from(["float32", "float64", "uint8", "int16"]),
    st.integers(1, 50_000),
)


@pytest.mark.parametrize(
    ("n_bytes", "d", "expected"),
    [
        (10**11, 1024, 736),
        (10**15, 128, 65_536),
        (10**15, 1024, 65_536),
        (10**15, 8192, 16_384),
        (10**13, 100_000, 64),
    ],
)
def test_neither_leaves_nor_their_states_are_more_than_a_driver_takes_in(n_bytes: int, d: int, expected: int) -> None:
    n = n_bytes // (4 * d)
    assert count_leaves(n, n // 1000, 4 * d, 4 * d * d) == expected


@settings(max_examples=150)
@given(source=sources, threads=st.integers(1, 64))
def test_leaves_cover_all_rows_once_and_do_not_depend_on_threads(source: Unread, threads: int) -> None:
    plan = plan_of(source, threads=threads, allowed=2**40)
    leaves = plan.leaves()
    assert len(leaves) == plan.n_leaves >= 1
    edges = [edge for leaf in leaves for edge in leaf.edges[:-1]] + [leaves[-1].edges[-1]]
    assert edges[0] == 0
    assert edges[-1] == source.shape[0]
    assert all(start < stop for start, stop in pairwise(edges))
    assert all(before.edges[-1] == after.edges[0] for before, after in pairwise(leaves))
    assert max(stop - start for start, stop in pairwise(edges)) <= plan.rows_per_block
    assert [leaf.index for leaf in leaves] == list(range(plan.n_leaves))
    one = plan_of(source, threads=1, allowed=2**40)
    assert one.leaves() == leaves
    assert one.tile == plan.tile
    assert 1 <= plan.leaves_in_flight <= plan.window
    assert plan.leaves_in_flight * plan.threads_per_leaf <= max(threads, 1)


@settings(max_examples=100)
@given(source=sources, allowed=st.integers(100 * MIB, 3000 * MIB), threads=st.integers(1, 8))
def test_what_is_accepted_fits_and_what_does_not_is_refused(source: Unread, allowed: int, threads: int) -> None:
    try:
        plan = plan_of(source, allowed=allowed, threads=threads)
    except PlanError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert f"exceeds the allowed {as_text(allowed)}" in refusal
        return
    assert plan.projected_bytes <= plan.allowed_bytes == allowed
    assert plan.projected_bytes >= plan.memory["process"] + plan.memory["states"]
    assert plan.bytes_to_read >= source.shape[0] * source.row_bytes


def test_it_is_pure() -> None:
    source = Unread((100_000, 300))
    assert plan_of(source) == plan_of(source)
    assert str(plan_of(source)) == str(plan_of(source))
    assert PCA(5).plan(source).leaves() == PCA(5).plan(source).leaves()


def test_it_is_json_and_prints_well() -> None:
    plan = PCA(5, solver="covariance").plan(Unread((100_000, 300)))
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["n_samples"] == 100_000
    assert data["passes"] == 1
    assert data["bytes_to_read"] == 100_000 * 300 * 4
    assert data["projected_bytes"] == plan.projected_bytes
    lines = str(plan).splitlines()
    assert len(lines) >= 6
    assert "100,000 samples x 300 features" in str(plan)
    assert as_text(plan.projected_bytes) in str(plan)


def test_repr_is_one_line_and_html_a_table_with_the_same_lines() -> None:
    plan = PCA(5, solver="covariance").plan(Unread((100_000, 300)))
    assert "\n" not in repr(plan)
    assert "covariance: 100,000 x 300 float32, 1 pass, " in repr(plan)
    html = plan.with_notes(["<b>"])._repr_html_()
    assert html.count("<tr>") == len(str(plan).splitlines()) + 1
    assert "&lt;b&gt;" in html


def test_the_peak_is_the_largest_sum_of_a_phase() -> None:
    needs = [
        MemoryNeed("process", 5),
        MemoryNeed("blocks", 7, ("reading",)),
        MemoryNeed("model", 4, ("solving", "scores")),
    ]
    budget = MemoryBudget.of([*needs, MemoryNeed("scores", 2, ("scores",))], 11)
    assert budget.by_phase == {"reading": 12, "solving": 9, "scores": 11}
    assert (budget.projected_bytes, budget.fits) == (12, False)
    assert budget.by_purpose == {"process": 5, "blocks": 7, "model": 4, "scores": 2}


@pytest.mark.parametrize("solver", ["covariance", "qr", "sketch", "adaptive"])
def test_a_plan_comes_back_from_json_and_from_the_form_of_0_1_0(solver: str) -> None:
    plan = plan_fit(Unread((3000, 300)), Parameters(5, solver=solver, memory="4GiB"))
    data = json.loads(json.dumps(plan.to_dict()))
    assert Plan.from_dict(data) == plan
    old = {name: value for name, value in data.items() if name != "memory_by_phase"}
    again = Plan.from_dict(old)
    assert str(again) == str(plan)
    assert (again.projected_bytes, again.leaves()) == (plan.projected_bytes, plan.leaves())


@pytest.mark.parametrize(
    ("source", "allowed", "resources", "advice"),
    [
        (Unread((100_000, 20_000)), 1024 * MIB, {}, "fewer features"),
        (Unread((100_000, 100)), 100 * MIB, {}, "memory of at least"),
        (Unread((10_000, 300)), 200 * MIB, {"report": True}, "report: false"),
    ],
)
def test_a_refusal_has_both_numbers_and_says_what_would_do(
    source: Source, allowed: int, resources: Any, advice: str
) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(source, allowed=allowed, **resources)
    message = str(caught.value)
    assert "\n" not in message
    assert f"exceeds the allowed {as_text(allowed)}" in message
    assert advice in message
    assert caught.value.exit_status == 7
    # What the message asks for is enough.
    number, unit = message.rsplit("at least ", 1)[1].split()[:2]
    enough = (float(number) + (0.5 if unit == "MiB" else 0.05)) * {"MiB": MIB, "GiB": 1024 * MIB}[unit]
    assert plan_of(source, allowed=int(enough), **resources).projected_bytes <= enough


def test_it_is_refused_before_any_reading() -> None:
    with pytest.raises(PlanError, match="exceeds the allowed"):
        PCA(5, solver="covariance", memory="64MiB").fit(Unread((100_000, 300)))
    with pytest.raises(AssertionError, match="read before"):
        PCA(5, solver="covariance", memory="2GiB").fit(Unread((100_000, 300)))
    with pytest.raises(DataError, match="1 sample"):
        PCA().fit(Unread((1, 300)))
    with pytest.raises(ParameterError, match="n_components=301"):
        PCA(301).fit(Unread((100_000, 300)))


def test_a_smaller_ceiling_gives_smaller_blocks() -> None:
    source = Unread((1_000_000, 300), chunk_rows=1000)
    large, small = plan_of(source), plan_of(source, allowed=215 * MIB)
    assert small.rows_per_block < large.rows_per_block
    assert small.rows_per_block % 1000 == 0
    assert small.bytes_to_read == large.bytes_to_read


def test_chunks_that_do_not_fit_are_read_in_parts_and_that_is_said() -> None:
    class Tall(Unread):
        def reads_of(self, start: int, stop: int) -> int:
            whole = -(-stop // self.chunk_rows) * self.chunk_rows - start // self.chunk_rows * self.chunk_rows
            return min(whole, self.shape[0]) * self.row_bytes

    source = Tall((400_000, 500), chunk_rows=200_000)
    plan = plan_of(source, allowed=400 * MIB)
    assert plan.rows_per_block < 200_000
    assert plan.bytes_to_read > 400_000 * source.row_bytes
    assert any("decoded" in note for note in plan.notes)


def test_whole_chunks_are_preferred() -> None:
    for chunk_rows in (7, 1000, 33_000):
        plan = plan_of(Unread((500_000, 64), chunk_rows=chunk_rows))
        assert plan.rows_per_block % chunk_rows == 0


@pytest.mark.parametrize(
    ("text", "expected"), [("2GiB", 2 * 1024 * MIB), ("384MiB", 384 * MIB), ("1GB", 10**9), (5 * MIB, 5 * MIB)]
)
def test_sizes(text: Any, expected: int) -> None:
    assert allowed_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "much", "2 parsecs", -1, 0, True, 1.5, "-1GiB", "0"])
def test_sizes_that_are_none(text: Any) -> None:
    with pytest.raises(ParameterError, match="is not a size"):
        plan_fit(Unread((1000, 3)), Parameters(memory=text))
