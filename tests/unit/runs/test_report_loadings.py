"""Loadings in the report: the table, and the biplot of rows and features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import charts_drawn
from pages import audit, audit_of_run, make_run

import streampca as sp

NAMES = [f"gene <{i}>" for i in range(40)]


def rows_of(n: int = 60, d: int = 40) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(1)
    return random.normal(size=(n, 2)) @ random.normal(size=(2, d)) * np.linspace(1, 3, d) + random.normal(size=(n, d))


def table_of(page: Any) -> list[list[str]]:
    """Return the lines of the table of loadings; none where there is no table."""
    tables = (rows for name, rows in page.tables.items() if "oadings" in name)
    return [[cell.replace("\u2212", "-") for cell in row] for row in next(tables, [])]


def has_biplot(page: Any) -> bool:
    return "Biplot of samples and features" in page.text


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with charts_drawn():
        return audit(make_run(tmp_path_factory.mktemp("named") / "run", rows=rows_of(), k=4, feature_names=NAMES))[1]


def test_the_table_has_the_features_with_the_largest_loadings_of_the_first_components(page: Any) -> None:
    _, singular, axes = np.linalg.svd(rows_of() - rows_of().mean(axis=0), full_matrices=False)
    expected = axes[:3].T * singular[:3] / np.sqrt(len(rows_of()) - 1)
    heads, *rows = table_of(page)
    order = np.argsort(-np.abs(expected).max(axis=1))[:30]
    assert heads == ["feature", "component 1", "component 2", "component 3"]
    assert [row[0] for row in rows] == [NAMES[j] for j in order]
    shown = np.array([[float(cell) for cell in row[1:]] for row in rows])
    np.testing.assert_allclose(
        np.abs(shown), np.abs(expected[order]), atol=0.5 * 10.0 ** (np.floor(np.log10(expected.max())) - 2) * 1.01
    )
    assert "The 30 of 40 features" in page.text
    assert "writes those of all features and components" in page.text
    assert "correlation" not in page.text


def test_the_page_has_the_biplot_with_names_of_any_text(page: Any) -> None:
    assert has_biplot(page)
    assert "standardised score, component 2" in page.text
    assert "the 12 of 40 features with the longest loadings" in page.text
    assert "Gabriel 1971" in page.text
    rows = rows_of()
    _, singular, axes = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    longest = np.argsort(-np.hypot(*(axes[:2].T * singular[:2]).T))[:12]
    assert all(NAMES[j] in page.text for j in longest)


@pytest.mark.usefixtures("charts")
def test_the_page_counts_the_names_that_have_no_room(tmp_path: Path) -> None:
    rows = np.outer(rows_of()[:, 0], np.ones(12)) + 0.01 * rows_of(d=12)
    names = [f"length {i}" for i in range(12)]
    html, _ = audit(make_run(tmp_path / "run", rows=rows, k=2, feature_names=names))
    figure = html[html.index("<svg", html.index(">Biplot of samples and features<")) :]
    drawn = sum(f">{name}</text>" in figure[: figure.index("</svg>")] for name in names)
    assert 0 < drawn < 12
    assert f"{12 - drawn} names are left out" in figure


@pytest.mark.deep
def test_whitened_scores_are_not_divided_again(tmp_path: Path) -> None:
    said = []
    for whiten in (False, True):
        _, page = audit(make_run(tmp_path / str(whiten), rows=rows_of(), k=3, whiten=whiten, feature_names=NAMES))
        alts = [str(attributes.get("aria-label")) for _, attributes in page.tags]
        said.append([alt for alt in alts if alt.startswith("Biplot")])
    assert said[0] == said[1]
    assert len(said[0]) == 1


def test_with_scale_loadings_are_called_correlations_and_are(tmp_path: Path) -> None:
    rows = rows_of(d=6)
    np.save(tmp_path / "x.npy", rows)
    listed = {}
    for scale in (True, False):
        run = sp.run(
            {
                "source": {"path": str(tmp_path / "x.npy")},
                "model": {"n_components": 2},
                "preprocess": {"scale": scale},
                "output": {"directory": str(tmp_path / str(scale))},
            }
        )
        _, page = audit_of_run(run.directory)
        assert ("here the correlations of features and scores" in page.text) == scale
        listed[scale] = table_of(page)[1:], run.model.transform(rows)
    shown, scores = listed[True]
    expected = np.corrcoef(rows.T, scores.T)[:6, 6:]
    np.testing.assert_allclose([[float(cell) for cell in row[1:]] for row in shown], expected, atol=0.00051)


def test_pixels_and_many_features_without_names_have_neither(tmp_path: Path) -> None:
    for d, shape, expected in ((16, [4, 4], False), (31, None, False), (30, None, True)):
        _, page = audit(make_run(tmp_path / str(d), n=60, d=d, k=3, feature_shape=shape))
        assert bool(table_of(page)) == expected
        assert has_biplot(page) == expected


def test_one_component_or_a_second_without_variance_has_a_table_and_no_biplot(tmp_path: Path) -> None:
    line = np.outer(np.arange(20.0) - 9.5, [1.0, 2.0, -1.0])
    one = make_run(tmp_path / "one", n=40, d=5, k=1)
    for run in (one, make_run(tmp_path / "flat", rows=line, k=2)):
        _, page = audit(run)
        assert table_of(page)
        assert not has_biplot(page)
