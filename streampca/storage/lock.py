"""A lock file that allows one run at a time for an output and names its holder; the system releases it when the holder ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from streampca.errors import OutputError
from streampca.storage.files import missing_parents, output_error, remove_empty, require_regular, writing
from streampca.typing import Json

FORMAT = "streampca-lock"
_TRIES = 40
_MOST_BYTES = 4096
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def lock_of(path: Path) -> Path:
    """Return the path of the lock file of `path`."""
    path = path if path.name else path.absolute()
    return path.with_name(f"{path.name}.lock")


def dead_holders(path: Path) -> list[str]:
    """Return the identifiers of the runs whose lock ``<path>.<run>.lock`` is there, and held by no process."""
    runs = []
    ours = re.compile(rf"{re.escape(path.name)}\.([0-9a-z]+)\.lock")
    with suppress(OSError):  # a directory that may be written to may yet not be listed, or not be there
        for child in path.parent.iterdir():
            name = ours.fullmatch(child.name)
            with suppress(OSError, OutputError):  # also where it is no lock, held, or gone meanwhile
                if name:
                    require_regular(child)
                    with child.open("r+b") as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        if _read(file.read(_MOST_BYTES), child).get("run_id") == name[1]:
                            runs.append(name[1])
    return runs


class Lock:
    """The right to write at `path`, held as the file ``<path>.lock`` for as long as a ``with`` block lasts.

    The file is locked by the system (``flock``), which releases it when the process ends, however that happens; a file that is there
    and not locked is that of a run that died. Network file systems lock across machines; one without locks holds a run
    apart by the existence of the file, which has to be removed by hand after a run that died.

    Raises
    ------
    OutputError
        If another run holds it, with its host, process and run; or if another file exists there.
    """

    def __init__(self, path: Path, run_id: str):
        self.path, self.run_id = lock_of(path.absolute()), run_id
        self.dead: list[str] = []
        """Identifiers of runs that held the lock and died."""
        self._handle = -1
        self._new_parents: list[Path] = []

    def __enter__(self) -> Self:
        self._new_parents = missing_parents(self.path)
        try:
            with writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._acquire()
        except BaseException:
            remove_empty(self._new_parents)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_there():
            with suppress(OSError):
                self.path.unlink()
        os.close(self._handle)
        remove_empty(self._new_parents)

    def name(self, run_id: str) -> None:
        """Hold the lock for the resumed run `run_id` from now on."""
        self.require_held()
        self.run_id = run_id
        self._say_who()

    def require_held(self) -> None:
        """Raise `OutputError` if the lock was lost: nothing may be written then."""
        if not self._is_there():
            raise OutputError(f"{self.path} is no longer held by this run: it was removed; nothing was changed")

    def _acquire(self) -> None:
        for left in reversed(range(_TRIES)):
            is_new = True
            try:
                try:
                    self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                except FileExistsError:
                    is_new = False
                    require_regular(self.path)
                    self._handle = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
            except FileNotFoundError:  # its holder has removed it meanwhile
                continue
            except OSError as error:
                raise output_error(error, self.path) from error
            held, before = False, b""
            try:
                held = self._is_locked_by_us(is_new=is_new)
                before = os.pread(self._handle, _MOST_BYTES, 0)
                if held and self._is_there():  # else its holder has removed it meanwhile
                    if before:
                        self.dead.append(str(_read(before, self.path)["run_id"]))
                    self._say_who()
                    return
                if not held and before and left < _TRIES - 3:  # else somebody looks at it, or is about to say who it is
                    holder = _read(before, self.path)
                    raise OutputError(
                        f"{self.path} is held by run {holder['run_id']} on {holder['host']}, process {holder['pid']}, since "
                        f"{holder['since']}: wait until it ends, or name another place"
                    )
            except BaseException:
                if held and not before and self._is_there():
                    self.path.unlink()
                os.close(self._handle)
                raise
            os.close(self._handle)
            time.sleep(0.05)
        raise OutputError(f"{self.path} keeps changing hands: expected one run at a time; start again later")

    def _is_locked_by_us(self, *, is_new: bool) -> bool:
        """Lock the file; return whether that was possible. Where the file system has no locks, only a file that `is_new` is held."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise OutputError(f"{self.path} cannot be locked: {error.strerror}; name another place") from error
            if not is_new:
                raise OutputError(
                    f"{self.path} exists, but its file system has no locks to tell whether its run is alive: remove it if no "
                    "run is active here"
                ) from error
        return True

    def _is_there(self) -> bool:
        """Return whether the file that is open is the one at the path."""
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._handle))
        except OSError:
            return False

    def _say_who(self) -> None:
        """Write the process that holds the lock into its file."""
        holder = {
            "format": FORMAT,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "run_id": self.run_id,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        content = json.dumps(holder, sort_keys=True).encode() + b"\n"
        with writing(self.path):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, content, 0)


def _read(content: bytes, path: Path) -> Json:
    """Return the holder that a lock file names."""
    try:
        holder: Json = json.loads(content)
        if holder["format"] == FORMAT and {"host", "pid", "run_id", "since"} <= holder.keys():
            return holder
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        pass
    raise OutputError(f"{path} is not a lock of streampca, or is damaged: if no run is active here, remove it")
