"""Requests for objects of S3: signatures, regions, refusals, and options by the names of obstore and of other clients."""

from __future__ import annotations

import hashlib
import hmac
import threading
from contextlib import nullcontext, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import numpy as np
import pytest
from facade import impatient, requests_of
from stores import make_values, write_store

from streampca.errors import DataError, StoreError
from streampca.sources import open_source

pytest.importorskip("obstore", reason="the extra s3 is not installed")

SECRET = "secret-of-the-test"
VALUES = make_values(430, 24)


def signature(method, target, headers, secret):
    """Return the signature of a request by the documentation of AWS (Signature Version 4, "Create a signed request")."""
    fields = dict(each.split("=", 1) for each in headers["authorization"].split(" ", 1)[1].split(", "))
    scope = fields["Credential"].split("/", 1)[1]
    names = fields["SignedHeaders"].split(";")
    signed = [f"{name}:{headers[name].strip()}" for name in names]
    request = "\n".join([method, target, "", *signed, "", ";".join(names), headers["x-amz-content-sha256"]])
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, digest])
    return fields["Signature"], hmac.digest(key, text.encode(), "sha256").hex()


class Storage(ThreadingHTTPServer):
    """Serves the files of a directory as buckets of S3 to those who sign, and keeps the headers of all requests."""

    daemon_threads = True

    def __init__(self, directory):
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory, self.requests, self.statuses, self.signs = directory, [], [], True
        self.code, self.closes, self.region = "ExpiredToken", False, "eu-north-1"
        self.late, self.found = "", threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def options(self, **options):
        place = {"endpoint": f"http://127.0.0.1:{self.server_address[1]}", "region": self.region}
        keys = {"access_key_id": "id", "secret_access_key": SECRET} if self.signs else {"skip_signature": True}
        return {**keys, **place, **options}

    def source(self, **options):
        return open_source("s3://bucket/a b/x~é.zarr", storage_options=self.options(**options))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle(self):
        with suppress(ConnectionError):  # the client has enough
            super().handle()

    def do_GET(self):
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers))
        path, _, query = self.path.partition("?")
        file, status, sent = self.server.directory / unquote(path).lstrip("/"), 200, {}
        sent["Last-Modified"] = formatdate(0, usegmt=True)
        is_chunk = "/c/" in self.path
        body = file.read_bytes() if file.is_file() else b""
        if f"/{self.server.region}/s3/" not in unquote(query) + headers.get("authorization", ""):
            status, sent["x-amz-bucket-region"] = 301 if self.server.signs else 200, self.server.region
            if self.server.late and path.endswith(self.server.late):
                self.server.found.wait(5)
        elif self.server.signs and "authorization" in headers:
            self.server.found.set()
            given, expected = signature("GET", self.path, headers, SECRET)
            status = 200 if given == expected else 403
        if is_chunk and self.server.statuses:
            status = self.server.statuses.pop()
        if status == 200 and not file.is_file():
            status = 404
        if status != 200:
            code = "NoSuchKey" if status == 404 else self.server.code
            body = f"<Error><Code>{code}</Code><Message>The provided token has expired.</Message></Error>".encode()
            if is_chunk and self.server.closes:  # in the middle of the body
                self.close_connection, sent["Content-Length"] = True, str(len(body) + 1)
        elif "range" in headers:
            first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
            sent["Content-Range"] = f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}"
            status, body = 206, body[first : last + 1]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **sent}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def storage(tmp_path):
    write_store(tmp_path / "bucket/a b/x~é.zarr", VALUES, chain="none", chunks=(100, 24))
    server = Storage(tmp_path)
    with impatient():
        yield server
    server.shutdown()
    server.server_close()


def chunk_requests(storage):
    return [each for each in storage.requests if "/c/" in each[0]]


@pytest.mark.parametrize("how", ["keys", "token", "ranges", "anonymous"])
def test_requests_carry_the_signature_and_are_as_many_as_chunks(storage, how):
    storage.signs = how != "anonymous"
    source = storage.source(**({"token": "of a session"} if how == "token" else {}))
    with requests_of(12_000, 13_000) if how == "ranges" else nullcontext():
        np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    requests = chunk_requests(storage)
    assert len(requests) == (10 if how == "ranges" else 5)
    assert all(("range" in headers) == (how == "ranges") for _, headers in requests)
    if how == "token":
        assert all("x-amz-security-token" in headers["authorization"] for _, headers in requests)


