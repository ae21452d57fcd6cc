"""What obstore does not tell of an answer, by the standard library: headers of refusals, and bodies that come without their size.

object_store 0.14 gives the status and the body of a refusal, and no header, so that ``Retry-After`` is not known; and it takes
no answer without ``Content-Length``, such as those of some proxies.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPException, IncompleteRead
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from streampca.sources.request_errors import RequestError

_SECONDS = 10.0
_PIECE = 2**16


@dataclass(frozen=True)
class Place:
    """Where an object is."""

    url: str
    """Its address, signed where the store needs that."""
    headers: Mapping[str, str]
    """Headers of requests for it, which no other host is sent."""
    options: Mapping[str, Any]
    """Those of the client."""


async def place_of(store: Any, key: str) -> Place:
    """Return where obstore would look for an object."""
    import obstore
    from obstore.store import HTTPStore

    options = dict(store.client_options or {})
    headers = {name: _text(value) for name, value in dict(options.pop("default_headers", None) or {}).items()}
    if "user_agent" in options:
        headers.setdefault("User-Agent", str(options["user_agent"]))
    if isinstance(store, HTTPStore):
        parts = urlsplit(store.url)
        path = f"{parts.path.rstrip('/')}/{quote(key)}"
        return Place(urlunsplit((parts.scheme, parts.netloc, path, parts.query, "")), headers, options)
    url = await obstore.sign_async(store, "GET", key, expires_in=timedelta(minutes=5))
    return Place(str(url), headers, options)


def headers_of_refusal(place: Place) -> Mapping[str, str] | None:
    """Return the headers of the answer to a request, names in lower case, None if it is not refused."""
    try:
        with _opened(place, _SECONDS, {"Range": "bytes=0-0"}):
            return None
    except HTTPError as refusal:
        with refusal:
            return {name.lower(): value for name, value in refusal.headers.items()}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds an answer says to wait before the next request; None if it does not say."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def body_of(place: Place, most: int, seconds: float, least_rate: int) -> tuple[bytes, str] | None:
    """Return up to `most` bytes of an object, and their content encoding; None if it does not exist.

    Raises
    ------
    RequestError
        If it is refused, or cut short.
    TimeoutError
        If no byte comes for `seconds`, or fewer than `least_rate` in one of them.
    """
    try:
        with _opened(place, seconds, {}) as answer:
            if answer.status != 200:
                raise RequestError(answer.reason, status=answer.status)
            return _received(answer, most, seconds, least_rate), answer.headers.get("Content-Encoding", "")
    except HTTPError as refusal:
        with refusal:
            if refusal.code == 404:
                return None
            raise RequestError(str(refusal.reason), status=refusal.code) from None
    except IncompleteRead as error:
        raise RequestError(f"the body was cut short after {len(error.partial):,} bytes", kind="Interrupted") from None
    except HTTPException as error:
        raise RequestError(str(error), kind="Interrupted") from None


def _received(answer: Any, most: int, seconds: float, least_rate: int) -> bytes:
    body, begun, begin = bytearray(), 0, time.monotonic()
    while len(body) < most:
        piece = answer.read1(min(_PIECE, most - len(body)))
        if not piece:
            break
        body += piece
        passed = time.monotonic() - begin
        if passed >= seconds:
            if len(body) - begun < least_rate * seconds:
                raise TimeoutError(too_slow(int(least_rate * seconds), passed, least_rate))
            begun, begin = len(body), time.monotonic()
    return bytes(body)


def too_slow(n_bytes: int, seconds: float, least_rate: int) -> str:
    """Return what is wrong with so few bytes in so many seconds."""
    return f"fewer than {n_bytes:,} bytes were received in {seconds:.3g} s, less than {least_rate} bytes per second"


def _opened(place: Place, seconds: float, further: Mapping[str, str]) -> Any:
    """Send a request; `HTTPError` for a refusal."""
    request = Request(place.url, headers={"Accept-Encoding": "identity", **further})  # noqa: S310 of a store on the web
    for name, value in place.headers.items():
        request.add_unredirected_header(name, value)
    certificate = place.options.get("root_certificate")
    context = ssl.create_default_context(cadata=None if certificate is None else _text(certificate))
    if str(place.options.get("allow_invalid_certificates", "")).lower() == "true":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers: list[Any] = [HTTPSHandler(context=context)]
    if "proxy_url" in place.options:
        proxy = str(place.options["proxy_url"])
        handlers.append(ProxyHandler({"http": proxy, "https": proxy}))
    return build_opener(*handlers).open(request, timeout=seconds)


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
