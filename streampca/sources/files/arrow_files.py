"""Parquet files, and Arrow files of the formats for files (Feather) and for streams, behind one interface; pyarrow decodes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from streampca.errors import DataError, StreamPCAError
from streampca.formatting import one_line
from streampca.sources.files.records import StoredFile
from streampca.sources.grid import Span
from streampca.system.optional import optional_module

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, RecordBatch, Schema


_ROW_GROUPS, _COLUMNS, _METADATA = 4, 1, 3  # of FileMetaData, RowGroup and ColumnChunk
_SIZE, _DATA_PAGE, _DICTIONARY_PAGE, _STATISTICS = 7, 9, 11, 12  # of ColumnMetaData
_NULL_COUNT = 3  # of Statistics
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_MOST_VARINT = 10  # bytes


class ColumnChunk(NamedTuple):
    """The pages of one column in one row group."""

    start: int
    """Their first byte in the file."""
    stop: int
    """The byte behind their last."""
    n_nulls: int | None
    """Nulls that the statistics count; None where they count none, so that there may be some."""


def row_groups(footer: bytes) -> Iterator[list[ColumnChunk]]:
    """Yield the column chunks of each row group, in the order of the leaves of the schema; `ValueError` if the footer is damaged."""
    reader = _Reader(footer)
    try:
        for _ in reader.structs_of(_ROW_GROUPS):
            yield [_column_chunk(reader) for _ in reader.structs_of(_COLUMNS)]
    except (IndexError, RecursionError):
        raise ValueError("its metadata are damaged") from None


def _column_chunk(reader: _Reader) -> ColumnChunk:
    numbers = {_SIZE: 0, _DATA_PAGE: 0, _DICTIONARY_PAGE: 0}
    n_nulls = None
    for field, kind in reader.fields():
        if (field, kind) != (_METADATA, _STRUCT):
            reader.skip(kind)
            continue
        for inner, inner_kind in reader.fields():
            if inner in numbers and inner_kind == _I64:
                numbers[inner] = reader.number()
            elif (inner, inner_kind) == (_STATISTICS, _STRUCT):
                n_nulls = reader.numbers().get(_NULL_COUNT)
            else:
                reader.skip(inner_kind)
    start = numbers[_DATA_PAGE]
    if 0 < numbers[_DICTIONARY_PAGE] < start:
        start = numbers[_DICTIONARY_PAGE]
    return ColumnChunk(start, start + numbers[_SIZE], n_nulls)


class _Reader:
    """Reads structs from first to last; `IndexError` behind the end."""

    def __init__(self, memory: bytes):
        self._memory, self._at = memory, 0

    def number(self) -> int:
        """Return an integer with a sign (in zigzag)."""
        value, self._at = _varint(self._memory, self._at)
        return (value >> 1) ^ -(value & 1)

    def skip(self, kind: int) -> None:
        """Pass over a value of a type."""
        self._at = _behind(self._memory, self._at, kind)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield numbers and types of the fields of a struct, whose values the caller reads or skips."""
        field = 0
        while head := self._memory[self._at]:
            self._at += 1
            field = field + (head >> 4) if head > 15 else self.number()
            yield field, head & 15
        self._at += 1

    def numbers(self) -> dict[int, int]:
        """Return the integers of 64 bits in a struct."""
        found = {}
        for field, kind in self.fields():
            if kind == _I64:
                found[field] = self.number()
            else:
                self.skip(kind)
        return found

    def structs_of(self, wanted: int) -> Iterator[int]:
        """Yield the index of each struct in the list that is a field of a struct, for the caller to read; pass over other fields."""
        for field, kind in self.fields():
            if (field, kind) != (wanted, _LIST):
                self.skip(kind)
                continue
            n, element, self._at = _elements(self._memory, self._at)
            if n and element != _STRUCT:
                raise ValueError("its metadata are damaged")
            yield from range(n)


