"""Resuming a stopped fit: what must be the same, and its checkpoint."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import xxhash

from streampca.errors import ConfigError, OutputError, PlanError
from streampca.execution.checkpoint.progress_log import CheckpointDirectory, ProgressLog, RunIdentity, recording
from streampca.logs import logger
from streampca.sources.base import DerivedSource, Source
from streampca.storage.lock import Lock
from streampca.typing import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from streampca.planning.plan import Plan
    from streampca.regressors import Removal

_log = logger(__name__)
_Plan = TypeVar("_Plan", bound="Plan")

_VERSIONS = ("streampca", "numpy", "scipy", "blas")
_SHAPE_OF_THE_WORK = (
    "solver",
    "n_samples",
    "n_features",
    "dtype",
    "work_dtype",
    "n_components",
    "rows_per_block",
    "n_blocks",
    "n_leaves",
    "leaves_per_branch",
    "tile",
    "edges",
    "axis",
    "tile_groups",
    "components_on_disk",
    "shuffle_seed",
    "sketch",
)


def identity_of_fit(source: Source, parameters: DataclassInstance) -> dict[str, str]:
    """Return, by name, everything that determines the bits of a fit."""
    return identity_of_parameters(parameters) | versions_and_input(source) | identity_of_labels(source, parameters)


def identity_of_parameters(parameters: DataclassInstance) -> dict[str, str]:
    """Return, by name, the parameters that determine the bits of a fit."""
    identity = {}
    for field in fields(parameters):
        if field.name not in ("memory", "threads", "read_ahead"):
            value = getattr(parameters, field.name)
            as_data = getattr(value, "to_dict", None)  # of kernels, without addresses of objects
            if as_data is not None:
                identity[field.name] = json.dumps(as_data(), sort_keys=True)
            else:
                identity[field.name] = array_digest(value) if isinstance(value, np.ndarray) else repr(value)
    return identity


def identity_of_labels(source: Source, parameters: object) -> dict[str, str]:
    """Return, by name, digests of what the parameter `remove` takes from the labels of `source`, which are no part of its rows."""
    remove: Removal | None = getattr(parameters, "remove", None)
    if remove is None:
        return {}
    rows = remove.rows_of(source.labels, source.shape[0], source.description, source.sample_columns)
    known = {"groups": rows.groups, "positions": rows.positions}
    return {f"{name} of remove": array_digest(values) for name, values in known.items() if values is not None}


def versions_and_input(source: Source) -> dict[str, str]:
    """Return the versions of libraries and a digest of the input, by name."""
    from streampca.system.process import versions

    stored = versions()
    return {"input": _of_input(source)} | {f"version of {name}": stored[name] for name in _VERSIONS}


def _of_input(source: Source) -> str:
    """Return a digest of what is known of the data without reading it: of files and objects also names, sizes and times.

    Arrays in memory are read: a digest of some of their rows would not notice a change in the others.
    """
    digest = xxhash.xxh3_128(source.fingerprint.encode())
    values = getattr(source, "array", None)
    if isinstance(values, np.ndarray) and not isinstance(values, np.memmap):
        digest.update(array_digest(values).encode())
    if isinstance(source, DerivedSource):
        return xxhash.xxh3_128(f"{digest.hexdigest()}|{_of_input(source.source)}".encode()).hexdigest()
    rows = getattr(source, "rows", None)
    for name in ("data", "indices", "indptr") if source.sparse else ():
        if isinstance(getattr(rows, name, None), np.ndarray):
            digest.update(array_digest(getattr(rows, name)).encode())
    version = source.version()
    if version is not None:
        digest.update(version.digest.encode())
        source.require_unchanged()
    return digest.hexdigest()


def array_digest(values: object) -> str:
    """Return a digest of shape, type and values of an array."""
    array, digest = np.asarray(values), xxhash.xxh3_128()
    digest.update(f"{array.shape}{array.dtype}".encode())
    rows = max(1, 2**24 // max(1, array[:1].nbytes)) if array.ndim else 1
    for start in range(0, len(array) if array.ndim else 0, rows):
        part = np.ascontiguousarray(array[start : start + rows])
        if part.size:
            digest.update(part.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def open_log(
    place: CheckpointDirectory,
    identity: RunIdentity,
    *,
    resume: bool,
    fresh: bool,
    notice: Callable[[str], None],
    require_held: Callable[[], None] | None = None,
) -> ProgressLog:
    """Return the log of the run that was stopped, or a new one.

    Raises
    ------
    OutputError
        If a checkpoint is there whose run differs in something that decides the bits, or something foreign.
    ConfigError
        If `resume` is set and there is none.
    """
    place.require_ours()
    stored, damaged = (None, []) if fresh else place.newest()
    for message in damaged:
        notice(f"checkpoint {place.path}: {message}: passed over")
    if stored is None:
        if resume and not damaged:
            raise ConfigError(
                f"--resume: no checkpoint of a stopped run at {place.path}: run without --resume to start"
            )
        if damaged:
            notice(f"checkpoint {place.path}: nothing whole is left: starting over")
        place.remove()
        return ProgressLog(place, identity, None, require_held)
    require_same(
        stored["identity"], identity.identity, f"{place.path} is the checkpoint of a run that cannot be gone on with"
    )
    log = ProgressLog(place, replace(identity, run_id=stored["run_id"]), stored, require_held)
    notice(f"going on with the run that was stopped: {log.progress} ({place.path})")
    return log


def require_same(before: dict[str, str], now: dict[str, str], what: str) -> None:
    """Raise `OutputError`, which begins with `what`, naming everything that differs."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if not names:
        return
    differences = "; ".join(
        "the input has changed (files, sizes, times or metadata)"
        if name == "input"
        else f"{name} was {before.get(name) or 'not there'} and is {now.get(name) or 'not there'}"
        for name in names[:5]
    )
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    raise OutputError(
        f"{what}: {differences}{more}: put it back as it was, or start over with --fresh (from Python: fresh=True, or remove the directory)"
    )


