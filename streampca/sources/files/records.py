"""The record of a file of rows: what is needed to know it again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from streampca.errors import DataError
from streampca.storage.regular_files import open_regular
from streampca.typing import DType

_SAMPLE_BYTES = 4096


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
