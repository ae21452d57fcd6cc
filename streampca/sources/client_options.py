"""Stores of obstore from URLs and options; names of options of s3fs and other clients are translated, and secrets are kept by tokens.

The arguments of a task are not private: a scheduler keeps them, logs of workers print them, and Dask's pages show them of tasks
that fail. So the options of a store stay in this process, and go to each worker once (`streampca.execution.distributed.plugins`);
tasks hold the token only.
"""

from __future__ import annotations

import os
import secrets
import threading
import warnings
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit, urlunsplit

from streampca.errors import DataError, StoreError
from streampca.redaction import shown
from streampca.sources.formats import ICECHUNK, StorageOptions
from streampca.system.optional import not_installed, optional_module

if TYPE_CHECKING:
    from zarr.abc.store import Store


BY_OBSTORE = {
    "http": "http",
    "https": "http",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    **dict.fromkeys(("az", "adl", "azure", "abfs", "abfss"), "az"),
}
"""Protocols of URLs that obstore opens, and the kinds of their options."""
_OF_ONE_OBJECT = frozenset({"x-amz-signature", "x-goog-signature", "signature"})
"""Names in the query of a URL that S3 or Google Cloud Storage have signed."""
_SHOWN_OPTIONS = ("endpoint_url", "region_name", "endpoint", "region")
_OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "s3": {
        "key": "access_key_id",
        "secret": "secret_access_key",
        "endpoint_url": "endpoint",
        "region_name": "region",
        "anon": "skip_signature",
        "requester_pays": "request_payer",
    },
    "gs": {"anon": "skip_signature", "token": "service_account", "endpoint_url": "base_url"},
    "az": {"anon": "skip_signature"},
    "http": {"headers": "default_headers"},
}
"""Names of options of s3fs, gcsfs, adlfs and the client of fsspec for web servers, and those that obstore has for them."""
_NESTED = ("client_kwargs", "config_kwargs")
"""Options of clients of fsspec that hold others."""
_OF_THE_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
    }
    | {"http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only"}
    | {"pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url"}
    | {"randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent"}
)
"""Options of the client of obstore, which go into ``client_options``: outside of these, obstore panics at them."""
_WITHOUT_EFFECT = frozenset(
    {"asynchronous", "cache_regions", "default_block_size", "default_cache_type", "default_fill_cache", "encoded"}
    | {"listings_expiry_time", "max_concurrency", "project", "skip_instance_cache", "trust_env", "use_listings_cache"}
    | {"max_pool_connections", "retries", "block_size", "version_aware"}
)
"""Options of clients of fsspec without a counterpart, which change no value that is read."""
_opened_in: list[int] = []
"""The process whose threads obstore uses."""
StoreArguments: TypeAlias = "tuple[str, Store | StorageOptions | None]"
"""URL of a store, and its options or the open store itself."""
_registered: dict[str, StoreArguments | Callable[[], StoreArguments]] = {}
"""Arguments by token; those from another process are made when they are asked for, because a store may open files then."""
_lock = threading.Lock()


def protocol_of(url: str) -> str:
    """Return the protocol of a URL; the first one of a chain of file systems."""
    if url.startswith(ICECHUNK):
        return ICECHUNK.removesuffix(":")
    return url.partition("://")[0].partition("::")[0].lower()


