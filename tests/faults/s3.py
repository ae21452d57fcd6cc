"""An object store on the loopback that answers as badly as it is told to, and fits that read from it."""

from __future__ import annotations

import hashlib
import random
import secrets
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import numpy as np
from jobs import within
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from score import Score, again
from stores import make_values, write_store
from werkzeug.serving import WSGIRequestHandler, make_server

import streampca as sp
from streampca.errors import StreamPCAError
from streampca.sources import open_source

LIMIT_SECONDS = 120.0
"""A fit that takes longer is counted as hanging."""
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}

Environ = dict[str, Any]
Profile = Callable[[str, random.Random], str | None]
"""From the path of a request to the name of a fault, or None."""


def often(shares: dict[str, float]) -> Profile:
    """Return a profile that draws faults with these probabilities."""

    def draw(path: str, rng: random.Random) -> str | None:
        mark = rng.random()
        for fault, share in shares.items():
            mark -= share
            if mark < 0:
                return fault
        return None

    return draw


PROFILES: dict[str, Profile] = {
    "flaky": often({"500": 0.15, "503": 0.15}),
    "broken": often({"reset": 0.05, "stall": 0.05}),
    "cut": often({"cut": 0.1, "short": 0.1}),
    "all": often({"500": 0.1, "503": 0.1, "reset": 0.02, "stall": 0.02, "cut": 0.05, "short": 0.05}),
}

WRITING = often({"500": 0.1, "503": 0.1, "reset": 0.05, "lost": 0.1})
"""What befalls requests that write: some of them are carried out, and nobody is told."""


