"""Copies of finished runs and models to and from object stores: every object is written once, the commit record last.

An object store has no rename, so a result there is complete when its record, ``streampca.json``, exists: it is written last, on
the condition that there is none (``If-None-Match: *``), and results without it are never read. Nothing is ever replaced. Of
several writers to one URL, the one whose claim, ``streampca.claim``, exists first continues; it removes the claim at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from zarr.storage import FsspecStore

from streampca.errors import ModelError, OutputError, StoreError, StreamPCAError
from streampca.redaction import shown
from streampca.sources.client_options import protocol_of
from streampca.sources.options import StorageOptions
from streampca.sources.remote import RemoteStore, open_store
from streampca.sources.request_errors import code_of, status_of
from streampca.storage.directories import RECORD, AtomicDirectory, is_output_file, read_record
from streampca.storage.files import output_error, write_atomically
from streampca.storage.regular_files import read_regular
from streampca.storage.zarr_interface import Buffer, default_buffer_prototype, sync
from streampca.typing import Json

Answer = TypeVar("Answer")

CLAIM = "streampca.claim"
"""Name of the object that identifies the writer."""

_KINDS = ("run", "model")
_AT_ONCE = 8  # objects under way
_SMALL_BYTES = 16 * 2**20  # what is larger goes by itself


@dataclass(frozen=True)
class Published:
    """A result in an object store."""

    url: str
    """Its URL, without parts that may be secret."""
    run_id: str
    """Identifier of the run."""
    n_objects: int
    """Number of its objects, the record included."""
    n_bytes: int
    """Their bytes."""
    n_written: int
    """Number of objects written now; the others exist from an interrupted attempt."""


class _Writable(RemoteStore):
    """A store in which objects are made and never replaced."""

    purpose = "written"
    options_key = "output.storage_options, or the credentials of the environment"

    async def make(self, key: str, content: bytes) -> bool:
        """Write an object; return False if the key exists."""
        return await self.with_retries(key, lambda: self._ask_to_make(key, content))

    async def _ask_to_make(self, key: str, content: bytes) -> bool:
        store = self._fsspec
        try:
            await store.fs._pipe_file(_path_in(store, key), content, mode="create")
        except FileExistsError:
            return False
        except (NotImplementedError, TypeError):
            raise OutputError(
                f"{shown(self.url)}: the client of {protocol_of(self.url)}:// cannot make objects on the condition that there are "
                "none: expected an object store such as s3://, or a newer client"
            ) from None
        except Exception as error:
            if status_of(error) == 412 or code_of(error) == "PreconditionFailed":
                return False
            raise
        return True

    async def remove(self, key: str) -> None:
        """Remove an object that this run wrote."""
        store = self._fsspec
        with suppress(FileNotFoundError):
            await self.with_retries(key, lambda: store.fs._rm_file(_path_in(store, key)))

    @property
    def _fsspec(self) -> FsspecStore:
        assert isinstance(self._store, FsspecStore)  # noqa: S101 for the type checker: all that have a URL are
        return self._store


def _path_in(store: FsspecStore, key: str) -> str:
    return f"{store.path}/{key}" if store.path else key


def publish(directory: str | Path, url: str, *, storage_options: StorageOptions | None = None) -> Published:
    """Copy a finished run, or a saved model, to an object store, where it is complete or absent.

    A later attempt continues an interrupted one: existing objects are compared and not written again.

    Parameters
    ----------
    directory : path
        A run directory, or a model written by ``save``.
    url : str
        Where it goes, such as ``s3://bucket/runs/sea-surface``: free, or with the same run in it.
    storage_options : dict, optional
        What fsspec takes for the store.

    Returns
    -------
    Published
        What is in the store now: the identity of the run, and numbers of objects and bytes.

    Raises
    ------
    ModelError
        If `directory` holds neither.
    OutputError
        If something else is at `url`, or the store cannot be written to.
    NotAvailableError
        If the client package for such stores is not installed.

    Examples
    --------
    >>> import streampca as sp
    >>> sp.publish("runs/sea-surface", "s3://bucket/runs/sea-surface")  # doctest: +SKIP
    """
    directory = Path(directory)
    record = read_record(directory)
    if record is None:
        raise ModelError(f"{directory} is neither a finished run nor a model of streampca: there is no {RECORD} in it")
    kind = str(record["format"]).removeprefix("streampca-")
    if kind not in _KINDS:
        raise ModelError(f"{directory} is neither a finished run nor a model of streampca: its {RECORD} says {kind!a}")
    store = _writable(url, storage_options)
    try:
        names = _files_of(directory, kind)
        written = _within(url, _write(store, directory, names, record))
        n_bytes = sum((directory / name).stat().st_size for name in [*names, RECORD])
        return Published(shown(url), str(record.get("run_id")), len(names) + 1, n_bytes, written)
    except StreamPCAError:
        raise
    except OSError as error:
        raise output_error(error, directory) from error


def fetch(
    url: str, directory: str | Path, *, storage_options: StorageOptions | None = None, overwrite: bool = False
) -> Path:
    """Copy a published run or model to a directory, which is complete or absent, and return it.

    Parameters
    ----------
    url : str
        Where the result is, as `publish` was given it.
    directory : path
        Where the copy goes.
    storage_options : dict, optional
        What fsspec takes for the store.
    overwrite : bool
        Whether a copy or a run that is at `directory` is replaced.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    ModelError
        If there is none at `url`, or something else than a run or a model of streampca in it.
    OutputError
        If `directory` is taken.
    StoreError
        If the store does not answer.

    Examples
    --------
    >>> import streampca as sp
    >>> sp.fetch("s3://bucket/runs/sea-surface", "sea-surface")  # doctest: +SKIP
    """
    directory, store = Path(directory), open_store(url, storage_options)
    store.options_key = "storage_options, or the credentials of the environment"
    content = _content(store, RECORD)
    try:
        record = json.loads(content or b"")
        kind, run_id = str(record["format"]).removeprefix("streampca-"), str(record["run_id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ModelError(
            f"{shown(url)} is neither a run nor a model of streampca: there is no {RECORD} in it"
        ) from None
    if kind not in _KINDS or not run_id.isalnum():
        raise ModelError(f"{shown(url)}: its {RECORD} is of another kind or damaged: expected a run or a model")
    keys = sorted(key for key in sync(_listed(store)) if key not in (RECORD, CLAIM))
    foreign = [key for key in keys if not is_output_file(kind, key)]
    if foreign:
        raise ModelError(
            f"{shown(url)} holds {foreign[0]!a}, which streampca did not write: move it away, or fetch another one"
        )
    digests = record.get("figures")
    figures = digests if isinstance(digests, dict) else None
    with AtomicDirectory(directory, kind, overwrite=overwrite, run_id=run_id, figures=figures) as target:
        for key in keys:
            (target / key).parent.mkdir(parents=True, exist_ok=True)
            content = _content(store, key)
            if content is None:  # listed a moment ago
                raise ModelError(f"{shown(url)}: {key} was removed while it was fetched: nothing was changed here")
            write_atomically(target / key, [content])
    return directory


def require_free(url: str, run_id: str | None = None, *, storage_options: StorageOptions | None = None) -> None:
    """Raise `OutputError` if there is something at `url` that is not the run `run_id`."""
    store = _writable(url, storage_options)

    async def look() -> None:
        present = await _require_same(store, {"run_id": run_id})
        foreign = sorted(key for key in present if key != CLAIM and not is_output_file("run", key))
        if foreign:
            raise OutputError(_foreign(url, foreign[0]))

    _within(url, look())


def _writable(url: str, options: StorageOptions | None) -> _Writable:
    if "://" not in url or protocol_of(url) in ("file", "local", "http", "https"):
        raise OutputError(f"{shown(url)} is not in an object store: expected a URL such as s3://bucket/runs/name")
    return _Writable(open_store(url, options)._store, url, options)


def _within(url: str, work: Coroutine[object, object, Answer]) -> Answer:
    """Turn errors of the store in the block into `OutputError`."""
    try:
        return sync(work)
    except StoreError as error:
        raise OutputError(str(error)) from error


def _files_of(directory: Path, kind: str) -> list[str]:
    """Return all files except the record; raise `OutputError` for files that streampca did not write."""
    names = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_dir() or is_output_file(kind, relative)):
            raise OutputError(f"{directory} holds {relative}, which streampca did not write: move it away first")
        if path.is_file() and relative != RECORD:
            names.append(relative)
    return names


async def _write(store: _Writable, directory: Path, files: list[str], record: Json) -> int:
    """Write the missing objects, the record last, and return their number."""
    present = await _require_same(store, record)
    if RECORD in present:
        return 0
    await _claim(store, str(record.get("run_id")))
    try:  # again, because what was there before may have come to its end meanwhile
        foreign = sorted(await _require_same(store, record) - {*files, RECORD, CLAIM})
        if foreign:
            raise OutputError(_foreign(store.url, foreign[0]))
    except OutputError:
        await store.remove(CLAIM)
        raise
    small = [name for name in files if (directory / name).stat().st_size <= _SMALL_BYTES]
    made = await _make_together(store, directory, small)
    for name in sorted({*files} - {*small}):
        made += await _make_or_compare(store, name, read_regular(directory / name))
    content = read_regular(directory / RECORD)
    made += await store.make(RECORD, content)
    await _require_same(store, record)  # also where the answer of an earlier request was lost
    await store.remove(CLAIM)
    return made


async def _make_together(store: _Writable, directory: Path, names: list[str]) -> int:
    """Write files as objects, several at a time, and return the number of new objects.

    After a failure no further request is begun, and those under way come to their end before the error is raised, so that
    nothing is written after it.
    """
    gate, failed = asyncio.Semaphore(_AT_ONCE), asyncio.Event()

    async def make(name: str) -> bool:
        async with gate:
            if failed.is_set():
                return False
            try:
                return await _make_or_compare(store, name, read_regular(directory / name))
            except BaseException:
                failed.set()
                raise

    outcomes = await asyncio.gather(*map(make, names), return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        raise errors[0]
    return sum(outcome is True for outcome in outcomes)


async def _claim(store: _Writable, run_id: str) -> None:
    """Write the claim of this run; raise `OutputError` if another run has one."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mine = {"run_id": run_id, "host": socket.gethostname(), "pid": os.getpid(), "since": now}
    if await store.make(CLAIM, json.dumps(mine).encode() + b"\n"):
        return
    stored = _decoded(await store.get(CLAIM, default_buffer_prototype()))
    if stored.get("run_id") == run_id:
        return
    who = ", ".join(f"{name} {stored.get(name)!a}" for name in mine)
    raise OutputError(
        f"{shown(store.url)} is being written by another run ({who}): name another place, or remove {CLAIM} there if it has died"
    )


