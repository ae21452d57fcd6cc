"""`summary` of every estimator: one page of text, the same in HTML, before a fit an error, and after loading what was kept."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import streampca as sp

ROWS = np.random.default_rng(0).normal(size=(600, 24)) * np.arange(24, 0, -1)
X, Y = ROWS[:, :14], ROWS[:, 14:] + ROWS[:, :10]
FITS: dict[str, tuple[Callable[[], Any], str, int]] = {
    "exact": (lambda: sp.PCA(5).fit(ROWS), "PCA, solver covariance: 5 components of 600 x 24", 5),
    "many": (lambda: sp.PCA(20, solver="qr").fit(ROWS), "PCA, solver qr: 20 components of 600 x 24", 12),
    "approximate": (
        lambda: sp.PCA(6, solver="sketch", sketch_size=12, sampling_errors=10).fit(ROWS * 1e-9),
        "PCA, solver sketch: 6 components of 600 x 24",
        6,
    ),
    "kernel": (lambda: sp.KernelPCA(3, gamma=1e-3).fit(ROWS), "KernelPCA, solver exact: 3 components of 600 x 24", 3),
    "nystrom": (
        lambda: sp.KernelPCA(3, gamma=1e-3, method="nystrom", n_landmarks=60).fit(ROWS),
        "KernelPCA, solver nystrom: 3 components of 600 x 24",
        3,
    ),
    "mca": (lambda: sp.MCA(2).fit(X, Y), "MCA, solver covariance: 2 pairs of 600 x (14 + 10)", 2),
    "cca": (
        lambda: sp.CCA(2, sampling_errors=10).fit(X, Y),
        "CCA, solver covariance: 2 pairs of 600 x (14 + 10)",
        2,
    ),
    "factors": (lambda: sp.FactorAnalysis(2).fit(ROWS), "FactorAnalysis, solver covariance: 2 factors of 600 x 24", 2),
    "rotated": (
        lambda: sp.PCA(4).fit(ROWS).rotate(3),
        "RotatedPCA, solver covariance, varimax rotation: 3 components of 600 x 24",
        3,
    ),
}
UNFITTED = (sp.PCA(2), sp.KernelPCA(2), sp.MCA(2), sp.CCA(2), sp.FactorAnalysis(2), sp.RotatedPCA(sp.PCA(2)))


@pytest.fixture(scope="module")
def fits() -> dict[str, Any]:
    return {name: fit() for name, (fit, _, _) in FITS.items()}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FITS)
def test_a_summary_is_one_page_with_the_figures_of_the_fit(name: str, fits: dict[str, Any], tmp_path: Path) -> None:
    fitted, (_, title, shown) = fits[name], FITS[name]
    summary = fitted.summary()
    lines = str(summary).splitlines()
    assert lines[0] == title
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    assert [row[0] for row in summary.table[1:]] == [str(i + 1) for i in range(shown)]
    values = getattr(fitted, fitted._model.kind.strengths + "_", None)
    values = fitted._model.spectrum if values is None else values
    printed = [_number(row[1]) for row in summary.table[1:]]
    np.testing.assert_allclose(printed, values[:shown], rtol=1e-3)
    named = dict(summary.lines)
    assert {"data", "read", "memory", "accuracy"} <= set(named)
    assert "the process reached" in named["memory"] or name == "rotated"
    assert summary._repr_html_().count("<td>") == sum(map(len, summary.table[1:])) + len(summary.lines)

    fitted.save(tmp_path / "model.zarr")
    again = sp.load(tmp_path / "model.zarr").summary()
    assert again.title == title
    assert again.table == summary.table
    kept = dict(again.lines)
    assert kept["accuracy"] == named["accuracy"]
    assert named["memory"].startswith(kept["memory"])
    assert named["read"].startswith(kept["read"])


def test_the_interval_is_exact_or_that_of_the_certificate(fits: dict[str, Any]) -> None:
    assert {row[-1] for row in fits["exact"].summary().table[1:]} == {"exact"}
    head, first, *_ = fits["approximate"].summary().table
    assert head == ("component", "eigenvalue", "share", "cumulative", "interval", "angle", "sampling")
    low, high = fits["approximate"].certificate_.eigenvalue_intervals[0]
    np.testing.assert_allclose([_number(end) for end in first[4].split(" to ")], [low, high], rtol=1e-3)
    assert first[-1].startswith("± ")
    assert fits["cca"].summary().table[0] == ("pair", "correlation", "share", "interval", "sampling")
    assert {row[-1] for row in fits["factors"].summary().table[1:]} == {"—"}  # no bound of its values is known


def test_rules_are_named_where_they_were_asked_for(fits: dict[str, Any]) -> None:
    assert "rule" not in dict(fits["exact"].summary().lines)
    asked = sp.PCA("marchenko_pastur").fit(ROWS)
    assert dict(asked.summary().lines)["rule"].startswith("marchenko_pastur: ")


def test_warnings_of_an_approximate_fit_are_in_its_summary() -> None:
    wide = sp.PCA(6, solver="sketch", sketch_size=7, max_passes=1).fit(np.random.default_rng(1).normal(size=(400, 60)))
    warned = [text for name, text in wide.summary().lines if name == "warning"]
    assert any("not separated" in text for text in warned)


def test_groups_have_a_row_each() -> None:
    groups = sp.PCA(3).fit_groups(ROWS, np.arange(600) % 2)
    summary = groups.summary()
    assert [row[0] for row in summary.table] == ["group", "0", "1", "pooled", "between"]
    assert summary.table[1] == (
        "0",
        "300",
        "3",
        f"{groups[0].explained_variance_ratio_.sum():.1%}".replace("%", "\N{NO-BREAK SPACE}%"),
    )
    assert str(summary).splitlines()[0] == "2 groups, one PCA each"


@pytest.mark.parametrize("estimator", UNFITTED, ids=lambda each: type(each).__name__)
def test_there_is_no_summary_before_a_fit(estimator: Any) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        estimator.summary()


def _number(text: str) -> float:
    """Return the number that a cell shows: ``1,683.5``, ``1.2 × 10⁻¹⁶``."""
    plain = text.replace("\N{NO-BREAK SPACE}", "").replace(",", "")
    plain = re.sub(
        "×10(.+)", lambda power: "e" + power[1].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")), plain
    )
    return float(plain)


def test_models_of_one_reading_have_a_summary_together() -> None:
    fits = sp.fit_many(
        {"plain": sp.PCA(5), "scaled": sp.PCA(3, scale=True), "kernel": sp.KernelPCA(2, gamma=1e-3)}, ROWS
    )
    summary = fits.summary()
    assert summary.title == "3 models of the same data"
    assert summary.table[0] == ("model", "estimator", "samples", "components", "share of variance")
    assert [row[:4] for row in summary.table[1:]] == [
        ("plain", "PCA", "600", "5"),
        ("scaled", "PCA", "600", "3"),
        ("kernel", "KernelPCA", "600", "2"),
    ]
    assert _number(summary.table[1][4].removesuffix("%")) == pytest.approx(
        100 * fits["plain"].explained_variance_ratio_.sum(), abs=0.06
    )
    assert "the process reached" in dict(summary.lines)["memory"]
    assert max(map(len, str(summary).splitlines())) <= 80
    groups = sp.PCA(2).fit_groups(ROWS, np.arange(600) % 3).summary()
    assert groups.table[0] == ("group", "samples", "components", "share of variance")
    assert len(groups.table) == 6
    assert "the process reached" in dict(groups.lines)["memory"]
