"""Headers of refusals, by the standard library.

object_store 0.14 gives the status and the body of a refusal, and no header, so that ``Retry-After`` is not known.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

SECONDS = 10.0
"""Longest time that headers of a refusal are waited for."""


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


async def headers_of_refusal(place: Place) -> Mapping[str, str] | None:
    """Return the headers of the answer to a request, names in lower case, None if it is not refused.

    Raises
    ------
    TimeoutError
        If they have not come in `SECONDS`, as a whole: the standard library counts from the last byte.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Mapping[str, str] | None] = loop.create_future()

    def answer(headers: Mapping[str, str] | None) -> None:
        if not found.done():
            found.set_result(headers)

    def ask() -> None:
        headers: Mapping[str, str] | None = {}
        try:
            with _opened(place):
                headers = None
        except HTTPError as refusal:
            with refusal:
                headers = {name.lower(): value for name, value in refusal.headers.items()}
        except Exception:  # noqa: BLE001, S110 they are not known
            pass
        with contextlib.suppress(RuntimeError):  # of a loop that has ended
            loop.call_soon_threadsafe(answer, headers)

    threading.Thread(
        target=ask, name="streampca-refusal", daemon=True
    ).start()  # the end of the process waits for no daemon
    return await asyncio.wait_for(found, SECONDS)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds an answer says to wait before the next request; None if it does not say."""
    text = headers.get("retry-after", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _opened(place: Place) -> Any:
    """Send a request for a byte; `HTTPError` for a refusal."""
    headers = {"Accept-Encoding": "identity", "Range": "bytes=0-0"}
    request = Request(place.url, headers=headers)  # noqa: S310 of a store on the web
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
    return build_opener(*handlers).open(request, timeout=SECONDS)


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
