"""Signed requests for objects of S3: signatures, requests that are left to botocore, and checksums of bodies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import numpy as np
import pytest
from stores import make_values, write_store

from streampca.errors import StoreError
from streampca.sources import open_source, remote
from streampca.sources.fetching import division
from streampca.sources.fetching.checksums import AlteredBodyError, require_checksum
from streampca.sources.remote import RetryPolicy, open_store
from streampca.sources.request_errors import is_transient

pytest.importorskip("s3fs", reason="the extra s3 is not installed")

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
        self.directory, self.requests, self.statuses, self.checksum, self.signs = directory, [], [], "", True
        self.code, self.closes = "ExpiredToken", False
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def options(self, **options):
        place = {"endpoint_url": f"http://127.0.0.1:{self.server_address[1]}", "region_name": "eu-north-1"}
        keys = {"key": "id", "secret": SECRET} if self.signs else {"anon": True}
        return {**keys, "client_kwargs": place, **options}

    def source(self, **options):
        return open_source("s3://bucket/a b/x~é.zarr", storage_options=self.options(**options))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers))
        file, status, sent = self.server.directory / unquote(self.path).lstrip("/"), 200, {}
        is_chunk = "/c/" in self.path
        body = file.read_bytes() if file.is_file() else b""
        if self.server.signs:
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
        elif is_chunk and self.server.checksum:
            crc = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
            sent["x-amz-checksum-crc32"] = crc if self.server.checksum == "right" else "AAAAAA=="
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **sent}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def storage(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PATIENCE", RetryPolicy(first_seconds=0.01, longest_seconds=0.02))
    write_store(tmp_path / "bucket/a b/x~é.zarr", VALUES, chain="none", chunks=(100, 24))
    server = Storage(tmp_path)
    yield server
    server.shutdown()
    server.server_close()


def chunk_requests(storage):
    return [each for each in storage.requests if "/c/" in each[0]]


@pytest.mark.parametrize("how", ["keys", "token", "ranges", "anonymous"])
def test_requests_carry_the_signature_and_are_as_many_as_chunks(storage, monkeypatch, how):
    if how == "ranges":
        monkeypatch.setattr(division, "RANGE_BYTES", 12_000)
        monkeypatch.setattr(division, "WHOLE_BYTES", 13_000)
    storage.signs = how != "anonymous"
    source = storage.source(**({"token": "of a session"} if how == "token" else {}))
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    requests = chunk_requests(storage)
    assert len(requests) == (10 if how == "ranges" else 5)
    assert all(("range" in headers) == (how == "ranges") for _, headers in requests)
    assert all(headers.get("x-amz-checksum-mode") == "ENABLED" for _, headers in requests)
    assert all("amz-sdk-request" not in headers for _, headers in requests)  # which those of botocore have
    if how == "token":
        assert all("x-amz-security-token" in headers["authorization"] for _, headers in requests)


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"s3_additional_kwargs": {"SSECustomerKey": "0" * 32, "SSECustomerAlgorithm": "AES256"}},
        {"config_kwargs": {"signature_version": "s3"}},
        {"config_kwargs": {"proxies": {"https": "http://127.0.0.1:9"}}},
    ],
)
def test_requests_with_options_are_left_to_botocore(options):
    keys = {"key": "id", "secret": SECRET, "client_kwargs": {"region_name": "eu-north-1"}}
    transfer = open_store("s3://bucket/x", {**keys, **options}).transfer
    if transfer.receives_in_place:  # what only the prepared request tells
        from streampca.sources.fetching.plain_http import UnusualAnswerError
        from streampca.storage.zarr_interface import sync

        with pytest.raises(UnusualAnswerError):
            sync(transfer._requests.request("c/0/0", None))


@pytest.mark.parametrize("status", [301, 400])
def test_answers_that_botocore_deals_with_are_left_to_it(storage, status):
    source = storage.source()
    storage.statuses = [status]
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    assert not source.store._store.transfer.receives_in_place
    storage.statuses = [400] * 20
    with pytest.raises(StoreError, match=r"status 400.*token has expired"):
        storage.source().read(0, 430)


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
        ("AccessDenied", "AccessDenied, .*: look at the credentials and the region"),
    ],
)
def test_a_refusal_has_the_code_and_the_message_of_the_store(storage, code, message):
    source, storage.statuses, storage.code = storage.source(), [403], code
    with pytest.raises(StoreError, match=f"status 403, {message}"):
        source.read(0, 430)
    assert len(chunk_requests(storage)) <= 5


def test_a_refusal_whose_body_is_cut_short_has_the_status_alone(storage):
    source, storage.statuses, storage.closes = storage.source(), [403], True
    with pytest.raises(StoreError, match="status 403, Forbidden: look at the credentials"):
        source.read(0, 430)


def test_body_with_another_checksum_than_its_headers_is_requested_again(storage):
    source, storage.checksum = storage.source(), "right"
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    assert len(chunk_requests(storage)) == 5
    storage.checksum = "wrong"
    with pytest.raises(StoreError, match=r"checksum \(crc32\).*after 12 requests"):
        source.read(0, 100)


def test_checksums_are_those_of_botocore_or_of_none_that_is_known():
    data = memoryview(b"123456789")
    crc32 = base64.b64encode((0xCBF43926).to_bytes(4, "big")).decode()
    require_checksum(data, {"x-amz-checksum-crc32": crc32, "x-amz-checksum-crc64nvme": "of something else"})
    require_checksum(data, {"x-amz-checksum-crc32": "AAAAAA==-3"})  # of an object that was uploaded in parts
    for name in ("sha1", "sha256"):
        digest = base64.b64encode(hashlib.new(name, data).digest()).decode()
        require_checksum(data, {f"x-amz-checksum-{name}": digest})
        with pytest.raises(AlteredBodyError, match=name) as caught:
            require_checksum(data[1:], {f"x-amz-checksum-{name}": digest})
        assert is_transient(caught.value)
