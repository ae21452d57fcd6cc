"""Where a file of rows is: in a local file system here, behind a URL in `remote_file`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

from streampca.sources.schedule import Span
from streampca.storage.regular_files import open_regular, require_regular
from streampca.system.optional import optional_module

if TYPE_CHECKING:
    from streampca.sources.remote import RemoteStore


class FileStatus(NamedTuple):
    """What tells a file from what it is after it was changed."""

    n_bytes: int
    """Its size."""
    modified: int
    """Time of its last modification in ns; of an object behind a URL a negative number made of its entity tag, 0 if it has none."""


class StoredFile(Protocol):
    """A file of rows; ``str()`` is its name in messages and records, without what may be secret."""

    @property
    def store(self) -> RemoteStore | None:
        """Return where its bytes are requested from; None for a local file."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of its directories, and its own."""
        ...

    @property
    def identity(self) -> object:
        """Return what is equal for two names of one file; None where there is no file."""
        ...

    def absolute(self) -> StoredFile:
        """Return the file as another process finds it."""
        ...

    def status(self) -> FileStatus:
        """Return what it is now, of an object what it was when it was first asked for; `OSError` or `StreamPCAError` if there is none."""
        ...

    def pieces(self, spans: Sequence[Span]) -> list[bytes]:
        """Return the bytes in each of `spans`, of which there are fewer behind the end; raises what `status` raises."""
        ...

    def for_arrow(self) -> Any:
        """Open it as a file of pyarrow; raises what `status` raises."""
        ...


@dataclass(frozen=True)
class LocalFile:
    """A file in a local file system."""

    path: Path
    """Its path as it was given."""
    store: None = None
    """Always None: it is read, not requested."""

    def __str__(self) -> str:
        return str(self.path)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of its directories, and its own."""
        return self.path.parts

    @property
    def identity(self) -> object:
        """Return device and number of the file, None where there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def absolute(self) -> LocalFile:
        """Return the file by its absolute path: workers may have another working directory."""
        return LocalFile(self.path.absolute())

    def status(self) -> FileStatus:
        """Return size and time of modification of a regular file; `OSError` if there is none."""
        status = require_regular(self.path)
        return FileStatus(status.st_size, status.st_mtime_ns)

    def open(self) -> BinaryIO:
        """Open the file for reading."""
        return open_regular(self.path)

    def pieces(self, spans: Sequence[Span]) -> list[bytes]:
        """Return the bytes in each of `spans`."""
        with open_regular(self.path, buffering=0) as file:
            return [os.pread(file.fileno(), stop - start, start) for start, stop in spans]

    def for_arrow(self) -> Any:
        """Open it as a file of pyarrow, which reads it without Python."""
        return optional_module("pyarrow", "Parquet", "arrow").OSFile(str(self.path))
