"""Places in object stores to which results are written, by obstore: objects are made on the condition that there are none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import quote

from streampca.errors import ModelError, OutputError, StoreError, StreamPCAError
from streampca.redaction import redacted, shown
from streampca.sources import remote
from streampca.sources.client_options import protocol_of, texts_in
from streampca.system.optional import optional_module

_CONFLICTS = 5  # answers that an object is there, when there is none
_OF_FSSPEC = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "endpoint_url": "endpoint",
    "region_name": "region",
    "anon": "skip_signature",
}
"""Names of options of s3fs, and those that obstore has for them."""


class ObjectPlace:
    """A place in an object store, where objects are made and never replaced.

    Parameters
    ----------
    url : str
        Where it is.
    options : dict, optional
        Options of obstore for such a store; the common ones of s3fs are translated.
    reads : bool
        Whether it is only read, for the class and the words of errors.

    Raises
    ------
    NotAvailableError
        If obstore is not installed.
    ModelError, OutputError, StoreError
        If `url` is not in an object store, or an option is not known; by all methods, if the store refuses, or does not answer.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, *, reads: bool = False):
        if "://" not in url or protocol_of(url) in ("file", "local", "http", "https"):
            raise (ModelError if reads else OutputError)(
                f"{shown(url)} is not in an object store: expected a URL such as s3://bucket/runs/name"
            )
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise OutputError(f"{shown(url)}: its address holds a user: expected credentials in storage_options")
        self.url, self.reads, self._options = url, reads, dict(options or {})
        self._client: Any = optional_module("obstore", f"{shown(url)}: copying runs", "s3")
        with self._naming():
            self._store = _in_memory(url) if protocol_of(url) == "memory" else _opened(url, self._options)

    def keys(self) -> set[str]:
        """Return the names of all objects."""
        with self._naming():
            return {str(entry["path"]) for batch in self._client.list(self._store) for entry in batch}

    def read(self, key: str) -> bytes | None:
        """Return what an object holds, None if there is none."""
        with self._naming(key), suppress(FileNotFoundError):
            return bytes(self._client.get(self._store, key).bytes())
        return None

    def make(self, key: str, content: bytes) -> bytes | None:
        """Write an object and return None; if there is one, return what it holds."""
        known = self._client.exceptions  # Azure fails a condition where others say that the object exists
        for _ in range(_CONFLICTS):
            with self._naming(key), suppress(known.AlreadyExistsError, known.PreconditionError):
                self._client.put(self._store, key, content, mode="create", use_multipart=False)
                return None
            there = self.read(key)
            if there is not None:  # S3 answers alike if requests for a key met, and neither was carried out
                return there
        raise OutputError(f"{shown(self.url)}: {key} is made and removed by somebody else: name another place")

    def remove(self, key: str) -> None:
        """Remove an object."""
        with self._naming(key), suppress(FileNotFoundError):
            self._client.delete(self._store, key)

    @contextmanager
    def _naming(self, key: str = "") -> Iterator[None]:
        """Name what cannot be done with an object, without what may be secret."""
        try:
            yield
        except (StreamPCAError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 obstore raises its own and those of Python
            first, _, details = str(error).partition("\n\nDebug source")
            text = first.rpartition(" - ")[2].replace("Server returned non-2xx status code:", "status")
            cause = re.search(r'ConnectError\(\s*"([^"]*)"', details)
            text = " ".join(re.sub("<[^>]*>", " ", text).split()) + (f", {cause[1]}" if cause else "")
            text = redacted(text)
            for secret in sorted(texts_in(self._options), key=len, reverse=True):
                text = text.replace(secret, "***")
            cannot = f"{key or 'the place'} cannot be {'read' if self.reads else 'written'}"
            named = "storage_options" if self.reads else "output.storage_options"
            message = (
                f"{shown(self.url)}: {cannot}: {text.rstrip(': ')[:240]}: look at the address, and at the region and the credentials in {named} or the "
                "environment"
            )
            raise (StoreError if self.reads else OutputError)(message) from None


@cache
def _in_memory(url: str) -> Any:
    """Return the objects at a URL of ``memory://``, which end with this process and are not those of fsspec."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _opened(url: str, options: Mapping[str, Any]) -> Any:
    """Return the store of obstore whose prefix is the path of `url`."""
    from obstore.store import from_url

    protocol, place = protocol_of(url), url.partition("://")[2]
    nested = options.get("client_kwargs") or {}
    given = {name: value for name, value in {**options, **nested}.items() if value is not None}
    given = {_OF_FSSPEC.get(name, name): value for name, value in given.items() if name != "client_kwargs"}
    limits = {"connect_timeout": "10s", "timeout": "10min"}  # the second for one object
    given["client_options"] = {"allow_http": True, **limits, **given.get("client_options", {})}
    policy = remote.PATIENCE
    waits = {"init_backoff": policy.first_seconds, "max_backoff": policy.longest_seconds}
    backoff = {"base": 2, **{name: timedelta(seconds=seconds) for name, seconds in waits.items()}}
    given.setdefault("retry_config", {"max_retries": policy.requests - 1, "backoff": backoff})
    if protocol in ("s3", "s3a") and not {"access_key_id", "credential_provider", "skip_signature"} & given.keys():
        given = {**_of_profile(url, given.pop("profile", None)), **given}
    return from_url(f"{'gs' if protocol == 'gcs' else protocol}://{quote(place)}", **given)


def _of_profile(url: str, name: str | None) -> dict[str, Any]:
    """Return credentials and region as other clients of S3 find them: of the environment, a profile, a program, or the instance."""
    session = optional_module("botocore.session", f"{shown(url)}: credentials of S3", "s3").Session(profile=name)
    credentials, region = session.get_credentials(), session.get_config_variable("region")

    def renewed() -> dict[str, Any]:
        frozen = credentials.get_frozen_credentials()
        known = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key, "token": frozen.token}
        return known | {"expires_at": datetime.now(UTC) + timedelta(minutes=5)}

    provided = {} if credentials is None else {"credential_provider": renewed}
    return provided if region is None else provided | {"region": region}
