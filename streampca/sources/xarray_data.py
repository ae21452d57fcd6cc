"""DataArrays and Datasets of xarray as tables; xarray itself is never imported.

A variable that was opened from zarr and not changed since is read by our own reader, everything else through its Dask
array, or where it is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

import numpy as np

from streampca.errors import DataError
from streampca.labels import Dimension, Labels, Variable
from streampca.sources.arrays import ArraySource
from streampca.sources.base import Source
from streampca.sources.columns_in_memory import XarrayColumns
from streampca.sources.conventions import describes_others, describing_names
from streampca.sources.coordinates import dimension_of, is_xarray, plain_attributes
from streampca.sources.masks import FROM_DATA, read_mask_file
from streampca.sources.numbered import as_table
from streampca.sources.options import ReadOptions
from streampca.sources.stored_variable import StoredVariable
from streampca.sources.table import table_of
from streampca.system.optional import package_of
from streampca.typing import DType

if TYPE_CHECKING:
    import xarray as xr

    from streampca.sources.packing import Packing
    from streampca.sources.zarr.reader import Axes
    from streampca.storage.zarr_interface import ZarrArray

Data: TypeAlias = "xr.DataArray | xr.Dataset"
_WRAPPERS = ("ImplicitToExplicitIndexingAdapter", "MemoryCachedArray", "CopyOnWriteArray", "LazilyIndexedArray")
_DECODING = ("_scale_offset_decoding", "_apply_mask")
_DEPTH = 12


def is_in_memory(data: object) -> bool:
    """Return whether `data` is an object of xarray whose values are all in memory."""
    if not is_xarray(data):
        return False
    arrays: Iterable[xr.DataArray] = (
        cast("xr.Dataset", data).data_vars.values() if hasattr(data, "data_vars") else [cast("xr.DataArray", data)]
    )
    return all(array.variable._in_memory and array.chunks is None for array in arrays)


def open_xarray(data: Data, options: ReadOptions) -> Source:
    """Return a DataArray, or the variables of a Dataset side by side, as a table.

    Raises
    ------
    DataError
        If variables are not of real numbers, do not share their samples, or lie on different grids.
    ParameterError
        If a name is not that of a variable or a dimension.
    """
    from streampca.sources.zarr.variables import joined_labels  # here, because it imports zarr

    arrays, label = _variables(data, options)
    parts, each = [], []
    for name, array in arrays.items():
        what = f"{label} {name}" if len(arrays) > 1 and name else label
        if array.dtype.kind not in "biuf":
            raise DataError(f"{what} has dtype {array.dtype} and dims {_dims(array)}: expected real numbers")
        axes = _axes(array, options, what)
        parts.append(_opened(array, axes, options, what).with_missing(options.missing_value))
        each.append(_labels(name, array, axes))
    labels = joined_labels(each, label)
    source = table_of(parts, labels, label, None if options.mask is None else _mask(options.mask, data))
    names = [name for name in arrays if name is not None] if _is_dataset(data) else []
    source.sample_columns = XarrayColumns(data, labels.samples, names)
    return source


def _variables(data: Data, options: ReadOptions) -> tuple[dict[str | None, xr.DataArray], str]:
    """Return the DataArrays to read by name, and what messages call the data."""
    if not _is_dataset(data):
        name = None if data.name is None else str(data.name)
        if options.names:
            raise DataError(f"a DataArray has no variables: expected no name, found {', '.join(options.names)}")
        return {name: cast("xr.DataArray", data)}, f"DataArray {name}" if name else "DataArray"
    listing = ", ".join(f"{name} {_dims(array)}" for name, array in data.data_vars.items())
    if options.names:
        for name in options.names:
            if name not in data.data_vars:
                raise DataError(f"the Dataset has no variable {name[:60]!r}: expected some of: {listing}")
        return {name: data[name] for name in options.names}, "Dataset"
    described: set[str] = set().union(*(describing_names(a.attrs | a.encoding) for a in data.variables.values()))
    chosen: dict[str | None, xr.DataArray] = {
        str(name): array
        for name, array in data.data_vars.items()
        if not describes_others(str(name)) and str(name) not in described and array.ndim > 0
    }
    samples = set(options.samples or ())
    bad = [
        str(name) for name, array in chosen.items() if array.dtype.kind not in "biuf" or not samples <= set(array.dims)
    ]
    if not chosen or bad:
        reason = f"{', '.join(bad)} cannot be read on these samples as numbers" if bad else "it has no data variables"
        raise DataError(
            f"the Dataset has the variables {listing or 'none'}: {reason}; name those to read: sp.open(data, variables=[…], samples=…)"
        )
    return chosen, "Dataset"


def _is_dataset(data: Data) -> TypeGuard[xr.Dataset]:
    return hasattr(data, "data_vars")


def _dims(array: xr.DataArray) -> str:
    return f"({', '.join(f'{dim}: {size:,}' for dim, size in zip(array.dims, array.shape, strict=True))})"


def _axes(array: xr.DataArray, options: ReadOptions, label: str) -> Axes:
    """Return the axes of samples and those of features."""
    from streampca.sources.zarr.dimensions import axes_of

    if array.ndim == 1 and options.samples is not None and options.features is None:
        raise DataError(f"{label} has the dims {_dims(array)}: no dimension is left for features")
    return axes_of([str(dim) for dim in array.dims], array.shape, options, label)


def _labels(name: str | None, array: xr.DataArray, axes: Axes) -> Labels:
    """Return the labels of one DataArray."""
    dimensions = [dimension_of(array, dim, int(size)) for dim, size in zip(array.dims, array.shape, strict=True)]
    rows, columns = axes
    features = tuple(_with_others(array, dimensions[axis]) for axis in columns)
    shape = tuple(dimension.size for dimension in features)
    variable = Variable(name, tuple(dimension.name for dimension in features), shape, plain_attributes(array.attrs))
    return Labels(tuple(dimensions[axis] for axis in rows), features, (variable,))


def _with_others(array: xr.DataArray, dimension: Dimension) -> Dimension:
    """Return a dimension of features with all coordinates of numbers along it, such as levels of a MultiIndex."""
    others = {
        str(name): Dimension(str(name), dimension.size, np.asarray(each.values), plain_attributes(each.attrs))
        for name, each in array.coords.items()
        if tuple(map(str, each.dims)) == (dimension.name,) and str(name) != dimension.name and each.dtype.kind in "iuf"
    }
    return replace(dimension, others=others)


def _mask(mask: object, data: Data) -> object:
    """Return a mask, read where it is a file or in the Dataset."""
    if isinstance(mask, str) and mask in FROM_DATA:
        return mask
    if isinstance(mask, str) and _is_dataset(data) and mask in data.variables:
        mask = data[mask]
    elif isinstance(mask, str) or hasattr(mask, "__fspath__"):
        return read_mask_file(str(mask))
    return mask


def _opened(array: xr.DataArray, axes: Axes, options: ReadOptions, label: str) -> StoredVariable:
    """Return one DataArray as a part of a table, read where it is stored if nothing has changed it."""
    stored = stored_array(array)
    if stored is not None and (part := _read_natively(*stored, axes, options)) is not None:
        return part.decoded_to(array.dtype) if options.decode != "raw" else part
    order = (*axes[0], *axes[1])
    n_rows, n_columns = (math.prod(array.shape[axis] for axis in side) for side in axes)
    lazy = _lazy(array)
    if lazy is not None:
        from streampca.sources.dask import DaskSource

        return StoredVariable(replaced_description(DaskSource(as_table(lazy, axes), options.max_reads), label))
    values = np.asarray(array.values).transpose(order).reshape(n_rows, n_columns)
    return StoredVariable(ArraySource(values, label))


def replaced_description(source: Source, label: str) -> Source:
    """Return `source`, which messages call `label` from now on."""
    source.description = label
    return source


def _read_natively(
    stored: ZarrArray, decoding: Mapping[str, Any] | None, axes: Axes, options: ReadOptions
) -> StoredVariable | None:
    """Return a part that our own reader reads from zarr, None if it would decode values in another way than xarray does."""
    from streampca.sources.packing import Packing
    from streampca.sources.remote import place_of
    from streampca.sources.zarr.reader import ZarrSource
    from streampca.sources.zarr.strictness import as_stored

    place = place_of(stored)
    array = as_stored(stored, place, options.follow_symlinks)
    packing = None
    if decoding is not None and options.decode != "raw":
        if options.missing_value is not None:  # a number among those that xarray shows, not among the stored ones
            return None
        packing = Packing.of(array.metadata, place)
        if not _decodes_alike(packing, decoding, np.dtype(array.dtype)):
            return None
    fill = options.fills_data
    return StoredVariable(ZarrSource(array, place, None, axes, fill, None, options.follow_symlinks), packing)


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


def _lazy(array: xr.DataArray) -> Any:
    """Return the Dask array of a DataArray, None if its values are in memory."""
    if array.chunks is not None:
        return array.data
    if array.variable._in_memory:
        return None
    preferred = array.encoding.get("preferred_chunks") or {}
    return array.chunk({dim: preferred.get(dim, "auto") for dim in array.dims}).data
