"""Missing and damaged chunks in a run: counted, named by workers and commands, and nothing is left behind."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import zarr
from facade import blocks_of
from missing import LAYOUTS
from stores import call_apart, chunk_files, config_text, make_values, write_store

import streampca as sp
from streampca.errors import MissingChunkError
from streampca.sources import open_source


@pytest.mark.deep(keep=7)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how_many", [0, 1, 2, "all"])
def test_missing_chunks_are_filled_where_asked_and_counted(tmp_path, layout, how_many):
    store = write_store(tmp_path / "x.zarr", **LAYOUTS[layout], fill_value=2.5)
    chunks = chunk_files(store)
    gone = random.Random(layout).sample(chunks, len(chunks) if how_many == "all" else how_many)
    for chunk in gone:
        chunk.unlink()
    (tmp_path / "c.yaml").write_text(config_text(store, tmp_path / "out"))
    finished = sp.run(tmp_path / "c.yaml", overrides=["source.missing_chunks=fill"])
    expected = zarr.open_array(store, mode="r")[...]
    assert finished.manifest["source"]["missing_chunks_filled"] == len(gone)
    assert any(f"{len(gone)} chunk" in line for line in finished.manifest["notes"]) == bool(gone)
    scatter = np.cov(expected.T)
    np.testing.assert_allclose(finished.model.mean_, expected.mean(axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        finished.model.explained_variance_, np.linalg.eigvalsh(scatter)[::-1], atol=1e-12 * max(1, np.trace(scatter))
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_chunk_that_vanishes_after_the_check_is_an_error(tmp_path, layout):
    store = write_store(tmp_path / "x.zarr", **LAYOUTS[layout])
    source, chunk = open_source(store), chunk_files(store)[3]
    source.check()
    chunk.unlink()
    with pytest.raises(MissingChunkError, match=chunk.relative_to(store).as_posix()):
        source.read(0, 400)


def test_a_chunk_that_vanishes_between_fit_and_scores_leaves_no_output(tmp_path, no_checkpoints):
    store = write_store(tmp_path / "x.zarr")
    (tmp_path / "c.yaml").write_text(config_text(store, tmp_path / "out"))
    gone = chunk_files(store)[3]

    def it_goes(progress):
        if progress.phase == "scores":
            gone.unlink(missing_ok=True)

    with blocks_of(100), pytest.raises(MissingChunkError, match="c/3/0") as raised:
        sp.run(tmp_path / "c.yaml", overrides=["resources.threads=1"], progress=it_goes)
    assert raised.value.exit_status == 5
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "c.yaml"}


def test_a_missing_chunk_inside_a_group_and_of_features_first(tmp_path):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    values = make_values(60, 8)
    group.create_array("deep/x", data=values.T.copy(), chunks=(8, 20), config={"write_empty_chunks": True})
    source = open_source(tmp_path / "g.zarr", array="deep/x", orientation="features_first")
    np.testing.assert_array_equal(source.read(0, 60)[0], values)
    (tmp_path / "g.zarr/deep/x/c/0/1").unlink()
    with pytest.raises(MissingChunkError, match=r"1 of 3 chunks do not exist, first: c/0/1"):
        source.check()


@pytest.mark.slow
def test_damage_is_told_in_one_line_by_a_process_of_its_own(tmp_path, no_checkpoints):
    store = write_store(tmp_path / "x.zarr", chain="blosc")
    chunk = chunk_files(store)[3]
    chunk.write_bytes(chunk.read_bytes()[:-40])
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out"))
    for thread_count in ("1", "2"):
        called = call_apart("run", "c.yaml", "--set", f"resources.threads={thread_count}", directory=tmp_path)
        called.refused(5, "c/3/0", "blosc", "damaged or cut short")
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "c.yaml"}


@pytest.mark.deep
@pytest.mark.distributed
def test_workers_name_the_chunk_too(tmp_path, no_checkpoints):
    store = write_store(tmp_path / "x.zarr", make_values(40_000, 8), chunks=(1000, 8), chain="zstd+crc32c")
    (tmp_path / "c.yaml").write_text(
        config_text("x.zarr", "out", "cluster: {kind: local, n_workers: 2, threads_per_worker: 1}")
    )
    os.truncate(chunk_files(store)[30], 100)
    key = chunk_files(store)[30].relative_to(store).as_posix()
    call_apart("run", "c.yaml", "--quiet", directory=tmp_path).refused(5, key, "damaged or cut short")
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "c.yaml"}


def test_no_checkpoint_is_written_where_none_is_asked_for(tmp_path, all_checkpoints):
    store = write_store(tmp_path / "x.zarr")
    (tmp_path / "c.yaml").write_text(
        config_text(store, tmp_path / "out", "model: {n_components: 2, solver: sketch, pilot: 30}")
    )
    seen = {}

    def look(every):
        def note(_):
            seen.setdefault(every, set()).update(path.suffix for path in tmp_path.glob("out.checkpoint/*"))

        return note

    for every in ("1ms", "null"):
        changes = [f"checkpoint.every={every}", "output.overwrite=true"]
        with blocks_of(100):
            sp.run(tmp_path / "c.yaml", overrides=changes, progress=look(every))
    assert ".bin" in seen["1ms"]
    assert ".bin" not in seen["null"]
