"""Eigenvectors and eigenvalues of pictures from sketches: both recoveries, pilots, incremental updates, more passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _data import digits, patches, z_scores
from _methods import (
    ADAPTIVE,
    ADAPTIVE_2,
    CONVERSION,
    METHODS,
    NYSTROM,
    NYSTROM_2,
    PILOT,
    PILOT_2,
    FloatArray,
    cell,
    compared,
    exact_fit,
    judged,
    median,
)
from _report import Report, brief, drawing, note
from numpy.typing import NDArray

from streampca.accumulators import Sketch
from streampca.linalg.nystrom import converted, nystrom
from streampca.transforms import CountSketch, GaussianProjection

K = 10
FITTINGS = (CONVERSION, NYSTROM, PILOT, ADAPTIVE, NYSTROM_2, PILOT_2, ADAPTIVE_2)
_MOST_NYSTROM = 800  # columns from which on nothing changes in the fourth digit


@dataclass(frozen=True)
class Table:
    """Rows to be measured on, and numbers of columns to do it with."""

    name: str
    """Its name in tables and pictures."""
    load: Callable[[bool], NDArray[Any]]
    """From whether to be quick to the rows, ``(n, d)``."""
    sizes: tuple[int, ...]
    """Numbers of columns q for both recoveries."""
    few: tuple[int, ...]
    """Numbers of columns q for informed sketches."""


TABLES = (
    Table(
        "digits, z-scores",
        lambda quick: z_scores(digits(1797)),
        (20, 40, 60, 100, 200, 500, 1000, 2000),
        (20, 40, 60),
    ),
    Table(
        "patches",
        lambda quick: patches(300 if quick else 4000).astype(np.float32),
        (20, 50, 100, 200, 500, 1000, 2000, 3000),
        (20, 50, 100, 200),
    ),
)


def _seeds(size: int, quick: bool) -> range:
    """Return the seeds that are affordable."""
    if quick:
        return range(2)
    return range(10 if size <= 500 else 3)


def both_recoveries(rows: NDArray[Any], test: FloatArray, k: int) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Return the first k eigenvalues and eigenvectors, in rows, by both recoveries from the products with Ω = `test`.

    The directions of the conversion are those of the literature, which are not orthogonal; `streampca.PCA` reports them
    after Gram–Schmidt.
    """
    sketch = Sketch(np.asarray(test, dtype=rows.dtype))
    known = sketch.finalize(sketch.update(sketch.init(rows.shape[1]), rows))
    literature = converted(known.products, known.test, n_components=k)
    found = {"conversion": (literature.values, literature.directions.T)}
    if test.shape[1] <= min(_MOST_NYSTROM, rows.shape[1]):
        best = nystrom(known.products, known.test, precision="float32" if rows.dtype == np.float32 else "float64")
        found["Nyström"] = best.values[:k], best.vectors[:, :k].T
    return found


def recovery(quick: bool, pictures: Path | None) -> Report:
    """Measure similarity and relative difference of both recoveries against the number of columns."""
    report = Report()
    for table in TABLES:
        rows = table.load(quick)
        exact = exact_fit(rows, K)
        sizes = (60, 200) if quick else table.sizes
        runs: dict[str, dict[int, list[dict[str, float]]]] = {}
        for size in sizes:
            for method in METHODS:
                if method.factor != 1:
                    continue
                for seed in _seeds(size, quick):
                    test = method.make(rows.shape[1], size, seed).matrix()
                    for recovered, (values, axes) in both_recoveries(rows, test, K).items():
                        judgement = compared(exact, values, axes)
                        runs.setdefault(f"{recovered}, {method.name}", {}).setdefault(size, []).append(judgement)
                        for published in METHODS:
                            # Ω times f gives ΩᵀCΩ times f², and the same directions.
                            if recovered == "conversion" and published.name.startswith(f"{method.name}, entries"):
                                judgement = compared(exact, values * published.factor**2, axes)
                                runs.setdefault(f"conversion, {published.name}", {}).setdefault(size, []).append(
                                    judgement
                                )
            note(f"{table.name}, {size} columns: done")
        report.figures[table.name] = runs
        names = sorted(runs, key=lambda name: name.startswith("Nyström"))
        lines = [[name, *(cell(runs[name][size]) if size in runs[name] else "" for size in sizes)] for name in names]
        title = (
            f"{table.name} ({rows.shape[0]:,} x {rows.shape[1]:,}): similarity / relative difference of the first {K} "
            f"eigenvectors and eigenvalues, medians of {_count(sizes, quick)}"
        )
        report.table(title, ["from the same products", *(f"q = {size}" for size in sizes)], lines)
        if pictures is not None:
            _draw_recoveries(pictures / f"recovery-{table.name.split(',')[0]}.png", table.name, runs)
    return report


def _count(sizes: Sequence[int], quick: bool) -> str:
    few, many = len(_seeds(max(sizes), quick)), len(_seeds(min(sizes), quick))
    return f"{many} seeds" if few == many else f"{many} seeds ({few} for q > 500)"


