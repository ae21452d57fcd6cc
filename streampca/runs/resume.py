"""Resuming a stopped run: its identity, its checkpoint, and what dead runs left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from streampca.execution.checkpoint.directory import CheckpointDirectory
from streampca.execution.checkpoint.progress_log import ProgressLog
from streampca.execution.checkpoint.resume import array_digest, identity_of_labels, versions_and_input
from streampca.redaction import redacted
from streampca.storage.directories import read_record, tidy_after
from streampca.storage.lock import Lock

if TYPE_CHECKING:
    from streampca.runs.config import RunConfig
    from streampca.sources.base import Source


_NOT_IN_THE_BITS = (
    "name",
    "source.storage_options",
    "source.verify",
    "source.follow_symlinks",
    "resources",
    "cluster",
    "checkpoint",
    "output.directory",
    "output.overwrite",
    "output.publish",
    "output.scores",
    "output.state",
    "output.storage_options",
)
"""Keys, or sections, that do not decide the bits of a run; scores do where sampling errors come from the reading that writes them."""
UPDATED = "updated run"
"""Name, in the identity of an update, of the identifier of the run that it begins with."""


def checkpoint_of(output: Path) -> Path:
    """Return the place of the checkpoint of a run with that output."""
    output = output if output.name else output.absolute()
    return output.with_name(f"{output.name}.checkpoint")


def identity_of_run(config: RunConfig, source: Source, parameters: object) -> dict[str, str]:
    """Return, by name, everything that decides the bits of a run."""
    tree = dict(_flat(config.to_tree()))
    ignored = tuple(
        f"{name}." for name in _NOT_IN_THE_BITS if name != "output.scores" or not config.statistics.sampling_errors
    )
    identity = {key: redacted(value) for key, value in tree.items() if not f"{key}.".startswith(ignored)}
    weights = {f"preprocess.{name}": getattr(parameters, name, None) for name in ("sample_weight", "feature_weight")}
    identity |= {f"contents of {key}": array_digest(value) for key, value in weights.items() if value is not None}
    remove = getattr(parameters, "remove", None)
    if remove is not None:
        identity["contents of preprocess.remove"] = json.dumps(remove.to_dict(), sort_keys=True)
        identity |= identity_of_labels(source, parameters)
    return identity | versions_and_input(source)


def _flat(tree: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(tree, default=str)


def run_of(place: CheckpointDirectory) -> str | None:
    """Return the identifier of the run whose checkpoint is at `place`, None if there is none."""
    place.require_ours()
    run_id = (read_record(place.path) or {}).get("run_id")
    return run_id if isinstance(run_id, str) and run_id.isalnum() else None


def finished_run(output: Path, place: CheckpointDirectory, kind: str = "run") -> str | None:
    """Return the identifier of the finished run (or output of another `kind`) at `output`, None if there is none; a checkpoint it left goes."""
    record = read_record(output)
    if record is None or record.get("format") != f"streampca-{kind}":
        return None
    run_id = str(record.get("run_id"))
    if (read_record(place.path) or {}).get("run_id") == run_id:
        place.require_ours()
        place.remove()
    return run_id


def remove_leftovers(output: Path, lock: Lock, resumed: str | None) -> None:
    """Repair `output` and remove what runs that died while they held `lock` left beside it; unfinished files of run `resumed` stay."""
    for run_id in filter(str.isalnum, lock.dead):
        tidy_after(output, run_id, keep_part=run_id == resumed)


def unfinished_outputs(log: ProgressLog) -> tuple[str, ...]:
    """Return the names of the outputs that a resumed run continues in its unfinished directory."""
    entry = log.entry("scores")
    return ("scores.zarr",) if entry is not None and entry.next_leaf else ()
