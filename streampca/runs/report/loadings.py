"""Loadings of features, components times the standard deviations of their scores: a table, and arrows in a biplot."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.runs.report import figures, seen
from streampca.runs.report.components import feature_name, largest
from streampca.runs.report.layouts import Layout
from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.projection import Scores
from streampca.runs.report.result import ReportedSpectrum, field
from streampca.runs.report.run_files import RunFiles
from streampca.typing import FloatArray, Json

_MOST_COMPONENTS, _MOST_FEATURES, _MOST_ARROWS = 3, 30, 12
_LETTERS = 18
"""Longer names are cut off beside arrows."""
_LEAST_VARIANCE = 1e-12
"""A biplot needs a second component with more of the variance of the first than this."""
_LONGEST = 0.02
"""Arrows that are shorter than this share of the longest are not drawn."""


def loadings(run: RunFiles, layout: Layout | None) -> Json | None:
    """Return the table of loadings of the first components; None where features have no names and are many, or are drawn."""
    if not _listed(run, layout):
        return None
    n, d = min(run.n_components, _MOST_COMPONENTS), run.n_features
    values = _loadings(run, n)
    chosen = np.arange(d) if d <= _MOST_FEATURES else largest(np.abs(values).max(axis=0), _MOST_FEATURES)
    rows = tuple((feature_name(run, int(j)), *row) for j, row in zip(chosen, _digits(values[:, chosen].T), strict=True))
    heads = ("feature", *(f"component {i + 1}" for i in range(n)))
    note = f"{_meaning(run)[0].upper()}{_meaning(run)[1:]}."
    if d > len(chosen):
        among = "component 1" if n == 1 else f"components 1 to {n}"
        note += f" The {len(chosen)} of {d:,} features with the largest loadings on {among}."
    if d > len(chosen) or run.n_components > n:
        note += " streampca export RUN loadings.csv writes those of all features and components."
    return {"table": ReportTable("Loadings", heads, rows), "note": note}


def biplot_charts(
    run: RunFiles, spectrum: ReportedSpectrum, layout: Layout | None, scores: Scores, classes: plotting.Classes | None
) -> tuple[Chart, ...]:
    """Return the biplot of samples and features on the first two components; nothing where `loadings` has no table, or with one component."""
    variances = run.explained_variance
    if not _listed(run, layout) or len(variances) < 2 or not variances[1] > _LEAST_VARIANCE * variances[0]:
        return ()
    values = _loadings(run, 2).T
    lengths = np.hypot(values[:, 0], values[:, 1])
    chosen = largest(lengths, _MOST_ARROWS)
    chosen = chosen[lengths[chosen] > _LONGEST * lengths.max()]
    points = scores.values[:, :2] if run.divisors is not None else scores.values[:, :2] / np.sqrt(variances[:2])
    factor = plotting.arrow_factor(points, values)
    names = [feature_name(run, int(j)) for j in chosen]
    draw = partial(
        plotting.biplot,
        points=points,
        arrows=factor * values[chosen],
        features=[words.clean(name, _LETTERS) for name in names],
        titles=[f"standardised score, axis {axis + 1} ({spectrum.share(axis)})" for axis in (0, 1)],
        classes=classes,
    )
    which = f"all {len(chosen)} features"
    if len(chosen) < run.n_features:
        which = f"{len(chosen)} of {run.n_features:,} features, those with the longest"
    caption = f"Points are scores over their {_deviations(run)}. Arrows are the loadings of {which}, times {factor:g}: {_meaning(run)}. "
    caption += "The inner product of a point and of the loadings of a feature approximates the feature in that row, "
    caption += f"{'less its mean' if run.centred else 'as it is'}{' and scaled' if run.scale is not None else ''} (Gabriel 1971)."
    alt = f"Biplot: {words.plural(len(points), 'sample')} on axes 1 and 2 with arrows for {', '.join(names)}. {seen.directions_of_arrows(values[chosen], names)}"
    return (Chart("Biplot of rows and features", figures.inline("biplot", draw, height=4.4), alt, caption),)


def _listed(run: RunFiles, layout: Layout | None) -> bool:
    """Return whether features are worth a list: not drawn as pictures, maps or lines, and with names or few."""
    if layout is not None or run.in_slabs:
        return False
    names = field(run.manifest, "source", "feature_names")
    dimensions = () if run.labels is None else run.labels.features
    texts = any(d.coordinate is not None and d.coordinate.dtype.kind in "UTOS" for d in dimensions)
    return texts or (isinstance(names, list) and len(names) == run.n_features) or run.n_features <= _MOST_FEATURES


def _loadings(run: RunFiles, n: int) -> FloatArray:
    """Return the loadings on the first `n` components, ``(n, n_features)``."""
    deviations = np.sqrt(np.clip(run.explained_variance[:n], 0.0, None))
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
