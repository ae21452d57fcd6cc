"""Google Cloud Storage and Azure: chunks, ranges of shards and listings by their own interfaces, and options of their clients."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import numpy as np
import pytest
from facade import impatient, requests_of
from stores import chunk_files, make_values, write_store

import streampca as sp
from streampca.errors import ChangedInputError, MissingChunkError, StoreError

pytest.importorskip("obstore", reason="the extra remote is not installed")

VALUES = make_values(430, 24)


class Cloud(ThreadingHTTPServer):
    """Serves the files of a directory as one bucket, or container, to readers of either cloud."""

    daemon_threads = True

    def __init__(self, directory: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory, self.requests = directory, list[str]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def options(self, cloud: str) -> dict[str, Any]:
        """Return the options with which its objects are read."""
        if cloud != "gs":
            return {"account_name": "account", "endpoint": self.url, "skip_signature": True}
        key = {"gcs_base_url": self.url, "disable_oauth": True, "client_email": "", "private_key": ""}
        return {"service_account_key": json.dumps(key | {"private_key_id": ""})}

    def open(self, cloud: str, name: str, **options: Any) -> Any:
        """Open a store."""
        return sp.open(f"{cloud}://bucket/{name}", storage_options=self.options(cloud) | options)


class Handler(BaseHTTPRequestHandler):
    """Answers requests for objects and listings."""

    protocol_version = "HTTP/1.1"
    server: Cloud

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        name = unquote(path).removeprefix("/bucket").strip("/")
        if not name:
            self._send(200, self._listing(parse_qs(query)).encode())
            return
        self.server.requests.append(f"{self.command} {name} {self.headers.get('Range', '')}".strip())
        file = self.server.directory / name
        if not file.is_file():
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        body, status, sent = file.read_bytes(), 200, {}
        if (span := self.headers.get("Range")) is not None:
            first, last = span.removeprefix("bytes=").split("-")
            start = int(first) if first else len(body) - int(last)
            part = body[start : int(last) + 1 if first else None]
            status, sent = 206, {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(body)}"}
            body = part
        self._send(status, body, ETag=self._tag(file), **sent)

    def _tag(self, file: Path) -> str:
        return f'"{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"'

    def _listing(self, query: dict[str, list[str]]) -> str:
        prefix, root = query.get("prefix", [""])[0], self.server.directory
        files = [file for file in sorted(root.rglob("*")) if file.is_file()]
        found = [(file.relative_to(root).as_posix(), file) for file in files]
        found = [(name, file) for name, file in found if name.startswith(prefix)]
        if "comp" in query:  # Azure
            entries = "".join(
                f"<Blob><Name>{name}</Name><Properties><Last-Modified>{formatdate(0, usegmt=True)}</Last-Modified>"
                f"<Content-Length>{file.stat().st_size}</Content-Length><Content-Type>x</Content-Type><Etag>{self._tag(file)}"
                "</Etag></Properties></Blob>"
                for name, file in found
            )
            return f"<EnumerationResults><Blobs>{entries}</Blobs><NextMarker /></EnumerationResults>"
        entries = "".join(
            f"<Contents><Key>{name}</Key><Size>{file.stat().st_size}</Size><ETag>{self._tag(file)}</ETag>"
            "<LastModified>2024-01-01T00:00:00Z</LastModified></Contents>"
            for name, file in found
        )
        return f"<ListBucketResult>{entries}<IsTruncated>false</IsTruncated></ListBucketResult>"

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        usual = {"Content-Length": str(len(body)), "Last-Modified": formatdate(0, usegmt=True)}
        for name, value in (usual | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    write_store(tmp_path / "a b/x.zarr", VALUES, chain="zstd", chunks=(100, 24))
    write_store(tmp_path / "shards.zarr", VALUES, chain="zstd", chunks=(25, 12), shards=(100, 24))
    server = Cloud(tmp_path)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    with impatient(3):
        yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["gs", "az", "abfs"])
def test_chunks_are_listed_and_requested_once(cloud: Cloud, name: str, tmp_path: Path) -> None:
    source = cloud.open(name, "a b/x.zarr")
    assert source.describe()["reader"] == "direct"
    cloud.requests.clear()
    pca = sp.PCA(2).fit(source)
    np.testing.assert_allclose(pca.mean_, VALUES.mean(0))
    assert sorted(line for line in cloud.requests if "/c/" in line) == [f"GET a b/x.zarr/c/{i}/0" for i in range(5)]
    chunk = chunk_files(tmp_path / "a b/x.zarr")[1]
    chunk.write_bytes(chunk.read_bytes() + b"x")
    with pytest.raises(ChangedInputError, match="was changed while it was read"):
        source.require_unchanged()
    chunk.unlink()
    with pytest.raises(MissingChunkError, match="1 of 5 chunks do not exist, first: c/1/0"):
        sp.PCA(2).fit(cloud.open(name, "a b/x.zarr"))


@pytest.mark.parametrize("name", ["gs", "az"])
def test_inner_chunks_of_shards_are_requested_in_ranges(cloud: Cloud, name: str) -> None:
    with requests_of(6_000):
        np.testing.assert_array_equal(cloud.open(name, "shards.zarr").read(30, 60)[0], VALUES[30:60])
    assert any("bytes=" in line for line in cloud.requests)
    if name == "az":  # which has no ranges from the end, so that the size of a shard is asked for
        assert any(line.startswith("HEAD shards.zarr/c/0/0") for line in cloud.requests)


def test_names_of_other_clients_are_understood(cloud: Cloud, tmp_path: Path) -> None:
    account = tmp_path / "account.json"
    account.write_text(cloud.options("gs")["service_account_key"])
    for options in ({"token": str(account), "project": "mine"}, {"token": "anon", "endpoint_url": cloud.url}):
        with pytest.warns(FutureWarning, match="names of fsspec"):
            source = sp.open("gs://bucket/a b/x.zarr", storage_options=options)
        np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)
    with pytest.warns(FutureWarning, match=r"anon are names of fsspec: expected .*written: skip_signature"):
        source = sp.open(
            "az://bucket/a b/x.zarr", storage_options={"account_name": "account", "endpoint": cloud.url, "anon": True}
        )
    np.testing.assert_array_equal(source.read(0, 430)[0], VALUES)


def test_a_key_is_in_no_message(cloud: Cloud) -> None:
    cloud.shutdown()
    cloud.server_close()
    for name, key in (("az", {"account_key": "Y2FuYXJ5"}), ("az", {"sas_token": "sv=1&sig=canary"})):
        with pytest.raises(StoreError, match=f"{name}://bucket/x: .* cannot be read") as caught:
            cloud.open(name, "x", **key)
        assert "Y2FuYXJ5" not in str(caught.value)
        assert "canary" not in str(caught.value)
