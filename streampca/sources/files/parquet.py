"""Rows of Parquet files, by pyarrow: a row group, decoded slab by slab, is what a chunk is in other formats."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import DamagedChunkError, DataError, NotAvailableError
from streampca.formatting import one_line
from streampca.labels import Labels
from streampca.sources.base import ReadCount
from streampca.sources.files.fragments import FragmentReader, damage_named
from streampca.sources.files.parquet_schema import (
    NUMBERS,
    Column,
    columns_of,
    is_decimal,
    labels_of,
    require_same_columns,
)
from streampca.sources.files.records import Fragment
from streampca.sources.options import ReadOptions
from streampca.storage.regular_files import require_regular
from streampca.system.optional import optional_module
from streampca.typing import Array, DType

if TYPE_CHECKING:
    from pyarrow import Array as ArrowArray
    from pyarrow.parquet import FileMetaData, ParquetFile


_SLAB_BYTES, _BUFFER_BYTES = 2**22, 2**20
_naming = partial(damage_named, causes="is damaged, encrypted or cut short (write it again)")
_DECODING_FACTOR = 10
"""Memory that pyarrow takes to decode a slab, as a multiple of its size."""
_MOST_IDS = 2**27  # bytes

_last = threading.local()  # the file that was read last, and a row group of which a read needed only the first rows


class ParquetReader(FragmentReader):
    """Reads rows of a Parquet file."""

    edges: tuple[int, ...]
    """First rows of its row groups and the end of the last."""

    def __init__(self, path: Path, columns: Sequence[Column], dtype: DType, metadata: FileMetaData):
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        self.path, self.columns, self.dtype = path.absolute(), tuple(columns), dtype
        self.edges = tuple(np.cumsum([0, *(group.num_rows for group in groups)]).tolist())
        self.shape = (self.edges[-1], sum(column.n_features for column in columns))
        self.column_major = not any(column.width for column in columns)
        self.record = Fragment.of(path, self.shape, dtype)
        self.stored = tuple(self._stored(group.num_rows, group.total_byte_size) for group in groups)

    def _stored(self, n_rows: int, n_bytes: int) -> int:
        """Return about how many bytes of the file hold the columns of a row group of `n_bytes` before compression.

        Not from the metadata of its columns: pyarrow ends the process on damaged ones.
        """
        wanted = n_rows * sum(column.n_features * column.dtype.itemsize for column in self.columns)
        share = min(1.0, wanted / max(1, n_bytes))
        return int(self.record.n_bytes * share * n_rows / max(1, self.shape[0]))

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of a row group of which a block needs some rows, and of what pyarrow holds while it decodes one."""
        largest = max((stop - start for start, stop in pairwise(self.edges)), default=0)
        column = largest * self.dtype.itemsize if self.column_major else 0
        return largest * self.shape[1] * self.dtype.itemsize + _DECODING_FACTOR * max(_SLAB_BYTES, column)

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out` with rows `start` to `stop`; a row group that holds some of them is decoded as a whole."""
        count = ReadCount()
        index = int(np.searchsorted(self.edges, start, "right")) - 1
        while start < stop:
            first, last = self.edges[index : index + 2]
            end = min(stop, last)
            target = out[len(out) - (stop - start) :][: end - start]
            if (start, end) == (first, last) and start < end:
                count += self._decode(index, target)
            elif start < end:
                rows, cost = self._decoded(index, keep=end < last)
                target[...] = rows[start - first : end - first]
                count += cost
            start, index = end, index + 1
        return count

    def _decoded(self, index: int, *, keep: bool) -> tuple[Array, ReadCount]:
        """Return the rows of a row group, which this thread may have decoded for the read before."""
        key, count = (str(self.path), index, self.record.modified), ReadCount()
        known: tuple[object, Array] | None = getattr(_last, "rows", None)
        _last.rows = None
        if known is None or known[0] != key:
            del known
            shape = (self.edges[index + 1] - self.edges[index], self.shape[1])
            rows = np.empty(shape, dtype=self.dtype, order="F" if self.column_major else "C")
            count = self._decode(index, rows)
            known = (key, rows)
        _last.rows = known if keep else None
        return known[1], count

    def _decode(self, index: int, out: Array) -> ReadCount:
        """Write a row group to `out`: numbers a few columns after the other, lists a few rows after the other."""
        with _naming(f"{self.record.name}: row group {index}"):
            file = _file(self.path)
            if self.column_major:
                self._decode_columns(file, index, out)
            else:
                self._decode_rows(file, index, out)
        return ReadCount(1, out.nbytes, self.stored[index])

    def _decode_columns(self, file: ParquetFile, index: int, out: Array) -> None:
        at_once = max(1, _SLAB_BYTES // (len(out) * self.dtype.itemsize + 1))
        for first in range(0, len(self.columns), at_once):
            some = self.columns[first : first + at_once]
            table = file.read_row_group(index, columns=[column.name for column in some], use_threads=False)
            self._require_rows(index, table.num_rows, len(out))
            for place, column in enumerate(some, start=first):
                row = 0
                for chunk in table.column(column.name).chunks:
                    _numbers(chunk, column, out[row : row + len(chunk), place], self.record.name)
                    row += len(chunk)

    def _decode_rows(self, file: ParquetFile, index: int, out: Array) -> None:
        at_once = max(1, _SLAB_BYTES // (self.shape[1] * self.dtype.itemsize))
        names = [column.name for column in self.columns]
        row = 0
        for batch in file.iter_batches(at_once, row_groups=[index], columns=names, use_threads=False):
            if row + len(batch) > len(out):
                break
            at, target = 0, out[row : row + len(batch)]
            for column in self.columns:
                _write(batch.column(column.name), column, target[:, at : at + column.n_features], self.record.name)
                at += column.n_features
            row += len(batch)
        self._require_rows(index, row, len(out))

    def _require_rows(self, index: int, n_rows: int, expected: int) -> None:
        if n_rows != expected:
            raise DamagedChunkError(
                f"{self.record.name}: row group {index} holds {n_rows:,} rows, and {expected:,} by the footer: write it again"
            )


def _write(chunk: ArrowArray, column: Column, out: Array, name: str) -> None:
    """Write an array of Arrow to `out`, ``(n, n_features)``; NaN for nulls."""
    if not column.width:
        _numbers(chunk, column, out[:, 0], name)
        return
    if not chunk.null_count:
        flat = _flat(chunk, column, name)
        if not flat.null_count:
            out[...] = _plain(flat).reshape(out.shape)
            return
        values = np.empty(out.size, dtype=out.dtype)
        _numbers(flat, column, values, name)
        out[...] = values.reshape(out.shape)
        return
    present = _plain(chunk.is_valid())
    _refuse_nulls(out.dtype, column, name)
    out[~present] = np.nan
    rows = np.empty((int(present.sum()), out.shape[1]), dtype=out.dtype)
    _write(chunk.drop_null(), column, rows, name)
    out[present] = rows


def _flat(chunk: ArrowArray, column: Column, name: str) -> ArrowArray:
    """Return the numbers of lists that are not null, all of the width of the column."""
    width = column.width or 0
    if not column.type.startswith("fixed_size_list"):
        lengths = _plain(chunk.value_lengths())
        wrong = np.flatnonzero(lengths != width)
        if len(wrong):
            raise DataError(
                f"{name}: column {column.name} has lists of different lengths: {int(lengths[wrong[0]]):,} numbers in one, and {width:,} "
                "in the first; write lists of one length"
            )
    flat = chunk.flatten()
    if len(flat) != len(chunk) * width:
        raise DamagedChunkError(f"{name}: column {column.name} holds {len(flat):,} numbers in {len(chunk):,} lists")
    return flat


def _numbers(chunk: ArrowArray, column: Column, out: Array, name: str) -> None:
    """Write numbers to `out`, ``(n,)``; NaN for nulls."""
    if not chunk.null_count:
        out[...] = _plain(chunk)
        return
    _refuse_nulls(out.dtype, column, name)
    out[...] = _plain(chunk)
    out[_plain(chunk.is_null())] = np.nan


def _plain(numbers: ArrowArray) -> Array:
    """Return an array of numbers of Arrow as numpy sees its memory; any value where it is null.

    Not by ``to_numpy``, which imports pandas where that is installed.
    """
    if is_decimal(str(numbers.type)):
        numbers = numbers.cast("float64")
    memory, start, stop = numbers.buffers()[1], numbers.offset, numbers.offset + len(numbers)
    dtype = NUMBERS[str(numbers.type)]
    if memory is None or start == stop:
        return np.empty(0, dtype=dtype)
    if dtype == "bool":
        return np.unpackbits(np.frombuffer(memory, dtype=np.uint8), count=stop, bitorder="little")[start:].view(
            np.bool_
        )
    return np.frombuffer(memory, dtype=dtype, count=stop)[start:]


def _refuse_nulls(dtype: DType, column: Column, name: str) -> None:
    if dtype.kind != "f":
        raise DataError(
            f"{name}: column {column.name} of {column.dtype} has nulls that the statistics of the file do not count, so the table has "
            f"dtype {dtype}, which holds no NaN: write the column as float64, or write statistics"
        )


def open_parquet_files(paths: Sequence[Path], options: ReadOptions, label: str) -> tuple[list[ParquetReader], Labels]:
    """Return readers of Parquet files with the same columns, and the labels of their rows; reads footers, and ids if asked.

    Raises
    ------
    DataError
        If a file is damaged, or its columns are not numbers or not those of the first file.
    NotAvailableError
        If pyarrow is not installed.
    """
    names, files = _names(options), [(path, opened_file(path)) for path in paths]
    first = files[0][1]
    columns = columns_of(first.schema_arrow, names, options.id_column, str(paths[0]))
    columns = [_with_width(column, files) for column in columns]
    for path, file in files[1:]:
        require_same_columns(
            file.schema_arrow, columns, names is None, first.schema_arrow.names, str(path), str(paths[0])
        )
    with _naming(label):
        nulls = any(_has_nulls(file.metadata, column.name) for column in columns for _, file in files)
    dtype = _common(columns, nulls)
    readers = []
    for path, file in files:
        with _naming(str(path)):
            readers.append(ParquetReader(path, columns, dtype, file.metadata))
    ids = zone = None
    if options.id_column is not None:
        ids = values_of(files, options.id_column, "id column")
        zone = getattr(first.schema_arrow.field(options.id_column).type, "tz", None)
    for _, file in files:
        file.close()
    return readers, labels_of(columns, sum(reader.shape[0] for reader in readers), options.id_column, ids, zone)


def _names(options: ReadOptions) -> tuple[str, ...] | None:
    """Return the columns that are named, None for all."""
    if options.columns is not None and (options.array or options.variables):
        raise NotAvailableError(
            "columns and array or variables were given: a Parquet file has columns, so leave the others out"
        )
    return options.columns if isinstance(options.columns, tuple) else None


def _common(columns: Sequence[Column], nulls: bool) -> DType:
    """Return the data type that holds the numbers of all columns, and NaN if there are nulls."""
    dtype = np.result_type(*(column.dtype for column in columns))
    if nulls and dtype.kind != "f":
        return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
    return dtype


def _has_nulls(metadata: FileMetaData, name: str) -> bool:
    """Return whether a column of integers has nulls, as far as the statistics tell; for floats it does not matter."""
    schema = metadata.schema
    leaves = [i for i in range(len(schema)) if (path := schema.column(i).path) == name or path.startswith(f"{name}.")]
    leaves = [i for i in leaves if schema.column(i).physical_type not in ("FLOAT", "DOUBLE", "FIXED_LEN_BYTE_ARRAY")]
    for group in range(metadata.num_row_groups if leaves else 0):
        for leaf in leaves:
            statistics = metadata.row_group(group).column(leaf).statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                return True
    return False


def _with_width(column: Column, files: Sequence[tuple[Path, ParquetFile]]) -> Column:
    """Return the column with the length of its first list where the schema does not say it."""
    if column.width is not None:
        if column.width == 0 and column.type.startswith("fixed_size_list"):
            raise DataError(f"{files[0][0]}: column {column.name} has lists of no numbers")
        return column
    for path, file in files:
        with _naming(str(path)):
            for batch in file.iter_batches(64, columns=[column.name], use_threads=False):
                lengths = batch.column(column.name).drop_null().value_lengths()
                if len(lengths):
                    width = int(lengths[0].as_py())
                    if width == 0:
                        raise DataError(f"{path}: column {column.name} begins with an empty list: expected numbers")
                    return Column(column.name, column.type, column.dtype, width)
    raise DataError(f"{files[0][0]}: column {column.name} has no list that is not null")


def values_of(files: Sequence[tuple[Path, ParquetFile]], name: str, kind: str = "column") -> Array:
    """Return the values of a column that is no feature, of all files; messages call it the `kind` `name`.

    Times with a time zone are those of UTC in an id column, those of its clocks in others.
    """
    parts: list[Array] = []
    for path, file in files:
        if name not in file.schema_arrow.names:
            raise DataError(f"{path} has no {kind} {name}, which {files[0][0]} has: expected it in every file")
        with _naming(str(path)):
            column = file.read(columns=[name], use_threads=False).column(name)
            if column.null_count:
                raise DataError(
                    f"{path}: the {kind} {name} has {column.null_count:,} nulls: expected a name for every row"
                )
            text = str(column.type) in ("string", "large_string", "string_view") or str(column.type).startswith(
                "dictionary"
            )
            if kind == "column" and getattr(column.type, "tz", None) is not None:
                column = optional_module("pyarrow.compute", "Parquet", "arrow").local_timestamp(column)
            values = np.array(column.to_pylist(), dtype=str) if text else column.to_numpy()
        if values.dtype.kind not in "biufMmU":
            raise DataError(f"{path}: the {kind} {name} has the type {column.type}: expected text, numbers or times")
        if parts and _kind_of(values) != _kind_of(parts[0]):
            raise DataError(
                f"{path}: the {kind} {name} holds {_kind_of(values)}, and that of {files[0][0]} {_kind_of(parts[0])}: expected one "
                "type in all files"
            )
        parts.append(values)
        if sum(part.nbytes for part in parts) > _MOST_IDS:
            raise DataError(f"{path}: the {kind} {name} takes more than {_MOST_IDS:,} bytes: leave it out")
    return np.concatenate(parts)


def _kind_of(values: Array) -> str:
    """Return what sort of values an array holds; those of one sort have a common data type."""
    return {"U": "text", "M": "times", "m": "durations"}.get(values.dtype.kind, "numbers")


def opened_file(path: Path) -> ParquetFile:
    """Return a Parquet file, of which only the footer is read."""
    parquet = optional_module("pyarrow.parquet", "Parquet", "arrow")
    try:
        require_regular(path)
    except OSError as error:
        raise DataError(f"{path} cannot be opened: {error.strerror or error}") from error
    try:
        return parquet.ParquetFile(
            path, memory_map=False, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True
        )
    except Exception as error:
        raise DataError(f"{path} cannot be opened as Parquet: {_why(path, error)}") from error


def _file(path: Path) -> ParquetFile:
    """Return a file that this thread may have opened for the read before."""
    status = os.stat(path)
    key = (str(path), status.st_size, status.st_mtime_ns)
    known = getattr(_last, "file", None)
    if known is None or known[0] != key:
        _last.file = known = (key, opened_file(path))
    return known[1]


def _why(path: Path, error: Exception) -> str:
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
    if b"PARE" in (head, tail):
        return "its footer is encrypted; decrypt it first"
    if head != b"PAR1":
        return "it does not begin like one"
    return "it is cut short, or its end is damaged; write it again" if tail != b"PAR1" else one_line(error)
