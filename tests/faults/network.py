"""A web server that asks for a password, and a watch on everything that a cluster shows and listens on while a run is at work."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import pickle
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import facade
import numpy as np
import psutil
from score import Score, again
from stores import make_values, write_store

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
_PAGES = (
    "info/main/workers.html",
    "info/main/exceptions.html",
    "info/main/logs.html",
    "json/identity.json",
    "json/counts.json",
    "metrics",
    "health",
)
_PAGES_OF_WORKERS = ("info/worker/", "info/logs/", "info/call-stacks/")
_PAGES_OF_TASKS = ("info/task/", "info/call-stack/")
_NAME = "watch"


class Guarded(ThreadingHTTPServer):
    """Serves the files of a directory on the loopback to those who know the password."""

    daemon_threads = True

    def __init__(self, directory: Path, password: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.directory, self.password = directory, password
        self.damaged: set[str] = set()
        """Files of which a byte is served wrong."""
        self.held: dict[str, threading.Event] = {}
        """Files that are served when an event is set, after 20 s at the latest."""
        self.served, self.refused = 0, 0
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        """Return the address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Guarded:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for event in self.held.values():
            event.set()
        self.shutdown()
        self._thread.join(timeout=5)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Guarded

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        name = self.path.split("?")[0].strip("/")
        file = self.server.directory / name
        if self.headers.get("Authorization") != self.server.password:
            self.server.refused += 1
            self._send(403, b"")
        elif not file.is_file():
            self._send(404, b"")
        else:
            if name in self.server.held:
                self.server.held[name].wait(20)
            data = file.read_bytes()
            if name in self.server.damaged:
                data = data[:-9] + bytes([data[-9] ^ 0x10]) + data[-8:]
            self.server.served += 1
            self._send(200, data)

    def _send(self, status: int, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the one who asked is gone
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)


