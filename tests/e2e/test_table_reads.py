"""Tables of arrays of any number of dimensions: every stored chunk is read once in every pass, by every solver."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from test_reads import CountingStore, stored_keys
from zarr.storage import MemoryStore

import streampca as sp
from streampca.sources import Source

RNG = np.random.default_rng(0)
CUBE = RNG.standard_normal((60, 50, 12)).astype("f4")
MOVIE = RNG.standard_normal((200, 16, 16)).astype("f4")
LAND = np.arange(16 * 16).reshape(16, 16) % 5 > 1
NORTHERN = LAND & (np.arange(16)[:, None] < 12)
DATA: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name: arrays as (values, dims, chunks, attributes), keywords
    "cube": ({"cube": (CUBE, "y x band", (20, 25, 4), {})}, {"samples": ["y", "x"]}),
    "cube turned": ({"cube": (CUBE, "y x band", (20, 25, 4), {})}, {"samples": ["x", "y"]}),
    "movie": ({"movie": (MOVIE, "time y x", (32, 8, 8), {})}, {"samples": "time"}),
    "movie with a mask": ({"movie": (MOVIE, "time y x", (32, 8, 8), {})}, {"samples": "time", "mask": LAND}),
    "movie with a mask that leaves fewer features in the last band": (
        {"movie": (MOVIE, "time y x", (32, 8, 8), {})},
        {"samples": "time", "mask": NORTHERN},
    ),
    "packed": (
        {
            "movie": (
                (MOVIE.transpose(1, 0, 2) * 1000).astype("i2"),
                "y time x",
                (8, 32, 16),
                {"scale_factor": 0.01, "_FillValue": -32768},
            )
        },
        {"samples": "time", "mask": LAND},
    ),
    "variables of other grids": (
        {
            "u": (MOVIE, "time y x", (32, 8, 8), {}),
            "v": ((MOVIE[:, :, 0].T * 1000).astype("i2"), "y time", (5, 40), {"scale_factor": 0.01}),
            "w": (MOVIE[:, 0, 0].astype("f8"), "time", (64,), {}),
        },
        {"samples": "time", "variables": ["u", "v", "w"]},
    ),
}
SOLVERS: dict[str, Any] = {
    "covariance": lambda: sp.PCA(4, solver="covariance"),
    "gram": lambda: sp.PCA(4, solver="gram"),
    "sketch": lambda: sp.PCA(4, solver="sketch", sketch_size=10, pilot=0, max_passes=1),
    "adaptive": lambda: sp.PCA(4, solver="adaptive", sketch_size=10, pilot=0, max_passes=1),
    "kernel": lambda: sp.KernelPCA(4, gamma=0.01, n_landmarks=20),
}


def write(name: str, place: Any) -> dict[str, Any]:
    """Write the arrays to a store and return the keywords that open them."""
    arrays, options = DATA[name]
    group = zarr.create_group(place)
    for array, (values, dims, chunks, attributes) in arrays.items():
        group.create_array(
            array,
            shape=values.shape,
            dtype=values.dtype,
            chunks=chunks,
            dimension_names=dims.split(),
            attributes=attributes,
            config={"write_empty_chunks": True},
        )[...] = values
    return options


def expected(source: Source) -> Any:
    return np.linalg.eigvalsh(np.cov(source.read(0, source.shape[0])[0].astype("f8").T))[::-1][:4]


@pytest.mark.deep(keep=11)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", DATA)
def test_every_chunk_of_a_store_is_requested_once_in_every_pass(name: str, solver: str, tmp_path: Path) -> None:
    memory = MemoryStore()
    options = write(name, memory)
    group = zarr.open_group(CountingStore(memory.with_read_only(read_only=True)), mode="r")
    store = group.store
    assert isinstance(store, CountingStore)
    source = sp.open(group, **options)
    values = expected(source)
    keys = stored_keys(store._store)
    store.gets.clear()
    pca = SOLVERS[solver]()
    plan = pca.plan(source)
    assert store.gets == {}
    pca.fit(source)
    passes = {"gram": 2, "kernel": plan.passes}.get(solver, 1)
    assert {key for key, _ in store.gets} == keys
    if solver == "kernel":  # and its landmarks are read beforehand
        assert set(store.gets.values()) <= {passes, passes + 1}
    else:
        assert set(store.gets.values()) == {passes}
        arrays = DATA[name][0].values()
        assert pca.bytes_read_ == plan.bytes_to_read == passes * sum(array[0].nbytes for array in arrays)
        assert not any("decoded" in note for note in plan.notes)
    if solver in ("covariance", "gram"):
        np.testing.assert_allclose(pca.explained_variance_, values, rtol=1e-5)
    store.gets.clear()
    pca.transform_to(source, tmp_path / "scores.zarr")
    assert set(store.gets.values()) == {1}
    assert {key for key, _ in store.gets} == keys
    store.gets.clear()
    lazy = np.asarray(pca.transform(source).compute(scheduler="synchronous")).reshape(-1, 4)
    assert set(store.gets.values()) == {1}
    np.testing.assert_allclose(zarr.open_array(tmp_path / "scores.zarr" / "scores", mode="r")[...], lazy, atol=1e-4)


@pytest.mark.parametrize("solver", ["covariance", "gram"])
@pytest.mark.parametrize("name", DATA)
def test_every_file_is_opened_once_in_every_pass(name: str, solver: str, opened: Counter[str], tmp_path: Path) -> None:
    options = write(name, str(tmp_path / "x.zarr"))
    source = sp.open(tmp_path / "x.zarr", **options)
    pca = SOLVERS[solver]()
    pca.fit(source)
    files = {str(path) for path in (tmp_path / "x.zarr").rglob("*") if path.is_file() and path.name != "zarr.json"}
    assert dict(opened) == dict.fromkeys(files, 2 if solver == "gram" else 1)


@pytest.mark.parametrize(
    "name",
    ["movie with a mask", "movie with a mask that leaves fewer features in the last band", "variables of other grids"],
)
def test_masked_features_in_small_blocks_are_read_between_the_edges_of_chunks(
    name: str, opened: Counter[str], tmp_path: Path, blocks_of: Any
) -> None:
    """A mask leaves bands of chunks of unequal numbers of features, which equal blocks would cut."""
    options = write(name, str(tmp_path / "x.zarr"))
    source = sp.open(tmp_path / "x.zarr", **options)
    blocks_of(max(np.diff(source.by_features().grid.edges)))
    pca = sp.PCA(4, solver="gram").fit(source)
    assert pca.plan_.n_blocks > 1
    assert pca.bytes_read_ == pca.plan_.bytes_to_read
    assert set(opened.values()) == {2}
    np.testing.assert_allclose(pca.explained_variance_, expected(source), rtol=1e-5)


@pytest.mark.parametrize("name", ["movie with a mask", "variables of other grids"])
def test_bands_larger_than_a_block_are_copied_to_disk_so_that_chunks_are_read_once(
    name: str, opened: Counter[str], tmp_path: Path, blocks_of: Any
) -> None:
    options = write(name, str(tmp_path / "x.zarr"))
    source = sp.open(tmp_path / "x.zarr", **options)
    n_block = max(np.diff(source.by_features().grid.edges)) // 2 - 1
    blocks_of(n_block)
    pca = sp.PCA(4, solver="gram").fit(source)
    assert set(opened.values()) == {1}
    assert pca.bytes_read_ == pca.plan_.bytes_to_read
    np.testing.assert_allclose(pca.explained_variance_, expected(source), rtol=1e-5)


def test_rows_that_cut_bands_of_two_sample_dimensions_read_a_chunk_once(opened: Counter[str], tmp_path: Path) -> None:
    write("cube", str(tmp_path / "x.zarr"))
    source = sp.open(tmp_path / "x.zarr", samples=["y", "x"])
    rows, count = source.read(37, 512)  # parts of rows of the image at both ends
    np.testing.assert_array_equal(rows, CUBE.reshape(3000, 12)[37:512])
    assert set(opened.values()) == {1}
    assert count.chunks == len(opened) == 6


def test_array_without_features_is_read_into_one_column_of_a_table(tmp_path: Path) -> None:
    """Its rows are not beside each other in memory, and those of the first place of an image are a single one."""
    image = np.arange(12.0).reshape(3, 4)
    group = zarr.create_group(tmp_path / "x.zarr")
    for name, values, dims in (("a", np.stack([image, -image], axis=2), ("y", "x", "band")), ("b", image, ("y", "x"))):
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=values.shape,
            dimension_names=dims,
            compressors=None,
            config={"write_empty_chunks": True},
        )
        array[...] = values
    source = sp.open(tmp_path / "x.zarr", samples=["y", "x"], variables=["a", "b"])
    expected = np.stack([image, -image, image], axis=2).reshape(12, 3)
    for start in range(12):
        for stop in range(start + 1, 13):
            np.testing.assert_array_equal(source.read(start, stop)[0], expected[start:stop])
