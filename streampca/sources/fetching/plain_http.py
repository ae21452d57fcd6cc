"""Reading from a web server straight into given memory, for the common case: HTTP/1.1 without redirects.

A body is received where it is needed; aiohttp copies it twice on the way, which takes more than twice the processor time.
What is uncommon (`UnusualAnswerError`) is left to the client of fsspec.
"""

from __future__ import annotations

import asyncio
import html
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fsspec.implementations.http import HTTPFileSystem, get_client

from streampca.sources.fetching.bounded import LEAST_RATE, READ_SECONDS, too_slow

if TYPE_CHECKING:
    from yarl import URL

_HEAD_BYTES = 2**14
_MOST_IDLE = 32
_IDLE_SECONDS = 15.0
_CODE, _MESSAGE = re.compile(rb"<Code>(\w{1,80})</Code>"), re.compile(rb"<Message>([^<]*)</Message>")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class UnusualAnswerError(Exception):
    """An answer that this client does not understand: redirected, encoded or in pieces."""


class HTTPStatusError(Exception):
    """A refusal by a web server, or an answer that is not that of the request.

    Attributes
    ----------
    status : int
        Status of the answer.
    message : str
        Its reason, or what the store says in the body.
    headers : mapping
        Its headers, names in lower case.
    error_code : str or None
        Code of S3.
    """

    def __init__(
        self, status: int, reason: str, headers: Mapping[str, str] | None = None, error_code: str | None = None
    ):
        super().__init__(reason)
        self.status, self.message, self.headers, self.error_code = status, reason, headers or {}, error_code

    def with_body(self, body: bytes) -> HTTPStatusError:
        """Return the error with the code and the message in a body of S3."""
        code, message = (found.search(body) for found in (_CODE, _MESSAGE))
        if code is None:
            return self
        text = "" if message is None else html.unescape(message[1].decode("utf-8", "replace")).strip()
        return HTTPStatusError(self.status, text or self.message, self.headers, code[1].decode())


class IncompleteReadError(Exception):
    """An answer that ended early; transient, see `request_errors`."""


@dataclass(frozen=True)
class Answer:
    """A body that was received."""

    n_bytes: int
    """Its size in bytes; 0 if it did not fit and was not received."""
    total: int
    """Size in bytes of the whole object."""
    is_range: bool
    """Whether the body is the range that was requested, not the whole object."""
    start: int = 0
    """Where the body begins in the object."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers, their names in lower case."""


