"""Snapshots of icechunk repositories, at places such as ``icechunk:PATH``: their stores, and the chunks in which two of them differ."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from streampca.errors import DataError, NotAvailableError, ParameterError, StoreError, StreamPCAError
from streampca.redaction import shown
from streampca.sources.client_options import require_own_process, translated
from streampca.sources.formats import ICECHUNK, ReadOptions, StorageOptions
from streampca.system.optional import optional_module

if TYPE_CHECKING:
    from zarr.abc.store import Store

_SNAPSHOT = re.compile(r"@([0-9A-HJKMNP-TV-Z]{20})\Z")
_S3 = {"endpoint": "endpoint_url", "skip_signature": "anonymous", "token": "session_token"}
"""Names that obstore has for options of icechunk, which are given with either."""
_VIRTUAL = "authorize_virtual_chunk_access"


def snapshot_url(place: str, options: ReadOptions) -> str:
    """Return `place` with the identifier of the snapshot that `branch`, `tag` or `snapshot` of the options name.

    Raises
    ------
    ParameterError
        If several are given, or one beside a place that has a snapshot already.
    DataError
        If there is no such repository, branch, tag or snapshot.
    StoreError
        If the repository cannot be read.
    NotAvailableError
        If icechunk is not installed.
    """
    refs = {name: value for name in ("branch", "tag", "snapshot") if (value := getattr(options, name)) is not None}
    if (found := _SNAPSHOT.search(place)) is not None:
        refs, place = {"snapshot": found[1]} | refs, place[: found.start()]
        if refs != {"snapshot": found[1]}:
            raise ParameterError(f"{place}@{found[1]} names a snapshot: leave {', '.join(map(str, refs))} out")
    if len(refs) > 1:
        raise ParameterError(f"{', '.join(refs)} were given for {shown(place)}: expected one of them")
    name, value = next(iter(refs.items()), ("branch", "main"))
    repository = _repository(place, options.storage_options)
    try:
        if name == "snapshot":
            snapshot = str(repository.lookup_snapshot(value).id)
        else:
            snapshot = str(getattr(repository, f"lookup_{name}")(value))
    except _errors() as error:
        if name == "snapshot":
            raise DataError(f"{shown(place)} has no snapshot {value}: {_said(error)}") from None
        there = sorted(repository.list_branches() if name == "branch" else repository.list_tags())
        named = ", ".join(there[:20]) or "none"
        raise DataError(f"{shown(place)} has no {name} {value!r}: it has {named}") from None
    is_bucket = "://" in place and not urlsplit(place.removeprefix(ICECHUNK)).path
    return f"{place}{'/' * is_bucket}@{snapshot}"


def store_at(url: str, options: StorageOptions | None) -> Store:
    """Return the store of the snapshot in `url`, which `snapshot_url` has returned."""
    found = _SNAPSHOT.search(url)
    if found is None:
        raise DataError(f"{shown(url)} names no snapshot: expected {ICECHUNK}PATH@SNAPSHOT")
    store: Store = _repository(url[: found.start()], options).readonly_session(snapshot_id=found[1]).store
    return store


def changed_chunks(
    url: str, options: StorageOptions | None, before: str, path: str
) -> tuple[tuple[int, ...], ...] | None:
    """Return the places in the grid of the chunks of the array at `path` that were written between snapshot `before` and that in `url`.

    None where that is not known: if the array was made anew, or `before` was expired. Reads the logs of transactions, no chunk.
    """
    found = _SNAPSHOT.search(url)
    if found is None:
        return None
    repository, name = _repository(url[: found.start()], options), f"/{path.strip('/')}"
    try:
        if before == found[1]:
            return ()
        difference = repository.diff(from_snapshot_id=before, to_snapshot_id=found[1])
    except _errors():
        return None
    if any(name == each or name.startswith(f"{each}/") for each in difference.deleted_groups | difference.new_groups):
        return None
    if name in difference.new_arrays | difference.deleted_arrays:
        return None
    return tuple(tuple(map(int, place)) for place in difference.updated_chunks.get(name, ()))


def _repository(place: str, options: StorageOptions | None) -> Any:
    """Return the repository at a place, opened for reading."""
    icechunk: Any = optional_module("icechunk", f"{shown(place)}:", "icechunk")
    require_own_process(place)
    given = dict(options or {})
    virtual = given.pop(_VIRTUAL, None)
    try:
        return icechunk.Repository.open(_storage(icechunk, place, given), authorize_virtual_chunk_access=virtual)
    except StreamPCAError:
        raise
    except TypeError as error:
        raise DataError(
            f"{shown(place)}: storage_options are not those of icechunk: {_said(error)}; found {', '.join(given)}"
        ) from None
    except _errors() as error:
        if "doesn't exist" in str(error):
            raise DataError(f"{shown(place)} is no icechunk repository: expected a directory or URL of one") from None
        raise StoreError(f"{shown(place)} cannot be opened: {_said(error)}") from None


def _storage(icechunk: Any, place: str, options: Mapping[str, Any]) -> Any:
    """Return where a repository is, by the options of icechunk, or the names that obstore has for them."""
    at = place.removeprefix(ICECHUNK)
    if "://" not in at or at.startswith("file://"):
        path = os.path.abspath(os.path.expanduser(at.removeprefix("file://")))
        if not os.path.isdir(path):
            raise DataError(f"{place}: no such directory: expected that of an icechunk repository")
        if options:
            raise NotAvailableError(
                f"{place}: storage_options {', '.join(options)} does not apply to a local repository: it takes {_VIRTUAL} alone"
            )
        return icechunk.local_filesystem_storage(path)
    parts = urlsplit(at)
    where = {"bucket": parts.netloc, "prefix": parts.path.strip("/") or None}
    if parts.scheme in ("s3", "s3a"):
        given = translated(at, options, warns=False)
        given |= given.pop("client_options", {})
        given = {_S3.get(name, name): value for name, value in given.items()}
        if str(given.get("endpoint_url", "")).startswith("http://"):
            given = {"allow_http": True, "force_path_style": True} | given
        return icechunk.s3_storage(**where, **given)
    if parts.scheme in ("gs", "gcs"):
        return icechunk.gcs_storage(**where, **options)
    raise DataError(
        f"{shown(place)}: expected {ICECHUNK}PATH, {ICECHUNK}s3://BUCKET/PREFIX or {ICECHUNK}gs://BUCKET/PREFIX; of other "
        "storage give the store of a session: repository.readonly_session('main').store"
    )


def _errors() -> type[Exception]:
    import icechunk

    error: type[Exception] = icechunk.IcechunkError
    return error


def _said(error: Exception) -> str:
    """Return the first line of an error of icechunk, which is followed by its context."""
    lines = [line.strip(" x│|").strip() for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)
