"""URLs for messages: without user, password and query, which may be secrets."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

_USER = re.compile(r"\b([A-Za-z][A-Za-z0-9+.:-]*://)[^\s/?#'\"<>]*@")
_QUERY = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://[^\s?'\"<>]*)\?[^\s'\"<>,;)\]]*")


HIDDEN = "***"
"""What stands in stored configurations for what may be secret."""
_PUBLIC_OPTIONS = frozenset(
    {
        "endpoint_url",
        "region_name",
        "endpoint",
        "region",
        "profile",
        "project",
        "protocol",
        "target_protocol",
        "remote_protocol",
    }
    | {"addressing_style", "signature_version", "default_cache_type", "connect_timeout", "read_timeout", "timeout"}
)
"""Options of file systems whose texts are no secrets."""


def without_secrets(value: object, *, in_options: bool = False) -> object:
    """Return a configuration in which `HIDDEN` stands for texts in ``storage_options``, and for users and queries of URLs."""
    if isinstance(value, dict):
        return {
            key: without_secrets(
                item, in_options=(in_options or key == "storage_options") and key not in _PUBLIC_OPTIONS
            )
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(item, in_options=in_options) for item in value]
    if not isinstance(value, str):
        return value
    if in_options:
        return HIDDEN
    return _QUERY.sub(rf"\1?{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", value)) if "://" in value else value


def is_hidden(text: str, *, in_options: bool) -> bool:
    """Return whether `without_secrets` has replaced a text, or a part of it."""
    return (in_options and text == HIDDEN) or (
        "://" in text and (f"://{HIDDEN}@" in text or text.endswith(f"?{HIDDEN}"))
    )


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
