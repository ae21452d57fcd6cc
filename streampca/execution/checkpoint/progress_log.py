"""Checkpoints of a run: completed passes over the source and the state of the current one.

The log of the run in progress is a context variable, so that solvers need not pass it on.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import xxhash

from streampca.errors import ClusterError, OutputError
from streampca.formatting import as_text
from streampca.logs import logger
from streampca.sources.base import ReadCount
from streampca.storage.directories import RECORD, read_record
from streampca.storage.files import TEMPORARY, digest_of, read_regular, write_atomically, writing
from streampca.storage.signals import uninterrupted
from streampca.storage.state_file import NotRecordableError, read_state_file, state_bytes, write_state_file
from streampca.typing import Json

_T = TypeVar("_T")
_log = logger(__name__)

_ONCE = "once"
_FIRST_COST, _FIRST_RATE = 0.02, 2e8  # seconds, and bytes per second, before any was measured


@dataclass(frozen=True)
class BegunLeaf:
    """A leaf of which some blocks are completed."""

    blocks: int
    """Number of completed blocks."""
    count: ReadCount
    """What reading them cost."""
    state: StoredState
    """Their state."""


@dataclass(frozen=True)
class Entry:
    """The record of one pass over the source."""

    key: str
    """Name of the pass, with its number where there are several."""
    work: str
    """Plan and parameters; a checkpoint is used only if they are the same."""
    next_leaf: int = 0
    """Index of the first leaf that is not in the state."""
    n_leaves: int = 0
    """Number of leaves."""
    count: ReadCount = field(default_factory=ReadCount)
    """What reading the leaves before cost."""
    state: StoredState | None = None
    """State of the leaves before; None where a pass has none."""
    pieces: tuple[StoredState, ...] = ()
    """Further results, in the order of leaves."""
    begun: dict[int, BegunLeaf] = field(default_factory=dict)
    """Leaves of which some blocks are completed."""

    @classmethod
    def from_dict(cls, data: Json) -> Entry:
        """Return the entry whose `to_dict` is `data`."""
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

    def to_dict(self) -> Json:
        """Return the entry as plain data for JSON."""
        data = asdict(self)
        return data | {"begun": {str(index): leaf for index, leaf in data["begun"].items()}}


@dataclass(frozen=True)
class RunIdentity:
    """Name and parameters of a run."""

    run_id: str
    """Name of the run and of its temporary directory."""
    identity: dict[str, str]
    """What must be the same for a run to be resumed, by name."""
    every: float | None = 30.0
    """Seconds after which a checkpoint is due; None = none are written."""
    texts: dict[str, str] = field(default_factory=dict)
    """Texts that are written to the checkpoint directory, by file name."""


class ProgressLog:
    """The checkpoints of one run; used by its driver and by its leaf threads.

    A checkpoint is due after `every` seconds or a twentieth of the leaves, and postponed while it would take more than a
    fiftieth of the time since the last. `stored` is the ledger of a stopped run that is resumed.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        identity: RunIdentity,
        stored: Json | None = None,
        require_held: Callable[[], None] | None = None,
    ):
        self.directory, self.identity = directory, identity
        self.attempts = 1 + (stored["attempts"] if stored else 0)
        self.plan: Json | None = stored["plan"] if stored else None
        self.stopping = False
        self.written = stored is not None
        self.lock = threading.RLock()
        """Held while an entry is changed."""
        self._entries = {entry.key: entry for entry in map(Entry.from_dict, stored["readings"] if stored else [])}
        self._seconds_before = float(stored["seconds"]) if stored else 0.0
        self._generation = max(directory.generations(), default=0)
        self._require_held = require_held
        self._n_passes: dict[str, int] = {}
        self.began = self.saved = time.monotonic()
        """When the run began, and when its last checkpoint was written."""
        self._cost, self._rate = _FIRST_COST, _FIRST_RATE

    def key_of_next_pass(self, phase: str) -> str:
        """Return the key of the next pass called `phase`: its name, with its number from the second on."""
        self._n_passes[phase] = number = self._n_passes.get(phase, 0) + 1
        return phase if number == 1 else f"{phase} ({number})"

    def once(self, name: str, make: Callable[[], _T]) -> _T:
        """Return the result of `make`, or its stored result if a stopped run called it.

        Of several calls with the same name, those of fits that share their readings, each has a result of its own.
        """
        name = self.key_of_next_pass(name)
        entry = self._entries.get(name)
        if entry is not None and entry.state is not None:
            stored: _T = read_state_file(self.directory.path / entry.state.file)
            return stored
        made = make()
        try:
            cheap = self.affords(state_bytes(made), time.monotonic() - self.began)
        except NotRecordableError:
            return made
        if cheap and self.identity.every is not None:
            self.save(Entry(name, _ONCE, 1, 1), made)
        return made

    @property
    def progress(self) -> str:
        """Return how far the last pass has come that is recorded, for messages."""
        entry = next((entry for entry in reversed(self._entries.values()) if entry.work != _ONCE), None)
        if entry is None:
            return "before the first reading"
        begun = f" and parts of {len(entry.begun)}" if entry.begun else ""
        return f"{entry.key}, {entry.next_leaf} of {entry.n_leaves} leaves done{begun}"

    def entry(self, key: str) -> Entry | None:
        """Return the record of one pass."""
        return self._entries.get(key)

    def forget_from(self, key: str) -> None:
        """Drop the pass `key` and all after it."""
        keys = list(self._entries)
        for later in keys[keys.index(key) :] if key in keys else []:
            del self._entries[later]

    def cost(self, n_bytes: int) -> float:
        """Return the estimated seconds for writing a checkpoint of `n_bytes` bytes."""
        return self._cost + n_bytes / self._rate

    def affords(self, n_bytes: int, seconds: float, times: int = 1) -> bool:
        """Return whether writing `n_bytes` bytes so many times takes no more than its share of `seconds`.

        ``STREAMPCA_CHECKPOINT_SHARE`` is that share; from 1 on, no checkpoint is postponed.
        """
        share = float(os.environ.get("STREAMPCA_CHECKPOINT_SHARE", "0.02"))
        return share >= 1 or times * self.cost(n_bytes) <= share * seconds

    def save(
        self,
        entry: Entry,
        state: object = None,
        piece: object = None,
        begun: tuple[int, BegunLeaf, object] | None = None,
    ) -> Entry:
        """Write the new `state`, `piece` and begun leaf of `entry`, then a ledger that names them; return the entry as written.

        Raises
        ------
        NoSpaceError, OutputError
            If it cannot be written; the checkpoint before is intact then.
        """
        with uninterrupted(), self.lock:
            self.require_held()
            started, n_bytes = time.monotonic(), 0
            self.directory.make(self.identity.run_id, self.identity.texts)
            generation = self._generation + 1
            files = (f"state-{generation}-{number}.bin" for number in range(3))

            def written(state: object) -> StoredState:
                name = next(files)
                return StoredState(name, *write_state_file(self.directory.path / name, state))

            if state is not None:
                entry = replace(entry, state=(stored := written(state)))
                n_bytes += stored.size
            if piece is not None:
                entry = replace(entry, pieces=(*entry.pieces, stored := written(piece)))
                n_bytes += stored.size
            if begun is not None:
                index, leaf, leaf_state = begun
                leaf = replace(leaf, state=written(leaf_state))
                entry = replace(entry, begun={**entry.begun, index: leaf})
                n_bytes += leaf.state.size
            self._entries[entry.key] = entry
            self._generation = generation
            ledger = {
                "format": "streampca-ledger",
                "version": 1,
                "generation": generation,
                "run_id": self.identity.run_id,
                "attempts": self.attempts,
                "seconds": self._seconds_before + time.monotonic() - self.began,
                "identity": self.identity.identity,
                "plan": self.plan,
                "readings": [entry.to_dict() for entry in self._entries.values()],
            }
            self.directory.write(ledger, self.identity.texts)
            self.written, self.saved = True, time.monotonic()
            seconds = self.saved - started
            if n_bytes < 2**20:
                self._cost = (self._cost + max(seconds, 1e-3)) / 2
            else:
                self._rate = 0.5 * self._rate + 0.5 * n_bytes / max(seconds - self._cost, 1e-3)
        leaves = f"{entry.next_leaf} of {entry.n_leaves} leaves"
        _log.info("checkpoint: %s, %s, %s written in %.2f s", entry.key, leaves, as_text(n_bytes), seconds)
        return entry

    def require_held(self) -> None:
        """Raise `OutputError` if another process has taken the lock of this run."""
        if self._require_held is not None:
            self._require_held()

    def resumption(self) -> Json | None:
        """Return the manifest's entry about earlier attempts; None for a run that was never stopped."""
        if self.attempts == 1:
            return None
        return {"attempts": self.attempts, "seconds_before": self._seconds_before}


