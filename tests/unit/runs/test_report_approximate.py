"""The page of an approximate answer: what is bounded is drawn and said, what is not is not made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import charts_drawn
from pages import audit, certificate, certify, change, make_run, marks_of, written

import streampca as sp
from streampca.errors import ModelError

SIZES = {"columns": 20, "held_out": 20, "passes": 4, "pilot_rows": 500, "pilot_bytes": 2**20, "tolerance": 0.05}


def approximate_run(directory: Path, k: int = 5, sizes: Any = SIZES, **changes: Any) -> Path:
    run = certify(make_run(directory / "run", k=k, samples=False), certificate(k, **changes))
    return change(run, approximation=sizes, passes=2)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """Return the page of a run with the certificate above, and what it consists of."""
    with charts_drawn():
        return audit(approximate_run(tmp_path_factory.mktemp("approximate")))


@pytest.mark.slow
def test_what_is_proven_and_what_is_statistical_is_told_apart(page: Any) -> None:
    text = page[1].text.replace("\u00a0", " ")
    proven = text[text.index("Proven") : text.index("Statistical")]
    statistical = text[text.index("Statistical") :]
    assert "No eigenvalue of the data lies below its interval" in proven
    assert "does not hold is 15.0 % of the total" in proven
    assert "carry at least 80.0 % of the variance" in proven
    assert "hold together with a probability of at least 99.99%" in text[: text.index("Proven")]
    assert "at most 81.0 % of the variance" in statistical
    assert "carry at least 80.0 % of the variance of 300 samples" in text
    assert "each eigenvalue is at most 5.0 %, and 3 of the 5 components are separated" in text
    assert "At most 20.0 % of the variance lies outside" in text


@pytest.mark.slow
def test_tolerance_pilot_span_and_directions_are_told(page: Any) -> None:
    text = " ".join(page[1].text.replace("\u00a0", " ").split())
    assert "The tolerance was 5.0 %." in text
    assert "500 samples were read before the first pass." in text
    assert "at most 4 for the fit" in text
    assert text.count("0.57° (span of 4–5)") == 2
    assert "The subspace of all components is at most 30° from the exact one." in text


@pytest.mark.slow
def test_every_component_has_its_interval_and_its_angle(page: Any, tmp_path: Path) -> None:
    rows = page[1].tables["Eigenvalues and their bounds"]
    assert [cell.strip() for cell in rows[0]] == [
        "component",
        "eigenvalue",
        "lower bound",
        "upper bound",
        "proven upper bound",
        "relative error",
        "angle",
    ]
    expected = certificate(5)["eigenvalue_intervals"]
    np.testing.assert_allclose([[float(cell) for cell in row[2:4]] for row in rows[1:]], expected, rtol=1e-4)
    assert rows[1][6] == "0.057°"  # the arc sine of 0.001
    charts = marks_of(page[0])
    assert len(charts["Relative error of each eigenvalue, at most"]) == 5
    assert len(charts["Angle to the exact component, at most"]) >= 3
    rows = audit(approximate_run(tmp_path, 12, residual_bounds=[0.5] * 12))[1].tables["Eigenvalues and their bounds"]
    assert len(rows) == 13
    assert rows[1][7] == "0.500"


@pytest.mark.slow
def test_numbers_of_components_are_ranges_where_the_table_has_ranges(page: Any, tmp_path: Path) -> None:
    text = " ".join(page[1].text.replace("\u00a0", " ").split())
    assert "Reaches 90 % with 2 to 3, 95 % with 3 or more, 99 % with 4 or more." in text
    uncertified = {"components_for": {share: [1, None] for share in ("0.9", "0.95", "0.99")}}
    assert "Reaches" not in audit(approximate_run(tmp_path, **uncertified))[1].text


@pytest.mark.slow
def test_an_exact_run_has_no_such_section(tmp_path: Path) -> None:
    _, page = audit(make_run(tmp_path / "run", samples=False))
    assert "Accuracy of the approximation" not in page.text


@pytest.mark.slow
def test_without_a_certificate_nothing_is_called_proven(tmp_path: Path) -> None:
    nothing = {
        "eigenvalue_intervals": None,
        "proven_upper_bounds": None,
        "component_errors": [None] * 5,
        "angle_bounds": [None] * 5,
        "largest_relative_width": None,
        "nuclear_error": None,
        "sigma": None,
        "subspace_angle_bound": None,
        "unresolved_clusters": [],
        "eigen_residual": None,
        "relative_residual_interval": [0.0, 1.0],
    }
    _, page = audit(approximate_run(tmp_path, **nothing))
    text = page.text.replace("\u00a0", " ")
    assert "no bound of its error is known" in text
    assert "carry about 80.0 % of the variance" in text
    for word in ("Proven", "Statistical", "at least 80", "lies outside", "separated"):
        assert word not in text


@pytest.mark.slow
def test_the_conversion_has_no_directions_and_no_proven_sums(tmp_path: Path) -> None:
    _, page = audit(
        approximate_run(
            tmp_path, eigen_solver="conversion", angle_bounds=[None] * 5, unresolved_clusters=[[0, 4, None]]
        )
    )
    assert "no bound of their angles is known" in page.text
    assert "separated" not in page.text
    assert "possible" not in page.text


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(
    ("k", "sizes"), [(1, SIZES), (2, None), (12, {}), (2, {"tolerance": None, "pilot_rows": 0, "passes": 1})]
)
@pytest.mark.usefixtures("charts")
def test_every_number_of_components_has_a_page(tmp_path: Path, k: int, sizes: Any) -> None:
    run = approximate_run(tmp_path, k, sizes)
    html, page = audit(run)
    assert "Accuracy of the approximation" in page.text
    assert k > 1 or written(run) == html


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("text", "unresolved_clusters"),
        (1e400, "component_errors"),
        (True, "components_for"),
        (["x", None], "angle_bounds"),
        ({"0.9": "x"}, "components_for"),
        (10**400, "sigma"),
        ([[None, 1]], "eigenvalue_intervals"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_damaged_certificate_is_an_error_that_names_the_entry(tmp_path: Path, value: Any, name: str) -> None:
    run = approximate_run(tmp_path)
    audit(change(run, approximation=value))
    with pytest.raises(ModelError, match=f"certificate is damaged: {name} is"):
        sp.load(certify(run, {name: value}) / "model.zarr")


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_clusters_in_the_wrong_order_have_a_page(tmp_path: Path) -> None:
    audit(approximate_run(tmp_path, unresolved_clusters=[[2, 1, None]]))


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_charts_hatch_what_is_not_told_apart(page: Any, tmp_path: Path) -> None:
    plain, _ = audit(approximate_run(tmp_path, unresolved_clusters=[]))
    assert page[0].count("<pattern") > plain.count("<pattern")


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_names_in_a_certificate_are_escaped(tmp_path: Path) -> None:
    html, _ = audit(approximate_run(tmp_path, statement="<script>x</script>", eigen_solver="<script>"))
    assert "<script" not in html


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_the_sums_are_drawn_with_what_may_be_missing(page: Any, tmp_path: Path) -> None:
    assert "possible" in page[1].text
    assert "possible" not in audit(approximate_run(tmp_path, nuclear_error=1e-9))[1].text
