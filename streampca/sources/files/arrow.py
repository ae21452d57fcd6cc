"""Rows of Parquet and Arrow (IPC, Feather) files, by pyarrow: a row group or record batch, decoded slab by slab, is what a chunk is in other formats."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from streampca.errors import DamagedChunkError, DataError
from streampca.labels import Dimension, Labels, SampleColumns
from streampca.sources.base import ReadCount
from streampca.sources.features import Column, chosen_columns, common_type, feature_error, labels_of
from streampca.sources.files.arrow_files import ArrowFile, opened_file
from streampca.sources.files.fragments import FragmentReader, damage_named
from streampca.sources.files.paths import Files, partition_keys
from streampca.sources.files.records import Fragment, StoredFile
from streampca.sources.formats import ReadOptions
from streampca.sources.grid import Span
from streampca.system.optional import optional_module
from streampca.typing import Array, DType

if TYPE_CHECKING:
    from pyarrow import Array as ArrowArray
    from pyarrow import Schema, Table

_SLAB_BYTES = 2**22
_DECODING_FACTOR = 10
"""Memory that pyarrow takes to decode a slab, as a multiple of its size."""
_MOST_IDS = 2**27  # bytes
_OPENED_AT_ONCE = 8  # files behind URLs
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_NUMBERS = {
    **{name: name for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    **{"halffloat": "float16", "float": "float32", "double": "float64"},
}
"""numpy's names of the types of Arrow that are numbers."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Raise errors of pyarrow as `DamagedChunkError`, also of memory that damaged metadata ask for."""
    with damage_named(what, "is damaged, encrypted or cut short (write it again)"):
        try:
            yield
        except MemoryError as error:
            if type(error) is MemoryError:
                raise
            raise ValueError(str(error)) from error


_last = threading.local()  # a chunk of which a read needed only the first rows


# --- columns of a schema, and their numbers ----------------------------------------------------------------------------


def columns_of(schema: Schema) -> dict[str, Column]:
    """Return the columns of a schema of Arrow by their names."""
    columns: dict[str, Column] = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name in columns:
            columns[name] = Column(name, "a name of several columns", None)
            continue
        text, inner = str(kind), kind
        shape: tuple[int, ...] | None = ()
        if getattr(kind, "extension_name", "") == "arrow.fixed_shape_tensor":
            inner, shape = kind.value_type, tuple(kind.shape)
        while str(inner).startswith("fixed_size_list"):
            inner, shape = inner.value_type, (*(shape or ()), int(inner.list_size))
        if text.startswith(("list<", "large_list<")):
            inner, shape = kind.value_type, None
        elif text.startswith("dictionary<"):
            inner = kind.value_type
        dtype = "float64" if str(inner).startswith("decimal") else _NUMBERS.get(str(inner))
        columns[name] = Column(name, text, None if dtype is None else np.dtype(dtype), shape)
    return columns


def values_of_table(table: Table, columns: Sequence[Column]) -> tuple[Array, list[tuple[int, ...]]]:
    """Return columns of a table in memory as one array, ``(n_rows, n_features)``, NaN for nulls, and the shape of each."""
    label = "the table"
    columns = [
        column if column.shape is not None else _with_width(column, label, table.column(column.name).chunks)
        for column in columns
    ]
    nulls = any(_nulls_in(table.column(column.name)) for column in columns)
    dtype, width = common_type(columns, nulls=nulls), sum(column.n_features for column in columns)
    turned = not any(column.shape for column in columns)
    out, at = np.empty((table.num_rows, width), dtype=dtype, order="F" if turned else "C"), 0
    for column in columns:
        row = 0
        for chunk in table.column(column.name).chunks:
            _write(chunk, column, out[row : row + len(chunk), at : at + column.n_features], label)
            row += len(chunk)
        at += column.n_features
    return out, [column.shape or () for column in columns]


def _nulls_in(column: Any) -> bool:
    """Return whether there are nulls in a chunked array or in its lists."""
    return any(
        chunk.null_count
        or (hasattr(chunk, "dictionary") and chunk.dictionary.null_count)
        or (hasattr(chunk, "flatten") and _nulls_in([chunk.flatten()]))
        for chunk in getattr(column, "chunks", column)
    )


