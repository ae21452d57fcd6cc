"""Figures 4 to 7 and table 3 of the tutorial: smaller pictures, groups of pixels, and transforms that preserve dot products."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _data import FloatArray
from _methods import METHODS, Method
from _pictures import Pictures, coloured, faces, handwritten, resized
from _report import Report, brief, drawing, note

import streampca as sp
from streampca.transforms import GaussianProjection, Grouping

N_AXES = 10
HASHING = ("Gaussian", "hashing, l = 5", "hashing, l = 5, entries 1/l", "hashing, l = 1")


def resolutions(pictures: Pictures) -> list[Pictures]:
    """Return pictures in the three resolutions of the tutorial, or in as many shares of a smaller side."""
    height, width, _ = pictures.shape
    return [pictures, *(resized(pictures, round(height * share), round(width * share)) for share in (89 / 112, 0.5))]


def figure_4(quick: bool, pictures: Path | None) -> Report:
    """Draw the first ten axes of faces at three resolutions, and compare what they say of the pictures."""
    report, lines, axes = Report(), [], []
    whole: Any = None
    for small in resolutions(faces()):
        pca = sp.PCA(N_AXES, solver="gram").fit(small.rows)
        centred = small.rows - pca.mean_
        gram = sp.conversion.gram_vectors_from_components(
            centred, pca.components_, pca.explained_variance_ * (len(centred) - 1)
        ).T
        height, width, _ = small.shape
        axes.append((f"{width} x {height}", pca.components_.reshape(N_AXES, height, width)))
        if whole is None:
            whole = gram, pca.explained_variance_ / pca.total_variance_, faces().rows - faces().rows.mean(axis=0), pca
            continue
        # Algorithm 3: eigenvectors of the dot matrix of small pictures, carried back through the large ones.
        converted = gram @ whole[2]
        figures = {
            "dot matrix": sp.metrics.similarities(whole[0], gram),
            "converted": sp.metrics.similarities(whole[3].components_, converted),
            "shares": sp.metrics.relative_differences(whole[1], pca.explained_variance_ / pca.total_variance_),
        }
        report.figures[axes[-1][0]] = {name: values.tolist() for name, values in figures.items()}
        lines += [[axes[-1][0], name, *(f"{value:.4f}" for value in values)] for name, values in figures.items()]
    names = {
        "dot matrix": "similarity of eigenvectors of the dot matrix",
        "converted": "similarity of axes after Algorithm 3",
        "shares": "relative difference of the shares of the variance",
    }
    lines = [[size, names[what], *values] for size, what, *values in lines]
    title = f"{faces().name}, {len(faces().rows)} pictures: small against {axes[0][0]}, axis by axis"
    report.table(title, ["size", "measure", *map(str, range(1, N_AXES + 1))], lines)
    if pictures is not None:
        path = pictures / "figure-4.png"
        with drawing(path, 3 * N_AXES, n_rows=3, width=10, height=4.2) as panels:
            for i, (size, images) in enumerate(axes):
                for j, image in enumerate(images):
                    limit = np.abs(image).max()
                    panel = panels[i * N_AXES + j]
                    panel.imshow(image, cmap="gray", vmin=-limit, vmax=limit)
                    panel.set(xticks=[], yticks=[])
                    if i == 0:
                        panel.set_title(str(j + 1), fontsize=8)
                panels[i * N_AXES].set_ylabel(size, fontsize=8)
    return report


def figure_5(quick: bool, pictures: Path | None) -> Report:
    """Draw a face, the same made small and large again, and with groups of pixels; bound what that does to eigenvalues."""
    small = resolutions(faces())[-1] if faces().rows.shape[1] > 4000 else faces()
    if quick:
        small = resized(small, small.shape[0] // 2, small.shape[1] // 2)
    height, width, _ = small.shape
    d = height * width
    centred = small.rows - small.rows.mean(axis=0)
    covariance = centred.T @ centred / (len(centred) - 1)
    blocks = Grouping.of_pictures((height, width), 2)
    order = np.random.default_rng(0).permutation(d)
    runs = Grouping(d, blocks.size, membership=tuple(Grouping(d, blocks.size).groups()[order]))
    chosen = Grouping.by_correlation(covariance, blocks.size)
    report, lines = Report(), []
    exact = np.linalg.eigvalsh(centred @ centred.T / (len(centred) - 1))[::-1]
    for name, grouping in (("2 x 2 pixels", blocks), ("pixels by correlation", chosen), ("pixels at random", runs)):
        groups = grouping.groups()
        first = np.unique(groups, return_index=True)[1][groups]
        old = np.flatnonzero(first != np.arange(d))
        replaced, meant = centred[:, first], grouping.inverse_transform(grouping.transform(centred))
        bounds = {
            "one pixel for all": [
                sp.metrics.replacement_bound(covariance, old, first[old], norm) for norm in ("frobenius", "spectral")
            ],
            "mean": [sp.metrics.grouping_bound(covariance, groups, norm) for norm in ("frobenius", "spectral")],
        }
        for how, rows in (("one pixel for all", replaced), ("mean", meant)):
            values = np.linalg.eigvalsh(rows @ rows.T / (len(rows) - 1))[::-1]
            true = float(np.abs(values - exact).max())
            numbers = np.array([true, *bounds[how][::-1]]) / exact[0]
            report.figures[f"{name}, {how}"] = dict(
                zip(("change", "spectral", "frobenius"), numbers.tolist(), strict=True)
            )
            lines.append([name, how, *map(brief, numbers)])
    title = (
        f"{small.name} as {width} x {height}, {blocks.size} groups of {d} pixels: largest change of an eigenvalue of the covariance, "
        "and its bounds, over the first eigenvalue"
    )
    report.table(title, ["groups", "values of a group", "change", "‖D‖₂", "‖D‖_F (eq. 35)"], lines)
    if pictures is not None:
        _draw_groups(pictures / "figure-5.png", faces(), small, chosen)
    return report


def _draw_groups(path: Path, whole: Pictures, small: Pictures, chosen: Grouping) -> None:
    from PIL import Image

    height, width, _ = whole.shape
    image = whole.rows[0]
    half = resized(Pictures("", image[np.newaxis], whole.labels[:1], whole.shape), height // 2, width // 2)
    up = Image.fromarray(half.rows.reshape(half.shape[:2]).astype(np.float32)).resize((width, height))
    blocks = Grouping.of_pictures((height, width), 2)
    corner = image[np.unique(blocks.groups(), return_index=True)[1][blocks.groups()]]
    correlated = chosen.inverse_transform(chosen.transform(small.rows[:1]))
    drawn = {
        "original": image,
        "smaller, then larger": np.asarray(up),
        "2 x 2: top left pixel": corner,
        "2 x 2: mean": blocks.inverse_transform(blocks.transform(image[np.newaxis])),
        f"by correlation, {small.shape[1]} x {small.shape[0]}": correlated,
    }
    with drawing(path, len(drawn), width=10, height=2.8) as panels:
        for panel, (title, values) in zip(panels, drawn.items(), strict=True):
            shape = whole.shape[:2] if values.size == height * width else small.shape[:2]
            panel.imshow(values.reshape(shape), cmap="gray", vmin=0, vmax=255)
            panel.set_title(title, fontsize=8)
            panel.axis("off")


def for_dot_products(quick: bool) -> list[Pictures]:
    """Return four tables of pictures, from few features to many."""
    n = 100 if quick else 400
    small = resized(faces(), faces().shape[0] // 3, faces().shape[1] // 3)
    return [handwritten().some(n), small.some(n), coloured(n), faces().some(n)]


def figure_6(quick: bool, pictures: Path | None) -> Report:
    """Draw the error of dot products against the number of columns, for Gaussian projection and hashing."""
    sizes = (500, 1000, 2000) if quick else (500, 1000, 2000, 3000, 5000)
    seeds = range(2 if quick else 10)
    methods = [method for method in METHODS if method.name in HASHING]
    report = Report()
    for table in for_dot_products(quick):
        name, rows = f"{table.name}, {table.rows.shape[1]:,} features", table.rows
        errors = {
            method.name: {size: [_error(method, rows, size, seed) for seed in seeds] for size in sizes}
            for method in methods
        }
        report.figures[name] = errors
        note(f"{name}: done")
    lines = [
        [name, way, *(f"{np.mean(errors[way][size]):.3f}" for size in sizes)]
        for name, errors in report.figures.items()
        for way in errors
    ]
    title = f"mean of |error| / |dot product| over pairs of pictures, {len(seeds)} draws"
    report.table(title, ["pictures", "transform", *(f"q = {size}" for size in sizes)], lines)
    if pictures is not None:
        _draw_errors(pictures / "figure-6.png", report.figures, sizes)
    return report


def _error(method: Method, rows: FloatArray, size: int, seed: int) -> float:
    transform = method.make(rows.shape[1], size, seed)
    return sp.metrics.dot_product_error(rows, transform.transform(rows) * method.factor)


def _draw_errors(path: Path, figures: dict[str, Any], sizes: tuple[int, ...]) -> None:
    with drawing(path, 2 * len(figures), n_rows=2, width=11, height=5) as panels:
        for i, (name, errors) in enumerate(figures.items()):
            for down in range(2):
                panel = panels[down * len(figures) + i]
                for method in (method for method in METHODS if method.name in errors):
                    if ("hashing" in method.name) == bool(down):
                        runs = np.array([errors[method.name][size] for size in sizes])
                        panel.errorbar(
                            sizes,
                            runs.mean(axis=1),
                            runs.std(axis=1),
                            fmt=method.style,
                            marker="o",
                            ms=3,
                            label=method.name,
                        )
                panel.set_ylim(0, None if down else 0.15)
                panel.tick_params(labelsize=7)
                panel.grid(alpha=0.3)
                panel.set_xlabel("columns q", fontsize=8)
                if not down:
                    panel.set_title(name, fontsize=9)
        for panel, ways in ((panels[0], "Gaussian"), (panels[len(figures)], "hashing")):
            panel.set_ylabel(f"{ways}: |error| / |dot product|", fontsize=8)
            panel.legend(fontsize=6)


def two_classes(quick: bool) -> list[Pictures]:
    """Return four tables of pictures of two classes."""
    digits, patches = handwritten(), coloured(600 if quick else 4000)
    pairs = [digits.of_classes(*pair) for pair in ((0, 1), (4, 9))]
    persons = np.unique(faces().labels)
    halves = np.isin(faces().labels, persons[: len(persons) // 2]).astype(np.int64)
    return [
        *pairs,
        Pictures(
            f"{faces().name}, two halves", faces().rows, halves, faces().shape, ("other persons", "persons 1 to 20")
        ),
        patches,
    ]


def figure_7(quick: bool, pictures: Path | None) -> Report:
    """Draw eigenvalues and scores of approximate PCA through a Gaussian projection, beside exact ones."""
    report, lines, drawn = Report(), [], []
    for table in two_classes(quick):
        rows = table.rows
        size = min(500, rows.shape[1] // 2)
        exact = sp.PCA(N_AXES).fit(rows)
        found = sp.PCA(
            N_AXES, solver="sketch", sketch="gaussian", pilot=0, sketch_size=size, recovery="conversion"
        ).fit(rows)
        # All q eigenvalues of the small covariance, which the tutorial draws.
        z = GaussianProjection(rows.shape[1], size).transform(rows - rows.mean(axis=0))
        values = np.linalg.eigvalsh(z.T @ z / (len(z) - 1))[::-1]
        kept = values[: min(size, len(z) - 1)]
        full = sp.PCA(min(size, *rows.shape), solver="gram" if len(rows) < rows.shape[1] else "covariance").fit(rows)
        axes = sp.metrics.similarities(exact.components_, found.components_)
        differences = sp.metrics.relative_differences(exact.explained_variance_, kept[:N_AXES])
        report.figures[table.name] = {"size": size, "similarities": axes.tolist(), "differences": differences.tolist()}
        lines.append(
            [table.name, f"{rows.shape[0]:,} x {rows.shape[1]:,}", str(size)]
            + [f"{value:.3f}" for value in (axes[0], axes[1], axes.mean(), differences[0], differences.mean())]
            + [f"{kept[:N_AXES].sum() / kept.sum():.3f}", f"{exact.explained_variance_ratio_.sum():.3f}"]
        )
        drawn.append((table, kept, full, found.transform(rows)[:, :2]))
    head = [
        "pictures",
        "shape",
        "q",
        "similarity of axis 1",
        "of axis 2",
        "mean of 10",
        "difference of eigenvalue 1",
        "mean of 10",
    ]
    report.table(
        "approximate PCA through a Gaussian projection (Algorithm 4) against exact PCA",
        [*head, "share of 10 axes, of the q eigenvalues", "exact"],
        lines,
    )
    if pictures is not None:
        _draw_approximate(pictures / "figure-7.png", drawn)
    return report


def _draw_approximate(path: Path, drawn: list[tuple[Pictures, FloatArray, sp.PCA, FloatArray]]) -> None:
    with drawing(path, 3 * len(drawn), n_rows=3, width=11, height=7) as panels:
        for i, (table, values, exact, scores) in enumerate(drawn):
            top, middle, bottom = (panels[row * len(drawn) + i] for row in range(3))
            number = np.arange(1, len(values) + 1)
            reference = exact.explained_variance_
            top.plot(number, values, label="approximate, Algorithm 4")
            top.plot(np.arange(1, len(reference) + 1), reference, "--", color="0.4", label="exact")
            top.set(yscale="log", title=f"{table.name}", ylim=(reference[0] * 1e-5, reference[0] * 2))
            middle.plot(number, np.cumsum(values) / values.sum())
            shares = np.cumsum(exact.explained_variance_ratio_)
            middle.plot(np.arange(1, len(shares) + 1), shares, "--", color="0.4")
            middle.set_ylim(0, 1.02)
            order = np.random.default_rng(0).permutation(len(scores))[:2000]
            numbers = np.unique(table.labels)
            colours = np.where(table.labels == numbers[0], "tab:red", "tab:blue")
            bottom.scatter(*scores[order].T, c=colours[order], s=4, linewidths=0)
            for label, colour in zip(numbers, ("tab:red", "tab:blue"), strict=True):
                bottom.scatter([], [], c=colour, s=12, label=table.classes[label])
            bottom.legend(fontsize=6, handletextpad=0)
            for panel, name in ((top, "axis"), (middle, "number of axes"), (bottom, "score on axis 1")):
                panel.tick_params(labelsize=7)
                panel.set_xlabel(name, fontsize=8)
            top.title.set_fontsize(9)
            top.legend(fontsize=6)
        for row, label in enumerate(("eigenvalue", "cumulated share of the variance", "score on axis 2")):
            panels[row * len(drawn)].set_ylabel(label, fontsize=8)


def table_3(quick: bool, pictures: Path | None) -> Report:
    """List the features of figures 6 and 7."""
    report = Report()
    tables = for_dot_products(quick)
    report.figures = {f"{table.name}, {table.rows.shape[1]}": list(table.rows.shape) for table in tables}
    sizes = [[f"{t.name}, {t.shape[1]} x {t.shape[0]} x {t.shape[2]}", f"{t.rows.shape[1]:,}"] for t in tables]
    report.table("features of figure 6", ["pictures", "features"], sizes)
    return report
