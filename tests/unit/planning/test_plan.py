"""The plan: pure arithmetic that is printed, checked, and obeyed before anything is read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import facade
import numpy as np
import pytest
from facade import Source, Unread
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import Command, config_text

from streampca import PCA
from streampca.errors import DataError, ParameterError, PlanError

MIB = 2**20
plan_of = partial(facade.plan, k=10, solver="covariance", allowed=8192 * MIB)
"""Plans of the covariance solver in 8 GiB; `allowed` and the rest may be given."""


def as_text(n_bytes: int) -> str:
    """Return a number of bytes in MiB or GiB as plans print it."""
    return f"{n_bytes / MIB:.0f} MiB" if n_bytes < 1024 * MIB else f"{n_bytes / MIB / 1024:.1f} GiB"


sources = st.builds(
    Unread,
    st.tuples(st.integers(1, 3_000_000), st.integers(1, 3000)),
    st.sampled_from(["float32", "float64", "uint8", "int16"]),
    st.integers(1, 50_000),
)


@pytest.mark.parametrize(
    ("n_bytes", "d", "expected"), [(10**11, 1024, 736), (10**15, 128, 65_536), (10**13, 100_000, 64)]
)
def test_neither_leaves_nor_their_states_are_more_than_a_driver_takes_in(n_bytes: int, d: int, expected: int) -> None:
    assert plan_of(Unread((n_bytes // (4 * d), d)), allowed=2**42).n_leaves == expected


@settings(max_examples=50)
@given(source=sources, threads=st.integers(1, 64))
def test_leaves_cover_all_rows_once_and_do_not_depend_on_threads(source: Unread, threads: int) -> None:
    plan = plan_of(source, k=1, threads=threads, allowed=2**40)
    leaves = plan.leaves()
    assert len(leaves) == plan.n_leaves >= 1
    edges = [edge for leaf in leaves for edge in leaf.edges[:-1]] + [leaves[-1].edges[-1]]
    assert edges[0] == 0
    assert edges[-1] == source.shape[0]
    assert all(start < stop for start, stop in pairwise(edges))
    assert all(before.edges[-1] == after.edges[0] for before, after in pairwise(leaves))
    assert max(stop - start for start, stop in pairwise(edges)) <= plan.rows_per_block
    assert [leaf.index for leaf in leaves] == list(range(plan.n_leaves))
    one = plan_of(source, k=1, threads=1, allowed=2**40)
    assert one.leaves() == leaves
    assert one.tile == plan.tile
    assert 1 <= plan.leaves_in_flight <= plan.window
    assert plan.leaves_in_flight * plan.threads_per_leaf <= max(threads, 1)


def loads(n_features: int, threads: int, allowed: int, **beside: Any) -> tuple[int, int, int]:
    """Return leaves at once, busy threads and projected bytes of a plan for many rows; none where it is refused."""
    try:
        plan = plan_of(Unread((10_000_000, n_features), chunk_rows=8192), threads=threads, allowed=allowed, **beside)
    except PlanError:
        return 0, 0, 0
    return plan.leaves_in_flight, plan.leaves_in_flight * plan.threads_per_leaf, plan.projected_bytes


@pytest.mark.parametrize(("allowed", "least"), [(1024, 12), (2048, 16), (4096, 16)])
def test_sixteen_threads_use_the_leaves_that_fit(allowed: int, least: int) -> None:
    leaves, busy, projected = loads(1024, 16, allowed * MIB)
    assert busy >= least
    one_more = projected + (projected - loads(1024, 2 * (leaves - 1), allowed * MIB)[2])  # two threads share a leaf
    assert busy == 16 or one_more > allowed * MIB


@pytest.mark.parametrize("solver", ["covariance", "sketch"])
@pytest.mark.parametrize("n_features", [1024, 2000, 5000])
def test_busy_threads_grow_with_memory_and_with_threads(n_features: int, solver: str) -> None:
    numbers = (1, 2, 3, 5, 8, 13, 16, 27, 40, 64)
    of_memory = []
    for allowed in (600, 1024, 1500, 2048, 4096, 16_384):
        found = [loads(n_features, threads, allowed * MIB, solver=solver) for threads in numbers]
        busy = [each[1] for each in found]
        assert busy == sorted(busy)
        assert all(threads <= most for threads, most in zip(busy, numbers, strict=True))
        of_memory.append(busy)
    assert all(
        fewer <= more for less, further in pairwise(of_memory) for fewer, more in zip(less, further, strict=True)
    )
    assert of_memory[-1][:6] == list(numbers[:6])


def test_leaves_grow_by_one_thread_and_by_one_mebibyte() -> None:
    # Of 700 features nobody shares a leaf.
    by_threads = [loads(700, threads, 2048 * MIB)[0] for threads in range(1, 65)]
    most = by_threads[-1]
    assert by_threads == [min(threads, most) for threads in range(1, 65)]
    by_memory = [loads(700, 16, allowed * MIB)[0] for allowed in range(400, 2300, 20)]
    assert by_memory == sorted(by_memory)
    assert set(by_memory) == set(range(2, 17))


def test_scores_of_a_model_use_every_number_of_threads() -> None:
    source = Unread((10_000_000, 1024), chunk_rows=8192)
    model = facade.fit(np.random.default_rng(0).normal(size=(50, 1024)), k=4).model
    with facade.process_of(110 * MIB):
        plans = [facade.plan_scores(source, model, 1024 * MIB, threads) for threads in range(1, 20)]
    leaves = [plan.leaves_in_flight for plan in plans]
    most = leaves[-1]
    assert 4 <= most < 19
    assert leaves == [min(threads, most) for threads in range(1, 20)]


@settings(max_examples=50)
@given(source=sources, allowed=st.integers(100 * MIB, 3000 * MIB), threads=st.integers(1, 8))
def test_what_is_accepted_fits_and_what_does_not_is_refused(source: Unread, allowed: int, threads: int) -> None:
    try:
        plan = plan_of(source, k=1, allowed=allowed, threads=threads)
    except PlanError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert re.search(f"(exceeds|more than) the allowed {re.escape(as_text(allowed))}", refusal)
        return
    assert plan.projected_bytes <= plan.allowed_bytes == allowed
    assert plan.projected_bytes >= plan.memory["process"] + plan.memory["states"]
    assert plan.bytes_to_read >= source.shape[0] * source.row_bytes


def test_it_is_pure() -> None:
    source = Unread((100_000, 300))
    assert plan_of(source).to_dict() == plan_of(source).to_dict()
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


def test_the_peak_is_that_of_the_phase_that_takes_most() -> None:
    for n, k, phase in ((20_000, 10, "reading"), (1600, None, "solving")):
        plan = plan_of(Unread((n, 1500), chunk_rows=100), k=k, threads=1, allowed=500 * MIB)
        phases = plan.to_dict()["memory_by_phase"]
        assert max(phases, key=phases.get) == phase
        assert phases[phase] == plan.projected_bytes
        assert plan.projected_bytes <= sum(plan.memory.values())


@pytest.mark.parametrize(
    ("source", "solver", "allowed", "advice"),
    [
        (Unread((100_000, 20_000)), "qr", 1024 * MIB, "fewer features"),
        (Unread((100_000, 100)), "covariance", 174 * MIB + 300_000, "chunks of fewer than 1,000 rows"),
        (Unread((100_000, 1500)), "covariance", 200 * MIB, "fewer components"),
    ],
)
def test_a_refusal_has_both_numbers_and_says_what_would_do(
    source: Source, solver: str, allowed: int, advice: str
) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(source, solver=solver, allowed=allowed)
    message = str(caught.value)
    assert "\n" not in message
    assert f"exceeds the allowed {as_text(allowed)}" in message
    assert advice in message
    assert caught.value.exit_status == 7
    enough = what_would_do(message)  # what the message asks for is enough
    assert plan_of(source, solver=solver, allowed=enough).projected_bytes <= enough


def what_would_do(message: str) -> int:
    """Return the bytes that a refusal asks for, rounded up to its last digit."""
    number, unit = message.rsplit("at least ", 1)[1].split()[:2]
    return int((float(number) + (0.5 if unit == "MiB" else 0.05)) * {"MiB": MIB, "GiB": 1024 * MIB}[unit])


def test_a_report_that_does_not_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((200, 30)))
    process = PCA(2).plan(tmp_path / "x.npy").memory["process"]
    small = f"resources: {{memory: {process + 60 * MIB}}}"
    text = config_text(tmp_path / "x.npy", tmp_path / "run", "model: {n_components: 2}", small, output="report: true")
    (tmp_path / "c.yaml").write_text(text)
    Command(capsys)("plan", tmp_path / "c.yaml").refused(7, "report: false", "memory of at least")
    (tmp_path / "c.yaml").write_text(text.replace("report: true", "report: false"))
    assert Command(capsys)("plan", tmp_path / "c.yaml").status == 0


def test_weights_groups_and_diagnostics_are_no_memory_of_the_process(tmp_path: Path, capsys: Any) -> None:
    rows, labels = np.random.default_rng(0).normal(size=(2000, 10)), np.arange(2000) % 3
    np.save(tmp_path / "x.npy", rows)
    output = "scores: true, diagnostics: true"
    (tmp_path / "c.yaml").write_text(config_text(tmp_path / "x.npy", tmp_path / "run", output=output))
    with facade.process_of(150 * MIB):
        plans: list[tuple[str, dict[str, int]]] = [
            ("weights", facade.plan(rows, k=2, sample_weight=np.ones(2000)).memory),
            ("groups", PCA(2).fit_groups(rows, labels).plan_.memory),
            ("groups", PCA("cross_validation").plan(rows).memory),
            ("groups", PCA(2, sampling_errors=5).plan(rows).memory),
            ("diagnostics", json.loads(Command(capsys)("plan", tmp_path / "c.yaml", "--json").out)["memory"]),
        ]
        plain = PCA(2).plan(rows).memory
    for purpose, memory in plans:
        assert purpose not in plain
        assert memory[purpose] > 0
        assert memory["process"] == plain["process"]


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
    source = Unread((400_000, 500), chunk_rows=200_000)
    source.grid = replace(source.grid, whole=True)
    plan = plan_of(source, allowed=400 * MIB)
    assert plan.rows_per_block < 200_000
    assert plan.bytes_to_read > 400_000 * source.row_bytes
    assert any("decoded" in note for note in plan.notes)


def test_whole_chunks_are_preferred() -> None:
    for chunk_rows in (7, 1000, 33_000):
        plan = plan_of(Unread((500_000, 64), chunk_rows=chunk_rows))
        assert plan.rows_per_block % chunk_rows == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GiB", 2 * 1024 * MIB), ("4096MiB", 4096 * MIB), ("3GB", 3 * 10**9), (5000 * MIB, 5000 * MIB)],
)
def test_sizes(text: Any, expected: int) -> None:
    assert PCA(memory=text).plan(Unread((1000, 3))).allowed_bytes == expected


@pytest.mark.parametrize("text", ["", "much", "2 parsecs", -1, 0, True, 1.5, "-1GiB", "0"])
def test_sizes_that_are_none(text: Any) -> None:
    with pytest.raises(ParameterError, match="is not a size"):
        PCA(memory=text).plan(Unread((1000, 3)))


@pytest.mark.parametrize(("n", "d"), [(50_000, 200), (41_000, 200), (200_000, 256), (300_000, 20), (90_000, 400)])
def test_rows_in_memory_are_divided_evenly(n: int, d: int) -> None:
    plan = PCA(2).plan(np.broadcast_to(np.float32(1), (n, d)))
    rows = [leaf.n_rows for leaf in plan.leaves()]
    assert sum(rows) == n
    assert max(rows[0::2]) + max(rows[1::2]) <= 1.2 * 2 * n / len(rows)
    assert len(rows) % 2 == 0
