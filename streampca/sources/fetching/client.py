"""Requests for stored objects by obstore, each sent once: their errors, and whether two answers are of one content of an object.

object_store 0.14 gives the status and the body of a refusal, and no header: those are asked for by the standard library.
"""

from __future__ import annotations

import asyncio
import errno
import html
import re
import socket
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
_TRANSIENT_STATUS = frozenset({408, 425, 429})
"""HTTP statuses below 500 after which a repeated request may succeed."""
_TRANSIENT_CODES = frozenset(
    {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict"}
)
"""Codes of S3 after which a repeated request may succeed; some come with a status of 400."""
_TRANSIENT_KINDS = frozenset({"Connect", "Request", "Timeout", "Interrupted", "Decode", "Unknown"})
"""Failures of connections, as object_store calls them."""
_TRANSIENT_NAMES = frozenset({"ClientConnectionError", "ClientPayloadError", "HTTPClientError", "TimeoutError"})
"""Classes of clients of fsspec for a broken connection or a truncated answer."""
_PERMANENT_ERRNO = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENAMETOOLONG})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
"""Codes of S3 for credentials that were valid before."""
OF_ANOTHER_REGION = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "Redirect"})
"""Codes of S3 for requests that were sent to another region than that of the bucket."""
_UNREACHABLE = ("dns error", "ConnectionRefused", "NetworkUnreachable", "HostUnreachable")
"""What obstore says of a connection that was not established: the address is wrong or, if the store answered before, busy."""
_STATUS = re.compile(r"status code: (\d{3}) ?([^:]*):? ?(.*)", re.DOTALL)
_CODE, _MESSAGE = re.compile(r"<Code>(\w{1,80})</Code>"), re.compile(r"<Message>([^<]*)</Message>")
_CAUSES = re.compile(r'(?:message|error): "([^"]*)"|ConnectError\(\s*"([^"]*)"')
_METADATA = ("169.254.169.254", "169.254.170.", "metadata.google.internal")
"""Hosts of clouds that give credentials to the machines in them, which obstore asks last."""


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
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # which Python 3.13 sets, and obstore does not ask for
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


class RequestError(Exception):
    """A request that failed.

    Attributes
    ----------
    message : str
        What the store says, or what happened; nothing that may be secret.
    status : int or None
        Status of the answer.
    error_code : str or None
        Code of S3.
    kind : str
        How a request without an answer failed, in the words of object_store; ``range``, ``shifted``, ``length``, ``refused``,
        ``credentials`` and ``certificate`` are ours.
    """

    def __init__(self, message: str, status: int | None = None, error_code: str | None = None, kind: str = ""):
        super().__init__(message)
        self.message, self.status, self.error_code, self.kind = message, status, error_code, kind


def of_obstore(error: Exception) -> RequestError:
    """Return what is known of a failed request, from the words of obstore, which has neither status nor kind as attributes."""
    text, _, details = str(error).partition("\n\nDebug source")
    if any(host in text for host in _METADATA):
        return RequestError("no credentials were found", kind="credentials")
    if (found := _STATUS.search(text)) is not None:
        code, message = (pattern.search(found[3]) for pattern in (_CODE, _MESSAGE))
        said = html.unescape(message[1]).strip() if code and message else ""
        return RequestError(said or found[2].strip(), int(found[1]), code[1] if code else None)
    if "Content-Length Header missing" in text:
        return RequestError(text, kind="length")
    if re.search("RangeNotSupported|non-partial|content.range", text + details, re.IGNORECASE):
        return RequestError("the server serves no ranges", kind="range")
    if (spans := re.search(r"Requested (\d+)\.\.(\d+), got (\d+)\.\.(\d+)", text)) is not None:
        asked, sent = spans[1], spans[3]
        if asked == sent:
            return RequestError("the server sent less than was requested", kind="range")
        return RequestError(
            f"the server sent bytes from byte {sent}, where those from byte {asked} were requested", kind="shifted"
        )
    if "invalid list response" in text and re.search("end of input|Event::Eof", text):
        return RequestError("the listing ends before its end", kind="Interrupted")
    if "redirect without LOCATION" in text:
        return RequestError("the bucket is in another region", 301, "PermanentRedirect")
    kind = re.search(r"\bkind: (\w+),", details)
    causes = [message or connect for message, connect in _CAUSES.findall(details)]
    words = causes[-1].removeprefix("failed to lookup address information: ") if causes else ""
    name = "refused" if any(each in details for each in _UNREACHABLE) else kind[1] if kind else ""
    if (reason := re.search(r"InvalidCertificate\(\s*(\w+)", details)) is not None:
        return RequestError(f"its certificate is not trusted ({reason[1]})", kind="certificate")
    said = text.rpartition(" - ")[2] if "Error performing" in text else text
    return RequestError(", ".join(filter(None, (kind[1] if kind else "", words or said))), kind=name)


def is_transient(error: BaseException) -> bool:
    """Return whether a request that failed with `error` may succeed when it is repeated."""
    if code_of(error) in _TRANSIENT_CODES:
        return True
    status = status_of(error)
    if status is not None:
        return status >= 500 or status in _TRANSIENT_STATUS
    if isinstance(error, RequestError):
        return error.kind in _TRANSIENT_KINDS
    if isinstance(error, socket.gaierror | FileNotFoundError):
        return False
    if isinstance(error, OSError):
        return not isinstance(error, PermissionError) and error.errno not in _PERMANENT_ERRNO
    return any(kind.__name__ in _TRANSIENT_NAMES for kind in type(error).__mro__)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of the answer behind `error`, None if it has none."""
    for name in ("status", "code"):
        status = getattr(error, name, None)  # one after the other: aiohttp warns about its second name
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600:
            return status
    return None


def code_of(error: BaseException) -> str | None:
    """Return the code of S3 of the answer behind `error`, None if it has none."""
    return error.error_code if isinstance(error, RequestError) else None


def hint_of(error: BaseException, options_key: str, *, is_s3: bool) -> str:
    """Return what to do about a permanent failure, for messages; `options_key` is the configuration key of the options."""
    code, status = code_of(error), status_of(error)
    if code in _EXPIRED:
        return (
            f"the credentials have expired: give new ones, or leave them out of {options_key}, so that the client takes those of the "
            "environment and renews them"
        )
    if code == "RequestTimeTooSkewed":
        return "set the clock of this machine"
    if code in OF_ANOTHER_REGION:
        return f"give the region of the bucket in {options_key}, as in region: …"
    if isinstance(error, RequestError) and error.kind == "certificate":
        return f"give that of its authority in {options_key}, as in client_options: {{root_certificate: …}}, or in SSL_CERT_FILE"
    if isinstance(error, RequestError) and error.kind == "credentials":
        return f"give them in {options_key} or the environment, or skip_signature: true for a store that is open to all"
    if status not in (401, 403, 407) and not isinstance(error, PermissionError):
        return f"check the address and {options_key}"
    where = " and the region" if is_s3 else ""
    return f"check the credentials{where} in {options_key}; some stores also refuse keys that do not exist"
