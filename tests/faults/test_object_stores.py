"""Object stores and web servers that answer badly: the right numbers, or an error that names the key, and never many requests."""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import impatient, requests_of
from stores import Command, call_apart, chunk_files, config_text, make_values, picture, write_group, write_store

import streampca as sp
from streampca.errors import ConfigError, DataError, MissingChunkError, NotAvailableError, OutputError, StoreError
from streampca.sources import open_source

pytest.importorskip("obstore", reason="the extra s3 is not installed")
pytest.importorskip("moto.moto_server.werkzeug_app", reason="moto and flask are not installed")
s3 = pytest.importorskip("s3")

KEY = "c/17/0"
_SECONDS = 60.0


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with s3.bucket_in(tmp_path_factory.mktemp("bucket"), chain="zstd+crc32c") as found:
        yield found


@pytest.fixture
def bucket(filled):
    """Return a bucket that answers well, until it is told otherwise."""
    filled.faults.start(None)
    filled.faults.stall_seconds = 1.0
    return filled


@pytest.fixture
def hasty():
    """Let requests be repeated as often as always, and sooner."""
    with impatient():
        yield


def path_in(bucket: Any) -> str:
    """Return the path of requests for the chunk that is spoilt."""
    return f"/{bucket.name}/x.zarr/{KEY}"


def only(path: str, fault: str, times: int = 10**9) -> Any:
    """Return a profile that spoils the first answers for one path."""
    left = [times]

    def draw(asked: str, rng: object) -> str | None:
        if asked != path or not left[0]:
            return None
        left[0] -= 1
        return fault

    return draw


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("seed", range(4))
def test_faults_that_pass_leave_the_bits_as_they_are(seed):
    score = s3.run(1, seed, stall_seconds=1.0)
    print(score.line())
    score.require_clean()
    assert score.injected > 3
    assert score.survived == score.injected


@pytest.mark.slow
def test_a_request_is_repeated_at_most_twelve_times_within_a_minute(bucket, monkeypatch):
    waits, sleep = list[float](), asyncio.sleep

    def recorded(seconds: float, *rest: Any) -> Any:
        if not sys._getframe(1).f_globals["__name__"].startswith("streampca."):
            return sleep(seconds, *rest)  # of a cluster that other tests have left in this process
        if seconds >= 0.1:
            waits.append(seconds)
        return sleep(min(seconds, 0.001), *rest)

    source = bucket.source()
    bucket.faults.start(only(path_in(bucket), "503"))
    monkeypatch.setattr(asyncio, "sleep", recorded)
    with pytest.raises(StoreError, match="after 12 requests"):
        s3.within(_SECONDS, lambda: sp.PCA(2).fit(source))
    assert bucket.faults.requests[path_in(bucket)] == 12
    longest = [min(8.0, 0.2 * 2**n) for n in range(11)]
    assert 30 < sum(longest) <= 60
    longest.pop(0)  # the second request asks for the headers of the refusal, which obstore does not tell
    assert len(waits) == 10
    assert all(most / 2 <= waited <= most for waited, most in zip(waits, longest, strict=True)), waits


@pytest.mark.parametrize("status", ["500", "503"])
def test_a_store_that_never_answers_is_named_with_the_key(bucket, hasty, status):
    bucket.faults.start(only(path_in(bucket), status))
    with pytest.raises(StoreError, match=rf"{KEY} cannot be read: status {status}.* after 12 requests") as caught:
        s3.within(_SECONDS, lambda: sp.PCA(2).fit(bucket.source()))
    assert bucket.faults.requests[path_in(bucket)] == 12
    assert max(bucket.faults.requests.values()) == 12
    assert bucket.url in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_store_that_is_down_is_named_when_it_is_opened(bucket, hasty):
    bucket.faults.start(lambda path, rng: "503")
    with pytest.raises(StoreError, match=r"zarr\.json|\.zarray|\.zattrs"):  # they are asked for at once
        s3.within(_SECONDS, lambda: s3.digest_of_fit(bucket.source()))
    assert max(bucket.faults.requests.values()) <= 12


