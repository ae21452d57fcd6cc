"""The record of a file of rows: what is needed to know it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import xxhash

from streampca.errors import DataError
from streampca.sources.files.places import FileStatus, LocalFile, StoredFile
from streampca.sources.schedule import Span
from streampca.typing import DType

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
            for piece in file.pieces(_samples_of(status.n_bytes)):
                digest.update(piece)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror or error}") from error
        return cls(str(file), shape[0], status.n_bytes, status.modified, digest.hexdigest())

    @property
    def status(self) -> FileStatus:
        """Return what tells the file from what it is after it was changed."""
        return FileStatus(self.n_bytes, self.modified)


def _samples_of(n_bytes: int) -> list[Span]:
    """Return the places of the bytes that are in the fingerprint of a file of `n_bytes`."""
    starts = (0, n_bytes // 2, max(0, n_bytes - _SAMPLE_BYTES))
    return [(start, min(n_bytes, start + _SAMPLE_BYTES)) for start in starts]


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
            if places[1].status() != other.status:
                return False
            while piece := one.read(_COMPARED_BYTES):
                if piece != two.read(_COMPARED_BYTES):
                    return True
    except OSError:
        pass
    return False
