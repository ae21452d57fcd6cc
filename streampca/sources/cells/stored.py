"""Stored AnnData, one way for zarr stores and ``.h5ad`` files: anndata names and decodes what is stored, every array is read strictly.

Matrices are named by `anndata.io.sparse_dataset` and read by `CompressedRows`, names and columns by `read_dispatched`, the form of
`anndata.io.read_elem` that hands over each stored array, so that missing chunks, links and sizes are looked at before it is read.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
import zarr

from streampca.errors import DataError, StreamPCAError
from streampca.formatting import one_line
from streampca.labels import SampleColumns
from streampca.sources.base import Source
from streampca.sources.cells.compressed import CompressedColumns, CompressedRows, Nothing, Vector
from streampca.sources.cells.description import (
    MOST_NAMES,
    OBSM,
    RAW,
    Cells,
    checked,
    mask_of,
    require_layer,
    require_length,
    table_of,
    text_of,
)
from streampca.sources.files.arrays import BoxReader
from streampca.sources.files.fragments import FragmentedRows, damage_named
from streampca.sources.files.hdf5 import Hdf5File, opened_beside_others
from streampca.sources.formats import ReadOptions
from streampca.sources.named_arrays import open_named, required
from streampca.sources.versions import InputVersion, files
from streampca.sources.zarr.digests import verified_by
from streampca.sources.zarr.group import ZarrArrays
from streampca.sources.zarr.reader import ZarrSource
from streampca.sources.zarr.strictness import as_stored, read_labels, require_readable
from streampca.storage.files import require_regular
from streampca.system.optional import optional_module
from streampca.typing import Array, IntArray

if TYPE_CHECKING:
    from h5py import File

WRITTEN = "streampca_written"
"""Attribute of a file into which results were written: its time after that, and its size and time before."""
_COLUMNS = ("categorical", "nullable-boolean", "nullable-integer", "nullable-string-array")
"""Encodings of columns that are groups."""
_MOST_BYTES = 2**29
"""Largest array of names or of a column, in bytes."""
_MOST_EDGES = 2**31  # bytes of indptr, which is held in memory


def anndata_module(name: str) -> ModuleType:
    """Return a module of anndata; `NotAvailableError` with the command that installs it if it is not installed."""
    with warnings.catch_warnings(action="ignore"):
        return optional_module(f"anndata.{name}", "stored AnnData", "anndata")


def is_anndata_group(group: zarr.Group) -> bool:
    """Return whether a group is the root of an AnnData store."""
    return bool(group.attrs.get("encoding-type") == "anndata")


class StoredCells(ABC):
    """An AnnData store or file; nodes are those of zarr or h5py, which have much the same interface."""

    kind: str
    """Which kind of data it is in `TAKEN`."""

    label: str
    """What messages call it."""

    @abstractmethod
    def opened(self) -> AbstractContextManager[Any]:
        """Open it for reading, and return its root."""

    @abstractmethod
    def child(self, group: Any, name: str) -> Any:
        """Return the node `name` of a group, None if there is none; `DataError` if it cannot be opened or is a link elsewhere."""

    @abstractmethod
    def table(self, node: Any, name: str) -> Source:
        """Return the rows of a dense matrix, or the entries of an array of one axis as those of a table of one column."""

    @abstractmethod
    def array(self, read: Callable[[Any], Any], node: Any, label: str, *, filled: bool) -> Any:
        """Return what `read` returns for an array, which it reads whole; `filled` says that chunks may be left out in any case."""

    def place_of(self, root: Any, layer: str) -> str:
        """Return the place of a layer; `DataError` if there is no such layer."""
        groups = (self.child(root, name) for name in ("layers", OBSM))
        layers, others = (list(group.keys()) if hasattr(group, "keys") else [] for group in groups)
        raws = [name for name in (RAW, "raw.X") if self.child(root, name) is not None]  # the second before anndata 0.7
        others = [f"{OBSM}/{name}" for name in others]
        require_layer(layer, [*layers, *(RAW for _ in raws[:1]), *others], self.label)
        return raws[0] if layer == RAW else layer if layer in others else f"layers/{layer}"

    def rows(self, root: Any, name: str) -> Source:
        """Return the rows of the matrix `name`; of a sparse one anndata knows form and shape, and where its rows begin is read.

        Raises
        ------
        DataError
            If there is none, or it contradicts itself.
        """
        node, label = self.child(root, name), f"{self.label}/{name}"
        encoding = None if node is None else str(node.attrs.get("encoding-type", ""))
        if encoding in (None, "null"):
            raise DataError(f"{self.label} has no {name}: expected a matrix; name a layer to read instead")
        if hasattr(node, "shape"):
            return self.table(node, name)
        # A slice of `sparse_dataset` decodes a chunk for every block that has some of it, and looks at no column number.
        try:
            stored = anndata_module("io").sparse_dataset(node, should_cache_indptr=False)
        except Exception as error:
            raise DataError(
                f"{label} has encoding-type {encoding[:40]!r}: expected csr_matrix, csc_matrix or array"
            ) from error
        try:
            n_rows, n_columns = stored.shape
        except Exception:  # noqa: BLE001 an attribute of any form
            n_rows = n_columns = -1
        if min(n_rows, n_columns) < 0:
            raise DataError(f"{label} has shape {str(node.attrs.get('shape'))[:60]}: expected two whole numbers")
        arrays = {key: self.child(node, key) for key in ("data", "indices", "indptr")}
        for key, array in arrays.items():
            if not hasattr(array, "shape") or array.ndim != 1:
                found = "none" if array is None else "another node"
                raise DataError(f"{label}: expected a vector {key}, found {found}")
        by_rows = stored.format == "csr"
        n_long, n_short, label = (n_rows, n_columns, label) if by_rows else (n_columns, n_rows, f"{label} (by columns)")
        kind, shape = np.dtype(arrays["indptr"].dtype), arrays["indptr"].shape
        if kind.kind not in "iu" or shape != (n_long + 1,) or shape[0] * kind.itemsize > _MOST_EDGES:
            raise DataError(
                f"{label}: indptr has dtype {kind} and {shape[0]:,} entries: expected {n_long + 1:,} integers, one more than rows"
            )
        data, indices, edges = (
            Vector(self.table(array, f"{name}/{key}") if array.shape[0] else Nothing(self.label, np.dtype(array.dtype)))
            for key, array in arrays.items()
        )
        indptr: IntArray = edges.read(0, edges.size)[0].astype(np.int64)
        compressed = CompressedRows(data, indices, indptr, n_short, self.label, label, edges.source)
        return compressed if by_rows else CompressedColumns(compressed)

    def names(self, root: Any, axis: str, size: int) -> Array | None:
        """Return the names of cells or features, of which the matrix has `size`; None where there are none, or too many.

        Raises
        ------
        DataError
            If they cannot be read.
        """
        frame = self.child(root, axis)
        if frame is None:
            return None
        is_old = _is_records(frame)
        if not is_old and hasattr(frame, "shape"):
            raise DataError(
                f"{self.label}: {axis} is an array of type {frame.dtype}: expected a data frame with the names"
            )
        index = str(frame.attrs.get("_index", "_index"))
        node = frame if is_old else self.child(frame, index)
        stored = (
            node if node is None or hasattr(node, "shape") else self.child(node, "values") or self.child(node, "codes")
        )
        if not hasattr(stored, "shape") or stored.ndim != 1:
            raise DataError(
                f"{self.label}: {axis} has no names that can be read: expected a vector {index[:60]} of text in it"
            )
        require_length(stored.shape[0], size, axis, self.label)
        if size > MOST_NAMES:
            return None
        return text_of(
            self._field(root, axis, frame.dtype.names[0]) if is_old else self._element(node, f"names of {axis}")
        )

    def columns(self, root: Any, axis: str) -> tuple[str, ...]:
        """Return the names of the columns of a data frame."""
        frame = self.child(root, axis)
        if _is_records(frame):
            return tuple(frame.dtype.names[1:])
        order = frame.attrs.get("column-order") if hasattr(frame, "keys") else None
        return tuple(map(str, order)) if isinstance(order, list | tuple | np.ndarray) else ()

    def column(self, root: Any, axis: str, name: str) -> Any:
        """Return a column of a data frame as anndata does, an array of numpy or pandas; None if there is none of that name."""
        frame = self.child(root, axis)
        if _is_records(frame):
            return self._field(root, axis, name) if name in self.columns(root, axis) else None
        node = self.child(frame, name) if name in self.columns(root, axis) else None
        if node is None:
            return None
        values = self._element(node, f"{axis}/{name[:60]}")
        if node.attrs.get("categories") is None or not hasattr(node, "shape"):
            return values
        # Before version 0.8 anndata wrote categories beside the columns; it reads them with all columns of the frame only.
        categories = self.child(frame, f"__categories/{name}")
        if categories is None:
            raise DataError(
                f"{axis}/{name[:60]} of {self.label} has codes of categories, and {axis}/__categories/{name[:60]} does not exist"
            )
        import pandas as pd

        return pd.Categorical.from_codes(values, self._element(categories, f"{axis}/__categories/{name[:60]}"))

    def _field(self, root: Any, axis: str, name: str) -> Any:
        """Return names or a column of a data frame that anndata wrote before version 0.7, as one dataset of records.

        Categories of codes are beside it, in ``uns``.
        """
        frame, categories = self.child(root, axis), self.child(root, f"uns/{name}_categories")
        if frame.size * frame.dtype.itemsize > _MOST_BYTES:
            raise DataError(f"{self.label}/{axis} takes more bytes than expected: at most {_MOST_BYTES:,}")
        values = np.asarray(frame[name])
        if values.dtype.kind not in "iu" or not hasattr(categories, "shape"):
            return values
        known = text_of(np.atleast_1d(categories[()]))
        if not (-1 <= int(values.min(initial=0)) <= int(values.max(initial=0)) < len(known)):
            return values
        import pandas as pd

        return pd.Categorical.from_codes(values, known)

    def _element(self, node: Any, what: str) -> Any:
        """Return names or a column as anndata reads them, each array of them strictly."""

        def one(read: Callable[[Any], Any], _: str, part: Any, iospec: Any) -> Any:
            if not hasattr(part, "shape"):
                if iospec.encoding_type not in _COLUMNS:
                    raise DataError(
                        f"{what} of {self.label} is {iospec.encoding_type or 'a group'}: expected numbers, text or categories"
                    )
                for key in part:
                    self.child(part, key)
                return read(part)
            dtype, label = np.dtype(part.dtype), f"{self.label}/{part.name.strip('/')}"
            if part.ndim != 1 or dtype.kind not in "biufMmUTSO":
                raise DataError(f"{label} has {part.ndim} axes of type {dtype}: expected one of numbers or text")
            if part.shape[0] * dtype.itemsize > _MOST_BYTES:
                n_bytes = part.shape[0] * dtype.itemsize
                raise DataError(f"{label} takes {n_bytes:,} bytes: expected at most {_MOST_BYTES:,}")
            # Of masks of nullable columns, anndata leaves out the chunks without missing values.
            filled = part.name != node.name and part.name.endswith("/mask")
            return self.array(read, part, label, filled=filled)

        try:
            with warnings.catch_warnings(action="ignore"):
                return anndata_module("experimental").read_dispatched(node, one)
        except StreamPCAError:
            raise
        except Exception as error:
            raise DataError(
                f"{what} of {self.label} cannot be decoded: it is damaged or cut short ({one_line(error)})"
            ) from error


class ZarrCells(StoredCells):
    """An AnnData store of zarr, of format 2 or 3.

    Parameters
    ----------
    group : zarr.Group
        Its root, whose metadata are read strictly.
    options : ReadOptions
        How it is opened.
    label : str
        What messages call it.
    """

    kind = "an AnnData store"

    def __init__(self, group: zarr.Group, options: ReadOptions, label: str):
        self.label, self._group, self._options = label, group, options

    def opened(self) -> AbstractContextManager[Any]:
        """Return the root, which needs no closing."""
        return nullcontext(self._group)

    def child(self, group: Any, name: str) -> Any:
        """Return the node `name` of a group, None if there is none; `DataError` if it cannot be opened."""
        try:
            with warnings.catch_warnings(action="ignore"):
                return group.get(name)
        except StreamPCAError:
            raise
        except Exception as error:
            raise DataError(f"{self.label}/{name} cannot be opened: {one_line(error)}") from error

    def table(self, node: Any, name: str) -> Source:
        """Return the rows of a dense matrix, or the entries of an array of one axis as those of a table of one column."""
        label = self.label
        if node.ndim != 1:
            plain = replace(self._options, array=name, mask=None, mask_var=None, layer=None, normalize=None)
            rows = open_named(ZarrArrays(self._group, plain, label), plain)
            rows.labels = rows.feature_names = None
            rows.description = label
            return rows
        array, digests = as_stored(node, label), None
        if self._options.verify is not None:
            digests = verified_by(self._options.verify, label, name)
        source = ZarrSource(array, label, name, ((0,), ()), self._options.fills_data, digests)
        if digests is not None:
            source.require_form_of(digests)
        return source

    def array(self, read: Callable[[Any], Any], node: Any, label: str, *, filled: bool) -> Any:
        """Return what `read` returns for an array whose chunks are all there."""
        array = as_stored(node, label)
        if np.dtype(array.dtype).kind in "biufMm":
            require_readable(array.metadata, np.dtype(array.dtype).itemsize, label)
        return read_labels(array, label, fill=filled or self._options.fills_labels, read=read)


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

    @contextmanager
    def open(self) -> Iterator[File]:
        """Open the file for reading; `DataError` if h5py cannot."""
        optional_module("h5py", "an .h5ad file", "anndata")
        try:
            require_regular(self.path)
            file = opened_beside_others(self.path, locking=None)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else one_line(error)
            if "unable to lock file" in str(error):
                reason = (
                    "another program has it open for writing: close it there; "
                    "for a file system without locks set HDF5_USE_FILE_LOCKING=FALSE in the environment"
                )
            raise DataError(f"{self.label} cannot be opened as an .h5ad file: {reason}") from error
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
        self.label, self._place = path, Path(path).absolute()

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Open the file for reading; `DataError` if h5py cannot."""
        file = H5adFile(self._place, self.label)
        with file.opened_file() as root, damage_named(f"{self.label}:", file.causes):
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


