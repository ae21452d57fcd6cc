"""Chunks behind a URL: decoded as in files, requested once, many at once, in ranges where they are large, within the memory of the plan."""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from facade import requests_of
from stores import config_text, make_values, write_store
from web import Web

import streampca as sp
from streampca.errors import DamagedChunkError, DataError, MissingChunkError, StoreError
from streampca.sources import open_source

pytest.importorskip("obstore", reason="the extra remote is not installed")

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
def small_parts():
    """Let chunks of more than 5 kB be requested in ranges of 4 kB."""
    with requests_of(4_000, 5_000):
        yield


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


def test_requests_in_flight_do_not_depend_on_the_threads(web, stores):
    web.n_awaited = 9
    source = open_source(f"{web.url}/blosc")  # 40 chunks
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


@pytest.mark.parametrize("fault", ["", "redirects"])
def test_query_of_a_url_goes_with_every_request_and_into_no_message_or_file(web, tmp_path, monkeypatch, fault):
    web.query = "token=canary-7f3e%2Ba%2F"
    if fault:
        setattr(web, fault, True)
    url = f"{web.url}/zstd?{web.query}"
    np.testing.assert_array_equal(open_source(url).read(0, 430)[0], VALUES)
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
    most = roomy.memory["read ahead"]
    needed = roomy.projected_bytes - most
    tight = sp.PCA(3, solver="covariance", memory=needed + 40 * 2**20).plan(source)
    assert 0 < tight.memory["read ahead"] < most
    assert tight.projected_bytes <= tight.allowed_bytes
    assert tight.to_dict()["n_blocks"] == roomy.to_dict()["n_blocks"]


@pytest.mark.parametrize("what", ["pilot", "kernel", "landmarks"])
def test_readings_on_one_thread_are_requested_ahead(web, stores, what):
    fits = {
        "pilot": lambda data: sp.PCA(3, solver="sketch", pilot=50, random_state=0).fit(data),
        "kernel": lambda data: sp.KernelPCA(3, method="exact").fit(data),
        "landmarks": lambda data: sp.KernelPCA(3, method="nystrom", sampling=[3, 77, 200, 401]).fit(data),
    }
    remote, local = fits[what](f"{web.url}/blosc"), fits[what](stores / "blosc")
    np.testing.assert_array_equal(remote.transform(VALUES), local.transform(VALUES))
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


def test_address_of_ipv6_is_read(stores):
    try:
        server = Web(stores, "::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server as web:
        assert web.url.startswith("http://[::1]:")
        np.testing.assert_array_equal(open_source(f"{web.url}/zstd").read(0, 430)[0], VALUES)


@pytest.mark.slow
def test_a_process_that_ends_after_its_last_request_ends_well(web):
    """obstore aborts processes that end while its threads hand over answers."""
    code = f"""
import streampca
streampca.open("{web.url}/blosc").read(0, 430)
print("read", flush=True)
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "read\n", "")
