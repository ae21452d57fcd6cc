"""AnnData files (``.h5ad``): how they are opened, and how their arrays are read through h5py."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from streampca.errors import DataError
from streampca.formatting import one_line
from streampca.sources.base import ReadCount, Source, require_table
from streampca.sources.cells.stored import StoredCells
from streampca.sources.files.fragments import damage_named
from streampca.sources.grid import Grid
from streampca.sources.versions import InputVersion, InputWatch, files
from streampca.storage.regular_files import require_regular
from streampca.system.optional import optional_module
from streampca.typing import Array

if TYPE_CHECKING:
    from h5py import Dataset, File

WRITTEN = "streampca_written"
"""Attribute of a file into which results were written: its time after that, and its size and time before."""


def h5py_module() -> ModuleType:
    """Return h5py; `NotAvailableError` with the command that installs it if it is not installed."""
    return optional_module("h5py", "an .h5ad file", "anndata")


def opening_error(path: object, error: OSError) -> DataError:
    """Return the error for an ``.h5ad`` file that h5py cannot open for the reason `error`."""
    reason = os.strerror(error.errno) if error.errno else one_line(error)
    if "unable to lock file" in str(error):
        reason = (
            "another program has it open for writing: close it there; "
            "for a file system without locks set HDF5_USE_FILE_LOCKING=FALSE in the environment"
        )
    return DataError(f"{path} cannot be opened as an .h5ad file: {reason}")


def before_results(file: File, modified: int) -> tuple[int, int] | None:
    """Return size and time that an open file had before results were written into it.

    None if there are none, or the file, `modified` at this time, was changed after that. Times are in nanoseconds.
    """
    written = file.attrs.get(WRITTEN)
    known = np.asarray([] if written is None else written)
    if known.shape != (3,) or known.dtype.kind != "i" or int(known[0]) != modified:
        return None
    return int(known[1]), int(known[2])


class HDF5Cells(StoredCells):
    """An ``.h5ad`` file, which is open only while it is read.

    Parameters
    ----------
    path : str
        Path of the file.
    """

    def __init__(self, path: str):
        super().__init__(path)
        self._place = Path(path).absolute()

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the file for reading; `DataError` if h5py cannot."""
        h5py = h5py_module()
        try:
            require_regular(self._place)
            file = h5py.File(self._place, "r")
        except OSError as error:
            raise opening_error(self.label, error) from error
        with file, damage_named(f"{self.label}:", "damaged or cut short"):
            yield file

    def child(self, group: Any, name: str) -> Any:
        """Return the node `name` of a group, None if there is none; `DataError` if it is stored in another file."""
        node = group
        for part in name.split("/"):
            link = node.get(part, getlink=True) if hasattr(node, "keys") and part in node.keys() else None  # noqa: SIM118
            if link is None:
                return None
            if type(link).__name__ == "ExternalLink":
                raise DataError(f"{self.label}: {name} is a link to another file: expected the data in this one")
            node = node[part]
        if getattr(node, "is_virtual", False) or getattr(node, "external", None):
            raise DataError(f"{self.label}: {name} is stored in other files: expected the data in this one")
        return node

    def matrix(self, root: Any, node: Any, name: str) -> Source:
        """Return the rows of a dense matrix."""
        return HDF5Rows(self.label, name)

    def vector(self, node: Any, name: str) -> Source:
        """Return the entries of an array of one axis as a table of one column."""
        return HDF5Rows(self.label, name)

    def array(self, read: Callable[[Any], Any], node: Any, label: str, *, filled: bool) -> Any:
        """Return what `read` returns for an array; chunks that are not there have its fill value, as HDF5 says."""
        return read(node)


class HDF5Rows(Source):
    """A dataset of one or two axes of an HDF5 file: its entries, or its rows.

    The file is open only while it is read, and must not be written to as long as a fit lasts.
    """

    portable = True

    def __init__(self, path: str, name: str):
        self.description, self.name = path, name
        self._place = str(Path(path).absolute())
        self.watch = InputWatch()
        with self._opened() as dataset:
            shape, dtype, chunks = tuple(int(n) for n in dataset.shape), np.dtype(dataset.dtype), dataset.chunks
        shape = (*shape, 1) if len(shape) == 1 else shape
        require_table(shape, dtype, f"{path}/{name}")
        self.shape, self.dtype = (shape[0], shape[1]), dtype
        rows = int(chunks[0]) if chunks else min(max(1, shape[0]), max(1, 2**20 // self.row_bytes))
        self.grid = Grid(rows, chunk_bytes=int(np.prod(chunks)) * self.dtype.itemsize if chunks else 0)

    def __reduce__(self) -> tuple[object, ...]:
        return HDF5Rows, (self._place, self.name)

    @contextmanager
    def _opened(self) -> Iterator[Dataset]:
        """Open the dataset, and close its file again: processes and threads share no state, and others may write to it later.

        `DataError` if the file cannot be opened, `DamagedChunkError` for what h5py raises while it is open.
        """
        try:
            file = h5py_module().File(self._place, "r")
        except OSError as error:
            raise opening_error(self.description, error) from error
        with file, damage_named(f"{self.description}/{self.name}:", "damaged or cut short"):
            yield file[self.name]

    @property
    def fingerprint(self) -> str:
        """Return a hash of path, name, shape and dtype; size and time of the file are its `version`."""
        return xxhash.xxh3_128(f"{self.description}|{self.name}|{self.shape}{self.dtype}".encode()).hexdigest()

    def version(self) -> InputVersion | None:
        """Return size and modification time of the file; those from before if nothing but results was written since."""
        with self._opened() as dataset:
            items = list(files(self._place, [""]))
            before = before_results(dataset.file, int(items[0][2])) if items else None
        return InputVersion.of(items if before is None else [("", before[0], str(before[1]))])

    def overhead_bytes(self, n_rows: int) -> int:
        """Return the memory in bytes of a chunk as stored and decoded."""
        return 2 * self.chunk_bytes

    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        """Return the rows; `DamagedChunkError` if they cannot be decoded, `DataError` if the file cannot be opened."""
        rows = f"{self.description}/{self.name}: rows {start} to {stop - 1}"
        with self._opened() as dataset, damage_named(rows, "are damaged or cut short"):
            values = np.asarray(dataset[start:stop])
        values = values.reshape(stop - start, self.shape[1])
        n_chunks = -(-stop // self.chunk_rows) - start // self.chunk_rows
        count = ReadCount(n_chunks, values.nbytes, values.nbytes)
        if out is None:
            return values, count
        out[...] = values
        return out, count