def opened(url: str, options: Mapping[str, Any], limits: Mapping[str, Any], **defaults: Any) -> Any:
    """Return the store of obstore whose prefix is the path of `url`; sends no request.

    Parameters
    ----------
    options : dict
        Those of obstore (see `translated`).
    limits, defaults : dict
        Options of the client, and of the store, that hold unless `options` say otherwise.

    Raises
    ------
    NotAvailableError
        If obstore is not installed.
    DataError
        If `url` is none, or is signed for one object.
    StoreError
        If this process is a fork of one that has used obstore.
    Exception
        Of obstore, for options that it does not know.
    """
    kind = BY_OBSTORE[protocol_of(url)]
    stores = optional_module(
        "obstore.store", f"{shown(url)}: {protocol_of(url)}://", "s3" if kind == "s3" else "remote"
    )
    require_own_process(url)
    given = dict(options)
    client = {"allow_http": True, **limits, **given.pop("client_options", {})}
    headers = dict(client.get("default_headers") or {})
    given = {**defaults, **given, "client_options": client}
    if kind != "http":
        if kind == "s3":
            client |= _authorities(client)
            if not {"access_key_id", "credential_provider", "skip_signature"} & given.keys():
                given = {**_of_profile(url, given.pop("profile", None)), **given}
        protocol = {"gcs": "gs"}.get(protocol_of(url), protocol_of(url))
        return stores.from_url(
            f"{protocol}://{quote(url.partition('://')[2], safe='/@' if kind == 'az' else '/')}", **given
        )
    address, user = _of_web_server(url)
    if user is not None:
        headers.setdefault("Authorization", f"Basic {b64encode(user.encode()).decode()}")
    if "user-agent" not in {name.lower() for name in headers}:
        client.setdefault("user_agent", "streampca")
    client["default_headers"] = {"Accept-Encoding": "identity"} | headers
    return stores.HTTPStore.from_url(address, **given)


def require_own_process(url: str) -> None:
    """Raise `StoreError` in a fork of a process that has used obstore, whose threads are not in the fork: it would wait for ever."""
    if not _opened_in:
        _opened_in.append(os.getpid())
    if _opened_in[0] != os.getpid():
        raise StoreError(
            f"{shown(url)}: this process was forked from one that has read URLs: obstore can be used in one of them only; start "
            "processes by spawn or forkserver, as in multiprocessing.set_start_method('forkserver')"
        )


def translated(url: str, options: Mapping[str, Any] | None, *, warns: bool = True) -> dict[str, Any]:
    """Return options by the names of obstore; the common ones of s3fs, gcsfs, adlfs and the client of fsspec for web servers are translated.

    With one `FutureWarning` about all of them, if `warns`.
    """
    kind, options = BY_OBSTORE[protocol_of(url)], options or {}
    found: dict[str, Any] = {}
    client: dict[str, Any] = dict(options.get("client_options") or {})
    others = {name: "" for name in _NESTED if options.get(name)}
    for name, value in _flat(kind, options):
        if value is None or name in _WITHOUT_EFFECT:
            continue
        known = _OTHER_NAMES[kind].get(name, name)
        if known != name:
            others[name] = known
        if (kind, name, value) == ("gs", "token", "anon"):
            known, value = "skip_signature", True
        if name == "verify":  # of botocore
            is_path = isinstance(value, str)
            known = "root_certificate" if is_path else "allow_invalid_certificates"
            value = Path(value).read_bytes() if is_path else not value
        if name not in options and known in _OF_THE_CLIENT:
            others[name] = "client_options"
        if known == "default_headers":
            client[known] = {**client.get(known, {}), **dict(value)}
        elif known in _OF_THE_CLIENT:
            seconds = known.endswith(("timeout", "interval")) and isinstance(value, int | float)
            client[known] = timedelta(seconds=value) if seconds else value
        else:
            found[known] = value
    if others and warns:
        known_as = ", ".join(filter(None, dict.fromkeys(others.values())))
        warnings.warn(
            f"storage_options: {', '.join(others)} are names of fsspec: expected those of obstore, by which URLs are read and written"
            + (f": {known_as}" if known_as else ""),
            FutureWarning,
            stacklevel=3,
        )
    return found | ({"client_options": client} if client else {})


