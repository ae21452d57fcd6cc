"""Where the column chunks of a Parquet file lie, and their nulls, by the bytes of its footer.

pyarrow tells that, too, but ends the process on some damaged footers (26.0: 11 of 6,000 with up to four random bytes, by statistics of
sizes that nobody has asked for). A footer is a struct of Thrift in the compact protocol (thrift.apache.org, "Thrift compact protocol
encoding"), whose fields ``parquet.thrift`` of the format of Parquet numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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