def test_what_is_forbidden_is_asked_for_once(bucket):
    bucket.faults.start(only(path_in(bucket), "403"))
    with pytest.raises(StoreError, match=rf"{KEY} cannot be read: status 403.*credentials"):
        s3.within(_SECONDS, lambda: sp.PCA(2).fit(bucket.source()))
    assert bucket.faults.requests[path_in(bucket)] == 1


@pytest.mark.slow
def test_a_chunk_that_is_not_there_is_missing(bucket):
    bucket.faults.start(only(path_in(bucket), "404"))  # the listing still has it
    with pytest.raises(MissingChunkError, match=KEY):
        s3.within(_SECONDS, lambda: sp.PCA(2).fit(bucket.source()))
    assert bucket.faults.requests[path_in(bucket)] == 1
    bucket.faults.start(None)
    whole = bucket.client.get_object(Bucket=bucket.name, Key=f"x.zarr/{KEY}")["Body"].read()
    bucket.client.delete_object(Bucket=bucket.name, Key=f"x.zarr/{KEY}")
    try:
        bucket.faults.start(None)
        with pytest.raises(MissingChunkError, match=rf"1 of 40 chunks do not exist, first: {KEY}"):
            s3.within(_SECONDS, lambda: sp.PCA(2).fit(bucket.source()))
        assert sum(n for path, n in bucket.faults.requests.items() if "/c/" in path) <= 1  # which tries the store out
        holes = open_source(bucket.url, storage_options=bucket.options(), missing_chunks="fill")
        assert s3.within(_SECONDS, lambda: sp.PCA(2).fit(holes)).n_samples_seen_ == 8_000
        assert holes.missing_chunks_filled == 1
    finally:
        bucket.client.put_object(Bucket=bucket.name, Key=f"x.zarr/{KEY}", Body=whole)


@pytest.mark.slow
def test_a_damaged_object_is_named(bucket):
    whole = bucket.client.get_object(Bucket=bucket.name, Key=f"x.zarr/{KEY}")["Body"].read()
    bucket.client.put_object(Bucket=bucket.name, Key=f"x.zarr/{KEY}", Body=whole[:-7] + b"damaged")
    try:
        with pytest.raises(DataError, match=rf"chunk {KEY} .*damaged"):
            s3.within(_SECONDS, lambda: sp.PCA(2).fit(bucket.source()))
    finally:
        bucket.client.put_object(Bucket=bucket.name, Key=f"x.zarr/{KEY}", Body=whole)


@pytest.mark.slow
def test_an_answer_that_does_not_come_is_given_up_and_asked_for_again(bucket):
    expected = s3.digest_of_fit(bucket.source())
    bucket.faults.stall_seconds = 20.0
    bucket.faults.start(only(path_in(bucket), "stall", times=1))
    digest = s3.within(15.0, lambda: s3.digest_of_fit(bucket.source(read_timeout="500ms")))
    assert digest == expected
    assert bucket.faults.requests[path_in(bucket)] == 2


def test_a_slow_chunk_holds_up_no_other(bucket):
    """The answer for one chunk is held back until all the others were asked for: had they to wait, it would never come."""
    others = {f"/{bucket.name}/x.zarr/c/{i}/0" for i in range(40)} - {path_in(bucket)}
    asked: set[str] = set()
    all_asked = threading.Event()

    def hold(path: str, rng: object) -> None:
        asked.add(path)
        if others <= asked:
            all_asked.set()

    behind = bucket.faults.application

    def application(environ, respond):
        if environ["PATH_INFO"] == path_in(bucket):
            assert all_asked.wait(30)
        return behind(environ, respond)

    bucket.faults.application = application
    try:
        bucket.faults.start(hold)
        s3.within(_SECONDS, lambda: sp.PCA(2).fit(bucket.source()))
    finally:
        bucket.faults.application = behind
    assert all_asked.is_set()


