"""What the components look like: maps, images or lines of their dimensions, pictures, or bars of the largest entries."""

from __future__ import annotations

import numpy as np

from streampca.runs.report import fields, figures, pictures, words
from streampca.runs.report.layouts import Layout, layout_of, picture_layout
from streampca.runs.report.parts import Bar, Bars, Chart, Components, FieldFigure, Picture
from streampca.runs.report.result import ReportedSpectrum, field
from streampca.runs.report.run_files import RunFiles, blocks
from streampca.typing import Array, FloatArray, IntArray

MAX_PICTURES = 32
"""So many components are drawn at most as pictures."""
_MOST_PANELS = 24
"""So many maps, images and lines are drawn at most."""
_MOST_MODES = 8
_SLAB_COMPONENTS, _ENTRIES = 3, 12
_SIGN = "The sign of a component as a whole is a matter of choice; signs within it are not."


def layout_of_run(run: RunFiles) -> Layout | None:
    """Return how the rows of `run` are drawn: by their labels, or by the shape of pictures that the store declares.

    None where they are not, or where the packages that draw are not installed.
    """
    if not figures.can_draw():
        return None
    layout = None if run.labels is None or run.labels.n_features != run.n_features else layout_of(run.labels)
    return layout or picture_layout(field(run.manifest, "source", "feature_shape"), run.n_features)


def components(run: RunFiles, spectrum: ReportedSpectrum, layout: Layout | None) -> Components:
    """Return the first components by the labels of their features, as pictures, or as bars of their largest entries."""
    if run.slab is not None:  # rows of the components are never read whole
        return _in_slabs(run, spectrum)
    if layout is None:
        return Components(
            (),
            _largest_entries(run, spectrum),
            f"The features that weigh most in each of the first components. {_SIGN}",
        )
    return _by_dimensions(run, spectrum, layout) if layout.labelled else _pictures(run, spectrum, layout)


