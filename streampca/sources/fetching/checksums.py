"""Checksums of whole objects in the headers of an answer of S3, compared with what was received."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping


class AlteredBodyError(Exception):
    """A body whose checksum is not that of its headers; transient, see `request_errors`."""


def require_checksum(data: memoryview, headers: Mapping[str, str]) -> None:
    """Raise `AlteredBodyError` if a checksum in the headers of a whole object is not that of `data`.

    As botocore: the fastest of those that are known; none of an object that was uploaded in parts.
    """
    for name, function in _CHECKSUMS.items():
        expected = headers.get(f"x-amz-checksum-{name}")
        if expected is None or "-" in expected or (digest := function(data)) is None:
            continue
        if base64.b64encode(digest).decode() != expected:
            raise AlteredBodyError(f"the checksum ({name}) of the body is not that of its headers")
        return


def _crc32c(data: memoryview) -> bytes | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    return int(google_crc32c.value(data)).to_bytes(4, "big")


_CHECKSUMS: dict[str, Callable[[memoryview], bytes | None]] = {
    "crc32c": _crc32c,
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