@pytest.mark.deep
def test_a_run_reads_s3_writes_here_and_compares_with_a_fingerprint(bucket, tmp_path, monkeypatch, capsys):
    bucket.faults.start(s3.PROFILES["flaky"], seed=7)
    monkeypatch.setenv("STORE_SECRET", "canary-5d8f2c")
    monkeypatch.setenv("STORE_KEY", "testing")
    monkeypatch.chdir(tmp_path)
    options = f"{{access_key_id: '${{STORE_KEY}}', secret_access_key: '${{STORE_SECRET}}', endpoint: '{bucket.endpoint}', region: us-east-1}}"
    text = config_text(bucket.url, "out").replace(
        f"path: '{bucket.url}'", f"path: '{bucket.url}', storage_options: {options}"
    )
    Path("c.yaml").write_text(text)
    command = Command(capsys)
    called = s3.within(_SECONDS, lambda: command("fingerprint", "c.yaml", "--quiet"))
    assert called.status == 0, called.err
    assert called.out.startswith("x.zarr.fingerprint.npz: 40 chunks, ")
    called = s3.within(_SECONDS, lambda: command.quietly("run", "c.yaml", "--set", "source.verify=manifest"))
    assert called.status == 0, called.err
    expected = np.linalg.eigvalsh(np.cov(make_values(8_000, 32, seed=3).T))[::-1]
    model = sp.load("out")
    np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-10)
    called = s3.within(_SECONDS, lambda: command.quietly("verify", "out"))
    assert called.status == 0, (called.out, called.err)
    assert not [name for name, found in picture(tmp_path).items() if b"canary" in str(found).encode()]
    bucket.faults.start(only(path_in(bucket), "403"))
    apart = call_apart("run", "c.yaml", "--quiet", "--set", "output.directory=other", directory=tmp_path)
    line = apart.refused(5, KEY, "403")  # one line: requests that were under way say nothing when the process ends
    assert "canary" not in line


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("fault", ["stall", "503"])
def test_a_signal_is_obeyed_while_the_store_does_not_answer(bucket, tmp_path, fault):
    options = bucket.options()
    told = ", ".join(f"{name}: '{value}'" for name, value in options.items())
    text = config_text(bucket.url, "out").replace(f"'{bucket.url}'", f"'{bucket.url}', storage_options: {{{told}}}")
    (tmp_path / "c.yaml").write_text(text)
    bucket.faults.stall_seconds = 120.0
    bucket.faults.start(lambda path, rng: fault if "/c/" in path else None)
    command = [sys.executable, "-m", "streampca", "run", "c.yaml", "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + _SECONDS
        while bucket.faults.injected.total() < 10 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=40)  # a third of what a request takes that nobody interrupts
    finally:
        process.kill()
    assert (process.returncode, out) == (130, ""), err
    assert err.startswith("streampca: error: stopped by SIGINT")
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_shards_of_a_bucket_with_faults_give_the_same_bits(bucket, hasty, tmp_path):
    store = write_store(tmp_path / "shards", make_values(4_000, 32), chain="crc32c", chunks=(50, 16), shards=(400, 32))
    for path in (path for path in store.rglob("*") if path.is_file()):
        key = f"shards/{path.relative_to(store).as_posix()}"
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=path.read_bytes())
    bucket.faults.start(s3.PROFILES["all"], seed=3)
    source = s3.within(_SECONDS, lambda: open_source(f"s3://{bucket.name}/shards", storage_options=bucket.options()))
    assert source.describe()["reader"] == "direct"
    with requests_of(20_000):  # so that indexes are requested, and inner chunks by ranges
        assert s3.within(_SECONDS, lambda: s3.digest_of_fit(source)) == s3.digest_of_fit(str(store))
    assert bucket.faults.injected.total() > 3


