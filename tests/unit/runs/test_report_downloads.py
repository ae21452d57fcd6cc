"""Figures and tables of a page as files, anchors, and what descriptions say."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import audit, change, make_run

from streampca.runs.report import seen
from streampca.runs.report.downloads import Names, csv_address, svg_address
from streampca.runs.report.marks import marks_together
from streampca.runs.report.parts import Chart, ReportTable

SVG = "{http://www.w3.org/2000/svg}"


def file_of(address: str | None) -> str:
    assert address is not None
    return unquote(address.partition(",")[2])


def test_every_chart_and_table_has_a_file(tmp_path: Path) -> None:
    names = [f"length {i}" for i in range(12)]
    _, page = audit(make_run(tmp_path / "run", feature_names=names))
    saved = [attributes for tag, attributes in page.tags if tag == "a" and "download" in attributes]
    charts = [each for each in saved if str(each["download"]).endswith(".svg")]
    tables = [each for each in saved if str(each["download"]).endswith(".csv")]
    assert len(charts) == sum(tag == "svg" for tag, _ in page.tags) >= 4
    assert len(tables) >= 3
    assert len({each["download"] for each in saved}) == len(saved)
    for chart in charts:
        root = ElementTree.fromstring(file_of(chart["href"]))
        assert root.tag == f"{SVG}svg"
        assert "var(" not in file_of(chart["href"])
        assert all(root.findtext(f"{SVG}{name}") for name in ("title", "desc"))
        targets = {element.get("id") for element in root.iter()}
        assert {str(use.get("href"))[1:] for use in root.iter(f"{SVG}use")} <= targets
    for table in tables:
        rows = list(csv.reader(io.StringIO(file_of(table["href"]))))
        assert len({len(row) for row in rows}) == 1
        shown = re.sub(r"[\u00a0\u2009\u202f]", " ", page.text).replace("\u2212", "-")
        assert [cell for row in rows for cell in row if cell not in shown] == []


def test_files_of_hostile_names_are_text() -> None:
    nasty = "\"'><script>alert(1)</script>&#34;%22 <!-- 漢字"
    address = svg_address(Chart(nasty, '<svg viewBox="0 0 1 1"><text>a</text></svg>', nasty))
    assert not set('"<>#\n') & set(address)
    root = ElementTree.fromstring(file_of(address))
    assert (root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")) == (nasty, nasty)
    address = csv_address(
        ReportTable(
            "t", ("name", "value"), ((nasty, "1"), ("=1+1", "\u22125\u00a0%"), ("-x", "+2.5"), ("+2+a", "-1e-3"))
        )
    )
    assert not set('"<>#\n') & set(address)
    rows = list(csv.reader(io.StringIO(file_of(address))))
    assert rows == [["name", "value"], [nasty, "1"], ["'=1+1", "-5 %"], ["'-x", "+2.5"], ["'+2+a", "-1e-3"]]


def test_anchors_and_skip_link(tmp_path: Path) -> None:
    _, page = audit(make_run(tmp_path / "run"))
    first = next(attributes for tag, attributes in page.tags if tag == "a")
    assert (first["class"], first["href"]) == ("skip", "#main")
    assert dict(page.tags)["main"]["id"] == "main"
    headings = [attributes.get("id") for tag, attributes in page.tags if tag == "h2"]
    anchors = {attributes["href"] for tag, attributes in page.tags if attributes.get("class") == "anchor"}
    assert all(f"#{identity}" in anchors for identity in headings)
    names = Names()
    assert [names("Share, Ω 1"), names("share 1"), names("Ω")] == ["at-share-1", "at-share-1-2", "at-figure"]


def test_the_page_is_printed_without_its_links() -> None:
    style = (Path(seen.__file__).parent / "page.css").read_text()
    printed = style[style.index("@media print") :]
    assert re.search(r"\.skip, \.anchor, \.save \{ display: none; \}", printed)


def test_charts_are_described_by_their_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", k=5)
    _, page = audit(run)
    ratios = json.loads((run / "manifest.json").read_text())["result"]["explained_variance_ratio"]
    labels = [str(attributes["aria-label"]) for tag, attributes in page.tags if attributes.get("role") == "img"]
    sentence = seen.shares_of_components(np.array(ratios))
    assert sentence.startswith("The first component carries ")
    assert any(sentence in label for label in labels)
    assert any(re.search(r"axis 1 against axis 2\. On axis 1 they reach from \S+ to \S+,", label) for label in labels)


def test_descriptions_say_what_one_would_read_off() -> None:
    assert seen.shares_of_components(np.array([0.41, 0.18])) == (
        "The first component carries 41.0\u00a0% of the variance and the second 18.0\u00a0%."
    )
    assert seen.sums_of_components(np.array([0.5, 0.25, 0.125])) == "The first 2 carry 75.0\u00a0%."
    points = np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 4.0], [3.0, 6.0], [4.0, 8.0]])
    assert seen.spread_of_points(points, [1, 2]) == (
        "On axis 1 they reach from 0 to 4.0, the middle half from 1.0 to 3.0; "
        "on axis 2 they reach from 0 to 8.0, the middle half from 2.0 to 6.0."
    )
    assert seen.centres_of_classes(points, np.array([0, 0, -1, 1, 1]), ["a", "b"]) == (
        "Centres of classes: a at 0.50 and 1.0, b at 3.5 and 7.0."
    )
    arrows = np.array([[1.0, 0.0], [0.0, -3.0], [-2.0, 2.0]])
    assert (
        seen.directions_of_arrows(arrows, ["x", "y", "z"])
        == "The longest arrows point: y down, z left and up, x right."
    )


@pytest.mark.parametrize("clip", ["", 'clip-path="url(#c1)"'])
def test_marks_in_groups_are_the_same_marks(clip: str) -> None:
    styles = ["fill: red", "fill: red", "fill: blue", "fill: red"]
    marks = [f'<use href="#dot-of-this" x="{i}.26" y="{i}.04" style="{style}"/>' for i, style in enumerate(styles)]
    if clip:
        marks = [f"<g {clip}> {mark} </g>" for mark in marks]
    svg = f'<svg viewBox="0 0 9 9"><defs><path id="dot-of-this" d="M 0 0"/><g id="c1"/></defs><g> {" ".join(marks)} </g></svg>'
    short = marks_together(svg)
    assert len(short) < len(svg)
    root = ElementTree.fromstring(short)
    above = {child: parent for parent in root.iter() for child in parent}
    found = []
    for use in root.iter("use"):
        style, clipped, node = None, False, use
        while node in above:
            node = above[node]
            style, clipped = style or node.get("style"), clipped or node.get("clip-path") is not None
        found.append((use.get("x"), use.get("y"), style, clipped))
    assert found == [(f"{i}.3", f"{i}", style, bool(clip)) for i, style in enumerate(styles)]
    assert {use.get("href") for use in root.iter("use")} == {f"#{root.find('defs/path').get('id')}"}  # type: ignore[union-attr]


def test_marks_whose_group_would_look_different_stay() -> None:
    mark = '<use href="#a" x="1" y="1" style="opacity: 0.5"/>'
    svg = f'<svg><path id="a" d="M 0 0"/>{mark} {mark}</svg>'
    assert marks_together(svg).count('style="opacity: 0.5"') == 2


def test_a_changed_name_is_in_files_as_text(tmp_path: Path) -> None:
    run = change(make_run(tmp_path / "run"), name="a & b <c>")
    html, _ = audit(run)
    assert "<c>" not in html
