"""Names of a table's samples and features: dimensions with coordinates, variables, and the features that are used.

Labels travel beside the numbers, from a source to every output. No accumulator sees them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from streampca.calendars import times_in_calendar
from streampca.typing import Array, BoolArray, FloatArray, IntArray, JsonValue

_UNKNOWN_ALLELES = ("0", ".", "")


def time_in_words(time: np.datetime64) -> str:
    """Return a time in ISO 8601, without the hour if it is midnight."""
    return str(time.astype("datetime64[s]")).removesuffix("T00:00:00")


@dataclass(frozen=True)
class Dimension:
    """A named axis of the data."""

    name: str
    """Name, such as ``time`` or ``lat``."""
    size: int
    """Number of positions along it."""
    coordinate: Array | None = None
    """Value at each position, ``(size,)``: numbers, ``datetime64`` or text; None without values."""
    attributes: Mapping[str, JsonValue] = field(default_factory=dict)
    """Attributes of the coordinate, such as ``units``."""
    others: Mapping[str, Dimension] = field(default_factory=dict)
    """Further numeric coordinates along it by name, such as levels of a MultiIndex; not stored in models."""
    alleles: Array | None = None
    """Alleles of each variant, ``(size,)``: the counted one, a slash and the other one, such as ``A/G``; None if unknown."""
    note: str = ""
    """Reason why a stored coordinate is not read, or not as times; not stored in models."""

    def value(self, index: int) -> str:
        """Return the coordinate at a position as text, or the position itself without a coordinate."""
        if self.coordinate is None:
            return str(index)
        value = self.coordinate[index]
        if isinstance(value, np.datetime64):
            return time_in_words(value)
        if (date := self._date(index)) is not None:
            return date
        return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)

    def _date(self, index: int) -> str | None:
        """Return the coordinate at a position as a date if its calendar is one that `datetime64` lacks, else None."""
        if self.coordinate is None or self.coordinate.dtype.kind not in "iuf" or "units" not in self.attributes:
            return None
        times = times_in_calendar(self.coordinate[index : index + 1], self.attributes)
        return None if times is None else str(times[0].isoformat()).removesuffix("T00:00:00")

    def describe(self) -> dict[str, JsonValue]:
        """Return name and size, and if there is a coordinate, its first and last value and units."""
        known: dict[str, JsonValue] = {"name": self.name, "size": self.size}
        if self.coordinate is not None and self.size:
            known |= {"first": self.value(0), "last": self.value(self.size - 1)}
            if "units" in self.attributes and self.coordinate.dtype.kind not in "Mm" and self._date(0) is None:
                known["units"] = self.attributes["units"]
        return known


class SampleColumns(ABC):
    """Named values of the rows, or of the features of a variable, that are neither features nor coordinates of dimensions.

    Examples are further coordinates and columns of ``obs``. They stay in the process that opened the table and are not
    sent to workers.
    """

    of_group: ClassVar[bool] = False
    """Whether they are arrays beside the data in a zarr group."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Return the known names, for messages."""

    @abstractmethod
    def values(self, name: str) -> Array | None:
        """Return the value `name` of each row, ``(n_samples,)``, or None if it does not exist; `StreamPCAError` if it cannot be read."""

    def beside(self, name: str) -> Array | None:
        """Return the array `name` beside the data, of any shape; None if it does not exist, or if these are not arrays."""
        return None

    def attributes(self, name: str) -> Mapping[str, JsonValue]:
        """Return the attributes of the values `name`, such as ``units``; empty if unknown."""
        return {}

    def __reduce__(self) -> tuple[object, ...]:
        return type(None), ()


