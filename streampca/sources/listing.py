"""Content of a zarr store or files: arrays, dimensions and a proposed table, and the weights and classes named in a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from streampca.errors import DataError, NotAvailableError, StreamPCAError
from streampca.labels import Dimension
from streampca.sources.arrays import read_array
from streampca.sources.conventions import VALID, require_unpacked
from streampca.sources.features import likely_samples
from streampca.sources.files.paths import files_of
from streampca.sources.formats import ReadOptions, StorageOptions
from streampca.sources.named_arrays import NamedArray, NamedArrays
from streampca.typing import Array, DType, Json

_MAX_BYTES = 2**34
_TIMES = ("time", "t", "date", "datetime", "valid_time", "frame")
_PLACES = ({"y", "x"}, {"row", "column"}, {"height", "width"}, {"lat", "lon"}, {"latitude", "longitude"})


@dataclass(frozen=True)
class Listing:
    """What a zarr store, or files, hold."""

    arrays: tuple[Json, ...]
    """Shape, dims, data type, chunks, units and packing of each array, and its name in a group."""
    dimensions: tuple[Json, ...]
    """Name, size, first and last coordinate and units of the dimensions of the arrays that may be tables."""
    proposal: Json | None
    """Keys of ``source`` that read it as a table; None where nothing need be said, or nothing can be proposed."""
    is_group: bool
    """Whether there are arrays to choose from."""
    is_anndata: bool = False
    """Whether it is an AnnData store, which is read as a table by itself."""


def list_store(path: str, storage_options: StorageOptions | None = None, array: str | None = None) -> Listing:
    """Return what the zarr store, HDF5 or NetCDF files at `path` hold; dimensions and proposal are those of the member `array` where one is named.

    Reads metadata and coordinates.

    Raises
    ------
    DataError
        If there is nothing of that kind.
    """
    place = arrays_at(path, ReadOptions(storage_options=storage_options))
    if place.place == "array":
        return _listing(place, {"": place.default(ReadOptions())[0]}, False)
    arrays, possible = dict(sorted(place.listed().items())), place.candidates()
    tables = [name for name in arrays if name in possible and arrays[name].dtype.kind != "b"]  # truth values are masks
    tables = [name for name in tables if array in (None, name)] or [name for name in arrays if name == array]
    return _listing(place, arrays, True, tables)


def _listing(
    place: NamedArrays, arrays: Mapping[str, NamedArray], is_group: bool, tables: Sequence[str] = ("",)
) -> Listing:
    import zarr

    from streampca.sources.cells.stored import is_anndata_group
    from streampca.sources.zarr.group import ZarrArrays

    dimensions: dict[str, Dimension] = {}
    for name in tables:
        for axis, dim in enumerate(arrays[name].dims):
            if dim not in dimensions:
                dimensions[dim] = _dimension(place, arrays[name], axis)
    return Listing(
        tuple(_of_array(name, member) for name, member in arrays.items()),
        tuple(dimension.describe() for dimension in dimensions.values()),
        _proposal({name: arrays[name] for name in tables}, dimensions),
        is_group,
        isinstance(place, ZarrArrays) and isinstance(place.node, zarr.Group) and is_anndata_group(place.node),
    )


def _of_array(name: str, array: NamedArray) -> Json:
    """Return the description of an array."""
    known: Json = {"name": name} if name else {}
    known |= {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.chunks is not None:
        known["chunks"] = list(array.chunks)
    if not array.nameless:
        known["dims"] = list(array.dims)
    units = array.attributes.get("units")
    if isinstance(units, str):
        known["units"] = units[:60]
    if array.packed:
        known["packing"] = dict(array.packed)
    return known


def _dimension(place: NamedArrays, array: NamedArray, axis: int) -> Dimension:
    """Return a dimension with its coordinate, without one where that cannot be read."""
    try:
        return place.dimension(array, axis)
    except StreamPCAError:
        return Dimension(array.dims[axis], array.shape[axis])


def _proposal(tables: Mapping[str, NamedArray], dimensions: Mapping[str, Dimension]) -> Json | None:
    """Return the keys of a source that read as many of the possible tables as have the same dimensions.

    Samples are the times where there are any, the places of an image that has a third dimension, the dimension of that name, or else the first.
    """
    several = [sorted(table.dims) for table in tables.values()]
    if not several:
        return None
    most = max(several, key=lambda dims: (several.count(dims), len(dims)))
    chosen = [name for name, table in tables.items() if sorted(table.dims) == most]
    first = tables[chosen[0]].dims
    if len(first) < 2:
        return None
    coordinates = {name: dimensions[name].coordinate for name in first}
    dates = {name for name, values in coordinates.items() if values is not None and values.dtype.kind == "M"}
    times = [name for name in first if name in dates or name.lower() in _TIMES]
    places = next((names for names in _PLACES if len(first) > len(names) and names <= set(first)), None)
    samples = times[:1] or ([name for name in first if name in places] if places else [likely_samples(first)])
    if len(samples) == len(first):
        return None
    named: Json = {"variables": chosen} if len(chosen) > 1 else {"array": chosen[0]} if chosen[0] else {}
    plain = len(first) == 2 and samples == [first[0]]
    fills = ("_FillValue", "missing_value")
    packed = any(name in tables[table].packed for table in chosen for name in fills)
    keys = named | ({} if plain else {"samples": samples}) | ({"mask": "observed"} if packed else {})
    return keys or None


def read_vector(key: str, name: str, path: str, options: ReadOptions) -> Array:
    """Read the one-dimensional array at the path or of the array name `name`.

    Parameters
    ----------
    key : str
        Name of the parameter in messages.
    name : str
        Path of an ``.npy`` file, or the name of an array beside the data in a zarr group.
    path : str
        Path or URL of the data.
    options : ReadOptions
        How the data are opened: the array in the group, and the options of the store.

    Raises
    ------
    DataError
        If there is no such array, or it is not one-dimensional and of real numbers.
    """
    if name.endswith(".npy"):
        values = read_array(key, name)
        _require_vector(key, name, values.shape, values.dtype)
        return values
    arrays, array = _beside(key, name, path, options)
    _require_vector(key, name, array.shape, array.dtype)
    packed = {attribute: value for attribute, value in array.packed.items() if attribute not in VALID}
    require_unpacked(packed, f"{key}: {path}/{name}", "write the decoded values to an array of their own")
    return arrays.read(array, f"{key}: array {name} of {path}")


def read_beside(key: str, name: str, path: str, options: ReadOptions) -> Array:
    """Return the numbers or texts of the one-dimensional array `name` beside the data at `path`; `DataError` if there are none."""
    arrays, array = _beside(key, name, path, options)
    values = arrays.values(array, f"{key}: {path}/{name}") if len(array.shape) == 1 else None
    if values is None:
        raise DataError(
            f"{key}: {name} has shape {array.shape} and dtype {array.dtype}: expected one dimension of numbers or text"
        )
    return values


def _beside(key: str, name: str, path: str, options: ReadOptions) -> tuple[NamedArrays, NamedArray]:
    """Return the place at `path` and the array `name` beside the data in it, not yet read; `DataError` if there is none."""
    beside = str(PurePosixPath(next(iter(options.names), "")).parent / name)
    try:
        arrays = arrays_at(path, options)
        arrays.prepare(options)
        array = arrays.find(beside) or arrays.find(name)
    except NotAvailableError:
        raise
    except StreamPCAError as error:
        raise type(error)(f"{key}: {path}: {error}") from error
    if array is None:
        raise DataError(f"{key}: {name} is neither a path that ends in .npy nor an array beside the data at {path}")
    return arrays, array


def arrays_at(path: str, options: ReadOptions) -> NamedArrays:
    """Return the arrays of the files or the zarr group at a path or URL."""
    import zarr

    from streampca.sources.files.arrays import arrays_of
    from streampca.sources.zarr.group import ZarrArrays, node_at
    from streampca.sources.zarr.strictness import strict_group

    files = files_of(path)
    if files is not None and files.format.holds == "arrays":
        return arrays_of(files)
    node, label = node_at(path, options)
    return ZarrArrays(strict_group(node) if isinstance(node, zarr.Group) else node, options, label)


def _require_vector(key: str, name: str, shape: tuple[int, ...], dtype: DType) -> None:
    if len(shape) != 1 or dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize > _MAX_BYTES:
        raise DataError(
            f"{key}: {name} has shape {shape} and dtype {dtype}: expected one dimension of real numbers, of at most "
            f"{_MAX_BYTES:,} bytes"
        )
