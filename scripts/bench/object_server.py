"""A web server on the loopback for benchmarks: files of a directory over HTTP and, as far as reading needs it, over S3.

It sends files without copying them (`os.sendfile`), so that it takes little of the processor time that it shares with the
contenders. Answers can be delayed, and the rate of each connection limited.

    .venv/bin/python scripts/bench/object_server.py DIRECTORY [--latency 0.01] [--rate 60e6]

prints the port that it listens on.
"""

from __future__ import annotations

import argparse
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_PIECE = 2**18


class ObjectServer(ThreadingHTTPServer):
    """Serves the files below a directory: ``/path`` as a web server, and the first name in a path as a bucket of S3."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, directory: Path, latency: float = 0.0, rate: float = 0.0, log: Path | None = None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.directory, self.latency, self.rate = directory.resolve(), latency, rate
        self.log = None if log is None else log.open("a", buffering=1)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ObjectServer

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Answer with the headers."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer with a file, a range of it, or the listing of a bucket."""
        if self.server.log is not None:
            self.server.log.write(f"{self.path} {self.headers.get('Range', '-')}\n")
        if self.server.latency:
            time.sleep(self.server.latency)
        address = urlsplit(self.path)
        query = parse_qs(address.query)
        if "list-type" in query:
            self._list(address.path.strip("/"), query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
            return
        file = self.server.directory / unquote(address.path).strip("/")
        try:
            with file.open("rb") as opened:
                self._send_file(opened.fileno(), os.fstat(opened.fileno()).st_size)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            self._send(404, b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>")

    def _send_file(self, file: int, size: int) -> None:
        start, stop, asked = 0, size, self.headers.get("Range")
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            start, stop = (
                (int(first), min(size, int(last) + 1 if last else size)) if first else (max(0, size - int(last)), size)
            )
        if asked and start >= size:
            self._send(416, b"")
            return
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.send_header("ETag", f'"{size}"')
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.end_headers()
        if self.command == "HEAD":
            return
        began, sent = time.perf_counter(), 0
        while start + sent < stop:
            step = min(_PIECE, stop - start - sent) if self.server.rate else stop - start - sent
            n = os.sendfile(self.connection.fileno(), file, start + sent, step)
            if n == 0:
                break
            sent += n
            if self.server.rate:
                time.sleep(max(0.0, began + sent / self.server.rate - time.perf_counter()))

    def _list(self, bucket: str, prefix: str, delimiter: str) -> None:
        root = self.server.directory / bucket
        first = root / prefix if prefix.endswith("/") else root  # so that the other stores are not listed
        keys = sorted(path.relative_to(root).as_posix() for path in first.rglob("*") if path.is_file())
        rows, prefixes = [], dict[str, None]()
        for key in keys:
            if not key.startswith(prefix):
                continue
            if delimiter and delimiter in key[len(prefix) :]:
                prefixes[prefix + key[len(prefix) :].split(delimiter)[0] + delimiter] = None
                continue
            size = (root / key).stat().st_size
            rows.append(
                f'<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>"{size}"</ETag>'
                "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        common = [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes]
        text = (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(rows) + len(common)}</KeyCount>"
            f"<MaxKeys>100000</MaxKeys><IsTruncated>false</IsTruncated>{''.join(rows)}{''.join(common)}</ListBucketResult>"
        )
        self._send(200, text.encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def main(arguments: list[str] | None = None) -> Any:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="bytes per second of a connection; 0 = as fast as possible"
    )
    parser.add_argument("--log", type=Path, help="file that gets a line for each request")
    given = parser.parse_args(arguments)
    server = ObjectServer(given.directory, given.latency, given.rate, given.log)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
