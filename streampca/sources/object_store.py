"""Places in object stores to which results are written, by obstore: objects are made on the condition that there are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any

from streampca.errors import ModelError, OutputError, StoreError, StreamPCAError
from streampca.redaction import shown
from streampca.sources import remote
from streampca.sources.client_options import BY_OBSTORE, opened, protocol_of, translated
from streampca.sources.request_errors import of_obstore
from streampca.system.optional import optional_module

_CONFLICTS = 5  # answers that an object is there, when there is none
_LIMITS = {"connect_timeout": "10s", "timeout": "10min"}  # the second for one object


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
        if protocol_of(url) != "memory" and BY_OBSTORE.get(protocol_of(url), "http") == "http":
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
        except (StreamPCAError, MemoryError, Warning):
            raise
        except Exception as error:  # noqa: BLE001 obstore raises its own and those of Python
            text = remote.answer_text(of_obstore(error), self.url, self._options)
            cannot = f"{key or 'the place'} cannot be {'read' if self.reads else 'written'}"
            named = "storage_options" if self.reads else "output.storage_options"
            message = (
                f"{shown(self.url)}: {cannot}: {text}: look at the address, and at the region and the credentials in {named} or the "
                "environment"
            )
            raise (StoreError if self.reads else OutputError)(message) from None


@cache
def _in_memory(url: str) -> Any:
    """Return the objects at a URL of ``memory://``, which end with this process and are not those of fsspec."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _opened(url: str, options: Mapping[str, Any]) -> Any:
    """Return the store of obstore whose prefix is the path of `url`, which repeats requests by itself."""
    policy = remote.PATIENCE
    waits = {"init_backoff": policy.first_seconds, "max_backoff": policy.longest_seconds}
    backoff = {"base": 2, **{name: timedelta(seconds=seconds) for name, seconds in waits.items()}}
    retries = {"max_retries": policy.requests - 1, "backoff": backoff}
    return opened(url, translated(url, options), _LIMITS, retry_config=retries)
