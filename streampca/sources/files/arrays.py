"""Arrays with named dimensions in files, HDF5 and NetCDF, as one table: those of several files follow each other along their samples."""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from streampca.calendars import in_units_of
from streampca.errors import DamagedChunkError, DataError, MissingChunkError
from streampca.labels import Dimension, Labels, compared_alleles, palindromic
from streampca.sources.base import ReadCount, require_table
from streampca.sources.conventions import Packing, packed_by
from streampca.sources.features import Axes, axes_of
from streampca.sources.files.fragments import FragmentedRows, FragmentReader, damage_named
from streampca.sources.files.paths import Files
from streampca.sources.files.records import Fragment, LocalFile
from streampca.sources.formats import ReadOptions
from streampca.sources.genotypes import exchange
from streampca.sources.named_arrays import MOST_COORDINATES, NamedArray, NamedArrays, required
from streampca.sources.table import StoredVariable
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType

_MOST_CHUNK_BYTES = 2**31
_open_files = threading.local()
"""The files that a thread has open, by their paths."""


class ArrayFile(NamedArrays):
    """The arrays of one file, which is opened for every use.

    Parameters
    ----------
    path : Path
        The file.
    label : str, optional
        What messages call it; by default its path.
    """

    place = "file"
    causes: ClassVar[str] = "is damaged or cut short"
    """What messages say of a file that the library cannot read."""

    def __init__(self, path: Path, label: str | None = None):
        self.path, self.label = path.absolute(), label or str(path)

    @abstractmethod
    def open(self) -> Any:
        """Open the file for reading; `DataError` if that fails."""

    @abstractmethod
    def stored(self, file: Any, name: str) -> Any:
        """Return an array of the open file, an object that gives values where it is indexed."""

    def fill(self, name: str, place: tuple[slice, ...], out: Array) -> None:
        """Fill `out` with the values of an array at `place`."""
        with self.opened_file() as file:
            out[...] = self.stored(file, name)[place]

    def read(self, array: NamedArray, label: str) -> Array:
        """Return the values of an array beside the data; text as such."""
        with self.opened_file() as file, damage_named(label, self.causes):
            values = np.array(self.stored(file, str(array.name))[...])
        return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))

    def stored_bytes(self, name: str) -> int:
        """Return the bytes that an array takes in the file; 0 where it has no chunks."""
        return 0

    def missing_chunks(self, name: str) -> int:
        """Return how many chunks of an array were never written."""
        return 0

    @contextmanager
    def opened_file(self) -> Iterator[Any]:
        """Open the file, or use it where this thread has it open in an outer context."""
        known: dict[Any, Any] = _open_files.__dict__
        if self.path in known:
            yield known[self.path]
            return
        with self.open() as file:
            known[self.path] = file
            try:
                yield file
            finally:
                del known[self.path]

    def opened(self, array: NamedArray, axes: Axes, options: ReadOptions) -> StoredVariable:
        """Return an array of this file alone as a part of a table."""
        return ArrayFiles([self], self.label).opened(array, axes, options)


