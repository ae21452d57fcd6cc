"""What the command line prints of a finished run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streampca.cli.output import on_one_line, print_wrapped
from streampca.formatting import as_text
from streampca.runs.manifest import Manifest
from streampca.runs.summary import accuracy, carried


def readings_of_models(manifest: Mapping[str, Any]) -> str:
    """Return in words how often the data were read for a run of several models, common readings counted once."""
    scores = manifest["reads"]["scores"]
    for_scores = f", and {scores['readings']} for all scores" if scores else ""
    return f"from {manifest['passes']} reading(s) for all fits{for_scores}"


def print_groups(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Print what the models of the run of groups in `directory` carry, reads and memory."""
    rows, features = manifest["source"]["shape"]
    for label, entry in manifest["models"].items():
        result, share = entry["result"], carried(entry["certificate"])
        size = f"{entry['n_samples']:,} x {features:,}"
        print_wrapped(
            f"{on_one_line(label)}: {result['n_components']} components of {size} carry {share} of the variance", 2
        )
    memory, read = manifest["memory"], as_text(manifest["reads"]["fit"]["bytes"])
    print_wrapped(
        f"read {read} of {rows:,} rows once in {manifest['seconds']['total']:.1f} s; peak memory {as_text(memory['peak_bytes'])}, "
        f"projected {as_text(memory['projected_bytes'])}, allowed {as_text(memory['allowed_bytes'])}",
        2,
    )
    for note in manifest["notes"]:
        print_wrapped(f"note: {on_one_line(note)}", 6)
    page = directory / "report.html"
    click.echo(f"results in {directory}" + (f"; report: {page}" if page.exists() else ""))


def print_run(directory: Path, manifest: Manifest) -> None:
    """Print result, accuracy, reads, memory, warnings and notes of the run in `directory`."""
    result, memory, certificate = manifest["result"], manifest["memory"], manifest["certificate"]
    rows, features = manifest["source"]["shape"]
    carry = f"components of {rows:,} x {features:,} carry {carried(certificate)} of the variance"
    print_wrapped(f"{on_one_line(manifest['name'])}: {result['n_components']} {carry}", 2)
    sure = accuracy(certificate, manifest["approximation"])
    if sure is not None:
        print_wrapped(f"approximate: {sure}", 2)
    reads = f"{manifest['passes']} pass{'es' if manifest['passes'] > 1 else ''} for the fit" + (
        ", 1 for the scores" if manifest["reads"]["scores"] else ""
    )
    print_wrapped(
        f"read {as_text(manifest['reads']['fit']['bytes'])} ({reads}) in {manifest['seconds']['total']:.1f} s; peak memory "
        f"{as_text(memory['peak_bytes'])}, projected {as_text(memory['projected_bytes'])}, allowed {as_text(memory['allowed_bytes'])}",
        2,
    )
    for label, sentences in (("warning", manifest.get("warnings", ())), ("note", manifest.get("notes", ()))):
        for sentence in sentences:
            print_wrapped(f"{label}: {on_one_line(sentence)}", len(label) + 2)
    click.echo(
        f"results in {directory}"
        + (f"; report: {directory / 'report.html'}" if (directory / "report.html").exists() else "")
    )
