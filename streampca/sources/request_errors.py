"""Errors of requests to stores behind a URL: whether a repeated request may succeed, and status and code of the answer."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

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
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
"""Codes of S3 for credentials that were valid before."""
_OF_ANOTHER_REGION = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "Redirect"})
"""Codes of S3 for requests that were sent to another region than that of the bucket, where its client did not find it out."""
_UNREACHABLE = frozenset({"EndpointConnectionError", "ConnectTimeoutError"})
"""Classes of botocore for a connection that was not established: the address is wrong or, if the store answered before, busy."""


def is_transient(error: BaseException) -> bool:
    """Return whether a request that failed with `error` may succeed when it is repeated."""
    if code_of(error) in _TRANSIENT_CODES:
        return True
    if is_unknown_host(error):
        return False
    status = status_of(error)
    if status is not None:
        return status >= 500 or status in _TRANSIENT_STATUS
    if isinstance(error, OSError):
        return not isinstance(error, PermissionError) and error.errno not in _PERMANENT_ERRNO
    return _is_one_of(error, _TRANSIENT_NAMES)


def is_unreachable(error: BaseException) -> bool:
    """Return whether no connection was established; transient only if the store answered before."""
    return _is_one_of(error, _UNREACHABLE)


def is_unknown_host(error: BaseException) -> bool:
    """Return whether the name of the host has no address; transient only if the store answered before."""
    cause = getattr(error, "os_error", error)  # of aiohttp
    return isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME


def retry_after(error: BaseException) -> float:
    """Return how many seconds the answer behind `error` says to wait before the next request (``Retry-After``), 0 if it does not."""
    headers = _response_of(error).get("ResponseMetadata", {}).get("HTTPHeaders") or getattr(error, "headers", None)
    named = {str(name).lower(): str(value) for name, value in headers.items()} if isinstance(headers, Mapping) else {}
    text = named.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


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
    code = _response_of(error).get("Error", {}).get("Code") or getattr(error, "error_code", None)
    return code if isinstance(code, str) else None


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
    if code in _OF_ANOTHER_REGION or (is_s3 and isinstance(error, RecursionError)):  # redirected without end
        return f"give the region of the bucket in {options_key}, as in client_kwargs: {{region_name: …}}"
    if status not in (401, 403, 407) and not isinstance(error, PermissionError):
        return f"look at the address and at {options_key}"
    where = " and the region" if is_s3 else ""
    return f"look at the credentials{where} in {options_key}; some stores also refuse keys that do not exist"


def _response_of(error: BaseException) -> Mapping[str, Mapping[str, object]]:
    for raised in (error, error.__cause__):
        response = getattr(raised, "response", None)
        if isinstance(response, dict):
            return response
    return {}
