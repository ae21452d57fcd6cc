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
from streampca.sources.base import Source
from streampca.sources.cells.stored import StoredCells, open_cells
from streampca.sources.files.arrays import BoxReader
from streampca.sources.files.fragments import FragmentedRows
from streampca.sources.files.hdf5 import Hdf5File, opened_beside_others
from streampca.sources.named_arrays import required
from streampca.sources.options import ReadOptions
from streampca.sources.versions import InputVersion, files
from streampca.storage.files import require_regular
from streampca.system.optional import optional_module

if TYPE_CHECKING:
    from h5py import File

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


class H5adFile(Hdf5File):
    """An ``.h5ad`` file, which is locked while it is read, so that no other program writes to it."""

    causes = "is damaged or cut short"

    def __init__(self, path: Path, label: str):
        super().__init__(path)
        self.label = label

    @contextmanager
    def open(self) -> Iterator[File]:
        """Open the file for reading; `DataError` if h5py cannot."""
        h5py_module()
        try:
            require_regular(self.path)
            file = opened_beside_others(self.path, locking=None)
        except OSError as error:
            raise opening_error(self.label, error) from error
        with file:
            yield file


class HDF5Cells(StoredCells):
    """An ``.h5ad`` file, which is open only while it is read.

    Parameters
    ----------
    path : str
        Path of the file.
    """

    kind = "an AnnData file"

    def __init__(self, path: str):
        super().__init__(path)
        self._place = Path(path).absolute()

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the file for reading; `DataError` if h5py cannot."""
        file = H5adFile(self._place, self.label)
        with file.opened_file() as root, file.damage(f"{self.label}:"):
            yield root

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

    def table(self, node: Any, name: str) -> Source:
        """Return the rows of a dense matrix, or the entries of an array of one axis as those of a table of one column."""
        return HDF5Rows(self.label, name)

    def array(self, read: Callable[[Any], Any], node: Any, label: str, *, filled: bool) -> Any:
        """Return what `read` returns for an array; chunks that are not there have its fill value, as HDF5 says."""
        return read(node)


def open_h5ad(path: str, options: ReadOptions) -> Source:
    """Return the rows of an ``.h5ad`` file; raises what `open_cells` raises."""
    return open_cells(HDF5Cells(path), options)


class HDF5Rows(FragmentedRows):
    """A dataset of one or two axes of an AnnData file: its entries, or its rows; chunks that were never written are as HDF5 says.

    Its version is that of the file, but for results that were written into it since.
    """

    def __init__(self, path: str, name: str):
        file = H5adFile(Path(path), path)
        array = required(file, name)
        axes = ((0,), tuple(range(1, len(array.shape))))
        super().__init__([_Entries(file, array, axes, fill=True)], path)
        self.name, self.fragments = name, ()

    @property
    def fingerprint(self) -> str:
        """Return a hash of path, name, shape and dtype; size and time of the file are its `version`."""
        return xxhash.xxh3_128(f"{self.description}|{self.name}|{self.shape}{self.dtype}".encode()).hexdigest()

    def version(self) -> InputVersion | None:
        """Return size and modification time of the file; those from before if nothing but results was written since."""
        path = Path(self.description).absolute()
        with H5adFile(path, self.description).opened_file() as file:
            items = list(files(path, [""]))
            before = before_results(file, int(items[0][2])) if items else None
        return InputVersion.of(items if before is None else [("", before[0], str(before[1]))])


class _Entries(BoxReader):
    """Reads entries of an AnnData file, into which results may be written meanwhile."""

    def require_same(self) -> None:
        """Leave what was changed to the version of the file."""
