"""One or several arrays of a zarr store as a table: axes, labels, decoding and mask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import zarr

from streampca.errors import DataError, ParameterError, StoreError, StreamPCAError
from streampca.formatting import one_line
from streampca.labels import Dimension, Labels, equal_values
from streampca.sources.base import Source
from streampca.sources.masks import FROM_DATA, read_mask_file
from streampca.sources.options import ReadOptions
from streampca.sources.packing import Packing
from streampca.sources.remote import place_of
from streampca.sources.stored_variable import StoredVariable
from streampca.sources.table import table_of
from streampca.sources.zarr.beside import GroupColumns
from streampca.sources.zarr.digests import verified_by
from streampca.sources.zarr.dimensions import axes_of, labels_of, names_of
from streampca.sources.zarr.metadata import require_readable
from streampca.sources.zarr.reader import ZarrSource
from streampca.sources.zarr.strictness import as_stored, quietly, read_labels
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Array


def open_arrays(
    arrays: Mapping[str | None, ZarrArray], options: ReadOptions, description: str | None, group: zarr.Group | None
) -> Source:
    """Return the table of open arrays by their names; reads metadata and coordinates, and rows where `mask` needs them.

    Raises
    ------
    DataError
        If an array is not of real numbers, does not match its fingerprint, is on another grid than the others, or its
        attributes contradict each other.
    """
    if str(options.verify) == "manifest" and description is None:
        raise DataError(
            "verify='manifest' is for paths, beside which the fingerprint stands: name the file of the fingerprint"
        )
    opened = [_opened(name, array, options, description, group) for name, array in arrays.items()]
    labels = joined_labels([labels for _, labels in opened], description or "the group")
    first, parts = opened[0][0].source, [part for part, _ in opened]
    label = first.label if isinstance(first, ZarrSource) and len(parts) == 1 else description or first.description
    mask = None if options.mask is None else _mask(options, labels, group, label)
    table = table_of(parts, labels, label, mask)
    if group is not None:
        parent = next(iter(arrays.values())).path.rpartition("/")[0].removeprefix(group.path).strip("/")
        table.sample_columns = GroupColumns(group, parent, labels.samples, options, label)
    return table


def _opened(
    name: str | None, array: ZarrArray, options: ReadOptions, description: str | None, group: zarr.Group | None
) -> tuple[StoredVariable, Labels]:
    """Return one array as a part of a table, and its labels."""
    digests = verified_by(options.verify, description or "", name)
    place = description or place_of(array)
    array = as_stored(array, place, options.follow_symlinks)
    label = f"{place}/{name}" if name else place
    names = names_of(array, group)
    axes = axes_of(names, array.shape, options, label)
    packing = None if options.decode == "raw" else Packing.of(array.metadata, label)
    source = ZarrSource(array, place, name, axes, options.fills_data, digests, options.follow_symlinks)
    source.require_fingerprinted()
    variable = StoredVariable(source, packing).with_missing(options.missing_value)
    return variable, labels_of(array, names, axes, name, group, fill=options.fills_labels)


def joined_labels(each: Sequence[Labels], label: str) -> Labels:
    """Return the labels of several arrays side by side.

    Raises
    ------
    DataError
        If they differ in a dimension of the same name, or in their samples.
    """
    first = each[0]
    features: dict[str, Dimension] = {}
    for labels in each:
        variable = labels.variables[0].name
        if [d.name for d in labels.samples] != [d.name for d in first.samples]:
            raise DataError(
                f"{label}: {variable} has the samples {', '.join(d.name for d in labels.samples)}, {first.variables[0].name} has "
                f"{', '.join(d.name for d in first.samples)}: expected the same for all variables of a table"
            )
        for dimension in labels.samples:
            _require_same(dimension, first.dimension(dimension.name), variable, first.variables[0].name, label)
        for dimension in labels.features:
            other = features.setdefault(dimension.name, dimension)
            _require_same(dimension, other, variable, first.variables[0].name, label)
    return Labels(first.samples, tuple(features.values()), tuple(labels.variables[0] for labels in each))


def _require_same(one: Dimension, other: Dimension, variable: str | None, reference: str | None, label: str) -> None:
    """Raise `DataError` unless two dimensions of the same name have the same size and coordinate."""
    if one.size != other.size:
        raise DataError(
            f"{label}: variables on different grids: {one.name} has {one.size:,} places in {variable} and {other.size:,} in "
            f"{reference}; write them to one grid first, or read one of them"
        )
    if (
        one.coordinate is not None
        and other.coordinate is not None
        and not equal_values(one.coordinate, other.coordinate)
    ):
        raise DataError(
            f"{label}: variables on different grids: the coordinate {one.name} of {variable} is not that of {reference}"
        )


def named_array(group: zarr.Group, name: str) -> ZarrArray | None:
    """Return the array `name` of a group, None if there is none; raises `StoreError` if the store does not answer."""
    if name != "/".join(filter(None, name.split("/"))):  # which zarr would set right
        return None
    try:
        with quietly():
            member = group[name]
    except StreamPCAError:
        raise
    except (KeyError, ValueError, OSError):  # also names that no file can have
        return None
    except Exception as error:  # clients of stores have no class of errors in common
        raise StoreError(f"{place_of(group)}: {name} cannot be opened: {one_line(error)}") from error
    return member if isinstance(member, zarr.Array) else None


def _mask(options: ReadOptions, labels: Labels, group: zarr.Group | None, label: str) -> object:
    """Return the mask that the options name: an array, or how it is found in the data."""
    mask = options.mask
    if not isinstance(mask, str | Path):
        return mask
    if str(mask) in FROM_DATA:
        return str(mask)
    if str(mask).endswith(".npy"):
        return read_mask_file(str(Path(mask).expanduser()))
    node = None if group is None else named_array(group, str(mask))
    if node is None:
        raise DataError(
            f"{label}: mask: {str(mask)[:60]!r} is neither an .npy file nor an array beside the data: expected one of these, "
            "'observed', or 'survey'"
        )
    dtype = np.dtype(node.dtype)
    if dtype.kind not in "biuf" or node.nbytes > 2**32:
        raise ParameterError(
            f"{label}: mask {mask} has dtype {dtype} and shape {node.shape}: expected truth values or numbers"
        )
    require_readable(node.metadata, dtype.itemsize, f"{label}: mask {mask}")
    stored = as_stored(node, label, options.follow_symlinks)
    values = read_labels(stored, f"{label}: mask {mask}", fill=options.fills_labels)
    return _by_dimensions(values, names_of(node, group), labels, f"{label}: mask {mask}")


def _by_dimensions(values: Array, names: tuple[str, ...], labels: Labels, label: str) -> Array:
    """Return a stored mask for all features of the variables that have its dimensions, and True for those of other variables.

    Its values are repeated along the other dimensions of a variable. A mask without names is returned as it is.

    Raises
    ------
    DataError
        If no variable has its dimensions.
    """
    if all(name == f"dim_{axis}" for axis, name in enumerate(names)):
        return values
    masks = []
    for variable in labels.variables:
        if not set(names) <= set(variable.dims):
            masks.append(np.ones(variable.size, dtype=values.dtype))
            continue
        present = [dim for dim in variable.dims if dim in names]
        sizes = [n if dim in names else 1 for dim, n in zip(variable.dims, variable.shape, strict=True)]
        ordered = values.transpose([names.index(dim) for dim in present])
        if ordered.size != math.prod(sizes):
            raise DataError(
                f"{label} has shape {values.shape} along {', '.join(names)}: expected the sizes of these dimensions in "
                f"{variable.name or 'the array'}"
            )
        masks.append(np.broadcast_to(ordered.reshape(sizes), variable.shape).ravel())
    if not any(set(names) <= set(variable.dims) for variable in labels.variables):
        expected = " or ".join(f"[{', '.join(variable.dims)}]" for variable in labels.variables[:3])
        raise DataError(f"{label} has the dimensions {', '.join(names)}: expected some of the features' {expected}")
    return np.concatenate(masks)
