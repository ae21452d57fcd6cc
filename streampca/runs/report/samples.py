"""Rows of the source as pictures or lines: the plane of two axes drawn with them, and a few rebuilt from the components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.labels import Dimension
from streampca.runs.report import figures, projection
from streampca.runs.report.coordinates import numbers, title_of, units_of
from streampca.runs.report.layouts import SMALL_SIDE, Layout
from streampca.runs.report.parts import Chart
from streampca.runs.report.pictures import GREYS, RISING, SIGNED, picture
from streampca.runs.report.result import field
from streampca.runs.report.run_files import FurtherRows, RunFiles
from streampca.typing import Array, FloatArray, IntArray, Json

_LINE_POINTS = 300


@dataclass(frozen=True)
class RowPictures:
    """How rows of the source become pictures: the first one of their layout."""

    layout: Layout
    """How rows are drawn."""
    low: float = 0.0
    """Value of the darkest colour."""
    high: float = 1.0
    """Value of the lightest colour; the largest modulus of differences."""
    origin: FloatArray | None = None
    """What is subtracted from rows, ``(n_features,)``; None where they are drawn as they are."""

    def picture(self, row: Array) -> str:
        """Return a row of the source, ``(n_features,)``, as the ``data:`` address of a picture."""
        values = self.layout.picture(row if self.origin is None else row - self.origin)
        step = -(-max(values.shape[:2]) // SMALL_SIDE)
        values = values[::step, ::step]
        if self.origin is not None:
            return picture(values, -self.high, self.high, SIGNED)
        return picture(values, self.low, self.high, RISING if np.isnan(values).any() else GREYS)

    @property
    def note(self) -> str:
        """Return in a sentence what the pictures show."""
        if not self.layout.labelled:
            return ""
        several = len(self.layout.grids) > 1 and (self.layout.title(self.layout.grids[0].part) or "the first panel")
        units = self.layout.units(self.layout.grids[0].part.variable)
        unit = f" {units}" if units else ""
        what = f" {several[:1].upper()}{several[1:]} alone is drawn." if isinstance(several, str) else ""
        if self.origin is None:
            return f"{what} Pictures go from {words.figure(self.low, 3)} to {words.figure(self.high, 3)}{unit}."
        end = words.figure(self.high, 3)
        return f"{what} Pictures are differences from the mean: blue is −{end}{unit}, white is 0, red is {end}{unit}."


def row_pictures(run: RunFiles, layout: Layout | None, scores: projection.Scores | None) -> RowPictures | None:
    """Return how rows become pictures, with limits from some of them; None where they are no pictures."""
    if layout is None or not layout.grids:
        return None
    if run.samples is None or scores is None:
        return RowPictures(layout)
    origin = run.mean if layout.labelled and run.centred else None
    if origin is None and field(run.manifest, "source", "dtype") == "uint8":
        return RowPictures(layout, 0.0, 255.0)
    some = scores.position[np.unique(np.linspace(0, len(scores.position) - 1, 64).astype(np.int64))]
    edges: list[tuple[float, float]] = []
    for _, rows in projection.gather(run.samples, some):
        for row in rows:
            values = layout.picture(row if origin is None else row - origin)
            finite = values[np.isfinite(values)]
            if finite.size:
                edges.append((float(finite.min()), float(finite.max())))
    low, high = (min(low for low, _ in edges), max(high for _, high in edges)) if edges else (0.0, 1.0)
    return RowPictures(layout, low, high) if origin is None else RowPictures(layout, low, max(-low, high), origin)


def reconstruction(
    run: RunFiles,
    scores: projection.Scores,
    layout: Layout | None,
    drawn: RowPictures | None,
    further: FurtherRows | None = None,
) -> Json | None:
    """Return a few samples rebuilt from more and more components, from plain samples to intricate ones, and `further` rows."""
    if run.samples is None:
        return None
    wanted = projection.n_reconstructed(run.n_features, 6 if drawn else 3)
    chosen = projection.easy_to_hard(scores, wanted)
    positions = scores.position[chosen]
    ascending = np.argsort(positions, kind="stable")
    original = np.concatenate([rows for _, rows in projection.gather(run.samples, positions[ascending])])
    original = original[np.argsort(ascending, kind="stable")]
    names = [_sample_name(run, int(position)) for position in positions]
    if further is not None:
        original = np.concatenate([original, further.values])
        names += [name_of_row(run, int(index)) for index in further.index]
    note = "A few rows, from plain to intricate, rebuilt from rising numbers of components. The percentage is what is "
    note += "still missing: the length of what is not rebuilt, over the row’s distance from "
    note += "the mean." if run.centred else "zero."
    return rebuilt_rows(run, original, names, layout, drawn, note)


def rebuilt_rows(
    run: RunFiles,
    original: Array,
    names: Sequence[str],
    layout: Layout | None,
    drawn: RowPictures | None,
    note: str,
    salt: str = "profile",
) -> Json:
    """Return rows of the source, ``(n, n_features)``, rebuilt from more and more components; `note` says which they are.

    `salt` is the beginning of the names of charts, which no others of the page have.
    """
    deviations = run.standardised(original)
    features, places, title = _profile_axis(run, layout)
    counts = projection.rising_counts(run.n_components)
    errors: list[tuple[str, ...]] = []
    cells: list[list[str]] = [[] for _ in names]
    lines: list[FloatArray] = []
    for _, rebuilt, left in projection.rebuild(run, deviations, counts):
        errors.append(tuple(words.share(float(error) if error > 1e-9 else 0.0) for error in left))
        for i, row in enumerate(rebuilt):
            if drawn is not None:
                cells[i].append(drawn.picture(run.restored(row)))
        lines.append(rebuilt[:, features] if drawn is None else np.empty((0, 0)))
    for i, row in enumerate(original):
        if drawn is not None:
            values = row.astype(np.float64)
            cells[i].append(drawn.picture(np.where(np.isfinite(values), values, run.mean)))
    lined = drawn is None and len(places) > 1
    return {
        "heads": [f"{count:,}" for count in counts],
        "names": names,
        "errors": list(zip(*errors, strict=True)),  # of each row, with each number of components
        "pictures": [] if drawn is None else cells,  # of each row, with each number of components, and the original
        "charts": _profiles((places, title), deviations[:, features], lines, counts, names, salt) if lined else (),
        "note": note + ("" if drawn is None else drawn.note),
        "aspect": 1.0 if drawn is None else drawn.layout.grids[0].aspect,
    }


def _sample_name(run: RunFiles, position: int) -> str:
    """Return the name of a sample: that of its row, or its number among the samples where that is not known."""
    return f"sample {position:,}" if run.sample_index is None else name_of_row(run, int(run.sample_index[position]))


def name_of_row(run: RunFiles, index: int) -> str:
    """Return the name of a row: its coordinate, where no other row has the same, or its number."""
    number = f"row {index:,}"
    if run.labels is None or index >= run.labels.n_samples:
        return number
    at = np.unravel_index(index, [dimension.size for dimension in run.labels.samples])
    named = [(d, int(i)) for d, i in zip(run.labels.samples, at, strict=True) if d.coordinate is not None]
    if len(named) < len(at) or any(len(np.unique(d.coordinate)) < d.size for d, _ in named if d.coordinate is not None):
        return number
    return words.clean(", ".join(_place(dimension, i) for dimension, i in named), 80)


def _place(dimension: Dimension, at: int) -> str:
    """Return a coordinate, with the name of its dimension where it is a number."""
    value, units = dimension.value(at), units_of(dimension)
    if numbers(dimension) is None:
        return value
    return f"{dimension.name} = {value}{f' {units}' if units and ' since ' not in units else ''}"


def _profile_axis(run: RunFiles, layout: Layout | None) -> tuple[IntArray, FloatArray, str]:
    """Return which features are drawn as a line, their places on its axis, and its title.

    It is the coordinate of the first line of the layout, or the numbers of all features.
    """
    line = layout.lines[0] if layout is not None and layout.lines else None
    numbered = None if line is None else numbers(line.dimension)
    features, title = np.arange(run.n_features), "feature"
    places = features.astype(np.float64)
    if layout is not None and line is not None and numbered is not None:
        along = line.part.values(layout.fields(features)[line.part.variable])  # NaN where a feature is masked
        present = np.isfinite(along)
        features, places, title = along[present].astype(np.int64), numbered[present], title_of(line.dimension)
    shown = np.unique(np.linspace(0, len(features) - 1, _LINE_POINTS).astype(np.int64))[: len(features)]
    return features[shown], places[shown], title


def _profiles(
    axis: tuple[FloatArray, str],
    original: FloatArray,
    lines: Sequence[FloatArray],
    counts: Sequence[int],
    names: Sequence[str],
    salt: str,
) -> tuple[Chart, ...]:
    few = max(0, len(counts) // 2 - 1) if len(counts) > 2 else 0
    result = []
    for i, name in enumerate(names):
        rebuilt = {f"from {counts[few]:,}": lines[few][i]} if len(counts) > 1 else {}
        rebuilt[f"from {words.plural(counts[-1], 'component')}"] = lines[-1][i]
        draw = partial(plotting.profile, original=original[i], rebuilt=rebuilt, numbers=axis[0], title=axis[1])
        svg = figures.inline(f"{salt}-{i}", draw, width=4.3, height=3.2)
        alt = f"{name}, original and rebuilt, against {axis[1]}, as the model sees it."
        result.append(Chart(name[:1].upper() + name[1:], svg, alt))
    return tuple(result)
