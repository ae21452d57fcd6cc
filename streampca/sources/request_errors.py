"""Errors of requests to stores behind a URL: whether a repeated request may succeed, and status and code of the answer."""

from __future__ import annotations

import errno
import html
import re
import socket

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
_OF_ANOTHER_REGION = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "Redirect"})
"""Codes of S3 for requests that were sent to another region than that of the bucket."""
_UNREACHABLE = ("dns error", "ConnectionRefused", "NetworkUnreachable", "HostUnreachable")
"""What obstore says of a connection that was not established: the address is wrong or, if the store answered before, busy."""
_STATUS = re.compile(r"status code: (\d{3}) ?([^:]*):? ?(.*)", re.DOTALL)
_CODE, _MESSAGE = re.compile(r"<Code>(\w{1,80})</Code>"), re.compile(r"<Message>([^<]*)</Message>")
_CAUSES = re.compile(r'(?:message|error): "([^"]*)"|ConnectError\(\s*"([^"]*)"')
_METADATA = ("169.254.169.254", "169.254.170.", "metadata.google.internal")
"""Hosts of clouds that give credentials to the machines in them, which obstore asks last."""


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


def is_unreachable(error: BaseException) -> bool:
    """Return whether no connection was established; transient only if the store answered before."""
    return isinstance(error, RequestError) and error.kind == "refused"


def is_of_another_region(error: BaseException) -> bool:
    """Return whether a bucket of S3 is in another region than the one that was asked."""
    return code_of(error) in _OF_ANOTHER_REGION


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
    if code in _OF_ANOTHER_REGION:
        return f"give the region of the bucket in {options_key}, as in region: …"
    if isinstance(error, RequestError) and error.kind == "certificate":
        return f"give that of its authority in {options_key}, as in client_options: {{root_certificate: …}}, or in SSL_CERT_FILE"
    if isinstance(error, RequestError) and error.kind == "credentials":
        return f"give them in {options_key} or the environment, or skip_signature: true for a store that is open to all"
    if status not in (401, 403, 407) and not isinstance(error, PermissionError):
        return f"look at the address and at {options_key}"
    where = " and the region" if is_s3 else ""
    return f"look at the credentials{where} in {options_key}; some stores also refuse keys that do not exist"
