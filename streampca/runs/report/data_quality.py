"""Quality of the data: drift and missing values along the file, constant features, tails of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.accumulators.quality import STATISTICS
from streampca.runs.report.figures import inline
from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.result import field
from streampca.runs.report.run_files import RunFiles
from streampca.typing import FloatArray, Json

_MOST_NAMED = 6
"""Features that are named in a cell."""


def data_quality(run: RunFiles) -> Json | None:
    """Return what the manifest of a run says of the quality of its data; None where it says nothing."""
    figures = run.manifest.get("quality")
    if not isinstance(figures, dict):
        return None
    n_rows, parts = field(figures, "examined", "rows"), words.whole(field(figures, "examined", "parts")) or 1
    features = words.whole(field(figures, "examined", "features")) or 0
    of_features = "" if features == run.n_features else f" and {features:,} of the {run.n_features:,} features"
    lead = f"From the reading of the fit. Drift and values that hardly vary are those of {words.count(n_rows)} evenly spaced rows{of_features}"
    lead += f", in {words.plural(parts, 'part')} of the file." if parts > 1 else "."
    edges = np.array(words.numbers(field(figures, "examined", "edges")))
    charts = (_drift_chart(figures, edges), _missing_chart(figures, edges))
    rows = list(_rows(figures, run))
    none = [name for name, found, *_ in rows if found == "0" or found.startswith("0 of ")]
    lead += f" Not found: {', '.join(none)}." if none else ""
    table = ReportTable("What was found", ("", "found", "where"), tuple(row for row in rows if row[0] not in none))
    return {"lead": lead, "charts": [chart for chart in charts if chart is not None], "table": table}


def _rows(figures: dict[str, object], run: RunFiles) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table."""
    yield "features that never vary", _count(figures, "constant"), _features(field(figures, "constant", "features"))
    yield (
        "features that hardly vary",
        _count(figures, "nearly_constant"),
        _features(field(figures, "nearly_constant", "features")),
    )
    for statistic in STATISTICS:
        if statistic.name in figures:  # not in runs of earlier versions
            in_words = words.share if statistic.is_share else partial(words.figure, digits=3)
            listed = _features(field(figures, statistic.name, "features"), in_words)
            yield statistic.title, _count(figures, statistic.name), listed
    yield from _drift_rows(figures)
    chunks, rows = (words.whole(field(figures, "never_written", name)) or 0 for name in ("chunks", "rows"))
    yield (
        "chunks that were never written",
        f"{chunks:,}",
        f"{words.plural(rows, 'row')} hold nothing else" if rows else "",
    )
    share = words.number(field(figures, "missing", "share"))
    if share is not None:
        listed = _features(field(figures, "missing", "features"), words.share, "share")
        yield "missing values", words.share(share), listed
    largest, component = (field(figures, "tails", name) for name in ("largest", "component"))
    if words.number(largest) is not None:
        yield (
            "tails of scores",
            f"excess kurtosis {words.figure(largest, 3)}",
            f"component {(words.whole(component) or 0) + 1}, the largest of {words.plural(min(run.n_components, 100), 'component')}; "
            "0 for Gaussian scores",
        )


def _drift_rows(figures: dict[str, object]) -> Iterator[tuple[str, str, str]]:
    drift = field(figures, "drift")
    if not isinstance(drift, dict):
        return
    shift, noise = words.number(field(drift, "mean", "shift")), words.figure(field(drift, "noise"), 2)
    if shift is not None:
        beside = f"; up to about {noise} is noise"
        yield (
            "largest shift of a mean",
            f"{shift:+.3g} standard deviations within parts",
            f"{_place(drift.get('mean'))}{beside}",
        )
    ratio = words.number(field(drift, "deviation", "ratio"))
    if ratio is not None:
        yield "largest change of spread", f"{ratio:.3g} times", _place(drift.get("deviation"))
    stuck = words.whole(field(drift, "stuck", "count")) or 0
    listed = field(drift, "stuck", "features")
    places = [_place(entry) for entry in listed[:_MOST_NAMED]] if isinstance(listed, list) else []
    yield "features that stand still for a while", f"{stuck:,}", "; ".join(places)


def _count(figures: dict[str, object], name: str) -> str:
    return f"{words.whole(field(figures, name, 'count')) or 0:,}"


def _features(listed: object, in_words: Callable[[object], str] | None = None, key: str = "value") -> str:
    """Return the first of some features as text, with what they have under `key` `in_words`, if that is given."""
    if not isinstance(listed, list):
        return ""
    named = []
    for entry in listed[:_MOST_NAMED]:
        value = f" ({in_words(field(entry, key))})" if in_words else ""
        named.append(f"{_name(entry)}{value}")
    text = ", ".join(named) + (", …" if len(listed) > _MOST_NAMED else "")
    return f"feature{'' if len(listed) == 1 else 's'} {text}" if text else ""


def _name(entry: object) -> str:
    name = field(entry, "name")
    return words.clean(name, 60) if name else words.count(field(entry, "feature"))


def _place(entry: object) -> str:
    return f"feature {_name(entry)} in rows {_span(field(entry, 'rows'))}"


def _span(ends: object) -> str:
    numbers = words.numbers(ends)
    return f"{numbers[0]:,.0f} to {numbers[1] - 1:,.0f}" if len(numbers) == 2 else ""


def _drift_chart(figures: dict[str, object], edges: FloatArray) -> Chart | None:
    """Return how far the means of parts of the file are from those of all rows; None where there are too few parts."""
    drift = field(figures, "drift")
    shifts, largest = (np.array(words.numbers(field(drift, name))) for name in ("shifts", "largest_shifts"))
    noise = words.number(field(drift, "noise"))
    if len(shifts) < 2 or len(shifts) != len(largest) or len(edges) != len(shifts) + 1 or noise is None:
        return None
    name = _name(field(drift, "mean"))
    draw = partial(plotting.drift, edges=edges, shifts=shifts, largest=largest, noise=noise, name=f"feature {name}")
    return Chart(
        "Drift along the file",
        inline("drift", draw),
        f"Chart of the shift of the mean of feature {name} in {len(shifts)} parts of the file, and of the largest shift of all features. "
        f"It goes from {shifts.min():.2g} to {shifts.max():.2g} standard deviations, that of all features up to {largest.max():.2g}.",
        "Differences of means of parts of the file from those of all rows, in standard deviations within parts; the band is about "
        "what independent rows would show.",
    )


def _missing_chart(figures: dict[str, object], edges: FloatArray) -> Chart | None:
    """Return the share of missing values by part of the file; None where none are missing, or there is one part."""
    shares = 100 * np.array(words.numbers(field(figures, "missing", "by_part")))
    if len(shares) < 2 or len(edges) != len(shares) + 1 or not shares.any():
        return None

    worst = int(shares.argmax())
    return Chart(
        "Missing values along the file",
        inline("missing", partial(plotting.missing, edges=edges, shares=shares / 100)),
        f"Chart of the share of missing values in {len(shares)} parts of the file, from {shares.min():.3g} % to {shares[worst]:.3g} %.",
        f"At most {shares[worst]:.3g} % in a part: rows {edges[worst]:,.0f} to {edges[worst + 1] - 1:,.0f}.",
    )