def _with_width(column: Column, label: str, chunks: Any) -> Column:
    """Return a column of lists with the length of the first of them."""
    for chunk in chunks:
        lengths = chunk.drop_null().value_lengths()
        if len(lengths):
            width = int(lengths[0].as_py())
            if width == 0:
                raise DataError(f"{label}: column {column.name} begins with an empty list: expected numbers")
            return replace(column, shape=(width,))
    raise DataError(f"{label}: column {column.name} has only null lists")


def _write(chunk: ArrowArray, column: Column, out: Array, name: str) -> None:
    """Write an array of Arrow to `out`, ``(n, n_features)``; NaN for nulls."""
    shape = column.shape or ()
    if hasattr(chunk, "dictionary_decode"):
        chunk = chunk.dictionary_decode()
    if not shape:
        out[:, 0] = _plain(chunk)
        if chunk.null_count:
            _refuse_nulls(out.dtype, column, name)
            out[_plain(chunk.is_null()), 0] = np.nan
        return
    if hasattr(chunk, "storage"):  # of tensors, as one list
        chunk, shape = chunk.storage, (math.prod(shape),)
    if chunk.null_count:
        present = _plain(chunk.is_valid())
        _refuse_nulls(out.dtype, column, name)
        out[~present] = np.nan
        rows = np.empty((int(present.sum()), out.shape[1]), dtype=out.dtype)
        _write(chunk.drop_null(), replace(column, shape=shape), rows, name)
        out[present] = rows
        return
    flat = _flat(chunk, column, shape[0], name)
    if len(shape) == 1 and not flat.null_count:
        out[...] = _plain(flat).reshape(out.shape)
        return
    values = np.empty((len(flat), math.prod(shape[1:])), dtype=out.dtype)
    _write(flat, replace(column, shape=shape[1:]), values, name)
    out[...] = values.reshape(out.shape)


def _flat(chunk: ArrowArray, column: Column, width: int, name: str) -> ArrowArray:
    """Return the values of lists that are not null, all of the same width."""
    if not str(chunk.type).startswith("fixed_size_list"):
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


def _plain(numbers: ArrowArray) -> Array:
    """Return an array of numbers of Arrow as numpy sees its memory; any value where it is null.

    Not by ``to_numpy``, which imports pandas where that is installed.
    """
    if str(numbers.type).startswith("decimal"):
        numbers = numbers.cast("float64")
    memory, start, stop = numbers.buffers()[1], numbers.offset, numbers.offset + len(numbers)
    dtype = _NUMBERS[str(numbers.type)]
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
            f"{name}: column {column.name} of {column.dtype} has nulls although the file counts none, so the table has "
            f"dtype {dtype}, which holds no NaN: the file is damaged; write it again"
        )


# --- rows of files -----------------------------------------------------------------------------------------------------


