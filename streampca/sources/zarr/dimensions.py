"""Dimensions of a zarr array: their names, coordinates beside the array, and which of them are samples and features."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import zarr

from streampca.errors import DataError, ParameterError, StreamPCAError
from streampca.labels import Dimension, Labels, Variable
from streampca.sources.base import require_table
from streampca.sources.conventions import dimensions_of, packing
from streampca.sources.options import ReadOptions
from streampca.sources.packing import unpacked
from streampca.sources.times import decoded_times
from streampca.sources.zarr.metadata import require_readable
from streampca.sources.zarr.strictness import quietly, read_labels
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Array, Json, JsonValue

if TYPE_CHECKING:
    from streampca.sources.zarr.reader import Axes

_MOST_COORDINATES = 2**27  # bytes
_DROPPED = frozenset({"_ARRAY_DIMENSIONS", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"})


def names_of(array: ZarrArray, group: zarr.Group | None) -> tuple[str, ...]:
    """Return the names of an array's axes: of zarr format 3, of xarray's attribute, or of OME-Zarr; else ``dim_0`` and so on."""
    names = dimensions_of(array.metadata) or (None if group is None else _ome_axes(group, array)) or ("?",) * array.ndim
    return tuple(f"dim_{axis}" if name == "?" else name for axis, name in enumerate(names))


def _ome_axes(group: zarr.Group, array: ZarrArray) -> tuple[str, ...] | None:
    """Return the names of the axes that OME-Zarr gives for the images of a group."""
    axes = _multiscale(group).get("axes")
    if not isinstance(axes, list) or len(axes) != array.ndim:
        return None
    return tuple(str(axis.get("name", "?") if isinstance(axis, dict) else axis)[:60] for axis in axes)


def first_image(group: zarr.Group) -> str | None:
    """Return the path of the image of full resolution in an OME-Zarr group, None in any other group."""
    datasets = _multiscale(group).get("datasets")
    path = (
        datasets[0].get("path") if isinstance(datasets, list) and datasets and isinstance(datasets[0], dict) else None
    )
    return path if isinstance(path, str) else None


def _multiscale(group: zarr.Group) -> Json:
    """Return the first entry of ``multiscales`` of OME-Zarr 0.4 or 0.5 in the attributes of a group, empty if there is none."""
    attributes: Json = dict(group.attrs.asdict())
    nested = attributes.get("ome", attributes)
    scales = nested.get("multiscales") if isinstance(nested, dict) else None
    return scales[0] if isinstance(scales, list) and scales and isinstance(scales[0], dict) else {}


def axes_of(names: Sequence[str], shape: Sequence[int], options: ReadOptions, label: str) -> Axes:
    """Return the axes whose indices make rows and those whose indices make columns, by `samples` and `features` of the options.

    Without these, arrays of two axes are (samples, features), or as `orientation` says.

    Raises
    ------
    DataError
        If an array of another number of axes has no `samples`.
    ParameterError
        If a name is not one of the array's dimensions, occurs twice, or none is left for rows.
    """
    shown = ", ".join(f"{name} ({size:,})" for name, size in zip(names, shape, strict=True))
    if len(set(names)) < len(names):
        raise DataError(
            f"{label} has the dimensions {shown}: expected every name once; write the array with other names"
        )
    if options.samples is None and options.features is None:
        if len(names) == 2:
            return ((1,), (0,)) if options.transposed else ((0,), (1,))
        if len(names) < 2:
            require_table(tuple(shape), np.dtype(float), label)
        first = names[0]
        raise DataError(
            f"{label} has {len(names)} dimensions, {shown}: say which of them are samples, for example source.samples: [{first}] "
            f"(from Python: sp.open(…, samples={first!r})); the others are features"
        )
    if options.orientation is not None:
        raise ParameterError(
            f"{label}: orientation={options.orientation!r} and samples or features were given: leave one out"
        )
    given = {"samples": options.samples, "features": options.features}
    chosen: dict[str, tuple[int, ...]] = {}
    for key, wanted in given.items():
        if wanted is not None:
            chosen[key] = tuple(_axis(name, names, f"{label}: {key}", shown) for name in wanted)
    rest = tuple(axis for axis in range(len(names)) if axis not in {a for axes in chosen.values() for a in axes})
    rows, columns = chosen.get("samples", rest), chosen.get("features", rest)
    doubled = [names[axis] for axis in range(len(names)) if (*rows, *columns).count(axis) > 1]
    left = [names[axis] for axis in rest if axis not in (*rows, *columns)]
    if doubled or left or not rows:
        what = (
            f"{doubled[0]} occurs twice"
            if doubled
            else f"{left[0]} is neither"
            if left
            else "no dimension is left for samples"
        )
        raise ParameterError(
            f"{label} has the dimensions {shown}: {what}; expected each among samples or features, once"
        )
    return rows, columns


def _axis(name: str, names: Sequence[str], key: str, shown: str) -> int:
    """Return the axis of the dimension `name`; `ParameterError` with a suggestion if there is none."""
    if name in names:
        return list(names).index(name)
    close = difflib.get_close_matches(str(name), names, 1, 0.5)
    raise ParameterError(
        f"{key}: there is no dimension {str(name)[:60]!r}: expected one of {shown}"
        + (f"; did you mean {close[0]!r}?" if close else "")
    )


def labels_of(
    array: ZarrArray, names: Sequence[str], axes: Axes, name: str | None, group: zarr.Group | None, *, fill: bool
) -> Labels:
    """Return the labels of one array: its dimensions, with the coordinates that stand beside it in its group."""
    dimensions = [
        dimension_of(dim, int(size), group, array, fill=fill) for dim, size in zip(names, array.shape, strict=True)
    ]
    rows, columns = axes
    variable = Variable(
        name,
        tuple(names[axis] for axis in columns),
        tuple(int(array.shape[axis]) for axis in columns),
        _short_attributes(array),
    )
    return Labels(tuple(dimensions[axis] for axis in rows), tuple(dimensions[axis] for axis in columns), (variable,))


def _short_attributes(array: ZarrArray) -> dict[str, JsonValue]:
    """Return the attributes of an array that are numbers or short texts, without those that say how it is stored."""
    attributes: Json = dict(array.attrs.asdict())
    return {
        key: value
        for key, value in attributes.items()
        if key not in _DROPPED and isinstance(value, bool | int | float | str) and len(str(value)) <= 200
    }


def dimension_of(name: str, size: int, group: zarr.Group | None, array: ZarrArray, *, fill: bool = False) -> Dimension:
    """Return a dimension, with its coordinate if the group has a vector of its name and length that is not the array itself."""
    node = None
    if group is not None and name.isprintable() and "/" not in name:
        parent = "/".join(array.path.split("/")[:-1]).removeprefix(group.path).strip("/")
        try:
            with quietly():
                node = group.get(f"{parent}/{name}" if parent else name)
        except (KeyError, ValueError, OSError, StreamPCAError):
            node = None
    if not isinstance(node, zarr.Array) or node.shape != (size,) or node.path == array.path:
        return Dimension(name, size)
    coordinate = values_of_vector(node, f"coordinate {name}", fill=fill)
    return Dimension(name, size, coordinate, _short_attributes(node))


def values_of_vector(node: ZarrArray, label: str, *, fill: bool) -> Array | None:
    """Return the values of an array of one dimension, such as a coordinate; None for types that are neither numbers, times nor text.

    Raises
    ------
    DataError
        If its chunks are missing or damaged, or its values take more than 128 MiB.
    """
    dtype = np.dtype(node.dtype)
    if dtype.kind not in "biufMmUTSO":
        return None
    if dtype.kind in "biufMm":
        require_readable(node.metadata, dtype.itemsize, label)
    if node.shape[0] * dtype.itemsize > _MOST_COORDINATES:
        raise DataError(
            f"{label} takes {node.shape[0] * dtype.itemsize:,} bytes: expected at most {_MOST_COORDINATES:,}"
        )
    values = read_labels(node, label, fill=fill)
    if dtype.kind in "TSO":
        values = np.array([v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values.tolist()])
    attributes = node.attrs.asdict()
    if dtype.kind in "iuf" and " since " not in str(attributes.get("units")):
        values = unpacked(values, packing(node.metadata), label)
    return decoded_times(values, attributes, label)
