"""Rows that do not fit: T² and Q with their limits, and the rows that are furthest beyond them."""

from __future__ import annotations

from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.runs.report import figures, projection
from streampca.runs.report.components import feature_name
from streampca.runs.report.layouts import Layout
from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.result import field
from streampca.runs.report.run_files import RunFiles
from streampca.runs.report.samples import RowPictures, name_of_row, rebuilt_rows
from streampca.typing import FloatArray, Json

_POINTS = 4000
_PIECE = 1 << 16


def outliers(run: RunFiles, layout: Layout | None, drawn: RowPictures | None) -> Json | None:
    """Return the section of rows that do not fit; None where the run has no T² and Q."""
    summary = field(run.manifest, "diagnostics")
    if not isinstance(summary, dict) or run.distances is None:
        return None
    limits = words.number(summary.get("t2_limit")), words.number(summary.get("q_limit"))
    listed = [row for row in summary.get("unusual_rows") or [] if isinstance(row, dict)]
    return {
        "lead": _lead(summary, limits),
        "chart": _chart(run, listed, limits),
        "table": _table(run, listed, limits, names=drawn is None),
        "rebuilt": None if run.removes or run.in_slabs else _rebuilt(run, layout, drawn),
    }


def _rebuilt(run: RunFiles, layout: Layout | None, drawn: RowPictures | None) -> Json | None:
    """Return the rows that fit least, rebuilt from rising numbers of components, as many as there is memory for."""
    if run.unusual is None:
        return None
    n = projection.n_reconstructed(run.n_features, len(run.unusual.index) if drawn else 6)
    names = [name_of_row(run, int(index)) for index in run.unusual.index[:n]]
    note = "The rows that fit least, most unusual first, rebuilt from rising numbers of components."
    return rebuilt_rows(run, run.unusual.values[:n], names, layout, drawn, note, "unusual")


def _lead(summary: dict[str, object], limits: tuple[float | None, float | None]) -> str:
    """Return what T² and Q are, and how many rows are beyond their limits."""
    n = words.whole(summary.get("n_rows")) or 0
    lead = "T² is how far a row is from the mean among the components, Q its squared distance from what they can represent."
    expected = f"{round(0.01 * n):,}"
    parts = []
    for key, name, limit in (("n_beyond_t2", "T²", limits[0]), ("n_beyond_q", "Q", limits[1])):
        count = words.whole(summary.get(key)) or 0
        if limit is not None:
            parts.append(
                f"{count:,} ({words.share(count / n if n else 0.0)}) are beyond the limit of {name}, {words.figure(limit)}"
            )
    if parts:
        both = words.whole(summary.get("n_beyond_both")) or 0
        lead += f" Of {words.plural(n, 'row')}, {', and '.join(parts)}"
        lead += f"; {both:,} are beyond both" if len(parts) > 1 else ""
        lead += f". Of normally distributed rows about {expected} would be beyond each."
    reasons = summary.get("without_limit")
    for reason in reasons if isinstance(reasons, list) else []:
        said = words.clean(reason, 300).rstrip(".")
        lead += f" {said[:1].upper()}{said[1:]}."
    return lead


def _chart(run: RunFiles, listed: list[dict[str, object]], limits: tuple[float | None, float | None]) -> Chart | None:
    """Return T² and Q of rows all over the data, and of those that are listed."""
    points = _points(run)
    unusual = _pair([words.number(row.get("t2")) for row in listed], [words.number(row.get("q")) for row in listed])
    every = [np.concatenate(pair) for pair in zip(points, unusual, strict=True)]
    if not all((values > 0).any() for values in every):
        return None
    shown = words.plural(len(points[0]), "row")
    alt = f"T² against Q of {shown} on logarithmic scales, with their limits at 99 % and {len(listed)} unusual rows. {_beyond(every, limits)}"
    all_of_them = run.distances is not None and len(points[0]) == run.distances[0].shape[0]
    caption = f"All {shown}." if all_of_them else f"{shown}, evenly spread, and the {len(listed)} most unusual ones."
    draw = partial(plotting.distances, points=points, unusual=unusual, limits=limits)
    return Chart("T² and Q", figures.inline("distances", draw, height=3.9), alt, caption)


