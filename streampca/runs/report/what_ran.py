"""The work of a run, and findings about its data: plan and measurement, certificate, versions, source, quality."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.accumulators.quality import STATISTICS
from streampca.models import certificate_sentences as sentences
from streampca.runs.report.figures import Chart, ReportTable, Section, inline
from streampca.runs.report.run_files import ReportedSpectrum, RunFiles, field
from streampca.runs.report.samples import Shown
from streampca.system.phases import PHASES
from streampca.typing import FloatArray, Json

_PURPOSES = {
    "process": "Python and its libraries",
    "quality": "data quality",
    "removal": "what is removed",
    "weights": "weights of rows",
    "groups": "models of groups",
    "diagnostics": "T² and Q of rows",
    "state": "accumulator states",
    "states": "accumulator states",
    "kept products": "products of all passes",
    "pilot": "the sample read beforehand",
    "blocks": "rows in flight",
    "scratch": "scratch of products",
    "solve": "eigenproblem",
    "tiles": "reading the matrix from the disk",
    "model": "the model",
    "scores": "writing scores",
    "report": "this page",
}


def what_ran(
    shown: Shown, table: ReportTable | None, facts: Sequence[words.Facts] = (), certificate: Sequence[str] | None = None
) -> Section:
    """Return the section on plan and measurement, certificate, the eigenvalues in digits, source and versions.

    `table` holds the eigenvalues if no other section has them, `facts` what only a kind of models has, and `certificate` sentences other than those of PCA.
    """
    run = shown.run
    if certificate is None:
        certificate = sentences.paragraph(run.model.certificate, run.model.n_components)
    told = (("Accuracy", certificate),) if certificate else ()
    boxes = (*facts, _source(run), _plan(run), _versions(run))
    return Section(
        "ran", "Run and accuracy", parts=(("card", comparison(run)), ("lists", told), ("card", table), ("facts", boxes))
    )


def byline(manifest: Json, plan: Json | None) -> tuple[str, ...]:
    """Return when, with what, and which run, for under the title; there is no `plan` of several models."""
    finished, solver = field(manifest, "finished"), field(plan, "solver")
    items = []
    if finished:
        items.append(f"finished {_time(finished)}")
    if solver:
        items.append(f"solver {words.clean(solver, 40)}")
    if field(manifest, "run_id"):
        items.append(f"run {words.clean(field(manifest, 'run_id'), 12)}")
    return tuple(items)


def _time(stamp: object) -> str:
    """Return an ISO 8601 time for a reader: ``2026-01-02 03:04:05 UTC``."""
    shown = words.clean(stamp, 40)
    for end in ("Z", "+00:00"):
        shown = f"{shown.removesuffix(end)} UTC" if shown.endswith(end) else shown
    return shown.replace("T", " ", 1) if shown[:4].isdigit() else shown


def comparison(run: RunFiles) -> ReportTable:
    """Return the plan against what was measured."""
    plan, manifest = run.plan, run.manifest
    fit, written = field(manifest, "reads", "fit"), field(manifest, "reads", "scores")
    peak, projected = field(manifest, "memory", "peak_bytes"), field(plan, "projected_bytes")
    rows = [
        ("Peak memory", words.size(projected), words.size(peak), _ratio(peak, projected)),
        ("Passes over the data to fit", words.count(field(plan, "passes")), words.count(field(manifest, "passes")), ""),
        ("Bytes read, decoded", words.size(field(plan, "bytes_to_read")), words.size(field(fit, "bytes")),
         _ratio(field(fit, "bytes"), field(plan, "bytes_to_read"))),
        ("Bytes read, as stored", words.MISSING, words.size(field(fit, "stored_bytes")), ""),
        ("Blocks", words.count(field(plan, "n_blocks")), words.count(field(fit, "blocks")), ""),
    ]  # fmt: skip
    if isinstance(written, dict):
        rows.append(("Bytes read again for scores", words.MISSING, words.size(written.get("bytes")), ""))
    for label, key in (("read and accumulate", "fit"), ("solve", "solve"), ("write scores", "scores")):
        if (taken := words.number(field(manifest, "seconds", key)) or 0.0) > 0:
            rows.append((f"Time to {label}", words.MISSING, words.duration(taken), ""))
    for name, text in PHASES.items():
        if (taken := words.number(field(manifest, "seconds", "phases", name)) or 0.0) > 0:
            of_threads = "" if name == "merging" else ", threads together"
            rows.append((f"Time of {text}{of_threads}", words.MISSING, words.duration(taken), ""))
    seconds, total = words.number(field(fit, "seconds")), words.number(field(fit, "bytes"))
    if seconds and total:
        rows.append(("Rate of reading", words.MISSING, f"{words.size(total / seconds)} a second", ""))
    return ReportTable("Plan and measurement", ("", "planned", "measured", "measured / planned"), tuple(rows))


def _ratio(measured: object, planned: object) -> str:
    above, below = words.number(measured), words.number(planned)
    return words.share(above / below) if above and below else ""


def spectrum_table(spectrum: ReportedSpectrum) -> ReportTable:
    """Return the first eigenvalues of PCA in digits."""
    values, together = spectrum.values, np.cumsum(spectrum.ratios)
    columns: dict[str, Callable[[int], str]] = {
        "variance": lambda i: words.figure(float(values[i]), 7),
        "standard deviation": lambda i: words.figure(float(np.sqrt(max(0.0, values[i]))), 7),
        "share": spectrum.share,
        "together": lambda i: words.share(float(together[i])),
    }
    return table_of_values(len(values), "component", columns)


def table_of_values(
    k: int,
    noun: str,
    columns: Mapping[str, Callable[[int], str]],
    caption: str = "Eigenvalues",
    plural: str = "eigenvalues",
) -> ReportTable:
    """Return the first of `k` values in digits: a row for each `noun`, and `columns` with the cell of each number from 0."""
    rows = tuple((f"{i + 1}", *(cell(i) for cell in columns.values())) for i in range(min(k, _MOST_VALUES)))
    shown = f"First {_MOST_VALUES} of {k:,} {plural}" if k > _MOST_VALUES else caption
    return ReportTable(shown, (noun, *columns), rows)


def _source(run: RunFiles) -> words.Facts:
    source = field(run.manifest, "source")
    pairs = [
        ("path", words.clean(field(source, "path"), 400)),
        ("array", words.clean(field(source, "array"))),
        ("shape", words.dimensions(field(source, "shape"))),
        ("data type", words.clean(field(source, "dtype"))),
        ("chunks", words.dimensions(field(source, "chunks"))),
        ("orientation", words.clean(field(source, "orientation")).replace("_", " ")),
        ("missing chunks filled", words.count(field(source, "missing_chunks_filled") or None)),
        ("constant features", _some(field(run.manifest, "result", "constant_features"))),
        ("fingerprint", words.clean(field(source, "fingerprint"), 160)),
    ]
    return words.facts("Source", pairs)


def _some(indices: object, most: int = 12) -> str:
    if not isinstance(indices, list) or not indices:
        return words.MISSING
    listed = ", ".join(words.count(index) for index in indices[:most])
    return f"{len(indices):,}: {listed}" + (", …" if len(indices) > most else "")


def _plan(run: RunFiles) -> words.Facts:
    plan = run.plan
    flops = words.number(field(plan, "flops"))
    pairs = [
        ("solver", words.clean(field(plan, "solver"))),
        ("why", words.clean(field(plan, "reason"), 600)),
        ("rows in a block", words.count(field(plan, "rows_per_block"))),
        ("leaves", words.count(field(plan, "n_leaves"))),
        ("in flight", words.count(field(plan, "leaves_in_flight"))),
        ("threads", words.count(field(plan, "threads"))),
        ("products in", words.clean(field(plan, "work_dtype"))),
        ("merged", words.clean(field(plan, "merge"), 400)),
        ("operations", f"{words.figure(flops, 3)} flops" if flops else words.MISSING),
    ]
    memory = field(plan, "memory")
    for purpose, taken in list(memory.items())[:12] if isinstance(memory, dict) else ():
        pairs.append((f"memory: {_PURPOSES.get(purpose, words.clean(purpose, 40))}", words.size(taken)))
    notes = field(plan, "notes")
    for note in notes[:12] if isinstance(notes, list) else ():
        pairs.append(("note", words.clean(note, 600)))
    return words.facts("Plan", pairs)


def _versions(run: RunFiles) -> words.Facts:
    versions = field(run.manifest, "versions")
    listed = list(versions.items())[:24] if isinstance(versions, dict) else []
    pairs = [(words.clean(name, 40), words.clean(version, 120)) for name, version in listed]
    pairs.append(("run", words.clean(field(run.manifest, "run_id"), 64)))
    pairs.extend((name, _time(field(run.manifest, name))) for name in ("started", "finished"))
    return words.facts("Versions and run", pairs)


def warnings(run: RunFiles) -> list[str]:
    """Return what the run warned of, and what its own numbers give reason to warn of."""
    sentences, memory = _sentences(run, "warnings"), field(run.manifest, "memory")
    peak, allowed = words.number(field(memory, "peak_bytes")), words.number(field(memory, "allowed_bytes"))
    if peak and allowed and peak > allowed > 0:
        sentences.append(f"Memory peaked at {words.size(peak)}, above the {words.size(allowed)} allowed.")
    if run.model.score_variances.max() <= 0:
        sentences.append("All rows are equal: there is no variance to explain, and the components are arbitrary.")
    return sentences


def notes(run: RunFiles) -> list[str]:
    """Return facts about the run that take nothing from its result."""
    sentences = _sentences(run, "notes")
    filled = words.whole(field(run.manifest, "source", "missing_chunks_filled"))
    if filled and not any("chunk" in sentence for sentence in (*sentences, *_sentences(run, "warnings"))):
        sentences.append(f"The fill value was used for {words.plural(filled, 'chunk')} missing from the store.")
    return sentences


def _sentences(run: RunFiles, key: str) -> list[str]:
    given = field(run.manifest, key)
    return [words.sentence(words.clean(each, 600)) for each in given[:20]] if isinstance(given, list) else []


_MOST_VALUES = 20
"""Eigenvalues in a table."""
_MOST_NAMED = 6
"""Features that are named in a cell."""


def data_quality(shown: Shown) -> Section | None:
    """Return what the manifest of a run says of the quality of its data; None where it says nothing."""
    run = shown.run
    figures = run.manifest.get("quality")
    if not isinstance(figures, dict):
        return None
    n_rows, parts = field(figures, "examined", "rows"), words.whole(field(figures, "examined", "parts")) or 1
    features = words.whole(field(figures, "examined", "features")) or 0
    of_features = (
        "" if features == run.model.n_features else f" and {features:,} of the {run.model.n_features:,} features"
    )
    lead = f"The fit examined the data as it read them; drift and features that hardly vary come from {words.count(n_rows)} evenly spaced samples{of_features}"
    lead += f", in {words.plural(parts, 'part')} of the file." if parts > 1 else "."
    edges = np.array(words.numbers(field(figures, "examined", "edges")))
    charts = (_drift_chart(figures, edges), _missing_chart(figures, edges))
    rows = list(_rows(figures, run))
    none = [name for name, found, *_ in rows if found == "0" or found.startswith("0 of ")]
    lead += f" Not found: {', '.join(none)}." if none else ""
    found = tuple(row for row in rows if row[0] not in none)
    table = ReportTable("What was found", ("", "found", "where"), found, style="found")
    drawn = tuple(chart for chart in charts if chart is not None)
    return Section("quality", "Quality of the data", lead, (("pair", drawn), ("card", table if found else None)))


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
            f"{run.score_name(words.whole(component) or 0)}, the largest of {words.plural(min(run.model.n_components, 100), 'score')}; "
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
    yield "features that are constant for a stretch", f"{stuck:,}", "; ".join(places)


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
        "Means of parts of the file minus the means of all samples, in standard deviations within parts. Independent samples would mostly stay "
        "within the band.",
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
