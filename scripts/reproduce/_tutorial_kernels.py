"""Figures 8 and 9 of the tutorial: eigenvectors and eigenvalues of approximate kernel PCA of faces."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _data import FloatArray
from _kernel_methods import N_PAIRS, TUTORIAL, Runs, kernels_of, mean, measured
from _pictures import faces
from _report import Report, brief, drawing, note

SHOWN = 100
"""Columns for which every axis is shown."""
COLOURS = ("C0", "C1", "C1", "C2", "C3", "C3", "C4", "C4", "k", "0.5")


def coordinates(rows: FloatArray) -> FloatArray:
    """Return rows of as many features as there are rows, turned from `rows`: all dot products and distances are the same.

    The kernels depend on nothing else, and rows of 400 features take a fraction of the time of 10,304.
    """
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    turned: FloatArray = left * values
    return turned


def sizes_of(quick: bool) -> tuple[int, ...]:
    """Return the numbers of columns or landmarks; the tutorial does not print its own."""
    return (50, 100) if quick else (25, 50, 100, 150, 200, 300)


@cache
def results(quick: bool) -> dict[str, dict[str, Runs]]:
    """Return what every way gives for every kernel of the tutorial; both figures show it."""
    rows = coordinates(faces().z_scores)
    found = {}
    for label, kernel in kernels_of(1).items():
        found[label] = measured(rows, kernel, TUTORIAL, sizes_of(quick), range(1 if quick else 10))
        note(f"{label}: done")
    return found


def figure_8(quick: bool, pictures: Path | None) -> Report:
    """Draw the similarity of the first ten eigenvectors, in the mean against q, and by axis."""
    return _drawn(
        quick, pictures and pictures / "figure-8.png", "similarity", "similarities", "similarity of eigenvectors"
    )


def figure_9(quick: bool, pictures: Path | None) -> Report:
    """Draw the relative difference of the first ten eigenvalues, in the mean against q, and by axis."""
    title = "relative difference of eigenvalues"
    return _drawn(quick, pictures and pictures / "figure-9.png", "difference", "differences", title)


def _drawn(quick: bool, path: Path | None, one: str, by_axis: str, title: str) -> Report:
    report, sizes = Report(), sizes_of(quick)
    found = results(quick)
    n_runs = len(next(iter(next(iter(found.values())).values()))[sizes[0]])
    for label, ways in found.items():
        report.figures[label] = {
            way: {
                "by size": {size: mean(runs[size], one) for size in sizes},
                "by axis": mean(runs[SHOWN], by_axis).tolist(),
            }
            for way, runs in ways.items()
        }
        lines = []
        for way, runs in ways.items():
            axes = mean(runs[SHOWN], by_axis)
            lines.append(
                [way, *(_number(mean(runs[size], one)) for size in sizes), *(_number(axes[i]) for i in (0, 1, 9))]
            )
        head = ["way", *(f"q = {size}" for size in sizes), *(f"axis {i}, q = {SHOWN}" for i in (1, 2, 10))]
        shape = f"{faces().name}, {faces().rows.shape[0]} x {faces().rows.shape[1]:,}"
        report.table(f"{shape}, {label}: {title}, mean of the first {N_PAIRS}, {n_runs} repetitions", head, lines)
    if path is not None:
        _draw(path, found, sizes, (one, by_axis, title))
    return report


def _number(value: float) -> str:
    return brief(value) if value < 0.1 else f"{value:.3f}"


def _draw(path: Path, found: dict[str, dict[str, Runs]], sizes: tuple[int, ...], names: tuple[str, str, str]) -> None:
    one, by_axis, title = names
    with drawing(path, 2 * len(found), n_rows=2, width=12, height=6.4) as panels:
        for i, (label, ways) in enumerate(found.items()):
            top, bottom = panels[i], panels[len(found) + i]
            for way, colour in zip(TUTORIAL, COLOURS, strict=True):
                if way.name not in ways or (one == "similarity" and way.factor != 1):
                    continue  # a factor of the eigenvalues changes no eigenvector
                style: dict[str, Any] = {"ls": way.style, "marker": "o", "ms": 2.5, "color": colour, "label": way.name}
                top.plot(sizes, [mean(ways[way.name][size], one) for size in sizes], **style)
                bottom.plot(range(1, N_PAIRS + 1), mean(ways[way.name][SHOWN], by_axis), **style)
            for panel in (top, bottom):
                panel.set(ylim=(0, 1.03)) if one == "similarity" else panel.set(yscale="log", ylim=(1e-5, 30))
                panel.tick_params(labelsize=7)
                panel.grid(alpha=0.3)
            top.set_title(label, fontsize=9)
            top.set_xlabel("q", fontsize=8)
            bottom.set_xlabel(f"axis, q = {SHOWN}", fontsize=8)
        panels[0].set_ylabel(f"{title}, mean of {N_PAIRS}", fontsize=8)
        panels[len(found)].set_ylabel("by axis", fontsize=8)
        handles = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(*handles, loc="outside lower center", ncols=5, fontsize=7)
