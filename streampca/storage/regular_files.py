"""Files are opened for reading only if they are regular files: a named pipe would wait for a writer for ever."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


class NotRegularFileError(OSError):
    """A path that should be read is a named pipe, a device or a socket."""


def require_regular(path: str | os.PathLike[str], handle: int | None = None) -> os.stat_result:
    """Return the status of the file at `path`, links followed, or of the file that is open as `handle`; it is not opened.

    Raises
    ------
    NotRegularFileError
        If it is not a regular file.
    OSError
        If there is none.
    """
    status = os.stat(path if handle is None else handle)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
        raise NotRegularFileError(errno.EINVAL, f"it is {kind}, expected a regular file", os.fspath(path))
    return status


def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Return the regular file at `path`, opened for reading; raises what `require_regular` raises.

    A path that is replaced by a named pipe after the check is opened without blocking, and refused.
    """
    require_regular(path)
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        require_regular(path, handle)
    except OSError:
        os.close(handle)
        raise
    return open(handle, "rb", buffering=buffering)


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the content of the regular file at `path`; raises what `require_regular` raises."""
    with open_regular(path) as file:
        return file.read()
