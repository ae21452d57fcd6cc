"""The manifest of a run, ``manifest.json``: content, creation, writing and reading."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from streampca.errors import ModelError
from streampca.storage.files import read_regular
from streampca.system.process import peak_bytes, versions
from streampca.typing import Json

if TYPE_CHECKING:
    from streampca.execution.checkpoint.progress_log import ProgressLog
    from streampca.planning.plan import Plan
    from streampca.runs.config import RunConfig
    from streampca.sources.base import Source

_MAX_BYTES = 64 << 20

Times = tuple[datetime, float]
"""Start of a run: the date, and the seconds of `time.perf_counter`."""


Manifest: TypeAlias = Json
"""Record of a finished run; `docs/reference/json.md` describes the keys."""

UPDATED = "updated run"
"""Key, in the identity of an update, for the identifier of the updated run; it is not in the manifest."""


def manifest_of(
    config: RunConfig,
    source: Source,
    log: ProgressLog,
    times: Times,
    *,
    kind: str,
    plan: Plan,
    seconds: Mapping[str, float | Mapping[str, float] | None],
    updates: Sequence[Json] = (),
    **entries: object,
) -> Manifest:
    """Return the manifest of a run of any kind: versions, source, time, memory and result.

    `updates` has an entry for each addition of new rows; `entries` depend on the kind; all kinds have ``passes``, ``reads`` and ``notes``.
    """
    return {
        "format": f"streampca-{kind}",
        "format_version": 1,
        "name": config.name,
        "versions": versions(),
        "source": described_source(config, source),
        "memory": {
            "allowed_bytes": plan.allowed_bytes,
            "projected_bytes": plan.projected_bytes,
            "peak_bytes": peak_bytes(),
        },
        "runs_on": plan.runs_on,
        "seconds": {"total": time.perf_counter() - times[1], **seconds},
        "run_id": log.identity.run_id,
        "started": times[0].isoformat(timespec="seconds"),
        "identity": {name: value for name, value in log.identity.identity.items() if name != UPDATED},
        "resumed": log.resumption(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        **entries,
        **({"updates": list(updates)} if updates else {}),
    }


def described_source(config: RunConfig, source: Source) -> Json:
    """Return the entry of a manifest for the source: its path with references unresolved, shape, labels and files."""
    described = source.describe() | {"path": config.source.path_as_written}
    if source.labels is not None:
        described["labels"] = source.labels.describe()
    if source.fragments:
        described["fragments"] = [asdict(fragment) for fragment in source.fragments]
    return described


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """Write a JSON document of a run."""
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
