"""The page of a run: what its files hold, in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.errors import NotAvailableError
from streampca.models import certificate_sentences as sentences
from streampca.models.analysis import AnalysisModel
from streampca.models.certificate_sentences import carried_at_least
from streampca.models.certificates import ApproximateCertificate
from streampca.models.kernel import KernelModel
from streampca.models.pca import Model
from streampca.runs.report.components import biplot_charts, components, layout_of_run, loadings
from streampca.runs.report.figures import Chart, Picture, ReportTable, can_draw, inline, spread_of_points, write_page
from streampca.runs.report.result import (
    Bounds,
    Tile,
    accuracy,
    component_count,
    interval_chart,
    sample_count,
    score_charts,
    scores_note,
    spectrum_charts,
    spectrum_of,
    summary,
    tiles,
)
from streampca.runs.report.run_files import FurtherRows, ReportedSpectrum, RunFiles, StoredArray, field, read_run
from streampca.runs.report.samples import (
    RowPictures,
    Scores,
    along_samples,
    axes_of,
    classes_of_run,
    outliers,
    reconstruction,
    row_pictures,
    score,
    scores_by,
)
from streampca.runs.report.what_ran import data_quality, notes, parts, spectrum_table
from streampca.typing import Json

_MOST_PICTURES = 48
_MOST_VALUES = 20


def _kernel_page(run: RunFiles, model: KernelModel) -> Json:
    """Return everything the template needs of the `run` of a kernel model."""
    spectrum = ReportedSpectrum(model.eigenvalues, np.clip(model.explained_variance_ratio, 0.0, None))
    layout = layout_of_run(run)
    scores = _kernel_scores(model, run.samples) if run.samples is not None else None
    drawn = row_pictures(run, layout, scores)
    along = along_samples(run, spectrum)
    classes = classes_of_run(run, scores) if scores is not None else None
    common = parts(run)
    return common | {
        "kicker": model.kind.title,
        "summary": _kernel_summary(run, model, spectrum),
        "tiles": _kernel_tiles(run, model, spectrum),
        "notes": notes(run),
        "components_title": "The landmarks",
        "components": _landmarks(model, drawn),
        "spectrum": [replace(chart, title=_kernel_title(chart.title)) for chart in spectrum_charts(run, spectrum)],
        "scores": score_charts(spectrum, scores, classes) if scores is not None else (),
        "series": along.charts,
        "scores_note": f"{scores_note(run, scores)} {along.note}".strip(),
        "quality": data_quality(run),
        "spectrum_table": _kernel_table(model, spectrum),
        "facts": (_kernel_facts(model), *common["facts"]),
    }


def _kernel_title(title: str) -> str:
    return "Eigenvalues of the kernel matrix" if title.startswith("Variance") else title


def _kernel_scores(model: KernelModel, samples: StoredArray) -> Scores:
    """Return the scores of the samples on the first two axes and the last."""
    axes = axes_of(model.n_components)
    return scores_by(
        lambda rows: (model.encode(rows)[:, list(axes)].astype(np.float64), np.zeros(len(rows))), samples, axes
    )


def _kernel_summary(run: RunFiles, model: KernelModel, spectrum: ReportedSpectrum) -> str:
    k, n = model.n_components, sample_count(run)
    sentence = f"{words.plural(k, 'component')} carr{'ies' if k == 1 else 'y'} {_carried(model, spectrum)} of the trace of the "
    sentence += f"kernel matrix of {words.plural(n, 'row')}"
    if model.method.startswith("nystrom"):
        sentence += f", seen through {words.plural(len(model.landmarks), 'landmark')}"
    passes = words.whole(field(run.manifest, "passes"))
    return sentence + (f"; computed out of core in {words.times(passes)} of the data." if passes else ".")


def _carried(model: KernelModel, spectrum: ReportedSpectrum) -> str:
    share = float(spectrum.ratios.sum())
    at_least = "at least " if model.certificate.kind == "statistical" and model.method == "nystrom" else ""
    return f"{at_least}{words.share(min(share, 1.0))}"


def _kernel_tiles(run: RunFiles, model: KernelModel, spectrum: ReportedSpectrum) -> tuple[Tile, ...]:
    rows, features, components, *others = tiles(run, spectrum, _carried(model, spectrum))
    name, count, note = components
    return (
        rows,
        features,
        ("Landmarks", words.count(len(model.landmarks)), words.clean(model.sampling, 40)),
        (name, count, note.replace("variance", "trace")),
        *others,
    )


def _landmarks(model: KernelModel, rows: RowPictures | None) -> Json:
    m = len(model.landmarks)
    note = (
        f"Every row is compared with {words.plural(m, 'landmark')}, chosen by: {words.clean(model.sampling, 40)}."
        if model.method.startswith("nystrom")
        else f"Every row is compared with all {m:,} rows."
    )
    if rows is None:
        return {"note": note}
    chosen = np.unique(np.linspace(0, m - 1, min(m, _MOST_PICTURES)).astype(np.int64))
    drawn = []
    for i in chosen:
        name = (
            f"row {int(model.landmark_indices[i]):,}" if model.landmark_indices is not None else f"landmark {i + 1:,}"
        )
        uri = rows.picture(model.landmarks[i])
        drawn.append(Picture(uri, f"Landmark: {name}", name))
    left = f" {m - len(chosen):,} more are in the model." if m > len(chosen) else ""
    return {"pictures": drawn, "note": note + left}


def _kernel_table(model: KernelModel, spectrum: ReportedSpectrum) -> ReportTable:
    """Return the first eigenvalues in digits, with the upper ends of their intervals."""
    ends = model.certificate.eigenvalue_intervals or ((None, None),) * model.n_components
    together = np.cumsum(spectrum.ratios)
    rows = tuple(
        (
            f"{i + 1}",
            words.figure(float(value), 7),
            words.figure(ends[i][1], 4),
            spectrum.share(i),
            words.share(float(together[i])),
        )
        for i, value in enumerate(model.eigenvalues[:_MOST_VALUES])
    )
    k = model.n_components
    caption = f"First {_MOST_VALUES} of {k:,} eigenvalues" if k > _MOST_VALUES else "Eigenvalues"
    return ReportTable(caption, ("component", "eigenvalue", "at most", "share", "together"), rows)


def _kernel_facts(model: KernelModel) -> words.Facts:
    certificate = model.certificate
    pairs = [
        ("kernel", words.clean(model.kernel, 400)),
        ("method", words.clean(model.method, 40).replace("_", " ")),
        ("landmarks", f"{len(model.landmarks):,}, {words.clean(model.sampling, 40)}"),
        ("directions kept of them", words.count(certificate.landmark_rank)),
        ("centred", "yes" if model.center else "no"),
        ("trace", words.figure(model.total, 6)),
        ("residual trace", words.figure(certificate.residual_trace, 4)),
        ("spectral error, estimated", words.figure(certificate.sigma, 4)),
        ("preimage", "kernel ridge" if model.preimage is not None else "not learned"),
    ]
    return words.facts("Kernel", pairs)


_SIDES = ("first table", "second table")
_MOST_NAMES = 3
_MOST_SHOWN = 4


def _analysis_page(run: RunFiles, model: AnalysisModel) -> Json:
    """Return everything the template needs of the `run` of an analysis."""
    noun = model.kind.noun.capitalize()
    spectrum = ReportedSpectrum(model.strengths, np.clip(model.shares, 0.0, 1.0), noun)
    rows = None if run.removes else run.samples
    scores = _analysis_scores(model, rows) if rows is not None else None
    classes = classes_of_run(run, scores) if scores is not None else None
    common = parts(run)
    return common | {
        "kicker": model.kind.title,
        "certificate": sentences.paragraph_of_analysis(model.certificate),
        "summary": _analysis_summary(run, model),
        "tiles": _analysis_tiles(run, model, spectrum),
        "notes": notes(run),
        "components_title": f"The {model.kind.noun}s",
        "components": _patterns(run, model, spectrum),
        "spectrum": (_analysis_chart(model),),
        "scores": () if scores is None else (_plane(model, scores, classes),),
        "series": (),
        "scores_note": scores_note(run, scores),
        "quality": data_quality(run),
        "spectrum_table": _analysis_table(model),
        "facts": (_analysis_facts(model), *common["facts"]),
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


def _analysis_scores(model: AnalysisModel, samples: StoredArray) -> Scores:
    """Return the scores of the samples of the first pair, or of the first two factors."""
    k = len(model.strengths)
    axes = (0, k) if model.n_first is not None else axes_of(k)
    return scores_by(
        lambda rows: (model.encode(rows)[:, list(axes)].astype(np.float64), np.zeros(len(rows))), samples, axes
    )


def _analysis_summary(run: RunFiles, model: AnalysisModel) -> str:
    sentence = model.kind.found.format(
        count=words.plural(len(model.strengths), model.kind.noun),
        first=words.figure(float(model.strengths[0])),
        share=words.share(float(model.shares.sum())),
        rows=words.plural(sample_count(run), "row"),
    )
    passes = words.whole(field(run.manifest, "passes"))
    return sentence + (f"; computed out of core in {words.times(passes)} of the data." if passes else ".")


def _analysis_tiles(run: RunFiles, model: AnalysisModel, spectrum: ReportedSpectrum) -> tuple[Tile, ...]:
    rows, features, _, *others = tiles(run, spectrum)
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
        layout = layout_of_run(of_side)
        shown = min(_MOST_SHOWN, len(model.strengths))
        parts.append(components(of_side, spectrum, layout, shown, group, f"{place}-mode"))
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


def _analysis_chart(model: AnalysisModel) -> Chart:
    values = model.strengths
    first, last = words.figure(values[0]), words.figure(values[-1])
    text = f"From {first} for the first down to {last}." if len(values) > 1 else f"{first}."
    errors = model.strength_errors
    if errors is not None:
        low, high = errors.interval()[0]
        text += f" The first lies between {words.figure(low)} and {words.figure(high)} (95 %)."
    svg = inline("eigenvalues", partial(plotting.scree, values=values, title=model.kind.strength))
    return Chart(
        model.kind.chart, svg, f"Chart of {words.plural(len(values), 'value')}, from {first} down to {last}.", text
    )


def _plane(model: AnalysisModel, scores: Scores, classes: plotting.Classes | None) -> Chart:
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
        svg = inline("histogram", partial(plotting.scores, values=scores.values, titles=labels))
        return Chart(title, svg, f"Histogram of {m}. {spread_of_points(scores.values, [1])}")
    points = scores.values[:, :2]
    draw = partial(plotting.scores, values=points, titles=labels, classes=classes)
    svg = inline("plane", draw, height=3.9)
    return Chart(title, svg, f"{m} plotted on {labels[0]} against {labels[1]}. {spread_of_points(points, [1, 2])}")


def _analysis_table(model: AnalysisModel) -> ReportTable:
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


def _analysis_facts(model: AnalysisModel) -> words.Facts:
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


_REMOVED = "Pictures of rows are left out, because the model removes a part of each row before it is projected."

_NO_CHARTS = (
    'There are no charts on this page, because they need matplotlib: pip install "streampca[report]", and streampca report '
    "draws them from the files of this run."
)


def write_report(directory: Path, further: FurtherRows | None = None, model: Model | None = None) -> Path:
    """Write ``report.html`` of the run in `directory`, with `further` rows in the figure of rebuilt rows; return its path.

    Reads plan.json, manifest.json, model.zarr, or takes `model` for it where it is in memory already, and samples.zarr, a few rows at
    a time, and the scores where rows have labels that they are drawn by; where there are no samples, the page omits what needs them.
    Components that are saved in slabs of features stay on disk. The same files give the same bytes. An older page is replaced in one
    step, or not at all.

    Raises
    ------
    DataError
        The directory is not that of a run; ModelError when its model is missing or damaged.
    NotAvailableError
        There are `further` rows, and the page has no figure of rebuilt rows.
    OutputError
        The page cannot be written; NoSpaceError when there is no room for it.
    """
    directory = Path(directory)
    run = read_run(directory, model)
    others: dict[str, Callable[[RunFiles, Any], Json]] = {"kernel": _kernel_page, "analysis": _analysis_page}
    compose = others.get(run.model.kind.page)
    page = _pca_page(run, further) if compose is None else compose(run, run.model)
    if further is not None and page.get("reconstruction") is None:
        raise NotAvailableError(
            f"{directory}: the page of this run has no rows that are rebuilt, so that none can be added: it is a run of another kind than PCA, "
            "without a report, with preprocess.remove, or with components on disk"
        )
    if not can_draw():
        page |= {"spectrum": (), "scores": (), "series": (), "notes": [*page["notes"], _NO_CHARTS]}
    return write_page(directory, "page.html", page)


def _pca_page(run: RunFiles, further: FurtherRows | None) -> Json:
    """Return everything the template needs, each part computed and released before the next."""
    spectrum = spectrum_of(run)
    # Rows of components on disk are never read whole, and nothing is removed from samples.
    rows = None if run.in_slabs or run.removes else run.samples
    layout = layout_of_run(run)
    scores = score(run, rows) if rows is not None else None
    drawn = row_pictures(run, layout, scores)
    classes = classes_of_run(run, scores) if scores is not None else None
    along = along_samples(run, spectrum)
    certificate = run.model.certificate
    bounds = Bounds(certificate) if isinstance(certificate, ApproximateCertificate) else None
    carried = None if bounds is None else carried_at_least(bounds.certificate)
    intervals = None if bounds is None else interval_chart(run, bounds, spectrum)
    rotation = field(run.manifest, "result", "rotation", "method")
    charts: list[Chart] = []
    if scores is not None:
        charts += score_charts(spectrum, scores, classes)
        charts += biplot_charts(run, spectrum, layout, scores, classes)
    return parts(run) | {
        "kicker": run.model.kind.title + ("" if rotation is None else f", rotated by {words.clean(rotation)}"),
        "summary": summary(run, spectrum, carried),
        "tiles": tiles(run, spectrum, carried),
        "notes": [*notes(run), *([_REMOVED] if run.removes else [])],
        "components_title": "The components",
        "components": components(run, spectrum, layout),
        "loadings": loadings(run, layout),
        "spectrum": spectrum_charts(run, spectrum, intervals, carried),
        "component_count": component_count(run),
        "accuracy": None if bounds is None else accuracy(run, bounds, spectrum),
        "scores": charts,
        "series": along.charts,
        "scores_note": f"{scores_note(run, scores)} {along.note}".strip(),
        "reconstruction": None if scores is None else reconstruction(run, scores, layout, drawn, further),
        "outliers": outliers(run, layout, drawn),
        "quality": data_quality(run),
        "spectrum_table": spectrum_table(spectrum),
    }
