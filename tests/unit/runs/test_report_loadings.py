"""Loadings in the report: the table, and the biplot of rows and features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import audit, make_run
from stores import config_text, write_store

import streampca as sp
from streampca.labels import Dimension, Labels, Variable
from streampca.runs.report import loadings as report_loadings
from streampca.runs.report import projection, result
from streampca.runs.report.components import layout_of_run
from streampca.runs.report.figures_of_scores import _apart, _broken, _frame
from streampca.runs.report.layouts import layout_of
from streampca.runs.report.loadings import biplot_charts, loadings
from streampca.runs.report.run_files import RunFiles, read_run

NAMES = [f"gene <{i}>" for i in range(40)]


def rows_of(n: int = 60, d: int = 40) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(1)
    return random.normal(size=(n, 2)) @ random.normal(size=(2, d)) * np.linspace(1, 3, d) + random.normal(size=(n, d))


def charts(files: RunFiles, **options: Any) -> Any:
    assert files.samples is not None
    scores = projection.score(files, files.samples)
    layout = options.get("layout", layout_of_run(files))
    return biplot_charts(files, result.spectrum_of(files), layout, scores, options.get("classes"))


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("named") / "run", rows=rows_of(), k=4, feature_names=NAMES)


def test_the_table_has_the_features_with_the_largest_loadings_of_the_first_components(named: Path) -> None:
    _, singular, axes = np.linalg.svd(rows_of() - rows_of().mean(axis=0), full_matrices=False)
    expected = axes[:3].T * singular[:3] / np.sqrt(len(rows_of()) - 1)
    listed = loadings(read_run(named), None)
    assert listed is not None
    order = np.argsort(-np.abs(expected).max(axis=1))[:30]
    assert listed.table.heads == ("feature", "component 1", "component 2", "component 3")
    assert [row[0] for row in listed.table.rows] == [NAMES[j] for j in order]
    shown = np.array([[float(cell.replace("−", "-")) for cell in row[1:]] for row in listed.table.rows])
    np.testing.assert_allclose(
        np.abs(shown), np.abs(expected[order]), atol=0.5 * 10.0 ** (np.floor(np.log10(expected.max())) - 2) * 1.01
    )
    assert "The 30 of 40 features" in listed.note
    assert "streampca export RUN loadings.csv" in listed.note
    assert "correlation" not in listed.note


def test_the_biplot_draws_standardised_scores_and_multiples_of_loadings(
    named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(report_loadings, "biplot", lambda *given: drawn.extend(given) or "")
    rows = rows_of()
    left, singular, axes = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    loading = axes[:2].T * singular[:2] / np.sqrt(len(rows) - 1)
    (chart,) = charts(read_run(named))
    points, arrows, names = drawn[:3]
    np.testing.assert_allclose(np.abs(points), np.abs(left[:, :2]) * np.sqrt(len(rows) - 1), rtol=1e-9, atol=1e-9)
    longest = np.argsort(-np.hypot(*loading.T))[:12]
    factor = float(chart.caption.partition(", times ")[2].partition(":")[0])
    assert names == [NAMES[j] for j in longest]
    np.testing.assert_allclose(np.abs(arrows), factor * np.abs(loading[longest]), rtol=1e-9, atol=1e-9)
    best = left[:, :2] * singular[:2] @ axes[:2, longest]  # the rows of rank 2, whatever the signs
    np.testing.assert_allclose(points @ arrows.T / factor, best, rtol=1e-9, atol=1e-9)
    assert "12 of 40 features, those with the longest" in chart.caption
    assert "Gabriel 1971" in chart.caption


def test_whitened_scores_are_not_divided_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(report_loadings, "biplot", lambda *given: drawn.append(given) or "")
    for whiten in (False, True):
        charts(read_run(make_run(tmp_path / str(whiten), rows=rows_of(), k=3, whiten=whiten, feature_names=NAMES)))
    np.testing.assert_allclose(drawn[0][0], drawn[1][0], rtol=1e-12, atol=1e-12)


def test_the_page_has_the_table_and_the_biplot_with_names_of_any_text(named: Path) -> None:
    html, page = audit(named)
    assert "<0>" not in html
    assert "Biplot of rows and features" in page.text
    assert "standardised score, axis 2" in page.text
    assert "writes those of all features and components" in page.text


def test_with_scale_loadings_are_called_correlations_and_are(tmp_path: Path) -> None:
    rows = rows_of(d=6)
    write_store(tmp_path / "x.zarr", rows, chunks=(30, 6))
    for scale, directory in ((True, "scaled"), (False, "plain")):
        text = config_text(
            tmp_path / "x.zarr",
            tmp_path / directory,
            "model: {n_components: 2}",
            f"preprocess: {{scale: {str(scale).lower()}}}",
        )
        (tmp_path / "c.yaml").write_text(text)
        sp.run(tmp_path / "c.yaml")
    scaled, plain = (read_run(tmp_path / name) for name in ("scaled", "plain"))
    listed, other = loadings(scaled, None), loadings(plain, None)
    assert listed is not None
    assert other is not None
    assert "here the correlations of features and scores" in listed.note
    assert "correlations" not in other.note
    scores = scaled.standardised(rows) @ scaled.components[slice(0, 2)].T
    expected = np.corrcoef(rows.T, scores.T)[:6, 6:]
    shown = np.array([[float(cell.replace("−", "-")) for cell in row[1:]] for row in listed.table.rows])
    np.testing.assert_allclose(shown, expected, atol=0.00051)


def test_pixels_many_features_without_names_and_lines_have_neither(tmp_path: Path) -> None:
    pictures = read_run(make_run(tmp_path / "pictures", d=16, feature_shape=[4, 4]))
    many = read_run(make_run(tmp_path / "many", d=31))
    few = read_run(make_run(tmp_path / "few", d=30))
    for files, expected in ((pictures, False), (many, False), (few, True)):
        assert (loadings(files, layout_of_run(files)) is not None) == expected
        assert bool(charts(files)) == expected
    along = Labels((), (Dimension("wavelength", 30, np.arange(30.0), {}),), (Variable(None, ("wavelength",), (30,)),))
    assert loadings(few, layout_of(along)) is None
    assert charts(few, layout=layout_of(along)) == ()


def test_text_along_the_features_names_them(tmp_path: Path) -> None:
    files = read_run(make_run(tmp_path / "run", d=35))
    genes = Dimension("gene", 35, np.array([f"g{i}" for i in range(35)]), {})
    files = replace(files, labels=Labels((), (genes,), (Variable(None, ("gene",), (35,)),)))
    listed = loadings(files, layout_of_run(files))
    assert listed is not None
    assert {row[0] for row in listed.table.rows} <= set(genes.coordinate)
    assert listed.table.rows[0][0] in charts(files)[0].alt


def test_one_component_or_a_second_without_variance_has_a_table_and_no_biplot(tmp_path: Path) -> None:
    one = read_run(make_run(tmp_path / "one", d=5, k=1))
    line = np.outer(np.arange(20.0) - 9.5, [1.0, 2.0, -1.0])
    flat = read_run(make_run(tmp_path / "flat", rows=line, k=2))
    constant = read_run(make_run(tmp_path / "constant", rows=np.ones((9, 3)), k=2))
    for files in (one, flat, constant):
        assert loadings(files, None) is not None
        assert charts(files, layout=None) == ()


def test_points_have_the_colours_of_their_classes(named: Path) -> None:
    classes = projection.Classes(("a", "b"), np.arange(60) % 2, 0)
    (chart,) = charts(read_run(named), classes=classes)
    assert chart.legend == (("class-0", "a"), ("class-1", "b"))
    assert "var(--class-1)" in chart.svg


@pytest.mark.parametrize("angle", [0.0, 0.5 * np.pi, 0.3])
def test_names_do_not_cover_each_other_where_arrows_nearly_coincide(angle: float) -> None:
    away = angle + 0.01 * np.arange(12)
    arrows = 2 * np.stack([np.cos(away), np.sin(away)], axis=1)
    frame = _frame(np.random.default_rng(0).normal(size=(50, 2)), arrows, ["alpha\nbeta"] * 12)
    unit = frame.gap / 0.06
    for side in (arrows[:, 0] >= 0, arrows[:, 0] < 0):
        assert (np.diff(np.sort(frame.places[side, 1])) >= 2 * 0.165 * unit * (1 - 1e-9)).all()
    assert (frame.low < frame.places.min(axis=0)).all()
    assert (frame.high > frame.places.max(axis=0)).all()
    assert frame.height < 6


def test_places_are_moved_as_little_as_possible() -> None:
    np.testing.assert_allclose(_apart(np.array([0.0, 5.0, 0.2]), 1.0), [-0.4, 5.0, 0.6])
    np.testing.assert_allclose(_apart(np.array([3.0, 1.0]), 1.0), [3.0, 1.0])
    assert _apart(np.empty(0), 1.0).shape == (0,)


def test_long_names_are_broken_nearest_their_middle() -> None:
    assert [_broken(name) for name in ("sepal length (cm)", "a b", "alcalinity_of_ash")] == [
        "sepal\nlength (cm)",
        "a b",
        "alcalinity_\nof_ash",
    ]
