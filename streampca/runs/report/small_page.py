"""Pages about several models: the frame of a page that needs no figures from rows, and its headings, charts and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.templates import environment, helpers
from streampca.runs.report.words import clean
from streampca.storage.files import write_atomically
from streampca.typing import Json


def write_small_page(directory: Path, manifest: Json, kind: str, summary: str, body: str) -> Path:
    """Write ``report.html`` of the run in `directory`, and return its path.

    Its title is the name of the run and `kind`; `summary` and `body` are HTML, and the notes of the `manifest` follow them.
    """
    name, notes = clean(str(manifest["name"]), 120), [clean(str(note), 600) for note in manifest["notes"]]
    template = environment().get_template("small_page.html")
    html = template.render(name=name, kind=kind, summary=summary, body=body, notes=notes)
    target = directory / "report.html"
    write_atomically(target, [html.encode("utf-8")])
    return target


class Parts:
    """The parts of one page, as HTML: headings with links to themselves, and charts and tables that links save as files."""

    def __init__(self) -> None:
        self._helpers = helpers()
        self._macros: Any = environment().get_template("parts.html").make_module(self._helpers)

    def heading(self, title: str) -> str:
        """Return the heading of a section."""
        named: Any = self._helpers["named"]
        return str(self._macros.heading(named(title), title))

    def table(self, table: ReportTable, links: Mapping[str, str] | None = None) -> str:
        """Return a table that scrolls where it is wider than the page; `links` are addresses by the first cell of a row."""
        return str(self._macros.table(table, links or {}))

    def chart(self, chart: Chart) -> str:
        """Return a chart with its heading and its caption."""
        return str(self._macros.chart(chart))
