"""The covariance matrix in groups of tiles on disk: the bits of the one in memory, few readings, and clear refusals."""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask import config as dask_config
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import streampca as sp
from streampca.accumulators import Covariance, ExactIntegerCovariance, TileGrid
from streampca.accumulators.disk_tiles import CovarianceGroup, DiskCovariance, TileFile, group_edges
from streampca.block import Block
from streampca.errors import ConfigError, DataError, MergeError, NoSpaceError, OutputError, PlanError
from streampca.parameters import Parameters
from streampca.planning.plan import Plan, Resources
from streampca.solvers import disk_covariance
from streampca.solvers.covariance import CovarianceSolver
from streampca.solvers.fit import Fit, fit
from streampca.sources import Source, open_source
from streampca.sources.base import ReadCount
from streampca.storage import directories as output
from streampca.system.blas_threads import one_blas_thread

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


def plan_of(
    source: Source, parameters: Parameters | None = None, *, allowed: int = TIGHT, threads: int = 2, **resources: Any
) -> Plan:
    """Return the plan of the covariance line beside a process of 150 MiB."""
    parameters = parameters or Parameters(5, solver="covariance")
    return CovarianceSolver().plan(source, parameters, Resources(allowed, 150 * MIB, threads, **resources))


@settings(max_examples=60)
@given(
    d=st.integers(1, 40),
    tile_size=st.integers(1, 20),
    n_groups=st.integers(1, 12),
    blocks=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    dtype=st.sampled_from(["float32", "float64", "int16", "uint8"]),
    weighted=st.booleans(),
)
def test_groups_are_the_matrix_bit_by_bit(
    d: int, tile_size: int, n_groups: int, blocks: list[int], dtype: str, weighted: bool
) -> None:
    draw = np.random.default_rng(d)
    rows = (draw.standard_normal((sum(blocks), d)) * 20 + 100).astype(dtype)
    weights = draw.uniform(0.5, 2.0, len(rows))
    whole: Any = Covariance(tile_size=tile_size)
    if dtype == "uint8" and not weighted:
        whole = ExactIntegerCovariance.of(dtype, whole)
    grid = whole.grid(d)
    edges = group_edges(grid.n_tiles, min(n_groups, grid.n_tiles))

    def scatter(accumulator: Any) -> NDArray[np.float64]:
        states, start = [], 0
        for n_rows in blocks:  # a leaf each
            own = weights[start : start + n_rows] if weighted else None
            block = Block(rows[start : start + n_rows], start, own)
            states.append(accumulator.update(accumulator.init(d), block))
            start += n_rows
        state = accumulator.merge(states)
        if isinstance(accumulator, ExactIntegerCovariance):
            state = accumulator.to_covariance(state)
        return np.asarray(state.scatter)

    parts = [scatter(disk_covariance._group_of(whole, *edge)) for edge in pairwise(edges)]
    assert np.concatenate(parts).tobytes() == scatter(whole).tobytes()


@pytest.fixture
def tiles(tmp_path: Path) -> tuple[TileFile, NDArray[np.float64]]:
    """Return a file of tiles, written in three groups, and the matrix that they make up."""
    grid = TileGrid(53, 8)
    flat = np.random.default_rng(0).standard_normal(grid.size)
    for i in range(len(grid.edges) - 1):
        tile = grid.tile(flat, i, i)
        tile += tile.T.copy()
    file = TileFile(tmp_path / "tiles", grid)
    edges = group_edges(grid.n_tiles, 3)
    sizes = [CovarianceGroup(tile_size=8, first=a, last=b).grid(53).size for a, b in pairwise(edges)]
    for part in np.split(flat, np.cumsum(sizes)[:-1]):
        file.append(part)
    return file, grid.dense(flat)


