"""The reports of runs of several models and of groups of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import streampca.plotting as plotting
from streampca.formatting import clean, count, figure, plural, sentence
from streampca.models.certificate_sentences import accuracy_in_short, carried, paragraph, paragraph_of_analysis
from streampca.models.certificates import any_certificate_of
from streampca.runs.manifest import read_json
from streampca.runs.report.components import components, layout_of_run
from streampca.runs.report.figures import RISING, WIDTH, Chart, ReportTable, Section, can_draw, inline, write_page
from streampca.runs.report.layouts import mesh
from streampca.runs.report.page import PAGES
from streampca.runs.report.result import score_charts, spectrum_of, tiles_of_several
from streampca.runs.report.run_files import ReportedSpectrum, RunFiles, field, read_model, read_run
from streampca.runs.report.samples import classes_of_run
from streampca.runs.report.what_ran import byline
from streampca.typing import FloatArray, Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MOST_SHOWN = 40
"""Groups that tables and picture have; the manifest has all."""
_MOST_DRAWN = 24
"""Models whose components are drawn, and about how many charts."""
_MOST_EIGENVALUES = 10
"""Eigenvalues of each group that the table has."""
_OF_GROUPS = (
    "Each group has the covariance of its rows about their mean. “pooled” is the covariance within groups, “between” that of the "
    "group means."
)
_OF_SIMILARITY = (
    "The mean squared cosine of the principal angles between the components of two groups: 1 for the same subspace, 0 for "
    "orthogonal ones."
)
_HEADS = ("group", "samples", "components", "variance carried", "first eigenvalue", "total variance")


def write_groups_report(directory: Path) -> Path:
    """Write ``report.html`` of the run of groups in `directory`, and return its path."""
    manifest = read_json(directory, "manifest.json")
    entries = list(manifest["models"].values())
    n_groups = len(manifest["similarity"]["largest_angle"])
    samples, features = manifest["source"]["shape"]
    by = clean(manifest["group_by"], 120)
    shown = {_name(entry): entry for entry in (*entries[: min(n_groups, _MOST_SHOWN)], *entries[n_groups:])}
    table = ReportTable("Models of the groups", _HEADS, tuple(map(_row, shown, shown.values())))
    told = [f"{name}: {clean(each, 600)}" for name, entry in shown.items() for each in entry["warnings"]]
    drawn = _components(directory, manifest, shown, min(n_groups, _MOST_SHOWN))
    sections = [
        Section("models", "Models", _OF_GROUPS, (("card", table), ("card", _eigenvalues(shown)))),
        Section("warnings", "Warnings", parts=(("list", told),), style="warnings") if told else None,
        Section("components", "Components", parts=(("components", drawn),)),
        _similarity(manifest, n_groups) if n_groups > 1 else None,
    ]
    summary = (
        f"{n_groups} groups of {samples:,} samples × {features:,} features by {by}, fitted in one pass over the data."
    )
    return _written(directory, manifest, "groups", summary, sections)


def _written(directory: Path, manifest: Json, subject: str, summary: str, sections: Iterable[Section | None]) -> Path:
    """Write the page of a run with the `sections` that apply, and its notes below; return its path."""
    notes = [sentence(clean(note, 600)) for note in manifest["notes"]]
    shown = [section for section in sections if section is not None]
    shown += [Section("notes", "Notes", parts=(("list", notes),), style="warnings notes")] if notes else []
    page = {"name": clean(manifest["name"], 120), "subject": subject, "summary": summary, "sections": shown}
    page |= {"byline": byline(manifest, None), "tiles": tiles_of_several(manifest)}
    return write_page(directory, page)


def _name(entry: Json) -> str:
    return clean(entry["label"], 60)


def _row(name: str, entry: Json) -> tuple[str, ...]:
    """Return the cells of a model."""
    result = entry["result"]
    return (
        name,
        f"{entry['n_samples']:,}",
        f"{result['n_components']:,}",
        carried(any_certificate_of(entry["certificate"])),
        f"{result['explained_variance'][0]:.4g}",
        f"{result['total_variance']:.4g}",
    )


def _components(directory: Path, manifest: Json, shown: dict[str, Json], n_groups: int) -> Json:
    """Return the first components of each model, so few that a reader can look at them; one model is in memory at a time."""
    drawn: Json = {"charts": [], "pictures": [], "bars": [], "note": ""}
    for i, (name, entry) in enumerate(list(shown.items())[:_MOST_DRAWN]):
        model, labels, fit = read_model(directory / "models" / Path(entry["model"]).name)
        run = RunFiles(name, {}, manifest | entry, model, fit, labels)
        layout = layout_of_run(run)
        each = 1 if layout is None else layout.n_charts
        most = max(1, min(3, _MOST_DRAWN // (each * len(shown))))
        found = components(
            run, spectrum_of(run), layout, most, name if i >= n_groups else f"group {name}", f"group-{i}"
        )
        drawn["note"] = drawn["note"] or found.pop("note")
        for kind in found.keys() & {"charts", "pictures", "bars"}:
            drawn[kind] += found[kind]
    drawn["note"] += f" Shown: at most {plural(most, 'component')} of each model."
    if len(shown) > _MOST_DRAWN:
        drawn["note"] += f" The first {_MOST_DRAWN} models are drawn."
    return drawn


def _eigenvalues(shown: dict[str, Json]) -> ReportTable:
    """Return the table of the first eigenvalues of each model, with their shares of the variance of its rows."""
    found = {name: entry["result"] for name, entry in shown.items()}
    width = min(_MOST_EIGENVALUES, max(len(result["explained_variance"]) for result in found.values()))
    rows = []
    for name, result in found.items():
        pairs = zip(result["explained_variance"][:width], result["explained_variance_ratio"], strict=False)
        cells = [f"{value:.4g} ({share:.1%})" for value, share in pairs]
        rows.append((name, *cells, *["–"] * (width - len(cells))))
    return ReportTable(
        "Eigenvalues and their shares of the variance", ("group", *map(str, range(1, width + 1))), tuple(rows)
    )


def _similarity(manifest: Json, n_groups: int) -> Section:
    """Return how similar the subspaces of the groups are, as a chart and tables."""
    m = min(n_groups, _MOST_SHOWN)
    names = [_name(entry) for entry in list(manifest["models"].values())[:m]]
    similar = np.array(manifest["similarity"]["mean_squared_cosine"])[:m, :m]
    angles = np.degrees(np.array(manifest["similarity"]["largest_angle"])[:m, :m])
    below = np.tril_indices(m, -1)
    most, least = (tuple(side[at] for side in below) for at in (similar[below].argmax(), similar[below].argmin()))
    pairs = f"Most similar: {names[most[1]]} and {names[most[0]]} ({similar[most]:.3f}). "
    pairs += f"Least similar: {names[least[1]]} and {names[least[0]]} ({similar[least]:.3f})."
    more = f" The first {m} of {n_groups:,} groups are shown; the manifest has all." if m < n_groups else ""
    chart = Chart(
        "Map of the similarity",
        _map(names, similar),
        f"Map of the similarity of {m} groups. {pairs}",
        "The lighter the colour, the more similar.",
    )
    tables = (
        ("card", _square("Mean squared cosine", names, similar, 3)),
        ("card", _square("Largest principal angle in degrees", names, angles, 1)),
    )
    lead = f"{_OF_SIMILARITY} {pairs}{more}"
    return Section("similarity", "Similarity of the subspaces", lead, (("pair", (chart,)), *tables))


def _square(caption: str, names: Sequence[str], values: FloatArray, digits: int) -> ReportTable:
    """Return the table of a figure of every pair of groups."""
    rows = tuple((name, *(f"{value:.{digits}f}" for value in row)) for name, row in zip(names, values, strict=True))
    return ReportTable(caption, ("group", *names), rows)


def _map(names: Sequence[str], values: FloatArray) -> str:
    """Return a chart of a symmetric table of values from 0 to 1, with the names of its rows and columns."""
    m, short = len(names), [name if len(name) <= 16 else f"{name[:15]}…" for name in names]

    def draw(axes: Axes) -> None:
        places, edges = np.arange(m), np.arange(m + 1, dtype=np.float64) - 0.5
        mesh(axes, edges, edges, values, [(0.0, "0"), (1.0, "1")], RISING)
        axes.set_box_aspect(1)
        axes.set_xticks(places, short, rotation=90, parse_math=False)
        axes.set_yticks(places, short, parse_math=False)

    side = min(9.0, max(WIDTH, 2.0 + 0.25 * m))
    return inline("similarity", draw, side, side)


_MOST_COMPARED = 8
"""Models that have a colour in a chart."""
_HEADS_OF_MODELS = ("model", "method", "solver", "features", "components", "share", "passes", "accuracy")


@dataclass(frozen=True)
class _Compared:
    """What the page of several models shows of one of them."""

    row: tuple[str, ...]
    """Its cells in the table of models."""
    spectrum: ReportedSpectrum
    """Its eigenvalues, or strengths of pairs, with their shares."""
    certificate: tuple[str, ...]
    """What its certificate says, in sentences."""
    warnings: tuple[str, ...]
    """Its warnings, with its name."""
    components: Json
    """Its first components as charts, pictures or bars; empty where its components are no rows of features."""
    scores: tuple[Chart, ...]
    """The samples at its first two scores."""
    sums: bool
    """Whether its shares are shares of one total."""


def write_models_report(directory: Path, runs: Mapping[str, Path]) -> Path:
    """Write ``report.html`` of the run of several models in `directory`, with `runs` by name, and return its path."""
    manifest = read_json(directory, "manifest.json")
    samples, features = manifest["source"]["shape"]
    links = {name: f"models/{name}/report.html" for name, path in runs.items() if (path / "report.html").exists()}
    found = {name: _compared(name, path, i, len(runs)) for i, (name, path) in enumerate(runs.items())}
    heads, rows = _HEADS_OF_MODELS, tuple(each.row for each in found.values())
    note = "Share is what the components carry together. Accuracy is the largest relative error of an eigenvalue."
    table = ReportTable("Models of the run", heads, rows, style="found", note=note, links=links)
    told = [warning for each in found.values() for warning in each.warnings]
    certificates = tuple((f"Certificate of {name}", each.certificate) for name, each in found.items())
    charts = tuple(chart for each in found.values() for chart in each.scores)
    sections = [
        Section("warnings", "Warnings", parts=(("list", told),), style="warnings") if told else None,
        Section("models", "Models", parts=(("card", table),)),
        _shares_section(found),
        Section("components", "Components", parts=(("components", joined),))
        if (joined := _side_by_side(found))
        else None,
        Section("scores", "Scores of the samples", parts=(("pair", charts),)) if charts else None,
        Section("certificates", "Certificates", parts=(("lists", certificates),)),
    ]
    passes = plural(manifest["passes"], "pass", "passes")
    summary = f"{plural(len(runs), 'model')} of {samples:,} samples × {features:,} features, fitted together in {passes} over the data."
    return _written(directory, manifest, "models", summary, sections)


def _compared(name: str, path: Path, number: int, n_models: int) -> _Compared:
    """Return what is shown of the model `name`, whose run is at `path`; one model is in memory at a time."""
    run = read_run(path)
    kind, model, title = PAGES[run.model.kind.page], run.model, clean(name, 40)
    certificate, spectrum = model.certificate, kind.spectrum(run)
    is_linear = model.kind.page == "components"
    drawn: Json = {}
    if is_linear and number < _MOST_COMPARED:
        layout = kind.layout(run)
        each = 1 if layout is None else layout.n_charts
        most = max(1, min(3, _MOST_DRAWN // (each * n_models)))
        drawn = components(run, spectrum, layout, most, title, f"model-{number}")
    charts: tuple[Chart, ...] = ()
    scores = kind.score(run) if model.kind.page != "analysis" and number < _MOST_COMPARED else None
    if scores is not None and can_draw():
        names = [f"component {axis + 1:,}" for axis in scores.axes]
        labels = [
            f"{each} ({spectrum.share(axis)} of the {spectrum.total})"
            for each, axis in zip(names, scores.axes, strict=True)
        ]
        charts = score_charts(
            scores, names, labels, classes_of_run(run, scores), f"First two components, {title}", f"-{number}"
        )
    sentences = (
        paragraph_of_analysis(certificate)
        if model.kind.page == "analysis"
        else paragraph(certificate, model.n_components)
    )
    told = field(run.manifest, "warnings")
    row = (
        name,
        model.kind.estimator,
        clean(field(run.plan, "solver"), 40),
        f"{model.n_features:,}",
        f"{len(spectrum.values):,}",
        _share_of(run, spectrum),
        count(field(run.manifest, "passes")),
        accuracy_in_short(certificate),
    )
    warned = tuple(f"{title}: {clean(each, 600)}" for each in told) if isinstance(told, list) else ()
    sums = model.kind.page != "analysis" or not model.kind.bounded
    return _Compared(row, spectrum, tuple(sentences), warned, drawn, charts, sums)


def _share_of(run: RunFiles, spectrum: ReportedSpectrum) -> str:
    """Return what the components carry, and of what; of canonical correlations, whose squares have no total, the first one."""
    kind = run.model.kind
    if kind.page == "analysis":
        return (
            f"first correlation {figure(spectrum.values[0], 3)}"
            if kind.bounded
            else f"{spectrum.carried} of {kind.share_of.removeprefix('share of ')}"
        )
    return f"{spectrum.carried} of the {spectrum.total}"


def _shares_section(found: Mapping[str, _Compared]) -> Section:
    """Return the shares of the components of all models, and their sums, as charts and as a table."""
    drawn = {clean(name, 40): 100 * each.spectrum.ratios for name, each in list(found.items())[:_MOST_COMPARED]}
    sums = {
        clean(name, 40): np.cumsum(drawn[clean(name, 40)])
        for name, each in list(found.items())[:_MOST_COMPARED]
        if each.sums
    }
    charts = []
    for identity, title, values, axis in (
        ("shares", "Share of each component", drawn, "share (%)"),
        ("sums", "Cumulative share", sums, "cumulative share (%)"),
    ):
        told = "; ".join(f"{name} from {figure(row[0], 3)} to {figure(row[-1], 3)} %" for name, row in values.items())
        svg = (
            inline(identity, partial(plotting.compared, values=values, title=axis, sums=values is sums))
            if values
            else ""
        )
        charts.append(Chart(title, svg, f"Chart of the {axis.partition(' (')[0]} by component: {told}."))
    width = min(_MOST_EIGENVALUES, max(len(each.spectrum.ratios) for each in found.values()))
    rows = []
    for name, each in found.items():
        cells = [each.spectrum.share(i) for i in range(min(width, len(each.spectrum.ratios)))]
        rows.append((name, *cells, *["–"] * (width - len(cells))))
    table = ReportTable("Shares of the components", ("component", *map(str, range(1, width + 1))), tuple(rows))
    lead = "Shares are those of the total variance after preprocessing"
    others = {each.spectrum.total for each in found.values()} - {"variance"}
    lead += (
        f"; of kernel PCA, of the {' and the '.join(sorted(others))} of the kernel matrix."
        if "trace" in others
        else "."
    )
    if len(found) > _MOST_COMPARED:
        lead += f" Charts show the first {_MOST_COMPARED} models."
    return Section(
        "shares", "Explained variance", lead, (("pair", tuple(each for each in charts if each.svg)), ("card", table))
    )


def _side_by_side(found: Mapping[str, _Compared]) -> Json:
    """Return the components of all models that have some, the first of every model before the second of any."""
    drawn = [each.components for each in found.values() if each.components]
    if not drawn:
        return {}
    joined: Json = {"note": drawn[0]["note"]}
    for kind in ("charts", "pictures", "bars"):
        rows = zip_longest(*(each.get(kind, ()) for each in drawn))
        if entries := [entry for row in rows for entry in row if entry]:
            joined[kind] = entries
    return joined
