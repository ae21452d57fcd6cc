"""Damaged and incomplete stores: an error that names the chunk, or the right numbers; never a crash, never silence."""

from __future__ import annotations

import itertools
import json
import os
import random

import numpy as np
import pytest
import zarr
from stores import CHAINS, Command, call_apart, chunk_files, config_text, make_values, picture, write_store

import streampca as sp
from streampca.errors import DamagedChunkError, DataError, MissingChunkError, NotFiniteError, PlanError
from streampca.sources import open_source
from streampca.sources.zarr_store import ZarrSource

LAYOUTS = {
    "v3": {"version": 3, "chunks": (50, 8)},
    "v3 in both axes": {"version": 3, "chunks": (70, 3)},
    "v3 compressed": {"version": 3, "chunks": (50, 8), "chain": "zstd+crc32c"},
    "v2": {"version": 2, "chunks": (50, 8)},
    "v2 compressed": {"version": 2, "chunks": (50, 8), "chain": "gzip"},
    "sharded": {"version": 3, "chunks": (25, 8), "shards": (50, 8)},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how_many", ["one", "two", "six", "all"])
def test_missing_chunks_are_an_error_before_anything_is_read(tmp_path, monkeypatch, layout, how_many):
    store = write_store(tmp_path / "x.zarr", **LAYOUTS[layout])
    chunks = chunk_files(store)
    gone = sorted(random.Random(layout).sample(chunks, {"one": 1, "two": 2, "six": 6, "all": len(chunks)}[how_many]))
    for chunk in gone:
        chunk.unlink()
    monkeypatch.setattr(ZarrSource, "read", lambda *_: pytest.fail("it read"))
    with pytest.raises(MissingChunkError) as caught:
        sp.PCA().fit(store)
    message = str(caught.value)
    assert message.startswith(f"{store}: {len(gone)} of {len(chunks)} chunks do not exist, first: ")
    named = message.split("first: ")[1].split(";")[0].split(", ")
    assert len(named) == min(5, len(gone))
    assert set(named) <= {chunk.relative_to(store).as_posix() for chunk in gone}
    assert "missing_chunks: fill" in message


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
    assert any(f"{len(gone)} chunk(s)" in line for line in finished.manifest["warnings"]) == bool(gone)
    scatter = np.cov(expected.T)
    np.testing.assert_allclose(finished.model.mean_, expected.mean(axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        finished.model.explained_variance_, np.linalg.eigvalsh(scatter)[::-1], atol=1e-12 * max(1, np.trace(scatter))
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_chunk_that_vanishes_after_the_check_is_an_error(tmp_path, monkeypatch, layout):
    store = write_store(tmp_path / "x.zarr", **LAYOUTS[layout])
    check, chunk = ZarrSource.check, chunk_files(store)[3]

    def and_then_it_goes(source):
        check(source)
        chunk.unlink()

    monkeypatch.setattr(ZarrSource, "check", and_then_it_goes)
    with pytest.raises(MissingChunkError, match=chunk.relative_to(store).as_posix()):
        sp.PCA().fit(store)


def test_a_chunk_that_vanishes_between_fit_and_scores_leaves_no_output(tmp_path, monkeypatch, capsys):
    store = write_store(tmp_path / "x.zarr")
    (tmp_path / "c.yaml").write_text(config_text(store, tmp_path / "out"))
    import streampca.runs

    write = streampca.runs.write_scores

    def it_goes_and_then(*arguments, **options):
        chunk_files(store)[1].unlink()
        return write(*arguments, **options)

    monkeypatch.setattr(streampca.runs, "write_scores", it_goes_and_then)
    Command(capsys).quietly("run", tmp_path / "c.yaml").refused(5, "c/1/0")
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


def _flip(data, rng, other):
    data = bytearray(data)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _truncate(data, rng, other):
    return data[: rng.randrange(1, len(data))]


def _lengthen(data, rng, other):
    return data + rng.randbytes(rng.randrange(1, 100))


def _zero_page(data, rng, other):
    start = rng.randrange(max(1, len(data) - 512))
    return data[:start] + bytes(len(data[start : start + 512])) + data[start + 512 :]


def _swap_halves(data, rng, other):
    half = rng.randrange(1, len(data))
    return data[half:] + data[:half]


def _garbage(data, rng, other):
    return rng.randbytes(len(data))


def _empty(data, rng, other):
    return b""


def _other_chunk(data, rng, other):
    return other


DAMAGES = [_flip, _truncate, _lengthen, _zero_page, _swap_halves, _garbage, _empty, _other_chunk]
CHECKED = ("crc32c", "zstd-checksum", "gzip", "zstd+crc32c")
"""Chains that notice every change of their bytes."""


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("reader", ["direct", "zarr"])
def test_damage_is_noticed_or_the_numbers_are_those_of_the_damaged_bytes(tmp_path, chain, reader):
    """Every chain: never a crash. Where there is a checksum: every damage is found. Truncation is always found."""
    seed = int(os.environ.get("STREAMPCA_TEST_SEED", "20240711"))
    rng = random.Random(seed)
    store = write_store(tmp_path / "x.zarr", chain=chain)
    chunk, other = chunk_files(store)[2], chunk_files(store)[1].read_bytes()
    whole = chunk.read_bytes()
    silent: dict[str, int] = {}
    for attempt, damage in itertools.product(range(12), DAMAGES):
        damaged = damage(whole, rng, other)
        if damaged == whole:
            continue
        chunk.write_bytes(damaged)
        what = (
            f"seed {seed}: {chain}, {reader} reader, {damage.__name__} {attempt}: {len(whole)} to {len(damaged)} bytes"
        )
        source = open_source(store)
        assert source.direct is not None
        if reader == "zarr":
            source.direct = None
        try:
            sp.PCA().fit(source)
        except NotFiniteError:
            continue  # found by the numbers themselves
        except DamagedChunkError as error:
            message = str(error)
            assert len(message.splitlines()) == 1, what
            assert len(message) < 500, what
            assert str(store) in message, what
            assert "chunk c/2/0 (codec " in message, (what, message)
            continue
        except DataError as error:
            raise AssertionError(what) from error
        silent[damage.__name__] = silent.get(damage.__name__, 0) + 1
        assert damage not in (_truncate, _empty), what
        assert chain not in CHECKED or damage is _other_chunk, what
    print(f"seed {seed}, {chain}, {reader}: silent of 12 each {silent}")


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_a_shard_is_noticed(tmp_path, damage):
    """zarr puts a checksum on the index of a shard; the chunks inside have that of their chain."""
    rng = random.Random(5)
    store = write_store(tmp_path / "x.zarr", chunks=(25, 8), shards=(100, 8), chain="zstd+crc32c")
    shard, other = chunk_files(store)[2], chunk_files(store)[1].read_bytes()
    whole = shard.read_bytes()
    for _ in range(5):
        damaged = damage(whole, rng, other)
        shard.write_bytes(damaged)
        if damage is _other_chunk:
            sp.PCA().fit(store)  # a whole shard is a valid one wherever it stands
        else:
            with pytest.raises(DataError):
                sp.PCA().fit(store)
    shard.write_bytes(whole)
    assert sp.PCA().fit(store).n_samples_seen_ == 400


@pytest.mark.parametrize("version", [2, 3])
def test_damaged_metadata_is_a_named_error_or_a_correct_reading(tmp_path, version):
    rng = random.Random(11)
    store = write_store(tmp_path / "x.zarr", version=version)
    place = store / ("zarr.json" if version == 3 else ".zarray")
    whole = place.read_bytes()
    for attempt in range(150):
        damage = rng.choice([_flip, _truncate, _swap_halves, _empty])
        place.write_bytes(damage(whole, rng, b""))
        message = ""
        try:
            sp.PCA(memory="1GiB").plan(store)
            sp.PCA(memory="1GiB").fit(store)
        except (DataError, PlanError) as error:
            message = str(error)
        assert len(message.splitlines()) <= 1, (attempt, damage, message)


HOSTILE_METADATA = [
    {"shape": [2**64, 8]},
    {"shape": [2**62, 2**62]},
    {"shape": [-1, 8]},
    {"shape": [400, 8, "x"]},
    {"shape": None},
    {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 8]}}},
    {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10**9, 64]}}},
    {"chunk_grid": {"name": "irregular", "configuration": {}}},
    {"data_type": "r8"},
    {"data_type": {"name": "os.system", "configuration": {}}},
    {"codecs": []},
    {"codecs": [{"name": "os.system"}]},
    {"codecs": [{"name": "bytes", "configuration": {"endian": "middle"}}]},
    {"fill_value": "NaNaN"},
    {"attributes": {"feature_shape": [2**40, 2**40], "feature_names": [None] * 8}},
    {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/../"}}},
]


