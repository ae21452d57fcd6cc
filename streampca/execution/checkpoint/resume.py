"""Resuming a stopped fit: its identity, which must be unchanged, and its checkpoint."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import xxhash

from streampca.errors import ConfigError, OutputError, PlanError
from streampca.execution.checkpoint.progress_log import (
    BegunLeaf,
    CheckpointDirectory,
    Entry,
    ProgressLog,
    RunIdentity,
    StoredState,
    log_in_use,
    recording,
)
from streampca.logs import logger
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import DerivedSource, ReadCount, Source
from streampca.storage.lock import Lock
from streampca.storage.signals import uninterrupted
from streampca.storage.state_file import NotRecordableError, read_state_file, state_bytes
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
_Total = TypeVar("_Total")
_STEPS = 20  # checkpoints of a pass, if they are cheap
_LAST_SECONDS = 8.0  # time for writing after a signal, of the ten seconds that are promised


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
            notice(f"checkpoint {place.path}: nothing intact is left: starting over")
        place.remove()
        return ProgressLog(place, identity, None, require_held)
    require_same(
        stored["identity"], identity.identity, f"{place.path} is the checkpoint of a run that cannot be resumed"
    )
    log = ProgressLog(place, replace(identity, run_id=stored["run_id"]), stored, require_held)
    notice(f"resuming the stopped run: {log.progress} ({place.path})")
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
            f"the stopped run was planned with {before.projected_bytes:,} bytes, but only {plan.allowed_bytes:,} are allowed now: allow as "
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


class PassState(NamedTuple, Generic[_Total]):
    """Where a pass starts."""

    total: _Total
    """State of the leaves before."""
    read_count: ReadCount
    """What reading them cost."""
    next_leaf: int
    """Index of the first leaf to read."""


class PassRecord:
    """Checkpoints of one pass; with no log it starts at the first leaf and writes nothing.

    Parameters
    ----------
    log : ProgressLog, optional
        Checkpoints of the run.
    phase : str
        Name of the pass, for progress.
    plan : Plan
        Plan of the pass.
    made_with : str
        What the states depend on beside the plan.
    before_saving : callable, optional
        Called before a checkpoint with the first leaf that no checkpoint holds and the one after the last that this one holds.
    piece : callable, optional
        Called likewise; returns further results of these leaves that the checkpoint stores, see `pieces`.
    """

    def __init__(
        self,
        log: ProgressLog | None,
        phase: str,
        plan: Plan,
        made_with: str = "",
        before_saving: Callable[[int, int], None] | None = None,
        piece: Callable[[int, int], object] | None = None,
    ):
        self.log, self.phase, self.n_leaves = log, phase, plan.n_leaves
        work = f"{plan.axis} {plan.extent} {plan.rows_per_block} {plan.n_blocks} {plan.n_leaves} {plan.shuffle_seed} {made_with}"
        self._entry = Entry(phase if log is None else log.key_of_next_pass(phase), work, n_leaves=plan.n_leaves)
        self._leaves_in_flight = plan.leaves_in_flight
        self._blocks_per_step = max(1, plan.n_blocks // (_STEPS * plan.leaves_in_flight))
        self._last_saved: dict[int, tuple[float, int]] = {}
        self._before_saving, self._piece = before_saving, piece

    def begin(self, template: _Total) -> PassState[_Total]:
        """Return where the pass starts; `template` is its state before the first leaf.

        A checkpoint made for another plan or other parameters is dropped, with all later ones.
        """
        entry = self.log.entry(self._entry.key) if self.log else None
        if self.log is None or entry is None:
            return PassState(template, ReadCount(), 0)
        state = template if entry.state is None else read_state_file(self.log.directory.path / entry.state.file)
        if (entry.work, entry.n_leaves) != (self._entry.work, self.n_leaves) or not _alike(template, state):
            return self.restart(template)
        self._entry = entry
        return PassState(state, entry.count, entry.next_leaf)

    def restart(self, template: _Total) -> PassState[_Total]:
        """Drop the checkpoint of this pass; return its beginning."""
        if self.log is not None:
            self.log.forget_from(self._entry.key)
        self._entry = Entry(self._entry.key, self._entry.work, n_leaves=self.n_leaves)
        return PassState(template, ReadCount(), 0)

    def pieces(self) -> Iterator[Any]:
        """Yield the stored results of `piece`, in order."""
        if self.log is not None:
            for stored in self._entry.pieces:
                yield read_state_file(self.log.directory.path / stored.file)

    def begun(self, leaf: Leaf) -> tuple[int, Any, ReadCount] | None:
        """Return the number of completed blocks of `leaf`, their state and what they cost; None if there are none."""
        begun = self._entry.begun.get(leaf.index)
        if self.log is None or begun is None:
            return None
        return begun.blocks, read_state_file(self.log.directory.path / begun.state.file), begun.count

    def begun_leaves(self) -> dict[int, BegunLeaf]:
        """Return the leaves of which some blocks are completed, by index."""
        return self._entry.begun if self.log else {}

    def leaf_merged(self, index: int, state: object, count: ReadCount) -> None:
        """Write a checkpoint if one is due, now that leaf `index` is merged into `state`."""
        if self.log is None or self.log.identity.every is None:
            return
        next_leaf, every = index + 1, self.log.identity.every
        try:
            n_bytes = state_bytes(state)
        except NotRecordableError:
            self.log = None
            return
        if next_leaf >= self.n_leaves:
            # A finished pass is worth more than its last leaves: it is never read again.
            due = self.log.affords(n_bytes, time.monotonic() - self.log.began)
        else:
            since, leaves = time.monotonic() - self.log.saved, next_leaf - self._entry.next_leaf
            due = self.log.affords(n_bytes, since) and (since >= every or leaves * _STEPS >= self.n_leaves)
        if due:
            self._save(self.log, next_leaf, state, count)

    def block_done(self, leaf: Leaf, blocks: int, state: object, count: ReadCount) -> None:
        """Write a checkpoint of the first `blocks` blocks of `leaf` if one is due; called by the leaf's thread."""
        log = self.log
        if log is None or log.identity.every is None or blocks == len(leaf.spans):
            return
        now = time.monotonic()
        saved, before = self._last_saved.setdefault(leaf.index, (now, blocks - 1))
        try:
            n_bytes = state_bytes(state)
        except NotRecordableError:
            return
        if log.stopping:
            due = blocks > before and self._leaves_in_flight * log.cost(n_bytes) <= _LAST_SECONDS
        else:
            enough = log.affords(n_bytes, now - saved, self._leaves_in_flight)
            due = enough and (now - saved >= log.identity.every or blocks - before >= self._blocks_per_step)
        if due:
            with log.lock:
                begun = BegunLeaf(blocks, count, StoredState("", 0, ""))
                self._entry = log.save(self._entry, begun=(leaf.index, begun, state))
            self._last_saved[leaf.index] = time.monotonic(), blocks

    def stopped(self, next_leaf: int, state: object, count: ReadCount) -> None:
        """Write a last checkpoint after an error or signal if there are new leaves and time enough."""
        log = self.log
        if log is None or log.identity.every is None or not log.stopping or next_leaf <= self._entry.next_leaf:
            return
        try:
            if log.cost(state_bytes(state)) <= _LAST_SECONDS:
                self._save(log, next_leaf, state, count)
        except NotRecordableError:
            return

    def _save(self, log: ProgressLog, next_leaf: int, state: object, count: ReadCount) -> None:
        with uninterrupted(), log.lock:
            if self._before_saving is not None:
                self._before_saving(self._entry.next_leaf, next_leaf)
            piece = None if self._piece is None else self._piece(self._entry.next_leaf, next_leaf)
            begun = {index: leaf for index, leaf in self._entry.begun.items() if index >= next_leaf}
            entry = replace(self._entry, next_leaf=next_leaf, count=count, begun=begun)
            self._entry = log.save(entry, state, piece)


def _alike(template: object, state: object) -> bool:
    """Tell whether `state` has the classes, array types and texts of `template`."""
    if type(template) is not type(state):
        return False
    if isinstance(template, tuple) and isinstance(state, tuple):
        return len(template) == len(state) and all(map(_alike, template, state))
    if isinstance(template, np.ndarray) and isinstance(state, np.ndarray):
        return bool(template.dtype == state.dtype and template.ndim == state.ndim)
    if isinstance(template, str):
        return bool(template == state)
    if is_dataclass(template) and not isinstance(template, type):
        pairs = [(getattr(template, f.name), getattr(state, f.name)) for f in fields(template)]
        return all(_alike(a, b) for a, b in pairs if isinstance(a, str | np.ndarray) or is_dataclass(a))
    return True


def next_pass(
    phase: str,
    plan: Plan,
    made_with: str = "",
    *,
    before_saving: Callable[[int, int], None] | None = None,
    piece: Callable[[int, int], object] | None = None,
) -> PassRecord:
    """Return the record of the next pass called `phase` in the log in use; without a log it writes nothing."""
    return PassRecord(log_in_use(), phase, plan, made_with, before_saving, piece)