@dataclass(eq=False)
class PlainHTTP:
    """Connections to web servers, kept open between requests; used in one event loop."""

    headers: dict[str, str] = field(default_factory=dict)
    """Headers of every request."""
    connect_seconds: float = 10.0
    """Time limit of a connection."""
    read_seconds: float | None = READ_SECONDS
    """Longest time without a byte, or with fewer than `LEAST_RATE` allows."""
    certificates: str | None = None
    """File of the certificates that are trusted; None for those of the system."""
    _idle: list[_Connection] = field(default_factory=list)
    _context: ssl.SSLContext | None = None  # that of all connections: it reads all certificates

    @classmethod
    def of(cls, file_system: Any) -> PlainHTTP | None:
        """Return a client for requests as those of `file_system`, None if they have options that only aiohttp knows."""
        if type(file_system) is not HTTPFileSystem or file_system.get_client is not get_client:
            return None  # somebody else's
        client = dict(file_system.client_kwargs)
        timeout, headers = client.pop("timeout", None), client.pop("headers", None) or {}
        own = {name: value for name, value in file_system.kwargs.items() if name != "params"}
        headers = {**headers, **(own.pop("headers", None) or {})}
        limits = (getattr(timeout, "sock_connect", None), getattr(timeout, "sock_read", None))
        plain = getattr(timeout, "total", None) is None and all(isinstance(text, str) for text in headers.values())
        if client or own or not plain or not isinstance(limits[0], int | float):
            return None
        return cls(headers, limits[0], limits[1])

    async def get(
        self, url: URL, span: tuple[int, int] | None, buffer: memoryview, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Receive an object, or the bytes in `span` of it, in `buffer`; `headers` are further ones of this request.

        Raises
        ------
        FileNotFoundError
            If it does not exist.
        HTTPStatusError
            For every other refusal, and for another range than the requested one.
        UnusualAnswerError
            If the answer is uncommon.
        OSError, IncompleteReadError
            If the connection fails.
        """
        place = (url.scheme, url.host or "", url.port or 80)
        request = self._request(url, span, headers or {})
        while (connection := self._taken(place)) is not None:
            try:
                return _checked(await self._exchange(connection, request, buffer), span)
            except ConnectionError:
                if connection.answered:
                    raise  # else the server had closed it before it was used again
        return _checked(await self._exchange(await self._connect(place), request, buffer), span)

    def close(self) -> None:
        """Close all connections that are not in use."""
        while self._idle:
            self._idle.pop().abort()

    def _request(self, url: URL, span: tuple[int, int] | None, further: Mapping[str, str]) -> bytes:
        usual = {"Host": _host_of(url), "Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "streampca"}
        own = {**self.headers, **further}
        given = {name.lower() for name in own}
        headers = {name: value for name, value in usual.items() if name.lower() not in given} | own
        if span is not None:
            headers["Range"] = range_of(span)
        lines = [f"GET {url.raw_path_qs} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise UnusualAnswerError("a header has a line break")
        return "\r\n".join([*lines, "", ""]).encode()

    def _taken(self, place: tuple[str, str, int]) -> _Connection | None:
        for connection in reversed(self._idle):
            if connection.place == place:
                self._idle.remove(connection)
                return connection
        return None

    async def _connect(self, place: tuple[str, str, int]) -> _Connection:
        scheme, host, port = place
        if scheme == "https" and self._context is None:
            self._context = ssl.create_default_context(cafile=self.certificates)
        context = self._context if scheme == "https" else None
        async with asyncio.timeout(self.connect_seconds):
            made = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(place), host, port, ssl=context
            )
        return made[1]

    async def _exchange(self, connection: _Connection, request: bytes, buffer: memoryview) -> Answer:
        try:
            answer = await connection.exchange(request, buffer, self.read_seconds)
        except BaseException:
            connection.abort()
            raise
        if connection.reusable and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
            loop = asyncio.get_running_loop()
            loop.call_later(_IDLE_SECONDS, self._expire, connection, connection.n_answers)
        else:
            connection.abort()
        return answer

    def _expire(self, connection: _Connection, n_answers: int) -> None:
        """Close a connection that was not used since it became idle."""
        if connection in self._idle and connection.n_answers == n_answers:
            self._idle.remove(connection)
            connection.abort()


class _Connection(asyncio.BufferedProtocol):
    """One connection to a web server, with at most one request at a time."""

    def __init__(self, place: tuple[str, str, int]):
        self.place = place
        self.answered, self.reusable, self.n_answers = False, False, 0
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(_HEAD_BYTES)
        self._body = self._buffer = memoryview(b"")
        self._n_head = self._n_body = 0
        self._answer: Answer | None = None
        self._refusal: HTTPStatusError | None = None
        self._done: asyncio.Future[Answer] | None = None
        self._received, self._n_received = 0.0, 0
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the event loop."""
        self._transport = cast(asyncio.Transport, transport)

    def abort(self) -> None:
        """Close the connection at once."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    async def exchange(self, request: bytes, buffer: memoryview, read_seconds: float | None) -> Answer:
        """Send `request`, and receive the body of the answer in `buffer`."""
        loop = asyncio.get_running_loop()
        self.answered, self.reusable, self._answer, self._refusal, self._n_head, self._n_body = (
            False,
            False,
            None,
            None,
            0,
            0,
        )
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection was closed")
        self._done, self._buffer, self._body = loop.create_future(), buffer, memoryview(b"")
        self._received, self._n_received = loop.time(), 0
        self._transport.write(request)
        if read_seconds is not None:
            self._watch = loop.call_later(read_seconds, self._look, read_seconds, self._received, 0)
        try:
            answer = await self._done
            self.n_answers += 1
            return answer
        finally:
            self._done, self._buffer, self._body = None, memoryview(b""), memoryview(b"")
            if self._watch is not None:
                self._watch.cancel()

    def _look(self, read_seconds: float, since: float, n_before: int) -> None:
        """End the request if nothing was received for so long, or too little after `since`, when `n_before` bytes were there."""
        loop = asyncio.get_running_loop()
        now, is_over = loop.time(), loop.time() - since >= read_seconds
        if self._done is None or self._done.done():
            return
        if now - self._received >= read_seconds:
            self._fail(TimeoutError(f"no byte was received for {read_seconds:g} s"))
        elif n_before and is_over and self._n_received - n_before < LEAST_RATE * read_seconds:
            self._fail(TimeoutError(too_slow(self._n_received - n_before, read_seconds)))
        else:
            if is_over or not n_before:
                since, n_before = now, self._n_received
            next_time = min(since, self._received) + read_seconds + 0.01
            self._watch = loop.call_at(next_time, self._look, read_seconds, since, n_before)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: the head of an answer, or its body; never nothing, which ends the connection."""
        if self._n_body < len(self._body):
            return self._body[self._n_body :]
        if self._done is None or self._done.done():
            return memoryview(self._head)
        return memoryview(self._head)[self._n_head :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take `nbytes` bytes that were received."""
        if self._done is None or self._done.done():
            self.abort()  # nothing was requested
            return
        self._received = self._done.get_loop().time()
        self._n_received += nbytes
        if self._answer is None and self._refusal is None:
            self._n_head += nbytes
            self.answered = True
            end = self._head.find(b"\r\n\r\n", 0, self._n_head)
            if end < 0:
                if self._n_head == _HEAD_BYTES:
                    self._fail(UnusualAnswerError("the headers are too long"))
                return
            try:
                self._begin_body(end + 4)
            except Exception as error:  # noqa: BLE001 an answer may be anything
                self._fail(error)
                return
        else:
            self._n_body += nbytes
        if self._n_body < len(self._body):
            return
        if self._refusal is not None:
            self._fail(self._refusal.with_body(bytes(self._body)))
        elif self._answer is not None:
            self._done.set_result(self._answer)

    def _begin_body(self, start: int) -> None:
        """Read the headers, and copy to the buffer what was received behind them."""
        status, reason, headers = _parsed(bytes(self._head[: start - 4]))
        if status == 404:
            raise FileNotFoundError(reason)
        length, encoding = headers.get("content-length"), headers.get("content-encoding", "identity")
        if status >= 400:
            self._refuse(HTTPStatusError(status, reason, headers), start, length or "")
            return
        place = _RANGE.fullmatch(headers.get("content-range", ""))
        in_pieces = length is None or not length.isdecimal() or "transfer-encoding" in headers or encoding != "identity"
        if status not in (200, 206) or in_pieces or (status == 206 and place is None):
            raise UnusualAnswerError(f"status {status}")
        n_bytes = int(length or 0)
        if n_bytes < self._n_head - start:
            raise UnusualAnswerError("more bytes than the headers say")
        if n_bytes > len(self._buffer):  # a server that ignores ranges, or an object that is too large
            self._answer = Answer(0, n_bytes, is_range=False)
            return
        self._body = self._buffer[:n_bytes]
        self._answer = Answer(n_bytes, n_bytes, is_range=False, headers=headers)
        if status == 206 and place is not None:
            if int(place[2]) - int(place[1]) + 1 != n_bytes:
                raise UnusualAnswerError("the range has another size than the body")
            self._answer = Answer(n_bytes, int(place[3]), is_range=True, start=int(place[1]), headers=headers)
        self._n_body = self._n_head - start
        self._body[: self._n_body] = self._head[start : self._n_head]
        self.reusable = headers.get("connection", "").lower() != "close"

    def _refuse(self, refusal: HTTPStatusError, start: int, length: str) -> None:
        """Raise `refusal`, or receive its body behind the headers first where there is room."""
        end = start + int(length) if length.isdecimal() else 0
        if not start < end <= _HEAD_BYTES:
            raise refusal
        self._refusal, self._body = refusal, memoryview(self._head)[start:end]
        self._n_body = min(self._n_head, end) - start

    def connection_lost(self, exc: Exception | None) -> None:
        """End the current request with an error."""
        self.reusable = False
        if self._refusal is not None:
            error: Exception = self._refusal
        elif self._answer is not None:
            error = IncompleteReadError(f"{self._n_body} of {len(self._body)} bytes were received")
        else:
            error = exc if isinstance(exc, OSError) else ConnectionResetError("the server closed the connection")
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


def range_of(span: tuple[int, int]) -> str:
    """Return the value of the header that requests the bytes in `span`; from the end of the object if it is negative."""
    if span[0] < 0:
        return f"bytes={span[0]}"
    return f"bytes={span[0]}-{span[1] - 1}"


def _checked(answer: Answer, span: tuple[int, int] | None) -> Answer:
    """Return `answer`, unless it is a range that begins elsewhere than the requested one."""
    first = 0 if span is None else span[0] if span[0] >= 0 else max(0, answer.total + span[0])
    if answer.is_range and answer.start != first:
        asked = "the whole object was" if span is None else f"those from byte {first} were"
        raise HTTPStatusError(206, f"the server sent bytes from byte {answer.start}, where {asked} requested")
    return answer


def _parsed(head: bytes) -> tuple[int, str, dict[str, str]]:
    """Return status, reason and headers of an answer, names in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status, _, reason = rest.partition(" ")
    if version != "HTTP/1.1" or not status.isdecimal():
        raise UnusualAnswerError(f"the answer begins with {first[:40]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(status), reason.strip(), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _host_of(url: URL) -> str:
    """Return the header `Host` of requests for `url`."""
    return str(url.host_port_subcomponent)
