"""Files: opened only if they are regular, because a named pipe would wait for a writer forever; written completely or not at all.

A file is written under a temporary name, flushed, renamed, and its directory flushed, so files are on disk before
a later file refers to them. Every function that writes raises `NoSpaceError` or `OutputError`, never a bare `OSError`.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from streampca.errors import NoSpaceError, OutputError, StreamPCAError
from streampca.formatting import as_text

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}
TEMPORARY = re.compile(r"\.streampca-[0-9a-f]{12}\.tmp")
"""Names of files that are being written; one that remains was left by a process that died."""
_PIECE = 8 * 2**20


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


@contextmanager
def writing(path: Path, meaning: str = "nothing at this path was changed") -> Iterator[None]:
    """Turn errors of the system into `NoSpaceError` or `OutputError` about `path`, with their `meaning` for the user."""
    try:
        yield
    except StreamPCAError:
        raise
    except OSError as error:
        raise output_error(error, path, meaning) from error


def output_error(error: OSError, path: Path, meaning: str = "nothing at this path was changed") -> OSError:
    """Return the named error for a failure to write at `path`."""
    reason = error.strerror or str(error)
    if is_disk_full(error):
        return NoSpaceError(
            f"{path}: no room to write ({reason}{_free(error, path)}); {meaning}: make room and start again"
        )
    return OutputError(f"{path} cannot be written: {reason}; {meaning}")


def is_disk_full(error: OSError) -> bool:
    """Return whether a write failed because the file system, a quota or the largest file size is exhausted."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _free(error: OSError, path: Path) -> str:
    """Return the free space as text, if the file system is full and not a quota."""
    if error.errno != errno.ENOSPC:
        return ""
    with suppress(OSError, StopIteration):
        return f", {as_text(shutil.disk_usage(existing_parent(path)).free)} free"
    return ""


def existing_parent(path: Path) -> Path:
    """Return the nearest directory above `path` that exists."""
    return next(parent for parent in path.absolute().parents if parent.exists())


def missing_parents(path: Path) -> list[Path]:
    """Return the directories above `path` that do not exist, deepest first."""
    return [parent for parent in path.absolute().parents if not parent.exists()]


def remove_empty(directories: list[Path]) -> None:
    """Remove `directories`, deepest first, up to the first that is not empty."""
    with suppress(OSError):
        for directory in directories:
            directory.rmdir()


def write_atomically(path: Path, pieces: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write `pieces` to `path`, whole or not at all; return the number of bytes and their xxh3-128."""
    import xxhash  # here, because states are imported without it

    temporary, digest, size = temporary_beside(path), xxhash.xxh3_128(), 0
    try:
        with writing(path):
            with open(temporary, "wb", buffering=0) as file:
                for piece in pieces:
                    remaining = memoryview(piece).cast("B")
                    size += len(remaining)
                    while len(remaining):
                        written = file.write(remaining[:_PIECE])
                        digest.update(remaining[:written])
                        remaining = remaining[written:]
                os.fsync(file.fileno())
            temporary.rename(path)
            flush_one(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()
    return size, digest.hexdigest()


def temporary_beside(path: Path) -> Path:
    """Return a new name in the directory of `path` that is matched by `TEMPORARY`."""
    return path.with_name(f".streampca-{secrets.token_hex(6)}.tmp")


def digest_of(path: Path) -> tuple[int, str]:
    """Return size and xxh3-128 of a file, read in pieces."""
    import xxhash

    digest, size = xxhash.xxh3_128(), 0
    with open_regular(path, buffering=0) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def flush(directory: Path) -> None:
    """Force every file below `directory`, and the directories themselves, to the disk."""
    for root, _, files in os.walk(directory):
        for name in files:
            flush_one(Path(root) / name)
        flush_one(Path(root))


def flush_one(path: Path) -> None:
    """Force one file, or the names in one directory, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
