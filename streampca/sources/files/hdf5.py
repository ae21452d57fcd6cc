"""Rows of a dataset in HDF5 files, by h5py: contiguous or in chunks, of two dimensions or more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streampca.calendars import in_units_of
from streampca.errors import DamagedChunkError, DataError, MissingChunkError
from streampca.formatting import one_line
from streampca.labels import Dimension, Labels
from streampca.sources.base import ReadCount, require_table
from streampca.sources.conventions import packed_by
from streampca.sources.files.fragments import FragmentReader, damage_named
from streampca.sources.files.hdf5_names import (
    dataset_in,
    labels_of,
    name_in,
    names_of,
    plain_attributes,
    scales_are_float32,
)
from streampca.sources.files.records import Fragment
from streampca.sources.options import ReadOptions
from streampca.sources.packing import Packing
from streampca.storage.regular_files import require_regular
from streampca.system.optional import optional_module
from streampca.system.workspace import borrow
from streampca.typing import Array

if TYPE_CHECKING:
    import h5py

    from streampca.sources.zarr.layout import Layout
    from streampca.sources.zarr.reader import Axes

_MOST_CHUNK_BYTES = 2**31
_naming = partial(damage_named, causes="is damaged or cut short, or a filter is missing that its chunks need")


class Hdf5Reader(FragmentReader):
    """Reads rows of a dataset in an HDF5 file."""

    def __init__(self, path: Path, dataset: h5py.Dataset, axes: Axes, *, fill: bool):
        from streampca.sources.zarr.layout import Layout

        self.path, self.name, self.fill = path.absolute(), str(dataset.name).strip("/"), fill
        shape, chunks = tuple(map(int, dataset.shape)), dataset.chunks
        self.layout: Layout = Layout(shape, tuple(map(int, chunks or shape)), *axes)
        self.shape, self.dtype = self.layout.table_shape, np.dtype(dataset.dtype)
        label = f"{path}/{self.name}"
        require_table(self.shape, self.dtype, label)
        self.chunk_bytes = math.prod(self.layout.grid) * self.dtype.itemsize if chunks else 0
        if self.chunk_bytes > _MOST_CHUNK_BYTES:
            raise DataError(f"{label} has chunks of {self.chunk_bytes:,} bytes: expected at most {_MOST_CHUNK_BYTES:,}")
        step = self.layout.chunk_rows
        self.edges = (*range(0, self.shape[0], step), self.shape[0]) if chunks else None
        self.column_major = self.layout.column_major
        self.record = Fragment.of(path, self.shape, self.dtype)

    def check(self) -> None:
        """Raise `MissingChunkError` if chunks were never written, or count them where they are to be filled."""
        with _opened(self.path) as file, _naming(self.record.name):
            dataset = dataset_in(file, self.name, self.record.name)
            counts = math.prod(self.layout.chunk_counts) if dataset.chunks else 1
            written = dataset.id.get_num_chunks() if dataset.chunks else int(dataset.id.get_storage_size() > 0)
        missing = max(0, counts - written)
        if missing and not self.fill:
            raise MissingChunkError(
                f"{self.record.name}: {missing:,} of {counts:,} chunks of {self.name} were never written; write them, or set "
                "missing_chunks: fill to read them as the fill value"
            )
        self.missing_chunks_filled = missing

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory of chunks while HDF5 decodes them, and of a box of several rows axes."""
        rows = self.layout.most_rows_read(n_rows)
        box = 0 if self._fills_rows(self.layout) else rows * self.shape[1] * self.dtype.itemsize
        return box + 3 * self.chunk_bytes + 2**20  # 1 MiB is the cache of chunks of HDF5

    @staticmethod
    def _fills_rows(layout: Layout) -> bool:
        """Return whether a block of rows is a box of the dataset, in the order of its values."""
        return (*layout.rows, *layout.columns) == tuple(range(len(layout.shape))) and len(layout.rows) == 1

    def read(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out` with rows `start` to `stop`."""
        return self._read(self.layout, start, stop, out)

    def read_features(self, start: int, stop: int, out: Array) -> ReadCount:
        """Fill `out`, ``(stop - start, n_rows)``, with features `start` to `stop`."""
        if not out.flags.c_contiguous:  # a part of the rows of several files
            values = borrow("features of a file", out.shape, out.dtype)
            count = self._read(self.layout.turned(), start, stop, values)
            out[...] = values
            return count
        return self._read(self.layout.turned(), start, stop, out)

    def _read(self, layout: Layout, start: int, stop: int, out: Array) -> ReadCount:
        from streampca.sources.zarr.layout import inside_of

        count = ReadCount()
        with _opened(self.path) as file, _naming(f"{self.record.name}: {self.name}"):
            dataset = dataset_in(file, self.name, self.record.name)
            if dataset.shape != layout.shape or dataset.dtype != self.dtype:
                raise DamagedChunkError(
                    f"{self.record.name}: {self.name} has another shape or type than when it was opened"
                )
            for whole, boxes in layout.readings(start, stop):
                place = tuple(slice(span.start, span.stop) for span in whole)
                if self._fills_rows(layout) and out.flags.c_contiguous and out.dtype == self.dtype:
                    dataset.read_direct(layout.view(out, whole), place)
                else:
                    values = dataset[place]
                    for row, box in boxes:
                        target = layout.view(out[row - start : row - start + layout.n_rows(box)], box)
                        target[...] = values[inside_of(box, whole)]
                count += self._count(dataset, layout, whole)
        return count

    def _count(self, dataset: h5py.Dataset, layout: Layout, box: tuple[range, ...]) -> ReadCount:
        """Return the `ReadCount` of a box: of whole chunks, with their mean stored size."""
        if not self.chunk_bytes:
            n_bytes = math.prod(map(len, box)) * self.dtype.itemsize
            return ReadCount(0, n_bytes, n_bytes)
        n_values = n_chunks = 0
        for place, _, _ in layout.chunks(box):
            n_chunks, n_values = n_chunks + 1, n_values + layout.stored_values(place)
        stored = dataset.id.get_storage_size() * n_chunks // max(1, math.prod(layout.chunk_counts))
        return ReadCount(n_chunks, n_values * self.dtype.itemsize, stored)


def open_hdf5_files(
    paths: Sequence[Path], options: ReadOptions
) -> tuple[list[Hdf5Reader], Labels, Packing | None, dict[str, object]]:
    """Return readers of the same dataset in HDF5 files, its labels, how it is decoded, and its description.

    Raises
    ------
    DataError
        If a file has no such dataset, or it differs from that in the first file in all but its samples.
    OutsideStoreError
        If it lies in another file, behind an external link.
    NotAvailableError
        If h5py is not installed.
    """
    readers: list[Hdf5Reader] = []
    each: list[Labels] = []
    packings: list[Packing | None] = []
    for path in paths:
        with _opened(path) as file, _naming(str(path)):
            name = options.array or (readers[0].name if readers else name_in(file, str(path)))
            reader, labels, packing = _reader(file, path, name, options)
        readers.append(reader)
        each.append(labels)
        packings.append(packing)
        if packing != packings[0]:
            raise DataError(
                f"{path}: {name} is packed by other attributes than in {paths[0]}: expected the same in all files"
            )
        if len(readers) > 1 and (difference := each[0].difference(labels)):
            raise DataError(f"{path}: {name} has {difference}: expected the features of {paths[0]}")
        if [d.name for d in labels.samples] != [d.name for d in each[0].samples]:
            raise DataError(
                f"{path}: {name} has other samples than in {paths[0]}: expected dimensions of the same names"
            )
        if [d.size for d in labels.samples[1:]] != [d.size for d in each[0].samples[1:]]:
            raise DataError(f"{path}: {name} has other sizes of sample dimensions than in {paths[0]}")
    first = readers[0]
    details: dict[str, object] = {
        "array": first.name,
        "orientation": "features_first" if first.column_major else "samples_first",
        "packing": None if packings[0] is None else dict(packings[0].attributes),
        "decoded": packings[0] is not None,
    }
    return readers, _joined(each), packings[0], details


def _reader(file: h5py.File, path: Path, name: str, options: ReadOptions) -> tuple[Hdf5Reader, Labels, Packing | None]:
    """Return the reader of one dataset of an open file, its labels, and how it is decoded."""
    from streampca.sources.zarr.dimensions import axes_of

    dataset = dataset_in(file, name, str(path))
    label = f"{path}/{name.strip('/')}"
    names = names_of(dataset)
    if np.dtype(dataset.dtype).kind not in "biuf":
        require_table((1, 1), np.dtype(dataset.dtype), label)
    axes = axes_of(names, dataset.shape, options, label)
    reader = Hdf5Reader(path, dataset, axes, fill=options.fills_data)
    attributes = packed_by(plain_attributes(dataset), reader.dtype)
    packing = None
    if options.decode != "raw":
        packing = Packing.of_attributes(attributes, reader.dtype, label, single=scales_are_float32(dataset))
    return reader, labels_of(dataset, names, axes, label), packing


def _joined(each: Sequence[Labels]) -> Labels:
    """Return the labels of the rows of several files, one after another along their first sample dimension."""
    first = each[0].samples[0]
    parts = [_in_units_of(labels.samples[0], first) for labels in each]
    known = [part for part in parts if part is not None]
    kinds = {"number" if part.dtype.kind in "iuf" else part.dtype.kind for part in known}
    same = len(known) == len(parts) and len(kinds) == 1
    size = sum(labels.samples[0].size for labels in each)
    joined = Dimension(first.name, size, np.concatenate(known) if same else None, first.attributes)
    return Labels((joined, *each[0].samples[1:]), each[0].features, each[0].variables)


def _is_netcdf3(path: Path) -> bool:
    """Return whether a file begins as those of the classic formats of NetCDF."""
    try:
        with path.open("rb") as file:
            return file.read(4) in (b"CDF\x01", b"CDF\x02", b"CDF\x05")
    except OSError:
        return False


def _in_units_of(one: Dimension, first: Dimension) -> Array | None:
    """Return the coordinate of a dimension in the units of that of the first file, None if it cannot be given these."""
    return None if one.coordinate is None else in_units_of(one.coordinate, one.attributes, first.attributes)


@contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading, without a lock: changes are found by its size and time."""
    h5py = optional_module("h5py", "HDF5", "hdf5")
    try:
        require_regular(path)
        if path.stat().st_size == 0:
            raise DataError(f"{path} cannot be opened as HDF5: it is empty")
        file = h5py.File(path, "r", locking=False)
    except (DataError, MemoryError):
        raise
    except Exception as error:
        if _is_netcdf3(path):
            raise DataError(
                f"{path} is a file of NetCDF 3, which is no HDF5: open it with xarray and give what xarray.open_dataset returns, or convert it "
                f"to NetCDF 4, for example by nccopy -k nc4 {path.name} FILE"
            ) from error
        reason = error.strerror if isinstance(error, OSError) and error.strerror else one_line(error)
        raise DataError(f"{path} cannot be opened as HDF5: {reason}") from error
    with file:
        yield file