@dataclass(frozen=True)
class Variable:
    """Consecutive features of one stored array: all positions along its feature dimensions, in C order."""

    name: str | None
    """Name of the array; None if it has none."""
    dims: tuple[str, ...]
    """Names of its feature dimensions, slowest first."""
    shape: tuple[int, ...]
    """Sizes of these dimensions."""
    attributes: Mapping[str, JsonValue] = field(default_factory=dict)
    """Attributes of the array, such as ``units``."""
    beside: SampleColumns | None = field(default=None, compare=False, repr=False)
    """Values of its features by name, such as a latitude along two dimensions; not stored in models."""

    @property
    def size(self) -> int:
        """Return the number of its features, including masked ones."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Labels:
    """Names of the rows and columns of a table.

    A table has one row for each position along its sample dimensions, in C order. It has one column for each position
    along the feature dimensions of each variable, in C order, one variable after another, except features that a mask
    leaves out.
    """

    samples: tuple[Dimension, ...]
    """Sample dimensions, slowest first."""
    features: tuple[Dimension, ...]
    """Feature dimensions of all variables, each name once."""
    variables: tuple[Variable, ...]
    """Variables in the order of their columns."""
    mask: BoolArray | None = None
    """Which features are columns, ``(sum of the variables' sizes,)``; None if all are."""

    @property
    def n_samples(self) -> int:
        """Return the number of rows."""
        return math.prod(dimension.size for dimension in self.samples)

    @property
    def n_features(self) -> int:
        """Return the number of columns."""
        return sum(v.size for v in self.variables) if self.mask is None else int(self.mask.sum())

    @property
    def named(self) -> bool:
        """Return whether the labels say more than two nameless axes: a coordinate, a mask, or more dimensions or variables."""
        dimensions = (*self.samples, *self.features)
        several = len(dimensions) > 2 or len(self.variables) > 1 or self.mask is not None
        return several or any(dimension.coordinate is not None for dimension in dimensions)

    def dimension(self, name: str) -> Dimension:
        """Return the dimension `name`; `KeyError` if it does not exist."""
        for dimension in (*self.samples, *self.features):
            if dimension.name == name:
                return dimension
        raise KeyError(name)

    def with_mask(self, mask: BoolArray | None) -> Labels:
        """Return the labels with only the features in `mask`, which covers all variables."""
        return replace(self, mask=None if mask is None or mask.all() else mask)

    def with_used_variables(self) -> Labels:
        """Return the labels without variables whose features are all masked, and without dimensions that only these have."""
        used = [(variable, mask) for variable, _, mask in self.places() if mask is None or mask.any()]
        if len(used) == len(self.variables):
            return self
        variables = tuple(variable for variable, _ in used)
        features = tuple(d for d in self.features if any(d.name in variable.dims for variable in variables))
        mask = np.concatenate([np.ones(v.size, dtype=bool) if mask is None else mask for v, mask in used])
        return replace(self, features=features, variables=variables).with_mask(mask)

    def without_sample_coordinates(self) -> Labels:
        """Return the labels with only names and sizes of the sample dimensions, as models store them."""
        return replace(self, samples=tuple(Dimension(d.name, d.size) for d in self.samples))

    def with_names(self, names: Mapping[str, str]) -> Labels:
        """Return the labels with renamed feature dimensions; `names` maps old names to new ones."""
        features = tuple(replace(each, name=names.get(each.name, each.name)) for each in self.features)
        variables = tuple(replace(v, dims=tuple(names.get(dim, dim) for dim in v.dims)) for v in self.variables)
        return replace(self, features=features, variables=variables)

    def resized(self, n_samples: int) -> Labels:
        """Return the labels for `n_samples` rows with the same features, without coordinates of samples."""
        first, *others = self.samples
        inner = math.prod(dimension.size for dimension in others)
        whole = inner > 0 and n_samples % inner == 0
        names = (
            [(first.name, n_samples // inner), *((d.name, d.size) for d in others)]
            if whole
            else [("sample", n_samples)]
        )
        return replace(self, samples=tuple(Dimension(name, size) for name, size in names))

    def difference(self, other: Labels) -> str | None:
        """Return how the features of `other` differ from these, for messages; None if they are the same.

        Names of dimensions and of a single variable are not compared. Coordinates are compared if both have them, floats to
        six digits.
        """
        mine, theirs = self.variables, other.variables
        if [v.shape for v in mine] != [v.shape for v in theirs]:
            return f"features of shape {_shapes(theirs)}, not {_shapes(mine)}"
        if len(mine) > 1 and [v.name for v in mine] != [v.name for v in theirs]:
            return f"variables {', '.join(str(v.name) for v in theirs)}, not {', '.join(str(v.name) for v in mine)}"
        if not np.array_equal(self.indices(), other.indices()):
            return "another mask"
        for one, two in zip(mine, theirs, strict=True):
            for name, name_of_other in zip(one.dims, two.dims, strict=True):
                values, others = self.dimension(name).coordinate, other.dimension(name_of_other).coordinate
                if values is not None and others is not None and not _same(values, others):
                    return f"another coordinate {name_of_other} ({_contrast(values, others)})"
        return self._difference_of_alleles(other)

    def _difference_of_alleles(self, other: Labels) -> str | None:
        """Return the first variant whose alleles differ in `other`, including exchanged ones; None if all agree."""
        alleles = self._alleles_of(other)
        if alleles is None:
            return None
        mine, theirs = alleles
        exchanged, others = compared_alleles(mine, theirs)
        used = self.indices()
        different = others if others[used].any() else exchanged
        places = used[different[used]]
        if not len(places):
            return None
        at = int(places[0])
        return f"the alleles {theirs[at]} of variant {self._name_at(at)}, not {mine[at]} (counted/other; {len(places):,} such variant{'s' if len(places) > 1 else ''})"

    def _alleles_of(self, other: Labels) -> tuple[Array, Array] | None:
        """Return the alleles of both if they are variants along one dimension of one variable; None if either has no alleles."""
        if not all(len(labels.variables) == len(labels.features) == 1 for labels in (self, other)):
            return None
        mine, theirs = self.features[0].alleles, other.features[0].alleles
        return None if mine is None or theirs is None or mine.shape != theirs.shape else (mine, theirs)

    def palindromic_with(self, other: Labels) -> int:
        """Return the number of used variants, here or in `other`, whose alleles are exchanged on the other strand; 0 if either has no alleles."""
        alleles = self._alleles_of(other)
        return 0 if alleles is None else int(palindromic(*alleles)[self.indices()].sum())

    def counting_as(self, other: Labels) -> tuple[Labels, BoolArray | None]:
        """Return the labels for genotypes that count the alleles of `other`, and which variants this exchanges.

        Alleles that are neither the same nor exchanged are unchanged; `difference` names them. The second value is None if no
        variant is exchanged; otherwise it has one entry for every feature, including masked ones.
        """
        alleles = other._alleles_of(self)
        if alleles is None:
            return self, None
        wanted, mine = alleles
        exchanged, others = compared_alleles(wanted, mine)
        variants = replace(self.features[0], alleles=np.where(others, mine, wanted))
        return replace(self, features=(variants,)), exchanged if exchanged.any() else None

    def places(self) -> Iterator[tuple[Variable, slice, BoolArray | None]]:
        """Yield each variable with its columns in the table and the mask of its features, ``(size,)``."""
        first = at = 0
        for variable in self.variables:
            mask = None if self.mask is None else self.mask[first : first + variable.size]
            count = variable.size if mask is None else int(mask.sum())
            yield variable, slice(at, at + count), mask
            first, at = first + variable.size, at + count

    def spread(self, values: Array, fill: object = np.nan) -> list[Array]:
        """Return values of the columns, ``(…, n_features)``, as one field ``(…, *shape)`` per variable.

        Masked positions hold `fill`; the default requires floating-point values.
        """
        fields = []
        for variable, columns, mask in self.places():
            part = values[..., columns]
            if mask is not None:
                whole = np.full((*values.shape[:-1], variable.size), fill, dtype=values.dtype)
                whole[..., mask] = part
                part = whole
            fields.append(part.reshape(*values.shape[:-1], *variable.shape))
        return fields

    def indices(self) -> IntArray:
        """Return the position of each column among all features, including masked ones, ``(n_features,)``."""
        n_all = sum(v.size for v in self.variables)
        return np.arange(n_all) if self.mask is None else np.flatnonzero(self.mask)

    def along(self, name: str) -> FloatArray:
        """Return the coordinate `name` at each column, ``(n_features,)``, with NaN at columns of variables without it.

        It is the coordinate of a dimension, a further one along it, or one along several dimensions. Each of two tables side by
        side has its own. `KeyError` if no variable has it as numbers.
        """
        found = [None if each is None else each[0] for each in self.by_variable(name)]
        sizes = [at.stop - at.start for _, at, _ in self.places()]
        return np.concatenate([np.full(n, np.nan) if one is None else one for one, n in zip(found, sizes, strict=True)])

    def by_variable(self, name: str) -> list[tuple[FloatArray, Mapping[str, JsonValue]] | None]:
        """Return the coordinate `name` at the columns of each variable, ``(n_columns,)``, with its attributes.

        It is the coordinate of a dimension, a further one along it, or one along several dimensions. Each of two tables side by
        side has its own. None for variables without it. `KeyError` if no variable has it as numbers.
        """
        every = {dimension.name: {**dimension.others, dimension.name: dimension} for dimension in self.features}
        found: list[tuple[FloatArray, Mapping[str, JsonValue]] | None] = []
        for variable, _, mask in self.places():
            values: Array | None = None
            attributes: Mapping[str, JsonValue] = {}
            for axis, dim in enumerate(variable.dims):
                known = every[dim].get(name)
                if known is not None and known.coordinate is not None:
                    shape = [-1 if i == axis else 1 for i in range(len(variable.dims))]
                    values = np.broadcast_to(known.coordinate.reshape(shape), variable.shape).ravel()
                    attributes = known.attributes
            if values is None and variable.beside is not None:
                values, attributes = variable.beside.values(name), variable.beside.attributes(name)
            if values is None or values.dtype.kind not in "iuf":
                found.append(None)
                continue
            whole = np.tile(values.astype(np.float64), variable.size // len(values))  # lags repeat the features
            found.append((whole if mask is None else whole[mask], attributes))
        if not any(found):
            raise KeyError(name)
        return found

    def sample_values(self, name: str) -> Array:
        """Return the coordinate of the sample dimension `name` at each row, ``(n_samples,)``; `KeyError` if it has none."""
        sizes = [dimension.size for dimension in self.samples]
        for axis, dimension in enumerate(self.samples):
            if dimension.name == name and dimension.coordinate is not None:
                shape = [-1 if i == axis else 1 for i in range(len(sizes))]
                return np.broadcast_to(dimension.coordinate.reshape(shape), sizes).ravel()
        raise KeyError(name)

    def feature_name(self, column: int) -> str:
        """Return the name of a column: ``sst(lat=10.5, lon=20)``, or only the coordinate if it is text."""
        return self._name_at(int(self.indices()[column]))

    def feature_names(self) -> list[str]:
        """Return the names of all columns, like `feature_name`."""
        return [self._name_at(int(at)) for at in self.indices()]

    def _name_at(self, at: int) -> str:
        """Return the name of a feature by its position among all features, including masked ones."""
        for variable in self.variables:
            if at < variable.size:
                break
            at -= variable.size
        places = zip(variable.dims, np.unravel_index(at, variable.shape), strict=True) if variable.dims else ()
        values = [(self.dimension(name), int(index)) for name, index in places]
        named = [d for d, _ in values if d.coordinate is not None and d.coordinate.dtype.kind in "UTOS"]
        if len(values) == 1 and named and len(self.variables) == 1:
            return values[0][0].value(values[0][1])
        inside = ", ".join(f"{dimension.name}={dimension.value(index)}" for dimension, index in values)
        return f"{variable.name or ''}({inside})" if inside else str(variable.name or 0)

    def known_name(self, column: int) -> str | None:
        """Return the name of a column, or None if the name is only its number."""
        return None if self._numbered else self.feature_name(column)

    def known_names(self) -> list[str] | None:
        """Return the names of all columns, or None if the names are only their numbers."""
        return None if self._numbered else self.feature_names()

    @property
    def _numbered(self) -> bool:
        """Return whether the columns are all features of one variable along one dimension without a coordinate."""
        plain = len(self.variables) == 1 and self.mask is None and len(self.variables[0].dims) == 1
        return plain and self.dimension(self.variables[0].dims[0]).coordinate is None

    def sample_name(self, row: int) -> str | None:
        """Return the coordinates of a row, such as ``time=1990-06-01``, or None if they are only its number."""
        if len(self.samples) == 1 and self.samples[0].coordinate is None:
            return None
        places = np.unravel_index(row, [dimension.size for dimension in self.samples])
        return ", ".join(f"{d.name}={d.value(int(place))}" for d, place in zip(self.samples, places, strict=True))

    def describe(self) -> dict[str, JsonValue]:
        """Return a readable description: dimensions with the ranges of their coordinates, and variables with their units."""
        variables: list[JsonValue] = []
        for v in self.variables:
            entry: dict[str, JsonValue] = {"name": v.name, "dims": list(v.dims), "shape": list(v.shape)}
            variables.append(entry | ({"units": v.attributes["units"]} if "units" in v.attributes else {}))
        return {
            "samples": [dimension.describe() for dimension in self.samples],
            "features": [dimension.describe() for dimension in self.features],
            "variables": variables,
            "n_masked": 0 if self.mask is None else int((~self.mask).sum()),
        }

    def column_names(self) -> tuple[str, ...] | None:
        """Return the names of the columns if the coordinate of their only dimension is text, else None."""
        if len(self.variables) != 1 or len(self.features) != 1:
            return None
        coordinate = self.features[0].coordinate
        if coordinate is None or coordinate.dtype.kind not in "UTOS":
            return None
        return tuple(str(name) for name in (coordinate if self.mask is None else coordinate[self.mask]))

    def to_dict(self) -> dict[str, JsonValue]:
        """Return names, sizes and attributes as plain data, without coordinates and mask."""
        return {
            "samples": [{"name": d.name, "size": d.size, "attributes": dict(d.attributes)} for d in self.samples],
            "features": [{"name": d.name, "size": d.size, "attributes": dict(d.attributes)} for d in self.features],
            "variables": [
                {"name": v.name, "dims": list(v.dims), "shape": list(v.shape), "attributes": dict(v.attributes)}
                for v in self.variables
            ],
        }


def _shapes(variables: tuple[Variable, ...]) -> str:
    return " and ".join(" × ".join(map(str, variable.shape)) for variable in variables)


def compared_alleles(one: Array, other: Array) -> tuple[BoolArray, BoolArray]:
    """Return where the alleles of the same variants (see `Dimension.alleles`) are exchanged, and where they are other alleles.

    Case is ignored. An unknown allele (``0``, ``.``), such as that of a variant with only one allele in the sample, matches
    any allele.
    """
    if np.array_equal(one, other):
        return np.zeros(one.shape, dtype=bool), np.zeros(one.shape, dtype=bool)
    (a, b), (c, d) = (np.strings.partition(np.strings.upper(each), "/")[::2] for each in (one, other))

    def agree(x: Array, y: Array) -> BoolArray:
        agreement: BoolArray = (x == y) | np.isin(x, _UNKNOWN_ALLELES) | np.isin(y, _UNKNOWN_ALLELES)
        return agreement

    same, exchanged = agree(a, c) & agree(b, d), agree(a, d) & agree(b, c)
    return exchanged & ~same, ~exchanged & ~same


def palindromic(one: Array, other: Array) -> BoolArray:
    """Return which of the same variants have an ambiguous strand: alleles of either that are complements, A and T or C and G."""
    complements = ("A/T", "T/A", "C/G", "G/C")
    return np.isin(np.strings.upper(one), complements) | np.isin(np.strings.upper(other), complements)


def note_on_strands(n_palindromic: int) -> str:
    """Return the note for compared alleles of two sources if the strand of some variants is ambiguous."""
    return (
        f"{n_palindromic:,} variant{'s have' if n_palindromic > 1 else ' has'} alleles A/T or C/G, which are the same on the other strand: they are compared as they "
        "are written"
    )


def _same(one: Array, other: Array) -> bool:
    """Return whether two coordinates of the same size are equal, floats to six digits."""
    if one.dtype.kind in "iuf" and other.dtype.kind in "iuf" and "f" in one.dtype.kind + other.dtype.kind:
        return bool(np.allclose(one, other, rtol=1e-6, atol=0, equal_nan=True))
    return equal_values(one, other)


def _contrast(one: Array, other: Array) -> str:
    """Return how values that are not `_same` as `one` differ from it, for messages."""
    if len(one) == len(other) and equal_values(np.sort(one), np.sort(other)):
        return "the same values in another order"
    place = next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    found, expected = (str(each[place])[:40] if place < len(each) else "nothing" for each in (other, one))
    return f"at place {place} {found}, not {expected}"


def equal_values(one: Array, other: Array) -> bool:
    """Return whether two arrays have the same shape and values, with missing ones (NaN, NaT) at the same positions."""
    kinds = one.dtype.kind + other.dtype.kind
    return bool(np.array_equal(one, other, equal_nan=kinds in ("MM", "mm") or all(kind in "biuf" for kind in kinds)))