class Watch(threading.Thread):
    """Reads all pages of the schedulers that this process starts, their tasks, and the sockets of it and of its children."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.pages: dict[str, str] = {}
        """What was shown last, by path; of pages of tasks also those that show an error."""
        self.tasks: dict[str, bytes] = {}
        """What schedulers hold of tasks, by key."""
        self.sockets: set[tuple[str, int]] = set()
        """Process names and addresses that anybody listened on."""
        self.workers: set[str] = set()
        """Addresses of workers."""
        self.an_error_was_shown = threading.Event()
        self._done = threading.Event()
        from distributed import Scheduler

        self._others = set(Scheduler._instances)

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join(timeout=30)
        assert not self.is_alive()

    def run(self) -> None:
        """Look until told otherwise."""
        from distributed import Scheduler

        while not self._done.wait(0.2):
            for scheduler in set(Scheduler._instances) - self._others:
                if _NAME not in scheduler.plugins:
                    scheduler.add_plugin(_keeping(scheduler), name=_NAME)
                with contextlib.suppress(OSError, http.client.HTTPException, AttributeError, RuntimeError):
                    self._look(scheduler)
            self._list_sockets()

    def _look(self, scheduler: Any) -> None:
        self.workers.update(scheduler.workers)
        for key, task in list(scheduler.tasks.items()):
            self.tasks[str(key)] = self.tasks.get(str(key), b"") or pickle.dumps(task.run_spec) + str(key).encode()
        connection = http.client.HTTPConnection("127.0.0.1", scheduler.http_server.port, timeout=5)
        with contextlib.closing(connection):
            paths = list(_PAGES)
            paths += [
                f"{page}{quote(name, safe='')}.html" for page in _PAGES_OF_WORKERS for name in list(scheduler.workers)
            ]
            paths += [
                f"{page}{quote(str(key), safe='')}.html" for page in _PAGES_OF_TASKS for key in list(scheduler.tasks)
            ]
            for path in paths:
                connection.request("GET", f"/{path}")
                answer = connection.getresponse()
                text = answer.read().decode("utf-8", "replace")
                if answer.status != 200:
                    continue
                self.pages[path] = text
                if "Exception information" in text:
                    self.pages[f"{path} with an error"] = text
                    self.an_error_was_shown.set()

    def _list_sockets(self) -> None:
        me = psutil.Process()
        with contextlib.suppress(psutil.Error):
            for process in [me, *me.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    listed = getattr(process, "net_connections", None) or process.connections
                    for found in listed(kind="inet"):
                        if found.status == psutil.CONN_LISTEN:
                            self.sockets.add((found.laddr.ip, found.laddr.port))

    def found(self, secret: str) -> list[str]:
        """Return where `secret` was seen."""
        plain = [path for path, text in self.pages.items() if secret in text]
        return plain + [f"task {key}" for key, data in self.tasks.items() if secret.encode() in data]


def files_with(directory: Path, secret: str) -> list[str]:
    """Return the files below a directory that hold `secret`, or have it in their names."""
    found = []
    for path in directory.rglob("*"):
        if secret in path.name or (path.is_file() and secret.encode() in path.read_bytes()):
            found.append(str(path.relative_to(directory)))
    return found


def _keeping(scheduler: Any) -> Any:
    """Return a plugin that lets a scheduler keep every task, so that what it shows of one that failed can be read."""
    from distributed import SchedulerPlugin

    class Keeping(SchedulerPlugin):
        def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
            if finish == "processing":
                scheduler.client_desires_keys(keys=[key], client=_NAME)

    return Keeping()


@dataclass
class Hunt:
    """What a run that used a secret left and showed."""

    status: int
    """Exit status of the command."""
    said: str
    """All that this process and the workers wrote."""
    watch: Watch
    """What was looked at meanwhile."""
    served: int
    """Files that were served to those who knew the secret."""
    places: list[str]
    """Where the secret was found; it should be nowhere."""


def write_guarded(directory: Path) -> None:
    """Write the store that a `hunt` reads, below `directory`/web."""
    (directory / "web").mkdir()
    write_store(directory / "web/x.zarr", make_values(40_000, 4).astype(np.float32), chunks=(2_000, 4), chain="crc32c")


def hunt(directory: Path, secret: str, *, damaged: bool = False) -> Hunt:
    """Run a configuration on two workers with a dashboard, the secret opening its source; look for it everywhere meanwhile.

    Where a chunk is `damaged`, the first one is held back until the error of another has been shown on a page.
    """
    from facade import run_command

    with Guarded(directory / "web", secret) as server, Watch() as watch, _captured() as said:
        (directory / "c.yaml").write_text(
            f"source: {{path: '{server.url}/x.zarr', storage_options: "
            "{client_options: {default_headers: {Authorization: '${STREAMPCA_CANARY}'}}}}\n"
            "model: {n_components: 2, solver: covariance}\n"
            "cluster: {kind: local, n_workers: 2, threads_per_worker: 1, dashboard: true}\n"
            f"output: {{directory: '{directory / 'out'}', overwrite: true}}\nname: hunted\n"
        )
        if damaged:
            server.damaged.add("x.zarr/c/5/0")
            server.held["x.zarr/c/0/0"] = watch.an_error_was_shown
        with patch.dict(os.environ, {"STREAMPCA_CANARY": secret}), facade.blocks_of(4_000):
            status = run_command("run", directory / "c.yaml")
    text = said.getvalue()
    places = watch.found(secret) + [f"file {name}" for name in files_with(directory, secret)]
    return Hunt(status, text, watch, server.served, places + (["output"] if secret in text else []))


def run(count: int = 2, seed: int = 0) -> Score:
    """Hunt for the secret of `count` runs, every second one of which fails in the middle."""
    score, began = Score("secret in use on a cluster"), time.monotonic()
    for index in range(count):
        damaged = bool((seed + index) % 2)
        secret = f"canary-{random.Random(seed + index).randbytes(12).hex()}"
        with tempfile.TemporaryDirectory() as name:
            write_guarded(Path(name))
            found = hunt(Path(name), secret, damaged=damaged)
        score.injected += 1
        score.survived += found.status == 0
        score.detected += found.status == 5
        score.wrong += bool(found.places)
        score.tracebacks += "Traceback" in found.said or found.status != (5 if damaged else 0)
        if found.places or found.status != (5 if damaged else 0):
            score.notes.append(
                f"{again('network', seed + index)}: status {found.status}, seen in {found.places}: {found.said[-500:]}"
            )
    score.seconds = time.monotonic() - began
    return score


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    """Catch what this process and its children write to stdout and stderr."""
    said = io.StringIO()
    with tempfile.TemporaryFile("w+b") as file:
        saved = [(number, os.dup(number)) for number in (1, 2)]
        try:
            for number, _ in saved:
                os.dup2(file.fileno(), number)
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                yield said
        finally:
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)
            file.seek(0)
            said.write(file.read().decode("utf-8", "replace"))
