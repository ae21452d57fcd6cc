"""AnnData files (``.h5ad``), read through h5py by their documented encoding; anndata itself is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from streampca.errors import DataError
from streampca.formatting import one_line
from streampca.sources.base import ReadCount, Source, require_table
from streampca.sources.cells.compressed import CompressedRows
from streampca.sources.cells.description import (
    MOST_NAMES,
    mask_of,
    require_by_rows,
    require_edges,
    require_layer,
    require_length,
    require_options,
    table_of,
)
from streampca.sources.cells.hdf5_files import ObsOfFile, h5py_module, opened_h5ad, opening_error
from streampca.sources.cells.vectors import Nothing, Vector
from streampca.sources.files.fragments import damage_named
from streampca.sources.grid import Grid
from streampca.sources.options import ReadOptions
from streampca.sources.versions import InputVersion, InputWatch, files
from streampca.typing import Array, BoolArray

if TYPE_CHECKING:
    from h5py import Dataset, File, Group


WRITTEN = "streampca_written"
"""Attribute of a file into which results were written: its time after that, and its size and time before."""


def open_h5ad(path: str, options: ReadOptions) -> Source:
    """Return X or a layer of the ``.h5ad`` file at `path` as a table of cells; raises what `open_cells` of zarr raises."""
    h5py, normalization = h5py_module(), require_options(options, path)
    with opened_h5ad(path) as file:
        layers = _child(file, "layers", path)
        require_layer(options.layer, list(layers) if isinstance(layers, h5py.Group) else [], path)
        name = "X" if options.layer is None else f"layers/{options.layer}"
        rows = _rows(h5py, file, name, path)
        mask = None if options.mask_var is None else _mask(h5py, file, options.mask_var, rows.shape[1], path)
        names = (_names(h5py, file, "obs", rows.shape[0], path), _names(h5py, file, "var", rows.shape[1], path))
    return table_of(rows, options, normalization, mask, names, ObsOfFile(path))


def open_x_of_h5ad(path: str) -> Source:
    """Return the rows of X of the ``.h5ad`` file at `path`, of all features."""
    with opened_h5ad(path) as file:
        return _rows(h5py_module(), file, "X", path)


def before_results(file: File, modified: int) -> tuple[int, int] | None:
    """Return size and time that an open file had before results were written into it.

    None if there are none, or the file, `modified` at this time, was changed after that. Times are in nanoseconds.
    """
    written = file.attrs.get(WRITTEN)
    known = np.asarray([] if written is None else written)
    if known.shape != (3,) or known.dtype.kind != "i" or int(known[0]) != modified:
        return None
    return int(known[1]), int(known[2])


def _child(group: Group, name: str, label: str) -> Dataset | Group | None:
    """Return what is at `name`, None if there is nothing; links to other files are refused."""
    node = group
    for part in name.split("/"):
        link = node.get(part, getlink=True) if hasattr(node, "keys") and part in node.keys() else None  # noqa: SIM118
        if link is None:
            return None
        if type(link).__name__ == "ExternalLink":
            raise DataError(f"{label}: {name} is a link to another file: expected the data in this one")
        node = node[part]
    if getattr(node, "is_virtual", False) or getattr(node, "external", None):
        raise DataError(f"{label}: {name} is stored in other files: expected the data in this one")
    return node


def _rows(h5py: ModuleType, file: File, name: str, path: str) -> Source:
    """Return the rows of the matrix `name` of an open file; `DataError` if there is none."""
    node, label = _child(file, name, path), f"{path}/{name}"
    if node is None or node.attrs.get("encoding-type") == "null":
        raise DataError(f"{path} has no {name}: expected a matrix; name a layer to read that")
    if isinstance(node, h5py.Dataset):
        return HDF5Rows(path, name)
    kind = node.attrs.get("encoding-type", "")
    require_by_rows(str(kind), label)
    shape = np.asarray(node.attrs.get("shape"))
    if shape.dtype.kind not in "iu" or shape.shape != (2,) or int(shape.min()) < 0:
        raise DataError(f"{label} has shape {str(shape)[:60]}: expected two whole numbers")
    for key in ("data", "indices", "indptr"):
        vector = _child(node, key, label)
        if not isinstance(vector, h5py.Dataset) or vector.ndim != 1:
            raise DataError(f"{label}: expected a vector {key}, found {'none' if vector is None else 'another node'}")
    indptr = node["indptr"]
    n_rows = int(shape[0])
    require_edges(indptr.dtype, indptr.shape, n_rows, label)
    edges = _whole(indptr, f"{label}: indptr").astype(np.int64)
    data, indices = (
        Vector(HDF5Rows(path, f"{name}/{key}") if node[key].size else Nothing(path, node[key].dtype))
        for key in ("data", "indices")
    )
    return CompressedRows(data, indices, edges, int(shape[1]), path, label)


def _whole(dataset: Dataset, label: str) -> Array:
    try:
        return np.asarray(dataset[()])
    except Exception as error:
        raise DataError(f"{label} cannot be decoded: it is damaged or cut short ({one_line(error)})") from error


def _mask(h5py: ModuleType, file: File, name: str, n_features: int, path: str) -> BoolArray:
    """Return the column of ``var`` that `name` names."""
    what = f"{path}: mask_var {name[:60]}"
    node = _child(file, f"var/{name}", path)
    if isinstance(node, h5py.Group) and node.attrs.get("encoding-type") == "nullable-boolean":
        if bool(_whole(node["mask"], what).any()):
            raise DataError(f"{what} has missing values: expected true or false for every feature")
        node = node["values"]
    if node is None:
        known = ", ".join(list(file["var"])[:12]) if "var" in file else ""
        raise DataError(f"{what}: var has no such column: expected one of {known or 'none'}")
    if not isinstance(node, h5py.Dataset) or node.dtype.kind != "b" or node.ndim != 1:
        found = node.attrs.get("encoding-type") if isinstance(node, h5py.Group) else node.dtype
        raise DataError(f"{what} holds {found}: expected truth values (bool)")
    require_length(node.shape[0], n_features, what, path)
    return mask_of(_whole(node, what), n_features, what)


def _names(h5py: ModuleType, file: File, axis: str, size: int, path: str) -> Array | None:
    """Return the names of cells (``obs``) or features (``var``), None where there are none, or too many."""
    frame = _child(file, axis, path)
    if not isinstance(frame, h5py.Group):
        return None
    node = _child(frame, str(frame.attrs.get("_index", "_index")), f"{path}/{axis}")
    if isinstance(node, h5py.Group):
        node = _child(node, "values", f"{path}/{axis}")
    if not isinstance(node, h5py.Dataset) or node.ndim != 1:
        return None
    require_length(node.shape[0], size, axis, path)
    if size > MOST_NAMES:
        return None
    values = _whole(node, f"{path}: names of {axis}").tolist()
    return np.array([v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values], dtype=str)


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
