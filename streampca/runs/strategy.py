"""Steps common to all runs: check and lock the directory, plan, check the disk space, read, write, and publish by a rename.

A fit, several models, groups of rows and an update are strategies.
"""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from streampca.errors import NotFiniteError
from streampca.estimators.loading import AnyFitted, load
from streampca.execution.checkpoint.progress_log import CheckpointDirectory, ProgressLog, RunIdentity, recording
from streampca.execution.checkpoint.resume import (
    array_digest,
    concluding,
    identity_of_labels,
    open_log,
    require_same,
    versions_and_input,
)
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.write import require_writable_by_workers
from streampca.logs import log_findings
from streampca.redaction import redacted
from streampca.runs.config import RunConfig
from streampca.runs.deploy import cluster_of
from streampca.runs.manifest import Manifest, Times, read_json, write_json
from streampca.sources import Source
from streampca.sources.store_record import note_digests
from streampca.storage.directories import (
    AtomicDirectory,
    read_record,
    require_apart,
    require_replaceable,
    require_space,
    tidy_after,
)
from streampca.storage.lock import Lock, lock_of
from streampca.system.process import peak_bytes

AnyPlan = Any
"""A `Plan`, or a `ManyPlan` for several models."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    directory: Path
    """Directory of the run."""
    manifest: Manifest
    """Versions, fingerprints, reads, memory, time, certificate and result."""

    @property
    def model(self) -> AnyFitted:
        """Return the fitted estimator, read from the directory."""
        return load(self.directory)


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """Steps that differ between kinds of runs; `carry_out` has the steps that all kinds share."""

    kind: ClassVar[str]
    """Kind of the output: ``run``, ``models`` or ``groups``."""
    finished: ClassVar[type[Run]] = Run
    """Class of a finished run of this kind."""
    config: RunConfig
    """Configuration of the run; for several models, the part that they share."""
    source: Source
    """The opened source."""
    notice: Callable[[str], None]
    """Called with sentences for the user."""
    progress: ProgressCallback | None = None
    """Called as blocks finish."""
    replaces: bool = False
    """Whether the run replaces the one in its directory, regardless of `output.overwrite`."""

    @abstractmethod
    def identity(self) -> dict[str, str]:
        """Return everything that must be unchanged for a stopped run to resume."""

    @abstractmethod
    def plan(self, log: ProgressLog) -> AnyPlan:
        """Return the plan, from the stopped run if `log` has one; raise an error if the run cannot be carried out."""

    @abstractmethod
    def bytes_to_write(self, plan: AnyPlan) -> int:
        """Return the approximate size of the output in bytes."""

    @abstractmethod
    def read(self, plan: AnyPlan) -> Any:
        """Read the rows and return the input of `write`."""

    @abstractmethod
    def write(self, fitted: Any, plan: AnyPlan, path: Path, log: ProgressLog, times: Times) -> Manifest:
        """Write everything but the configuration and the plan to the directory `path`; return the manifest."""

    def unfinished(self, log: ProgressLog) -> tuple[str, ...]:
        """Return names of outputs that a stopped run has begun and continues."""
        return ()

    def require_places(self, *, resume: bool) -> None:  # noqa: B027 most kinds have nothing to do
        """Raise an error if another destination of the run is occupied."""

    def conclude(self, run: Run) -> None:  # noqa: B027 most kinds have nothing to do
        """Do the work after the run is complete, such as writing its results into the AnnData that was read."""

    def to_yaml(self) -> str:
        """Return the configuration as a file."""
        return self.config.to_yaml()


def require_place(config: RunConfig, kind: str, *, resume: bool) -> None:
    """Raise `OutputError` if the directory of `config` contains something that an output of `kind` may not replace."""
    output = config.output
    # What a run that died left is tidied first.
    may_replace = resume or (output.directory.name != "" and lock_of(output.directory).exists())
    require_replaceable(output.directory, kind, overwrite=output.overwrite or may_replace)


def carry_out(strategy: Strategy, *, resume: bool, fresh: bool) -> Run:
    """Carry out a run in a checked directory and return the finished run; parameters and errors as in `streampca.run`.

    Before anything is read, it locks the directory, looks for a stopped run, plans the work and checks the disk space. The
    output has another name until it is complete.
    """
    directory, kind = strategy.config.output.directory, strategy.kind
    require_apart(directory, strategy.source.description)
    strategy.require_places(resume=resume)
    identity = strategy.identity()
    with locked(directory) as place:
        if resume and place.kind == kind and place.stopped is None:
            manifest: Manifest = read_json(directory, "manifest.json")
            require_same(manifest.get("identity") or {}, identity, f"{directory} holds a finished run, of another kind")
            run = strategy.finished(directory, manifest)
        else:
            require_replaceable(directory, kind, overwrite=strategy.config.output.overwrite)
            run = written(strategy, place, identity, resume=resume, fresh=fresh)
        strategy.conclude(run)
    return run


@dataclass(frozen=True)
class Place:
    """The locked directory of a run, without remains of runs that died."""

    directory: Path
    """Present or future directory of the run."""
    lock: Lock
    """Lock for writing there."""
    checkpoint: CheckpointDirectory
    """Checkpoint from which a stopped run resumes."""
    kind: str | None
    """Kind of the finished output in the directory; None without one."""
    stopped: str | None
    """Identifier of the stopped run; None without one."""


@contextmanager
def locked(directory: Path) -> Iterator[Place]:
    """Lock `directory` for one run for the duration of the block, and remove the remains of runs that died."""
    with Lock(directory, secrets.token_hex(8)) as lock:
        checkpoint = CheckpointDirectory(checkpoint_of(directory))
        finished = read_record(directory)
        stopped = _run_of(checkpoint)
        if stopped is not None and finished is not None and finished.get("run_id") == stopped:
            checkpoint.remove()  # it died when it was complete
            stopped = None
        for run_id in filter(str.isalnum, lock.dead):
            tidy_after(directory, run_id, keep_part=run_id == stopped)  # which may give an earlier output its name back
        finished = read_record(directory)
        kind = None if finished is None else str(finished["format"]).removeprefix("streampca-")
        yield Place(directory, lock, checkpoint, kind, stopped)


def written(
    strategy: Strategy, place: Place, identity: dict[str, str], *, resume: bool = False, fresh: bool = False
) -> Run:
    """Carry out, or resume, a run of this `identity` in its locked `place`, and return the finished run."""
    log = _log_of(strategy, place, identity, resume=resume, fresh=fresh)
    config, times = strategy.config, (datetime.now(UTC), time.perf_counter())
    unfinished = AtomicDirectory(
        place.directory,
        strategy.kind,
        overwrite=strategy.replaces or config.output.overwrite,
        run_id=log.identity.run_id,
        keeps=lambda: strategy.unfinished(log),
    )
    with concluding(log), recording(log), cluster_of(config, strategy.notice), unfinished as path:
        plan = strategy.plan(log)
        require_space(place.directory, strategy.bytes_to_write(plan))
        if config.output.scores and getattr(plan, "axis", None) == "samples":
            # Workers write them, when all has been read.
            require_writable_by_workers(active_client(strategy.source), path)
        (path / "config.yaml").write_text(strategy.to_yaml())
        write_json(path / "plan.json", plan.to_dict())
        if config.output.state:
            note_digests(strategy.source)
        try:
            fitted = strategy.read(plan)
        except NotFiniteError as error:
            raise NotFiniteError(f"{config.source.path_as_written}: {error}") from error
        manifest = strategy.write(fitted, plan, path, log, times)
        log.require_held()
    return strategy.finished(place.directory, manifest)


def _log_of(strategy: Strategy, place: Place, identity: dict[str, str], *, resume: bool, fresh: bool) -> ProgressLog:
    """Return the log of a run of this `identity`: the log of the stopped run, which the lock then names, or a new one."""
    lock, stopped = place.lock, place.stopped
    files = {"config.yaml": strategy.config.to_yaml()}
    run_identity = RunIdentity(lock.run_id, identity, strategy.config.checkpoint.every_seconds, files)
    log = open_log(
        place.checkpoint,
        run_identity,
        resume=resume,
        fresh=fresh,
        notice=strategy.notice,
        require_held=lock.require_held,
    )
    run_id = log.identity.run_id
    if stopped is not None:  # also where the run that goes on could not give the earlier output its name back
        tidy_after(place.directory, stopped, keep_part=stopped == run_id)
    if run_id != lock.run_id:
        lock.name(run_id)
    return log


def write_manifest(config: RunConfig, path: Path, manifest: Manifest, write_page: Callable[[Path], object]) -> None:
    """Log the result of a run; write manifest and report, both twice if drawing took more memory than everything before.

    No chart shows the memory, so both reports have the same charts.
    """
    log_findings(config.name, manifest.get("warnings", ()), manifest["notes"])
    write_json(path / "manifest.json", manifest)
    if not config.output.report:
        return
    from streampca.runs.report.figures import each_drawn_once

    with each_drawn_once():
        write_page(path)
        if peak_bytes() > manifest["memory"]["peak_bytes"]:
            manifest["memory"]["peak_bytes"] = peak_bytes()
            write_json(path / "manifest.json", manifest)
            write_page(path)


def unfinished_rows(config: RunConfig, log: ProgressLog) -> tuple[str, ...]:
    """Return the names of scores and rows that a stopped run has begun to write and that `config` also requests: they are continued."""
    asked = {"scores": config.output.scores, "reconstruction": config.output.reconstruction}
    entries = {name: log.entry(name) for name, wanted in asked.items() if wanted}
    return tuple(f"{name}.zarr" for name, entry in entries.items() if entry is not None and entry.next_leaf)


def checkpoint_of(output: Path) -> Path:
    """Return the checkpoint directory of a run with this output."""
    output = output if output.name else output.absolute()
    return output.with_name(f"{output.name}.checkpoint")


def _run_of(checkpoint: CheckpointDirectory) -> str | None:
    """Return the identifier of the run with this checkpoint, or None without one."""
    checkpoint.require_ours()
    run_id = (read_record(checkpoint.path) or {}).get("run_id")
    return run_id if isinstance(run_id, str) and run_id.isalnum() else None


_NOT_IN_THE_BITS = (
    "name",
    "source.storage_options",
    "source.verify",
    "source.follow_symlinks",
    "resources.memory",
    "resources.threads",
    "resources.read_ahead",
    "cluster",
    "checkpoint",
    "output.directory",
    "output.overwrite",
    "output.reconstruction",
    "output.scores",
    "output.state",
)
"""Keys and sections that do not affect the bits of a run."""


def identity_of_run(config: RunConfig, source: Source, parameters: object) -> dict[str, str]:
    """Return, by name, everything that affects the bits of a run."""
    tree = dict(_flat(config.to_tree()))
    ignored = tuple(f"{name}." for name in _NOT_IN_THE_BITS)
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
