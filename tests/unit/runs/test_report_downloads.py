"""Figures and tables of a page as files, anchors, and what descriptions say."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from pages import audit, change, make_run

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


def test_files_of_hostile_names_are_text(tmp_path: Path) -> None:
    nasty = ["\"'><script>alert(1)</script>&#34;%22 <!-- 漢字", "=1+1", "-x", "+2+a", "-1e-3"]
    names = nasty + [f"length {i}" for i in range(7)]
    _, page = audit(make_run(tmp_path / "run", feature_names=names))
    saved = [str(attributes["href"]) for tag, attributes in page.tags if tag == "a" and "download" in attributes]
    assert all(not set('"<>#\n') & set(address) for address in saved)
    texts = [file_of(address) for address in saved]
    charts = [ElementTree.fromstring(text) for text in texts if text.startswith("<svg")]
    assert any(nasty[0] in "".join(root.itertext()) for root in charts)
    cells = {row[0] for text in texts if text[:4] != "<svg" for row in csv.reader(io.StringIO(text))}
    assert {nasty[0], "'=1+1", "'-x", "'+2+a", "-1e-3"} <= cells


def test_anchors_and_skip_link(tmp_path: Path) -> None:
    _, page = audit(make_run(tmp_path / "run"))
    first = next(attributes for tag, attributes in page.tags if tag == "a")
    assert (first["class"], first["href"]) == ("skip", "#main")
    assert dict(page.tags)["main"]["id"] == "main"
    headings = [attributes.get("id") for tag, attributes in page.tags if tag == "h2"]
    anchors = {attributes["href"] for tag, attributes in page.tags if attributes.get("class") == "anchor"}
    assert all(f"#{identity}" in anchors for identity in headings)


def test_the_page_is_printed_without_its_links(tmp_path: Path) -> None:
    html, _ = audit(make_run(tmp_path / "run"))
    printed = html[html.index("@media print") :]
    assert re.search(r"\.skip, \.anchor, \.save \{ display: none; \}", printed)


def test_charts_are_described_by_their_numbers(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", k=5)
    _, page = audit(run)
    first, second, *_ = json.loads((run / "manifest.json").read_text())["result"]["explained_variance_ratio"]
    labels = [str(attributes["aria-label"]) for tag, attributes in page.tags if attributes.get("role") == "img"]
    sentence = f"The first component carries {100 * first:.1f} % of the variance"
    assert any(
        f"{sentence} and the second {100 * second:.1f} %" in label.replace("\u00a0", " ")
        or f"{sentence}, the second {100 * second:.1f} %" in label.replace("\u00a0", " ")
        for label in labels
    ), labels
    assert any(re.search(r"axis 1 against axis 2\. On axis 1 they reach from \S+ to \S+,", label) for label in labels)


def test_a_changed_name_is_in_files_as_text(tmp_path: Path) -> None:
    run = change(make_run(tmp_path / "run"), name="a & b <c>")
    html, _ = audit(run)
    assert "<c>" not in html