_in_use: ContextVar[ProgressLog | None] = ContextVar("streampca progress log", default=None)


@contextmanager
def recording(log: ProgressLog | None) -> Iterator[None]:
    """Record the passes of this block in `log`."""
    token = _in_use.set(log)
    try:
        yield
    finally:
        _in_use.reset(token)


def log_in_use() -> ProgressLog | None:
    """Return the log of the run in progress, if it has one."""
    return _in_use.get()


def once(name: str, make: Callable[[], _T]) -> _T:
    """Return the result of `make`, or the one stored by the run that is resumed."""
    log = _in_use.get()
    return make() if log is None else log.once(name, make)


def note_stop(error: BaseException) -> None:
    """Have progress recorded if `error` stops the run without a fault of data or output: a signal, or a lost cluster."""
    log = _in_use.get()
    stops = isinstance(error, ClusterError) or not isinstance(error, Exception | GeneratorExit)
    if log is not None and stops:
        log.stopping = True


def model_digest(model: object) -> str:
    """Return a digest of the arrays of `model`; empty if no run is recorded."""
    if _in_use.get() is None:
        return ""
    digest = xxhash.xxh3_128()
    for value in vars(model).values():
        if isinstance(value, np.ndarray) and value.size:
            digest.update(np.ascontiguousarray(value).data.cast("B"))
    return digest.hexdigest()


