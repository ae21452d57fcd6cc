"""The section of rows that do not fit, and rows that are added to the figure of rebuilt rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from pages import audit

from streampca.cli import _status
from streampca.errors import ConfigError, DataError, NotAvailableError
from streampca.runs.config import parse_config
from streampca.runs.further_rows import further_rows
from streampca.runs.many import run as carry_out
from streampca.runs.report.page import write_report
from streampca.runs.run import Run
from streampca.sources import open_source

STRAY, DOT = 1000, 24
"""A digit of the built-in ones, and a place at the left edge that is dark in nearly all of them."""


def finished_run(place: Path, rows: np.ndarray, *lines: str, shape: list[int] | None = None) -> Run:
    """Return a run with diagnostics on `rows`, which lie in x.zarr beside it."""
    array = zarr.create_array(str(place / "x.zarr"), data=rows, chunks=(300, rows.shape[1]))
    if shape is not None:
        array.attrs["feature_shape"] = shape
    output = f"output: {{directory: {place / 'run'}, diagnostics: true}}"
    return carry_out(
        parse_config("\n".join([f"source: {{path: {place / 'x.zarr'}}}", output, *lines]), name="test.yaml")
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run on all digits, of which one has a white dot at the edge."""
    rows = np.array(open_source("builtin:digits").read(0, 1797)[0])
    rows[STRAY, DOT] = 16
    return finished_run(tmp_path_factory.mktemp("digits"), rows, "model: {n_components: 40}", shape=[8, 8])


@pytest.fixture
def page(digits: Run, tmp_path: Path) -> Path:
    """Return a copy of the run on digits, whose page may be changed."""
    shutil.copytree(digits.directory, tmp_path / "run")
    return tmp_path / "run"


def test_a_stray_dot_makes_its_digit_the_first_of_all(digits: Run) -> None:
    summary = digits.manifest["diagnostics"]
    assert summary is not None
    first, second = summary["unusual_rows"][:2]
    assert first["row"] == STRAY
    assert first["q"] > 8 * summary["q_limit"]
    assert first["q"] > 1.2 * second["q"]
    row = open_source(digits.directory.parent / "x.zarr").read(STRAY, STRAY + 1)[0]
    assert digits.model.contributions(row).largest(1)[0][0][0] == str(DOT)  # type: ignore[union-attr]


def test_the_page_names_and_rebuilds_the_rows_that_fit_least(page: Path) -> None:
    html, audited = audit(page)
    section = html[html.index("Rows that do not fit") :]
    assert section.index("row 1,000") < section.index("row 1,572")
    assert 'alt="row 1,000, original"' in section
    assert section.count(", original") == 20
    assert "are beyond the limit of Q" in audited.text
    assert write_report(page).read_text(encoding="utf-8") == html


def test_rows_that_are_asked_for_are_added_to_the_rebuilt_ones(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _status(["report", str(page), "--row", "1234", "--row", "5"]) == 0
    figure = (page / "report.html").read_text(encoding="utf-8")
    figure = figure[figure.index("Rebuilt from a few numbers") : figure.index("Rows that do not fit")]
    assert figure.count(", original") == 8
    assert figure.index("row 1,234, original") < figure.index("row 5, original")
    assert _status(["report", str(page), "--row", "1797"]) == 2
    assert "from 0 to 1796" in capsys.readouterr().err


def test_rows_of_a_changed_source_are_refused(page: Path) -> None:
    text = (page / "config.yaml").read_text()
    other = page.parent / "other.zarr"
    zarr.create_array(str(other), data=np.zeros((1797, 64)), chunks=(300, 64))
    (page / "config.yaml").write_text(text.replace(text.split("path: ")[1].splitlines()[0], str(other)))
    with pytest.raises(DataError, match="is not what the run"):
        further_rows(page, [3])


def test_tables_name_the_feature_of_the_largest_residual(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((700, 3)) @ random.standard_normal((3, 20)) + 0.5 * random.standard_normal((700, 20))
    rows[77, 5] += 9
    rows[78] = np.nan
    run = finished_run(tmp_path, rows, "model: {n_components: 3}", "preprocess: {missing: drop_rows}")
    html = write_report(run.directory).read_text(encoding="utf-8")
    table = html[html.index("The most unusual rows") :]
    assert table.index("row 77") < table.index("feature 5 (")
    assert "All 699 rows" not in html  # one has no T² and Q
    assert further_rows(run.directory, []) is None
    with pytest.raises(ConfigError, match="--row -1"):
        further_rows(run.directory, [-1])


def test_a_page_without_rebuilt_rows_refuses_further_ones(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((60, 5))
    removed = "preprocess: {remove: {trend: 1}}"
    run = finished_run(tmp_path, rows, "model: {n_components: 2}", removed)
    assert "Rows that do not fit" in audit(run.directory)[0]
    with pytest.raises(NotAvailableError, match="no rows that are rebuilt"):
        write_report(run.directory, further_rows(run.directory, [3]))
