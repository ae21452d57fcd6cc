"""Charts of the components: maps, images or lines, pictures, bars of the largest entries, loadings and a biplot."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.models.stored import slabs_of
from streampca.runs.report.figures import (
    GREYS,
    SIGNED,
    WIDTH,
    Chart,
    Picture,
    ReportTable,
    Section,
    can_draw,
    directions_of_arrows,
    inline,
    picture,
)
from streampca.runs.report.layouts import Layout, charts_of_row, layout_of, picture_layout
from streampca.runs.report.result import rows_section, score_charts
from streampca.runs.report.run_files import ReportedSpectrum, RunFiles, field
from streampca.runs.report.samples import Scores, Shown
from streampca.typing import Array, FloatArray, IntArray, Json

MAX_PICTURES = 32
"""So many components are drawn at most as pictures."""
_MOST_PANELS = 24
"""So many maps, images and lines are drawn at most."""
_MOST_MODES = 8
_ENTRIES = 12
_SIGN = "The sign of a component as a whole is arbitrary."


def layout_of_run(run: RunFiles) -> Layout | None:
    """Return how the rows of `run` are drawn: by their labels, or by the shape of pictures that the store declares.

    None where they are not, or where the packages that draw are not installed.
    """
    if not can_draw():
        return None
    layout = None if run.labels is None or run.labels.n_features != run.model.n_features else layout_of(run.labels)
    return layout or picture_layout(field(run.manifest, "source", "feature_shape"), run.model.n_features)


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
    if layout is None or run.model.in_slabs:  # rows of components on disk are never read whole
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
        charts += charts_of_row(layout, run.pca.mean, "Mean of all samples", "mean", signed=False)
    shown = min(run.model.n_components, most or min(_MOST_MODES, max(1, _MOST_PANELS // layout.n_charts)))
    for i, row in enumerate(run.components[:shown]):
        root = float(np.sqrt(max(0.0, run.model.score_variances[i])))
        title = _title(spectrum, i, group)
        charts += charts_of_row(layout, run.amplitude(row) * root, title, f"{salt}-{i}", signed=True)
    variables = layout.labels.variables
    name = words.clean(variables[0].name, 60) if len(variables) == 1 and variables[0].name else "the data"
    deviation = "standard deviation" if run.centred else "root mean square (divisor n − ddof)"
    note = f"The change of {name} where the score of a component rises by one {deviation}, with the component’s "
    note += f"share of the variance. {_SIGN}"
    return {"charts": charts, "note": " ".join((note, *layout.left_out)) + ("" if most else _left(run, shown))}


def _title(spectrum: ReportedSpectrum, component: int, group: str) -> str:
    return f"{spectrum.noun} {component + 1}{f', {group}' if group else ''} · {spectrum.share(component)}"


def _left(run: RunFiles, shown: int) -> str:
    left = run.model.n_components - shown
    return f" {left:,} more {'is' if left == 1 else 'are'} in the model." if left > 0 else ""


def _pictures(run: RunFiles, spectrum: ReportedSpectrum, layout: Layout, most: int | None, group: str) -> Json:
    """Return the mean and the first components as small pictures."""
    drawn = []
    if run.centred and most is None:
        eight_bit = field(run.manifest, "source", "dtype") == "uint8"
        low, high = (0.0, 255.0) if eight_bit else (float(np.min(run.pca.mean)), float(np.max(run.pca.mean)))
        mean = picture(layout.picture(run.pca.mean), low, high, GREYS)
        drawn.append(Picture(mean, "The mean of all samples", "mean"))
    shown = most or MAX_PICTURES
    for i, row in enumerate(run.components[:shown]):
        pixels = layout.picture(row)
        largest_entry = float(np.abs(pixels).max())
        uri = picture(pixels, -largest_entry, largest_entry, SIGNED)
        name = _title(spectrum, i, group).partition(" ·")[0]
        drawn.append(Picture(uri, name, f"{group}, {i + 1}".removeprefix(", "), spectrum.share(i)))
    scale = "middle grey is zero" if pixels.ndim == 3 else "white is zero, red positive, blue negative"
    note = f"Each picture is a component, a direction in which the samples differ from {'their mean' if run.centred else 'zero'}, with its share of "
    note += f"the variance. Colours are scaled by the largest entry of the component: {scale}."
    return {"pictures": drawn, "note": note + ("" if most else _left(run, shown))}


def _largest_entries(run: RunFiles, spectrum: ReportedSpectrum, most: int, group: str) -> Json:
    """Return the largest entries of the first components, from one sweep over slabs of features."""
    n = min(most, run.model.n_components)
    places, values = np.empty((n, 0), dtype=np.int64), np.empty((n, 0))
    for features, slab in slabs_of(run.pca.components):
        places = np.hstack([places, np.broadcast_to(np.arange(features.start, features.stop), (n, slab.shape[1]))])
        values = np.hstack([values, slab[:n]])
        order = np.stack([largest(row, _ENTRIES) for row in values])
        places, values = np.take_along_axis(places, order, 1), np.take_along_axis(values, order, 1)
    note = f"The features with the largest entries in each of the first components. {_SIGN}"
    if run.model.in_slabs:
        note += f" The components take {words.size(8 * run.model.n_components * run.model.n_features)} and are stored in slabs of features, so "
        note += "pictures of them, and rows on them or rebuilt from them, are left out."
    return {"bars": [_bars(run, _title(spectrum, i, group), places[i], values[i]) for i in range(n)], "note": note}


def _bars(run: RunFiles, title: str, chosen: IntArray, values: Array) -> Json:
    """Return the largest entries of a component as bars: those of the features `chosen`, largest first."""
    longest = float(abs(values[0])) or 1.0
    drawn = [
        (run.feature_name(int(j)), f"{value:+.3f}".replace("-", "−"), round(50 * float(abs(value)) / longest, 2))
        for j, value in zip(chosen, values, strict=True)
    ]
    left = run.model.n_features - len(drawn)
    caption = (
        f"The {len(drawn)} largest of {run.model.n_features:,} entries; {left:,} {'is' if left == 1 else 'are'} not shown."
        if left
        else "All entries."
    )
    return {"title": title, "bars": drawn, "caption": caption}


def largest(row: Array, most: int, piece: int = 1 << 16) -> IntArray:
    """Return the places of the `most` largest moduli in `row`, largest first, with scratch for `piece` entries only."""
    places = np.empty(0, dtype=np.int64)
    for start in range(0, len(row), piece):
        places = np.concatenate([places, np.arange(start, min(len(row), start + piece))])
        places = places[np.lexsort((places, -np.abs(row[places])))[:most]]
    return places


_MOST_COMPONENTS, MOST_FEATURES, _MOST_ARROWS = 3, 30, 12
_LETTERS = 18
"""Longer names are cut off beside arrows."""
_BIPLOT_HEIGHT = 4.4
"""Of the chart in inches."""
_ROOM = 0.8 * 72 * WIDTH, 0.65 * 72 * _BIPLOT_HEIGHT
"""Width and height of the axes of a biplot at least, in points of 1/72 inch: what titles and a legend leave of the chart."""
_LEAST_VARIANCE = 1e-12
"""A biplot needs a second component with more of the variance of the first than this."""
_LONGEST = 0.02
"""Arrows that are shorter than this share of the longest are not drawn."""


def components_section(shown: Shown) -> Section:
    """Return the section of the components and of the loadings of their features."""
    drawn = components(shown.run, shown.spectrum, shown.layout)
    table = _loadings_table(shown.run, shown.layout)
    return Section("components", "Components", parts=(("components", drawn), ("card", table)))


def _loadings_table(run: RunFiles, layout: Layout | None) -> ReportTable | None:
    """Return the table of loadings of the first components; None where features have no names and are many, or are drawn."""
    if not _listed(run, layout):
        return None
    n, d = min(run.model.n_components, _MOST_COMPONENTS), run.model.n_features
    values = _loadings(run, n)
    chosen = np.arange(d) if d <= MOST_FEATURES else largest(np.abs(values).max(axis=0), MOST_FEATURES)
    rows = tuple((run.feature_name(int(j)), *row) for j, row in zip(chosen, _digits(values[:, chosen].T), strict=True))
    heads = ("feature", *(f"component {i + 1}" for i in range(n)))
    note = f"{_meaning(run)[0].upper()}{_meaning(run)[1:]}."
    if d > len(chosen):
        among = "component 1" if n == 1 else f"components 1 to {n}"
        note += f" The {len(chosen)} of {d:,} features with the largest loadings on {among}."
    if d > len(chosen) or run.model.n_components > n:
        note += " streampca export RUN loadings.csv writes those of all features and components."
    return ReportTable("Loadings", heads, rows, note=note)


def component_rows(shown: Shown) -> Section | None:
    """Return the section of the scores of PCA, with a biplot where features are listed, or of kernel PCA."""
    scores, spectrum = shown.scores, shown.spectrum
    columns = {i: f"component {i + 1} · {spectrum.share(i)}" for i in range(shown.run.model.n_components)}
    if scores is None:
        return rows_section(shown, (), columns)
    names = [f"component {axis + 1:,}" for axis in scores.axes]
    labels = [
        f"{name} ({spectrum.share(axis)} of the {spectrum.total})"
        for name, axis in zip(names, scores.axes, strict=True)
    ]
    biplot = () if shown.run.model.linear is None else _biplot_charts(shown, scores)
    return rows_section(shown, (*score_charts(scores, names, labels, shown.classes), *biplot), columns)


def _biplot_charts(shown: Shown, scores: Scores) -> tuple[Chart, ...]:
    """Return the biplot of samples and features on the first two components; nothing where features are not listed, or with one component."""
    run, spectrum, layout, classes = shown.run, shown.spectrum, shown.layout, shown.classes
    variances = run.model.score_variances
    if not _listed(run, layout) or len(variances) < 2 or not variances[1] > _LEAST_VARIANCE * variances[0]:
        return ()
    values = _loadings(run, 2).T
    lengths = np.hypot(values[:, 0], values[:, 1])
    chosen = largest(lengths, _MOST_ARROWS)
    chosen = chosen[lengths[chosen] > _LONGEST * lengths.max()]
    points = scores.values[:, :2] if run.divisors is not None else scores.values[:, :2] / np.sqrt(variances[:2])
    factor = plotting.arrow_factor(points, values)
    names = [run.feature_name(int(j)) for j in chosen]
    arrows, short = factor * values[chosen], [words.clean(name, _LETTERS) for name in names]
    left_out = len(short) - len(plotting.placed_names(points, arrows, short, _ROOM))
    titles = [f"standardised score, component {axis + 1} ({spectrum.share(axis)})" for axis in (0, 1)]
    draw = partial(
        plotting.biplot, points=points, arrows=arrows, features=short, titles=titles, classes=classes, size=_ROOM
    )
    which = f"all {len(chosen)} features"
    if len(chosen) < run.model.n_features:
        which = f"the {len(chosen)} of {run.model.n_features:,} features with the longest loadings"
    drawn = "Hexagons count" if plotting.is_density(points, classes) else "Points are"
    caption = f"{drawn} samples by their scores over the {_deviations(run)} of the scores. Arrows are the loadings of {which}, times {factor:g}. "
    if left_out:
        caption += f"{words.plural(left_out, 'name')} {'is' if left_out == 1 else 'are'} left out for want of room. "
    caption += f"{_meaning(run)[0].upper()}{_meaning(run)[1:]}. The inner product of a point and the loadings of a feature approximates the value "
    caption += f"of the feature{', less its mean' if run.centred else ''}{', scaled' if run.scale is not None else ''} (Gabriel 1971)."
    alt = f"Biplot: {words.plural(len(points), 'sample')} on components 1 and 2 with arrows for {', '.join(names)}. {directions_of_arrows(values[chosen], names)}"
    return (Chart("Biplot of samples and features", inline("biplot", draw, height=_BIPLOT_HEIGHT), alt, caption),)


def _listed(run: RunFiles, layout: Layout | None) -> bool:
    """Return whether features are worth a list: not drawn as pictures, maps or lines, and with names or few."""
    if layout is not None or run.model.in_slabs:
        return False
    names = field(run.manifest, "source", "feature_names")
    dimensions = () if run.labels is None else run.labels.features
    texts = any(d.coordinate is not None and d.coordinate.dtype.kind in "UTOS" for d in dimensions)
    return (
        texts
        or (isinstance(names, list) and len(names) == run.model.n_features)
        or run.model.n_features <= MOST_FEATURES
    )


def _loadings(run: RunFiles, n: int) -> FloatArray:
    """Return the loadings on the first `n` components, ``(n, n_features)``."""
    deviations = np.sqrt(np.clip(run.model.score_variances[:n], 0.0, None))
    components: FloatArray = np.nan_to_num(run.components[slice(0, n)].astype(np.float64))
    return components * deviations[:, None]


def _digits(values: FloatArray) -> list[list[str]]:
    """Return numbers with the same decimals, three or four digits of the largest; each with three digits where that is too long."""
    largest_value = float(np.abs(values).max(initial=0.0))
    exponent = math.floor(math.log10(largest_value)) if largest_value > 0 else 0
    style = f"+z.{max(0, (3 if exponent >= 0 else 2) - exponent)}f" if -6 <= exponent < 6 else "+z.3g"
    return [[f"{value:{style}}".replace("-", "−") for value in row] for row in values]


def _meaning(run: RunFiles) -> str:
    """Return in words what loadings are."""
    meaning = f"loadings are components × {_deviations(run)} of the scores"
    return f"{meaning}, here the correlations of features and scores" if run.correlations else meaning


def _deviations(run: RunFiles) -> str:
    return "standard deviations" if run.centred else "root mean squares (divisor n − ddof)"
