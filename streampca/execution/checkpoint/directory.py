"""The directory of a checkpoint: its files, its generations of ledgers, and how damage is detected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from streampca.errors import OutputError
from streampca.storage.directories import RECORD, read_record
from streampca.storage.files import TEMPORARY, digest_of, write_atomically, writing
from streampca.storage.regular_files import read_regular
from streampca.typing import Json

FORMAT = "streampca-checkpoint"
VERSION = 1
_LEDGER = re.compile(r"ledger-(\d{1,9})\.json")
_STATE = re.compile(r"state-\d{1,9}-\d{1,9}\.bin")
_UNHARMED = "the output is as it was, and the checkpoint before is whole"


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
        for generation in sorted(self._generations(), reverse=True):
            path = self.path / f"ledger-{generation}.json"
            try:
                data = _checked(path)
                for stored in states_of(data):
                    self._verify(stored)
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
        record = {"format": FORMAT, "version": VERSION, "run_id": run_id, "meaning": "a stopped run goes on from here"}
        for name, text in {RECORD: json.dumps(record) + "\n", **texts}.items():
            write_atomically(self.path / name, [text.encode()])

    def remove(self) -> None:
        """Remove every file of the checkpoint, the record last, and the directory if nothing else is in it."""
        if not self.path.is_dir() or self.path.is_symlink():
            return
        for child in sorted(self.path.iterdir(), key=lambda child: child.name == RECORD):
            if _is_ours(child):
                with suppress(OSError):
                    child.unlink()
        with suppress(OSError):
            self.path.rmdir()

    def _generations(self) -> list[int]:
        if not self.path.is_dir():
            return []
        matches = (_LEDGER.fullmatch(child.name) for child in self.path.iterdir())
        return [int(match[1]) for match in matches if match]

    def last_generation(self) -> int:
        """Return the number of the newest ledger, whole or not; 0 if there is none."""
        return max(self._generations(), default=0)

    def _verify(self, stored: StoredState) -> None:
        if not _STATE.fullmatch(stored.file):
            raise ValueError(f"it names {stored.file!r}")
        size, digest = digest_of(self.path / stored.file)
        if (size, digest) != (stored.size, stored.xxh3):
            raise ValueError(
                f"{stored.file} is damaged: {size} bytes of digest {digest}, expected {stored.size} of {stored.xxh3}"
            )

    def _prune(self, generation: int) -> None:
        """Remove ledgers before the last two, and states that neither of these names."""
        retained = [number for number in sorted(self._generations()) if number <= generation][-2:]
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


def _is_ours(child: Path) -> bool:
    name = child.name
    known = name in (RECORD, "config.yaml") or any(p.fullmatch(name) for p in (_LEDGER, _STATE, TEMPORARY))
    return known and not child.is_symlink() and child.is_file()


def _checked(path: Path) -> Json:
    whole = json.loads(read_regular(path))
    data: Json = whole["ledger"]
    if xxhash.xxh3_128(_canonical(data).encode()).hexdigest() != whole["xxh3"]:
        raise ValueError("it does not have the digest that was written with it")
    return data


def _canonical(data: Json) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))
