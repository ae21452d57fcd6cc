"""Signed requests for objects of S3: signatures, requests that are left to botocore, and checksums of bodies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import zlib
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import numpy as np
import pytest
from facade import impatient, requests_of
from stores import make_values, write_store

from streampca.errors import StoreError
from streampca.sources import open_source

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
            kind, given = self.server.checksum
            digest = zlib.crc32(body).to_bytes(4, "big") if kind == "crc32" else hashlib.new(kind, body).digest()
            sent[f"x-amz-checksum-{kind}"] = base64.b64encode(digest).decode() if given == "right" else given
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
    assert all(headers.get("x-amz-checksum-mode") == "ENABLED" for _, headers in requests)
    assert all("amz-sdk-request" not in headers for _, headers in requests)  # which those of botocore have
    if how == "token":
        assert all("x-amz-security-token" in headers["authorization"] for _, headers in requests)


@pytest.mark.parametrize("status", [301, 400])
def test_answers_that_botocore_deals_with_are_left_to_it(storage, status):
    source = storage.source()
    storage.statuses = [status]
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
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


@pytest.mark.parametrize("kind", ["crc32", "sha1", "sha256"])
def test_body_with_another_checksum_than_its_headers_is_requested_again(storage, kind):
    source, storage.checksum = storage.source(), (kind, "right")
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    assert len(chunk_requests(storage)) == 5
    storage.checksum = (kind, "AAAAAA==-3")  # of an object that was uploaded in parts
    np.testing.assert_array_equal(source.read(0, 100)[0], VALUES[:100])
    storage.checksum = (kind, "AAAAAA==")
    with pytest.raises(StoreError, match=rf"checksum \({kind}\).*after 12 requests"):
        source.read(0, 100)


def test_a_requester_that_pays_says_so_in_every_request(storage):
    np.testing.assert_array_equal(storage.source(requester_pays=True).read(0, 430)[0], VALUES)
    assert all(headers.get("x-amz-request-payer") == "requester" for _, headers in chunk_requests(storage))