@dataclass
class Faults:
    """A web application in front of another that spoils its answers, and counts requests by path."""

    application: Any
    """The one behind."""
    profile: Profile | None = None
    """Which answers are spoilt; None for none."""
    stall_seconds: float = 1.0
    """How long an answer is held back."""
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    """What the profile draws from."""
    requests: Counter[str] = field(default_factory=Counter)
    """Reading requests by path."""
    injected: Counter[str] = field(default_factory=Counter)
    """Faults by name."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    """Methods of the requests that are spoilt and counted."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while counting."""

    def start(self, profile: Profile | None, seed: int = 0) -> None:
        """Forget what was counted and begin to spoil."""
        with self.lock:
            self.profile, self.rng = profile, random.Random(seed)
            self.requests.clear()
            self.injected.clear()

    def __call__(self, environ: Environ, respond: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        path, fault = environ["PATH_INFO"], None
        if environ["REQUEST_METHOD"] in self.methods:
            with self.lock:
                self.requests[path] += 1
                fault = self.profile(path, self.rng) if self.profile else None
                if fault is not None:
                    self.injected[fault] += 1
        if fault is None:
            return self.application(environ, respond)
        if fault.isdecimal():
            return refusal(int(fault), respond)
        if fault == "lost":  # it is done, and nobody is told
            list(self.application(environ, lambda *_: None))
        if fault in ("reset", "lost"):
            # Without lingering, closing the connection sends a reset.
            environ["werkzeug.socket"].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionResetError
        if fault == "stall":
            time.sleep(self.stall_seconds)
            return self.application(environ, respond)
        return self._cut(environ, respond, told=fault == "short")

    def _cut(self, environ: Environ, respond: Callable[..., Any], *, told: bool) -> Iterable[bytes]:
        """Answer with half of the body; `told`: with a length that fits the half, so that only a checksum can tell."""
        status, headers = "", []

        def keep(told_status: str, told_headers: list[tuple[str, str]], *_: Any) -> None:
            nonlocal status, headers
            status, headers = told_status, told_headers

        answer = self.application(environ, keep)
        body = b"".join(answer)
        getattr(answer, "close", lambda: None)()
        if told or len(body) < 2:
            headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
            headers.append(("Content-Length", str(len(body) // 2)))
        respond(status, headers)
        return [body[: len(body) // 2]]


def refusal(status: int, respond: Callable[..., Any]) -> list[bytes]:
    body = f"<?xml version='1.0'?><Error><Code>{_CODES[status]}</Code><Message>as told</Message></Error>".encode()
    respond(f"{status} {_CODES[status]}", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


class _Quiet(WSGIRequestHandler):
    """A handler that logs nothing, and ends a connection that was reset."""

    def connection_dropped(self, error: BaseException, environ: Environ | None = None) -> None:
        """Do not wait for the next request on it."""
        self.close_connection = True

    def log(self, type: str, message: str, *args: Any) -> None:
        """Do not."""


@contextmanager
def serving(application: Any) -> Iterator[tuple[Faults, str]]:
    """Serve `application` behind faults on a free port of the loopback; gives the faults and the URL."""
    faults = Faults(application)
    server = make_server("127.0.0.1", 0, faults, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, name="object store", daemon=True)
    thread.start()
    try:
        yield faults, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()


@dataclass(frozen=True)
class Bucket:
    """A store in an object store, and the faults in front of it."""

    faults: Faults
    """What spoils the answers."""
    endpoint: str
    """URL of the object store."""
    client: Any
    """A client of boto3 for writing."""
    name: str
    """Name of the bucket."""

    @property
    def url(self) -> str:
        """Return the URL of the zarr array."""
        return f"s3://{self.name}/x.zarr"

    def options(self, **client: Any) -> dict[str, Any]:
        """Return what obstore needs to read it; `client` are options of its client."""
        return {
            "access_key_id": "testing",
            "secret_access_key": "testing-secret",
            "endpoint": self.endpoint,
            "region": "us-east-1",
            **({"client_options": client} if client else {}),
        }

    def source(self, **client: Any) -> Any:
        """Open it."""
        return open_source(self.url, storage_options=self.options(**client))

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Return what all objects below a prefix hold."""
        found = self.client.list_objects_v2(Bucket=self.name, Prefix=f"{prefix}/").get("Contents", ())
        bodies = {one["Key"]: self.client.get_object(Bucket=self.name, Key=one["Key"])["Body"] for one in found}
        return {key.removeprefix(f"{prefix}/"): body.read() for key, body in bodies.items()}

    def upload(self, directory: Path, name: str = "x.zarr") -> None:
        """Put every file below `directory` into the bucket."""
        for file in sorted(path for path in directory.rglob("*") if path.is_file()):
            key = f"{name}/{file.relative_to(directory).as_posix()}"
            self.client.put_object(Bucket=self.name, Key=key, Body=file.read_bytes())


@contextmanager
def bucket_in(directory: Path, **layout: Any) -> Iterator[Bucket]:
    """Serve a bucket that holds a zarr array of 40 chunks, written to `directory` first."""
    with serving(DomainDispatcherApplication(create_backend_app)) as (faults, endpoint):
        client = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        bucket = Bucket(
            faults, endpoint, client, f"measurements-{secrets.token_hex(4)}"
        )  # moto has one set of buckets for all
        client.create_bucket(Bucket=bucket.name)
        layout = {"values": make_values(8_000, 32, seed=3), "chunks": (200, 32), **layout}
        bucket.upload(write_store(directory / "x.zarr", **layout))
        try:
            yield bucket
        finally:
            faults.start(None)
            for entry in client.list_objects_v2(Bucket=bucket.name).get("Contents", ()):
                client.delete_object(Bucket=bucket.name, Key=entry["Key"])
            client.delete_bucket(Bucket=bucket.name)
            client.close()


def digest_of_fit(source: Any) -> str:
    """Return the SHA-256 of what a fit of `source` gives."""
    pca = sp.PCA(n_components=5, solver="covariance").fit(source)
    digest = hashlib.sha256()
    for values in (pca.components_, pca.explained_variance_, pca.mean_):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def run(count: int, seed: int, stall_seconds: float = 3.0) -> Score:
    """Fit `count` times from a store with faults, by one profile after the other, and compare the bits.

    Counts faults that were injected; what must survive is every fit.
    """
    score, began = Score("object store: 500, 503, resets, stalls, cut answers"), time.perf_counter()
    with tempfile.TemporaryDirectory() as directory, bucket_in(Path(directory)) as bucket:
        undisturbed = digest_of_fit(bucket.source())
        bucket.faults.stall_seconds = stall_seconds
        for own in range(seed, seed + count):
            name = list(PROFILES)[own % len(PROFILES)]
            bucket.faults.start(PROFILES[name], own)
            _one(bucket, name, own, undisturbed, score)
            score.injected += bucket.faults.injected.total()
        bucket.faults.start(None)
    score.seconds = time.perf_counter() - began
    return score


def _one(bucket: Bucket, name: str, seed: int, undisturbed: str, score: Score) -> None:
    injected, repeat = bucket.faults.injected, f"{again('s3', seed)} ({name})"
    try:
        digest = within(LIMIT_SECONDS, lambda: digest_of_fit(bucket.source()))
    except TimeoutError as error:
        score.hangs += 1
        score.notes.append(f"{repeat}: {error}")
    except StreamPCAError as error:
        score.wrong += 1  # these faults are to be survived
        score.notes.append(f"{repeat}: {error}")
    except Exception as error:  # noqa: BLE001 what must not happen is counted
        score.tracebacks += 1
        score.notes.append(f"{repeat}: {type(error).__name__}: {error}")
    else:
        if digest == undisturbed:
            score.survived += injected.total()
        else:
            score.wrong += 1
            score.notes.append(f"{repeat}: other bits")
