"""The record of a file of rows: what is needed to know it again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import xxhash

from streampca.errors import DataError
from streampca.storage.regular_files import open_regular
from streampca.typing import DType

_SAMPLE_BYTES = 4096
_COMPARED_BYTES = 2**22


@dataclass(frozen=True)
class Fragment:
    """What is known of one file of a table."""

    name: str
    """Path as it was given."""
    n_rows: int
    """Rows of the table that it holds."""
    n_bytes: int
    """Size of the file."""
    modified: int
    """Time of its last modification, in ns."""
    fingerprint: str
    """Hash of shape, data type, size, and the first, middle and last 4 KiB of the file; that of a copy is the same."""

    @classmethod
    def of(cls, path: Path, shape: tuple[int, int], dtype: DType) -> Fragment:
        """Return the record of a file with rows of this shape and data type."""
        try:
            with open_regular(path, buffering=0) as file:
                status = os.fstat(file.fileno())
                digest = xxhash.xxh3_128(f"{shape}{dtype.str}{status.st_size}".encode())
                for place in (0, status.st_size // 2, max(0, status.st_size - _SAMPLE_BYTES)):
                    file.seek(place)
                    digest.update(file.read(_SAMPLE_BYTES))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
        return cls(str(path), shape[0], status.st_size, status.st_mtime_ns, digest.hexdigest())


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
    """Return whether two files of the same fingerprint can both be read, as they were recorded, and hold different bytes."""
    try:
        with ExitStack() as stack:
            one, two = (stack.enter_context(open_regular(Path(each.name))) for each in (fragment, other))
            status = os.fstat(two.fileno())
            if (status.st_size, status.st_mtime_ns) != (other.n_bytes, other.modified):
                return False
            while piece := one.read(_COMPARED_BYTES):
                if piece != two.read(_COMPARED_BYTES):
                    return True
    except OSError:
        pass
    return False
