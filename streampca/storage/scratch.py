"""A temporary directory for data that exceed memory; it is removed with its last user."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from streampca.errors import OutputError


class Scratch:
    """A new directory below Dask's ``temporary-directory``, or the system's.

    Removed at the end of a ``with`` block, or when this object is collected, or when the process ends.

    Raises
    ------
    OutputError
        If it cannot be made.
    """

    def __init__(self) -> None:
        from dask import config

        place = config.get("temporary-directory", None)
        try:
            self.path = Path(tempfile.mkdtemp(prefix="streampca-", dir=place)).absolute()
        except OSError as error:
            raise OutputError(
                f"no temporary directory can be made in {place or tempfile.gettempdir()}: {error.strerror or error}: expected a "
                "directory that can be written to; set Dask's temporary-directory, or TMPDIR, to one"
            ) from error
        self.remove = weakref.finalize(self, _remove, self.path, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _remove(path: Path, made_by: int) -> None:
    """Remove the directory unless this is a fork of the process that made it, which may still use it."""
    if os.getpid() == made_by:
        shutil.rmtree(path, ignore_errors=True)


def _place() -> Path:
    """Return where temporary directories are made."""
    from dask import config

    return Path(config.get("temporary-directory", None) or tempfile.gettempdir())


def has_room(n_bytes: int) -> bool:
    """Return whether temporary directories have room for `n_bytes` and 5 % more."""
    place = _place()
    return place.exists() and shutil.disk_usage(place).free >= 1.05 * n_bytes


def shares_disk(path: Path) -> bool:
    """Return whether temporary directories are on the file system of `path`, or of its nearest parent that exists."""
    place = _place()
    parent = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    return place.exists() and place.stat().st_dev == parent.stat().st_dev
