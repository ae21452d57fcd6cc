"""Requests for stored objects by obstore, each sent once, and whether two answers are of one content of an object.

object_store 0.14 gives the status and the body of a refusal, and no header: those are asked for by the standard library.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from streampca.sources.request_errors import RequestError, of_obstore
from streampca.system.process import limit_arenas

LEAST_RATE = 2**14
"""Bytes per second that the body of an answer is received with at least, on average."""
READ_SECONDS = 60.0
"""Longest time without a byte, unless the options of a client say another."""
MAX_STORED_BYTES = 2**62
"""Size of an object that is not known."""
_REFUSAL_SECONDS = 10.0
"""Longest time without a byte of the headers of a refusal."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DECODED = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""Window sizes of zlib by content encoding: of bodies that a web server compresses on its own account."""
_STRONG_SECONDS = 60.0
"""Age from which the time of modification, in whole seconds, identifies a content (RFC 9110, section 8.8.2.2; RFC 7232, 2.2.2)."""


@dataclass(frozen=True)
class ObjectVersion:
    """What an answer says of the content of an object; None for what is not known."""

    tag: str | None = None
    """Entity tag, if it is strong: another content has another."""
    modified: float | None = None
    """Time of modification in seconds, if it is old enough that another content has another."""
    n_bytes: int | None = None
    """Size in bytes."""

    @classmethod
    def of(cls, tag: str | None, modified: datetime, n_bytes: int) -> ObjectVersion:
        """Return the version of an object of `n_bytes`; a time of 1970 is that of a server that tells none."""
        seconds = modified.timestamp()
        is_strong = 0 < seconds <= time.time() - _STRONG_SECONDS
        return cls(None if tag is None or tag.startswith("W/") else tag, seconds if is_strong else None, n_bytes)

    def differs(self, other: ObjectVersion) -> bool:
        """Return whether the two are of different contents, as far as is known.

        Servers of one address may give their copies of one file different tags: those of nginx and Apache come from times or
        inodes. Copies of the same size and time of modification are taken for one.
        """
        if None not in (self.n_bytes, other.n_bytes) and self.n_bytes != other.n_bytes:
            return True
        if self.tag is None or other.tag is None or self.tag == other.tag:
            return False
        return self.modified is None or self.modified != other.modified


@dataclass(frozen=True)
class Fetched:
    """Stored bytes."""

    data: memoryview
    """The bytes; none of an object that is larger than any that is expected, and of one whose ranges are not served."""
    total: int
    """Size in bytes of the whole object; `MAX_STORED_BYTES` of one whose ranges are not served."""
    is_range: bool
    """Whether `data` are the range that was requested, not the whole object."""
    version: ObjectVersion = field(default_factory=ObjectVersion)
    """What is known of the content of the object."""


