"""Pages of runs of several models: anchors, the skip link, and links to the pages of models."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import streampca as sp


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of a run of two models, whose name is as hostile as a name may be."""
    place = tmp_path_factory.mktemp("models")
    np.save(place / "x.npy", np.random.default_rng(0).standard_normal((60, 5)))
    models: Any = {"raw": {"n_components": 2}, "z": {"n_components": 3, "preprocess": {"scale": True}}}
    output = {"directory": str(place / "run")}
    run = sp.run({"source": {"path": str(place / "x.npy")}, "name": "<b>&amp;", "models": models, "output": output})
    return (run.directory / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_headings_have_anchors_and_the_page_a_skip_link(page: str) -> None:
    assert page.index('<a class="skip" href="#main">') < page.index('<main id="main" tabindex="-1">')
    headings = re.findall(r'<h[23] id="([^"]*)">([^<]*)<a class="anchor" href="#([^"]*)"', page)
    assert headings
    assert all(identity == target for identity, _, target in headings)
    assert len({identity for identity, _, _ in headings}) == len(headings)


def test_texts_are_escaped_and_rows_linked(page: str) -> None:
    assert "<b>" not in page
    assert "<script" not in page
    assert "&lt;b&gt;&amp;amp;" in page
    assert '<a href="models/raw/report.html">raw</a>' in page
