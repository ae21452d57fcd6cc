"""Scores by the labels of their samples: series along a coordinate, maps and images, and classes for the colours of points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.labels import Labels, Variable
from streampca.runs.report import fields, projection
from streampca.runs.report.layouts import Layout, layout_of
from streampca.runs.report.parts import Chart
from streampca.runs.report.result import ReportedSpectrum
from streampca.runs.report.run_files import RunFiles, blocks
from streampca.typing import Array, FloatArray

_MOST_COMPONENTS = 4
_MOST_BYTES = 12 << 20
"""The scores that are drawn take so much memory at most."""


@dataclass(frozen=True)
class ScoresAlong:
    """The scores along the dimensions of the samples."""

    charts: tuple[Chart, ...] = ()
    """Lines, where samples lie along one coordinate; maps or images, where they are places of two dimensions."""
    note: str = ""
    """Which scores these are, and what is left out."""


def along_samples(run: RunFiles, spectrum: ReportedSpectrum) -> ScoresAlong:
    """Return the scores of the first components along the dimensions of the samples; nothing without labels or scores."""
    layout = None if run.labels is None else _layout(run.labels)
    values = None if run.labels is None else _scores(run, run.labels.n_samples)
    if layout is None or values is None:
        many = layout is not None and run.scores is not None and layout.labels.n_features > _MOST_BYTES // 8
        return ScoresAlong(note="The scores of all rows are too many to draw along their dimensions." if many else "")
    charts: list[Chart] = []
    for i, column in enumerate(values):
        title = f"Score of component {i + 1} · {spectrum.share(i)}"
        charts += fields.charts(layout, column, title, f"series-{i}", signed=True)
    what = "maps and images" if layout.grids else "series"
    note, left = f"The {what} hold all {words.plural(values.shape[1], 'row')}.", run.n_components - len(values)
    note += f" Those of {words.plural(left, 'more component')} are not shown." if left > 0 else ""
    return ScoresAlong(tuple(charts), " ".join((note, *layout.left_out)))


def _layout(labels: Labels) -> Layout | None:
    """Return how values of the samples, one for each, are drawn."""
    dims = tuple(dimension.name for dimension in labels.samples)
    shape = tuple(dimension.size for dimension in labels.samples)
    return layout_of(Labels((), labels.samples, (Variable(None, dims, shape),)))


def _scores(run: RunFiles, n_samples: int) -> FloatArray | None:
    """Return the scores of the first components, ``(n_axes, n_samples)``; None without scores or where they are too large."""
    count = min(run.n_components, _MOST_COMPONENTS, _MOST_BYTES // max(1, 8 * n_samples))
    if run.scores is None or count < 1 or run.scores.shape != (n_samples, run.n_components):
        return None
    values = np.empty((count, n_samples))
    for start, rows in blocks(run.scores):
        values[:, start : start + len(rows)] = rows[:, :count].T
    return values


def classes_of(values: Array) -> plotting.Classes | None:
    """Return the classes that text `values` are, one for each sample; None if most of them occur once."""
    if values.dtype.kind not in "UTOS" or not len(values):
        return None
    classes = plotting.classes_of(values)
    if not 2 <= len(classes.names) + classes.others <= len(values) // 2:
        return None
    return replace(classes, names=tuple(words.clean(name, 40) for name in classes.names))


def classes_of_run(run: RunFiles, scores: projection.Scores) -> plotting.Classes | None:
    """Return the classes of the samples whose scores are drawn: those of the configuration, else text along the samples."""
    if run.classes is not None:
        return classes_of(run.classes[scores.position])
    if run.labels is None or run.sample_index is None:
        return None
    index, named = run.sample_index[scores.position], [d for d in run.labels.samples if d.coordinate is not None]
    if not len(index) or index.max() >= run.labels.n_samples or index.min() < 0:
        return None
    found = (classes_of(run.labels.sample_values(dimension.name)[index]) for dimension in named)
    return next((classes for classes in found if classes is not None), None)
