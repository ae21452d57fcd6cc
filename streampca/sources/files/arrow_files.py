"""Parquet files, and Arrow files of the formats for files (Feather) and for streams, behind one interface; pyarrow decodes."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streampca.errors import DataError
from streampca.formatting import one_line
from streampca.storage.regular_files import require_regular
from streampca.system.optional import optional_module

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, RecordBatch, Schema

_BUFFER_BYTES = 2**20
_MOST_AT_ONCE = 2**31  # bytes of a record batch of which a column is read before there is a plan
_SCHEMA, _BATCH = 1, 3
_MAGIC = b"ARROW1\0\0"

_last = threading.local()  # the file that was read last


class ArrowFile(ABC):
    """A file whose rows are in chunks of several columns, of which only the description was read."""

    schema: Schema
    """Names and types of its columns."""
    rows: Sequence[int]
    """Rows of each chunk."""
    sizes: Sequence[int]
    """Bytes of all columns of each chunk, before compression."""
    chunk_name: str
    """What messages call a chunk."""
    scratch_bytes: int = 0
    """Memory in bytes that decoding some columns of a chunk takes, where it does not go slab by slab."""

    @abstractmethod
    def batches(self, index: int, columns: Sequence[str], n_rows: int) -> Iterator[RecordBatch]:
        """Yield columns of a chunk, `n_rows` rows at a time where the format allows that."""

    @abstractmethod
    def column(self, name: str) -> ChunkedArray:
        """Return a column of all rows."""

    def counts_nulls(self, name: str) -> bool:
        """Return whether a column of integers has nulls, as far as the description tells."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class ParquetFile(ArrowFile):
    """A Parquet file, whose row groups are decoded slab by slab."""

    chunk_name = "row group"

    def __init__(self, path: Path):
        parquet = optional_module("pyarrow.parquet", "Parquet", "arrow")
        self._file = parquet.ParquetFile(
            path, memory_map=False, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True
        )
        metadata = self._file.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        self.schema = self._file.schema_arrow
        self.rows, self.sizes = [group.num_rows for group in groups], [group.total_byte_size for group in groups]

    def batches(self, index: int, columns: Sequence[str], n_rows: int) -> Iterator[RecordBatch]:
        """Yield columns of a row group, `n_rows` rows at a time."""
        return iter(self._file.iter_batches(n_rows, row_groups=[index], columns=list(columns), use_threads=False))

    def column(self, name: str) -> ChunkedArray:
        """Return a column of all rows."""
        return self._file.read(columns=[name], use_threads=False).column(name)

    def counts_nulls(self, name: str) -> bool:
        """Return whether the statistics of a column count nulls; for floats it does not matter.

        The metadata of columns are asked for only here: pyarrow ends the process on some damaged ones.
        """
        metadata, schema = self._file.metadata, self._file.metadata.schema
        leaves = [
            i for i in range(len(schema)) if (path := schema.column(i).path) == name or path.startswith(f"{name}.")
        ]
        floats = ("FLOAT", "DOUBLE", "FIXED_LEN_BYTE_ARRAY")
        for leaf in (leaf for leaf in leaves if schema.column(leaf).physical_type not in floats):
            for group in range(metadata.num_row_groups):
                statistics = metadata.row_group(group).column(leaf).statistics
                if statistics is not None and statistics.has_null_count and statistics.null_count:
                    return True
        return False

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Message(NamedTuple):
    """A message of an Arrow file."""

    kind: int
    """1 for a schema, 2 for a dictionary, 3 for rows."""
    start: int
    """Its first byte in the file."""
    stop: int
    """The byte behind its last."""
    n_rows: int
    """Rows of a batch."""
    n_bytes: int
    """Bytes of its buffers before compression, as they declare it."""
    nulls: tuple[int, ...]
    """Nulls of each column and of what is in it, in the order of the schema."""


