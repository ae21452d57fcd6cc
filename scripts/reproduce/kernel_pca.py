"""Kernel PCA by every method on digits and on patches of photographs, against the exact method.

``kernels``: on the digits, similarity of eigenvectors and relative difference of eigenvalues of the first ten eigenpairs, for the kernels
of Marukatat (2023), tanh(a x·y) with a = 1e-4, a Gaussian with γ = 1e-4, a polynomial of degree 5, and their sum, and for
a Gaussian with γ = 1 / d; by the empirical kernel map (with both recoveries), by the classical extension and by features of
landmarks (with every way of drawing them), each with q columns or landmarks. Hashing appears with entries ± 1/√l,
as here, and with ± 1/l, as published.

``patch-kernels``: the same on patches.

``textbook``: kernel PCA of two variables with a linear kernel beside PCA: n − 1 and n as divisors, and K centred.

Data: z-scores of 1,797 digits (64 features) and of 1,500 patches (3,072 features; 600 with ``--quick``).

    .venv/bin/python scripts/reproduce/kernel_pca.py --quick
    .venv/bin/python scripts/reproduce/kernel_pca.py --json data/kernel.json --pictures docs/pictures/accuracy
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _data import FloatArray, digits, patches, z_scores
from _kernel_methods import WAYS, cell, kernels_of, mean, measured
from _report import Part, Report, drawing, main, note

import streampca as sp
from streampca.kernels import RBF


def kernels(quick: bool, pictures: Path | None) -> Report:
    """Measure every method with every kernel on the digits."""
    return _measured("digits", z_scores(digits(1797)), quick, pictures)


def patch_kernels(quick: bool, pictures: Path | None) -> Report:
    """Measure every method with every kernel on patches of photographs, whose fits take several times as long."""
    return _measured("patches", z_scores(patches(600 if quick else 1500)), quick, pictures, repetitions=2)


def _measured(name: str, rows: FloatArray, quick: bool, pictures: Path | None, repetitions: int = 10) -> Report:
    sizes, seeds = ((50, 100), range(2)) if quick else ((50, 100, 200, 400), range(repetitions))
    report = Report()
    report.figures[name] = {}
    d = rows.shape[1]
    for label, kernel in (kernels_of(d) | {"RBF 1/d": RBF(1 / d)}).items():
        found = report.figures[name][label] = measured(rows, kernel, WAYS, sizes, seeds)
        lines = [[way, *(cell(runs[size]) for size in sizes)] for way, runs in found.items()]
        shape = f"{rows.shape[0]} x {rows.shape[1]}"
        title = f"{name} ({shape}), {label}: similarity / relative difference, {len(seeds)} repetitions"
        report.table(title, ["method", *(f"q = {size}" for size in sizes)], lines)
        note(f"{name}, {label}: done")
    if pictures is not None:
        _draw(pictures / f"kernels-{name}.png", report.figures[name], sizes)
    return report


def _draw(path: Path, found: dict[str, Any], sizes: tuple[int, ...]) -> None:
    """Draw 1 − similarity against q, one panel for each kernel."""
    with drawing(path, len(found), n_rows=1, width=3.4 * len(found), height=4.2) as panels:
        for axes, (label, methods) in zip(panels, found.items(), strict=True):
            for way in WAYS:
                if way.name in methods and way.factor == 1:  # a factor of the eigenvalues changes no eigenvector
                    missed = [1 - mean(methods[way.name][size], "similarity") for size in sizes]
                    axes.plot(sizes, np.maximum(missed, 1e-12), way.style, marker="o", markersize=3, label=way.name)
            axes.set(xscale="log", yscale="log", xlabel="q", title=label)
            axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("1 − similarity")
        panels[-1].legend(fontsize=6)


def textbook(quick: bool, pictures: Path | None) -> Report:
    """Show on two variables that a linear kernel gives PCA."""
    rows = np.array(
        [
            [2.5, 2.4],
            [0.5, 0.7],
            [2.2, 2.9],
            [1.9, 2.2],
            [3.1, 3.0],
            [2.3, 2.7],
            [2.0, 1.6],
            [1.0, 1.1],
            [1.5, 1.6],
            [1.1, 0.9],
        ]
    )
    n = len(rows)
    kernel = sp.KernelPCA(2, kernel="linear", method="exact").fit(rows)
    linear, over_n = sp.PCA(2).fit(rows), sp.PCA(2, ddof=0).fit(rows)
    middle = np.eye(n) - 1 / n
    direct = np.linalg.eigvalsh(middle @ rows @ rows.T @ middle)[::-1][:2]
    values: dict[str, Callable[[int], float]] = {
        "eigenvalues of the centred K": lambda i: float(kernel.eigenvalues_[i]),
        "the same, H K Hᵀ by hand": lambda i: float(direct[i]),
        "PCA over n − 1, times n − 1": lambda i: float(linear.explained_variance_[i] * (n - 1)),
        "PCA over n, times n": lambda i: float(over_n.explained_variance_[i] * n),
    }
    report = Report()
    report.figures = {name: [value(0), value(1)] for name, value in values.items()}
    scores = np.abs(kernel.transform(rows)) - np.abs(linear.transform(rows))
    report.figures["largest difference of scores"] = float(np.abs(scores).max())
    lines = [[name, *(f"{value(i):.6f}" for i in range(2))] for name, value in values.items()]
    report.table("two variables, ten rows: a linear kernel is PCA", ["what", "first", "second"], lines)
    return report


PARTS: dict[str, Part] = {"kernels": kernels, "patch-kernels": patch_kernels, "textbook": textbook}

if __name__ == "__main__":
    main(PARTS, __doc__)
