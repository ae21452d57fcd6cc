"""The number of components by every rule: a table, and the eigenvalues with the edges of noise."""

from __future__ import annotations

from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.runs.report import figures
from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.run_files import RunFiles
from streampca.typing import Json

_FEWEST = 20
"""Eigenvalues that are drawn at least, if there are so many."""


def component_count(run: RunFiles) -> Json | None:
    """Return what the rules say of the model of a run; None where no rule applies."""
    rows, numbers, edges, others = [], [], {}, dict[str, list[str]]()
    for rule in run.pca.component_rules.values():
        number = rule.n_components
        if number is None:
            others.setdefault(rule.statement.removeprefix("does not apply: "), []).append(rule.title)
            continue
        noise, edge = (rule.figures.get(name) for name in ("noise_variance", "threshold"))
        shown = (words.figure(value) if value is not None else "" for value in (noise, edge))
        rows.append((rule.title, rule.count, *shown, rule.statement))
        numbers.append(number)
        if edge is not None:
            edges[rule.title] = edge
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
    if others:
        listed = "; ".join(f"{', '.join(titles)} ({reason})" for reason, titles in others.items())
        lead += f" Does not apply: {listed}."
    chart = _chart(run, edges, high) if edges else None
    return {"lead": lead, "chart": chart, "table": table}


def _chart(run: RunFiles, edges: dict[str, float], highest: int) -> Chart:
    """Return the first eigenvalues, some more than the highest number of the rules, with the thresholds."""
    known = run.explained_variance if run.eigenvalues is None else run.eigenvalues
    values = np.clip(known[: max(_FEWEST, 2 * highest, run.n_components)], 0.0, None)
    listed = ", ".join(f"{title} {words.figure(edge)}" for title, edge in edges.items())
    return Chart(
        "Eigenvalues and the edges of noise",
        figures.inline(
            "scree", partial(plotting.scree, values=values, n_kept=run.n_components, thresholds=edges), height=3.9
        ),
        f"Chart of the first {words.plural(len(values), 'eigenvalue')} with the thresholds of the rules: {listed}. The first is {words.figure(values[0])}, the last {words.figure(values[-1])}.",
        f"Thresholds: {listed}.",
    )
