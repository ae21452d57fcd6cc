"""Output directories that are complete or absent: built under a temporary name, committed by a record and a rename."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from streampca.errors import NoSpaceError, OutputError, StreamPCAError
from streampca.formatting import as_text
from streampca.logs import logger
from streampca.storage.figures import figures_of
from streampca.storage.files import existing_parent, flush, flush_one, output_error, read_regular, write_atomically
from streampca.storage.lock import Lock, dead_holders, lock_of

if TYPE_CHECKING:
    from streampca.typing import Json

_log = logger(__name__)
_NOUNS = {
    "scores": "store of scores",
    "reconstruction": "store of reconstructed rows",
    "models": "run of several models",
    "groups": "run of groups",
}
_RUNS = ("run", "models", "groups")
_FILE_ENDINGS = (
    *(
        ".npy",
        ".npz",
        ".csv",
        ".tsv",
        ".txt",
        ".json",
        ".parquet",
        ".pq",
        ".arrow",
        ".feather",
        ".h5",
        ".hdf5",
        ".h5ad",
    ),
    *(".nc", ".nc4", ".mat", ".bed", ".onnx", ".faiss", ".pkl", ".pickle", ".joblib"),
)
"""Endings of names of files, which are no names of outputs: these are directories."""
_MOST_NAME_BYTES, _MOST_PATH_BYTES = 220, 3900
"""Length of the name of an output, less than the 255 of file systems, which the names beside it need."""
RECORD = "streampca.json"
"""Name of the commit record. A directory without it is not a result, and is never replaced."""

_MOST_READS, _PAUSE_SECONDS = 20, 0.01  # of an output that is replaced again and again
_Read = TypeVar("_Read")
_CHUNK = r"c(/\d+)*"
_ARRAY = r"[A-Za-z]\w*"


def _files_of(*arrays: str) -> str:
    """Return the pattern of all files that streampca writes to a zarr group of these arrays; nothing else is ever removed."""
    return rf"{RECORD}|zarr\.json|({'|'.join(arrays)})(/(zarr\.json|{_CHUNK}))?"


def _names(documents: Collection[str]) -> str:
    """Return the pattern of files of these names."""
    return "|".join(map(re.escape, documents))


DIAGNOSTICS = ("t2", "q")
"""Arrays beside scores with a value for each row, which are written with them."""
ARRAYS_BESIDE_SCORES = "coordinate_arrays"
"""Attribute of a group of scores that names the arrays beside them."""
_STATE = "state"
_GROUP_FILES = _files_of(_ARRAY)
_MODEL_FILES = rf"{_GROUP_FILES}|{_STATE}(/({_GROUP_FILES}))?"
_DOCUMENTS = (RECORD, "config.yaml", "plan.json", "manifest.json", "report.html")
_RUN_DOCUMENTS = _DOCUMENTS
"""Files beside the arrays of a run; what else one writes at its top has its name here."""
_RUN_FILES = (
    rf"{_names(_RUN_DOCUMENTS)}|model\.zarr(/({_MODEL_FILES}))?"
    rf"|samples\.zarr(/({_files_of('rows', 'index', 'classes', 'classes_ends', 'unusual_rows', 'unusual_index')}))?|(scores|reconstruction)\.zarr(/({_GROUP_FILES}))?"
)
_OUTPUT_FILES = {
    "model": re.compile(_MODEL_FILES),
    "scores": re.compile(_GROUP_FILES),
    "reconstruction": re.compile(_GROUP_FILES),
    "run": re.compile(_RUN_FILES),
    "models": re.compile(rf"{_names(_DOCUMENTS)}|models(/[A-Za-z0-9][\w.-]*(/({_RUN_FILES}))?)?"),
    "groups": re.compile(rf"{_names(_DOCUMENTS)}|models(/[A-Za-z0-9][\w.-]*\.zarr(/({_MODEL_FILES}))?)?"),
}
_MODELS = {"model": ("",), "run": ("model.zarr",), "models": ("models/*/model.zarr",), "groups": ("models/*.zarr",)}
_BY_ROW = {
    "scores": ("",),
    "reconstruction": ("",),
    "run": ("scores.zarr", "reconstruction.zarr"),
    "models": ("models/*/scores.zarr", "models/*/reconstruction.zarr"),
}
"""Where outputs of a kind have groups of models, and of scores or rows."""


def is_output_file(kind: str, relative: str) -> bool:
    """Return whether an output of that kind may hold a file of that name, whatever the arrays of its groups."""
    return _OUTPUT_FILES[kind].fullmatch(relative) is not None


def foreign_entry(path: Path, kind: str) -> str | None:
    """Return the relative path of an entry of the output at `path` that streampca did not write, None if there is none.

    Arrays of models are those whose digests are among the attributes of their group, and arrays of scores and of rows those that the attributes name.
    """

    def places(known: Mapping[str, tuple[str, ...]]) -> list[Path]:
        return [place for name in known.get(kind, ()) for place in (path.glob(name) if name else [path])]

    arrays: dict[Path, set[str | None]] = {group: {*arrays_beside(group)} for group in places(_BY_ROW)}
    for model in places(_MODELS):
        for group, beside in ((model, _STATE), (model / _STATE, None)):
            digests = _attributes_of(group).get("sha256")
            arrays[group] = {beside, *(digests if isinstance(digests, dict) else ())}
    for entry in path.rglob("*"):
        relative = entry.relative_to(path).as_posix()
        foreign = entry.parent in arrays and entry.is_dir() and entry.name not in arrays[entry.parent]
        if entry.is_symlink() or foreign or not is_output_file(kind, relative) or not _has_expected_type(entry):
            return relative
    return None


def read_record(path: Path) -> Json | None:
    """Return the commit record of the output at `path`, None if there is none."""
    try:
        record = json.loads(read_regular(path / RECORD))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and str(record.get("format", "")).startswith("streampca-") else None


def write_commit_record(path: Path, kind: str, run_id: str, more: Mapping[str, object] | None = None) -> None:
    """Write the commit record of a complete output of that kind to the directory `path`, with the entries of `more`."""
    record = {"format": f"streampca-{kind}", "run_id": run_id, **(more or {})}
    write_atomically(path / RECORD, [json.dumps(record).encode() + b"\n"])


def require_local(path: Path) -> None:
    """Raise `OutputError` if `path` was made of a URL, or is longer than file systems allow for it and the names beside it."""
    if re.fullmatch(r"[a-z][a-z0-9+.-]+:", path.parts[0] if path.parts else ""):
        raise OutputError(f"{path} names a URL: expected a local directory; copy it to a store when it is complete")
    if not is_short_enough(path):
        raise OutputError(
            f"{str(path)[:60]}… is too long a path: expected names of at most {_MOST_NAME_BYTES} bytes, and {_MOST_PATH_BYTES:,} in all"
        )


def is_short_enough(path: Path) -> bool:
    """Tell whether file systems allow `path`, and the names beside it, which are longer by a run and its kind."""
    names = [len(os.fsencode(part)) for part in path.absolute().parts]
    return max(names) <= _MOST_NAME_BYTES and sum(names) + len(names) <= _MOST_PATH_BYTES


def require_writable(path: Path) -> None:
    """Raise `OutputError` if nothing can be made at `path` or, where it exists, beside it; leaves nothing there."""
    require_local(path)
    parent = existing_parent(path)
    try:
        if not parent.is_dir():
            raise NotADirectoryError
        with TemporaryFile(dir=parent):  # permissions alone do not tell: there are file systems that refuse
            pass
    except OSError as error:
        raise OutputError(f"{path} cannot be made: {parent} is not a directory that can be written to") from error


def require_replaceable(path: Path, kind: str, *, overwrite: bool) -> None:
    """Raise `OutputError` unless `path` is free, or an output of that kind by streampca that may be replaced."""
    require_local(path)
    if path.is_symlink():
        raise OutputError(f"{path} is a symbolic link: expected a place of its own; name the directory behind it")
    if not path.exists():
        if kind not in _RUNS and path.suffix.lower() in _FILE_ENDINGS:
            file = "export writes a model to a file" if kind == "model" else "numpy.save writes an array to a file"
            raise OutputError(
                f"{path}: a {_NOUNS.get(kind, kind)} is a directory, and {path.suffix} is the ending of files: expected a name such as "
                f"{path.stem}.zarr; {file}"
            )
        require_writable(path)
        return
    if path.is_dir() and not any(path.iterdir()):
        return
    record = read_record(path) if path.is_dir() else None
    if record is None or record.get("format") != f"streampca-{kind}":
        raise OutputError(
            f"{path} exists and is not a {_NOUNS.get(kind, kind)} of streampca: it is left untouched; name another place, or move it away"
        )
    if not overwrite:
        how = "set output.overwrite: true" if kind in _RUNS else "ask for overwrite"
        raise OutputError(
            f"{path} holds a finished {_NOUNS.get(kind, kind)} already: {how} to replace it, or name another place"
        )
    relative = foreign_entry(path, kind)
    if relative is not None:
        raise OutputError(
            f"{path} holds {relative}, which streampca did not write: it is left untouched; move that file away first"
        )


def arrays_beside(path: Path) -> list[str]:
    """Return the names of the arrays in the group of scores or rows at `path`, as its attributes name them."""
    attributes = _attributes_of(path)
    named = attributes.get(ARRAYS_BESIDE_SCORES)
    names = [name for name in (named if isinstance(named, list) else ()) if isinstance(name, str)]
    return names if attributes.get("format") == "streampca-reconstruction" else ["scores", *names]


def _attributes_of(path: Path) -> Json:
    """Return the attributes of the zarr group at `path`; empty where there is none that can be read."""
    try:
        attributes = json.loads(read_regular(path / "zarr.json"))["attributes"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _has_expected_type(entry: Path) -> bool:
    """Return whether a path has the type, file or directory, that streampca writes under that name."""
    if entry.name in (*_RUN_DOCUMENTS, "zarr.json"):
        return entry.is_file()
    return entry.is_dir() or (entry.is_file() and entry.name.isdecimal())


def require_apart(output: Path, source: str) -> None:
    """Raise `OutputError` if `output` lies in the input, or the input in it."""
    source = source.removeprefix("icechunk:").removeprefix("file://")
    if "://" in source or not Path(source).exists():
        return
    a, b = output.resolve(), Path(source).resolve()
    if a == b or a in b.parents or b in a.parents:
        raise OutputError(f"output {output} and input {source} contain one another: expected separate places")


def require_space(path: Path, n_bytes: int) -> None:
    """Raise `NoSpaceError` if the file system of `path` has less than `n_bytes` and 5 % free."""
    parent = existing_parent(path)
    free = shutil.disk_usage(parent).free
    if free < 1.05 * n_bytes:
        raise NoSpaceError(
            f"{path}: {as_text(n_bytes)} will be written, {as_text(free)} are free: make room, or name another place"
        )


def read_unreplaced(path: Path, read: Callable[[], _Read]) -> _Read:
    """Return what `read` makes of the output at `path`, all of it from one output: again if another took its place meanwhile."""
    for _ in range(_MOST_READS):
        before = _identity(path)
        try:
            found = read()
        except StreamPCAError:
            if _identity(path) == before and not _between_renames(path):
                raise
        else:
            if _identity(path) == before:
                return found
            del found  # before there is another one
        time.sleep(_PAUSE_SECONDS)
    return read()


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return what tells the directory at `path` from one that takes its place, None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _between_renames(path: Path) -> bool:
    """Tell whether the earlier output stands beside `path` under another name, and the new one is about to take its place."""
    return _identity(path) is None and any(path.parent.glob(f"{escape(path.name)}.old-*"))


class AtomicDirectory:
    """A directory that is built under a temporary name beside `path` and renamed when it is complete.

    ``with AtomicDirectory(path, "model") as directory:`` fills the temporary `directory`; the commit record is written
    last, and everything is flushed to the disk before the rename. If the block fails, the temporary directory is removed
    and the earlier content of `path` is unchanged. A lock, ``<path>.<run_id>.lock``, names the process that builds it, so
    that the next one to write at `path` can tell, and remove, what a process that died has left.

    A run that can be resumed passes its `run_id`, and in `keeps` a function that returns the relative paths of what to keep
    if the block fails or has failed before; none by default.

    The commit record of a run holds digests of the figures in its documents: of the new directory, or `figures`, those of
    the run that it is a copy of.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        *,
        overwrite: bool = False,
        run_id: str | None = None,
        keeps: Callable[[], Collection[str]] = tuple,
        figures: Json | None = None,
    ):
        self.figures = figures
        require_local(path)
        path = path.absolute()  # the working directory may change while the directory is built
        self.path, self.kind, self.overwrite, self.keeps = path, kind, overwrite, keeps
        self.run_id, self._again = run_id or secrets.token_hex(8), run_id is not None
        self.temporary = path.with_name(f"{path.name}.part-{self.run_id}")
        self._lock = Lock(_built(path, self.run_id), self.run_id)

    def __enter__(self) -> Path:
        _tidy_after_all(self.path, apart_from=self.run_id)
        require_replaceable(self.path, self.kind, overwrite=self.overwrite)
        with ExitStack() as if_it_fails:
            if_it_fails.enter_context(self._lock)
            self._make_temporary()
            if_it_fails.pop_all()
        return self.temporary

    def _make_temporary(self) -> None:
        try:
            if self._again:
                self._clear(self.temporary, self.keeps())
            self.temporary.mkdir(parents=True, exist_ok=self._again)
        except OSError as error:
            raise output_error(error, self.temporary) from error

    def _clear(self, directory: Path, kept: Collection[str]) -> None:
        """Remove the content of the temporary `directory`, whose name only this run uses, except what is at the paths `kept`."""
        if directory.is_symlink():
            raise OutputError(f"{directory} is a symbolic link: expected a directory of this run; remove the link")
        for child in directory.iterdir() if directory.is_dir() else ():
            inside = [path.removeprefix(f"{child.name}/") for path in kept if path.startswith(f"{child.name}/")]
            if child.name in kept:
                continue
            if inside and child.is_dir():
                self._clear(child, inside)
            else:
                shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        committed = False
        try:
            if error is None:
                self._commit()
                committed = True
        except StreamPCAError:
            raise
        except OSError as failure:
            raise output_error(failure, self.path) from failure
        finally:
            if not committed:
                _wait_for_writes()
            # This name is known to this run alone: whatever still stands there is its own.
            if committed or not self.keeps():
                shutil.rmtree(self.temporary, ignore_errors=True)
            self._lock.__exit__(None, None, None)
        # Errors of a connection carry no number, and those of a source are named already: the rest come from writing.
        if isinstance(error, OSError) and error.errno and not isinstance(error, StreamPCAError | ConnectionError):
            raise output_error(error, self.path) from error

    def _commit(self) -> None:
        of_documents = self.kind in _RUNS
        figures = figures_of(self.temporary) if of_documents and self.figures is None else self.figures
        more = {"figures": figures} if of_documents else None
        write_commit_record(self.temporary, self.kind, self.run_id, more)
        flush(self.temporary)
        require_replaceable(self.path, self.kind, overwrite=self.overwrite)
        old = self.path.with_name(f"{self.path.name}.old-{self.run_id}")
        try:
            if self.path.exists():
                self.path.rename(old)
            self.temporary.rename(self.path)
            flush_one(self.path.parent)
            _log.info("%s: %s written", self.path, self.kind)
        except BaseException:  # a signal too must not leave the earlier result under another name
            self._undo_renames(old)
            raise
        if old.exists():
            shutil.rmtree(old, ignore_errors=True)

    def _undo_renames(self, old: Path) -> None:
        """Undo the completed renames of `_commit`."""
        try:
            if not self.temporary.exists() and (read_record(self.path) or {}).get("run_id") == self.run_id:
                self.path.rename(self.temporary)
            if old.exists() and not self.path.exists():
                old.rename(self.path)
        except OSError as error:
            raise type(output_error(error, self.path))(
                f"{self.path} cannot be renamed ({error.strerror}): the earlier {self.kind}, if any, is intact at {old}"
            ) from error


