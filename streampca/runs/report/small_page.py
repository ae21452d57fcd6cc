"""Pages about several models: the frame of a page that needs no figures from rows, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from streampca.runs.report.words import clean
from streampca.storage.files import write_atomically
from streampca.typing import Json


def write_small_page(directory: Path, manifest: Json, kind: str, summary: str, body: str) -> Path:
    """Write ``report.html`` of the run in `directory`, and return its path.

    Its title is the name of the run and `kind`; `summary` and `body` are HTML, and the notes of the `manifest` follow them.
    """
    style = files("streampca.runs.report").joinpath("page.css").read_text(encoding="utf-8")
    name = escape(clean(str(manifest["name"]), 120))
    notes = "".join(f"<li>{escape(clean(str(note), 600))}</li>" for note in manifest["notes"])
    html = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name} · {kind}</title>
<style>
{style}
</style>
</head>
<body>
<main>
<h1>{name}</h1>
<p class="summary">{summary}</p>
{body}
<section><ul>{notes}</ul></section>
</main>
</body>
</html>
"""
    target = directory / "report.html"
    write_atomically(target, [html.encode("utf-8")])
    return target


def table(name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that scrolls where it is wider than the page; cells are HTML, and the first of a row is its head."""
    top = "".join(f'<th scope="col">{head}</th>' for head in heads)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>' for first, *rest in rows
    )
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">
<table aria-label="{escape(name)}">
<thead><tr>{top}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>"""
