"""Bodies of answers to the clients of fsspec, received within a number of bytes and above a least rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store
from zarr.storage import FsspecStore

from streampca.sources.request_errors import status_of
from streampca.storage.zarr_interface import Buffer, BufferPrototype

LEAST_RATE = 1024
"""Bytes per second that a store sends at least, measured over the longest time without a byte."""
READ_SECONDS = 60.0
"""Longest time without a byte, unless the options of a client say another."""
_PIECE = 2**18
_Read = Callable[[int], Awaitable[bytes]]


class TooManyBytesError(Exception):
    """A body that is larger than any object that is expected there."""


async def get(
    store: Store, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None, most: int | None
) -> Buffer | None:
    """Return the bytes of `key`, None if it does not exist.

    None of the bytes if the object ends before `byte_range`. A server that ignores ranges sends more.

    Raises
    ------
    TooManyBytesError
        If the body is larger than `most`, which is None where any size may be.
    TimeoutError
        If the body comes at less than `LEAST_RATE`.
    """
    opened = _opener_of(store)
    try:
        if opened is None or not isinstance(store, FsspecStore):
            return await store.get(key, prototype, byte_range)
        try:
            async with opened(store.fs, f"{store.path.rstrip('/')}/{key}", byte_range) as (read, seconds):
                return prototype.buffer.from_bytes(await _received(read, most, seconds))
        except store.allowed_exceptions:
            return None
    except Exception as error:
        if byte_range is None or status_of(error) != 416:
            raise
        return prototype.buffer.from_bytes(b"")


async def _received(read: _Read, most: int | None, seconds: float | None) -> bytearray:
    """Receive a body to its end."""
    body = bytearray()
    while True:
        begun = len(body)
        try:
            async with asyncio.timeout(seconds):
                while seconds is None or len(body) - begun < seconds * LEAST_RATE:
                    piece = await read(_PIECE)
                    if not piece:
                        return body
                    body += piece
                    if most is not None and len(body) > most:
                        raise TooManyBytesError(f"more than {most:,} bytes, the most that can be stored there")
        except TimeoutError:
            raise TimeoutError(too_slow(len(body) - begun, seconds)) from None


def too_slow(n_bytes: int, seconds: float | None) -> str:
    """Return what is wrong with so few bytes in so many seconds."""
    return f"{n_bytes:,} bytes were received in {seconds or 0:g} s, less than {LEAST_RATE} bytes per second"


def _opener_of(store: Store) -> Callable[..., Any] | None:
    """Return what opens bodies of `store`, None for a client that is not known here."""
    kind = type(store.fs) if isinstance(store, FsspecStore) else object  # not a subclass, which may read in another way
    known = {"fsspec.implementations.http.HTTPFileSystem": _from_web, "s3fs.core.S3FileSystem": _from_s3}
    return known.get(f"{kind.__module__}.{kind.__name__}")


@asynccontextmanager
async def _from_web(fs: Any, path: str, byte_range: ByteRequest | None) -> AsyncIterator[tuple[_Read, float | None]]:
    options = dict(fs.kwargs)
    options["headers"] = dict(options.get("headers") or {}) | _range_header(byte_range)
    session = await fs.set_session()
    seconds = getattr(fs.client_kwargs.get("timeout"), "sock_read", READ_SECONDS)
    async with asyncio.timeout(None if seconds is None else 2 * seconds):  # headers may come slowly, too
        answer = await session.get(fs.encode_url(path), **options)
    try:
        if answer.status == 404:
            raise FileNotFoundError(path)
        answer.raise_for_status()
        yield answer.content.read, seconds
    finally:
        answer.close()


@asynccontextmanager
async def _from_s3(fs: Any, path: str, byte_range: ByteRequest | None) -> AsyncIterator[tuple[_Read, float | None]]:
    bucket, key, version = fs.split_path(path)
    options = _range_header(byte_range) | ({} if version is None else {"VersionId": version})
    answer = await fs._call_s3("get_object", Bucket=bucket, Key=key, **options)
    try:
        yield answer["Body"].read, fs.config_kwargs.get("read_timeout", READ_SECONDS)
    finally:
        answer["Body"].close()


def _range_header(byte_range: ByteRequest | None) -> dict[str, str]:
    if byte_range is None:
        return {}
    if isinstance(byte_range, RangeByteRequest):
        return {"Range": f"bytes={byte_range.start}-{byte_range.end - 1}"}
    first = f"{byte_range.offset}-" if isinstance(byte_range, OffsetByteRequest) else f"-{byte_range.suffix}"
    return {"Range": f"bytes={first}"}
