"""The page of a run of groups: what each model carries, and how similar the subspaces of the groups are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from streampca.runs.manifest import read_json
from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.small_page import Parts, write_small_page
from streampca.runs.report.words import clean
from streampca.runs.summary import carried
from streampca.typing import Json

_MOST_SHOWN = 40
"""Groups that tables and picture have; the manifest has all."""
_MOST_EIGENVALUES = 10
"""Eigenvalues of each group that the table has."""
_CELL, _GAP, _LETTER = 26, 2, 7.2  # of the picture, in units of its own
_HEADS = ("group", "samples", "components", "variance carried", "first eigenvalue", "total variance")


def write_groups_report(directory: Path) -> Path:
    """Write ``report.html`` of the run of groups in `directory`, and return its path."""
    manifest = read_json(directory, "manifest.json")
    entries = list(manifest["models"].values())
    n_groups = len(manifest["similarity"]["largest_angle"])
    samples, features = manifest["source"]["shape"]
    by = escape(clean(str(manifest["group_by"]), 120))
    summary = f"{n_groups} groups of {samples:,} samples x {features:,} features by {by}, from one reading."
    parts = Parts()
    shown = [*entries[: min(n_groups, _MOST_SHOWN)], *entries[n_groups:]]
    models = ReportTable("Models of the groups", _HEADS, _rows(shown))
    body = f"""<section>
{parts.heading("Models")}
<p class="lead">Each group has the covariance of its rows about their mean. “pooled” is the covariance within groups, “between” that of the
group means.</p>
<div class="card">{parts.table(models)}</div>
<div class="card">{parts.table(_eigenvalues(shown))}</div>
{_warnings(shown)}</section>
{_similarity(manifest, n_groups, parts)}"""
    return write_small_page(directory, manifest, "groups", summary, body)


def _rows(shown: Sequence[Json]) -> tuple[tuple[str, ...], ...]:
    """Return the cells of each model: of the first groups, then within and between groups."""
    return tuple(
        (
            clean(str(entry["label"]), 60),
            f"{entry['n_samples']:,}",
            f"{entry['result']['n_components']:,}",
            carried(entry["certificate"]),
            f"{entry['result']['explained_variance'][0]:.4g}",
            f"{entry['result']['total_variance']:.4g}",
        )
        for entry in shown
    )


def _eigenvalues(shown: Sequence[Json]) -> ReportTable:
    """Return the table of the first eigenvalues of each model, with their shares of the variance of its rows."""
    found = [(clean(str(entry["label"]), 60), entry["result"]) for entry in shown]
    width = min(_MOST_EIGENVALUES, max(len(result["explained_variance"]) for _, result in found))
    rows = []
    for name, result in found:
        pairs = zip(result["explained_variance"][:width], result["explained_variance_ratio"], strict=False)
        cells = [f"{value:.4g} ({share:.1%})" for value, share in pairs]
        rows.append((name, *cells, *["–"] * (width - len(cells))))
    return ReportTable(
        "Eigenvalues and their shares of the variance", ("group", *map(str, range(1, width + 1))), tuple(rows)
    )


def _warnings(shown: Sequence[Json]) -> str:
    """Return the warnings of the models as a list, empty where there are none."""
    told = [
        f"{clean(str(entry['label']), 60)}: {clean(str(words), 600)}" for entry in shown for words in entry["warnings"]
    ]
    items = "".join(f"<li>{escape(words)}</li>" for words in told)
    return f'<div class="warnings"><h2>Warnings</h2><ul>{items}</ul></div>\n' if told else ""


def _similarity(manifest: Json, n_groups: int, parts: Parts) -> str:
    """Return the section on the similarity of the subspaces, empty for one group."""
    if n_groups < 2:
        return ""
    m = min(n_groups, _MOST_SHOWN)
    names = [clean(str(entry["label"]), 60) for entry in list(manifest["models"].values())[:m]]
    similar = [row[:m] for row in manifest["similarity"]["mean_squared_cosine"][:m]]
    angles = [[math.degrees(angle) for angle in row[:m]] for row in manifest["similarity"]["largest_angle"][:m]]
    low, i, j = min((similar[i][j], i, j) for i in range(m) for j in range(i))
    high, p, q = max((similar[i][j], i, j) for i in range(m) for j in range(i))
    pairs = (
        f"Most similar: {names[q]} and {names[p]} ({high:.3f}). Least similar: {names[j]} and {names[i]} ({low:.3f})."
    )
    more = f" The first {m} of {n_groups:,} groups are shown; the manifest has all." if m < n_groups else ""
    picture = Chart(
        "Map of the similarity",
        _picture(names, similar, pairs),
        f"Map of the similarity of {m} groups. {pairs}",
        "The stronger the colour, the more similar.",
    )
    return f"""<section>
{parts.heading("Similarity of the subspaces")}
<p class="lead">The mean squared cosine of the principal angles between the components of two groups: 1 for the same subspace, 0 for
orthogonal ones. {escape(pairs)}{more}</p>
{parts.chart(picture)}
<div class="card">{parts.table(_square("Mean squared cosine", names, similar, 3))}</div>
<div class="card">{parts.table(_square("Largest principal angle in degrees", names, angles, 1))}</div>
</section>"""


def _square(caption: str, names: Sequence[str], values: Sequence[Sequence[float]], digits: int) -> ReportTable:
    """Return the table of a figure of every pair of groups."""
    rows = tuple((name, *(f"{value:.{digits}f}" for value in row)) for name, row in zip(names, values, strict=True))
    return ReportTable(caption, ("group", *names), rows)


def _picture(names: Sequence[str], values: Sequence[Sequence[float]], alt: str) -> str:
    """Return a map of a symmetric table of values from 0 to 1, with the names of its rows and columns."""
    m, short = len(names), [name if len(name) <= 16 else f"{name[:15]}…" for name in names]
    side = round(_LETTER * max(map(len, short)) + 12)
    width, marks = side + m * _CELL, []
    for i, name in enumerate(short):
        middle = side + i * _CELL + _CELL / 2
        text = f'fill="var(--muted)" font-size="12">{escape(name)}</text>'
        marks.append(f'<text x="{side - 8}" y="{middle + 4:g}" text-anchor="end" {text}')
        marks.append(f'<text transform="translate({middle + 4:g} {side - 8}) rotate(-90)" {text}')
        for j, value in enumerate(values[i]):
            x, y, size = side + j * _CELL, side + i * _CELL, _CELL - _GAP
            opacity = 0.06 + 0.94 * min(1.0, max(0.0, value))
            title = f"<title>{escape(names[i])}, {escape(names[j])}: {value:.3f}</title>"
            marks.append(
                f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="3" fill="var(--accent)" fill-opacity="{opacity:.3f}">{title}</rect>'
            )
    label = escape(f"Map of the similarity of {m} groups. {alt}")
    style = f"max-width: {max(width, 240) * 1.3:.0f}px; margin-inline: auto"
    return f'<svg viewBox="0 0 {width} {width}" role="img" aria-label="{label}" style="{style}">{"".join(marks)}</svg>'
