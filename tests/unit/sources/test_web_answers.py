"""Answers of web servers in unusual forms give the rows all the same, connections are used again, and requests name the client."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import impatient
from stores import make_values, write_store

import streampca as sp
from streampca.errors import DamagedChunkError, StoreError

pytest.importorskip("obstore", reason="the extra remote is not installed")

VALUES = make_values(400, 24)
FORMS = ["plain", "chunked", "no length", "HTTP/1.0", "gzip", "cut short", "no content", "length that is none"]


class Server(ThreadingHTTPServer):
    """Serves files; chunks in the form that it is told, at most `n_unusual` times."""

    daemon_threads = True

    def __init__(self, directory: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory, self.form, self.n_unusual, self.n_connections = directory, "plain", 10**9, 0
        self.agents: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/x.zarr"

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not print that a connection ended."""


class Handler(BaseHTTPRequestHandler):
    """Sends one answer to every request; without ranges, as some servers do."""

    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        self.server.n_connections += 1
        super().setup()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        file, server, form = self.server.directory / self.path.lstrip("/"), self.server, "plain"
        server.agents.append(self.headers.get("User-Agent"))
        if not file.is_file():
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        if "/c/" in self.path and server.n_unusual > 0:
            form, server.n_unusual = server.form, server.n_unusual - 1
        body = file.read_bytes()
        heads = {
            "plain": b"1.1 200 OK\r\nContent-Length: %d" % len(body),
            "chunked": b"1.1 200 OK\r\nTransfer-Encoding: chunked",
            "no length": b"1.1 200 OK\r\nConnection: close",
            "HTTP/1.0": b"1.0 200 OK\r\nContent-Length: %d" % len(body),
            "gzip": b"1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d" % len(gzip.compress(body)),
            "cut short": b"1.1 200 OK\r\nContent-Length: %d" % len(body),
            "no content": b"1.1 204 No Content",
            "length that is none": b"1.1 200 OK\r\nContent-Length: four",
        }
        sent = {
            "chunked": b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
            "gzip": gzip.compress(body),
            "cut short": body[:-1],
            "no content": b"",
        }
        self.wfile.write(b"HTTP/" + heads[form] + b"\r\n\r\n" + sent.get(form, body))
        self.close_connection = form in ("no length", "HTTP/1.0", "cut short", "length that is none")

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client has enough
            super().handle()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    write_store(tmp_path / "x.zarr", VALUES, chain="none", chunks=(100, 24))
    server = Server(tmp_path)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    with impatient(3):
        yield server
    server.shutdown()
    server.server_close()


def rows_of(url: str, **options: Any) -> Any:
    return sp.open(url, storage_options=options).read(0, len(VALUES))[0]


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_the_same_in_whatever_form_they_are_sent_with_their_size(server: Server, form: str) -> None:
    server.form = form
    if form in ("chunked", "no length", "no content"):
        with pytest.raises(
            StoreError, match=r"c/\d/0 cannot be read: the server sends neither the sizes of objects nor ranges"
        ):
            rows_of(server.url)
        return
    if form in ("cut short", "length that is none"):
        with pytest.raises((StoreError, DamagedChunkError), match=r"c/\d/0"):
            rows_of(server.url)
        server.n_unusual = 1
    np.testing.assert_array_equal(rows_of(server.url), VALUES)


def test_connections_are_used_again_and_their_end_is_silent(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    source = sp.open(server.url)
    for _ in range(10):
        np.testing.assert_array_equal(source.read(0, 400)[0], VALUES)
    assert server.n_connections <= 10 < len(server.agents)
    assert not caplog.records


def test_requests_name_the_client_unless_the_headers_given_do(server: Server) -> None:
    rows_of(server.url)
    assert any(str(agent).startswith("streampca") for agent in server.agents)
    server.agents.clear()
    rows_of(server.url, client_options={"default_headers": {"user-agent": "me"}})
    assert set(server.agents) == {"me"}
    server.agents.clear()
    rows_of(server.url, client_options={"user_agent": "me"})
    assert set(server.agents) == {"me"}
