"""Drawing of rows by the labels of their features: as maps, as images, as lines along a coordinate, or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.formatting import clean, plural, whole
from streampca.labels import Dimension, Labels, Variable
from streampca.runs.report.figures import MASKED, RISING, SIGNED, WIDTH, Chart, inline
from streampca.typing import Array, FloatArray, IntArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


_LATITUDE = frozenset(
    {"lat", "latitude", "degrees_north", "degree_north", "degrees_n", "degree_n", "degreesn", "degreen"}
)
_LONGITUDE = frozenset(
    {"lon", "long", "longitude", "degrees_east", "degree_east", "degrees_e", "degree_e", "degreese", "degreee"}
)


def title_of(dimension: Dimension) -> str:
    """Return the name of a dimension with its units: ``wavelength (nm)``."""
    name = clean(dimension.attributes.get("long_name") or dimension.name, 60)
    units = units_of(dimension)
    return f"{name} ({units})" if units and " since " not in units else name


def units_of(labelled: object) -> str:
    """Return the attribute ``units`` of a dimension or variable; nothing where there is none or it is 1."""
    units = getattr(labelled, "attributes", {}).get("units")
    return "" if not isinstance(units, str) or units in ("", "1") else clean(units, 40)


def direction(dimension: Dimension) -> str:
    """Return ``lat`` or ``lon`` for a dimension of latitudes or longitudes, by its units or names; else nothing."""
    if numbers(dimension) is None:
        return ""
    told = {str(dimension.attributes.get(name, "")).lower() for name in ("units", "standard_name")} | {
        dimension.name.lower()
    }
    return "lat" if told & _LATITUDE else "lon" if told & _LONGITUDE else ""


def numbers(dimension: Dimension) -> FloatArray | None:
    """Return the coordinate of a dimension as numbers; None if it is not of numbers, or one is not finite or above 1e300."""
    values = dimension.coordinate
    if values is None or values.dtype.kind not in "iuf":
        return None
    numbers = values.astype(np.float64)
    return numbers if bool((np.abs(numbers) < 1e300).all()) else None


def times(dimension: Dimension) -> Array | None:
    """Return the coordinate of a dimension as ``datetime64``; None if it is not of times."""
    values = dimension.coordinate
    return None if values is None or values.dtype.kind != "M" or bool(np.isnat(values).any()) else values


def places(dimension: Dimension, step: int, *, vertical: bool = False) -> tuple[IntArray, FloatArray | None]:
    """Return every `step`-th place of a dimension, from left to right or from top to bottom, and their coordinates.

    Longitudes rise to the right; latitudes, and whatever the attributes call a y axis, rise to the top; everything else is
    in the order of storage. Coordinates are None where they are not numbers that rise or fall.
    """
    shown = np.arange(step // 2, dimension.size, step)
    values, kind = numbers(dimension), direction(dimension)
    if values is None or len(shown) < 2:
        return shown, None
    values = values[shown]
    if kind == "lon" and not _monotonic(values):
        values = np.unwrap(values, period=360.0)
    if not _monotonic(values):
        return shown, None
    y_axis = dimension.attributes.get("axis") == "Y" or "projection_y" in str(dimension.attributes.get("standard_name"))
    falls = bool(values[1] < values[0])
    turned = falls if kind == "lon" else vertical and not falls and (kind == "lat" or y_axis)
    return (shown[::-1], values[::-1]) if turned else (shown, values)


def _monotonic(values: FloatArray) -> bool:
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all())


def degrees(value: float, kind: str) -> str:
    """Return a latitude (`kind` is ``lat``) or longitude (``lon``) as ``30° N``, ``90° W``, ``180°``."""
    if kind == "lon":
        value = (value + 180.0) % 360.0 - 180.0
    shown = f"{abs(value):.4g}°"
    if value == 0 or (kind == "lon" and value == -180):
        return shown
    return f"{shown}\N{NO-BREAK SPACE}{('S', 'N')[int(value > 0)] if kind == 'lat' else ('W', 'E')[int(value > 0)]}"


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


_DOTS_PER_INCH = 150
"""Of pictures within charts."""


def charts_of_row(layout: Layout, row: Array, title: str, salt: str, *, signed: bool) -> list[Chart]:
    """Return the maps, images and lines of one row, ``(n_features,)``; maps and images of one variable have one colour scale.

    Parameters
    ----------
    layout
        How rows are drawn.
    row
        Values in the units of their variables.
    title
        What they are.
    salt
        A name that no other chart of the page has.
    signed
        Whether colours are symmetric about 0, and 0 is marked on lines.
    """
    fields = layout.fields(row)
    maps = [
        _map(layout, grid, fields[grid.part.variable], title, f"{salt}-map-{i}", signed=signed)
        for i, grid in enumerate(layout.grids)
    ]
    return maps + _lines(layout, fields, title, salt, signed=signed)


def limits(values: Array, *, signed: bool) -> tuple[float, float]:
    """Return the ends of the colour scale of `values`: least and greatest, or symmetric about 0."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return (-1.0, 1.0) if signed else (0.0, 1.0)
    low, high = float(finite.min()), float(finite.max())
    return (-max(-low, high), max(-low, high)) if signed else (low, high)


