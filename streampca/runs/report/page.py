"""The report of a run: the content of its files in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.errors import NotAvailableError
from streampca.models import certificate_sentences as sentences
from streampca.models.analysis import AnalysisModel
from streampca.models.kernel import KernelModel
from streampca.models.pca import Model
from streampca.runs.report.components import (
    MOST_FEATURES,
    component_rows,
    components,
    components_section,
    largest,
    layout_of_run,
)
from streampca.runs.report.figures import Chart, Picture, ReportTable, Section, can_draw, inline, write_page
from streampca.runs.report.layouts import Layout
from streampca.runs.report.result import (
    Tile,
    accuracy_section,
    component_count,
    out_of_core,
    rows_section,
    sample_count,
    score_charts,
    spectrum_of,
    spectrum_section,
    summary,
    tiles,
)
from streampca.runs.report.run_files import FurtherRows, ReportedSpectrum, RunFiles, field, read_run
from streampca.runs.report.samples import (
    Scores,
    Shown,
    axes_of,
    classes_of_run,
    outliers,
    reconstruction,
    row_pictures,
    score,
    scores_by,
)
from streampca.runs.report.what_ran import (
    byline,
    data_quality,
    notes,
    spectrum_table,
    table_of_values,
    warnings,
    what_ran,
)
from streampca.typing import Json
from streampca.version import install_command

_REMOVED = "Samples are not drawn, because the model removes a part of each sample before it is projected."
_NO_CHARTS = (
    "There are no charts on this page, because they need matplotlib: {}; then the command streampca report draws them from the files of "
    "this run."
)
_MOST_PICTURES = 48
_MOST_SHOWN = 4

SectionOf: TypeAlias = Callable[[Shown], Section | None]


@dataclass(frozen=True)
class _PageKind:
    """What the page of a kind of models shows."""

    spectrum: Callable[[RunFiles], ReportedSpectrum]
    """Eigenvalues, or strengths of pairs."""
    layout: Callable[[RunFiles], Layout | None]
    """How rows are drawn."""
    score: Callable[[RunFiles], Scores | None]
    """The samples on the axes."""
    summary: Callable[[Shown], str]
    """The result in a sentence."""
    tiles: Callable[[Shown], tuple[Tile, ...]]
    """The numbers at the top."""
    sections: tuple[SectionOf, ...]
    """The sections below, in their order; those that return None do not apply to the run."""


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
    kind = PAGES[run.model.kind.page]
    layout, scores = kind.layout(run), kind.score(run)
    classes = None if scores is None else classes_of_run(run, scores)
    pictures = row_pictures(run, layout, scores)
    shown = Shown(run, kind.spectrum(run), layout, scores, pictures, classes, further)
    sections = [section for of in kind.sections if (section := of(shown)) is not None]
    if further is not None and all(section.identity != "reconstruction" for section in sections):
        raise NotAvailableError(
            f"{directory}: no rebuilt rows can be added to the page of this run, because it is not a run of PCA, has no report, "
            "uses preprocess.remove, or has its components on disk"
        )
    rotation = field(run.manifest, "result", "rotation", "method")
    page = {
        "name": words.clean(field(run.manifest, "name") or run.name, 120),
        "kicker": run.model.kind.title + ("" if rotation is None else f", rotated by {words.clean(rotation)}"),
        "summary": kind.summary(shown),
        "byline": byline(run.manifest, run.plan),
        "tiles": kind.tiles(shown),
        "sections": [*_told(run), *sections],
    }
    return write_page(directory, page)


def _told(run: RunFiles) -> list[Section]:
    """Return the warnings and the notes of a run as sections."""
    removed = [_REMOVED] if run.model.kind.page == "components" and run.removes else []
    found = {
        "warning": (warnings(run), "warnings"),
        "note": (
            [*notes(run), *removed, *([] if can_draw() else [_NO_CHARTS.format(install_command("report"))])],
            "warnings notes",
        ),
    }
    return [
        Section(f"{name}s", f"{name.capitalize()}{'' if len(told) == 1 else 's'}", parts=(("list", told),), style=style)
        for name, (told, style) in found.items()
        if told
    ]


def _model_scores(run: RunFiles, axes: tuple[int, ...]) -> Scores | None:
    """Return the scores that the model gives the samples on some axes."""
    if run.samples is None:
        return None
    return scores_by(
        lambda rows: (run.model.encode(rows)[:, list(axes)].astype(np.float64), np.zeros(len(rows))), run.samples, axes
    )


def _kernel_spectrum(run: RunFiles) -> ReportedSpectrum:
    model = cast(KernelModel, run.model)
    ratios = np.clip(model.explained_variance_ratio, 0.0, None)
    at_least = "at least " if model.certificate.kind == "statistical" and model.method == "nystrom" else ""
    carried = f"{at_least}{words.share(min(float(ratios.sum()), 1.0))}"
    return ReportedSpectrum(model.eigenvalues, ratios, carried, title="Eigenvalues of the kernel matrix", total="trace")


def _kernel_summary(shown: Shown) -> str:
    model, k = cast(KernelModel, shown.run.model), shown.run.model.n_components
    sentence = (
        f"{words.plural(k, 'component')} carr{'ies' if k == 1 else 'y'} {shown.spectrum.carried} of the trace of the "
    )
    sentence += f"kernel matrix of {words.plural(sample_count(shown.run), 'sample')}"
    if model.method.startswith("nystrom"):
        sentence += f", approximated by {words.plural(len(model.landmarks), 'landmark')}"
    return f"{sentence}{out_of_core(shown.run)}."


def _kernel_tiles(shown: Shown) -> tuple[Tile, ...]:
    model, (rows, features, *others) = cast(KernelModel, shown.run.model), tiles(shown)
    return (
        rows,
        features,
        ("Landmarks", words.count(len(model.landmarks)), words.clean(model.sampling, 40)),
        *others,
    )


def _landmarks(shown: Shown) -> Section:
    """Return the section of the rows that every row is compared with, as pictures where rows are pictures."""
    model = cast(KernelModel, shown.run.model)
    m, numbers = len(model.landmarks), model.landmark_indices
    note = f"Every row is compared with all {m:,} rows."
    if model.method.startswith("nystrom"):
        note = (
            f"Every row is compared with {words.plural(m, 'landmark')}, chosen by: {words.clean(model.sampling, 40)}."
        )
    drawn = []
    if shown.pictures is not None:
        chosen = np.unique(np.linspace(0, m - 1, min(m, _MOST_PICTURES)).astype(np.int64))
        for i in chosen:
            name = f"landmark {i + 1:,}" if numbers is None else f"row {int(numbers[i]):,}"
            drawn.append(Picture(shown.pictures.picture(model.landmarks[i]), f"Landmark: {name}", name))
        note += f" {m - len(chosen):,} more are in the model." if m > len(chosen) else ""
    return Section("components", "The landmarks", parts=(("components", {"pictures": drawn, "note": note}),))


def _kernel_ran(shown: Shown) -> Section:
    """Return the section on what ran, with the kernel, and eigenvalues with the upper ends of their intervals."""
    model, spectrum = cast(KernelModel, shown.run.model), shown.spectrum
    certificate, together = model.certificate, np.cumsum(spectrum.ratios)
    ends = certificate.eigenvalue_intervals or ((None, None),) * model.n_components
    columns: dict[str, Callable[[int], str]] = {
        "eigenvalue": lambda i: words.figure(float(model.eigenvalues[i]), 7),
        "at most": lambda i: words.figure(ends[i][1], 4),
        "share": spectrum.share,
        "together": lambda i: words.share(float(together[i])),
    }
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
    table = table_of_values(model.n_components, "component", columns)
    return what_ran(shown, table, (words.facts("Kernel", pairs),))


def _strengths(run: RunFiles) -> ReportedSpectrum:
    model = cast(AnalysisModel, run.model)
    shares, kind = np.clip(model.shares, 0.0, 1.0), model.kind
    total = kind.share_of.removeprefix("share of ")
    return ReportedSpectrum(
        model.strengths,
        shares,
        words.share(float(shares.sum())),
        kind.noun.capitalize(),
        kind.chart,
        total,
        kind.bounded,
    )


def _analysis_scores(run: RunFiles) -> Scores | None:
    """Return the scores of the samples of the first pair, or of the first two factors."""
    model = cast(AnalysisModel, run.model)
    k = len(model.strengths)
    return None if run.removes else _model_scores(run, (0, k) if model.n_first is not None else axes_of(k))


def _analysis_summary(shown: Shown) -> str:
    model = cast(AnalysisModel, shown.run.model)
    sentence = model.kind.found.format(
        count=words.plural(len(model.strengths), model.kind.noun),
        first=words.figure(float(model.strengths[0]), 3),
        share=words.share(float(model.shares.sum())),
        rows=words.plural(sample_count(shown.run), "sample"),
        tables=" and ".join(shown.run.tables),
    )
    return f"{sentence}{out_of_core(shown.run)}."


def _analysis_tiles(shown: Shown) -> tuple[Tile, ...]:
    model, (rows, features, _, *others) = cast(AnalysisModel, shown.run.model), tiles(shown)
    spectrum = shown.spectrum
    if model.n_first is not None:
        counts = model.n_first, model.n_features - model.n_first
        listed = ", ".join(f"{n:,} of {name}" for n, name in zip(counts, shown.run.tables, strict=True))
        features = (*features[:2], listed)
    carried = (
        f"first correlation {words.figure(spectrum.values[0], 3)}"
        if spectrum.is_correlation
        else f"{spectrum.carried} of the {spectrum.total}"
    )
    return (rows, features, (f"{spectrum.noun}s", words.count(len(model.strengths)), carried), *others)


def _patterns(shown: Shown) -> Section:
    """Return the patterns of both tables, or the loadings, by the labels of their features, or as bars of the largest."""
    run, spectrum, model = shown.run, shown.spectrum, cast(AnalysisModel, shown.run.model)
    source = run.manifest.get("source")
    source = source if isinstance(source, dict) else {}
    parts: list[Json] = []
    for side, name, place in zip(model.sides, run.tables or ("",), ("first", "secon"), strict=False):
        group = name if model.n_first is not None else ""
        # Factors have variance 1, of which their scores, conditional means, have a part.
        spread = side.explained_variance if model.n_first is not None else np.ones(side.n_components)
        own = replace(side, components=side.patterns, explained_variance=spread)
        named = source | {"feature_names": own.source.get("feature_names"), "feature_shape": None}
        of_side = replace(run, model=own, labels=own.labels, manifest=run.manifest | {"source": named})
        few = min(_MOST_SHOWN, len(model.strengths))
        parts.append(components(of_side, spectrum, layout_of_run(of_side), few, group, f"{place}-mode"))
    joined: Json = {"note": model.kind.note}
    if model.figures.get("rotation"):
        joined["note"] = joined["note"].replace(
            "Factors are determined up to a rotation.", f"Rotated by {model.figures['rotation']}."
        )
    for kind in ("charts", "pictures", "bars"):
        entries = [entry for pair in zip_longest(*(part.get(kind, ()) for part in parts)) for entry in pair if entry]
        if entries:
            joined[kind] = entries
    left = len(model.strengths) - _MOST_SHOWN
    joined["note"] += f" {left:,} more {'is' if left == 1 else 'are'} in the model." if left > 0 else ""
    title = f"Pairs of patterns of {' and '.join(run.tables)}" if model.n_first is not None else "Factors"
    return Section("components", title, parts=(("components", joined), ("card", _factor_table(run))))


def _factor_table(run: RunFiles) -> ReportTable | None:
    """Return loadings, communality and uniqueness of each feature of a factor analysis; None elsewhere."""
    model = cast(AnalysisModel, run.model)
    if model.uniquenesses is None:
        return None
    k, explained, unique = min(len(model.strengths), _MOST_SHOWN), model.communalities, model.uniquenesses
    shown = (
        np.arange(model.n_features) if model.n_features <= MOST_FEATURES else np.sort(largest(explained, MOST_FEATURES))
    )
    columns = (*model.patterns[:k], explained, unique, explained / np.maximum(explained + unique, np.finfo(float).tiny))
    rows = tuple(
        (
            run.feature_name(int(j)),
            *(f"{column[j]:+.3f}".replace("-", "−") for column in columns[:k]),
            *(f"{column[j]:.3f}" for column in columns[k:]),
        )
        for j in shown
    )
    heads = ("feature", *(f"factor {i + 1}" for i in range(k)), "communality", "uniqueness", "share explained")
    note = (
        "Communality is the variance of a feature that the factors explain, uniqueness the variance that they do not."
    )
    if len(shown) < model.n_features:
        note += f" The {len(shown)} of {model.n_features:,} features with the largest communalities."
    return ReportTable("Loadings, communalities and uniquenesses", heads, rows, note=note)


_SECTIONS = {
    "mca": "Covariance between the tables",
    "cca": "Canonical correlations",
    "factor_analysis": "Variance that the factors explain",
}


def _strengths_section(shown: Shown) -> Section:
    """Return the section of the strengths of the pairs, or of the factors, with what each explains, as a chart and as a table."""
    model, spectrum = cast(AnalysisModel, shown.run.model), shown.spectrum
    kind, values, errors = model.kind, model.strengths, model.strength_errors
    first, last = words.figure(values[0]), words.figure(values[-1])
    text = f"From {first} for the first down to {last}." if len(values) > 1 else f"{first}."
    interval = None if errors is None else errors.interval()
    if errors is not None:
        text += f" Error bars are 95{words.SPACE}% intervals from a jackknife over {errors.n_blocks} groups of samples."
    sampling = None if interval is None else interval.T
    draw = partial(plotting.scree, values=values, sampling=sampling, title=kind.strength, noun=kind.noun)
    alt = f"Chart of {words.plural(len(values), 'value')}, from {first} down to {last}."
    charts = [Chart(kind.chart, inline("eigenvalues", draw), alt, text)]
    if not spectrum.is_correlation:
        sums = partial(
            plotting.cumulative, ratios=spectrum.ratios, marks={}, noun=kind.noun, title=f"{kind.share_of} (%)"
        )
        together = f"Together the {kind.noun}s explain {spectrum.carried} of the {spectrum.total}."
        charts.append(
            Chart(f"Cumulative {kind.share_of}", inline("cumulative", sums), f"Chart of sums. {together}", together)
        )
    drawn = tuple(chart for chart in charts if chart.svg)
    return Section("spectrum", _SECTIONS[model.analysis], parts=(("pair", drawn), ("card", _strengths_table(shown))))


def _strengths_table(shown: Shown) -> ReportTable:
    """Return the values of the pairs or factors in digits, their intervals, and what they explain of each table."""
    model, spectrum = cast(AnalysisModel, shown.run.model), shown.spectrum
    kind, errors, k = model.kind, model.strength_errors, len(model.strengths)
    columns: dict[str, Callable[[int], str]] = {kind.strength: lambda i: words.figure(float(model.strengths[i]), 6)}
    if errors is not None:
        ends = errors.interval()
        columns["95 % interval"] = lambda i: f"{words.figure(ends[i][0], 4)} to {words.figure(ends[i][1], 4)}"
    columns[kind.share_of] = lambda i: words.share(float(spectrum.ratios[i]))
    if not spectrum.is_correlation:
        together = np.cumsum(spectrum.ratios)
        columns["cumulative"] = lambda i: words.share(float(together[i]))
    if model.n_first is not None:
        variance = model.explained_variance
        if not spectrum.is_correlation:
            product = np.sqrt(np.maximum(variance[:k] * variance[k:], np.finfo(float).tiny))
            columns["correlation"] = lambda i: words.figure(float(model.strengths[i] / product[i]), 3)
        lengths = variance * np.square(model.patterns).sum(axis=1)
        for side, (name, total) in enumerate(zip(shown.run.tables, model.totals, strict=True)):
            part = lengths[side * k : (side + 1) * k] / (total or 1.0)
            columns[f"variance of {name}"] = lambda i, part=part: words.share(float(part[i]))  # type: ignore[misc]
    table = table_of_values(k, kind.noun, columns, kind.chart, "values")
    if model.n_first is None:
        return table
    note = "Correlation is that of the scores of both tables. The last columns are the variances of the scores, as shares of the total variances of "
    note += "the tables."
    if spectrum.is_correlation:
        note = "The last columns are the shares of the total variances of the tables that their canonical variates explain."
    return replace(table, note=note)


def _analysis_rows(shown: Shown) -> Section | None:
    """Return the section of the samples at the scores of the first pair, or of the first two factors."""
    model, scores = cast(AnalysisModel, shown.run.model), shown.scores
    if scores is None:
        return None
    pair, k, run = model.n_first is not None, len(model.strengths), shown.run
    names = [run.score_name(axis) for axis in scores.axes]
    order = [i + k * side for i in range(k) for side in range(2)] if pair else range(k)
    title = "First pair" if pair else "First two factors"
    charts = score_charts(scores, names, names, shown.classes, title)
    return rows_section(shown, charts, {column: run.score_name(column) for column in order})


def _analysis_ran(shown: Shown) -> Section:
    """Return the section on what ran, with totals and errors of the analysis."""
    model = cast(AnalysisModel, shown.run.model)
    pairs = [("numerical error", words.figure(model.error, 3) if model.error is not None else words.MISSING)]
    if model.n_first is not None:
        for name, total in zip(shown.run.tables, model.totals, strict=True):
            pairs.append((f"total variance of {name}", words.figure(total, 6)))
    if "squared_covariance" in model.figures:
        pairs.append(("total squared covariance", words.figure(model.figures["squared_covariance"], 6)))
    if "log_likelihood" in model.figures:
        pairs.append(("mean log-likelihood of a sample", words.figure(model.figures["log_likelihood"], 7)))
        pairs.append(
            ("features without uniqueness (Heywood cases)", words.count(len(model.figures["heywood_features"])))
        )
    told: Sequence[str] = sentences.paragraph_of_analysis(model.certificate)
    return what_ran(shown, None, (words.facts("Analysis", pairs),), told)


PAGES = {
    "components": _PageKind(
        spectrum_of,
        layout_of_run,
        score,
        summary,
        tiles,
        (
            components_section,
            spectrum_section,
            component_count,
            accuracy_section,
            component_rows,
            reconstruction,
            outliers,
            data_quality,
            lambda shown: what_ran(shown, spectrum_table(shown.spectrum)),
        ),
    ),
    "kernel": _PageKind(
        _kernel_spectrum,
        layout_of_run,
        lambda run: _model_scores(run, axes_of(run.model.n_components)),
        _kernel_summary,
        _kernel_tiles,
        (_landmarks, spectrum_section, component_rows, data_quality, _kernel_ran),
    ),
    "analysis": _PageKind(
        _strengths,
        lambda run: None,
        _analysis_scores,
        _analysis_summary,
        _analysis_tiles,
        (_patterns, _strengths_section, _analysis_rows, data_quality, _analysis_ran),
    ),
}
"""The sections of a page, by what the kind of models says of it."""
