"""A mean, a mode or scores as maps, images and lines with axes, units and a colour scale."""

from __future__ import annotations

import math
from itertools import groupby

import numpy as np

from streampca.runs.report import figures_of_series as series
from streampca.runs.report import pictures, words
from streampca.runs.report.layouts import Grid, Layout
from streampca.runs.report.parts import Chart, FieldFigure, Panel, Scale
from streampca.runs.report.sides import numbers, times, title_of
from streampca.typing import Array


def field_figure(layout: Layout, row: Array, title: str, *, signed: bool) -> FieldFigure:
    """Return the pictures of one row, ``(n_features,)``: of one variable after another, each with its colour scale.

    Parameters
    ----------
    layout
        How rows are drawn; with pictures.
    row
        Values in the units of their variables.
    title
        What they are.
    signed
        Whether colours are symmetric about 0.
    """
    fields = layout.fields(row)
    groups = []
    for variable, members in groupby(layout.grids, lambda grid: grid.part.variable):
        low, high = limits(fields[variable], signed=signed)
        masked = not np.isfinite(fields[variable]).all()
        scale = _scale(low, high, layout.units(variable), signed=signed, masked=masked)
        panels = tuple(_panel(layout, grid, fields[variable], (low, high), title, scale) for grid in members)
        groups.append((panels, scale))
    return FieldFigure(title, tuple(groups))


def limits(values: Array, *, signed: bool) -> tuple[float, float]:
    """Return the ends of the colour scale of `values`: least and greatest, or symmetric about 0."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return (-1.0, 1.0) if signed else (0.0, 1.0)
    low, high = float(finite.min()), float(finite.max())
    return (-max(-low, high), max(-low, high)) if signed else (low, high)


def _scale(low: float, high: float, units: str, *, signed: bool, masked: bool) -> Scale:
    unit = f"{words.SPACE}{units}" if units else ""
    digits = 3 if signed else _digits(low, high)
    ends = (_number(low, digits), *(("0",) if signed else ()), _number(high, digits) + unit)
    return Scale("diverging" if signed else "sequential", ends, masked)


def _digits(low: float, high: float) -> int:
    """Return how many digits tell the two numbers apart, and three in any case."""
    largest = max(abs(low), abs(high))
    return 3 if not 0 < high - low < math.inf else min(12, 3 + max(0, math.floor(math.log10(largest / (high - low)))))


def _number(value: float, digits: int = 3) -> str:
    return words.figure(value, digits).replace("-", "−")


def _panel(layout: Layout, grid: Grid, values: Array, ends: tuple[float, float], title: str, scale: Scale) -> Panel:
    pixels = grid.pixels(values)
    colours = pictures.diverging(pixels, ends[1]) if scale.colours == "diverging" else pictures.rising(pixels, *ends)
    kind, name = "Map" if grid.is_map else "Image", layout.title(grid.part)
    sides = " × ".join(
        f"{side.dimension.size:,} {words.clean(side.dimension.name, 40)}" for side in (grid.down, grid.across)
    )
    alt = f"{kind} of {title[:1].lower()}{title[1:]}{f' ({name})' if name else ''}, {sides}; colours from {scale.ends[0]} to {scale.ends[-1]}."
    alt += " Grey places are masked." if np.isnan(pixels).any() else ""
    names = ("", "") if grid.is_map else (grid.across.title, grid.down.title)
    return Panel(
        name, pictures.data_uri(colours), alt, round(grid.aspect, 4), grid.across.ticks, grid.down.ticks, names
    )


def line_charts(layout: Layout, row: Array, title: str, salt: str, *, signed: bool = True) -> tuple[Chart, ...]:
    """Return the lines of one row, ``(n_features,)``, each against the coordinate of its dimension.

    `salt` is a name that no other chart of the page has; with `signed`, zero is marked.
    """
    fields, charts = layout.fields(row), []
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
        gaps, width = int(np.isnan(values).sum()), series.values_of_a_point(len(values))
        caption = (
            f"Each point is the mean of {width:,} values; the band goes from the least to the greatest."
            if width > 1
            else ""
        )
        alt += f" {words.plural(gaps, 'place')} without a value." if gaps else ""
        svg = series.line(x, values, (axis, label), f"{salt}-{i}", zero=signed)
        charts.append(Chart(heading, svg, alt, caption))
    return tuple(charts)
