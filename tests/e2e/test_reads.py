"""One honest read: `fit` takes every stored chunk exactly once, `transform_to` once more, `plan` none."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import dask.array as da
import facade
import numpy as np
import pytest
import zarr
from stores import config_text
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import streampca as sp
from streampca import PCA
from streampca.sources import open_source

ROWS = np.random.default_rng(0).standard_normal((2003, 37)).astype(np.float32)


class CountingStore(WrapperStore[Store]):
    """A store that counts how often every chunk, or a stretch of it, is asked for."""

    def __init__(self, store: Store):
        super().__init__(store)
        self.gets: Counter[tuple[str, str]] = Counter()

    def _with_store(self, store: Store) -> CountingStore:
        return type(self)(store)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if not key.endswith((".json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")):
            self.gets[key, str(byte_range)] += 1
        return await self._store.get(key, prototype, byte_range)


def stored_keys(store: Store) -> set[str]:
    """Return the keys of all stored chunks."""

    async def listed() -> set[str]:
        return {key async for key in store.list() if not key.split("/")[-1].endswith((".json", ".zarray", ".zattrs"))}

    return asyncio.run(listed())


GRIDS: dict[str, dict[str, Any]] = {
    "rows": {"chunks": (100, 37)},
    "uneven, both axes": {"chunks": (173, 10)},
    "columns": {"chunks": (2003, 5)},
    "shards": {"chunks": (50, 10), "shards": (200, 20)},
    "version 2": {"chunks": (128, 16), "zarr_format": 2},
    "one chunk": {"chunks": (2003, 37)},
}


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CountingStore:
    return CountingStore(MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "x.zarr"))


@pytest.mark.deep(keep=8)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("orientation", ["samples_first", "features_first"])
def test_a_counting_store(store: CountingStore, grid: str, orientation: str, tmp_path: Path) -> None:
    stored = ROWS if orientation == "samples_first" else np.ascontiguousarray(ROWS.T)
    options = dict(GRIDS[grid])
    for name in ("chunks", "shards"):
        if name in options and orientation == "features_first":
            options[name] = options[name][::-1]
    array = zarr.create_array(
        store, shape=stored.shape, dtype=stored.dtype, config={"write_empty_chunks": True}, **options
    )
    array[...] = stored
    store.gets.clear()
    keys = stored_keys(store._store)
    source = open_source(array, orientation=orientation)
    pca = PCA(5, solver="covariance")
    pca.plan(source)
    assert store.gets == {}
    pca.fit(source)
    # A shard that reaches beyond the array is read in stretches, each of them once.
    assert {key for key, _ in store.gets} == keys
    assert set(store.gets.values()) == {1}
    assert grid == "shards" or len(store.gets) == len(keys)
    assert pca.bytes_read_ == ROWS.nbytes
    pca.transform_to(source, tmp_path / "scores.zarr")
    assert set(store.gets.values()) == {2}
    scores = zarr.open_array(tmp_path / "scores.zarr" / "scores", mode="r")[...]
    np.testing.assert_allclose(scores, pca.transform(ROWS), atol=1e-4)


@pytest.mark.parametrize("grid", [name for name in GRIDS if name != "shards"])
def test_the_direct_reader(grid: str, opened: Counter[str], tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), shape=ROWS.shape, dtype=ROWS.dtype, **GRIDS[grid])[...] = ROWS
    files = {
        str(file)
        for file in path.rglob("*")
        if file.is_file() and not file.name.endswith((".json", ".zarray", ".zattrs"))
    }
    pca = PCA(5, solver="covariance")
    pca.plan(path)
    assert opened == {}
    pca.fit(path)
    assert dict(opened) == dict.fromkeys(files, 1)
    pca.transform_to(path, tmp_path / "scores.zarr")
    assert dict(opened) == dict.fromkeys(files, 2)


@pytest.mark.parametrize("chunks", [(100, 37), (100, 10), ((3, 500, 1, 1499), 37), ((1000, 3, 1000), (30, 7))])
def test_a_dask_array_is_computed_once(chunks: Any) -> None:
    computed: Counter[tuple[int, int]] = Counter()

    def block(block_info: Any = None) -> Any:
        computed[tuple(block_info[None]["chunk-location"])] += 1
        (a, b), (c, d) = block_info[None]["array-location"]
        return ROWS[a:b, c:d]

    array = da.map_blocks(block, chunks=da.core.normalize_chunks(chunks, ROWS.shape), dtype=ROWS.dtype, meta=ROWS[:0])
    computed.clear()
    PCA(5, solver="covariance").plan(array)
    assert computed == {}
    pca = PCA(5, solver="covariance").fit(array)
    assert set(computed.values()) == {1}
    assert len(computed) == array.npartitions
    lazy = pca.transform(array)
    assert set(computed.values()) == {1}
    lazy.compute(scheduler="synchronous")
    assert set(computed.values()) == {2}


def test_progress_tells_every_row_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), shape=ROWS.shape, dtype=ROWS.dtype, chunks=(100, 37))[...] = ROWS
    seen: list[Any] = []
    PCA(5, solver="covariance", progress=seen.append).fit(path)
    assert seen[-1].rows == len(ROWS)
    assert seen[-1].bytes == ROWS.nbytes
    assert {step.phase for step in seen} == {"fit"}


def test_a_matrix_on_disk_reads_every_chunk_once_for_each_group_of_tiles(opened: Counter[str], tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    rows = np.random.default_rng(1).standard_normal((330, 2100)).astype(np.float32)
    zarr.create_array(str(path), shape=rows.shape, dtype=rows.dtype, chunks=(50, 2100))[...] = rows
    files = {str(file) for file in path.rglob("*") if file.is_file() and not file.name.endswith(".json")}
    source = open_source(path)
    plan = facade.plan(source, allowed=215 * 2**20, k=5, solver="covariance")
    assert opened == {}
    assert plan.passes == plan.tile_groups > 1
    found = facade.fit(source, plan, k=5, solver="covariance")
    assert dict(opened) == dict.fromkeys(files, plan.passes)
    assert found.count.chunks == plan.passes * len(files)
    assert found.count.bytes == plan.bytes_to_read == plan.passes * rows.nbytes


APPROXIMATE: dict[str, dict[str, Any]] = {
    "sketch": {"solver": "sketch", "pilot": 0},
    "pilot": {"solver": "sketch", "pilot": 60},
    "adaptive": {"solver": "adaptive"},
    "adaptive z-scores": {"solver": "adaptive", "scale": True, "pilot": 60},
}


@pytest.mark.deep(keep=8)
@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("way", APPROXIMATE)
@pytest.mark.parametrize("grid", ["rows", "uneven, both axes"])
def test_approximate_solvers_read_each_chunk_once_in_each_pass(
    opened: Counter[str], grid: str, way: str, passes: int, tmp_path: Path
) -> None:
    """And the chunks of the pilot once more, which the plan announces with the bytes of everything."""
    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), shape=ROWS.shape, dtype=ROWS.dtype, **GRIDS[grid])[...] = ROWS
    files = {str(file) for file in path.rglob("*") if file.is_file() and not file.name.endswith(".json")}
    tolerance = None if passes == 1 else 0
    pca = PCA(5, sketch_size=20, max_passes=passes, tolerance=tolerance, **APPROXIMATE[way])
    planned = pca.plan(path)
    assert opened == {}
    pca.fit(path)
    bands, chunk_rows = planned.sketch["pilot_bands"], GRIDS[grid]["chunks"][0]
    assert (bands > 0) == ("pilot" in APPROXIMATE[way] and APPROXIMATE[way]["pilot"] > 0)
    again = [Path(file) for file, count in opened.items() if count == passes + 1]
    assert Counter(opened.values()) == Counter(
        {passes: len(files) - len(again)} | ({passes + 1: len(again)} if again else {})
    )
    assert set(opened) == files
    assert len({file.parent.name for file in again}) == bands
    assert len(again) == bands * -(-37 // GRIDS[grid]["chunks"][1])
    decoded = sum(min(chunk_rows, 2003 - chunk_rows * int(name)) for name in {file.parent.name for file in again})
    assert pca.n_passes_ == pca.error_["n_passes"] == planned.passes == passes
    assert pca.bytes_read_ == passes * ROWS.nbytes + decoded * 37 * 4
    # The last band may be shorter than the others, which the plan takes all to be whole.
    assert pca.bytes_read_ <= planned.bytes_to_read == passes * ROWS.nbytes + bands * chunk_rows * 37 * 4
    assert any("before the first pass 60 rows" in note for note in planned.notes) == (bands > 0)


@pytest.mark.deep(keep=8)
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("orientation", ["samples_first", "features_first"])
@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_two_passes_over_a_counting_store(store: CountingStore, grid: str, orientation: str, solver: str) -> None:
    """Through zarr, which decodes shards and stores that are no files."""
    stored = ROWS if orientation == "samples_first" else np.ascontiguousarray(ROWS.T)
    options = dict(GRIDS[grid])
    for name in ("chunks", "shards"):
        if name in options and orientation == "features_first":
            options[name] = options[name][::-1]
    array = zarr.create_array(
        store, shape=stored.shape, dtype=stored.dtype, config={"write_empty_chunks": True}, **options
    )
    array[...] = stored
    source = open_source(array, orientation=orientation)
    for passes in (1, 2):
        store.gets.clear()
        pca = PCA(5, solver=solver, pilot=0, sketch_size=15, max_passes=passes, tolerance=0)
        planned = pca.plan(source)
        assert store.gets == {}
        pca.fit(source)
        assert {key for key, _ in store.gets} == stored_keys(store._store)
        assert set(store.gets.values()) == {passes}
        assert pca.bytes_read_ == planned.bytes_to_read == passes * ROWS.nbytes


def test_single_rows_of_a_pilot_are_announced(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    pca = PCA(5, solver="sketch", sketch_size=20, pilot=60)
    planned = pca.plan(tmp_path / "x.npy")
    assert planned.sketch["pilot_bands"] == 0
    assert planned.bytes_to_read == ROWS.nbytes + 60 * 37 * 4
    assert pca.fit(tmp_path / "x.npy").bytes_read_ == planned.bytes_to_read


def test_a_tolerance_that_is_met_ends_the_reading(opened: Counter[str], tmp_path: Path) -> None:
    path, rows = tmp_path / "x.zarr", ROWS * 0.5 ** np.arange(37, dtype=np.float32)
    zarr.create_array(str(path), shape=rows.shape, dtype=rows.dtype, chunks=(100, 37))[...] = rows
    for solver, passes in (("sketch", 1), ("adaptive", 2)):
        pca = PCA(3, solver=solver, sketch_size=10, pilot=0, max_passes=7, tolerance=1e-3)
        assert pca.plan(path).passes == 7
        opened.clear()
        pca.fit(path)
        assert pca.error_["largest_relative_width"] <= 1e-3
        assert pca.n_passes_ <= passes
        assert set(opened.values()) == {pca.n_passes_}
        assert pca.bytes_read_ == pca.n_passes_ * rows.nbytes


def test_a_manifest_tells_the_readings_of_an_approximate_run(opened: Counter[str], tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    zarr.create_array(str(path), shape=ROWS.shape, dtype=ROWS.dtype, chunks=(100, 37))[...] = ROWS
    model = "{n_components: 4, solver: sketch, sketch_size: 20, pilot: 60, max_passes: 2, tolerance: 0}"
    text = config_text(path, tmp_path / "run", f"model: {model}", output="report: false, scores: false")
    (tmp_path / "c.yaml").write_text(text)
    opened.clear()
    manifest = json.loads((sp.run(tmp_path / "c.yaml").directory / "manifest.json").read_text())
    reads = manifest["reads"]["fit"]
    assert manifest["passes"] == manifest["certificate"]["n_passes"] == 2
    assert reads["chunks"] == sum(opened.values()) == 2 * 21 + manifest["approximation"]["pilot_bands"]
    assert 2 * ROWS.nbytes < reads["bytes"] <= 2 * ROWS.nbytes + manifest["approximation"]["pilot_bytes"]
