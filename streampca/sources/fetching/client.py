"""Requests for stored objects by obstore, each sent once: bodies are received within a size, and above a least rate."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.sources.fetching import answers
from streampca.sources.fetching.object_version import ObjectVersion
from streampca.sources.request_errors import RequestError, of_obstore
from streampca.system.process import limit_arenas

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult

LEAST_RATE = 1024
"""Bytes per second that a store sends at least, measured over the longest time without a byte."""
READ_SECONDS = 60.0
"""Longest time without a byte, unless the options of a client say another."""
MAX_STORED_BYTES = 2**62
"""Size of an object that is not known."""
_PIECE = 2**16
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DECODED = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""Window sizes of zlib by content encoding: of bodies that a web server compresses on its own account."""


class TooManyBytesError(Exception):
    """A body that is larger than any object that is expected there."""

    def __init__(self, most: int):
        super().__init__(f"more than {most:,} bytes, the most that can be stored there")


@dataclass(frozen=True)
class Fetched:
    """Stored bytes."""

    data: memoryview
    """The bytes; none if they did not fit where they were to be received."""
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

    async def fetch(
        self, key: str, span: tuple[int, int] | None, buffer: memoryview | None, most: int | None = None
    ) -> Fetched | None:
        """Return the bytes of `key`, or those in `span`, None if it does not exist; in `buffer` if there is one.

        A negative `span` is one from the end. An object has at most `most` bytes; `TooManyBytesError` for one that has more.
        `RequestError` and `TimeoutError` for a request that fails.
        """
        import obstore

        try:
            options = await self._options(key, span)
            async with asyncio.timeout(None if self.seconds is None else 2 * self.seconds):
                result = await obstore.get_async(self.store, key, options=options)
            return await self._received(result, span, buffer, most)
        except FileNotFoundError:
            return None
        except obstore.exceptions.BaseError as failed:
            error = of_obstore(failed)
        if error.status == 416:  # the object ends before the range
            return Fetched(memoryview(b""), 0, is_range=True)
        if error.kind in ("range", "length") and span is not None:  # the whole object, or less, or without its size
            self.serves_ranges = False
            return Fetched(memoryview(b""), MAX_STORED_BYTES, is_range=False)
        if error.kind == "length":  # of a whole object; with a range comes the size
            answer = await self.fetch(key, (0, MAX_STORED_BYTES if most is None else most + 1), buffer)
            if answer is not None and not answer.is_range:
                raise RequestError(
                    "the server sends neither the sizes of objects nor ranges of them: expected the header Content-Length",
                    kind="length",
                )
            if answer is not None and most is not None and len(answer.data) > most:
                raise TooManyBytesError(most)
            return None if answer is None else replace(answer, is_range=False)
        raise error

    async def _options(self, key: str, span: tuple[int, int] | None) -> GetOptions | None:
        import obstore
        from obstore.store import AzureStore

        if span is None or span[0] >= 0:
            return None if span is None else {"range": span}
        if isinstance(self.store, AzureStore):  # which has no ranges from the end
            size = (await obstore.head_async(self.store, key))["size"]
            return {"range": (max(0, size + span[0]), size)}
        return {"range": {"suffix": -span[0]}}

    async def _received(
        self, result: GetResult, span: tuple[int, int] | None, buffer: memoryview | None, most: int | None
    ) -> Fetched:
        meta, n_bytes, is_range = result.meta, result.range[1] - result.range[0], span is not None
        if buffer is None:
            if most is not None and n_bytes > most and not is_range:
                raise TooManyBytesError(most)
            buffer = memoryview(np.empty(n_bytes, dtype=np.uint8).data)
        if n_bytes > len(buffer):  # an object that is too large
            return Fetched(buffer[:0], meta["size"], is_range=False)
        n_received = await self._receive(result, buffer[:n_bytes])
        if n_received != n_bytes:
            raise RequestError(f"{n_received:,} of {n_bytes:,} bytes were received", kind="Interrupted")
        data, total = buffer[:n_bytes], meta["size"]
        if not is_range and (decoded := _decoded(data, result.attributes, most)) is not None:
            data, total = decoded, len(decoded)
        return Fetched(data, total, is_range, ObjectVersion.of(meta["e_tag"], meta["last_modified"], meta["size"]))

    async def _receive(self, result: GetResult, buffer: memoryview) -> int:
        """Receive a body to its end and return its size; a server may send another than that of its headers."""
        least = min(_PIECE, len(buffer), int(LEAST_RATE * (self.seconds or READ_SECONDS))) or 1
        seconds = None if self.seconds is None else self.seconds + least / LEAST_RATE
        n, pieces = 0, result.stream(least)
        while True:
            try:
                async with asyncio.timeout(seconds):
                    piece = await anext(pieces, None)
            except TimeoutError:
                raise TimeoutError(
                    f"fewer than {least:,} bytes were received in {seconds or 0:.3g} s, less than {LEAST_RATE} bytes per second"
                ) from None
            if piece is None:
                return n
            if n + len(piece) > len(buffer):
                raise TooManyBytesError(len(buffer))
            buffer[n : n + len(piece)] = piece
            n += len(piece)

    async def refusal(self, key: str) -> Mapping[str, str] | None:
        """Return the headers of the answer that refuses a request for `key`, which obstore does not tell; None if it is not refused.

        Names are in lower case; there are none if they cannot be known.
        """
        try:
            return await answers.headers_of_refusal(await answers.place_of(self.store, key))
        except Exception:  # noqa: BLE001 what it says is known or not
            return {}


def _seconds(duration: object) -> float | None:
    """Return a duration of obstore in seconds, such as ``1min 30s``; None if there is none."""
    if duration is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(duration))
    return sum(float(number) * _UNITS.get(unit, 1.0) for number, unit in parts) or READ_SECONDS


def _decoded(data: memoryview, attributes: Mapping[Any, Any], most: int | None) -> memoryview | None:
    """Return a body that was compressed for the way, None for one that was not."""
    window = _DECODED.get(str(attributes.get("Content-Encoding", "")).lower())
    if window is None:
        return None
    decoder = zlib.decompressobj(window)
    body = decoder.decompress(data, 0 if most is None else most + 1)
    if decoder.unconsumed_tail and most is not None:
        raise TooManyBytesError(most)
    return memoryview(body)
