"""Rows of a run on its axes and along their labels, rebuilt from more and more components, and those that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.labels import Dimension, Labels, Variable
from streampca.runs.report.figures import GREYS, RISING, SIGNED, Chart, ReportTable, Section, inline, picture
from streampca.runs.report.layouts import SMALL_SIDE, Layout, charts_of_row, layout_of, numbers, title_of, units_of
from streampca.runs.report.run_files import (
    BLOCK_BYTES,
    VALUES_OF_SAMPLES,
    FurtherRows,
    ReportedSpectrum,
    RunFiles,
    StoredArray,
    blocks,
    field,
)
from streampca.typing import Array, FloatArray, IntArray, Json

RECONSTRUCTION_BYTES = 8 << 20
"""Rows and their reconstructions together take about this much memory at most."""


@dataclass(frozen=True)
class Scores:
    """Where the samples lie on some of the axes."""

    axes: tuple[int, ...]
    """Numbers of the axes, from 0: the first and the second."""
    values: FloatArray
    """Scores on `axes` as the model gives them, shape ``(n_samples, n_axes)``."""
    left: FloatArray
    """Squared length of what the first two axes leave of each sample, shape ``(n_samples,)``."""
    position: IntArray
    """Number of each sample among the samples that were kept, shape ``(n_samples,)``."""


def score(run: RunFiles) -> Scores | None:
    """Return the scores of the samples on the first two axes; None where samples are not as the model sees them, or there are none.

    Rows of components on disk are never read whole, and nothing is removed from samples.
    """
    if run.samples is None or run.model.in_slabs or run.removes:
        return None
    axes = axes_of(run.model.n_components)
    basis = run.components[list(axes)]

    def project(rows: Array) -> tuple[FloatArray, FloatArray]:
        deviations = run.standardised(rows)
        values = deviations @ basis.T
        return values, np.einsum("ij,ij->i", deviations, deviations) - np.einsum("ij,ij->i", values, values)

    scores = scores_by(project, run.samples, axes)
    return scores if run.divisors is None else replace(scores, values=scores.values / run.divisors[list(axes)])


def axes_of(n_components: int) -> tuple[int, ...]:
    """Return the numbers of the first two axes, from 0, or of the only one."""
    return tuple(range(min(2, n_components)))


def scores_by(
    project: Callable[[Array], tuple[FloatArray, FloatArray]], samples: StoredArray, axes: tuple[int, ...]
) -> Scores:
    """Return the scores of `samples`, of some where there are many; `project` returns those of rows and what they leave."""
    m, d = samples.shape[0], samples.shape[1]
    limit = max(16, VALUES_OF_SAMPLES // d)
    chosen = np.arange(m) if m <= limit else np.unique(np.linspace(0, m - 1, limit).astype(np.int64))
    values, left, done = np.zeros((len(chosen), len(axes))), np.zeros(len(chosen)), 0
    for positions, rows in gather(samples, chosen):
        here = slice(done, done + len(positions))
        values[here], left[here] = project(rows)
        done = here.stop
    values[~np.isfinite(values)] = 0.0
    return Scores(axes, values, left, chosen)


def gather(samples: StoredArray, positions: IntArray) -> Iterator[tuple[IntArray, NDArray[np.generic]]]:
    """Yield the rows at ascending `positions` in pieces, each piece read once and only where it holds one of them."""
    step = max(1, BLOCK_BYTES // (8 * samples.shape[1]))
    for group in np.split(positions, np.flatnonzero(np.diff(positions // step)) + 1):
        if len(group):
            first = int(group[0])
            piece = np.asarray(samples[first : int(group[-1]) + 1])
            yield group, piece[group - first]


def n_reconstructed(n_features: int, wanted: int) -> int:
    """Return how many rows can be rebuilt at a time within `RECONSTRUCTION_BYTES`, at least one."""
    return max(1, min(wanted, RECONSTRUCTION_BYTES // (2 * 8 * n_features)))


def easy_to_hard(scores: Scores, wanted: int) -> IntArray:
    """Return the numbers of `wanted` samples, from one that two axes nearly rebuild to one that they hardly do."""
    order = np.argsort(scores.left, kind="stable")
    shares = np.linspace(0.5, 0.985, wanted) if wanted > 1 else np.array([0.5])
    return order[np.unique(np.round(shares * (len(order) - 1)).astype(np.int64))].astype(np.int64)


def rising_counts(k: int, most: int = 7) -> list[int]:
    """Return 1, 2, 5, 10, 20, 50 … below `k`, then `k`: at most `most` of them, the first and the last kept."""
    ladder = [step * 10**power for power in range(7) for step in (1, 2, 5) if step * 10**power < k] + [k]
    if len(ladder) <= most:
        return ladder
    picks = np.unique(np.round(np.linspace(0, len(ladder) - 1, most)).astype(int))
    return [ladder[int(pick)] for pick in picks]


def rebuild(
    run: RunFiles, deviations: FloatArray, counts: Sequence[int]
) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """Yield, for each number in ascending `counts`, `deviations` rebuilt from so many components, and the error left.

    The error is ``‖x − x̂‖ / ‖x − mean‖`` for each row, as the model sees it (after scaling). The rebuilt rows are
    one array that grows in place: take what you need of it before the next step.
    """
    rebuilt, done = np.zeros_like(deviations), 0
    length = np.sqrt(np.einsum("ij,ij->i", deviations, deviations))
    for count in counts:
        axes = run.components[done:count]
        rebuilt += (deviations @ axes.T) @ axes
        done = count
        gaps = (row - back for row, back in zip(deviations, rebuilt, strict=True))
        left = np.sqrt(np.array([gap @ gap for gap in gaps]))
        yield count, rebuilt, np.divide(left, length, out=np.zeros_like(left), where=length > 0)


_MOST_SERIES = 4
_MOST_BYTES = 12 << 20
"""The scores that are drawn take so much memory at most."""


def along_samples(run: RunFiles, columns: Mapping[int, str]) -> tuple[list[Chart], str]:
    """Return scores along the dimensions of the samples, and in sentences how many there are and what is left out.

    Lines, where samples lie along one coordinate; maps or images, where they are places of two dimensions; nothing without labels or
    scores. `columns` are the names of the scores by their columns, in the order in which they are drawn.
    """
    charts: list[Chart] = []
    if run.labels is None:
        return charts, ""
    dimensions = run.labels.samples
    sizes = tuple(dimension.size for dimension in dimensions)
    layout = layout_of(Labels((), dimensions, (Variable(None, tuple(d.name for d in dimensions), sizes),)))
    values = _scores_of_samples(run, list(columns), run.labels.n_samples)
    if layout is None or values is None:
        many = layout is not None and run.scores is not None and layout.labels.n_features > _MOST_BYTES // 8
        return charts, "There are too many samples to draw scores along their dimensions." if many else ""
    what = "Maps" if layout.grids else "Time series" if run.of_times else "Lines"
    for column, row in zip(columns, values, strict=False):
        name = columns[column]
        charts += charts_of_row(
            layout, row, f"{'Time series' if run.of_times else 'Scores'} of {name}", f"series-{column}", signed=True
        )
    note, left = (
        f"{what} show the scores of all {words.plural(values.shape[1], run.sample_noun)}.",
        len(columns) - len(values),
    )
    note += f" {left:,} more {'is' if left == 1 else 'are'} not drawn." if left > 0 else ""
    return charts, " ".join((note, *layout.left_out))


def _scores_of_samples(run: RunFiles, columns: Sequence[int], n_samples: int) -> FloatArray | None:
    """Return the first of some columns of the scores, ``(n_drawn, n_samples)``; None without scores or where they are too large."""
    count = min(len(columns), _MOST_SERIES, _MOST_BYTES // max(1, 8 * n_samples))
    if run.scores is None or count < 1 or run.scores.shape != (n_samples, run.model.n_components):
        return None
    values, drawn = np.empty((count, n_samples)), list(columns[:count])
    for start, rows in blocks(run.scores):
        values[:, start : start + len(rows)] = rows[:, drawn].T
    return values


def classes_of(values: Array) -> plotting.Classes | None:
    """Return the classes that text `values` are, one for each sample; None if most of them occur once."""
    if values.dtype.kind not in "UTOS" or not len(values):
        return None
    classes = plotting.classes_of(values)
    if not 2 <= len(classes.names) + classes.others <= len(values) // 2:
        return None
    return replace(classes, names=tuple(words.clean(name, 40) for name in classes.names))


def classes_of_run(run: RunFiles, scores: Scores) -> plotting.Classes | None:
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


def row_pictures(run: RunFiles, layout: Layout | None, scores: Scores | None) -> RowPictures | None:
    """Return how rows become pictures, with limits from some of them; None where they are no pictures."""
    if layout is None or not layout.grids:
        return None
    if run.samples is None or scores is None:
        return RowPictures(layout)
    origin = run.pca.mean if layout.labelled and run.centred else None
    if origin is None and field(run.manifest, "source", "dtype") == "uint8":
        return RowPictures(layout, 0.0, 255.0)
    some = scores.position[np.unique(np.linspace(0, len(scores.position) - 1, 64).astype(np.int64))]
    edges: list[tuple[float, float]] = []
    for _, rows in gather(run.samples, some):
        for row in rows:
            values = layout.picture(row if origin is None else row - origin)
            finite = values[np.isfinite(values)]
            if finite.size:
                edges.append((float(finite.min()), float(finite.max())))
    low, high = (min(low for low, _ in edges), max(high for _, high in edges)) if edges else (0.0, 1.0)
    return RowPictures(layout, low, high) if origin is None else RowPictures(layout, low, max(-low, high), origin)


@dataclass(frozen=True)
class Shown:
    """What the sections of a page have in common, read and computed once."""

    run: RunFiles
    """The files of the run."""
    spectrum: ReportedSpectrum
    """Its eigenvalues, or strengths of pairs."""
    layout: Layout | None
    """How rows are drawn; None where they are not."""
    scores: Scores | None
    """The samples on the axes; None where there are none, or none that can be projected."""
    pictures: RowPictures | None
    """How rows become pictures; None where they are none."""
    classes: plotting.Classes | None
    """Classes of the samples."""
    further: FurtherRows | None = None
    """Rows that the user asked for."""


def reconstruction(shown: Shown) -> Section | None:
    """Return a few samples rebuilt from more and more components, from plain samples to intricate ones, and further rows."""
    run, scores, layout, drawn, further = shown.run, shown.scores, shown.layout, shown.pictures, shown.further
    if run.samples is None or scores is None:
        return None
    wanted = n_reconstructed(run.model.n_features, 6 if drawn else 3)
    chosen = easy_to_hard(scores, wanted)
    positions = scores.position[chosen]
    ascending = np.argsort(positions, kind="stable")
    original = np.concatenate([rows for _, rows in gather(run.samples, positions[ascending])])
    original = original[np.argsort(ascending, kind="stable")]
    index = run.sample_index
    names = [f"sample {at:,}" if index is None else name_of_row(run, int(index[at])) for at in positions]
    if further is not None:
        original = np.concatenate([original, further.values])
        names += [name_of_row(run, int(index)) for index in further.index]
    note = "A few samples, from those that two components reconstruct well to those that they do not, reconstructed from rising numbers of "
    note += "components. The percentage is the relative error: the distance of the reconstruction from the sample, divided by the distance of "
    note += f"the sample from {'the mean' if run.centred else 'zero'}."
    rebuilt = rebuilt_rows(run, original, names, layout, drawn, note)
    return Section("reconstruction", "Reconstruction", rebuilt["note"], (("rebuilt", rebuilt),))


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
    counts = rising_counts(run.model.n_components)
    errors: list[tuple[str, ...]] = []
    cells: list[list[str]] = [[] for _ in names]
    lines: list[FloatArray] = []
    for _, rebuilt, left in rebuild(run, deviations, counts):
        errors.append(tuple(words.share(float(error) if error > 1e-9 else 0.0) for error in left))
        for i, row in enumerate(rebuilt):
            if drawn is not None:
                cells[i].append(drawn.picture(run.restored(row)))
        lines.append(rebuilt[:, features] if drawn is None else np.empty((0, 0)))
    for i, row in enumerate(original):
        if drawn is not None:
            values = row.astype(np.float64)
            cells[i].append(drawn.picture(np.where(np.isfinite(values), values, run.pca.mean)))
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
    features, title = np.arange(run.model.n_features), "feature"
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
        svg = inline(f"{salt}-{i}", draw, width=4.3, height=3.2)
        alt = f"{name}, original and rebuilt, against {axis[1]}, as the model sees it."
        result.append(Chart(name[:1].upper() + name[1:], svg, alt))
    return tuple(result)


_POINTS = 4000
_PIECE = 1 << 16


def outliers(shown: Shown) -> Section | None:
    """Return the section of rows that do not fit; None where the run has no T² and Q."""
    run, drawn = shown.run, shown.pictures
    summary = field(run.manifest, "diagnostics")
    if not isinstance(summary, dict) or run.distances is None:
        return None
    limits = words.number(summary.get("t2_limit")), words.number(summary.get("q_limit"))
    listed = [row for row in summary.get("unusual_rows") or [] if isinstance(row, dict)]
    rebuilt = None if run.removes or run.model.in_slabs else _rebuilt(run, shown.layout, drawn)
    parts = (
        ("pair", _chart(run, listed, limits)),
        ("card", _table(run, listed, limits, names=drawn is None)),
        ("between", rebuilt and rebuilt["note"]),
        ("rebuilt", rebuilt),
    )
    return Section("outliers", "Outliers", _lead(summary, limits), parts)


def _rebuilt(run: RunFiles, layout: Layout | None, drawn: RowPictures | None) -> Json | None:
    """Return the rows that fit least, rebuilt from rising numbers of components, as many as there is memory for."""
    if run.unusual is None:
        return None
    n = n_reconstructed(run.model.n_features, len(run.unusual.index) if drawn else 6)
    names = [name_of_row(run, int(index)) for index in run.unusual.index[:n]]
    note = "The most unusual samples, reconstructed from rising numbers of components."
    return rebuilt_rows(run, run.unusual.values[:n], names, layout, drawn, note, "unusual")


def _lead(summary: dict[str, object], limits: tuple[float | None, float | None]) -> str:
    """Return what T² and Q are, and how many rows are beyond their limits."""
    n = words.whole(summary.get("n_rows")) or 0
    lead = "T² is the distance of a sample from the mean within the space of the components, Q its squared distance from that space."
    expected = f"{round(0.01 * n):,}"
    parts = []
    for key, name, limit in (("n_beyond_t2", "T²", limits[0]), ("n_beyond_q", "Q", limits[1])):
        count = words.whole(summary.get(key)) or 0
        if limit is not None:
            parts.append(
                f"{count:,} ({words.share(count / n if n else 0.0)}) are beyond the limit of {name}, {words.figure(limit)}"
            )
    if parts:
        both = words.whole(summary.get("n_beyond_both")) or 0
        lead += f" Of {words.plural(n, 'sample')}, {', and '.join(parts)}"
        lead += f"; {both:,} are beyond both" if len(parts) > 1 else ""
        lead += f". Of normally distributed samples about {expected} would be beyond each."
    reasons = summary.get("without_limit")
    for reason in reasons if isinstance(reasons, list) else []:
        said = words.clean(reason, 300).rstrip(".")
        lead += f" {said[:1].upper()}{said[1:]}."
    return lead


def _chart(
    run: RunFiles, listed: list[dict[str, object]], limits: tuple[float | None, float | None]
) -> tuple[Chart, ...]:
    """Return T² and Q of rows all over the data, and of those that are listed."""
    points = _points(run)
    unusual = _pair([words.number(row.get("t2")) for row in listed], [words.number(row.get("q")) for row in listed])
    every = [np.concatenate(pair) for pair in zip(points, unusual, strict=True)]
    if not all((values > 0).any() for values in every):
        return ()
    shown = words.plural(len(points[0]), "row")
    alt = f"T² against Q of {shown} on logarithmic scales, with their limits at 99 % and {len(listed)} unusual rows. {_beyond(every, limits)}"
    all_of_them = run.distances is not None and len(points[0]) == run.distances[0].shape[0]
    caption = f"All {shown}." if all_of_them else f"{shown}, evenly spread, and the {len(listed)} most unusual ones."
    draw = partial(plotting.distances, points=points, unusual=unusual, limits=limits)
    return (Chart("T² and Q", inline("distances", draw, height=3.9), alt, caption),)


def _beyond(distances: list[FloatArray], limits: tuple[float | None, float | None]) -> str:
    """Return how many of the drawn rows are beyond each limit, and the largest distances."""
    told = []
    for name, values, limit in zip(("T²", "Q"), distances, limits, strict=True):
        largest = words.figure(values.max(), 2)
        beyond = (
            "" if limit is None else f", {int((values > limit).sum()):,} beyond the limit of {words.figure(limit, 2)}"
        )
        told.append(f"{name} goes up to {largest}{beyond}")
    return f"{'; '.join(told)}."


def _pair(t2: list[float | None], q: list[float | None]) -> tuple[FloatArray, FloatArray]:
    known = [(a, b) for a, b in zip(t2, q, strict=True) if a is not None and b is not None]
    values = np.array(known, dtype=np.float64).reshape(-1, 2)
    return values[:, 0], values[:, 1]


def _points(run: RunFiles) -> tuple[FloatArray, FloatArray]:
    """Return T² and Q of at most `_POINTS` rows all over the data that have them."""
    if run.distances is None:
        return np.empty(0), np.empty(0)
    n = run.distances[0].shape[0]
    chosen = np.unique(np.linspace(0, n - 1, min(n, _POINTS)).astype(np.int64))
    taken: list[list[FloatArray]] = [[], []]
    for values, pieces in zip(run.distances, taken, strict=True):
        for start in range(0, n, _PIECE):
            here = chosen[(chosen >= start) & (chosen < start + _PIECE)] - start
            pieces.append(values[slice(start, min(n, start + _PIECE))][here].astype(np.float64))
    t2, q = (np.concatenate(pieces) for pieces in taken)
    finite = np.isfinite(t2) & np.isfinite(q)
    return t2[finite], q[finite]


def _table(
    run: RunFiles, listed: list[dict[str, object]], limits: tuple[float | None, float | None], *, names: bool
) -> ReportTable:
    """Return the unusual rows in digits; with the feature of the largest residual where rows are no pictures."""
    largest = _largest_residuals(run) if names else {}
    heads = ["row", "T²", "times its limit", "Q", "times its limit", *(["largest residual"] if largest else [])]
    rows = []
    for row in listed:
        index = words.whole(row.get("row")) or 0
        cells = [name_of_row(run, index)]
        for value, limit in ((words.number(row.get("t2")), limits[0]), (words.number(row.get("q")), limits[1])):
            cells += ["" if value is None else words.figure(value)]
            cells += ["" if value is None or not limit else f"{words.figure(value / limit, 3)}"]
        rows.append((*cells, *([largest.get(index, "")] if largest else [])))
    return ReportTable("The most unusual rows", tuple(heads), tuple(rows))


def _largest_residuals(run: RunFiles) -> dict[int, str]:
    """Return the name of the feature with the largest squared residual, and its share of Q, of the copied rows."""
    if run.unusual is None or run.removes or run.model.in_slabs:
        return {}
    n = n_reconstructed(run.model.n_features, len(run.unusual.index))
    deviations = run.standardised(run.unusual.values[:n])
    named = {}
    for _, rebuilt, _ in rebuild(run, deviations, [run.model.n_components]):
        for index, row, back in zip(run.unusual.index[:n], deviations, rebuilt, strict=True):
            squares = (row - back) ** 2
            place, total = int(squares.argmax()), float(squares.sum())
            share = words.share(float(squares[place]) / total) if total > 0 else ""
            named[int(index)] = f"{run.feature_name(place)} ({share})" if share else ""
    return named