class HDF5Rows(FragmentedRows):
    """A dataset of one or two axes of an AnnData file: its entries, or its rows; chunks that were never written are as HDF5 says.

    Its version is that of the file, but for results that were written into it since.
    """

    def __init__(self, path: str, name: str):
        file = H5adFile(Path(path), path)
        array = required(file, name)
        axes = ((0,), tuple(range(1, len(array.shape))))
        super().__init__([BoxReader(file, array, axes, fill=True, recorded=False)], path)
        self.name = name

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


class ColumnsOfObs(SampleColumns):
    """Columns of ``obs`` of stored AnnData, which is opened for each reading.

    Parameters
    ----------
    stored : StoredCells
        The store or file.
    """

    def __init__(self, stored: StoredCells):
        self._stored = stored

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        with self._stored.opened() as root:
            return self._stored.columns(root, "obs")

    def values(self, name: str) -> Array | None:
        """Return a column, None if there is none of that name; `DataError` if it is damaged, or has missing values."""
        import pandas as pd

        with self._stored.opened() as root:
            values = self._stored.column(root, "obs", name)
        if values is None:
            return None
        if n_missing := int(pd.isna(values).sum()):
            raise DataError(
                f"obs/{name} of {self._stored.label} has {n_missing:,} missing values: expected a label for every cell"
            )
        if hasattr(values.dtype, "numpy_dtype"):  # nullable numbers, which pandas would make objects of
            return np.asarray(values.to_numpy(values.dtype.numpy_dtype))
        found = np.asarray(values)
        return text_of(found) if found.dtype.kind in "OST" else found


