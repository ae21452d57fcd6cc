"""How rows are drawn, by the labels of their features: as maps, as images, as lines along a coordinate, or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streampca.formatting import clean, plural, whole
from streampca.labels import Dimension, Labels, Variable
from streampca.runs.report.coordinates import direction, numbers, places, times, units_of
from streampca.typing import Array, FloatArray, IntArray

MAX_SIDE = 360
"""Pictures of labelled rows with more pixels along a side are thinned to about this many."""
SMALL_SIDE = 96
"""The same for rows that are pictures without labels."""
MOST_PARTS = 12
"""So many pictures or lines of one variable are drawn at most."""
_ROWS, _COLUMNS = frozenset({"y", "row", "rows"}), frozenset({"x", "col", "column", "columns"})
_ASPECTS = 0.2, 5.0


@dataclass(frozen=True)
class FieldSlice:
    """The places of one variable that are drawn together."""

    variable: int
    """Number of the variable."""
    index: tuple[int | None, ...]
    """Place in each of its dimensions, None for those that are drawn."""
    place: str
    """The places in words: ``depth = 10``; nothing where there is only one."""

    def values(self, field: Array) -> Array:
        """Return the values of the drawn dimensions from the `field` of the variable."""
        return field[tuple(slice(None) if at is None else at for at in self.index)]


@dataclass(frozen=True)
class Side:
    """A dimension as a side of a picture."""

    dimension: Dimension
    """The dimension."""
    places: IntArray
    """Its places that have a pixel, from left to right or from top to bottom, ``(n,)``."""
    coordinate: FloatArray | None
    """Their coordinates, which rise or fall, ``(n,)``; None where there are none of numbers."""

    @property
    def span(self) -> float:
        """Return the distance between the outer edges in units of the coordinate; 0 without one."""
        values = self.coordinate
        return 0.0 if values is None else float(abs(values[-1] - values[0])) * len(values) / (len(values) - 1)


@dataclass(frozen=True)
class Grid:
    """Two dimensions of a variable as a picture."""

    part: FieldSlice
    """What is drawn."""
    down: Side
    """The dimension from top to bottom."""
    across: Side
    """The dimension from left to right."""
    turned: bool
    """Whether the vertical dimension is the faster one."""

    @property
    def is_map(self) -> bool:
        """Return whether the sides are latitudes and longitudes."""
        return direction(self.down.dimension) == "lat" and direction(self.across.dimension) == "lon"

    @property
    def aspect(self) -> float:
        """Return width over height: of degrees at the middle latitude, of units where both sides have the same, else of places."""
        width, height, down = self.across.span, self.down.span, self.down.coordinate
        aspect = self.across.dimension.size / self.down.dimension.size
        if width and height and down is not None and self.is_map:
            aspect = width * max(0.02, math.cos(math.radians((down[0] + down[-1]) / 2))) / height
        elif width and height and units_of(self.across.dimension) == units_of(self.down.dimension):
            aspect = width / height
        return min(max(aspect, _ASPECTS[0]), _ASPECTS[1])

    def pixels(self, field: Array) -> Array:
        """Return ``(height, width)`` or, of colours, ``(height, width, 3)`` from the `field` of the variable."""
        values = self.part.values(field)
        values = values.T if self.turned else values
        return values[np.ix_(self.down.places, self.across.places)]


@dataclass(frozen=True)
class Line:
    """One dimension of a variable as a line."""

    part: FieldSlice
    """What is drawn."""
    dimension: Dimension
    """The dimension with its coordinate, of numbers or times."""


@dataclass(frozen=True)
class Layout:
    """How rows with certain labels are drawn."""

    labels: Labels
    """The labels."""
    grids: tuple[Grid, ...]
    """Pictures, those of one variable after another."""
    lines: tuple[Line, ...]
    """Lines, likewise."""
    left_out: tuple[str, ...] = ()
    """What is not drawn, in sentences."""
    labelled: bool = True
    """Whether the dimensions have names of their own."""

    @property
    def n_charts(self) -> int:
        """Return how many pictures and lines a row is drawn as."""
        return len(self.grids) + len(self.lines)

    def fields(self, row: Array) -> list[Array]:
        """Return a row, ``(n_features,)``, as one field for each variable, NaN where it is masked."""
        return self.labels.spread(row.astype(np.float64, copy=False))

    def picture(self, row: Array) -> Array:
        """Return the first picture of a row."""
        return self.grids[0].pixels(self.fields(row)[self.grids[0].part.variable])

    def title(self, part: FieldSlice) -> str:
        """Return the name of the variable, where there are several, and the places of a part."""
        name = self.name(part.variable) if len(self.labels.variables) > 1 else ""
        return ", ".join(text for text in (name, part.place) if text)

    def name(self, variable: int) -> str:
        """Return the name of a variable."""
        return clean(self.labels.variables[variable].name or "values", 60)

    def units(self, variable: int) -> str:
        """Return the units of a variable, nothing where it has none."""
        return units_of(self.labels.variables[variable])


def _side(dimension: Dimension, step: int, *, vertical: bool = False) -> Side:
    return Side(dimension, *places(dimension, step, vertical=vertical))


def layout_of(labels: Labels) -> Layout | None:
    """Return how rows with `labels` are drawn; None if no variable is a map, an image or a line."""
    grids: list[Grid] = []
    lines: list[Line] = []
    left_out: list[str] = []
    for number, variable in enumerate(labels.variables):
        drawn = _drawn(labels, variable)
        if not drawn:
            if len(labels.variables) > 1:
                left_out.append(f"The variable {clean(variable.name, 60)} is not drawn.")
            continue
        step = max(1, -(-max(labels.dimension(name).size for name in drawn) // MAX_SIDE))
        sides = [_side(labels.dimension(name), step, vertical=at == 0) for at, name in enumerate(drawn)]
        for part in _parts(labels, number, drawn, left_out):
            if len(drawn) == 2:
                turned = variable.dims.index(drawn[0]) > variable.dims.index(drawn[1])
                grids.append(Grid(part, sides[0], sides[1], turned))
            else:
                lines.append(Line(part, labels.dimension(drawn[0])))
        if len(drawn) == 2 and step > 1:
            counts = " × ".join(f"{len(one.places):,} of {one.dimension.size:,}" for one in sides)
            left_out.append(f"Pictures{_of(variable)} show {counts} places.")
    return Layout(labels, tuple(grids), tuple(lines), tuple(left_out)) if grids or lines else None


def _drawn(labels: Labels, variable: Variable) -> tuple[str, ...]:
    """Return the names of the two dimensions of a variable that are drawn as a picture, or the one of a line; else nothing."""
    dims = [labels.dimension(name) for name in variable.dims]
    wide = [d for d in dims if d.size > 1 and (d.coordinate is None or d.coordinate.dtype.kind in "iufM")]
    for first, second in (({"lat"}, {"lon"}), (_ROWS, _COLUMNS)):
        down = [d.name for d in wide if {direction(d), d.name.lower()} & first]
        across = [d.name for d in wide if {direction(d), d.name.lower()} & second]
        if len(down) == len(across) == 1:
            return down[0], across[0]
    if len(wide) == 1:
        return (
            (wide[0].name,) if wide[0].size > 2 and (numbers(wide[0]) is not None or times(wide[0]) is not None) else ()
        )
    largest = sorted(sorted(range(len(wide)), key=lambda at: -wide[at].size)[:2])
    return tuple(wide[at].name for at in largest)


def _parts(labels: Labels, number: int, drawn: Sequence[str], left_out: list[str]) -> Iterator[FieldSlice]:
    """Yield a part for each place of the dimensions that are not drawn, or for some that are spread evenly over them.

    What is not yielded is added to `left_out` as a sentence.
    """
    variable = labels.variables[number]
    others = [labels.dimension(name) for name in variable.dims if name not in drawn]
    sizes = [other.size for other in others]
    n, shown = math.prod(sizes), min(MOST_PARTS, math.prod(sizes))
    if shown < n:
        along = " × ".join(clean(other.name, 40) for other in others if other.size > 1)
        left_out.append(f"{shown:,} of {plural(n, 'place')} along {along}{_of(variable)} are shown.")
    for flat in np.linspace(0, n - 1, shown).round().astype(int):
        chosen = [int(place) for place in np.unravel_index(flat, sizes)] if others else []
        at = dict(zip((other.name for other in others), chosen, strict=True))
        words = ", ".join(f"{clean(d.name, 40)} = {clean(d.value(at[d.name]), 40)}{_unit(d)}" for d in others)
        yield FieldSlice(number, tuple(at.get(name) for name in variable.dims), words)


def _unit(dimension: Dimension) -> str:
    units = units_of(dimension)
    return f" {units}" if units and dimension.coordinate is not None and " since " not in units else ""


def _of(variable: Variable) -> str:
    return f" of {clean(variable.name, 60)}" if variable.name else ""


def picture_layout(feature_shape: object, n_features: int) -> Layout | None:
    """Return how rows are pictures, or None when `feature_shape` is not that of one, or not of `n_features` numbers."""
    if not isinstance(feature_shape, Sequence) or isinstance(feature_shape, str):
        return None
    sides = [whole(side) or 0 for side in feature_shape]
    colour = len(sides) == 3 and sides[2] == 3
    if not colour and len(sides) == 3 and sides[2] == 1:
        sides = sides[:2]
    if len(sides) not in (2, 3) or (len(sides) == 3 and not colour) or min(sides) < 1:
        return None
    if math.prod(sides) != n_features or max(sides[:2]) > 8 * min(sides[:2]):
        return None
    dimensions = tuple(Dimension(name, size) for name, size in zip(("y", "x", "colour"), sides, strict=False))
    labels = Labels((), dimensions, (Variable(None, tuple(d.name for d in dimensions), tuple(sides)),))
    step = -(-max(sides[:2]) // SMALL_SIDE)
    down, across = (_side(dimension, step) for dimension in dimensions[:2])
    grid = Grid(FieldSlice(0, (None,) * len(sides), ""), down, across, turned=False)
    return Layout(labels, (grid,), (), labelled=False)
