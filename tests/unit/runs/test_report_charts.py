"""Charts of a page: each draws its data, in colours that are legible on white and on black; a chart without data is noticed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib.axes
import numpy as np
import pytest
from facade import charts_drawn
from pages import audit_of_run, certificate, certify, change, make_run, marks_of, written

import streampca as sp

pytestmark = pytest.mark.usefixtures("charts")
K = 6
CARDS = "#ffffff", "#1c1e22"
"""Behind charts, light and dark."""


def rows_with_faults() -> np.ndarray:
    """Return rows of three classes with a shift and missing values."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(2400, 12)) * np.linspace(4, 1, 12)
    rows[:, 0] += 8 * (np.arange(2400) % 3)
    rows[1200:, 5] += 9
    rows[2000:, 2] = np.nan
    return rows


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of a run with sections on missing values, drift and rows that do not fit."""
    place = tmp_path_factory.mktemp("faults")
    np.save(place / "x.npy", rows_with_faults())
    np.save(place / "classes.npy", np.array(["a", "b", "c"])[np.arange(2400) % 3])
    config = {
        "source": {"path": str(place / "x.npy"), "labels": str(place / "classes.npy")},
        "preprocess": {"missing": "mean"},
        "model": {"n_components": K},
        "output": {"directory": str(place / "run"), "diagnostics": True},
    }
    with charts_drawn():
        return (sp.run(config).directory / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_section_has_its_charts(page: str) -> None:
    assert set(marks_of(page)) >= {
        "Eigenvalues",
        "Cumulative explained variance",
        "First two components",
        "Biplot of samples and features",
        "T² and Q",
        "Drift along the file",
        "Missing values along the file",
    }


@pytest.mark.slow
def test_charts_fill_their_axes(page: str) -> None:
    for title, places in marks_of(page).items():
        width, height = np.ptp(places, axis=0)
        assert width > 120, title  # of about 300 points
        assert height > 60, title  # of about 200


@pytest.mark.slow
def test_each_row_is_a_point_and_each_component_a_mark(page: str, tmp_path: Path) -> None:
    charts = marks_of(page)
    n = 2000  # rows of a sample
    assert len(charts["First two components"]) == len(charts["Biplot of samples and features"]) == n
    assert len(charts["T² and Q"]) == 2400 + 20
    charts = marks_of(written(make_run(tmp_path / "run", n=50, k=K)))
    assert len(charts["Eigenvalues"]) == K
    assert len(charts["First two components"]) == 50


@pytest.mark.slow
def test_points_are_where_the_scores_are(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).normal(size=(40, 5)) * np.arange(5, 0, -1)
    places = marks_of(written(make_run(tmp_path / "run", rows=rows, k=2)))["First two components"]
    scores = sp.PCA(2).fit_transform(rows) * [1, -1]  # an SVG counts from the top
    for drawn, expected in zip(places.T, scores.T, strict=True):
        standard, wanted = ((values - values.mean()) / values.std() for values in (drawn, expected))
        np.testing.assert_allclose(standard, wanted, atol=1e-4)


@pytest.mark.slow
def test_a_kernel_run_and_a_density_have_their_data(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).normal(size=(1500, 4))
    np.save(tmp_path / "x.npy", rows)
    model = {"kind": "kernel_pca", "n_components": 3, "n_landmarks": 40, "gamma": 0.05}
    config = {"source": {"path": str(tmp_path / "x.npy")}, "model": model, "output": {"directory": str(tmp_path / "k")}}
    html, page = audit_of_run(sp.run(config).directory)
    charts = marks_of(html)
    assert len(charts["Eigenvalues of the kernel matrix"]) >= 3
    assert len(charts["First two components"]) > 100  # hexagons
    assert "Hexagons count samples" in page.text
    assert "point is a sample" not in page.text


@pytest.mark.slow
def test_axes_without_data_have_no_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    drawn = marks_of(written(run))
    for name in ("plot", "fill_between", "vlines", "axhline", "quiver", "hexbin"):
        monkeypatch.setattr(matplotlib.axes.Axes, name, lambda *_, **__: None)
    empty = marks_of(written(run))
    assert drawn.keys() == empty.keys()
    assert all(len(places) for places in drawn.values())
    assert not any(len(places) for places in empty.values())


def luminance(colour: str) -> float:
    values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.slow
def test_colours_have_a_contrast_with_light_and_with_dark_pages(tmp_path: Path) -> None:
    labels = np.repeat([f"class {i}" for i in range(8)], 20)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(160, 3)))
    np.save(tmp_path / "labels.npy", labels)
    source = {"path": str(tmp_path / "x.npy"), "labels": str(tmp_path / "labels.npy")}
    run = sp.run({"source": source, "model": {"n_components": 2}, "output": {"directory": str(tmp_path / "run")}})
    svg: Any = "".join(re.findall(r"<svg.*?</svg>", (run.directory / "report.html").read_text(), re.DOTALL))
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
    assert len(colours) >= 9
    for colour in colours:
        for card in CARDS:
            low, high = sorted((luminance(colour), luminance(card)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, card)


@pytest.mark.slow
def test_bounds_and_errors_are_drawn(tmp_path: Path) -> None:
    run = change(make_run(tmp_path / "run", k=3, samples=False), passes=2)
    values = sp.load(run / "model.zarr").explained_variance_
    changes = certificate(
        3,
        eigenvalue_intervals=[[value, 1.3 * value] for value in values],
        component_errors=[0.3] * 3,
        angle_bounds=[0.1, 0.2, None],
        unresolved_clusters=[],
    )
    plain, bounded = marks_of(written(run)), marks_of(written(certify(run, changes)))
    assert len(bounded["Eigenvalues with error bounds"]) == len(plain["Eigenvalues"]) + 6
