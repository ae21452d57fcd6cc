"""Charts of fitted estimators: what is drawn, against numpy, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from pages import make_run, written

import streampca as sp
from streampca.errors import ParameterError

RANDOM = np.random.default_rng(4)
ROWS = RANDOM.normal(size=(120, 7)) * np.arange(7, 0, -1) + 3


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def pca() -> sp.PCA:
    return sp.PCA(4).fit(ROWS)


def points_of(axes: Any) -> np.ndarray:
    """Return the places of everything that is drawn as separate points, ``(n, 2)``."""
    lines = [line for line in axes.lines if line.get_marker() == "o" and line.get_linestyle() == "None"]
    return np.concatenate([line.get_xydata() for line in lines])


def scores_by_svd(rows: np.ndarray, k: int) -> np.ndarray:
    _, _, axes = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    axes = axes[:k] * np.sign(axes[np.arange(k), np.abs(axes[:k]).argmax(axis=1)])[:, None]
    return (rows - rows.mean(axis=0)) @ axes.T


def legend_of(axes: Any) -> list[str]:
    return [] if axes.get_legend() is None else [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_scree_plot_has_the_eigenvalues(pca: sp.PCA) -> None:
    axes = pca.plot.scree()
    expected = np.linalg.eigvalsh(np.cov(ROWS.T))[::-1][:4]
    np.testing.assert_allclose(points_of(axes), np.column_stack([range(1, 5), expected]), rtol=1e-10)
    assert axes.get_yscale() == "linear"
    assert axes.get_xlabel() == "component"
    assert legend_of(axes) == []
    steep = sp.PCA(4).fit(ROWS * np.logspace(0, -3, 7)).plot.scree()
    assert steep.get_yscale() == "log"


def test_the_scree_plot_has_sampling_errors_and_intervals() -> None:
    fitted = sp.PCA(3, sampling_errors=10).fit(ROWS)
    axes = fitted.plot.scree()
    assert "95 % interval by sampling" in legend_of(axes)
    bars = next(each for each in axes.collections if isinstance(each, LineCollection))
    np.testing.assert_allclose([bar[:, 1] for bar in bars.get_segments()], fitted.sampling_error_.interval(0.95))
    approximate = sp.PCA(3, solver="sketch", sketch_size=5, tolerance=0.0, max_passes=1).fit(ROWS)
    axes = approximate.plot.scree()
    assert "numerical error" in legend_of(axes)
    ends = next(each for each in axes.collections if isinstance(each, LineCollection)).get_segments()
    np.testing.assert_allclose([end[:, 1] for end in ends], approximate.error_["eigenvalue_intervals"])


def test_scores_are_the_points(pca: sp.PCA) -> None:
    expected = scores_by_svd(ROWS, 4)
    for given in ({"X": ROWS}, {"scores": expected}, {"scores": expected.tolist()}):
        axes = pca.plot.scores(**given)
        np.testing.assert_allclose(points_of(axes), expected[:, :2], atol=1e-10)
    axes = pca.plot.scores(ROWS, components=(4, 2))
    np.testing.assert_allclose(points_of(axes), expected[:, [3, 1]], atol=1e-10)
    share = pca.explained_variance_ratio_[3]
    assert axes.get_xlabel() == f"component 4 ({100 * share:.1f} %)"


def test_rows_from_a_file_and_rows_with_holes(pca: sp.PCA, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    expected = scores_by_svd(ROWS, 4)
    np.testing.assert_allclose(points_of(pca.plot.scores(tmp_path / "x.npy")), expected[:, :2], atol=1e-10)
    expected[3, 1] = np.nan
    labels = np.arange(120) % 2
    axes = pca.plot.scores(scores=expected, labels=labels)
    assert len(points_of(axes)) == 119


def test_many_rows_are_a_density_and_one_component_a_histogram(pca: sp.PCA) -> None:
    rows = RANDOM.normal(size=(2000, 7)) * np.arange(7, 0, -1)
    density = pca.plot.scores(rows).collections[0].get_array()
    assert density.sum() == 2000
    histogram = pca.plot.scores(rows, components=[3])
    assert sum(bar.get_height() for bar in histogram.patches) == 2000


def test_the_most_frequent_labels_have_colours(pca: sp.PCA) -> None:
    labels = np.repeat(np.arange(12), 10)
    labels[labels == 11] = 9
    axes = pca.plot.scores(ROWS, labels=labels)
    assert legend_of(axes) == ["other", *map(str, [0, 1, 2, 3, 4, 5, 6, 9])]
    last = axes.lines[-1]
    np.testing.assert_allclose(last.get_xydata(), scores_by_svd(ROWS, 4)[labels == 9][:, :2], atol=1e-10)
    assert len({line.get_color() for line in axes.lines[2:]}) == 9
    formulas = pca.plot.scores(ROWS, labels=np.where(labels > 4, "$x_", "$y^2$"))
    formulas.figure.canvas.draw()
    assert legend_of(formulas) == ["$x_", "$y^2$"]


def test_components_are_lines_over_the_features(pca: sp.PCA) -> None:
    axes = pca.plot.components(2)
    lines = [line for line in axes.lines if len(line.get_xdata()) == 7]
    np.testing.assert_allclose([line.get_ydata() for line in lines], pca.components_[:2])
    assert legend_of(axes) == [f"component {i} ({100 * pca.explained_variance_ratio_[i - 1]:.1f} %)" for i in (1, 2)]


def test_named_features_and_features_along_a_coordinate(tmp_path: Path) -> None:
    pandas, xarray = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    names = [f"length ${i}" for i in range(7)]
    axes = sp.PCA(2).fit(pandas.DataFrame(ROWS, columns=names)).plot.components()
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    field = xarray.DataArray(ROWS, dims=("time", "wavelength"), coords={"wavelength": np.linspace(400, 700, 7)})
    axes = sp.PCA(2).fit(sp.open(field, samples="time")).plot.components()
    np.testing.assert_array_equal(axes.lines[-1].get_xdata(), np.linspace(400, 700, 7))
    assert axes.get_xlabel() == "wavelength"


@pytest.mark.parametrize("whiten", [False, True])
def test_the_biplot_has_standardised_scores_and_loadings(whiten: bool) -> None:
    fitted = sp.PCA(3, whiten=whiten).fit(ROWS)
    axes = fitted.plot.biplot(ROWS, n_arrows=4)
    scores = scores_by_svd(ROWS, 3)
    np.testing.assert_allclose(points_of(axes), scores[:, :2] / scores[:, :2].std(axis=0, ddof=1), atol=1e-10)
    arrows = axes.collections[0]
    loadings = np.column_stack([np.cov(scores[:, i], ROWS.T)[0, 1:] / scores[:, i].std(ddof=1) for i in range(2)])
    longest = np.argsort(-np.hypot(*loadings.T))[:4]
    factor = arrows.U[0] / loadings[longest[0], 0]
    np.testing.assert_allclose(np.column_stack([arrows.U, arrows.V]), factor * loadings[longest], atol=1e-10)
    assert factor == pytest.approx(float(f"{factor:.1g}"))
    assert {text.get_text() for text in axes.texts} == {str(j) for j in longest}


@pytest.mark.parametrize(("spread", "n_named"), [(0.0, range(3, 6)), (1.0, [24])])
def test_names_of_arrows_do_not_cover_each_other(spread: float, n_named: Sequence[int]) -> None:
    turns = spread * np.linspace(0, 2 * np.pi, 24, endpoint=False)
    arrows = np.stack([np.cos(turns), np.sin(turns)])
    rows = RANDOM.normal(size=(200, 2)) * [2.0, 1.9] @ arrows + 0.01 * RANDOM.normal(size=(200, 24))
    axes = sp.PCA(2).fit(rows).plot.biplot(rows, n_arrows=24)
    axes.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) in n_named
    for a, b in combinations(boxes, 2):
        across, up = (min(a.x1, b.x1) - max(a.x0, b.x0)), (min(a.y1, b.y1) - max(a.y0, b.y0))
        assert across <= 1 or up <= 3, (a, b)


def test_charts_go_where_they_are_told_to(pca: sp.PCA) -> None:
    _, given = plt.subplots(2, 2)
    assert pca.plot.scree(ax=given[0, 0]) is given[0, 0]
    assert pca.plot.components(ax=given[0, 1]) is given[0, 1]
    assert pca.plot.scores(ROWS, ax=given[1, 0]) is given[1, 0]
    assert pca.plot.biplot(ROWS, ax=given[1, 1]) is given[1, 1]
    assert plt.get_fignums() == [1]


def test_loaded_rotated_and_kernel_models_have_charts(pca: sp.PCA, tmp_path: Path) -> None:
    loaded = sp.load(pca.save(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(points_of(loaded.plot.scree()), points_of(pca.plot.scree()))
    np.testing.assert_array_equal(points_of(loaded.plot.scores(ROWS)), points_of(pca.plot.scores(ROWS)))
    rotated = pca.rotate(3)
    np.testing.assert_allclose(points_of(rotated.plot.scree())[:, 1], rotated.explained_variance_)
    assert rotated.plot.biplot(ROWS).texts
    kernel = sp.load(sp.KernelPCA(3, gamma=0.01).fit(ROWS).save(tmp_path / "kernel.zarr"))
    np.testing.assert_allclose(points_of(kernel.plot.scree())[:, 1], kernel.eigenvalues_)
    np.testing.assert_allclose(points_of(kernel.plot.scores(ROWS)), kernel.transform(ROWS)[:, :2])
    assert not hasattr(kernel.plot, "biplot")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("scores", {}, "either rows"),
        ("scores", {"X": ROWS, "scores": ROWS}, "either rows"),
        ("scores", {"X": ROWS, "components": (1, 5)}, "from 1 to 4"),
        ("scores", {"X": ROWS, "labels": [1, 2]}, "2 labels: expected 120"),
        ("scores", {"scores": ROWS}, "7 columns: expected 4"),
        ("biplot", {"X": ROWS, "components": [1]}, "two numbers"),
        ("components", {"n_components": 0}, "at least 1"),
    ],
)
def test_what_cannot_be_drawn_is_refused(pca: sp.PCA, name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        getattr(pca.plot, name)(**arguments)
    assert plt.get_fignums() == []


def test_an_estimator_that_is_not_fitted_has_no_charts() -> None:
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        sp.PCA(2).plot.scree()


@pytest.mark.usefixtures("charts")
def test_a_chart_waits_for_a_page_that_another_thread_draws(
    pca: sp.PCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """matplotlib has one set of settings, which a page changes while it draws, and one parser of formulas for a process."""
    run = make_run(tmp_path / "run")
    axes, threads, early, save = [plt.subplots()[1] for _ in range(2)], list[Thread](), list[int](), Figure.savefig
    charts = [lambda: pca.plot.scree(ax=axes[0]), lambda: pca.plot.components(2, ax=axes[1])]

    def saving(figure: Figure, *args: Any, **kwargs: Any) -> None:
        if not threads:
            threads.extend(Thread(target=chart) for chart in charts)
            for thread in threads:
                thread.start()
                thread.join(0.2)
            early.extend(len(each.lines) for each in axes)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", saving)
    written(run)
    for thread in threads:
        thread.join(20)
    assert early == [0, 0]
    assert all(len(each.lines) > 0 for each in axes)


@pytest.mark.usefixtures("charts")
def test_pages_of_several_threads_are_drawn_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [
        {"source": {"path": "builtin:iris"}, "output": {"directory": str(tmp_path / name), "scores": False}}
        for name in ("one", "other")
    ]
    drawing, together, save = list[str](), list[bool](), Figure.savefig

    def saving(figure: Figure, *args: Any, **kwargs: Any) -> None:
        drawing.append("one")
        sleep(0.01)
        save(figure, *args, **kwargs)
        together.append(len(drawing) > 1)
        drawing.pop()

    monkeypatch.setattr(Figure, "savefig", saving)
    threads = [Thread(target=sp.run, args=(config,)) for config in configs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(together) > 4
    assert not any(together)