def _map(layout: Layout, grid: Grid, field: Array, title: str, salt: str, *, signed: bool) -> Chart:
    """Return the map or the image of two dimensions of the `field` of a variable."""
    low, high = limits(field, signed=signed)
    if low == high:
        low, high = low - 1.0, high + 1.0
    pixels, units, place = grid.pixels(field), layout.units(grid.part.variable), layout.title(grid.part)
    apart = 0 if signed else math.floor(math.log10(max(abs(low), abs(high))) - math.log10(high - low))
    ends = [_number(value, min(12, 3 + max(0, apart))) for value in (low, high)]  # so many digits tell them apart
    ends[1] += f"{words.SPACE}{units}" if units else ""
    sides = " × ".join(
        f"{side.dimension.size:,} {words.clean(side.dimension.name, 40)}" for side in (grid.down, grid.across)
    )
    alt = f"{'Map' if grid.is_map else 'Image'} of {title[:1].lower()}{title[1:]}{f' ({place})' if place else ''}, {sides}; "
    alt += f"colours from {ends[0]} to {ends[1]}."
    caption = "Grey places are masked." if np.isnan(pixels).any() else ""

    def draw(axes: Axes) -> None:
        scale = [(low, ends[0]), *([(0.0, "0")] if signed else []), (high, ends[1])]
        mesh(axes, _edges(grid.across), _edges(grid.down), pixels, scale, SIGNED if signed else RISING)
        axes.set_box_aspect(1 / grid.aspect)
        for axis, side in ((axes.xaxis, grid.across), (axes.yaxis, grid.down)):
            _label(axis, side, named=not grid.is_map)

    height = min(8.0, 0.8 * WIDTH / grid.aspect) + 0.9
    svg = inline(salt, draw, WIDTH, height)
    return Chart(", ".join(text for text in (title, place) if text), svg, f"{alt} {caption}".strip(), caption)


def mesh(
    axes: Axes, x: FloatArray, y: FloatArray, values: FloatArray, scale: Sequence[tuple[float, str]], colours: str
) -> None:
    """Draw `values`, ``(height, width)``, between edges ``(width + 1,)`` and ``(height + 1,)``, the first row at the top.

    `scale` are numbers on the colour scale with their texts, from its lower end to its upper end.
    """
    import matplotlib as mpl

    shades = mpl.colormaps[colours].with_extremes(bad=MASKED)
    shown = np.ma.masked_invalid(values)
    drawn = axes.pcolormesh(x, y, shown, cmap=shades, vmin=scale[0][0], vmax=scale[-1][0], rasterized=True)
    axes.set(xlim=(x[0], x[-1]), ylim=(y[-1], y[0]))
    axes.grid(visible=False)
    axes.tick_params(axis="x", pad=7)  # clear of the lowest number of the other axis
    figure = axes.figure
    figure.set_dpi(_DOTS_PER_INCH)
    bar = figure.colorbar(drawn, ax=axes, orientation="horizontal", aspect=36, shrink=0.8)
    bar.set_ticks([value for value, _ in scale], labels=[text for _, text in scale], parse_math=False)
    bar.outline.set_visible(False)
    for shading in bar.ax.collections:
        shading.set_rasterized(True)


def _edges(side: Side) -> FloatArray:
    """Return the outer edges of the places of a side: halfway between coordinates, or between their numbers."""
    values = side.places.astype(np.float64) if side.coordinate is None else side.coordinate
    if len(values) < 2:
        return np.array([values[0] - 0.5, values[0] + 0.5])
    middles = (values[1:] + values[:-1]) / 2
    return np.concatenate([[1.5 * values[0] - 0.5 * values[1]], middles, [1.5 * values[-1] - 0.5 * values[-2]]])


def _label(axis: Axis, side: Side, *, named: bool) -> None:
    """Write few coordinates beside an axis: latitudes and longitudes as such, else numbers, or nothing without coordinates."""
    from matplotlib.ticker import MaxNLocator

    kind = direction(side.dimension)
    wide = bool(kind) and side.span >= 20
    axis.set_major_locator(MaxNLocator(5, steps=[1, 1.5, 3, 4.5, 6, 9, 10] if wide else [1, 2, 2.5, 5, 10]))
    if side.coordinate is None:
        axis.set_ticks([])
    axis.set_major_formatter(lambda value, _: degrees(value, kind) if kind else f"{value + 0.0:.6g}".replace("-", "−"))
    if named:
        axis.set_label_text(title_of(side.dimension), parse_math=False)


def _number(value: float, digits: int = 3) -> str:
    return words.figure(value, digits).replace("-", "−")


def _lines(layout: Layout, fields: list[Array], title: str, salt: str, *, signed: bool) -> list[Chart]:
    """Return the lines of one row, each against the coordinate of its dimension."""
    drawn = []
    for i, line in enumerate(layout.lines):
        values, dates = line.part.values(fields[line.part.variable]), times(line.dimension)
        x = numbers(line.dimension) if dates is None else dates
        if x is None:
            continue
        units, variable = layout.units(line.part.variable), layout.labels.variables[line.part.variable]
        label = layout.name(line.part.variable) if variable.name else "score"
        axis, label = title_of(line.dimension), f"{label} ({units})" if units else label
        place = layout.title(line.part) if len(layout.lines) > 1 else ""
        heading = ", ".join(text for text in (title, place) if text)
        low, high = limits(values, signed=False)
        alt = f"Line of {heading}: {label} against {axis}, from {_number(low)} to {_number(high)}."
        gaps, width = int(np.isnan(values).sum()), plotting.values_of_a_point(len(values))
        caption = (
            f"Each point is the mean of {width:,} values; the band goes from the least to the greatest."
            if width > 1
            else ""
        )
        alt += f" {words.plural(gaps, 'place')} without a value." if gaps else ""
        draw = partial(plotting.line, x=x, y=values, titles=(axis, label), zero=signed)
        drawn.append(Chart(heading, inline(f"{salt}-{i}", draw, height=2.9), alt, caption))
    return drawn
