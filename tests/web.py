"""A web server on the loopback that counts the requests for files, and can ignore ranges, redirect, refuse, or hold answers back."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit


class Web(ThreadingHTTPServer):
    """Serves the files of a directory while it is used as a context."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, directory: Path, host: str = "127.0.0.1", port: int = 0):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self.directory = directory
        self.lock = threading.Lock()
        self.requests: Counter[tuple[str, str | None]] = Counter()
        """Requests for files other than metadata, by path and range."""
        self.serves_ranges, self.redirects, self.closes, self.shifts, self.shortens = True, False, False, False, False
        """Whether ranges are not ignored, files are elsewhere, connections are closed after each answer, without saying so, and
        ranges begin elsewhere or end early."""
        self.tag_of: Callable[[Path], str] | None = None
        """Returns the entity tag of a file, for servers that send one."""
        self.modified_of: Callable[[Path], float] | None = None
        """Returns the time of modification of a file, likewise."""
        self.refusals: list[tuple[int, dict[str, str]]] = []
        """Statuses and headers of the next answers to requests for chunks."""
        self.n_refused = 0
        """How many of them were given."""
        self.authorization: str | None = None
        """Header ``Authorization`` that every request must have."""
        self.elsewhere: str | None = None
        """Address of another server, to which all requests are redirected."""
        self.headers: list[dict[str, str]] = []
        """Headers of all requests."""
        self.query = ""
        """Query that every request must have."""
        self.pieces_of: Callable[[Path], Iterator[bytes] | None] | None = None
        """Returns the body of a file in pieces, None to send it as it is."""
        self.n_waiting, self.n_awaited, self.all_came = 0, 0, threading.Event()
        """Requests for chunks that have no answer; how many must be there before the first is answered; set when they are."""
        self.delay_of: Callable[[str], float] | None = None
        """Returns the seconds after which a chunk is sent, by its path."""
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """Return the address."""
        host = f"[{self.server_address[0]}]" if self.address_family == socket.AF_INET6 else self.server_address[0]
        return f"http://{host}:{self.server_address[1]}"

    def sent_bytes(self, name: str) -> int:
        """Return how many bytes of a file were requested."""
        size, total = (self.directory / name).stat().st_size, 0
        for (path, span), count in self.requests.items():
            if path == name:
                begin, end = ("0", str(size)) if span is None else span.removeprefix("bytes=").split("-")
                total += count * (min(int(end), size - 1) - int(begin) + 1 if begin else int(end))
        return total

    def __enter__(self) -> Web:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.all_came.set()
        self.shutdown()
        self._thread.join(timeout=5)
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not print that a connection ended."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Web

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        (path, _, query), web = self.path.partition("?"), self.server
        if "://" in path:  # as a proxy is asked
            path = urlsplit(path).path
        name = unquote(path.lstrip("/"))
        with web.lock:
            web.headers.append({key.lower(): value for key, value in self.headers.items()})
        if web.authorization is not None and self.headers.get("Authorization") != web.authorization:
            self._send(401, b"")
            return
        if web.elsewhere is not None:
            self._send(302, b"", Location=f"{web.elsewhere}{path}")
            return
        if parse_qsl(query) != parse_qsl(web.query):
            self._send(403, b"")
            return
        if web.redirects and not name.startswith("moved/"):
            self._send(302, b"", Location=f"/moved/{name}{'?' * bool(query)}{query}")
            return
        name = name.removeprefix("moved/")
        file, span = web.directory / name, self.headers.get("Range")
        if not file.is_file():
            self._send(404, b"")
            return
        if web.pieces_of is not None and (pieces := web.pieces_of(file)) is not None:
            self._send_pieces(file, pieces)
            return
        data = file.read_bytes()
        is_chunk = not file.name.startswith((".z", "zarr.json"))
        with web.lock:
            refusal = next(iter(web.refusals), None) if is_chunk else None
            del web.refusals[: refusal is not None]
            web.n_refused += refusal is not None
        if refusal is not None:
            status, headers = refusal
            self._send(status, b"", **headers)
            return
        if is_chunk:
            with web.lock:
                web.requests[name, span] += 1
                web.n_waiting += 1
                if web.n_waiting >= web.n_awaited:
                    web.all_came.set()
            web.all_came.wait(20)
            if web.delay_of is not None:
                time.sleep(web.delay_of(name))
            with web.lock:
                web.n_waiting -= 1
        if span is None or not web.serves_ranges:
            self._send(200, data)
        else:
            begin, end = span.removeprefix("bytes=").split("-")
            first, last = (int(begin), int(end)) if begin else (max(0, len(data) - int(end)), len(data) - 1)
            part = data[first : last + 1]
            if not part:
                self._send(416, b"")
                return
            if web.shifts and first:
                first -= 8
                part = data[first : first + len(part)]
            if web.shortens:
                part = part[: len(part) // 2]
            tag = {} if web.tag_of is None else {"ETag": web.tag_of(file)}
            if web.modified_of is not None:
                tag["Last-Modified"] = formatdate(web.modified_of(file), usegmt=True)
            place = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
            self._send(206, part, **{"Content-Range": place}, **tag)
        self.close_connection = web.closes

    def _send_pieces(self, file: Path, pieces: Iterator[bytes]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Length", str(file.stat().st_size))
        self.end_headers()
        with suppress(OSError):  # the client has enough
            for piece in pieces:
                self.wfile.write(piece)

    def _send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
