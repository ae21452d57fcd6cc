"""Description of a zarr store before it is read as a table: arrays, dimensions with their coordinates, and a proposal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import zarr

from streampca.errors import StreamPCAError
from streampca.labels import Dimension
from streampca.sources.cells.zarr_store import is_anndata_group
from streampca.sources.conventions import dimensions_of, packing
from streampca.sources.options import StorageOptions
from streampca.sources.zarr.dimensions import dimension_of, names_of
from streampca.sources.zarr.opening import members_of, node_at, tables_of
from streampca.sources.zarr.strictness import strict_group
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Json

_TIMES = ("time", "t", "date", "datetime", "valid_time", "frame")
_PLACES = ({"y", "x"}, {"row", "column"}, {"height", "width"}, {"lat", "lon"}, {"latitude", "longitude"})


@dataclass(frozen=True)
class Listing:
    """What a zarr store holds."""

    arrays: tuple[Json, ...]
    """Shape, dims, data type, chunks, units and packing of each array, and its name in a group."""
    dimensions: tuple[Json, ...]
    """Name, size, first and last coordinate and units of the dimensions of the arrays that may be tables."""
    proposal: Json | None
    """Keys of ``source`` that read it as a table; None where nothing need be said, or nothing can be proposed."""
    is_group: bool
    """Whether it is a group."""
    is_anndata: bool = False
    """Whether it is an AnnData store, which is read as a table by itself."""


def list_store(path: str, storage_options: StorageOptions | None = None, array: str | None = None) -> Listing:
    """Return what the store at `path` holds; dimensions and proposal are those of the member `array` where one is named.

    Reads metadata and coordinates.

    Raises
    ------
    DataError
        If there is no zarr array or group.
    """
    node, label = node_at(path, storage_options)
    group = strict_group(node) if isinstance(node, zarr.Group) else None
    members: dict[str, ZarrArray | zarr.Group] = {"": node} if group is None else members_of(group, label)
    arrays = {name: member for name, member in sorted(members.items()) if isinstance(member, zarr.Array)}
    tables = list(arrays)
    if group is not None:  # truth values are masks
        possible = tables_of(members)
        tables = [name for name in arrays if name in possible and np.dtype(arrays[name].dtype).kind != "b"]
    tables = [name for name in tables if array in (None, name)] or [name for name in arrays if name == array]
    dimensions: dict[str, Dimension] = {}
    for name in tables:
        for dim, size in zip(names_of(arrays[name], group), arrays[name].shape, strict=True):
            if dim not in dimensions:
                dimensions[dim] = _dimension(dim, size, group, arrays[name])
    return Listing(
        tuple(_of_array(name, member, group) for name, member in arrays.items()),
        tuple(dimension.describe() for dimension in dimensions.values()),
        _proposal({name: names_of(arrays[name], group) for name in tables}, arrays, dimensions),
        group is not None,
        group is not None and is_anndata_group(group),
    )


def _of_array(name: str, array: ZarrArray, group: zarr.Group | None) -> Json:
    """Return the description of an array."""
    known: Json = {} if group is None else {"name": name}
    known |= {"shape": list(array.shape), "dtype": str(array.dtype), "chunks": list(array.chunks)}
    if dimensions_of(array.metadata) or (array.ndim > 2 and names_of(array, group)[0] != "dim_0"):
        known["dims"] = list(names_of(array, group))
    units = array.attrs.asdict().get("units")
    if isinstance(units, str):
        known["units"] = units[:60]
    if packed := packing(array.metadata):
        known["packing"] = packed
    return known


def _dimension(name: str, size: int, group: zarr.Group | None, array: ZarrArray) -> Dimension:
    """Return a dimension with its coordinate, without one where that cannot be read."""
    try:
        return dimension_of(name, int(size), group, array)
    except StreamPCAError:
        return Dimension(name, int(size))


def _proposal(
    tables: Mapping[str, Sequence[str]], arrays: Mapping[str, ZarrArray], dimensions: Mapping[str, Dimension]
) -> Json | None:
    """Return the keys of a source that read as many of the possible tables as have the same dimensions.

    Samples are the times where there are any, the places of an image that has a third dimension, or else the first dimension.
    """
    several = [sorted(dims) for dims in tables.values()]
    if not several:
        return None
    most = max(several, key=lambda dims: (several.count(dims), len(dims)))
    chosen = [name for name, dims in tables.items() if sorted(dims) == most]
    first = tables[chosen[0]]
    times = [name for name in first if _is_time(dimensions[name]) or name.lower() in _TIMES]
    places = next((names for names in _PLACES if len(first) > len(names) and names <= set(first)), None)
    samples = times[:1] or ([name for name in first if name in places] if places else list(first[:1]))
    if len(first) < 2 or len(samples) == len(first):
        return None
    named: Json = {"variables": chosen} if len(chosen) > 1 else {"array": chosen[0]} if chosen[0] else {}
    plain = len(first) == 2 and samples == [first[0]]
    fills = ("_FillValue", "missing_value")
    packed = any(name in packing(arrays[table].metadata) for table in chosen for name in fills)
    keys = named | ({} if plain else {"samples": samples}) | ({"mask": "observed"} if packed else {})
    return keys or None


def _is_time(dimension: Dimension) -> bool:
    return dimension.coordinate is not None and np.issubdtype(dimension.coordinate.dtype, np.datetime64)