class IpcFile(ArrowFile):
    """An Arrow file of either format, whose record batches are decoded as a whole.

    Its messages are found by their headers (Arrow columnar format, "Encapsulated message format"): pyarrow counts the rows of a
    batch by reading its buffers.
    """

    chunk_name = "record batch"

    def __init__(self, path: Path):
        pa = optional_module("pyarrow", "Arrow files", "arrow")
        self._ipc, self._buffer = pa.ipc, pa.py_buffer
        self._file = pa.OSFile(str(path))
        self._messages = list(self._headers(os.stat(path).st_size))
        self._batches = [message for message in self._messages if message.kind == _BATCH]
        first = self._batches[0].start if self._batches else None
        self._before = [m for m in self._messages if m.kind != _BATCH and (first is None or m.start < first)]
        if not self._before or self._before[0].kind != _SCHEMA:
            raise ValueError("it does not begin like one")
        self.schema = self._ipc.open_stream(self._bytes(self._before)).schema
        self.rows = [message.n_rows for message in self._batches]
        self.sizes = [message.n_bytes for message in self._batches]
        self.scratch_bytes = max((m.n_bytes + m.stop - m.start for m in self._batches), default=0)

    def _headers(self, size: int) -> Iterator[_Message]:
        start = len(_MAGIC) if self._file.read(len(_MAGIC)) == _MAGIC else 0
        while start + 8 <= size:
            self._file.seek(start)
            head = self._file.read(8)
            length = int.from_bytes(head[4:], "little", signed=True)
            if head[:4] != b"\xff\xff\xff\xff" or length == 0:  # the end, or the footer of the format for files
                return
            if not 0 < length <= size - start - 8:
                raise ValueError("it is cut short")
            header = _Table.root(self._file.read(length))
            body = start + 8 + length
            stop = body + header.number(3, 8)
            if not body <= stop <= size:
                raise ValueError("it is cut short")
            kind, content = header.number(1, 1), header.table(2)
            n_rows = n_bytes = 0
            nulls: tuple[int, ...] = ()
            if kind == _BATCH and content is not None:
                n_rows = content.number(0, 8)
                compressed = content.table(3) is not None
                for offset, stored in content.pairs(2):
                    n_bytes += self._declared(body + offset, stored) if compressed and stored >= 8 else stored
                nulls = tuple(count for _, count in content.pairs(1))
                if not 0 <= n_rows <= 8 * n_bytes:
                    raise ValueError("its metadata are damaged")
            yield _Message(kind, start, stop, n_rows, n_bytes, nulls)
            start = stop

    def _declared(self, start: int, stored: int) -> int:
        """Return the size of a compressed buffer, which it begins with; -1 stands for one that is stored as it is."""
        self._file.seek(start)
        declared = int.from_bytes(self._file.read(8), "little", signed=True)
        return stored if declared < 0 else declared

    def _bytes(self, messages: Sequence[_Message]) -> Any:
        parts = []
        for message in messages:
            self._file.seek(message.start)
            parts.append(self._file.read(message.stop - message.start))
        return self._buffer(b"".join(parts) if len(parts) > 1 else parts[0])

    def _read(self, columns: Sequence[str], batches: Sequence[_Message]) -> Iterator[RecordBatch]:
        places = [self.schema.names.index(name) for name in columns]
        options = self._ipc.IpcReadOptions(included_fields=places, use_threads=False)
        for batch in batches:
            for found in self._ipc.open_stream(self._bytes([*self._before, batch]), options=options):
                found.validate(full=True)  # so that damaged offsets of lists point to nothing outside
                yield found

    def batches(self, index: int, columns: Sequence[str], n_rows: int) -> Iterator[RecordBatch]:
        """Yield columns of a record batch."""
        return self._read(columns, [self._batches[index]])

    def counts_nulls(self, name: str) -> bool:
        """Return whether batches count nulls in a column."""
        first = 0
        for field in self.schema:
            n = _n_nodes(field.type)
            if field.name == name:
                return any(any(batch.nulls[first : first + n]) for batch in self._batches)
            first += n
        return False

    def column(self, name: str) -> ChunkedArray:
        """Return a column of all rows."""
        pa = optional_module("pyarrow", "Arrow files", "arrow")
        if max(self.sizes, default=0) > _MOST_AT_ONCE:
            raise DataError(
                f"a record batch holds {max(self.sizes):,} bytes: expected at most {_MOST_AT_ONCE:,}; write more batches"
            )
        schema = pa.schema([self.schema.field(name)])
        return pa.Table.from_batches(self._read([name], self._batches), schema).column(name)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _n_nodes(kind: Any) -> int:
    """Return the number of arrays that a type of Arrow consists of, itself included."""
    kind = getattr(kind, "storage_type", kind)
    return 1 + sum(_n_nodes(kind.field(index).type) for index in range(kind.num_fields))


