"""Arrays of any number of dimensions as tables: of numpy and Dask, whose dimensions are dim_0, dim_1 and so on, and of other libraries.

Those that read a slice when they are indexed, such as variables of netCDF4, are read by chunks, through Dask.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.errors import DataError, NotAvailableError
from streampca.sources.arrays import ArraySource, MappedSource
from streampca.sources.base import Source, require_numbers
from streampca.sources.dimensions import Axes
from streampca.sources.named_arrays import NamedArray, NamedArrays
from streampca.sources.options import ReadOptions
from streampca.sources.stored_variable import StoredVariable
from streampca.system.optional import package_of
from streampca.typing import Array, DType

if TYPE_CHECKING:
    import dask.array as da


class NumberedArray(NamedArrays):
    """An array of numpy or Dask, by the numbers of its dimensions; rows of a memory map are not copied, or `NotAvailableError` is raised."""

    kind = place = "array"

    def __init__(self, data: Any, label: str | None = None):
        in_memory = isinstance(data, np.ndarray)
        self.label = label or (
            "memory map" if isinstance(data, np.memmap) else "array" if in_memory else f"dask array {data.name}"
        )
        self.array = NamedArray(
            None, tuple(f"dim_{axis}" for axis in range(data.ndim)), data.shape, data.dtype, {}, data
        )

    def listed(self) -> Mapping[str, NamedArray]:
        """Return no names."""
        return {}

    def default(self, options: ReadOptions) -> list[NamedArray]:
        """Return the array."""
        return [self.array]

    def opened(self, array: NamedArray, axes: Axes, options: ReadOptions) -> StoredVariable:
        """Return the array as a table."""
        return StoredVariable(rows_of(array.stored, axes, self.label, options.max_reads))

    def read(self, array: NamedArray, label: str) -> Array:
        """Return the values of the array."""
        return np.asarray(array.stored)


def rows_of(data: Any, axes: Axes, label: str, max_reads: float | None) -> Source:
    """Return an array of numpy or Dask, which messages call `label`, as a table of rows and columns."""
    if not isinstance(data, np.ndarray):
        from streampca.sources.dask import DaskSource

        lazy = DaskSource(as_table(data, axes), max_reads)
        lazy.description = label
        return lazy
    n_rows, n_columns = (math.prod(data.shape[axis] for axis in side) for side in axes)
    values: Any = data.transpose((*axes[0], *axes[1])).reshape(n_rows, n_columns)
    if not isinstance(data, np.memmap):
        return ArraySource(values, label)
    if not np.may_share_memory(values, data):
        raise NotAvailableError(
            f"{label} of shape {data.shape}: rows along these dimensions are not in one piece in the file: write it to zarr, of which "
            "any dimensions are rows"
        )
    return MappedSource(values, label)


def as_table(lazy: Any, axes: Axes) -> Any:
    """Return an N-dimensional Dask array as one of rows and columns, each chunk of which is made of whole chunks.

    Chunks are joined along all axes but the slowest of samples and that of features, so a pass reads each of them once.
    """
    import dask

    from streampca.sources.dask import as_declared, require_graph

    require_graph(lazy)
    rows, columns = axes
    moved = lazy.transpose((*rows, *columns))
    shape = tuple(math.prod(lazy.shape[axis] for axis in side) for side in axes)
    inner = [axis for axis in range(moved.ndim) if axis not in (0, len(rows))]
    settings = {"array.rechunk.method": "tasks", "array.slicing.split-large-chunks": False}
    with dask.config.set(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return as_declared(moved).rechunk(dict.fromkeys(inner, -1)).reshape(shape) if inner else moved


_IN_MEMORY = ("__array_interface__", "__cuda_array_interface__", "__dlpack__", "__dataframe__", "__arrow_c_stream__")
_CHUNK_BYTES = 2**23
"""Size of a block, of whole chunks; of arrays without chunks some rows."""


def is_lazy_array(data: object) -> bool:
    """Return whether `data` is an array of at least two dimensions that is not in memory: it has a shape, a type, and is indexed."""
    shape, kind = getattr(data, "shape", None), type(data)
    if isinstance(data, np.ndarray | np.generic) or not isinstance(shape, tuple) or len(shape) < 2:
        return False
    if package_of(data) in ("dask", "zarr", "xarray", "scipy", "sparse", "pandas", "polars", "pyarrow"):
        return False
    known = (
        hasattr(data, "dtype") and hasattr(kind, "__getitem__") and all(isinstance(n, int | np.integer) for n in shape)
    )
    return known and not any(hasattr(kind, name) for name in _IN_MEMORY)


def stored_dataset(data: Any) -> tuple[str, str] | None:
    """Return the path of the file and the name of a dataset of h5py that our own reader opens; None for other arrays.

    These are written to while they are read, or their values lie elsewhere.
    """
    if package_of(data) != "h5py":
        return None
    file = data.file
    ours = file.mode == "r" and file.driver in ("sec2", "stdio") and not data.is_virtual and not data.external
    return (file.filename, data.name) if ours and Path(file.filename).is_file() else None


def lazy_blocks(data: Any) -> da.Array:
    """Return a lazy array as a Dask array of whole chunks of about 8 MiB, one of which is read at a time.

    Raises
    ------
    DataError
        If it is not of real numbers, or indexing it does not give numpy arrays.
    """
    import dask.array as da
    from dask.array.core import normalize_chunks

    wrapped = _Indexed(data)
    chunks = _chunks_of(data)
    blocks = normalize_chunks(  # type: ignore[no-untyped-call]
        "auto" if chunks else {0: "auto", **dict.fromkeys(range(1, len(wrapped.shape)), -1)},
        wrapped.shape,
        limit=max(_CHUNK_BYTES, math.prod(chunks or (1,)) * wrapped.dtype.itemsize),
        dtype=wrapped.dtype,
        previous_chunks=chunks,
    )
    lazy: da.Array = da.from_array(wrapped, chunks=blocks, name=False, lock=True, asarray=False, meta=wrapped.empty)  # type: ignore[no-untyped-call]
    return lazy


def _chunks_of(data: Any) -> tuple[int, ...] | None:
    """Return the shape of the chunks of an array as its library says it, None where it has or tells none."""
    found = getattr(data, "chunks", None)
    if found is None and hasattr(data, "chunking"):
        found = data.chunking()
    if not isinstance(found, tuple | list) or len(found) != len(data.shape):
        return None
    if not all(isinstance(n, int | np.integer) and n > 0 for n in found):
        return None
    return tuple(min(int(n), int(size)) for n, size in zip(found, data.shape, strict=True))


class _Indexed:
    """The array-like face of a lazy array for `dask.array.from_array`: numpy arrays without a mask, NaN for masked values.

    Its type is that of the first value, which libraries decode: packed integers are shown as floats.
    """

    def __init__(self, data: Any):
        self.data, self.shape, self.ndim = data, tuple(map(int, data.shape)), len(data.shape)
        self.label = f"{type(data).__module__}.{type(data).__qualname__} of shape {self.shape}"
        if 0 in self.shape:
            self.empty: Array = np.empty((0,) * self.ndim)
        else:
            self.empty = self[(slice(0, 1),) * self.ndim][(slice(0, 0),) * self.ndim]
        self.dtype: DType = self.empty.dtype
        require_numbers(self.dtype, self.label)

    def __getitem__(self, key: Any) -> Array:
        found = self.data[key]
        if type(found) is not np.ndarray and hasattr(found, "read"):  # tensorstore reads when it is asked to
            found = found.read().result()
        if not isinstance(found, np.ndarray):
            raise DataError(f"{self.label} gives {type(found).__name__} where it is indexed: expected numpy arrays")
        if not isinstance(found, np.ma.MaskedArray):
            return found.astype(found.dtype.newbyteorder("="), copy=False)
        dtype = np.dtype(np.float64) if found.dtype.kind in "biu" else found.dtype.newbyteorder("=")
        return np.ma.filled(found.astype(dtype), np.nan)