def _beyond(distances: list[FloatArray], limits: tuple[float | None, float | None]) -> str:
    """Return how many of the drawn rows are beyond each limit, and the largest distances."""
    told = []
    for name, values, limit in zip(("T²", "Q"), distances, limits, strict=True):
        largest = words.figure(values.max(), 2)
        beyond = (
            "" if limit is None else f", {int((values > limit).sum()):,} beyond the limit of {words.figure(limit, 2)}"
        )
        told.append(f"{name} goes up to {largest}{beyond}")
    return f"{'; '.join(told)}."


def _pair(t2: list[float | None], q: list[float | None]) -> tuple[FloatArray, FloatArray]:
    known = [(a, b) for a, b in zip(t2, q, strict=True) if a is not None and b is not None]
    values = np.array(known, dtype=np.float64).reshape(-1, 2)
    return values[:, 0], values[:, 1]


def _points(run: RunFiles) -> tuple[FloatArray, FloatArray]:
    """Return T² and Q of at most `_POINTS` rows all over the data that have them."""
    if run.distances is None:
        return np.empty(0), np.empty(0)
    n = run.distances[0].shape[0]
    chosen = np.unique(np.linspace(0, n - 1, min(n, _POINTS)).astype(np.int64))
    taken: list[list[FloatArray]] = [[], []]
    for values, pieces in zip(run.distances, taken, strict=True):
        for start in range(0, n, _PIECE):
            here = chosen[(chosen >= start) & (chosen < start + _PIECE)] - start
            pieces.append(values[slice(start, min(n, start + _PIECE))][here].astype(np.float64))
    t2, q = (np.concatenate(pieces) for pieces in taken)
    finite = np.isfinite(t2) & np.isfinite(q)
    return t2[finite], q[finite]


def _table(
    run: RunFiles, listed: list[dict[str, object]], limits: tuple[float | None, float | None], *, names: bool
) -> ReportTable:
    """Return the unusual rows in digits; with the feature of the largest residual where rows are no pictures."""
    largest = _largest_residuals(run) if names else {}
    heads = ["row", "T²", "times its limit", "Q", "times its limit", *(["largest residual"] if largest else [])]
    rows = []
    for row in listed:
        index = words.whole(row.get("row")) or 0
        cells = [name_of_row(run, index)]
        for value, limit in ((words.number(row.get("t2")), limits[0]), (words.number(row.get("q")), limits[1])):
            cells += ["" if value is None else words.figure(value)]
            cells += ["" if value is None or not limit else f"{words.figure(value / limit, 3)}"]
        rows.append((*cells, *([largest.get(index, "")] if largest else [])))
    return ReportTable("The most unusual rows", tuple(heads), tuple(rows))


def _largest_residuals(run: RunFiles) -> dict[int, str]:
    """Return the name of the feature with the largest squared residual, and its share of Q, of the copied rows."""
    if run.unusual is None or run.removes or run.in_slabs:
        return {}
    n = projection.n_reconstructed(run.n_features, len(run.unusual.index))
    deviations = run.standardised(run.unusual.values[:n])
    named = {}
    for _, rebuilt, _ in projection.rebuild(run, deviations, [run.n_components]):
        for index, row, back in zip(run.unusual.index[:n], deviations, rebuilt, strict=True):
            squares = (row - back) ** 2
            place, total = int(squares.argmax()), float(squares.sum())
            share = words.share(float(squares[place]) / total) if total > 0 else ""
            named[int(index)] = f"{feature_name(run, place)} ({share})" if share else ""
    return named