def open_cells(stored: StoredCells, options: ReadOptions) -> Source:
    """Return X or a layer as a table of cells; reads names, the mask and where rows begin.

    Raises
    ------
    DataError
        If there is no such layer or mask, or its matrix contradicts itself.
    NotAvailableError
        For options that AnnData does not take, and if anndata is not installed.
    """
    options = checked(options, stored.kind, stored.label)
    return table_of(cells_of(stored, options), options)


def open_h5ad(path: str, options: ReadOptions) -> Source:
    """Return the rows of an ``.h5ad`` file; raises what `open_cells` raises."""
    return open_cells(HDF5Cells(path), options)


def cells_of(stored: StoredCells, options: ReadOptions) -> Cells:
    """Return rows, mask, names and columns of stored AnnData; raises what `open_cells` raises, but for options."""
    anndata_module("io")
    with stored.opened() as root:
        name = "X" if options.layer is None else stored.place_of(root, options.layer)
        var = f"{name[:-1]}var" if name in (RAW, "raw.X") else "var"
        rows = stored.rows(root, name)
        mask = None
        if options.mask_var is not None:
            what = f"{stored.label}: mask_var {options.mask_var[:60]}"
            column = stored.column(root, var, options.mask_var)
            if column is not None:
                require_length(len(column), rows.shape[1], what, stored.label)
            mask = mask_of(column, rows.shape[1], what, stored.columns(root, var))
        features = None if name.startswith(f"{OBSM}/") else stored.names(root, var, rows.shape[1])
        names = (stored.names(root, "obs", rows.shape[0]), features)
    return Cells(rows, mask, *names, ColumnsOfObs(stored))


def _is_records(node: Any) -> bool:
    """Return whether a node is a data frame that anndata wrote before version 0.7: a vector of records, the first field of which is the index."""
    return hasattr(node, "shape") and node.ndim == 1 and bool(node.dtype.names)
