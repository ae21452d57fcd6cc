"""Lines about a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from streampca.cli.output import on_one_line
from streampca.cli.session import Line
from streampca.formatting import as_text, plural
from streampca.models.certificate_sentences import accuracy, carried
from streampca.models.certificates import any_certificate_of
from streampca.parameters import KINDS
from streampca.runs.manifest import Manifest
from streampca.runs.several import RunOfGroups, RunOfModels
from streampca.runs.strategy import Run


def lines_of(finished: Run | RunOfModels | RunOfGroups) -> Iterator[Line]:
    """Yield the lines about a finished run of any kind."""
    if isinstance(finished, RunOfGroups):
        yield from _of_groups(finished.directory, finished.manifest)
    elif isinstance(finished, RunOfModels):
        for each in finished.runs.values():
            yield from _of_one(each.directory, each.manifest)
        yield f"results in {finished.directory}, {_readings_of_models(finished.manifest)}"
    else:
        yield from _of_one(finished.directory, finished.manifest)


def _readings_of_models(manifest: Mapping[str, Any]) -> str:
    """Return in words how often the data were read for a run of several models, common readings counted once."""
    scores = manifest["reads"]["scores"]
    for_scores = f", and {scores['readings']} for all scores" if scores else ""
    return f"from {plural(manifest['passes'], 'reading')} for all fits{for_scores}"


def _of_groups(directory: Path, manifest: Mapping[str, Any]) -> Iterator[Line]:
    """Yield what the models of the run of groups in `directory` carry, reads and memory."""
    rows, features = manifest["source"]["shape"]
    for label, entry in manifest["models"].items():
        result, share = entry["result"], carried(any_certificate_of(entry["certificate"]))
        size = f"{entry['n_samples']:,} x {features:,}"
        yield (f"{on_one_line(label)}: {result['n_components']} components of {size} carry {share} of the variance", 2)
    read = f"{as_text(manifest['reads']['fit']['bytes'])} of {rows:,} rows once"
    yield from _read_and_written(directory, manifest, read)


def _of_one(directory: Path, manifest: Manifest) -> Iterator[Line]:
    """Yield result, accuracy, reads, memory, warnings and notes of the run in `directory`."""
    result, certificate = manifest["result"], any_certificate_of(manifest["certificate"])
    rows, features = manifest["source"]["shape"]
    size, k = f"{rows:,} x {features:,}", result["n_components"]
    if "analysis" in result:
        kind, share = (
            KINDS[result["analysis"]],
            sum(result.get("squared_covariance_fraction", result["explained_variance_ratio"])),
        )
        found = kind.finished.format(
            count=plural(k, kind.noun), first=f"{result['strengths'][0]:.3g}", share=f"{share:.1%}", size=size
        )
    else:
        found = f"{k} components of {size} carry {carried(certificate)} of the variance"
    yield f"{on_one_line(manifest['name'])}: {found}", 2
    sure = accuracy(certificate, manifest["approximation"])
    if sure is not None:
        yield f"approximate: {sure}", 2
    read = manifest["reads"]["fit"]["bytes"] + (manifest["reads"]["scores"] or {"bytes": 0})["bytes"]
    reads = f"{manifest['passes']} pass{'es' if manifest['passes'] > 1 else ''} for the fit" + (
        ", 1 for the scores" if manifest["reads"]["scores"] else ""
    )
    yield from _read_and_written(directory, manifest, f"{as_text(read)} ({reads})")


def _read_and_written(directory: Path, manifest: Mapping[str, Any], read: str) -> Iterator[Line]:
    """Yield what was `read`, time, memory, warnings and notes of the run in `directory`, and where its results are."""
    memory, page = manifest["memory"], directory / "report.html"
    yield (
        f"read {read} in {manifest['seconds']['total']:.1f} s; peak memory {as_text(memory['peak_bytes'])}, "
        f"projected {as_text(memory['projected_bytes'])}, allowed {as_text(memory['allowed_bytes'])}",
        2,
    )
    for label, sentences in (("warning", manifest.get("warnings", ())), ("note", manifest.get("notes", ()))):
        for sentence in sentences:
            yield f"{label}: {on_one_line(sentence)}", len(label) + 2
    yield f"results in {directory}" + (f"; report: {page}" if page.exists() else "")