def _wait_for_writes() -> None:
    """Wait at most 5 seconds for writes that a signal left running in zarr's thread: a later one would create the temporary directory again."""
    if "zarr" not in sys.modules:
        return
    import asyncio  # which takes as long to import as a fifth of the package

    from streampca.storage.zarr_interface import sync

    async def others() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=5)

    sync(others())


def tidy_after(path: Path, run_id: str, *, keep_part: bool = False) -> None:
    """Remove the leftovers of the run `run_id`, which died, beside `path`, and rename an earlier output back."""
    part, old = (path.with_name(f"{path.name}.{kind}-{run_id}") for kind in ("part", "old"))
    try:
        if old.is_dir() and not old.is_symlink():
            if not path.exists():
                old.rename(path)
            elif (read_record(path) or {}).get("run_id") == run_id:
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise output_error(error, path, f"the earlier output is intact at {old}") from error
    if part.is_dir() and not part.is_symlink() and not keep_part:
        shutil.rmtree(part, ignore_errors=True)
    if not keep_part:
        with suppress(OSError):
            lock_of(_built(path, run_id)).unlink()


def _tidy_after_all(path: Path, apart_from: str) -> None:
    """Remove the leftovers of all runs that died while they built `path`; what a checkpoint needs stays."""
    stopped = (read_record(path.with_name(f"{path.name}.checkpoint")) or {}).get("run_id")
    for run_id in set(dead_holders(path)) - {apart_from, stopped}:
        tidy_after(path, run_id)


def _built(path: Path, run_id: str) -> Path:
    """Return the name whose lock stands for the directory that the run `run_id` builds."""
    return path.with_name(f"{path.name}.{run_id}")