def _varint(memory: bytes, at: int) -> tuple[int, int]:
    """Return an integer without sign, and the place behind it."""
    value = 0
    for index in range(_MOST_VARINT):
        byte = memory[at + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, at + index + 1
    raise ValueError("its metadata are damaged")


def _elements(memory: bytes, at: int) -> tuple[int, int, int]:
    """Return number and type of the elements of a list, and where the first begins."""
    head, at = memory[at], at + 1
    n, at = _varint(memory, at) if head >> 4 == 15 else (head >> 4, at)
    return n, head & 15, at


def _behind(memory: bytes, at: int, kind: int) -> int:
    """Return the place behind the value of a field."""
    if _I16 <= kind <= _I64:
        while memory[at] > 127:
            at += 1
        return at + 1
    if kind == _BINARY:
        n_bytes, at = _varint(memory, at)
        return at + n_bytes
    if kind == _STRUCT:
        while head := memory[at]:
            at = _behind(memory, at + 1, _I16) if head < 16 else at + 1
            at = _behind(memory, at, head & 15)
        return at + 1
    if kind in (_LIST, _SET):
        n, element, at = _elements(memory, at)
        return _behind_all(memory, at, n, (element,))
    if kind == _MAP:
        n, at = _varint(memory, at)
        return _behind_all(memory, at + 1, n, (memory[at] >> 4, memory[at] & 15)) if n else at
    if kind in (_TRUE, _FALSE):  # which the type says
        return at
    if kind in (_BYTE, _DOUBLE):
        return at + (1 if kind == _BYTE else 8)
    raise ValueError("its metadata are damaged")


def _behind_all(memory: bytes, at: int, n: int, kinds: tuple[int, ...]) -> int:
    """Return the place behind `n` values of some types, one after another; truth values take a byte there."""
    for _ in range(n):
        for kind in kinds:
            at = _behind(memory, at, _BYTE if kind in (_TRUE, _FALSE) else kind)
            if at > len(memory):
                raise IndexError
    return at


_BUFFER_BYTES = 2**20
_HOLE_BYTES = 2**18  # between two parts of a chunk that are requested as one
_MOST_AT_ONCE = 2**31  # bytes of a record batch of which a column is read before there is a plan
_SCHEMA, _BATCH = 1, 3
_MAGIC = b"ARROW1\0\0"
_END_BYTES = 10
"""The length of the footer, and the magic bytes without padding."""

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

    @abstractmethod
    def spans(self, columns: Sequence[str]) -> Iterator[list[Span]]:
        """Yield where in the file the bytes are that decoding some columns of a chunk reads, in order, chunk by chunk."""

    def counts_nulls(self, columns: Sequence[str]) -> bool:
        """Return whether some columns of integers have nulls, or may have some, as far as the description tells."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class ParquetFile(ArrowFile):
    """A Parquet file, whose row groups are decoded slab by slab."""

    chunk_name = "row group"

    def __init__(self, file: StoredFile):
        parquet = optional_module("pyarrow.parquet", "Parquet", "arrow")
        self._place = file
        self._file = parquet.ParquetFile(
            file.for_arrow(),
            memory_map=False,
            pre_buffer=False,
            buffer_size=_BUFFER_BYTES,
            page_checksum_verification=True,
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

    def counts_nulls(self, columns: Sequence[str]) -> bool:
        """Return whether the statistics of some columns count nulls, or columns that may have some have no statistics.

        For floats it does not matter.
        """
        schema, floats = self._file.metadata.schema, ("FLOAT", "DOUBLE", "FIXED_LEN_BYTE_ARRAY")
        columns_of = {leaf: schema.column(leaf) for leaf in self._leaves(columns)}
        leaves = [
            leaf
            for leaf, column in columns_of.items()
            if column.physical_type not in floats and column.max_definition_level > 0
        ]
        return bool(leaves) and any(group[leaf].n_nulls != 0 for group in self._row_groups() for leaf in leaves)

    def spans(self, columns: Sequence[str]) -> Iterator[list[Span]]:
        """Yield where the pages of some columns are, row group by row group."""
        leaves, n_bytes = self._leaves(columns), self._place.status().n_bytes
        for group in self._row_groups():
            found = [(group[leaf].start, group[leaf].stop) for leaf in leaves]
            if not all(0 <= start <= stop <= n_bytes for start, stop in found):
                raise ValueError("its metadata are damaged")
            yield _joined(found)

    def _row_groups(self) -> Iterator[list[ColumnChunk]]:
        """Yield the column chunks of each row group; `ValueError` unless there is one for each leaf of the schema."""
        n_bytes = self._place.status().n_bytes
        (length,) = self._place.pieces([(n_bytes - 8, n_bytes - 4)])
        end = n_bytes - 8
        (footer,) = self._place.pieces([(end - int.from_bytes(length, "little"), end)])
        n_leaves, n_groups = len(self._file.metadata.schema), 0
        for group in row_groups(footer):
            if len(group) != n_leaves:
                raise ValueError("its metadata are damaged")
            n_groups += 1
            yield group
        if n_groups != len(self.rows):
            raise ValueError("its metadata are damaged")

    def _leaves(self, columns: Sequence[str]) -> list[int]:
        """Return the numbers of the columns of the format that hold some columns."""
        schema, wanted = self._file.metadata.schema, frozenset(columns)
        paths = [schema.column(leaf).path.split(".") for leaf in range(len(schema))]
        names = "{}.{}".format  # a name of a column may have dots, too
        return [leaf for leaf, parts in enumerate(paths) if not wanted.isdisjoint(accumulate(parts, names))]

    def close(self) -> None:
        """Close the file."""
        self._file.close(force=True)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Return ranges in order, those with small holes between them as one, without those of no bytes, of columns without rows."""
    joined: list[Span] = []
    for start, stop in sorted(span for span in spans if span[0] < span[1]):
        if joined and start - joined[-1][1] <= _HOLE_BYTES:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return joined


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

    def __init__(self, file: StoredFile):
        pa = optional_module("pyarrow", "Arrow files", "arrow")
        self._ipc, self._buffer = pa.ipc, pa.py_buffer
        self._place, self._file = file, file.for_arrow()
        self._messages = list(self._headers(file.status().n_bytes))
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
        start, footer = 0, size
        if self._file.read(len(_MAGIC)) == _MAGIC:  # the format for files, which end with a footer and its length
            start = len(_MAGIC)
            self._file.seek(max(start, size - _END_BYTES))
            footer = size - _END_BYTES - int.from_bytes(self._file.read(4), "little", signed=True)
        while start + 8 <= size:
            self._file.seek(start)
            head = self._file.read(8)
            n_before = 8 if head[:4] == b"\xff\xff\xff\xff" else 4  # Arrow before 0.15 writes the length alone
            length = int.from_bytes(head[n_before - 4 : n_before], "little", signed=True)
            if length == 0 or (n_before == 4 and start >= footer):
                return
            if not 0 < length <= size - start - n_before:
                raise ValueError("it is cut short")
            self._file.seek(start + n_before)
            header = _Table.root(self._file.read(length))
            body = start + n_before + length
            stop = body + header.number(3, 8)
            if not body <= stop <= size:
                raise ValueError("it is cut short")
            kind, content = header.number(1, 1), header.table(2)
            n_rows = n_bytes = 0
            nulls: tuple[int, ...] = ()
            if kind == _BATCH and content is not None:
                n_rows = content.number(0, 8)
                compressed = content.table(3) is not None
                buffers = [(body + offset, stored) for offset, stored in content.pairs(2)]
                n_bytes = sum(self._declared(buffers, size)) if compressed else sum(stored for _, stored in buffers)
                nulls = tuple(count for _, count in content.pairs(1))
                if not 0 <= n_rows <= 8 * n_bytes:
                    raise ValueError("its metadata are damaged")
            yield _Message(kind, start, stop, n_rows, n_bytes, nulls)
            start = stop

    def _declared(self, buffers: Sequence[Span], size: int) -> Iterator[int]:
        """Yield the sizes of compressed buffers, which they begin with; -1 stands for one that is stored as it is."""
        if any(start < 0 or start + stored > size for start, stored in buffers):
            raise ValueError("its metadata are damaged")
        long = [(start, stored) for start, stored in buffers if stored >= 8]
        yield from (stored for _, stored in buffers if stored < 8)
        for (_, stored), begin in zip(long, self._place.pieces([(at, at + 8) for at, _ in long]), strict=True):
            declared = int.from_bytes(begin, "little", signed=True)
            yield stored if declared < 0 else declared

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

    def spans(self, columns: Sequence[str]) -> Iterator[list[Span]]:
        """Yield where each record batch is, which is read as a whole."""
        return ([(batch.start, batch.stop)] for batch in self._batches)

    def counts_nulls(self, columns: Sequence[str]) -> bool:
        """Return whether batches count nulls in some columns."""
        first = 0
        for field in self.schema:
            n = _n_nodes(field.type)
            known = any(any(batch.nulls[first : first + n]) for batch in self._batches)
            if field.name in columns and (known or "dictionary" in str(field.type)):  # which may hold nulls itself
                return True
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


def opened_file(file: StoredFile, *, keep: bool = False) -> ArrowFile:
    """Return a file of which only the description is read.

    With `keep`, it stays open in this thread until another one is opened so.

    Raises
    ------
    DataError
        If it cannot be read.
    NotAvailableError
        If pyarrow is not installed.
    """
    key = (str(file), file.status()) if keep else None
    known: tuple[object, ArrowFile] | None = getattr(_last, "file", None)
    if keep and known is not None and known[0] == key:
        return known[1]
    is_parquet = file.parts[-1].lower().endswith((".parquet", ".pq"))
    optional_module("pyarrow", "Parquet" if is_parquet else "Arrow files", "arrow")
    try:
        file.status()
    except OSError as error:
        raise DataError(f"{file} cannot be opened: {error.strerror or error}") from error
    try:
        opened = ParquetFile(file) if is_parquet else IpcFile(file)
    except StreamPCAError:
        raise
    except Exception as error:
        kind = "Parquet" if is_parquet else "an Arrow file"
        raise DataError(f"{file} cannot be opened as {kind}: {_why(file, error, is_parquet)}") from error
    if keep:
        _last.file = (key, opened)
    return opened


def _why(file: StoredFile, error: Exception, is_parquet: bool) -> str:
    """Return the reason why a file cannot be opened."""
    try:
        n_bytes = file.status().n_bytes
        head, tail = file.pieces([(0, min(4, n_bytes)), (max(0, n_bytes - 4), n_bytes)])
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
