"""Errors of requests to stores behind a URL: whether a repeated request may succeed, and status and code of the answer."""

from __future__ import annotations

import errno
from collections.abc import Mapping

_TRANSIENT_STATUS = frozenset({408, 425, 429})
"""HTTP statuses below 500 after which a repeated request may succeed."""
_TRANSIENT_CODES = frozenset(
    {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict"}
)
"""Codes of S3 after which a repeated request may succeed; some come with a status of 400 or none."""
_TRANSIENT_NAMES = frozenset(
    {
        "AlteredBodyError",
        "ClientConnectionError",
        "ClientPayloadError",
        "FlexibleChecksumError",
        "HTTPClientError",
        "IncompleteRead",
        "IncompleteReadError",
        "ResponseParserError",
        "TimeoutError",
    }
)
"""Classes of aiohttp, botocore and similar clients for a broken connection or a truncated answer."""
_PERMANENT_ERRNO = frozenset({errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENAMETOOLONG})
_UNREACHABLE = frozenset({"EndpointConnectionError", "ConnectTimeoutError"})
"""Classes of botocore for a connection that was not established: the address is wrong or, if the store answered before, busy."""


def is_transient(error: BaseException) -> bool:
    """Return whether a request that failed with `error` may succeed when it is repeated."""
    if code_of(error) in _TRANSIENT_CODES:
        return True
    status = status_of(error)
    if status is not None:
        return status >= 500 or status in _TRANSIENT_STATUS
    if isinstance(error, OSError):
        return not isinstance(error, PermissionError) and error.errno not in _PERMANENT_ERRNO
    return _is_one_of(error, _TRANSIENT_NAMES)


def is_unreachable(error: BaseException) -> bool:
    """Return whether no connection was established; transient only if the store answered before."""
    return _is_one_of(error, _UNREACHABLE)


def _is_one_of(error: BaseException, names: frozenset[str]) -> bool:
    return any(kind.__name__ in names for kind in type(error).__mro__)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of the answer behind `error`, None if it has none."""
    for get in (_s3_status, lambda it: getattr(it, "status", None), lambda it: getattr(it, "code", None)):
        status = get(error)  # one after the other: aiohttp warns about its second name
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600:
            return status
    return None


def _s3_status(error: BaseException) -> object:
    return _response_of(error).get("ResponseMetadata", {}).get("HTTPStatusCode")


def code_of(error: BaseException) -> str | None:
    """Return the code of S3 of the answer behind `error`, None if it has none."""
    code = _response_of(error).get("Error", {}).get("Code")
    return code if isinstance(code, str) else None


def _response_of(error: BaseException) -> Mapping[str, Mapping[str, object]]:
    for raised in (error, error.__cause__):
        response = getattr(raised, "response", None)
        if isinstance(response, dict):
            return response
    return {}