def test_a_listing_that_ends_before_its_end_is_asked_for_again(bucket, hasty):
    expected, listing = s3.digest_of_fit(bucket.source()), f"/{bucket.name}"
    bucket.faults.start(only(listing, "short", times=2), seed=0)
    assert s3.within(_SECONDS, lambda: s3.digest_of_fit(bucket.source())) == expected
    assert bucket.faults.injected["short"] == 2
    bucket.faults.start(only(listing, "short"), seed=0)
    with pytest.raises(StoreError, match="the listing ends before its end, after 12 requests"):
        s3.within(_SECONDS, lambda: s3.digest_of_fit(bucket.source()))


@pytest.mark.deep
@pytest.mark.distributed
def test_workers_read_a_store_with_faults(bucket, client):
    expected = s3.digest_of_fit(bucket.source())
    bucket.faults.start(s3.PROFILES["flaky"], seed=11)

    def on_workers() -> str:
        with client.as_current():  # which holds for one thread
            return s3.digest_of_fit(bucket.source())

    assert s3.within(_SECONDS, on_workers) == expected
    assert bucket.faults.injected.total() > 3


def test_a_source_that_travels_opens_its_store_again(bucket):
    bucket.faults.start(None)
    source = bucket.source()
    again = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(again.read(0, 10)[0], source.read(0, 10)[0])
    assert b"testing-secret" not in pickle.dumps(source)


