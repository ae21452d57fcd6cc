"""What is done of a run, kept on disk as it goes: finished readings, and how far the present one has come.

Leaves are folded in order into one state, so a state and the number of the next leaf are all that going on takes, and the
bits are those of a run that was never stopped. `accumulate` and its kin look for the ledger of the run by `ledger_in_use`;
the solvers do not know of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import xxhash

from streampca.errors import ClusterError
from streampca.execution.checkpoint.directory import CheckpointDirectory, StoredState
from streampca.planning.leaves import Leaf
from streampca.planning.plan import Plan
from streampca.sources.base import ReadCount
from streampca.storage.signals import uninterrupted
from streampca.storage.state_file import NotRecordableError, read_state_file, state_bytes, write_state_file

_SHARE = 50.0  # a checkpoint may take one part in so many of the time since the last
_STEPS = 20  # checkpoints of a reading, if they are cheap
_LAST_SECONDS = 8.0  # what may be written after a signal, when ten seconds are promised
_ONCE = "once"
_FIRST_COST, _FIRST_RATE = 0.02, 2e8  # seconds, and bytes per second, before any was measured


@dataclass(frozen=True)
class BegunLeaf:
    """A leaf of which some blocks are folded."""

    blocks: int
    """How many."""
    count: ReadCount
    """What reading them cost."""
    state: StoredState
    """Their state."""


@dataclass(frozen=True)
class Entry:
    """What the ledger holds of one reading of the source."""

    key: str
    """Which reading: its phase, and its number where there are several."""
    work: str
    """What must be the same for it to go on: the work, and what it is done with."""
    next_leaf: int = 0
    """The first leaf that is not in the state."""
    n_leaves: int = 0
    """Leaves in all."""
    count: ReadCount = field(default_factory=ReadCount)
    """What reading the leaves before cost."""
    state: StoredState | None = None
    """The state of the leaves before; None where a reading has none."""
    pieces: tuple[StoredState, ...] = ()
    """What was found on the way, in order."""
    begun: dict[int, BegunLeaf] = field(default_factory=dict)
    """Leaves of which some blocks are folded."""

    @classmethod
    def of(cls, data: dict[str, Any]) -> Entry:
        """Return the entry that `asdict` and JSON have made `data` of."""
        begun = {
            int(index): BegunLeaf(leaf["blocks"], ReadCount(**leaf["count"]), StoredState(**leaf["state"]))
            for index, leaf in data["begun"].items()
        }
        return cls(
            data["key"],
            data["work"],
            data["next_leaf"],
            data["n_leaves"],
            ReadCount(**data["count"]),
            None if data["state"] is None else StoredState(**data["state"]),
            tuple(StoredState(**piece) for piece in data["pieces"]),
            begun,
        )


@dataclass(frozen=True)
class RunIdentity:
    """What a ledger is told when it begins."""

    run_id: str
    """Names the run and its directory that is built aside."""
    identity: dict[str, str]
    """What must be the same for a run to go on."""
    every: float | None = 30.0
    """Seconds after which a checkpoint is due; None = none are written."""
    about: dict[str, str] = field(default_factory=dict)
    """Texts that are written beside the record, by file name."""


class ProgressLog:
    """The checkpoints of one run; used by one driver, and by its leaf threads.

    A checkpoint is due after `every` seconds or a twentieth of the leaves, and put off while it would take more than a
    fiftieth of the time since the last.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        terms: RunIdentity,
        found: dict[str, Any] | None = None,
        require_held: Callable[[], None] | None = None,
    ):
        self.directory, self.terms = directory, terms
        self.attempts = 1 + (found["attempts"] if found else 0)
        self.plan: dict[str, Any] | None = found["plan"] if found else None
        self.stopping = False
        self.written = found is not None
        self._entries = {entry.key: entry for entry in map(Entry.of, found["readings"] if found else [])}
        self._seconds_before = float(found["seconds"]) if found else 0.0
        self._generation = directory.last_generation()
        self._require_held = require_held
        self._seen: dict[str, int] = {}
        self._lock = threading.RLock()
        self._began = self._saved = time.monotonic()
        self._cost, self._rate = _FIRST_COST, _FIRST_RATE

    def reading(self, phase: str, plan: Plan, made_with: str = "") -> PassRecord:
        """Return the record of the next reading that is called `phase`."""
        self._seen[phase] = number = self._seen.get(phase, 0) + 1
        work = f"{plan.axis} {plan.extent} {plan.rows_per_block} {plan.n_blocks} {plan.n_leaves} {plan.shuffle_seed} {made_with}"
        return PassRecord(self, phase if number == 1 else f"{phase} ({number})", plan, work)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned when it was called first, in this process or in one that was stopped."""
        entry = self._entries.get(name)
        if entry is not None and entry.state is not None:
            return read_state_file(self.directory.path / entry.state.file)
        made = make()
        try:
            cheap = time.monotonic() - self._began >= _SHARE * self.cost(state_bytes(made))
        except NotRecordableError:
            return made
        if cheap:
            self.save(Entry(name, _ONCE, 1, 1), made)
        return made

    @property
    def present(self) -> Entry | None:
        """Return the last reading that is recorded, None before the first."""
        return next((entry for entry in reversed(self._entries.values()) if entry.work != _ONCE), None)

    def entry(self, key: str) -> Entry | None:
        """Return what is recorded of one reading."""
        return self._entries.get(key)

    def forget_from(self, key: str) -> None:
        """Drop the reading `key` and all that came after it."""
        keys = list(self._entries)
        for later in keys[keys.index(key) :] if key in keys else []:
            del self._entries[later]

    def cost(self, n_bytes: int) -> float:
        """Return the seconds that writing a checkpoint of so many bytes is expected to take."""
        return self._cost + n_bytes / self._rate

    def since_last(self) -> float:
        """Return the seconds since the last checkpoint, or the beginning."""
        return time.monotonic() - self._saved

    def elapsed(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._began

    def save(
        self, entry: Entry, state: Any = None, piece: Any = None, begun: tuple[int, BegunLeaf, Any] | None = None
    ) -> Entry:
        """Write `entry` with its new `state`, `piece` and begun leaf, and a ledger that names them; return it as written.

        Raises
        ------
        NoSpaceError, OutputError
            If it cannot be written; the checkpoint before is whole then.
        """
        with uninterrupted(), self._lock:
            self.require_held()
            started, n_bytes = time.monotonic(), 0
            self.directory.make(self.terms.run_id, self.terms.about)
            generation = self._generation + 1
            files = (f"state-{generation}-{number}.bin" for number in range(3))
            if state is not None:
                entry = replace(entry, state=(stored := self._write(next(files), state)))
                n_bytes += stored.size
            if piece is not None:
                entry = replace(entry, pieces=(*entry.pieces, stored := self._write(next(files), piece)))
                n_bytes += stored.size
            if begun is not None:
                index, leaf, own = begun
                leaf = replace(leaf, state=self._write(next(files), own))
                entry = replace(entry, begun={**entry.begun, index: leaf})
                n_bytes += leaf.state.size
            self._entries[entry.key] = entry
            self._generation = generation
            self.directory.write(self._data(), self.terms.about)
            self.written, self._saved = True, time.monotonic()
            self._learn(n_bytes, self._saved - started)
        return entry

    def require_held(self) -> None:
        """Raise `OutputError` if another run has taken the place of this one."""
        if self._require_held is not None:
            self._require_held()

    def remove(self) -> None:
        """Remove the checkpoint: the run is finished."""
        self.directory.remove()

    def told(self) -> dict[str, Any] | None:
        """Return what a manifest says of a run that was stopped and went on; None for one that was not."""
        if self.attempts == 1:
            return None
        return {"attempts": self.attempts, "seconds_before": self._seconds_before}

    def _write(self, name: str, state: Any) -> StoredState:
        return StoredState(name, *write_state_file(self.directory.path / name, state))

    def _data(self) -> dict[str, Any]:
        return {
            "format": "streampca-ledger",
            "version": 1,
            "generation": self._generation,
            "run_id": self.terms.run_id,
            "attempts": self.attempts,
            "seconds": self._seconds_before + self.elapsed(),
            "identity": self.terms.identity,
            "plan": self.plan,
            "readings": [_plain(entry) for entry in self._entries.values()],
        }

    def _learn(self, n_bytes: int, seconds: float) -> None:
        if n_bytes < 2**20:
            self._cost = (self._cost + max(seconds, 1e-3)) / 2
        else:
            self._rate = 0.5 * self._rate + 0.5 * n_bytes / max(seconds - self._cost, 1e-3)


def _plain(entry: Entry) -> dict[str, Any]:
    data = asdict(entry)
    data["begun"] = {str(index): leaf for index, leaf in data["begun"].items()}
    return data


class PassRecord:
    """One reading of the source: where it goes on, and what is kept of it; without a ledger it starts and keeps nothing."""

    def __init__(self, ledger: ProgressLog | None, key: str = "", plan: Plan | None = None, work: str = ""):
        self.ledger, self.key, self.work = ledger, key, work
        self.n_leaves = plan.n_leaves if plan else 0
        self._at_once = plan.leaves_in_flight if plan else 1
        self._blocks = max(1, plan.n_blocks // (_STEPS * self._at_once)) if plan else 1
        self._entry = Entry(key, work, n_leaves=self.n_leaves)
        self._leaves: dict[int, tuple[float, int]] = {}
        self.before_saving: Callable[[int, int], None] | None = None
        """Called with the first leaf that no checkpoint holds and the one behind the last that the next one will hold."""

    def begin(self, template: Any) -> tuple[Any, ReadCount, int]:
        """Return the state to go on from, what it cost, and the first leaf to read; `template` is that of nothing read.

        What is recorded under other terms is dropped, with all that came after it.
        """
        entry = self.ledger.entry(self.key) if self.ledger else None
        if self.ledger is None or entry is None:
            return template, ReadCount(), 0
        state = template if entry.state is None else read_state_file(self.ledger.directory.path / entry.state.file)
        if entry.work != self.work or entry.n_leaves != self.n_leaves or not _alike(template, state):
            self.restart()
            return template, ReadCount(), 0
        self._entry = entry
        return state, entry.count, entry.next_leaf

    def restart(self) -> None:
        """Drop what is recorded."""
        if self.ledger is not None:
            self.ledger.forget_from(self.key)
        self._entry = Entry(self.key, self.work, n_leaves=self.n_leaves)

    def pieces(self) -> Iterator[Any]:
        """Yield what was found on the way, in order."""
        for stored in self._entry.pieces if self.ledger else ():
            yield read_state_file(self.ledger.directory.path / stored.file)  # type: ignore[union-attr]

    def begun(self, leaf: Leaf) -> tuple[int, Any, ReadCount] | None:
        """Return how many blocks of `leaf` are folded already, their state, and what they cost; None if none are."""
        found = self._entry.begun.get(leaf.index)
        if self.ledger is None or found is None:
            return None
        return found.blocks, read_state_file(self.ledger.directory.path / found.state.file), found.count

    def begun_leaves(self) -> dict[int, BegunLeaf]:
        """Return the leaves of which some blocks are folded already."""
        return self._entry.begun if self.ledger else {}

    def absorbed(
        self, index: int, state: Any, count: ReadCount, piece: Callable[[int, int], Any] | None = None
    ) -> None:
        """Note that leaf `index` is in `state`; write a checkpoint if one is due.

        `piece` returns what was found in the leaves from its first argument to before its second.
        """
        if self.ledger is None or self.ledger.terms.every is None:
            return
        next_leaf, every = index + 1, self.ledger.terms.every
        try:
            cost = self.ledger.cost(state_bytes(state))
        except NotRecordableError:
            self.ledger = None
            return
        if next_leaf >= self.n_leaves:
            # A reading that is done is worth more than its last leaves: it is never read again.
            due = self.ledger.elapsed() >= _SHARE * cost
        else:
            since, leaves = self.ledger.since_last(), next_leaf - self._entry.next_leaf
            due = since >= _SHARE * cost and (since >= every or leaves * _STEPS >= self.n_leaves)
        if due:
            self._save(next_leaf, state, count, piece)

    def folded(self, leaf: Leaf, blocks: int, state: Any, count: ReadCount) -> None:
        """Note that so many blocks of `leaf` are in `state`; write that down if it is due. Called by the leaf's thread."""
        ledger = self.ledger
        if ledger is None or ledger.terms.every is None or blocks == len(leaf.spans):
            return
        now = time.monotonic()
        saved, before = self._leaves.setdefault(leaf.index, (now, blocks - 1))
        try:
            cost = ledger.cost(state_bytes(state))
        except NotRecordableError:
            return
        if ledger.stopping:
            due = blocks > before and self._at_once * cost <= _LAST_SECONDS
        else:
            enough = now - saved >= _SHARE * self._at_once * cost
            due = enough and (now - saved >= ledger.terms.every or blocks - before >= self._blocks)
        if due:
            with ledger._lock:
                own = BegunLeaf(blocks, count, StoredState("", 0, ""))
                self._entry = ledger.save(self._entry, begun=(leaf.index, own, state))
            self._leaves[leaf.index] = time.monotonic(), blocks

    def stopped(
        self, next_leaf: int, state: Any, count: ReadCount, piece: Callable[[int, int], Any] | None = None
    ) -> None:
        """Write a last checkpoint if there is anything new and time enough."""
        ledger = self.ledger
        if ledger is None or ledger.terms.every is None or not ledger.stopping or next_leaf <= self._entry.next_leaf:
            return
        try:
            if ledger.cost(state_bytes(state)) <= _LAST_SECONDS:
                self._save(next_leaf, state, count, piece)
        except NotRecordableError:
            return

    def _save(self, next_leaf: int, state: Any, count: ReadCount, piece: Callable[[int, int], Any] | None) -> None:
        ledger = self.ledger
        if ledger is None:
            return
        with uninterrupted(), ledger._lock:
            if self.before_saving is not None:
                self.before_saving(self._entry.next_leaf, next_leaf)
            found = None if piece is None else piece(self._entry.next_leaf, next_leaf)
            begun = {index: leaf for index, leaf in self._entry.begun.items() if index >= next_leaf}
            entry = replace(self._entry, next_leaf=next_leaf, count=count, begun=begun)
            self._entry = ledger.save(entry, state, found)


