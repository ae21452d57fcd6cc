"""Copies of finished runs and models to and from object stores: every object is written once, the commit record last.

An object store has no rename, so a result there is complete when its record, ``streampca.json``, exists: it is written last, on
the condition that there is none (``If-None-Match: *``), and results without it are never read. Nothing is ever replaced. Of
several writers to one URL, the one whose claim, ``streampca.claim``, exists first continues; it removes the claim at the end.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from streampca.errors import ModelError, OutputError, StreamPCAError
from streampca.redaction import shown
from streampca.sources.object_store import ObjectPlace
from streampca.storage.directories import RECORD, AtomicDirectory, foreign_entry, is_output_file, read_record
from streampca.storage.files import output_error, write_atomically
from streampca.storage.regular_files import read_regular
from streampca.typing import Json

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


def publish(directory: str | Path, url: str, *, storage_options: Mapping[str, Any] | None = None) -> Published:
    """Copy a finished run, or a saved model, to an object store, where it is complete or absent.

    A later attempt continues an interrupted one: existing objects are compared and not written again.

    Parameters
    ----------
    directory : path
        A run directory, or a model written by ``save``.
    url : str
        Where it goes, such as ``s3://bucket/runs/sea-surface``: free, or with the same run in it.
    storage_options : dict, optional
        Options of obstore for the store, such as ``endpoint`` and ``region``.

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
        If obstore is not installed.

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
    place = ObjectPlace(url, storage_options)
    try:
        names = _files_of(directory, kind)
        written = _write(place, directory, names, record)
        n_bytes = sum((directory / name).stat().st_size for name in [*names, RECORD])
        return Published(shown(url), str(record.get("run_id")), len(names) + 1, n_bytes, written)
    except StreamPCAError:
        raise
    except OSError as error:
        raise output_error(error, directory) from error


def fetch(
    url: str,
    directory: str | Path,
    *,
    storage_options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Copy a published run or model to a directory, which is complete or absent, and return it.

    Parameters
    ----------
    url : str
        Where the result is, as `publish` was given it.
    directory : path
        Where the copy goes.
    storage_options : dict, optional
        Options of obstore for the store.
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
    directory, place = Path(directory), ObjectPlace(url, storage_options, reads=True)
    record = _decoded(place.read(RECORD))
    kind, run_id = str(record.get("format")).removeprefix("streampca-"), str(record.get("run_id"))
    if not {"format", "run_id"} <= record.keys():
        raise ModelError(f"{shown(url)} is neither a run nor a model of streampca: there is no {RECORD} in it")
    if kind not in _KINDS or not run_id.isalnum():
        raise ModelError(f"{shown(url)}: its {RECORD} is of another kind or damaged: expected a run or a model")
    keys = sorted(place.keys() - {RECORD, CLAIM})
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
            content = place.read(key)
            if content is None:  # listed a moment ago
                raise ModelError(f"{shown(url)}: {key} was removed while it was fetched: nothing was changed here")
            write_atomically(target / key, [content])
    return directory


def require_free(url: str, run_id: str | None = None, *, storage_options: Mapping[str, Any] | None = None) -> None:
    """Raise `OutputError` if there is something at `url` that is not the run `run_id`."""
    present = _require_same(ObjectPlace(url, storage_options), {"run_id": run_id})
    _require_ours(url, {key for key in present if key != CLAIM and not is_output_file("run", key)})


def _files_of(directory: Path, kind: str) -> list[str]:
    """Return all files except the record; raise `OutputError` for files that streampca did not write."""
    foreign = foreign_entry(directory, kind)
    if foreign is not None:
        raise OutputError(f"{directory} holds {foreign}, which streampca did not write: move it away first")
    names = (path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if path.is_file())
    return [name for name in names if name != RECORD]


def _write(place: ObjectPlace, directory: Path, files: list[str], record: Json) -> int:
    """Write the missing objects, the record last, and return their number."""
    if RECORD in _require_same(place, record):
        return 0
    _claim(place, str(record.get("run_id")))
    try:  # again, because what was there before may have come to its end meanwhile
        _require_ours(place.url, _require_same(place, record) - {*files, RECORD, CLAIM})
    except OutputError:
        place.remove(CLAIM)
        raise

    def make(name: str) -> bool:
        content = read_regular(directory / name)
        there = place.make(name, content)
        if there is not None and there != content:
            raise OutputError(
                f"{shown(place.url)} holds another {name}: somebody else writes there, or did: name another place"
            )
        return there is None

    small = [name for name in files if (directory / name).stat().st_size <= _SMALL_BYTES]
    n_made = _together(make, small) + sum(map(make, sorted({*files} - {*small})))
    n_made += place.make(RECORD, read_regular(directory / RECORD)) is None
    _require_same(place, record)  # also where another run has written its own
    place.remove(CLAIM)
    return n_made


def _together(make: Callable[[str], bool], names: list[str]) -> int:
    """Call `make` for several names at a time and return how many are new.

    After a failure no further request is begun, and those under way come to their end before the error is raised, so that
    nothing is written after it.
    """
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return sum(pool.map(make, names))
    finally:
        pool.shutdown(cancel_futures=True)


def _claim(place: ObjectPlace, run_id: str) -> None:
    """Write the claim of this run; raise `OutputError` if another run has one."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    mine = {"run_id": run_id, "host": socket.gethostname(), "pid": os.getpid(), "since": now}
    there = place.make(CLAIM, json.dumps(mine).encode() + b"\n")
    stored = _decoded(there)
    if there is None or stored.get("run_id") == run_id:
        return
    who = ", ".join(f"{name} {stored.get(name)!a}" for name in mine)
    raise OutputError(
        f"{shown(place.url)} is being written by another run ({who}): name another place, or remove {CLAIM} there if it has died"
    )


def _decoded(content: bytes | None) -> Json:
    try:
        stored = json.loads(content or b"")
    except (ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def _require_same(place: ObjectPlace, record: Json) -> set[str]:
    """Return the keys that are there; raise `OutputError` if there is a record of another run."""
    present = place.keys()
    if RECORD in present:
        stored = _decoded(place.read(RECORD)).get("run_id")
        if stored is None or stored != record.get("run_id"):
            whose = f"run {stored!a}" if stored else "something that is not a run"
            raise OutputError(
                f"{shown(place.url)} holds {whose} already, which is left as it is: results in object stores are never replaced; "
                "name another place"
            )
    return present


def _require_ours(url: str, foreign: set[str]) -> None:
    if foreign:
        raise OutputError(
            f"{shown(url)} holds {min(foreign)!a}, which is not of this run: name another place, or move it away first"
        )
