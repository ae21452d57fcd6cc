"""URLs for messages: without user, password and query, which may be secrets."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_USER = re.compile(r"\b([A-Za-z][A-Za-z0-9+.:-]*://)[^\s/?#'\"<>]*@")
_QUERY = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://[^\s?'\"<>]*)\?[^\s'\"<>,;)\]]*")


def shown(url: str) -> str:
    """Return a URL without user, password, query and fragment; anything else as it is."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return redacted(url.partition("?")[0])
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, place, parts.path, "", "")) if place else redacted(url.partition("?")[0])


def redacted(text: str) -> str:
    """Return a text in which URLs have neither user and password nor query.

    Every message of an error and every line of the command goes through here, so that what other packages say is covered too.
    """
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text)) if "://" in text else text