def _decoded(content: Buffer | None) -> Json:
    try:
        stored = json.loads(content.to_bytes() if content else b"")
    except (ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


async def _make_or_compare(store: _Writable, key: str, content: bytes) -> bool:
    """Write an object and return True; return False if the same object exists."""
    if await store.make(key, content):
        return True
    stored = await store.get(key, default_buffer_prototype())
    if stored is None or stored.to_bytes() != content:
        raise OutputError(
            f"{shown(store.url)} holds another {key}: somebody else writes there, or did: name another place"
        )
    return False


async def _require_same(store: _Writable, record: Json) -> set[str]:
    """Return the keys that are there; raise `OutputError` if there is a record of another run."""
    present = await _listed(store)
    if RECORD in present:
        stored = _decoded(await store.get(RECORD, default_buffer_prototype())).get("run_id")
        if stored is None or stored != record.get("run_id"):
            whose = f"run {stored!a}" if stored else "something that is not a run"
            raise OutputError(
                f"{shown(store.url)} holds {whose} already, which is left as it is: results in object stores are never replaced; "
                "name another place"
            )
    return present


def _foreign(url: str, key: str) -> str:
    return f"{shown(url)} holds {key!a}, which is not of this run: name another place, or move it away first"


async def _listed(store: RemoteStore) -> set[str]:
    return {key async for key in store.list_prefix("")}


def _content(store: RemoteStore, key: str) -> bytes | None:
    stored = sync(store.get(key, default_buffer_prototype()))
    return None if stored is None else stored.to_bytes()
