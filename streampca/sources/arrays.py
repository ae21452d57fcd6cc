"""Rows that are in memory already, and rows of a memory-mapped file."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import xxhash

from streampca.errors import DataError
from streampca.formatting import one_line
from streampca.sources.base import ReadCount, Source, require_table
from streampca.sources.versions import InputVersion, InputWatch, files
from streampca.storage.files import open_regular, require_regular
from streampca.typing import Array, DType


class ArraySource(Source):
    """A numpy array; blocks are views of it."""

    buffered = False

    def __init__(self, array: Array, description: str = "array"):
        require_table(array.shape, array.dtype, description)
        self.array, self.description = array, description
        self.shape, self.dtype = (array.shape[0], array.shape[1]), array.dtype

    @property
    def fingerprint(self) -> str:
        """Return a hash of shape, dtype and a sample of the rows, which differs between the arrays of one session."""
        step = max(1, len(self.array) // 64)
        sample = np.ascontiguousarray(self.array[::step][:64])
        digest = xxhash.xxh3_128(f"{self.shape}{self.dtype}".encode())
        digest.update(sample.data if sample.size else b"")
        return digest.hexdigest()

    def by_features(self) -> ArraySource:
        """Return a source whose rows are the features of this one."""
        return ArraySource(self.array.T, self.description)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return a view of the rows."""
        values = self.array[start:stop]
        return values, ReadCount(0, values.nbytes, values.nbytes)


def copy_mapped(mapped: Array, part: Array, out: Array) -> None:
    """Copy `part` of a memory-mapped array to `out` piece by piece, so that few of its pages are in memory at a time."""
    mapping = getattr(mapped, "_mmap", None)
    # A private (copy on write) map would lose its changes; all others only drop pages that the file still holds.
    releases = isinstance(mapping, mmap.mmap) and getattr(mapped, "mode", "") in ("r", "r+")
    slow = 0 if abs(part.strides[0]) >= abs(part.strides[1]) else 1
    line_bytes = part.shape[1 - slow] * part.itemsize + _MAPPED_AROUND
    step = max(1, MAPPED_BYTES // line_bytes)
    turned_part, turned_out = np.moveaxis(part, slow, 0), np.moveaxis(out, slow, 0)
    for first in range(0, len(turned_part), step):
        turned_out[first : first + step] = turned_part[first : first + step]
        if releases:
            mapping.madvise(mmap.MADV_DONTNEED)  # type: ignore[union-attr]


def _why(path: Path, error: Exception) -> str:
    """Return the reason why an ``.npy`` file cannot be read; numpy would advise to unpickle unknown types."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    try:
        with open_regular(path) as file:
            magic = file.read(6)
    except OSError:
        magic = b""
    if magic != b"\x93NUMPY":
        return "it does not begin like one; expected a file that numpy.save wrote"
    if "mmap length" in str(error):
        return "it is cut short: fewer bytes than its header says; write it again"
    return one_line(error)


MAPPED_BYTES = 2**22
"""Memory for pages of a mapped file, beside the values that are read."""
_MAPPED_AROUND = 2**17
"""Bytes that the system maps around a line of values, which may begin and end within pages that it maps together."""


def mapped_file(path: Path) -> np.memmap[tuple[int, ...], DType]:
    """Return the array of an ``.npy`` file, mapped into memory; raise `DataError` if it is not one or holds objects."""
    try:
        require_regular(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except MemoryError:
        raise
    except (
        Exception
    ) as error:  # numpy reads the header with Python's tokenizer and parser, which have errors of their own
        raise DataError(f"{path} cannot be opened as an .npy file: {_why(path, error)}") from error
    if not isinstance(array, np.memmap):
        raise DataError(f"{path}: expected one array in an .npy file, found {type(array).__name__}")
    return array


def read_array(key: str, name: str) -> Array:
    """Return the array in the ``.npy`` file `name`; `DataError`, which begins with `key`, if it cannot be read."""
    file = Path(name).expanduser()
    try:
        require_regular(file)
        return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else "it is not an .npy file of numbers"
        )
        raise DataError(f"{key}: {name} cannot be read: {reason}") from error


class MappedSource(Source):
    """A memory-mapped array; blocks are copies, and their pages are released, so that memory stays bounded."""

    def __init__(self, array: np.memmap[tuple[int, ...], DType], description: str, path: Path | None = None):
        require_table(array.shape, array.dtype, description)
        self.array, self.description, self.path = array, description, path
        self.shape, self.dtype = (array.shape[0], array.shape[1]), array.dtype
        self.portable = path is not None
        self.watch = InputWatch()

    @classmethod
    def open(cls, path: Path, description: str | None = None) -> MappedSource:
        """Open an ``.npy`` file; raise `DataError` if it is not one or holds objects."""
        return cls(mapped_file(path), description or str(path), path.absolute())

    def __reduce__(self) -> tuple[object, ...]:
        if self.path is None:
            raise TypeError("a memory map without a file name cannot be sent to another process")
        return MappedSource.open, (self.path, self.description)

    @property
    def fingerprint(self) -> str:
        """Return a hash of shape, dtype, and size and time of the file where it is known."""
        place = self.path or getattr(self.array, "filename", None)
        stat = Path(place).stat() if place else None
        identity = (
            f"{self.shape}{self.dtype}{self.description}{(stat.st_size, stat.st_mtime_ns) if stat else id(self.array)}"
        )
        return xxhash.xxh3_128(identity.encode()).hexdigest()

    def version(self) -> InputVersion | None:
        """Return size and modification time of the file."""
        place = self.path or getattr(self.array, "filename", None)
        return None if place is None else InputVersion.of(files(place, [""]))

    def by_features(self) -> MappedSource:
        """Return a source whose rows are the features of this one; it stays in this process."""
        turned = MappedSource(self.array.T, self.description)
        turned.watch = self.watch
        return turned

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return a copy of the rows, in `out` if given."""
        if out is None:
            out = np.empty((stop - start, self.shape[1]), dtype=self.dtype)
        copy_mapped(self.array, self.array[start:stop], out)
        return out, ReadCount(0, out.nbytes, out.nbytes)
