"""Arrays with named dimensions as one table, from a zarr group, HDF5 and NetCDF files, or an xarray object.

A place of such arrays says how they are found, read and opened (`NamedArrays`). All else is here, once: which array is the table,
which of its dimensions are samples, its labels, the mask, and the values beside it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from streampca.errors import DataError, ParameterError, StreamPCAError
from streampca.labels import Dimension, Labels, SampleColumns, Variable, equal_values
from streampca.sources.base import Source
from streampca.sources.conventions import (
    decoded_times,
    describes_others,
    describing_names,
    is_time,
    plain_attributes,
    unpacked,
)
from streampca.sources.features import Axes, axes_of, feature_error
from streampca.sources.formats import ReadOptions
from streampca.sources.genotypes import IDENTIFIERS, PLOIDY, alleles_of, dosages, identifiers, ploidy_of
from streampca.sources.table import FROM_DATA, StoredVariable, table_of
from streampca.typing import Array, DType, JsonValue

MOST_COORDINATES = 2**27
"""Most bytes of a coordinate, or of another array beside the data."""
_MOST_MASK = 2**32
_MOST_LISTED = 12


@dataclass(frozen=True)
class NamedArray:
    """An array that was found and not yet read."""

    name: str | None
    """Name in its place, with those of the groups that it is in; None for an array without a name."""
    dims: tuple[str, ...]
    """Names of its dimensions; ``dim_0``, ``dim_1`` and so on where they have none."""
    shape: tuple[int, ...]
    """Its shape."""
    dtype: DType
    """Data type of its stored values."""
    attributes: Mapping[str, object]
    """Its attributes."""
    stored: Any
    """The object of the library that reads it."""
    packed: Mapping[str, object] = field(default_factory=dict)
    """Those of the attributes that declare its stored values as packed."""
    chunks: tuple[int, ...] | None = None
    """Shape of its chunks, inside of shards where it has some; None where it is stored as one, or chunks are of several shapes."""
    single: bool = False
    """Whether scale and offset of packed values are stored as float32, which makes values float32."""

    @property
    def nameless(self) -> bool:
        """Return whether no dimension has a name."""
        return all(name == f"dim_{axis}" for axis, name in enumerate(self.dims))

    def __str__(self) -> str:
        """Return name, shape and names of dimensions, for messages."""
        dims = "" if self.nameless else f" [{', '.join(self.dims)}]"
        return f"{self.name or ''} {self.shape}{dims}".strip()


class NamedArrays(ABC):
    """A place of arrays: how they are found, read and opened."""

    kind: ClassVar[str]
    """What messages call an array: array, dataset, variable."""
    place: str
    """What messages call the place: group, file, Dataset; ``array`` for an array alone."""
    label: str
    """Its name in messages."""

    def find(self, name: str) -> NamedArray | None:
        """Return the array of a name, None if there is none; a place that takes long to list finds it without."""
        return self.listed().get(name)

    @abstractmethod
    def listed(self) -> Mapping[str, NamedArray]:
        """Return all arrays by their names; `DataError` where they cannot be listed."""

    @abstractmethod
    def opened(self, array: NamedArray, axes: Axes, options: ReadOptions) -> StoredVariable:
        """Return an array as a part of a table, whose rows are made by the first of `axes`."""

    @abstractmethod
    def read(self, array: NamedArray, label: str) -> Array:
        """Return the stored values of an array beside the data; `DataError`, which begins with `label`, if they are missing or damaged."""

    def prepare(self, options: ReadOptions) -> None:  # noqa: B027
        """Find out what arrays beside the table of these options need to know of it."""

    def title(self, array: NamedArray) -> str:
        """Return the name of an array in messages."""
        return f"{self.label}/{array.name}" if array.name else self.label

    def table_label(self, chosen: Sequence[NamedArray]) -> str:
        """Return the name of the table of some arrays in messages."""
        return self.title(chosen[0]) if len(chosen) == 1 else self.label

    def candidates(self) -> dict[str, NamedArray]:
        """Return the arrays of two or more dimensions that describe no other: no bounds, masks and coordinates."""
        arrays = self.listed()
        described: set[str] = set().union(*(describing_names(array.attributes) for array in arrays.values()))
        return {
            name: array
            for name, array in arrays.items()
            if len(array.shape) >= 2
            and array.attributes.get("CLASS") != "DIMENSION_SCALE"
            and not describes_others(name)
            and name.rsplit("/", 1)[-1] not in described
        }

    def default(self, options: ReadOptions) -> list[NamedArray]:
        """Return the arrays that are read where none is named: the only one that can be the table; `DataError` if there are more."""
        chosen = [array for name, array in self.candidates().items() if name != str(options.mask)]
        if len(chosen) != 1:
            raise DataError(
                f"{self.label} is a {self.place}: name the {self.kind} to read (source.array), one of: {self.listing()}"
            )
        return chosen

    def listing(self) -> str:
        """Return names, shapes and dimensions of arrays for messages, those of most dimensions first."""
        arrays = sorted(self.listed().values(), key=lambda array: (-len(array.shape), str(array.name)))
        more = f" and {len(arrays) - _MOST_LISTED} more" if len(arrays) > _MOST_LISTED else ""
        return ", ".join(map(str, arrays[:_MOST_LISTED])) + more or "none"

    def sibling(self, array: NamedArray, name: str) -> NamedArray | None:
        """Return the array `name` of the group that an array is in, None if there is none."""
        group = (array.name or "").rpartition("/")[0]
        return self.find(f"{group}/{name}" if group else name)

    def coordinate(self, array: NamedArray, axis: int) -> NamedArray | str:
        """Return the array with the coordinate of a dimension, by default one of its name beside the array.

        Where there is none, the reason why one that the dimension has cannot be read; empty if it has none.
        """
        name = array.dims[axis]
        known = name.isprintable() and "/" not in name and name != (array.name or "").rpartition("/")[2]
        return (self.sibling(array, name) if known else None) or ""

    def dimension(self, array: NamedArray, axis: int) -> Dimension:
        """Return a dimension of an array, with its coordinate where that is a vector of its length."""
        name, size = array.dims[axis], int(array.shape[axis])
        beside = self.coordinate(array, axis)
        if isinstance(beside, str):
            plain = Dimension(name, size, note=_unread(name, beside) if beside else "")
            return self._identified(array, plain) if name in IDENTIFIERS and not beside else plain
        of_characters = beside.dtype == np.dtype("S1") and len(beside.shape) == 2
        if beside.shape != (size,) and not (of_characters and beside.shape[0] == size):
            plain = Dimension(name, size, note=_unread(name, f"{beside.name} has the shape {beside.shape}"))
            return self._identified(array, plain) if name in IDENTIFIERS else plain
        values = self.values(beside, f"{self.title(array)}: coordinate {name}")
        if values is None:
            return Dimension(name, size, note=_unread(name, f"{beside.name} has the type {beside.dtype}"))
        if of_characters:  # text of NetCDF 3, along a dimension of its own
            values = np.array(["".join(map(str, row)).rstrip("\0 ") for row in values.tolist()])
        units, note = str(beside.attributes.get("units")), ""
        if " since " in units and values.dtype.kind in "iuf" and not is_time(units, beside.attributes.get("calendar")):
            note = f"{name} has the units {units[:60]} and the calendar {beside.attributes.get('calendar', 'standard')}: read as numbers, not as times"
        return Dimension(name, size, values, plain_attributes(beside.attributes), note=note)

    def _identified(self, array: NamedArray, dimension: Dimension) -> Dimension:
        """Return a dimension with the names of variants or samples of VCF Zarr, or a note where there are some that are not read."""
        name, values = dimension.name, None
        found = self.sibling(array, IDENTIFIERS[name])
        if found is None:
            return dimension
        if math.prod(found.shape) * found.dtype.itemsize > MOST_COORDINATES:
            reason = f"{found.name} takes more than {MOST_COORDINATES:,} bytes"
        else:
            values = identifiers(name, dimension.size, partial(self._beside, array))
            reason = f"{found.name} has the shape {found.shape} and the type {found.dtype}"
        return replace(dimension, coordinate=values, note="" if values is not None else _unread(name, reason))

    def with_alleles(self, array: NamedArray, dimension: Dimension) -> Dimension:
        """Return a dimension of the features of genotypes, with the alleles of the variants that it has."""
        if dimension.name != "variants":
            return dimension
        return replace(dimension, alleles=alleles_of(dimension.size, self._beside(array, "variant_allele")))

    def _beside(self, array: NamedArray, name: str) -> Array | None:
        """Return the values of the array `name` beside another one, None where there is none of at most 128 MiB."""
        found = self.sibling(array, name)
        small = found is not None and math.prod(found.shape) * found.dtype.itemsize <= MOST_COORDINATES
        return self.values(found, self.title(found)) if found is not None and small else None

    def values(self, array: NamedArray, label: str, most: int = MOST_COORDINATES) -> Array | None:
        """Return the values of an array beside the data, decoded; None for types that are neither numbers, times nor text.

        Raises
        ------
        DataError
            If stored values are missing or damaged, or take more than `most` bytes.
        """
        if array.dtype.kind not in "biufmMUTSO":
            return None
        n_bytes = math.prod(array.shape) * array.dtype.itemsize
        if n_bytes > most:
            raise DataError(f"{label} takes {n_bytes:,} bytes: expected at most {most:,}")
        values = self.read(array, label)
        if values.dtype.kind in "TSO":
            texts = [
                each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each)
                for each in values.ravel().tolist()
            ]
            values = np.array(texts).reshape(values.shape)
        if values.dtype.kind in "iuf" and " since " not in str(array.attributes.get("units")):
            values = unpacked(values, array.packed, label)
        return decoded_times(values, array.attributes, label)

    def labels_of(self, array: NamedArray, axes: Axes) -> Labels:
        """Return the labels of one array."""
        dimensions = [self.dimension(array, axis) for axis in range(len(array.dims))]
        rows, columns = axes
        features = tuple(dimensions[axis] for axis in columns)
        shape = tuple(dimension.size for dimension in features)
        attributes = plain_attributes(array.attributes)
        beside = self.columns_beside(array, features)
        variable = Variable(array.name, tuple(dimension.name for dimension in features), shape, attributes, beside)
        return Labels(tuple(dimensions[axis] for axis in rows), features, (variable,))

    def columns_beside(self, array: NamedArray, features: Sequence[Dimension]) -> SampleColumns | None:
        """Return the values of the features of an array by name: arrays along their dimensions. They are read where one is asked for."""
        return None if array.nameless else ArrayColumns(self, features, [array])

    def mask(self, name: str, labels: Labels, label: str) -> object:
        """Return the mask that an array of this name is; `DataError` if there is none or it does not fit."""
        array = self.find(name)
        if array is None:
            raise DataError(
                f"{label}: mask: {name[:60]!r} is neither an .npy file nor an array beside the data: expected one of these, "
                "'observed', or 'survey'"
            )
        what = f"{label}: mask {name}"
        if array.dtype.kind not in "biuf" or math.prod(array.shape) * array.dtype.itemsize > _MOST_MASK:
            raise ParameterError(
                f"{what} has dtype {array.dtype} and shape {array.shape}: expected truth values or numbers"
            )
        return _by_dimensions(self.read(array, what), array, labels, what)


def open_named(arrays: NamedArrays, options: ReadOptions) -> Source:
    """Return the table of the arrays that options name, or of those of `NamedArrays.default`, side by side.

    Reads metadata and coordinates, and rows where the mask needs them.

    Raises
    ------
    DataError
        If there is no such array, one is not of real numbers or on another grid than the others, or attributes contradict each
        other.
    ParameterError
        If a name is not that of a dimension.
    """
    chosen = [required(arrays, name) for name in options.names] or arrays.default(options)
    parts, each = [], []
    for array in chosen:
        rows, columns = axes_of(array.dims, array.shape, options, arrays.title(array))
        ploidy = None
        if PLOIDY in array.dims:
            ploidy = ploidy_of(array.dims, array.dtype, columns, options, arrays.title(array))
        if ploidy is None:
            part = arrays.opened(array, (rows, columns), options)
        else:
            columns = tuple(axis for axis in columns if axis != ploidy)
            part = dosages(arrays.opened(array, (rows, (*columns, ploidy)), options), array.shape[ploidy])
        parts.append(part if options.missing_value is None else part.with_missing(options.missing_value))
        labels = arrays.labels_of(array, (rows, columns))
        if ploidy is not None:
            labels = replace(labels, features=tuple(arrays.with_alleles(array, one) for one in labels.features))
        each.append(labels)
    label, labels = arrays.table_label(chosen), each[0] if len(each) == 1 else joined_labels(each, arrays.label)
    beside = ArrayColumns(arrays, labels.samples, chosen)
    if options.quantization is not None:
        parts = [part.quantised(options.quantization, beside) for part in parts]
    mask: object = options.mask
    if isinstance(mask, str | Path) and str(mask) not in FROM_DATA and not str(mask).endswith(".npy"):
        mask = arrays.mask(str(mask), labels, label)
    table = table_of(parts, labels, label, mask)
    table.sample_columns = beside
    return table


def _unread(name: str, reason: str) -> str:
    """Return the note on a coordinate that is not read."""
    return f"names along {name} are not read ({reason}): they are not compared with those of other data"


def required(arrays: NamedArrays, name: str) -> NamedArray:
    """Return the array of a name; `DataError` with those there are if there is none."""
    array = arrays.find(name)
    if array is None:
        raise DataError(f"{arrays.label} has no {arrays.kind} {name[:80]!r}: expected one of: {arrays.listing()}")
    return array


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


def _by_dimensions(values: Array, array: NamedArray, labels: Labels, label: str) -> Array:
    """Return a stored mask for all features of the variables that have its dimensions, and True for those of other variables.

    Its values are repeated along the other dimensions of a variable. A mask without names is returned as it is.

    Raises
    ------
    DataError
        If no variable has its dimensions.
    """
    if array.nameless:
        return values
    names, masks = array.dims, []
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


class ArrayColumns(SampleColumns):
    """Arrays beside the data along dimensions of the samples, or, without names of dimensions, with a value for each row.

    Those along the dimensions of the features of a variable are its columns `Variable.beside`.

    Parameters
    ----------
    arrays : NamedArrays
        The place of the data.
    samples : sequence of Dimension
        Dimensions of the samples, or of the features.
    features : collection of NamedArray
        Arrays whose values are features.
    """

    def __init__(self, arrays: NamedArrays, samples: Sequence[Dimension], features: Collection[NamedArray] = ()):
        self._arrays, self._samples, self._features = arrays, tuple(samples), tuple(features)

    @property
    def of_group(self) -> bool:  # type: ignore[override]
        """Return whether they are arrays of a zarr group."""
        return self._arrays.place == "group"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of such arrays in the group of the data, none where it cannot be listed."""
        group = (self._features[0].name or "").rpartition("/")[0] if self._features else ""
        try:
            arrays = self._arrays.listed()
        except StreamPCAError:
            return ()
        inside = {name.rpartition("/")[2]: array for name, array in arrays.items() if name.rpartition("/")[0] == group}
        taken = {dimension.name for dimension in self._samples} | {array.name for array in self._features}
        return tuple(
            name for name, array in inside.items() if array.name not in taken and self._shape(array) is not None
        )

    def values(self, name: str) -> Array | None:
        """Return an array at each row, repeated along the dimensions of samples that it does not have; None if there is none.

        Raises
        ------
        ParameterError
            If its values are features.
        DataError
            If it cannot be read.
        """
        array = self._array_named(name)
        shape = None if array is None else self._shape(array)
        if array is None or shape is None:
            return None
        if any(array.name == each.name for each in self._features):
            raise feature_error("variable")
        values = self._arrays.values(array, self._arrays.title(array))
        if values is None or shape == values.shape:
            return None if values is None else values.ravel()
        dims = [dimension.name for dimension in self._samples if dimension.name in array.dims]
        values = values.transpose([array.dims.index(name) for name in dims]).reshape(shape)
        return np.broadcast_to(values, [dimension.size for dimension in self._samples]).ravel()

    def beside(self, name: str) -> Array | None:
        """Return an array of any shape, decoded; None if there is none of numbers, times or text."""
        array = self._array_named(name)
        return None if array is None else self._arrays.values(array, self._arrays.title(array))

    def attributes(self, name: str) -> Mapping[str, JsonValue]:
        """Return the attributes of an array."""
        array = self._array_named(name)
        return {} if array is None else plain_attributes(array.attributes)

    def _array_named(self, name: str) -> NamedArray | None:
        """Return the array `name` of the group of the data, or else of the place."""
        beside = self._arrays.sibling(self._features[0], name) if self._features else None
        return beside or self._arrays.find(name)

    def _shape(self, array: NamedArray) -> tuple[int, ...] | None:
        """Return the shape of an array with all dimensions of the samples, 1 for those that it has not; None if it has others."""
        sizes = {dimension.name: dimension.size for dimension in self._samples}
        if array.shape and all(sizes.get(dim) == n for dim, n in zip(array.dims, array.shape, strict=True)):
            return tuple(n if name in array.dims else 1 for name, n in sizes.items())
        return array.shape if array.nameless and array.shape == (math.prod(sizes.values()),) else None