class _Table(NamedTuple):
    """A table of a flatbuffer (flatbuffers.dev, "Internals"), as the metadata of Arrow are stored."""

    memory: bytes
    """The buffer."""
    place: int
    """Where the table begins."""

    @classmethod
    def root(cls, memory: bytes) -> _Table:
        """Return the outermost table."""
        return cls(memory, int.from_bytes(memory[:4], "little"))

    def _field(self, number: int) -> int | None:
        """Return where a field is stored, None if it is left out."""
        names = self.place - int.from_bytes(self.memory[self.place : self.place + 4], "little", signed=True)
        slot = names + 4 + 2 * number
        if slot >= names + int.from_bytes(self.memory[names : names + 2], "little"):
            return None
        offset = int.from_bytes(self.memory[slot : slot + 2], "little")
        return self.place + offset if offset else None

    def _number_at(self, place: int, n_bytes: int) -> int:
        if not 0 <= place <= len(self.memory) - n_bytes:
            raise ValueError("its metadata are damaged")
        return int.from_bytes(self.memory[place : place + n_bytes], "little", signed=n_bytes == 8)

    def number(self, number: int, n_bytes: int) -> int:
        """Return a field that is a number, 0 if it is left out."""
        place = self._field(number)
        return 0 if place is None else self._number_at(place, n_bytes)

    def table(self, number: int) -> _Table | None:
        """Return a field that is a table, None if it is left out."""
        place = self._field(number)
        return None if place is None else _Table(self.memory, place + self._number_at(place, 4))

    def pairs(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield the pairs of a field that is a list of pairs of numbers of 8 bytes."""
        place = self._field(number)
        if place is None:
            return
        place += self._number_at(place, 4)
        for index in range(self._number_at(place, 4)):
            pair = place + 4 + 16 * index
            yield self._number_at(pair, 8), self._number_at(pair + 8, 8)


def opened_file(path: Path, *, keep: bool = False) -> ArrowFile:
    """Return a file of which only the description is read.

    With `keep`, it stays open in this thread until another one is opened so.

    Raises
    ------
    DataError
        If it cannot be read.
    NotAvailableError
        If pyarrow is not installed.
    """
    if not keep:
        return _opened(path)
    status = os.stat(path)
    key = (str(path), status.st_size, status.st_mtime_ns)
    known: tuple[object, ArrowFile] | None = getattr(_last, "file", None)
    if known is None or known[0] != key:
        _last.file = known = (key, _opened(path))
    return known[1]


def _opened(path: Path) -> ArrowFile:
    try:
        require_regular(path)
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror or error}") from error
    is_parquet = path.name.lower().endswith((".parquet", ".pq"))
    optional_module("pyarrow", "Parquet" if is_parquet else "Arrow files", "arrow")
    try:
        return ParquetFile(path) if is_parquet else IpcFile(path)
    except Exception as error:
        kind = "Parquet" if is_parquet else "an Arrow file"
        raise DataError(f"{path} cannot be opened as {kind}: {_why(path, error, is_parquet)}") from error


def _why(path: Path, error: Exception, is_parquet: bool) -> str:
    """Return the reason why a file cannot be opened."""
    try:
        with open(path, "rb") as file:
            head = file.read(4)
            file.seek(-min(4, os.fstat(file.fileno()).st_size), os.SEEK_END)
            tail = file.read(4)
    except OSError:
        return one_line(error)
    if not head:
        return "it is empty"
    if not is_parquet:
        return one_line(error)
    if b"PARE" in (head, tail):
        return "its footer is encrypted; decrypt it first"
    if head != b"PAR1":
        return "it does not begin like one"
    return "it is cut short, or its end is damaged; write it again" if tail != b"PAR1" else one_line(error)
