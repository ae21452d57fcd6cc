"""Arrays of other libraries that read a slice when indexed, and DataArrays and Datasets of xarray, as tables; xarray is never imported.

A variable of xarray that was opened from zarr and not changed since is read by our own reader, everything else through its Dask
array, or where it is in memory.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import numpy as np

from streampca.errors import DataError, NotAvailableError
from streampca.labels import Dimension, Labels, SampleColumns
from streampca.sources.arrays import ArraySource, MappedSource, is_bfloat16, widened
from streampca.sources.base import Source, require_numbers
from streampca.sources.conventions import describes_others, describing_names, plain_attributes
from streampca.sources.features import Axes
from streampca.sources.formats import ReadOptions
from streampca.sources.frames import dimension_of, is_xarray
from streampca.sources.named_arrays import ArrayColumns, NamedArray, NamedArrays, open_named
from streampca.sources.table import StoredVariable
from streampca.system.optional import package_of
from streampca.typing import Array, DType

if TYPE_CHECKING:
    import dask.array as da
    import xarray as xr

    from streampca.sources.conventions import Packing
    from streampca.storage.zarr_interface import ZarrArray
_IN_MEMORY = ("__array_interface__", "__cuda_array_interface__", "__dlpack__", "__dataframe__", "__arrow_c_stream__")
_CHUNK_BYTES = 2**23
"""Size of a block, of whole chunks; of arrays without chunks some rows."""
Data: TypeAlias = "xr.DataArray | xr.Dataset"
_WRAPPERS = ("ImplicitToExplicitIndexingAdapter", "MemoryCachedArray", "CopyOnWriteArray", "LazilyIndexedArray")
_DECODING = ("_scale_offset_decoding", "_apply_mask")
_DEPTH = 12


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
            f"{label} of shape {data.shape}: rows along these dimensions are not contiguous in the file: write it to zarr, where "
            "any dimensions can form rows"
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
            raise DataError(f"{self.label} returns {type(found).__name__} when indexed: expected numpy arrays")
        found = widened(np.asarray(found)) if is_bfloat16(found.dtype) else found
        if not isinstance(found, np.ma.MaskedArray):
            return found.astype(found.dtype.newbyteorder("="), copy=False)
        dtype = np.dtype(np.float64) if found.dtype.kind in "biu" else found.dtype.newbyteorder("=")
        return np.ma.filled(found.astype(dtype), np.nan)


def is_in_memory(data: object) -> bool:
    """Return whether `data` is an object of xarray whose values are all in memory."""
    if not is_xarray(data):
        return False
    arrays: Iterable[xr.DataArray] = (
        cast("xr.Dataset", data).data_vars.values() if hasattr(data, "data_vars") else [cast("xr.DataArray", data)]
    )
    return all(array.variable._in_memory and array.chunks is None for array in arrays)


def open_xarray(data: Data, options: ReadOptions) -> Source:
    """Return a DataArray, or the variables of a Dataset or of a group of a DataTree side by side, as a table; raises what `open_named` raises."""
    if hasattr(data, "subtree"):
        data, options = _group_of(data, options)
    arrays = XarrayArrays(data)
    options.require_only(f"a {arrays.place}", arrays.label)
    return open_named(arrays, options)


def _group_of(tree: Any, options: ReadOptions) -> tuple[xr.Dataset, ReadOptions]:
    """Return the group of a DataTree that holds the variables that the options name, and the options with their names in it.

    Raises
    ------
    DataError
        If they are in several groups, or none is named and there are several with variables.
    """
    groups = {node.path.strip("/"): node for node in tree.subtree if node.data_vars}
    names = [name.strip("/") for name in options.names]
    wanted = {name.rpartition("/")[0] for name in names} or set(groups)
    if len(wanted) != 1 or not wanted <= set(groups):
        known = ["/".join(filter(None, (path, str(name)))) for path, node in groups.items() for name in node.data_vars]
        there = ", ".join(sorted(known))
        found = f"no group {', '.join(sorted(wanted))}" if len(wanted) == 1 else f"{len(wanted)} groups with variables"
        raise DataError(
            f"DataTree: found {found}: expected array or variables of one group, such as {there or 'those of a tree with variables'}"
        )
    own = tuple(name.rpartition("/")[2] for name in names)
    one = {"variables": own} if options.variables is not None else {"array": own[0]} if own else {}
    return groups[wanted.pop()].to_dataset(), replace(options, **one)


class XarrayArrays(NamedArrays):
    """The variables and coordinates of a Dataset, or a DataArray and its coordinates."""

    kind = "variable"

    def __init__(self, data: Data):
        self.data = data
        self.place = "Dataset" if _is_dataset(data) else "DataArray"
        self.label = self.place if _is_dataset(data) or data.name is None else f"DataArray {data.name}"

    def listed(self) -> Mapping[str, NamedArray]:
        """Return all variables and coordinates."""
        named = self.data.variables if _is_dataset(self.data) else self.data.coords
        return {str(name): _named(str(name), self.data[name]) for name in named}

    def listing(self) -> str:
        """Return the variables of a Dataset for messages."""
        variables = self.data.data_vars if _is_dataset(self.data) else {}
        return ", ".join(f"{name} {_dims(array)}" for name, array in variables.items()) or "none"

    def default(self, options: ReadOptions) -> list[NamedArray]:
        """Return the DataArray, or all variables of a Dataset that describe no other."""
        if not _is_dataset(self.data):
            array = cast("xr.DataArray", self.data)
            return [_named(None if array.name is None else str(array.name), array)]
        described: set[str] = set().union(
            *(describing_names(a.attrs | a.encoding) for a in self.data.variables.values())
        )
        chosen = [
            _named(str(name), array)
            for name, array in self.data.data_vars.items()
            if not describes_others(str(name)) and str(name) not in described and array.ndim > 0
        ]
        samples = set(options.samples or ())
        bad = [str(a.name) for a in chosen if a.dtype.kind not in "biuf" or not samples <= set(a.dims)]
        if not chosen or bad:
            reason = (
                f"{', '.join(bad)} cannot be read on these samples as numbers" if bad else "it has no data variables"
            )
            raise DataError(
                f"the Dataset has the variables {self.listing()}: {reason}; name those to read: sp.open(data, variables=[…], samples=…)"
            )
        return chosen

    def title(self, array: NamedArray) -> str:
        """Return the name of a variable in messages."""
        return f"{self.label} {array.name}" if _is_dataset(self.data) else self.label

    def table_label(self, chosen: object) -> str:
        """Return what messages call the object."""
        return self.label

    def dimension(self, array: NamedArray, axis: int) -> Dimension:
        """Return a dimension with its index."""
        return dimension_of(array.stored, array.stored.dims[axis], array.shape[axis])

    def labels_of(self, array: NamedArray, axes: Axes) -> Labels:
        """Return the labels of a variable, with all coordinates of numbers along dimensions of features, such as levels of a MultiIndex."""
        labels, features = super().labels_of(array, axes), []
        for own in labels.features:
            others = {
                str(name): Dimension(str(name), own.size, np.asarray(each.values), plain_attributes(each.attrs))
                for name, each in array.stored.coords.items()
                if tuple(map(str, each.dims)) == (own.name,) and str(name) != own.name and each.dtype.kind in "iuf"
            }
            features.append(replace(own, others=others))
        return replace(labels, features=tuple(features))

    def columns_beside(self, array: NamedArray, features: Sequence[Dimension]) -> SampleColumns | None:
        """Return the coordinates of a variable along dimensions of its features; its values are not kept with them."""
        return ArrayColumns(XarrayArrays(array.stored.coords.to_dataset()), features)

    def read(self, array: NamedArray, label: str) -> Array:
        """Return the values of a variable or coordinate."""
        return np.asarray(array.stored.values)

    def values(self, array: NamedArray, label: str, most: int = 0) -> Array | None:
        """Return the values as xarray has decoded them."""
        return self.read(array, label)

    def mask(self, name: str, labels: Labels, label: str) -> object:
        """Return a variable of the Dataset, whose labels are compared with those of the table."""
        return self.data[name] if self.find(name) is not None else super().mask(name, labels, label)

    def opened(self, array: NamedArray, axes: Axes, options: ReadOptions) -> StoredVariable:
        """Return a variable as a part of a table, read where it is stored if nothing has changed it."""
        data, label = array.stored, self.title(array)
        if array.dtype.kind not in "biuf":
            raise DataError(f"{label} has dtype {array.dtype} and dims {_dims(data)}: expected real numbers")
        if not axes[1]:
            raise DataError(f"{label} has the dims {_dims(data)}: no dimension is left for features")
        stored = stored_array(data)
        if stored is not None and (part := _read_natively(*stored, axes, options)) is not None:
            return part.decoded_to(array.dtype) if options.decode != "raw" else part
        if data.chunks is not None:
            values = data.data
        elif data.variable._in_memory:
            values = np.asarray(data.values)
        else:
            preferred = data.encoding.get("preferred_chunks") or {}
            values = data.chunk({dim: preferred.get(dim, "auto") for dim in data.dims}).data
        return StoredVariable(rows_of(values, axes, label, options.max_reads))


def _named(name: str | None, array: xr.DataArray) -> NamedArray:
    dims, shape = tuple(map(str, array.dims)), tuple(map(int, array.shape))
    return NamedArray(name, dims, shape, array.dtype, array.attrs, array)


def _is_dataset(data: Data) -> TypeGuard[xr.Dataset]:
    return hasattr(data, "data_vars")


def _dims(array: xr.DataArray) -> str:
    return f"({', '.join(f'{dim}: {size:,}' for dim, size in zip(array.dims, array.shape, strict=True))})"


def _read_natively(
    stored: ZarrArray, decoding: Mapping[str, Any] | None, axes: Axes, options: ReadOptions
) -> StoredVariable | None:
    """Return a part that our own reader reads from zarr, None if it would decode values in another way than xarray does."""
    from streampca.sources.conventions import Packing
    from streampca.sources.conventions import packing as declared
    from streampca.sources.remote import place_of
    from streampca.sources.zarr.reader import ZarrSource
    from streampca.sources.zarr.strictness import as_stored

    place = place_of(stored)
    array = as_stored(stored, place)
    packing = None
    if decoding is not None and options.decode != "raw":
        if options.missing_value is not None:  # a number among those that xarray shows, not among the stored ones
            return None
        packing = Packing.of_attributes(declared(array.metadata), np.dtype(array.dtype), place)
        if packing is not None:  # xarray shows values out of the valid range as they are
            packing = replace(packing, valid=(-math.inf, math.inf))
        if not _decodes_alike(packing, decoding, np.dtype(array.dtype)):
            return None
    fill = options.fills_data
    return StoredVariable(ZarrSource(array, place, None, axes, fill), packing)


def _decodes_alike(packing: Packing | None, decoding: Mapping[str, Any], stored: DType) -> bool:
    """Return whether `packing`, by the attributes in the store, decodes as the functions of xarray with these parameters.

    Attributes of a Dataset may be changed before it is decoded, and xarray takes the fill value 0 of zarr format 2 for missing.
    """
    dtype = stored if packing is None else packing.stored
    fills = {dtype.type(fill).item() for fill in (() if packing is None else packing.fills)}
    theirs = {dtype.type(fill).item() for fill in decoding.get("encoded_fill_values") or () if fill == fill}  # not NaN
    neutral = (("scale_factor", 1.0), ("add_offset", 0.0))
    scaling = [value if decoding.get(name) is None else float(decoding[name]) for name, value in neutral]
    return fills == theirs and scaling == ([1.0, 0.0] if packing is None else [packing.scale, packing.offset])


def stored_array(array: xr.DataArray) -> tuple[ZarrArray, dict[str, Any] | None] | None:
    """Return the zarr array behind a DataArray that was opened and not changed since, and the parameters of its decoding, if any.

    None where anything but the decoding of packed values stands between the two: a selection, a computation, another order
    of axes, or values in memory.
    """
    inner: Any = array.variable._data
    if type(inner).__module__.startswith("dask.array"):
        inner = _origin(inner)
    decoding: dict[str, Any] | None = None
    for _ in range(_DEPTH):
        kind, package = type(inner).__name__, package_of(inner)
        if package == "zarr" and kind == "Array":
            same = inner.shape == array.shape and (decoding is not None or np.dtype(inner.dtype) == array.dtype)
            return (inner, decoding) if same else None
        if package != "xarray":
            return None
        if kind == "ZarrArrayWrapper":
            inner = getattr(inner, "_array", None)
        elif kind == "_ElementwiseFunctionArray":
            function = getattr(inner.func, "func", inner.func)
            if getattr(function, "__name__", "") not in _DECODING or function.__module__.partition(".")[0] != "xarray":
                return None
            decoding = {**(decoding or {}), **getattr(inner.func, "keywords", {})}
            inner = inner.array
        elif kind in _WRAPPERS:
            key = getattr(getattr(inner, "key", None), "tuple", ())
            if not all(isinstance(part, slice) and part == slice(None) for part in key):
                return None
            inner = inner.array
        else:
            return None
    return None


def _origin(lazy: Any) -> object:
    """Return the object that a Dask array takes its chunks from, None if it does anything else with them."""
    layers = getattr(lazy.dask, "layers", {})
    name = f"original-{lazy.name}"
    if set(layers) != {lazy.name, name}:
        return None
    return dict(layers[name]).get(name)
