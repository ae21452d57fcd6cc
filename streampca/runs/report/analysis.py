"""The page of a run of an analysis of a covariance: pairs of patterns of two tables, or factors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import zip_longest

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.models import certificate_sentences as sentences
from streampca.models.analysis import AnalysisModel
from streampca.runs.report import (
    components,
    data_quality,
    figures,
    projection,
    result,
    scores_by_labels,
    seen,
    what_ran,
)
from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.result import ReportedSpectrum, field
from streampca.runs.report.run_files import RunFiles, StoredArray
from streampca.typing import Json

_SIDES = ("first table", "second table")
_MOST_NAMES = 3
_MOST_SHOWN = 4
_MOST_VALUES = 20


def compose(run: RunFiles, model: AnalysisModel) -> Json:
    """Return everything the template needs of the `run` of an analysis."""
    noun = model.kind.noun.capitalize()
    spectrum = ReportedSpectrum(model.strengths, np.clip(model.shares, 0.0, 1.0), noun)
    rows = None if run.removes else run.samples
    scores = _scores(model, rows) if rows is not None else None
    classes = scores_by_labels.classes_of_run(run, scores) if scores is not None else None
    common = what_ran.parts(run)
    return common | {
        "kicker": model.kind.title,
        "certificate": sentences.paragraph_of_analysis(model.certificate),
        "summary": _summary(run, model),
        "tiles": _tiles(run, model, spectrum),
        "notes": what_ran.notes(run),
        "components_title": f"The {model.kind.noun}s",
        "components": _patterns(run, model, spectrum),
        "spectrum": (_chart(model),),
        "scores": () if scores is None else (_plane(model, scores, classes),),
        "series": (),
        "scores_note": result.scores_note(run, scores),
        "quality": data_quality.data_quality(run),
        "spectrum_table": _table(model),
        "facts": (_facts(model), *common["facts"]),
    }


def _names_of_sides(model: AnalysisModel) -> tuple[str, ...]:
    """Return the variables of each table, where they have different names and are few; else which table it is."""
    names = []
    for side in model.sides:
        variables = () if side.labels is None else side.labels.variables
        named = [variable.name for variable in variables if variable.name is not None]
        few = 0 < len(named) == len(variables) <= _MOST_NAMES
        names.append(words.clean(", ".join(named), 60) if few else "")
    return tuple(names) if all(names) and len({*names}) == len(names) else _SIDES


def _scores(model: AnalysisModel, samples: StoredArray) -> projection.Scores:
    """Return the scores of the samples of the first pair, or of the first two factors."""
    k = len(model.strengths)
    axes = (0, k) if model.n_first is not None else projection.axes_of(k)
    return projection.scores_by(
        lambda rows: (model.encode(rows)[:, list(axes)].astype(np.float64), np.zeros(len(rows))), samples, axes
    )


def _summary(run: RunFiles, model: AnalysisModel) -> str:
    sentence = model.kind.found.format(
        count=words.plural(len(model.strengths), model.kind.noun),
        first=words.figure(float(model.strengths[0])),
        share=words.share(float(model.shares.sum())),
        rows=words.plural(result.sample_count(run), "row"),
    )
    passes = words.whole(field(run.manifest, "passes"))
    return sentence + (f"; computed out of core in {words.times(passes)} of the data." if passes else ".")


def _tiles(run: RunFiles, model: AnalysisModel, spectrum: ReportedSpectrum) -> tuple[result.Tile, ...]:
    rows, features, _, *others = result.tiles(run, spectrum)
    if model.n_first is not None:
        name, count, _ = features
        sides = [f"the {each}" if each in _SIDES else each for each in _names_of_sides(model)]
        features = (
            name,
            count,
            f"{model.n_first:,} of {sides[0]}, {model.n_features - model.n_first:,} of {sides[1]}",
        )
    return (rows, features, (f"{model.kind.noun.capitalize()}s", words.count(len(model.strengths)), ""), *others)


def _patterns(run: RunFiles, model: AnalysisModel, spectrum: ReportedSpectrum) -> Json:
    """Return the patterns of both tables, or the loadings, by the labels of their features, or as bars of the largest."""
    parts: list[Json] = []
    for side, name, place in zip(model.sides, _names_of_sides(model), ("first", "secon"), strict=False):
        group = name if model.n_first is not None else ""
        # Factors have variance 1, of which their scores, conditional means, have a part.
        spread = side.explained_variance if model.n_first is not None else np.ones(side.n_components)
        own = replace(side, components=side.patterns, explained_variance=spread)
        of_side = replace(run, model=own, labels=own.labels, manifest=_manifest_of(run, own))
        layout = components.layout_of_run(of_side)
        shown = min(_MOST_SHOWN, len(model.strengths))
        parts.append(components.components(of_side, spectrum, layout, shown, group, f"{place}-mode"))
    joined: Json = {"note": model.kind.note}
    if model.figures.get("rotation"):
        joined["note"] = joined["note"].replace(
            "Factors are determined up to a rotation of all.", f"Rotated by {model.figures['rotation']}."
        )
    for kind in ("charts", "pictures", "bars"):
        entries = [entry for pair in zip_longest(*(part.get(kind, ()) for part in parts)) for entry in pair if entry]
        if entries:
            joined[kind] = entries
    left = len(model.strengths) - _MOST_SHOWN
    joined["note"] += f" {left:,} more {'is' if left == 1 else 'are'} in the model." if left > 0 else ""
    return joined


def _manifest_of(run: RunFiles, side: AnalysisModel) -> Json:
    """Return the manifest with the names of the features of one table."""
    source = run.manifest.get("source")
    source = source if isinstance(source, dict) else {}
    return run.manifest | {
        "source": source | {"feature_names": side.source.get("feature_names"), "feature_shape": None}
    }


def _chart(model: AnalysisModel) -> Chart:
    values = model.strengths
    first, last = words.figure(values[0]), words.figure(values[-1])
    text = f"From {first} for the first down to {last}." if len(values) > 1 else f"{first}."
    errors = model.strength_errors
    if errors is not None:
        low, high = errors.interval()[0]
        text += f" The first lies between {words.figure(low)} and {words.figure(high)} (95 %)."
    svg = figures.inline("eigenvalues", partial(plotting.scree, values=values, title=model.kind.strength))
    return Chart(
        model.kind.chart, svg, f"Chart of {words.plural(len(values), 'value')}, from {first} down to {last}.", text
    )


def _plane(model: AnalysisModel, scores: projection.Scores, classes: plotting.Classes | None) -> Chart:
    """Return the samples at the scores of the first pair, or of the first two factors."""
    two = model.n_first is not None
    labels = (
        [f"first pair, {name}" for name in _names_of_sides(model)]
        if two
        else [f"factor {axis + 1:,}" for axis in scores.axes]
    )
    m = words.plural(len(scores.values), "sample")
    title = "The first pair" if two else "The first factors"
    if len(scores.axes) == 1:
        svg = figures.inline("histogram", partial(plotting.scores, values=scores.values, titles=labels))
        return Chart(title, svg, f"Histogram of {m}. {seen.spread_of_points(scores.values, [1])}")
    points = scores.values[:, :2]
    draw = partial(plotting.scores, values=points, titles=labels, classes=classes)
    svg = figures.inline("plane", draw, height=3.9)
    return Chart(title, svg, f"{m} plotted on {labels[0]} against {labels[1]}. {seen.spread_of_points(points, [1, 2])}")


def _table(model: AnalysisModel) -> ReportTable:
    """Return the first values in digits, with their intervals where there are sampling errors."""
    kind, shares, errors = model.kind, model.shares, model.strength_errors
    ends = None if errors is None else errors.interval()
    heads = [kind.noun, kind.strength, kind.share_of]
    rows = []
    for i, value in enumerate(model.strengths[:_MOST_VALUES]):
        row = [f"{i + 1}", words.figure(float(value), 7), words.share(float(shares[i]))]
        row += [] if ends is None else [f"{words.figure(ends[i][0], 4)} to {words.figure(ends[i][1], 4)}"]
        rows.append(tuple(row))
    heads += [] if ends is None else ["95 % interval"]
    k = len(model.strengths)
    caption = f"First {_MOST_VALUES} of {k:,} values" if k > _MOST_VALUES else kind.chart
    return ReportTable(caption, tuple(heads), tuple(rows))


def _facts(model: AnalysisModel) -> words.Facts:
    pairs = [("numerical error", words.figure(model.error, 3) if model.error is not None else words.MISSING)]
    if model.n_first is not None:
        for name, total in zip(_names_of_sides(model), model.totals, strict=True):
            pairs.append((f"total variance, {name}", words.figure(total, 6)))
    if "squared_covariance" in model.figures:
        pairs.append(("squared covariance", words.figure(model.figures["squared_covariance"], 6)))
    if "log_likelihood" in model.figures:
        pairs.append(("mean log-likelihood of a row", words.figure(model.figures["log_likelihood"], 7)))
        pairs.append(("features that factors explain wholly", words.count(len(model.figures["heywood_features"]))))
    return words.facts("Analysis", pairs)
