"""A lock file that allows one run at a time for an output, names its holder, and is taken over if the holder has ended."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

import psutil

from streampca.errors import OutputError
from streampca.storage.files import (
    TEMPORARY,
    missing_parents,
    remove_empty,
    temporary_beside,
    write_atomically,
    writing,
)
from streampca.storage.regular_files import read_regular, require_regular

FORMAT = "streampca-lock"
BEAT = 15.0
"""Seconds between signs of life; a holder on another machine is taken for dead after twice as long without one."""
_TRIES = 40


class _Holder(TypedDict):
    """Content of a lock file: the process that holds it."""

    format: str
    host: str
    place: str
    pid: int
    started: str | None
    run_id: str
    since: str


def lock_of(path: Path) -> Path:
    """Return the path of the lock file of `path`."""
    path = path if path.name else path.absolute()
    return path.with_name(f"{path.name}.lock")


def dead_holders(path: Path) -> list[str]:
    """Return the identifiers of the runs that hold a lock ``<path>.<run>.lock`` and certainly died, on this machine."""
    runs = []
    ours = re.compile(rf"{re.escape(path.name)}\.([0-9a-z]+)\.lock")
    with suppress(OSError):  # a directory that may be written to may yet not be listed, or not be there
        for child in path.parent.iterdir():
            name = ours.fullmatch(child.name)
            with suppress(OSError):  # also where it is no lock, or gone meanwhile
                if name and (holder := _read(read_regular(child), child))["run_id"] == name[1] and _is_dead(holder):
                    runs.append(name[1])
    return runs


class Lock:
    """The right to write at `path`, held as the file ``<path>.lock`` for as long as a ``with`` block lasts.

    The file is made beside its place and linked to it, so it is there with its content or not at all. A holder on this
    machine is known by process number and start time; one on another by the time of the file, which it touches every
    `BEAT` seconds and which is compared with that of a new file, not with the clock of this machine.

    Raises
    ------
    OutputError
        If another run holds it, with its host, process and run; or if another file exists there.
    """

    def __init__(self, path: Path, run_id: str):
        self.path, self.run_id = lock_of(path.absolute()), run_id
        self.dead: list[str] = []
        """Identifiers of runs that held the lock and died."""
        self._content = _holder(run_id)
        self._new_parents: list[Path] = []
        self._beating: threading.Thread | None = None
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._new_parents = missing_parents(self.path)
        try:
            with writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._acquire()
        except BaseException:
            remove_empty(self._new_parents)
            raise
        self._ended.clear()
        self._beating = threading.Thread(target=self._beat, name="streampca-lock", daemon=True)
        self._beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._is_held():
            with suppress(OSError):
                self.path.unlink()
        remove_empty(self._new_parents)

    def name(self, run_id: str) -> None:
        """Hold the lock for the resumed run `run_id` from now on."""
        self.require_held()
        content = _holder(run_id)
        write_atomically(self.path, [content])
        self.run_id, self._content = run_id, content

    def require_held(self) -> None:
        """Raise `OutputError` if the lock was lost: nothing may be written then."""
        if not self._is_held():
            raise OutputError(
                f"{self.path} is not held by this run any more: another run took it over, or it was removed; nothing was changed"
            )

    def _acquire(self) -> None:
        temporary = temporary_beside(self.path)
        try:
            write_atomically(temporary, [self._content])
            for _ in range(_TRIES):
                if _link(temporary, self.path) or self._take_over(temporary):
                    self._remove_leftovers()
                    return
                time.sleep(0.05)
            raise OutputError(f"{self.path} changes hands all the time: expected one run at a time; start again later")
        finally:
            with suppress(OSError):
                temporary.unlink()

    def _take_over(self, temporary: Path) -> bool:
        """Replace the lock of a holder that has ended; False if the lock has changed meanwhile, `OutputError` if the holder is alive."""
        try:
            require_regular(self.path)
            handle = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise OutputError(f"{self.path} cannot be opened: {error.strerror}; move it away") from error
        try:
            content = os.read(handle, 4096)
            holder = _read(content, self.path)
            if _alive(holder, self.path, temporary):
                raise OutputError(
                    f"{self.path} is held by run {holder['run_id']} on {holder['host']}, process {holder['pid']}, since "
                    f"{holder['since']}: wait until it ends, or name another place"
                )
            try:  # one of those that wait takes over: the system lets go of this when its process ends
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            try:
                if os.stat(self.path).st_ino != os.fstat(handle).st_ino:
                    return False
            except FileNotFoundError:
                return False
            with writing(self.path):
                temporary.rename(self.path)
            self.dead.append(str(holder["run_id"]))
            return True
        finally:
            os.close(handle)

    def _remove_leftovers(self) -> None:
        """Remove temporary lock files of runs of this machine that died while they acquired a lock."""
        candidates: list[Path] = []
        with suppress(OSError):  # a directory that may be written to may yet not be listed
            candidates = [child for child in self.path.parent.iterdir() if TEMPORARY.fullmatch(child.name)]
        for child in candidates:
            with suppress(OSError):  # also where it is no lock, or gone meanwhile
                if _is_dead(_read(read_regular(child), child)):
                    child.unlink()

    def _is_held(self) -> bool:
        try:
            return read_regular(self.path) == self._content
        except OSError:
            return False

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            if not self._is_held():
                return
            with suppress(OSError):
                os.utime(self.path)


def _link(temporary: Path, path: Path) -> bool:
    """Link `temporary` to `path` unless it exists; by exclusive creation on file systems without links."""
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    except OSError:  # no links here
        pass
    with writing(path):
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return False
        try:
            os.write(handle, temporary.read_bytes())
            os.fsync(handle)
        finally:
            os.close(handle)
    return True


def _holder(run_id: str) -> bytes:
    holder: _Holder = {
        "format": FORMAT,
        "host": socket.gethostname(),
        "place": _place(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "run_id": run_id,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return json.dumps(holder, sort_keys=True).encode() + b"\n"


def _started(pid: int) -> str | None:
    """Return the start time of a process, None if there is none; process numbers are reused."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        try:
            return f"{psutil.Process(pid).create_time():.0f}"
        except psutil.NoSuchProcess:
            return None
    return None if state in (b"Z", b"X") else others[18].decode()


def _place() -> str:
    """Return an identifier of the process numbers: the boot of the machine, and the namespace of a container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _read(content: bytes, path: Path) -> _Holder:
    try:
        holder: _Holder = json.loads(content)
        if holder["format"] == FORMAT and isinstance(holder["pid"], int):
            return holder
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise OutputError(f"{path} is not a lock of streampca, or is damaged: if no run is at work here, remove it")


def _is_dead(holder: _Holder) -> bool:
    """Return whether a holder was certainly a process of this machine and has ended."""
    here = holder.get("host") == socket.gethostname() and holder.get("place") == _place() != ""
    return here and _started(holder["pid"]) != holder.get("started")


def _alive(holder: _Holder, path: Path, temporary: Path) -> bool:
    if holder.get("host") == socket.gethostname() and holder.get("place") == _place():
        return _started(holder["pid"]) == holder.get("started")
    return _is_recent(path, temporary)  # another machine or container, or before the machine was started


def _is_recent(path: Path, temporary: Path) -> bool:
    """Return whether the lock was touched within two intervals, by the clock of the file system."""
    try:
        os.utime(temporary)
        return temporary.stat().st_mtime - path.stat().st_mtime <= 2 * BEAT
    except FileNotFoundError:
        return True
