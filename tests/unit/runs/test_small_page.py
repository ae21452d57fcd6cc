"""Pages of runs of several models and of groups: anchors, the skip link, and charts and tables as files."""

from __future__ import annotations

import csv
import io
import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.small_page import Parts, write_small_page

NASTY = "\"'><script>alert(1)</script>&amp;"


def page_of(directory: Path) -> str:
    """Return a page with a chart and two tables of the same title."""
    parts = Parts()
    chart = Chart("Map", '<svg viewBox="0 0 2 2"><rect fill="var(--accent)"/></svg>', NASTY, NASTY)
    table = ReportTable("Models", ("model", NASTY), (("a", "1"), (NASTY, "2")))
    body = (
        parts.heading(NASTY)
        + parts.chart(chart)
        + parts.table(table, {"a": "models/a/report.html"})
        + parts.table(table)
    )
    path = write_small_page(directory, {"name": "run", "notes": [NASTY]}, "models", "two models", body)
    return path.read_text()


def test_charts_and_tables_are_saved_as_files_with_names_of_their_own(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    links = re.findall(r'<a class="save" download="([^"]*)" href="([^"]*)"', page)
    assert [name for name, _ in links] == ["map.svg", "models.csv", "models-2.csv"]
    texts = [unquote(address.partition(",")[2]) for _, address in links]
    root = ElementTree.fromstring(texts[0])
    assert root.findtext("{http://www.w3.org/2000/svg}desc") == NASTY
    assert "var(" not in texts[0]
    assert list(csv.reader(io.StringIO(texts[1]))) == [["model", NASTY], ["a", "1"], [NASTY, "2"]]


def test_headings_have_anchors_and_the_page_a_skip_link(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert page.index('<a class="skip" href="#main">') < page.index('<main id="main" tabindex="-1">')
    headings = re.findall(r'<h[23] id="([^"]*)">([^<]*)<a class="anchor" href="#([^"]*)"', page)
    assert [unescape(text) for _, text, _ in headings] == [NASTY, "Map", "Models", "Models"]
    assert all(identity == target for identity, _, target in headings)
    assert len({identity for identity, _, _ in headings}) == len(headings)


def test_texts_are_escaped_and_rows_linked(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert "<script" not in page
    assert page.count('<th scope="row"><a href="models/a/report.html">a</a></th>') == 1
    assert page.count('<th scope="row">a</th>') == 1