@pytest.mark.parametrize("n_vectors", [1, 16])
def test_products_with_a_file(
    tiles: tuple[TileFile, NDArray[np.float64]], n_vectors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, matrix = tiles
    np.testing.assert_array_equal(file.diagonal(), matrix.diagonal())
    vectors = np.random.default_rng(1).standard_normal((53, n_vectors))
    with one_blas_thread():
        one = file.multiply(vectors)
        np.testing.assert_allclose(one, matrix @ vectors, rtol=0, atol=53 * 1e-14)
        for n_threads in (2, 5):
            assert file.multiply(vectors, n_threads).tobytes() == one.tobytes()
    read: Counter[tuple[int, int]] = Counter()
    tile = TileFile.tile
    monkeypatch.setattr(TileFile, "tile", lambda self, i, j: read.update([(i, j)]) or tile(self, i, j))
    file.multiply(vectors, 2)
    assert read == dict.fromkeys(file.grid.pairs, 1)


def test_a_file_that_is_gone_or_cut_short_is_told(tiles: tuple[TileFile, NDArray[np.float64]]) -> None:
    file, _ = tiles
    os.truncate(file.path, file.path.stat().st_size - 1)
    with pytest.raises(OutputError, match="ends 1 bytes before the end of tile"):
        file.multiply(np.ones((53, 2)), 2)
    file.path.unlink()
    with pytest.raises(OutputError, match="cannot be read: No such file"):
        file.multiply(np.ones((53, 2)), 2)


@pytest.mark.parametrize(
    ("number", "error", "said"),
    [(errno.ENOSPC, NoSpaceError, "no room for the tiles"), (errno.EACCES, OutputError, "cannot be written")],
)
def test_a_disk_that_is_full_or_refuses(
    number: int, error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("streampca.accumulators.disk_tiles.open", refusing, raising=False)
    with pytest.raises(error, match=said):
        TileFile(tmp_path / "tiles", TileGrid(3, 3)).append(np.zeros(9))


def test_what_is_on_disk_is_never_formed(tiles: tuple[TileFile, NDArray[np.float64]]) -> None:
    file, _ = tiles
    whole = Covariance(tile_size=8)
    state = whole.update(whole.init(53), np.random.default_rng(0).standard_normal((60, 53)))
    reduced = DiskCovariance.of(whole, file).finalize(state)
    assert reduced.scatter.size == 0
    with pytest.raises(PlanError, match="at most a tenth"):
        reduced.dense()


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


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_matrix_in_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, options = KINDS[kind]
    source, parameters = open_source(make_rows(dtype)), Parameters(5, solver="covariance", **options)
    # Of a panel with weights, each of the two threads copies the rows whose weight is not zero.
    copies = 2 * 8 * N * D if parameters.sample_weight is not None else 0
    plan = plan_of(source, parameters, allowed=TIGHT + copies)
    assert plan.tile_groups == plan.passes > 1
    written: list[NDArray[np.float64]] = []
    append = TileFile.append
    monkeypatch.setattr(TileFile, "append", lambda self, tiles: written.append(tiles.copy()) or append(self, tiles))
    on_disk = fit(source, parameters, plan, keep_rows=7)
    in_memory = fit(source, parameters, plan.replace(tile_groups=0, passes=1), keep_rows=7)
    assert len(written) == plan.tile_groups
    assert np.concatenate(written).tobytes() == in_memory.fitted_state.state.scatter.tobytes()
    found, expected = on_disk.model, in_memory.model
    np.testing.assert_allclose(found.explained_variance, expected.explained_variance, rtol=1e-12)
    np.testing.assert_allclose(found.components, expected.components, atol=1e-10)
    np.testing.assert_array_equal(found.mean, expected.mean)
    assert found.total_variance == expected.total_variance
    assert found.n_samples == expected.n_samples
    assert found.certificate["trusted_above"] == expected.certificate["trusted_above"]
    np.testing.assert_array_equal(on_disk.samples.values, in_memory.samples.values)  # type: ignore[union-attr]
    assert on_disk.count.bytes == plan.bytes_to_read == plan.passes * in_memory.count.bytes
    assert on_disk.fitted_state is None


def test_threads_have_no_say_in_the_bits() -> None:
    source, parameters = open_source(make_rows()), Parameters(5, solver="covariance")
    plans = [plan_of(source, parameters, threads=threads) for threads in (1, 2, 3)]
    assert len({plan.rows_per_block for plan in plans}) == 1
    assert plans[0].threads == 1 < plans[1].threads
    found = [fit(source, parameters, plan).model for plan in plans]
    assert len({model.components.tobytes() for model in found}) == 1
    assert len({model.explained_variance.tobytes() for model in found}) == 1


class Unread(Source):
    """A source of any shape that must not be read."""

    description = "unread"

    def __init__(self, shape: tuple[int, int], dtype: str = "float32", chunk_rows: int = 100):
        self.shape, self.dtype, self.chunk_rows = shape, np.dtype(dtype), chunk_rows
        self.chunk_bytes = chunk_rows * shape[1] * self.dtype.itemsize

    @property
    def fingerprint(self) -> str:
        return "unread"

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> tuple[NDArray[Any], ReadCount]:
        raise AssertionError("read before the plan was accepted")


@settings(max_examples=60)
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
    work = disk_covariance._Work(source, Covariance(), 5, Resources(allowed, 150 * MIB, threads))
    assert plan.passes == plan.tile_groups <= TileGrid(d, 1024).n_tiles
    assert plan.disk_bytes == 8 * TileGrid(d, 1024).size
    assert plan.bytes_to_read >= plan.passes * n * source.row_bytes
    alone = plan_of(source, allowed=allowed, threads=1)
    assert alone.rows_per_block == plan.rows_per_block
    assert alone.tile_groups <= plan.tile_groups <= 2 * alone.tile_groups
    if alone.tile_groups > 1:  # one group fewer, with the same blocks, would not do
        larger = -(-work.grid.n_tiles // (alone.tile_groups - 1))
        assert work.budget(alone.rows_per_block, 1, larger).projected_bytes > 0.99 * allowed


def test_the_plan_says_what_it_takes() -> None:
    plan = plan_of(Unread((10_000, 12_000)), Parameters(20, solver="covariance"), allowed=500 * MIB)
    text = str(plan)
    assert f"{plan.passes} passes" in text
    assert "which are kept on disk" in text
    assert any("595 MiB of temporary files" in note for note in plan.notes)
    assert any(note.startswith("in memory: projected") for note in plan.notes)
    assert plan.memory["tiles"] > 0
    assert plan.bytes_to_read == plan.passes * 10_000 * 12_000 * 4
    assert plan_of(Unread((10_000, 12_000)), allowed=4096 * MIB).tile_groups == 0


@pytest.mark.parametrize("solver", ["auto", "gram"])
def test_it_is_named_where_it_was_not_asked_for(solver: str) -> None:
    source, parameters = Unread((200_000, 12_000)), Parameters(20, solver=solver)
    with pytest.raises(
        PlanError, match=r"solver='covariance', asked for by name, would take \d passes and 595 MiB of disk"
    ):
        plan_of(source, parameters, allowed=500 * MIB)
    with pytest.raises(PlanError) as refused:
        plan_of(source, parameters, allowed=180 * MIB)
    assert "by name" not in str(refused.value)


@pytest.mark.parametrize("n_components", [300, None, 0.9, sp.Threshold(1e-3)])
def test_at_most_a_tenth_of_the_components(n_components: Any) -> None:
    with pytest.raises(PlanError, match="expected a count of at most 210"):
        plan_of(Unread((5000, D)), Parameters(n_components, solver="covariance"))


@pytest.mark.parametrize(
    "options", [{"missing": "drop_rows"}, {"missing": "mean"}, {"missing": "pairwise"}, {"forgetting": 0.9}]
)
def test_only_plain_rows(options: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="only for dense rows without missing values and without forgetting"):
        plan_of(Unread((5000, D)), Parameters(5, solver="covariance", **options))


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
        fit(source, Parameters(5, solver="covariance"), plan)
    assert list(temporary.iterdir()) == []


def test_temporary_files_are_there_while_it_lasts(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(make_rows())
    plan = plan_of(source)
    sizes: list[int] = []
    finalize = DiskCovariance.finalize

    def seen(self: DiskCovariance, state: Any) -> Any:
        sizes.extend(file.stat().st_size for file in temporary.rglob("*") if file.is_file())
        return finalize(self, state)

    monkeypatch.setattr(DiskCovariance, "finalize", seen)
    fit(source, Parameters(5, solver="covariance"), plan)
    assert sizes == [plan.disk_bytes]
    assert list(temporary.iterdir()) == []


def test_no_room_is_told_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Unread((5000, D))
    plan = plan_of(source)
    usage = type("Usage", (), {"free": plan.disk_bytes})
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(NoSpaceError, match="will be written"):
        fit(source, Parameters(5, solver="covariance"), plan)


def test_progress_runs_once_through_all_readings() -> None:
    source, steps = open_source(make_rows()), list[Any]()
    plan = plan_of(source)
    fit(source, Parameters(5, solver="covariance"), plan, progress=steps.append)
    rows = [step.rows for step in steps]
    assert rows == sorted(rows)
    assert rows[-1] == plan.passes * N == steps[-1].n_samples
    assert steps[-1].bytes == plan.bytes_to_read


@pytest.fixture
def small_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have plans made for a process of 150 MiB, whatever this one holds."""
    monkeypatch.setattr("streampca.solvers.fit.process_bytes", lambda: 150 * MIB)


@pytest.mark.usefixtures("small_process")
def test_no_state_is_kept(tmp_path: Path) -> None:
    rows = make_rows()
    pca = sp.PCA(5, solver="covariance", memory=TIGHT).fit(rows)
    assert pca.n_passes_ == pca.plan_.tile_groups > 1
    assert pca.bytes_read_ == pca.n_passes_ * rows.nbytes
    with pytest.raises(MergeError, match="in memory, not on disk"):
        pca.partial_fit(rows)
    with pytest.raises(MergeError, match="in memory, not on disk"):
        pca.save(tmp_path / "model", state=True)
    with pytest.raises(MergeError, match="in memory, not on disk"):
        sp.merge([pca, sp.PCA(5, solver="covariance").fit(rows)])
    np.testing.assert_array_equal(sp.load(pca.save(tmp_path / "model")).components_, pca.components_)
    with pytest.raises(PlanError, match="would be on disk, where it is not a state"):
        sp.PCA(5, solver="covariance", memory=TIGHT).partial_fit(rows)


@pytest.mark.usefixtures("small_process")
def test_a_run_whose_state_is_wanted_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", make_rows())
    document = {
        "version": 1,
        "name": "disk",
        "source": {"path": str(tmp_path / "x.npy")},
        "model": {"kind": "pca", "n_components": 5, "solver": "covariance"},
        "resources": {"memory": TIGHT},
        "output": {"directory": str(tmp_path / "run"), "state": True, "scores": False, "report": False},
    }
    import yaml

    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="on disk it keeps no state"):
        sp.run(path)
    document["output"]["state"] = False  # type: ignore[index]
    path.write_text(yaml.safe_dump(document))
    assert sp.run(path).manifest["passes"] > 1


def test_the_time_of_more_readings_is_expected() -> None:
    from streampca.planning.cost import expected_seconds, nominal_rates

    source, parameters = Unread((100_000, 12_000)), Parameters(20, solver="covariance")
    plans = [plan_of(source, parameters, allowed=allowed * MIB) for allowed in (450, 700, 4096)]
    assert plans[0].passes > plans[1].passes > plans[2].passes == 1
    rates = [replace(nominal_rates(plan), read=1e7) for plan in plans]  # a slow store, so that reading counts
    seconds = [expected_seconds(plan, rate) for plan, rate in zip(plans, rates, strict=True)]
    assert seconds[0] - seconds[1] == pytest.approx((plans[0].bytes_to_read - plans[1].bytes_to_read) / 1e7, rel=0.05)
    assert seconds[1] > seconds[2]


def test_what_comes_back_is_exact_and_keeps_no_state() -> None:
    source = open_source(make_rows("float64"))
    found = fit(source, Parameters(5, solver="covariance"), plan_of(source))
    assert isinstance(found, Fit)
    assert found.model.certificate["kind"] == "exact"
    assert found.model.certificate["eigen_solver"] == "block krylov"
    assert found.fitted_state is None