@pytest.fixture(scope="module")
def website(tmp_path_factory):
    """Serve a directory of stores over HTTP; gives the faults, the URL and the directory."""
    root = tmp_path_factory.mktemp("website")
    write_store(root / "x.zarr", chain="gzip")
    write_store(root / "shards.zarr", chain="crc32c", chunks=(50, 8), shards=(200, 8))
    write_group(root / "g.zarr")

    def application(environ, respond):
        file = root / environ["PATH_INFO"].lstrip("/")
        if not file.is_file():
            return s3.refusal(404, respond)
        body = file.read_bytes()
        respond("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    with s3.serving(application) as (faults, url):
        yield faults, url, root


@pytest.mark.parametrize("profile", ["flaky", "broken", "cut"])
@pytest.mark.parametrize("store", ["x.zarr", "shards.zarr"])
def test_a_web_server_with_faults_gives_the_same_bits(website, profile, store):
    faults, url, root = website
    expected = s3.digest_of_fit(str(root / store))
    faults.stall_seconds = 0.2
    faults.start(s3.PROFILES[profile], seed=5)
    assert s3.within(_SECONDS, lambda: s3.digest_of_fit(f"{url}/{store}")) == expected


def test_a_web_server_cannot_list_so_missing_chunks_are_found_when_they_are_read(website, hasty):
    faults, url, root = website
    faults.start(None)
    np.testing.assert_array_equal(
        open_source(f"{url}/g.zarr", array="left").read(0, 400)[0],
        open_source(root / "g.zarr", array="left").read(0, 400)[0],
    )
    with pytest.raises(DataError, match=r"g\.zarr"):
        open_source(f"{url}/g.zarr")
    chunk = chunk_files(root / "x.zarr")[1]
    whole = chunk.read_bytes()
    chunk.unlink()
    try:
        with pytest.raises(MissingChunkError, match="c/1/0"):
            s3.within(_SECONDS, lambda: sp.PCA(2).fit(f"{url}/x.zarr"))
        with pytest.raises(DataError, match="missing_chunks: fill is for stores that can list"):
            sp.PCA(2).fit(open_source(f"{url}/x.zarr", missing_chunks="fill"))
    finally:
        chunk.write_bytes(whole)
    faults.start(only("/x.zarr/c/2/0", "403"))
    with pytest.raises(StoreError, match=r"c/2/0 cannot be read: status 403"):
        s3.within(_SECONDS, lambda: sp.PCA(2).fit(f"{url}/x.zarr"))
    assert faults.requests["/x.zarr/c/2/0"] == 1
    faults.start(only("/x.zarr/c/2/0", "503"))
    with pytest.raises(StoreError, match=r"c/2/0 cannot be read: status 503.*after 12 requests"):
        s3.within(_SECONDS, lambda: sp.PCA(2).fit(f"{url}/x.zarr"))
    assert faults.requests["/x.zarr/c/2/0"] == 12
    faults.start(None)


@pytest.mark.deep(keep=4)
@pytest.mark.parametrize(
    ("status", "n_requests"),
    [("400", 1), ("401", 1), ("403", 1), ("408", 12), ("425", 12), ("429", 12), ("500", 12), ("502", 12), ("599", 12)],
)
def test_which_answers_of_a_web_server_pass(tmp_path, hasty, status, n_requests):
    store, asked = write_store(tmp_path / "x.zarr"), list[str]()

    def application(environ, respond):
        name = environ["PATH_INFO"].removeprefix("/x.zarr/")
        if name == "c/2/0":
            asked.append(name)
            respond(f"{status} of a kind", [("Content-Length", "0")])
            return [b""]
        if not (store / name).is_file():
            return s3.refusal(404, respond)
        body = (store / name).read_bytes()
        respond("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    with (
        s3.serving(application) as (_, url),
        pytest.raises(StoreError, match=rf"c/2/0 cannot be read: status {status}"),
    ):
        s3.within(_SECONDS, lambda: sp.PCA(2).fit(f"{url}/x.zarr"))
    assert len(asked) == n_requests


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize(
    ("code", "passes"), [("RequestTimeout", True), ("SlowDown", True), ("ExpiredToken", False), ("Malformed", False)]
)
def test_which_codes_of_a_bucket_pass(bucket, hasty, code, passes):
    behind, asked = bucket.faults.application, list[str]()

    def application(environ, respond):
        if environ["PATH_INFO"] != path_in(bucket):
            return behind(environ, respond)
        asked.append(code)
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        respond("400 Bad Request", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    bucket.faults.application = application
    try:
        with pytest.raises(StoreError, match=rf"{KEY} cannot be read: status 400, {code}") as caught:
            s3.within(_SECONDS, lambda: sp.PCA(2).fit(bucket.source()))
    finally:
        bucket.faults.application = behind
    assert ("after 12 requests" in str(caught.value)) is passes
    assert (len(asked) >= 12) is passes


def test_urls_are_shown_without_what_may_be_secret(hasty):
    with pytest.raises(DataError) as caught:
        open_source("http://user:word@127.0.0.1:9/a/b.zarr?X-Amz-Signature=abc")
    assert "http://127.0.0.1:9/a/b.zarr" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("user", "word", "abc"))


def test_protocols_and_options_that_cannot_be():
    with pytest.raises((DataError, NotAvailableError), match="nothing://"):
        open_source("nothing://there")
    with pytest.raises(NotAvailableError, match=r"install the fsspec client of sftp://"):
        open_source("sftp://host/x.zarr")
    with pytest.raises(DataError, match=r"'colour' is not valid for store 'S3'.*source\.storage_options") as caught:
        open_source("s3://bucket/x.zarr", storage_options={"colour": "canary-1", "access_key_id": "canary-2"})
    assert "canary" not in str(caught.value)


def test_outputs_are_local_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = write_store(tmp_path / "x.zarr")
    Path("c.yaml").write_text(config_text(store, "s3://bucket/out"))
    with pytest.raises(ConfigError, match=r"local directory.*copy it to a store"):
        sp.run("c.yaml")
    with pytest.raises(OutputError, match=r"local directory.*copy it to a store"):
        sp.PCA(2).fit(store).save("s3://bucket/model.zarr")
    assert {path.name for path in tmp_path.iterdir()} == {"x.zarr", "c.yaml"}


def test_an_address_where_nothing_answers_is_told_at_once(bucket):
    begin = time.monotonic()
    with pytest.raises(StoreError, match=r"cannot be read: Connect, Connection refused: check the address"):
        open_source(bucket.url, storage_options=bucket.options() | {"endpoint": "http://127.0.0.1:9"})
    assert time.monotonic() - begin < 5