def recorded_plan(log: ProgressLog, plan: _Plan) -> _Plan:
    """Return `plan`, or that of the stopped run where blocks or leaves would be others; `PlanError` if it does not fit now."""
    return plan if log.plan is None else plan_as_before(log.plan, plan)


def plan_as_before(stored: Json, plan: _Plan) -> _Plan:
    """Return `plan`, or the one that is `stored` where blocks or leaves would be others; `PlanError` if it does not fit now."""
    before = type(plan).from_dict(stored)
    now = json.loads(json.dumps(plan.to_dict()))
    if all(stored.get(name) == now.get(name) for name in _SHAPE_OF_THE_WORK):
        return plan
    if before.projected_bytes > plan.allowed_bytes:
        raise PlanError(
            f"the stopped run was planned with {before.projected_bytes:,} bytes and {plan.allowed_bytes:,} are allowed now: allow as "
            "much as it had, or start over with --fresh"
        )
    return replace(before, budget=replace(before.budget, allowed_bytes=plan.allowed_bytes))


@contextmanager
def concluding(log: ProgressLog) -> Iterator[None]:
    """Remove the checkpoint when the block has succeeded; if it fails, say where progress is kept, if any is."""
    try:
        yield
    except BaseException as error:
        if log.written:
            here, path = Path.cwd(), log.directory.path  # named as it was written as a rule: from the working directory
            error.add_note(f"progress is kept in {path.relative_to(here) if here in path.parents else path}")
        else:
            log.directory.remove()
        raise
    log.directory.remove()


@contextmanager
def resumed(plan: _Plan, checkpoint: str | Path | None, identity: Callable[[], dict[str, str]]) -> Iterator[_Plan]:
    """Give the plan of the fit in the block; with a directory as `checkpoint`, that of the stopped fit of the same `identity`, which goes on."""
    if checkpoint is None:
        yield plan
        return
    with logged(Path(checkpoint), identity()) as log:
        recorded = recorded_plan(log, plan)
        log.plan = recorded.to_dict()
        yield recorded


@contextmanager
def logged(directory: Path, identity: dict[str, str]) -> Iterator[ProgressLog]:
    """Give the log of the progress of the fit in the block, which goes on from where an earlier one stopped whose checkpoint is `directory`.

    The checkpoint is removed when the fit is done. `identity` is what must be the same, by name.

    Raises
    ------
    OutputError
        If something else stands there, or the checkpoint of another fit, or another process is at work on it.
    """
    with Lock(directory, secrets.token_hex(8)) as lock:
        terms, place = RunIdentity(lock.run_id, identity), CheckpointDirectory(directory)
        log = open_log(place, terms, resume=False, fresh=False, notice=_log.info, require_held=lock.require_held)
        with concluding(log), recording(log):
            yield log
