"""Approximate solvers on matrices with known spectra, measured part by part.

``orders``: 20,000 rows of 500 features, 40 columns, the first ten axes; rows in any order, and rows whose variances
drift in 10 and in 40 segments. What one pass gives, by every way of fitting, and what further passes add.

``columns``: the same figures against the number of columns and of passes, for five spectra.

``tropp``: the synthetic matrices of Tropp, Yurtsever, Udell & Cevher (2019), section 7.3: the error of a rank-10
approximation against storage. Their three-sketch algorithm stands beside it, with the best of its sizes for every
single matrix, which needs the answer to be known.

``halko``: the spectra of Halko, Martinsson, Shkolnisky & Tygert (2011) and of Yu et al. (2017): the spectral norm of
what k axes leave over, against the best there is.

``shares``: how many axes carry 90, 95 and 99 % of the variance of small tables (z-scores), exactly and as certified
from a sketch.

    .venv/bin/python scripts/reproduce/yardsticks.py --quick
    .venv/bin/python scripts/reproduce/yardsticks.py --json data/accuracy.json --pictures docs/pictures/accuracy
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _data import drifting_rows, with_singular_values
from _methods import (
    ADAPTIVE,
    ADAPTIVE_2,
    ADAPTIVE_3,
    CONVERSION,
    NYSTROM,
    NYSTROM_2,
    NYSTROM_3,
    PILOT,
    PILOT_2,
    Fitting,
    FloatArray,
    cell,
    compared,
    exact_fit,
    incremental,
    judged,
    median,
    passes,
)
from _report import Part, Report, brief, drawing, main, note
from _tropp import tropp

import streampca as sp

K = 10
SKETCH: dict[str, Any] = {"solver": "sketch"}
PILOT_500 = Fitting("Nyström, pilot of 500 rows", SKETCH | {"pilot": 500})
PILOT_2000 = Fitting("Nyström, pilot of 2,000 rows", SKETCH | {"pilot": 2000})
PILOT_500_2 = Fitting("Nyström, pilot of 500 rows, 2 passes", SKETCH | {"pilot": 500} | passes(2))
ORDERS = (
    CONVERSION,
    NYSTROM,
    PILOT_500,
    PILOT_2000,
    ADAPTIVE,
    NYSTROM_2,
    PILOT_500_2,
    ADAPTIVE_2,
    ADAPTIVE_3,
)


def spectrum(name: str, d: int) -> FloatArray:
    """Return d eigenvalues, largest first."""
    index = np.arange(1.0, d + 1)
    table = {
        "i^-0.5": index**-0.5,
        "i^-1": index**-1,
        "i^-2": index**-2,
        "10^-0.1i": 10.0 ** (-0.1 * index),
        "rank 10 + noise": np.where(index <= K, 1.0 / index, 0.01),
    }
    return table[name]


def orders(quick: bool, pictures: Path | None) -> Report:
    """Measure every way of fitting on rows in any order and on rows that drift."""
    n, d, size = (2500, 120, 30) if quick else (20_000, 500, 40)
    names = ("i^-1",) if quick else ("i^-0.5", "i^-1", "rank 10 + noise")
    drifts = (1, 10) if quick else (1, 10, 40)
    seeds = range(1 if quick else 10)
    small = f"adaptive, updates of {16 * size} rows"
    report = Report()
    for name in names:
        runs: dict[str, dict[int, list[dict[str, Any]]]] = {
            way: {drift: [] for drift in drifts} for way in (*(way.name for way in ORDERS), small)
        }
        for drift in drifts:
            for seed in seeds:
                rows = drifting_rows(n, spectrum(name, d), drift, seed)
                exact = exact_fit(rows, K)
                for way in ORDERS:
                    runs[way.name][drift].append(judged(exact, way.fit(rows, K, size, seed), K))
                values, axes = incremental(rows, size, 16 * size, 64, seed)
                runs[small][drift].append(compared(exact, values[:K], axes[:K]))
            note(f"{name}, {drift} segments: done")
        report.figures[name] = runs
        lines = []
        for way, found in runs.items():
            every = [run for drift in drifts for run in found[drift]]
            certified = ["", ""]
            if way != small:
                certified[0] = " / ".join(brief(median(found[drift], "width")) for drift in drifts)
                certified[1] = f"{sum(run['covered'] for run in every)} of {len(every)}"
            lines.append([way, *(cell(found[drift]) for drift in drifts), *certified])
        title = (
            f"eigenvalues {name}, {n:,} x {d}, q = {size}: similarity / relative difference of the first {K}, medians "
            f"of {len(seeds)} seeds"
        )
        orders = ["any order" if drift == 1 else f"{drift} segments" for drift in drifts]
        report.table(title, ["fit", *orders, "certified relative widths", "intervals hold"], lines)
    if pictures is not None:
        _draw_orders(pictures / "orders.png", report.figures)
    return report


def _draw_orders(path: Path, figures: dict[str, Any]) -> None:
    """Draw the relative difference of every way of fitting as points, and the certified width behind it."""
    with drawing(path, len(figures), width=5 * len(figures), height=4.4) as panels:
        for panel, (name, runs) in zip(panels, figures.items(), strict=True):
            for index, drift in enumerate(next(iter(runs.values()))):
                places = np.arange(len(runs)) + 0.22 * (index - 1)
                label = "any order" if drift == 1 else f"{drift} segments"
                middles = [median(found[drift], "difference") for found in runs.values()]
                widths = [median(found[drift], "width") for found in runs.values() if "width" in found[drift][0]]
                panel.plot(middles, places, "o", color=f"C{index}", label=label)
                panel.plot(widths, places[: len(widths)], "|", color=f"C{index}", label=f"{label}: certified width")
            panel.set_yticks(np.arange(len(runs)), list(runs) if panel is panels[0] else [""] * len(runs))
            panel.set(xscale="log", xlabel="relative difference of eigenvalues", title=name)
            panel.invert_yaxis()
            panel.grid(alpha=0.3)
        panels[-1].legend(fontsize=7)


def columns(quick: bool, pictures: Path | None) -> Report:
    """Measure both recoveries and further passes with 20, 40 and 80 random columns, where the covariance is known."""
    d, sizes = (200, (20, 40)) if quick else (1000, (20, 40, 80))
    seeds, ways = range(2 if quick else 8), (CONVERSION, NYSTROM, NYSTROM_2, NYSTROM_3)
    report, lines = Report(), []
    for name in ("i^-1", "10^-0.1i") if quick else ("i^-0.5", "i^-1", "i^-2", "10^-0.1i", "rank 10 + noise"):
        runs: dict[int, dict[str, list[dict[str, Any]]]] = {size: {way.name: [] for way in ways} for size in sizes}
        for seed in seeds:
            rows, _axes = with_singular_values(np.sqrt(d * spectrum(name, d)), seed)
            exact = exact_fit(rows, K, center=False, ddof=0)
            for size in sizes:
                for way in ways:
                    found = way.fit(rows, K, size, seed, center=False, ddof=0)
                    runs[size][way.name].append(judged(exact, found, K))
        report.figures[name] = runs
        lines += [[name, str(size), *(cell(runs[size][way.name]) for way in ways)] for size in sizes]
        note(f"{name}: done")
    title = f"{d:,} features: similarity / relative difference of the first {K}, medians of {len(seeds)} seeds"
    report.table(title, ["eigenvalues", "q", *(way.name for way in ways)], lines)
    return report


def halko_spectra(n: int) -> dict[str, FloatArray]:
    """Return the singular values of the published test matrices of side n."""
    index = np.arange(1.0, n + 1)
    halko = np.where(index <= 20, 10.0 ** (-4 * (index - 1) / 19), 1e-4 / np.maximum(index - 20, 1) ** 0.1)
    linear = np.where(index <= K, 1e-4 ** ((index - 1) / 9), 1e-4 * (n - index) / (n - K - 1))
    return {
        "Halko 2011, 5.1": halko,
        "Yu 2017: i^-2": index**-2,
        "Yu 2017: i^-3": index**-3,
        "Yu 2017: e^(-i/7)": np.exp(-index / 7),
        "Yu 2017: 10^(-i/10)": 10.0 ** (-index / 10),
        "10^(-4(i-1)/9), linear": linear,
    }


def halko(quick: bool, pictures: Path | None) -> Report:
    """Measure the spectral norm of what k axes leave over, in units of the next singular value."""
    n, seeds = (200, range(2)) if quick else (1000, range(5))
    ranks = ((16, 24),) if quick else ((16, 24), (20, 28), (24, 32), (50, 60))
    ways = (CONVERSION, NYSTROM, NYSTROM_2, PILOT_2)
    small = f"adaptive, updates of {n // 10} rows"
    names = [way.name for way in ways]
    report, lines = Report(), []
    for name, values in halko_spectra(n).items():
        pairs = ((K, 18),) if name.endswith("linear") else ranks
        runs: dict[int, dict[str, list[float]]] = {k: {way: [] for way in (small, *names)} for k, _ in pairs}
        for seed in seeds:
            rows, _axes = with_singular_values(values, seed)
            for k, size in pairs:
                found = {way.name: way.fit(rows, k, size, seed, center=False, ddof=0).components_ for way in ways}
                found[small] = incremental(rows, size, n // 10, 10, seed, center=False)[1][:k]
                for way, axes in found.items():
                    left = rows - (rows @ axes.T) @ axes
                    runs[k][way].append(float(np.sqrt(np.linalg.eigvalsh(left.T @ left)[-1]) / values[k]))
        report.figures[name] = runs
        for k, size in pairs:
            ratios = [f"{np.median(found):.4f}" for found in runs[k].values()]
            lines.append([name, str(k), str(size), brief(values[k]), *ratios])
        note(f"{name}: done")
    title = f"matrices of {n:,} x {n:,}: ‖X − XVVᵀ‖₂ over σₖ₊₁ (at best 1), medians of {len(seeds)} seeds"
    report.table(title, ["singular values", "k", "q", "σₖ₊₁", small, *names], lines)
    return report


def shares(quick: bool, pictures: Path | None) -> Report:
    """Count the axes that carry shares of the variance, and compare with what a sketch certifies."""
    wanted = (0.9, 0.95, 0.99)
    report, lines = Report(), []
    for name, size in (("diabetes", 6), ("breast-cancer", 18), ("iris", 3), ("digits", 40), ("wine", 10)):
        source = sp.sources.open_source(f"builtin:{name}")
        rows = source.read(0, source.shape[0])[0]
        counts = [sp.PCA(share, solver="covariance", scale=True).fit(rows).n_components_ for share in wanted]
        certificate = PILOT.fit(rows, 1, size, 0, scale=True).error_["components_for"]
        ranges = [certificate[str(share)] for share in wanted]
        report.figures[name] = {"exact": counts, "certified": ranges, "columns": size}
        spans = [f"{low} to {high}" if high else f"at least {low}" for low, high in ranges]
        found = [f"{count} ({span})" for count, span in zip(counts, spans, strict=True)]
        lines.append([name, f"{rows.shape[0]:,} x {rows.shape[1]}", *found, str(size)])
    title = "components for a share of the variance of z-scores: exact (certified from one sketch with a pilot)"
    report.table(title, ["table", "shape", "90 %", "95 %", "99 %", "q"], lines)
    return report


PARTS: dict[str, Part] = {"orders": orders, "columns": columns, "tropp": tropp, "halko": halko, "shares": shares}

if __name__ == "__main__":
    main(PARTS, __doc__)
