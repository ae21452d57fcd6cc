"""Chunks behind a URL: decoded as in files, requested once, many at once, in ranges where they are large, within the memory of the plan."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import pickle
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from stores import config_text, make_values, write_store
from web import Web

import streampca as sp
from streampca.errors import DamagedChunkError, DataError, MissingChunkError, StoreError
from streampca.planning.read_ahead import READ_AHEAD_BYTES
from streampca.sources import open_source
from streampca.sources.fetching import division, read_ahead, transfer
from streampca.sources.fetching.read_ahead import ReadAhead
from streampca.sources.fetching.requests import Block, Part, StoredChunk
from streampca.sources.fetching.transfer import Fetched
from streampca.sources.schedule import Schedule
from streampca.storage.zarr_interface import event_loop

pytest.importorskip("aiohttp", reason="the extra s3 is not installed")

VALUES = make_values(430, 24)
LAYOUTS = {
    "none": {"chain": "none", "chunks": (100, 24)},
    "narrow": {"chain": "none", "chunks": (70, 10)},
    "crc32c": {"chain": "crc32c", "chunks": (100, 24)},
    "zstd": {"chain": "zstd", "chunks": (100, 24)},
    "blosc": {"chain": "blosc", "chunks": (43, 7)},
    "gzip": {"chain": "gzip", "chunks": (100, 24)},
    "zstd+crc32c": {"chain": "zstd+crc32c", "chunks": (100, 24)},
    "v2": {"chain": "zstd", "chunks": (100, 24), "version": 2},
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    root = tmp_path_factory.mktemp("stores")
    for name, layout in LAYOUTS.items():
        write_store(root / name, VALUES, **layout)
    return root


@pytest.fixture
def web(stores):
    with Web(stores) as server:
        yield server


@pytest.fixture
def small_parts(monkeypatch):
    """Let chunks of more than 5 kB be requested in ranges of 4 kB."""
    monkeypatch.setattr(division, "RANGE_BYTES", 4_000)
    monkeypatch.setattr(division, "WHOLE_BYTES", 5_000)


def fit(path, **options):
    return sp.PCA(3, solver="covariance", **options).fit(path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_and_counts_are_those_of_files_whatever_the_codec(web, stores, name):
    remote, local = open_source(f"{web.url}/{name}"), open_source(stores / name)
    assert remote.describe()["reader"] == "direct"
    for start, stop in ((0, 430), (37, 333)):
        rows, count = remote.read(start, stop)
        np.testing.assert_array_equal(rows, VALUES[start:stop])
        assert count.chunks == local.read(start, stop)[1].chunks
    np.testing.assert_array_equal(remote.by_features().read(3, 20)[0], VALUES.T[3:20])


@pytest.mark.parametrize("name", ["none", "narrow", "zstd", "gzip"])
def test_fit_requests_every_chunk_once(web, stores, name):
    expected = fit(stores / name)
    pca = fit(f"{web.url}/{name}")
    assert pca.components_.tobytes() == expected.components_.tobytes()
    assert pca.bytes_read_ == expected.bytes_read_
    chunks = [path.relative_to(stores).as_posix() for path in (stores / name / "c").rglob("*") if path.is_file()]
    assert web.requests == Counter({(chunk, None): 1 for chunk in chunks})


@pytest.mark.parametrize("name", ["none", "narrow", "zstd", "zstd+crc32c"])
def test_large_chunks_are_requested_in_ranges_and_every_byte_once(web, stores, small_parts, name):
    expected, pca = fit(stores / name), fit(f"{web.url}/{name}")
    assert pca.components_.tobytes() == expected.components_.tobytes()
    paths = {path for path, _ in web.requests}
    assert sum(span is not None for _, span in web.requests) >= 2 * len(paths) - 1
    for path in paths:
        assert web.sent_bytes(path) == (stores / path).stat().st_size


def test_parts_with_other_entity_tags_are_not_joined_and_the_chunk_is_requested_as_a_whole(web, small_parts):
    numbers = itertools.count()
    web.tag_of = lambda _: f'"{next(numbers)}"'
    source = open_source(f"{web.url}/none")
    np.testing.assert_array_equal(source.read(0, len(VALUES))[0], VALUES)
    assert any(span is None for _, span in web.requests)


def test_requests_in_flight_do_not_depend_on_the_threads(web, stores, monkeypatch):
    web.n_awaited = 9
    source = open_source(f"{web.url}/blosc")  # 40 chunks
    plan = sp.PCA(3, solver="covariance").plan(source).replace(threads=1, leaves_in_flight=1, window=1)
    assert plan.shape.read_ahead_bytes == READ_AHEAD_BYTES == plan.memory["read ahead"]
    web.n_awaited, web.n_waiting = 32, 0
    pca = fit(source)
    assert web.all_came.is_set()
    assert pca.components_.tobytes() == fit(stores / "blosc").components_.tobytes()


@pytest.mark.parametrize("fault", ["serves_ranges", "redirects", "closes", "shortens"])
def test_servers_that_ignore_or_shorten_ranges_redirect_or_close_connections_give_the_same_rows(
    web, small_parts, fault
):
    setattr(web, fault, fault != "serves_ranges")
    for name in ("none", "zstd", "crc32c"):
        source = open_source(f"{web.url}/{name}")
        for _ in range(2):
            np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)


@pytest.mark.parametrize("fault", ["redirects", "serves_ranges"])
def test_plan_counts_whole_chunks_where_the_server_sends_no_ranges_or_another_client_holds_them_twice(
    web, small_parts, fault
):
    setattr(web, fault, fault == "redirects")
    source = open_source(f"{web.url}/zstd")
    most = source.direct.requests.division.most
    n_copies = 2 if fault == "redirects" else 1
    assert source.overhead_bytes(430) >= 3 * n_copies * most
    assert source.direct.requests.division.request_bytes == n_copies * most
    assert not web.requests
    fit(f"{web.url}/zstd")
    assert sum(web.requests.values()) == 5


@pytest.mark.parametrize("fault", ["", "redirects"])
def test_query_of_a_url_goes_with_every_request_and_into_no_message_or_file(web, tmp_path, monkeypatch, fault):
    web.query = "token=canary-7f3e%2Ba%2F"
    if fault:
        setattr(web, fault, True)
    url = f"{web.url}/zstd?{web.query}"
    np.testing.assert_array_equal(open_source(url).read(0, 430)[0], VALUES)
    assert open_source(url).store._store.transfer.receives_in_place
    again = pickle.loads(pickle.dumps(open_source(url)))
    np.testing.assert_array_equal(again.read(0, 430)[0], VALUES)
    assert b"canary" not in pickle.dumps(again)
    monkeypatch.setenv("TOKEN", "canary-7f3e%2Ba%2F")
    (tmp_path / "c.yaml").write_text(config_text(f"{web.url}/zstd?token=${{TOKEN}}", str(tmp_path / "out")))
    sp.run(tmp_path / "c.yaml")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [path for path in files if b"canary" in path.read_bytes()]
    with pytest.raises(StoreError, match="status 403") as caught:
        open_source(url.replace("7f3e", "other"))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("name", ["X-Amz-Signature", "X-Goog-Signature", "Signature"])
def test_url_that_is_signed_for_one_object_is_refused_without_the_signature(name):
    with pytest.raises(DataError, match=r"https://host/x\.zarr: its query is a signature") as caught:
        open_source(f"https://host/x.zarr?X-Amz-Date=1&{name}=canary")
    assert "canary" not in str(caught.value)


def test_server_that_sends_another_range_than_the_requested_one_is_an_error(web, small_parts):
    source, web.shifts = open_source(f"{web.url}/none"), True
    with pytest.raises(
        StoreError, match=r"c/\d/0.*the server sent bytes from byte \d+, where those from byte \d+ were requested"
    ):
        source.read(0, 430)


def test_missing_and_damaged_chunks_are_named_and_damaged_ones_requested_three_times(tmp_path):
    store = write_store(tmp_path / "x", VALUES, chain="zstd-checksum", chunks=(100, 24))
    with Web(tmp_path) as web:
        (store / "c/2/0").write_bytes((store / "c/2/0").read_bytes()[:-9])
        with pytest.raises(DamagedChunkError, match=r"chunk c/2/0 \(codec zstd\) is damaged"):
            open_source(f"{web.url}/x").read(0, 430)
        assert web.requests["x/c/2/0", None] == 3
        (store / "c/2/0").write_bytes(b"")
        with pytest.raises(DamagedChunkError, match="the file is empty"):
            open_source(f"{web.url}/x").read(0, 430)
        (store / "c/2/0").write_bytes(bytes(10**6))
        with pytest.raises(DamagedChunkError, match="1,000,000 bytes stored, expected at most"):
            open_source(f"{web.url}/x").read(0, 430)
        (store / "c/2/0").unlink()
        with pytest.raises(MissingChunkError, match="chunk c/2/0 does not exist"):
            open_source(f"{web.url}/x").read(0, 430)


def test_large_chunk_that_is_cut_short_is_named(tmp_path, small_parts):
    store = write_store(tmp_path / "x", VALUES, chunks=(100, 24))
    with Web(tmp_path) as web:
        for n_bytes in (9_000, 0):
            (store / "c/2/0").write_bytes((store / "c/2/0").read_bytes()[:n_bytes])
            with pytest.raises(DamagedChunkError, match=r"chunk c/2/0 .* is damaged or cut short"):
                open_source(f"{web.url}/x").read(0, 430)


def test_plan_gives_what_the_ceiling_leaves_and_no_other_blocks(web, stores):
    local, source = open_source(stores / "zstd"), open_source(f"{web.url}/zstd")
    assert "read ahead" not in sp.PCA(3).plan(local).memory
    roomy = sp.PCA(3, solver="covariance").plan(source)
    needed = roomy.projected_bytes - READ_AHEAD_BYTES
    tight = sp.PCA(3, solver="covariance", memory=needed + 40 * 2**20).plan(source)
    assert 0 < tight.memory["read ahead"] < READ_AHEAD_BYTES
    assert tight.projected_bytes <= tight.allowed_bytes
    assert tight.shape.blocks == roomy.shape.blocks
    assert roomy.from_dict(roomy.to_dict()).shape == roomy.shape


@pytest.mark.parametrize("what", ["pilot", "kernel", "landmarks"])
def test_readings_on_one_thread_are_requested_ahead(web, stores, monkeypatch, what):
    schedules, ahead = [], ReadAhead.ahead
    monkeypatch.setattr(ReadAhead, "ahead", lambda self, schedule: schedules.append(schedule) or ahead(self, schedule))
    fits = {
        "pilot": lambda data: sp.PCA(3, solver="sketch", pilot=50, random_state=0).fit(data),
        "kernel": lambda data: sp.KernelPCA(3, method="exact").fit(data),
        "landmarks": lambda data: sp.KernelPCA(3, method="nystrom", sampling=[3, 77, 200, 401]).fit(data),
    }
    remote, local = fits[what](f"{web.url}/blosc"), fits[what](stores / "blosc")
    np.testing.assert_array_equal(remote.transform(VALUES), local.transform(VALUES))
    spans = [list(each.spans_of(0)) for each in schedules if (each.n_leaves, each.at_once) == (1, 1)]
    assert spans
    assert all(each.n_bytes == READ_AHEAD_BYTES for each in schedules)
    assert max(count for _, count in web.requests.items()) <= (1 if what == "kernel" else 2)


def test_run_states_the_memory_for_reading_ahead(web, stores, tmp_path):
    (tmp_path / "c.yaml").write_text(
        f"source: {{path: '{web.url}/zstd'}}\nmodel: {{n_components: 2, solver: covariance}}\n"
        f"resources: {{read_ahead: 1MiB}}\noutput: {{directory: {tmp_path / 'out'}, report: false}}\n"
    )
    run = sp.run(tmp_path / "c.yaml")
    plan = json.loads((run.directory / "plan.json").read_text())
    assert plan["read_ahead_bytes"] == plan["memory"]["read ahead"] == 2**20
    assert set(web.requests.values()) == {2}  # the fit and the scores


class Store:
    """A store whose answers come when they are released."""

    url = "memory://x"

    def __init__(self, size, held=True):
        self.size, self.n_requests = size, Counter()
        self.transfer = SimpleNamespace(receives_in_place=True, serves_ranges=True)
        self.released, self.in_flight, self.most_in_flight = threading.Event(), 0, 0
        if not held:
            self.released.set()

    async def fetch(self, key, span, buffer, most):
        self.n_requests[key, span] += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            while not self.released.is_set():
                await asyncio.sleep(0.001)
        finally:
            self.in_flight -= 1
        start, stop = (0, self.size) if span is None else span
        buffer[: stop - start] = bytes([int(key) % 251]) * (stop - start)
        return Fetched(buffer[: stop - start], self.size, span is not None)


def keys_of(start, stop):
    return [str(key) for key in range(start, stop)]


def schedule(n_leaves, n_blocks, n_bytes, at_once=2):
    """Return leaves of `n_blocks` blocks of 10 chunks each."""

    def spans_of(leaf):
        return [((leaf * n_blocks + i) * 10, (leaf * n_blocks + i + 1) * 10) for i in range(n_blocks)]

    return Schedule(n_leaves, spans_of, at_once, n_bytes)


def read(requests, span):
    """Read one block and check its bytes."""
    with requests.reading(*span) as chunks:
        for chunk in tuple(chunks):
            with requests.stored(chunk, lambda: np.empty(requests.division.most, np.uint8)) as stored:
                assert len(stored) == requests.division.most
                assert (stored == int(chunk.key) % 251).all()
                yield


def settled(requests):
    """Wait for the requests that were cancelled."""

    async def wait():
        while requests._n_requests:
            await asyncio.sleep(0.001)

    asyncio.run_coroutine_threadsafe(wait(), event_loop()).result(30)
    return requests


def drain(requests, spans):
    for span in spans:
        for _ in read(requests, span):
            pass


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [1_000, 10_000])
def test_memory_stays_within_the_schedule_and_every_part_is_requested_once(small_parts, size, known):
    store = Store(size, held=False)
    requests = ReadAhead(store, keys_of, size if known else None, size)
    most, release, plan = 0, requests._release_part, schedule(3, 2, 5 * requests.division.request_bytes)

    def released(*arguments):
        nonlocal most
        most = max(most, requests._held_bytes)
        release(*arguments)

    requests._release_part = released
    with requests.ahead(plan):
        drain(requests, [span for leaf in range(3) for span in plan.spans_of(leaf)])
    assert 0 < most <= plan.n_bytes + requests.division.least_bytes + requests.division.request_bytes
    assert settled(requests)._held_bytes == 0
    assert set(store.n_requests.values()) == {1}
    assert len({key for key, _ in store.n_requests}) == 60
    assert store.most_in_flight <= division.MOST_REQUESTS


def test_leaves_that_run_together_are_requested_together_and_their_blocks_in_order():
    store = Store(1_000)
    requests, plan = ReadAhead(store, keys_of, 1_000, 1_000), schedule(4, 2, 24_000)
    with requests.ahead(plan):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), event_loop()).result()
        requested = {int(key) for key, _ in store.n_requests}
        assert requested == {*range(12), *range(20, 32)}  # of leaves 0 and 1
        store.released.set()
        drain(requests, [(20, 30), (0, 10), (10, 20), (30, 40)])
        drain(requests, [(50, 60), (60, 70)])  # (40, 50) and the second half of the last leaf are not read
    assert settled(requests)._held_bytes == 0


def test_two_passes_and_blocks_out_of_any_schedule_are_read_at_once():
    store = Store(1_000, held=False)
    requests, plan = ReadAhead(store, keys_of, None, 1_000), schedule(2, 2, 8_000)
    failures = []

    def work(spans):
        try:
            with requests.ahead(plan):
                drain(requests, spans)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    spans = [span for leaf in range(2) for span in plan.spans_of(leaf)]
    threads = [threading.Thread(target=work, args=(given,)) for given in (spans, spans, [(100, 130), (3, 5)])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    assert settled(requests)._held_bytes == 0


def test_cancelled_readings_end_with_an_error_and_release_their_memory():
    store = Store(1_000)
    requests, plan = ReadAhead(store, keys_of, 1_000, 1_000), schedule(2, 2, 8_000)
    with ExitStack() as stack:
        stack.enter_context(requests.ahead(plan))
        reading = stack.enter_context(requests.reading(0, 10))
        requests.cancel()
        with pytest.raises(StoreError, match="the reading was stopped"), requests.stored(reading[9], lambda: None):
            pass
        with pytest.raises(StoreError, match="the reading was stopped"), requests.reading(10, 20):
            pass
    store.released.set()
    assert settled(requests)._held_bytes == 0


def test_requests_cancelled_at_the_end_of_the_process_are_not_followed_by_others():
    store = Store(1_000)
    requests, plan = ReadAhead(store, keys_of, 1_000, 1_000), schedule(4, 9, 10**6)

    async def end():
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with requests.ahead(plan):
        with requests.reading(0, 10) as chunks:
            asyncio.run_coroutine_threadsafe(end(), event_loop()).result(30)
            with pytest.raises(StoreError, match="the reading was stopped"), requests.stored(chunks[0], lambda: None):
                pass
        assert settled(requests)._held_bytes == 0
        assert store.n_requests.total() == division.MOST_REQUESTS
        with pytest.raises(StoreError, match="the reading was stopped"), requests.reading(10, 20):
            pass


def test_request_whose_event_loop_was_closed_is_released_without_another_loop(monkeypatch):
    monkeypatch.setattr(read_ahead, "event_loop", lambda: pytest.fail("an event loop was asked for"))
    loop = asyncio.new_event_loop()
    loop.close()
    requests, block = ReadAhead(Store(10), keys_of, 10, 10), Block((0, 1))
    part = Part(None, 10, task=SimpleNamespace(get_loop=lambda: loop, cancel=None), is_held=True)
    block.chunks.append(StoredChunk("0", [part], block))
    requests._close(block)
    assert not part.is_wanted


def test_connections_of_a_source_that_is_gone_are_closed_at_exit(web):
    open_source(f"{web.url}/zstd").read(0, 430)
    gc.collect()
    clients = [client for client in transfer._opened if client._idle]
    assert clients

    async def close():
        transfer.close_all()

    asyncio.run_coroutine_threadsafe(close(), event_loop()).result(30)
    assert not any(client._idle for client in clients)


def test_address_of_ipv6_is_read(stores):
    try:
        server = Web(stores, "::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server as web:
        assert web.url.startswith("http://[::1]:")
        np.testing.assert_array_equal(open_source(f"{web.url}/zstd").read(0, 430)[0], VALUES)


def test_ranges_by_a_client_that_does_not_tell_sizes_are_requested_once(small_parts, monkeypatch):
    values, url, asked = make_values(60, 300), "memory://ranges", Counter()
    array = zarr.create_array(url, shape=values.shape, dtype=values.dtype, chunks=(20, 300), compressors=None)
    array[...] = values
    fetch = MemoryFileSystem.cat_file

    def counted(file_system, path, start=None, end=None, **options):
        asked[path, start, end] += "/c/" in path
        return fetch(file_system, path, start=start, end=end, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counted)
    source = open_source(url)
    np.testing.assert_array_equal(source.read(0, 60)[0], values)
    chunk_bytes, n_parts = 20 * 300 * values.itemsize, -(-20 * 300 * values.itemsize // division.RANGE_BYTES)
    assert n_parts > 1
    assert sum(asked.values()) == 3 * n_parts
    files = MemoryFileSystem().store
    stored = files["/ranges/c/1/0"].getvalue()
    for altered in (stored + b"x", stored[:-1]):
        MemoryFileSystem().pipe_file("/ranges/c/1/0", altered)
        with pytest.raises(DamagedChunkError, match=f"c/1/0 .*{len(altered):,} bytes stored, expected {chunk_bytes:,}"):
            source.read(20, 40)


def test_parts_of_objects_of_other_sizes_are_not_joined(small_parts):
    store = Store(10_000, held=False)
    requests, fetch = ReadAhead(store, keys_of, None, 10_000), store.fetch

    async def grown(key, span, buffer, most):
        answer = await fetch(key, span, buffer, most)
        return answer if span is None or span[0] == 0 else replace(answer, total=10_001)

    store.fetch = grown
    with requests.reading(0, 1) as (chunk,), requests.stored(chunk, lambda: np.empty(10_000, np.uint8)) as stored:
        assert len(chunk.parts) > 1
        assert len(stored) < chunk.total
