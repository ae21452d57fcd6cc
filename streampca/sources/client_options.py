"""URLs and options as the clients of fsspec take them."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from streampca.errors import DataError
from streampca.redaction import shown
from streampca.sources.fetching.bounded import READ_SECONDS
from streampca.sources.options import StorageOptions

_CONNECT_SECONDS = 10
_CONNECTIONS = 32
_ADDRESS = re.compile(r"(?<=[/@])\[([0-9A-Fa-f:.]+)\]")
_OF_ONE_OBJECT = frozenset({"x-amz-signature", "x-goog-signature", "signature"})
"""Names in the query of a URL that S3 or Google Cloud Storage have signed."""
_SHOWN_OPTIONS = ("endpoint_url", "region_name", "endpoint", "region")


def parts_of(url: str) -> SplitResult:
    """Return the parts of a URL; `DataError` if it is none."""
    try:
        return urlsplit(url)
    except ValueError:  # whose message may hold the password
        raise _no_url(url) from None


def _no_url(url: str) -> DataError:
    return DataError(
        f"{shown(url)} is not a URL: expected one such as https://host/path, with an IPv6 address in brackets, as in https://[::1]/path"
    )


def without_query(url: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the URL of a store on a web server without its query, and the query, which every request has."""
    parts = parts_of(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    if _OF_ONE_OBJECT & {name.lower() for name, _ in query}:
        raise DataError(
            f"{shown(url)}: its query is a signature, which is for one object, and a store has many: expected a token for all of them, "
            "or a URL such as s3:// or gs:// with credentials in source.storage_options"
        )
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")), query


def without_double_colons(url: str) -> str:
    """Return a URL with an IPv6 address in full: fsspec takes two colons for a chain of file systems."""
    try:
        return _ADDRESS.sub(lambda match: f"[{IPv6Address(match[1]).exploded}]", url, count=1)
    except ValueError:
        raise _no_url(url) from None


def protocol_of(url: str) -> str:
    """Return the protocol of a URL; the first one of a chain of file systems."""
    return url.partition("://")[0].partition("::")[0].lower()


def with_limits(url: str, options: StorageOptions) -> dict[str, object]:
    """Return `options` for `url` with time limits, proxies of the environment, and without retries by the client, unless they set these."""
    protocol = protocol_of(url)
    if protocol in ("s3", "s3a"):
        config = {
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        }
        # One request for a chunk: no question for its size before, and no parts, which come without a checksum.
        defaults = {"use_listings_cache": False, "max_concurrency": 1, **options}
        return defaults | {"config_kwargs": config | dict(options.get("config_kwargs") or {})}
    if protocol in ("http", "https"):
        from aiohttp import ClientTimeout

        client = dict(options.get("client_kwargs") or {})
        given = client.get("timeout", READ_SECONDS)
        if isinstance(given, int | float):
            client["timeout"] = ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=given)
        if _has_proxy(url):
            client.setdefault("trust_env", True)
        return {**options, "client_kwargs": client}
    return dict(options)


def _has_proxy(url: str) -> bool:
    """Return whether variables such as ``HTTPS_PROXY`` and ``NO_PROXY`` name a proxy for `url`."""
    host = parts_of(url).hostname
    return protocol_of(url) in getproxies() and host is not None and not proxy_bypass(host)


def texts_in(options: object) -> set[str]:
    """Return all strings of at least 4 characters in `options` except addresses."""
    if isinstance(options, dict):
        return set().union(*(texts_in(value) for key, value in options.items() if key not in _SHOWN_OPTIONS))
    if isinstance(options, list | tuple):
        return set().union(*map(texts_in, options))
    return {options} if isinstance(options, str) and len(options) >= 4 else set()