def _flat(kind: str, options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return names and values of options, those within others of clients of fsspec among them."""
    pairs = [(name, value) for name, value in options.items() if name not in ("client_options", *_NESTED)]
    pairs += [pair for name in _NESTED for pair in dict(options.get(name) or {}).items()]
    if kind != "http":
        return pairs
    return [_without_aiohttp(*pair) for pair in pairs]


def _without_aiohttp(name: str, value: Any) -> tuple[str, Any]:
    """Return a time limit or a password of aiohttp as a number or a header."""
    if name == "timeout":
        return "read_timeout", getattr(value, "sock_read", value)
    if name == "auth" and hasattr(value, "encode"):
        return "headers", {"Authorization": value.encode()}
    return name, value


def parts_of(url: str) -> SplitResult:
    """Return the parts of a URL; `DataError` if it is none."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # whose message may hold the password
        raise DataError(
            f"{shown(url)} is not a URL: expected one such as https://host/path, with an IPv6 address in brackets, as in "
            "https://[::1]/path"
        ) from None
    return parts


def _of_web_server(url: str) -> tuple[str, str | None]:
    """Return the URL of a store on a web server without user and fragment, and the user with the password; with the query, which every request has."""
    parts = parts_of(url)
    if _OF_ONE_OBJECT & {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}:
        raise DataError(
            f"{shown(url)}: its query is a signature, which is for one object, and a store has many: expected a token for all of them, "
            "or a URL such as s3:// or gs:// with credentials in source.storage_options"
        )
    user, _, place = parts.netloc.rpartition("@")
    address = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), parts.query, ""))
    return address, unquote(user) if user else None


def _authorities(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return the certificates that other clients of S3 take from the environment."""
    path = os.environ.get("AWS_CA_BUNDLE")
    return {} if not path or "root_certificate" in client else {"root_certificate": Path(path).read_bytes()}


def _of_profile(url: str, name: str | None) -> dict[str, Any]:
    """Return credentials and region as other clients of S3 find them: of the environment, a profile, a program, or the instance.

    Without botocore they are those that obstore finds, of the environment or the instance.
    """
    if find_spec("botocore") is None:
        if name is not None:
            raise not_installed("botocore", f"{shown(url)}: a profile of S3", "s3")
        return {}
    session = optional_module("botocore.session", f"{shown(url)}: credentials of S3", "s3").Session(profile=name)
    credentials, region = session.get_credentials(), session.get_config_variable("region")

    def renewed() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        known = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key, "token": frozen.token}
        return known | {"expires_at": datetime.now(UTC) + timedelta(minutes=5)}

    provided = {} if credentials is None else {"credential_provider": renewed}
    return provided if region is None else provided | {"region": region}


def texts_in(options: object) -> set[str]:
    """Return all strings of at least 4 characters in `options` except addresses."""
    if isinstance(options, Mapping):
        return set().union(*(texts_in(value) for key, value in options.items() if key not in _SHOWN_OPTIONS))
    if isinstance(options, list | tuple):
        return set().union(*map(texts_in, options))
    return {options} if isinstance(options, str) and len(options) >= 4 else set()


if hasattr(os, "register_at_fork"):  # a thread that holds the lock does not exist in the new process
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def register(arguments: StoreArguments) -> str:
    """Store `arguments` in this process and return their token, the same for equal ones."""
    with _lock:
        for token, known in _registered.items():
            if known == arguments:
                return token
        token = secrets.token_hex(16)
        _registered[token] = arguments
        return token


def resolve(token: str) -> StoreArguments:
    """Return the arguments of a token.

    Raises
    ------
    StoreError
        If this process does not have them, or a store that another process had opened cannot be opened here.
    """
    try:
        known = _registered[token]
    except KeyError:
        raise StoreError(
            "a worker was not told how to open the store: expected a distributed.Client that was active when the source was "
            "opened; without one, let workers find the credentials in their environment, and give no options"
        ) from None
    while callable(known):
        try:
            known = _registered[token] = known()
        except Exception as error:  # noqa: BLE001 of a store of another library, whose words may hold secrets
            raise StoreError(
                f"a worker cannot open the store ({type(error).__name__}): expected its files where every worker finds them"
            ) from None
    return known


def registered() -> dict[str, StoreArguments | Callable[[], StoreArguments]]:
    """Return all arguments by token, or what makes them."""
    with _lock:
        return dict(_registered)


def register_under(values: Mapping[str, Callable[[], StoreArguments]]) -> None:
    """Add the arguments of another process under its tokens."""
    with _lock:
        for token, value in values.items():
            _registered.setdefault(token, value)
