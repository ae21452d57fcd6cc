"""Figures as SVG files and tables as CSV files, as ``data:`` addresses of links that save them; nothing runs in the page."""

from __future__ import annotations

import csv
import io
import re
from functools import cache
from html import escape
from importlib.resources import files

from markupsafe import Markup

from streampca.formatting import plain_cell
from streampca.runs.report.parts import Chart, ReportTable

_FONT = "system-ui, Helvetica, Arial, sans-serif"
_UNSAFE = re.compile(r"[%#&\"<>\n\r:(]")


class Names:
    """Names for anchors and files that follow from titles, each given once."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def __call__(self, title: str) -> str:
        """Return a name for `title`, with a number where an earlier title had the same."""
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "figure"
        self._given[name] = count = self._given.get(name, 0) + 1
        return f"at-{name}" if count == 1 else f"at-{name}-{count}"


def svg_address(chart: Chart) -> Markup:
    """Return the address of `chart` as a file: with title and description, the light colours of the page, and a background."""
    box, colours = re.search(r'viewBox="([^"]*)"', chart.svg), _colours()
    if box is None:
        return Markup()
    inner = chart.svg[chart.svg.index(">") + 1 : chart.svg.rindex("</svg>")]
    inner = re.sub(r"var\(--([a-z0-9-]+)\)", lambda match: colours[match.group(1)], inner)
    x, y, width, height = box.group(1).split()
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box.group(1)}" width="{width}" height="{height}" '
        f'font-family="{_FONT}" role="img"><title>{escape(chart.title)}</title><desc>{escape(chart.alt)}</desc>'
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colours["card"]}"/>{inner}</svg>'
    ).replace('"', "'")  # shorter in an address; apostrophes of texts are entities
    return _address("image/svg+xml", text)


def csv_address(table: ReportTable) -> Markup:
    """Return the address of `table` as a file, with the cells as they are shown."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in (table.heads, *table.rows):
        writer.writerow([_cell(text) for text in row])
    return _address("text/csv", buffer.getvalue())


def _cell(text: str) -> str:
    """Return the text of a cell with plain spaces and minus signs; a text that a spreadsheet would compute begins with an apostrophe."""
    plain = re.sub(r"[\u00a0\u2009\u202f]", " ", text).replace("\u2212", "-")
    return plain_cell(plain)


def _address(kind: str, text: str) -> Markup:
    """Return the address of a file of `text`, which can stand between double quotes as it is."""
    encoded = _UNSAFE.sub(lambda match: f"%{ord(match.group()):02X}", text)
    return Markup(f"data:{kind};charset=utf-8,{encoded}")  # noqa: S704 what would end the attribute is encoded


@cache
def _colours() -> dict[str, str]:
    """Return the light colours of the page by name."""
    style = files("streampca.runs.report").joinpath("page.css").read_text(encoding="utf-8")
    light = style[style.index(":root") : style.index("}")]
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", light))
