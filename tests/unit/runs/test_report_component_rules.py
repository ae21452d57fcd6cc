"""The number of components by every rule, as the report shows it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from pages import audit, audit_of_run, make_run
from stores import config_text, write_store

import streampca as sp


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a run with a page, and with the rules for the number of components in its manifest."""
    place = tmp_path_factory.mktemp("rules")
    rng = np.random.default_rng(0)
    rows = 5 * rng.standard_normal((600, 3)) @ rng.standard_normal((3, 30)) + rng.standard_normal((600, 30))
    write_store(place / "x.zarr", rows, chunks=(200, 30))
    model = "model: {n_components: gavish_donoho}"
    (place / "c.yaml").write_text(config_text(place / "x.zarr", place / "run", model, output="report: true"))
    return sp.run(place / "c.yaml").directory


def rules(page: Any) -> dict[str, str]:
    """Return how many components each rule gives."""
    rows = next(rows for rows in page.tables.values() if any("parallel analysis" in row[0] for row in rows))
    return {row[0]: row[1] for row in rows[1:]}


@pytest.mark.slow
def test_report_has_the_table_and_the_scree_plot_with_the_edges(finished):
    html, page = audit_of_run(finished)
    assert rules(page) == {
        "parallel analysis": "3",
        "Marchenko–Pastur": "3",
        "Tracy–Widom": "3",
        "Gavish–Donoho": "3",
        "Minka's evidence": "3",
    }
    assert "3 components are above noise by Gavish–Donoho: " in page.text  # as the configuration asks
    assert "The run has 3. The other rules that apply agree." in page.text
    assert "Not computed: cross-validation (set n_components: cross_validation)." in page.text
    assert "Not applicable" not in page.text
    alts = [str(attributes.get("aria-label")) for _, attributes in page.tags]
    assert any(alt.startswith("Chart of the first 20 eigenvalues with the thresholds of the rules: ") for alt in alts)
    assert "Number of components above noise" in html
    assert "singular values above" in html


@pytest.mark.slow
def test_one_rule_decides_and_rules_whose_assumption_fails_are_not_applicable(tmp_path):
    rng = np.random.default_rng(0)
    deviations = np.geomspace(0.2, 2, 20)
    rows = 4 * rng.standard_normal((500, 2)) @ rng.standard_normal((2, 20))
    rows += deviations * rng.standard_normal((500, 20))
    _, page = audit(make_run(tmp_path / "run", rows=rows, k=4, samples=False))
    assert "2 components are above noise by parallel analysis: " in page.text
    assert "The run has 4." in page.text
    assert set(rules(page)) == {"parallel analysis", "Gavish–Donoho"}
    assert re.search(r"Not applicable: Marchenko–Pastur, Tracy–Widom \(noise of one variance .* 18 of 20", page.text)
    assert re.search(r"; Minka's evidence \(noise of one variance .* 17 of 20", page.text)


@pytest.mark.slow
def test_without_a_rule_that_applies_there_is_no_such_section(tmp_path):
    _, page = audit(make_run(tmp_path / "run", n=3, d=2, k=1, samples=False))
    assert "Number of components above noise" not in page.text