def test_a_bucket_in_another_region_is_found(storage, monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    given = storage.options()
    del given["region"]
    source = open_source("s3://bucket/a b/x~é.zarr", storage_options=given)
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    assert len(chunk_requests(storage)) == 5  # the region is known from the metadata
    with pytest.raises(StoreError, match="the bucket is in another region: give the region of the bucket"):
        storage.source(region="us-west-2")


def test_a_request_that_was_sent_before_the_region_was_found_is_sent_again(storage):
    given = storage.options()
    storage.late = given.pop("region") and "/.zarray"  # beside zarr.json, and answered after it
    source = open_source("s3://bucket/a b/x~é.zarr", storage_options=given)
    assert storage.found.is_set()
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)


def test_refused_request_is_sent_once_and_names_the_credentials(storage):
    source, storage.statuses = storage.source(), [403]
    with pytest.raises(StoreError, match=r"c/\d/0 cannot be read: status 403.*credentials") as caught:
        source.read(0, 430)
    assert SECRET not in str(caught.value)
    assert len(chunk_requests(storage)) <= 5


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ExpiredToken", "ExpiredToken, The provided token has expired.: the credentials have expired: give new ones"),
        ("RequestTimeTooSkewed", "RequestTimeTooSkewed, .*: set the clock of this machine"),
        ("AccessDenied", "AccessDenied, .*: check the credentials and the region"),
    ],
)
def test_a_refusal_has_the_code_and_the_message_of_the_store(storage, code, message):
    source, storage.statuses, storage.code = storage.source(), [403], code
    with pytest.raises(StoreError, match=f"status 403, {message}"):
        source.read(0, 430)
    assert len(chunk_requests(storage)) <= 5


def test_a_refusal_whose_body_is_cut_short_is_requested_again(storage):
    source, storage.closes = storage.source(), True
    storage.statuses = [403]
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    storage.statuses = [403] * 100
    with pytest.raises(StoreError, match=r"c/\d/0 cannot be read: .* after 12 requests"):
        source.read(0, 430)


def test_a_requester_that_pays_says_so_in_every_request(storage):
    np.testing.assert_array_equal(storage.source(request_payer=True).read(0, 430)[0], VALUES)
    assert all(headers.get("x-amz-request-payer") == "requester" for _, headers in chunk_requests(storage))


def test_names_of_other_clients_are_understood_and_deprecated(storage):
    storage.signs = True
    place = {"endpoint_url": f"http://127.0.0.1:{storage.server_address[1]}", "region_name": storage.region}
    given = {"key": "id", "secret": SECRET, "token": "of a session", "client_kwargs": place, "requester_pays": True}
    given |= {"config_kwargs": {"read_timeout": 20, "connect_timeout": 5.5}, "default_block_size": 2**20}
    with pytest.warns(FutureWarning, match=r"key, secret.* are names of fsspec: expected .*access_key_id"):
        source = open_source("s3://bucket/a b/x~é.zarr", storage_options=given)
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    headers = chunk_requests(storage)[0][1]
    assert headers["x-amz-security-token"] == "of a session"
    assert headers["x-amz-request-payer"] == "requester"
    with pytest.warns(FutureWarning, match="names of fsspec"), pytest.raises(DataError, match="'s3' is not valid"):
        open_source("s3://bucket/x.zarr", storage_options={**given, "config_kwargs": {"s3": {"a": SECRET}}})


@pytest.mark.parametrize("inside", [False, True])
def test_options_of_the_client_are_taken_wherever_they_are_given(storage, inside):
    options = {"allow_http": True, "timeout": "20s", "user_agent": "tests", "pool_max_idle_per_host": "4"}
    source = storage.source(**({"client_options": options} if inside else options))
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    assert {headers["user-agent"] for _, headers in chunk_requests(storage)} == {"tests"}


@pytest.mark.parametrize("given", [{"allow_htp": True}, {"client_options": {"allow_htp": True}}])
def test_an_unknown_option_is_refused_by_its_name(storage, given):
    with pytest.raises(DataError, match=r"allow_htp.* of obstore: expected a URL"):
        storage.source(**given)
