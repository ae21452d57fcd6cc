"""What the components look like: maps, images or lines of their dimensions, pictures, or bars of the largest entries."""

from __future__ import annotations

import numpy as np

import streampca.formatting as words
from streampca.models.stored import slabs_of
from streampca.runs.report import fields, figures
from streampca.runs.report.layouts import Layout, layout_of, picture_layout
from streampca.runs.report.parts import Chart, Picture
from streampca.runs.report.pictures import GREYS, SIGNED, picture
from streampca.runs.report.result import ReportedSpectrum, field
from streampca.runs.report.run_files import RunFiles
from streampca.typing import Array, IntArray, Json

MAX_PICTURES = 32
"""So many components are drawn at most as pictures."""
_MOST_PANELS = 24
"""So many maps, images and lines are drawn at most."""
_MOST_MODES = 8
_ENTRIES = 12
_SIGN = "The sign of a component as a whole is a matter of choice; signs within it are not."


def layout_of_run(run: RunFiles) -> Layout | None:
    """Return how the rows of `run` are drawn: by their labels, or by the shape of pictures that the store declares.

    None where they are not, or where the packages that draw are not installed.
    """
    if not figures.can_draw():
        return None
    layout = None if run.labels is None or run.labels.n_features != run.n_features else layout_of(run.labels)
    return layout or picture_layout(field(run.manifest, "source", "feature_shape"), run.n_features)


def components(
    run: RunFiles,
    spectrum: ReportedSpectrum,
    layout: Layout | None,
    most: int | None = None,
    group: str = "",
    salt: str = "mode",
) -> Json:
    """Return the mean and the first components by the labels of their features, as pictures, or as bars of their largest entries.

    On a page of several models, `most` is how many components are shown, without the mean, `group` the name of the model and `salt`
    one that the charts of no other have.
    """
    if layout is None or run.in_slabs:  # rows of components on disk are never read whole
        return _largest_entries(run, spectrum, most or 3, group)
    if not layout.labelled:
        return _pictures(run, spectrum, layout, most, group)
    return _by_dimensions(run, spectrum, layout, most, group, salt)


def _by_dimensions(
    run: RunFiles, spectrum: ReportedSpectrum, layout: Layout, most: int | None, group: str, salt: str
) -> Json:
    """Return the mean and the first components in the units of the data, along the dimensions of their features."""
    charts: list[Chart] = []
    if run.centred and most is None:
        charts += fields.charts(layout, run.mean, "Mean of all rows", "mean", signed=False)
    shown = min(run.n_components, most or min(_MOST_MODES, max(1, _MOST_PANELS // layout.n_charts)))
    for i, row in enumerate(run.components[:shown]):
        root = float(np.sqrt(max(0.0, run.explained_variance[i])))
        title = _title(spectrum, i, group)
        charts += fields.charts(layout, run.amplitude(row) * root, title, f"{salt}-{i}", signed=True)
    variables = layout.labels.variables
    name = words.clean(variables[0].name, 60) if len(variables) == 1 and variables[0].name else "the data"
    deviation = "standard deviation" if run.centred else "root mean square (divisor n − ddof)"
    note = f"How much {name} changes where the score of a component rises by one {deviation}, with the component’s "
    note += f"share of the variance. {_SIGN}"
    return {"charts": charts, "note": " ".join((note, *layout.left_out)) + ("" if most else _left(run, shown))}


def _title(spectrum: ReportedSpectrum, component: int, group: str) -> str:
    return f"{spectrum.noun} {component + 1}{f', {group}' if group else ''} · {spectrum.share(component)}"


def _left(run: RunFiles, shown: int) -> str:
    left = run.n_components - shown
    return f" {left:,} more {'is' if left == 1 else 'are'} in the model." if left > 0 else ""


def _pictures(run: RunFiles, spectrum: ReportedSpectrum, layout: Layout, most: int | None, group: str) -> Json:
    """Return the mean and the first components as small pictures."""
    drawn = []
    if run.centred and most is None:
        eight_bit = field(run.manifest, "source", "dtype") == "uint8"
        low, high = (0.0, 255.0) if eight_bit else (float(np.min(run.mean)), float(np.max(run.mean)))
        mean = picture(layout.picture(run.mean), low, high, GREYS)
        drawn.append(Picture(mean, "The mean of all rows", "mean"))
    shown = most or MAX_PICTURES
    for i, row in enumerate(run.components[:shown]):
        pixels = layout.picture(row)
        largest_entry = float(np.abs(pixels).max())
        uri = picture(pixels, -largest_entry, largest_entry, SIGNED)
        name = _title(spectrum, i, group).partition(" ·")[0]
        drawn.append(Picture(uri, name, f"{group}, {i + 1}".removeprefix(", "), spectrum.share(i)))
    scale = "middle grey is zero" if pixels.ndim == 3 else "white is zero, red positive, blue negative"
    note = f"Each picture is one direction in which the rows differ from {'their mean' if run.centred else 'zero'}, with its share of "
    note += f"the variance; {scale}, each scaled by its own largest entry."
    return {"pictures": drawn, "note": note + ("" if most else _left(run, shown))}


def _largest_entries(run: RunFiles, spectrum: ReportedSpectrum, most: int, group: str) -> Json:
    """Return the largest entries of the first components, from one sweep over slabs of features."""
    n = min(most, run.n_components)
    places, values = np.empty((n, 0), dtype=np.int64), np.empty((n, 0))
    for features, slab in slabs_of(run.pca.components):
        places = np.hstack([places, np.broadcast_to(np.arange(features.start, features.stop), (n, slab.shape[1]))])
        values = np.hstack([values, slab[:n]])
        order = np.stack([largest(row, _ENTRIES) for row in values])
        places, values = np.take_along_axis(places, order, 1), np.take_along_axis(values, order, 1)
    note = f"The features that weigh most in each of the first components. {_SIGN}"
    if run.in_slabs:
        note += f" The components take {words.size(8 * run.n_components * run.n_features)} and are stored in slabs of features, so "
        note += "pictures of them, and rows on them or rebuilt from them, are left out."
    return {"bars": [_bars(run, _title(spectrum, i, group), places[i], values[i]) for i in range(n)], "note": note}


def _bars(run: RunFiles, title: str, chosen: IntArray, values: Array) -> Json:
    """Return the largest entries of a component as bars: those of the features `chosen`, largest first."""
    longest = float(abs(values[0])) or 1.0
    drawn = [
        (feature_name(run, int(j)), f"{value:+.3f}".replace("-", "−"), round(50 * float(abs(value)) / longest, 2))
        for j, value in zip(chosen, values, strict=True)
    ]
    left = run.n_features - len(drawn)
    caption = (
        f"The {len(drawn)} largest of {run.n_features:,} entries; {left:,} {'is' if left == 1 else 'are'} not shown."
        if left
        else "All entries."
    )
    return {"title": title, "bars": drawn, "caption": caption}


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