class ObjectClient:
    """Sends the requests for the objects of one store, without retries.

    Parameters
    ----------
    store : obstore.store.ObjectStore
        Where the objects are.
    """

    def __init__(self, store: Any):
        limit_arenas()  # before threads of obstore receive anything
        self.store = store
        self.serves_ranges = True
        """Whether ranges of objects can be requested; some web servers send the whole object."""
        self.seconds = _seconds(store.client_options.get("read_timeout")) if hasattr(store, "client_options") else None

    async def fetch(self, key: str, span: tuple[int, int] | None, most: int | None = None) -> Fetched | None:
        """Return the bytes of `key`, or those in `span`, None if it does not exist.

        A negative `span` is one from the end. Of an object of more than `most` bytes, where given, nothing is received but its size.
        `RequestError` and `TimeoutError` for a request that fails.
        """
        import obstore
        from obstore.store import AzureStore

        options: Any = None if span is None else {"range": span}
        seconds = None if self.seconds is None else 2 * self.seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                if span is not None and span[0] < 0:
                    options = {"range": {"suffix": -span[0]}}
                    if isinstance(self.store, AzureStore):  # which has no ranges from the end
                        size = (await obstore.head_async(self.store, key))["size"]
                        options = {"range": (max(0, size + span[0]), size)}
                result = await obstore.get_async(self.store, key, options=options)
                meta, n_bytes = result.meta, result.range[1] - result.range[0]
                version = ObjectVersion.of(meta["e_tag"], meta["last_modified"], meta["size"])
                if span is None and most is not None and n_bytes > most:
                    return Fetched(memoryview(b""), meta["size"], is_range=False, version=version)
                if seconds is not None:
                    limit.reschedule(asyncio.get_running_loop().time() + seconds + n_bytes / LEAST_RATE)
                data, total = memoryview(await result.bytes_async()), meta["size"]
            if len(data) != n_bytes:
                raise RequestError(f"{len(data):,} of {n_bytes:,} bytes were received", kind="Interrupted")
            window = (
                None if span is not None else _DECODED.get(str(result.attributes.get("Content-Encoding", "")).lower())
            )
            if window is not None:
                decoder = zlib.decompressobj(window)
                data = memoryview(decoder.decompress(data, 0 if most is None else most + 1))
                total = len(data)
            return Fetched(data, total, span is not None, version)
        except FileNotFoundError:
            return None
        except TimeoutError:
            raise TimeoutError("the whole answer did not come in time") from None
        except obstore.exceptions.BaseError as failed:
            error = of_obstore(failed)
        if error.status == 416:  # the object ends before the range
            return Fetched(memoryview(b""), 0, is_range=True)
        if error.kind in ("range", "length") and span is not None:  # the whole object, or less, or without its size
            self.serves_ranges = False
            return Fetched(memoryview(b""), MAX_STORED_BYTES, is_range=False)
        if error.kind == "length":  # of a whole object; with a range comes the size
            answer = await self.fetch(key, (0, MAX_STORED_BYTES if most is None else most + 1))
            if answer is not None and not answer.is_range:
                raise RequestError(
                    "the server sends neither the sizes of objects nor ranges of them: expected the header Content-Length",
                    kind="length",
                )
            return None if answer is None else replace(answer, is_range=False)
        raise error

    async def refusal(self, key: str) -> Mapping[str, str] | None:
        """Return the headers of the answer that refuses a request for `key`, which obstore does not tell; None if it is not refused.

        Names are in lower case; there are none if they cannot be known.
        """
        try:
            return await asyncio.to_thread(_headers_of_refusal, self.store, key)
        except Exception:  # noqa: BLE001 what it says is known or not
            return {}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds an answer says to wait before the next request; None if it does not say."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _headers_of_refusal(store: Any, key: str) -> Mapping[str, str] | None:
    """Do what `ObjectClient.refusal` does, by a request for a byte where obstore would look for an object."""
    import obstore
    from obstore.store import HTTPStore

    options = dict(store.client_options or {})
    if isinstance(store, HTTPStore):
        parts = urlsplit(store.url)
        url = urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{quote(key)}", parts.query, ""))
    else:  # signed
        url = str(obstore.sign(store, "GET", key, expires_in=timedelta(minutes=5)))
    request = Request(url, headers={"Accept-Encoding": "identity", "Range": "bytes=0-0"})  # noqa: S310 of a store on the web
    if "user_agent" in options:
        request.add_header("User-Agent", str(options["user_agent"]))
    for name, value in dict(options.get("default_headers") or {}).items():  # which no other host is sent
        request.add_unredirected_header(name, _text(value))
    certificate = options.get("root_certificate")
    context = ssl.create_default_context(cadata=None if certificate is None else _text(certificate))
    if str(options.get("allow_invalid_certificates", "")).lower() == "true":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urlopen(request, timeout=_REFUSAL_SECONDS, context=context):  # noqa: S310
            return None
    except HTTPError as refusal:
        with refusal:
            return {name.lower(): value for name, value in refusal.headers.items()}


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _seconds(duration: object) -> float | None:
    """Return a duration of obstore in seconds, such as ``1min 30s``; None if there is none."""
    if duration is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(duration))
    return sum(float(number) * _UNITS.get(unit, 1.0) for number, unit in parts) or READ_SECONDS
