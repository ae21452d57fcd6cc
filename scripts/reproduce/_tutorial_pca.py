"""Figures 1 to 3 and tables 1 and 2 of the tutorial: PCA of tables with more rows than features, and with fewer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _data import PHOTOGRAPHS, FloatArray
from _pictures import IntArray, Pictures, coloured, faces, handwritten
from _report import Report, brief, drawing

import streampca as sp

SHARES = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Table:
    """A table whose PCA is drawn."""

    name: str
    """Its name."""
    rows: FloatArray
    """Samples in rows."""
    labels: IntArray
    """The class of each."""
    classes: tuple[str, ...] = ()
    """Names of the classes, where the legend shows them."""


def small_tables() -> list[Table]:
    """Return the three tables of the tutorial that scikit-learn ships; diabetes has no classes: quartiles of the response."""
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

    loaded = [("diabetes", load_diabetes()), ("breast cancer", load_breast_cancer()), ("iris", load_iris())]
    quartiles = np.digitize(loaded[0][1].target, np.quantile(loaded[0][1].target, (0.25, 0.5, 0.75)))
    labels = [quartiles, loaded[1][1].target, loaded[2][1].target]
    classes = [[f"quartile {i}" for i in (1, 2, 3, 4)], loaded[1][1].target_names, loaded[2][1].target_names]
    return [
        Table(name, each.data, np.asarray(label), tuple(map(str, names)))
        for (name, each), label, names in zip(loaded, labels, classes, strict=True)
    ]


def of_pictures(pictures: Pictures) -> Table:
    """Return pictures as a table."""
    return Table(pictures.name, pictures.rows, pictures.labels, pictures.classes)


def large_tables(quick: bool) -> list[Table]:
    """Return the tables of all five rows of figure 1."""
    return [*small_tables(), of_pictures(handwritten()), of_pictures(coloured(1000 if quick else 4000))]


def small_samples(quick: bool) -> list[Table]:
    """Return tables with fewer samples than features: the faces, and a thousand patches of each photograph."""
    patches = coloured(400 if quick else 2000)
    halves = [patches.of_classes(label, PHOTOGRAPHS[label]) for label in range(len(PHOTOGRAPHS))]
    return [of_pictures(faces()), *map(of_pictures, halves)]


_FITS: dict[tuple[str, tuple[int, ...]], sp.PCA] = {}


def fitted(table: Table) -> sp.PCA:
    """Return the exact PCA of z-scores with all components; figures and tables share it."""
    key = table.name, table.rows.shape
    if key not in _FITS:
        n, d = table.rows.shape
        _FITS[key] = sp.PCA(solver="gram" if n < d else "covariance", scale=True).fit(table.rows)
    return _FITS[key]


def rank_of(pca: sp.PCA) -> int:
    """Return how many eigenvalues are more than rounding: features that never vary, and centring, give zeros."""
    return int(np.count_nonzero(pca.explained_variance_ > 1e-10 * pca.explained_variance_[0]))


def counts_of(pca: sp.PCA) -> list[int]:
    """Return how many axes carry each of `SHARES` of the variance."""
    cumulated = np.cumsum(pca.explained_variance_) / pca.total_variance_
    return [int(np.searchsorted(cumulated, share - 1e-12)) + 1 for share in SHARES]


def figure_1(quick: bool, pictures: Path | None) -> Report:
    """Draw eigenvalues, shares of the variance and scores of five tables."""
    return _four_panels(large_tables(quick), pictures and pictures / "figure-1.png")


def figure_3(quick: bool, pictures: Path | None) -> Report:
    """Draw the same of tables with fewer samples than features."""
    return _four_panels(small_samples(quick), pictures and pictures / "figure-3.png")


def _four_panels(tables: list[Table], path: Path | None) -> Report:
    report, lines, drawn = Report(), [], []
    for table in tables:
        pca = fitted(table)
        rank = rank_of(pca)
        values = pca.explained_variance_[:rank]
        scores = pca.transform(table.rows)[:, [0, 1, rank - 1]]
        extreme = np.abs(scores[:, 2]).max() / scores[:, 2].std()
        report.figures[table.name] = {
            "shape": table.rows.shape,
            "rank": rank,
            "first": values[:10].tolist(),
            "last": float(values[-1]),
            "extreme": float(extreme),
            "counts": counts_of(pca),
        }
        n, d = table.rows.shape
        share = values[0] / values.sum()
        cells = [f"{n:,} x {d:,}", str(rank), f"{share:.1%}", *map(brief, (values[0], values[1], values[-1], extreme))]
        lines.append([table.name, *cells])
        drawn.append((table, values, scores))
    head = ["table", "shape", "eigenvalues above 0", "share of the first", "first", "second", "last"]
    report.table(
        "z-scores: eigenvalues of the correlation matrix, and the score on the last axis that lies farthest out, in standard deviations",
        [*head, "farthest on the last axis"],
        lines,
    )
    if path is not None:
        with drawing(path, 4 * len(drawn), n_rows=len(drawn), width=11, height=2.4 * len(drawn)) as panels:
            for i, each in enumerate(drawn):
                _draw_row(panels[4 * i : 4 * i + 4], *each, titled=i == 0)
    return report


def _draw_row(panels: list[Any], table: Table, values: FloatArray, scores: FloatArray, *, titled: bool) -> None:
    number = np.arange(1, len(values) + 1)
    panels[0].plot(number, values, marker="." if len(values) < 40 else "")
    panels[1].plot(number, np.cumsum(values) / values.sum(), marker="." if len(values) < 40 else "")
    panels[1].axhline(0.9, color="0.7", lw=0.8)
    panels[1].set_ylim(0, 1.02)
    colours = table.labels - table.labels.min()
    order = np.random.default_rng(0).permutation(len(scores))  # so that no class hides another
    if len(values) > 100:
        panels[0].set_yscale("log")
    order = np.r_[order[:2000], np.argsort(-np.abs(scores[:, 2]))[:20]]
    size = 8 if len(scores) < 700 else 3
    for panel, axis in ((panels[2], 1), (panels[3], 2)):
        one = len(np.unique(colours)) == 1
        points = scores[order, 0], scores[order, axis]
        drawn = panel.scatter(
            *points, c="C0" if one else colours[order], s=size, cmap=None if one else "turbo", linewidths=0
        )
        panel.set_xlabel("score on axis 1", fontsize=7)
        panel.set_ylabel(f"score on axis {2 if axis == 1 else len(values)}", fontsize=7)
    if table.classes and not one:
        handles = drawn.legend_elements(num=None, markersize=4)[0]
        names = [table.classes[label] for label in np.unique(table.labels)]
        panels[2].legend(handles, names, fontsize=5, ncols=2 if len(names) > 4 else 1, handletextpad=0, borderpad=0.2)
    panels[0].set_ylabel(f"{table.name}: eigenvalue", fontsize=7)
    panels[1].set_ylabel("share", fontsize=7)
    panels[0].set_xlabel("axis", fontsize=7)
    panels[1].set_xlabel("number of axes", fontsize=7)
    if titled:
        panels[1].lines[1].set_label("90 %")
        panels[1].legend(handles=panels[1].lines[1:], fontsize=6)
    if titled:
        titles = ("eigenvalues", "cumulated share of the variance", "axes 1 and 2", "axis 1 and the last")
        for panel, title in zip(panels, titles, strict=True):
            panel.set_title(title, fontsize=9)
    for panel in panels:
        panel.tick_params(labelsize=7)


def figure_2(quick: bool, pictures: Path | None) -> Report:
    """Draw outlying digits, and what 50, 100 and 200 components make of them."""
    digits = handwritten()
    side, d = digits.shape[0], digits.rows.shape[1]
    counts = (50, 100, 200) if d > 200 else (10, 20, 40)
    pca = fitted(of_pictures(digits))
    last = rank_of(pca) - 1
    outlier = int(np.argmax(np.abs(pca.transform(digits.rows)[:, last])))
    heaviest = int(np.argmax(np.abs(digits.z_scores[outlier] * pca.components_[last])))
    cases = {"the farthest on the last axis": (outlier, heaviest)}
    if (found := lone_pixel(digits)) is not None:
        cases = {"a lone bright pixel": found} | cases
    report, lines, shown = Report(), [], []
    for why, (index, pixel) in cases.items():
        row, back = digits.rows[index], [digits.rows[index]]
        rest, place = np.arange(d) != pixel, f"row {pixel // side}, column {pixel % side}"
        for count in counts:
            axes = pca.components_[:count]
            back.append(pca.mean_ + pca.scale_ * (axes.T @ (axes @ ((row - pca.mean_) / pca.scale_))))
        errors = [float(np.linalg.norm((made - row)[rest]) / np.linalg.norm(row[rest])) for made in back[1:]]
        dots = [float(made[pixel]) for made in back[1:]]
        report.figures[why] = {
            "picture": index,
            "pixel": pixel,
            "value": float(row[pixel]),
            "dots": dots,
            "errors": errors,
        }
        cells = [f"{dot:.0f}, {error:.2f}" for dot, error in zip(dots, errors, strict=True)]
        lines.append([f"{why}: picture {index}, a {digits.labels[index]}", place, f"{row[pixel]:.0f}", *cells])
        shown += [(image, pixel) for image in back]
    head = ["picture", "pixel", "its value", *(f"{count} components" for count in counts)]
    report.table(f"{digits.name}: value of the pixel, and relative error of all others", head, lines)
    if pictures is not None:
        titles = ["original", *(f"{count} components" for count in counts)] + [""] * 4
        height = 2.2 * len(cases)
        with drawing(pictures / "figure-2.png", len(shown), n_rows=len(cases), width=8, height=height) as panels:
            for panel, (image, pixel), title in zip(panels, shown, titles, strict=False):
                panel.imshow(image.reshape(side, side), cmap="gray", vmin=0, vmax=255)
                panel.add_patch(_circle(pixel % side, pixel // side, side / 14))
                panel.set_title(title, fontsize=9)
                panel.axis("off")
    return report


def lone_pixel(pictures: Pictures) -> tuple[int, int] | None:
    """Return picture and pixel of the first bright pixel that is dark all around, two pixels wide, nearest to the left side."""
    height, width, _ = pictures.shape
    tables = pictures.rows.reshape(-1, height, width)
    wide = np.pad(tables, ((0, 0), (2, 2), (2, 2)))
    window = sum(wide[:, i : i + height, j : j + width] for i in range(5) for j in range(5))
    found = np.argwhere((tables > 100) & (window == tables))
    if not len(found):
        return None
    index, down, right = found[np.argmin(found[:, 2])]
    return int(index), int(down * width + right)


def _circle(x: int, y: int, radius: float) -> Any:
    from matplotlib.patches import Circle

    return Circle((x, y), radius, fill=False, color="C1")


def table_1(quick: bool, pictures: Path | None) -> Report:
    """List the tables of figure 1."""
    report = Report()
    sizes = [(table.name, table.rows.shape, len(np.unique(table.labels))) for table in large_tables(quick)]
    report.figures = {name: shape for name, shape, _ in sizes}
    known = ["442 x 10", "569 x 30", "150 x 4", "70,000 x 784 (MNIST)", "60,000 x 3,072 (CIFAR-10)"]
    lines = [
        [name, f"{shape[0]:,} x {shape[1]:,}", str(classes), tutorial]
        for (name, shape, classes), tutorial in zip(sizes, known, strict=True)
    ]
    report.table("tables of figure 1", ["table", "shape", "classes in colours", "in the tutorial"], lines)
    return report


def table_2(quick: bool, pictures: Path | None) -> Report:
    """Count the axes that carry 90, 95 and 99 % of the variance."""
    report, lines = Report(), []
    for table in large_tables(quick):
        counts = counts_of(fitted(table))
        report.figures[table.name] = counts
        d = table.rows.shape[1]
        lines.append([table.name, str(d), *(f"{count} ({count / d:.0%})" for count in counts)])
    report.table(
        "number of axes for a share of the variance of z-scores", ["table", "d", "90 %", "95 %", "99 %"], lines
    )
    return report
