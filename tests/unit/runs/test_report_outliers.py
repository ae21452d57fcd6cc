"""The section of rows that do not fit, and rows that are added to the figure of rebuilt rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pages import audit
from stores import Command

import streampca as sp

STRAY, DOT = 1000, 24
"""A digit of the built-in ones, and a place at the left edge that is dark in nearly all of them."""


def finished_run(place: Path, rows: np.ndarray, k: int, *, shape: Any = None, **sections: Any) -> Any:
    """Return a run with diagnostics on `rows`, which lie in x.zarr beside it."""
    array = zarr.create_array(str(place / "x.zarr"), data=rows, chunks=(300, rows.shape[1]))
    if shape is not None:
        array.attrs["feature_shape"] = shape
    output = {"directory": str(place / "run"), "diagnostics": True}
    config = {"source": {"path": str(place / "x.zarr")}, "model": {"n_components": k}, "output": output}
    return sp.run({**config, **sections})


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a run on all digits, of which one has a white dot at the edge."""
    rows = np.array(sp.open("builtin:digits").read(0, 1797)[0])
    rows[STRAY, DOT] = 16
    return finished_run(tmp_path_factory.mktemp("digits"), rows, 40, shape=[8, 8])


@pytest.fixture
def page(digits: Any, tmp_path: Path) -> Path:
    """Return a copy of the run on digits, whose page may be changed."""
    shutil.copytree(digits.directory, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.slow
def test_a_stray_dot_makes_its_digit_the_first_of_all(digits: Any) -> None:
    summary = digits.manifest["diagnostics"]
    assert summary is not None
    first, second = summary["unusual_rows"][:2]
    assert first["row"] == STRAY
    assert first["q"] > 8 * summary["q_limit"]
    assert first["q"] > 1.2 * second["q"]
    row = zarr.open_array(digits.directory.parent / "x.zarr", mode="r")[STRAY : STRAY + 1]
    assert digits.model.contributions(row).largest(1)[0][0][0] == str(DOT)


@pytest.mark.slow
def test_the_page_names_and_rebuilds_the_rows_that_fit_least(page: Path) -> None:
    html, audited = audit(page)
    section = html[html.index("Outliers") :]
    assert section.index("row 1,000") < section.index("row 1,572")
    assert 'alt="row 1,000, original"' in section
    assert section.count(", original") == 20
    assert "are beyond the limit of Q" in audited.text


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.mark.slow
def test_rows_that_are_asked_for_are_added_to_the_rebuilt_ones(page: Path, call: Command) -> None:
    assert call("report", page, "--row", "1234", "--row", "5").status == 0
    figure = (page / "report.html").read_text(encoding="utf-8")
    figure = figure[figure.index("Reconstruction") : figure.index("Outliers")]
    assert figure.count(", original") == 8
    assert figure.index("row 1,234, original") < figure.index("row 5, original")
    call("report", page, "--row", "1797").refused(2, "from 0 to 1796")


@pytest.mark.slow
def test_rows_of_a_changed_source_are_refused(page: Path, call: Command) -> None:
    text = (page / "config.yaml").read_text()
    other = page.parent / "other.zarr"
    zarr.create_array(str(other), data=np.zeros((1797, 64)), chunks=(300, 64))
    (page / "config.yaml").write_text(text.replace(text.split("path: ")[1].splitlines()[0], str(other)))
    call("report", page, "--row", "3").refused(5, "is not what the run")


@pytest.mark.slow
def test_tables_name_the_feature_of_the_largest_residual(tmp_path: Path, call: Command) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((700, 3)) @ random.standard_normal((3, 20)) + 0.5 * random.standard_normal((700, 20))
    rows[77, 5] += 9
    rows[78] = np.nan
    run = finished_run(tmp_path, rows, 3, preprocess={"missing": "drop_rows"})
    html = (run.directory / "report.html").read_text(encoding="utf-8")
    table = html[html.index("The most unusual rows") :]
    assert table.index("row 77") < table.index("feature 5 (")
    assert "All 699 rows" not in html  # one has no T² and Q
    call("report", run.directory, "--row", "-1").refused(2, "--row -1")


def test_a_page_without_rebuilt_rows_refuses_further_ones(tmp_path: Path, call: Command) -> None:
    rows = np.random.default_rng(0).standard_normal((60, 5))
    run = finished_run(tmp_path, rows, 2, preprocess={"remove": {"trend": 1}})
    assert "Outliers" in (run.directory / "report.html").read_text(encoding="utf-8")
    call("report", run.directory, "--row", "3").refused(2, "no rebuilt rows can be added")