class BoxReader(FragmentReader):
    """Reads rows of an array of a file, by boxes of whole chunks."""

    def __init__(
        self,
        file: ArrayFile,
        array: NamedArray,
        axes: Axes,
        *,
        fill: bool,
        exchanged: BoolArray | None = None,
        recorded: bool = True,
    ):
        from streampca.sources.zarr.layout import Layout

        self.file, self.place, self.name, self.fill = file, LocalFile(file.path), str(array.name), fill
        chunks = array.chunks
        self.layout: Layout = Layout(array.shape, chunks or array.shape, *axes)
        self.stored_dtype, self.dtype = array.dtype, array.dtype.newbyteorder("=")
        self.shape = self.layout.table_shape
        label = f"{file.label}/{self.name}"
        require_table(self.shape, self.dtype, label)
        self.chunk_bytes = math.prod(self.layout.grid) * self.dtype.itemsize if chunks else 0
        if self.chunk_bytes > _MOST_CHUNK_BYTES:
            raise DataError(f"{label} has chunks of {self.chunk_bytes:,} bytes: expected at most {_MOST_CHUNK_BYTES:,}")
        step = self.layout.chunk_rows
        self.edges = (*range(0, self.shape[0], step), self.shape[0]) if chunks else None
        self.column_major = self.layout.column_major
        self.label = str(Path(file.label))
        if recorded:
            self.record = Fragment.of(LocalFile(Path(file.label)), self.shape, self.dtype)
        self.exchanged = exchanged

    def check(self) -> None:
        """Raise `MissingChunkError` if chunks were never written, or count them where they are to be filled."""
        with self.file.opened_file(), damage_named(self.label, self.file.causes):
            missing = self.file.missing_chunks(self.name)
        if missing and not self.fill:
            count = math.prod(self.layout.chunk_counts)
            raise MissingChunkError(
                f"{self.label}: {missing:,} of {count:,} chunks of {self.name} were never written; write them, or set "
                "missing_chunks: fill to read them as the fill value"
            )
        self.missing_chunks_filled = missing

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of chunks while they are decoded, and of a box of values that is not a part of the block itself."""
        rows = self.layout.most_rows_read(n_rows)
        box = 0 if self._fills_rows(self.layout) else rows * self.shape[1] * self.dtype.itemsize
        return box + 3 * self.chunk_bytes + 2**20  # 1 MiB is the cache of chunks of HDF5

    @staticmethod
    def _fills_rows(layout: Any) -> bool:
        """Return whether a block of rows is a box of the array, in the order of its values."""
        return (*layout.rows, *layout.columns) == tuple(range(len(layout.shape))) and len(layout.rows) == 1

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out` with rows `start` to `stop`."""
        count = self._read(self.layout, start, stop, out)
        if self.exchanged is not None:
            exchange(out, self.exchanged)
        return count

    def read_features(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_rows)``, with features `start` to `stop`."""
        alone = out.flags.c_contiguous  # not a part of the rows of several files
        values = out if alone else borrow("features of a file", out.shape, out.dtype)
        count = self._read(self.layout.turned(), start, stop, values)
        if self.exchanged is not None:
            exchange(values.T, self.exchanged[start:stop])
        if not alone:
            out[...] = values
        return count

    def _read(self, layout: Any, start: int, stop: int, out: Array) -> ReadCount:
        from streampca.sources.zarr.layout import inside_of

        count = ReadCount()
        axis = "rows" if layout is self.layout else "features"
        what = f"{self.label}: {self.name} ({axis} {start} to {stop - 1})"
        with self.file.opened_file(), damage_named(what, self.file.causes):
            array = required(self.file, self.name)
            if array.shape != layout.shape or array.dtype != self.stored_dtype:
                raise DamagedChunkError(f"{self.label}: {self.name} changed its shape or type after it was opened")
            for whole, boxes in layout.readings(start, stop):
                place = tuple(slice(span.start, span.stop) for span in whole)
                if self._fills_rows(layout) and out.flags.c_contiguous and out.dtype == self.dtype:
                    self.file.fill(self.name, place, layout.view(out, whole))
                else:
                    values = borrow("box of a file", tuple(map(len, whole)), self.dtype)
                    self.file.fill(self.name, place, values)
                    for row, box in boxes:
                        target = layout.view(out[row - start : row - start + layout.n_rows(box)], box)
                        target[...] = values[inside_of(box, whole)]
                if self.chunk_bytes:  # whole chunks, with their mean stored size
                    places = [place for place, _, _ in layout.chunks(whole)]
                    n_bytes = sum(map(layout.stored_values, places)) * self.dtype.itemsize
                    every = max(1, math.prod(layout.chunk_counts))
                    count += ReadCount(len(places), n_bytes, self.file.stored_bytes(self.name) * len(places) // every)
                else:
                    n_bytes = math.prod(map(len, whole)) * self.dtype.itemsize
                    count += ReadCount(0, n_bytes, n_bytes)
        return count


class ArrayFiles(NamedArrays):
    """The arrays of several files of one kind, which follow each other along the first dimension of the samples.

    Parameters
    ----------
    files : sequence of ArrayFile
        The files, in the order of their rows.
    label : str
        What messages call them all.
    """

    place = "file"

    def __init__(self, files: Sequence[ArrayFile], label: str):
        self.files, self.label, self._joined = files, label, ""
        self.kind = files[0].kind  # type: ignore[misc]

    def prepare(self, options: ReadOptions) -> None:
        """Find out along which dimension the files follow each other: the first one of the samples."""
        array = required(self.files[0], options.names[0]) if options.names else self.default(options)[0]
        self._joined = array.dims[axes_of(array.dims, array.shape, options, self.title(array))[0][0]]

    def find(self, name: str) -> NamedArray | None:
        """Return an array of the first file, as long as those of all files together once it is known along what they are joined."""
        array = self.files[0].find(name)
        if array is None or self._joined not in array.dims or len(self.files) == 1:
            return array
        axis = array.dims.index(self._joined)
        sizes = [other.shape[axis] for file in self.files if (other := file.find(name)) and len(other.shape) > axis]
        return replace(array, shape=(*array.shape[:axis], sum(sizes), *array.shape[axis + 1 :]))

    def listed(self) -> Mapping[str, NamedArray]:
        """Return the arrays of the first file."""
        return self.files[0].listed()

    def default(self, options: ReadOptions) -> list[NamedArray]:
        """Return the only array of the first file that can be the table."""
        return self.files[0].default(options)

    def table_label(self, chosen: object) -> str:
        """Return what messages call the files."""
        return self.label

    def read(self, array: NamedArray, label: str) -> Array:
        """Return the stored values of an array beside the data, of all files where it is along the joined dimension."""
        arrays = [(file, required(file, str(array.name))) for file in self._with(array)]
        for file, one in arrays:
            if one.packed != array.packed:
                raise DataError(
                    f"{label}: packed with other attributes in {file.label} than in {self.files[0].label}: expected the same in all files"
                )
        each = [file.read(one, label) for file, one in arrays]
        return each[0] if len(each) == 1 else np.concatenate(each, array.dims.index(self._joined))

    def values(self, array: NamedArray, label: str, most: int = MOST_COORDINATES) -> Array | None:
        """Return the same, decoded file by file: units of times may differ."""
        each = [file.values(required(file, str(array.name)), label, most) for file in self._with(array)]
        known = [values for values in each if values is not None]
        if len(each) == 1 or len(known) < len(each):
            return each[0] if len(each) == 1 else None
        return np.concatenate(known, array.dims.index(self._joined))

    def _with(self, array: NamedArray) -> Sequence[ArrayFile]:
        """Return the files that values of an array are in: the first, or all where it is along the joined dimension."""
        return self.files if self._joined in array.dims else self.files[:1]

    def labels_of(self, array: NamedArray, axes: Axes) -> Labels:
        """Return the labels of the rows of all files; `DataError` unless their features are those of the first one."""
        each: list[Labels] = []
        for file in self.files:
            with file.opened_file():
                one = required(file, str(array.name))
                labels = file.labels_of(one, self._axes_in(file, one, array, axes))
            each.append(labels.counting_as(each[0])[0] if each else labels)
            what, of_first = f"{file.label}: {array.name} has", self.files[0].label
            if difference := each[0].difference(each[-1]):
                raise DataError(f"{what} {difference}: expected the features of {of_first}")
            if [d.size for d in labels.samples[1:]] != [d.size for d in each[0].samples[1:]]:
                raise DataError(f"{what} other sizes of sample dimensions than in {of_first}")
        first = each[0].samples[0]
        known = [
            in_units_of(one.coordinate, one.attributes, first.attributes)
            for one in (labels.samples[0] for labels in each)
            if one.coordinate is not None
        ]
        parts = [part for part in known if part is not None]
        same = len(parts) == len(each) and len({"n" if p.dtype.kind in "iuf" else p.dtype.kind for p in parts}) == 1
        notes = [labels.samples[0].note for labels in each if labels.samples[0].note]
        if parts and not same:
            notes.append(f"names along {first.name} are not read: some files have none, or of another type or calendar")
        size, note = sum(labels.samples[0].size for labels in each), "; ".join(dict.fromkeys(notes))
        joined = Dimension(first.name, size, np.concatenate(parts) if same else None, first.attributes, note=note)
        features = []
        for axis, dimension in enumerate(each[0].features):
            nameless = [
                file.label
                for file, labels in zip(self.files, each, strict=True)
                if labels.features[axis].coordinate is None
            ]
            if 0 < len(nameless) < len(each) and not dimension.note:
                count = f"{len(nameless):,} of {len(each):,} files"
                note = f"names along {dimension.name} are not in {nameless[0]} ({count}), and not compared there"
                dimension = replace(dimension, note=note)
            features.append(dimension)
        return replace(each[0], samples=(joined, *each[0].samples[1:]), features=tuple(features))

    def _exchanged(self, array: NamedArray, axes: Axes) -> tuple[list[BoolArray | None], int]:
        """Return of which features each file counts the allele that the first one does not, and how many do not tell the strand.

        None for no features, as of all files but those of genotypes.
        """
        each: list[BoolArray | None] = [None] * len(self.files)
        several = len(axes[1]) == 1 and len(self.files) > 1
        first = self.files[0].dimension(array, axes[1][0]).alleles if several else None
        if first is None:
            return each, 0
        unclear = np.zeros(first.shape, dtype=bool)
        for place, file in enumerate(self.files[1:], 1):
            theirs = file.dimension(array, axes[1][0]).alleles
            if theirs is not None and theirs.shape == first.shape:
                exchanged = compared_alleles(first, theirs)[0]
                each[place] = exchanged if exchanged.any() else None
                unclear |= palindromic(first, theirs)
        return each, int(unclear.sum())

    def _axes_in(self, file: ArrayFile, one: NamedArray, first: NamedArray, axes: Axes) -> Axes:
        """Return the axes of an array of a file that have the names of those of the first file, in whatever order they are stored."""
        if sorted(one.dims) != sorted(first.dims):
            raise DataError(
                f"{file.label}: {one.name} has other dimensions ({', '.join(one.dims)}) than in {self.files[0].label} "
                f"({', '.join(first.dims)}): expected the same in all files"
            )
        rows, columns = (tuple(one.dims.index(first.dims[axis]) for axis in side) for side in axes)
        return rows, columns

    def opened(self, array: NamedArray, axes: Axes, options: ReadOptions) -> StoredVariable:
        """Return an array of all files as a part of a table."""
        name, readers, packings = str(array.name), [], []
        exchanged, n_palindromic = self._exchanged(array, axes)
        for file, flags in zip(self.files, exchanged, strict=True):
            with file.opened_file():
                one = required(file, name)
                own = self._axes_in(file, one, array, axes)
                readers.append(BoxReader(file, one, own, fill=options.fills_data, exchanged=flags))
                dtype, label = one.dtype.newbyteorder("="), f"{file.label}/{name}"
                raw = options.decode == "raw"
                packings.append(None if raw else Packing.of_attributes(one.packed, dtype, label, single=one.single))
            if packings[-1] != packings[0]:
                raise DataError(
                    f"{file.label}: {name} is packed with other attributes than in {self.files[0].label}: expected the same in all files"
                )
        packing, declared = packings[0], array.packed if options.decode == "raw" else {}
        details: dict[str, object] = {
            "array": name,
            "orientation": "features_first" if readers[0].column_major else "samples_first",
            "packing": dict(declared if packing is None else packing.attributes) or None,
            "decoded": packing is not None,
        }
        if any(flags is not None for flags in exchanged):
            counts = [0 if flags is None else int(flags.sum()) for flags in exchanged]
            details["exchanged_alleles"] = {reader.label: n for reader, n in zip(readers, counts, strict=True) if n}
        if n_palindromic:
            details["palindromic_variants"] = n_palindromic
        if len({reader.shape[1] for reader in readers}) > 1:
            self.labels_of(array, axes)  # which names what differs
        self._joined = array.dims[axes[0][0]]
        return StoredVariable(FragmentedRows(readers, self.label, details), packing)


def arrays_of(files: Files) -> ArrayFiles:
    """Return the arrays of files of a format of arrays."""
    opened = files.format.opener()
    return ArrayFiles([opened(Path(str(file))) for file in files.paths], files.description)


def array_of_file(
    name: str,
    dims: Sequence[str],
    shape: Sequence[int],
    dtype: DType,
    attributes: Mapping[str, object],
    chunks: Sequence[int] | None = None,
) -> NamedArray:
    """Return an array of a file, whose attributes become numbers, texts and lists."""
    plain: dict[str, object] = {}
    for key, value in attributes.items():
        value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        plain[key] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    scales = [np.asarray(attributes[key]).dtype for key in ("scale_factor", "add_offset") if key in attributes]
    single = all(each.kind == "f" and each.itemsize == 4 for each in scales)
    packed, sizes = packed_by(plain, dtype), None if chunks is None else tuple(map(int, chunks))
    return NamedArray(name, tuple(dims), tuple(map(int, shape)), dtype, plain, None, packed, sizes, single)
