"""The number of components by every rule: a table, and the eigenvalues with the edges of noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streampca.runs.report import words
from streampca.runs.report.figures import (
    ACCENT,
    INK,
    MOST_DOTS,
    MUTED,
    SECOND,
    component_axis,
    decades,
    dots,
    inline,
    plain,
)
from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.result import field
from streampca.runs.report.run_files import RunFiles
from streampca.typing import FloatArray, Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {
    "parallel": "parallel analysis",
    "marchenko_pastur": "Marchenko–Pastur",
    "tracy_widom": "Tracy–Widom",
    "gavish_donoho": "Gavish–Donoho",
    "cross_validation": "cross-validation",
    "mle": "Minka's evidence",
}
_EDGES = ("parallel", "marchenko_pastur", "tracy_widom", "gavish_donoho")
_FEWEST = 20
"""Eigenvalues that are drawn at least, if there are so many."""
_CLOSE = 0.06
"""Thresholds that are closer than this share of the height have one text."""


def component_count(run: RunFiles) -> Json | None:
    """Return what the rules say of a run; None where no rule applies, or the manifest has none, as of version 0.1."""
    stated = field(run.manifest, "result", "component_rules")
    if not isinstance(stated, dict):
        return None
    rows, numbers, edges = [], [], {}
    for rule, title in _TITLES.items():
        entry = stated.get(rule)
        number = words.whole(field(entry, "n_components"))
        count = "–" if number is None else f"at least {number:,}" if field(entry, "at_least") is True else f"{number:,}"
        noise, edge = (words.number(field(entry, "figures", name)) for name in ("noise_variance", "threshold"))
        shown = (words.figure(value) if value is not None else "" for value in (noise, edge))
        rows.append((title, count, *shown, words.clean(field(entry, "statement"))))
        if number is not None:
            numbers.append(number)
        if number is not None and edge is not None and rule in _EDGES:
            edges[title] = edge
    if not numbers:
        return None
    table = ReportTable(
        "What each rule takes for more than noise",
        ("rule", "components", "noise variance", "threshold", ""),
        tuple(rows),
    )
    low, high = min(numbers), max(numbers)
    between = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    lead = f"{between} component{'' if high == 1 and low == 1 else 's'} by the rules that apply; the run has {run.n_components:,}."
    chart = _chart(run, edges, high) if edges else None
    return {"lead": lead, "chart": chart, "table": table}


def _chart(run: RunFiles, edges: dict[str, float], highest: int) -> Chart:
    """Return the first eigenvalues, some more than the highest number of the rules, with the thresholds."""
    known = run.explained_variance if run.eigenvalues is None else run.eigenvalues
    values = np.clip(known[: max(_FEWEST, 2 * highest, run.n_components)], 0.0, None)
    listed = ", ".join(f"{title} {words.figure(edge)}" for title, edge in edges.items())
    return Chart(
        "Eigenvalues and the edges of noise",
        scree(values, edges, run.n_components),
        f"Chart of the first {words.plural(len(values), 'eigenvalue')} with the thresholds of the rules: {listed}. The first is {words.figure(values[0])}, the last {words.figure(values[-1])}.",
        f"Thresholds: {listed}.",
        (
            ("accent", "kept"),
            *((("muted", "left out"),) if len(values) > run.n_components else ()),
            ("edge", "threshold"),
        ),
    )


def scree(values: FloatArray, edges: dict[str, float], n_components: int) -> str:
    """Return eigenvalues on a logarithmic scale where they span two decades, with a dashed line for each threshold."""
    k = len(values)
    positive = values[values > 1e-12 * float(values.max(initial=0.0))]
    logarithmic = len(positive) > 1 and positive.max() > 100 * positive.min()
    shown = np.where(values >= positive.min(initial=np.inf), values, np.nan) if logarithmic else values

    def draw(axes: Axes) -> None:
        number = np.arange(1, k + 1)
        axes.grid(axis="y")
        if logarithmic:
            axes.set_yscale("log")
            decades(axes)
        marked = dots(min(k, MOST_DOTS))  # nothing but dots is drawn here, however many there are
        axes.plot(number[:n_components], shown[:n_components], color=ACCENT, linewidth=0, **marked)
        axes.plot(number[n_components:], shown[n_components:], color=MUTED, linewidth=0, **marked)
        low, high = (float(positive.min()), float(positive.max())) if len(positive) else (0.0, 1.0)
        drawn = [edge for edge in edges.values() if edge > 0]
        low, high = min([low, *drawn]), max([high, *drawn])
        if logarithmic:
            axes.set_ylim(low * (low / high) ** 0.1, high * (high / low) ** 0.06)
        else:
            axes.set_ylim(0, 1.08 * high)
            plain(axes.yaxis)
        component_axis(axes, k)
        _draw_edges(axes, shown, edges)
        axes.set_ylabel("variance (eigenvalue)")

    return inline("scree", draw)


def _draw_edges(axes: Axes, values: FloatArray, edges: dict[str, float]) -> None:
    """Draw a dashed line for each positive threshold; those that nearly coincide have one text.

    Eigenvalues fall, so that above the right end of a line and below its left end there are none: the text stands at the end
    that is farther from where they cross it.
    """
    for edge in edges.values():
        if edge > 0:
            axes.axhline(edge, color=SECOND, linewidth=1, dashes=(3, 2.5))
    groups: list[list[tuple[float, float, str]]] = []
    for title, edge in sorted(edges.items(), key=lambda item: item[1]):
        if edge > 0:
            place = float(axes.transAxes.inverted().transform(axes.transData.transform((1.0, edge)))[1])
            if not groups or place - groups[-1][-1][0] > _CLOSE:
                groups.append([])
            groups[-1].append((place, edge, title))
    left, right = axes.get_xlim()
    for group in groups:
        title = ", ".join(title for _, _, title in reversed(group))
        below = group[0][0] > _CLOSE and np.sum(values > group[0][1]) > len(values) / 2
        at, edge, ends = (left, group[0][1], ("left", "top")) if below else (right, group[-1][1], ("right", "bottom"))
        axes.annotate(
            title,
            (at, edge),
            (0, -3 if below else 3),
            textcoords="offset points",
            color=INK,
            ha=ends[0],
            va=ends[1],
            fontsize=9,
        )