FORMAT = "streampca-checkpoint"
VERSION = 1
_LEDGER = re.compile(r"ledger-(\d{1,9})\.json")
_STATE = re.compile(r"state-\d{1,9}-\d{1,9}\.bin")
_UNHARMED = "the output is unchanged, and the previous checkpoint is intact"


@dataclass(frozen=True)
class StoredState:
    """A file of a checkpoint with its size and digest."""

    file: str
    """Its name in the directory."""
    size: int
    """Its bytes."""
    xxh3: str
    """The xxh3-128 of them: detects accidental damage, is no signature."""


class CheckpointDirectory:
    """A checkpoint directory: a record, two generations of ledgers, and the states that they name.

    Nothing is made before the first `write`. A ledger is written after the states it names; the generation before stays
    until the next, so one damaged file costs one generation.
    """

    def __init__(self, path: Path):
        self.path = path.absolute()

    def require_ours(self) -> None:
        """Raise `OutputError` if the path exists and is not a checkpoint."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise OutputError(f"{self.path} is not a directory: expected a place for a checkpoint; move it away")
        if not self.path.exists():
            return
        names = [child.name for child in self.path.iterdir()]
        record = read_record(self.path)
        if (record or {}).get("format") != FORMAT and not all(TEMPORARY.fullmatch(name) for name in names):
            raise OutputError(
                f"{self.path} exists and is not a checkpoint of streampca: it is left untouched; move it away, or name another place"
            )

    def newest(self) -> tuple[Json | None, list[str]]:
        """Return the newest ledger that is intact with all states it names, or None, and messages texts damaged ones."""
        damaged: list[str] = []
        for generation in sorted(self.generations(), reverse=True):
            path = self.path / f"ledger-{generation}.json"
            try:
                data = _checked(path)
                for stored in states_of(data):
                    if not _STATE.fullmatch(stored.file):
                        raise ValueError(f"it names {stored.file!r}")
                    found = digest_of(self.path / stored.file)
                    if found != (stored.size, stored.xxh3):
                        raise ValueError(
                            f"{stored.file} is damaged: {found[0]} bytes of digest {found[1]}, expected {stored.size} of {stored.xxh3}"
                        )
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                damaged.append(f"{path.name}: {error}")
                continue
            return data, damaged
        return None, damaged

    def write(self, data: Json, texts: dict[str, str]) -> None:
        """Write the ledger `data` as its generation and drop what neither it nor the one before names.

        `texts` are further files, by name, that are written once beside the record.
        """
        self.make(data["run_id"], texts)
        text = _canonical(data)
        whole = json.dumps({"xxh3": xxhash.xxh3_128(text.encode()).hexdigest(), "ledger": data})
        write_atomically(self.path / f"ledger-{data['generation']}.json", [whole.encode()])
        self._prune(data["generation"])

    def make(self, run_id: str, texts: dict[str, str]) -> None:
        """Make the directory with its record, if it is not there."""
        if (read_record(self.path) or {}).get("run_id") == run_id:
            return
        with writing(self.path, _UNHARMED):
            self.path.mkdir(exist_ok=True, parents=True)
        record = {
            "format": FORMAT,
            "version": VERSION,
            "run_id": run_id,
            "meaning": "a stopped run continues from here",
        }
        for name, text in {RECORD: json.dumps(record) + "\n", **texts}.items():
            write_atomically(self.path / name, [text.encode()])

    def remove(self) -> None:
        """Remove every file of the checkpoint, the record last, and the directory if nothing else is in it."""
        if not self.path.is_dir() or self.path.is_symlink():
            return
        for child in sorted(self.path.iterdir(), key=lambda child: child.name == RECORD):
            ours = child.name in (RECORD, "config.yaml") or any(
                p.fullmatch(child.name) for p in (_LEDGER, _STATE, TEMPORARY)
            )
            if ours and not child.is_symlink() and child.is_file():
                with suppress(OSError):
                    child.unlink()
        with suppress(OSError):
            self.path.rmdir()

    def generations(self) -> list[int]:
        """Return the numbers of the ledgers, whole or not."""
        if not self.path.is_dir():
            return []
        matches = (_LEDGER.fullmatch(child.name) for child in self.path.iterdir())
        return [int(match[1]) for match in matches if match]

    def _prune(self, generation: int) -> None:
        """Remove ledgers before the last two, and states that neither of these names."""
        retained = [number for number in sorted(self.generations()) if number <= generation][-2:]
        named = set()
        for number in retained:
            with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                named |= {stored.file for stored in states_of(_checked(self.path / f"ledger-{number}.json"))}
        ledgers = {f"ledger-{number}.json" for number in retained}
        for child in self.path.iterdir():
            superseded = _LEDGER.fullmatch(child.name) and child.name not in ledgers
            if superseded or (_STATE.fullmatch(child.name) and child.name not in named):
                with suppress(OSError):
                    child.unlink()


def states_of(data: Json) -> Iterable[StoredState]:
    """Yield the files that a ledger names."""
    for reading in data["readings"]:
        begun = [leaf["state"] for leaf in reading["begun"].values()]
        for stored in (reading["state"], *reading["pieces"], *begun):
            if stored is not None:
                yield StoredState(**stored)


def _checked(path: Path) -> Json:
    whole = json.loads(read_regular(path))
    data: Json = whole["ledger"]
    if xxhash.xxh3_128(_canonical(data).encode()).hexdigest() != whole["xxh3"]:
        raise ValueError("it does not have the digest that was written with it")
    return data


def _canonical(data: Json) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))
