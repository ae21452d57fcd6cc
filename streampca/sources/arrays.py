"""Rows in memory, dense or sparse, and rows of a memory-mapped file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from scipy.sparse import csr_array, hstack, issparse, vstack

from streampca.errors import DataError
from streampca.formatting import one_line
from streampca.sources.base import ReadCount, RowsOfSource, Source, as_rows, require_table
from streampca.sources.grid import Grid
from streampca.sources.versions import InputVersion, InputWatch, files
from streampca.storage.files import open_regular, require_regular
from streampca.typing import Array, DType

MAPPED_BYTES = 2**22
"""Memory for pages of a mapped file, beside the values that are read."""
_MAPPED_AROUND = 2**17
"""Bytes that the system maps around a line of values, which may begin and end within pages that it maps together."""
_BLOCK_BYTES = 32 * 2**20
_DENSE_BYTES = 4 * 2**20  # of a block of sparse rows with their zeros


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


def is_bfloat16(dtype: object) -> bool:
    """Return whether a data type is bfloat16 of ml_dtypes, which numpy does not know by itself."""
    return getattr(dtype, "name", "") == "bfloat16"


def widened(data: Any) -> Any:
    """Return an array of bfloat16 as float32, which holds all of its values; other data, and memory maps, as they are."""
    if hasattr(data, "data_vars"):
        wide = {name: widened(array) for name, array in data.data_vars.items() if is_bfloat16(array.dtype)}
        return data.assign(wide) if wide else data
    if not is_bfloat16(getattr(data, "dtype", None)) or isinstance(data, np.memmap) or not hasattr(data, "astype"):
        return data
    return data.astype(np.float32)


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


def joined(blocks: list[list[Any]]) -> csr_array:
    """Return a grid of sparse blocks as one matrix in compressed row form."""
    bands = [as_rows(band[0] if len(band) == 1 else hstack(band, format="csr")) for band in blocks]
    return as_rows(bands[0] if len(bands) == 1 else vstack(bands, format="csr"))


class SparseSource(Source):
    """A scipy sparse matrix or array; blocks are slices of it in compressed row form."""

    buffered = False
    sparse = True
    in_memory = True

    def __init__(self, matrix: Any, description: str = "sparse matrix"):
        require_table(matrix.shape, np.dtype(matrix.dtype), description)
        self.rows, self.description = as_rows(matrix), description
        self.shape, self.dtype = (int(matrix.shape[0]), int(matrix.shape[1])), np.dtype(matrix.dtype)
        # A block is given by what is stored, since that is what it takes.
        self.grid = Grid(int(max(1, min(self.shape[0], _BLOCK_BYTES // self.row_bytes))))

    @property
    def row_bytes(self) -> int:
        """Return the mean size of a row as it is stored, in bytes."""
        stored = self.rows.data.nbytes + self.rows.indices.nbytes + self.rows.indptr.nbytes
        return max(1, stored // max(1, self.shape[0]))

    @property
    def fingerprint(self) -> str:
        """Return a hash of shape, dtype and a sample of the stored values, which differs between the matrices of one session."""
        digest = xxhash.xxh3_128(f"{self.shape}{self.dtype}{self.rows.nnz}".encode())
        for stored in (self.rows.data, self.rows.indices, self.rows.indptr):
            digest.update(np.ascontiguousarray(stored[:: max(1, len(stored) // 4096)]).data)
        return digest.hexdigest()

    def reads_of(self, start: int, stop: int) -> int:
        """Return the size in bytes of rows `start` to `stop` as they are stored, in blocks of `chunk_rows`."""
        n_edges = stop - start + -(-(stop - start) // self.chunk_rows)
        n_stored = int(self.rows.indptr[stop]) - int(self.rows.indptr[start])
        each = self.rows.data.itemsize + self.rows.indices.itemsize
        return n_stored * each + n_edges * self.rows.indptr.itemsize

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of a slice, its float64 copy by columns with mostly stored columns filled, and squares."""
        return 8 * n_rows * self.row_bytes

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows, still sparse."""
        values = self.rows[start:stop]
        n_bytes = values.data.nbytes + values.indices.nbytes + values.indptr.nbytes
        return values, ReadCount(0, n_bytes, n_bytes)


class DenseRows(RowsOfSource):
    """The rows of a sparse source as dense ones, a block at a time.

    Parameters
    ----------
    source : Source
        The sparse rows.
    """

    def __init__(self, source: Source):
        super().__init__(source)
        self.sparse, self.buffered, self.in_memory = False, True, False
        # Any rows can be read alone, so a block has as many as dense ones should have.
        self.grid = Grid(max(1, min(source.chunk_rows, _DENSE_BYTES // self.row_bytes)))

    def __reduce__(self) -> tuple[object, ...]:
        return DenseRows, (self.source,)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the sparse rows, whose values these are."""
        return f"{self.source.fingerprint}-dense"

    @property
    def stored_arrays(self) -> tuple[Source, ...]:
        """Return the sources of the arrays that the rows are stored in."""
        return self.source.stored_arrays

    def describe(self) -> dict[str, object]:
        """Return the description of the sparse rows."""
        return self.source.describe()

    def slice(self, start: int, stop: int) -> DenseRows:
        """Return a source for a worker that can read rows `start` to `stop`."""
        return DenseRows(self.source.slice(start, stop))

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes that reading the sparse rows takes."""
        return self.source.overhead_bytes(n_rows)

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Any, ReadCount]:
        """Return the rows with their zeros."""
        rows: Any
        rows, count = self.source.read(start, stop)
        if out is not None and out.dtype == rows.dtype and (out.flags.c_contiguous or out.flags.f_contiguous):
            return rows.toarray(out=out), count
        dense = rows.toarray()
        if out is None:
            return dense, count
        out[...] = dense
        return out, count


def is_sparse(values: object) -> bool:
    """Return whether `values` are a sparse matrix or array of scipy."""
    return bool(issparse(values))
