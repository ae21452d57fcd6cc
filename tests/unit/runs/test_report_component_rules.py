"""The number of components by every rule, as the report shows it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from stores import config_text, write_store

import streampca as sp
from streampca.runs.report.component_rules import component_count, scree
from streampca.runs.report.run_files import read_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rules")
    rng = np.random.default_rng(0)
    rows = 5 * rng.standard_normal((600, 3)) @ rng.standard_normal((3, 30)) + rng.standard_normal((600, 30))
    write_store(directory / "x.zarr", rows, chunks=(200, 30))
    config = directory / "c.yaml"
    config.write_text(
        config_text(
            directory / "x.zarr", directory / "run", "model: {n_components: gavish_donoho}", output="report: true"
        )
    )
    return sp.run(config).directory


def test_report_has_the_table_and_the_scree_plot_with_the_edges(run):
    counted = component_count(read_run(run))
    assert counted is not None
    assert [row[:2] for row in counted.table.rows] == [
        ("parallel analysis", "3"),
        ("Marchenko–Pastur", "3"),
        ("Tracy–Widom", "3"),
        ("Gavish–Donoho", "3"),
        ("cross-validation", "–"),
        ("Minka's evidence", "3"),
    ]
    assert counted.lead == "3 components by the rules that apply; the run has 3."
    assert counted.chart is not None
    assert counted.chart.alt.startswith("Chart of the first 20 eigenvalues with the thresholds of the rules: ")
    assert counted.chart.svg.count("Tracy–Widom") == 1
    page = (run / "report.html").read_text()
    assert "How many are more than noise" in page
    assert "singular values above" in page


def test_report_of_a_manifest_without_rules_has_no_such_section(run):
    files = read_run(run)
    del files.manifest["result"]["component_rules"]
    assert component_count(files) is None


@pytest.mark.parametrize("stated", [{}, {"mle": None, "tracy_widom": {"figures": 3, "n_components": "x"}}])
def test_damaged_rules_are_shown_as_not_known(run, stated):
    files = read_run(run)
    files.manifest["result"]["component_rules"] = stated
    counted = component_count(files)
    assert counted is not None
    assert counted.chart is None
    assert {row[1] for row in counted.table.rows} == {"–"}


def test_thresholds_that_nearly_coincide_have_one_text_and_others_their_own():
    values = np.geomspace(100, 0.01, 20)
    svg = scree(values, {"first": 10.0, "second": 0.5, "third": 0.51, "none": 0.0}, 5)
    assert [svg.count(f">{title}<") for title in ("first", "third, second", "second", "none")] == [1, 1, 0, 0]


@pytest.mark.parametrize("k", [20, 121, 300])
def test_every_eigenvalue_is_a_dot_however_many_there_are(k):
    svg = scree(np.geomspace(100, 0.01, k), {"edge": 0.5}, k // 2)
    dots = re.findall(r"<use [^>]*", svg)
    assert len(dots) >= k
