"""The page of a run of groups: what each model carries, and how similar the subspaces of the groups are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from streampca.runs.manifest import read_json
from streampca.runs.report.words import clean
from streampca.runs.summary import carried
from streampca.storage.files import write_atomically
from streampca.typing import Json

_MOST_SHOWN = 40
"""Groups that tables and picture have; the manifest has all."""
_CELL, _GAP, _LETTER = 26, 2, 7.2  # of the picture, in units of its own
_HEADS = ("group", "samples", "components", "variance carried", "first eigenvalue", "total variance")


def write_groups_report(directory: Path) -> Path:
    """Write ``report.html`` of the run of groups in `directory`, and return its path."""
    manifest = read_json(directory, "manifest.json")
    style = files("streampca.runs.report").joinpath("page.css").read_text(encoding="utf-8")
    name = escape(clean(str(manifest["name"]), 120))
    entries = list(manifest["models"].values())
    n_groups = len(manifest["similarity"]["largest_angle"])
    samples, features = manifest["source"]["shape"]
    by = escape(clean(str(manifest["group_by"]), 120))
    notes = "".join(f"<li>{escape(clean(str(note), 600))}</li>" for note in manifest["notes"])
    html = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name} · groups</title>
<style>
{style}
</style>
</head>
<body>
<main>
<h1>{name}</h1>
<p class="summary">{n_groups} groups of {samples:,} samples x {features:,} features by {by}, from one reading.</p>
<section>
<h2>Models</h2>
<p class="lead">Each group has the covariance of its rows about their mean. “pooled” is the covariance within groups, “between” that of the
group means.</p>
{_table("Models", _HEADS, _rows(entries, n_groups))}
</section>
{_similarity(manifest, n_groups)}
<section><ul>{notes}</ul></section>
</main>
</body>
</html>
"""
    target = directory / "report.html"
    write_atomically(target, [html.encode("utf-8")])
    return target


def _rows(entries: Sequence[Json], n_groups: int) -> list[tuple[str, ...]]:
    """Return the cells of each model: of the first groups, then within and between groups."""
    shown = [*entries[: min(n_groups, _MOST_SHOWN)], *entries[n_groups:]]
    return [
        (
            clean(str(entry["label"]), 60),
            f"{entry['n_samples']:,}",
            f"{entry['result']['n_components']:,}",
            carried(entry["certificate"]),
            f"{entry['result']['explained_variance'][0]:.4g}",
            f"{entry['result']['total_variance']:.4g}",
        )
        for entry in shown
    ]


def _similarity(manifest: Json, n_groups: int) -> str:
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
    heads = ("group", *names)
    return f"""<section>
<h2>Similarity of the subspaces</h2>
<p class="lead">The mean squared cosine of the principal angles between the components of two groups: 1 for the same subspace, 0 for
orthogonal ones. {escape(pairs)}{more}</p>
<figure class="card chart">
{_picture(names, similar, pairs)}
<figcaption>The stronger the colour, the more similar.</figcaption>
</figure>
<div class="card"><h3>Mean squared cosine</h3>
{_table("Mean squared cosine", heads, [(name, *(f"{v:.3f}" for v in row)) for name, row in zip(names, similar, strict=True)])}
</div>
<div class="card"><h3>Largest principal angle in degrees</h3>
{_table("Largest principal angle", heads, [(name, *(f"{v:.1f}" for v in row)) for name, row in zip(names, angles, strict=True)])}
</div>
</section>"""


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


def _table(name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that scrolls where it is wider than the page; the first cell of a row is its head."""
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "\n".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">
<table aria-label="{escape(name)}">
<thead><tr>{top}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>"""
