"""Where a file of rows is (in a local file system here, behind a URL in `remote_file`), and its record: what is needed to know it again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import xxhash

from streampca.errors import DataError
from streampca.sources.grid import Span
from streampca.storage.files import open_regular, require_regular
from streampca.system.optional import optional_module
from streampca.typing import DType

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


_SAMPLE_BYTES = 4096
_COMPARED_BYTES = 2**22


@dataclass(frozen=True)
class Fragment:
    """What is known of one file of a table."""

    name: str
    """Path as it was given, or URL without what may be secret."""
    n_rows: int
    """Rows of the table that it holds."""
    n_bytes: int
    """Size of the file."""
    modified: int
    """Time of its last modification, in ns; of an object behind a URL a negative number made of its entity tag."""
    fingerprint: str
    """Hash of shape, data type, size, and the first, middle and last 4 KiB of the file; that of a copy is the same."""

    @classmethod
    def of(cls, file: StoredFile, shape: tuple[int, int], dtype: DType) -> Fragment:
        """Return the record of a file with rows of this shape and data type."""
        try:
            status = file.status()
            digest = xxhash.xxh3_128(f"{shape}{dtype.str}{status.n_bytes}".encode())
            starts = (0, status.n_bytes // 2, max(0, status.n_bytes - _SAMPLE_BYTES))
            for piece in file.pieces([(start, min(status.n_bytes, start + _SAMPLE_BYTES)) for start in starts]):
                digest.update(piece)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror or error}") from error
        return cls(str(file), shape[0], status.n_bytes, status.modified, digest.hexdigest())


def repeated(fragments: Sequence[Fragment], earlier: Iterable[Fragment] = ()) -> tuple[Fragment, Fragment] | None:
    """Return the first of `fragments` whose rows are also in one of `earlier` or before it, and that other one; None if there is none.

    Files of the same fingerprint are compared byte by byte where both can be read; where the other file is gone or was
    changed since, the fingerprint decides. Files without rows repeat nothing.
    """
    known: dict[str, list[Fragment]] = {}
    for fragment in earlier:
        known.setdefault(fragment.fingerprint, []).append(fragment)
    for fragment in fragments:
        same = known.setdefault(fragment.fingerprint, [])
        other = next((each for each in same if fragment.n_rows and not _differ(fragment, each)), None)
        if other is not None:
            return fragment, other
        same.append(fragment)
    return None


def require_distinct(fragments: Sequence[Fragment]) -> None:
    """Raise `DataError`, naming both, if two files of a table have the same content."""
    pair = repeated(fragments)
    if pair is not None:
        fragment, other = pair
        raise DataError(
            f"{fragment.name} has the same content as {other.name}: its {fragment.n_rows:,} rows would count twice; name one of them"
        )


def _differ(fragment: Fragment, other: Fragment) -> bool:
    """Return whether two local files of the same fingerprint can both be read, as they were recorded, and hold different bytes."""
    try:
        with ExitStack() as stack:
            places = [LocalFile(Path(each.name)) for each in (fragment, other)]
            one, two = (stack.enter_context(place.open()) for place in places)
            if places[1].status() != (other.n_bytes, other.modified):
                return False
            while piece := one.read(_COMPARED_BYTES):
                if piece != two.read(_COMPARED_BYTES):
                    return True
    except OSError:
        pass
    return False