def _draw_recoveries(path: Path, name: str, runs: dict[str, dict[int, list[dict[str, float]]]]) -> None:
    """Draw medians of both figures against the number of columns."""
    from matplotlib.ticker import NullLocator

    sizes = sorted({size for found in runs.values() for size in found})
    with drawing(path, 2, width=13) as panels:
        for panel, figure in zip(panels, ("similarity", "difference"), strict=True):
            for index, method in enumerate(METHODS):
                for recovered, marker in (("conversion", "o"), ("Nyström", "s")):
                    found = runs.get(f"{recovered}, {method.name}", {})
                    if figure == "similarity" and method.factor != 1:
                        continue  # the scale does not turn a vector
                    middles = [median(found[size], figure) for size in found]
                    style = ":" if recovered == "Nyström" else method.style
                    label = f"{recovered}, {method.name}" if found else None
                    panel.plot(list(found), middles, style, color=f"C{index}", marker=marker, markersize=4, label=label)
            panel.set(xscale="log", xlabel="columns q", ylabel=f"median {figure}", title=name)
            panel.set_xticks(sizes, [str(size) for size in sizes], minor=False)
            panel.tick_params(axis="x", labelsize=8)
            panel.xaxis.set_minor_locator(NullLocator())
            panel.grid(alpha=0.3)
        panels[1].set_yscale("log")
        panels[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))


def passes(quick: bool, pictures: Path | None) -> Report:
    """Measure what `streampca.PCA` makes of few columns, by every way of fitting."""
    report = Report()
    for table in TABLES:
        rows = table.load(quick)
        exact = exact_fit(rows, K)
        sizes, lines = (60,) if quick else table.few, []
        figures: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for fitting in FITTINGS:
            runs = {
                size: [judged(exact, fitting.fit(rows, K, size, seed), K) for seed in _seeds(size, quick)]
                for size in sizes
            }
            figures[fitting.name] = runs
            every = [run for size in sizes for run in runs[size]]
            widths = ", ".join(brief(median(runs[size], "width")) for size in sizes)
            covered = f"{sum(run['covered'] for run in every)} of {len(every)}"
            lines.append([fitting.name, *(cell(runs[size]) for size in sizes), widths, covered])
            note(f"{table.name}, {fitting.name}: done")
        report.figures[table.name] = figures
        title = (
            f"{table.name} ({rows.shape[0]:,} x {rows.shape[1]:,}): similarity / relative difference of the first {K}, "
            f"medians of {len(_seeds(0, quick))} seeds, with what the certificate says"
        )
        head = ["fit", *(f"q = {size}" for size in sizes), "certified relative widths", "intervals hold"]
        report.table(title, head, lines)
    return report


def eigenvalues(quick: bool, pictures: Path | None) -> Report:
    """Show the leading eigenvalues that a sketch of few columns gives, beside the exact ones."""
    report = Report()
    for table in TABLES:
        rows = table.load(quick)
        size = table.few[-2]
        k = min(30, size)
        exact = exact_fit(rows, k).explained_variance_
        d, found = rows.shape[1], {"exact": exact}
        for label, transform in (
            ("Gaussian", GaussianProjection(d, size)),
            ("hashing, l = 5", CountSketch(d, size, 5)),
        ):
            for recovered, (values, _axes) in both_recoveries(rows, transform.matrix(), k).items():
                found[f"{recovered}, {label}"] = values
        found["conversion, hashing, l = 5, entries 1/l"] = found["conversion, hashing, l = 5"] / 5
        informed = PILOT.fit(rows, k, size, 0)
        found[PILOT.name] = informed.explained_variance_
        upper = np.array(informed.error_["eigenvalue_intervals"])[:, 1]
        report.figures[table.name] = {name: values.tolist() for name, values in found.items()} | {
            "upper": upper.tolist()
        }
        picked = [i for i in (1, 2, 5, 10, 20, 30) if i <= k]
        lines = [[name, *(f"{values[i - 1] / exact[i - 1]:.3f}" for i in picked)] for name, values in found.items()]
        lines.append([f"{PILOT.name}: certified upper end", *(f"{upper[i - 1] / exact[i - 1]:.3f}" for i in picked)])
        title = f"{table.name}, q = {size}: eigenvalues over the exact ones, one draw"
        report.table(title, ["", *(f"number {i}" for i in picked)], lines)
        if pictures is not None:
            path = pictures / f"eigenvalues-{table.name.split(',')[0]}.png"
            _draw_eigenvalues(path, f"{table.name}, q = {size}", found, upper)
    return report


def _draw_eigenvalues(path: Path, title: str, found: dict[str, FloatArray], upper: FloatArray) -> None:
    """Draw eigenvalues against their number, and the certified intervals of those with a pilot."""
    with drawing(path, width=8, height=5) as (axes,):
        for name, values in found.items():
            style = {"exact": "k-"}.get(name, "--" if name.startswith("conversion") else "-")
            axes.plot(np.arange(1, len(values) + 1), values, style, marker=".", label=name)
        lower = found[PILOT.name]
        axes.fill_between(np.arange(1, len(upper) + 1), lower, upper, alpha=0.2, color="C5", label="its intervals")
        axes.set(yscale="log", xlabel="number", ylabel="eigenvalue", title=title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
