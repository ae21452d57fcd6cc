"""Damaged and missing chunks, in every chain of codecs: found, or what was written; each loop in a process of its own."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import missing
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from score import Score
from stores import REPOSITORY, Command, chunk_files, config_text, make_values, picture, write_store
from strategies import in_depth

import streampca as sp
from streampca.errors import DataError, MissingInnerChunkError
from streampca.sources import open_source

SEED = int(os.environ.get("STREAMPCA_TEST_SEED", "20261121"))


def stretch(loop: str, count: int, seed: int, seconds: float) -> Score:
    """Run a loop of scripts/faults in a process of its own; one that crashes or hangs is told with the command that repeats it."""
    command = [
        sys.executable,
        REPOSITORY / "scripts/faults.py",
        "--stretch",
        loop,
        "--count",
        str(count),
        "--seed",
        str(seed),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        pytest.fail(f"more than {seconds:.0f} s: scripts/faults --only {loop} --count {count} --seed {seed}")
    assert done.returncode == 0, f"scripts/faults --only {loop} --count {count} --seed {seed}: {done.stderr[-2000:]}"
    return Score(**json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_damages_of_stores_are_named_or_change_nothing() -> None:
    n = in_depth(200, 900)
    score = stretch("corruption", n, SEED, 240)
    print(score.line(), *score.notes, sep="\n")
    score.require_clean()
    assert score.injected > 0.94 * n  # some change nothing
    assert score.detected + score.survived == score.injected
    assert score.detected > 0.8 * score.injected


@pytest.mark.slow
def test_60_stores_with_missing_chunks() -> None:
    score = missing.run(60, SEED)
    score.require_clean()
    assert score.detected == score.injected == 60


@pytest.mark.slow
@settings(max_examples=20)
@given(layout=st.sampled_from(sorted(missing.LAYOUTS)), chosen=st.integers(0, 2**18 - 1))
def test_any_subset_of_the_chunks(tmp_path_factory, layout, chosen):
    missing.check(
        layout,
        lambda chunks: [chunk for i, chunk in enumerate(chunks) if chosen >> i & 1],
        tmp_path_factory.mktemp("missing"),
    )


def test_a_shard_that_lacks_one_of_its_chunks(tmp_path, capsys):
    store = tmp_path / "x.zarr"
    array = zarr.create_array(str(store), shape=(400, 8), chunks=(25, 8), shards=(100, 8), dtype="f8", fill_value=1.0)
    values = make_values()
    values[125:150] = 1.0  # left out, because it is all fill value and zarr was not told to write such chunks
    array[...] = values
    assert len(chunk_files(store)) == 4
    with pytest.raises(MissingInnerChunkError, match=r"chunk c/1/0: the shard does not hold its inner chunk \(1, 0\)"):
        sp.PCA(2).fit(store)
    (tmp_path / "c.yaml").write_text(config_text(store, tmp_path / "out"))
    before = picture(tmp_path)
    Command(capsys).quietly("run", tmp_path / "c.yaml").refused(5, "c/1/0", "missing_chunks: fill")
    assert picture(tmp_path) == before
    (values_read, _) = open_source(store, missing_chunks="fill").read(0, 400)
    assert values_read.tobytes() == values.tobytes()


@pytest.mark.filterwarnings("ignore:Combining a")
def test_empty_index_of_a_compressed_shard_raises(tmp_path):
    """A shard behind a compressor is decoded as a whole, where zarr takes an index without any chunk for fill values."""
    store = tmp_path / "x.zarr"
    sharding = zarr.codecs.ShardingCodec(chunk_shape=(25, 8), index_codecs=[zarr.codecs.BytesCodec()])
    array = zarr.create_array(
        str(store), shape=(100, 8), chunks=(50, 8), dtype="f8", serializer=sharding, compressors=zarr.codecs.GzipCodec()
    )
    values = make_values(100)
    array[...] = values
    assert open_source(store).read(0, 100)[0].tobytes() == values.tobytes()
    chunk_files(store)[0].write_bytes(gzip.compress(b"\xff" * 32))  # two inner chunks that are not there
    for rows in ((0, 100), (0, 25)):
        with pytest.raises(MissingInnerChunkError, match="does not hold its inner chunk"):
            open_source(store).read(*rows)


@pytest.mark.skipif(not hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"), reason="zarr >= 3.3 has this pipeline")
def test_missing_inner_chunk_raises_with_the_fused_pipeline_of_zarr(tmp_path):
    store = tmp_path / "x.zarr"
    array = zarr.create_array(
        str(store), shape=(400, 8), chunks=(25, 8), shards=(100, 8), dtype="f8", fill_value=1.0, compressors=None
    )
    values = make_values()
    array[...] = values
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"}):
        assert open_source(store).read(0, 400)[0].tobytes() == values.tobytes()
        values[125:150] = 1.0
        array[...] = values
        for rows in ((0, 400), (125, 150)):
            with pytest.raises(MissingInnerChunkError, match=r"does not hold its inner chunk \(1, 0\)"):
                open_source(store).read(*rows)


def test_a_shard_whose_index_leads_elsewhere(tmp_path):
    """An index without a checksum may say anything: places behind the end, sizes of 2^62 bytes."""
    store = tmp_path / "x.zarr"
    sharding = zarr.codecs.ShardingCodec(chunk_shape=(25, 8), index_codecs=[zarr.codecs.BytesCodec()])
    array = zarr.create_array(
        str(store), shape=(100, 8), chunks=(50, 8), dtype="f8", serializer=sharding, compressors=None
    )
    array[...] = make_values(100)
    shard = chunk_files(store)[0]
    whole = shard.read_bytes()
    for place, length in (
        (2**63, 25 * 64),
        (0, 2**62),
        (2**64 - 2, 2**64 - 2),
        (10**6, 25 * 64),
        (0, 0),
        (8, 25 * 64 - 8),
    ):
        shard.write_bytes(whole[:-32] + place.to_bytes(8, "little") + length.to_bytes(8, "little") + whole[-16:])
        for rows in ((0, 100), (0, 25)):
            with pytest.raises(DataError, match="chunk c/0/0"):
                open_source(store).read(*rows)
    shard.write_bytes(whole)
    assert open_source(store).read(0, 100)[0].tobytes() == make_values(100).tobytes()


def test_numbers_that_are_silently_other_numbers_are_found_by_a_fingerprint(tmp_path, capsys):
    store = write_store(tmp_path / "x.zarr")
    command = Command(capsys)
    assert command.quietly("fingerprint", store).status == 0
    first, second = chunk_files(store)[:2]
    swapped = first.read_bytes(), second.read_bytes()
    second.write_bytes(swapped[0])
    first.write_bytes(swapped[1])
    (tmp_path / "c.yaml").write_text(config_text(store, tmp_path / "out"))
    command.quietly("run", tmp_path / "c.yaml", "--set", "source.verify=manifest").refused(5, "c/0/0", "fingerprint")