def _alike(template: Any, state: Any) -> bool:
    """Tell whether `state` is of the kind of `template`: the same classes, types of arrays, and texts."""
    if type(template) is not type(state):
        return False
    if isinstance(template, tuple):
        return len(template) == len(state) and all(map(_alike, template, state))
    if isinstance(template, np.ndarray):
        return bool(template.dtype == state.dtype and template.ndim == state.ndim)
    if isinstance(template, str):
        return bool(template == state)
    if is_dataclass(template):
        pairs = [(getattr(template, f.name), getattr(state, f.name)) for f in fields(template)]
        return all(_alike(a, b) for a, b in pairs if isinstance(a, str | np.ndarray) or is_dataclass(a))
    return True


_in_use: ContextVar[ProgressLog | None] = ContextVar("streampca ledger", default=None)


@contextmanager
def ledger_in_use(ledger: ProgressLog | None) -> Iterator[None]:
    """Let the readings of this block be recorded in `ledger`."""
    token = _in_use.set(ledger)
    try:
        yield
    finally:
        _in_use.reset(token)


def next_reading(phase: str, plan: Plan, made_with: str = "") -> PassRecord:
    """Return the record of the next reading called `phase`; one that records nothing if no ledger is in use."""
    ledger = _in_use.get()
    return PassRecord(None) if ledger is None else ledger.reading(phase, plan, made_with)


def once(name: str, make: Callable[[], Any]) -> Any:
    """Return what `make` returns, or returned in the run that is gone on with."""
    ledger = _in_use.get()
    return make() if ledger is None else ledger.once(name, make)


def note_stop(error: BaseException) -> None:
    """Let what is done be kept if `error` stops the run without saying that its data or its place are at fault."""
    ledger = _in_use.get()
    stops = isinstance(error, ClusterError) or not isinstance(error, Exception | GeneratorExit)
    if ledger is not None and stops:
        ledger.stopping = True


def model_digest(model: Any) -> str:
    """Return a digest of what scores are made with; empty where no ledger is in use."""
    if _in_use.get() is None:
        return ""
    digest = xxhash.xxh3_128()
    for value in vars(model).values():
        if isinstance(value, np.ndarray) and value.size:
            digest.update(np.ascontiguousarray(value).data.cast("B"))
    return digest.hexdigest()