@pytest.mark.parametrize("change", HOSTILE_METADATA, ids=[json.dumps(change)[:60] for change in HOSTILE_METADATA])
def test_hostile_metadata_ends_in_one_line(tmp_path, capsys, change):
    store = write_store(tmp_path / "x.zarr")
    metadata = json.loads((store / "zarr.json").read_text())
    (store / "zarr.json").write_text(json.dumps(metadata | change))
    (tmp_path / "c.yaml").write_text(config_text(store, tmp_path / "out"))
    before = picture(tmp_path)
    called = Command(capsys).quietly("run", tmp_path / "c.yaml")
    if "attributes" in change:
        assert called.status == 0, called.err
    else:
        assert called.status in (5, 7), called.err
        called.refused(called.status, "x.zarr" if called.status == 5 else "exceeds")
        assert picture(tmp_path) == before


def test_deep_metadata_is_refused(tmp_path, capsys):
    (tmp_path / "x.zarr").mkdir()
    (tmp_path / "x.zarr/zarr.json").write_text("[" * 100_000)
    Command(capsys)("inspect", tmp_path / "x.zarr").refused(5, "x.zarr")


def test_damage_is_told_in_one_line_by_a_process_of_its_own(tmp_path):
    store = write_store(tmp_path / "x.zarr", chain="blosc")
    chunk = chunk_files(store)[3]
    chunk.write_bytes(chunk.read_bytes()[:-40])
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out"))
    for thread_count in ("1", "2"):
        called = call_apart("run", "c.yaml", "--set", f"resources.threads={thread_count}", directory=tmp_path)
        called.refused(5, "c/3/0", "blosc", "damaged or cut short")
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "c.yaml"}


@pytest.mark.distributed
def test_workers_name_the_chunk_too(tmp_path):
    store = write_store(tmp_path / "x.zarr", make_values(40_000, 8), chunks=(1000, 8), chain="zstd+crc32c")
    (tmp_path / "c.yaml").write_text(
        config_text("x.zarr", "out", "cluster: {kind: local, n_workers: 2, threads_per_worker: 1}")
    )
    os.truncate(chunk_files(store)[30], 100)
    key = chunk_files(store)[30].relative_to(store).as_posix()
    call_apart("run", "c.yaml", "--quiet", directory=tmp_path).refused(5, key, "damaged or cut short")
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "c.yaml"}
