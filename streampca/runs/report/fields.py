"""A mean, a mode or scores as maps, images and lines with axes, units and a colour scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.runs.report.coordinates import degrees, direction, numbers, times, title_of
from streampca.runs.report.figures import WIDTH, inline
from streampca.runs.report.layouts import Grid, Layout, Side
from streampca.runs.report.parts import Chart
from streampca.runs.report.pictures import MASKED, RISING, SIGNED
from streampca.typing import Array, FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_DOTS_PER_INCH = 150
"""Of pictures within charts."""


def charts(layout: Layout, row: Array, title: str, salt: str, *, signed: bool) -> list[Chart]:
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
