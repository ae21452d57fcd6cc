"""The pages of runs of several models and of groups of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streampca.formatting import clean, plural
from streampca.models.certificate_sentences import carried
from streampca.models.certificates import any_certificate_of
from streampca.runs.manifest import read_json
from streampca.runs.report.components import components, layout_of_run
from streampca.runs.report.figures import RISING, WIDTH, Chart, ReportTable, Section, inline, write_page
from streampca.runs.report.layouts import mesh
from streampca.runs.report.result import spectrum_of
from streampca.runs.report.run_files import RunFiles, read_model
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
        Section("components", "The components", parts=(("components", drawn),)),
        _similarity(manifest, n_groups) if n_groups > 1 else None,
    ]
    summary = f"{n_groups} groups of {samples:,} samples x {features:,} features by {by}, from one reading."
    return _written(directory, manifest, "groups", summary, sections)


def _written(directory: Path, manifest: Json, subject: str, summary: str, sections: Iterable[Section | None]) -> Path:
    """Write the page of a run with the `sections` that apply, and its notes below; return its path."""
    notes = [clean(note, 600) for note in manifest["notes"]]
    shown = [section for section in sections if section is not None]
    shown += [Section("", "", parts=(("list", notes),))] if notes else []
    page = {"name": clean(manifest["name"], 120), "subject": subject, "summary": summary, "sections": shown}
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


_HEADS_OF_MODELS = ("model", "solver", "components", "variance carried", "passes of its own", "certificate")


def write_models_report(directory: Path, runs: Mapping[str, Path]) -> Path:
    """Write ``report.html`` of the run of several models in `directory`, with `runs` by name, and return its path."""
    manifest = read_json(directory, "manifest.json")
    samples, features = manifest["source"]["shape"]
    links = {name: f"models/{name}/report.html" for name, path in runs.items() if (path / "report.html").exists()}
    rows = tuple(_row_of_model(name, path) for name, path in runs.items())
    table = ReportTable("Models of the run", _HEADS_OF_MODELS, rows, links=links)
    summary = f"{len(runs)} models of {samples:,} samples x {features:,} features from {manifest['passes']} reading(s)."
    return _written(directory, manifest, "models", summary, [Section("models", "Models", parts=(("card", table),))])


def _row_of_model(name: str, path: Path) -> tuple[str, ...]:
    """Return the cells of the model `name`, whose run is at `path`."""
    manifest, plan = read_json(path, "manifest.json"), read_json(path, "plan.json")
    certificate = any_certificate_of(manifest["certificate"])
    return (
        name,
        str(plan["solver"]),
        str(manifest["result"]["n_components"]),
        carried(certificate),
        str(manifest["passes"]),
        clean(certificate.statement, 300),
    )
