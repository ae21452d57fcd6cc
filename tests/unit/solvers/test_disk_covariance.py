"""The covariance matrix in groups of tiles on disk: the answer of the one in memory, few readings, and clear refusals."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import facade
import numpy as np
import pytest
from dask import config as dask_config
from facade import ReadCount, Source, Unread
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import streampca as sp
from streampca.accumulators import TileGrid
from streampca.errors import ConfigError, DataError, MergeError, NoSpaceError, OutputError, PlanError

pytestmark = pytest.mark.numerical

MIB = 2**20
N, D = 400, 2100
TIGHT = 220 * MIB
"""A ceiling for these data, with a process of 150 MiB, that takes several groups."""


def make_rows(dtype: str = "float32", n: int = N, d: int = D, seed: int = 0) -> NDArray[Any]:
    """Return rows with eight strong directions, far from zero."""
    draw = np.random.default_rng(seed)
    rows = 8 * draw.standard_normal((n, 8)) * np.linspace(3, 1, 8) @ draw.standard_normal((8, d))
    rows += draw.standard_normal((n, d)) + 100
    return rows.clip(0, 255).astype(dtype) if dtype == "uint8" else rows.astype(dtype)


LINE: dict[str, Any] = {"k": 5, "solver": "covariance"}


def plan_of(data: Any, **changes: Any) -> Any:
    """Return the plan of the covariance solver in `TIGHT` bytes beside a process of 150 MiB."""
    return facade.plan(data, **{"allowed": TIGHT, **LINE, **changes})


fit = partial(facade.fit, **LINE)


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "float32": ("float32", {}),
    "float64": ("float64", {}),
    "uint8": ("uint8", {}),
    "about zero": ("float32", {"center": False}),
    "scaled": ("float32", {"scale": True}),
    "weighted samples": ("float64", {"sample_weight": np.random.default_rng(1).uniform(0, 2, N).round(1)}),
    "weighted features": ("float64", {"feature_weight": np.random.default_rng(1).uniform(0, 2, D)}),
    "whitened": ("float64", {"whiten": True, "ddof": 0}),
}


@pytest.mark.deep(keep=4)
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_matrix_in_memory(kind: str) -> None:
    dtype, parameters = KINDS[kind]
    rows = make_rows(dtype)
    # Of a panel with weights, each of the two threads copies the rows whose weight is not zero.
    copies = 2 * 8 * N * D if "sample_weight" in parameters else 0
    plan = plan_of(rows, allowed=TIGHT + copies, **parameters)
    assert plan.tile_groups == plan.passes > 1
    on_disk = fit(rows, plan, options={"keep_rows": 7}, **parameters)
    in_memory = fit(rows, plan.replace(tile_groups=0, passes=1), options={"keep_rows": 7}, **parameters)
    found, expected = on_disk.model, in_memory.model
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance, rtol=1e-12)
    np.testing.assert_allclose(found.components, expected.components, atol=1e-10)
    np.testing.assert_array_equal(found.mean, expected.mean)
    assert found.total_variance == expected.total_variance
    assert found.n_samples == expected.n_samples
    assert found.certificate["trusted_above"] == expected.certificate["trusted_above"]
    assert (found.certificate["kind"], found.certificate["eigen_solver"]) == ("exact", "block krylov")
    np.testing.assert_array_equal(on_disk.samples.values, in_memory.samples.values)
    assert on_disk.count.bytes == plan.bytes_to_read == plan.passes * in_memory.count.bytes
    assert on_disk.fitted_state is None


def test_threads_have_no_say_in_the_bits() -> None:
    rows = make_rows()
    plans = [plan_of(rows, threads=threads) for threads in (1, 2, 3)]
    assert len({plan.rows_per_block for plan in plans}) == 1
    assert plans[0].threads == 1 < plans[1].threads
    found = [fit(rows, plan).model for plan in plans]
    assert len({model.components.tobytes() for model in found}) == 1
    assert len({model.explained_variance.tobytes() for model in found}) == 1


@settings(max_examples=40)
@given(
    d=st.integers(2048, 60_000),
    n=st.integers(100, 200_000),
    chunk_rows=st.integers(1, 300),
    share=st.floats(0.02, 0.9),
    threads=st.integers(1, 32),
)
def test_few_groups_that_fit(d: int, n: int, chunk_rows: int, share: float, threads: int) -> None:
    source = Unread((n, d), chunk_rows=chunk_rows)
    allowed = int(150 * MIB + share * 16 * d * d)
    try:
        plan = plan_of(source, allowed=allowed, threads=threads)
    except PlanError as error:
        assert "with the matrix on disk" in str(error)  # noqa: PT017
        return
    assert plan.projected_bytes <= allowed
    if not plan.tile_groups:
        return
    assert plan.passes == plan.tile_groups <= TileGrid(d, 1024).n_tiles
    assert plan.disk_bytes == 8 * TileGrid(d, 1024).size
    assert plan.bytes_to_read >= plan.passes * n * source.row_bytes
    alone = plan_of(source, allowed=allowed, threads=1)
    assert alone.rows_per_block == plan.rows_per_block
    assert alone.tile_groups <= plan.tile_groups <= 2 * alone.tile_groups


def test_the_plan_says_what_it_takes() -> None:
    plan = plan_of(Unread((10_000, 12_000), chunk_rows=100), k=20, allowed=500 * MIB)
    text = str(plan)
    assert f"{plan.passes} passes" in text
    assert "which are kept on disk" in text
    assert any("595 MiB of temporary files" in note for note in plan.notes)
    assert any(note.startswith("in memory: projected") for note in plan.notes)
    assert plan.memory["tiles"] > 0
    assert plan.bytes_to_read == plan.passes * 10_000 * 12_000 * 4
    assert plan_of(Unread((10_000, 12_000), chunk_rows=100), allowed=4096 * MIB).tile_groups == 0


def test_it_is_named_where_it_was_not_asked_for() -> None:
    source = Unread((200_000, 12_000), chunk_rows=100)
    process = sp.PCA(2).plan(np.eye(3)).memory["process"]
    with pytest.raises(
        PlanError, match=r"solver='covariance', asked for by name, would need \d passes and 595 MiB of disk"
    ):
        sp.PCA(1000, memory=process + 1000 * MIB).plan(source)
    with pytest.raises(PlanError) as refused:
        sp.PCA(1000, memory=process + 180 * MIB).plan(source)
    assert "by name" not in str(refused.value)


@pytest.mark.parametrize("n_components", [300, None, 0.9, sp.Threshold(1e-3)])
def test_at_most_a_tenth_of_the_components(n_components: Any) -> None:
    with pytest.raises(PlanError, match="expected a count of at most 210"):
        plan_of(Unread((5000, D), chunk_rows=100), k=n_components)


@pytest.mark.parametrize(
    "options", [{"missing": "drop_rows"}, {"missing": "mean"}, {"missing": "pairwise"}, {"forgetting": 0.9}]
)
def test_only_plain_rows(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="only for dense rows without missing values and without forgetting"):
        plan_of(Unread((5000, D), chunk_rows=100), **options)


class Changing(Source):
    """Rows that are others from a reading on."""

    description = "changing"

    def __init__(self, rows: NDArray[Any], reading: int):
        self.rows, self.changes_after = rows, reading
        self.shape, self.dtype = (rows.shape[0], rows.shape[1]), rows.dtype
        self.buffered = False
        self.read_rows = 0

    @property
    def fingerprint(self) -> str:
        return "changing"

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        values = self.rows[start:stop].copy()
        if self.read_rows >= self.changes_after * self.shape[0]:
            values[0, 3] += 1
        self.read_rows += stop - start
        return values, ReadCount(0, values.nbytes, values.nbytes)


@pytest.fixture
def temporary(tmp_path: Path) -> Any:
    """Have temporary files made in a directory of the test."""
    place = tmp_path / "temporary"
    place.mkdir()
    with dask_config.set({"temporary-directory": str(place)}):
        yield place


@pytest.mark.parametrize("reading", [1, 2])
def test_rows_that_change_between_readings_are_told(reading: int, temporary: Path) -> None:
    source = Changing(make_rows(), reading)
    plan = plan_of(source, allowed=TIGHT - 14 * MIB)
    assert plan.passes > reading
    with pytest.raises(
        DataError, match=f"reading {reading + 1} of {plan.passes} of changing: the mean of feature 3 is"
    ):
        fit(source, plan)
    assert list(temporary.iterdir()) == []


def sizes_of(directory: Path) -> list[int]:
    """Return the sizes of all files below a directory."""
    return [file.stat().st_size for file in directory.rglob("*") if file.is_file()]


def test_temporary_files_are_there_while_it_lasts(temporary: Path) -> None:
    rows, sizes = make_rows(), list[list[int]]()
    plan = plan_of(rows)
    fit(rows, plan, options={"progress": lambda _: sizes.append(sizes_of(temporary))})
    assert sizes[0] == []
    assert len(sizes[-1]) == 1
    assert 0 < sizes[-1][0] < plan.disk_bytes
    assert list(temporary.iterdir()) == []


def test_temporary_files_that_are_cut_short_are_told(temporary: Path) -> None:
    rows = make_rows()

    def cut(_: Any) -> None:
        for file in temporary.rglob("*"):
            if file.is_file():
                os.truncate(file, file.stat().st_size - 1)

    with pytest.raises(OutputError, match="before the end of tile"):
        fit(rows, plan_of(rows), options={"progress": cut})
    assert list(temporary.iterdir()) == []


def test_no_room_is_told_before_anything_is_read() -> None:
    source = Unread((2_000_000, 2_000_000))
    with pytest.raises(NoSpaceError, match=r"14\.6 TiB will be written"):
        fit(source, plan_of(source, allowed=2**42))


def test_progress_runs_once_through_all_readings() -> None:
    rows, steps = make_rows(), list[Any]()
    plan = plan_of(rows)
    fit(rows, plan, options={"progress": steps.append})
    counted = [step.rows for step in steps]
    assert counted == sorted(counted)
    assert counted[-1] == plan.passes * N == steps[-1].n_samples
    assert steps[-1].bytes == plan.bytes_to_read


def tight() -> int:
    """Return a ceiling for `make_rows()`, with what this process takes now, that takes several groups."""
    process: int = sp.PCA(5, solver="covariance").plan(make_rows()).memory["process"]
    return process + TIGHT - 174 * MIB


def test_no_state_is_kept(tmp_path: Path) -> None:
    rows = make_rows()
    pca = sp.PCA(5, solver="covariance", memory=tight()).fit(rows)
    assert pca.n_passes_ == pca.plan_.tile_groups > 1
    assert pca.bytes_read_ == pca.n_passes_ * rows.nbytes
    with pytest.raises(MergeError, match="in memory, not on disk"):
        pca.partial_fit(rows)
    with pytest.raises(MergeError, match="in memory, not on disk"):
        pca.save(tmp_path / "model", state=True)
    with pytest.raises(MergeError, match="in memory, not on disk"):
        sp.merge([pca, sp.PCA(5, solver="covariance").fit(rows)])
    np.testing.assert_array_equal(sp.load(pca.save(tmp_path / "model")).components_, pca.components_)
    with pytest.raises(PlanError, match="would be on disk, where no rows can be added"):
        sp.PCA(5, solver="covariance", memory=tight()).partial_fit(rows)


def test_a_run_whose_state_is_wanted_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", make_rows())
    document = {
        "version": 1,
        "name": "disk",
        "source": {"path": str(tmp_path / "x.npy")},
        "model": {"kind": "pca", "n_components": 5, "solver": "covariance"},
        "resources": {"memory": tight()},
        "output": {"directory": str(tmp_path / "run"), "state": True, "scores": False, "report": False},
    }
    import yaml

    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=r"on disk, .* keeps no state"):
        sp.run(path)
    document["output"]["state"] = False  # type: ignore[index]
    path.write_text(yaml.safe_dump(document))
    assert sp.run(path).manifest["passes"] > 1


def test_the_time_of_more_readings_is_expected() -> None:
    source = Unread((100_000, 12_000), chunk_rows=100)
    process = sp.PCA(2).plan(np.eye(3)).memory["process"]
    plans = [sp.PCA(20, solver="covariance", memory=process + size * MIB).plan(source) for size in (276, 526, 4000)]
    assert plans[0].passes > plans[1].passes > plans[2].passes == 1
    assert plans[0].expected_seconds > plans[1].expected_seconds > plans[2].expected_seconds