class ArrowReader(FragmentReader):
    """Reads rows of a Parquet or Arrow file."""

    edges: tuple[int, ...]
    """First rows of its row groups or record batches, and the end of the last."""

    parts: tuple[list[Span], ...]
    """Where in the file the bytes of each of them are that are read; none of a local file, which is not asked for them."""

    def __init__(self, path: StoredFile, columns: Sequence[Column], file: ArrowFile):
        self.place, self.columns, self._given, self.label = path.absolute(), tuple(columns), path, str(path)
        self.edges = tuple(np.cumsum([0, *file.rows]).tolist())
        self.shape = (self.edges[-1], sum(column.n_features for column in columns))
        self.column_major = not any(column.shape for column in columns)
        self.places = tuple(np.cumsum([0, *(column.n_features for column in columns)]).tolist())
        self.constants: dict[Column, float] = {}  # keys of partitions, NaN where one has no value
        for column in (column for column in columns if column.name not in file.schema.names):
            text = partition_keys(path)[column.name]
            try:
                self.constants[column] = math.nan if text == _NO_VALUE else float(text)
            except ValueError as error:
                raise DataError(
                    f"{path}: the partition has the value {text[:60]!r} of {column.name}: expected a number"
                ) from error
        self.chunk_name, self.scratch_bytes = file.chunk_name, file.scratch_bytes
        wanted = sum(column.n_features * column.dtype.itemsize for column in columns if column.dtype is not None)
        shares = [min(1.0, n * wanted / max(1, n_bytes)) for n, n_bytes in zip(file.rows, file.sizes, strict=True)]
        per_row = path.status().n_bytes / max(1, self.shape[0])
        self.stored = tuple(int(n * share * per_row) for n, share in zip(file.rows, shares, strict=True))

        names = [column.name for column in columns if column.name in file.schema.names]
        self.parts = () if path.store is None else tuple(file.spans(names))

    def set_type(self, dtype: DType) -> None:
        """Read the rows as a data type, and note what the file is."""
        self.dtype, self.record = dtype, Fragment.of(self._given, self.shape, dtype)

    @property
    def most_stored(self) -> int:
        """Return the size in bytes of the largest part of a file that is read for a chunk."""
        return max((sum(stop - start for start, stop in spans) for spans in self.parts), default=0)

    def chunks_of(self, start: int, stop: int) -> range:
        """Return the chunks that hold rows `start` to `stop`."""
        first = int(np.searchsorted(self.edges, start, "right")) - 1
        return range(first, int(np.searchsorted(self.edges, stop, "left")))

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of a chunk of which a block needs some rows, and of what pyarrow holds while it decodes one."""
        largest = max((stop - start for start, stop in pairwise(self.edges)), default=0)
        column = largest * self.dtype.itemsize if self.column_major else 0
        decoding = max(self.scratch_bytes, _DECODING_FACTOR * max(_SLAB_BYTES, column))
        return largest * self.shape[1] * self.dtype.itemsize + decoding

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out` with rows `start` to `stop`; a chunk that holds some of them is decoded as a whole."""
        count = ReadCount()
        index = int(np.searchsorted(self.edges, start, "right")) - 1
        while start < stop:
            first, last = self.edges[index : index + 2]
            end = min(stop, last)
            target = out[len(out) - (stop - start) :][: end - start]
            if (start, end) == (first, last) and start < end:
                count += self._decode(index, target)
            elif start < end:
                # This thread may have decoded the chunk for the read before, and keeps it for the next one.
                key = (str(self.place), index, self.record)
                known: tuple[object, Array] | None = getattr(_last, "rows", None)
                _last.rows = None
                if known is None or known[0] != key:
                    known = None  # whose memory is free before the next chunk takes some
                    order: Literal["F", "C"] = "F" if self.column_major else "C"
                    known = (key, np.empty((last - first, self.shape[1]), dtype=self.dtype, order=order))
                    count += self._decode(index, known[1])
                target[...] = known[1][start - first : end - first]
                _last.rows = known if end < last else None
            start, index = end, index + 1
        return count

    def _decode(self, index: int, out: Array) -> ReadCount:
        """Write a chunk to `out`: numbers a few columns after the other, lists a few rows after the other."""
        rows_at_once, columns_at_once = len(out), max(1, _SLAB_BYTES // (len(out) * self.dtype.itemsize + 1))
        if not self.column_major:
            rows_at_once, columns_at_once = (
                max(1, _SLAB_BYTES // (self.shape[1] * self.dtype.itemsize)),
                len(self.columns),
            )
        places = dict(zip(self.columns, pairwise(self.places), strict=True))
        for column, value in self.constants.items():
            out[:, slice(*places.pop(column))] = value
        stored = list(places)
        for first in range(0, len(stored), columns_at_once):
            some, row = stored[first : first + columns_at_once], 0
            with _naming(f"{self.label}: {self.chunk_name} {index}"):
                file = opened_file(self.place, keep=True)
                for batch in file.batches(index, [column.name for column in some], rows_at_once):
                    if row + len(batch) <= len(out):
                        for column in some:
                            target = out[row : row + len(batch), slice(*places[column])]
                            _write(batch.column(column.name), column, target, self.label)
                    row += len(batch)
                    if row > len(out):
                        break
            if row != len(out):
                raise DamagedChunkError(
                    f"{self.label}: {self.chunk_name} {index} holds {row:,} rows, but the footer says {len(out):,}: write it again"
                )
        return ReadCount(1, out.nbytes, self.stored[index])


def open_arrow_files(files: Files, options: ReadOptions) -> tuple[list[ArrowReader], Labels, ArrowColumns]:
    """Return readers of Parquet or Arrow files with the same columns, the labels of their rows, and all columns; reads footers, and ids if asked.

    Raises
    ------
    DataError
        If a file is damaged, or its columns are not numbers or not those of the first file.
    NotAvailableError
        If pyarrow is not installed.
    """
    paths = files.paths
    first = opened_file(paths[0])
    known, label_of_first = columns_of(first.schema), str(paths[0])
    names = options.columns if isinstance(options.columns, tuple) else None
    stored = dict(known)
    for key in _keys_of(paths):
        known.setdefault(key, Column(key, "a key of partitions", np.dtype(np.float64)))
    indices = _indices(first.schema)
    left_out = [name for name in known if names is None and (name not in stored or name in indices)]
    columns = chosen_columns(known, names, options.id_column, label_of_first, left_out)
    columns = [_with_length(column, paths) if column.shape is None else column for column in columns]
    if empty := next((column for column in columns if column.shape is not None and 0 in column.shape), None):
        raise DataError(f"{paths[0]}: column {empty.name} has lists of no numbers")
    dtype = common_type(columns, nulls=False)

    def described(path: StoredFile) -> tuple[ArrowReader, bool]:
        file = first if path is paths[0] else opened_file(path)
        try:
            if file is not first:
                every = first.schema.names if names is None else None
                _require_same_columns(file.schema, columns, every, path, paths[0])
            with _naming(str(path)):
                nulls = dtype.kind != "f" and file.counts_nulls([column.name for column in columns])
                return ArrowReader(path, columns, file), nulls
        finally:
            file.close()

    found = _for_each(described, paths, paths[0])
    readers, dtype = [reader for reader, _ in found], common_type(columns, nulls=any(nulls for _, nulls in found))
    _for_each(lambda reader: reader.set_type(dtype), readers, paths[0])
    n_rows = sum(reader.shape[0] for reader in readers)
    rows = Dimension("row", n_rows)
    if options.id_column is not None:
        zone = getattr(first.schema.field(options.id_column).type, "tz", None) if options.id_column in stored else None
        ids = ArrowColumns(paths).values_of(options.id_column, "id column")
        rows = Dimension(options.id_column, n_rows, ids, {} if zone is None else {"time_zone": zone})
    return readers, labels_of(columns, rows), ArrowColumns(paths, [column.name for column in readers[0].columns])


def _for_each(work: Callable[[_Item], _Result], items: Sequence[_Item], file: StoredFile) -> list[_Result]:
    """Return what `work` returns for each item; of files behind URLs like `file`, which wait for answers, of some at once."""
    if file.store is None:
        return list(map(work, items))
    pool = ThreadPoolExecutor(_OPENED_AT_ONCE)
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)


def _indices(schema: Schema) -> set[str]:
    """Return the names of the columns that are indices of a data frame of pandas, as it notes them in the schema."""
    try:
        noted = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    except (ValueError, AttributeError):
        return set()
    return {name for name in noted if isinstance(name, str)} if isinstance(noted, list) else set()


def _with_length(column: Column, paths: Sequence[StoredFile]) -> Column:
    """Return a column of lists, whose length the schema does not say, with that of the first of them."""
    for path in paths:
        with closing(opened_file(path)) as file, _naming(str(path)):
            for index, n_rows in enumerate(file.rows):
                for batch in file.batches(index, [column.name], min(64, max(1, n_rows))):
                    chunk = batch.column(column.name)
                    if chunk.null_count < len(chunk):
                        return _with_width(column, str(path), [chunk])
    raise DataError(f"{paths[0]}: column {column.name} has only null lists")


def _require_same_columns(
    schema: Schema, columns: Sequence[Column], every: Sequence[str] | None, path: StoredFile, other: StoredFile
) -> None:
    """Raise `DataError` unless a file has columns of the same names and types as the first file, in any order.

    Where all columns are read, `every`, the names of those in the first file, it must have no others.
    """
    found, keys = columns_of(schema), partition_keys(path)
    missing = [column.name for column in columns if column.name not in found and column.name not in keys]
    more = [name for name in found if every is not None and name not in every]
    if missing or more:
        what = f"has no column {missing[0]!r}" if missing else f"has a column {more[0]!r}"
        raise DataError(
            f"{path} {what}, other than {other}: expected the same columns in all files of a table; name those to read in columns"
        )
    for column in columns:
        kind = found[column.name].type if column.name in found else column.type
        if kind != column.type:
            raise DataError(
                f"{path}: column {column.name} has the type {kind}, and {column.type} in {other}: expected the same in all files"
            )


# --- columns that are no features ---------------------------------------------------------------------------------------


class ArrowColumns(SampleColumns):
    """Columns of the files of a table, and keys in the names of the directories of partitions.

    Parameters
    ----------
    paths : sequence of StoredFile
        The files.
    features : collection of str
        Names of the columns that are features.
    """

    def __init__(self, paths: Sequence[StoredFile], features: Collection[str] = ()):
        self._paths, self._features = tuple(path.absolute() for path in paths), frozenset(features)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that are no features, and of the keys of partitions."""
        with closing(opened_file(self._paths[0])) as file:
            stored = list(file.schema.names)
        names = dict.fromkeys([*stored, *_keys_of(self._paths)])
        return tuple(name for name in names if name not in self._features)

    def values(self, name: str) -> Array | None:
        """Return a column, None if there is none of that name; `StreamPCAError` if it is a feature, or cannot be read."""
        if name in self._features:
            raise feature_error("column")
        return self.values_of(name) if name in self.names else None

    def values_of(self, name: str, kind: str = "column") -> Array:
        """Return the values of a column of all files; messages call it the `kind` `name`.

        Times with a time zone are those of UTC in an id column, those of its clocks in others. Nulls are None in text, NaN in numbers and
        NaT in times; an id column has none.
        """
        parts: list[Array] = []
        texts = [partition_keys(path).get(name) for path in self._paths]
        numbers = all(text is not None and re.fullmatch(r"0|-?[1-9]\d{0,17}", text) for text in texts)
        for path, text in zip(self._paths, texts, strict=True):
            with closing(opened_file(path)) as file:
                if name in file.schema.names:
                    values = _values_of(file, path, name, kind)
                elif text is None:
                    raise DataError(
                        f"{path} has no {kind} {name}, which {self._paths[0]} has: expected it in every file"
                    )
                elif text == _NO_VALUE:
                    raise DataError(f"{path}: the partition has no value of {name}: expected one for every row")
                else:
                    values = np.repeat(np.array([int(text) if numbers else text]), sum(file.rows))
            if parts and _kind_of(values) != _kind_of(parts[0]):
                raise DataError(
                    f"{path}: the {kind} {name} holds {_kind_of(values)}, and that of {self._paths[0]} {_kind_of(parts[0])}: expected "
                    "one type in all files"
                )
            parts.append(values)
            if sum(part.nbytes for part in parts) > _MOST_IDS:
                raise DataError(f"{path}: the {kind} {name} takes more than {_MOST_IDS:,} bytes: leave it out")
        return np.concatenate(parts)


def _values_of(file: ArrowFile, path: StoredFile, name: str, kind: str) -> Array:
    with _naming(str(path)):
        column = file.column(name)
        if column.null_count and kind != "column":
            raise DataError(f"{path}: the {kind} {name} has {column.null_count:,} nulls: expected a name for every row")
        text = str(column.type) in ("string", "large_string", "string_view") or str(column.type).startswith(
            "dictionary"
        )
        if kind == "column" and getattr(column.type, "tz", None) is not None:
            column = optional_module("pyarrow.compute", "Parquet", "arrow").local_timestamp(column)
        of_text = object if column.null_count else str
        values = np.array(column.to_pylist(), dtype=of_text) if text else column.to_numpy()
    if values.dtype.kind not in "biufMmU" and not text:
        raise DataError(f"{path}: the {kind} {name} has the type {column.type}: expected text, numbers or times")
    return values


def _keys_of(paths: Sequence[StoredFile]) -> list[str]:
    """Return the keys of partitions that all files have."""
    first, *others = (partition_keys(path) for path in paths)
    return [key for key in first if all(key in other for other in others)]


def _kind_of(values: Array) -> str:
    """Return what sort of values an array holds; those of one sort have a common data type."""
    return {"U": "text", "O": "text", "M": "times", "m": "durations"}.get(values.dtype.kind, "numbers")
