"""Anchors of a page, names in it, and what descriptions say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pages import audit, change, make_run


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a run, the text of its page, and what that consists of."""
    run = make_run(tmp_path_factory.mktemp("plain") / "run", k=5)
    return run, *audit(run)


@pytest.mark.usefixtures("charts")
def test_hostile_names_are_text(tmp_path: Path) -> None:
    nasty = ["\"'><script>alert(1)</script>&#34;%22 <!-- 漢字", "=1+1", "-x"]
    names = nasty + [f"length {i}" for i in range(9)]
    html, page = audit(make_run(tmp_path / "run", feature_names=names, samples=False))
    assert "<script" not in html
    assert {row[0] for rows in page.tables.values() for row in rows} >= set(nasty)


def test_anchors_and_skip_link(plain: Any) -> None:
    page = plain[2]
    first = next(attributes for tag, attributes in page.tags if tag == "a")
    assert (first["class"], first["href"]) == ("skip", "#main")
    assert dict(page.tags)["main"]["id"] == "main"
    headings = [attributes.get("id") for tag, attributes in page.tags if tag == "h2"]
    anchors = {attributes["href"] for tag, attributes in page.tags if attributes.get("class") == "anchor"}
    assert all(f"#{identity}" in anchors for identity in headings)


def test_the_page_is_printed_without_its_links(plain: Any) -> None:
    html = plain[1]
    printed = html[html.index("@media print") :]
    assert re.search(r"\.skip, \.anchor \{ display: none; \}", printed)


def test_charts_are_described_by_their_numbers(plain: Any) -> None:
    run, _, page = plain
    first, second, *_ = json.loads((run / "manifest.json").read_text())["result"]["explained_variance_ratio"]
    labels = [str(attributes["aria-label"]) for tag, attributes in page.tags if attributes.get("role") == "img"]
    sentence = f"The first component carries {100 * first:.1f} % of the variance"
    assert any(
        f"{sentence} and the second {100 * second:.1f} %" in label.replace("\u00a0", " ")
        or f"{sentence}, the second {100 * second:.1f} %" in label.replace("\u00a0", " ")
        for label in labels
    ), labels
    assert any(
        re.search(r"component 1 against component 2\. Scores on component 1 range from \S+ to \S+,", label)
        for label in labels
    )


def test_a_changed_name_is_in_files_as_text(tmp_path: Path) -> None:
    run = change(make_run(tmp_path / "run", samples=False), name="a & b <c>")
    html, _ = audit(run)
    assert "<c>" not in html
