"""Pages about several models: the frame of a page that needs no figures from rows, and tables."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

from streampca.runs.report.downloads import Names, csv_address, svg_address
from streampca.runs.report.parts import Chart, ReportTable
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
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name} · {kind}</title>
<style>
{style}
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<main id="main" tabindex="-1">
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


class Parts:
    """The parts of one page, as HTML: headings with links to themselves, and charts and tables that links save as files."""

    def __init__(self) -> None:
        self._named = Names()

    def heading(self, title: str) -> str:
        """Return the heading of a section."""
        return f"<h2{self._linked(self._named(title), title, 'the section ')}</h2>"

    def table(self, table: ReportTable, links: Mapping[str, str] | None = None) -> str:
        """Return a table that scrolls where it is wider than the page; `links` are addresses by the first cell of a row."""
        links, name = links or {}, escape(table.caption)
        top = "".join(f'<th scope="col">{escape(head)}</th>' for head in table.heads)
        rows = []
        for first, *others in table.rows:
            head = f'<a href="{escape(links[first])}">{escape(first)}</a>' if first in links else escape(first)
            rows.append(f'<tr><th scope="row">{head}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in others)}</tr>')
        body = "\n".join(rows)
        return f"""{self._titled(table.caption, csv_address(table), "CSV")}
<div class="scroll" tabindex="0" role="region" aria-label="{name}">
<table aria-label="{name}">
<thead><tr>{top}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</div>"""

    def chart(self, chart: Chart) -> str:
        """Return a chart with its heading and its caption."""
        return f"""<figure class="card chart">
{self._titled(chart.title, svg_address(chart), "SVG")}
{chart.svg}
<figcaption>{escape(chart.caption)}</figcaption>
</figure>"""

    def _titled(self, title: str, address: str, kind: str) -> str:
        """Return the title of a chart or table, with the link that saves it."""
        identity = self._named(title)
        save = (
            f'download="{identity[3:]}.{kind.lower()}" href="{address}" aria-label="Save “{escape(title)}” as {kind}"'
        )
        return f'<div class="head"><h3{self._linked(identity, title)}</h3><a class="save" {save}>{kind}</a></div>'

    @staticmethod
    def _linked(identity: str, title: str, what: str = "") -> str:
        """Return the rest of an element that begins a heading: its name, its text and a link to it."""
        label = f"Link to {what}“{escape(title)}”"
        return f' id="{identity}">{escape(title)}<a class="anchor" href="#{identity}" aria-label="{label}">#</a>'
