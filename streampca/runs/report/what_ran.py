"""What a run did, told: plan against measurement, certificate, versions, source."""

from __future__ import annotations

import numpy as np

import streampca.formatting as words
from streampca.models import certificate_sentences as sentences
from streampca.runs.report.parts import ReportTable
from streampca.runs.report.result import ReportedSpectrum, field
from streampca.runs.report.run_files import RunFiles
from streampca.typing import Json

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


def parts(run: RunFiles) -> Json:
    """Return what the pages of all kinds of models say of a run."""
    return {
        "name": words.clean(field(run.manifest, "name") or run.name, 120),
        "byline": byline(run),
        "warnings": warnings(run),
        "memory": memory_bar(run),
        "time": time_bar(run),
        "certificate": sentences.paragraph(run.model.certificate, run.n_components),
        "comparison": comparison(run),
        "facts": (_source(run), _plan(run), _versions(run)),
    }


def byline(run: RunFiles) -> tuple[str, ...]:
    """Return when, with what, and which run, for under the title."""
    finished, solver = field(run.manifest, "finished"), field(run.plan, "solver")
    items = []
    if finished:
        items.append(f"finished {_time(finished)}")
    if solver:
        items.append(f"solver {words.clean(solver, 40)}")
    if field(run.manifest, "run_id"):
        items.append(f"run {words.clean(field(run.manifest, 'run_id'), 12)}")
    return tuple(items)


def _time(stamp: object) -> str:
    """Return an ISO 8601 time for a reader: ``2026-01-02 03:04:05 UTC``."""
    shown = words.clean(stamp, 40)
    for end in ("Z", "+00:00"):
        shown = f"{shown.removesuffix(end)} UTC" if shown.endswith(end) else shown
    return shown.replace("T", " ", 1) if shown[:4].isdigit() else shown


def memory_bar(run: RunFiles) -> Json | None:
    """Return peak, projection and ceiling on one scale, or None where the run did not measure."""
    memory = field(run.manifest, "memory")
    peak, allowed = words.number(field(memory, "peak_bytes")), words.number(field(memory, "allowed_bytes"))
    projected = words.number(field(memory, "projected_bytes"))
    if not peak or not allowed or peak < 0 or allowed < 0:
        return None
    whole = max(peak, allowed, projected or 0)
    within = peak <= allowed
    sentence = f"The peak was {words.size(peak)}"
    if projected:
        sentence += f", {words.share(peak / projected)} of the {words.size(projected)} projected before the first read"
    sentence += (
        f"; {words.size(allowed)} were allowed." if within else f": more than the {words.size(allowed)} allowed."
    )
    place = round(100 * projected / whole, 2) if projected else None
    peak, allowed = (round(100 * value / whole, 2) for value in (peak, allowed))
    return {"peak": peak, "projected": place, "allowed": allowed, "within": within, "words": sentence}


def time_bar(run: RunFiles) -> list[tuple[str, str, float, str]]:
    """Return pieces of one bar of where the time went: label, duration, percentage, colour; nothing where the run did not measure."""
    seconds = field(run.manifest, "seconds")
    phases = [
        ("read and accumulate", "fit", "accent"),
        ("solve", "solve", "second"),
        ("write scores", "scores", "third"),
    ]
    taken = [(label, max(0.0, words.number(field(seconds, key)) or 0.0), colour) for label, key, colour in phases]
    known = sum(value for _, value, _ in taken)
    whole = max(known, words.number(field(seconds, "total")) or 0.0)
    if whole <= 0:
        return []
    if whole - known > 0.005 * whole:
        taken.append(("everything else", whole - known, "muted"))
    return [
        (label, words.duration(value), round(100 * value / whole, 2), colour)
        for label, value, colour in taken
        if value > 0
    ]


def comparison(run: RunFiles) -> ReportTable:
    """Return the plan against what was measured."""
    plan, manifest = run.plan, run.manifest
    fit, written = field(manifest, "reads", "fit"), field(manifest, "reads", "scores")
    peak, projected = field(manifest, "memory", "peak_bytes"), field(plan, "projected_bytes")
    rows = [
        ("Peak memory", words.size(projected), words.size(peak), _ratio(peak, projected)),
        ("Reads of the data to fit", words.count(field(plan, "passes")), words.count(field(manifest, "passes")), ""),
        ("Bytes read, decoded", words.size(field(plan, "bytes_to_read")), words.size(field(fit, "bytes")),
         _ratio(field(fit, "bytes"), field(plan, "bytes_to_read"))),
        ("Bytes read, as stored", words.MISSING, words.size(field(fit, "stored_bytes")), ""),
        ("Blocks", words.count(field(plan, "n_blocks")), words.count(field(fit, "blocks")), ""),
    ]  # fmt: skip
    if isinstance(written, dict):
        rows.append(("Bytes read again for scores", words.MISSING, words.size(written.get("bytes")), ""))
    seconds, total = words.number(field(fit, "seconds")), words.number(field(fit, "bytes"))
    if seconds and total:
        rows.append(("Rate of reading", words.MISSING, f"{words.size(total / seconds)} a second", ""))
    return ReportTable(
        "What was planned, and what was measured", ("", "planned", "measured", "measured / planned"), tuple(rows)
    )


def _ratio(measured: object, planned: object) -> str:
    above, below = words.number(measured), words.number(planned)
    return words.share(above / below) if above and below else ""


def spectrum_table(spectrum: ReportedSpectrum, most: int = 20) -> ReportTable:
    """Return the first eigenvalues in digits."""
    total = np.cumsum(spectrum.ratios)
    k = len(spectrum.values)
    rows = tuple(
        (
            f"{i + 1}",
            words.figure(value, 7),
            words.figure(float(np.sqrt(max(0.0, value))), 7),
            spectrum.share(i),
            words.share(total[i]),
        )
        for i, value in enumerate(map(float, spectrum.values[:most]))
    )
    caption = f"First {most} of {k:,} eigenvalues" if k > most else "Eigenvalues"
    return ReportTable(caption, ("component", "variance", "standard deviation", "share", "together"), rows)


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
    bar, sentences = memory_bar(run), _sentences(run, "warnings")
    if bar is not None and not bar["within"]:
        sentences.append(bar["words"])
    if run.explained_variance.max() <= 0:
        sentences.append(
            "All rows are equal: there is no variance to explain, and the components are a matter of choice."
        )
    return sentences


def notes(run: RunFiles) -> list[str]:
    """Return facts about the run that take nothing from its result."""
    sentences = _sentences(run, "notes")
    filled = words.whole(field(run.manifest, "source", "missing_chunks_filled"))
    if filled and not any("chunk" in sentence for sentence in (*sentences, *_sentences(run, "warnings"))):
        sentences.append(f"{words.plural(filled, 'chunk')} missing from the store stood for the fill value.")
    return sentences


def _sentences(run: RunFiles, key: str) -> list[str]:
    given = field(run.manifest, key)
    return [words.clean(sentence, 600) for sentence in given[:20]] if isinstance(given, list) else []