def _by_dimensions(run: RunFiles, spectrum: ReportedSpectrum, layout: Layout) -> Components:
    """Return the mean and the first components in the units of the data, along the dimensions of their features."""
    drawn: list[FieldFigure] = []
    charts: list[Chart] = []

    def draw(row: FloatArray, title: str, salt: str, signed: bool) -> None:
        if layout.grids:
            drawn.append(fields.field_figure(layout, row, title, signed=signed))
        charts.extend(fields.line_charts(layout, row, title, salt, signed=signed))

    if run.centred:
        draw(run.mean, "Mean of all rows", "mean-line", False)
    shown = min(run.n_components, _MOST_MODES, max(1, _MOST_PANELS // (len(layout.grids) + len(layout.lines))))
    for start, rows in blocks(run.components, shown):
        for i, row in enumerate(rows, start):
            root = float(np.sqrt(max(0.0, run.explained_variance[i])))
            draw(run.amplitude(row) * root, f"Component {i + 1} · {spectrum.share(i)}", f"mode-{i}", True)
    variables = layout.labels.variables
    name = words.clean(variables[0].name, 60) if len(variables) == 1 and variables[0].name else "the data"
    deviation = "standard deviation" if run.centred else "root mean square (divisor n − ddof)"
    note = f"How much {name} changes where the score of a component rises by one {deviation}, with the component’s "
    note += f"share of the variance. {_SIGN}"
    left = run.n_components - shown
    omitted = (*layout.left_out, *((f"{left:,} more {'is' if left == 1 else 'are'} in the model.",) if left else ()))
    return Components((), (), " ".join((note, *omitted)), tuple(drawn), tuple(charts))


def _pictures(run: RunFiles, spectrum: ReportedSpectrum, layout: Layout) -> Components:
    """Return the mean and the first components as small pictures."""
    drawn = []
    if run.centred:
        eight_bit = field(run.manifest, "source", "dtype") == "uint8"
        low, high = (0.0, 255.0) if eight_bit else (float(np.min(run.mean)), float(np.max(run.mean)))
        mean = pictures.rising(layout.picture(run.mean), low, high, greys=True)
        drawn.append(Picture(pictures.data_uri(mean), "The mean of all rows", "mean"))
    for start, rows in blocks(run.components, MAX_PICTURES):
        for i, row in enumerate(rows, start):
            pixels = np.nan_to_num(layout.picture(row), posinf=0.0, neginf=0.0)
            uri = pictures.data_uri(pictures.diverging(pixels, float(np.abs(pixels).max())))
            drawn.append(Picture(uri, f"Component {i + 1}", f"{i + 1}", spectrum.share(i)))
    scale = "middle grey is zero" if layout.grids[0].colour else "white is zero, red positive, blue negative"
    origin, left = "their mean" if run.centred else "zero", run.n_components - MAX_PICTURES
    note = f"Each picture is one direction in which the rows differ from {origin}, with its share of the variance; "
    note += f"{scale}, each scaled by its own largest entry."
    note += f" {left:,} more {'is' if left == 1 else 'are'} in the model." if left > 0 else ""
    return Components(tuple(drawn), (), note)


def _in_slabs(run: RunFiles, spectrum: ReportedSpectrum) -> Components:
    """Return the largest entries of the first components, from one sweep over the slabs, and what is left out."""
    k, d, width = run.n_components, run.n_features, run.slab or run.n_features
    n = min(_SLAB_COMPONENTS, k)
    places, values = np.empty((n, 0), dtype=np.int64), np.empty((n, 0))
    for start in range(0, d, width):
        columns = slice(start, min(start + width, d))
        slab = np.nan_to_num(run.components[slice(0, n), columns])
        places = np.hstack([places, np.broadcast_to(np.arange(columns.start, columns.stop), slab.shape)])
        values = np.hstack([values, slab])
        order = np.stack([largest(row, _ENTRIES) for row in values])
        places, values = np.take_along_axis(places, order, 1), np.take_along_axis(values, order, 1)
    note = f"The features that weigh most in each of the first components. {_SIGN} "
    note += f"The components take {words.size(8 * k * d)} and are stored in slabs of features, so "
    note += "pictures of them, and rows on them or rebuilt from them, are left out."
    return Components((), tuple(bars(run, spectrum, i, places[i], values[i]) for i in range(n)), note)


def _largest_entries(run: RunFiles, spectrum: ReportedSpectrum) -> tuple[Bars, ...]:
    result = []
    for start, rows in blocks(run.components, 3):
        for i, row in enumerate(np.nan_to_num(rows), start):
            chosen = largest(row, _ENTRIES)
            result.append(bars(run, spectrum, i, chosen, row[chosen]))
    return tuple(result)


def bars(run: RunFiles, spectrum: ReportedSpectrum, component: int, chosen: IntArray, values: Array) -> Bars:
    """Return the largest entries of a component, from 0: those of the features `chosen`, largest first."""
    longest = float(abs(values[0])) or 1.0
    drawn = tuple(
        Bar(
            feature_name(run, int(j)),
            f"{value:+.3f}".replace("-", "−"),
            round(50 * float(abs(value)) / longest, 2),
            bool(value < 0),
        )
        for j, value in zip(chosen, values, strict=True)
    )
    left = run.n_features - len(drawn)
    caption = (
        f"The {len(drawn)} largest of {run.n_features:,} entries; {left:,} {'is' if left == 1 else 'are'} not shown."
        if left
        else "All entries."
    )
    return Bars(f"Component {component + 1} · {spectrum.share(component)}", drawn, caption)


def feature_name(run: RunFiles, feature: int) -> str:
    """Return the name of a feature: as the source gives it, by its labels where they have coordinates, or by its number."""
    names = field(run.manifest, "source", "feature_names")
    if isinstance(names, list) and len(names) == run.n_features:
        return words.clean(names[feature], 60)
    labels = run.labels
    if labels is None or (len(labels.variables) == 1 and all(d.coordinate is None for d in labels.features)):
        return f"feature {feature:,}"
    return words.clean(labels.feature_name(feature), 60)


def largest(row: Array, most: int, piece: int = 1 << 16) -> IntArray:
    """Return the places of the `most` largest moduli in `row`, largest first, with scratch for `piece` entries only."""
    places = np.empty(0, dtype=np.int64)
    for start in range(0, len(row), piece):
        places = np.concatenate([places, np.arange(start, min(len(row), start + piece))])
        places = places[np.lexsort((places, -np.abs(row[places])))[:most]]
    return places
