"""The manifest of a run: what ``manifest.json`` holds, how it is made, written and read."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from streampca.errors import ModelError
from streampca.runs.resume import UPDATED
from streampca.storage.regular_files import read_regular
from streampca.system.process import peak_bytes
from streampca.system.versions import versions
from streampca.typing import Json

if TYPE_CHECKING:
    from streampca.execution.checkpoint.progress_log import ProgressLog
    from streampca.planning.plan import Plan
    from streampca.runs.config import RunConfig
    from streampca.solvers.result import FitResult
    from streampca.sources.base import ReadCount, Source

_MAX_BYTES = 64 << 20

Times = tuple[datetime, float]
"""When a run began: the date, and the seconds of `time.perf_counter`."""


class Reads(TypedDict):
    """What one phase read."""

    blocks: int
    """Blocks of the plan."""
    chunks: int
    """Stored chunks that were read."""
    bytes: int
    """Bytes as decoded."""
    stored_bytes: int
    """Bytes as stored."""
    seconds: float | None
    """Duration, where it was measured."""


class PhaseReads(TypedDict):
    """What was read, by phase."""

    fit: Reads
    """All passes of the fit."""
    scores: Reads | None
    """The pass for scores; None without one."""
    record: NotRequired[Json]
    """Chunks and bytes that were read for the record of chunks that is kept with a state; absent without one."""


class MemoryUse(TypedDict):
    """Memory of the process in bytes."""

    allowed_bytes: int
    """The ceiling."""
    projected_bytes: int
    """The peak by the plan."""
    peak_bytes: int
    """The peak as measured."""


class Seconds(TypedDict):
    """Where the time went."""

    fit: float
    """Passes over the source."""
    solve: float
    """Eigenproblems."""
    total: float
    """The whole run."""
    scores: float | None
    """Writing scores; None where nothing was read for them."""


class Manifest(TypedDict):
    """What a finished run records of itself."""

    format: str
    """``streampca-run``."""
    format_version: int
    """Version of this format."""
    name: str
    """Name of the run."""
    versions: dict[str, str]
    """Versions of packages and libraries."""
    source: Json
    """Description of the source, its path as it was written."""
    passes: int
    """Passes over the whole source."""
    approximation: Json | None
    """Sizes of an approximate plan."""
    reads: PhaseReads
    """Chunks and bytes that were read."""
    memory: MemoryUse
    """Memory of the process."""
    seconds: Seconds
    """Durations."""
    certificate: Json
    """What is known about the error."""
    diagnostics: Json | None
    """Limits of T² and Q and the rows beyond them, see `DiagnosticsSummary`; None where they were not asked for."""
    quality: Json | None
    """Figures about the quality of the data, see `streampca.runs.quality`; None where it was not examined."""
    result: Json
    """Figures that follow from the model."""
    warnings: list[str]
    """Sentences about what limits the use of the result."""
    notes: list[str]
    """Sentences about facts that do not."""
    run_id: str
    """Identifier of the run."""
    started: str
    """Time of the start of the last attempt."""
    identity: dict[str, str]
    """Everything that decides the bits of the result, by name."""
    resumed: Json | None
    """Earlier attempts; None for a run that was never stopped."""
    finished: str
    """Time of the end."""
    updates: NotRequired[list[Json]]
    """One entry for each time that new rows were added to the run; absent for a run that was never updated."""


def _fragments(source: Source) -> Json:
    """Return the records of the files that the rows are made of; empty where there are none."""
    return {"fragments": [asdict(fragment) for fragment in source.fragments]} if source.fragments else {}


def common_manifest(
    config: RunConfig,
    source: Source,
    log: ProgressLog,
    times: Times,
    *,
    kind: str,
    allowed_bytes: int,
    projected_bytes: int,
) -> Json:
    """Return what the manifests of all kinds of runs have: who made what from which source when, in which memory."""
    return {
        "format": f"streampca-{kind}",
        "format_version": 1,
        "name": config.name,
        "versions": versions(),
        "source": described_source(config, source),
        "memory": {"allowed_bytes": allowed_bytes, "projected_bytes": projected_bytes, "peak_bytes": peak_bytes()},
        "seconds": {"total": time.perf_counter() - times[1]},
        "run_id": log.identity.run_id,
        "started": times[0].isoformat(timespec="seconds"),
        "identity": {name: value for name, value in log.identity.identity.items() if name != UPDATED},
        "resumed": log.resumption(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def manifest_of(
    config: RunConfig,
    source: Source,
    result: FitResult,
    scores: ReadCount | None,
    log: ProgressLog,
    times: Times,
    scores_seconds: float | None,
) -> Manifest:
    """Return the manifest of a run of one model without diagnostics and quality; `scores` is what reading for scores cost."""
    plan = result.plan
    common = common_manifest(
        config,
        source,
        log,
        times,
        kind="run",
        allowed_bytes=plan.allowed_bytes,
        projected_bytes=plan.projected_bytes,
    )
    seconds = {"fit": result.stream_seconds, "solve": result.solve_seconds, "scores": scores_seconds}
    manifest: Any = common | {
        "passes": result.passes,
        "approximation": plan.sketch or None,
        "reads": {
            "fit": _reads(result.count, plan, result.stream_seconds),
            "scores": _reads(scores, plan, None) if scores else None,
        },
        "seconds": common["seconds"] | seconds,
        "certificate": result.model.certificate,
        "diagnostics": None,
        "quality": None,
        "result": result.summary(),
        "warnings": [*config.model.warnings(), *result.warnings()],
        "notes": result.notes(source),
    }
    if result.updates:
        manifest["updates"] = list(result.updates)
    return manifest  # type: ignore[no-any-return]


def described_source(config: RunConfig, source: Source) -> Json:
    """Return what a manifest records of the source: its path as it was written, shape, labels and files."""
    return source.describe() | _labels(source) | _fragments(source) | {"path": config.source.path_as_written}


def _labels(source: Source) -> Json:
    """Return the dimensions and variables of a labelled table."""
    return {} if source.labels is None else {"labels": source.labels.describe()}


def _reads(count: ReadCount, plan: Plan, seconds: float | None) -> Reads:
    return {
        "blocks": plan.n_blocks,
        "chunks": count.chunks,
        "bytes": count.bytes,
        "stored_bytes": count.stored_bytes,
        "seconds": seconds,
    }


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """Write a document of a run."""
    path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n")


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a finished run; raise `ModelError` if the directory is not one."""
    manifest: Manifest = read_json(directory, "manifest.json")
    if manifest.get("format") != "streampca-run":
        raise ModelError(f"{directory} is not a finished run: its manifest.json is of another kind")
    return manifest


def read_json(directory: Path, name: str) -> Any:
    """Return the object in the document `name` of a finished run; raise `ModelError` if the directory is not one."""
    try:
        too_large = (directory / name).stat().st_size > _MAX_BYTES
        document = None if too_large else json.loads(read_regular(directory / name))
    except OSError as error:
        raise ModelError(f"{directory} is not a finished run: {name} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{directory} is not a finished run: its {name} is damaged ({error})") from error
    if not isinstance(document, dict):
        kind = "larger than anything a run writes" if too_large else "of another kind"
        raise ModelError(f"{directory} is not a finished run: its {name} is {kind}")
    return document
