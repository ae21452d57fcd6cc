"""Shards behind a URL: the rows of local ones, the index requested once, adjacent inner chunks at once, and named errors."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from facade import requests_of
from stores import make_values, write_store
from web import Web
from zarr.codecs import TransposeCodec

import streampca as sp
from streampca.errors import ChangedInputError, DamagedChunkError, MissingChunkError, MissingInnerChunkError, StoreError
from streampca.sources import open_source

pytest.importorskip("obstore", reason="the extra remote is not installed")

VALUES = make_values(430, 24)
INDEX_BYTES = 16 * 8 + 4
LAYOUTS = {
    "none": {"chain": "none"},
    "zstd": {"chain": "zstd"},
    "crc32c": {"chain": "crc32c"},
    "gzip": {"chain": "gzip"},
    "start": {"chain": "zstd"},
}


@pytest.fixture
def stores(tmp_path):
    for name, layout in LAYOUTS.items():
        if name == "start":
            array = zarr.create_array(
                tmp_path / name,
                shape=VALUES.shape,
                dtype=VALUES.dtype,
                chunks=(25, 12),
                shards={"shape": (100, 24), "index_location": "start"},
            )
            array[...] = VALUES
        else:
            write_store(tmp_path / name, VALUES, chunks=(25, 12), shards=(100, 24), **layout)
    return tmp_path


@pytest.fixture
def web(stores):
    with Web(stores) as server:
        yield server


@pytest.fixture
def small_parts():
    """Let no shard be requested as a whole, and join inner chunks up to 6 kB, of which each has 2.4 kB."""
    with requests_of(6_000):
        yield


def fit(path):
    return sp.PCA(3, solver="covariance").fit(path)


def ranges(web, key):
    return {span: count for (path, span), count in web.requests.items() if path == key}


@pytest.mark.deep(keep=3)
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_rows_are_those_of_local_shards(web, stores, request, name, ignores_ranges):
    for parts in (False, True):
        if parts:
            request.getfixturevalue("small_parts")
        web.serves_ranges = not ignores_ranges
        remote, local = open_source(f"{web.url}/{name}"), open_source(stores / name)
        assert remote.describe()["reader"] == "direct"
        for start, stop in ((0, 430), (37, 333), (201, 202)):
            rows, count = remote.read(start, stop)
            np.testing.assert_array_equal(rows, VALUES[start:stop])
            assert count.chunks == local.read(start, stop)[1].chunks
        np.testing.assert_array_equal(remote.by_features().read(3, 20)[0], VALUES.T[3:20])


@pytest.mark.parametrize("name", ["none", "zstd"])
def test_small_shards_are_requested_once_each(web, stores, name):
    expected, pca = fit(stores / name), fit(f"{web.url}/{name}")
    assert pca.components_.tobytes() == expected.components_.tobytes()
    assert pca.bytes_read_ == expected.bytes_read_
    assert dict(web.requests) == {(f"{name}/c/{i}/0", None): 1 for i in range(5)}


@pytest.mark.deep(keep=3)
@pytest.mark.parametrize("name", ["none", "zstd", "start"])
@pytest.mark.parametrize("block_rows", [25, 1000])
def test_index_is_requested_once_and_every_byte_once_in_adjacent_ranges(
    web, stores, small_parts, blocks_of, name, block_rows
):
    blocks_of(block_rows)
    expected, pca = fit(stores / name), fit(f"{web.url}/{name}")
    assert pca.components_.tobytes() == expected.components_.tobytes()
    index = f"bytes=0-{INDEX_BYTES - 1}" if name == "start" else f"bytes=-{INDEX_BYTES}"
    for i in range(5):
        key = f"{name}/c/{i}/0"
        assert ranges(web, key)[index] == 1
        if block_rows == 1000:
            assert web.sent_bytes(key) == (stores / key).stat().st_size
            if i < 4:
                assert len(ranges(web, key)) == 1 + 8 // 2  # two inner chunks fit in a request
        assert set(ranges(web, key).values()) == {1}


def test_missing_and_damaged_shards_are_named_and_damaged_ones_requested_three_times(web, stores, small_parts):
    shard = stores / "zstd/c/1/0"
    whole = bytearray(shard.read_bytes())

    def read():
        return open_source(f"{web.url}/zstd").read(100, 200)

    shard.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(DamagedChunkError, match=r"chunk c/1/0 .*CRC-32C checksum of its index"):
        read()
    assert ranges(web, "zstd/c/1/0") == {f"bytes=-{INDEX_BYTES}": 3}
    shard.write_bytes(b"\0" * 40 + whole[40:])
    web.requests.clear()
    with pytest.raises(DamagedChunkError, match=r"chunk c/1/0 \(codec zstd\) is damaged"):
        read()
    assert ranges(web, "zstd/c/1/0")[f"bytes=-{INDEX_BYTES}"] == 1
    assert max(ranges(web, "zstd/c/1/0").values()) == 3
    shard.write_bytes(whole[-INDEX_BYTES:])
    with pytest.raises(DamagedChunkError, match="a chunk outside the shard"):
        read()
    shard.write_bytes(b"")
    with pytest.raises(DamagedChunkError, match=r"c/1/0"):
        read()
    shard.unlink()
    with pytest.raises(MissingChunkError, match="chunk c/1/0 does not exist"):
        read()


@pytest.mark.parametrize("parts", [False, True])
def test_inner_chunk_that_is_not_stored_is_an_error_or_filled(tmp_path, request, parts):
    if parts:
        request.getfixturevalue("small_parts")
    values = VALUES.copy()
    values[100:125, 12:] = 7.0
    values[200:300] = 7.0
    array = zarr.create_array(
        tmp_path / "x", shape=values.shape, dtype=values.dtype, chunks=(25, 12), shards=(100, 24), fill_value=7.0
    )
    array[...] = values
    store = zarr.storage.ObjectStore(
        pytest.importorskip("obstore.store").LocalStore(tmp_path / "x"), read_only=True
    )  # which lists its keys
    source = open_source(store)
    assert source.describe()["reader"] == "direct"
    with pytest.raises(MissingInnerChunkError, match=r"chunk c/1/0: the shard does not hold its inner chunk \(0, 1\)"):
        source.read(100, 200)
    with pytest.raises(MissingChunkError, match="chunk c/2/0 does not exist"):
        source.read(200, 300)
    filled = open_source(store, missing_chunks="fill")
    np.testing.assert_array_equal(filled.read(0, 430)[0], values)
    np.testing.assert_allclose(fit(filled).mean_, values.mean(0))


def test_cancelled_reading_ends_while_an_index_is_awaited(web, small_parts):
    source, web.n_awaited = open_source(f"{web.url}/zstd"), 99
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(source.read, 0, 430)
        while not web.n_waiting:
            time.sleep(0.01)
        source.cancel()
        with pytest.raises(StoreError, match="the reading was stopped"):
            reading.result(20)
    web.n_awaited = 0
    web.all_came.set()
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)


@pytest.mark.deep(keep=4)
@pytest.mark.parametrize("place", ["local", "URL"])
@pytest.mark.parametrize("rows", [25, 40, 50, 100, 130, 430])
def test_plans_count_the_inner_chunks_that_blocks_decode(web, stores, small_parts, blocks_of, place, rows):
    source = open_source(stores / "zstd" if place == "local" else f"{web.url}/zstd")
    counts = [source.read(start, min(start + rows, 430))[1] for start in range(0, 430, rows)]
    blocks_of(rows)
    planned = sp.PCA(3, solver="covariance").plan(source).bytes_to_read
    assert sum(count.bytes for count in counts) == planned
    assert (planned > VALUES.nbytes) == (rows in (40, 130))


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_shards_that_zarr_decodes_are_read_from_a_server_without_ranges_once_for_a_block(tmp_path, index_location):
    shards = {"shape": (100, 24), "index_location": index_location}
    filters = [TransposeCodec(order=(1, 0))]
    array = zarr.create_array(
        tmp_path / "x", shape=VALUES.shape, dtype="f8", chunks=(25, 12), shards=shards, filters=filters
    )
    array[...] = VALUES
    with Web(tmp_path) as web:
        web.serves_ranges = False
        source = open_source(f"{web.url}/x")
        assert source.describe()["reader"] == "zarr"
        np.testing.assert_array_equal(source.read(30, 60)[0], VALUES[30:60])
        web.requests.clear()
        for start in range(0, 430, 43):
            np.testing.assert_array_equal(source.read(start, start + 43)[0], VALUES[start : start + 43])
        assert web.requests == {(f"x/c/{i}/0", None): n for i, n in enumerate((3, 3, 3, 4, 1))}
        source.check()
        shard = tmp_path / "x/c/4/0"
        shard.write_bytes(b"")
        with pytest.raises(DamagedChunkError, match=r"c/4/0.*the file is empty"):
            source.read(400, 430)
        web.serves_ranges = True
        with pytest.raises(DamagedChunkError, match=r"c/4/0.*the file is empty"):
            open_source(f"{web.url}/x").read(400, 430)


def test_rows_are_read_again_while_indexes_of_a_reading_that_failed_are_on_their_way(web, stores, small_parts):
    """The same indexes are then requested a second time, and the answers to the first requests come in between."""
    shard = stores / "zstd/c/0/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-5] + b"other")
    web.delay_of = lambda name: 0.0 if name.startswith("zstd/c/0/") else 0.5
    source = open_source(f"{web.url}/zstd")
    with pytest.raises(DamagedChunkError, match="checksum of its index"):
        source.read(0, 430)
    shard.write_bytes(whole)
    rows = []
    reading = threading.Thread(target=lambda: rows.append(source.read(0, 430)[0]), daemon=True)  # not to wait for ever
    reading.start()
    reading.join(30)
    np.testing.assert_array_equal(rows, [VALUES])


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_shards_of_a_client_of_fsspec_are_read(index_location):
    url = f"memory://index-at-{index_location}"
    shards = {"shape": (100, 24), "index_location": index_location}
    array = zarr.create_array(url, shape=VALUES.shape, dtype=VALUES.dtype, chunks=(25, 12), shards=shards)
    array[...] = VALUES
    source = open_source(url)
    assert source.describe()["reader"] == "direct"
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    np.testing.assert_array_equal(source.read(37, 333)[0], VALUES[37:333])


def test_shards_of_a_server_without_ranges_are_requested_as_a_whole_once_for_a_block(web, small_parts):
    web.serves_ranges = False
    source = open_source(f"{web.url}/zstd")
    for start, stop in ((0, 430), (110, 130)):
        web.requests.clear()
        np.testing.assert_array_equal(source.read(start, stop)[0], VALUES[start:stop])
        assert set(web.requests) == {(f"zstd/c/{i}/0", None) for i in range(start // 100, -(-stop // 100))}
        assert set(web.requests.values()) == {1}


def rewritten(web, file, more, tag):
    """Write a shard again, its first two inner chunks exchanged, once its index is sent; `tag` makes the entity tag."""
    stored, done = file.read_bytes(), []

    def tag_of(asked):
        found = tag(asked)
        if asked == file and not done:
            done.append(file.write_bytes(stored[2400:4800] + stored[:2400] + stored[4800:] + more))
        return found

    web.tag_of = tag_of


@pytest.mark.parametrize(
    ("tag", "refused"), [(lambda file: f'"{file.stat().st_mtime_ns}"', True), (lambda _: '"same"', False)]
)
def test_shard_that_is_written_again_after_its_index_was_read_is_an_error(web, stores, small_parts, tag, refused):
    """Uncompressed inner chunks in another order would otherwise be taken for each other; without tags nobody can tell."""
    source, file = open_source(f"{web.url}/none"), stores / "none/c/0/0"
    rewritten(web, file, b"", tag)
    if refused:
        with pytest.raises(ChangedInputError, match="none/c/0/0: the shard was written again after its index was read"):
            source.read(0, 100)
    else:
        source.read(0, 100)


def test_shard_of_another_size_than_when_its_index_was_read_is_an_error(web, stores, small_parts):
    source = open_source(f"{web.url}/none")
    rewritten(web, stores / "none/c/0/0", b"more", lambda _: '"same"')
    with pytest.raises(ChangedInputError, match="its entity tag or size differs"):
        source.read(0, 100)


@pytest.mark.parametrize("age", [86_400.0, 120.0, 5.0, None])
def test_copies_with_other_tags_are_one_shard_if_their_times_are_old_and_the_same(web, small_parts, age):
    """Several servers of one address: nginx and Apache make tags of times and inodes."""
    numbers, now = itertools.count(), time.time()
    web.tag_of = lambda _: f'"{next(numbers)}"'
    web.modified_of = None if age is None else lambda _: now - age
    source = open_source(f"{web.url}/none")
    if age is not None and age > 60:
        np.testing.assert_array_equal(source.read(0, len(VALUES))[0], VALUES)
        return
    with pytest.raises(ChangedInputError, match="several servers answer at this address, name one of them, or give"):
        source.read(0, len(VALUES))
